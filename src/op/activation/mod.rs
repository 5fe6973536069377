//! Activations, their gated forms and derivatives (spec: pointwise, sections 1 to 7). All but those
//! with scales of the rows are casts of computed elements.

pub(crate) mod cpu;
pub mod exports;

use super::cast::{self, grouped_input, plan_group_quantize, plan_quantize, run_group};
use super::transformer_engine::QuantizationConfig;
use crate::backend::args::Form::*;
use crate::backend::args::Function::*;
use crate::backend::{self, args::*};
use crate::check::{self, Memory};
use crate::error::{Error, Result};
use crate::tensor::{GroupedTensor, Shape, Tensor};
use crate::types::*;
use std::ffi::c_void;
use std::ptr::{null, null_mut};

/// A function without parameters; the form comes later.
fn function(function: Function) -> Fusion {
    Fusion { function, ..Fusion::NONE }
}

fn clamped_silu(limit: f32, alpha: f32, offset: f32) -> Fusion {
    Fusion { a: limit, b: alpha, c: offset, ..function(NVTEX_CLAMPED_SILU) }
}

fn situ(beta1: f32, beta2: f32) -> Result<Fusion> {
    for (name, beta) in [("beta1", beta1), ("beta2", beta2)] {
        if !(beta.is_finite() && beta > 0.0) {
            return Err(Error::argument(name, "a finite number above 0", beta));
        }
    }
    Ok(Fusion { a: beta1, b: beta2, ..function(NVTEX_SITU) })
}

/// A function and how its results are cast.
pub(crate) struct Fused<'a> {
    pub fusion: Fusion,
    pub config: &'a QuantizationConfig,
}

impl From<Fusion> for Fused<'static> {
    fn from(fusion: Fusion) -> Self {
        Self { fusion, config: &QuantizationConfig::DEFAULT }
    }
}

/// Casts what a fusion makes of `input`: elements of the shape and dtype of `v`.
fn cast(
    f: Fused,
    input: *const c_void,
    v: &Tensor,
    output: &Tensor,
    stream: cudaStream_t,
) -> Result<()> {
    match plan_quantize(v, output, ("noop", null_mut()), f.config)? {
        Some(args) => cast::run(&QuantizeArgs { input, fusion: f.fusion, ..args }, stream),
        None => Ok(()),
    }
}

impl Fused<'_> {
    /// The form, and the input of a derivative's function.
    fn form(self, form: Form, act_input: *const c_void) -> Self {
        Self { fusion: Fusion { form, act_input, ..self.fusion }, ..self }
    }
}

pub(crate) fn forward<'a>(
    f: impl Into<Fused<'a>>,
    input: NVTETensor,
    output: NVTETensor,
    stream: cudaStream_t,
) -> Result<()> {
    let input = check::tensor("input", input)?;
    let output = check::tensor("output", output)?;
    let f = f.into().form(NVTEX_FORM_ACTIVATION, null());
    cast(f, input.rowwise.ptr(), &input, &output, stream)
}

pub(crate) fn backward<'a>(
    f: impl Into<Fused<'a>>,
    grad: NVTETensor,
    input: NVTETensor,
    output: NVTETensor,
    stream: cudaStream_t,
) -> Result<()> {
    let (grad, input) = (check::tensor("grad", grad)?, check::tensor("input", input)?);
    let output = check::tensor("output", output)?;
    check::input("grad", &grad)?;
    check::dtype("grad", grad.dtype(), &[input.dtype()])?;
    check::shape("grad", &grad.rowwise.shape, &input.rowwise.shape)?;
    let f = f.into().form(NVTEX_FORM_DERIVATIVE, input.rowwise.ptr());
    cast(f, grad.rowwise.ptr(), &input, &output, stream)
}

