//! Layers as handles, and their parameters.
#![allow(unsafe_code, clippy::missing_safety_doc, non_camel_case_types)]

use super::*;

/// What a handle of a module points to. Only the library knows what it is.
pub enum NVTEXModule_st {}

/// Handle of a module.
pub type NVTEXModule = *mut NVTEXModule_st;

/// Consecutive indices of the dimension of a parameter that ranks share.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NVTEXParameterPiece {
    /// The first index in the whole parameter, and in this rank's part of it.
    pub whole: usize,
    pub part: usize,
    pub length: usize,
    /// False: another rank of the grid that shares weights has the same elements, and counts them.
    pub counts: MaybeUninit<bool>,
}

/// A parameter of a module.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NVTEXParameter {
    /// Bytes of this struct; set it before the call.
    pub struct_size: usize,
    /// The name. The caller may read it until the module is destroyed.
    pub name: *const c_char,
    pub shape: NVTEShape,
    /// The dtype, in high precision.
    pub dtype: MaybeUninit<NVTEDType>,
    /// The value: in high precision, or in FP8 with its scales if the weight exists in FP8 alone. The
    /// caller may use it until the module is destroyed or the value is bound anew.
    pub value: NVTETensor,
    /// The value is in FP8.
    pub quantized: MaybeUninit<bool>,
    /// The shape of the whole parameter, of which this rank may have a part.
    pub whole_shape: NVTEShape,
    /// The dimension that ranks share, and what this rank has of it: one piece of the first dimension if it has all. The
    /// caller may read the pieces until the module is destroyed. A sum over all elements of a model, such as that of
    /// the squares of its gradients, adds what counts over the ranks that share weights.
    pub shared_dimension: usize,
    pub num_pieces: usize,
    pub pieces: *const NVTEXParameterPiece,
}

/// Destroys a module; tapes that are left keep what they need. Null is ignored.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_module_destroy(module: NVTEXModule) {
    guard("nvtex_module_destroy", || destroy(&MODULES, "module", module));
}

/// Returns the number of parameters of a module.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_module_num_parameters(module: NVTEXModule) -> usize {
    guard("nvtex_module_num_parameters", || Ok(open(&MODULES, "module", module)?.num_parameters()))
}

/// Describes the parameter number `index` of a module.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_module_parameter(
    module: NVTEXModule,
    index: usize,
    parameter: *mut NVTEXParameter,
) {
    // SAFETY: the caller vouches for the struct.
    guard("nvtex_module_parameter", || unsafe { describe(module, index, parameter) });
}

/// Binds the value of a parameter to the memory of a tensor of its shape and dtype, which every pass
/// reads from then on. Errors: parameters in FP8.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_module_set_parameter(
    module: NVTEXModule,
    index: usize,
    value: NVTETensor,
) {
    guard("nvtex_module_set_parameter", || set_parameter(module, index, value));
}

/// Copies a tensor (Float32, Float16 or BFloat16) to the value of a parameter, and casts it: to FP8
/// with the scales of the recipe if the weight exists in FP8 alone.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_module_assign_parameter(
    module: NVTEXModule,
    index: usize,
    value: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvtex_module_assign_parameter", || assign_parameter(module, index, value, stream));
}

/// Computes the initial value of a parameter on the host, before rounding, from seed and deviation, for
/// copies of higher precision than the parameter has. Errors: a `count` that is not its number of
/// elements.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_module_initial_value(
    module: NVTEXModule,
    index: usize,
    value: *mut f32,
    count: usize,
) {
    // SAFETY: the caller vouches for the array.
    guard("nvtex_module_initial_value", || unsafe { initial_value(module, index, value, count) });
}

/// Tells how an operand of the products of a weight was cast in the module's last forward pass: the
/// scaling, FP8 dtype and options, or NVTEX_SLOT_HIGH_PRECISION and the dtype of the module.
///
/// `index` is the number of the weight among the parameters. Errors: a parameter that is no weight of
/// products, or of a module that has not run.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_module_precision(
    module: NVTEXModule,
    index: usize,
    role: MaybeUninit<NVTEXRole>,
    choice: *mut NVTEXSlotChoice,
) {
    guard("nvtex_module_precision", || precision(module, index, from_c("role", role)?, choice));
}

