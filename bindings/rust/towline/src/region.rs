use std::future::Future;
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};
use std::time::Duration;

use towline_sys::{self as sys, Kind, Status};

use crate::agent::AgentHandle;
use crate::deadline::Timeout;
use crate::error::{check, Error, Result};
use crate::layout::Layout;
use crate::memory::MemoryOwner;
use crate::reaper::{self, Corpse};
use crate::text;

/// The access that peers have to a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access(pub(crate) u32);

impl Access {
    /// Nothing: the region is for this agent's use, and peers are not told of it.
    pub const NONE: Access = Access(sys::TOWLINE_ACCESS_NONE);
    /// Peers may READ.
    pub const READ: Access = Access(sys::TOWLINE_ACCESS_READ);
    /// Peers may WRITE.
    pub const WRITE: Access = Access(sys::TOWLINE_ACCESS_WRITE);
    /// Peers may do both.
    pub const ALL: Access = Access(sys::TOWLINE_ACCESS_ALL);
}

impl std::ops::BitOr for Access {
    type Output = Access;

    fn bitor(self, other: Access) -> Access {
        Access(self.0 | other.0)
    }
}

/// Options of a registration. By default peers can't reach the memory.
#[derive(Clone, Copy, Debug)]
pub struct RegionOptions<'a> {
    /// The access that peers have.
    pub access: Access,
    /// Reached only through paths where this agent checks every access.
    pub guarded: bool,
    /// By which peers find it; empty: none. `ALREADY_EXISTS`: another region of the agent has it.
    pub name: &'a str,
    /// For a region with a name: its elements, which become the blocks of its lists.
    pub layout: Option<Layout>,
    /// The kind of the memory: this process's own, or a GPU's.
    pub kind: Kind,
    /// The number of the GPU; 0 for memory of the process.
    pub device: u64,
}

impl<'a> RegionOptions<'a> {
    /// Memory with which peers may do this.
    pub fn with_access(access: Access) -> Self {
        RegionOptions { access, ..Default::default() }
    }

    /// The same with a name and a layout, of which peers are told.
    pub fn named(self, name: &'a str, layout: Layout) -> Self {
        RegionOptions { name, layout: Some(layout), ..self }
    }

    /// The same for another kind of memory: `on(Kind::VRAM, 0)` for an address that GPU 0 gave.
    pub fn on(self, kind: Kind, device: u64) -> Self {
        RegionOptions { kind, device, ..self }
    }
}

impl Default for RegionOptions<'_> {
    fn default() -> Self {
        RegionOptions { access: Access::NONE, guarded: false, name: "", layout: None, kind: Kind::DRAM, device: 0 }
    }
}

/// Registered memory, with its owner.
pub struct Region {
    parts: ManuallyDrop<Parts>,
}

struct Parts {
    handle: NonNull<sys::towline_region_t>,
    address: *mut u8,
    bytes: usize,
    kind: Kind,
    // Held, not used: freed after the region, before the agent may end.
    _owner: Option<Box<dyn MemoryOwner>>,
    agent: AgentHandle,
}

// SAFETY: the handle may be used by any thread; the owner is Send, and never used through a shared reference.
unsafe impl Send for Parts {}
unsafe impl Sync for Parts {}

impl Region {
    pub(crate) fn register(
        agent: &AgentHandle,
        address: *mut u8,
        bytes: usize,
        owner: Option<Box<dyn MemoryOwner>>,
        options: &RegionOptions<'_>,
    ) -> Result<Region> {
        let name = text::optional("the region's name", options.name)?;
        let layout = options.layout.map(|layout| layout.native());
        let native = sys::towline_region_options_t {
            struct_size: std::mem::size_of::<sys::towline_region_options_t>(),
            access: options.access.0,
            flags: if options.guarded { sys::TOWLINE_REGION_GUARDED } else { 0 },
            kind: options.kind.0,
            device: options.device,
            name: text::pointer(&name),
            layout: layout.as_ref().map_or(ptr::null(), ptr::from_ref),
        };
        let mut handle = ptr::null_mut();
        // SAFETY: the caller vouches for the memory; `handle` is written on success only.
        check(unsafe {
            sys::towline_region_register(agent.native(), address.cast(), bytes as u64, &native, &mut handle)
        })?;
        // SAFETY: a successful call gives a handle.
        let mut region = unsafe { Self::from_native(agent, handle, address, bytes, owner) };
        region.parts.kind = options.kind;
        Ok(region)
    }

