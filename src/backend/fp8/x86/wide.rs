//! Casts in vectors of 64 bytes, on machines that have AVX-512: the same steps on twice the elements. They take the
//! first elements of a line, as many as fill vectors of codes, by multipliers that are not negative.
//!
//! Products of BF16 with powers of two need no multiplication: the multiplier is a difference of the bits, and all
//! steps are those of 16-bit integers, on twice the elements again. Most casts to MXFP8 and back are made so.

use super::*;
use crate::numeric::BF16;

/// Elements of a vector of codes.
pub const WIDTH: usize = 2 * BLOCK;

/// How many of a line's elements are cast here.
pub fn share<V: Element>(len: usize, by: f32) -> usize {
    let known = matches!(V::DTYPE, kNVTEBFloat16 | kNVTEFloat32);
    if known && vectors() == Vectors::Avx512 && by >= 0.0 { len / WIDTH * WIDTH } else { 0 }
}

/// Puts the multipliers of `BLOCK` elements in the order of two vectors of floats.
pub fn order<V: Element>(natural: &[f32]) -> [f32; BLOCK] {
    match V::DTYPE {
        // Unpacking takes the lower and the upper half of each 8 elements.
        kNVTEBFloat16 => from_fn(|i| natural[i % 16 / 4 * 8 + i / 16 * 4 + i % 4]),
        _ => from_fn(|i| natural[i]),
    }
}

/// Two vectors of multipliers in that order.
///
/// # Safety
/// There are `BLOCK` floats.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
pub unsafe fn pair(by: *const f32) -> [__m512; 2] {
    // SAFETY: the caller keeps to the `# Safety` section of this function.
    unsafe { [_mm512_loadu_ps(by), _mm512_loadu_ps(by.add(16))] }
}

/// The codes of magnitudes times multipliers, in 16 bits each, in the order of packing.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
fn codes<O: Element, const BOUNDED: bool>(magnitudes: [__m512; 2], by: [__m512; 2]) -> __m512i {
    let (mant, least, most) = const { format::<O>() };
    let shift = 23 - mant;
    let [least_normal, most] =
        [least, most].map(|bits| _mm512_castsi512_ps(_mm512_set1_epi32(bits)));
    let steps = _mm512_castsi512_ps(_mm512_set1_epi32((127 + shift) << 23));
    let [low, high] = from_fn(|i| {
        let x = _mm512_mul_ps(magnitudes[i], by[i]);
        // If the first operand is NaN, the second one is the result.
        let x = if BOUNDED { x } else { _mm512_min_ps(x, most) };
        let at_least = _mm512_castps_si512(_mm512_max_ps(x, least_normal));
        let binade = _mm512_and_si512(at_least, _mm512_set1_epi32(0x7F80_0000));
        let binade = _mm512_castsi512_ps(binade);
        let sum = _mm512_castps_si512(_mm512_fmadd_ps(binade, steps, x));
        _mm512_madd_epi16(sum, _mm512_set1_epi32(1 << 16 | 1 << (7 - mant)))
    });
    let zero = _mm512_set1_epi16(((least >> 16) + (shift << 7)) as i16);
    let words = _mm512_sub_epi16(_mm512_packus_epi32(low, high), zero);
    if mant == 3 { _mm512_srli_epi16::<4>(words) } else { _mm512_srli_epi16::<5>(words) }
}

