//! NCCL, opened when it is first needed. Communicators do not block their creation and their calls, so that waits for
//! other ranks have a limit; a watchdog aborts them when a rank has ended.
#![allow(unsafe_code, non_camel_case_types, non_snake_case)]

use super::call::{Call, Operation, Reduction};
use super::host::Transfer;
use super::segment::Failure;
use super::*;
use crate::backend::domain::CUDA;
use crate::backend::library::{self, SEARCHED};
use crate::fork;
use crate::types::ncclComm_t;
use std::ffi::{CStr, c_char, c_int};
use std::sync::OnceLock;

/// Name of the library.
const NAME: &str = "libnccl.so.2";

/// The first version with all functions that are used.
const LEAST: c_int = 21900;

type ncclResult = c_int;
const SUCCESS: ncclResult = 0;
const IN_PROGRESS: ncclResult = 7;

/// `ncclUint8`; what is only moved travels as bytes.
const BYTE: c_int = 1;

/// Bytes of an all-reduce from which sums of shares are exchanged rather than all values.
const SHARED_SUM: usize = 256 << 10;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct UniqueId([c_char; 128]);

/// `ncclConfig_t` of version 2.19; later versions take it by its size.
#[repr(C)]
struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
}

/// `NCCL_CONFIG_UNDEF_INT`
const UNDEFINED: c_int = c_int::MIN;

impl Config {
    fn new() -> Self {
        Self {
            size: size_of::<Self>(),
            magic: 0xcafe_beef,
            version: LEAST as u32,
            blocking: 0,
            cga_cluster_size: UNDEFINED,
            min_ctas: UNDEFINED,
            max_ctas: UNDEFINED,
            net_name: std::ptr::null(),
            split_share: UNDEFINED,
        }
    }
}

macro_rules! library {
    ($($name:ident($($param:ident: $type:ty),* $(,)?);)*) => {
        struct Library {
            $($name: unsafe extern "C" fn($($param: $type),*) -> ncclResult,)*
            ncclGetErrorString: unsafe extern "C" fn(result: ncclResult) -> *const c_char,
        }

        impl Library {
            fn open() -> std::result::Result<Self, String> {
                let file = env().nccl_library.as_deref();
                let (name, places) = match file {
                    Some(file) => (file, "as NVTE_NCCL_LIBRARY says"),
                    None => (NAME, SEARCHED),
                };
                let library = library::open(name)
                    .ok_or_else(|| format!("{name}, the library of NCCL, cannot be loaded {places}"))?;
                // SAFETY: the symbols are functions of these types in all versions of NCCL 2.
                unsafe {
                    let missing = |error: libloading::Error| format!("{name}: {error}");
                    Ok(Self {
                        $($name: *library.get(stringify!($name)).map_err(missing)?,)*
                        ncclGetErrorString: *library.get("ncclGetErrorString").map_err(missing)?,
                    })
                }
            }
        }
    };
}
library! {
    ncclGetVersion(version: *mut c_int);
    ncclGetUniqueId(id: *mut UniqueId);
    ncclCommInitRankConfig(
        comm: *mut ncclComm_t, size: c_int, id: UniqueId, rank: c_int, config: *mut Config,
    );
    ncclCommSplit(
        comm: ncclComm_t, color: c_int, key: c_int, part: *mut ncclComm_t, config: *mut Config,
    );
    ncclCommDestroy(comm: ncclComm_t);
    ncclCommAbort(comm: ncclComm_t);
    ncclCommGetAsyncError(comm: ncclComm_t, result: *mut ncclResult);
    ncclCommCount(comm: ncclComm_t, count: *mut c_int);
    ncclCommUserRank(comm: ncclComm_t, rank: *mut c_int);
    ncclAllGather(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, comm: ncclComm_t,
        stream: cudaStream_t,
    );
    ncclReduceScatter(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, operation: c_int,
        comm: ncclComm_t, stream: cudaStream_t,
    );
    ncclAllReduce(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, operation: c_int,
        comm: ncclComm_t, stream: cudaStream_t,
    );
    ncclBroadcast(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, root: c_int,
        comm: ncclComm_t, stream: cudaStream_t,
    );
    ncclSend(
        send: *const c_void, count: usize, dtype: c_int, peer: c_int, comm: ncclComm_t,
        stream: cudaStream_t,
    );
    ncclRecv(
        recv: *mut c_void, count: usize, dtype: c_int, peer: c_int, comm: ncclComm_t,
        stream: cudaStream_t,
    );
    ncclGroupStart();
    ncclGroupEnd();
}

