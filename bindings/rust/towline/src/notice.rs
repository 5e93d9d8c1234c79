use towline_sys as sys;

use crate::agent::{Agent, AgentHandle};
use crate::text;

/// A message that arrived. Dropping it returns the sender's credit, so copy what is needed and drop it.
pub struct Notice {
    native: sys::towline_notice_t,
    agent: AgentHandle,
    peer_name: text::Replaced,
}

// SAFETY: the contents do not change, and any thread may release them.
unsafe impl Send for Notice {}
unsafe impl Sync for Notice {}

impl Notice {
    pub(crate) fn from_native(agent: &AgentHandle, native: sys::towline_notice_t) -> Notice {
        Notice { native, agent: agent.clone(), peer_name: text::Replaced::default() }
    }

    /// The name of the peer that sent it.
    pub fn peer_name(&self) -> &str {
        // SAFETY: valid until the notice is released.
        unsafe { self.peer_name.of(self.native.peer_name) }
    }

    /// The incarnation of the peer that sent it, for [`Agent::find_peer`].
    pub fn peer_incarnation(&self) -> &str {
        // SAFETY: as above.
        unsafe { text::borrowed(self.native.peer_incarnation) }
    }

    /// The contents.
    pub fn bytes(&self) -> &[u8] {
        if self.native.bytes == 0 {
            return &[];
        }
        // SAFETY: as above, and the pointer is not null where there are bytes.
        unsafe { std::slice::from_raw_parts(self.native.data.cast(), self.native.bytes) }
    }

    /// Whether it is of this agent.
    pub fn is_of(&self, agent: &Agent) -> bool {
        std::sync::Arc::ptr_eq(&self.agent, agent.handle())
    }
}

impl Drop for Notice {
    fn drop(&mut self) {
        // SAFETY: released once, before its agent.
        unsafe { sys::towline_notice_release(self.agent.native(), &mut self.native) };
    }
}

impl std::fmt::Debug for Notice {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Notice").field("peer", &self.peer_name()).field("bytes", &self.bytes()).finish()
    }
}
