//! Memory of the caller as slices. A table entry trusts its arguments: this is where that trust
//! becomes Rust references, and nowhere else.
#![allow(unsafe_code)]

use std::ffi::c_void;

/// `len` elements at a pointer of the caller, which needs no more than the alignment of `T`.
pub(crate) struct Buf<T> {
    ptr: *mut T,
    len: usize,
}

impl<T> Clone for Buf<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Buf<T> {}

// SAFETY: an address and a length; what threads do with them is a promise to the methods below.
unsafe impl<T: Send + Sync> Send for Buf<T> {}
// SAFETY: shared, it is no more than the address and the length that it is alone.
unsafe impl<T: Send + Sync> Sync for Buf<T> {}

impl<T: Copy> Buf<T> {
    /// # Safety
    /// Unless `len` is 0, `ptr` is aligned and covers `len` elements while the buffer is in use.
    pub(crate) unsafe fn new(ptr: *const c_void, len: usize) -> Self {
        Self { ptr: ptr.cast_mut().cast(), len }
    }

    /// As `new`; null is no buffer.
    ///
    /// # Safety
    /// As `new`.
    pub(crate) unsafe fn optional(ptr: *const c_void, len: usize) -> Option<Self> {
        // SAFETY: the caller keeps to the `# Safety` section of this function.
        (!ptr.is_null()).then(|| unsafe { Self::new(ptr, len) })
    }

    pub(crate) fn len(self) -> usize {
        self.len
    }

    /// Asks for memory that is used soon; the range may pass the end.
    #[inline(always)]
    pub(crate) fn prefetch(self, start: usize, len: usize) {
        #[cfg(target_arch = "x86_64")]
        for at in (0..len * size_of::<T>()).step_by(64) {
            use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
            let address = self.ptr.wrapping_add(start).wrapping_byte_add(at);
            // SAFETY: every machine of this kind has this instruction, which takes any address.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(address.cast()) };
        }
        let _ = (start, len);
    }

    /// The address of a range, which lies in the buffer.
    pub(crate) fn start(self, start: usize, len: usize) -> *mut T {
        assert!(start <= self.len && len <= self.len - start, "range of a caller's buffer");
        if len * size_of::<T>() == 0 {
            std::ptr::dangling_mut()
        } else {
            self.ptr.wrapping_add(start)
        }
    }

    /// # Safety
    /// Nobody writes to the range while the slice lives.
    pub(crate) unsafe fn slice<'a>(self, start: usize, len: usize) -> &'a [T] {
        // SAFETY: `start` checked the range, `new` has the promise that it is memory.
        unsafe { std::slice::from_raw_parts(self.start(start, len), len) }
    }

    /// # Safety
    /// Nobody else uses the range while the slice lives.
    pub(crate) unsafe fn slice_mut<'a>(self, start: usize, len: usize) -> &'a mut [T] {
        // SAFETY: as in `slice`.
        unsafe { std::slice::from_raw_parts_mut(self.start(start, len), len) }
    }
}

/// One value, or none for null.
///
/// # Safety
/// `ptr` is null or points to a value.
pub(crate) unsafe fn load<T: Copy>(ptr: *const T) -> Option<T> {
    // SAFETY: the caller keeps to the `# Safety` section of this function.
    (!ptr.is_null()).then(|| unsafe { ptr.read() })
}

/// Writes one value, unless `ptr` is null.
///
/// # Safety
/// `ptr` is null or points to memory for a value.
pub(crate) unsafe fn store<T>(ptr: *mut T, value: T) {
    if !ptr.is_null() {
        // SAFETY: the caller keeps to the `# Safety` section of this function.
        unsafe { ptr.write(value) }
    }
}
