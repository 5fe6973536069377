//! Steps of optimizers whose learning rate, number and scale lie on the device, so that a captured step can be
//! replayed.

use super::*;
use crate::backend::args::{MuonPart::*, StepNumbers, StepNumbersArgs};
use std::ffi::c_void;
use std::mem::offset_of;

/// The address of numbers on the device.
#[derive(Clone, Copy)]
pub(crate) struct Numbers(pub *mut c_void);

impl Numbers {
    fn field<T>(self, offset: usize) -> *mut T {
        self.0.wrapping_byte_add(offset).cast()
    }

    pub fn non_finite(self) -> *mut i32 {
        self.field(offset_of!(StepNumbers, non_finite))
    }

    fn skip(self) -> *const i32 {
        self.field(offset_of!(StepNumbers, skip))
    }

    fn step(self) -> *const i32 {
        self.field(offset_of!(StepNumbers, step))
    }

    fn grad_scale(self) -> *const f32 {
        self.field(offset_of!(StepNumbers, grad_scale))
    }
}

/// Moments of E4M3 on the host.
pub(crate) use super::cpu::{decode_moments, encode_moments};

/// How many scales moments of E4M3 have.
pub(crate) fn moment_blocks(numel: usize) -> usize {
    numel.div_ceil(AdamArgs::MOMENT_BLOCK)
}

/// The constants of Adam with decoupled weight decay.
#[derive(Clone, Copy)]
pub(crate) struct AdamConstants {
    pub beta1: f32,
    pub beta2: f32,
    pub epsilon: f32,
    pub weight_decay: f32,
}

/// A step of AdamW. Lists: gradient, parameter, both moments and, unless the master is none, the masters. With moments in
/// E4M3 there are always five lists, of which the last one may be of nothing, and then two with their scales. Parameters in
/// FP8 have masters, and then three lists of single numbers: scale, amax and inverse of the scale.
pub(crate) fn adam(
    lists: Vec<Vec<Buffer>>,
    constants: AdamConstants,
    master: AdamMaster,
    (numbers, rate): (Numbers, *const f32),
    stream: cudaStream_t,
) -> Result<()> {
    let AdamConstants { beta1, beta2, epsilon, weight_decay } = constants;
    let rule = AdamRule { beta1, beta2, epsilon, mode: 1, bias_correction: 1, weight_decay };
    let params: &[_] = match (master, lists.len()) {
        (NVTEX_ADAM_REMAINDER, _) => &[kNVTEBFloat16],
        (NVTEX_ADAM_FLOAT_MASTER, 8) => &[kNVTEFloat8E4M3, kNVTEFloat8E5M2],
        _ => HIGH_PRECISION,
    };
    let args = AdamArgs {
        device_lr: rate,
        device_step: numbers.step(),
        grad_scale: numbers.grad_scale(),
        noop: numbers.skip(),
        master,
        ..rule.args()
    };
    let filled = if master == NVTEX_ADAM_NO_MASTER { 4 } else { 5 };
    let moments = &[kNVTEFloat32, kNVTEBFloat16, kNVTEFloat8E4M3];
    run_adam(Lists(lists).tensors(filled)?, (params, moments), args, stream)
}

/// The constants of gradient descent.
#[derive(Clone, Copy)]
pub(crate) struct SgdConstants {
    /// What the gradient is multiplied by, beside the scale of the step if `scaled`.
    pub scale: f32,
    pub scaled: bool,
    pub momentum: f32,
    pub nesterov: bool,
    pub weight_decay: f32,
    /// The decay acts on the weight, not on the momentum.
    pub decoupled: bool,
}

/// A step of gradient descent. Lists: gradient, weight, momentum and, if there is a fourth, copies of the weights.
pub(crate) fn sgd(
    lists: Vec<Vec<Buffer>>,
    constants: SgdConstants,
    (numbers, rate): (Numbers, *const f32),
    stream: cudaStream_t,
) -> Result<()> {
    let num_lists = lists.len();
    let tensors = Lists(lists).tensors(4)?;
    let grad_dtype = tensors.dtype(0, HIGH_PRECISION)?;
    let weight_dtype = tensors.dtype(1, HIGH_PRECISION)?;
    tensors.dtype(2, &[weight_dtype])?;
    let copy_dtype = match num_lists {
        4 => tensors.dtype(3, &[kNVTEFloat16, kNVTEBFloat16])?,
        _ => kNVTEFloat16,
    };
    let tensors = tensors.filled(num_lists)?;
    if tensors.is_empty() {
        return Ok(());
    }
    let args = SgdArgs {
        tensors: tensors.as_ptr(),
        num_tensors: tensors.len(),
        lr: 0.0,
        momentum: constants.momentum,
        dampening: 0.0,
        weight_decay: constants.weight_decay,
        scale: constants.scale,
        nesterov: constants.nesterov,
        first_run: false,
        decay_after_momentum: constants.decoupled,
        noop: numbers.skip(),
        grad_dtype,
        weight_dtype,
        copy_dtype,
        device_lr: rate,
        grad_scale: if constants.scaled { numbers.grad_scale() } else { null() },
    };
    backend::run(&args, stream)
}

