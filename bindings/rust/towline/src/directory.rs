//! Directories: agents find one another by name.

use std::marker::PhantomData;
use std::mem::size_of;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use towline_sys::{self as sys, Status};

use crate::agent::{Agent, AgentHandle};
use crate::ask::{outcome, Question};
use crate::deadline::{Timeout, DEFAULT_NS};
use crate::error::{check, Error, Result};
use crate::peer::Peer;
use crate::region::Region;
use crate::text;

/// A directory, opened for an agent: `etcd://host[:port][,host[:port]..][/namespace]`. Clones are handles of the same one.
/// With the last, calls in flight end with `CLOSED`, and leased keys are removed.
#[derive(Clone)]
pub struct Directory {
    handle: Arc<Inner>,
}

struct Inner {
    native: NonNull<sys::towline_directory_t>,
    agent: AgentHandle,
}

// SAFETY: any thread may call any function of the C API.
unsafe impl Send for Inner {}
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: released once.
        unsafe { sys::towline_directory_release(self.native.as_ptr()) };
    }
}

/// Options for putting a key.
#[derive(Clone, Copy, Debug, Default)]
pub struct PutOptions {
    /// The key is removed when this agent ends, and put again if the directory loses it.
    pub leased: bool,
    /// `ALREADY_EXISTS` if the key exists.
    pub create: bool,
}

/// A key and what it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Relative to the directory's namespace: "prefill-0/metadata".
    pub key: String,
    /// Its value.
    pub value: Vec<u8>,
    /// The directory's revision when the key was last put.
    pub revision: u64,
}

impl Agent {
    /// Opens a directory, without a request to it.
    pub fn directory(&self, address: &str) -> Result<Directory> {
        let address = text::owned("the directory's address", address)?;
        let mut directory = ptr::null_mut();
        // SAFETY: the text outlives the call; `directory` is written on success only.
        check(unsafe { sys::towline_directory_open(self.handle().native(), address.as_ptr(), &mut directory) })?;
        // SAFETY: a successful call gives a handle.
        let native = unsafe { NonNull::new_unchecked(directory) };
        Ok(Directory { handle: Arc::new(Inner { native, agent: self.handle().clone() }) })
    }
}

/// `None`: the agent's default.
type Limit = Option<Timeout>;

fn limit_ns(limit: Limit) -> u64 {
    limit.map_or(DEFAULT_NS, Timeout::nanoseconds)
}

impl Directory {
    /// Puts a value under a key.
    pub fn put(&self, key: &str, value: &[u8], options: PutOptions, limit: Limit) -> Result<DirectoryCall<()>> {
        let key = text::owned("the key", key)?;
        let flags = if options.leased { sys::TOWLINE_PUT_LEASED } else { 0 }
            | if options.create { sys::TOWLINE_PUT_CREATE } else { 0 };
        // SAFETY: key and value outlive the call, which copies them.
        self.start(nothing, |native, call| unsafe {
            let value_at = value.as_ptr().cast();
            sys::towline_directory_put(native, key.as_ptr(), value_at, value.len(), flags, limit_ns(limit), call)
        })
    }

    /// The value under a key. `NOT_FOUND`: there is no such key; with `wait`, only at the deadline.
    pub fn get(&self, key: &str, wait: bool, limit: Limit) -> Result<DirectoryCall<Entry>> {
        self.look(key, if wait { sys::TOWLINE_GET_WAIT } else { 0 }, limit, first_entry)
    }

    /// Every key that begins with `prefix`, in order.
    pub fn list(&self, prefix: &str, limit: Limit) -> Result<DirectoryCall<Vec<Entry>>> {
        self.look(prefix, sys::TOWLINE_GET_PREFIX, limit, entries)
    }

    /// Removes a key. `NOT_FOUND`: there was none.
    pub fn delete(&self, key: &str, limit: Limit) -> Result<DirectoryCall<()>> {
        let key = text::owned("the key", key)?;
        // SAFETY: the text outlives the call.
        self.start(nothing, |native, call| unsafe {
            sys::towline_directory_delete(native, key.as_ptr(), 0, limit_ns(limit), call)
        })
    }

    /// Publishes this agent's metadata under its name, leased: all regions, or some. Publishing again replaces it.
    pub fn publish(&self, regions: &[&Region], limit: Limit) -> Result<DirectoryCall<()>> {
        let native: Vec<_> = regions.iter().map(|region| region.native()).collect();
        // SAFETY: the handles live as long as the references.
        self.start(nothing, |directory, call| unsafe {
            let (regions, count) = (native.as_ptr(), native.len());
            sys::towline_directory_publish(directory, ptr::null(), regions, count, limit_ns(limit), call)
        })
    }

