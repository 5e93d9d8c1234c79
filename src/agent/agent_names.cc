// Agent: names, which are labels. Any number of agents may have the same name, and a name alone ends no peer.
// A restart is accepted when the old process is known to be gone, or when the application brings the new
// metadata and the old agent no longer exists.
#include <algorithm>

#include "agent/agent.h"
#include "agent/link.h"
#include "base/error.h"
#include "base/log.h"
#include "metadata/listener/exchange.h"

namespace towline {

namespace {

constexpr uint64_t kAskNs = 500 * kMillisecondNs;

HostIdentity host_of(const towline_identity& identity) noexcept {
  return {{identity.host[0], identity.host[1]},
          static_cast<uint32_t>(identity.pid),
          identity.pid_namespace,
          identity.network_namespace,
          identity.start_time};
}

// Asks at the peer's address which incarnation is there. Call without locks.
Standing ask(const Peer& peer, const secure::MaybeKeys& keys) {
  if (peer.identity().caller_driven != 0) return Standing::kUnknown;  // answers when its application calls
  const std::vector<std::string> addresses = peer.listen_addresses();
  bool silent = addresses.empty();
  const Deadline deadline = Deadline::after(monotonic_now_ns(), kAskNs);
  for (const std::string& address : addresses) {
    try {
      const auto answer = metadata::summarize(metadata::exchange(address, {}, deadline, nullptr, keys));
      if (answer.metadata.identity.incarnation == peer.incarnation()) return Standing::kThere;
    } catch (const Error& error) {
      silent = silent || error.code() == Status::kTimedOut;
    }
  }
  return silent ? Standing::kUnknown : Standing::kGone;
}

}  // namespace

Standing Agent::standing_locked(const Peer& peer, const HostIdentity* successor) const {
  const HostIdentity host = host_of(peer.identity());
  const HostIdentity here = host_of(identity_);
  if (process_is_gone(host)) return Standing::kGone;
  const Peer* const visitor = peers_.unsolicited(peer.incarnation());
  if (peer.any_up_link() || (visitor != nullptr && visitor->any_up_link())) return Standing::kThere;
  // Its process runs, but agents may be created and closed within one process.
  const bool apart = !host.same_process(here) && (successor == nullptr || !host.same_process(*successor));
  if (host.same_pid_namespace(here) && apart && peer.health() != TOWLINE_HEALTH_LOST) return Standing::kThere;
  return Standing::kUnknown;
}

// Its visits do not count: nothing proves who made them.
bool Agent::has_lost(const Peer& peer) noexcept {
  if (peer.health() == TOWLINE_HEALTH_UNKNOWN) return false;
  if (!peer.any_up_link()) return true;
  try {
    return process_is_gone(host_of(peer.identity()));  // its other connections are about to end
  } catch (const std::bad_alloc&) {
    return false;
  }
}

void Agent::end_peer_locked(Peer& peer, Status why) {
  peers_.forget(peer);
  peer.end(why);
  gate_transfers_locked(peer, why);
}

void Agent::end_dead_namesakes_locked(const std::string& name) {
  for (Peer* peer : peers_.named(name)) {
    if (peer->unsolicited() || peer->incarnation() == incarnation_) continue;
    if (!process_is_gone(host_of(peer->identity()))) continue;
    TOWLINE_LOG(kInfo, "peer '{}' has restarted: the process of {} is gone", name, peer->incarnation_text());
    end_peer_locked(*peer, Status::kPeerRestarted);
  }
}

void Agent::end_replaced(const metadata::PeerIdentity& by, bool may_ask) {
  if (by.incarnation == incarnation_) return;
  std::vector<std::pair<Peer*, Standing>> namesakes;  // asked-for peers: they live as long as the agent
  {
    std::lock_guard lock(control_mutex_);
    if (peers_.asked_for(by.incarnation) != nullptr) return;  // already known
    for (Peer* peer : peers_.named(by.name)) {
      if (peer->unsolicited() || peer->incarnation() == incarnation_) continue;
      namesakes.emplace_back(peer, standing_locked(*peer, &by.host));
    }
  }
  for (auto& [peer, standing] : namesakes) {
    if (standing == Standing::kUnknown && may_ask) standing = ask(*peer, keys_);
    if (standing == Standing::kThere) {
      TOWLINE_LOG(kWarning, "two agents are named '{}': {} and {}", by.name, peer->incarnation_text(),
                  by.incarnation.to_hex());
      continue;
    }
    TOWLINE_LOG(kInfo, "peer '{}' has restarted: {} is now {}", by.name, peer->incarnation_text(),
                by.incarnation.to_hex());
    std::lock_guard lock(control_mutex_);
    end_peer_locked(*peer, Status::kPeerRestarted);
  }
}

PeerHold Agent::find_peer(const std::string& name) {
  std::lock_guard lock(control_mutex_);
  std::vector<Peer*> there;
  Peer* latest = nullptr;
  Peer* self = nullptr;
  for (Peer* peer : peers_.named(name)) {
    if (peer->unsolicited() && peers_.asked_for(peer->incarnation()) != nullptr) continue;
    if (peer->incarnation() == incarnation_) {
      self = peer;
      continue;
    }
    if (latest == nullptr || peer->met_ns() >= latest->met_ns()) latest = peer;
    const Standing standing = standing_locked(*peer, nullptr);
    const bool met_just_now = peer->health() == TOWLINE_HEALTH_UNKNOWN &&
                              now_ns() < Deadline::after(peer->met_ns(), tuning_.lost_ns).ns();
    if (standing == Standing::kThere || (standing == Standing::kUnknown && met_just_now))
      there.push_back(peer);
  }
  if (there.size() > 1) {
    std::string incarnations;
    for (const Peer* peer : there) incarnations += "\n  " + peer->incarnation_text();
    fail(Status::kAlreadyExists,
         "{} peers of agent '{}' are named '{}': look up the one that is meant by its incarnation:{}",
         there.size(), this->name(), name, incarnations);
  }
  Peer* found = there.size() == 1 ? there.front() : latest != nullptr ? latest : self;
  const std::optional<Id> incarnation = Id::from_hex(name);
  if (found == nullptr && incarnation.has_value()) found = find_locked(*incarnation);
  return PeerHold(found);
}

PeerHold Agent::find_peer(const Id& incarnation) {
  std::lock_guard lock(control_mutex_);
  return PeerHold(find_locked(incarnation));
}

Peer* Agent::find_locked(const Id& incarnation) const noexcept {
  Peer* const asked_for = peers_.asked_for(incarnation);
  return asked_for != nullptr ? asked_for : peers_.unsolicited(incarnation);
}

void Agent::remove_peer(Peer& peer) {
  std::lock_guard lock(control_mutex_);
  for (Peer* one : {peers_.asked_for(peer.incarnation()), peers_.unsolicited(peer.incarnation())})
    if (one != nullptr) end_peer_locked(*one, Status::kStale);
}

}  // namespace towline
