//! Activations, their gated forms and derivatives (spec: pointwise, sections 1 to 7). All but those
//! with scales of the rows are casts of computed elements.

pub(crate) mod cpu;
pub mod exports;

use super::cast::{self, grouped_input, plan_group_quantize, plan_shaped, run_group};
use super::transformer_engine::QuantizationConfig;
use crate::backend::args::Form::*;
use crate::backend::args::Function::*;
use crate::backend::{self, args::*};
use crate::check::{self, Memory};
use crate::error::{Error, Result};
use crate::tensor::{Buffer, GroupedTensor, Shape, Tensor};
use crate::types::*;
use std::ffi::c_void;
use std::ptr::{null, null_mut};

/// A function without parameters; the form of the fusion is set later.
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

impl Fused<'_> {
    /// Casts elements of `shape` that the function, in a form, makes of `first` and the input. What
    /// `first` is follows from the form: the input itself, or the gradient.
    fn cast(
        self,
        (form, first): (Form, &Tensor),
        (input, shape): (&Tensor, &Shape),
        output: &Tensor,
        stream: cudaStream_t,
    ) -> Result<()> {
        let act_input = match form {
            NVTEX_FORM_DERIVATIVE | NVTEX_FORM_GATED_DERIVATIVE => input.rowwise.ptr().cast_const(),
            _ => null(),
        };
        let fusion = Fusion { form, act_input, ..self.fusion };
        let args = plan_shaped(input, shape, output, self.config)?;
        let first = first.rowwise.ptr();
        cast::run(args.map(|args| Cast { input: first, fusion, ..args }), stream)
    }
}

/// `output = cast(f(input))`
pub(crate) fn forward<'a>(
    f: impl Into<Fused<'a>>,
    input: &Tensor,
    output: &Tensor,
    stream: cudaStream_t,
) -> Result<()> {
    let shape = &input.rowwise.shape;
    f.into().cast((NVTEX_FORM_ACTIVATION, input), (input, shape), output, stream)
}

/// `output = cast(f'(input) * grad)`
pub(crate) fn backward<'a>(
    f: impl Into<Fused<'a>>,
    grad: &Tensor,
    input: &Tensor,
    output: &Tensor,
    stream: cudaStream_t,
) -> Result<()> {
    let shape = &input.rowwise.shape;
    check::input("grad", grad)?;
    check::dtype("grad", grad.dtype(), &[input.dtype()])?;
    check::shape("grad", &grad.rowwise.shape, shape)?;
    f.into().cast((NVTEX_FORM_DERIVATIVE, grad), (input, shape), output, stream)
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

/// `output = cast(f(a) * G(g))` of the halves (a | g) of the input.
pub(crate) fn gated_forward<'a>(
    f: impl Into<Fused<'a>>,
    input: &Tensor,
    output: &Tensor,
    stream: cudaStream_t,
) -> Result<()> {
    matrix("output", output, halves(input)?)?;
    let shape = output.shape("output")?;
    f.into().cast((NVTEX_FORM_GATED, input), (input, &shape), output, stream)
}

/// `output = cast((f'(a) * grad * G(g) | G'(g) * grad * f(a)))` of the halves (a | g) of the input.
pub(crate) fn gated_backward<'a>(
    f: impl Into<Fused<'a>>,
    grad: &Tensor,
    input: &Tensor,
    output: &Tensor,
    stream: cudaStream_t,
) -> Result<()> {
    check::input("grad", grad)?;
    check::dtype("grad", grad.dtype(), &[input.dtype()])?;
    matrix("grad", grad, halves(input)?)?;
    let shape = &input.rowwise.shape;
    f.into().cast((NVTEX_FORM_GATED_DERIVATIVE, grad), (input, shape), output, stream)
}

