//! Tokens to the ranks of their experts and back (spec: gemm_comm, section 11). With one rank all experts are
//! local: a dispatch is a permutation of rows, whose plan lies in the caller's memory of a layer. With several ranks
//! the same permutation sorts the own tokens by expert, and `exchange.rs` brings each expert's rows to its rank; where rows
//! may be dropped, `slots.rs` brings tokens to the ranks of their experts without a wait of the host.

pub(crate) mod cpu;
pub(crate) mod exchange;
pub mod exports;
mod slots;

use super::ranks::{self, Context};
use crate::backend::{self, args::*};
use crate::check::{self, Memory};
use crate::device_check;
use crate::error::{Error, Result};
use crate::fork::{self, Held};
use crate::tensor::{Buffer, Shape, Tensor, from_c};
use crate::types::NVTEScalingMode::*;
use crate::types::{NVTEDType::*, *};
use std::ffi::{c_int, c_void};
use std::fmt::Display;
use std::ptr::{null, null_mut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Instant;

/// A group as `nvte_ep_initialize` makes it.
#[derive(Clone)]
struct Group {
    /// Of all ranks.
    experts: usize,
    max_tokens: usize,
    /// Most rows that a dispatch gives.
    capacity: usize,
    /// Rows beyond `capacity` are left out; otherwise they are an error where the host can see them.
    drop: bool,
    /// The ranks, if there are several, and memory for rows on their way.
    context: Arc<Context>,
}

/// Of whom a group is: of a device, or where ranks are threads of one thread on it.
type Owner = (c_int, Option<ThreadId>);

/// The groups of the process.
static GROUPS: Mutex<Vec<(Owner, Group)>> = Mutex::new(Vec::new());

fn groups() -> MutexGuard<'static, Vec<(Owner, Group)>> {
    GROUPS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Holds the lock of the groups until the result is dropped.
pub(crate) fn hold(deadline: Instant) -> Box<dyn Held> {
    Box::new(fork::patiently(deadline, || GROUPS.try_lock()))
}

/// A number of a config, which may not be below `least`.
fn at_least(name: &str, value: i32, least: i32) -> Result<usize> {
    match usize::try_from(value) {
        Ok(number) if value >= least => Ok(number),
        _ => Err(Error::argument(name, format!("{least} or more"), value)),
    }
}

impl Group {
    fn of_config(comm: ncclComm_t, config: &NVTEEpGroupConfig) -> Result<Self> {
        let ranks = ("group_config.ep_size", config.ep_size);
        let experts = at_least("group_config.num_experts", config.num_experts, 1)?;
        let max_tokens =
            at_least("group_config.max_tokens_per_rank", config.max_tokens_per_rank, 1)?;
        let max_rows =
            at_least("group_config.max_recv_tokens_per_rank", config.max_recv_tokens_per_rank, 0)?;
        let hidden = at_least("group_config.hidden_dim", config.hidden_dim, 1)?;
        at_least("group_config.num_comm_sms", config.num_comm_sms, 0)?;
        at_least("group_config.num_topk", config.num_topk, 0)?;
        let dtype: NVTEDType = from_c("group_config.max_token_dtype", config.max_token_dtype)?;
        let bytes = hidden * dtype.bits() / 8;
        if !(16..=u32::MAX as usize).contains(&bytes) {
            let expected = format!("tokens of 16 to {} bytes, in {dtype}", u32::MAX);
            return Err(Error::argument("group_config.hidden_dim", expected, hidden));
        }
        for (name, flag) in
            [("zero_copy", config.zero_copy), ("drop_on_overflow", config.drop_on_overflow)]
        {
            if flag != 0 && max_rows == 0 {
                let expected = format!("1 or more, because {name} is set");
                return Err(Error::argument("group_config.max_recv_tokens_per_rank", expected, 0));
            }
        }
        if config.ep_size > 1 && !experts.is_multiple_of(config.ep_size as usize) {
            let expected = format!("a multiple of {}, the ranks", config.ep_size);
            return Err(Error::argument("group_config.num_experts", expected, experts));
        }
        let communicator = ranks::several(("ep_comm", comm), ranks, None)?;
        if config.zero_copy != 0 {
            return Err(no_windows("group_config.zero_copy: expected 0, got 1"));
        }
        let rows = if max_rows == 0 { i32::MAX as usize } else { max_rows };
        let (drop, context) = (config.drop_on_overflow != 0, Context::new(communicator));
        Ok(Self { experts, max_tokens, capacity: rows, drop, context })
    }

    /// The group of this thread or of the current device.
    fn current() -> Result<Self> {
        let device = backend::device_properties()?.device;
        let groups = groups();
        let find = |owner: Owner| groups.iter().find(|(of, _)| *of == owner);
        let own = find((device, Some(thread::current().id()))).or_else(|| find((device, None)));
        // Another thread of a rank: there is no doubt whose it is if the process has one group.
        let own =
            own.or_else(|| groups.first().filter(|(of, _)| groups.len() == 1 && of.0 == device));
        let expected = "one for which nvte_ep_initialize was called";
        let group = own.map(|(_, group)| group.clone());
        group.ok_or_else(|| Error::argument("device", expected, device))
    }

    /// Whether as many rows go from each rank to each other one as a rank may have tokens, so that nobody waits for numbers
    /// of rows.
    fn has_slots(&self) -> bool {
        self.drop && self.context.ranks.is_some()
    }

    /// The slots of all ranks, in each of which a rank may have a token.
    fn slots(&self) -> usize {
        let ranks = self.context.ranks.as_ref().filter(|_| self.has_slots());
        self.max_tokens * ranks.map_or(0, |ranks| ranks.size())
    }

    /// Bytes of the state before what depends on the number of experts of a token.
    fn head(&self) -> usize {
        let ranks = self.context.ranks.as_ref().map_or(0, |ranks| ranks.size());
        // With several ranks the rows of all of them follow, and the alignment.
        (8 * (3 + self.experts + ranks * self.experts)).next_multiple_of(256)
    }

    /// Bytes of the state of a layer.
    fn state_bytes(&self, topk: usize) -> Result<usize> {
        let most = self.most_choices();
        if topk > most {
            let expected = format!("at most {most}, for {} tokens", self.max_tokens);
            return Err(Error::argument("layer_cfg.top_k", expected, topk));
        }
        Ok(self.heads() + 8 * (self.max_tokens + self.slots()) * topk)
    }

    /// As [`Self::head`], with that of the plan for slots.
    fn heads(&self) -> usize {
        self.head() + if self.has_slots() { self.head() } else { 0 }
    }

    /// The most experts of a token whose choices can be counted.
    fn most_choices(&self) -> usize {
        i32::MAX as usize / self.max_tokens.max(self.slots())
    }
}

fn no_windows(what: &str) -> Error {
    Error::unsupported(format!(
        "{what}: the memory behind a window of NCCL is not available in this library; pass the data in the \
         tensors' own memory, and windows that are all zero"
    ))
}

/// Refuses a window in place of a tensor's memory.
fn no_window(name: &str, window: &NVTECommWindow) -> Result<()> {
    match window.window.is_null() && window.scale_window.is_null() {
        true => Ok(()),
        false => Err(no_windows(&format!("{name}: expected all zero, got a window"))),
    }
}

fn initialize(comm: ncclComm_t, config: &NVTEEpGroupConfig) -> Result<()> {
    let group = Group::of_config(comm, config)?;
    let device = backend::device_properties()?.device;
    let threads = group.context.ranks.as_ref().is_some_and(|ranks| ranks.may_be_threads());
    let owner = (device, threads.then(|| thread::current().id()));
    let mut groups = groups();
    let taken = |(of, _): &&(Owner, Group)| {
        of.0 == device && (of.1 == owner.1 || of.1.is_none() || owner.1.is_none())
    };
    if groups.iter().any(|one| taken(&one)) {
        let expected = "a device without a group; nvte_ep_shutdown ends the groups of all devices";
        return Err(Error::argument("device", expected, format!("{device}, which has one")));
    }
    groups.push((owner, group));
    Ok(())
}

/// A layer's config after its checks.
#[derive(Clone, Copy)]
struct Layer {
    topk: usize,
    alignment: usize,
}

impl Layer {
    fn of_config(config: &NVTEEpLayerConfig) -> Result<Self> {
        let topk = at_least("layer_cfg.top_k", config.top_k, 1)?;
        let alignment = config.dispatch_output_per_expert_alignment.max(1);
        if alignment > i32::MAX as usize {
            let name = "layer_cfg.dispatch_output_per_expert_alignment";
            return Err(Error::argument(name, format!("at most {}", i32::MAX), alignment));
        }
        Ok(Self { topk, alignment })
    }
}

/// Bytes of the state of a layer, enough for the group of each device.
fn handle_mem_size(layer: &Layer) -> Result<usize> {
    Group::current()?;
    let groups = groups();
    groups.iter().try_fold(0, |most, (_, group)| Ok(most.max(group.state_bytes(layer.topk)?)))
}

/// Where the plan of a layer lies in the caller's memory. It says for how many experts of a token there is room,
/// so that every call finds the same places.
#[derive(Clone, Copy)]
struct State {
    /// Tokens and experts of a token that the plan is for, then the first row of each expert.
    head: *mut i64,
    /// `[tokens, topk]`
    rows: *mut i32,
    /// `[planes, tokens]`
    map: *mut i32,
    planes: usize,
    bytes: usize,
    /// With several ranks: rows that each rank has for each expert, `[ranks, experts]`, and the layer's alignment.
    table: *mut i64,
    alignment: *mut i64,
    /// With slots: the plan for the tokens in them, of all ranks, as `head`, `rows` and `map` are for the own ones.
    of_slots: (*mut i64, *mut i32, *mut i32),
}

impl State {
    fn new(buffer: &Buffer, group: &Group) -> Result<Self> {
        let least = group.state_bytes(1)?;
        if buffer.bytes() < least {
            let expected = format!("{least} or more bytes, as nvte_ep_handle_mem_size says");
            return Err(Error::argument("handle_mem.shape", expected, buffer.bytes()));
        }
        let address = check::raw_pointer("handle_mem.data", buffer.ptr(), least / 8, kNVTEInt64)?;
        let (tokens, slots) = (group.max_tokens, group.slots());
        let room = (buffer.bytes() - group.heads()) / (8 * (tokens + slots));
        let planes = room.min(group.most_choices());
        let rows = address.wrapping_byte_add(group.heads());
        let of_slots: *mut i32 = rows.wrapping_byte_add(8 * tokens * planes).cast();
        let table = address.cast::<i64>().wrapping_add(2 + group.experts);
        let ranks = group.context.ranks.as_ref().map_or(0, |ranks| ranks.size());
        Ok(Self {
            head: address.cast(),
            rows: rows.cast(),
            map: rows.wrapping_byte_add(4 * tokens * planes).cast(),
            planes,
            bytes: group.heads() + 8 * (tokens + slots) * planes,
            table,
            alignment: table.wrapping_add(ranks * group.experts),
            of_slots: (
                address.wrapping_byte_add(group.head()).cast(),
                of_slots,
                of_slots.wrapping_add(slots * planes),
            ),
        })
    }

    fn memory(&self) -> Memory<'static> {
        Memory::new(&"handle_mem.data", self.head, self.bytes)
    }

    /// Refuses more experts of a token than there is room for.
    fn check_topk(&self, name: &str, topk: usize) -> Result<()> {
        match topk <= self.planes {
            true => Ok(()),
            false => {
                let expected = format!("at most {} experts of a token, as handle_mem", self.planes);
                Err(Error::argument(name, expected, topk))
            }
        }
    }

    /// With `NVTE_CHECK=device`, refuses sizes that differ from those of the plan.
    fn check_plan(
        &self,
        name: &str,
        tokens: usize,
        topk: Option<usize>,
        stream: cudaStream_t,
    ) -> Result<()> {
        // SAFETY: the state begins with two numbers.
        #[allow(unsafe_code)]
        let Some(sizes) = (unsafe { device_check::read("handle_mem", self.head, 2, stream)? })
        else {
            return Ok(());
        };
        let differs = |index: usize, got: usize| sizes[index] != got as i64;
        if differs(0, tokens) || topk.is_some_and(|topk| differs(1, topk)) {
            let expected = format!("{} tokens of {} experts, as in the plan", sizes[0], sizes[1]);
            let got = topk.map_or(format!("{tokens} tokens"), |k| format!("{tokens} of {k}"));
            return Err(Error::argument(format!("{name}.shape"), expected, got));
        }
        Ok(())
    }
}

