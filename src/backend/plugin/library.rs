//! Libraries, and calls of their functions.
#![allow(unsafe_code)]

use crate::backend::args::plugin::{Host, NVTEX_PLUGIN_ABI_MAJOR, NVTEX_PLUGIN_OK, Plugin};
use std::ffi::{CStr, CString, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// `nvtex_plugin_v0`.
pub type Entry = unsafe extern "C" fn(*const Host, *mut Plugin) -> i32;

unsafe extern "C" {
    /// Calls an entry function. An exception becomes a failure whose text is in `reason`.
    fn nvte_plugin_entry(
        entry: Entry,
        host: *const Host,
        plugin: *mut Plugin,
        reason: *mut c_char,
        bytes: usize,
    ) -> i32;
    fn nvte_plugin_after_fork(hook: unsafe extern "C" fn(*mut c_void), user: *mut c_void);
}

/// Newest version of the ABI for which a library is asked, only to say what it speaks.
const MOST_MAJOR: u32 = 16;

/// Loads a library for the rest of the process and finds its entry function.
pub fn open(path: &Path) -> Result<Entry, String> {
    let name = CString::new(path.as_os_str().as_bytes())
        .map_err(|_| format!("{}: expected a path without zeros", path.display()))?;
    // SAFETY: the name is a C string; the constructors of the library are meant to run. The handle is kept for good,
    // because nobody knows when the last call of its code ends.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if library.is_null() {
        return Err(dl_error());
    }
    let symbol = |major: u32| {
        let name = CString::new(format!("nvtex_plugin_v{major}")).unwrap_or_default();
        // SAFETY: the handle is that of an open library, and the name is a C string.
        unsafe { libc::dlsym(library, name.as_ptr()) }
    };
    let entry = symbol(NVTEX_PLUGIN_ABI_MAJOR);
    if !entry.is_null() {
        // SAFETY: a symbol of this name is a function of this type.
        return Ok(unsafe { std::mem::transmute::<*mut c_void, Entry>(entry) });
    }
    let path = path.display();
    Err(match (0..MOST_MAJOR).find(|major| !symbol(*major).is_null()) {
        Some(major) => format!(
            "{path} speaks version {major} of the plugin ABI, and this library speaks {NVTEX_PLUGIN_ABI_MAJOR}"
        ),
        None => format!(
            "{path} is no plugin: it has no function nvtex_plugin_v{NVTEX_PLUGIN_ABI_MAJOR}"
        ),
    })
}

fn dl_error() -> String {
    // SAFETY: the text lives until the thread's next call of a function of the loader.
    let text = unsafe { libc::dlerror() };
    match text.is_null() {
        true => "the loader gave no reason".into(),
        // SAFETY: as above.
        false => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
    }
}

/// Calls the entry function of a plugin.
pub fn call(entry: Entry, host: &Host, plugin: *mut Plugin) -> Result<(), String> {
    let mut reason: [c_char; 512] = [0; 512];
    // SAFETY: the host lives as long as the process, and the caller gives room for the plugin's answer.
    let status =
        unsafe { nvte_plugin_entry(entry, host, plugin, reason.as_mut_ptr(), reason.len()) };
    if status == NVTEX_PLUGIN_OK {
        return Ok(());
    }
    // SAFETY: the text ends with a 0, because only the first bytes are ever written.
    let text = unsafe { CStr::from_ptr(reason.as_ptr()) }.to_string_lossy();
    Err(match text.is_empty() {
        true => format!("its entry function returned {status}"),
        false => format!("its entry function threw an exception: {text}"),
    })
}

/// Calls what a plugin wants to do in the child of a fork. There is nobody to whom an exception could be told.
pub fn after_fork(hook: unsafe extern "C" fn(*mut c_void), user: *mut c_void) {
    // SAFETY: the plugin vouches for its function.
    unsafe { nvte_plugin_after_fork(hook, user) };
}
