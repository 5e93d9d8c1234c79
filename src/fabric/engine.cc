// The engine's making, its memory, and its turns.
#include <algorithm>

#include "fabric/engine_state.h"

namespace towline::fabric {

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
    transfers[i].next = i + 1 < transfers.size() ? i + 1 : kNoIndex;
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

std::size_t Engine::progress(uint64_t now_ns) noexcept {
  constexpr int kPollsPerRail = 4;
  constexpr uint64_t kAwayNs = 100 * kMillisecondNs;
  State& s = *state_;
  s.in_progress = true;
  if (s.now_ns != 0 && now_ns > s.now_ns + kAwayNs) s.forgive(now_ns - s.now_ns - kAwayNs);
  s.now_ns = now_ns;
  if (std::exchange(s.asked, false)) s.poll_until_ns = now_ns + kPollForNs;
  s.turn_events = 0;
  ++s.turns;
  for (Rail& rail : s.rails)
    for (int i = 0; i < kPollsPerRail; ++i)
      if (s.poll(rail) < kPollBatch) break;
  s.drain_broken();
  if (s.owed_credits != 0) s.send_owed_credits();
  if (s.cancels) {
    s.cancels = false;
    for (Transfer& transfer : s.transfers)
      if (transfer.peer != kNoIndex && (transfer.cancel || transfer.no_memory))
        s.end(transfer, transfer.no_memory ? Status::kOutOfMemory : Status::kCancelled);
  }
  if (s.abandons) s.end_abandoned();
  if (now_ns >= s.next_tick_ns) s.tick();
  for (std::size_t i = 0; i < s.active.size();) {
    Peer& peer = *s.peers[s.active[i]];
    if (peer.has_queued()) {
      s.open_paths(peer);
      s.pump(peer);
    }
    if (!peer.has_queued()) {
      peer.active = false;
      peer.no_path_since_ns = 0;
      s.active[i] = s.active.back();
      s.active.pop_back();
    } else {
      ++i;
    }
  }
  s.drain_broken();
  s.in_progress = false;
  return s.turn_events;
}

bool Engine::State::busy() const noexcept {
  return transfers_in_use != 0 || busy_connections != 0 || owed_credits != 0 || abandons;
}

uint64_t Engine::next_timer_ns() const noexcept {
  const State& s = *state_;
  if (s.busy()) return s.next_tick_ns;
  uint64_t next_ns = kNoDeadline;
  for (const Rail& rail : s.rails)
    if (rail.down) next_ns = std::min(next_ns, std::max(rail.recover_at_ns, s.next_tick_ns));
  return next_ns;
}

bool Engine::busy() const noexcept { return state_->busy(); }

void Engine::event_fds(std::vector<int>& fds) const {
  for (const Rail& rail : state_->rails) {
    if (rail.down) continue;  // that of a failed device may stay readable
    if (const int fd = rail.domain->event_fd(); fd >= 0) fds.push_back(fd);
  }
}

bool Engine::has_descriptors() const noexcept {
  return std::all_of(state_->rails.begin(), state_->rails.end(),
                     [](const Rail& rail) { return rail.domain->event_fd() >= 0; });
}

bool Engine::arm() noexcept {
  return std::all_of(state_->rails.begin(), state_->rails.end(), [](Rail& rail) {
    return rail.down || (rail.domain->event_fd() >= 0 && rail.domain->arm());
  });
}

bool Engine::needs_polls() const noexcept {
  if (state_->owed_credits != 0) return true;  // the domain may take them at any time
  const bool asked = state_->now_ns < state_->poll_until_ns;
  return std::any_of(state_->rails.begin(), state_->rails.end(), [&](const Rail& rail) {
    return (asked || rail.under_way != 0) && rail.domain->traits().moves_by_polls;
  });
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
  for (const auto& entry : s.peers) {
    const Peer& peer = *entry;
    if (peer.generation == 0) continue;
    text += fmt::format(
        "  peer {}: records up to {} given, {} of them free again, below {} confirmed; below {} seen\n",
        peer.index, peer.last_sequence, peer.unused.size(), peer.confirmed, peer.seen.base());
  }
  constexpr uint32_t kMostTold = 32;  // thousands may be queued
  uint32_t told = 0;
  for (const Transfer& transfer : s.transfers) {
    if (transfer.peer == kNoIndex) continue;
    if (++told > kMostTold) {
      text += "  …\n";
      break;
    }
    text += fmt::format("  transfer {}: {} of {} bytes issued, {} done, {} under way{}{}{}\n",
                        transfer.cookie, transfer.issued, transfer.request.bytes, transfer.done,
                        transfer.outstanding, transfer.queued ? ", queued" : "",
                        transfer.ending ? ", ending" : "", transfer.record_posted ? ", record posted" : "");
  }
  return text;
}

}  // namespace towline::fabric
