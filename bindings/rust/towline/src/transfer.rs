use std::future::poll_fn;
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use async_io::Timer;
use towline_sys::{self as sys, Op, Status};

use crate::agent::{Agent, AgentHandle};
use crate::block_list::Selection;
use crate::deadline::Timeout;
use crate::error::{check, check_quietly, Error, Result};
use crate::reaper::{self, Corpse};
use crate::text;
use crate::wake::{self, Shared};

/// Options of a transfer.
#[derive(Clone, Debug, Default)]
pub struct TransferOptions {
    /// Delivered to the peer after the data; `Some` of nothing is a notice without bytes.
    pub notice: Option<Vec<u8>>,
    /// The peer's counter to add to after the data, by its key, and how much.
    pub count: Option<(u64, u64)>,
    /// From each post. Default: the agent's.
    pub timeout: Option<Duration>,
    /// Forces one backend by name; empty: the planner chooses.
    pub backend: String,
    /// Engines to split the work over; 0: one.
    pub workers: u32,
    /// Allows [`Transfer::run`]. Posts of small transfers into mapped memory are then slower by some 100 ns, since another
    /// thread may have to be told.
    pub awaitable: bool,
}

/// Sides on which no byte of a transfer can land any more.
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

/// The blocks of a post that failed: `count` of them from position `first` in the order of the transfer's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailedRange {
    /// Position in the order of the transfer's blocks, not an index into a list.
    pub first: u64,
    /// How many blocks.
    pub count: u64,
    /// Why.
    pub status: Status,
    /// errno or the vendor library's code; 0: none.
    pub vendor_code: i32,
}

/// The result of the last post.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The outcome, `IN_PROGRESS`, or `NOT_FOUND` if it was never posted.
    pub status: Status,
    /// Bytes that have certainly been moved.
    pub bytes: u64,
    /// Bytes of the whole transfer.
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

/// A READ or WRITE of chosen blocks. Post it any number of times, once at a time.
///
/// Dropping it cancels a post in flight and never blocks: a thread waits for the fence if need be.
pub struct Transfer {
    parts: ManuallyDrop<Parts>,
    shared: Option<Arc<Shared>>,
}

struct Parts {
    handle: NonNull<sys::towline_transfer_t>,
    _agent: AgentHandle,
}

// SAFETY: any thread may call any function of the C API.
unsafe impl Send for Parts {}
unsafe impl Sync for Parts {}

impl Agent {
    /// A transfer of blocks of `local` against blocks of `remote`, pairwise in order. `Op::READ` is from remote to local.
    /// Both sides must have the same number of bytes; block sizes may differ where one divides into the other.
    pub fn transfer<'a>(
        &self,
        op: Op,
        local: impl Into<Selection<'a>>,
        remote: impl Into<Selection<'a>>,
        options: &TransferOptions,
    ) -> Result<Transfer> {
        let (local, remote) = (local.into(), remote.into());
        for (side, name) in [(&local, "local"), (&remote, "remote")] {
            if !Arc::ptr_eq(side.list.agent(), self.handle()) {
                return Err(Error::new(Status::INVALID_ARGUMENT, format!("the {name} list belongs to another agent")));
            }
        }
        let backend = text::optional("backend", &options.backend)?;
        let shared = options.awaitable.then(|| Arc::new(Shared::default()));
        let (counter_key, counter_add) = options.count.unwrap_or_default();
        let native = sys::towline_transfer_options_t {
            struct_size: std::mem::size_of::<sys::towline_transfer_options_t>(),
            notice: options.notice.as_ref().map_or(ptr::null(), |notice| notice.as_ptr().cast()),
            notice_bytes: options.notice.as_ref().map_or(0, Vec::len),
            counter_key,
            counter_add,
            timeout_ns: options.timeout.map_or(0, |time| Timeout::from(time).nanoseconds_not_default()),
            backend: text::pointer(&backend),
            workers: options.workers,
            user_data: shared.as_ref().map_or(ptr::null_mut(), |shared| Arc::as_ptr(shared).cast_mut().cast()),
            callback: shared.as_ref().map(|_| wake::ended as unsafe extern "C" fn(_)),
            ..Default::default()
        };
        let (local_picks, remote_picks) = (local.picks.native(), remote.picks.native());
        let mut handle = ptr::null_mut();
        // SAFETY: every pointer outlives the call; `handle` is written on success only.
        check(unsafe {
            sys::towline_transfer_create(
                self.handle().native(),
                op.0,
                local.list.native(),
                local_picks.as_ref().map_or(ptr::null(), ptr::from_ref),
                remote.list.native(),
                remote_picks.as_ref().map_or(ptr::null(), ptr::from_ref),
                &native,
                &mut handle,
            )
        })?;
        // SAFETY: a successful call gives a handle.
        let handle = unsafe { NonNull::new_unchecked(handle) };
        Ok(Transfer { parts: ManuallyDrop::new(Parts { handle, _agent: self.handle().clone() }), shared })
    }
}

