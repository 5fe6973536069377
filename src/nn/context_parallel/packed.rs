//! Packed sequences, which ranks share by an all-gather or in a ring. How long sequences are is only known to the device,
//! which therefore computes how many tokens chunks have and where they begin. Each call has all tokens of a rank, of which
//! it reads and writes those of some chunks.

use super::ring::in_step;
use super::*;
use crate::nn::ops::Chunks;

/// Lengths of parts of all sequences, and where they begin.
struct Lengths {
    sums: Tensor,
    firsts: Tensor,
    _block: Block,
}

/// A byte that makes Float32 numbers of which the exponential is 0.
const NEVER: u8 = 0xFE;

impl SequenceRanks {
    /// The chunks of a rank.
    fn chunks(&self, rank: usize) -> [[usize; 2]; 2] {
        [0, 1].map(|which| {
            let chunk = self.chunk(rank, which);
            [chunk, chunk + 1]
        })
    }

    fn lengths(
        &self,
        run: &Run,
        whole: [&Tensor; 2],
        (ranges, divisor, skipped): ([[usize; 2]; 2], usize, usize),
    ) -> Result<Lengths> {
        let count = whole[0].rowwise.shape.numel();
        let block = run.scratch(8 * count)?;
        let [sums, firsts] = [0, 1].map(|i| block.buffer(4 * i * count, kNVTEInt32, &[count]));
        let chunks = Chunks { of: 2 * self.size, ranges, divisor, skipped };
        ops::chunk_lengths(run, whole, [&sums, &firsts], &chunks)?;
        Ok(Lengths { sums: plain(sums), firsts: plain(firsts), _block: block })
    }

