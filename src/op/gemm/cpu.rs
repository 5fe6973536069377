//! Reference of the matrix product and its epilogues (spec gemm 3): operands become f32, the
//! product and everything after it is f32, D is rounded once.
#![allow(unsafe_code)]

use super::cpu_packed::{self, Blocks, Operand, Source};
use super::cpu_rows;
use crate::backend::args::GemmEpilogue::{self, *};
use crate::backend::args::{
    BackendStatus, DequantizeArgs, GemmArgs, GemmScales, Nvfp4Factors, Outcome, SymmetricGemmArgs,
};
use crate::backend::buf::{Buf, load, store};
use crate::backend::cpu::vectorized;
use crate::backend::fp8;
use crate::backend::memory::{collect, expect, resize, zeros};
use crate::backend::pool::{chunks_mut, install, parallel, threads};
use crate::function::{Curve, SigmoidLinear};
use crate::numeric::{BF16, E4M3, Element, F32, amax_bits, dispatch, e2m1_value};
use crate::op::cast::cpu::dequantize;
use crate::op::cast::cpu_block::exp2;
use crate::op::cast::cpu_nvfp4::scale_index;
use crate::types::{NVTEDType, NVTEScalingMode, cudaStream_t};
use std::cell::Cell;
use std::ffi::c_void;

/// Elements along k that share a scale.
const BLOCK: usize = 128;
/// Elements that one task handles, at least.
const CHUNK: usize = 1 << 14;
/// Columns that one task sums.
const SUM_COLS: usize = 64;

/// Products of less than this are not worth a second thread.
const SHARED: usize = 48 * 48 * 256;
/// Bytes that the `gemm` crate keeps for each thread: the size of a level 2 cache, at most.
const SLAB: usize = 2 << 20;

/// `D = epilogue(alpha * scale_a * scale_b * (Bop Aop) + beta * C)`
pub(crate) unsafe extern "C-unwind" fn gemm(args: *const GemmArgs, _: cudaStream_t) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let g = unsafe { &*args };
    if g.scales_a.mode == NVTEScalingMode::NVTE_MXFP8_1D_SCALING {
        // SAFETY: the caller vouches for the arguments.
        return unsafe { gemm_mxfp8(g) };
    }
    if g.scales_a.mode == NVTEScalingMode::NVTE_NVFP4_1D_SCALING {
        // SAFETY: the caller vouches for the arguments.
        return unsafe { gemm_nvfp4(g) };
    }
    if g.aux_slope && g.a_dtype.is_fp8() || !g.d_columns.is_null() {
        // SAFETY: the caller vouches for the arguments.
        return unsafe { gemm_activated(g) };
    }
    // SAFETY: as above.
    unsafe { gemm_from(g, None) }
}

/// The product of operands that are tensors, or have sources in their place.
///
/// # Safety
/// The arguments are valid. With sources, which have elements that the operands' types hold, nothing else than the
/// product may read the operands.
unsafe fn gemm_from(g: &GemmArgs, sources: Option<[&dyn Source; 2]>) -> Outcome {
    let area = g.n * g.m;
    let (reads_bias, writes_bias, uses_aux) = match g.epilogue {
        NVTEX_EPILOGUE_NONE => (false, false, false),
        NVTEX_EPILOGUE_BIAS => (true, false, false),
        NVTEX_EPILOGUE_GELU | NVTEX_EPILOGUE_DGELU => (false, false, true),
        NVTEX_EPILOGUE_GELU_BIAS => (true, false, true),
        NVTEX_EPILOGUE_BGRAD => (false, true, false),
        NVTEX_EPILOGUE_DGELU_BGRAD => (false, true, true),
        NVTEX_EPILOGUE_SWIGLU | NVTEX_EPILOGUE_DSWIGLU => {
            return Outcome::unimplemented("gemm: SwiGLU of operands in other formats than FP8");
        }
    };
    let [a, b] = [(g.a, g.a_dtype, g.m), (g.b, g.b_dtype, g.n)].map(|(ptr, dtype, outer)| Tensor {
        ptr: ptr.cast_mut(),
        dtype,
        numel: outer * g.k,
    });
    let d = Tensor { ptr: g.d, dtype: g.d_dtype, numel: area };
    let bias_len = if g.epilogue == NVTEX_EPILOGUE_BGRAD { g.n } else { g.m };
    let bias = Tensor { ptr: g.bias, dtype: g.bias_dtype, numel: bias_len };
    let aux = Tensor { ptr: g.aux, dtype: g.aux_dtype, numel: area };
    let has_bias = reads_bias || writes_bias;
    if ![a, b, d].iter().all(Tensor::known)
        || (has_bias && !bias.known())
        || (uses_aux && !aux.known())
    {
        return Outcome::unimplemented("gemm: dtype");
    }

    let sources = sources.unwrap_or([&a, &b]);

    // SAFETY: the caller of a table entry vouches for pointers and shapes. D overlaps nothing but
    // C, which is read before D is written.
    unsafe {
        let mut bias_row = zeros::<f32>(if reads_bias { g.m } else { 0 });
        if reads_bias {
            bias.read(0, &mut bias_row);
        }
        if g.epilogue == NVTEX_EPILOGUE_BGRAD {
            let scale = load::<f32>(g.scales_b.inv.cast()).unwrap_or(1.0);
            let (rows, cols) = if g.transb { (g.k, g.n) } else { (g.n, g.k) };
            let sums = if g.transb { column_sums(b, rows, cols) } else { row_sums(b, rows, cols) };
            bias.write(0, &collect(sums.iter().map(|&sum| (sum * scale as f64) as f32)));
        }
        let scale_d = if d.is_fp8() { load(g.scale_d).unwrap_or(1.0) } else { 1.0 };
        let (kind, slope) = (g.epilogue, g.aux_slope);
        let finish = Finish { kind, bias: &bias_row, aux, slope, d, scale_d };
        // The sums of the columns need all of the results.
        let sums_up = g.epilogue == NVTEX_EPILOGUE_DGELU_BGRAD;
        let mut copy;
        let kept = if d.dtype == NVTEDType::kNVTEFloat32 {
            Buf::<f32>::new(d.ptr, area)
        } else {
            let whole = sums_up || !is_packed(g, a, b);
            copy = zeros::<f32>(if whole { area } else { 0 });
            Buf::<f32>::new(copy.as_mut_ptr().cast(), copy.len())
        };
        let amax = match is_packed(g, a, b) {
            true => multiply_packed(g, [a, b], sources, &finish, sums_up.then_some(kept)),
            false => {
                let product = kept.slice_mut(0, area);
                if g.beta != 0.0 && g.c != product.as_ptr().cast() {
                    let c = Tensor { ptr: g.c.cast_mut(), ..d };
                    chunks_mut(product, CHUNK).for_each(|(i, to)| c.read(i * CHUNK, to));
                }
                multiply(g, [a, b], sources, product);
                let m = g.m;
                let rows_per_task = CHUNK.div_ceil(m);
                let rows = |x: &mut Vec<f32>, (task, chunk): (usize, &mut [f32])| {
                    let rows = chunk.chunks_exact_mut(m).enumerate();
                    rows.map(|(i, row)| finish.part((task * rows_per_task + i) * m, 0, row, x))
                        .max()
                        .unwrap_or(0)
                };
                chunks_mut(product, rows_per_task * g.m).max_init(Vec::new, rows)
            }
        };
        if sums_up {
            let v = Tensor {
                ptr: kept.slice_mut(0, area).as_mut_ptr().cast(),
                dtype: NVTEDType::kNVTEFloat32,
                numel: area,
            };
            let sums = column_sums(v, g.n, g.m);
            bias.write(0, &collect(sums.iter().map(|&sum| sum as f32)));
        }
        if d.is_fp8() {
            store(g.amax_d, f32::from_bits(amax));
            store(g.scale_inv_d, 1.0 / scale_d);
        }
    }
    Outcome::OK
}

