//! `NVTE_TRACE`: what operators ran when, as a Chrome trace (`chrome://tracing`, Perfetto).
//!
//! An operator has an event in the row of the thread that called it, of the time that the call took on the host, with
//! its implementation, its stream and the bytes of its operands as far as the host knows them. On CUDA it also has
//! one in the row of its stream, of the time between two events that were recorded before and after its work; not
//! while the stream is captured into a graph, where nothing runs yet. Where libnvToolsExt.so.1 is present, calls
//! are ranges of NVTX, too.
#![allow(unsafe_code)]

use super::domain::Domain;
use crate::env::{Trace as Wanted, env};
use crate::fork::{self, Held};
use crate::stderr;
use crate::types::cudaStream_t;
use std::fmt::{Display, Write as _};
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Text that is kept before it is written to the file.
const BUFFER: usize = 1 << 16;

/// A trace that is being written.
struct Trace {
    file: File,
    text: String,
    process: u32,
    /// The time 0 of the trace.
    began: Instant,
    #[cfg(nvte_cuda)]
    devices: std::collections::BTreeMap<i32, device::Timeline>,
}

enum State {
    /// No operator has been traced.
    Idle,
    On(Box<Trace>),
    /// The file cannot be written, or the process is at its end.
    Over,
}

static STATE: Mutex<State> = Mutex::new(State::Idle);

/// Set in a child of a process that has traced operators: it writes to a file of its own.
static FORKED: AtomicBool = AtomicBool::new(false);

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps other threads from writing to the trace until the result is dropped.
pub fn hold(deadline: Instant) -> Box<dyn Held> {
    Box::new(fork::patiently(deadline, || STATE.try_lock()))
}

/// Called in the child of a fork: what the parent has not written yet is the parent's.
pub fn note_fork() {
    let parents = std::mem::replace(&mut *state(), State::Idle);
    if !matches!(parents, State::Idle) {
        FORKED.store(true, Ordering::Relaxed);
    }
    // Its events are the parent's, too: they are not destroyed.
    std::mem::forget(parents);
}

/// Whether operators are to be traced.
pub fn is_wanted() -> bool {
    env().trace != Wanted::Off
}

impl State {
    /// The trace, which begins with the first operator. Not to be asked for inside of the program's function for
    /// lines, where a warning of the trace itself may have led.
    fn trace(&mut self) -> Option<&mut Trace> {
        if matches!(self, Self::Idle) {
            *self = match &env().trace {
                Wanted::File(path) => Trace::begin(path).map_or(Self::Over, Self::On),
                Wanted::Off | Wanted::Ranges => Self::Over,
            };
        }
        match self {
            Self::On(trace) => Some(trace),
            _ => None,
        }
    }
}

impl Trace {
    fn begin(path: &str) -> Option<Box<Self>> {
        let process = std::process::id();
        let path = match path.contains("%p") {
            true => path.replace("%p", &process.to_string()),
            false if FORKED.load(Ordering::Relaxed) => format!("{path}.{process}"),
            false => path.to_owned(),
        };
        let file = match File::create(Path::new(&path)) {
            Ok(file) => file,
            Err(error) => {
                stderr::print(format_args!(
                    "nvte: warning: NVTE_TRACE: {path}: {error}; nothing is traced"
                ));
                return None;
            }
        };
        // SAFETY: the function is one of this library, which is not unloaded while it is registered.
        unsafe { libc::atexit(finish) };
        let mut trace = Self {
            file,
            text: String::with_capacity(BUFFER + 1024),
            process,
            began: Instant::now(),
            #[cfg(nvte_cuda)]
            devices: Default::default(),
        };
        trace.text += "[\n";
        Some(Box::new(trace))
    }

    /// Nanoseconds since the beginning.
    fn time(&self, at: Instant) -> i64 {
        nanoseconds(at.saturating_duration_since(self.began))
    }

