//! Casts with per-tensor scaling, FP8 block scaling, MXFP8 and NVFP4, of tensors and of groups, with sums over
//! the rows (spec: quantize, sections 3 to 8, 9.1 and 9.2).

pub(crate) mod cpu;
pub(crate) mod cpu_block;
mod cpu_fused;
pub(crate) mod cpu_nvfp4;
pub(crate) mod cpu_requantize;
pub mod exports;
pub mod exports_derivatives;
pub(crate) mod nvfp4;
mod requantize;

use super::transformer_engine::QuantizationConfig;
use crate::backend::{self, args::*};
use crate::check::{self, Memory};
use crate::device_check;
use crate::error::{Error, Result};
use crate::tensor::{Buffer, GroupedTensor, Shape, Tensor};
use crate::types::NVTEScalingMode::*;
use crate::types::*;
use crate::workspace::Workspace;
use std::ffi::c_void;
use std::ptr::null_mut;

/// Checks a cast and gives its arguments; none if there is nothing to do.
pub(crate) fn plan_quantize(
    input: &Tensor,
    output: &Tensor,
    config: &QuantizationConfig,
) -> Result<Option<Cast>> {
    plan_shaped(input, &input.rowwise.shape, output, config)
}

/// As [`plan_quantize`], for elements of another shape, which a fusion computes from the input.
pub(crate) fn plan_shaped(
    input: &Tensor,
    shape: &Shape,
    output: &Tensor,
    config: &QuantizationConfig,
) -> Result<Option<Cast>> {
    let args = quantize_args(input, shape, output, config)?;
    Ok((args.rows > 0 && args.cols > 0).then_some(args))
}

