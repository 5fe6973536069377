//! Collectives through the shared memory of a segment, for ranks that are threads or processes of one host. All are
//! made of meetings: each rank writes to its own room, all meet, and each reads the rooms of the others. Data on
//! a device are staged through the same room, so that several ranks may have one device and get the same bits.
#![allow(unsafe_code)]

use super::State;
use super::call::{Call, Operation, Reduction};
use super::segment::{Failure, Segment};
use crate::backend::args::CopyKind::{self, *};
use crate::backend::domain::Domain;
use crate::op::nvtex::rank_sum as sum;
use crate::types::cudaStream_t;
use std::ffi::c_void;
use std::time::{Duration, Instant};

/// Bytes of an all-reduce that every rank sums whole: one meeting is then cheaper than two.
const ONE_SHOT: usize = 8 << 10;

/// Elements of a share of an all-reduce are a multiple of this.
const SHARE: usize = 16;

/// Moves data between the memory of calls and that of the host.
#[derive(Clone, Copy)]
pub struct Access<'a> {
    pub domain: Option<&'a Domain>,
    pub stream: cudaStream_t,
}

impl<'a> Access<'a> {
    pub fn new(domain: &'a Domain, stream: cudaStream_t) -> Self {
        Self { domain: (!domain.is_host()).then_some(domain), stream }
    }

    /// # Safety
    /// Both have that many bytes, the one on the device being `kind`'s.
    unsafe fn copy(
        &self,
        to: *mut u8,
        from: *const u8,
        bytes: usize,
        kind: CopyKind,
    ) -> Result<(), Failure> {
        if bytes == 0 {
            return Ok(());
        }
        match self.domain {
            // SAFETY: as the caller says.
            None => unsafe { std::ptr::copy(from, to, bytes) },
            Some(domain) => {
                let (to, from) = (to.cast::<c_void>(), from.cast::<c_void>());
                // SAFETY: as the caller says.
                let copied = unsafe { domain.memcpy(to, from, bytes, kind, self.stream) };
                copied.map_err(|error| Failure::device(error.message))?;
            }
        }
        Ok(())
    }

    /// From the memory of a call to that of the host.
    ///
    /// # Safety
    /// Both have that many bytes.
    pub unsafe fn get(&self, to: *mut u8, from: *const u8, bytes: usize) -> Result<(), Failure> {
        // SAFETY: as the caller says.
        unsafe { self.copy(to, from, bytes, NVTEX_COPY_TO_HOST) }
    }

    /// From the memory of the host to that of a call.
    ///
    /// # Safety
    /// Both have that many bytes.
    pub unsafe fn put(&self, to: *mut u8, from: *const u8, bytes: usize) -> Result<(), Failure> {
        // SAFETY: as the caller says.
        unsafe { self.copy(to, from, bytes, NVTEX_COPY_TO_DEVICE) }
    }

    /// Waits until copies are done.
    pub fn settle(&self) -> Result<(), Failure> {
        let waited = self.domain.map_or(Ok(()), |domain| domain.synchronize(self.stream));
        waited.map_err(|error| Failure::device(error.message))
    }
}

/// A message of an exchange.
#[derive(Clone, Copy)]
pub struct Transfer {
    pub data: *mut u8,
    pub bytes: usize,
    pub peer: usize,
    pub receive: bool,
    pub call: Call,
}

/// One call of a rank through a segment.
pub struct Turn<'a> {
    pub segment: &'a Segment,
    pub state: &'a mut State,
    pub rank: usize,
    pub limit: Duration,
    pub access: Access<'a>,
}

