//! Communicators: what the ranks of a program do together, whether they are threads, processes of one host, GPUs
//! under NCCL, or ranks of a library that the program brings along. Every wait has a limit. A rank that has ended,
//! does not come or asks for something else than the others is an error on all of them, which names it; afterwards
//! every call on the communicator returns that error.
#![allow(unsafe_code)]

mod call;
mod callbacks;
mod environment;
pub mod exports;
pub mod grid;
mod host;
mod line;
pub mod message;
#[cfg(feature = "cuda")]
mod nccl;
#[cfg(nvte_cuda)]
mod peer;
pub mod peer_rows;
mod segment;
pub mod tensors;

use crate::backend::{self, args::CopyKind, domain::Domain};
use crate::env::env;
use crate::error::{Error, Kind, Result};
use crate::fork::Held;
use crate::op::nvtex::rank_sum as sum;
use crate::types::{NVTEDType, cudaStream_t};
use call::{Call, Operation, Reduction};
use callbacks::Callbacks;
use host::{Access, Transfer, Turn};
use line::{CARD, Line, Offer};
use segment::{Failure, MOST_RANKS, Segment};
use std::ffi::{CString, c_void};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// What a program says about a communicator.
#[derive(Clone)]
pub struct Options {
    name: String,
    limit: Duration,
    staging: usize,
    /// Calls are compared before they run where that costs something.
    check: bool,
    /// Sums in the order of the ranks.
    ordered: bool,
    abort_borrowed: bool,
    on_failure: Option<OnFailure>,
}

/// A function of the program that gets the message of the first failure.
#[derive(Clone, Copy)]
struct OnFailure {
    function: unsafe extern "C" fn(user: *mut c_void, message: *const std::ffi::c_char),
    user: usize,
}

/// Bytes for data on their way, for each rank, unless the program says something else.
const STAGING: usize = 2 << 20;

/// How often a watchdog looks at the other ranks.
const WATCH: Duration = Duration::from_millis(100);

impl Default for Options {
    fn default() -> Self {
        Self {
            name: "world".into(),
            limit: env().comm_timeout,
            staging: STAGING,
            check: env().comm_check,
            ordered: true,
            abort_borrowed: false,
            on_failure: None,
        }
    }
}

/// What moves the data.
enum Transport {
    /// The segment itself.
    Host,
    Callbacks(Callbacks),
    #[cfg(feature = "cuda")]
    Nccl(Box<nccl::Nccl>),
}

/// What changes from call to call.
#[derive(Default)]
pub struct State {
    /// Collectives and exchanges so far.
    number: u64,
    exchanges: u64,
    /// Meetings so far, and which half of the room was used last.
    meetings: u64,
    half: usize,
    scratch: Vec<u64>,
}

pub struct Communicator {
    options: Options,
    c_name: CString,
    rank: usize,
    size: usize,
    domain: &'static Domain,
    /// Forks of the process when it was created: it is of no use in a child.
    forks: u32,
    /// What the ranks know of each other, if they are on one host.
    segment: Option<Arc<Segment>>,
    /// How they hear of each other otherwise.
    line: Option<Arc<Line>>,
    transport: Transport,
    state: Mutex<State>,
    /// The first failure, where there is no segment to keep it, and what a child of it inherits.
    failure: Mutex<Option<Failure>>,
    parent: Option<Arc<Communicator>>,
}