    /// An event of a row, from a time on for a time, in nanoseconds.
    fn event(&mut self, row: i64, (from, long): (i64, i64), what: &dyn Display) {
        let process = self.process;
        // The format counts microseconds.
        let ([from, from_rest], [long, long_rest]) =
            ([from / 1000, from % 1000], [long / 1000, long % 1000]);
        // Writing to a text cannot fail.
        let _ = writeln!(
            self.text,
            "{{\"ph\":\"X\",\"pid\":{process},\"tid\":{row},\"ts\":{from}.{from_rest:03},\
             \"dur\":{long}.{long_rest:03},{what}}},"
        );
        if self.text.len() >= BUFFER {
            self.write();
        }
    }

    /// Gives a row a name.
    #[cfg(nvte_cuda)]
    fn name_row(&mut self, row: i64, name: &dyn Display) {
        let process = self.process;
        let _ = writeln!(
            self.text,
            "{{\"ph\":\"M\",\"pid\":{process},\"tid\":{row},\"name\":\"thread_name\",\"args\":{{\"name\":\"{name}\"}}}},"
        );
    }

    fn write(&mut self) {
        if let Err(error) = self.file.write_all(self.text.as_bytes()) {
            stderr::print(format_args!(
                "nvte: warning: NVTE_TRACE: {error}; a part of the trace is lost"
            ));
        }
        self.text.clear();
    }
}

fn nanoseconds(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

/// Writes what is left when the process ends.
extern "C" fn finish() {
    let mut state = state();
    if let State::On(trace) = &mut *state {
        #[cfg(nvte_cuda)]
        trace.collect();
        let process = trace.process;
        // The last element, after which there is no comma.
        let _ = writeln!(
            trace.text,
            "{{\"ph\":\"M\",\"pid\":{process},\"name\":\"process_name\",\"args\":{{\"name\":\"nvte\"}}}}\n]"
        );
        trace.write();
    }
    // Events of a device may be gone with it.
    std::mem::forget(std::mem::replace(&mut *state, State::Over));
}

/// Number of the calling thread.
fn thread() -> i64 {
    thread_local! {
        // The function of this name is younger than the oldest glibc that the wheel is for.
        // SAFETY: the call only returns a number.
        static THREAD: i64 = unsafe { libc::syscall(libc::SYS_gettid) };
    }
    THREAD.with(|thread| *thread)
}

/// An operator that is running.
pub struct Span {
    began: Instant,
    stream: cudaStream_t,
    #[cfg(nvte_cuda)]
    on_device: Option<device::Mark>,
    _range: ranges::Range,
}

/// Begins the span of a call of an operator, whose name ends with a NUL.
pub fn begin(name: &'static std::ffi::CStr, domain: &Domain, stream: cudaStream_t) -> Span {
    let range = ranges::Range::begin(name);
    #[cfg(nvte_cuda)]
    let on_device = device::mark(domain, stream);
    #[cfg(not(nvte_cuda))]
    let _ = domain;
    Span {
        began: Instant::now(),
        stream,
        #[cfg(nvte_cuda)]
        on_device,
        _range: range,
    }
}

/// What an event says of an operator.
struct What<'a> {
    name: &'a str,
    domain: &'a Domain,
    implementation: &'a dyn Display,
    bytes: Option<u64>,
    stream: cudaStream_t,
}

impl Display for What<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { name, domain, implementation, bytes, stream } = self;
        write!(
            f,
            "\"name\":\"{name}\",\"cat\":\"{domain}\",\"args\":{{\"implementation\":\"{implementation}\""
        )?;
        if let Some(bytes) = bytes {
            write!(f, ",\"bytes\":{bytes}")?;
        }
        write!(f, ",\"stream\":\"{stream:p}\"}}")
    }
}

impl Span {
    /// Ends the span of an operator that has run.
    pub fn end(
        self,
        name: &str,
        domain: &Domain,
        implementation: &dyn Display,
        bytes: Option<u64>,
    ) {
        let long = nanoseconds(self.began.elapsed());
        if stderr::is_within() {
            return;
        }
        let mut state = state();
        let Some(trace) = state.trace() else { return };
        let what = What { name, domain, implementation, bytes, stream: self.stream };
        let from = trace.time(self.began);
        #[cfg(nvte_cuda)]
        if let Some(mark) = self.on_device {
            trace.end_on_device(mark, self.stream, what.to_string());
        }
        trace.event(thread(), (from, long), &what);
    }
}

