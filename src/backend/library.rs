//! CUDA's libraries, opened when they are first needed.
#![allow(unsafe_code)]

use crate::env::env;
use crate::verbose::{self, Level};
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use std::mem::ManuallyDrop;
use std::path::Path;

/// Where a library has been looked for that is not there.
pub(crate) const SEARCHED: &str = "on the loader's path or in NVTE_CUDA_LIB_PATH";

/// Loads a library for the rest of the process, so that the loader finds it by its name afterwards: the
/// one in the first folder of `NVTE_CUDA_LIB_PATH` that has it, else what the loader finds, which includes
/// a copy that is already loaded. None if there is none.
pub(crate) fn open(name: &str) -> Option<ManuallyDrop<Library>> {
    let folders = env().cuda_lib_path.iter().map(|folder| folder.join(name));
    folders.chain([Path::new(name).to_owned()]).find_map(|path| {
        // SAFETY: loading a library runs its initialisers, which is what is wanted.
        let library = unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_GLOBAL) }.ok()?;
        verbose::line(Level::Dispatch, "library", || path.display().to_string());
        Some(ManuallyDrop::new(library))
    })
}
