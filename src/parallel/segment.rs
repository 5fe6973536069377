//! Memory that the ranks of one host share: what each rank is doing, the first failure, room for data on
//! their way, and waiting for each other with a limit. Ranks are threads of a process or processes; a waiting
//! rank looks at the others from time to time, so that one that has ended or does not come is an error.
#![allow(unsafe_code)]

use super::call::{Call, WORDS};
use crate::error::Kind;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// Why a communicator cannot go on.
#[derive(Clone, Debug)]
pub struct Failure {
    pub kind: Kind,
    pub cause: String,
}

impl Failure {
    pub fn argument(cause: impl Into<String>) -> Self {
        Self { kind: Kind::Argument, cause: cause.into() }
    }

    pub fn device(cause: impl Into<String>) -> Self {
        Self { kind: Kind::Device, cause: cause.into() }
    }
}

/// Most ranks of one segment: its mailboxes are for pairs.
pub const MOST_RANKS: usize = 128;

/// "nvtexcom", and the version of the layout below.
const MAGIC: u64 = 0x6e76_7465_7863_6f6d;
const VERSION: u64 = 1;

/// How long a rank sleeps before it looks again whether it has been woken, and how often it looks at the others.
const SLICE: Duration = Duration::from_millis(20);
const LOOK: Duration = Duration::from_millis(100);

/// Tests of a condition before a rank goes to sleep.
const SPINS: usize = 60;

/// Bytes that the text of a failure may have.
const TEXT: usize = 1024;

/// What all ranks share. Values without an atomic type are written before `magic`.
#[repr(C, align(4096))]
struct Header {
    magic: AtomicU64,
    version: AtomicU64,
    size: AtomicU64,
    half: AtomicU64,
    mailbox: AtomicU64,
    /// Tells this segment from all others, for the names of those split off.
    nonce: AtomicU64,
    creator: Process,
    /// All ranks have come.
    complete: AtomicU32,
    /// Changes when somebody may go on; sleepers wait on it.
    wake: AtomicU32,
    sleepers: AtomicU32,
    /// 0: sound; 1: a rank is writing the failure; 2: the failure can be read.
    failed: AtomicU32,
    failure_kind: AtomicU32,
    failure_bytes: AtomicU32,
    failure: [AtomicU64; TEXT / 8],
}

/// A process, and when it began, because numbers of processes are used again.
#[repr(C)]
struct Process {
    pid: AtomicU32,
    start: AtomicU64,
    /// The space in which the number means something.
    space: AtomicU64,
}

/// What a rank says about itself.
#[repr(C, align(1024))]
struct Page {
    process: Process,
    joined: AtomicU32,
    /// The rank has destroyed its communicator.
    left: AtomicU32,
    /// Meetings that the rank has come to.
    arrived: AtomicU64,
    /// Its call, at an even and an odd number: a rank may be one call ahead of those that still read.
    calls: [[AtomicU64; WORDS]; 2],
    /// Which of both is the newest.
    newest: AtomicU32,
}

/// One direction of a pair: room for one piece of a message.
#[repr(C, align(64))]
struct Mailbox {
    sent: AtomicU64,
    taken: AtomicU64,
    /// What the message is.
    call: [AtomicU64; WORDS],
}

/// Bytes of each part of a segment.
#[derive(Clone, Copy)]
struct Layout {
    size: usize,
    half: usize,
    mailbox: usize,
}

impl Layout {
    fn new(size: usize, staging: usize) -> Self {
        let half = (staging / 2).max(size * 256).next_multiple_of(4096);
        let mailbox = ((256 << 10) / size).clamp(4 << 10, 64 << 10).min(half).next_multiple_of(64);
        Self { size, half, mailbox }
    }

    fn mailbox_pitch(&self) -> usize {
        size_of::<Mailbox>() + self.mailbox
    }

    fn pages(&self) -> usize {
        size_of::<Header>()
    }

    fn mailboxes(&self) -> usize {
        (self.pages() + self.size * size_of::<Page>()).next_multiple_of(4096)
    }

