//! The options of attention in C: numbers of enumerations, and attributes of configs and parameters, which are read
//! by position here alone.
#![allow(unsafe_code)]

use super::objects::CONFIGS;
use crate::error::{Error, Result};
use crate::op::fused_attn::attention::Attention;
use crate::op::fused_attn::layout::Layout;
use crate::op::fused_attn::problem::{Pages, Problem};
use crate::tensor::{FromC, from_c_enum};
use crate::types::*;
use NVTE_QKV_Format::*;
use NVTE_QKV_Layout::*;
use NVTEDType::*;
use std::ffi::c_void;
use std::mem::MaybeUninit;

from_c_enum!(NVTE_Mask_Type, "an NVTE_Mask_Type from 0 to 5");
from_c_enum!(NVTE_Bias_Type, "an NVTE_Bias_Type from 0 to 3");
from_c_enum!(NVTE_Softmax_Type, "an NVTE_Softmax_Type from 0 to 2");
from_c_enum!(NVTE_QKV_Layout, "an NVTE_QKV_Layout from 0 to 26");

/// The options of an attention as C has them: an enumeration may be any number.
#[derive(Clone, Copy)]
pub(super) struct COptions {
    pub(super) layout: i32,
    pub(super) o_format: i32,
    /// The format of the scales of blocks. No attention takes blocks, so it has no influence, but it
    /// must be a format.
    pub(super) qkv_scale_inv_format: i32,
    /// Options of the backward pass alone.
    pub(super) gradients: Option<CGradients>,
    pub(super) mask: i32,
    pub(super) bias: i32,
    pub(super) window: [i64; 2],
    pub(super) bottom_right: bool,
    pub(super) softmax: i32,
    pub(super) dropout: f32,
    pub(super) scale: f32,
    pub(super) training: bool,
    pub(super) deterministic: bool,
    pub(super) max_logit: bool,
    pub(super) max_seqlen: [usize; 2],
}

/// Formats of the gradients.
#[derive(Clone, Copy)]
pub(super) struct CGradients {
    pub(super) do_format: i32,
    pub(super) dqkv_layout: i32,
    pub(super) do_scale_inv_format: i32,
}

/// The number of an enumeration that C passed.
pub(super) fn number<T: Copy>(value: MaybeUninit<T>) -> i32 {
    const { assert!(size_of::<T>() == size_of::<i32>()) };
    // SAFETY: a C caller initialises all 4 bytes, whatever their value, and every value is an i32.
    unsafe { value.as_ptr().cast::<i32>().read() }
}

fn choice<T: FromC>(name: &str, number: i32) -> Result<T> {
    T::from_number(number).ok_or_else(|| Error::argument(name, T::WHAT, number))
}

/// The layout behind a number, which must be one.
pub(super) fn layout(name: &str, number: i32) -> Result<Layout> {
    let layout = NVTE_QKV_Layout::from_number(number).and_then(Layout::of);
    layout.ok_or_else(|| Error::argument(name, "an NVTE_QKV_Layout from 0 to 25", number))
}

/// The format of one tensor; `implied` if it is not set.
fn format(name: &str, number: i32, implied: NVTE_QKV_Format) -> Result<NVTE_QKV_Format> {
    match choice(name, number)? {
        NVTE_QKV_Format_NOT_SET => Ok(implied),
        format @ (NVTE_SBHD | NVTE_BSHD | NVTE_THD | NVTE_BHSD) => Ok(format),
        format => {
            let expected = "NVTE_SBHD, NVTE_BSHD, NVTE_THD or NVTE_BHSD";
            Err(Error::argument(name, expected, format!("{format:?}")))
        }
    }
}

impl COptions {
    pub(super) fn attention(&self) -> Result<Attention> {
        let layout = layout("qkv_layout", self.layout)?;
        let mut attention = Attention {
            o_format: format("o_format", self.o_format, layout.q)?,
            mask: choice("attn_mask_type", self.mask)?,
            bias: choice("bias_type", self.bias)?,
            window: self.window,
            bottom_right: self.bottom_right,
            softmax: choice("softmax_type", self.softmax)?,
            scale: self.scale,
            dropout: self.dropout,
            training: self.training,
            deterministic: self.deterministic,
            max_logit: self.max_logit,
            max_seqlen: self.max_seqlen,
            ..Attention::new(layout)
        };
        if let Some(gradients) = self.gradients {
            attention.do_format = format("do_format", gradients.do_format, layout.q)?;
            let unset = NVTE_QKV_Layout_NOT_SET as i32;
            if gradients.dqkv_layout != unset {
                let name = "dqkv_layout";
                choice::<NVTE_QKV_Layout>(name, gradients.dqkv_layout)?;
                attention.dqkv_layout = self::layout(name, gradients.dqkv_layout)?;
            }
            choice::<NVTE_QKV_Format>("do_scale_inv_format", gradients.do_scale_inv_format)?;
        }
        choice::<NVTE_QKV_Format>("qkv_scale_inv_format", self.qkv_scale_inv_format)?;
        Ok(attention)
    }
}

/// The attributes of an object, by number.
pub(super) struct Words<'a>(pub(super) &'a [u64]);

