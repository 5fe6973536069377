//! An attention as its config or its tensors describe it, and what a backend gets of it: options,
//! sizes and layouts become strides, lengths and windows (spec attention 2 to 4, 10).
#![allow(unsafe_code)]

use super::{CONFIGS, Layout, numbered_layout};
use crate::backend::{self, Planned, args::*};
use crate::error::{self, Error, Result};
use crate::tensor::{FromC, from_c_enum};
use crate::types::*;
use NVTE_Bias_Type::*;
use NVTE_Mask_Type::*;
use NVTE_QKV_Format::*;
use NVTE_QKV_Layout_Group::*;
use NVTE_Softmax_Type::*;
use NVTEDType::*;
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_void};
use std::ptr::{null, null_mut, without_provenance_mut};

from_c_enum!(
    NVTE_Mask_Type,
    "an NVTE_Mask_Type from 0 to 5",
    [
        NVTE_NO_MASK,
        NVTE_PADDING_MASK,
        NVTE_CAUSAL_MASK,
        NVTE_PADDING_CAUSAL_MASK,
        NVTE_CAUSAL_BOTTOM_RIGHT_MASK,
        NVTE_PADDING_CAUSAL_BOTTOM_RIGHT_MASK,
    ]
);
from_c_enum!(
    NVTE_Bias_Type,
    "an NVTE_Bias_Type from 0 to 3",
    [NVTE_NO_BIAS, NVTE_PRE_SCALE_BIAS, NVTE_POST_SCALE_BIAS, NVTE_ALIBI]
);
from_c_enum!(
    NVTE_Softmax_Type,
    "an NVTE_Softmax_Type from 0 to 2",
    [NVTE_VANILLA_SOFTMAX, NVTE_OFF_BY_ONE_SOFTMAX, NVTE_LEARNABLE_SOFTMAX]
);

from_c_enum!(
    NVTE_QKV_Layout,
    "an NVTE_QKV_Layout from 0 to 26",
    [
        NVTE_SB3HD,
        NVTE_SBH3D,
        NVTE_SBHD_SB2HD,
        NVTE_SBHD_SBH2D,
        NVTE_SBHD_SBHD_SBHD,
        NVTE_BS3HD,
        NVTE_BSH3D,
        NVTE_BSHD_BS2HD,
        NVTE_BSHD_BSH2D,
        NVTE_BSHD_BSHD_BSHD,
        NVTE_T3HD,
        NVTE_TH3D,
        NVTE_THD_T2HD,
        NVTE_THD_TH2D,
        NVTE_THD_THD_THD,
        NVTE_SBHD_BSHD_BSHD,
        NVTE_BSHD_SBHD_SBHD,
        NVTE_THD_BSHD_BSHD,
        NVTE_THD_SBHD_SBHD,
        NVTE_Paged_KV_BSHD_BSHD_BSHD,
        NVTE_Paged_KV_BSHD_SBHD_SBHD,
        NVTE_Paged_KV_SBHD_BSHD_BSHD,
        NVTE_Paged_KV_SBHD_SBHD_SBHD,
        NVTE_Paged_KV_THD_BSHD_BSHD,
        NVTE_Paged_KV_THD_SBHD_SBHD,
        NVTE_BHSD_BHSD_BHSD,
        NVTE_QKV_Layout_NOT_SET,
    ]
);

/// What a plan gets for a pointer that will be there: aligned for any vector.
pub(super) const PRESENT: *mut c_void = without_provenance_mut(4096);

/// The attributes of an object, by number.
#[derive(Clone, Copy)]
pub(crate) struct Words<'a>(pub(crate) &'a [u64]);

