//! C functions of transformer_engine.h: tensors, grouped tensors, quantization configs, utilities.
#![allow(unsafe_code, non_snake_case, clippy::missing_safety_doc)]

use super::*;
use crate::error::{Handle, guard};

/// Creates a tensor of a scaling mode, without buffers. Destroy it with `nvte_destroy_tensor`.
///
/// Errors: an unknown mode (the result is then null).
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_create_tensor(
    scaling_mode: MaybeUninit<NVTEScalingMode>,
) -> NVTETensor {
    guard("nvte_create_tensor", || {
        Ok(Handle(TENSORS.insert(Tensor::new(from_c("scaling_mode", scaling_mode)?))?))
    })
    .0
}

/// Creates `N` tensors, all or none, and stores their handles in `tensors`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_create_tensors(
    scaling_mode: MaybeUninit<NVTEScalingMode>,
    tensors: *mut NVTETensor,
    N: usize,
) {
    guard("nvte_create_tensors", || {
        check::array("tensors", tensors.cast_const(), ("N", N))?;
        let handles = create_tensors(scaling_mode, N)?;
        for (i, handle) in handles.into_iter().enumerate() {
            // SAFETY: the caller's array has N entries.
            unsafe { tensors.add(i).write(handle) };
        }
        Ok(())
    });
}

/// Destroys a tensor. Null is ignored. The buffers belong to the caller and stay.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_destroy_tensor(tensor: NVTETensor) {
    guard("nvte_destroy_tensor", || destroy_tensor("tensor", tensor));
}

/// Destroys `N` tensors in order; nulls are ignored. It stops at the first wrong handle.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_destroy_tensors(tensors: *mut NVTETensor, N: usize) {
    guard("nvte_destroy_tensors", || {
        // SAFETY: the caller's array has N entries.
        let handles = unsafe { check::slice("tensors", tensors.cast_const(), ("N", N))? };
        let destroy = |(i, &handle)| destroy_tensor(format_args!("tensors[{i}]"), handle);
        handles.iter().enumerate().try_for_each(destroy)
    });
}

/// Returns the address of the row-wise data, or null for a null handle.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_tensor_data(tensor: NVTETensor) -> *mut c_void {
    guard("nvte_tensor_data", || {
        Ok(Handle(check::tensor_or_empty("tensor", tensor)?.rowwise.ptr()))
    })
    .0
}

/// Returns the address of the column-wise data, or null for a null handle.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_tensor_columnwise_data(tensor: NVTETensor) -> *mut c_void {
    guard("nvte_tensor_columnwise_data", || {
        Ok(Handle(check::tensor_or_empty("tensor", tensor)?.colwise.ptr()))
    })
    .0
}

/// Makes a shape of `ndim` dimensions (at most 15), of zeros if `data` is null.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_make_shape(data: *const usize, ndim: usize) -> NVTEShape {
    // SAFETY: the caller vouches for the array.
    guard("nvte_make_shape", || unsafe { make_shape(data, ndim) })
}

/// Returns the logical shape: that of the row-wise data, otherwise the one that the column-wise data
/// stand for.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_tensor_shape(tensor: NVTETensor) -> NVTEShape {
    guard("nvte_tensor_shape", || Ok(check::tensor("tensor", tensor)?.shape("tensor")?.to_c()))
}

/// Returns the shape of the column-wise data as stored (transposed in most scaling modes).
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_tensor_columnwise_shape(tensor: NVTETensor) -> NVTEShape {
    guard("nvte_tensor_columnwise_shape", || {
        Ok(check::tensor("tensor", tensor)?.colwise.shape.to_c())
    })
}

/// Returns the number of dimensions of the logical shape.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_tensor_ndims(tensor: NVTETensor) -> usize {
    guard("nvte_tensor_ndims", || {
        Ok(check::tensor("tensor", tensor)?.shape("tensor")?.dims().len())
    })
}

/// Returns dimension `dim` of the logical shape.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_tensor_size(tensor: NVTETensor, dim: usize) -> usize {
    guard("nvte_tensor_size", || {
        let shape = check::tensor("tensor", tensor)?.shape("tensor")?;
        let expected = || Error::argument("dim", format!("less than {}", shape.dims().len()), dim);
        shape.dims().get(dim).copied().ok_or_else(expected)
    })
}