/// Rows and columns of a matrix.
fn matrix(name: &str, buffer: &Buffer) -> Result<(usize, usize)> {
    match *buffer.shape.dims() {
        [rows, cols] => Ok((rows, cols)),
        _ => Err(Error::argument(format!("{name}.shape"), "2 dimensions", buffer.shape)),
    }
}

/// Refuses more tokens than the group takes.
fn check_tokens(name: &str, tokens: usize, group: &Group) -> Result<()> {
    match tokens <= group.max_tokens {
        true => Ok(()),
        false => {
            let expected =
                format!("at most {} tokens, as the group's config says", group.max_tokens);
            Err(Error::argument(format!("{name}.shape"), expected, tokens))
        }
    }
}

/// The outputs of a plan, which may be unset.
#[derive(Clone, Copy)]
struct Counts {
    per_expert: Buffer,
    total: Buffer,
}

/// Rows of no choices, of which calls say what differs.
const NO_ROWS: ExpertRowsArgs = ExpertRowsArgs {
    chosen: null(),
    sizes: null_mut(),
    starts: null_mut(),
    rows: null_mut(),
    map: null_mut(),
    counts: null_mut(),
    total: null_mut(),
    tokens: 0,
    topk: 0,
    planes: 0,
    experts: 0,
    alignment: 1,
    capacity: i32::MAX as usize,
    chosen_dtype: kNVTEInt32,
    counts_dtype: kNVTEInt64,
    lengths: null_mut(),
    first: 0,
    group: 0,
    limit: 0,
    fixed: false,
};

