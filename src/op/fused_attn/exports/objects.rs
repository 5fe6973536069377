//! Configs and parameters of attention: attributes behind a number, each of its own size.
#![allow(unsafe_code)]

use crate::error::{Error, Result};
use crate::handle::{Kind, Slab};
use std::ffi::c_void;
use std::mem::MaybeUninit;

/// Size and default of an attribute.
type Attribute = (usize, u64);

const FLAG: Attribute = (1, 0);
const TRUE: Attribute = (1, 1);
const NUMBER: Attribute = (8, 0);
const HANDLE: Attribute = (8, 0);
/// A window size of -1, which is none.
const UNBOUNDED: Attribute = (8, u64::MAX);
const ZERO: Attribute = (4, 0);
const ONE: Attribute = (4, 1f32.to_bits() as u64);
const BF16: Attribute = (4, 6);
/// `NVTE_QKV_Layout_NOT_SET`, `NVTE_QKV_Format_NOT_SET`.
const NO_LAYOUT: Attribute = (4, 26);
const NO_FORMAT: Attribute = (4, 8);

#[rustfmt::skip]
const CONFIG: [Attribute; 42] = [
    TRUE, FLAG, FLAG, FLAG, // training, deterministic, CUDA graph, largest logit
    ZERO, ZERO, UNBOUNDED, UNBOUNDED, TRUE, ZERO, // mask, bias, window, alignment, softmax
    ZERO, ZERO, ONE, // scaling mode, dropout, scale
    BF16, BF16, BF16, BF16, // dtypes
    NO_LAYOUT, NO_FORMAT, NO_FORMAT, NO_LAYOUT, NO_FORMAT, NO_FORMAT, // layouts and formats
    NUMBER, NUMBER, NUMBER, NUMBER, NUMBER, NUMBER, NUMBER, NUMBER, NUMBER, NUMBER, // sizes
    NUMBER, NUMBER, NUMBER, NUMBER, NUMBER, NUMBER, NUMBER, NUMBER, NUMBER,
];

#[rustfmt::skip]
const FWD_PARAMS: [Attribute; 33] = [
    HANDLE, HANDLE, HANDLE, HANDLE, HANDLE, HANDLE, HANDLE, HANDLE, HANDLE, HANDLE, // tensors
    HANDLE, HANDLE, HANDLE, HANDLE, HANDLE,
    TRUE, FLAG, FLAG, // training, CUDA graph, largest logit
    ZERO, ZERO, UNBOUNDED, UNBOUNDED, TRUE, ZERO, // mask, bias, window, alignment, softmax
    ZERO, ONE, // dropout, scale
    NO_LAYOUT, NO_FORMAT, NO_FORMAT,
    NUMBER, NUMBER, HANDLE, HANDLE, // longest sequences, workspace, stream
];

#[rustfmt::skip]
const BWD_PARAMS: [Attribute; 37] = [
    HANDLE, HANDLE, HANDLE, HANDLE, HANDLE, HANDLE, HANDLE, HANDLE, HANDLE, HANDLE, // tensors
    HANDLE, HANDLE, HANDLE, HANDLE, HANDLE, HANDLE, HANDLE,
    FLAG, FLAG, // deterministic, CUDA graph
    ZERO, ZERO, UNBOUNDED, UNBOUNDED, TRUE, ZERO, // mask, bias, window, alignment, softmax
    ZERO, ONE, // dropout, scale
    NO_LAYOUT, NO_FORMAT, NO_FORMAT, NO_LAYOUT, NO_FORMAT, NO_FORMAT,
    NUMBER, NUMBER, HANDLE, HANDLE, // longest sequences, workspace, stream
];

/// The attributes of an object, each in the low bytes of a word.
pub(super) type Values = Box<[u64]>;

/// Objects of one kind.
pub(super) struct Objects {
    pub(super) slab: Slab<Values>,
    table: &'static [Attribute],
    /// What a handle of this kind is called as an argument.
    name: &'static str,
}

pub(super) static CONFIGS: Objects =
    Objects { slab: Slab::new(Kind::FusedAttnConfig), table: &CONFIG, name: "config" };
pub(super) static FWD: Objects =
    Objects { slab: Slab::new(Kind::FusedAttnFwdParams), table: &FWD_PARAMS, name: "params" };
pub(super) static BWD: Objects =
    Objects { slab: Slab::new(Kind::FusedAttnBwdParams), table: &BWD_PARAMS, name: "params" };

impl Objects {
    pub(super) fn create(&'static self) -> Result<*mut c_void> {
        self.slab.insert(self.defaults())
    }

    pub(super) fn defaults(&self) -> Values {
        self.table.iter().map(|&(_, default)| default).collect()
    }

    pub(super) fn destroy(&self, handle: *mut c_void) -> Result<()> {
        self.slab.remove(self.name, handle)
    }

    /// Number and size of an attribute that C named.
    fn attribute<A: Copy>(&self, attr: MaybeUninit<A>) -> Result<(usize, usize)> {
        const { assert!(size_of::<A>() == size_of::<i32>()) };
        // SAFETY: a C caller initialises all 4 bytes, whatever their value.
        let number = unsafe { attr.as_ptr().cast::<i32>().read() };
        let index = usize::try_from(number).unwrap_or(usize::MAX);
        let expected = || format!("an attribute from 0 to {}", self.table.len() - 1);
        let entry = self.table.get(index);
        Ok((index, entry.ok_or_else(|| Error::argument("attr", expected(), number))?.0))
    }

    /// # Safety
    /// `buf` is null or has `size` bytes to write; `written` is null or valid.
    pub(super) unsafe fn get<A: Copy>(
        &self,
        handle: *mut c_void,
        attr: MaybeUninit<A>,
        buf: *mut c_void,
        size: usize,
        written: *mut usize,
    ) -> Result<()> {
        let (index, bytes) = self.attribute(attr)?;
        // Where only the size is wanted, a null handle stands for any object.
        if !handle.is_null() || !buf.is_null() {
            let value = self.slab.read(self.name, handle, |values| values[index])?.to_le_bytes();
            if !buf.is_null() {
                check_size(size, bytes)?;
                // SAFETY: the caller keeps to the `# Safety` section of this function.
                unsafe { buf.cast::<u8>().copy_from(value.as_ptr(), bytes) };
            }
        }
        if !written.is_null() {
            // SAFETY: the caller keeps to the `# Safety` section of this function.
            unsafe { written.write_unaligned(bytes) };
        }
        Ok(())
    }

    /// # Safety
    /// `buf` is null or has `size` bytes to read.
    pub(super) unsafe fn set<A: Copy>(
        &self,
        handle: *mut c_void,
        attr: MaybeUninit<A>,
        buf: *const c_void,
        size: usize,
    ) -> Result<()> {
        let (index, bytes) = self.attribute(attr)?;
        if buf.is_null() {
            return Err(Error::argument("buf", "a pointer to the value", "null"));
        }
        check_size(size, bytes)?;
        let mut value = [0; 8];
        // SAFETY: the caller keeps to the `# Safety` section of this function.
        unsafe { value.as_mut_ptr().copy_from(buf.cast(), bytes) };
        let value = match bytes {
            1 => u64::from(value[0] != 0),
            _ => u64::from_le_bytes(value),
        };
        self.slab.write(self.name, handle, |values| values[index] = value)
    }
}

fn check_size(size: usize, bytes: usize) -> Result<()> {
    if size < bytes {
        return Err(Error::argument("size_in_bytes", format!("at least {bytes}"), size));
    }
    Ok(())
}