/// Returns the bytes of the data of the logical shape, or 0 for a null handle.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_tensor_size_bytes(tensor: NVTETensor) -> usize {
    guard("nvte_tensor_size_bytes", || {
        let tensor = check::tensor_or_empty("tensor", tensor)?;
        Ok(bytes(tensor.shape("tensor")?.numel(), tensor.dtype()))
    })
}

/// Returns the number of elements of the logical shape.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_tensor_numel(tensor: NVTETensor) -> usize {
    guard("nvte_tensor_numel", || Ok(check::tensor("tensor", tensor)?.shape("tensor")?.numel()))
}

/// Returns the bytes of one element (4 for a null handle). Errors: Float4E2M1, which has half a byte.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_tensor_element_size(tensor: NVTETensor) -> usize {
    guard("nvte_tensor_element_size", || {
        let dtype = check::tensor_or_empty("tensor", tensor)?.dtype();
        if dtype == NVTEDType::kNVTEFloat4E2M1 {
            return Err(Error::argument("tensor.dtype", "a type of whole bytes", dtype));
        }
        Ok(dtype.bits() / 8)
    })
}

/// Returns the bits of one element (32 for a null handle).
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_tensor_element_size_bits(tensor: NVTETensor) -> usize {
    guard("nvte_tensor_element_size_bits", || {
        Ok(check::tensor_or_empty("tensor", tensor)?.dtype().bits())
    })
}

/// Returns the element type of the data (Float32 for a null handle).
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_tensor_type(tensor: NVTETensor) -> NVTEDType {
    guard("nvte_tensor_type", || Ok(check::tensor_or_empty("tensor", tensor)?.dtype()))
}

/// Returns the address of `amax`, or null for a null handle. Errors: `amax` is not Float32.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_tensor_amax(tensor: NVTETensor) -> *mut f32 {
    guard("nvte_tensor_amax", || {
        Ok(Handle(float_field("amax", &check::tensor_or_empty("tensor", tensor)?.amax)?))
    })
    .0
}

/// Returns the address of `scale`, or null for a null handle. Errors: `scale` is not Float32.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_tensor_scale(tensor: NVTETensor) -> *mut f32 {
    guard("nvte_tensor_scale", || {
        Ok(Handle(float_field("scale", &check::tensor_or_empty("tensor", tensor)?.scale)?))
    })
    .0
}

/// Returns the address of the row-wise `scale_inv`, whatever its type, or null for a null handle.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_tensor_scale_inv(tensor: NVTETensor) -> *mut f32 {
    guard("nvte_tensor_scale_inv", || {
        Ok(Handle(check::tensor_or_empty("tensor", tensor)?.rowwise_scale_inv.ptr().cast()))
    })
    .0
}

/// Returns the shape of the row-wise `scale_inv`, or `(0)` for a null handle.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_tensor_scale_inv_shape(tensor: NVTETensor) -> NVTEShape {
    guard("nvte_tensor_scale_inv_shape", || {
        Ok(check::tensor_or_empty("tensor", tensor)?.rowwise_scale_inv.shape.to_c())
    })
}

/// Sets the row-wise data and `amax` to zero bytes, on the stream. A null handle is ignored.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_zero_tensor(tensor: NVTETensor, stream: cudaStream_t) {
    guard("nvte_zero_tensor", || zero_tensor(&check::tensor_or_empty("tensor", tensor)?, stream));
}

/// Sets a buffer of the tensor that `tensor` points to. Deprecated: `nvte_set_tensor_param_v2`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_set_tensor_param(
    tensor: *mut NVTETensor,
    param_name: MaybeUninit<NVTETensorParam>,
    param: *const NVTEBasicTensor,
) {
    guard("nvte_set_tensor_param", || {
        let param_name = from_c("param_name", param_name)?;
        check::address("tensor", tensor)?;
        check::address("param", param)?;
        // SAFETY: the caller vouches for both pointers.
        let (handle, basic) = unsafe { (tensor.read(), param.read()) };
        let buffer = Buffer::from_c("param", &basic)?;
        TENSORS.update("tensor", handle, |tensor| {
            *buffer_of_v1(tensor, param_name)? = buffer;
            Ok(())
        })
    });
}

