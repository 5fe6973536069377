//! The calls of attention in C: handles become the records of the typed call, and the auxiliary tensors of a pass its
//! outputs.
#![allow(unsafe_code)]

use super::objects::{BWD, FWD};
use super::options::{COptions, Words};
use crate::check;
use crate::error::{Error, Result};
use crate::op::fused_attn::attention::{Attention, Backward, Forward, Inputs, More};
use crate::op::fused_attn::call::{backward, forward};
use crate::tensor::{Buffer, Shape, TENSORS, Tensor};
use crate::types::*;
use crate::workspace::{self, Asks};
use NVTE_Bias_Type::NVTE_POST_SCALE_BIAS;
use NVTE_Softmax_Type::NVTE_VANILLA_SOFTMAX;
use NVTEDType::*;
use std::ffi::c_void;
use std::ptr::null_mut;

/// A handle that C++ passes by reference; C passes its address. The header has a form of its own for each.
pub type NVTETensorReference = *const NVTETensor;

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
    /// Cumulative lengths of queries and of keys, and both again with padding.
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
        // The state of the generator follows the slots that are outputs.
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
    /// Cumulative lengths of queries and of keys, and both again with padding.
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
        let (saved, size) = unsafe { ((*self.pack).tensors, (*self.pack).size) };
        let stats = tensor("Aux_CTX_Tensors.tensors[0] (Stats)", saved[0])?;
        let rng_state = optional("Aux_CTX_Tensors.tensors[1] (rng_state)", saved[1])?;
        // A bias and an offset follow if the forward pass had them; some callers always pass both.
        let has_bias = attention.bias == NVTE_POST_SCALE_BIAS;
        let bias = match has_bias {
            true => optional("Aux_CTX_Tensors (Bias)", saved[2])?,
            false => None,
        };
        let at = if has_bias || size >= 4 { 3 } else { 2 };
        let softmax_offset = match attention.softmax != NVTE_VANILLA_SOFTMAX {
            true => optional("Aux_CTX_Tensors (SoftmaxOffset)", saved[at])?,
            false => None,
        };
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
            more: More::NONE,
        };
        workspace::of_handle(self.workspace, Asks::WithoutPointer, |workspace| {
            backward(&attention, &tensors, workspace, self.stream).map(drop)
        })
    }
}
