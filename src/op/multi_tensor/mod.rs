//! Optimizers, norms and scales of many tensors in one call (spec: optim_nvfp4, sections 1 to 6).

pub(crate) mod cpu;
pub(crate) mod cpu_step;
pub mod exports;
pub(crate) mod step;

use crate::backend::{self, args::*};
use crate::check::{self, HIGH_PRECISION, Memory};
use crate::error::{Error, Result};
use crate::tensor::{Buffer, Tensor, bytes};
use crate::types::{NVTEDType::*, *};
use AdamMaster::*;
use std::fmt::{self, Display};
use std::ptr::{null, null_mut};

/// Entries of the scratch that the caller of a norm provides.
const PARTIALS: usize = 320;

/// The tensors of a call: `lists[list][tensor]`, all lists of one length.
pub(crate) struct Lists(Vec<Vec<Buffer>>);

/// The tensors of all lists, with the addresses as backends take them.
struct Tensors {
    of: Vec<Vec<Buffer>>,
    entries: Vec<MultiTensor>,
}

impl Lists {
    /// The lists, of which the first `same` hold as many elements as list 0.
    fn tensors(self, same: usize) -> Result<Tensors> {
        let Self(lists) = self;
        let mut entries = backend::memory::reserve("a list of tensors", lists[0].len())?;
        for t in 0..lists[0].len() {
            let numel = lists[0][t].shape.numel();
            let mut entry = MultiTensor { data: [null_mut(); 8], numel };
            for (l, list) in lists.iter().enumerate() {
                let buffer = &list[t];
                entry.data[l] = buffer.ptr();
                if l < same {
                    check::pointer(Place(l, t), buffer)?;
                    if buffer.shape.numel() < numel {
                        let name = format!("tensor_lists[{l}][{t}].shape");
                        let expected = format!("{numel} elements, as tensor_lists[0][{t}]");
                        return Err(Error::argument(name, expected, buffer.shape));
                    }
                }
            }
            entries.push(entry);
        }
        Ok(Tensors { of: lists, entries })
    }
}

impl Tensors {
    fn any(&self) -> bool {
        !self.of[0].is_empty()
    }

    /// The dtype of all tensors of a list, one out of `allowed`.
    fn dtype(&self, list: usize, allowed: &[NVTEDType]) -> Result<NVTEDType> {
        let mut dtype = allowed[0];
        for (t, buffer) in self.of[list].iter().enumerate() {
            let name = format_args!("tensor_lists[{list}][{t}]");
            let as_before = [dtype];
            check::dtype(name, buffer.dtype, if t == 0 { allowed } else { &as_before })?;
            dtype = buffer.dtype;
        }
        Ok(dtype)
    }

    /// Drops tensors without elements, and checks overlaps. In the first `lists` lists, the tensors of
    /// one place may be the same memory, but may not overlap otherwise.
    fn filled(mut self, lists: usize) -> Result<Vec<MultiTensor>> {
        for (t, entry) in self.entries.iter().enumerate() {
            let bytes = |list: usize| bytes(entry.numel, self.of[list][t].dtype);
            for (i, j) in (1..lists).flat_map(|j| (0..j).map(move |i| (i, j))) {
                check::apart_or_same(
                    &[Memory::new(&Place(i, t), entry.data[i], bytes(i))],
                    &Memory::new(&Place(j, t), entry.data[j], bytes(j)),
                )?;
            }
        }
        self.entries.retain(|entry| entry.numel > 0);
        Ok(self.entries)
    }
}

/// A list and a place in it, for messages.
struct Place(usize, usize);

impl Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tensor_lists[{}][{}].data", self.0, self.1)
    }
}

/// One value on the device.
fn scalar<T>(name: &str, buffer: &Buffer, dtype: NVTEDType) -> Result<*mut T> {
    check::dtype(name, buffer.dtype, &[dtype])?;
    if buffer.shape.numel() == 0 {
        return Err(Error::argument(format!("{name}.shape"), "one element", buffer.shape));
    }
    Ok(check::pointer(format_args!("{name}.data"), buffer)?.cast())
}

fn flag(name: &str, buffer: &Buffer) -> Result<*mut i32> {
    scalar(name, buffer, kNVTEInt32)
}

/// The numbers of a step that are on the host.
#[derive(Clone, Copy)]
pub(crate) struct AdamRule {
    beta1: f32,
    beta2: f32,
    epsilon: f32,
    mode: i32,
    bias_correction: i32,
    weight_decay: f32,
}