    /// Takes a registered handle over.
    pub(crate) unsafe fn from_native(
        agent: &AgentHandle,
        handle: *mut sys::towline_region_t,
        address: *mut u8,
        bytes: usize,
        owner: Option<Box<dyn MemoryOwner>>,
    ) -> Region {
        let handle = NonNull::new_unchecked(handle);
        let agent = agent.clone();
        let parts = Parts { handle, address, bytes, kind: Kind::DRAM, _owner: owner, agent };
        Region { parts: ManuallyDrop::new(parts) }
    }

    /// The address of the memory, for [`Blocks`](crate::Blocks); 0 for storage. Peers may access it at any time.
    pub fn address(&self) -> u64 {
        self.parts.address as u64
    }

    /// How many bytes it has.
    pub fn bytes(&self) -> usize {
        self.parts.bytes
    }

    /// The key by which peers name it.
    pub fn key(&self) -> u64 {
        // SAFETY: the handle lives as long as `self`.
        unsafe { sys::towline_region_key(self.native()) }
    }

    /// Copies bytes out of the region. A peer that writes them meanwhile may leave old and new ones mixed.
    pub fn read_at(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        let from = self.place("read_at", offset, into.len())?;
        // SAFETY: in range; `into` is exclusively borrowed, so it can't overlap memory that only this region owns.
        unsafe { ptr::copy(from, into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    /// Copies bytes into the region. A peer that reads them meanwhile may see old and new ones mixed.
    pub fn write_at(&self, offset: usize, from: &[u8]) -> Result<()> {
        let into = self.place("write_at", offset, from.len())?;
        // SAFETY: in range, and the memory is writable.
        unsafe { ptr::copy(from.as_ptr(), into, from.len()) };
        Ok(())
    }

    fn place(&self, what: &str, offset: usize, bytes: usize) -> Result<*mut u8> {
        if self.parts.address.is_null() || self.parts.kind != Kind::DRAM {
            let text = format!("{what}: the region is no memory of this process; move its bytes by a post");
            return Err(Error::new(Status::UNSUPPORTED, text));
        }
        if offset.checked_add(bytes).map_or(true, |end| end > self.parts.bytes) {
            let text = format!("{what}: {bytes} bytes at offset {offset} do not lie in {} bytes", self.parts.bytes);
            return Err(Error::new(Status::OUT_OF_RANGE, text));
        }
        // SAFETY: within the region.
        Ok(unsafe { self.parts.address.add(offset) })
    }

    /// Deregisters: refuses new work, tells peers, waits until work in flight is fenced, and frees the memory that the
    /// region owns. `NOT_YET`: a peer has not detached, and the message names it; the region comes back with the error,
    /// and the call may be repeated.
    pub fn deregister(self, timeout: impl Into<Timeout>) -> std::result::Result<(), (Region, Error)> {
        let timeout_ns = timeout.into().nanoseconds();
        // SAFETY: the handle is freed by a successful call only, after which nothing uses it.
        match check(unsafe { sys::towline_region_deregister(self.native(), timeout_ns) }) {
            Ok(_) => {
                let mut region = ManuallyDrop::new(self);
                // SAFETY: dropped once, as `region` is not.
                unsafe { ManuallyDrop::drop(&mut region.parts) };
                Ok(())
            }
            Err(error) => Err((self, error)),
        }
    }

    /// [`deregister`](Region::deregister) without blocking the caller's thread.
    pub fn deregister_async(
        self,
        timeout: impl Into<Timeout>,
    ) -> impl Future<Output = std::result::Result<(), (Region, Error)>> + Send {
        let timeout = timeout.into();
        blocking::unblock(move || self.deregister(timeout))
    }

    pub(crate) fn agent(&self) -> &AgentHandle {
        &self.parts.agent
    }

    pub(crate) fn native(&self) -> *mut sys::towline_region_t {
        self.parts.handle.as_ptr()
    }
}

impl Drop for Region {
    /// Never blocks: if a peer has not detached yet, a thread waits for it and frees the memory then.
    fn drop(&mut self) {
        // SAFETY: taken once.
        let mut parts = unsafe { ManuallyDrop::take(&mut self.parts) };
        if !parts.retry(Duration::ZERO) {
            reaper::free_later(Box::new(parts));
        }
    }
}

impl Corpse for Parts {
    fn retry(&mut self, wait: Duration) -> bool {
        // SAFETY: the handle is valid until a call succeeds, which is the last one.
        let code = unsafe { sys::towline_region_deregister(self.handle.as_ptr(), wait.as_nanos() as u64) };
        !Status(code).is_error() // without memory it is tried again, as it is registered still
    }
}

impl std::fmt::Debug for Region {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Region")
            .field("address", &format_args!("{:#x}", self.address()))
            .field("bytes", &self.parts.bytes)
            .finish_non_exhaustive()
    }
}
