//! Scaling factors: amax, scale from amax, delayed scaling (spec: quantize, section 10).
#![allow(unsafe_code)]

pub(crate) mod cpu;
pub(crate) mod cpu_nvfp4;
pub(crate) mod cpu_partial;
pub mod exports;
mod nvfp4;
mod partial;

use super::transformer_engine::QuantizationConfig;
use crate::backend::{self, args::*};
use crate::check::{self, Memory};
use crate::device_check;
use crate::error::{Error, Result};
use crate::tensor::{Buffer, GroupedTensor, Shape, from_c};
use crate::types::*;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt::Display;
use std::mem::MaybeUninit;
use std::ptr::null_mut;

pub(crate) fn compute_amax(
    input: NVTETensor,
    output: NVTETensor,
    config: NVTEQuantizationConfig,
    stream: cudaStream_t,
) -> Result<()> {
    let config = QuantizationConfig::get("config", config)?;
    let input = check::tensor("input", input)?;
    check::input("input", &input)?;
    check::high_precision("input", input.dtype())?;
    let output = check::tensor("output", output)?;
    if output.mode != NVTEScalingMode::NVTE_NVFP4_1D_SCALING {
        check::per_tensor("output", &output)?;
    }
    let amax = match output.amax.ptr().is_null() && !output.colwise_amax.ptr().is_null() {
        false => check::scalar("output.amax", &output.amax)?,
        true => check::scalar("output.columnwise_amax", &output.colwise_amax)?,
    };
    let args = AmaxArgs {
        input: input.rowwise.ptr(),
        amax,
        noop: check::noop("config.noop_tensor", config.noop())?,
        numel: input.rowwise.shape.numel(),
        dtype: input.dtype(),
    };
    backend::run(&args, stream)
}

pub(crate) fn compute_scale_from_amax(
    output: NVTETensor,
    config: NVTEQuantizationConfig,
    stream: cudaStream_t,
) -> Result<()> {
    let output = check::tensor("output", output)?;
    check::per_tensor("output", &output)?;
    if config.is_null() {
        return Err(Error::argument("config", "a quantization config handle", "null"));
    }
    let config = QuantizationConfig::get("config", config)?;
    check::fp8("output", output.dtype())?;
    let args = ScaleFromAmaxArgs {
        amax: check::scalar("output.amax", &output.amax)?,
        scale: check::scalar("output.scale", &output.scale)?,
        noop: check::noop("config.noop_tensor", config.noop())?,
        fp8_max: output.dtype().fp8_max(),
        epsilon: config.amax_epsilon,
        pow2: config.force_pow2_scales,
        length: 1,
        scale_inv: null_mut(),
        colwise_scale_inv: null_mut(),
    };
    backend::run(&args, stream)
}

/// One float for each member of a grouped tensor.
fn member_floats(name: impl Display, buffer: &Buffer, num_tensors: usize) -> Result<*mut f32> {
    let expected = || format!("Float32 [{num_tensors}], one for each member");
    if !buffer.is_set() {
        return Err(Error::argument(name, expected(), "nothing"));
    }
    check::dtype(&name, buffer.dtype, &[NVTEDType::kNVTEFloat32])?;
    if buffer.shape.numel() != num_tensors {
        return Err(Error::argument(format!("{name}.shape"), expected(), buffer.shape));
    }
    Ok(check::pointer(name, buffer)?.cast())
}

/// The amax values of a grouped output.
fn member_amax(output: &GroupedTensor) -> Result<*mut f32> {
    match output.amax.ptr().is_null() && !output.colwise_amax.ptr().is_null() {
        false => member_floats("output.amax", &output.amax, output.num_tensors),
        true => member_floats("output.columnwise_amax", &output.colwise_amax, output.num_tensors),
    }
}

