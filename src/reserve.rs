//! The allocator of this library: that of the system, and a reserve for small requests that the system refuses. Rust
//! ends the process when a small vector, box or text gets no memory; with the reserve the call goes on, and either
//! ends well or is refused the memory of something larger, which is an error.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};

/// What the reserve holds. Until it is needed, these are pages that no memory stands behind.
const BYTES: usize = 1 << 22;
/// The largest request that the reserve serves: larger ones are asked for where a failure becomes an error.
const LARGEST: usize = 1 << 16;
const ALIGNMENT: usize = 64;

#[repr(align(64))]
struct Memory(UnsafeCell<[u8; BYTES]>);

pub(crate) struct Reserve {
    memory: Memory,
    /// How many blocks are lent, in the upper half, and how many bytes from the begin are used up. The last block is
    /// free again when it comes back, and all are when no block is lent: most of what a call allocates lives no
    /// longer than the call. A lock would not survive `fork()`.
    state: AtomicU64,
}

// SAFETY: a byte of the memory belongs to at most one block, and a block to whoever asked for it.
unsafe impl Sync for Reserve {}

impl Reserve {
    pub(crate) const fn new() -> Self {
        Self { memory: Memory(UnsafeCell::new([0; BYTES])), state: AtomicU64::new(0) }
    }

    fn holds(&self, block: *mut u8) -> bool {
        let first = self.memory.0.get() as usize;
        (first..first + BYTES).contains(&(block as usize))
    }

    /// A block, or null.
    fn take(&self, layout: Layout) -> *mut u8 {
        if layout.size() > LARGEST || layout.align() > ALIGNMENT {
            return null_mut();
        }
        let mut state = self.state.load(Ordering::Acquire);
        loop {
            let (lent, used) = (state >> 32, state as u32 as usize);
            let begin = used.next_multiple_of(layout.align());
            let end = begin + layout.size();
            if end > BYTES {
                return null_mut();
            }
            let next = (lent + 1) << 32 | end as u64;
            match self.exchange(state, next) {
                Ok(()) => return self.memory.0.get().cast::<u8>().wrapping_add(begin),
                Err(now) => state = now,
            }
        }
    }

    /// Takes back a block of so many bytes.
    fn give_back(&self, block: *mut u8, size: usize) {
        let begin = block as usize - self.memory.0.get() as usize;
        let mut state = self.state.load(Ordering::Acquire);
        loop {
            let (lent, used) = ((state >> 32) - 1, state as u32 as usize);
            let used = match used == begin + size {
                _ if lent == 0 => 0,
                true => begin,
                false => used,
            };
            match self.exchange(state, lent << 32 | used as u64) {
                Ok(()) => return,
                Err(now) => state = now,
            }
        }
    }

    fn exchange(&self, state: u64, next: u64) -> Result<(), u64> {
        self.state.compare_exchange_weak(state, next, Ordering::AcqRel, Ordering::Acquire).map(drop)
    }
}

// SAFETY: blocks are those of the system's allocator or of the reserve, and go back to where they are from.
unsafe impl GlobalAlloc for Reserve {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are those that the system's allocator asks for.
        let block = unsafe { System.alloc(layout) };
        if block.is_null() { self.take(layout) } else { block }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as in `alloc`.
        let block = unsafe { System.alloc_zeroed(layout) };
        if !block.is_null() {
            return block;
        }
        let block = self.take(layout);
        if !block.is_null() {
            // SAFETY: the block has this size. It may have been lent before.
            unsafe { block.write_bytes(0, layout.size()) };
        }
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if self.holds(block) {
            self.give_back(block, layout.size());
        } else {
            // SAFETY: the block is from the system's allocator.
            unsafe { System.dealloc(block, layout) };
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !self.holds(block) {
            // SAFETY: the block is from the system's allocator.
            let larger = unsafe { System.realloc(block, layout, size) };
            if !larger.is_null() {
                return larger;
            }
        }
        // SAFETY: the caller promises that the size does not overflow when it is rounded up to the alignment.
        let other = unsafe { self.alloc(Layout::from_size_align_unchecked(size, layout.align())) };
        if !other.is_null() {
            // SAFETY: both blocks are at least so long, and the old one is given up.
            unsafe {
                block.copy_to_nonoverlapping(other, layout.size().min(size));
                self.dealloc(block, layout);
            }
        }
        other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(size: usize, align: usize) -> Layout {
        Layout::from_size_align(size, align).unwrap()
    }

    #[test]
    fn blocks_are_aligned_and_apart_until_the_reserve_is_used_up() {
        static RESERVE: Reserve = Reserve::new();
        let reserve = &RESERVE;
        let first = reserve.take(layout(3, 1));
        let second = reserve.take(layout(8, 64));
        assert!(reserve.holds(first) && reserve.holds(second));
        assert_eq!(second as usize % 64, 0);
        assert_eq!(second as usize - first as usize, 64);
        assert!(reserve.take(layout(LARGEST + 1, 1)).is_null());
        assert!(reserve.take(layout(8, 128)).is_null());
        // What was lent last is free again at once.
        reserve.give_back(second, 8);
        assert_eq!(reserve.take(layout(8, 64)), second);
        let mut lent = Vec::new();
        loop {
            let block = reserve.take(layout(LARGEST, 1));
            if block.is_null() {
                break;
            }
            lent.push(block);
        }
        assert_eq!(lent.len(), BYTES / LARGEST - 1);
        // All of it is there again when no block is lent, in whatever order they come back.
        for block in lent {
            reserve.give_back(block, LARGEST);
        }
        reserve.give_back(first, 3);
        reserve.give_back(second, 8);
        assert_eq!(reserve.take(layout(LARGEST, 1)), first);
    }

    #[test]
    fn blocks_of_the_reserve_grow_and_shrink() {
        static RESERVE: Reserve = Reserve::new();
        let reserve = &RESERVE;
        let block = reserve.take(layout(4, 4));
        // SAFETY: the blocks have these sizes, and are given up once.
        unsafe {
            block.copy_from_nonoverlapping([1, 2, 3, 4].as_ptr(), 4);
            // What grows goes to the system's allocator, which has memory again.
            let larger = reserve.realloc(block, layout(4, 4), 100);
            assert!(!reserve.holds(larger));
            assert_eq!(std::slice::from_raw_parts(larger, 4), [1, 2, 3, 4]);
            let smaller = reserve.realloc(larger, layout(100, 4), 2);
            assert_eq!(std::slice::from_raw_parts(smaller, 2), [1, 2]);
            reserve.dealloc(smaller, layout(2, 4));
        }
        assert_eq!(reserve.state.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn threads_get_blocks_of_their_own() {
        static RESERVE: Reserve = Reserve::new();
        let reserve = &RESERVE;
        std::thread::scope(|scope| {
            for mark in 0..4u8 {
                scope.spawn(move || {
                    for _ in 0..2000 {
                        let block = reserve.take(layout(32, 8));
                        assert!(!block.is_null());
                        // SAFETY: the block has this size, and is this thread's alone.
                        unsafe {
                            block.write_bytes(mark, 32);
                            std::thread::yield_now();
                            assert_eq!(std::slice::from_raw_parts(block, 32), [mark; 32]);
                        }
                        reserve.give_back(block, 32);
                    }
                });
            }
        });
        assert_eq!(reserve.state.load(Ordering::Relaxed), 0);
    }
}
