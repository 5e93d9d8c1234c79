//! Event queues: one place for everything that an application waits for.

use std::mem::size_of;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::{Arc, OnceLock};

use async_io::Async;
use towline_sys::{self as sys, EventKind, Status};

use crate::agent::{Agent, AgentHandle};
use crate::counter::Counter;
use crate::deadline::Timeout;
use crate::error::{check, check_quietly, Error, Result};
use crate::group::Group;
use crate::outcome::Fence;
use crate::peer::Peer;
use crate::post::Post;
use crate::region::Region;
use crate::text;

const AT_ONCE: usize = 64;

/// Options of a queue.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueueOptions {
    /// Events that it holds at once, to come or waiting, besides notices. 0: 16,384.
    pub capacity: u32,
    /// An event of each peer that is connected, goes silent or is lost.
    pub peer_health: bool,
    /// The token of events that no call asked for.
    pub token: u64,
}

/// A queue of events. Each call that gets a queue and a token causes exactly one event with the token.
/// Clones are handles of the same queue. With the last one, waiting events are dropped, and so are those to come.
#[derive(Clone)]
pub struct Queue {
    handle: QueueHandle,
}

pub(crate) type QueueHandle = Arc<Inner>;

pub(crate) struct Inner {
    native: NonNull<sys::towline_queue_t>,
    events: OnceLock<Async<OwnedFd>>,
    agent: AgentHandle,
}

// SAFETY: any thread may call any function of the C API.
unsafe impl Send for Inner {}
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        drop(self.events.take());
        // SAFETY: released once. Events hold the queue, so they are gone.
        unsafe { sys::towline_queue_release(self.native.as_ptr()) };
    }
}

impl Agent {
    /// A queue of its own, so that a library and its application do not take each other's events.
    pub fn queue(&self, options: &QueueOptions) -> Result<Queue> {
        let native = sys::towline_queue_options_t {
            struct_size: size_of::<sys::towline_queue_options_t>(),
            capacity: options.capacity,
            peer_health: options.peer_health.into(),
            user_data: token_pointer(options.token),
        };
        let mut queue = ptr::null_mut();
        // SAFETY: the options outlive the call; `queue` is written on success only.
        check(unsafe { sys::towline_queue_create(self.handle().native(), &native, &mut queue) })?;
        // SAFETY: a successful call gives a handle.
        let native = unsafe { NonNull::new_unchecked(queue) };
        Ok(Queue { handle: Arc::new(Inner { native, events: OnceLock::new(), agent: self.handle().clone() }) })
    }
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Queue").finish_non_exhaustive()
    }
}

pub(crate) fn token_pointer(token: u64) -> *mut std::ffi::c_void {
    token as usize as *mut std::ffi::c_void
}

impl Queue {
    /// Takes the events that wait, at most 64. Never blocks; helps to make progress when there are none. `CLOSED`: the
    /// agent was closed, and everything was taken.
    pub fn take(&self) -> Result<Vec<Event>> {
        let mut native = [sys::towline_event_t::default(); AT_ONCE];
        // SAFETY: the array has this many entries of this size.
        let count = unsafe {
            sys::towline_queue_next(self.native(), native.as_mut_ptr(), AT_ONCE, size_of::<sys::towline_event_t>())
        };
        check_quietly(count.min(0), "take")?;
        let event = |native: &sys::towline_event_t| Event {
            native: *native,
            queue: self.handle.clone(),
            error: text::Replaced::default(),
        };
        Ok(native[..count as usize].iter().map(event).collect())
    }

    /// Waits for events. None come in time: an empty vector.
    pub fn wait(&self, timeout: impl Into<Timeout>) -> Result<Vec<Event>> {
        let timeout = timeout.into();
        let deadline_ns = timeout.monotonic_ns();
        loop {
            let events = self.take()?;
            if !events.is_empty() {
                return Ok(events);
            }
            // SAFETY: plain values.
            let code = unsafe { sys::towline_queue_wait(self.native(), deadline_ns) };
            if code == Status::NOT_YET.0 {
                return self.take();
            }
            check_quietly(code, "wait")?;
        }
    }

