//! Collectives of the program, such as those of MPI. What the program does not have is made of what it has, at worst
//! of all-gathers. They get memory of the host: data on a device are staged.
#![allow(unsafe_code)]

use super::call::{Call, Operation, Reduction, WORDS};
use super::exports::{NVTEXCollectives, NVTEXMessage};
use super::host::{Access, Transfer};
use super::segment::Failure;
use crate::op::nvtex::rank_sum as sum;
use std::ffi::{c_int, c_void};

/// Bytes up to which an all-reduce gathers all values instead of sums of shares.
const SMALL: usize = 64 << 10;

pub struct Callbacks {
    table: NVTEXCollectives,
    /// Made by a split, and released with this.
    owned: bool,
}

// SAFETY: the program promises that its functions may be called from any thread, one at a time; the pointer is only
// given back to them.
unsafe impl Send for Callbacks {}
// SAFETY: as above.
unsafe impl Sync for Callbacks {}

type Done<R = ()> = Result<R, Failure>;

fn answer(function: &str, answer: c_int) -> Done {
    match answer {
        0 => Ok(()),
        answer => Err(Failure::device(format!("{function} of the program has returned {answer}"))),
    }
}

/// Memory of the host for a call.
fn room(bytes: usize) -> Done<Vec<u64>> {
    let mut room = Vec::new();
    let words = bytes.div_ceil(8);
    match room.try_reserve_exact(words) {
        Ok(()) => {
            room.resize(words, 0);
            Ok(room)
        }
        Err(_) => Err(Failure::device(format!("out of host memory: {bytes} bytes"))),
    }
}

impl Callbacks {
    /// None if the table lacks what all others can be made of.
    pub fn new(table: NVTEXCollectives) -> Option<Self> {
        table.all_gather.map(|_| Self { table, owned: false })
    }

    fn user(&self) -> *mut c_void {
        self.table.user
    }

    /// # Safety
    /// `send` has the bytes, `recv` those of all ranks.
    unsafe fn all_gather(&self, send: *const u8, recv: *mut u8, bytes: usize) -> Done {
        let Some(function) = self.table.all_gather else { return Ok(()) };
        // SAFETY: the memory is as large as the function is told.
        answer("all_gather", unsafe { function(self.user(), send.cast(), recv.cast(), bytes) })
    }

    /// Bytes of all ranks, in their order.
    pub fn gather(&self, own: &[u8], size: usize) -> Done<Vec<u8>> {
        let mut all = vec![0; own.len() * size];
        // SAFETY: the memory is that of all ranks.
        unsafe { self.all_gather(own.as_ptr(), all.as_mut_ptr(), own.len())? };
        Ok(all)
    }

    /// Compares the calls of all ranks. Only ranks that make a collective at all can disagree here.
    pub fn agree(&self, call: &Call, size: usize) -> Done {
        let own = call.words().map(u64::to_ne_bytes);
        let all = self.gather(own.as_flattened(), size)?;
        let words: Vec<u64> =
            all.as_chunks::<8>().0.iter().map(|bytes| u64::from_ne_bytes(*bytes)).collect();
        let calls: Vec<Call> = words.as_chunks::<WORDS>().0.iter().map(Call::of_words).collect();
        for (rank, other) in calls.iter().enumerate() {
            if let Some(difference) = calls[0].difference(0, other, rank) {
                return Err(Failure::argument(difference));
            }
        }
        Ok(())
    }

    /// Runs a collective with checked arguments, on memory of the host.
    ///
    /// # Safety
    /// The memory is as large as the operation of the call says.
    pub unsafe fn run(
        &self,
        call: &Call,
        (rank, size): (usize, usize),
        send: *const u8,
        recv: *mut u8,
        access: Access,
        ordered: bool,
    ) -> Done {
        let (bytes, all) = (call.bytes(), size * call.bytes());
        let (sent, received) = match call.operation {
            Some(Operation::AllGather) => (bytes, all),
            Some(Operation::ReduceScatter) => (all, bytes),
            Some(Operation::AllToAll) => (all, all),
            Some(Operation::AllReduce) => (bytes, bytes),
            _ => (0, bytes),
        };
        if access.domain.is_none() {
            // SAFETY: as the caller says.
            return unsafe { self.on_host(call, (rank, size), send, recv, ordered) };
        }
        let (mut from, mut to) = (room(sent)?, room(received)?);
        let (from, to) = (from.as_mut_ptr().cast::<u8>(), to.as_mut_ptr().cast::<u8>());
        // SAFETY: rooms of these sizes, and memory as the caller says.
        unsafe {
            access.get(from, send, sent)?;
            if call.operation == Some(Operation::Broadcast) && rank == call.root {
                access.get(to, recv, bytes)?;
            }
            access.settle()?;
            self.on_host(call, (rank, size), from, to, ordered)?;
            access.put(recv, to, received)?;
        }
        access.settle()
    }

