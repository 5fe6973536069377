//! `NVTE_VERBOSE`: what the library prints to stderr, one line an event.

use crate::env::env;
use crate::stderr;
use std::fmt::Display;

pub use crate::env::Level;

pub fn enabled(level: Level) -> bool {
    env().verbose >= level
}

/// Prints `nvte,<topic>,<text>` if the level is on. The text is only built then.
pub fn line<T: Display>(level: Level, topic: &str, text: impl FnOnce() -> T) {
    if enabled(level) {
        stderr::print(format_args!("nvte,{topic},{}", text()));
    }
}
