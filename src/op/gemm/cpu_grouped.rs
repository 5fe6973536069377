//! Reference of what goes with grouped products (spec gemm 4, 7 and 8).
#![allow(unsafe_code)]

use crate::backend::args::*;
use crate::backend::buf::Buf;
use crate::numeric::{Element, dispatch};
use crate::types::NVTEScalingMode::*;
use crate::types::cudaStream_t;
use rayon::prelude::*;
use std::sync::atomic::{AtomicI32, Ordering};

/// Elements that one task handles, at least.
const CHUNK: usize = 1 << 14;

/// `output[r][c] = cast(output[r][c] + bias[g(r)][c] * scale[r])`
pub(crate) unsafe extern "C" fn grouped_bias(
    args: *const GroupedBiasArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let a = unsafe { &*args };
    let (rows, cols, n) = (a.rows, a.cols, a.num_tensors);
    let group = Group { num_tensors: n, first_dims: a.first_dims, ..Group::NONE };
    // SAFETY: as above.
    let members = unsafe { group.members((rows, cols), NVTE_DELAYED_TENSOR_SCALING) };
    dispatch!(a.dtype, [F32, F16, BF16], T => {
        // SAFETY: as above; the tasks write to different rows.
        let (output, bias, scale) = unsafe {
            (
                Buf::<T>::new(a.output, rows * cols),
                Buf::<T>::new(a.bias, n * cols),
                Buf::<f32>::optional(a.scale.cast(), rows),
            )
        };
        let mut first = 0;
        for member in members {
            // SAFETY: as above.
            let (out, bias, scale) = unsafe {
                (
                    output.slice_mut(first * cols, member.rows * cols),
                    bias.slice(member.index * cols, cols),
                    scale.map(|scale| scale.slice(first, member.rows)),
                )
            };
            let rows_per_task = CHUNK.div_ceil(cols);
            out.par_chunks_mut(rows_per_task * cols).enumerate().for_each(|(task, chunk)| {
                for (i, row) in chunk.chunks_exact_mut(cols).enumerate() {
                    let scale = scale.map_or(1.0, |scale| scale[task * rows_per_task + i]);
                    for (out, bias) in row.iter_mut().zip(bias) {
                        *out = T::from_f32(bias.to_f32().mul_add(scale, out.to_f32()));
                    }
                }
            });
            first += member.rows;
        }
        Outcome::OK
    }, else Outcome::unimplemented("grouped_bias: dtype"))
}

/// `output[i] = input[i] * factor`
pub(crate) unsafe extern "C" fn widen(args: *const WidenArgs, _: cudaStream_t) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let (input, output, factor) = unsafe {
        let a = &*args;
        let input = Buf::<i32>::new(a.input.cast(), a.length).slice(0, a.length);
        let output = Buf::<i64>::new(a.output.cast(), a.length).slice_mut(0, a.length);
        (input, output, a.factor)
    };
    for (output, &input) in output.iter_mut().zip(input) {
        *output = i64::from(input).wrapping_mul(factor);
    }
    Outcome::OK
}

/// Waits until counters are 0, which another thread makes them, or makes them 0.
pub(crate) unsafe extern "C" fn counters(args: *const CountersArgs, _: cudaStream_t) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments; all threads that use counters
    // at the same time do so here.
    let (counters, wait) = unsafe {
        let a = &*args;
        (std::slice::from_raw_parts(a.counters.cast::<AtomicI32>(), a.length), a.wait)
    };
    for counter in counters {
        if !wait {
            counter.store(0, Ordering::Release);
        }
        while counter.load(Ordering::Acquire) != 0 {
            std::thread::yield_now();
        }
    }
    Outcome::OK
}
