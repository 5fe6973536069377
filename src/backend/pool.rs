//! The threads of the CPU backend, and loops that they share. Whoever has a loop for several threads
//! writes it with [`parallel`] or [`chunks_mut`]; nothing else knows which library makes the threads.
#![allow(unsafe_code)]

use crate::backend::memory::zeros;
use crate::env::{MOST_THREADS, env};
use crate::verbose::{self, Level};
use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::cell::UnsafeCell;
use std::num::NonZero;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Bytes of stack of each thread, whatever the process sets for its own.
const STACK: usize = 2 << 20;

/// Number of threads that the program asked for; 0 while the environment decides.
static ASKED: AtomicUsize = AtomicUsize::new(0);

/// What loops run on.
struct Built {
    /// The process whose threads these are. A forked child does not have the threads of its parent.
    process: u32,
    /// The value of [`ASKED`] that they were made for; None if none have been made.
    asked: Option<usize>,
    /// None if loops run on the thread that calls.
    pool: Option<Arc<ThreadPool>>,
}

/// A value behind a lock that survives `fork()`: the lock holds the id of the process that uses the
/// value, so that a child can take over a lock which a thread of its parent held.
struct Current {
    lock: AtomicU32,
    built: UnsafeCell<Built>,
}

// SAFETY: `with` gives the value to one thread at a time.
unsafe impl Sync for Current {}

static CURRENT: Current = Current {
    lock: AtomicU32::new(0),
    built: UnsafeCell::new(Built { process: 0, asked: None, pool: None }),
};

impl Current {
    fn with<R>(&self, body: impl FnOnce(&mut Built) -> R) -> R {
        struct Unlock<'a>(&'a AtomicU32);
        impl Drop for Unlock<'_> {
            fn drop(&mut self) {
                self.0.store(0, Ordering::Release);
            }
        }

        let process = std::process::id();
        let mut expected = 0;
        while let Err(holder) =
            self.lock.compare_exchange(expected, process, Ordering::Acquire, Ordering::Relaxed)
        {
            if holder == process {
                std::thread::yield_now();
                expected = 0;
            } else {
                expected = holder;
            }
        }
        let _unlock = Unlock(&self.lock);
        let built = self.built.get();
        // SAFETY: the lock is held. The value of another process is overwritten without being
        // dropped, since its threads do not exist here, and without being read if a thread of that
        // process held the lock and may have been writing it.
        unsafe {
            if expected != 0 || (*built).process != process {
                built.write(Built { process, asked: None, pool: None });
            }
            body(&mut *built)
        }
    }
}

/// Sets the number of threads; 0 leaves it to the environment.
pub(crate) fn set_threads(count: usize) {
    ASKED.store(count, Ordering::Relaxed);
}

/// Number of threads that loops run on.
pub(crate) fn threads() -> usize {
    current().map_or(1, |pool| pool.current_num_threads())
}

/// What loops run on, made at first use: None stands for the thread that calls.
fn current() -> Option<Arc<ThreadPool>> {
    let asked = ASKED.load(Ordering::Relaxed);
    let (pool, made) = CURRENT.with(|built| {
        if built.asked == Some(asked) {
            return (built.pool.clone(), None);
        }
        let wanted = match if asked == 0 { env().num_threads } else { asked } {
            0 => std::thread::available_parallelism().map_or(1, NonZero::get).min(MOST_THREADS),
            wanted => wanted,
        };
        let pool = build(wanted).map(Arc::new);
        let old = std::mem::replace(&mut built.pool, pool.clone());
        built.asked = Some(asked);
        (pool, Some((wanted, old)))
    });
    // Printing and ending threads may take long, so the lock is not held here.
    if let Some((wanted, _old)) = made {
        let made = pool.as_ref().map_or(1, |pool| pool.current_num_threads());
        if made < wanted {
            verbose::line(Level::Check, "threads", || {
                format!("{wanted} threads wanted, {made} used: the system refuses to create more")
            });
        }
    }
    pool
}

/// As many threads as can be created up to `wanted`; None for less than two, which would do no more
/// than the thread that calls.
fn build(mut wanted: usize) -> Option<ThreadPool> {
    while wanted > 1 {
        let mut created = Vec::new();
        let built = ThreadPoolBuilder::new()
            .num_threads(wanted)
            .spawn_handler(|thread| {
                let builder = std::thread::Builder::new().name("nvte".into()).stack_size(STACK);
                created.push(builder.spawn(|| thread.run())?);
                Ok(())
            })
            .build();
        if let Ok(pool) = built {
            return Some(pool);
        }
        // The threads that were created end now; while they exist they count towards the limit.
        wanted = created.len();
        for thread in created {
            let _ = thread.join();
        }
    }
    None
}

/// Runs a function that makes use of rayon's current pool, or of none if it is told so.
pub(crate) fn install<R: Send>(work: impl FnOnce(bool) -> R + Send) -> R {
    match current() {
        Some(pool) => pool.install(|| work(true)),
        None => work(false),
    }
}

/// The numbers from 0 to `count`, each of which is a task.
#[derive(Clone, Copy)]
pub(crate) struct Tasks {
    count: usize,
    least: usize,
}

