//! The call of attention: the records of a pass become a [`Problem`] and then the arguments of a backend, which
//! chooses an implementation; see [`Attention`] (spec attention 8, 11, 12).
#![allow(unsafe_code)]

use super::attention::{Attention, Backward, Forward, Inputs};
use super::layout::Layout;
use super::operand::Operand;
use super::problem::{Pages, Problem};
use super::rows::check_elements;
use crate::backend::{self, args::*};
use crate::check;
use crate::error::{Error, Kind, Result};
use crate::tensor::{Buffer, Shape, Tensor};
use crate::types::NVTE_Bias_Type::NVTE_POST_SCALE_BIAS;
use crate::types::NVTE_QKV_Format::*;
use crate::types::NVTE_QKV_Layout_Group::*;
use crate::types::NVTE_Softmax_Type::*;
use crate::types::NVTEDType::{self, *};
use crate::types::cudaStream_t;
use crate::workspace::Workspace;
use std::ffi::c_void;
use std::ptr::{null, null_mut};

/// The inputs as arguments with the names of a pass.
struct Operands<'a> {
    q: Operand<'a>,
    k: Operand<'a>,
    v: Operand<'a>,
    bias: Operand<'a>,
    softmax_offset: Operand<'a>,
    rng_state: Operand<'a>,
    s: Operand<'a>,
    sequences: Sequences<'a>,
}

impl<'a> Operands<'a> {
    /// `names`: of the bias, the softmax's offset and the random state, which the passes get in different
    /// arguments.
    fn new(inputs: &Inputs<'a>, names: [&'static str; 3]) -> Self {
        let [q, kv, padded_q, padded_kv] = inputs.cu_seqlens;
        Self {
            q: Operand::new("Q", inputs.q),
            k: Operand::new("K", inputs.k),
            v: Operand::new("V", inputs.v),
            bias: Operand::optional(names[0], inputs.bias),
            softmax_offset: Operand::optional(names[1], inputs.softmax_offset),
            rng_state: Operand::optional(names[2], inputs.rng_state),
            s: Operand::optional("S", inputs.s),
            sequences: Sequences {
                cu_seqlens: [
                    Operand::optional("cu_seqlens_q", q),
                    Operand::optional("cu_seqlens_kv", kv),
                ],
                padded: [
                    Operand::optional("cu_seqlens_q_padded", padded_q),
                    Operand::optional("cu_seqlens_kv_padded", padded_kv),
                ],
            },
        }
    }

    /// The problem of Q, K and V. What other tensors say about it is set by the pass.
    fn problem(&self, attention: &Attention) -> Result<Problem> {
        let (q, k, v, layout) = (&self.q, &self.k, &self.v, &attention.layout);
        let queries = q.sizes(layout.q)?;
        let dtype = q.buffer().dtype;
        for other in [k, v] {
            check::dtype(other.name, other.required()?.dtype, &[dtype])?;
        }
        let (keys, values) = (k.sizes(layout.kv)?, v.sizes(layout.kv)?);
        let batch = match layout.q {
            // An array of the caller's largest batch has empty sequences at its end, without keys of their own.
            NVTE_THD if layout.kv != NVTE_THD && !attention.paged() => {
                self.sequences.count()?.min(keys.batch)
            }
            NVTE_THD => self.sequences.count()?,
            _ => queries.batch,
        };
        let mut problem = Problem {
            attention: *attention,
            scaling: q.scaling(),
            qkv_dtype: dtype,
            o_dtype: dtype,
            do_dtype: dtype,
            dqkv_dtype: dtype,
            bias_dtype: dtype,
            batch,
            heads: [queries.heads, keys.heads],
            dim_qk: queries.dim,
            dim_v: values.dim,
            tokens: [queries.tokens, keys.tokens],
            pages: Default::default(),
            bias: [0; 4],
        };
        q.has_shape(&problem.shape(0, layout.q, problem.dim_qk))?;
        let [key_shape, value_shape] = if attention.paged() {
            for (pages, sizes) in problem.pages.iter_mut().zip([&keys, &values]) {
                (pages.count, pages.size) = (sizes.batch, sizes.tokens);
            }
            [problem.page_shape(0, problem.dim_qk), problem.page_shape(1, problem.dim_v)]
        } else {
            [problem.dim_qk, problem.dim_v].map(|dim| problem.shape(1, layout.kv, dim))
        };
        // A cache has slots for the largest batch, of which the first are read.
        let slots = !attention.paged() && matches!(layout.kv, NVTE_BSHD | NVTE_BHSD);
        for (part, shape) in [(k, key_shape), (v, value_shape)] {
            if slots { part.has_slots(&shape)? } else { part.has_shape(&shape)? }
        }
        Ok(problem)
    }

    /// Addresses of what both passes read.
    fn place(&self, problem: &Problem, args: &mut AttentionArgs) -> Result<()> {
        let (attention, fp8) = (&problem.attention, problem.fp8());
        self.q.place(&mut args.q, problem.dim_qk, fp8)?;
        self.k.place(&mut args.k, problem.dim_qk, fp8)?;
        self.v.place(&mut args.v, problem.dim_v, fp8)?;
        check_interleaved(&attention.layout, problem, [&self.q, &self.k, &self.v])?;
        if fp8 {
            self.s.scales(&mut args.s, true)?;
        }
        self.sequences.place(problem, args)?;
        if attention.bias == NVTE_POST_SCALE_BIAS {
            args.bias.data = bias_address(&self.bias, problem)?;
        }
        if attention.softmax != NVTE_VANILLA_SOFTMAX {
            args.sink = offset_address(&self.softmax_offset, problem)?;
        }
        Ok(())
    }
}