impl AdamRule {
    /// A step without tensors, learning rate and bias.
    fn args(&self) -> AdamArgs {
        AdamArgs {
            tensors: null(),
            num_tensors: 0,
            lr: 0.0,
            beta1: self.beta1,
            beta2: self.beta2,
            epsilon: self.epsilon,
            weight_decay: self.weight_decay,
            bias1: 1.0,
            bias2: 1.0,
            device_lr: null(),
            device_step: null(),
            inv_scale: null(),
            noop: null(),
            l2: self.mode == 0,
            master: NVTEX_ADAM_NO_MASTER,
            grad_dtype: kNVTEFloat32,
            param_dtype: kNVTEFloat32,
            moment_dtype: kNVTEFloat32,
            grad_scale: null(),
        }
    }

    fn at(&self, lr: f32, step: i32) -> Result<AdamArgs> {
        if self.bias_correction != 1 {
            return Ok(AdamArgs { lr, ..self.args() });
        }
        if step < 1 {
            return Err(Error::argument("step", "at least 1", step));
        }
        let [bias1, bias2] =
            [self.beta1, self.beta2].map(|beta| AdamArgs::bias_correction(beta, step));
        Ok(AdamArgs { lr, bias1, bias2, ..self.args() })
    }
}

/// Adam with its numbers on the host; the fifth list, which may be absent, holds float masters.
fn adam(lists: Lists, rule: AdamRule, (lr, step): (f32, i32), stream: cudaStream_t) -> Result<()> {
    let master = if lists.0.len() == 5 { NVTEX_ADAM_FLOAT_MASTER } else { NVTEX_ADAM_NO_MASTER };
    let tensors = lists.tensors(5)?;
    run_adam(tensors, (HIGH_PRECISION, MOMENTS), AdamArgs { master, ..rule.at(lr, step)? }, stream)
}

fn adam_param_remainder(
    lists: Lists,
    rule: AdamRule,
    (lr, step): (f32, i32),
    stream: cudaStream_t,
) -> Result<()> {
    let tensors = lists.tensors(5)?;
    let args = AdamArgs { master: NVTEX_ADAM_REMAINDER, ..rule.at(lr, step)? };
    run_adam(tensors, (&[kNVTEBFloat16], MOMENTS), args, stream)
}

fn adam_fp8(
    lists: Lists,
    rule: AdamRule,
    (lr, step): (f32, i32),
    fp8: NVTEDType,
    stream: cudaStream_t,
) -> Result<()> {
    check::fp8("fp8_dtype", fp8)?;
    let mut tensors = lists.tensors(5)?;
    for (t, buffer) in tensors.of[1].iter_mut().enumerate() {
        check::dtype(format_args!("tensor_lists[1][{t}]"), buffer.dtype, &[fp8, kNVTEByte])?;
        buffer.dtype = fp8;
    }
    for l in 5..8 {
        for (t, buffer) in tensors.of[l].iter().enumerate().filter(|(_, b)| !b.ptr().is_null()) {
            check::scalar(format_args!("tensor_lists[{l}][{t}]"), buffer)?;
        }
    }
    for l in 2..4 {
        tensors.dtype(l, &[kNVTEFloat32])?;
    }
    let args = AdamArgs { master: NVTEX_ADAM_FLOAT_MASTER, ..rule.at(lr, step)? };
    run_adam(tensors, (&[fp8], MOMENTS), args, stream)
}

/// Adam with learning rate, step and scale of the gradients on the device.
fn adam_capturable(
    noop: &Buffer,
    lists: Lists,
    rule: AdamRule,
    [lr, step, inv_scale]: [&Buffer; 3],
    stream: cudaStream_t,
) -> Result<()> {
    let noop = flag("noop_flag", noop)?;
    let lr = scalar("lr", lr, kNVTEFloat32)?;
    let step: *mut i32 = scalar("step", step, kNVTEInt32)?;
    let inv_scale = scalar("inv_scale", inv_scale, kNVTEFloat32)?;
    let with_master = lists.0.len() == 5;
    let tensors = lists.tensors(5)?;
    let args = AdamArgs {
        device_lr: lr,
        device_step: if rule.bias_correction == 1 { step } else { null() },
        inv_scale,
        noop,
        master: if with_master { NVTEX_ADAM_FLOAT_MASTER } else { NVTEX_ADAM_NO_MASTER },
        ..rule.args()
    };
    run_adam(tensors, (HIGH_PRECISION, MOMENTS), args, stream)
}

/// What moments of the C functions may be; an optimizer over modules also has them in E4M3.
const MOMENTS: &[NVTEDType] = &[kNVTEFloat32, kNVTEBFloat16];

