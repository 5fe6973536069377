//! Router of a mixture of experts: choice of experts, scores and loss of their balance
//! (spec: moe_layout, sections 2 to 7).

pub(crate) mod cpu;
pub mod exports;

use crate::backend::{self, args::*};
use crate::check::{self, Memory};
use crate::error::{Error, Result};
use crate::op::nvtex;
use crate::tensor::{Buffer, Shape, from_c_enum};
use crate::types::{NVTEDType::*, *};
use NVTEQBHistogramMode::*;
use NVTERoutingMapFormat::*;
use RouterScore::*;
use std::ffi::c_void;
use std::ptr::{null, null_mut};

from_c_enum!(NVTERoutingMapFormat, "an NVTERoutingMapFormat (0 or 1)");
from_c_enum!(NVTEQBHistogramMode, "an NVTEQBHistogramMode (0 or 1)");

const COUNTS: &[NVTEDType] = &[kNVTEInt16, kNVTEInt32, kNVTEInt64, kNVTEBFloat16, kNVTEFloat32];

/// Where the experts of the tokens are written or read.
#[derive(Clone, Copy)]
pub(crate) enum Experts {
    Map(Buffer, NVTERoutingMapFormat),
    Indices(Buffer),
}

const NO_ROUTING: Routing =
    Routing { bytes: null_mut(), bits: null_mut(), indices: null_mut(), index_dtype: kNVTEInt32 };

/// Sizes that a call gives as numbers.
#[derive(Clone, Copy)]
struct Sizes {
    tokens: usize,
    experts: usize,
    topk: usize,
}

impl Sizes {
    fn new(num_tokens: i32, num_experts: i32, topk: i32) -> Result<Self> {
        let tokens = at_least("num_tokens", num_tokens, 0)?;
        let experts = at_least("num_experts", num_experts, 1)?;
        match usize::try_from(topk) {
            Ok(topk) if topk >= 1 && topk <= experts => Ok(Self { tokens, experts, topk }),
            _ => Err(Error::argument("topk", format!("1 to {experts} (num_experts)"), topk)),
        }
    }

    fn all(&self) -> [usize; 2] {
        [self.tokens, self.experts]
    }
}

fn at_least(name: &str, value: i32, least: i32) -> Result<usize> {
    match usize::try_from(value) {
        Ok(size) if value >= least => Ok(size),
        _ => Err(Error::argument(name, format!("{least} or more"), value)),
    }
}

/// Address of a tensor of exactly this shape, to be used as `dtype`. What it declares is another dtype
/// with some callers (maps of bytes come as Byte or as Float8E8M0), but has to have the room.
fn data(name: &str, buffer: &Buffer, dims: &[usize], dtype: NVTEDType) -> Result<*mut c_void> {
    check::shape(name, &buffer.shape, &Shape::new(dims))?;
    check::elements(name, buffer, buffer.shape.numel(), dtype)
}

/// As `data`, of one of the dtypes, which is returned too.
fn typed(
    name: &str,
    buffer: &Buffer,
    dims: &[usize],
    allowed: &[NVTEDType],
) -> Result<(*mut c_void, NVTEDType)> {
    let dtype = buffer.dtype;
    check::dtype(name, dtype, allowed)?;
    Ok((data(name, buffer, dims, dtype)?, dtype))
}

