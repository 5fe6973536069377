//! Every number of a format, and more than 2^31 elements.

use crate::*;

/// Casts every float to both FP8 types, in both layouts.
#[test]
fn every_float_to_fp8() {
    const SIDE: usize = 4096;
    const AREA: usize = SIDE * SIDE;
    const CHUNKS: usize = (1 << 32) / AREA;
    // Unoptimised code is too slow for all of them.
    let step = if cfg!(debug_assertions) { 17 } else { 1 };
    let mut input = vec![0u32; AREA];
    let mut results = [vec![0xCD; 2 * AREA], vec![0xCD; 2 * AREA]];
    let Some(table) = cuda("every_float_to_fp8") else { return };
    let [device_input, device_output] =
        [4 * AREA, 2 * AREA].map(|bytes| malloc(table, bytes).expect("device memory"));
    cases("every_float_to_fp8", CHUNKS.div_ceil(step), |_, index| {
        let first = (index * step * AREA) as u32;
        input.iter_mut().enumerate().for_each(|(i, bits)| *bits = first + i as u32);
        // SAFETY: floats may be seen as bytes.
        let bytes = unsafe { std::slice::from_raw_parts(input.as_ptr().cast(), 4 * AREA) };
        upload(table, device_input, bytes, null_mut())?;
        for output_dtype in FP8 {
            let quantize = |table: &OpTable, input, output: *mut c_void| {
                let args = Cast {
                    input,
                    rowwise: output,
                    colwise: output.cast::<u8>().wrapping_add(AREA).cast(),
                    rows: SIDE,
                    cols: SIDE,
                    input_dtype: kNVTEFloat32,
                    output_dtype,
                    ..QUANTIZE
                };
                // SAFETY: the buffers have the sizes that the arguments say.
                ok(
                    unsafe { table.quantize.unwrap()(&QuantizeArgs { cast: args }, null_mut()) },
                    "quantize",
                )
            };
            let [cpu, cuda] = &mut results;
            quantize(cpu_table(), input.as_ptr().cast(), cpu.as_mut_ptr().cast())?;
            quantize(table, device_input, device_output)?;
            download(table, cuda, device_output, null_mut())?;
            equal("rowwise", output_dtype, &cpu[..AREA], &cuda[..AREA])
                .and_then(|()| equal("colwise", output_dtype, &cpu[AREA..], &cuda[AREA..]))
                .map_err(|e| format!("{output_dtype:?}, floats from {first:#010x}: {e}"))?;
        }
        Ok(())
    });
    free(table, device_input);
    free(table, device_output);
}

/// Casts every half and bfloat16 to every type.
#[test]
fn every_half_to_all() {
    cases("every_half_to_all", 10, |_, index| {
        let (input_dtype, output_dtype) = (HIGH[1 + index % 2], ALL[index / 2]);
        let mut b = Buffers::default();
        let input = b.add((0..=u16::MAX).flat_map(u16::to_le_bytes).collect(), 0);
        let [rowwise, colwise] = [0; 2].map(|_| b.add(vec![0xCD; size(output_dtype) << 16], 0));
        let amax = b.float(0.0);
        let outputs = [
            ("rowwise", output_dtype, Some(rowwise)),
            ("colwise", output_dtype, Some(colwise)),
            ("amax", kNVTEFloat32, Some(amax)),
        ];
        let what = format!("{input_dtype:?} to {output_dtype:?}");
        compare(&Case::bits(what, b, &outputs, move |side| {
            let args = Cast {
                input: side.at(input),
                rowwise: side.at(rowwise),
                colwise: side.at(colwise),
                amax: side.at(amax),
                rows: 256,
                cols: 256,
                input_dtype,
                output_dtype,
                ..QUANTIZE
            };
            entry(side, side.table.quantize, QuantizeArgs { cast: args })
        }))
    });
}

/// Period of the inputs with more than 2^31 elements: a prime, so that no power of two shifts it
/// onto itself.
const PERIOD: usize = 16_777_213;

/// Device memory with `numel` elements that repeat `block`.
fn periodic(
    table: &OpTable,
    block: &[u8],
    width: usize,
    numel: usize,
) -> Result<*mut c_void, String> {
    let ptr = malloc(table, numel * width)?;
    for start in (0..numel * width).step_by(block.len()) {
        let len = block.len().min(numel * width - start);
        let to = ptr.cast::<u8>().wrapping_add(start).cast();
        upload(table, to, &block[..len], null_mut())?;
    }
    Ok(ptr)
}

#[test]
fn transpose_past_2_31() {
    cases("transpose_past_2_31", 1, |rng, _| {
        let table = cuda_table()?;
        let (rows, cols) = (65_537, 32_771);
        let block = rng.bytes(PERIOD);
        let input = periodic(table, &block, 1, rows * cols)?;
        let output = malloc(table, rows * cols)?;
        let noop = null();
        let args = TransposeArgs { input, output, noop, rows, cols, element_size: 1 };
        // SAFETY: the buffers have that many bytes.
        ok(unsafe { table.transpose.unwrap()(&args, null_mut()) }, "transpose")?;
        let mut result = vec![0; rows * cols];
        download(table, &mut result, output, null_mut())?;
        free(table, input);
        free(table, output);
        for at in (0..rows * cols).step_by(7).chain(rows * cols - 1000..rows * cols) {
            let (row, col) = (at % rows, at / rows);
            if result[at] != block[(row * cols + col) % PERIOD] {
                return Err(format!("element [{col}, {row}] is wrong"));
            }
        }
        Ok(())
    });
}

