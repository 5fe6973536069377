//! Casts with per-tensor scaling (spec: quantize, sections 3.1, 7.1 and 9.1).

pub(crate) mod cpu;
pub mod exports;

use super::transformer_engine::QuantizationConfig;
use crate::backend::{self, args::*};
use crate::check;
use crate::error::{Error, Result};
use crate::tensor::{Buffer, Tensor};
use crate::types::*;

/// Checks a cast and gives its arguments; none if there is nothing to do.
pub fn plan_quantize(
    input: NVTETensor,
    output: NVTETensor,
    (noop_name, noop): (&str, NVTETensor),
) -> Result<Option<QuantizeArgs>> {
    let input = check::tensor("input", input)?;
    let output = check::tensor("output", output)?;
    let noop = check::noop(noop_name, noop)?;
    supported_mode("output", &output)?;
    check::input("input", &input)?;
    check::high_precision("input", input.dtype())?;
    check::scales("output", &output)?;
    let dtype = output.dtype();
    if !dtype.is_fp8() {
        check::high_precision("output", dtype)?;
    }
    let shape = input.rowwise.shape;
    if !output.rowwise.is_set() && !output.colwise.is_set() {
        return Err(Error::argument("output.data", "row-wise or column-wise data", "no data"));
    }
    if output.rowwise.is_set() {
        check::shape("output.data", &output.rowwise.shape, &shape)?;
        check::pointer("output.data", &output.rowwise)?;
    }
    if output.colwise.is_set() {
        check::dtype("output.columnwise_data", output.colwise.dtype, &[dtype])?;
        check::shape("output.columnwise_data", &output.colwise.shape, &shape.transposed())?;
        check::pointer("output.columnwise_data", &output.colwise)?;
    }
    let fp8_scalar = |name: &str, buffer: &Buffer| match dtype.is_fp8() {
        true => check::optional_scalar(name, buffer),
        false => Ok(std::ptr::null_mut()),
    };
    let (rows, cols) = shape.flatten();
    let args = QuantizeArgs {
        input: input.rowwise.ptr(),
        rowwise: output.rowwise.ptr(),
        colwise: output.colwise.ptr(),
        scale: fp8_scalar("output.scale", &output.scale)?,
        amax: check::optional_scalar("output.amax", &output.amax)?,
        rowwise_scale_inv: fp8_scalar("output.scale_inv", &output.rowwise_scale_inv)?,
        colwise_scale_inv: fp8_scalar("output.columnwise_scale_inv", &output.colwise_scale_inv)?,
        noop,
        rows,
        cols,
        input_dtype: input.dtype(),
        output_dtype: dtype,
    };
    Ok((rows > 0 && cols > 0).then_some(args))
}

/// Runs a cast with a bare noop tensor.
pub fn quantize(
    input: NVTETensor,
    output: NVTETensor,
    noop: NVTETensor,
    stream: cudaStream_t,
) -> Result<()> {
    match plan_quantize(input, output, ("noop", noop))? {
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
    match plan_quantize(input, output, ("quant_config.noop_tensor", config.noop()))? {
        Some(args) => backend::run(&args, stream),
        None => Ok(()),
    }
}

/// Refuses scaling modes that this version cannot cast to or from.
fn supported_mode(name: &str, tensor: &Tensor) -> Result<()> {
    if tensor.mode == NVTEScalingMode::NVTE_DELAYED_TENSOR_SCALING {
        return Ok(());
    }
    let expected = NVTEScalingMode::NVTE_DELAYED_TENSOR_SCALING;
    let name = format!("{name}.scaling_mode");
    Err(Error::unsupported(Error::argument(name, expected, tensor.mode).message))
}

fn dequantize(input: NVTETensor, output: NVTETensor, stream: cudaStream_t) -> Result<()> {
    let input = check::tensor("input", input)?;
    let output = check::tensor("output", output)?;
    supported_mode("input", &input)?;
    check::scales("input", &input)?;
    check::fp8("input", input.dtype())?;
    let transposed = !input.rowwise.is_set();
    let (name, data, scale_inv_name, scale_inv) = match transposed {
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
    let args = DequantizeArgs {
        input: data.ptr(),
        output: output.rowwise.ptr(),
        scale_inv: check::scalar(scale_inv_name, scale_inv)?,
        rows,
        cols,
        input_dtype: input.dtype(),
        output_dtype: output.dtype(),
        transposed,
    };
    if rows > 0 && cols > 0 { backend::run(&args, stream) } else { Ok(()) }
}
