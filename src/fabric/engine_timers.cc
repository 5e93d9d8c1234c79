// What time brings: deadlines, control messages sent again, stalls, lost peers, rails that work again. Also the
// engine's making and its parts that only the control path uses.
#include <algorithm>
#include <bit>

#include "base/log.h"
#include "fabric/engine_state.h"

namespace towline::fabric {

namespace {
constexpr uint32_t kMostStalls = 4;
}  // namespace

void Engine::State::tick() noexcept {
  next_tick_ns = now_ns + options.tick_ns;
  if (now_ns >= next_deadline_ns) check_deadlines();
  if (busy_connections != 0 || transfers_in_use != 0) check_connections();
  if ((transfers_in_use != 0 || busy_connections != 0) && now_ns >= next_peer_check_ns) {
    // Ten thousand may be known: they are looked at as often as their deadlines need it.
    next_peer_check_ns = now_ns + std::min(options.lost_ns, options.give_up_ns) / 256;
    check_peers();
  }
  recover_rails();
}

void Engine::State::check_deadlines() noexcept {
  next_deadline_ns = kNoDeadline;
  for (uint32_t i = 0; i < transfers.size(); ++i) {
    Transfer& transfer = transfers[i];
    if (transfer.peer == kNone) continue;
    if (!transfer.ending && transfer.request.deadline_ns <= now_ns) end(transfer, Status::kTimedOut);
    if (transfer.peer == kNone) continue;
    if (transfer.ending && transfer.fence_deadline_ns <= now_ns) {
      // Only the end of its connections tells when it is fenced.
      transfer.fence_deadline_ns = kNoDeadline;
      for (Rail& rail : rails) {
        for (uint32_t number = 0; number < options.max_connections; ++number) {
          Connection& connection = rail.connections[number];
          if (connection.state != ConnectionState::kReady || connection.peer != transfer.peer) continue;
          for (uint64_t at = connection.head; at != connection.tail; ++at) {
            if (connection.at(at).done || connection.at(at).slice.transfer != i) continue;
            break_connection(connection, Status::kTimedOut);
            break;
          }
        }
      }
    }
    next_deadline_ns = std::min(next_deadline_ns,
                                transfer.ending ? transfer.fence_deadline_ns : transfer.request.deadline_ns);
  }
  drain_broken();
}

void Engine::State::check_connections() noexcept {
  for (Rail& rail : rails) {
    for (uint32_t i = 0; i < options.max_connections; ++i) {
      Connection& connection = rail.connections[i];
      if (connection.state == ConnectionState::kFree || connection.state == ConnectionState::kDraining)
        continue;
      Peer& peer = *peers[connection.peer];
      if (connection.state == ConnectionState::kConnecting) {
        if (now_ns - connection.since_ns >= options.connect_timeout_ns) {
          connection.failed_path = true;
          break_connection(connection, Status::kTimedOut);
        } else if (now_ns >= connection.control_at_ns) {
          send_control(peer, connection, ControlType::kConnect);
        }
      } else if (connection.state == ConnectionState::kClosing) {
        if (now_ns >= connection.control_at_ns) send_control(peer, connection, ControlType::kClose);
      } else if (connection.under_way() != 0) {
        const uint64_t silent_ns = now_ns - connection.last_progress_ns;
        if (silent_ns >= 2 * options.stall_ns) {
          break_stalled(connection);
        } else if (silent_ns >= options.stall_ns && now_ns - peer.pinged_at_ns >= options.stall_ns / 2) {
          peer.pinged_at_ns = now_ns;
          send_control(peer, connection, ControlType::kPing);
        }
      }
    }
  }
  drain_broken();
}

// What it carried goes over other connections; but not for ever, if nothing moves over any of them though the peer
// answers: some networks tell nobody that a remote key is not valid any more.
void Engine::State::break_stalled(Connection& connection) noexcept {
  const uint32_t peer = connection.peer;
  const auto carries = [&](uint64_t at) {
    const Entry& entry = connection.at(at);
    return entry.done || entry.kind == EntryKind::kCredit ? kNone : entry.slice.transfer;
  };
  for (uint64_t at = connection.head; at != connection.tail; ++at) {
    const uint32_t index = carries(at);
    bool counted = index == kNone;
    for (uint64_t before = connection.head; before != at && !counted; ++before)
      counted = carries(before) == index;
    if (!counted) ++transfers[index].stalls;
  }
  break_connection(connection, Status::kTimedOut);
  for (Transfer& transfer : transfers)
    if (transfer.peer == peer && transfer.stalls >= kMostStalls && !transfer.ending)
      end(transfer, Status::kIo);
}

void Engine::State::check_peers() noexcept {
  for (const auto& entry : peers) {
    Peer& peer = *entry;
    if (peer.generation == 0 || peer.lost) continue;
    if (peer.unanswered_since_ns != 0 && now_ns > peer.unanswered_since_ns &&
        now_ns - peer.unanswered_since_ns >= options.lost_ns) {
      fail_peer(peer, Status::kPeerLost, "it did not answer in time");
      continue;
    }
    if (peer.queue_head == kNone || peer.no_path_since_ns == 0 ||
        now_ns - peer.no_path_since_ns < options.give_up_ns)
      continue;
    peer.no_path_since_ns = now_ns;
    for (Transfer& transfer : transfers)
      if (transfer.peer == peer.index && transfer.queued) end(transfer, peer.last_refusal);
  }
}

void Engine::State::recover_rails() noexcept {
  for (Rail& rail : rails) {
    if (!rail.down || now_ns < rail.recover_at_ns) continue;
    rail.recover_at_ns = now_ns + options.control_retry_ns;
    rail.down = !rail.domain->recover();
    rail.counters.down = rail.down;
  }
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

bool Engine::State::busy() const noexcept {
  if (transfers_in_use != 0 || busy_connections != 0) return true;
  return std::any_of(rails.begin(), rails.end(), [](const Rail& rail) { return rail.down; });
}

uint64_t Engine::next_timer_ns() const noexcept {
  return state_->busy() ? state_->next_tick_ns : kNoDeadline;
}

void Engine::event_fds(std::vector<int>& fds) const {
  for (const Rail& rail : state_->rails)
    if (const int fd = rail.domain->event_fd(); fd >= 0) fds.push_back(fd);
}

bool Engine::arm() noexcept {
  return std::all_of(state_->rails.begin(), state_->rails.end(),
                     [](Rail& rail) { return rail.domain->event_fd() >= 0 && rail.domain->arm(); });
}

// --- Making, memory, peers -----------------------------------------------------------------------------

Engine::State::State(EngineOptions given, std::vector<std::unique_ptr<Domain>> domains, EngineHost& to)
    : options(given), host(to), id(Id::random()) {
  options.credits = std::clamp(options.credits, 2u, 64u);
  options.record_bytes = std::clamp<uint32_t>(options.record_bytes, 64, 60 << 10);
  options.max_connections = std::clamp(options.max_connections, 1u, 4096u);
  for (auto& domain : domains) {
    const DomainTraits& traits = domain->traits();
    options.max_connections = std::min(options.max_connections, std::max(1u, traits.max_connections / 2));
    options.credits = std::clamp(options.credits, 2u, std::max(2u, traits.receive_depth - kSpareReceives));
    options.record_bytes = std::min(options.record_bytes, std::max(64u, traits.record_bytes));
  }
  transfers.resize(std::max(1u, options.max_transfers));
  for (uint32_t i = 0; i < transfers.size(); ++i) {
    transfers[i].generation = 1;
    transfers[i].next = i + 1 < transfers.size() ? i + 1 : kNone;
  }
  free_transfer = 0;
  rails.resize(domains.size());
  for (uint32_t i = 0; i < rails.size(); ++i) {
    Rail& rail = rails[i];
    rail.domain = std::move(domains[i]);
    const DomainTraits& traits = rail.domain->traits();
    rail.chain = std::clamp<uint32_t>(traits.chain, 1, kMaxChain - 1);
    rail.slice_bytes = std::clamp<uint64_t>(
        options.slice_bytes != 0 ? options.slice_bytes : traits.slice_bytes, 1, 1u << 30);
    rail.window_bytes = std::max(traits.window_bytes, rail.slice_bytes);
    rail.send_depth = std::max(2u, traits.send_depth);
    rail.in_order = traits.completes_in_order;
    rail.completion_depth = traits.completion_depth;
    rail.connections.resize(std::size_t{2} * options.max_connections);
    for (uint32_t number = 0; number < rail.connections.size(); ++number) {
      rail.connections[number].initiator = number < options.max_connections;
      rail.connections[number].rail = i;
      rail.connections[number].number = number;
    }
  }
  draining.reserve(rails.size() * 2 * options.max_connections);
}

void Engine::State::close() noexcept {
  for (Rail& rail : rails) {
    for (Connection& connection : rail.connections) {
      if (connection.state == ConnectionState::kConnecting || connection.state == ConnectionState::kReady ||
          connection.state == ConnectionState::kDraining) {
        if (connection.state != ConnectionState::kDraining) rail.domain->stop(connection.number);
        rail.domain->release(connection.number);
      }
      connection.state = ConnectionState::kFree;
      if (connection.block != nullptr) rail.domain->deregister_memory(connection.block_key);
      connection.block.reset();
    }
  }
  for (const auto& peer : peers) peer->lost = true;
}

Engine::State::~State() { close(); }

void Engine::close() noexcept { state_->close(); }

Engine::Engine(EngineOptions options, std::vector<std::unique_ptr<Domain>> domains, EngineHost& host) {
  if (domains.empty() || domains.size() > kMaxRails)
    fail(Status::kInvalidArgument, "an engine has 1 to {} rails, not {}", kMaxRails, domains.size());
  state_ = std::make_unique<State>(options, std::move(domains), host);
}

Engine::~Engine() = default;

const Id& Engine::id() const noexcept { return state_->id; }

EngineAddress Engine::address() const {
  EngineAddress address;
  address.engine = state_->id;
  for (const Rail& rail : state_->rails)
    address.rails.push_back({rail.domain->traits().kind, rail.domain->address()});
  return address;
}

std::size_t Engine::rails() const noexcept { return state_->rails.size(); }
const DomainTraits& Engine::traits(std::size_t rail) const { return state_->rails.at(rail).domain->traits(); }
RailCounters Engine::counters(std::size_t rail) const { return state_->rails.at(rail).counters; }
std::size_t Engine::max_message() const noexcept {
  return state_->options.record_bytes - sizeof(RecordHeader);
}

LocalMemory Engine::register_memory(const MemoryToRegister& memory) {
  if (memory.bytes == 0 || memory.address == nullptr)
    fail(Status::kInvalidArgument, "memory of {} bytes at {} can't be registered", memory.bytes,
         memory.address);
  LocalMemory local;
  local.address = reinterpret_cast<uint64_t>(memory.address);
  local.bytes = memory.bytes;
  local.remote_read = memory.remote_read;
  local.remote_write = memory.remote_write;
  try {
    for (Rail& rail : state_->rails) {
      local.keys[local.rails] = rail.domain->register_memory(memory);
      ++local.rails;
    }
  } catch (...) {
    deregister_memory(local);
    throw;
  }
  return local;
}

void Engine::deregister_memory(const LocalMemory& memory) noexcept {
  for (uint32_t i = 0; i < memory.rails; ++i) state_->rails[i].domain->deregister_memory(memory.keys[i]);
}

RemoteMemory Engine::describe(const LocalMemory& memory) {
  RemoteMemory remote;
  remote.address = memory.address;
  remote.bytes = memory.bytes;
  remote.readable = memory.remote_read;
  remote.writable = memory.remote_write;
  remote.rails = memory.rails;
  for (uint32_t i = 0; i < memory.rails; ++i)
    remote.keys[i] = {memory.keys[i].remote_key, memory.keys[i].base - memory.address};
  return remote;
}

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
    // What works on a peer, or ends it, finds room.
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

Peer* Engine::State::find(Handle handle) noexcept {
  if (handle.index >= peers.size() || handle.generation == 0) return nullptr;
  Peer& peer = *peers[handle.index];
  return peer.generation == handle.generation ? &peer : nullptr;
}

Transfer* Engine::State::find_transfer(Handle handle) noexcept {
  if (handle.index >= transfers.size()) return nullptr;
  Transfer& transfer = transfers[handle.index];
  return transfer.peer != kNone && transfer.generation == handle.generation ? &transfer : nullptr;
}

uint32_t Engine::connections_to(Handle handle) const noexcept {
  const Peer* peer = state_->find(handle);
  if (peer == nullptr) return 0;
  return static_cast<uint32_t>(std::count_if(peer->paths.begin(), peer->paths.end(), [](const Path& path) {
    return path.connection != nullptr && path.connection->state == ConnectionState::kReady;
  }));
}

std::string Engine::describe() const {
  static constexpr const char* kStates[] = {"free", "connecting", "ready", "draining", "closing"};
  const State& s = *state_;
  std::string text =
      fmt::format("engine {}: {} transfers under way\n", s.id.to_hex().substr(0, 8), s.transfers_in_use);
  for (const Rail& rail : s.rails) {
    text += fmt::format("  {}{}: {} requests and {} receives under way\n", rail.domain->traits().name,
                        rail.down ? " (down)" : "", rail.under_way, rail.reserved);
    for (const Connection& connection : rail.connections) {
      if (connection.state == ConnectionState::kFree) continue;
      text +=
          fmt::format("    {} {} peer {} rail {}: {} under way, records {}/{}\n", connection.id,
                      kStates[static_cast<int>(connection.state)], connection.peer, connection.remote_rail,
                      connection.under_way(), connection.sent, connection.granted);
    }
  }
  for (const Transfer& transfer : s.transfers) {
    if (transfer.peer == kNone) continue;
    text += fmt::format("  transfer {}: {} of {} bytes issued, {} done, {} under way{}{}{}\n",
                        transfer.cookie, transfer.issued, transfer.request.bytes, transfer.done,
                        transfer.outstanding, transfer.queued ? ", queued" : "",
                        transfer.ending ? ", ending" : "", transfer.record_posted ? ", record posted" : "");
  }
  return text;
}

}  // namespace towline::fabric