impl Transfer {
    /// Starts it. `Ok(OK)`: already done. `Ok(IN_PROGRESS)`: accepted, exactly one outcome follows. An error: not
    /// accepted; `AGAIN` if only credit or space is missing. Allocates nothing on success.
    #[inline]
    pub fn post(&self) -> Result<Status> {
        if let Some(shared) = &self.shared {
            // The callback's reference; it comes exactly once for each accepted post.
            std::mem::forget(Arc::clone(shared));
        }
        // SAFETY: the handle is valid.
        let code = unsafe { sys::towline_transfer_post(self.native()) };
        if code < 0 {
            return Err(self.refused(code));
        }
        Ok(Status(code))
    }

    #[cold]
    fn refused(&self, code: i32) -> Error {
        if let Some(shared) = &self.shared {
            // SAFETY: post() took this reference, and no callback comes for a post that was refused.
            unsafe { Arc::decrement_strong_count(Arc::as_ptr(shared)) };
        }
        if code == Status::AGAIN.0 {
            return Error::new(Status::AGAIN, format!("post: {}", Status::AGAIN.text()));
            // it leaves no message
        }
        check(code).expect_err("the code of a refused post")
    }

    /// `IN_PROGRESS` or the outcome. Helps to make progress.
    #[inline]
    pub fn poll(&self) -> Status {
        // SAFETY: the handle is valid.
        Status(unsafe { sys::towline_transfer_poll(self.native()) })
    }

    /// Waits for the outcome. An error with the status `NOT_YET`: the time passed first, and the transfer goes on. Any
    /// other is the transfer's own end.
    pub fn wait(&self, timeout: impl Into<Timeout>) -> Result<()> {
        let timeout_ns = timeout.into().nanoseconds();
        // SAFETY: the handle is valid.
        self.ended(Status(unsafe { sys::towline_transfer_wait(self.native(), timeout_ns) })).map(drop)
    }

    /// Posts it and waits for its outcome. While credit or space is missing it tries again. Dropping the future cancels
    /// the post; its memory stays owned by its regions until the fence. Needs [`TransferOptions::awaitable`], and
    /// [`Progress::HOSTED`](crate::Progress::HOSTED) or another thread that drives the agent.
    pub async fn run(&self) -> Result<()> {
        let Some(shared) = &self.shared else {
            let text = "run: make the transfer with TransferOptions::awaitable";
            return Err(Error::new(Status::UNSUPPORTED, text));
        };
        let mut pause = Duration::from_micros(50);
        loop {
            match self.post() {
                Ok(_) => break,
                Err(error) if error.is_retryable() => {
                    Timer::after(pause).await;
                    pause = (pause * 2).min(Duration::from_millis(5));
                }
                Err(error) => return Err(error),
            }
        }
        let guard = CancelOnDrop(self);
        let status = poll_fn(|context| {
            shared.waker.register(context.waker());
            match self.poll() {
                Status::IN_PROGRESS => Poll::Pending,
                status => Poll::Ready(status),
            }
        })
        .await;
        std::mem::forget(guard);
        self.ended(status).map(drop)
    }

    /// Waits until no byte of the transfer can land on the given side any more; `NOT_YET` if one still can.
    pub fn wait_fenced(&self, fence: Fence, timeout: impl Into<Timeout>) -> Result<()> {
        let timeout_ns = timeout.into().nanoseconds();
        // SAFETY: the handle is valid.
        let code = unsafe { sys::towline_transfer_wait_fenced(self.native(), fence.native(), timeout_ns) };
        check_quietly(code, "wait_fenced").map(drop)
    }

    /// Ends it with `CANCELLED` if it has no outcome yet. The fence follows.
    pub fn cancel(&self) {
        // SAFETY: the handle is valid. It only fails where there is nothing to cancel.
        unsafe { sys::towline_transfer_cancel(self.native()) };
    }

