//! What a plugin and the library give each other: `nvte/plugin.h`.
//!
//! A plugin is a shared library that exports
//!
//! `int32_t nvtex_plugin_v0(const NVTEXHost *host, NVTEXPlugin *plugin);`
//!
//! All structs begin with their size. Of a struct that a plugin fills, the library takes the bytes that both
//! know, and refuses a size below the first version's as well as a byte beyond what it knows that is not 0:
//! set the whole struct to 0, then fill it. Of a struct that the library fills, a plugin reads no field that does
//! not lie within `struct_size`.

use crate::types::{cudaEvent_t, cudaStream_t};
use std::ffi::{c_char, c_void};

/// Version of this interface. Another major has another entry symbol, `nvtex_plugin_v<major>`; of one major, a
/// later minor only adds. While the major is 0, minors promise nothing: build a plugin with the headers of the
/// library that loads it.
pub const NVTEX_PLUGIN_ABI_MAJOR: u32 = 0;
pub const NVTEX_PLUGIN_ABI_MINOR: u32 = 0;

/// Answer of a function: done, or queued on the stream.
pub const NVTEX_PLUGIN_OK: i32 = 0;
/// Answer of a function: the implementation cannot do this call. Nothing was written and nothing queued; the next
/// candidate is asked.
pub const NVTEX_PLUGIN_DECLINED: i32 = 1;
/// Answer of a function: anything else, which every number stands for that is not listed here. The operator fails,
/// and no other candidate is asked.
pub const NVTEX_PLUGIN_FAILED: i32 = 2;

/// `NVTEXCall.flags`: sizes or support are asked for, and nothing will run. No address means anything, not even
/// by being null or aligned; what is present is told by `features`.
pub const NVTEX_CALL_QUERY: u32 = 1;
/// `NVTEXCall.flags`: the same call must give the same bits again.
pub const NVTEX_CALL_DETERMINISTIC: u32 = 2;

/// `NVTEXImpl.kind`: runs on any device of its domain.
pub const NVTEX_KIND_DEFAULT: u32 = 1;
/// `NVTEXImpl.kind`: written by a vendor for its devices.
pub const NVTEX_KIND_VENDOR: u32 = 2;
/// `NVTEXImpl.kind`: defines what is right, and need not be fast.
pub const NVTEX_KIND_REFERENCE: u32 = 3;

/// `NVTEXImpl.priority`: 150, 100 or 50, by the kind. The greater priority of a kind is asked first.
pub const NVTEX_PRIORITY_OF_KIND: i32 = -1;

/// `NVTEXImpl.flags`: `execute` may be called while the stream is captured. Required in domains that are ASYNC.
pub const NVTEX_IMPL_CAPTURABLE: u32 = 1;
/// `NVTEXImpl.flags`: the same call gives the same bits again.
pub const NVTEX_IMPL_DETERMINISTIC: u32 = 2;
/// `NVTEXImpl.flags`: also runs in a child of `fork` whose parent has used it.
pub const NVTEX_IMPL_FORK_SAFE: u32 = 4;
/// `NVTEXImpl.flags`: the bits of a row do not depend on other rows.
pub const NVTEX_IMPL_BATCH_INVARIANT: u32 = 8;

/// `NVTEXImpl.numerics`: outputs equal those of the reference, bit by bit. In the other classes, too, integers,
/// flags, untouched elements and places of NaN do.
pub const NVTEX_NUMERICS_BITS: u32 = 0;
/// `NVTEXImpl.numerics`: outputs are at most 1 ulp of their dtype from the exact result; codes may differ by one where two are equally near
/// within the rounding of float32.
pub const NVTEX_NUMERICS_ROUNDED: u32 = 1;
/// `NVTEXImpl.numerics`: sums in float32 in any order, with an error of at most `4 sqrt(n) 2^-24 sum |terms|` and 1 ulp; one code after two
/// casts.
pub const NVTEX_NUMERICS_ORDER: u32 = 2;
/// `NVTEXImpl.numerics`: as near as `rtol` and `atol` say.
pub const NVTEX_NUMERICS_APPROX: u32 = 3;

