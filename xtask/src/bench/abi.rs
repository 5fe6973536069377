//! The part of the nvte C ABI that the benchmark calls, bound when the program runs, so that two
//! libraries with this ABI can be measured side by side.

use anyhow::{Context, Result};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::path::Path;

/// An opaque value of the C side: tensor, config, stream.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Handle(pub *mut c_void);

impl Handle {
    pub const NULL: Self = Self(std::ptr::null_mut());
}

/// `NVTEDType`, as far as it is used here.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DType {
    Byte = 0,
    I32 = 2,
    I64 = 3,
    F32 = 4,
    F16 = 5,
    Bf16 = 6,
    E4m3 = 7,
    E5m2 = 8,
    E8m0 = 9,
    /// Two elements a byte, which `size` does not count.
    E2m1 = 10,
}

impl DType {
    pub fn size(self) -> usize {
        match self {
            Self::Byte | Self::E4m3 | Self::E5m2 | Self::E8m0 | Self::E2m1 => 1,
            Self::F16 | Self::Bf16 => 2,
            Self::F32 | Self::I32 => 4,
            Self::I64 => 8,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Byte => "byte",
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::F32 => "f32",
            Self::F16 => "fp16",
            Self::Bf16 => "bf16",
            Self::E4m3 => "fp8",
            Self::E5m2 => "fp8 e5m2",
            Self::E8m0 => "e8m0",
            Self::E2m1 => "e2m1",
        }
    }
}

/// `NVTEBasicTensor`: memory with a type and a shape.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Basic {
    pub ptr: *mut c_void,
    pub dtype: DType,
    dims: [usize; 15],
    ndim: usize,
}

impl Basic {
    pub fn new(ptr: *mut c_void, dtype: DType, shape: &[usize]) -> Self {
        let mut dims = [0; 15];
        dims[..shape.len()].copy_from_slice(shape);
        Self { ptr, dtype, dims, ndim: shape.len() }
    }

    pub fn numel(&self) -> usize {
        self.dims[..self.ndim].iter().product()
    }

    pub fn bytes(&self) -> usize {
        self.numel() * self.dtype.size()
    }

    /// A buffer whose shape is the one that C has.
    pub fn of_shape(ptr: *mut c_void, dtype: DType, shape: &Shape) -> Self {
        Self::new(ptr, dtype, &shape.dims[..shape.ndim])
    }

    /// The part `[start, start + len)` as a vector.
    pub fn part(&self, start: usize, len: usize) -> Self {
        assert!(start + len <= self.numel());
        let ptr = self.ptr.cast::<u8>().wrapping_add(start * self.dtype.size());
        Self::new(ptr.cast(), self.dtype, &[len])
    }
}

/// `NVTEShape`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Shape {
    pub dims: [usize; 15],
    pub ndim: usize,
}

impl Shape {
    pub fn matrix(rows: usize, cols: usize) -> Self {
        let mut dims = [0; 15];
        dims[..2].copy_from_slice(&[rows, cols]);
        Self { dims, ndim: 2 }
    }
}

/// `NVTETensorParam`
#[repr(i32)]
#[derive(Clone, Copy)]
pub enum Param {
    Rowwise = 0,
    Columnwise = 1,
    Scale = 2,
    Amax = 3,
    RowwiseScaleInv = 4,
    ColumnwiseScaleInv = 5,
    ColumnwiseAmax = 6,
}

/// `NVTEGroupedTensorParam`
#[repr(i32)]
#[derive(Clone, Copy)]
pub enum GroupedParam {
    Rowwise = 0,
    Columnwise = 1,
    Scale = 2,
    RowwiseScaleInv = 4,
    ColumnwiseScaleInv = 5,
    FirstDims = 7,
    Offsets = 9,
}

/// `NVTEMatmulConfigAttribute`
#[repr(i32)]
#[derive(Clone, Copy)]
pub enum MatmulAttribute {
    Bias = 0,
    WithGelu = 2,
    Aux = 4,
    SplitAccumulator = 5,
}

/// `NVTEQuantizationConfigAttribute`
#[repr(i32)]
#[derive(Clone, Copy)]
pub enum QuantizationAttribute {
    RngState = 4,
    Nvfp42d = 5,
    StochasticRounding = 6,
    FourOverSix = 8,
}

