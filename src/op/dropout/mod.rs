//! Dropout with a mask of bits (spec: pointwise_norm, section 10).

pub(crate) mod cpu;
pub mod exports;

use crate::backend::{self, args::*};
use crate::check::{self, Memory};
use crate::error::{Error, Result};
use crate::tensor::{Buffer, Shape, Tensor};
use crate::types::*;
use std::ptr::null;

/// What the forward pass adds before and after the dropout.
pub(crate) struct Added<'a> {
    /// The bias, or an unset buffer.
    pub bias: &'a Buffer,
    pub residual: &'a Tensor,
}

/// Both passes of dropout; the backward pass has no `rng_state`.
pub(crate) fn dropout(
    input: (&str, &Tensor),
    output: (&str, &Tensor),
    mask: &Buffer,
    rng_state: Option<&Buffer>,
    probability: f32,
    stream: cudaStream_t,
) -> Result<()> {
    let args = plan(input, output, mask, rng_state, probability)?;
    run(&args, [input.0, output.0], stream)
}

pub(crate) fn bias_dropout_add(
    input: &Tensor,
    added: &Added,
    output: &Tensor,
    mask: &Buffer,
    (rng_state, before, probability): (&Buffer, usize, f32),
    stream: cudaStream_t,
) -> Result<()> {
    let x = &input.rowwise;
    check::high_precision("input", x.dtype)?;
    let plain = plan(("input", input), ("output", output), mask, Some(rng_state), probability)?;
    check::input("residual", added.residual)?;
    let residual = &added.residual.rowwise;
    check::dtype("residual", residual.dtype, &[x.dtype])?;
    if residual.shape.numel() != plain.numel {
        let expected = format!("{} elements (input has {})", plain.numel, x.shape);
        return Err(Error::argument("residual.shape", expected, residual.shape));
    }
    let (_, cols) = x.shape.flatten();
    let bias = added.bias;
    let bias = match bias.is_set() {
        true => {
            check::dtype("bias", bias.dtype, &[x.dtype])?;
            check::shape("bias", &bias.shape, &Shape::new(&[cols]))?;
            check::pointer("bias.data", bias)?.cast_const()
        }
        false => null(),
    };
    // Random numbers are made for groups of elements.
    if !before.is_multiple_of(16) {
        let expected = "a multiple of 16 (rows x columns of each rank)";
        return Err(Error::argument("elements before those of input", expected, before));
    }
    let first = before / 16;
    let args = DropoutArgs { residual: residual.ptr(), bias, cols, first, ..plain };
    run(&args, ["input", "output"], stream)
}

fn run(args: &DropoutArgs, names: [&str; 2], stream: cudaStream_t) -> Result<()> {
    let bytes = |dtype: NVTEDType| args.numel * dtype.bits() / 8;
    let output = Memory::new(&names[1], args.output, bytes(args.output_dtype));
    let inputs = [
        Memory::new(&names[0], args.input, bytes(args.input_dtype)),
        Memory::new(&"residual", args.residual, bytes(args.input_dtype)),
    ];
    let mask = Memory::new(&"mask", args.mask, args.numel.div_ceil(8));
    let others = [
        Memory::new(&"bias", args.bias, args.cols * args.input_dtype.bits() / 8),
        Memory::new(&"rng_state", args.rng_state, 16),
        Memory::new(&"scale_inv", args.scale_inv, 4),
    ];
    check::apart_or_same(&inputs, &output)?;
    check::apart(&inputs, &[mask])?;
    check::apart(&others, &[mask, output])?;
    if args.numel > 0 { backend::run(args, stream) } else { Ok(()) }
}

fn plan(
    (input_name, input): (&str, &Tensor),
    (output_name, output): (&str, &Tensor),
    mask: &Buffer,
    rng_state: Option<&Buffer>,
    probability: f32,
) -> Result<DropoutArgs> {
    check::input(input_name, input)?;
    check::input(output_name, output)?;
    if !(0.0..1.0).contains(&probability) {
        let expected = "at least 0 and less than 1";
        return Err(Error::argument("dropout_probability", expected, probability));
    }
    let (x, y) = (&input.rowwise, &output.rowwise);
    check::high_precision(output_name, y.dtype)?;
    let fp8 = x.dtype.is_fp8() && rng_state.is_some();
    if !fp8 {
        check::dtype(input_name, x.dtype, &[y.dtype])?;
    }
    let numel = x.shape.numel();
    if y.shape.numel() != numel {
        let expected = format!("{numel} elements ({input_name} has {})", x.shape);
        return Err(Error::argument(format!("{output_name}.shape"), expected, y.shape));
    }
    let mask_bytes = numel.div_ceil(8);
    if mask.bytes() != mask_bytes {
        let expected = format!("{mask_bytes} bytes, a bit for each of {numel} elements");
        let got = format!("{} of {}", mask.shape, mask.dtype);
        return Err(Error::argument("mask.shape", expected, got));
    }
    Ok(DropoutArgs {
        input: x.ptr(),
        output: y.ptr(),
        mask: check::raw_pointer("mask.data", mask.ptr(), mask_bytes, NVTEDType::kNVTEByte)?.cast(),
        rng_state: match rng_state {
            Some(state) => seed_and_offset(state)?,
            None => null(),
        },
        scale_inv: match fp8 {
            true => {
                check::scalar(format_args!("{input_name}.scale_inv"), &input.rowwise_scale_inv)?
            }
            false => null(),
        },
        numel,
        probability,
        input_dtype: x.dtype,
        output_dtype: y.dtype,
        residual: null(),
        bias: null(),
        cols: 1,
        first: 0,
    })
}

fn seed_and_offset(state: &Buffer) -> Result<*const u64> {
    check::dtype("rng_state", state.dtype, &[NVTEDType::kNVTEInt64])?;
    check::shape("rng_state", &state.shape, &Shape::new(&[2]))?;
    Ok(check::pointer("rng_state.data", state)?.cast_const().cast())
}