/// Scratch of norms: of 320 floats, and of as many for each tensor as it has chunks.
pub(crate) struct NormScratch {
    pub partials: *mut f32,
    pub of_tensors: *mut f32,
    pub chunks: usize,
}

/// The elements of a chunk whose sum of squares is one number of the scratch.
pub(crate) const NORM_CHUNK: usize = 65536;

/// Floats of the scratch of a norm of all tensors.
pub(crate) const NORM_PARTIALS: usize = PARTIALS;

/// The norm of all tensors of a list, and that of each.
pub(crate) fn norm(
    list: Vec<Buffer>,
    scratch: &NormScratch,
    (norm, tensor_norms, non_finite): (*mut f32, *mut f32, *mut i32),
    stream: cudaStream_t,
) -> Result<()> {
    let tensors = Lists(vec![list]).tensors(1)?;
    let dtype = tensors.dtype(0, HIGH_PRECISION)?;
    let args = L2NormArgs {
        tensors: tensors.entries.as_ptr(),
        num_tensors: tensors.entries.len(),
        inv_scale: null(),
        norm,
        tensor_norms,
        workspace: scratch.partials,
        partials: PARTIALS,
        tensor_workspace: if tensor_norms.is_null() { null_mut() } else { scratch.of_tensors },
        chunks: scratch.chunks,
        chunk: NORM_CHUNK,
        non_finite,
        dtype,
    };
    backend::run(&args, stream)
}

/// Multiplies all tensors of a list by a number, in place, and sets a flag if some element is not finite.
pub(crate) fn scale(
    list: Vec<Buffer>,
    scale: f32,
    non_finite: *mut i32,
    stream: cudaStream_t,
) -> Result<()> {
    let tensors = Lists(vec![list.clone(), list]).tensors(2)?;
    let dtype = tensors.dtype(0, HIGH_PRECISION)?;
    let tensors = tensors.filled(2)?;
    if tensors.is_empty() {
        return Ok(());
    }
    let args = ScaleTensorsArgs {
        tensors: tensors.as_ptr(),
        num_tensors: tensors.len(),
        scale,
        device_scale: null(),
        non_finite,
        input_dtype: dtype,
        output_dtype: dtype,
    };
    backend::run(&args, stream)
}

/// Computes the numbers of the next step.
pub(crate) fn step_numbers(args: &StepNumbersArgs, stream: cudaStream_t) -> Result<()> {
    backend::run(args, stream)
}

/// Muon before the norms. Lists: gradient, momentum, and the update of BFloat16, which is written.
pub(crate) fn muon_momentum(
    lists: Vec<Vec<Buffer>>,
    (momentum, nesterov): (f32, bool),
    numbers: Numbers,
    stream: cudaStream_t,
) -> Result<()> {
    let tensors = Lists(lists).tensors(3)?;
    let grad_dtype = tensors.dtype(0, HIGH_PRECISION)?;
    tensors.dtype(1, &[kNVTEFloat32])?;
    tensors.dtype(2, &[kNVTEBFloat16])?;
    let entries = &tensors.entries;
    let args = MuonArgs {
        tensors: entries.as_ptr(),
        num_tensors: entries.len(),
        part: NVTEX_MUON_MOMENTUM,
        momentum,
        nesterov,
        epsilon: 0.0,
        grad_scale: numbers.grad_scale(),
        noop: numbers.skip(),
        norms: null(),
        grad_dtype,
    };
    backend::run(&args, stream)
}

/// Divides each update by its norm.
pub(crate) fn muon_normalize(
    list: Vec<Buffer>,
    (norms, epsilon): (*const f32, f32),
    stream: cudaStream_t,
) -> Result<()> {
    let tensors = Lists(vec![list]).tensors(1)?;
    tensors.dtype(0, &[kNVTEBFloat16])?;
    let args = MuonArgs {
        tensors: tensors.entries.as_ptr(),
        num_tensors: tensors.entries.len(),
        part: NVTEX_MUON_NORMALIZE,
        momentum: 0.0,
        nesterov: false,
        epsilon,
        grad_scale: null(),
        noop: null(),
        norms,
        grad_dtype: kNVTEBFloat16,
    };
    backend::run(&args, stream)
}
