//! Attention over ranks that share each sequence. A sequence is cut into as many chunks as twice the ranks: rank r of P
//! has the chunks r and `2 P - 1 - r`, one after the other, so that under a causal mask all ranks have the same work.
//!
//! - **All-gather**: a rank gets the keys and values that its queries see, and runs each of its two chunks of queries
//!   on its range of them. Gradients of keys and values are summed in Float32: of both chunks first, then of the ranks
//!   in their order by the rank that has them.
//! - **Ring** (`ring.rs`): keys and values of one rank after the other come by, and what the own queries make of them is
//!   joined in Float32. Memory does not grow with the whole sequence. With a window to the left it is an all-gather,
//!   which brings no more than the window.
//! - Both take packed sequences, too (`packed.rs`).
//! - **All-to-all**: ranks change from a part of each sequence with all heads to a part of the heads with whole
//!   sequences, and back. Attention itself is that of one rank.
#![allow(unsafe_code)]

mod packed;
mod ring;

use super::AttentionConfig;
use super::context::Run;
use super::memory::{Block, Lifetime};
use super::ops::{self, plain};
use super::quantizer::QTensor;
use crate::check::{self, Memory};
use crate::error::{Error, Result};
use crate::op::fused_attn::attention::{Attention, Backward, Inputs};
use crate::op::fused_attn::layout::Layout;
use crate::parallel::Communicator;
use crate::parallel::exports::NVTEXGridGroup;
use crate::parallel::message::Message;
use crate::tensor::{Buffer, Shape, Tensor, bytes};
use crate::types::NVTE_Mask_Type::*;
use crate::types::NVTE_QKV_Format::{self, *};
use crate::types::NVTEDType::{self, *};
use crate::types::cudaStream_t;
use std::ops::Range;
use std::sync::Arc;

/// How ranks that share each sequence do their attention.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ContextParallelKind {
    /// All-to-all where that is possible and moves fewer bytes, else all-gather.
    #[default]
    Automatic,
    AllToAll,
    AllGather,
    Ring,
}

/// The ranks that share the sequences of an attention.
pub struct SequenceRanks {
    ranks: Arc<Communicator>,
    rank: usize,
    size: usize,
    /// Not automatic.
    kind: ContextParallelKind,
}

/// Rows of sequences in memory: `outer` matrices one behind the other, of `length` rows each.
#[derive(Clone, Copy)]
struct Rows {
    ptr: *mut u8,
    outer: usize,
    length: usize,
    /// Of a row.
    bytes: usize,
}

impl Rows {
    /// Those of a tensor of heads that is not packed.
    fn of(buffer: &Buffer, format: NVTE_QKV_Format) -> Self {
        let dims = buffer.shape.dims();
        let (outer, length) = if format == NVTE_SBHD { (1, dims[0]) } else { (dims[0], dims[1]) };
        Self::new(buffer, outer, length)
    }

    fn new(buffer: &Buffer, outer: usize, length: usize) -> Self {
        let bytes = buffer.bytes() / (outer * length);
        Self { ptr: buffer.ptr().cast(), outer, length, bytes }
    }

    fn at(&self, outer: usize, row: usize) -> *mut u8 {
        self.ptr.wrapping_byte_add((outer * self.length + row) * self.bytes)
    }

    /// Rows of one of the matrices as a tensor of heads like `whole`, with its scale.
    fn heads(&self, whole: &Tensor, outer: usize, rows: &Range<usize>) -> Tensor {
        let &[first, _, heads, dim] = whole.rowwise.shape.dims() else {
            unreachable!("heads that are not packed have 4 dimensions")
        };
        let dims = match self.outer == 1 && first == self.length {
            true => [rows.len(), whole.rowwise.shape.dims()[1], heads, dim],
            false => [1, rows.len(), heads, dim],
        };
        let part = Buffer::new(self.at(outer, rows.start).cast(), whole.rowwise.dtype, &dims);
        scaled(part, whole)
    }

    /// Rows of one of the matrices as a list of numbers.
    fn flat(&self, dtype: NVTEDType, outer: usize, rows: &Range<usize>) -> Tensor {
        let count = rows.len() * self.bytes * 8 / dtype.bits();
        plain(Buffer::new(self.at(outer, rows.start).cast(), dtype, &[count]))
    }
}

/// Values with the scale of other ones.
fn scaled(values: Buffer, like: &Tensor) -> Tensor {
    let mut tensor = plain(values);
    tensor.rowwise_scale_inv = like.rowwise_scale_inv;
    tensor
}

/// Messages of one exchange; those to the own rank are copies.
struct Exchange<'a> {
    ranks: &'a Communicator,
    list: Vec<Message>,
    /// Sent to the own rank, and received from there.
    own: [Vec<(*mut u8, usize)>; 2],
}

impl<'a> Exchange<'a> {
    fn new(ranks: &'a Communicator) -> Self {
        Self { ranks, list: Vec::new(), own: [Vec::new(), Vec::new()] }
    }

    fn add(&mut self, receive: bool, peer: usize, data: *mut u8, bytes: usize) {
        if bytes == 0 {
            return;
        }
        match peer == self.ranks.rank() {
            true => self.own[usize::from(receive)].push((data, bytes)),
            false => self.list.push(Message { data, bytes, peer, receive }),
        }
    }

