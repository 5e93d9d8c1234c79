// Peers: known, removed, lost.
#include <algorithm>
#include <bit>

#include "fabric/engine_state.h"

namespace towline::fabric {

Handle Engine::add_peer(const EngineAddress& address) {
  State& s = *state_;
  if (address.rails.empty() || address.rails.size() > kMaxRails || address.engine.is_none())
    fail(Status::kInvalidArgument, "a peer with {} rails can't be reached", address.rails.size());
  bool reachable = false;
  for (const RailAddress& remote : address.rails)
    for (const Rail& rail : s.rails) reachable |= rail.domain->traits().kind == remote.kind;
  if (!reachable)
    fail(Status::kNoRoute, "the peer's rails ({}) are of no kind that is here ({})",
         address.rails.front().kind, s.rails.front().domain->traits().kind);
  Peer made;
  made.address = address;
  made.paths.resize(std::max(address.rails.size(), s.rails.size()));
  if (s.free_peers.empty()) {
    // Reserves room now, so that adding the peer to a list later can't fail.
    const std::size_t room = std::bit_ceil(s.peers.size() + 1);
    s.active.reserve(room);
    s.free_peers.reserve(room);
    s.peers.push_back(std::make_unique<Peer>());
    s.free_peers.push_back(static_cast<uint32_t>(s.peers.size() - 1));
  }
  made.index = s.free_peers.back();
  s.free_peers.pop_back();
  Peer& peer = *s.peers[made.index];
  made.generation = made.generation_before = std::max(peer.generation_before + 1, 1u);
  peer = std::move(made);
  return peer.handle();
}

void Engine::remove_peer(Handle handle) noexcept {
  State& s = *state_;
  Peer* peer = s.find(handle);
  if (peer == nullptr) return;
  if (!peer->lost) {
    // Say goodbye while control messages may still be sent to it.
    for (Rail& rail : s.rails)
      for (Connection& connection : rail.connections)
        if (connection.peer == peer->index) s.break_connection(connection, Status::kClosed);
    s.drain_broken();
    s.fail_peer(*peer, Status::kClosed, "it was removed");
  }
  if (peer->active) {
    std::erase(s.active, peer->index);
    peer->active = false;
  }
  peer->generation = 0;
  s.free_peers.push_back(peer->index);
}

void Engine::peer_lost(Handle handle, std::string_view why) noexcept {
  if (Peer* peer = state_->find(handle)) state_->fail_peer(*peer, Status::kPeerLost, why);
}

void Engine::abandon(Handle handle) noexcept {
  Peer* peer = state_->find(handle);
  if (peer == nullptr) return;
  peer->abandoned = true;
  state_->abandons = true;
}

void Engine::State::end_abandoned() noexcept {
  abandons = false;
  for (const auto& peer : peers)
    if (peer->generation != 0 && peer->abandoned)
      fail_peer(*peer, Status::kPeerLost, "there is no room here for what it sends");
}

// Ends everything with the peer. Its memory is not known to be fenced; ours is, as the connections are closed.
void Engine::State::fail_peer(Peer& peer, Status status, std::string_view why) noexcept {
  if (peer.lost) return;
  peer.lost = true;
  const bool nested = in_progress;
  in_progress = true;
  for (Rail& rail : rails)
    for (Connection& connection : rail.connections)
      if (connection.peer == peer.index) break_connection(connection, status);
  drain_broken();
  for (Rail& rail : rails) {
    for (uint32_t i = 0; i < options.max_connections; ++i) {
      Connection& connection = rail.connections[i];
      if (connection.peer != peer.index || connection.state != ConnectionState::kClosing) continue;
      --busy_connections;
      free(connection);
    }
  }
  for (Transfer& transfer : transfers) {
    if (transfer.peer != peer.index) continue;
    const bool under_way = transfer.outstanding != 0 || transfer.issued != 0 || transfer.record_posted;
    const uint32_t fences = under_way && transfer.op != TransferOp::kRead ? kFencedLocal : kFencedBoth;
    const uint64_t cookie = transfer.cookie;
    const bool told = transfer.ending;
    TransferResult result;
    result.status = status;
    result.bytes = transfer.done;
    result.fences = fences;
    if (!told) {
      result.failed_begin = 0;
      result.failed_end = transfer.request.bytes;
    }
    transfer.outstanding = 0;
    release(transfer);
    if (told) {
      host.fenced(cookie, fences);
    } else {
      host.complete(cookie, result);
      if (fences != kFencedBoth) host.fenced(cookie, fences);
    }
  }
  in_progress = nested;
  if (status != Status::kClosed) host.lost(peer.handle(), status, why);
}

Peer* Engine::State::find(Handle handle) noexcept {
  if (handle.index >= peers.size() || handle.generation == 0) return nullptr;
  Peer& peer = *peers[handle.index];
  return peer.generation == handle.generation ? &peer : nullptr;
}

Status Engine::state_of(Handle handle) const noexcept {
  const Peer* peer = state_->find(handle);
  if (peer == nullptr) return Status::kStale;
  return peer->lost ? Status::kPeerLost : Status::kOk;
}

std::size_t Engine::known_peers() const noexcept { return state_->peers.size(); }

uint32_t Engine::connections_to(Handle handle) const noexcept {
  const Peer* peer = state_->find(handle);
  if (peer == nullptr) return 0;
  return static_cast<uint32_t>(std::count_if(peer->paths.begin(), peer->paths.end(), [](const Path& path) {
    return path.connection != nullptr && path.connection->state == ConnectionState::kReady;
  }));
}

}  // namespace towline::fabric
