//! Memory of GPUs of one host that the others write to, and messages by their copy engines, which take no
//! multiprocessors from the products that run beside them: a slot for each distance between ranks, and counters
//! by which streams wait for those of other ranks, so that messages are part of a captured graph, too. An exchange waits until its
//! slots are free, sends to all ranks, waits for what comes from them, and gives the slots back when nothing reads them any
//! more. Calls of one communicator follow each other on the device as they do on the host, whatever their streams are; only replays
//! of graphs and other calls need streams that wait for each other.
#![allow(unsafe_code)]

use super::call::{Call, Operation, Reduction};
use super::host::Turn;
use super::nccl::{Nccl, Run};
use super::peer_rows;
use super::segment::Failure;
use super::*;
use crate::backend::args::{BackendStatus, Outcome};
use std::ffi::{c_int, c_ulonglong};
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::ops::Range;
use std::sync::LazyLock;
use std::sync::atomic::AtomicPtr;

/// The start of each rank's memory, which has the counters.
const COUNTERS: usize = 64 << 10;

/// Bytes between counters, and counters of a slot: arrived, taken, number.
const COUNTER: usize = 128;
const TAKEN: usize = COUNTER;
const NUMBER: usize = 2 * COUNTER;
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
    /// Of the host, whose other processes alone can open the handle.
    host: u64,
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
    const NONE: Self = Self {
        handle: [0; 64],
        host: 0,
        process: 0,
        address: 0,
        device: 0,
        allocated: 0,
        opened: 0,
        reserved: 0,
    };

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

/// A number that no other host has.
fn host() -> u64 {
    static HOST: LazyLock<u64> = LazyLock::new(|| {
        let mut hasher = DefaultHasher::new();
        std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default().hash(&mut hasher);
        hasher.finish()
    });
    *HOST
}

/// A message to another rank. The same struct is in `kernels/nvtex/peer.cu`.
#[repr(C)]
struct PeerMessage {
    send: *const u8,
    bytes: usize,
    their_slot: *mut u8,
    their_arrived: *mut u8,
    number: *const u8,
    stores: bool,
}

/// The counters of slots one behind the other. The same struct is in `kernels/nvtex/peer.cu`.
#[repr(C)]
struct PeerSlots {
    counters: *mut u8,
    their_taken: [*mut u8; Self::MOST],
    count: usize,
    stop: *const c_int,
}

impl PeerSlots {
    const MOST: usize = 32;
}

/// What is added to a sum of ranks that has been rounded: a bias to each row of so many columns, and a matrix; either may
/// be null. Without columns nothing is added. The same struct is in `kernels/nvtex/rank_sum.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct PeerAdded {
    pub bias: *const c_void,
    pub matrix: *const c_void,
    pub cols: usize,
}

impl PeerAdded {
    pub const NOTHING: Self = Self { bias: std::ptr::null(), matrix: std::ptr::null(), cols: 0 };
}