/// The codes of `BLOCK` elements, in 16 bits each; raises the largest magnitudes, which are of the elements' type.
///
/// # Safety
/// The elements are there.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
unsafe fn block<V: Element, O: Element, const BOUNDED: bool>(
    from: *const V,
    by: [__m512; 2],
    largest: &mut __m512i,
) -> __m512i {
    let sign = _mm512_set1_epi16(0x80);
    if V::DTYPE == kNVTEBFloat16 {
        // SAFETY: the caller keeps to the `# Safety` section of this function.
        let x = unsafe { _mm512_loadu_si512(from.cast()) };
        let magnitude = _mm512_and_si512(x, _mm512_set1_epi16(0x7FFF));
        let zero = _mm512_setzero_si512();
        let halves =
            [_mm512_unpacklo_epi16(zero, magnitude), _mm512_unpackhi_epi16(zero, magnitude)];
        let codes = codes::<O, BOUNDED>(halves.map(|x| _mm512_castsi512_ps(x)), by);
        let signs = _mm512_srli_epi16::<8>(x);
        let codes = _mm512_ternarylogic_epi32::<0xF8>(codes, signs, sign);
        if BOUNDED {
            return codes;
        }
        let number = _mm512_cmple_epi16_mask(magnitude, _mm512_set1_epi16(0x7F80));
        *largest = _mm512_mask_max_epi16(*largest, number, *largest, magnitude);
        return _mm512_mask_mov_epi16(_mm512_set1_epi16(0x7F), number, codes);
    }
    // SAFETY: the caller keeps to the `# Safety` section of this function.
    let x = unsafe { [_mm512_loadu_si512(from.cast()), _mm512_loadu_si512(from.add(16).cast())] };
    // A bit above those of the signs and exponents.
    let nan = _mm512_set1_epi32(0x100);
    let mut signs = [nan; 2];
    let mut magnitudes = [_mm512_setzero_ps(); 2];
    for i in 0..2 {
        let magnitude = _mm512_and_si512(x[i], _mm512_set1_epi32(0x7FFF_FFFF));
        let number = _mm512_cmple_epi32_mask(magnitude, _mm512_set1_epi32(0x7F80_0000));
        *largest = _mm512_mask_max_epi32(*largest, number, *largest, magnitude);
        signs[i] = _mm512_mask_srli_epi32::<24>(nan, number, x[i]);
        magnitudes[i] = _mm512_castsi512_ps(magnitude);
    }
    let codes = codes::<O, BOUNDED>(magnitudes, by);
    let signs = _mm512_packus_epi32(signs[0], signs[1]);
    let nans = _mm512_test_epi16_mask(signs, _mm512_set1_epi16(0x100));
    let codes = _mm512_ternarylogic_epi32::<0xF8>(codes, signs, sign);
    _mm512_mask_mov_epi16(codes, nans, _mm512_set1_epi16(0x7F))
}

/// Codes that have been packed to bytes, in the order of their elements.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
fn in_order<V: Element>(packed: __m512i) -> __m512i {
    if V::DTYPE == kNVTEBFloat16 {
        return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), packed);
    }
    let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_permutexvar_epi32(order, packed)
}

/// # Safety
/// A vector may be written to the address, which is aligned if `stream`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
unsafe fn put(to: *mut __m512i, x: __m512i, stream: bool) {
    // SAFETY: the caller keeps to the `# Safety` section of this function.
    unsafe { if stream { _mm512_stream_si512(to, x) } else { _mm512_storeu_si512(to, x) } }
}

/// Casts `WIDTH` elements by the multipliers of each half of them.
///
/// # Safety
/// The elements are there, and so is room for the codes, whose address is aligned if `stream`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
pub unsafe fn encode<V: Element, O: Element, const BOUNDED: bool>(
    from: *const V,
    by: [[__m512; 2]; 2],
    largest: &mut __m512i,
    to: *mut O,
    stream: bool,
) {
    // SAFETY: the caller keeps to the `# Safety` section of this function.
    unsafe {
        let low = block::<V, O, BOUNDED>(from, by[0], largest);
        let high = block::<V, O, BOUNDED>(from.add(BLOCK), by[1], largest);
        let packed = _mm512_packus_epi16(low, high);
        let codes = in_order::<V>(packed);
        put(to.cast(), codes, stream);
    }
}

/// Casts the elements of a line by one multiplier; the bits of their amax.
///
/// # Safety
/// Both have `len` elements, whole vectors of codes.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub unsafe fn encode_line<V: Element, O: Element>(
    from: *const V,
    len: usize,
    by: f32,
    to: *mut O,
) -> u32 {
    let by = [[_mm512_set1_ps(by); 2]; 2];
    let mut largest = _mm512_setzero_si512();
    for at in (0..len).step_by(WIDTH) {
        // SAFETY: the caller keeps to the `# Safety` section of this function.
        unsafe { encode::<V, O, false>(from.add(at), by, &mut largest, to.add(at), false) };
    }
    if V::DTYPE == kNVTEBFloat16 {
        let odd = _mm512_and_si512(largest, _mm512_set1_epi32(0xFFFF_0000u32 as i32));
        largest = _mm512_max_epu32(_mm512_slli_epi32::<16>(largest), odd);
    }
    _mm512_reduce_max_epu32(largest)
}

