#![doc = include_str!("../README.md")]
#![warn(missing_docs)]

use candle_core::{CpuStorage, CustomOp2, Error, Layout, Result, Shape, Tensor, bail};
use nvte::{AnyTensor, Context, Module, Recipe, Step, Stream};
use std::fmt::Display;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A module as an operator of candle: `forward(x, parameters)`, with gradients of both. `parameters` is a vector of the
/// elements of all parameters of the module, in its order.
///
/// Tensors are Float32 on the CPU. If the backend of nvte is a GPU, inputs and results are copied.
#[derive(Clone)]
pub struct ModuleOp(Arc<Mutex<Inner>>);

struct Inner {
    module: Box<dyn Deref<Target = Module<'static>>>,
    context: &'static Context,
    recipe: Option<Recipe>,
    /// Where backward passes write the gradients of parameters.
    gradients: Vec<&'static nvte::Tensor<f32>>,
    outputs: usize,
    stream: Stream,
}

// SAFETY: handles may be used by any thread, one at a time, which the mutex around this sees to.
unsafe impl Send for Inner {}

fn from_nvte(error: impl Display) -> Error {
    Error::Msg(error.to_string())
}

/// A context that lives as long as the process, since candle keeps operators for as long as it wants.
pub fn context() -> nvte::Result<&'static Context> {
    Ok(Box::leak(Box::new(Context::new()?)))
}

impl ModuleOp {
    /// Makes an operator of a module. Rows of its output have `outputs` elements. With a recipe its products are computed
    /// in FP8; recipes with a history of maxima (delayed scaling) are none for an operator without state.
    pub fn new(
        context: &'static Context,
        module: impl Deref<Target = Module<'static>> + 'static,
        outputs: usize,
        recipe: Option<Recipe>,
    ) -> nvte::Result<Self> {
        let stream = Stream::default();
        let mut gradients = Vec::new();
        for parameter in module.parameters()? {
            let gradient = nvte::Tensor::<f32>::zeros(&parameter.shape, &stream)?;
            let gradient: &'static _ = Box::leak(Box::new(gradient));
            module.bind_gradient(parameter.index, gradient, false)?;
            gradients.push(gradient);
        }
        let module = Box::new(module);
        let inner = Inner { module, context, recipe, gradients, outputs, stream };
        Ok(Self(Arc::new(Mutex::new(inner))))
    }

    /// The initial values of all parameters, one behind the other.
    pub fn initial_values(&self) -> nvte::Result<Vec<f32>> {
        let inner = self.inner();
        let indices = 0..inner.gradients.len();
        let values = indices.map(|index| inner.module.initial_value(index));
        Ok(values.collect::<nvte::Result<Vec<_>>>()?.concat())
    }

    /// Applies the module to `x`, with these parameters.
    pub fn forward(&self, x: &Tensor, parameters: &Tensor) -> Result<Tensor> {
        x.contiguous()?.apply_op2(&parameters.contiguous()?, self.clone())
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Gives the module its parameters.
    fn assign(&self, mut values: &[f32]) -> Result<()> {
        let count: usize = self.gradients.iter().map(|gradient| gradient.len()).sum();
        if values.len() != count {
            bail!("parameters: expected {count} elements, got {}", values.len());
        }
        for (index, gradient) in self.gradients.iter().enumerate() {
            let (own, rest) = values.split_at(gradient.len());
            let value = nvte::Tensor::from_slice(own, gradient.dims(), &self.stream);
            let assigned = value.and_then(|v| self.module.assign(index, &v, &self.stream));
            assigned.map_err(from_nvte)?;
            values = rest;
        }
        Ok(())
    }

    /// Calls `body` in a region of the recipe.
    fn region<T>(&self, body: impl FnOnce() -> nvte::Result<T>) -> Result<T> {
        let result = match &self.recipe {
            Some(recipe) => self.context.autocast(recipe, body).and_then(|result| result),
            None => body(),
        };
        result.map_err(from_nvte)
    }

    fn output_shape(&self, x: &[usize]) -> Vec<usize> {
        x[..x.len() - 1].iter().copied().chain([self.outputs]).collect()
    }
}

fn floats<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [f32]> {
    match layout.contiguous_offsets() {
        Some((first, end)) => Ok(&storage.as_slice::<f32>()?[first..end]),
        None => bail!("expected contiguous elements"),
    }
}

impl CustomOp2 for ModuleOp {
    fn name(&self) -> &'static str {
        "nvte-module"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        parameters: &CpuStorage,
        parameters_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let inner = self.inner();
        inner.assign(floats(parameters, parameters_layout)?)?;
        let dims = x_layout.dims();
        let (values, shape) = (floats(x, x_layout)?, inner.output_shape(dims));
        let output = inner.region(|| {
            let x = nvte::Tensor::from_slice(values, dims, &inner.stream)?;
            let y = nvte::Tensor::<f32>::zeros(&shape, &inner.stream)?;
            inner.module.infer(&[&x], &[&y], &Step::new(), &inner.stream)?;
            y.to_vec(&inner.stream)
        })?;
        Ok((CpuStorage::F32(output), Shape::from(shape)))
    }

    fn bwd(
        &self,
        x: &Tensor,
        parameters: &Tensor,
        _output: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let host = |tensor: &Tensor| tensor.flatten_all()?.to_vec1::<f32>();
        let (dims, values, dy) = (x.dims(), host(x)?, host(gradient)?);
        let inner = self.inner();
        inner.assign(&host(parameters)?)?;
        let stream = &inner.stream;
        let shape = inner.output_shape(dims);
        let (dx, of_parameters) = inner.region(|| {
            let x = nvte::Tensor::from_slice(&values, dims, stream)?;
            let y = nvte::Tensor::<f32>::zeros(&shape, stream)?;
            // The forward pass again: an operator keeps nothing between the two.
            let tape = inner.module.forward(&[&x], &[&y], &Step::new(), stream)?;
            let dy = nvte::Tensor::from_slice(&dy, &shape, stream)?;
            let dx = nvte::Tensor::<f32>::zeros(dims, stream)?;
            inner.module.backward(&tape, &[&dy], &[&dx], stream)?;
            let all = inner.gradients.iter().map(|gradient| gradient.to_vec(stream));
            Ok((dx.to_vec(stream)?, all.collect::<nvte::Result<Vec<_>>>()?.concat()))
        })?;
        let of_x = Tensor::from_vec(dx, dims, x.device())?;
        let count = of_parameters.len();
        Ok((Some(of_x), Some(Tensor::from_vec(of_parameters, count, x.device())?)))
    }
}
