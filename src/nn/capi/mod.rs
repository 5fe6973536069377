//! What C sees of the layers (module.h): each file has the structs of one subject, its C functions and their
//! checks. Handles are opened here.
#![allow(unsafe_code)]

pub(crate) mod config;
mod context;
mod context_parallel;
pub(crate) mod create;
mod experts;
mod kv_cache;
pub(crate) mod layers;
pub(crate) mod model;
mod parameters;
mod recipe;
mod rotary;
mod step;

use crate::backend::policy::{self, Policy};
use crate::check::{self, truth};
use crate::error::{Error, Handle, Result, guard};
use crate::handle::{Kind as HandleKind, Slab};
use crate::nn::*;
use crate::parallel::exports::NVTEXGridGroup::NVTEX_GRID_TP;
use crate::tensor::{Buffer, Shape, TENSORS, from_c, from_c_enum};
use crate::types::*;
use crate::verbose::{self, Level};
use config::*;
use context::*;
use create::{Build, ModuleConfig, create, deviation, high_precision, spread_of};
use experts::NVTEXMoeConfig;
use kv_cache::*;
use layers::*;
use parameters::*;
use recipe::*;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt::{self, Display, Formatter};
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex};
use step::*;

pub(crate) use context::NVTEXContext;
pub(crate) use parameters::{NVTEXModule, NVTEXModule_st};
pub(crate) use recipe::NVTEXRecipe;
pub(crate) use step::{NVTEXStep, NVTEXTape, backward, forward};

pub static RECIPES: Slab<Arc<Recipe>, NVTEXRecipe_st> = Slab::new(HandleKind::Recipe);

pub static CONTEXTS: Slab<Arc<Context>, NVTEXContext_st> = Slab::new(HandleKind::Context);

pub static MODULES: Slab<Arc<Module>, NVTEXModule_st> = Slab::new(HandleKind::Module);

pub static TAPES: Slab<Arc<Tape>, NVTEXTape_st> = Slab::new(HandleKind::Tape);

pub static KV_CACHES: Slab<Arc<KvCache>, NVTEXKVCache_st> = Slab::new(HandleKind::KvCache);

/// A module with its place in a context.
pub struct Module {
    context: Arc<Context>,
    name: Arc<str>,
    /// The beginning of names that are made up for modules of this kind.
    kind: &'static str,
    layer: SharedLayer,
    parameters: Vec<View>,
    /// The modules in a row that this one stands for, with the names that it gives them.
    parts: Vec<(String, Arc<Module>)>,
}

/// What C holds of a parameter: its name in the module, and a tensor that refers to its value.
struct View {
    name: CString,
    value: Arc<Value>,
    /// What this rank has of the parameter.
    pieces: Arc<[NVTEXParameterPiece]>,
}

/// The handle of a tensor.
struct Value(usize);

impl View {
    fn value(&self) -> NVTETensor {
        self.value.0 as NVTETensor
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        let _ = TENSORS.remove("value", self.0 as NVTETensor);
    }
}

impl Display for Module {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        write!(f, "{:?} ({})", self.name, self.kind)
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        self.context.give_name(&self.name);
    }
}

