//! C functions of recipe.h: amax, scale from amax, delayed scaling, casts of parts of a matrix, and
//! scales of NVFP4 tensors.
#![allow(unsafe_code, non_snake_case, clippy::missing_safety_doc, clippy::too_many_arguments)]

use super::*;
use crate::check::{grouped_tensor, rowwise, rowwise_or_unset, tensor, truth};
use crate::error::guard;
use crate::op::transformer_engine::CONFIGS;
use crate::tensor::from_c;
use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;

/// Computes the largest magnitude of a tensor: `output.amax = max|input|`, NaN ignored, 0 for an empty
/// input. It is set, not raised.
///
/// Dtypes: Float32, Float16 or BFloat16; `amax` is one Float32. If `output.amax` has no address,
/// `columnwise_amax` is written. The output needs no data.
///
/// Errors: other dtypes; no `amax`; null or misaligned pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_compute_amax(
    input: NVTETensor,
    output: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_compute_amax", || {
        let (input, output) = (tensor("input", input)?, tensor("output", output)?);
        compute_amax(&input, &output, &QuantizationConfig::DEFAULT, stream)
    });
}

/// Computes the largest magnitude of a tensor as `nvte_compute_amax` does; of the config (null:
/// defaults) the noop tensor is used.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_compute_amax_with_config(
    input: NVTETensor,
    output: NVTETensor,
    config: NVTEQuantizationConfig,
    stream: cudaStream_t,
) {
    guard("nvte_compute_amax_with_config", || {
        let config = QuantizationConfig::of_handle("config", config)?;
        compute_amax(&tensor("input", input)?, &tensor("output", output)?, &config, stream)
    });
}

/// Computes the scale of per-tensor current scaling:
/// `output.scale = fp8_max / max(output.amax, epsilon)`.
///
/// The scale is 1 if that amax is 0, Inf or NaN; an infinite quotient becomes the largest float. The
/// config (required) gives `epsilon`, rounding down to a power of two, and the noop tensor. `scale_inv`
/// is not written, because the cast does that.
///
/// Errors: data that are not FP8; an `amax` or `scale` that is not one Float32.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_compute_scale_from_amax(
    output: NVTETensor,
    config: NVTEQuantizationConfig,
    stream: cudaStream_t,
) {
    guard("nvte_compute_scale_from_amax", || {
        let output = tensor("output", output)?;
        let config = CONFIGS.get("config", config)?.resolve("config")?;
        compute_scale_from_amax(&output, &config, stream)
    });
}

/// Computes the largest magnitude of each member of a group: `output.amax[t] = max|x|` over member t of
/// the input, NaN ignored, 0 for an empty member. It is set, not raised.
///
/// Members: those of the output, any number. `first_dims`, `last_dims` and `tensor_offsets` are read on
/// the device. Gaps between members do not count, and the input may be larger.
///
/// Dtypes: input Float32, Float16 or BFloat16; `amax` Float32, one for each member. If `output.amax`
/// has no address, `columnwise_amax` is written. The output needs no data.
///
/// Config (null: defaults): the noop tensor.
///
/// Errors: other dtypes; different numbers of members; varying shapes without `tensor_offsets`; an
/// input that is smaller than the output's logical shape; null or misaligned pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_group_compute_amax_with_config(
    input: NVTEGroupedTensor,
    output: NVTEGroupedTensor,
    config: NVTEQuantizationConfig,
    stream: cudaStream_t,
) {
    guard("nvte_group_compute_amax_with_config", || {
        let config = QuantizationConfig::of_handle("config", config)?;
        let input = grouped_tensor("input", input)?;
        group_compute_amax(&input, &grouped_tensor("output", output)?, &config, stream)
    });
}

/// Computes the scales of the members of a grouped tensor, each as `nvte_compute_scale_from_amax` does,
/// and `scale_inv = 1 / scale`.
///
/// `amax` (without an address: `columnwise_amax`), `scale`, and one or both of `scale_inv` and
/// `columnwise_scale_inv` have one Float32 for each member. The config may be null.
///
/// Errors: data that are not FP8; fields that are missing or have another size.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_group_compute_scale_from_amax(
    output: NVTEGroupedTensor,
    config: NVTEQuantizationConfig,
    stream: cudaStream_t,
) {
    guard("nvte_group_compute_scale_from_amax", || {
        let config = QuantizationConfig::of_handle("config", config)?;
        group_compute_scale_from_amax(&grouped_tensor("output", output)?, &config, stream)
    });
}