    fn staging(&self) -> usize {
        (self.mailboxes() + self.size * self.size * self.mailbox_pitch()).next_multiple_of(4096)
    }

    fn bytes(&self) -> usize {
        self.staging() + self.size * 2 * self.half
    }
}

/// Memory of the segment in this process.
struct Mapping {
    base: *mut u8,
    bytes: usize,
    layout: Layout,
}

// SAFETY: all ranks of all processes use the memory by atomics, and data by the rules of meetings.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nobody refers to it any more.
        unsafe { libc::munmap(self.base.cast(), self.bytes) };
    }
}

impl Mapping {
    /// Memory of a file, or of this process alone.
    fn new(file: Option<&File>, bytes: usize, layout: Layout) -> io::Result<Self> {
        let (flags, descriptor) = match file {
            Some(file) => (libc::MAP_SHARED, file.as_raw_fd()),
            None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE, -1),
        };
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the system's choice.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, flags, descriptor, 0) };
        match base == libc::MAP_FAILED {
            true => Err(io::Error::last_os_error()),
            false => Ok(Self { base: base.cast(), bytes, layout }),
        }
    }

    fn header(&self) -> &Header {
        // SAFETY: the mapping begins with a header, of atomics only, for which any bytes are values.
        unsafe { &*self.base.cast::<Header>() }
    }

    fn page(&self, rank: usize) -> &Page {
        let at = self.layout.pages() + rank * size_of::<Page>();
        // SAFETY: the mapping has a page for each rank.
        unsafe { &*self.base.add(at).cast::<Page>() }
    }
}

/// What a rank holds of a segment.
pub struct Segment {
    mapping: Arc<Mapping>,
    rank: usize,
    /// The ranks are threads of one process.
    local: bool,
    /// The rank has left it.
    quiet: AtomicBool,
    /// What it has been split from: a failure there is one here.
    parent: Option<Arc<Segment>>,
}

impl Segment {
    /// Segments for threads of this process, one for each rank.
    pub fn local(size: usize, staging: usize) -> io::Result<Vec<Self>> {
        let layout = Layout::new(size, staging);
        let mapping = Arc::new(Mapping::new(None, layout.bytes(), layout)?);
        initialise(&mapping);
        for rank in 0..size {
            enter(&mapping, rank);
        }
        mapping.header().complete.store(1, Release);
        let rank = |rank| Self::of(Arc::clone(&mapping), rank, true);
        Ok((0..size).map(rank).collect())
    }

    fn of(mapping: Arc<Mapping>, rank: usize, local: bool) -> Self {
        Self { mapping, rank, local, quiet: AtomicBool::new(false), parent: None }
    }

    /// Meets the other ranks of a key: processes of this host that have the same user, or threads.
    pub fn shared(
        key: &str,
        (rank, size): (usize, usize),
        staging: usize,
        limit: Duration,
    ) -> Result<Self, Failure> {
        let deadline = Instant::now() + limit;
        // SAFETY: the call has no conditions.
        let user = unsafe { libc::geteuid() };
        let path = PathBuf::from(format!("/dev/shm/nvtex-{user}-{key}"));
        let layout = Layout::new(size, staging);
        let (mapping, own) = match rank {
            0 => (create(&path, layout, deadline)?, Some(Unlink(&path))),
            _ => (join(&path, (rank, size), deadline)?, None),
        };
        let segment = Self::of(Arc::new(mapping), rank, false);
        let header = segment.header();
        if rank == 0 {
            let absent = || (0..size).find(|&rank| segment.page(rank).joined.load(Acquire) == 0);
            let met = segment.wait(deadline, limit, || absent().is_none(), &absent, &|_| true);
            // The ranks that have come learn it, too.
            met.map_err(|failure| segment.fail(&failure))?;
            drop(own);
            header.complete.store(1, Release);
            segment.notify();
        } else {
            segment.notify();
            let complete = || header.complete.load(Acquire) == 1;
            let absent = || {
                let joined = |rank: &usize| segment.page(*rank).joined.load(Acquire) == 0;
                (0..size).find(joined).or(Some(0))
            };
            let met = segment.wait(deadline, limit, complete, &absent, &|_| true);
            met.map_err(|failure| segment.fail(&failure))?;
        }
        Ok(segment)
    }

