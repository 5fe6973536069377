//! C functions of activation.h. Generated from `table.rs` by tests/abi.rs.
#![allow(unsafe_code, clippy::missing_safety_doc, clippy::too_many_arguments)]

use super::*;
use crate::error::guard;

/// Applies an activation: `output = f(input)`,
/// `f(x) = x (1 + tanh(x (0.79788456 + 0.03567741 x^2))) / 2`.
///
/// What it computes: f in float32, then a cast in the scaling mode of the output as `nvte_quantize`
/// casts, with the same rules for shapes, scales and `amax`. For FP8 blocks and MXFP8 `f` is
/// rounded to the input's dtype first. NaN counts as 0 in relu and srelu.
///
/// Dtypes: Float32, Float16 or BFloat16 to these (per tensor) and to Float8E4M3 or Float8E5M2.
///
/// Overlaps: the row-wise output of per-tensor scaling may be the input if their elements have the
/// same size.
///
/// Errors: as `nvte_quantize`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_gelu(
    input: NVTETensor,
    output: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_gelu", || {
        let f = function(NVTEX_GELU);
        let input = check::tensor("input", input)?;
        let output = check::tensor("output", output)?;
        forward(f, &input, &output, stream)
    });
}

/// Computes the gradient of an activation: `output = f'(input) * grad`,
/// `f(x) = x (1 + tanh(x (0.79788456 + 0.03567741 x^2))) / 2`.
///
/// It is computed in float32 and cast as `nvte_gelu` casts. The derivatives of relu and srelu are 0
/// at 0.
///
/// Shapes, dtypes: grad as input.
///
/// Errors: as `nvte_gelu`; grad and input that differ in shape or dtype.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_dgelu(
    grad: NVTETensor,
    input: NVTETensor,
    output: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_dgelu", || {
        let f = function(NVTEX_GELU);
        let grad = check::tensor("grad", grad)?;
        let input = check::tensor("input", input)?;
        let output = check::tensor("output", output)?;
        backward(f, &grad, &input, &output, stream)
    });
}

/// Applies an activation to the members of a grouped tensor: `output = f(input)`,
/// `f(x) = x (1 + tanh(x (0.79788456 + 0.03567741 x^2))) / 2`.
///
/// Each member is treated as by `nvte_gelu`, with the layouts and rules of `nvte_group_quantize`.
///
/// Errors: as `nvte_group_quantize`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_group_gelu(
    input: NVTEGroupedTensor,
    output: NVTEGroupedTensor,
    stream: cudaStream_t,
) {
    guard("nvte_group_gelu", || {
        let f = function(NVTEX_GELU);
        let input = check::grouped_tensor("input", input)?;
        let output = check::grouped_tensor("output", output)?;
        group_forward(f, &input, &output, stream)
    });
}

/// Computes the gradient of an activation for the members of a grouped tensor:
/// `output = f'(input) * grad`, `f(x) = x (1 + tanh(x (0.79788456 + 0.03567741 x^2))) / 2`.
///
/// Each member is treated as by `nvte_dgelu`. All three are grouped tensors, the output too,
/// although its type is that of a tensor.
///
/// Errors: as `nvte_group_quantize`; grad and input of different dtypes.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_group_dgelu(
    grad: NVTEGroupedTensor,
    input: NVTEGroupedTensor,
    output: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_group_dgelu", || {
        let f = function(NVTEX_GELU);
        let grad = check::grouped_tensor("grad", grad)?;
        let input = check::grouped_tensor("input", input)?;
        let output = check::grouped_tensor("output", output)?;
        group_backward(f, &grad, &input, &output, stream)
    });
}

/// Applies a gated activation: `output = f(a) * G(g)`,
/// `f(x) = x (1 + tanh(x (0.79788456 + 0.03567741 x^2))) / 2`, `G(x) = x`.
///
/// Shapes: input `[..., 2 n]`, each row the halves (a | g); output `[..., n]`.
///
/// It is computed in float32 and cast as `nvte_gelu` casts. The output may not be the input.
///
/// Errors: as `nvte_gelu`; an odd last dimension.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_geglu(
    input: NVTETensor,
    output: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_geglu", || {
        let f = function(NVTEX_GELU);
        let input = check::tensor("input", input)?;
        let output = check::tensor("output", output)?;
        gated_forward(f, &input, &output, stream)
    });
}

