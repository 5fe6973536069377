//! Mixtures of experts. Choices are equal where they go by numbers that both backends have: by the
//! logits (the softmax of the chosen) or by bits. Of rounded scores, two that are nearly equal may come
//! in another order, so that those are left to the tests of the ABI, which know how near they are.

use super::*;
use std::ptr::null;

const NO_ROUTING: Routing =
    Routing { bytes: null_mut(), bits: null_mut(), indices: null_mut(), index_dtype: kNVTEInt32 };

struct Sizes {
    tokens: usize,
    experts: usize,
    topk: usize,
}

impl Sizes {
    fn draw(rng: &mut Rng) -> Self {
        let experts = match rng.below(4) {
            0 => rng.pick(&[8, 64, 128, 256, 512, 1024]),
            1 => 4 * rng.within(1, 300),
            2 => rng.within(1, 40),
            _ => rng.within(1, 1300),
        };
        let topk = if rng.chance(10) { experts } else { rng.within(1, experts.min(16)) };
        Self { tokens: rng.within(1, 70), experts, topk }
    }
}

pub fn router_forward(rng: &mut Rng, _: usize) -> Case {
    let Sizes { tokens, experts, topk } = Sizes::draw(rng);
    let dtype = rng.pick(&HIGH);
    let mut b = Buffers::default();
    let logits = b.units(rng, dtype, tokens * experts, 4.0);
    let probs = b.output(rng, dtype, tokens * experts);
    let intermediate = b.output(rng, kNVTEFloat32, tokens * experts);
    let form = rng.below(3);
    let (width, listed) = match form {
        0 => (experts, kNVTEByte),
        1 => (experts.div_ceil(8), kNVTEByte),
        _ => (topk, rng.pick(&[kNVTEInt16, kNVTEInt32, kNVTEInt64])),
    };
    let chosen = b.output(rng, listed, tokens * width);
    let what = format!("{tokens}x{experts}, {topk}, {dtype:?}, form {form}");
    let outputs =
        [Output::bits("choice", kNVTEByte, chosen), Output::within("probs", dtype, probs, 1e-6)];
    Case::new(what, b, outputs, move |side| {
        let routing = match form {
            0 => Routing { bytes: side.at(chosen), ..NO_ROUTING },
            1 => Routing { bits: side.at(chosen), ..NO_ROUTING },
            _ => Routing { indices: side.at(chosen), index_dtype: listed, ..NO_ROUTING },
        };
        let args = RouterForwardArgs {
            logits: side.at::<c_void>(logits).cast_const(),
            expert_bias: null(),
            probs: side.at(probs),
            routing,
            intermediate: side.at(intermediate),
            cutoff: null_mut(),
            tokens,
            experts,
            topk,
            groups: 0,
            group_topk: 0,
            scaling_factor: 1.5,
            score: RouterScore::NVTEX_ROUTER_SOFTMAX,
            pre_softmax: false,
            all: false,
            dtype,
            probs_dtype: dtype,
            bias_dtype: dtype,
        };
        entry(side, side.table.router_forward, args)
    })
    .scratch([intermediate])
}

pub fn router_backward(rng: &mut Rng, _: usize) -> Case {
    let Sizes { tokens, experts, topk } = Sizes::draw(rng);
    let (dtype, all) = (rng.pick(&HIGH), rng.chance(30));
    let score = rng.pick(&[
        RouterScore::NVTEX_ROUTER_SIGMOID,
        RouterScore::NVTEX_ROUTER_SOFTMAX,
        RouterScore::NVTEX_ROUTER_SQRTSOFTPLUS,
    ]);
    let softmax = score == RouterScore::NVTEX_ROUTER_SOFTMAX;
    let pre_softmax = softmax && (all || rng.chance(50));
    let mut b = Buffers::default();
    // Scores of 1/4 to 3/4, so that sums are no small differences.
    let scores = (0..tokens * experts).map(|_| 0.5 + 0.25 * rng.unit()).collect::<Vec<_>>();
    let scores = b.floats(scores);
    let grad_dtype = if all && rng.below(2) == 0 { kNVTEFloat32 } else { dtype };
    let grad = b.units(rng, grad_dtype, tokens * experts, 1.0);
    let map: Vec<u8> = (0..tokens * experts)
        .map(|i| u8::from((i % experts * 7 + i / experts) % experts < topk))
        .collect();
    let map = b.add(map, 0);
    let grad_logits = b.output(rng, dtype, tokens * experts);
    // The bound grows with the number of terms of a sum.
    let bound = 1e-6 * experts as f64;
    Case::within(
        format!("{tokens}x{experts}, {topk}, {dtype:?}, {score:?}, all {all}"),
        b,
        &[("grad_logits", dtype, Some(grad_logits), bound)],
        move |side| {
            let args = RouterBackwardArgs {
                routing: Routing { bytes: side.at(map), ..NO_ROUTING },
                intermediate: side.at::<f32>(scores).cast_const(),
                grad: side.at::<c_void>(grad).cast_const(),
                grad_logits: side.at(grad_logits),
                tokens,
                experts,
                topk,
                scaling_factor: 1.5,
                score,
                pre_softmax,
                all,
                dtype,
                grad_dtype,
            };
            entry(side, side.table.router_backward, args)
        },
    )
}

