//! The functions of a backend.

use super::*;
use crate::types::{cudaEvent_t, cudaStream_t};
use std::ffi::{c_int, c_void};

/// Bump when a struct that backends see changes incompatibly.
pub const NVTEX_BACKEND_API_VERSION: u32 = 5;

/// Functions of a backend. A null entry is unimplemented.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct OpTable {
    /// Bytes of this struct as the backend was built.
    pub struct_size: usize,
    /// `NVTEX_BACKEND_API_VERSION` as the backend was built.
    pub api_version: u32,

    pub quantize: Option<unsafe extern "C-unwind" fn(*const QuantizeArgs, cudaStream_t) -> Outcome>,
    pub dequantize:
        Option<unsafe extern "C-unwind" fn(*const DequantizeArgs, cudaStream_t) -> Outcome>,
    pub transpose:
        Option<unsafe extern "C-unwind" fn(*const TransposeArgs, cudaStream_t) -> Outcome>,
    pub amax: Option<unsafe extern "C-unwind" fn(*const AmaxArgs, cudaStream_t) -> Outcome>,
    pub scale_from_amax:
        Option<unsafe extern "C-unwind" fn(*const ScaleFromAmaxArgs, cudaStream_t) -> Outcome>,
    pub delayed_scaling:
        Option<unsafe extern "C-unwind" fn(*const DelayedScalingArgs, cudaStream_t) -> Outcome>,
    pub gemm: Option<unsafe extern "C-unwind" fn(*const GemmArgs, cudaStream_t) -> Outcome>,
    pub memset: Option<unsafe extern "C-unwind" fn(*const MemsetArgs, cudaStream_t) -> Outcome>,
    pub host_copy:
        Option<unsafe extern "C-unwind" fn(*const HostCopyArgs, cudaStream_t) -> Outcome>,
    pub offsets: Option<unsafe extern "C-unwind" fn(*const OffsetsArgs, cudaStream_t) -> Outcome>,
    pub scaled_activation:
        Option<unsafe extern "C-unwind" fn(*const ScaledActivationArgs, cudaStream_t) -> Outcome>,
    pub softmax: Option<unsafe extern "C-unwind" fn(*const SoftmaxArgs, cudaStream_t) -> Outcome>,
    pub dropout: Option<unsafe extern "C-unwind" fn(*const DropoutArgs, cudaStream_t) -> Outcome>,
    pub rope: Option<unsafe extern "C-unwind" fn(*const RopeArgs, cudaStream_t) -> Outcome>,

    /// 10 * major + minor of the current device, 0 for a backend without one.
    pub device_arch: Option<unsafe extern "C-unwind" fn(arch: *mut c_int) -> Outcome>,
    /// Memory of the current device, aligned to 256 bytes. `bytes` is not 0.
    pub device_malloc:
        Option<unsafe extern "C-unwind" fn(ptr: *mut *mut c_void, bytes: usize) -> Outcome>,
    pub device_free: Option<unsafe extern "C-unwind" fn(ptr: *mut c_void) -> Outcome>,
    /// Asynchronous on the stream, except that copies from and to pageable memory may block.
    pub device_memcpy: Option<
        unsafe extern "C-unwind" fn(
            dst: *mut c_void,
            src: *const c_void,
            bytes: usize,
            kind: CopyKind,
            stream: cudaStream_t,
        ) -> Outcome,
    >,
    /// Copies device bytes to the host and waits for them. `*copied` is false, and nothing was copied, while
    /// the stream is being captured into a graph.
    pub read_back: Option<
        unsafe extern "C-unwind" fn(
            dst: *mut c_void,
            src: *const c_void,
            bytes: usize,
            copied: *mut bool,
            stream: cudaStream_t,
        ) -> Outcome,
    >,
    pub stream_create: Option<unsafe extern "C-unwind" fn(stream: *mut cudaStream_t) -> Outcome>,
    pub stream_destroy: Option<unsafe extern "C-unwind" fn(stream: cudaStream_t) -> Outcome>,
    pub stream_synchronize: Option<unsafe extern "C-unwind" fn(stream: cudaStream_t) -> Outcome>,
    /// Whether the stream is being captured into a graph. A backend without the entry may capture any time.
    pub stream_is_capturing:
        Option<unsafe extern "C-unwind" fn(stream: cudaStream_t, capturing: *mut bool) -> Outcome>,
    /// Stream `index` of the current device's pool, created on first use.
    pub compute_stream:
        Option<unsafe extern "C-unwind" fn(index: c_int, stream: *mut cudaStream_t) -> Outcome>,
    /// Event `index` of the current device's pool, created on first use.
    pub compute_event:
        Option<unsafe extern "C-unwind" fn(index: c_int, event: *mut cudaEvent_t) -> Outcome>,

    pub swap_first_dims:
        Option<unsafe extern "C-unwind" fn(*const SwapFirstDimsArgs, cudaStream_t) -> Outcome>,
    pub transpose_dbias:
        Option<unsafe extern "C-unwind" fn(*const TransposeDbiasArgs, cudaStream_t) -> Outcome>,
    pub requantize:
        Option<unsafe extern "C-unwind" fn(*const RequantizeArgs, cudaStream_t) -> Outcome>,
    pub swizzle: Option<unsafe extern "C-unwind" fn(*const SwizzleArgs, cudaStream_t) -> Outcome>,
    pub scale_codes:
        Option<unsafe extern "C-unwind" fn(*const ScaleCodesArgs, cudaStream_t) -> Outcome>,
    pub group_amax:
        Option<unsafe extern "C-unwind" fn(*const GroupAmaxArgs, cudaStream_t) -> Outcome>,
    pub partial_amax:
        Option<unsafe extern "C-unwind" fn(*const PartialAmaxArgs, cudaStream_t) -> Outcome>,
    pub partial_cast:
        Option<unsafe extern "C-unwind" fn(*const PartialCastArgs, cudaStream_t) -> Outcome>,
    pub norm_forward:
        Option<unsafe extern "C-unwind" fn(*const NormForwardArgs, cudaStream_t) -> Outcome>,
    pub norm_backward:
        Option<unsafe extern "C-unwind" fn(*const NormBackwardArgs, cudaStream_t) -> Outcome>,
    pub move_rows:
        Option<unsafe extern "C-unwind" fn(*const MoveRowsArgs, cudaStream_t) -> Outcome>,
    pub reindex_cache:
        Option<unsafe extern "C-unwind" fn(*const ReindexCacheArgs, cudaStream_t) -> Outcome>,
    pub grad_correction:
        Option<unsafe extern "C-unwind" fn(*const GradCorrectionArgs, cudaStream_t) -> Outcome>,
    pub half_lse: Option<unsafe extern "C-unwind" fn(*const HalfLseArgs, cudaStream_t) -> Outcome>,
    pub out_correction:
        Option<unsafe extern "C-unwind" fn(*const OutCorrectionArgs, cudaStream_t) -> Outcome>,
    pub partition:
        Option<unsafe extern "C-unwind" fn(*const PartitionArgs, cudaStream_t) -> Outcome>,
    pub seed: Option<unsafe extern "C-unwind" fn(*const SeedArgs, cudaStream_t) -> Outcome>,
    pub copy_rows:
        Option<unsafe extern "C-unwind" fn(*const CopyRowsArgs, cudaStream_t) -> Outcome>,
    /// The implementation of a pass and its workspace; UNIMPLEMENTED with all reasons if there is none.
    pub attention_plan:
        Option<unsafe extern "C-unwind" fn(*const AttentionArgs, *mut AttentionPlan) -> Outcome>,
    pub attention:
        Option<unsafe extern "C-unwind" fn(*const AttentionArgs, cudaStream_t) -> Outcome>,
    pub adam: Option<unsafe extern "C-unwind" fn(*const AdamArgs, cudaStream_t) -> Outcome>,
    pub sgd: Option<unsafe extern "C-unwind" fn(*const SgdArgs, cudaStream_t) -> Outcome>,
    pub l2_norm: Option<unsafe extern "C-unwind" fn(*const L2NormArgs, cudaStream_t) -> Outcome>,
    pub scale_tensors:
        Option<unsafe extern "C-unwind" fn(*const ScaleTensorsArgs, cudaStream_t) -> Outcome>,
    pub scales_from_amax:
        Option<unsafe extern "C-unwind" fn(*const ScalesFromAmaxArgs, cudaStream_t) -> Outcome>,
    pub router_forward:
        Option<unsafe extern "C-unwind" fn(*const RouterForwardArgs, cudaStream_t) -> Outcome>,
    pub router_backward:
        Option<unsafe extern "C-unwind" fn(*const RouterBackwardArgs, cudaStream_t) -> Outcome>,
    pub router_histogram:
        Option<unsafe extern "C-unwind" fn(*const RouterHistogramArgs, cudaStream_t) -> Outcome>,
    pub aux_loss: Option<unsafe extern "C-unwind" fn(*const AuxLossArgs, cudaStream_t) -> Outcome>,
    pub aux_loss_backward:
        Option<unsafe extern "C-unwind" fn(*const AuxLossBackwardArgs, cudaStream_t) -> Outcome>,
    pub padding: Option<unsafe extern "C-unwind" fn(*const PaddingArgs, cudaStream_t) -> Outcome>,
    pub row_map: Option<unsafe extern "C-unwind" fn(*const RowMapArgs, cudaStream_t) -> Outcome>,
    pub permute: Option<unsafe extern "C-unwind" fn(*const PermuteArgs, cudaStream_t) -> Outcome>,
    pub unpermute:
        Option<unsafe extern "C-unwind" fn(*const UnpermuteArgs, cudaStream_t) -> Outcome>,
    pub sort_pairs:
        Option<unsafe extern "C-unwind" fn(*const SortPairsArgs, cudaStream_t) -> Outcome>,
    pub topk: Option<unsafe extern "C-unwind" fn(*const TopkArgs, cudaStream_t) -> Outcome>,
    pub nvfp4_quantize:
        Option<unsafe extern "C-unwind" fn(*const Nvfp4QuantizeArgs, cudaStream_t) -> Outcome>,
    pub nvfp4_dequantize:
        Option<unsafe extern "C-unwind" fn(*const Nvfp4DequantizeArgs, cudaStream_t) -> Outcome>,
    pub hadamard: Option<unsafe extern "C-unwind" fn(*const HadamardArgs, cudaStream_t) -> Outcome>,
    pub hadamard_amax:
        Option<unsafe extern "C-unwind" fn(*const HadamardAmaxArgs, cudaStream_t) -> Outcome>,
    pub nvfp4_transpose:
        Option<unsafe extern "C-unwind" fn(*const Nvfp4TransposeArgs, cudaStream_t) -> Outcome>,
    pub nvfp4_scale_transpose: Option<
        unsafe extern "C-unwind" fn(*const Nvfp4ScaleTransposeArgs, cudaStream_t) -> Outcome,
    >,
    pub nvfp4_alpha:
        Option<unsafe extern "C-unwind" fn(*const Nvfp4AlphaArgs, cudaStream_t) -> Outcome>,
    pub nvfp4_global_scale:
        Option<unsafe extern "C-unwind" fn(*const Nvfp4GlobalScaleArgs, cudaStream_t) -> Outcome>,
    pub nvfp4_block_scale:
        Option<unsafe extern "C-unwind" fn(*const Nvfp4BlockScaleArgs, cudaStream_t) -> Outcome>,
    pub nvfp4_partial_amax:
        Option<unsafe extern "C-unwind" fn(*const Nvfp4PartialAmaxArgs, cudaStream_t) -> Outcome>,
    pub nvfp4_partial_cast:
        Option<unsafe extern "C-unwind" fn(*const Nvfp4PartialCastArgs, cudaStream_t) -> Outcome>,
    pub grouped_gemm:
        Option<unsafe extern "C-unwind" fn(*const GroupedGemmArgs, cudaStream_t) -> Outcome>,
    pub grouped_bias:
        Option<unsafe extern "C-unwind" fn(*const GroupedBiasArgs, cudaStream_t) -> Outcome>,
    pub widen: Option<unsafe extern "C-unwind" fn(*const WidenArgs, cudaStream_t) -> Outcome>,
    /// Streams of the calling thread, at most 4, that wait for what is on `stream` by now.
    pub fork: Option<
        unsafe extern "C-unwind" fn(
            stream: cudaStream_t,
            count: c_int,
            branches: *mut cudaStream_t,
        ) -> Outcome,
    >,
    /// `stream` waits for what is on the first `count` of them by now.
    pub join: Option<unsafe extern "C-unwind" fn(stream: cudaStream_t, count: c_int) -> Outcome>,
    pub counters: Option<unsafe extern "C-unwind" fn(*const CountersArgs, cudaStream_t) -> Outcome>,
}
