//! C functions of parallel.h.
#![allow(unsafe_code, non_camel_case_types, clippy::missing_safety_doc, clippy::too_many_arguments)]

use super::environment::{Choice, from_environment};
use super::grid::{GROUPS, Grid, Sizes};
use super::*;
use crate::error::{self, Handle, guard};
use crate::handle::{Kind as HandleKind, Slab};
use crate::sized::{self, Grows};
use crate::tensor::{from_c, from_c_enum};
use crate::types::ncclComm_t;
use num_derive::FromPrimitive;
use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int};
use std::mem::MaybeUninit;

pub static COMMUNICATORS: Slab<Arc<Communicator>, NVTEXCommunicator_st> =
    Slab::new(HandleKind::Communicator);

pub static GRIDS: Slab<Arc<Grid>, NVTEXGrid_st> = Slab::new(HandleKind::Grid);

/// What a handle of a communicator points to. Only the library knows what it is.
pub enum NVTEXCommunicator_st {}

/// Handle of one rank of a communicator.
pub type NVTEXCommunicator = *mut NVTEXCommunicator_st;

/// How the values of all ranks become one.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromPrimitive)]
pub enum NVTEXReduction {
    NVTEX_REDUCTION_SUM = 0,
    /// NaN if one of the values is.
    NVTEX_REDUCTION_MAX = 1,
}

from_c_enum!(NVTEXReduction, "an NVTEXReduction from 0 to 1");

/// How sums over ranks are made.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromPrimitive)]
pub enum NVTEXSumOrder {
    /// x0 + x1 + ... in Float32 in the order of the ranks, rounded once: the same bits on every rank, in every run, by
    /// every transport.
    NVTEX_SUM_ORDERED = 0,
    /// As NCCL or the program's functions sum.
    NVTEX_SUM_FAST = 1,
}

from_c_enum!(NVTEXSumOrder, "an NVTEXSumOrder from 0 to 1");

/// What moves the data of ranks that a launcher has started.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromPrimitive)]
pub enum NVTEXTransport {
    /// NCCL on CUDA, shared memory otherwise.
    NVTEX_TRANSPORT_AUTOMATIC = 0,
    /// Shared memory of the host. Ranks may have the same GPU, whose data are staged.
    NVTEX_TRANSPORT_SHARED = 1,
    NVTEX_TRANSPORT_NCCL = 2,
}

from_c_enum!(NVTEXTransport, "an NVTEXTransport from 0 to 2");

/// Whether calls of all ranks are compared before they run, where that costs a meeting of its own: on NCCL and with
/// the program's functions. Threads and processes that share memory always compare.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromPrimitive)]
pub enum NVTEXCallCheck {
    /// As `NVTE_COMM_CHECK=0|1` says; its default is 0.
    NVTEX_CALL_CHECK_DEFAULT = 0,
    NVTEX_CALL_CHECK_OFF = 1,
    NVTEX_CALL_CHECK_ON = 2,
}

from_c_enum!(NVTEXCallCheck, "an NVTEXCallCheck from 0 to 2");

/// What a program says about a communicator. Set all of it to 0, then `struct_size`, then what is wanted: 0 is a
/// default. All ranks say the same.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NVTEXCommunicatorConfig {
    /// Bytes of this struct.
    pub struct_size: usize,
    /// For messages; null: "world".
    pub name: *const c_char,
    /// Seconds that a rank waits for another one. 0: `NVTE_COMM_TIMEOUT`, whose default is 300.
    pub timeout: f64,
    /// Bytes of shared memory for data of each rank on their way; 0: 2 MiB.
    pub staging_bytes: usize,
    pub sum_order: MaybeUninit<NVTEXSumOrder>,
    pub check: MaybeUninit<NVTEXCallCheck>,
    /// For `nvtex_communicator_from_environment`.
    pub transport: MaybeUninit<NVTEXTransport>,
    /// Not 0: a failure aborts a communicator of NCCL that the program has lent, too.
    pub abort_borrowed: i32,
    /// Called once with the message of the first failure, on a thread of the library, whatever the program is doing.
    /// It calls nothing of this library. Null: none.
    ///
    /// With collectives of the program, and on rank 0, this is also what connects all ranks by TCP, so that they hear of each other's
    /// end.
    pub on_failure: Option<unsafe extern "C" fn(user: *mut c_void, message: *const c_char)>,
    /// The first argument of `on_failure`.
    pub user: *mut c_void,
}

// SAFETY: the layout is that of C; numbers, pointers and functions may be zero.
unsafe impl Grows for NVTEXCommunicatorConfig {
    const LEAST: usize = 64;
}

