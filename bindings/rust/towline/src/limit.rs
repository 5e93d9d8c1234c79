//! Limits of bandwidth for what this agent's own posts move. Bytes per second; 0: no limit.

use towline_sys::{self as sys, Limit};

use crate::agent::Agent;
use crate::error::{check, Result};
use crate::group::Group;
use crate::peer::Peer;

impl Agent {
    /// Limits all posts of this agent, or those of one priority. Holds for what begins later.
    pub fn set_limit(&self, which: Limit, bytes_per_s: u64) -> Result<()> {
        // SAFETY: plain values.
        check(unsafe { sys::towline_agent_set_limit(self.handle().native(), which.0, bytes_per_s) }).map(drop)
    }
}

impl Peer {
    /// Limits what this agent's posts move to and from the peer.
    pub fn set_limit(&self, bytes_per_s: u64) -> Result<()> {
        // SAFETY: plain values.
        check(unsafe { sys::towline_peer_set_limit(self.native(), bytes_per_s) }).map(drop)
    }
}

impl Group {
    /// Limits its members together.
    pub fn set_limit(&self, bytes_per_s: u64) -> Result<()> {
        // SAFETY: plain values.
        check(unsafe { sys::towline_group_set_limit(self.native(), bytes_per_s) }).map(drop)
    }
}
