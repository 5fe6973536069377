#![doc = include_str!("../README.md")]

use nvte_sys::*;
use ort_sys::*;
use std::ffi::{CStr, c_char, c_void};
use std::ptr::{null, null_mut};
use std::sync::{Mutex, PoisonError};

/// A failed call of one of the two libraries.
enum Failure {
    Ort(OrtStatusPtr),
    Text(String),
}

type Result<T> = std::result::Result<T, Failure>;

fn ort(status: OrtStatusPtr) -> Result<()> {
    if status.0.is_null() { Ok(()) } else { Err(Failure::Ort(status)) }
}

fn refuse<T>(text: String) -> Result<T> {
    Err(Failure::Text(text))
}

/// What `calls` gives, or the error of the first of its calls of nvte that failed.
fn checked<T>(calls: impl FnOnce() -> T) -> Result<T> {
    // SAFETY: these functions have no conditions; the text is valid until the next failing call of this thread.
    unsafe {
        let failures = nvtex_error_count();
        let value = calls();
        let text = nvtex_take_error(failures);
        if text.is_null() {
            Ok(value)
        } else {
            refuse(CStr::from_ptr(text).to_string_lossy().into_owned())
        }
    }
}

/// What ONNX Runtime is told.
///
/// # Safety
/// `api` is that of the caller.
unsafe fn status(api: *const OrtApi, result: Result<()>) -> OrtStatusPtr {
    match result {
        Ok(()) => OrtStatusPtr::default(),
        Err(Failure::Ort(status)) => status,
        Err(Failure::Text(text)) => {
            let text: Vec<u8> = text.bytes().filter(|&byte| byte != 0).chain([0]).collect();
            // SAFETY: the text ends with 0.
            unsafe { ((*api).CreateStatus)(OrtErrorCode::ORT_FAIL, text.as_ptr().cast::<c_char>()) }
        }
    }
}

/// The operators of the domain `nvte`.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// x, weight, and maybe a bias.
    Linear,
    /// x and gamma.
    RmsNorm,
}

/// An operator, which ONNX Runtime has the address of.
#[repr(C)]
struct Operator {
    c: OrtCustomOp,
    kind: Kind,
}

static OPERATORS: [Operator; 2] = [operator(Kind::Linear), operator(Kind::RmsNorm)];

const fn operator(kind: Kind) -> Operator {
    let c = OrtCustomOp {
        version: ORT_API_VERSION,
        CreateKernel: None,
        GetName: Some(name),
        GetExecutionProviderType: Some(provider),
        GetInputType: Some(element),
        GetInputTypeCount: Some(inputs),
        GetOutputType: Some(element),
        GetOutputTypeCount: Some(outputs),
        KernelCompute: None,
        KernelDestroy: Some(destroy),
        GetInputCharacteristic: Some(characteristic),
        GetOutputCharacteristic: Some(required),
        GetInputMemoryType: Some(memory),
        GetVariadicInputMinArity: Some(none),
        GetVariadicInputHomogeneity: Some(none),
        GetVariadicOutputMinArity: Some(none),
        GetVariadicOutputHomogeneity: Some(none),
        CreateKernelV2: Some(create),
        KernelComputeV2: Some(compute),
        InferOutputShapeFn: None,
        GetStartVersion: Some(first_version),
        GetEndVersion: Some(last_version),
    };
    Operator { c, kind }
}

/// # Safety
/// The address is that of an element of `OPERATORS`.
unsafe fn kind(op: *const OrtCustomOp) -> Kind {
    // SAFETY: the caller keeps to the `# Safety` section, and the struct begins with what the address is of.
    unsafe { (*op.cast::<Operator>()).kind }
}

unsafe extern "system" fn name(op: *const OrtCustomOp) -> *const c_char {
    // SAFETY: ONNX Runtime passes what it was given.
    match unsafe { kind(op) } {
        Kind::Linear => c"Linear".as_ptr(),
        Kind::RmsNorm => c"RMSNorm".as_ptr(),
    }
}

unsafe extern "system" fn provider(_: *const OrtCustomOp) -> *const c_char {
    c"CPUExecutionProvider".as_ptr()
}

unsafe extern "system" fn element(_: *const OrtCustomOp, _: usize) -> ONNXTensorElementDataType {
    ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT
}

unsafe extern "system" fn inputs(op: *const OrtCustomOp) -> usize {
    // SAFETY: ONNX Runtime passes what it was given.
    if unsafe { kind(op) } == Kind::Linear { 3 } else { 2 }
}

