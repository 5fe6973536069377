//! `cargo xtask bench layer`: forward and backward pass of a Transformer layer under each recipe,
//! called by the host step by step and as a replayed CUDA graph, with the memory that it takes.

use super::REST;
use super::abi::{Api, Basic, DType, Handle, Param, Tensor};
use super::check::{download, relative_error};
use super::front_end::Times;
use super::machine::{Buffer, Call, Kind, Machine, Pool};
use super::module::*;
use super::report::{self, Limits};
use anyhow::{Result, anyhow, ensure};
use std::cell::Cell;
use std::ffi::c_int;
use std::time::Instant;

/// Rounds, each of about this many seconds and at least this many steps.
const ROUNDS: usize = 5;
const ROUND_SECONDS: f64 = 0.1;
const ROUND_STEPS: usize = 5;
/// Steps before the clock runs: scales of delayed scaling settle; and seconds, of a GPU, whose clock
/// falls when it has taken much power for a while.
const WARM_UP: usize = 4;
const WARM_UP_SECONDS: f64 = 0.3;
/// How far results of FP8 may be from those in high precision, relative to their norm: of random
/// numbers, which have no structure that a product could keep.
const CLOSE: f64 = 0.25;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Recipe {
    None,
    Delayed,
    Current,
    Block,
    Mxfp8,
}

impl Recipe {
    /// Creates the recipe, or null without FP8.
    fn create(self, modules: &Modules) -> Result<Handle> {
        match self {
            Self::None => Ok(Handle::NULL),
            _ => modules.recipe(self as c_int - 1),
        }
    }

    fn name(self) -> &'static str {
        ["no FP8", "delayed", "current", "block", "MXFP8"][self as usize]
    }

    /// Tensor cores multiply it as FP8; MXFP8 they do not on Hopper.
    fn is_fp8_product(self) -> bool {
        !matches!(self, Self::None | Self::Mxfp8)
    }
}

const ALL: [Recipe; 5] =
    [Recipe::None, Recipe::Delayed, Recipe::Current, Recipe::Block, Recipe::Mxfp8];

/// A layer and its input.
#[derive(Clone, Copy, PartialEq)]
struct Model {
    name: &'static str,
    dtype: DType,
    hidden: usize,
    ffn: usize,
    heads: usize,
    groups: usize,
    seq: usize,
    batch: usize,
    /// As in Llama: RMSNorm, SwiGLU, rotary embeddings, no biases.
    llama: bool,
    dropout: f32,
}

impl Model {
    fn tokens(&self) -> usize {
        self.seq * self.batch
    }

    fn weights(&self) -> usize {
        let kv = self.hidden / self.heads * self.groups;
        let matrices = if self.llama { 3 } else { 2 };
        self.hidden * (2 * self.hidden + 2 * kv + matrices * self.ffn)
    }

    /// Operations of the products with weights, and of a causal attention.
    fn flops(&self) -> [f64; 2] {
        let products = 6.0 * self.tokens() as f64 * self.weights() as f64;
        let scores = self.batch as f64 * (self.seq * self.seq) as f64 / 2.0;
        [products, scores * self.hidden as f64 * 14.0]
    }

