//! C functions of hadamard_transform.h: Hadamard transforms of 16 rows, with random signs.
#![allow(unsafe_code, clippy::missing_safety_doc)]

use super::*;
use crate::error::guard;
use crate::op::cast::exports::parts;
use crate::op::transformer_engine::QuantizationConfig;

/// Transposes a matrix and applies a Hadamard transform to each 16 neighbours of a row of the result.
///
/// What it computes: `output[c][16 i + n] = sum over k of x[k] s[k] (-1)^popcount(k & n) / 4`, with
/// x[k] = input[16 i + k][c] and s[k] = -1 where bit k of `random_sign_mask_t` is set, otherwise 1;
/// sums are in Float32. `random_sign_mask` is ignored, because there is no output that is not
/// transposed.
///
/// Shapes: `[rows, cols]` to `[cols, rows]`, both multiples of 16. Dtypes: BFloat16.
///
/// Notes: nothing happens if the output has no address.
///
/// Errors: other dtypes or shapes; an output that overlaps the input; null or misaligned pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_hadamard_transform(
    input: NVTETensor,
    output: NVTETensor,
    random_sign_mask: c_int,
    random_sign_mask_t: c_int,
    stream: cudaStream_t,
) {
    let _ = random_sign_mask;
    guard("nvte_hadamard_transform", || {
        let input = check::tensor("input", input)?;
        transform(&input, &check::tensor("output", output)?, random_sign_mask_t, stream)
    });
}

/// Computes the largest magnitude of a matrix and that of its Hadamard transform:
/// `output.amax = max|x|`, and `output.columnwise_amax` of the result of `nvte_hadamard_transform`,
/// rounded to BFloat16.
///
/// NaN are ignored, and no elements give 0. Both are set, not raised; one without an address is left
/// out. The output needs no data.
///
/// Shapes: `[rows, cols]`, both multiples of 16. Dtypes: BFloat16; maxima one Float32 each.
///
/// Errors: other dtypes or shapes; null or misaligned pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_hadamard_transform_amax(
    input: NVTETensor,
    output: NVTETensor,
    random_sign_mask: c_int,
    random_sign_mask_t: c_int,
    stream: cudaStream_t,
) {
    let _ = random_sign_mask;
    guard("nvte_hadamard_transform_amax", || {
        let input = check::tensor("input", input)?;
        amax(&input, &check::tensor("output", output)?, random_sign_mask_t, stream)
    });
}

/// Computes the largest magnitudes of `nvte_hadamard_transform_amax` for parts of a matrix:
/// `outputs[i]` takes those of the next `split_sections[i]` rows.
///
/// Parts: there may be any number. Rows after the last part do not count. A part without rows has
/// maxima of 0, and its tensor may be null. Without tensors nothing happens.
///
/// Shapes: rows of each part and columns are multiples of 16.
///
/// Errors: as `nvte_hadamard_transform_amax`; a part with rows and without both maxima; parts with more
/// rows than the input.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_group_hadamard_transform_amax(
    input: NVTETensor,
    outputs: *mut NVTETensor,
    split_sections: *const usize,
    num_tensors: usize,
    random_sign_mask: c_int,
    random_sign_mask_t: c_int,
    stream: cudaStream_t,
) {
    let _ = random_sign_mask;
    let maxima = Maxima::Transform(random_sign_mask_t);
    // SAFETY: the caller vouches for the arrays.
    guard("nvte_group_hadamard_transform_amax", || unsafe {
        split_amax_of(input, (outputs, split_sections, num_tensors), maxima, stream)
    });
}

/// Computes the largest magnitudes of `nvte_hadamard_transform_amax` for each member of a grouped
/// tensor whose rows only the device knows: `output.amax[t]` and `output.columnwise_amax[t]` for member
/// t, 0 for an empty one.
///
/// Members are those of the output, all with its columns. `tensor_offsets` and `first_dims` are read on
/// the device; without both the members have the same number of rows. Rows of members and columns are
/// multiples of 16.
///
/// Maxima: Float32, one for each member, required for each direction in which the output has data, and
/// for at least one.
///
/// Errors: other dtypes or shapes; different numbers of members; `last_dims`; `first_dims` without
/// `tensor_offsets`; an input that is smaller than the logical shape; null or misaligned pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_group_hadamard_transform_amax_graph_safe(
    input: NVTEGroupedTensor,
    output: NVTEGroupedTensor,
    random_sign_mask: c_int,
    random_sign_mask_t: c_int,
    stream: cudaStream_t,
) {
    let _ = random_sign_mask;
    let maxima = Maxima::Transform(random_sign_mask_t);
    guard("nvte_group_hadamard_transform_amax_graph_safe", || {
        let input = check::grouped_tensor("input", input)?;
        group_amax(&input, &check::grouped_tensor("output", output)?, maxima, stream)
    });
}