/// The plan of a layer for the tokens whose experts are `topk_idx`.
fn prepare(
    (state, group, layer): (&State, &Group, &Layer),
    topk_idx: &Buffer,
    counts: &Counts,
    stream: cudaStream_t,
) -> Result<ExpertRowsArgs> {
    let (tokens, topk) = matrix("topk_idx", topk_idx)?;
    check_tokens("topk_idx", tokens, group)?;
    if topk != layer.topk {
        let expected = format!("[{tokens}, {}] (top_k of the layer)", layer.topk);
        return Err(Error::argument("topk_idx.shape", expected, topk_idx.shape));
    }
    state.check_topk("layer_cfg.top_k", topk)?;
    check::dtype("topk_idx", topk_idx.dtype, &[kNVTEInt32, kNVTEInt64])?;
    let chosen = check::pointer("topk_idx.data", topk_idx)?;
    let local = group.context.ranks.as_ref().map_or(1, |ranks| ranks.size());
    let outputs = [
        ("recv_tokens_per_expert", &counts.per_expert, group.experts / local),
        ("total_recv_tokens_per_rank", &counts.total, 1),
    ];
    let mut counts_dtype = None;
    let mut pointers = [null_mut(); 2];
    for ((name, buffer, numel), pointer) in outputs.into_iter().zip(&mut pointers) {
        if buffer.ptr().is_null() {
            continue;
        }
        match counts_dtype {
            None => check::dtype(name, buffer.dtype, &[kNVTEInt32, kNVTEInt64])?,
            Some(dtype) => check::dtype(name, buffer.dtype, &[dtype])?,
        }
        counts_dtype = Some(buffer.dtype);
        if buffer.shape.numel() != numel {
            let name = format!("{name}.shape");
            return Err(Error::argument(name, format!("[{numel}]"), buffer.shape));
        }
        *pointer = check::pointer(format_args!("{name}.data"), buffer)?;
    }
    check::apart(
        &[Memory::of(&"topk_idx.data", topk_idx)],
        &[
            Memory::new(&outputs[0].0, pointers[0], counts.per_expert.bytes()),
            Memory::new(&outputs[1].0, pointers[1], counts.total.bytes()),
            state.memory(),
        ],
    )?;
    let args = ExpertRowsArgs {
        chosen,
        sizes: state.head,
        starts: state.head.wrapping_add(2),
        rows: state.rows,
        map: state.map,
        counts: pointers[0],
        total: pointers[1],
        tokens,
        topk,
        planes: state.planes,
        experts: group.experts,
        alignment: layer.alignment,
        capacity: group.capacity,
        chosen_dtype: topk_idx.dtype,
        counts_dtype: counts_dtype.unwrap_or(kNVTEInt64),
        ..NO_ROWS
    };
    if !group.drop && group.context.ranks.is_none() {
        check_overflow(&args, stream)?;
    }
    Ok(args)
}