unsafe extern "C" {
    /// A word of the host, 0, that kernels may read.
    fn nvte_cuda_peer_word(word: *mut *mut c_int) -> Outcome;
    fn nvte_cuda_peer_free_word(word: *mut c_int) -> Outcome;
    /// Memory of zeros of the current device, that other processes may open by the handle of 64 bytes, but for the numbers of
    /// the first messages of so many slots. Waits for all that the device does.
    fn nvte_cuda_peer_allocate(
        bytes: usize,
        slots: usize,
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
    /// Queues a message to another rank.
    fn nvte_cuda_peer_send(args: *const PeerMessage, stream: cudaStream_t) -> Outcome;
    /// Waits until slots of other ranks have room for messages.
    fn nvte_cuda_peer_room(args: *const PeerSlots, stream: cudaStream_t) -> Outcome;
    /// Waits for the messages that come to slots.
    fn nvte_cuda_peer_arrive(args: *const PeerSlots, stream: cudaStream_t) -> Outcome;
    /// Says that they are not needed any more.
    fn nvte_cuda_peer_take(args: *const PeerSlots, stream: cudaStream_t) -> Outcome;
    /// Sums or maxima of slots of as many ranks, in their order, and what is added to them.
    fn nvte_cuda_peer_sum(
        slots: *const *const u8,
        ranks: usize,
        to: *mut u8,
        count: usize,
        dtype: NVTEDType,
        max: bool,
        added: *const PeerAdded,
        stream: cudaStream_t,
    ) -> Outcome;
    /// Makes a call on the stream follow the one before, which may be on another stream.
    fn nvte_cuda_peer_follow(order: *mut *mut c_void, stream: cudaStream_t) -> Outcome;
    /// The call has been queued.
    fn nvte_cuda_peer_queued(order: *mut c_void, stream: cudaStream_t) -> Outcome;
    fn nvte_cuda_peer_end_order(order: *mut c_void);
    /// The number of the capture of a stream; 0 without one.
    fn nvte_cuda_peer_capture(stream: cudaStream_t, capture: *mut c_ulonglong) -> Outcome;
}

pub(super) type Done = std::result::Result<(), Failure>;

pub(super) fn done(outcome: Outcome) -> Done {
    match outcome.status() {
        BackendStatus::NVTEX_BACKEND_OK => Ok(()),
        _ => Err(Failure::device(outcome.reason())),
    }
}

/// By which calls follow each other, whatever their streams are: those of one capture, and those of none.
pub struct Order(*mut c_void);

// SAFETY: an event, which any thread may use.
unsafe impl Send for Order {}

impl Default for Order {
    fn default() -> Self {
        Self(std::ptr::null_mut())
    }
}

impl Order {
    /// Makes what follows on the stream come behind the last call.
    pub fn follow(&mut self, stream: cudaStream_t) -> Done {
        // SAFETY: the pointer is null, or what an earlier call has made.
        done(unsafe { nvte_cuda_peer_follow(&mut self.0, stream) })
    }

    /// A call that [`Self::follow`] has begun has been queued.
    pub fn queued(&mut self, stream: cudaStream_t) -> Done {
        // SAFETY: `follow` has made it.
        done(unsafe { nvte_cuda_peer_queued(self.0, stream) })
    }
}

impl Drop for Order {
    fn drop(&mut self) {
        // SAFETY: nobody uses it any more.
        unsafe { nvte_cuda_peer_end_order(self.0) };
    }
}

/// The memory of a communicator that other ranks write to.
#[derive(Default)]
pub struct Peers {
    /// For messages by copy engines.
    copies: Mutex<Memory>,
    /// For gathers that are read where they have come.
    gathers: Mutex<Memory>,
    /// For what kernels store there.
    pub(super) stores: Mutex<Memory>,
    /// What captured graphs may still use, where larger memory has taken its place.
    replaced: Mutex<Vec<Slots>>,
    /// The word that stops waits; null without memory.
    stop: AtomicPtr<c_int>,
}

#[derive(Default)]
pub(super) enum Memory {
    #[default]
    Untried,
    /// Some GPU of the ranks does not reach another one.
    Refused,
    Ready(Slots),
}

impl Memory {
    /// Whether messages are on their way, or lie where they have come.
    fn is_posted(&self) -> bool {
        matches!(self, Self::Ready(slots) if slots.posted > 0)
    }
}

/// Who writes to memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Writers {
    CopyEngines,
    /// Copy engines, one message of the same size from each rank at a time: they lie one behind the other, in the order of
    /// the ranks, with room for the own part.
    Gathers,
    Kernels,
}

