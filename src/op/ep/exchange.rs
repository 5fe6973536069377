//! Rows of tokens between ranks. Each rank sorts the rows of its own tokens by expert, so that those of an expert are one
//! piece, which goes to the expert's rank: there the pieces of all ranks follow each other, then padding. Results come
//! back the same way, and are summed in the order of a token's choices, as on one rank. The numbers of rows of all ranks
//! and experts lie in the memory of the layer, from where each call reads them on the host.
#![allow(unsafe_code)]

use super::{Group, Layer, Move, State, run_sums};
use crate::backend::{self, args::*};
use crate::error::{Error, Result};
use crate::op::nvtex;
use crate::parallel::Communicator;
use crate::parallel::message::Message;
use crate::tensor::Buffer;
use crate::types::{NVTEDType::*, cudaStream_t};
use std::ffi::c_void;
use std::ops::Range;

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

/// Rows of one expert that go from one rank to another: where they lie there and here.
struct Piece {
    expert_row: usize,
    own_row: usize,
    rows: usize,
    peer: usize,
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

    /// Rows of the own tokens, and what goes to each rank or (`incoming`) comes from it; rows that no rank has room for
    /// are left out.
    fn pieces(&self, incoming: bool) -> (usize, Vec<Piece>) {
        let (experts, local, own) = (self.experts, self.local(), self.rank);
        let rows_of = |rank: usize, expert: usize| self.table[rank * experts + expert];
        let mut pieces = Vec::new();
        let mut own_row = 0;
        let list = |expert: usize| match incoming {
            true if expert / local != own => 0..0,
            true => 0..self.totals.len(),
            false => own..own + 1,
        };
        for expert in 0..experts {
            let sources: Range<usize> = list(expert);
            for source in sources {
                let before: usize = (0..source).map(|rank| rows_of(rank, expert)).sum();
                let (expert_row, rows) = (self.starts[expert] + before, rows_of(source, expert));
                let room = rows.min(self.capacity.saturating_sub(expert_row));
                let peer = if incoming { source } else { expert / local };
                pieces.push(Piece { expert_row, own_row, rows: room, peer });
                own_row += rows;
            }
        }
        (own_row, pieces)
    }

    /// Copies rows of `width` bytes, which are sorted by expert, to the rows of the experts of all ranks, or (`back`) from
    /// there.
    ///
    /// # Safety
    /// There are as many rows as the plan says.
    pub(crate) unsafe fn exchange(
        &self,
        ranks: &Communicator,
        memory: (*mut c_void, *mut c_void),
        (width, back): (usize, bool),
        name: &str,
        stream: cudaStream_t,
    ) -> Result<()> {
        let mut messages = Messages { ranks, list: Vec::new(), copies: Vec::new() };
        let ((_, of_tokens), (_, of_experts)) = (self.pieces(false), self.pieces(true));
        messages.both(&of_tokens, &of_experts, memory, width, back);
        messages.run(name, stream)
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
        let ((rows, out), (_, coming)) = (plan.pieces(false), plan.pieces(true));
        let least = plan.totals[self.ranks.rank()].min(self.group.capacity);
        let width = |one: &Move| one.rows.cols * 2;
        for one in moves.iter().flatten() {
            let room = one.zeros.bytes / width(one).max(1);
            if room < least && width(one) > 0 {
                let expected = format!("{least} rows or more, as in the plan");
                return Err(Error::argument("recv_tokens.shape", expected, room));
            }
        }
        let sizes = moves
            .each_ref()
            .map(|one| one.as_ref().map_or(0, |one| (rows * width(one)).next_multiple_of(256)));
        self.group.context.with_memory(sizes.iter().sum(), stream, |memory| {
            let mut messages = Messages { ranks: self.ranks, list: Vec::new(), copies: Vec::new() };
            let mut at = 0;
            for (one, size) in moves.iter().zip(sizes) {
                let Some(one) = one else { continue };
                let sorted = memory.wrapping_byte_add(at);
                at += size;
                let args = PermuteArgs { output: sorted, rows, ..one.rows };
                if args.tokens * args.topk * args.cols * rows > 0 {
                    backend::run(&args, stream)?;
                }
                if one.zeros.bytes > 0 {
                    backend::run(&one.zeros, stream)?;
                }
                messages.add(&out, &coming, (sorted, one.zeros.ptr), width(one));
            }
            messages.run("nvte_ep_dispatch", stream)
        })
    }

