//! Towline moves AI state (KV cache, weights, activations) between memories: CPU and GPU, processes, hosts, files and
//! object stores. This crate is the safe Rust face of its C API.
//!
//! ```no_run
//! use std::time::Duration;
//! use towline::{Access, Agent, Blocks, Memory, PlanOptions, PostOptions, RegionOptions};
//!
//! # fn main() -> towline::Result<()> {
//! let prefill = Agent::new("prefill-0")?;
//! let cache = prefill.register(Memory::allocate(64 * 4096)?, &RegionOptions::with_access(Access::ALL))?;
//! let decode = prefill.connect("10.0.0.8:7777", Duration::from_secs(5))?;
//!
//! let mine = prefill.block_list(&[Blocks::at(cache.address(), 4096).repeat(64, 4096)])?;
//! let theirs = decode.block_list(&[Blocks::at(decode.regions()?[0].address, 4096).repeat(64, 4096)])?;
//! let plan = prefill.plan(&mine, &theirs, &PlanOptions::default())?; // once for each peer
//! let pages = PostOptions { from: (&[3, 1]).into(), to: (&[10, 11]).into(), notice: b"req-17", ..Default::default() };
//! plan.post(&pages)?.wait(Duration::from_secs(5))?; // for each request; or: plan.run(&pages).await?
//! # Ok(()) }
//! ```
//!
//! # Ways to fail
//!
//! Every call returns [`Result`]. An [`Error`] has a [`Status`] to branch on and the library's own message, which says
//! what was tried, with which values, and what to do. Nothing in this crate panics on bad input.
//!
//! # Lifetimes
//!
//! An agent lives as long as any object made from it. A region owns its memory and returns it when peers can no longer
//! reach it: [`Region::deregister`] waits for that; dropping a region leaves the waiting to a thread, and the memory is
//! freed after it. So safe code can't free memory that a peer may still write.
//!
//! Peers read and write registered memory at any time, so it is never lent as a slice: [`Region::read_at`] and
//! [`Region::write_at`] copy, and [`Region::address`] is for code that knows when peers are done.
//!
//! # Threads and async
//!
//! Every type is `Send` and `Sync`, as any thread may call any function of the C API. The `async` functions need no
//! particular runtime. A post's future is woken by the thread that finds its outcome; notices by the agent's event
//! descriptor; connecting, counters and directories by an event queue of the crate's own. Only `deregister_async` borrows a
//! thread.

#![warn(missing_docs)]

mod agent;
mod ask;
mod block_list;
pub mod collectives;
mod counter;
mod deadline;
pub mod directory;
mod error;
mod group;
mod layout;
mod limit;
mod memory;
mod notice;
mod outcome;
mod peer;
mod plan;
mod post;
mod queue;
mod reaper;
mod region;
mod storage;
mod text;
mod wake;

pub use agent::{Agent, AgentOptions};
pub use block_list::{BlockList, Blocks, Picks, Selection};
pub use counter::Counter;
pub use deadline::Timeout;
pub use error::{Error, Result};
pub use group::{Group, GroupOptions};
pub use layout::Layout;
pub use memory::{Memory, MemoryOwner};
pub use notice::Notice;
pub use outcome::{FailedRange, Fence, Outcome};
pub use peer::{Peer, RegionInfo};
pub use plan::{Plan, PlanOptions};
pub use post::{CudaStream, Post, PostOptions, ScopedPost, Stream};
pub use queue::{Event, Queue, QueueOptions};
pub use region::{Access, Region, RegionOptions};
pub use storage::{StorageInfo, StorageOptions};

pub use towline_sys as sys;
pub use towline_sys::{EventKind, Health, Kind, Limit, Priority, Progress, Reduction, Status, Sync as Durability};

/// The version of the loaded library: "0.1.0".
pub fn version() -> &'static str {
    // SAFETY: returns a static string.
    unsafe { text::borrowed(towline_sys::towline_version()) }
}
