//! Modules, their parameters and their passes.

use crate::error::{Error, Result, call, quietly};
use crate::generated::{DType, Microbatch, Role, RotaryConfig, SlotScaling};
use crate::tensor::AnyTensor;
use crate::{Context, Stream, Tensor};
use nvte_sys as sys;
use std::ffi::CStr;
use std::marker::PhantomData;
use std::{fmt, ptr};

/// Makes a type of module: a [`Module`] that is created from a config of its own.
macro_rules! module {
    ($(#[$docs:meta])* $name:ident, $config:ident, $create:ident) => {
        $(#[$docs])*
        #[derive(Debug)]
        pub struct $name<'c>(crate::module::Module<'c>);

        impl<'c> $name<'c> {
            /// Creates the module in a context, on a stream.
            pub fn new(
                context: &'c crate::Context,
                config: &$config,
                stream: &crate::Stream,
            ) -> crate::Result<Self> {
                // SAFETY: the config is one of this size, and is read before the function returns.
                let create = || unsafe {
                    sys::$create(context.raw(), &config.raw, stream.raw())
                };
                Ok(Self(crate::module::Module::of(context, create)?))
            }
        }

        impl<'c> std::ops::Deref for $name<'c> {
            type Target = crate::module::Module<'c>;

            fn deref(&self) -> &Self::Target {
                &self.0
            }
        }
    };
}
pub(crate) use module;

/// A module of any kind. The types of modules, such as [`Linear`](crate::Linear), dereference to it.
pub struct Module<'c> {
    handle: sys::NVTEXModule,
    context: PhantomData<&'c Context>,
}

impl<'c> Module<'c> {
    pub(crate) fn of(
        _context: &'c Context,
        create: impl FnOnce() -> sys::NVTEXModule,
    ) -> Result<Self> {
        Ok(Module { handle: call(create)?, context: PhantomData })
    }

    /// Runs the forward pass, and returns a tape for the backward pass.
    ///
    /// `outputs` are written; the tape may refer to inputs and outputs, which must stay as they are until the backward
    /// pass is done. The module's documentation says which tensors there are; optional ones at the end may be missing.
    pub fn forward<'t>(
        &self,
        inputs: &[&'t dyn AnyTensor],
        outputs: &[&'t dyn AnyTensor],
        step: &Step<'t>,
        stream: &Stream,
    ) -> Result<Tape<'t>> {
        let mut tape = Tape { handle: ptr::null_mut(), tensors: PhantomData };
        self.run(inputs, outputs, step, &mut tape.handle, stream)?;
        Ok(tape)
    }

    /// Runs the forward pass alone, for inference.
    pub fn infer(
        &self,
        inputs: &[&dyn AnyTensor],
        outputs: &[&dyn AnyTensor],
        step: &Step<'_>,
        stream: &Stream,
    ) -> Result<()> {
        self.run(inputs, outputs, step, ptr::null_mut(), stream)
    }

    fn run(
        &self,
        inputs: &[&dyn AnyTensor],
        outputs: &[&dyn AnyTensor],
        step: &Step<'_>,
        tape: *mut sys::NVTEXTape,
        stream: &Stream,
    ) -> Result<()> {
        let (inputs, outputs) = (handles(inputs), handles(outputs));
        // SAFETY: the arrays have the lengths that are given; the library checks the rest. A tape refers to memory of
        // the tensors, which its lifetime keeps.
        call(|| unsafe {
            sys::nvtex_module_forward(
                self.handle,
                inputs.as_ptr(),
                inputs.len(),
                outputs.as_ptr(),
                outputs.len(),
                &step.raw,
                tape,
                stream.raw(),
            );
        })
    }

    /// Runs the backward pass: writes the gradients of the inputs to `grad_inputs`, and those of parameters to the
    /// tensors that are bound. The tape stays, and may be used again.
    pub fn backward(
        &self,
        tape: &Tape<'_>,
        grad_outputs: &[&dyn AnyTensor],
        grad_inputs: &[&dyn AnyTensor],
        stream: &Stream,
    ) -> Result<()> {
        let (grad_outputs, grad_inputs) = (handles(grad_outputs), handles(grad_inputs));
        // SAFETY: as in `run`.
        call(|| unsafe {
            sys::nvtex_module_backward(
                self.handle,
                tape.handle,
                grad_outputs.as_ptr(),
                grad_outputs.len(),
                grad_inputs.as_ptr(),
                grad_inputs.len(),
                stream.raw(),
            );
        })
    }

    /// Describes the parameters, in order.
    pub fn parameters(&self) -> Result<Vec<Parameter>> {
        // SAFETY: the handle is valid.
        let count = call(|| unsafe { sys::nvtex_module_num_parameters(self.handle) })?;
        (0..count).map(|index| self.parameter(index)).collect()
    }

