//! A plugin in Rust with one operator, `swap_first_dims`, for the host's memory.
//!
//!     cargo build --release
//!     NVTE_OP_PLUGINS=$PWD/target/release/librust_ops.so ./program
//!
//! The structs are those of `nvte/plugin.h` and `nvte/backend/transpose.h`; a program such as bindgen writes them too.
//! No panic may leave a function that the library calls: `guard` turns it into a failure.

use std::ffi::{c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

const OK: i32 = 0;
const FAILED: i32 = 2;
const KIND_VENDOR: u32 = 2;
const PRIORITY_OF_KIND: i32 = -1;
const DETERMINISTIC: u32 = 2;
const FORK_SAFE: u32 = 4;
const BITS: u32 = 0;
/// NVTEX_OP_SWAP_FIRST_DIMS_VERSION
const SWAP_FIRST_DIMS_VERSION: u32 = 1 << 16;

/// NVTEXSwapFirstDimsArgs
#[repr(C)]
struct SwapFirstDimsArgs {
    input: *const u8,
    output: *mut u8,
    first: usize,
    second: usize,
    row_bytes: usize,
}

/// NVTEXCall
#[repr(C)]
pub struct Call {
    struct_size: usize,
    args: *const c_void,
    args_size: usize,
    op: u32,
    variant: u32,
    flags: u32,
    device: i32,
    features: u64,
    stream: *mut c_void,
    scratch: *mut c_void,
    scratch_bytes: usize,
    reason: *mut c_char,
    reason_bytes: usize,
}

type Execute = unsafe extern "C" fn(*mut c_void, *const Call) -> i32;

/// NVTEXImpl
#[repr(C)]
pub struct Impl {
    struct_size: usize,
    op: *const c_char,
    op_version: u32,
    args_size: usize,
    id: *const c_char,
    vendor: *const c_char,
    domain: *const c_char,
    kind: u32,
    priority: i32,
    min_arch: u32,
    max_arch: u32,
    dtypes: u64,
    modes: u32,
    flags: u32,
    features: u64,
    numerics: u32,
    rtol: f32,
    atol: f32,
    supports: Option<Execute>,
    needs: Option<unsafe extern "C" fn(*mut c_void, *const Call, *mut c_void) -> i32>,
    execute: Option<Execute>,
    user: *mut c_void,
}

/// The beginning of NVTEXHost.
#[repr(C)]
pub struct Host {
    struct_size: usize,
    abi_major: u32,
    abi_minor: u32,
    library_version: *const c_char,
    context: *mut c_void,
    add_impl: unsafe extern "C" fn(*mut c_void, *const Impl) -> i32,
}

/// The beginning of NVTEXPlugin.
#[repr(C)]
pub struct Plugin {
    struct_size: usize,
    abi_minor: u32,
    name: *const c_char,
    version: *const c_char,
    vendor: *const c_char,
}

/// Runs `body`; a panic in it becomes a failure whose text is the call's reason.
///
/// # Safety
/// The reason of the call has room for as many bytes as it says.
unsafe fn guard(call: *const Call, body: impl FnOnce() -> i32) -> i32 {
    let panic = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(status) => return status,
        Err(panic) => panic,
    };
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or(panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic");
    // SAFETY: the library gives the room; the text is cut to it and ended with a 0.
    unsafe {
        let (reason, room) = ((*call).reason.cast::<u8>(), (*call).reason_bytes);
        if room > 0 {
            let length = text.len().min(room - 1);
            std::ptr::copy_nonoverlapping(text.as_ptr(), reason, length);
            reason.add(length).write(0);
        }
    }
    FAILED
}

/// `output[j][i] = input[i][j]` of rows of bytes.
unsafe extern "C" fn swap_first_dims(_user: *mut c_void, call: *const Call) -> i32 {
    // SAFETY: the library gives a call with the arguments that this implementation was registered with.
    unsafe {
        guard(call, || {
            let args = &*(*call).args.cast::<SwapFirstDimsArgs>();
            for i in 0..args.first {
                for j in 0..args.second {
                    let from = args.input.add((i * args.second + j) * args.row_bytes);
                    let to = args.output.add((j * args.first + i) * args.row_bytes);
                    std::ptr::copy_nonoverlapping(from, to, args.row_bytes);
                }
            }
            OK
        })
    }
}

/// # Safety
/// Called by the library when it loads the plugin.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvtex_plugin_v0(host: *const Host, plugin: *mut Plugin) -> i32 {
    let implementation = Impl {
        struct_size: size_of::<Impl>(),
        op: c"swap_first_dims".as_ptr(),
        op_version: SWAP_FIRST_DIMS_VERSION,
        args_size: size_of::<SwapFirstDimsArgs>(),
        id: c"example.rust".as_ptr(),
        vendor: c"example".as_ptr(),
        domain: c"cpu".as_ptr(),
        kind: KIND_VENDOR,
        priority: PRIORITY_OF_KIND,
        min_arch: 0,
        max_arch: 0,
        dtypes: 0,
        modes: 0,
        flags: DETERMINISTIC | FORK_SAFE,
        features: 0,
        numerics: BITS,
        rtol: 0.0,
        atol: 0.0,
        supports: None,
        needs: None,
        execute: Some(swap_first_dims),
        user: std::ptr::null_mut(),
    };
    // SAFETY: both structs are the library's, and are at least as long as these.
    unsafe {
        (*plugin).name = c"rust-ops".as_ptr();
        (*plugin).version = c"1.0".as_ptr();
        (*plugin).vendor = c"example".as_ptr();
        match ((*host).add_impl)((*host).context, &implementation) {
            FAILED => FAILED,
            _ => OK,
        }
    }
}