/// Casts the Hadamard transform of the columns of a matrix to NVFP4, transposed, to the row-wise fields
/// of the output.
///
/// What it computes: with x[k] = input[16 i + k][c], `y[n] = sum over k of x[k] hadamard_matrix[k][n]`,
/// summed in Float32 in pairs and rounded to BFloat16 (with `use_fast_math`: not rounded), then cast as
/// by `nvte_quantize_v2` with the output's `amax`. A NaN makes its block NaN.
///
/// Shapes: input `[r, n]`, multiples of 16; output.data `[n, r]`, `scale_inv` `[n, r/16]`, compact;
/// hadamard_matrix `[16, 16]`.
///
/// Dtypes: BFloat16 to Float4E2M1.
///
/// Config (null: defaults): the noop tensor, stochastic rounding with its RNG state, `use_fast_math`.
///
/// Errors: other dtypes or shapes; swizzled scales; null or misaligned pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_hadamard_transform_cast_fusion_columnwise(
    input: NVTETensor,
    output: NVTETensor,
    hadamard_matrix: NVTETensor,
    quant_config: NVTEQuantizationConfig,
    stream: cudaStream_t,
) {
    guard("nvte_hadamard_transform_cast_fusion_columnwise", || {
        let (input, output) = (check::tensor("input", input)?, check::tensor("output", output)?);
        let (matrix, config) = options(hadamard_matrix, quant_config)?;
        cast_fusion::columnwise(&input, &output, &matrix, &config, stream)
    });
}

/// Casts a matrix to NVFP4: row-wise as it is, column-wise its Hadamard transform, as
/// `nvte_hadamard_transform_cast_fusion_columnwise` computes it. The output has either direction or
/// both.
///
/// Amax: each direction has its own; an amax of 0 or NaN means a global scale of 1.
///
/// Scales: compact, with r/16 and n/16 of them a line. With `with_gemm_swizzled_scales` they are in the
/// 128 x 4 tiles of products: then lines are rounded up to a multiple of 128, the scales of a line to a
/// multiple of 4, and buffers have that size or more.
///
/// Shapes, dtypes, config, errors: as `nvte_hadamard_transform_cast_fusion_columnwise`, except that
/// scales may be swizzled.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_quantize_with_hadamard_transform(
    input: NVTETensor,
    output: NVTETensor,
    hadamard_matrix: NVTETensor,
    quant_config: NVTEQuantizationConfig,
    stream: cudaStream_t,
) {
    guard("nvte_quantize_with_hadamard_transform", || {
        let (input, output) = (check::tensor("input", input)?, check::tensor("output", output)?);
        let (matrix, config) = options(hadamard_matrix, quant_config)?;
        cast_fusion::both(&input, &output, &matrix, &config, stream)
    });
}

/// Casts parts of a matrix as `nvte_hadamard_transform_cast_fusion_columnwise` casts a whole one: the
/// next `split_sections[i]` rows to `outputs[i]`, for at most 64 tensors. A tensor without rows is
/// skipped and may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_group_hadamard_transform_cast_fusion_columnwise(
    input: NVTETensor,
    outputs: *mut NVTETensor,
    hadamard_matrix: NVTETensor,
    split_sections: *const usize,
    num_tensors: usize,
    quant_config: NVTEQuantizationConfig,
    stream: cudaStream_t,
) {
    guard("nvte_group_hadamard_transform_cast_fusion_columnwise", || {
        let input = check::tensor("input", input)?;
        let (matrix, config) = options(hadamard_matrix, quant_config)?;
        // SAFETY: the caller says that both arrays have `num_tensors` entries.
        let parts = unsafe { parts(outputs, split_sections, num_tensors)? };
        cast_fusion::split_columnwise(&input, &parts, &matrix, &config, stream)
    });
}

