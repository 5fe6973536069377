//! Tensors, grouped tensors, quantization configs and small utilities (spec: core).
#![allow(unsafe_code)]

pub(crate) mod cpu;
pub mod exports;
mod undeclared;

use super::attribute;
use crate::backend::{self, args::*};
use crate::check;
use crate::error::{Error, Result};
use crate::handle::{CAPACITY, Kind, Slab};
use crate::tensor::*;
use crate::types::*;
use std::ffi::c_void;
use std::fmt::Display;
use std::mem::MaybeUninit;

/// Options of a cast, as operators take them.
#[derive(Clone, Copy)]
pub struct QuantizationConfig {
    pub force_pow2_scales: bool,
    pub amax_epsilon: f32,
    pub nvfp4_2d: bool,
    pub stochastic_rounding: bool,
    pub use_fast_math: bool,
    pub four_over_six: u8,
    pub four_over_six_fast_math: bool,
    pub mxfp8_2d: bool,
    /// Addresses on the device, which are kept as numbers because the host never reads there.
    noop: usize,
    rng_state: usize,
}

impl QuantizationConfig {
    pub const DEFAULT: Self = Self {
        force_pow2_scales: false,
        amax_epsilon: 0.0,
        nvfp4_2d: false,
        stochastic_rounding: false,
        use_fast_math: false,
        four_over_six: 0,
        four_over_six_fast_math: false,
        mxfp8_2d: false,
        noop: 0,
        rng_state: 0,
    };

    /// The options of a handle and the addresses of its tensors; defaults for null.
    pub fn of_handle(name: &str, handle: NVTEQuantizationConfig) -> Result<Self> {
        StoredConfig::get(name, handle)?.resolve(name)
    }

    /// The same options with the address of a flag, which may be null.
    pub fn with_noop(self, flag: *const f32) -> Self {
        Self { noop: flag as usize, ..self }
    }

    /// Rounds stochastically, by the numbers of a seed and an offset on the device.
    pub fn with_random(self, rng_state: *const u64) -> Self {
        Self { stochastic_rounding: true, rng_state: rng_state as usize, ..self }
    }

    /// The address of a Float32: the cast writes nothing if it is exactly 1. Null: there is no flag.
    pub fn noop(&self) -> *const f32 {
        self.noop as *const f32
    }

    /// The address of seed and offset for stochastic rounding. Null: both are 0.
    pub fn rng_state(&self) -> *const u64 {
        self.rng_state as *const u64
    }
}

/// What the handle of a quantization config stands for. Its tensors are handles here, which are looked up
/// by each call that uses them.
#[derive(Clone, Copy)]
pub struct StoredConfig {
    /// The options without the addresses of tensors.
    pub options: QuantizationConfig,
    noop: usize,
    rng_state: usize,
}

impl StoredConfig {
    const DEFAULT: Self = Self { options: QuantizationConfig::DEFAULT, noop: 0, rng_state: 0 };

    /// The config of a handle; defaults for null.
    pub fn get(name: &str, handle: NVTEQuantizationConfig) -> Result<Self> {
        if handle.is_null() { Ok(Self::DEFAULT) } else { CONFIGS.get(name, handle) }
    }

    fn noop(&self) -> NVTETensor {
        self.noop as NVTETensor
    }

    fn rng_state(&self) -> NVTETensor {
        self.rng_state as NVTETensor
    }

    /// The options with the addresses of the tensors; `name` is that of the config. The seed is looked up
    /// only where it will be used.
    pub fn resolve(&self, name: &str) -> Result<QuantizationConfig> {
        let mut config = self.options;
        if self.noop != 0 {
            let flag = check::noop(format_args!("{name}.noop_tensor"), self.noop())?;
            config = config.with_noop(flag);
        }
        if config.stochastic_rounding && self.rng_state != 0 {
            let name = format_args!("{name}.rng_state");
            let state = check::tensor(name, self.rng_state())?.rowwise;
            if state.is_set() {
                check::dtype(name, state.dtype, &[NVTEDType::kNVTEInt64])?;
                check::shape(name, &state.shape, &Shape::new(&[2]))?;
                config.rng_state = check::pointer(format_args!("{name}.data"), &state)? as usize;
            }
        }
        Ok(config)
    }
}

