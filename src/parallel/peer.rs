//! Messages between GPUs of one host by their copy engines, which take no multiprocessors from the products that run
//! beside them. Each rank has memory that the others write to: a slot for each distance between ranks, and counters
//! by which streams wait for those of other ranks, so that messages are part of a captured graph, too. Calls of one
//! communicator follow each other on the device as they do on the host: programs put them on one stream, or on streams
//! that wait for each other.
#![allow(unsafe_code)]

use super::call::{Call, Operation};
use super::host::Turn;
use super::nccl::Nccl;
use super::segment::Failure;
use super::*;
use crate::backend::args::{BackendStatus, Outcome};
use std::ffi::c_int;
use std::sync::atomic::AtomicPtr;

/// The start of each rank's memory, which has the counters.
const COUNTERS: usize = 64 << 10;

/// Bytes between counters, and counters of a slot: arrived, taken, count.
const COUNTER: usize = 128;
const TAKEN: usize = COUNTER;
const COUNT: usize = 2 * COUNTER;
const SLOT: usize = 3 * COUNTER;
const _: () = assert!(MOST_RANKS * SLOT <= COUNTERS);

/// Sizes of slots are multiples of this.
const GRAIN: usize = 2 << 20;

/// How long a communicator that is destroyed waits for what others have not taken away.
const PATIENCE: Duration = Duration::from_secs(1);

/// `cudaIpcMemHandle_t`
const HANDLE: usize = 64;

/// A message to one rank, and one from another. The same struct is in `kernels/nvtex/peer.cu`.
#[repr(C)]
struct PeerShift {
    send: *const u8,
    recv: *mut u8,
    bytes: usize,
    their_slot: *mut u8,
    their_arrived: *mut u8,
    taken: *const u8,
    slot: *const u8,
    arrived: *const u8,
    their_taken: *mut u8,
    count: *mut u8,
    stop: *const c_int,
}

unsafe extern "C" {
    /// A word of the host, 0, that kernels may read.
    fn nvte_cuda_peer_word(word: *mut *mut c_int) -> Outcome;
    fn nvte_cuda_peer_free_word(word: *mut c_int) -> Outcome;
    /// Memory of zeros that other processes may open by the handle of 64 bytes.
    fn nvte_cuda_peer_allocate(bytes: usize, memory: *mut *mut u8, handle: *mut u8) -> Outcome;
    fn nvte_cuda_peer_free(memory: *mut u8) -> Outcome;
    /// Memory of another process.
    fn nvte_cuda_peer_open(handle: *const u8, memory: *mut *mut u8) -> Outcome;
    fn nvte_cuda_peer_close(memory: *mut u8) -> Outcome;
    /// Whether all that was sent from so many slots has been taken away.
    fn nvte_cuda_peer_settled(memory: *const u8, slots: usize, settled: *mut bool) -> Outcome;
    /// Queues a message to one rank and one from another.
    fn nvte_cuda_peer_shift(args: *const PeerShift, stream: cudaStream_t) -> Outcome;
}

fn done(outcome: Outcome) -> std::result::Result<(), Failure> {
    match outcome.status() {
        BackendStatus::NVTEX_BACKEND_OK => Ok(()),
        _ => Err(Failure::device(outcome.reason())),
    }
}

/// The memory of a communicator for messages.
#[derive(Default)]
pub struct Peers {
    memory: Mutex<Memory>,
    /// The word that stops waits; null without memory.
    stop: AtomicPtr<c_int>,
}

#[derive(Default)]
enum Memory {
    #[default]
    Untried,
    /// Some GPU of the ranks does not reach another one.
    Refused,
    Ready(Slots),
}

/// Slots of so many bytes on each rank, of which `places` has the addresses in this process.
struct Slots {
    bytes: usize,
    rank: usize,
    places: Vec<*mut u8>,
    stop: *mut c_int,
}

// SAFETY: the addresses are those of devices, which any thread may use.
unsafe impl Send for Slots {}

impl Peers {
    /// Ends what waits on the device for other ranks.
    pub fn stop(&self) {
        let word = self.stop.load(Ordering::Acquire);
        if !word.is_null() {
            // SAFETY: the word lives as long as this.
            unsafe { word.write_volatile(1) };
        }
    }

