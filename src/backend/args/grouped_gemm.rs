//! Matrix products of groups, and what goes with them.

use super::gemm::product_variant;
use super::operator::{Present, operator};
use crate::types::{NVTEDType, NVTEScalingMode};
use std::ffi::{c_int, c_void};

/// One matrix of a [`GroupedMatrix`] whose members have buffers of their own.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GroupedMember {
    /// Null only without elements.
    pub data: *mut c_void,
    /// As [`GroupedMatrix::scale_inv`], of this member alone.
    pub scale_inv: *const c_void,
    pub outer: usize,
    pub inner: usize,
}

/// One operand of a grouped product: matrices `[outer_t, inner_t]` for t < num_tensors, contiguous,
/// stored as such, or `transposed`, as `[inner_t, outer_t]`. In A and B the inner dimension is the one
/// that is summed; in C and D it is m. Everything about storage is decided here: no transa, no transb,
/// no direction is left to choose.
///
/// Either `members` is a host array of `num_tensors`, valid during the call only, and no other pointer
/// is set; or the members lie one after the other in `data`, and member t begins at element
/// `offsets[t]`, without `offsets` where the one before ends.
///
/// What the arrays on the device hold is not trusted: see [`GroupedGemmArgs`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GroupedMatrix {
    /// Null if there is nothing to read or write, because no member has an element.
    pub data: *mut c_void,
    /// On the host, or null.
    pub members: *const GroupedMember,
    /// On the device, `num_tensors` entries, not negative; null: `outer` each.
    pub outer_dims: *const i64,
    /// On the device, `num_tensors` entries, not negative; null: `inner` each.
    pub inner_dims: *const i64,
    /// On the device, `num_tensors` entries; or null.
    pub offsets: *const i64,
    /// FP8 A and B only. Mode 0: one float for each member. Else the scale matrices of the members, one
    /// after the other, each with its padding; their positions do not depend on `offsets`. With
    /// `ceil128(x) = ceil(x / 128)`, of a member:
    /// mode 1: `roundup(outer, 128) * roundup(ceil(inner / 32), 4)` bytes (E8M0), with `swizzled` in the
    /// tiles of [`SwizzleArgs`], else `[roundup(outer, 128), roundup(ceil(inner / 32), 4)]`, or that of
    /// the other order if `transposed`; mode 2: floats `[ceil128(inner), roundup(outer, 4)]`; mode 3:
    /// floats `[ceil128(outer), roundup(ceil128(inner), 4)]`.
    pub scale_inv: *const c_void,
    /// Elements that `data` has room for.
    pub elements: usize,
    /// Floats, or in mode 1 codes, that `scale_inv` has room for.
    pub scale_entries: usize,
    /// Ignored where `outer_dims` or `members` say more; then not the size of any member.
    pub outer: usize,
    /// As `outer`.
    pub inner: usize,
    pub mode: NVTEScalingMode,
    /// A and B: F16, BF16, E4M3, E5M2. C and D: F32, F16, BF16.
    pub dtype: NVTEDType,
    /// False in modes 2 and 3, and in C and D.
    pub transposed: bool,
    /// Mode 1.
    pub swizzled: bool,
}