/// Memory of each rank: slots of so many bytes for copy engines, or so many bytes for kernels, behind counters. `places` has the
/// addresses in this process.
pub(super) struct Slots {
    writers: Writers,
    bytes: usize,
    rank: usize,
    pub(super) places: Vec<*mut u8>,
    /// Those of the places that are memory of other processes.
    opened: Vec<*mut u8>,
    /// A captured graph has the addresses.
    captured: bool,
    /// The greatest distance over which messages are on their way, or lie where they have come.
    posted: usize,
    /// The capture, 0 without one, in which a wait has been queued that says that there is room for the next messages. It is
    /// forgotten by the end of the call that wants the room: replays of graphs use the slots, too.
    cleared: Option<c_ulonglong>,
    pub(super) stop: *mut c_int,
    order: Order,
}

/// Slots of which ranks a kernel sums.
const MOST_LISTED: usize = 16;

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
        for memory in [&self.copies, &self.gathers, &self.stores] {
            if let Memory::Ready(slots) = std::mem::take(&mut *lock(memory)) {
                std::mem::forget(slots);
            }
        }
        std::mem::forget(std::mem::take(&mut *lock(&self.replaced)));
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        *lock(&self.copies) = Memory::Untried;
        *lock(&self.gathers) = Memory::Untried;
        *lock(&self.stores) = Memory::Untried;
        lock(&self.replaced).clear();
        let word = *self.stop.get_mut();
        // SAFETY: a wait that has been stopped may still read the word; all others are done.
        if !word.is_null() && unsafe { word.read_volatile() } == 0 {
            // SAFETY: nobody reads the word any more.
            let _ = unsafe { nvte_cuda_peer_free_word(word) };
        }
    }
}

/// Where ranks tell each other of their memory: on the host, or by NCCL.
enum Meeting<'a> {
    Host(Turn<'a>),
    Nccl(Run<'a>),
}

impl Meeting<'_> {
    /// The own rank, and the number of ranks.
    fn place(&self) -> (usize, usize) {
        match self {
            Self::Host(turn) => (turn.rank, turn.segment.size()),
            Self::Nccl(run) => run.place,
        }
    }

    /// The cards of all ranks.
    fn gather(&mut self, call: &Call, own: &Card) -> std::result::Result<Vec<Card>, Failure> {
        let own = own.bytes();
        let mut all = vec![0; own.len() * self.place().1];
        match self {
            // SAFETY: the memory is that of all ranks.
            Self::Host(turn) => unsafe { turn.run(call, own.as_ptr(), all.as_mut_ptr())? },
            Self::Nccl(run) => run.gather(own, &mut all)?,
        }
        // SAFETY: ranks of one version send the same struct.
        let card_of = |bytes: &[u8]| unsafe { bytes.as_ptr().cast::<Card>().read_unaligned() };
        Ok(all.chunks_exact(size_of::<Card>()).map(card_of).collect())
    }

    /// Waits for all ranks.
    fn meet(&mut self, call: &Call) -> std::result::Result<(), Failure> {
        match self {
            Self::Host(turn) => turn.rendezvous(call),
            Self::Nccl(_) => self.gather(call, &Card::NONE).map(drop),
        }
    }

    /// Waits until all ranks have compared this call: the next ones do not wait for each other, and what is announced of the
    /// second of them takes the place of what was of this one.
    fn end(&mut self) -> std::result::Result<(), Failure> {
        match self {
            Self::Host(turn) => turn.meet(),
            Self::Nccl(_) => Ok(()),
        }
    }
}