/// Computes the largest magnitudes in the 128 x 128 blocks of a matrix `[h, w]`, of which only a part
/// is given.
///
/// What it computes: `amax[i * amax_stride_h + j * amax_stride_w] = max|x|` over the elements of `inp`
/// in block (i, j), NaN ignored, 0 for a block without any. Every block is set.
///
/// Shapes: `inp` may have any shape; its elements are those of the row-major matrix from `start_offset`
/// on, possibly none. `amax` reaches as far as the strides do, and they keep blocks apart. `block_len`
/// is 128.
///
/// Dtypes: `inp` Float32, Float16 or BFloat16; `amax` Float32.
///
/// Errors: other dtypes or block lengths; elements past the matrix; an `amax` that is too small or
/// overlaps `inp`; null or misaligned pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_fp8_block_scaling_compute_partial_amax(
    inp: NVTETensor,
    amax: NVTETensor,
    h: usize,
    w: usize,
    amax_stride_h: usize,
    amax_stride_w: usize,
    start_offset: usize,
    block_len: usize,
    stream: cudaStream_t,
) {
    guard("nvte_fp8_block_scaling_compute_partial_amax", || {
        let strides = (amax_stride_h, amax_stride_w);
        let (inp, amax) = (tensor("inp", inp)?, rowwise("amax", amax)?);
        partial::block_amax(&inp, &amax, (h, w), strides, start_offset, block_len, stream)
    });
}

/// Casts a part of a matrix `[h, w]` with a scale for each 128 x 128 block: `out = cast(inp * scale)`.
///
/// Shapes: `scale`, Float32, is what data are multiplied by, laid out as the maxima of
/// `nvte_fp8_block_scaling_compute_partial_amax`, whose other arguments these are. `out` has as many
/// elements as `inp`, those from `start_offset` on; nothing else of the matrix is written.
///
/// Dtypes: `inp` Float32, Float16 or BFloat16; `out` is written as `out_dtype`, Float8E4M3 or
/// Float8E5M2.
///
/// Errors: as `nvte_fp8_block_scaling_compute_partial_amax`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_fp8_block_scaling_partial_cast(
    inp: NVTETensor,
    out: NVTETensor,
    scale: NVTETensor,
    h: usize,
    w: usize,
    scale_stride_h: usize,
    scale_stride_w: usize,
    start_offset: usize,
    block_len: usize,
    out_dtype: MaybeUninit<NVTEDType>,
    stream: cudaStream_t,
) {
    guard("nvte_fp8_block_scaling_partial_cast", || {
        let out_dtype = from_c("out_dtype", out_dtype)?;
        let strides = (scale_stride_h, scale_stride_w);
        let inp = tensor("inp", inp)?;
        let (out, scale) = (rowwise("out", out)?, rowwise("scale", scale)?);
        let (shape, out) = ((h, w), (&out, out_dtype));
        partial::block_cast(&inp, out, &scale, shape, strides, start_offset, block_len, stream)
    });
}

/// Computes the largest magnitudes in the MXFP8 blocks of a matrix `[rows, cols]`, of which only a part
/// is given.
///
/// What it computes: `amax_rowwise[i][j]` is `max|x|` over row i and columns 32 j to 32 j + 31,
/// `amax_colwise[i][j]` over column j and rows 32 i to 32 i + 31. Only elements of `input` count, NaN
/// are ignored, and a block without any has 0. Rows and columns need not be multiples of 32.
///
/// Shapes: `input` may have any shape; its elements are those of the row-major matrix from
/// `start_offset` on, possibly none. `amax_rowwise` is `[rows, cols/32]`, `amax_colwise`
/// `[rows/32, cols]`, or more, in multiples of 128 along the undivided dimension and of 4 along the
/// other. Entries up to the next such multiple of a row become 0; rows beyond are not written. Either
/// may be null.
///
/// Dtypes: Float32, Float16 or BFloat16, all the same.
///
/// Errors: other dtypes or shapes; elements past the matrix; null or misaligned pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_mxfp8_scaling_compute_partial_amax(
    input: NVTETensor,
    amax_rowwise: NVTETensor,
    amax_colwise: NVTETensor,
    rows: c_int,
    cols: c_int,
    start_offset: usize,
    stream: cudaStream_t,
) {
    guard("nvte_mxfp8_scaling_compute_partial_amax", || {
        let input = tensor("input", input)?;
        let row = rowwise_or_unset("amax_rowwise", amax_rowwise)?;
        let column = rowwise_or_unset("amax_colwise", amax_colwise)?;
        partial::mxfp8_amax(&input, (&row, &column), (rows, cols), start_offset, stream)
    });
}

