//! Rows of tokens between ranks. Each rank sorts the rows of its own tokens by expert, so that those of a rank's experts
//! are one message. There they are copied to the rows of each expert: those of all ranks in their order, then padding.
//! Results come back the same way, and are summed in the order of a token's choices, as on one rank. The numbers of rows
//! of all ranks and experts lie in the memory of the layer, from where each call reads them on the host.
#![allow(unsafe_code)]

use super::{Group, Layer, Move, State, run_sums};
use crate::backend::{self, args::*};
use crate::error::{Error, Result};
use crate::op::nvtex;
use crate::parallel::Communicator;
use crate::parallel::message::Message;
use crate::tensor::Buffer;
use crate::types::{NVTEDType, NVTEDType::*, cudaStream_t};
use std::ffi::c_void;

/// The experts of all ranks.
pub(super) struct Experts<'a> {
    pub(super) state: &'a State,
    pub(super) group: &'a Group,
    pub(super) ranks: &'a Communicator,
}

/// Which rows go where.
pub(crate) struct Plan {
    /// The number of experts of all ranks, and the own rank.
    experts: usize,
    rank: usize,
    /// Rows of each rank for each expert, `[ranks, experts]`.
    table: Vec<usize>,
    /// First row of each expert on its rank, and rows of all experts of each rank, with padding.
    starts: Vec<usize>,
    totals: Vec<usize>,
    /// Rows that a rank has room for.
    capacity: usize,
}

/// A matrix whose rows travel between own tokens, sorted by expert, and experts.
#[derive(Clone, Copy)]
pub(crate) struct Matrix {
    pub own: *mut c_void,
    pub experts: *mut c_void,
    /// Rows that the memory of the experts has room for.
    pub rows: usize,
    pub cols: usize,
    /// F32, F16 or BF16.
    pub dtype: NVTEDType,
}

impl Matrix {
    fn width(&self) -> usize {
        self.cols * self.dtype.bits() / 8
    }
}

impl Plan {
    /// From the rows of all ranks for all experts, and what the rows of an expert are a multiple of.
    pub(crate) fn new(
        (rank, ranks): (usize, usize),
        experts: usize,
        table: Vec<usize>,
        alignment: usize,
        capacity: usize,
    ) -> Self {
        let local = experts / ranks;
        let (mut starts, mut totals) = (vec![0; experts], vec![0; ranks]);
        for expert in 0..experts {
            let rows: usize = (0..ranks).map(|rank| table[rank * experts + expert]).sum();
            let total = &mut totals[expert / local];
            starts[expert] = *total;
            *total += rows.next_multiple_of(alignment);
        }
        Self { experts, rank, table, starts, totals, capacity }
    }

    fn local(&self) -> usize {
        self.experts / self.totals.len()
    }

    /// Rows of all experts of this rank, padding included.
    pub(crate) fn total(&self) -> usize {
        self.totals[self.rank]
    }

    /// Rows of each expert of this rank, padding included.
    pub(crate) fn counts(&self) -> Vec<usize> {
        let local = self.local();
        let mut ends = self.starts[self.rank * local..(self.rank + 1) * local].to_vec();
        ends.push(self.total());
        let within = |row: usize| row.min(self.capacity);
        ends.windows(2).map(|pair| within(pair[1]) - within(pair[0])).collect()
    }

    /// Rows that one rank has for the experts of another.
    fn between(&self, from: usize, to: usize) -> usize {
        let local = self.local();
        self.table[from * self.experts + to * local..][..local].iter().sum()
    }

    /// Rows of the own tokens.
    fn own(&self) -> usize {
        (0..self.totals.len()).map(|to| self.between(self.rank, to)).sum()
    }

    fn others(&self) -> impl Iterator<Item = usize> {
        (0..self.totals.len()).filter(|&rank| rank != self.rank)
    }

    /// Rows that other ranks have for the own experts.
    fn coming(&self) -> usize {
        self.others().map(|from| self.between(from, self.rank)).sum()
    }

    /// Whether there are rows between the experts that no token has.
    pub(crate) fn has_padding(&self) -> bool {
        self.total() > self.coming() + self.between(self.rank, self.rank)
    }

    /// Whether rows of other ranks come to where they stay: those of one expert are already in its order.
    fn comes_in_place(&self) -> bool {
        self.local() == 1 && self.total() <= self.capacity
    }

