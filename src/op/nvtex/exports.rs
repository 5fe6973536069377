//! C functions of nvtex.h: errors, version, backend, device memory, arrays, streams, graphs.
#![allow(unsafe_code, non_camel_case_types, clippy::missing_safety_doc)]

use super::*;
use crate::backend::{graph, policy, pool};
use crate::check;
use crate::env::{self, MOST_THREADS};
use crate::error::{self, Handle, Mode, guard};
use crate::stderr::{self, Level, Sink};
use crate::tensor::{FromC, from_c, from_c_enum};
use num_derive::FromPrimitive;
use std::ffi::c_char;
use std::mem::MaybeUninit;

/// What a handle of a graph points to. Only the library knows what it is.
pub enum NVTEXGraph_st {}

/// Handle of a graph.
pub type NVTEXGraph = *mut NVTEXGraph_st;

/// Result of a call.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NVTEXStatus {
    /// No call of this thread has failed since the status was cleared.
    NVTEX_OK = 0,
    /// An argument is wrong; the message names it.
    NVTEX_INVALID_ARGUMENT = 1,
    /// Valid, but not available in this build or on this device.
    NVTEX_UNSUPPORTED = 2,
    /// The device, its driver or one of its libraries failed.
    NVTEX_DEVICE_ERROR = 3,
    /// A defect of this library.
    NVTEX_INTERNAL_ERROR = 4,
}

/// What a failing call does after it has stored status and message.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromPrimitive)]
pub enum NVTEXErrorMode {
    /// Print the message (not with `NVTE_VERBOSE=none`) and return 0 or null.
    NVTEX_ERROR_RETURN = 0,
    /// Print the message and abort the process.
    NVTEX_ERROR_ABORT = 1,
    /// Throw `std::runtime_error`.
    NVTEX_ERROR_THROW = 2,
}

from_c_enum!(NVTEXErrorMode, "an NVTEXErrorMode from 0 to 2");

/// Which lines the library writes; each level adds to the one before.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromPrimitive)]
pub enum NVTEXLogLevel {
    NVTEX_LOG_NONE = 0,
    /// Messages of failing calls, and warnings.
    NVTEX_LOG_ERROR = 1,
    /// Arguments that are legal but probably not meant.
    NVTEX_LOG_CHECK = 2,
    /// The backends and implementations chosen, and why others declined.
    NVTEX_LOG_DISPATCH = 3,
    /// A line for each operator run.
    NVTEX_LOG_EXEC = 4,
}

from_c_enum!(NVTEXLogLevel, "an NVTEXLogLevel from 0 to 4");

/// Returns the status of the first call of this thread that has failed since `nvtex_clear_error`, or
/// NVTEX_OK.
///
/// It is the first one, so that calls that fail as a consequence do not hide the cause. (The name says
/// "last" for the sake of programs that were built before.) Calls that succeed leave it.
///
/// No function of this library may be called from a signal handler: it may allocate memory or want a
/// lock that the interrupted thread holds. Messages alone take no lock.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_last_status() -> NVTEXStatus {
    match error::status() {
        0 => NVTEXStatus::NVTEX_OK,
        1 => NVTEXStatus::NVTEX_INVALID_ARGUMENT,
        2 => NVTEXStatus::NVTEX_UNSUPPORTED,
        3 => NVTEXStatus::NVTEX_DEVICE_ERROR,
        _ => NVTEXStatus::NVTEX_INTERNAL_ERROR,
    }
}

/// Returns the message of the call that `nvtex_last_status` is about: function, argument, what was
/// expected, what was got. It is empty if no call has failed.
///
/// It is valid until `nvtex_clear_error`. In destructors of a thread that is ending, a fixed text may
/// stand for it.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_last_error() -> *const c_char {
    error::message()
}

/// Forgets the status and the message of this thread.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_clear_error() {
    error::clear();
}

/// Returns the number of calls of this thread that have ever failed; `nvtex_clear_error` does not
/// change it. With `nvtex_take_error` it tells whether one's own calls failed, whatever failed before.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_error_count() -> u64 {
    error::count()
}

