//! LayerNorm and RMSNorm (spec: pointwise_norm, section 8).

pub(crate) mod cpu;
pub mod exports;

use super::cast;
use super::transformer_engine::QuantizationConfig;
use crate::backend::{self, args::*};
use crate::check::{self, Memory};
use crate::env::env;
use crate::error::{Error, Result};
use crate::fork;
use crate::tensor::{Buffer, Shape, Tensor};
use crate::types::NVTE_Norm_Type::*;
use crate::types::NVTEDType::*;
use crate::types::NVTEScalingMode::*;
use crate::types::*;
use crate::workspace::Workspace;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// The process-wide switches of spec section 8.6. There is no cuDNN here: only what selecting it
/// changes for a caller is kept.
enum Switch {
    CudnnForward,
    CudnnBackward,
    GammaInWeightDtype,
}

fn switch(switch: Switch) -> &'static AtomicBool {
    static SWITCHES: OnceLock<[AtomicBool; 3]> = OnceLock::new();
    let from_env = env().norm_switches;
    &fork::once(&SWITCHES, || from_env.map(AtomicBool::new))[switch as usize]
}

fn is_on(which: Switch) -> bool {
    switch(which).load(Ordering::Relaxed)
}

fn set(which: Switch, enable: bool) -> Result<()> {
    switch(which).store(enable, Ordering::Relaxed);
    Ok(())
}

/// What forward and backward functions have in common.
pub(crate) struct Common {
    pub norm: NVTE_Norm_Type,
    pub sm_count: c_int,
    pub zero_centered: bool,
}

/// What a forward function takes beside [`Common`].
pub(crate) struct Forward<'a> {
    pub x: &'a Tensor,
    /// Residual and sum.
    pub residual: Option<(&'a Buffer, &'a Buffer)>,
    pub gamma: &'a Tensor,
    /// Beta and mu of LayerNorm.
    pub layer: Option<(&'a Buffer, &'a Buffer)>,
    pub epsilon: f32,
    pub z: &'a Tensor,
    pub rsigma: &'a Buffer,
}

/// What a backward function takes beside [`Common`].
pub(crate) struct Backward<'a> {
    pub dz: &'a Buffer,
    pub x: &'a Tensor,
    pub add: Option<&'a Buffer>,
    /// Mu and dbeta of LayerNorm.
    pub layer: Option<(&'a Buffer, &'a Buffer)>,
    pub rsigma: &'a Buffer,
    pub gamma: &'a Tensor,
    pub dx: &'a Buffer,
    pub dgamma: &'a Buffer,
    /// Where the sums over the rows of `add` and of dx go. With them dx is not `add`.
    pub sums: [Option<&'a Buffer>; 2],
}

/// Refuses all but unquantized row-wise data; their address may be null.
fn high_precision(name: &str, tensor: &Tensor) -> Result<()> {
    if !tensor.rowwise.is_set() {
        return Err(Error::argument(format!("{name}.data"), "row-wise data", "no data"));
    }
    check::high_precision(name, tensor.rowwise.dtype)?;
    check::scales(name, tensor)
}

/// Refuses data of another dtype or shape.
fn like(name: &str, buffer: &Buffer, dtype: NVTEDType, shape: &Shape) -> Result<()> {
    check::dtype(name, buffer.dtype, &[dtype])?;
    check::shape(name, &buffer.shape, shape)
}

fn address(name: &str, buffer: &Buffer) -> Result<*mut c_void> {
    check::pointer(format_args!("{name}.data"), buffer)
}

/// The addresses of two buffers, null without them.
fn addresses(
    names: [&str; 2],
    buffers: Option<(&Buffer, &Buffer)>,
) -> Result<(*mut c_void, *mut c_void)> {
    match buffers {
        None => Ok((null_mut(), null_mut())),
        Some((first, second)) => Ok((address(names[0], first)?, address(names[1], second)?)),
    }
}

/// Rows and columns of x.
fn matrix(x: &Tensor) -> Result<(usize, usize)> {
    match *x.rowwise.shape.dims() {
        [rows, cols] if cols > 0 => Ok((rows, cols)),
        _ => Err(Error::argument("x.shape", "[rows, columns] with a column", x.rowwise.shape)),
    }
}

fn check_sm_count(count: c_int) -> Result<()> {
    if count < 1 {
        return Err(Error::argument("multiprocessorCount", "at least 1", count));
    }
    Ok(())
}