type Done<R = ()> = std::result::Result<R, Failure>;

/// The library, opened once.
fn nccl() -> Done<&'static Library> {
    static LIBRARY: OnceLock<std::result::Result<Library, String>> = OnceLock::new();
    let opened = fork::once(&LIBRARY, || {
        let library = Library::open()?;
        let mut version = 0;
        // SAFETY: writes one integer.
        unsafe { (library.ncclGetVersion)(&mut version) };
        match version >= LEAST {
            true => Ok(library),
            false => Err(format!("NCCL: expected version {LEAST} or later, got {version}")),
        }
    });
    opened.as_ref().map_err(|why| Failure { kind: Kind::Unsupported, cause: why.clone() })
}

impl Library {
    fn done(&self, what: &str, result: ncclResult) -> Done {
        if result == SUCCESS || result == IN_PROGRESS {
            return Ok(());
        }
        // SAFETY: the text is static.
        let text = unsafe { CStr::from_ptr((self.ncclGetErrorString)(result)) };
        Err(Failure::device(format!("NCCL ({what}): {}", text.to_string_lossy())))
    }
}

/// Bytes by which ranks meet.
pub fn unique_id() -> Done<[u8; 128]> {
    let library = nccl()?;
    let mut id = UniqueId([0; 128]);
    // SAFETY: writes the bytes.
    library.done("ncclGetUniqueId", unsafe { (library.ncclGetUniqueId)(&mut id) })?;
    Ok(id.0.map(|byte| byte as u8))
}

/// A communicator of NCCL.
pub struct Nccl {
    library: &'static Library,
    /// Null after an abort. Held during calls of NCCL, which may be on one thread at a time. Communicators of the same
    /// ranks have one.
    comm: Arc<Mutex<Comm>>,
    borrowed: bool,
    limit: Duration,
    /// Memory of the device for sums in order.
    scratch: Mutex<Scratch>,
    /// Of the sums, which may be on several streams.
    #[cfg(nvte_cuda)]
    order: Mutex<super::peer::Order>,
    /// Memory that other ranks write to.
    #[cfg(nvte_cuda)]
    pub peers: super::peer::Peers,
}

struct Comm {
    library: &'static Library,
    comm: ncclComm_t,
    borrowed: bool,
}

impl Drop for Comm {
    fn drop(&mut self) {
        if !self.comm.is_null() && !self.borrowed {
            // SAFETY: the communicator is live and used no more.
            unsafe { (self.library.ncclCommDestroy)(self.comm) };
        }
    }
}

// SAFETY: NCCL's communicators may be used by any thread, one at a time.
unsafe impl Send for Comm {}

/// Memory of the device; null if there is none.
struct Scratch {
    domain: &'static Domain,
    memory: usize,
    bytes: usize,
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if self.memory != 0 {
            // SAFETY: nobody refers to the memory any more; freeing waits for the device.
            let _ = unsafe { self.domain.free(self.memory as *mut c_void) };
        }
    }
}

impl Nccl {
    fn new(
        library: &'static Library,
        comm: ncclComm_t,
        borrowed: bool,
        limit: Duration,
    ) -> Done<Self> {
        let domain = backend::domain().map_err(|error| Failure::device(error.message))?;
        if domain.name() != CUDA {
            let cause =
                format!("NCCL connects CUDA devices, and the domain of this thread is {domain}");
            return Err(Failure { kind: Kind::Unsupported, cause });
        }
        let scratch = Mutex::new(Scratch { domain, memory: 0, bytes: 0 });
        Ok(Self {
            library,
            comm: Arc::new(Mutex::new(Comm { library, comm, borrowed })),
            borrowed,
            limit,
            scratch,
            #[cfg(nvte_cuda)]
            order: Mutex::default(),
            #[cfg(nvte_cuda)]
            peers: super::peer::Peers::default(),
        })
    }