    /// Removes what this agent has published.
    pub fn unpublish(&self, limit: Limit) -> Result<DirectoryCall<()>> {
        // SAFETY: plain values.
        self.start(nothing, |directory, call| unsafe {
            sys::towline_directory_unpublish(directory, ptr::null(), limit_ns(limit), call)
        })
    }

    /// Adds the agent that published itself under `name` as a peer. With `wait`, until there is one.
    pub fn fetch(&self, name: &str, wait: bool, limit: Limit) -> Result<DirectoryCall<Peer>> {
        let name = text::owned("the agent's name", name)?;
        let flags = if wait { sys::TOWLINE_GET_WAIT } else { 0 };
        // SAFETY: the text outlives the call.
        self.start(fetched, |directory, call| unsafe {
            sys::towline_directory_fetch(directory, name.as_ptr(), ptr::null(), flags, limit_ns(limit), call)
        })
    }

    /// The keys under the prefix, then `Synced`, then changes.
    pub fn watch(&self, prefix: &str) -> Result<Watch> {
        let prefix = text::owned("the prefix", prefix)?;
        let mut watch = ptr::null_mut();
        // SAFETY: the text outlives the call; `watch` is written on success only.
        check(unsafe { sys::towline_directory_watch(self.native(), prefix.as_ptr(), &mut watch) })?;
        // SAFETY: a successful call gives a handle.
        Ok(Watch { native: unsafe { NonNull::new_unchecked(watch) }, asked: None, directory: self.handle.clone() })
    }

    /// Servers with their state, lease, keys kept alive, watches: JSON.
    pub fn info(&self) -> Result<String> {
        // SAFETY: buffer and capacity belong together.
        text::read_text(|buffer, capacity, needed| unsafe {
            sys::towline_directory_info(self.native(), buffer.cast(), capacity, needed)
        })
    }

    fn look<T>(&self, key: &str, flags: u32, limit: Limit, finish: Finish<T>) -> Result<DirectoryCall<T>> {
        let key = text::owned("the key", key)?;
        // SAFETY: the text outlives the call.
        self.start(finish, |native, call| unsafe {
            sys::towline_directory_get(native, key.as_ptr(), flags, limit_ns(limit), call)
        })
    }

    fn start<T>(
        &self,
        finish: Finish<T>,
        request: impl FnOnce(*mut sys::towline_directory_t, *mut *mut sys::towline_directory_call_t) -> i32,
    ) -> Result<DirectoryCall<T>> {
        let mut call = ptr::null_mut();
        check(request(self.native(), &mut call))?;
        // SAFETY: a successful call gives a handle.
        let native = unsafe { NonNull::new_unchecked(call) };
        Ok(DirectoryCall { native, directory: self.handle.clone(), finish, _value: PhantomData })
    }

    fn native(&self) -> *mut sys::towline_directory_t {
        self.handle.native.as_ptr()
    }
}

type Finish<T> = fn(*mut sys::towline_directory_call_t, &AgentHandle) -> Result<T>;

fn nothing(_: *mut sys::towline_directory_call_t, _: &AgentHandle) -> Result<()> {
    Ok(())
}

fn fetched(call: *mut sys::towline_directory_call_t, agent: &AgentHandle) -> Result<Peer> {
    let mut peer = ptr::null_mut();
    // SAFETY: `peer` is written on success only, and a success gives a reference.
    unsafe {
        check(sys::towline_directory_call_peer(call, &mut peer))?;
        Ok(Peer::from_native(agent, peer))
    }
}

fn entries(call: *mut sys::towline_directory_call_t, _: &AgentHandle) -> Result<Vec<Entry>> {
    let mut native: Vec<sys::towline_directory_entry_t> = Vec::new();
    let size = size_of::<sys::towline_directory_entry_t>();
    let mut count = 0;
    loop {
        // SAFETY: `count` is the capacity.
        check(unsafe { sys::towline_directory_call_entries(call, native.as_mut_ptr(), size, &mut count) })?;
        if count <= native.len() {
            native.truncate(count);
            // SAFETY: valid as long as the call.
            return Ok(native.iter().map(|entry| unsafe { copy(entry) }).collect());
        }
        native.resize(count, Default::default());
    }
}

