use std::future::poll_fn;
use std::mem::size_of;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::task::Poll;

use towline_sys::{self as sys, Priority, Status};

use crate::agent::{Agent, AgentHandle};
use crate::deadline::Timeout;
use crate::error::{check, check_quietly, ended, Result};
use crate::outcome::Fence;
use crate::post::notice_pointer;
use crate::text;
use crate::wake::{self, Shared};

/// Options of a group.
#[derive(Clone, Copy, Debug)]
pub struct GroupOptions<'a> {
    /// To each peer of its members, after the last byte of the last member, if all succeeded; empty: none.
    pub notice: &'a [u8],
    /// The peers' counter to add to then, by its key, and how much.
    pub count: Option<(u64, u64)>,
    /// The timeout of the group and every member. Default: the agent's.
    pub timeout: Option<Timeout>,
    /// The priority of every member.
    pub priority: Priority,
    /// The tag of the notice, which the peers' queues can subscribe to; 0: none.
    pub tag: u64,
}

impl Default for GroupOptions<'_> {
    fn default() -> Self {
        GroupOptions { notice: &[], count: None, timeout: None, priority: Priority::BULK, tag: 0 }
    }
}

/// Posts with one outcome, one notice, one deadline, one fence. Members may join while others move; [`close`](Group::close)
/// says that no more come. Dropping an open group cancels it; a closed one goes on.
pub struct Group {
    native: NonNull<sys::towline_group_t>,
    pub(crate) shared: Arc<Shared>,
    _agent: AgentHandle,
}

// SAFETY: any thread may call any function of the C API.
unsafe impl Send for Group {}
unsafe impl Sync for Group {}

impl Agent {
    /// A group, which posts of any of this agent's plans may join.
    pub fn group(&self, options: &GroupOptions<'_>) -> Result<Group> {
        let shared = Arc::new(Shared::default());
        let (counter_key, counter_add) = options.count.unwrap_or_default();
        let native = sys::towline_group_options_t {
            struct_size: size_of::<sys::towline_group_options_t>(),
            notice: notice_pointer(options.notice),
            notice_bytes: options.notice.len(),
            counter_key,
            counter_add,
            deadline_ns: options.timeout.map_or(0, Timeout::monotonic_ns),
            priority: options.priority.0,
            tag: options.tag,
            user_data: Arc::into_raw(shared.clone()).cast_mut().cast(),
            callback: Some(wake::ended),
            ..Default::default()
        };
        let mut group = ptr::null_mut();
        // SAFETY: every pointer outlives the call; `group` is written on success only.
        let made = check(unsafe { sys::towline_group_create(self.handle().native(), &native, &mut group) });
        if let Err(error) = made {
            // SAFETY: the reference that the callback would have taken back.
            unsafe { Arc::decrement_strong_count(Arc::as_ptr(&shared)) };
            return Err(error);
        }
        // SAFETY: a successful call gives a handle.
        Ok(Group { native: unsafe { NonNull::new_unchecked(group) }, shared, _agent: self.handle().clone() })
    }
}

impl Group {
    pub(crate) fn native(&self) -> *mut sys::towline_group_t {
        self.native.as_ptr()
    }

    /// No more members come.
    pub fn close(&self) -> Result<Status> {
        // SAFETY: the handle is valid.
        let code = unsafe { sys::towline_group_close(self.native.as_ptr()) };
        if code == Status::INVALID_ARGUMENT.0 {
            return check(code);
        }
        self.ended(Status(code))
    }

    /// `IN_PROGRESS` or the outcome.
    pub fn poll(&self) -> Status {
        // SAFETY: the handle is valid.
        Status(unsafe { sys::towline_group_poll(self.native.as_ptr()) })
    }

    /// Waits for the outcome. An error with the status `NOT_YET`: the time passed first, and the group goes on.
    pub fn wait(&self, timeout: impl Into<Timeout>) -> Result<()> {
        let timeout_ns = timeout.into().nanoseconds();
        // SAFETY: the handle is valid.
        self.ended(Status(unsafe { sys::towline_group_wait(self.native.as_ptr(), timeout_ns) })).map(drop)
    }

    /// Waits for the outcome. Dropping the future changes nothing. One task at a time.
    pub async fn done(&self) -> Result<()> {
        let status = poll_fn(|context| {
            self.shared.waker.register(context.waker());
            match self.poll() {
                Status::IN_PROGRESS => Poll::Pending,
                status => Poll::Ready(status),
            }
        })
        .await;
        self.ended(status).map(drop)
    }

    /// The fences of all members.
    pub fn wait_fenced(&self, fence: Fence, timeout: impl Into<Timeout>) -> Result<()> {
        let timeout_ns = timeout.into().nanoseconds();
        // SAFETY: the handle is valid.
        let code = unsafe { sys::towline_group_wait_fenced(self.native.as_ptr(), fence.native(), timeout_ns) };
        check_quietly(code, "wait_fenced").map(drop)
    }

    /// Ends it, and every member in flight, with `CANCELLED`.
    pub fn cancel(&self) {
        // SAFETY: the handle is valid. It only fails where there is nothing to cancel.
        unsafe { sys::towline_group_cancel(self.native.as_ptr()) };
    }

    fn ended(&self, status: Status) -> Result<Status> {
        ended(status, || {
            // SAFETY: buffer and capacity belong together.
            text::read_text(|buffer, capacity, needed| unsafe {
                sys::towline_group_error(self.native.as_ptr(), buffer.cast(), capacity, needed)
            })
        })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // SAFETY: released once.
        unsafe { sys::towline_group_release(self.native.as_ptr()) };
    }
}

impl std::fmt::Debug for Group {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Group").field("status", &self.poll()).finish_non_exhaustive()
    }
}
