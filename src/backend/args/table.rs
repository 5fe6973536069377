//! The functions of a backend, made of the list of operators.

use super::*;
use crate::backend::operators::operators;
use crate::types::{cudaEvent_t, cudaStream_t};
use std::ffi::{c_int, c_void};
use std::fmt::Debug;

/// An argument struct and its entry in the table.
pub trait Operator: Debug + Sized {
    const NAME: &'static str;
    fn entry(table: &OpTable) -> Option<Entry<Self>>;
}

/// A function that runs an operator on a stream.
pub type Entry<A> = unsafe extern "C-unwind" fn(*const A, cudaStream_t) -> Outcome;

macro_rules! table {
    (
        operators { $($entry:ident($args:ident) = $cpu:path;)* }
        functions {
            $($(#[$doc:meta])* $name:ident($($param:ident: $type:ty),* $(,)?) = $name_cpu:path;)*
        }
    ) => {
        /// Functions of a backend. A function that is `None` is unimplemented.
        #[derive(Clone, Copy)]
        pub struct OpTable {
            $(pub $entry: Option<Entry<$args>>,)*
            $(
                $(#[$doc])*
                pub $name: Option<unsafe extern "C-unwind" fn($($param: $type),*) -> Outcome>,
            )*
        }

        $(
            impl Operator for $args {
                const NAME: &'static str = stringify!($entry);
                fn entry(table: &OpTable) -> Option<Entry<Self>> {
                    table.$entry
                }
            }
        )*
    };
}
operators!(table);
