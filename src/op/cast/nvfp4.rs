//! Casts to NVFP4 and back (spec: nvfp4, sections 8 to 13).

use crate::backend::args::Nvfp4Choice::*;
use crate::backend::args::Nvfp4Variant::*;
use crate::backend::{self, args::*};
use crate::check::{self, Memory};
use crate::error::{Error, Result};
use crate::op::transformer_engine::QuantizationConfig;
use crate::tensor::{Buffer, Shape, Tensor};
use crate::types::NVTEDType::*;
use crate::types::NVTEScalingMode::NVTE_NVFP4_1D_SCALING;
use crate::types::*;
use std::fmt::{self, Display, Formatter};
use std::ptr::{null, null_mut};

/// Elements of a block.
const BLOCK: usize = 16;

const NOTHING: Nvfp4Lines =
    Nvfp4Lines { data: null_mut(), scales: null_mut(), amax: null_mut(), scale_stride: 0 };

/// Refuses other modes than NVFP4.
pub(crate) fn check_mode(name: impl Display, mode: NVTEScalingMode) -> Result<()> {
    match mode {
        NVTE_NVFP4_1D_SCALING => Ok(()),
        _ => Err(Error::argument(format!("{name}.scaling_mode"), NVTE_NVFP4_1D_SCALING, mode)),
    }
}

/// Data and scales of `lines` lines of `length` elements; data of the given shape.
pub(crate) fn lines(
    [data_name, scale_name]: [&str; 2],
    [data, scales]: [&Buffer; 2],
    (lines, length): (usize, usize),
    shape: &Shape,
) -> Result<Nvfp4Lines> {
    check::dtype(data_name, data.dtype, &[kNVTEFloat4E2M1])?;
    check::shape(data_name, &data.shape, shape)?;
    if length % 2 != 0 {
        let expected = "an even number of elements in each packed line";
        return Err(Error::argument(format!("{data_name}.shape"), expected, data.shape));
    }
    let dims = [lines.next_multiple_of(128), length.div_ceil(BLOCK).next_multiple_of(4)];
    if !scales.is_set() {
        let expected = format!("{kNVTEFloat8E4M3} {dims:?}");
        return Err(Error::argument(scale_name, expected, "nothing"));
    }
    check::dtype(scale_name, scales.dtype, &[kNVTEFloat8E4M3, kNVTEByte])?;
    check::shape(scale_name, &scales.shape, &Shape::new(&dims))?;
    Ok(Nvfp4Lines {
        data: check::pointer(format_args!("{data_name}.data"), data)?,
        scales: check::pointer(format_args!("{scale_name}.data"), scales)?,
        amax: null_mut(),
        scale_stride: dims[1],
    })
}

/// The amax of each line, or one float or none.
fn amax(name: &str, buffer: &Buffer, per_line: Option<usize>) -> Result<*mut f32> {
    let Some(lines) = per_line else {
        return check::optional_scalar(name, buffer);
    };
    check::dtype(name, buffer.dtype, &[kNVTEFloat32])?;
    if buffer.shape.numel() != lines {
        let expected = format!("{lines} elements, one for each line");
        return Err(Error::argument(format!("{name}.shape"), expected, buffer.shape));
    }
    Ok(check::pointer(name, buffer)?.cast())
}

/// Refuses outputs that overlap the input or each other.
pub(crate) fn apart(args: &Nvfp4QuantizeArgs) -> Result<()> {
    let numel = args.rows * args.cols;
    let amax_of = |lines: usize| if args.scaled_lines { lines * 4 } else { 4 };
    let inputs = [
        Memory::new(&"the input", args.input, numel * args.input_dtype.bits() / 8),
        Memory::new(&"output.amax", args.rowwise.amax, amax_of(args.rows)),
        Memory::new(&"output.columnwise_amax", args.colwise.amax, amax_of(args.cols)),
    ];
    let outputs = [
        Memory::new(&"output.data", args.rowwise.data, numel / 2),
        Memory::new(&"output.columnwise_data", args.colwise.data, numel / 2),
        // Whether compact or in tiles, there are at least so many scales.
        Memory::new(&"output.scale_inv", args.rowwise.scales, numel / BLOCK),
        Memory::new(&"output.columnwise_scale_inv", args.colwise.scales, numel / BLOCK),
    ];
    if args.scaled_lines {
        // With an amax for each row or column, the amaxes are outputs.
        check::apart(&inputs[..1], &inputs[1..])?;
    }
    check::apart(&inputs, &outputs)
}

