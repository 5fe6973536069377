//! Rules about one tensor. Rules about several are in the `plan()` of their operator. Names are only
//! formatted when a rule is broken: `format_args!` costs a good call nothing.

use crate::backend::args::Group;
use crate::backend::memory::reserve;
use crate::error::{Error, Result};
use crate::scaling;
use crate::tensor::{Buffer, GROUPED, GroupedTensor, Shape, TENSORS, Tensor, bytes};
use crate::types::{NVTEDType, NVTEGroupedTensor, NVTEScalingMode, NVTETensor};
use std::ffi::c_void;
use std::fmt::Display;
use std::mem::MaybeUninit;

/// The tensor of a handle that may not be null.
pub fn tensor(name: impl Display, handle: NVTETensor) -> Result<Tensor> {
    TENSORS.get(name, handle)
}

/// The tensor of a handle, an empty one for null.
pub fn tensor_or_empty(name: impl Display, handle: NVTETensor) -> Result<Tensor> {
    if handle.is_null() {
        return Ok(Tensor::new(NVTEScalingMode::NVTE_DELAYED_TENSOR_SCALING));
    }
    TENSORS.get(name, handle)
}

/// A dtype out of a list.
pub fn dtype(name: impl Display, got: NVTEDType, allowed: &[NVTEDType]) -> Result<()> {
    if allowed.contains(&got) {
        return Ok(());
    }
    let names: Vec<String> = allowed.iter().map(|dtype| dtype.to_string()).collect();
    Err(Error::argument(format!("{name}.dtype"), names.join(" or "), got))
}

pub const HIGH_PRECISION: &[NVTEDType] =
    &[NVTEDType::kNVTEFloat32, NVTEDType::kNVTEFloat16, NVTEDType::kNVTEBFloat16];

pub fn high_precision(name: impl Display, got: NVTEDType) -> Result<()> {
    dtype(name, got, HIGH_PRECISION)
}

pub fn fp8(name: impl Display, got: NVTEDType) -> Result<()> {
    dtype(name, got, &[NVTEDType::kNVTEFloat8E4M3, NVTEDType::kNVTEFloat8E5M2])
}

pub fn shape(name: impl Display, got: &Shape, expected: &Shape) -> Result<()> {
    if got == expected {
        return Ok(());
    }
    Err(Error::argument(format!("{name}.shape"), expected, got))
}

/// The pointer of a buffer that an operator will touch: not null if there is an element, aligned to
/// the element.
pub fn pointer(name: impl Display, buffer: &Buffer) -> Result<*mut c_void> {
    raw_pointer(name, buffer.ptr(), buffer.shape.numel(), buffer.dtype)
}

/// Address of a buffer with room for `least` elements of `dtype`. What counts are the bytes that it
/// declares, because callers declare other dtypes than those that are used.
pub fn elements(
    name: &str,
    buffer: &Buffer,
    least: usize,
    dtype: NVTEDType,
) -> Result<*mut c_void> {
    room(name, buffer, least, dtype)?;
    raw_pointer(format_args!("{name}.data"), buffer.ptr(), least, dtype)
}

/// Refuses a buffer that declares fewer bytes than `least` elements of `dtype` take.
pub fn room(name: impl Display, buffer: &Buffer, least: usize, dtype: NVTEDType) -> Result<()> {
    let needed = least.checked_mul(dtype.bits());
    if needed.is_some_and(|bits| bits <= buffer.bits()) {
        return Ok(());
    }
    let expected = format!("{least} or more elements of {dtype}");
    let got = format!("{} of {}", buffer.shape, buffer.dtype);
    Err(Error::argument(format!("{name}.shape"), expected, got))
}

/// Memory that an operator reads or writes. Null is no memory.
#[derive(Clone, Copy)]
pub struct Memory<'a> {
    name: &'a dyn Display,
    start: usize,
    bytes: usize,
}

impl<'a> Memory<'a> {
    pub fn new<T>(name: &'a dyn Display, ptr: *const T, bytes: usize) -> Self {
        let start = ptr as usize;
        Self { name, start, bytes: if start == 0 { 0 } else { bytes } }
    }

    /// All that a buffer declares.
    pub fn of(name: &'a dyn Display, buffer: &Buffer) -> Self {
        Self::new(name, buffer.ptr(), buffer.bytes())
    }

    fn end(&self) -> usize {
        self.start.saturating_add(self.bytes)
    }