/// Computes the gradient of a gated activation:
/// `output = (f'(a) * grad * G(g) | G'(g) * grad * f(a))`,
/// `f(x) = x (1 + tanh(x (0.79788456 + 0.03567741 x^2))) / 2`, `G(x) = x`.
///
/// Shapes: grad `[..., n]`; input `[..., 2 n]`, each row the halves (a | g); output as input.
///
/// It is computed in float32 and cast as `nvte_gelu` casts. The output may not be an input. Clamped
/// values have the derivative 0.
///
/// Errors: as `nvte_gelu`; an odd last dimension; grad of another dtype than input.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_dgeglu(
    grad: NVTETensor,
    input: NVTETensor,
    output: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_dgeglu", || {
        let f = function(NVTEX_GELU);
        let grad = check::tensor("grad", grad)?;
        let input = check::tensor("input", input)?;
        let output = check::tensor("output", output)?;
        gated_backward(f, &grad, &input, &output, stream)
    });
}

/// Applies an activation: `output = f(input)`, `f(x) = x / (1 + exp(-x))`.
///
/// Otherwise as `nvte_gelu`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_silu(
    input: NVTETensor,
    output: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_silu", || {
        let f = function(NVTEX_SILU);
        let input = check::tensor("input", input)?;
        let output = check::tensor("output", output)?;
        forward(f, &input, &output, stream)
    });
}

/// Computes the gradient of an activation: `output = f'(input) * grad`, `f(x) = x / (1 + exp(-x))`.
///
/// Otherwise as `nvte_dgelu`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_dsilu(
    grad: NVTETensor,
    input: NVTETensor,
    output: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_dsilu", || {
        let f = function(NVTEX_SILU);
        let grad = check::tensor("grad", grad)?;
        let input = check::tensor("input", input)?;
        let output = check::tensor("output", output)?;
        backward(f, &grad, &input, &output, stream)
    });
}

/// Applies an activation to the members of a grouped tensor: `output = f(input)`,
/// `f(x) = x / (1 + exp(-x))`.
///
/// Otherwise as `nvte_group_gelu`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_group_silu(
    input: NVTEGroupedTensor,
    output: NVTEGroupedTensor,
    stream: cudaStream_t,
) {
    guard("nvte_group_silu", || {
        let f = function(NVTEX_SILU);
        let input = check::grouped_tensor("input", input)?;
        let output = check::grouped_tensor("output", output)?;
        group_forward(f, &input, &output, stream)
    });
}

/// Computes the gradient of an activation for the members of a grouped tensor:
/// `output = f'(input) * grad`, `f(x) = x / (1 + exp(-x))`.
///
/// Otherwise as `nvte_group_dgelu`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_group_dsilu(
    grad: NVTEGroupedTensor,
    input: NVTEGroupedTensor,
    output: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_group_dsilu", || {
        let f = function(NVTEX_SILU);
        let grad = check::grouped_tensor("grad", grad)?;
        let input = check::grouped_tensor("input", input)?;
        let output = check::grouped_tensor("output", output)?;
        group_backward(f, &grad, &input, &output, stream)
    });
}

/// Applies a gated activation: `output = f(a) * G(g)`, `f(x) = x / (1 + exp(-x))`, `G(x) = x`.
///
/// Otherwise as `nvte_geglu`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_swiglu(
    input: NVTETensor,
    output: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_swiglu", || {
        let f = function(NVTEX_SILU);
        let input = check::tensor("input", input)?;
        let output = check::tensor("output", output)?;
        gated_forward(f, &input, &output, stream)
    });
}

/// Computes the gradient of a gated activation:
/// `output = (f'(a) * grad * G(g) | G'(g) * grad * f(a))`, `f(x) = x / (1 + exp(-x))`, `G(x) = x`.
///
/// Otherwise as `nvte_dgeglu`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_dswiglu(
    grad: NVTETensor,
    input: NVTETensor,
    output: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_dswiglu", || {
        let f = function(NVTEX_SILU);
        let grad = check::tensor("grad", grad)?;
        let input = check::tensor("input", input)?;
        let output = check::tensor("output", output)?;
        gated_backward(f, &grad, &input, &output, stream)
    });
}