/// `NVTEXDomain.flags`: the host can read and write the memory of the domain. The reference then runs what no
/// other implementation takes.
pub const NVTEX_DOMAIN_HOST_ACCESSIBLE: u32 = 1;
/// `NVTEXDomain.flags`: work is queued on streams, and a call may return before it is done.
pub const NVTEX_DOMAIN_ASYNC: u32 = 2;

/// One call of an operator. Made by the library and valid until the function returns; a plugin writes only to
/// `reason`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Call {
    pub struct_size: usize,
    /// The argument struct of the operator (`NVTEXSoftmaxArgs` of softmax), checked.
    pub args: *const c_void,
    /// At least the size that the implementation was registered with.
    pub args_size: usize,
    /// Number of the operator in this process, see `NVTEXHost.op_info`.
    pub op: u32,
    /// Index in `NVTEXOpInfo.variants`.
    pub variant: u32,
    /// NVTEX_CALL_QUERY, NVTEX_CALL_DETERMINISTIC.
    pub flags: u32,
    /// Ordinal of the device in the domain.
    pub device: i32,
    /// Features that the arguments use, bits `NVTEX_<OPERATOR>_<FEATURE>`.
    pub features: u64,
    /// A stream of the domain, whatever that is there.
    pub stream: cudaStream_t,
    /// Memory of the domain, as much as `needs` asked for; its contents are arbitrary.
    pub scratch: *mut c_void,
    pub scratch_bytes: usize,
    /// Room for a text that says why the answer is not NVTEX_PLUGIN_OK.
    pub reason: *mut c_char,
    pub reason_bytes: usize,
}

/// What an implementation needs for a call, whatever the alignment of the operands.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Needs {
    pub struct_size: usize,
    /// Bytes of the arguments' own workspace, of operators that have one; 0: no more than is documented there.
    pub workspace_bytes: usize,
    /// Bytes of `NVTEXCall.scratch`.
    pub scratch_bytes: usize,
}

/// An implementation of an operator, or of one of its variants. Texts are copied.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Impl {
    pub struct_size: usize,
    /// `softmax`, or a variant of it, `softmax.causal_forward`.
    pub op: *const c_char,
    /// The version of the operator's arguments that the plugin was built with: this and the next are
    /// NVTEX_BUILT_WITH(SOFTMAX).
    pub op_version: u32,
    pub args_size: usize,
    /// `[a-z0-9][a-z0-9._-]{0,62}`, one implementation of an operator has it.
    pub id: *const c_char,
    pub vendor: *const c_char,
    /// `cpu`, `cuda` or a plugin's.
    pub domain: *const c_char,
    /// NVTEX_KIND_DEFAULT, NVTEX_KIND_VENDOR or NVTEX_KIND_REFERENCE.
    pub kind: u32,
    /// NVTEX_PRIORITY_OF_KIND, or 0 to 1000.
    pub priority: i32,
    /// Architectures of the domain's devices; 0: any.
    pub min_arch: u32,
    pub max_arch: u32,
    /// A bit `1 << dtype` for each NVTEDType that operands may have; 0: any.
    pub dtypes: u64,
    /// A bit `1 << mode` for each NVTEScalingMode that operands may have; 0: any.
    pub modes: u32,
    /// NVTEX_IMPL_CAPTURABLE, NVTEX_IMPL_DETERMINISTIC, NVTEX_IMPL_FORK_SAFE, NVTEX_IMPL_BATCH_INVARIANT.
    pub flags: u32,
    /// The features that the implementation understands, bits `NVTEX_<OPERATOR>_<FEATURE>`. It never gets a call
    /// that uses another one.
    pub features: u64,
    /// NVTEX_NUMERICS_BITS, NVTEX_NUMERICS_ROUNDED, NVTEX_NUMERICS_ORDER or NVTEX_NUMERICS_APPROX.
    pub numerics: u32,
    /// Of NVTEX_NUMERICS_APPROX.
    pub rtol: f32,
    pub atol: f32,
    /// Whether the implementation takes a call; null: the limits above say all. It does no work on a device, does
    /// not wait, reads no operand, and answers the same for the same call.
    pub supports: Option<unsafe extern "C" fn(user: *mut c_void, call: *const Call) -> i32>,
    /// What it needs for a call; null: nothing beyond the formulas of the arguments. The rules are those of
    /// `supports`.
    pub needs: Option<
        unsafe extern "C" fn(user: *mut c_void, call: *const Call, needs: *mut Needs) -> i32,
    >,
    /// Runs a call, asynchronously on its stream: no synchronisation of the device, no allocation from it, and the
    /// current device is the same on return. Never null.
    pub execute: Option<unsafe extern "C" fn(user: *mut c_void, call: *const Call) -> i32>,
    pub user: *mut c_void,
}

