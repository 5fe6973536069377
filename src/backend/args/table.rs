//! The functions of a backend, made of the list of operators.

use super::plugin::OpInfo;
use super::*;
use crate::backend::operators::operators;
use crate::types::{NVTEDType, cudaEvent_t, cudaStream_t};
use std::ffi::{c_int, c_void};

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

        impl OpTable {
            /// A table without functions.
            #[cfg_attr(not(nvte_cuda), allow(dead_code, reason = "for libraries of CUDA"))]
            pub const EMPTY: Self = Self { $($entry: None,)* $($name: None,)* };

            /// Whether there is a function for an operator, by its number.
            pub fn has(&self, op: u32) -> bool {
                [$(self.$entry.is_some(),)*][op as usize]
            }
        }

        /// Places in the list of operators.
        #[allow(non_camel_case_types, reason = "the names are those of operators")]
        pub(super) enum Number {
            $($entry,)*
        }

        /// What is known of each operator, at the place of its number.
        pub static OPERATORS: &[&OpInfo] = &[$($args::INFO,)*];

        /// Number of the first variant of each operator if those of all operators are counted, and how many there
        /// are.
        pub const FIRST_VARIANTS: [u32; OPERATORS_AND_END] = first_variants(&[$($args::VARIANTS.len(),)*]);
        const OPERATORS_AND_END: usize = [$($args::NUMBER,)*].len() + 1;
    };
}
operators!(table);

const fn first_variants(counts: &[usize]) -> [u32; OPERATORS_AND_END] {
    let mut first = [0; OPERATORS_AND_END];
    let mut i = 0;
    while i < counts.len() {
        first[i + 1] = first[i] + counts[i] as u32;
        i += 1;
    }
    first
}
