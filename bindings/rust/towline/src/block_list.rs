use std::ptr::{self, NonNull};

use towline_sys::{self as sys, Kind, Status};

use crate::agent::AgentHandle;
use crate::error::{check, Error, Result};
use crate::peer::PeerHandle;

/// One contiguous length repeated over up to four nested dimensions, built from the outside in.
///
/// `Blocks::at(cache, page_bytes).repeat(layers, layer_stride).repeat(pages, page_bytes)` counts page 0 of layer 0, page
/// 1 of layer 0 and so on. The address is this process's, or the peer's for a list of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    address: u64,
    length: u64,
    kind: Kind,
    device: u64,
    dimensions: usize,
    count: [u64; 4],
    stride: [u64; 4],
}

impl Blocks {
    /// One block of host memory.
    pub const fn at(address: u64, length: u64) -> Blocks {
        Blocks { address, length, kind: Kind::DRAM, device: 0, dimensions: 0, count: [0; 4], stride: [0; 4] }
    }

    /// The same block in another kind of memory: a GPU, or a registered file or object.
    pub const fn on(mut self, kind: Kind, device: u64) -> Blocks {
        self.kind = kind;
        self.device = device;
        self
    }

    /// Repeats the blocks `times` times, `stride_bytes` apart, as a new innermost dimension. With more than four
    /// dimensions the list that is made of them is refused.
    pub const fn repeat(mut self, times: u64, stride_bytes: u64) -> Blocks {
        if self.dimensions < 4 {
            self.count[self.dimensions] = times;
            self.stride[self.dimensions] = stride_bytes;
        }
        self.dimensions += 1;
        self
    }

    fn native(&self) -> Result<sys::towline_blocks_t> {
        if self.dimensions > sys::TOWLINE_MAX_DIMENSIONS as usize {
            let text = format!("blocks have {} dimensions; at most four are allowed", self.dimensions);
            return Err(Error::new(Status::LIMIT_EXCEEDED, text));
        }
        Ok(sys::towline_blocks_t {
            address: self.address,
            length: self.length,
            device: self.device,
            kind: self.kind.0,
            dimensions: self.dimensions as u32,
            count: self.count,
            stride: self.stride,
        })
    }
}

/// Validated, resolved blocks of this agent or of a peer. Block indices count through its entries.
pub struct BlockList {
    handle: NonNull<sys::towline_block_list_t>,
    agent: AgentHandle,
    // The list is of this peer, which it keeps known.
    _peer: Option<PeerHandle>,
}

// SAFETY: a list never changes, and any thread may call the C API.
unsafe impl Send for BlockList {}
unsafe impl Sync for BlockList {}

impl BlockList {
    pub(crate) fn create(agent: &AgentHandle, peer: Option<&PeerHandle>, blocks: &[Blocks]) -> Result<BlockList> {
        let native = blocks.iter().map(Blocks::native).collect::<Result<Vec<_>>>()?;
        let of = peer.map_or(ptr::null_mut(), |peer| peer.native());
        let mut list = ptr::null_mut();
        // SAFETY: the blocks outlive the call; `list` is written on success only.
        check(unsafe {
            sys::towline_block_list_create(
                agent.native(),
                of,
                native.as_ptr(),
                std::mem::size_of::<sys::towline_blocks_t>(),
                native.len(),
                &mut list,
            )
        })?;
        // SAFETY: a successful call gives a handle.
        Ok(unsafe { Self::from_native(agent, peer, list) })
    }

    /// Takes a list's handle over.
    pub(crate) unsafe fn from_native(
        agent: &AgentHandle,
        peer: Option<&PeerHandle>,
        list: *mut sys::towline_block_list_t,
    ) -> BlockList {
        BlockList { handle: NonNull::new_unchecked(list), agent: agent.clone(), _peer: peer.cloned() }
    }

    /// The number of blocks.
    pub fn len(&self) -> u64 {
        // SAFETY: the handle lives as long as `self`.
        unsafe { sys::towline_block_list_blocks(self.native()) }
    }

