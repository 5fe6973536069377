//! Recipes, contexts and modules: FP8 training of Transformers on top of the operators (spec: modules).
//! Nothing here touches device memory but through operators, so that every backend runs it.

mod attention;
mod attention_fp8;
mod context;
mod dense;
mod grouped;
mod kv_cache;
mod layer;
mod linear;
mod memory;
mod mlp;
mod norm;
mod ops;
mod parameter;
mod quantizer;
mod recipe;
mod state;

pub use attention::{
    AttentionConfig, DotProductAttention, HeadNorm, MultiheadAttention, MultiheadConfig,
};
pub use context::{Context, Frame, Microbatch, ReduceMax, Run};
pub use dense::DenseConfig;
pub use grouped::GroupedLinear;
pub use kv_cache::{CacheConfig, KvCache};
pub use layer::{INTER_ATTENTION_SITE, LayerConfig, TransformerLayer};
pub use linear::Linear;
pub use memory::{Callbacks, Lifetime, lock};
pub use mlp::{LayerNormMlp, MlpConfig};
pub use norm::{NormConfig, NormLayer};
pub use ops::{Activation, Norm, upload};
pub use parameter::{Parameter, splitmix};
pub use quantizer::{Quantizer, Scaling};
pub use recipe::{BackwardOperands, Choose, Group, Kind, Recipe, Role, RoleOptions, Rule};
pub use state::Pass;

use crate::check;
use crate::error::{Error, Result};
use crate::tensor::Tensor;
use crate::types::NVTEDType;
use std::any::Any;

/// Tensors of a call; none where the caller gave null.
pub type Tensors<'a> = &'a [Option<Tensor>];

/// What a forward pass leaves for its backward pass.
pub type Saved = Box<dyn Any + Send>;

/// A module.
pub trait Layer: Send {
    /// Numbers of inputs and outputs.
    fn arity(&self) -> (usize, usize);

    fn forward(&mut self, run: &Run, inputs: Tensors, outputs: Tensors) -> Result<Saved>;

    /// Gradients of the inputs, where asked for, and of the parameters, where bound.
    fn backward(
        &mut self,
        run: &Run,
        saved: &(dyn Any + Send),
        grad_outputs: Tensors,
        grad_inputs: Tensors,
    ) -> Result<()>;

    /// In a fixed order, with the names of the parts that they belong to.
    fn parameters(&mut self) -> Vec<(String, &mut Parameter)>;
}

/// The saved values of a module's own forward pass.
fn saved<T: 'static>(saved: &(dyn Any + Send)) -> Result<&T> {
    saved.downcast_ref().ok_or_else(|| {
        Error::argument("tape", "a tape of this module", "that of a module of another kind")
    })
}

/// A tensor in high precision as a matrix of `cols` columns, and its rows.
fn rows_of(
    name: &str,
    tensor: Option<&Tensor>,
    dtype: NVTEDType,
    cols: usize,
) -> Result<(Tensor, usize)> {
    let Some(tensor) = tensor else {
        return Err(Error::argument(name, "a tensor handle", "null"));
    };
    check::input(name, tensor)?;
    check::dtype(name, tensor.dtype(), &[dtype])?;
    let shape = tensor.rowwise.shape;
    let (rows, last) = shape.flatten();
    if last != cols || rows == 0 {
        let expected = format!("[..., {cols}] with at least one row");
        return Err(Error::argument(format!("{name}.shape"), expected, shape));
    }
    Ok((parameter::matrix(tensor, (rows, cols)), rows))
}

/// As [`rows_of`], of a given number of rows.
fn matrix_of(
    name: &str,
    tensor: Option<&Tensor>,
    dtype: NVTEDType,
    (rows, cols): (usize, usize),
) -> Result<Tensor> {
    let (matrix, got) = rows_of(name, tensor, dtype, cols)?;
    if got != rows {
        return Err(Error::argument(format!("{name}.shape"), format!("{rows} rows"), got));
    }
    Ok(matrix)
}

/// As [`matrix_of`], none for null.
fn optional_matrix(
    name: &str,
    tensor: Option<&Tensor>,
    dtype: NVTEDType,
    shape: (usize, usize),
) -> Result<Option<Tensor>> {
    tensor.map(|tensor| matrix_of(name, Some(tensor), dtype, shape)).transpose()
}

/// Parameters of a part with a prefix.
fn named<'a>(
    prefix: &str,
    parameters: impl IntoIterator<Item = &'a mut Parameter>,
) -> Vec<(String, &'a mut Parameter)> {
    parameters.into_iter().map(|p| (format!("{prefix}{}", p.name), p)).collect()
}
