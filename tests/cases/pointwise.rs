//! Scaled activations, softmax, dropout, rotary embedding.

use super::*;

pub fn scaled_activation(rng: &mut Rng, index: usize) -> Case {
    let backward = index % 2 == 1;
    let (gated, function, [a, b, c]) = [
        (false, Function::NVTEX_SRELU, [0.0; 3]),
        (true, Function::NVTEX_SILU, [0.0; 3]),
        (true, Function::NVTEX_CLAMPED_SILU, [1.5, 1.702, 1.0]),
        (true, Function::NVTEX_SITU, [4.0, 25.0, 0.0]),
    ][index / 2 % 4];
    let block = 32 * rng.within(1, 3);
    let (cols, interleave) = match rng.below(4) {
        0 => (block * rng.within(1, 30), block),
        1 => (8 * rng.within(1, 400), 0),
        2 => (rng.within(1, 40), 0),
        _ => (rng.within(1, 3000), 0),
    };
    let (rows, interleave) = (rng.within(1, 60), if interleave > 0 { interleave } else { cols });
    let width = if gated { 2 * cols } else { cols };
    let same = rng.chance(30).then(|| rng.pick(&HIGH));
    let dtypes = [0; 5].map(|_| same.unwrap_or(rng.pick(&HIGH)));
    let [input_dtype, grad_dtype, output_dtype, scales_dtype, grad_scales_dtype] = dtypes;
    let mut buffers = Buffers::default();
    let input = buffers.input(rng, input_dtype, rows * width);
    let grad = backward.then(|| buffers.input(rng, grad_dtype, rows * cols));
    let out_width = if backward { width } else { cols };
    let output = buffers.output(rng, output_dtype, rows * out_width);
    let scales = buffers.input(rng, scales_dtype, rows);
    let grad_scales =
        (backward && rng.chance(80)).then(|| buffers.output(rng, grad_scales_dtype, rows));
    let outputs =
        [("output", output_dtype, Some(output)), ("grad_scales", grad_scales_dtype, grad_scales)];
    Case::bits(
        format!("{function:?} {dtypes:?}, {rows}x{cols} by {interleave}"),
        buffers,
        &outputs,
        move |side| {
            let args = ScaledActivationArgs {
                input: side.at(input),
                grad: side.maybe(grad),
                output: side.at(output),
                scales: side.at(scales),
                grad_scales: side.maybe(grad_scales),
                rows,
                cols,
                interleave,
                gated,
                function,
                a,
                b,
                c,
                input_dtype,
                grad_dtype,
                output_dtype,
                scales_dtype,
                grad_scales_dtype,
            };
            entry(side, side.table.scaled_activation, args)
        },
    )
}

pub fn softmax(rng: &mut Rng, index: usize) -> Case {
    use SoftmaxMask::*;
    let masks = [
        NVTEX_SOFTMAX_UNMASKED,
        NVTEX_SOFTMAX_BYTES,
        NVTEX_SOFTMAX_CAUSAL,
        NVTEX_SOFTMAX_CAUSAL_BOTTOM_RIGHT,
    ];

    let (dtype, visible) = (HIGH[index % 3], masks[index / 3 % 4]);
    let backward = index / 12 % 2 == 1;
    let keys = match rng.below(5) {
        0 => rng.within(1, 80),
        1 => 8 * rng.within(1, 600),
        2 => rng.within(1, 5000),
        3 => 8 * rng.within(1000, 6000),
        _ => rng.pick(&[128, 512, 2048, 8192, 16384, 32768, 32776]),
    };
    let most = (200_000 / keys).clamp(1, 300);
    let queries = rng.within(1, most);
    let matrices_per_mask = rng.within(1, 3);
    let matrices = matrices_per_mask * rng.within(1, 3);
    let numel = matrices * queries * keys;
    let mut b = Buffers::default();
    let input = b.units(rng, dtype, numel, 3.0);
    let results = backward.then(|| b.units(rng, dtype, numel, 1.0 / keys as f32));
    let masked = !backward && visible == NVTEX_SOFTMAX_BYTES;
    let mask = masked.then(|| {
        let mut bytes = rng.bytes(numel / matrices_per_mask);
        bytes.iter_mut().for_each(|byte| *byte %= 3);
        // A row in which everything is masked.
        bytes[..keys].fill(1);
        b.add(bytes, rng.shift())
    });
    let output = b.output(rng, dtype, numel);
    let output = if rng.chance(25) { input } else { output };
    let scale = rng.pick(&[1.0, 0.125, -2.0]);
    Case::near(
        format!("{dtype:?} {visible:?} {matrices}x{queries}x{keys} {backward}"),
        b,
        dtype,
        4e-6,
        &[output],
        move |side| {
            let args = SoftmaxArgs {
                input: side.at(input),
                results: side.maybe(results),
                output: side.at(output),
                mask: side.maybe(mask),
                matrices_per_mask,
                matrices,
                queries,
                keys,
                scale,
                visible,
                dtype,
            };
            entry(side, side.table.softmax, args)
        },
    )
}

