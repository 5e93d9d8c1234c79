use std::future::poll_fn;
use std::mem::size_of;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use async_io::Timer;
use towline_sys::{self as sys, Priority, Status};

use crate::agent::{Agent, AgentHandle};
use crate::block_list::{BlockList, Picks};
use crate::deadline::Timeout;
use crate::error::{check, check_quietly, Error, Result};
use crate::queue::{token_pointer, Queue};
use crate::text;
use crate::transfer::{Fence, Outcome};
use crate::wake::{self, Shared};

/// Options of a plan.
#[derive(Clone, Debug, Default)]
pub struct PlanOptions {
    /// The timeout of posts without a deadline. Default: the agent's.
    pub timeout: Option<Duration>,
    /// Forces one backend by name; empty: the planner chooses.
    pub backend: String,
    /// The usual size of a post, for the choice of the backend; 0: 1 MiB, or the smaller list.
    pub usual_bytes: u64,
}

/// Whose work a post that moves memory of a GPU of this agent comes after.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stream {
    /// Nothing is said: such a post is refused, and any other runs at once.
    #[default]
    None,
    /// Runs at once, whatever streams do: what writes the bytes was synchronised.
    Unordered,
    /// In the order of this CUstream or cudaStream_t, given by its address; 0 is the default stream.
    Cuda(usize),
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
    /// Gets an event `DONE` with this token; [`Plan::run`] uses none.
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

/// A way `from` one list `to` another, made once for a pair of lists. Each post of it brings picks, a notice and a deadline of
/// its own, and several may be in flight. Clones are handles of the same plan.
#[derive(Clone)]
pub struct Plan {
    handle: Arc<PlanHandle>,
}

struct PlanHandle {
    native: NonNull<sys::towline_plan_t>,
    agent: AgentHandle,
}

// SAFETY: any thread may call any function of the C API.
unsafe impl Send for PlanHandle {}
unsafe impl Sync for PlanHandle {}

impl Drop for PlanHandle {
    fn drop(&mut self) {
        // SAFETY: released once. No post is held any more, since posts hold the plan.
        unsafe { sys::towline_plan_release(self.native.as_ptr()) };
    }
}

impl Agent {
    /// A plan from one list to another: one of them a peer's, or both this agent's. May wait for a connection.
    pub fn plan(&self, from: &BlockList, to: &BlockList, options: &PlanOptions) -> Result<Plan> {
        for (list, name) in [(from, "from"), (to, "to")] {
            if !Arc::ptr_eq(list.agent(), self.handle()) {
                let text = format!("the list `{name}` belongs to another agent");
                return Err(Error::new(Status::INVALID_ARGUMENT, text));
            }
        }
        let backend = text::optional("backend", &options.backend)?;
        let native = sys::towline_plan_options_t {
            struct_size: size_of::<sys::towline_plan_options_t>(),
            timeout_ns: options.timeout.map_or(0, |time| Timeout::from(time).nanoseconds_not_default()),
            backend: text::pointer(&backend),
            usual_bytes: options.usual_bytes,
            ..Default::default()
        };
        let mut plan = ptr::null_mut();
        // SAFETY: every pointer outlives the call; `plan` is written on success only.
        check(unsafe {
            sys::towline_plan_create(self.handle().native(), from.native(), to.native(), &native, &mut plan)
        })?;
        // SAFETY: a successful call gives a handle.
        let native = unsafe { NonNull::new_unchecked(plan) };
        Ok(Plan { handle: Arc::new(PlanHandle { native, agent: self.handle().clone() }) })
    }

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

fn notice_pointer(notice: &[u8]) -> *const std::ffi::c_void {
    if notice.is_empty() {
        return ptr::null();
    }
    notice.as_ptr().cast()
}

impl Plan {
    /// Starts a post. An error: not accepted; `AGAIN` if only credit or space is missing.
    pub fn post(&self, options: &PostOptions<'_>) -> Result<Post> {
        if let Some((queue, _)) = options.queue {
            queue.check_agent(&self.handle.agent)?;
        }
        let mut native = Self::native_options(options);
        self.start(&mut native)
    }