/// Rows of a gated input, and columns of each half.
fn halves(input: &Tensor) -> Result<(usize, usize)> {
    check::input("input", input)?;
    let (rows, cols) = input.rowwise.shape.flatten();
    if cols % 2 != 0 {
        return Err(Error::argument("input.shape", "an even last dimension", input.rowwise.shape));
    }
    Ok((rows, cols / 2))
}

/// A shape as a matrix.
fn matrix(name: &str, tensor: &Tensor, expected: (usize, usize)) -> Result<()> {
    let shape = tensor.shape(name)?;
    if shape.flatten() == expected {
        return Ok(());
    }
    let expected = format!("[{}, {}] as a matrix", expected.0, expected.1);
    Err(Error::argument(format!("{name}.shape"), expected, shape))
}

pub(crate) fn gated_forward<'a>(
    f: impl Into<Fused<'a>>,
    input: NVTETensor,
    output: NVTETensor,
    stream: cudaStream_t,
) -> Result<()> {
    let input = check::tensor("input", input)?;
    let output = check::tensor("output", output)?;
    matrix("output", &output, halves(&input)?)?;
    let f = f.into().form(NVTEX_FORM_GATED, null());
    let mut v = input.clone();
    v.rowwise.shape = output.shape("output")?;
    cast(f, input.rowwise.ptr(), &v, &output, stream)
}

pub(crate) fn gated_backward<'a>(
    f: impl Into<Fused<'a>>,
    grad: NVTETensor,
    input: NVTETensor,
    output: NVTETensor,
    stream: cudaStream_t,
) -> Result<()> {
    let (grad, input) = (check::tensor("grad", grad)?, check::tensor("input", input)?);
    let output = check::tensor("output", output)?;
    check::input("grad", &grad)?;
    check::dtype("grad", grad.dtype(), &[input.dtype()])?;
    matrix("grad", &grad, halves(&input)?)?;
    let f = f.into().form(NVTEX_FORM_GATED_DERIVATIVE, input.rowwise.ptr());
    cast(f, grad.rowwise.ptr(), &input, &output, stream)
}

/// As [`cast`], for the members of a group; the input is that of `v`. What the function reads besides has
/// room for so many elements of the output.
fn group_cast(
    (fusion, elements): (Fusion, usize),
    (name, v): (&str, &GroupedTensor),
    output: &GroupedTensor,
    stream: cudaStream_t,
) -> Result<()> {
    let config = &QuantizationConfig::DEFAULT;
    match plan_group_quantize((name, v), output, ("noop", null_mut()), config)? {
        Some(args) => {
            let group = Group { elements: args.group.elements.min(elements), ..args.group };
            run_group(&QuantizeArgs { fusion, group, ..args }, stream)
        }
        None => Ok(()),
    }
}

fn group_forward(
    f: Fusion,
    input: NVTEGroupedTensor,
    output: NVTEGroupedTensor,
    stream: cudaStream_t,
) -> Result<()> {
    let input = check::grouped_tensor("input", input)?;
    let output = check::grouped_tensor("output", output)?;
    let fusion = Fusion { form: NVTEX_FORM_ACTIVATION, ..f };
    group_cast((fusion, usize::MAX), ("input", &input), &output, stream)
}

fn group_backward(
    f: Fusion,
    grad: NVTEGroupedTensor,
    input: NVTEGroupedTensor,
    output: NVTEGroupedTensor,
    stream: cudaStream_t,
) -> Result<()> {
    let grad = check::grouped_tensor("grad", grad)?;
    let input = check::grouped_tensor("input", input)?;
    let output = check::grouped_tensor("output", output)?;
    check::dtype("grad", grad.dtype(), &[input.dtype()])?;
    let act_input = grouped_input(("input", &input), &output)?;
    let fusion = Fusion { form: NVTEX_FORM_DERIVATIVE, act_input, ..f };
    group_cast((fusion, check::common_room(&[&input.rowwise])), ("grad", &grad), &output, stream)
}

