//! Futures over an event queue of the crate's own, one for each agent: no thread waits for them.

use std::collections::HashMap;
use std::future::{poll_fn, Future};
use std::mem::size_of;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::pin::pin;
use std::ptr::{self, NonNull};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::task::{Context, Poll, Waker};

use async_io::Async;
use towline_sys as sys;

use crate::agent::AgentHandle;
use crate::error::{check, check_quietly, Error, Result};
use crate::queue::{lost_descriptor, token_pointer, watch_descriptor};
use crate::text;

/// An event that was taken for a future: its outcome, and the peer if it has one.
pub(crate) struct Answer {
    pub(crate) result: Result<()>,
    pub(crate) peer: *mut sys::towline_peer_t,
}

// SAFETY: the peer is a reference of this value's, which any thread may release.
unsafe impl Send for Answer {}

impl Answer {
    pub(crate) fn take_result(&mut self) -> Result<()> {
        std::mem::replace(&mut self.result, Ok(()))
    }
    /// The reference, which is the caller's then.
    pub(crate) fn take_peer(&mut self) -> *mut sys::towline_peer_t {
        std::mem::replace(&mut self.peer, ptr::null_mut())
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if !self.peer.is_null() {
            // SAFETY: the reference was not taken over.
            unsafe { sys::towline_peer_release(self.peer) };
        }
    }
}

enum Slot {
    Waiting(Option<Waker>),
    Answered(Answer),
}

#[derive(Default)]
struct Slots {
    last: u64,
    by_number: HashMap<u64, Slot>,
}

/// The queue, and the futures that wait for events of it. Belongs to an agent and ends before it.
pub(crate) struct Asks {
    native: NonNull<sys::towline_queue_t>,
    events: OnceLock<Async<OwnedFd>>,
    slots: Mutex<Slots>,
}

// SAFETY: any thread may call any function of the C API.
unsafe impl Send for Asks {}
unsafe impl Sync for Asks {}

impl Drop for Asks {
    fn drop(&mut self) {
        drop(self.events.take());
        // SAFETY: released once; no event is held.
        unsafe { sys::towline_queue_release(self.native.as_ptr()) };
    }
}