    /// The segment of the ranks that have the same color in a split of this one, `number` being that of the
    /// split.
    pub fn part(
        self: &Arc<Self>,
        number: u64,
        color: i32,
        place: (usize, usize),
        staging: usize,
        limit: Duration,
    ) -> Result<Self, Failure> {
        let part = self.part_alone(number, color, place, staging, limit)?;
        Ok(Self { parent: Some(Arc::clone(self)), ..part })
    }

    fn part_alone(
        &self,
        number: u64,
        color: i32,
        (rank, size): (usize, usize),
        staging: usize,
        limit: Duration,
    ) -> Result<Self, Failure> {
        let nonce = self.header().nonce.load(Relaxed);
        let key = (nonce, number, color);
        if !self.local {
            let key = format!("{:016x}-{number}-{color}", key.0);
            return Self::shared(&key, (rank, size), staging, limit);
        }
        let mut parts = PARTS.lock().unwrap_or_else(PoisonError::into_inner);
        let parts = parts.get_or_insert_default();
        if let Entry::Vacant(vacant) = parts.entry(key) {
            let made = Self::local(size, staging);
            let made = made.map_err(|error| Failure::device(error.to_string()))?;
            vacant.insert(made.into_iter().map(Some).collect());
        }
        let waiting = parts.get_mut(&key);
        let own = waiting.and_then(|list| list.get_mut(rank)?.take());
        if parts.get(&key).is_some_and(|list| list.iter().all(Option::is_none)) {
            parts.remove(&key);
        }
        own.ok_or_else(|| Failure::device("a part of a split has been taken twice"))
    }

    fn header(&self) -> &Header {
        self.mapping.header()
    }

    fn page(&self, rank: usize) -> &Page {
        self.mapping.page(rank)
    }

    pub fn size(&self) -> usize {
        self.mapping.layout.size
    }

    /// Bytes of one half of the room of a rank.
    pub fn half(&self) -> usize {
        self.mapping.layout.half
    }

    /// The room of a rank for data of one meeting. Two halves take turns, so that a rank can write the one while
    /// others still read the other one.
    pub fn staging(&self, rank: usize, half: usize) -> *mut u8 {
        let layout = &self.mapping.layout;
        let at = layout.staging() + (2 * rank + half) * layout.half;
        // SAFETY: the mapping has two halves for each rank.
        unsafe { self.mapping.base.add(at) }
    }

    /// Says what this rank is about to do, at one of two places: that of collective `number` is `number % 2`.
    pub fn announce(&self, call: &Call, number: u64) {
        let (page, place) = (self.page(self.rank), (number % 2) as usize);
        for (word, value) in page.calls[place].iter().zip(call.words()) {
            word.store(value, Relaxed);
        }
        page.newest.store(place as u32, Release);
    }

    /// What a rank has announced, at the same place as call `number`.
    fn announced(&self, rank: usize, place: usize) -> Call {
        Call::of_words(&self.page(rank).calls[place].each_ref().map(|word| word.load(Relaxed)))
    }

    /// Comes to a meeting: the `number`-th, which all ranks count alike.
    pub fn meet(&self, number: u64, limit: Duration) -> Result<(), Failure> {
        self.page(self.rank).arrived.store(number, SeqCst);
        let missing =
            || (0..self.size()).find(|&rank| self.page(rank).arrived.load(SeqCst) < number);
        if missing().is_none() {
            self.notify();
            return Ok(());
        }
        let deadline = Instant::now() + limit;
        self.wait(deadline, limit, || missing().is_none(), &missing, &|_| true)
    }

    /// Compares the calls of all ranks, after a meeting that followed their announcements.
    pub fn agree(&self, call: &Call) -> Result<(), Failure> {
        let place = (call.number % 2) as usize;
        let first = self.announced(0, place);
        for rank in 1..self.size() {
            if let Some(difference) = first.difference(0, &self.announced(rank, place), rank) {
                return Err(Failure::argument(difference));
            }
        }
        Ok(())
    }

