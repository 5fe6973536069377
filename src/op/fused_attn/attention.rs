//! Attention as its callers describe it: options, and the tensors of a pass (spec attention 3 to 8).

use super::layout::Layout;
use super::operand::Operand;
use crate::error::{Error, Result};
use crate::tensor::{Buffer, Shape, Tensor};
use crate::types::NVTE_Bias_Type::{self, *};
use crate::types::NVTE_Mask_Type::{self, *};
use crate::types::NVTE_QKV_Format::{self, *};
use crate::types::NVTE_QKV_Layout_Group::*;
use crate::types::NVTE_Softmax_Type::{self, *};

/// The options of an attention, `softmax(scale q k^T + bias) v`: all that its tensors do not say.
///
/// Sizes and dtypes follow from the tensors of a pass, which are in [`Forward`] and [`Backward`]. Layers fill
/// these records themselves; for callers of the C functions the files in `exports/` do, from arguments or from the
/// attributes of a config or of parameters.
///
/// [`forward`](super::call::forward) and [`backward`](super::call::backward) do a pass in one call:
/// 1. check options and tensors, and turn layouts and masks into strides, lengths and windows
///    ([`Problem`](super::problem::Problem));
/// 2. ask the backend which of its implementations takes the pass, and how much scratch memory that needs
///    (`attention_plan`): the one place where an implementation is chosen;
/// 3. take the memory from the workspace; a caller that only asked for its size gets the answer here;
/// 4. run that implementation, whose number the arguments carry.
///
/// A query (`nvtex_fused_attn_query`) ends after the second step, with a `Problem` that a config describes.
#[derive(Clone, Copy, Debug)]
pub struct Attention {
    /// How queries, keys and values lie in memory.
    pub layout: Layout,
    pub o_format: NVTE_QKV_Format,
    /// In the backward pass: formats of the gradients that it reads and writes.
    pub do_format: NVTE_QKV_Format,
    pub dqkv_layout: Layout,
    pub mask: NVTE_Mask_Type,
    /// Columns to the left and to the right that a row sees; -1: all.
    pub window: [i64; 2],
    /// A window without a causal mask is counted from the bottom right of the scores, not from the top left.
    pub bottom_right: bool,
    pub bias: NVTE_Bias_Type,
    pub softmax: NVTE_Softmax_Type,
    /// Factor of the scores.
    pub scale: f32,
    /// Probability that a probability is dropped. The forward pass drops in training only.
    pub dropout: f32,
    pub training: bool,
    /// The backward pass adds in a fixed order.
    pub deterministic: bool,
    /// The forward pass writes the largest score of each row.
    pub max_logit: bool,
    /// The longest sequence of queries, and of keys and values.
    pub max_seqlen: [usize; 2],
    /// Heads of queries that are elsewhere: those before the ones here, and all of them. Dropout has random numbers for
    /// each head of the whole.
    pub other_heads: [usize; 2],
}

impl Attention {
    /// Training without a mask, a bias, a window or dropout, and gradients that lie as the tensors do.
    pub const fn new(layout: Layout) -> Self {
        Self {
            layout,
            o_format: layout.q,
            do_format: layout.q,
            dqkv_layout: layout,
            mask: NVTE_NO_MASK,
            window: [-1, -1],
            bottom_right: true,
            bias: NVTE_NO_BIAS,
            softmax: NVTE_VANILLA_SOFTMAX,
            scale: 1.0,
            dropout: 0.0,
            training: true,
            deterministic: false,
            max_logit: false,
            max_seqlen: [0, 0],
            other_heads: [0, 0],
        }
    }

    /// Sequences may be shorter than their room; lengths come with the tensors.
    pub fn padding(&self) -> bool {
        matches!(
            self.mask,
            NVTE_PADDING_MASK | NVTE_PADDING_CAUSAL_MASK | NVTE_PADDING_CAUSAL_BOTTOM_RIGHT_MASK
        )
    }

    pub(super) fn paged(&self) -> bool {
        self.layout.group == NVTE_Paged_KV_HD_HD_HD
    }

    /// Whether tokens are packed: of queries, and of keys and values.
    pub(super) fn ragged(&self) -> [bool; 2] {
        [self.layout.q, self.layout.kv].map(|format| format == NVTE_THD)
    }

    /// Window and alignment, as far as they matter: a causal mask bounds the right side, and the
    /// mask's name goes before the flag.
    pub fn effective_window(&self) -> Result<([i64; 2], bool)> {
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

    /// The shape of the statistics of queries, and of their largest scores: one float for each row of a head.
    pub fn stats_shape(&self, q: &Tensor) -> Result<Shape> {
        let sizes = Operand::new("Q", q).sizes(self.layout.q)?;
        Ok(match self.layout.q {
            NVTE_THD => Shape::new(&[sizes.tokens, sizes.heads, 1]),
            _ => Shape::new(&[sizes.batch, sizes.heads, self.max_seqlen[0], 1]),
        })
    }
}

/// What both passes read.
#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    pub q: &'a Tensor,
    pub k: &'a Tensor,
    pub v: &'a Tensor,
    /// Running sums of lengths: of queries, of keys and values; and where their packed sequences begin, if
    /// there is padding between them.
    pub cu_seqlens: [Option<&'a Tensor>; 4],
    pub bias: Option<&'a Tensor>,
    /// One more score of each head, which has no value.
    pub softmax_offset: Option<&'a Tensor>,
    /// Seed and offset of the dropout.
    pub rng_state: Option<&'a Tensor>,
    /// For FP8: scale, scale_inv and amax of the probabilities.
    pub s: Option<&'a Tensor>,
}

/// The tensors of a forward pass.
#[derive(Clone, Copy)]
pub struct Forward<'a> {
    pub inputs: Inputs<'a>,
    pub o: &'a Tensor,
    /// The page tables of the keys, and of the values.
    pub page_tables: [Option<&'a Tensor>; 2],
    /// Output, of [`Attention::stats_shape`]. Not needed if the call only asks for the size of the workspace.
    pub stats: Option<&'a Tensor>,
    /// The largest scores, in the shape of the statistics, if `max_logit` asks for them.
    pub max: Option<&'a Tensor>,
}

/// The tensors of a backward pass.
#[derive(Clone, Copy)]
pub struct Backward<'a> {
    pub inputs: Inputs<'a>,
    pub o: &'a Tensor,
    pub d_o: &'a Tensor,
    /// The statistics of the forward pass.
    pub stats: &'a Tensor,
    /// For FP8: scale, scale_inv and amax of the scores' gradient.
    pub dp: Option<&'a Tensor>,
    pub dq: &'a Tensor,
    pub dk: &'a Tensor,
    pub dv: &'a Tensor,
    pub dbias: Option<&'a Tensor>,
    pub doffset: Option<&'a Tensor>,
    pub more: More<'a>,
}

/// What a backward pass also gives, if what runs it can.
#[derive(Clone, Copy)]
pub struct More<'a> {
    /// `[heads, 3, elements of a head]`, of the dtype of dq: the sums of dq, dk and dv over all rows.
    pub sums: Option<&'a Tensor>,
    /// One float, which is raised to the largest magnitude of dq, dk and dv; of 16-bit tensors alone.
    pub amax: Option<&'a Buffer>,
}

impl More<'_> {
    pub const NONE: Self = Self { sums: None, amax: None };
}