impl Turn<'_> {
    /// Announces a call, meets all ranks, and compares.
    pub fn rendezvous(&mut self, call: &Call) -> Result<(), Failure> {
        self.segment.announce(call, call.number);
        self.meet()?;
        self.segment.agree(call)
    }

    /// Meets all ranks.
    pub fn meet(&mut self) -> Result<(), Failure> {
        self.state.meetings += 1;
        self.segment.meet(self.state.meetings, self.limit)
    }

    /// Offset and length of the pieces of `total`, at least one, with the half of the room for each.
    fn pieces(total: usize, most: usize) -> impl Iterator<Item = (usize, usize)> {
        let count = total.div_ceil(most).max(1);
        (0..count).map(move |piece| (piece * most, most.min(total - piece * most)))
    }

    /// The half that is free now.
    fn half(&mut self) -> usize {
        self.state.half ^= 1;
        self.state.half
    }

    /// Runs a collective with checked arguments.
    ///
    /// # Safety
    /// The memory is as large as the operation of the call says.
    pub unsafe fn run(
        &mut self,
        call: &Call,
        send: *const u8,
        recv: *mut u8,
    ) -> Result<(), Failure> {
        self.segment.announce(call, call.number);
        // SAFETY: as the caller says.
        unsafe {
            match call.operation {
                Some(Operation::AllGather | Operation::Split) => self.all_gather(call, send, recv),
                Some(Operation::AllToAll) => self.exchange_parts(call, send, recv, false),
                Some(Operation::ReduceScatter) => self.exchange_parts(call, send, recv, true),
                Some(Operation::AllReduce) => self.all_reduce(call, send, recv),
                Some(Operation::Broadcast) => self.broadcast(call, recv),
                _ => self.first_meeting(call, 0),
            }
        }
    }

    /// Meets after a piece has been written; the first time the calls are compared, before anything is read.
    fn first_meeting(&mut self, call: &Call, offset: usize) -> Result<(), Failure> {
        self.access.settle()?;
        self.meet()?;
        if offset == 0 { self.segment.agree(call) } else { Ok(()) }
    }

    /// # Safety
    /// `send` has the bytes of the call, `recv` those of all ranks.
    unsafe fn all_gather(
        &mut self,
        call: &Call,
        send: *const u8,
        recv: *mut u8,
    ) -> Result<(), Failure> {
        let (bytes, access) = (call.bytes(), self.access);
        for (offset, len) in Self::pieces(bytes, self.segment.half()) {
            let half = self.half();
            // SAFETY: pieces lie within the buffers and the rooms.
            unsafe {
                access.get(self.segment.staging(self.rank, half), send.wrapping_add(offset), len)?
            };
            self.first_meeting(call, offset)?;
            for rank in 0..self.segment.size() {
                let to = recv.wrapping_add(rank * bytes + offset);
                // SAFETY: as above; the room stays as it is until the meeting after the next.
                unsafe { access.put(to, self.segment.staging(rank, half), len)? };
            }
            access.settle()?;
        }
        Ok(())
    }

    /// An all-to-all, or with `sum` a reduce-scatter: part `rank` of all, side by side or reduced.
    ///
    /// # Safety
    /// `send` has the bytes of the call for each rank; `recv` as well, or once if they are reduced.
    unsafe fn exchange_parts(
        &mut self,
        call: &Call,
        send: *const u8,
        recv: *mut u8,
        sum: bool,
    ) -> Result<(), Failure> {
        let (bytes, size, access) = (call.bytes(), self.segment.size(), self.access);
        let most = (self.segment.half() / size) & !63;
        for (offset, len) in Self::pieces(bytes, most) {
            let half = self.half();
            let own = self.segment.staging(self.rank, half);
            for rank in 0..size {
                let from = send.wrapping_add(rank * bytes + offset);
                // SAFETY: pieces lie within the buffers and the rooms.
                unsafe { access.get(own.wrapping_add(rank * most), from, len)? };
            }
            self.first_meeting(call, offset)?;
            let part =
                |rank| self.segment.staging(rank, half).wrapping_add(self.rank * most).cast_const();
            if sum {
                let parts: Vec<_> = (0..size).map(part).collect();
                let to = own.wrapping_add(self.rank * most);
                let count = len / call.dtype_bytes();
                // SAFETY: the own part of the own room is read by this rank alone.
                unsafe {
                    sum::reduce(call.dtype, call.reduction == Reduction::Max, &parts, to, count);
                    access.put(recv.wrapping_add(offset), to, len)?;
                }
            } else {
                for rank in 0..size {
                    let to = recv.wrapping_add(rank * bytes + offset);
                    // SAFETY: as above.
                    unsafe { access.put(to, part(rank), len)? };
                }
            }
            access.settle()?;
        }
        Ok(())
    }

    /// # Safety
    /// Both have the bytes of the call.
    unsafe fn all_reduce(
        &mut self,
        call: &Call,
        send: *const u8,
        recv: *mut u8,
    ) -> Result<(), Failure> {
        let (size, access, element) = (self.segment.size(), self.access, call.dtype_bytes());
        for (offset, len) in Self::pieces(call.bytes(), self.segment.half()) {
            let half = self.half();
            let own = self.segment.staging(self.rank, half);
            // SAFETY: pieces lie within the buffers and the rooms.
            unsafe { access.get(own, send.wrapping_add(offset), len)? };
            self.first_meeting(call, offset)?;
            let count = len / element;
            let whole = len <= ONE_SHOT;
            let share = match whole {
                true => count,
                false => count.div_ceil(size).next_multiple_of(SHARE),
            };
            let shares = |rank: usize| {
                let first = if whole { 0 } else { (rank * share).min(count) };
                (first * element, share.min(count - first))
            };
            let (first, number) = shares(self.rank);
            let at = |rank| self.segment.staging(rank, half).wrapping_add(first);
            let parts: Vec<_> = (0..size).map(|rank| at(rank).cast_const()).collect();
            if whole {
                let scratch = &mut self.state.scratch;
                scratch.resize(ONE_SHOT.div_ceil(8), 0);
                let to = scratch.as_mut_ptr().cast::<u8>();
                // SAFETY: the memory has room for a piece of this size.
                unsafe {
                    sum::reduce(call.dtype, call.reduction == Reduction::Max, &parts, to, number);
                    access.put(recv.wrapping_add(offset), to, len)?;
                }
                access.settle()?;
                continue;
            }
            // SAFETY: the own share of the own room is read by this rank alone, until the next meeting.
            unsafe {
                sum::reduce(
                    call.dtype,
                    call.reduction == Reduction::Max,
                    &parts,
                    at(self.rank),
                    number,
                )
            };
            self.meet()?;
            for rank in 0..size {
                let (first, number) = shares(rank);
                let from = self.segment.staging(rank, half).wrapping_add(first);
                // SAFETY: as above.
                unsafe { access.put(recv.wrapping_add(offset + first), from, number * element)? };
            }
            access.settle()?;
        }
        Ok(())
    }

    /// # Safety
    /// `data` has the bytes of the call.
    unsafe fn broadcast(&mut self, call: &Call, data: *mut u8) -> Result<(), Failure> {
        let access = self.access;
        for (offset, len) in Self::pieces(call.bytes(), self.segment.half()) {
            let (half, at) = (self.half(), data.wrapping_add(offset));
            let room = self.segment.staging(call.root, half);
            if self.rank == call.root {
                // SAFETY: pieces lie within the buffer and the room.
                unsafe { access.get(room, at, len)? };
            }
            self.first_meeting(call, offset)?;
            if self.rank != call.root {
                // SAFETY: as above.
                unsafe { access.put(at, room, len)? };
                access.settle()?;
            }
        }
        Ok(())
    }

    /// Sends and receives messages until all are done.
    ///
    /// # Safety
    /// Each has its bytes.
    pub unsafe fn exchange(&mut self, call: &Call, transfers: &[Transfer]) -> Result<(), Failure> {
        self.segment.announce(call, self.state.number + 1);
        // What has been moved of each; a message has at least one piece.
        let mut moved: Vec<Option<usize>> = vec![Some(0); transfers.len()];
        let mut deadline = Instant::now() + self.limit;
        loop {
            let mut progress = false;
            for place in 0..transfers.len() {
                while let Some(done) = moved[place] {
                    // Messages of a pair in one direction are in the order of the list.
                    if !is_next(transfers, &moved, place) {
                        break;
                    }
                    // SAFETY: as the caller says.
                    let Some(len) = (unsafe { self.piece(&transfers[place], done)? }) else {
                        break;
                    };
                    let done = done + len;
                    moved[place] = (done < transfers[place].bytes).then_some(done);
                    progress = true;
                }
            }
            let Some(first) = moved.iter().position(Option::is_some) else { return Ok(()) };
            if progress {
                deadline = Instant::now() + self.limit;
                continue;
            }
            let waiting =
                |place: &usize| moved[*place].is_some() && is_next(transfers, &moved, *place);
            let ready = || {
                let mut waiting =
                    (0..transfers.len()).filter(waiting).map(|place| transfers[place]);
                waiting.any(|one| match one.receive {
                    true => self.segment.incoming(one.peer).is_some(),
                    false => self.segment.outgoing(one.peer).is_some(),
                })
            };
            let partners = |rank| {
                (0..transfers.len()).any(|at| moved[at].is_some() && transfers[at].peer == rank)
            };
            let missing = (transfers[first].peer, &partners as &dyn Fn(usize) -> bool);
            self.segment.wait_for_mail(&ready, missing, deadline, self.limit)?;
        }
    }

    /// Moves the next piece of a message; none if that is not possible now.
    ///
    /// # Safety
    /// The message has its bytes.
    unsafe fn piece(&mut self, one: &Transfer, done: usize) -> Result<Option<usize>, Failure> {
        let len = self.segment.piece().min(one.bytes - done);
        let at = one.data.wrapping_add(done);
        if !one.receive {
            let Some(room) = self.segment.outgoing(one.peer) else { return Ok(None) };
            // SAFETY: the room of a mailbox has that many bytes.
            unsafe { self.access.get(room, at, len)? };
            self.access.settle()?;
            self.segment.send(one.peer, &one.call);
            return Ok(Some(len));
        }
        let Some((room, call)) = self.segment.incoming(one.peer) else { return Ok(None) };
        // The count is that of the message, in each of its pieces.
        let call = Call { number: one.call.number, ..call };
        if let Some(difference) = call.difference(one.peer, &one.call, self.rank) {
            return Err(Failure::argument(difference));
        }
        // SAFETY: as above.
        unsafe { self.access.put(at, room, len)? };
        self.access.settle()?;
        self.segment.take(one.peer);
        Ok(Some(len))
    }
}

/// Whether no earlier message of the same pair and direction is still to be moved.
fn is_next(transfers: &[Transfer], moved: &[Option<usize>], place: usize) -> bool {
    let same = |at: usize| {
        let (one, other) = (&transfers[at], &transfers[place]);
        (one.peer, one.receive) == (other.peer, other.receive)
    };
    (0..place).all(|at| moved[at].is_none() || !same(at))
}
