//! Casts of FP8 in vectors of 32 bytes, on machines that have AVX2 and F16C; None or false elsewhere. They give the
//! bits of [`Element::from_f32`] and [`Element::to_f32`] in half of the instructions.
//!
//! To encode, a power of two is added near whose magnitude floats have the spacing of the FP8 format. The sum has
//! the number of steps in its lower half and the binade in its upper half, and one multiplication of pairs of 16-bit
//! integers makes the code of both. Signs and NaN go separate ways in lanes of 8 bits.
//!
//! To decode, the bits of a code become those of a 16-bit float: E5M2 is its upper half, and E4M3 is 2^8 times the
//! float that has its bits one place lower.
#![allow(unsafe_code)]

use crate::backend::buf::Buf;
use crate::backend::cpu::AHEAD;
#[cfg(target_arch = "x86_64")]
use crate::backend::cpu::{Vectors, vectors};
use crate::numeric::Element;

/// Rows and columns of a tile, at most.
pub(crate) const TILE: usize = 128;
/// Rows or columns of a tile that share a multiplier.
pub(crate) const BLOCK: usize = 32;

/// A multiplier of each `BLOCK` elements of a row.
pub(crate) type OfRows = [[f32; TILE / BLOCK]; TILE];
/// A multiplier of each `BLOCK` elements of a column.
pub(crate) type OfColumns = [[f32; TILE]; TILE / BLOCK];

/// Where the rows of a tile lie in a buffer.
#[derive(Clone, Copy)]
pub(crate) struct Lines<T> {
    pub data: Buf<T>,
    pub start: usize,
    pub stride: usize,
    /// Whether the rows are of a large matrix, as [`is_large`](crate::backend::cpu::is_large) says.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    pub large: bool,
}

impl<T: Copy> Lines<T> {
    /// Asks for a later row of a tile of some rows and columns, or for one of the next tile.
    #[inline(always)]
    pub(crate) fn prefetch(&self, row: usize, (rows, cols): (usize, usize)) {
        let ahead = match row + AHEAD {
            later if later < rows => later * self.stride,
            later => (later - rows) % rows * self.stride + cols,
        };
        self.data.prefetch(self.start + ahead, cols);
    }

    /// Where the tile after this one begins: at its right, or at the start of the rows below.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    fn next(&self, rows: usize) -> usize {
        let col = self.start % self.stride;
        match col + TILE < self.stride {
            true => self.start + TILE,
            false => self.start - col + rows * self.stride,
        }
    }

    /// # Safety
    /// As [`Buf::slice`].
    pub(crate) unsafe fn line<'a>(&self, row: usize, width: usize) -> &'a [T] {
        // SAFETY: the caller keeps to the `# Safety` section of this function.
        unsafe { self.data.slice(self.start + row * self.stride, width) }
    }

    /// # Safety
    /// As [`Buf::slice_mut`].
    pub(crate) unsafe fn line_mut<'a>(&self, row: usize, width: usize) -> &'a mut [T] {
        // SAFETY: the caller keeps to the `# Safety` section of this function.
        unsafe { self.data.slice_mut(self.start + row * self.stride, width) }
    }
}

