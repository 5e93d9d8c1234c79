//! The C API of Towline (`towline/*.h`), generated from its headers. The safe API on top is the crate `towline`.
//!
//! Functions and structs keep their names in C. Enumerations are types around an integer with associated constants
//! (`Status::PEER_LOST`), so that a value from a newer library is never undefined behaviour.

#![allow(non_camel_case_types, non_upper_case_globals, clippy::all)]

use std::ffi::CStr;
use std::fmt;

include!(concat!(env!("OUT_DIR"), "/bindings.rs"));

impl Status {
    /// The name in C without prefix: `PEER_LOST`; `UNKNOWN` for a value of a newer library.
    pub fn name(self) -> &'static str {
        // SAFETY: takes any value, and returns a static string.
        unsafe { CStr::from_ptr(towline_status_name(self.0)) }.to_str().unwrap_or("UNKNOWN")
    }

    /// A short English text: `peer lost`.
    pub fn text(self) -> &'static str {
        // SAFETY: as above.
        unsafe { CStr::from_ptr(towline_status_text(self.0)) }.to_str().unwrap_or("unknown status")
    }

    /// True for every failure. `OK` and `IN_PROGRESS` are none.
    pub const fn is_error(self) -> bool {
        self.0 < 0
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl fmt::Display for Status {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.text())
    }
}