/// Casts the first `len` elements of a row of a tile by the multipliers of its blocks.
///
/// # Safety
/// As [`encode_line`]; the address of the codes is aligned if `stream`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub unsafe fn encode_row<V: Element, O: Element>(
    from: *const V,
    len: usize,
    by: &[f32; TILE / BLOCK],
    to: *mut O,
    stream: bool,
) {
    let mut largest = _mm512_setzero_si512();
    for (i, by) in by.as_chunks::<2>().0[..len / WIDTH].iter().enumerate() {
        let by = by.map(|by| [_mm512_set1_ps(by); 2]);
        // SAFETY: the caller keeps to the `# Safety` section of this function.
        unsafe {
            let (from, to) = (from.add(i * WIDTH), to.add(i * WIDTH));
            encode::<V, O, false>(from, by, &mut largest, to, stream);
        }
    }
}

/// As [`encode_row`] by multipliers of the elements in [`order`].
///
/// # Safety
/// As [`encode_row`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub unsafe fn encode_row_by_columns<V: Element, O: Element>(
    from: *const V,
    len: usize,
    by: &[f32; TILE],
    to: *mut O,
    stream: bool,
) {
    let mut largest = _mm512_setzero_si512();
    for (i, by) in by.as_chunks::<WIDTH>().0[..len / WIDTH].iter().enumerate() {
        // SAFETY: the caller keeps to the `# Safety` section of this function.
        unsafe {
            let by = [pair(by.as_ptr()), pair(by.as_ptr().add(BLOCK))];
            let (from, to) = (from.add(i * WIDTH), to.add(i * WIDTH));
            encode::<V, O, false>(from, by, &mut largest, to, stream);
        }
    }
}

/// Finds the largest magnitudes of a tile of `TILE` columns, as [`super::largest`] does of any. True if all elements
/// are finite; None if one is NaN, the ranks not being valid then.
///
/// # Safety
/// As there; rows are a multiple of 8, and elements have 16 bits.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub unsafe fn largest<V: Element>(
    input: &Lines<V>,
    rows: usize,
    of_rows: &mut [[V::Rank; TILE / BLOCK]; TILE],
    of_columns: &mut [[V::Rank; TILE]; TILE / BLOCK],
    mut copy: Option<&mut [V]>,
) -> Option<bool> {
    let infinite = if V::DTYPE == kNVTEBFloat16 { 0x7F80 } else { 0x7C00 };
    // What makes a rank of a magnitude.
    let zero = _mm512_set1_epi16(0x7FFF - infinite);
    let words = |a, b| _mm512_max_epi16(_mm512_unpacklo_epi16(a, b), _mm512_unpackhi_epi16(a, b));
    let pairs = |a, b| _mm512_max_epi16(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    let fours = |a, b| _mm512_max_epi16(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
    let mut most = _mm512_setzero_si512();
    for (band, of_columns) in of_columns[..rows.div_ceil(BLOCK)].iter_mut().enumerate() {
        let mut columns = [_mm512_setzero_si512(); 4];
        for row in (band * BLOCK..rows.min((band + 1) * BLOCK)).step_by(8) {
            // Each step halves the candidates, until the numbers of 8 rows lie side by side.
            let mut of_rows_here = [_mm512_setzero_si512(); 8];
            for (i, of_row) in of_rows_here.iter_mut().enumerate() {
                let row = row + i;
                // SAFETY: the caller keeps to the `# Safety` section of this function.
                let from = unsafe { input.line(row, TILE) }.as_ptr().cast::<__m512i>();
                let mut blocks = [_mm512_setzero_si512(); 4];
                for (block, (magnitude, column)) in blocks.iter_mut().zip(&mut columns).enumerate()
                {
                    // SAFETY: a line has four vectors.
                    let x = unsafe { _mm512_loadu_si512(from.add(block)) };
                    if let Some(copy) = &mut copy {
                        let to = &mut copy[row * TILE + block * BLOCK..][..BLOCK];
                        // SAFETY: so many elements are a vector.
                        unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), x) };
                    }
                    *magnitude = _mm512_and_si512(x, _mm512_set1_epi16(0x7FFF));
                    *column = _mm512_max_epi16(*column, *magnitude);
                }
                *of_row = pairs(words(blocks[0], blocks[1]), words(blocks[2], blocks[3]));
            }
            let of_two: [__m512i; 4] =
                from_fn(|i| fours(of_rows_here[2 * i], of_rows_here[2 * i + 1]));
            let lanes = |a, b| {
                let low = _mm512_shuffle_i32x4::<0b01_00_01_00>(a, b);
                _mm512_max_epi16(low, _mm512_shuffle_i32x4::<0b11_10_11_10>(a, b))
            };
            let (low, high) = (lanes(of_two[0], of_two[1]), lanes(of_two[2], of_two[3]));
            let all = _mm512_max_epi16(
                _mm512_shuffle_i32x4::<0b10_00_10_00>(low, high),
                _mm512_shuffle_i32x4::<0b11_01_11_01>(low, high),
            );
            let to = &mut of_rows[row..row + 8];
            // SAFETY: the ranks of 8 rows are a vector.
            unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), _mm512_add_epi16(all, zero)) };
        }
        for (i, column) in columns.into_iter().enumerate() {
            most = _mm512_max_epi16(most, column);
            let to = &mut of_columns[i * BLOCK..(i + 1) * BLOCK];
            // SAFETY: the ranks of `BLOCK` columns are a vector.
            unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), _mm512_add_epi16(column, zero)) };
        }
    }
    if _mm512_cmpgt_epi16_mask(most, _mm512_set1_epi16(infinite)) != 0 {
        return None;
    }
    Some(_mm512_cmpeq_epi16_mask(most, _mm512_set1_epi16(infinite)) == 0)
}

