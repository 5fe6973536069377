//! C functions of cast.h that cast derivatives of activations. Generated from
//! `activation/table.rs` by tests/abi.rs.
#![allow(unsafe_code, clippy::missing_safety_doc)]

use super::*;
use crate::backend::args::Function::*;
use crate::error::guard;
use crate::workspace::{self, Asks};

/// Casts the gradient of an activation, and sums it over its rows: `nvte_quantize_dbias` of
/// `v = f'(act_input) * input` instead of the input, with the f of `nvte_gelu`.
///
/// act_input has the shape and dtype of the input. v is Float32; for a cast in blocks it is rounded
/// to the input's dtype, but dbias is the sum of v before that.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_quantize_dbias_dgelu(
    input: NVTETensor,
    act_input: NVTETensor,
    output: NVTETensor,
    dbias: NVTETensor,
    workspace: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_quantize_dbias_dgelu", || {
        let f = NVTEX_GELU;
        let input = check::tensor("input", input)?;
        let act_input = check::tensor("act_input", act_input)?;
        let output = check::tensor("output", output)?;
        let dbias = check::tensor("dbias", dbias)?;
        workspace::of_handle(workspace, Asks::WithoutPointer, |workspace| {
            derivative_dbias(f, &input, &act_input, &output, &dbias, workspace, stream)
        })
    });
}

/// Casts the gradients of an activation for the members of a group, and sums each over its rows:
/// `nvte_group_quantize_dbias` of `v = f'(act_input) * input` instead of the input, without a
/// config, with the f of `nvte_gelu`.
///
/// v is that of `nvte_quantize_dbias_dgelu`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_group_quantize_dbias_dgelu(
    input: NVTEGroupedTensor,
    act_input: NVTEGroupedTensor,
    output: NVTEGroupedTensor,
    dbias: NVTEGroupedTensor,
    workspace: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_group_quantize_dbias_dgelu", || {
        let f = NVTEX_GELU;
        let input = check::grouped_tensor("input", input)?;
        let act_input = check::grouped_tensor("act_input", act_input)?;
        let output = check::grouped_tensor("output", output)?;
        let dbias = check::grouped_tensor("dbias", dbias)?;
        workspace::of_handle(workspace, Asks::WithoutPointer, |workspace| {
            group_derivative_dbias(f, &input, &act_input, &output, &dbias, workspace, stream)
        })
    });
}

/// Casts the gradient of an activation, and sums it over its rows: `nvte_quantize_dbias` of
/// `v = f'(act_input) * input` instead of the input, with the f of `nvte_silu`.
///
/// Otherwise as `nvte_quantize_dbias_dgelu`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_quantize_dbias_dsilu(
    input: NVTETensor,
    act_input: NVTETensor,
    output: NVTETensor,
    dbias: NVTETensor,
    workspace: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_quantize_dbias_dsilu", || {
        let f = NVTEX_SILU;
        let input = check::tensor("input", input)?;
        let act_input = check::tensor("act_input", act_input)?;
        let output = check::tensor("output", output)?;
        let dbias = check::tensor("dbias", dbias)?;
        workspace::of_handle(workspace, Asks::WithoutPointer, |workspace| {
            derivative_dbias(f, &input, &act_input, &output, &dbias, workspace, stream)
        })
    });
}

/// Casts the gradients of an activation for the members of a group, and sums each over its rows:
/// `nvte_group_quantize_dbias` of `v = f'(act_input) * input` instead of the input, without a
/// config, with the f of `nvte_silu`.
///
/// Otherwise as `nvte_group_quantize_dbias_dgelu`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_group_quantize_dbias_dsilu(
    input: NVTEGroupedTensor,
    act_input: NVTEGroupedTensor,
    output: NVTEGroupedTensor,
    dbias: NVTEGroupedTensor,
    workspace: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_group_quantize_dbias_dsilu", || {
        let f = NVTEX_SILU;
        let input = check::grouped_tensor("input", input)?;
        let act_input = check::grouped_tensor("act_input", act_input)?;
        let output = check::grouped_tensor("output", output)?;
        let dbias = check::grouped_tensor("dbias", dbias)?;
        workspace::of_handle(workspace, Asks::WithoutPointer, |workspace| {
            group_derivative_dbias(f, &input, &act_input, &output, &dbias, workspace, stream)
        })
    });
}

/// Casts the gradient of an activation, and sums it over its rows: `nvte_quantize_dbias` of
/// `v = f'(act_input) * input` instead of the input, with the f of `nvte_relu`.
///
/// Otherwise as `nvte_quantize_dbias_dgelu`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_quantize_dbias_drelu(
    input: NVTETensor,
    act_input: NVTETensor,
    output: NVTETensor,
    dbias: NVTETensor,
    workspace: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_quantize_dbias_drelu", || {
        let f = NVTEX_RELU;
        let input = check::tensor("input", input)?;
        let act_input = check::tensor("act_input", act_input)?;
        let output = check::tensor("output", output)?;
        let dbias = check::tensor("dbias", dbias)?;
        workspace::of_handle(workspace, Asks::WithoutPointer, |workspace| {
            derivative_dbias(f, &input, &act_input, &output, &dbias, workspace, stream)
        })
    });
}