impl Slots {
    /// Memory on all ranks, each of which has opened that of the others; none if that cannot be.
    fn create(
        meeting: &mut Meeting,
        call: &Call,
        (writers, bytes): (Writers, usize),
        stop: *mut c_int,
    ) -> std::result::Result<Option<Self>, Failure> {
        let (rank, ranks) = meeting.place();
        let mut own = std::ptr::null_mut();
        let (total, messages) = match writers {
            Writers::CopyEngines => (COUNTERS + (ranks - 1) * bytes, ranks - 1),
            Writers::Gathers => (COUNTERS + ranks * bytes, ranks - 1),
            Writers::Kernels => (peer_rows::COUNTERS + bytes, 0),
        };
        let mut card = Card { host: host(), process: process(), ..Card::NONE };
        // SAFETY: writes the pointer, the device and the handle.
        let made = unsafe {
            let handle = card.handle.as_mut_ptr();
            nvte_cuda_peer_allocate(total, messages, &mut own, &mut card.device, handle)
        };
        card.allocated = c_int::from(made.status() == BackendStatus::NVTEX_BACKEND_OK);
        card.address = own.expose_provenance() as u64;
        let mut slots = (card.allocated == 1).then(|| {
            let mut places = vec![std::ptr::null_mut(); ranks];
            places[rank] = own;
            let (opened, order) = (Vec::new(), Order::default());
            let (captured, posted, cleared) = (false, 0, None);
            Self { writers, bytes, rank, places, opened, captured, posted, cleared, stop, order }
        });
        let cards = meeting.gather(call, &card)?;
        let allocated = cards.iter().all(|card| card.allocated == 1 && card.host == host());
        card.opened = match &mut slots {
            Some(slots) if allocated => c_int::from(slots.open(&cards)),
            _ => 0,
        };
        if meeting.gather(call, &card)?.iter().all(|card| card.opened == 1) {
            return Ok(slots);
        }
        if let Some(slots) = &mut slots {
            slots.close();
        }
        meeting.meet(call)?;
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
        let (own, ranks) = (self.places[self.rank], self.places.len());
        // SAFETY: the memory begins with these counters.
        let asked = unsafe {
            match self.writers {
                Writers::CopyEngines | Writers::Gathers => {
                    nvte_cuda_peer_settled(own, ranks - 1, &mut settled)
                }
                Writers::Kernels => {
                    peer_rows::nvte_cuda_peer_rows_settled(own, self.rank, ranks, &mut settled)
                }
            }
        };
        settled || asked.status() != BackendStatus::NVTEX_BACKEND_OK
    }

    /// The rank that is so far ahead.
    fn ahead(&self, distance: usize) -> usize {
        (self.rank + distance) % self.places.len()
    }

    /// Where a message of so many bytes comes to the memory of a rank, over a distance.
    fn slot(&self, to: usize, distance: usize, bytes: usize) -> *mut u8 {
        let ranks = self.places.len();
        let (index, pitch) = match self.writers {
            Writers::Gathers => ((to + ranks - distance) % ranks, bytes),
            _ => (distance - 1, self.bytes),
        };
        self.places[to].wrapping_add(COUNTERS + index * pitch)
    }

    /// Waits until there is room for the next messages over all distances.
    fn clear(&mut self, stream: cudaStream_t) -> Done {
        let mut capture = 0;
        // SAFETY: writes the number.
        done(unsafe { nvte_cuda_peer_capture(stream, &mut capture) })?;
        if self.cleared != Some(capture) {
            let all = 1..self.places.len();
            // SAFETY: the counters are those of the slots.
            self.of_slots(all, |slots| unsafe { nvte_cuda_peer_room(slots, stream) })?;
            self.cleared = Some(capture);
        }
        Ok(())
    }

    /// Queues messages to the ranks that are some distances ahead, when there is room for them.
    ///
    /// # Safety
    /// They have that many bytes, for which slots have room, on all ranks.
    unsafe fn send(
        &mut self,
        message: impl Fn(usize) -> *const u8,
        bytes: usize,
        distances: Range<usize>,
        stream: cudaStream_t,
    ) -> Done {
        self.clear(stream)?;
        for distance in distances {
            let (to, counters) = (self.ahead(distance), (distance - 1) * SLOT);
            let args = PeerMessage {
                send: message(to),
                bytes,
                their_slot: self.slot(to, distance, bytes),
                their_arrived: self.places[to].wrapping_add(counters),
                number: self.places[self.rank].wrapping_add(counters + NUMBER),
                // Memory of this process has not been opened.
                stores: !self.opened.contains(&self.places[to]),
            };
            // SAFETY: as the caller says.
            done(unsafe { nvte_cuda_peer_send(&args, stream) })?;
        }
        Ok(())
    }

