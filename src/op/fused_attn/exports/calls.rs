//! The C forms of an attention: handles, numbers and attributes of objects become the records of the typed call,
//! and the auxiliary tensors of a pack its outputs. Attributes are read by position here alone.
#![allow(unsafe_code)]

use super::objects::{BWD, CONFIGS, FWD};
use crate::check;
use crate::error::{Error, Result};
use crate::op::fused_attn::attention::{Attention, Backward, Forward, Inputs, backward, forward};
use crate::op::fused_attn::layout::Layout;
use crate::op::fused_attn::problem::{Pages, Problem};
use crate::tensor::{Buffer, FromC, Shape, TENSORS, Tensor, from_c_enum};
use crate::types::*;
use crate::workspace::{self, Asks};
use NVTE_Bias_Type::*;
use NVTE_QKV_Format::*;
use NVTE_QKV_Layout::*;
use NVTE_Softmax_Type::*;
use NVTEDType::*;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr::null_mut;

from_c_enum!(NVTE_Mask_Type, "an NVTE_Mask_Type from 0 to 5");
from_c_enum!(NVTE_Bias_Type, "an NVTE_Bias_Type from 0 to 3");
from_c_enum!(NVTE_Softmax_Type, "an NVTE_Softmax_Type from 0 to 2");
from_c_enum!(NVTE_QKV_Layout, "an NVTE_QKV_Layout from 0 to 26");

/// The options of an attention as C has them: an enumeration may be any number.
#[derive(Clone, Copy)]
pub(super) struct COptions {
    pub(super) layout: i32,
    pub(super) o_format: i32,
    /// Of the scales of blocks, which no attention takes: any format will do, but it must be one.
    pub(super) qkv_scale_inv_format: i32,
    /// Of the backward pass.
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
struct Words<'a>(&'a [u64]);

impl Words<'_> {
    fn flag(&self, at: usize) -> bool {
        self.0[at] != 0
    }

    fn size(&self, at: usize) -> usize {
        self.0[at] as usize
    }

    fn float(&self, at: usize) -> f32 {
        f32::from_bits(self.0[at] as u32)
    }

    fn number(&self, at: usize) -> i32 {
        self.0[at] as u32 as i32
    }

    fn pointer(&self, at: usize) -> *mut c_void {
        self.size(at) as *mut c_void
    }

    /// Handles from one attribute to the next.
    fn pointers<const N: usize>(&self, first: usize) -> [*mut c_void; N] {
        std::array::from_fn(|i| self.pointer(first + i))
    }

    /// Options that follow each other in all three kinds of objects: from the mask to the softmax, dropout and
    /// scale, and the longest sequences. Layouts and flags are added by the kind.
    fn options(&self, mask: usize, dropout: usize, layout: usize, max_seqlen: usize) -> COptions {
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
    fn options_of_both(
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

/// Copies of the inputs that both passes get as arguments of their own.
struct CInputs {
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: [Option<Tensor>; 4],
    s: Option<Tensor>,
}

/// The tensor of a handle, if it is not null.
fn optional(name: &str, handle: NVTETensor) -> Result<Option<Tensor>> {
    if handle.is_null() { Ok(None) } else { check::tensor(name, handle).map(Some) }
}

impl CInputs {
    fn new(qkv: [NVTETensor; 3], cu_seqlens: [NVTETensor; 4], s: NVTETensor) -> Result<Self> {
        let [q, k, v] = qkv;
        let [sums_q, sums_kv, padded_q, padded_kv] = cu_seqlens;
        Ok(Self {
            q: check::tensor_or_empty("Q", q)?,
            k: check::tensor_or_empty("K", k)?,
            v: check::tensor_or_empty("V", v)?,
            cu_seqlens: [
                optional("cu_seqlens_q", sums_q)?,
                optional("cu_seqlens_kv", sums_kv)?,
                optional("cu_seqlens_q_padded", padded_q)?,
                optional("cu_seqlens_kv_padded", padded_kv)?,
            ],
            s: optional("S", s)?,
        })
    }

    fn with<'a>(
        &'a self,
        bias: Option<&'a Tensor>,
        softmax_offset: Option<&'a Tensor>,
        rng_state: Option<&'a Tensor>,
    ) -> Inputs<'a> {
        Inputs {
            q: &self.q,
            k: &self.k,
            v: &self.v,
            cu_seqlens: self.cu_seqlens.each_ref().map(Option::as_ref),
            bias,
            softmax_offset,
            rng_state,
            s: self.s.as_ref(),
        }
    }
}