/// Applies a gated activation and multiplies each row by its scale:
/// `output = f(a) * G(g) * act_scales`, `f(x) = x / (1 + exp(-x))`, `G(x) = x`.
///
/// Shapes: output `[..., n]` with R rows; input `[..., 2 n]`, each row the halves (a | g), or with
/// `glu_interleave_size = i > 0` blocks of i elements of a and as many of g in turn; act_scales R
/// elements.
///
/// Dtypes: each tensor Float32, Float16 or BFloat16. It is computed in float32 and rounded once.
/// Scaling modes and scales are ignored.
///
/// Errors: other dtypes; shapes that do not fit; a `glu_interleave_size` that is negative, no
/// multiple of 32 or no divisor of n; null or misaligned pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_scaled_swiglu(
    input: NVTETensor,
    act_scales: NVTETensor,
    output: NVTETensor,
    glu_interleave_size: i64,
    stream: cudaStream_t,
) {
    guard("nvte_scaled_swiglu", || {
        let f = function(NVTEX_SILU);
        let input = check::tensor("input", input)?;
        let act_scales = check::tensor("act_scales", act_scales)?;
        let output = check::tensor("output", output)?;
        scaled_gated(f, &input, &act_scales, &output, glu_interleave_size, stream)
    });
}

/// Computes the gradients of a gated activation with a scale for each row:
/// `grad_input = (s * f'(a) * G(g) | s * G'(g) * f(a))` with `s = grad * act_scales`, and
/// `grad_act_scales` = the sum of `grad * f(a) * G(g)` over the row, `f(x) = x / (1 + exp(-x))`,
/// `G(x) = x`.
///
/// Shapes, dtypes, errors: as `nvte_scaled_swiglu`, with grad `[..., n]`, grad_input as input and
/// interleaved likewise, and grad_act_scales R elements or null for none. Sums are in float32, in a
/// fixed order.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_scaled_dswiglu(
    grad: NVTETensor,
    input: NVTETensor,
    act_scales: NVTETensor,
    grad_input: NVTETensor,
    grad_act_scales: NVTETensor,
    glu_interleave_size: i64,
    stream: cudaStream_t,
) {
    guard("nvte_scaled_dswiglu", || {
        let f = function(NVTEX_SILU);
        let grad = check::tensor("grad", grad)?;
        let input = check::tensor("input", input)?;
        let act_scales = check::tensor("act_scales", act_scales)?;
        let grad_input = check::tensor("grad_input", grad_input)?;
        let grad_act_scales = check::optional_tensor("grad_act_scales", grad_act_scales)?;
        scaled_gated_backward(
            f,
            &grad,
            &input,
            &act_scales,
            &grad_input,
            grad_act_scales.as_ref(),
            glu_interleave_size,
            stream,
        )
    });
}

/// Applies a gated activation to the members of a grouped tensor, and multiplies each row by its
/// factor: `output = f(a) * G(g) * prob`, `f(x) = x / (1 + exp(-x))`, `G(x) = x`.
///
/// Shapes: grouped input `[N, 2 n]`, each row the halves (a | g); grouped output `[N, n]` with as
/// many members of one last dimension; prob N elements or more of the input's dtype, the i-th for
/// row i of the whole.
///
/// The result is cast as `nvte_group_gelu` casts.
///
/// Errors: as `nvte_group_gelu`; members that differ in their last dimension.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_group_scaled_swiglu(
    input: NVTEGroupedTensor,
    prob: NVTETensor,
    output: NVTEGroupedTensor,
    stream: cudaStream_t,
) {
    guard("nvte_group_scaled_swiglu", || {
        let f = function(NVTEX_SILU);
        let input = check::grouped_tensor("input", input)?;
        let prob = check::tensor("prob", prob)?;
        let output = check::grouped_tensor("output", output)?;
        group_scaled(f, &input, &prob, &output, stream)
    });
}

/// Applies an activation: `output = f(input)`, `f(x) = max(x, 0)`.
///
/// Otherwise as `nvte_gelu`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_relu(
    input: NVTETensor,
    output: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_relu", || {
        let f = function(NVTEX_RELU);
        let input = check::tensor("input", input)?;
        let output = check::tensor("output", output)?;
        forward(f, &input, &output, stream)
    });
}

/// Computes the gradient of an activation: `output = f'(input) * grad`, `f(x) = max(x, 0)`.
///
/// Otherwise as `nvte_dgelu`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_drelu(
    grad: NVTETensor,
    input: NVTETensor,
    output: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_drelu", || {
        let f = function(NVTEX_RELU);
        let grad = check::tensor("grad", grad)?;
        let input = check::tensor("input", input)?;
        let output = check::tensor("output", output)?;
        backward(f, &grad, &input, &output, stream)
    });
}

