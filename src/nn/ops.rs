//! Operators as layers call them: on the stream of a run, with scratch memory from its context, and with the
//! name of the layer in errors.
#![allow(unsafe_code)]

pub mod experts;

use super::context::Run;
use super::memory::Lifetime;
use super::quantizer::QTensor;
use crate::backend::args::{CopyKind, Function, Fusion, HalfOp, RowMap, SeedArgs};
use crate::error::{Error, Result};
use crate::op;
use crate::op::cross_entropy::{Linear, Losses, Rule as LossRule};
use crate::op::embedding::{Gradients, Lookup, Rule as EmbeddingRule};
use crate::op::fused_attn::attention::{
    Attention, Backward as AttentionBackward, Forward as AttentionForward, Inputs,
};
pub(super) use crate::op::fused_attn::context_parallel::Chunks;
use crate::op::fused_attn::context_parallel::{
    Ranks, chunk_lengths as lengths_of_chunks, grad_correction, merge, read_half, reorder,
};
use crate::op::fused_attn::kv_cache::{ToCache, copy_to_cache};
use crate::op::gemm::{Aux, Epilogue, Options, Product};
use crate::op::normalization::{Backward, Common, Forward};
use crate::op::transformer_engine::QuantizationConfig;
use crate::tensor::{Buffer, Tensor};
use crate::types::NVTEDType::*;
use crate::types::*;
use crate::workspace::Workspace;
use std::ffi::{c_int, c_void};
use std::ptr::null;

/// A tensor without scales.
pub fn plain(buffer: Buffer) -> Tensor {
    let mut tensor = Tensor::new(NVTEScalingMode::NVTE_DELAYED_TENSOR_SCALING);
    tensor.rowwise = buffer;
    tensor
}

/// Says which operator of which layer failed: names in its message are those of the operator's
/// arguments, not those of the layer's.
fn within<T>(run: &Run, operator: &str, result: Result<T>) -> Result<T> {
    result.map_err(|e| {
        let message = match &run.module {
            Some(name) => format!("layer {name:?}: operator {operator}: {}", e.message),
            None => format!("operator {operator}: {}", e.message),
        };
        Error { message, ..e }
    })
}

/// Calls an operator with the scratch memory that it asks for. The memory returns to the pool of the stream
/// when the operator has been enqueued.
fn with_scratch(run: &Run, operator: impl FnOnce(&mut Workspace) -> Result<()>) -> Result<()> {
    let mut block = None;
    let mut lend = |bytes: usize| Ok(block.insert(run.scratch(bytes.max(1))?).ptr());
    operator(&mut Workspace::Lender(&mut lend))
}

pub fn quantize(
    run: &Run,
    input: &Tensor,
    output: &Tensor,
    config: &QuantizationConfig,
) -> Result<()> {
    within(run, "quantize", op::cast::quantize(input, output, config, run.stream))
}

pub fn dequantize(run: &Run, input: &Tensor, output: &Tensor) -> Result<()> {
    within(run, "dequantize", op::cast::dequantize(input, output, run.stream))
}

/// A cast with sums over the rows; of a derivative's product if there is a function and its input.
pub fn quantize_dbias(
    run: &Run,
    derivative: Option<(Function, &Tensor)>,
    input: &Tensor,
    output: &Tensor,
    dbias: &Tensor,
    config: &QuantizationConfig,
) -> Result<()> {
    let plan = || op::cast::plan_quantize(input, output, config);
    let result = with_scratch(run, |workspace| {
        op::cast::quantize_dbias(derivative, input, &dbias.rowwise, workspace, plan, run.stream)
    });
    within(run, "quantize_dbias", result)
}

/// `output` = the input, transposed.
pub fn transpose(run: &Run, input: &Buffer, output: &Buffer) -> Result<()> {
    let result = op::transpose::transpose(input, null(), ("output", output), run.stream);
    within(run, "transpose", result)
}

/// `sums` = the sums of `x` over its rows, in its dtype.
pub fn sum_rows(run: &Run, x: &Tensor, sums: &Tensor) -> Result<()> {
    let sums = &sums.rowwise;
    let result = with_scratch(run, |workspace| op::cast::sum_rows(x, sums, workspace, run.stream));
    within(run, "sum_rows", result)
}

/// `output.amax = max|input|`
pub fn amax(run: &Run, input: &Tensor, output: &Tensor, config: &QuantizationConfig) -> Result<()> {
    within(run, "amax", op::recipe::compute_amax(input, output, config, run.stream))
}

