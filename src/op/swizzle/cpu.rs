//! Reference of the swizzles (spec moe_layout 12.1 and 12.5).
#![allow(unsafe_code)]

use crate::backend::args::*;
use crate::backend::buf::Buf;
use crate::backend::pool::{chunks_mut, parallel};
use crate::types::{NVTEScalingMode, cudaStream_t};

/// Row and column of a byte in the 512 of a tile.
fn place(byte: usize) -> (usize, usize) {
    (byte % 16 / 4 * 32 + byte / 16, byte % 4)
}

/// Scales from the compact order to tiles, or back.
pub(crate) unsafe extern "C-unwind" fn swizzle(
    args: *const SwizzleArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    unsafe {
        let a = &*args;
        let entries = Buf::<SwizzleEntry>::new(a.entries.cast(), a.num_entries);
        for entry in entries.slice(0, a.num_entries) {
            if a.group.num_tensors == 0 {
                move_matrix(entry, a.unswizzle);
                continue;
            }
            let mode = NVTEScalingMode::NVTE_MXFP8_1D_SCALING;
            for member in a.group.members((a.rows, a.cols), mode) {
                let (at, valid_m, valid_k) = match entry.transposed {
                    false => (member.row_scales, member.rows, member.cols.div_ceil(32)),
                    true => (member.col_scales, member.cols, member.rows.div_ceil(32)),
                };
                let matrix = SwizzleEntry {
                    source: entry.source.byte_add(at),
                    destination: entry.destination.byte_add(at),
                    m: valid_m.next_multiple_of(128),
                    k: valid_k.next_multiple_of(4),
                    valid_m,
                    valid_k,
                    transposed: entry.transposed,
                };
                move_matrix(&matrix, a.unswizzle);
            }
        }
    }
    Outcome::OK
}

/// # Safety
/// Source and destination cover the matrix, except for parts of a compact source that are not valid.
unsafe fn move_matrix(e: &SwizzleEntry, unswizzle: bool) {
    let (m, k, transposed) = (e.m, e.k, e.transposed);
    let (valid_m, valid_k) = (e.valid_m, e.valid_k);
    // SAFETY: the caller keeps to the `# Safety` section of this function.
    let (source, destination) =
        unsafe { (Buf::<u8>::new(e.source, m * k), Buf::<u8>::new(e.destination, m * k)) };
    parallel(m / 128 * (k / 4)).for_each(|tile| {
        let (row, col) = (tile / (k / 4) * 128, tile % (k / 4) * 4);
        for byte in 0..512 {
            let (i, j) = (row + place(byte).0, col + place(byte).1);
            let compact = if transposed { j * m + i } else { i * k + j };
            let tiled = tile * 512 + byte;
            // SAFETY: each task has its own tile, whose bytes have their own places in either order.
            unsafe {
                if unswizzle {
                    destination.slice_mut(compact, 1)[0] = source.slice(tiled, 1)[0];
                } else {
                    let valid = i < valid_m && j < valid_k;
                    let value = if valid { source.slice(compact, 1)[0] } else { 0 };
                    destination.slice_mut(tiled, 1)[0] = value;
                }
            }
        }
    });
}

/// Exponents of float scales as codes in tiles.
pub(crate) unsafe extern "C-unwind" fn scale_codes(
    args: *const ScaleCodesArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let a = unsafe { &*args };
    let (down, across) = (a.rows.div_ceil(128), a.cols.div_ceil(128));
    let (rows, stride, square) = (a.rows, a.stride, a.square);
    let lines = if square { down } else { across };
    // SAFETY: there is a scale for each block, and room for whole tiles of codes.
    let (scales, codes) = unsafe {
        let scales = Buf::<f32>::new(a.scales.cast(), lines * stride);
        let codes = Buf::<u8>::new(a.codes, down * across * 512);
        (scales.slice(0, lines * stride), codes.slice_mut(0, down * across * 512))
    };
    chunks_mut(codes, 512).for_each(|(tile, codes)| {
        let (down, across) = (tile / across, tile % across);
        for (byte, code) in codes.iter_mut().enumerate() {
            let row = down * 128 + place(byte).0;
            let scale = match square {
                true => scales[down * stride + across],
                false if row < rows => scales[across * stride + row],
                false => 0.0,
            };
            *code = (scale.to_bits() >> 23) as u8;
        }
    });
    Outcome::OK
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr::null_mut;

    #[test]
    fn swizzled_places_of_the_spec() {
        // k, i, j, and the byte that the entry goes to.
        let places = [
            (4, 0, 0, 0),
            (4, 1, 0, 16),
            (4, 32, 0, 4),
            (4, 127, 3, 511),
            (8, 0, 4, 512),
            (8, 130, 5, 1569),
            (8, 200, 6, 1674),
            (8, 255, 7, 2047),
            (12, 96, 2, 14),
        ];
        for (k, i, j, to) in places {
            for transposed in [false, true] {
                let mut source = vec![0u8; 256 * k];
                source[if transposed { j * 256 + i } else { i * k + j }] = 7;
                let mut tiles = vec![1u8; 256 * k];
                let mut entry = SwizzleEntry {
                    source: source.as_ptr().cast(),
                    destination: tiles.as_mut_ptr().cast(),
                    m: 256,
                    k,
                    valid_m: 256,
                    valid_k: k,
                    transposed,
                };
                // SAFETY: the matrices have 256 * k bytes.
                unsafe { move_matrix(&entry, false) };
                assert_eq!(tiles.iter().position(|&byte| byte == 7), Some(to));
                assert_eq!(tiles.iter().filter(|&&byte| byte == 0).count(), 256 * k - 1);

                let mut back = vec![1u8; 256 * k];
                entry.source = tiles.as_ptr().cast();
                entry.destination = back.as_mut_ptr().cast();
                // SAFETY: both buffers have the size of the matrix.
                unsafe { move_matrix(&entry, true) };
                assert_eq!(back, source);
            }
        }
    }

    #[test]
    fn codes_are_exponents() {
        let scales = [0.0, 1.0, -2.0, f32::NAN];
        let mut codes = [9u8; 512];
        let args = ScaleCodesArgs {
            scales: scales.as_ptr(),
            codes: codes.as_mut_ptr().cast(),
            rows: 4,
            cols: 128,
            stride: 4,
            square: false,
        };
        // SAFETY: one tile, four scales.
        unsafe { scale_codes(&args, null_mut()) };
        for (byte, code) in codes.iter().enumerate() {
            let expected = [0, 127, 128, 255].get(place(byte).0).unwrap_or(&0);
            assert_eq!(code, expected);
        }
    }
}