/// Checks a cast of elements of `shape` and gives its arguments, of an empty tensor, too.
pub(crate) fn quantize_args(
    input: &Tensor,
    shape: &Shape,
    output: &Tensor,
    config: &QuantizationConfig,
) -> Result<Cast> {
    check_rounding(config)?;
    let mode = output.mode;
    let (per_tensor, mxfp8) = (mode == NVTE_DELAYED_TENSOR_SCALING, mode == NVTE_MXFP8_1D_SCALING);
    check::fp8_scaling("output", output.mode)?;
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
    if output.rowwise.is_set() {
        check::shape("output.data", &output.rowwise.shape, shape)?;
        check::pointer("output.data", &output.rowwise)?;
    }
    if output.colwise.is_set() {
        check::dtype("output.columnwise_data", output.colwise.dtype, &[dtype])?;
        check_colwise_shape("output.columnwise_data", output, shape)?;
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
    Ok(Cast {
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
        noop: config.noop(),
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
        swizzled: output.tiled(),
        fusion: Fusion::NONE,
        group: Group::NONE,
    })
}

/// Refuses column-wise data of a tensor of `shape` that lie otherwise. Of data beside row-wise ones only the
/// number of elements counts: callers declare them in the shape of the row-wise data, and how they lie follows
/// from the scaling mode.
pub(super) fn check_colwise_shape(name: &str, tensor: &Tensor, shape: &Shape) -> Result<()> {
    let got = &tensor.colwise.shape;
    if tensor.rowwise.is_set() && got.numel() == shape.numel() {
        return Ok(());
    }
    let transposed = tensor.mode.scaling().transposed(true);
    check::shape(name, got, &if transposed { shape.transposed() } else { *shape })
}

/// Refuses outputs that overlap an input or another output; the row-wise output of per-tensor scaling may
/// be an input of which each element becomes one of the output.
pub(crate) fn apart(a: &Cast) -> Result<()> {
    use Form::*;
    let of_members = a.group.num_tensors.max(1);
    let numel = a.rows.saturating_mul(a.cols);
    let (input_size, output_size) = (a.input_dtype.bits() / 8, a.output_dtype.bits() / 8);
    let input_bytes = numel.saturating_mul(input_size);
    let output_bytes = numel.saturating_mul(output_size);
    let per_tensor = a.mode == NVTE_DELAYED_TENSOR_SCALING;
    let form = a.fusion.form;
    let inputs = [
        Memory::new(
            &"the input",
            a.input,
            match form {
                NVTEX_FORM_GATED => input_bytes.saturating_mul(2),
                NVTEX_FORM_GATED_DERIVATIVE => input_bytes / 2,
                _ => input_bytes,
            },
        ),
        Memory::new(&"the input of the activation", a.fusion.act_input, input_bytes),
        Memory::new(&"the scales of the rows", a.fusion.row_scales, a.rows * input_size),
    ];
    // The scales of a group do not have one stride, so their whole buffer counts.
    let scale_bytes = |colwise, stride: usize| match per_tensor || a.group.num_tensors > 0 {
        true => 0,
        false => {
            let lines = a.mode.scaling().scale_dims(colwise, (a.rows, a.cols)).0;
            lines * stride * a.mode.scaling().scale_bytes()
        }
    };
    let row_scales = scale_bytes(false, a.rowwise_scale_stride);
    let col_scales = scale_bytes(true, a.colwise_scale_stride);
    let workspace_rows = Cast::dbias_workspace_rows(a.rows, of_members);
    let rowwise = Memory::new(&"output.data", a.rowwise, output_bytes);
    let outputs = [
        rowwise,
        Memory::new(&"output.columnwise_data", a.colwise, output_bytes),
        Memory::new(&"output.scale_inv", a.rowwise_scale_inv, row_scales),
        Memory::new(&"output.columnwise_scale_inv", a.colwise_scale_inv, col_scales),
        Memory::new(&"dbias.data", a.fusion.dbias, of_members * a.cols * input_size),
        Memory::new(&"workspace.data", a.fusion.workspace, workspace_rows * a.cols * 4),
    ];
    if per_tensor && !matches!(form, NVTEX_FORM_GATED | NVTEX_FORM_GATED_DERIVATIVE) {
        check::apart_or_same(&inputs[..2], &rowwise)?;
        check::apart(&inputs[2..], &outputs)?;
        return check::apart(&inputs[..2], &outputs[1..]);
    }
    check::apart(&inputs, &outputs)
}

/// Runs a planned cast, if there is one, unless its tensors overlap.
pub(super) fn run(planned: Option<Cast>, stream: cudaStream_t) -> Result<()> {
    let Some(cast) = planned else { return Ok(()) };
    apart(&cast)?;
    backend::run(&QuantizeArgs { cast }, stream)
}

/// Casts a tensor in the scaling mode of the output.
pub(crate) fn quantize(
    input: &Tensor,
    output: &Tensor,
    config: &QuantizationConfig,
    stream: cudaStream_t,
) -> Result<()> {
    match output.mode {
        NVTE_NVFP4_1D_SCALING => {
            nvfp4::run(&[nvfp4::plan_quantize(input, output, config)?], stream)
        }
        _ => run(plan_quantize(input, output, config)?, stream),
    }
}

/// Refuses stochastic rounding, which only casts to NVFP4 have.
fn check_rounding(config: &QuantizationConfig) -> Result<()> {
    if config.stochastic_rounding {
        let name = "quant_config.stochastic_rounding";
        return Err(Error::argument(name, "0 (only NVFP4 rounds stochastically)", 1));
    }
    Ok(())
}

/// Plans what `plan` says for each pair of an input and an output, then runs all of it.
pub(super) fn for_each_pair(
    pairs: impl ExactSizeIterator<Item = Result<[Tensor; 2]>>,
    plan: impl Fn(&Tensor, &Tensor) -> Result<Option<Cast>>,
    stream: cudaStream_t,
) -> Result<()> {
    let mut planned = backend::memory::reserve("a list of tensors", pairs.len())?;
    for (i, pair) in pairs.enumerate() {
        let args = pair
            .and_then(|[input, output]| plan(&input, &output))
            .and_then(|args| args.iter().try_for_each(apart).map(|()| args))
            .map_err(|e| Error { message: format!("tensor {i}: {}", e.message), ..e })?;
        planned.extend(args);
    }
    planned.into_iter().try_for_each(|cast| backend::run(&QuantizeArgs { cast }, stream))
}

/// [`quantize`] of each pair of an input and an output; of none if any of them is wrong.
fn multi_tensor_quantize(
    pairs: impl ExactSizeIterator<Item = Result<[Tensor; 2]>>,
    config: &QuantizationConfig,
    stream: cudaStream_t,
) -> Result<()> {
    for_each_pair(pairs, |input, output| plan_quantize(input, output, config), stream)
}

/// The input of a derivative's function: of the dtype and shape of the gradient.
fn check_act_input(input: &Tensor, act_input: &Tensor) -> Result<()> {
    check::input("act_input", act_input)?;
    check::dtype("act_input", act_input.dtype(), &[input.dtype()])?;
    check::shape("act_input.data", &act_input.rowwise.shape, &input.rowwise.shape)
}

/// Memory for the sums of dbias, of all members of a group; none if the caller only asked for its size.
fn sums_of(
    workspace: &mut Workspace,
    (rows, cols): (usize, usize),
    num_tensors: usize,
) -> Result<Option<*mut f32>> {
    let lines = Cast::dbias_workspace_rows(rows, num_tensors);
    let memory = workspace.take(NVTEDType::kNVTEFloat32, Shape::new(&[lines, cols]))?;
    Ok(memory.map(|memory| memory.cast()))
}

/// What a cast with sums writes if it has no elements: sums of 0.
fn zero(dbias: &Buffer, stream: cudaStream_t) -> Result<()> {
    match dbias.bytes() {
        0 => Ok(()),
        bytes => backend::run(&MemsetArgs { ptr: dbias.ptr(), bytes, value: 0 }, stream),
    }
}

/// A cast with sums over the rows, of a derivative's product with the input if there is a function. `plan`
/// checks the cast, once it is known that the call is more than a question for the workspace.
pub(crate) fn quantize_dbias(
    derivative: Option<(Function, &Tensor)>,
    input: &Tensor,
    dbias: &Buffer,
    workspace: &mut Workspace,
    plan: impl FnOnce() -> Result<Option<Cast>>,
    stream: cudaStream_t,
) -> Result<()> {
    let shape @ (_, cols) = input.rowwise.shape.flatten();
    let Some(sums) = sums_of(workspace, shape, 1)? else { return Ok(()) };
    let args = plan()?;
    check::dtype("dbias", dbias.dtype, &[input.dtype()])?;
    check::shape("dbias.data", &dbias.shape, &Shape::new(&[cols]))?;
    let dbias_ptr = check::pointer("dbias.data", dbias)?;
    let mut fusion = Fusion { dbias: dbias_ptr, workspace: sums, ..Fusion::NONE };
    if let Some((function, act_input)) = derivative {
        check_act_input(input, act_input)?;
        let act_input = act_input.rowwise.ptr().cast_const();
        fusion = Fusion { form: Form::NVTEX_FORM_DERIVATIVE, function, act_input, ..fusion };
    }
    match args {
        Some(args) => run(Some(Cast { fusion, ..args }), stream),
        None => zero(dbias, stream),
    }
}

/// [`quantize_dbias`] of a derivative's product, with default options.
fn derivative_dbias(
    function: Function,
    input: &Tensor,
    act_input: &Tensor,
    output: &Tensor,
    dbias: &Tensor,
    workspace: &mut Workspace,
    stream: cudaStream_t,
) -> Result<()> {
    let derivative = Some((function, act_input));
    let plan = || plan_quantize(input, output, &QuantizationConfig::DEFAULT);
    quantize_dbias(derivative, input, &dbias.rowwise, workspace, plan, stream)
}

/// `dbias` = the sums of the input over its rows, in its dtype.
pub(crate) fn sum_rows(
    input: &Tensor,
    dbias: &Buffer,
    workspace: &mut Workspace,
    stream: cudaStream_t,
) -> Result<()> {
    // The plan is that of a cast to the input itself that writes nothing.
    let plan = || {
        let args = plan_quantize(input, input, &QuantizationConfig::DEFAULT)?;
        Ok(args.map(|args| Cast { rowwise: null_mut(), amax: null_mut(), ..args }))
    };
    quantize_dbias(None, input, dbias, workspace, plan, stream)
}

/// Checks a cast of all members of a group and gives its arguments; none if there is nothing to do.
pub(crate) fn plan_group_quantize(
    (input_name, input): (&str, &GroupedTensor),
    output: &GroupedTensor,
    config: &QuantizationConfig,
) -> Result<Option<Cast>> {
    check_rounding(config)?;
    let mode = output.mode;
    let (per_tensor, mxfp8) = (mode == NVTE_DELAYED_TENSOR_SCALING, mode == NVTE_MXFP8_1D_SCALING);
    check::fp8_scaling("output", mode)?;
    let (mut group, shape @ (rows, cols)) = check::members("output", output)?;
    let input_data = grouped_input((input_name, input), output)?;
    if !output.rowwise.is_set() && !output.colwise.is_set() {
        return Err(Error::argument("output.data", "row-wise or column-wise data", "no data"));
    }
    let dtype = output.dtype();
    if !per_tensor || dtype.is_fp8() {
        check::fp8("output", dtype)?;
    } else {
        check::high_precision("output", dtype)?;
    }
    let mut direction = |colwise, data: &Buffer, scale_inv: &Buffer| {
        let [data_name, scale_name] = match colwise {
            false => ["output.data", "output.scale_inv"],
            true => ["output.columnwise_data", "output.columnwise_scale_inv"],
        };
        if !data.is_set() {
            return Ok((null_mut(), null_mut()));
        }
        check::dtype(data_name, data.dtype, &[dtype])?;
        let data = check::grouped_data(data_name, data, shape)?;
        if !dtype.is_fp8() {
            return Ok((data, null_mut()));
        }
        let scales =
            check::grouped_scales(scale_name, scale_inv, (mode, colwise), &mut group, shape)?;
        Ok((data, if per_tensor { null_mut() } else { scales }))
    };
    let (rowwise, rowwise_scale_inv) =
        direction(false, &output.rowwise, &output.rowwise_scale_inv)?;
    let (colwise, colwise_scale_inv) = direction(true, &output.colwise, &output.colwise_scale_inv)?;
    let scale = match per_tensor && dtype.is_fp8() && !output.scale.ptr().is_null() {
        true => {
            let layout = (NVTE_DELAYED_TENSOR_SCALING, false);
            check::grouped_scales("output.scale", &output.scale, layout, &mut group, shape)?
        }
        false => null_mut(),
    };
    group.elements = check::common_room(&[&input.rowwise, &output.rowwise, &output.colwise]);
    let args = Cast {
        input: input_data,
        rowwise,
        colwise,
        scale: scale.cast(),
        amax: null_mut(),
        rowwise_scale_inv,
        colwise_scale_inv,
        noop: config.noop(),
        rows,
        cols,
        rowwise_scale_stride: 0,
        colwise_scale_stride: 0,
        epsilon: config.amax_epsilon,
        mode,
        input_dtype: input.dtype(),
        output_dtype: dtype,
        pow2: config.force_pow2_scales,
        square_blocks: mxfp8 && config.mxfp8_2d,
        swizzled: output.tiled(),
        fusion: Fusion::NONE,
        group,
    };
    Ok((rows > 0 && cols > 0).then_some(args))
}

/// Row-wise data, in high precision, of a group that has members like those of `output`.
pub(super) fn grouped_input(
    (name, input): (&str, &GroupedTensor),
    output: &GroupedTensor,
) -> Result<*mut c_void> {
    if input.num_tensors != output.num_tensors {
        let expected = format!("{} (as the output has)", output.num_tensors);
        return Err(Error::argument(format!("{name}.num_tensors"), expected, input.num_tensors));
    }
    check::high_precision(name, input.dtype())?;
    let [got, wanted] = [input, output].map(|tensor| tensor.logical_shape);
    let (&[got_rows, got_cols], &[rows, cols]) = (got.dims(), wanted.dims()) else {
        return Err(Error::argument(format!("{name}.logical_shape"), "2 dimensions", got));
    };
    if got_cols != cols || got_rows < rows {
        let expected = format!("{wanted}, or more rows");
        return Err(Error::argument(format!("{name}.logical_shape"), expected, got));
    }
    check::grouped_data(format_args!("{name}.data"), &input.rowwise, (rows, cols))
}

/// Casts all members of a group.
pub(crate) fn group_quantize(
    input: &GroupedTensor,
    output: &GroupedTensor,
    config: &QuantizationConfig,
    stream: cudaStream_t,
) -> Result<()> {
    run_group(plan_group_quantize(("input", input), output, config)?, stream)
}

/// `sums` = the sums of each member of a group over its rows, `[num_tensors, cols]` in its dtype.
pub(crate) fn group_sum_rows(
    input: &GroupedTensor,
    sums: &Buffer,
    workspace: &mut Workspace,
    stream: cudaStream_t,
) -> Result<()> {
    let shape = input.logical_shape.flatten();
    let Some(memory) = sums_of(workspace, shape, input.num_tensors)? else { return Ok(()) };
    // The plan is that of a cast to the input itself that writes nothing.
    let args = plan_group_quantize(("input", input), input, &QuantizationConfig::DEFAULT)?;
    check::dtype("sums", sums.dtype, &[input.dtype()])?;
    let dbias = check::elements("sums", sums, input.num_tensors * shape.1, sums.dtype)?;
    let fusion = Fusion { dbias, workspace: memory, ..Fusion::NONE };
    match args {
        Some(args) => run_group(Some(Cast { fusion, rowwise: null_mut(), ..args }), stream),
        None => zero(sums, stream),
    }
}

/// Runs a planned cast of the members of a group, `output`, if there is one.
pub(super) fn run_group(planned: Option<Cast>, stream: cudaStream_t) -> Result<()> {
    if let Some(args) = &planned {
        device_check::group("output", &args.group, (args.rows, args.cols), args.mode, stream)?;
    }
    run(planned, stream)
}

/// As [`quantize_dbias`], for all members of a group.
fn group_quantize_dbias(
    derivative: Option<(Function, &GroupedTensor)>,
    input: &GroupedTensor,
    output: &GroupedTensor,
    dbias: &Buffer,
    workspace: &mut Workspace,
    config: &QuantizationConfig,
    stream: cudaStream_t,
) -> Result<()> {
    check_rounding(config)?;
    let (_, shape @ (_, cols)) = check::members("output", output)?;
    if output.last_dims.is_set() {
        let expected = "nothing (dbias has one length for all members)";
        return Err(Error::argument("output.last_dims", expected, output.last_dims.shape));
    }
    let n = output.num_tensors;
    let Some(sums) = sums_of(workspace, shape, n)? else { return Ok(()) };
    let args = plan_group_quantize(("input", input), output, config)?;
    check::dtype("dbias", dbias.dtype, &[input.dtype()])?;
    if n.checked_mul(cols) != Some(dbias.shape.numel()) {
        let expected = format!("[{n}, {cols}] in all");
        return Err(Error::argument("dbias.data.shape", expected, dbias.shape));
    }
    let dbias_ptr = check::pointer("dbias.data", dbias)?;
    let mut fusion = Fusion { dbias: dbias_ptr, workspace: sums, ..Fusion::NONE };
    let mut elements = usize::MAX;
    if let Some((function, act_input)) = derivative {
        check::dtype("act_input", act_input.dtype(), &[input.dtype()])?;
        elements = check::common_room(&[&act_input.rowwise]);
        let act_input = grouped_input(("act_input", act_input), output)?.cast_const();
        fusion = Fusion { form: Form::NVTEX_FORM_DERIVATIVE, function, act_input, ..fusion };
    }
    match args {
        Some(mut args) => {
            args.group.elements = args.group.elements.min(elements);
            run_group(Some(Cast { fusion, ..args }), stream)
        }
        None => zero(dbias, stream),
    }
}

/// [`group_quantize_dbias`] of a derivative's product, with default options.
fn group_derivative_dbias(
    function: Function,
    input: &GroupedTensor,
    act_input: &GroupedTensor,
    output: &GroupedTensor,
    dbias: &GroupedTensor,
    workspace: &mut Workspace,
    stream: cudaStream_t,
) -> Result<()> {
    let (derivative, config) = (Some((function, act_input)), &QuantizationConfig::DEFAULT);
    group_quantize_dbias(derivative, input, output, &dbias.rowwise, workspace, config, stream)
}

/// Data and scales that a cast back reads, with their names: the row-wise ones, else (true) the
/// column-wise ones.
fn direction<'a>(
    rowwise: [&'a Buffer; 2],
    colwise: [&'a Buffer; 2],
) -> Result<(bool, [(&'static str, &'a Buffer); 2])> {
    let by_column = !rowwise[0].is_set();
    let (names, [data, scale_inv]) = match by_column {
        false => (["input.data", "input.scale_inv"], rowwise),
        true => (["input.columnwise_data", "input.columnwise_scale_inv"], colwise),
    };
    if !data.is_set() {
        return Err(Error::argument("input.data", "row-wise or column-wise data", "no data"));
    }
    Ok((by_column, [(names[0], data), (names[1], scale_inv)]))
}

/// Casts a tensor back from its scaling mode.
pub(crate) fn dequantize(input: &Tensor, output: &Tensor, stream: cudaStream_t) -> Result<()> {
    let mode = input.mode;
    if mode == NVTE_NVFP4_1D_SCALING {
        return nvfp4::dequantize(input, output, stream);
    }
    check::fp8_scaling("input", mode)?;
    if mode == NVTE_DELAYED_TENSOR_SCALING {
        check::scales("input", input)?;
    }
    check::fp8("input", input.dtype())?;
    let (colwise, [(name, data), (scale_inv_name, scale_inv_buffer)]) = direction(
        [&input.rowwise, &input.rowwise_scale_inv],
        [&input.colwise, &input.colwise_scale_inv],
    )?;
    check::pointer(name, data)?;
    check::input("output", output)?;
    check::high_precision("output", output.dtype())?;
    let shape = input.shape("input")?;
    check::shape("output.data", &output.rowwise.shape, &shape)?;
    let (rows, cols) = shape.flatten();
    let (scale_inv, scale_stride) = match mode {
        NVTE_DELAYED_TENSOR_SCALING => (check::scalar(scale_inv_name, scale_inv_buffer)?.cast(), 0),
        _ => check::block_scales(scale_inv_name, scale_inv_buffer, (mode, colwise), (rows, cols))?,
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
        swizzled: input.tiled(),
        group: Group::NONE,
    };
    let numel = rows * cols;
    let inputs =
        [Memory::new(&name, args.input, numel), Memory::of(&scale_inv_name, scale_inv_buffer)];
    let output_bytes = numel * output.dtype().bits() / 8;
    check::apart(&inputs, &[Memory::new(&"output.data", args.output, output_bytes)])?;
    if rows > 0 && cols > 0 { backend::run(&args, stream) } else { Ok(()) }
}

/// Casts all members of a group back.
fn group_dequantize(
    input: &GroupedTensor,
    output: &GroupedTensor,
    stream: cudaStream_t,
) -> Result<()> {
    let mode = input.mode;
    check::fp8_scaling("input", mode)?;
    let (colwise, [(name, data), (scale_inv_name, scale_inv)]) = direction(
        [&input.rowwise, &input.rowwise_scale_inv],
        [&input.colwise, &input.colwise_scale_inv],
    )?;
    check::fp8(name, data.dtype)?;
    check::high_precision("output.data", output.rowwise.dtype)?;
    if output.mode != NVTE_DELAYED_TENSOR_SCALING {
        let expected = NVTE_DELAYED_TENSOR_SCALING;
        return Err(Error::argument("output.scaling_mode", expected, output.mode));
    }
    if output.num_tensors != input.num_tensors {
        let expected = format!("{} (those of input)", input.num_tensors);
        return Err(Error::argument("output.num_tensors", expected, output.num_tensors));
    }
    let (mut group, shape) = check::members("input", input)?;
    if output.logical_shape != input.logical_shape {
        let (expected, got) = (input.logical_shape, output.logical_shape);
        return Err(Error::argument("output.logical_shape", expected, got));
    }
    let args = DequantizeArgs {
        input: check::grouped_data(name, data, shape)?,
        output: check::grouped_data("output.data", &output.rowwise, shape)?,
        scale_inv: check::grouped_scales(
            scale_inv_name,
            scale_inv,
            (mode, colwise),
            &mut group,
            shape,
        )?,
        rows: shape.0,
        cols: shape.1,
        scale_stride: 0,
        mode,
        input_dtype: data.dtype,
        output_dtype: output.rowwise.dtype,
        colwise,
        swizzled: input.tiled(),
        group: Group { elements: check::common_room(&[data, &output.rowwise]), ..group },
    };
    if shape.0 == 0 || shape.1 == 0 {
        return Ok(());
    }
    device_check::group("input", &args.group, shape, mode, stream)?;
    backend::run(&args, stream)
}