    /// Posts and waits for the outcome. While credit or space is missing it tries again. Dropping the future cancels the post;
    /// its memory stays owned by its regions until the fence.
    pub async fn run(&self, options: &PostOptions<'_>) -> Result<()> {
        let shared = Arc::new(Shared::default());
        let mut pause = Duration::from_micros(50);
        let post = loop {
            match self.start_with(options, &shared) {
                Ok(post) => break post,
                Err(error) if error.is_retryable() => {
                    Timer::after(pause).await;
                    pause = (pause * 2).min(Duration::from_millis(5));
                }
                Err(error) => return Err(error),
            }
        };
        let guard = CancelOnDrop(&post);
        let status = poll_fn(|context| {
            shared.waker.register(context.waker());
            match post.poll() {
                Status::IN_PROGRESS => Poll::Pending,
                status => Poll::Ready(status),
            }
        })
        .await;
        std::mem::forget(guard);
        post.ended(status).map(drop)
    }

    /// The way, and the ways not taken: JSON.
    pub fn route(&self) -> Result<String> {
        // SAFETY: buffer and capacity belong together.
        text::read_text(|buffer, capacity, needed| unsafe {
            sys::towline_plan_route(self.native(), buffer.cast(), capacity, needed)
        })
    }

    // No raw pointer may live across an await, so this is a step of its own.
    fn start_with(&self, options: &PostOptions<'_>, shared: &Arc<Shared>) -> Result<Post> {
        let mut native = Self::native_options(&PostOptions { queue: None, ..*options });
        native.user_data = Arc::into_raw(shared.clone()).cast_mut().cast();
        native.callback = Some(wake::ended);
        // SAFETY: no callback comes for a post that was refused, so the reference is taken back here.
        self.start(&mut native).inspect_err(|_| unsafe { Arc::decrement_strong_count(Arc::as_ptr(shared)) })
    }

    fn start(&self, native: &mut sys::towline_post_options_t) -> Result<Post> {
        let mut post = ptr::null_mut();
        // SAFETY: every pointer outlives the call; `post` is written on success only.
        check(unsafe { sys::towline_plan_post(self.native(), native, &mut post) })?;
        // SAFETY: an accepted post has a handle.
        Ok(Post { native: unsafe { NonNull::new_unchecked(post) }, _plan: self.handle.clone() })
    }

    fn native_options(options: &PostOptions<'_>) -> sys::towline_post_options_t {
        let (counter_key, counter_add) = options.count.unwrap_or_default();
        let (stream_kind, stream) = match options.stream {
            Stream::None => (sys::TOWLINE_STREAM_NONE, 0),
            Stream::Unordered => (sys::TOWLINE_STREAM_UNORDERED, 0),
            Stream::Cuda(stream) => (sys::TOWLINE_STREAM_CUDA, stream),
        };
        sys::towline_post_options_t {
            struct_size: size_of::<sys::towline_post_options_t>(),
            from: options.from.native().unwrap_or_default(),
            to: options.to.native().unwrap_or_default(),
            notice: notice_pointer(options.notice),
            notice_bytes: options.notice.len(),
            counter_key,
            counter_add,
            deadline_ns: options.timeout.map_or(0, Timeout::monotonic_ns),
            group: options.group.map_or(ptr::null_mut(), Group::native),
            tag: options.tag,
            queue: options.queue.map_or(ptr::null_mut(), |(queue, _)| queue.native()),
            user_data: options.queue.map_or(ptr::null_mut(), |(_, token)| token_pointer(token)),
            priority: options.priority.0,
            stream_kind,
            stream: stream as *mut _,
            ..Default::default()
        }
    }

    fn native(&self) -> *mut sys::towline_plan_t {
        self.handle.native.as_ptr()
    }
}

/// A post of a plan: one outcome and one fence. Dropping it lets it go on.
pub struct Post {
    native: NonNull<sys::towline_post_t>,
    _plan: Arc<PlanHandle>,
}

// SAFETY: any thread may call any function of the C API.
unsafe impl Send for Post {}
unsafe impl Sync for Post {}

impl Post {
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