/// A message between two ranks, for functions of the program.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NVTEXMessage {
    pub data: *mut c_void,
    pub bytes: usize,
    pub peer: c_int,
    /// 1: received; 0: sent.
    pub receive: c_int,
}

/// Collectives of the program. Memory is that of the host; `bytes` are those of one rank. Functions return 0, or a
/// number that the error names. They are called by the thread that makes the call, one at a time for a communicator.
/// All may be null but `all_gather`, of which the others are then made; messages need `exchange`, splits `split`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NVTEXCollectives {
    /// Bytes of this struct.
    pub struct_size: usize,
    /// The first argument of all functions.
    pub user: *mut c_void,
    pub all_gather: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            send: *const c_void,
            recv: *mut c_void,
            bytes: usize,
        ) -> c_int,
    >,
    pub all_to_all: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            send: *const c_void,
            recv: *mut c_void,
            bytes: usize,
        ) -> c_int,
    >,
    pub broadcast: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            data: *mut c_void,
            bytes: usize,
            root: c_int,
        ) -> c_int,
    >,
    pub barrier: Option<unsafe extern "C" fn(user: *mut c_void) -> c_int>,
    /// Sends and receives all messages; those of a pair in one direction keep their order.
    pub exchange: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            messages: *const NVTEXMessage,
            num_messages: usize,
        ) -> c_int,
    >,
    /// Used with NVTEX_SUM_FAST only; `count` is that of `recv`, and `reduction` an NVTEXReduction.
    pub reduce_scatter: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            send: *const c_void,
            recv: *mut c_void,
            count: usize,
            dtype: NVTEDType,
            reduction: c_int,
        ) -> c_int,
    >,
    /// Used with NVTEX_SUM_FAST only.
    pub all_reduce: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            send: *const c_void,
            recv: *mut c_void,
            count: usize,
            dtype: NVTEDType,
            reduction: c_int,
        ) -> c_int,
    >,
    /// Gives `*child`, which takes the place of `user` for ranks of this color, ordered by key and then by rank.
    pub split: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            color: c_int,
            key: c_int,
            child: *mut *mut c_void,
        ) -> c_int,
    >,
    /// Called when the program aborts the communicator, or another rank has ended or has failed: calls that wait for it return. Any
    /// thread may call it.
    pub abort: Option<unsafe extern "C" fn(user: *mut c_void)>,
    /// Called with a child when its communicator is destroyed.
    pub release: Option<unsafe extern "C" fn(user: *mut c_void)>,
}

// SAFETY: the layout is that of C; pointers and functions may be zero.
unsafe impl Grows for NVTEXCollectives {
    const LEAST: usize = 96;
}

/// A message of `nvtex_exchange`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NVTEXTransfer {
    pub data: *mut c_void,
    /// Elements; both ranks say the same.
    pub count: usize,
    pub dtype: MaybeUninit<NVTEDType>,
    /// The other rank, which may be the own one.
    pub peer: c_int,
    /// 1: received into `data`; 0: sent from there.
    pub receive: c_int,
}

/// Reads what a program says about a communicator.
///
/// # Safety
/// The struct is null or has as many bytes as it says.
unsafe fn options(config: *const NVTEXCommunicatorConfig) -> Result<(Options, Choice)> {
    let mut options = Options::default();
    if config.is_null() {
        return Ok((options, Choice::Automatic));
    }
    // SAFETY: as the caller says.
    let config = unsafe { sized::read("config", config) }.map_err(Error::wrong_argument)?;
    if !config.name.is_null() {
        // SAFETY: the caller vouches for the string.
        options.name = unsafe { text("config.name", config.name) }?;
    }
    if config.timeout != 0.0 {
        const MOST: f64 = 365.0 * 86400.0;
        if !(config.timeout > 0.0 && config.timeout <= MOST) {
            let expected = format!("seconds, more than 0 and at most {MOST}, or 0 for the default");
            return Err(Error::argument("config.timeout", expected, config.timeout));
        }
        options.limit = Duration::from_secs_f64(config.timeout);
    }
    const MOST_STAGING: usize = 1 << 30;
    if config.staging_bytes > MOST_STAGING {
        let expected = format!("at most {MOST_STAGING}");
        return Err(Error::argument("config.staging_bytes", expected, config.staging_bytes));
    }
    if config.staging_bytes > 0 {
        options.staging = config.staging_bytes;
    }
    options.ordered =
        from_c("config.sum_order", config.sum_order)? == NVTEXSumOrder::NVTEX_SUM_ORDERED;
    match from_c("config.check", config.check)? {
        NVTEXCallCheck::NVTEX_CALL_CHECK_DEFAULT => {}
        NVTEXCallCheck::NVTEX_CALL_CHECK_OFF => options.check = false,
        NVTEXCallCheck::NVTEX_CALL_CHECK_ON => options.check = true,
    }
    options.abort_borrowed = config.abort_borrowed != 0;
    let user = config.user as usize;
    options.on_failure = config.on_failure.map(|function| OnFailure { function, user });
    let choice = match from_c("config.transport", config.transport)? {
        NVTEXTransport::NVTEX_TRANSPORT_AUTOMATIC => Choice::Automatic,
        NVTEXTransport::NVTEX_TRANSPORT_SHARED => Choice::Shared,
        NVTEXTransport::NVTEX_TRANSPORT_NCCL => Choice::Nccl,
    };
    Ok((options, choice))
}

