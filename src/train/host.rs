//! Values of tensors on the host.

use crate::error::{Error, Result};
use crate::nn::memory::{Lifetime, host_room, host_vec};
use crate::nn::ops::{self, plain};
use crate::nn::{Parameter, Run};
use crate::numeric::{BF16, Element, F16};
use crate::tensor::{Buffer, Shape};
use crate::types::NVTEDType::{self, *};
use crate::types::cudaStream_t;

/// The bytes of a tensor on the device. Waits for the stream.
pub fn bytes(buffer: &Buffer, stream: cudaStream_t) -> Result<Vec<u8>> {
    let mut bytes = host_vec(0_u8, buffer.bytes())?;
    if !bytes.is_empty() {
        ops::download(&mut bytes, buffer.ptr(), stream)?;
    }
    Ok(bytes)
}

/// Numbers of Float32, Float16 or BFloat16 from their bytes.
pub fn widened(bytes: &[u8], dtype: NVTEDType) -> Result<Vec<f32>> {
    let mut values = host_room(bytes.len() / 2)?;
    let halves = || bytes.as_chunks::<2>().0.iter().map(|&bytes| u16::from_le_bytes(bytes));
    match dtype {
        kNVTEFloat32 => {
            values.extend(bytes.as_chunks::<4>().0.iter().map(|&bytes| f32::from_le_bytes(bytes)));
        }
        kNVTEFloat16 => values.extend(halves().map(|bits| F16(bits).to_f32())),
        kNVTEBFloat16 => values.extend(halves().map(|bits| BF16(bits).to_f32())),
        other => {
            return Err(Error::argument("dtype", "Float32, Float16 or BFloat16", other));
        }
    }
    Ok(values)
}

/// Copies numbers to a tensor of high precision.
pub fn fill(run: &Run, values: &[f32], to: &Buffer) -> Result<()> {
    if to.dtype == kNVTEFloat32 {
        return ops::upload(to.ptr(), values, run.stream);
    }
    let block = run.block(size_of_val(values), Lifetime::Scratch)?;
    ops::upload(block.ptr(), values, run.stream)?;
    let from = block.buffer(0, kNVTEFloat32, &[values.len()]);
    ops::add(run, &plain(from), &plain(*to), false)
}

/// Sets the value of a parameter. `first` is that of [`Parameter::assign`].
pub fn assign(run: &Run, parameter: &Parameter, (values, first): (&[f32], bool)) -> Result<()> {
    let block = run.block(size_of_val(values), Lifetime::Scratch)?;
    ops::upload(block.ptr(), values, run.stream)?;
    let (rows, cols) = Shape::new(&parameter.dims).flatten();
    parameter.assign(run, &plain(block.buffer(0, kNVTEFloat32, &[rows, cols])), first)
}