fn group_compute_amax(
    input: NVTEGroupedTensor,
    output: NVTEGroupedTensor,
    config: NVTEQuantizationConfig,
    stream: cudaStream_t,
) -> Result<()> {
    let config = QuantizationConfig::get("config", config)?;
    let input = check::grouped_tensor("input", input)?;
    let output = check::grouped_tensor("output", output)?;
    for (name, mode) in [("input.scaling_mode", input.mode), ("output.scaling_mode", output.mode)] {
        let nvfp4 = mode == NVTEScalingMode::NVTE_NVFP4_1D_SCALING;
        let expected = NVTEScalingMode::NVTE_DELAYED_TENSOR_SCALING;
        if mode != expected && !(nvfp4 && name.starts_with("output")) {
            return Err(Error::argument(name, expected, mode));
        }
    }
    check::high_precision("input", input.rowwise.dtype)?;
    if output.num_tensors != input.num_tensors {
        let name = "output.num_tensors";
        return Err(Error::argument(name, input.num_tensors, output.num_tensors));
    }
    let (group, (rows, cols)) = check::members("output", &output)?;
    let numel = input.rowwise.shape.numel();
    let args = GroupAmaxArgs {
        input: check::grouped_data("input.data", &input.rowwise, (rows, cols))?,
        amax: member_amax(&output)?,
        noop: check::noop("config.noop_tensor", config.noop())?,
        numel,
        rows,
        cols,
        group: Group { elements: numel, ..group },
        dtype: input.rowwise.dtype,
    };
    let mode = NVTEScalingMode::NVTE_DELAYED_TENSOR_SCALING;
    device_check::group("output", &args.group, (rows, cols), mode, stream)?;
    backend::run(&args, stream)
}

fn group_compute_scale_from_amax(
    output: NVTEGroupedTensor,
    config: NVTEQuantizationConfig,
    stream: cudaStream_t,
) -> Result<()> {
    let config = QuantizationConfig::get("config", config)?;
    let output = check::grouped_tensor("output", output)?;
    let n = output.num_tensors;
    if output.mode != NVTEScalingMode::NVTE_DELAYED_TENSOR_SCALING {
        let expected = NVTEScalingMode::NVTE_DELAYED_TENSOR_SCALING;
        return Err(Error::argument("output.scaling_mode", expected, output.mode));
    }
    check::fp8("output", output.dtype())?;
    let (scale_inv, colwise) = (&output.rowwise_scale_inv, &output.colwise_scale_inv);
    // Without either of them the message names the first.
    let (has_row, has_col) = (!scale_inv.ptr().is_null(), !colwise.ptr().is_null());
    let scale_inv = match has_row || !has_col {
        true => member_floats("output.scale_inv", scale_inv, n)?,
        false => null_mut(),
    };
    let colwise_scale_inv = match has_col {
        true => member_floats("output.columnwise_scale_inv", colwise, n)?,
        false => null_mut(),
    };
    let args = ScaleFromAmaxArgs {
        amax: member_amax(&output)?,
        scale: member_floats("output.scale", &output.scale, n)?,
        noop: check::noop("config.noop_tensor", config.noop())?,
        fp8_max: output.dtype().fp8_max(),
        epsilon: config.amax_epsilon,
        pow2: config.force_pow2_scales,
        length: n,
        scale_inv,
        colwise_scale_inv,
    };
    backend::run(&args, stream)
}

/// What every delayed-scaling update takes.
pub(crate) struct Rule {
    pub algo: AmaxAlgo,
    pub scaled_max: f32,
}

impl Rule {
    /// # Safety
    /// `algo` is null or a C string.
    unsafe fn new(
        algo: *const c_char,
        fp8_dtype: MaybeUninit<NVTEDType>,
        margin: f32,
    ) -> Result<Self> {
        if algo.is_null() {
            return Err(Error::argument("amax_compute_algo", "\"max\" or \"most_recent\"", "null"));
        }
        // SAFETY: the caller vouches for the string.
        let algo = match unsafe { CStr::from_ptr(algo) }.to_bytes() {
            b"max" => AmaxAlgo::NVTEX_AMAX_ALGO_MAX,
            b"most_recent" => AmaxAlgo::NVTEX_AMAX_ALGO_MOST_RECENT,
            other => {
                let got = format!("{:?}", String::from_utf8_lossy(other));
                let expected = "\"max\" or \"most_recent\"";
                return Err(Error::argument("amax_compute_algo", expected, got));
            }
        };
        let fp8_dtype = from_c("fp8_dtype", fp8_dtype)?;
        check::fp8("fp8_dtype", fp8_dtype)?;
        Ok(Self { algo, scaled_max: fp8_dtype.fp8_max() * (-margin).exp2() })
    }
}

/// Row-wise data in Float32.
fn floats(name: &str, handle: NVTETensor) -> Result<Buffer> {
    let buffer = check::tensor(name, handle)?.rowwise;
    check::dtype(name, buffer.dtype, &[NVTEDType::kNVTEFloat32])?;
    check::pointer(format_args!("{name}.data"), &buffer)?;
    Ok(buffer)
}

