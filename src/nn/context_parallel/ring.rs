//! Attention in as many steps as there are ranks: in step i rank r has the keys and values of rank r - i, which come from
//! there, so that no rank hands on what is not its own. Under a causal mask rank r of P, with the chunks r and
//! `2 P - 1 - r`, sees both chunks of ranks behind it with its second chunk, and the first chunk of ranks before it with
//! both: each step is the same work for all ranks.

use super::*;
use crate::types::NVTE_Softmax_Type::NVTE_VANILLA_SOFTMAX;

/// What a ring does not do: the field of a config, what it would have to be, and what it is.
pub(super) fn check(
    config: &AttentionConfig,
) -> std::result::Result<(), (&'static str, &'static str, String)> {
    let [left, right] = config.window;
    let causal = !matches!(config.mask, NVTE_NO_MASK | NVTE_PADDING_MASK);
    if left < 0 && right >= 0 && !causal {
        let expected = "-1 (a ring has a window to the right only beside one to the left)";
        return Err(("window_size_right", expected, right.to_string()));
    }
    Ok(())
}

/// Keys and values of one rank.
struct Pair([Whole; 2]);

/// The work of a chunk of queries on the keys of a rank.
struct Work {
    which: usize,
    op: Attention,
    /// Rows of those that the rank has.
    keys: Range<usize>,
}

/// The offset of the softmax is a score of each row. It counts in the first step, which has keys for all rows.
pub(super) fn in_step<'a>(
    step: usize,
    op: &Attention,
    inputs: Inputs<'a>,
) -> (Attention, Inputs<'a>) {
    match step {
        0 => (*op, inputs),
        _ => {
            let op = Attention { softmax: NVTE_VANILLA_SOFTMAX, ..*op };
            (op, Inputs { softmax_offset: None, ..inputs })
        }
    }
}

impl SequenceRanks {
    /// The rank that is `steps` before this one, and that `steps` behind it.
    pub(super) fn around(&self, steps: usize) -> [usize; 2] {
        [(self.rank + self.size - steps) % self.size, (self.rank + steps) % self.size]
    }

    /// The first rows of those of rank `owner` that rank `reader` reads, of two chunks.
    fn seen(&self, causal: bool, reader: usize, owner: usize, chunk: usize) -> usize {
        if causal && reader > owner { chunk } else { 2 * chunk }
    }

    /// What the own queries do with the keys of a rank.
    fn work(&self, op: &Attention, owner: usize, [rows, chunk]: [usize; 2]) -> Result<Vec<Work>> {
        let causal = op.effective_window()?.0 != [-1, -1];
        let of = |which: usize, keys: Range<usize>, diagonal: bool| {
            let (mask, right) = match diagonal {
                true => (NVTE_CAUSAL_BOTTOM_RIGHT_MASK, 0),
                false => (NVTE_NO_MASK, -1),
            };
            let (window, max_seqlen) = ([-1, right], [rows, keys.len()]);
            Work {
                which,
                op: Attention { mask, window, bottom_right: true, max_seqlen, ..*op },
                keys,
            }
        };
        Ok(match owner.cmp(&self.rank) {
            _ if !causal => vec![of(0, 0..2 * chunk, false), of(1, 0..2 * chunk, false)],
            // The rows of the second chunk come behind those of the first.
            std::cmp::Ordering::Equal => vec![of(0, 0..chunk, true), of(1, 0..2 * chunk, true)],
            std::cmp::Ordering::Less => vec![of(0, 0..chunk, false), of(1, 0..chunk, false)],
            std::cmp::Ordering::Greater => vec![of(1, 0..2 * chunk, false)],
        })
    }

    /// Scratch memory for rows like the own ones.
    fn like(&self, run: &Run, like: &Buffer, rows: &Rows, dtype: NVTEDType) -> Result<Whole> {
        let block = run.scratch(bytes(like.shape.numel(), dtype))?;
        let tensor = plain(block.buffer(0, dtype, like.shape.dims()));
        let rows = Rows::new(&tensor.rowwise, rows.outer, rows.length);
        Ok(Whole { rows, tensor, first: 0, _block: block })
    }

