//! Tokens between ranks without a wait of the host. Each rank has a slot for each token that another one may have, and
//! each pair of ranks exchanges all of its slots, whatever is in them. A token is in one slot of each rank that has
//! some of its experts, beside the list of all of them, from which that rank lays out the rows of its own experts. It
//! also sums their results before these go back in the same slots. Where GPUs write to each other's memory, a kernel stores
//! tokens and sums in the slots of others and takes what has come at the same time.
#![allow(unsafe_code)]

use super::exchange::Experts;
use super::{Dispatch, Layer, Move, run_sums};
use crate::backend::{self, args::*};
use crate::error::Result;
use crate::parallel::peer_rows::{Part, Rows};
use crate::types::cudaStream_t;
use std::ffi::c_void;

/// What goes from slot to slot: bytes of a slot.
type Widths<'a> = &'a [usize];

impl Experts<'_> {
    /// Calls `body` with memory for the slots of all ranks, twice for each width: what is sent, and what has come.
    fn with_slots(
        &self,
        widths: Widths,
        stream: cudaStream_t,
        body: impl FnOnce(&[[*mut c_void; 2]]) -> Result<()>,
    ) -> Result<()> {
        let sizes = widths.iter().map(|width| (self.group.slots() * width).next_multiple_of(256));
        let total: usize = sizes.clone().sum();
        self.group.context.with_memory(2 * total, stream, |memory| {
            let mut at = 0;
            let mut place = |size: usize| {
                at += 2 * size;
                [2 * size, size].map(|back| memory.wrapping_byte_add(at - back))
            };
            body(&sizes.map(&mut place).collect::<Vec<_>>())
        })
    }

    /// Exchanges what is in the slots.
    fn exchange_slots(
        &self,
        slots: &[[*mut c_void; 2]],
        widths: Widths,
        name: &str,
        stream: cudaStream_t,
    ) -> Result<()> {
        let bytes = |width: &usize| self.group.max_tokens * width;
        let of = |(places, width): (&[*mut c_void; 2], _)| (places[0], places[1], bytes(width));
        let buffers: Vec<_> = slots.iter().zip(widths).map(of).collect();
        // SAFETY: there is a slot for each token of each rank.
        unsafe { self.ranks.exchange_parts(&buffers, name, stream) }
    }

    /// Rows of `width` bytes, an even number, of the own tokens to their slots.
    fn to_slots(
        &self,
        (input, tokens, width): (*const c_void, usize, usize),
        slots: *mut c_void,
        stream: cudaStream_t,
    ) -> Result<()> {
        let args = PermuteArgs {
            input,
            output: slots,
            map: self.state.map,
            tokens,
            topk: self.state.planes,
            cols: width / 2,
            rows: self.group.slots(),
            ..super::NO_COPIES
        };
        if tokens * width == 0 { Ok(()) } else { backend::run(&args, stream) }
    }

    /// Makes the plan for the own tokens, and that for the tokens in the slots.
    pub(super) fn prepare_slots(
        &self,
        layer: &Layer,
        args: ExpertRowsArgs,
        stream: cudaStream_t,
    ) -> Result<()> {
        let (group, slots) = (self.group, self.group.slots());
        let (ranks, rank) = (self.ranks.size(), self.ranks.rank());
        let local = group.experts / ranks;
        let sorted = ExpertRowsArgs {
            counts: std::ptr::null_mut(),
            total: std::ptr::null_mut(),
            experts: ranks,
            group: local,
            limit: group.max_tokens,
            fixed: true,
            alignment: 1,
            capacity: slots,
            ..args
        };
        let (head, rows, map) = self.state.of_slots;
        let placed = ExpertRowsArgs {
            sizes: head,
            starts: head.wrapping_add(2),
            lengths: head.wrapping_add(2 + local),
            rows,
            map,
            tokens: slots,
            first: rank * local,
            experts: local,
            alignment: layer.alignment,
            ..args
        };
        // SAFETY: the arguments have been checked, and the state has memory for both plans.
        if unsafe { self.ranks.plan_rows([&sorted, &placed], "nvte_ep_prepare", stream)? } {
            return Ok(());
        }
        backend::run(&sorted, stream)?;
        let width = args.topk * args.chosen_dtype.bits() / 8;
        self.with_slots(&[width], stream, |memory| {
            let [sent, received] = memory[0];
            // A slot without a token has no experts: their numbers are -1.
            backend::run(&MemsetArgs { ptr: sent, value: 0xFF, bytes: slots * width }, stream)?;
            self.to_slots((args.chosen, args.tokens, width), sent, stream)?;
            self.exchange_slots(memory, &[width], "nvte_ep_prepare", stream)?;
            backend::run(&ExpertRowsArgs { chosen: received, ..placed }, stream)
        })
    }

    /// Zeros what the plan for slots does not write of rows of `width` bytes.
    fn zero_gaps(&self, all: &MemsetArgs, width: usize, stream: cudaStream_t) -> Result<()> {
        let local = self.group.experts / self.ranks.size();
        let starts = self.state.of_slots.0.wrapping_add(2).cast_const();
        let lengths = starts.wrapping_add(local);
        let rows = all.bytes.checked_div(width).unwrap_or(0);
        let (output, experts, limit) = (all.ptr, local, 0);
        let args = ZeroGapsArgs { output, starts, lengths, experts, rows, width, limit };
        if all.bytes == 0 { Ok(()) } else { backend::run(&args, stream) }
    }

    /// Copies rows to the experts of all ranks.
    pub(super) fn send_slots(&self, dispatch: &Dispatch, stream: cudaStream_t) -> Result<()> {
        let (slots, planes, choices) = (self.group.slots(), self.state.planes, dispatch.choices);
        let [data, scales, weights] = &dispatch.moves;
        let (_, rows, map) = self.state.of_slots;
        if self.send_by_stores(dispatch, stream)? {
            return Ok(());
        }
        // Of the own tokens: bytes of each; of their rows: where they are, and how many of them a slot has.
        let of_tokens = |one| (one, 1, (map, planes));
        let of_choices = |one| (one, choices, (rows, 1));
        let moves = [
            data.as_ref().map(of_tokens),
            scales.as_ref().map(of_tokens),
            weights.as_ref().map(of_choices),
        ];
        let moves: Vec<_> = moves.into_iter().flatten().collect();
        let widths: Vec<usize> =
            moves.iter().map(|(one, parts, _)| 2 * one.rows.cols * parts).collect();
        let tokens = data.as_ref().map_or(0, |data| data.rows.tokens);
        self.with_slots(&widths, stream, |memory| {
            for ((&(one, ..), &[sent, _]), &width) in moves.iter().zip(memory).zip(&widths) {
                self.to_slots((one.rows.input, tokens, width), sent, stream)?;
            }
            self.exchange_slots(memory, &widths, "nvte_ep_dispatch", stream)?;
            for (&(one, parts, (map, topk)), &[_, received]) in moves.iter().zip(memory) {
                let tokens = slots * parts;
                self.zero_gaps(&one.zeros, 2 * one.rows.cols, stream)?;
                let rows = PermuteArgs { input: received, map, tokens, topk, ..one.rows };
                if tokens * rows.topk * rows.cols > 0 {
                    backend::run(&rows, stream)?;
                }
            }
            Ok(())
        })
    }

    /// What the plans say of rows that a kernel stores.
    fn rows(&self, tokens: usize) -> Rows {
        Rows {
            map: self.state.map,
            of_slots: self.state.of_slots.2,
            tokens,
            limit: self.group.max_tokens,
            planes: self.state.planes,
            ..Rows::NONE
        }
    }

    /// [`Self::send_slots`] by stores; false, and nothing was done, where there are none.
    fn send_by_stores(&self, dispatch: &Dispatch, stream: cudaStream_t) -> Result<bool> {
        let [Some(data), scales, weights] = &dispatch.moves else { return Ok(false) };
        let part = |one: &Move, parts| {
            Part::new(one.rows.input, one.rows.output, 2 * one.rows.cols * parts)
        };
        let choices = dispatch.choices;
        let (local, starts) = (self.group.experts / self.ranks.size(), self.state.of_slots.0);
        let starts = starts.wrapping_add(2).cast_const();
        let rows = Rows {
            starts,
            lengths: starts.wrapping_add(local),
            experts: local,
            rows: data.rows.rows,
            data: part(data, 1),
            scales: scales.as_ref().map_or(Part::NONE, |scales| part(scales, 1)),
            weights: weights.as_ref().map_or(Part::NONE, |weights| part(weights, choices)),
            choices,
            ..self.rows(data.rows.tokens)
        };
        // SAFETY: the dispatch has been checked against the plans.
        unsafe { self.ranks.send_rows(&rows, "nvte_ep_dispatch", stream) }
    }

    /// Sums the rows of the own experts for each slot, and what has come back for each own token.
    pub(super) fn fetch_slots(
        &self,
        sums: &UnpermuteArgs,
        weights: Option<(UnpermuteArgs, usize)>,
        stream: cudaStream_t,
    ) -> Result<()> {
        let (slots, planes) = (self.group.slots(), self.state.planes);
        let (_, rows, map) = self.state.of_slots;
        let part = |one: &UnpermuteArgs, parts| {
            Part::new(one.input, one.output, one.cols * one.dtype.bits() / 8 * parts)
        };
        let stored = Rows {
            rows: sums.rows,
            data: part(sums, 1),
            weights: weights
                .as_ref()
                .map_or(Part::NONE, |(weights, choices)| part(weights, *choices)),
            choices: weights.map_or(0, |(_, choices)| choices),
            dtype: sums.dtype,
            ..self.rows(sums.tokens)
        };
        // SAFETY: the sums have been checked against the plans.
        if unsafe { self.ranks.sum_rows(&stored, "nvte_ep_combine", stream)? } {
            return Ok(());
        }
        // Gradients of weights go to the places of their choices, of which a rank leaves 0 what others have.
        let all =
            [Some((*sums, 1, (map, planes))), weights.map(|(w, choices)| (w, choices, (rows, 1)))];
        let all: Vec<_> = all.into_iter().flatten().collect();
        let widths: Vec<usize> =
            all.iter().map(|(one, parts, _)| one.cols * one.dtype.bits() / 8 * parts).collect();
        self.with_slots(&widths, stream, |memory| {
            for (&(one, parts, (map, topk)), &[sent, _]) in all.iter().zip(memory) {
                let tokens = slots * parts;
                run_sums(&UnpermuteArgs { output: sent, map, tokens, topk, ..one }, stream)?;
            }
            self.exchange_slots(memory, &widths, "nvte_ep_combine", stream)?;
            for (&(one, parts, _), &[_, received]) in all.iter().zip(memory) {
                let of_tokens = UnpermuteArgs {
                    input: received,
                    map: self.state.map,
                    tokens: sums.tokens,
                    topk: planes,
                    cols: one.cols * parts,
                    rows: slots,
                    ..one
                };
                run_sums(&of_tokens, stream)?;
            }
            Ok(())
        })
    }
}