unsafe extern "system" fn outputs(_: *const OrtCustomOp) -> usize {
    1
}

unsafe extern "system" fn characteristic(
    _: *const OrtCustomOp,
    index: usize,
) -> OrtCustomOpInputOutputCharacteristic {
    match index {
        2 => OrtCustomOpInputOutputCharacteristic::INPUT_OUTPUT_OPTIONAL,
        _ => OrtCustomOpInputOutputCharacteristic::INPUT_OUTPUT_REQUIRED,
    }
}

unsafe extern "system" fn required(
    _: *const OrtCustomOp,
    _: usize,
) -> OrtCustomOpInputOutputCharacteristic {
    OrtCustomOpInputOutputCharacteristic::INPUT_OUTPUT_REQUIRED
}

unsafe extern "system" fn memory(_: *const OrtCustomOp, _: usize) -> OrtMemType {
    OrtMemType::OrtMemTypeDefault
}

unsafe extern "system" fn none(_: *const OrtCustomOp) -> i32 {
    0
}

unsafe extern "system" fn first_version(_: *const OrtCustomOp) -> i32 {
    1
}

unsafe extern "system" fn last_version(_: *const OrtCustomOp) -> i32 {
    i32::MAX
}

/// A node of a graph.
struct Kernel {
    api: *const OrtApi,
    kind: Kind,
    epsilon: f32,
    context: NVTEXContext,
    /// Null: products in Float32.
    recipe: NVTEXRecipe,
    /// Made at the first call, with the sizes that it had; one call at a time.
    module: Mutex<Option<Made>>,
}

struct Made {
    module: NVTEXModule,
    weight: Vec<i64>,
    bias: bool,
}

/// A tensor of a node: its address and shape.
struct Value {
    data: *mut c_void,
    shape: Vec<i64>,
}

/// A tensor of nvte over memory of ONNX Runtime.
struct Handle(NVTETensor);

impl Handle {
    fn new(value: &Value) -> Result<Self> {
        let dims: Vec<usize> = value.shape.iter().map(|&dim| dim as usize).collect();
        checked(|| {
            // SAFETY: the dimensions are an array of their number, and the buffer is a struct of its size.
            unsafe {
                let tensor = Self(nvte_create_tensor(NVTE_DELAYED_TENSOR_SCALING));
                let shape = nvte_make_shape(dims.as_ptr(), dims.len());
                let buffer = NVTEBasicTensor { data_ptr: value.data, dtype: kNVTEFloat32, shape };
                let at = (&raw const buffer).cast();
                nvte_set_tensor_param_v2(
                    tensor.0,
                    kNVTERowwiseData,
                    at,
                    size_of::<NVTEBasicTensor>(),
                );
                tensor
            }
        })
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the handle is live.
        unsafe { nvte_destroy_tensor(self.0) }
    }
}

impl Kernel {
    /// # Safety
    /// The arguments are those of `CreateKernelV2`.
    unsafe fn new(
        op: *const OrtCustomOp,
        api: *const OrtApi,
        info: *const OrtKernelInfo,
    ) -> Result<Box<Self>> {
        // SAFETY: the caller keeps to the `# Safety` section of this function.
        unsafe {
            let mut kernel = Box::new(Self {
                api,
                kind: kind(op),
                epsilon: 1e-5,
                context: null_mut(),
                recipe: null_mut(),
                module: Mutex::new(None),
            });
            match kernel.kind {
                Kind::Linear => kernel.recipe = recipe(&text_attribute(api, info, c"recipe")?)?,
                Kind::RmsNorm => {
                    // Absent: the default stays.
                    let found = ((*api).KernelInfoGetAttribute_float)(
                        info,
                        c"epsilon".as_ptr(),
                        &mut kernel.epsilon,
                    );
                    if !found.0.is_null() {
                        ((*api).ReleaseStatus)(found.0);
                    }
                }
            }
            kernel.context = checked(|| nvtex_context_create(null()))?;
            Ok(kernel)
        }
    }

