//! The two ends of a language model: embeddings, and losses over a vocabulary.

use super::*;

/// The target that is ignored.
const IGNORED: i64 = -100;

const INDICES: [NVTEDType; 2] = [kNVTEInt32, kNVTEInt64];

impl Buffers {
    /// Numbers below `below` as values of inputs, and some of these others.
    fn indices(
        &mut self,
        rng: &mut Rng,
        dtype: NVTEDType,
        len: usize,
        (below, others): (usize, &[i64]),
    ) -> Id {
        let bytes = (0..len).flat_map(|_| {
            let index = rng.values(|rng| match rng.below(10) {
                0 if !others.is_empty() => rng.pick(others),
                _ => rng.below(below) as i64,
            });
            index.to_le_bytes()[..size(dtype)].to_vec()
        });
        let bytes = bytes.collect();
        self.add(bytes, 0)
    }
}

pub fn cross_entropy(rng: &mut Rng, index: usize) -> Case {
    use CrossEntropyPass::*;
    let passes = [
        NVTEX_CROSS_ENTROPY_FORWARD,
        NVTEX_CROSS_ENTROPY_PARTIAL,
        NVTEX_CROSS_ENTROPY_BACKWARD,
        NVTEX_CROSS_ENTROPY_FUSED,
    ];
    let (pass, dtype, target_dtype) = (passes[index % 4], HIGH[index / 4 % 3], rng.pick(&INDICES));
    let vocabulary = match rng.below(4) {
        0 => rng.within(1, 80),
        1 => 8 * rng.within(1, 600),
        2 => rng.within(1, 9000),
        _ => rng.pick(&[1024, 8191, 8192, 32000, 50257, 128_256]),
    };
    let tokens = rng.within(1, (300_000 / vocabulary).clamp(1, 60));
    let divided = matches!(pass, NVTEX_CROSS_ENTROPY_PARTIAL | NVTEX_CROSS_ENTROPY_BACKWARD)
        && rng.chance(40);
    let start = if divided { rng.within(0, vocabulary) } else { 0 };
    let total = if divided { start + vocabulary + rng.within(0, 9) } else { vocabulary };
    let label_smoothing = rng.pick(&[0.0, 0.0, 0.1, 1.0]);
    let z_loss = rng.pick(&[0.0, 0.0, 1e-2]);
    let fused = pass == NVTEX_CROSS_ENTROPY_FUSED;
    let backward = pass == NVTEX_CROSS_ENTROPY_BACKWARD;
    let mut b = Buffers::default();
    let logits = b.units(rng, dtype, tokens * vocabulary, 8.0);
    // Infinities and NaN are within no bound.
    let others: &[i64] = if pass == NVTEX_CROSS_ENTROPY_PARTIAL { &[] } else { &[IGNORED] };
    let targets = b.indices(rng, target_dtype, tokens, (total, others));
    let forward = (fused || pass == NVTEX_CROSS_ENTROPY_FORWARD)
        .then(|| [b.output(rng, kNVTEFloat32, tokens), b.output(rng, kNVTEFloat32, tokens)]);
    let partial = pass == NVTEX_CROSS_ENTROPY_PARTIAL;
    let partials = partial.then(|| b.output(rng, kNVTEFloat32, 4 * tokens));
    // No less than what a row of such logits has.
    let log = (total as f32).ln() + 8.0;
    let logsumexp = backward.then(|| b.floats((0..tokens).map(|_| log)));
    let apart = (backward && rng.chance(50)).then(|| b.output(rng, dtype, tokens * vocabulary));
    let gradients = (fused || backward).then(|| apart.unwrap_or(logits));
    let with_grad = (fused || backward) && rng.chance(60);
    let grad_per_token = with_grad && rng.chance(50);
    let grads = if grad_per_token { tokens } else { 1 };
    let grad = with_grad.then(|| b.units(rng, kNVTEFloat32, grads, 1.0));
    let count = ((fused || backward) && rng.chance(60)).then(|| b.float(3.0));
    let [loss, log_sums] = [0, 1].map(|i| forward.map(|both| both[i]));
    let written = |backward: bool| if backward { None } else { log_sums };
    let outputs = [
        ("loss", kNVTEFloat32, loss, 4e-5),
        ("logsumexp", kNVTEFloat32, written(backward), 1e-5),
        // A sum of all logits is as exact as the largest that it goes through.
        ("partials", kNVTEFloat32, partials, 4e-6 * vocabulary as f64 + 1e-4),
        ("gradients", dtype, gradients, 1e-5),
    ];
    let place = if apart.is_some() { "apart" } else { "in place" };
    let what = format!("{pass:?} {dtype:?} {tokens}x{vocabulary} from {start} of {total} {place}");
    Case::within(what, b, &outputs, move |side| {
        let args = CrossEntropyArgs {
            logits: side.at(logits),
            targets: side.at(targets),
            loss: side.maybe(loss),
            logsumexp: side.maybe(if backward { logsumexp } else { log_sums }),
            partials: side.maybe(partials),
            grad_logits: side.maybe(gradients),
            grad: side.maybe(grad),
            count: side.maybe(count),
            tokens,
            vocabulary,
            start,
            total,
            ignored: IGNORED,
            label_smoothing,
            z_loss,
            pass,
            dtype,
            target_dtype,
            grad_per_token,
        };
        entry(side, side.table.cross_entropy, args)
    })
}

