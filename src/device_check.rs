//! `NVTE_CHECK=device`, a mode for debugging: sizes, offsets and indices that lie in device memory are read
//! back and refused where they lead out of the declared buffers. Without it kernels stay inside of the
//! buffers by themselves, but say nothing (docs/safety.md).
#![allow(unsafe_code)]

use crate::backend;
use crate::backend::args::Group;
use crate::backend::memory::reserve;
use crate::env::env;
use crate::error::{Error, Result};
use crate::types::{NVTEScalingMode, cudaStream_t};
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
    let mut host = reserve(&format!("the values of {name}"), count)?;
    host.resize(count, T::default());
    let bytes = count * size_of::<T>();
    let (to, from) = (host.as_mut_ptr().cast(), values.cast());
    // SAFETY: the vector has as many bytes, and the caller vouches for the values.
    let copied = unsafe { backend::domain()?.read_back(to, from, bytes, stream) }?;
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

/// Refuses dimensions and offsets of a group of the logical shape `[rows, cols]` that lead out of its data,
/// or let members overlap, and scales of `mode` that lead out of theirs.
pub fn group(
    name: &str,
    group: &Group,
    (rows, cols): (usize, usize),
    mode: NVTEScalingMode,
    stream: cudaStream_t,
) -> Result<()> {
    if !env().check_device {
        return Ok(());
    }
    let (n, total) = (group.num_tensors, rows * cols);
    let read = |field: &str, values: *const i64| {
        // SAFETY: the arrays of a group have an entry for each member.
        unsafe { self::read(format_args!("{name}.{field}"), values, n, stream) }
    };
    let first = read("first_dims", group.first_dims)?;
    let last = read("last_dims", group.last_dims)?;
    let offsets = read("tensor_offsets", group.offsets)?;
    // Arrays are not read back while the stream is being captured.
    let unread = |values: *const i64, read: &Option<_>| !values.is_null() && read.is_none();
    if unread(group.first_dims, &first)
        || unread(group.last_dims, &last)
        || unread(group.offsets, &offsets)
    {
        return Ok(());
    }
    let both = first.is_some() && last.is_some();
    for (field, dims, most) in [("first_dims", &first, rows), ("last_dims", &last, cols)] {
        if let Some(dims) = dims {
            let most = if both { total } else { most };
            in_range(format_args!("{name}.{field}"), dims, 0, most as i64)?;
        }
    }
    let uniform = if first.is_none() && last.is_none() { rows / n } else { rows };
    let (mut sum, mut end, mut scales) = (0usize, 0usize, [0usize; 2]);
    for t in 0..n {
        let dim =
            |dims: &Option<Vec<i64>>, even| dims.as_ref().map_or(even, |dims| dims[t] as usize);
        let shape = (dim(&first, uniform), dim(&last, cols));
        let numel = shape.0.saturating_mul(shape.1);
        sum = sum.saturating_add(numel);
        if sum > total {
            let field = if first.is_some() { "first_dims" } else { "last_dims" };
            let expected = format!("members of {total} elements in all, [{rows}, {cols}]");
            let got = format!("{sum} in the members up to {t}");
            return Err(Error::argument(format!("{name}.{field}"), expected, got));
        }
        if let Some(offsets) = &offsets {
            let name = format_args!("{name}.tensor_offsets[{t}]");
            let begin = usize::try_from(offsets[t]).ok();
            let fits = |at: &usize| *at >= end && at.saturating_add(numel) <= group.elements;
            let Some(begin) = begin.filter(|at| numel == 0 || fits(at)) else {
                let expected = match end.saturating_add(numel) <= group.elements {
                    true => format!("{end} to {}", group.elements - numel),
                    false => format!("room for {numel} elements before {}", group.elements),
                };
                return Err(Error::argument(name, expected, offsets[t]));
            };
            if numel > 0 {
                end = begin + numel;
            }
        }
        for (colwise, room) in [(false, group.row_scales), (true, group.col_scales)] {
            let total = &mut scales[usize::from(colwise)];
            *total = total.saturating_add(mode.scaling().scale_entries(colwise, shape));
            if *total > room && mode != NVTEScalingMode::NVTE_DELAYED_TENSOR_SCALING {
                let field = if colwise { "columnwise_scale_inv" } else { "scale_inv" };
                let expected = format!("{total} or more elements for the members up to {t}");
                return Err(Error::argument(format!("{name}.{field}.shape"), expected, room));
            }
        }
    }
    Ok(())
}

/// Refuses offsets of `n` members of whole rows, and their end, that are not multiples of 128 rows, fall or
/// lead out of `[rows, cols]`.
pub fn row_offsets(
    name: &str,
    offsets: *const i64,
    n: usize,
    (rows, cols): (usize, usize),
    stream: cudaStream_t,
) -> Result<()> {
    // SAFETY: the array has an entry for each member and one for the end.
    let Some(offsets) = (unsafe { read(name, offsets, n + 1, stream)? }) else {
        return Ok(());
    };
    ascending(name, &offsets, (rows * cols) as i64)?;
    let unit = 128 * cols as i64;
    match offsets.iter().position(|offset| offset % unit != 0) {
        None => Ok(()),
        Some(index) => {
            let expected = format!("a multiple of {unit}, 128 rows");
            Err(Error::argument(format!("{name}[{index}]"), expected, offsets[index]))
        }
    }
}
