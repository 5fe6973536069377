//! Recipes, contexts and modules: FP8 training of Transformers on top of the operators (spec: modules).
//! Nothing here touches device memory but through operators, so that every backend runs it.

mod attention;
mod attention_fp8;
mod branch;
pub mod callback;
pub mod capi;
mod context;
mod context_parallel;
mod dense;
mod embedding;
mod expert_linear;
mod grouped;
mod head;
mod kv_cache;
mod layer;
mod linear;
pub mod memory;
mod mlp;
mod moe;
mod norm;
pub mod ops;
mod parameter;
mod quantizer;
mod recipe;
mod sequential;
pub mod sharded;
mod split;
mod state;

pub use attention::{
    AttentionConfig, DotProductAttention, HeadNorm, MultiheadAttention, MultiheadConfig,
};
pub use branch::BranchConfig;
pub use context::{Context, Frame, Microbatch, ReduceMax, Run};
pub use context_parallel::{ContextParallelKind, rearrange};
pub use dense::DenseConfig;
pub use embedding::{Embedding, EmbeddingConfig};
pub use grouped::GroupedLinear;
pub use head::{HeadConfig, LmHead};
pub use kv_cache::{CacheConfig, KvCache};
pub use layer::{INTER_ATTENTION_SITE, LayerConfig, TransformerLayer};
pub use linear::Linear;
pub use memory::{Callbacks, Lifetime, host_room, lock};
pub use mlp::{LayerNormMlp, MlpConfig};
pub use moe::{Moe, MoeConfig};
pub use norm::{NormConfig, NormLayer};
pub use ops::{Activation, Norm, upload};
pub use parameter::{Division, Gradient, Parameter, splitmix};
pub use quantizer::{Quantizer, Scaling};
pub use recipe::{BackwardOperands, Choose, Group, Kind, Recipe, Role, RoleOptions, Rule};
pub use sequential::{Part, Sequential};
pub use split::{Piece, Shard, Side, Spread};
pub use state::Pass;

use crate::check::{self, Memory};
use crate::error::{Error, Kind as ErrorKind, Result};
use crate::tensor::{Buffer, Shape, Tensor};
use crate::types::NVTEDType;
use std::any::Any;
use std::fmt::{self, Display, Formatter};
use std::sync::{Arc, Mutex};

/// Tensors of a call; none where the caller gave null.
pub struct Tensors {
    /// The name of this list in the call, such as `inputs`.
    pub name: &'static str,
    pub list: Vec<Option<Tensor>>,
}

impl Tensors {
    fn find(&self, index: usize) -> Option<Argument<'_>> {
        let tensor = self.list.get(index)?.as_ref()?;
        Some(Argument { list: self.name, index, tensor })
    }

    fn get(&self, index: usize) -> Result<Argument<'_>> {
        let name = format_args!("{}[{index}]", self.name);
        self.find(index).ok_or_else(|| Error::argument(name, "a tensor handle", "null"))
    }

    /// Refuses outputs that share memory with an input or with each other: operators write them while
    /// others still read.
    pub fn apart(inputs: &Self, outputs: &Self) -> Result<()> {
        fn of<'a>(arguments: &'a [Argument<'a>]) -> Vec<Memory<'a>> {
            arguments.iter().map(|x| Memory::of(x, &x.tensor.rowwise)).collect()
        }
        let [inputs, outputs] = [inputs, outputs].map(|tensors| -> Vec<_> {
            (0..tensors.list.len()).filter_map(|i| tensors.find(i)).collect()
        });
        check::apart(&of(&inputs), &of(&outputs))
    }

    /// As [`Argument::matrix`], none for null.
    fn find_matrix(
        &self,
        index: usize,
        dtype: NVTEDType,
        shape: (usize, usize),
    ) -> Result<Option<Tensor>> {
        self.find(index).map(|tensor| tensor.matrix(dtype, shape)).transpose()
    }
}

/// One tensor of a list of the call, which errors name by its place: `inputs[0]`.
struct Argument<'a> {
    list: &'static str,
    index: usize,
    tensor: &'a Tensor,
}

impl Display for Argument<'_> {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        write!(f, "{}[{}]", self.list, self.index)
    }
}