    /// The word that stops waits.
    fn word(&self) -> std::result::Result<*mut c_int, Failure> {
        let mut word = self.stop.load(Ordering::Acquire);
        if word.is_null() {
            // SAFETY: writes the pointer.
            done(unsafe { nvte_cuda_peer_word(&mut word) })?;
            self.stop.store(word, Ordering::Release);
        }
        Ok(word)
    }

    /// Releases nothing when dropped.
    pub fn forget(&mut self) {
        self.stop = AtomicPtr::default();
        if let Memory::Ready(slots) = std::mem::take(&mut *lock(&self.memory)) {
            std::mem::forget(slots);
        }
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        *lock(&self.memory) = Memory::Untried;
        let word = *self.stop.get_mut();
        // SAFETY: a wait that has been stopped may still read the word; all others are done.
        if !word.is_null() && unsafe { word.read_volatile() } == 0 {
            // SAFETY: nobody reads the word any more.
            let _ = unsafe { nvte_cuda_peer_free_word(word) };
        }
    }
}

impl Slots {
    /// Memory on all ranks, each of which has opened that of the others; none if that cannot be.
    fn create(
        turn: &mut Turn,
        call: &Call,
        bytes: usize,
        stop: *mut c_int,
    ) -> std::result::Result<Option<Self>, Failure> {
        let (rank, ranks) = (turn.rank, turn.segment.size());
        let mut own = std::ptr::null_mut();
        let mut card = [0u8; HANDLE + 1];
        let total = COUNTERS + (ranks - 1) * bytes;
        // SAFETY: writes the pointer and the handle.
        let made = unsafe { nvte_cuda_peer_allocate(total, &mut own, card.as_mut_ptr()) };
        card[HANDLE] = u8::from(made.status() == BackendStatus::NVTEX_BACKEND_OK);
        let cards = gather(turn, call, &card)?;
        let cards: Vec<&[u8]> = cards.chunks_exact(card.len()).collect();
        let mut slots = (card[HANDLE] == 1).then(|| {
            let places = vec![std::ptr::null_mut(); ranks];
            let mut slots = Self { bytes, rank, places, stop };
            slots.places[rank] = own;
            slots
        });
        let all = cards.iter().all(|card| card[HANDLE] == 1);
        let mut opened = all;
        for (other, card) in cards.iter().enumerate().filter(|&(other, _)| all && other != rank) {
            let Some(slots) = &mut slots else { break };
            // SAFETY: the handle is that of another rank's memory.
            let open = unsafe { nvte_cuda_peer_open(card.as_ptr(), &raw mut slots.places[other]) };
            opened &= open.status() == BackendStatus::NVTEX_BACKEND_OK;
        }
        let all = gather(turn, call, &[u8::from(opened)])?.iter().all(|&opened| opened == 1);
        if all {
            return Ok(slots);
        }
        if let Some(slots) = &mut slots {
            slots.close();
        }
        turn.rendezvous(call)?;
        drop(slots);
        Ok(None)
    }

    /// Closes what other ranks have.
    fn close(&mut self) {
        for (rank, place) in self.places.iter_mut().enumerate() {
            if rank != self.rank && !place.is_null() {
                // SAFETY: the memory was opened, and no work of this rank uses it any more.
                let _ = unsafe { nvte_cuda_peer_close(*place) };
                *place = std::ptr::null_mut();
            }
        }
    }

    /// Whether other ranks have taken all that this one has sent.
    fn settled(&self) -> bool {
        let mut settled = false;
        let slots = self.places.len() - 1;
        // SAFETY: the memory begins with the counters of the slots.
        let asked = unsafe { nvte_cuda_peer_settled(self.places[self.rank], slots, &mut settled) };
        settled || asked.status() != BackendStatus::NVTEX_BACKEND_OK
    }