/// By how much the bits of a BF16 magnitude exceed those of its product with a power of two, written like BF16 but with
/// the exponents of `O`.
const fn excess<O: Element>(by: f32) -> i16 {
    let top = if matches!(O::DTYPE, kNVTEFloat8E4M3) { 254 - 7 } else { 254 - 15 };
    ((top << 7) - (by.to_bits() >> 16) as i32) as i16
}

/// True if all multipliers are powers of two with exponents in a range, which are those in the bits of floats.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn are_powers_of_two(by: &[f32], least: i32, most: i32) -> bool {
    let wrong = by.iter().fold(0, |wrong, by| {
        let bits = by.to_bits() as i32;
        // Negative if the exponent is outside of the range, or if the number is negative.
        let outside = (most << 23).wrapping_sub(bits) | bits.wrapping_sub(least << 23);
        wrong | (bits & 0x7F_FFFF) | (outside & i32::MIN)
    });
    wrong == 0
}

/// True if [`shift`] casts by these multipliers.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn are_shifts<O: Element>(by: &[f32]) -> bool {
    // Half a step of the format is subtracted from the excess, which stays positive.
    let most = if matches!(O::DTYPE, kNVTEFloat8E4M3) { 253 - 7 } else { 253 - 15 };
    are_powers_of_two(by, 1, most)
}

/// The codes of `WIDTH` finite elements times powers of two, of which each half has the [`excess`] of its elements: the
/// steps of 16-bit integers are those of a cast to a normal number. None if a product is another number and not zero.
///
/// # Safety
/// The elements are there.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
unsafe fn shift<O: Element>(from: *const __m512i, excess: [__m512i; 2]) -> Option<__m512i> {
    let (mant, ..) = const { format::<O>() };
    // SAFETY: the caller keeps to the `# Safety` section of this function.
    let x = unsafe { [_mm512_loadu_si512(from), _mm512_loadu_si512(from.add(1))] };
    let one = _mm512_set1_epi16(1);
    let mut low = 0;
    let words: [__m512i; 2] = from_fn(|i| {
        let magnitude = _mm512_and_si512(x[i], _mm512_set1_epi16(0x7FFF));
        let least = _mm512_add_epi16(excess[i], _mm512_set1_epi16(0x7F));
        // Zero becomes the largest number.
        low |= _mm512_cmplt_epu16_mask(_mm512_sub_epi16(magnitude, one), least);
        let odd =
            if mant == 3 { _mm512_srli_epi16::<4>(x[i]) } else { _mm512_srli_epi16::<5>(x[i]) };
        let sum = _mm512_add_epi16(magnitude, _mm512_and_si512(odd, one));
        let half = _mm512_set1_epi16((1 << (6 - mant)) - 1);
        let sum = _mm512_subs_epu16(sum, _mm512_sub_epi16(excess[i], half));
        if mant == 3 { _mm512_srli_epi16::<4>(sum) } else { _mm512_srli_epi16::<5>(sum) }
    });
    let packed = _mm512_packus_epi16(words[0], words[1]);
    let signs = _mm512_packs_epi16(x[0], x[1]);
    let codes = _mm512_ternarylogic_epi32::<0xF8>(packed, signs, _mm512_set1_epi8(-128));
    if low != 0 { None } else { Some(in_order::<BF16>(codes)) }
}

