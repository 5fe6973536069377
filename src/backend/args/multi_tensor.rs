//! Operators on lists of tensors.

use super::operator::{operator, size};
use crate::types::NVTEDType;
use std::ffi::c_void;

/// One of the tensors in a list. What each `data` is, the operator says.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MultiTensor {
    pub data: [*mut c_void; 8],
    /// Elements of each buffer; not 0 unless the operator says so.
    pub numel: usize,
}

/// What holds the parameters of an [`AdamArgs`] in float32.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdamMaster {
    /// Nothing: `data[1]` is read and written.
    NVTEX_ADAM_NO_MASTER = 0,
    /// `data[4]`, of F32: `data[1]` is only written, from the new master.
    NVTEX_ADAM_FLOAT_MASTER = 1,
    /// `data[1]`, of BF16, and `data[4]`, of Int16: the remainder is the low half of the master's bits,
    /// the parameter the high half, plus 1 if the remainder is negative.
    NVTEX_ADAM_REMAINDER = 2,
}

/// One step of Adam on many tensors, in this order of operations, each rounded to float32:
///
/// `g *= inv_scale` or `g *= grad_scale`; if `l2`, `g += weight_decay * p`;
/// `m = beta1 * m + (1 - beta1) * g`; `v = beta2 * v + ((1 - beta2) * g) * g`;
/// `u = (m * (1 / bias1)) / (sqrt(v * (1 / bias2)) + epsilon)`; unless `l2`, `u += weight_decay * p`;
/// `p = p - lr * u`.
///
/// Data of a tensor: gradient g, parameter p, moments m and v, master (see [`AdamMaster`]). FP8
/// parameters have a float master and three floats: scale, amax and scale_inv, or null each. Then
/// `data[1] = cast(p * scale)` (1 without a scale), `amax = max(amax, max|p|)` by the integer maximum of
/// the bits, NaN ignored, and `scale_inv = 1 / scale`.
///
/// Moments of E4M3 are m and the square root of v in blocks of 128 elements. A code x of a block with scale s stands
/// for `s x`; `data[5]` has the scales of m and `data[6]` those of the roots, F32, one for each block. After a step the
/// scale is the least power of two, at least 2^-126, for which the largest magnitude of the block over it is at most
/// 448; one that is not finite gets the code NaN. Magnitudes are rounded stochastically, up if the bits that have no
/// place are above a random number; a root above 0 keeps a code above 0. Philox 4x32-7 with the key 0 and the counter
/// `block + 2^64 (lane + 2^32 step)` has the numbers of the elements `lane + 32 j` of a block, j < 4, in word j: its low
/// half is that of m, its high half that of the root, each followed by a 1 and zeros. `device_step` is not null then,
/// `inv_scale` is, and parameters are not FP8.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AdamArgs {
    /// Host array.
    pub tensors: *const MultiTensor,
    pub num_tensors: usize,
    pub lr: f32,
    pub beta1: f32,
    pub beta2: f32,
    pub epsilon: f32,
    pub weight_decay: f32,
    pub bias1: f32,
    pub bias2: f32,
    /// On the device, or null: instead of `lr`.
    pub device_lr: *const f32,
    /// On the device, or null: `bias1 = 1 - beta1^step`, `bias2 = 1 - beta2^step` instead, as
    /// `bias_correction` computes them.
    pub device_step: *const i32,
    /// On the device, or null for 1; if there is one, the scaled gradient is also stored.
    pub inv_scale: *const f32,
    /// Null, or a flag that forbids everything if it is 1.
    pub noop: *const i32,
    pub l2: bool,
    pub master: AdamMaster,
    /// F32, F16 or BF16.
    pub grad_dtype: NVTEDType,
    /// F32, F16, BF16, E4M3 or E5M2.
    pub param_dtype: NVTEDType,
    /// F32, BF16 or E4M3; F32 if the parameters are FP8.
    pub moment_dtype: NVTEDType,
    /// On the device, or null for 1: `g *= grad_scale`, without storing the gradient. Null beside `inv_scale`.
    pub grad_scale: *const f32,
}

operator! {
    adam(AdamArgs) version 1 minor 2; |a|
    variants match (a.param_dtype.is_fp8(), a.moment_dtype.is_fp8()) {
        (true, _) => 3,
        (_, true) => 4,
        _ => a.master as u32,
    } => [plain, master, remainder, fp8, fp8_moments];
    dtypes a.grad_dtype, a.param_dtype, a.moment_dtype;
    features {
        DEVICE_LR = a.device_lr,
        DEVICE_STEP = a.device_step,
        INV_SCALE = a.inv_scale,
        NOOP = a.noop,
        L2 = a.l2,
        GRAD_SCALE = a.grad_scale,
    }
}

impl AdamArgs {
    /// Elements of a block of moments in E4M3, which have one scale.
    pub const MOMENT_BLOCK: usize = 128;

