//! Casts in every scaling mode, and back.

use super::*;

pub fn quantize(rng: &mut Rng, index: usize) -> Case {
    let (input_dtype, output_dtype) = (HIGH[index % 3], ALL[index / 3 % 5]);
    let (rows, cols) = rng.shape();
    let mut b = Buffers::default();
    let input = b.input(rng, input_dtype, rows * cols);
    let (with_row, with_col) =
        rng.pick(&[(true, false), (true, true), (true, true), (false, true)]);
    let rowwise = with_row.then(|| b.output(rng, output_dtype, rows * cols));
    let colwise = with_col.then(|| b.output(rng, output_dtype, rows * cols));
    let scale = rng.chance(80).then(|| b.float(rng.scale()));
    let old_amax = rng.pick(&[0.0, 0.0, 1e-3, 1.0, 1e30, f32::INFINITY]);
    let amax = rng.chance(80).then(|| b.float(old_amax));
    let scale_inv = (is_fp8(output_dtype) && rng.chance(90)).then(|| b.float(-7.0));
    let own = rng.chance(30).then(|| b.float(-7.0));
    let col_scale_inv = if is_fp8(output_dtype) { own.or(scale_inv) } else { None };
    let noop = rng.noop().map(|flag| b.float(flag));
    let outputs = [
        ("rowwise", output_dtype, rowwise),
        ("colwise", output_dtype, colwise),
        ("amax", kNVTEFloat32, amax),
        ("scale_inv", kNVTEFloat32, scale_inv),
        ("colwise scale_inv", kNVTEFloat32, col_scale_inv),
    ];
    Case::bits(
        format!("{input_dtype:?} to {output_dtype:?}, {rows}x{cols}"),
        b,
        &outputs,
        move |side| {
            let args = Cast {
                input: side.at(input),
                rowwise: side.maybe(rowwise),
                colwise: side.maybe(colwise),
                scale: side.maybe(scale),
                amax: side.maybe(amax),
                rowwise_scale_inv: side.maybe(scale_inv),
                colwise_scale_inv: side.maybe(col_scale_inv),
                noop: side.maybe(noop),
                rows,
                cols,
                input_dtype,
                output_dtype,
                ..QUANTIZE
            };
            entry(side, side.table.quantize, QuantizeArgs { cast: args })
        },
    )
}

pub fn dequantize(rng: &mut Rng, index: usize) -> Case {
    let (input_dtype, output_dtype) = (FP8[index % 2], HIGH[index / 2 % 3]);
    let (rows, cols) = rng.shape();
    let mut b = Buffers::default();
    let input = b.input(rng, input_dtype, rows * cols);
    let output = b.output(rng, output_dtype, rows * cols);
    let scale_inv = b.float(rng.scale());
    let colwise = rng.chance(50);
    Case::bits(
        format!("{input_dtype:?} to {output_dtype:?}, {rows}x{cols} {colwise}"),
        b,
        &[("output", output_dtype, Some(output))],
        move |side| {
            let args = DequantizeArgs {
                input: side.at(input),
                output: side.at(output),
                scale_inv: side.at(scale_inv),
                rows,
                cols,
                input_dtype,
                output_dtype,
                colwise,
                ..DEQUANTIZE
            };
            entry(side, side.table.dequantize, args)
        },
    )
}

pub fn quantize_blocks(rng: &mut Rng, index: usize) -> Case {
    let mode = BLOCK_MODES[index % 3];
    let mxfp8 = mode == NVTE_MXFP8_1D_SCALING;
    let (input_dtype, output_dtype) = (HIGH[index / 3 % 3], FP8[index / 9 % 2]);
    let (rows, cols) = rng.block_shape();
    let mut b = Buffers::default();
    let values = rng.areas(input_dtype, (rows, cols));
    let input = b.add(values, rng.shift() * size(input_dtype));
    let wanted = rng.pick(&[[true, false], [true, true], [true, true], [false, true]]);
    let data = wanted.map(|wanted| wanted.then(|| b.output(rng, output_dtype, rows * cols)));
    let slack = if mxfp8 { 0 } else { rng.pick(&[0, 0, 1, 4]) };
    let matrices = [false, true].map(|colwise| scale_matrix(mode, colwise, (rows, cols)));
    let [row_stride, col_stride] = matrices.map(|(_, _, needed)| needed + slack);
    let [row_scales, col_scales] = [0, 1].map(|i| {
        let (dtype, lines, needed) = matrices[i];
        wanted[i].then(|| b.output(rng, dtype, lines * (needed + slack)))
    });
    let old_amax = rng.pick(&[0.0, 1e-3, 1e30]);
    let amax = (mxfp8 && rng.chance(50)).then(|| b.float(old_amax));
    let noop = rng.noop().map(|flag| b.float(flag));
    let epsilon = rng.pick(&[0.0, 0.0, 1.0, 1e-20, 1e30]);
    let pow2 = !mxfp8 && rng.chance(50);
    let (square_blocks, swizzled) = (mxfp8 && rng.chance(40), mxfp8 && rng.chance(40));
    // Scales are compared as bytes: every bit counts, and so do the entries that are not written.
    let outputs = [
        ("rowwise", output_dtype, data[0]),
        ("colwise", output_dtype, data[1]),
        ("rowwise scale_inv", kNVTEByte, row_scales),
        ("colwise scale_inv", kNVTEByte, col_scales),
        ("amax", kNVTEFloat32, amax),
    ];
    Case::bits(
        format!(
            "{mode:?}, {input_dtype:?} to {output_dtype:?}, {rows}x{cols}, directions {wanted:?}, \
                 pow2 {pow2}, epsilon {epsilon}, square {square_blocks}, swizzled {swizzled}"
        ),
        b,
        &outputs,
        move |side| {
            let args = Cast {
                input: side.at(input),
                rowwise: side.maybe(data[0]),
                colwise: side.maybe(data[1]),
                scale: null(),
                amax: side.maybe(amax),
                rowwise_scale_inv: side.maybe(row_scales),
                colwise_scale_inv: side.maybe(col_scales),
                noop: side.maybe(noop),
                rows,
                cols,
                rowwise_scale_stride: row_stride,
                colwise_scale_stride: col_stride,
                epsilon,
                mode,
                input_dtype,
                output_dtype,
                pow2,
                square_blocks,
                swizzled,
                fusion: Fusion::NONE,
                group: Group::NONE,
            };
            entry(side, side.table.quantize, QuantizeArgs { cast: args })
        },
    )
}

