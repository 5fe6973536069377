//! Mixtures of experts: the router of 65536 tokens and its gradients, the loss of the experts' balance,
//! and the ways of rows to their experts and back.

use super::*;

const CHOSEN: usize = 8;
/// `score_function`
const SIGMOID: i32 = 0;
const SOFTMAX: i32 = 1;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Map,
    Indices,
}

#[derive(Clone, Copy)]
struct Router {
    tokens: usize,
    experts: usize,
    dtype: DType,
    /// The sigmoid, with a bias. Else the softmax of the chosen.
    sigmoid: bool,
    /// Groups of experts, of which half may be chosen from.
    groups: usize,
    form: Form,
}

pub fn cases(kind: Kind) -> Vec<Case> {
    let tokens = if kind == Kind::Gpu { 65536 } else { 2048 };
    let router = |experts, dtype| Router {
        tokens,
        experts,
        dtype,
        sigmoid: true,
        groups: 0,
        form: Form::Map,
    };
    let wide = router(256, DType::F32);
    let mut cases = Vec::new();
    for router in [
        router(64, DType::F32),
        wide,
        router(256, DType::Bf16),
        Router { sigmoid: false, ..wide },
        Router { groups: 8, ..wide },
        Router { form: Form::Indices, ..wide },
        router(512, DType::F32),
    ] {
        cases.extend([router.case(false), router.case(true)]);
    }
    cases.extend([
        scores(tokens, 256, false),
        scores(tokens, 256, true),
        aux_loss(tokens, 256, false),
        aux_loss(tokens, 256, true),
        histogram(tokens, 128, 1000),
    ]);
    let (tokens, width) = if kind == Kind::Gpu { (16384, 4096) } else { (1024, 1024) };
    for way in [Way::Permute, Way::PermuteBackward, Way::Unpermute] {
        cases.push(permute(way, tokens, 64, width));
    }
    cases.extend([padding(false, 64, tokens / 8, width), padding(true, 64, tokens / 8, width)]);
    let rows = if kind == Kind::Gpu { (64, 65536) } else { (8, 65536) };
    cases.extend([topk(DType::Bf16, rows, 2048), topk(DType::F32, rows, 2048)]);
    cases
}

/// What a router's calls share.
struct Routing<'a> {
    api: &'a Api,
    stream: Handle,
    router: Router,
    logits: Tensor<'a>,
    bias: Tensor<'a>,
    probs: Tensor<'a>,
    routing: Tensor<'a>,
    intermediate: Tensor<'a>,
}

impl Router {
    fn name(&self, backward: bool) -> String {
        let Self { tokens, experts, dtype, sigmoid, groups, form } = *self;
        let pass = if backward { "backward" } else { "forward" };
        let score = if sigmoid { "sigmoid + bias" } else { "softmax" };
        let groups = if groups > 0 { format!(", {groups} groups") } else { String::new() };
        let form = if form == Form::Indices { ", indices" } else { "" };
        let dtype = dtype.name();
        format!("router {pass} {dtype} {tokens}x{experts}, top {CHOSEN}, {score}{groups}{form}")
    }

    /// The backward pass needs only the chosen elements of two inputs.
    fn work(&self, backward: bool) -> Work {
        let Self { tokens, experts, dtype, form, .. } = *self;
        let map = if form == Form::Map { experts } else { 4 * CHOSEN };
        let row = dtype.size() * experts;
        let (moved, input) = match backward {
            false => (2 * row + 4 * experts + map, row),
            true => (row + map + (4 + dtype.size()) * CHOSEN, map + (4 + dtype.size()) * CHOSEN),
        };
        Work::Bytes { moved: (tokens * moved) as f64, input: (tokens * input) as f64 }
    }

    fn case(self, backward: bool) -> Case {
        Case::new(self.name(backward), self.work(backward), move |b| {
            let routing = Routing::new(self, b, !backward)?;
            if !backward {
                return Ok(Box::new(move || routing.forward()));
            }
            routing.forward();
            let shape = [self.tokens, self.experts];
            let grad = b.tensor(&b.random(self.dtype, &shape)?);
            let dx = b.tensor(&b.output("grad_logits", self.dtype, &shape, Rule::Close)?);
            Ok(Box::new(move || routing.backward(&grad, &dx)))
        })
    }
}

