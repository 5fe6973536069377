//! Matmul configs of the C interface: their records, and access to their attributes.
#![allow(unsafe_code)]

use super::Epilogue;
use crate::check;
use crate::error::{Error, Result};
use crate::handle::{Kind, Slab};
use crate::op::attribute;
use crate::tensor::{Buffer, from_c, from_c_enum};
use crate::types::*;
use std::ffi::c_void;
use std::mem::MaybeUninit;

/// What a matmul config holds. Tensor handles are looked up when a product runs.
#[derive(Clone, Copy, Default)]
pub struct MatmulConfig {
    bias: usize,
    dbias: usize,
    gelu: bool,
    dgelu: bool,
    aux: usize,
    pub(super) split_accumulator: bool,
    pub(super) sm_count: i32,
}

/// What a grouped matmul config holds; sizes that were never set read as 0.
#[derive(Clone, Copy, Default)]
pub struct GroupedMatmulConfig {
    pub(crate) avg_m: Option<i64>,
    pub(crate) avg_n: Option<i64>,
    pub(crate) avg_k: Option<i64>,
    pub(crate) sm_count: i32,
    pub(crate) split_accumulator: bool,
}

pub static CONFIGS: Slab<MatmulConfig> = Slab::new(Kind::MatmulConfig);
pub static GROUPED_CONFIGS: Slab<GroupedMatmulConfig> = Slab::new(Kind::GroupedMatmulConfig);

from_c_enum!(
    NVTEMatmulConfigAttribute,
    "an NVTEMatmulConfigAttribute from 0 to 6",
    kNVTEMatmulConfigNumAttributes
);
from_c_enum!(
    NVTEGroupedMatmulConfigAttribute,
    "an NVTEGroupedMatmulConfigAttribute from 0 to 4",
    kNVTEGroupedMatmulConfigNumAttributes
);

/// Unlike other getters, these require the size pointer.
fn check_size_written(size_written: *const usize) -> Result<()> {
    check::address("size_written", size_written)
}

/// # Safety
/// As [`attribute::write`].
pub(super) unsafe fn get_attribute(
    config: NVTEMatmulConfig,
    attr: MaybeUninit<NVTEMatmulConfigAttribute>,
    buf: *mut c_void,
    size: usize,
    written: *mut usize,
) -> Result<()> {
    use NVTEMatmulConfigAttribute::*;
    let attr = from_c("attr", attr)?;
    check_size_written(written)?;
    let config = || attribute::object(&CONFIGS, config, buf, &MatmulConfig::default());
    let tensor = |of: fn(&MatmulConfig) -> usize| move || Ok(of(&config()?) as NVTETensor);
    let flag = |of: fn(&MatmulConfig) -> bool| move || Ok(of(&config()?) as u8);
    // SAFETY: the caller vouches for the buffers.
    unsafe {
        match attr {
            kNVTEMatmulConfigBiasTensor => attribute::write(tensor(|c| c.bias), buf, size, written),
            kNVTEMatmulConfigDBiasTensor => {
                attribute::write(tensor(|c| c.dbias), buf, size, written)
            }
            kNVTEMatmulConfigWithGELUEpilogue => {
                attribute::write(flag(|c| c.gelu), buf, size, written)
            }
            kNVTEMatmulConfigWithDGELUEpilogue => {
                attribute::write(flag(|c| c.dgelu), buf, size, written)
            }
            kNVTEMatmulConfigEpilogueAuxTensor => {
                attribute::write(tensor(|c| c.aux), buf, size, written)
            }
            kNVTEMatmulConfigUseSplitAccumulator => {
                attribute::write(flag(|c| c.split_accumulator), buf, size, written)
            }
            _ => attribute::write(|| Ok(config()?.sm_count), buf, size, written),
        }
    }
}

/// # Safety
/// As [`attribute::read`].
pub(super) unsafe fn set_attribute(
    config: NVTEMatmulConfig,
    attr: MaybeUninit<NVTEMatmulConfigAttribute>,
    buf: *const c_void,
    size: usize,
) -> Result<()> {
    use NVTEMatmulConfigAttribute::*;
    let attr = from_c("attr", attr)?;
    // SAFETY: the caller vouches for the buffer.
    let flag = || unsafe { attribute::read::<u8>(buf, size) }.map(|byte| byte != 0);
    // SAFETY: the caller vouches for the buffer.
    let tensor = || unsafe { attribute::read::<NVTETensor>(buf, size) }.map(|h| h as usize);
    // SAFETY: the caller vouches for the buffer.
    let number = || unsafe { attribute::read::<i32>(buf, size) };
    CONFIGS.write("config", config, |config| {
        match attr {
            kNVTEMatmulConfigBiasTensor => config.bias = tensor()?,
            kNVTEMatmulConfigDBiasTensor => config.dbias = tensor()?,
            kNVTEMatmulConfigWithGELUEpilogue => config.gelu = flag()?,
            kNVTEMatmulConfigWithDGELUEpilogue => config.dgelu = flag()?,
            kNVTEMatmulConfigEpilogueAuxTensor => config.aux = tensor()?,
            kNVTEMatmulConfigUseSplitAccumulator => config.split_accumulator = flag()?,
            _ => config.sm_count = number()?,
        }
        Ok(())
    })?
}

