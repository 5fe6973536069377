//! Plugins: libraries of vendors that register implementations of operators.

mod manifest;
mod sources;
