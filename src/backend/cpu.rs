//! What the reference implementations in `op/*/cpu*.rs` share.
#![allow(unsafe_code)]

use crate::backend::buf::{self, Buf};
use crate::backend::pool::parallel;
use crate::numeric::Element;
use std::sync::OnceLock;

/// True if the noop flag forbids the work: exactly 1 (spec quantize 1.6).
///
/// # Safety
/// `noop` is null or points to a float.
pub(crate) unsafe fn is_noop(noop: *const f32) -> bool {
    // SAFETY: the caller keeps to the `# Safety` section of this function.
    unsafe { buf::load(noop) == Some(1.0) }
}

/// The scale that maps `amax` to `fp8_max`; `largest` stands in for an infinite one.
#[inline(always)]
pub(crate) fn scale_of(amax: f32, fp8_max: f32, epsilon: f32, pow2: bool, largest: f32) -> f32 {
    // Not f32::max, which would drop a NaN amax.
    let amax = if amax < epsilon { epsilon } else { amax };
    if !amax.is_finite() || amax == 0.0 {
        return 1.0;
    }
    let scale = fp8_max / amax;
    let scale = if scale.is_infinite() { largest } else { scale };
    if pow2 { f32::from_bits(scale.to_bits() & 0xFF80_0000) } else { scale }
}

/// The widest vectors of this machine.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Vectors {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    Baseline,
}

pub(crate) fn vectors() -> Vectors {
    static VECTORS: OnceLock<Vectors> = OnceLock::new();
    *VECTORS.get_or_init(|| {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512vbmi")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c")
            {
                return Vectors::Avx512;
            }
            if is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c")
            {
                return Vectors::Avx2;
            }
        }
        Vectors::Baseline
    })
}

