//! What the library writes, one line an event: to stderr as `NVTE_VERBOSE` says, or to the program's function.

use crate::env::env;
use crate::stderr;
use std::fmt::Display;

pub use crate::env::Level;

pub fn enabled(level: Level) -> bool {
    stderr::level().unwrap_or_else(|| env().verbose) >= level
}

/// Writes `nvte,<topic>,<text>` if the level is on. The text is only built then.
pub fn line<T: Display>(level: Level, topic: &str, text: impl FnOnce() -> T) {
    if enabled(level) {
        stderr::line(level, format_args!("nvte,{topic},{}", text()));
    }
}