/// A memory space with its streams. Pointers of one domain mean nothing to another, so that a call never leaves the
/// domain it is made in. Functions answer NVTEX_PLUGIN_OK or NVTEX_PLUGIN_FAILED; those that are optional may be
/// null.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Domain {
    pub struct_size: usize,
    /// As the id of an implementation.
    pub name: *const c_char,
    /// NVTEX_DOMAIN_HOST_ACCESSIBLE, NVTEX_DOMAIN_ASYNC.
    pub flags: u32,
    pub user: *mut c_void,
    pub device_count: Option<unsafe extern "C" fn(user: *mut c_void, count: *mut i32) -> i32>,
    /// The device that the calling thread uses.
    pub current_device: Option<unsafe extern "C" fn(user: *mut c_void, device: *mut i32) -> i32>,
    /// A number that grows with the abilities of devices, at least 1.
    pub device_arch:
        Option<unsafe extern "C" fn(user: *mut c_void, device: i32, arch: *mut u32) -> i32>,
    /// Optional: how many parts an operator may be divided into so that all run at once. Without it 1.
    pub multiprocessors:
        Option<unsafe extern "C" fn(user: *mut c_void, device: i32, count: *mut i32) -> i32>,
    /// Memory of the current device, aligned to 256 bytes; `bytes` is not 0.
    pub malloc: Option<
        unsafe extern "C" fn(user: *mut c_void, pointer: *mut *mut c_void, bytes: usize) -> i32,
    >,
    pub free: Option<unsafe extern "C" fn(user: *mut c_void, pointer: *mut c_void) -> i32>,
    /// Copies bytes; `kind` is an NVTEXCopyKind. On the stream, except that copies from and to the host may
    /// block.
    pub memcpy: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            to: *mut c_void,
            from: *const c_void,
            bytes: usize,
            kind: i32,
            stream: cudaStream_t,
        ) -> i32,
    >,
    /// Optional, as all that follow. Without it there is one stream, null.
    pub stream_create:
        Option<unsafe extern "C" fn(user: *mut c_void, stream: *mut cudaStream_t) -> i32>,
    pub stream_destroy:
        Option<unsafe extern "C" fn(user: *mut c_void, stream: cudaStream_t) -> i32>,
    /// Required in a domain that is ASYNC.
    pub stream_synchronize:
        Option<unsafe extern "C" fn(user: *mut c_void, stream: cudaStream_t) -> i32>,
    /// Whether the stream is being captured into a graph, 0 or 1. Without it streams cannot be captured.
    pub stream_capturing: Option<
        unsafe extern "C" fn(user: *mut c_void, stream: cudaStream_t, capturing: *mut i32) -> i32,
    >,
    /// Stream `index` of a pool of the current device, made at its first use.
    pub compute_stream: Option<
        unsafe extern "C" fn(user: *mut c_void, index: i32, stream: *mut cudaStream_t) -> i32,
    >,
    /// Event `index` of a pool of the current device, made at its first use.
    pub compute_event:
        Option<unsafe extern "C" fn(user: *mut c_void, index: i32, event: *mut cudaEvent_t) -> i32>,
    /// `count` streams of the calling thread, at most 4, that wait for what is on `stream` by now.
    pub fork: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            stream: cudaStream_t,
            count: i32,
            branches: *mut cudaStream_t,
        ) -> i32,
    >,
    /// `stream` waits for what is on the first `count` of them by now.
    pub join:
        Option<unsafe extern "C" fn(user: *mut c_void, stream: cudaStream_t, count: i32) -> i32>,
    /// Whether an address lies in memory of the domain, 0 or 1. It only serves checks of arguments.
    pub owns: Option<
        unsafe extern "C" fn(user: *mut c_void, pointer: *const c_void, owned: *mut i32) -> i32,
    >,
    /// Why the last function that failed on the calling thread did; valid until its next call.
    pub last_error: Option<unsafe extern "C" fn(user: *mut c_void) -> *const c_char>,
}