    fn title(&self) -> String {
        let dropout = if self.dropout > 0.0 { ", dropout" } else { "" };
        format!("{}{dropout}, {}", self.name, self.dtype.name())
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Weights {
    /// Weights are cast in each step.
    Cast,
    /// Weights were cast by an earlier microbatch.
    Kept,
    /// Weights exist in FP8 alone.
    Fp8,
}

/// One line of the table.
struct Case {
    model: Model,
    recipe: Recipe,
    weights: Weights,
}

impl Case {
    fn name(&self) -> String {
        let weights = match self.weights {
            Weights::Cast => "",
            Weights::Kept => ", cast weights kept",
            Weights::Fp8 => ", FP8 weights",
        };
        format!("{}, {}{weights}", self.model.title(), self.recipe.name())
    }

    /// Whether one layer serves both cases.
    fn shares_layer(&self, other: &Self) -> bool {
        let own = |case: &Self| (case.weights == Weights::Fp8).then_some(case.recipe);
        self.model == other.model && own(self) == own(other)
    }

    /// The least time: products at the limit of the matrix units, or a pass over weights and their
    /// gradients at that of the memory.
    fn floor(&self, limits: &Limits) -> Option<f64> {
        let matrix = limits.matrix?;
        let [products, attention] = self.model.flops();
        let rate = if self.recipe.is_fp8_product() { matrix.fp8 } else { matrix.bf16 };
        let arithmetic = products / rate + attention / matrix.bf16;
        // Reads of both passes and the gradient; FP8 reads the original, writes and reads two casts;
        // later microbatches add to the gradient.
        let bytes_per_weight = match (self.recipe, self.weights) {
            (Recipe::None, _) | (_, Weights::Kept) => 6.0,
            (_, Weights::Cast) => 8.0,
            (_, Weights::Fp8) => 4.0,
        };
        let bytes = self.model.weights() as f64 * bytes_per_weight;
        Some(arithmetic.max(bytes / limits.stream.0))
    }
}

const PEER: &str = "`transformer_engine.pytorch.TransformerLayer` on the same GPU in the same run, after rests as \
                    `step`, with fused attention as its debug output says";

fn cases(kind: Kind) -> Vec<Case> {
    let gpt = Model {
        name: "GPT layer 4096",
        dtype: DType::Bf16,
        hidden: 4096,
        ffn: 16384,
        heads: 32,
        groups: 32,
        seq: 2048,
        batch: 4,
        llama: false,
        dropout: 0.0,
    };
    let llama = Model {
        name: "Llama-3-8B layer",
        ffn: 14336,
        groups: 8,
        seq: 4096,
        batch: 2,
        llama: true,
        ..gpt
    };
    let short = Model { name: "GPT layer 4096, 16 tokens", seq: 16, batch: 1, ..gpt };
    let mut cases = Vec::new();
    let mut add = |model: Model, recipes: &[Recipe]| {
        let case = |&recipe| Case { model, recipe, weights: Weights::Cast };
        cases.extend(recipes.iter().map(case));
    };
    if kind == Kind::Cpu {
        let small = |model| Model { hidden: 256, ffn: 1024, heads: 4, groups: 4, ..model };
        let gpt = Model { name: "GPT layer 256", seq: 128, batch: 2, ..small(gpt) };
        let llama =
            Model { name: "Llama layer 256", seq: 128, batch: 2, groups: 2, ..small(llama) };
        add(Model { dtype: DType::F32, ..gpt }, &ALL);
        add(gpt, &ALL);
        add(llama, &ALL);
        return cases;
    }
    let half = Model { dtype: DType::F16, ..gpt };
    let dropout = |model| Model { dropout: 0.1, ..model };
    add(gpt, &ALL);
    add(dropout(gpt), &ALL[..4]);
    add(half, &ALL[..2]);
    add(dropout(half), &ALL[..2]);
    add(llama, &ALL);
    add(short, &ALL[..4]);
    for (model, weights) in [(short, Weights::Kept), (short, Weights::Fp8), (gpt, Weights::Fp8)] {
        let case = |&recipe| Case { model, recipe, weights };
        cases.extend(ALL[1..4].iter().map(case));
    }
    cases
}

/// A layer with what its steps read and write.
struct Session<'a> {
    modules: &'a Modules<'a>,
    machine: &'a dyn Machine,
    context: Handle,
    layer: Handle,
    step: Step,
    /// Input, output, gradient of the output, gradient of the input.
    tensors: [Tensor<'a>; 4],
    /// The memory of the output and of the input's gradient.
    results: [Basic; 2],
    _others: Vec<Tensor<'a>>,
    _buffers: Vec<Buffer>,
}

impl<'a> Session<'a> {
    fn new(
        modules: &'a Modules<'a>,
        machine: &'a dyn Machine,
        pool: &Pool,
        heap: &Heap,
        case: &Case,
    ) -> Result<Self> {
        let (api, model) = (modules.api, case.model);
        let stream = machine.stream();
        let mut buffers = Vec::new();
        let mut alloc = |dtype: DType, shape: &[usize]| -> Result<Basic> {
            let bytes = shape.iter().product::<usize>() * dtype.size();
            let buffer = machine.alloc(bytes)?;
            let basic = Basic::new(buffer.ptr, dtype, shape);
            machine.fill(buffer.ptr, 0xFF, bytes)?;
            buffers.push(buffer);
            Ok(basic)
        };
        let tensor = |basic: &Basic| Tensor::new(api).set(Param::Rowwise, basic);

        let context = modules.context(heap)?;
        let mut config = modules.layer_config()?;
        let [norm, activation] = if model.llama { RMSNORM_SWIGLU } else { LAYERNORM_GELU };
        config.attention.num_attention_heads = model.heads;
        config.attention.num_gqa_groups = model.groups;
        config.attention.attention_dropout = model.dropout;
        config.attention.dtype = model.dtype;
        config.mlp.norm.kind = norm;
        config.mlp.hidden_size = model.hidden;
        config.mlp.ffn_hidden_size = model.ffn;
        config.mlp.activation = activation;
        config.mlp.bias = !model.llama;
        config.mlp.dtype = model.dtype;
        config.hidden_dropout = model.dropout;
        let recipe = case.recipe.create(modules)?;
        let flags = if case.weights == Weights::Fp8 { QUANTIZED_WEIGHTS } else { 0 };
        modules.nvtex_context_begin(context, recipe, flags, std::ptr::null_mut());
        let layer = modules.nvtex_transformer_layer_create(context, &config, stream);
        modules.nvtex_context_end(context);
        modules.nvtex_recipe_destroy(recipe);
        api.take_error()?;

        let mut others = Vec::new();
        for (i, parameter) in modules.parameters(layer)?.iter().enumerate() {
            let flat = alloc(DType::Byte, &[parameter.bytes()])?;
            others.push(tensor(&parameter.gradient(flat.ptr)));
            modules.nvtex_module_set_gradient(layer, i, others[i].h(), false);
        }
        let mut step = modules.step()?;
        if model.llama {
            let angles = alloc(DType::F32, &[model.seq, 1, 1, model.hidden / model.heads])?;
            others.push(tensor(&angles));
            step.rotary_frequencies = others[others.len() - 1].h();
            modules.nvtex_rotary_frequencies(step.rotary_frequencies, std::ptr::null(), stream);
        }
        if model.dropout > 0.0 {
            let state = alloc(DType::I64, &[2])?;
            machine.upload(state.ptr, &[0; 16])?;
            others.push(tensor(&state));
            step.rng_state = others[others.len() - 1].h();
        }
        let shape = [model.seq, model.batch, model.hidden];
        let [x, y, dy, dx] = [0; 4].map(|_| alloc(model.dtype, &shape));
        let (x, y, dy, dx) = (x?, y?, dy?, dx?);
        for (seed, input) in [(1, &x), (2, &dy)] {
            let values = alloc(DType::F32, &shape)?;
            pool.fill(machine, &values, seed)?;
            // A quantization without scales is a cast.
            let (values, input) = (tensor(&values), tensor(input));
            api.nvte_quantize_v2(values.h(), input.h(), Handle::NULL, stream);
        }
        api.take_error()?;
        machine.synchronize()?;
        let tensors = [&x, &y, &dy, &dx].map(tensor);
        let results = [y, dx];
        let (_others, _buffers) = (others, buffers);
        Ok(Self { modules, machine, context, layer, step, tensors, results, _others, _buffers })
    }

    /// Forward and backward pass, and the updates of delayed scaling.
    fn run(&self, recipe: Handle, microbatch: Microbatch) -> Tape<'_> {
        let (m, stream) = (self.modules, self.machine.stream());
        let [x, y, dy, dx] = &self.tensors;
        let flags = if recipe == Handle::NULL { 0 } else { ENABLED };
        let step = self.step.of(microbatch);
        let mut tape = Handle::NULL;
        m.nvtex_context_begin(self.context, recipe, flags, std::ptr::null_mut());
        m.nvtex_module_forward(self.layer, &x.h(), 1, &y.h(), 1, &step, &mut tape, stream);
        m.nvtex_context_end(self.context);
        m.nvtex_context_forward_update(self.context, stream);
        Tape { session: self, tape, dy: dy.h(), dx: dx.h() }
    }

    /// Output and gradient of the input, on the host.
    fn results(&self) -> Result<[Vec<u8>; 2]> {
        let [y, dx] = &self.results;
        Ok([download(self.machine, y)?, download(self.machine, dx)?])
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        self.modules.nvtex_module_destroy(self.layer);
        self.modules.nvtex_context_destroy(self.context);
    }
}

/// What a forward pass has left.
struct Tape<'a> {
    session: &'a Session<'a>,
    tape: Handle,
    dy: Handle,
    dx: Handle,
}