    /// Waits until no byte of it can land on the given side any more; `NOT_YET` if one still can.
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

    pub(crate) fn native(&self) -> *mut sys::towline_post_t {
        self.native.as_ptr()
    }

    fn ended(&self, status: Status) -> Result<Status> {
        if !status.is_error() {
            return Ok(status);
        }
        if status == Status::NOT_YET {
            return Err(Error::new(status, status.text()));
        }
        // SAFETY: buffer and capacity belong together.
        let text = text::read_text(|buffer, capacity, needed| unsafe {
            sys::towline_post_error(self.native.as_ptr(), buffer.cast(), capacity, needed)
        })?;
        Err(Error::new(status, text))
    }
}

impl Drop for Post {
    fn drop(&mut self) {
        // SAFETY: released once.
        unsafe { sys::towline_post_release(self.native.as_ptr()) };
    }
}

struct CancelOnDrop<'a>(&'a Post);

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

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
    shared: Arc<Shared>,
    _agent: AgentHandle,
}

// SAFETY: any thread may call any function of the C API.
unsafe impl Send for Group {}
unsafe impl Sync for Group {}

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
        if !status.is_error() {
            return Ok(status);
        }
        if status == Status::NOT_YET {
            return Err(Error::new(status, status.text()));
        }
        // SAFETY: buffer and capacity belong together.
        let text = text::read_text(|buffer, capacity, needed| unsafe {
            sys::towline_group_error(self.native.as_ptr(), buffer.cast(), capacity, needed)
        })?;
        Err(Error::new(status, text))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // SAFETY: released once.
        unsafe { sys::towline_group_release(self.native.as_ptr()) };
    }
}

impl std::fmt::Debug for Plan {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Plan").finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Post {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Post").field("outcome", &self.outcome()).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Group {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Group").field("status", &self.poll()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Access, Blocks, Memory, RegionOptions};

    const WAIT: Duration = Duration::from_secs(10);

    /// Each accepted post with a callback, and each group, gives its reference back.
    #[test]
    fn every_reference_that_a_callback_holds_comes_back() {
        let (writer, owner) = (Agent::new("writer").unwrap(), Agent::new("owner").unwrap());
        let source =
            writer.register(Memory::allocate(4096).unwrap(), &RegionOptions::with_access(Access::ALL)).unwrap();
        let target = owner.register(Memory::allocate(4096).unwrap(), &RegionOptions::with_access(Access::ALL)).unwrap();
        let peer = writer.connect(&owner.address().unwrap(), WAIT).unwrap();
        let mine = writer.block_list(&[Blocks::at(source.address(), 4096)]).unwrap();
        let theirs = peer.block_list(&[Blocks::at(target.address(), 4096)]).unwrap();
        let plan = writer.plan(&mine, &theirs, &PlanOptions::default()).unwrap();
        let shared = Arc::new(Shared::default());
        for _ in 0..100 {
            plan.start_with(&PostOptions::default(), &shared).unwrap().wait(WAIT).unwrap();
            let wrong = PostOptions { from: (&[7]).into(), ..Default::default() };
            plan.start_with(&wrong, &shared).unwrap_err();
        }
        let of_group = {
            let group = writer.group(&GroupOptions::default()).unwrap();
            plan.post(&PostOptions { group: Some(&group), ..Default::default() }).unwrap();
            group.close().unwrap();
            group.wait(WAIT).unwrap();
            group.shared.clone()
        };
        let until = std::time::Instant::now() + WAIT;
        while Arc::strong_count(&shared) != 1 || Arc::strong_count(&of_group) != 1 {
            let held = (Arc::strong_count(&shared), Arc::strong_count(&of_group));
            assert!(std::time::Instant::now() < until, "{held:?} references");
            std::thread::yield_now();
        }
    }
}