/// Lengths and starts of the sequences of queries, and of keys and values.
struct Sequences<'a> {
    cu_seqlens: [Operand<'a>; 2],
    padded: [Operand<'a>; 2],
}

impl Sequences<'_> {
    /// Number of sequences of packed queries.
    fn count(&self) -> Result<usize> {
        match *self.cu_seqlens[0].required()?.shape.dims() {
            [length] if length > 0 => Ok(length - 1),
            _ => Err(Error::argument(
                "cu_seqlens_q.shape",
                "one dimension of 1 or more",
                self.cu_seqlens[0].buffer().shape,
            )),
        }
    }

    fn place(&self, problem: &Problem, args: &mut AttentionArgs) -> Result<()> {
        let (attention, length) = (&problem.attention, problem.batch + 1);
        for (side, place) in [&mut args.q_side, &mut args.kv_side].into_iter().enumerate() {
            if attention.padding() {
                place.cu_seqlens = self.cu_seqlens[side].numbers(kNVTEInt32, length)?.cast();
            }
            if attention.ragged()[side] {
                // Keys and values between the queries begin where they do.
                let from = if attention.layout.interleaves_all() { 0 } else { side };
                let padded = &self.padded[from];
                place.starts = match padded.buffer().ptr().is_null() {
                    true => self.cu_seqlens[from].numbers(kNVTEInt32, length)?.cast(),
                    false => padded.numbers(kNVTEInt32, length)?.cast(),
                };
            }
        }
        Ok(())
    }
}

/// Writes `o`, the statistics of its rows and, if the options ask for them, their largest scores.
pub fn forward(
    attention: &Attention,
    tensors: &Forward,
    workspace: &mut Workspace,
    stream: cudaStream_t,
) -> Result<()> {
    let operands = Operands::new(&tensors.inputs, ["Bias", "SoftmaxOffset", "rng_state"]);
    let mut problem = operands.problem(attention)?;
    let o = Operand::new("O", tensors.o);
    let [table_k, table_v] = tensors.page_tables;
    let tables =
        [Operand::optional("page_table_k", table_k), Operand::optional("page_table_v", table_v)];
    problem.o_dtype = o.required()?.dtype;
    if problem.fp8() {
        problem.bias_dtype = operands.bias.buffer().dtype;
    }
    problem.bias = operands.bias.last_dims().unwrap_or_default();
    if attention.paged() {
        for (pages, table) in problem.pages.iter_mut().zip(&tables) {
            pages.per_sequence = entries_of_sequence(table, problem.batch)?;
        }
    }
    o.has_shape(&problem.shape(0, attention.o_format, problem.dim_v))?;
    if problem.batch == 0 || o.buffer().shape.numel() == 0 {
        return workspace.take(kNVTEByte, Shape::new(&[1])).map(drop);
    }
    let mut args = problem.args(false)?;
    if !workspace.asks() {
        operands.place(&problem, &mut args)?;
        o.place(&mut args.o, problem.dim_v, problem.fp8())?;
        if attention.paged() {
            let entries = |pages: &Pages| problem.batch * pages.per_sequence;
            let [k, v] = &problem.pages;
            args.page_table_k = tables[0].numbers(kNVTEInt32, entries(k))?.cast();
            args.page_table_v = tables[1].numbers(kNVTEInt32, entries(v))?.cast();
        }
        if !args.rng_state.is_null() {
            args.rng_state = operands.rng_state.numbers(kNVTEInt64, 2)?.cast();
        }
        let rows = problem.rows(0) * problem.heads[0];
        let output = |name, tensor: Option<&Tensor>| match tensor {
            Some(tensor) => auxiliary(name, &tensor.rowwise, kNVTEFloat32, rows),
            None => {
                let expected = "the size that the query has set";
                Err(Error::argument("Aux_CTX_Tensors.size", expected, 0))
            }
        };
        args.stats = output("Aux_CTX_Tensors.tensors[0] (Stats)", tensors.stats)?.cast();
        if attention.max_logit {
            args.max = output("Aux_CTX_Tensors.tensors[1] (Max)", tensors.max)?.cast();
        }
    }
    run(args, &problem, workspace, stream).map(drop)
}