    /// Wakes all ranks that wait for something.
    fn notify(&self) {
        let header = self.header();
        header.wake.fetch_add(1, SeqCst);
        if header.sleepers.load(SeqCst) > 0 {
            // SAFETY: the word lives as long as the mapping.
            unsafe {
                libc::syscall(libc::SYS_futex, header.wake.as_ptr(), libc::FUTEX_WAKE, i32::MAX)
            };
        }
    }

    /// Waits for a condition. `missing` is a rank that it depends on, which is named if it does not come before the
    /// deadline; the condition cannot come true any more if one of the `partners` has ended.
    fn wait(
        &self,
        deadline: Instant,
        limit: Duration,
        condition: impl Fn() -> bool,
        missing: &dyn Fn() -> Option<usize>,
        partners: &dyn Fn(usize) -> bool,
    ) -> Result<(), Failure> {
        let header = self.header();
        let mut look = Instant::now() + LOOK;
        loop {
            for _ in 0..SPINS {
                if condition() {
                    return Ok(());
                }
                std::hint::spin_loop();
            }
            if let Some(failure) = self.failure() {
                return Err(failure);
            }
            header.sleepers.fetch_add(1, SeqCst);
            let seen = header.wake.load(SeqCst);
            if !condition() && header.failed.load(SeqCst) == 0 {
                sleep(&header.wake, seen);
            }
            header.sleepers.fetch_sub(1, SeqCst);
            let now = Instant::now();
            if now < look && now < deadline {
                continue;
            }
            look = now + LOOK;
            let Some(rank) = missing() else { continue };
            // A rank that has ended may have come before.
            if let Some(why) = self.gone(partners, true) {
                if !condition() {
                    return Err(Failure::device(why));
                }
            } else if now >= deadline && !condition() {
                let seconds = limit.as_secs_f64();
                return Err(Failure::device(format!(
                    "rank {rank}{} has not come within {seconds} s; {}",
                    self.process(rank),
                    self.last_call(rank)
                )));
            }
        }
    }

    /// Which of the `partners` has ended, and what it did last; with `left` also one that has destroyed its communicator.
    pub fn gone(&self, partners: &dyn Fn(usize) -> bool, left: bool) -> Option<String> {
        let others = (0..self.size()).filter(|&rank| rank != self.rank && partners(rank));
        others.into_iter().find_map(|rank| {
            let page = self.page(rank);
            let what = match page.joined.load(Acquire) == 0 {
                true => return None,
                false if page.left.load(Acquire) == 1 && !left => return None,
                false if page.left.load(Acquire) == 1 => "has destroyed its communicator",
                false if page.process.has_ended() => "has ended",
                false => return None,
            };
            Some(format!("rank {rank}{} {what}; {}", self.process(rank), self.last_call(rank)))
        })
    }

    /// The number of the process of a rank, for messages.
    fn process(&self, rank: usize) -> String {
        match self.page(rank).process.pid.load(Relaxed) {
            0 => String::new(),
            _ if self.local => String::new(),
            pid => format!(" (process {pid})"),
        }
    }

    fn last_call(&self, rank: usize) -> String {
        let page = self.page(rank);
        let call = self.announced(rank, page.newest.load(Acquire) as usize % 2);
        match call.number {
            0 => "it has made no call".into(),
            _ => format!("its last call was {call}"),
        }
    }

    /// Records a failure unless there is one, and wakes all ranks. Returns the first one.
    pub fn fail(&self, failure: &Failure) -> Failure {
        let header = self.header();
        if header.failed.compare_exchange(0, 1, SeqCst, SeqCst).is_ok() {
            let mut end = failure.cause.len().min(TEXT);
            while !failure.cause.is_char_boundary(end) {
                end -= 1;
            }
            let text = &failure.cause.as_bytes()[..end];
            for (word, bytes) in header.failure.iter().zip(text.chunks(8)) {
                let mut whole = [0; 8];
                whole[..bytes.len()].copy_from_slice(bytes);
                word.store(u64::from_ne_bytes(whole), Relaxed);
            }
            header.failure_bytes.store(end as u32, Relaxed);
            header.failure_kind.store(failure.kind as u32, Relaxed);
            header.failed.store(2, SeqCst);
            self.notify();
        }
        self.failure().unwrap_or_else(|| failure.clone())
    }

