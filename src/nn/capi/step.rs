//! Forward and backward passes of layers, and the tapes between them.
#![allow(unsafe_code, clippy::missing_safety_doc, non_camel_case_types)]

use super::*;
use crate::nn::Coming;
use num_derive::FromPrimitive;

/// What a handle of a tape points to. Only the library knows what it is.
pub enum NVTEXTape_st {}

/// Handle of a tape.
pub type NVTEXTape = *mut NVTEXTape_st;

/// Place of a step among the microbatches that share their weights.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromPrimitive)]
pub enum NVTEXMicrobatch {
    /// Weights are cast in each step; gradients are written or added as they were bound.
    NVTEX_MICROBATCH_NONE = 0,
    /// Weights are cast and kept; gradients are overwritten.
    NVTEX_MICROBATCH_FIRST = 1,
    /// The kept weights are used; gradients are added.
    NVTEX_MICROBATCH_LATER = 2,
}

from_c_enum!(NVTEXMicrobatch, "an NVTEXMicrobatch from 0 to 2");

/// Options of a forward pass; its backward pass has the same.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NVTEXStep {
    /// Bytes of this struct.
    pub struct_size: usize,
    pub microbatch: MaybeUninit<NVTEXMicrobatch>,
    /// One Float32 on the device, or null. While it is 1, kept weights stay as they are, so that a
    /// graph that is captured once can be replayed for each microbatch.
    pub skip_weight_update: NVTETensor,
    /// Seed and offset of the random numbers, Int64 `[2]` on the device, needed if there is dropout. A
    /// call uses the sequence from this offset on; add 128 for each call.
    pub rng_state: NVTETensor,
    /// Where the sequences of queries, and those of keys and values, begin without padding: Int32
    /// `[b + 1]` on the device, or null. They are for masks with padding; self attention reads the
    /// first array for both.
    pub cu_seqlens_q: NVTETensor,
    pub cu_seqlens_kv: NVTETensor,
    /// Where the sequences begin in NVTE_THD, if there is padding between them: arrays like the two
    /// before.
    pub cu_seqlens_q_padded: NVTETensor,
    pub cu_seqlens_kv_padded: NVTETensor,
    /// The longest sequences, for NVTE_THD. 0 (in modules with projections): as long as all tokens.
    pub max_seqlen_q: usize,
    pub max_seqlen_kv: usize,
    /// Angles by which the first d2 elements of queries and keys of self attention are rotated:
    /// Float32 `[length or more, 1, 1, d2]` (`nvtex_rotary_frequencies`). Null: none. With NVTE_THD
    /// there are `max_seqlen_q` rows or more, or rows for all tokens if that is 0 or there is padding
    /// between sequences.
    pub rotary_frequencies: NVTETensor,
    /// A cache of the same context, or null. Self attention appends its keys and values to those of
    /// earlier tokens in the cache, and reads all of them. There is no tape then. Inputs are the new
    /// tokens of the sequences of `nvtex_kv_cache_step`: for each sequence they come first, so that
    /// their number may differ, or they are packed (NVTE_THD, without `cu_seqlens_q`). Frequencies
    /// have `max_sequence_length + length - 1` rows or more, for packed tokens `max_sequence_length`.
    pub kv_cache: NVTEXKVCache,
    /// Rows of each part of a grouped linear layer, on the host; they may be 0. They are read before the call
    /// returns.
    pub m_splits: *const usize,
    pub num_splits: usize,
}

/// Sets the defaults in the first `struct_size` bytes of a step.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_step_init(step: *mut NVTEXStep, struct_size: usize) {
    guard("nvtex_step_init", || {
        // SAFETY: the caller vouches for the bytes.
        unsafe { write_config(step, struct_size, &NVTEXStep::default()) }
    });
}

/// Runs the forward pass of a module.
///
/// Arrays: `inputs` and `outputs` hold what the function that created the module says. Missing and null
/// entries at their end are optional ones. Outputs overlap neither inputs nor each other.
///
/// Tape: if `tape` is not null, it takes what the backward pass needs; several may be in flight. A tape
/// refers to the inputs, the norm's result and the parameters, which must stay as they are until the
/// backward pass is done. Without a tape the maxima of delayed scaling stay as they are.
///
/// Notes: a null `step` means defaults. The first call of a layer under a recipe allocates; later ones
/// with the same sizes do not, and can be captured in a graph.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_module_forward(
    module: NVTEXModule,
    inputs: *const NVTETensor,
    num_inputs: usize,
    outputs: *const NVTETensor,
    num_outputs: usize,
    step: *const NVTEXStep,
    tape: *mut NVTEXTape,
    stream: cudaStream_t,
) {
    guard("nvtex_module_forward", || {
        let [inputs, outputs] = [(inputs, num_inputs), (outputs, num_outputs)];
        let module = open(&MODULES, "module", module)?;
        // SAFETY: the caller vouches for arrays and structs.
        unsafe { forward(&module, inputs, outputs, step, tape, stream) }
    });
}

