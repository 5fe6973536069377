//! Texts that come from plugins.
#![allow(unsafe_code)]

use std::ffi::c_char;

/// Longest name of anything.
pub const MOST_NAME: usize = 63;
/// Longest version or other text.
pub const MOST_TEXT: usize = 255;

/// A text of at most `most` bytes that ends with a 0; none if the pointer is null.
///
/// # Safety
/// The pointer is null or points to a C string.
pub unsafe fn read(name: &str, text: *const c_char, most: usize) -> Result<Option<String>, String> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller vouches for a C string, of which no more is read than is allowed.
    let bytes = unsafe {
        let length = libc::strnlen(text, most + 1);
        std::slice::from_raw_parts(text.cast::<u8>(), length)
    };
    if bytes.len() > most {
        return Err(format!("{name}: expected at most {most} bytes, got more"));
    }
    match std::str::from_utf8(bytes) {
        Ok(text) if text.bytes().all(|byte| (b' '..=b'~').contains(&byte)) => {
            Ok(Some(text.to_owned()))
        }
        _ => Err(format!(
            "{name}: expected printable ASCII characters, got {:?}",
            bytes.escape_ascii().to_string()
        )),
    }
}

/// A name: `[a-z0-9][a-z0-9._-]{0,62}`.
///
/// # Safety
/// As [`read`].
pub unsafe fn name(name: &str, text: *const c_char) -> Result<String, String> {
    // SAFETY: the caller's promise.
    let text = unsafe { read(name, text, MOST_NAME) }?
        .ok_or_else(|| format!("{name}: expected a name, got null"))?;
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-".contains(c);
    match text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.chars().all(good) {
        true => Ok(text),
        false => Err(format!(
            "{name}: expected a name of a-z, 0-9, `.`, `_` and `-`, the first one a letter or digit, got {text:?}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::{name, read};
    use std::ffi::CString;

    fn named(text: &str) -> Result<String, String> {
        let text = CString::new(text).expect("a text");
        // SAFETY: a C string.
        unsafe { name("id", text.as_ptr()) }
    }

    #[test]
    fn takes_names() {
        for good in ["a", "0", "vendor.acme-2_x", &"x".repeat(63)] {
            assert_eq!(named(good).as_deref(), Ok(good));
        }
        for wrong in ["", ".a", "-a", "A", "a b", "a/b", "ä", "a\n"] {
            assert!(named(wrong).expect_err(wrong).starts_with("id: expected"), "{wrong:?}");
        }
        assert!(named(&"x".repeat(64)).expect_err("too long").contains("at most 63 bytes"));
        assert!(named(&"x".repeat(1 << 20)).expect_err("too long").contains("at most 63 bytes"));
        // SAFETY: null is allowed.
        let null = unsafe { name("id", std::ptr::null()) };
        assert!(null.expect_err("null").contains("got null"));
    }

    #[test]
    fn takes_texts() {
        let read = |text: &[u8]| {
            let text = CString::new(text).expect("a text");
            // SAFETY: a C string.
            unsafe { read("version", text.as_ptr(), 5) }
        };
        assert_eq!(read(b"1.0 b"), Ok(Some("1.0 b".into())));
        assert_eq!(read(b""), Ok(Some(String::new())));
        assert!(read(b"1.0 be").is_err());
        assert!(read(b"\xFF").expect_err("binary").contains("\\xff"));
        assert!(read(b"a\nb").is_err());
    }
}