    /// Refuses memory that shares bytes with another.
    fn apart_from(&self, other: &Self) -> Result<()> {
        let shared = self.start < other.end() && other.start < self.end();
        if !shared || self.bytes == 0 || other.bytes == 0 {
            return Ok(());
        }
        let range = |memory: &Self| format!("{:#x} to {:#x}", memory.start, memory.end());
        let expected = format!("memory apart from {} ({})", other.name, range(other));
        Err(Error::argument(self.name, expected, range(self)))
    }
}

/// Refuses outputs that share memory with an input or with each other: threads would read what others
/// write.
pub fn apart(inputs: &[Memory], outputs: &[Memory]) -> Result<()> {
    for (i, output) in outputs.iter().enumerate() {
        let mut others = inputs.iter().chain(&outputs[..i]);
        others.try_for_each(|other| output.apart_from(other))?;
    }
    Ok(())
}

/// As [`apart`], for one output that may also be exactly an input, because the thread that writes an
/// element has read it before.
pub fn apart_or_same(inputs: &[Memory], output: &Memory) -> Result<()> {
    let same = |input: &Memory| (input.start, input.bytes) == (output.start, output.bytes);
    let mut others = inputs.iter().filter(|input| !same(input));
    others.try_for_each(|input| output.apart_from(input))
}

/// As [`pointer`], for a bare pointer to `numel` elements.
pub fn raw_pointer(
    name: impl Display,
    ptr: *mut c_void,
    numel: usize,
    dtype: NVTEDType,
) -> Result<*mut c_void> {
    if ptr.is_null() && numel > 0 {
        let expected = format!("a pointer to {} bytes", bytes(numel, dtype));
        return Err(Error::argument(name, expected, "null"));
    }
    let alignment = (dtype.bits() / 8).max(1);
    if !(ptr as usize).is_multiple_of(alignment) {
        let expected = format!("a pointer aligned to {alignment} bytes ({dtype})");
        return Err(Error::argument(name, expected, format!("{ptr:p}")));
    }
    Ok(ptr)
}

/// A field of one float that must be there.
pub fn scalar(name: impl Display, buffer: &Buffer) -> Result<*mut f32> {
    if !buffer.is_set() {
        return Err(Error::argument(name, "one Float32", "nothing"));
    }
    dtype(&name, buffer.dtype, &[NVTEDType::kNVTEFloat32])?;
    if buffer.shape.numel() != 1 {
        return Err(Error::argument(format!("{name}.shape"), "one element", buffer.shape));
    }
    Ok(pointer(name, buffer)?.cast())
}

/// A field of one float; null if it is absent or was declared with a null pointer.
pub fn optional_scalar(name: impl Display, buffer: &Buffer) -> Result<*mut f32> {
    if buffer.ptr().is_null() { Ok(std::ptr::null_mut()) } else { scalar(name, buffer) }
}

/// The tensor of a handle, none for null.
pub fn optional_tensor(name: impl Display, handle: NVTETensor) -> Result<Option<Tensor>> {
    if handle.is_null() { Ok(None) } else { TENSORS.get(name, handle).map(Some) }
}

/// The flag of a noop tensor; null if there is none.
pub fn noop(name: impl Display, handle: NVTETensor) -> Result<*const f32> {
    let tensor = tensor_or_empty(&name, handle)?;
    optional_scalar(name, &tensor.rowwise).map(|flag| flag.cast_const())
}

/// A host array, and the argument that gives its length.
pub fn array<T>(
    name: impl Display,
    array: *const T,
    (length_name, length): (&str, usize),
) -> Result<()> {
    if length > isize::MAX as usize / size_of::<T>() {
        let expected = format!("at most {}", isize::MAX as usize / size_of::<T>());
        return Err(Error::argument(length_name, expected, length));
    }
    if array.is_null() && length > 0 {
        return Err(Error::argument(name, format!("an array of {length}"), "null"));
    }
    if !(array as usize).is_multiple_of(align_of::<T>()) {
        let expected = format!("an address aligned to {} bytes", align_of::<T>());
        return Err(Error::argument(name, expected, format!("{array:p}")));
    }
    Ok(())
}

/// The entries of a host array; the count comes with the name of its argument. An empty array may have any
/// address.
///
/// # Safety
/// The array is null or has that many entries, which nobody changes while the slice is in use.
#[allow(unsafe_code)]
pub unsafe fn slice<'a, T: Copy>(
    name: impl Display,
    array: *const T,
    count: (&str, usize),
) -> Result<&'a [T]> {
    self::array(name, array, count)?;
    match count.1 {
        0 => Ok(&[]),
        // SAFETY: the caller vouches for the entries; the address is neither null nor misaligned, and the size
        // fits an isize, as `array` has found.
        length => Ok(unsafe { std::slice::from_raw_parts(array, length) }),
    }
}