/// With `NVTE_CHECK=device`, refuses tokens that would need more rows than there may be.
fn check_overflow(args: &ExpertRowsArgs, stream: cudaStream_t) -> Result<()> {
    let count = args.tokens * args.topk;
    // SAFETY: the array has an entry for each choice.
    #[allow(unsafe_code)]
    let chosen = unsafe {
        match args.chosen_dtype {
            kNVTEInt64 => device_check::read("topk_idx", args.chosen.cast::<i64>(), count, stream)?,
            _ => device_check::read("topk_idx", args.chosen.cast::<i32>(), count, stream)?
                .map(|chosen| chosen.into_iter().map(i64::from).collect()),
        }
    };
    let Some(chosen) = chosen else { return Ok(()) };
    let mut lengths = backend::memory::reserve::<usize>("rows of experts", args.experts)?;
    lengths.resize(args.experts, 0);
    for expert in chosen {
        if let Some(length) = usize::try_from(expert).ok().and_then(|e| lengths.get_mut(e)) {
            *length += 1;
        }
    }
    let total: usize = lengths.iter().map(|length| length.next_multiple_of(args.alignment)).sum();
    match total <= args.capacity {
        true => Ok(()),
        false => {
            let expected = format!("choices that need at most {} rows", args.capacity);
            Err(Error::argument("topk_idx", expected, format!("{total} rows")))
        }
    }
}

