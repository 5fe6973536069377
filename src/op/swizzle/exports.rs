//! C functions of swizzle.h: the order of block scales.
#![allow(unsafe_code, clippy::missing_safety_doc)]

use super::*;
use crate::error::guard;

/// Puts the block scales of a tensor into the 128 x 4 tiles that block-scaled products read.
///
/// Scales of data `[R, C]` in blocks of b (MXFP8: 32, NVFP4: 16) are a matrix `[m, k]`: row-wise m = R,
/// k = C/b, column-wise m = C, k = R/b, quotients rounded up, then m to a multiple of 128 and k to a
/// multiple of 4. Entry (i, j) goes to byte
/// `((i / 128) * (k / 4) + j / 4) * 512 + i % 32 * 16 + i % 128 / 32 * 4 + j % 4`; padding becomes 0,
/// whatever it was. The scale of a partial block is no padding.
/// Shapes: `scale_inv` and `columnwise_scale_inv` `[m, k]`, the column-wise one of MXFP8 `[k, m]`, on
/// both sides. Either direction that the input has, or both, must be in the output. Data are not
/// touched and may have null pointers, but dtype and shape must be set.
/// Dtypes: MXFP8 Float8E8M0, NVFP4 Float8E4M3, or Byte.
/// Empty tensors: nothing is written.
/// Errors: other scaling modes, dtypes or shapes; `with_gemm_swizzled_scales` set in the input or not
/// in the output; null pointers; an output that overlaps the input.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_swizzle_scaling_factors(
    input: NVTETensor,
    output: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_swizzle_scaling_factors", || single_of(input, output, Way::Tiles, stream));
}

/// The inverse of `nvte_swizzle_scaling_factors`; padding is copied. The output decides which
/// directions move, and has `with_gemm_swizzled_scales` not set.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_unswizzle_scaling_factors(
    input: NVTETensor,
    output: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_unswizzle_scaling_factors", || single_of(input, output, Way::Compact, stream));
}

/// `nvte_swizzle_scaling_factors` of `num_tensors` pairs, in one kernel for many of them. Scaling
/// modes and directions may differ from pair to pair.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_multi_tensor_swizzle_scaling_factors(
    inputs: *const NVTETensor,
    outputs: *mut NVTETensor,
    num_tensors: usize,
    stream: cudaStream_t,
) {
    guard("nvte_multi_tensor_swizzle_scaling_factors", || {
        // SAFETY: the caller vouches for the arrays.
        unsafe { multi_of(inputs, outputs, num_tensors, Way::Tiles, stream) }
    });
}

/// As `nvte_multi_tensor_swizzle_scaling_factors`, for scales that need not fit their data: the input's
/// may be any `[m, k]` (column-wise MXFP8: `[k, m]`) of whole tiles, the output's any shape with as many
/// elements. Entries beyond those that the data would have become 0.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_multi_tensor_swizzle_scaling_factors_unchecked(
    inputs: *const NVTETensor,
    outputs: *mut NVTETensor,
    num_tensors: usize,
    stream: cudaStream_t,
) {
    guard("nvte_multi_tensor_swizzle_scaling_factors_unchecked", || {
        // SAFETY: the caller vouches for the arrays.
        unsafe { multi_of(inputs, outputs, num_tensors, Way::TilesUnchecked, stream) }
    });
}

/// `nvte_unswizzle_scaling_factors` of `num_tensors` pairs.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_multi_tensor_unswizzle_scaling_factors(
    inputs: *const NVTETensor,
    outputs: *mut NVTETensor,
    num_tensors: usize,
    stream: cudaStream_t,
) {
    guard("nvte_multi_tensor_unswizzle_scaling_factors", || {
        // SAFETY: the caller vouches for the arrays.
        unsafe { multi_of(inputs, outputs, num_tensors, Way::Compact, stream) }
    });
}

