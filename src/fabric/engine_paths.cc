// Connections: made on demand, answered, evicted.
#include <algorithm>
#include <bit>

#include "base/log.h"
#include "base/os/prefer_node.h"
#include "fabric/engine_state.h"

namespace towline::fabric {
namespace {

constexpr uint32_t kInitiatorReceives = 2 * kSpareReceives;

// Numbers never come again; the low bits find the connection.
uint64_t make_id(uint64_t number, uint32_t rail, uint32_t index) noexcept {
  return number << 24 | uint64_t{rail} << 16 | index;
}

// Why a connection can't be had; says it where people look.
Status refusal_of(const Rail& rail, const std::exception& error) noexcept {
  const auto* const known = dynamic_cast<const core::Error*>(&error);
  TOWLINE_LOG_EVERY(kWarning, kSecondNs, "fabric: {}: {}", rail.domain->traits().name, error.what());
  return known != nullptr ? known->code() : Status::kOutOfMemory;
}

}  // namespace

// --- Opening -------------------------------------------------------------------------------------------

void Engine::State::open_paths(Peer& peer) noexcept {
  bool ready = false;
  for (uint32_t i = 0; i < peer.paths.size(); ++i) {
    Path& path = peer.paths[i];
    if (path.connection == nullptr && now_ns >= path.retry_at_ns && !open_path(peer, i)) {
      path.backoff_ns = std::clamp(path.backoff_ns * 2, options.backoff_ns, options.max_backoff_ns);
      path.retry_at_ns = now_ns + path.backoff_ns;
    }
    ready |= path.connection != nullptr && path.connection->state == ConnectionState::kReady &&
             path.connection->refused_since_ns == 0;
  }
  if (ready) {
    peer.no_path_since_ns = 0;
  } else if (peer.no_path_since_ns == 0) {
    peer.no_path_since_ns = now_ns;
  }
}

bool Engine::State::open_path(Peer& peer, uint32_t number) noexcept {
  Path& path = peer.paths[number];
  const auto local = static_cast<uint32_t>(number % rails.size());
  Rail& rail = rails[local];
  if (rail.down) return false;
  const auto remotes = static_cast<uint32_t>(peer.address.rails.size());
  uint32_t remote = kNoIndex;
  for (uint32_t i = 0; i < remotes && remote == kNoIndex; ++i) {
    const uint32_t candidate = (number + path.shift + i) % remotes;
    if (peer.address.rails[candidate].kind == rail.domain->traits().kind) remote = candidate;
  }
  if (remote == kNoIndex) return false;
  Connection* connection = free_connection(rail, true);
  if (connection == nullptr) return false;
  try {
    prepare(*connection);
    peer.unused.reserve(std::min<uint64_t>(SequenceWindow::kSpan, transfers.size()));
    connection->endpoint = rail.domain->open(connection->number, ConnectionEnd::kInitiator);
  } catch (const std::exception& error) {
    peer.last_refusal = refusal_of(rail, error);
    return false;
  }
  const auto index = static_cast<uint32_t>(connection - rail.connections.data());
  connection->state = ConnectionState::kConnecting;
  connection->id = make_id(++last_connection, local, index);
  connection->peer = peer.index;
  connection->path = number;
  connection->remote_rail = remote;
  connection->since_ns = now_ns;
  rail.reserved += connection->receives;
  ++rail.counters.connections;
  path.connection = connection;
  for (uint32_t i = 0; i < connection->receives; ++i) post_receive(*connection, i);
  ++busy_connections;
  if (connection->state == ConnectionState::kConnecting)
    send_control(peer, *connection, ControlType::kConnect);
  return true;
}

// All connections of one rail together must not be able to complete more than its depth.
Connection* Engine::State::free_connection(Rail& rail, bool initiator) noexcept {
  const uint32_t first = initiator ? 0 : options.max_connections;
  const uint64_t receives = initiator ? kInitiatorReceives : options.credits + kSpareReceives + kCreditSends;
  if (rail.room() > receives) {
    for (uint32_t i = first; i < first + options.max_connections; ++i)
      if (rail.connections[i].state == ConnectionState::kFree) return &rail.connections[i];
  }
  return evict(rail, initiator);
}

Connection* Engine::State::evict(Rail& rail, bool initiator) noexcept {
  const uint32_t first = initiator ? 0 : options.max_connections;
  Connection* oldest = nullptr;
  for (uint32_t i = first; i < first + options.max_connections; ++i) {
    Connection& connection = rail.connections[i];
    if (connection.state != ConnectionState::kReady || connection.under_way() != 0) continue;
    if (now_ns - connection.last_progress_ns < options.evict_idle_ns) continue;
    if (initiator && peers[connection.peer]->has_queued()) continue;
    if (oldest == nullptr || connection.last_progress_ns < oldest->last_progress_ns) oldest = &connection;
  }
  if (oldest == nullptr) return nullptr;
  ++rail.counters.evictions;
  break_connection(*oldest, Status::kClosed);
  drain_broken();
  return oldest->state == ConnectionState::kFree ? oldest : nullptr;
}

// Gives the connection its buffers; they stay with it.
void Engine::State::prepare(Connection& connection) {
  Rail& rail = rails[connection.rail];
  const uint32_t sends = connection.initiator ? options.credits : kCreditSends;
  connection.receives = connection.initiator ? kInitiatorReceives : options.credits + kSpareReceives;
  if (connection.block == nullptr) {
    const uint64_t bytes = uint64_t{connection.receives + sends} * options.record_bytes;
    const int32_t node = rail.domain->traits().numa_node;
    const PreferNode beside(node < 0 ? std::nullopt : std::optional(static_cast<uint32_t>(node)));
    // Not cleared: only what was written is sent. Rails that know their node pin it, and so touch it, below.
    auto block = std::make_unique_for_overwrite<uint8_t[]>(bytes);
    connection.ring.resize(connection.initiator ? std::bit_ceil(rail.send_depth) : kCreditRing);
    connection.block_key = rail.domain->register_memory({block.get(), bytes});
    connection.block = std::move(block);
  }
  connection.free_buffers = sends >= 64 ? UINT64_MAX : (uint64_t{1} << sends) - 1;
  connection.head = connection.tail = connection.bytes = 0;
  connection.granted = connection.sent = connection.consumed = connection.told = 0;
  connection.chain = UINT32_MAX;
  connection.refused_since_ns = 0;
  connection.announce_end = true;
  connection.failed_path = false;
  connection.control_wait_ns = first_control_wait_ns();
  connection.last_progress_ns = now_ns;
  connection.why = Status::kOk;
}

void Engine::State::send_control(Peer& peer, Connection& connection, ControlType type) noexcept {
  ControlMessage message;
  message.type = type;
  message.from = id;
  message.to = peer.address.engine;
  message.connection = connection.id;
  message.initiator_rail = static_cast<uint8_t>(connection.rail);
  message.responder_rail = static_cast<uint8_t>(connection.remote_rail);
  message.record_bytes = options.record_bytes;
  message.credits = options.credits;
  message.status = connection.why;
  if (type == ControlType::kConnect || type == ControlType::kAccept) message.endpoint = connection.endpoint;
  connection.control_at_ns = now_ns + connection.control_wait_ns;
  connection.control_wait_ns = std::min(connection.control_wait_ns * 2, options.max_backoff_ns);
  if (connection.initiator && connection.state != ConnectionState::kFree && peer.unanswered_since_ns == 0)
    peer.unanswered_since_ns = now_ns + 1;
  host.send_control(peer.handle(), encode(message));
}

void Engine::say_again(Handle handle) noexcept {
  State& s = *state_;
  Peer* peer = s.find(handle);
  if (peer == nullptr || peer->lost || s.busy_connections == 0) return;
  for (Rail& rail : s.rails) {
    for (uint32_t i = 0; i < s.options.max_connections; ++i) {
      Connection& connection = rail.connections[i];
      if (connection.peer != peer->index) continue;
      if (connection.state == ConnectionState::kConnecting)
        s.send_control(*peer, connection, ControlType::kConnect);
      else if (connection.state == ConnectionState::kClosing)
        s.send_control(*peer, connection, ControlType::kClose);
    }
  }
}

// --- What peers say ------------------------------------------------------------------------------------

void Engine::on_control(Handle handle, std::span<const uint8_t> bytes) noexcept {
  State& s = *state_;
  Peer* peer = s.find(handle);
  if (peer == nullptr || peer->lost) return;
  const auto message = decode_control(bytes);
  if (!message || message->to != s.id || message->from != peer->address.engine) return;
  peer->unanswered_since_ns = 0;
  s.in_progress = true;
  switch (message->type) {
    case ControlType::kConnect:
      s.on_connect(*peer, *message);
      break;
    case ControlType::kAccept:
      if (Connection* connection = s.find_initiated(*peer, message->connection))
        s.on_accept(*connection, *message);
      else
        s.close_unknown(*peer, message->connection);
      break;
    case ControlType::kRefuse:
      if (Connection* connection = s.find_initiated(*peer, message->connection);
          connection != nullptr && connection->state == ConnectionState::kConnecting) {
        peer->last_refusal = message->status;
        connection->failed_path = true;
        s.break_connection(*connection, message->status);
      }
      break;
    case ControlType::kClose:
      s.on_close(*peer, *message);
      break;
    case ControlType::kClosed:
      if (message->seen_base <= peer->last_sequence + 1)
        peer->confirmed = std::max(peer->confirmed, message->seen_base);
      if (Connection* connection = s.find_initiated(*peer, message->connection)) {
        if (connection->state != ConnectionState::kClosing)
          s.break_connection(*connection, Status::kPeerLost);
        s.drain_broken();
        if (connection->id == message->connection && connection->state == ConnectionState::kClosing)
          s.resolve(*connection, SequenceWindow::from(message->seen_base, message->seen_bits));
      }
      break;
    case ControlType::kPing: {
      ControlMessage answer = *message;
      answer.type = ControlType::kPong;
      s.asked = true;
      std::swap(answer.from, answer.to);
      s.host.send_control(handle, encode(answer));
      break;
    }
    case ControlType::kPong:
      break;
  }
  s.drain_broken();
  s.in_progress = false;
}

Connection* Engine::State::find_initiated(Peer& peer, uint64_t wanted) noexcept {
  const uint64_t rail = wanted >> 16 & 0xff;
  const uint64_t index = wanted & 0xffff;
  if (rail >= rails.size() || index >= options.max_connections) return nullptr;
  Connection& connection = rails[rail].connections[index];
  const bool same = connection.state != ConnectionState::kFree && connection.id == wanted;
  return same && connection.peer == peer.index ? &connection : nullptr;
}

Connection* Engine::State::find_accepted(const Peer& peer, uint64_t wanted) noexcept {
  for (Rail& rail : rails) {
    for (uint32_t i = options.max_connections; i < rail.connections.size(); ++i) {
      Connection& connection = rail.connections[i];
      if (connection.state == ConnectionState::kReady && connection.peer == peer.index &&
          connection.id == wanted)
        return &connection;
    }
  }
  return nullptr;
}

void Engine::State::on_connect(Peer& peer, const ControlMessage& message) noexcept {
  if (Connection* connection = find_accepted(peer, message.connection))
    return send_control(peer, *connection, ControlType::kAccept);
  ControlMessage refusal;
  refusal.type = ControlType::kRefuse;
  refusal.from = id;
  refusal.to = peer.address.engine;
  refusal.connection = message.connection;
  refusal.status = Status::kUnreachable;
  const uint32_t number = message.responder_rail;
  const bool usable = number < rails.size() && !rails[number].down &&
                      message.initiator_rail < peer.address.rails.size() &&
                      message.record_bytes >= sizeof(RecordHeader);
  Connection* connection = usable ? free_connection(rails[number], false) : nullptr;
  if (usable && connection == nullptr) refusal.status = Status::kAgain;
  if (connection != nullptr) {
    try {
      connection->peer = peer.index;
      connection->id = message.connection;
      connection->remote_rail = message.initiator_rail;
      accept(peer, *connection, message);
      return;
    } catch (const std::exception& error) {
      refusal.status = refusal_of(rails[number], error);
      tell_accepted(peer, number, message.initiator_rail);
    }
  }
  host.send_control(peer.handle(), encode(refusal));
}

void Engine::State::accept(Peer& peer, Connection& connection, const ControlMessage& message) {
  Rail& rail = rails[connection.rail];
  prepare(connection);
  connection.endpoint = rail.domain->open(connection.number, ConnectionEnd::kResponder);
  connection.state = ConnectionState::kReady;
  rail.reserved += connection.receives + kCreditSends;
  ++rail.counters.connections;
  for (uint32_t i = 0; i < connection.receives; ++i) post_receive(connection, i);
  try {
    rail.domain->connect(connection.number, message.endpoint);
  } catch (...) {
    connection.announce_end = false;
    break_connection(connection, Status::kUnreachable);
    throw;
  }
  send_control(peer, connection, ControlType::kAccept);
}

// The peer has an end of it although this side gave it up: the kConnect came late, or the kClose got lost.
void Engine::State::close_unknown(Peer& peer, uint64_t connection) noexcept {
  ControlMessage message;
  message.type = ControlType::kClose;
  message.from = id;
  message.to = peer.address.engine;
  message.connection = connection;
  host.send_control(peer.handle(), encode(message));
}

// The peer may have given one of these up, whose end is in the way of a new one: it closes those that it does not know.
void Engine::State::tell_accepted(Peer& peer, uint32_t rail, uint32_t remote_rail) noexcept {
  for (uint32_t i = options.max_connections; i < rails[rail].connections.size(); ++i) {
    Connection& connection = rails[rail].connections[i];
    if (connection.state == ConnectionState::kReady && connection.peer == peer.index &&
        connection.remote_rail == remote_rail)
      send_control(peer, connection, ControlType::kAccept);
  }
}

void Engine::State::on_accept(Connection& connection, const ControlMessage& message) noexcept {
  if (connection.state != ConnectionState::kConnecting) return;
  Peer& peer = *peers[connection.peer];
  try {
    if (message.credits == 0 || message.record_bytes < options.record_bytes)
      fail(Status::kProtocol, "the peer takes {} records of {} bytes", message.credits, message.record_bytes);
    rails[connection.rail].domain->connect(connection.number, message.endpoint);
  } catch (const std::exception& error) {
    peer.last_refusal = refusal_of(rails[connection.rail], error);
    connection.failed_path = true;
    return break_connection(connection, peer.last_refusal);
  }
  connection.granted = message.credits;
  connection.state = ConnectionState::kReady;
  connection.last_progress_ns = now_ns;
  --busy_connections;
  Path& path = peer.paths[connection.path];
  path.backoff_ns = 0;
  path.timeouts = 0;
  if (path.refused)
    note_refusal(connection);  // until it has taken something
  else
    peer.no_path_since_ns = 0;
}

void Engine::State::on_close(Peer& peer, const ControlMessage& message) noexcept {
  if (Connection* connection = find_accepted(peer, message.connection)) {
    break_connection(*connection, Status::kClosed);
    return drain_broken();  // answers
  }
  send_closed(peer, message.connection);
}

// After the connection has been stopped and drained.
void Engine::State::send_closed(Peer& peer, uint64_t connection) noexcept {
  ControlMessage message;
  message.type = ControlType::kClosed;
  message.from = id;
  message.to = peer.address.engine;
  message.connection = connection;
  message.seen_base = peer.seen.base();
  message.seen_bits = peer.seen.bits();
  host.send_control(peer.handle(), encode(message));
}

}  // namespace towline::fabric