    /// The next events, without blocking the thread. Needs [`Progress::HOSTED`](crate::Progress::HOSTED), or another
    /// thread that drives the agent.
    pub async fn wait_async(&self) -> Result<Vec<Event>> {
        loop {
            let events = self.take()?;
            if !events.is_empty() {
                return Ok(events);
            }
            self.handle.readable()?.readable().await.map_err(lost_descriptor)?;
        }
    }

    /// A descriptor that is readable while events wait. It belongs to the queue.
    pub fn event_fd(&self) -> Result<BorrowedFd<'_>> {
        self.handle.event_fd()
    }

    /// Notices whose tag has `tag` in the bits of `mask` come to this queue; a mask of 0 takes every notice. The queue that
    /// subscribed first gets a notice to which several have.
    pub fn subscribe(&self, tag: u64, mask: u64) -> Result<()> {
        // SAFETY: plain values.
        check(unsafe { sys::towline_queue_subscribe(self.native(), tag, mask) }).map(drop)
    }

    /// Ends a subscription. Notices that wait in the queue stay.
    pub fn unsubscribe(&self, tag: u64, mask: u64) -> Result<()> {
        // SAFETY: plain values.
        check(unsafe { sys::towline_queue_unsubscribe(self.native(), tag, mask) }).map(drop)
    }

    pub(crate) fn native(&self) -> *mut sys::towline_queue_t {
        self.handle.native.as_ptr()
    }

    pub(crate) fn check_agent(&self, agent: &AgentHandle) -> Result<()> {
        if Arc::ptr_eq(&self.handle.agent, agent) {
            return Ok(());
        }
        Err(Error::new(Status::INVALID_ARGUMENT, "the queue belongs to another agent"))
    }
}

pub(crate) fn lost_descriptor(error: std::io::Error) -> Error {
    Error::new(Status::IO, format!("waiting for a queue's descriptor: {error}"))
}

impl Inner {
    fn event_fd(&self) -> Result<BorrowedFd<'_>> {
        let mut fd = -1;
        // SAFETY: `fd` is written on success only.
        check(unsafe { sys::towline_queue_fd(self.native.as_ptr(), &mut fd) })?;
        // SAFETY: open as long as the queue, and so as long as the borrow.
        Ok(unsafe { BorrowedFd::borrow_raw(fd) })
    }

    fn readable(&self) -> Result<&Async<OwnedFd>> {
        watch_descriptor(&self.events, || self.event_fd())
    }
}

/// Registers a duplicate of the descriptor with the reactor, once: the registration ends with its owner.
pub(crate) fn watch_descriptor<'a, 'b>(
    events: &'a OnceLock<Async<OwnedFd>>,
    fd: impl FnOnce() -> Result<BorrowedFd<'b>>,
) -> Result<&'a Async<OwnedFd>> {
    if let Some(events) = events.get() {
        return Ok(events);
    }
    let made = fd()?.as_fd().try_clone_to_owned().and_then(Async::new_nonblocking).map_err(lost_descriptor)?;
    Ok(events.get_or_init(|| made))
}

/// An event. When it is dropped, it gives back what it holds: a notice's bytes and the sender's credit.
pub struct Event {
    native: sys::towline_event_t,
    queue: QueueHandle,
    error: text::Replaced,
}

// SAFETY: the contents do not change, and any thread may release them.
unsafe impl Send for Event {}
unsafe impl Sync for Event {}

impl Event {
    /// The kind of event.
    pub fn kind(&self) -> EventKind {
        EventKind(self.native.kind)
    }

    /// The outcome.
    pub fn status(&self) -> Status {
        Status(self.native.status)
    }

    /// The token of the call that asked for it; for a notice or a peer's health, the queue's.
    pub fn token(&self) -> u64 {
        self.native.user_data as u64
    }

    /// Bytes that moved, the fences that hold, the counter's value, the peer's health: as the kind says.
    pub fn value(&self) -> u64 {
        self.native.value
    }

    /// The tag of a notice.
    pub fn tag(&self) -> u64 {
        self.native.tag
    }

    /// The contents of a notice.
    pub fn bytes(&self) -> &[u8] {
        if self.native.bytes == 0 {
            return &[];
        }
        // SAFETY: valid until the event is released, and not null where there are bytes.
        unsafe { std::slice::from_raw_parts(self.native.data.cast(), self.native.bytes) }
    }

