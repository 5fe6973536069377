//! The table of the CPU backend: the references in `op/*/cpu*.rs`. Pointers are host pointers, streams are
//! ignored, and work is complete on return.

use crate::backend::args::OpTable;
use crate::backend::operators::operators;
use crate::op::*;

macro_rules! table {
    (
        operators { $($entry:ident($args:ident) = $cpu:path;)* }
        functions {
            $($(#[$doc:meta])* $name:ident($($param:ident: $type:ty),* $(,)?) = $name_cpu:path;)*
        }
    ) => {
        pub static TABLE: OpTable =
            OpTable { $($entry: Some($cpu),)* $($name: Some($name_cpu),)* };
    };
}
operators!(table);
