use std::future::Future;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use async_io::Timer;
use towline_sys::{self as sys, Status};

use crate::agent::AgentHandle;
use crate::ask::{first, Question};
use crate::deadline::Timeout;
use crate::error::{check, check_quietly, Error, Result};

/// A 64-bit number of this agent that peers add to. The application sends them its key.
#[derive(Clone)]
pub struct Counter {
    handle: Arc<Inner>,
}

struct Inner {
    native: NonNull<sys::towline_counter_t>,
    agent: AgentHandle,
}

/// A wait under way. When it ends, also before its future was polled, the queue needs no place for the event.
struct Waiting {
    counter: Counter,
    question: Question,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some((queue, data)) = self.question.names() {
            // SAFETY: the handles are valid.
            unsafe { sys::towline_counter_forget(self.counter.native(), queue, data) };
        }
    }
}

// SAFETY: any thread may call any function of the C API.
unsafe impl Send for Inner {}
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: destroyed once.
        unsafe { sys::towline_counter_destroy(self.native.as_ptr()) };
    }
}

impl Counter {
    pub(crate) fn create(agent: &AgentHandle, initial: u64) -> Result<Counter> {
        let mut counter = ptr::null_mut();
        // SAFETY: `counter` is written on success only.
        check(unsafe { sys::towline_counter_create(agent.native(), initial, &mut counter) })?;
        // SAFETY: a successful call gives a handle.
        let native = unsafe { NonNull::new_unchecked(counter) };
        Ok(Counter { handle: Arc::new(Inner { native, agent: agent.clone() }) })
    }

    /// The key by which peers name it.
    pub fn key(&self) -> u64 {
        // SAFETY: the handle is valid.
        unsafe { sys::towline_counter_key(self.native()) }
    }

    /// Its value now.
    pub fn value(&self) -> u64 {
        // SAFETY: the handle is valid.
        unsafe { sys::towline_counter_value(self.native()) }
    }

    /// Waits until the value is at least `threshold`.
    pub fn wait(&self, threshold: u64, timeout: impl Into<Timeout>) -> Result<()> {
        let timeout_ns = timeout.into().nanoseconds();
        // SAFETY: plain values.
        check_quietly(unsafe { sys::towline_counter_wait(self.native(), threshold, timeout_ns) }, "wait").map(drop)
    }

    /// [`wait`](Counter::wait) without blocking the caller's thread.
    pub fn wait_async(
        &self,
        threshold: u64,
        timeout: impl Into<Timeout>,
    ) -> impl Future<Output = Result<()>> + Send + 'static {
        let timeout = timeout.into();
        // SAFETY: the handles are valid.
        let question = Question::ask(&self.handle.agent, |queue, data| unsafe {
            sys::towline_counter_wait_async(self.native(), threshold, queue, data)
        });
        let waiting = question.map(|question| Waiting { counter: self.clone(), question });
        async move {
            let waiting = waiting?;
            let reached = async { Some(waiting.question.answer().await?.take_result()).transpose() };
            let late = async {
                match timeout.left() {
                    Some(time) => Timer::after(time).await,
                    None => std::future::pending().await,
                };
                Ok(None)
            };
            match first(reached, late).await? {
                Some(()) => Ok(()),
                None => Err(Error::new(Status::NOT_YET, format!("wait: the counter has not reached {threshold}"))),
            }
        }
    }

    pub(crate) fn native(&self) -> *mut sys::towline_counter_t {
        self.handle.native.as_ptr()
    }
}

impl std::fmt::Debug for Counter {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Counter").field("key", &self.key()).field("value", &self.value()).finish()
    }
}
