//! What everybody who chooses among implementations knows of an operator: its name, its variants, and the facts of
//! a call by which an implementation is a candidate or not.
#![allow(unsafe_code)]

use super::plugin::OpInfo;
use super::table::OpTable;
use super::{Group, Outcome};
use crate::types::{NVTEDType, NVTEScalingMode, cudaStream_t};
use std::ffi::{CStr, c_char};
use std::fmt::Debug;

/// An argument struct, and what it says about the call that it is for.
pub trait Operator: Debug + Sized {
    const NAME: &'static str;
    /// Place in the list of operators.
    const NUMBER: u32;
    /// Version of the argument struct, `major << 16 | minor`.
    const VERSION: u32;
    /// Full names: `softmax.causal_forward`. An operator without variants has its own name there.
    const VARIANTS: &'static [&'static CStr];
    /// Names of the bits of [`Facts::features`], the lowest first.
    const FEATURES: &'static [&'static CStr];
    /// The same for C.
    const INFO: &'static OpInfo;

    fn entry(table: &OpTable) -> Option<Entry<Self>>;
    /// Index in `VARIANTS`.
    fn variant(&self) -> u32;
    fn facts(&self) -> Facts;
    /// Bytes of the operands that are read and written, each once, without scales, statistics and workspace; none where
    /// the host does not know them. Where sizes of members lie on the device it is the bytes of the whole.
    fn bytes(&self) -> Option<u64> {
        None
    }
    /// Bytes of the workspace that the caller gave, if how many an implementation needs is its own affair.
    fn workspace(&self) -> Option<usize> {
        None
    }
}

/// A function that runs an operator on a stream.
pub type Entry<A> = unsafe extern "C-unwind" fn(*const A, cudaStream_t) -> Outcome;

/// A [`super::BackendStatus`] as C gives it. Rust reads a number, because it must never hold an enumeration of
/// another value than those that it lists.
pub type StatusNumber = u32;

/// What the arguments of a call use of what implementations declare to take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// A bit `1 << dtype` for each dtype of an operand that is present.
    pub dtypes: u64,
    /// A bit `1 << mode` for each scaling mode of an operand.
    pub modes: u32,
    /// A bit for each feature.
    pub features: u64,
}

// SAFETY: all pointers are those of constants, which nobody writes.
unsafe impl Sync for OpInfo {}

/// Whether an optional part of a call is there.
pub(super) trait Present {
    fn present(&self) -> bool;
}

impl Present for bool {
    fn present(&self) -> bool {
        *self
    }
}

impl<T> Present for *const T {
    fn present(&self) -> bool {
        !self.is_null()
    }
}

impl<T> Present for *mut T {
    fn present(&self) -> bool {
        !self.is_null()
    }
}

impl Present for Group {
    fn present(&self) -> bool {
        self.num_tensors != 0
    }
}

/// Something that sets bits of a mask of dtypes or scaling modes.
pub(super) trait Bits {
    fn bits(&self) -> u64;
}

impl Bits for NVTEDType {
    fn bits(&self) -> u64 {
        1 << *self as u32
    }
}

impl Bits for NVTEScalingMode {
    fn bits(&self) -> u64 {
        1_u64.checked_shl(*self as u32).unwrap_or(0)
    }
}

impl<T: Bits> Bits for Option<T> {
    fn bits(&self) -> u64 {
        self.as_ref().map_or(0, Bits::bits)
    }
}

impl<T: Bits> Bits for &[T] {
    fn bits(&self) -> u64 {
        self.iter().fold(0, |bits, one| bits | one.bits())
    }
}

/// A dtype or mode that counts only if a part of the call is there.
pub(super) fn when<T>(part: impl Present, value: T) -> Option<T> {
    part.present().then_some(value)
}

/// A text of C, which ends with its only NUL.
pub(super) const fn text(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("a text with a NUL inside of it or without one at its end"),
    }
}