/// A short text of C.
///
/// # Safety
/// It is a C string.
unsafe fn text(name: &str, text: *const c_char) -> Result<String> {
    crate::check::address(name, text)?;
    // SAFETY: as the caller says.
    let text = unsafe { CStr::from_ptr(text) };
    match text.to_str() {
        Ok(text) if text.len() < 256 => Ok(text.to_owned()),
        _ => Err(Error::argument(name, "UTF-8 of less than 256 bytes", format!("{text:?}"))),
    }
}

/// The name of what is exchanged; empty for null.
///
/// # Safety
/// It is null or a C string.
unsafe fn label(name: *const c_char) -> Result<String> {
    // SAFETY: as the caller says.
    if name.is_null() { Ok(String::new()) } else { unsafe { text("name", name) } }
}

/// Creates `size` ranks for threads of this process: thread r uses `communicators[r]`, and destroys it.
///
/// Memory of calls is that of the creating thread's domain (`nvtex_backend_name`). On a device it is staged through
/// the host, so that several ranks may have one GPU; such a call waits for its stream.
///
/// Errors: a size that is not 1 to 128.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_communicator_create_local(
    size: i32,
    config: *const NVTEXCommunicatorConfig,
    communicators: *mut NVTEXCommunicator,
) {
    guard("nvtex_communicator_create_local", || {
        crate::check::address("communicators", communicators)?;
        // SAFETY: the caller vouches for the struct.
        let (options, _) = unsafe { options(config) }?;
        let ranks = Communicator::local(size, &options)?;
        for (place, rank) in ranks.into_iter().enumerate() {
            let handle = COMMUNICATORS.insert(rank)?;
            // SAFETY: the caller vouches for `size` entries.
            unsafe { communicators.add(place).write(handle) };
        }
        Ok(())
    });
}

/// Creates rank `rank` of `size` processes (or threads) of this host and this user, which meet by `key`: letters,
/// digits, points, hyphens and underscores that no other run uses at the time. Collective: waits for all of them.
///
/// The name of the shared memory exists only until all have come; what a run leaves that has been killed before is
/// taken over by the next one with the key. Memory of calls is as in `nvtex_communicator_create_local`.
///
/// Errors: ranks that do not come in time or have another `size` or config; a rank or a key that is taken; too little
/// shared memory (`/dev/shm`). Returns null.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_communicator_create_shared(
    key: *const c_char,
    rank: i32,
    size: i32,
    config: *const NVTEXCommunicatorConfig,
) -> NVTEXCommunicator {
    guard("nvtex_communicator_create_shared", || {
        // SAFETY: the caller vouches for struct and string.
        let ((options, _), key) = unsafe { (options(config)?, text("key", key)?) };
        Ok(Handle(COMMUNICATORS.insert(Communicator::shared(&key, rank, size, options)?)?))
    })
    .0
}

/// Creates rank `rank` of `size` of the program's own ranks, such as those of MPI. Collective: the ranks compare their
/// configs. The functions and `user` stay valid until the communicator and what is split from it are destroyed.
///
/// Time limits and ended ranks are the matter of the program's functions: the library only reports what they return.
///
/// Errors: no `all_gather`. Returns null.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_communicator_create_callbacks(
    collectives: *const NVTEXCollectives,
    rank: i32,
    size: i32,
    config: *const NVTEXCommunicatorConfig,
) -> NVTEXCommunicator {
    guard("nvtex_communicator_create_callbacks", || {
        // SAFETY: the caller vouches for both structs.
        let (table, options) =
            unsafe { (sized::read("collectives", collectives), options(config)?.0) };
        let callbacks = Callbacks::new(table.map_err(Error::wrong_argument)?);
        let callbacks = callbacks.ok_or_else(|| {
            Error::argument(
                "collectives.all_gather",
                "a function, of which others are made",
                "null",
            )
        })?;
        let made = Communicator::of_callbacks(callbacks, rank, size, options)?;
        Ok(Handle(COMMUNICATORS.insert(made)?))
    })
    .0
}

