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
use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;
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

/// What a rank tells the others of its memory.
#[repr(C)]
#[derive(Clone, Copy)]
struct Card {
    /// `cudaIpcMemHandle_t`
    handle: [u8; 64],
    /// For ranks that are threads of this process, which has a number of its own.
    process: u64,
    address: u64,
    device: c_int,
    allocated: c_int,
    /// The memory of all others can be used.
    opened: c_int,
    reserved: c_int,
}

impl Card {
    fn bytes(&self) -> &[u8] {
        // SAFETY: the struct has no padding.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), size_of::<Self>()) }
    }
}

/// A number that no other process has.
fn process() -> u64 {
    static PROCESS: LazyLock<u64> =
        LazyLock::new(|| RandomState::new().hash_one(std::process::id()));
    *PROCESS
}

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
    /// Memory of zeros of the current device, that other processes may open by the handle of 64 bytes. Waits for all that
    /// the device does.
    fn nvte_cuda_peer_allocate(
        bytes: usize,
        memory: *mut *mut u8,
        device: *mut c_int,
        handle: *mut u8,
    ) -> Outcome;
    fn nvte_cuda_peer_free(memory: *mut u8) -> Outcome;
    /// Lets the current device use the memory of another one of this process.
    fn nvte_cuda_peer_reach(device: c_int) -> Outcome;
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
    /// What captured graphs may still use, where larger memory has taken its place.
    replaced: Mutex<Vec<Slots>>,
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
    /// Those of the places that are memory of other processes.
    opened: Vec<*mut u8>,
    /// A captured graph has the addresses.
    captured: bool,
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
        std::mem::forget(std::mem::take(&mut *lock(&self.replaced)));
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        *lock(&self.memory) = Memory::Untried;
        lock(&self.replaced).clear();
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
        let total = COUNTERS + (ranks - 1) * bytes;
        let mut card = Card {
            handle: [0; 64],
            process: process(),
            address: 0,
            device: 0,
            allocated: 0,
            opened: 0,
            reserved: 0,
        };
        // SAFETY: writes the pointer, the device and the handle.
        let made = unsafe {
            nvte_cuda_peer_allocate(total, &mut own, &mut card.device, card.handle.as_mut_ptr())
        };
        card.allocated = c_int::from(made.status() == BackendStatus::NVTEX_BACKEND_OK);
        card.address = own.expose_provenance() as u64;
        let mut slots = (card.allocated == 1).then(|| {
            let mut places = vec![std::ptr::null_mut(); ranks];
            places[rank] = own;
            Self { bytes, rank, places, opened: Vec::new(), captured: false, stop }
        });
        let cards = gather(turn, call, card.bytes())?;
        // SAFETY: ranks of one version send the same struct.
        let card_of = |bytes: &[u8]| unsafe { bytes.as_ptr().cast::<Card>().read_unaligned() };
        let cards: Vec<Card> = cards.chunks_exact(size_of::<Card>()).map(card_of).collect();
        let allocated = cards.iter().all(|card| card.allocated == 1);
        card.opened = match &mut slots {
            Some(slots) if allocated => c_int::from(slots.open(&cards)),
            _ => 0,
        };
        let cards = gather(turn, call, card.bytes())?;
        let all = cards.chunks_exact(size_of::<Card>()).all(|bytes| card_of(bytes).opened == 1);
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

    /// Whether the memory of all other ranks can be used.
    fn open(&mut self, cards: &[Card]) -> bool {
        let others = cards.iter().enumerate().filter(|&(rank, _)| rank != self.rank);
        others.fold(true, |all, (rank, card)| {
            let mut place = std::ptr::null_mut();
            let done = if card.process == process() {
                place = std::ptr::with_exposed_provenance_mut(card.address as usize);
                // SAFETY: changes only what the device may reach.
                unsafe { nvte_cuda_peer_reach(card.device) }
            } else {
                // SAFETY: the handle is that of another rank's memory.
                unsafe { nvte_cuda_peer_open(card.handle.as_ptr(), &mut place) }
            };
            let done = done.status() == BackendStatus::NVTEX_BACKEND_OK;
            if done && card.process != process() {
                self.opened.push(place);
            }
            self.places[rank] = place;
            all && done
        })
    }

    /// Closes what other processes have.
    fn close(&mut self) {
        for place in self.opened.drain(..) {
            // SAFETY: the memory was opened, and no work of this rank uses it any more.
            let _ = unsafe { nvte_cuda_peer_close(place) };
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

/// As many bytes of all ranks as the call says, through the memory of the host.
fn gather(turn: &mut Turn, call: &Call, own: &[u8]) -> std::result::Result<Vec<u8>, Failure> {
    let mut all = vec![0; own.len() * turn.segment.size()];
    // SAFETY: the memory is that of all ranks.
    unsafe { turn.run(call, own.as_ptr(), all.as_mut_ptr())? };
    Ok(all)
}

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
        if part < env().comm_peer || !part.is_multiple_of(16) || self.options.check {
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
        if env().comm_peer == usize::MAX || self.segment.is_none() || self.size == 1 {
            return Ok(false);
        }
        let captured = self.domain.is_capturing(stream)?;
        match memory {
            Memory::Ready(slots) if slots.bytes >= bytes => {
                slots.captured |= captured;
                return Ok(true);
            }
            Memory::Refused => return Ok(false),
            _ if captured => return Ok(false),
            _ => self.make_room(nccl, memory, bytes.next_multiple_of(GRAIN))?,
        }
        Ok(matches!(memory, Memory::Ready(_)))
    }

    /// Replaces the memory of all ranks by that of larger slots.
    fn make_room(&self, nccl: &Nccl, memory: &mut Memory, bytes: usize) -> Result<()> {
        // All meetings of one call are compared by the same count.
        let count = size_of::<Card>();
        let call =
            Call::new(Operation::AllGather, NVTEDType::kNVTEByte, count).named("peer memory");
        let mut state = lock(&self.state);
        let made = self.numbered(&mut state, call, |_, turn, call| {
            let Some(mut turn) = turn else { return Ok(None) };
            let smaller = std::mem::take(memory);
            let made = Slots::create(&mut turn, &call, bytes, nccl.peers.word()?)?;
            // All ranks have waited for all streams of their devices since: only graphs still use what was there.
            if let Memory::Ready(mut slots) = smaller {
                if slots.captured {
                    lock(&nccl.peers.replaced).push(slots);
                    turn.rendezvous(&call)?;
                } else {
                    slots.close();
                    turn.rendezvous(&call)?;
                    drop(slots);
                }
            }
            Ok(made)
        });
        let made = made.map_err(|(call, failure)| self.fail(&call, failure))?;
        *memory = match made {
            Some(slots) => Memory::Ready(slots),
            None => Memory::Refused,
        };
        Ok(())
    }
}