    fn finish(self, name: &str, stream: cudaStream_t) -> Result<()> {
        let [sent, received] = self.own;
        for ((from, bytes), (to, _)) in sent.into_iter().zip(received) {
            ops::copy(to.cast(), from.cast_const().cast(), bytes, stream)?;
        }
        // SAFETY: the messages lie within the tensors of the call and within its scratch memory.
        unsafe { self.ranks.exchange_messages(&self.list, name, stream) }
    }

    fn finish_of(self, run: &Run) -> Result<()> {
        self.finish(run.module.as_deref().unwrap_or("attention"), run.stream)
    }
}

/// A chunk of a rank: its first (0) or its second (1).
fn chunk_of((rank, size): (usize, usize), which: usize) -> usize {
    if which == 0 { rank } else { 2 * size - 1 - rank }
}

/// Copies the chunks that a rank has of whole sequences to `part`, or (`merge`) brings those of all ranks together in
/// `whole`. Behind batch and length, which are in the order of `format`, rows may have any dimensions.
pub fn rearrange(
    ranks: &Communicator,
    [whole, part]: [&Tensor; 2],
    format: NVTE_QKV_Format,
    merge: bool,
    stream: cudaStream_t,
) -> Result<()> {
    let (whole, part) = (&whole.rowwise, &part.rowwise);
    let (rank, size) = (ranks.rank(), ranks.size());
    let at = usize::from(format == NVTE_BSHD);
    let mut dims = whole.shape.dims().to_vec();
    let order = if at == 1 { "[batch, length, ...]" } else { "[length, ...]" };
    match dims.get_mut(at) {
        Some(length) if length.is_multiple_of(2 * size) => *length /= size,
        _ => {
            let expected = format!("{order} with a length that is a multiple of {}", 2 * size);
            return Err(Error::argument("whole.shape", expected, whole.shape));
        }
    }
    check::shape("part", &part.shape, &Shape::new(&dims))?;
    check::dtype("part", part.dtype, &[whole.dtype])?;
    check::pointer("whole.data", whole)?;
    check::pointer("part.data", part)?;
    let numel: usize = dims.iter().product();
    if !(dims[at + 1..].iter().product::<usize>() * whole.dtype.bits()).is_multiple_of(8) {
        return Err(Error::argument("whole.shape", "rows of whole bytes", whole.shape));
    }
    check::apart(&[Memory::of(&"whole.data", whole)], &[Memory::of(&"part.data", part)])?;
    if numel == 0 {
        return Ok(());
    }
    let outer = if at == 1 { dims[0] } else { 1 };
    let (part, whole) =
        (Rows::new(part, outer, dims[at]), Rows::new(whole, outer, dims[at] * size));
    let (rows, mut exchange) = (dims[at] / 2, Exchange::new(ranks));
    for peer in (0..size).filter(|&peer| merge || peer == rank) {
        for which in 0..2 {
            for outer in 0..outer {
                let own = part.at(outer, which * rows);
                let place = whole.at(outer, chunk_of((peer, size), which) * rows);
                exchange.add(!merge, peer, own, rows * part.bytes);
                exchange.add(merge, peer, place, rows * part.bytes);
            }
        }
    }
    let name = if merge { "context_parallel_merge" } else { "context_parallel_split" };
    exchange.finish(name, stream)
}

/// The rows that both ranges have.
fn overlap(a: &Range<usize>, b: &Range<usize>) -> Range<usize> {
    let start = a.start.max(b.start);
    start..a.end.min(b.end).max(start)
}

/// The smallest range with both; an empty one does not count.
fn hull(a: Range<usize>, b: Range<usize>) -> Range<usize> {
    match (a.is_empty(), b.is_empty()) {
        (true, _) => b,
        (_, true) => a,
        _ => a.start.min(b.start)..a.end.max(b.end),
    }
}

/// A tensor in scratch memory that holds the same heads over whole sequences, or some rows of them.
struct Whole {
    rows: Rows,
    tensor: Tensor,
    /// The first row of those of whole sequences.
    first: usize,
    _block: Block,
}

/// Rows of whole sequences that a rank needs of another one.
struct Needed {
    rows: Range<usize>,
    /// The number of the range that they belong to.
    span: usize,
    /// Where they begin among the rows of the rank that has them.
    at: usize,
}

/// Which of the tensors has these rows of whole sequences, and where.
fn holder<'a>(all: &'a [Whole], rows: &Range<usize>) -> (&'a Whole, Range<usize>) {
    let of = all.iter().rev().find(|whole| whole.first <= rows.start).unwrap_or(&all[0]);
    (of, rows.start - of.first..rows.end - of.first)
}