/// Times on CUDA devices.
#[cfg(nvte_cuda)]
mod device {
    use super::{Domain, State, Trace, nanoseconds, state};
    use crate::backend::args::{BackendStatus, Outcome};
    use crate::backend::domain::CUDA;
    use crate::stderr;
    use crate::types::{cudaEvent_t, cudaStream_t};
    use std::collections::{BTreeMap, VecDeque};

    unsafe extern "C" {
        fn nvte_cuda_event_create(event: *mut cudaEvent_t) -> Outcome;
        fn nvte_cuda_event_record(event: cudaEvent_t, stream: cudaStream_t) -> Outcome;
        fn nvte_cuda_event_wait(event: cudaEvent_t) -> Outcome;
        fn nvte_cuda_event_elapsed(
            first: cudaEvent_t,
            second: cudaEvent_t,
            happened: *mut bool,
            milliseconds: *mut f32,
        ) -> Outcome;
    }

    /// Nanoseconds after which another event becomes the one that times are counted from: a float has 24 bits.
    const NEAR: i64 = 1_000_000_000;

    /// Most operators whose times are not known yet.
    const MOST_PENDING: usize = 1 << 16;

    /// Rows of streams have numbers that no thread has.
    const FIRST_ROW: i64 = 1 << 30;

    /// An event that has happened, and when, in nanoseconds of the trace.
    #[derive(Clone, Copy)]
    struct Base {
        event: cudaEvent_t,
        time: i64,
    }

    struct Pending {
        first: cudaEvent_t,
        second: cudaEvent_t,
        row: i64,
        what: String,
    }

    /// The times of one device.
    #[derive(Default)]
    pub struct Timeline {
        base: Option<Base>,
        free: Vec<cudaEvent_t>,
        pending: VecDeque<Pending>,
        rows: BTreeMap<usize, i64>,
    }

    // SAFETY: events may be used from any thread.
    unsafe impl Send for Timeline {}

    /// The event before an operator's work, until its end is marked; a call that fails has none.
    pub struct Mark {
        device: i32,
        event: Option<cudaEvent_t>,
    }

    impl Drop for Mark {
        fn drop(&mut self) {
            let Some(event) = self.event else { return };
            if let State::On(trace) = &mut *state() {
                trace.devices.entry(self.device).or_default().free.push(event);
            }
        }
    }

    fn done(outcome: Outcome) -> Option<()> {
        (outcome.status() == BackendStatus::NVTEX_BACKEND_OK).then_some(())
    }

    impl Timeline {
        fn record(&mut self, stream: cudaStream_t) -> Option<cudaEvent_t> {
            let mut event = std::ptr::null_mut();
            match self.free.pop() {
                Some(free) => event = free,
                // SAFETY: writes one event.
                None => done(unsafe { nvte_cuda_event_create(&mut event) })?,
            }
            // SAFETY: the stream is the caller's.
            done(unsafe { nvte_cuda_event_record(event, stream) })?;
            Some(event)
        }
    }

    /// Nanoseconds from one event to another, none if that has not happened yet.
    fn elapsed(first: cudaEvent_t, second: cudaEvent_t) -> Option<i64> {
        let (mut happened, mut milliseconds) = (false, 0.0);
        // SAFETY: both are events that were recorded.
        let outcome =
            unsafe { nvte_cuda_event_elapsed(first, second, &mut happened, &mut milliseconds) };
        done(outcome)?;
        happened.then_some((f64::from(milliseconds) * 1e6) as i64)
    }

    /// Marks the beginning of an operator's work on its stream, unless that is captured.
    pub fn mark(domain: &Domain, stream: cudaStream_t) -> Option<Mark> {
        let captured = || domain.is_capturing(stream).unwrap_or(true);
        if stderr::is_within() || domain.name() != CUDA || captured() {
            return None;
        }
        let device = domain.device().ok()?;
        let mut state = state();
        let trace = state.trace()?;
        let began = trace.began;
        let timeline = trace.devices.entry(device).or_default();
        if timeline.base.is_none() {
            let event = timeline.record(stream)?;
            // SAFETY: the event was recorded. This is the only wait of a trace.
            done(unsafe { nvte_cuda_event_wait(event) })?;
            let time = nanoseconds(began.elapsed());
            timeline.base = Some(Base { event, time });
        }
        let event = timeline.record(stream)?;
        Some(Mark { device, event: Some(event) })
    }

