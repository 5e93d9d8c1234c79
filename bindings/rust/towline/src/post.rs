use std::ffi::c_void;
use std::marker::PhantomData;
use std::mem::size_of;
use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use towline_sys::{self as sys, Priority, Status};

use crate::block_list::Picks;
use crate::deadline::Timeout;
use crate::error::{check, check_quietly, ended, Result};
use crate::group::Group;
use crate::outcome::{Fence, Outcome};
use crate::plan::PlanHandle;
use crate::queue::{token_pointer, Queue};
use crate::text;

/// Whose work a post that moves memory of a GPU of this agent comes after.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stream {
    /// Nothing is said: such a post is refused, and any other runs at once.
    #[default]
    None,
    /// Runs at once, whatever streams do: what writes the bytes was synchronised.
    Unordered,
    /// In the order of this stream of the application's.
    Cuda(CudaStream),
}

/// A CUstream or cudaStream_t. Towline hands it to the driver, so that only unsafe code makes one:
///
/// ```compile_fail,E0133
/// towline::CudaStream::from_raw(8 as *mut _);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CudaStream(*mut c_void);

// SAFETY: CUDA takes a stream from any thread.
unsafe impl Send for CudaStream {}
// SAFETY: as above.
unsafe impl Sync for CudaStream {}

impl CudaStream {
    /// The default stream.
    pub const DEFAULT: CudaStream = CudaStream(ptr::null_mut());

    /// # Safety
    ///
    /// `stream` is null, which is the default stream, or a CUstream or cudaStream_t of this process, and stays one until the
    /// last post in its order has ended.
    pub const unsafe fn from_raw(stream: *mut c_void) -> CudaStream {
        CudaStream(stream)
    }
}

/// Options of one post of a plan.
#[derive(Clone, Copy, Debug)]
pub struct PostOptions<'a> {
    /// Blocks of the list that bytes come from.
    pub from: Picks<'a>,
    /// Blocks of the list that they go to, paired in order.
    pub to: Picks<'a>,
    /// Delivered to the peer after the data; empty: none.
    pub notice: &'a [u8],
    /// The peer's counter to add to after the data, by its key, and how much.
    pub count: Option<(u64, u64)>,
    /// Default: the plan's timeout.
    pub timeout: Option<Timeout>,
    /// The tag of the notice, which the peer's queues can subscribe to; 0: none.
    pub tag: u64,
    /// The group that it joins.
    pub group: Option<&'a Group>,
    /// Latency goes before bulk that has not begun.
    pub priority: Priority,
    /// For memory of a GPU of this agent.
    pub stream: Stream,
    /// Gets an event `DONE` with this token; [`Plan::run`](crate::Plan::run) uses none.
    pub queue: Option<(&'a Queue, u64)>,
}

impl Default for PostOptions<'_> {
    fn default() -> Self {
        PostOptions {
            from: Picks::All,
            to: Picks::All,
            notice: &[],
            count: None,
            timeout: None,
            tag: 0,
            group: None,
            priority: Priority::BULK,
            stream: Stream::None,
            queue: None,
        }
    }
}

impl PostOptions<'_> {
    #[inline]
    pub(crate) fn native(&self) -> sys::towline_post_options_t {
        let (counter_key, counter_add) = self.count.unwrap_or_default();
        let (stream_kind, stream) = match self.stream {
            Stream::None => (sys::TOWLINE_STREAM_NONE, ptr::null_mut()),
            Stream::Unordered => (sys::TOWLINE_STREAM_UNORDERED, ptr::null_mut()),
            Stream::Cuda(stream) => (sys::TOWLINE_STREAM_CUDA, stream.0),
        };
        sys::towline_post_options_t {
            struct_size: size_of::<sys::towline_post_options_t>(),
            from: self.from.native(),
            to: self.to.native(),
            notice: notice_pointer(self.notice),
            notice_bytes: self.notice.len(),
            counter_key,
            counter_add,
            deadline_ns: self.timeout.map_or(0, Timeout::monotonic_ns),
            group: self.group.map_or(ptr::null_mut(), Group::native),
            tag: self.tag,
            queue: self.queue.map_or(ptr::null_mut(), |(queue, _)| queue.native()),
            user_data: self.queue.map_or(ptr::null_mut(), |(_, token)| token_pointer(token)),
            priority: self.priority.0,
            stream_kind,
            stream,
            ..Default::default()
        }
    }
}

pub(crate) fn notice_pointer(notice: &[u8]) -> *const c_void {
    if notice.is_empty() {
        return ptr::null();
    }
    notice.as_ptr().cast()
}

