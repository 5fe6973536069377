//! C functions of dispatch.h that load plugins and say what became of them.
#![allow(unsafe_code, non_camel_case_types, clippy::missing_safety_doc)]

use crate::backend::args::plugin::{Host as NVTEXHost, Plugin as NVTEXPlugin};
use crate::backend::plugin;
use crate::error::{Error, guard};
use std::ffi::{CStr, OsStr, c_char};
use std::mem::offset_of;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// What is known of a plugin. Texts live as long as the process; those that are not known are empty.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NVTEXPluginInfo {
    /// The size of the struct, set by the caller: so many bytes of it are filled.
    pub struct_size: usize,
    pub name: *const c_char,
    pub version: *const c_char,
    pub vendor: *const c_char,
    /// The library or manifest without symbolic links; empty for a plugin of the program.
    pub path: *const c_char,
    /// Why the plugin was refused; null if it was loaded.
    pub refused: *const c_char,
    /// Implementations and keys of the manifest that were left out, a line each with the reason.
    pub notes: *const c_char,
    /// What it has registered.
    pub implementations: usize,
    pub domains: usize,
}

/// Loads a plugin: a library, or a manifest that names one (by the ending `.nvtex`). All that it offers is registered,
/// or nothing.
///
/// The path is absolute. The file and every folder on the way to it, those of symbolic links too, belong to root or
/// to the user as whom the process runs, and nobody else may write to them (sticky folders excepted), because the
/// library's code runs in this process. It stays loaded until the process ends.
///
/// Plugins of the environment (`NVTE_OP_PLUGINS` and the folders) are loaded before. A plugin that is being loaded may
/// not call this function.
///
/// Returns whether the plugin was loaded. Errors, with status unsupported: the file is not acceptable, is no plugin,
/// or of another version; a plugin of the same name is loaded; the plugin's own entry function failed; one of its
/// implementations is not valid.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_plugin_load(path: *const c_char) -> bool {
    guard("nvtex_plugin_load", || {
        if path.is_null() {
            return Err(Error::argument("path", "an absolute path", "null"));
        }
        // SAFETY: the caller vouches for a C string.
        let path = unsafe { CStr::from_ptr(path) };
        let path = Path::new(OsStr::from_bytes(path.to_bytes()));
        if !path.is_absolute() {
            return Err(Error::argument("path", "an absolute path", format_args!("{path:?}")));
        }
        plugin::load(path)?;
        Ok(true)
    })
}

/// Registers a plugin whose entry function is part of the program, as `nvtex_plugin_load` does with that of a library.
///
/// Returns whether the plugin was registered.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_plugin_register(
    entry: Option<unsafe extern "C" fn(host: *const NVTEXHost, plugin: *mut NVTEXPlugin) -> i32>,
) -> bool {
    guard("nvtex_plugin_register", || {
        let entry = entry.ok_or_else(|| Error::argument("entry", "a function", "null"))?;
        plugin::register(entry)?;
        Ok(true)
    })
}

/// Loads the plugins that the environment names and those of the system's folder, which the first operator would do.
///
/// In this order: those of `NVTE_OP_PLUGINS` (with commas between them: absolute paths of libraries or manifests, and
/// names, which stand for `NAME.nvtex` in a folder below; `none` turns all off), then the manifests of the folders of
/// `NVTE_OP_PLUGIN_PATH` (with colons between them) and of `/etc/nvte/plugins.d`, in each sorted by name.
///
/// Returns whether all plugins that `NVTE_OP_PLUGINS` names have been loaded, but for those with `?` before them.
/// Otherwise this function and every operator fail, with status unsupported and the reason. A plugin of a folder that
/// cannot be loaded is skipped, with a warning.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_plugins_discover() -> bool {
    guard("nvtex_plugins_discover", || {
        plugin::discover()?;
        Ok(true)
    })
}

/// Returns how many plugins have been loaded or refused in this process.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_plugin_count() -> usize {
    guard("nvtex_plugin_count", || Ok(plugin::count()))
}

/// Says what is known of a plugin, loaded or refused, by its place in the order of loading. Returns whether there is
/// one.
///
/// Errors: no struct, or one whose size is not set.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_plugin_info(
    index: usize,
    info: *mut NVTEXPluginInfo,
) -> bool {
    guard("nvtex_plugin_info", || {
        const LEAST: usize = offset_of!(NVTEXPluginInfo, domains) + size_of::<usize>();
        if info.is_null() {
            return Err(Error::argument("info", "a struct", "null"));
        }
        // SAFETY: the caller vouches for a struct that begins with its size.
        let struct_size = unsafe { (*info).struct_size };
        if struct_size < LEAST {
            let expected = format_args!("sizeof(NVTEXPluginInfo), at least {LEAST}");
            return Err(Error::argument("info.struct_size", expected, struct_size));
        }
        let Some(record) = plugin::record(index) else { return Ok(false) };
        let filled = NVTEXPluginInfo {
            struct_size,
            name: record.name.as_ptr(),
            version: record.version.as_ptr(),
            vendor: record.vendor.as_ptr(),
            path: record.path.as_ptr(),
            refused: record.refused.as_ref().map_or(std::ptr::null(), |why| why.as_ptr()),
            notes: record.notes.as_ptr(),
            implementations: record.implementations,
            domains: record.domains,
        };
        let bytes = struct_size.min(size_of::<NVTEXPluginInfo>());
        // SAFETY: the caller's struct has at least that many bytes.
        unsafe {
            std::ptr::copy_nonoverlapping((&raw const filled).cast::<u8>(), info.cast(), bytes);
        }
        Ok(true)
    })
}