impl Argument<'_> {
    /// Data in high precision, of any shape.
    fn data(&self, dtype: NVTEDType) -> Result<Buffer> {
        check::input(self, self.tensor)?;
        check::dtype(self, self.tensor.dtype(), &[dtype])?;
        Ok(self.tensor.rowwise)
    }

    /// Data in high precision as a matrix of `cols` columns, and its rows.
    fn rows(&self, dtype: NVTEDType, cols: usize) -> Result<(Tensor, usize)> {
        let shape = self.data(dtype)?.shape;
        let (rows, last) = shape.flatten();
        if last != cols || rows == 0 {
            let expected = format!("[..., {cols}] with at least one row");
            return Err(Error::argument(format!("{self}.shape"), expected, shape));
        }
        Ok((parameter::matrix(self.tensor, (rows, cols)), rows))
    }

    /// As [`Self::rows`], of a given number of rows.
    fn matrix(&self, dtype: NVTEDType, (rows, cols): (usize, usize)) -> Result<Tensor> {
        let (matrix, got) = self.rows(dtype, cols)?;
        if got != rows {
            return Err(Error::argument(format!("{self}.shape"), format!("{rows} rows"), got));
        }
        Ok(matrix)
    }
}

/// What a forward pass leaves for its backward pass.
pub type Tape = dyn Any + Send;
pub type Saved = Box<Tape>;

/// A module.
pub trait Layer: Send {
    /// Numbers of inputs and outputs.
    fn arity(&self) -> (usize, usize);

    /// Shape and dtype of the first output, for a first input that the layer takes.
    fn output(&self, input: &Buffer) -> (Shape, NVTEDType) {
        (input.shape, input.dtype)
    }

    /// The heads of queries, and those of keys and values, that the layer's self attention has on all ranks together.
    fn heads(&self) -> Option<(usize, usize)> {
        None
    }

    /// How far apart the random numbers of this layer and of the next one begin.
    fn sites(&self) -> u32 {
        128
    }

    fn forward(&mut self, run: &Run, inputs: &Tensors, outputs: &Tensors) -> Result<Saved>;

    /// Computes the gradients of the inputs that are asked for, and of the parameters that are bound,
    /// from the gradients of the outputs.
    fn backward(&mut self, run: &Run, tape: &Tape, grads: [&Tensors; 2]) -> Result<()>;

    /// The parameters in a fixed order, with the names of the parts that they belong to.
    fn parameters(&mut self) -> Vec<(String, &mut Parameter)>;

    /// Whether forward passes of training compute all gradients.
    fn has_gradients_in_forward(&self) -> bool {
        false
    }

    /// Whether backward passes read parameters.
    fn reads_in_backward(&self) -> bool {
        true
    }

    /// What comes for a layer that is not running, so that it can prepare itself beside the one that is.
    fn prepare(&mut self, _run: &Run, _coming: Coming) -> Result<()> {
        Ok(())
    }

    /// Another layer whose parameters this one uses.
    fn tied(&self) -> Option<SharedLayer> {
        None
    }
}

/// The next pass of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coming {
    Forward,
    Backward,
    /// None comes in this call, which has ended or failed.
    Nothing,
}

/// A layer that several modules may refer to.
pub type SharedLayer = Arc<Mutex<Box<dyn Layer>>>;

/// The saved values of a module's own forward pass.
fn saved<T: 'static>(tape: &Tape) -> Result<&T> {
    tape.downcast_ref().ok_or_else(|| Error {
        kind: ErrorKind::Internal,
        message: "internal error: a tape does not hold what its module has saved".into(),
    })
}

/// A shape with another last dimension.
fn with_last(shape: &Shape, last: usize) -> Shape {
    let dims = shape.dims();
    let before = &dims[..dims.len().saturating_sub(1)];
    Shape::new(&before.iter().copied().chain([last]).collect::<Vec<_>>())
}

/// Parameters of a part with a prefix.
fn named<'a>(
    prefix: &str,
    parameters: impl IntoIterator<Item = &'a mut Parameter>,
) -> Vec<(String, &'a mut Parameter)> {
    parameters.into_iter().map(|p| (format!("{prefix}{}", p.name), p)).collect()
}
