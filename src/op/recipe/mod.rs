//! Scaling factors: amax, scale from amax, delayed scaling (spec: quantize, section 10).

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
use crate::tensor::{Buffer, GroupedTensor, Shape, Tensor};
use crate::types::*;
use std::ffi::{c_int, c_void};
use std::fmt::Display;
use std::ptr::null_mut;

/// `output.amax = max|input|`; of the config the flag counts that forbids the call.
pub(crate) fn compute_amax(
    input: &Tensor,
    output: &Tensor,
    config: &QuantizationConfig,
    stream: cudaStream_t,
) -> Result<()> {
    check::input("input", input)?;
    check::high_precision("input", input.dtype())?;
    if output.mode != NVTEScalingMode::NVTE_NVFP4_1D_SCALING {
        check::per_tensor("output", output)?;
    }
    let amax = match output.amax.ptr().is_null() && !output.colwise_amax.ptr().is_null() {
        false => check::scalar("output.amax", &output.amax)?,
        true => check::scalar("output.columnwise_amax", &output.colwise_amax)?,
    };
    let args = AmaxArgs {
        input: input.rowwise.ptr(),
        amax,
        noop: config.noop(),
        numel: input.rowwise.shape.numel(),
        dtype: input.dtype(),
    };
    backend::run(&args, stream)
}

/// `output.scale` from `output.amax`.
pub(crate) fn compute_scale_from_amax(
    output: &Tensor,
    config: &QuantizationConfig,
    stream: cudaStream_t,
) -> Result<()> {
    check::per_tensor("output", output)?;
    check::fp8("output", output.dtype())?;
    let args = ScaleFromAmaxArgs {
        amax: check::scalar("output.amax", &output.amax)?,
        scale: check::scalar("output.scale", &output.scale)?,
        noop: config.noop(),
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

/// As [`compute_amax`], for each member of a group.
fn group_compute_amax(
    input: &GroupedTensor,
    output: &GroupedTensor,
    config: &QuantizationConfig,
    stream: cudaStream_t,
) -> Result<()> {
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
        let expected = format!("{} (as input)", input.num_tensors);
        return Err(Error::argument(name, expected, output.num_tensors));
    }
    let (group, (rows, cols)) = check::members("output", output)?;
    let numel = input.rowwise.shape.numel();
    let args = GroupAmaxArgs {
        input: check::grouped_data("input.data", &input.rowwise, (rows, cols))?,
        amax: member_amax(output)?,
        noop: config.noop(),
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

/// As [`compute_scale_from_amax`], for each member of a group.
fn group_compute_scale_from_amax(
    output: &GroupedTensor,
    config: &QuantizationConfig,
    stream: cudaStream_t,
) -> Result<()> {
    let n = output.num_tensors;
    if output.mode != NVTEScalingMode::NVTE_DELAYED_TENSOR_SCALING {
        let expected = NVTEScalingMode::NVTE_DELAYED_TENSOR_SCALING;
        return Err(Error::argument("output.scaling_mode", expected, output.mode));
    }
    check::fp8("output", output.dtype())?;
    let (scale_inv, colwise) = (&output.rowwise_scale_inv, &output.colwise_scale_inv);
    // If both are missing, the message names the first.
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
        amax: member_amax(output)?,
        scale: member_floats("output.scale", &output.scale, n)?,
        noop: config.noop(),
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

/// Refuses buffers of other types than Float32, and wrong addresses.
fn floats(name: impl Display, buffer: &Buffer) -> Result<()> {
    check::dtype(&name, buffer.dtype, &[NVTEDType::kNVTEFloat32])?;
    check::pointer(format_args!("{name}.data"), buffer).map(drop)
}

/// Length and scales of an amax history.
fn history(name: impl Display, buffer: &Buffer) -> Result<(usize, usize)> {
    floats(&name, buffer)?;
    match *buffer.shape.dims() {
        [length, scales] if length > 0 => Ok((length, scales)),
        _ => {
            let expected = "[length, scales] with length at least 1";
            Err(Error::argument(format!("{name}.shape"), expected, buffer.shape))
        }
    }
}

/// Refuses other scales than one for each column of a history.
fn scales(name: impl Display, buffer: &Buffer, count: usize) -> Result<()> {
    floats(&name, buffer)?;
    if buffer.shape.numel() != count {
        let expected = format!("{count} elements, one for each column of the amax history");
        return Err(Error::argument(format!("{name}.shape"), expected, buffer.shape));
    }
    Ok(())
}

/// Rolls a history and sets the scales, to other memory or in place.
fn delayed_scaling(
    [old, old_scale]: [&Buffer; 2],
    [new, new_scale]: [&Buffer; 2],
    rule: &Rule,
    stream: cudaStream_t,
) -> Result<()> {
    let (length, count) = history("amax_history", old)?;
    scales("scale", old_scale, count)?;
    floats("updated_amax_history", new)?;
    check::shape("updated_amax_history", &new.shape, &old.shape)?;
    scales("updated_scale", new_scale, count)?;
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

/// Rolls histories and sets scales in place: of each pair the history comes first. `reduced` has the newest
/// amax values of all, one after the other; unset: the histories have them.
pub(crate) fn delayed_scaling_after_reduction(
    reduced: &Buffer,
    pairs: &[[Buffer; 2]],
    rule: &Rule,
    stream: cudaStream_t,
) -> Result<()> {
    let mut rows = None;
    let mut total = 0usize;
    let mut entries = backend::memory::reserve("a list of tensors", pairs.len())?;
    for (i, [buffer, scale]) in pairs.iter().enumerate() {
        let name = format_args!("amax_histories[{i}]");
        let (length, count) = history(name, buffer)?;
        if length != *rows.get_or_insert(length) {
            let expected = format!("{} rows, as amax_histories[0]", rows.unwrap_or_default());
            return Err(Error::argument(format!("{name}.shape"), expected, buffer.shape));
        }
        scales(format_args!("scales[{i}]"), scale, count)?;
        // If the sum overflows it saturates, which is more than any buffer has.
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
    if !reduced.ptr().is_null() {
        let name = "amax_reduction_buffer";
        floats(name, reduced)?;
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
