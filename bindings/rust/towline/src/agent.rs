use std::future::Future;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::{Arc, OnceLock};

use async_io::Async;
use towline_sys::{self as sys, Progress, Status};

use crate::ask::{Asks, Question};
use crate::block_list::{BlockList, Blocks};
use crate::counter::Counter;
use crate::deadline::Timeout;
use crate::error::{check, check_quietly, Error, Result};
use crate::memory::MemoryOwner;
use crate::notice::Notice;
use crate::peer::Peer;
use crate::queue::watch_descriptor;
use crate::region::{Region, RegionOptions};
use crate::text;

/// Options of an agent. Empty texts and zeros are the library's defaults.
#[derive(Clone, Debug)]
pub struct AgentOptions {
    /// Hosted: Towline's own threads make progress. Caller: only calls of the application do.
    pub progress: Progress,
    /// Threads that make progress, 1 to 8.
    pub workers: u32,
    /// `host:port[,host:port]`, `*:0` or `none`. Default: `127.0.0.1:0`.
    pub listen: String,
    /// `host[:port]` that peers should use instead of the listening address.
    pub advertise: String,
    /// Comma-separated names in order of preference. Default: all usable.
    pub backends: String,
    /// TOML text that overrides environment and file.
    pub config: String,
    /// Deadline of transfers and control calls without one. Default: 30 s.
    pub default_timeout: Option<std::time::Duration>,
}

impl Default for AgentOptions {
    fn default() -> Self {
        AgentOptions {
            progress: Progress::HOSTED,
            workers: 0,
            listen: String::new(),
            advertise: String::new(),
            backends: String::new(),
            config: String::new(),
            default_timeout: None,
        }
    }
}

/// One participant: a name, an incarnation, registered memory, backends, a progress engine.
///
/// Clones are handles of the same agent. It closes when the last handle and the last object made from it are dropped:
/// transfers end, peers are told, and threads are joined.
#[derive(Clone)]
pub struct Agent {
    handle: AgentHandle,
}

/// The agent, shared by everything made from it.
pub(crate) type AgentHandle = Arc<Inner>;

pub(crate) struct Inner {
    native: NonNull<sys::towline_agent_t>,
    // Registered with the reactor when a notice is first awaited.
    events: OnceLock<Async<OwnedFd>>,
    // The queue of futures, made when one is first awaited.
    asks: OnceLock<Asks>,
}

// SAFETY: any thread may call any function of the C API.
unsafe impl Send for Inner {}
unsafe impl Sync for Inner {}

impl Inner {
    pub(crate) fn native(&self) -> *mut sys::towline_agent_t {
        self.native.as_ptr()
    }

    pub(crate) fn asks(&self) -> Result<&Asks> {
        if let Some(asks) = self.asks.get() {
            return Ok(asks);
        }
        let made = Asks::create(self.native())?;
        Ok(self.asks.get_or_init(|| made))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        drop(self.events.take());
        drop(self.asks.take());
        // SAFETY: the last user; called once.
        unsafe { sys::towline_agent_destroy(self.native()) };
    }
}

impl Agent {
    /// An agent with the defaults: hosted progress, shared memory and TCP, listening on loopback. `name` has 1 to 255
    /// bytes without NUL and need not be unique.
    pub fn new(name: &str) -> Result<Agent> {
        Self::with_options(name, &AgentOptions::default())
    }

    /// An agent with options.
    pub fn with_options(name: &str, options: &AgentOptions) -> Result<Agent> {
        let name = text::owned("the agent's name", name)?;
        let listen = text::optional("listen", &options.listen)?;
        let advertise = text::optional("advertise", &options.advertise)?;
        let backends = text::optional("backends", &options.backends)?;
        let config = text::optional("config", &options.config)?;
        let native = sys::towline_agent_options_t {
            struct_size: std::mem::size_of::<sys::towline_agent_options_t>(),
            progress: options.progress.0,
            workers: options.workers,
            listen: text::pointer(&listen),
            advertise: text::pointer(&advertise),
            backends: text::pointer(&backends),
            config: text::pointer(&config),
            default_timeout_ns: options.default_timeout.map_or(0, |time| Timeout::from(time).nanoseconds_not_default()),
        };
        let mut agent = ptr::null_mut();
        // SAFETY: every pointer outlives the call; `agent` is written on success only.
        check(unsafe { sys::towline_agent_create(name.as_ptr(), &native, &mut agent) })?;
        // SAFETY: a successful call gives a handle.
        let native = unsafe { NonNull::new_unchecked(agent) };
        Ok(Agent { handle: Arc::new(Inner { native, events: OnceLock::new(), asks: OnceLock::new() }) })
    }