/// A `std::vector<NVTETensor>` as libstdc++ lays it out. By the Itanium C++ ABI a by-value
/// parameter of this type is a pointer to an object that the caller destroys.
#[repr(C)]
pub struct StdVector<'a> {
    begin: *const Handle,
    end: *const Handle,
    capacity: *const Handle,
    borrowed: PhantomData<&'a [Handle]>,
}

impl<'a> StdVector<'a> {
    pub fn new(handles: &'a [Handle]) -> Self {
        let range = handles.as_ptr_range();
        Self { begin: range.start, end: range.end, capacity: range.end, borrowed: PhantomData }
    }
}

/// Functions of a library, as methods of what holds their addresses in its field `functions`; `as` gives
/// the symbol of one with C++ linkage.
macro_rules! functions {
    ($functions:ident of $owner:ty: $($name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)? $(as $symbol:literal)?;)*) => {
        struct $functions { $($name: unsafe extern "C-unwind" fn($($ty),*) $(-> $ret)?,)* }

        impl $functions {
            fn load(library: &libloading::os::unix::Library) -> Result<Self> {
                // SAFETY: the types are those of the ABI's headers.
                Ok(unsafe { Self { $(
                    $name: *anyhow::Context::context(
                        library.get([$($symbol,)? stringify!($name)][0].as_bytes()),
                        concat!("no symbol ", stringify!($name)),
                    )?,
                )* } })
            }
        }

        #[allow(clippy::too_many_arguments)]
        impl $owner { $(
            pub fn $name(&self, $($arg: $ty),*) $(-> $ret)? {
                // SAFETY: the library has this ABI (see `load`); the cases pass live handles over
                // memory that lives as long as the call needs it.
                unsafe { (self.functions.$name)($($arg),*) }
            }
        )* }
    };
}

pub(super) use functions;