    /// The keys and values of the rank `steps` before this one; this rank's go to the one as far behind.
    fn fetch(
        &self,
        run: &Run,
        causal: bool,
        own: [(&Tensor, Rows); 2],
        steps: usize,
    ) -> Result<Pair> {
        let [from, to] = self.around(steps);
        let mut exchange = Exchange::new(&self.ranks);
        let [k, v] = own.map(|(tensor, rows)| -> Result<Whole> {
            let like = &tensor.rowwise;
            let mut whole = self.like(run, like, &rows, like.dtype)?;
            whole.tensor = scaled(whole.tensor.rowwise, tensor);
            let chunk = rows.length / 2;
            for outer in 0..rows.outer {
                let sent = self.seen(causal, to, self.rank, chunk) * rows.bytes;
                exchange.add(false, to, rows.at(outer, 0), sent);
                let coming = self.seen(causal, self.rank, from, chunk) * rows.bytes;
                exchange.add(true, from, whole.rows.at(outer, 0), coming);
            }
            Ok(whole)
        });
        let pair = Pair([k?, v?]);
        exchange.finish_of(run)?;
        Ok(pair)
    }

    pub(super) fn forward_ring(
        &self,
        run: &Run,
        op: &Attention,
        inputs: Inputs,
        o: &Tensor,
        stats: &Tensor,
    ) -> Result<()> {
        let format = op.layout.q;
        let [q, k, v] = [inputs.q, inputs.k, inputs.v].map(|t| Rows::of(&t.rowwise, format));
        let rows = self.chunk_rows(op, &q, &k)?;
        let causal = op.effective_window()?.0 != [-1, -1];
        let out = Rows::of(&o.rowwise, format);
        let sums = self.like(run, &o.rowwise, &out, kNVTEFloat32)?;
        for step in 0..self.size {
            let pair = match step {
                0 => None,
                _ => Some(self.fetch(run, causal, [(inputs.k, k), (inputs.v, v)], step)?),
            };
            let tensors = match &pair {
                None => [(k, inputs.k), (v, inputs.v)],
                Some(Pair(pair)) => pair.each_ref().map(|w| (w.rows, &w.tensor)),
            };
            for Work { which, op: part, keys } in self.work(op, self.around(step)[0], rows)? {
                for outer in 0..q.outer {
                    let own = which * rows[0]..(which + 1) * rows[0];
                    let q = q.heads(inputs.q, outer, &own);
                    let [k, v] = tensors.map(|(rows, like)| rows.heads(like, outer, &keys));
                    let sum = sums.rows.heads(&sums.tensor, outer, &own);
                    let shape = sum.rowwise.shape;
                    let memory = run.scratch(bytes(shape.numel(), o.rowwise.dtype))?;
                    let one = plain(memory.buffer(0, o.rowwise.dtype, shape.dims()));
                    let shape = part.stats_shape(&q)?;
                    let logs = run.scratch(4 * shape.numel())?;
                    let logs = plain(logs.buffer(0, kNVTEFloat32, shape.dims()));
                    let inputs = Inputs { q: &q, k: &k, v: &v, cu_seqlens: [None; 4], ..inputs };
                    let (part, inputs) = in_step(step, &part, inputs);
                    ops::attention_forward_to(run, &part, inputs, None, &one, &logs)?;
                    let all = piece(stats, shape.dims(), 2 * outer + which);
                    let of = [&sum, &all, &one, &logs].map(|t| &t.rowwise);
                    // The own keys, of step 0, are seen by both chunks.
                    ops::merge_attention(run, of, rows[0], step == 0)?;
                }
            }
        }
        ops::add(run, &sums.tensor, o, false)
    }