/// The arguments of a cast of `[rows, cols]` whose outputs are to be filled in.
pub(crate) fn cast_of(
    (input, input_dtype): (&Buffer, NVTEDType),
    (rows, cols): (usize, usize),
    variant: Nvfp4Variant,
    config: &QuantizationConfig,
) -> Nvfp4QuantizeArgs {
    let stochastic = config.stochastic_rounding;
    Nvfp4QuantizeArgs {
        input: input.ptr(),
        rowwise: NOTHING,
        colwise: NOTHING,
        noop: config.noop(),
        hadamard: null(),
        rng_state: if stochastic { config.rng_state() } else { null() },
        offsets: null(),
        num_tensors: 0,
        rows,
        cols,
        first_row: 0,
        total_rows: rows,
        input_dtype,
        e4m3_max: 448.0,
        variant,
        choice: NVTEX_NVFP4_SIX,
        fast_error: false,
        scaled_lines: false,
        square: false,
        swizzled: false,
        fast_math: false,
        stochastic,
    }
}

/// Checks a cast to NVFP4 and gives its arguments.
pub(crate) fn plan_quantize(
    input: &Tensor,
    output: &Tensor,
    config: &QuantizationConfig,
) -> Result<Nvfp4QuantizeArgs> {
    check_mode("output", output.mode)?;
    check::input("input", input)?;
    check::high_precision("input", input.dtype())?;
    let shape = input.rowwise.shape;
    let (rows, cols) = shape.flatten();
    let (by_row, by_col) = (output.rowwise.is_set(), output.colwise.is_set());
    if !by_row && !by_col {
        return Err(Error::argument("output.data", "row-wise or column-wise data", "no data"));
    }
    let choice = match config.four_over_six {
        0 => NVTEX_NVFP4_SIX,
        1 => NVTEX_NVFP4_LEAST_ABSOLUTE,
        _ => NVTEX_NVFP4_LEAST_SQUARES,
    };
    let (square, chooses) = (config.nvfp4_2d, choice != NVTEX_NVFP4_SIX);
    let refuse = |wrong: bool, name: &str, expected: &str| match wrong {
        true => Err(Error::argument(name, expected, 1)),
        false => Ok(()),
    };
    let flag = "quant_config.stochastic_rounding";
    refuse(chooses && config.stochastic_rounding, flag, "0 (because of nvfp4_4over6_mode)")?;
    let flag = "output.row_scaled_nvfp4";
    refuse(output.row_scaled && square, flag, "0 (because of nvfp4_2d_quantization)")?;
    refuse(output.row_scaled && !by_row, flag, "0 (there are no row-wise data)")?;
    refuse(output.row_scaled && chooses && by_col, flag, "0 (4over6 of column-wise data)")?;
    let flag = "quant_config.nvfp4_2d_quantization";
    refuse(square && chooses && !by_row, flag, "0 (4over6 without row-wise data)")?;
    if !chooses && output.e4m3_max != 448 {
        return Err(Error::argument("output.nvfp4_e4m3_max", "448", output.e4m3_max));
    }
    let in_blocks = |name, count: usize| match count % BLOCK {
        0 => Ok(()),
        _ => Err(Error::argument(name, format!("a multiple of {BLOCK}"), count)),
    };
    if chooses || output.row_scaled {
        in_blocks("columns of input", cols)?;
    }
    if chooses && (by_col || square) {
        in_blocks("rows of input", rows)?;
    }
    let aligned = input.dtype() == kNVTEBFloat16 && rows % 32 == 0 && cols % 32 == 0;
    let variant = match (square, aligned && (by_row || square)) {
        (_, false) => NVTEX_NVFP4_GENERAL,
        (true, true) => NVTEX_NVFP4_SQUARE,
        (false, true) => NVTEX_NVFP4_TUNED,
    };
    let mut args = Nvfp4QuantizeArgs {
        e4m3_max: output.e4m3_max as f32,
        choice,
        fast_error: config.four_over_six_fast_math,
        scaled_lines: output.row_scaled,
        square,
        swizzled: output.swizzled,
        fast_math: config.use_fast_math && variant == NVTEX_NVFP4_TUNED,
        ..cast_of((&input.rowwise, input.dtype()), (rows, cols), variant, config)
    };
    let per_line = |lines: usize| output.row_scaled.then_some(lines);
    let names = ["output.amax", "output.columnwise_amax"];
    if by_row {
        let data = [&output.rowwise, &output.rowwise_scale_inv];
        args.rowwise = lines(["output.data", "output.scale_inv"], data, (rows, cols), &shape)?;
        args.rowwise.amax = amax(names[0], &output.amax, per_line(rows))?;
    }
    if by_col {
        let data = [&output.colwise, &output.colwise_scale_inv];
        let fields = ["output.columnwise_data", "output.columnwise_scale_inv"];
        super::check_colwise_shape(fields[0], output, &shape)?;
        args.colwise = lines(fields, data, (cols, rows), &output.colwise.shape)?;
        args.colwise.amax = amax(names[1], &output.colwise_amax, per_line(cols))?;
    }
    if !output.row_scaled {
        // A direction without an amax uses that of the other.
        let row = amax(names[0], &output.amax, None)?;
        let column = amax(names[1], &output.colwise_amax, None)?;
        if by_col && column.is_null() {
            args.colwise.amax = row;
        }
        if by_row && row.is_null() && variant != NVTEX_NVFP4_TUNED {
            args.rowwise.amax = column;
        }
    }
    if chooses && by_row && args.rowwise.amax.is_null() {
        return Err(Error::argument(names[0], "one Float32 (because of 4over6)", "nothing"));
    }
    Ok(args)
}