fn run_adam(
    tensors: Tensors,
    (params, moments): (&[NVTEDType], &[NVTEDType]),
    args: AdamArgs,
    stream: cudaStream_t,
) -> Result<()> {
    let grad_dtype = tensors.dtype(0, HIGH_PRECISION)?;
    let param_dtype = tensors.dtype(1, params)?;
    let moment_dtype = tensors.dtype(2, moments)?;
    tensors.dtype(3, &[moment_dtype])?;
    match args.master {
        NVTEX_ADAM_NO_MASTER => {}
        NVTEX_ADAM_FLOAT_MASTER => _ = tensors.dtype(4, &[kNVTEFloat32])?,
        NVTEX_ADAM_REMAINDER => {
            tensors.dtype(4, &[kNVTEInt16])?;
            // The halves of a master are written together.
            for (t, entry) in tensors.entries.iter().enumerate() {
                let half = 2 * entry.numel;
                check::apart(
                    &[Memory::new(&Place(1, t), entry.data[1], half)],
                    &[Memory::new(&Place(4, t), entry.data[4], half)],
                )?;
            }
        }
    }
    let lists = tensors.of.len().min(5);
    let tensors = tensors.filled(lists)?;
    if tensors.is_empty() {
        return Ok(());
    }
    let (tensors, num_tensors) = (tensors.as_ptr(), tensors.len());
    let args = AdamArgs { tensors, num_tensors, grad_dtype, param_dtype, moment_dtype, ..args };
    backend::run(&args, stream)
}

/// The numbers of a step of gradient descent.
pub(crate) struct SgdRule {
    weight_decay: f32,
    momentum: f32,
    dampening: f32,
    lr: f32,
    nesterov: i32,
    first_run: i32,
    decay_after_momentum: i32,
    scale: f32,
}

fn sgd(noop: &Buffer, lists: Lists, rule: &SgdRule, stream: cudaStream_t) -> Result<()> {
    let noop = flag("noop_flag", noop)?;
    let num_lists = lists.0.len();
    let tensors = lists.tensors(4)?;
    let grad_dtype = tensors.dtype(0, HIGH_PRECISION)?;
    let with_copy = num_lists == 4;
    // A weight of 16 bits has a gradient and a momentum like it, and no copy.
    let weights = match (grad_dtype, with_copy) {
        (kNVTEFloat32, _) | (_, true) => &[kNVTEFloat32][..],
        (kNVTEFloat16, _) => &[kNVTEFloat32, kNVTEFloat16],
        _ => &[kNVTEFloat32, kNVTEBFloat16],
    };
    let weight_dtype = tensors.dtype(1, weights)?;
    tensors.dtype(2, &[weight_dtype])?;
    let copy_dtype = match with_copy {
        true => tensors.dtype(3, &[kNVTEFloat16, kNVTEBFloat16])?,
        false => kNVTEFloat16,
    };
    let tensors = tensors.filled(num_lists)?;
    if tensors.is_empty() {
        return Ok(());
    }
    let args = SgdArgs {
        tensors: tensors.as_ptr(),
        num_tensors: tensors.len(),
        lr: rule.lr,
        momentum: rule.momentum,
        dampening: rule.dampening,
        weight_decay: rule.weight_decay,
        scale: rule.scale,
        nesterov: rule.nesterov != 0,
        first_run: rule.first_run != 0,
        decay_after_momentum: rule.decay_after_momentum != 0,
        noop,
        grad_dtype,
        weight_dtype,
        copy_dtype,
        device_lr: null(),
        grad_scale: null(),
    };
    backend::run(&args, stream)
}

/// Where the norms go, and the scratch of the caller.
pub(crate) struct Norms {
    non_finite: Buffer,
    output: Buffer,
    ret: Buffer,
    /// Scratch and norms of each tensor, and the most chunks of one.
    per_tensor: Option<(Buffer, Buffer, i32)>,
    chunk_size: i32,
}