fn routing(experts: &Experts, sizes: &Sizes) -> Result<Routing> {
    let map = |buffer, dims: &[usize]| -> Result<*mut u8> {
        Ok(data("routing_map", buffer, dims, kNVTEByte)?.cast())
    };
    match experts {
        Experts::Map(buffer, NVTE_ROUTING_MAP_FORMAT_BYTEMAP) => {
            Ok(Routing { bytes: map(buffer, &sizes.all())?, ..NO_ROUTING })
        }
        Experts::Map(buffer, NVTE_ROUTING_MAP_FORMAT_BITMAP_U8) => {
            let bits = map(buffer, &[sizes.tokens, sizes.experts.div_ceil(8)])?;
            Ok(Routing { bits, ..NO_ROUTING })
        }
        Experts::Indices(buffer) => {
            let dims = [sizes.tokens, sizes.topk];
            let dtypes = [kNVTEInt16, kNVTEInt32, kNVTEInt64];
            let (indices, index_dtype) = typed("topk_indices", buffer, &dims, &dtypes)?;
            if index_dtype == kNVTEInt16 && sizes.experts > 0x7FFF {
                let expected = format!("Int32 or Int64 ({} experts)", sizes.experts);
                return Err(Error::argument("topk_indices.dtype", expected, index_dtype));
            }
            Ok(Routing { indices, index_dtype, ..NO_ROUTING })
        }
    }
}

fn score(score_function: i32) -> Result<RouterScore> {
    match score_function {
        0 => Ok(NVTEX_ROUTER_SIGMOID),
        1 => Ok(NVTEX_ROUTER_SOFTMAX),
        2 => Ok(NVTEX_ROUTER_SQRTSOFTPLUS),
        _ => {
            let expected = "0 (sigmoid), 1 (softmax) or 2 (sqrtsoftplus)";
            Err(Error::argument("score_function", expected, score_function))
        }
    }
}

/// Numbers of a forward.
#[derive(Clone, Copy)]
pub(crate) struct Rule {
    pub num_tokens: i32,
    pub num_experts: i32,
    pub topk: i32,
    pub use_pre_softmax: i32,
    pub num_groups: i32,
    pub group_topk: i32,
    pub scaling_factor: f32,
    pub score_function: i32,
}

impl Rule {
    /// A rule without groups and without a scaling factor.
    fn new([num_tokens, num_experts, topk]: [i32; 3], score_function: i32) -> Self {
        Self {
            num_tokens,
            num_experts,
            topk,
            use_pre_softmax: 0,
            num_groups: 0,
            group_topk: 0,
            scaling_factor: 1.0,
            score_function,
        }
    }
}

/// Tensors of a forward.
#[derive(Clone, Copy)]
pub(crate) struct Tensors {
    pub logits: Buffer,
    pub expert_bias: Buffer,
    pub probs: Buffer,
    pub experts: Experts,
    pub intermediate: Buffer,
}

/// `num_groups` and `group_topk`, zeros for none.
fn groups(rule: &Rule, sizes: &Sizes) -> Result<(usize, usize)> {
    if rule.group_topk <= 0 {
        return Ok((0, 0));
    }
    let (experts, topk, chosen) = (sizes.experts, sizes.topk, rule.group_topk as usize);
    let groups = at_least("num_groups", rule.num_groups, 1)?;
    if !experts.is_multiple_of(groups) {
        let expected = format!("a divisor of num_experts, {experts}");
        return Err(Error::argument("num_groups", expected, groups));
    }
    let of_each = experts / groups;
    if chosen > groups || !topk.is_multiple_of(chosen) || topk / chosen > of_each {
        let expected = format!(
            "a divisor of topk, {topk}, that is at most num_groups, {groups}, and leaves at most {of_each} \
             experts for each group"
        );
        return Err(Error::argument("group_topk", expected, chosen));
    }
    Ok((groups, chosen))
}

