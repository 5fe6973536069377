//! Casts with per-tensor scaling, FP8 block scaling and MXFP8 (spec: quantize, sections 3.1 to 3.3,
//! 7.1 and 9.1).

pub(crate) mod cpu;
mod cpu_block;
pub mod exports;

use super::transformer_engine::QuantizationConfig;
use crate::backend::{self, args::*};
use crate::check;
use crate::error::{Error, Result};
use crate::tensor::{Buffer, Tensor};
use crate::types::NVTEScalingMode::*;
use crate::types::*;
use std::ptr::null_mut;

/// Checks a cast and gives its arguments; none if there is nothing to do.
pub fn plan_quantize(
    input: &Tensor,
    output: &Tensor,
    noop: (&str, NVTETensor),
    config: &QuantizationConfig,
) -> Result<Option<QuantizeArgs>> {
    let args = quantize_args(input, output, noop, config)?;
    Ok((args.rows > 0 && args.cols > 0).then_some(args))
}

/// Checks a cast and gives its arguments, of an empty tensor, too.
pub fn quantize_args(
    input: &Tensor,
    output: &Tensor,
    (noop_name, noop): (&str, NVTETensor),
    config: &QuantizationConfig,
) -> Result<QuantizeArgs> {
    let noop = check::noop(noop_name, noop)?;
    let mode = output.mode;
    let (per_tensor, mxfp8) = (mode == NVTE_DELAYED_TENSOR_SCALING, mode == NVTE_MXFP8_1D_SCALING);
    supported_mode("output", output)?;
    check::input("input", input)?;
    check::high_precision("input", input.dtype())?;
    if !output.rowwise.is_set() && !output.colwise.is_set() {
        return Err(Error::argument("output.data", "row-wise or column-wise data", "no data"));
    }
    let dtype = output.dtype();
    if per_tensor {
        check::scales("output", output)?;
    }
    if !per_tensor {
        check::fp8("output", dtype)?;
    } else if !dtype.is_fp8() {
        check::high_precision("output", dtype)?;
    }
    let shape = input.rowwise.shape;
    if output.rowwise.is_set() {
        check::shape("output.data", &output.rowwise.shape, &shape)?;
        check::pointer("output.data", &output.rowwise)?;
    }
    if output.colwise.is_set() {
        check::dtype("output.columnwise_data", output.colwise.dtype, &[dtype])?;
        let expected = if mxfp8 { shape } else { shape.transposed() };
        check::shape("output.columnwise_data", &output.colwise.shape, &expected)?;
        check::pointer("output.columnwise_data", &output.colwise)?;
    }
    let (rows, cols) = shape.flatten();
    let fp8_scalar = |name: &str, buffer: &Buffer| match dtype.is_fp8() {
        true => check::optional_scalar(name, buffer),
        false => Ok(null_mut()),
    };
    let scale_inv = |name, colwise, data: &Buffer, buffer| match per_tensor {
        true => Ok((fp8_scalar(name, buffer)?.cast(), 0)),
        false if !data.is_set() => Ok((null_mut(), 0)),
        false => check::block_scales(name, buffer, (mode, colwise), (rows, cols)),
    };
    let (rowwise_scale_inv, rowwise_scale_stride) =
        scale_inv("output.scale_inv", false, &output.rowwise, &output.rowwise_scale_inv)?;
    let (colwise_scale_inv, colwise_scale_stride) =
        scale_inv("output.columnwise_scale_inv", true, &output.colwise, &output.colwise_scale_inv)?;
    Ok(QuantizeArgs {
        input: input.rowwise.ptr(),
        rowwise: output.rowwise.ptr(),
        colwise: output.colwise.ptr(),
        scale: if per_tensor { fp8_scalar("output.scale", &output.scale)? } else { null_mut() },
        amax: match per_tensor || mxfp8 {
            true => check::optional_scalar("output.amax", &output.amax)?,
            false => null_mut(),
        },
        rowwise_scale_inv,
        colwise_scale_inv,
        noop,
        rows,
        cols,
        rowwise_scale_stride,
        colwise_scale_stride,
        epsilon: config.amax_epsilon,
        mode,
        input_dtype: input.dtype(),
        output_dtype: dtype,
        pow2: config.force_pow2_scales,
        square_blocks: mxfp8 && config.mxfp8_2d,
        swizzled: output.swizzled,
        fusion: Fusion::NONE,
        group: Group::NONE,
    })
}