/// `output.scale` from `output.amax`.
pub fn scale(run: &Run, output: &Tensor, config: &QuantizationConfig) -> Result<()> {
    within(run, "scale", op::recipe::compute_scale_from_amax(output, config, run.stream))
}

/// Kind and constants of a normalization.
#[derive(Clone, Copy)]
pub struct Norm {
    pub kind: NVTE_Norm_Type,
    pub epsilon: f32,
    pub zero_centered: bool,
}

impl Norm {
    fn common(&self, run: &Run) -> Result<Common> {
        let (norm, sm_count) = (self.kind, run.context.multiprocessors()?);
        Ok(Common { norm, sm_count, zero_centered: self.zero_centered })
    }

    fn is_layer(&self) -> bool {
        self.kind == NVTE_Norm_Type::LayerNorm
    }

    /// `z = norm(x)`; writes mu (LayerNorm, which also has beta) and rsigma.
    pub fn forward(
        &self,
        run: &Run,
        x: &Tensor,
        (gamma, beta): (&Tensor, Option<&Tensor>),
        z: &Tensor,
        [mu, rsigma]: [&Tensor; 2],
    ) -> Result<()> {
        let beta = beta.map_or(&Buffer::UNSET, |beta| &beta.rowwise);
        let layer = self.is_layer().then_some((beta, &mu.rowwise));
        let (rsigma, epsilon) = (&rsigma.rowwise, self.epsilon);
        let tensors = Forward { x, residual: None, gamma, layer, epsilon, z, rsigma };
        let common = self.common(run)?;
        within(run, "norm", op::normalization::forward(&common, &tensors, None, run.stream))
    }

    /// Gradients; `add` is added to dx. The sums of both over the rows go where `more` says; with them dx is not `add`.
    #[allow(clippy::too_many_arguments)]
    pub fn backward(
        &self,
        run: &Run,
        dz: &Tensor,
        x: &Tensor,
        [mu, rsigma]: [&Tensor; 2],
        gamma: &Tensor,
        add: Option<&Tensor>,
        dx: &Tensor,
        [dgamma, dbeta]: [&Tensor; 2],
        more: [Option<&QTensor>; 2],
    ) -> Result<()> {
        let tensors = Backward {
            dz: &dz.rowwise,
            x,
            add: add.map(|add| &add.rowwise),
            layer: self.is_layer().then_some((&mu.rowwise, &dbeta.rowwise)),
            rsigma: &rsigma.rowwise,
            gamma,
            dx: &dx.rowwise,
            dgamma: &dgamma.rowwise,
            sums: more.map(|sums| sums.map(|sums| &sums.tensor.rowwise)),
        };
        let common = self.common(run)?;
        let result = with_scratch(run, |workspace| {
            op::normalization::backward(&common, &tensors, workspace, run.stream)
        });
        within(run, "norm", result)
    }
}

/// An activation; gated ones read twice the columns.
#[derive(Clone, Copy)]
pub struct Activation {
    pub function: Function,
    /// Constants of the function.
    pub constants: [f32; 3],
    pub gated: bool,
}

impl Activation {
    fn fusion(&self) -> Fusion {
        let [a, b, c] = self.constants;
        Fusion { function: self.function, a, b, c, ..Fusion::NONE }
    }

    /// `config` holds the options of the cast, if the output has scales.
    pub fn forward(
        &self,
        run: &Run,
        input: &Tensor,
        output: &Tensor,
        config: &QuantizationConfig,
    ) -> Result<()> {
        let f = op::activation::Fused { fusion: self.fusion(), config };
        let op = if self.gated { op::activation::gated_forward } else { op::activation::forward };
        within(run, "activation", op(f, input, output, run.stream))
    }

    pub fn backward(
        &self,
        run: &Run,
        grad: &Tensor,
        input: &Tensor,
        output: &Tensor,
        config: &QuantizationConfig,
    ) -> Result<()> {
        let f = op::activation::Fused { fusion: self.fusion(), config };
        let op = if self.gated { op::activation::gated_backward } else { op::activation::backward };
        within(run, "activation", op(f, grad, input, output, run.stream))
    }
}