    /// An input; nothing if it is not there.
    ///
    /// # Safety
    /// The context is that of the call.
    unsafe fn input(&self, context: *mut OrtKernelContext, index: usize) -> Result<Option<Value>> {
        // SAFETY: the caller keeps to the `# Safety` section of this function; the shape is released.
        unsafe {
            let api = &*self.api;
            let mut count = 0;
            ort((api.KernelContext_GetInputCount)(context, &mut count))?;
            let mut value = null();
            if index < count {
                ort((api.KernelContext_GetInput)(context, index, &mut value))?;
            }
            if value.is_null() {
                return Ok(None);
            }
            let mut info = null_mut();
            ort((api.GetTensorTypeAndShape)(value, &mut info))?;
            let mut rank = 0;
            let counted = ort((api.GetDimensionsCount)(info, &mut rank));
            let mut shape = vec![0; rank];
            let measured =
                counted.and_then(|()| ort((api.GetDimensions)(info, shape.as_mut_ptr(), rank)));
            (api.ReleaseTensorTypeAndShapeInfo)(info);
            measured?;
            let mut data = null_mut();
            ort((api.GetTensorMutableData)(value.cast_mut(), &mut data))?;
            Ok(Some(Value { data, shape }))
        }
    }

    /// # Safety
    /// The context is that of the call.
    unsafe fn run(&self, context: *mut OrtKernelContext) -> Result<()> {
        // SAFETY: the caller keeps to the `# Safety` section of this function.
        unsafe {
            let (x, weight) = (self.input(context, 0)?, self.input(context, 1)?);
            let (Some(x), Some(weight)) = (x, weight) else {
                return refuse("nvte: expected at least two inputs".to_owned());
            };
            let bias = if self.kind == Kind::Linear { self.input(context, 2)? } else { None };
            let rank = if self.kind == Kind::Linear { 2 } else { 1 };
            let features = x.shape.last().copied().unwrap_or(0);
            if weight.shape.len() != rank || weight.shape[rank - 1] != features || features == 0 {
                return refuse(format!(
                    "nvte: x {:?} and weight {:?}: expected the same last dimension, and {rank} dimensions of the weight",
                    x.shape, weight.shape
                ));
            }
            let mut shape = x.shape.clone();
            if let (Kind::Linear, Some(last)) = (self.kind, shape.last_mut()) {
                *last = weight.shape[0];
            }
            let mut output = null_mut();
            ort(((*self.api).KernelContext_GetOutput)(
                context,
                0,
                shape.as_ptr(),
                shape.len(),
                &mut output,
            ))?;
            let mut data = null_mut();
            ort(((*self.api).GetTensorMutableData)(output, &mut data))?;

            let mut made = self.module.lock().unwrap_or_else(PoisonError::into_inner);
            let fits = |made: &Made| made.weight == weight.shape && made.bias == bias.is_some();
            if !made.as_ref().is_some_and(fits) {
                let module = self.create(&weight, bias.is_some())?;
                let new = Made { module, weight: weight.shape.clone(), bias: bias.is_some() };
                if let Some(old) = made.replace(new) {
                    nvtex_module_destroy(old.module);
                }
            }
            let module = made.as_ref().map_or(null_mut(), |made| made.module);
            let x = Handle::new(&x)?;
            let y = Handle::new(&Value { data, shape })?;
            let parameters =
                [Some(weight), bias].into_iter().flatten().map(|value| Handle::new(&value));
            let parameters = parameters.collect::<Result<Vec<_>>>()?;
            checked(|| {
                for (index, parameter) in parameters.iter().enumerate() {
                    nvtex_module_set_parameter(module, index, parameter.0);
                }
                if !self.recipe.is_null() {
                    nvtex_context_begin(
                        self.context,
                        self.recipe,
                        NVTEX_CONTEXT_ENABLED,
                        null_mut(),
                    );
                }
                nvtex_module_forward(module, &x.0, 1, &y.0, 1, null(), null_mut(), null_mut());
                if !self.recipe.is_null() {
                    nvtex_context_end(self.context);
                }
            })
        }
    }

    fn create(&self, weight: &Value, bias: bool) -> Result<NVTEXModule> {
        checked(|| {
            // SAFETY: the init functions fill the configs.
            unsafe {
                match self.kind {
                    Kind::Linear => {
                        let mut config = std::mem::zeroed::<NVTEXLinearConfig>();
                        nvtex_linear_config_init(&mut config, size_of_val(&config));
                        config.out_features = weight.shape[0] as usize;
                        config.in_features = weight.shape[1] as usize;
                        config.bias = bias;
                        nvtex_linear_create(self.context, &config, null_mut())
                    }
                    Kind::RmsNorm => {
                        let mut config = std::mem::zeroed::<NVTEXNormConfig>();
                        nvtex_norm_config_init(&mut config, size_of_val(&config));
                        config.kind = RMSNorm;
                        config.hidden_size = weight.shape[0] as usize;
                        config.epsilon = self.epsilon;
                        nvtex_norm_create(self.context, &config, null_mut())
                    }
                }
            }
        })
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        let made = self.module.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        // SAFETY: the handles are live, or null where there is none.
        unsafe {
            if let Some(made) = made {
                nvtex_module_destroy(made.module);
            }
            if !self.recipe.is_null() {
                nvtex_recipe_destroy(self.recipe);
            }
            if !self.context.is_null() {
                nvtex_context_destroy(self.context);
            }
        }
    }
}