fn forward_args(rule: &Rule, tensors: &Tensors) -> Result<RouterForwardArgs> {
    let sizes = Sizes::new(rule.num_tokens, rule.num_experts, rule.topk)?;
    let score = score(rule.score_function)?;
    let (groups, group_topk) = groups(rule, &sizes)?;
    let (logits, dtype) = typed("logits", &tensors.logits, &sizes.all(), check::HIGH_PRECISION)?;
    let bias = &tensors.expert_bias;
    let (expert_bias, bias_dtype) = match bias.is_set() && score != NVTEX_ROUTER_SOFTMAX {
        true => typed("expert_bias", bias, &[sizes.experts], check::HIGH_PRECISION)?,
        false => (null_mut(), dtype),
    };
    Ok(RouterForwardArgs {
        logits,
        expert_bias,
        probs: data("probs", &tensors.probs, &sizes.all(), dtype)?,
        routing: routing(&tensors.experts, &sizes)?,
        intermediate: floats("intermediate_output", &tensors.intermediate, &sizes.all())?,
        cutoff: null_mut(),
        tokens: sizes.tokens,
        experts: sizes.experts,
        topk: sizes.topk,
        groups,
        group_topk,
        scaling_factor: rule.scaling_factor,
        score,
        pre_softmax: score == NVTEX_ROUTER_SOFTMAX && rule.use_pre_softmax != 0,
        all: false,
        dtype,
        probs_dtype: dtype,
        bias_dtype,
    })
}

/// A tensor that is written or read as float32.
fn floats(name: &str, buffer: &Buffer, dims: &[usize]) -> Result<*mut f32> {
    Ok(data(name, buffer, dims, kNVTEFloat32)?.cast())
}

/// Scores of all experts, or their gradients, and their dtype: Float32, or that of the logits, in which
/// the extension for JAX declares and allocates them.
fn all_scores(
    name: &str,
    buffer: &Buffer,
    dims: &[usize],
    logits_dtype: NVTEDType,
) -> Result<(*mut c_void, NVTEDType)> {
    let dtype = if buffer.dtype == logits_dtype { logits_dtype } else { kNVTEFloat32 };
    Ok((data(name, buffer, dims, dtype)?, dtype))
}

/// The map or the indices of `sizes`, of which one is there.
fn routing_memory(
    routing: &Routing,
    tokens: usize,
    experts: usize,
    topk: usize,
) -> Memory<'static> {
    let Routing { bytes, bits, indices, index_dtype } = *routing;
    if !bytes.is_null() {
        return Memory::new(&"routing_map.data", bytes, tokens * experts);
    }
    if !bits.is_null() {
        return Memory::new(&"routing_map.data", bits, tokens * experts.div_ceil(8));
    }
    Memory::new(&"topk_indices.data", indices, tokens * topk * index_dtype.bits() / 8)
}

/// Runs a forward whose tensors do not overlap; `probs` is what its output is called.
fn run_forward(args: &RouterForwardArgs, probs: &str, stream: cudaStream_t) -> Result<()> {
    forward_apart(args, probs)?;
    if args.tokens > 0 { backend::run(args, stream) } else { Ok(()) }
}

fn forward_apart(args: &RouterForwardArgs, probs: &str) -> Result<()> {
    let &RouterForwardArgs { tokens, experts, topk, dtype, bias_dtype, probs_dtype, .. } = args;
    let (numel, size) = (tokens * experts, dtype.bits() / 8);
    let inputs = [
        Memory::new(&"logits.data", args.logits, numel * size),
        Memory::new(&"expert_bias.data", args.expert_bias, experts * bias_dtype.bits() / 8),
    ];
    let outputs = [
        Memory::new(&probs, args.probs, numel * probs_dtype.bits() / 8),
        routing_memory(&args.routing, tokens, experts, topk),
        Memory::new(&"intermediate_output.data", args.intermediate, numel * 4),
        Memory::new(&"cutoff.data", args.cutoff, tokens * 4),
    ];
    check::apart(&inputs, &outputs)
}