/// `y = residual + dropout(x)`; writes the mask. x comes after `before` elements of a whole, which has random numbers of
/// its own for each.
#[allow(clippy::too_many_arguments)]
pub fn dropout_add(
    run: &Run,
    x: &Tensor,
    residual: &Tensor,
    y: &Tensor,
    mask: &Tensor,
    (rng_state, before): (&Tensor, usize),
    probability: f32,
) -> Result<()> {
    let added = op::dropout::Added { bias: &Buffer::UNSET, residual };
    let random = (&rng_state.rowwise, before, probability);
    let result = op::dropout::bias_dropout_add(x, &added, y, &mask.rowwise, random, run.stream);
    within(run, "dropout", result)
}

/// `y = add + (y + bias)`, in Float32, rounded once: what the operator of dropout computes if it drops nothing.
pub fn bias_add(run: &Run, y: &Tensor, bias: &Tensor, add: &Tensor) -> Result<()> {
    let added = op::dropout::Added { bias: &bias.rowwise, residual: add };
    let numel = y.rowwise.shape.numel();
    let scratch = run.scratch(16 + numel.div_ceil(8))?;
    let state = scratch.buffer(0, kNVTEInt64, &[2]);
    zero(&state, run.stream)?;
    let mask = scratch.buffer(16, kNVTEByte, &[numel.div_ceil(8)]);
    let random = (&state, 0, 0.0);
    within(run, "bias", op::dropout::bias_dropout_add(y, &added, y, &mask, random, run.stream))
}

/// The gradient of a dropout by its mask.
pub fn dropout_grad(
    run: &Run,
    dy: &Tensor,
    mask: &Tensor,
    dx: &Tensor,
    probability: f32,
) -> Result<()> {
    let (dy, dx) = (("grad_output", dy), ("grad_input", dx));
    let result = op::dropout::dropout(dy, dx, &mask.rowwise, None, probability, run.stream);
    within(run, "dropout", result)
}

/// Writes the state of another part of the caller's sequence of random numbers.
pub fn rng_state(run: &Run, from: &Tensor, state: &Tensor, offset: u32) -> Result<()> {
    let pair: *const i64 = from.rowwise.ptr().cast_const().cast();
    let args = SeedArgs {
        state: state.rowwise.ptr().cast(),
        seed_at: pair,
        offset_at: pair.wrapping_add(1),
        seed: 0,
        offset: offset.into(),
    };
    within(
        run,
        "rng_state",
        op::fused_attn::random::extract_seed_and_offset(&args, true, run.stream),
    )
}

/// Splits a packed tensor into queries, keys and values and turns the first two, or the other way round
/// for gradients, whose amax is raised if the packed tensor has one.
#[derive(Clone, Copy)]
pub struct QkvRope<'a> {
    pub format: NVTE_QKV_Format,
    pub interleaved: bool,
    /// Sequence, batch, groups, elements of a head, and of those the ones that are turned.
    pub sizes: [i32; 5],
    /// Elements of a group.
    pub split: [i32; 3],
    pub frequencies: Option<&'a Tensor>,
    /// Int32 `[batch]`: positions of the first rows; none: 0.
    pub starts: Option<&'a Tensor>,
    /// Where the sequences of packed tokens begin.
    pub cu_seqlens: Option<&'a Tensor>,
    /// The ranks that share each sequence, and the own one of them.
    pub ranks: [i32; 2],
}

impl QkvRope<'_> {
    pub fn run(
        &self,
        run: &Run,
        backward: bool,
        packed: &Tensor,
        parts: [&Tensor; 3],
    ) -> Result<()> {
        let buffer = |tensor: Option<&Tensor>| tensor.map_or(Buffer::UNSET, |t| t.rowwise);
        let frequencies = buffer(self.frequencies);
        let call = op::fused_rope::QkvRope {
            whole: ("qkv", packed),
            names: ["q", "k", "v"],
            parts,
            freqs: [&frequencies; 2],
            start_positions: &buffer(self.starts),
            cu_seqlens: self.cu_seqlens.map(|sums| &sums.rowwise),
            form: self.form(backward),
            split: self.split,
            amax: Some(&packed.amax).filter(|amax| backward && amax.is_set()),
        };
        within(run, "rope", call.run(run.stream))
    }

    fn form(&self, backward: bool) -> op::fused_rope::Form {
        op::fused_rope::Form {
            format: self.format,
            interleaved: self.interleaved,
            backward,
            cp: self.ranks,
            sizes: self.sizes,
        }
    }

    /// Rotates all heads of a tensor in place.
    pub fn turn(&self, run: &Run, backward: bool, heads: usize, x: &Tensor) -> Result<()> {
        let Some(frequencies) = self.frequencies else { return Ok(()) };
        let starts = self.starts.map_or(Buffer::UNSET, |starts| starts.rowwise);
        let mut form = self.form(backward);
        let [length, batch, _, dim, _] = form.sizes;
        form.sizes[2] = heads as i32;
        let stride = |tokens: i32| {
            let stride = heads as i64 * i64::from(dim) * i64::from(tokens);
            i32::try_from(stride).map_err(|_| Error::argument("q", "strides below 2^31", stride))
        };
        let (token, dim) = (stride(1)?, dim);
        let strides = match self.format {
            NVTE_QKV_Format::NVTE_SBHD => [stride(batch)?, token, dim, 1],
            NVTE_QKV_Format::NVTE_BSHD => [token, stride(length)?, dim, 1],
            _ => [token, 0, dim, 1],
        };
        let (tensors, sums) = ([("x", x), ("y", x)], self.cu_seqlens.map(|sums| &sums.rowwise));
        let angles = [&frequencies.rowwise, &starts];
        let result = op::fused_rope::rope(tensors, sums, angles, &form, strides, run.stream);
        within(run, "rope", result)
    }
}