impl Module {
    fn new(
        context: &Arc<Context>,
        (name, kind): (Arc<str>, &'static str),
        mut layer: Box<dyn Layer>,
    ) -> Result<Self> {
        let mut parameters = Vec::new();
        for (name, parameter) in layer.parameters() {
            let value = Arc::new(Value(TENSORS.insert(parameter.value.tensor.clone())? as usize));
            let pieces = pieces(context, &parameter.shard);
            let name = CString::new(name).unwrap_or_default();
            parameters.push(View { name, value, pieces });
        }
        let (context, layer) = (Arc::clone(context), Arc::new(Mutex::new(layer)));
        Ok(Self { context, name, kind, layer, parameters, parts: Vec::new() })
    }

    /// A module of others, whose parameters are its own.
    fn of_parts(
        context: &Arc<Context>,
        (name, kind): (Arc<str>, &'static str),
        layer: Box<dyn Layer>,
        parts: Vec<(String, Arc<Module>)>,
    ) -> Self {
        let of_part = |(prefix, part): &(String, Arc<Module>)| -> Vec<View> {
            let views = part.parameters.iter().map(|view| View {
                name: CString::new(format!("{prefix}.{}", view.name.to_string_lossy()))
                    .unwrap_or_default(),
                value: Arc::clone(&view.value),
                pieces: Arc::clone(&view.pieces),
            });
            views.collect()
        };
        let parameters = parts.iter().flat_map(of_part).collect();
        let (context, layer) = (Arc::clone(context), Arc::new(Mutex::new(layer)));
        Self { context, name, kind, layer, parameters, parts }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// A call of the module.
    pub fn run(&self, stream: cudaStream_t) -> Run {
        Run { module: Some(Arc::clone(&self.name)), ..Run::outside(&self.context, stream) }
    }

    /// As [`Layer::heads`].
    pub fn heads(&self) -> Option<(usize, usize)> {
        lock(&self.layer).heads()
    }

    fn num_parameters(&self) -> usize {
        self.parameters.len()
    }

    /// The modules without parts that this one is made of, with what comes before the names of their parameters.
    fn leaves(&self) -> Vec<(String, &Module)> {
        if self.parts.is_empty() {
            return vec![(String::new(), self)];
        }
        let mut leaves = Vec::new();
        for (prefix, part) in &self.parts {
            let of_part = part.leaves().into_iter();
            leaves.extend(of_part.map(|(rest, leaf)| (format!("{prefix}.{rest}"), leaf)));
        }
        leaves
    }

    /// Applies `body` to all parameters, with their names.
    pub fn with_parameters<R>(&self, body: impl FnOnce(Vec<(String, &mut Parameter)>) -> R) -> R {
        let leaves = self.leaves();
        let mut layers: Vec<_> =
            leaves.iter().map(|(prefix, leaf)| (prefix, lock(&leaf.layer))).collect();
        let mut all = Vec::new();
        for (prefix, layer) in &mut layers {
            let own = layer.parameters().into_iter();
            all.extend(own.map(|(name, parameter)| (format!("{prefix}{name}"), parameter)));
        }
        body(all)
    }

    /// The layers that this module is made of, each with the number of its parameters.
    pub fn layers(&self) -> Vec<(SharedLayer, usize)> {
        let leaves = self.leaves().into_iter();
        leaves.map(|(_, leaf)| (Arc::clone(&leaf.layer), leaf.parameters.len())).collect()
    }

    /// Gives up the value of a parameter, of which ranks have parts from now on.
    pub fn forget(&self, index: usize) -> Result<()> {
        self.parameter(index, |parameter, _| {
            parameter.forget();
            Ok(())
        })?;
        self.show_value(index)
    }

    /// Lets C see the value of a parameter where it is now.
    pub fn show_value(&self, index: usize) -> Result<()> {
        self.parameter(index, |parameter, view| {
            let value = parameter.buffer();
            TENSORS.write("value", view.value(), |tensor| tensor.rowwise = value)
        })
    }

    /// Moves the value of a parameter to a part of a block, which has a copy of it.
    pub fn move_to(&self, index: usize, block: &Arc<memory::Block>, value: Buffer) -> Result<()> {
        self.parameter(index, |parameter, view| {
            parameter.move_to(block, value);
            TENSORS.write("value", view.value(), |tensor| tensor.rowwise = value)
        })
    }

    /// Applies `body` to a parameter.
    fn parameter<R>(
        &self,
        index: usize,
        body: impl FnOnce(&mut Parameter, &View) -> Result<R>,
    ) -> Result<R> {
        self.with_parameters(|parameters| {
            let count = parameters.len();
            match parameters.into_iter().zip(&self.parameters).nth(index) {
                Some(((_, parameter), view)) => body(parameter, view),
                None => Err(Error::argument("index", format!("less than {count}"), index)),
            }
        })
    }
}

/// What a forward pass has left.
pub struct Tape {
    module: Arc<Module>,
    saved: Mutex<Saved>,
    microbatch: Microbatch,
    /// The policy of the forward pass, which the backward pass follows on any thread.
    policy: &'static Policy,
}

/// The pieces of a parameter. What all ranks have alike counts on the first.
fn pieces(context: &Context, shard: &Shard) -> Arc<[NVTEXParameterPiece]> {
    let first = context.group(NVTEX_GRID_TP).is_none_or(|ranks| ranks.rank() == 0);
    let counts = MaybeUninit::new(first || shard.is_over(NVTEX_GRID_TP));
    let piece = |&Piece { whole, part, length }: &Piece| NVTEXParameterPiece {
        whole,
        part,
        length,
        counts,
    };
    shard.pieces.iter().map(piece).collect()
}

fn remove<T: Clone, C>(slab: &Slab<T, C>, name: &str, handle: *mut C) -> Result<()> {
    if handle.is_null() { Ok(()) } else { slab.remove(name, handle) }
}

/// An object with the context that it belongs to. Handles are only opened by [`open`] and [`destroy`], so
/// that no function of the program calls back into the context that has called it: locks are held then.
pub(crate) trait InContext: Clone + 'static {
    fn context(&self) -> &Arc<Context>;
}

impl InContext for Arc<Context> {
    fn context(&self) -> &Arc<Context> {
        self
    }
}

impl InContext for Arc<Module> {
    fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl InContext for Arc<Tape> {
    fn context(&self) -> &Arc<Context> {
        &self.module.context
    }
}

impl InContext for Arc<KvCache> {
    fn context(&self) -> &Arc<Context> {
        KvCache::context(self)
    }
}

/// The object of a handle, for one call.
pub(crate) fn open<T: InContext, C>(slab: &Slab<T, C>, name: &str, handle: *const C) -> Result<T> {
    let object = slab.get(name, handle)?;
    object.context().check_free(name)?;
    Ok(object)
}

/// Destroys an object; null is ignored.
pub(crate) fn destroy<T: InContext, C>(
    slab: &Slab<T, C>,
    name: &str,
    handle: *mut C,
) -> Result<()> {
    if handle.is_null() {
        return Ok(());
    }
    // Dropped at the end, not by the slab: its memory goes back by functions of the program, which may
    // use other handles.
    let _object = open(slab, name, handle)?;
    slab.remove(name, handle)
}