    /// The name that it was given.
    pub fn name(&self) -> &str {
        // SAFETY: valid as long as the agent.
        unsafe { text::borrowed(sys::towline_agent_name(self.native())) }
    }

    /// 32 hexadecimal digits, new for every agent made.
    pub fn incarnation(&self) -> &str {
        // SAFETY: valid as long as the agent.
        unsafe { text::borrowed(sys::towline_agent_incarnation(self.native())) }
    }

    /// The address for peers, "10.0.0.7:7777"; empty if the agent does not listen.
    pub fn address(&self) -> Result<String> {
        // SAFETY: buffer and capacity belong together.
        text::read_text(|buffer, capacity, needed| unsafe {
            sys::towline_agent_address(self.native(), buffer.cast(), capacity, needed)
        })
    }

    /// Backends with traits and reasons, regions, peers, topology: JSON.
    pub fn info(&self) -> Result<String> {
        // SAFETY: buffer and capacity belong together.
        text::read_text(|buffer, capacity, needed| unsafe {
            sys::towline_agent_info(self.native(), buffer.cast(), capacity, needed)
        })
    }

    /// Counters per peer, backend and direction: JSON.
    pub fn metrics(&self) -> Result<String> {
        // SAFETY: buffer and capacity belong together.
        text::read_text(|buffer, capacity, needed| unsafe {
            sys::towline_agent_metrics(self.native(), buffer.cast(), capacity, needed)
        })
    }

    /// Adds the backends of a plugin, by its file or name.
    pub fn add_backend(&self, plugin: &str) -> Result<()> {
        let plugin = text::owned("the plugin's name", plugin)?;
        // SAFETY: the text outlives the call.
        check(unsafe { sys::towline_agent_add_backend(self.native(), plugin.as_ptr()) }).map(drop)
    }

    /// Registers memory, which the region then owns.
    pub fn register<M: MemoryOwner>(&self, memory: M, options: &RegionOptions<'_>) -> Result<Region> {
        let (address, bytes) = (memory.address().as_ptr(), memory.bytes());
        Region::register(&self.handle, address, bytes, Some(Box::new(memory)), options)
    }

    /// Registers memory that someone else owns.
    ///
    /// # Safety
    ///
    /// `[address, address + bytes)` must be readable and writable, free of Rust references that assume otherwise, until
    /// [`Region::deregister`] has succeeded. Dropping the region does not wait for that.
    pub unsafe fn register_raw(&self, address: *mut u8, bytes: usize, options: &RegionOptions<'_>) -> Result<Region> {
        Region::register(&self.handle, address, bytes, None, options)
    }

    /// This agent's metadata as a blob for [`add_peer`](Agent::add_peer): with all regions, or some.
    pub fn metadata(&self, regions: &[&Region]) -> Result<Vec<u8>> {
        let native: Vec<_> = regions.iter().map(|region| region.native()).collect();
        // SAFETY: the handles live as long as the references; buffer and capacity belong together.
        text::read_sized(|buffer, capacity, needed| unsafe {
            sys::towline_agent_metadata(self.native(), native.as_ptr(), native.len(), buffer.cast(), capacity, needed)
        })
    }

    /// Adds a peer from its metadata, or more regions to a known one.
    pub fn add_peer(&self, blob: &[u8]) -> Result<Peer> {
        let mut peer = ptr::null_mut();
        // SAFETY: the blob outlives the call; `peer` is written on success only.
        check(unsafe { sys::towline_peer_add(self.native(), blob.as_ptr().cast(), blob.len(), &mut peer) })?;
        // SAFETY: a successful call gives a handle.
        Ok(unsafe { Peer::from_native(&self.handle, peer) })
    }

    /// Exchanges metadata with the agent that listens at "host:port", "unix:/path", or that is published in a directory
    /// ("etcd://host:port/name").
    pub fn connect(&self, address: &str, timeout: impl Into<Timeout>) -> Result<Peer> {
        let address = text::owned("the peer's address", address)?;
        let timeout_ns = timeout.into().nanoseconds();
        let mut peer = ptr::null_mut();
        // SAFETY: the text outlives the call; `peer` is written on success only.
        check(unsafe { sys::towline_peer_connect(self.native(), address.as_ptr(), timeout_ns, &mut peer) })?;
        // SAFETY: a successful call gives a handle.
        Ok(unsafe { Peer::from_native(&self.handle, peer) })
    }

