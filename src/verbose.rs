//! `NVTE_VERBOSE`: what the library prints to stderr, one line an event.

use crate::env::env;
use std::fmt::Display;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    None,
    /// Messages of failing calls.
    Error,
    /// Also arguments that are legal but probably not meant.
    Check,
    /// Also the backends and implementations chosen, and why others declined.
    Dispatch,
    /// Also one line for each operator run.
    Exec,
}

pub fn enabled(level: Level) -> bool {
    env().verbose >= level
}

/// Prints `nvte,<topic>,<text>` if the level is on. The text is only built then.
pub fn line<T: Display>(level: Level, topic: &str, text: impl FnOnce() -> T) {
    if enabled(level) {
        eprintln!("nvte,{topic},{}", text());
    }
}