/// Applies an activation to the members of a grouped tensor: `output = f(input)`,
/// `f(x) = max(x, 0)`.
///
/// Otherwise as `nvte_group_gelu`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_group_relu(
    input: NVTEGroupedTensor,
    output: NVTEGroupedTensor,
    stream: cudaStream_t,
) {
    guard("nvte_group_relu", || {
        let f = function(NVTEX_RELU);
        let input = check::grouped_tensor("input", input)?;
        let output = check::grouped_tensor("output", output)?;
        group_forward(f, &input, &output, stream)
    });
}

/// Computes the gradient of an activation for the members of a grouped tensor:
/// `output = f'(input) * grad`, `f(x) = max(x, 0)`.
///
/// Otherwise as `nvte_group_dgelu`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_group_drelu(
    grad: NVTEGroupedTensor,
    input: NVTEGroupedTensor,
    output: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_group_drelu", || {
        let f = function(NVTEX_RELU);
        let grad = check::grouped_tensor("grad", grad)?;
        let input = check::grouped_tensor("input", input)?;
        let output = check::grouped_tensor("output", output)?;
        group_backward(f, &grad, &input, &output, stream)
    });
}

/// Applies a gated activation: `output = f(a) * G(g)`, `f(x) = max(x, 0)`, `G(x) = x`.
///
/// Otherwise as `nvte_geglu`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_reglu(
    input: NVTETensor,
    output: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_reglu", || {
        let f = function(NVTEX_RELU);
        let input = check::tensor("input", input)?;
        let output = check::tensor("output", output)?;
        gated_forward(f, &input, &output, stream)
    });
}

/// Computes the gradient of a gated activation:
/// `output = (f'(a) * grad * G(g) | G'(g) * grad * f(a))`, `f(x) = max(x, 0)`, `G(x) = x`.
///
/// Otherwise as `nvte_dgeglu`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_dreglu(
    grad: NVTETensor,
    input: NVTETensor,
    output: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_dreglu", || {
        let f = function(NVTEX_RELU);
        let grad = check::tensor("grad", grad)?;
        let input = check::tensor("input", input)?;
        let output = check::tensor("output", output)?;
        gated_backward(f, &grad, &input, &output, stream)
    });
}

/// Applies an activation: `output = f(input)`, `f(x) = x / (1 + exp(-1.702 x))`.
///
/// Otherwise as `nvte_gelu`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_qgelu(
    input: NVTETensor,
    output: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_qgelu", || {
        let f = function(NVTEX_QGELU);
        let input = check::tensor("input", input)?;
        let output = check::tensor("output", output)?;
        forward(f, &input, &output, stream)
    });
}

/// Computes the gradient of an activation: `output = f'(input) * grad`,
/// `f(x) = x / (1 + exp(-1.702 x))`.
///
/// Otherwise as `nvte_dgelu`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_dqgelu(
    grad: NVTETensor,
    input: NVTETensor,
    output: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_dqgelu", || {
        let f = function(NVTEX_QGELU);
        let grad = check::tensor("grad", grad)?;
        let input = check::tensor("input", input)?;
        let output = check::tensor("output", output)?;
        backward(f, &grad, &input, &output, stream)
    });
}

/// Applies an activation to the members of a grouped tensor: `output = f(input)`,
/// `f(x) = x / (1 + exp(-1.702 x))`.
///
/// Otherwise as `nvte_group_gelu`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_group_qgelu(
    input: NVTEGroupedTensor,
    output: NVTEGroupedTensor,
    stream: cudaStream_t,
) {
    guard("nvte_group_qgelu", || {
        let f = function(NVTEX_QGELU);
        let input = check::grouped_tensor("input", input)?;
        let output = check::grouped_tensor("output", output)?;
        group_forward(f, &input, &output, stream)
    });
}

/// Computes the gradient of an activation for the members of a grouped tensor:
/// `output = f'(input) * grad`, `f(x) = x / (1 + exp(-1.702 x))`.
///
/// Otherwise as `nvte_group_dgelu`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_group_dqgelu(
    grad: NVTEGroupedTensor,
    input: NVTEGroupedTensor,
    output: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_group_dqgelu", || {
        let f = function(NVTEX_QGELU);
        let grad = check::grouped_tensor("grad", grad)?;
        let input = check::grouped_tensor("input", input)?;
        let output = check::grouped_tensor("output", output)?;
        group_backward(f, &grad, &input, &output, stream)
    });
}

