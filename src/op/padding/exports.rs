//! C functions of padding.h.
#![allow(unsafe_code, clippy::missing_safety_doc)]

use super::*;
use crate::error::guard;

/// Copies matrices bit by bit and adds rows of zeros: each output has the rows of its input, then zeros
/// up to `padded_num_rows_list[i]` rows.
///
/// Shapes: inputs `[rows_i, cols_i]`, outputs `[padded_num_rows_list[i], cols_i]`. An input may have no
/// rows (then the output is all zeros), and the lists may be empty. The lists and the numbers are on
/// the host.
///
/// Dtypes: any but Float4E2M1, the same for all.
///
/// Errors: other shapes or dtypes; fewer rows than the input has; an output that overlaps its input;
/// null or misaligned pointers. Nothing is written if one tensor is wrong.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_multi_padding(
    num_tensors: usize,
    input_list: *const NVTETensor,
    output_list: *mut NVTETensor,
    padded_num_rows_list: *const i32,
    stream: cudaStream_t,
) {
    let rows = (PADDED, padded_num_rows_list);
    // SAFETY: the caller vouches for the lists.
    guard("nvte_multi_padding", || unsafe {
        run(&lists(num_tensors, input_list, output_list, rows)?, stream)
    });
}

/// Copies the first `unpadded_num_rows_list[i]` rows of matrices, which undoes `nvte_multi_padding`.
///
/// Shapes: inputs `[rows_i, cols_i]`, outputs `[unpadded_num_rows_list[i], cols_i]`.
///
/// Dtypes: as `nvte_multi_padding`.
///
/// Errors: as `nvte_multi_padding`; more rows than the input has.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_multi_unpadding(
    num_tensors: usize,
    input_list: *const NVTETensor,
    output_list: *mut NVTETensor,
    unpadded_num_rows_list: *const i32,
    stream: cudaStream_t,
) {
    let rows = (UNPADDED, unpadded_num_rows_list);
    // SAFETY: the caller vouches for the lists.
    guard("nvte_multi_unpadding", || unsafe {
        run(&lists(num_tensors, input_list, output_list, rows)?, stream)
    });
}

/// # Safety
/// Each list is null or has `num_tensors` entries.
unsafe fn lists<'a>(
    num_tensors: usize,
    inputs: *const NVTETensor,
    outputs: *mut NVTETensor,
    (rows_name, rows): (&'static str, *const i32),
) -> Result<Lists<'a>> {
    let count = ("num_tensors", num_tensors);
    // SAFETY: the caller keeps to the `# Safety` section of this function.
    unsafe {
        Ok(Lists {
            inputs: check::buffers("input_list", inputs, count)?,
            outputs: check::buffers("output_list", outputs, count)?,
            rows: check::slice(rows_name, rows, count)?,
            rows_name,
        })
    }
}