impl Tape<'_> {
    fn backward(self) {
        let Session { modules: m, machine, layer, context, .. } = self.session;
        let stream = machine.stream();
        m.nvtex_module_backward(*layer, self.tape, &self.dy, 1, &self.dx, 1, stream);
        m.nvtex_context_backward_update(*context, stream);
        m.nvtex_tape_destroy(self.tape);
    }
}

/// Seconds of a step, and bytes.
struct Measured {
    queued: f64,
    graph: Option<f64>,
    host: f64,
    /// Bytes of the weights as products take them, of a tape, and of everything.
    weights: usize,
    saved: usize,
    peak: usize,
}

/// The text that the section begins with.
pub fn preamble(machine: &dyn Machine, date: &str, version: &str, limits: &Limits) -> String {
    let kind = if machine.kind() == Kind::Gpu { "GPU" } else { "CPU" };
    format!(
        "## Transformer layer, {kind}\n\n{}; {date}; {version}; {ROUNDS} rounds.\n\n\
         `step`: forward and backward pass, with gradients of all parameters, called by the host one \
         after the other; `graph`: replays of a CUDA graph; `host`: what the calls cost the host. \
         `floor`: the products at the limit of the matrix units, or one pass over the weights and \
         their gradients at that of the memory. `persistent`: weights, what is kept of casts, and \
         the workspace; `saved`: what the forward pass leaves for the backward pass; `peak`: the \
         most at one time, without input, output and gradients. Limits: {}.\n",
        machine.describe(),
        limits.text()
    )
}

