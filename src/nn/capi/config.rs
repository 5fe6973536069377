//! Structs of C that begin with their size and may grow, and the other values that a program hands over.
#![allow(unsafe_code)]

use super::*;

/// A struct that begins with its size, and grows at its end.
pub(crate) trait Config: Copy {
    /// Where each field begins and ends.
    const FIELDS: &'static [(usize, usize)];

    /// Refuses a size that ends within a field: half of a pointer is none. Sizes of an earlier version end
    /// with one of its fields or with the padding behind; those of a later version are larger.
    fn check_size(name: &str, size: usize) -> Result<()> {
        let own = size_of::<Self>();
        let begins_or_ends = |&(begin, end): &(usize, usize)| size == begin || size == end;
        let earlier = size >= size_of::<usize>() && Self::FIELDS.iter().any(begins_or_ends);
        if earlier || (own..=own + MOST_GROWTH).contains(&size) {
            return Ok(());
        }
        let below = Self::FIELDS.iter().map(|&(_, end)| end).take_while(|&end| end < size).last();
        let below = below.filter(|_| size < own);
        let expected = match below {
            Some(end) => format!("{own} (of this version), or the end of a field such as {end}"),
            None => format!("{own} (of this version), as the init function sets it"),
        };
        Err(Error::argument(format!("{name}struct_size"), expected, size))
    }
}

/// How many bytes a later version of a struct may have more.
const MOST_GROWTH: usize = 1024;

/// The size of the field that a function returns.
pub(crate) const fn field_size<T, F>(_: fn(&T) -> &F) -> usize {
    size_of::<F>()
}

/// The fields of a struct of [`Config`], all of them.
macro_rules! config {
    ($type:ident { $($field:ident),* $(,)? }) => {
        impl Config for $type {
            const FIELDS: &'static [(usize, usize)] = {
                // Does not compile if a field is missing in the list.
                let _ = |value: &$type| {
                    let $type { $($field: _),* } = value;
                };
                &[$({
                    let begin = std::mem::offset_of!($type, $field);
                    (begin, begin + field_size(|value: &$type| &value.$field))
                }),*]
            };
        }
    };
}

pub(crate) use config;

/// Writes the part of a config that a program knows of, with its size.
///
/// # Safety
/// `config` is null or has `size` bytes.
pub(crate) unsafe fn write_config<T: Config>(config: *mut T, size: usize, value: &T) -> Result<()> {
    check::address("config", config)?;
    T::check_size("", size)?;
    let size = size.min(size_of::<T>());
    // SAFETY: the caller vouches for the bytes; the first field is the size.
    unsafe {
        std::ptr::copy_nonoverlapping(
            std::ptr::from_ref(value).cast::<u8>(),
            config.cast::<u8>(),
            size,
        );
        config.cast::<usize>().write(size);
    }
    Ok(())
}

/// Reads a config of this or an earlier version, whose missing fields have defaults, or of a later one
/// that uses nothing of what is new in it.
///
/// # Safety
/// `config` is null or has as many bytes as its first field says.
pub(crate) unsafe fn read_config<T: Config + Default>(name: &str, config: *const T) -> Result<T> {
    check::address(name, config)?;
    // SAFETY: the first field is the size.
    let size = unsafe { config.cast::<usize>().read() };
    T::check_size(&format!("{name}."), size)?;
    for at in size_of::<T>()..size {
        // SAFETY: the caller vouches for the bytes.
        let byte = unsafe { config.cast::<u8>().add(at).read() };
        if byte != 0 {
            let expected = format!("zeros behind byte {} (of this version)", size_of::<T>());
            let got = format!("{byte} at byte {at} of {size}");
            return Err(Error::argument(name, expected, got));
        }
    }
    let mut value = T::default();
    // SAFETY: the caller vouches for the bytes; every field takes any bits.
    unsafe {
        let to = std::ptr::from_mut(&mut value).cast::<u8>();
        std::ptr::copy_nonoverlapping(config.cast::<u8>(), to, size.min(size_of::<T>()));
    }
    Ok(value)
}

/// Fills as much of a struct of the caller as its first field says, which stays.
///
/// # Safety
/// `out` is null or has as many bytes as its first field says.
pub(super) unsafe fn fill<T: Config>(name: &str, out: *mut T, value: T) -> Result<()> {
    check::address(name, out)?;
    // SAFETY: the first field is the size.
    let size = unsafe { out.cast::<usize>().read() };
    T::check_size(&format!("{name}."), size)?;
    let size = size.min(size_of::<T>());
    // SAFETY: the caller vouches for the bytes; the first field is the size.
    unsafe {
        std::ptr::copy_nonoverlapping(
            std::ptr::from_ref(&value).cast::<u8>(),
            out.cast::<u8>(),
            size,
        );
        out.cast::<usize>().write(size);
    }
    Ok(())
}

/// The numbers of an array.
///
/// # Safety
/// The array has as many as it says.
pub(crate) unsafe fn array<T: Copy>(
    name: &str,
    values: *const T,
    (count_name, count): (&str, usize),
) -> Result<Vec<T>> {
    check::array(name, values, (count_name, count))?;
    let mut read = host_room(count)?;
    // SAFETY: the caller vouches for the array.
    read.extend((0..count).map(|i| unsafe { values.add(i).read() }));
    Ok(read)
}

/// A string of C; empty for null.
///
/// # Safety
/// `text` is null or a C string.
pub(crate) unsafe fn text(name: &str, text: *const c_char) -> Result<String> {
    if text.is_null() {
        return Ok(String::new());
    }
    // SAFETY: the caller vouches for the string.
    let text = unsafe { CStr::from_ptr(text) };
    match text.to_str() {
        Ok(text) if text.len() < 256 => Ok(text.to_owned()),
        _ => Err(Error::argument(name, "UTF-8 of less than 256 bytes", format!("{text:?}"))),
    }
}

/// Fields that only a later version knows are not ignored: they must be zeros.
pub(crate) fn zeros(name: &str, reserved: &[u64]) -> Result<()> {
    match reserved.iter().position(|&word| word != 0) {
        None => Ok(()),
        Some(i) => {
            let expected = "0, as the init function sets it";
            Err(Error::argument(format!("{name}.reserved[{i}]"), expected, reserved[i]))
        }
    }
}