/// Casts what a function makes of the members of a group `v`. What the function reads besides has room for
/// so many elements of the output.
fn group_cast(
    (fusion, elements): (Fusion, usize),
    (name, v): (&str, &GroupedTensor),
    output: &GroupedTensor,
    stream: cudaStream_t,
) -> Result<()> {
    let config = &QuantizationConfig::DEFAULT;
    let args = plan_group_quantize((name, v), output, config)?;
    let args = args.map(|args| {
        let group = Group { elements: args.group.elements.min(elements), ..args.group };
        Cast { fusion, group, ..args }
    });
    run_group(args, stream)
}

fn group_forward(
    f: Fusion,
    input: &GroupedTensor,
    output: &GroupedTensor,
    stream: cudaStream_t,
) -> Result<()> {
    let fusion = Fusion { form: NVTEX_FORM_ACTIVATION, ..f };
    group_cast((fusion, usize::MAX), ("input", input), output, stream)
}

fn group_backward(
    f: Fusion,
    grad: &GroupedTensor,
    input: &GroupedTensor,
    output: &GroupedTensor,
    stream: cudaStream_t,
) -> Result<()> {
    check::dtype("grad", grad.dtype(), &[input.dtype()])?;
    let act_input = grouped_input(("input", input), output)?;
    let fusion = Fusion { form: NVTEX_FORM_DERIVATIVE, act_input, ..f };
    group_cast((fusion, check::common_room(&[&input.rowwise])), ("grad", grad), output, stream)
}

fn group_scaled(
    f: Fusion,
    input: &GroupedTensor,
    prob: &Tensor,
    output: &GroupedTensor,
    stream: cudaStream_t,
) -> Result<()> {
    let (group, (rows, cols)) = check::members("output", output)?;
    if !group.last_dims.is_null() {
        let expected = "nothing (all members have one last dimension)";
        return Err(Error::argument("output.last_dims", expected, output.last_dims.shape));
    }
    let got = input.logical_shape;
    if got.flatten().1 != 2 * cols {
        let expected = format!("a last dimension of {}, twice the output's", 2 * cols);
        return Err(Error::argument("input.logical_shape", expected, got));
    }
    check::grouped_data("input.data", &input.rowwise, (rows, 2 * cols))?;
    check::dtype("prob", prob.rowwise.dtype, &[input.dtype()])?;
    let (row_scales, _) = data("prob", &prob.rowwise)?;
    if prob.rowwise.shape.numel() < rows {
        let expected = format!("{rows} or more elements, one for each row");
        return Err(Error::argument("prob.shape", expected, prob.rowwise.shape));
    }
    let fusion = Fusion { form: NVTEX_FORM_GATED, row_scales, ..f };
    let logical_shape = Shape::new(&[got.flatten().0, cols]);
    // The members begin at twice the offsets of the output's.
    let elements = check::common_room(&[&input.rowwise]) / 2;
    let v = GroupedTensor { logical_shape, ..input.clone() };
    group_cast((fusion, elements), ("input", &v), output, stream)
}

/// Data in high precision.
fn data(name: &str, data: &Buffer) -> Result<(*mut c_void, NVTEDType)> {
    if !data.is_set() {
        return Err(Error::argument(format!("{name}.data"), "row-wise data", "no data"));
    }
    check::high_precision(name, data.dtype)?;
    Ok((check::pointer(format_args!("{name}.data"), data)?, data.dtype))
}

/// Row-wise data of one element for each row.
fn row_data(name: &str, buffer: &Buffer, rows: usize) -> Result<(*mut c_void, NVTEDType)> {
    let data = data(name, buffer)?;
    if buffer.shape.numel() != rows {
        let expected = format!("{rows} elements, one for each row");
        return Err(Error::argument(format!("{name}.shape"), expected, buffer.shape));
    }
    Ok(data)
}

/// Tensors of an activation with scales of the rows, of which only row-wise data count.
struct Scaled<'a> {
    gated: bool,
    interleave: i64,
    /// For the derivative: `grad`, and `grad_act_scales` if they are wanted.
    grads: Option<(&'a Tensor, Option<&'a Tensor>)>,
    input: &'a Tensor,
    act_scales: &'a Tensor,
    output: &'a Tensor,
}