fn l2_norm(
    lists: Lists,
    norms: &Norms,
    inv_scale: Option<&Buffer>,
    stream: cudaStream_t,
) -> Result<()> {
    let non_finite = flag("noop_flag", &norms.non_finite)?;
    let floats = |name: &str, buffer: &Buffer, least: usize| -> Result<*mut f32> {
        check::dtype(name, buffer.dtype, &[kNVTEFloat32])?;
        Ok(check::elements(name, buffer, least, kNVTEFloat32)?.cast())
    };
    let workspace = floats("output", &norms.output, PARTIALS)?;
    let norm = floats("ret", &norms.ret, 1)?;
    let inv_scale = match inv_scale {
        Some(inv_scale) => scalar("inv_scale", inv_scale, kNVTEFloat32)?,
        None => null_mut(),
    };
    let tensors = lists.tensors(1)?;
    let dtype = tensors.dtype(0, HIGH_PRECISION)?;
    let chunk = norms.chunk_size as usize;
    let (mut tensor_norms, mut tensor_workspace, mut chunks) = (null_mut(), null_mut(), 0);
    if let Some((scratch, ret, got)) = norms.per_tensor.as_ref().filter(|_| tensors.any()) {
        let most = tensors.entries.iter().map(|entry| entry.numel.div_ceil(chunk)).max();
        let (most, got) = (most.unwrap_or(0), *got);
        chunks = usize::try_from(got).unwrap_or(0);
        if got < 0 || chunks < most {
            let expected =
                format!("{most} or more, the chunks of {chunk} elements in the largest tensor");
            return Err(Error::argument("max_chunks_per_tensor", expected, got));
        }
        let count = tensors.entries.len();
        tensor_norms = floats("ret_per_tensor", ret, count)?;
        // If the product overflows it saturates, which is more than any buffer has.
        let least = count.saturating_mul(chunks);
        tensor_workspace = floats("output_per_tensor", scratch, least)?;
    }
    let args = L2NormArgs {
        tensors: tensors.entries.as_ptr(),
        num_tensors: tensors.entries.len(),
        inv_scale,
        norm,
        tensor_norms,
        workspace,
        partials: PARTIALS,
        tensor_workspace,
        chunks,
        chunk,
        non_finite,
        dtype,
    };
    backend::run(&args, stream)
}

/// The factor of `scale_tensors`, on the host or the device.
enum Factor {
    Host(f32),
    Device(Buffer),
}

fn scale_tensors(
    is_infinite: &Buffer,
    lists: Lists,
    factor: Factor,
    stream: cudaStream_t,
) -> Result<()> {
    let non_finite = flag("is_infinite", is_infinite)?;
    let (scale, device_scale) = match factor {
        Factor::Host(scale) => (scale, null_mut()),
        Factor::Device(scale) => (1.0, scalar("scale", &scale, kNVTEFloat32)?),
    };
    let tensors = lists.tensors(2)?;
    let (input_dtype, output_dtype) =
        (tensors.dtype(0, HIGH_PRECISION)?, tensors.dtype(1, HIGH_PRECISION)?);
    let tensors = tensors.filled(2)?;
    if tensors.is_empty() {
        return Ok(());
    }
    let (tensors, num_tensors) = (tensors.as_ptr(), tensors.len());
    let args = ScaleTensorsArgs {
        tensors,
        num_tensors,
        scale,
        device_scale,
        non_finite,
        input_dtype,
        output_dtype,
    };
    backend::run(&args, stream)
}

/// Scales as floats by a rule, or else as E8M0 codes.
fn scales_from_amax(
    lists: Lists,
    rule: Option<(f32, bool, f32)>,
    stream: cudaStream_t,
) -> Result<()> {
    let dtypes: &[&[NVTEDType]] = match rule {
        Some(_) => &[&[kNVTEFloat32], &[kNVTEFloat32], &[kNVTEFloat32]],
        None => &[&[kNVTEBFloat16], &[kNVTEByte, kNVTEFloat8E8M0]],
    };
    let tensors = lists.tensors(dtypes.len())?;
    for (list, allowed) in dtypes.iter().enumerate() {
        tensors.dtype(list, allowed)?;
    }
    let tensors = tensors.filled(dtypes.len())?;
    if tensors.is_empty() {
        return Ok(());
    }
    let (fp8_max, pow2, epsilon) = rule.unwrap_or((448.0, true, 0.0));
    let (tensors, num_tensors, e8m0) = (tensors.as_ptr(), tensors.len(), rule.is_none());
    let args = ScalesFromAmaxArgs { tensors, num_tensors, fp8_max, epsilon, pow2, e8m0 };
    backend::run(&args, stream)
}

/// `dst += src`, elementwise in float32 with one rounding to the dtype of `dst`. The shapes may differ.
pub(crate) fn add(src: &Tensor, dst: &Tensor, stream: cudaStream_t) -> Result<()> {
    for (name, tensor) in [("src", src), ("dst", dst)] {
        check::input(name, tensor)?;
        check::high_precision(name, tensor.dtype())?;
    }
    let (src, dst) = (&src.rowwise, &dst.rowwise);
    let numel = src.shape.numel();
    if dst.shape.numel() != numel {
        let expected = format!("{numel} elements, as src");
        return Err(Error::argument("dst.shape", expected, dst.shape));
    }
    check::apart(&[Memory::of(&"src.data", src)], &[Memory::of(&"dst.data", dst)])?;
    let args = AddArgs {
        src: src.ptr(),
        dst: dst.ptr(),
        numel,
        src_dtype: src.dtype,
        dst_dtype: dst.dtype,
    };
    if numel > 0 { backend::run(&args, stream) } else { Ok(()) }
}
