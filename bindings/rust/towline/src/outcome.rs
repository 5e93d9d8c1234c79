use std::time::Duration;

use towline_sys::{self as sys, Status};

/// Sides on which no byte of a post can land any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fence {
    /// This process's memory.
    Local,
    /// The peer's memory.
    Remote,
    /// Both.
    Both,
}

impl Fence {
    pub(crate) fn native(self) -> u32 {
        match self {
            Fence::Local => sys::TOWLINE_FENCE_LOCAL,
            Fence::Remote => sys::TOWLINE_FENCE_REMOTE,
            Fence::Both => sys::TOWLINE_FENCE_LOCAL | sys::TOWLINE_FENCE_REMOTE,
        }
    }
}

/// The blocks of a post that failed: `count` of them from position `first` in the order of the post's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailedRange {
    /// Position in the order of the post's blocks, not an index into a list.
    pub first: u64,
    /// How many blocks.
    pub count: u64,
    /// Why.
    pub status: Status,
    /// errno or the vendor library's code; 0: none.
    pub vendor_code: i32,
}

/// The result of a post.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The outcome, or `IN_PROGRESS`.
    pub status: Status,
    /// Bytes that have certainly been moved.
    pub bytes: u64,
    /// Bytes of the whole post.
    pub total_bytes: u64,
    /// Whether no byte can land in, or be read from, local memory any more.
    pub fenced_locally: bool,
    /// The same for the peer's memory.
    pub fenced_remotely: bool,
    /// From post to end; zero if it was done inside `post`.
    pub duration: Duration,
    /// The first failed ranges, at most eight.
    pub failed: Vec<FailedRange>,
}

impl From<&sys::towline_result_t> for Outcome {
    fn from(native: &sys::towline_result_t) -> Self {
        let kept = native.failed.len().min(native.failed_ranges as usize);
        Outcome {
            status: Status(native.status),
            bytes: native.bytes,
            total_bytes: native.total_bytes,
            fenced_locally: native.fences & sys::TOWLINE_FENCE_LOCAL != 0,
            fenced_remotely: native.fences & sys::TOWLINE_FENCE_REMOTE != 0,
            duration: Duration::from_nanos(native.ended_at_ns.saturating_sub(native.posted_at_ns)),
            failed: native.failed[..kept].iter().map(FailedRange::from).collect(),
        }
    }
}

impl From<&sys::towline_failed_range_t> for FailedRange {
    fn from(range: &sys::towline_failed_range_t) -> Self {
        FailedRange {
            first: range.first,
            count: range.count,
            status: Status(range.status),
            vendor_code: range.vendor_code,
        }
    }
}