pub fn run(
    machine: &dyn Machine,
    api: &Api,
    pool: &Pool,
    limits: &Limits,
    peer: Option<&Times>,
    only: Option<&str>,
    profile: bool,
) -> Result<String> {
    let modules = &Modules::load(api)?;
    let wanted = |case: &Case| only.is_none_or(|only| case.name().contains(only));
    let cases: Vec<Case> = cases(machine.kind()).into_iter().filter(wanted).collect();
    ensure!(!cases.is_empty(), "no layer has such a name");
    let mut table = head(machine.kind());
    println!("{table}");
    let mut failures = String::new();
    let mut references = Vec::new();
    for group in cases.chunk_by(Case::shares_layer) {
        let heap = Heap::new(machine);
        let session = Session::new(modules, machine, pool, &heap, &group[0]);
        for case in group {
            let measured = match &session {
                Ok(session) => measure(case, session, &heap, &mut references, profile),
                Err(error) => Err(anyhow!("{error:#}")),
            };
            match measured {
                Ok(None) => println!("{}: one step for the profiler", case.name()),
                Ok(Some(measured)) => {
                    let peer = peer.and_then(|times| times.get(&case.name())).copied();
                    let line = line(case, &measured, peer, machine.kind(), limits);
                    println!("{line}");
                    table = table + "\n" + &line;
                }
                Err(error) => {
                    println!("{}: {error:#}", case.name());
                    failures += &format!("\nNot measured: {}: {error:#}\n", case.name());
                }
            }
        }
    }
    print!("{failures}");
    let peer = match peer {
        Some(_) => format!("\n\n`peer`: {PEER}.\n"),
        None => "\n".into(),
    };
    Ok(table + &peer + &failures)
}