/// Applies a gated activation: `output = f(a) * G(g)`, `f(x) = x / (1 + exp(-1.702 x))`,
/// `G(x) = x`.
///
/// Otherwise as `nvte_geglu`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_qgeglu(
    input: NVTETensor,
    output: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_qgeglu", || {
        let f = function(NVTEX_QGELU);
        let input = check::tensor("input", input)?;
        let output = check::tensor("output", output)?;
        gated_forward(f, &input, &output, stream)
    });
}

/// Computes the gradient of a gated activation:
/// `output = (f'(a) * grad * G(g) | G'(g) * grad * f(a))`, `f(x) = x / (1 + exp(-1.702 x))`,
/// `G(x) = x`.
///
/// Otherwise as `nvte_dgeglu`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_dqgeglu(
    grad: NVTETensor,
    input: NVTETensor,
    output: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_dqgeglu", || {
        let f = function(NVTEX_QGELU);
        let grad = check::tensor("grad", grad)?;
        let input = check::tensor("input", input)?;
        let output = check::tensor("output", output)?;
        gated_backward(f, &grad, &input, &output, stream)
    });
}

/// Applies an activation: `output = f(input)`, `f(x) = max(x, 0)^2`.
///
/// Otherwise as `nvte_gelu`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_srelu(
    input: NVTETensor,
    output: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_srelu", || {
        let f = function(NVTEX_SRELU);
        let input = check::tensor("input", input)?;
        let output = check::tensor("output", output)?;
        forward(f, &input, &output, stream)
    });
}

/// Computes the gradient of an activation: `output = f'(input) * grad`, `f(x) = max(x, 0)^2`.
///
/// Otherwise as `nvte_dgelu`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_dsrelu(
    grad: NVTETensor,
    input: NVTETensor,
    output: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_dsrelu", || {
        let f = function(NVTEX_SRELU);
        let grad = check::tensor("grad", grad)?;
        let input = check::tensor("input", input)?;
        let output = check::tensor("output", output)?;
        backward(f, &grad, &input, &output, stream)
    });
}

/// Applies an activation to the members of a grouped tensor: `output = f(input)`,
/// `f(x) = max(x, 0)^2`.
///
/// Otherwise as `nvte_group_gelu`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_group_srelu(
    input: NVTEGroupedTensor,
    output: NVTEGroupedTensor,
    stream: cudaStream_t,
) {
    guard("nvte_group_srelu", || {
        let f = function(NVTEX_SRELU);
        let input = check::grouped_tensor("input", input)?;
        let output = check::grouped_tensor("output", output)?;
        group_forward(f, &input, &output, stream)
    });
}

/// Computes the gradient of an activation for the members of a grouped tensor:
/// `output = f'(input) * grad`, `f(x) = max(x, 0)^2`.
///
/// Otherwise as `nvte_group_dgelu`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_group_dsrelu(
    grad: NVTEGroupedTensor,
    input: NVTEGroupedTensor,
    output: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_group_dsrelu", || {
        let f = function(NVTEX_SRELU);
        let grad = check::grouped_tensor("grad", grad)?;
        let input = check::grouped_tensor("input", input)?;
        let output = check::grouped_tensor("output", output)?;
        group_backward(f, &grad, &input, &output, stream)
    });
}

/// Applies a gated activation: `output = f(a) * G(g)`, `f(x) = max(x, 0)^2`, `G(x) = x`.
///
/// Otherwise as `nvte_geglu`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_sreglu(
    input: NVTETensor,
    output: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_sreglu", || {
        let f = function(NVTEX_SRELU);
        let input = check::tensor("input", input)?;
        let output = check::tensor("output", output)?;
        gated_forward(f, &input, &output, stream)
    });
}

/// Computes the gradient of a gated activation:
/// `output = (f'(a) * grad * G(g) | G'(g) * grad * f(a))`, `f(x) = max(x, 0)^2`, `G(x) = x`.
///
/// Otherwise as `nvte_dgeglu`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_dsreglu(
    grad: NVTETensor,
    input: NVTETensor,
    output: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_dsreglu", || {
        let f = function(NVTEX_SRELU);
        let grad = check::tensor("grad", grad)?;
        let input = check::tensor("input", input)?;
        let output = check::tensor("output", output)?;
        gated_backward(f, &grad, &input, &output, stream)
    });
}

