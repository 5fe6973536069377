//! Reference of memset and of offsets from splits (spec core 12, 13).
#![allow(unsafe_code)]

use crate::backend::args::{MemsetArgs, OffsetsArgs, OffsetsOutput, Outcome};
use crate::backend::buf::Buf;
use crate::types::{NVTEDType, cudaStream_t};
use std::ffi::c_void;

pub(crate) unsafe extern "C-unwind" fn memset(args: *const MemsetArgs, _: cudaStream_t) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    unsafe {
        let a = &*args;
        a.ptr.cast::<u8>().write_bytes(a.value, a.bytes);
    }
    Outcome::OK
}

/// `out[i] = stride * sum of first[j] * last[j], j <= i`
pub(crate) unsafe extern "C-unwind" fn offsets(
    args: *const OffsetsArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    unsafe {
        let a = &*args;
        let outputs = Buf::<OffsetsOutput>::new(a.outputs.cast(), a.num_outputs);
        let outputs = outputs.slice(0, a.num_outputs);
        let dtypes =
            [a.first_dtype, a.last_dtype].into_iter().chain(outputs.iter().map(|o| o.dtype));
        if dtypes.into_iter().any(|d| !matches!(d, NVTEDType::kNVTEInt32 | NVTEDType::kNVTEInt64)) {
            return Outcome::unimplemented("offsets: dtype");
        }
        for output in outputs {
            let mut at = 0;
            let mut push = |prefix: i64| {
                let value = prefix.wrapping_mul(output.stride);
                match output.dtype {
                    NVTEDType::kNVTEInt32 => output.ptr.cast::<i32>().add(at).write(value as i32),
                    _ => output.ptr.cast::<i64>().add(at).write(value),
                }
                at += 1;
            };
            if output.leading_zero {
                push(0);
            }
            let mut prefix = 0i64;
            for i in 0..a.length {
                let last = if a.last.is_null() { 1 } else { integer(a.last, a.last_dtype, i) };
                let product = integer(a.first, a.first_dtype, i).wrapping_mul(last);
                prefix = prefix.wrapping_add(product);
                push(prefix);
            }
        }
    }
    Outcome::OK
}

/// # Safety
/// `ptr` has more than `i` elements of type Int32 or Int64.
unsafe fn integer(ptr: *const c_void, dtype: NVTEDType, i: usize) -> i64 {
    // SAFETY: the caller keeps to the `# Safety` section of this function.
    unsafe {
        match dtype {
            NVTEDType::kNVTEInt32 => ptr.cast::<i32>().add(i).read().into(),
            _ => ptr.cast::<i64>().add(i).read(),
        }
    }
}
