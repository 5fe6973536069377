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
            sums: [None; 2],
        };
        workspace::of_handle(workspace, Asks::WithoutElements, |workspace| {
            backward(common, &tensors, workspace, stream)
        })
    }
}

/// Normalizes each row to mean 0 and variance 1, and applies a weight and a bias (LayerNorm).
///
/// What it computes, in float32 with one rounding: `mu = mean(x)`,
/// `rsigma = 1 / sqrt(mean((x - mu)^2) + epsilon)` and `z = g * (rsigma * (x - mu)) + beta`, where g is
/// `gamma`, or `gamma + 1` with `zero_centered_gamma`.
///
/// Shapes: x and z `[N, H]`, gamma and beta `[H]`, mu and rsigma `[N]`. N may be 0.
///
/// Dtypes: x, gamma and beta each Float32, Float16 or BFloat16, beta that of gamma; mu and rsigma
/// Float32. z is one of these types, or Float8E4M3 or Float8E5M2 in any scaling mode, as which it is
/// cast by the rules of `nvte_quantize` (per tensor: with row-wise data).
///
/// Amax: `amax` of z, if it has one, is raised to the largest `|z|`: of the rounded values for Float32,
/// Float16 and BFloat16, of the values before scaling for FP8.
///
/// Workspace: if it has no elements, the call gives it the shape that is needed (dtype Byte) and does
/// nothing else. Otherwise it must have that many bytes, which depend on the other shapes and on
/// `multiprocessorCount`, the number of multiprocessors that the call may keep busy.
///
/// Overlaps: row-wise z may be x if their elements have the same size. No output overlaps anything
/// otherwise.
///
/// Notes: mu and rsigma are always written.
///
/// Errors: other dtypes or shapes; a negative or NaN epsilon; `multiprocessorCount` below 1; null or
/// misaligned pointers.
///
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

/// Computes the gradients of `nvte_layernorm_fwd`, from its x, mu and rsigma.
///
/// What it computes: with `y = rsigma * (x - mu)` and `d = g * dz`, `dx = rsigma * (d - mean(d * y) * y
/// - mean(d))` with means over the row, and `dgamma = sum(dz * y)`, `dbeta = sum(dz)` over the rows.
/// Sums are in float32, in an order that depends on shapes, dtypes and `multiprocessorCount` alone.
///
/// Shapes: dz, x and dx `[N, H]`, gamma, dgamma and dbeta `[H]`, mu and rsigma `[N]`. N may be 0.
///
/// Dtypes: x and gamma each Float32, Float16 or BFloat16; dx that of x; dz, dgamma and dbeta that of
/// gamma; mu and rsigma Float32.
///
/// Overlaps: dx may be dz or x if their dtypes are equal. No output overlaps anything otherwise.
///
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

/// Divides each row by its root mean square, and applies a weight (RMSNorm).
///
/// What it computes: `rsigma = 1 / sqrt(mean(x^2) + epsilon)`, `z = g * (rsigma * x)`. All else is as
/// in `nvte_layernorm_fwd`.
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

/// Computes the gradients of `nvte_rmsnorm_fwd`, from its x and rsigma.
///
/// What it computes: with `y = rsigma * x` and `d = g * dz`, `dx = rsigma * (d - mean(d * y) * y)` and
/// `dgamma = sum(dz * y)`. All else is as in `nvte_layernorm_bwd`.
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

/// Computes the gradients of `nvte_rmsnorm_fwd`, and adds to dx another gradient that reaches x beside
/// the normalization.
///
/// `add` has the shape of dz and the dtype of gamma; it is added before dx is rounded, and dx may be
/// add, too. All else is as in `nvte_rmsnorm_bwd`.
///
/// Errors: also while `nvte_enable_zero_centered_gamma_in_weight_dtype` is on and
/// `nvte_enable_cudnn_norm_bwd` is off.
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

/// Sets a process-wide switch that stands for cuDNN in forward functions; it is off unless
/// `NVTE_NORM_FWD_USE_CUDNN=1`.
///
/// This library needs no cuDNN and computes the same either way. While the switch is on, Float32,
/// Float16 and BFloat16 outputs may have no amax, and `nvte_enable_zero_centered_gamma_in_weight_dtype`
/// has an effect on forward functions.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_enable_cudnn_norm_fwd(enable: bool) {
    guard("nvte_enable_cudnn_norm_fwd", || set(Switch::CudnnForward, enable));
}

/// Sets a process-wide switch that stands for cuDNN in backward functions; it is off unless
/// `NVTE_NORM_BWD_USE_CUDNN=1`. While it is on, `nvte_enable_zero_centered_gamma_in_weight_dtype` has
/// an effect on backward functions.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_enable_cudnn_norm_bwd(enable: bool) {
    guard("nvte_enable_cudnn_norm_bwd", || set(Switch::CudnnBackward, enable));
}

/// Sets a process-wide switch that rounds `gamma + 1` to the dtype of gamma, with MXFP8 outputs or
/// where cuDNN is enabled; it is off unless `NVTE_ZERO_CENTERED_GAMMA_IN_WTYPE=1`.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_enable_zero_centered_gamma_in_weight_dtype(enable: bool) {
    let name = "nvte_enable_zero_centered_gamma_in_weight_dtype";
    guard(name, || set(Switch::GammaInWeightDtype, enable));
}

/// Adds a residual and normalizes in one pass: `sum = x + residual`, rounded to the dtype of x, then
/// `nvte_layernorm_fwd` of `sum`.
///
/// The gradient is `nvtex_layernorm_bwd_add` with `sum` for x. residual and sum have the shape and
/// dtype of x; sum may be x or residual. No workspace is needed.
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

/// Adds a residual and normalizes in one pass: as `nvtex_residual_layernorm_fwd`, with
/// `nvte_rmsnorm_fwd`. The gradient is `nvte_rmsnorm_bwd_add` with `sum` for x.
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

/// Computes the gradients of `nvte_layernorm_fwd`, and adds to dx another gradient that reaches x
/// beside the normalization.
///
/// `add` has the shape and dtype of dz; it is added before dx is rounded, and dx may be add, too. All
/// else is as in `nvte_layernorm_bwd`.
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