/// A tensor by the name of its argument.
type Named<'a, T> = (&'a str, &'a T);

/// Copies of nothing, of which calls say what differs. Without probabilities elements are copied bit by bit, so that
/// any elements of 2 bytes will do.
const NO_COPIES: PermuteArgs = PermuteArgs {
    input: null(),
    output: null_mut(),
    map: null(),
    probs: null(),
    prob_grads: null_mut(),
    forward: null(),
    tokens: 0,
    topk: 0,
    cols: 0,
    rows: 0,
    dtype: kNVTEFloat16,
};

/// Rows that are copied to those of experts, after zeros.
struct Move {
    zeros: MemsetArgs,
    rows: PermuteArgs,
}

impl Move {
    /// Of rows of `width` bytes, which are even; the map says for each of `choices` of each input row which row
    /// of the output it becomes.
    fn new(
        (input_name, input): (impl Display, *mut c_void),
        (output_name, output): (impl Display, *mut c_void),
        [input_rows, output_rows, width]: [usize; 3],
        (map, choices): (*const i32, usize),
    ) -> Result<Self> {
        check::raw_pointer(input_name, input, 0, kNVTEFloat16)?;
        check::raw_pointer(output_name, output, 0, kNVTEFloat16)?;
        Ok(Self {
            zeros: MemsetArgs { ptr: output, bytes: output_rows * width, value: 0 },
            rows: PermuteArgs {
                input,
                output,
                map,
                tokens: input_rows,
                topk: choices,
                cols: width / 2,
                rows: output_rows.min(i32::MAX as usize),
                ..NO_COPIES
            },
        })
    }

    fn run(&self, stream: cudaStream_t) -> Result<()> {
        if self.zeros.bytes > 0 {
            backend::run(&self.zeros, stream)?;
        }
        match self.rows.tokens * self.rows.topk * self.rows.cols {
            0 => Ok(()),
            _ => backend::run(&self.rows, stream),
        }
    }
}

/// The copies of a dispatch: data, scales and weights, of which each token has `choices`.
struct Dispatch {
    moves: [Option<Move>; 3],
    choices: usize,
}