/// Runs the backward pass of a module: writes the gradients of the inputs that `grad_inputs` has, and
/// those of the parameters that are bound.
///
/// `grad_outputs` is like the outputs of the forward pass; null for an optional output is a gradient of
/// 0. The tape stays, and may be used again. Gradients of inputs overlap neither those of outputs nor
/// each other. Operators follow the policy that the forward pass had (`nvtex_policy_push`), whatever that of the
/// calling thread is.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_module_backward(
    module: NVTEXModule,
    tape: NVTEXTape,
    grad_outputs: *const NVTETensor,
    num_grad_outputs: usize,
    grad_inputs: *const NVTETensor,
    num_grad_inputs: usize,
    stream: cudaStream_t,
) {
    guard("nvtex_module_backward", || {
        let module = open(&MODULES, "module", module)?;
        let outputs = (grad_outputs, num_grad_outputs);
        // SAFETY: the caller vouches for the arrays.
        unsafe { backward(&module, tape, outputs, (grad_inputs, num_grad_inputs), stream) }
    });
}

/// Destroys a tape. Null is ignored.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_tape_destroy(tape: NVTEXTape) {
    guard("nvtex_tape_destroy", || destroy(&TAPES, "tape", tape));
}

config!(NVTEXStep {
    struct_size,
    microbatch,
    skip_weight_update,
    rng_state,
    cu_seqlens_q,
    cu_seqlens_kv,
    cu_seqlens_q_padded,
    cu_seqlens_kv_padded,
    max_seqlen_q,
    max_seqlen_kv,
    rotary_frequencies,
    kv_cache,
    m_splits,
    num_splits
});

/// The tensors of an array of handles, as many as the module has.
///
/// # Safety
/// The array has `count` handles.
unsafe fn tensors(
    name: &'static str,
    (handles, count): (*const NVTETensor, usize),
    arity: usize,
) -> Result<Tensors> {
    let count_name = format!("num_{name}");
    if count > arity {
        return Err(Error::argument(count_name, format!("at most {arity}"), count));
    }
    // SAFETY: the caller vouches for the array.
    let mut list = unsafe { check::optional_tensors(name, handles, (&count_name, count))? };
    list.resize(arity, None);
    Ok(Tensors { name, list })
}