/// Casts the gradients of an activation for the members of a group, and sums each over its rows:
/// `nvte_group_quantize_dbias` of `v = f'(act_input) * input` instead of the input, without a
/// config, with the f of `nvte_relu`.
///
/// Otherwise as `nvte_group_quantize_dbias_dgelu`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_group_quantize_dbias_drelu(
    input: NVTEGroupedTensor,
    act_input: NVTEGroupedTensor,
    output: NVTEGroupedTensor,
    dbias: NVTEGroupedTensor,
    workspace: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_group_quantize_dbias_drelu", || {
        let f = NVTEX_RELU;
        let input = check::grouped_tensor("input", input)?;
        let act_input = check::grouped_tensor("act_input", act_input)?;
        let output = check::grouped_tensor("output", output)?;
        let dbias = check::grouped_tensor("dbias", dbias)?;
        workspace::of_handle(workspace, Asks::WithoutPointer, |workspace| {
            group_derivative_dbias(f, &input, &act_input, &output, &dbias, workspace, stream)
        })
    });
}

/// Casts the gradient of an activation, and sums it over its rows: `nvte_quantize_dbias` of
/// `v = f'(act_input) * input` instead of the input, with the f of `nvte_qgelu`.
///
/// Otherwise as `nvte_quantize_dbias_dgelu`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_quantize_dbias_dqgelu(
    input: NVTETensor,
    act_input: NVTETensor,
    output: NVTETensor,
    dbias: NVTETensor,
    workspace: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_quantize_dbias_dqgelu", || {
        let f = NVTEX_QGELU;
        let input = check::tensor("input", input)?;
        let act_input = check::tensor("act_input", act_input)?;
        let output = check::tensor("output", output)?;
        let dbias = check::tensor("dbias", dbias)?;
        workspace::of_handle(workspace, Asks::WithoutPointer, |workspace| {
            derivative_dbias(f, &input, &act_input, &output, &dbias, workspace, stream)
        })
    });
}

/// Casts the gradients of an activation for the members of a group, and sums each over its rows:
/// `nvte_group_quantize_dbias` of `v = f'(act_input) * input` instead of the input, without a
/// config, with the f of `nvte_qgelu`.
///
/// Otherwise as `nvte_group_quantize_dbias_dgelu`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_group_quantize_dbias_dqgelu(
    input: NVTEGroupedTensor,
    act_input: NVTEGroupedTensor,
    output: NVTEGroupedTensor,
    dbias: NVTEGroupedTensor,
    workspace: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_group_quantize_dbias_dqgelu", || {
        let f = NVTEX_QGELU;
        let input = check::grouped_tensor("input", input)?;
        let act_input = check::grouped_tensor("act_input", act_input)?;
        let output = check::grouped_tensor("output", output)?;
        let dbias = check::grouped_tensor("dbias", dbias)?;
        workspace::of_handle(workspace, Asks::WithoutPointer, |workspace| {
            group_derivative_dbias(f, &input, &act_input, &output, &dbias, workspace, stream)
        })
    });
}

/// Casts the gradient of an activation, and sums it over its rows: `nvte_quantize_dbias` of
/// `v = f'(act_input) * input` instead of the input, with the f of `nvte_srelu`.
///
/// Otherwise as `nvte_quantize_dbias_dgelu`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_quantize_dbias_dsrelu(
    input: NVTETensor,
    act_input: NVTETensor,
    output: NVTETensor,
    dbias: NVTETensor,
    workspace: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_quantize_dbias_dsrelu", || {
        let f = NVTEX_SRELU;
        let input = check::tensor("input", input)?;
        let act_input = check::tensor("act_input", act_input)?;
        let output = check::tensor("output", output)?;
        let dbias = check::tensor("dbias", dbias)?;
        workspace::of_handle(workspace, Asks::WithoutPointer, |workspace| {
            derivative_dbias(f, &input, &act_input, &output, &dbias, workspace, stream)
        })
    });
}

/// Casts the gradients of an activation for the members of a group, and sums each over its rows:
/// `nvte_group_quantize_dbias` of `v = f'(act_input) * input` instead of the input, without a
/// config, with the f of `nvte_srelu`.
///
/// Otherwise as `nvte_group_quantize_dbias_dgelu`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_group_quantize_dbias_dsrelu(
    input: NVTEGroupedTensor,
    act_input: NVTEGroupedTensor,
    output: NVTEGroupedTensor,
    dbias: NVTEGroupedTensor,
    workspace: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_group_quantize_dbias_dsrelu", || {
        let f = NVTEX_SRELU;
        let input = check::grouped_tensor("input", input)?;
        let act_input = check::grouped_tensor("act_input", act_input)?;
        let output = check::grouped_tensor("output", output)?;
        let dbias = check::grouped_tensor("dbias", dbias)?;
        workspace::of_handle(workspace, Asks::WithoutPointer, |workspace| {
            group_derivative_dbias(f, &input, &act_input, &output, &dbias, workspace, stream)
        })
    });
}