impl Scaled<'_> {
    fn plan(&self, f: Fusion) -> Result<Option<ScaledActivationArgs>> {
        let output_name = if self.grads.is_some() { "grad_input" } else { "output" };
        let (input, input_dtype) = data("input", &self.input.rowwise)?;
        let (output, output_dtype) = data(output_name, &self.output.rowwise)?;
        let (grad, grad_dtype) = match self.grads {
            Some((grad, _)) => data("grad", &grad.rowwise)?,
            None => (null_mut(), input_dtype),
        };
        // The gradient has the shape of the output.
        let of = self.grads.map_or(self.output, |(grad, _)| grad);
        let (rows, cols) = of.rowwise.shape.flatten();
        let width = if self.gated { 2 * cols } else { cols };
        let out_width = if self.grads.is_some() { width } else { cols };
        matrix("input", self.input, (rows, width))?;
        matrix(output_name, self.output, (rows, out_width))?;
        let interleave = match usize::try_from(self.interleave) {
            Ok(0) => cols,
            Ok(size) if size % 32 == 0 && cols % size == 0 => size,
            _ => {
                let expected = format!("0 or a multiple of 32 that divides {cols}");
                return Err(Error::argument("glu_interleave_size", expected, self.interleave));
            }
        };
        let (scales, scales_dtype) = row_data("act_scales", &self.act_scales.rowwise, rows)?;
        let (grad_scales, grad_scales_dtype) = match self.grads {
            Some((_, Some(sums))) => row_data("grad_act_scales", &sums.rowwise, rows)?,
            _ => (null_mut(), scales_dtype),
        };
        let matrix = |name, ptr: *mut c_void, width: usize, dtype: NVTEDType| {
            Memory::new(name, ptr, rows * width * dtype.bits() / 8)
        };
        let inputs =
            [matrix(&"input", input, width, input_dtype), matrix(&"grad", grad, cols, grad_dtype)];
        let factors = matrix(&"act_scales", scales, 1, scales_dtype);
        let result = matrix(&output_name, output, out_width, output_dtype);
        let sums = matrix(&"grad_act_scales", grad_scales, 1, grad_scales_dtype);
        check::apart_or_same(&inputs, &result)?;
        check::apart_or_same(&[factors], &sums)?;
        check::apart(&[inputs[0], inputs[1], result], &[sums])?;
        check::apart(&[factors], &[result])?;
        let args = ScaledActivationArgs {
            input,
            grad,
            output,
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
            input_dtype,
            grad_dtype,
            output_dtype,
            scales_dtype,
            grad_scales_dtype,
        };
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
    input: &Tensor,
    act_scales: &Tensor,
    output: &Tensor,
    interleave: i64,
    stream: cudaStream_t,
) -> Result<()> {
    Scaled { gated: true, interleave, grads: None, input, act_scales, output }.run(f, stream)
}

#[allow(clippy::too_many_arguments)]
fn scaled_gated_backward(
    f: Fusion,
    grad: &Tensor,
    input: &Tensor,
    act_scales: &Tensor,
    output: &Tensor,
    grad_act_scales: Option<&Tensor>,
    interleave: i64,
    stream: cudaStream_t,
) -> Result<()> {
    let grads = Some((grad, grad_act_scales));
    Scaled { gated: true, interleave, grads, input, act_scales, output }.run(f, stream)
}

fn scaled_plain(
    f: Fusion,
    input: &Tensor,
    act_scales: &Tensor,
    output: &Tensor,
    stream: cudaStream_t,
) -> Result<()> {
    Scaled { gated: false, interleave: 0, grads: None, input, act_scales, output }.run(f, stream)
}

fn scaled_plain_backward(
    f: Fusion,
    grad: &Tensor,
    input: &Tensor,
    act_scales: &Tensor,
    output: &Tensor,
    grad_act_scales: Option<&Tensor>,
    stream: cudaStream_t,
) -> Result<()> {
    let grads = Some((grad, grad_act_scales));
    Scaled { gated: false, interleave: 0, grads, input, act_scales, output }.run(f, stream)
}