    /// The first failure, if there is one.
    pub fn failure(&self) -> Option<Failure> {
        if let Some(failure) = self.parent.as_ref().and_then(|parent| parent.failure()) {
            return Some(failure);
        }
        let header = self.header();
        // A rank that was killed while it wrote leaves 1 there for good.
        let mut patience = 1000;
        while header.failed.load(Acquire) == 1 && patience > 0 {
            std::thread::sleep(Duration::from_micros(100));
            patience -= 1;
        }
        match header.failed.load(Acquire) {
            0 => None,
            1 => Some(Failure::device("a rank has ended while it reported a failure")),
            _ => {
                let bytes = header.failure.each_ref().map(|word| word.load(Relaxed).to_ne_bytes());
                let length = (header.failure_bytes.load(Relaxed) as usize).min(TEXT);
                let cause = String::from_utf8_lossy(&bytes.as_flattened()[..length]).into_owned();
                let kind = match header.failure_kind.load(Relaxed) {
                    1 => Kind::Argument,
                    _ => Kind::Device,
                };
                Some(Failure { kind, cause })
            }
        }
    }

    /// Says that this rank will make no calls any more.
    pub fn leave(&self) {
        if !self.quiet.swap(true, Relaxed) {
            self.page(self.rank).left.store(1, Release);
            self.notify();
        }
    }

    fn mailbox(&self, from: usize, to: usize) -> (&Mailbox, *mut u8) {
        let layout = &self.mapping.layout;
        let at = layout.mailboxes() + (from * layout.size + to) * layout.mailbox_pitch();
        // SAFETY: the mapping has a mailbox for each pair, with its room behind.
        unsafe {
            let base = self.mapping.base.add(at);
            (&*base.cast::<Mailbox>(), base.add(size_of::<Mailbox>()))
        }
    }

    /// Bytes of one piece of a message.
    pub fn piece(&self) -> usize {
        self.mapping.layout.mailbox
    }

    /// Room for a piece to a rank, if the piece before has been taken.
    pub fn outgoing(&self, to: usize) -> Option<*mut u8> {
        let (mailbox, room) = self.mailbox(self.rank, to);
        (mailbox.sent.load(Relaxed) == mailbox.taken.load(Acquire)).then_some(room)
    }

    /// Sends the piece that has been written to the room.
    pub fn send(&self, to: usize, call: &Call) {
        let (mailbox, _) = self.mailbox(self.rank, to);
        for (word, value) in mailbox.call.iter().zip(call.words()) {
            word.store(value, Relaxed);
        }
        mailbox.sent.fetch_add(1, Release);
        self.notify();
    }

    /// The next piece from a rank, and what its message is.
    pub fn incoming(&self, from: usize) -> Option<(*const u8, Call)> {
        let (mailbox, room) = self.mailbox(from, self.rank);
        let there = mailbox.sent.load(Acquire) != mailbox.taken.load(Relaxed);
        there.then(|| {
            let words = mailbox.call.each_ref().map(|word| word.load(Relaxed));
            (room.cast_const(), Call::of_words(&words))
        })
    }

    /// Gives the room of a piece back, after it has been read.
    pub fn take(&self, from: usize) {
        self.mailbox(from, self.rank).0.taken.fetch_add(1, Release);
        self.notify();
    }

    /// Waits until a message can go on. `partners` are the ranks of messages that are not done, one of which is
    /// `missing`.
    pub fn wait_for_mail(
        &self,
        ready: &dyn Fn() -> bool,
        (missing, partners): (usize, &dyn Fn(usize) -> bool),
        deadline: Instant,
        limit: Duration,
    ) -> Result<(), Failure> {
        self.wait(deadline, limit, ready, &|| Some(missing), partners)
    }
}

/// Parts of local segments that not all of their ranks have taken yet.
type Parts = HashMap<(u64, u64, i32), Vec<Option<Segment>>>;
static PARTS: Mutex<Option<Parts>> = Mutex::new(None);