impl SequenceRanks {
    /// The ranks of an attention; none if it is on one rank alone.
    ///
    /// `name` is that of the config.
    pub fn new(run: &Run, name: &str, config: &AttentionConfig) -> Result<Option<Self>> {
        let group = run.context.group(NVTEXGridGroup::NVTEX_GRID_CP);
        let (wanted, kind) = config.context_parallel;
        let all = group.map_or(1, |ranks| ranks.size());
        if wanted > 1 && wanted != all {
            let expected = match all {
                1 => "1 (nvtex_context_set_grid gives ranks that share each sequence)".into(),
                _ => format!("0, 1 or {all}, the ranks that share each sequence"),
            };
            let name = format!("{name}.parallel.context_parallel_size");
            return Err(Error::argument(name, expected, wanted));
        }
        let Some(ranks) = group.filter(|_| wanted != 1) else { return Ok(None) };
        let ranks = Arc::clone(ranks);
        let (rank, size) = (ranks.rank(), ranks.size());
        let refuse = |field: &str, expected: &str, got: &dyn std::fmt::Display| {
            let what = format!("with {size} ranks that share each sequence");
            let name = format!("{name}.{field}");
            Err(Error::unsupported(
                Error::argument(name, format!("{expected}, {what}"), got).message,
            ))
        };
        let AttentionConfig { heads, groups, dim_qk, dim_v, .. } = *config;
        let divides = heads.is_multiple_of(size) && groups.is_multiple_of(size);
        let packed = config.format == NVTE_THD;
        let windowed = config.window[0] >= 0;
        let gathers = match config.mask {
            NVTE_NO_MASK | NVTE_CAUSAL_MASK | NVTE_CAUSAL_BOTTOM_RIGHT_MASK => !packed,
            NVTE_PADDING_MASK => packed && config.window == [-1, -1],
            _ => packed,
        };
        // Elements that a token brings, of queries and the output, and of keys and values.
        let (q, kv) = (heads * (dim_qk + dim_v), groups * (dim_qk + dim_v));
        let by_heads = match kind {
            ContextParallelKind::AllToAll => true,
            ContextParallelKind::AllGather | ContextParallelKind::Ring => false,
            ContextParallelKind::Automatic => {
                let fewer = packed || !windowed && q + kv <= size * kv;
                !gathers || divides && (fewer || config.dropout > 0.0)
            }
        };
        if by_heads && !divides {
            let expected = format!(
                "heads of queries and of keys that are multiples of {size} (which all-to-all divides; all-gather takes any \
                 number of them, but masks with padding only of packed tokens)"
            );
            return refuse("num_gqa_groups", &expected, &format!("{heads} and {groups}"));
        }
        if kind == ContextParallelKind::Ring
            && let Err((field, expected, got)) = ring::check(config)
        {
            return refuse(field, expected, &got);
        }
        if !by_heads && !gathers {
            let expected = "a mask without padding, or packed tokens with a causal mask, or without a mask and a window \
                            (all-gather; an all-to-all takes all of them)";
            return refuse("attn_mask_type", expected, &format!("{:?}", config.mask));
        }
        if !by_heads && config.dropout > 0.0 {
            let expected = "0 (only with an all-to-all, which drops the same elements as one rank)";
            return refuse("attention_dropout", expected, &config.dropout);
        }
        let kind = match (by_heads, kind) {
            (true, _) => ContextParallelKind::AllToAll,
            // What a window leaves of keys and values comes at once.
            (false, ContextParallelKind::Ring) if !windowed => ContextParallelKind::Ring,
            (false, _) => ContextParallelKind::AllGather,
        };
        Ok(Some(Self { ranks, rank, size, kind }))
    }

    pub fn size(&self) -> usize {
        self.size
    }

    pub fn communicator(&self) -> Arc<Communicator> {
        Arc::clone(&self.ranks)
    }

    /// Size and rank, as rotary embeddings take them.
    pub fn place(&self) -> [i32; 2] {
        [self.size as i32, self.rank as i32]
    }

    /// A chunk of a rank: its first (0) or its second (1).
    fn chunk(&self, rank: usize, which: usize) -> usize {
        chunk_of((rank, self.size), which)
    }

    /// Writes `o`, and returns the statistics of its rows, which only [`Self::backward`] reads.
    pub fn forward(
        &self,
        run: &Run,
        op: &Attention,
        inputs: Inputs,
        o: &Tensor,
    ) -> Result<QTensor> {
        let heads = inputs.q.rowwise.shape.dims();
        let rows = heads[..heads.len() - 1].iter().product();
        let lifetime = if run.training { Lifetime::Tape } else { Lifetime::Scratch };
        let stats = QTensor::plain(run, (1, rows), kNVTEFloat32, lifetime)?;
        match self.kind {
            ContextParallelKind::AllToAll => {
                self.forward_by_heads(run, op, inputs, o, &stats.tensor)?
            }
            kind if op.layout.q == NVTE_THD => {
                self.forward_packed(run, op, inputs, (o, &stats.tensor), kind)?
            }
            ContextParallelKind::Ring => self.forward_ring(run, op, inputs, o, &stats.tensor)?,
            _ => self.forward_gathered(run, op, inputs, o, &stats.tensor)?,
        }
        Ok(stats)
    }

