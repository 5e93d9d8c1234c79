// Agent: peers. Adding, reaching and losing them.
#include <algorithm>

#include "agent/agent.h"
#include "agent/link.h"
#include "agent/metadata_service.h"
#include "agent/post.h"
#include "agent/route_planner.h"
#include "base/copy/copy.h"
#include "base/error.h"
#include "base/log.h"
#include "base/per_thread.h"
#include "metadata/listener/exchange.h"

namespace towline {

Peer& Agent::learn(const metadata::PeerMetadata& metadata, bool may_ask) {
  end_replaced(metadata.identity, may_ask);
  std::lock_guard lock(control_mutex_);
  Peer* peer = peers_.asked_for(metadata.identity.incarnation);
  if (peer == nullptr)
    peer = &peers_.add(std::make_unique<Peer>(*this, metadata.identity, Peer::Origin::kAskedFor));
  peer->merge(metadata);
  peer->set_met_ns(now_ns());
  return *peer;
}

PeerHold Agent::meet(const metadata::PeerSummary& told, std::span<const uint8_t> blob) {
  const metadata::PeerIdentity& identity = told.metadata.identity;
  PeerTable::Peers gone;  // freed without the lock
  std::lock_guard lock(control_mutex_);
  Peer* peer = peers_.unsolicited(identity.incarnation);
  const bool grows = peer == nullptr || !blob.empty();
  const uint64_t bytes = peer == nullptr
                             ? Peer::metadata_bytes(told.regions, blob.size() + Peer::address_bytes(told) +
                                                                      Peer::name_bytes(told))
                             : peer->metadata_bytes_with(told, blob.size());
  const bool room = !grows || peers_.make_room(peer, bytes, gone);
  const size_t revoked_before = revoked_.size();
  for (const auto& one : gone)
    std::erase_if(revoked_, [&](const auto& entry) { return entry.first == one.get(); });
  revoked_count_.fetch_sub(static_cast<uint32_t>(revoked_before - revoked_.size()),
                           std::memory_order_acq_rel);
  if (!room) {
    fail(Status::kLimitExceeded,
         "agent '{}' has no room for another peer that it did not ask for, with {} regions in {} bytes: they "
         "may be {} (tuning.peer.unsolicited) and take {} bytes (tuning.peer.unsolicited_bytes)",
         name(), told.regions, blob.size(), peers_.limits().peers, peers_.limits().bytes);
  }
  if (peer == nullptr) {
    end_dead_namesakes_locked(identity.name);
    peer = &peers_.add(std::make_unique<Peer>(*this, identity, Peer::Origin::kUnsolicited));
  }
  if (!blob.empty()) peer->offer(told, blob);
  peers_.recount(*peer);
  peer->set_met_ns(now_ns());
  return PeerHold(peer);
}

void Agent::offer_peer(std::span<const uint8_t> blob) {
  const metadata::PeerSummary told = metadata::summarize(blob);
  if (told.metadata.identity.incarnation == incarnation_) return;  // this agent itself
  (void)meet(told, blob);
}

void Agent::gate_transfers_locked(const Peer& peer, Status why) noexcept {
  posts_.for_each([&](Post& post) {
    if (post.remote().peer() == &peer) post.close_gate(static_cast<int32_t>(why));
  });
  // Its links close in the next round of their workers.
  maintain_soon();
}

Peer& Agent::add_peer(std::span<const uint8_t> blob, bool may_ask) {
  check_usable();
  return learn(with_own_word(metadata::decode(blob)), may_ask);
}

metadata::PeerMetadata Agent::with_own_word(metadata::PeerMetadata told) {
  if (told.identity.incarnation != incarnation_) return told;
  const Worker::Guard guard(*workers_[0]);
  return describe_self(nullptr, false);
}

Peer& Agent::connect_peer(const std::string& address, Deadline deadline, const std::atomic<bool>* stop) {
  check_usable();
  const std::vector<uint8_t> own = metadata(nullptr);
  return add_peer(metadata::exchange(address, own, deadline, stop, keys_));
}

void Agent::refresh_peer(Peer& peer, Deadline deadline, const std::atomic<bool>* stop) {
  check_usable();
  if (peer.ended() != Status::kOk)
    fail(peer.ended(), "peer '{}': {}", peer.name(), status_text(peer.ended()));
  const std::vector<std::string> addresses = peer.listen_addresses();
  if (addresses.empty()) {
    fail(Status::kUnreachable, "peer '{}' does not listen: ask it for its metadata and add that",
         peer.name());
  }
  std::string reasons;
  for (const std::string& address : addresses) {
    try {
      const metadata::PeerMetadata now = with_own_word(
          metadata::decode(metadata::exchange(address, metadata(nullptr), deadline, stop, keys_)));
      if (now.identity.incarnation == peer.incarnation()) {
        peer.merge(now);
        std::lock_guard lock(control_mutex_);
        peers_.recount(peer);
        return;
      }
      const Peer& found = learn(now, true);
      fail(Status::kPeerRestarted, "peer '{}' at {} is another incarnation now: {}", peer.name(), address,
           found.incarnation_text());
    } catch (const Error& error) {
      if (error.code() == Status::kPeerRestarted) throw;
      reasons += fmt::format("\n  {}", error.what());
    }
  }
  fail(Status::kUnreachable, "refreshing the metadata of peer '{}':{}", peer.name(), reasons);
}

PeerHold Agent::meet_by_hello(const Backend& backend, const metadata::PeerSummary& told) {
  const Id incarnation = told.metadata.identity.incarnation;
  {
    std::lock_guard lock(control_mutex_);
    Peer* const asked_for = peers_.asked_for(incarnation);
    if (incarnation == incarnation_ && (asked_for == nullptr || !asked_for->connects_over(backend)))
      fail(Status::kPermissionDenied, "this agent has not connected to itself");
    // A peer that can't be connected to is reached over the connection it made. Any other peer is not,
    // because the identity of a connecting agent is not proved.
    if (asked_for != nullptr && !asked_for->has_address(backend.name)) return PeerHold(asked_for);
  }
  return meet(told, {});
}

Status Agent::accepted(Backend& backend, uint32_t worker, towline_connection* connection,
                       const towline_identity& identity, void** link) noexcept {
  try {
    if (closed()) return Status::kClosed;
    metadata::PeerSummary told;
    metadata::PeerIdentity& who = told.metadata.identity;
    who.name = identity.name;
    who.incarnation = {identity.incarnation[0], identity.incarnation[1]};
    who.host = {{identity.host[0], identity.host[1]},
                static_cast<uint32_t>(identity.pid),
                identity.pid_namespace,
                identity.network_namespace,
                identity.start_time};
    who.caller_driven = identity.caller_driven != 0;
    who.workers = identity.workers;
    const PeerHold peer = meet_by_hello(backend, told);  // until its link is up
    Link& to = peer->link_for_incoming(backend, worker);
    *link = &to;
    to.adopt(connection);
    return Status::kOk;
  } catch (const Error& error) {
    set_failure_text(error.what());
    return error.code();
  } catch (const std::exception& error) {
    set_failure_text(error.what());
    return Status::kInternal;
  }
}

bool Agent::end_connection(Id incarnation, uint64_t id) noexcept {
  std::lock_guard lock(control_mutex_);
  bool held = false;
  // The peer may be known twice, asked for and unsolicited; the connection may belong to either.
  peers_.visit(incarnation, [&](Peer& peer) {
    peer.remember_ended(id);
    Link* const link = peer.find_connection(id);
    if (link == nullptr) return;
    link->end_soon(id);
    held = true;
  });
  return held;
}

// ---- revocation by the owner

void Agent::revoke_remote(Peer& peer, uint64_t key) {
  std::shared_ptr<RemoteRegion> region = peer.forget_region(key);
  if (region == nullptr) return;
  std::lock_guard lock(control_mutex_);
  revoked_.emplace_back(&peer, std::move(region));
  revoked_count_.fetch_add(1, std::memory_order_acq_rel);
  maintain_soon();
  posts_.for_each([&](Post& post) {
    if (post.remote().peer() == &peer && post.remote().uses_region(key))
      post.close_gate(static_cast<int32_t>(Status::kStale));
  });
}

bool Agent::revoked_region_in_use(const Peer& peer, uint64_t key) noexcept {
  std::lock_guard lock(control_mutex_);
  for (auto entry = revoked_.begin(); entry != revoked_.end(); ++entry) {
    if (entry->first != &peer || entry->second->ref.key != key) continue;
    if (entry->second->imports.load(std::memory_order_acquire) != 0) return true;
    revoked_.erase(entry);
    revoked_count_.fetch_sub(1, std::memory_order_acq_rel);
    return false;
  }
  return false;
}

// ---- messages outside transfers

Link* Agent::message_link(Peer& peer, uint64_t deadline_ns) {
  Worker& mine = my_worker();
  if (Link* up = peer.up_link(mine.index())) return up;
  std::string reasons;
  Status why = Status::kUnreachable;
  for (const auto& backend : backends_->backends()) {
    if (!may_do(*backend, peer, {}, {})) {
      reasons += fmt::format("\n  {}: {}", backend->name, reason_against(*backend, peer, {}, {}));
      continue;
    }
    Link& link = peer.link(*backend, mine.index());
    {
      Worker::Guard guard(mine);
      link.connect(deadline_ns);
    }
    drive_until(
        [&] {
          return link.up() || link.state() == Link::State::kDown || peer.ended() != Status::kOk || closed();
        },
        deadline_ns);
    check_usable();
    if (peer.ended() != Status::kOk)
      fail(peer.ended(), "peer '{}': {}", peer.name(), status_text(peer.ended()));
    if (link.up()) return &link;
    Worker::Guard guard(mine);
    reasons += fmt::format("\n  {}: {}", backend->name, link.last_error_text());
    if (link.last_error() == Status::kPeerLost) why = Status::kPeerLost;
  }
  check_usable();
  fail(why, "no backend reaches peer '{}':{}", peer.name(), reasons);
}

Status Agent::send_message(Peer& peer, const void* message, size_t bytes, uint64_t notice_bytes,
                           bool tagged) {
  check_usable();
  if (const Status ended = peer.ended(); ended != Status::kOk) fail(ended, "{}", peer.loss(ended, {}));
  Link* link = peer.up_link(my_worker().index());
  if (link == nullptr) link = message_link(peer, now_ns() + options_.default_timeout_ns);
  if (tagged && link->takes_tags() == Status::kAgain)  // its first message says so
    drive_until([&] { return !link->up() || link->takes_tags() != Status::kAgain; },
                now_ns() + options_.default_timeout_ns);
  Worker::Guard guard(link->worker());
  if (!link->up()) {
    const Status lost = told(Status::kPeerLost);
    fail(lost, "{}", peer.loss(lost, link->last_error_text()));
  }
  if (const Status status = tagged ? link->takes_tags() : Status::kOk; status != Status::kOk) return status;
  if (notice_bytes != UINT64_MAX && link->take_notice_credit(notice_bytes) != Status::kOk)
    return Status::kAgain;
  const Status status = told(link->send(message, bytes));
  if (status == Status::kAgain) link->note_no_room();
  if (status != Status::kOk && notice_bytes != UINT64_MAX) link->return_notice_credit(notice_bytes);
  if (status == Status::kOk && notice_bytes != UINT64_MAX) link->sent().add_notice(link->worker().index());
  return status;
}

namespace {

// Grows to the largest notice that the thread has sent.
struct NoticeMessage {
  std::vector<uint8_t> bytes;
};

}  // namespace

Status Agent::send_notice(Peer& peer, const void* data, size_t bytes, uint64_t tag) {
  if (bytes > TOWLINE_MAX_NOTICE_BYTES) {
    fail(Status::kLimitExceeded, "a notice has at most {} bytes, not {}", TOWLINE_MAX_NOTICE_BYTES, bytes);
  }
  std::vector<uint8_t>& message = PerThread<NoticeMessage>::get().bytes;
  const TaggedMessage header = make_data_message(true, static_cast<uint32_t>(bytes), tag, 0, 0);
  const size_t header_bytes = bytes_of(header);
  message.resize(header_bytes + bytes);
  std::memcpy(message.data(), &header, header_bytes);
  copy_bytes(message.data() + header_bytes, data, bytes);
  return send_message(peer, message.data(), message.size(), bytes, tag != 0);
}

Status Agent::add_to_counter(Peer& peer, uint64_t key, uint64_t amount) {
  if (key == 0) fail(Status::kInvalidArgument, "a counter's key is never 0");
  const TaggedMessage message = make_data_message(false, 0, 0, key, amount);
  return send_message(peer, &message, bytes_of(message), UINT64_MAX);
}

}  // namespace towline