pub fn router_weights(rng: &mut Rng, index: usize) -> Case {
    let (tokens, experts) = (rng.within(1, 300), rng.within(1, 300));
    let topk = rng.within(1, experts.min(40));
    let backward = index % 2 == 1;
    let mut b = Buffers::default();
    let indices: Vec<u8> = (0..tokens)
        .flat_map(|_| {
            let first = rng.values(|rng| rng.below(experts));
            (0..topk).flat_map(move |k| (((first + k) % experts) as i32).to_le_bytes())
        })
        .collect();
    let indices = b.add(indices, 0);
    let [probs, weights] = match backward {
        false => [
            b.units(rng, kNVTEFloat32, tokens * experts, 1.0),
            b.output(rng, kNVTEFloat32, tokens * topk),
        ],
        true => [
            b.output(rng, kNVTEFloat32, tokens * experts),
            b.units(rng, kNVTEFloat32, tokens * topk, 1.0),
        ],
    };
    let output = if backward { probs } else { weights };
    let what = format!("{tokens}x{topk} of {experts}, backward {backward}");
    let outputs = [Output::bits("output", kNVTEFloat32, output)];
    Case::new(what, b, outputs, move |side| {
        let args = RouterWeightsArgs {
            probs: side.at(probs),
            weights: side.at(weights),
            indices: side.at::<i32>(indices).cast_const(),
            tokens,
            experts,
            topk,
            backward,
        };
        entry(side, side.table.router_weights, args)
    })
}

pub fn router_z_loss(rng: &mut Rng, index: usize) -> Case {
    let (tokens, experts) = (rng.within(1, 300), rng.within(1, 300));
    let backward = index % 2 == 1;
    let mut b = Buffers::default();
    let logits = b.units(rng, kNVTEFloat32, tokens * experts, 4.0);
    let output = match backward {
        false => b.output(rng, kNVTEFloat32, tokens),
        true => b.units(rng, kNVTEFloat32, tokens * experts, 1.0),
    };
    let grad = b.units(rng, kNVTEFloat32, 1, 2.0);
    let what = format!("{tokens}x{experts}, backward {backward}");
    let outputs = [("output", kNVTEFloat32, Some(output), 1e-5)];
    Case::within(what, b, &outputs, move |side| {
        let args = RouterZLossArgs {
            logits: side.at::<f32>(logits).cast_const(),
            terms: if backward { null_mut() } else { side.at(output) },
            grad_logits: if backward { side.at(output) } else { null_mut() },
            grad_loss: if backward { side.at::<f32>(grad).cast_const() } else { null() },
            tokens,
            experts,
            factor: 0.3,
        };
        entry(side, side.table.router_z_loss, args)
    })
}