    /// Writes the gradients of q, k, v and of the softmax's offset: of the latter a part, and the sum over the ranks is
    /// the gradient.
    pub fn backward(&self, run: &Run, op: &Attention, tensors: &Backward) -> Result<()> {
        match self.kind {
            ContextParallelKind::AllToAll => self.backward_by_heads(run, op, tensors),
            kind if op.layout.q == NVTE_THD => self.backward_packed(run, op, tensors, kind),
            ContextParallelKind::Ring => self.backward_ring(run, op, tensors),
            _ => self.backward_gathered(run, op, tensors),
        }
    }

    /// Checks the rows of queries and keys that a rank has, and returns those of a chunk.
    fn chunk_rows(&self, op: &Attention, q: &Rows, kv: &Rows) -> Result<[usize; 2]> {
        for (index, rows) in [q, kv].into_iter().enumerate() {
            if !rows.length.is_multiple_of(2) {
                let expected = format!(
                    "an even length: two chunks of each sequence, which {} ranks share",
                    self.size
                );
                return Err(Error::argument(
                    format!("inputs[{index}].shape"),
                    expected,
                    rows.length,
                ));
            }
        }
        let whole = self.kind == ContextParallelKind::AllToAll;
        if q.length != kv.length && !whole && op.effective_window()?.0 != [-1, -1] {
            let expected = format!("the length of inputs[0] ({}), because of the mask", q.length);
            return Err(Error::argument("inputs[1].shape", expected, kv.length));
        }
        Ok([q.length / 2, kv.length / 2])
    }

    /// The attention of a chunk of queries, and the rows of whole keys and values that it reads.
    fn part(
        &self,
        op: &Attention,
        (rank, which): (usize, usize),
        [rows, kv_rows]: [usize; 2],
    ) -> Result<(Attention, Range<usize>)> {
        let ([left, right], _) = op.effective_window()?;
        let all = 2 * self.size * kv_rows;
        let end = (self.chunk(rank, which) + 1) * rows;
        let distance = |window: i64| usize::try_from(window).unwrap_or(usize::MAX);
        let last = if right < 0 { all } else { end.saturating_add(distance(right)).min(all) };
        let first =
            if left < 0 { 0 } else { end.saturating_sub(rows.saturating_add(distance(left))) };
        // Rows are counted from the bottom right of the part.
        let window = [
            if left < 0 { -1 } else { left.saturating_add((last - end) as i64) },
            if right < 0 { -1 } else { (end as i64).saturating_add(right) - last as i64 },
        ];
        let mask = if window[1] == 0 { NVTE_CAUSAL_BOTTOM_RIGHT_MASK } else { NVTE_NO_MASK };
        let keys = first..last;
        let max_seqlen = [rows, keys.len()];
        Ok((Attention { mask, window, bottom_right: true, max_seqlen, ..*op }, keys))
    }

    /// Both parts of the own work, and for each rank the rows that it reads: one range, or two that lie apart, if a
    /// window leaves out what is between those of its chunks.
    fn parts(&self, op: &Attention, rows: [usize; 2]) -> Result<(Parts, Vec<Vec<Range<usize>>>)> {
        let both = |rank| -> Result<_> {
            Ok([self.part(op, (rank, 0), rows)?, self.part(op, (rank, 1), rows)?])
        };
        let mut needs = Vec::with_capacity(self.size);
        for rank in 0..self.size {
            let [a, b] = both(rank)?.map(|(_, keys)| keys);
            needs.push(if a.end < b.start { vec![a, b] } else { vec![hull(a, b)] });
        }
        Ok((both(self.rank)?, needs))
    }

    /// A tensor in scratch memory for some rows of whole sequences, of which this rank has `local`.
    fn some(
        &self,
        run: &Run,
        like: &Buffer,
        local: &Rows,
        dtype: NVTEDType,
        rows: &Range<usize>,
    ) -> Result<Whole> {
        let mut dims = like.shape.dims().to_vec();
        let at = usize::from(local.outer > 1 || dims[0] != local.length);
        dims[at] = rows.len();
        let block = run.scratch(bytes(dims.iter().product(), dtype))?;
        let tensor = plain(block.buffer(0, dtype, &dims));
        let first = rows.start;
        let rows = Rows::new(&tensor.rowwise, local.outer, rows.len());
        Ok(Whole { rows, tensor, first, _block: block })
    }

    /// Brings the rows of keys and values that the own queries see.
    fn gather(
        &self,
        run: &Run,
        parts: [&Tensor; 2],
        needs: &[Vec<Range<usize>>],
        format: NVTE_QKV_Format,
    ) -> Result<[Vec<Whole>; 2]> {
        let locals = parts.map(|part| Rows::of(&part.rowwise, format));
        let [k, v] = [0, 1].map(|i| {
            let like = &parts[i].rowwise;
            let some = |rows: &Range<usize>| {
                let mut some = self.some(run, like, &locals[i], like.dtype, rows)?;
                some.tensor = scaled(some.tensor.rowwise, parts[i]);
                Ok(some)
            };
            needs[self.rank].iter().map(some).collect::<Result<Vec<Whole>>>()
        });
        let wholes = [k?, v?];
        let mut exchange = Exchange::new(&self.ranks);
        for (local, wholes) in locals.iter().zip(&wholes) {
            for peer in 0..self.size {
                for Needed { rows, at, .. } in self.needed(&needs[peer], self.rank, local) {
                    for outer in 0..local.outer {
                        exchange.add(false, peer, local.at(outer, at), rows.len() * local.bytes);
                    }
                }
                for Needed { rows, span, .. } in self.needed(&needs[self.rank], peer, local) {
                    let whole = &wholes[span];
                    let to = rows.start - whole.first;
                    for outer in 0..local.outer {
                        let bytes = rows.len() * local.bytes;
                        exchange.add(true, peer, whole.rows.at(outer, to), bytes);
                    }
                }
            }
        }
        exchange.finish_of(run)?;
        Ok(wholes)
    }