/// Runs a backward whose tensors do not overlap; `grad` is what its input is called.
fn run_backward(args: &RouterBackwardArgs, grad: &str, stream: cudaStream_t) -> Result<()> {
    let &RouterBackwardArgs { tokens, experts, topk, dtype, grad_dtype, .. } = args;
    let (numel, size) = (tokens * experts, dtype.bits() / 8);
    let inputs = [
        routing_memory(&args.routing, tokens, experts, topk),
        Memory::new(&"intermediate_output.data", args.intermediate, numel * 4),
        Memory::new(&grad, args.grad, numel * grad_dtype.bits() / 8),
    ];
    let output = Memory::new(&"grad_logits.data", args.grad_logits, numel * size);
    check::apart(&inputs, &[output])?;
    if tokens > 0 { backend::run(args, stream) } else { Ok(()) }
}

pub(crate) fn forward(rule: &Rule, tensors: &Tensors, stream: cudaStream_t) -> Result<()> {
    run_forward(&forward_args(rule, tensors)?, "probs.data", stream)
}

/// What quantile balancing adds to a forward.
#[derive(Clone, Copy)]
struct Balance {
    cutoff: Buffer,
    histogram: Buffer,
    bin_bounds: Buffer,
    mode: NVTEQBHistogramMode,
    checked: bool,
}

fn forward_balanced(
    rule: &Rule,
    tensors: &Tensors,
    balance: &Balance,
    stream: cudaStream_t,
) -> Result<()> {
    let args = forward_args(rule, tensors)?;
    let (tokens, experts) = (args.tokens, args.experts);
    if args.topk >= experts {
        let expected = format!("less than num_experts, {experts}");
        return Err(Error::argument("topk", expected, args.topk));
    }
    let bias = &tensors.expert_bias;
    if !bias.is_set() {
        return Err(Error::argument("expert_bias.data", "row-wise data", "no data"));
    }
    check::dtype("expert_bias", bias.dtype, &[kNVTEFloat32])?;
    let (cutoff, _) = typed("cutoff", &balance.cutoff, &[tokens], &[kNVTEFloat32])?;
    let histogram = histogram_args(args.intermediate, (tokens, experts), cutoff.cast(), balance)?;
    if balance.checked {
        check_bounds(histogram.bin_bounds, stream)?;
    }
    let args = RouterForwardArgs { cutoff: cutoff.cast(), ..args };
    forward_apart(&args, "probs.data")?;
    if tokens == 0 {
        return Ok(());
    }
    backend::run(&args, stream)?;
    match balance.mode {
        NVTE_QB_HISTOGRAM_TWO_KERNEL => Ok(()),
        NVTE_QB_HISTOGRAM_FUSED_ATOMIC => backend::run(&histogram, stream),
    }
}

fn histogram_args(
    scores: *const f32,
    (tokens, experts): (usize, usize),
    cutoff: *const f32,
    balance: &Balance,
) -> Result<RouterHistogramArgs> {
    let shape = balance.histogram.shape;
    let bins = match *shape.dims() {
        [first, bins] if first == experts && bins > 0 => bins,
        _ => {
            let expected = format!("[{experts}, bins]");
            return Err(Error::argument("histogram.shape", expected, shape));
        }
    };
    let (histogram, _) = typed("histogram", &balance.histogram, &[experts, bins], &[kNVTEInt32])?;
    let (bin_bounds, _) = typed("bin_bounds", &balance.bin_bounds, &[2], &[kNVTEFloat32])?;
    let inputs = [
        Memory::new(&"the scores", scores, tokens * experts * 4),
        Memory::new(&"cutoff.data", cutoff, tokens * 4),
        Memory::new(&"bin_bounds.data", bin_bounds, 8),
    ];
    let output = Memory::new(&"histogram.data", histogram, experts * bins * 4);
    check::apart(&inputs, &[output])?;
    Ok(RouterHistogramArgs {
        scores,
        cutoff,
        bin_bounds: bin_bounds.cast_const().cast(),
        histogram: histogram.cast(),
        tokens,
        experts,
        bins,
    })
}