pub fn expert_rows(rng: &mut Rng, _: usize) -> Case {
    let (tokens, topk) = (rng.below(700), rng.within(1, 8));
    let experts = if rng.chance(20) { rng.within(1, 1500) } else { rng.within(1, 70) };
    let planes = topk + rng.below(3);
    let alignment = rng.pick(&[1, 1, 16, 128, 37]);
    let slots = tokens * topk;
    let capacity =
        if rng.chance(50) { i32::MAX as usize } else { rng.within(0, slots + alignment) };
    let limit = if rng.chance(50) { 0 } else { rng.within(1, 2 * slots / experts + 2) };
    let fixed = limit > 0 && rng.chance(50);
    let group = if rng.chance(60) { 0 } else { rng.within(1, 6) };
    let first = if rng.chance(50) { 0 } else { rng.within(1, 3) };
    let [chosen_dtype, counts_dtype] = [0; 2].map(|_| rng.pick(&[kNVTEInt32, kNVTEInt64]));
    let mut b = Buffers::default();
    // From -1 to the number of experts, both of which are none.
    let numbers = first + experts * group.max(1) + 2;
    let chosen: Vec<u8> = (0..slots)
        .flat_map(|_| {
            let expert = rng.values(|rng| rng.below(numbers)) as i64 - 1;
            expert.to_le_bytes()[..size(chosen_dtype)].to_vec()
        })
        .collect();
    let chosen = b.add(chosen, 0);
    let [sizes, starts] = [2, experts].map(|len| b.output(rng, kNVTEInt64, len));
    let [rows, map] = [slots, planes * tokens].map(|len| b.output(rng, kNVTEInt32, len));
    let counts = rng.chance(80).then(|| b.output(rng, counts_dtype, experts));
    let total = rng.chance(80).then(|| b.output(rng, counts_dtype, 1));
    let lengths = rng.chance(50).then(|| b.output(rng, kNVTEInt64, experts));
    let what = format!(
        "{tokens}x{topk} of {planes}, {experts} experts by {alignment}, {capacity} rows, \
         {chosen_dtype:?}, {counts_dtype:?}, from {first} by {group}, limit {limit}, fixed {fixed}"
    );
    let outputs = [
        Output::new("sizes", kNVTEInt64, sizes, Expect::Fixed),
        Output::bits("starts", kNVTEInt64, starts),
        Output::bits("rows", kNVTEInt32, rows),
        Output::bits("map", kNVTEInt32, map),
        Output::bits("counts", counts_dtype, counts),
        Output::bits("total", counts_dtype, total),
        Output::bits("lengths", kNVTEInt64, lengths),
    ];
    Case::new(what, b, outputs, move |side| {
        let args = ExpertRowsArgs {
            chosen: side.at::<c_void>(chosen).cast_const(),
            sizes: side.at(sizes),
            starts: side.at(starts),
            rows: side.at(rows),
            map: side.at(map),
            counts: side.maybe(counts),
            total: side.maybe(total),
            tokens,
            topk,
            planes,
            experts,
            alignment,
            capacity,
            chosen_dtype,
            counts_dtype,
            lengths: side.maybe(lengths),
            first,
            group,
            limit,
            fixed,
        };
        entry(side, side.table.expert_rows, args)
    })
}

pub fn zero_gaps(rng: &mut Rng, _: usize) -> Case {
    let (experts, width) = (rng.within(1, 70), 2 * rng.pick(&[8, 8, 1, 5, 64, 300]));
    let limit = if rng.chance(50) { 0 } else { rng.within(1, 40) };
    let mut end = 0;
    let mut place = || {
        let length = rng.below(50);
        let start = end;
        end += if limit > 0 { length.min(limit) } else { length };
        end += if rng.chance(50) { 0 } else { rng.below(20) };
        [start, length].map(|n| (n as i64).to_le_bytes())
    };
    let places: Vec<_> = (0..experts).map(|_| place()).collect();
    // Some rows may not exist, or belong to nobody.
    let rows = (end + rng.below(60)).saturating_sub(rng.below(40));
    let mut b = Buffers::default();
    let [starts, lengths] = [0, 1].map(|i| b.add(places.iter().flat_map(|p| p[i]).collect(), 0));
    let output = b.output(rng, kNVTEByte, rows * width);
    let what = format!("{experts} experts, {rows} rows of {width} bytes, limit {limit}");
    Case::bits(what, b, &[("rows", kNVTEByte, Some(output))], move |side| {
        let args = ZeroGapsArgs {
            output: side.at(output),
            starts: side.at::<i64>(starts).cast_const(),
            lengths: side.at::<i64>(lengths).cast_const(),
            experts,
            rows,
            width,
            limit,
        };
        entry(side, side.table.zero_gaps, args)
    })
}