/// Bytes of elements.
pub(super) fn size(elements: usize, dtype: NVTEDType) -> usize {
    elements * dtype.bits() / 8
}

/// The pointers of texts, for C.
pub(super) const fn pointers<const N: usize>(texts: &[&'static CStr]) -> [*const c_char; N] {
    let mut pointers = [std::ptr::null(); N];
    let mut i = 0;
    while i < N {
        pointers[i] = texts[i].as_ptr();
        i += 1;
    }
    pointers
}

/// Makes an argument struct an [`Operator`]:
///
/// ```text
/// operator! {
///     softmax(SoftmaxArgs) version 1 minor 0; |a|
///     variants a.visible as u32 => [plain, masked];
///     dtypes a.dtype, when(a.bias, a.bias_dtype);
///     modes a.mode;
///     features { MASK = a.mask, BIAS = a.bias }
///     bytes 2 * size(a.rows * a.cols, a.dtype);
///     workspace a.workspace_bytes;
/// }
/// ```
///
/// `softmax` is the row in the list of operators, `a` the arguments. The expression before `=>` is the index of the
/// call's variant. Whatever follows the first line may be left out. Variants and features are only ever appended, and
/// a feature that an earlier version did not have raises the minor.
macro_rules! operator {
    (
        $name:ident($args:ident) version $major:literal minor $minor:literal; |$a:ident|
        $(variants $chosen:expr => [$($variant:ident),+ $(,)?];)?
        $(dtypes $($dtype:expr),+;)?
        $(modes $($mode:expr),+;)?
        $(features { $($feature:ident = $used:expr),+ $(,)? })?
        $(bytes $bytes:expr;)?
        $(workspace $workspace:expr;)?
    ) => {
        impl $crate::backend::args::operator::Operator for $args {
            const NAME: &'static str = stringify!($name);
            const NUMBER: u32 = $crate::backend::args::table::Number::$name as u32;
            const VERSION: u32 = $major << 16 | $minor;
            const VARIANTS: &'static [&'static ::std::ffi::CStr] =
                operator!(@variants $name $($($variant)+)?);
            const FEATURES: &'static [&'static ::std::ffi::CStr] = &[
                $($($crate::backend::args::operator::text(concat!(stringify!($feature), "\0")),)+)?
            ];
            const INFO: &'static $crate::backend::args::plugin::OpInfo = {
                use $crate::backend::args::operator::{pointers, text};
                use $crate::backend::args::plugin::OpInfo;
                use ::std::ffi::c_char;
                const VARIANTS: &[*const c_char] = &pointers::<{ $args::VARIANTS.len() }>($args::VARIANTS);
                const FEATURES: &[*const c_char] = &pointers::<{ $args::FEATURES.len() }>($args::FEATURES);
                &OpInfo {
                    struct_size: size_of::<OpInfo>(),
                    name: text(concat!(stringify!($name), "\0")).as_ptr(),
                    op: Self::NUMBER,
                    version: Self::VERSION,
                    args_size: size_of::<Self>(),
                    variants: VARIANTS.as_ptr(),
                    variant_count: VARIANTS.len(),
                    features: FEATURES.as_ptr(),
                    feature_count: FEATURES.len(),
                }
            };

            fn entry(
                table: &$crate::backend::args::OpTable,
            ) -> Option<$crate::backend::args::operator::Entry<Self>> {
                table.$name
            }

            #[inline]
            fn variant(&self) -> u32 {
                let $a = self;
                let _ = $a;
                let variant = 0 $(+ $chosen)?;
                debug_assert!((variant as usize) < Self::VARIANTS.len());
                variant
            }

            fn facts(&self) -> $crate::backend::args::operator::Facts {
                let $a = self;
                let _ = $a;
                let used: &[bool] = &[
                    $($($crate::backend::args::operator::Present::present(&$used)),+)?
                ];
                $crate::backend::args::operator::Facts {
                    dtypes: 0 $($(| $crate::backend::args::operator::Bits::bits(&$dtype))+)?,
                    modes: 0 $($(| $crate::backend::args::operator::Bits::bits(&$mode) as u32)+)?,
                    features: used.iter().rev().fold(0, |bits, &used| bits << 1 | u64::from(used)),
                }
            }

            $(
                fn bytes(&self) -> Option<u64> {
                    let $a = self;
                    Some(($bytes) as u64)
                }
            )?

            $(
                fn workspace(&self) -> Option<usize> {
                    let $a = self;
                    Some($workspace)
                }
            )?
        }
    };
    (@variants $name:ident) => {
        &[$crate::backend::args::operator::text(concat!(stringify!($name), "\0"))]
    };
    (@variants $name:ident $($variant:ident)+) => {
        &[$($crate::backend::args::operator::text(
            concat!(stringify!($name), ".", stringify!($variant), "\0")
        )),+]
    };
}
pub(super) use operator;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::args::*;
    use crate::types::NVTE_Norm_Type;
    use std::collections::BTreeSet;
    use std::ptr::NonNull;

    /// A text of a constant of the library.
    fn text(pointer: *const c_char) -> &'static str {
        // SAFETY: the texts are constants that end with a NUL.
        unsafe { CStr::from_ptr(pointer) }.to_str().unwrap()
    }

    /// The texts of an array of the library.
    fn texts(array: *const *const c_char, count: usize) -> Vec<&'static str> {
        // SAFETY: the arrays are constants of as many elements.
        (0..count).map(|i| text(unsafe { *array.add(i) })).collect()
    }

    #[test]
    fn names_are_those_that_plugins_and_orders_may_use() {
        let legal = |name: &str| {
            let byte = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
            !name.is_empty() && name.len() < 63 && name.bytes().all(byte)
        };
        let mut variants = BTreeSet::new();
        for (number, info) in OPERATORS.iter().enumerate() {
            let name = text(info.name);
            assert!(legal(name), "{name}");
            assert_eq!(info.op as usize, number, "{name}");
            let own = texts(info.variants, info.variant_count);
            for variant in &own {
                let short = variant.strip_prefix(name).expect(variant);
                let alone = own.len() == 1 && short.is_empty();
                assert!(alone || short.strip_prefix('.').is_some_and(legal), "{variant}");
                assert!(variants.insert(*variant), "{variant} is there twice");
            }
            let features = texts(info.features, info.feature_count);
            assert!(features.len() <= 64, "{name}");
            assert_eq!(BTreeSet::from_iter(&features).len(), features.len(), "{name}");
        }
        assert_eq!(FIRST_VARIANTS[OPERATORS.len()] as usize, variants.len());
    }

    /// Arguments that are all zeros, without pointers: the first word of each enumeration.
    fn zeros<A: Operator>() -> A {
        // SAFETY: argument structs are plain data of which every field may be zero.
        unsafe { std::mem::zeroed() }
    }

    /// What a variant is called behind the operator's name.
    fn variant<A: Operator>(args: &A) -> &'static str {
        let full = A::VARIANTS[args.variant() as usize].to_str().unwrap();
        full.strip_prefix(A::NAME).unwrap().strip_prefix('.').unwrap()
    }

    /// The names of the features of a call.
    fn features<A: Operator>(args: &A) -> Vec<&'static str> {
        let used = args.facts().features;
        let names = A::FEATURES.iter().enumerate();
        let used = names.filter(|(bit, _)| used >> bit & 1 == 1);
        used.map(|(_, name)| name.to_str().unwrap()).collect()
    }

    #[test]
    fn casts_have_the_names_of_their_functions() {
        use Form::*;
        use Function::*;
        let plain = [
            (NVTEX_GELU, "gelu"),
            (NVTEX_SILU, "silu"),
            (NVTEX_QGELU, "qgelu"),
            (NVTEX_RELU, "relu"),
            (NVTEX_SRELU, "srelu"),
        ];
        let gated = [
            (NVTEX_GELU, "geglu"),
            (NVTEX_SILU, "swiglu"),
            (NVTEX_QGELU, "qgeglu"),
            (NVTEX_RELU, "reglu"),
            (NVTEX_SRELU, "sreglu"),
            (NVTEX_SIGMOID, "glu"),
            (NVTEX_CLAMPED_SILU, "clamped_swiglu"),
            (NVTEX_SITU, "situglu"),
        ];
        let mut seen = BTreeSet::new();
        let mut cast = |form, function, sums: bool, expected: String| {
            let mut args = zeros::<QuantizeArgs>();
            args.cast.fusion.form = form;
            args.cast.fusion.function = function;
            if sums {
                args.cast.fusion.dbias = NonNull::dangling().as_ptr();
            }
            assert_eq!(variant(&args), expected);
            assert_eq!(features(&args).contains(&"DBIAS"), sums, "{expected}");
            seen.insert(args.variant());
        };
        cast(NVTEX_FORM_PLAIN, NVTEX_IDENTITY, false, "cast".into());
        cast(NVTEX_FORM_PLAIN, NVTEX_IDENTITY, true, "dbias".into());
        for (function, name) in plain {
            cast(NVTEX_FORM_ACTIVATION, function, false, name.into());
            cast(NVTEX_FORM_DERIVATIVE, function, false, format!("d{name}"));
            cast(NVTEX_FORM_DERIVATIVE, function, true, format!("dbias_d{name}"));
        }
        for (function, name) in gated {
            cast(NVTEX_FORM_GATED, function, false, name.into());
            cast(NVTEX_FORM_GATED_DERIVATIVE, function, false, format!("d{name}"));
        }
        assert_eq!(seen.len(), QuantizeArgs::VARIANTS.len());
        let scaled = |gated, derivative: bool, function| {
            let mut args = ScaledActivationArgs { gated, function, ..zeros() };
            if derivative {
                args.grad = NonNull::dangling().as_ptr();
            }
            variant(&args)
        };
        assert_eq!(scaled(false, false, NVTEX_SRELU), "srelu");
        assert_eq!(scaled(false, true, NVTEX_GELU), "dgelu");
        assert_eq!(scaled(true, false, NVTEX_SILU), "swiglu");
        assert_eq!(scaled(true, true, NVTEX_SITU), "dsituglu");
    }

    #[test]
    fn variants_follow_from_the_arguments() {
        use NVTEDType::*;
        use NVTEScalingMode::*;
        let softmax = |visible, backward: bool| {
            let mut args = SoftmaxArgs { visible, ..zeros() };
            if backward {
                args.results = NonNull::dangling().as_ptr();
            }
            variant(&args)
        };
        assert_eq!(softmax(SoftmaxMask::NVTEX_SOFTMAX_UNMASKED, false), "plain_forward");
        assert_eq!(softmax(SoftmaxMask::NVTEX_SOFTMAX_BYTES, true), "masked_backward");
        let last = SoftmaxMask::NVTEX_SOFTMAX_CAUSAL_BOTTOM_RIGHT;
        assert_eq!(softmax(last, true), "causal_bottom_backward");
        let product = |mode, a_dtype| {
            let scales = GemmScales { mode, ..GemmScales::per_tensor(std::ptr::null()) };
            variant(&GemmArgs { a_dtype, b_dtype: a_dtype, scales_a: scales, ..zeros() })
        };
        assert_eq!(product(NVTE_DELAYED_TENSOR_SCALING, kNVTEBFloat16), "high_precision");
        assert_eq!(product(NVTE_DELAYED_TENSOR_SCALING, kNVTEFloat8E5M2), "fp8");
        assert_eq!(product(NVTE_MXFP8_1D_SCALING, kNVTEFloat8E4M3), "mxfp8");
        assert_eq!(product(NVTE_BLOCK_SCALING_2D, kNVTEFloat8E4M3), "fp8_blocks");
        assert_eq!(product(NVTE_NVFP4_1D_SCALING, kNVTEFloat4E2M1), "nvfp4");
        let adam = |master, param_dtype| variant(&AdamArgs { master, param_dtype, ..zeros() });
        assert_eq!(adam(AdamMaster::NVTEX_ADAM_NO_MASTER, kNVTEBFloat16), "plain");
        assert_eq!(adam(AdamMaster::NVTEX_ADAM_REMAINDER, kNVTEBFloat16), "remainder");
        assert_eq!(adam(AdamMaster::NVTEX_ADAM_FLOAT_MASTER, kNVTEFloat8E4M3), "fp8");
        let mut rope = RopeArgs { backward: true, ..zeros() };
        assert_eq!(variant(&rope), "backward");
        rope.parts[1].heads = 2;
        assert_eq!(variant(&rope), "qkv_backward");
        let norm = NVTE_Norm_Type::RMSNorm;
        assert_eq!(variant(&NormForwardArgs { norm, ..zeros() }), "rmsnorm");
    }

    #[test]
    fn bytes_are_those_of_data() {
        use NVTEDType::*;
        let (m, n, k) = (3, 5, 7);
        let fp8 = kNVTEFloat8E4M3;
        let gemm =
            GemmArgs { m, n, k, a_dtype: fp8, b_dtype: fp8, d_dtype: kNVTEBFloat16, ..zeros() };
        assert_eq!(gemm.bytes(), Some(3 * 7 + 5 * 7 + 2 * 15));
        assert_eq!(GemmArgs { beta: 1.0, ..gemm }.bytes(), Some(3 * 7 + 5 * 7 + 4 * 15));
        let mut quantize = zeros::<QuantizeArgs>();
        (quantize.cast.rows, quantize.cast.cols) = (4, 6);
        (quantize.cast.input_dtype, quantize.cast.output_dtype) = (kNVTEFloat16, fp8);
        quantize.cast.rowwise = NonNull::dangling().as_ptr();
        assert_eq!(quantize.bytes(), Some(2 * 24 + 24));
        quantize.cast.colwise = NonNull::dangling().as_ptr();
        quantize.cast.fusion.form = Form::NVTEX_FORM_GATED;
        assert_eq!(quantize.bytes(), Some(2 * 48 + 2 * 24));
        assert_eq!(zeros::<AttentionArgs>().bytes(), None);
    }

    #[test]
    fn facts_are_those_of_operands_that_are_there() {
        use NVTEDType::*;
        let mut gemm = GemmArgs {
            a_dtype: kNVTEFloat8E4M3,
            b_dtype: kNVTEFloat8E5M2,
            d_dtype: kNVTEBFloat16,
            bias_dtype: kNVTEFloat16,
            aux_dtype: kNVTEByte,
            epilogue: GemmEpilogue::NVTEX_EPILOGUE_NONE,
            ..zeros()
        };
        let operands = 1 << 7 | 1 << 8 | 1 << 6;
        assert_eq!(gemm.facts(), Facts { dtypes: operands, modes: 1, features: 0 });
        gemm.epilogue = GemmEpilogue::NVTEX_EPILOGUE_BIAS;
        gemm.beta = 1.0;
        assert_eq!(gemm.facts().dtypes, operands | 1 << 5);
        assert_eq!(features(&gemm), ["BIAS", "BETA"]);
        let mut attention = AttentionArgs { window_left: -1, window_right: -1, ..zeros() };
        assert_eq!(attention.facts(), Facts::default());
        attention.q.data = NonNull::dangling().as_ptr();
        attention.q.dtype = kNVTEBFloat16;
        attention.k.dtype = kNVTEFloat16;
        attention.window_right = 0;
        attention.alibi = true;
        assert_eq!(attention.facts().dtypes, 1 << 6);
        assert_eq!(features(&attention), ["ALIBI", "WINDOW_RIGHT"]);
    }
}
