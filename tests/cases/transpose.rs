//! Transposes.

use super::*;

pub fn transpose(rng: &mut Rng, index: usize) -> Case {
    let (element_size, dtype) = [(1, kNVTEByte), (2, kNVTEFloat16), (4, kNVTEFloat32)][index % 3];
    let (rows, cols) = rng.shape();
    let mut b = Buffers::default();
    let bytes = rng.bytes(rows * cols * element_size);
    let input = b.add(bytes, rng.shift() * element_size);
    let output = b.output(rng, dtype, rows * cols);
    let noop = rng.noop().map(|flag| b.float(flag));
    // Results are compared as bytes, since a transpose keeps the bits of a NaN.
    Case::bits(
        format!("{element_size} bytes, {rows}x{cols}"),
        b,
        &[("output", kNVTEByte, Some(output))],
        move |side| {
            let (input, output, noop) = (side.at(input), side.at(output), side.maybe(noop));
            let args = TransposeArgs { input, output, noop, rows, cols, element_size };
            entry(side, side.table.transpose, args)
        },
    )
}

pub fn transpose_dbias(rng: &mut Rng, index: usize) -> Case {
    let (dtype, dbias_dtype) = (FP8[index % 2], HIGH[index / 2 % 3]);
    let (rows, cols) = rng.shape();
    let rows = if rng.chance(5) { 0 } else { rows };
    let mut b = Buffers::default();
    let input = b.input(rng, dtype, rows * cols);
    let output = b.output(rng, dtype, rows * cols);
    let dbias = b.output(rng, dbias_dtype, cols);
    let workspace = b.add(vec![0xCD; rows.div_ceil(128) * cols * 4], 0);
    let scale = rng.scale();
    let scale_inv = rng.chance(80).then(|| b.float(scale));
    let outputs = [
        ("output", kNVTEByte, Some(output)),
        ("dbias", dbias_dtype, Some(dbias)),
        ("workspace", kNVTEFloat32, Some(workspace)),
    ];
    Case::bits(
        format!("{dtype:?}, {dbias_dtype:?}, {rows}x{cols}, scale {scale:e}"),
        b,
        &outputs,
        move |side| {
            let args = TransposeDbiasArgs {
                input: side.at(input),
                output: side.at(output),
                scale_inv: side.maybe(scale_inv),
                dbias: side.at(dbias),
                workspace: side.at(workspace),
                rows,
                cols,
                dtype,
                dbias_dtype,
            };
            entry(side, side.table.transpose_dbias, args)
        },
    )
}

pub fn swap_first_dims(rng: &mut Rng, _: usize) -> Case {
    let row_bytes = match rng.below(4) {
        0 => rng.pick(&[1, 2, 4, 8, 16, 32, 3, 6, 24]),
        1 => rng.within(1, 300),
        2 => 16 * rng.within(1, 200),
        _ => rng.within(1, 100_000),
    };
    let most = (2_000_000 / row_bytes).clamp(1, 400_000);
    let first = rng.within(1, most.isqrt());
    let second = rng.within(1, most / first);
    let (first, second) = if rng.chance(50) { (first, second) } else { (second, first) };
    let bytes = first * second * row_bytes;
    let mut b = Buffers::default();
    let shift = |rng: &mut Rng| rng.pick(&[0, 0, 8, 4, 2, 1]);
    let (values, from, to) = (rng.bytes(bytes), shift(rng), shift(rng));
    let (input, output) = (b.add(values, from), b.add(vec![0xCD; bytes], to));
    Case::bits(
        format!("{first}x{second} of {row_bytes} bytes, shifts {from}, {to}"),
        b,
        &[("output", kNVTEByte, Some(output))],
        move |side| {
            let (input, output) = (side.at(input), side.at(output));
            let args = SwapFirstDimsArgs { input, output, first, second, row_bytes };
            entry(side, side.table.swap_first_dims, args)
        },
    )
}