    /// The rows of the own experts for those of other ranks, in the order of these and of the experts, then for the own
    /// ones; -1 where there is no room.
    fn map(&self) -> Result<Vec<i32>> {
        let own = self.between(self.rank, self.rank);
        let mut map = backend::memory::reserve::<i32>("rows of experts", self.coming() + own)?;
        let first = self.rank * self.local();
        let before = |rank: usize, expert: usize| {
            (0..rank).map(|rank| self.table[rank * self.experts + expert]).sum::<usize>()
        };
        for from in self.others().chain([self.rank]) {
            for expert in first..first + self.local() {
                let row = self.starts[expert] + before(from, expert);
                let rows = row..row + self.table[from * self.experts + expert];
                map.extend(rows.map(|row| if row < self.capacity { row as i32 } else { -1 }));
            }
        }
        Ok(map)
    }

    /// Bytes of memory that [`Self::exchange`] needs for rows of these widths.
    pub(crate) fn room(&self, widths: impl Iterator<Item = usize>) -> usize {
        let (coming, own) = (self.coming(), self.between(self.rank, self.rank));
        let staged = if self.comes_in_place() { 0 } else { coming };
        aligned(4 * (coming + own)) + widths.map(|width| aligned(staged * width)).sum::<usize>()
    }

    /// Copies rows of own tokens to the rows of the experts of all ranks, or (`back`) from there.
    ///
    /// # Safety
    /// There are as many rows as the plan says, and [`Self::room`] bytes of memory.
    pub(crate) unsafe fn exchange(
        &self,
        ranks: &Communicator,
        (matrices, back): (&[Matrix], bool),
        memory: *mut c_void,
        name: &str,
        stream: cudaStream_t,
    ) -> Result<()> {
        let map = self.map()?;
        let kind = CopyKind::NVTEX_COPY_TO_DEVICE;
        // SAFETY: the memory begins with room for the map.
        unsafe { nvtex::memcpy(memory, map.as_ptr().cast(), 4 * map.len(), kind, stream)? };
        let (coming, own) = (self.coming(), self.between(self.rank, self.rank));
        let map = memory.cast::<i32>().cast_const();
        let mut free = memory.wrapping_byte_add(aligned(4 * (coming + own)));
        let (mut messages, mut copies) = (Vec::new(), Vec::new());
        for &matrix in matrices.iter().filter(|matrix| matrix.width() > 0) {
            let width = matrix.width();
            let mut here = matrix.own;
            let mut there = matrix.experts;
            if !self.comes_in_place() {
                there = free;
                free = free.wrapping_byte_add(aligned(coming * width));
                copies.push(RowCopy { matrix, rows: there, count: coming, map });
            }
            for peer in 0..self.totals.len() {
                let bytes = width * self.between(self.rank, peer);
                let their_bytes = width * self.between(peer, self.rank);
                if peer == self.rank {
                    let map = map.wrapping_add(coming);
                    copies.push(RowCopy { matrix, rows: here, count: own, map });
                } else {
                    let (data, receive) = (here.cast(), back);
                    messages.push(Message { data, bytes, peer, receive });
                    let (data, bytes, receive) = (there.cast(), their_bytes, !back);
                    messages.push(Message { data, bytes, peer, receive });
                }
                here = here.wrapping_byte_add(bytes);
                if peer != self.rank || self.comes_in_place() {
                    there = there.wrapping_byte_add(their_bytes);
                }
            }
        }
        messages.retain(|message| message.bytes > 0);
        if back {
            copies.iter().try_for_each(|copy| copy.bring_back(stream))?;
        }
        // SAFETY: messages lie within the rows of the plan, for which all memory has room.
        unsafe { ranks.exchange_messages(&messages, name, stream)? };
        match back {
            true => Ok(()),
            false => copies.iter().try_for_each(|copy| copy.to_experts(stream)),
        }
    }
}

fn aligned(bytes: usize) -> usize {
    bytes.next_multiple_of(256)
}

/// So many rows, sorted by rank, and for each of them the row of an expert here.
struct RowCopy {
    matrix: Matrix,
    rows: *mut c_void,
    count: usize,
    map: *const i32,
}

impl RowCopy {
    fn to_experts(&self, stream: cudaStream_t) -> Result<()> {
        let Matrix { experts, rows, cols, dtype, .. } = self.matrix;
        let args = PermuteArgs {
            input: self.rows,
            output: experts,
            map: self.map,
            tokens: self.count,
            topk: 1,
            cols,
            rows,
            dtype,
            ..super::NO_COPIES
        };
        if self.count == 0 { Ok(()) } else { backend::run(&args, stream) }
    }

