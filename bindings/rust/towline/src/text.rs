//! Text across the boundary.

use std::borrow::Cow;
use std::ffi::{CStr, CString};
use std::os::raw::c_char;
use std::ptr;
use std::sync::OnceLock;

use towline_sys::Status;

use crate::error::{check, Error, Result};

/// The text at a C string, which must live for `'a`. What is no UTF-8 becomes U+FFFD: names hold any byte, and messages tell them.
pub(crate) unsafe fn lossy<'a>(text: *const c_char) -> Cow<'a, str> {
    if text.is_null() {
        return Cow::Borrowed("");
    }
    CStr::from_ptr(text).to_string_lossy()
}

/// The same for texts of the library that are always UTF-8, such as incarnations.
pub(crate) unsafe fn borrowed<'a>(text: *const c_char) -> &'a str {
    match lossy(text) {
        Cow::Borrowed(text) => text,
        Cow::Owned(_) => "",
    }
}

/// Of an object that gives a text as `&str`: the text with U+FFFD in it, if that was needed.
#[derive(Default)]
pub(crate) struct Replaced(OnceLock<String>);

impl Replaced {
    /// The text at a C string, which lives as long as the object.
    pub(crate) unsafe fn of(&self, text: *const c_char) -> &str {
        match lossy(text) {
            Cow::Borrowed(text) => text,
            Cow::Owned(text) => self.0.get_or_init(|| text),
        }
    }
}

/// A C string of `text`; `what` names the argument if it contains a NUL byte.
pub(crate) fn owned(what: &str, text: &str) -> Result<CString> {
    CString::new(text)
        .map_err(|_| Error::new(Status::INVALID_ARGUMENT, format!("{what} contains a NUL byte: {text:?}")))
}

/// A C string, or none for an empty text.
pub(crate) fn optional(what: &str, text: &str) -> Result<Option<CString>> {
    if text.is_empty() {
        return Ok(None);
    }
    owned(what, text).map(Some)
}

pub(crate) fn pointer(text: &Option<CString>) -> *const c_char {
    text.as_ref().map_or(ptr::null(), |text| text.as_ptr())
}

/// Reads bytes by the convention (buffer, capacity, needed), and again if they grew in between.
pub(crate) fn read_sized(mut read: impl FnMut(*mut u8, usize, *mut usize) -> i32) -> Result<Vec<u8>> {
    let mut bytes: Vec<u8> = Vec::new();
    let mut needed = 0;
    check(read(ptr::null_mut(), 0, &mut needed))?;
    while needed > bytes.len() {
        bytes.resize(needed, 0);
        check(read(bytes.as_mut_ptr(), bytes.len(), &mut needed))?;
    }
    bytes.truncate(needed);
    Ok(bytes)
}

/// The same for text, which ends with a NUL.
pub(crate) fn read_text(read: impl FnMut(*mut u8, usize, *mut usize) -> i32) -> Result<String> {
    let mut bytes = read_sized(read)?;
    while bytes.last() == Some(&0) {
        bytes.pop();
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_utf8_is_replaced_and_the_rest_is_kept() {
        for (bytes, text) in [(c"caf\xc3\xa9", "café"), (c"caf\xe9 is lost", "caf\u{fffd} is lost"), (c"", "")] {
            let replaced = Replaced::default();
            // SAFETY: literals live for ever.
            unsafe {
                assert_eq!(lossy(bytes.as_ptr()), text);
                assert_eq!(replaced.of(bytes.as_ptr()), text);
                assert_eq!(replaced.of(bytes.as_ptr()), text, "again");
            }
        }
        // SAFETY: null is no text.
        assert_eq!(unsafe { lossy(ptr::null()) }, "");
    }
}