    fn create(id: &[u8; 128], (rank, size): (usize, usize), limit: Duration) -> Done<Self> {
        let library = nccl()?;
        let made = Self::new(library, std::ptr::null_mut(), false, limit)?;
        let id = UniqueId(id.map(|byte| byte as c_char));
        let mut config = Config::new();
        let mut comm = std::ptr::null_mut();
        // SAFETY: NCCL writes the communicator; the config is read before the call returns.
        let begun = unsafe {
            let (size, rank) = (size as c_int, rank as c_int);
            (library.ncclCommInitRankConfig)(&mut comm, size, id, rank, &mut config)
        };
        lock(&made.comm).comm = comm;
        library.done("ncclCommInitRankConfig", begun)?;
        made.ready("ncclCommInitRankConfig", &|| None)?;
        Ok(made)
    }

    /// Calls NCCL with the communicator, unless it has been aborted.
    fn with<R>(&self, body: impl FnOnce(&Library, ncclComm_t) -> Done<R>) -> Done<R> {
        let comm = lock(&self.comm);
        match comm.comm.is_null() {
            true => Err(Failure::device("NCCL has been aborted")),
            false => body(self.library, comm.comm),
        }
    }

    /// Waits until NCCL has queued what it was asked for, which may need the other ranks.
    fn ready(&self, what: &str, failure: &dyn Fn() -> Option<Failure>) -> Done {
        let deadline = Instant::now() + self.limit;
        loop {
            let mut state = SUCCESS;
            self.with(|library, comm| {
                // SAFETY: writes one integer.
                let asked = unsafe { (library.ncclCommGetAsyncError)(comm, &mut state) };
                library.done(what, asked)?;
                library.done(what, state)
            })?;
            if state == SUCCESS {
                return Ok(());
            }
            if let Some(failure) = failure() {
                return Err(failure);
            }
            if Instant::now() >= deadline {
                let seconds = self.limit.as_secs_f64();
                return Err(Failure::device(format!(
                    "NCCL ({what}): another rank has not come within {seconds} s"
                )));
            }
            std::thread::yield_now();
        }
    }

    /// An error that NCCL has found by itself.
    pub fn look(&self) -> Option<Failure> {
        let looked = self.with(|library, comm| {
            let mut state = SUCCESS;
            // SAFETY: writes one integer.
            let asked = unsafe { (library.ncclCommGetAsyncError)(comm, &mut state) };
            library.done("ncclCommGetAsyncError", asked)?;
            library.done("on the device", state)
        });
        looked.err()
    }

    /// Ends what waits on the device for other ranks.
    pub fn abort(&self, borrowed_too: bool) {
        #[cfg(nvte_cuda)]
        self.peers.stop();
        if self.borrowed && !borrowed_too {
            return;
        }
        let mut comm = lock(&self.comm);
        if !comm.comm.is_null() {
            // SAFETY: the communicator is live, and forgotten here.
            unsafe { (self.library.ncclCommAbort)(comm.comm) };
            comm.comm = std::ptr::null_mut();
        }
    }

    /// The same ranks with memory of their own.
    pub fn again(&self, limit: Duration) -> Done<Self> {
        let mut made = Self::new(self.library, std::ptr::null_mut(), self.borrowed, limit)?;
        made.comm = Arc::clone(&self.comm);
        Ok(made)
    }