    /// Queues a message over a distance, and that which comes over the same one.
    ///
    /// # Safety
    /// Both have that many bytes, for which slots have room, on all ranks.
    unsafe fn queue(
        &self,
        (send, recv, bytes): Message,
        distance: usize,
        stream: cudaStream_t,
    ) -> std::result::Result<(), Failure> {
        let (ranks, slot) = (self.places.len(), distance - 1);
        let [own, next, before] =
            [0, distance, ranks - distance].map(|step| self.places[(self.rank + step) % ranks]);
        let counter = |base: *mut u8, which| base.wrapping_add(slot * SLOT + which);
        let data = |base: *mut u8| base.wrapping_add(COUNTERS + slot * self.bytes);
        let args = PeerShift {
            send,
            recv,
            bytes,
            their_slot: data(next),
            their_arrived: counter(next, 0),
            taken: counter(own, TAKEN),
            slot: data(own),
            arrived: counter(own, 0),
            their_taken: counter(before, TAKEN),
            count: counter(own, COUNT),
            stop: self.stop,
        };
        // SAFETY: as the caller says.
        done(unsafe { nvte_cuda_peer_shift(&args, stream) })
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        // SAFETY: the word lives as long as the memory.
        let stopped = || unsafe { self.stop.read_volatile() != 0 };
        while stopped() || !self.settled() {
            if stopped() || Instant::now() >= deadline {
                // Another rank may still write to the memory, which stays.
                return;
            }
            std::thread::yield_now();
        }
        self.close();
        // SAFETY: nobody writes to the memory any more.
        let _ = unsafe { nvte_cuda_peer_free(self.places[self.rank]) };
    }
}

/// Bytes of all ranks, through the memory of the host.
fn gather(turn: &mut Turn, call: &Call, own: &[u8]) -> std::result::Result<Vec<u8>, Failure> {
    let mut all = vec![0; own.len() * turn.segment.size()];
    let call = Call { count: own.len(), ..*call };
    // SAFETY: the memory is that of all ranks.
    unsafe { turn.run(&call, own.as_ptr(), all.as_mut_ptr())? };
    Ok(all)
}

/// Bytes of a rank's part from which a collective goes by copies: smaller ones are faster by NCCL's kernels.
const LEAST: usize = 1 << 20;

/// What a rank sends, gets, and how many bytes they have.
type Message = (*const u8, *mut u8, usize);

impl Communicator {
    /// Runs a collective by messages of copy engines. False, and nothing was done, where it is none that they do, and
    /// where ranks do not reach each other's memory.
    ///
    /// # Safety
    /// The memory is as large as the operation of the call says.
    pub(super) unsafe fn collective_by_copies(
        &self,
        nccl: &Nccl,
        call: &Call,
        (send, recv): (*const u8, *mut u8),
        stream: cudaStream_t,
    ) -> Result<bool> {
        let (ranks, all) = (self.size, call.bytes());
        let part = match call.operation {
            Some(Operation::AllGather) => all,
            Some(Operation::ReduceScatter) if self.options.ordered => all,
            // Sums of shares, which are then gathered.
            Some(Operation::AllReduce)
                if self.options.ordered && call.count.is_multiple_of(16 * ranks) =>
            {
                all / ranks
            }
            _ => return Ok(false),
        };
        let sums = match call.operation {
            Some(Operation::AllGather) => 0,
            _ => ranks * part,
        };
        if part < LEAST || !part.is_multiple_of(16) || self.options.check {
            return Ok(false);
        }
        let mut memory = lock(&nccl.peers.memory);
        if !self.has_room(nccl, &mut memory, part, stream)? {
            return Ok(false);
        }
        let Memory::Ready(slots) = &*memory else { return Ok(false) };
        let mut state = lock(&self.state);
        let queued = self.numbered(&mut state, *call, |_, turn, call| {
            if let Some(turn) = turn {
                turn.segment.announce(&call, call.number);
            }
            let place = |base: *mut u8, rank| base.wrapping_add(rank * part);
            let copy = |from: *const u8, to: *mut u8| {
                if std::ptr::eq(from, to) {
                    return Ok(());
                }
                let (to, from, kind) = (to.cast(), from.cast(), CopyKind::NVTEX_COPY_ON_DEVICE);
                // SAFETY: as the caller says.
                let copied = unsafe { self.domain.memcpy(to, from, part, kind, stream) };
                copied.map_err(|error| Failure::device(error.message))
            };
            // SAFETY: as the caller says; the slots have room for a part.
            let shift = |message, distance| unsafe { slots.queue(message, distance, stream) };
            let own = place(recv, self.rank);
            let (mut shared, mut gathers) = (send, true);
            if sums > 0 {
                let scratch = nccl.scratch(self.domain, sums, stream)?;
                for distance in 1..ranks {
                    let (to, from) = self.neighbours(distance);
                    let sent = place(send.cast_mut(), to).cast_const();
                    shift((sent, place(scratch, from), part), distance)?;
                }
                copy(place(send.cast_mut(), self.rank), place(scratch, self.rank))?;
                gathers = call.operation == Some(Operation::AllReduce);
                let to = if gathers { own } else { recv };
                let count = part / call.dtype_bytes();
                nccl.reduce(self.domain, ranks, &call, (scratch, part), (to, count), stream)?;
                shared = own.cast_const();
            }
            if gathers {
                copy(shared, own)?;
                for distance in 1..ranks {
                    let (_, from) = self.neighbours(distance);
                    shift((shared, place(recv, from), part), distance)?;
                }
            }
            Ok(())
        });
        queued.map(|()| true).map_err(|(call, failure)| self.fail(&call, failure))
    }