    /// # Safety
    /// As [`Self::run`].
    unsafe fn on_host(
        &self,
        call: &Call,
        (rank, size): (usize, usize),
        send: *const u8,
        recv: *mut u8,
        ordered: bool,
    ) -> Done {
        let (bytes, user, table) = (call.bytes(), self.user(), &self.table);
        let reduction = call.reduction as c_int;
        // SAFETY: the functions are told the sizes that the caller vouches for.
        unsafe {
            match call.operation {
                Some(Operation::Barrier) => match table.barrier {
                    Some(function) => answer("barrier", function(user)),
                    None => self.gather(&[0], size).map(|_| ()),
                },
                Some(Operation::AllGather) => self.all_gather(send, recv, bytes),
                Some(Operation::AllToAll) => self.all_to_all(send, recv, bytes, (rank, size)),
                Some(Operation::Broadcast) => match table.broadcast {
                    Some(function) => {
                        answer("broadcast", function(user, recv.cast(), bytes, call.root as c_int))
                    }
                    None => {
                        let mut all = room(size * bytes)?;
                        let all = all.as_mut_ptr().cast::<u8>();
                        self.all_gather(recv, all, bytes)?;
                        recv.copy_from_nonoverlapping(all.add(call.root * bytes), bytes);
                        Ok(())
                    }
                },
                Some(Operation::ReduceScatter) => match table.reduce_scatter {
                    Some(function) if !ordered => {
                        let (send, recv) = (send.cast(), recv.cast());
                        let done = function(user, send, recv, call.count, call.dtype, reduction);
                        answer("reduce_scatter", done)
                    }
                    _ => self.sum_parts(call, send, recv, (rank, size)),
                },
                Some(Operation::AllReduce) => match table.all_reduce {
                    Some(function) if !ordered => {
                        let (send, recv) = (send.cast(), recv.cast());
                        let done = function(user, send, recv, call.count, call.dtype, reduction);
                        answer("all_reduce", done)
                    }
                    _ => self.sum_all(call, send, recv, (rank, size)),
                },
                _ => Ok(()),
            }
        }
    }

    /// # Safety
    /// Both have the bytes for each rank.
    unsafe fn all_to_all(
        &self,
        send: *const u8,
        recv: *mut u8,
        bytes: usize,
        (rank, size): (usize, usize),
    ) -> Done {
        // SAFETY: as the caller says; the gathered parts are those of all ranks.
        unsafe {
            if let Some(function) = self.table.all_to_all {
                let done = function(self.user(), send.cast(), recv.cast(), bytes);
                return answer("all_to_all", done);
            }
            let mut all = room(size * size * bytes)?;
            let all = all.as_mut_ptr().cast::<u8>();
            self.all_gather(send, all, size * bytes)?;
            for from in 0..size {
                let part = all.add((from * size + rank) * bytes);
                recv.add(from * bytes).copy_from_nonoverlapping(part, bytes);
            }
        }
        Ok(())
    }

    /// Reduces the own part of all ranks, in their order.
    ///
    /// # Safety
    /// `send` has the bytes of the call for each rank, `recv` once.
    unsafe fn sum_parts(
        &self,
        call: &Call,
        send: *const u8,
        recv: *mut u8,
        (rank, size): (usize, usize),
    ) -> Done {
        let bytes = call.bytes();
        let mut parts = room(size * bytes)?;
        let parts = parts.as_mut_ptr().cast::<u8>();
        // SAFETY: as the caller says.
        unsafe {
            self.all_to_all(send, parts, bytes, (rank, size))?;
            let parts: Vec<_> =
                (0..size).map(|rank| parts.add(rank * bytes).cast_const()).collect();
            sum::reduce(call.dtype, call.reduction == Reduction::Max, &parts, recv, call.count);
        }
        Ok(())
    }