/// Casts a part of a matrix `[rows, cols]` to MXFP8 in one or both directions: `y = cast(x / 2^e)`,
/// with the code `e` of the block along the row, or along the column.
///
/// Shapes: each output has as many elements as `input`, those from `start_offset` on, not transposed.
/// The codes `scale_inv_rowwise` and `scale_inv_colwise` are laid out as the maxima of
/// `nvte_mxfp8_scaling_compute_partial_amax`. An output and its codes may both be null.
///
/// Dtypes: `input` Float32, Float16 or BFloat16; outputs Float8E4M3, Float8E5M2 or Byte (then
/// Float8E4M3); codes Float8E8M0 or Byte.
///
/// Errors: as `nvte_mxfp8_scaling_compute_partial_amax`; no output.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_mxfp8_scaling_partial_cast(
    input: NVTETensor,
    output_rowwise: NVTETensor,
    output_colwise: NVTETensor,
    scale_inv_rowwise: NVTETensor,
    scale_inv_colwise: NVTETensor,
    rows: c_int,
    cols: c_int,
    start_offset: usize,
    stream: cudaStream_t,
) {
    guard("nvte_mxfp8_scaling_partial_cast", || {
        let input = tensor("input", input)?;
        let row = rowwise_or_unset("output_rowwise", output_rowwise)?;
        let column = rowwise_or_unset("output_colwise", output_colwise)?;
        let row_scales = rowwise_or_unset("scale_inv_rowwise", scale_inv_rowwise)?;
        let column_scales = rowwise_or_unset("scale_inv_colwise", scale_inv_colwise)?;
        let (outputs, scales) = ((&row, &column), (&row_scales, &column_scales));
        partial::mxfp8_cast(&input, outputs, scales, (rows, cols), start_offset, stream)
    });
}

/// Computes the factor of a product of two NVFP4 tensors:
/// `alpha_out = ((alpha_in * amaxA) * amaxB) * (1 / (36 * maxA * maxB))`, with the `NVFP4E4M3Max` of
/// each tensor as max.
///
/// An amax is the tensor's `amax`, or its `columnwise_amax` without `use_rowwise_amax`; the first
/// element counts.
///
/// Dtypes: Float32. Errors: other dtypes; a missing amax or `alpha_out`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_nvfp4_compute_per_tensor_scale(
    inpA: NVTETensor,
    use_rowwise_amax_A: MaybeUninit<bool>,
    inpB: NVTETensor,
    use_rowwise_amax_B: MaybeUninit<bool>,
    alpha_in: f32,
    alpha_out: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_nvfp4_compute_per_tensor_scale", || {
        let (a, b) = (tensor("inpA", inpA)?, tensor("inpB", inpB)?);
        let (a, b) = ((&a, truth(use_rowwise_amax_A)), (&b, truth(use_rowwise_amax_B)));
        nvfp4::per_tensor_scale(a, b, alpha_in, &rowwise("alpha_out", alpha_out)?, stream)
    });
}

/// Computes the global scales of NVFP4 tensors:
/// `global_scale[i] = min(2688 / max(a, FLT_MIN), FLT_MAX)` with `a = global_amax[i]`, or 1 unless
/// `a > 0`.
///
/// Dtypes: Float32. Errors: other dtypes; a `global_scale` with fewer elements.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_nvfp4_compute_global_scale(
    global_amax: NVTETensor,
    global_scale: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_nvfp4_compute_global_scale", || {
        let amax = rowwise("global_amax", global_amax)?;
        nvfp4::global_scale(&amax, &rowwise("global_scale", global_scale)?, stream)
    });
}

