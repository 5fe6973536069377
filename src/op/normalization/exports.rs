//! C functions of normalization.h: LayerNorm and RMSNorm.
#![allow(unsafe_code, non_snake_case, clippy::missing_safety_doc, clippy::too_many_arguments)]

use super::*;
use crate::check::{rowwise, tensor};
use crate::error::guard;
use crate::workspace::{self, Asks};

fn common(norm: NVTE_Norm_Type, sm_count: c_int, zero_centered: bool) -> Common {
    Common { norm, sm_count, zero_centered }
}

/// Row-wise data of two tensors, if there are any.
fn pair(
    names: [&str; 2],
    handles: Option<(NVTETensor, NVTETensor)>,
) -> Result<Option<(Buffer, Buffer)>> {
    let Some((first, second)) = handles else { return Ok(None) };
    Ok(Some((rowwise(names[0], first)?, rowwise(names[1], second)?)))
}

fn refs(pair: &Option<(Buffer, Buffer)>) -> Option<(&Buffer, &Buffer)> {
    pair.as_ref().map(|(first, second)| (first, second))
}

/// Handles of what [`Forward`] has.
struct ForwardHandles {
    x: NVTETensor,
    residual: Option<(NVTETensor, NVTETensor)>,
    gamma: NVTETensor,
    layer: Option<(NVTETensor, NVTETensor)>,
    epsilon: f32,
    z: NVTETensor,
    rsigma: NVTETensor,
}

impl ForwardHandles {
    fn run(
        &self,
        common: &Common,
        workspace: Option<NVTETensor>,
        stream: cudaStream_t,
    ) -> Result<()> {
        let x = tensor("x", self.x)?;
        let gamma = tensor("gamma", self.gamma)?;
        let layer = pair(["beta", "mu"], self.layer)?;
        let rsigma = rowwise("rsigma", self.rsigma)?;
        let residual = pair(["residual", "sum"], self.residual)?;
        let z = tensor("z", self.z)?;
        let tensors = Forward {
            x: &x,
            residual: refs(&residual),
            gamma: &gamma,
            layer: refs(&layer),
            epsilon: self.epsilon,
            z: &z,
            rsigma: &rsigma,
        };
        match workspace {
            None => forward(common, &tensors, None, stream),
            Some(handle) => workspace::of_handle(handle, Asks::WithoutElements, |workspace| {
                forward(common, &tensors, Some(workspace), stream)
            }),
        }
    }
}

/// Handles of what [`Backward`] has.
struct BackwardHandles {
    dz: NVTETensor,
    x: NVTETensor,
    add: Option<NVTETensor>,
    layer: Option<(NVTETensor, NVTETensor)>,
    rsigma: NVTETensor,
    gamma: NVTETensor,
    dx: NVTETensor,
    dgamma: NVTETensor,
}

impl BackwardHandles {
    fn run(&self, common: &Common, workspace: NVTETensor, stream: cudaStream_t) -> Result<()> {
        let x = tensor("x", self.x)?;
        let gamma = tensor("gamma", self.gamma)?;
        let dz = rowwise("dz", self.dz)?;
        let add = self.add.map(|add| rowwise("add", add)).transpose()?;
        let rsigma = rowwise("rsigma", self.rsigma)?;
        let dx = rowwise("dx", self.dx)?;
        let dgamma = rowwise("dgamma", self.dgamma)?;
        let layer = pair(["mu", "dbeta"], self.layer)?;
        let tensors = Backward {
            dz: &dz,
            x: &x,
            add: add.as_ref(),
            layer: refs(&layer),
            rsigma: &rsigma,
            gamma: &gamma,
            dx: &dx,
            dgamma: &dgamma,
        };
        workspace::of_handle(workspace, Asks::WithoutElements, |workspace| {
            backward(common, &tensors, workspace, stream)
        })
    }
}

/// LayerNorm of each row: `mu = mean(x)`, `rsigma = 1 / sqrt(mean((x - mu)^2) + epsilon)`,
/// `z = g * (rsigma * (x - mu)) + beta`, with `g = gamma`, or `gamma + 1` if `zero_centered_gamma`.
/// Computed in float32 and rounded once.
///
/// Shapes: x and z `[N, H]`, gamma and beta `[H]`, mu and rsigma `[N]`. N may be 0.
/// Dtypes: x Float32, Float16 or BFloat16; gamma and beta one of these; mu and rsigma Float32; z one
/// of these or Float8E4M3, Float8E5M2 in any scaling mode of `nvte_quantize`, as which it is cast
/// (per tensor: with row-wise data). `amax` of z, if there, is raised to the largest `|z|`: for
/// Float32, Float16 and BFloat16 of the rounded values, for FP8 before scaling.
/// Workspace: without elements, it takes the shape that is needed (dtype Byte) and nothing else
/// happens; else it must have that many bytes, which depend on the other shapes and
/// `multiprocessorCount`, the number of multiprocessors that the call may keep busy.
/// mu and rsigma are always written. Row-wise z may be x if elements are of one size; no output overlaps
/// anything otherwise.
/// Errors: other dtypes or shapes; a negative or NaN epsilon; `multiprocessorCount` below 1; null or
/// misaligned pointers.
/// Source: Ba, Kiros, Hinton, Layer Normalization (2016).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_layernorm_fwd(
    x: NVTETensor,
    gamma: NVTETensor,
    beta: NVTETensor,
    epsilon: f32,
    z: NVTETensor,
    mu: NVTETensor,
    rsigma: NVTETensor,
    workspace: NVTETensor,
    multiprocessorCount: c_int,
    zero_centered_gamma: bool,
    stream: cudaStream_t,
) {
    let common = common(LayerNorm, multiprocessorCount, zero_centered_gamma);
    let layer = Some((beta, mu));
    let handles = ForwardHandles { x, residual: None, gamma, layer, epsilon, z, rsigma };
    guard("nvte_layernorm_fwd", || handles.run(&common, Some(workspace), stream));
}

