#include <algorithm>

#include "base/error.h"
#include "fabric/carrier_state.h"

namespace towline::fabric {

CarrierAddress Carrier::State::address() const {
  CarrierAddress made;
  made.ticket = ticket;
  for (const SocketAddress& reachable : listener.reachable())
    if (made.endpoints.size() < kMaxCarrierEndpoints) made.endpoints.push_back(reachable.endpoint());
  made.engine = engine.address();
  return made;
}

// ---- Peers

auto Carrier::State::add_peer(const CarrierAddress& address) -> Known& {
  Known& peer = peers[address.engine.engine];
  try {
    peer.address = address;
    peer.handle = engine.add_peer(address.engine);
    by_handle[peer.handle.to_u64()] = address.engine.engine;
  } catch (...) {
    engine.remove_peer(peer.handle);
    peers.erase(address.engine.engine);
    throw;
  }
  return peer;
}

auto Carrier::State::find(Handle handle) noexcept -> Known* {
  const auto id = by_handle.find(handle.to_u64());
  return id == by_handle.end() ? nullptr : &peers.at(id->second);
}

void Carrier::State::forget(Handle handle) noexcept {
  const auto id = by_handle.find(handle.to_u64());
  if (id == by_handle.end()) return;
  peers.erase(id->second);
  by_handle.erase(id);
}

// The application disconnects peers that it has connected to. Those that came by themselves go by themselves.
void Carrier::State::lose(Handle handle, std::string_view why) noexcept {
  const Known* const peer = find(handle);
  const bool wanted = peer != nullptr && peer->wanted;
  forget(handle);
  engine.peer_lost(handle, why);
  if (!wanted) engine.remove_peer(handle);
}

// ---- The carrier

Carrier::Carrier(Engine& engine, CarrierOptions options)
    : state_(std::make_unique<State>(engine, std::move(options))) {}
Carrier::~Carrier() = default;

CarrierAddress Carrier::address() const { return state_->address(); }

Handle Carrier::connect(const CarrierAddress& address) {
  State& s = *state_;
  if (address.endpoints.empty()) fail(Status::kInvalidArgument, "an address without an endpoint");
  if (address.engine.engine == s.engine.id())
    fail(Status::kInvalidArgument, "an engine can't connect to itself");
  if (const auto found = s.peers.find(address.engine.engine); found != s.peers.end()) {
    found->second.wanted = true;
    return found->second.handle;
  }
  s.now_ns = std::max(s.now_ns, monotonic_now_ns());  // its thread may have slept for long
  auto& peer = s.add_peer(address);
  peer.wanted = true;
  const Handle handle = peer.handle;
  try {
    s.start(peer, 0);
  } catch (...) {
    s.forget(handle);
    s.engine.remove_peer(handle);
    throw;
  }
  return handle;
}

void Carrier::disconnect(Handle handle) noexcept {
  State& s = *state_;
  s.engine.remove_peer(handle);
  const auto* const peer = s.find(handle);
  if (peer == nullptr) return;
  auto* const line = peer->line;
  s.forget(handle);
  if (line == nullptr) return;
  s.write(*line);  // the engine's farewell
  s.end(*line, "");
}

void Carrier::send(Handle handle, std::span<const uint8_t> message) noexcept {
  State& s = *state_;
  const auto* const peer = s.find(handle);
  if (peer == nullptr || peer->line == nullptr || message.size() > kMaxControlBytes) return;
  auto& line = *peer->line;
  if (line.over) return;
  if (line.frames.unsent() + message.size() > s.options.max_unsent_bytes) {
    line.dropped = true;
    return;
  }
  if (!line.frames.append(message)) return s.end(line, kNoMemoryForMessages);
  if (&line != s.being_read) s.write(line);
}

std::size_t Carrier::progress(uint64_t now_ns) noexcept {
  State& s = *state_;
  s.now_ns = now_ns;
  s.events = 0;
  s.read_on();
  PollEvent events[64];
  const std::size_t count = s.poller.wait(events, 0);
  for (std::size_t i = 0; i < count; ++i)
    if (events[i].context != nullptr)
      s.handle(*static_cast<State::Line*>(events[i].context), events[i].events);
  s.sweep();
  // Last: what it accepts may be given a place that one of these events names.
  for (std::size_t i = 0; i < count; ++i)
    if (events[i].context == nullptr) s.accept();
  s.end_late();
  s.sweep();
  return s.events;
}

int Carrier::event_fd() const noexcept { return state_->poller.fd(); }

uint64_t Carrier::next_timer_ns() const noexcept {
  const State& s = *state_;
  if (s.some_over || s.some_unread) return s.now_ns;
  return s.awaited != 0 ? s.next_check_ns : kNoDeadline;
}

std::size_t Carrier::lines() const noexcept {
  const auto open = [](const State::Line& line) { return !line.over; };
  return static_cast<std::size_t>(std::count_if(state_->strangers.begin(), state_->strangers.end(), open) +
                                  std::count_if(state_->lines.begin(), state_->lines.end(), open));
}

}  // namespace towline::fabric