pub static CONFIGS: Slab<StoredConfig> = Slab::new(Kind::QuantizationConfig);

from_c_enum!(
    NVTEQuantizationConfigAttribute,
    "an NVTEQuantizationConfigAttribute from 0 to 10",
    kNVTEQuantizationConfigNumAttributes
);

/// The deprecated attribute "block scale tensor format" always reads as "invalid".
const BLOCK_SCALE_FORMAT_INVALID: i32 = 2;

/// # Safety
/// As [`attribute::write`].
unsafe fn get_config_attribute(
    config: NVTEQuantizationConfig,
    attr: MaybeUninit<NVTEQuantizationConfigAttribute>,
    buf: *mut c_void,
    size: usize,
    written: *mut usize,
) -> Result<()> {
    use NVTEQuantizationConfigAttribute::*;
    let attr = from_c("attr", attr)?;
    let config = || attribute::object(&CONFIGS, config, buf, &StoredConfig::DEFAULT);
    let options = || config().map(|config| config.options);
    let flag = |field: fn(&QuantizationConfig) -> bool| move || Ok(field(&options()?) as u8);
    // SAFETY: the caller vouches for the buffers.
    unsafe {
        match attr {
            kNVTEQuantizationConfigForcePow2Scales => {
                attribute::write(flag(|c| c.force_pow2_scales), buf, size, written)
            }
            kNVTEQuantizationConfigAmaxEpsilon => {
                attribute::write(|| Ok(options()?.amax_epsilon), buf, size, written)
            }
            kNVTEQuantizationConfigNoopTensor => {
                attribute::write(|| Ok(config()?.noop()), buf, size, written)
            }
            kNVTEQuantizationConfigFloat8BlockScaleTensorFormat => {
                let invalid = || config().map(|_| BLOCK_SCALE_FORMAT_INVALID);
                attribute::write(invalid, buf, size, written)
            }
            kNVTEQuantizationConfigRNGState => {
                attribute::write(|| Ok(config()?.rng_state()), buf, size, written)
            }
            kNVTEQuantizationConfigNVFP42DQuantization => {
                attribute::write(flag(|c| c.nvfp4_2d), buf, size, written)
            }
            kNVTEQuantizationConfigStochasticRounding => {
                attribute::write(flag(|c| c.stochastic_rounding), buf, size, written)
            }
            kNVTEQuantizationConfigUseFastMath => {
                attribute::write(flag(|c| c.use_fast_math), buf, size, written)
            }
            kNVTEQuantizationConfigNVFP44Over6Mode => {
                attribute::write(|| Ok(options()?.four_over_six), buf, size, written)
            }
            kNVTEQuantizationConfigNVFP44Over6ErrUseFastMath => {
                attribute::write(flag(|c| c.four_over_six_fast_math), buf, size, written)
            }
            _ => attribute::write(flag(|c| c.mxfp8_2d), buf, size, written),
        }
    }
}