pub fn dequantize_blocks(rng: &mut Rng, index: usize) -> Case {
    let mode = BLOCK_MODES[index % 3];
    let mxfp8 = mode == NVTE_MXFP8_1D_SCALING;
    let (input_dtype, output_dtype) = (FP8[index / 3 % 2], HIGH[index / 6 % 3]);
    let (rows, cols) = rng.block_shape();
    let (colwise, swizzled) = (rng.chance(50), mxfp8 && rng.chance(40));
    let (scale_dtype, lines, needed) = scale_matrix(mode, colwise, (rows, cols));
    let scale_stride = needed + if mxfp8 { 0 } else { rng.pick(&[0, 0, 1, 4]) };
    let mut b = Buffers::default();
    let input = b.input(rng, input_dtype, rows * cols);
    let scale_inv = b.input(rng, scale_dtype, lines * scale_stride);
    let output = b.output(rng, output_dtype, rows * cols);
    Case::bits(
        format!(
            "{mode:?}, {input_dtype:?} to {output_dtype:?}, {rows}x{cols}, colwise {colwise}, \
                 swizzled {swizzled}"
        ),
        b,
        &[("output", output_dtype, Some(output))],
        move |side| {
            let args = DequantizeArgs {
                input: side.at(input),
                output: side.at(output),
                scale_inv: side.at(scale_inv),
                rows,
                cols,
                scale_stride,
                mode,
                input_dtype,
                output_dtype,
                colwise,
                swizzled,
                group: Group::NONE,
            };
            entry(side, side.table.dequantize, args)
        },
    )
}

pub fn requantize(rng: &mut Rng, index: usize) -> Case {
    let input_dtype = FP8[index % 2];
    let cols = 128 * rng.within(1, 6);
    let tiles: Vec<_> = (0..rng.pick(&[1, 2, 3, 40])).map(|_| rng.within(0, 3)).collect();
    let rows = 128 * (tiles.iter().sum::<usize>() + rng.below(2)).max(1);
    let code_stride = cols / 32 + rng.pick(&[0, 0, 4, 3]);
    let mut at = vec![0];
    tiles.iter().for_each(|t| at.push(at.last().unwrap() + 128 * t * cols));
    let mut b = Buffers::default();
    let bytes = rng.bytes(rows * cols);
    let input = b.add(bytes, 0);
    // Scales are mostly such that values are neither 0 nor Inf.
    let everyday = rng.chance(70);
    let codes = (0..rows * code_stride)
        .map(|_| if everyday { 100 + rng.below(50) as u8 } else { rng.next() as u8 })
        .collect();
    let codes = b.add(codes, rng.pick(&[0, 0, 1]));
    let colwise = b.add(vec![0xCD; rows * cols], 0);
    let [row_codes, col_codes] =
        [0, 1].map(|_| b.add(vec![0xCD; rows * cols / 32], rng.pick(&[0, 0, 1])));
    let copy = rng.chance(50).then(|| b.add(vec![0xCD; rows * cols * 2], 0));
    let offsets = b.ints(at.iter().copied());
    let through_bf16 = rng.chance(50);
    let outputs = [
        ("colwise", kNVTEFloat8E4M3, Some(colwise)),
        ("row codes", kNVTEByte, Some(row_codes)),
        ("column codes", kNVTEByte, Some(col_codes)),
        ("dequantized", kNVTEBFloat16, copy),
    ];
    Case::bits(
        format!("{input_dtype:?}, {rows}x{cols}, {tiles:?}, bf16 {through_bf16}"),
        b,
        &outputs,
        move |side| {
            let args = RequantizeArgs {
                input: side.at(input),
                codes: side.at(codes),
                colwise: side.at(colwise),
                rowwise_codes: side.at(row_codes),
                colwise_codes: side.at(col_codes),
                dequantized: side.maybe(copy),
                offsets: side.at(offsets),
                num_groups: tiles.len(),
                rows,
                cols,
                code_stride,
                input_dtype,
                through_bf16,
            };
            entry(side, side.table.requantize, args)
        },
    )
}