    /// True for a list without blocks.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The sum of the blocks' lengths.
    pub fn bytes(&self) -> u64 {
        // SAFETY: as above.
        unsafe { sys::towline_block_list_bytes(self.native()) }
    }

    /// Chosen blocks of the list, for [`Agent::copy`](crate::Agent::copy): `list.pick(&[3, 1])`, `list.pick(0..64)`.
    pub fn pick<'a>(&'a self, picks: impl Into<Picks<'a>>) -> Selection<'a> {
        Selection { list: self, picks: picks.into() }
    }

    pub(crate) fn native(&self) -> *mut sys::towline_block_list_t {
        self.handle.as_ptr()
    }

    pub(crate) fn agent(&self) -> &AgentHandle {
        &self.agent
    }
}

impl Drop for BlockList {
    fn drop(&mut self) {
        // SAFETY: destroyed once; transfers keep what they need of it.
        unsafe { sys::towline_block_list_destroy(self.native()) };
    }
}

impl std::fmt::Debug for BlockList {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("BlockList").field("blocks", &self.len()).field("bytes", &self.bytes()).finish()
    }
}

/// Which blocks of a list, in order. Index arrays are not copied.
#[derive(Clone, Copy, Debug)]
pub enum Picks<'a> {
    /// Every block.
    All,
    /// `count` blocks: start, start + step, ..
    Range {
        /// The first block.
        start: u64,
        /// From one to the next.
        step: u64,
        /// How many blocks; 0 picks none.
        count: u64,
    },
    /// Indices of 4 bytes.
    U32(&'a [u32]),
    /// Indices of 8 bytes.
    U64(&'a [u64]),
}

impl Picks<'_> {
    #[inline]
    pub(crate) fn native(&self) -> sys::towline_picks_t {
        // An empty slice's pointer is never null, so that it can't be taken for a range.
        let indices = |indices: *const std::ffi::c_void, index_bytes, count| sys::towline_picks_t {
            indices,
            index_bytes,
            count: count as u64,
            ..Default::default()
        };
        match *self {
            Picks::All => Default::default(),
            // All zero would mean every block.
            Picks::Range { start, count: 0, .. } => sys::towline_picks_t { start, step: 1, ..Default::default() },
            Picks::Range { start, step, count } => sys::towline_picks_t { start, step, count, ..Default::default() },
            Picks::U32(picks) => indices(picks.as_ptr().cast(), 4, picks.len()),
            Picks::U64(picks) => indices(picks.as_ptr().cast(), 8, picks.len()),
        }
    }
}

impl<'a> From<&'a [u32]> for Picks<'a> {
    fn from(picks: &'a [u32]) -> Self {
        Picks::U32(picks)
    }
}
impl<'a, const N: usize> From<&'a [u32; N]> for Picks<'a> {
    fn from(picks: &'a [u32; N]) -> Self {
        Picks::U32(picks)
    }
}
impl<'a> From<&'a Vec<u32>> for Picks<'a> {
    fn from(picks: &'a Vec<u32>) -> Self {
        Picks::U32(picks)
    }
}
impl<'a> From<&'a [u64]> for Picks<'a> {
    fn from(picks: &'a [u64]) -> Self {
        Picks::U64(picks)
    }
}
impl<'a> From<&'a Vec<u64>> for Picks<'a> {
    fn from(picks: &'a Vec<u64>) -> Self {
        Picks::U64(picks)
    }
}
impl From<std::ops::Range<u64>> for Picks<'_> {
    fn from(range: std::ops::Range<u64>) -> Self {
        Picks::Range { start: range.start, step: 1, count: range.end.saturating_sub(range.start) }
    }
}
impl From<std::ops::RangeFull> for Picks<'_> {
    fn from(_: std::ops::RangeFull) -> Self {
        Picks::All
    }
}

/// A list and which of its blocks: one side of a copy.
#[derive(Clone, Copy, Debug)]
pub struct Selection<'a> {
    pub(crate) list: &'a BlockList,
    pub(crate) picks: Picks<'a>,
}

impl<'a> From<&'a BlockList> for Selection<'a> {
    /// Every block in order.
    fn from(list: &'a BlockList) -> Self {
        Selection { list, picks: Picks::All }
    }
}