/// A product of FP8 whose activation, or the product with its derivatives, goes to an FP8 D in both directions, or to a
/// BF16 D. What the activation is applied to is rounded to BF16 before.
///
/// # Safety
/// The arguments are valid.
unsafe fn gemm_activated(g: &GemmArgs) -> Outcome {
    let gated = matches!(g.epilogue, NVTEX_EPILOGUE_SWIGLU | NVTEX_EPILOGUE_DSWIGLU);
    let grad = matches!(
        g.epilogue,
        NVTEX_EPILOGUE_DGELU | NVTEX_EPILOGUE_DGELU_BGRAD | NVTEX_EPILOGUE_DSWIGLU
    );
    let (n, m) = (g.n, g.m);
    // Columns of the product, of the slopes, and of D.
    let slopes = if gated { 2 * m } else { m };
    let (product, width) = if grad { (m, slopes) } else { (slopes, m) };
    let codes = g.d_dtype.is_fp8();
    if codes == g.d_columns.is_null() || !g.aux_slope || !g.epilogue.has_aux() || g.beta != 0.0 {
        return Outcome::unimplemented(
            "gemm: an FP8 D of slopes in one direction, or of something else in both",
        );
    }
    let mut rounded = zeros::<u16>(n * product);
    let bias = g.epilogue == NVTEX_EPILOGUE_GELU_BIAS;
    let plain = GemmArgs {
        d: rounded.as_mut_ptr().cast(),
        d_columns: std::ptr::null_mut(),
        d_dtype: NVTEDType::kNVTEBFloat16,
        m: product,
        epilogue: if bias { NVTEX_EPILOGUE_BIAS } else { NVTEX_EPILOGUE_NONE },
        aux_slope: false,
        amax_d: std::ptr::null_mut(),
        ..*g
    };
    // SAFETY: D is the matrix above, the other arguments are the caller's.
    let outcome = unsafe { gemm(&plain, std::ptr::null_mut()) };
    if outcome.status() != BackendStatus::NVTEX_BACKEND_OK {
        return outcome;
    }
    let tensor = |ptr, dtype, numel| Tensor { ptr, dtype, numel };
    let from = tensor(plain.d, plain.d_dtype, n * product);
    let aux = tensor(g.aux, g.aux_dtype, n * slopes);
    let d = tensor(g.d, g.d_dtype, n * width);
    let columns = tensor(g.d_columns, g.d_dtype, (width - 1) * g.d_columns_pitch + n);
    let mut values = zeros::<f32>(n * width);
    // SAFETY: the caller vouches for the tensors; each task has its own rows, and then its own columns.
    unsafe {
        let scale = if codes { load(g.scale_d).unwrap_or(1.0) } else { 1.0 };
        let amax = chunks_mut(&mut values, width).max_init(Vec::new, |x, (row, out)| {
            let [mut v, mut s] = [zeros::<f32>(product), zeros::<f32>(slopes)];
            from.read(row * product, &mut v);
            if grad {
                aux.read(row * slopes, &mut s);
                for (i, out) in out.iter_mut().enumerate() {
                    *out = v[i % m] * s[i];
                }
            } else {
                for (i, out) in out.iter_mut().enumerate() {
                    let curve = if gated { SigmoidLinear::SILU } else { SigmoidLinear::GELU };
                    let (value, slope) = (curve.value(v[i]), curve.slope(v[i]));
                    let other = if gated { v[m + i] } else { 1.0 };
                    (*out, s[i]) = (value * other, slope * other);
                    if gated {
                        s[m + i] = value;
                    }
                }
                aux.write(row * slopes, &s);
            }
            resize(x, width);
            x.iter_mut().zip(&*out).for_each(|(x, v)| *x = v * scale);
            d.write(row * width, &x[..width]);
            out.iter().map(|&v| amax_bits(v)).max().unwrap_or(0)
        });
        if g.epilogue == NVTEX_EPILOGUE_DGELU_BGRAD {
            let floats = NVTEDType::kNVTEFloat32;
            let sums = column_sums(tensor(values.as_mut_ptr().cast(), floats, n * m), n, m);
            let bias = tensor(g.bias, g.bias_dtype, m);
            bias.write(0, &collect(sums.iter().map(|&sum| sum as f32)));
        }
        if codes {
            for column in 0..width {
                let scaled = collect((0..n).map(|row| values[row * width + column] * scale));
                columns.write(column * g.d_columns_pitch, &scaled);
            }
        }
        if let Some(old) = load::<f32>(g.amax_d) {
            let amax = f32::from_bits(amax);
            let amax = if codes { amax } else { d.rounded(amax) };
            store(g.amax_d, amax.max(old));
        }
        store(g.scale_inv_d, 1.0 / scale);
    }
    Outcome::OK
}

/// Whether the operands are packed: those that are floats are read where they are, and a few rows are multiplied
/// one by one.
fn is_packed(g: &GemmArgs, a: Tensor, b: Tensor) -> bool {
    let floats = [a, b].iter().all(|t| t.dtype == NVTEDType::kNVTEFloat32);
    g.scales_a.in_blocks() || !(floats || is_few(g, a, b))
}

/// Whether B has few rows and both operands lie along k.
fn is_few(g: &GemmArgs, a: Tensor, b: Tensor) -> bool {
    let few = cpu_rows::kernel(are_halves(a, b)).is_for(g.n, g.k);
    few && g.transa && !g.transb && g.k > 0
}

/// Whether BF16 holds the elements of both operands.
fn are_halves(a: Tensor, b: Tensor) -> bool {
    [a, b].iter().all(|t| t.dtype == NVTEDType::kNVTEBFloat16 || t.is_fp8())
}

/// What becomes of the product.
struct Finish<'a> {
    kind: GemmEpilogue,
    bias: &'a [f32],
    aux: Tensor,
    /// `aux` has the derivative of GELU.
    slope: bool,
    d: Tensor,
    scale_d: f32,
}

impl Finish<'_> {
    /// Turns a part of a row of the product, from `column` on, into that of D, and writes it; `at` is its place in
    /// D. Returns the bits of its amax if D is in 8 bits.
    ///
    /// # Safety
    /// The tensors are valid, and nobody else uses this part of them.
    unsafe fn part(&self, at: usize, column: usize, part: &mut [f32], x: &mut Vec<f32>) -> u32 {
        let bias = self.bias.get(column..).unwrap_or_default();
        // SAFETY: the caller keeps to the `# Safety` section of this function.
        unsafe { epilogue(self.kind, part, bias, (self.aux, self.slope), at, x) };
        let mut amax = 0;
        let from: &[f32] = if self.d.is_fp8() {
            amax = part.iter().fold(amax, |amax, &v| amax_bits(v).max(amax));
            resize(x, part.len());
            x.iter_mut().zip(&*part).for_each(|(x, v)| *x = v * self.scale_d);
            &x[..part.len()]
        } else {
            part
        };
        // A product of floats is computed in D. Elements of another size say nothing by that address.
        let floats = self.d.dtype == NVTEDType::kNVTEFloat32;
        let in_place = from.as_ptr() == self.d.ptr.cast::<f32>().cast_const().wrapping_add(at);
        if !(floats && in_place) {
            // SAFETY: as above. The part is not that of D.
            unsafe { self.d.write(at, from) };
        }
        amax
    }
}