/// Copies the bounds to the host, which waits for the stream.
fn check_bounds(bin_bounds: *const f32, stream: cudaStream_t) -> Result<()> {
    let mut bounds = [0.0f32; 2];
    // SAFETY: the device has two floats there, as has the host.
    #[allow(unsafe_code)]
    unsafe {
        let host = bounds.as_mut_ptr().cast();
        nvtex::memcpy(host, bin_bounds.cast(), 8, CopyKind::NVTEX_COPY_TO_HOST, stream)?;
        nvtex::stream_synchronize(stream)?;
    }
    let [lower, upper] = bounds;
    if lower.is_finite() && upper.is_finite() && lower < upper {
        return Ok(());
    }
    Err(Error::argument("bin_bounds", "finite with lower < upper", format!("{lower}, {upper}")))
}

fn accumulate(raw_scores: &Buffer, balance: &Balance, stream: cudaStream_t) -> Result<()> {
    let shape = raw_scores.shape;
    let &[tokens, experts] = shape.dims() else {
        return Err(Error::argument("raw_scores.shape", "2 dimensions", shape));
    };
    let (scores, _) = typed("raw_scores", raw_scores, &[tokens, experts], &[kNVTEFloat32])?;
    let (cutoff, _) = typed("cutoff", &balance.cutoff, &[tokens], &[kNVTEFloat32])?;
    let args = histogram_args(scores.cast(), (tokens, experts), cutoff.cast(), balance)?;
    if balance.checked {
        check_bounds(args.bin_bounds, stream)?;
    }
    if tokens * experts > 0 { backend::run(&args, stream) } else { Ok(()) }
}

pub(crate) fn backward(
    rule: &Rule,
    experts: &Experts,
    [intermediate, grad_probs, grad_logits]: [&Buffer; 3],
    stream: cudaStream_t,
) -> Result<()> {
    let sizes = Sizes::new(rule.num_tokens, rule.num_experts, rule.topk)?;
    let score = score(rule.score_function)?;
    let (output, dtype) = typed("grad_logits", grad_logits, &sizes.all(), check::HIGH_PRECISION)?;
    let args = RouterBackwardArgs {
        routing: routing(experts, &sizes)?,
        intermediate: floats("intermediate_output", intermediate, &sizes.all())?,
        grad: data("grad_probs", grad_probs, &sizes.all(), dtype)?,
        grad_logits: output,
        tokens: sizes.tokens,
        experts: sizes.experts,
        topk: sizes.topk,
        scaling_factor: rule.scaling_factor,
        score,
        pre_softmax: score == NVTEX_ROUTER_SOFTMAX && rule.use_pre_softmax != 0,
        all: false,
        dtype,
        grad_dtype: dtype,
    };
    run_backward(&args, "grad_probs.data", stream)
}

/// Scores of all experts, with the map of the best.
pub(crate) fn scores(rule: &Rule, tensors: &Tensors, stream: cudaStream_t) -> Result<()> {
    let sizes = Sizes::new(rule.num_tokens, rule.num_experts, rule.topk)?;
    let score = score(rule.score_function)?;
    let (logits, dtype) = typed("logits", &tensors.logits, &sizes.all(), check::HIGH_PRECISION)?;
    let (probs, probs_dtype) = all_scores("scores", &tensors.probs, &sizes.all(), dtype)?;
    let args = RouterForwardArgs {
        logits,
        expert_bias: null(),
        probs,
        routing: routing(&tensors.experts, &sizes)?,
        intermediate: floats("intermediate_output", &tensors.intermediate, &sizes.all())?,
        cutoff: null_mut(),
        tokens: sizes.tokens,
        experts: sizes.experts,
        topk: sizes.topk,
        groups: 0,
        group_topk: 0,
        scaling_factor: 1.0,
        score,
        pre_softmax: score == NVTEX_ROUTER_SOFTMAX,
        all: true,
        dtype,
        probs_dtype,
        bias_dtype: dtype,
    };
    run_forward(&args, "scores.data", stream)
}