/// Returns a buffer of a tensor; an unset one for a null handle. Deprecated:
/// `nvte_get_tensor_param_v2`.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_get_tensor_param(
    tensor: NVTETensor,
    param_name: MaybeUninit<NVTETensorParam>,
) -> NVTEBasicTensor {
    guard("nvte_get_tensor_param", || {
        let param_name = from_c("param_name", param_name)?;
        let mut tensor = check::tensor_or_empty("tensor", tensor)?;
        Ok(buffer_of_v1(&mut tensor, param_name)?.to_c())
    })
}

/// Sets a parameter of a tensor from `size_in_bytes` bytes at `buf`: an `NVTEBasicTensor`, a `uint8_t`
/// flag or an `int`, as the parameter says.
///
/// Errors: an unknown parameter; too few bytes; an unknown dtype; more than 15 dimensions; a product of
/// dimensions past the address space.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_set_tensor_param_v2(
    tensor: NVTETensor,
    param: MaybeUninit<NVTETensorParam>,
    buf: *const c_void,
    size_in_bytes: usize,
) {
    // SAFETY: the caller vouches for the buffer.
    guard("nvte_set_tensor_param_v2", || unsafe {
        set_tensor_param(tensor, param, buf, size_in_bytes)
    });
}

/// Copies a parameter of a tensor to `buf`, and its size to `size_written` (null: nowhere). With a null
/// `buf` only the size is written. A null handle gives the values of an empty tensor. A call that fails
/// writes nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_get_tensor_param_v2(
    tensor: NVTETensor,
    param: MaybeUninit<NVTETensorParam>,
    buf: *mut c_void,
    size_in_bytes: usize,
    size_written: *mut usize,
) {
    // SAFETY: the caller vouches for the buffers.
    guard("nvte_get_tensor_param_v2", || unsafe {
        get_tensor_param(tensor, param, buf, size_in_bytes, size_written)
    });
}

/// Returns the scaling mode of a tensor; delayed tensor scaling for a null handle.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_tensor_scaling_mode(tensor: NVTETensor) -> NVTEScalingMode {
    guard("nvte_tensor_scaling_mode", || Ok(check::tensor_or_empty("tensor", tensor)?.mode))
}

/// Creates the 10 tensors of a pack, in delayed tensor scaling. `size` is left alone. Attention expects
/// it to be 0 at first, so begin with `NVTETensorPack pack = {0}`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_tensor_pack_create(pack: *mut NVTETensorPack) {
    guard("nvte_tensor_pack_create", || {
        check::address("pack", pack)?;
        let mode = MaybeUninit::new(NVTEScalingMode::NVTE_DELAYED_TENSOR_SCALING);
        let handles = create_tensors(mode, 10)?;
        for (i, handle) in handles.into_iter().enumerate() {
            // SAFETY: the caller vouches for the pack, which holds 10 handles.
            unsafe { (&raw mut (*pack).tensors[i]).write(handle) };
        }
        Ok(())
    });
}

/// Destroys the 10 tensors of a pack, whatever its `size`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_tensor_pack_destroy(pack: *mut NVTETensorPack) {
    guard("nvte_tensor_pack_destroy", || {
        check::address("pack", pack)?;
        (0..10).try_for_each(|i| {
            // SAFETY: the caller vouches for the pack, which holds 10 handles.
            let handle = unsafe { (&raw const (*pack).tensors[i]).read() };
            destroy_tensor(format_args!("pack.tensors[{i}]"), handle)
        })
    });
}

/// Creates a quantization config with defaults. Destroy it with `nvte_destroy_quantization_config`.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_create_quantization_config() -> NVTEQuantizationConfig {
    guard("nvte_create_quantization_config", || Ok(Handle(CONFIGS.insert(StoredConfig::DEFAULT)?)))
        .0
}