/// The product of operands that are packed; its values are copied to `kept` too if there is such a buffer. Returns
/// the bits of the amax if D is in 8 bits.
///
/// # Safety
/// The arguments are valid, `a` and `b` are their operands with these sources, `finish` has their outputs.
unsafe fn multiply_packed(
    g: &GemmArgs,
    [a, b]: [Tensor; 2],
    sources: [&dyn Source; 2],
    finish: &Finish,
    kept: Option<Buf<f32>>,
) -> u32 {
    let (m, beta, d) = (g.m, g.beta, finish.d);
    let c = Tensor { ptr: g.c.cast_mut(), ..d };
    let kernel = cpu_packed::kernel(are_halves(a, b));
    let operand = |source, outer, k_major| Operand { source, outer, k: g.k, k_major };
    let operands = [&operand(sources[0], m, !g.transa), &operand(sources[1], g.n, g.transb)];
    let in_blocks = g.scales_a.in_blocks();
    let scale = |inv: *const c_void| match in_blocks {
        true => 1.0,
        // SAFETY: the caller's promise: the scales are null or one float each.
        false => unsafe { load::<f32>(inv.cast()) }.unwrap_or(1.0),
    };
    let alpha = g.alpha * scale(g.scales_a.inv) * scale(g.scales_b.inv);
    let part = |row: usize, column: usize, part: &mut [f32], x: &mut Vec<f32>| {
        let at = row * m + column;
        if beta == 0.0 {
            part.iter_mut().for_each(|v| *v *= alpha);
        } else {
            resize(x, part.len());
            // SAFETY: the caller's promise; C is read before the same part of D is written.
            unsafe { c.read(at, &mut x[..part.len()]) };
            if in_blocks && beta == 1.0 {
                // The product is rounded to the type of C before they are added.
                part.iter_mut().zip(&*x).for_each(|(v, c)| *v = d.rounded(alpha * *v) + c);
            } else {
                scale_and_add(part, alpha, beta, x);
            }
        }
        // SAFETY: the caller's promise; each part of D is given once.
        let amax = unsafe { finish.part(at, column, part, x) };
        if let Some(kept) = kept {
            // SAFETY: as above.
            unsafe { kept.slice_mut(at, part.len()) }.copy_from_slice(part);
        }
        amax
    };
    if !in_blocks {
        return kernel.multiply(operands, None, part);
    }
    // SAFETY: the caller keeps to the `# Safety` section of this function.
    let (a_scales, b_scales) =
        unsafe { (BlockScales::new(g.scales_a, m, g.k), BlockScales::new(g.scales_b, g.n, g.k)) };
    let places = Blocks::places(m, g.n);
    let of_blocks = |scales: &BlockScales, outer: usize, places: usize| {
        let mut factors = zeros::<f32>(places * g.k.div_ceil(BLOCK));
        for (block, factors) in factors.chunks_exact_mut(places.max(1)).enumerate() {
            let there = factors.iter_mut().take(outer).enumerate();
            there.for_each(|(i, factor)| *factor = scales.at(i, block));
        }
        factors
    };
    let columns = of_blocks(&a_scales, m, places.0);
    let rows = of_blocks(&b_scales, g.n, places.1);
    let rows_first = !b_scales.square;
    let blocks = Blocks { depth: BLOCK, columns: &columns, rows: &rows, rows_first };
    kernel.multiply(operands, Some(&blocks), part)
}

/// `D = alpha A B^T + beta C + diagonal I`, of which the upper half is that of the lower one.
pub(crate) unsafe extern "C-unwind" fn symmetric_gemm(
    args: *const SymmetricGemmArgs,
    stream: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let g = unsafe { &*args };
    let n = g.n;
    let mut sums = zeros::<f32>(n * n);
    let (none, unscaled) = (std::ptr::null_mut(), GemmScales::per_tensor(std::ptr::null()));
    let product = GemmArgs {
        a: g.b,
        b: g.a,
        c: none,
        d: sums.as_mut_ptr().cast(),
        scales_a: unscaled,
        scales_b: unscaled,
        scale_d: std::ptr::null(),
        amax_d: std::ptr::null_mut(),
        scale_inv_d: std::ptr::null_mut(),
        bias: none,
        aux: none,
        workspace: none,
        workspace_bytes: 0,
        m: n,
        n,
        k: g.k,
        alpha: g.alpha,
        beta: 0.0,
        a_dtype: g.dtype,
        b_dtype: g.dtype,
        d_dtype: NVTEDType::kNVTEFloat32,
        bias_dtype: g.dtype,
        aux_dtype: g.dtype,
        epilogue: NVTEX_EPILOGUE_NONE,
        nvfp4: Nvfp4Factors::NONE,
        transa: !g.transposed,
        transb: g.transposed,
        split_accumulator: false,
        sm_count: 0,
        aux_slope: false,
        d_columns: none,
        d_columns_pitch: 0,
    };
    // SAFETY: the caller vouches for the operands, and D has room for the sums.
    let outcome = unsafe { gemm(&product, stream) };
    if outcome.status() != BackendStatus::NVTEX_BACKEND_OK {
        return outcome;
    }
    dispatch!(g.dtype, [F32, F16, BF16], T => {
        // SAFETY: D is a matrix of its own, as is C if it is read.
        let (c, d) = unsafe {
            let c = (g.beta != 0.0).then(|| Buf::<T>::new(g.c, n * n).slice(0, n * n));
            (c, Buf::<T>::new(g.d, n * n).slice_mut(0, n * n))
        };
        for row in 0..n {
            for col in 0..=row {
                let old = c.map_or(0.0, |c| g.beta * c[row * n + col].to_f32());
                let diagonal = if row == col { g.diagonal } else { 0.0 };
                let value = T::from_f32(sums[row * n + col] + old + diagonal);
                d[row * n + col] = value;
                d[col * n + row] = value;
            }
        }
        Outcome::OK
    }, else Outcome::unimplemented("symmetric_gemm: dtype"))
}

/// The product of MXFP8 operands, cast to BF16, which holds their values. They are cast when they are packed, unless
/// something else reads them, too, or their scales lie in tiles.
///
/// # Safety
/// The arguments are valid.
unsafe fn gemm_mxfp8(g: &GemmArgs) -> Outcome {
    let tiled = g.scales_a.swizzled || g.scales_b.swizzled;
    if !tiled && g.m * g.n * g.k > 0 && g.epilogue != NVTEX_EPILOGUE_BGRAD {
        let none = std::ptr::null_mut();
        let (casts, product) = g.dequantized(NVTEDType::kNVTEBFloat16, none, none);
        // SAFETY: the caller's promise; nothing but the sums of `NVTEX_EPILOGUE_BGRAD` reads an operand itself.
        return unsafe {
            let [a, b] = casts.map(|cast| Microscaled::new(&cast));
            gemm_from(&product, Some([&a, &b]))
        };
    }
    let (mut a, mut b) = (zeros::<u16>(g.m * g.k), zeros::<u16>(g.n * g.k));
    let (a, b) = (a.as_mut_ptr().cast(), b.as_mut_ptr().cast());
    let (casts, product) = g.dequantized(NVTEDType::kNVTEBFloat16, a, b);
    if g.k > 0 {
        for cast in &casts {
            // SAFETY: the caller's promise, and the copies have the sizes of the operands.
            let outcome = unsafe { dequantize(cast, std::ptr::null_mut()) };
            if outcome.status != Outcome::OK.status {
                return outcome;
            }
        }
    }
    // SAFETY: the copies hold the operands, and the caller vouches for the rest.
    unsafe { gemm(&product, std::ptr::null_mut()) }
}

