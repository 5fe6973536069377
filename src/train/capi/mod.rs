//! What C sees of training (train.h): each file has the structs of one subject, its C functions and their checks.
#![allow(unsafe_code)]

mod checkpoint;
mod data_parallel;
mod optimizer;
mod pretrained;
mod tokens;
mod trainer;

use crate::backend::args::RateRule;
use crate::check::{self, truth};
use crate::error::{Error, Handle, Result, guard};
use crate::handle::{Kind as HandleKind, Slab};
use crate::nn::capi::config::{Config, config, field_size, read_config, text, write_config};
use crate::nn::capi::{
    CONTEXTS, InContext, MODULES, Module, NVTEXContext, NVTEXModule, NVTEXModule_st, destroy, open,
};
use crate::nn::{Context, callback, upload};
use crate::op::nvtex::stream_is_capturing;
use crate::parallel::exports::{COMMUNICATORS, NVTEXCommunicator};
use crate::tensor::{Buffer, Shape, TENSORS, from_c, from_c_enum};
use crate::train::*;
use crate::types::*;
use data_parallel::*;
use num_derive::FromPrimitive;
use optimizer::*;
use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::{null, null_mut};
use std::sync::{Arc, Mutex, PoisonError};
use tokens::*;
use trainer::*;

static OPTIMIZERS: Slab<Arc<Opened>, NVTEXOptimizer_st> = Slab::new(HandleKind::Optimizer);

static ENGINES: Slab<Arc<DataParallel>, NVTEXDataParallel_st> = Slab::new(HandleKind::DataParallel);

static LOADERS: Slab<Arc<Mutex<TokenLoader>>, NVTEXTokenLoader_st> =
    Slab::new(HandleKind::TokenLoader);

static TRAINERS: Slab<Arc<Trainer>, NVTEXTrainer_st> = Slab::new(HandleKind::Trainer);

/// An optimizer with what C holds of it.
struct Opened {
    optimizer: Optimizer,
    names: Vec<CString>,
    loss_scale: usize,
}

impl Drop for Opened {
    fn drop(&mut self) {
        let _ = TENSORS.remove("loss_scale", self.loss_scale as NVTETensor);
    }
}

impl InContext for Arc<Opened> {
    fn context(&self) -> &Arc<Context> {
        self.optimizer.context()
    }
}

impl InContext for Arc<DataParallel> {
    fn context(&self) -> &Arc<Context> {
        DataParallel::context(self)
    }
}

/// The modules of an array of handles, all of one context.
///
/// # Safety
/// The array has `count` handles.
unsafe fn modules(
    handles: *const NVTEXModule,
    (count_name, count): (&str, usize),
    context: Option<&Arc<Context>>,
) -> Result<Vec<Arc<Module>>> {
    // SAFETY: the caller keeps to the `# Safety` section of this function.
    let handles = unsafe { check::slice("modules", handles, (count_name, count)) }?;
    let mut modules: Vec<Arc<Module>> = Vec::new();
    for (i, &handle) in handles.iter().enumerate() {
        let name = format!("modules[{i}]");
        let module = open(&MODULES, &name, handle)?;
        let expected = context.or(modules.first().map(|first| first.context()));
        if expected.is_some_and(|context| !Arc::ptr_eq(context, module.context())) {
            let got = "a module of another context";
            return Err(Error::argument(name, "a module of the same context", got));
        }
        if modules.iter().any(|known| Arc::ptr_eq(known, &module)) {
            return Err(Error::argument(name, "a module that is not listed before", module));
        }
        modules.push(module);
    }
    Ok(modules)
}

/// The object of a handle; none for null.
fn optional<T: InContext, C>(slab: &Slab<T, C>, name: &str, handle: *const C) -> Result<Option<T>> {
    if handle.is_null() { Ok(None) } else { open(slab, name, handle).map(Some) }
}

/// A path of C.
///
/// # Safety
/// `path` is null or a C string.
unsafe fn path(name: &str, path: *const c_char) -> Result<PathBuf> {
    check::address(name, path)?;
    // SAFETY: not null, and the caller vouches for the string.
    let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
    match bytes {
        [] => Err(Error::argument(name, "the path of a file", "an empty string")),
        bytes => Ok(PathBuf::from(OsStr::from_bytes(bytes))),
    }
}
