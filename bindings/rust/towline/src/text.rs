//! Text across the boundary.

use std::ffi::{CStr, CString};
use std::os::raw::c_char;
use std::ptr;

use towline_sys::Status;

use crate::error::{check, Error, Result};

/// The text at a C string, which must live for `'a`; "" where it is no UTF-8.
pub(crate) unsafe fn borrowed<'a>(text: *const c_char) -> &'a str {
    if text.is_null() {
        return "";
    }
    CStr::from_ptr(text).to_str().unwrap_or("")
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
