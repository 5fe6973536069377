//! Recipes and contexts.

use crate::Stream;
use crate::error::{Result, call, quietly};
use crate::generated::{ContextConfig, RecipeConfig, RecipeKind};
use nvte_sys as sys;
use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;

/// How operands of matrix products are scaled. It never changes.
pub struct Recipe(sys::NVTEXRecipe);

// SAFETY: a recipe never changes, any thread may read it, and contexts that use it keep it alive.
unsafe impl Send for Recipe {}
// SAFETY: as above.
unsafe impl Sync for Recipe {}

impl Recipe {
    /// Creates a recipe. Errors: values that are out of range, or do not go together; each is named.
    pub fn new(config: &RecipeConfig) -> Result<Self> {
        // SAFETY: the config is one of this size, and is read before the function returns.
        Ok(Recipe(call(|| unsafe { sys::nvtex_recipe_create(&config.raw) })?))
    }

    /// Creates a recipe of this kind with the library's defaults.
    pub fn of_kind(kind: RecipeKind) -> Result<Self> {
        Self::new(&RecipeConfig::new(kind))
    }
}

impl Drop for Recipe {
    fn drop(&mut self) {
        // SAFETY: it was created by nvtex_recipe_create.
        quietly(|| unsafe { sys::nvtex_recipe_destroy(self.0) });
    }
}

impl fmt::Debug for Recipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Recipe").field(&self.0).finish()
    }
}

/// What a region of [`Context::region`] is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Region {
    /// Products follow the recipe.
    #[default]
    Enabled,
    /// Products are in high precision, and delayed scaling collects its maxima meanwhile.
    Calibrating,
    /// Modules that are created keep their weights in the recipe's format alone, and products follow the recipe.
    QuantizedWeights,
}

impl Region {
    fn flags(self) -> u32 {
        match self {
            Region::Enabled => sys::NVTEX_CONTEXT_ENABLED,
            Region::Calibrating => sys::NVTEX_CONTEXT_CALIBRATING,
            Region::QuantizedWeights => {
                sys::NVTEX_CONTEXT_ENABLED | sys::NVTEX_CONTEXT_QUANTIZED_WEIGHTS
            }
        }
    }
}

/// All state of FP8 training that modules share. Modules are created in a context and live no longer than it.
///
/// A context with its modules is for one thread at a time: it may move to another thread, but modules cannot leave the
/// thread without it.
pub struct Context {
    handle: sys::NVTEXContext,
    /// Makes the type impossible to share between threads, and modules, which borrow it, impossible to send.
    one_thread: PhantomData<Cell<()>>,
}

// SAFETY: a context may be used from any thread, one at a time.
unsafe impl Send for Context {}

impl Context {
    /// Creates a context with the library's defaults.
    pub fn new() -> Result<Self> {
        Self::with_config(&ContextConfig::new())
    }

    /// Creates a context.
    pub fn with_config(config: &ContextConfig) -> Result<Self> {
        // SAFETY: the config is one of this size without functions, and is read before the function returns.
        let handle = call(|| unsafe { sys::nvtex_context_create(&config.raw) })?;
        Ok(Context { handle, one_thread: PhantomData })
    }

    /// Runs `body` with products that follow the recipe: `region(recipe, Region::Enabled, body)`.
    pub fn autocast<T>(&self, recipe: &Recipe, body: impl FnOnce() -> T) -> Result<T> {
        self.region(recipe, Region::Enabled, body)
    }

    /// Runs `body` in a region: forward passes and creations in it follow the recipe, the innermost one where regions
    /// are nested. Backward passes follow the recipe of their forward pass, wherever they run.
    pub fn region<T>(
        &self,
        recipe: &Recipe,
        region: Region,
        body: impl FnOnce() -> T,
    ) -> Result<T> {
        /// Ends the region even if `body` panics.
        struct End(sys::NVTEXContext);
        impl Drop for End {
            fn drop(&mut self) {
                // SAFETY: the context outlives the call of `region`.
                quietly(|| unsafe { sys::nvtex_context_end(self.0) });
            }
        }
        // SAFETY: both handles are valid; the context keeps the recipe alive.
        call(|| unsafe {
            let group = std::ptr::null_mut();
            sys::nvtex_context_begin(self.handle, recipe.0, region.flags(), group);
        })?;
        let _end = End(self.handle);
        Ok(body())
    }

    /// Updates the scales that forward passes use, after the forward passes of a step.
    pub fn forward_update(&self, stream: &Stream) -> Result<()> {
        // SAFETY: the handle is valid.
        call(|| unsafe { sys::nvtex_context_forward_update(self.handle, stream.raw()) })
    }

    /// Updates the scales that backward passes use, after the backward passes of a step.
    pub fn backward_update(&self, stream: &Stream) -> Result<()> {
        // SAFETY: the handle is valid.
        call(|| unsafe { sys::nvtex_context_backward_update(self.handle, stream.raw()) })
    }

    /// The state of delayed scaling of all layers, by name, in a format that is the same on every machine.
    pub fn save(&self, stream: &Stream) -> Result<Vec<u8>> {
        // SAFETY: the vector has the size that is given, and the function writes no more.
        call(|| unsafe {
            let mut state = vec![0; sys::nvtex_context_state_size(self.handle)];
            let (to, size) = (state.as_mut_ptr().cast(), state.len());
            let written = sys::nvtex_context_save(self.handle, to, size, stream.raw());
            state.truncate(written);
            state
        })
    }

    /// Restores what [`Context::save`] returned. Errors: bytes that are no such state, or are damaged; nothing
    /// changes then.
    pub fn load(&self, state: &[u8], stream: &Stream) -> Result<()> {
        let (from, size) = (state.as_ptr().cast(), state.len());
        // SAFETY: so many bytes are there, and have been read when the function returns.
        call(|| unsafe { sys::nvtex_context_load(self.handle, from, size, stream.raw()) })
    }

    /// Gives unused memory back to the device until `bytes_to_keep` are left, and returns what went back.
    pub fn trim(&self, bytes_to_keep: usize) -> Result<usize> {
        // SAFETY: the handle is valid.
        call(|| unsafe { sys::nvtex_context_trim(self.handle, bytes_to_keep) })
    }

    /// The handle as C has it, which lives as long as the context.
    pub fn raw(&self) -> sys::NVTEXContext {
        self.handle
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: it was created by nvtex_context_create.
        quietly(|| unsafe { sys::nvtex_context_destroy(self.handle) });
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Context").field(&self.handle).finish()
    }
}