/// `D[t] = alpha[t] * scale_a[t] * scale_b[t] * (B[t] A[t]^T) + beta[t] * C[t]` for t < num_tensors, with
/// `A[t] [m_t, k_t]`, `B[t] [n_t, k_t]`, `C[t]` and `D[t] [n_t, m_t]`, outer dimension first as in
/// [`GroupedMatrix`]; sums and scales of FP8 blocks and MXFP8 as in [`GemmArgs`].
///
/// The dimensions of a member agree between the operands, except that `m_t` and `n_t` are those of D and
/// `k_t` is that of A. Any of them may be 0: without m or n nothing is written, without k D is
/// `beta * C`. C is not read where beta is 0. Elements that no member has are not touched. The result of
/// a member does not depend on the others.
///
/// A member is left out if `m_t`, `n_t` or `k_t` is negative (CUDA: or 2^29 or more), or if one of its
/// matrices or their scales alone would be more than the operand has room for. A matrix that would begin
/// before or end after the data, or its scales, is taken to lie at their end.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GroupedGemmArgs {
    pub a: GroupedMatrix,
    pub b: GroupedMatrix,
    /// May be D, also in part. Its dtype is that of D.
    pub c: GroupedMatrix,
    pub d: GroupedMatrix,
    /// On the device: of member t at `alpha[t * alpha_stride]`.
    pub alpha: *const f32,
    /// Beta, likewise.
    pub beta: *const f32,
    /// 0: one for all; 1: one for each member.
    pub alpha_stride: usize,
    pub beta_stride: usize,
    /// At least 1.
    pub num_tensors: usize,
    /// Aligned to 16 bytes, at least `92 * num_tensors + 256`. Contents are arbitrary.
    pub setup_workspace: *mut c_void,
    pub setup_bytes: usize,
    /// Aligned to 256 bytes, at least 32 MiB less up to 255 bytes. Contents are arbitrary.
    pub workspace: *mut c_void,
    pub workspace_bytes: usize,
    /// Expected sizes of a member, for the choice of tiles; any value is right.
    pub mean_m: usize,
    pub mean_n: usize,
    pub mean_k: usize,
    /// As in [`GemmArgs`].
    pub split_accumulator: bool,
    /// Multiprocessors to use, 0 for all.
    pub sm_count: c_int,
}

operator! {
    grouped_gemm(GroupedGemmArgs) version 1 minor 0; |a|
    variants product_variant(a.a.mode, a.a.dtype.is_fp8() || a.b.dtype.is_fp8()) =>
        [high_precision, fp8, mxfp8, fp8_blocks];
    dtypes a.a.dtype, a.b.dtype, a.d.dtype;
    modes a.a.mode, a.b.mode;
    features {
        MEMBERS = a.a.members.present() || a.b.members.present() || a.d.members.present(),
        SWIZZLED = a.a.swizzled || a.b.swizzled,
        SPLIT_ACCUMULATOR = a.split_accumulator,
    }
    workspace a.workspace_bytes;
}

/// `output[r][c] = cast(output[r][c] + bias[g(r)][c] * scale[r])`, one rounding, where g(r) is the member
/// of a group that row r belongs to. Rows after those of the last member are not touched, nor are those
/// that `rows` does not have, whatever `first_dims` says; a member of a negative number of rows or of more
/// than `rows` has none.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GroupedBiasArgs {
    /// `[rows, cols]`
    pub output: *mut c_void,
    /// `[num_tensors, cols]`
    pub bias: *const c_void,
    /// `[rows]`, or null for 1.
    pub scale: *const f32,
    /// On the device: rows of the members, not negative; null: `rows / num_tensors` each.
    pub first_dims: *const i64,
    pub num_tensors: usize,
    pub rows: usize,
    pub cols: usize,
    /// F32, F16 or BF16, of output and bias.
    pub dtype: NVTEDType,
}

operator! {
    grouped_bias(GroupedBiasArgs) version 1 minor 0; |a|
    dtypes a.dtype;
    features { SCALE = a.scale, FIRST_DIMS = a.first_dims }
}

/// `output[i] = input[i] * factor` in 64-bit arithmetic that wraps.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct WidenArgs {
    pub input: *const i32,
    pub output: *mut i64,
    pub length: usize,
    pub factor: i64,
}

operator! {
    widen(WidenArgs) version 1 minor 0; |a|
}

/// Counters by which products on different streams wait for each other's chunks.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CountersArgs {
    pub counters: *mut i32,
    pub length: usize,
    /// Nanoseconds after which waiting ends without success. The CPU backend then reports a device error;
    /// CUDA does so at the next synchronisation of a stream or the next wait, and the stream goes on.
    pub limit: u64,
    /// Wait until all are 0, instead of setting them to 0 after what came before on the stream.
    pub wait: bool,
}

operator! {
    counters(CountersArgs) version 1 minor 0; |a|
    variants u32::from(a.wait) => [clear, wait];
}