impl Asks {
    pub(crate) fn create(agent: *mut sys::towline_agent_t) -> Result<Asks> {
        let mut queue = ptr::null_mut();
        // SAFETY: `queue` is written on success only.
        check(unsafe { sys::towline_queue_create(agent, ptr::null(), &mut queue) })?;
        // SAFETY: a successful call gives a handle.
        let native = unsafe { NonNull::new_unchecked(queue) };
        Ok(Asks { native, events: OnceLock::new(), slots: Mutex::default() })
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Takes what waits and wakes the futures that it is for. An event without one is dropped.
    fn take(&self) -> Result<()> {
        let mut events = [sys::towline_event_t::default(); 16];
        loop {
            let size = size_of::<sys::towline_event_t>();
            // SAFETY: the array has this many entries of this size.
            let count =
                unsafe { sys::towline_queue_next(self.native.as_ptr(), events.as_mut_ptr(), events.len(), size) };
            check_quietly(count.min(0), "waiting for an event")?;
            for event in &mut events[..count as usize] {
                self.hand_over(event);
            }
            if (count as usize) < events.len() {
                return Ok(());
            }
        }
    }

    fn hand_over(&self, event: &mut sys::towline_event_t) {
        let number = event.user_data as u64;
        let mut peer = ptr::null_mut();
        // SAFETY: the event is valid until it is released, and a success gives a reference.
        let result = unsafe {
            let sentence = text::borrowed(sys::towline_event_error(event)).to_owned();
            if event.kind == sys::EventKind::CONNECTED.0 && event.status == 0 {
                sys::towline_event_peer(event, &mut peer);
            }
            let status = sys::Status(event.status);
            sys::towline_event_release(event);
            if status.is_error() {
                Err(Error::new(status, if sentence.is_empty() { status.text().to_owned() } else { sentence }))
            } else {
                Ok(())
            }
        };
        let answer = Answer { result, peer };
        let mut waker = None;
        if let Some(slot) = self.slots().by_number.get_mut(&number) {
            if let Slot::Waiting(waiting) = slot {
                waker = waiting.take();
            }
            *slot = Slot::Answered(answer);
        }
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// The answer, or registers the task's waker.
    fn poll_slot(&self, number: u64, context: &Context<'_>) -> Option<Answer> {
        let mut slots = self.slots();
        match slots.by_number.get_mut(&number) {
            Some(Slot::Waiting(waker)) => {
                *waker = Some(context.waker().clone());
                None
            }
            Some(Slot::Answered(_)) => match slots.by_number.remove(&number) {
                Some(Slot::Answered(answer)) => Some(answer),
                _ => None,
            },
            None => None,
        }
    }

    fn readable(&self) -> Result<&Async<OwnedFd>> {
        watch_descriptor(&self.events, || {
            let mut fd = -1;
            // SAFETY: `fd` is written on success only; the descriptor is open as long as the queue.
            unsafe {
                check(sys::towline_queue_fd(self.native.as_ptr(), &mut fd))?;
                Ok(BorrowedFd::borrow_raw(fd))
            }
        })
    }
}

/// A question under way: what was asked for gives one event with its number.
pub(crate) struct Question {
    agent: AgentHandle,
    number: u64,
}

impl Drop for Question {
    fn drop(&mut self) {
        if let Ok(asks) = self.agent.asks() {
            // Dropped without the lock: a waker may own futures of its own.
            let slot = asks.slots().by_number.remove(&self.number);
            drop(slot);
        }
    }
}

impl Question {
    /// Asks now: `call` gets the queue and the user data. Its failure is the question's. A full queue is emptied first: it may hold
    /// events of futures that were dropped, which nobody takes.
    pub(crate) fn ask(
        agent: &AgentHandle,
        call: impl Fn(*mut sys::towline_queue_t, *mut std::ffi::c_void) -> i32,
    ) -> Result<Question> {
        let asks = agent.asks()?;
        let number = {
            let mut slots = asks.slots();
            slots.last += 1;
            let number = slots.last;
            slots.by_number.insert(number, Slot::Waiting(None));
            number
        };
        let question = Question { agent: agent.clone(), number };
        let mut code = call(asks.native.as_ptr(), token_pointer(number));
        if code == sys::Status::AGAIN.0 {
            asks.take()?;
            code = call(asks.native.as_ptr(), token_pointer(number));
        }
        check(code)?;
        Ok(question)
    }

    /// The queue and the user data of the question, for calls that take it back.
    pub(crate) fn names(&self) -> Option<(*mut sys::towline_queue_t, *mut std::ffi::c_void)> {
        self.agent.asks().ok().map(|asks| (asks.native.as_ptr(), token_pointer(self.number)))
    }

    pub(crate) async fn answer(&self) -> Result<Answer> {
        let asks = self.agent.asks()?;
        let events = asks.readable()?;
        loop {
            // Another task may take this one's event between its look and its sleep, so the slot wakes it as well.
            let mut readable = pin!(events.readable());
            let found = poll_fn(|context| {
                if let Err(error) = asks.take() {
                    return Poll::Ready(Err(error));
                }
                if let Some(answer) = asks.poll_slot(self.number, context) {
                    return Poll::Ready(Ok(Some(answer)));
                }
                match readable.as_mut().poll(context) {
                    Poll::Ready(ready) => Poll::Ready(ready.map(|_| None).map_err(lost_descriptor)),
                    Poll::Pending => Poll::Pending,
                }
            })
            .await?;
            if let Some(answer) = found {
                return Ok(answer);
            }
        }
    }
}

/// The outcome of what was asked for. The question's reference to the agent keeps the queue alive.
pub(crate) async fn outcome(question: Result<Question>) -> Result<()> {
    question?.answer().await?.take_result()
}

/// Gives the output of whichever future ends first.
pub(crate) async fn first<T>(one: impl Future<Output = T>, other: impl Future<Output = T>) -> T {
    let (mut one, mut other) = (pin!(one), pin!(other));
    poll_fn(|context| match one.as_mut().poll(context) {
        Poll::Ready(value) => Poll::Ready(value),
        Poll::Pending => other.as_mut().poll(context),
    })
    .await
}