/// Computes the scales of NVFP4 blocks, not yet rounded to Float8E4M3:
/// `scale[i] = min(block_amax[i] * (G * (1 / 6)), FLT_MAX)`, where G is the global scale of
/// `global_amax` (`nvte_nvfp4_compute_global_scale`).
///
/// Dtypes: Float32. Errors: other dtypes; a `global_amax` of more than one element; a `scale` with
/// fewer elements than `block_amax`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_nvfp4_compute_per_block_scale(
    block_amax: NVTETensor,
    scale: NVTETensor,
    global_amax: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_nvfp4_compute_per_block_scale", || {
        let block_amax = rowwise("block_amax", block_amax)?;
        let (scale, amax) = (rowwise("scale", scale)?, rowwise("global_amax", global_amax)?);
        nvfp4::per_block_scale(&block_amax, &scale, &amax, stream)
    });
}

/// Rounds the scales of square blocks to Float8E4M3 codes, and repeats them for each row of a block:
/// `output[r][c] = e4m3(input[r / block_len][c])`, 0 for rows of no block.
///
/// Shapes: input `[tile_rows, tile_cols]`, output `[rows_padded, tile_cols]`, or more elements. If a
/// size is 0, nothing is written.
///
/// Dtypes: Float32 to Byte. Errors: other dtypes; too few elements; a `block_len` of 0.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_nvfp4_expand_scale_to_fp8(
    input: NVTETensor,
    output: NVTETensor,
    tile_rows: usize,
    tile_cols: usize,
    rows_padded: usize,
    block_len: usize,
    stream: cudaStream_t,
) {
    let tiles = nvfp4::Tiles { tile_rows, tile_cols, rows_padded, block_len };
    guard("nvte_nvfp4_expand_scale_to_fp8", || {
        let input = rowwise("input", input)?;
        nvfp4::expand_scale(&input, &rowwise("output", output)?, tiles, stream)
    });
}

/// Computes the scales of NVFP4 blocks in one pass: `nvte_nvfp4_compute_per_block_scale` to
/// `per_block_scale`, `nvte_nvfp4_expand_scale_to_fp8` of that to `target_scale`, and
/// `target_amax = global_amax`.
///
/// Shapes, dtypes, errors: as these functions have them. If a size is 0, nothing at all is written.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_nvfp4_fused_scale(
    block_amax: NVTETensor,
    global_amax: NVTETensor,
    per_block_scale: NVTETensor,
    target_scale: NVTETensor,
    target_amax: NVTETensor,
    tile_rows: usize,
    tile_cols: usize,
    rows_padded: usize,
    block_len: usize,
    stream: cudaStream_t,
) {
    let tiles = nvfp4::Tiles { tile_rows, tile_cols, rows_padded, block_len };
    guard("nvte_nvfp4_fused_scale", || {
        let block_amax = rowwise("block_amax", block_amax)?;
        let amax = rowwise("global_amax", global_amax)?;
        let scale = rowwise("per_block_scale", per_block_scale)?;
        let target_scale = rowwise("target_scale", target_scale)?;
        let target = (&target_scale, &rowwise("target_amax", target_amax)?);
        nvfp4::fused_scale(&block_amax, &amax, &scale, target, tiles, stream)
    });
}

/// Computes the largest magnitudes in the 16 x 16 blocks of a matrix `[h, w]`, of which only a part is
/// given.
///
/// What it computes: `amax[i * amax_stride_h + j * amax_stride_w] = max|x|` over the elements of `inp`
/// in block (i, j), NaN ignored, 0 for a block without any. Every block is set.
///
/// Shapes: `inp` may have any shape; its elements are those of the row-major matrix from `start_offset`
/// on, possibly none. `amax` reaches as far as the strides do, and they keep blocks apart. `block_len`
/// is 16.
///
/// Dtypes: `inp` Float32, Float16 or BFloat16; `amax` Float32.
///
/// Errors: other dtypes or block lengths; elements past the matrix; null or misaligned pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_nvfp4_2d_compute_partial_amax(
    inp: NVTETensor,
    amax: NVTETensor,
    h: usize,
    w: usize,
    amax_stride_h: usize,
    amax_stride_w: usize,
    start_offset: usize,
    block_len: usize,
    stream: cudaStream_t,
) {
    guard("nvte_nvfp4_2d_compute_partial_amax", || {
        let strides = (amax_stride_h, amax_stride_w);
        let (inp, amax) = (tensor("inp", inp)?, rowwise("amax", amax)?);
        nvfp4::partial_amax(&inp, &amax, (h, w), strides, (start_offset, block_len), stream)
    });
}