/// A loop over the numbers from 0 to `count`.
pub(crate) fn parallel(count: usize) -> Tasks {
    Tasks { count, least: 1 }
}

impl Tasks {
    /// At least so many tasks go to a thread: sharing less takes longer than the work.
    pub(crate) fn with_min_len(self, least: usize) -> Self {
        Self { least: least.max(1), ..self }
    }

    /// The pool, or none if all tasks shall run on the thread that calls.
    fn pool(self) -> Option<Arc<ThreadPool>> {
        if self.count / 2 < self.least { None } else { current() }
    }

    pub(crate) fn for_each(self, work: impl Fn(usize) + Sync + Send) {
        self.for_each_init(|| (), |(), task| work(task));
    }

    /// As `for_each`, where each thread has scratch of its own.
    pub(crate) fn for_each_init<S>(
        self,
        scratch: impl Fn() -> S + Sync + Send,
        work: impl Fn(&mut S, usize) + Sync + Send,
    ) {
        self.max_init(scratch, |scratch, task| {
            work(scratch, task);
            0
        });
    }

    /// The largest result of all tasks, 0 without tasks.
    pub(crate) fn max_init<S>(
        self,
        scratch: impl Fn() -> S + Sync + Send,
        work: impl Fn(&mut S, usize) -> u32 + Sync + Send,
    ) -> u32 {
        match self.pool() {
            Some(pool) => pool.install(|| {
                let tasks = (0..self.count).into_par_iter().with_min_len(self.least);
                tasks.map_init(scratch, work).max().unwrap_or(0)
            }),
            None if self.count == 0 => 0,
            None => {
                let mut scratch = scratch();
                (0..self.count).map(|task| work(&mut scratch, task)).max().unwrap_or(0)
            }
        }
    }

    /// The results in the order of the tasks.
    pub(crate) fn map<T: Clone + Default + Send>(
        self,
        work: impl Fn(usize) -> T + Sync + Send,
    ) -> Vec<T> {
        let mut results = zeros(self.count);
        let each = chunks_mut(&mut results, 1).with_min_len(self.least);
        each.for_each(|(task, result)| result[0] = work(task));
        results
    }
}

/// Parts of a slice, each of which is a task.
pub(crate) struct Chunks<'a, T> {
    slice: &'a mut [T],
    size: usize,
    tasks: Tasks,
}

/// Parts of `size` elements; the last one may be shorter.
pub(crate) fn chunks_mut<T>(slice: &mut [T], size: usize) -> Chunks<'_, T> {
    let tasks = parallel(slice.len().div_ceil(size));
    Chunks { slice, size, tasks }
}

impl<T: Send> Chunks<'_, T> {
    /// As [`Tasks::with_min_len`].
    pub(crate) fn with_min_len(mut self, least: usize) -> Self {
        self.tasks = self.tasks.with_min_len(least);
        self
    }

    /// Calls `work` with the number of each part and the part.
    pub(crate) fn for_each(self, work: impl Fn((usize, &mut [T])) + Sync + Send) {
        self.max_init(
            || (),
            |(), part| {
                work(part);
                0
            },
        );
    }

    /// As `for_each`, where each thread has scratch of its own; the largest result, 0 of nothing.
    pub(crate) fn max_init<S>(
        self,
        scratch: impl Fn() -> S + Sync + Send,
        work: impl Fn(&mut S, (usize, &mut [T])) -> u32 + Sync + Send,
    ) -> u32 {
        struct Start<T>(*mut T);
        // SAFETY: the tasks use different parts of the slice, whose elements may be sent.
        unsafe impl<T: Send> Sync for Start<T> {}
        // SAFETY: an address may go to any thread; what is done there with it is the line above.
        unsafe impl<T: Send> Send for Start<T> {}
        impl<T> Start<T> {
            fn get(&self) -> *mut T {
                self.0
            }
        }

        let (len, size, start) = (self.slice.len(), self.size, Start(self.slice.as_mut_ptr()));
        self.tasks.max_init(scratch, |scratch, task| {
            let first = task * size;
            // SAFETY: the part lies in the slice, which is borrowed for as long as the tasks run,
            // and each part is that of one task.
            let part = unsafe {
                std::slice::from_raw_parts_mut(start.get().add(first), size.min(len - first))
            };
            work(scratch, (task, part))
        })
    }
}

/// Sorts in place, without keeping the order of equal keys.
pub(crate) fn sort_unstable_by_key<T: Send, K: Ord>(
    slice: &mut [T],
    key: impl Fn(&T) -> K + Sync + Send,
) {
    install(|shared| match shared {
        true => slice.par_sort_unstable_by_key(key),
        false => slice.sort_unstable_by_key(key),
    });
}

/// Parts of `numel` elements for parallel work: their number, and the range of each.
pub(crate) fn chunks(numel: usize) -> (usize, impl Fn(usize) -> Range<usize> + Sync) {
    const CHUNK: usize = 1 << 15;
    (numel.div_ceil(CHUNK), move |i| i * CHUNK..numel.min((i + 1) * CHUNK))
}
