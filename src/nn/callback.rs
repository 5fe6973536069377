//! Calls of the program's own functions: allocators, choosers, reductions.
#![allow(unsafe_code)]

use crate::error::{Error, Result};
use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_void};

type Body = unsafe extern "C-unwind" fn(*mut c_void);

unsafe extern "C-unwind" {
    /// Calls `body(data)`; false if a C++ exception left it, whose text is in `message` then.
    fn nvte_call_guarded(
        body: Body,
        data: *mut c_void,
        message: *mut c_char,
        message_size: usize,
    ) -> bool;
}

/// A call on its way through C++, and what it returned.
struct Call<F, R> {
    body: Option<F>,
    result: Option<R>,
}

unsafe extern "C-unwind" fn run<F: FnOnce() -> R, R>(data: *mut c_void) {
    // SAFETY: `call` passes a pointer to a value of this type, which nobody else uses meanwhile.
    let call = unsafe { &mut *data.cast::<Call<F, R>>() };
    call.result = call.body.take().map(|body| body());
}

/// What the program's function `name` returns; an exception that leaves it becomes an error. `body` is
/// the call of that function alone, because a panic of Rust must not meet the C++ handler.
pub fn call<F: FnOnce() -> R, R>(name: &str, body: F) -> Result<R> {
    let mut call = Call { body: Some(body), result: None };
    let mut message: [c_char; 512] = [0; 512];
    let data = (&raw mut call).cast();
    // SAFETY: `run` takes a pointer to a `Call` of these types, and the buffer has its size.
    let returned =
        unsafe { nvte_call_guarded(run::<F, R>, data, message.as_mut_ptr(), message.len()) };
    match call.result {
        Some(result) if returned => Ok(result),
        _ => {
            // SAFETY: the handler has ended the text with a 0.
            let text = unsafe { CStr::from_ptr(message.as_ptr()) }.to_string_lossy();
            Err(Error::device(format!("{name}: the function threw an exception: {text}")))
        }
    }
}

thread_local! {
    /// Contexts of which this thread runs a function of the program.
    static CALLING: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Runs `body`, which calls functions of the program on behalf of a context.
pub fn within<R>(context: usize, body: impl FnOnce() -> R) -> R {
    struct Calling;
    impl Drop for Calling {
        fn drop(&mut self) {
            let _ = CALLING.try_with(|list| list.borrow_mut().pop());
        }
    }
    // While a thread is ending its list is gone, and nested calls are not noticed.
    let listed = CALLING.try_with(|list| list.borrow_mut().push(context));
    let _calling = listed.ok().map(|()| Calling);
    body()
}

/// Whether this call comes from a function that a call of the same context has called.
pub fn is_nested(context: usize) -> bool {
    CALLING.try_with(|list| list.borrow().contains(&context)).unwrap_or(false)
}