/// Writes the 128 bytes by which ranks on several hosts meet under NCCL: one rank makes them, and the program brings
/// them to the others.
///
/// Errors: NCCL (`libnccl.so.2`, 2.19 or later) that cannot be loaded; `NVTE_NCCL_LIBRARY` names its file.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_communicator_nccl_unique_id(id: *mut u8) {
    guard("nvtex_communicator_nccl_unique_id", || {
        crate::check::address("id", id)?;
        #[cfg(feature = "cuda")]
        let made = nccl::unique_id().map_err(refuse)?;
        #[cfg(not(feature = "cuda"))]
        let made: [u8; 128] = Err(no_nccl())?;
        // SAFETY: the caller vouches for 128 bytes.
        unsafe { id.copy_from_nonoverlapping(made.as_ptr(), made.len()) };
        Ok(())
    });
}

/// Creates rank `rank` of `size` under NCCL, each with a GPU of its own: the current device of the thread.
/// Collective. `id` are the 128 bytes of `nvtex_communicator_nccl_unique_id`, the same on all ranks.
///
/// Ranks hear of each other's end over TCP connections to rank 0, on a port that the system chooses: all survivors of a rank that is
/// killed have an error that names it, within a second, and within 4 seconds if its host is gone. Where rank 0 cannot be reached it
/// is noticed by the time limit or by NCCL.
///
/// Calls are queued on their stream. Returns null after an error.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_communicator_create_nccl(
    id: *const u8,
    rank: i32,
    size: i32,
    config: *const NVTEXCommunicatorConfig,
) -> NVTEXCommunicator {
    guard("nvtex_communicator_create_nccl", || {
        crate::check::address("id", id)?;
        let mut bytes = [0; 128];
        // SAFETY: the caller vouches for 128 bytes and for the struct.
        let (options, _) = unsafe {
            bytes.copy_from_slice(std::slice::from_raw_parts(id, 128));
            options(config)?
        };
        Ok(Handle(COMMUNICATORS.insert(Communicator::nccl(&bytes, rank, size, options)?)?))
    })
    .0
}

/// The same for processes of one host, which meet by `key` as in `nvtex_communicator_create_shared`: no other library
/// is needed to start them. A watchdog sees ranks that are killed, and ends the work of NCCL that waits for them.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_communicator_create_nccl_shared(
    key: *const c_char,
    rank: i32,
    size: i32,
    config: *const NVTEXCommunicatorConfig,
) -> NVTEXCommunicator {
    guard("nvtex_communicator_create_nccl_shared", || {
        // SAFETY: the caller vouches for struct and string.
        let ((options, _), key) = unsafe { (options(config)?, text("key", key)?) };
        Ok(Handle(COMMUNICATORS.insert(Communicator::nccl_shared(&key, rank, size, options)?)?))
    })
    .0
}

/// Uses a communicator of NCCL that the program has, such as that of a framework. It is not destroyed, and must live as
/// long as the one returned. The program orders its own collectives on it against those of this library, alike on all
/// ranks.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_communicator_create_from_nccl(
    comm: ncclComm_t,
    config: *const NVTEXCommunicatorConfig,
) -> NVTEXCommunicator {
    guard("nvtex_communicator_create_from_nccl", || {
        if comm.is_null() {
            return Err(Error::argument("comm", "a communicator of NCCL", "null"));
        }
        // SAFETY: the caller vouches for the struct.
        let (options, _) = unsafe { options(config) }?;
        Ok(Handle(COMMUNICATORS.insert(Communicator::of_nccl(comm, options)?)?))
    })
    .0
}

/// Creates the communicator of all ranks that a launcher has started on this host: `nvtex-run`, `torchrun` (RANK,
/// WORLD_SIZE, MASTER_ADDR, MASTER_PORT) or `mpirun` of Open MPI (OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE,
/// PMIX_NAMESPACE). Without their variables the process is the only rank. `NVTEX_RENDEZVOUS` takes the place of the
/// names by which they meet.
///
/// On CUDA each rank has chosen its device before.
///
/// Errors: ranks on several hosts; those of `nvtex_communicator_create_shared` and
/// `nvtex_communicator_create_nccl_shared`. Returns null.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_communicator_from_environment(
    config: *const NVTEXCommunicatorConfig,
) -> NVTEXCommunicator {
    guard("nvtex_communicator_from_environment", || {
        // SAFETY: the caller vouches for the struct.
        let (options, choice) = unsafe { options(config) }?;
        Ok(Handle(COMMUNICATORS.insert(from_environment(options, choice)?)?))
    })
    .0
}

