//! Element types and their conversion to and from f32 (spec quantize 1.2): round to nearest even.
//! Everything is branch-free bit code, so that the compiler vectorises loops over it; the conversions of the crate
//! `half`, which choose among instructions at run time for each value, prevent that. 16-bit floats cross no
//! interface by value: C passes addresses.

use crate::types::NVTEDType;

/// A type that tensors hold.
pub trait Element: Copy + Default + Send + Sync + 'static {
    const DTYPE: NVTEDType;
    /// 8-bit types carry a scale.
    const FP8: bool;
    fn to_f32(self) -> f32;
    fn from_f32(x: f32) -> Self;
    /// Integers of the element's size, in the order of the magnitudes that they stand for.
    type Rank: Copy + Ord;
    const OF_ZERO: Self::Rank;
    /// The rank of a magnitude; less than all others for NaN.
    fn rank(self) -> Self::Rank;
    /// The magnitude that has this rank.
    fn of_rank(rank: Self::Rank) -> Self;
}

/// Rounds to a format with `MANT` mantissa bits. Magnitudes past the one with the bits `MOST` become it; NaN becomes
/// `NAN`, whatever its sign.
#[inline(always)]
fn narrow<const MANT: u32, const BIAS: u32, const MOST: u32, const NAN: u32>(x: f32) -> u32 {
    let shift = 23 - MANT;
    let least = (128 - BIAS) << 23;
    let all = x.to_bits() & 0x7FFF_FFFF;
    let mag = if all < MOST { all } else { MOST };
    // The smallest float of the binade, of that of the format's subnormals at least.
    let binade = mag & 0x7F80_0000;
    let binade = if binade > least { binade } else { least };
    // The spacing of floats near `magic` is that of the format near x: the addition rounds.
    let magic = binade + (shift << 23);
    let sum = (f32::from_bits(mag) + f32::from_bits(magic)).to_bits();
    let code = sum.wrapping_sub(magic).wrapping_add((binade - least) >> shift);
    // The format is one sign bit wider than its largest magnitude.
    let top = 32 - NAN.leading_zeros();
    let sign = (x.to_bits() >> (31 - top)) & (1 << top);
    if all > 0x7F80_0000 { NAN } else { code | sign }
}

/// The upper half of the bits, rounded: BF16 has the exponents of float32, subnormal ones too.
#[inline(always)]
fn upper_half(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7FFF + ((bits >> 16) & 1)) >> 16;
    if bits & 0x7FFF_FFFF > 0x7F80_0000 { 0x7FFF } else { rounded as u16 }
}

/// The value of a code of `WIDTH` bits; magnitudes from `SPECIAL` on are Inf or NaN.
#[inline(always)]
fn widen<const WIDTH: u32, const MANT: u32, const BIAS: u32, const SPECIAL: u32>(code: u32) -> f32 {
    let mag = code & ((1 << (WIDTH - 1)) - 1);
    let normal = (mag << (23 - MANT)) + ((127 - BIAS) << 23);
    // Not by multiplying `normal`: that would be slow on subnormal floats.
    let ulp = f32::from_bits((127 + 1 - BIAS - MANT) << 23);
    let subnormal = (mag as i32 as f32 * ulp).to_bits();
    let bits = if mag < 1 << MANT { subnormal } else { normal };
    let bits = if mag >= SPECIAL { normal | 0x7F80_0000 } else { bits };
    f32::from_bits(bits | (code >> (WIDTH - 1)) << 31)
}