pub fn permutations(rng: &mut Rng, _: usize) -> Case {
    let (tokens, topk) = (rng.within(1, 200), rng.within(1, 8));
    let cols = if rng.chance(50) { 8 * rng.within(1, 200) } else { rng.within(1, 900) };
    let dtype = rng.pick(&HIGH);
    let slots = tokens * topk;
    let rows = if rng.chance(50) { slots } else { rng.within(0, slots) };
    // The row of each slot, -1 for none.
    let mut places: Vec<i32> = (0..slots as i32).collect();
    for i in (1..slots).rev() {
        places.swap(i, rng.within(0, i));
    }
    let map = places.iter().map(|&place| if place < rows as i32 { place } else { -1 });
    let mut b = Buffers::default();
    let map = b.add(map.flat_map(i32::to_le_bytes).collect(), 0);
    let input = b.units(rng, dtype, tokens * cols, 2.0);
    let forward = b.units(rng, dtype, rows * cols, 2.0);
    let probs = b.units(rng, kNVTEFloat32, slots, 1.0);
    let [copied, weighted] = [0; 2].map(|_| b.output(rng, dtype, rows * cols));
    let prob_grads = b.output(rng, kNVTEFloat32, slots);
    let summed = b.output(rng, dtype, tokens * cols);
    let permute = move |side: &Side, backward: bool| {
        let args = PermuteArgs {
            input: side.at::<c_void>(input).cast_const(),
            output: side.at(if backward { weighted } else { copied }),
            map: side.at::<i32>(map).cast_const(),
            probs: if backward { side.at::<f32>(probs).cast_const() } else { null() },
            prob_grads: if backward { side.at(prob_grads) } else { null_mut() },
            forward: if backward { side.at::<c_void>(forward).cast_const() } else { null() },
            tokens,
            topk,
            cols,
            rows,
            dtype,
        };
        entry(side, side.table.permute, args)
    };
    let unpermute = move |side: &Side| {
        let args = UnpermuteArgs {
            input: side.at::<c_void>(forward).cast_const(),
            output: side.at(summed),
            map: side.at::<i32>(map).cast_const(),
            probs: side.at::<f32>(probs).cast_const(),
            tokens,
            topk,
            cols,
            rows,
            dtype,
        };
        entry(side, side.table.unpermute, args)
    };
    let what = format!("{tokens}x{cols}, {topk} each, {rows} rows, {dtype:?}");
    let outputs = [
        Output::bits("copied rows", dtype, copied),
        Output::within("weighted rows", dtype, weighted, 0.0),
        Output::within("prob_grad", kNVTEFloat32, prob_grads, 4e-6 * cols as f64),
        Output::within("sums", dtype, summed, 1e-5),
    ];
    Case::new(what, b, outputs, move |side| {
        let calls: [&dyn Fn() -> Outcome; 3] =
            [&|| permute(side, false), &|| permute(side, true), &|| unpermute(side)];
        in_turn(calls)
    })
}

pub fn paddings(rng: &mut Rng, _: usize) -> Case {
    let mut b = Buffers::default();
    let sizes: Vec<_> = (0..rng.pick(&[1, 2, 9, 70]))
        .map(|_| (rng.below(5000), if rng.chance(70) { rng.below(3000) } else { 0 }))
        .collect();
    let matrices: Vec<_> = sizes
        .iter()
        .map(|&(copied, zeroed)| {
            (b.input(rng, kNVTEByte, copied), b.output(rng, kNVTEByte, copied + zeroed))
        })
        .collect();
    let outputs: Vec<_> =
        matrices.iter().map(|&(_, output)| ("rows", kNVTEByte, Some(output))).collect();
    Case::bits(format!("{sizes:?}"), b, &outputs, move |side| {
        let tensors: Vec<_> = matrices
            .iter()
            .zip(&sizes)
            .map(|(&(input, output), &(copied, zeroed))| PaddedTensor {
                input: side.at::<c_void>(input).cast_const(),
                output: side.at(output),
                copied,
                zeroed,
            })
            .collect();
        let args = PaddingArgs { tensors: tensors.as_ptr(), num_tensors: tensors.len() };
        entry(side, side.table.padding, args)
    })
}

pub fn topk(rng: &mut Rng, _: usize) -> Case {
    let (rows, cols) = match rng.below(3) {
        0 => (rng.within(1, 3), rng.within(1, 100_000)),
        _ => (rng.within(1, 40), rng.within(1, 3000)),
    };
    let most = if rng.chance(20) { 2 * cols } else { cols };
    let k = rng.within(1, most);
    let dtype = rng.pick(&HIGH);
    let mut b = Buffers::default();
    // Keys are any bits, among them equal ones and NaN.
    let keys = b.input(rng, dtype, rows * cols);
    let lengths: Vec<u8> =
        (0..rows).flat_map(|_| (rng.within(0, cols) as i32).to_le_bytes()).collect();
    let lengths = rng.chance(50).then(|| b.add(lengths, 0));
    let best = b.output(rng, dtype, rows * k);
    let places = b.output(rng, kNVTEInt32, rows * k);
    let bytes = rows * (NVTEX_TOPK_ROW_BYTES + cols.div_ceil(NVTEX_TOPK_CHUNK).max(1) * 8);
    let workspace = b.add(vec![0xCD; bytes], 0);
    let outputs = [("keys", kNVTEByte, Some(best)), ("places", kNVTEByte, Some(places))];
    Case::bits(format!("{rows}x{cols}, {k}, {dtype:?}"), b, &outputs, move |side| {
        let args = TopkArgs {
            keys: side.at::<c_void>(keys).cast_const(),
            lengths: side.maybe::<i32>(lengths).cast_const(),
            top_keys: side.at(best),
            top_indices: side.at(places),
            workspace: side.at(workspace),
            rows,
            cols,
            k,
            dtype,
        };
        entry(side, side.table.topk, args)
    })
    .scratch(Some(workspace))
}
