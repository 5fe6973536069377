//! Reference of grouped products, each member computed as by itself, and of what goes with them (spec
//! gemm 4 and 6 to 8).
#![allow(unsafe_code)]

use super::cpu::gemm;
use crate::backend::args::*;
use crate::backend::buf::{Buf, load};
use crate::backend::group::{scale_entries, scale_pitch};
use crate::numeric::{Element, dispatch};
use crate::types::NVTEScalingMode::*;
use crate::types::cudaStream_t;
use rayon::prelude::*;
use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicI32, Ordering};

/// Elements that one task handles, at least.
const CHUNK: usize = 1 << 14;

/// One matrix of an operand.
struct Matrix {
    data: *mut c_void,
    scales: GemmScales,
    outer: usize,
    inner: usize,
}

impl GroupedMatrix {
    /// The matrices, in the sizes that the operand itself states.
    ///
    /// # Safety
    /// The arrays have `n` entries.
    unsafe fn matrices(&self, n: usize) -> Vec<Matrix> {
        let scales = |inv: *const c_void, outer, inner| {
            // Row-wise scales of the matrix as it is stored for modes in blocks; column-wise ones of
            // MXFP8 if that is the transpose.
            let shape = if self.transposed { (inner, outer) } else { (outer, inner) };
            let stride = match self.mode {
                NVTE_DELAYED_TENSOR_SCALING => 0,
                _ => scale_pitch(self.mode, self.transposed, shape),
            };
            GemmScales { inv, stride, mode: self.mode, swizzled: self.swizzled }
        };
        // SAFETY: the caller's promise; sizes are not negative.
        let at = |array: *const i64, i: usize| unsafe { load(array.wrapping_add(i)) };
        let dim = |array: *const i64, i, even| match array.is_null() {
            true => even,
            false => at(array, i).unwrap_or(0) as usize,
        };
        let (mut next, mut next_scale) = (0, 0);
        let matrix = |i: usize| {
            if !self.members.is_null() {
                // SAFETY: the caller's promise.
                let GroupedMember { data, scale_inv, outer, inner } =
                    unsafe { self.members.add(i).read() };
                return Matrix { data, scales: scales(scale_inv, outer, inner), outer, inner };
            }
            let outer = dim(self.outer_dims, i, self.outer);
            let inner = dim(self.inner_dims, i, self.inner);
            let begin = dim(self.offsets, i, next);
            let data = self.data.wrapping_byte_add(begin * self.dtype.bits() / 8);
            next = begin + outer * inner;
            let (scale, bytes) =
                (next_scale, if self.mode == NVTE_MXFP8_1D_SCALING { 1 } else { 4 });
            let shape = if self.transposed { (inner, outer) } else { (outer, inner) };
            next_scale += scale_entries(self.mode, self.transposed, shape);
            let inv = match self.scale_inv.is_null() {
                true => self.scale_inv,
                false => self.scale_inv.wrapping_byte_add(scale * bytes),
            };
            Matrix { data, scales: scales(inv, outer, inner), outer, inner }
        };
        (0..n).map(matrix).collect()
    }
}

/// `D[t] = alpha[t] * scale_a[t] * scale_b[t] * (B[t] A[t]^T) + beta[t] * C[t]`
pub(crate) unsafe extern "C-unwind" fn grouped_gemm(
    args: *const GroupedGemmArgs,
    stream: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let g = unsafe { &*args };
    let n = g.num_tensors;
    // SAFETY: as above.
    let [a, b, c, d] = [&g.a, &g.b, &g.c, &g.d].map(|operand| unsafe { operand.matrices(n) });
    let nothing = g.a.data.is_null() && g.a.members.is_null();
    for t in 0..n {
        // SAFETY: as above.
        let (alpha, beta) =
            unsafe { (*g.alpha.add(t * g.alpha_stride), *g.beta.add(t * g.beta_stride)) };
        let args = GemmArgs {
            a: a[t].data,
            b: b[t].data,
            c: c[t].data,
            d: d[t].data,
            scales_a: a[t].scales,
            scales_b: b[t].scales,
            scale_d: null(),
            amax_d: null_mut(),
            scale_inv_d: null_mut(),
            bias: null_mut(),
            aux: null_mut(),
            workspace: null_mut(),
            workspace_bytes: 0,
            m: d[t].inner,
            n: d[t].outer,
            k: if nothing { 0 } else { a[t].inner },
            alpha,
            beta,
            a_dtype: g.a.dtype,
            b_dtype: g.b.dtype,
            d_dtype: g.d.dtype,
            bias_dtype: g.d.dtype,
            aux_dtype: g.d.dtype,
            nvfp4: Nvfp4Factors::NONE,
            epilogue: GemmEpilogue::NVTEX_EPILOGUE_NONE,
            transa: !g.a.transposed,
            transb: g.b.transposed,
            split_accumulator: g.split_accumulator,
            sm_count: g.sm_count,
        };
        if args.m == 0 || args.n == 0 {
            continue;
        }
        // SAFETY: as above.
        let outcome = unsafe { gemm(&args, stream) };
        if outcome.status != Outcome::OK.status {
            return outcome;
        }
    }
    Outcome::OK
}

/// `output[r][c] = cast(output[r][c] + bias[g(r)][c] * scale[r])`
pub(crate) unsafe extern "C-unwind" fn grouped_bias(
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
pub(crate) unsafe extern "C-unwind" fn widen(args: *const WidenArgs, _: cudaStream_t) -> Outcome {
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
pub(crate) unsafe extern "C-unwind" fn counters(
    args: *const CountersArgs,
    _: cudaStream_t,
) -> Outcome {
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