/// Forks of this process.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Called in the child of a fork.
pub fn note_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// The locks of this module, until the result is dropped.
pub fn hold(deadline: Instant) -> Box<dyn Held> {
    segment::hold(deadline)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A failure before there is a communicator.
fn refuse(failure: Failure) -> Error {
    Error { kind: failure.kind, message: failure.cause }
}

/// Checks a rank and the number of ranks.
fn check_place(rank: i32, size: i32, most: usize) -> Result<(usize, usize)> {
    if size < 1 || size as usize > most {
        return Err(Error::argument("size", format!("1 to {most}"), size));
    }
    if !(0..size).contains(&rank) {
        return Err(Error::argument("rank", format!("0 to {}", size - 1), rank));
    }
    Ok((rank as usize, size as usize))
}

/// A key is the name of a file.
fn check_key(key: &str) -> Result<()> {
    let legal = |c: char| c.is_ascii_alphanumeric() || ['.', '_', '-'].contains(&c);
    match (1..=200).contains(&key.len()) && key.chars().all(legal) {
        true => Ok(()),
        false => Err(Error::argument(
            "key",
            "1 to 200 letters, digits, points, hyphens and underscores",
            format!("{key:?}"),
        )),
    }
}

impl Communicator {
    fn new(
        options: Options,
        (rank, size): (usize, usize),
        segment: Option<Segment>,
        transport: Transport,
    ) -> Result<Self> {
        Ok(Self {
            c_name: CString::new(options.name.as_str()).unwrap_or_default(),
            options,
            rank,
            size,
            domain: backend::domain()?,
            forks: FORKS.load(Ordering::Relaxed),
            segment: segment.map(Arc::new),
            line: None,
            transport,
            state: Mutex::default(),
            failure: Mutex::default(),
            parent: None,
        })
    }

    /// Communicators for threads of this process.
    pub fn local(size: i32, options: &Options) -> Result<Vec<Arc<Self>>> {
        let (_, size) = check_place(0, size, MOST_RANKS)?;
        let segments = Segment::local(size, options.staging);
        let segments = segments.map_err(|error| {
            Error::device(format!("out of host memory for {size} ranks: {error}"))
        })?;
        let place = |(rank, segment)| {
            let made = Self::new(options.clone(), (rank, size), Some(segment), Transport::Host)?;
            Ok(made.watched())
        };
        segments.into_iter().enumerate().map(place).collect()
    }

    /// A rank of processes of this host that have the same key.
    pub fn shared(key: &str, rank: i32, size: i32, options: Options) -> Result<Arc<Self>> {
        let place = check_place(rank, size, MOST_RANKS)?;
        check_key(key)?;
        let segment = Segment::shared(key, place, options.staging, options.limit);
        let made = Self::new(options, place, Some(segment.map_err(refuse)?), Transport::Host)?;
        made.greet()?;
        Ok(made.watched())
    }

    /// A rank of a library of the program.
    fn of_callbacks(
        callbacks: Callbacks,
        rank: i32,
        size: i32,
        options: Options,
    ) -> Result<Arc<Self>> {
        let place = check_place(rank, size, i32::MAX as usize)?;
        let mut made = Self::new(options, place, None, Transport::Callbacks(callbacks))?;
        made.greet()?;
        if let Transport::Callbacks(callbacks) = &made.transport
            && place.1 > 1
        {
            let offer = Offer::new(place.0 == 0 && made.options.on_failure.is_some());
            let cards = callbacks.gather(&offer.card, place.1).map_err(refuse)?;
            made.line = offer.meet(&cards[..CARD], place).map(Arc::new);
        }
        Ok(made.watched())
    }

    /// Compares what all ranks must have alike before the first call.
    fn greet(&self) -> Result<()> {
        let (order, version) = (self.options.ordered, env!("CARGO_PKG_VERSION"));
        let (name, peer) = (&self.options.name, env().comm_peer);
        let greeting = format!("{name}, version {version}, ordered: {order}, peer: {peer}");
        let call = Call::new(Operation::Create, NVTEDType::kNVTEByte, self.size).named(&greeting);
        let mut state = lock(&self.state);
        let met = self.numbered(&mut state, call, |_, turn, call| match &self.transport {
            Transport::Callbacks(callbacks) => callbacks.agree(&call, self.size),
            _ => turn.map_or(Ok(()), |mut turn| turn.rendezvous(&call)),
        });
        met.map_err(|(call, failure)| self.fail(&call, failure))
    }

    /// Starts what watches the other ranks while the program does not call, if somebody is to be told.
    fn watched(self) -> Arc<Self> {
        let needed = match self.transport {
            #[cfg(feature = "cuda")]
            Transport::Nccl(_) => true,
            _ => self.options.on_failure.is_some() || self.line.is_some(),
        };
        let this = Arc::new(self);
        if needed && this.size > 1 {
            let watched = Arc::downgrade(&this);
            let thread = std::thread::Builder::new().name("nvtex-watchdog".into());
            // Without a thread failures are still found by calls.
            let _ = thread.spawn(move || watch(&watched));
        }
        this
    }

    /// Whether it can be used, or the first failure.
    fn check(&self) -> std::result::Result<(), Failure> {
        match self.known_failure() {
            None => Ok(()),
            Some(failure) => Err(failure),
        }
    }

    fn known_failure(&self) -> Option<Failure> {
        let of_segment = || self.segment.as_ref().and_then(|segment| segment.failure());
        let of_parent = || self.parent.as_ref().and_then(|parent| parent.known_failure());
        lock(&self.failure).clone().or_else(of_segment).or_else(of_parent)
    }

    /// The first failure, also one that nobody has noticed so far. Never waits.
    pub fn look(&self) -> Option<Failure> {
        if let Some(failure) = self.known_failure() {
            return Some(failure);
        }
        let ended = self.segment.as_ref().and_then(|segment| segment.gone(&|_| true, false));
        // Of a communicator that was split the first one looks.
        let line = self.line.as_ref().filter(|_| self.parent.is_none());
        #[allow(unused_mut, reason = "a build without CUDA has no NCCL")]
        let mut failure = ended.map(Failure::device).or_else(|| line.and_then(|line| line.look()));
        #[cfg(feature = "cuda")]
        if let Transport::Nccl(nccl) = &self.transport {
            failure = failure.or_else(|| nccl.look());
        }
        failure.map(|failure| self.record(failure))
    }

    /// Keeps a failure unless there is one. Returns the first one.
    fn record(&self, failure: Failure) -> Failure {
        let first = match &self.segment {
            Some(segment) => segment.fail(&failure),
            None => failure,
        };
        let (first, new) = {
            let mut kept = lock(&self.failure);
            let new = kept.is_none();
            (kept.get_or_insert(first).clone(), new)
        };
        if let Some(line) = self.line.as_ref().filter(|_| new && self.parent.is_none()) {
            line.fail(&first);
        }
        match &self.transport {
            #[cfg(feature = "cuda")]
            Transport::Nccl(nccl) => nccl.abort(self.options.abort_borrowed),
            _ => {}
        }
        first
    }

    /// The text of a failure that is no call's.
    fn text(&self, failure: &Failure) -> String {
        format!("{}: {}", self.who(), failure.cause)
    }

    fn who(&self) -> String {
        format!("communicator {} (rank {} of {})", self.options.name, self.rank, self.size)
    }

    /// Records what has failed in a call, and gives its error.
    #[cold]
    fn fail(&self, call: &Call, failure: Failure) -> Error {
        if matches!(self.transport, Transport::Callbacks(_)) && failure.kind == Kind::Device {
            self.await_cause();
        }
        let own = self.record(failure);
        let message = format!("{}: {call}: {}", self.who(), own.cause);
        Error { kind: own.kind, message }
    }

    /// Functions of the program may fail because a rank has ended, before this one has heard of that.
    fn await_cause(&self) {
        let deadline = Instant::now() + 5 * WATCH;
        let root = std::iter::successors(Some(self), |of| of.parent.as_deref()).last();
        while let Some(root) = root.filter(|root| root.line.is_some())
            && root.look().is_none()
            && Instant::now() < deadline
        {
            std::thread::sleep(WATCH / 10);
        }
    }

    /// Refuses a child of `fork`.
    fn check_process(&self) -> Result<()> {
        if self.forks == FORKS.load(Ordering::Relaxed) {
            return Ok(());
        }
        Err(Error::unsupported(format!(
            "{}: it was created by the process that has forked this one; create communicators after the fork",
            self.who()
        )))
    }

    /// Runs `body` for the next call, with a turn on the segment if there is one.
    #[expect(clippy::result_large_err, reason = "failures are rare and end the communicator")]
    fn numbered<R>(
        &self,
        state: &mut State,
        mut call: Call,
        body: impl FnOnce(&mut u64, Option<Turn>, Call) -> std::result::Result<R, Failure>,
    ) -> std::result::Result<R, (Call, Failure)> {
        state.number += 1;
        call.number = state.number;
        self.check().map_err(|failure| (call, failure))?;
        if let Some(line) = &self.line {
            line.announce(&call);
        }
        let mut number = state.number;
        let turn = self.segment.as_deref().map(|segment| {
            let (rank, limit) = (self.rank, self.options.limit);
            let access = Access { domain: None, stream: std::ptr::null_mut() };
            Turn { segment, state, rank, limit, access }
        });
        body(&mut number, turn, call).map_err(|failure| (call, failure))
    }

    /// Runs a collective.
    ///
    /// # Safety
    /// The memory is as large as the operation says.
    unsafe fn collective(
        &self,
        call: Call,
        send: (&str, *const u8),
        recv: (&str, *mut u8),
        stream: cudaStream_t,
    ) -> Result<()> {
        self.check_process()?;
        self.plan(&call, send, recv)?;
        let (send, recv) = (send.1, recv.1);
        if self.size == 1 && matches!(self.transport, Transport::Host) {
            // SAFETY: as the caller says.
            return unsafe { self.alone(call, send, recv, stream) };
        }
        self.check_capture(&call, stream)?;
        #[cfg(nvte_cuda)]
        if let Transport::Nccl(nccl) = &self.transport {
            let memory = (send, recv);
            // SAFETY: as the caller says.
            let done = unsafe {
                self.collective_by_stores(&call, memory, stream)?
                    || self.collective_by_copies(nccl, &call, memory, stream)?
            };
            if done {
                return Ok(());
            }
        }
        let mut state = lock(&self.state);
        let done = self.numbered(&mut state, call, |_, turn, call| {
            let access = Access::new(self.domain, stream);
            match (&self.transport, turn) {
                (Transport::Host, Some(turn)) => {
                    // SAFETY: as the caller says.
                    unsafe { Turn { access, ..turn }.run(&call, send, recv) }
                }
                (Transport::Callbacks(callbacks), _) => {
                    let place = (self.rank, self.size);
                    if self.options.check {
                        callbacks.agree(&call, self.size)?;
                    }
                    let ordered = self.options.ordered;
                    // SAFETY: as the caller says.
                    unsafe { callbacks.run(&call, place, send, recv, access, ordered) }
                }
                #[cfg(feature = "cuda")]
                (Transport::Nccl(nccl), turn) => {
                    self.announce(turn, &call)?;
                    let ordered = self.options.ordered;
                    let run = nccl::Run {
                        nccl,
                        domain: self.domain,
                        stream,
                        place: (self.rank, self.size),
                    };
                    // SAFETY: as the caller says.
                    unsafe { run.collective(&call, send, recv, ordered) }
                }
                (Transport::Host, None) => unreachable!("a host transport has a segment"),
            }
        });
        done.map_err(|(call, failure)| self.fail(&call, failure))
    }

    /// A collective of one rank: nothing travels, so that it may be captured in a graph with every transport.
    ///
    /// # Safety
    /// The memory is as large as the operation says.
    unsafe fn alone(
        &self,
        call: Call,
        send: *const u8,
        recv: *mut u8,
        stream: cudaStream_t,
    ) -> Result<()> {
        let mut state = lock(&self.state);
        let done = self.numbered(&mut state, call, |_, _, call| {
            let bytes = call.bytes();
            if bytes == 0 || send.is_null() || std::ptr::eq(send, recv) {
                return Ok(());
            }
            let (to, from) = (recv.cast::<c_void>(), send.cast::<c_void>());
            let kind = CopyKind::NVTEX_COPY_ON_DEVICE;
            // SAFETY: as the caller says.
            let copied = unsafe { self.domain.memcpy(to, from, bytes, kind, stream) };
            copied.map_err(|error| Failure::device(error.message))
        });
        done.map_err(|(call, failure)| self.fail(&call, failure))
    }

    /// Says what is about to be enqueued, and compares it if that is asked for.
    #[cfg(feature = "cuda")]
    fn announce(&self, turn: Option<Turn>, call: &Call) -> std::result::Result<(), Failure> {
        match turn {
            Some(mut turn) if self.options.check => turn.rendezvous(call),
            Some(turn) => {
                turn.segment.announce(call, call.number);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Refuses a stream that is being captured where the host takes part in a call.
    fn check_capture(&self, call: &Call, stream: cudaStream_t) -> Result<()> {
        let on_host = match self.transport {
            Transport::Host | Transport::Callbacks(_) => true,
            #[cfg(feature = "cuda")]
            Transport::Nccl(_) => self.options.check,
        };
        if !on_host || self.domain.is_host() || !self.domain.is_capturing(stream)? {
            return Ok(());
        }
        let operation = call.operation.map_or(String::new(), |operation| operation.to_string());
        Err(Error::unsupported(format!(
            "{}: {operation}: the host takes part in this call, so that it cannot be captured in a graph",
            self.who()
        )))
    }

    /// Checks a collective before any rank hears of it.
    fn plan(&self, call: &Call, send: (&str, *const u8), recv: (&str, *mut u8)) -> Result<()> {
        let reduces =
            matches!(call.operation, Some(Operation::ReduceScatter | Operation::AllReduce));
        if reduces && !sum::can_reduce(call.dtype) {
            let expected = "kNVTEFloat32, kNVTEFloat16 or kNVTEBFloat16, which ranks can sum";
            return Err(Error::argument("dtype", expected, format!("{:?}", call.dtype)));
        }
        check_whole_bytes("dtype", call.dtype)?;
        let most = isize::MAX as usize / 8 / self.size;
        if call.count > most {
            return Err(Error::argument("count", format!("at most {most}"), call.count));
        }
        let bytes = call.bytes();
        let (all, one) = (self.size * bytes, bytes);
        let (sent, received, offset) = match call.operation {
            Some(Operation::AllGather) => (one, all, Some(self.rank * one)),
            Some(Operation::ReduceScatter) => (all, one, Some(self.rank * one)),
            Some(Operation::AllToAll) => (all, all, None),
            Some(Operation::AllReduce) => (one, one, Some(0)),
            Some(Operation::Broadcast) => (0, one, Some(0)),
            _ => (0, 0, None),
        };
        let element = call.dtype_bytes();
        for ((name, address), bytes) in
            [((send.0, send.1), sent), ((recv.0, recv.1.cast_const()), received)]
        {
            if bytes > 0 && address.is_null() {
                return Err(Error::argument(name, format!("a pointer to {bytes} bytes"), "null"));
            }
            if bytes > 0 && !(address as usize).is_multiple_of(element) {
                let expected = format!("an address that is a multiple of {element}");
                return Err(Error::argument(name, expected, format!("{address:p}")));
            }
        }
        let (from, to) = (send.1 as usize, recv.1 as usize);
        let overlap = sent > 0 && received > 0 && from < to + received && to < from + sent;
        // In place: the own part of the larger buffer is the smaller one.
        let in_place = offset.is_some_and(|offset| match sent <= received {
            true => from == to + offset,
            false => to == from + offset,
        });
        if overlap && !in_place {
            let expected = match offset {
                Some(offset) => format!(
                    "memory apart from {}, or in place, the smaller one at byte {offset} of the larger",
                    send.0
                ),
                None => format!("memory apart from {}", send.0),
            };
            return Err(Error::argument(recv.0, expected, format!("{:p}, which overlaps", recv.1)));
        }
        if call.root >= self.size {
            let expected = format!("0 to {}", self.size - 1);
            return Err(Error::argument("root", expected, call.root as i64));
        }
        Ok(())
    }

    /// Sends and receives messages.
    ///
    /// # Safety
    /// Each has its bytes.
    unsafe fn exchange(
        &self,
        mut call: Call,
        transfers: &[Transfer],
        stream: cudaStream_t,
    ) -> Result<()> {
        self.check_process()?;
        self.check_capture(&call, stream)?;
        let mut state = lock(&self.state);
        state.exchanges += 1;
        call.number = state.exchanges;
        if let Err(failure) = self.check() {
            return Err(self.fail(&call, failure));
        }
        if let Some(line) = &self.line {
            line.announce(&call);
        }
        let access = Access::new(self.domain, stream);
        let done = match (&self.transport, self.segment.as_deref()) {
            (Transport::Host, Some(segment)) => {
                let (rank, limit) = (self.rank, self.options.limit);
                let state = &mut *state;
                // SAFETY: as the caller says.
                unsafe { Turn { segment, state, rank, limit, access }.exchange(&call, transfers) }
            }
            // SAFETY: as the caller says.
            (Transport::Callbacks(callbacks), _) => unsafe {
                callbacks.exchange(transfers, access)
            },
            #[cfg(feature = "cuda")]
            (Transport::Nccl(nccl), segment) => {
                if let Some(segment) = segment {
                    segment.announce(&call, state.number + 1);
                }
                let run =
                    nccl::Run { nccl, domain: self.domain, stream, place: (self.rank, self.size) };
                // SAFETY: as the caller says.
                unsafe { run.exchange(transfers) }
            }
            (Transport::Host, None) => unreachable!("a host transport has a segment"),
        };
        done.map_err(|failure| self.fail(&call, failure))
    }

    /// The ranks that get from this one and that it gets from over a distance.
    fn neighbours(&self, distance: usize) -> (usize, usize) {
        ((self.rank + distance) % self.size, (self.rank + self.size - distance) % self.size)
    }

    /// Sends to the rank that is `distance` further, from 1 to the ranks less 1, and gets as many bytes from the one that is
    /// as far behind; all ranks do the same.
    ///
    /// # Safety
    /// Both have that many bytes.
    unsafe fn shift_bytes(
        &self,
        (send, recv, bytes): (*const u8, *mut u8, usize),
        distance: usize,
        name: &str,
        stream: cudaStream_t,
    ) -> Result<()> {
        self.check_process()?;
        let call = Call::new(Operation::Exchange, NVTEDType::kNVTEByte, bytes).named(name);
        #[cfg(nvte_cuda)]
        if let Transport::Nccl(nccl) = &self.transport
            && bytes > 0
            // SAFETY: as the caller says.
            && unsafe { self.shift_by_copies(nccl, &call, (send, recv, bytes), distance, stream)? }
        {
            return Ok(());
        }
        let (to, from) = self.neighbours(distance);
        let transfers = [
            Transfer { data: send.cast_mut(), bytes, peer: to, receive: false, call },
            Transfer { data: recv, bytes, peer: from, receive: true, call },
        ];
        // SAFETY: as the caller says.
        unsafe { self.exchange(call, &transfers, stream) }
    }

    /// The transport of what [`Self::post`] has sent, and its call.
    #[cfg(nvte_cuda)]
    fn posted(&self, bytes: usize, name: &str) -> Option<(&nccl::Nccl, Call)> {
        let Transport::Nccl(nccl) = &self.transport else { return None };
        Some((nccl, Call::new(Operation::Exchange, NVTEDType::kNVTEByte, bytes).named(name)))
    }

    /// The ranks of the same color as a communicator of their own, ordered by key, then by rank; none for a
    /// negative color.
    pub fn split(self: &Arc<Self>, color: i32, key: i32, name: &str) -> Result<Option<Arc<Self>>> {
        self.check_process()?;
        let call = Call::new(Operation::Split, NVTEDType::kNVTEInt32, 2);
        let mut state = lock(&self.state);
        let options = Options {
            name: match name {
                "" => format!("{}.{color}", self.options.name),
                name => name.into(),
            },
            ..self.options.clone()
        };
        let part = self.numbered(&mut state, call, |number, turn, call| {
            let own = [color, key].map(i32::to_ne_bytes);
            let own = own.as_flattened();
            let gathered = match (&self.transport, turn) {
                (Transport::Callbacks(callbacks), _) => {
                    callbacks.agree(&call, self.size)?;
                    callbacks.gather(own, self.size)?
                }
                (_, Some(mut turn)) => {
                    let mut all = vec![0; own.len() * self.size];
                    // SAFETY: the memory is that of all ranks.
                    unsafe { turn.run(&call, own.as_ptr(), all.as_mut_ptr())? };
                    all
                }
                #[cfg(feature = "cuda")]
                (Transport::Nccl(nccl), None) => {
                    let mut all = vec![0; own.len() * self.size];
                    let (domain, place) = (self.domain, (self.rank, self.size));
                    let run = nccl::Run { nccl, domain, stream: std::ptr::null_mut(), place };
                    run.gather(own, &mut all)?;
                    all
                }
                (Transport::Host, None) => unreachable!("a host transport has a segment"),
            };
            let numbers =
                gathered.as_chunks::<4>().0.iter().map(|bytes| i32::from_ne_bytes(*bytes));
            let numbers: Vec<i32> = numbers.collect();
            let same = (0..self.size).filter(|rank| numbers[2 * rank] == color);
            let mut members: Vec<(i32, usize)> =
                same.map(|rank| (numbers[2 * rank + 1], rank)).collect();
            members.sort_unstable();
            let place = members.iter().position(|&(_, rank)| rank == self.rank).unwrap_or(0);
            let place = (place, members.len());
            let segment = match &self.segment {
                Some(segment) if color >= 0 => {
                    let (staging, limit) = (options.staging, options.limit);
                    Some(segment.part(*number, color, place, staging, limit)?)
                }
                _ => None,
            };
            let transport = match &self.transport {
                Transport::Host => Some(Transport::Host),
                Transport::Callbacks(callbacks) => {
                    callbacks.split(color, key)?.map(Transport::Callbacks)
                }
                #[cfg(feature = "cuda")]
                Transport::Nccl(nccl) => {
                    // All ranks in their order need no other communicator of NCCL, which takes long to make.
                    let same = members.iter().map(|&(_, rank)| rank).eq(0..self.size);
                    let limit = self.options.limit;
                    let part = if same {
                        Some(nccl.again(limit)?)
                    } else {
                        nccl.split(color, key, limit)?
                    };
                    part.map(|part| Transport::Nccl(Box::new(part)))
                }
            };
            let transport = transport.filter(|_| color >= 0);
            Ok(transport.map(|transport| (place, segment, transport)))
        });
        let part = part.map_err(|(call, failure)| self.fail(&call, failure))?;
        let Some((place, segment, transport)) = part else { return Ok(None) };
        let mut made = Self::new(options, place, segment, transport)?;
        made.domain = self.domain;
        made.parent = Some(Arc::clone(self));
        made.line = self.line.clone();
        Ok(Some(made.watched()))
    }

    /// Ends the communicator for all ranks, which get `reason`.
    pub fn abort(&self, reason: &str) {
        self.record(Failure::device(format!("rank {} has aborted: {reason}", self.rank)));
        if let Transport::Callbacks(callbacks) = &self.transport {
            callbacks.abort();
        }
    }

    /// Says that this rank will make no calls any more.
    fn leave(&self) {
        if self.forks == FORKS.load(Ordering::Relaxed)
            && let Some(segment) = &self.segment
        {
            segment.leave();
        }
        if self.forks == FORKS.load(Ordering::Relaxed)
            && self.parent.is_none()
            && let Some(line) = &self.line
        {
            line.leave();
        }
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        self.leave();
        if self.forks != FORKS.load(Ordering::Relaxed) {
            // What the transport has belongs to the process that made it.
            match &mut self.transport {
                Transport::Host => {}
                Transport::Callbacks(callbacks) => callbacks.forget(),
                #[cfg(feature = "cuda")]
                Transport::Nccl(nccl) => nccl.forget(),
            }
        }
    }
}

/// Refuses elements of 4 bits, of which a count need not be whole bytes.
fn check_whole_bytes(name: &str, dtype: NVTEDType) -> Result<()> {
    match dtype {
        NVTEDType::kNVTEFloat4E2M1 | NVTEDType::kNVTENumTypes => {
            let expected = "elements of whole bytes (4-bit elements travel as kNVTEByte)";
            Err(Error::argument(name, expected, format!("{dtype:?}")))
        }
        _ => Ok(()),
    }
}

/// Looks at the other ranks until the communicator is destroyed or has failed.
fn watch(watched: &Weak<Communicator>) {
    loop {
        std::thread::sleep(WATCH);
        let Some(communicator) = watched.upgrade() else { return };
        let Some(failure) = communicator.look() else { continue };
        // Also where another rank has recorded it: this process stops its own work on the device.
        let failure = communicator.record(failure);
        if let Transport::Callbacks(callbacks) = &communicator.transport {
            callbacks.abort();
        }
        if let Some(OnFailure { function, user }) = communicator.options.on_failure {
            let text = communicator.text(&failure).replace('\0', " ");
            let text = CString::new(text).unwrap_or_default();
            // SAFETY: the program gave the function and its argument for this call.
            unsafe { function(user as *mut c_void, text.as_ptr()) };
        }
        return;
    }
}

/// What stands for NCCL in a library that was built without CUDA.
#[cfg(not(feature = "cuda"))]
mod without_nccl {
    use super::*;
    use crate::types::ncclComm_t;

    pub fn no_nccl() -> Error {
        Error::unsupported("NCCL: this library was built without CUDA")
    }

    impl Communicator {
        pub fn nccl(_: &[u8; 128], _: i32, _: i32, _: Options) -> Result<Arc<Self>> {
            Err(no_nccl())
        }

        pub fn nccl_shared(_: &str, _: i32, _: i32, _: Options) -> Result<Arc<Self>> {
            Err(no_nccl())
        }

        pub fn of_nccl(_: ncclComm_t, _: Options) -> Result<Arc<Self>> {
            Err(no_nccl())
        }
    }
}
#[cfg(not(feature = "cuda"))]
use without_nccl::no_nccl;