functions! {
    Functions of Api:
    nvte_create_tensor(mode: c_int) -> Handle;
    nvte_destroy_tensor(tensor: Handle);
    nvte_set_tensor_param_v2(tensor: Handle, param: Param, value: &Basic, size: usize);
    nvte_tensor_numel(tensor: Handle) -> usize;
    nvte_create_grouped_tensor(mode: c_int, num_tensors: usize, shape: Shape) -> Handle;
    nvte_destroy_grouped_tensor(tensor: Handle);
    nvte_set_grouped_tensor_param(tensor: Handle, param: GroupedParam, value: &Basic, size: usize);
    nvte_create_quantization_config() -> Handle;
    nvte_set_quantization_config_attribute(config: Handle, attribute: QuantizationAttribute, value: *const c_void, size: usize);
    nvte_destroy_quantization_config(config: Handle);
    nvte_create_matmul_config() -> Handle;
    nvte_set_matmul_config_attribute(config: Handle, attribute: MatmulAttribute, value: *const c_void, size: usize);
    nvte_destroy_matmul_config(config: Handle);
    nvte_quantize_v2(input: Handle, output: Handle, config: Handle, stream: Handle);
    nvte_quantize_dbias(input: Handle, output: Handle, dbias: Handle, workspace: Handle, stream: Handle);
    nvte_quantize_dbias_dgelu(input: Handle, act_input: Handle, output: Handle, dbias: Handle, workspace: Handle, stream: Handle);
    nvte_group_quantize(input: Handle, output: Handle, config: Handle, stream: Handle);
    nvte_gelu(input: Handle, output: Handle, stream: Handle);
    nvte_swiglu(input: Handle, output: Handle, stream: Handle);
    nvte_dswiglu(grad: Handle, input: Handle, output: Handle, stream: Handle);
    nvte_dequantize(input: Handle, output: Handle, stream: Handle);
    nvte_group_dequantize(input: Handle, output: Handle, stream: Handle);
    nvte_transpose(input: Handle, output: Handle, stream: Handle);
    nvte_cast_transpose(input: Handle, output: Handle, stream: Handle);
    nvte_compute_amax(input: Handle, output: Handle, stream: Handle);
    nvte_compute_scale_from_amax(output: Handle, config: Handle, stream: Handle);
    nvte_delayed_scaling_recipe_amax_and_scale_update_after_reduction(reduced: Handle, histories: &StdVector, scales: &StdVector, algo: *const c_char, fp8_dtype: DType, margin: f32, stream: Handle);
    nvte_tensor_shape(tensor: Handle) -> Shape;
    nvte_layernorm_fwd(x: Handle, gamma: Handle, beta: Handle, epsilon: f32, z: Handle, mu: Handle, rsigma: Handle, workspace: Handle, sm_count: c_int, zero_centered: bool, stream: Handle);
    nvte_layernorm_bwd(dz: Handle, x: Handle, mu: Handle, rsigma: Handle, gamma: Handle, dx: Handle, dgamma: Handle, dbeta: Handle, workspace: Handle, sm_count: c_int, zero_centered: bool, stream: Handle);
    nvte_rmsnorm_fwd(x: Handle, gamma: Handle, epsilon: f32, z: Handle, rsigma: Handle, workspace: Handle, sm_count: c_int, zero_centered: bool, stream: Handle);
    nvte_rmsnorm_bwd(dz: Handle, x: Handle, rsigma: Handle, gamma: Handle, dx: Handle, dgamma: Handle, workspace: Handle, sm_count: c_int, zero_centered: bool, stream: Handle);
    nvte_cublas_gemm_v2(transa: c_int, transb: c_int, alpha: &f32, a: Handle, b: Handle, beta: &f32, c: Handle, d: Handle, workspace: Handle, config: Handle, stream: Handle);
    nvte_multi_tensor_gemm(a: *const Handle, b: *const Handle, d: *const Handle, bias: *const Handle, pre_gelu: *const Handle, count: c_int, transa: bool, transb: bool, grad: bool, workspaces: *const Handle, accumulate: bool, split_accumulator: bool, sm_count: c_int, stream: Handle);
    nvte_get_grouped_gemm_setup_workspace_size(count: usize) -> usize;
    nvte_grouped_gemm(a: Handle, transa: c_int, b: Handle, transb: c_int, c: Handle, d: Handle, alpha: Handle, beta: Handle, setup: Handle, workspace: Handle, config: Handle, stream: Handle);
    nvte_quantize_with_hadamard_transform(input: Handle, output: Handle, matrix: Handle, config: Handle, stream: Handle);
    nvte_hadamard_transform(input: Handle, output: Handle, signs: c_int, column_signs: c_int, stream: Handle);
    nvte_hadamard_transform_amax(input: Handle, output: Handle, signs: c_int, column_signs: c_int, stream: Handle);
    nvte_nvfp4_data_transpose(input: Handle, output: Handle, stream: Handle);
    nvte_scaled_softmax_backward(grads: Handle, results: Handle, output: Handle, scale: f32, stream: Handle);
    nvte_scaled_softmax_forward(input: Handle, results: Handle, scale: f32, stream: Handle);
    nvte_scaled_masked_softmax_forward(input: Handle, mask: Handle, results: Handle, scale: f32, stream: Handle);
    nvte_scaled_upper_triang_masked_softmax_forward(input: Handle, results: Handle, scale: f32, stream: Handle);
    nvte_scaled_upper_triang_masked_softmax_backward(grads: Handle, results: Handle, output: Handle, scale: f32, stream: Handle);
    nvte_dropout_fwd(input: Handle, output: Handle, mask: Handle, rng_state: Handle, p: f32, stream: Handle);
    nvte_dropout_bwd(grads: Handle, mask: Handle, output: Handle, p: f32, stream: Handle);
    nvte_multi_tensor_adam_cuda(chunk: c_int, noop: Handle, lists: *const *const Handle, num_lists: usize, num_tensors: usize, lr: f32, beta1: f32, beta2: f32, epsilon: f32, step: c_int, mode: c_int, bias_correction: c_int, weight_decay: f32, stream: Handle);
    nvte_fused_topk_with_score_function_forward(logits: Handle, tokens: c_int, experts: c_int, topk: c_int, pre_softmax: c_int, groups: c_int, group_topk: c_int, factor: f32, score: c_int, bias: Handle, probs: Handle, map: Handle, intermediate: Handle, stream: Handle);
    nvte_fused_topk_with_score_function_forward_with_indices(logits: Handle, tokens: c_int, experts: c_int, topk: c_int, pre_softmax: c_int, groups: c_int, group_topk: c_int, factor: f32, score: c_int, bias: Handle, probs: Handle, indices: Handle, intermediate: Handle, stream: Handle);
    nvte_fused_topk_with_score_function_backward(map: Handle, intermediate: Handle, grad: Handle, tokens: c_int, experts: c_int, topk: c_int, pre_softmax: c_int, factor: f32, score: c_int, grad_logits: Handle, stream: Handle);
    nvte_fused_topk_with_score_function_backward_with_indices(indices: Handle, intermediate: Handle, grad: Handle, tokens: c_int, experts: c_int, topk: c_int, pre_softmax: c_int, factor: f32, score: c_int, grad_logits: Handle, stream: Handle);
    nvte_fused_score_for_moe_aux_loss_forward(logits: Handle, tokens: c_int, experts: c_int, topk: c_int, score: c_int, scores: Handle, map: Handle, intermediate: Handle, stream: Handle);
    nvte_fused_score_for_moe_aux_loss_backward(intermediate: Handle, grad: Handle, tokens: c_int, experts: c_int, topk: c_int, score: c_int, grad_logits: Handle, stream: Handle);
    nvte_fused_moe_aux_loss_forward(probs: Handle, counts: Handle, total: c_int, experts: c_int, rows: c_int, cols: c_int, topk: c_int, factor: f32, loss: Handle, constants: Handle, stream: Handle);
    nvte_fused_moe_aux_loss_backward(constants: Handle, counts: Handle, rows: c_int, cols: c_int, grad_loss: Handle, grad_probs: Handle, stream: Handle);
    nvte_qb_histogram_accumulate_unchecked(scores: Handle, cutoff: Handle, bounds: Handle, histogram: Handle, stream: Handle);
    nvte_permute(input: Handle, output: Handle, sorted_row_id: Handle, row_id_map: Handle, prob: Handle, prob_grad: Handle, input_fwd: Handle, rows: c_int, topk: c_int, cols: c_int, out_rows: c_int, stream: Handle) as "_Z12nvte_permutePvS_S_S_S_S_S_iiiiP11CUstream_st";
    nvte_unpermute(input: Handle, output: Handle, row_id_map: Handle, prob: Handle, rows: c_int, topk: c_int, cols: c_int, stream: Handle) as "_Z14nvte_unpermutePvS_S_S_iiiP11CUstream_st";
    nvte_multi_padding(count: usize, inputs: *const Handle, outputs: *const Handle, padded_rows: *const i32, stream: Handle);
    nvte_multi_unpadding(count: usize, inputs: *const Handle, outputs: *const Handle, unpadded_rows: *const i32, stream: Handle);
    nvte_topk(stream: Handle, keys: Handle, lengths: Handle, best: Handle, indices: Handle, workspace: Handle, rows: c_int, cols: c_int, k: c_int);
    nvte_tensor_pack_create(pack: *mut RawPack);
    nvte_tensor_pack_destroy(pack: *mut RawPack);
    nvte_create_fused_attn_fwd_params() -> Handle;
    nvte_set_fused_attn_fwd_params_attribute(params: Handle, attribute: u32, value: *const c_void, size: usize);
    nvte_destroy_fused_attn_fwd_params(params: Handle);
    nvte_fused_attn_fwd_v2(params: Handle);
    nvte_create_fused_attn_bwd_params() -> Handle;
    nvte_set_fused_attn_bwd_params_attribute(params: Handle, attribute: u32, value: *const c_void, size: usize);
    nvte_destroy_fused_attn_bwd_params(params: Handle);
    nvte_fused_attn_bwd_v2(params: Handle);
    nvte_fused_rope_forward(input: Handle, cu_seqlens: Handle, freqs: Handle, starts: Handle, output: Handle, format: c_int, interleaved: bool, cp_size: c_int, cp_rank: c_int, s: c_int, b: c_int, h: c_int, d: c_int, d2: c_int, stride_s: c_int, stride_b: c_int, stride_h: c_int, stride_d: c_int, stream: Handle);
    nvte_fused_qkv_rope_forward(qkv: Handle, q_freqs: Handle, k_freqs: Handle, starts: Handle, q: Handle, k: Handle, v: Handle, format: c_int, interleaved: bool, cp_size: c_int, cp_rank: c_int, s: c_int, b: c_int, h: c_int, d: c_int, d2: c_int, split_q: c_int, split_k: c_int, split_v: c_int, stream: Handle);
}