impl Dispatch {
    /// `prepared`: the plan of the layer is there already, so that it can be checked.
    fn plan(
        (state, group): (&State, &Group),
        (input_name, input): Named<Tensor>,
        (output_name, output): Named<Tensor>,
        weights: Option<[Named<Buffer>; 2]>,
        (prepared, stream): (bool, cudaStream_t),
    ) -> Result<Self> {
        let (tokens, cols) = matrix(input_name, &input.rowwise)?;
        let (rows, output_cols) = matrix(output_name, &output.rowwise)?;
        check_tokens(input_name, tokens, group)?;
        if output_cols != cols {
            let expected = format!("[{rows}, {cols}], as {input_name}");
            let shape = output.rowwise.shape;
            return Err(Error::argument(format!("{output_name}.shape"), expected, shape));
        }
        if output.mode != input.mode {
            let name = format!("{output_name}.scaling_mode");
            return Err(Error::argument(
                name,
                format!("{}, as {input_name}", input.mode),
                output.mode,
            ));
        }
        let dtype = input.rowwise.dtype;
        match input.mode {
            NVTE_DELAYED_TENSOR_SCALING => check::high_precision(input_name, dtype)?,
            NVTE_MXFP8_1D_SCALING => check::fp8(input_name, dtype)?,
            mode => {
                let expected = "NVTE_DELAYED_TENSOR_SCALING or NVTE_MXFP8_1D_SCALING";
                let name = format!("{input_name}.scaling_mode");
                return Err(Error::argument(name, expected, mode));
            }
        }
        check::dtype(output_name, output.rowwise.dtype, &[dtype])?;
        let pair = |field: &str, from: &Buffer, to: &Buffer, width: usize| {
            let input_name = format_args!("{input_name}.{field}");
            let output_name = format_args!("{output_name}.{field}");
            let from = (input_name, check::pointer(input_name, from)?);
            let to = (output_name, check::pointer(output_name, to)?);
            Move::new(from, to, [tokens, rows, width], (state.map, state.planes))
        };
        let width = cols * dtype.bits() / 8;
        let data = pair("data", &input.rowwise, &output.rowwise, width)?;
        let mut scales = None;
        if input.mode == NVTE_MXFP8_1D_SCALING {
            let pitch = scale_pitch((input_name, input), (tokens, cols), None)?;
            scale_pitch((output_name, output), (rows, cols), Some(pitch))?;
            let (from, to) = (&input.rowwise_scale_inv, &output.rowwise_scale_inv);
            scales = Some(pair("scale_inv", from, to, pitch)?);
        }
        let [sent_weights, received_weights] = weights.unwrap_or([("", &Buffer::UNSET); 2]);
        check::apart(
            &[
                Memory::of(&format_args!("{input_name}.data"), &input.rowwise),
                Memory::of(&format_args!("{input_name}.scale_inv"), &input.rowwise_scale_inv),
                Memory::of(&format_args!("{}.data", sent_weights.0), sent_weights.1),
                state.memory(),
            ],
            &[
                Memory::of(&format_args!("{output_name}.data"), &output.rowwise),
                Memory::of(&format_args!("{output_name}.scale_inv"), &output.rowwise_scale_inv),
                Memory::of(&format_args!("{}.data", received_weights.0), received_weights.1),
            ],
        )?;
        let mut topk = None;
        let weights = weights.map(|[(input_name, input), (output_name, output)]| {
            let (weight_tokens, choices) = matrix(input_name, input)?;
            if weight_tokens != tokens {
                let expected = format!("[{tokens}, top_k]");
                return Err(Error::argument(format!("{input_name}.shape"), expected, input.shape));
            }
            state.check_topk(input_name, choices)?;
            topk = Some(choices);
            let from = floats(input_name, input)?;
            let to = weight_of_rows(output_name, output, rows)?;
            let sizes = [tokens * choices, rows, 4];
            Move::new((input_name, from), (output_name, to), sizes, (state.rows, 1))
        });
        let weights = weights.transpose()?;
        if prepared {
            state.check_plan(input_name, tokens, topk, stream)?;
        }
        Ok(Self { moves: [Some(data), scales, weights], choices: topk.unwrap_or(0) })
    }

    fn run(&self, stream: cudaStream_t) -> Result<()> {
        self.moves.iter().flatten().try_for_each(|copy| copy.run(stream))
    }
}

/// Address of weights in Float32.
fn floats(name: &str, buffer: &Buffer) -> Result<*mut c_void> {
    check::dtype(name, buffer.dtype, &[kNVTEFloat32])?;
    check::pointer(format_args!("{name}.data"), buffer)
}

/// Address of a weight for each row.
fn weight_of_rows(name: &str, buffer: &Buffer, rows: usize) -> Result<*mut c_void> {
    check::shape(name, &buffer.shape, &Shape::new(&[rows]))?;
    floats(name, buffer)
}