/// Returns the message of this thread's newest failing call if more than `count` have failed, otherwise
/// null.
///
/// If the call that `nvtex_last_status` is about came after the first `count` failures, its status is
/// cleared. So `n = nvtex_error_count()`, calls, and `nvtex_take_error(n)` report failures of these
/// calls, and leave an earlier error in its place. The message is valid until the thread's next failing
/// call.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_take_error(count: u64) -> *const c_char {
    error::take(count)
}

/// Sets what failing calls do, for the whole process, and returns the previous mode. Until the first
/// call `NVTE_ON_ERROR=return|abort|throw` decides; its default is `return`.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_set_error_mode(mode: MaybeUninit<NVTEXErrorMode>) -> NVTEXErrorMode {
    let previous = guard("nvtex_set_error_mode", || {
        let mode = match from_c("mode", mode)? {
            NVTEXErrorMode::NVTEX_ERROR_RETURN => Mode::Return,
            NVTEXErrorMode::NVTEX_ERROR_ABORT => Mode::Abort,
            NVTEXErrorMode::NVTEX_ERROR_THROW => Mode::Throw,
        };
        Ok(error::set_mode(mode) as i32)
    });
    NVTEXErrorMode::from_number(previous).unwrap_or(NVTEXErrorMode::NVTEX_ERROR_RETURN)
}

/// Sends the lines that the library writes to `callback` instead of stderr, for the whole process; null sends them
/// to stderr again.
///
/// The callback gets lines up to `level`, which takes the place of `NVTE_VERBOSE` meanwhile: the level of the line,
/// an NVTEXLogLevel; the line without its end, valid until the callback returns; and `user`. It is called from any
/// thread, several at once, in the middle of operators, and does not throw. It may call this library; lines that
/// this causes go to stderr. After a change another thread may still call the former callback once.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_set_log(
    callback: Option<unsafe extern "C" fn(level: i32, text: *const c_char, user: *mut c_void)>,
    level: MaybeUninit<NVTEXLogLevel>,
    user: *mut c_void,
) {
    guard("nvtex_set_log", || {
        let level = match from_c("level", level)? {
            NVTEXLogLevel::NVTEX_LOG_NONE => Level::None,
            NVTEXLogLevel::NVTEX_LOG_ERROR => Level::Error,
            NVTEXLogLevel::NVTEX_LOG_CHECK => Level::Check,
            NVTEXLogLevel::NVTEX_LOG_DISPATCH => Level::Dispatch,
            NVTEXLogLevel::NVTEX_LOG_EXEC => Level::Exec,
        };
        stderr::set_sink(callback.map(|callback| Sink { callback, user, level }));
        policy::refresh_extras();
        Ok(())
    });
}

/// Says that the process uses this library in place of the one whose ABI it speaks, and returns what
/// was set before. `libtransformer_engine.so` sets it when it is loaded.
///
/// With it:
/// - Failing calls throw unless `NVTE_ON_ERROR` or `nvtex_set_error_mode` says otherwise.
/// - The CPU backend runs only with `NVTE_BACKEND=cpu`.
/// - Calls that this library could run, but whose refusal programs written for the other one rely on,
///   are refused (`nvte_cublas_gemm`).
/// - Backward passes of attention under a causal mask or in FP8, of up to 1024 keys and without a bias,
///   add in a fixed order, as with `deterministic`.
///
/// Set it before the first operator runs, because the backend is chosen there.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_set_drop_in(drop_in: MaybeUninit<bool>) -> bool {
    guard("nvtex_set_drop_in", || {
        let before = env::drop_in();
        env::set_drop_in(check::truth(drop_in));
        Ok(before)
    })
}

/// Returns the version of this library, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// Returns the version of this library as the number that `NVTE_MAKE_VERSION` makes of it. A program compares it
/// with `NVTE_VERSION`, the version of the headers that it was compiled with.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_version_number() -> i32 {
    const PARTS: [&str; 3] = [
        env!("CARGO_PKG_VERSION_MAJOR"),
        env!("CARGO_PKG_VERSION_MINOR"),
        env!("CARGO_PKG_VERSION_PATCH"),
    ];
    PARTS.iter().fold(0, |number, part| 1000 * number + part.parse::<i32>().unwrap_or(0))
}