impl Words<'_> {
    pub(super) fn flag(self, index: usize) -> bool {
        self.0[index] != 0
    }

    pub(super) fn size(self, index: usize) -> usize {
        self.0[index] as usize
    }

    fn float(self, index: usize) -> f32 {
        f32::from_bits(self.0[index] as u32)
    }

    fn number(self, index: usize) -> i32 {
        self.0[index] as u32 as i32
    }

    pub(super) fn pointer(self, index: usize) -> *mut c_void {
        self.size(index) as *mut c_void
    }

    pub(super) fn choice<T: FromC>(self, name: &str, index: usize) -> Result<T> {
        let number = self.number(index);
        T::from_number(number).ok_or_else(|| Error::argument(name, T::WHAT, number))
    }

    /// The format of one tensor; `implied` if it is not set.
    fn format(self, name: &str, index: usize, implied: NVTE_QKV_Format) -> Result<NVTE_QKV_Format> {
        match self.choice(name, index)? {
            NVTE_QKV_Format_NOT_SET => Ok(implied),
            format @ (NVTE_SBHD | NVTE_BSHD | NVTE_THD | NVTE_BHSD) => Ok(format),
            format => {
                let expected = "NVTE_SBHD, NVTE_BSHD, NVTE_THD or NVTE_BHSD";
                Err(Error::argument(name, expected, format!("{format:?}")))
            }
        }
    }
}

/// Where options are among the attributes of an object. Those from mask to softmax follow each
/// other, and so do dropout and scale, the layouts, and the longest sequences.
pub(crate) struct Places {
    pub(super) training: Option<usize>,
    pub(super) deterministic: Option<usize>,
    pub(super) max_logit: Option<usize>,
    pub(crate) mask: usize,
    pub(crate) dropout: usize,
    pub(crate) layout: usize,
    /// The layout of the queries is followed by the formats and layouts of o, do and dq, not o alone.
    pub(super) gradients: bool,
    pub(crate) max_seqlen: usize,
}

/// The options of an attention.
#[derive(Clone, Copy)]
pub(super) struct Options {
    pub(super) layout: Layout,
    pub(super) o_format: NVTE_QKV_Format,
    pub(super) do_format: NVTE_QKV_Format,
    pub(super) dqkv_layout: Layout,
    mask: NVTE_Mask_Type,
    pub(super) bias: NVTE_Bias_Type,
    pub(super) softmax: NVTE_Softmax_Type,
    window: [i64; 2],
    bottom_right: bool,
    pub(super) training: bool,
    deterministic: bool,
    pub(super) max_logit: bool,
    pub(super) dropout: f32,
    scale: f32,
    pub(super) max_seqlen: [usize; 2],
}

impl Options {
    pub(super) fn new(words: Words, at: &Places) -> Result<Self> {
        let layout = numbered_layout("qkv_layout", words.number(at.layout))?;
        let next = at.layout + 1;
        let mut options = Self {
            layout,
            o_format: words.format("o_format", next, layout.q)?,
            do_format: layout.q,
            dqkv_layout: layout,
            mask: words.choice("attn_mask_type", at.mask)?,
            bias: words.choice("bias_type", at.mask + 1)?,
            window: [words.size(at.mask + 2) as i64, words.size(at.mask + 3) as i64],
            bottom_right: words.flag(at.mask + 4),
            softmax: words.choice("softmax_type", at.mask + 5)?,
            training: at.training.is_none_or(|index| words.flag(index)),
            deterministic: at.deterministic.is_some_and(|index| words.flag(index)),
            max_logit: at.max_logit.is_some_and(|index| words.flag(index)),
            dropout: words.float(at.dropout),
            scale: words.float(at.dropout + 1),
            max_seqlen: [words.size(at.max_seqlen), words.size(at.max_seqlen + 1)],
        };
        // Formats of block scales say nothing about scales of tensors, but must be formats.
        let mut scale_formats = next + 1;
        if at.gradients {
            options.do_format = words.format("do_format", next + 1, layout.q)?;
            if words.choice::<NVTE_QKV_Layout>("dqkv_layout", next + 2)?
                != NVTE_QKV_Layout::NVTE_QKV_Layout_NOT_SET
            {
                options.dqkv_layout = numbered_layout("dqkv_layout", words.number(next + 2))?;
            }
            scale_formats = next + 3;
            words.choice::<NVTE_QKV_Format>("do_scale_inv_format", scale_formats + 1)?;
        }
        words.choice::<NVTE_QKV_Format>("qkv_scale_inv_format", scale_formats)?;
        Ok(options)
    }