/// Runs a cast.
fn quantize(
    input: NVTETensor,
    output: NVTETensor,
    noop: (&str, NVTETensor),
    config: &QuantizationConfig,
    stream: cudaStream_t,
) -> Result<()> {
    let input = check::tensor("input", input)?;
    let output = check::tensor("output", output)?;
    match plan_quantize(&input, &output, noop, config)? {
        Some(args) => backend::run(&args, stream),
        None => Ok(()),
    }
}

/// Runs a cast with a config.
fn quantize_with_config(
    input: NVTETensor,
    output: NVTETensor,
    config: NVTEQuantizationConfig,
    stream: cudaStream_t,
) -> Result<()> {
    let config = QuantizationConfig::get("quant_config", config)?;
    if config.stochastic_rounding {
        let name = "quant_config.stochastic_rounding";
        return Err(Error::argument(name, "0 (only NVFP4 rounds stochastically)", 1));
    }
    quantize(input, output, ("quant_config.noop_tensor", config.noop()), &config, stream)
}

/// Refuses scaling modes that this version cannot cast to or from, and swizzled scales where there
/// are none.
fn supported_mode(name: &str, tensor: &Tensor) -> Result<()> {
    let modes = [
        NVTE_DELAYED_TENSOR_SCALING,
        NVTE_MXFP8_1D_SCALING,
        NVTE_BLOCK_SCALING_1D,
        NVTE_BLOCK_SCALING_2D,
    ];
    if !modes.contains(&tensor.mode) {
        let expected = modes.map(|mode| mode.to_string()).join(" or ");
        let name = format!("{name}.scaling_mode");
        return Err(Error::unsupported(Error::argument(name, expected, tensor.mode).message));
    }
    if tensor.swizzled && tensor.mode != NVTE_MXFP8_1D_SCALING {
        let name = format!("{name}.with_gemm_swizzled_scales");
        let expected = format!("0 ({} scales are not swizzled)", tensor.mode);
        return Err(Error::argument(name, expected, 1));
    }
    Ok(())
}

fn dequantize(input: NVTETensor, output: NVTETensor, stream: cudaStream_t) -> Result<()> {
    let input = check::tensor("input", input)?;
    let output = check::tensor("output", output)?;
    let mode = input.mode;
    supported_mode("input", &input)?;
    if mode == NVTE_DELAYED_TENSOR_SCALING {
        check::scales("input", &input)?;
    }
    check::fp8("input", input.dtype())?;
    let colwise = !input.rowwise.is_set();
    let (name, data, scale_inv_name, scale_inv) = match colwise {
        false => ("input.data", &input.rowwise, "input.scale_inv", &input.rowwise_scale_inv),
        true => (
            "input.columnwise_data",
            &input.colwise,
            "input.columnwise_scale_inv",
            &input.colwise_scale_inv,
        ),
    };
    if !data.is_set() {
        return Err(Error::argument("input.data", "row-wise or column-wise data", "no data"));
    }
    check::pointer(name, data)?;
    check::input("output", &output)?;
    check::high_precision("output", output.dtype())?;
    let shape = input.shape("input")?;
    check::shape("output.data", &output.rowwise.shape, &shape)?;
    let (rows, cols) = shape.flatten();
    let (scale_inv, scale_stride) = match mode {
        NVTE_DELAYED_TENSOR_SCALING => (check::scalar(scale_inv_name, scale_inv)?.cast(), 0),
        _ => check::block_scales(scale_inv_name, scale_inv, (mode, colwise), (rows, cols))?,
    };
    let args = DequantizeArgs {
        input: data.ptr(),
        output: output.rowwise.ptr(),
        scale_inv,
        rows,
        cols,
        scale_stride,
        mode,
        input_dtype: input.dtype(),
        output_dtype: output.dtype(),
        colwise,
        swizzled: input.swizzled,
        group: Group::NONE,
    };
    if rows > 0 && cols > 0 { backend::run(&args, stream) } else { Ok(()) }
}