/// A post of a plan: one outcome and one fence. Dropping it lets it go on, as long as its plan is held: a plan that ends cancels
/// its posts.
pub struct Post {
    native: NonNull<sys::towline_post_t>,
    _plan: Option<Arc<PlanHandle>>, // None: a ScopedPost borrows the plan
}

// SAFETY: any thread may call any function of the C API.
unsafe impl Send for Post {}
unsafe impl Sync for Post {}

impl Post {
    #[inline]
    pub(crate) fn new(native: NonNull<sys::towline_post_t>, plan: Option<Arc<PlanHandle>>) -> Post {
        Post { native, _plan: plan }
    }

    /// `IN_PROGRESS` or the outcome. Helps to make progress.
    pub fn poll(&self) -> Status {
        // SAFETY: the handle is valid.
        Status(unsafe { sys::towline_post_poll(self.native.as_ptr()) })
    }

    /// Waits for the outcome. An error with the status `NOT_YET`: the time passed first, and the post goes on. Any other
    /// is the post's own end.
    pub fn wait(&self, timeout: impl Into<Timeout>) -> Result<()> {
        let timeout_ns = timeout.into().nanoseconds();
        // SAFETY: the handle is valid.
        self.ended(Status(unsafe { sys::towline_post_wait(self.native.as_ptr(), timeout_ns) })).map(drop)
    }

    /// Waits until no byte of it can land on the given side any more; `NOT_YET` if one still can, and `UNSUPPORTED` at once
    /// where the backend can't say when that is.
    pub fn wait_fenced(&self, fence: Fence, timeout: impl Into<Timeout>) -> Result<()> {
        let timeout_ns = timeout.into().nanoseconds();
        // SAFETY: the handle is valid.
        let code = unsafe { sys::towline_post_wait_fenced(self.native.as_ptr(), fence.native(), timeout_ns) };
        check_quietly(code, "wait_fenced").map(drop)
    }

    /// Ends it with `CANCELLED` if it has no outcome yet. The fence follows.
    pub fn cancel(&self) {
        // SAFETY: the handle is valid. It only fails where there is nothing to cancel.
        unsafe { sys::towline_post_cancel(self.native.as_ptr()) };
    }

    /// The result.
    pub fn outcome(&self) -> Result<Outcome> {
        let mut native =
            sys::towline_result_t { struct_size: size_of::<sys::towline_result_t>(), ..Default::default() };
        // SAFETY: the handle is valid.
        check(unsafe { sys::towline_post_result(self.native.as_ptr(), &mut native) })?;
        Ok(Outcome::from(&native))
    }

    /// The backend that moves it, or has moved it, as [`Plan::backend`](crate::Plan::backend).
    pub fn backend(&self) -> Result<String> {
        // SAFETY: buffer and capacity belong together.
        text::read_text(|buffer, capacity, needed| unsafe {
            sys::towline_post_backend(self.native.as_ptr(), buffer.cast(), capacity, needed)
        })
    }

    pub(crate) fn native(&self) -> *mut sys::towline_post_t {
        self.native.as_ptr()
    }

    pub(crate) fn ended(&self, status: Status) -> Result<Status> {
        ended(status, || {
            // SAFETY: buffer and capacity belong together.
            text::read_text(|buffer, capacity, needed| unsafe {
                sys::towline_post_error(self.native.as_ptr(), buffer.cast(), capacity, needed)
            })
        })
    }
}

impl Drop for Post {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: released once.
        unsafe { sys::towline_post_release(self.native.as_ptr()) };
    }
}

/// A [`Post`] that borrows its plan instead of holding it, and so costs about 10 ns less: see
/// [`Plan::post_scoped`](crate::Plan::post_scoped). It has all of a post's methods.
#[derive(Debug)]
pub struct ScopedPost<'plan> {
    post: Post,
    _plan: PhantomData<&'plan PlanHandle>,
}

impl ScopedPost<'_> {
    #[inline]
    pub(crate) fn new(native: NonNull<sys::towline_post_t>, _plan: &PlanHandle) -> ScopedPost<'_> {
        ScopedPost { post: Post::new(native, None), _plan: PhantomData }
    }
}

impl Deref for ScopedPost<'_> {
    type Target = Post;

    #[inline]
    fn deref(&self) -> &Post {
        &self.post
    }
}

impl std::fmt::Debug for Post {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Post").field("outcome", &self.outcome()).finish_non_exhaustive()
    }
}
