//! C functions of transpose.h that cast derivatives of activations. Generated from
//! `activation/table.rs` by tests/abi.rs.
#![allow(unsafe_code, clippy::missing_safety_doc)]

use super::*;
use crate::backend::args::Function::*;
use crate::error::guard;
use crate::workspace::{self, Asks};

/// Casts and transposes the gradient of an activation, and sums it over its rows:
/// `nvte_cast_transpose_dbias` of `v = f'(act_input) * input` instead of the input, with the f of
/// `nvte_gelu`.
///
/// v is that of `nvte_quantize_dbias_dgelu`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_cast_transpose_dbias_dgelu(
    input: NVTETensor,
    act_input: NVTETensor,
    output: NVTETensor,
    dbias: NVTETensor,
    workspace: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_cast_transpose_dbias_dgelu", || {
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

/// Casts and transposes the gradient of a gated activation: with act_input = (a | g) in halves,
/// `nvte_cast_transpose` of `(f'(a) * input * g | input * f(a))` in Float32, with the f of
/// `nvte_gelu`.
///
/// Shapes: input `[..., n]`, act_input and the output `[..., 2 n]`.
///
/// Dtypes: Float32, Float16, BFloat16, the same for both inputs; output as for `nvte_quantize`.
///
/// Errors: as `nvte_cast_transpose`; inputs that do not fit each other.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_dgeglu_cast_transpose(
    input: NVTETensor,
    act_input: NVTETensor,
    output: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_dgeglu_cast_transpose", || {
        let f = NVTEX_GELU;
        let input = check::tensor("input", input)?;
        let act_input = check::tensor("act_input", act_input)?;
        let output = check::tensor("output", output)?;
        gated_derivative(f, &input, &act_input, &output, stream)
    });
}

/// Casts and transposes the gradient of an activation, and sums it over its rows:
/// `nvte_cast_transpose_dbias` of `v = f'(act_input) * input` instead of the input, with the f of
/// `nvte_silu`.
///
/// Otherwise as `nvte_cast_transpose_dbias_dgelu`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_cast_transpose_dbias_dsilu(
    input: NVTETensor,
    act_input: NVTETensor,
    output: NVTETensor,
    dbias: NVTETensor,
    workspace: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_cast_transpose_dbias_dsilu", || {
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

/// Casts and transposes the gradient of a gated activation: with act_input = (a | g) in halves,
/// `nvte_cast_transpose` of `(f'(a) * input * g | input * f(a))` in Float32, with the f of
/// `nvte_silu`.
///
/// Otherwise as `nvte_dgeglu_cast_transpose`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_dswiglu_cast_transpose(
    input: NVTETensor,
    act_input: NVTETensor,
    output: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_dswiglu_cast_transpose", || {
        let f = NVTEX_SILU;
        let input = check::tensor("input", input)?;
        let act_input = check::tensor("act_input", act_input)?;
        let output = check::tensor("output", output)?;
        gated_derivative(f, &input, &act_input, &output, stream)
    });
}

/// Casts and transposes the gradient of an activation, and sums it over its rows:
/// `nvte_cast_transpose_dbias` of `v = f'(act_input) * input` instead of the input, with the f of
/// `nvte_relu`.
///
/// Otherwise as `nvte_cast_transpose_dbias_dgelu`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_cast_transpose_dbias_drelu(
    input: NVTETensor,
    act_input: NVTETensor,
    output: NVTETensor,
    dbias: NVTETensor,
    workspace: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_cast_transpose_dbias_drelu", || {
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

/// Casts and transposes the gradient of a gated activation: with act_input = (a | g) in halves,
/// `nvte_cast_transpose` of `(f'(a) * input * g | input * f(a))` in Float32, with the f of
/// `nvte_relu`.
///
/// Otherwise as `nvte_dgeglu_cast_transpose`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_dreglu_cast_transpose(
    input: NVTETensor,
    act_input: NVTETensor,
    output: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_dreglu_cast_transpose", || {
        let f = NVTEX_RELU;
        let input = check::tensor("input", input)?;
        let act_input = check::tensor("act_input", act_input)?;
        let output = check::tensor("output", output)?;
        gated_derivative(f, &input, &act_input, &output, stream)
    });
}

/// Casts and transposes the gradient of an activation, and sums it over its rows:
/// `nvte_cast_transpose_dbias` of `v = f'(act_input) * input` instead of the input, with the f of
/// `nvte_qgelu`.
///
/// Otherwise as `nvte_cast_transpose_dbias_dgelu`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_cast_transpose_dbias_dqgelu(
    input: NVTETensor,
    act_input: NVTETensor,
    output: NVTETensor,
    dbias: NVTETensor,
    workspace: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_cast_transpose_dbias_dqgelu", || {
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

/// Casts and transposes the gradient of a gated activation: with act_input = (a | g) in halves,
/// `nvte_cast_transpose` of `(f'(a) * input * g | input * f(a))` in Float32, with the f of
/// `nvte_qgelu`.
///
/// Otherwise as `nvte_dgeglu_cast_transpose`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_dqgeglu_cast_transpose(
    input: NVTETensor,
    act_input: NVTETensor,
    output: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_dqgeglu_cast_transpose", || {
        let f = NVTEX_QGELU;
        let input = check::tensor("input", input)?;
        let act_input = check::tensor("act_input", act_input)?;
        let output = check::tensor("output", output)?;
        gated_derivative(f, &input, &act_input, &output, stream)
    });
}

/// Casts and transposes the gradient of an activation, and sums it over its rows:
/// `nvte_cast_transpose_dbias` of `v = f'(act_input) * input` instead of the input, with the f of
/// `nvte_srelu`.
///
/// Otherwise as `nvte_cast_transpose_dbias_dgelu`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_cast_transpose_dbias_dsrelu(
    input: NVTETensor,
    act_input: NVTETensor,
    output: NVTETensor,
    dbias: NVTETensor,
    workspace: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_cast_transpose_dbias_dsrelu", || {
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

/// Casts and transposes the gradient of a gated activation: with act_input = (a | g) in halves,
/// `nvte_cast_transpose` of `(f'(a) * input * g | input * f(a))` in Float32, with the f of
/// `nvte_srelu`.
///
/// Otherwise as `nvte_dgeglu_cast_transpose`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_dsreglu_cast_transpose(
    input: NVTETensor,
    act_input: NVTETensor,
    output: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_dsreglu_cast_transpose", || {
        let f = NVTEX_SRELU;
        let input = check::tensor("input", input)?;
        let act_input = check::tensor("act_input", act_input)?;
        let output = check::tensor("output", output)?;
        gated_derivative(f, &input, &act_input, &output, stream)
    });
}