    /// What a rank that reads some ranges needs of the rows of `owner`.
    fn needed(&self, spans: &[Range<usize>], owner: usize, local: &Rows) -> Vec<Needed> {
        let length = local.length / 2;
        let of = |(span, which): (usize, usize)| {
            let first = self.chunk(owner, which) * length;
            let rows = overlap(&spans[span], &(first..first + length));
            let at = which * length + rows.start.saturating_sub(first);
            (!rows.is_empty()).then_some(Needed { rows, span, at })
        };
        let all = (0..spans.len()).flat_map(|span| (0..2).map(move |which| (span, which)));
        all.filter_map(of).collect()
    }

    fn forward_gathered(
        &self,
        run: &Run,
        op: &Attention,
        inputs: Inputs,
        o: &Tensor,
        stats: &Tensor,
    ) -> Result<()> {
        let format = op.layout.q;
        let [q, k] = [inputs.q, inputs.k].map(|t| Rows::of(&t.rowwise, format));
        let rows = self.chunk_rows(op, &q, &k)?;
        let (parts, needs) = self.parts(op, rows)?;
        let wholes = self.gather(run, [inputs.k, inputs.v], &needs, format)?;
        let out = Rows::of(&o.rowwise, format);
        for (outer, which, (part, keys)) in each(q.outer, &parts) {
            let own = which * rows[0]..(which + 1) * rows[0];
            let [q, o] = [(&q, inputs.q), (&out, o)].map(|(r, t)| r.heads(t, outer, &own));
            let [k, v] = wholes.each_ref().map(|wholes| {
                let (whole, rows) = holder(wholes, keys);
                whole.rows.heads(&whole.tensor, outer, &rows)
            });
            let stats = piece(stats, part.stats_shape(&q)?.dims(), 2 * outer + which);
            let inputs = Inputs { q: &q, k: &k, v: &v, cu_seqlens: [None; 4], ..inputs };
            ops::attention_forward_to(run, part, inputs, None, &o, &stats)?;
        }
        Ok(())
    }

    fn backward_gathered(&self, run: &Run, op: &Attention, tensors: &Backward) -> Result<()> {
        let (format, inputs) = (op.layout.q, tensors.inputs);
        let [q, k] = [inputs.q, inputs.k].map(|t| Rows::of(&t.rowwise, format));
        let rows = self.chunk_rows(op, &q, &k)?;
        let (parts, needs) = self.parts(op, rows)?;
        let wholes = self.gather(run, [inputs.k, inputs.v], &needs, format)?;
        let dtype = inputs.k.rowwise.dtype;
        // Gradients of all keys and values, from the own queries.
        let [dk, dv] = [tensors.dk, tensors.dv].map(|grad| -> Result<_> {
            let local = Rows::of(&grad.rowwise, format);
            let zeros = |rows: &Range<usize>| {
                let sums = self.some(run, &grad.rowwise, &local, kNVTEFloat32, rows)?;
                ops::zero(&sums.tensor.rowwise, run.stream)?;
                Ok(sums)
            };
            let sums = needs[self.rank].iter().map(zeros).collect::<Result<Vec<Whole>>>()?;
            Ok((local, sums))
        });
        let grads: [(Rows, Vec<Whole>); 2] = [dk?, dv?];
        let offsets = OffsetGradient::new(run, tensors.doffset)?;
        let views = [
            (&q, inputs.q),
            (&Rows::of(&tensors.o.rowwise, format), tensors.o),
            (&Rows::of(&tensors.d_o.rowwise, format), tensors.d_o),
            (&Rows::of(&tensors.dq.rowwise, format), tensors.dq),
        ];
        for (outer, which, (part, keys)) in each(q.outer, &parts) {
            let own = which * rows[0]..(which + 1) * rows[0];
            let [q, o, d_o, dq] = views.map(|(rows, t)| rows.heads(t, outer, &own));
            let [k, v] = wholes.each_ref().map(|wholes| {
                let (whole, rows) = holder(wholes, keys);
                whole.rows.heads(&whole.tensor, outer, &rows)
            });
            let stats = piece(tensors.stats, part.stats_shape(&q)?.dims(), 2 * outer + which);
            let scratch = |like: &Tensor| {
                let shape = like.rowwise.shape;
                let block = run.scratch(bytes(shape.numel(), dtype))?;
                Ok::<_, Error>((plain(block.buffer(0, dtype, shape.dims())), block))
            };
            let (dk, dv) = (scratch(&k)?, scratch(&v)?);
            let own_tensors = Backward {
                inputs: Inputs { q: &q, k: &k, v: &v, cu_seqlens: [None; 4], ..inputs },
                o: &o,
                d_o: &d_o,
                stats: &stats,
                dq: &dq,
                dk: &dk.0,
                dv: &dv.0,
                doffset: offsets.part(),
                ..*tensors
            };
            ops::attention_backward(run, part, &own_tensors)?;
            offsets.add(run)?;
            for ((grad, _), (_, sums)) in [&dk, &dv].into_iter().zip(&grads) {
                let (whole, rows) = holder(sums, keys);
                let sum = whole.rows.flat(kNVTEFloat32, outer, &rows);
                let grad = Buffer::new(grad.rowwise.ptr(), dtype, sum.rowwise.shape.dims());
                ops::add(run, &plain(grad), &sum, true)?;
            }
        }
        self.scatter(run, [tensors.dk, tensors.dv], &grads, &needs)
    }