/// Functions that our library adds to the ABI, and that another library need not have.
type TextFn = unsafe extern "C-unwind" fn() -> *const c_char;

/// A loaded library.
pub struct Api {
    pub name: String,
    pub version: Option<String>,
    functions: Functions,
    last_error: Option<TextFn>,
    clear_error: Option<unsafe extern "C-unwind" fn()>,
    /// Never unloaded: threads of the library may outlive this handle.
    pub library: ManuallyDrop<Library>,
}

impl Api {
    /// The file must be a library with the nvte C ABI of release 2.20.
    pub fn load(name: &str, path: &Path) -> Result<Self> {
        // A name without a slash would be searched for among the system's libraries.
        let path = &path.canonicalize().with_context(|| format!("{}", path.display()))?;
        // SAFETY: running the initializers of the library is what the caller asks for. RTLD_LOCAL
        // keeps two libraries with the same symbols apart.
        let library = unsafe { Library::open(Some(path), RTLD_LOCAL | RTLD_NOW) }
            .with_context(|| format!("cannot load {}", path.display()))?;
        let functions = Functions::load(&library).with_context(|| format!("{}", path.display()))?;
        // SAFETY: the types are those of nvte/nvtex.h, the only header with these names.
        let (version, last_error, clear_error) = unsafe {
            (
                library.get::<TextFn>(b"nvtex_version\0").ok().map(|f| text(*f)),
                library.get::<TextFn>(b"nvtex_last_error\0").ok().map(|f| *f),
                library.get(b"nvtex_clear_error\0").ok().map(|f| *f),
            )
        };
        let library = ManuallyDrop::new(library);
        Ok(Self { name: name.into(), version, functions, last_error, clear_error, library })
    }