fn group_scaled(
    f: Fusion,
    input: NVTEGroupedTensor,
    prob: NVTETensor,
    output: NVTEGroupedTensor,
    stream: cudaStream_t,
) -> Result<()> {
    let input = check::grouped_tensor("input", input)?;
    let output = check::grouped_tensor("output", output)?;
    let (group, (rows, cols)) = check::members("output", &output)?;
    if !group.last_dims.is_null() {
        let expected = "nothing (members of one last dimension)";
        return Err(Error::argument("output.last_dims", expected, output.last_dims.shape));
    }
    let got = input.logical_shape;
    if got.flatten().1 != 2 * cols {
        let expected = format!("a last dimension of {}, twice the output's", 2 * cols);
        return Err(Error::argument("input.logical_shape", expected, got));
    }
    check::grouped_data("input.data", &input.rowwise, (rows, 2 * cols))?;
    let prob = check::tensor("prob", prob)?;
    check::dtype("prob", prob.rowwise.dtype, &[input.dtype()])?;
    let (row_scales, _) = data("prob", &prob)?;
    if prob.rowwise.shape.numel() < rows {
        let expected = format!("{rows} or more elements, one for each row");
        return Err(Error::argument("prob.shape", expected, prob.rowwise.shape));
    }
    let fusion = Fusion { form: NVTEX_FORM_GATED, row_scales, ..f };
    let logical_shape = Shape::new(&[got.flatten().0, cols]);
    // The members begin at twice the offsets of the output's.
    let elements = check::common_room(&[&input.rowwise]) / 2;
    let v = GroupedTensor { logical_shape, ..input };
    group_cast((fusion, elements), ("input", &v), &output, stream)
}

/// Row-wise data in high precision; whatever else the tensor has is not looked at.
fn data(name: &str, tensor: &Tensor) -> Result<(*mut c_void, NVTEDType)> {
    let data = &tensor.rowwise;
    if !data.is_set() {
        return Err(Error::argument(format!("{name}.data"), "row-wise data", "no data"));
    }
    check::high_precision(name, data.dtype)?;
    Ok((check::pointer(format_args!("{name}.data"), data)?, data.dtype))
}

/// One element for each row.
fn row_data(name: &str, tensor: &Tensor, rows: usize) -> Result<(*mut c_void, NVTEDType)> {
    let data = data(name, tensor)?;
    if tensor.rowwise.shape.numel() != rows {
        let expected = format!("{rows} elements, one for each row");
        return Err(Error::argument(format!("{name}.shape"), expected, tensor.rowwise.shape));
    }
    Ok(data)
}

/// Tensors of an activation with scales of the rows.
struct Scaled {
    gated: bool,
    interleave: i64,
    /// Of the backward: `grad` and `grad_act_scales`.
    grads: Option<(NVTETensor, NVTETensor)>,
    input: NVTETensor,
    act_scales: NVTETensor,
    output: NVTETensor,
}