/// Keeps other threads from splitting until the result is dropped.
pub fn hold(deadline: Instant) -> Box<dyn crate::fork::Held> {
    Box::new(crate::fork::patiently(deadline, || PARTS.try_lock()))
}

/// Removes the name of a segment, also when its creation fails.
struct Unlink<'a>(&'a Path);

impl Drop for Unlink<'_> {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.0);
    }
}

fn sleep(word: &AtomicU32, seen: u32) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: SLICE.subsec_nanos().into() };
    // SAFETY: the word lives as long as the mapping; the time is read before the call returns.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, seen, &raw const time)
    };
}

/// Writes the header of a new segment, whose memory is zero.
fn initialise(mapping: &Mapping) {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let (header, layout) = (mapping.header(), mapping.layout);
    header.version.store(VERSION, Relaxed);
    header.size.store(layout.size as u64, Relaxed);
    header.half.store(layout.half as u64, Relaxed);
    header.mailbox.store(layout.mailbox as u64, Relaxed);
    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    // No secret, only different from other segments: the time, the process and a count.
    let count = COUNT.fetch_add(1, Relaxed) << 48;
    let nonce = time.as_nanos() as u64 ^ count ^ u64::from(std::process::id()) << 32;
    header.nonce.store(nonce, Relaxed);
    header.creator.set_own();
    header.magic.store(MAGIC, Release);
}

/// Says that a rank is there. False if it was already.
fn enter(mapping: &Mapping, rank: usize) -> bool {
    let page = mapping.page(rank);
    if page.joined.compare_exchange(0, 2, SeqCst, SeqCst).is_err() {
        return false;
    }
    page.process.set_own();
    page.joined.store(1, Release);
    true
}

fn explain(path: &Path, error: &io::Error) -> Failure {
    Failure::device(format!("{}: {error}", path.display()))
}

/// Creates the segment of a key; the name of a run that has ended is taken over.
fn create(path: &Path, layout: Layout, deadline: Instant) -> Result<Mapping, Failure> {
    loop {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        match options.open(path) {
            Ok(file) => {
                let unlink = Unlink(path);
                // Reserved, so that a full memory file system is an error here and no signal later.
                // SAFETY: the descriptor is that of the open file.
                let error = unsafe {
                    libc::posix_fallocate(file.as_raw_fd(), 0, layout.bytes() as libc::off_t)
                };
                if error != 0 {
                    let error = io::Error::from_raw_os_error(error);
                    let (path, bytes) = (path.display(), layout.bytes());
                    return Err(Failure::device(format!(
                        "{path}: {bytes} bytes of shared memory: {error}"
                    )));
                }
                let mapping = Mapping::new(Some(&file), layout.bytes(), layout);
                let mapping = mapping.map_err(|error| explain(path, &error))?;
                enter(&mapping, 0);
                initialise(&mapping);
                std::mem::forget(unlink);
                return Ok(mapping);
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                if let Some(pid) = owner(path)? {
                    return Err(Failure::argument(format!(
                        "key: expected one that no other communicator is being created with, got that of \
                         process {pid}"
                    )));
                }
                if Instant::now() >= deadline {
                    return Err(explain(path, &error));
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => return Err(explain(path, &error)),
        }
    }
}

/// How old a file is without a header when its creator must have ended.
const ABANDONED: Duration = Duration::from_secs(5);

/// The process that is creating a segment; none if it has ended, and then the name is free, or will be soon.
fn owner(path: &Path) -> Result<Option<u32>, Failure> {
    match open(path)? {
        None => Ok(None),
        Some((mapping, file)) => match mapping {
            Some(mapping) => {
                let creator = &mapping.header().creator;
                if !creator.has_ended() {
                    return Ok(Some(creator.pid.load(Relaxed)));
                }
                let _ = fs::remove_file(path);
                Ok(None)
            }
            None => {
                let age = file.metadata().and_then(|metadata| metadata.modified());
                let age = age.ok().and_then(|time| time.elapsed().ok()).unwrap_or_default();
                if age > ABANDONED {
                    let _ = fs::remove_file(path);
                }
                Ok(None)
            }
        },
    }
}

/// A segment by its name, if there is one; without a mapping if its header is not complete.
fn open(path: &Path) -> Result<Option<(Option<Mapping>, File)>, Failure> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_NOFOLLOW);
    let file = match options.open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(explain(path, &error)),
    };
    let metadata = file.metadata().map_err(|error| explain(path, &error))?;
    // SAFETY: the call has no conditions.
    let user = unsafe { libc::geteuid() };
    if metadata.uid() != user {
        let owner = metadata.uid();
        return Err(Failure::device(format!(
            "{}: it belongs to user {owner}, expected user {user}",
            path.display()
        )));
    }
    let bytes = metadata.len() as usize;
    if bytes < size_of::<Header>() {
        return Ok(Some((None, file)));
    }
    let none = Layout { size: 0, half: 0, mailbox: 0 };
    let mut mapping =
        Mapping::new(Some(&file), bytes, none).map_err(|error| explain(path, &error))?;
    let header = mapping.header();
    if header.magic.load(Acquire) != MAGIC {
        return Ok(Some((None, file)));
    }
    let number = |word: &AtomicU64| word.load(Relaxed) as usize;
    let layout = Layout {
        size: number(&header.size),
        half: number(&header.half),
        mailbox: number(&header.mailbox),
    };
    let version = header.version.load(Relaxed);
    if version != VERSION || layout.size > MOST_RANKS || layout.bytes() > bytes {
        return Err(Failure::argument(format!(
            "{}: expected a segment of version {VERSION}, got version {version}",
            path.display()
        )));
    }
    mapping.layout = layout;
    Ok(Some((Some(mapping), file)))
}