    /// Lengths of whole sequences of queries and of keys, and where they begin.
    fn packed<'a>(&self, causal: bool, inputs: &Inputs<'a>) -> Result<[[&'a Tensor; 2]; 2]> {
        let [q, kv, q_padded, kv_padded] = inputs.cu_seqlens;
        let (Some(q), Some(kv)) = (q, kv) else {
            let name = "step.cu_seqlens_q";
            return Err(Error::argument(name, "Int32 [b + 1] (the mask has padding)", "null"));
        };
        let [q, kv] = [[q, q_padded.unwrap_or(q)], [kv, kv_padded.unwrap_or(kv)]];
        // Under a causal mask a token of a sequence sees those before it.
        Ok([q, if causal { q } else { kv }])
    }

    /// A matrix like another one, of bytes that are alike.
    fn filled(
        &self,
        run: &Run,
        like: &Buffer,
        dtype: NVTEDType,
        byte: u8,
    ) -> Result<(Tensor, Block)> {
        let block = run.scratch(bytes(like.shape.numel(), dtype))?;
        let made = block.buffer(0, dtype, like.shape.dims());
        if made.bytes() > 0 {
            crate::op::transformer_engine::memset(made.ptr(), byte, made.bytes(), run.stream)?;
        }
        Ok((plain(made), block))
    }

    /// Keys or values of whole sequences, in their order.
    fn gather_packed(&self, run: &Run, part: &Tensor, starts: &Tensor) -> Result<(Tensor, Block)> {
        let own = &part.rowwise;
        let mut dims = own.shape.dims().to_vec();
        dims[0] *= self.size;
        let count = dims.iter().product();
        let block = run.scratch(bytes(count, own.dtype))?;
        let by_rank = block.buffer(0, own.dtype, &dims);
        let [from, to] = [own, &by_rank].map(|x| Buffer::new(x.ptr(), kNVTEByte, &[x.bytes()]));
        self.ranks.gather(&from, &to, run.module.as_deref().unwrap_or("attention"), run.stream)?;
        let (ordered, memory) = self.filled(run, &by_rank, own.dtype, 0)?;
        ops::reorder_tokens(run, &plain(by_rank), starts, &ordered, (self.size, false))?;
        Ok((scaled(ordered.rowwise, part), memory))
    }

    /// The gradients of the own tokens, from those of all tokens in the order of the sequences.
    fn scatter_packed(
        &self,
        run: &Run,
        sums: &Tensor,
        starts: &Tensor,
        output: &Tensor,
    ) -> Result<()> {
        let (by_rank, _memory) = self.filled(run, &sums.rowwise, kNVTEFloat32, 0)?;
        ops::reorder_tokens(run, sums, starts, &by_rank, (self.size, true))?;
        let (own, _own) = self.filled(run, &output.rowwise, kNVTEFloat32, 0)?;
        let name = run.module.as_deref().unwrap_or("attention");
        self.ranks.scatter_sum(&by_rank.rowwise, &own.rowwise, name, run.stream)?;
        ops::add(run, &own, output, false)
    }

    /// The work on each of the own chunks, if whole sequences of keys are there: its attention, queries and keys.
    fn packed_parts(
        &self,
        run: &Run,
        op: &Attention,
        inputs: &Inputs,
    ) -> Result<[(Attention, [Lengths; 2]); 2]> {
        let ([left, right], _) = op.effective_window()?;
        let causal = right == 0;
        let [q, kv] = self.packed(causal, inputs)?;
        let part = |which: usize| -> Result<_> {
            let range = self.chunks(self.rank)[which];
            let queries = self.lengths(run, q, ([range, [0; 2]], self.size, which))?;
            let last = if causal { range[1] } else { 2 * self.size };
            let keys = self.lengths(run, kv, ([[0, last], [0; 2]], 1, 0))?;
            let mask =
                if causal { NVTE_PADDING_CAUSAL_BOTTOM_RIGHT_MASK } else { NVTE_PADDING_MASK };
            let (window, bottom_right) = ([left, right], true);
            Ok((Attention { mask, window, bottom_right, ..*op }, [queries, keys]))
        };
        Ok([part(0)?, part(1)?])
    }

    /// The work of a step of a ring on the keys of a rank, which are first halves where the own queries see no others.
    fn packed_work(
        &self,
        run: &Run,
        op: &Attention,
        [q, kv]: [[&Tensor; 2]; 2],
        owner: usize,
    ) -> Result<(Attention, [Lengths; 2])> {
        let causal = op.effective_window()?.0[1] == 0;
        let of = |whole, rank: usize, chunks: &[usize], divisor: usize| {
            let mut ranges = [[0; 2]; 2];
            for &which in chunks {
                ranges[which] = self.chunks(rank)[which];
            }
            self.lengths(run, whole, (ranges, divisor, chunks[0]))
        };
        // As without packing: the second chunk sees both of ranks behind this one, and both see the first chunk of
        // ranks before it.
        let queries: &[usize] = if causal && owner > self.rank { &[1] } else { &[0, 1] };
        let (keys, divisor): (&[usize], _) = match causal && owner < self.rank {
            true => (&[0], 2 * self.size),
            false => (&[0, 1], self.size),
        };
        let (mask, right) = match causal && owner == self.rank {
            true => (NVTE_PADDING_CAUSAL_BOTTOM_RIGHT_MASK, 0),
            false => (NVTE_PADDING_MASK, -1),
        };
        let part = Attention { mask, window: [-1, right], bottom_right: true, ..*op };
        Ok((part, [of(q, self.rank, queries, self.size)?, of(kv, owner, keys, divisor)?]))
    }

    /// Where the own parts of sequences begin, and the first halves of keys and values, for ranks that see no others.
    fn halves(
        &self,
        run: &Run,
        causal: bool,
        kv: [&Tensor; 2],
        own: [&Tensor; 2],
    ) -> Result<Halves> {
        let lengths = self.lengths(run, kv, (self.chunks(self.rank), self.size, 0))?;
        let half = |tensor: &Tensor| -> Result<_> {
            let like = half_of(&tensor.rowwise);
            let (half, block) = self.filled(run, &like, like.dtype, 0)?;
            ops::first_halves(run, tensor, &lengths.firsts, &half)?;
            Ok((scaled(half.rowwise, tensor), block))
        };
        let parts = match causal && self.rank + 1 < self.size {
            true => Some([half(own[0])?, half(own[1])?]),
            false => None,
        };
        Ok(Halves { lengths, parts, causal })
    }

    pub(super) fn forward_packed(
        &self,
        run: &Run,
        op: &Attention,
        inputs: Inputs,
        (o, stats): (&Tensor, &Tensor),
        kind: ContextParallelKind,
    ) -> Result<()> {
        let stats = piece(stats, op.stats_shape(inputs.q)?.dims(), 0);
        // Rows of no sequence are zeros.
        ops::zero(&o.rowwise, run.stream)?;
        if kind != ContextParallelKind::Ring {
            let parts = self.packed_parts(run, op, &inputs)?;
            let starts = self.packed(op.effective_window()?.0[1] == 0, &inputs)?[1][1];
            let [k, v] = [inputs.k, inputs.v].map(|part| self.gather_packed(run, part, starts));
            let ((k, _keys), (v, _values)) = (k?, v?);
            for (part, [queries, keys]) in &parts {
                let inputs = Inputs { k: &k, v: &v, ..with_lengths(inputs, queries, keys) };
                ops::attention_forward_to(run, part, inputs, None, o, &stats)?;
            }
            return Ok(());
        }
        let causal = op.effective_window()?.0[1] == 0;
        let whole = self.packed(causal, &inputs)?;
        let halves = self.halves(run, causal, whole[1], [inputs.k, inputs.v])?;
        let (sums, _sums) = self.filled(run, &o.rowwise, kNVTEFloat32, 0)?;
        let never = |of: &Tensor| self.filled(run, &of.rowwise, kNVTEFloat32, NEVER);
        let (none, _none) = never(&stats)?;
        ops::copy(stats.rowwise.ptr(), none.rowwise.ptr(), stats.rowwise.bytes(), run.stream)?;
        for step in 0..self.size {
            let owner = self.around(step)[0];
            let pair = self.fetch_packed(run, [inputs.k, inputs.v], &halves, step)?;
            let [k, v] = pair.tensors([inputs.k, inputs.v]);
            let (part, [queries, keys]) = self.packed_work(run, op, whole, owner)?;
            let (part, inputs) = in_step(step, &part, with_lengths(inputs, &queries, &keys));
            let (one, _one) = self.filled(run, &o.rowwise, o.rowwise.dtype, 0)?;
            let (logs, _logs) = never(&stats)?;
            ops::attention_forward_to(run, &part, Inputs { k, v, ..inputs }, None, &one, &logs)?;
            // Logarithms lie beside their tokens.
            let tensors = [&sums, &stats, &one, &logs].map(|t| &t.rowwise);
            ops::merge_attention(run, tensors, 1, false)?;
        }
        ops::add(run, &sums, o, false)
    }

    pub(super) fn backward_packed(
        &self,
        run: &Run,
        op: &Attention,
        tensors: &Backward,
        kind: ContextParallelKind,
    ) -> Result<()> {
        let inputs = tensors.inputs;
        let stats = piece(tensors.stats, op.stats_shape(inputs.q)?.dims(), 0);
        let tensors = &Backward { stats: &stats, ..*tensors };
        let offsets = OffsetGradient::new(run, tensors.doffset)?;
        let causal = op.effective_window()?.0[1] == 0;
        let whole = self.packed(causal, &inputs)?;
        let (dq, _dq) = self.filled(run, &tensors.dq.rowwise, kNVTEFloat32, 0)?;
        let zeros = |like: &Tensor| self.filled(run, &like.rowwise, kNVTEFloat32, 0);
        if kind != ContextParallelKind::Ring {
            let parts = self.packed_parts(run, op, &inputs)?;
            let starts = whole[1][1];
            let [k, v] = [inputs.k, inputs.v].map(|part| self.gather_packed(run, part, starts));
            let ((k, _keys), (v, _values)) = (k?, v?);
            let [dk, dv] = [zeros(&k)?, zeros(&v)?];
            for (part, [queries, keys]) in &parts {
                let inputs = Inputs { k: &k, v: &v, ..with_lengths(inputs, queries, keys) };
                let of_part = Backward { inputs, doffset: offsets.part(), ..*tensors };
                self.add_packed(run, part, &of_part, [&dq, &dk.0, &dv.0])?;
                offsets.add(run)?;
            }
            self.scatter_packed(run, &dk.0, starts, tensors.dk)?;
            self.scatter_packed(run, &dv.0, starts, tensors.dv)?;
            return ops::add(run, &dq, tensors.dq, false);
        }
        let own = [zeros(tensors.dk)?, zeros(tensors.dv)?];
        let halves = self.halves(run, causal, whole[1], [inputs.k, inputs.v])?;
        for step in 0..self.size {
            let [owner, reader] = self.around(step);
            let pair = self.fetch_packed(run, [inputs.k, inputs.v], &halves, step)?;
            let [k, v] = pair.tensors([inputs.k, inputs.v]);
            let (part, [queries, keys]) = self.packed_work(run, op, whole, owner)?;
            let (part, inputs) = in_step(step, &part, with_lengths(inputs, &queries, &keys));
            let doffset = offsets.part().filter(|_| step == 0);
            let of_step = Backward { inputs: Inputs { k, v, ..inputs }, doffset, ..*tensors };
            if step == 0 {
                self.add_packed(run, &part, &of_step, [&dq, &own[0].0, &own[1].0])?;
                offsets.add(run)?;
                continue;
            }
            let theirs = [zeros(k)?, zeros(v)?];
            self.add_packed(run, &part, &of_step, [&dq, &theirs[0].0, &theirs[1].0])?;
            let mut exchange = Exchange::new(&self.ranks);
            let mut received = Vec::new();
            let seen = halves.seen_by(self.rank, reader);
            for ((theirs, _), (own, _)) in theirs.iter().zip(&own) {
                let like = if seen { half_of(&own.rowwise) } else { own.rowwise };
                let slot = self.filled(run, &like, kNVTEFloat32, 0)?;
                let (sent, come) = (&theirs.rowwise, &slot.0.rowwise);
                exchange.add(false, owner, sent.ptr().cast(), sent.bytes());
                exchange.add(true, reader, come.ptr().cast(), come.bytes());
                received.push(slot);
            }
            exchange.finish_of(run)?;
            for ((part, _), (sum, _)) in received.iter().zip(&own) {
                match seen {
                    true => ops::add_to_first_halves(run, sum, &halves.lengths.firsts, part)?,
                    false => ops::add(run, part, sum, true)?,
                }
            }
        }
        let outputs = [(&dq, tensors.dq), (&own[0].0, tensors.dk), (&own[1].0, tensors.dv)];
        outputs.into_iter().try_for_each(|(sums, grad)| ops::add(run, sums, grad, false))
    }

    /// Adds the gradients of a call, which writes the rows of its chunks alone.
    fn add_packed(
        &self,
        run: &Run,
        op: &Attention,
        tensors: &Backward,
        sums: [&Tensor; 3],
    ) -> Result<()> {
        let dtypes = [tensors.dq, tensors.dk, tensors.dv].map(|grad| grad.rowwise.dtype);
        let part = |i: usize| self.filled(run, &sums[i].rowwise, dtypes[i], 0);
        let parts = [part(0)?, part(1)?, part(2)?];
        let [dq, dk, dv] = parts.each_ref().map(|(part, _)| part);
        ops::attention_backward(run, op, &Backward { dq, dk, dv, ..*tensors })?;
        parts.iter().zip(sums).try_for_each(|((part, _), sum)| ops::add(run, part, sum, true))
    }

    /// Keys and values of the rank `steps` before this one; none for the own ones.
    fn fetch_packed(
        &self,
        run: &Run,
        own: [&Tensor; 2],
        halves: &Halves,
        steps: usize,
    ) -> Result<Fetched> {
        if steps == 0 {
            return Ok(Fetched(None));
        }
        let [from, to] = self.around(steps);
        let mut exchange = Exchange::new(&self.ranks);
        let [k, v] = [0, 1].map(|i| -> Result<_> {
            let tensor = own[i];
            let sent = match &halves.parts {
                Some(parts) if halves.seen_by(self.rank, to) => &parts[i].0,
                _ => tensor,
            };
            let like = match halves.seen_by(from, self.rank) {
                true => half_of(&tensor.rowwise),
                false => tensor.rowwise,
            };
            let block = run.scratch(like.bytes())?;
            let there = block.buffer(0, like.dtype, like.shape.dims());
            exchange.add(false, to, sent.rowwise.ptr().cast(), sent.rowwise.bytes());
            exchange.add(true, from, there.ptr().cast(), there.bytes());
            Ok((scaled(there, tensor), block))
        });
        let pair = [k?, v?];
        exchange.finish_of(run)?;
        Ok(Fetched(Some(pair)))
    }
}

