//! Structs of C that begin with their size, so that they can grow: callers that were compiled with another
//! version of a header give a shorter or a longer one.
#![allow(unsafe_code)]

use std::mem::{MaybeUninit, size_of};

/// A struct of C whose first field is `size_t struct_size`.
///
/// # Safety
/// The struct has the layout of C, begins with its size, and is valid if all its bytes are zero.
pub unsafe trait Grows: Copy {
    /// The bytes that the first version of the struct had.
    const LEAST: usize;
}

/// No struct of this library comes near; a larger size is that of a struct that was not filled.
const MOST: usize = 64 * 1024;

fn check_size<T: Grows>(name: &str, size: usize) -> Result<(), String> {
    if (T::LEAST..=MOST).contains(&size) {
        return Ok(());
    }
    let expected = format!("its size, at least {} and at most {MOST} bytes", T::LEAST);
    Err(format!("{name}.struct_size: expected {expected}, got {size}"))
}

/// Copies the part that both sides know; the rest is zero. Refused are structs shorter than the first version
/// and bytes other than 0 beyond what this library knows, because they ask for something.
///
/// # Safety
/// `given` is null or points to as many bytes as its first field says.
pub unsafe fn read<T: Grows>(name: &str, given: *const T) -> Result<T, String> {
    if given.is_null() {
        return Err(format!("{name}: expected a struct, got null"));
    }
    // SAFETY: the struct begins with its size; it may come from a language that does not align it.
    let size = unsafe { given.cast::<usize>().read_unaligned() };
    let own = size_of::<T>();
    check_size::<T>(name, size)?;
    // SAFETY: the caller vouches for `size` bytes.
    let bytes = unsafe { std::slice::from_raw_parts(given.cast::<u8>(), size) };
    if let Some(at) = bytes.iter().skip(own).position(|byte| *byte != 0) {
        let at = own + at;
        return Err(format!(
            "{name}: byte {at} of {size} is not 0, and this library knows {own} bytes: a newer library is needed, \
             or the struct was not set to 0 before it was filled"
        ));
    }
    let mut copy = MaybeUninit::<T>::zeroed();
    // SAFETY: both have that many bytes; all bytes zero is a value of the type.
    unsafe {
        let common = size.min(own);
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), copy.as_mut_ptr().cast::<u8>(), common);
        Ok(copy.assume_init())
    }
}

/// Fills as much of a caller's struct as both sides know, but for its size. A size of less than the first version is
/// refused.
///
/// # Safety
/// `to` is null or points to as many bytes as its first field says.
pub unsafe fn write<T: Grows>(name: &str, to: *mut T, value: &T) -> Result<(), String> {
    if to.is_null() {
        return Err(format!("{name}: expected a struct, got null"));
    }
    // SAFETY: the struct begins with its size; it may come from a language that does not align it.
    let size = unsafe { to.cast::<usize>().read_unaligned() };
    let (own, head) = (size_of::<T>(), size_of::<usize>());
    check_size::<T>(name, size)?;
    // SAFETY: the caller vouches for `size` bytes; a `T` has `own`.
    unsafe {
        let (from, to) = (std::ptr::from_ref(value).cast::<u8>(), to.cast::<u8>());
        to.add(head).write_bytes(0, size - head);
        std::ptr::copy_nonoverlapping(from.add(head), to.add(head), size.min(own) - head);
    }
    Ok(())
}

/// As `write`, for a struct whose size its caller says, and which need not hold anything yet.
///
/// # Safety
/// `to` is null or points to `size` bytes.
pub unsafe fn init<T: Grows>(name: &str, to: *mut T, size: usize, value: &T) -> Result<(), String> {
    if !to.is_null() {
        check_size::<T>(name, size)?;
        // SAFETY: the caller vouches for so many bytes, of which the first are the size.
        unsafe { to.cast::<usize>().write_unaligned(size) };
    }
    // SAFETY: the first field says the size now.
    unsafe { write(name, to, value) }
}

#[cfg(test)]
mod tests {
    use super::{Grows, read};

    #[repr(C)]
    #[derive(Clone, Copy, Debug)]
    struct Three {
        struct_size: usize,
        first: u32,
        second: u32,
        third: u64,
    }

    // SAFETY: the layout is that of C, and all fields are numbers.
    unsafe impl Grows for Three {
        const LEAST: usize = 16;
    }

    fn given(words: [u64; 5]) -> Result<Three, String> {
        // SAFETY: the tests give sizes of at most 40 bytes, or such that are refused unread.
        unsafe { read("config", words.as_ptr().cast::<Three>()) }
    }

    #[test]
    fn reads_the_part_that_both_know() {
        let whole = given([24, 1 | 2 << 32, 3, 9, 9]).expect("the same version");
        assert_eq!((whole.struct_size, whole.first, whole.second, whole.third), (24, 1, 2, 3));
        let older = given([16, 1 | 2 << 32, 9, 9, 9]).expect("an older version");
        assert_eq!((older.struct_size, older.second, older.third), (16, 2, 0));
        let newer = given([40, 1, 3, 0, 0]).expect("a newer version that asks for nothing new");
        assert_eq!((newer.first, newer.third), (1, 3));
    }

    #[test]
    fn refuses_what_it_does_not_know() {
        let error = |words| given(words).expect_err("an error");
        assert!(error([40, 1, 3, 0, 1 << 56]).contains("byte 39 of 40 is not 0"));
        assert!(error([25, 1, 3, 1, 0]).contains("byte 24 of 25 is not 0"));
        for size in [0, 15, 65537, u64::MAX] {
            let text = error([size, 1, 3, 0, 0]);
            assert!(text.contains("at least 16 and at most 65536"), "{text}");
        }
        // SAFETY: null is refused.
        let null = unsafe { read::<Three>("config", std::ptr::null()) };
        assert!(null.expect_err("an error").contains("got null"));
    }
}
