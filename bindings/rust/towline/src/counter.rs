use std::future::Future;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use towline_sys as sys;

use crate::agent::AgentHandle;
use crate::deadline::Timeout;
use crate::error::{check, check_quietly, Result};

/// A 64-bit number of this agent that peers add to. The application sends them its key.
#[derive(Clone)]
pub struct Counter {
    handle: Arc<Inner>,
}

struct Inner {
    native: NonNull<sys::towline_counter_t>,
    _agent: AgentHandle,
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
        Ok(Counter { handle: Arc::new(Inner { native, _agent: agent.clone() }) })
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
        let (counter, timeout) = (self.clone(), timeout.into());
        blocking::unblock(move || counter.wait(threshold, timeout))
    }

    fn native(&self) -> *mut sys::towline_counter_t {
        self.handle.native.as_ptr()
    }
}

impl std::fmt::Debug for Counter {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Counter").field("key", &self.key()).field("value", &self.value()).finish()
    }
}