pub fn combine_cross_entropy(rng: &mut Rng, _: usize) -> Case {
    let (parts, tokens, target_dtype) = (rng.within(1, 8), rng.within(1, 2000), rng.pick(&INDICES));
    let total = rng.within(parts, 200_000);
    let label_smoothing = rng.pick(&[0.0, 0.1, 1.0]);
    let mut b = Buffers::default();
    let targets = b.indices(rng, target_dtype, tokens, (total, &[IGNORED]));
    let values: Vec<f32> = (0..parts * 4 * tokens)
        .map(|i| match i / tokens % 4 {
            1 => 1.0 + rng.unit().abs() * 50.0,
            _ => rng.unit() * 8.0,
        })
        .collect();
    let partials = b.floats(values);
    let loss = b.output(rng, kNVTEFloat32, tokens);
    let log_sums = rng.chance(70).then(|| b.output(rng, kNVTEFloat32, tokens));
    let outputs =
        [("loss", kNVTEFloat32, Some(loss), 4e-5), ("logsumexp", kNVTEFloat32, log_sums, 1e-5)];
    Case::within(format!("{parts} parts of {tokens}, {total}"), b, &outputs, move |side| {
        let args = CombineCrossEntropyArgs {
            partials: side.at(partials),
            targets: side.at(targets),
            loss: side.at(loss),
            logsumexp: side.maybe(log_sums),
            parts,
            tokens,
            total,
            ignored: IGNORED,
            label_smoothing,
            z_loss: 1e-3,
            target_dtype,
        };
        entry(side, side.table.combine_cross_entropy, args)
    })
}

pub fn total_loss(rng: &mut Rng, index: usize) -> Case {
    let counts = index % 2 == 1;
    let (tokens, target_dtype, mean) = (rng.within(1, 9000), rng.pick(&INDICES), rng.chance(50));
    let mut b = Buffers::default();
    let targets = counts.then(|| b.indices(rng, target_dtype, tokens, (100, &[IGNORED])));
    let losses = b.units(rng, kNVTEFloat32, tokens, 10.0);
    let total = b.output(rng, kNVTEFloat32, 1);
    let count = b.float(rng.within(0, 9000) as f32);
    let outputs = [
        ("total", kNVTEFloat32, Some(total), 1e-5 * 9000.0),
        ("count", kNVTEFloat32, counts.then_some(count), 0.0),
    ];
    Case::within(format!("{tokens} {counts} {mean}"), b, &outputs, move |side| {
        let args = TotalLossArgs {
            targets: side.maybe(targets),
            losses: side.at(losses),
            total: side.at(total),
            count: side.at(count),
            tokens,
            ignored: IGNORED,
            target_dtype,
            mean,
        };
        entry(side, side.table.total_loss, args)
    })
}

/// Columns of a table.
fn columns(rng: &mut Rng) -> usize {
    match rng.below(3) {
        0 => rng.within(1, 300),
        1 => 8 * rng.within(1, 300),
        _ => rng.pick(&[64, 1024, 1032, 4096]),
    }
}