    /// Sums the gradients of keys and values over the ranks, in their order.
    fn scatter(
        &self,
        run: &Run,
        outputs: [&Tensor; 2],
        grads: &[(Rows, Vec<Whole>); 2],
        needs: &[Vec<Range<usize>>],
    ) -> Result<()> {
        let mut exchange = Exchange::new(&self.ranks);
        let mut received = Vec::new();
        for (local, sums) in grads {
            // Rows in Float32, whatever the own ones are.
            let row = sums[0].rows.bytes;
            let coming: Vec<_> = (0..self.size)
                .flat_map(|peer| self.needed(&needs[peer], self.rank, local))
                .collect();
            let all: usize = coming.iter().map(|needed| needed.rows.len()).sum();
            let block = run.scratch(all * local.outer * row)?;
            let mut at = 0;
            let mut slots = Vec::with_capacity(coming.len());
            for needed in coming {
                let length = needed.rows.len();
                let ptr = block.ptr().wrapping_byte_add(at * row).cast();
                at += length * local.outer;
                slots.push((Rows { ptr, outer: local.outer, length, bytes: row }, needed.at));
            }
            let mut slot = slots.iter();
            for peer in 0..self.size {
                for Needed { rows, span, .. } in self.needed(&needs[self.rank], peer, local) {
                    let whole = &sums[span];
                    let from = rows.start - whole.first;
                    for outer in 0..local.outer {
                        exchange.add(false, peer, whole.rows.at(outer, from), rows.len() * row);
                    }
                }
                let count = self.needed(&needs[peer], self.rank, local).len();
                for (slot, _) in slot.by_ref().take(count) {
                    for outer in 0..local.outer {
                        exchange.add(true, peer, slot.at(outer, 0), slot.length * row);
                    }
                }
            }
            received.push((block, slots));
        }
        exchange.finish_of(run)?;
        for ((output, (local, _)), (_, slots)) in outputs.into_iter().zip(grads).zip(&received) {
            let count = output.rowwise.shape.numel();
            let block = run.scratch(bytes(count, kNVTEFloat32))?;
            let total = block.buffer(0, kNVTEFloat32, &[count]);
            ops::zero(&total, run.stream)?;
            let sums = Rows::new(&total, local.outer, local.length);
            for (slot, at) in slots {
                for outer in 0..local.outer {
                    let part = slot.flat(kNVTEFloat32, outer, &(0..slot.length));
                    let sum = sums.flat(kNVTEFloat32, outer, &(*at..at + slot.length));
                    ops::add(run, &part, &sum, true)?;
                }
            }
            ops::add(run, &plain(total), output, false)?;
        }
        Ok(())
    }

    /// Heads of a rank over whole sequences, from all heads of a part of them.
    fn to_heads(
        &self,
        run: &Run,
        parts: &[&Tensor],
        op: &Attention,
        tokens: Option<&Tensor>,
    ) -> Result<Vec<(Tensor, Block)>> {
        let mut exchange = Exchange::new(&self.ranks);
        let mut wholes = Vec::new();
        for like in parts {
            let part = &like.rowwise;
            let dims = part.shape.dims();
            let (lead, &[heads, dim]) = dims.split_at(dims.len() - 2) else {
                unreachable!("heads have two dimensions behind those of rows")
            };
            let (rows, width) = (lead.iter().product::<usize>(), heads / self.size * dim);
            let block = run.scratch(part.bytes())?;
            let from = plain(Buffer::new(part.ptr(), part.dtype, &[rows, self.size, width]));
            let to = plain(block.buffer(0, part.dtype, &[self.size, rows, width]));
            ops::swap_first_dims(run, &from, &to)?;
            let mut dims = dims.to_vec();
            dims[usize::from(op.layout.q == NVTE_BSHD)] *= self.size;
            let at = dims.len() - 2;
            dims[at] = heads / self.size;
            let whole = run.scratch(part.bytes())?;
            let buffer = whole.buffer(0, part.dtype, &dims);
            self.move_parts(&mut exchange, (&to.rowwise, &buffer), op.layout.q, false);
            wholes.push((scaled(buffer, like), whole, block));
        }
        exchange.finish_of(run)?;
        let in_order = |(whole, memory, _sent): (Tensor, Block, Block)| {
            let Some(sums) = tokens else { return Ok((whole, memory)) };
            let ordered = run.scratch(whole.rowwise.bytes())?;
            let shape = whole.rowwise.shape;
            let tensor = scaled(ordered.buffer(0, whole.rowwise.dtype, shape.dims()), &whole);
            ops::zero(&tensor.rowwise, run.stream)?;
            ops::reorder_tokens(run, &whole, sums, &tensor, (self.size, false))?;
            Ok((tensor, ordered))
        };
        wholes.into_iter().map(in_order).collect()
    }