/// The arguments of a forward pass.
pub(super) struct ForwardCall {
    pub(super) options: COptions,
    /// Q, K, V.
    pub(super) qkv: [NVTETensor; 3],
    pub(super) bias: NVTETensor,
    pub(super) softmax_offset: NVTETensor,
    pub(super) s: NVTETensor,
    pub(super) o: NVTETensor,
    pub(super) pack: *mut NVTETensorPack,
    /// Of queries, of keys and values, both again with padding.
    pub(super) cu_seqlens: [NVTETensor; 4],
    pub(super) page_tables: [NVTETensor; 2],
    pub(super) rng_state: NVTETensor,
    pub(super) workspace: NVTETensor,
    pub(super) stream: cudaStream_t,
}

impl ForwardCall {
    pub(super) fn of_params(params: NVTEFusedAttnFwdParams) -> Result<Self> {
        use NVTEFusedAttnFwdParamsAttribute::*;
        let values = FWD.slab.get("params", params)?;
        let words = Words(&values);
        let pointer =
            |attribute: NVTEFusedAttnFwdParamsAttribute| words.pointer(attribute as usize);
        Ok(Self {
            options: COptions {
                training: words.flag(kNVTEFusedAttnFwdParamsIsTraining as usize),
                max_logit: words.flag(kNVTEFusedAttnFwdParamsReturnMaxLogit as usize),
                ..words.options(
                    kNVTEFusedAttnFwdParamsAttnMaskType as usize,
                    kNVTEFusedAttnFwdParamsDropout as usize,
                    kNVTEFusedAttnFwdParamsQKVLayout as usize,
                    kNVTEFusedAttnFwdParamsMaxSeqlenQ as usize,
                )
            },
            qkv: words.pointers(kNVTEFusedAttnFwdParamsQ as usize),
            bias: pointer(kNVTEFusedAttnFwdParamsBias),
            softmax_offset: pointer(kNVTEFusedAttnFwdParamsSoftmaxOffset),
            s: pointer(kNVTEFusedAttnFwdParamsS),
            o: pointer(kNVTEFusedAttnFwdParamsO),
            pack: pointer(kNVTEFusedAttnFwdParamsAuxCtxTensors).cast(),
            cu_seqlens: words.pointers(kNVTEFusedAttnFwdParamsCuSeqlensQ as usize),
            page_tables: words.pointers(kNVTEFusedAttnFwdParamsPageTableK as usize),
            rng_state: pointer(kNVTEFusedAttnFwdParamsRngState),
            workspace: pointer(kNVTEFusedAttnFwdParamsWorkspace),
            stream: pointer(kNVTEFusedAttnFwdParamsStream).cast(),
        })
    }

    /// # Safety
    /// The pack is null or valid, and nobody else uses it meanwhile.
    pub(super) unsafe fn run(&self) -> Result<()> {
        let attention = self.options.attention()?;
        let inputs = CInputs::new(self.qkv, self.cu_seqlens, self.s)?;
        let bias = optional("Bias", self.bias)?;
        let softmax_offset = optional("SoftmaxOffset", self.softmax_offset)?;
        let rng_state = optional("rng_state", self.rng_state)?;
        let inputs = inputs.with(bias.as_ref(), softmax_offset.as_ref(), rng_state.as_ref());
        let o = check::tensor_or_empty("O", self.o)?;
        let [table_k, table_v] = self.page_tables;
        let tables = [optional("page_table_k", table_k)?, optional("page_table_v", table_v)?];
        check::address("Aux_CTX_Tensors", self.pack)?;
        // SAFETY: the caller's promise; it is not null.
        let pack = unsafe { &mut *self.pack };
        let slots = Slots::new(&attention, &inputs)?;
        let handles = slots.handles(pack)?;
        let (mut stats, mut max) = (None, None);
        if pack.size > 0 {
            stats = Some(check::tensor("Aux_CTX_Tensors", handles[0])?);
            if attention.max_logit {
                max = Some(check::tensor("Aux_CTX_Tensors", handles[1])?);
            }
        }
        let tensors = Forward {
            inputs,
            o: &o,
            page_tables: tables.each_ref().map(Option::as_ref),
            stats: stats.as_ref(),
            max: max.as_ref(),
        };
        workspace::of_handle(self.workspace, Asks::WithoutPointer, |workspace| {
            forward(&attention, &tensors, workspace, self.stream)
        })?;
        slots.fill(pack)
    }
}