/// # Safety
/// As [`attribute::write`].
pub(super) unsafe fn get_grouped_attribute(
    config: NVTEGroupedMatmulConfig,
    attr: MaybeUninit<NVTEGroupedMatmulConfigAttribute>,
    buf: *mut c_void,
    size: usize,
    written: *mut usize,
) -> Result<()> {
    use NVTEGroupedMatmulConfigAttribute::*;
    let attr = from_c("attr", attr)?;
    check_size_written(written)?;
    let config =
        || attribute::object(&GROUPED_CONFIGS, config, buf, &GroupedMatmulConfig::default());
    let average = |of: fn(&GroupedMatmulConfig) -> Option<i64>| {
        move || Ok(of(&config()?).unwrap_or_default())
    };
    // SAFETY: the caller vouches for the buffers.
    unsafe {
        match attr {
            kNVTEGroupedMatmulConfigAvgM => {
                attribute::write(average(|c| c.avg_m), buf, size, written)
            }
            kNVTEGroupedMatmulConfigAvgN => {
                attribute::write(average(|c| c.avg_n), buf, size, written)
            }
            kNVTEGroupedMatmulConfigAvgK => {
                attribute::write(average(|c| c.avg_k), buf, size, written)
            }
            kNVTEGroupedMatmulConfigSMCount => {
                attribute::write(|| Ok(config()?.sm_count), buf, size, written)
            }
            _ => attribute::write(|| Ok(config()?.split_accumulator as u8), buf, size, written),
        }
    }
}

/// # Safety
/// As [`attribute::read`].
pub(super) unsafe fn set_grouped_attribute(
    config: NVTEGroupedMatmulConfig,
    attr: MaybeUninit<NVTEGroupedMatmulConfigAttribute>,
    buf: *const c_void,
    size: usize,
) -> Result<()> {
    use NVTEGroupedMatmulConfigAttribute::*;
    let attr = from_c("attr", attr)?;
    // SAFETY: the caller vouches for the buffer.
    let average = || unsafe { attribute::read::<i64>(buf, size) }.map(Some);
    GROUPED_CONFIGS.write("config", config, |config| {
        match attr {
            kNVTEGroupedMatmulConfigAvgM => config.avg_m = average()?,
            kNVTEGroupedMatmulConfigAvgN => config.avg_n = average()?,
            kNVTEGroupedMatmulConfigAvgK => config.avg_k = average()?,
            // SAFETY: the caller vouches for the buffer.
            kNVTEGroupedMatmulConfigSMCount => unsafe {
                config.sm_count = attribute::read(buf, size)?;
            },
            // SAFETY: the caller vouches for the buffer.
            _ => unsafe { config.split_accumulator = attribute::read::<u8>(buf, size)? != 0 },
        }
        Ok(())
    })?
}

impl MatmulConfig {
    /// The config of a handle; null stands for the defaults.
    pub(super) fn get(handle: NVTEMatmulConfig) -> Result<Self> {
        if handle.is_null() { Ok(Self::default()) } else { CONFIGS.get("config", handle) }
    }

    /// The epilogue that the config asks for.
    pub(super) fn epilogue(&self) -> Result<Epilogue<'static>> {
        let [bias, dbias, aux] = [self.bias, self.dbias, self.aux].map(|h| h as NVTETensor);
        let grad = !dbias.is_null() || self.dgelu;
        if grad && !bias.is_null() {
            let expected = "null (dbias_tensor or with_dgelu is set)";
            return Err(Error::argument("config.bias_tensor", expected, "a tensor"));
        }
        if grad && self.gelu {
            let expected = "0 (dbias_tensor or with_dgelu is set)";
            return Err(Error::argument("config.with_gelu_epilogue", expected, 1));
        }
        let with_aux = self.gelu || self.dgelu;
        if with_aux && aux.is_null() {
            let expected =
                "a tensor for the input of GELU (with_gelu_epilogue or with_dgelu is set)";
            return Err(Error::argument("config.epilogue_aux_tensor", expected, "null"));
        }
        let (bias_name, bias) = match grad {
            true => ("config.dbias_tensor", dbias),
            false => ("config.bias_tensor", bias),
        };
        let aux_name = "config.epilogue_aux_tensor";
        Ok(Epilogue {
            bias: (bias_name, check::rowwise_or_unset(bias_name, bias)?),
            aux: match with_aux {
                true => (aux_name, check::rowwise(aux_name, aux)?),
                false => (aux_name, Buffer::UNSET),
            },
            grad,
        })
    }
}

impl GroupedMatmulConfig {
    /// The config of a handle; null stands for the defaults.
    pub(super) fn get(handle: NVTEGroupedMatmulConfig) -> Result<Self> {
        if handle.is_null() { Ok(Self::default()) } else { GROUPED_CONFIGS.get("config", handle) }
    }
}