    /// The peer of a notice, of `CONNECTED`, `CREDIT` and `PEER_HEALTH`.
    pub fn peer(&self) -> Result<Peer> {
        let mut peer = ptr::null_mut();
        // SAFETY: `peer` is written on success only, and a success gives a reference.
        unsafe {
            check(sys::towline_event_peer(&self.native, &mut peer))?;
            Ok(Peer::from_native(&self.queue.agent, peer))
        }
    }

    /// Why it failed, in a sentence; empty after success.
    pub fn error(&self) -> &str {
        // SAFETY: valid until the event is released.
        unsafe { self.error.of(sys::towline_event_error(&self.native)) }
    }

    /// The outcome as a result.
    pub fn result(&self) -> Result<()> {
        let status = self.status();
        if !status.is_error() {
            return Ok(());
        }
        let text = self.error();
        Err(Error::new(status, if text.is_empty() { status.text() } else { text }))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: released once, before its queue.
        unsafe { sys::towline_event_release(&mut self.native) };
    }
}

impl std::fmt::Debug for Event {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Event")
            .field("kind", &self.native.kind)
            .field("status", &self.status())
            .field("token", &self.token())
            .field("value", &self.value())
            .finish_non_exhaustive()
    }
}

// ---- what can be asked for

impl Post {
    /// `FENCED` once no byte of it can land on the given side any more. The post may be dropped meanwhile.
    pub fn tell_fenced(&self, fence: Fence, queue: &Queue, token: u64) -> Result<()> {
        // SAFETY: the handles are valid.
        let code = unsafe {
            sys::towline_post_fence_async(self.native(), fence.native(), queue.native(), token_pointer(token))
        };
        check(code).map(drop)
    }
}

impl Group {
    /// `FENCED` once the fences of all members hold.
    pub fn tell_fenced(&self, fence: Fence, queue: &Queue, token: u64) -> Result<()> {
        // SAFETY: the handles are valid.
        let code = unsafe {
            sys::towline_group_fence_async(self.native(), fence.native(), queue.native(), token_pointer(token))
        };
        check(code).map(drop)
    }
}

impl Counter {
    /// `SIGNAL` once the value is at least `threshold`.
    pub fn tell(&self, threshold: u64, queue: &Queue, token: u64) -> Result<()> {
        // SAFETY: the handles are valid.
        let code =
            unsafe { sys::towline_counter_wait_async(self.native(), threshold, queue.native(), token_pointer(token)) };
        check(code).map(drop)
    }
}

impl Agent {
    /// `CONNECTED` with the peer, or why not.
    pub fn tell_connected(&self, address: &str, timeout: impl Into<Timeout>, queue: &Queue, token: u64) -> Result<()> {
        queue.check_agent(self.handle())?;
        let address = text::owned("the peer's address", address)?;
        let deadline_ns = timeout.into().monotonic_ns();
        // SAFETY: the text outlives the call; the handles are valid.
        let code = unsafe {
            sys::towline_peer_connect_async(
                self.handle().native(),
                address.as_ptr(),
                deadline_ns,
                queue.native(),
                token_pointer(token),
            )
        };
        check(code).map(drop)
    }
}

impl Peer {
    /// `CREDIT` once a notice of the largest size can be sent, or the peer can't be reached.
    pub fn tell_credit(&self, queue: &Queue, token: u64) -> Result<()> {
        // SAFETY: the handles are valid.
        let code = unsafe { sys::towline_peer_credit_async(self.native(), queue.native(), token_pointer(token)) };
        check(code).map(drop)
    }

    /// Sends a notice with a tag, which the peer's queues can subscribe to. `AGAIN`: no credit now.
    pub fn send_tagged(&self, tag: u64, notice: &[u8]) -> Result<()> {
        // SAFETY: the bytes are copied by the call.
        let code = unsafe { sys::towline_notice_send_tagged(self.native(), tag, notice.as_ptr().cast(), notice.len()) };
        check_quietly(code, "send_tagged").map(drop)
    }
}

impl Region {
    /// `COMMITTED` once storage is durable, or why not.
    pub fn tell_committed(&self, timeout: impl Into<Timeout>, queue: &Queue, token: u64) -> Result<()> {
        let deadline_ns = timeout.into().monotonic_ns();
        // SAFETY: the handles are valid.
        let code = unsafe {
            sys::towline_storage_commit_async(self.native(), deadline_ns, queue.native(), token_pointer(token))
        };
        check(code).map(drop)
    }
}