/// Casts a part of a matrix `[h, w]` to Float4E2M1 with a scale for each 16 x 16 block.
///
/// What it computes: `code = e2m1(x * q)` with `q = min(1 / (s * (1 / g)), FLT_MAX)`, where `s` is the
/// block's scale rounded to Float8E4M3, and `g` is `global_scale`, or 1 unless that is positive. q is
/// FLT_MAX unless `s > 0`.
///
/// Shapes: `inp` and `scale` are laid out as the input and the maxima of
/// `nvte_nvfp4_2d_compute_partial_amax`. Element i of the matrix goes to byte
/// `i / 2 - start_offset / 2` of `out`, an even one to the low bits. The other half of the first and of
/// the last byte is kept if it does not belong to this part.
///
/// Dtypes: `inp` Float32, Float16 or BFloat16; `out` Byte; scales Float32.
///
/// Errors: as `nvte_nvfp4_2d_compute_partial_amax`; too few bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_nvfp4_2d_partial_cast(
    inp: NVTETensor,
    out: NVTETensor,
    scale: NVTETensor,
    global_scale: NVTETensor,
    h: usize,
    w: usize,
    scale_stride_h: usize,
    scale_stride_w: usize,
    start_offset: usize,
    block_len: usize,
    stream: cudaStream_t,
) {
    guard("nvte_nvfp4_2d_partial_cast", || {
        let strides = (scale_stride_h, scale_stride_w);
        let (inp, out) = (tensor("inp", inp)?, rowwise("out", out)?);
        let scale = rowwise("scale", scale)?;
        let (shape, part) = ((h, w), (start_offset, block_len));
        let scales = (&scale, &rowwise("global_scale", global_scale)?);
        nvfp4::partial_cast(&inp, &out, scales, shape, strides, part, stream)
    });
}

/// Moves an amax history on by one step and sets the scales of delayed scaling.
///
/// What it computes, for each column, with `last = history[0]`: row i takes row i + 1, the last row
/// takes `last`, and row 0 becomes 0. `amax` is the largest of the old column ("max", NaN ignored) or
/// `last` ("most_recent"). `scale = fp8_max * 2^-margin / amax` if `amax` is finite and positive,
/// otherwise it is unchanged; an infinite scale becomes the largest float.
///
/// Shapes: histories `[length, n]`, scales n elements. Outputs may be the inputs.
///
/// Dtypes: Float32; `fp8_dtype` Float8E4M3 or Float8E5M2.
///
/// Errors: other algorithms, dtypes or shapes; null pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_delayed_scaling_recipe_amax_and_scale_update(
    amax_history: NVTETensor,
    scale: NVTETensor,
    updated_amax_history: NVTETensor,
    updated_scale: NVTETensor,
    amax_compute_algo: *const c_char,
    fp8_dtype: MaybeUninit<NVTEDType>,
    margin: f32,
    stream: cudaStream_t,
) {
    guard("nvte_delayed_scaling_recipe_amax_and_scale_update", || {
        // SAFETY: the caller vouches for the string.
        let rule = unsafe { rule(amax_compute_algo, fp8_dtype, margin)? };
        let history = rowwise("amax_history", amax_history)?;
        let scale = rowwise("scale", scale)?;
        let new_history = rowwise("updated_amax_history", updated_amax_history)?;
        let new_scale = rowwise("updated_scale", updated_scale)?;
        delayed_scaling([&history, &scale], [&new_history, &new_scale], &rule, stream)
    });
}

/// Moves the amax histories of many tensors on and sets their scales, in place, after their amax values
/// were reduced over ranks.
///
/// What it computes: as `nvte_delayed_scaling_recipe_amax_and_scale_update` for each tensor, with
/// `last` taken from the concatenated `amax_reduction_buffer` where that is not 0 (a null handle or no
/// address: no buffer). A column whose `last` is 0 was not used: its history stays, and with "max" its
/// scale.
///
/// Shapes: histories `[length, n_k]` with one length, scales n_k elements, the buffer the sum of all
/// n_k.
///
/// Notes: this is the C form of `nvte_delayed_scaling_recipe_amax_and_scale_update_after_reduction`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_delayed_scaling_recipe_amax_and_scale_update_after_reduction(
    amax_reduction_buffer: NVTETensor,
    amax_histories: *const NVTETensor,
    scales: *const NVTETensor,
    num_tensors: usize,
    amax_compute_algo: *const c_char,
    fp8_dtype: MaybeUninit<NVTEDType>,
    margin: f32,
    stream: cudaStream_t,
) {
    guard("nvtex_delayed_scaling_recipe_amax_and_scale_update_after_reduction", || {
        let count = ("num_tensors", num_tensors);
        // SAFETY: the caller vouches for the string and the arrays.
        unsafe {
            let histories = check::slice("amax_histories", amax_histories, count)?;
            let scales = check::slice("scales", scales, count)?;
            let rule = rule(amax_compute_algo, fp8_dtype, margin)?;
            update(amax_reduction_buffer, histories, scales, &rule, stream)
        }
    });
}