/// Two vectors of multipliers in the order of [`order`], of `BLOCK` in their own.
///
/// # Safety
/// There are `BLOCK` floats.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
unsafe fn ordered_pair<V: Element>(by: *const f32) -> [__m512; 2] {
    // SAFETY: the caller keeps to the `# Safety` section of this function.
    let [low, high] = unsafe { pair(by) };
    match V::DTYPE {
        kNVTEBFloat16 => [
            _mm512_shuffle_f32x4::<0b10_00_10_00>(low, high),
            _mm512_shuffle_f32x4::<0b11_01_11_01>(low, high),
        ],
        _ => [low, high],
    }
}

/// Casts a tile of `TILE` columns by multipliers of parts of rows that are not negative. `BOUNDED`: no product is NaN
/// or larger than the largest code by half a step.
///
/// # Safety
/// As [`super::encode_tile`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub unsafe fn encode_by_rows<V: Element, O: Element, const BOUNDED: bool>(
    input: &Lines<V>,
    rows: usize,
    by: &OfRows,
    to: &Lines<O>,
    next: impl Fn(usize),
) {
    let mut largest = _mm512_setzero_si512();
    let shifts = BOUNDED && V::DTYPE == kNVTEBFloat16 && are_shifts::<O>(by[..rows].as_flattened());
    for (row, by) in by[..rows].iter().enumerate() {
        next(row);
        // SAFETY: the caller keeps to the `# Safety` section of this function.
        let (from, line) = unsafe { (input.line(row, TILE), to.line_mut(row, TILE)) };
        let stream = streams(to, line);
        for (i, by) in by.as_chunks::<2>().0.iter().enumerate() {
            // SAFETY: the lines have two vectors of codes.
            unsafe {
                let (from, to) = (from.as_ptr().add(i * WIDTH), line.as_mut_ptr().add(i * WIDTH));
                if shifts {
                    let excess = by.map(|by| _mm512_set1_epi16(excess::<O>(by)));
                    if let Some(codes) = shift::<O>(from.cast(), excess) {
                        put(to.cast(), codes, stream);
                        continue;
                    }
                }
                let by = by.map(|by| [_mm512_set1_ps(by); 2]);
                encode::<V, O, BOUNDED>(from, by, &mut largest, to, stream);
            }
        }
    }
}

/// As [`encode_by_rows`], by multipliers of parts of columns.
///
/// # Safety
/// As [`super::encode_tile`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub unsafe fn encode_by_columns<V: Element, O: Element, const BOUNDED: bool>(
    input: &Lines<V>,
    rows: usize,
    by: &OfColumns,
    to: &Lines<O>,
    next: impl Fn(usize),
) {
    let mut largest = _mm512_setzero_si512();
    let by = &by[..rows.div_ceil(BLOCK)];
    let shifts = BOUNDED && V::DTYPE == kNVTEBFloat16 && are_shifts::<O>(by.as_flattened());
    for (band, by) in by.iter().enumerate() {
        // SAFETY: there is a multiplier for each of the columns.
        let pairs: [[__m512; 2]; 4] =
            from_fn(|i| unsafe { ordered_pair::<V>(by.as_ptr().add(i * BLOCK)) });
        let mut words = [0i16; TILE];
        if shifts {
            words.iter_mut().zip(by).for_each(|(word, &by)| *word = excess::<O>(by));
        }
        // SAFETY: as above.
        let words: [__m512i; 4] =
            from_fn(|i| unsafe { _mm512_loadu_si512(words.as_ptr().add(i * BLOCK).cast()) });
        for row in band * BLOCK..rows.min((band + 1) * BLOCK) {
            next(row);
            // SAFETY: the caller keeps to the `# Safety` section of this function.
            let (from, line) = unsafe { (input.line(row, TILE), to.line_mut(row, TILE)) };
            let stream = streams(to, line);
            for i in 0..2 {
                // SAFETY: the lines have two vectors of codes.
                unsafe {
                    let (from, to) =
                        (from.as_ptr().add(i * WIDTH), line.as_mut_ptr().add(i * WIDTH));
                    if shifts {
                        let excess = [words[2 * i], words[2 * i + 1]];
                        if let Some(codes) = shift::<O>(from.cast(), excess) {
                            put(to.cast(), codes, stream);
                            continue;
                        }
                    }
                    let by = [pairs[2 * i], pairs[2 * i + 1]];
                    encode::<V, O, BOUNDED>(from, by, &mut largest, to, stream);
                }
            }
        }
    }
}