macro_rules! element {
    (
        $name:ident($bits:ty), $dtype:ident, fp8: $fp8:expr, $to:expr, $from:expr,
        // Its bits as unsigned and signed integers, and the largest ones of a magnitude that is not NaN.
        $unsigned:ident, $signed:ident, $largest:expr, $to_bits:expr, $of_bits:expr
    ) => {
        #[derive(Clone, Copy, Default, Debug, PartialEq)]
        #[repr(transparent)]
        pub struct $name(pub $bits);

        impl Element for $name {
            const DTYPE: NVTEDType = NVTEDType::$dtype;
            const FP8: bool = $fp8;
            #[inline(always)]
            fn to_f32(self) -> f32 {
                let to: fn($bits) -> f32 = $to;
                to(self.0)
            }
            #[inline(always)]
            fn from_f32(x: f32) -> Self {
                let from: fn(f32) -> $bits = $from;
                Self(from(x))
            }
            type Rank = $signed;
            // The bits of NaN pass the largest signed integer.
            const OF_ZERO: $signed = $signed::MAX - $largest;
            #[inline(always)]
            fn rank(self) -> $signed {
                let to_bits: fn($bits) -> $unsigned = $to_bits;
                let magnitude = to_bits(self.0) & ($unsigned::MAX >> 1);
                magnitude.wrapping_add(Self::OF_ZERO as $unsigned) as $signed
            }
            #[inline(always)]
            fn of_rank(rank: $signed) -> Self {
                let of_bits: fn($unsigned) -> $bits = $of_bits;
                Self(of_bits((rank as $unsigned).wrapping_sub(Self::OF_ZERO as $unsigned)))
            }
        }
    };
}

element!(F32(f32), kNVTEFloat32, fp8: false, |v| v, |x| x,
    u32, i32, 0x7F80_0000, f32::to_bits, f32::from_bits);
element!(F16(u16), kNVTEFloat16, fp8: false,
    |v| widen::<16, 10, 15, 0x7C00>(v as u32), |x| narrow::<10, 15, 0x4780_0000, 0x7FFF>(x) as u16,
    u16, i16, 0x7C00, |v| v, |v| v);
element!(BF16(u16), kNVTEBFloat16, fp8: false,
    |v| f32::from_bits((v as u32) << 16), upper_half,
    u16, i16, 0x7F80, |v| v, |v| v);
element!(E4M3(u8), kNVTEFloat8E4M3, fp8: true,
    |v| widen::<8, 3, 7, 0x7F>(v as u32), |x| narrow::<3, 7, 0x43E0_0000, 0x7F>(x) as u8,
    u8, i8, 0x7E, |v| v, |v| v);
element!(E5M2(u8), kNVTEFloat8E5M2, fp8: true,
    |v| widen::<8, 2, 15, 0x7C>(v as u32), |x| narrow::<2, 15, 0x4760_0000, 0x7F>(x) as u8,
    u8, i8, 0x7C, |v| v, |v| v);

/// The bits of |x|, 0 for NaN: their integer maximum is the amax of spec quantize 1.5.
#[inline(always)]
pub fn amax_bits(x: f32) -> u32 {
    let mag = x.to_bits() & 0x7FFF_FFFF;
    if mag > 0x7F80_0000 { 0 } else { mag }
}

/// The E2M1 code (4 bits) nearest to x, ties to even, at most 6 in magnitude; 7 for NaN.
#[inline(always)]
pub fn e2m1(x: f32) -> u8 {
    let a = x.abs();
    let steps = [a > 0.25, a >= 0.75, a > 1.25, a >= 1.75, a > 2.5, a >= 3.5, a > 5.0];
    let code = steps.iter().map(|&step| u8::from(step)).sum::<u8>();
    if x.is_nan() { 7 } else { code | (x.to_bits() >> 28) as u8 & 8 }
}

/// The value of an E2M1 code.
#[inline(always)]
pub fn e2m1_value(code: u8) -> f32 {
    const VALUES: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let value = VALUES[usize::from(code & 7)];
    if code & 8 == 0 { value } else { -value }
}

/// NVFP4 scales that follow from the largest magnitude of a tensor (spec nvfp4, section 8).
#[derive(Clone, Copy, Debug)]
pub struct Nvfp4Scale {
    pub global: f32,
    pub inverse: f32,
    sixth: f32,
}

impl Nvfp4Scale {
    /// `amax` goes to the product of `e4m3_max` and 6; an amax of 0 or Inf has the scale 1.
    pub fn new(amax: f32, e4m3_max: f32) -> Self {
        // The minimum is the number if the quotient is NaN.
        let scale = (e4m3_max * 6.0 / amax).min(f32::MAX);
        Self::of_global(if amax == 0.0 || scale == 0.0 { 1.0 } else { scale })
    }

    pub fn of_global(global: f32) -> Self {
        Self { global, inverse: 1.0 / global, sixth: global * (1.0 / 6.0) }
    }