    /// Part of a split; none for a negative color.
    pub fn split(&self, color: i32, key: i32, limit: Duration) -> Done<Option<Self>> {
        const NO_COLOR: c_int = -1;
        let mut config = Config::new();
        let mut part = std::ptr::null_mut();
        self.with(|library, comm| {
            let (color, part) = (color.max(NO_COLOR), &raw mut part);
            // SAFETY: NCCL writes the communicator; the config is read before the call returns.
            let split = unsafe { (library.ncclCommSplit)(comm, color, key, part, &mut config) };
            library.done("ncclCommSplit", split)
        })?;
        self.ready("ncclCommSplit", &|| None)?;
        if color < 0 {
            return Ok(None);
        }
        let part = Self::new(self.library, part, false, limit)?;
        part.ready("ncclCommSplit", &|| None)?;
        Ok(Some(part))
    }

    /// Rank and number of ranks.
    fn place(&self) -> Done<(usize, usize)> {
        self.with(|library, comm| {
            let (mut rank, mut size) = (0, 0);
            // SAFETY: each writes one integer.
            unsafe {
                library.done("ncclCommUserRank", (library.ncclCommUserRank)(comm, &mut rank))?;
                library.done("ncclCommCount", (library.ncclCommCount)(comm, &mut size))?;
            }
            Ok((rank as usize, size as usize))
        })
    }

    /// Memory of the device, which grows by new sizes.
    pub fn scratch(
        &self,
        domain: &'static Domain,
        bytes: usize,
        stream: cudaStream_t,
    ) -> Done<*mut u8> {
        let mut scratch = lock(&self.scratch);
        if scratch.bytes < bytes {
            let device = |error: Error| Failure::device(error.message);
            if domain.is_capturing(stream).map_err(device)? {
                return Err(Failure::device(format!(
                    "{bytes} bytes for sums in order cannot be allocated while the stream is captured: run the \
                     call once before"
                )));
            }
            domain.synchronize(stream).map_err(device)?;
            let memory = domain.malloc(bytes).map_err(device)? as usize;
            *scratch = Scratch { domain, memory, bytes };
        }
        Ok(scratch.memory as *mut u8)
    }

    /// Reduces elements of all ranks in slots of so many bytes, in the order of the ranks.
    pub fn reduce(
        &self,
        domain: &Domain,
        ranks: usize,
        call: &Call,
        (slots, pitch): (*mut u8, usize),
        (to, count): (*mut u8, usize),
        stream: cudaStream_t,
    ) -> Done {
        let max = call.reduction == Reduction::Max;
        let (slots, to) = (slots.cast::<c_void>(), to.cast::<c_void>());
        if count == 0 {
            return Ok(());
        }
        let arguments = (slots.cast_const(), pitch, ranks);
        // SAFETY: the slots have the elements of all ranks, `to` has those of one.
        let done = unsafe { domain.rank_sum(arguments, to, count, (call.dtype, max), stream) };
        done.map_err(|error| Failure::device(error.message))
    }

    /// Releases nothing when dropped.
    pub fn forget(&mut self) {
        #[cfg(nvte_cuda)]
        {
            self.peers.forget();
            std::mem::forget(std::mem::take(&mut *lock(&self.order)));
        }
        lock(&self.comm).comm = std::ptr::null_mut();
        lock(&self.scratch).memory = 0;
    }
}

/// One call of a rank.
pub struct Run<'a> {
    pub nccl: &'a Nccl,
    pub domain: &'static Domain,
    pub stream: cudaStream_t,
    pub place: (usize, usize),
}

/// A message by its place in the memory of a call.
type Part = (*mut u8, usize, usize);