/// Casts parts of a matrix as `nvte_quantize_with_hadamard_transform` casts a whole one: the next
/// `split_sections[i]` rows to `outputs[i]`, for at most 64 tensors. A tensor without rows is skipped
/// and may be null.
///
/// A direction is written if all outputs have its data. The workspace is not used.
///
/// Errors: as `nvte_quantize_with_hadamard_transform`; outputs that differ in
/// `with_gemm_swizzled_scales`; stochastic rounding without an RNG state.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_group_hadamard_transform_cast_fusion(
    input: NVTETensor,
    outputs: *mut NVTETensor,
    hadamard_matrix: NVTETensor,
    split_sections: *const usize,
    num_tensors: usize,
    quant_config: NVTEQuantizationConfig,
    quant_workspace: NVTETensor,
    stream: cudaStream_t,
) {
    let _ = quant_workspace;
    guard("nvte_group_hadamard_transform_cast_fusion", || {
        let input = check::tensor("input", input)?;
        let (matrix, config) = options(hadamard_matrix, quant_config)?;
        // SAFETY: the caller says that both arrays have `num_tensors` entries.
        let parts = unsafe { parts(outputs, split_sections, num_tensors)? };
        cast_fusion::split_both(&input, &parts, &matrix, &config, stream)
    });
}

/// Casts each member of a group as `nvte_quantize_with_hadamard_transform` casts a matrix.
///
/// Members: they have multiples of 128 rows by the `tensor_offsets` of the output, which are read on
/// the device, or are all of one shape. Rows past the last member are not touched. `amax` and
/// `columnwise_amax` have one float for each member.
///
/// Layout: row-wise data and scales are those of one matrix. The column-wise data of a member whose
/// first element is e begin at byte e / 2, and their scales at byte e / 16, each as those of a lone
/// matrix. Swizzled scales need multiples of 64 columns for row-wise data, of 128 for column-wise data.
///
/// Notes: the workspace is not used.
///
/// Errors: as `nvte_quantize_with_hadamard_transform`; members of different columns; stochastic
/// rounding without an RNG state.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_group_hadamard_transform_cast_fusion_graph_safe(
    input: NVTEGroupedTensor,
    output: NVTEGroupedTensor,
    hadamard_matrix: NVTETensor,
    quant_config: NVTEQuantizationConfig,
    quant_workspace: NVTETensor,
    stream: cudaStream_t,
) {
    let _ = quant_workspace;
    guard("nvte_group_hadamard_transform_cast_fusion_graph_safe", || {
        let input = check::grouped_tensor("input", input)?;
        let output = check::grouped_tensor("output", output)?;
        let (matrix, config) = options(hadamard_matrix, quant_config)?;
        cast_fusion::grouped(&input, &output, &matrix, &config, stream)
    });
}

/// Maxima of the parts of a matrix, by handles; nothing if there are none.
///
/// # Safety
/// Both arrays are null or have the given number of entries.
pub(crate) unsafe fn split_amax_of(
    input: NVTETensor,
    (outputs, splits, num_tensors): (*mut NVTETensor, *const usize, usize),
    maxima: Maxima,
    stream: cudaStream_t,
) -> Result<()> {
    if num_tensors == 0 {
        return Ok(());
    }
    let count = ("num_tensors", num_tensors);
    // SAFETY: the caller keeps to the `# Safety` section of this function.
    let (outputs, splits) = unsafe {
        let outputs = check::optional_tensors("outputs", outputs.cast_const(), count)?;
        (outputs, check::slice("split_sections", splits, count)?)
    };
    split_amax(&check::tensor("input", input)?, &outputs, splits, maxima, stream)
}

/// The Hadamard matrix and the config of a cast.
fn options(
    matrix: NVTETensor,
    config: NVTEQuantizationConfig,
) -> Result<(Tensor, QuantizationConfig)> {
    let config = QuantizationConfig::of_handle("quant_config", config)?;
    Ok((check::tensor("hadamard_matrix", matrix)?, config))
}
