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
use crate::tensor::{Buffer, Shape, TENSORS, Tensor};
use crate::types::NVTE_Norm_Type::*;
use crate::types::NVTEDType::*;
use crate::types::NVTEScalingMode::*;
use crate::types::*;
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

/// What forward and backward functions have in common; handles are looked up in `plan`.
pub(crate) struct Common {
    pub norm: NVTE_Norm_Type,
    pub workspace: Option<NVTETensor>,
    pub sm_count: c_int,
    pub zero_centered: bool,
}

impl Common {
    fn new(
        norm: NVTE_Norm_Type,
        workspace: Option<NVTETensor>,
        sm_count: c_int,
        zero_centered: bool,
    ) -> Self {
        Self { norm, workspace, sm_count, zero_centered }
    }
}

/// Tensors of a forward function beside those in `Common`.
pub(crate) struct Forward {
    pub x: NVTETensor,
    /// Residual and sum.
    pub residual: Option<(NVTETensor, NVTETensor)>,
    pub gamma: NVTETensor,
    /// Beta and mu of LayerNorm.
    pub layer: Option<(NVTETensor, NVTETensor)>,
    pub epsilon: f32,
    pub z: NVTETensor,
    pub rsigma: NVTETensor,
}

/// Tensors of a backward function beside those in `Common`.
pub(crate) struct Backward {
    pub dz: NVTETensor,
    pub x: NVTETensor,
    pub add: Option<NVTETensor>,
    /// Mu and dbeta of LayerNorm.
    pub layer: Option<(NVTETensor, NVTETensor)>,
    pub rsigma: NVTETensor,
    pub gamma: NVTETensor,
    pub dx: NVTETensor,
    pub dgamma: NVTETensor,
}

/// Unquantized row-wise data; a null address passes.
fn high_precision(name: &str, handle: NVTETensor) -> Result<Tensor> {
    let tensor = check::tensor(name, handle)?;
    if !tensor.rowwise.is_set() {
        return Err(Error::argument(format!("{name}.data"), "row-wise data", "no data"));
    }
    check::high_precision(name, tensor.rowwise.dtype)?;
    check::scales(name, &tensor)?;
    Ok(tensor)
}

/// As [`high_precision`], of a given dtype and shape.
fn like(name: &str, handle: NVTETensor, dtype: NVTEDType, shape: &Shape) -> Result<Buffer> {
    let buffer = check::tensor(name, handle)?.rowwise;
    check::dtype(name, buffer.dtype, &[dtype])?;
    check::shape(name, &buffer.shape, shape)?;
    Ok(buffer)
}

