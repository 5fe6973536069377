//! C functions of dispatch.h about domains.
#![allow(unsafe_code, clippy::missing_safety_doc)]

use crate::backend::registry;
use crate::error::{Error, guard, keep};
use crate::sized::{self, Grows};
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::ptr::null;

/// What is known of a domain.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NVTEXDomainInfo {
    /// The size of the struct, set by the caller: so many bytes of it are filled.
    pub struct_size: usize,
    /// Lives as long as the process.
    pub name: *const c_char,
    /// Why it cannot run in this process, valid until the thread asks for the next domain; null if it can.
    pub unusable: *const c_char,
    /// NVTEX_DOMAIN_HOST_ACCESSIBLE, NVTEX_DOMAIN_ASYNC.
    pub flags: u32,
    /// Devices; 0 where it cannot run, or cannot tell.
    pub devices: i32,
    /// Architecture of the current device, as `NVTEXImpl.min_arch` counts it; 0 where devices have none.
    pub arch: u32,
    /// Parts into which an operator may be divided on the current device so that all run at once.
    pub multiprocessors: i32,
}

// SAFETY: the layout is that of C, begins with the size, and null pointers and zeros are values of all fields.
unsafe impl Grows for NVTEXDomainInfo {
    const LEAST: usize = size_of::<Self>();
}

/// Returns the number of domains, those of the library and of plugins. It loads the plugins that are configured, if
/// that has not been done.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_domain_count() -> usize {
    guard("nvtex_domain_count", || {
        registry::discover()?;
        Ok(registry::domains().len())
    })
}

/// Writes what is known of a domain, and returns whether there is one of this index. Devices are started for it: a
/// child that is forked afterwards cannot use those of CUDA.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_domain_info(
    index: usize,
    info: *mut NVTEXDomainInfo,
) -> bool {
    thread_local! {
        static UNUSABLE: RefCell<CString> = RefCell::default();
    }
    guard("nvtex_domain_info", || {
        let domains = registry::domains();
        let Some(domain) = domains.get(index) else {
            return Err(Error::argument(
                "index",
                format_args!("less than {}", domains.len()),
                index,
            ));
        };
        let started = domain.start();
        let usable = started.is_ok();
        let filled = NVTEXDomainInfo {
            struct_size: 0,
            name: domain.c_name().as_ptr(),
            unusable: started.map_or_else(|why| keep(&UNUSABLE, &why.message), |()| null()),
            flags: domain.flags(),
            devices: if usable { domain.devices() } else { 0 },
            arch: if usable { domain.arch().unwrap_or(0) } else { 0 },
            multiprocessors: match usable {
                true => domain.properties().map_or(0, |properties| properties.multiprocessors),
                false => 0,
            },
        };
        // SAFETY: the caller vouches for the struct.
        unsafe { sized::write("info", info, &filled) }.map_err(Error::wrong_argument)?;
        Ok(true)
    })
}