/// Writes the gradients of q, k and v and, if they are there, of the bias and of the softmax's offset. Returns whether it
/// also gives what more is wanted.
pub fn backward(
    attention: &Attention,
    tensors: &Backward,
    workspace: &mut Workspace,
    stream: cudaStream_t,
) -> Result<bool> {
    let saved = [
        "Aux_CTX_Tensors (Bias)",
        "Aux_CTX_Tensors (SoftmaxOffset)",
        "Aux_CTX_Tensors.tensors[1] (rng_state)",
    ];
    let operands = Operands::new(&tensors.inputs, saved);
    let (o, d_o) = (Operand::new("O", tensors.o), Operand::new("dO", tensors.d_o));
    let [dq, dk, dv] = [("dQ", tensors.dq), ("dK", tensors.dk), ("dV", tensors.dv)]
        .map(|(name, tensor)| Operand::new(name, tensor));
    let dbias = Operand::optional("dBias", tensors.dbias);
    let doffset = Operand::optional("dSoftmaxOffset", tensors.doffset);

    let mut problem = operands.problem(attention)?;
    problem.o_dtype = o.required()?.dtype;
    problem.do_dtype = d_o.required()?.dtype;
    problem.dqkv_dtype = dq.required()?.dtype;
    if problem.fp8() {
        problem.bias_dtype = operands.bias.buffer().dtype;
    }
    problem.bias = dbias.last_dims().or_else(|| operands.bias.last_dims()).unwrap_or_default();
    for other in [&dk, &dv] {
        check::dtype(other.name, other.required()?.dtype, &[problem.dqkv_dtype])?;
    }
    o.has_shape(&problem.shape(0, attention.o_format, problem.dim_v))?;
    d_o.has_shape(&problem.shape(0, attention.do_format, problem.dim_v))?;
    let elements: usize = [&dq, &dk, &dv].map(|grad| grad.buffer().shape.numel()).iter().sum();
    if elements == 0 || problem.batch == 0 {
        return workspace.take(kNVTEByte, Shape::new(&[1])).map(|_| false);
    }
    let mut args = problem.args(true)?;
    args.sums = tensors.more.sums.map_or(null_mut(), |sums| sums.rowwise.ptr());
    let amax = tensors.more.amax.filter(|_| !problem.fp8());
    args.grads_amax = amax.map_or(null_mut(), |amax| amax.ptr().cast());
    let layout = &attention.dqkv_layout;
    dq.has_shape(&problem.shape(0, layout.q, problem.dim_qk))?;
    dk.has_shape(&problem.shape(1, layout.kv, problem.dim_qk))?;
    dv.has_shape(&problem.shape(1, layout.kv, problem.dim_v))?;
    if !dbias.buffer().is_set() {
        args.dbias = AttentionTensor::NONE;
    }
    if !doffset.buffer().is_set() {
        args.dsink = null_mut();
    }
    if !workspace.asks() {
        let fp8 = problem.fp8();
        operands.place(&problem, &mut args)?;
        o.place(&mut args.o, problem.dim_v, fp8)?;
        d_o.place(&mut args.d_o, problem.dim_v, fp8)?;
        dq.place(&mut args.dq, problem.dim_qk, fp8)?;
        dk.place(&mut args.dk, problem.dim_qk, fp8)?;
        dv.place(&mut args.dv, problem.dim_v, fp8)?;
        check_interleaved(layout, &problem, [&dq, &dk, &dv])?;
        if fp8 {
            Operand::optional("dP", tensors.dp).scales(&mut args.dp, true)?;
        }
        if !args.dbias.data.is_null() {
            args.dbias.data = bias_address(&dbias, &problem)?;
        }
        if !args.dsink.is_null() {
            args.dsink = doffset.numbers(kNVTEFloat32, problem.heads[0])?.cast();
        }
        if !args.rng_state.is_null() {
            let (name, state) = (operands.rng_state.name, operands.rng_state.buffer());
            args.rng_state = match state.shape.numel() {
                // Some callers of the C API keep only the address of the state, without a shape.
                0 => check::raw_pointer(format_args!("{name}.data"), state.ptr(), 2, kNVTEInt64)?,
                _ => auxiliary(name, state, kNVTEInt64, 2)?,
            }
            .cast();
        }
        let rows = problem.rows(0) * problem.heads[0];
        let stats = "Aux_CTX_Tensors.tensors[0] (Stats)";
        args.stats = auxiliary(stats, &tensors.stats.rowwise, kNVTEFloat32, rows)?.cast();
    }
    run(args, &problem, workspace, stream)
}