fn address(name: &str, buffer: &Buffer) -> Result<*mut c_void> {
    check::pointer(format_args!("{name}.data"), buffer)
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

/// True for a workspace without elements, which then takes the shape that the call needs. Any other
/// one must have the bytes: the extension for JAX gives a workspace of Byte back as Float8E8M0.
fn is_query(handle: NVTETensor, bytes: usize) -> Result<bool> {
    let workspace = check::tensor("workspace", handle)?.rowwise;
    let shape = Shape::new(&[bytes]);
    if workspace.shape.numel() == 0 {
        TENSORS.write("workspace", handle, |tensor| {
            tensor.rowwise.shape = shape;
            tensor.rowwise.dtype = kNVTEByte;
        })?;
        return Ok(true);
    }
    check::room("workspace", &workspace, bytes, kNVTEByte)?;
    Ok(false)
}

/// Checks a forward call and gives its arguments; none if it asked for the workspace's size.
fn plan_forward(common: &Common, tensors: &Forward) -> Result<Option<NormForwardArgs>> {
    let x = high_precision("x", tensors.x)?;
    let (rows, cols) = matrix(&x)?;
    let row = Shape::new(&[cols]);
    let column = Shape::new(&[rows]);
    let gamma = high_precision("gamma", tensors.gamma)?.rowwise;
    check::shape("gamma", &gamma.shape, &row)?;
    let layer = match tensors.layer {
        None => None,
        Some((beta, mu)) => {
            Some((like("beta", beta, gamma.dtype, &row)?, like("mu", mu, kNVTEFloat32, &column)?))
        }
    };
    let rsigma = like("rsigma", tensors.rsigma, kNVTEFloat32, &column)?;
    let residual = match tensors.residual {
        None => None,
        Some((residual, sum)) => Some((
            like("residual", residual, x.dtype(), &x.rowwise.shape)?,
            like("sum", sum, x.dtype(), &x.rowwise.shape)?,
        )),
    };
    let z = check::tensor("z", tensors.z)?;
    check::shape("z", &z.shape("z")?, &x.rowwise.shape)?;
    if tensors.epsilon.is_nan() || tensors.epsilon < 0.0 {
        return Err(Error::argument("epsilon", "at least 0", tensors.epsilon));
    }
    check_sm_count(common.sm_count)?;
    if let Some(workspace) = common.workspace
        && is_query(workspace, 1)?
    {
        return Ok(None);
    }

    let config = QuantizationConfig::DEFAULT;
    let cast = cast::quantize_args(&x, &z, ("noop", null_mut()), &config);
    let cast = cast.and_then(|cast| cast::apart(&cast).map(|()| cast)).map_err(|error| {
        // A cast calls its tensors input and output.
        let message = error.message.replacen("the input", "x", 1).replacen("input", "x", 1);
        Error { message: message.replacen("output", "z", 1), ..error }
    })?;
    let mxfp8 = z.mode == NVTE_MXFP8_1D_SCALING;
    if z.mode == NVTE_DELAYED_TENSOR_SCALING && !z.rowwise.is_set() {
        return Err(Error::argument("z.data", "row-wise data", "column-wise data only"));
    }
    let cudnn = mxfp8 || is_on(Switch::CudnnForward);
    if cudnn && !z.dtype().is_fp8() && !cast.amax.is_null() {
        let expected = format!("nothing ({} output with cuDNN enabled)", z.dtype());
        return Err(Error::argument("z.amax", expected, "an address"));
    }
    let (beta, mu) = match &layer {
        None => (null_mut(), null_mut()),
        Some((beta, mu)) => (address("beta", beta)?, address("mu", mu)?),
    };
    let (residual, sum) = match &residual {
        None => (null_mut(), null_mut()),
        Some((residual, sum)) => (address("residual", residual)?, address("sum", sum)?),
    };
    let args = NormForwardArgs {
        cast,
        residual,
        sum,
        gamma: gamma_argument(&gamma, common.zero_centered, cudnn)?,
        beta,
        mu: mu.cast(),
        rsigma: address("rsigma", &rsigma)?.cast(),
        epsilon: tensors.epsilon,
        norm: common.norm,
        sm_count: common.sm_count,
    };
    let bytes = rows * cols * x.dtype().bits() / 8;
    let inputs = [Memory::of(&"x", &x.rowwise), Memory::new(&"residual", residual, bytes)];
    let beta_bytes = cols * gamma.dtype.bits() / 8;
    let weights = [Memory::of(&"gamma", &gamma), Memory::new(&"beta", beta, beta_bytes)];
    let z_bytes = rows * cols * args.cast.output_dtype.bits() / 8;
    let outputs = [
        Memory::new(&"sum", sum, bytes),
        Memory::new(&"z", args.cast.rowwise, z_bytes),
        Memory::new(&"z", args.cast.colwise, z_bytes),
        Memory::new(&"mu", mu, rows * 4),
        Memory::of(&"rsigma", &rsigma),
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
fn plan_backward(common: &Common, tensors: &Backward) -> Result<Option<NormBackwardArgs>> {
    let x = high_precision("x", tensors.x)?;
    let (rows, cols) = matrix(&x)?;
    let (x_dtype, shape) = (x.dtype(), x.rowwise.shape);
    let row = Shape::new(&[cols]);
    let column = Shape::new(&[rows]);
    let gamma = high_precision("gamma", tensors.gamma)?.rowwise;
    check::shape("gamma", &gamma.shape, &row)?;
    let dz = like("dz", tensors.dz, gamma.dtype, &shape)?;
    let add = match tensors.add {
        None => None,
        Some(add) => Some(like("add", add, gamma.dtype, &shape)?),
    };
    let rsigma = like("rsigma", tensors.rsigma, kNVTEFloat32, &column)?;
    let dx = like("dx", tensors.dx, x_dtype, &shape)?;
    let dgamma = like("dgamma", tensors.dgamma, gamma.dtype, &row)?;
    let layer = match tensors.layer {
        None => None,
        Some((mu, dbeta)) => {
            Some((like("mu", mu, kNVTEFloat32, &column)?, like("dbeta", dbeta, gamma.dtype, &row)?))
        }
    };
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
    // The address need not be aligned.
    const ALIGNMENT: usize = 16;
    let bytes = parts.checked_mul(cols).and_then(|n| n.checked_mul(4 * sums));
    let bytes = bytes.and_then(|bytes| bytes.checked_add(ALIGNMENT));
    let bytes = bytes.filter(|&bytes| bytes <= isize::MAX as usize).ok_or_else(|| {
        Error::argument("x.shape", "a workspace that fits 63 bits", x.rowwise.shape)
    })?;
    if let Some(workspace) = common.workspace
        && is_query(workspace, bytes)?
    {
        return Ok(None);
    }

    let workspace = check::tensor("workspace", common.workspace.unwrap_or(null_mut()))?.rowwise;
    let partial = address("workspace", &workspace)?;
    let (mu, dbeta) = match &layer {
        None => (null_mut(), null_mut()),
        Some((mu, dbeta)) => (address("mu", mu)?, address("dbeta", dbeta)?),
    };
    let add = match &add {
        None => null_mut(),
        Some(add) => address("add", add)?,
    };
    let args = NormBackwardArgs {
        dz: address("dz", &dz)?,
        x: address("x", &x.rowwise)?,
        add,
        mu: mu.cast(),
        rsigma: address("rsigma", &rsigma)?.cast(),
        gamma: gamma_argument(&gamma, common.zero_centered, cudnn)?,
        dx: address("dx", &dx)?,
        dgamma: address("dgamma", &dgamma)?,
        dbeta,
        partial: partial.wrapping_byte_add((partial as usize).wrapping_neg() % ALIGNMENT).cast(),
        parts,
        rows,
        cols,
        x_dtype,
        norm: common.norm,
        sm_count: common.sm_count,
    };
    let numel = rows * cols;
    let inputs = [
        Memory::of(&"dz", &dz),
        Memory::of(&"x", &x.rowwise),
        Memory::new(&"add", add, numel * gamma.dtype.bits() / 8),
    ];
    let weights = [
        Memory::new(&"mu", mu, rows * 4),
        Memory::of(&"rsigma", &rsigma),
        Memory::of(&"gamma", &gamma),
    ];
    let outputs = [
        Memory::of(&"dx", &dx),
        Memory::of(&"dgamma", &dgamma),
        Memory::new(&"dbeta", dbeta, cols * gamma.dtype.bits() / 8),
        Memory::new(&"workspace", partial, bytes),
    ];
    check::apart_or_same(&inputs, &outputs[0])?;
    check::apart(&inputs, &outputs[1..])?;
    check::apart(&weights, &outputs)?;
    Ok(Some(args))
}

pub(crate) fn forward(common: Common, tensors: Forward, stream: cudaStream_t) -> Result<()> {
    match plan_forward(&common, &tensors)? {
        Some(args) => backend::run(&args, stream),
        None => Ok(()),
    }
}

pub(crate) fn backward(common: Common, tensors: Backward, stream: cudaStream_t) -> Result<()> {
    match plan_backward(&common, &tensors)? {
        Some(args) => backend::run(&args, stream),
        None => Ok(()),
    }
}