impl<'a> Routing<'a> {
    /// `compared`: the outputs are. The choice is only where it goes by the logits themselves: of
    /// scores that are rounded, libraries take different ones if two are nearly equal.
    fn new(router: Router, b: &Build<'a>, compared: bool) -> Result<Self> {
        let Router { tokens, experts, dtype, sigmoid, form, .. } = router;
        let shape = [tokens, experts];
        let output = |name, dtype, shape: &[usize], rule, compared| match compared {
            true => b.output(name, dtype, shape, rule),
            false => b.alloc(dtype, shape),
        };
        let (chosen, width) = match form {
            Form::Map => (DType::Byte, experts),
            Form::Indices => (DType::I32, CHOSEN),
        };
        let routing =
            output("choice", chosen, &[tokens, width], Rule::Equal, compared && !sigmoid)?;
        let middle = output("intermediate", DType::F32, &shape, Rule::Close, compared && sigmoid)?;
        Ok(Self {
            api: b.api,
            stream: b.stream(),
            router,
            logits: b.tensor(&b.random(dtype, &shape)?),
            bias: match sigmoid {
                true => b.tensor(&b.random(DType::F32, &[experts])?),
                false => Tensor::new(b.api),
            },
            probs: b.tensor(&output("probs", dtype, &shape, Rule::Close, compared)?),
            routing: b.tensor(&routing),
            intermediate: b.tensor(&middle),
        })
    }

    fn forward(&self) {
        let Router { tokens, experts, groups, form, .. } = self.router;
        let (groups, of_groups) =
            if groups > 0 { (groups as i32, groups as i32 / 2) } else { (-1, -1) };
        let call = match form {
            Form::Map => Api::nvte_fused_topk_with_score_function_forward,
            Form::Indices => Api::nvte_fused_topk_with_score_function_forward_with_indices,
        };
        call(
            self.api,
            self.logits.h(),
            tokens as i32,
            experts as i32,
            CHOSEN as i32,
            0,
            groups,
            of_groups,
            1.0,
            self.score(),
            self.bias.h(),
            self.probs.h(),
            self.routing.h(),
            self.intermediate.h(),
            self.stream,
        );
    }

    fn backward(&self, grad: &Tensor, dx: &Tensor) {
        let Router { tokens, experts, form, .. } = self.router;
        let call = match form {
            Form::Map => Api::nvte_fused_topk_with_score_function_backward,
            Form::Indices => Api::nvte_fused_topk_with_score_function_backward_with_indices,
        };
        call(
            self.api,
            self.routing.h(),
            self.intermediate.h(),
            grad.h(),
            tokens as i32,
            experts as i32,
            CHOSEN as i32,
            0,
            1.0,
            self.score(),
            dx.h(),
            self.stream,
        );
    }

    fn score(&self) -> i32 {
        if self.router.sigmoid { SIGMOID } else { SOFTMAX }
    }
}

/// Scores of all experts.
fn scores(tokens: usize, experts: usize, backward: bool) -> Case {
    let pass = if backward { "backward" } else { "forward" };
    let name = format!("router scores {pass} f32 {tokens}x{experts}, top {CHOSEN}, softmax");
    let moved = if backward { (12, 8) } else { (13, 4) };
    Case::new(name, bytes(tokens, experts, moved.0, moved.1), move |b| {
        let (api, stream) = (b.api, b.stream());
        let shape = [tokens, experts];
        let sizes = [tokens, experts, CHOSEN].map(|size| size as i32);
        let x = b.tensor(&b.random(DType::F32, &shape)?);
        if backward {
            // Any numbers will do for probabilities.
            let y = b.tensor(&b.random(DType::F32, &shape)?);
            let dx = b.tensor(&b.output("grad_logits", DType::F32, &shape, Rule::Close)?);
            return Ok(Box::new(move || {
                let [t, e, k] = sizes;
                api.nvte_fused_score_for_moe_aux_loss_backward(
                    y.h(),
                    x.h(),
                    t,
                    e,
                    k,
                    SOFTMAX,
                    dx.h(),
                    stream,
                );
            }));
        }
        let output = |name| b.output(name, DType::F32, &shape, Rule::Close).map(|m| b.tensor(&m));
        let (scores, middle) = (output("scores")?, output("intermediate")?);
        let map = b.tensor(&b.alloc(DType::Byte, &shape)?);
        Ok(Box::new(move || {
            let [t, e, k] = sizes;
            api.nvte_fused_score_for_moe_aux_loss_forward(
                x.h(),
                t,
                e,
                k,
                SOFTMAX,
                scores.h(),
                map.h(),
                middle.h(),
                stream,
            );
        }))
    })
}