/// # Safety
/// As [`attribute::read`].
unsafe fn set_config_attribute(
    config: NVTEQuantizationConfig,
    attr: MaybeUninit<NVTEQuantizationConfigAttribute>,
    buf: *const c_void,
    size: usize,
) -> Result<()> {
    use NVTEQuantizationConfigAttribute::*;
    let attr = from_c("attr", attr)?;
    // SAFETY: the caller vouches for the buffer.
    let flag = || unsafe { attribute::read::<u8>(buf, size) }.map(|byte| byte != 0);
    // SAFETY: the caller vouches for the buffer.
    let handle = || unsafe { attribute::read::<NVTETensor>(buf, size) }.map(|h| h as usize);
    // Read and check first, so that a refused call changes nothing.
    let mut new = CONFIGS.get("config", config)?;
    let options = &mut new.options;
    match attr {
        kNVTEQuantizationConfigForcePow2Scales => options.force_pow2_scales = flag()?,
        kNVTEQuantizationConfigAmaxEpsilon => {
            // SAFETY: the caller vouches for the buffer.
            options.amax_epsilon = unsafe { attribute::read(buf, size)? };
        }
        kNVTEQuantizationConfigNoopTensor => new.noop = handle()?,
        kNVTEQuantizationConfigFloat8BlockScaleTensorFormat => {
            // SAFETY: the caller vouches for the buffer. The attribute is deprecated: any value is
            // accepted and ignored.
            unsafe { attribute::read::<i32>(buf, size)? };
        }
        kNVTEQuantizationConfigRNGState => new.rng_state = handle()?,
        kNVTEQuantizationConfigNVFP42DQuantization => options.nvfp4_2d = flag()?,
        kNVTEQuantizationConfigStochasticRounding => options.stochastic_rounding = flag()?,
        kNVTEQuantizationConfigUseFastMath => options.use_fast_math = flag()?,
        kNVTEQuantizationConfigNVFP44Over6Mode => {
            // SAFETY: the caller vouches for the buffer.
            let mode: u8 = unsafe { attribute::read(buf, size)? };
            if mode > 2 {
                return Err(Error::argument("buf", "an NVTENVFP44Over6Mode from 0 to 2", mode));
            }
            options.four_over_six = mode;
        }
        kNVTEQuantizationConfigNVFP44Over6ErrUseFastMath => {
            options.four_over_six_fast_math = flag()?;
        }
        _ => options.mxfp8_2d = flag()?,
    }
    CONFIGS.write("config", config, |slot| *slot = new)
}

/// The buffer of a tensor that a parameter names, if it names one.
fn buffer_of(tensor: &mut Tensor, param: NVTETensorParam) -> Option<&mut Buffer> {
    use NVTETensorParam::*;
    match param {
        kNVTERowwiseData => Some(&mut tensor.rowwise),
        kNVTEColumnwiseData => Some(&mut tensor.colwise),
        kNVTEScale => Some(&mut tensor.scale),
        kNVTEAmax => Some(&mut tensor.amax),
        kNVTERowwiseScaleInv => Some(&mut tensor.rowwise_scale_inv),
        kNVTEColumnwiseScaleInv => Some(&mut tensor.colwise_scale_inv),
        kNVTEColumnwiseAmax => Some(&mut tensor.colwise_amax),
        _ => None,
    }
}

/// As [`buffer_of`], for the setter and getter that only know buffers.
fn buffer_of_v1(tensor: &mut Tensor, param: NVTETensorParam) -> Result<&mut Buffer> {
    buffer_of(tensor, param).ok_or_else(|| {
        let expected = "a buffer (0 to 6; other parameters go through the _v2 function)";
        Error::argument("param_name", expected, param as i32)
    })
}

/// # Safety
/// As [`attribute::read`].
unsafe fn set_tensor_param(
    handle: NVTETensor,
    param: MaybeUninit<NVTETensorParam>,
    buf: *const c_void,
    size: usize,
) -> Result<()> {
    use NVTETensorParam::*;
    let param = from_c("param", param)?;
    TENSORS.update("tensor", handle, |tensor| {
        // SAFETY: the caller vouches for the buffer.
        unsafe {
            if let Some(buffer) = buffer_of(tensor, param) {
                return attribute::with(buf, size, |basic| buffer.set("buf", basic));
            }
            match param {
                kNVTEWithGEMMSwizzledScales => {
                    tensor.swizzled = attribute::read::<u8>(buf, size)? != 0;
                }
                kNVTERowScaledNVFP4 => tensor.row_scaled = attribute::read::<u8>(buf, size)? != 0,
                _ => {
                    let value: i32 = attribute::read(buf, size)?;
                    if value != 448 && value != 256 {
                        return Err(Error::argument("buf", "448 or 256 (NVFP4 E4M3 max)", value));
                    }
                    tensor.e4m3_max = value;
                }
            }
        }
        Ok(())
    })
}