/// Copies an attribute of a config to `buf`, and its size to `size_written` (null: nowhere). With a
/// null `buf` only the size is written, and then `config` may be null. A call that fails writes
/// nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_get_quantization_config_attribute(
    config: NVTEQuantizationConfig,
    attr: MaybeUninit<NVTEQuantizationConfigAttribute>,
    buf: *mut c_void,
    size_in_bytes: usize,
    size_written: *mut usize,
) {
    // SAFETY: the caller vouches for the buffers.
    guard("nvte_get_quantization_config_attribute", || unsafe {
        get_config_attribute(config, attr, buf, size_in_bytes, size_written)
    });
}

/// Sets an attribute of a config from `size_in_bytes` bytes at `buf`. Tensors that are stored this way
/// must live until the operators that use the config have been called.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_set_quantization_config_attribute(
    config: NVTEQuantizationConfig,
    attr: MaybeUninit<NVTEQuantizationConfigAttribute>,
    buf: *const c_void,
    size_in_bytes: usize,
) {
    // SAFETY: the caller vouches for the buffer.
    guard("nvte_set_quantization_config_attribute", || unsafe {
        set_config_attribute(config, attr, buf, size_in_bytes)
    });
}

/// Destroys a quantization config. Null is ignored.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_destroy_quantization_config(config: NVTEQuantizationConfig) {
    guard("nvte_destroy_quantization_config", || {
        if config.is_null() { Ok(()) } else { CONFIGS.remove("config", config) }
    });
}

/// Returns 1 if FP8 products take operands in any layout on the current device, or 0 if each operand
/// must be contiguous along the contracted dimension (Hopper and the CPU backend).
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_is_non_tn_fp8_gemm_supported() -> i32 {
    guard("nvte_is_non_tn_fp8_gemm_supported", || Ok(i32::from(non_tn_fp8_gemm_supported()?)))
}

/// Sets `size_in_bytes` bytes to the low 8 bits of `value`, on the stream.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_memset(
    ptr: *mut c_void,
    value: i32,
    size_in_bytes: usize,
    stream: cudaStream_t,
) {
    guard("nvte_memset", || memset(ptr, value as u8, size_in_bytes, stream));
}

/// Computes the offsets of parts from their sizes: `output[0] = 0`,
/// `output[i + 1] = stride * (split_sizes[0] + ... + split_sizes[i])`.
///
/// Both are arrays on the device, with `num_splits` and `num_splits + 1` entries. Arithmetic wraps in
/// 64 bits.
///
/// Errors: null arrays; no splits; a `stride` that is not positive.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_splits_to_offsets(
    split_sizes: *const i64,
    output: *mut i64,
    num_splits: usize,
    stride: i64,
    stream: cudaStream_t,
) {
    guard("nvte_splits_to_offsets", || {
        splits_to_offsets(split_sizes, output, num_splits, stride, stream)
    });
}

/// Computes the offsets of matrices from their dimensions: `output[0] = 0`,
/// `output[i + 1] = first_dims[0] * last_dims[0] + ... + first_dims[i] * last_dims[i]`.
///
/// Shapes: `[n]`, `[n]`, `[n + 1]`, n at least 1. Dtypes: Int32 or Int64 each; Int32 outputs wrap.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_splits_to_offsets_2d(
    first_dims: NVTETensor,
    last_dims: NVTETensor,
    output: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_splits_to_offsets_2d", || {
        let first_dims = check::tensor("first_dims", first_dims)?;
        let last_dims = check::tensor("last_dims", last_dims)?;
        let output = check::tensor("output", output)?;
        splits_to_offsets_2d(&first_dims, &last_dims, &output, stream)
    });
}