    /// Queues `call` of the slots of some distances.
    fn of_slots(&self, distances: Range<usize>, call: impl Fn(&PeerSlots) -> Outcome) -> Done {
        let (own, ranks) = (self.places[self.rank], self.places.len());
        distances.clone().step_by(PeerSlots::MOST).try_for_each(|first| {
            let last = distances.end.min(first + PeerSlots::MOST);
            let mut their_taken = [std::ptr::null_mut(); PeerSlots::MOST];
            for (of_slot, distance) in their_taken.iter_mut().zip(first..last) {
                let behind = self.places[self.ahead(ranks - distance)];
                *of_slot = behind.wrapping_add((distance - 1) * SLOT + TAKEN);
            }
            let counters = own.wrapping_add((first - 1) * SLOT);
            done(call(&PeerSlots { counters, their_taken, count: last - first, stop: self.stop }))
        })
    }

    /// Waits for what comes over some distances.
    fn arrive(&self, distances: Range<usize>, stream: cudaStream_t) -> Done {
        // SAFETY: the counters are those of the slots.
        self.of_slots(distances, |slots| unsafe { nvte_cuda_peer_arrive(slots, stream) })
    }

    /// Gives the slots of some distances back, whose messages have come, behind what was sent.
    fn take(&mut self, distances: Range<usize>, stream: cudaStream_t) -> Done {
        self.cleared = None;
        // SAFETY: the counters are those of the slots.
        self.of_slots(distances, |slots| unsafe { nvte_cuda_peer_take(slots, stream) })
    }

    /// Reduces the own part and what comes from all other ranks, in their order, and gives the slots back.
    ///
    /// # Safety
    /// Both have the elements, as has what is added.
    unsafe fn sum(
        &mut self,
        call: &Call,
        (own, added): (*const u8, &PeerAdded),
        (to, count): (*mut u8, usize),
        stream: cudaStream_t,
    ) -> Done {
        let (rank, ranks) = (self.rank, self.places.len());
        self.arrive(1..ranks, stream)?;
        let part_of = |of: usize| match (rank + ranks - of) % ranks {
            0 => own,
            distance => self.slot(rank, distance, 0).cast_const(),
        };
        let parts: Vec<_> = (0..ranks).map(part_of).collect();
        let max = call.reduction == Reduction::Max;
        let (parts, dtype) = (parts.as_ptr(), call.dtype);
        // SAFETY: as the caller says.
        done(unsafe { nvte_cuda_peer_sum(parts, ranks, to, count, dtype, max, added, stream) })?;
        self.take(1..ranks, stream)
    }

    /// Runs what queues a call behind the last one.
    pub(super) fn in_order(
        &mut self,
        stream: cudaStream_t,
        call: impl FnOnce(&mut Self) -> Done,
    ) -> Done {
        self.order.follow(stream)?;
        call(self)?;
        self.order.queued(stream)
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
        let sums = call.operation != Some(Operation::AllGather);
        if sums && ranks > MOST_LISTED {
            return Ok(false);
        }
        if part < env().comm_peer || !part.is_multiple_of(16) || self.options.check {
            return Ok(false);
        }
        let mut memory = lock(&nccl.peers.copies);
        let room = (Writers::CopyEngines, part);
        if memory.is_posted() || !self.has_room(nccl, &mut memory, room, stream)? {
            return Ok(false);
        }
        let Memory::Ready(slots) = &mut *memory else { return Ok(false) };
        let mut state = lock(&self.state);
        let queued = self.numbered(&mut state, *call, |_, turn, call| {
            if let Some(turn) = turn {
                turn.segment.announce(&call, call.number);
            }
            slots.order.follow(stream)?;
            let place = |base: *mut u8, rank| base.wrapping_add(rank * part);
            let own = place(recv, self.rank);
            let (mut shared, mut gathers) = (send, true);
            // SAFETY: as the caller says; the slots have room for a part.
            unsafe {
                if sums {
                    let share_of = |rank| place(send.cast_mut(), rank).cast_const();
                    slots.send(share_of, part, 1..ranks, stream)?;
                    gathers = call.operation == Some(Operation::AllReduce);
                    let to = (if gathers { own } else { recv }, part / call.dtype_bytes());
                    let own_share = share_of(self.rank);
                    slots.sum(&call, (own_share, &PeerAdded::NOTHING), to, stream)?;
                    shared = own.cast_const();
                }
                if gathers {
                    slots.send(|_| shared, part, 1..ranks, stream)?;
                    self.copy((shared, own, part), stream)?;
                    slots.arrive(1..ranks, stream)?;
                    for distance in 1..ranks {
                        let (_, from) = self.neighbours(distance);
                        let came = slots.slot(self.rank, distance, part).cast_const();
                        self.copy((came, place(recv, from), part), stream)?;
                    }
                    slots.take(1..ranks, stream)?;
                }
            }
            slots.order.queued(stream)
        });
        queued.map(|()| true).map_err(|(call, failure)| self.fail(&call, failure))
    }