/// Makes communicators of the ranks that have the same `color`, ordered by `key`, and by rank where keys are equal.
/// Collective. A rank with a negative color belongs to none, and gets null.
///
/// `name` is for messages; null: the name of this one with the color. A failure of this communicator is one of those
/// split from it, not the other way round. They may be destroyed in any order.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_communicator_split(
    communicator: NVTEXCommunicator,
    color: i32,
    key: i32,
    name: *const c_char,
) -> NVTEXCommunicator {
    guard("nvtex_communicator_split", || {
        let parent = COMMUNICATORS.get("communicator", communicator)?;
        // SAFETY: the caller vouches for the string.
        let name = unsafe { label(name) }?;
        match parent.split(color, key, &name)? {
            Some(part) => Ok(Handle(COMMUNICATORS.insert(part)?)),
            None => Ok(Handle::default()),
        }
    })
    .0
}

/// Returns the rank of a communicator's handle; 0 after an error.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_communicator_rank(communicator: NVTEXCommunicator) -> i32 {
    guard("nvtex_communicator_rank", || {
        COMMUNICATORS.read("communicator", communicator, |one| one.rank as i32)
    })
}

/// Returns the number of ranks; 0 after an error.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_communicator_size(communicator: NVTEXCommunicator) -> i32 {
    guard("nvtex_communicator_size", || {
        COMMUNICATORS.read("communicator", communicator, |one| one.size as i32)
    })
}

/// Returns the name of a communicator, valid until the handle is destroyed; null after an error.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_communicator_name(communicator: NVTEXCommunicator) -> *const c_char {
    guard("nvtex_communicator_name", || {
        COMMUNICATORS
            .read("communicator", communicator, |one| Handle(one.c_name.as_ptr().cast_mut()))
    })
    .0
}

/// Returns null while a communicator is sound, otherwise the message of its first failure: a rank has ended, has not
/// come in time, has asked for something else than the others, or has aborted. Never waits, and is no error itself.
///
/// The text is valid until the thread's next call of this function.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_communicator_status(
    communicator: NVTEXCommunicator,
) -> *const c_char {
    thread_local! {
        static KEPT: RefCell<CString> = RefCell::default();
    }
    guard("nvtex_communicator_status", || {
        let communicator = COMMUNICATORS.get("communicator", communicator)?;
        communicator.check_process()?;
        let failure = communicator.look();
        Ok(failure.map_or(Handle::default(), |failure| {
            Handle(error::keep(&KEPT, &communicator.text(&failure)).cast_mut())
        }))
    })
    .0
}

/// Ends a communicator for all ranks: calls that wait, and all later ones, fail with `reason`. Any thread may call it.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_communicator_abort(
    communicator: NVTEXCommunicator,
    reason: *const c_char,
) {
    guard("nvtex_communicator_abort", || {
        let communicator = COMMUNICATORS.get("communicator", communicator)?;
        communicator.check_process()?;
        // SAFETY: the caller vouches for the string.
        communicator.abort(&unsafe { text("reason", reason) }?);
        Ok(())
    });
}

/// Destroys a handle. Null is ignored. Ranks that still call get an error which says so. Under NCCL the caller has
/// waited for its streams before.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_communicator_destroy(communicator: NVTEXCommunicator) {
    guard("nvtex_communicator_destroy", || {
        if communicator.is_null() {
            return Ok(());
        }
        let one = COMMUNICATORS.get("communicator", communicator)?;
        COMMUNICATORS.remove("communicator", communicator)?;
        one.leave();
        Ok(())
    });
}

/// What a handle of a grid points to. Only the library knows what it is.
pub enum NVTEXGrid_st {}

/// Handle of the place of one rank in a grid.
pub type NVTEXGrid = *mut NVTEXGrid_st;

/// Groups of a grid. The ranks of each are ordered as those of `world`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromPrimitive)]
pub enum NVTEXGridGroup {
    /// Ranks that share each weight.
    NVTEX_GRID_TP = 0,
    /// Ranks that share each sequence.
    NVTEX_GRID_CP = 1,
    /// Ranks that share the batch.
    NVTEX_GRID_DP = 2,
    /// Ranks that share the batch or its sequences: those over which gradients of weights are summed.
    NVTEX_GRID_DP_CP = 3,
    /// All ranks that have the same layers: those over which maxima of delayed scaling are taken.
    NVTEX_GRID_ALL_BUT_PP = 4,
    /// Ranks that share the experts: neighbours in NVTEX_GRID_DP_CP.
    NVTEX_GRID_EP = 5,
    /// Ranks that have the same experts: those over which gradients of experts are summed.
    NVTEX_GRID_EXPERT_DP = 6,
    /// Ranks that share the layers.
    NVTEX_GRID_PP = 7,
}