pub fn dropout(rng: &mut Rng, index: usize) -> Case {
    let (input_dtype, output_dtype) = match index % 9 {
        i @ 0..6 => (FP8[i % 2], HIGH[i / 2]),
        i => (HIGH[i - 6], HIGH[i - 6]),
    };
    let forward = is_fp8(input_dtype) || (index / 9).is_multiple_of(2);
    let numel = match rng.below(3) {
        0 => rng.within(1, 1200),
        1 => 512 * rng.within(1, 300),
        _ => rng.within(1, 200_000),
    };
    let add = forward && input_dtype == output_dtype && rng.chance(60);
    let cols = rng.pick(&[1, 7, 64, 1000, 1024, 4096]);
    let numel = if add { numel.next_multiple_of(cols) } else { numel };
    let mut b = Buffers::default();
    let input = b.input(rng, input_dtype, numel);
    let output = b.output(rng, output_dtype, numel);
    let residual = add.then(|| b.input(rng, input_dtype, numel));
    let bias = (add && rng.chance(70)).then(|| b.input(rng, input_dtype, cols));
    let output = if input_dtype == output_dtype && rng.chance(25) { input } else { output };
    let mask_bytes = rng.bytes(numel.div_ceil(8));
    let mask = b.add(mask_bytes, rng.below(3));
    let state = [rng.next(), rng.next() >> rng.pick(&[0, 30, 60])];
    let state: Vec<u8> = state.into_iter().flat_map(u64::to_le_bytes).collect();
    let rng_state = forward.then(|| b.add(state, 0));
    let scale_inv = b.float(rng.scale());
    let probability = rng.pick(&[0.0, 0.1, 0.5, 0.001, 0.999]);
    let first = if forward { rng.pick(&[0, 0, 1, 77, 1 << 33]) } else { 0 };
    let written = forward.then_some(mask);
    let outputs = [("output", output_dtype, Some(output)), ("mask", kNVTEByte, written)];
    Case::bits(
        format!("{input_dtype:?} to {output_dtype:?}, {numel} {forward} {add}"),
        b,
        &outputs,
        move |side| {
            let args = DropoutArgs {
                input: side.at(input),
                output: side.at(output),
                mask: side.at(mask),
                rng_state: side.maybe(rng_state),
                scale_inv: side.at(scale_inv),
                numel,
                probability,
                input_dtype,
                output_dtype,
                residual: side.maybe(residual),
                bias: side.maybe(bias),
                cols,
                first,
            };
            entry(side, side.table.dropout, args)
        },
    )
}