    /// Copies bytes on the device, unless they are there.
    ///
    /// # Safety
    /// Both have that many bytes.
    unsafe fn copy(&self, (from, to, bytes): Message, stream: cudaStream_t) -> Done {
        if std::ptr::eq(from, to) {
            return Ok(());
        }
        let (to, from, kind) = (to.cast(), from.cast(), CopyKind::NVTEX_COPY_ON_DEVICE);
        // SAFETY: as the caller says.
        let copied = unsafe { self.domain.memcpy(to, from, bytes, kind, stream) };
        copied.map_err(|error| Failure::device(error.message))
    }

    /// [`Communicator::shift`] by copy engines. False, and nothing was done, where ranks do not reach each other's memory.
    ///
    /// # Safety
    /// Both have that many bytes.
    pub(super) unsafe fn shift_by_copies(
        &self,
        nccl: &Nccl,
        call: &Call,
        (send, recv, bytes): Message,
        distance: usize,
        stream: cudaStream_t,
    ) -> Result<bool> {
        let one = distance..distance + 1;
        let mut memory = lock(&nccl.peers.copies);
        let room = (Writers::CopyEngines, bytes);
        if memory.is_posted() || !self.has_room(nccl, &mut memory, room, stream)? {
            return Ok(false);
        }
        let Memory::Ready(slots) = &mut *memory else { return Ok(false) };
        let call = self.announced(call)?;
        let queued = slots.in_order(stream, |slots| {
            let came = slots.slot(self.rank, distance, bytes).cast_const();
            // SAFETY: as the caller says; the slots have room for the bytes.
            unsafe {
                slots.send(|_| send, bytes, one.clone(), stream)?;
                slots.arrive(one.clone(), stream)?;
                self.copy((came, recv, bytes), stream)?;
            }
            slots.take(one, stream)
        });
        queued.map(|()| true).map_err(|failure| self.fail(&call, failure))
    }

    /// [`Communicator::post`] by copy engines.
    ///
    /// # Safety
    /// There are that many bytes.
    pub(super) unsafe fn post_copies(
        &self,
        nccl: &Nccl,
        call: &Call,
        (send, bytes): (*const u8, usize),
        distance: usize,
        stream: cudaStream_t,
    ) -> Result<bool> {
        let mut memory = lock(&nccl.peers.copies);
        let room = (Writers::CopyEngines, bytes);
        if !self.has_room(nccl, &mut memory, room, stream)? {
            return Ok(false);
        }
        let Memory::Ready(slots) = &mut *memory else { return Ok(false) };
        if slots.posted + 1 != distance {
            return Ok(false);
        }
        let call = self.announced(call)?;
        slots.posted = distance;
        let one = distance..distance + 1;
        let queued = slots.in_order(stream, |slots| {
            // SAFETY: as the caller says; the slots have room for the bytes.
            unsafe { slots.send(|_| send, bytes, one, stream) }
        });
        queued.map(|()| true).map_err(|failure| self.fail(&call, failure))
    }