fn measure(
    case: &Case,
    session: &Session,
    heap: &Heap,
    references: &mut Vec<(Model, [Vec<u8>; 2])>,
    profile: bool,
) -> Result<Option<Measured>> {
    let Session { modules, machine, .. } = *session;
    let recipe = case.recipe.create(modules)?;
    let kept = case.weights == Weights::Kept;
    let microbatch = Cell::new(if kept { Microbatch::First } else { Microbatch::None });
    let call: Call = Box::new(|| session.run(recipe, microbatch.get()).backward());
    call();
    if kept {
        microbatch.set(Microbatch::Later);
    }
    (1..WARM_UP).for_each(|_| call());
    machine.synchronize()?;
    modules.api.take_error()?;
    if case.model.dropout == 0.0 {
        let results = session.results()?;
        if !references.iter().any(|(model, _)| *model == case.model) {
            references.push((case.model, results.clone()));
        }
        let reference = references.iter().find(|(model, _)| *model == case.model);
        let (_, own) = reference.expect("one of each model");
        for (i, name) in ["output", "gradient of the input"].into_iter().enumerate() {
            let distance = relative_error(case.model.dtype, &results[i], &own[i]);
            // The comparison is also false if the distance is not a number.
            ensure!(distance < CLOSE, "{name}: {distance:.3} from that in high precision");
        }
    }

    heap.restart();
    let before = heap.count();
    let tape = session.run(recipe, microbatch.get());
    let saved = heap.count().live[1] - before.live[1];
    tape.backward();
    let (weights, peak) = (before.live[2], heap.count().peak);
    if profile {
        machine.synchronize()?;
        machine.profiler(true)?;
        call();
        machine.synchronize()?;
        machine.profiler(false)?;
        return Ok(None);
    }

    let calls = [call];
    let mut once = machine.queue_sampler(&calls[0], 2)?;
    let count = ((ROUND_SECONDS / once()?) as usize).clamp(ROUND_STEPS, 100);
    let mut queue = machine.queue_sampler(&calls[0], count)?;
    // As many replays as steps: a chip at its power limit is the slower the longer it works.
    let mut replay = machine.replay_sampler(&calls, count)?;
    modules.api.take_error()?;
    if replay.is_some() {
        let start = Instant::now();
        while start.elapsed().as_secs_f64() < WARM_UP_SECONDS {
            queue()?;
        }
    }
    let [mut queued, mut graph, mut host] = [const { Vec::new() }; 3];
    let rest = || {
        if machine.kind() == Kind::Gpu {
            std::thread::sleep(REST);
        }
    };
    for _ in 0..ROUNDS {
        rest();
        queued.push(queue()?);
        if let Some(replay) = &mut replay {
            rest();
            graph.push(replay()?);
        }
        let start = Instant::now();
        (0..ROUND_STEPS).for_each(|_| calls[0]());
        host.push(start.elapsed().as_secs_f64() / ROUND_STEPS as f64);
        machine.synchronize()?;
    }
    let [queued, host] = [queued, host].map(|samples| report::median(&samples));
    let graph = replay.map(|_| report::median(&graph));
    modules.api.take_error()?;
    modules.nvtex_recipe_destroy(recipe);
    Ok(Some(Measured { queued, graph, host, weights, saved, peak }))
}

fn head(kind: Kind) -> String {
    let columns: &[&str] = match kind {
        Kind::Gpu => &[
            "step",
            "graph",
            "host",
            "peer",
            "ratio",
            "rate",
            "floor",
            "of floor",
            "persistent",
            "saved",
            "peak",
        ],
        Kind::Cpu => &["step", "rate", "persistent", "saved", "peak"],
    };
    let cells: Vec<String> = columns.iter().map(|&column| column.into()).collect();
    let rule: String = "|---|".to_owned() + &"--:|".repeat(cells.len());
    format!("{}\n{rule}", report::table_line("forward and backward pass", &cells))
}

fn line(
    case: &Case,
    measured: &Measured,
    peer: Option<f64>,
    kind: Kind,
    limits: &Limits,
) -> String {
    let Measured { queued, graph, host, weights, saved, peak } = *measured;
    let best = graph.unwrap_or(queued).min(queued);
    let time = |seconds: Option<f64>| seconds.map_or("-".into(), report::time_text);
    let memory = |bytes: usize| format!("{:.1} MB", bytes as f64 / 1e6);
    let floor = case.floor(limits);
    let flops: f64 = case.model.flops().iter().sum();
    let rate = report::rate_text(flops / queued, "FLOP/s");
    let mut cells = vec![time(Some(queued))];
    if kind == Kind::Gpu {
        cells.extend([
            time(graph),
            time(Some(host)),
            time(peer),
            peer.map_or("-".into(), |peer| format!("{:.2}", peer / queued)),
        ]);
    }
    cells.push(rate);
    if kind == Kind::Gpu {
        cells.push(time(floor));
        cells.push(floor.map_or("-".into(), |floor| report::percent(floor / best, 0)));
    }
    cells.extend([memory(weights), memory(saved), memory(peak)]);
    report::table_line(&case.name(), &cells)
}