/// The tensors of a host array of handles, of which none may be null. Errors name the entry.
///
/// # Safety
/// As [`slice`].
#[allow(unsafe_code)]
pub unsafe fn tensors(
    name: &str,
    handles: *const NVTETensor,
    count: (&str, usize),
) -> Result<Vec<Tensor>> {
    // SAFETY: the caller's promise is that of `slice`.
    let handles = unsafe { slice(name, handles, count)? };
    let mut tensors = reserve("a list of tensors", handles.len())?;
    for (i, &handle) in handles.iter().enumerate() {
        tensors.push(tensor(format_args!("{name}[{i}]"), handle)?);
    }
    Ok(tensors)
}

/// As [`tensors`], where a null handle stands for a tensor that is absent.
///
/// # Safety
/// As [`slice`].
#[allow(unsafe_code)]
pub unsafe fn optional_tensors(
    name: &str,
    handles: *const NVTETensor,
    count: (&str, usize),
) -> Result<Vec<Option<Tensor>>> {
    // SAFETY: the caller's promise is that of `slice`.
    let handles = unsafe { slice(name, handles, count)? };
    let mut tensors = reserve("a list of tensors", handles.len())?;
    for (i, &handle) in handles.iter().enumerate() {
        let tensor = || tensor(format_args!("{name}[{i}]"), handle);
        tensors.push((!handle.is_null()).then(tensor).transpose()?);
    }
    Ok(tensors)
}

/// A `bool` of C, of which any byte may arrive: anything but 0 is true.
#[allow(unsafe_code)]
pub fn truth(value: MaybeUninit<bool>) -> bool {
    // SAFETY: a C caller initialises the byte, and a `u8` may have any value.
    unsafe { value.as_ptr().cast::<u8>().read() != 0 }
}

/// An address of one host value.
pub fn address<T>(name: &str, value: *const T) -> Result<()> {
    array(name, value, (name, 1))
}

/// Refuses the scaling modes that operators of per-tensor scaling cannot take.
pub fn per_tensor(name: impl Display, tensor: &Tensor) -> Result<()> {
    match tensor.mode {
        NVTEScalingMode::NVTE_DELAYED_TENSOR_SCALING => Ok(()),
        mode => {
            let expected = NVTEScalingMode::NVTE_DELAYED_TENSOR_SCALING;
            Err(Error::argument(format!("{name}.scaling_mode"), expected, mode))
        }
    }
}

/// Refuses scaling modes without FP8 elements.
pub fn fp8_scaling(name: impl Display, mode: NVTEScalingMode) -> Result<()> {
    let mut modes = scaling::MODES.iter().filter(|row| row.elements[0].is_fp8());
    if !modes.clone().any(|row| row.mode == mode) {
        let first = modes.next().map(|row| row.mode.to_string()).unwrap_or_default();
        let expected = modes.fold(first, |text, row| format!("{text} or {}", row.mode));
        let e = Error::argument(format!("{name}.scaling_mode"), expected, mode);
        return Err(Error::unsupported(e.message));
    }
    Ok(())
}