    /// [`Communicator::give_up`] by copy engines.
    pub(super) fn give_up_copies(
        &self,
        nccl: &Nccl,
        call: &Call,
        stream: cudaStream_t,
    ) -> Result<()> {
        let mut memory = lock(&nccl.peers.copies);
        let Memory::Ready(slots) = &mut *memory else { return Ok(()) };
        slots.cleared = None;
        if slots.posted == 0 {
            return Ok(());
        }
        let rest = std::mem::take(&mut slots.posted) + 1..self.size;
        let queued = slots.in_order(stream, |slots| {
            // SAFETY: there are no bytes.
            unsafe { slots.send(|_| std::ptr::null(), 0, rest, stream)? };
            slots.arrive(1..self.size, stream)?;
            slots.take(1..self.size, stream)
        });
        queued.map_err(|failure| self.fail(call, failure))
    }

    /// [`Communicator::begin_gather`] by copy engines.
    ///
    /// # Safety
    /// There are that many bytes.
    pub(super) unsafe fn begin_copies(
        &self,
        nccl: &Nccl,
        call: &Call,
        (send, bytes): (*const u8, usize),
        (stream, beside): (cudaStream_t, &dyn Fn() -> Result<cudaStream_t>),
    ) -> Result<Option<*mut u8>> {
        let mut memory = lock(&nccl.peers.gathers);
        if bytes < env().comm_peer || self.options.check || memory.is_posted() {
            return Ok(None);
        }
        if !self.has_room(nccl, &mut memory, (Writers::Gathers, bytes), stream)? {
            return Ok(None);
        }
        let Memory::Ready(slots) = &mut *memory else { return Ok(None) };
        let call = self.announced(call)?;
        slots.in_order(stream, |slots| slots.clear(stream)).map_err(|e| self.fail(&call, e))?;
        let beside = beside().inspect_err(|_| slots.cleared = None)?;
        slots.posted = self.size - 1;
        let whole = slots.places[self.rank].wrapping_add(COUNTERS);
        let queued = slots.in_order(beside, |slots| {
            // SAFETY: as the caller says; the slots have room for the bytes.
            unsafe { slots.send(|_| send, bytes, 1..self.size, beside) }
        });
        queued.map(|()| Some(whole)).map_err(|failure| self.fail(&call, failure))
    }

    /// [`Communicator::make_way`] of copy engines.
    pub(super) fn clear_copies(
        &self,
        nccl: &Nccl,
        call: &Call,
        bytes: usize,
        stream: cudaStream_t,
    ) -> Result<()> {
        let mut memory = lock(&nccl.peers.copies);
        let sums = self.options.ordered && self.size <= MOST_LISTED && !self.options.check;
        let Memory::Ready(slots) = &mut *memory else { return Ok(()) };
        let fits = (env().comm_peer..=slots.bytes).contains(&bytes) && bytes.is_multiple_of(16);
        if !sums || !fits || slots.posted > 0 {
            return Ok(());
        }
        let queued = slots.in_order(stream, |slots| slots.clear(stream));
        queued.map_err(|failure| self.fail(call, failure))
    }

    /// [`Communicator::await_gather`] by copy engines.
    pub(super) fn await_copies(
        &self,
        nccl: &Nccl,
        call: &Call,
        distances: Range<usize>,
        stream: cudaStream_t,
    ) -> Result<()> {
        let memory = lock(&nccl.peers.gathers);
        let Memory::Ready(slots) = &*memory else { return Ok(()) };
        slots.arrive(distances, stream).map_err(|failure| self.fail(call, failure))
    }