pub(crate) fn scores_backward(
    rule: &Rule,
    [intermediate, grad_scores, grad_logits]: [&Buffer; 3],
    stream: cudaStream_t,
) -> Result<()> {
    let tokens = at_least("num_tokens", rule.num_tokens, 0)?;
    let experts = at_least("num_experts", rule.num_experts, 1)?;
    let score = score(rule.score_function)?;
    let dims = [tokens, experts];
    let (output, dtype) = typed("grad_logits", grad_logits, &dims, check::HIGH_PRECISION)?;
    let (grad, grad_dtype) = all_scores("grad_scores", grad_scores, &dims, dtype)?;
    let args = RouterBackwardArgs {
        routing: NO_ROUTING,
        intermediate: floats("intermediate_output", intermediate, &dims)?,
        grad,
        grad_logits: output,
        tokens,
        experts,
        topk: experts,
        scaling_factor: 1.0,
        score,
        pre_softmax: score == NVTEX_ROUTER_SOFTMAX,
        all: true,
        dtype,
        grad_dtype,
    };
    run_backward(&args, "grad_scores.data", stream)
}

/// Tokens of the batch, as a number or on the device.
pub(crate) enum Total {
    Number(i32),
    Device(Buffer),
}

/// Numbers of the loss.
pub(crate) struct LossRule {
    pub num_experts: i32,
    pub num_rows: i32,
    pub num_cols: i32,
    pub topk: i32,
    pub coeff: f32,
}

pub(crate) fn aux_loss(
    rule: &LossRule,
    [probs, tokens_per_expert]: [&Buffer; 2],
    total: &Total,
    [loss, constants]: [&Buffer; 2],
    stream: cudaStream_t,
) -> Result<()> {
    let rows = at_least("num_rows", rule.num_rows, 0)?;
    let experts = at_least("num_experts", rule.num_experts, 1)?;
    let cols = at_least("num_cols", rule.num_cols, 1)?;
    if !cols.is_multiple_of(experts) {
        let expected = format!("a multiple of num_experts, {experts}");
        return Err(Error::argument("num_cols", expected, cols));
    }
    let (probs, dtype) = typed("probs", probs, &[rows, cols], check::HIGH_PRECISION)?;
    let (counts, counts_dtype) = typed("tokens_per_expert", tokens_per_expert, &[cols], COUNTS)?;
    let (device_total, total_tokens) = match total {
        Total::Number(total) => (null(), *total as f32),
        Total::Device(buffer) => {
            check::dtype("total_num_tokens", buffer.dtype, &[kNVTEInt64])?;
            if buffer.shape.numel() != 1 {
                let name = "total_num_tokens.shape";
                return Err(Error::argument(name, "one element", buffer.shape));
            }
            (check::pointer("total_num_tokens.data", buffer)?.cast_const().cast(), 0.0)
        }
    };
    let args = AuxLossArgs {
        probs,
        counts,
        device_total,
        total_tokens,
        experts: rule.num_experts as f32,
        topk: rule.topk as f32,
        coeff: rule.coeff,
        rows,
        cols,
        loss: check::elements("aux_loss", loss, 1, dtype)?,
        constants: check::elements("Const_buf", constants, 2, kNVTEFloat32)?.cast(),
        dtype,
        counts_dtype,
    };
    let inputs = [
        Memory::new(&"probs.data", args.probs, rows * cols * dtype.bits() / 8),
        Memory::new(&"tokens_per_expert.data", args.counts, cols * counts_dtype.bits() / 8),
        Memory::new(&"total_num_tokens.data", args.device_total, 8),
    ];
    let outputs = [
        Memory::new(&"aux_loss.data", args.loss, dtype.bits() / 8),
        Memory::new(&"Const_buf.data", args.constants, 8),
    ];
    check::apart(&inputs, &outputs)?;
    backend::run(&args, stream)
}