/// The product of NVFP4 operands, cast to float32.
///
/// # Safety
/// The arguments are valid.
unsafe fn gemm_nvfp4(g: &GemmArgs) -> Outcome {
    let (mut a, mut b) = (zeros::<f32>(g.m * g.k), zeros::<f32>(g.n * g.k));
    // SAFETY: the caller keeps to the `# Safety` section of this function.
    let (alpha, beta) = unsafe {
        expand_nvfp4(g.a, &g.scales_a, g.k, &mut a);
        expand_nvfp4(g.b, &g.scales_b, g.k, &mut b);
        let factors = &g.nvfp4;
        let alpha = match (load(factors.amax_a), load(factors.amax_b)) {
            (Some(amax_a), Some(amax_b)) => g.alpha * amax_a * amax_b * factors.factor,
            _ => load(factors.alpha).unwrap_or(g.alpha),
        };
        (alpha, load(factors.beta).unwrap_or(g.beta))
    };
    let none = GemmScales::per_tensor(std::ptr::null());
    let product = GemmArgs {
        a: a.as_ptr().cast(),
        b: b.as_ptr().cast(),
        scales_a: none,
        scales_b: none,
        a_dtype: NVTEDType::kNVTEFloat32,
        b_dtype: NVTEDType::kNVTEFloat32,
        alpha,
        beta,
        ..*g
    };
    // SAFETY: the vectors hold the operands, and the caller vouches for the rest.
    unsafe { gemm(&product, std::ptr::null_mut()) }
}

/// Values of an NVFP4 operand `[outer, k]`.
///
/// # Safety
/// The codes and the scales are those of such an operand.
unsafe fn expand_nvfp4(codes: *const c_void, scales: &GemmScales, k: usize, values: &mut [f32]) {
    const BLOCK: usize = 16;
    let (stride, swizzled) = (scales.stride, scales.swizzled);
    let outer = values.len() / k.max(1);
    // SAFETY: the caller keeps to the `# Safety` section of this function.
    let (codes, scales) = unsafe {
        let bytes = values.len() / 2;
        let entries = outer.next_multiple_of(128) * stride;
        (
            Buf::<u8>::new(codes, bytes).slice(0, bytes),
            Buf::<u8>::new(scales.inv, entries).slice(0, entries),
        )
    };
    chunks_mut(values, BLOCK).for_each(|(i, values)| {
        let (row, block) = (i * BLOCK / k, i * BLOCK % k / BLOCK);
        let at = scale_index(row, block, stride, swizzled);
        let scale = E4M3(scales[at]).to_f32();
        let codes = &codes[i * BLOCK / 2..][..BLOCK / 2];
        for (pair, &code) in values.chunks_exact_mut(2).zip(codes) {
            pair[0] = e2m1_value(code & 0xF) * scale;
            pair[1] = e2m1_value(code >> 4) * scale;
        }
    });
}

/// `d = alpha * a b + beta * d` in matrices with strides of rows and columns; d is not read if beta
/// is 0.
pub(crate) struct Product {
    /// m, n and k.
    pub dims: (usize, usize, usize),
    pub d: *mut f32,
    pub d_strides: (usize, usize),
    pub a: (*const f32, usize, usize),
    pub b: (*const f32, usize, usize),
    pub alpha: f32,
    pub beta: f32,
}

// SAFETY: numbers and addresses; using them is a promise to the methods.
unsafe impl Send for Product {}

impl Product {
    /// Runs on all threads if the product is large. Unwinds if memory is short.
    ///
    /// # Safety
    /// The matrices are valid, nobody else uses d, and nobody writes to a and b.
    pub unsafe fn run(self) {
        let (m, n, k) = self.dims;
        if m.saturating_mul(n).saturating_mul(k) <= SHARED {
            // SAFETY: the caller keeps to the `# Safety` section of this function.
            return unsafe { self.run_here() };
        }
        install(|shared| {
            let parallelism = match shared {
                true => gemm::Parallelism::Rayon(0),
                false => gemm::Parallelism::None,
            };
            // Each thread may have to allocate the memory that the crate keeps for it.
            self.expect_memory(threads() * SLAB);
            // SAFETY: the caller keeps to the `# Safety` section of this function.
            unsafe { self.call(parallelism) }
        })
    }

    /// Runs on the thread that calls. Unwinds if memory is short.
    ///
    /// # Safety
    /// As [`Self::run`].
    pub unsafe fn run_here(self) {
        thread_local! {
            static SEEN: Cell<bool> = const { Cell::new(false) };
        }
        if !SEEN.replace(true) {
            self.expect_memory(SLAB);
        }
        // SAFETY: the caller keeps to the `# Safety` section of this function.
        unsafe { self.call(gemm::Parallelism::None) }
    }

    /// Unwinds unless there is memory for the copies that the `gemm` crate makes of parts of the
    /// operands, and for `more` bytes: the crate itself ends the process if it gets none.
    fn expect_memory(&self, more: usize) {
        const DEPTH: usize = 1024;
        let (m, n, k) = self.dims;
        expect((m.min(DEPTH) + n + 128) * k.min(DEPTH) * size_of::<f32>() + more);
    }

    /// # Safety
    /// As [`Self::run`].
    unsafe fn call(self, parallelism: gemm::Parallelism) {
        let (m, n, k) = self.dims;
        // SAFETY: the caller keeps to the `# Safety` section of this function.
        unsafe {
            gemm::gemm(
                m,
                n,
                k,
                self.d,
                self.d_strides.1 as isize,
                self.d_strides.0 as isize,
                self.beta != 0.0,
                self.a.0,
                self.a.2 as isize,
                self.a.1 as isize,
                self.b.0,
                self.b.2 as isize,
                self.b.1 as isize,
                self.beta,
                self.alpha,
                false,
                false,
                false,
                parallelism,
            );
        }
    }
}

/// `product = alpha * scale_a * scale_b * (Bop Aop) + beta * product` of floats, or of few rows
///
/// # Safety
/// The arguments are valid, `a` and `b` are their operands.
unsafe fn multiply(
    g: &GemmArgs,
    [a, b]: [Tensor; 2],
    sources: [&dyn Source; 2],
    product: &mut [f32],
) {
    if g.k == 0 {
        let beta = g.beta;
        chunks_mut(product, CHUNK).for_each(|(_, part)| {
            part.iter_mut().for_each(|v| *v = if beta == 0.0 { 0.0 } else { beta * *v });
        });
        return;
    }
    // SAFETY: the caller's promise: the scales are null or one float each.
    let scale = unsafe {
        let scale = |inv: *const c_void| load::<f32>(inv.cast()).unwrap_or(1.0);
        g.alpha * scale(g.scales_a.inv) * scale(g.scales_b.inv)
    };
    if is_few(g, a, b) {
        let operand = |source, outer| Operand { source, outer, k: g.k, k_major: false };
        let operands = [&operand(sources[0], g.m), &operand(sources[1], g.n)];
        cpu_rows::kernel(are_halves(a, b)).dot_products(operands, |row, column, sums| {
            add_product(&mut product[row * g.m + column..], sums, scale, g.beta);
        });
        return;
    }
    // Element (i, k) of an operand is at i * outer + k * inner.
    let floats = |t: Tensor, outer, transposed| {
        let (data, strides) = (t.ptr.cast::<f32>().cast_const(), (g.k, 1));
        if transposed { (data, 1, outer) } else { (data, strides.0, strides.1) }
    };
    let (a, a_outer, a_inner) = floats(a, g.m, !g.transa);
    let (b, b_outer, b_inner) = floats(b, g.n, g.transb);
    // The `gemm` crate is given the product as BLAS sees it: D [m, n] with columns of length m.
    let product = Product {
        dims: (g.m, g.n, g.k),
        d: product.as_mut_ptr(),
        d_strides: (1, g.m),
        a: (a, a_outer, a_inner),
        b: (b, b_inner, b_outer),
        alpha: scale,
        beta: g.beta,
    };
    // SAFETY: the caller's promise; the matrices have these strides.
    unsafe { product.run() }
}