/// Returns the domain of the calling thread's operators and memory: "cuda", "cpu", or that of a plugin. It is that
/// of the process, which is chosen at the first call, unless the thread's policy names another
/// (`nvtex_policy_push`). It returns null, with an error, if `NVTE_BACKEND` asks for one that cannot run.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_backend_name() -> *const c_char {
    let name =
        guard("nvtex_backend_name", || Ok(Handle(backend::domain()?.c_name().as_ptr().cast_mut())));
    name.0
}

/// Sets the number of threads on which operators of the CPU backend run, for all calls that begin
/// afterwards; 0 leaves it to `NVTE_NUM_THREADS`, whose default is the number of processors that the
/// process may use. With 1, operators run on the thread that calls. Results do not depend on it.
///
/// Errors: more than 1024.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_set_num_threads(num_threads: usize) {
    guard("nvtex_set_num_threads", || {
        if num_threads > MOST_THREADS {
            return Err(Error::argument(
                "num_threads",
                format_args!("a number from 0 to {MOST_THREADS}"),
                num_threads,
            ));
        }
        pool::set_threads(num_threads);
        Ok(())
    });
}

/// Returns the number of threads on which operators of the CPU backend run: what was asked for, or less
/// if the system refuses to create so many. It creates them if they do not exist yet.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_num_threads() -> usize {
    guard("nvtex_num_threads", || Ok(pool::threads()))
}

/// Allocates memory of the backend's current device, aligned to 256 bytes. It returns null for 0 bytes,
/// and null with an error if there is not enough memory.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_malloc(bytes: usize) -> *mut c_void {
    guard("nvtex_malloc", || Ok(Handle(malloc(bytes)?))).0
}

/// Frees memory of `nvtex_malloc`, which has come from the domain that `nvtex_backend_name` names now. Null is
/// ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_free(ptr: *mut c_void) {
    // SAFETY: the caller vouches for the pointer.
    guard("nvtex_free", || unsafe { free(ptr) });
}

/// Copies bytes from the host to the device, on the stream. The host bytes may be reused on return.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_memcpy_to_device(
    dst: *mut c_void,
    src: *const c_void,
    bytes: usize,
    stream: cudaStream_t,
) {
    // SAFETY: the caller vouches for the pointers.
    guard("nvtex_memcpy_to_device", || unsafe {
        memcpy(dst, src, bytes, CopyKind::NVTEX_COPY_TO_DEVICE, stream)
    });
}

/// Copies bytes from the device to the host, on the stream. Synchronize the stream before you read
/// them.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_memcpy_to_host(
    dst: *mut c_void,
    src: *const c_void,
    bytes: usize,
    stream: cudaStream_t,
) {
    // SAFETY: the caller vouches for the pointers.
    guard("nvtex_memcpy_to_host", || unsafe {
        memcpy(dst, src, bytes, CopyKind::NVTEX_COPY_TO_HOST, stream)
    });
}

/// Copies bytes on the device, on the stream.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_memcpy_on_device(
    dst: *mut c_void,
    src: *const c_void,
    bytes: usize,
    stream: cudaStream_t,
) {
    // SAFETY: the caller vouches for the pointers.
    guard("nvtex_memcpy_on_device", || unsafe {
        memcpy(dst, src, bytes, CopyKind::NVTEX_COPY_ON_DEVICE, stream)
    });
}

