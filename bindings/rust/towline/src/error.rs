use std::fmt;

use towline_sys::{self as sys, Status};

use crate::text;

/// The result of every call that can fail.
pub type Result<T> = std::result::Result<T, Error>;

/// A failure: a status to branch on, and a message with what was tried, the values, and what to do.
#[derive(Clone, PartialEq, Eq)]
pub struct Error {
    status: Status,
    message: String,
}

impl Error {
    pub(crate) fn new(status: Status, message: impl Into<String>) -> Self {
        Error { status, message: message.into() }
    }

    /// The status to branch on: `Status::PEER_LOST`.
    pub fn status(&self) -> Status {
        self.status
    }

    /// The library's message.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// True if the same call may succeed later without a change: no credit or space was left.
    pub fn is_retryable(&self) -> bool {
        self.status == Status::AGAIN
    }
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.status.name(), self.message)
    }
}

impl std::error::Error for Error {}

/// The status of a control call, which sets this thread's last error when it fails.
pub(crate) fn check(code: i32) -> Result<Status> {
    let status = Status(code);
    if !status.is_error() {
        return Ok(status);
    }
    // SAFETY: the message is valid until this thread's next failing call, and is copied here.
    let message = unsafe { text::lossy(sys::towline_last_error()) };
    Err(Error::new(status, if message.is_empty() { status.text().into() } else { message }))
}

/// The status of a call that leaves no message with `AGAIN` and `NOT_YET`, as calls on the data path and waits do.
pub(crate) fn check_quietly(code: i32, what: &str) -> Result<Status> {
    let status = Status(code);
    if status == Status::AGAIN || status == Status::NOT_YET {
        return Err(Error::new(status, format!("{what}: {}", status.text())));
    }
    check(code)
}

/// The status of a wait as a result: an end that is an error with its own sentence, which `sentence` reads.
pub(crate) fn ended(status: Status, sentence: impl FnOnce() -> Result<String>) -> Result<Status> {
    if !status.is_error() {
        return Ok(status);
    }
    let text = if status == Status::NOT_YET { status.text().to_string() } else { sentence()? };
    Err(Error::new(status, text))
}
