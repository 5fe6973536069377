//! An attention with its sizes and dtypes but without its memory, as tensors or a config describe it: what is
//! checked, and what a backend gets of it, where options, sizes and layouts are strides, lengths and windows
//! (spec attention 2 to 4, 10).

use super::attention::Attention;
use crate::backend::{self, Planned, args::*, policy};
use crate::env::drop_in;
use crate::error::{Error, Result};
use crate::tensor::Shape;
use crate::types::*;
use NVTE_Bias_Type::*;
use NVTE_QKV_Format::*;
use NVTE_QKV_Layout_Group::*;
use NVTE_Softmax_Type::*;
use NVTEDType::*;
use std::ffi::c_void;
use std::ptr::{null, null_mut, without_provenance_mut};

/// In a plan this address stands for memory that will be there: it is aligned for any vector.
const PRESENT: *mut c_void = without_provenance_mut(4096);

/// Alignment of the parts of a workspace.
const PART: usize = 256;

impl AttentionTensor {
    /// A tensor that is not there.
    pub(super) const NONE: Self = Self {
        data: null_mut(),
        dtype: kNVTEFloat32,
        batch: 0,
        row: 0,
        head: 0,
        scale: null(),
        scale_inv: null(),
        amax: null_mut(),
    };
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
    pub(super) attention: Attention,
    pub(super) scaling: NVTEScalingMode,
    pub(super) qkv_dtype: NVTEDType,
    pub(super) o_dtype: NVTEDType,
    pub(super) do_dtype: NVTEDType,
    pub(super) dqkv_dtype: NVTEDType,
    pub(super) bias_dtype: NVTEDType,
    pub(super) batch: usize,
    /// Heads of the queries, and of the keys and values.
    pub(super) heads: [usize; 2],
    pub(super) dim_qk: usize,
    pub(super) dim_v: usize,
    pub(super) tokens: [usize; 2],
    /// Pages of the keys, and of the values.
    pub(super) pages: [Pages; 2],
    /// Batch, heads, queries, keys.
    pub(super) bias: [usize; 4],
}

impl Problem {
    pub(super) fn fp8(&self) -> bool {
        self.qkv_dtype.is_fp8()
    }

    /// Length of the longest sequence that a side can have. Callers may name a longer one than packed tokens
    /// have room for; the work does not grow with it. A bias has rows and columns for the one that is named, and
    /// dropout numbers scores by it.
    fn longest(&self, side: usize) -> usize {
        let named = self.attention.max_seqlen[side];
        let needed = self.attention.bias == NVTE_POST_SCALE_BIAS || self.attention.dropout > 0.0;
        if self.attention.ragged()[side] && !needed { named.min(self.tokens[side]) } else { named }
    }

    /// Rows of queries or keys that the tensors of a side have room for.
    pub(super) fn rows(&self, side: usize) -> usize {
        let dense = self.batch.saturating_mul(self.attention.max_seqlen[side]);
        if self.attention.ragged()[side] { self.tokens[side] } else { dense }
    }

    /// The shape of a tensor with its side's rows (0: queries, 1: keys and values), in the order of a format.
    pub(super) fn shape(&self, side: usize, format: NVTE_QKV_Format, dim: usize) -> Shape {
        let (b, s, h) = (self.batch, self.attention.max_seqlen[side], self.heads[side]);
        match format {
            NVTE_THD => Shape::new(&[self.tokens[side], h, dim]),
            NVTE_SBHD => Shape::new(&[s, b, h, dim]),
            NVTE_BHSD => Shape::new(&[b, h, s, dim]),
            _ => Shape::new(&[b, s, h, dim]),
        }
    }

    /// The shape of the paged keys (0) or values (1).
    pub(super) fn page_shape(&self, which: usize, dim: usize) -> Shape {
        let Pages { count, size, .. } = self.pages[which];
        let (first, second) =
            if self.attention.layout.kv == NVTE_SBHD { (size, count) } else { (count, size) };
        Shape::new(&[first, second, self.heads[1], dim])
    }

