//! Reference of padding (spec moe_layout, section 11).
#![allow(unsafe_code)]

use crate::backend::args::{Outcome, PaddingArgs};
use crate::backend::buf::Buf;
use crate::types::cudaStream_t;

pub(crate) unsafe extern "C-unwind" fn padding(
    args: *const PaddingArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let a = unsafe { &*args };
    // SAFETY: the caller vouches for the arguments: there are so many tensors.
    for t in unsafe { std::slice::from_raw_parts(a.tensors, a.num_tensors) } {
        // SAFETY: the tensors have these bytes, and share none.
        let (input, output) = unsafe {
            (
                Buf::<u8>::new(t.input, t.copied).slice(0, t.copied),
                Buf::<u8>::new(t.output, t.copied + t.zeroed).slice_mut(0, t.copied + t.zeroed),
            )
        };
        let (copied, zeroed) = output.split_at_mut(t.copied);
        copied.copy_from_slice(input);
        zeroed.fill(0);
    }
    Outcome::OK
}