/// What a ring sends of the own keys and values.
struct Halves {
    lengths: Lengths,
    /// The first halves of sequences, where a rank sees these alone.
    parts: Option<[(Tensor, Block); 2]>,
    causal: bool,
}

impl Halves {
    /// Whether a rank sees only the first halves of what another one has.
    fn seen_by(&self, owner: usize, reader: usize) -> bool {
        self.causal && reader > owner
    }
}

/// A tensor of half the tokens, without memory.
fn half_of(whole: &Buffer) -> Buffer {
    let mut dims = whole.shape.dims().to_vec();
    dims[0] /= 2;
    Buffer::new(whole.ptr(), whole.dtype, &dims)
}

/// Keys and values of another rank.
struct Fetched(Option<[(Tensor, Block); 2]>);

impl Fetched {
    fn tensors<'a>(&'a self, own: [&'a Tensor; 2]) -> [&'a Tensor; 2] {
        self.0.as_ref().map_or(own, |pair| pair.each_ref().map(|(tensor, _)| tensor))
    }
}

/// The same tensors, of which a call reads some chunks.
fn with_lengths<'a>(inputs: Inputs<'a>, queries: &'a Lengths, keys: &'a Lengths) -> Inputs<'a> {
    let cu_seqlens =
        [Some(&queries.sums), Some(&keys.sums), Some(&queries.firsts), Some(&keys.firsts)];
    Inputs { cu_seqlens, ..inputs }
}
