//! C functions of swizzle.h: the order of block scales.
#![allow(unsafe_code, clippy::missing_safety_doc)]

use super::*;
use crate::error::guard;

/// Moves the block scales of a tensor to the 128 x 4 tiles that block-scaled products read.
///
/// What it computes: scales of data `[R, C]` in blocks of b (MXFP8: 32, NVFP4: 16) are a matrix
/// `[m, k]`: row-wise m = R, k = C/b, column-wise m = C, k = R/b, with quotients rounded up, then m to
/// a multiple of 128 and k to a multiple of 4. Entry (i, j) goes to byte
/// `((i / 128) * (k / 4) + j / 4) * 512 + i % 32 * 16 + i % 128 / 32 * 4 + j % 4`. Padding becomes 0,
/// whatever it was; the scale of a partial block is not padding.
///
/// Shapes: `scale_inv` and `columnwise_scale_inv` `[m, k]`, the column-wise one of MXFP8 `[k, m]`, on
/// both sides. The output must have every direction that the input has, one or both. Data are not
/// touched and may have null pointers, but their dtype and shape must be set.
///
/// Dtypes: MXFP8 Float8E8M0, NVFP4 Float8E4M3, or Byte.
///
/// Notes: nothing is written to empty tensors.
///
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

/// Moves block scales from the tiles back to their order: the inverse of
/// `nvte_swizzle_scaling_factors`. Padding is copied. The output decides which directions move, and
/// must not have `with_gemm_swizzled_scales`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_unswizzle_scaling_factors(
    input: NVTETensor,
    output: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_unswizzle_scaling_factors", || single_of(input, output, Way::Compact, stream));
}

/// Moves the block scales of `num_tensors` pairs of tensors as `nvte_swizzle_scaling_factors` does,
/// many in one kernel. Scaling modes and directions may differ from pair to pair.
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

/// Moves block scales as `nvte_multi_tensor_swizzle_scaling_factors` does, even if they do not fit
/// their data.
///
/// The scales of the input may be any `[m, k]` (column-wise MXFP8: `[k, m]`) of whole tiles, those of
/// the output may have any shape with as many elements. Entries beyond those that the data would have
/// become 0.
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

/// Moves the block scales of `num_tensors` pairs of tensors back as `nvte_unswizzle_scaling_factors`
/// does.
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

/// Moves the block scales of the members of a grouped MXFP8 tensor as `nvte_swizzle_scaling_factors`
/// does, in the directions that the input has. Shapes of members are read on the device.
///
/// Layout: the scale matrices of the members, each padded as that of a lone tensor, follow each other
/// on both sides. If all members have one shape `[R, C]`, the input may leave out the padding between
/// them: n R rows of k row-wise scales, rounded up to a multiple of 128 rows, or n R/32 rows of m
/// column-wise scales, rounded up to a multiple of 4 rows. The number of its elements tells which it
/// is; where both layouts have the same number, it is taken as padded.
///
/// Dtypes: Float8E8M0 or Byte.
///
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

/// Moves the block scales of the members of a grouped tensor back: the inverse of
/// `nvte_swizzle_grouped_scaling_factors`, with padding on both sides, in the directions that the
/// output has.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_unswizzle_grouped_scaling_factors(
    input: NVTEGroupedTensor,
    output: NVTEGroupedTensor,
    stream: cudaStream_t,
) {
    let way = Way::Compact;
    guard("nvte_unswizzle_grouped_scaling_factors", || grouped_of(input, output, way, stream));
}

/// Turns the scales of FP8 blocks into swizzled MXFP8 scales of the same data, row-wise.
///
/// What it computes: the code of a scale is `bits >> 23 & 0xFF`, which is exact for powers of two, as
/// `force_pow2_scales` gives them; other scales lose sign and mantissa. Each code fills the four of its
/// 128 columns. 1D: padding rows become 0. 2D: a block fills its tile, padding included.
///
/// Shapes: data `[R, C]`, one buffer for both tensors; input scales Float32 `[C/128, R]` (1D) or
/// `[R/128, C/128]` (2D), where quotients are rounded up and the second dimension may be larger; output
/// scales Float8E8M0 (or Byte) of a lone MXFP8 tensor.
///
/// Notes: nothing is written to empty tensors.
///
/// Errors: other scaling modes, dtypes or shapes; an output without `with_gemm_swizzled_scales`;
/// different data pointers; null or misaligned pointers.
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
    // SAFETY: the caller keeps to the `# Safety` section of this function.
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
