//! Named, shaped regions: memory found by a name, and its parts by their place in a layout.

use std::mem::{size_of, size_of_val};
use std::ptr;

use towline_sys::{self as sys, Status};

use crate::block_list::{BlockList, Picks};
use crate::error::{check, Error, Result};
use crate::peer::{Peer, RegionInfo};
use crate::region::Region;
use crate::text;

const MOST_DIMENSIONS: usize = sys::TOWLINE_MAX_DIMENSIONS as usize;

/// Elements of equal length in up to four nested dimensions, outermost first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    element_bytes: u64,
    dimensions: usize,
    count: [u64; MOST_DIMENSIONS],
    stride: [u64; MOST_DIMENSIONS],
}

impl Layout {
    /// Elements side by side: `Layout::packed(4096, &[80, 1024])` is 80 layers of 1,024 pages. With more than four
    /// dimensions the region is refused.
    pub fn packed(element_bytes: u64, counts: &[u64]) -> Layout {
        let mut layout = Layout { element_bytes, dimensions: counts.len(), count: [0; 4], stride: [0; 4] };
        for (into, count) in layout.count.iter_mut().zip(counts) {
            *into = *count;
        }
        layout
    }

    /// Elements with gaps: a count and a stride in bytes for each dimension, outermost first.
    pub fn strided(element_bytes: u64, dimensions: &[(u64, u64)]) -> Layout {
        let counts: Vec<u64> = dimensions.iter().map(|(count, _)| *count).collect();
        let mut layout = Layout::packed(element_bytes, &counts);
        for (into, (_, stride)) in layout.stride.iter_mut().zip(dimensions) {
            *into = *stride;
        }
        layout
    }

    /// The contiguous bytes that are moved as a whole.
    pub fn element_bytes(&self) -> u64 {
        self.element_bytes
    }

    /// How many there are in each dimension.
    pub fn counts(&self) -> &[u64] {
        &self.count[..self.dimensions.min(MOST_DIMENSIONS)]
    }

    /// Bytes from one to the next in each dimension. All 0: side by side.
    pub fn strides(&self) -> &[u64] {
        &self.stride[..self.dimensions.min(MOST_DIMENSIONS)]
    }

    pub(crate) fn native(&self) -> sys::towline_layout_t {
        sys::towline_layout_t {
            struct_size: size_of::<sys::towline_layout_t>(),
            element_bytes: self.element_bytes,
            dimensions: self.dimensions as u32,
            reserved: 0,
            count: self.count,
            stride: self.stride,
        }
    }
}

impl Region {
    /// A list of one block for each element of the region's layout, or of one block for all of it.
    pub fn list(&self) -> Result<BlockList> {
        let mut list = ptr::null_mut();
        // SAFETY: the handle is valid; `list` is written on success only.
        check(unsafe { sys::towline_region_list(self.native(), &mut list) })?;
        // SAFETY: a successful call gives a handle.
        Ok(unsafe { BlockList::from_native(self.agent(), None, list) })
    }
}

impl Peer {
    /// The same of the peer's region with this name. `NOT_FOUND` lists the names there are; [`refresh`](Peer::refresh)
    /// fetches regions that the peer has registered since.
    pub fn region_list(&self, name: &str) -> Result<BlockList> {
        let name = text::owned("the region's name", name)?;
        let mut list = ptr::null_mut();
        // SAFETY: the text outlives the call; `list` is written on success only.
        check(unsafe { sys::towline_peer_region_list(self.native(), name.as_ptr(), &mut list) })?;
        // SAFETY: a successful call gives a handle.
        Ok(unsafe { BlockList::from_native(self.agent(), Some(self.handle()), list) })
    }

    /// The peer's region with this name, as far as it is known.
    pub fn region(&self, name: &str) -> Result<RegionInfo> {
        let name = text::owned("the region's name", name)?;
        let mut info = sys::towline_region_info_t::default();
        // SAFETY: the text outlives the call.
        check(unsafe { sys::towline_peer_region_find(self.native(), name.as_ptr(), &mut info, size_of_val(&info)) })?;
        Ok(RegionInfo::from(&info))
    }

    /// The name of the peer's region with this key; empty without one.
    pub fn region_name(&self, key: u64) -> Result<String> {
        let mut name = [0u8; sys::TOWLINE_MAX_REGION_NAME_BYTES as usize + 1];
        // SAFETY: buffer and capacity belong together.
        check(unsafe { sys::towline_peer_region_name(self.native(), key, name.as_mut_ptr().cast(), name.len()) })?;
        // SAFETY: a successful call writes a NUL-terminated text.
        Ok(unsafe { text::lossy(name.as_ptr().cast()) }.into_owned())
    }
}

impl BlockList {
    /// The layout that the list was made with, strides filled in; `None` if it has none.
    pub fn layout(&self) -> Result<Option<Layout>> {
        let mut native =
            sys::towline_layout_t { struct_size: size_of::<sys::towline_layout_t>(), ..Default::default() };
        // SAFETY: the handle is valid.
        let code = unsafe { sys::towline_block_list_layout(self.native(), &mut native) };
        if code == Status::NOT_FOUND.0 {
            return Ok(None);
        }
        check(code)?;
        Ok(Some(Layout {
            element_bytes: native.element_bytes,
            dimensions: native.dimensions as usize,
            count: native.count,
            stride: native.stride,
        }))
    }

    /// The indices of the blocks that are picked in each dimension of the layout, for a post: every combination, the last
    /// dimension counting fastest. `list.select(&[Picks::All, (&pages).into()])` is these pages of every layer.
    pub fn select(&self, picks: &[Picks<'_>]) -> Result<Vec<u32>> {
        // "Everything" is an entry of zeros. A range of no blocks looks the same to the library.
        if picks.iter().any(|picks| matches!(picks, Picks::Range { count: 0, .. })) {
            return Ok(Vec::new());
        }
        let native: Vec<_> = picks.iter().map(|picks| picks.native()).collect();
        let mut indices: Vec<u32> = Vec::new();
        let mut needed = 0;
        loop {
            // SAFETY: the arrays outlive the call, and their lengths belong to them.
            let code = unsafe {
                sys::towline_block_list_select(
                    self.native(),
                    native.as_ptr(),
                    size_of::<sys::towline_picks_t>(),
                    native.len(),
                    indices.as_mut_ptr(),
                    indices.len(),
                    &mut needed,
                )
            };
            check(code)?;
            if needed <= indices.len() {
                indices.truncate(needed);
                return Ok(indices);
            }
            if needed > u32::MAX as usize {
                let text = format!("select: {needed} blocks; at most {} can be picked at once", u32::MAX);
                return Err(Error::new(Status::LIMIT_EXCEEDED, text));
            }
            indices.resize(needed, 0);
        }
    }
}