/// Lets the backend choose an implementation, takes the memory that it needs, and runs it. Returns whether that one gives
/// what more of gradients is wanted: few do.
///
/// Without addresses (the caller asks for the size) the choice supposes tensors aligned to 16 bytes.
fn run(
    mut args: AttentionArgs,
    problem: &Problem,
    workspace: &mut Workspace,
    stream: cudaStream_t,
) -> Result<bool> {
    let gives_more = |args: &AttentionArgs| !args.sums.is_null() || !args.grads_amax.is_null();
    let plan = match backend::attention_plan(&args, false) {
        Err(error) if error.kind == Kind::Unsupported && gives_more(&args) => {
            (args.sums, args.grads_amax) = (null_mut(), null_mut());
            backend::attention_plan(&args, false)?
        }
        plan => plan?,
    };
    let more = gives_more(&args);
    let bytes = problem.workspace_bytes(plan.workspace_bytes);
    let Some(data) = workspace.take(kNVTEByte, Shape::new(&[bytes.max(1)]))? else {
        return Ok(more);
    };
    if !(data as usize).is_multiple_of(16) {
        let expected = "an address that is a multiple of 16";
        return Err(Error::argument("workspace.data", expected, format!("{data:p}")));
    }
    check_device(&args, stream)?;
    args.implementation = plan.implementation;
    args.workspace = data;
    args.workspace_bytes = bytes - problem.sink_bytes();
    if problem.sink_bytes() > 0 && args.sink.is_null() {
        let zeros = data.wrapping_byte_add(args.workspace_bytes);
        let memset = MemsetArgs { ptr: zeros, value: 0, bytes: problem.sink_bytes() };
        backend::run(&memset, stream)?;
        args.sink = zeros.cast();
    }
    backend::run(&args, stream).map(|()| more)
}

/// Entries of a sequence in a page table, which has rows for all sequences.
fn entries_of_sequence(table: &Operand, batch: usize) -> Result<usize> {
    let shape = table.required()?.shape;
    match *shape.dims() {
        [rows, entries] if rows >= batch => Ok(entries),
        _ => {
            let expected = format!("[{batch} or more, max_pages_per_seq]");
            Err(Error::argument(format_args!("{}.shape", table.name), expected, shape))
        }
    }
}

/// Refuses queries, keys and values, or their gradients, that do not lie in one buffer as the layout says.
fn check_interleaved(layout: &Layout, problem: &Problem, parts: [&Operand; 3]) -> Result<()> {
    let [q, k, v] = parts;
    let (heads, dim) = (problem.heads, problem.dim_qk);
    match layout.group {
        NVTE_3HD => {
            k.lies_behind(q, heads[0] * dim)?;
            v.lies_behind(q, 2 * heads[0] * dim)
        }
        NVTE_H3D => {
            k.lies_behind(q, dim)?;
            v.lies_behind(q, 2 * dim)
        }
        NVTE_HD_2HD => v.lies_behind(k, heads[1] * dim),
        NVTE_HD_H2D => v.lies_behind(k, dim),
        _ => Ok(()),
    }
}