#[test]
fn quantize_past_2_31() {
    cases("quantize_past_2_31", 1, |rng, _| {
        let table = cuda_table()?;
        let numel = (1 << 31) + 1_000_003;
        let block = rng.floats(kNVTEBFloat16, PERIOD);
        let expected = cast(&block, kNVTEBFloat16, kNVTEFloat8E4M3);
        let input = periodic(table, &block, 2, numel)?;
        let output = malloc(table, numel)?;
        let args = Cast {
            input,
            rowwise: output,
            rows: 1,
            cols: numel,
            input_dtype: kNVTEBFloat16,
            output_dtype: kNVTEFloat8E4M3,
            ..QUANTIZE
        };
        // SAFETY: the buffers have that many elements.
        ok(
            unsafe { table.quantize.unwrap()(&QuantizeArgs { cast: args }, null_mut()) },
            "quantize",
        )?;
        let mut result = vec![0; numel];
        download(table, &mut result, output, null_mut())?;
        free(table, input);
        free(table, output);
        match result.chunks(PERIOD).position(|part| part != &expected[..part.len()]) {
            Some(part) => Err(format!("wrong in the {PERIOD} elements from {}", part * PERIOD)),
            None => Ok(()),
        }
    });
}

/// A sum over `rows` rows in the order that [`Fusion`] says.
fn column_sum(rows: usize, v: impl Fn(usize) -> f32) -> f32 {
    let at = |r: usize| if r < rows { v(r) } else { 0.0 };
    let four = |r: usize| 0.0 + at(r) + at(r + 1) + at(r + 2) + at(r + 3);
    let mut sums = [0f32; 8];
    for block in 0..rows.div_ceil(128) {
        let pairs = (0..16).map(|i| block * 128 + i * 8).map(|r| four(r) + four(r + 4));
        sums[block % 8] += pairs.fold(0.0, |sum, pair| sum + pair);
    }
    sums.iter().fold(0.0, |sum, eighth| sum + eighth)
}

#[test]
fn dbias_past_2_31() {
    cases("dbias_past_2_31", 1, |rng, _| {
        let table = cuda_table()?;
        let (rows, cols) = (65_537, 32_771);
        let numel = rows * cols;
        let floats: Vec<u8> = (0..PERIOD).flat_map(|_| rng.unit().to_le_bytes()).collect();
        let block = cast(&floats, kNVTEFloat32, kNVTEBFloat16);
        let (values, expected) =
            (decode(&block, kNVTEBFloat16), cast(&block, kNVTEBFloat16, kNVTEFloat8E4M3));
        let input = periodic(table, &block, 2, numel)?;
        let output = malloc(table, numel)?;
        let dbias = malloc(table, cols * 2)?;
        let workspace = malloc(table, Cast::dbias_workspace_rows(rows, 0) * cols * 4)?;
        let args = Cast {
            input,
            rowwise: output,
            rows,
            cols,
            input_dtype: kNVTEBFloat16,
            output_dtype: kNVTEFloat8E4M3,
            fusion: Fusion { dbias, workspace: workspace.cast(), ..Fusion::NONE },
            ..QUANTIZE
        };
        // SAFETY: the buffers have that many elements.
        ok(
            unsafe { table.quantize.unwrap()(&QuantizeArgs { cast: args }, null_mut()) },
            "quantize",
        )?;
        let (mut result, mut sums) = (vec![0; numel], vec![0; cols * 2]);
        download(table, &mut result, output, null_mut())?;
        download(table, &mut sums, dbias, null_mut())?;
        [input, output, dbias, workspace].into_iter().for_each(|ptr| free(table, ptr));
        if let Some(part) = result.chunks(PERIOD).position(|part| part != &expected[..part.len()]) {
            return Err(format!("wrong in the {PERIOD} elements from {}", part * PERIOD));
        }
        for col in (0..cols).step_by(101).chain(cols - 3..cols) {
            let sum = column_sum(rows, |row| values[(row * cols + col) % PERIOD]);
            let want = cast(&sum.to_le_bytes(), kNVTEFloat32, kNVTEBFloat16);
            if sums[2 * col..][..2] != want {
                return Err(format!("dbias[{col}] is {:?}, not {want:?}", &sums[2 * col..][..2]));
            }
        }
        Ok(())
    });
}

/// Moves a matrix of more than 2^31 scales to tiles and back.
#[test]
fn swizzle_past_2_31() {
    cases("swizzle_past_2_31", 1, |rng, _| {
        let table = cuda_table()?;
        let (m, k) = (128 * 4099, 4096);
        let block = rng.bytes(PERIOD);
        let source = periodic(table, &block, 1, m * k)?;
        let destination = malloc(table, m * k)?;
        let (valid_m, valid_k, transposed) = (m, k, false);
        let matrix = SwizzleEntry { source, destination, m, k, valid_m, valid_k, transposed };
        let args = SwizzleArgs {
            entries: &matrix,
            num_entries: 1,
            unswizzle: false,
            rows: 0,
            cols: 0,
            group: Group::NONE,
        };
        // SAFETY: the buffers have that many bytes.
        ok(unsafe { table.swizzle.unwrap()(&args, null_mut()) }, "swizzle")?;
        let mut tile_row = vec![0; 128 * k];
        let last = destination.cast::<u8>().wrapping_add((m - 128) * k).cast();
        download(table, &mut tile_row, last, null_mut())?;
        free(table, source);
        free(table, destination);
        for (at, byte) in tile_row.into_iter().enumerate() {
            let (tile, at) = (at / 512, at % 512);
            let row = m - 128 + at % 16 / 4 * 32 + at / 16;
            if byte != block[(row * k + tile * 4 + at % 4) % PERIOD] {
                return Err(format!("byte {at} of tile {tile} in the last row of tiles is wrong"));
            }
        }
        Ok(())
    });
}
