//! Amax, scales, and the parts of a sharded tensor.

use super::*;

pub fn amax(rng: &mut Rng, index: usize) -> Case {
    let dtype = HIGH[index % 3];
    let (rows, cols) = rng.shape();
    let numel = if rng.chance(5) { 0 } else { rows * cols };
    let mut b = Buffers::default();
    let input = b.input(rng, dtype, numel);
    let amax = b.float(rng.pick(&[0.0, 123.0, f32::NAN]));
    let noop = rng.noop().map(|flag| b.float(flag));
    Case::bits(
        format!("{dtype:?}, {numel}"),
        b,
        &[("amax", kNVTEFloat32, Some(amax))],
        move |side| {
            let (input, amax, noop) = (side.at(input), side.at(amax), side.maybe(noop));
            entry(side, side.table.amax, AmaxArgs { input, amax, noop, numel, dtype })
        },
    )
}

pub fn scale_from_amax(rng: &mut Rng, _: usize) -> Case {
    let value = rng.values(|rng| {
        let special = rng.pick(&[0.0, f32::INFINITY, f32::NAN, 1e-45, 1e-39, 1e-36, f32::MAX]);
        if rng.chance(40) { special } else { rng.scale().abs() }
    });
    let mut b = Buffers::default();
    let length = rng.pick(&[1, 1, 7, 300]);
    let amax = b.floats((0..length).map(|i| value / (1 << (i % 8)) as f32));
    let scale = b.floats((0..length).map(|_| -7.0));
    let mut inverse = |chance| rng.chance(chance).then(|| b.floats((0..length).map(|_| -7.0)));
    let (scale_inv, colwise_scale_inv) = (inverse(50), inverse(30));
    let noop = rng.noop().map(|flag| b.float(flag));
    let (fp8_max, pow2) = (rng.pick(&[448.0, 57344.0]), rng.chance(50));
    let epsilon = rng.pick(&[0.0, 0.0, 1e-12, 1.0]);
    let outputs = [
        ("scale", kNVTEFloat32, Some(scale)),
        ("scale_inv", kNVTEFloat32, scale_inv),
        ("colwise scale_inv", kNVTEFloat32, colwise_scale_inv),
    ];
    Case::bits(
        format!("amax {value:e}, epsilon {epsilon:e}, pow2 {pow2}"),
        b,
        &outputs,
        move |side| {
            let args = ScaleFromAmaxArgs {
                amax: side.at(amax),
                scale: side.at(scale),
                noop: side.maybe(noop),
                fp8_max,
                epsilon,
                pow2,
                length,
                scale_inv: side.maybe(scale_inv),
                colwise_scale_inv: side.maybe(colwise_scale_inv),
            };
            entry(side, side.table.scale_from_amax, args)
        },
    )
}

pub fn delayed_scaling(rng: &mut Rng, _: usize) -> Case {
    struct Tensor {
        history: Id,
        scale: Id,
        new_history: Id,
        new_scale: Id,
        num_scales: usize,
    }

    let mut b = Buffers::default();
    let length = rng.pick(&[1, 2, 3, 16, 64, 1024, 1500]);
    let num_entries = rng.pick(&[1, 1, 2, 7, 33, 300]);
    let num_entries = if length > 100 { num_entries.min(7) } else { num_entries };
    let any = |rng: &mut Rng| match rng.below(12) {
        0 | 1 => 0.0,
        2 => rng.pick(&[f32::INFINITY, f32::NAN, 1e-45, 1e-38, f32::MAX, -0.0]),
        _ => rng.unit().abs() * 100.0,
    };
    let value = |rng: &mut Rng| rng.values(any);
    let mut names = Vec::new();
    let mut tensors = Vec::new();
    for _ in 0..num_entries {
        let num_scales = rng.pick(&[1, 2, 3, 40]);
        let history = b.floats((0..length * num_scales).map(|_| value(rng)));
        let scale = b.floats((0..num_scales).map(|_| value(rng)));
        let in_place = rng.chance(50);
        let mut output = |from: Id, len| {
            if in_place { from } else { b.add(vec![0xCD; len * 4], 0) }
        };
        let new_history = output(history, length * num_scales);
        let new_scale = output(scale, num_scales);
        names.push(("history", kNVTEFloat32, Some(new_history)));
        names.push(("scale", kNVTEFloat32, Some(new_scale)));
        tensors.push(Tensor { history, scale, new_history, new_scale, num_scales });
    }
    let total: usize = tensors.iter().map(|t| t.num_scales).sum();
    let reduced = rng.chance(50).then(|| b.floats((0..total).map(|_| value(rng))));
    let algo = rng.pick(&[AmaxAlgo::NVTEX_AMAX_ALGO_MAX, AmaxAlgo::NVTEX_AMAX_ALGO_MOST_RECENT]);
    let keep_if_unused = rng.chance(50);
    let scaled_max = rng.pick(&[448.0, 57344.0, 224.0]);
    Case::bits(
        format!("{num_entries} of length {length}, {algo:?}, {keep_if_unused}"),
        b,
        &names,
        move |side| {
            let entries: Vec<_> = tensors
                .iter()
                .map(|t| DelayedScalingEntry {
                    history: side.at(t.history),
                    scale: side.at(t.scale),
                    new_history: side.at(t.new_history),
                    new_scale: side.at(t.new_scale),
                    num_scales: t.num_scales,
                })
                .collect();
            let args = DelayedScalingArgs {
                entries: entries.as_ptr(),
                num_entries,
                reduced_amax: side.maybe(reduced),
                length,
                scaled_max,
                algo,
                keep_if_unused,
            };
            entry(side, side.table.delayed_scaling, args)
        },
    )
}