/// Address of an auxiliary tensor, of `least` elements or more. A pack that is left from a call with other
/// options has others at its place.
fn auxiliary(name: &str, buffer: &Buffer, dtype: NVTEDType, least: usize) -> Result<*mut c_void> {
    let data = check::raw_pointer(format_args!("{name}.data"), buffer.ptr(), least, dtype)?;
    check::dtype(name, buffer.dtype, &[dtype])?;
    check_elements(name, buffer, least)?;
    Ok(data)
}

/// The bias as the backend gets it. The dtype of its memory is that of Q unless that is FP8, even where the
/// handle says Float32, as some callers label every bias.
fn bias_address(bias: &Operand, problem: &Problem) -> Result<*mut c_void> {
    let declared = bias.required()?;
    if declared.dtype != kNVTEFloat32 {
        check::dtype(bias.name, declared.dtype, &[problem.bias_dtype])?;
    }
    check_elements(bias.name, declared, problem.bias.iter().product())?;
    let buffer = Buffer::new(declared.ptr(), problem.bias_dtype, &problem.bias);
    bias.vector_address(&buffer, problem.bias[3])
}

/// The offsets of the softmax; null if they are zeros that nobody has written down.
fn offset_address(offset: &Operand, problem: &Problem) -> Result<*const f32> {
    let learnable = problem.attention.softmax == NVTE_LEARNABLE_SOFTMAX;
    if learnable {
        offset.required()?;
    }
    if !offset.buffer().ptr().is_null() {
        return Ok(offset.numbers(kNVTEFloat32, problem.heads[0])?.cast_const().cast());
    }
    if learnable {
        let expected = format!("a pointer to {} floats", problem.heads[0]);
        return Err(Error::argument(format_args!("{}.data", offset.name), expected, "null"));
    }
    Ok(null())
}

/// `NVTE_CHECK=device`: refuses sequences and page numbers that lead out of the tensors.
fn check_device(args: &AttentionArgs, stream: cudaStream_t) -> Result<()> {
    use crate::device_check::{ascending, in_range, read};
    let count = args.batch + 1;
    let mut lengths = Vec::new();
    let sides = [
        ("cu_seqlens_q", "cu_seqlens_q_padded", &args.q_side),
        ("cu_seqlens_kv", "cu_seqlens_kv_padded", &args.kv_side),
    ];
    for (sums, starts, side) in sides {
        let dense = side.starts.is_null();
        let rows = if dense { args.batch * side.max_seqlen } else { side.tokens } as i64;
        // SAFETY: the arrays have been checked to have an element more than there are sequences.
        unsafe {
            if let Some(values) = read(sums, side.cu_seqlens, count, stream)? {
                // If the sums do not say where tokens lie, only their differences count.
                let first = if side.starts == side.cu_seqlens { 0 } else { values[0].max(0) };
                ascending(sums, &values, rows + i64::from(first))?;
                lengths = values.windows(2).map(|pair| (pair[1] - pair[0]) as usize).collect();
            }
            if side.starts != side.cu_seqlens
                && let Some(values) = read(starts, side.starts, count, stream)?
            {
                // Sequences that are absent may begin at -1.
                in_range(starts, &values, -1, rows)?;
            }
        }
    }
    let tables = [
        ("page_table_k", args.page_table_k, args.max_pages_k, args.page_size_k, args.num_pages_k),
        ("page_table_v", args.page_table_v, args.max_pages_v, args.page_size_v, args.num_pages_v),
    ];
    for (name, table, per_sequence, page_size, pages) in tables {
        // SAFETY: the table has been checked to have as many entries.
        let values = unsafe { read(name, table, args.batch * per_sequence, stream) }?;
        let Some(mut values) = values else { continue };
        // Entries past the end of a sequence are not read and may be anything.
        for (row, &length) in values.chunks_mut(per_sequence).zip(&lengths) {
            row.iter_mut().skip(length.div_ceil(page_size)).for_each(|page| *page = 0);
        }
        in_range(name, &values, 0, pages as i64 - 1)?;
    }
    Ok(())
}