    /// The error of an earlier call on this thread, which is forgotten. A library without
    /// `nvtex_last_error` reports by a C++ exception, which ends the program.
    pub fn take_error(&self) -> Result<()> {
        let (Some(last), Some(clear)) = (self.last_error, self.clear_error) else { return Ok(()) };
        let message = text(last);
        // SAFETY: takes no arguments.
        unsafe { clear() };
        if message.is_empty() { Ok(()) } else { Err(anyhow::Error::msg(message)) }
    }
}

fn text(function: TextFn) -> String {
    // SAFETY: the function answers a NUL-terminated string that lives until the next call.
    unsafe { CStr::from_ptr(function()) }.to_string_lossy().into_owned()
}

/// Owned tensor handle. The memory belongs to somebody else.
pub struct Tensor<'a> {
    api: &'a Api,
    handle: Handle,
}

impl<'a> Tensor<'a> {
    pub fn new(api: &'a Api) -> Self {
        Self::with_mode(api, 0)
    }

    /// A tensor of an `NVTEScalingMode`.
    pub fn with_mode(api: &'a Api, mode: i32) -> Self {
        Self { api, handle: api.nvte_create_tensor(mode) }
    }

    /// A method and not a public field: a closure would copy the field and drop its owner.
    pub fn h(&self) -> Handle {
        self.handle
    }

    pub fn set(self, param: Param, value: &Basic) -> Self {
        self.api.nvte_set_tensor_param_v2(self.handle, param, value, size_of::<Basic>());
        self
    }
}

impl Drop for Tensor<'_> {
    fn drop(&mut self) {
        self.api.nvte_destroy_tensor(self.handle);
    }
}

/// Owned handle of a grouped tensor. The memory belongs to somebody else.
pub struct Grouped<'a> {
    api: &'a Api,
    handle: Handle,
}

impl<'a> Grouped<'a> {
    /// A group of an `NVTEScalingMode`.
    pub fn new(api: &'a Api, mode: i32, members: usize, rows: usize, cols: usize) -> Self {
        let shape = Shape::matrix(rows, cols);
        Self { api, handle: api.nvte_create_grouped_tensor(mode, members, shape) }
    }

    pub fn h(&self) -> Handle {
        self.handle
    }

    pub fn set(self, param: GroupedParam, value: &Basic) -> Self {
        self.api.nvte_set_grouped_tensor_param(self.handle, param, value, size_of::<Basic>());
        self
    }
}

impl Drop for Grouped<'_> {
    fn drop(&mut self) {
        self.api.nvte_destroy_grouped_tensor(self.handle);
    }
}

/// Owned config handle, with the tensors that the config refers to.
pub struct Config<'a> {
    api: &'a Api,
    handle: Handle,
    destroy: fn(&Api, Handle),
    tensors: Vec<Tensor<'a>>,
}

impl<'a> Config<'a> {
    pub fn quantization(api: &'a Api) -> Self {
        let handle = api.nvte_create_quantization_config();
        Self { api, handle, destroy: Api::nvte_destroy_quantization_config, tensors: Vec::new() }
    }