/// Creates a tensor with memory of its own on the device, which is not initialized: a tensor as `nvte_create_tensor`
/// makes it, with one scale for all elements, whose data is memory of `nvtex_malloc`. Destroy it with
/// `nvtex_array_destroy`. It returns null only with an error.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_array_create(
    dtype: MaybeUninit<NVTEDType>,
    shape: *const usize,
    ndim: usize,
) -> NVTETensor {
    guard("nvtex_array_create", || {
        let dtype = from_c("dtype", dtype)?;
        check::array("shape", shape, ("ndim", ndim))?;
        let mut dims = NVTEShape { data: [0; crate::tensor::MAX_DIMS], ndim };
        for (i, dim) in dims.data.iter_mut().enumerate().take(ndim) {
            // SAFETY: the caller vouches for the array.
            *dim = unsafe { shape.add(i).read() };
        }
        Ok(Handle(array_create(dtype, Shape::from_c("shape", &dims)?)?))
    })
    .0
}

/// Destroys a tensor of `nvtex_array_create` and its memory, whose data has not been changed since. Null is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_array_destroy(array: NVTETensor) {
    // SAFETY: the caller vouches for the memory.
    guard("nvtex_array_destroy", || unsafe { array_destroy(array) });
}

/// Copies bytes of the host to all elements of a tensor, on the stream. The host bytes may be reused on return.
///
/// Errors: a number of bytes that is not the tensor's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_array_set(
    array: NVTETensor,
    host: *const c_void,
    bytes: usize,
    stream: cudaStream_t,
) {
    guard("nvtex_array_set", || {
        // SAFETY: the caller vouches for the memories.
        unsafe { array_copy(array, (host.cast_mut(), bytes), false, stream) }
    });
}

/// Copies all elements of a tensor to the host, behind the work on the stream, and waits for them.
///
/// Errors: a number of bytes that is not the tensor's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_array_get(
    array: NVTETensor,
    host: *mut c_void,
    bytes: usize,
    stream: cudaStream_t,
) {
    guard("nvtex_array_get", || {
        // SAFETY: the caller vouches for the memories.
        unsafe { array_copy(array, (host, bytes), true, stream) }
    });
}

/// Creates a stream on the current device. On the CPU backend it stands for nothing, because calls
/// return when their work is done. Null is returned only with an error.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_stream_create() -> cudaStream_t {
    guard("nvtex_stream_create", || Ok(Handle(stream_create()?))).0
}

/// Destroys a stream of `nvtex_stream_create`. Null is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_stream_destroy(stream: cudaStream_t) {
    // SAFETY: the caller vouches for the stream.
    guard("nvtex_stream_destroy", || unsafe { stream_destroy(stream) });
}

/// Waits until the work on the stream is done. Errors: some of the work failed.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_stream_synchronize(stream: cudaStream_t) {
    // SAFETY: the caller vouches for the stream.
    guard("nvtex_stream_synchronize", || unsafe { stream_synchronize(stream) });
}

/// Begins to record a graph: the work that calls put on the stream, which does not run yet. `nvtex_graph_end` ends it.
///
/// Run the same calls once before, because first calls allocate memory and choose implementations. What a recorded
/// call reads and writes must exist at each replay, and numbers that the host passes stay as they were. This is the
/// capture of CUDA in its relaxed mode; libraries that capture the stream by themselves see no difference.
///
/// Errors: the default stream; a stream that is being recorded; a backend without graphs, which the CPU backend is.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_graph_begin(stream: cudaStream_t) {
    guard("nvtex_graph_begin", || graph::begin(stream));
}

/// Ends the recording of a stream and returns the graph, or null if a call in between was not legal in it.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_graph_end(stream: cudaStream_t) -> NVTEXGraph {
    guard("nvtex_graph_end", || Ok(Handle(GRAPHS.insert(Arc::new(graph::end(stream)?))?))).0
}

/// Runs the recorded work on a stream, behind what is there. Replays of one graph do not overlap.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_graph_replay(graph: NVTEXGraph, stream: cudaStream_t) {
    guard("nvtex_graph_replay", || GRAPHS.get("graph", graph)?.replay(stream));
}

/// Destroys a graph. Null is ignored.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_graph_destroy(graph: NVTEXGraph) {
    guard("nvtex_graph_destroy", || match graph.is_null() {
        true => Ok(()),
        false => GRAPHS.remove("graph", graph),
    });
}