/// The upper and lower bytes of the BF16 numbers that the magnitudes of a format are; 0x7FFF for NaN.
pub const fn halves<O: Element>() -> [[u8; 128]; 2] {
    let (mant, least, _) = format::<O>();
    // The least normal number of the format has the exponent 1 there.
    let factor = f32::from_bits(least as u32 + (126 << 23));
    let (mut halves, mut code) = ([[0; 128]; 2], 0);
    while code < 128 {
        let value = match code as u32 {
            0x7C if mant == 2 => f32::INFINITY,
            0x7D.. if mant == 2 => f32::from_bits(0x7FFF_0000),
            0x7F => f32::from_bits(0x7FFF_0000),
            bits => f32::from_bits(bits << (23 - mant)) * factor,
        };
        [_, _, halves[1][code], halves[0][code]] = value.to_bits().to_le_bytes();
        code += 1;
    }
    halves
}

/// True if codes of FP8 times each multiplier are zero or normal numbers of BF16, whose bits differ from those of the
/// codes by those of the multiplier.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub fn decodes_by_shifts(by: &[f32]) -> bool {
    are_powers_of_two(by, 127 - 110, 127 + 112)
}

/// What the bits of a BF16 number differ by from those of its product with a power of two.
fn exponent(by: f32) -> i16 {
    ((by.to_bits() >> 16) as i32 - (127 << 7)) as i16
}

/// Decodes a tile of `TILE` columns to BF16, by multipliers that [`decodes_by_shifts`] holds for.
///
/// # Safety
/// As [`super::decode_tile`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")]
pub unsafe fn decode_by_shifts<I: Element, O: Element>(
    input: &Lines<I>,
    rows: usize,
    by: By,
    output: &Lines<O>,
) {
    let tables = const { &halves::<I>() };
    let tables = tables.each_ref().map(|table| {
        // SAFETY: a table has two vectors.
        [0, 64].map(|at| unsafe { _mm512_loadu_si512(table.as_ptr().add(at).cast()) })
    });
    let places = [
        _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11),
        _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15),
    ];
    for row in 0..rows {
        input.prefetch(row, (rows, TILE));
        let mut words = [_mm512_setzero_si512(); 4];
        match by {
            By::Rows(by) => {
                for (word, &by) in words.iter_mut().zip(&by[row]) {
                    *word = _mm512_set1_epi16(exponent(by));
                }
            }
            By::Columns(by) => {
                let all = by[row / BLOCK].map(exponent);
                for (word, all) in words.iter_mut().zip(all.as_chunks::<BLOCK>().0) {
                    // SAFETY: so many numbers are a vector.
                    *word = unsafe { _mm512_loadu_si512(all.as_ptr().cast()) };
                }
            }
        }
        // SAFETY: the caller keeps to the `# Safety` section of this function.
        let (from, line) = unsafe { (input.line(row, TILE), output.line_mut(row, TILE)) };
        let stream = streams(output, line);
        for i in 0..2 {
            // SAFETY: the line has two vectors of codes.
            let codes = unsafe { _mm512_loadu_si512(from.as_ptr().add(i * WIDTH).cast()) };
            let magnitudes = _mm512_and_si512(codes, _mm512_set1_epi8(0x7F));
            let [high, low] =
                tables.map(|[one, other]| _mm512_permutex2var_epi8(one, magnitudes, other));
            let high = _mm512_ternarylogic_epi32::<0xF8>(high, codes, _mm512_set1_epi8(-128));
            let pairs = [_mm512_unpacklo_epi8(low, high), _mm512_unpackhi_epi8(low, high)];
            for (half, places) in places.into_iter().enumerate() {
                let x = _mm512_permutex2var_epi64(pairs[0], places, pairs[1]);
                let magnitude = _mm512_and_si512(x, _mm512_set1_epi16(0x7FFF));
                // Neither zero nor Inf nor NaN.
                let before = _mm512_sub_epi16(magnitude, _mm512_set1_epi16(1));
                let ordinary = _mm512_cmplt_epu16_mask(before, _mm512_set1_epi16(0x7F7F));
                let x = _mm512_mask_add_epi16(x, ordinary, x, words[2 * i + half]);
                let nan = _mm512_cmpeq_epi16_mask(magnitude, _mm512_set1_epi16(0x7FFF));
                let x = _mm512_mask_mov_epi16(x, nan, _mm512_set1_epi16(0x7FFF));
                // SAFETY: the line has four vectors.
                unsafe { put(line.as_mut_ptr().cast::<__m512i>().add(2 * i + half), x, stream) };
            }
        }
    }
}