vectorized! {
    /// `to = alpha * to + beta * c`
    fn scale_and_add(to: &mut [f32], alpha: f32, beta: f32, c: &[f32]) {
        to.iter_mut().zip(c).for_each(|(v, c)| *v = alpha.mul_add(*v, beta * c));
    }
}

vectorized! {
    /// `to = scale * sums + beta * to`; what is there is not read if beta is 0.
    fn add_product(to: &mut [f32], sums: &[f32], scale: f32, beta: f32) {
        for (v, &sum) in to.iter_mut().zip(sums) {
            let c = if beta == 0.0 { 0.0 } else { beta * *v };
            *v = scale.mul_add(sum, c);
        }
    }
}

/// The scale matrix of an operand `[outer, k]` in blocks.
struct BlockScales {
    scales: Buf<f32>,
    stride: usize,
    square: bool,
}

impl BlockScales {
    /// # Safety
    /// The scales are those of such an operand.
    unsafe fn new(scales: GemmScales, outer: usize, k: usize) -> Self {
        let (rows, cols) = scales.mode.scaling().scale_dims(false, (outer, k));
        // Without k there may be no row. The last one may end before the stride.
        let length = rows.checked_sub(1).map_or(0, |before| before * scales.stride + cols);
        // SAFETY: the caller's promise.
        let buf = unsafe { Buf::new(scales.inv, length) };
        let square = scales.mode.square();
        Self { scales: buf, stride: scales.stride, square }
    }

    /// Scale of row or column `outer` in a block of k.
    fn at(&self, outer: usize, block: usize) -> f32 {
        let at = match self.square {
            true => outer / BLOCK * self.stride + block,
            false => block * self.stride + outer,
        };
        // SAFETY: nobody writes to scales of an operand.
        unsafe { self.scales.slice(at, 1)[0] }
    }
}

/// Turns a row of `v` into what goes to D; `at` is its place in `aux`, of which `slope` says that it has the
/// derivative of GELU, `x` is scratch.
///
/// # Safety
/// If the epilogue uses `aux`, it is valid, and nobody else uses this row of it.
unsafe fn epilogue(
    epilogue: GemmEpilogue,
    row: &mut [f32],
    bias: &[f32],
    (aux, slope): (Tensor, bool),
    at: usize,
    x: &mut Vec<f32>,
) {
    for (v, bias) in row.iter_mut().zip(bias) {
        *v += bias;
    }
    match epilogue {
        NVTEX_EPILOGUE_NONE | NVTEX_EPILOGUE_BIAS | NVTEX_EPILOGUE_BGRAD => {}
        NVTEX_EPILOGUE_GELU | NVTEX_EPILOGUE_GELU_BIAS => {
            // SAFETY: the caller keeps to the `# Safety` section of this function.
            if slope {
                resize(x, row.len());
                gelu_slopes(row, x);
            }
            // SAFETY: the caller keeps to the `# Safety` section of this function.
            unsafe { aux.write(at, if slope { x } else { row }) };
            gelu(row);
        }
        NVTEX_EPILOGUE_DGELU | NVTEX_EPILOGUE_DGELU_BGRAD => {
            resize(x, row.len());
            // SAFETY: the caller keeps to the `# Safety` section of this function.
            unsafe { aux.read(at, x) };
            match slope {
                true => row.iter_mut().zip(&*x).for_each(|(v, slope)| *v *= slope),
                false => times_dgelu(row, x),
            }
        }
        NVTEX_EPILOGUE_SWIGLU | NVTEX_EPILOGUE_DSWIGLU => unreachable!("they go to codes"),
    }
}

vectorized! {
    fn gelu(row: &mut [f32]) {
        row.iter_mut().for_each(|v| *v = SigmoidLinear::GELU.value(*v));
    }
}

vectorized! {
    fn gelu_slopes(row: &[f32], slopes: &mut [f32]) {
        slopes.iter_mut().zip(row).for_each(|(slope, &x)| *slope = SigmoidLinear::GELU.slope(x));
    }
}

vectorized! {
    fn times_dgelu(row: &mut [f32], x: &[f32]) {
        row.iter_mut().zip(x).for_each(|(v, &x)| *v *= SigmoidLinear::GELU.slope(x));
    }
}

/// A dense array whose element type is known at run time.
#[derive(Clone, Copy)]
struct Tensor {
    ptr: *mut c_void,
    dtype: NVTEDType,
    numel: usize,
}

// SAFETY: as for `Buf`.
unsafe impl Send for Tensor {}
// SAFETY: as for `Buf`.
unsafe impl Sync for Tensor {}

impl Tensor {
    fn known(&self) -> bool {
        dispatch!(self.dtype, [F32, F16, BF16, E4M3, E5M2], _T => true, else false)
    }

    fn is_fp8(&self) -> bool {
        matches!(self.dtype, NVTEDType::kNVTEFloat8E4M3 | NVTEDType::kNVTEFloat8E5M2)
    }

    /// `to = float(self[at..])`
    ///
    /// # Safety
    /// The tensor is valid, and nobody writes to it meanwhile.
    unsafe fn read(self, at: usize, to: &mut [f32]) {
        dispatch!(self.dtype, [F32, F16, BF16, E4M3, E5M2], T => {
            // SAFETY: the caller keeps to the `# Safety` section of this function.
            let from = unsafe { Buf::<T>::new(self.ptr, self.numel).slice(at, to.len()) };
            if !fp8::decode_line(from, 1.0, floats_mut(to)) {
                to_floats(from, to)
            }
        }, else {})
    }

    /// `self[at..] = cast(from)`
    ///
    /// # Safety
    /// The tensor is valid, and nobody else uses this part of it.
    unsafe fn write(self, at: usize, from: &[f32]) {
        dispatch!(self.dtype, [F32, F16, BF16, E4M3, E5M2], T => {
            // SAFETY: the caller keeps to the `# Safety` section of this function.
            let to = unsafe { Buf::<T>::new(self.ptr, self.numel).slice_mut(at, from.len()) };
            from_floats(from, to)
        }, else {})
    }

    /// A number rounded to the type of the elements.
    fn rounded(&self, x: f32) -> f32 {
        dispatch!(self.dtype, [F32, F16, BF16, E4M3, E5M2], T => T::from_f32(x).to_f32(), else x)
    }
}

impl Source for Tensor {
    fn floats(&self, at: usize, to: &mut [f32]) {
        // SAFETY: who runs the product vouches for its operands, and nobody writes to them.
        unsafe { self.read(at, to) }
    }

    fn halves(&self, at: usize, to: &mut [u16]) {
        dispatch!(self.dtype, [BF16, E4M3, E5M2], T => {
            // SAFETY: as above.
            let from = unsafe { Buf::<T>::new(self.ptr, self.numel).slice(at, to.len()) };
            if !fp8::look_up_line(from, to) && !fp8::decode_line(from, 1.0, halves_mut(to)) {
                to_halves(from, to)
            }
        }, else unreachable!("a type that BF16 holds"))
    }

    fn in_place(&self, halves: bool, at: usize, len: usize) -> Option<*const u32> {
        let held = if halves { NVTEDType::kNVTEBFloat16 } else { NVTEDType::kNVTEFloat32 };
        dispatch!(self.dtype, [F32, BF16], T => {
            // SAFETY: as above.
            let from = unsafe { Buf::<T>::new(self.ptr, self.numel).slice(at, len) };
            (self.dtype == held).then(|| from.as_ptr().cast())
        }, else None)
    }

