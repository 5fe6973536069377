//! The CPU backend: the reference implementations in `op/*/cpu.rs`, and what they share. Pointers
//! are host pointers, streams are ignored, and work is complete on return.
#![allow(unsafe_code)]

use crate::backend::args::*;
use crate::backend::buf;
use crate::op;
use std::sync::OnceLock;

pub(super) static TABLE: OpTable = OpTable {
    quantize: Some(op::cast::cpu::quantize),
    dequantize: Some(op::cast::cpu::dequantize),
    transpose: Some(op::transpose::cpu::transpose),
    amax: Some(op::recipe::cpu::amax),
    scale_from_amax: Some(op::recipe::cpu::scale_from_amax),
    delayed_scaling: Some(op::recipe::cpu::delayed_scaling),
    gemm: Some(op::gemm::cpu::gemm),
    memset: Some(op::transformer_engine::cpu::memset),
    host_copy: Some(op::utils::cpu::host_copy),
    offsets: Some(op::transformer_engine::cpu::offsets),
    scaled_activation: Some(op::activation::cpu::scaled_activation),
    softmax: Some(op::softmax::cpu::softmax),
    dropout: Some(op::dropout::cpu::dropout),
    rope: Some(op::fused_rope::cpu::rope),
    device_arch: Some(op::nvtex::cpu::device_arch),
    device_malloc: Some(op::nvtex::cpu::device_malloc),
    device_free: Some(op::nvtex::cpu::device_free),
    device_memcpy: Some(op::nvtex::cpu::device_memcpy),
    read_back: Some(op::nvtex::cpu::read_back),
    stream_create: Some(op::nvtex::cpu::stream_create),
    stream_destroy: Some(op::nvtex::cpu::stream_destroy),
    stream_synchronize: Some(op::nvtex::cpu::stream_synchronize),
    stream_is_capturing: Some(op::nvtex::cpu::stream_is_capturing),
    compute_stream: Some(op::multi_stream::cpu::compute_stream),
    compute_event: Some(op::multi_stream::cpu::compute_event),
    swap_first_dims: Some(op::transpose::cpu::swap_first_dims),
    transpose_dbias: Some(op::transpose::cpu_dbias::transpose_dbias),
    requantize: Some(op::cast::cpu_requantize::requantize),
    swizzle: Some(op::swizzle::cpu::swizzle),
    scale_codes: Some(op::swizzle::cpu::scale_codes),
    group_amax: Some(op::recipe::cpu::group_amax),
    partial_amax: Some(op::recipe::cpu_partial::partial_amax),
    partial_cast: Some(op::recipe::cpu_partial::partial_cast),
    norm_forward: Some(op::normalization::cpu::forward),
    norm_backward: Some(op::normalization::cpu::backward),
    move_rows: Some(op::fused_attn::cpu::move_rows),
    reindex_cache: Some(op::fused_attn::cpu::reindex_cache),
    grad_correction: Some(op::fused_attn::cpu::grad_correction),
    half_lse: Some(op::fused_attn::cpu::half_lse),
    out_correction: Some(op::fused_attn::cpu::out_correction),
    partition: Some(op::fused_attn::cpu::partition),
    seed: Some(op::fused_attn::cpu::seed),
    copy_rows: Some(op::fused_attn::cpu::copy_rows),
    adam: Some(op::multi_tensor::cpu::adam),
    sgd: Some(op::multi_tensor::cpu::sgd),
    l2_norm: Some(op::multi_tensor::cpu::l2_norm),
    scale_tensors: Some(op::multi_tensor::cpu::scale_tensors),
    scales_from_amax: Some(op::multi_tensor::cpu::scales_from_amax),
    attention_plan: Some(op::fused_attn::cpu_attention::attention_plan),
    attention: Some(op::fused_attn::cpu_attention::attention),
    router_forward: Some(op::fused_router::cpu::router_forward),
    router_backward: Some(op::fused_router::cpu::router_backward),
    router_histogram: Some(op::fused_router::cpu::router_histogram),
    aux_loss: Some(op::fused_router::cpu::aux_loss),
    aux_loss_backward: Some(op::fused_router::cpu::aux_loss_backward),
    padding: Some(op::padding::cpu::padding),
    row_map: Some(op::permutation::cpu::row_map),
    permute: Some(op::permutation::cpu::permute),
    unpermute: Some(op::permutation::cpu::unpermute),
    hadamard: Some(op::hadamard_transform::cpu::hadamard),
    hadamard_amax: Some(op::hadamard_transform::cpu::hadamard_amax),
    nvfp4_transpose: Some(op::transpose::cpu_nvfp4::transpose),
    nvfp4_scale_transpose: Some(op::transpose::cpu_nvfp4::scale_transpose),
    nvfp4_alpha: Some(op::recipe::cpu_nvfp4::alpha),
    nvfp4_global_scale: Some(op::recipe::cpu_nvfp4::global_scale),
    nvfp4_block_scale: Some(op::recipe::cpu_nvfp4::block_scale),
    nvfp4_partial_amax: Some(op::recipe::cpu_nvfp4::partial_amax),
    nvfp4_partial_cast: Some(op::recipe::cpu_nvfp4::partial_cast),
    sort_pairs: Some(op::permutation::cpu::sort_pairs),
    topk: Some(op::topk::cpu::topk),
    nvfp4_quantize: Some(op::cast::cpu_nvfp4::nvfp4_quantize),
    nvfp4_dequantize: Some(op::cast::cpu_nvfp4::nvfp4_dequantize),
    grouped_gemm: Some(op::gemm::cpu_grouped::grouped_gemm),
    grouped_bias: Some(op::gemm::cpu_grouped::grouped_bias),
    widen: Some(op::gemm::cpu_grouped::widen),
    fork: Some(op::multi_stream::cpu::fork),
    join: Some(op::multi_stream::cpu::join),
    counters: Some(op::gemm::cpu_grouped::counters),
    ..OpTable::EMPTY
};