/// # Safety
/// As [`attribute::write`].
unsafe fn get_tensor_param(
    handle: NVTETensor,
    param: MaybeUninit<NVTETensorParam>,
    buf: *mut c_void,
    size: usize,
    written: *mut usize,
) -> Result<()> {
    use NVTETensorParam::*;
    let param = from_c("param", param)?;
    let mut tensor = check::tensor_or_empty("tensor", handle)?;
    let basic = buffer_of(&mut tensor, param).map(|buffer| buffer.to_c());
    // SAFETY: the caller vouches for the buffers.
    unsafe {
        match (basic, param) {
            (Some(basic), _) => attribute::write(|| Ok(basic), buf, size, written),
            (_, kNVTEWithGEMMSwizzledScales) => {
                attribute::write(|| Ok(tensor.swizzled as u8), buf, size, written)
            }
            (_, kNVTERowScaledNVFP4) => {
                attribute::write(|| Ok(tensor.row_scaled as u8), buf, size, written)
            }
            _ => attribute::write(|| Ok(tensor.e4m3_max), buf, size, written),
        }
    }
}

/// The buffer of a grouped tensor that a parameter names; none for the swizzled flag.
fn grouped_buffer_of(
    tensor: &mut GroupedTensor,
    param: NVTEGroupedTensorParam,
) -> Option<&mut Buffer> {
    use NVTEGroupedTensorParam::*;
    match param {
        kNVTEGroupedRowwiseData => Some(&mut tensor.rowwise),
        kNVTEGroupedColumnwiseData => Some(&mut tensor.colwise),
        kNVTEGroupedScale => Some(&mut tensor.scale),
        kNVTEGroupedAmax => Some(&mut tensor.amax),
        kNVTEGroupedRowwiseScaleInv => Some(&mut tensor.rowwise_scale_inv),
        kNVTEGroupedColumnwiseScaleInv => Some(&mut tensor.colwise_scale_inv),
        kNVTEGroupedColumnwiseAmax => Some(&mut tensor.colwise_amax),
        kNVTEGroupedFirstDims => Some(&mut tensor.first_dims),
        kNVTEGroupedLastDims => Some(&mut tensor.last_dims),
        kNVTEGroupedTensorOffsets => Some(&mut tensor.offsets),
        _ => None,
    }
}

/// # Safety
/// As [`attribute::read`].
unsafe fn set_grouped_tensor_param(
    handle: NVTEGroupedTensor,
    param: MaybeUninit<NVTEGroupedTensorParam>,
    buf: *const c_void,
    size: usize,
) -> Result<()> {
    use NVTEGroupedTensorParam::*;
    let param = from_c("param", param)?;
    let dims =
        [kNVTEGroupedFirstDims, kNVTEGroupedLastDims, kNVTEGroupedTensorOffsets].contains(&param);
    GROUPED.update("tensor", handle, |tensor| {
        // SAFETY: the caller vouches for the buffer.
        unsafe {
            if let Some(slot) = grouped_buffer_of(tensor, param) {
                let buffer = Buffer::from_c("buf", &attribute::read(buf, size)?)?;
                if dims {
                    check::dtype("buf", buffer.dtype, &[NVTEDType::kNVTEInt64])?;
                }
                *slot = buffer;
            } else {
                tensor.swizzled = attribute::read::<u8>(buf, size)? != 0;
            }
        }
        Ok(())
    })
}

/// # Safety
/// As [`attribute::write`].
unsafe fn get_grouped_tensor_param(
    handle: NVTEGroupedTensor,
    param: MaybeUninit<NVTEGroupedTensorParam>,
    buf: *mut c_void,
    size: usize,
    written: *mut usize,
) -> Result<()> {
    let param = from_c("param", param)?;
    let mut tensor = grouped_or_empty(handle)?;
    let basic = grouped_buffer_of(&mut tensor, param).map(|buffer| buffer.to_c());
    // SAFETY: the caller vouches for the buffers.
    unsafe {
        match basic {
            Some(basic) => attribute::write(|| Ok(basic), buf, size, written),
            None => attribute::write(|| Ok(tensor.swizzled as u8), buf, size, written),
        }
    }
}

/// The grouped tensor of a handle; for null one without members.
fn grouped_or_empty(handle: NVTEGroupedTensor) -> Result<GroupedTensor> {
    if handle.is_null() {
        let mode = NVTEScalingMode::NVTE_DELAYED_TENSOR_SCALING;
        return Ok(GroupedTensor::new(mode, 0, Shape::UNSET));
    }
    GROUPED.get("tensor", handle)
}