    /// Rows without one become zeros.
    fn bring_back(&self, stream: cudaStream_t) -> Result<()> {
        let Matrix { experts, rows, cols, dtype, .. } = self.matrix;
        let args = UnpermuteArgs {
            input: experts,
            output: self.rows,
            map: self.map,
            probs: std::ptr::null(),
            tokens: self.count,
            topk: 1,
            cols,
            rows,
            dtype,
        };
        run_sums(&args, stream)
    }
}

impl<'a> Experts<'a> {
    /// None if all experts are on one rank.
    pub(super) fn of(state: &'a State, group: &'a Group) -> Option<Self> {
        let ranks = group.context.ranks.as_deref()?;
        Some(Self { state, group, ranks })
    }

    /// The numbers of rows that all ranks have agreed on.
    fn table(&self, stream: cudaStream_t) -> Result<Vec<usize>> {
        let count = self.ranks.size() * self.group.experts;
        let mut table = backend::memory::reserve::<i64>("rows of experts", count)?;
        table.resize(count, 0);
        let (to, kind) = (table.as_mut_ptr().cast(), CopyKind::NVTEX_COPY_TO_HOST);
        // SAFETY: the state has a number for each rank and expert.
        unsafe {
            nvtex::memcpy(to, self.state.table.cast_const().cast(), 8 * count, kind, stream)?;
            nvtex::stream_synchronize(stream)?;
        }
        let most = self.group.max_tokens * self.state.planes;
        let rows = |rows: i64| usize::try_from(rows).ok().filter(|&rows| rows <= most);
        table.into_iter().map(rows).collect::<Option<_>>().ok_or_else(|| {
            let expected = "memory that nvte_ep_prepare has filled for this group";
            Error::argument("handle_mem", expected, "other contents")
        })
    }

    fn plan(&self, alignment: usize, table: Vec<usize>) -> Plan {
        let ranks = (self.ranks.rank(), self.ranks.size());
        Plan::new(ranks, self.group.experts, table, alignment, self.group.capacity)
    }

    /// The plan of the last [`Self::prepare`].
    fn known(&self, stream: cudaStream_t) -> Result<Plan> {
        let mut alignment = [0i64];
        let (to, kind) = (alignment.as_mut_ptr().cast(), CopyKind::NVTEX_COPY_TO_HOST);
        // SAFETY: the state has this number.
        unsafe { nvtex::memcpy(to, self.state.alignment.cast_const().cast(), 8, kind, stream)? };
        let table = self.table(stream)?;
        let alignment = usize::try_from(alignment[0]).ok().filter(|n| (1..1 << 31).contains(n));
        let Some(alignment) = alignment else {
            let expected = "memory that nvte_ep_prepare has filled for this group";
            return Err(Error::argument("handle_mem", expected, "other contents"));
        };
        Ok(self.plan(alignment, table))
    }

    /// Makes the plan of all ranks.
    pub(super) fn prepare(
        &self,
        layer: &Layer,
        args: ExpertRowsArgs,
        stream: cudaStream_t,
    ) -> Result<()> {
        let (experts, rank) = (self.group.experts, self.ranks.rank());
        let own = self.state.table.wrapping_add(rank * experts);
        let sorted = ExpertRowsArgs {
            counts: own.cast(),
            total: std::ptr::null_mut(),
            counts_dtype: kNVTEInt64,
            alignment: 1,
            capacity: i32::MAX as usize,
            ..args
        };
        backend::run(&sorted, stream)?;
        let table =
            Buffer::new(self.state.table.cast(), kNVTEInt64, &[self.ranks.size() * experts]);
        let part = Buffer::new(own.cast(), kNVTEInt64, &[experts]);
        self.ranks.gather(&part, &table, "nvte_ep_prepare", stream)?;
        let plan = self.plan(layer.alignment, self.table(stream)?);
        let capacity = self.group.capacity;
        if let Some(rank) = plan.totals.iter().position(|&total| total > capacity)
            && !self.group.drop
        {
            let expected = format!("choices that need at most {capacity} rows of each rank");
            let got = format!("{} rows of rank {rank}", plan.totals[rank]);
            return Err(Error::argument("topk_idx", expected, got));
        }
        let upload = |to: *mut c_void, values: Vec<usize>| {
            if to.is_null() {
                return Ok(());
            }
            let bytes: Vec<u8> = match args.counts_dtype {
                kNVTEInt64 => values.iter().flat_map(|&n| (n as i64).to_ne_bytes()).collect(),
                _ => values.iter().flat_map(|&n| (n as i32).to_ne_bytes()).collect(),
            };
            let (from, kind) = (bytes.as_ptr().cast(), CopyKind::NVTEX_COPY_TO_DEVICE);
            // SAFETY: the outputs have been checked to have these numbers.
            unsafe { nvtex::memcpy(to, from, bytes.len(), kind, stream) }
        };
        upload(args.counts, plan.counts())?;
        upload(args.total, vec![plan.totals[rank]])?;
        let alignment = (layer.alignment as i64).to_ne_bytes();
        let (from, kind) = (alignment.as_ptr().cast(), CopyKind::NVTEX_COPY_TO_DEVICE);
        // SAFETY: the state has this number.
        unsafe { nvtex::memcpy(self.state.alignment.cast(), from, 8, kind, stream) }
    }

