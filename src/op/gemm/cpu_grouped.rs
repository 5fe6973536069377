//! Reference of grouped products, each member computed as by itself, and of what goes with them (spec
//! gemm 4 and 6 to 8).
#![allow(unsafe_code)]

use super::cpu::gemm;
use crate::backend::args::*;
use crate::backend::buf::Buf;
use crate::backend::cpu::vectorized;
use crate::backend::pool::chunks_mut;
use crate::numeric::{Element, dispatch};
use crate::types::NVTEScalingMode::*;
use crate::types::cudaStream_t;
use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

/// Elements that one task handles, at least.
const CHUNK: usize = 1 << 14;

/// One matrix of an operand, with the place and sizes that the operand states. These may be wrong.
struct Matrix {
    data: *mut c_void,
    scale_inv: *const c_void,
    /// Elements and entries of scales before the matrix.
    at: (usize, usize),
    outer: usize,
    inner: usize,
}

impl GroupedMatrix {
    /// Member `t` in the sizes that the operand itself states, where the scales are one after the other;
    /// `next` are the totals of elements and entries before it. A negative size becomes a huge one.
    ///
    /// # Safety
    /// The arrays have more than `t` entries.
    unsafe fn matrix(&self, t: usize, next: &mut (usize, usize)) -> Matrix {
        if !self.members.is_null() {
            // SAFETY: the caller keeps to the `# Safety` section of this function.
            let GroupedMember { data, scale_inv, outer, inner } =
                unsafe { self.members.add(t).read() };
            return Matrix { data, scale_inv, at: (0, 0), outer, inner };
        }
        let dim = |array: *const i64, even| match array.is_null() {
            true => even,
            // SAFETY: the caller keeps to the `# Safety` section of this function.
            false => unsafe { array.add(t).read() as usize },
        };
        let (outer, inner) = (dim(self.outer_dims, self.outer), dim(self.inner_dims, self.inner));
        let in_blocks = self.mode != NVTE_DELAYED_TENSOR_SCALING;
        let at = (dim(self.offsets, next.0), if in_blocks { next.1 } else { t });
        next.0 = at.0.saturating_add(outer.saturating_mul(inner));
        // Sizes of a member that is too large have no scales that could be counted.
        if (1..=self.elements).contains(&outer.saturating_mul(inner)) {
            next.1 = at.1.saturating_add(self.scale_entries_of(outer, inner));
        }
        Matrix { data: self.data, scale_inv: self.scale_inv, at, outer, inner }
    }

    /// Rows and columns of a matrix as it is stored for modes in blocks.
    fn stored(&self, outer: usize, inner: usize) -> (usize, usize) {
        if self.transposed { (inner, outer) } else { (outer, inner) }
    }

    /// Entries of its scales: row-wise ones, or column-wise ones of MXFP8 if that is the transpose.
    fn scale_entries_of(&self, outer: usize, inner: usize) -> usize {
        self.mode.scaling().scale_entries(self.transposed, self.stored(outer, inner))
    }

    /// Whether a member has room for `[outer, inner]`: of other operands' sizes that may be wrong.
    fn has_room(&self, matrix: &Matrix, outer: usize, inner: usize) -> bool {
        let (elements, entries) = match self.members.is_null() {
            true => (self.elements, self.scale_entries),
            false => {
                (matrix.outer * matrix.inner, self.scale_entries_of(matrix.outer, matrix.inner))
            }
        };
        let in_blocks = self.mode != NVTE_DELAYED_TENSOR_SCALING;
        match outer.checked_mul(inner) {
            Some(0) => true,
            Some(numel) => {
                let scales = if in_blocks { self.scale_entries_of(outer, inner) } else { 0 };
                numel <= elements && scales <= entries
            }
            None => false,
        }
    }