pub fn embedding(rng: &mut Rng, index: usize) -> Case {
    let (weight_dtype, output_dtype) = (HIGH[index % 3], HIGH[index / 3 % 3]);
    let token_dtype = rng.pick(&INDICES);
    let cols = columns(rng);
    let most = 200_000 / cols + 2;
    let (count, rows) = (rng.within(1, most), rng.within(1, most));
    let start = if rng.chance(30) { rng.within(0, 9) } else { 0 };
    let total = start + rows + if rng.chance(30) { 5 } else { 0 };
    let position_rows = if rng.chance(50) { rng.within(1, most) } else { 0 };
    let period = rng.within(1, count + 3);
    let scale = rng.pick(&[1.0, 8.0, 0.3]);
    let mut b = Buffers::default();
    let tokens = b.indices(rng, token_dtype, count, (total, &[-1, total as i64, i64::MAX]));
    let weight = b.input(rng, weight_dtype, rows * cols);
    let table = (position_rows > 0).then(|| b.input(rng, weight_dtype, position_rows * cols));
    let given = position_rows > 0 && rng.chance(50);
    let positions = given
        .then(|| b.indices(rng, token_dtype, count, (position_rows, &[-3, position_rows as i64])));
    let output = b.output(rng, output_dtype, count * cols);
    let wrong = rng.chance(70).then(|| b.add(5_i32.to_le_bytes().to_vec(), 0));
    let outputs = [("output", output_dtype, Some(output)), ("wrong", kNVTEInt32, wrong)];
    let what =
        format!("{weight_dtype:?} {output_dtype:?} {count} of {rows}x{cols}, {position_rows}");
    Case::bits(what, b, &outputs, move |side| {
        let args = EmbeddingArgs {
            tokens: side.at(tokens),
            weight: side.at(weight),
            positions: side.maybe(positions),
            position_weight: side.maybe(table),
            output: side.at(output),
            wrong: side.maybe(wrong),
            count,
            rows,
            cols,
            position_rows,
            start,
            total,
            period,
            scale,
            weight_dtype,
            output_dtype,
            token_dtype,
        };
        entry(side, side.table.embedding, args)
    })
}

/// Keys of rows, and the sums of the rows that they sort.
pub fn sum_rows(rng: &mut Rng, index: usize) -> Case {
    let (input_dtype, output_dtype) = (HIGH[index % 3], HIGH[index / 3 % 3]);
    let index_dtype = rng.pick(&INDICES);
    let cols = columns(rng);
    let most = 300_000 / cols + 2;
    let (count, rows) = (rng.within(1, most), rng.pick(&[1, 2, 7, most, 10 * most]));
    let (start, period) = (rng.pick(&[0, 0, 3]), rng.within(1, count + 3));
    let scale = rng.pick(&[1.0, 0.3]);
    let mut b = Buffers::default();
    let given = rng.chance(80);
    let indices = given
        .then(|| b.indices(rng, index_dtype, count, (rows + start, &[-1, (rows + start) as i64])));
    let input = b.units(rng, input_dtype, count * cols, 2.0);
    let output = b.units(rng, output_dtype, rows * cols, 2.0);
    let lists = [0; 4].map(|_| b.add(vec![0xCD; 4 * count], 0));
    let parts = count.div_ceil(NVTEX_ROW_SUM_PART);
    let sums = b.add(vec![0xCD; 2 * parts * cols * 4], 0);
    let bytes = count * 16 + (1 << 20);
    let workspace = b.add(vec![0xCD; bytes], 0);
    let [keys, values, sorted_keys, sorted_values] = lists;
    let what = format!("{input_dtype:?} {output_dtype:?} {count}x{cols} to {rows} from {start}");
    let outputs = [
        ("keys", kNVTEInt32, Some(keys)),
        ("values", kNVTEInt32, Some(values)),
        ("sorted keys", kNVTEInt32, Some(sorted_keys)),
        ("sorted values", kNVTEInt32, Some(sorted_values)),
        ("output", output_dtype, Some(output)),
    ];
    let call = move |side: &Side| {
        let row_keys = RowKeysArgs {
            indices: side.maybe(indices),
            keys: side.at(keys),
            values: side.at(values),
            count,
            rows,
            start,
            period,
            index_dtype,
        };
        let needed = Cell::new(bytes);
        let sort = SortPairsArgs {
            workspace: side.at(workspace),
            workspace_bytes: needed.as_ptr(),
            keys: side.at(keys),
            sorted_keys: side.at(sorted_keys),
            values: side.at(values),
            sorted_values: side.at(sorted_values),
            pairs: count,
            key_bits: usize::BITS - rows.leading_zeros(),
        };
        let sum = SumRowsArgs {
            input: side.at(input),
            keys: side.at(sorted_keys),
            values: side.at(sorted_values),
            output: side.at(output),
            workspace: side.at(sums),
            count,
            rows,
            cols,
            scale,
            input_dtype,
            output_dtype,
        };
        in_turn([
            &|| entry(side, side.table.row_keys, row_keys) as Outcome,
            &|| entry(side, side.table.sort_pairs, sort),
            &|| entry(side, side.table.sum_rows, sum),
        ] as [&dyn Fn() -> Outcome; 3])
    };
    Case::bits(what, b, &outputs, call).scratch([sums, workspace])
}