/// # Safety
/// Arrays and structs are what the export says.
pub(crate) unsafe fn forward(
    module: &Arc<Module>,
    inputs: (*const NVTETensor, usize),
    outputs: (*const NVTETensor, usize),
    step: *const NVTEXStep,
    tape: *mut NVTEXTape,
    stream: cudaStream_t,
) -> Result<()> {
    let step = match step.is_null() {
        true => NVTEXStep::default(),
        // SAFETY: the caller vouches for the struct.
        false => unsafe { read_config("step", step) }?,
    };
    let microbatch = match from_c("step.microbatch", step.microbatch)? {
        NVTEXMicrobatch::NVTEX_MICROBATCH_NONE => Microbatch::None,
        NVTEXMicrobatch::NVTEX_MICROBATCH_FIRST => Microbatch::First,
        NVTEXMicrobatch::NVTEX_MICROBATCH_LATER => Microbatch::Later,
    };
    let skip_weights = check::noop("step.skip_weight_update", step.skip_weight_update)?;
    let mut layer = lock(&module.layer);
    let (num_inputs, num_outputs) = layer.arity();
    // SAFETY: the caller vouches for the arrays.
    let (inputs, outputs) = unsafe {
        (tensors("inputs", inputs, num_inputs)?, tensors("outputs", outputs, num_outputs)?)
    };
    let training = !tape.is_null();
    let optional = |name: &str, handle: NVTETensor| match handle.is_null() {
        true => Ok(None),
        false => check::tensor(format_args!("step.{name}"), handle).map(Some),
    };
    let rng_state = optional("rng_state", step.rng_state)?;
    if let Some(state) = &rng_state {
        check::dtype("step.rng_state", state.rowwise.dtype, &[NVTEDType::kNVTEInt64])?;
        check::shape("step.rng_state", &state.rowwise.shape, &Shape::new(&[2]))?;
        check::pointer("step.rng_state.data", &state.rowwise)?;
    }
    let sums = |name: &str, handle: NVTETensor| {
        let sums = optional(name, handle)?;
        if let Some(rowwise) = sums.as_ref().map(|sums| &sums.rowwise) {
            check::dtype(format_args!("step.{name}"), rowwise.dtype, &[NVTEDType::kNVTEInt32])?;
            if rowwise.shape.numel() == 0 {
                let name = format!("step.{name}.shape");
                return Err(Error::argument(name, "[b + 1] for b sequences", rowwise.shape));
            }
            check::pointer(format_args!("step.{name}.data"), rowwise)?;
        }
        Ok(sums)
    };
    let frequencies = optional("rotary_frequencies", step.rotary_frequencies)?;
    if let Some(rowwise) = frequencies.as_ref().map(|table| &table.rowwise) {
        let name = "step.rotary_frequencies";
        check::dtype(name, rowwise.dtype, &[NVTEDType::kNVTEFloat32])?;
        check::pointer("step.rotary_frequencies.data", rowwise)?;
    }
    // SAFETY: the caller vouches for the array.
    let splits =
        unsafe { array("step.m_splits", step.m_splits, ("step.num_splits", step.num_splits)) }?;
    let kv_cache = kv_cache::of_step(&module.context, step.kv_cache, training)?;
    let run = Run {
        training,
        splits,
        kv_cache,
        microbatch,
        skip_weights,
        rng_state,
        cu_seqlens: [
            sums("cu_seqlens_q", step.cu_seqlens_q)?,
            sums("cu_seqlens_kv", step.cu_seqlens_kv)?,
            sums("cu_seqlens_q_padded", step.cu_seqlens_q_padded)?,
            sums("cu_seqlens_kv_padded", step.cu_seqlens_kv_padded)?,
        ],
        max_seqlen: [step.max_seqlen_q, step.max_seqlen_kv],
        frequencies,
        ..module.run(stream)
    };
    Tensors::apart(&inputs, &outputs)?;
    let saved = layer.forward(&run, &inputs, &outputs);
    if saved.is_err() {
        let _ = layer.prepare(&run, Coming::Nothing);
    }
    drop(layer);
    let saved = saved?;
    if training {
        let saved = Mutex::new(saved);
        let policy = policy::current()?;
        let module = Arc::clone(module);
        let made = TAPES.insert(Arc::new(Tape { module, saved, microbatch, policy }))?;
        // SAFETY: the caller vouches for the pointer.
        unsafe { tape.write(made) };
    }
    Ok(())
}

/// # Safety
/// The arrays are what the export says.
pub(crate) unsafe fn backward(
    module: &Arc<Module>,
    tape: NVTEXTape,
    grad_outputs: (*const NVTETensor, usize),
    grad_inputs: (*const NVTETensor, usize),
    stream: cudaStream_t,
) -> Result<()> {
    let tape = open(&TAPES, "tape", tape)?;
    if !Arc::ptr_eq(&tape.module, module) {
        let expected = format!("a tape of this module, {module}");
        return Err(Error::argument("tape", expected, format!("a tape of {}", tape.module)));
    }
    let _scope = policy::scoped(tape.policy)?;
    let mut layer = lock(&module.layer);
    let (num_inputs, num_outputs) = layer.arity();
    // SAFETY: the caller vouches for the arrays.
    let (grad_outputs, grad_inputs) = unsafe {
        (
            tensors("grad_outputs", grad_outputs, num_outputs)?,
            tensors("grad_inputs", grad_inputs, num_inputs)?,
        )
    };
    Tensors::apart(&grad_outputs, &grad_inputs)?;
    let microbatch = tape.microbatch;
    let run = Run { training: true, microbatch, ..module.run(stream) };
    let done = layer.backward(&run, &**lock(&tape.saved), [&grad_outputs, &grad_inputs]);
    done.and(layer.prepare(&run, Coming::Nothing))
}

impl Default for NVTEXStep {
    fn default() -> Self {
        Self {
            struct_size: size_of::<Self>(),
            microbatch: MaybeUninit::new(NVTEXMicrobatch::NVTEX_MICROBATCH_NONE),
            skip_weight_update: null_mut(),
            rng_state: null_mut(),
            cu_seqlens_q: null_mut(),
            cu_seqlens_kv: null_mut(),
            cu_seqlens_q_padded: null_mut(),
            cu_seqlens_kv_padded: null_mut(),
            max_seqlen_q: 0,
            max_seqlen_kv: 0,
            rotary_frequencies: null_mut(),
            kv_cache: null_mut(),
            m_splits: std::ptr::null(),
            num_splits: 0,
        }
    }
}