impl Scaled {
    fn plan(&self, f: Fusion) -> Result<Option<ScaledActivationArgs>> {
        let tensor = |name: &str, handle| -> Result<Tensor> {
            let tensor = check::tensor(name, handle)?;
            data(name, &tensor).map(|_| tensor)
        };
        let input = tensor("input", self.input)?;
        let scales = check::tensor("act_scales", self.act_scales)?;
        let output_name = if self.grads.is_some() { "grad_input" } else { "output" };
        let output = tensor(output_name, self.output)?;
        let grad = self.grads.map(|(grad, _)| tensor("grad", grad)).transpose()?;

        let (rows, cols) = grad.as_ref().unwrap_or(&output).rowwise.shape.flatten();
        let width = if self.gated { 2 * cols } else { cols };
        matrix("input", &input, (rows, width))?;
        matrix(output_name, &output, (rows, if grad.is_some() { width } else { cols }))?;
        let interleave = match usize::try_from(self.interleave) {
            Ok(0) => cols,
            Ok(size) if size % 32 == 0 && cols % size == 0 => size,
            _ => {
                let expected = format!("0 or a multiple of 32 that divides {cols}");
                return Err(Error::argument("glu_interleave_size", expected, self.interleave));
            }
        };
        let (scales, scales_dtype) = row_data("act_scales", &scales, rows)?;
        let (grad_scales, grad_scales_dtype) = match self.grads {
            Some((_, grad_scales)) if !grad_scales.is_null() => {
                let name = "grad_act_scales";
                row_data(name, &check::tensor(name, grad_scales)?, rows)?
            }
            _ => (null_mut(), scales_dtype),
        };
        let args = ScaledActivationArgs {
            input: input.rowwise.ptr(),
            grad: grad.as_ref().map_or(null(), |grad| grad.rowwise.ptr().cast_const()),
            output: output.rowwise.ptr(),
            scales,
            grad_scales,
            rows,
            cols,
            interleave,
            gated: self.gated,
            function: f.function,
            a: f.a,
            b: f.b,
            c: f.c,
            input_dtype: input.dtype(),
            grad_dtype: grad.as_ref().map_or(input.dtype(), Tensor::dtype),
            output_dtype: output.dtype(),
            scales_dtype,
            grad_scales_dtype,
        };
        let matrix = |name, ptr, width: usize, dtype: NVTEDType| {
            Memory::new(name, ptr, rows * width * dtype.bits() / 8)
        };
        let out_width = if grad.is_some() { width } else { cols };
        let inputs = [
            matrix(&"input", args.input, width, args.input_dtype),
            matrix(&"grad", args.grad, cols, args.grad_dtype),
        ];
        let scales = matrix(&"act_scales", args.scales, 1, scales_dtype);
        let output = matrix(&output_name, args.output, out_width, args.output_dtype);
        let grad_scales = matrix(&"grad_act_scales", args.grad_scales, 1, grad_scales_dtype);
        check::apart_or_same(&inputs, &output)?;
        check::apart_or_same(&[scales], &grad_scales)?;
        check::apart(&[inputs[0], inputs[1], output], &[grad_scales])?;
        check::apart(&[scales], &[output])?;
        Ok((rows > 0 && cols > 0).then_some(args))
    }

    fn run(&self, f: Fusion, stream: cudaStream_t) -> Result<()> {
        match self.plan(f)? {
            Some(args) => backend::run(&args, stream),
            None => Ok(()),
        }
    }
}

fn scaled_gated(
    f: Fusion,
    input: NVTETensor,
    act_scales: NVTETensor,
    output: NVTETensor,
    interleave: i64,
    stream: cudaStream_t,
) -> Result<()> {
    Scaled { gated: true, interleave, grads: None, input, act_scales, output }.run(f, stream)
}

#[allow(clippy::too_many_arguments)]
fn scaled_gated_backward(
    f: Fusion,
    grad: NVTETensor,
    input: NVTETensor,
    act_scales: NVTETensor,
    output: NVTETensor,
    grad_act_scales: NVTETensor,
    interleave: i64,
    stream: cudaStream_t,
) -> Result<()> {
    let grads = Some((grad, grad_act_scales));
    Scaled { gated: true, interleave, grads, input, act_scales, output }.run(f, stream)
}

fn scaled_plain(
    f: Fusion,
    input: NVTETensor,
    act_scales: NVTETensor,
    output: NVTETensor,
    stream: cudaStream_t,
) -> Result<()> {
    Scaled { gated: false, interleave: 0, grads: None, input, act_scales, output }.run(f, stream)
}

fn scaled_plain_backward(
    f: Fusion,
    grad: NVTETensor,
    input: NVTETensor,
    act_scales: NVTETensor,
    output: NVTETensor,
    grad_act_scales: NVTETensor,
    stream: cudaStream_t,
) -> Result<()> {
    let grads = Some((grad, grad_act_scales));
    Scaled { gated: false, interleave: 0, grads, input, act_scales, output }.run(f, stream)
}