/// Copies new keys and values, which lie in `format`, to a cache.
pub fn copy_to_kv_cache(run: &Run, copy: &ToCache, format: NVTE_QKV_Format) -> Result<()> {
    within(run, "kv_cache", copy_to_cache(copy, format, run.stream))
}

/// Writes `o`, and returns the statistics of its rows.
pub fn attention_forward(
    run: &Run,
    attention: &Attention,
    inputs: Inputs,
    page_table: Option<&Tensor>,
    o: &Tensor,
) -> Result<QTensor> {
    let shape = within(run, "attention", attention.stats_shape(inputs.q))?;
    let lifetime = if run.training { Lifetime::Tape } else { Lifetime::Scratch };
    let mut stats = QTensor::plain(run, (1, shape.numel()), kNVTEFloat32, lifetime)?;
    stats.tensor.rowwise.shape = shape;
    attention_forward_to(run, attention, inputs, page_table, o, &stats.tensor)?;
    Ok(stats)
}

/// Writes `o` and the statistics of its rows.
pub fn attention_forward_to(
    run: &Run,
    attention: &Attention,
    inputs: Inputs,
    page_table: Option<&Tensor>,
    o: &Tensor,
    stats: &Tensor,
) -> Result<()> {
    let page_tables = [page_table; 2];
    let tensors = AttentionForward { inputs, o, page_tables, stats: Some(stats), max: None };
    let result = with_scratch(run, |memory| {
        op::fused_attn::call::forward(attention, &tensors, memory, run.stream)
    });
    within(run, "attention", result)
}

/// Writes the gradients of q, k and v, and of the softmax's offset if `tensors` has one. Returns whether it also gives what
/// more is wanted.
pub fn attention_backward(
    run: &Run,
    attention: &Attention,
    tensors: &AttentionBackward,
) -> Result<bool> {
    let mut more = false;
    let result = with_scratch(run, |memory| {
        more = op::fused_attn::call::backward(attention, tensors, memory, run.stream)?;
        Ok(())
    });
    within(run, "attention", result).map(|()| more)
}

/// Joins the attention of queries to some keys with that to others; see `op::fused_attn::context_parallel::merge`.
pub fn merge_attention(run: &Run, tensors: [&Buffer; 4], tokens: usize, first: bool) -> Result<()> {
    within(run, "merge_attention", merge(tensors, tokens, first, run.stream))
}

/// Lengths of chunks of packed sequences, and where they begin; see `op::fused_attn::context_parallel::chunk_lengths`.
pub(super) fn chunk_lengths(
    run: &Run,
    whole: [&Tensor; 2],
    outputs: [&Buffer; 2],
    chunks: &Chunks,
) -> Result<()> {
    within(run, "chunk_lengths", lengths_of_chunks(whole, outputs, chunks, run.stream))
}

/// Copies the first halves of packed sequences.
pub fn first_halves(run: &Run, whole: &Tensor, starts: &Tensor, halves: &Tensor) -> Result<()> {
    within(run, "first_halves", read_half(whole, starts, halves, 0, run.stream))
}

/// Adds to the first halves of packed sequences.
pub fn add_to_first_halves(
    run: &Run,
    whole: &Tensor,
    starts: &Tensor,
    halves: &Tensor,
) -> Result<()> {
    let ops = (HalfOp::NVTEX_HALF_ADD, HalfOp::NVTEX_HALF_NONE);
    within(run, "add_to_first_halves", grad_correction(whole, halves, starts, ops, run.stream))
}