    /// Brings the rows of experts back, and sums them.
    pub(super) fn fetch(&self, sums: Vec<UnpermuteArgs>, stream: cudaStream_t) -> Result<()> {
        let plan = self.known(stream)?;
        let ((rows, back), (_, theirs)) = (plan.pieces(false), plan.pieces(true));
        let least = plan.totals[self.ranks.rank()].min(self.group.capacity);
        let width = |one: &UnpermuteArgs| one.cols * one.dtype.bits() / 8;
        for one in &sums {
            if one.rows < least && one.cols > 0 {
                let expected = format!("{least} rows or more, as in the plan");
                return Err(Error::argument("expert_out.shape", expected, one.rows));
            }
        }
        let size = |one: &UnpermuteArgs| (rows * width(one)).next_multiple_of(256);
        self.group.context.with_memory(sums.iter().map(size).sum(), stream, |memory| {
            let mut messages = Messages { ranks: self.ranks, list: Vec::new(), copies: Vec::new() };
            let (mut at, mut received) = (0, Vec::new());
            for one in &sums {
                let sorted = memory.wrapping_byte_add(at);
                if size(one) > 0 {
                    // Rows that had no room count as zeros.
                    let memset = MemsetArgs { ptr: sorted, value: 0, bytes: size(one) };
                    backend::run(&memset, stream)?;
                }
                at += size(one);
                messages.fetch(&back, &theirs, (sorted, one.input.cast_mut()), width(one));
                received.push(UnpermuteArgs { input: sorted, rows, ..*one });
            }
            messages.run("nvte_ep_combine", stream)?;
            received.iter().try_for_each(|one| run_sums(one, stream))
        })
    }
}

/// Pieces of rows between ranks; those that stay are copies.
struct Messages<'a> {
    ranks: &'a Communicator,
    list: Vec<Message>,
    copies: Vec<(*mut c_void, *mut c_void, usize)>,
}

impl Messages<'_> {
    /// From own rows to those of experts.
    fn add(
        &mut self,
        out: &[Piece],
        coming: &[Piece],
        (own, experts): (*mut c_void, *mut c_void),
        width: usize,
    ) {
        self.both(out, coming, (own, experts), width, false);
    }

    /// From the rows of experts to the own ones.
    fn fetch(
        &mut self,
        back: &[Piece],
        theirs: &[Piece],
        (own, experts): (*mut c_void, *mut c_void),
        width: usize,
    ) {
        self.both(back, theirs, (own, experts), width, true);
    }

    fn both(
        &mut self,
        of_tokens: &[Piece],
        of_experts: &[Piece],
        (own, experts): (*mut c_void, *mut c_void),
        width: usize,
        back: bool,
    ) {
        let rank = self.ranks.rank();
        let row = |memory: *mut c_void, row: usize| memory.wrapping_byte_add(row * width);
        for piece in of_tokens.iter().filter(|piece| piece.rows > 0) {
            let (here, bytes) = (row(own, piece.own_row), piece.rows * width);
            if piece.peer == rank {
                let there = row(experts, piece.expert_row);
                let (to, from) = if back { (here, there) } else { (there, here) };
                self.copies.push((to, from, bytes));
                continue;
            }
            let data = here.cast();
            self.list.push(Message { data, bytes, peer: piece.peer, receive: back });
        }
        for piece in of_experts.iter().filter(|piece| piece.rows > 0 && piece.peer != rank) {
            let data = row(experts, piece.expert_row).cast();
            let bytes = piece.rows * width;
            self.list.push(Message { data, bytes, peer: piece.peer, receive: !back });
        }
    }

    fn run(self, name: &str, stream: cudaStream_t) -> Result<()> {
        for (to, from, bytes) in self.copies {
            let kind = CopyKind::NVTEX_COPY_ON_DEVICE;
            // SAFETY: pieces lie within the rows of the plan, for which both memories have room.
            unsafe { nvtex::memcpy(to, from.cast_const(), bytes, kind, stream)? };
        }
        // SAFETY: as above.
        unsafe { self.ranks.exchange_messages(&self.list, name, stream) }
    }
}