/// A part of a matrix of everyday or odd shape, and its input, whose vectors are often aligned.
fn shard(rng: &mut Rng, b: &mut Buffers, dtype: NVTEDType) -> (Id, Shard) {
    let (rows, cols) = rng.block_shape();
    let numel = rows * cols;
    let (start, length) = match rng.below(4) {
        0 => (0, numel),
        1 => {
            let start = rng.below(numel) / 16 * 16;
            (start, rng.below(numel - start + 1) / 16 * 16)
        }
        _ => {
            let start = rng.below(numel);
            (start, rng.below(numel - start + 1))
        }
    };
    let shift = if rng.chance(60) { start % 16 } else { rng.shift() };
    let bytes = rng.floats(dtype, length);
    let input = b.add(bytes, shift * size(dtype));
    (input, Shard { input: null(), start, length, rows, cols, dtype })
}

const PARTIAL_MODES: [NVTEScalingMode; 2] = [NVTE_MXFP8_1D_SCALING, NVTE_BLOCK_SCALING_2D];

pub fn partial_amax(rng: &mut Rng, index: usize) -> Case {
    let (dtype, mode) = (HIGH[index % 3], PARTIAL_MODES[index / 3 % 2]);
    let mxfp8 = mode == NVTE_MXFP8_1D_SCALING;
    let mut b = Buffers::default();
    let (input, shard) = shard(rng, &mut b, dtype);
    let wanted =
        if mxfp8 { rng.pick(&[[true, true], [true, false], [false, true]]) } else { [true, false] };
    let block_step = if mxfp8 { 1 } else { rng.within(1, 3) };
    let amax_dtype = if mxfp8 { dtype } else { kNVTEFloat32 };
    let [(rowwise, rowwise_stride), (colwise, colwise_stride)] = [false, true].map(|colwise| {
        let (_, rows, cols) = scale_matrix(mode, colwise, (shard.rows, shard.cols));
        let stride = cols * block_step + rng.pick(&[0, 0, 128]);
        let id = wanted[usize::from(colwise)].then(|| b.output(rng, amax_dtype, rows * stride));
        (id, stride)
    });
    let outputs = [("rowwise", amax_dtype, rowwise), ("colwise", amax_dtype, colwise)];
    Case::bits(format!("{mode:?}, {shard:?}, directions {wanted:?}"), b, &outputs, move |side| {
        let args = PartialAmaxArgs {
            shard: Shard { input: side.at(input), ..shard },
            rowwise: side.maybe(rowwise),
            colwise: side.maybe(colwise),
            rowwise_stride,
            colwise_stride,
            block_step,
            mode,
        };
        entry(side, side.table.partial_amax, args)
    })
}

pub fn partial_cast(rng: &mut Rng, index: usize) -> Case {
    let (dtype, mode) = (HIGH[index % 3], PARTIAL_MODES[index / 3 % 2]);
    let output_dtype = FP8[index / 6 % 2];
    let mxfp8 = mode == NVTE_MXFP8_1D_SCALING;
    let mut b = Buffers::default();
    let (input, mut shard) = shard(rng, &mut b, dtype);
    if shard.length == 0 {
        shard.length = 1;
        b.0[input.0].bytes = rng.floats(dtype, 1);
    }
    let wanted =
        if mxfp8 { rng.pick(&[[true, true], [true, false], [false, true]]) } else { [true, false] };
    let block_step = if mxfp8 { 1 } else { rng.within(1, 3) };
    let scale_dtype = if mxfp8 { kNVTEByte } else { kNVTEFloat32 };
    let [row, col] = [false, true].map(|colwise| {
        let (_, rows, cols) = scale_matrix(mode, colwise, (shard.rows, shard.cols));
        let stride = cols * block_step + rng.pick(&[0, 0, 128]);
        let wanted = wanted[usize::from(colwise)];
        let scales = wanted.then(|| b.input(rng, scale_dtype, rows * stride));
        let shift = if rng.chance(60) { shard.start % 16 } else { rng.shift() };
        let output = wanted.then(|| b.add(vec![0xCD; shard.length], shift));
        (output, scales, stride)
    });
    let outputs = [("rowwise", output_dtype, row.0), ("colwise", output_dtype, col.0)];
    Case::bits(
        format!("{mode:?} to {output_dtype:?}, {shard:?}, directions {wanted:?}"),
        b,
        &outputs,
        move |side| {
            let args = PartialCastArgs {
                shard: Shard { input: side.at(input), ..shard },
                rowwise: side.maybe(row.0),
                colwise: side.maybe(col.0),
                rowwise_scales: side.maybe::<c_void>(row.1),
                colwise_scales: side.maybe::<c_void>(col.1),
                rowwise_stride: row.2,
                colwise_stride: col.2,
                block_step,
                mode,
                output_dtype,
            };
            entry(side, side.table.partial_cast, args)
        },
    )
}