    fn prefetch(&self, at: usize, len: usize) {
        dispatch!(self.dtype, [F32, F16, BF16, E4M3, E5M2], T => {
            // SAFETY: the tensor has that many elements.
            unsafe { Buf::<T>::new(self.ptr, self.numel) }.prefetch(at, len);
        }, else {})
    }
}

/// An MXFP8 matrix, whose elements become BF16.
struct Microscaled {
    codes: Tensor,
    scales: Buf<u8>,
    stride: usize,
    cols: usize,
    /// Whether the elements of a column share scales, not those of a row.
    colwise: bool,
}

impl Microscaled {
    /// Elements that share a scale.
    const BLOCK: usize = 32;

    /// # Safety
    /// The arguments are those of a matrix with elements, whose scales lie in rows.
    unsafe fn new(a: &DequantizeArgs) -> Self {
        let (ptr, numel) = (a.input.cast_mut(), a.rows * a.cols);
        let (rows, cols) = match a.colwise {
            true => (a.rows.div_ceil(Self::BLOCK), a.cols),
            false => (a.rows, a.cols.div_ceil(Self::BLOCK)),
        };
        // SAFETY: the caller's promise.
        let scales = unsafe { Buf::new(a.scale_inv, (rows - 1) * a.scale_stride + cols) };
        let codes = Tensor { ptr, dtype: a.input_dtype, numel };
        Self { codes, scales, stride: a.scale_stride, cols: a.cols, colwise: a.colwise }
    }
}

impl Source for Microscaled {
    fn floats(&self, at: usize, to: &mut [f32]) {
        const PART: usize = 256;
        let mut halves = [BF16::default(); PART];
        for (i, to) in to.chunks_mut(PART).enumerate() {
            let halves = &mut halves[..to.len()];
            self.halves(at + i * PART, bits_mut(halves));
            to_floats(halves, to);
        }
    }

    fn halves(&self, at: usize, to: &mut [u16]) {
        self.codes.halves(at, to);
        let (row, col, end) = (at / self.cols, at % self.cols, at % self.cols + to.len());
        let (row, first, end) = match self.colwise {
            true => (row / Self::BLOCK, col, end),
            false => (row, col / Self::BLOCK, end.div_ceil(Self::BLOCK)),
        };
        // SAFETY: who runs the product vouches for its operands, and nobody writes to them.
        let scales = unsafe { self.scales.slice(row * self.stride + first, end - first) };
        if self.colwise {
            return scale_each(to, scales);
        }
        let before = (self.cols.min(col.next_multiple_of(Self::BLOCK)) - col).min(to.len());
        let (rest_of_block, blocks) = to.split_at_mut(before);
        scale_blocks(rest_of_block, scales);
        scale_blocks(blocks, &scales[usize::from(before > 0)..]);
    }

    fn in_place(&self, _: bool, _: usize, _: usize) -> Option<*const u32> {
        None
    }

    fn prefetch(&self, at: usize, len: usize) {
        self.codes.prefetch(at, len);
    }
}

/// The bits of BF16 times the value of a scale.
#[inline(always)]
fn scaled(bits: u16, scale: f32) -> u16 {
    BF16::from_f32(BF16(bits).to_f32() * scale).0
}

vectorized! {
    /// Multiplies blocks, of which the last one may be shorter, by a scale each.
    fn scale_blocks(halves: &mut [u16], scales: &[u8]) {
        let (blocks, rest) = halves.as_chunks_mut::<{ Microscaled::BLOCK }>();
        for (block, &scale) in blocks.iter_mut().zip(scales) {
            let scale = exp2(scale);
            block.iter_mut().for_each(|x| *x = scaled(*x, scale));
        }
        if let Some(&scale) = scales.get(blocks.len()) {
            let scale = exp2(scale);
            rest.iter_mut().for_each(|x| *x = scaled(*x, scale));
        }
    }
}

vectorized! {
    fn scale_each(halves: &mut [u16], scales: &[u8]) {
        halves.iter_mut().zip(scales).for_each(|(x, &scale)| *x = scaled(*x, exp2(scale)));
    }
}

/// Elements as the bits of BF16.
fn bits_mut(halves: &mut [BF16]) -> &mut [u16] {
    // SAFETY: an element is such bits and nothing more.
    unsafe { std::slice::from_raw_parts_mut(halves.as_mut_ptr().cast(), halves.len()) }
}

/// Floats as elements.
fn floats_mut(floats: &mut [f32]) -> &mut [F32] {
    // SAFETY: an element is a float and nothing more.
    unsafe { std::slice::from_raw_parts_mut(floats.as_mut_ptr().cast(), floats.len()) }
}

/// The bits of BF16 as elements.
fn halves_mut(halves: &mut [u16]) -> &mut [BF16] {
    // SAFETY: an element is such bits and nothing more.
    unsafe { std::slice::from_raw_parts_mut(halves.as_mut_ptr().cast(), halves.len()) }
}

vectorized! {
    /// Elements as the upper halves of float32, whose lower ones are 0.
    fn to_halves<T: Element>(from: &[T], to: &mut [u16]) {
        for (x, y) in from.iter().zip(to) {
            *y = (x.to_f32().to_bits() >> 16) as u16;
        }
    }
}

vectorized! {
    pub(crate) fn to_floats<T: Element>(from: &[T], to: &mut [f32]) {
        for (x, y) in from.iter().zip(to) {
            *y = x.to_f32();
        }
    }
}

vectorized! {
    pub(crate) fn from_floats<T: Element>(from: &[f32], to: &mut [T]) {
        for (&x, y) in from.iter().zip(to) {
            *y = T::from_f32(x);
        }
    }
}

/// Sums of the rows of `[rows, cols]`.
///
/// # Safety
/// The matrix is valid, and nobody writes to it meanwhile.
unsafe fn row_sums(matrix: Tensor, rows: usize, cols: usize) -> Vec<f64> {
    parallel(rows).map(|r| {
        let mut row = zeros(cols);
        // SAFETY: the caller keeps to the `# Safety` section of this function.
        unsafe { matrix.read(r * cols, &mut row) };
        row.iter().map(|&x| x as f64).sum()
    })
}