fn first_entry(call: *mut sys::towline_directory_call_t, agent: &AgentHandle) -> Result<Entry> {
    let found = entries(call, agent)?.into_iter().next();
    found.ok_or_else(|| Error::new(Status::NOT_FOUND, "get: the directory gave no entry"))
}

unsafe fn copy(entry: &sys::towline_directory_entry_t) -> Entry {
    let value = if entry.bytes == 0 { &[] } else { std::slice::from_raw_parts(entry.value.cast(), entry.bytes) };
    Entry { key: text::borrowed(entry.key).to_owned(), value: value.to_vec(), revision: entry.revision }
}

/// A request under way, with exactly one outcome. Dropping it cancels it, though it may still have taken effect.
#[must_use = "a dropped call is cancelled"]
pub struct DirectoryCall<T> {
    native: NonNull<sys::towline_directory_call_t>,
    directory: Arc<Inner>,
    finish: Finish<T>,
    _value: PhantomData<fn() -> T>,
}

// SAFETY: any thread may call any function of the C API.
unsafe impl<T> Send for DirectoryCall<T> {}
unsafe impl<T> Sync for DirectoryCall<T> {}

impl<T> DirectoryCall<T> {
    /// Waits for the outcome, which comes by the call's own deadline.
    pub fn wait(self) -> Result<T> {
        // SAFETY: the handle is valid.
        check(unsafe { sys::towline_directory_call_wait(self.native.as_ptr(), u64::MAX) })?;
        (self.finish)(self.native.as_ptr(), &self.directory.agent)
    }

    /// The same without blocking the thread.
    pub async fn done(self) -> Result<T> {
        // SAFETY: the handles are valid.
        let asked = Question::ask(&self.directory.agent, |queue, data| unsafe {
            sys::towline_directory_call_wait_async(self.native.as_ptr(), queue, data)
        });
        outcome(asked).await?;
        (self.finish)(self.native.as_ptr(), &self.directory.agent)
    }

    /// Whether it has its outcome.
    pub fn is_done(&self) -> bool {
        // SAFETY: the handle is valid.
        unsafe { sys::towline_directory_call_poll(self.native.as_ptr()) != Status::IN_PROGRESS.0 }
    }
}

impl<T> Drop for DirectoryCall<T> {
    fn drop(&mut self) {
        // SAFETY: released once, before its directory.
        unsafe { sys::towline_directory_call_release(self.native.as_ptr()) };
    }
}

/// A change that a watch tells of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The key exists with this value.
    Put(Entry),
    /// The key is gone.
    Gone(String),
    /// Everything that existed when the watch began has been told.
    Synced,
}

/// Follows the keys under a prefix. It goes on when servers restart or change.
pub struct Watch {
    native: NonNull<sys::towline_watch_t>,
    // The event that a dropped future waited for: the next future waits for it.
    asked: Option<Question>,
    directory: Arc<Inner>,
}

// SAFETY: any thread may call any function of the C API; `next` takes the watch exclusively.
unsafe impl Send for Watch {}
unsafe impl Sync for Watch {}

impl Watch {
    /// The next change; `None` if none came in time. An error: why the watch ended.
    pub fn next(&mut self, timeout: impl Into<Timeout>) -> Result<Option<Change>> {
        let mut event = sys::towline_directory_event_t::default();
        // SAFETY: the event is filled on success only, and copied before the next one is taken.
        let code = unsafe { sys::towline_watch_next(self.native.as_ptr(), timeout.into().nanoseconds(), &mut event) };
        if code == Status::NOT_YET.0 {
            return Ok(None);
        }
        check(code)?;
        // SAFETY: as above.
        let entry = unsafe { copy(&event.entry) };
        Ok(Some(match event.kind {
            sys::TOWLINE_WATCH_PUT => Change::Put(entry),
            sys::TOWLINE_WATCH_GONE => Change::Gone(entry.key),
            _ => Change::Synced,
        }))
    }

    /// The next change, without blocking the thread.
    pub async fn next_async(&mut self) -> Result<Change> {
        loop {
            if let Some(change) = self.next(Timeout::NOW)? {
                return Ok(change);
            }
            let asked = match self.asked.take() {
                Some(asked) => asked,
                // SAFETY: the handles are valid.
                None => Question::ask(&self.directory.agent, |queue, data| unsafe {
                    sys::towline_watch_wait_async(self.native.as_ptr(), queue, data)
                })?,
            };
            let answer = self.asked.insert(asked).answer().await;
            self.asked = None;
            answer?.take_result()?;
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // SAFETY: released once, before its directory.
        unsafe { sys::towline_watch_release(self.native.as_ptr()) };
    }
}