/// Gradients of `nvte_layernorm_fwd`, from its x, mu and rsigma. With `y = rsigma * (x - mu)` and
/// `d = g * dz`: `dx = rsigma * (d - mean(d * y) * y - mean(d))` with means over the row,
/// `dgamma = sum(dz * y)` and `dbeta = sum(dz)` over the rows. Sums are in float32 and in an order
/// that depends on shapes, dtypes and `multiprocessorCount` alone.
///
/// Shapes: dz, x and dx `[N, H]`, gamma, dgamma and dbeta `[H]`, mu and rsigma `[N]`. N may be 0.
/// Dtypes: x and gamma each Float32, Float16 or BFloat16; dx as x; dz, dgamma and dbeta as gamma;
/// mu and rsigma Float32. dx may be dz or x if the dtypes are equal; no output overlaps anything otherwise.
/// Workspace, errors: as `nvte_layernorm_fwd`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_layernorm_bwd(
    dz: NVTETensor,
    x: NVTETensor,
    mu: NVTETensor,
    rsigma: NVTETensor,
    gamma: NVTETensor,
    dx: NVTETensor,
    dgamma: NVTETensor,
    dbeta: NVTETensor,
    workspace: NVTETensor,
    multiprocessorCount: c_int,
    zero_centered_gamma: bool,
    stream: cudaStream_t,
) {
    let common = common(LayerNorm, multiprocessorCount, zero_centered_gamma);
    let layer = Some((mu, dbeta));
    let handles = BackwardHandles { dz, x, add: None, layer, rsigma, gamma, dx, dgamma };
    guard("nvte_layernorm_bwd", || handles.run(&common, workspace, stream));
}

/// RMSNorm of each row: `rsigma = 1 / sqrt(mean(x^2) + epsilon)`, `z = g * (rsigma * x)`; all else as
/// `nvte_layernorm_fwd`.
///
/// Source: Zhang, Sennrich, Root Mean Square Layer Normalization (2019).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_rmsnorm_fwd(
    x: NVTETensor,
    gamma: NVTETensor,
    epsilon: f32,
    z: NVTETensor,
    rsigma: NVTETensor,
    workspace: NVTETensor,
    multiprocessorCount: c_int,
    zero_centered_gamma: bool,
    stream: cudaStream_t,
) {
    let common = common(RMSNorm, multiprocessorCount, zero_centered_gamma);
    let handles = ForwardHandles { x, residual: None, gamma, layer: None, epsilon, z, rsigma };
    guard("nvte_rmsnorm_fwd", || handles.run(&common, Some(workspace), stream));
}

/// Gradients of `nvte_rmsnorm_fwd`: with `y = rsigma * x` and `d = g * dz`,
/// `dx = rsigma * (d - mean(d * y) * y)` and `dgamma = sum(dz * y)`; all else as
/// `nvte_layernorm_bwd`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_rmsnorm_bwd(
    dz: NVTETensor,
    x: NVTETensor,
    rsigma: NVTETensor,
    gamma: NVTETensor,
    dx: NVTETensor,
    dgamma: NVTETensor,
    workspace: NVTETensor,
    multiprocessorCount: c_int,
    zero_centered_gamma: bool,
    stream: cudaStream_t,
) {
    let common = common(RMSNorm, multiprocessorCount, zero_centered_gamma);
    let handles = BackwardHandles { dz, x, add: None, layer: None, rsigma, gamma, dx, dgamma };
    guard("nvte_rmsnorm_bwd", || handles.run(&common, workspace, stream));
}