fn aux_loss(tokens: usize, experts: usize, backward: bool) -> Case {
    let pass = if backward { "backward" } else { "forward" };
    let name = format!("aux loss {pass} f32 {tokens}x{experts}");
    Case::new(name, bytes(tokens, experts, 4, if backward { 0 } else { 4 }), move |b| {
        let (api, stream) = (b.api, b.stream());
        let [t, e, k] = [tokens, experts, CHOSEN].map(|size| size as i32);
        let counts: Vec<f32> = (0..experts).map(|i| (i * 7 % 2048) as f32).collect();
        let counts = b.tensor(&b.floats(&counts)?);
        if backward {
            let constants = b.tensor(&b.floats(&[0.5, 1.0])?);
            let grad = b.tensor(&b.floats(&[1.5])?);
            let shape = [tokens, experts];
            let output = b.tensor(&b.output("grad_probs", DType::F32, &shape, Rule::Close)?);
            return Ok(Box::new(move || {
                let (c, g) = (constants.h(), grad.h());
                api.nvte_fused_moe_aux_loss_backward(c, counts.h(), t, e, g, output.h(), stream);
            }));
        }
        let probs = b.tensor(&b.random(DType::F32, &[tokens, experts])?);
        let loss = b.tensor(&b.output("loss", DType::F32, &[1], Rule::Close)?);
        // Libraries keep different numbers there.
        let constants = b.tensor(&b.alloc(DType::F32, &[2])?);
        Ok(Box::new(move || {
            api.nvte_fused_moe_aux_loss_forward(
                probs.h(),
                counts.h(),
                t,
                e,
                t,
                e,
                k,
                0.01,
                loss.h(),
                constants.h(),
                stream,
            );
        }))
    })
}