fn create_grouped_tensor(
    mode: MaybeUninit<NVTEScalingMode>,
    num_tensors: usize,
    logical_shape: &NVTEShape,
) -> Result<NVTEGroupedTensor> {
    let mode = from_c("scaling_mode", mode)?;
    let shape = Shape::from_c("logical_shape", logical_shape)?;
    if num_tensors == 0 {
        return Err(Error::argument("num_tensors", "at least 1", num_tensors));
    }
    if shape.dims().len() != 2 {
        return Err(Error::argument("logical_shape", "2 dimensions", shape));
    }
    GROUPED.insert(GroupedTensor::new(mode, num_tensors, shape))
}

/// Creates `count` tensors, or none.
fn create_tensors(mode: MaybeUninit<NVTEScalingMode>, count: usize) -> Result<Vec<NVTETensor>> {
    let mode = from_c("scaling_mode", mode)?;
    if count > CAPACITY {
        return Err(Error::argument("N", format!("at most {CAPACITY}"), count));
    }
    let mut handles = Vec::new();
    let bytes = count * size_of::<NVTETensor>();
    let no_memory = |_| Error::device(format!("out of host memory: {bytes} bytes for a list"));
    handles.try_reserve_exact(count).map_err(no_memory)?;
    for _ in 0..count {
        match TENSORS.insert(Tensor::new(mode)) {
            Ok(handle) => handles.push(handle),
            Err(error) => {
                handles.into_iter().try_for_each(|handle| TENSORS.remove("tensors", handle))?;
                return Err(error);
            }
        }
    }
    Ok(handles)
}

/// Destroys a tensor; null is ignored.
fn destroy_tensor(argument: impl Display, handle: NVTETensor) -> Result<()> {
    if handle.is_null() { Ok(()) } else { TENSORS.remove(argument, handle) }
}

/// A shape from C's array; a null array gives zeros.
///
/// # Safety
/// `data` is null or points to `ndim` values.
unsafe fn make_shape(data: *const usize, ndim: usize) -> Result<NVTEShape> {
    let mut shape = NVTEShape { data: [0; MAX_DIMS], ndim };
    if ndim > MAX_DIMS {
        return Err(Error::argument("ndim", "at most 15", ndim));
    }
    if !data.is_null() {
        for (i, dim) in shape.data.iter_mut().enumerate().take(ndim) {
            // SAFETY: the caller vouches for the array.
            *dim = unsafe { data.add(i).read_unaligned() };
        }
    }
    Ok(shape)
}

/// The address of a field of floats, whose dtype must be Float32.
fn float_field(field: &str, buffer: &Buffer) -> Result<*mut f32> {
    check::dtype(format_args!("tensor.{field}"), buffer.dtype, &[NVTEDType::kNVTEFloat32])?;
    Ok(buffer.ptr().cast())
}

fn zero_tensor(tensor: &Tensor, stream: cudaStream_t) -> Result<()> {
    for buffer in [&tensor.rowwise, &tensor.amax] {
        if !buffer.ptr().is_null() {
            memset(buffer.ptr(), 0, buffer.bytes(), stream)?;
        }
    }
    Ok(())
}

pub fn memset(ptr: *mut c_void, value: u8, bytes: usize, stream: cudaStream_t) -> Result<()> {
    if ptr.is_null() {
        return Err(Error::argument("ptr", format!("a pointer to {bytes} bytes"), "null"));
    }
    check_bytes("size_in_bytes", bytes)?;
    if bytes == 0 {
        return Ok(());
    }
    backend::run(&MemsetArgs { ptr, bytes, value }, stream)
}

/// Refuses byte counts that no allocation can have.
pub fn check_bytes(name: &str, bytes: usize) -> Result<()> {
    if bytes > isize::MAX as usize {
        return Err(Error::argument(name, "less than 2^63", bytes));
    }
    Ok(())
}