/// As `nvte_rmsnorm_bwd`, with `add`, of the shape of dz and the dtype of gamma, added to dx before it
/// is rounded: the gradient that reaches x beside the normalization. dx may be add, too.
///
/// Errors: also if gamma is to be centred in its dtype while cuDNN's backward pass is not enabled.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_rmsnorm_bwd_add(
    dz: NVTETensor,
    x: NVTETensor,
    add: NVTETensor,
    rsigma: NVTETensor,
    gamma: NVTETensor,
    dx: NVTETensor,
    dgamma: NVTETensor,
    workspace: NVTETensor,
    multiprocessorCount: c_int,
    zero_centered_gamma: bool,
    stream: cudaStream_t,
) {
    let common = common(RMSNorm, multiprocessorCount, zero_centered_gamma);
    let handles = BackwardHandles { dz, x, add: Some(add), layer: None, rsigma, gamma, dx, dgamma };
    guard("nvte_rmsnorm_bwd_add", || handles.run(&common, workspace, stream));
}

/// Process-wide switch, off unless `NVTE_NORM_FWD_USE_CUDNN=1`. This library does not need cuDNN and
/// computes the same either way; while on, Float32, Float16 and BFloat16 outputs may have no amax,
/// and `nvte_enable_zero_centered_gamma_in_weight_dtype` has an effect on forward functions.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_enable_cudnn_norm_fwd(enable: bool) {
    guard("nvte_enable_cudnn_norm_fwd", || set(Switch::CudnnForward, enable));
}

/// Process-wide switch, off unless `NVTE_NORM_BWD_USE_CUDNN=1`; while on,
/// `nvte_enable_zero_centered_gamma_in_weight_dtype` has an effect on backward functions.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_enable_cudnn_norm_bwd(enable: bool) {
    guard("nvte_enable_cudnn_norm_bwd", || set(Switch::CudnnBackward, enable));
}

/// Process-wide switch, off unless `NVTE_ZERO_CENTERED_GAMMA_IN_WTYPE=1`: rounds `gamma + 1` to the
/// dtype of gamma, with MXFP8 outputs or where cuDNN is enabled.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_enable_zero_centered_gamma_in_weight_dtype(enable: bool) {
    let name = "nvte_enable_zero_centered_gamma_in_weight_dtype";
    guard(name, || set(Switch::GammaInWeightDtype, enable));
}

/// Adds and normalizes in one pass: `sum = x + residual`, rounded to the dtype of x, then
/// `nvte_layernorm_fwd` of `sum`. The gradient is `nvtex_layernorm_bwd_add` with `sum` for x.
///
/// Shapes, dtypes: residual and sum as x. sum may be x or residual. No workspace is needed.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_residual_layernorm_fwd(
    x: NVTETensor,
    residual: NVTETensor,
    gamma: NVTETensor,
    beta: NVTETensor,
    epsilon: f32,
    sum: NVTETensor,
    z: NVTETensor,
    mu: NVTETensor,
    rsigma: NVTETensor,
    multiprocessorCount: c_int,
    zero_centered_gamma: bool,
    stream: cudaStream_t,
) {
    let common = common(LayerNorm, multiprocessorCount, zero_centered_gamma);
    let (residual, layer) = (Some((residual, sum)), Some((beta, mu)));
    let handles = ForwardHandles { x, residual, gamma, layer, epsilon, z, rsigma };
    guard("nvtex_residual_layernorm_fwd", || handles.run(&common, None, stream));
}

/// As `nvtex_residual_layernorm_fwd`, with `nvte_rmsnorm_fwd`. The gradient is `nvte_rmsnorm_bwd_add`
/// with `sum` for x.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_residual_rmsnorm_fwd(
    x: NVTETensor,
    residual: NVTETensor,
    gamma: NVTETensor,
    epsilon: f32,
    sum: NVTETensor,
    z: NVTETensor,
    rsigma: NVTETensor,
    multiprocessorCount: c_int,
    zero_centered_gamma: bool,
    stream: cudaStream_t,
) {
    let common = common(RMSNorm, multiprocessorCount, zero_centered_gamma);
    let residual = Some((residual, sum));
    let handles = ForwardHandles { x, residual, gamma, layer: None, epsilon, z, rsigma };
    guard("nvtex_residual_rmsnorm_fwd", || handles.run(&common, None, stream));
}

/// As `nvte_layernorm_bwd`, with `add`, of the shape and dtype of dz, added to dx before it is
/// rounded. dx may be add, too.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_layernorm_bwd_add(
    dz: NVTETensor,
    x: NVTETensor,
    add: NVTETensor,
    mu: NVTETensor,
    rsigma: NVTETensor,
    gamma: NVTETensor,
    dx: NVTETensor,
    dgamma: NVTETensor,
    dbeta: NVTETensor,
    workspace: NVTETensor,
    multiprocessorCount: c_int,
    zero_centered_gamma: bool,
    stream: cudaStream_t,
) {
    let common = common(LayerNorm, multiprocessorCount, zero_centered_gamma);
    let layer = Some((mu, dbeta));
    let handles = BackwardHandles { dz, x, add: Some(add), layer, rsigma, gamma, dx, dgamma };
    guard("nvtex_layernorm_bwd_add", || handles.run(&common, workspace, stream));
}