/// Bytes from one row of scales to the next: those of `[rows, cols]` in MXFP8, row by row.
fn scale_pitch(
    (name, tensor): Named<Tensor>,
    (rows, cols): (usize, usize),
    as_input: Option<usize>,
) -> Result<usize> {
    let scales = &tensor.rowwise_scale_inv;
    if tensor.swizzled {
        let name = format!("{name}.with_gemm_swizzled_scales");
        return Err(Error::argument(name, "0 (rows of scales are copied)", 1));
    }
    check::dtype(format_args!("{name}.scale_inv"), scales.dtype, &[kNVTEFloat8E8M0, kNVTEByte])?;
    let least = cols.div_ceil(32);
    match *scales.shape.dims() {
        [first, pitch]
            if first >= rows
                && pitch >= least
                && pitch.is_multiple_of(2)
                && as_input.is_none_or(|other| other == pitch) =>
        {
            Ok(pitch)
        }
        _ => {
            let pitch =
                as_input.map_or(format!("an even number from {least} on"), |p| p.to_string());
            let expected = format!("[{rows} or more, {pitch}]");
            Err(Error::argument(format!("{name}.scale_inv.shape"), expected, scales.shape))
        }
    }
}

/// Refuses outputs that overlap an input, the state or each other.
fn apart(state: &State, inputs: [Named<Buffer>; 2], outputs: [Named<Buffer>; 2]) -> Result<()> {
    let [(a, first), (b, second)] = inputs;
    let [(c, third), (d, fourth)] = outputs;
    check::apart(
        &[
            Memory::of(&format_args!("{a}.data"), first),
            Memory::of(&format_args!("{b}.data"), second),
            state.memory(),
        ],
        &[
            Memory::of(&format_args!("{c}.data"), third),
            Memory::of(&format_args!("{d}.data"), fourth),
        ],
    )
}

/// The sums over the experts of each token.
fn sums(
    (state, group): (&State, &Group),
    (input_name, input): Named<Buffer>,
    (output_name, output): Named<Buffer>,
) -> Result<UnpermuteArgs> {
    let (rows, cols) = matrix(input_name, input)?;
    let (tokens, output_cols) = matrix(output_name, output)?;
    check_tokens(output_name, tokens, group)?;
    if output_cols != cols {
        let expected = format!("[{tokens}, {cols}], as {input_name}");
        return Err(Error::argument(format!("{output_name}.shape"), expected, output.shape));
    }
    check::high_precision(input_name, input.dtype)?;
    check::dtype(output_name, output.dtype, &[input.dtype])?;
    Ok(UnpermuteArgs {
        input: check::pointer(format_args!("{input_name}.data"), input)?,
        output: check::pointer(format_args!("{output_name}.data"), output)?,
        map: state.map,
        probs: null(),
        tokens,
        topk: state.planes,
        cols,
        rows: rows.min(i32::MAX as usize),
        dtype: input.dtype,
    })
}

/// The gradients of the weights: each is that of its row.
fn weight_grads(
    state: &State,
    (input_name, input): Named<Buffer>,
    (output_name, output): Named<Buffer>,
    (expected_tokens, rows): (usize, usize),
) -> Result<(UnpermuteArgs, usize)> {
    let (tokens, topk) = matrix(output_name, output)?;
    if tokens != expected_tokens {
        let expected = format!("[{expected_tokens}, top_k]");
        return Err(Error::argument(format!("{output_name}.shape"), expected, output.shape));
    }
    state.check_topk(output_name, topk)?;
    let args = UnpermuteArgs {
        input: weight_of_rows(input_name, input, rows)?,
        output: floats(output_name, output)?,
        map: state.rows,
        probs: null(),
        tokens: tokens * topk,
        topk: 1,
        cols: 1,
        rows: rows.min(i32::MAX as usize),
        dtype: kNVTEFloat32,
    };
    Ok((args, topk))
}

/// Runs sums unless there is nothing to write.
fn run_sums(args: &UnpermuteArgs, stream: cudaStream_t) -> Result<()> {
    if args.tokens * args.cols == 0 { Ok(()) } else { backend::run(args, stream) }
}

/// Makes a plan that has been checked.
fn run_plan(
    (state, group): (&State, &Group),
    layer: &Layer,
    args: ExpertRowsArgs,
    stream: cudaStream_t,
) -> Result<()> {
    match exchange::Experts::of(state, group) {
        None => backend::run(&args, stream),
        Some(experts) if group.has_slots() => experts.prepare_slots(layer, args, stream),
        Some(experts) => experts.prepare(layer, args, stream),
    }
}

/// Copies rows to their experts.
fn run_dispatch(
    (state, group): (&State, &Group),
    dispatch: &Dispatch,
    stream: cudaStream_t,
) -> Result<()> {
    match exchange::Experts::of(state, group) {
        None => dispatch.run(stream),
        Some(experts) if group.has_slots() => experts.send_slots(dispatch, stream),
        Some(experts) => experts.send(&dispatch.moves, stream),
    }
}

