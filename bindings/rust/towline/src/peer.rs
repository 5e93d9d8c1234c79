use std::future::Future;
use std::ptr::NonNull;
use std::sync::Arc;

use towline_sys::{self as sys, Health, Kind};

use crate::agent::AgentHandle;
use crate::ask::{outcome, Question};
use crate::block_list::{BlockList, Blocks};
use crate::deadline::Timeout;
use crate::error::{check, check_quietly, Result};
use crate::text;

/// Another agent as seen from here. Clones are handles of the same peer.
#[derive(Clone)]
pub struct Peer {
    handle: PeerHandle,
}

pub(crate) type PeerHandle = Arc<Inner>;

pub(crate) struct Inner {
    native: NonNull<sys::towline_peer_t>,
    agent: AgentHandle,
    name: text::Replaced,
}

// SAFETY: any thread may call any function of the C API.
unsafe impl Send for Inner {}
unsafe impl Sync for Inner {}

impl Inner {
    pub(crate) fn native(&self) -> *mut sys::towline_peer_t {
        self.native.as_ptr()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: released once.
        unsafe { sys::towline_peer_release(self.native()) };
    }
}

/// A region that a peer has registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionInfo {
    /// The key by which it is named.
    pub key: u64,
    /// Its address in the peer's process.
    pub address: u64,
    /// Its size.
    pub bytes: u64,
    /// GPU, file and so on.
    pub device: u64,
    /// Its kind of memory.
    pub kind: Kind,
    /// Whether READs are allowed.
    pub readable: bool,
    /// Whether WRITEs are allowed.
    pub writable: bool,
}

impl Peer {
    pub(crate) unsafe fn from_native(agent: &AgentHandle, peer: *mut sys::towline_peer_t) -> Peer {
        let native = NonNull::new_unchecked(peer);
        Peer { handle: Arc::new(Inner { native, agent: agent.clone(), name: text::Replaced::default() }) }
    }

    /// The peer's name.
    pub fn name(&self) -> &str {
        // SAFETY: valid as long as the handle.
        unsafe { self.handle.name.of(sys::towline_peer_name(self.native())) }
    }

    /// The incarnation of the agent that this peer is.
    pub fn incarnation(&self) -> &str {
        // SAFETY: valid as long as the handle.
        unsafe { text::borrowed(sys::towline_peer_incarnation(self.native())) }
    }

    /// Whether it is alive, as far as is known.
    pub fn health(&self) -> Health {
        // SAFETY: the handle is valid.
        Health(unsafe { sys::towline_peer_health(self.native()) })
    }

    /// Its known regions, in the order of registration.
    pub fn regions(&self) -> Result<Vec<RegionInfo>> {
        let mut native: Vec<sys::towline_region_info_t> = Vec::new();
        let mut count = 0;
        loop {
            // SAFETY: `count` is the capacity.
            check(unsafe {
                sys::towline_peer_regions(
                    self.native(),
                    native.as_mut_ptr(),
                    std::mem::size_of::<sys::towline_region_info_t>(),
                    &mut count,
                )
            })?;
            if count <= native.len() {
                break;
            }
            native.resize(count, Default::default());
        }
        native.truncate(count);
        Ok(native.iter().map(RegionInfo::from).collect())
    }

    /// Fetches the peer's current metadata, for regions that it has registered since.
    pub fn refresh(&self, timeout: impl Into<Timeout>) -> Result<()> {
        let timeout_ns = timeout.into().nanoseconds();
        // SAFETY: plain values.
        check(unsafe { sys::towline_peer_refresh(self.native(), timeout_ns) }).map(drop)
    }

    /// [`refresh`](Peer::refresh) without blocking the caller's thread.
    pub fn refresh_async(&self, timeout: impl Into<Timeout>) -> impl Future<Output = Result<()>> + Send + 'static {
        let deadline_ns = timeout.into().monotonic_ns();
        // SAFETY: the handles are valid.
        outcome(Question::ask(self.agent(), |queue, data| unsafe {
            sys::towline_peer_refresh_async(self.native(), deadline_ns, queue, data)
        }))
    }

    /// A validated list over the peer's registered memory.
    pub fn block_list(&self, blocks: &[Blocks]) -> Result<BlockList> {
        BlockList::create(&self.handle.agent, Some(&self.handle), blocks)
    }

    /// Sends a notice by itself. `AGAIN`: no credit now.
    pub fn send(&self, notice: &[u8]) -> Result<()> {
        // SAFETY: the bytes are copied by the call.
        let code = unsafe { sys::towline_notice_send(self.native(), notice.as_ptr().cast(), notice.len()) };
        check_quietly(code, "send").map(drop)
    }

    /// Adds to the peer's counter with this key.
    pub fn add(&self, counter_key: u64, amount: u64) -> Result<()> {
        // SAFETY: plain values.
        let code = unsafe { sys::towline_counter_add(self.native(), counter_key, amount) };
        check_quietly(code, "add").map(drop)
    }

    /// Makes the agent forget the peer. Everything in flight to it ends with `CANCELLED`; its lists answer `STALE`.
    pub fn remove(self) -> Result<()> {
        // The C function drops one reference on success; take one for it, since clones and lists hold theirs.
        let name = text::owned("the peer's incarnation", self.incarnation())?;
        let mut reference = std::ptr::null_mut();
        // SAFETY: `reference` is written on success only, and consumed by a successful removal.
        unsafe {
            check(sys::towline_peer_find(self.handle.agent.native(), name.as_ptr(), &mut reference))?;
            check(sys::towline_peer_remove(reference)).map(drop).inspect_err(|_| sys::towline_peer_release(reference))
        }
    }

    pub(crate) fn native(&self) -> *mut sys::towline_peer_t {
        self.handle.native()
    }

    pub(crate) fn handle(&self) -> &PeerHandle {
        &self.handle
    }

    pub(crate) fn agent(&self) -> &AgentHandle {
        &self.handle.agent
    }
}

impl From<&sys::towline_region_info_t> for RegionInfo {
    fn from(info: &sys::towline_region_info_t) -> Self {
        RegionInfo {
            key: info.key,
            address: info.address,
            bytes: info.bytes,
            device: info.device,
            kind: Kind(info.kind),
            readable: info.access & sys::TOWLINE_ACCESS_READ != 0,
            writable: info.access & sys::TOWLINE_ACCESS_WRITE != 0,
        }
    }
}

impl std::fmt::Debug for Peer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Peer")
            .field("name", &self.name())
            .field("incarnation", &self.incarnation())
            .field("health", &self.health())
            .finish()
    }
}
