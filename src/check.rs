//! Rules about one tensor. Rules about several are in the `plan()` of their operator.

use crate::error::{Error, Result};
use crate::tensor::{Buffer, Shape, TENSORS, Tensor, bytes};
use crate::types::{NVTEDType, NVTEScalingMode, NVTETensor};
use std::ffi::c_void;

/// The tensor of a handle that may not be null.
pub fn tensor(name: &str, handle: NVTETensor) -> Result<Tensor> {
    TENSORS.get(name, handle)
}

/// The tensor of a handle, an empty one for null.
pub fn tensor_or_empty(name: &str, handle: NVTETensor) -> Result<Tensor> {
    if handle.is_null() {
        return Ok(Tensor::new(NVTEScalingMode::NVTE_DELAYED_TENSOR_SCALING));
    }
    TENSORS.get(name, handle)
}

/// A dtype out of a list.
pub fn dtype(name: &str, got: NVTEDType, allowed: &[NVTEDType]) -> Result<()> {
    if allowed.contains(&got) {
        return Ok(());
    }
    let names: Vec<String> = allowed.iter().map(|dtype| dtype.to_string()).collect();
    Err(Error::argument(format!("{name}.dtype"), names.join(" or "), got))
}

pub fn high_precision(name: &str, got: NVTEDType) -> Result<()> {
    use NVTEDType::*;
    dtype(name, got, &[kNVTEFloat32, kNVTEFloat16, kNVTEBFloat16])
}

pub fn fp8(name: &str, got: NVTEDType) -> Result<()> {
    dtype(name, got, &[NVTEDType::kNVTEFloat8E4M3, NVTEDType::kNVTEFloat8E5M2])
}

pub fn shape(name: &str, got: &Shape, expected: &Shape) -> Result<()> {
    if got == expected {
        return Ok(());
    }
    Err(Error::argument(format!("{name}.shape"), expected, got))
}

/// The pointer of a buffer that an operator will touch: not null if there is an element, aligned to
/// the element.
pub fn pointer(name: &str, buffer: &Buffer) -> Result<*mut c_void> {
    raw_pointer(name, buffer.ptr(), buffer.shape.numel(), buffer.dtype)
}

/// As [`pointer`], for a bare pointer to `numel` elements.
pub fn raw_pointer(
    name: &str,
    ptr: *mut c_void,
    numel: usize,
    dtype: NVTEDType,
) -> Result<*mut c_void> {
    if ptr.is_null() && numel > 0 {
        let expected = format!("a pointer to {} bytes", bytes(numel, dtype));
        return Err(Error::argument(name, expected, "null"));
    }
    let alignment = (dtype.bits() / 8).max(1);
    if (ptr as usize) % alignment != 0 {
        let expected = format!("a pointer aligned to {alignment} bytes ({dtype})");
        return Err(Error::argument(name, expected, format!("{ptr:p}")));
    }
    Ok(ptr)
}

/// A field of one float that must be there.
pub fn scalar(name: &str, buffer: &Buffer) -> Result<*mut f32> {
    if !buffer.is_set() {
        return Err(Error::argument(name, "one Float32", "nothing"));
    }
    dtype(name, buffer.dtype, &[NVTEDType::kNVTEFloat32])?;
    if buffer.shape.numel() != 1 {
        return Err(Error::argument(format!("{name}.shape"), "one element", buffer.shape));
    }
    Ok(pointer(name, buffer)?.cast())
}

/// A field of one float; null if it is absent or was declared with a null pointer.
pub fn optional_scalar(name: &str, buffer: &Buffer) -> Result<*mut f32> {
    if buffer.ptr().is_null() { Ok(std::ptr::null_mut()) } else { scalar(name, buffer) }
}

/// The flag of a noop tensor; null if there is none.
pub fn noop(name: &str, handle: NVTETensor) -> Result<*const f32> {
    let tensor = tensor_or_empty(name, handle)?;
    optional_scalar(name, &tensor.rowwise).map(|flag| flag.cast_const())
}

/// A host array of `length` entries.
pub fn array<T>(name: &str, array: *const T, length: usize) -> Result<()> {
    if array.is_null() && length > 0 {
        return Err(Error::argument(name, format!("an array of {length}"), "null"));
    }
    if array as usize % align_of::<T>() != 0 {
        let expected = format!("an address aligned to {} bytes", align_of::<T>());
        return Err(Error::argument(name, expected, format!("{array:p}")));
    }
    Ok(())
}

/// Refuses the scaling modes that operators of per-tensor scaling cannot take.
pub fn per_tensor(name: &str, tensor: &Tensor) -> Result<()> {
    match tensor.mode {
        NVTEScalingMode::NVTE_DELAYED_TENSOR_SCALING => Ok(()),
        mode => {
            let expected = NVTEScalingMode::NVTE_DELAYED_TENSOR_SCALING;
            Err(Error::argument(format!("{name}.scaling_mode"), expected, mode))
        }
    }
}

/// A tensor of per-tensor scaling: FP8 data have their `scale_inv`, other data have no scales.
/// The data themselves may be absent.
pub fn scales(name: &str, tensor: &Tensor) -> Result<()> {
    per_tensor(name, tensor)?;
    let directions = [
        ("data", "scale_inv", &tensor.rowwise, &tensor.rowwise_scale_inv),
        ("columnwise_data", "columnwise_scale_inv", &tensor.colwise, &tensor.colwise_scale_inv),
    ];
    if tensor.dtype().is_fp8() {
        for (data_field, scale_field, data, scale_inv) in directions {
            if data.is_set() {
                if data.dtype != tensor.dtype() {
                    let field = format!("{name}.{data_field}.dtype");
                    return Err(Error::argument(field, tensor.dtype(), data.dtype));
                }
                scalar(&format!("{name}.{scale_field}"), scale_inv)?;
            }
        }
        return Ok(());
    }
    let fields = [
        ("scale", &tensor.scale),
        ("scale_inv", &tensor.rowwise_scale_inv),
        ("columnwise_scale_inv", &tensor.colwise_scale_inv),
    ];
    for (field, buffer) in fields {
        if buffer.is_set() {
            let expected = format!("nothing ({} data have no scales)", tensor.dtype());
            return Err(Error::argument(format!("{name}.{field}"), expected, buffer.shape));
        }
    }
    Ok(())
}

/// An input of per-tensor scaling with row-wise data.
pub fn input(name: &str, tensor: &Tensor) -> Result<()> {
    scales(name, tensor)?;
    if !tensor.rowwise.is_set() {
        let got = if tensor.colwise.is_set() { "column-wise data only" } else { "no data" };
        return Err(Error::argument(format!("{name}.data"), "row-wise data", got));
    }
    pointer(&format!("{name}.data"), &tensor.rowwise).map(drop)
}