fn splits_to_offsets(
    split_sizes: *const i64,
    output: *mut i64,
    num_splits: usize,
    stride: i64,
    stream: cudaStream_t,
) -> Result<()> {
    let dtype = NVTEDType::kNVTEInt64;
    if num_splits == 0 {
        return Err(Error::argument("num_splits", "at least 1", num_splits));
    }
    if num_splits >= isize::MAX as usize / 8 {
        return Err(Error::argument("num_splits", "less than 2^60", num_splits));
    }
    if stride <= 0 {
        return Err(Error::argument("stride", "a positive number", stride));
    }
    let ptr = check::raw_pointer("output", output.cast(), num_splits + 1, dtype)?;
    let first =
        check::raw_pointer("split_sizes", split_sizes.cast_mut().cast(), num_splits, dtype)?;
    let output = OffsetsOutput { ptr, stride, dtype, leading_zero: true };
    let args = OffsetsArgs {
        first,
        last: std::ptr::null(),
        outputs: &output,
        num_outputs: 1,
        length: num_splits,
        first_dtype: dtype,
        last_dtype: dtype,
    };
    backend::run(&args, stream)
}

/// The length of a non-empty vector of Int32 or Int64.
fn vector_length(name: impl Display, tensor: &Tensor) -> Result<usize> {
    let buffer = &tensor.rowwise;
    check::dtype(&name, buffer.dtype, &[NVTEDType::kNVTEInt32, NVTEDType::kNVTEInt64])?;
    match buffer.shape.dims() {
        &[length] if length > 0 => {
            check::pointer(format_args!("{name}.data"), buffer)?;
            Ok(length)
        }
        _ => {
            let name = format!("{name}.shape");
            Err(Error::argument(name, "one dimension, not empty", buffer.shape))
        }
    }
}

/// A vector of Int32 or Int64 and of a length.
fn vector(name: impl Display, tensor: &Tensor, length: usize) -> Result<&Buffer> {
    let (buffer, got) = (&tensor.rowwise, vector_length(&name, tensor)?);
    if got != length {
        return Err(Error::argument(format!("{name}.shape"), format!("[{length}]"), buffer.shape));
    }
    Ok(buffer)
}

fn splits_to_offsets_2d(
    first_dims: &Tensor,
    last_dims: &Tensor,
    output: &Tensor,
    stream: cudaStream_t,
) -> Result<()> {
    let (first, length) = (&first_dims.rowwise, vector_length("first_dims", first_dims)?);
    let last = vector("last_dims", last_dims, length)?;
    let output = vector("output", output, length + 1)?;
    let output =
        OffsetsOutput { ptr: output.ptr(), stride: 1, dtype: output.dtype, leading_zero: true };
    let args = OffsetsArgs {
        first: first.ptr(),
        last: last.ptr(),
        outputs: &output,
        num_outputs: 1,
        length,
        first_dtype: first.dtype,
        last_dtype: last.dtype,
    };
    backend::run(&args, stream)
}

/// Each output has its tensor, its stride, and whether a 0 comes first.
fn splits_to_offsets_multi(
    split_sizes: &Tensor,
    outputs: impl ExactSizeIterator<Item = (Tensor, i64, bool)>,
    stream: cudaStream_t,
) -> Result<()> {
    let num_outputs = outputs.len();
    let (first, length) = (&split_sizes.rowwise, vector_length("split_sizes", split_sizes)?);
    let mut list = Vec::new();
    for (i, (output, stride, leading_zero)) in outputs.enumerate() {
        let output =
            vector(format_args!("outputs[{i}]"), &output, length + usize::from(leading_zero))?;
        list.push(OffsetsOutput { ptr: output.ptr(), stride, dtype: output.dtype, leading_zero });
    }
    let args = OffsetsArgs {
        first: first.ptr(),
        last: std::ptr::null(),
        outputs: list.as_ptr(),
        num_outputs,
        length,
        first_dtype: first.dtype,
        last_dtype: first.dtype,
    };
    backend::run(&args, stream)
}

/// 1 if the device's tensor cores take FP8 operands in any layout: compute capability 10.x, 11.x
/// and from 13.0 on. Hopper does not; neither does the CPU backend, so that code tested there runs
/// on Hopper.
pub fn non_tn_fp8_gemm_supported() -> Result<bool> {
    let arch = backend::domain()?.arch()?;
    Ok((100..120).contains(&arch) || arch >= 130)
}