impl Run<'_> {
    /// Queues a collective with checked arguments.
    ///
    /// # Safety
    /// The memory is as large as the operation of the call says.
    pub unsafe fn collective(
        &self,
        call: &Call,
        send: *const u8,
        recv: *mut u8,
        ordered: bool,
    ) -> Done {
        let (bytes, stream) = (call.bytes(), self.stream);
        let reduces =
            matches!(call.operation, Some(Operation::ReduceScatter | Operation::AllReduce));
        if call.count == 0 && call.operation != Some(Operation::Barrier) {
            return Ok(());
        }
        if reduces && ordered {
            // SAFETY: as the caller says.
            return unsafe { self.ordered(call, send, recv) };
        }
        let dtype = match call.dtype {
            NVTEDType::kNVTEFloat32 => 7,
            NVTEDType::kNVTEFloat16 => 6,
            _ => 9,
        };
        let operation = match call.reduction {
            Reduction::Sum => 0,
            Reduction::Max => 2,
        };
        let (from, to) = (send.cast::<c_void>(), recv.cast::<c_void>());
        let count = call.count;
        let begun = self.nccl.with(|library, comm| {
            // SAFETY: as the caller says.
            let (what, result) = unsafe {
                match call.operation {
                    Some(Operation::AllGather) => (
                        "ncclAllGather",
                        (library.ncclAllGather)(from, to, bytes, BYTE, comm, stream),
                    ),
                    Some(Operation::Broadcast) => {
                        let (data, root) = (to.cast_const(), call.root as c_int);
                        let done =
                            (library.ncclBroadcast)(data, to, bytes, BYTE, root, comm, stream);
                        ("ncclBroadcast", done)
                    }
                    Some(Operation::ReduceScatter) => (
                        "ncclReduceScatter",
                        (library.ncclReduceScatter)(
                            from, to, count, dtype, operation, comm, stream,
                        ),
                    ),
                    Some(Operation::AllReduce) => (
                        "ncclAllReduce",
                        (library.ncclAllReduce)(from, to, count, dtype, operation, comm, stream),
                    ),
                    _ => return Ok(false),
                }
            };
            library.done(what, result).map(|()| true)
        })?;
        if begun {
            return self.nccl.ready("a collective", &|| None);
        }
        if call.operation == Some(Operation::Barrier) {
            // SAFETY: one word of the scratch memory.
            return unsafe { self.barrier() };
        }
        let (_, size) = self.place;
        let parts = |base: *mut u8| {
            (0..size).map(move |rank| (base.wrapping_add(rank * bytes), bytes, rank))
        };
        // SAFETY: as the caller says.
        unsafe { self.group(parts(send.cast_mut()), parts(recv)) }
    }

    /// Bytes of all ranks from and to the memory of the host, which waits for them.
    pub fn gather(&self, own: &[u8], all: &mut [u8]) -> Done {
        let device = |error: Error| Failure::device(error.message);
        let call = &Call::new(Operation::AllGather, NVTEDType::kNVTEByte, own.len());
        let to = self.scratch(own.len() + all.len())?;
        let from = to.wrapping_add(all.len());
        let (domain, stream) = (self.domain, self.stream);
        // SAFETY: the scratch memory has the bytes of both, and the call counts those of one rank.
        unsafe {
            let kind = CopyKind::NVTEX_COPY_TO_DEVICE;
            domain
                .memcpy(from.cast(), own.as_ptr().cast(), own.len(), kind, stream)
                .map_err(device)?;
            self.collective(call, from, to, false)?;
            let kind = CopyKind::NVTEX_COPY_TO_HOST;
            domain
                .memcpy(all.as_mut_ptr().cast(), to.cast(), all.len(), kind, stream)
                .map_err(device)?;
        }
        domain.synchronize(stream).map_err(device)
    }

    /// # Safety
    /// The stream is the caller's.
    unsafe fn barrier(&self) -> Done {
        let memory = self.scratch(256)?;
        let (comm, stream) = (&self.nccl, self.stream);
        comm.with(|library, comm| {
            let word = memory.cast::<c_void>();
            // SAFETY: the memory has a word, whose value means nothing.
            let done = unsafe { (library.ncclAllReduce)(word, word, 1, 7, 0, comm, stream) };
            library.done("ncclAllReduce", done)
        })?;
        comm.ready("a barrier", &|| None)
    }

    /// Sends and receives all parts at the same time; those without bytes do not travel.
    ///
    /// # Safety
    /// Each has its bytes.
    unsafe fn group(
        &self,
        sent: impl Iterator<Item = Part>,
        received: impl Iterator<Item = Part>,
    ) -> Done {
        let stream = self.stream;
        self.nccl.with(|library, comm| {
            // SAFETY: as the caller says.
            unsafe {
                library.done("ncclGroupStart", (library.ncclGroupStart)())?;
                let mut done = Ok(());
                for (data, bytes, peer) in sent.filter(|part| part.1 > 0) {
                    let result =
                        (library.ncclSend)(data.cast(), bytes, BYTE, peer as c_int, comm, stream);
                    done = done.and(library.done("ncclSend", result));
                }
                for (data, bytes, peer) in received.filter(|part| part.1 > 0) {
                    let result =
                        (library.ncclRecv)(data.cast(), bytes, BYTE, peer as c_int, comm, stream);
                    done = done.and(library.done("ncclRecv", result));
                }
                // A group that has begun must end.
                done.and(library.done("ncclGroupEnd", (library.ncclGroupEnd)()))
            }
        })?;
        self.nccl.ready("messages", &|| None)
    }

    /// Sends and receives messages.
    ///
    /// # Safety
    /// Each has its bytes.
    pub unsafe fn exchange(&self, transfers: &[Transfer]) -> Done {
        let of = |receive| {
            let same = transfers.iter().filter(move |one| one.receive == receive);
            same.map(|one| (one.data, one.bytes, one.peer))
        };
        // SAFETY: as the caller says.
        unsafe { self.group(of(false), of(true)) }
    }

    /// Reduces in the order of the ranks: their parts are brought together and summed here.
    ///
    /// # Safety
    /// The memory is as large as the operation of the call says.
    unsafe fn ordered(&self, call: &Call, send: *const u8, recv: *mut u8) -> Done {
        // What was brought together before may still be read on another stream.
        #[cfg(nvte_cuda)]
        lock(&self.nccl.order).follow(self.stream)?;
        // SAFETY: as the caller says.
        let done = unsafe { self.sum_in_order(call, send, recv) };
        #[cfg(nvte_cuda)]
        lock(&self.nccl.order).queued(self.stream)?;
        done
    }

    /// [`Self::ordered`] behind the sum before.
    ///
    /// # Safety
    /// The memory is as large as the operation of the call says.
    unsafe fn sum_in_order(&self, call: &Call, send: *const u8, recv: *mut u8) -> Done {
        let ((rank, size), bytes, element) = (self.place, call.bytes(), call.dtype_bytes());
        let own = send.cast_mut();
        if call.operation == Some(Operation::ReduceScatter) {
            // Slots begin at multiples of 16 bytes.
            let pitch = bytes.next_multiple_of(16);
            let slots = self.scratch(size * pitch)?;
            let parts = |base: *mut u8, pitch: usize| {
                (0..size).map(move |rank| (base.wrapping_add(rank * pitch), bytes, rank))
            };
            // SAFETY: as the caller says.
            unsafe { self.group(parts(own, bytes), parts(slots, pitch))? };
            return self.reduce(call, slots, pitch, recv, call.count);
        }
        if bytes <= SHARED_SUM {
            let pitch = bytes.next_multiple_of(16);
            let slots = self.scratch(size * pitch)?;
            let sent = (0..size).map(|rank| (own, bytes, rank));
            let received = (0..size).map(|rank| (slots.wrapping_add(rank * pitch), bytes, rank));
            // SAFETY: as the caller says.
            unsafe { self.group(sent, received)? };
            return self.reduce(call, slots, pitch, recv, call.count);
        }
        // A share for each rank, the last of which may be short or empty.
        let share = call.count.div_ceil(size).next_multiple_of(16);
        let shares = |rank: usize| {
            let first = (rank * share).min(call.count);
            (first * element, share.min(call.count - first) * element)
        };
        let (first, length) = shares(rank);
        let slots = self.scratch(size * share * element)?;
        let sent = (0..size).map(|rank| (own.wrapping_add(shares(rank).0), shares(rank).1, rank));
        let slot = |rank| (slots.wrapping_add(rank * share * element), length, rank);
        // SAFETY: as the caller says; the shares are parts of both buffers.
        unsafe {
            self.group(sent, (0..size).map(slot))?;
            let sum = recv.wrapping_add(first);
            self.reduce(call, slots, share * element, sum, length / element)?;
            let others = || (0..size).filter(|&other| other != rank);
            let sent = others().map(|other| (sum, length, other));
            let at = |other| (recv.wrapping_add(shares(other).0), shares(other).1, other);
            self.group(sent, others().map(at))
        }
    }

    fn scratch(&self, bytes: usize) -> Done<*mut u8> {
        self.nccl.scratch(self.domain, bytes, self.stream)
    }

    fn reduce(&self, call: &Call, slots: *mut u8, pitch: usize, to: *mut u8, count: usize) -> Done {
        let (from, to) = ((slots, pitch), (to, count));
        self.nccl.reduce(self.domain, self.place.1, call, from, to, self.stream)
    }
}

