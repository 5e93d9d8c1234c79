use std::future::poll_fn;
use std::mem::size_of;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use async_io::Timer;
use towline_sys::{self as sys, Status};

use crate::agent::{Agent, AgentHandle};
use crate::block_list::{BlockList, Selection};
use crate::deadline::Timeout;
use crate::error::{check, check_quietly, Error, Result};
use crate::post::{Post, PostOptions, ScopedPost};
use crate::text;
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
    /// Pairs the bytes of picked blocks in order, whatever their lists' layouts say.
    pub recut: bool,
}

/// A way `from` one list `to` another, made once for a pair of lists. Each post of it brings picks, a notice and a deadline of
/// its own, and several may be in flight. Clones are handles of the same plan.
#[derive(Clone)]
pub struct Plan {
    handle: Arc<PlanHandle>,
}

pub(crate) struct PlanHandle {
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
            recut: options.recut.into(),
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

    /// Starts one post of a plan of its own, from picked blocks to picked blocks: `agent.copy(mine.pick(&[3]), theirs.pick(&[10]),
    /// ..)`. The picks of `options` are not used. The plan ends with the post, so dropping the post cancels it. [`Agent::plan`]
    /// costs less where it is used again.
    pub fn copy<'a>(
        &self,
        from: impl Into<Selection<'a>>,
        to: impl Into<Selection<'a>>,
        options: &PostOptions<'_>,
    ) -> Result<Post> {
        let (from, to) = (from.into(), to.into());
        let plan = self.plan(from.list, to.list, &PlanOptions::default())?;
        plan.post(&PostOptions { from: from.picks, to: to.picks, ..*options })
    }
}

impl Plan {
    /// Starts a post. An error: not accepted; `AGAIN` if only credit or space is missing.
    #[inline]
    pub fn post(&self, options: &PostOptions<'_>) -> Result<Post> {
        let post = self.start(&mut self.checked(options)?)?;
        Ok(Post::new(post, Some(self.handle.clone())))
    }

    /// The same, of a post that borrows the plan, so that the plan need not be counted up and down. Such a post can't
    /// outlive the plan:
    ///
    /// ```compile_fail
    /// fn outlives(plan: towline::Plan) -> towline::ScopedPost<'static> {
    ///     plan.post_scoped(&towline::PostOptions::default()).unwrap()
    /// }
    /// ```
    #[inline]
    pub fn post_scoped(&self, options: &PostOptions<'_>) -> Result<ScopedPost<'_>> {
        let post = self.start(&mut self.checked(options)?)?;
        Ok(ScopedPost::new(post, &self.handle))
    }

    #[inline]
    fn checked(&self, options: &PostOptions<'_>) -> Result<sys::towline_post_options_t> {
        if let Some((queue, _)) = options.queue {
            queue.check_agent(&self.handle.agent)?;
        }
        Ok(options.native())
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

    /// The backend that moves the bytes now, or "staged": two legs through staging memory.
    pub fn backend(&self) -> Result<String> {
        // SAFETY: buffer and capacity belong together.
        text::read_text(|buffer, capacity, needed| unsafe {
            sys::towline_plan_backend(self.native(), buffer.cast(), capacity, needed)
        })
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
        let mut native = PostOptions { queue: None, ..*options }.native();
        native.user_data = Arc::into_raw(shared.clone()).cast_mut().cast();
        native.callback = Some(wake::ended);
        // SAFETY: no callback comes for a post that was refused, so the reference is taken back here.
        let post =
            self.start(&mut native).inspect_err(|_| unsafe { Arc::decrement_strong_count(Arc::as_ptr(shared)) })?;
        Ok(Post::new(post, Some(self.handle.clone())))
    }

    #[inline]
    fn start(&self, native: &mut sys::towline_post_options_t) -> Result<NonNull<sys::towline_post_t>> {
        let mut post = ptr::null_mut();
        // SAFETY: every pointer outlives the call; `post` is written on success only.
        check_quietly(unsafe { sys::towline_plan_post(self.native(), native, &mut post) }, "post")?;
        // SAFETY: an accepted post has a handle.
        Ok(unsafe { NonNull::new_unchecked(post) })
    }

    /// The handle of the C API, for calls that this crate does not have. It stays this object's.
    pub fn native(&self) -> *mut sys::towline_plan_t {
        self.handle.native.as_ptr()
    }
}

struct CancelOnDrop<'a>(&'a Post);

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

impl std::fmt::Debug for Plan {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Plan").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Access, Blocks, GroupOptions, Memory, RegionOptions};

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
        for backend in ["", "shm", "tcp"] {
            let options = PlanOptions { backend: backend.into(), ..Default::default() };
            let Ok(plan) = writer.plan(&mine, &theirs, &options) else { continue };
            for _ in 0..100 {
                plan.start_with(&PostOptions::default(), &shared).unwrap().wait(WAIT).unwrap();
                plan.start_with(&PostOptions::default(), &shared).unwrap().cancel();
                let wrong = PostOptions { from: (&[7]).into(), ..Default::default() };
                plan.start_with(&wrong, &shared).unwrap_err();
            }
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
