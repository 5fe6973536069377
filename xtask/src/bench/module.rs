//! Recipes, contexts and modules of the library, as nvte/module.h declares them.

use super::abi::{Api, Basic, DType, Handle, Shape, functions};
use super::machine::{Buffer, Machine};
use anyhow::{Result, ensure};
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void};
use std::ptr::{null, null_mut};

#[repr(C)]
#[derive(Clone, Copy)]
pub struct NormConfig {
    struct_size: usize,
    name: *const c_char,
    pub kind: c_int,
    hidden_size: usize,
    epsilon: f32,
    zero_centered_gamma: bool,
    dtype: DType,
    reserved: [u64; 4],
}

#[repr(C)]
#[derive(Clone, Copy)]
struct ParallelConfig {
    tensor_parallel_size: usize,
    sequence_parallel: bool,
    context_parallel_size: usize,
    reserved: [u64; 4],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct MlpConfig {
    struct_size: usize,
    name: *const c_char,
    pub norm: NormConfig,
    pub hidden_size: usize,
    pub ffn_hidden_size: usize,
    pub activation: c_int,
    clamp: [f32; 3],
    pub bias: bool,
    pub dtype: DType,
    init_std: f32,
    output_init_std: f32,
    seed: u64,
    checkpoint: bool,
    parallel: ParallelConfig,
    reserved: [u64; 4],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct AttentionConfig {
    struct_size: usize,
    name: *const c_char,
    pub num_attention_heads: usize,
    pub num_gqa_groups: usize,
    head_dim_qk: usize,
    head_dim_v: usize,
    pub attention_dropout: f32,
    qkv_format: c_int,
    attn_mask_type: c_int,
    window_size: [i64; 2],
    bottom_right_diagonal: bool,
    softmax_type: c_int,
    softmax_scale: f32,
    pub dtype: DType,
    checkpoint_core_attention: bool,
    qk_norm_type: c_int,
    qk_norm_epsilon: f32,
    qk_norm_before_rope: bool,
    parallel: ParallelConfig,
    reserved: [u64; 4],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct LayerConfig {
    struct_size: usize,
    name: *const c_char,
    pub attention: AttentionConfig,
    pub mlp: MlpConfig,
    pub hidden_dropout: f32,
    decoder: bool,
    inter_mask_type: c_int,
    residual_post_layernorm: bool,
    output_layernorm: bool,
    parallel_attention_mlp: bool,
    rotary_interleaved: bool,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct RoleOptions {
    power_2_scales: bool,
    amax_epsilon: f32,
    block_dim: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct RecipeConfig {
    struct_size: usize,
    kind: c_int,
    format: c_int,
    margin: f32,
    amax_history_len: usize,
    amax_algo: c_int,
    update_interval: u32,
    reduce_amax: bool,
    roles: [RoleOptions; 3],
    split_accumulator: [bool; 3],
    backward: c_int,
    choose: *const c_void,
    user: *mut c_void,
    fp8_dpa: bool,
}

type Allocate = extern "C" fn(&Heap, usize, usize, c_int, Handle) -> *mut c_void;
type Release = extern "C" fn(&Heap, *mut c_void, usize, c_int, Handle);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ContextConfig<'a> {
    struct_size: usize,
    allocator: Option<&'a Heap<'a>>,
    allocate: Option<Allocate>,
    release: Option<Release>,
    communicator: *mut c_void,
    all_reduce_max: *const c_void,
    multiprocessor_count: i32,
    max_unused_bytes: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Parameter {
    struct_size: usize,
    name: *const c_char,
    pub shape: Shape,
    dtype: DType,
    value: Handle,
    quantized: bool,
}

/// `NVTEXMicrobatch`
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Microbatch {
    None = 0,
    First = 1,
    Later = 2,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Step {
    struct_size: usize,
    microbatch: Microbatch,
    skip_weight_update: Handle,
    pub rng_state: Handle,
    cu_seqlens: [Handle; 4],
    max_seqlen: [usize; 2],
    pub rotary_frequencies: Handle,
    pub kv_cache: Handle,
    m_splits: *const usize,
    num_splits: usize,
}

/// `NVTE_Norm_Type` and `NVTEXActivation` of a GPT and of a Llama.
pub const LAYERNORM_GELU: [c_int; 2] = [0, 0];
pub const RMSNORM_SWIGLU: [c_int; 2] = [1, 4];

functions! {
    Functions of Modules<'_>:
    nvtex_recipe_config_init(config: *mut c_void, size: usize, kind: c_int);
    nvtex_recipe_create(config: &RecipeConfig) -> Handle;
    nvtex_recipe_destroy(recipe: Handle);
    nvtex_context_config_init(config: *mut c_void, size: usize);
    nvtex_context_create(config: &ContextConfig) -> Handle;
    nvtex_context_destroy(context: Handle);
    nvtex_context_begin(context: Handle, recipe: Handle, flags: u32, group: *mut c_void);
    nvtex_context_end(context: Handle);
    nvtex_context_forward_update(context: Handle, stream: Handle);
    nvtex_context_backward_update(context: Handle, stream: Handle);
    nvtex_transformer_layer_config_init(config: *mut c_void, size: usize);
    nvtex_transformer_layer_create(context: Handle, config: &LayerConfig, stream: Handle) -> Handle;
    nvtex_rotary_frequencies(frequencies: Handle, config: *const c_void, stream: Handle);
    nvtex_module_destroy(module: Handle);
    nvtex_module_num_parameters(module: Handle) -> usize;
    nvtex_module_parameter(module: Handle, index: usize, parameter: &mut Parameter);
    nvtex_module_set_gradient(module: Handle, index: usize, grad: Handle, accumulate: bool);
    nvtex_step_init(step: *mut c_void, size: usize);
    nvtex_module_forward(module: Handle, inputs: &Handle, num_inputs: usize, outputs: &Handle, num_outputs: usize, step: &Step, tape: *mut Handle, stream: Handle);
    nvtex_module_backward(module: Handle, tape: Handle, grad_outputs: &Handle, num_grad_outputs: usize, grad_inputs: &Handle, num_grad_inputs: usize, stream: Handle);
    nvtex_tape_destroy(tape: Handle);
}

/// The module functions of a library.
pub struct Modules<'a> {
    pub api: &'a Api,
    functions: Functions,
}

/// Flags of `nvtex_context_begin`.
pub const ENABLED: u32 = 1;
pub const QUANTIZED_WEIGHTS: u32 = 4;

impl<'a> Modules<'a> {
    pub fn load(api: &'a Api) -> Result<Self> {
        Ok(Self { api, functions: Functions::load(&api.library)? })
    }

    /// A struct with the library's defaults. More room than the struct has: the library then writes
    /// the size that it knows. What is declared here may end before it.
    pub fn defaults<T: Copy>(init: impl FnOnce(*mut c_void, usize)) -> Result<T> {
        let mut room = [0usize; 128];
        init(room.as_mut_ptr().cast(), size_of_val(&room));
        let (known, declared) = (room[0], size_of::<T>());
        ensure!(known >= declared, "a struct of {known} bytes, declared with {declared}");
        room[0] = declared;
        // SAFETY: the library has written a struct of this size.
        Ok(unsafe { room.as_ptr().cast::<T>().read() })
    }

    pub fn layer_config(&self) -> Result<LayerConfig> {
        Self::defaults(|at, size| self.nvtex_transformer_layer_config_init(at, size))
    }

    pub fn step(&self) -> Result<Step> {
        Self::defaults(|at, size| self.nvtex_step_init(at, size))
    }

    /// A recipe of an `NVTEXRecipeKind` with its defaults.
    pub fn recipe(&self, kind: c_int) -> Result<Handle> {
        let init = |at, size| self.nvtex_recipe_config_init(at, size, kind);
        let recipe = self.nvtex_recipe_create(&Self::defaults(init)?);
        self.api.take_error().map(|()| recipe)
    }

    /// A context with a heap that counts.
    pub fn context(&self, heap: &Heap) -> Result<Handle> {
        let config: ContextConfig =
            Self::defaults(|at, size| self.nvtex_context_config_init(at, size))?;
        let (allocate, release) = (Some(allocate as Allocate), Some(release as Release));
        let config = ContextConfig { allocator: Some(heap), allocate, release, ..config };
        let context = self.nvtex_context_create(&config);
        self.api.take_error().map(|()| context)
    }

    pub fn parameters(&self, module: Handle) -> Result<Vec<Parameter>> {
        let parameter = |index| {
            let mut parameter = Parameter {
                struct_size: size_of::<Parameter>(),
                name: null(),
                shape: Shape::matrix(0, 0),
                dtype: DType::F32,
                value: Handle(null_mut()),
                quantized: false,
            };
            self.nvtex_module_parameter(module, index, &mut parameter);
            self.api.take_error().map(|()| parameter)
        };
        (0..self.nvtex_module_num_parameters(module)).map(parameter).collect()
    }
}

impl Step {
    pub fn of(self, microbatch: Microbatch) -> Self {
        Self { microbatch, ..self }
    }
}

impl Parameter {
    pub fn gradient(&self, ptr: *mut c_void) -> Basic {
        Basic::of_shape(ptr, self.dtype, &self.shape)
    }

    pub fn bytes(&self) -> usize {
        self.gradient(null_mut()).bytes()
    }
}

/// An allocator of contexts that counts what lives, by `NVTEXLifetime`, and keeps what is released.
pub struct Heap<'a> {
    machine: &'a dyn Machine,
    state: RefCell<HeapState>,
}

#[derive(Default)]
struct HeapState {
    buffers: Vec<Buffer>,
    free: HashMap<usize, Vec<usize>>,
    count: Count,
}

/// Bytes of scratch, tapes, and what persists, now and at most.
#[derive(Clone, Copy, Default)]
pub struct Count {
    pub live: [usize; 3],
    pub peak: usize,
}

impl<'a> Heap<'a> {
    pub fn new(machine: &'a dyn Machine) -> Self {
        Self { machine, state: RefCell::default() }
    }

    pub fn count(&self) -> Count {
        self.state.borrow().count
    }

    /// Forgets the peak.
    pub fn restart(&self) {
        let count = &mut self.state.borrow_mut().count;
        count.peak = count.live.iter().sum();
    }
}

extern "C" fn allocate(
    heap: &Heap,
    bytes: usize,
    _alignment: usize,
    lifetime: c_int,
    _stream: Handle,
) -> *mut c_void {
    let mut state = heap.state.borrow_mut();
    let count = &mut state.count;
    count.live[lifetime as usize] += bytes;
    count.peak = count.peak.max(count.live.iter().sum());
    if let Some(address) = state.free.get_mut(&bytes).and_then(Vec::pop) {
        return address as *mut c_void;
    }
    match heap.machine.alloc(bytes) {
        Ok(buffer) => {
            let ptr = buffer.ptr;
            state.buffers.push(buffer);
            ptr
        }
        Err(_) => null_mut(),
    }
}

extern "C" fn release(heap: &Heap, ptr: *mut c_void, bytes: usize, lifetime: c_int, _: Handle) {
    let mut state = heap.state.borrow_mut();
    state.count.live[lifetime as usize] -= bytes;
    state.free.entry(bytes).or_default().push(ptr as usize);
}
