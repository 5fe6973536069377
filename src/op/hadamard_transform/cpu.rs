//! Reference of the Hadamard transform (spec optim_nvfp4, sections 14 and 15).
#![allow(unsafe_code)]

use super::SIZE;
use crate::backend::args::{HadamardAmaxArgs, HadamardArgs, Outcome};
use crate::backend::buf::{Buf, store};
use crate::backend::pool::parallel;
use crate::numeric::{BF16, Element, amax_bits};
use crate::types::{NVTEScalingMode, cudaStream_t};

/// The transform of 16 numbers.
fn transform(x: &mut [f32; SIZE], sign_mask: u32) {
    for (k, x) in x.iter_mut().enumerate() {
        *x *= if sign_mask >> k & 1 != 0 { -0.25 } else { 0.25 };
    }
    for step in [1, 2, 4, 8] {
        for k in (0..SIZE).filter(|k| k & step == 0) {
            (x[k], x[k + step]) = (x[k] + x[k + step], x[k] - x[k + step]);
        }
    }
}

/// Columns that are transformed at a time.
const COLS: usize = 256;

/// Calls `each(col, y)` with the transforms of the 16 rows at `row`, for columns from `col` on.
fn columns(
    input: &[BF16],
    (row, cols): (usize, usize),
    from: std::ops::Range<usize>,
    sign_mask: u32,
    mut each: impl FnMut(usize, &[f32; SIZE]),
) {
    for col in from {
        let mut x: [f32; SIZE] = std::array::from_fn(|k| input[(row + k) * cols + col].to_f32());
        transform(&mut x, sign_mask);
        each(col, &x);
    }
}

/// `output[c][16 i + n] = y[n]`
pub(crate) unsafe extern "C-unwind" fn hadamard(
    args: *const HadamardArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let a = unsafe { &*args };
    let numel = a.rows * a.cols;
    // SAFETY: both matrices have so many elements, and share no memory.
    let (input, output) = unsafe {
        (Buf::<BF16>::new(a.input, numel).slice(0, numel), Buf::<BF16>::new(a.output, numel))
    };
    let (rows, cols, sign_mask) = (a.rows, a.cols, a.sign_mask);
    let chunks = cols.div_ceil(COLS);
    parallel(rows / SIZE * chunks).for_each(|task| {
        let (row, col) = (task / chunks * SIZE, task % chunks * COLS);
        let range = col..(col + COLS).min(cols);
        columns(input, (row, cols), range, sign_mask, |col, y| {
            // SAFETY: each task writes its own part of the output.
            let to = unsafe { output.slice_mut(col * rows + row, SIZE) };
            for (to, y) in to.iter_mut().zip(y) {
                *to = BF16::from_f32(*y);
            }
        });
    });
    Outcome::OK
}

/// Largest magnitudes of some rows and of their transform, as bits.
fn maxima(a: &HadamardAmaxArgs, input: &[BF16]) -> (u32, u32) {
    let larger = |a: (u32, u32), b: (u32, u32)| (a.0.max(b.0), a.1.max(b.1));
    let (cols, sign_mask, with_transform) = (a.cols, a.sign_mask, a.transform);
    let of_rows = |rows: &[BF16]| {
        let plain = rows.iter().fold(0, |most, x| amax_bits(x.to_f32()).max(most));
        let mut most = 0;
        if with_transform {
            columns(rows, (0, cols), 0..cols, sign_mask, |_, y| {
                for y in y {
                    most = amax_bits(BF16::from_f32(*y).to_f32()).max(most);
                }
            });
        }
        (plain, if with_transform { most } else { plain })
    };
    let lot = (SIZE * cols).max(1);
    let lots = parallel(input.len() / lot).map(|i| of_rows(&input[i * lot..][..lot]));
    lots.into_iter().fold((0, 0), larger)
}

pub(crate) unsafe extern "C-unwind" fn hadamard_amax(
    args: *const HadamardAmaxArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let a = unsafe { &*args };
    let numel = a.rows * a.cols;
    // SAFETY: the input has so many elements.
    let input = unsafe { Buf::<BF16>::new(a.input, numel).slice(0, numel) };
    let mut outputs = Vec::new();
    if a.members.is_null() {
        // SAFETY: the caller vouches for the arguments, whose members are there.
        let members = unsafe {
            a.group.members((a.rows, a.cols), NVTEScalingMode::NVTE_DELAYED_TENSOR_SCALING)
        };
        let at = |base: *mut f32, i| match base.is_null() {
            true => base,
            false => base.wrapping_add(i),
        };
        for m in members {
            let part = &input[m.at..][..m.rows * m.cols];
            outputs.push((part, at(a.amax, m.index), at(a.colwise_amax, m.index)));
        }
    } else {
        // SAFETY: the caller vouches for the arguments: there are so many members.
        let members = unsafe { std::slice::from_raw_parts(a.members, a.num_members) };
        let mut rest = input;
        for m in members {
            let (part, after) = rest.split_at(m.rows * a.cols);
            rest = after;
            outputs.push((part, m.amax, m.colwise_amax));
        }
    }
    for (part, amax, colwise_amax) in outputs {
        let (plain, transform) = maxima(a, part);
        // SAFETY: each is null or one float.
        unsafe {
            store(amax, f32::from_bits(plain));
            store(colwise_amax, f32::from_bits(transform));
        }
    }
    Outcome::OK
}