/// Binds the gradient of a parameter to a tensor of its shape, of its dtype or Float32. Null: no
/// gradient is computed.
///
/// Backward passes write there, or add if `accumulate`, unless a microbatch says otherwise. Bind it
/// before the forward pass.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_module_set_gradient(
    module: NVTEXModule,
    index: usize,
    grad: NVTETensor,
    accumulate: bool,
) {
    guard("nvtex_module_set_gradient", || set_gradient(module, index, grad, accumulate));
}

config!(NVTEXParameter {
    struct_size,
    name,
    shape,
    dtype,
    value,
    quantized,
    whole_shape,
    shared_dimension,
    num_pieces,
    pieces
});

/// # Safety
/// `out` is null or begins with its size.
unsafe fn describe(module: NVTEXModule, index: usize, out: *mut NVTEXParameter) -> Result<()> {
    let module = open(&MODULES, "module", module)?;
    module.parameter(index, |parameter, view| {
        let described = NVTEXParameter {
            struct_size: size_of::<NVTEXParameter>(),
            name: view.name.as_ptr(),
            shape: Shape::new(&parameter.dims).to_c(),
            dtype: MaybeUninit::new(parameter.dtype),
            value: view.value(),
            quantized: MaybeUninit::new(parameter.format.is_some()),
            whole_shape: Shape::new(&parameter.shard.whole).to_c(),
            shared_dimension: parameter.shard.dim,
            num_pieces: view.pieces.len(),
            pieces: view.pieces.as_ptr(),
        };
        // SAFETY: the caller vouches for the struct.
        unsafe { fill("parameter", out, described) }
    })
}

fn set_parameter(module: NVTEXModule, index: usize, value: NVTETensor) -> Result<()> {
    let module = open(&MODULES, "module", module)?;
    let value = check::tensor("value", value)?;
    module.parameter(index, |parameter, view| {
        parameter.bind("value", &value)?;
        TENSORS.write("value", view.value(), |tensor| *tensor = value)
    })
}

fn assign_parameter(
    module: NVTEXModule,
    index: usize,
    value: NVTETensor,
    stream: cudaStream_t,
) -> Result<()> {
    let module = open(&MODULES, "module", module)?;
    let value = check::tensor("value", value)?;
    module.parameter(index, |parameter, _| {
        parameter.check("value", &value, check::HIGH_PRECISION)?;
        parameter.assign(&module.run(stream), &value, false)
    })
}

/// # Safety
/// `value` has `count` floats.
unsafe fn initial_value(
    module: NVTEXModule,
    index: usize,
    value: *mut f32,
    count: usize,
) -> Result<()> {
    let module = open(&MODULES, "module", module)?;
    check::array("value", value, ("count", count))?;
    module.parameter(index, |parameter, _| {
        if count != parameter.numel() {
            return Err(Error::argument("count", parameter.numel(), count));
        }
        // SAFETY: the caller vouches for the array.
        unsafe { std::ptr::copy_nonoverlapping(parameter.initial()?.as_ptr(), value, count) };
        Ok(())
    })
}

fn precision(
    module: NVTEXModule,
    index: usize,
    role: NVTEXRole,
    choice: *mut NVTEXSlotChoice,
) -> Result<()> {
    let module = open(&MODULES, "module", module)?;
    check::address("choice", choice)?;
    module.parameter(index, |parameter, view| {
        let Some(roles) = &parameter.multiplied else {
            let expected = "a weight whose products a forward pass has computed";
            let got = format!("{} ({:?}), which has no such products", index, view.name);
            return Err(Error::argument("index", expected, got));
        };
        let quantizer = &roles[role as usize];
        let high = quantizer.is_none();
        let dtype = if high { parameter.dtype } else { quantizer.dtype };
        let (options, scaling) = slot_choice(quantizer);
        // SAFETY: not null, and the caller vouches for the struct.
        unsafe {
            choice.write(NVTEXSlotChoice {
                scaling: MaybeUninit::new(scaling),
                dtype: MaybeUninit::new(dtype),
                options,
            });
        }
        Ok(())
    })
}

fn set_gradient(
    module: NVTEXModule,
    index: usize,
    grad: NVTETensor,
    accumulate: bool,
) -> Result<()> {
    let module = open(&MODULES, "module", module)?;
    let grad = if grad.is_null() { None } else { Some(check::tensor("grad", grad)?) };
    module.parameter(index, |parameter, _| parameter.bind_grad("grad", grad.as_ref(), accumulate))
}
