//! What the reference implementations in `op/*/cpu*.rs` share.
#![allow(unsafe_code)]

use crate::backend::buf::{self, Buf};
use crate::backend::pool::parallel;
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
            {
                return Vectors::Avx512;
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
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

/// Writes a `[rows, cols]` matrix, transposed, to `output`. `fill(row, col, to)` makes the elements
/// of a row from a column on; the largest of its results is returned.
///
/// # Safety
/// `output` has `rows * cols` elements that nobody else uses meanwhile.
pub(crate) unsafe fn transposed<T: Copy + Default + Send + Sync>(
    rows: usize,
    cols: usize,
    output: Buf<T>,
    fill: impl Fn(usize, usize, &mut [T]) -> u32 + Sync + Send,
) -> u32 {
    // Tiles of two cache lines each way; longer the one way if the matrix is narrow the other way.
    let side = 128 / size_of::<T>();
    let tile_cols =
        (side * side / rows.next_power_of_two().min(side)).min(cols.next_power_of_two());
    let tile_rows = (side * side / tile_cols).min(rows.next_power_of_two());
    let across = cols.div_ceil(tile_cols);
    let tile = |scratch: &mut (Vec<T>, Vec<T>), task: usize| {
        let (row, col) = (task / across * tile_rows, task % across * tile_cols);
        let (height, width) = (tile_rows.min(rows - row), tile_cols.min(cols - col));
        if rows == 1 {
            // SAFETY: tiles write disjoint parts of the output.
            return fill(0, col, unsafe { output.slice_mut(col, width) });
        }
        let (mut from, mut to) = (&mut scratch.0[..], &mut scratch.1[..]);
        let mut max = 0;
        for (r, line) in from.chunks_exact_mut(tile_cols).take(height).enumerate() {
            max = fill(row + r, col, &mut line[..width]).max(max);
        }
        // Each perfect shuffle rotates the bits of the index (row, column) by one place.
        for _ in 0..tile_rows.trailing_zeros() {
            shuffle(from, to);
            std::mem::swap(&mut from, &mut to);
        }
        for (c, line) in from.chunks_exact(tile_rows).take(width).enumerate() {
            // SAFETY: tiles write disjoint parts of the output.
            let out = unsafe { output.slice_mut((col + c) * rows + row, height) };
            out.copy_from_slice(&line[..height]);
        }
        max
    };
    let scratch = || {
        let area = vec![T::default(); tile_rows * tile_cols];
        (area.clone(), area)
    };
    parallel(rows.div_ceil(tile_rows) * across).max_init(scratch, tile)
}

vectorized! {
    /// Interleaves the two halves of `from`.
    fn shuffle<T: Copy>(from: &[T], to: &mut [T]) {
        let (low, high) = from.split_at(from.len() / 2);
        for ((pair, &a), &b) in to.chunks_exact_mut(2).zip(low).zip(high) {
            pair[0] = a;
            pair[1] = b;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