    pub(super) fn backward_ring(
        &self,
        run: &Run,
        op: &Attention,
        tensors: &Backward,
    ) -> Result<()> {
        let (format, inputs) = (op.layout.q, tensors.inputs);
        let [q, k, v] = [inputs.q, inputs.k, inputs.v].map(|t| Rows::of(&t.rowwise, format));
        let rows = self.chunk_rows(op, &q, &k)?;
        let causal = op.effective_window()?.0 != [-1, -1];
        let views = [
            (q, inputs.q),
            (Rows::of(&tensors.o.rowwise, format), tensors.o),
            (Rows::of(&tensors.d_o.rowwise, format), tensors.d_o),
        ];
        let zeros = |tensor: &Tensor, rows: &Rows| -> Result<Whole> {
            let sums = self.like(run, &tensor.rowwise, rows, kNVTEFloat32)?;
            ops::zero(&sums.tensor.rowwise, run.stream)?;
            Ok(sums)
        };
        let dq = zeros(tensors.dq, &q)?;
        let own = [zeros(tensors.dk, &k)?, zeros(tensors.dv, &v)?];
        let offsets = OffsetGradient::new(run, tensors.doffset)?;
        for step in 0..self.size {
            let [owner, reader] = self.around(step);
            let pair = match step {
                0 => None,
                _ => Some(self.fetch(run, causal, [(inputs.k, k), (inputs.v, v)], step)?),
            };
            let of_step = match &pair {
                None => [(k, inputs.k), (v, inputs.v)],
                Some(Pair(pair)) => pair.each_ref().map(|w| (w.rows, &w.tensor)),
            };
            let theirs = match step {
                0 => None,
                _ => Some([zeros(tensors.dk, &k)?, zeros(tensors.dv, &v)?]),
            };
            let sums = theirs.as_ref().unwrap_or(&own);
            for Work { which, op: part, keys } in self.work(op, owner, rows)? {
                for outer in 0..q.outer {
                    let chunk = which * rows[0]..(which + 1) * rows[0];
                    let [q, o, d_o] = views.map(|(r, t)| r.heads(t, outer, &chunk));
                    let [k, v] = of_step.map(|(rows, like)| rows.heads(like, outer, &keys));
                    let scratch = |like: &Tensor| -> Result<(Tensor, Block)> {
                        let (shape, dtype) = (like.rowwise.shape, like.rowwise.dtype);
                        let block = run.scratch(bytes(shape.numel(), dtype))?;
                        Ok((plain(block.buffer(0, dtype, shape.dims())), block))
                    };
                    let [of_q, of_k, of_v] = [scratch(&q)?, scratch(&k)?, scratch(&v)?];
                    let stats =
                        piece(tensors.stats, part.stats_shape(&q)?.dims(), 2 * outer + which);
                    let inputs = Inputs { q: &q, k: &k, v: &v, cu_seqlens: [None; 4], ..inputs };
                    let (part, inputs) = in_step(step, &part, inputs);
                    let own_tensors = Backward {
                        inputs,
                        o: &o,
                        d_o: &d_o,
                        stats: &stats,
                        dq: &of_q.0,
                        dk: &of_k.0,
                        dv: &of_v.0,
                        doffset: offsets.part().filter(|_| step == 0),
                        ..*tensors
                    };
                    ops::attention_backward(run, &part, &own_tensors)?;
                    if step == 0 {
                        offsets.add(run)?;
                    }
                    let grads =
                        [(&dq, &of_q, &chunk), (&sums[0], &of_k, &keys), (&sums[1], &of_v, &keys)];
                    for (sums, (grad, _), rows) in grads {
                        let sum = sums.rows.flat(kNVTEFloat32, outer, rows);
                        let dims = sum.rowwise.shape;
                        let grad = Buffer::new(grad.rowwise.ptr(), grad.dtype(), dims.dims());
                        ops::add(run, &plain(grad), &sum, true)?;
                    }
                }
            }
            if let Some(theirs) = &theirs {
                self.give_back(run, causal, [theirs, &own], [owner, reader])?;
            }
        }
        let outputs = [(&dq, tensors.dq), (&own[0], tensors.dk), (&own[1], tensors.dv)];
        outputs.into_iter().try_for_each(|(sums, grad)| ops::add(run, &sums.tensor, grad, false))
    }

    /// Gradients of the keys and values of rank `owner` go there, and those from rank `reader` are added to the own ones.
    fn give_back(
        &self,
        run: &Run,
        causal: bool,
        [theirs, own]: [&[Whole; 2]; 2],
        [owner, reader]: [usize; 2],
    ) -> Result<()> {
        let mut exchange = Exchange::new(&self.ranks);
        let mut received = Vec::new();
        for (theirs, own) in theirs.iter().zip(own) {
            let (rows, chunk) = (own.rows, own.rows.length / 2);
            let slot = self.like(run, &own.tensor.rowwise, &rows, kNVTEFloat32)?;
            let sent = self.seen(causal, self.rank, owner, chunk);
            let coming = self.seen(causal, reader, self.rank, chunk);
            for outer in 0..rows.outer {
                exchange.add(false, owner, theirs.rows.at(outer, 0), sent * rows.bytes);
                exchange.add(true, reader, slot.rows.at(outer, 0), coming * rows.bytes);
            }
            received.push((slot, 0..coming));
        }
        exchange.finish_of(run)?;
        for ((slot, coming), own) in received.iter().zip(own) {
            for outer in 0..own.rows.outer {
                let [part, sum] = [slot, own].map(|w| w.rows.flat(kNVTEFloat32, outer, coming));
                ops::add(run, &part, &sum, true)?;
            }
        }
        Ok(())
    }
}
