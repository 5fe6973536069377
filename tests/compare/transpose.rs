//! Transposes.

use crate::*;

#[test]
fn transpose() {
    cases("transpose", 300, |rng, index| {
        let (element_size, dtype) =
            [(1, kNVTEByte), (2, kNVTEFloat16), (4, kNVTEFloat32)][index % 3];
        let (rows, cols) = rng.shape();
        let mut b = Buffers::default();
        let bytes = rng.bytes(rows * cols * element_size);
        let input = b.add(bytes, rng.shift() * element_size);
        let output = b.output(rng, dtype, rows * cols);
        let noop = rng.noop().map(|flag| b.float(flag));
        // As bytes, since a transpose keeps the bits of a NaN.
        both(&b, &[("output", kNVTEByte, Some(output))], |side| {
            let (input, output, noop) = (side.at(input), side.at(output), side.maybe(noop));
            let args = TransposeArgs { input, output, noop, rows, cols, element_size };
            entry(side, side.table.transpose, args)
        })
        .map_err(|e| format!("{element_size} bytes, {rows}x{cols}: {e}"))
    });
}

#[test]
fn transpose_dbias() {
    cases("transpose_dbias", 200, |rng, index| {
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
        both(&b, &outputs, |side| {
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
        })
        .map_err(|e| format!("{dtype:?}, {dbias_dtype:?}, {rows}x{cols}, scale {scale:e}: {e}"))
    });
}

#[test]
fn swap_first_dims() {
    cases("swap_first_dims", 200, |rng, _| {
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
        both(&b, &[("output", kNVTEByte, Some(output))], |side| {
            let (input, output) = (side.at(input), side.at(output));
            let args = SwapFirstDimsArgs { input, output, first, second, row_bytes };
            entry(side, side.table.swap_first_dims, args)
        })
        .map_err(|e| format!("{first}x{second} of {row_bytes} bytes, shifts {from}, {to}: {e}"))
    });
}
