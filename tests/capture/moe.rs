//! Router, loss of balance and sort of tokens in the chain of captured operators.

use super::*;

const TOKENS: usize = 300;
const EXPERTS: usize = 64;
const TOPK: usize = 4;

pub fn steps(c: &mut Chain) {
    let middle = router(c);
    balance(c, middle);
    sort(c);
}

fn routing(side: &Side, map: Id) -> Routing {
    Routing { bytes: side.at(map), bits: null_mut(), indices: null_mut(), index_dtype: kNVTEInt32 }
}

/// Scores with a bias, and the cutoff that a histogram needs; returns the intermediate output.
fn router(c: &mut Chain) -> Id {
    let numel = TOKENS * EXPERTS;
    let (logits, bias) = (c.input(kNVTEFloat32, numel), c.input(kNVTEFloat32, EXPERTS));
    let probs = c.output("probs", kNVTEFloat32, numel, Within(1e-5));
    let map = c.output("map", kNVTEByte, numel, Bits);
    let middle = c.output("intermediate", kNVTEFloat32, numel, Within(1e-5));
    let cutoff = c.output("cutoff", kNVTEFloat32, TOKENS, Within(1e-5));
    c.step("router", move |side| {
        let args = RouterForwardArgs {
            logits: side.at::<c_void>(logits).cast_const(),
            expert_bias: side.at::<c_void>(bias).cast_const(),
            probs: side.at(probs),
            routing: routing(side, map),
            intermediate: side.at(middle),
            cutoff: side.at(cutoff),
            tokens: TOKENS,
            experts: EXPERTS,
            topk: TOPK,
            groups: 0,
            group_topk: 0,
            scaling_factor: 1.5,
            score: RouterScore::NVTEX_ROUTER_SIGMOID,
            pre_softmax: false,
            all: false,
            dtype: kNVTEFloat32,
            probs_dtype: kNVTEFloat32,
            bias_dtype: kNVTEFloat32,
        };
        entry(side, side.table.router_forward, args)
    });
    middle
}

/// Histogram and loss.
fn balance(c: &mut Chain, scores: Id) {
    const BINS: usize = 20;
    let (cutoff, counts) = (c.input(kNVTEFloat32, TOKENS), c.input(kNVTEFloat32, EXPERTS));
    let bounds: Vec<u8> = [-9f32, 9.0].into_iter().flat_map(f32::to_le_bytes).collect();
    let bounds = c.buffers.add(bounds, 0);
    // Scores of the two sides may fall on either side of a bound.
    let histogram = c.output("histogram", kNVTEInt32, EXPERTS * BINS, Scratch);
    c.step("router histogram", move |side| {
        let args = RouterHistogramArgs {
            scores: side.at::<f32>(scores).cast_const(),
            cutoff: side.at::<f32>(cutoff).cast_const(),
            bin_bounds: side.at::<f32>(bounds).cast_const(),
            histogram: side.at(histogram),
            tokens: TOKENS,
            experts: EXPERTS,
            bins: BINS,
        };
        entry(side, side.table.router_histogram, args)
    });
    let loss = c.output("loss", kNVTEFloat32, 1, Within(1e-3));
    let constants = c.output("constants", kNVTEFloat32, 2, Within(1e-3));
    c.step("loss of balance", move |side| {
        let args = AuxLossArgs {
            probs: side.at::<c_void>(scores).cast_const(),
            counts: side.at::<c_void>(counts).cast_const(),
            device_total: null(),
            total_tokens: 20.0,
            experts: EXPERTS as f32,
            topk: TOPK as f32,
            coeff: 0.5,
            rows: TOKENS,
            cols: EXPERTS,
            loss: side.at(loss),
            constants: side.at(constants),
            dtype: kNVTEFloat32,
            counts_dtype: kNVTEFloat32,
        };
        entry(side, side.table.aux_loss, args)
    });
    let grad = c.output("grad_probs", kNVTEFloat32, TOKENS * EXPERTS, Within(1e-3));
    c.step("its backward", move |side| {
        let args = AuxLossBackwardArgs {
            constants: side.at::<f32>(constants).cast_const(),
            counts: side.at::<c_void>(counts).cast_const(),
            grad_loss: side.at::<c_void>(loss).cast_const(),
            grad_probs: side.at(grad),
            rows: TOKENS,
            cols: EXPERTS,
            dtype: kNVTEFloat32,
            counts_dtype: kNVTEFloat32,
        };
        entry(side, side.table.aux_loss_backward, args)
    });
}

/// The slots by their experts, and the rows that they get.
fn sort(c: &mut Chain) {
    const SLOTS: usize = TOKENS * TOPK;
    let keys: Vec<u8> = (0..SLOTS).flat_map(|_| (c.rng.bytes(1)[0] as u32).to_le_bytes()).collect();
    let places: Vec<u8> = (0..SLOTS as i32).flat_map(i32::to_le_bytes).collect();
    let (keys, places) = (c.buffers.add(keys, 0), c.buffers.add(places, 0));
    let workspace = c.output("workspace of the sort", kNVTEByte, WORKSPACE, Scratch);
    let sorted_keys = c.output("sorted keys", kNVTEInt32, SLOTS, Bits);
    let sorted = c.output("sorted places", kNVTEInt32, SLOTS, Bits);
    c.step("sort of pairs", move |side| {
        let mut bytes = 0;
        let args = SortPairsArgs {
            workspace: side.at(workspace),
            workspace_bytes: &mut bytes,
            keys: side.at::<u32>(keys).cast_const(),
            sorted_keys: side.at(sorted_keys),
            values: side.at::<i32>(places).cast_const(),
            sorted_values: side.at(sorted),
            pairs: SLOTS,
            key_bits: 8,
        };
        entry(side, side.table.sort_pairs, args)
    });
    let map = c.output("row map", kNVTEInt32, SLOTS, Bits);
    c.step("row map", move |side| {
        let sorted = side.at::<i32>(sorted).cast_const();
        let args = RowMapArgs { sorted, map: side.at(map), tokens: TOKENS, topk: TOPK, rows: 1000 };
        entry(side, side.table.row_map, args)
    });
}