    /// Describes a parameter.
    pub fn parameter(&self, index: usize) -> Result<Parameter> {
        // SAFETY: zeros are a value of this struct; the function writes as much as it says.
        let raw = unsafe {
            let mut raw: sys::NVTEXParameter = std::mem::zeroed();
            raw.struct_size = size_of_val(&raw);
            call(|| sys::nvtex_module_parameter(self.handle, index, &mut raw))?;
            raw
        };
        // SAFETY: the name is valid until the module is destroyed, and copied here.
        let name = unsafe { CStr::from_ptr(raw.name) }.to_string_lossy().into_owned();
        let shape = raw.shape.data[..raw.shape.ndim].to_vec();
        let dtype = DType::from_c(raw.dtype);
        let dtype = dtype.ok_or_else(|| {
            Error::argument(format!("parameter {name}: unknown dtype {}", raw.dtype))
        })?;
        Ok(Parameter { index, name, shape, dtype, quantized: raw.quantized })
    }

    /// Copies a tensor (Float32, Float16 or BFloat16) to the value of a parameter, and casts it.
    pub fn assign(&self, index: usize, value: &dyn AnyTensor, stream: &Stream) -> Result<()> {
        // SAFETY: the handles are valid, and the library checks shape and dtype.
        call(|| unsafe {
            sys::nvtex_module_assign_parameter(self.handle, index, value.raw(), stream.raw());
        })
    }

    /// Writes the value of a parameter to a tensor of its shape, Float32, Float16 or BFloat16.
    pub fn read(&self, index: usize, value: &dyn AnyTensor, stream: &Stream) -> Result<()> {
        // SAFETY: as in `parameter`; the value is valid until the module is destroyed.
        call(|| unsafe {
            let mut raw: sys::NVTEXParameter = std::mem::zeroed();
            raw.struct_size = size_of_val(&raw);
            sys::nvtex_module_parameter(self.handle, index, &mut raw);
            match raw.quantized {
                true => sys::nvte_dequantize(raw.value, value.raw(), stream.raw()),
                false => {
                    let (to, config) = (value.raw(), ptr::null_mut());
                    sys::nvte_quantize_v2(raw.value, to, config, stream.raw());
                }
            }
        })
    }

    /// Binds the value of a parameter to a tensor of its shape and dtype, which every pass reads from then on.
    pub fn bind(&self, index: usize, value: &'c dyn AnyTensor) -> Result<()> {
        // SAFETY: the tensor lives as long as the module can.
        call(|| unsafe { sys::nvtex_module_set_parameter(self.handle, index, value.raw()) })
    }

    /// Binds the gradient of a parameter to a tensor of its shape, of its dtype or Float32. Backward passes write
    /// there, or add if `accumulate`. Bind it before the forward pass.
    pub fn bind_gradient(
        &self,
        index: usize,
        grad: &'c dyn AnyTensor,
        accumulate: bool,
    ) -> Result<()> {
        // SAFETY: the tensor lives as long as the module can.
        call(|| unsafe {
            sys::nvtex_module_set_gradient(self.handle, index, grad.raw(), accumulate);
        })
    }

    /// The initial value of a parameter, before rounding.
    pub fn initial_value(&self, index: usize) -> Result<Vec<f32>> {
        let mut value = vec![0.0; self.parameter(index)?.shape.iter().product()];
        let (to, count) = (value.as_mut_ptr(), value.len());
        // SAFETY: there is room for so many floats.
        call(|| unsafe { sys::nvtex_module_initial_value(self.handle, index, to, count) })?;
        Ok(value)
    }

    /// Tells how an operand of the products of a weight was cast in the last forward pass.
    pub fn precision(&self, index: usize, role: Role) -> Result<Precision> {
        // SAFETY: zeros are a value of this struct, which the function fills.
        let raw = unsafe {
            let mut raw: sys::NVTEXSlotChoice = std::mem::zeroed();
            call(|| sys::nvtex_module_precision(self.handle, index, role as i32, &mut raw))?;
            raw
        };
        let unknown = || Error::argument("precision: the library is newer than this crate");
        Ok(Precision {
            scaling: SlotScaling::from_c(raw.scaling).ok_or_else(unknown)?,
            dtype: DType::from_c(raw.dtype).ok_or_else(unknown)?,
        })
    }

    /// The handle as C has it, which lives as long as the module.
    pub fn raw(&self) -> sys::NVTEXModule {
        self.handle
    }
}

/// Modules in a row: the first output of each is the first input of the next.
///
/// Inputs are those of the first module, followed by those of the last one but its first; outputs are those of the last
/// one. Parameters are those of all modules, with the name of the part in front: `layer0.weight`.
#[derive(Debug)]
pub struct Sequential<'c>(Module<'c>);

impl<'c> Sequential<'c> {
    /// Creates the row from named parts, which it keeps alive. Names are unique and have no dots.
    pub fn new(context: &'c Context, parts: &[(&str, &'c Module<'c>)]) -> Result<Self> {
        let mut names = crate::config::Names::default();
        let texts: Vec<_> = parts.iter().map(|(name, _)| names.add(name)).collect();
        let modules: Vec<_> = parts.iter().map(|(_, module)| module.handle).collect();
        // SAFETY: both arrays have this length, and are read before the function returns.
        let create = || unsafe {
            let (modules, texts) = (modules.as_ptr(), texts.as_ptr());
            sys::nvtex_sequential_create(context.raw(), modules, texts, parts.len())
        };
        Ok(Sequential(Module::of(context, create)?))
    }
}