    /// Reduces the values of all ranks, in their order.
    ///
    /// # Safety
    /// Both have the bytes of the call.
    unsafe fn sum_all(
        &self,
        call: &Call,
        send: *const u8,
        recv: *mut u8,
        (rank, size): (usize, usize),
    ) -> Done {
        let (bytes, element) = (call.bytes(), call.dtype_bytes());
        // SAFETY: rooms of these sizes, and memory as the caller says.
        unsafe {
            if bytes <= SMALL || self.table.all_to_all.is_none() {
                let mut all = room(size * bytes)?;
                let all = all.as_mut_ptr().cast::<u8>();
                self.all_gather(send, all, bytes)?;
                let all: Vec<_> =
                    (0..size).map(|rank| all.add(rank * bytes).cast_const()).collect();
                sum::reduce(call.dtype, call.reduction == Reduction::Max, &all, recv, call.count);
                return Ok(());
            }
            let share = Call { count: call.count.div_ceil(size), ..*call };
            let (mut padded, mut own) = (room(size * share.bytes())?, room(share.bytes())?);
            let (padded, own) = (padded.as_mut_ptr().cast::<u8>(), own.as_mut_ptr().cast::<u8>());
            debug_assert!(size * share.count * element >= bytes);
            padded.copy_from_nonoverlapping(send, bytes);
            self.sum_parts(&share, padded, own, (rank, size))?;
            self.all_gather(own, padded, share.bytes())?;
            recv.copy_from_nonoverlapping(padded, bytes);
        }
        Ok(())
    }

    /// # Safety
    /// Each transfer has its bytes.
    pub unsafe fn exchange(&self, transfers: &[Transfer], access: Access) -> Done {
        let Some(function) = self.table.exchange else {
            return Err(Failure::device(
                "the program's collectives have no function exchange, which messages between two ranks need",
            ));
        };
        let rooms = transfers.iter().map(|one| room(access.domain.map_or(0, |_| one.bytes)));
        let mut rooms = rooms.collect::<Result<Vec<_>, _>>()?;
        let mut messages = Vec::new();
        for (one, room) in transfers.iter().zip(&mut rooms) {
            let data = match access.domain {
                None => one.data,
                Some(_) => room.as_mut_ptr().cast::<u8>(),
            };
            if access.domain.is_some() && !one.receive {
                // SAFETY: the room has the bytes of the message.
                unsafe { access.get(data, one.data, one.bytes)? };
            }
            let (peer, receive) = (one.peer as c_int, c_int::from(one.receive));
            let (data, bytes) = (data.cast(), one.bytes);
            messages.push(NVTEXMessage { data, bytes, peer, receive });
        }
        access.settle()?;
        // SAFETY: the messages are valid for the call.
        answer("exchange", unsafe { function(self.user(), messages.as_ptr(), messages.len()) })?;
        for (one, message) in transfers.iter().zip(&messages) {
            if access.domain.is_some() && one.receive {
                // SAFETY: as above.
                unsafe { access.put(one.data, message.data.cast(), one.bytes)? };
            }
        }
        access.settle()
    }

    /// The collectives of the ranks of a color; none for a negative one.
    pub fn split(&self, color: i32, key: i32) -> Done<Option<Self>> {
        let Some(function) = self.table.split else {
            return Err(Failure::device("the program's collectives have no function split"));
        };
        let mut user = std::ptr::null_mut();
        // SAFETY: the function writes one pointer.
        answer("split", unsafe { function(self.user(), color, key, &mut user) })?;
        let table = NVTEXCollectives { user, ..self.table };
        Ok((color >= 0).then_some(Self { table, owned: true }))
    }

    pub fn abort(&self) {
        if let Some(function) = self.table.abort {
            // SAFETY: the program gave the function for this call.
            unsafe { function(self.user()) };
        }
    }

    /// Releases nothing when dropped.
    pub fn forget(&mut self) {
        self.owned = false;
    }
}

impl Drop for Callbacks {
    fn drop(&mut self) {
        if let Some(function) = self.table.release.filter(|_| self.owned) {
            // SAFETY: the communicator of the split is used no more.
            unsafe { function(self.user()) };
        }
    }
}

/// The number of a reduction as callbacks get it.
const _: () = assert!(Reduction::Sum as i32 == 0 && Reduction::Max as i32 == 1);