    /// Copies rows to the experts of all ranks.
    pub(super) fn send(&self, moves: &[Option<Move>; 3], stream: cudaStream_t) -> Result<()> {
        let plan = self.known(stream)?;
        let (rows, total) = (plan.own(), plan.total());
        let least = total.min(self.group.capacity);
        let width = |one: &Move| one.rows.cols * 2;
        for one in moves.iter().flatten() {
            let room = one.zeros.bytes / width(one).max(1);
            if room < least && width(one) > 0 {
                let expected = format!("{least} rows or more, as in the plan");
                return Err(Error::argument("recv_tokens.shape", expected, room));
            }
        }
        let all = || moves.iter().flatten();
        let sorted_bytes = |one: &Move| aligned(rows * width(one));
        let sorted: usize = all().map(sorted_bytes).sum();
        let bytes = sorted + plan.room(all().map(width));
        self.group.context.with_memory(bytes, stream, |memory| {
            let mut at = memory;
            let mut matrices = Vec::new();
            for one in all() {
                let own = at;
                at = at.wrapping_byte_add(sorted_bytes(one));
                let args = PermuteArgs { output: own, rows, ..one.rows };
                if args.tokens * args.topk * args.cols * rows > 0 {
                    backend::run(&args, stream)?;
                }
                let kept = if plan.has_padding() { 0 } else { least * width(one) };
                let MemsetArgs { ptr, bytes, value } = one.zeros;
                if bytes > kept {
                    let (ptr, bytes) = (ptr.wrapping_byte_add(kept), bytes - kept);
                    backend::run(&MemsetArgs { ptr, bytes, value }, stream)?;
                }
                let PermuteArgs { rows, cols, dtype, .. } = one.rows;
                matrices.push(Matrix { own, experts: one.zeros.ptr, rows, cols, dtype });
            }
            let (name, matrices) = ("nvte_ep_dispatch", (&matrices[..], false));
            // SAFETY: the rows of the plan have been compared with those of the outputs.
            unsafe { plan.exchange(self.ranks, matrices, at, name, stream) }
        })
    }

    /// Brings the rows of experts back, and sums them.
    pub(super) fn fetch(&self, sums: Vec<UnpermuteArgs>, stream: cudaStream_t) -> Result<()> {
        let plan = self.known(stream)?;
        let rows = plan.own();
        let least = plan.total().min(self.group.capacity);
        let width = |one: &UnpermuteArgs| one.cols * one.dtype.bits() / 8;
        for one in &sums {
            if one.rows < least && one.cols > 0 {
                let expected = format!("{least} rows or more, as in the plan");
                return Err(Error::argument("expert_out.shape", expected, one.rows));
            }
        }
        let sorted_bytes = |one: &UnpermuteArgs| aligned(rows * width(one));
        let sorted: usize = sums.iter().map(sorted_bytes).sum();
        let bytes = sorted + plan.room(sums.iter().map(width));
        self.group.context.with_memory(bytes, stream, |memory| {
            let mut at = memory;
            let (mut matrices, mut received) = (Vec::new(), Vec::new());
            for one in &sums {
                let own = at;
                at = at.wrapping_byte_add(sorted_bytes(one));
                received.push(UnpermuteArgs { input: own, rows, ..*one });
                let &UnpermuteArgs { input, rows, cols, dtype, .. } = one;
                matrices.push(Matrix { own, experts: input.cast_mut(), rows, cols, dtype });
            }
            let (name, matrices) = ("nvte_ep_combine", (&matrices[..], true));
            // SAFETY: the rows of the plan have been compared with those of the inputs.
            unsafe { plan.exchange(self.ranks, matrices, at, name, stream)? };
            received.iter().try_for_each(|one| run_sums(one, stream))
        })
    }
}