    /// [`connect`](Agent::connect) without blocking the caller's thread.
    pub fn connect_async(
        &self,
        address: &str,
        timeout: impl Into<Timeout>,
    ) -> impl Future<Output = Result<Peer>> + Send + 'static {
        let agent = self.handle.clone();
        let deadline_ns = timeout.into().monotonic_ns();
        let question = text::owned("the peer's address", address).and_then(|address| {
            // SAFETY: the text outlives the call; the handles are valid.
            Question::ask(&self.handle, |queue, data| unsafe {
                sys::towline_peer_connect_async(self.native(), address.as_ptr(), deadline_ns, queue, data)
            })
        });
        async move {
            let mut answer = question?.answer().await?;
            answer.take_result()?;
            // SAFETY: a successful answer has a reference, which is taken over.
            Ok(unsafe { Peer::from_native(&agent, answer.take_peer()) })
        }
    }

    /// A known peer, by name or by incarnation. `ALREADY_EXISTS`: several live agents have the name.
    pub fn find_peer(&self, name: &str) -> Result<Peer> {
        let name = text::owned("the peer's name", name)?;
        let mut peer = ptr::null_mut();
        // SAFETY: as above.
        check(unsafe { sys::towline_peer_find(self.native(), name.as_ptr(), &mut peer) })?;
        // SAFETY: a successful call gives a handle.
        Ok(unsafe { Peer::from_native(&self.handle, peer) })
    }

    /// A validated list over this agent's own regions.
    pub fn block_list(&self, blocks: &[Blocks]) -> Result<BlockList> {
        BlockList::create(&self.handle, None, blocks)
    }

    /// A 64-bit number that peers add to. Send them its key.
    pub fn counter(&self, initial: u64) -> Result<Counter> {
        Counter::create(&self.handle, initial)
    }

    /// The next notice, if one has arrived. Helps to make progress.
    pub fn try_receive(&self) -> Result<Option<Notice>> {
        let mut native = sys::towline_notice_t::default();
        // SAFETY: `native` is filled on success only.
        let code = unsafe {
            sys::towline_notice_receive(self.native(), &mut native, std::mem::size_of::<sys::towline_notice_t>())
        };
        if code == Status::AGAIN.0 {
            return Ok(None);
        }
        check_quietly(code, "receive")?;
        Ok(Some(Notice::from_native(&self.handle, native)))
    }

    /// Waits for the next notice. `NOT_YET` if none comes in time.
    pub fn receive(&self, timeout: impl Into<Timeout>) -> Result<Notice> {
        let until = timeout.into().fixed();
        loop {
            if let Some(notice) = self.try_receive()? {
                return Ok(notice);
            }
            // SAFETY: plain values.
            check_quietly(unsafe { sys::towline_agent_wait(self.native(), until.nanoseconds()) }, "receive")?;
        }
    }

    /// The next notice. Needs [`Progress::HOSTED`], or another thread that drives the agent.
    pub async fn receive_async(&self) -> Result<Notice> {
        loop {
            if let Some(notice) = self.try_receive()? {
                return Ok(notice);
            }
            self.events()?.readable().await.map_err(|error| {
                Error::new(Status::IO, format!("receive: waiting for the agent's event descriptor: {error}"))
            })?;
        }
    }

    /// A descriptor that is readable while notices wait to be received. It belongs to the agent.
    pub fn event_fd(&self) -> Result<BorrowedFd<'_>> {
        let mut fd = -1;
        // SAFETY: `fd` is written on success only.
        check(unsafe { sys::towline_agent_event_fd(self.native(), &mut fd) })?;
        // SAFETY: open as long as the agent, and so as long as the borrow.
        Ok(unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// One pass of every progress engine; returns the number of events. Only [`Progress::CALLER`] needs it.
    pub fn progress(&self) -> Result<u32> {
        // SAFETY: no arguments but the handle.
        let events = unsafe { sys::towline_agent_progress(self.native()) };
        check_quietly(events.min(0), "progress")?;
        Ok(events as u32)
    }

    /// Closes the agent and tells how that went, if this is its last user; returns the agent otherwise.
    pub fn close(self) -> std::result::Result<(), Agent> {
        match Arc::try_unwrap(self.handle) {
            Ok(inner) => {
                drop(inner);
                Ok(())
            }
            Err(handle) => Err(Agent { handle }),
        }
    }

    fn events(&self) -> Result<&Async<OwnedFd>> {
        watch_descriptor(&self.handle.events, || self.event_fd())
    }

    pub(crate) fn handle(&self) -> &AgentHandle {
        &self.handle
    }

    fn native(&self) -> *mut sys::towline_agent_t {
        self.handle.native()
    }
}

impl std::fmt::Debug for Agent {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Agent")
            .field("name", &self.name())
            .field("incarnation", &self.incarnation())
            .finish_non_exhaustive()
    }
}