    /// `1 - beta^step` in float64, by repeated squaring from the lowest bit of the step on, rounded to
    /// float32; 0 for steps below 1.
    pub fn bias_correction(beta: f32, step: i32) -> f32 {
        let (mut power, mut square, mut bits) = (1.0, f64::from(beta), step.max(0));
        while bits > 0 {
            if bits & 1 == 1 {
                power *= square;
            }
            square *= square;
            bits >>= 1;
        }
        (1.0 - power) as f32
    }
}

/// One step of gradient descent on many tensors, in this order of operations, each rounded to float32:
///
/// `g *= grad_scale`; `g *= scale`; `g += weight_decay * w` unless `decay_after_momentum`; with a momentum that is not 0,
/// `b = g` in the first run, else `b = b * momentum + (1 - dampening) * g`, then
/// `g = g + momentum * b` if `nesterov`, else `g = b`; `g += weight_decay * w` if
/// `decay_after_momentum`; `d = -lr * g`, rounded to the dtype of the weights; `w = w + d`.
/// Decay of 0 adds nothing. Data of a tensor: gradient, weight w, momentum b, copy of the new weight or
/// null. Without momentum b is not touched.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SgdArgs {
    /// Host array.
    pub tensors: *const MultiTensor,
    pub num_tensors: usize,
    pub lr: f32,
    pub momentum: f32,
    pub dampening: f32,
    pub weight_decay: f32,
    pub scale: f32,
    pub nesterov: bool,
    pub first_run: bool,
    pub decay_after_momentum: bool,
    /// A flag that forbids everything unless it is 0.
    pub noop: *const i32,
    /// F32, F16 or BF16.
    pub grad_dtype: NVTEDType,
    /// F32, F16 or BF16, of weights and momentum.
    pub weight_dtype: NVTEDType,
    /// F16 or BF16 beside F32 weights, of all copies.
    pub copy_dtype: NVTEDType,
    /// On the device, or null: instead of `lr`.
    pub device_lr: *const f32,
    /// On the device, or null for 1: the gradient is multiplied by it before `scale`.
    pub grad_scale: *const f32,
}

operator! {
    sgd(SgdArgs) version 1 minor 1; |a|
    dtypes a.grad_dtype, a.weight_dtype;
    features {
        MOMENTUM = a.momentum != 0.0,
        NESTEROV = a.nesterov,
        DEVICE_LR = a.device_lr,
        GRAD_SCALE = a.grad_scale,
    }
}

/// `norm = sqrt(sum (x * inv_scale)^2)` over the elements of all tensors, squared and summed in float32 or
/// better, in a fixed order. Data of a tensor: x. Tensors may be empty; there may be none.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct L2NormArgs {
    /// Host array.
    pub tensors: *const MultiTensor,
    pub num_tensors: usize,
    /// On the device, or null for 1.
    pub inv_scale: *const f32,
    pub norm: *mut f32,
    /// The norm of each tensor, or null.
    pub tensor_norms: *mut f32,
    /// Workspace of `partials` floats.
    pub workspace: *mut f32,
    pub partials: usize,
    /// With `tensor_norms`: workspace of `num_tensors * chunks` floats, `ceil(numel / chunk) <= chunks`.
    pub tensor_workspace: *mut f32,
    pub chunks: usize,
    pub chunk: usize,
    /// Set to 1 if the sum of some part is not finite.
    pub non_finite: *mut i32,
    /// F32, F16 or BF16.
    pub dtype: NVTEDType,
}

operator! {
    l2_norm(L2NormArgs) version 1 minor 0; |a|
    dtypes a.dtype;
    features { INV_SCALE = a.inv_scale, TENSOR_NORMS = a.tensor_norms }
}

/// `y = cast(x * scale)` of many tensors. Data of a tensor: x, y, which may be the same.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ScaleTensorsArgs {
    /// Host array.
    pub tensors: *const MultiTensor,
    pub num_tensors: usize,
    pub scale: f32,
    /// On the device, or null: instead of `scale`.
    pub device_scale: *const f32,
    /// Set to 1 if some x is not finite.
    pub non_finite: *mut i32,
    /// F32, F16 or BF16.
    pub input_dtype: NVTEDType,
    pub output_dtype: NVTEDType,
}

operator! {
    scale_tensors(ScaleTensorsArgs) version 1 minor 0; |a|
    dtypes a.input_dtype, a.output_dtype;
    features { DEVICE_SCALE = a.device_scale }
}

/// Scales of many tensors from their amax.
///
/// Floats: amax, scale, scale_inv, as [`ScaleFromAmaxArgs`] defines them. E8M0: a BF16 amax and the code
/// of `amax / 448`, rounded up to a power of two: 0xff for NaN, at most 0xfe otherwise.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ScalesFromAmaxArgs {
    /// Host array.
    pub tensors: *const MultiTensor,
    pub num_tensors: usize,
    pub fp8_max: f32,
    pub epsilon: f32,
    pub pow2: bool,
    pub e8m0: bool,
}

operator! {
    scales_from_amax(ScalesFromAmaxArgs) version 1 minor 0; |a|
    variants u32::from(a.e8m0) => [floats, e8m0];
    features { POW2 = a.pow2 }
}