/// `output[b][a]` = `input[a][b]` for the first two dimensions.
pub fn swap_first_dims(run: &Run, input: &Tensor, output: &Tensor) -> Result<()> {
    let result = op::transpose::swap_first_dims(input, output, run.stream);
    within(run, "swap_first_dims", result)
}

/// Moves packed tokens from the order of `ranks` ranks, which share each sequence, to that of the sequences, or (`to`)
/// the other way round.
pub fn reorder_tokens(
    run: &Run,
    from: &Tensor,
    cu_seqlens: &Tensor,
    output: &Tensor,
    (ranks, to): (usize, bool),
) -> Result<()> {
    let tokens = from.rowwise.shape.dims()[0];
    let map = if to { RowMap::NVTEX_ROWS_TO_RANKS } else { RowMap::NVTEX_ROWS_FROM_RANKS };
    let small = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
    let result = Ranks::new(small(tokens), small(ranks))
        .and_then(|ranks| reorder(from, cu_seqlens, output, ranks, map, run.stream));
    within(run, "reorder_tokens", result)
}

/// The random Hadamard transform of the columns of a matrix, transposed.
pub fn hadamard(run: &Run, input: &Tensor, output: &Tensor, signs: c_int) -> Result<()> {
    let result = op::hadamard_transform::transform(input, output, signs, run.stream);
    within(run, "hadamard_transform", result)
}

/// Rows of tables for tokens and positions.
pub fn embedding_forward(
    run: &Run,
    lookup: &Lookup,
    y: &Tensor,
    rule: &EmbeddingRule,
) -> Result<()> {
    within(run, "embedding", op::embedding::forward(lookup, y, rule, run.stream))
}

/// Gradients of tables.
pub fn embedding_backward(run: &Run, gradients: &Gradients, rule: &EmbeddingRule) -> Result<()> {
    let result =
        with_scratch(run, |memory| op::embedding::backward(gradients, rule, memory, run.stream));
    within(run, "embedding", result)
}

/// The cross entropy of a linear layer, and its gradients.
pub fn linear_cross_entropy(
    run: &Run,
    linear: &Linear,
    losses: &Losses,
    rule: &LossRule,
) -> Result<()> {
    let result = with_scratch(run, |memory| {
        op::cross_entropy::linear(linear, losses, rule, memory, run.stream)
    });
    within(run, "linear_cross_entropy", result)
}

/// What a rank knows of the losses from the logits that it has.
pub fn partial_cross_entropy(
    run: &Run,
    logits: &Tensor,
    targets: &Buffer,
    partials: &Buffer,
    rule: &LossRule,
) -> Result<()> {
    let result = op::cross_entropy::partial(logits, targets, partials, rule, run.stream);
    within(run, "cross_entropy_partial", result)
}

/// Losses, from what all ranks know of them.
pub fn combine_cross_entropy(
    run: &Run,
    partials: &Buffer,
    targets: &Buffer,
    losses: &Losses,
    rule: &LossRule,
) -> Result<()> {
    let result = op::cross_entropy::combine(partials, targets, losses, rule, run.stream);
    within(run, "cross_entropy_combine", result)
}

/// Gradients in the place of logits, from the number of targets and the logsumexp of the losses.
pub fn cross_entropy_grad(
    run: &Run,
    logits: &Tensor,
    targets: &Buffer,
    losses: &Losses,
    grad: &Buffer,
    rule: &LossRule,
) -> Result<()> {
    let numbers = [grad, &losses.count];
    let sums = &losses.logsumexp;
    let result =
        op::cross_entropy::backward(logits, targets, sums, numbers, logits, rule, run.stream);
    within(run, "cross_entropy_backward", result)
}

/// `D = op(B) op(A)`, row-major, with options.
#[derive(Clone, Copy, Default)]
pub struct Gemm<'a> {
    pub transa: bool,
    pub transb: bool,
    /// Adds to what D holds.
    pub accumulate: bool,
    /// Adds this matrix, instead of D.
    pub add: Option<&'a Tensor>,
    /// With `slope`: where the sums of D's columns go.
    pub bias: Option<&'a Tensor>,
    /// D is GELU of the product, or with `gated` SwiGLU, and the derivatives go here. With `slope` they are read, and D
    /// is the product times the derivatives.
    pub slopes: Option<&'a Tensor>,
    pub slope: bool,
    pub gated: bool,
    pub split_accumulator: bool,
}