impl Words<'_> {
    pub(super) fn flag(&self, at: usize) -> bool {
        self.0[at] != 0
    }

    pub(super) fn size(&self, at: usize) -> usize {
        self.0[at] as usize
    }

    pub(super) fn float(&self, at: usize) -> f32 {
        f32::from_bits(self.0[at] as u32)
    }

    pub(super) fn number(&self, at: usize) -> i32 {
        self.0[at] as u32 as i32
    }

    pub(super) fn pointer(&self, at: usize) -> *mut c_void {
        self.size(at) as *mut c_void
    }

    /// Handles from one attribute to the next.
    pub(super) fn pointers<const N: usize>(&self, first: usize) -> [*mut c_void; N] {
        std::array::from_fn(|i| self.pointer(first + i))
    }

    /// Options that follow each other in all three kinds of objects: from the mask to the softmax, dropout and
    /// scale, and the longest sequences. Layouts and flags are added by the kind.
    pub(super) fn options(
        &self,
        mask: usize,
        dropout: usize,
        layout: usize,
        max_seqlen: usize,
    ) -> COptions {
        COptions {
            layout: self.number(layout),
            o_format: self.number(layout + 1),
            qkv_scale_inv_format: self.number(layout + 2),
            gradients: None,
            mask: self.number(mask),
            bias: self.number(mask + 1),
            window: [self.size(mask + 2) as i64, self.size(mask + 3) as i64],
            bottom_right: self.flag(mask + 4),
            softmax: self.number(mask + 5),
            dropout: self.float(dropout),
            scale: self.float(dropout + 1),
            training: true,
            deterministic: false,
            max_logit: false,
            max_seqlen: [self.size(max_seqlen), self.size(max_seqlen + 1)],
        }
    }

    /// As [`Self::options`], of objects that have the layouts of gradients between those of O and of the scales.
    pub(super) fn options_of_both(
        &self,
        mask: usize,
        dropout: usize,
        layout: usize,
        max_seqlen: usize,
    ) -> COptions {
        COptions {
            qkv_scale_inv_format: self.number(layout + 4),
            gradients: Some(CGradients {
                do_format: self.number(layout + 2),
                dqkv_layout: self.number(layout + 3),
                do_scale_inv_format: self.number(layout + 5),
            }),
            ..self.options(mask, dropout, layout, max_seqlen)
        }
    }
}

/// The attention that a config describes.
pub(super) fn problem_of_config(config: *mut c_void) -> Result<Problem> {
    use NVTEFusedAttnConfigAttribute::*;
    let values = CONFIGS.slab.get("config", config)?;
    let words = Words(&values);
    let size = |attribute: NVTEFusedAttnConfigAttribute| words.size(attribute as usize);
    let flag = |attribute: NVTEFusedAttnConfigAttribute| words.flag(attribute as usize);
    let dtype = |name: &str, attribute: NVTEFusedAttnConfigAttribute| {
        choice::<NVTEDType>(name, words.number(attribute as usize))
    };
    let options = COptions {
        training: flag(kNVTEFusedAttnConfigIsTraining),
        deterministic: flag(kNVTEFusedAttnConfigDeterministic),
        max_logit: flag(kNVTEFusedAttnConfigReturnMaxLogit),
        ..words.options_of_both(
            kNVTEFusedAttnConfigAttnMaskType as usize,
            kNVTEFusedAttnConfigDropout as usize,
            kNVTEFusedAttnConfigQKVLayout as usize,
            kNVTEFusedAttnConfigMaxSeqlenQ as usize,
        )
    };
    let attention = options.attention()?;
    let o_dtype = dtype("o_dtype", kNVTEFusedAttnConfigODtype)?;
    let qkv_dtype = dtype("qkv_dtype", kNVTEFusedAttnConfigQKVDtype)?;
    Ok(Problem {
        attention,
        scaling: choice("scaling_mode", words.number(kNVTEFusedAttnConfigScalingMode as usize))?,
        qkv_dtype,
        o_dtype,
        do_dtype: match dtype("do_dtype", kNVTEFusedAttnConfigDODtype)? {
            // Callers describe the gradient as they get it and cast it before the pass.
            kNVTEFloat32 | kNVTEFloat16 | kNVTEBFloat16 if qkv_dtype.is_fp8() => kNVTEFloat8E5M2,
            dtype => dtype,
        },
        dqkv_dtype: dtype("dqkv_dtype", kNVTEFusedAttnConfigDQKVDtype)?,
        bias_dtype: match (qkv_dtype.is_fp8(), o_dtype.is_fp8()) {
            (false, _) => qkv_dtype,
            (true, false) => o_dtype,
            (true, true) => kNVTEBFloat16,
        },
        batch: size(kNVTEFusedAttnConfigBatchSize),
        heads: [kNVTEFusedAttnConfigNumAttnHeads, kNVTEFusedAttnConfigNumGQAGroups].map(size),
        dim_qk: size(kNVTEFusedAttnConfigHeadDimQK),
        dim_v: size(kNVTEFusedAttnConfigHeadDimV),
        tokens: [kNVTEFusedAttnConfigNumTokensQ, kNVTEFusedAttnConfigNumTokensKV].map(size),
        pages: [
            Pages {
                count: size(kNVTEFusedAttnConfigNumPagesK),
                size: size(kNVTEFusedAttnConfigPageSizeK),
                per_sequence: size(kNVTEFusedAttnConfigMaxPagesPerSeqK),
            },
            Pages {
                count: size(kNVTEFusedAttnConfigNumPagesV),
                size: size(kNVTEFusedAttnConfigPageSizeV),
                per_sequence: size(kNVTEFusedAttnConfigMaxPagesPerSeqV),
            },
        ],
        bias: [
            kNVTEFusedAttnConfigBiasBatchSize,
            kNVTEFusedAttnConfigBiasNumHeads,
            kNVTEFusedAttnConfigBiasSeqlenQ,
            kNVTEFusedAttnConfigBiasSeqlenKV,
        ]
        .map(size),
    })
}
