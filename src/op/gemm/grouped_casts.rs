//! Grouped products of MXFP8 operands that are cast to bfloat16 in the workspace first. Tensor cores of Hopper
//! do not multiply MXFP8: the kernel of grouped products multiplies codes along k, and scales sums of 32 outside of
//! them, or casts operands that lie otherwise on its way. It then reaches two thirds or a third of BFloat16's speed.

use crate::backend::{self, args::*};
use crate::error::Result;
use crate::types::NVTEScalingMode::*;
use crate::types::*;
use crate::verbose::{self, Level};
use std::ffi::c_void;
use std::ptr::null;

/// How an operand is cast, where it is a group.
pub(super) struct GroupCast {
    pub group: Group,
    pub rows: usize,
    pub cols: usize,
}

/// Bytes of the workspace that the kernel keeps for itself, and those for each member.
const KERNEL_BYTES: usize = 16 << 10;
const MEMBER_BYTES: usize = 1 << 10;
const ALIGNMENT: usize = 256;

/// `n m / (n + m)` of a member from which the casts pay, where both operands lie along k and otherwise. A product
/// alone takes 2 n m k / (480 or 220 TFLOP/s). With casts, which read a byte and write two for each of the k (n + m)
/// elements at 4.1 TB/s, it takes 2 n m k / (700 TFLOP/s), or reads what they write if that takes longer.
const LEAST_INTENSITY: [usize; 2] = [560, 180];

/// Both operands in bfloat16, in the workspace of the products: arguments, and the members that they point to.
pub(super) struct Casts {
    pub args: GroupedGemmArgs,
    _members: [Vec<GroupedMember>; 2],
}

impl Casts {
    /// Casts the operands if that is faster and the workspace has room.
    pub fn run(
        args: &GroupedGemmArgs,
        operands: [(Option<&GroupCast>, &[GroupedMember]); 2],
        stream: cudaStream_t,
    ) -> Result<Option<Self>> {
        let (n, m) = (args.mean_n, args.mean_m);
        let matrices = [&args.a, &args.b];
        let is_mx = matrices.iter().all(|matrix| matrix.mode == NVTE_MXFP8_1D_SCALING);
        let least = LEAST_INTENSITY[usize::from(matrices.iter().any(|matrix| matrix.transposed))];
        if !is_mx || n.saturating_mul(m) < least.saturating_mul(n.saturating_add(m)) {
            return Ok(None);
        }
        let whole = |elements: usize| {
            let bytes = elements.saturating_mul(2).checked_next_multiple_of(ALIGNMENT);
            bytes.unwrap_or(usize::MAX)
        };
        let bytes = [0, 1].map(|i| match operands[i].0 {
            Some(_) => whole(matrices[i].elements),
            None => operands[i].1.iter().fold(0usize, |sum, member| {
                sum.saturating_add(whole(member.outer.saturating_mul(member.inner)))
            }),
        });
        let kept = MEMBER_BYTES.saturating_mul(args.num_tensors).saturating_add(KERNEL_BYTES);
        let needed = bytes[0].saturating_add(bytes[1]);
        // The CPU backend, which needs no workspace, multiplies MXFP8 as it is.
        if needed.saturating_add(kept) > args.workspace_bytes
            || backend::device_properties()?.product_workspace == 0
        {
            return Ok(None);
        }
        verbose::line(Level::Dispatch, "dispatch", || "grouped gemm,MXFP8 cast to BFloat16 first");
        let mut values = args.workspace;
        let mut cast = |i: usize| -> Result<(GroupedMatrix, Vec<GroupedMember>)> {
            let (matrix, (group, members)) = (matrices[i], &operands[i]);
            let mut dequantize = DequantizeArgs {
                input: matrix.data,
                output: values,
                scale_inv: matrix.scale_inv,
                rows: 0,
                cols: 0,
                scale_stride: 0,
                mode: matrix.mode,
                input_dtype: matrix.dtype,
                output_dtype: NVTEDType::kNVTEBFloat16,
                colwise: matrix.transposed,
                swizzled: matrix.swizzled,
                group: Group::NONE,
            };
            let mut list = Vec::new();
            if let Some(GroupCast { group, rows, cols }) = group {
                (dequantize.rows, dequantize.cols) = (*rows, *cols);
                dequantize.group = *group;
                backend::run(&dequantize, stream)?;
            }
            let mut at = 0;
            for member in *members {
                let (outer, inner) = (member.outer, member.inner);
                let data: *mut c_void = values.wrapping_byte_add(at);
                let shape = if matrix.transposed { (inner, outer) } else { (outer, inner) };
                let scaling = matrix.mode.scaling();
                if outer * inner > 0 {
                    let one = DequantizeArgs {
                        input: member.data,
                        output: data,
                        scale_inv: member.scale_inv,
                        rows: shape.0,
                        cols: shape.1,
                        scale_stride: scaling.scale_pitch(matrix.transposed, shape),
                        ..dequantize
                    };
                    backend::run(&one, stream)?;
                }
                list.push(GroupedMember { data, scale_inv: null(), outer, inner });
                at += whole(outer * inner);
            }
            let cast = GroupedMatrix {
                data: if list.is_empty() { values } else { matrix.data },
                members: if list.is_empty() { null() } else { list.as_ptr() },
                scale_inv: null(),
                scale_entries: 0,
                mode: NVTE_DELAYED_TENSOR_SCALING,
                dtype: NVTEDType::kNVTEBFloat16,
                swizzled: false,
                ..*matrix
            };
            values = values.wrapping_byte_add(bytes[i]);
            Ok((cast, list))
        };
        let ((a, a_list), (b, b_list)) = (cast(0)?, cast(1)?);
        let workspace_bytes = args.workspace_bytes - needed;
        let args = GroupedGemmArgs { a, b, workspace: values, workspace_bytes, ..*args };
        Ok(Some(Self { args, _members: [a_list, b_list] }))
    }
}
