//! Hadamard transforms of 16 rows, and largest magnitudes.

use super::group::Group;
use super::operator::operator;
use std::ffi::c_void;

/// The transform of 16 numbers x is `y[n] = sum over k of s[k] x[k] (-1)^popcount(k & n) / 4`, where
/// `s[k]` is -1 if bit k of `sign_mask` is set, else 1: four steps of sums and differences in float32,
/// of neighbours first.
///
/// `output[c][16 i + n] = cast(y[n])` of the elements x of column c in rows 16 i to 16 i + 15.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct HadamardArgs {
    /// `[rows, cols]`, BF16.
    pub input: *const c_void,
    /// `[cols, rows]`, BF16.
    pub output: *mut c_void,
    /// A multiple of 16.
    pub rows: usize,
    /// A multiple of 16.
    pub cols: usize,
    pub sign_mask: u32,
}

operator! {
    hadamard(HadamardArgs) version 1 minor 0; |a|
    bytes 4 * a.rows * a.cols;
}

/// Some rows of a matrix, and where their maxima go. Either pointer may be null.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct HadamardMember {
    /// A multiple of 16; may be 0.
    pub rows: usize,
    pub amax: *mut f32,
    pub colwise_amax: *mut f32,
}

/// For each member of a matrix: `amax = max|x|`, and `colwise_amax` that of its transform, rounded to
/// BF16, as [`HadamardArgs`] describes it; without `transform` the same as `amax`. NaN is ignored; 0 for
/// a member without elements.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct HadamardAmaxArgs {
    /// `[rows, cols]`, BF16.
    pub input: *const c_void,
    /// A multiple of 16; may be 0.
    pub rows: usize,
    /// A multiple of 16; may be 0.
    pub cols: usize,
    pub sign_mask: u32,
    pub transform: bool,
    /// Host array of members that follow each other, or null: then those of `group`.
    pub members: *const HadamardMember,
    pub num_members: usize,
    /// Members of whole rows, in multiples of 16.
    pub group: Group,
    /// One for each member of `group`, or null.
    pub amax: *mut f32,
    pub colwise_amax: *mut f32,
}

operator! {
    hadamard_amax(HadamardAmaxArgs) version 1 minor 0; |a|
    variants u32::from(a.transform) => [plain, transform];
    features { GROUP = a.members.is_null() }
    bytes 2 * a.rows * a.cols;
}