from_c_enum!(NVTEXGridGroup, "an NVTEXGridGroup from 0 to 7");

/// Numbers of groups of a grid.
pub const NVTEX_GRID_GROUPS: usize = 8;

const _: () = assert!(NVTEX_GRID_GROUPS == GROUPS.len());

/// How ranks are divided. Set all of it to 0, then `struct_size`, then what is wanted. All ranks say the same.
///
/// The rank in `world` is `((p * dp + d) * cp + c) * tp + t`, where t, c, d and p are the places in the groups of the same
/// names: neighbours share weights.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NVTEXGridConfig {
    /// Bytes of this struct.
    pub struct_size: usize,
    /// Ranks that share each weight; 0: 1.
    pub tp: usize,
    /// Ranks that share each sequence; 0: 1.
    pub cp: usize,
    /// Ranks that share the batch; 0: as many as the others leave over.
    pub dp: usize,
    /// Ranks that share the layers; 0: 1.
    pub pp: usize,
    /// Ranks that share the experts: a divisor of dp x cp; 0: 1.
    pub ep: usize,
}

// SAFETY: the layout is that of C; numbers may be zero.
unsafe impl Grows for NVTEXGridConfig {
    const LEAST: usize = 48;
}

/// Divides the ranks of a communicator into groups. Collective: each group is a split of `world`, which may be destroyed
/// afterwards.
///
/// Errors: sizes whose product is not the size of `world`, an `ep` that does not divide dp x cp, sizes that are not those
/// of other ranks. Returns null.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_grid_create(
    world: NVTEXCommunicator,
    config: *const NVTEXGridConfig,
) -> NVTEXGrid {
    guard("nvtex_grid_create", || {
        let world = COMMUNICATORS.get("world", world)?;
        // SAFETY: the caller vouches for the struct.
        let config = unsafe { sized::read("config", config) }.map_err(Error::wrong_argument)?;
        let NVTEXGridConfig { tp, cp, dp, pp, ep, .. } = config;
        Ok(Handle(GRIDS.insert(Arc::new(Grid::new(&world, Sizes { tp, cp, dp, pp, ep })?))?))
    })
    .0
}

/// Makes a grid of communicators that a program or its framework has.
///
/// `communicators[g]` is that of the NVTEXGridGroup g; there are NVTEX_GRID_GROUPS. Null: the rank is alone in the group, or
/// the group is that of another entry, because the ranks that would be added are none (NVTEX_GRID_DP_CP is NVTEX_GRID_DP
/// where sequences are not shared). They must not be destroyed before the grid and the contexts that have it.
///
/// Errors: groups whose sizes do not go together. Returns null.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_grid_create_from_communicators(
    communicators: *const NVTEXCommunicator,
) -> NVTEXGrid {
    guard("nvtex_grid_create_from_communicators", || {
        crate::check::address("communicators", communicators)?;
        let mut given = [const { None }; NVTEX_GRID_GROUPS];
        for (place, one) in given.iter_mut().enumerate() {
            // SAFETY: the caller vouches for the array.
            let handle = unsafe { communicators.add(place).read() };
            if !handle.is_null() {
                let name = format_args!("communicators[{place}]");
                *one = Some(COMMUNICATORS.get(name, handle)?);
            }
        }
        Ok(Handle(GRIDS.insert(Arc::new(Grid::of(given)?))?))
    })
    .0
}

/// Returns the communicator of a group, also of a group of one rank. The handle is the grid's: do not destroy it. It is
/// valid until the grid is destroyed. Null after an error.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_grid_communicator(
    grid: NVTEXGrid,
    group: MaybeUninit<NVTEXGridGroup>,
) -> NVTEXCommunicator {
    guard("nvtex_grid_communicator", || {
        let group = from_c("group", group)?;
        Ok(Handle(GRIDS.get("grid", grid)?.handle(group)?))
    })
    .0
}

/// Destroys a grid and the handles of its groups. Contexts that have it keep what they need. Null is ignored.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_grid_destroy(grid: NVTEXGrid) {
    guard("nvtex_grid_destroy", || {
        if grid.is_null() {
            return Ok(());
        }
        let one = GRIDS.get("grid", grid)?;
        GRIDS.remove("grid", grid)?;
        one.close();
        Ok(())
    });
}

