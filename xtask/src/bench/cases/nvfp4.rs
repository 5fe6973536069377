//! NVFP4 and the random Hadamard transform. Another library has most of these for newer GPUs alone.

use super::*;

/// `NVTEScalingMode`
const NVFP4: i32 = 4;
/// Signs of the transform.
const SIGNS: i32 = 0x2d57;

pub fn cases(kind: Kind) -> Vec<Case> {
    let (rows, cols) = if kind == Kind::Gpu { (8192, 8192) } else { (1024, 1024) };
    let mut cases: Vec<Case> = [
        ("row", false, None),
        ("row+col", true, None),
        ("2D row+col", true, Some(QuantizationAttribute::Nvfp42d)),
        ("row+col, stochastic", true, Some(QuantizationAttribute::StochasticRounding)),
        ("row+col, 4over6", true, Some(QuantizationAttribute::FourOverSix)),
    ]
    .into_iter()
    .map(|(name, both, flag)| quantize(name, both, flag, false, rows, cols))
    .collect();
    cases.extend([
        quantize("row+col, transform of columns", true, None, true, rows, cols),
        dequantize(rows, cols),
        hadamard(rows, cols),
        hadamard_amax(rows, cols),
        transpose(rows, cols),
    ]);
    cases.into_iter().map(Case::alone).collect()
}

/// Bytes of data and scales for each element of one direction.
const PACKED: f64 = 0.5 + 1.0 / 16.0;

fn work(rows: usize, cols: usize, moved: f64, input: f64) -> Work {
    let numel = (rows * cols) as f64;
    Work::Bytes { moved: numel * moved, input: numel * input }
}

/// Data of two elements a byte, filled by `alloc`, as the ABI describes them.
fn packed<'a>(
    alloc: impl Fn(&[usize]) -> Result<Basic> + 'a,
    rows: usize,
    cols: usize,
) -> Result<Basic> {
    let bytes = alloc(&[rows, cols / 2])?;
    Ok(Basic::new(bytes.ptr, DType::E2m1, &[rows, cols]))
}

/// A cast of `[rows, cols]`, multiples of 128. The amaxes fit normally distributed values.
fn quantize(
    name: &str,
    both: bool,
    flag: Option<QuantizationAttribute>,
    transform: bool,
    rows: usize,
    cols: usize,
) -> Case {
    let name = format!("quantize nvfp4 {name}");
    let directions = if both { 2.0 } else { 1.0 };
    Case::new(name, work(rows, cols, 2.0 + directions * PACKED, 2.0), move |b| {
        let (api, stream) = (b.api, b.stream());
        let x = b.tensor(&b.random(DType::Bf16, &[rows, cols])?);
        let output = |names: [&'static str; 2], rows, cols| -> Result<[Basic; 2]> {
            let data =
                packed(|shape| b.output(names[0], DType::Byte, shape, Rule::Equal), rows, cols)?;
            Ok([data, b.output(names[1], DType::E4m3, &[rows, cols / 16], Rule::Equal)?])
        };
        let [data, scales] = output(["data", "scale_inv"], rows, cols)?;
        let amax = b.floats(&[8.0])?;
        let mut y = Tensor::with_mode(api, NVFP4)
            .set(Param::Rowwise, &data)
            .set(Param::RowwiseScaleInv, &scales)
            .set(Param::Amax, &amax);
        if both {
            let names = ["columnwise data", "columnwise scale_inv"];
            let [data, scales] = output(names, cols, rows)?;
            y = y
                .set(Param::Columnwise, &data)
                .set(Param::ColumnwiseScaleInv, &scales)
                .set(Param::ColumnwiseAmax, &amax);
        }
        let mut config = Config::quantization(api);
        if let Some(flag) = flag {
            config.set_quantization(flag, &1u8);
        }
        if matches!(flag, Some(QuantizationAttribute::StochasticRounding)) {
            let state = b.alloc(DType::I64, &[2])?;
            b.machine.fill(state.ptr, 7, state.bytes())?;
            config.set_rng_state(b.tensor(&state));
        }
        if !transform {
            return Ok(Box::new(move || api.nvte_quantize_v2(x.h(), y.h(), config.h(), stream)));
        }
        // Rows of a Hadamard matrix over 4: element (i, j) is negative where i and j share an odd
        // number of bits. In BF16 1/4 is 0x3e80.
        let sign = |i: u32, j: u32| ((i & j).count_ones() as u16 & 1) << 15;
        let matrix: Vec<u8> =
            (0..256).flat_map(|at| (0x3e80 | sign(at / 16, at % 16)).to_le_bytes()).collect();
        let memory = b.alloc(DType::Bf16, &[16, 16])?;
        b.machine.upload(memory.ptr, &matrix)?;
        let matrix = b.tensor(&memory);
        Ok(Box::new(move || {
            api.nvte_quantize_with_hadamard_transform(x.h(), y.h(), matrix.h(), config.h(), stream);
        }))
    })
}

fn dequantize(rows: usize, cols: usize) -> Case {
    Case::new("dequantize nvfp4", work(rows, cols, 2.0 + PACKED, PACKED), move |b| {
        let (api, stream) = (b.api, b.stream());
        let x = Tensor::with_mode(api, NVFP4)
            .set(Param::Rowwise, &packed(|shape| b.random(DType::Byte, shape), rows, cols)?)
            .set(Param::RowwiseScaleInv, &b.random(DType::E4m3, &[rows, cols / 16])?)
            .set(Param::Amax, &b.floats(&[8.0])?);
        let y = b.tensor(&b.output("data", DType::Bf16, &[rows, cols], Rule::Equal)?);
        Ok(Box::new(move || api.nvte_dequantize(x.h(), y.h(), stream)))
    })
}

fn hadamard(rows: usize, cols: usize) -> Case {
    Case::new("hadamard transform bf16", work(rows, cols, 4.0, 2.0), move |b| {
        let (api, stream) = (b.api, b.stream());
        let x = b.tensor(&b.random(DType::Bf16, &[rows, cols])?);
        let y = b.tensor(&b.output("data", DType::Bf16, &[rows, cols], Rule::Equal)?);
        Ok(Box::new(move || api.nvte_hadamard_transform(x.h(), y.h(), SIGNS, SIGNS, stream)))
    })
}

/// The largest magnitudes of the rows as they are, and of the transformed columns.
fn hadamard_amax(rows: usize, cols: usize) -> Case {
    Case::new("hadamard transform amax bf16", work(rows, cols, 2.0, 2.0), move |b| {
        let (api, stream) = (b.api, b.stream());
        let x = b.tensor(&b.random(DType::Bf16, &[rows, cols])?);
        let y = Tensor::new(api)
            .set(Param::Amax, &b.output("amax", DType::F32, &[1], Rule::Equal)?)
            .set(Param::ColumnwiseAmax, &b.output("column amax", DType::F32, &[1], Rule::Equal)?);
        Ok(Box::new(move || api.nvte_hadamard_transform_amax(x.h(), y.h(), 0, SIGNS, stream)))
    })
}

fn transpose(rows: usize, cols: usize) -> Case {
    Case::new("transpose nvfp4", work(rows, cols, 1.0, 0.5), move |b| {
        let (api, stream) = (b.api, b.stream());
        let x = b.tensor(&b.random(DType::Byte, &[rows, cols / 2])?);
        let y = b.tensor(&b.output("data", DType::Byte, &[cols, rows / 2], Rule::Equal)?);
        Ok(Box::new(move || api.nvte_nvfp4_data_transpose(x.h(), y.h(), stream)))
    })
}