/// Applies an activation and multiplies each row by its scale: `output = f(input) * act_scales`,
/// `f(x) = max(x, 0)^2`.
///
/// Shapes: the output as the input; act_scales one for each row.
///
/// Dtypes, errors: as `nvte_scaled_swiglu`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_scaled_srelu(
    input: NVTETensor,
    act_scales: NVTETensor,
    output: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_scaled_srelu", || {
        let f = function(NVTEX_SRELU);
        let input = check::tensor("input", input)?;
        let act_scales = check::tensor("act_scales", act_scales)?;
        let output = check::tensor("output", output)?;
        scaled_plain(f, &input, &act_scales, &output, stream)
    });
}

/// Computes the gradients of an activation with a scale for each row:
/// `grad_input = grad * act_scales * f'(input)`, and `grad_act_scales` = the sum of
/// `grad * f(input)` over the row, `f(x) = max(x, 0)^2`.
///
/// Shapes: grad and grad_input as the input.
///
/// Dtypes, errors: as `nvte_scaled_dswiglu`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_scaled_dsrelu(
    grad: NVTETensor,
    input: NVTETensor,
    act_scales: NVTETensor,
    grad_input: NVTETensor,
    grad_act_scales: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_scaled_dsrelu", || {
        let f = function(NVTEX_SRELU);
        let grad = check::tensor("grad", grad)?;
        let input = check::tensor("input", input)?;
        let act_scales = check::tensor("act_scales", act_scales)?;
        let grad_input = check::tensor("grad_input", grad_input)?;
        let grad_act_scales = check::optional_tensor("grad_act_scales", grad_act_scales)?;
        scaled_plain_backward(
            f,
            &grad,
            &input,
            &act_scales,
            &grad_input,
            grad_act_scales.as_ref(),
            stream,
        )
    });
}

/// Applies a gated activation: `output = f(a) * G(g)`, `f(x) = 1 / (1 + exp(-x))`, `G(x) = x`.
///
/// Otherwise as `nvte_geglu`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_glu(
    input: NVTETensor,
    output: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_glu", || {
        let f = function(NVTEX_SIGMOID);
        let input = check::tensor("input", input)?;
        let output = check::tensor("output", output)?;
        gated_forward(f, &input, &output, stream)
    });
}

/// Computes the gradient of a gated activation:
/// `output = (f'(a) * grad * G(g) | G'(g) * grad * f(a))`, `f(x) = 1 / (1 + exp(-x))`, `G(x) = x`.
///
/// Otherwise as `nvte_dgeglu`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_dglu(
    grad: NVTETensor,
    input: NVTETensor,
    output: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_dglu", || {
        let f = function(NVTEX_SIGMOID);
        let grad = check::tensor("grad", grad)?;
        let input = check::tensor("input", input)?;
        let output = check::tensor("output", output)?;
        gated_backward(f, &grad, &input, &output, stream)
    });
}

/// Applies a gated activation: `output = f(a) * G(g)`,
/// `f(x) = beta1 tanh(x / beta1) / (1 + exp(-x))`, `G(x) = beta2 tanh(x / beta2)`.
///
/// Otherwise as `nvte_geglu`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_situglu(
    input: NVTETensor,
    output: NVTETensor,
    beta1: f32,
    beta2: f32,
    stream: cudaStream_t,
) {
    guard("nvte_situglu", || {
        let f = situ(beta1, beta2)?;
        let input = check::tensor("input", input)?;
        let output = check::tensor("output", output)?;
        gated_forward(f, &input, &output, stream)
    });
}

/// Computes the gradient of a gated activation:
/// `output = (f'(a) * grad * G(g) | G'(g) * grad * f(a))`,
/// `f(x) = beta1 tanh(x / beta1) / (1 + exp(-x))`, `G(x) = beta2 tanh(x / beta2)`.
///
/// Otherwise as `nvte_dgeglu`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_dsituglu(
    grad: NVTETensor,
    input: NVTETensor,
    output: NVTETensor,
    beta1: f32,
    beta2: f32,
    stream: cudaStream_t,
) {
    guard("nvte_dsituglu", || {
        let f = situ(beta1, beta2)?;
        let grad = check::tensor("grad", grad)?;
        let input = check::tensor("input", input)?;
        let output = check::tensor("output", output)?;
        gated_backward(f, &grad, &input, &output, stream)
    });
}

