//! `NVTE_CHECK=device`, a mode for debugging: sizes, offsets and indices that lie in device memory are read
//! back and refused where they lead out of the declared buffers. Without it kernels stay inside of the
//! buffers by themselves, but say nothing (docs/safety.md).
#![allow(unsafe_code)]

use crate::backend;
use crate::env::env;
use crate::error::{Error, Result};
use crate::types::cudaStream_t;
use crate::verbose::{self, Level};
use std::fmt::Display;

/// An integer as device memory holds it.
pub trait Integer: Copy + Default + Display + Into<i64> {}

impl Integer for i32 {}
impl Integer for i64 {}

/// The `count` values at a device address, after the work on the stream before. None, so that nothing is
/// checked, unless the mode is on; for null; and while the stream is captured, when nothing can be read.
///
/// # Safety
/// `values` is null or covers `count` values in memory of the backend.
pub unsafe fn read<T: Integer>(
    name: impl Display,
    values: *const T,
    count: usize,
    stream: cudaStream_t,
) -> Result<Option<Vec<T>>> {
    if !env().check_device || values.is_null() || count == 0 {
        return Ok(None);
    }
    let mut host = vec![T::default(); count];
    let mut copied = false;
    let bytes = count * size_of::<T>();
    backend::call("read_back", |table| {
        let entry = table.read_back?;
        // SAFETY: the vector has as many bytes, and the caller vouches for the values.
        Some(unsafe { entry(host.as_mut_ptr().cast(), values.cast(), bytes, &mut copied, stream) })
    })?;
    if !copied {
        let text = || format!("{name}: not read back, because the stream is being captured");
        verbose::line(Level::Check, "check", text);
    }
    Ok(copied.then_some(host))
}

/// Refuses the first value that is not in `low..=high`: `name[3]: expected 0 to 7, got 9`.
pub fn in_range<T: Integer>(name: impl Display, values: &[T], low: i64, high: i64) -> Result<()> {
    let wrong = |&(_, value): &(usize, &T)| !(low..=high).contains(&(*value).into());
    match values.iter().enumerate().find(wrong) {
        None => Ok(()),
        Some((index, value)) => {
            Err(Error::argument(format!("{name}[{index}]"), format!("{low} to {high}"), value))
        }
    }
}

/// Refuses running sums such as `cu_seqlens` that fall, start below 0 or end above `high`.
pub fn ascending<T: Integer>(name: impl Display, values: &[T], high: i64) -> Result<()> {
    in_range(&name, values, 0, high)?;
    match values.windows(2).position(|pair| pair[0].into() > pair[1].into()) {
        None => Ok(()),
        Some(index) => {
            let name = format!("{name}[{}]", index + 1);
            let expected = format!("{} or more, the entry before", values[index]);
            Err(Error::argument(name, expected, values[index + 1]))
        }
    }
}