/// Runs a collective with the name that the caller gives it.
///
/// # Safety
/// The memory is as large as the operation says, the name null or a C string.
unsafe fn run(
    communicator: NVTEXCommunicator,
    call: Call,
    send: (&str, *const c_void),
    recv: (&str, *mut c_void),
    name: *const c_char,
    stream: cudaStream_t,
) -> Result<()> {
    let one = COMMUNICATORS.get("communicator", communicator)?;
    // SAFETY: as the caller says.
    unsafe {
        let call = if name.is_null() { call } else { call.named(&text("name", name)?) };
        one.collective(call, (send.0, send.1.cast()), (recv.0, recv.1.cast()), stream)
    }
}

fn reduction(value: MaybeUninit<NVTEXReduction>) -> Result<Reduction> {
    Ok(match from_c("reduction", value)? {
        NVTEXReduction::NVTEX_REDUCTION_SUM => Reduction::Sum,
        NVTEXReduction::NVTEX_REDUCTION_MAX => Reduction::Max,
    })
}

/// Gathers `count` elements of each rank into `recv`, which has those of all ranks in their order.
///
/// Dtypes: any of whole bytes. In place if `send` is the own part of `recv`; otherwise both lie apart.
///
/// This is true of all collectives: every rank of the communicator makes the same calls in the same order, with equal
/// counts and dtypes. `name` says what is exchanged, such as the name of a layer: it is in messages, and the ranks
/// compare it; null: nothing. Wrong arguments of one rank are an error there, before others hear of the call. Other
/// errors end the communicator, on all ranks; outputs then mean nothing. On threads and shared memory a call waits
/// until it is done, and cannot be captured in a graph.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_all_gather(
    communicator: NVTEXCommunicator,
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: MaybeUninit<NVTEDType>,
    name: *const c_char,
    stream: cudaStream_t,
) {
    guard("nvtex_all_gather", || {
        let call = Call::new(Operation::AllGather, from_c("dtype", dtype)?, count);
        // SAFETY: the caller vouches for the memory.
        unsafe { run(communicator, call, ("send", send), ("recv", recv), name, stream) }
    });
}

/// Reduces part r of every rank's `send` into `recv` of rank r: `count` elements of each of as many parts as there are
/// ranks.
///
/// Dtypes: kNVTEFloat32, kNVTEFloat16, kNVTEBFloat16. In place if `recv` is the own part of `send`. Otherwise as
/// `nvtex_all_gather`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_reduce_scatter(
    communicator: NVTEXCommunicator,
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: MaybeUninit<NVTEDType>,
    reduction: MaybeUninit<NVTEXReduction>,
    name: *const c_char,
    stream: cudaStream_t,
) {
    guard("nvtex_reduce_scatter", || {
        let call = Call::new(Operation::ReduceScatter, from_c("dtype", dtype)?, count);
        let call = Call { reduction: self::reduction(reduction)?, ..call };
        // SAFETY: the caller vouches for the memory.
        unsafe { run(communicator, call, ("send", send), ("recv", recv), name, stream) }
    });
}

/// Reduces `count` elements of all ranks; each gets the result. In place if `send` is `recv`. Otherwise as
/// `nvtex_reduce_scatter`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_all_reduce(
    communicator: NVTEXCommunicator,
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: MaybeUninit<NVTEDType>,
    reduction: MaybeUninit<NVTEXReduction>,
    name: *const c_char,
    stream: cudaStream_t,
) {
    guard("nvtex_all_reduce", || {
        let call = Call::new(Operation::AllReduce, from_c("dtype", dtype)?, count);
        let call = Call { reduction: self::reduction(reduction)?, ..call };
        // SAFETY: the caller vouches for the memory.
        unsafe { run(communicator, call, ("send", send), ("recv", recv), name, stream) }
    });
}

/// Sends part r of `send` to rank r, which has it as the part of this rank in its `recv`: `count` elements a part. Not
/// in place. Otherwise as `nvtex_all_gather`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_all_to_all(
    communicator: NVTEXCommunicator,
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: MaybeUninit<NVTEDType>,
    name: *const c_char,
    stream: cudaStream_t,
) {
    guard("nvtex_all_to_all", || {
        let call = Call::new(Operation::AllToAll, from_c("dtype", dtype)?, count);
        // SAFETY: the caller vouches for the memory.
        unsafe { run(communicator, call, ("send", send), ("recv", recv), name, stream) }
    });
}