/// Checks a forward call and gives its arguments; none if it asked for the workspace's size.
fn plan_forward(
    common: &Common,
    tensors: &Forward,
    workspace: Option<&mut Workspace>,
) -> Result<Option<NormForwardArgs>> {
    let &Forward { x, residual, gamma, layer, epsilon, z, rsigma } = tensors;
    high_precision("x", x)?;
    let (rows, cols) = matrix(x)?;
    let row = Shape::new(&[cols]);
    let column = Shape::new(&[rows]);
    high_precision("gamma", gamma)?;
    let gamma = &gamma.rowwise;
    check::shape("gamma", &gamma.shape, &row)?;
    if let Some((beta, mu)) = layer {
        like("beta", beta, gamma.dtype, &row)?;
        like("mu", mu, kNVTEFloat32, &column)?;
    }
    like("rsigma", rsigma, kNVTEFloat32, &column)?;
    if let Some((residual, sum)) = residual {
        like("residual", residual, x.dtype(), &x.rowwise.shape)?;
        like("sum", sum, x.dtype(), &x.rowwise.shape)?;
    }
    check::shape("z", &z.shape("z")?, &x.rowwise.shape)?;
    if epsilon.is_nan() || epsilon < 0.0 {
        return Err(Error::argument("epsilon", "at least 0", epsilon));
    }
    check_sm_count(common.sm_count)?;
    // The ABI has a workspace here, but nothing is stored in it.
    if let Some(workspace) = workspace
        && !workspace.has_room(kNVTEByte, Shape::new(&[1]))?
    {
        return Ok(None);
    }

    let cast = cast::quantize_args(x, &x.rowwise.shape, z, &QuantizationConfig::DEFAULT);
    let cast = cast.and_then(|cast| cast::apart(&cast).map(|()| cast)).map_err(|error| {
        // The messages of a cast name its tensors input and output.
        let message = error.message.replacen("the input", "x", 1).replacen("input", "x", 1);
        Error { message: message.replacen("output", "z", 1), ..error }
    })?;
    let mxfp8 = z.mode == NVTE_MXFP8_1D_SCALING;
    if z.mode == NVTE_DELAYED_TENSOR_SCALING && !z.rowwise.is_set() {
        return Err(Error::argument("z.data", "row-wise data", "column-wise data only"));
    }
    let cudnn = mxfp8 || is_on(Switch::CudnnForward);
    if cudnn && !z.dtype().is_fp8() && !cast.amax.is_null() {
        let expected = format!("nothing ({} output has no amax while cuDNN is enabled)", z.dtype());
        return Err(Error::argument("z.amax", expected, "an address"));
    }
    let (beta, mu) = addresses(["beta", "mu"], layer)?;
    let (residual, sum) = addresses(["residual", "sum"], residual)?;
    let args = NormForwardArgs {
        cast,
        residual,
        sum,
        gamma: gamma_argument(gamma, common.zero_centered, cudnn)?,
        beta,
        mu: mu.cast(),
        rsigma: address("rsigma", rsigma)?.cast(),
        epsilon,
        norm: common.norm,
        sm_count: common.sm_count,
    };
    let bytes = rows * cols * x.dtype().bits() / 8;
    let inputs = [Memory::of(&"x", &x.rowwise), Memory::new(&"residual", residual, bytes)];
    let beta_bytes = cols * gamma.dtype.bits() / 8;
    let weights = [Memory::of(&"gamma", gamma), Memory::new(&"beta", beta, beta_bytes)];
    let z_bytes = rows * cols * args.cast.output_dtype.bits() / 8;
    let outputs = [
        Memory::new(&"sum", sum, bytes),
        Memory::new(&"z", args.cast.rowwise, z_bytes),
        Memory::new(&"z", args.cast.colwise, z_bytes),
        Memory::new(&"mu", mu, rows * 4),
        Memory::of(&"rsigma", rsigma),
    ];
    check::apart_or_same(&inputs, &outputs[0])?;
    check::apart_or_same(&inputs, &outputs[1])?;
    check::apart(&inputs, &outputs[2..])?;
    check::apart(&weights, &outputs)?;
    Ok(Some(args))
}

fn gamma_argument(gamma: &Buffer, zero_centered: bool, cudnn: bool) -> Result<Gamma> {
    Ok(Gamma {
        data: address("gamma", gamma)?,
        dtype: gamma.dtype,
        zero_centered,
        rounded: zero_centered && cudnn && is_on(Switch::GammaInWeightDtype),
    })
}