/// True if the noop flag forbids the work: exactly 1 (spec quantize 1.6).
///
/// # Safety
/// `noop` is null or points to a float.
pub(crate) unsafe fn is_noop(noop: *const f32) -> bool {
    // SAFETY: the caller's promise.
    unsafe { buf::load(noop) == Some(1.0) }
}

/// The widest vectors of this machine.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Vectors {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    Baseline,
}

pub(crate) fn vectors() -> Vectors {
    static VECTORS: OnceLock<Vectors> = OnceLock::new();
    *VECTORS.get_or_init(|| {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512vbmi")
                && is_x86_feature_detected!("fma")
            {
                return Vectors::Avx512;
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                return Vectors::Avx2;
            }
        }
        Vectors::Baseline
    })
}

/// Compiles a function for each kind of `Vectors` and calls the one for this machine. All give the
/// same bits: the compiler never contracts a multiplication and an addition.
macro_rules! vectorized {
    (
        $(#[$meta:meta])*
        $vis:vis fn $name:ident$(<$($t:ident: $bound:path),+>)?($($arg:ident: $ty:ty),+ $(,)?) $(-> $ret:ty)?
        $body:block
    ) => {
        $(#[$meta])*
        $vis fn $name$(<$($t: $bound),+>)?($($arg: $ty),+) $(-> $ret)? {
            #[inline(always)]
            fn body$(<$($t: $bound),+>)?($($arg: $ty),+) $(-> $ret)? $body
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,fma")]
            fn avx512$(<$($t: $bound),+>)?($($arg: $ty),+) $(-> $ret)? {
                body($($arg),+)
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2$(<$($t: $bound),+>)?($($arg: $ty),+) $(-> $ret)? {
                body($($arg),+)
            }
            match $crate::backend::cpu::vectors() {
                #[cfg(target_arch = "x86_64")]
                // SAFETY: the machine has these instructions.
                $crate::backend::cpu::Vectors::Avx512 => unsafe { avx512($($arg),+) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: the machine has these instructions.
                $crate::backend::cpu::Vectors::Avx2 => unsafe { avx2($($arg),+) },
                $crate::backend::cpu::Vectors::Baseline => body($($arg),+),
            }
        }
    };
}
pub(crate) use vectorized;
