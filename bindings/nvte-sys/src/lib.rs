//! Declarations of `libnvte.so`: every function, struct and constant of its C headers, as they are there.
//!
//! The crate `nvte` has safe types over them.

#![allow(non_camel_case_types, non_snake_case, non_upper_case_globals)]
// The comments are those of the C headers.
#![allow(rustdoc::bare_urls, rustdoc::broken_intra_doc_links, rustdoc::invalid_html_tags)]
#![allow(clippy::doc_lazy_continuation, clippy::doc_overindented_list_items)]
#![allow(clippy::missing_safety_doc, clippy::too_many_arguments)]

#[rustfmt::skip]
mod generated;

pub use generated::*;

use std::marker::{PhantomData, PhantomPinned};

/// Makes a type that only the library knows neither movable nor shared between threads.
type Opaque = PhantomData<(*mut u8, PhantomPinned)>;

#[cfg(test)]
macro_rules! layout {
    ($name:ident: $($field:ident)*) => {{
        use std::fmt::Write;
        let mut line =
            format!("{} {} {}", stringify!($name), size_of::<$name>(), align_of::<$name>());
        $(write!(line, " {}={}", stringify!($field), core::mem::offset_of!($name, $field))
            .expect("a string");)*
        line
    }};
}
#[cfg(test)]
pub(crate) use layout;

#[cfg(test)]
mod tests {
    /// The file has what a C compiler says of the headers.
    #[test]
    fn layouts_are_those_of_c() {
        let expected: Vec<&str> = include_str!("../../layouts.txt").lines().collect();
        let mut layouts: Vec<String> = super::generated::layouts();
        layouts.sort_unstable();
        let mut sorted = expected.clone();
        sorted.sort_unstable();
        assert!(layouts.len() > 20, "{} structs", layouts.len());
        assert_eq!(layouts, sorted);
    }

    #[test]
    fn links_and_runs() {
        // SAFETY: the function has no conditions.
        let number = unsafe { super::nvtex_version_number() };
        let version =
            [super::NVTE_VERSION_MAJOR, super::NVTE_VERSION_MINOR, super::NVTE_VERSION_PATCH];
        let [major, minor, patch] = version.map(|part| part as i32);
        assert_eq!(number, major * 1_000_000 + minor * 1000 + patch);
    }
}