/// `dst = cast(dst + (0 + src))`, elementwise in float32. The sum begins with 0 as that of a product, so that
/// -0 and -0 make 0.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AddArgs {
    pub src: *const c_void,
    pub dst: *mut c_void,
    /// At least 1.
    pub numel: usize,
    /// F32, F16 or BF16.
    pub src_dtype: NVTEDType,
    /// F32, F16 or BF16.
    pub dst_dtype: NVTEDType,
}

operator! {
    add(AddArgs) version 1 minor 0; |a|
    dtypes a.src_dtype, a.dst_dtype;
    bytes size(a.numel, a.src_dtype) + 2 * size(a.numel, a.dst_dtype);
}

/// How the learning rate follows from the number of steps s before this one, of which there are W with warm-up and T
/// in all: `base * (s + 1) / (W + 1)` while s < W, then by the fraction `p = min(1, (s - W) / (T - W))`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateRule {
    /// `base`
    NVTEX_RATE_CONSTANT = 0,
    /// `base * (1 - (1 - last) * p)`
    NVTEX_RATE_LINEAR = 1,
    /// `base * (last + (1 - last) * (1 + cos(pi * p)) / 2)`
    NVTEX_RATE_COSINE = 2,
}

/// The numbers of an optimizer that change from step to step, on the device.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepNumbers {
    /// Steps that have changed the parameters.
    pub step: i32,
    /// 1 if the newest step changes nothing, because its gradients are not finite.
    pub skip: i32,
    /// Steps that have changed nothing.
    pub skipped: i32,
    /// Steps since the loss scale has changed or a step was skipped.
    pub good_steps: i32,
    /// Set to 1 by norms that are not finite; 0 after each step.
    pub non_finite: i32,
    /// The largest learning rate, from which the schedule computes that of a step.
    pub base_rate: f32,
    /// The learning rate of the newest step.
    pub rate: f32,
    /// What the loss is multiplied by.
    pub loss_scale: f32,
    /// What the gradients of the newest step are multiplied by.
    pub grad_scale: f32,
    /// The norm of the gradients of the newest step without the loss scale and before clipping; 0 without norms.
    pub norm: f32,
}

/// The numbers of the next step, in float32 if nothing else is said:
///
/// `unscale = factor / loss_scale`; `norm = sqrt(sum norms^2) * unscale` (the root in float64);
/// `grad_scale = unscale * min(1, max_norm / (norm + 1e-6))`, without the minimum if `max_norm` is 0;
/// `skip = non_finite`, or 1 if the norm is not finite; `non_finite = 0`. A skipped step counts as `skipped`, and
/// `loss_scale = max(least_scale, loss_scale * backoff)` with 0 good steps. Another one counts as a step and a good
/// step; the `growth_interval`-th good step sets `loss_scale = min(most_scale, loss_scale * growth)`, with 0 good
/// steps. With an interval of 0 the loss scale stays. `rate` by the schedule in float64, and `rates[i] = rate *
/// factors[i]`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct StepNumbersArgs {
    pub numbers: *mut StepNumbers,
    /// Norms of parts of the gradients, or null.
    pub norms: *const f32,
    pub num_norms: usize,
    /// Factors of learning rates and the learning rates, `num_rates` each.
    pub factors: *const f32,
    pub rates: *mut f32,
    pub num_rates: usize,
    pub factor: f32,
    /// 0: no clipping.
    pub max_norm: f32,
    pub schedule: RateRule,
    pub warmup_steps: i32,
    pub total_steps: i32,
    pub last: f32,
    pub growth: f32,
    pub backoff: f32,
    pub growth_interval: i32,
    pub least_scale: f32,
    pub most_scale: f32,
}

operator! {
    step_numbers(StepNumbersArgs) version 1 minor 0; |_a|
}

/// What a [`MuonArgs`] does with its tensors.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MuonPart {
    /// `g *= grad_scale`; `b = momentum * b + g`; `u = nesterov ? g + momentum * b : b`, rounded to BF16. Data of a
    /// tensor: gradient g, momentum b of F32, u of BF16. Without effect if `noop` is 1.
    NVTEX_MUON_MOMENTUM = 0,
    /// `u = u / (norms[t] + epsilon)` for tensor number t. Data of a tensor: u of BF16.
    NVTEX_MUON_NORMALIZE = 1,
}

/// The parts of a step of Muon before and after the norms, each operation rounded to float32.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MuonArgs {
    /// Host array.
    pub tensors: *const MultiTensor,
    pub num_tensors: usize,
    pub part: MuonPart,
    pub momentum: f32,
    pub nesterov: bool,
    pub epsilon: f32,
    /// On the device: of the first part.
    pub grad_scale: *const f32,
    pub noop: *const i32,
    /// On the device: of the second part.
    pub norms: *const f32,
    /// F32, F16 or BF16: of the first part.
    pub grad_dtype: NVTEDType,
}

operator! {
    muon(MuonArgs) version 1 minor 0; |a|
    variants a.part as u32 => [momentum, normalize];
    dtypes a.grad_dtype;
    features { NESTEROV = a.nesterov }
}