pub fn sample_tokens(rng: &mut Rng, index: usize) -> Case {
    let dtype = HIGH[index % 3];
    let cols = match rng.below(3) {
        0 => rng.within(1, 100),
        1 => 8 * rng.within(1, 1000),
        _ => rng.within(1, 20_000),
    };
    let rows = rng.within(1, (100_000 / cols).clamp(1, 50));
    let top_k = if rng.chance(50) { rng.within(1, cols) } else { cols };
    let top_p = rng.pick(&[1.0, 0.9, 0.5]);
    let temperature = rng.pick(&[1.0, 0.7, 2.0]);
    let mut b = Buffers::default();
    let logits = b.units(rng, dtype, rows * cols, 4.0);
    let state: Vec<u8> = [rng.next(), 7].into_iter().flat_map(u64::to_le_bytes).collect();
    let rng_state = b.add(state, 0);
    let tokens = b.output(rng, kNVTEInt32, rows);
    let outputs = [("tokens", kNVTEInt32, Some(tokens))];
    let what = format!("{dtype:?} {rows}x{cols}, {top_k}, {top_p}, {temperature}");
    Case::bits(what, b, &outputs, move |side| {
        let args = SampleTokensArgs {
            logits: side.at(logits),
            tokens: side.at(tokens),
            rng_state: side.at(rng_state),
            rows,
            cols,
            top_k,
            temperature,
            top_p,
            dtype,
        };
        entry(side, side.table.sample_tokens, args)
    })
}

pub fn merge_attention(rng: &mut Rng, index: usize) -> Case {
    let (tokens, heads, width) = (rng.within(1, 90), rng.within(1, 12), rng.within(1, 130));
    let dtype = rng.pick(&HIGH);
    let first = index.is_multiple_of(3);
    let (numel, rows) = (tokens * heads * width, tokens * heads);
    let mut b = Buffers::default();
    let out = b.units(rng, kNVTEFloat32, numel, 1.0);
    let [lse, step_lse] = [0; 2].map(|_| b.units(rng, kNVTEFloat32, rows, 6.0));
    let step = b.units(rng, dtype, numel, 1.0);
    let what = format!("{tokens} of {heads} heads of {width}, {dtype:?}, first {first}");
    let outputs = [("out", kNVTEFloat32, Some(out), 1e-5), ("lse", kNVTEFloat32, Some(lse), 1e-5)];
    Case::within(what, b, &outputs, move |side| {
        let args = MergeAttentionArgs {
            out: side.at(out),
            lse: side.at(lse),
            step: side.at::<c_void>(step).cast_const(),
            step_lse: side.at::<f32>(step_lse).cast_const(),
            tokens,
            heads,
            width,
            dtype,
            first,
        };
        entry(side, side.table.merge_attention, args)
    })
}

pub fn chunk_lengths(rng: &mut Rng, index: usize) -> Case {
    let (sequences, ranks) = (rng.within(1, 80), rng.within(1, 8));
    let chunks = 2 * ranks;
    let (mut cu, mut starts) = (vec![0], vec![0]);
    for s in 0..sequences {
        let room = chunks * rng.within(0, 40);
        cu.push(cu[s] + rng.within(0, room));
        starts.push(starts[s] + room);
    }
    let rank = rng.within(0, ranks - 1);
    let [first, second] = [rank, chunks - 1 - rank];
    let (ranges, divisor, skipped) = match index % 4 {
        0 => ([[0, second + 1], [0, 0]], 1, 0),
        1 => ([[first, first + 1], [0, 0]], ranks, 0),
        2 => ([[second, second + 1], [0, 0]], ranks, 1),
        _ => ([[first, first + 1], [second, second + 1]], ranks, 0),
    };
    let mut b = Buffers::default();
    let [cu, starts] = [b.ints(cu), b.ints(starts)];
    let [lengths, firsts] = [0; 2].map(|_| b.output(rng, kNVTEInt32, sequences + 1));
    let what = format!("{sequences} sequences, rank {rank} of {ranks}, {ranges:?}");
    let outputs = [("lengths", kNVTEInt32, Some(lengths)), ("firsts", kNVTEInt32, Some(firsts))];
    Case::bits(what, b, &outputs, move |side| {
        let args = ChunkLengthsArgs {
            cu: side.at::<i32>(cu).cast_const(),
            starts: side.at::<i32>(starts).cast_const(),
            lengths: side.at(lengths),
            firsts: side.at(firsts),
            sequences,
            chunks,
            range: ranges[0],
            other_range: ranges[1],
            divisor,
            skipped,
        };
        entry(side, side.table.chunk_lengths, args)
    })
}