    pub fn matmul(api: &'a Api) -> Self {
        let handle = api.nvte_create_matmul_config();
        Self { api, handle, destroy: Api::nvte_destroy_matmul_config, tensors: Vec::new() }
    }

    pub fn h(&self) -> Handle {
        self.handle
    }

    pub fn set_flag(&self, attribute: MatmulAttribute, value: bool) {
        self.set(attribute, &u8::from(value));
    }

    pub fn set_tensor(&mut self, attribute: MatmulAttribute, tensor: Tensor<'a>) {
        self.set(attribute, &tensor.h());
        self.tensors.push(tensor);
    }

    /// `value` has the type that the ABI gives the attribute of a quantization config.
    pub fn set_quantization<T>(&self, attribute: QuantizationAttribute, value: &T) {
        let ptr = std::ptr::from_ref(value).cast();
        self.api.nvte_set_quantization_config_attribute(
            self.handle,
            attribute,
            ptr,
            size_of::<T>(),
        );
    }

    pub fn set_rng_state(&mut self, tensor: Tensor<'a>) {
        self.set_quantization(QuantizationAttribute::RngState, &tensor.h());
        self.tensors.push(tensor);
    }

    /// `value` has the type that the ABI gives the attribute of a matmul config.
    fn set<T>(&self, attribute: MatmulAttribute, value: &T) {
        let ptr = std::ptr::from_ref(value).cast();
        self.api.nvte_set_matmul_config_attribute(self.handle, attribute, ptr, size_of::<T>());
    }
}

impl Drop for Config<'_> {
    fn drop(&mut self) {
        (self.destroy)(self.api, self.handle);
    }
}

/// `NVTETensorPack`
#[repr(C)]
pub struct RawPack {
    tensors: [Handle; 10],
    size: usize,
}

/// Owned pack of tensors. The memory of those belongs to somebody else.
pub struct Pack<'a> {
    api: &'a Api,
    raw: Box<UnsafeCell<RawPack>>,
}

impl<'a> Pack<'a> {
    pub fn new(api: &'a Api) -> Self {
        let raw = Box::new(UnsafeCell::new(RawPack { tensors: [Handle::NULL; 10], size: 0 }));
        api.nvte_tensor_pack_create(raw.get());
        Self { api, raw }
    }

    pub fn address(&self) -> *mut RawPack {
        self.raw.get()
    }

    /// Gives a tensor of the pack its memory.
    pub fn place(&self, index: usize, memory: &Basic) {
        // SAFETY: nobody else reads or writes the pack now.
        let handle = unsafe { (&(*self.raw.get()).tensors)[index] };
        self.api.nvte_set_tensor_param_v2(handle, Param::Rowwise, memory, size_of::<Basic>());
    }
}

impl Drop for Pack<'_> {
    fn drop(&mut self) {
        self.api.nvte_tensor_pack_destroy(self.raw.get());
    }
}

/// Owned parameters of a pass of attention.
pub struct Attention<'a> {
    api: &'a Api,
    handle: Handle,
    backward: bool,
}

impl<'a> Attention<'a> {
    pub fn forward(api: &'a Api) -> Self {
        Self { api, handle: api.nvte_create_fused_attn_fwd_params(), backward: false }
    }

    pub fn backward(api: &'a Api) -> Self {
        Self { api, handle: api.nvte_create_fused_attn_bwd_params(), backward: true }
    }

    /// `value` has the type that the ABI gives the attribute.
    pub fn set<T>(&self, attribute: u32, value: &T) {
        let value = std::ptr::from_ref(value).cast();
        let set = match self.backward {
            false => Api::nvte_set_fused_attn_fwd_params_attribute,
            true => Api::nvte_set_fused_attn_bwd_params_attribute,
        };
        set(self.api, self.handle, attribute, value, size_of::<T>());
    }

    pub fn run(&self) {
        match self.backward {
            false => self.api.nvte_fused_attn_fwd_v2(self.handle),
            true => self.api.nvte_fused_attn_bwd_v2(self.handle),
        }
    }
}

impl Drop for Attention<'_> {
    fn drop(&mut self) {
        match self.backward {
            false => self.api.nvte_destroy_fused_attn_fwd_params(self.handle),
            true => self.api.nvte_destroy_fused_attn_bwd_params(self.handle),
        }
    }
}