/// Computes several arrays of offsets from the sizes of parts:
/// `outputs[j][i] = strides[j] * (split_sizes[0] + ... + split_sizes[i])`, preceded by a 0 where
/// `include_leading_zero[j]` is not 0. `strides` and `include_leading_zero` are host arrays.
///
/// Shapes: `[n]` to `[n]` or `[n + 1]`. Dtypes: Int32 or Int64 each; Int32 outputs wrap.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_splits_to_offsets_multi(
    split_sizes: NVTETensor,
    outputs: *mut NVTETensor,
    strides: *const i64,
    include_leading_zero: *const i32,
    num_outputs: usize,
    stream: cudaStream_t,
) {
    guard("nvte_splits_to_offsets_multi", || {
        if num_outputs == 0 {
            return Ok(());
        }
        let split_sizes = check::tensor("split_sizes", split_sizes)?;
        let count = ("num_outputs", num_outputs);
        // SAFETY: the caller vouches for the arrays.
        let (outputs, strides, zeros) = unsafe {
            (
                check::tensors("outputs", outputs, count)?,
                check::slice("strides", strides, count)?,
                check::slice("include_leading_zero", include_leading_zero, count)?,
            )
        };
        let outputs = outputs.into_iter().zip(strides).zip(zeros);
        let outputs = outputs.map(|((output, &stride), &zero)| (output, stride, zero != 0));
        splits_to_offsets_multi(&split_sizes, outputs, stream)
    });
}

/// Creates a grouped tensor of `num_tensors` members. Destroy it with `nvte_destroy_grouped_tensor`.
///
/// Errors: no members; a `logical_shape` that has not exactly 2 dimensions.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_create_grouped_tensor(
    scaling_mode: MaybeUninit<NVTEScalingMode>,
    num_tensors: usize,
    logical_shape: NVTEShape,
) -> NVTEGroupedTensor {
    guard("nvte_create_grouped_tensor", || {
        Ok(Handle(create_grouped_tensor(scaling_mode, num_tensors, &logical_shape)?))
    })
    .0
}

/// Destroys a grouped tensor. Null is ignored.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_destroy_grouped_tensor(tensor: NVTEGroupedTensor) {
    guard("nvte_destroy_grouped_tensor", || {
        if tensor.is_null() { Ok(()) } else { GROUPED.remove("tensor", tensor) }
    });
}

/// Sets a parameter of a grouped tensor; dimensions and offsets must be Int64.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_set_grouped_tensor_param(
    tensor: NVTEGroupedTensor,
    param: MaybeUninit<NVTEGroupedTensorParam>,
    buf: *const c_void,
    size_in_bytes: usize,
) {
    // SAFETY: the caller vouches for the buffer.
    guard("nvte_set_grouped_tensor_param", || unsafe {
        set_grouped_tensor_param(tensor, param, buf, size_in_bytes)
    });
}

/// Copies a parameter of a grouped tensor, as `nvte_get_tensor_param_v2` does.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_get_grouped_tensor_param(
    tensor: NVTEGroupedTensor,
    param: MaybeUninit<NVTEGroupedTensorParam>,
    buf: *mut c_void,
    size_in_bytes: usize,
    size_written: *mut usize,
) {
    // SAFETY: the caller vouches for the buffers.
    guard("nvte_get_grouped_tensor_param", || unsafe {
        get_grouped_tensor_param(tensor, param, buf, size_in_bytes, size_written)
    });
}

/// Returns the number of members; 0 for a null handle.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_grouped_tensor_num_tensors(tensor: NVTEGroupedTensor) -> usize {
    guard("nvte_grouped_tensor_num_tensors", || Ok(grouped_or_empty(tensor)?.num_tensors))
}

/// Returns the element type of the data; Float32 for a null handle.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_grouped_tensor_type(tensor: NVTEGroupedTensor) -> NVTEDType {
    guard("nvte_grouped_tensor_type", || Ok(grouped_or_empty(tensor)?.dtype()))
}

/// Returns the scaling mode; delayed tensor scaling for a null handle.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_grouped_tensor_scaling_mode(
    tensor: NVTEGroupedTensor,
) -> NVTEScalingMode {
    guard("nvte_grouped_tensor_scaling_mode", || Ok(grouped_or_empty(tensor)?.mode))
}

/// Returns the logical shape; `(0)` for a null handle.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_get_grouped_tensor_logical_shape(
    tensor: NVTEGroupedTensor,
) -> NVTEShape {
    guard("nvte_get_grouped_tensor_logical_shape", || {
        Ok(grouped_or_empty(tensor)?.logical_shape.to_c())
    })
}