/// An attribute of a node; empty if it has none.
///
/// # Safety
/// The arguments are those of `CreateKernelV2`.
unsafe fn text_attribute(
    api: *const OrtApi,
    info: *const OrtKernelInfo,
    name: &CStr,
) -> Result<String> {
    // SAFETY: the caller keeps to the `# Safety` section of this function.
    unsafe {
        let mut size = 0;
        let get = (*api).KernelInfoGetAttribute_string;
        let asked = get(info, name.as_ptr(), null_mut(), &mut size);
        if !asked.0.is_null() {
            ((*api).ReleaseStatus)(asked.0);
            return Ok(String::new());
        }
        let mut text = vec![0u8; size];
        ort(get(info, name.as_ptr(), text.as_mut_ptr().cast(), &mut size))?;
        Ok(String::from_utf8_lossy(&text).trim_end_matches('\0').to_owned())
    }
}

/// The recipe of this name; null for products in Float32.
fn recipe(name: &str) -> Result<NVTEXRecipe> {
    let kind = match name {
        "" | "none" => return Ok(null_mut()),
        "current_scaling" => NVTEX_RECIPE_CURRENT_SCALING,
        "block_scaling" => NVTEX_RECIPE_BLOCK_SCALING,
        "mxfp8" => NVTEX_RECIPE_MXFP8,
        other => {
            return refuse(format!(
                "nvte: recipe: expected none, current_scaling, block_scaling or mxfp8, got {other:?}"
            ));
        }
    };
    checked(|| {
        // SAFETY: the init function fills the config.
        unsafe {
            let mut config = std::mem::zeroed::<NVTEXRecipeConfig>();
            nvtex_recipe_config_init(&mut config, size_of_val(&config), kind);
            nvtex_recipe_create(&config)
        }
    })
}

unsafe extern "system" fn create(
    op: *const OrtCustomOp,
    api: *const OrtApi,
    info: *const OrtKernelInfo,
    kernel: *mut *mut c_void,
) -> OrtStatusPtr {
    // SAFETY: ONNX Runtime passes valid arguments.
    unsafe {
        let made = Kernel::new(op, api, info).map(|new| *kernel = Box::into_raw(new).cast());
        status(api, made)
    }
}

unsafe extern "system" fn compute(
    kernel: *mut c_void,
    context: *mut OrtKernelContext,
) -> OrtStatusPtr {
    // SAFETY: the address is that of `create`; several threads may share it.
    unsafe {
        let kernel = &*kernel.cast::<Kernel>();
        status(kernel.api, kernel.run(context))
    }
}

unsafe extern "system" fn destroy(kernel: *mut c_void) {
    // SAFETY: the address is that of `create`, and nobody uses it any more.
    drop(unsafe { Box::from_raw(kernel.cast::<Kernel>()) });
}

/// Adds the operators to the options of a session: what ONNX Runtime calls when it loads this library.
///
/// # Safety
/// As ONNX Runtime calls it.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn RegisterCustomOps(
    options: *mut OrtSessionOptions,
    base: *const OrtApiBase,
) -> OrtStatusPtr {
    // SAFETY: the caller keeps to the `# Safety` section of this function.
    unsafe {
        let api = ((*base).GetApi)(ORT_API_VERSION);
        let register = || {
            let backend = CStr::from_ptr(checked(|| nvtex_backend_name())?);
            if backend != c"cpu" {
                return refuse(format!(
                    "nvte: the backend is {backend:?}, and these operators are for the CPU: set NVTE_BACKEND=cpu"
                ));
            }
            // The domain lives as long as the process: sessions refer to it.
            let mut domain = null_mut();
            ort(((*api).CreateCustomOpDomain)(c"nvte".as_ptr(), &mut domain))?;
            for operator in &OPERATORS {
                ort(((*api).CustomOpDomain_Add)(domain, &operator.c))?;
            }
            ort(((*api).AddCustomOpDomain)(options, domain))
        };
        status(api, register())
    }
}
