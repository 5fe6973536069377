//! What the generated configs are made of.

use crate::generated::{RecipeConfig, RecipeKind};
use nvte_sys as sys;
use std::ffi::{CStr, CString, c_char};
use std::sync::Arc;

/// The texts that a config points to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names(Vec<Arc<CStr>>);

impl Names {
    /// Keeps a text, and returns its address. A text ends where it has a NUL.
    pub(crate) fn add(&mut self, name: &str) -> *const c_char {
        let name = name.split('\0').next().unwrap_or_default();
        let name: Arc<CStr> = CString::new(name).expect("no NUL is left").into();
        let address = name.as_ptr();
        self.0.push(name);
        address
    }

    /// Keeps the texts of another config, too.
    pub(crate) fn join(&mut self, other: Names) {
        self.0.extend(other.0);
    }
}

/// A config that a function of the library has filled.
pub(crate) fn initialized<T: Copy>(init: impl FnOnce(*mut T, usize)) -> T {
    // SAFETY: configs are structs of numbers and addresses, for which zeros are values. The function gets an address
    // and the size of what is there.
    unsafe {
        let mut raw = std::mem::zeroed();
        init(&mut raw, size_of::<T>());
        raw
    }
}

impl RecipeConfig {
    /// Makes a config of a recipe with the library's defaults for this kind.
    pub fn new(kind: RecipeKind) -> Self {
        // SAFETY: the function writes a config of this size.
        let raw = initialized(|raw, size| unsafe {
            sys::nvtex_recipe_config_init(raw, size, kind as i32);
        });
        Self { raw, names: Names::default() }
    }
}