    /// Replaces the notice of later posts; `BUSY` while in flight.
    pub fn set_notice(&self, notice: &[u8]) -> Result<()> {
        // SAFETY: the bytes are copied by the call.
        let code = unsafe { sys::towline_transfer_set_notice(self.native(), notice.as_ptr().cast(), notice.len()) };
        check(code).map(drop)
    }

    /// The result of the last post.
    pub fn outcome(&self) -> Result<Outcome> {
        let mut native =
            sys::towline_result_t { struct_size: std::mem::size_of::<sys::towline_result_t>(), ..Default::default() };
        // SAFETY: the handle is valid.
        check(unsafe { sys::towline_transfer_result(self.native(), &mut native) })?;
        Ok(Outcome::from(&native))
    }

    /// The backend that moves the bytes, its path, the reason, and the reasons against others: JSON.
    pub fn route(&self) -> Result<String> {
        // SAFETY: buffer and capacity belong together.
        text::read_text(|buffer, capacity, needed| unsafe {
            sys::towline_transfer_route(self.native(), buffer.cast(), capacity, needed)
        })
    }

    #[inline]
    fn ended(&self, status: Status) -> Result<Status> {
        if !status.is_error() {
            return Ok(status);
        }
        if status == Status::NOT_YET {
            return Err(Error::new(status, status.text()));
        }
        Err(self.describe(status))
    }

    #[cold]
    fn describe(&self, status: Status) -> Error {
        let text = match self.outcome() {
            Ok(outcome) => format!(
                "the transfer of {} bytes ended: {}; {} bytes were moved",
                outcome.total_bytes,
                status.text(),
                outcome.bytes
            ),
            Err(_) => status.text().to_owned(),
        };
        Error::new(status, text)
    }

    /// The handle of the C API, for calls that this crate does not have. It stays this object's.
    #[inline]
    pub fn native(&self) -> *mut sys::towline_transfer_t {
        self.parts.handle.as_ptr()
    }
}

struct CancelOnDrop<'a>(&'a Transfer);

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        // SAFETY: taken once.
        let mut parts = unsafe { ManuallyDrop::take(&mut self.parts) };
        if !parts.retry(Duration::ZERO) {
            reaper::free_later(Box::new(parts));
        }
    }
}

impl Corpse for Parts {
    fn retry(&mut self, wait: Duration) -> bool {
        // SAFETY: the handle is valid until a call succeeds, which is the last one.
        let code = unsafe { sys::towline_transfer_destroy(self.handle.as_ptr(), wait.as_nanos() as u64) };
        code != Status::NOT_YET.0
    }
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

impl std::fmt::Debug for Transfer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Transfer").field("outcome", &self.outcome()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Access, Blocks, Memory, RegionOptions};

    const WAIT: Duration = Duration::from_secs(10);

    /// Each accepted post has exactly one callback, also where it is done at once, and a refused one has none: else the
    /// references that posts take would not come back.
    #[test]
    fn every_reference_that_a_post_takes_comes_back() {
        let (writer, owner) = (Agent::new("writer").unwrap(), Agent::new("owner").unwrap());
        let source =
            writer.register(Memory::allocate(4096).unwrap(), &RegionOptions::with_access(Access::ALL)).unwrap();
        let target = owner.register(Memory::allocate(4096).unwrap(), &RegionOptions::with_access(Access::ALL)).unwrap();
        let peer = writer.connect(&owner.address().unwrap(), WAIT).unwrap();
        let mine = writer.block_list(&[Blocks::at(source.address(), 4096)]).unwrap();
        let theirs = peer.block_list(&[Blocks::at(target.address(), 4096)]).unwrap();
        for backend in ["", "shm", "tcp"] {
            let options = TransferOptions { backend: backend.into(), awaitable: true, ..Default::default() };
            let Ok(write) = writer.transfer(Op::WRITE, &mine, &theirs, &options) else { continue };
            let shared = write.shared.clone().unwrap();
            for _ in 0..100 {
                write.post().unwrap();
                let _ = write.post().inspect_err(|error| assert_eq!(error.status(), Status::BUSY));
                write.wait(WAIT).unwrap();
            }
            write.cancel();
            drop(write);
            let until = std::time::Instant::now() + WAIT;
            while Arc::strong_count(&shared) != 1 {
                assert!(std::time::Instant::now() < until, "{backend}: {} references", Arc::strong_count(&shared));
                std::thread::yield_now();
            }
        }
    }
}