/// A tensor of per-tensor scaling: FP8 data have their `scale_inv`, other data have no scales.
/// The data themselves may be absent.
pub fn scales(name: impl Display, tensor: &Tensor) -> Result<()> {
    per_tensor(&name, tensor)?;
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
                scalar(format_args!("{name}.{scale_field}"), scale_inv)?;
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
pub fn input(name: impl Display, tensor: &Tensor) -> Result<()> {
    scales(&name, tensor)?;
    if !tensor.rowwise.is_set() {
        let got = if tensor.colwise.is_set() { "column-wise data only" } else { "no data" };
        return Err(Error::argument(format!("{name}.data"), "row-wise data", got));
    }
    pointer(format_args!("{name}.data"), &tensor.rowwise).map(drop)
}

/// The scale matrix of one direction of a `[rows, cols]` tensor in blocks (spec quantize, section 2):
/// its address, and the elements from one of its rows to the next.
pub fn block_scales(
    name: impl Display,
    buffer: &Buffer,
    (mode, colwise): (NVTEScalingMode, bool),
    (rows, cols): (usize, usize),
) -> Result<(*mut c_void, usize)> {
    let scaling = mode.scaling();
    let (first, second) = scaling.scale_dims(colwise, (rows, cols));
    let exact = scaling.has_padding();
    let expected = || {
        let more = if exact { "" } else { " or more" };
        format!("[{first}, {second}{more}] ({mode} of [{rows}, {cols}])")
    };
    let dtypes = scaling.scales;
    if !buffer.is_set() {
        return Err(Error::argument(name, format!("{} {}", dtypes[0], expected()), "nothing"));
    }
    dtype(&name, buffer.dtype, dtypes)?;
    match *buffer.shape.dims() {
        [rows, stride] if rows == first && (stride == second || stride > second && !exact) => {
            Ok((pointer(name, buffer)?, stride))
        }
        _ => Err(Error::argument(format!("{name}.shape"), expected(), buffer.shape)),
    }
}

/// The grouped tensor of a handle that may not be null.
pub fn grouped_tensor(name: impl Display, handle: NVTEGroupedTensor) -> Result<GroupedTensor> {
    GROUPED.get(name, handle)
}

/// Most members of a group. Their number is all that a group without elements need have, and loops go
/// over them.
const MOST_MEMBERS: usize = 1 << 20;

/// Refuses a group of too many members.
pub fn member_count(name: impl Display, tensor: &GroupedTensor) -> Result<()> {
    match tensor.num_tensors <= MOST_MEMBERS {
        true => Ok(()),
        false => {
            let expected = format!("at most {MOST_MEMBERS}");
            Err(Error::argument(format!("{name}.num_tensors"), expected, tensor.num_tensors))
        }
    }
}

/// Where the members of a grouped tensor are, and its logical rows and columns.
pub fn members(name: impl Display, tensor: &GroupedTensor) -> Result<(Group, (usize, usize))> {
    let n = tensor.num_tensors;
    let (group, shape) = any_members(&name, tensor)?;
    let varying = !group.first_dims.is_null() || !group.last_dims.is_null();
    if varying && group.offsets.is_null() {
        let expected = format!("Int64 [{}], because members differ in shape", n + 1);
        return Err(Error::argument(format!("{name}.tensor_offsets"), expected, "nothing"));
    }
    if !group.offsets.is_null() {
        let name = format_args!("{name}.tensor_offsets");
        self::shape(name, &tensor.offsets.shape, &Shape::new(&[n + 1]))?;
    }
    Ok((group, shape))
}

/// As [`members`], for operators that need no offsets, nor their last entry, which is the end. The group has
/// room for its logical shape in data; [`common_room`] and [`grouped_scales`] say more.
pub fn any_members(name: impl Display, tensor: &GroupedTensor) -> Result<(Group, (usize, usize))> {
    member_count(&name, tensor)?;
    let n = tensor.num_tensors;
    let shape = (tensor.logical_shape.dims()[0], tensor.logical_shape.dims()[1]);
    let array = |field: &str, buffer: &Buffer, with_end: bool| -> Result<*const i64> {
        if !buffer.is_set() {
            return Ok(std::ptr::null());
        }
        let name = format_args!("{name}.{field}");
        dtype(name, buffer.dtype, &[NVTEDType::kNVTEInt64])?;
        if !with_end || buffer.shape != Shape::new(&[n + 1]) {
            self::shape(name, &buffer.shape, &Shape::new(&[n]))?;
        }
        Ok(pointer(name, buffer)?.cast_const().cast())
    };
    let group = Group {
        num_tensors: n,
        first_dims: array("first_dims", &tensor.first_dims, false)?,
        last_dims: array("last_dims", &tensor.last_dims, false)?,
        offsets: array("tensor_offsets", &tensor.offsets, true)?,
        most_dim: match (tensor.first_dims.is_set(), tensor.last_dims.is_set()) {
            (true, true) => shape.0 * shape.1,
            (true, false) => shape.0,
            _ => shape.1,
        },
        elements: shape.0 * shape.1,
        row_scales: usize::MAX,
        col_scales: usize::MAX,
    };
    let varying = !group.first_dims.is_null() || !group.last_dims.is_null();
    if !varying && !shape.0.is_multiple_of(n) {
        let expected = format!("a multiple of the {n} tensors as first dimension");
        let name = format!("{name}.logical_shape");
        return Err(Error::argument(name, expected, tensor.logical_shape));
    }
    Ok((group, shape))
}

/// As [`per_tensor`].
pub fn grouped_per_tensor(name: impl Display, tensor: &GroupedTensor) -> Result<()> {
    self::per_tensor(name, &Tensor::new(tensor.mode))
}

/// Data of a grouped tensor of the logical shape `[rows, cols]` in one direction, of rank 1 or 2.
pub fn grouped_data(
    name: impl Display,
    buffer: &Buffer,
    (rows, cols): (usize, usize),
) -> Result<*mut c_void> {
    if !buffer.is_set() {
        return Err(Error::argument(name, format!("{} elements", rows * cols), "nothing"));
    }
    if buffer.shape.numel() < rows * cols {
        let expected = format!("{} or more elements", rows * cols);
        return Err(Error::argument(format!("{name}.shape"), expected, buffer.shape));
    }
    pointer(name, buffer)
}

/// Elements that all of these buffers of data have room for, with gaps between the members and after them.
pub fn common_room(buffers: &[&Buffer]) -> usize {
    buffers
        .iter()
        .filter(|buffer| buffer.is_set())
        .map(|buffer| buffer.shape.numel())
        .min()
        .unwrap_or(0)
}

/// Shape of a member of a group whose varying dimensions are `dim`.
fn member_of(group: &Group, (rows, cols): (usize, usize), dim: usize) -> (usize, usize) {
    match (group.first_dims.is_null(), group.last_dims.is_null()) {
        (true, true) => (rows / group.num_tensors, cols),
        (first, last) => (if first { rows } else { dim }, if last { cols } else { dim }),
    }
}

/// The scales of a grouped tensor in one direction: one float for each member, or the matrices of the
/// members in blocks. If members differ, these are as many as the members have, which may be less than the
/// logical shape has room for: only the device knows. What the host knows is that the smallest member
/// has room unless all are empty, and up to which size one has, which the group gets.
pub fn grouped_scales(
    name: impl Display,
    buffer: &Buffer,
    (mode, colwise): (NVTEScalingMode, bool),
    group: &mut Group,
    shape: (usize, usize),
) -> Result<*mut c_void> {
    let n = group.num_tensors;
    let dtypes = mode.scaling().scales;
    if !buffer.is_set() {
        return Err(Error::argument(name, format!("{} scales", dtypes[0]), "nothing"));
    }
    dtype(&name, buffer.dtype, dtypes)?;
    let per_tensor = mode.per_tensor();
    let uniform = group.first_dims.is_null() && group.last_dims.is_null();
    let entries = |dim| mode.scaling().scale_entries(colwise, member_of(group, shape, dim));
    let least = match uniform {
        _ if per_tensor => n,
        true => entries(0).saturating_mul(n),
        // If the group or its scales have no elements, all members may be empty.
        false if buffer.shape.numel() == 0 || shape.0 * shape.1 == 0 => 0,
        false => entries(1),
    };
    if buffer.shape.numel() < least {
        let expected = match uniform || per_tensor {
            true => format!("{least} or more elements ({n} members)"),
            false => format!("{least} or more elements (of the smallest member)"),
        };
        return Err(Error::argument(format!("{name}.shape"), expected, buffer.shape));
    }
    if !per_tensor {
        let room = buffer.shape.numel();
        if group.first_dims.is_null() != group.last_dims.is_null() && entries(group.most_dim) > room
        {
            // Bisection: `fits` always fits, `too_large` never does.
            let (mut fits, mut too_large) = (0, group.most_dim);
            while too_large - fits > 1 {
                let dim = fits.midpoint(too_large);
                *(if entries(dim) <= room { &mut fits } else { &mut too_large }) = dim;
            }
            group.most_dim = fits;
        }
        *(if colwise { &mut group.col_scales } else { &mut group.row_scales }) = room;
    }
    pointer(name, buffer)
}

/// The row-wise buffer of a tensor whose handle may not be null: all that operators without scales read.
pub fn rowwise(name: impl Display, handle: NVTETensor) -> Result<Buffer> {
    TENSORS.read(name, handle, |tensor| tensor.rowwise)
}

/// As [`rowwise`], unset for null.
pub fn rowwise_or_unset(name: impl Display, handle: NVTETensor) -> Result<Buffer> {
    if handle.is_null() { Ok(Buffer::UNSET) } else { rowwise(name, handle) }
}

/// The row-wise buffers of a host array of handles, of which none may be null. Errors name the entry.
///
/// # Safety
/// As [`slice`].
#[allow(unsafe_code)]
pub unsafe fn buffers(
    name: impl Display,
    handles: *const NVTETensor,
    count: (&str, usize),
) -> Result<Vec<Buffer>> {
    // SAFETY: the caller's promise is that of `slice`.
    let handles = unsafe { slice(&name, handles, count)? };
    let mut buffers = reserve("a list of tensors", handles.len())?;
    for (i, &handle) in handles.iter().enumerate() {
        buffers.push(rowwise(format_args!("{name}[{i}]"), handle)?);
    }
    Ok(buffers)
}
