//! Reference of states of random generators (spec attention 13).

use crate::backend::args::{Outcome, SeedArgs};
use crate::types::cudaStream_t;

/// State of a random generator.
pub(crate) unsafe extern "C-unwind" fn seed(args: *const SeedArgs, _: cudaStream_t) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    unsafe {
        let a = &*args;
        let base = |at: *const i64| if at.is_null() { 0 } else { at.read() };
        a.state.write(base(a.seed_at).wrapping_add(a.seed));
        a.state.add(1).write(base(a.offset_at).wrapping_add(a.offset));
    }
    Outcome::OK
}