    pub(super) fn padding(&self) -> bool {
        use NVTE_Mask_Type::*;
        matches!(
            self.mask,
            NVTE_PADDING_MASK | NVTE_PADDING_CAUSAL_MASK | NVTE_PADDING_CAUSAL_BOTTOM_RIGHT_MASK
        )
    }

    /// Queries, keys and values are parts of one tensor.
    pub(super) fn interleaves_all(&self) -> bool {
        matches!(self.layout.group, NVTE_3HD | NVTE_H3D)
    }

    pub(super) fn paged(&self) -> bool {
        self.layout.group == NVTE_Paged_KV_HD_HD_HD
    }

    pub(super) fn ragged(&self) -> [bool; 2] {
        [self.layout.q, self.layout.kv].map(|format| format == NVTE_THD)
    }

    /// Window and alignment, as far as they matter: a causal mask bounds the right side, and the
    /// mask's name goes before the flag.
    fn window(&self) -> Result<([i64; 2], bool)> {
        let [left, mut right] = self.window;
        for (name, size) in [("window_size_left", left), ("window_size_right", right)] {
            if size < -1 {
                return Err(Error::argument(name, "-1 (unbounded) or more", size));
            }
        }
        let bottom_right = match self.mask {
            NVTE_NO_MASK | NVTE_PADDING_MASK => self.bottom_right && (left, right) != (-1, -1),
            mask => {
                right = 0;
                matches!(
                    mask,
                    NVTE_CAUSAL_BOTTOM_RIGHT_MASK | NVTE_PADDING_CAUSAL_BOTTOM_RIGHT_MASK
                )
            }
        };
        Ok(([left, right], bottom_right))
    }
}

/// Pages of the keys or of the values.
#[derive(Clone, Copy, Default)]
pub(super) struct Pages {
    pub(super) count: usize,
    pub(super) size: usize,
    /// Entries of a sequence in the page table.
    pub(super) per_sequence: usize,
}

/// An attention without its memory.
pub(super) struct Problem {
    pub(super) options: Options,
    pub(super) scaling: NVTEScalingMode,
    pub(super) qkv_dtype: NVTEDType,
    pub(super) o_dtype: NVTEDType,
    pub(super) do_dtype: NVTEDType,
    pub(super) dqkv_dtype: NVTEDType,
    pub(super) bias_dtype: NVTEDType,
    pub(super) batch: usize,
    /// Of the queries, and of the keys and values.
    pub(super) heads: [usize; 2],
    pub(super) dim_qk: usize,
    pub(super) dim_v: usize,
    pub(super) tokens: [usize; 2],
    /// Of the keys, and of the values.
    pub(super) pages: [Pages; 2],
    /// Batch, heads, queries, keys.
    pub(super) bias: [usize; 4],
}

impl Problem {
    pub(super) fn from_config(config: *mut c_void) -> Result<Self> {
        let values = CONFIGS.slab.get("config", config)?;
        Self::from_words(Words(&values))
    }