/// What a slot of the auxiliary tensors of a forward pass holds.
struct Slot {
    /// Address of an input that the slot hands on to the backward pass; none: it is an output.
    input: Option<*mut c_void>,
    dtype: NVTEDType,
    shape: Shape,
}

/// The auxiliary tensors of a forward pass, in the order in which a pack has them.
struct Slots(Vec<Slot>);

impl Slots {
    fn new(attention: &Attention, inputs: &Inputs) -> Result<Self> {
        let buffer =
            |tensor: Option<&Tensor>| tensor.map_or(Buffer::UNSET, |tensor| tensor.rowwise);
        let input = |from: &Buffer, dtype, shape| Slot { input: Some(from.ptr()), dtype, shape };
        let rows = attention.stats_shape(inputs.q)?;
        let output = || Slot { input: None, dtype: kNVTEFloat32, shape: rows };
        let mut slots = vec![output()];
        if attention.max_logit {
            slots.push(output());
        }
        slots.push(input(&buffer(inputs.rng_state), kNVTEInt64, Shape::new(&[2])));
        if attention.bias == NVTE_POST_SCALE_BIAS {
            let bias = buffer(inputs.bias);
            let dims: [usize; 4] = bias.shape.dims().last_chunk().copied().unwrap_or_default();
            let own = inputs.q.rowwise.dtype;
            let dtype = if own.is_fp8() { bias.dtype } else { own };
            slots.push(input(&bias, dtype, Shape::new(&dims)));
        }
        if attention.softmax != NVTE_VANILLA_SOFTMAX {
            let shape = Shape::new(&[1, rows.dims()[1], 1, 1]);
            slots.push(input(&buffer(inputs.softmax_offset), kNVTEFloat32, shape));
        }
        Ok(Self(slots))
    }

    /// Handles of the slots, all of which must be tensors: as many as the caller has set, or all if it asks for
    /// their number (0).
    fn handles<'a>(&self, pack: &'a NVTETensorPack) -> Result<&'a [NVTETensor]> {
        let size = pack.size;
        // The state of the generator follows the outputs.
        let least = self.0.iter().take_while(|slot| slot.input.is_none()).count() + 1;
        if size != 0 && size < least {
            let expected = format!("0 or at least {least}");
            return Err(Error::argument("Aux_CTX_Tensors.size", expected, size));
        }
        let used = if size == 0 { self.0.len() } else { size.min(self.0.len()) };
        for &handle in &pack.tensors[..used] {
            TENSORS.read("Aux_CTX_Tensors", handle, |_| ())?;
        }
        Ok(&pack.tensors[..used])
    }

    /// Describes the slots to a caller that asks for their number, or hands the inputs on.
    fn fill(&self, pack: &mut NVTETensorPack) -> Result<()> {
        let asks = pack.size == 0;
        for (&handle, slot) in self.handles(pack)?.iter().zip(&self.0) {
            let data = match slot.input {
                _ if asks => null_mut(),
                Some(data) => data,
                None => continue,
            };
            let buffer = Buffer::new(data, slot.dtype, slot.shape.dims());
            TENSORS.write("Aux_CTX_Tensors", handle, |tensor| tensor.rowwise = buffer)?;
        }
        if asks {
            pack.size = self.0.len();
        }
        Ok(())
    }
}

/// The arguments of a backward pass.
pub(super) struct BackwardCall {
    pub(super) options: COptions,
    /// Q, K, V.
    pub(super) qkv: [NVTETensor; 3],
    pub(super) o: NVTETensor,
    pub(super) d_o: NVTETensor,
    pub(super) s: NVTETensor,
    pub(super) dp: NVTETensor,
    pub(super) pack: *const NVTETensorPack,
    /// dQ, dK, dV.
    pub(super) gradients: [NVTETensor; 3],
    pub(super) dbias: NVTETensor,
    pub(super) doffset: NVTETensor,
    /// Of queries, of keys and values, both again with padding.
    pub(super) cu_seqlens: [NVTETensor; 4],
    pub(super) workspace: NVTETensor,
    pub(super) stream: cudaStream_t,
}