/// Multipliers of a tile.
#[derive(Clone, Copy)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub(crate) enum By<'a> {
    Rows(&'a OfRows),
    Columns(&'a OfColumns),
}

/// True if products with the multiplier are NaN for NaN alone.
pub(crate) fn encodes_by(multiplier: f32) -> bool {
    multiplier.is_finite() && multiplier != 0.0
}

/// True if that holds, and for 2^8 times the multiplier, too.
#[cfg(target_arch = "x86_64")]
fn decodes_by(multiplier: f32) -> bool {
    encodes_by(multiplier) && multiplier.abs() < f32::from_bits((127 + 119) << 23)
}

/// `output = cast(input * multiplier)`; the bits of the input's amax. None if this machine does not do it, or not by
/// that multiplier or to that type.
#[inline(always)]
pub(crate) fn encode_line<V: Element, O: Element>(
    input: &[V],
    by: f32,
    output: &mut [O],
) -> Option<u32> {
    #[cfg(target_arch = "x86_64")]
    if O::FP8 && !V::FP8 && encodes_by(by) && x86::is_here() {
        // SAFETY: the machine has the instructions.
        return Some(unsafe { x86::encode_line(input, by, output) });
    }
    let _ = (input, by, output);
    None
}

/// `output = cast(input * multiplier)`, the other way. False if this machine does not do it, or not by that multiplier
/// or to that type; nothing has been written then.
#[inline(always)]
pub(crate) fn decode_line<I: Element, O: Element>(input: &[I], by: f32, output: &mut [O]) -> bool {
    #[cfg(target_arch = "x86_64")]
    if I::FP8 && !O::FP8 && decodes_by(by) && x86::is_here() {
        // SAFETY: the machine has the instructions.
        unsafe { x86::decode_line(input, by, output) };
        return true;
    }
    let _ = (input, by, output);
    false
}

/// The bits of BF16 for each code. False if this machine does not look them up; nothing has been written then.
#[inline(always)]
pub(crate) fn look_up_line<I: Element>(input: &[I], output: &mut [u16]) -> bool {
    #[cfg(target_arch = "x86_64")]
    if I::FP8 && vectors() == Vectors::Avx512 {
        // SAFETY: the machine has the instructions.
        unsafe { x86::look_up_line(input, output) };
        return true;
    }
    let _ = (input, output);
    false
}

/// Finds the ranks ([`Element::rank`]) of the largest magnitudes of a tile: of each `BLOCK` elements of the rows, and
/// of those of the columns. Parts past the tile's columns keep theirs. If there is a copy, rows of the tile go there,
/// in lines of `TILE`. None if this machine does not do it; else true if it has seen that all elements are finite.
///
/// # Safety
/// Nobody writes to the input's part meanwhile.
#[inline(always)]
pub(crate) unsafe fn largest<V: Element>(
    input: &Lines<V>,
    shape: (usize, usize),
    of_rows: &mut [[V::Rank; TILE / BLOCK]; TILE],
    of_columns: &mut [[V::Rank; TILE]; TILE / BLOCK],
    copy: Option<&mut [V]>,
) -> Option<bool> {
    #[cfg(target_arch = "x86_64")]
    if !V::FP8 && x86::is_here() {
        // SAFETY: the machine has the instructions, and the caller's promise.
        return Some(unsafe { x86::largest(input, shape, of_rows, of_columns, copy) });
    }
    let _ = (input, shape, of_rows, of_columns, copy);
    None
}

/// Casts a tile of some rows and columns once or twice, by multipliers that [`encodes_by`] holds for and that have one
/// sign. `bounded`: no product is NaN or larger than the largest code by half a step. Meanwhile the next tile of the
/// matrix that `ahead` is of is asked for. False if this machine does not do it.
///
/// # Safety
/// Nobody else uses the outputs' part meanwhile, nor writes to the input's.
#[inline(always)]
pub(crate) unsafe fn encode_tile<V: Element, O: Element>(
    input: &Lines<V>,
    shape: (usize, usize),
    by_rows: Option<(&OfRows, Lines<O>)>,
    by_columns: Option<(&OfColumns, Lines<O>)>,
    (bounded, ahead): (bool, Option<&Lines<V>>),
) -> bool {
    #[cfg(target_arch = "x86_64")]
    if O::FP8 && !V::FP8 && x86::is_here() {
        // SAFETY: the machine has the instructions, and the caller's promise.
        unsafe { x86::encode_tile(input, shape, by_rows, by_columns, (bounded, ahead)) };
        return true;
    }
    let _ = (input, shape, by_rows, by_columns, bounded, ahead);
    false
}

/// Casts a tile back. False if this machine does not do it, or not by these multipliers.
///
/// # Safety
/// Nobody else uses the output's part meanwhile, nor writes to the input's.
#[inline(always)]
pub(crate) unsafe fn decode_tile<I: Element, O: Element>(
    input: &Lines<I>,
    shape: (usize, usize),
    by: By,
    output: &Lines<O>,
) -> bool {
    #[cfg(target_arch = "x86_64")]
    if I::FP8 && !O::FP8 && x86::is_here() {
        // SAFETY: the machine has the instructions, and the caller's promise.
        if unsafe { x86::decode_by_shifts(input, shape, by, output) } {
            return true;
        }
        let every = match by {
            By::Rows(by) => by[..shape.0].as_flattened().iter().all(|&by| decodes_by(by)),
            By::Columns(by) => {
                by[..shape.0.div_ceil(BLOCK)].as_flattened().iter().all(|&by| decodes_by(by))
            }
        };
        if every {
            // SAFETY: the machine has the instructions, and the caller's promise.
            unsafe { x86::decode_tile(input, shape, by, output) };
        }
        return every;
    }
    let _ = (input, shape, by, output);
    false
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::*;
    use crate::numeric::BF16;
    use crate::types::NVTEDType::*;
    use std::arch::x86_64::*;
    use std::array::from_fn;

    pub fn is_here() -> bool {
        vectors() != Vectors::Baseline
    }

    /// Bits of the mantissa of a format, and its least normal and largest values as bits of floats.
    const fn format<O: Element>() -> (i32, i32, i32) {
        match O::DTYPE {
            kNVTEFloat8E4M3 => (3, 121 << 23, 0x43E0_0000),
            _ => (2, 113 << 23, 0x4760_0000),
        }
    }

    /// `BLOCK` elements. The vectors of floats hold elements 0 to 3 and 8 to 11, and 4 to 7 and 12 to 15, of each 16:
    /// packing a pair of vectors brings them in order.
    struct Elements {
        magnitudes: [__m256; 4],
        /// The signs, as the upper bits of bytes in the order of two packed vectors.
        signs: __m256i,
        /// All bits of a byte for NaN, in the same order.
        nans: __m256i,
    }

    /// Puts 16 numbers in the order of two vectors of [`Elements`].
    fn packing_order(natural: &[f32]) -> [f32; 16] {
        from_fn(|i| natural[[0, 8, 4, 12][i / 4] + i % 4])
    }

    /// From the first `BLOCK` elements, or from all and zeros after them.
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    fn load<V: Element, const NAN: bool>(from: &[V]) -> Elements {
        if from.len() < BLOCK {
            let mut padded = [V::default(); BLOCK];
            padded[..from.len()].copy_from_slice(from);
            // SAFETY: the array has the elements.
            return unsafe { load_whole::<V, NAN>(padded.as_ptr()) };
        }
        // SAFETY: the slice has the elements.
        unsafe { load_whole::<V, NAN>(from.as_ptr()) }
    }

    /// # Safety
    /// `BLOCK` elements are at the address.
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn load_whole<V: Element, const NAN: bool>(from: *const V) -> Elements {
        let mut magnitudes = [_mm256_setzero_ps(); 4];
        let (mut words, mut nans) = ([_mm256_setzero_si256(); 2], [_mm256_setzero_si256(); 2]);
        for (i, (word, nan)) in words.iter_mut().zip(&mut nans).enumerate() {
            if V::DTYPE == kNVTEFloat32 {
                // SAFETY: the caller keeps to the `# Safety` section of this function.
                let part = |at| unsafe { _mm_loadu_ps(from.cast::<f32>().add(16 * i + at)) };
                let pair = [_mm256_set_m128(part(8), part(0)), _mm256_set_m128(part(12), part(4))];
                let [low, high] = pair.map(|x| _mm256_castps_si256(x));
                *word = _mm256_packs_epi32(low, high);
                let [low, high] = pair.map(|x| _mm256_andnot_ps(_mm256_set1_ps(-0.0), x));
                [magnitudes[2 * i], magnitudes[2 * i + 1]] = [low, high];
                if NAN {
                    let [low, high] =
                        pair.map(|x| _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(x, x)));
                    *nan = _mm256_packs_epi32(low, high);
                }
                continue;
            }
            // SAFETY: the caller keeps to the `# Safety` section of this function.
            *word = unsafe { _mm256_loadu_si256(from.cast::<__m256i>().add(i)) };
            let magnitude = _mm256_and_si256(*word, _mm256_set1_epi16(0x7FFF));
            if V::DTYPE == kNVTEBFloat16 {
                let zero = _mm256_setzero_si256();
                let low = _mm256_unpacklo_epi16(zero, magnitude);
                let high = _mm256_unpackhi_epi16(zero, magnitude);
                magnitudes[2 * i] = _mm256_castsi256_ps(low);
                magnitudes[2 * i + 1] = _mm256_castsi256_ps(high);
            } else {
                let ordered = _mm256_permute4x64_epi64::<0b11_01_10_00>(magnitude);
                magnitudes[2 * i] = _mm256_cvtph_ps(_mm256_castsi256_si128(ordered));
                magnitudes[2 * i + 1] = _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(ordered));
            }
            if NAN {
                let inf = if V::DTYPE == kNVTEBFloat16 { 0x7F80 } else { 0x7C00 };
                *nan = _mm256_cmpgt_epi16(magnitude, _mm256_set1_epi16(inf));
            }
        }
        Elements {
            magnitudes,
            signs: _mm256_packs_epi16(words[0], words[1]),
            nans: _mm256_packs_epi16(nans[0], nans[1]),
        }
    }

    /// The codes of elements times non-negative multipliers. `flip` is all bits if signs change, else 0.
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    fn encode<O: Element, const NAN: bool>(
        x: &Elements,
        by: [__m256; 4],
        flip: __m256i,
    ) -> __m256i {
        let (mant, least, most) = const { format::<O>() };
        let shift = 23 - mant;
        let [least_normal, most] =
            [least, most].map(|bits| _mm256_castsi256_ps(_mm256_set1_epi32(bits)));
        let steps = _mm256_castsi256_ps(_mm256_set1_epi32((127 + shift) << 23));
        let mut words = [_mm256_setzero_si256(); 4];
        for (i, word) in words.iter_mut().enumerate() {
            // If the first operand is NaN, the second one is the result.
            let x = _mm256_min_ps(_mm256_mul_ps(x.magnitudes[i], by[i]), most);
            let at_least = _mm256_castps_si256(_mm256_max_ps(x, least_normal));
            let binade = _mm256_and_si256(at_least, _mm256_set1_epi32(0x7F80_0000));
            let binade = _mm256_castsi256_ps(binade);
            let sum = _mm256_castps_si256(_mm256_fmadd_ps(binade, steps, x));
            // The steps go below the exponent of the upper half, whose lowest bit is that of 2^7.
            *word = _mm256_madd_epi16(sum, _mm256_set1_epi32(1 << 16 | 1 << (7 - mant)));
        }
        // What the word of 0 is.
        let zero = _mm256_set1_epi16(((least >> 16) + (shift << 7)) as i16);
        let codes = |low, high| {
            let words = _mm256_sub_epi16(_mm256_packus_epi32(low, high), zero);
            if mant == 3 { _mm256_srli_epi16::<4>(words) } else { _mm256_srli_epi16::<5>(words) }
        };
        let codes = _mm256_packus_epi16(codes(words[0], words[1]), codes(words[2], words[3]));
        let signs = _mm256_and_si256(_mm256_xor_si256(x.signs, flip), _mm256_set1_epi8(-128));
        let mut codes = _mm256_or_si256(codes, signs);
        if NAN {
            codes = _mm256_blendv_epi8(codes, _mm256_set1_epi8(0x7F), x.nans);
        }
        _mm256_permute4x64_epi64::<0b11_01_10_00>(codes)
    }

    /// True if all of a line is written past the caches, which takes whole cache lines. The caches need not read them
    /// before then.
    fn streams<T: Copy>(lines: &Lines<T>, line: &[T]) -> bool {
        lines.large
            && line.as_ptr().addr().is_multiple_of(64)
            && size_of_val(line).is_multiple_of(64)
    }

    /// To the first `BLOCK` elements, or to all; past the caches if `stream`.
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    fn store<O: Element>(codes: __m256i, to: &mut [O], stream: bool) {
        if to.len() < BLOCK {
            let mut padded = [O::default(); BLOCK];
            // SAFETY: the array has room for them.
            unsafe { _mm256_storeu_si256(padded.as_mut_ptr().cast(), codes) };
            to.copy_from_slice(&padded[..to.len()]);
            return;
        }
        // SAFETY: the slice has room for them.
        unsafe { put(to.as_mut_ptr().cast(), codes, stream) };
    }

    /// # Safety
    /// A vector may be written to the address, which is aligned if `stream`.
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn put(to: *mut __m256i, x: __m256i, stream: bool) {
        // SAFETY: the caller keeps to the `# Safety` section of this function.
        unsafe { if stream { _mm256_stream_si256(to, x) } else { _mm256_storeu_si256(to, x) } }
    }

    mod wide;

    #[target_feature(enable = "avx2,fma,f16c")]
    pub fn encode_line<V: Element, O: Element>(input: &[V], by: f32, output: &mut [O]) -> u32 {
        let share = wide::share::<V>(input.len().min(output.len()), by);
        let (first, input) = input.split_at(share);
        let (first_codes, output) = output.split_at_mut(share);
        let of_first = match share {
            0 => 0,
            // SAFETY: both have that many elements, and the machine has the instructions if there are any.
            _ => unsafe { wide::encode_line(first.as_ptr(), share, by, first_codes.as_mut_ptr()) },
        };
        // NaN are rare: a line that has some is done again.
        let largest = encode_line_as::<V, O, false>(input, by, output);
        let largest = match largest > 0x7F80_0000 {
            true => encode_line_as::<V, O, true>(input, by, output),
            false => largest,
        };
        largest.max(of_first)
    }

    /// The largest bits of a magnitude; those of NaN count, unless `NAN` says that there are some.
    #[target_feature(enable = "avx2,fma,f16c")]
    fn encode_line_as<V: Element, O: Element, const NAN: bool>(
        input: &[V],
        by: f32,
        output: &mut [O],
    ) -> u32 {
        let flip = flip(by);
        let by = [_mm256_set1_ps(by.abs()); 4];
        let mut largest = [_mm256_setzero_si256(); 2];
        for (input, output) in input.chunks(BLOCK).zip(output.chunks_mut(BLOCK)) {
            let x = load::<V, NAN>(input);
            for (i, &magnitude) in x.magnitudes.iter().enumerate() {
                let most = &mut largest[i % 2];
                *most = if NAN {
                    // The second operand, if the first one is NaN.
                    _mm256_castps_si256(_mm256_max_ps(magnitude, _mm256_castsi256_ps(*most)))
                } else {
                    _mm256_max_epu32(_mm256_castps_si256(magnitude), *most)
                };
            }
            store(encode::<O, NAN>(&x, by, flip), output, false);
        }
        let mut lanes = [0u32; 8];
        // SAFETY: the array has room.
        unsafe {
            let largest = _mm256_max_epu32(largest[0], largest[1]);
            _mm256_storeu_si256(lanes.as_mut_ptr().cast(), largest);
        }
        lanes.into_iter().fold(0, u32::max)
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    fn flip(by: f32) -> __m256i {
        _mm256_set1_epi32(if by < 0.0 { -1 } else { 0 })
    }

    /// The multipliers of the columns of a tile, put in another order `N` by `N`.
    fn ordered<const N: usize>(
        by: &[[f32; TILE]],
        order: impl Fn(&[f32]) -> [f32; N],
    ) -> OfColumns {
        let mut ordered = [[0.0; TILE]; TILE / BLOCK];
        for (to, from) in ordered.iter_mut().zip(by) {
            for (to, from) in to.chunks_exact_mut(N).zip(from.chunks_exact(N)) {
                to.copy_from_slice(&order(from));
            }
        }
        ordered
    }

    /// The multipliers of `BLOCK` columns.
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    fn of_columns(by: &[f32; TILE], at: usize) -> [__m256; 4] {
        let by = &by[at..at + BLOCK];
        // SAFETY: the slice has the numbers.
        from_fn(|i| unsafe { _mm256_loadu_ps(by.as_ptr().add(8 * i)) })
    }

    /// # Safety
    /// As the function of the same name outside.
    #[target_feature(enable = "avx2,fma,f16c")]
    pub unsafe fn encode_tile<V: Element, O: Element>(
        input: &Lines<V>,
        shape: (usize, usize),
        by_rows: Option<(&OfRows, Lines<O>)>,
        by_columns: Option<(&OfColumns, Lines<O>)>,
        (bounded, ahead): (bool, Option<&Lines<V>>),
    ) {
        // Each pass asks for its share of the next tile.
        let passes = usize::from(by_rows.is_some()) + usize::from(by_columns.is_some());
        let share = TILE / passes.max(1);
        let ahead = ahead.map(|lines| (lines.data, lines.next(shape.0), lines.stride));
        let next = |pass: usize| {
            move |row: usize| {
                if let Some((data, start, stride)) = ahead {
                    data.prefetch(start + row * stride + pass * share, share);
                }
            }
        };
        let positive = by_rows.is_none_or(|(by, _)| by[0][0] > 0.0)
            && by_columns.is_none_or(|(by, _)| by[0][0] > 0.0);
        let in_wide = positive && shape.1 == TILE && wide::share::<V>(TILE, 1.0) == TILE;
        // One after the other: lines that two outputs have by turns are written more slowly.
        // SAFETY: the caller keeps to the `# Safety` section of this function; the machine has the instructions.
        unsafe {
            if let Some((by, to)) = by_rows {
                match (in_wide, bounded) {
                    (true, true) => {
                        wide::encode_by_rows::<V, O, true>(input, shape.0, by, &to, next(0))
                    }
                    (true, false) => {
                        wide::encode_by_rows::<V, O, false>(input, shape.0, by, &to, next(0))
                    }
                    (false, _) => encode_rows(input, shape, by, to),
                }
            }
            if let Some((by, to)) = by_columns {
                let next = next(passes - 1);
                match (in_wide, bounded) {
                    (true, true) => {
                        wide::encode_by_columns::<V, O, true>(input, shape.0, by, &to, next)
                    }
                    (true, false) => {
                        wide::encode_by_columns::<V, O, false>(input, shape.0, by, &to, next)
                    }
                    (false, _) => encode_columns(input, shape, by, to),
                }
            }
        }
    }

    /// # Safety
    /// As `encode_tile`.
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn encode_rows<V: Element, O: Element>(
        input: &Lines<V>,
        (rows, cols): (usize, usize),
        by: &OfRows,
        to: Lines<O>,
    ) {
        let (flip, share) = (flip(by[0][0]), wide::share::<V>(cols, by[0][0]));
        for (row, by) in by[..rows].iter().enumerate() {
            // SAFETY: the caller keeps to the `# Safety` section of this function.
            let (from, line) = unsafe { (input.line(row, cols), to.line_mut(row, cols)) };
            let stream = streams(&to, line);
            if share > 0 {
                // SAFETY: both have that many elements, and the machine has the instructions.
                unsafe { wide::encode_row(from.as_ptr(), share, by, line.as_mut_ptr(), stream) };
            }
            let (from, line) = (&from[share..], &mut line[share..]);
            let lines = from.chunks(BLOCK).zip(line.chunks_mut(BLOCK)).zip(&by[share / BLOCK..]);
            for ((from, to), by) in lines {
                let x = load::<V, true>(from);
                store(encode::<O, true>(&x, [_mm256_set1_ps(by.abs()); 4], flip), to, stream);
            }
        }
    }

    /// # Safety
    /// As `encode_tile`.
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn encode_columns<V: Element, O: Element>(
        input: &Lines<V>,
        (rows, cols): (usize, usize),
        by: &OfColumns,
        to: Lines<O>,
    ) {
        let (flip, share) = (flip(by[0][0]), wide::share::<V>(cols, by[0][0]));
        let for_wide =
            ordered(&by[..if share > 0 { rows.div_ceil(BLOCK) } else { 0 }], wide::order::<V>);
        let rest = if share < cols { rows.div_ceil(BLOCK) } else { 0 };
        let by = ordered(&by[..rest], |by| packing_order(by).map(f32::abs));
        for row in 0..rows {
            // SAFETY: the caller keeps to the `# Safety` section of this function.
            let (from, line) = unsafe { (input.line(row, cols), to.line_mut(row, cols)) };
            let stream = streams(&to, line);
            if share > 0 {
                let (by, to) = (&for_wide[row / BLOCK], line.as_mut_ptr());
                // SAFETY: both have that many elements, and the machine has the instructions.
                unsafe { wide::encode_row_by_columns(from.as_ptr(), share, by, to, stream) };
            }
            let (from, line) = (&from[share..], &mut line[share..]);
            let lines = from.chunks(BLOCK).zip(line.chunks_mut(BLOCK));
            for (i, (from, to)) in lines.enumerate() {
                let x = load::<V, true>(from);
                let by = of_columns(&by[row / BLOCK], share + i * BLOCK);
                store(encode::<O, true>(&x, by, flip), to, stream);
            }
        }
    }

    /// # Safety
    /// As the function of the same name outside.
    #[target_feature(enable = "avx2,fma,f16c")]
    pub unsafe fn largest<V: Element>(
        input: &Lines<V>,
        (rows, cols): (usize, usize),
        of_rows: &mut [[V::Rank; TILE / BLOCK]; TILE],
        of_columns: &mut [[V::Rank; TILE]; TILE / BLOCK],
        mut copy: Option<&mut [V]>,
    ) -> bool {
        if size_of::<V>() == 2
            && cols == TILE
            && rows.is_multiple_of(8)
            && vectors() == Vectors::Avx512
        {
            // SAFETY: the caller keeps to the `# Safety` section of this function.
            let found =
                unsafe { wide::largest(input, rows, of_rows, of_columns, copy.as_deref_mut()) };
            if let Some(finite) = found {
                return finite;
            }
            *of_rows = [[V::OF_ZERO; TILE / BLOCK]; TILE];
            *of_columns = [[V::OF_ZERO; TILE]; TILE / BLOCK];
        }
        for (row, of_row) in of_rows[..rows].iter_mut().enumerate() {
            // SAFETY: the caller keeps to the `# Safety` section of this function.
            let line = unsafe { input.line(row, cols) };
            input.prefetch(row, (rows, cols));
            let columns = &mut of_columns[row / BLOCK];
            if size_of::<V>() == 2 && cols == TILE {
                let copied = match &mut copy {
                    Some(copy) => copy[row * TILE..][..TILE].as_mut_ptr(),
                    None => std::ptr::null_mut(),
                };
                let (from, columns) = (line.as_ptr(), columns.as_mut_ptr());
                // SAFETY: there are `TILE` elements each, and a rank of a row for each `BLOCK` of them.
                unsafe {
                    let of_row = of_row.as_mut_ptr().cast();
                    largest_row::<V>(from.cast(), columns.cast(), copied.cast(), of_row);
                }
                continue;
            }
            let parts = line.chunks(BLOCK).zip(columns.chunks_exact_mut(BLOCK)).zip(of_row);
            for (i, ((part, columns), of_part)) in parts.enumerate() {
                let mut padded = [V::default(); BLOCK];
                let whole = match part.len() {
                    BLOCK => part,
                    len => {
                        padded[..len].copy_from_slice(part);
                        &padded
                    }
                };
                let copied = match &mut copy {
                    Some(copy) => copy[row * TILE + i * BLOCK..][..BLOCK].as_mut_ptr(),
                    None => std::ptr::null_mut(),
                };
                // SAFETY: the slices have `BLOCK` elements; ranks have the size of elements.
                unsafe {
                    let rank = match size_of::<V>() {
                        2 => largest_words::<V>(
                            whole.as_ptr().cast(),
                            columns.as_mut_ptr().cast(),
                            copied.cast(),
                        ),
                        _ => largest_floats::<V>(
                            whole.as_ptr().cast(),
                            columns.as_mut_ptr().cast(),
                            copied.cast(),
                        ),
                    };
                    *of_part = V::OF_ZERO.max(std::mem::transmute_copy(&rank));
                }
            }
        }
        false
    }

    /// The largest ranks of `BLOCK` 16-bit elements each of a row of `TILE`, to the four numbers at the last address;
    /// raises those of the columns.
    ///
    /// # Safety
    /// So many elements are at the addresses, of which that of the copy may be null.
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn largest_row<V: Element>(
        from: *const __m256i,
        columns: *mut __m256i,
        copy: *mut __m256i,
        of_row: *mut __m128i,
    ) {
        // SAFETY: the caller keeps to the `# Safety` section of this function.
        unsafe {
            let zero = _mm256_set1_epi16(std::mem::transmute_copy(&V::OF_ZERO));
            let most: [__m256i; 4] = from_fn(|block| {
                let [low, high] = from_fn(|half| {
                    let i = 2 * block + half;
                    let x = _mm256_loadu_si256(from.add(i));
                    if !copy.is_null() {
                        _mm256_storeu_si256(copy.add(i), x);
                    }
                    let magnitude = _mm256_and_si256(x, _mm256_set1_epi16(0x7FFF));
                    let rank = _mm256_add_epi16(magnitude, zero);
                    let most = _mm256_max_epi16(rank, _mm256_loadu_si256(columns.add(i)));
                    _mm256_storeu_si256(columns.add(i), most);
                    rank
                });
                _mm256_max_epi16(low, high)
            });
            // Each step halves the candidates of the four blocks, whose numbers lie side by side at last.
            let words =
                |a, b| _mm256_max_epi16(_mm256_unpacklo_epi16(a, b), _mm256_unpackhi_epi16(a, b));
            let (one, other) = (words(most[0], most[1]), words(most[2], most[3]));
            let four = _mm256_max_epi16(
                _mm256_unpacklo_epi32(one, other),
                _mm256_unpackhi_epi32(one, other),
            );
            let two =
                _mm_max_epi16(_mm256_castsi256_si128(four), _mm256_extracti128_si256::<1>(four));
            let last = _mm_max_epi16(two, _mm_unpackhi_epi64(two, two));
            _mm_storel_epi64(of_row, _mm_max_epi16(last, _mm256_castsi256_si128(zero)));
        }
    }

    /// The largest rank of `BLOCK` 16-bit elements; raises those of the columns.
    ///
    /// # Safety
    /// So many elements are at the addresses, the last of which may be null.
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn largest_words<V: Element>(
        from: *const __m256i,
        columns: *mut __m256i,
        copy: *mut __m256i,
    ) -> i32 {
        // SAFETY: the caller keeps to the `# Safety` section of this function.
        unsafe {
            let zero: i16 = std::mem::transmute_copy(&V::OF_ZERO);
            let ranks: [__m256i; 2] = from_fn(|i| {
                let x = _mm256_loadu_si256(from.add(i));
                if !copy.is_null() {
                    _mm256_storeu_si256(copy.add(i), x);
                }
                let magnitude = _mm256_and_si256(x, _mm256_set1_epi16(0x7FFF));
                let rank = _mm256_add_epi16(magnitude, _mm256_set1_epi16(zero));
                let most = _mm256_max_epi16(rank, _mm256_loadu_si256(columns.add(i)));
                _mm256_storeu_si256(columns.add(i), most);
                rank
            });
            let most = _mm256_max_epi16(ranks[0], ranks[1]);
            let low = _mm256_castsi256_si128(most);
            let most = _mm_max_epi16(low, _mm256_extracti128_si256::<1>(most));
            // The least unsigned number stands for the largest signed one.
            let order = _mm_xor_si128(most, _mm_set1_epi16(0x7FFF));
            _mm_cvtsi128_si32(_mm_minpos_epu16(order)) ^ 0x7FFF
        }
    }

    /// As [`largest_words`], of 32-bit elements.
    ///
    /// # Safety
    /// So many elements are at the addresses, the last of which may be null.
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn largest_floats<V: Element>(
        from: *const __m256i,
        columns: *mut __m256i,
        copy: *mut __m256i,
    ) -> i32 {
        // SAFETY: the caller keeps to the `# Safety` section of this function.
        unsafe {
            let zero: i32 = std::mem::transmute_copy(&V::OF_ZERO);
            let ranks: [__m256i; 4] = from_fn(|i| {
                let x = _mm256_loadu_si256(from.add(i));
                if !copy.is_null() {
                    _mm256_storeu_si256(copy.add(i), x);
                }
                let magnitude = _mm256_and_si256(x, _mm256_set1_epi32(0x7FFF_FFFF));
                let rank = _mm256_add_epi32(magnitude, _mm256_set1_epi32(zero));
                let most = _mm256_max_epi32(rank, _mm256_loadu_si256(columns.add(i)));
                _mm256_storeu_si256(columns.add(i), most);
                rank
            });
            let pairs =
                [_mm256_max_epi32(ranks[0], ranks[1]), _mm256_max_epi32(ranks[2], ranks[3])];
            let most = _mm256_max_epi32(pairs[0], pairs[1]);
            let low = _mm256_castsi256_si128(most);
            let four = _mm_max_epi32(low, _mm256_extracti128_si256::<1>(most));
            let two = _mm_max_epi32(four, _mm_shuffle_epi32::<0b01_00_11_10>(four));
            let one = _mm_max_epi32(two, _mm_shuffle_epi32::<0b10_11_00_01>(two));
            _mm_cvtsi128_si32(one)
        }
    }

    /// The order in which 16 elements are decoded: for BF16 the even ones and the odd ones, which are then the halves
    /// of 32-bit integers, for the others their own.
    const fn decoding_order<O: Element>() -> [u8; 16] {
        let (mut order, mut i) = ([0; 16], 0);
        while i < 16 {
            order[i] = match O::DTYPE {
                kNVTEBFloat16 => (i % 8 * 2 + i / 8) as u8,
                _ => i as u8,
            };
            i += 1;
        }
        order
    }

    /// For [`_mm256_shuffle_epi8`]: each byte, in that order, in the upper half of 16 bits.
    const fn decoding_bytes<O: Element>() -> [u8; 32] {
        let (mut bytes, mut i) = ([0x80; 32], 0);
        while i < 16 {
            bytes[2 * i + 1] = decoding_order::<O>()[i];
            i += 1;
        }
        bytes
    }

    /// Decodes up to `BLOCK` elements; a multiplier of each is `natural(i)`, and `by` has 2^8 times those for E4M3, in
    /// the order of decoding.
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    fn decode<I: Element, O: Element>(
        from: &[I],
        by: [__m256; 4],
        natural: impl Fn(usize) -> f32,
        to: &mut [O],
        stream: bool,
    ) {
        let one_by_one = |from: &[I], to: &mut [O]| {
            for (i, (x, y)) in from.iter().zip(to).enumerate() {
                *y = O::from_f32(x.to_f32() * natural(i));
            }
        };
        if from.len() < BLOCK {
            return one_by_one(from, to);
        }
        let to = &mut to[..BLOCK];
        // SAFETY: both slices have `BLOCK` elements, and the array has as many bytes as are loaded of it.
        unsafe {
            let codes = _mm256_loadu_si256(from.as_ptr().cast());
            let infinite = if I::DTYPE == kNVTEFloat8E4M3 { 0x7E } else { 0x7C };
            let magnitudes = _mm256_and_si256(codes, _mm256_set1_epi8(0x7F));
            let nans = _mm256_cmpgt_epi8(magnitudes, _mm256_set1_epi8(infinite));
            if _mm256_movemask_epi8(nans) != 0 {
                return one_by_one(from, to);
            }
            let bytes = const { &decoding_bytes::<O>() };
            let bytes = _mm256_loadu_si256(bytes.as_ptr().cast());
            for i in 0..2 {
                let codes = _mm_loadu_si128(from.as_ptr().add(16 * i).cast());
                let mut halves = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(codes), bytes);
                if I::DTYPE == kNVTEFloat8E4M3 {
                    let lower = _mm256_srai_epi16::<1>(halves);
                    halves = _mm256_and_si256(lower, _mm256_set1_epi16(0xBF80u16 as i16));
                }
                let low = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
                let high = _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(halves));
                let low = _mm256_mul_ps(low, by[2 * i]);
                let high = _mm256_mul_ps(high, by[2 * i + 1]);
                let to = to.as_mut_ptr().add(16 * i);
                match O::DTYPE {
                    kNVTEFloat32 => {
                        put(to.cast(), _mm256_castps_si256(low), stream);
                        put(to.cast::<f32>().add(8).cast(), _mm256_castps_si256(high), stream);
                    }
                    kNVTEFloat16 => {
                        const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT;
                        let (low, high) =
                            (_mm256_cvtps_ph::<NEAREST>(low), _mm256_cvtps_ph::<NEAREST>(high));
                        put(to.cast(), _mm256_set_m128i(high, low), stream);
                    }
                    _ => {
                        let rounded = |x| {
                            let bits = _mm256_castps_si256(x);
                            let odd = _mm256_srli_epi32::<16>(bits);
                            let odd = _mm256_and_si256(odd, _mm256_set1_epi32(1));
                            let half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF));
                            _mm256_add_epi32(bits, half)
                        };
                        let even = _mm256_srli_epi32::<16>(rounded(low));
                        let all = _mm256_blend_epi16::<0xAA>(even, rounded(high));
                        put(to.cast(), all, stream);
                    }
                }
            }
        }
    }

    /// What a 16-bit float is short of the value of a code.
    const fn factor<I: Element>() -> f32 {
        if matches!(I::DTYPE, kNVTEFloat8E4M3) { 256.0 } else { 1.0 }
    }

    /// Looks up the bits of BF16 for 64 codes at a time. Codes of NaN are decoded one by one.
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    pub fn look_up_line<I: Element>(input: &[I], output: &mut [u16]) {
        let tables = const { &wide::halves::<I>() };
        // SAFETY: the arrays have 128 bytes.
        let tables = tables.each_ref().map(|table| unsafe {
            let at = table.as_ptr();
            [_mm512_loadu_si512(at.cast()), _mm512_loadu_si512(at.add(64).cast())]
        });
        let infinite = _mm512_set1_epi8(if I::DTYPE == kNVTEFloat8E4M3 { 0x7E } else { 0x7C });
        // So that the lower halves of its 128-bit lanes are the first elements.
        let order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
        let look_up = |from: &[I; 64], to: &mut [u16; 64]| {
            // SAFETY: the array has 64 bytes.
            let codes = unsafe { _mm512_loadu_si512(from.as_ptr().cast()) };
            let magnitudes = _mm512_and_si512(codes, _mm512_set1_epi8(0x7F));
            if _mm512_cmpgt_epi8_mask(magnitudes, infinite) != 0 {
                let one_by_one = from.iter().zip(to);
                return one_by_one.for_each(|(x, y)| *y = BF16::from_f32(x.to_f32()).0);
            }
            let codes = _mm512_permutexvar_epi64(order, codes);
            let [high, low] = tables.map(|[near, far]| _mm512_permutex2var_epi8(near, codes, far));
            let signs = _mm512_andnot_si512(_mm512_set1_epi8(0x7F), codes);
            let high = _mm512_or_si512(high, signs);
            // SAFETY: there is room for 64 halves.
            unsafe {
                let to = to.as_mut_ptr();
                _mm512_storeu_si512(to.cast(), _mm512_unpacklo_epi8(low, high));
                _mm512_storeu_si512(to.add(32).cast(), _mm512_unpackhi_epi8(low, high));
            }
        };
        let (from, from_rest) = input.as_chunks();
        let (to, to_rest) = output.as_chunks_mut();
        from.iter().zip(to).for_each(|(from, to)| look_up(from, to));
        if !from_rest.is_empty() {
            let (mut from, mut to) = ([I::default(); 64], [0; 64]);
            from[..from_rest.len()].copy_from_slice(from_rest);
            look_up(&from, &mut to);
            to_rest.copy_from_slice(&to[..from_rest.len()]);
        }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    pub fn decode_line<I: Element, O: Element>(input: &[I], by: f32, output: &mut [O]) {
        let multipliers = [_mm256_set1_ps(by * factor::<I>()); 4];
        for (from, to) in input.chunks(BLOCK).zip(output.chunks_mut(BLOCK)) {
            decode(from, multipliers, |_| by, to, false);
        }
    }

    /// Casts back in vectors of 64 bytes. False if this machine does not do it, or not by these multipliers.
    ///
    /// # Safety
    /// As [`decode_tile`](super::decode_tile).
    pub unsafe fn decode_by_shifts<I: Element, O: Element>(
        input: &Lines<I>,
        (rows, cols): (usize, usize),
        by: By,
        output: &Lines<O>,
    ) -> bool {
        if O::DTYPE != kNVTEBFloat16 || cols != TILE || vectors() != Vectors::Avx512 {
            return false;
        }
        let multipliers = match by {
            By::Rows(by) => by[..rows].as_flattened(),
            By::Columns(by) => by[..rows.div_ceil(BLOCK)].as_flattened(),
        };
        // SAFETY: the machine has the instructions, and the caller's promise.
        unsafe {
            let shifts = wide::decodes_by_shifts(multipliers);
            if shifts {
                wide::decode_by_shifts(input, rows, by, output);
            }
            shifts
        }
    }

    /// # Safety
    /// As the function of the same name outside.
    #[target_feature(enable = "avx2,fma,f16c")]
    pub unsafe fn decode_tile<I: Element, O: Element>(
        input: &Lines<I>,
        (rows, cols): (usize, usize),
        by: By,
        output: &Lines<O>,
    ) {
        // SAFETY: the caller keeps to the `# Safety` section of this function.
        let line = |row| unsafe {
            let (from, to) = (input.line(row, cols), output.line_mut(row, cols));
            input.prefetch(row, (rows, cols));
            let stream = streams(output, to);
            (stream, from.chunks(BLOCK).zip(to.chunks_mut(BLOCK)))
        };
        match by {
            By::Rows(by) => {
                for (row, by) in by[..rows].iter().enumerate() {
                    let (stream, parts) = line(row);
                    for ((from, to), &by) in parts.zip(by) {
                        let in_order = [_mm256_set1_ps(by * factor::<I>()); 4];
                        decode(from, in_order, |_| by, to, stream);
                    }
                }
            }
            By::Columns(by) => {
                let order =
                    |by: &[f32]| decoding_order::<O>().map(|i| by[usize::from(i)] * factor::<I>());
                let in_order = ordered(by, order);
                for row in 0..rows {
                    let (by, in_order) = (&by[row / BLOCK], &in_order[row / BLOCK]);
                    let (stream, parts) = line(row);
                    for (i, (from, to)) in parts.enumerate() {
                        let at = i * BLOCK;
                        decode(from, of_columns(in_order, at), |i| by[at + i], to, stream);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numeric::*;

    /// Room for a tile at the start of a cache line.
    #[repr(align(64))]
    struct Aligned<T>([[T; TILE]; TILE]);

    fn lines<T: Copy>(tile: &mut Aligned<T>, large: bool) -> Lines<T> {
        let numel = TILE * TILE;
        // SAFETY: the tile lies there for as long as the tests use it.
        let data = unsafe { Buf::new(tile.0.as_mut_ptr().cast(), numel) };
        Lines { data, start: 0, stride: TILE, large }
    }

    /// Multipliers of both signs, some of which have products that are subnormal or infinite.
    fn multipliers(negative: bool) -> (Box<OfRows>, Box<OfColumns>) {
        let by = |i: usize| {
            let by = [1.0f32, 0.37, 448.0, 1e-3, 1e30, 1e-30, 3e-39, 1e20][i % 8];
            if negative { -by } else { by }
        };
        let rows = std::array::from_fn(|r| std::array::from_fn(|c| by(r * 5 + c)));
        let columns = std::array::from_fn(|r| std::array::from_fn(|c| by(r * 3 + c)));
        (Box::new(rows), Box::new(columns))
    }

    fn check<V: Element, O: Element>(shape: (usize, usize), large: bool, make: impl Fn(u32) -> V) {
        let same = |a: O, b: O| a.to_f32().to_bits() == b.to_f32().to_bits();
        for (part, negative) in (0..4u32).flat_map(|part| [(part, false), (part, true)]) {
            let element = |r: usize, c: usize| make(part * 16384 + (r * TILE + c) as u32);
            let tile = std::array::from_fn(|r| std::array::from_fn(|c| element(r, c)));
            let mut input = Box::new(Aligned(tile));
            let empty = || Box::new(Aligned([[O::default(); TILE]; TILE]));
            let (mut one, mut other) = (empty(), empty());
            let (rows, columns) = multipliers(negative);
            // SAFETY: the tiles are of this test alone.
            let done = unsafe {
                let to = (lines(&mut one, large), lines(&mut other, large));
                let from = lines(&mut input, false);
                encode_tile(
                    &from,
                    shape,
                    Some((&rows, to.0)),
                    Some((&columns, to.1)),
                    (false, None),
                )
            };
            if !done {
                return;
            }
            crate::backend::cpu::finish_lines();
            for (r, c) in (0..TILE).flat_map(|r| (0..TILE).map(move |c| (r, c))) {
                let inside = r < shape.0 && c < shape.1;
                for (got, by) in [(&one, rows[r][c / BLOCK]), (&other, columns[r / BLOCK][c])] {
                    let want = match inside {
                        true => O::from_f32(element(r, c).to_f32() * by),
                        false => O::default(),
                    };
                    assert!(same(got.0[r][c], want), "{:e} * {by:e}", element(r, c).to_f32());
                }
            }
        }
    }

    /// Elements of all exponents by multipliers that bring the largest of each block to the format's.
    fn check_bounded<V: Element, O: Element>(shape: (usize, usize), pow2: bool) {
        let element = |r: usize, c: usize| {
            let bits = (r * TILE + c).wrapping_mul(0x9E37_79B9) >> 7 & 0xFFFF;
            // Zeros, and magnitudes from subnormal numbers to 2^127.
            let wide = if bits.is_multiple_of(31) { bits & 0x8000 } else { bits };
            let exponent =
                if r.is_multiple_of(3) { wide & 0x7F80 } else { 0x3B00 + (wide & 0x380) };
            f32::from_bits(
                ((wide & 0x807F | exponent.min(0x7F00)) as u32 * u32::from(wide & 0x7FFF != 0))
                    << 16,
            )
        };
        let tile = std::array::from_fn(|r| std::array::from_fn(|c| V::from_f32(element(r, c))));
        let mut input = Box::new(Aligned(tile));
        let by = |amax: f32| {
            let by = if amax > 0.0 { O::DTYPE.fp8_max() / amax } else { 1.0 };
            let by = by.min(f32::MAX);
            if pow2 {
                f32::from_bits(by.to_bits() & 0xFF80_0000).max(f32::MIN_POSITIVE)
            } else {
                by
            }
        };
        let amax = |rows: [usize; 2], cols: [usize; 2]| {
            let each = (rows[0]..rows[1]).flat_map(|r| (cols[0]..cols[1]).map(move |c| (r, c)));
            each.map(|(r, c)| element(r, c).abs()).fold(0.0, f32::max)
        };
        let rows: OfRows = std::array::from_fn(|r| {
            std::array::from_fn(|i| by(amax([r, r + 1], [i * BLOCK, (i + 1) * BLOCK])))
        });
        let columns: OfColumns = std::array::from_fn(|i| {
            std::array::from_fn(|c| by(amax([i * BLOCK, (i + 1) * BLOCK], [c, c + 1])))
        });
        let empty = || Box::new(Aligned([[O::default(); TILE]; TILE]));
        let (mut one, mut other) = (empty(), empty());
        // SAFETY: the tiles are of this test alone.
        let done = unsafe {
            let (from, to) =
                (lines(&mut input, false), (lines(&mut one, true), lines(&mut other, false)));
            let plan = (true, Some(&from));
            encode_tile(&from, shape, Some((&rows, to.0)), Some((&columns, to.1)), plan)
        };
        if !done {
            return;
        }
        crate::backend::cpu::finish_lines();
        for (r, c) in (0..shape.0).flat_map(|r| (0..shape.1).map(move |c| (r, c))) {
            for (got, by) in [(&one, rows[r][c / BLOCK]), (&other, columns[r / BLOCK][c])] {
                let want = O::from_f32(element(r, c) * by).to_f32();
                let got = got.0[r][c].to_f32();
                assert_eq!(got.to_bits(), want.to_bits(), "{:e} * {by:e}", element(r, c));
            }
        }
    }

    #[test]
    fn bounded_tiles_are_encoded_as_the_scalar_code_does() {
        for (shape, pow2) in
            [((128, 128), false), ((128, 128), true), ((40, 128), true), ((40, 96), true)]
        {
            check_bounded::<BF16, E4M3>(shape, pow2);
            check_bounded::<BF16, E5M2>(shape, pow2);
            check_bounded::<F32, E4M3>(shape, pow2);
            check_bounded::<F32, E5M2>(shape, pow2);
        }
    }

    #[test]
    fn tiles_are_encoded_as_the_scalar_code_does() {
        for (shape, large) in [((128, 128), true), ((128, 128), false), ((37, 101), true)] {
            check::<BF16, E4M3>(shape, large, |i| BF16(i as u16));
            check::<BF16, E5M2>(shape, large, |i| BF16(i as u16));
            check::<F16, E4M3>(shape, large, |i| F16(i as u16));
            check::<F16, E5M2>(shape, large, |i| F16(i as u16));
            check::<F32, E4M3>(shape, large, |i| F32(f32::from_bits(i.wrapping_mul(0x1_0001))));
            check::<F32, E5M2>(shape, large, |i| F32(f32::from_bits(i.wrapping_mul(0x1_0001))));
        }
    }

    fn check_back<I: Element, O: Element>(large: bool, make: impl Fn(u8) -> I) {
        let element = |r: usize, c: usize| make((r * 7 + c) as u8);
        let tile = std::array::from_fn(|r| std::array::from_fn(|c| element(r, c)));
        let mut input = Box::new(Aligned(tile));
        let by = |i: usize| [1.0f32, 0.37, -448.0, 1e-3, 1e30, 1e-30, 3e-39, 1e-42][i % 8];
        let rows: OfRows = std::array::from_fn(|r| std::array::from_fn(|c| by(r * 5 + c)));
        let columns: OfColumns = std::array::from_fn(|r| std::array::from_fn(|c| by(r * 3 + c)));
        let power = |i: usize| 2f32.powi(i as i32 % 29 * 7 - 100);
        let row_powers = std::array::from_fn(|r| std::array::from_fn(|c| power(r * 5 + c)));
        let column_powers = std::array::from_fn(|r| std::array::from_fn(|c| power(r * 3 + c)));
        for multipliers in [
            By::Rows(&rows),
            By::Columns(&columns),
            By::Rows(&row_powers),
            By::Columns(&column_powers),
        ] {
            let mut output = Box::new(Aligned([[O::default(); TILE]; TILE]));
            // SAFETY: the tiles are of this test alone.
            let done = unsafe {
                let (from, to) = (lines(&mut input, false), lines(&mut output, large));
                decode_tile(&from, (TILE, TILE), multipliers, &to)
            };
            if !done {
                return;
            }
            crate::backend::cpu::finish_lines();
            for (r, c) in (0..TILE).flat_map(|r| (0..TILE).map(move |c| (r, c))) {
                let by = match multipliers {
                    By::Rows(by) => by[r][c / BLOCK],
                    By::Columns(by) => by[r / BLOCK][c],
                };
                let want = O::from_f32(element(r, c).to_f32() * by).to_f32();
                let got = output.0[r][c].to_f32();
                let same = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
                assert!(same, "{:e} * {by:e}: {got:e}", element(r, c).to_f32());
            }
        }
    }

    #[test]
    fn codes_are_looked_up_as_the_scalar_code_decodes_them() {
        fn check<I: Element>(make: impl Fn(u8) -> I) {
            let all: Vec<I> = (0..1024).map(|i| make((i % 256) as u8)).collect();
            for (first, len) in (0..256).flat_map(|first| [(first, 5), (first, 64), (first, 200)]) {
                let (from, mut to) = (&all[first..][..len], vec![0; len]);
                if look_up_line(from, &mut to) {
                    let want = from.iter().map(|x| BF16::from_f32(x.to_f32()).0);
                    assert!(to.into_iter().eq(want), "{:?} from {first}", I::DTYPE);
                }
            }
        }
        check(E4M3);
        check(E5M2);
    }

    #[test]
    fn tiles_are_decoded_as_the_scalar_code_does() {
        for large in [true, false] {
            check_back::<E4M3, F32>(large, E4M3);
            check_back::<E4M3, F16>(large, E4M3);
            check_back::<E4M3, BF16>(large, E4M3);
            check_back::<E5M2, F32>(large, E5M2);
            check_back::<E5M2, F16>(large, E5M2);
            check_back::<E5M2, BF16>(large, E5M2);
        }
    }
}