    impl Trace {
        /// Marks the end of an operator's work, whose times are known later.
        pub fn end_on_device(&mut self, mut mark: Mark, stream: cudaStream_t, what: String) {
            let timeline = self.devices.entry(mark.device).or_default();
            let Some(first) = mark.event.take() else { return };
            let Some(second) = timeline.record(stream) else { return timeline.free.push(first) };
            let next = FIRST_ROW + ((mark.device as i64) << 20) + timeline.rows.len() as i64;
            let known = timeline.rows.len();
            let row = *timeline.rows.entry(stream as usize).or_insert(next);
            let is_new = timeline.rows.len() > known;
            match timeline.pending.len() < MOST_PENDING {
                true => timeline.pending.push_back(Pending { first, second, row, what }),
                false => timeline.free.extend([first, second]),
            }
            if is_new {
                self.name_row(row, &format_args!("cuda {} stream {stream:p}", mark.device));
            }
            self.advance(mark.device, 2);
        }

        /// Writes the operators of a device that have come to their end, `most` at most.
        fn advance(&mut self, device: i32, most: usize) {
            for _ in 0..most {
                let Some(timeline) = self.devices.get_mut(&device) else { return };
                let (Some(base), Some(front)) = (timeline.base, timeline.pending.front()) else {
                    return;
                };
                let Some(long) = elapsed(front.first, front.second) else { return };
                let Some(from) = elapsed(base.event, front.first) else { return };
                let Some(Pending { first, second, row, what }) = timeline.pending.pop_front()
                else {
                    return;
                };
                let from = (base.time + from).max(0);
                timeline.free.push(first);
                match from + long - base.time > NEAR {
                    true => {
                        timeline.free.push(base.event);
                        timeline.base = Some(Base { event: second, time: from + long });
                    }
                    false => timeline.free.push(second),
                }
                self.event(row, (from, long), &what);
            }
        }

        /// Writes what is known at the end.
        pub fn collect(&mut self) {
            let devices: Vec<i32> = self.devices.keys().copied().collect();
            for device in devices {
                self.advance(device, usize::MAX);
            }
        }
    }
}

/// Ranges of NVTX, which tools show beside what they measure themselves.
#[cfg(nvte_cuda)]
mod ranges {
    use crate::backend::library;
    use crate::fork;
    use std::ffi::{CStr, c_char, c_int};
    use std::marker::PhantomData;
    use std::sync::OnceLock;

    type Push = unsafe extern "C" fn(*const c_char) -> c_int;
    type Pop = unsafe extern "C" fn() -> c_int;

    fn functions() -> Option<(Push, Pop)> {
        static FUNCTIONS: OnceLock<Option<(Push, Pop)>> = OnceLock::new();
        *fork::once(&FUNCTIONS, || {
            let library = library::open("libnvToolsExt.so.1")?;
            // SAFETY: these are the functions' types in nvToolsExt.h, and the library stays loaded.
            unsafe {
                let push = *library.get::<Push>(b"nvtxRangePushA\0").ok()?;
                let pop = *library.get::<Pop>(b"nvtxRangePop\0").ok()?;
                Some((push, pop))
            }
        })
    }

    /// A range of the calling thread until it is dropped.
    pub struct Range(Option<Pop>, PhantomData<*const ()>);

    impl Range {
        pub fn begin(name: &'static CStr) -> Self {
            let functions = functions();
            if let Some((push, _)) = functions {
                // SAFETY: the name is a C string.
                unsafe { push(name.as_ptr()) };
            }
            Self(functions.map(|(_, pop)| pop), PhantomData)
        }
    }

    impl Drop for Range {
        fn drop(&mut self) {
            if let Some(pop) = self.0 {
                // SAFETY: this thread has pushed the range.
                unsafe { pop() };
            }
        }
    }
}

/// A build without CUDA has no ranges.
#[cfg(not(nvte_cuda))]
mod ranges {
    pub struct Range;

    impl Range {
        pub fn begin(_: &'static std::ffi::CStr) -> Self {
            Self
        }
    }
}