/// Checks a backward call and gives its arguments; none if it asked for the workspace's size.
fn plan_backward(
    common: &Common,
    tensors: &Backward,
    workspace: &mut Workspace,
) -> Result<Option<NormBackwardArgs>> {
    let &Backward { dz, x, add, layer, rsigma, gamma, dx, dgamma, sums: more } = tensors;
    high_precision("x", x)?;
    let (rows, cols) = matrix(x)?;
    let (x_dtype, shape) = (x.dtype(), x.rowwise.shape);
    let row = Shape::new(&[cols]);
    let column = Shape::new(&[rows]);
    high_precision("gamma", gamma)?;
    let gamma = &gamma.rowwise;
    check::shape("gamma", &gamma.shape, &row)?;
    like("dz", dz, gamma.dtype, &shape)?;
    if let Some(add) = add {
        like("add", add, gamma.dtype, &shape)?;
    }
    like("rsigma", rsigma, kNVTEFloat32, &column)?;
    like("dx", dx, x_dtype, &shape)?;
    like("dgamma", dgamma, gamma.dtype, &row)?;
    if let Some((mu, dbeta)) = layer {
        like("mu", mu, kNVTEFloat32, &column)?;
        like("dbeta", dbeta, gamma.dtype, &row)?;
    }
    for sums in more.into_iter().flatten() {
        like("sums", sums, gamma.dtype, &row)?;
    }
    check_sm_count(common.sm_count)?;
    let cudnn = is_on(Switch::CudnnBackward);
    if common.norm == RMSNorm && add.is_some() && !cudnn && is_on(Switch::GammaInWeightDtype) {
        return Err(Error::argument(
            "zero_centered_gamma_in_weight_dtype",
            "off (it needs the backward pass of cuDNN to be enabled)",
            "on",
        ));
    }
    let parts = NormBackwardArgs::parts(rows, common.sm_count);
    let sums = if common.norm == LayerNorm { 2 } else { 1 };
    let sums = if more.iter().any(Option::is_some) { sums + 2 } else { sums };
    // The address of the workspace need not be aligned.
    const ALIGNMENT: usize = 16;
    let bytes = parts.checked_mul(cols).and_then(|n| n.checked_mul(4 * sums));
    let bytes = bytes.and_then(|bytes| bytes.checked_add(ALIGNMENT));
    let bytes = bytes.filter(|&bytes| bytes <= isize::MAX as usize).ok_or_else(|| {
        Error::argument(
            "x.shape",
            "a shape whose workspace has less than 2^63 bytes",
            x.rowwise.shape,
        )
    })?;
    let Some(partial) = workspace.take(kNVTEByte, Shape::new(&[bytes]))? else {
        return Ok(None);
    };
    let (mu, dbeta) = addresses(["mu", "dbeta"], layer)?;
    let add = add.map_or(Ok(null_mut()), |add| address("add", add))?;
    let [add_sums, dx_sums] =
        more.map(|sums| sums.map_or(Ok(null_mut()), |sums| address("sums", sums)));
    let args = NormBackwardArgs {
        dz: address("dz", dz)?,
        x: address("x", &x.rowwise)?,
        add,
        mu: mu.cast(),
        rsigma: address("rsigma", rsigma)?.cast(),
        gamma: gamma_argument(gamma, common.zero_centered, cudnn)?,
        dx: address("dx", dx)?,
        dgamma: address("dgamma", dgamma)?,
        dbeta,
        partial: partial.wrapping_byte_add((partial as usize).wrapping_neg() % ALIGNMENT).cast(),
        parts,
        rows,
        cols,
        x_dtype,
        norm: common.norm,
        sm_count: common.sm_count,
        add_sums: add_sums?,
        dx_sums: dx_sums?,
    };
    let numel = rows * cols;
    let inputs = [
        Memory::of(&"dz", dz),
        Memory::of(&"x", &x.rowwise),
        Memory::new(&"add", add, numel * gamma.dtype.bits() / 8),
    ];
    let weights = [
        Memory::new(&"mu", mu, rows * 4),
        Memory::of(&"rsigma", rsigma),
        Memory::of(&"gamma", gamma),
    ];
    let outputs = [
        Memory::of(&"dx", dx),
        Memory::of(&"dgamma", dgamma),
        Memory::new(&"dbeta", dbeta, cols * gamma.dtype.bits() / 8),
        Memory::new(&"workspace", partial, bytes),
    ];
    check::apart_or_same(&inputs, &outputs[0])?;
    check::apart(&inputs, &outputs[1..])?;
    check::apart(&weights, &outputs)?;
    Ok(Some(args))
}

/// `z = norm(x)`, or of the sum of x and a residual. The workspace is that of the ABI, which may be absent:
/// nothing is stored in it.
pub(crate) fn forward(
    common: &Common,
    tensors: &Forward,
    workspace: Option<&mut Workspace>,
    stream: cudaStream_t,
) -> Result<()> {
    match plan_forward(common, tensors, workspace)? {
        Some(args) => backend::run(&args, stream),
        None => Ok(()),
    }
}

/// Gradients of a normalization.
pub(crate) fn backward(
    common: &Common,
    tensors: &Backward,
    workspace: &mut Workspace,
    stream: cudaStream_t,
) -> Result<()> {
    match plan_backward(common, tensors, workspace)? {
        Some(args) => backend::run(&args, stream),
        None => Ok(()),
    }
}