    /// The scale of a block whose largest magnitude is `amax`.
    #[inline(always)]
    pub fn block(&self, amax: f32) -> E4M3 {
        E4M3::from_f32((amax * self.sixth).min(f32::MAX))
    }

    /// The factor of the elements of a block.
    #[inline(always)]
    pub fn multiplier(&self, block: E4M3) -> f32 {
        (1.0 / (block.to_f32() * self.inverse)).min(f32::MAX)
    }
}

/// Calls `$body` with the type alias `$name` bound to the element type that `$dtype` names;
/// `$other` if it is not among the listed ones.
macro_rules! dispatch {
    ($dtype:expr, [$($t:ident),+], $name:ident => $body:expr, else $other:expr) => {
        match $dtype {
            $(<$crate::numeric::$t as $crate::numeric::Element>::DTYPE => {
                type $name = $crate::numeric::$t;
                $body
            })+
            _ => $other,
        }
    };
}
pub(crate) use dispatch;

/// `exp(x)`; 0 below -86.5, infinite above 88.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    // Adding 1.5 * 2^23 rounds to an integer n, which stays in the low bits.
    let shifted = x.mul_add(std::f32::consts::LOG2_E, 12_582_912.0);
    let n = shifted - 12_582_912.0;
    let f = n.mul_add(-LN2_LOW, n.mul_add(-LN2_HIGH, x));
    let p = 1.987_569_1e-4f32;
    let p = p.mul_add(f, 1.398_2e-3);
    let p = p.mul_add(f, 8.333_452e-3);
    let p = p.mul_add(f, 4.166_579_6e-2);
    let p = p.mul_add(f, 1.666_666_6e-1);
    let p = p.mul_add(f, 0.5);
    let p = p.mul_add(f * f, f) + 1.0;
    let power = f32::from_bits(p.to_bits().wrapping_add(shifted.to_bits() << 23));
    let power = if x > 88.0 { f32::INFINITY } else { power };
    let power = if x < -86.5 { 0.0 } else { power };
    if x.is_nan() { x } else { power }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A format described as in the standard, with arithmetic in f64, where all its values are
    /// exact.
    struct Format {
        mant: i32,
        bias: i32,
        width: u32,
        max: f64,
        max_code: u32,
        /// Code of overflow: the largest value again, or Inf.
        limit: u32,
        nan: u32,
    }

    const F16_FORMAT: Format = Format {
        mant: 10,
        bias: 15,
        width: 16,
        max: 65504.0,
        max_code: 0x7BFF,
        limit: 0x7C00,
        nan: 0x7FFF,
    };
    const BF16_FORMAT: Format = Format {
        mant: 7,
        bias: 127,
        width: 16,
        max: f32::from_bits(0x7F7F_0000) as f64,
        max_code: 0x7F7F,
        limit: 0x7F80,
        nan: 0x7FFF,
    };
    const E4M3_FORMAT: Format =
        Format { mant: 3, bias: 7, width: 8, max: 448.0, max_code: 0x7E, limit: 0x7E, nan: 0x7F };
    const E5M2_FORMAT: Format = Format {
        mant: 2,
        bias: 15,
        width: 8,
        max: 57344.0,
        max_code: 0x7B,
        limit: 0x7B,
        nan: 0x7F,
    };

    impl Format {
        fn value(&self, code: u32) -> f64 {
            let (exp, frac) = ((code >> self.mant) as i32, (code & ((1 << self.mant) - 1)) as f64);
            let ulps = 2f64.powi(-self.mant);
            if exp == 0 {
                frac * ulps * 2f64.powi(1 - self.bias)
            } else {
                (1.0 + frac * ulps) * 2f64.powi(exp - self.bias)
            }
        }

        /// Nearest code by bisection over the ordered non-negative values.
        fn encode(&self, x: f32) -> u32 {
            if x.is_nan() {
                return self.nan;
            }
            let sign = u32::from(x.is_sign_negative()) << (self.width - 1);
            let mag = (x as f64).abs();
            let step = self.max - self.value(self.max_code - 1);
            if mag > self.max {
                // The value after the largest would be `max + step`; ties go there (it is even).
                let over = mag >= self.max + step / 2.0;
                return sign | if over { self.limit } else { self.max_code };
            }
            let (mut lo, mut hi) = (0, self.max_code);
            while lo < hi {
                let mid = (lo + hi).div_ceil(2);
                if self.value(mid) <= mag { lo = mid } else { hi = mid - 1 }
            }
            if lo == self.max_code {
                return sign | lo;
            }
            let (below, above) = (mag - self.value(lo), self.value(lo + 1) - mag);
            let up = above < below || (above == below && lo % 2 == 1);
            sign | if up { lo + 1 } else { lo }
        }
    }

    /// Values around every rounding boundary of the format, all exponents, and random patterns.
    fn samples(format: &Format) -> Vec<f32> {
        let mut all =
            vec![0.0, f32::INFINITY, f32::NAN, -f32::NAN, f32::from_bits(0x7F80_0001), f32::MAX];
        let mut around = |v: f64| {
            let bits = (v as f32).to_bits();
            all.extend((-2i32..=2).map(|d| f32::from_bits(bits.saturating_add_signed(d))));
        };
        for code in 0..format.max_code {
            around(format.value(code));
            around((format.value(code) + format.value(code + 1)) / 2.0);
        }
        around(format.max);
        around(format.max + (format.max - format.value(format.max_code - 1)) / 2.0);
        let mut state = 0x9E37_79B9_7F4A_7C15u64;
        for _ in 0..1_000_000 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            all.push(f32::from_bits(state as u32));
        }
        let negative: Vec<f32> = all.iter().map(|x| -x).collect();
        all.extend(negative);
        all
    }

    fn check_encode<T: Element>(format: &Format, code: impl Fn(T) -> u32) {
        for x in samples(format) {
            let (got, want) = (code(T::from_f32(x)), format.encode(x));
            assert_eq!(got, want, "{:?} of {x:e} ({:#010x})", T::DTYPE, x.to_bits());
        }
    }

    #[test]
    fn encode_is_nearest_even() {
        check_encode::<F16>(&F16_FORMAT, |v| v.0.into());
        check_encode::<BF16>(&BF16_FORMAT, |v| v.0.into());
        check_encode::<E4M3>(&E4M3_FORMAT, |v| v.0.into());
        check_encode::<E5M2>(&E5M2_FORMAT, |v| v.0.into());
    }

    fn check_decode<T: Element>(format: &Format, codes: u32, make: impl Fn(u32) -> T) {
        let half = codes / 2;
        for code in 0..codes {
            let (mag, got) = (code & (half - 1), make(code).to_f32());
            if mag <= format.max_code {
                let want = format.value(mag) as f32;
                assert_eq!(
                    got.to_bits(),
                    if code < half { want } else { -want }.to_bits(),
                    "{code:#x}"
                );
                assert_eq!(format.encode(got), code);
            } else if mag == format.max_code + 1 && format.mant != 3 {
                assert_eq!(got, if code < half { f32::INFINITY } else { f32::NEG_INFINITY });
            } else {
                assert!(got.is_nan(), "{code:#x}");
            }
        }
    }

    #[test]
    fn decode_is_exact_for_all_codes() {
        check_decode(&F16_FORMAT, 65536, |c| F16(c as u16));
        check_decode(&BF16_FORMAT, 65536, |c| BF16(c as u16));
        check_decode(&E4M3_FORMAT, 256, |c| E4M3(c as u8));
        check_decode(&E5M2_FORMAT, 256, |c| E5M2(c as u8));
    }

    fn check_ranks<T: Element>(codes: u32, make: impl Fn(u32) -> T) {
        for code in 0..codes {
            let x = make(code);
            if x.to_f32().is_nan() {
                assert!(x.rank() < T::OF_ZERO, "{code:#x}");
                continue;
            }
            assert_eq!(T::of_rank(x.rank()).to_f32().to_bits(), x.to_f32().abs().to_bits());
            let next = make((code + 1) % (codes / 2));
            if next.to_f32() > x.to_f32().abs() {
                assert!(next.rank() > x.rank() && x.rank() >= T::OF_ZERO, "{code:#x}");
            }
        }
    }

    #[test]
    fn ranks_are_in_the_order_of_magnitudes() {
        check_ranks(65536, |c| F32(f32::from_bits(c << 16 | c & 0x7F)));
        check_ranks(65536, |c| F16(c as u16));
        check_ranks(65536, |c| BF16(c as u16));
        check_ranks(256, |c| E4M3(c as u8));
        check_ranks(256, |c| E5M2(c as u8));
    }

    #[test]
    fn bits_that_the_spec_names() {
        let e4m3 = |x| E4M3::from_f32(x).0;
        let e5m2 = |x| E5M2::from_f32(x).0;
        assert_eq!([e4m3(448.0), e4m3(1e9), e4m3(f32::NEG_INFINITY)], [0x7E, 0x7E, 0xFE]);
        assert_eq!([e5m2(57344.0), e5m2(1e9), e5m2(f32::NEG_INFINITY)], [0x7B, 0x7B, 0xFB]);
        assert_eq!([e4m3(-f32::NAN), e5m2(-f32::NAN)], [0x7F, 0x7F]);
        assert_eq!([e4m3(2f32.powi(-10)), e4m3(-0.0), e4m3(-1e-30)], [0x00, 0x80, 0x80]);
        assert_eq!([e4m3(2f32.powi(-9)), e4m3(2f32.powi(-6)), e4m3(1.0)], [0x01, 0x08, 0x38]);
        assert_eq!([e5m2(2f32.powi(-16)), e5m2(2f32.powi(-14)), e5m2(1.0)], [0x01, 0x04, 0x3C]);
    }

    #[test]
    fn e2m1_is_nearest_even() {
        let value = |code: u8| f64::from(e2m1_value(code));
        let nearest = |x: f32| {
            let (a, sign) = (f64::from(x.abs()), u8::from(x.is_sign_negative()) * 8);
            // Of two codes that are equally near, the even one comes first.
            let order = [0u8, 2, 4, 6, 1, 3, 5, 7];
            let near = order
                .into_iter()
                .min_by(|&i, &j| (a - value(i)).abs().total_cmp(&(a - value(j)).abs()));
            near.unwrap_or_default() | sign
        };
        for i in 0..=8u8 {
            let middle = if i < 8 { (value(i.min(7)) + value((i + 1).min(7))) / 2.0 } else { 1e9 };
            for point in [middle, value(i.min(7))] {
                let bits = (point as f32).to_bits();
                for bits in bits.saturating_sub(3)..=bits + 3 {
                    for x in [f32::from_bits(bits), -f32::from_bits(bits)] {
                        assert_eq!(e2m1(x), nearest(x), "{x:e}");
                    }
                }
            }
        }
        assert_eq!([e2m1(f32::NAN), e2m1(-f32::NAN)], [7, 7]);
        assert_eq!([e2m1(f32::INFINITY), e2m1(f32::NEG_INFINITY)], [7, 15]);
        assert_eq!([e2m1(0.0), e2m1(-0.0), e2m1(-1e-30)], [0, 8, 8]);
    }

    #[test]
    fn nvfp4_scales_of_extremes() {
        let scale = Nvfp4Scale::new(0.0, 448.0);
        assert_eq!((scale.global, scale.block(0.0).0), (1.0, 0));
        assert_eq!(scale.multiplier(E4M3(0)), f32::MAX);
        assert_eq!(Nvfp4Scale::new(f32::INFINITY, 448.0).global, 1.0);
        assert_eq!(Nvfp4Scale::new(f32::NAN, 448.0).global, f32::MAX);
        let scale = Nvfp4Scale::new(2688.0, 448.0);
        assert_eq!([scale.block(2688.0).0, scale.block(f32::INFINITY).0], [0x7E, 0x7E]);
        assert_eq!(scale.multiplier(E4M3(0x38)), 1.0);
    }

    #[test]
    fn amax_ignores_nan_and_keeps_inf() {
        assert_eq!(amax_bits(f32::NAN), 0);
        assert_eq!(amax_bits(-f32::NAN), 0);
        assert_eq!(f32::from_bits(amax_bits(f32::NEG_INFINITY)), f32::INFINITY);
        assert_eq!(f32::from_bits(amax_bits(-3.5)), 3.5);
    }
}