/// An amax history `[length, scales]`.
fn history(name: &str, handle: NVTETensor) -> Result<(Buffer, usize, usize)> {
    let buffer = floats(name, handle)?;
    match *buffer.shape.dims() {
        [length, scales] if length > 0 => Ok((buffer, length, scales)),
        _ => {
            let expected = "[length, scales] with length at least 1";
            Err(Error::argument(format!("{name}.shape"), expected, buffer.shape))
        }
    }
}

fn scales(name: &str, handle: NVTETensor, count: usize) -> Result<Buffer> {
    let buffer = floats(name, handle)?;
    if buffer.shape.numel() != count {
        let expected = format!("{count} elements, one for each column of the amax history");
        return Err(Error::argument(format!("{name}.shape"), expected, buffer.shape));
    }
    Ok(buffer)
}

fn delayed_scaling(
    amax_history: NVTETensor,
    scale: NVTETensor,
    updated_amax_history: NVTETensor,
    updated_scale: NVTETensor,
    rule: &Rule,
    stream: cudaStream_t,
) -> Result<()> {
    let (old, length, count) = history("amax_history", amax_history)?;
    let old_scale = scales("scale", scale, count)?;
    let new = floats("updated_amax_history", updated_amax_history)?;
    check::shape("updated_amax_history", &new.shape, &old.shape)?;
    let new_scale = scales("updated_scale", updated_scale, count)?;
    if count == 0 {
        return Ok(());
    }
    let entry = DelayedScalingEntry {
        history: old.ptr().cast(),
        scale: old_scale.ptr().cast(),
        new_history: new.ptr().cast(),
        new_scale: new_scale.ptr().cast(),
        num_scales: count,
    };
    let args = DelayedScalingArgs {
        entries: &entry,
        num_entries: 1,
        reduced_amax: std::ptr::null(),
        length,
        scaled_max: rule.scaled_max,
        algo: rule.algo,
        keep_if_unused: false,
    };
    backend::run(&args, stream)
}

pub(crate) fn delayed_scaling_after_reduction(
    reduced: NVTETensor,
    amax_histories: &[NVTETensor],
    scale_handles: &[NVTETensor],
    rule: &Rule,
    stream: cudaStream_t,
) -> Result<()> {
    if amax_histories.len() != scale_handles.len() {
        let expected = format!("{} tensors, as many as amax_histories", amax_histories.len());
        return Err(Error::argument("scales", expected, scale_handles.len()));
    }
    let mut rows = None;
    let mut total = 0usize;
    let mut entries = backend::memory::reserve("a list of tensors", amax_histories.len())?;
    for (i, (&history_handle, &scale_handle)) in
        amax_histories.iter().zip(scale_handles).enumerate()
    {
        let name = format!("amax_histories[{i}]");
        let (buffer, length, count) = history(&name, history_handle)?;
        if length != *rows.get_or_insert(length) {
            let expected = format!("{} rows, as amax_histories[0]", rows.unwrap_or_default());
            return Err(Error::argument(format!("{name}.shape"), expected, buffer.shape));
        }
        let scale = scales(&format!("scales[{i}]"), scale_handle, count)?;
        // More than any buffer has, if it does not fit.
        total = total.saturating_add(count);
        if count > 0 {
            entries.push(DelayedScalingEntry {
                history: buffer.ptr().cast(),
                scale: scale.ptr().cast(),
                new_history: buffer.ptr().cast(),
                new_scale: scale.ptr().cast(),
                num_scales: count,
            });
        }
    }
    let reduced = check::tensor_or_empty("amax_reduction_buffer", reduced)?.rowwise;
    if !reduced.ptr().is_null() {
        let name = "amax_reduction_buffer";
        check::dtype(name, reduced.dtype, &[NVTEDType::kNVTEFloat32])?;
        check::pointer("amax_reduction_buffer.data", &reduced)?;
        if reduced.shape.numel() != total {
            check::shape(name, &reduced.shape, &Shape::new(&[total]))?;
        }
    }
    let Some(length) = rows.filter(|_| !entries.is_empty()) else {
        return Ok(());
    };
    let args = DelayedScalingArgs {
        entries: entries.as_ptr(),
        num_entries: entries.len(),
        reduced_amax: reduced.ptr().cast(),
        length,
        scaled_max: rule.scaled_max,
        algo: rule.algo,
        keep_if_unused: true,
    };
    backend::run(&args, stream)
}