/// What the arguments of an update of delayed scaling say.
///
/// # Safety
/// `algo` is null or a C string.
unsafe fn rule(
    algo: *const c_char,
    fp8_dtype: MaybeUninit<NVTEDType>,
    margin: f32,
) -> Result<Rule> {
    if algo.is_null() {
        return Err(Error::argument("amax_compute_algo", "\"max\" or \"most_recent\"", "null"));
    }
    // SAFETY: the caller vouches for the string.
    let algo = match unsafe { CStr::from_ptr(algo) }.to_bytes() {
        b"max" => AmaxAlgo::NVTEX_AMAX_ALGO_MAX,
        b"most_recent" => AmaxAlgo::NVTEX_AMAX_ALGO_MOST_RECENT,
        other => {
            let got = format!("{:?}", String::from_utf8_lossy(other));
            let expected = "\"max\" or \"most_recent\"";
            return Err(Error::argument("amax_compute_algo", expected, got));
        }
    };
    let fp8_dtype = from_c("fp8_dtype", fp8_dtype)?;
    check::fp8("fp8_dtype", fp8_dtype)?;
    Ok(Rule { algo, scaled_max: fp8_dtype.fp8_max() * (-margin).exp2() })
}

/// An update in place of the tensors of handles.
fn update(
    reduced: NVTETensor,
    histories: &[NVTETensor],
    scales: &[NVTETensor],
    rule: &Rule,
    stream: cudaStream_t,
) -> Result<()> {
    if histories.len() != scales.len() {
        let expected = format!("{} tensors, as many as amax_histories", histories.len());
        return Err(Error::argument("scales", expected, scales.len()));
    }
    let mut pairs = backend::memory::reserve("a list of tensors", histories.len())?;
    for (i, (&history, &scale)) in histories.iter().zip(scales).enumerate() {
        let history = rowwise(format_args!("amax_histories[{i}]"), history)?;
        pairs.push([history, rowwise(format_args!("scales[{i}]"), scale)?]);
    }
    let reduced = rowwise_or_unset("amax_reduction_buffer", reduced)?;
    delayed_scaling_after_reduction(&reduced, &pairs, rule, stream)
}

/// `std::vector<NVTETensor>` of libstdc++ and libc++, which C++ passes by the address of a
/// temporary.
#[repr(C)]
pub struct StdVector {
    begin: *const NVTETensor,
    end: *const NVTETensor,
    capacity: *const NVTETensor,
}

impl StdVector {
    /// # Safety
    /// The vector is one of C++, which nobody changes meanwhile.
    unsafe fn handles(&self, name: &str) -> Result<&[NVTETensor]> {
        let bytes = (self.end as usize).wrapping_sub(self.begin as usize);
        let count = ("the vector's size", bytes / size_of::<NVTETensor>());
        // SAFETY: the vector has its elements between `begin` and `end`.
        unsafe { check::slice(name, self.begin, count) }
    }
}

/// The C++ form, declared in `nvte/cpp/recipe.h`.
/// cbindgen:ignore
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_delayed_scaling_recipe_amax_and_scale_update_after_reduction(
    amax_reduction_buffer: NVTETensor,
    amax_histories: *const StdVector,
    scales: *const StdVector,
    amax_compute_algo: *const c_char,
    fp8_dtype: MaybeUninit<NVTEDType>,
    margin: f32,
    stream: cudaStream_t,
) {
    guard("nvte_delayed_scaling_recipe_amax_and_scale_update_after_reduction", || {
        check::address("amax_histories", amax_histories)?;
        check::address("scales", scales)?;
        // SAFETY: the caller vouches for the string and passes two vectors.
        unsafe {
            let rule = rule(amax_compute_algo, fp8_dtype, margin)?;
            let histories = (*amax_histories).handles("amax_histories")?;
            let scales = (*scales).handles("scales")?;
            update(amax_reduction_buffer, histories, scales, &rule, stream)
        }
    });
}