    /// The attention of the attributes of a config.
    pub(super) fn from_words(words: Words) -> Result<Self> {
        use NVTEFusedAttnConfigAttribute::*;
        const PLACES: Places = Places {
            training: Some(kNVTEFusedAttnConfigIsTraining as usize),
            deterministic: Some(kNVTEFusedAttnConfigDeterministic as usize),
            max_logit: Some(kNVTEFusedAttnConfigReturnMaxLogit as usize),
            mask: kNVTEFusedAttnConfigAttnMaskType as usize,
            dropout: kNVTEFusedAttnConfigDropout as usize,
            layout: kNVTEFusedAttnConfigQKVLayout as usize,
            gradients: true,
            max_seqlen: kNVTEFusedAttnConfigMaxSeqlenQ as usize,
        };
        let size = |attribute: NVTEFusedAttnConfigAttribute| words.size(attribute as usize);
        let dtype = |name: &str, attribute: NVTEFusedAttnConfigAttribute| {
            words.choice::<NVTEDType>(name, attribute as usize)
        };
        let options = Options::new(words, &PLACES)?;
        let o_dtype = dtype("o_dtype", kNVTEFusedAttnConfigODtype)?;
        let qkv_dtype = dtype("qkv_dtype", kNVTEFusedAttnConfigQKVDtype)?;
        Ok(Self {
            options,
            scaling: words.choice("scaling_mode", kNVTEFusedAttnConfigScalingMode as usize)?,
            qkv_dtype,
            o_dtype,
            do_dtype: dtype("do_dtype", kNVTEFusedAttnConfigDODtype)?,
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

    pub(super) fn fp8(&self) -> bool {
        self.qkv_dtype.is_fp8()
    }

    /// Length of the longest sequence that a side can have. Callers may name a longer one than packed tokens
    /// have room for; the work does not grow with it. A bias has rows and columns for the one that is named, and
    /// dropout numbers scores by it.
    fn longest(&self, side: usize) -> usize {
        let named = self.options.max_seqlen[side];
        let needed = self.options.bias == NVTE_POST_SCALE_BIAS || self.options.dropout > 0.0;
        if self.options.ragged()[side] && !needed { named.min(self.tokens[side]) } else { named }
    }

    /// Rows of queries or keys that the tensors of a side have room for.
    pub(super) fn rows(&self, side: usize) -> usize {
        let dense = self.batch.saturating_mul(self.options.max_seqlen[side]);
        if self.options.ragged()[side] { self.tokens[side] } else { dense }
    }

    /// The dimensions of a tensor with its side's rows (0: queries, 1: keys and values), in the order
    /// of a format.
    pub(super) fn dims(&self, side: usize, format: NVTE_QKV_Format, dim: usize) -> Vec<usize> {
        let (b, s, h) = (self.batch, self.options.max_seqlen[side], self.heads[side]);
        match format {
            NVTE_THD => vec![self.tokens[side], h, dim],
            NVTE_SBHD => vec![s, b, h, dim],
            NVTE_BHSD => vec![b, h, s, dim],
            _ => vec![b, s, h, dim],
        }
    }

    /// The dimensions of the paged keys (0) or values (1).
    pub(super) fn page_dims(&self, which: usize, dim: usize) -> Vec<usize> {
        let Pages { count, size, .. } = self.pages[which];
        let (first, second) =
            if self.options.layout.kv == NVTE_SBHD { (size, count) } else { (count, size) };
        vec![first, second, self.heads[1], dim]
    }

    /// Checks of what does not depend on memory, with the name of the argument that is wrong.
    fn check(&self, backward: bool) -> Result<()> {
        let o = &self.options;
        let sizes = [
            ("batch_size", self.batch),
            ("num_attn_heads", self.heads[0]),
            ("num_gqa_groups", self.heads[1]),
            ("head_dim_qk", self.dim_qk),
            ("head_dim_v", self.dim_v),
        ];
        for (name, size) in sizes {
            if size == 0 {
                return Err(Error::argument(name, "more than 0", size));
            }
        }
        let (dim, [q, kv]) = (self.dim_qk.max(self.dim_v), [0, 1].map(|side| self.longest(side)));
        let pages = self.pages.map(|pages| [pages.count, pages.size, self.heads[1], dim]);
        let dense = [[self.batch, q, self.heads[0], dim], [self.batch, kv, self.heads[1], dim]];
        for dims in [self.bias].iter().chain(&pages).chain(&dense) {
            // With three tensors together, of 4 bytes.
            let bytes = dims.iter().try_fold(12usize, |bytes, &dim| bytes.checked_mul(dim.max(1)));
            if bytes.is_none_or(|bytes| bytes > isize::MAX as usize) {
                let expected = "sizes whose product in bytes fits 63 bits";
                return Err(Error::argument("sizes", expected, format!("{dims:?}")));
            }
        }
        if !self.heads[0].is_multiple_of(self.heads[1]) {
            let expected = format!("a divisor of num_attn_heads ({})", self.heads[0]);
            return Err(Error::argument("num_gqa_groups", expected, self.heads[1]));
        }
        if !(0.0..1.0).contains(&o.dropout) {
            return Err(Error::argument("dropout", "at least 0 and less than 1", o.dropout));
        }
        self.check_layouts(backward)?;
        self.check_dtypes(backward)?;
        if o.bias == NVTE_PRE_SCALE_BIAS {
            let expected = "NVTE_NO_BIAS, NVTE_POST_SCALE_BIAS or NVTE_ALIBI (a bias before the scale \
                            is the bias times attn_scale after it)";
            return Err(Error::argument("bias_type", expected, "NVTE_PRE_SCALE_BIAS"));
        }
        let [b, h, q, kv] = self.bias;
        let [most_q, most_kv] = o.max_seqlen;
        let fits = |dim, most| dim == 1 || dim == most;
        let good =
            fits(b, self.batch) && fits(h, self.heads[0]) && fits(q, most_q) && kv == most_kv;
        if o.bias == NVTE_POST_SCALE_BIAS && !good {
            let (batch, heads) = (self.batch, self.heads[0]);
            let expected = format!("[1 or {batch}, 1 or {heads}, 1 or {most_q}, {most_kv}]");
            return Err(Error::argument("Bias.shape", expected, format!("{:?}", self.bias)));
        }
        Ok(())
    }

    fn check_layouts(&self, backward: bool) -> Result<()> {
        let o = &self.options;
        let ragged = o.ragged();
        if (ragged != [false; 2] || o.paged()) && !o.padding() {
            let what = if o.paged() { "paged keys and values" } else { "packed tokens (THD)" };
            let expected = format!("a padding mask, because of {what}");
            return Err(Error::argument("attn_mask_type", expected, format!("{:?}", o.mask)));
        }
        if o.paged() {
            if backward {
                let expected = "keys and values without pages (their gradients are not paged)";
                return Err(Error::argument("qkv_layout", expected, "a paged layout"));
            }
            for (name, pages) in ["k", "v"].into_iter().zip(&self.pages) {
                let needed = o.max_seqlen[1].div_ceil(pages.size.max(1));
                let counts = [
                    (format!("num_pages_{name}"), pages.count, 1),
                    (format!("page_size_{name}"), pages.size, 1),
                    (format!("max_pages_per_seq_{name}"), pages.per_sequence, needed.max(1)),
                ];
                for (name, count, least) in counts {
                    if count < least {
                        return Err(Error::argument(name, format!("at least {least}"), count));
                    }
                }
            }
        }
        let layouts = [("qkv_layout", o.layout), ("dqkv_layout", o.dqkv_layout)];
        for (name, layout) in &layouts[..if backward { 2 } else { 1 }] {
            let together = match layout.group {
                NVTE_3HD | NVTE_H3D => {
                    self.heads[0] == self.heads[1]
                        && self.dim_qk == self.dim_v
                        && self.rows(0) == self.rows(1)
                }
                NVTE_HD_2HD | NVTE_HD_H2D => self.dim_qk == self.dim_v,
                _ => true,
            };
            if !together {
                let expected =
                    "separate tensors, because those of a layout that interleaves are of one size";
                return Err(Error::argument(name, expected, format!("{:?}", layout.group)));
            }
        }
        let same = |format: NVTE_QKV_Format, side: usize| (format == NVTE_THD) == ragged[side];
        let formats = [
            ("o_format", o.o_format, 0, false),
            ("do_format", o.do_format, 0, true),
            ("dqkv_layout", o.dqkv_layout.q, 0, true),
            ("dqkv_layout", o.dqkv_layout.kv, 1, true),
        ];
        for (name, format, side, only_backward) in formats {
            if (backward || !only_backward) && !same(format, side) {
                let expected =
                    if ragged[side] { "packed tokens (THD)" } else { "no packed tokens" };
                return Err(Error::argument(name, expected, format!("{format:?}")));
            }
        }
        Ok(())
    }

    fn check_dtypes(&self, backward: bool) -> Result<()> {
        const FP8: &[NVTEDType] = &[kNVTEFloat8E4M3, kNVTEFloat8E5M2];
        const OUTPUTS: &[NVTEDType] =
            &[kNVTEFloat8E4M3, kNVTEFloat8E5M2, kNVTEFloat16, kNVTEBFloat16, kNVTEFloat32];
        let own = [self.qkv_dtype];
        let check = crate::check::dtype;
        check("Q", self.qkv_dtype, super::TOKENS)?;
        check("O", self.o_dtype, if self.fp8() { OUTPUTS } else { &own })?;
        if self.fp8() && self.scaling != NVTEScalingMode::NVTE_DELAYED_TENSOR_SCALING {
            let expected = "NVTE_DELAYED_TENSOR_SCALING (blocks: dequantize and use 16-bit attention, \
                            or quantize per tensor)";
            return Err(Error::argument("scaling_mode", expected, self.scaling));
        }
        if self.fp8() && self.options.bias == NVTE_POST_SCALE_BIAS {
            check("Bias", self.bias_dtype, crate::check::HIGH_PRECISION)?;
        }
        if backward {
            check("dO", self.do_dtype, if self.fp8() { FP8 } else { &own })?;
            check("dQ", self.dqkv_dtype, if self.fp8() { OUTPUTS } else { &own })?;
        }
        Ok(())
    }

    /// The arguments of a pass. Pointers that will be there are [`PRESENT`].
    pub(super) fn args(&self, backward: bool) -> Result<AttentionArgs> {
        self.check(backward)?;
        let o = &self.options;
        let (window, bottom_right) = o.window()?;
        let ragged = o.ragged();
        let only = |there: bool| if there { PRESENT } else { null_mut() };
        let gradient = |tensor| if backward { tensor } else { NO_TENSOR };
        let side = |side: usize| AttentionSide {
            cu_seqlens: only(o.padding()).cast(),
            starts: only(ragged[side]).cast(),
            max_seqlen: self.longest(side),
            tokens: self.rows(side),
            heads: self.heads[side],
        };
        let (l, d) = (&o.layout, &o.dqkv_layout);
        let (qk, v, dtype) = (self.dim_qk, self.dim_v, self.qkv_dtype);
        let together = |layout: &Layout, side: usize| match layout.group {
            NVTE_3HD => (3, false),
            NVTE_H3D => (3, true),
            NVTE_HD_2HD if side == 1 => (2, false),
            NVTE_HD_H2D if side == 1 => (2, true),
            _ => (1, false),
        };
        let place = |dtype, side, format, dim, together| AttentionTensor {
            data: PRESENT,
            dtype,
            ..self.strides(side, format, dim, together)
        };
        let alone = (1, false);
        let (mut k, mut values) =
            (place(dtype, 1, l.kv, qk, together(l, 1)), place(dtype, 1, l.kv, v, together(l, 1)));
        if o.paged() {
            k = AttentionTensor { data: PRESENT, dtype, ..self.page_strides(0, qk) };
            values = AttentionTensor { data: PRESENT, dtype, ..self.page_strides(1, v) };
        }
        let bias = if o.bias == NVTE_POST_SCALE_BIAS { self.bias_strides() } else { NO_TENSOR };
        let grads = self.dqkv_dtype;
        let dropout = o.dropout > 0.0 && (backward || o.training);
        Ok(AttentionArgs {
            q: place(dtype, 0, l.q, qk, together(l, 0)),
            k,
            v: values,
            o: place(self.o_dtype, 0, o.o_format, v, alone),
            d_o: gradient(place(self.do_dtype, 0, o.do_format, v, alone)),
            dq: gradient(place(grads, 0, d.q, qk, together(d, 0))),
            dk: gradient(place(grads, 1, d.kv, qk, together(d, 1))),
            dv: gradient(place(grads, 1, d.kv, v, together(d, 1))),
            bias,
            dbias: gradient(bias),
            s: NO_TENSOR,
            dp: NO_TENSOR,
            q_side: side(0),
            kv_side: side(1),
            batch: self.batch,
            dim_qk: qk,
            dim_v: v,
            stats: PRESENT.cast(),
            max: only(o.max_logit && !backward).cast(),
            sink: only(o.softmax != NVTE_VANILLA_SOFTMAX).cast(),
            dsink: only(o.softmax != NVTE_VANILLA_SOFTMAX && backward).cast(),
            page_table_k: only(o.paged()).cast(),
            page_table_v: only(o.paged()).cast(),
            max_pages_k: self.pages[0].per_sequence,
            max_pages_v: self.pages[1].per_sequence,
            page_size_k: self.pages[0].size,
            page_size_v: self.pages[1].size,
            num_pages_k: self.pages[0].count,
            num_pages_v: self.pages[1].count,
            scale: o.scale,
            dropout: if dropout { o.dropout } else { 0.0 },
            rng_state: only(dropout).cast(),
            window_left: window[0],
            window_right: window[1],
            bottom_right,
            alibi: o.bias == NVTE_ALIBI,
            backward,
            deterministic: o.deterministic,
            workspace: null_mut(),
            workspace_bytes: 0,
        })
    }

    /// Strides of a tensor in a format, `count` of which lie together: between the rows, or (`inner`)
    /// between the heads.
    fn strides(
        &self,
        side: usize,
        format: NVTE_QKV_Format,
        dim: usize,
        (count, inner): (usize, bool),
    ) -> AttentionTensor {
        let (b, s, h) = (self.batch, self.options.max_seqlen[side], self.heads[side]);
        let (row, head) = (count * h * dim, if inner { count * dim } else { dim });
        let (batch, row, head) = match format {
            NVTE_SBHD => (row, b * row, head),
            NVTE_BHSD => (h * s * dim, dim, s * dim),
            NVTE_THD => (0, row, head),
            _ => (s * row, row, head),
        };
        AttentionTensor { batch: batch as i64, row: row as i64, head: head as i64, ..NO_TENSOR }
    }

    fn page_strides(&self, which: usize, dim: usize) -> AttentionTensor {
        let (width, Pages { count, size, .. }) = (self.heads[1] * dim, self.pages[which]);
        let (page, row) = match self.options.layout.kv {
            NVTE_SBHD => (width, count * width),
            _ => (size * width, width),
        };
        AttentionTensor { batch: page as i64, row: row as i64, head: dim as i64, ..NO_TENSOR }
    }

    /// Strides of a bias, 0 where it is broadcast.
    fn bias_strides(&self) -> AttentionTensor {
        let [b, h, q, kv] = self.bias;
        let stride = |dim: usize, stride: usize| if dim == 1 { 0 } else { stride as i64 };
        AttentionTensor {
            data: PRESENT,
            dtype: self.bias_dtype,
            batch: stride(b, h * q * kv),
            head: stride(h, q * kv),
            row: stride(q, kv),
            ..NO_TENSOR
        }
    }

    /// Bytes of the workspace that are not the backend's: of the zeros that a softmax off by one has
    /// for offsets that are not given.
    pub(super) fn sink_bytes(&self) -> usize {
        match self.options.softmax {
            NVTE_OFF_BY_ONE_SOFTMAX => self.heads[0] * size_of::<f32>(),
            _ => 0,
        }
    }

    /// What the backend would do with the attention of a config, whose packed sides have tokens.
    fn plan(&self, backward: bool) -> Result<Planned> {
        let tokens = ["num_tokens_q", "num_tokens_kv"].into_iter().zip(self.tokens);
        for ((name, tokens), ragged) in tokens.zip(self.options.ragged()) {
            if ragged && tokens == 0 {
                return Err(Error::argument(name, "more than 0 (packed tokens)", tokens));
            }
        }
        backend::attention_plan(&self.args(backward)?)
    }
}

/// A tensor that is not there.
pub(super) const NO_TENSOR: AttentionTensor = AttentionTensor {
    data: null_mut(),
    dtype: kNVTEFloat32,
    batch: 0,
    row: 0,
    head: 0,
    scale: null(),
    scale_inv: null(),
    amax: null_mut(),
};

/// Keeps a text for the thread until the next one.
fn keep(text: &str) -> *const c_char {
    thread_local! {
        static KEPT: RefCell<CString> = RefCell::default();
    }
    error::keep(&KEPT, text)
}

/// The kind of implementation that runs a problem, or why there is none. Training asks for both passes.
pub(super) fn choose(problem: &Problem) -> (NVTE_Fused_Attn_Backend, *const c_char) {
    let passes: &[bool] = if problem.options.training { &[false, true] } else { &[false] };
    for &backward in passes {
        if let Err(error) = problem.plan(backward) {
            let pass = if backward { "backward: " } else { "" };
            let text = format!("{pass}{}", error.message);
            return (NVTE_Fused_Attn_Backend::NVTE_No_Backend, keep(&text));
        }
    }
    (kind(problem), c"".as_ptr())
}

fn kind(problem: &Problem) -> NVTE_Fused_Attn_Backend {
    match problem.fp8() {
        true => NVTE_Fused_Attn_Backend::NVTE_FP8,
        false => NVTE_Fused_Attn_Backend::NVTE_F16_arbitrary_seqlen,
    }
}

/// Where a query writes its answers; each may be null.
pub(super) struct Answers {
    pub(super) implementation: *mut *const c_char,
    pub(super) rejected: *mut *const c_char,
    pub(super) workspace_bytes: *mut usize,
}

/// # Safety
/// The addresses of the answers are null or valid.
pub(super) unsafe fn query(
    problem: &Problem,
    backward: bool,
    answers: &Answers,
) -> NVTE_Fused_Attn_Backend {
    let planned = problem.plan(backward);
    let (kind, implementation, rejected, bytes) = match planned {
        Ok(planned) => {
            let bytes = workspace_bytes(problem, &planned);
            (kind(problem), planned.implementation, keep(&planned.rejected), bytes)
        }
        Err(error) => (NVTE_Fused_Attn_Backend::NVTE_No_Backend, null(), keep(&error.message), 0),
    };
    // SAFETY: the caller's promise.
    unsafe {
        backend::buf::store(answers.implementation, implementation);
        backend::buf::store(answers.rejected, rejected);
        backend::buf::store(answers.workspace_bytes, bytes);
    }
    kind
}

/// Alignment of the parts of a workspace.
pub(super) const PART: usize = 256;

/// Bytes of the workspace: the backend's part, then the zeros of a softmax off by one.
pub(super) fn workspace_bytes(problem: &Problem, planned: &Planned) -> usize {
    match problem.sink_bytes() {
        0 => planned.workspace_bytes,
        zeros => planned.workspace_bytes.next_multiple_of(PART) + zeros,
    }
}
