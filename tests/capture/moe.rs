//! Router, permutation, padding and choice of the greatest in the chain of captured operators.

use super::*;

const TOKENS: usize = 300;
const EXPERTS: usize = 64;
const TOPK: usize = 4;
const COLS: usize = 72;

pub fn steps(c: &mut Chain) {
    let (middle, map) = router(c);
    balance(c, middle);
    let numel = TOKENS * EXPERTS;
    let [grad, output] = gradients(c);
    c.step("router backward", move |side| {
        let args = RouterBackwardArgs {
            routing: routing(side, map),
            intermediate: side.at::<f32>(middle).cast_const(),
            grad: side.at::<c_void>(grad).cast_const(),
            grad_logits: side.at(output),
            tokens: TOKENS,
            experts: EXPERTS,
            topk: TOPK,
            scaling_factor: 1.5,
            score: RouterScore::NVTEX_ROUTER_SIGMOID,
            pre_softmax: false,
            all: false,
            dtype: kNVTEBFloat16,
        };
        entry(side, side.table.router_backward, args)
    });
    rows(c);
    topk(c, numel);
}

fn routing(side: &Side, map: Id) -> Routing {
    Routing { bytes: side.at(map), bits: null_mut(), indices: null_mut(), index_dtype: kNVTEInt32 }
}

fn gradients(c: &mut Chain) -> [Id; 2] {
    let grad = c.input(kNVTEBFloat16, TOKENS * EXPERTS);
    [grad, c.output("grad_logits", kNVTEBFloat16, TOKENS * EXPERTS, Within(1e-2))]
}

/// The intermediate output and the map.
fn router(c: &mut Chain) -> (Id, Id) {
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
            bias_dtype: kNVTEFloat32,
        };
        entry(side, side.table.router_forward, args)
    });
    (middle, map)
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

/// Sort, map, permutation and back, padding.
fn rows(c: &mut Chain) {
    const SLOTS: usize = TOKENS * TOPK;
    let dtype = kNVTEBFloat16;
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
        };
        entry(side, side.table.sort_pairs, args)
    });
    let map = c.output("row map", kNVTEInt32, SLOTS, Bits);
    c.step("row map", move |side| {
        let sorted = side.at::<i32>(sorted).cast_const();
        let args = RowMapArgs { sorted, map: side.at(map), tokens: TOKENS, topk: TOPK, rows: 1000 };
        entry(side, side.table.row_map, args)
    });
    let (input, probs) = (c.input(dtype, TOKENS * COLS), c.input(kNVTEFloat32, SLOTS));
    let forward = c.input(dtype, 1000 * COLS);
    let output = c.output("rows", dtype, 1000 * COLS, Bits);
    let prob_grads = c.output("prob_grads", kNVTEFloat32, SLOTS, Within(1e-3));
    c.step("permutation", move |side| {
        let args = PermuteArgs {
            input: side.at::<c_void>(input).cast_const(),
            output: side.at(output),
            map: side.at::<i32>(map).cast_const(),
            probs: side.at::<f32>(probs).cast_const(),
            prob_grads: side.at(prob_grads),
            forward: side.at::<c_void>(forward).cast_const(),
            tokens: TOKENS,
            topk: TOPK,
            cols: COLS,
            rows: 1000,
            dtype,
        };
        entry(side, side.table.permute, args)
    });
    let sums = c.output("sums", dtype, TOKENS * COLS, Within(1e-2));
    c.step("sums of rows", move |side| {
        let args = UnpermuteArgs {
            input: side.at::<c_void>(output).cast_const(),
            output: side.at(sums),
            map: side.at::<i32>(map).cast_const(),
            probs: side.at::<f32>(probs).cast_const(),
            tokens: TOKENS,
            topk: TOPK,
            cols: COLS,
            rows: 1000,
            dtype,
        };
        entry(side, side.table.unpermute, args)
    });
    let (copied, zeroed) = (TOKENS * COLS * 2 - 6, 5002);
    let padded = c.output("padded", kNVTEByte, copied + zeroed, Bits);
    c.step("padding", move |side| {
        let input = side.at::<c_void>(input).cast_const();
        let tensor = PaddedTensor { input, output: side.at(padded), copied, zeroed };
        let args = PaddingArgs { tensors: &tensor, num_tensors: 1 };
        entry(side, side.table.padding, args)
    });
}

fn topk(c: &mut Chain, cols: usize) {
    let (rows, k) = (2, 100);
    let keys = c.input(kNVTEFloat32, rows * cols);
    let workspace = c.output("workspace of the greatest", kNVTEByte, WORKSPACE, Scratch);
    let top_keys = c.output("greatest", kNVTEFloat32, rows * k, Bits);
    let top_indices = c.output("their indices", kNVTEInt32, rows * k, Bits);
    c.step("greatest", move |side| {
        let args = TopkArgs {
            keys: side.at::<c_void>(keys).cast_const(),
            lengths: null(),
            top_keys: side.at(top_keys),
            top_indices: side.at(top_indices),
            workspace: side.at(workspace),
            rows,
            cols,
            k,
            dtype: kNVTEFloat32,
        };
        entry(side, side.table.topk, args)
    });
}
