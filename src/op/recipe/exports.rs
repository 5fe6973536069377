//! C functions of recipe.h: amax, scale from amax, delayed scaling.
#![allow(unsafe_code, clippy::missing_safety_doc)]

use super::*;
use crate::error::guard;

/// `output.amax = max|input|`, NaN ignored; 0 for an empty input. Sets, does not accumulate.
///
/// Dtypes: Float32, Float16, BFloat16; `amax` is one Float32. If `output.amax` has no address,
/// `columnwise_amax` is written. The output needs no data.
/// Errors: other dtypes; no `amax`; null or misaligned pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_compute_amax(
    input: NVTETensor,
    output: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_compute_amax", || compute_amax(input, output, std::ptr::null_mut(), stream));
}

/// As `nvte_compute_amax`; of the config (null: defaults) the noop tensor is used.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_compute_amax_with_config(
    input: NVTETensor,
    output: NVTETensor,
    config: NVTEQuantizationConfig,
    stream: cudaStream_t,
) {
    guard("nvte_compute_amax_with_config", || compute_amax(input, output, config, stream));
}

/// Scale of per-tensor current scaling: `output.scale = fp8_max / max(output.amax, epsilon)`.
///
/// 1 if that amax is 0, Inf or NaN; an infinite quotient becomes the largest float. The config
/// (required) gives `epsilon`, rounding down to a power of two, and the noop tensor. `scale_inv` is
/// not written: the cast does that.
/// Errors: data not FP8; `amax` or `scale` not one Float32.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_compute_scale_from_amax(
    output: NVTETensor,
    config: NVTEQuantizationConfig,
    stream: cudaStream_t,
) {
    guard("nvte_compute_scale_from_amax", || compute_scale_from_amax(output, config, stream));
}

/// Delayed scaling: rolls an amax history by one row and sets the scales.
///
/// For each column, with `last = history[0]`: row i takes row i + 1, the last row takes `last`, row
/// 0 becomes 0. `amax` is the largest of the old column ("max", NaN ignored) or `last`
/// ("most_recent"); `scale = fp8_max * 2^-margin / amax` if `amax` is finite and positive, else
/// unchanged; an infinite scale becomes the largest float.
/// Shapes: histories `[length, n]`, scales n elements. Outputs may be the inputs.
/// Dtypes: Float32; `fp8_dtype` Float8E4M3 or Float8E5M2.
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
        let rule = unsafe { Rule::new(amax_compute_algo, fp8_dtype, margin)? };
        let (history, new) = (amax_history, updated_amax_history);
        delayed_scaling(history, scale, new, updated_scale, &rule, stream)
    });
}

/// Delayed scaling of many tensors in place, after their amax values were reduced over ranks. The C
/// form of `nvte_delayed_scaling_recipe_amax_and_scale_update_after_reduction`.
///
/// As the update of one tensor, with `last` from the concatenated `amax_reduction_buffer` (a null
/// handle or no address: none) where that is not 0. A column whose `last` is 0 was not used: its
/// history stays, and with "max" its scale.
/// Shapes: histories `[length, n_k]` with one length, scales n_k elements, buffer the sum of n_k.
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
        check::array("amax_histories", amax_histories, ("num_tensors", num_tensors))?;
        check::array("scales", scales, ("num_tensors", num_tensors))?;
        // SAFETY: the caller vouches for the string and the arrays.
        let (rule, histories, scales) = unsafe {
            (
                Rule::new(amax_compute_algo, fp8_dtype, margin)?,
                handles(amax_histories, num_tensors),
                handles(scales, num_tensors),
            )
        };
        delayed_scaling_after_reduction(amax_reduction_buffer, histories, scales, &rule, stream)
    });
}

/// An array of handles; empty for length 0, whatever the address.
///
/// # Safety
/// `array` holds `length` entries.
unsafe fn handles<'a>(array: *const NVTETensor, length: usize) -> &'a [NVTETensor] {
    if length == 0 {
        return &[];
    }
    // SAFETY: the caller vouches for the array, which is aligned and not null.
    unsafe { std::slice::from_raw_parts(array, length) }
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
    fn len(&self) -> usize {
        (self.end as usize).wrapping_sub(self.begin as usize) / size_of::<NVTETensor>()
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
        let (rule, histories, scales) = unsafe {
            let rule = Rule::new(amax_compute_algo, fp8_dtype, margin)?;
            let (histories, scales) = (&*amax_histories, &*scales);
            (rule, handles(histories.begin, histories.len()), handles(scales.begin, scales.len()))
        };
        delayed_scaling_after_reduction(amax_reduction_buffer, histories, scales, &rule, stream)
    });
}