/// Joins the segment that rank 0 creates.
fn join(path: &Path, (rank, size): (usize, usize), deadline: Instant) -> Result<Mapping, Failure> {
    loop {
        if let Some((Some(mapping), _)) = open(path)? {
            let header = mapping.header();
            if !header.creator.has_ended() && header.complete.load(Acquire) == 0 {
                if mapping.layout.size != size {
                    let got = mapping.layout.size;
                    return Err(Failure::argument(format!(
                        "size: rank 0 has {got}, rank {rank} has {size}"
                    )));
                }
                return match enter(&mapping, rank) {
                    true => Ok(mapping),
                    false => {
                        let pid = mapping.page(rank).process.pid.load(Relaxed);
                        Err(Failure::argument(format!(
                            "rank: expected one that no other process has, got {rank}, which is process {pid}"
                        )))
                    }
                };
            }
        }
        if Instant::now() >= deadline {
            return Err(Failure::device(format!(
                "{}: rank 0 has not come within the time limit",
                path.display()
            )));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

impl Process {
    fn set_own(&self) {
        let pid = std::process::id();
        self.start.store(status(pid).map_or(0, |(_, start)| start), Relaxed);
        self.space.store(space(), Relaxed);
        self.pid.store(pid, Release);
    }

    /// Whether the process has ended. False where that cannot be seen: the time limit is for those.
    fn has_ended(&self) -> bool {
        let (pid, start) = (self.pid.load(Acquire), self.start.load(Relaxed));
        if pid == std::process::id() || pid == 0 || start == 0 {
            return false;
        }
        if self.space.load(Relaxed) != space() {
            return false;
        }
        match status(pid) {
            None => true,
            Some((_, began)) if began != start => true,
            // Only its entry is left, unless other threads of it outlive the first one.
            Some((b'Z' | b'X', _)) => {
                let threads = fs::read_dir(format!("/proc/{pid}/task"));
                threads.map_or(true, |threads| threads.count() <= 1)
            }
            Some(_) => false,
        }
    }
}

/// State and starting time of a process.
fn status(pid: u32) -> Option<(u8, u64)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before it may hold anything.
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    let state = *fields.next()?.as_bytes().first()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

/// The space of process numbers that this process lives in.
fn space() -> u64 {
    fs::metadata("/proc/self/ns/pid").map_or(0, |metadata| metadata.ino())
}