    /// The inverse of [`Self::to_heads`].
    fn of_heads(
        &self,
        run: &Run,
        wholes: &[&Tensor],
        parts: &[&Tensor],
        op: &Attention,
        tokens: Option<&Tensor>,
    ) -> Result<()> {
        let mut exchange = Exchange::new(&self.ranks);
        let mut received = Vec::new();
        for (whole, part) in wholes.iter().zip(parts) {
            let (part, whole) = (&part.rowwise, &whole.rowwise);
            let dims = part.shape.dims();
            let (lead, &[heads, dim]) = dims.split_at(dims.len() - 2) else {
                unreachable!("heads have two dimensions behind those of rows")
            };
            let (rows, width) = (lead.iter().product::<usize>(), heads / self.size * dim);
            let mut sent = *whole;
            let mut ordered = None;
            if let Some(sums) = tokens {
                let block = run.scratch(whole.bytes())?;
                sent = block.buffer(0, whole.dtype, whole.shape.dims());
                ops::zero(&sent, run.stream)?;
                let from = plain(*whole);
                ops::reorder_tokens(run, &from, sums, &plain(sent), (self.size, true))?;
                ordered = Some(block);
            }
            let block = run.scratch(part.bytes())?;
            let blocks = block.buffer(0, part.dtype, &[self.size, rows, width]);
            self.move_parts(&mut exchange, (&blocks, &sent), op.layout.q, true);
            received.push((blocks, block, ordered));
        }
        exchange.finish_of(run)?;
        for ((blocks, _, _), part) in received.iter().zip(parts) {
            let part = &part.rowwise;
            let &[size, rows, width] = blocks.shape.dims() else { unreachable!("3 dimensions") };
            let to = plain(Buffer::new(part.ptr(), part.dtype, &[rows, size, width]));
            ops::swap_first_dims(run, &plain(*blocks), &to)?;
        }
        Ok(())
    }

    /// The messages between `blocks`, which has for each rank the own rows of its heads, and `whole`, which has the own
    /// heads of all rows; from the latter to the former if `back`.
    fn move_parts(
        &self,
        exchange: &mut Exchange,
        (blocks, whole): (&Buffer, &Buffer),
        format: NVTE_QKV_Format,
        back: bool,
    ) {
        let block_bytes = blocks.bytes() / self.size;
        let block = |peer: usize| blocks.ptr().wrapping_byte_add(peer * block_bytes).cast::<u8>();
        if format == NVTE_THD {
            for peer in 0..self.size {
                let whole = whole.ptr().wrapping_byte_add(peer * block_bytes).cast::<u8>();
                exchange.add(back, peer, block(peer), block_bytes);
                exchange.add(!back, peer, whole, block_bytes);
            }
            return;
        }
        let whole = Rows::of(whole, format);
        let length = whole.length / self.size;
        let (rows, local) = (length / 2, |peer| Rows { ptr: block(peer), length, ..whole });
        for peer in 0..self.size {
            for which in 0..2 {
                for outer in 0..whole.outer {
                    let bytes = rows * whole.bytes;
                    let at = self.chunk(peer, which) * rows;
                    exchange.add(back, peer, local(peer).at(outer, which * rows), bytes);
                    exchange.add(!back, peer, whole.at(outer, at), bytes);
                }
            }
        }
    }