pub(crate) fn aux_loss_backward(
    (num_rows, num_cols): (i32, i32),
    [constants, tokens_per_expert]: [&Buffer; 2],
    [grad_loss, grad_probs]: [&Buffer; 2],
    stream: cudaStream_t,
) -> Result<()> {
    let rows = at_least("num_rows", num_rows, 0)?;
    let cols = at_least("num_cols", num_cols, 1)?;
    let (counts, counts_dtype) = typed("tokens_per_expert", tokens_per_expert, &[cols], COUNTS)?;
    let dtype = grad_loss.dtype;
    check::high_precision("grad_aux_loss", dtype)?;
    let args = AuxLossBackwardArgs {
        constants: check::elements("Const_buf", constants, 1, kNVTEFloat32)?.cast_const().cast(),
        counts,
        grad_loss: check::elements("grad_aux_loss", grad_loss, 1, dtype)?,
        grad_probs: data("grad_probs", grad_probs, &[rows, cols], dtype)?,
        rows,
        cols,
        dtype,
        counts_dtype,
    };
    let inputs = [
        Memory::new(&"Const_buf.data", args.constants, 4),
        Memory::new(&"tokens_per_expert.data", args.counts, cols * counts_dtype.bits() / 8),
        Memory::new(&"grad_aux_loss.data", args.grad_loss, dtype.bits() / 8),
    ];
    let numel = rows * cols;
    let output = Memory::new(&"grad_probs.data", args.grad_probs, numel * dtype.bits() / 8);
    check::apart(&inputs, &[output])?;
    if rows > 0 { backend::run(&args, stream) } else { Ok(()) }
}

/// The probabilities of the chosen experts `[tokens, topk]` from those of all `[tokens, experts]`, or (`backward`) the
/// gradients of all from those of the chosen; in Float32.
pub(crate) fn weights(
    [probs, weights, indices]: [&Buffer; 3],
    backward: bool,
    stream: cudaStream_t,
) -> Result<()> {
    let (tokens, experts) = probs.shape.flatten();
    let topk = indices.shape.flatten().1;
    let args = RouterWeightsArgs {
        probs: floats("probs", probs, &[tokens, experts])?,
        weights: floats("weights", weights, &[tokens, topk])?,
        indices: data("topk_indices", indices, &[tokens, topk], kNVTEInt32)?.cast_const().cast(),
        tokens,
        experts,
        topk,
        backward,
    };
    if tokens > 0 { backend::run(&args, stream) } else { Ok(()) }
}

/// `terms[t] = factor * l^2` with the logarithm l of the sum of the exponentials of a row of logits.
pub(crate) fn z_loss(
    logits: &Buffer,
    terms: &Buffer,
    factor: f32,
    stream: cudaStream_t,
) -> Result<()> {
    let (tokens, experts) = logits.shape.flatten();
    let args = RouterZLossArgs {
        logits: floats("logits", logits, &[tokens, experts])?,
        terms: floats("terms", terms, &[tokens])?,
        grad_logits: null_mut(),
        grad_loss: null(),
        tokens,
        experts,
        factor,
    };
    if tokens > 0 { backend::run(&args, stream) } else { Ok(()) }
}

/// Adds the gradients of the sum of [`z_loss`], times one float on the device.
pub(crate) fn z_loss_backward(
    [logits, grad_loss, grad_logits]: [&Buffer; 3],
    factor: f32,
    stream: cudaStream_t,
) -> Result<()> {
    let (tokens, experts) = logits.shape.flatten();
    let args = RouterZLossArgs {
        logits: floats("logits", logits, &[tokens, experts])?,
        terms: null_mut(),
        grad_logits: floats("grad_logits", grad_logits, &[tokens, experts])?,
        grad_loss: check::elements("grad_loss", grad_loss, 1, kNVTEFloat32)?.cast_const().cast(),
        tokens,
        experts,
        factor,
    };
    if tokens > 0 { backend::run(&args, stream) } else { Ok(()) }
}