    /// [`Communicator::end_gather`] by copy engines.
    pub(super) fn end_copies(&self, nccl: &Nccl, call: &Call, stream: cudaStream_t) -> Result<()> {
        let mut memory = lock(&nccl.peers.gathers);
        let Memory::Ready(slots) = &mut *memory else { return Ok(()) };
        slots.posted = 0;
        let queued = slots.in_order(stream, |slots| slots.take(1..self.size, stream));
        queued.map_err(|failure| self.fail(call, failure))
    }

    /// Sums the own part and what others have posted over all distances, in the order of the ranks, and adds the rest.
    ///
    /// # Safety
    /// All have the elements of the call, and all ranks have sent as many to each other.
    pub(super) unsafe fn sum_copies(
        &self,
        nccl: &Nccl,
        call: &Call,
        (own, to): (*const u8, *mut u8),
        added: &PeerAdded,
        stream: cudaStream_t,
    ) -> Result<()> {
        let mut memory = lock(&nccl.peers.copies);
        let Memory::Ready(slots) = &mut *memory else { return Ok(()) };
        slots.posted = 0;
        let queued = slots.in_order(stream, |slots| {
            // SAFETY: as the caller says.
            unsafe { slots.sum(call, (own, added), (to, call.count), stream) }
        });
        queued.map_err(|failure| self.fail(call, failure))
    }

    /// A call with its number among the exchanges, which those who watch have been told of.
    fn announced(&self, call: &Call) -> Result<Call> {
        let mut state = lock(&self.state);
        state.exchanges += 1;
        let call = Call { number: state.exchanges, ..*call };
        if let Err(failure) = self.check() {
            return Err(self.fail(&call, failure));
        }
        if let Some(segment) = &self.segment {
            segment.announce(&call, state.number + 1);
        }
        if let Some(line) = &self.line {
            line.announce(&call);
        }
        Ok(call)
    }

    /// Whether the memory of all ranks has so many bytes; where it has not, ranks meet to make more. There is no
    /// memory in a capture that none was made before.
    pub(super) fn has_room(
        &self,
        nccl: &Nccl,
        memory: &mut Memory,
        (writers, bytes): (Writers, usize),
        stream: cudaStream_t,
    ) -> Result<bool> {
        if env().comm_peer == usize::MAX || self.size == 1 {
            return Ok(false);
        }
        let captured = self.domain.is_capturing(stream)?;
        match memory {
            Memory::Ready(slots) if slots.bytes >= bytes => {
                slots.captured |= captured;
                return Ok(true);
            }
            Memory::Refused => return Ok(false),
            _ if captured || memory.is_posted() => return Ok(false),
            _ => {
                let room = (writers, bytes.next_multiple_of(GRAIN));
                self.make_room(nccl, memory, room, stream)?;
            }
        }
        Ok(matches!(memory, Memory::Ready(_)))
    }

    /// Replaces the memory of all ranks by larger one.
    fn make_room(
        &self,
        nccl: &Nccl,
        memory: &mut Memory,
        room: (Writers, usize),
        stream: cudaStream_t,
    ) -> Result<()> {
        // All meetings of one call are compared by the same count.
        let count = size_of::<Card>();
        let call =
            Call::new(Operation::AllGather, NVTEDType::kNVTEByte, count).named("peer memory");
        let mut state = lock(&self.state);
        let made = self.numbered(&mut state, call, |_, turn, call| {
            let place = (self.rank, self.size);
            let mut meeting = match turn {
                Some(turn) => Meeting::Host(turn),
                None => Meeting::Nccl(Run { nccl, domain: self.domain, stream, place }),
            };
            let smaller = std::mem::take(memory);
            let made = Slots::create(&mut meeting, &call, room, nccl.peers.word()?)?;
            // All ranks have waited for all streams of their devices since: only graphs still use what was there.
            if let Memory::Ready(mut slots) = smaller {
                if slots.captured {
                    lock(&nccl.peers.replaced).push(slots);
                    meeting.meet(&call)?;
                } else {
                    slots.close();
                    meeting.meet(&call)?;
                    drop(slots);
                }
            }
            meeting.end()?;
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