/// Applies a gated activation and multiplies each row by its scale:
/// `output = f(a) * G(g) * act_scales`, `f(x) = beta1 tanh(x / beta1) / (1 + exp(-x))`,
/// `G(x) = beta2 tanh(x / beta2)`.
///
/// Otherwise as `nvte_scaled_swiglu`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_scaled_situglu(
    input: NVTETensor,
    act_scales: NVTETensor,
    output: NVTETensor,
    beta1: f32,
    beta2: f32,
    glu_interleave_size: i64,
    stream: cudaStream_t,
) {
    guard("nvte_scaled_situglu", || {
        let f = situ(beta1, beta2)?;
        let input = check::tensor("input", input)?;
        let act_scales = check::tensor("act_scales", act_scales)?;
        let output = check::tensor("output", output)?;
        scaled_gated(f, &input, &act_scales, &output, glu_interleave_size, stream)
    });
}

/// Computes the gradients of a gated activation with a scale for each row:
/// `grad_input = (s * f'(a) * G(g) | s * G'(g) * f(a))` with `s = grad * act_scales`, and
/// `grad_act_scales` = the sum of `grad * f(a) * G(g)` over the row,
/// `f(x) = beta1 tanh(x / beta1) / (1 + exp(-x))`, `G(x) = beta2 tanh(x / beta2)`.
///
/// Otherwise as `nvte_scaled_dswiglu`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_scaled_dsituglu(
    grad: NVTETensor,
    input: NVTETensor,
    act_scales: NVTETensor,
    grad_input: NVTETensor,
    grad_act_scales: NVTETensor,
    beta1: f32,
    beta2: f32,
    glu_interleave_size: i64,
    stream: cudaStream_t,
) {
    guard("nvte_scaled_dsituglu", || {
        let f = situ(beta1, beta2)?;
        let grad = check::tensor("grad", grad)?;
        let input = check::tensor("input", input)?;
        let act_scales = check::tensor("act_scales", act_scales)?;
        let grad_input = check::tensor("grad_input", grad_input)?;
        let grad_act_scales = check::optional_tensor("grad_act_scales", grad_act_scales)?;
        scaled_gated_backward(
            f,
            &grad,
            &input,
            &act_scales,
            &grad_input,
            grad_act_scales.as_ref(),
            glu_interleave_size,
            stream,
        )
    });
}

/// Applies a gated activation: `output = f(a) * G(g)`,
/// `f(x) = min(x, limit) / (1 + exp(-alpha min(x, limit)))`,
/// `G(x) = min(max(x, -limit), limit) + 1`.
///
/// Otherwise as `nvte_geglu`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_clamped_swiglu(
    input: NVTETensor,
    output: NVTETensor,
    limit: f32,
    alpha: f32,
    stream: cudaStream_t,
) {
    guard("nvte_clamped_swiglu", || {
        let f = clamped_silu(limit, alpha, 1.0);
        let input = check::tensor("input", input)?;
        let output = check::tensor("output", output)?;
        gated_forward(f, &input, &output, stream)
    });
}

/// Computes the gradient of a gated activation:
/// `output = (f'(a) * grad * G(g) | G'(g) * grad * f(a))`,
/// `f(x) = min(x, limit) / (1 + exp(-alpha min(x, limit)))`,
/// `G(x) = min(max(x, -limit), limit) + 1`.
///
/// Otherwise as `nvte_dgeglu`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_clamped_dswiglu(
    grad: NVTETensor,
    input: NVTETensor,
    output: NVTETensor,
    limit: f32,
    alpha: f32,
    stream: cudaStream_t,
) {
    guard("nvte_clamped_dswiglu", || {
        let f = clamped_silu(limit, alpha, 1.0);
        let grad = check::tensor("grad", grad)?;
        let input = check::tensor("input", input)?;
        let output = check::tensor("output", output)?;
        gated_backward(f, &grad, &input, &output, stream)
    });
}

/// Applies a gated activation: `output = f(a) * G(g)`,
/// `f(x) = min(x, limit) / (1 + exp(-alpha min(x, limit)))`,
/// `G(x) = min(max(x, -limit), limit) + glu_linear_offset`.
///
/// Otherwise as `nvte_geglu`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_clamped_swiglu_v2(
    input: NVTETensor,
    output: NVTETensor,
    limit: f32,
    alpha: f32,
    glu_linear_offset: f32,
    stream: cudaStream_t,
) {
    guard("nvte_clamped_swiglu_v2", || {
        let f = clamped_silu(limit, alpha, glu_linear_offset);
        let input = check::tensor("input", input)?;
        let output = check::tensor("output", output)?;
        gated_forward(f, &input, &output, stream)
    });
}