/// The histogram of quantile balancing, which grows with each call.
fn histogram(tokens: usize, experts: usize, bins: usize) -> Case {
    let name = format!("router histogram f32 {tokens}x{experts}, {bins} bins");
    Case::new(name, bytes(tokens, experts, 4, 4), move |b| {
        let (api, stream) = (b.api, b.stream());
        let scores = b.tensor(&b.random(DType::F32, &[tokens, experts])?);
        let cutoff = b.tensor(&b.random(DType::F32, &[tokens])?);
        let bounds = b.tensor(&b.floats(&[-2.0, 2.0])?);
        let counts = b.tensor(&b.alloc(DType::I32, &[experts, bins])?);
        Ok(Box::new(move || {
            let (s, c, l, h) = (scores.h(), cutoff.h(), bounds.h(), counts.h());
            api.nvte_qb_histogram_accumulate_unchecked(s, c, l, h, stream);
        }))
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Permute,
    PermuteBackward,
    Unpermute,
}

/// Permutes bf16 rows, two for each token, with probabilities where there are any.
fn permute(way: Way, tokens: usize, experts: usize, width: usize) -> Case {
    const COPIES: usize = 2;
    let (name, moved, input) = match way {
        Way::Permute => ("permute", 2 * (1 + COPIES), 2),
        // The gradients of a token, the rows of the forward, and the gradients of those.
        Way::PermuteBackward => ("permute backward", 2 * (1 + 2 * COPIES), 2 * (1 + COPIES)),
        Way::Unpermute => ("unpermute", 2 * (1 + COPIES), 2 * COPIES),
    };
    let name = format!("{name} bf16 {tokens}x{width}, {COPIES} of {experts} experts");
    Case::new(name, bytes(tokens, width, moved, input), move |b| {
        let (api, stream) = (b.api, b.stream());
        // The slots of the experts one after the other, and where each slot went.
        let mut slots: Vec<usize> = (0..tokens * COPIES).collect();
        slots.sort_by_key(|&slot| mix(slot as u64) % experts as u64);
        let mut map = vec![0; slots.len()];
        for (place, slot) in slots.iter().enumerate() {
            map[slot % COPIES * tokens + slot / COPIES] = place;
        }
        let numbers = |values: &[usize]| {
            let memory = b.alloc(DType::I32, &[values.len()])?;
            let bytes: Vec<u8> = values.iter().flat_map(|&v| (v as i32).to_le_bytes()).collect();
            b.machine.upload(memory.ptr, &bytes)?;
            anyhow::Ok(b.tensor(&memory))
        };
        let (slots, map) = (numbers(&slots)?, numbers(&map)?);
        let rows = |rows: usize| b.random(DType::Bf16, &[rows, width]).map(|m| b.tensor(&m));
        let result = |rows: usize| {
            let memory = b.output("rows", DType::Bf16, &[rows, width], Rule::Close)?;
            anyhow::Ok(b.tensor(&memory))
        };
        let probs = || b.random(DType::F32, &[tokens, COPIES]).map(|m| b.tensor(&m));
        let none = Tensor::new(api);
        let [t, k, w, all] = [tokens, COPIES, width, tokens * COPIES].map(|size| size as i32);
        match way {
            Way::Permute => {
                let (x, y) = (rows(tokens)?, result(tokens * COPIES)?);
                Ok(Box::new(move || {
                    let (slots, map, none) = (slots.h(), map.h(), none.h());
                    api.nvte_permute(
                        x.h(),
                        y.h(),
                        slots,
                        map,
                        none,
                        none,
                        none,
                        t,
                        k,
                        w,
                        all,
                        stream,
                    );
                }))
            }
            Way::PermuteBackward => {
                let (x, y) = (rows(tokens)?, result(tokens * COPIES)?);
                let (forward, probs) = (rows(tokens * COPIES)?, probs()?);
                let grad =
                    b.tensor(&b.output("prob_grad", DType::F32, &[tokens, COPIES], Rule::Close)?);
                Ok(Box::new(move || {
                    let (slots, map, probs) = (slots.h(), map.h(), probs.h());
                    let (grad, forward) = (grad.h(), forward.h());
                    api.nvte_permute(
                        x.h(),
                        y.h(),
                        slots,
                        map,
                        probs,
                        grad,
                        forward,
                        t,
                        k,
                        w,
                        all,
                        stream,
                    );
                }))
            }
            Way::Unpermute => {
                let (x, y, probs) = (rows(tokens * COPIES)?, result(tokens)?, probs()?);
                Ok(Box::new(move || {
                    api.nvte_unpermute(x.h(), y.h(), map.h(), probs.h(), t, k, w, stream);
                }))
            }
        }
    })
}

/// Each matrix has one row less than the padded one.
fn padding(back: bool, matrices: usize, rows: usize, width: usize) -> Case {
    let name = if back { "unpadding" } else { "padding" };
    let name = format!("{name} bf16 {matrices} matrices of {rows}x{width}");
    Case::new(name, bytes(matrices * rows, width, 4, 2), move |b| {
        let (api, stream) = (b.api, b.stream());
        let short = rows - 1;
        let [from, to] = if back { [rows, short] } else { [short, rows] };
        let mut lists: [Vec<Tensor>; 2] = Default::default();
        for _ in 0..matrices {
            lists[0].push(b.tensor(&b.random(DType::Bf16, &[from, width])?));
            let output = b.output("rows", DType::Bf16, &[to, width], Rule::Equal)?;
            lists[1].push(b.tensor(&output));
        }
        let handles = lists.each_ref().map(|list| list.iter().map(Tensor::h).collect::<Vec<_>>());
        let counts = vec![to as i32; matrices];
        let call = if back { Api::nvte_multi_unpadding } else { Api::nvte_multi_padding };
        Ok(Box::new(move || {
            let _ = &lists;
            let [inputs, outputs] = handles.each_ref().map(|list| list.as_ptr());
            call(api, matrices, inputs, outputs, counts.as_ptr(), stream);
        }))
    })
}

fn topk(dtype: DType, (rows, cols): (usize, usize), chosen: usize) -> Case {
    let (word, size) = if dtype == DType::F32 { ("f32", 4) } else { ("bf16", 2) };
    let name = format!("topk {word} {rows}x{cols}, {chosen}");
    Case::new(name, bytes(rows, cols, size, size), move |b| {
        let (api, stream) = (b.api, b.stream());
        let keys = b.tensor(&b.random(dtype, &[rows, cols])?);
        let lengths = vec![cols as i32; rows];
        let memory = b.alloc(DType::I32, &[rows])?;
        let bytes: Vec<u8> = lengths.iter().flat_map(|v| v.to_le_bytes()).collect();
        b.machine.upload(memory.ptr, &bytes)?;
        let lengths = b.tensor(&memory);
        // Libraries differ in which of equal keys they take, and in what order.
        let best = b.tensor(&b.alloc(dtype, &[rows, chosen])?);
        let places = b.tensor(&b.alloc(DType::I32, &[rows, chosen])?);
        let [r, c, k] = [rows, cols, chosen].map(|size| size as i32);
        let call = move |workspace| {
            let (keys, lengths) = (keys.h(), lengths.h());
            api.nvte_topk(stream, keys, lengths, best.h(), places.h(), workspace, r, c, k);
        };
        let workspace = with_workspace(b, &call)?;
        Ok(Box::new(move || call(workspace.h())))
    })
}
