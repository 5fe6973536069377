//! What everybody who chooses among implementations knows of an operator: its name, its variants, and the facts of
//! a call by which an implementation is a candidate or not.
#![allow(unsafe_code)]

use super::plugin::OpInfo;
use super::table::OpTable;
use super::{Group, Outcome};
use crate::types::{NVTEDType, NVTEScalingMode, cudaStream_t};
use std::ffi::{CStr, c_char};
use std::fmt::Debug;

/// An argument struct, and what it says about the call that it is for.
pub trait Operator: Debug + Sized {
    const NAME: &'static str;
    /// Place in the list of operators.
    const NUMBER: u32;
    /// Version of the argument struct, `major << 16 | minor`.
    const VERSION: u32;
    /// Full names: `softmax.causal_forward`. An operator without variants has its own name there.
    const VARIANTS: &'static [&'static CStr];
    /// Names of the bits of [`Facts::features`], the lowest first.
    const FEATURES: &'static [&'static CStr];
    /// The same for C.
    const INFO: &'static OpInfo;

    fn entry(table: &OpTable) -> Option<Entry<Self>>;
    /// Index in `VARIANTS`.
    fn variant(&self) -> u32;
    fn facts(&self) -> Facts;
}

/// A function that runs an operator on a stream.
pub type Entry<A> = unsafe extern "C-unwind" fn(*const A, cudaStream_t) -> Outcome;

/// What the arguments of a call use of what implementations declare to take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// A bit `1 << dtype` for each dtype of an operand that is present.
    pub dtypes: u64,
    /// A bit `1 << mode` for each scaling mode of an operand.
    pub modes: u32,
    /// A bit for each feature.
    pub features: u64,
}

// SAFETY: all pointers are those of constants, which nobody writes.
unsafe impl Sync for OpInfo {}

/// Whether an optional part of a call is there.
pub(super) trait Present {
    fn present(&self) -> bool;
}

impl Present for bool {
    fn present(&self) -> bool {
        *self
    }
}

impl<T> Present for *const T {
    fn present(&self) -> bool {
        !self.is_null()
    }
}

impl<T> Present for *mut T {
    fn present(&self) -> bool {
        !self.is_null()
    }
}

impl Present for Group {
    fn present(&self) -> bool {
        self.num_tensors != 0
    }
}

/// Something that sets bits of a mask of dtypes or scaling modes.
pub(super) trait Bits {
    fn bits(&self) -> u64;
}

impl Bits for NVTEDType {
    fn bits(&self) -> u64 {
        1 << *self as u32
    }
}

impl Bits for NVTEScalingMode {
    fn bits(&self) -> u64 {
        1_u64.checked_shl(*self as u32).unwrap_or(0)
    }
}

impl<T: Bits> Bits for Option<T> {
    fn bits(&self) -> u64 {
        self.as_ref().map_or(0, Bits::bits)
    }
}

impl<T: Bits> Bits for &[T] {
    fn bits(&self) -> u64 {
        self.iter().fold(0, |bits, one| bits | one.bits())
    }
}

/// A dtype or mode that counts only if a part of the call is there.
pub(super) fn when<T>(part: impl Present, value: T) -> Option<T> {
    part.present().then_some(value)
}

/// A text of C, which ends with its only NUL.
pub(super) const fn text(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("a text with a NUL inside of it or without one at its end"),
    }
}

/// The pointers of texts, for C.
pub(super) const fn pointers<const N: usize>(texts: &[&'static CStr]) -> [*const c_char; N] {
    let mut pointers = [std::ptr::null(); N];
    let mut i = 0;
    while i < N {
        pointers[i] = texts[i].as_ptr();
        i += 1;
    }
    pointers
}

/// Makes an argument struct an [`Operator`]:
///
/// ```ignore
/// operator! {
///     softmax(SoftmaxArgs) version 1 minor 0; |a|
///     variants a.visible as u32 => [plain, masked];
///     dtypes a.dtype, when(a.bias, a.bias_dtype);
///     modes a.mode;
///     features { MASK = a.mask, BIAS = a.bias }
/// }
/// ```
///
/// `softmax` is the row in the list of operators, `a` the arguments. The expression before `=>` is the index of the
/// call's variant. Whatever follows the first line may be left out. Variants and features are only ever appended, and
/// a feature that an earlier version did not have raises the minor.
macro_rules! operator {
    (
        $name:ident($args:ident) version $major:literal minor $minor:literal; |$a:ident|
        $(variants $chosen:expr => [$($variant:ident),+ $(,)?];)?
        $(dtypes $($dtype:expr),+;)?
        $(modes $($mode:expr),+;)?
        $(features { $($feature:ident = $used:expr),+ $(,)? })?
    ) => {
        impl $crate::backend::args::operator::Operator for $args {
            const NAME: &'static str = stringify!($name);
            const NUMBER: u32 = $crate::backend::args::table::Number::$name as u32;
            const VERSION: u32 = $major << 16 | $minor;
            const VARIANTS: &'static [&'static ::std::ffi::CStr] =
                operator!(@variants $name $($($variant)+)?);
            const FEATURES: &'static [&'static ::std::ffi::CStr] = &[
                $($($crate::backend::args::operator::text(concat!(stringify!($feature), "\0")),)+)?
            ];
            const INFO: &'static $crate::backend::args::plugin::OpInfo = {
                use $crate::backend::args::operator::{pointers, text};
                use $crate::backend::args::plugin::OpInfo;
                use ::std::ffi::c_char;
                const VARIANTS: &[*const c_char] = &pointers::<{ $args::VARIANTS.len() }>($args::VARIANTS);
                const FEATURES: &[*const c_char] = &pointers::<{ $args::FEATURES.len() }>($args::FEATURES);
                &OpInfo {
                    struct_size: size_of::<OpInfo>(),
                    name: text(concat!(stringify!($name), "\0")).as_ptr(),
                    op: Self::NUMBER,
                    version: Self::VERSION,
                    args_size: size_of::<Self>(),
                    variants: VARIANTS.as_ptr(),
                    variant_count: VARIANTS.len(),
                    features: FEATURES.as_ptr(),
                    feature_count: FEATURES.len(),
                }
            };

            fn entry(
                table: &$crate::backend::args::OpTable,
            ) -> Option<$crate::backend::args::operator::Entry<Self>> {
                table.$name
            }

            #[inline]
            fn variant(&self) -> u32 {
                let $a = self;
                let _ = $a;
                0 $(+ $chosen)?
            }

            fn facts(&self) -> $crate::backend::args::operator::Facts {
                let $a = self;
                let _ = $a;
                let used: &[bool] = &[
                    $($($crate::backend::args::operator::Present::present(&$used)),+)?
                ];
                $crate::backend::args::operator::Facts {
                    dtypes: 0 $($(| $crate::backend::args::operator::Bits::bits(&$dtype))+)?,
                    modes: 0 $($(| $crate::backend::args::operator::Bits::bits(&$mode) as u32)+)?,
                    features: used.iter().rev().fold(0, |bits, &used| bits << 1 | u64::from(used)),
                }
            }
        }
    };
    (@variants $name:ident) => {
        &[$crate::backend::args::operator::text(concat!(stringify!($name), "\0"))]
    };
    (@variants $name:ident $($variant:ident)+) => {
        &[$($crate::backend::args::operator::text(
            concat!(stringify!($name), ".", stringify!($variant), "\0")
        )),+]
    };
}
pub(super) use operator;