/// Sums of the columns of `[rows, cols]`.
///
/// # Safety
/// The matrix is valid, and nobody writes to it meanwhile.
unsafe fn column_sums(matrix: Tensor, rows: usize, cols: usize) -> Vec<f64> {
    let mut sums = zeros(cols);
    chunks_mut(&mut sums, SUM_COLS).for_each(|(task, sums)| {
        let mut part = [0.0; SUM_COLS];
        let part = &mut part[..sums.len()];
        for r in 0..rows {
            // SAFETY: the caller keeps to the `# Safety` section of this function.
            unsafe { matrix.read(r * cols + task * SUM_COLS, part) };
            for (sum, &x) in sums.iter_mut().zip(&*part) {
                *sum += x as f64;
            }
        }
    });
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::args::{Group, Nvfp4Factors};
    use crate::numeric::*;
    use std::ptr::{null, null_mut};

    #[test]
    fn writes_elements_whose_index_leads_to_the_part() {
        let mut memory = [0f32; 32];
        let (at, len) = (8, 4);
        memory[at..at + len].fill(1.5);
        let base = memory.as_mut_ptr();
        let d = Tensor { ptr: base.cast(), dtype: NVTEDType::kNVTEBFloat16, numel: 16 };
        let kind = GemmEpilogue::NVTEX_EPILOGUE_NONE;
        let finish = Finish { kind, bias: &[], aux: d, slope: false, d, scale_d: 1.0 };
        // SAFETY: D's elements are the first 32 bytes, the part begins behind them.
        unsafe {
            let part = std::slice::from_raw_parts_mut(base.add(at), len);
            finish.part(at, 0, part, &mut Vec::new());
            for i in at..at + len {
                assert_eq!(base.cast::<BF16>().add(i).read().to_f32(), 1.5);
            }
        }
    }

    /// Small multiples of 1/8: exact in every dtype.
    fn values<T: Element>(len: usize, seed: usize) -> Vec<T> {
        (0..len).map(|i| T::from_f32(((i * 37 + seed * 11) % 23) as f32 / 8.0 - 1.375)).collect()
    }

    fn gelu64(x: f64) -> f64 {
        0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
    }

    /// The derivative by a central difference, so that it is independent of the formula above.
    fn dgelu64(x: f64) -> f64 {
        (gelu64(x + 1e-5) - gelu64(x - 1e-5)) / 2e-5
    }

    #[test]
    fn codes_go_to_rows_and_columns() {
        use NVTEDType::*;
        let silu = |x: f64| x / (1.0 + (-x).exp());
        let slope = |f: &dyn Fn(f64) -> f64, x: f64| (f(x + 1e-5) - f(x - 1e-5)) / 2e-5;
        let (m, n, k) = (10, 6, 32);
        for (kind, gated, grad) in [
            (NVTEX_EPILOGUE_GELU, false, false),
            (NVTEX_EPILOGUE_GELU_BIAS, false, false),
            (NVTEX_EPILOGUE_DGELU, false, true),
            (NVTEX_EPILOGUE_DGELU_BGRAD, false, true),
            (NVTEX_EPILOGUE_SWIGLU, true, false),
            (NVTEX_EPILOGUE_DSWIGLU, true, true),
        ] {
            let wide = if gated { 2 * m } else { m };
            let (outer, width) = if grad { (m, wide) } else { (wide, m) };
            let (a, b) = (values::<E4M3>(outer * k, 1), values::<E4M3>(n * k, 2));
            let mut bias = values::<F32>(m, 4);
            let mut aux = values::<BF16>(n * wide, 5);
            let (old_bias, old_aux) = (bias.clone(), aux.clone());
            // D has some rows of a matrix of more.
            let pitch = n + 3;
            let zeros = |count| vec![E4M3::from_f32(0.0); count];
            let (mut d, mut columns) = (zeros(n * width), zeros(width * pitch));
            let (scale_a, scale_b, scale_d) = (0.25f32, 0.5f32, 16.0f32);
            let (mut amax, mut scale_inv) = (0.5f32, 0.0f32);
            let args = GemmArgs {
                a: a.as_ptr().cast(),
                b: b.as_ptr().cast(),
                c: null(),
                d: d.as_mut_ptr().cast(),
                scales_a: GemmScales::per_tensor(&scale_a),
                scales_b: GemmScales::per_tensor(&scale_b),
                scale_d: &scale_d,
                amax_d: &mut amax,
                scale_inv_d: &mut scale_inv,
                bias: bias.as_mut_ptr().cast(),
                aux: aux.as_mut_ptr().cast(),
                workspace: null_mut(),
                workspace_bytes: 0,
                m,
                n,
                k,
                alpha: 1.0,
                beta: 0.0,
                a_dtype: kNVTEFloat8E4M3,
                b_dtype: kNVTEFloat8E4M3,
                d_dtype: kNVTEFloat8E4M3,
                bias_dtype: kNVTEFloat32,
                aux_dtype: kNVTEBFloat16,
                epilogue: kind,
                nvfp4: Nvfp4Factors::NONE,
                transa: true,
                transb: false,
                split_accumulator: grad,
                sm_count: 0,
                aux_slope: true,
                d_columns: columns.as_mut_ptr().cast(),
                d_columns_pitch: pitch,
            };
            // SAFETY: the arrays have the shapes that the arguments say.
            let outcome = unsafe { gemm(&args, null_mut()) };
            assert_eq!(outcome.status, Outcome::OK.status, "{kind:?}");
            let product = |j: usize, i: usize| {
                let terms = (0..k).map(|x| b[j * k + x].to_f32() * a[i * k + x].to_f32());
                let bias = match kind {
                    NVTEX_EPILOGUE_GELU_BIAS => old_bias[i].0 as f64,
                    _ => 0.0,
                };
                (terms.sum::<f32>() * scale_a * scale_b) as f64 + bias
            };
            let close = |got: f64, want: f64, relative: f64, what: &str| {
                let fits = (got - want).abs() <= want.abs() * relative + 2e-3;
                assert!(fits, "{kind:?}, {what}: {got} for {want}");
            };
            let (mut most, mut sums) = (0.5f64, vec![0.0; width]);
            for j in 0..n {
                for i in 0..width {
                    let at = j * width + i;
                    let v = product(j, i % outer);
                    let want = match (grad, gated) {
                        (true, _) => v * old_aux[at].to_f32() as f64,
                        (false, false) => {
                            close(aux[at].to_f32() as f64, dgelu64(v), 0.02, "slope");
                            gelu64(v)
                        }
                        (false, true) => {
                            let other = product(j, m + i);
                            let [by_gate, by_other] =
                                [i, m + i].map(|i| aux[j * wide + i].to_f32() as f64);
                            close(by_gate, other * slope(&silu, v), 0.02, "slope by the gate");
                            close(by_other, silu(v), 0.02, "slope");
                            silu(v) * other
                        }
                    };
                    close((d[at].to_f32() / scale_d) as f64, want, 0.08, "code");
                    assert_eq!(d[at].to_f32(), columns[i * pitch + j].to_f32(), "{kind:?}");
                    most = most.max(want.abs());
                    sums[i] += want;
                }
            }
            close(amax as f64, most, 0.01, "amax");
            assert_eq!(scale_inv, 1.0 / scale_d);
            if kind == NVTEX_EPILOGUE_DGELU_BGRAD {
                // Terms were rounded to BF16, and cancel.
                let off = |i: usize| (bias[i].0 as f64 - sums[i]).abs();
                assert!((0..m).all(|i| off(i) <= most * 2f64.powi(-8)));
            }
        }
    }

    #[test]
    fn microscaled_elements_are_those_of_a_cast() {
        let (rows, cols) = (70, 96);
        let codes: Vec<u8> = (0..rows * cols).map(|i| (i * 37 + i / 251) as u8).collect();
        let scales: Vec<u8> =
            (0..rows * cols).map(|i| [0, 1, 100, 127, 140, 254, 255][i % 7]).collect();
        for colwise in [false, true] {
            let mut cast = vec![BF16(0); rows * cols];
            let args = DequantizeArgs {
                input: codes.as_ptr().cast(),
                output: cast.as_mut_ptr().cast(),
                scale_inv: scales.as_ptr().cast(),
                rows,
                cols,
                scale_stride: if colwise { cols } else { 4 },
                mode: NVTEScalingMode::NVTE_MXFP8_1D_SCALING,
                input_dtype: NVTEDType::kNVTEFloat8E4M3,
                output_dtype: NVTEDType::kNVTEBFloat16,
                colwise,
                swizzled: false,
                group: Group::NONE,
            };
            // SAFETY: the arrays have the shapes that the arguments say.
            let source = unsafe {
                dequantize(&args, null_mut());
                Microscaled::new(&args)
            };
            for (first, len) in [(0, cols), (32, 64), (5, 7), (5, 80), (64, 20)] {
                for row in 0..rows {
                    let (at, want) = (row * cols + first, &cast[row * cols + first..][..len]);
                    let (mut halves, mut floats) = (vec![0; len], vec![0.0; len]);
                    source.halves(at, &mut halves);
                    source.floats(at, &mut floats);
                    let bits = |x: &BF16| x.0;
                    assert!(
                        halves.iter().copied().eq(want.iter().map(bits)),
                        "{colwise} {row} {first}"
                    );
                    let same = |(x, y): (&f32, &BF16)| x.to_bits() == y.to_f32().to_bits();
                    assert!(floats.iter().zip(want).all(same), "{colwise} {row} {first}");
                }
            }
        }
    }

    #[derive(Clone, Copy)]
    struct Case {
        m: usize,
        n: usize,
        k: usize,
        transa: bool,
        transb: bool,
        epilogue: GemmEpilogue,
        beta: f32,
    }

    fn check<A: Element, B: Element, D: Element>(case: Case) {
        let Case { m, n, k, transa, transb, epilogue, beta } = case;
        // What the aux tensor has depends on the size; beside operands in FP8 slopes are for activations alone.
        let slope = m > 16 && !A::FP8;
        let text = format!(
            "{:?} {:?} {:?} {m}x{n}x{k} {transa} {transb} {epilogue:?} {beta}",
            A::DTYPE,
            B::DTYPE,
            D::DTYPE
        );
        let (a, b) = (values::<A>(m * k, 1), values::<B>(n * k, 2));
        // Elements that must not be read are NaN.
        let c =
            if beta != 0.0 { values::<D>(n * m, 3) } else { vec![D::from_f32(f32::NAN); n * m] };
        let mut d = c.clone();
        let bias_len = if epilogue == NVTEX_EPILOGUE_BGRAD { n } else { m };
        let mut bias = values::<F32>(bias_len, 4);
        let mut aux = values::<BF16>(n * m, 5);
        let (old_bias, old_aux) = (bias.clone(), aux.clone());
        let (scale_a, scale_b, scale_d, alpha) = (2.0f32, 0.5f32, 4.0f32, 0.5f32);
        let (mut amax, mut scale_inv) = (0.0f32, 0.0f32);
        let args = GemmArgs {
            a: a.as_ptr().cast(),
            b: b.as_ptr().cast(),
            c: d.as_ptr().cast(),
            d: d.as_mut_ptr().cast(),
            scales_a: GemmScales::per_tensor(if A::FP8 { &scale_a } else { null() }),
            scales_b: GemmScales::per_tensor(if B::FP8 { &scale_b } else { null() }),
            scale_d: if D::FP8 { &scale_d } else { null() },
            amax_d: if D::FP8 { &mut amax } else { null_mut() },
            scale_inv_d: if D::FP8 { &mut scale_inv } else { null_mut() },
            bias: bias.as_mut_ptr().cast(),
            aux: aux.as_mut_ptr().cast(),
            workspace: null_mut(),
            workspace_bytes: 0,
            m,
            n,
            k,
            alpha,
            beta,
            a_dtype: A::DTYPE,
            b_dtype: B::DTYPE,
            d_dtype: D::DTYPE,
            bias_dtype: F32::DTYPE,
            aux_dtype: BF16::DTYPE,
            epilogue,
            nvfp4: Nvfp4Factors::NONE,
            transa,
            transb,
            split_accumulator: false,
            sm_count: 0,
            aux_slope: slope,
            d_columns: null_mut(),
            d_columns_pitch: 0,
        };
        // SAFETY: the arrays have the shapes that the arguments say.
        let outcome = unsafe { gemm(&args, null_mut()) };
        assert_eq!(outcome.status, Outcome::OK.status, "{text}");

        let aop = |k_: usize, i: usize| if transa { a[i * k + k_] } else { a[k_ * m + i] }.to_f32();
        let bop = |j: usize, k_: usize| if transb { b[k_ * n + j] } else { b[j * k + k_] }.to_f32();
        let scale_b = if B::FP8 { scale_b } else { 1.0 };
        let scale = alpha * scale_b * if A::FP8 { scale_a } else { 1.0 };
        let (mut column, mut want_amax) = (vec![0.0; m], 0.0f64);
        // Half a unit in the last place, and some room for f32 sums.
        let relative = match D::DTYPE {
            NVTEDType::kNVTEFloat32 => 1e-5,
            NVTEDType::kNVTEFloat16 => 5e-4,
            NVTEDType::kNVTEBFloat16 => 4e-3,
            NVTEDType::kNVTEFloat8E4M3 => 0.0626,
            _ => 0.1251,
        };
        for j in 0..n {
            for i in 0..m {
                let at = j * m + i;
                let sum: f64 = (0..k).map(|k_| aop(k_, i) as f64 * bop(j, k_) as f64).sum();
                let mut v = sum * scale as f64;
                if beta != 0.0 {
                    v += (beta * c[at].to_f32()) as f64;
                }
                let x = old_aux[at].to_f32() as f64;
                match epilogue {
                    NVTEX_EPILOGUE_BIAS => v += old_bias[i].0 as f64,
                    NVTEX_EPILOGUE_GELU | NVTEX_EPILOGUE_GELU_BIAS => {
                        if epilogue == NVTEX_EPILOGUE_GELU_BIAS {
                            v += old_bias[i].0 as f64;
                        }
                        let kept = if slope { dgelu64(v) } else { v };
                        assert!(
                            (aux[at].to_f32() as f64 - kept).abs() <= kept.abs() * 4e-3 + 1e-5,
                            "{text} aux"
                        );
                        v = gelu64(v);
                    }
                    NVTEX_EPILOGUE_DGELU | NVTEX_EPILOGUE_DGELU_BGRAD => {
                        v *= if slope { x } else { dgelu64(x) };
                        column[i] += v;
                    }
                    _ => {}
                }
                want_amax = want_amax.max(v.abs());
                let got = d[at].to_f32() as f64 / if D::FP8 { scale_d as f64 } else { 1.0 };
                assert!(
                    (got - v).abs() <= v.abs() * relative + 1e-3,
                    "{text}: {got} for {v} at {at}"
                );
            }
        }
        let sums: Vec<f64> = match epilogue {
            NVTEX_EPILOGUE_BGRAD => {
                (0..n).map(|j| (0..k).map(|k_| (bop(j, k_) * scale_b) as f64).sum()).collect()
            }
            NVTEX_EPILOGUE_DGELU_BGRAD => column,
            _ => old_bias.iter().map(|b| b.0 as f64).collect(),
        };
        for (got, want) in bias.iter().zip(sums) {
            assert!((got.0 as f64 - want).abs() <= want.abs() * 1e-5 + 1e-4, "{text} bias");
        }
        if D::FP8 {
            assert!((amax as f64 - want_amax).abs() <= want_amax * 1e-5 + 1e-6, "{text} amax");
            assert_eq!(scale_inv, 0.25, "{text}");
        }
    }

    #[test]
    fn every_epilogue_and_transpose() {
        for transpose in 0..4 {
            let (transa, transb) = (transpose & 1 != 0, transpose & 2 != 0);
            for epilogue in [
                NVTEX_EPILOGUE_NONE,
                NVTEX_EPILOGUE_BIAS,
                NVTEX_EPILOGUE_GELU,
                NVTEX_EPILOGUE_GELU_BIAS,
                NVTEX_EPILOGUE_BGRAD,
                NVTEX_EPILOGUE_DGELU,
                NVTEX_EPILOGUE_DGELU_BGRAD,
            ] {
                for (m, n, k) in [(1, 1, 1), (70, 3, 33), (3, 70, 5), (17, 19, 2051), (5, 4, 0)] {
                    for beta in [0.0, 0.5] {
                        let case = Case { m, n, k, transa, transb, epilogue, beta };
                        check::<F32, F32, F32>(case);
                        check::<BF16, F16, F16>(case);
                        check::<E4M3, E5M2, BF16>(case);
                        check::<F32, BF16, F32>(case);
                        if k < 100 {
                            check::<E5M2, E4M3, E4M3>(case);
                            check::<F16, F32, E5M2>(case);
                        }
                    }
                }
            }
        }
    }
}