/// `nvte_swizzle_scaling_factors` of the members of a grouped MXFP8 tensor, in the directions that the
/// input has. Shapes of members are read on the device.
///
/// The scale matrices of the members, each padded as that of a lone tensor, lie one after the other on
/// both sides. If all members have one shape `[R, C]`, the input may leave out the padding between
/// them: n R rows of k row-wise scales, rounded up to a multiple of 128 rows; n R/32 rows of m
/// column-wise scales, rounded up to a multiple of 4 rows. Its number of elements tells; where both
/// have the same, it is taken as padded.
/// Dtypes: Float8E8M0 or Byte.
/// Errors: other scaling modes; `with_gemm_swizzled_scales` set in the input or not in the output;
/// different logical shapes; members of one shape with scales of another size; varying shapes without
/// `tensor_offsets`; null pointers; the input's buffer as output.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_swizzle_grouped_scaling_factors(
    input: NVTEGroupedTensor,
    output: NVTEGroupedTensor,
    stream: cudaStream_t,
) {
    guard("nvte_swizzle_grouped_scaling_factors", || grouped_of(input, output, Way::Tiles, stream));
}

/// The inverse of `nvte_swizzle_grouped_scaling_factors`, with padding on both sides, in the directions
/// that the output has.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_unswizzle_grouped_scaling_factors(
    input: NVTEGroupedTensor,
    output: NVTEGroupedTensor,
    stream: cudaStream_t,
) {
    let way = Way::Compact;
    guard("nvte_unswizzle_grouped_scaling_factors", || grouped_of(input, output, way, stream));
}

/// Scales of FP8 blocks as swizzled MXFP8 scales of the same data, row-wise.
///
/// The code of a scale is `bits >> 23 & 0xFF`: exact for powers of two, which
/// `force_pow2_scales` gives; other scales lose sign and mantissa. Each fills the four codes of its 128
/// columns. 1D: padding rows become 0; 2D: a block fills its tile, padding included.
/// Shapes: data `[R, C]`, one buffer for both tensors; input scales Float32 `[C/128, R]` (1D) or
/// `[R/128, C/128]` (2D), quotients rounded up, the second dimension may be larger; output scales
/// Float8E8M0 (or Byte) of a lone MXFP8 tensor.
/// Empty tensors: nothing is written.
/// Errors: other scaling modes, dtypes or shapes; output without `with_gemm_swizzled_scales`; different
/// data pointers; null or misaligned pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_swizzle_block_scaling_to_mxfp8_scaling_factors(
    input: NVTETensor,
    output: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_swizzle_block_scaling_to_mxfp8_scaling_factors", || {
        let input = check::tensor("input", input)?;
        block_scaling_to_mxfp8(&input, &check::tensor("output", output)?, stream)
    });
}

fn single_of(input: NVTETensor, output: NVTETensor, way: Way, stream: cudaStream_t) -> Result<()> {
    let input = check::tensor("input", input)?;
    single(&input, &check::tensor("output", output)?, way, stream)
}

/// # Safety
/// The arrays are null or have `num_tensors` handles.
unsafe fn multi_of(
    inputs: *const NVTETensor,
    outputs: *mut NVTETensor,
    num_tensors: usize,
    way: Way,
    stream: cudaStream_t,
) -> Result<()> {
    let count = ("num_tensors", num_tensors);
    // SAFETY: the caller's promise.
    let (inputs, outputs) = unsafe {
        let inputs = check::tensors("inputs", inputs, count)?;
        (inputs, check::tensors("outputs", outputs.cast_const(), count)?)
    };
    multi(&inputs, &outputs, way, stream)
}

fn grouped_of(
    input: NVTEGroupedTensor,
    output: NVTEGroupedTensor,
    way: Way,
    stream: cudaStream_t,
) -> Result<()> {
    let input = check::grouped_tensor("input", input)?;
    grouped(&input, &check::grouped_tensor("output", output)?, way, stream)
}