/// Sums rows of experts; there may be gradients of weights, with the number of choices of a token.
fn run_all_sums(
    (state, group): (&State, &Group),
    (sums, weights): (UnpermuteArgs, Option<(UnpermuteArgs, usize)>),
    stream: cudaStream_t,
) -> Result<()> {
    let all = || [Some(sums), weights.map(|(weights, _)| weights)].into_iter().flatten();
    match exchange::Experts::of(state, group) {
        None => all().try_for_each(|sums| run_sums(&sums, stream)),
        Some(experts) if group.has_slots() => experts.fetch_slots(&sums, weights, stream),
        Some(experts) => experts.fetch(all().collect(), stream),
    }
}

/// How choices become rows, as [`ExpertRowsArgs`] says.
#[derive(Clone, Copy)]
pub(crate) struct Places {
    pub alignment: usize,
    pub capacity: usize,
    pub first: usize,
    pub group: usize,
    pub limit: usize,
    pub fixed: bool,
}

impl Places {
    /// A row for each choice, one after the other.
    pub const ALL: Self =
        Self { alignment: 1, capacity: usize::MAX, first: 0, group: 0, limit: 0, fixed: false };
}

/// Zeros the rows of a matrix that no choice has: `starts` and `lengths` are those of the experts, by [`place_rows`].
pub(crate) fn zero_gaps(
    output: &Buffer,
    [starts, lengths]: [&Buffer; 2],
    limit: usize,
    stream: cudaStream_t,
) -> Result<()> {
    let ((rows, cols), experts) = (output.shape.flatten(), lengths.shape.numel());
    check::elements("starts", starts, experts, kNVTEInt64)?;
    check::elements("lengths", lengths, experts, kNVTEInt64)?;
    let width = cols * output.dtype.bits() / 8;
    let args = ZeroGapsArgs {
        output: check::pointer("output.data", output)?,
        starts: starts.ptr().cast_const().cast(),
        lengths: lengths.ptr().cast_const().cast(),
        experts,
        rows,
        width,
        limit,
    };
    if rows * width == 0 { Ok(()) } else { backend::run(&args, stream) }
}

/// Sorts the choices `[tokens, topk]` of tokens by expert: the row of each choice, once as `[tokens, topk]` and once as
/// `[topk, tokens]`, and the number of rows of each expert, all in memory that `numbers` (Int64, 2 and one for each
/// expert) helps to make. The number of choices of each expert goes to `lengths` unless it is unset.
pub(crate) fn place_rows(
    chosen: &Buffer,
    [rows, map, numbers, counts]: [&Buffer; 4],
    lengths: &Buffer,
    places: &Places,
    stream: cudaStream_t,
) -> Result<()> {
    let (tokens, topk) = chosen.shape.flatten();
    let experts = counts.shape.numel();
    check::dtype("topk_idx", chosen.dtype, &[kNVTEInt32, kNVTEInt64])?;
    for (name, buffer, dtype, least) in [
        ("rows", rows, kNVTEInt32, tokens * topk),
        ("map", map, kNVTEInt32, tokens * topk),
        ("numbers", numbers, kNVTEInt64, 2 + experts),
        ("counts", counts, kNVTEInt64, experts),
        ("lengths", lengths, kNVTEInt64, experts),
    ] {
        if name == "lengths" && !lengths.is_set() {
            continue;
        }
        check::dtype(name, buffer.dtype, &[dtype])?;
        check::elements(name, buffer, least, dtype)?;
    }
    let sizes: *mut i64 = numbers.ptr().cast();
    let args = ExpertRowsArgs {
        chosen: check::pointer("topk_idx.data", chosen)?,
        sizes,
        starts: sizes.wrapping_add(2),
        rows: rows.ptr().cast(),
        map: map.ptr().cast(),
        counts: counts.ptr(),
        tokens,
        topk,
        planes: topk,
        experts,
        alignment: places.alignment,
        capacity: places.capacity.min(i32::MAX as usize),
        chosen_dtype: chosen.dtype,
        lengths: lengths.ptr().cast(),
        first: places.first,
        group: places.group,
        limit: places.limit,
        fixed: places.fixed,
        ..NO_ROWS
    };
    backend::run(&args, stream)
}