    /// Checks of what does not depend on memory, with the name of the argument that is wrong.
    fn check(&self, backward: bool) -> Result<()> {
        let o = &self.attention;
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
            // The bound holds for three such tensors together, with 4 bytes for each element.
            let bytes = dims.iter().try_fold(12usize, |bytes, &dim| bytes.checked_mul(dim.max(1)));
            if bytes.is_none_or(|bytes| bytes > isize::MAX as usize) {
                let expected = "sizes whose product is less than 2^63 bytes";
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
        let o = &self.attention;
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
                    ("num_pages", pages.count, 1),
                    ("page_size", pages.size, 1),
                    ("max_pages_per_seq", pages.per_sequence, needed.max(1)),
                ];
                for (what, count, least) in counts {
                    if count < least {
                        let expected = format!("at least {least}");
                        return Err(Error::argument(
                            format_args!("{what}_{name}"),
                            expected,
                            count,
                        ));
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
        check("Q", self.qkv_dtype, super::rows::TOKENS)?;
        check("O", self.o_dtype, if self.fp8() { OUTPUTS } else { &own })?;
        if self.fp8() && self.scaling != NVTEScalingMode::NVTE_DELAYED_TENSOR_SCALING {
            let expected = "NVTE_DELAYED_TENSOR_SCALING (blocks: dequantize and use 16-bit attention, \
                            or quantize per tensor)";
            return Err(Error::argument("scaling_mode", expected, self.scaling));
        }
        if self.fp8() && self.attention.bias == NVTE_POST_SCALE_BIAS {
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
        let o = &self.attention;
        let (window, bottom_right) = o.effective_window()?;
        let ragged = o.ragged();
        let only = |there: bool| if there { PRESENT } else { null_mut() };
        let gradient = |tensor| if backward { tensor } else { AttentionTensor::NONE };
        let side = |side: usize| AttentionSide {
            cu_seqlens: only(o.padding()).cast(),
            starts: only(ragged[side]).cast(),
            max_seqlen: self.longest(side),
            tokens: self.rows(side),
            heads: self.heads[side],
        };
        let (l, d) = (&o.layout, &o.dqkv_layout);
        let (qk, v, dtype) = (self.dim_qk, self.dim_v, self.qkv_dtype);
        let place = |dtype, side, format, dim, together| AttentionTensor {
            data: PRESENT,
            dtype,
            ..self.strides(side, format, dim, together)
        };
        let alone = (1, false);
        let (mut k, mut values) =
            (place(dtype, 1, l.kv, qk, l.together(1)), place(dtype, 1, l.kv, v, l.together(1)));
        if o.paged() {
            k = AttentionTensor { data: PRESENT, dtype, ..self.page_strides(0, qk) };
            values = AttentionTensor { data: PRESENT, dtype, ..self.page_strides(1, v) };
        }
        let bias = if o.bias == NVTE_POST_SCALE_BIAS {
            self.bias_strides()
        } else {
            AttentionTensor::NONE
        };
        let grads = self.dqkv_dtype;
        let dropout = o.dropout > 0.0 && (backward || o.training);
        Ok(AttentionArgs {
            q: place(dtype, 0, l.q, qk, l.together(0)),
            k,
            v: values,
            o: place(self.o_dtype, 0, o.o_format, v, alone),
            d_o: gradient(place(self.do_dtype, 0, o.do_format, v, alone)),
            dq: gradient(place(grads, 0, d.q, qk, d.together(0))),
            dk: gradient(place(grads, 1, d.kv, qk, d.together(1))),
            dv: gradient(place(grads, 1, d.kv, v, d.together(1))),
            bias,
            dbias: gradient(bias),
            s: AttentionTensor::NONE,
            dp: AttentionTensor::NONE,
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
            deterministic: o.deterministic
                || backward && self.repeats_as_a_drop_in(window[1])
                || policy::current()?.deterministic(),
            implementation: 0,
            workspace: null_mut(),
            workspace_bytes: 0,
            heads_before: o.other_heads[0],
            other_heads: o.other_heads[1],
            sums: null_mut(),
            grads_amax: null_mut(),
        })
    }

    /// Whether a backward pass adds in a fixed order though nobody has asked for it: users of the library that
    /// this one stands in for find that causal masks and FP8 repeat bit by bit. Long sequences stay as fast as
    /// they are, and a gradient of the bias would need memory.
    fn repeats_as_a_drop_in(&self, window_right: i64) -> bool {
        let o = self.attention;
        drop_in()
            && (window_right >= 0 || self.fp8())
            && o.max_seqlen[1] <= 1024
            && o.bias != NVTE_POST_SCALE_BIAS
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
        let (b, s, h) = (self.batch, self.attention.max_seqlen[side], self.heads[side]);
        let (row, head) = (count * h * dim, if inner { count * dim } else { dim });
        let (batch, row, head) = match format {
            NVTE_SBHD => (row, b * row, head),
            NVTE_BHSD => (h * s * dim, dim, s * dim),
            NVTE_THD => (0, row, head),
            _ => (s * row, row, head),
        };
        AttentionTensor {
            batch: batch as i64,
            row: row as i64,
            head: head as i64,
            ..AttentionTensor::NONE
        }
    }

    fn page_strides(&self, which: usize, dim: usize) -> AttentionTensor {
        let (width, Pages { count, size, .. }) = (self.heads[1] * dim, self.pages[which]);
        let (page, row) = match self.attention.layout.kv {
            NVTE_SBHD => (width, count * width),
            _ => (size * width, width),
        };
        AttentionTensor {
            batch: page as i64,
            row: row as i64,
            head: dim as i64,
            ..AttentionTensor::NONE
        }
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
            ..AttentionTensor::NONE
        }
    }

    /// Bytes of the workspace that are not the backend's: of the zeros that a softmax off by one has
    /// for offsets that are not given.
    pub(super) fn sink_bytes(&self) -> usize {
        match self.attention.softmax {
            NVTE_OFF_BY_ONE_SOFTMAX => self.heads[0] * size_of::<f32>(),
            _ => 0,
        }
    }

    /// Bytes of the workspace: the backend's part, then the zeros of a softmax off by one.
    pub(super) fn workspace_bytes(&self, backend: usize) -> usize {
        match self.sink_bytes() {
            0 => backend,
            zeros => backend.next_multiple_of(PART) + zeros,
        }
    }

    /// What the backend would do with the attention of a config, whose packed sides have tokens. `explain`: the
    /// plan says why other implementations declined.
    pub(super) fn plan(&self, backward: bool, explain: bool) -> Result<Planned> {
        let tokens = ["num_tokens_q", "num_tokens_kv"].into_iter().zip(self.tokens);
        for ((name, tokens), ragged) in tokens.zip(self.attention.ragged()) {
            if ragged && tokens == 0 {
                return Err(Error::argument(name, "more than 0 (packed tokens)", tokens));
            }
        }
        backend::attention_plan(&self.args(backward)?, explain)
    }

    /// The kind of implementation that runs both passes if this is training, else the forward pass; or why there
    /// is none.
    pub(super) fn supported(&self) -> std::result::Result<NVTE_Fused_Attn_Backend, String> {
        self.plan(false, false).map_err(|error| error.message)?;
        if self.attention.training {
            self.plan(true, false).map_err(|error| format!("backward: {}", error.message))?;
        }
        Ok(self.kind())
    }

    pub(super) fn kind(&self) -> NVTE_Fused_Attn_Backend {
        match self.fp8() {
            true => NVTE_Fused_Attn_Backend::NVTE_FP8,
            false => NVTE_Fused_Attn_Backend::NVTE_F16_arbitrary_seqlen,
        }
    }
}