    /// [`Communicator::shift`] by copy engines. False, and nothing was done, where ranks do not reach each other's
    /// memory.
    ///
    /// # Safety
    /// Both have that many bytes.
    pub(super) unsafe fn shift_by_copies(
        &self,
        nccl: &Nccl,
        call: &Call,
        message: Message,
        distance: usize,
        stream: cudaStream_t,
    ) -> Result<bool> {
        let mut memory = lock(&nccl.peers.memory);
        if !self.has_room(nccl, &mut memory, message.2, stream)? {
            return Ok(false);
        }
        let Memory::Ready(slots) = &*memory else { return Ok(false) };
        let mut state = lock(&self.state);
        state.exchanges += 1;
        let call = Call { number: state.exchanges, ..*call };
        if let Err(failure) = self.check() {
            return Err(self.fail(&call, failure));
        }
        if let Some(segment) = &self.segment {
            segment.announce(&call, state.number + 1);
        }
        // SAFETY: as the caller says; the slots have room for the bytes.
        let queued = unsafe { slots.queue(message, distance, stream) };
        queued.map(|()| true).map_err(|failure| self.fail(&call, failure))
    }

    /// Whether slots of all ranks have so many bytes; where they have not, ranks meet to make larger ones. There is no
    /// memory in a capture that none was made before.
    fn has_room(
        &self,
        nccl: &Nccl,
        memory: &mut Memory,
        bytes: usize,
        stream: cudaStream_t,
    ) -> Result<bool> {
        if !env().comm_peer || self.segment.is_none() || self.size == 1 {
            return Ok(false);
        }
        match memory {
            Memory::Refused => return Ok(false),
            Memory::Ready(slots) if slots.bytes >= bytes => return Ok(true),
            _ if self.domain.is_capturing(stream)? => return Ok(false),
            _ => self.make_room(nccl, memory, bytes.next_multiple_of(GRAIN), stream)?,
        }
        Ok(matches!(memory, Memory::Ready(_)))
    }

    /// Replaces the memory of all ranks by that of larger slots.
    fn make_room(
        &self,
        nccl: &Nccl,
        memory: &mut Memory,
        bytes: usize,
        stream: cudaStream_t,
    ) -> Result<()> {
        let call = Call::new(Operation::AllGather, NVTEDType::kNVTEByte, 1).named("peer memory");
        let mut state = lock(&self.state);
        let made = self.numbered(&mut state, call, |_, turn, call| {
            let Some(mut turn) = turn else { return Ok(None) };
            let synchronized = self.domain.synchronize(stream);
            synchronized.map_err(|error| Failure::device(error.message))?;
            // Nobody's work uses the memory behind the first meeting, nobody has it open behind the second.
            turn.rendezvous(&call)?;
            if let Memory::Ready(slots) = memory {
                slots.close();
            }
            turn.rendezvous(&call)?;
            *memory = Memory::Untried;
            Slots::create(&mut turn, &call, bytes, nccl.peers.word()?)
        });
        let made = made.map_err(|(call, failure)| self.fail(&call, failure))?;
        *memory = match made {
            Some(slots) => Memory::Ready(slots),
            None => Memory::Refused,
        };
        Ok(())
    }
}