impl Communicator {
    /// A rank under NCCL by the bytes of [`unique_id`].
    pub fn nccl(id: &[u8; 128], rank: i32, size: i32, options: Options) -> Result<Arc<Self>> {
        let place = check_place(rank, size, i32::MAX as usize)?;
        let nccl = Nccl::create(id, place, options.limit).map_err(refuse)?;
        let mut made = Self::new(options, place, None, Transport::Nccl(Box::new(nccl)))?;
        if let Transport::Nccl(nccl) = &made.transport
            && place.1 > 1
        {
            let offer = Offer::new(place.0 == 0);
            let mut cards = vec![0; CARD * place.1];
            let run = Run { nccl, domain: made.domain, stream: std::ptr::null_mut(), place };
            run.gather(&offer.card, &mut cards).map_err(refuse)?;
            made.line = offer.meet(&cards[..CARD], place).map(Arc::new);
        }
        Ok(made.watched())
    }

    /// A rank under NCCL among processes of this host that have the same key.
    pub fn nccl_shared(key: &str, rank: i32, size: i32, options: Options) -> Result<Arc<Self>> {
        let place = check_place(rank, size, MOST_RANKS)?;
        check_key(key)?;
        // A rank without NCCL says so before others wait for it.
        nccl().map_err(refuse)?;
        let segment = Segment::shared(key, place, 0, options.limit).map_err(refuse)?;
        let host = Self::new(options.clone(), place, Some(segment), Transport::Host)?;
        host.greet()?;
        let mut id = if place.0 == 0 { unique_id().map_err(refuse)? } else { [0; 128] };
        let call = Call::new(Operation::Broadcast, NVTEDType::kNVTEByte, id.len());
        let sent = {
            let mut state = lock(&host.state);
            host.numbered(&mut state, call, |_, turn, call| {
                let at = id.as_mut_ptr();
                // SAFETY: the bytes of the call.
                turn.map_or(Ok(()), |mut turn| unsafe { turn.run(&call, at, at) })
            })
        };
        sent.map_err(|(call, failure)| host.fail(&call, failure))?;
        let state = {
            let mut kept = lock(&host.state);
            std::mem::take(&mut *kept)
        };
        let create = Call::new(Operation::Create, NVTEDType::kNVTEByte, place.1);
        let nccl = Nccl::create(&id, place, options.limit)
            .map_err(|failure| host.fail(&create, failure))?;
        Ok(host.over(nccl, state)?.watched())
    }

    /// The same ranks, whose data NCCL moves.
    fn over(mut self, nccl: Nccl, state: State) -> Result<Self> {
        self.transport = Transport::Nccl(Box::new(nccl));
        self.state = Mutex::new(state);
        Ok(self)
    }

    /// A communicator of NCCL that the program has.
    pub fn of_nccl(comm: ncclComm_t, options: Options) -> Result<Arc<Self>> {
        let nccl = nccl().and_then(|library| Nccl::new(library, comm, true, options.limit));
        let nccl = nccl.map_err(refuse)?;
        let place = nccl.place().map_err(refuse)?;
        Ok(Self::new(options, place, None, Transport::Nccl(Box::new(nccl)))?.watched())
    }
}