/// An operator as this process knows it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct OpInfo {
    pub struct_size: usize,
    pub name: *const c_char,
    /// Number of the operator in this process.
    pub op: u32,
    /// Version of the argument struct: NVTEX_OP_<OPERATOR>_VERSION of the library.
    pub version: u32,
    pub args_size: usize,
    /// Full names (`softmax.causal_forward`); an operator of one variant has its own name there.
    pub variants: *const *const c_char,
    pub variant_count: usize,
    /// Name i belongs to bit i of the features.
    pub features: *const *const c_char,
    pub feature_count: usize,
}

/// What the library gives to a plugin. The struct, what it points to and `context` live as long as the process.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Host {
    pub struct_size: usize,
    pub abi_major: u32,
    pub abi_minor: u32,
    pub library_version: *const c_char,
    pub context: *mut c_void,
    /// Registers an implementation. NVTEX_PLUGIN_OK; NVTEX_PLUGIN_DECLINED if the library does not know the
    /// operator or has another major version of it, and leaves the implementation out; NVTEX_PLUGIN_FAILED if
    /// the plugin as a whole is refused. Only during the entry function, as the next two.
    pub add_impl:
        Option<unsafe extern "C" fn(context: *mut c_void, implementation: *const Impl) -> i32>,
    /// Registers a domain; answers as `add_impl`.
    pub add_domain:
        Option<unsafe extern "C" fn(context: *mut c_void, domain: *const Domain) -> i32>,
    /// The value of an option, of the variable NVTE_OP_PLUGIN_<NAME>_<KEY> or else of the manifest; null if it is not
    /// set. The text lives as long as the process.
    pub option:
        Option<unsafe extern "C" fn(context: *mut c_void, key: *const c_char) -> *const c_char>,
    /// Writes a line where the library writes its own, if `level`, an NVTEXLogLevel, is on. At any time from any thread.
    pub log: Option<unsafe extern "C" fn(level: i32, text: *const c_char)>,
    /// An operator by its number, null past the last one. At any time from any thread.
    pub op_info: Option<unsafe extern "C" fn(op: u32) -> *const OpInfo>,
}

/// What a plugin says of itself. The library sets it to 0 but for the size, the plugin fills it. Texts are copied.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Plugin {
    pub struct_size: usize,
    /// The smallest minor version of the interface that the plugin can live with.
    pub abi_minor: u32,
    /// As the id of an implementation, one plugin of a process has it.
    pub name: *const c_char,
    pub version: *const c_char,
    pub vendor: *const c_char,
    pub user: *mut c_void,
    /// Called in each child of `fork`; or null.
    pub after_fork_child: Option<unsafe extern "C" fn(user: *mut c_void)>,
}