impl BackwardCall {
    pub(super) fn of_params(params: NVTEFusedAttnBwdParams) -> Result<Self> {
        use NVTEFusedAttnBwdParamsAttribute::*;
        let values = BWD.slab.get("params", params)?;
        let words = Words(&values);
        let pointer =
            |attribute: NVTEFusedAttnBwdParamsAttribute| words.pointer(attribute as usize);
        Ok(Self {
            options: COptions {
                deterministic: words.flag(kNVTEFusedAttnBwdParamsDeterministic as usize),
                ..words.options_of_both(
                    kNVTEFusedAttnBwdParamsAttnMaskType as usize,
                    kNVTEFusedAttnBwdParamsDropout as usize,
                    kNVTEFusedAttnBwdParamsQKVLayout as usize,
                    kNVTEFusedAttnBwdParamsMaxSeqlenQ as usize,
                )
            },
            qkv: words.pointers(kNVTEFusedAttnBwdParamsQ as usize),
            o: pointer(kNVTEFusedAttnBwdParamsO),
            d_o: pointer(kNVTEFusedAttnBwdParamsDO),
            s: pointer(kNVTEFusedAttnBwdParamsS),
            dp: pointer(kNVTEFusedAttnBwdParamsDP),
            pack: pointer(kNVTEFusedAttnBwdParamsAuxCtxTensors).cast_const().cast(),
            gradients: words.pointers(kNVTEFusedAttnBwdParamsDQ as usize),
            dbias: pointer(kNVTEFusedAttnBwdParamsDBias),
            doffset: pointer(kNVTEFusedAttnBwdParamsDSoftmaxOffset),
            cu_seqlens: words.pointers(kNVTEFusedAttnBwdParamsCuSeqlensQ as usize),
            workspace: pointer(kNVTEFusedAttnBwdParamsWorkspace),
            stream: pointer(kNVTEFusedAttnBwdParamsStream).cast(),
        })
    }

    /// # Safety
    /// The pack is null or valid.
    pub(super) unsafe fn run(&self) -> Result<()> {
        let attention = self.options.attention()?;
        let inputs = CInputs::new(self.qkv, self.cu_seqlens, self.s)?;
        let tensor = check::tensor_or_empty;
        let (o, d_o) = (tensor("O", self.o)?, tensor("dO", self.d_o)?);
        let dp = optional("dP", self.dp)?;
        let [dq, dk, dv] = self.gradients;
        let (dq, dk, dv) = (tensor("dQ", dq)?, tensor("dK", dk)?, tensor("dV", dv)?);
        let dbias = optional("dBias", self.dbias)?;
        let doffset = optional("dSoftmaxOffset", self.doffset)?;
        check::address("Aux_CTX_Tensors", self.pack)?;
        // SAFETY: the caller's promise; it is not null.
        let saved = unsafe { (*self.pack).tensors };
        let stats = tensor("Aux_CTX_Tensors.tensors[0] (Stats)", saved[0])?;
        let rng_state = optional("Aux_CTX_Tensors.tensors[1] (rng_state)", saved[1])?;
        // A bias and an offset follow if the forward pass had them.
        let mut rest = saved[2..].iter();
        let mut next = |name, there: bool| match there {
            true => rest.next().map_or(Ok(None), |&handle| optional(name, handle)),
            false => Ok(None),
        };
        let bias = next("Aux_CTX_Tensors (Bias)", attention.bias == NVTE_POST_SCALE_BIAS)?;
        let offset = attention.softmax != NVTE_VANILLA_SOFTMAX;
        let softmax_offset = next("Aux_CTX_Tensors (SoftmaxOffset)", offset)?;
        let tensors = Backward {
            inputs: inputs.with(bias.as_ref(), softmax_offset.as_ref(), rng_state.as_ref()),
            o: &o,
            d_o: &d_o,
            stats: &stats,
            dp: dp.as_ref(),
            dq: &dq,
            dk: &dk,
            dv: &dv,
            dbias: dbias.as_ref(),
            doffset: doffset.as_ref(),
        };
        workspace::of_handle(self.workspace, Asks::WithoutPointer, |workspace| {
            backward(&attention, &tensors, workspace, self.stream)
        })
    }
}