/// Sends `count` elements of rank `root` to all others. Otherwise as `nvtex_all_gather`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_broadcast(
    communicator: NVTEXCommunicator,
    data: *mut c_void,
    count: usize,
    dtype: MaybeUninit<NVTEDType>,
    root: i32,
    name: *const c_char,
    stream: cudaStream_t,
) {
    guard("nvtex_broadcast", || {
        let call = Call::new(Operation::Broadcast, from_c("dtype", dtype)?, count);
        let root = usize::try_from(root)
            .map_err(|_| Error::argument("root", "a rank of the communicator", root))?;
        let call = Call { root, ..call };
        // SAFETY: the caller vouches for the memory.
        unsafe { run(communicator, call, ("data", data), ("data", data), name, stream) }
    });
}

/// Returns when all ranks have made this call. Under NCCL without `check` that is true of the streams, not of the
/// hosts.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_barrier(
    communicator: NVTEXCommunicator,
    name: *const c_char,
    stream: cudaStream_t,
) {
    guard("nvtex_barrier", || {
        let call = Call::new(Operation::Barrier, NVTEDType::kNVTEByte, 0);
        let none = std::ptr::null_mut();
        // SAFETY: the caller vouches for the name.
        unsafe { run(communicator, call, ("send", none), ("recv", none), name, stream) }
    });
}

/// Sends and receives messages between pairs of ranks, all of them at the same time: only the ranks of a message make
/// this call. Messages from one rank to another one arrive in the order of their calls and lists; the receiver says
/// the same count, dtype and name as the sender.
///
/// Errors: a message that differs from what is received, which ends the communicator; ranks, dtypes and pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_exchange(
    communicator: NVTEXCommunicator,
    transfers: *const NVTEXTransfer,
    num_transfers: usize,
    name: *const c_char,
    stream: cudaStream_t,
) {
    guard("nvtex_exchange", || {
        let one = COMMUNICATORS.get("communicator", communicator)?;
        crate::check::array("transfers", transfers, ("num_transfers", num_transfers))?;
        // SAFETY: the caller vouches for the string.
        let name = unsafe { label(name) }?;
        let mut list = Vec::new();
        for place in 0..num_transfers {
            // SAFETY: the caller vouches for the array.
            let given = unsafe { transfers.add(place).read() };
            let at = |field: &str| format!("transfers[{place}].{field}");
            let dtype = from_c(at("dtype"), given.dtype)?;
            check_whole_bytes(&at("dtype"), dtype)?;
            let peer = usize::try_from(given.peer).ok().filter(|&peer| peer < one.size);
            let peer = peer.ok_or_else(|| {
                Error::argument(at("peer"), format!("0 to {}", one.size - 1), given.peer)
            })?;
            if ![0, 1].contains(&given.receive) {
                return Err(Error::argument(at("receive"), "0 or 1", given.receive));
            }
            if given.count > isize::MAX as usize / 8 {
                let expected = format!("at most {}", isize::MAX / 8);
                return Err(Error::argument(at("count"), expected, given.count));
            }
            let call = Call::new(Operation::Exchange, dtype, given.count).named(&name);
            if given.count > 0 && given.data.is_null() {
                let expected = format!("a pointer to {} bytes", call.bytes());
                return Err(Error::argument(at("data"), expected, "null"));
            }
            let (data, receive) = (given.data.cast(), given.receive == 1);
            list.push(Transfer { data, bytes: call.bytes(), peer, receive, call });
        }
        let call = Call::new(Operation::Exchange, NVTEDType::kNVTEByte, 0).named(&name);
        // SAFETY: the caller vouches for the memory.
        unsafe { one.exchange(call, &list, stream) }
    });
}

/// Returns a pointer that functions of this library take where they ask for an `ncclComm_t`, so that they work with ranks
/// of any kind: threads, processes, or those of the program's functions. NCCL itself does not know it. Null after an
/// error.
///
/// It is valid as long as the communicator.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_communicator_as_nccl(communicator: NVTEXCommunicator) -> ncclComm_t {
    guard("nvtex_communicator_as_nccl", || {
        COMMUNICATORS.read("communicator", communicator, |_| Handle(communicator.cast()))
    })
    .0
}

/// The communicator behind an argument that is one of NCCL or what [`nvtex_communicator_as_nccl`] gives.
pub fn of_nccl(name: &str, comm: ncclComm_t) -> Result<Arc<Communicator>> {
    // Addresses leave the highest byte free, in which handles say what they are.
    match comm as usize >> 56 {
        0 if comm.is_null() => {
            let expected = "a communicator of NCCL, or what nvtex_communicator_as_nccl gives";
            Err(Error::argument(name, expected, "null"))
        }
        0 => Communicator::of_nccl(comm, Options::default()),
        _ => COMMUNICATORS.get(name, comm.cast()),
    }
}