/// Compiles a function for each kind of `Vectors` and calls the one for this machine. All give the
/// same bits: the compiler never contracts a multiplication and an addition.
macro_rules! vectorized {
    (
        $(#[$meta:meta])*
        $vis:vis fn $name:ident$(<$($t:ident: $bound:path),+>)?($($arg:ident: $ty:ty),+ $(,)?) $(-> $ret:ty)?
        $body:block
    ) => {
        $(#[$meta])*
        $vis fn $name$(<$($t: $bound),+>)?($($arg: $ty),+) $(-> $ret)? {
            #[inline(always)]
            fn body$(<$($t: $bound),+>)?($($arg: $ty),+) $(-> $ret)? $body
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,fma")]
            fn avx512$(<$($t: $bound),+>)?($($arg: $ty),+) $(-> $ret)? {
                body($($arg),+)
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2$(<$($t: $bound),+>)?($($arg: $ty),+) $(-> $ret)? {
                body($($arg),+)
            }
            match $crate::backend::cpu::vectors() {
                #[cfg(target_arch = "x86_64")]
                // SAFETY: the machine has these instructions.
                $crate::backend::cpu::Vectors::Avx512 => unsafe { avx512($($arg),+) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: the machine has these instructions.
                $crate::backend::cpu::Vectors::Avx2 => unsafe { avx2($($arg),+) },
                $crate::backend::cpu::Vectors::Baseline => body($($arg),+),
            }
        }
    };
}
pub(crate) use vectorized;

vectorized! {
    /// Each element as float32.
    pub(crate) fn widen<T: Element>(from: &[T], to: &mut [f32]) {
        from.iter().zip(to).for_each(|(from, to)| *to = from.to_f32());
    }
}

vectorized! {
    /// Each number rounded to the dtype.
    pub(crate) fn narrow<T: Element>(from: &[f32], to: &mut [T]) {
        from.iter().zip(to).for_each(|(&from, to)| *to = T::from_f32(from));
    }
}

/// Rows by which memory is asked for ahead of its use, which are few enough for the nearest caches: where the rows of
/// a matrix are a power of two apart, little of a cache serves them.
pub(crate) const AHEAD: usize = 16;

/// Writes a `[rows, cols]` matrix, transposed, to `output`. `fill(row, col, to)` makes the elements
/// of a row from a column on; the largest of its results is returned. Some rows before, `fetch(row, col, len)` may ask
/// for the memory that they are made of.
///
/// # Safety
/// `output` has `rows * cols` elements that nobody else uses meanwhile.
pub(crate) unsafe fn transposed<T: Copy + Default + Send + Sync>(
    rows: usize,
    cols: usize,
    output: Buf<T>,
    fetch: impl Fn(usize, usize, usize) + Sync + Send,
    fill: impl Fn(usize, usize, &mut [T]) -> u32 + Sync + Send,
) -> u32 {
    // Tiles of two cache lines down and four across; longer the one way if the matrix is narrow the other way.
    let side = 128 / size_of::<T>();
    let area = 2 * side * side;
    let tile_cols = (area / rows.next_power_of_two().min(side)).min(cols.next_power_of_two());
    let tile_rows = (area / tile_cols).min(rows.next_power_of_two());
    let across = cols.div_ceil(tile_cols);
    let tile = |scratch: &mut (Vec<T>, Vec<T>), task: usize| {
        let (row, col) = (task / across * tile_rows, task % across * tile_cols);
        let (height, width) = (tile_rows.min(rows - row), tile_cols.min(cols - col));
        if rows == 1 {
            // SAFETY: tiles write disjoint parts of the output.
            return fill(0, col, unsafe { output.slice_mut(col, width) });
        }
        let (from, to) = (&mut scratch.0[..], &mut scratch.1[..]);
        let mut max = 0;
        for (r, line) in from.chunks_exact_mut(tile_cols).take(height).enumerate() {
            // A later row of this tile, or one of the next tile.
            match r + AHEAD {
                later if later < height => fetch(row + later, col, width),
                later if col + width < cols => {
                    fetch(row + (later - height) % height, col + width, width);
                }
                _ => {}
            }
            max = fill(row + r, col, &mut line[..width]).max(max);
        }
        let (sides, start) = ((tile_rows, tile_cols), col * rows + row);
        // SAFETY: tiles write disjoint parts of the output.
        unsafe { store_transposed((from, to), sides, (height, width), output, (start, rows)) };
        finish_lines();
        max
    };
    let scratch = || {
        let area = vec![T::default(); tile_rows * tile_cols];
        (area.clone(), area)
    };
    parallel(rows.div_ceil(tile_rows) * across).max_init(scratch, tile)
}

/// True for a matrix of so many elements that writing it past the caches is faster: it is larger than the share of a
/// cache that it could stay in until it is read.
pub(crate) fn is_large<T>(numel: usize) -> bool {
    numel * size_of::<T>() >= 8 << 20
}

/// Writes a part of some rows and columns of a tile, transposed, to lines of an output; those of a large matrix as
/// [`copy_line`] does. The second tile is scratch.
///
/// # Safety
/// Nobody else uses these lines meanwhile, which lie in the output.
pub(crate) unsafe fn store_transposed<T: Copy>(
    (from, scratch): (&[T], &mut [T]),
    (rows, cols): (usize, usize),
    (height, width): (usize, usize),
    output: Buf<T>,
    (start, stride): (usize, usize),
) {
    let large = is_large::<T>(output.len());
    #[cfg(target_arch = "x86_64")]
    if size_of::<T>() == 1
        && vectors() == Vectors::Avx512
        && height == rows
        && rows.is_multiple_of(64)
        && width.is_multiple_of(16)
        && width > 0
    {
        assert!(from.len() == rows * cols && width <= cols, "a part of a tile");
        // Not a slice: between these lines are those of other tiles.
        let to = output.start(start, (width - 1) * stride + rows);
        let stream = large && to.addr().is_multiple_of(64) && stride.is_multiple_of(64);
        // SAFETY: the machine has the instructions, the lines end where the range does, and the caller's promise.
        return unsafe {
            x86::store_transposed(
                from.as_ptr().cast(),
                (rows, cols),
                width,
                (to.cast(), stride),
                stream,
            )
        };
    }
    transpose_tile(from, scratch, rows, cols);
    for (c, line) in scratch.chunks_exact(rows).take(width).enumerate() {
        // SAFETY: the caller keeps to the `# Safety` section of this function.
        let to = unsafe { output.slice_mut(start + c * stride, height) };
        copy_line(&line[..height], to, large);
    }
}

/// Copies a line of a tile. Whole cache lines of a large matrix are written past the caches, which need not read them
/// before; [`finish_lines`] follows.
pub(crate) fn copy_line<T: Copy>(from: &[T], to: &mut [T], large: bool) {
    #[cfg(target_arch = "x86_64")]
    if large && to.as_ptr().addr().is_multiple_of(64) && size_of_val(to).is_multiple_of(64) {
        assert_eq!(from.len(), to.len(), "lines of one length");
        // SAFETY: both have that many bytes, and the vectors' addresses are multiples of 16.
        unsafe { x86::stream(from.as_ptr().cast(), to.as_mut_ptr().cast(), size_of_val(to) / 16) };
        return;
    }
    let _ = large;
    to.copy_from_slice(from);
}

/// What [`copy_line`] has written is visible to other threads that learn of the end of the task.
pub(crate) fn finish_lines() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every machine of this kind has this instruction.
    unsafe {
        std::arch::x86_64::_mm_sfence()
    };
}

/// `to[c][r] = from[r][c]`, both sides being powers of two.
pub(crate) fn transpose_tile<T: Copy>(from: &[T], to: &mut [T], rows: usize, cols: usize) {
    assert!(from.len() == rows * cols && to.len() == rows * cols, "the area of a tile");
    #[cfg(target_arch = "x86_64")]
    match size_of::<T>() {
        1 if rows >= 32 && cols >= 16 && vectors() != Vectors::Baseline => {
            // SAFETY: the machine has the instructions; the elements have this size, and both tiles are as long as
            // their sides say.
            return unsafe { x86::transpose_bytes(from, to, rows, cols) };
        }
        1 if rows.min(cols) >= 16 => {
            // SAFETY: the elements have this size, and both tiles are as long as their sides say; so below.
            return unsafe { x86::transpose::<16, T>(from, to, rows, cols, x86::bytes) };
        }
        2 if rows.min(cols) >= 8 => {
            // SAFETY: as above.
            return unsafe { x86::transpose::<8, T>(from, to, rows, cols, x86::words) };
        }
        4 if rows.min(cols) >= 4 => {
            // SAFETY: as above.
            return unsafe { x86::transpose::<4, T>(from, to, rows, cols, x86::floats) };
        }
        _ => {}
    }
    for (r, line) in from.chunks_exact(cols).enumerate() {
        for (c, &x) in line.iter().enumerate() {
            to[c * rows + r] = x;
        }
    }
}

/// Transposes of squares in vectors of 16 bytes, which every machine of this kind has.
#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    macro_rules! interleave {
        ($($name:ident: $low:ident, $high:ident;)+) => {$(
            #[inline(always)]
            pub fn $name(a: __m128i, b: __m128i) -> [__m128i; 2] {
                // SAFETY: every machine of this kind has these instructions.
                unsafe { [$low(a, b), $high(a, b)] }
            }
        )+};
    }
    interleave! {
        bytes: _mm_unpacklo_epi8, _mm_unpackhi_epi8;
        words: _mm_unpacklo_epi16, _mm_unpackhi_epi16;
        floats: _mm_unpacklo_epi32, _mm_unpackhi_epi32;
    }

    /// # Safety
    /// Both addresses have that many vectors, and the second is a multiple of 16.
    pub unsafe fn stream(from: *const __m128i, to: *mut __m128i, count: usize) {
        for i in 0..count {
            // SAFETY: the caller keeps to the `# Safety` section of this function.
            unsafe { _mm_stream_si128(to.add(i), _mm_loadu_si128(from.add(i))) };
        }
    }

    /// As [`transpose`] of bytes, where each half of a vector has 16 rows.
    ///
    /// # Safety
    /// Both have `rows * cols` bytes; the sides are multiples of 32 and of 16.
    #[target_feature(enable = "avx2")]
    pub unsafe fn transpose_bytes<T: Copy>(from: &[T], to: &mut [T], rows: usize, cols: usize) {
        for c in (0..cols).step_by(16) {
            for r in (0..rows).step_by(32) {
                // SAFETY: the caller keeps to the `# Safety` section of this function.
                unsafe {
                    let at =
                        |i: usize| _mm_loadu_si128(from.as_ptr().add((r + i) * cols + c).cast());
                    let mut lines: [__m256i; 16] =
                        std::array::from_fn(|i| _mm256_set_m128i(at(i + 16), at(i)));
                    for _ in 0..4 {
                        let pairs: [[__m256i; 2]; 16] = std::array::from_fn(|i| {
                            let (a, b) = (lines[i / 2], lines[i / 2 + 8]);
                            [_mm256_unpacklo_epi8(a, b), _mm256_unpackhi_epi8(a, b)]
                        });
                        lines = std::array::from_fn(|i| pairs[i][i % 2]);
                    }
                    for (i, line) in lines.into_iter().enumerate() {
                        _mm256_storeu_si256(to.as_mut_ptr().add((c + i) * rows + r).cast(), line);
                    }
                }
            }
        }
    }

    /// `to[c][r] = from[r][c]` of the first `width` columns of a tile, past the caches if `stream`.
    ///
    /// # Safety
    /// The tile has `rows * cols` bytes; lines of `rows` bytes may be written, a stride apart, whose addresses are
    /// multiples of 64 if `stream`. Rows are a multiple of 64, and the width is one of 16.
    #[target_feature(enable = "avx512f,avx512bw")]
    pub unsafe fn store_transposed(
        from: *const u8,
        (rows, cols): (usize, usize),
        width: usize,
        (to, stride): (*mut u8, usize),
        stream: bool,
    ) {
        for c in (0..width).step_by(16) {
            for r in (0..rows).step_by(64) {
                // SAFETY: the caller keeps to the `# Safety` section of this function.
                let at = |i: usize| unsafe { _mm_loadu_si128(from.add((r + i) * cols + c).cast()) };
                // Each quarter of a vector has 16 rows.
                let mut lines: [__m512i; 16] = std::array::from_fn(|i| {
                    let x = _mm512_castsi128_si512(at(i));
                    let x = _mm512_inserti32x4::<1>(x, at(i + 16));
                    let x = _mm512_inserti32x4::<2>(x, at(i + 32));
                    _mm512_inserti32x4::<3>(x, at(i + 48))
                });
                for _ in 0..4 {
                    let pairs: [[__m512i; 2]; 16] = std::array::from_fn(|i| {
                        let (a, b) = (lines[i / 2], lines[i / 2 + 8]);
                        [_mm512_unpacklo_epi8(a, b), _mm512_unpackhi_epi8(a, b)]
                    });
                    lines = std::array::from_fn(|i| pairs[i][i % 2]);
                }
                for (i, line) in lines.into_iter().enumerate() {
                    // SAFETY: the caller keeps to the `# Safety` section of this function.
                    unsafe {
                        let to = to.add((c + i) * stride + r).cast();
                        match stream {
                            true => _mm512_stream_si512(to, line),
                            false => _mm512_storeu_si512(to, line),
                        }
                    }
                }
            }
        }
    }

    /// `to[c][r] = from[r][c]`, where a vector has `N` elements and the sides are multiples of `N`.
    ///
    /// # Safety
    /// Both have `rows * cols` elements of 16 / `N` bytes, which `interleave` takes.
    #[inline(always)]
    pub unsafe fn transpose<const N: usize, T: Copy>(
        from: &[T],
        to: &mut [T],
        rows: usize,
        cols: usize,
        interleave: impl Fn(__m128i, __m128i) -> [__m128i; 2],
    ) {
        for c in (0..cols).step_by(N) {
            for r in (0..rows).step_by(N) {
                // SAFETY: the caller keeps to the `# Safety` section of this function.
                unsafe {
                    let at = |i: usize| from.as_ptr().add((r + i) * cols + c).cast();
                    let mut lines: [__m128i; N] = std::array::from_fn(|i| _mm_loadu_si128(at(i)));
                    // Each perfect shuffle rotates the bits of the index (row, column) by one place.
                    for _ in 0..N.trailing_zeros() {
                        let pairs: [[__m128i; 2]; N] =
                            std::array::from_fn(|i| interleave(lines[i / 2], lines[i / 2 + N / 2]));
                        lines = std::array::from_fn(|i| pairs[i][i % 2]);
                    }
                    for (i, line) in lines.into_iter().enumerate() {
                        _mm_storeu_si128(to.as_mut_ptr().add((c + i) * rows + r).cast(), line);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_matrices_are_transposed() {
        fn check<T: Copy + Default + PartialEq + Send + Sync>(make: impl Fn(usize) -> T + Sync) {
            let (rows, cols) = (4160, 2056);
            assert!(is_large::<T>(rows * cols));
            let mut to = vec![T::default(); rows * cols];
            // SAFETY: the vector is of this test alone.
            unsafe {
                let output = Buf::new(to.as_mut_ptr().cast(), rows * cols);
                transposed(
                    rows,
                    cols,
                    output,
                    |_, _, _| {},
                    |row, col, to: &mut [T]| {
                        let at = row * cols + col;
                        to.iter_mut().enumerate().for_each(|(i, to)| *to = make(at + i));
                        0
                    },
                );
            }
            assert!(to.iter().enumerate().all(|(i, &x)| x == make(i % rows * cols + i / rows)));
        }
        check(|i| (i % 251) as u8);
        check(|i| (i % 65_521) as u16);
        check(|i| i as u32);
    }

    #[test]
    fn scale_of_special_values() {
        assert_eq!(scale_of(2.0, 448.0, 0.0, false, f32::MAX), 224.0);
        assert_eq!(scale_of(3.0, 448.0, 0.0, true, f32::MAX), 128.0);
        assert_eq!(scale_of(1.0, 448.0, 4.0, false, f32::MAX), 112.0);
        for amax in [0.0, f32::INFINITY, f32::NAN] {
            assert_eq!(scale_of(amax, 448.0, 0.0, false, f32::MAX), 1.0);
        }
        assert_eq!(scale_of(f32::NAN, 448.0, 1.0, false, f32::MAX), 1.0);
        assert_eq!(scale_of(1e-45, 448.0, 0.0, false, f32::MAX), f32::MAX);
        assert_eq!(scale_of(1e-45, 448.0, 0.0, true, f32::MAX), 2f32.powi(127));
    }
}