impl Gemm<'_> {
    pub fn run(&self, run: &Run, a: &Tensor, b: &Tensor, d: &Tensor) -> Result<()> {
        let product = Product {
            a,
            b,
            c: self.add.map(|c| c.rowwise),
            d,
            epilogue: Epilogue {
                bias: ("bias", self.bias.map_or(Buffer::UNSET, |bias| bias.rowwise)),
                aux: ("slopes", self.slopes.map_or(Buffer::UNSET, |x| x.rowwise)),
                grad: self.slope,
            },
            workspace: self.workspace(run, a, b, d)?,
            options: Options {
                transa: self.transa,
                transb: self.transb,
                alpha: 1.0,
                beta: ("beta", f32::from(self.accumulate || self.add.is_some())),
                split_accumulator: ("use_split_accumulator", self.split_accumulator),
                aux: match (self.slopes.is_some(), self.gated) {
                    (false, _) => Aux::Input,
                    (true, false) => Aux::Slope,
                    (true, true) => Aux::GatedSlopes,
                },
                sm_count: ("sm_count", 0),
            },
        };
        within(run, "gemm", product.run(run.stream))
    }

    /// Memory with which the product runs fastest. The context keeps it for the stream.
    fn workspace(&self, run: &Run, a: &Tensor, b: &Tensor, d: &Tensor) -> Result<Buffer> {
        let least = run.context.device()?.product_workspace;
        if least == 0 {
            return Ok(Buffer::UNSET);
        }
        // A product casts MXFP8 and NVFP4 operands to BFloat16 in its workspace.
        let casts = match a.mode {
            NVTEScalingMode::NVTE_MXFP8_1D_SCALING | NVTEScalingMode::NVTE_NVFP4_1D_SCALING => {
                2 * (a.shape("A")?.numel() + b.shape("B")?.numel()) + 1024
            }
            _ => 0,
        };
        // FP8 products with odd numbers of rows come as sums in float32 before a bias is added.
        let odd = a.dtype().is_fp8() && self.bias.is_some() && d.shape("D")?.flatten().0 % 8 != 0;
        let sums = if odd { 4 * d.shape("D")?.numel() + 4096 } else { 0 };
        let bytes = least + casts + sums;
        Ok(run.workspace(bytes)?.buffer(0, kNVTEByte, &[bytes]))
    }
}

/// `dst += src` or `dst = src`, elementwise, also from one dtype to another.
pub fn add(run: &Run, src: &Tensor, dst: &Tensor, accumulate: bool) -> Result<()> {
    if accumulate {
        return within(run, "add", op::multi_tensor::add(src, dst, run.stream));
    }
    let flat = |t: &Tensor| {
        plain(Buffer::new(t.rowwise.ptr(), t.rowwise.dtype, &[t.rowwise.shape.numel()]))
    };
    quantize(run, &flat(src), &flat(dst), &QuantizationConfig::DEFAULT)
}

pub fn zero(buffer: &Buffer, stream: cudaStream_t) -> Result<()> {
    match buffer.bytes() {
        0 => Ok(()),
        bytes => op::transformer_engine::memset(buffer.ptr(), 0, bytes, stream),
    }
}

/// Copies host bytes; they may be reused on return.
pub fn upload<T: Copy>(dst: *mut c_void, src: &[T], stream: cudaStream_t) -> Result<()> {
    let kind = CopyKind::NVTEX_COPY_TO_DEVICE;
    // SAFETY: the slice has these bytes; the block behind `dst` was made for them.
    unsafe { op::nvtex::memcpy(dst, src.as_ptr().cast(), size_of_val(src), kind, stream) }
}

/// Copies to the host and waits for the stream.
pub fn download<T: Copy>(dst: &mut [T], src: *const c_void, stream: cudaStream_t) -> Result<()> {
    let kind = CopyKind::NVTEX_COPY_TO_HOST;
    // SAFETY: the slice has these bytes, and the block behind `src` as many.
    unsafe {
        op::nvtex::memcpy(dst.as_mut_ptr().cast(), src, size_of_val(dst), kind, stream)?;
        op::nvtex::stream_synchronize(stream)
    }
}

pub fn copy(
    dst: *mut c_void,
    src: *const c_void,
    bytes: usize,
    stream: cudaStream_t,
) -> Result<()> {
    // SAFETY: the callers' blocks have these bytes.
    unsafe { op::nvtex::memcpy(dst, src, bytes, CopyKind::NVTEX_COPY_ON_DEVICE, stream) }
}