/// Computes the gradient of a gated activation:
/// `output = (f'(a) * grad * G(g) | G'(g) * grad * f(a))`,
/// `f(x) = min(x, limit) / (1 + exp(-alpha min(x, limit)))`,
/// `G(x) = min(max(x, -limit), limit) + glu_linear_offset`.
///
/// Otherwise as `nvte_dgeglu`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_clamped_dswiglu_v2(
    grad: NVTETensor,
    input: NVTETensor,
    output: NVTETensor,
    limit: f32,
    alpha: f32,
    glu_linear_offset: f32,
    stream: cudaStream_t,
) {
    guard("nvte_clamped_dswiglu_v2", || {
        let f = clamped_silu(limit, alpha, glu_linear_offset);
        let grad = check::tensor("grad", grad)?;
        let input = check::tensor("input", input)?;
        let output = check::tensor("output", output)?;
        gated_backward(f, &grad, &input, &output, stream)
    });
}

/// Applies a gated activation and multiplies each row by its scale:
/// `output = f(a) * G(g) * act_scales`, `f(x) = min(x, limit) / (1 + exp(-alpha min(x, limit)))`,
/// `G(x) = min(max(x, -limit), limit) + glu_linear_offset`.
///
/// Otherwise as `nvte_scaled_swiglu`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_scaled_clamped_swiglu(
    input: NVTETensor,
    act_scales: NVTETensor,
    output: NVTETensor,
    limit: f32,
    alpha: f32,
    glu_linear_offset: f32,
    glu_interleave_size: i64,
    stream: cudaStream_t,
) {
    guard("nvte_scaled_clamped_swiglu", || {
        let f = clamped_silu(limit, alpha, glu_linear_offset);
        let input = check::tensor("input", input)?;
        let act_scales = check::tensor("act_scales", act_scales)?;
        let output = check::tensor("output", output)?;
        scaled_gated(f, &input, &act_scales, &output, glu_interleave_size, stream)
    });
}

/// Computes the gradients of a gated activation with a scale for each row:
/// `grad_input = (s * f'(a) * G(g) | s * G'(g) * f(a))` with `s = grad * act_scales`, and
/// `grad_act_scales` = the sum of `grad * f(a) * G(g)` over the row,
/// `f(x) = min(x, limit) / (1 + exp(-alpha min(x, limit)))`,
/// `G(x) = min(max(x, -limit), limit) + glu_linear_offset`.
///
/// Otherwise as `nvte_scaled_dswiglu`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_scaled_clamped_dswiglu(
    grad: NVTETensor,
    input: NVTETensor,
    act_scales: NVTETensor,
    grad_input: NVTETensor,
    grad_act_scales: NVTETensor,
    limit: f32,
    alpha: f32,
    glu_linear_offset: f32,
    glu_interleave_size: i64,
    stream: cudaStream_t,
) {
    guard("nvte_scaled_clamped_dswiglu", || {
        let f = clamped_silu(limit, alpha, glu_linear_offset);
        let grad = check::tensor("grad", grad)?;
        let input = check::tensor("input", input)?;
        let act_scales = check::tensor("act_scales", act_scales)?;
        let grad_input = check::tensor("grad_input", grad_input)?;
        let grad_act_scales = check::optional_tensor("grad_act_scales", grad_act_scales)?;
        scaled_gated_backward(
            f,
            &grad,
            &input,
            &act_scales,
            &grad_input,
            grad_act_scales.as_ref(),
            glu_interleave_size,
            stream,
        )
    });
}

/// Applies a gated activation to the members of a grouped tensor, and multiplies each row by its
/// factor: `output = f(a) * G(g) * prob`, `f(x) = min(x, limit) / (1 + exp(-alpha min(x, limit)))`,
/// `G(x) = min(max(x, -limit), limit) + glu_linear_offset`.
///
/// Otherwise as `nvte_group_scaled_swiglu`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_group_scaled_clamped_swiglu(
    input: NVTEGroupedTensor,
    prob: NVTETensor,
    output: NVTEGroupedTensor,
    limit: f32,
    alpha: f32,
    glu_linear_offset: f32,
    stream: cudaStream_t,
) {
    guard("nvte_group_scaled_clamped_swiglu", || {
        let f = clamped_silu(limit, alpha, glu_linear_offset);
        let input = check::grouped_tensor("input", input)?;
        let prob = check::tensor("prob", prob)?;
        let output = check::grouped_tensor("output", output)?;
        group_scaled(f, &input, &prob, &output, stream)
    });
}