    /// The attention of the own heads over whole sequences, where packed sequences begin, and the own heads' offsets.
    fn by_heads<'a>(
        &self,
        op: &Attention,
        inputs: &Inputs<'a>,
        format: NVTE_QKV_Format,
    ) -> Result<(Attention, Option<&'a Tensor>, Option<Tensor>)> {
        let [sums, _, padded, _] = inputs.cu_seqlens;
        let mut max_seqlen = op.max_seqlen;
        if format != NVTE_THD {
            let [q, k] = [inputs.q, inputs.k].map(|t| Rows::of(&t.rowwise, format));
            self.chunk_rows(op, &q, &k)?;
            max_seqlen = max_seqlen.map(|length| length * self.size);
        }
        let tokens = padded.or(sums).filter(|_| format == NVTE_THD);
        let offset = inputs.softmax_offset.map(|offset| self.own_heads(offset));
        let heads = inputs.q.rowwise.shape.dims();
        let heads = heads[heads.len() - 2];
        // Random numbers are those of all heads.
        let (own, [before, others]) = (heads / self.size, op.other_heads);
        let other_heads = [before + self.rank * own, others + heads - own];
        let layout = Layout::separate(format);
        Ok((Attention { layout, max_seqlen, other_heads, ..*op }, tokens, offset))
    }

    /// The own part of a list with a number for each head.
    fn own_heads(&self, of_all: &Tensor) -> Tensor {
        let all = &of_all.rowwise;
        let count = all.shape.numel() / self.size;
        let at = bytes(self.rank * count, all.dtype);
        plain(Buffer::new(all.ptr().wrapping_byte_add(at), all.dtype, &[count]))
    }

    fn forward_by_heads(
        &self,
        run: &Run,
        op: &Attention,
        inputs: Inputs,
        o: &Tensor,
        stats: &Tensor,
    ) -> Result<()> {
        let (own, tokens, offset) = self.by_heads(op, &inputs, op.layout.q)?;
        let parts = self.to_heads(run, &[inputs.q, inputs.k, inputs.v], op, tokens)?;
        let [(q, _), (k, _), (v, _)] = &parts[..] else { unreachable!("three tensors") };
        let mut dims = q.rowwise.shape.dims().to_vec();
        let last = dims.len() - 1;
        dims[last] = v.rowwise.shape.dims()[last];
        let memory = run.scratch(o.rowwise.bytes())?;
        let whole = plain(memory.buffer(0, o.rowwise.dtype, &dims));
        if tokens.is_some() {
            ops::zero(&whole.rowwise, run.stream)?;
        }
        let stats = piece(stats, own.stats_shape(q)?.dims(), 0);
        let inputs = Inputs { q, k, v, softmax_offset: offset.as_ref(), ..inputs };
        ops::attention_forward_to(run, &own, inputs, None, &whole, &stats)?;
        self.of_heads(run, &[&whole], &[o], op, tokens)
    }

    fn backward_by_heads(&self, run: &Run, op: &Attention, tensors: &Backward) -> Result<()> {
        let inputs = tensors.inputs;
        let (own, tokens, offset) = self.by_heads(op, &inputs, op.layout.q)?;
        let sent = [inputs.q, inputs.k, inputs.v, tensors.o, tensors.d_o];
        let parts = self.to_heads(run, &sent, op, tokens)?;
        let [(q, _), (k, _), (v, _), (o, _), (d_o, _)] = &parts[..] else {
            unreachable!("five tensors")
        };
        let grad = |like: &Tensor| -> Result<(Tensor, Block)> {
            let like = &like.rowwise;
            let block = run.scratch(like.bytes())?;
            let grad = plain(block.buffer(0, like.dtype, like.shape.dims()));
            if tokens.is_some() {
                ops::zero(&grad.rowwise, run.stream)?;
            }
            Ok((grad, block))
        };
        let (dq, dk, dv) = (grad(q)?, grad(k)?, grad(v)?);
        let doffset = match tensors.doffset {
            Some(doffset) => {
                ops::zero(&doffset.rowwise, run.stream)?;
                Some(self.own_heads(doffset))
            }
            None => None,
        };
        let stats = piece(tensors.stats, own.stats_shape(q)?.dims(), 0);
        let own_tensors = Backward {
            inputs: Inputs { q, k, v, softmax_offset: offset.as_ref(), ..inputs },
            o,
            d_o,
            stats: &stats,
            dq: &dq.0,
            dk: &dk.0,
            dv: &dv.0,
            doffset: doffset.as_ref(),
            ..*tensors
        };
        ops::attention_backward(run, &own, &own_tensors)?;
        let outputs = [tensors.dq, tensors.dk, tensors.dv];
        self.of_heads(run, &[&dq.0, &dk.0, &dv.0], &outputs, op, tokens)
    }
}

/// The work on both chunks of a rank.
type Parts = [(Attention, Range<usize>); 2];

/// Every part of each matrix.
fn each(
    outer: usize,
    parts: &Parts,
) -> impl Iterator<Item = (usize, usize, &(Attention, Range<usize>))> {
    (0..outer).flat_map(move |outer| {
        parts.iter().enumerate().map(move |(which, part)| (outer, which, part))
    })
}

/// The `index`-th of the tensors of a shape that lie one behind the other.
fn piece(all: &Tensor, dims: &[usize], index: usize) -> Tensor {
    let dtype = all.rowwise.dtype;
    let at = bytes(index * dims.iter().product::<usize>(), dtype);
    plain(Buffer::new(all.rowwise.ptr().wrapping_byte_add(at), dtype, dims))
}

/// The gradient of the softmax's offset as a sum of those of several calls.
struct OffsetGradient<'a> {
    sum: Option<&'a Tensor>,
    part: Option<(Tensor, Block)>,
}

impl<'a> OffsetGradient<'a> {
    fn new(run: &Run, sum: Option<&'a Tensor>) -> Result<Self> {
        let mut part = None;
        if let Some(sum) = sum {
            ops::zero(&sum.rowwise, run.stream)?;
            let block = run.scratch(sum.rowwise.bytes())?;
            part = Some((plain(block.buffer(0, kNVTEFloat32, sum.rowwise.shape.dims())), block));
        }
        Ok(Self { sum, part })
    }

    fn part(&self) -> Option<&Tensor> {
        self.part.as_ref().map(|(part, _)| part)
    }

    fn add(&self, run: &Run) -> Result<()> {
        match (self.part(), self.sum) {
            (Some(part), Some(sum)) => ops::add(run, part, sum, true),
            _ => Ok(()),
        }
    }
}