pub fn rope(rng: &mut Rng, index: usize) -> Case {
    let (dtype, interleaved, backward) = (HIGH[index % 3], index / 3 % 2 == 1, index / 6 % 2 == 1);
    let cp_size = rng.pick(&[1, 1, 2, 3]);
    let packed = rng.chance(30);
    let (mut positions, sequences) = (2 * rng.within(1, 60), rng.within(1, 9));
    let dim = rng.pick(&[2, 6, 16, 64, 80, 128, 256, 600]);
    let rotated = if rng.chance(70) { dim } else { dim / 4 * 2 };
    let freqs_rows = positions * cp_size * sequences + 50;
    let mut b = Buffers::default();
    let mut ints =
        |values: Vec<i32>| b.add(values.into_iter().flat_map(i32::to_le_bytes).collect(), 0);
    let starts = rng.chance(30).then(|| {
        let starts = (0..sequences).map(|_| rng.below(50) as i32).collect();
        ints(starts)
    });
    let cu_seqlens = packed.then(|| {
        let mut cu = vec![0];
        for n in 0..sequences {
            cu.push(cu[n] + 2 * (cp_size * rng.below(positions / 2 + 1)) as i32);
        }
        positions = cu[sequences] as usize / cp_size + 3;
        ints(cu)
    });
    let tokens = if packed { positions } else { positions * sequences };
    // One tensor, or queries, keys and values of groups.
    let groups = rng.within(1, 5);
    let members: Vec<usize> = if rng.chance(50) { vec![1] } else { vec![rng.within(1, 4), 1, 1] };
    let group: usize = members.iter().sum::<usize>() * dim;
    let sequence_first = rng.chance(50);
    let strides = move |group: usize| RopeStrides {
        position: if packed || sequence_first { 1 } else { sequences } * groups * group,
        sequence: if packed {
            0
        } else if sequence_first {
            positions * groups * group
        } else {
            groups * group
        },
        group,
        head: dim,
        element: 1,
    };
    let whole = b.units(rng, dtype, tokens * groups * group, 1.0);
    let mut parts = Vec::new();
    for (i, &heads) in members.iter().enumerate() {
        let other = b.units(rng, dtype, tokens * groups * heads * dim, 1.0);
        let turns = i < 2 && rng.chance(90);
        let freqs = turns.then(|| b.units(rng, kNVTEFloat32, freqs_rows * rotated, 1000.0));
        parts.push((heads, other, freqs));
    }
    // A maximum of earlier values stays if it is larger.
    let before = rng.pick(&[0.0, 0.0, 1e4]);
    let amax = rng.chance(50).then(|| b.float(before));
    let outputs: Vec<Id> =
        if backward { vec![whole] } else { parts.iter().map(|part| part.1).collect() };
    let outputs = outputs.into_iter().map(|id| Output::within("output", dtype, id, 2e-6));
    let rounding = if dtype == kNVTEFloat32 { 1e-5 } else { 8e-3 };
    let amax_output = Output::new("amax", kNVTEFloat32, amax, Expect::Relative(rounding));
    Case::new(
        format!("{dtype:?} {positions}x{sequences}x{groups}x{members:?}x{dim} {rotated}"),
        b,
        outputs.chain([amax_output]),
        move |side| {
            let mut first = 0;
            let part = |i: usize| {
                let Some(&(heads, other, freqs)) = parts.get(i) else { return NO_ROPE_PART };
                let here = side.at::<u8>(whole).wrapping_add(first * size(dtype)).cast();
                first += heads * dim;
                let (own, shared) = (strides(heads * dim), strides(group));
                let (input, output) =
                    if backward { (side.at(other), here) } else { (here, side.at(other)) };
                let (input_strides, output_strides) =
                    if backward { (own, shared) } else { (shared, own) };
                RopePart {
                    input,
                    output,
                    freqs: side.maybe(freqs),
                    heads: groups * heads,
                    heads_per_group: heads,
                    input_strides,
                    output_strides,
                }
            };
            let args = RopeArgs {
                parts: [0, 1, 2].map(part),
                cu_seqlens: side.maybe(cu_seqlens),
                start_positions: side.maybe(starts),
                positions,
                sequences,
                dim,
                rotated,
                cp_size,
                freqs_rows,
                cp_rank: cp_size - 1,
                interleaved,
                backward,
                dtype,
                amax: side.maybe(amax),
            };
            entry(side, side.table.rope, args)
        },
    )
}