/// Runs planned casts, or none of them if the tensors of any overlap.
pub(crate) fn run(planned: &[Nvfp4QuantizeArgs], stream: cudaStream_t) -> Result<()> {
    planned.iter().try_for_each(apart)?;
    let mut filled = planned.iter().filter(|args| args.rows > 0 && args.cols > 0);
    filled.try_for_each(|args| backend::run(args, stream))
}

pub(crate) fn dequantize(input: &Tensor, output: &Tensor, stream: cudaStream_t) -> Result<()> {
    if !input.rowwise.is_set() {
        let got = if input.colwise.is_set() { "column-wise data only" } else { "no data" };
        return Err(Error::argument("input.data", "row-wise data", got));
    }
    check::input("output", output)?;
    check::high_precision("output", output.dtype())?;
    let shape = input.rowwise.shape;
    check::shape("output.data", &output.rowwise.shape, &shape)?;
    let (rows, cols) = shape.flatten();
    if cols % BLOCK != 0 {
        let expected = format!("a last dimension that is a multiple of {BLOCK}");
        return Err(Error::argument("input.data.shape", expected, shape));
    }
    let data = [&input.rowwise, &input.rowwise_scale_inv];
    let mut lines = lines(["input.data", "input.scale_inv"], data, (rows, cols), &shape)?;
    lines.amax = match input.row_scaled {
        true => amax("input.amax", &input.amax, Some(rows))?,
        false => check::scalar("input.amax", &input.amax)?,
    };
    let args = Nvfp4DequantizeArgs {
        input: lines,
        output: output.rowwise.ptr(),
        rows,
        cols,
        output_dtype: output.dtype(),
        e4m3_max: input.e4m3_max as f32,
        scaled_lines: input.row_scaled,
        swizzled: input.swizzled,
    };
    let inputs = [
        Memory::of(&"input.data", &input.rowwise),
        Memory::of(&"input.scale_inv", &input.rowwise_scale_inv),
        Memory::of(&"input.amax", &input.amax),
    ];
    check::apart(&inputs, &[Memory::of(&"output.data", &output.rowwise)])?;
    if rows > 0 && cols > 0 { backend::run(&args, stream) } else { Ok(()) }
}

/// Some rows of a matrix, and the tensor that they are cast to, which may be absent if there are no
/// rows.
pub(crate) struct Part {
    pub rows: usize,
    pub output: Option<Tensor>,
}