    /// Data and scales of a member `[outer, inner]` that there is room for.
    fn place(&self, matrix: &Matrix, outer: usize, inner: usize) -> (*mut c_void, GemmScales) {
        let in_blocks = self.mode != NVTE_DELAYED_TENSOR_SCALING;
        let stride = match in_blocks {
            true => self.mode.scaling().scale_pitch(self.transposed, self.stored(outer, inner)),
            false => 0,
        };
        let scales = |inv| GemmScales { inv, stride, mode: self.mode, swizzled: self.swizzled };
        if !self.members.is_null() {
            return (matrix.data, scales(matrix.scale_inv));
        }
        let numel = outer * inner;
        if numel == 0 {
            return (self.data, scales(self.scale_inv));
        }
        let begin = matrix.at.0.min(self.elements - numel);
        let data = self.data.wrapping_byte_add(begin * self.dtype.bits() / 8);
        if self.scale_inv.is_null() {
            return (data, scales(self.scale_inv));
        }
        let begin = match in_blocks {
            true => matrix.at.1.min(self.scale_entries - self.scale_entries_of(outer, inner)),
            false => matrix.at.1,
        };
        let bytes = self.mode.scaling().scale_bytes();
        (data, scales(self.scale_inv.wrapping_byte_add(begin * bytes)))
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
    let operands = [&g.a, &g.b, &g.c, &g.d];
    let mut next = [(0, 0); 4];
    let nothing = g.a.data.is_null() && g.a.members.is_null();
    for t in 0..n {
        // SAFETY: the caller vouches for the arguments, and `t` is one of the members.
        let own = [0, 1, 2, 3].map(|i| unsafe { operands[i].matrix(t, &mut next[i]) });
        let (m, n, k) = (own[3].inner, own[3].outer, if nothing { 0 } else { own[0].inner });
        let sizes = [(m, k), (n, k), (n, m), (n, m)];
        let fits = |i: usize| operands[i].has_room(&own[i], sizes[i].0, sizes[i].1);
        if m == 0 || n == 0 || !(0..4).all(fits) {
            continue;
        }
        let [a, b, c, d] = [0, 1, 2, 3].map(|i| operands[i].place(&own[i], sizes[i].0, sizes[i].1));
        // SAFETY: there is a factor for each member, or one with a stride of 0.
        let (alpha, beta) =
            unsafe { (*g.alpha.add(t * g.alpha_stride), *g.beta.add(t * g.beta_stride)) };
        let args = GemmArgs {
            a: a.0,
            b: b.0,
            c: c.0,
            d: d.0,
            scales_a: a.1,
            scales_b: b.1,
            scale_d: null(),
            amax_d: null_mut(),
            scale_inv_d: null_mut(),
            bias: null_mut(),
            aux: null_mut(),
            workspace: null_mut(),
            workspace_bytes: 0,
            m,
            n,
            k,
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
            aux_slope: false,
            d_columns: std::ptr::null_mut(),
            d_columns_pitch: 0,
            sm_count: g.sm_count,
        };
        // SAFETY: the matrices are those of a member, checked against each other above.
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
    let (first_dims, elements) = (a.first_dims, rows * cols);
    let group = Group { num_tensors: n, first_dims, most_dim: rows, elements, ..Group::NONE };
    // SAFETY: the caller vouches for the arguments, whose first dimensions are those of the members.
    let members = unsafe { group.members((rows, cols), NVTE_DELAYED_TENSOR_SCALING) };
    dispatch!(a.dtype, [F32, F16, BF16], T => {
        // SAFETY: the caller vouches for the arguments and for their dtype; the tasks write to different rows.
        let (output, bias, scale) = unsafe {
            (
                Buf::<T>::new(a.output, rows * cols),
                Buf::<T>::new(a.bias, n * cols),
                Buf::<f32>::optional(a.scale.cast(), rows),
            )
        };
        let mut first = 0;
        for member in members {
            let own = member.rows.min(rows - first);
            // SAFETY: the rows are in the output, and those of no other task.
            let (out, bias, scale) = unsafe {
                (
                    output.slice_mut(first * cols, own * cols),
                    bias.slice(member.index * cols, cols),
                    scale.map(|scale| scale.slice(first, own)),
                )
            };
            let rows_per_task = CHUNK.div_ceil(cols);
            chunks_mut(out, rows_per_task * cols).for_each(|(task, chunk)| {
                for (i, row) in chunk.chunks_exact_mut(cols).enumerate() {
                    let scale = scale.map_or(1.0, |scale| scale[task * rows_per_task + i]);
                    add_bias(row, bias, scale);
                }
            });
            first += own;
        }
        Outcome::OK
    }, else Outcome::unimplemented("grouped_bias: dtype"))
}

vectorized! {
    fn add_bias<T: Element>(row: &mut [T], bias: &[T], scale: f32) {
        for (out, bias) in row.iter_mut().zip(bias) {
            *out = T::from_f32(bias.to_f32().mul_add(scale, out.to_f32()));
        }
    }
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

/// Waits until counters are 0, which another thread makes them, at most for the given time; or makes
/// them 0.
pub(crate) unsafe extern "C-unwind" fn counters(
    args: *const CountersArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments; all threads that use counters
    // at the same time do so here.
    let (counters, wait, limit) = unsafe {
        let a = &*args;
        let counters = std::slice::from_raw_parts(a.counters.cast::<AtomicI32>(), a.length);
        (counters, a.wait, Duration::from_nanos(a.limit))
    };
    let begin = Instant::now();
    for (i, counter) in counters.iter().enumerate() {
        if !wait {
            counter.store(0, Ordering::Release);
            continue;
        }
        loop {
            let value = counter.load(Ordering::Acquire);
            if value == 0 {
                break;
            }
            if begin.elapsed() > limit {
                return Outcome::device_error(format!(
                    "waited {} s (NVTE_WAIT_SECONDS) for counter {i}, which is still {value}",
                    limit.as_secs_f64()
                ));
            }
            std::thread::yield_now();
        }
    }
    Outcome::OK
}
