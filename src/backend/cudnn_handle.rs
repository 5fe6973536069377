//! Handles of cuDNN for programs that run their own graphs with it. The library is opened when the first one is
//! asked for.
#![allow(unsafe_code)]

use super::cublaslt::relaxed_capture;
use super::library;
use crate::error::{Error, Result};
use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

const NAME: &str = "libcudnn.so.9";

/// The functions of cuDNN that are used here. 0 is success.
#[derive(Clone, Copy)]
struct Cudnn {
    create: unsafe extern "C" fn(handle: *mut *mut c_void) -> c_int,
    error_string: unsafe extern "C" fn(status: c_int) -> *const c_char,
}

/// The library, or why it cannot be used.
fn cudnn() -> &'static std::result::Result<Cudnn, String> {
    static CUDNN: OnceLock<std::result::Result<Cudnn, String>> = OnceLock::new();
    CUDNN.get_or_init(|| {
        let library = library::open(NAME)
            .ok_or_else(|| format!("{NAME} is not to be found {}", library::SEARCHED))?;
        // SAFETY: cuDNN 9 declares the functions of these names so, and the library stays open.
        let functions = unsafe {
            library.get(b"cudnnCreate\0").and_then(|create| {
                let error_string = library.get(b"cudnnGetErrorString\0")?;
                Ok(Cudnn { create: *create, error_string: *error_string })
            })
        };
        functions.map_err(|why| format!("{NAME}: {why}"))
    })
}

/// The handle of this thread for a device, which is the current one. It is never destroyed: what a program
/// has built with it may be destroyed later than this library's data.
pub(super) fn get(device: c_int) -> Result<*mut c_void> {
    thread_local! {
        static HANDLES: RefCell<Vec<(c_int, *mut c_void)>> = const { RefCell::new(Vec::new()) };
    }
    let cudnn = cudnn().as_ref().map_err(|why| Error::unsupported(why.as_str()))?;
    let find = |handles: &RefCell<Vec<(c_int, *mut c_void)>>| {
        let handles = handles.borrow();
        handles.iter().find(|(of, _)| *of == device).map(|(_, handle)| *handle)
    };
    if let Some(handle) = HANDLES.try_with(find).ok().flatten() {
        return Ok(handle);
    }
    let mut handle = std::ptr::null_mut();
    // SAFETY: writes one handle. A capture of another stream would forbid what cuDNN does here.
    let status = relaxed_capture(|| unsafe { (cudnn.create)(&mut handle) });
    if status != 0 {
        // SAFETY: returns a static string for every status.
        let why = unsafe { CStr::from_ptr((cudnn.error_string)(status)) };
        return Err(Error::device(format!("cudnnCreate: {}", why.to_string_lossy())));
    }
    // While the thread is ending its list is gone, and the handle is for this call.
    let _ = HANDLES.try_with(|handles| handles.borrow_mut().push((device, handle)));
    Ok(handle)
}