/// The parts of a BFloat16 matrix that have rows: each one's place among the outputs, its output, and
/// arguments without outputs.
pub(crate) fn split<'a>(
    whole: &Nvfp4QuantizeArgs,
    parts: &'a [Part],
) -> Result<Vec<(usize, &'a Tensor, Nvfp4QuantizeArgs)>> {
    let total = parts.iter().try_fold(0usize, |sum, part| sum.checked_add(part.rows));
    if total != Some(whole.rows) {
        let expected = format!("{} in all, the rows of input", whole.rows);
        let splits: Vec<usize> = parts.iter().map(|part| part.rows).collect();
        return Err(Error::argument("split_sections", expected, format!("{splits:?}")));
    }
    let mut first_row = 0;
    let mut filled = backend::memory::reserve("a list of tensors", parts.len())?;
    for (i, Part { rows, output }) in parts.iter().enumerate() {
        if let Some(output) = output {
            let input = whole.input.wrapping_byte_add(first_row * whole.cols * 2);
            filled.push((i, output, Nvfp4QuantizeArgs { input, rows: *rows, first_row, ..*whole }));
            first_row += rows;
        }
    }
    Ok(filled)
}

/// Casts the rows of a matrix to one tensor after the other, row-wise, as one matrix.
pub(crate) fn group_quantize(
    input: &Tensor,
    parts: &[Part],
    config: &QuantizationConfig,
    stream: cudaStream_t,
) -> Result<()> {
    check::input("input", input)?;
    check::dtype("input", input.dtype(), &[kNVTEBFloat16])?;
    for (name, set) in [
        ("nvfp4_2d_quantization", config.nvfp4_2d),
        ("nvfp4_4over6_mode", config.four_over_six != 0),
    ] {
        if set {
            return Err(Error::argument(format!("quant_config.{name}"), 0, 1));
        }
    }
    let (rows, cols) = input.rowwise.shape.flatten();
    if cols % BLOCK != 0 {
        let expected = format!("a last dimension that is a multiple of {BLOCK}");
        return Err(Error::argument("input.shape", expected, input.rowwise.shape));
    }
    if parts.is_empty() {
        return Ok(());
    }
    let input = (&input.rowwise, kNVTEBFloat16);
    let whole = cast_of(input, (rows, cols), NVTEX_NVFP4_SQUARE, config);
    let mut data = null_mut();
    let mut planned = backend::memory::reserve("a list of tensors", parts.len())?;
    for (i, output, args) in split(&whole, parts)? {
        let (rows, first_row) = (args.rows, args.first_row);
        let name = |field| OutputField(i, field);
        check_mode(name(""), output.mode)?;
        if output.colwise.is_set() {
            return Err(Error::argument(name(".columnwise_data"), "nothing", output.colwise.shape));
        }
        if output.e4m3_max != 448 {
            return Err(Error::argument(name(".nvfp4_e4m3_max"), 448, output.e4m3_max));
        }
        check::dtype(name(".data"), output.rowwise.dtype, &[kNVTEFloat4E2M1])?;
        if output.rowwise.shape.numel() < rows * cols {
            let expected = format!("{rows} x {cols} elements or more");
            return Err(Error::argument(name(".data.shape"), expected, output.rowwise.shape));
        }
        let start = check::pointer(name(".data"), &output.rowwise)?;
        if first_row == 0 {
            data = start;
        } else if data.wrapping_byte_add(first_row * cols / 2) != start {
            let expected = "the address after the data of the tensors before it";
            return Err(Error::argument(name(".data"), expected, format!("{start:p}")));
        }
        let scales = &output.rowwise_scale_inv;
        check::dtype(name(".scale_inv"), scales.dtype, &[kNVTEFloat8E4M3, kNVTEByte])?;
        let (scale_rows, scale_stride) = scales.shape.flatten();
        // Swizzled scales lie in whole tiles.
        let (least_rows, of) = match output.swizzled {
            true => (rows.next_multiple_of(128), 4),
            false => (rows, 1),
        };
        if scale_stride < cols / BLOCK || scale_stride % of != 0 || scale_rows < least_rows {
            let whole = if of == 4 { " in multiples of 4 (swizzled)" } else { "" };
            let expected = format!("[{least_rows} or more, {} or more{whole}]", cols / BLOCK);
            return Err(Error::argument(name(".scale_inv.shape"), expected, scales.shape));
        }
        planned.push(Nvfp4QuantizeArgs {
            rowwise: Nvfp4Lines {
                data: start,
                scales: check::pointer(name(".scale_inv"), scales)?,
                amax: check::optional_scalar(name(".amax"), &output.amax)?,
                scale_stride,
            },
            swizzled: output.swizzled,
            ..args
        });
    }
    run(&planned, stream)
}

/// The name of a field of one of several outputs.
struct OutputField(usize, &'static str);

impl Display for OutputField {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        write!(f, "outputs[{}]{}", self.0, self.1)
    }
}