impl<'c> std::ops::Deref for Sequential<'c> {
    type Target = Module<'c>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

fn handles(tensors: &[&dyn AnyTensor]) -> Vec<sys::NVTETensor> {
    tensors.iter().map(|tensor| tensor.raw()).collect()
}

impl Drop for Module<'_> {
    fn drop(&mut self) {
        // SAFETY: it was created by a function of the library.
        quietly(|| unsafe { sys::nvtex_module_destroy(self.handle) });
    }
}

impl fmt::Debug for Module<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Module").field(&self.handle).finish()
    }
}

/// What a backward pass needs. Several may be in flight.
///
/// It keeps the tensors of its forward pass borrowed:
///
/// ```compile_fail,E0505
/// # use nvte::*;
/// # fn f(linear: &Linear, x: Tensor<f32>, y: &Tensor<f32>, stream: &Stream) -> Result<()> {
/// let tape = linear.forward(&[&x], &[y], &Step::new(), stream)?;
/// drop(x);
/// linear.backward(&tape, &[y], &[], stream)
/// # }
/// ```
pub struct Tape<'t> {
    handle: sys::NVTEXTape,
    tensors: PhantomData<&'t dyn AnyTensor>,
}

impl Drop for Tape<'_> {
    fn drop(&mut self) {
        // SAFETY: it came from a forward pass, or is null, which the function ignores.
        quietly(|| unsafe { sys::nvtex_tape_destroy(self.handle) });
    }
}

impl fmt::Debug for Tape<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tape").field(&self.handle).finish()
    }
}

/// A parameter of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Parameter {
    /// Its number in the module.
    pub index: usize,
    /// Its name, unique in the module.
    pub name: String,
    /// Its dimensions.
    pub shape: Vec<usize>,
    /// Its type in high precision.
    pub dtype: DType,
    /// Its value exists in FP8 alone.
    pub quantized: bool,
}

/// How an operand of a product was cast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Precision {
    /// How it was scaled, or that it stayed in high precision.
    pub scaling: SlotScaling,
    /// The type of its elements.
    pub dtype: DType,
}

/// Options of a forward pass; its backward pass has the same.
#[derive(Clone, Debug)]
pub struct Step<'s> {
    raw: sys::NVTEXStep,
    tensors: PhantomData<&'s dyn AnyTensor>,
}

impl Default for Step<'_> {
    fn default() -> Self {
        Self::new()
    }
}

impl<'s> Step<'s> {
    /// Makes options with the library's defaults.
    pub fn new() -> Self {
        // SAFETY: the function writes a step of this size.
        let raw = crate::config::initialized(|raw, size| unsafe {
            sys::nvtex_step_init(raw, size);
        });
        Step { raw, tensors: PhantomData }
    }

    /// The place among the microbatches that share their weights.
    pub fn microbatch(mut self, microbatch: Microbatch) -> Self {
        self.raw.microbatch = microbatch as i32;
        self
    }

    /// Seed and offset of the random numbers, two Int64, needed if there is dropout.
    pub fn rng_state(mut self, state: &'s dyn AnyTensor) -> Self {
        self.raw.rng_state = state.raw();
        self
    }

    /// Angles of rotary embeddings, Float32 `[length, 1, 1, d2]`.
    pub fn rotary_frequencies(mut self, frequencies: &'s dyn AnyTensor) -> Self {
        self.raw.rotary_frequencies = frequencies.raw();
        self
    }

    /// Where the sequences of queries, and those of keys and values, begin: Int32 `[b + 1]`.
    pub fn cu_seqlens(mut self, queries: &'s dyn AnyTensor, keys: &'s dyn AnyTensor) -> Self {
        self.raw.cu_seqlens_q = queries.raw();
        self.raw.cu_seqlens_kv = keys.raw();
        self
    }

    /// The longest sequences of packed tokens.
    pub fn max_seqlens(mut self, queries: usize, keys: usize) -> Self {
        self.raw.max_seqlen_q = queries;
        self.raw.max_seqlen_kv = keys;
        self
    }

    /// Rows of each part of a grouped linear layer.
    pub fn m_splits(mut self, splits: &'s [usize]) -> Self {
        self.raw.m_splits = splits.as_ptr();
        self.raw.num_splits = splits.len();
        self
    }
}

/// Writes the angles of rotary embeddings to Float32 `[rows, 1, 1, d2]`, for [`Step::rotary_frequencies`].
pub fn rotary_frequencies(
    frequencies: &Tensor<f32>,
    config: &RotaryConfig,
    stream: &Stream,
) -> Result<()> {
    // SAFETY: the handle is valid, and the config is one of this size.
    call(|| unsafe {
        sys::nvtex_rotary_frequencies(frequencies.raw(), &config.raw, stream.raw());
    })
}
