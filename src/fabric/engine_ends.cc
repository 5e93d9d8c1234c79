// Connections' ends: broken, drained, closed at both ends, and resolved.
#include <algorithm>

#include "base/log.h"
#include "base/os/mapped.h"
#include "fabric/engine_state.h"

namespace towline::fabric {

void Engine::State::break_connection(Connection& connection, Status status) noexcept {
  if (connection.state != ConnectionState::kReady && connection.state != ConnectionState::kConnecting) return;
  if (connection.state == ConnectionState::kConnecting) --busy_connections;
  if (status != Status::kClosed) {
    ++rails[connection.rail].counters.breaks;
    TOWLINE_LOG_EVERY(kInfo, kSecondNs, "fabric: {}: connection {:x} {} peer {} ended: {}",
                      rails[connection.rail].domain->traits().name, connection.id,
                      connection.initiator ? "to" : "from", connection.peer, status_text(status));
  }
  connection.why = status;
  connection.state = ConnectionState::kDraining;
  pay_credit(connection);  // to nobody
  rails[connection.rail].domain->stop(connection.number);
  draining.push_back(&connection);
}

// Takes what happened before the connections were stopped, and lets them go.
void Engine::State::drain_broken() noexcept {
  while (!draining.empty()) {
    Connection& connection = *draining.back();
    draining.pop_back();
    Rail& rail = rails[connection.rail];
    const uint64_t limit = rail.completion_depth + kPollBatch;
    for (uint64_t polled = 0; polled < limit;) {
      const std::size_t count = poll(rail);
      if (count == 0) break;
      polled += count;
    }
    drained(connection);
  }
}

void Engine::State::drained(Connection& connection) noexcept {
  Rail& rail = rails[connection.rail];
  rail.domain->release(connection.number);
  uint64_t left = 0;
  for (uint64_t at = connection.head; at != connection.tail; ++at) left += connection.at(at).done ? 0 : 1;
  rail.under_way -= left;
  rail.reserved -= connection.receives + (connection.initiator ? 0 : kCreditSends);
  --rail.counters.connections;
  Peer& peer = *peers[connection.peer];
  if (!connection.initiator) {
    if (connection.announce_end && !peer.lost) send_closed(peer, connection.id);
    return free(connection);
  }
  fail_path(peer, connection);
  if (left == 0) {
    // Told once: if it gets lost, the other end stays until it is evicted.
    if (!peer.lost) {
      connection.state = ConnectionState::kFree;
      send_control(peer, connection, ControlType::kClose);
    }
    return free(connection);
  }
  connection.state = ConnectionState::kClosing;
  connection.since_ns = now_ns;
  connection.control_wait_ns = first_control_wait_ns();
  ++busy_connections;
  if (!peer.lost) send_control(peer, connection, ControlType::kClose);
}

void Engine::State::fail_path(Peer& peer, Connection& connection) noexcept {
  Path& path = peer.paths[connection.path];
  if (path.connection != &connection) return;
  path.connection = nullptr;
  path.shift = connection.failed_path ? path.shift + 1 : 0;
  if (connection.why == Status::kClosed) {
    path.retry_at_ns = now_ns;
  } else {
    path.backoff_ns = std::clamp(path.backoff_ns * 2, options.backoff_ns, options.max_backoff_ns);
    path.retry_at_ns = now_ns + path.backoff_ns;
  }
}

void Engine::State::free(Connection& connection) noexcept {
  connection.state = ConnectionState::kFree;
  connection.peer = kNoIndex;
  connection.head = connection.tail = 0;
}

// The other end is closed and has told which records it took: the rest is posted again.
void Engine::State::resolve(Connection& connection, const SequenceWindow& seen) noexcept {
  Rail& rail = rails[connection.rail];
  --busy_connections;
  bool carried = false;
  for (uint64_t position = connection.head; position != connection.tail; ++position) {
    Entry& entry = connection.at(position);
    if (entry.done) continue;
    Transfer& transfer = transfers[entry.slice.transfer];
    if (transfer.sequence != 0 && seen.seen(transfer.sequence)) {
      finish(rail, connection, entry);
      continue;
    }
    if (entry.kind != EntryKind::kRecord && !transfer.ending) {
      // Posted again, it would break one connection after the other, and libraries may not survive many of those.
      if (rail.domain->traits().breaks_for_memory && !is_mapped(entry.slice.local, entry.slice.length)) {
        end(transfer, Status::kStale);
      } else {
        push_retry(transfer, entry.slice);
        transfer.retried = true;
      }
    }
    if (entry.kind != EntryKind::kData) {
      transfer.record_posted = false;
      transfer.retried = true;
    }
    ++rail.counters.retried;
    carried = true;
    Peer& peer = *peers[transfer.peer];
    end_fruitless(transfer, connection.id);
    entry.done = true;  // not before: a transfer that ends here names it among what is missing
    if (!transfer.ending) enqueue(peer, transfer);
    if (--transfer.outstanding == 0) settle(transfer);
  }
  if (carried)
    rail.counters.longest_pause_ns = std::max(rail.counters.longest_pause_ns, now_ns - connection.since_ns);
  free(connection);
}

void Engine::State::rail_down(Rail& rail) noexcept {
  if (rail.down) return;
  rail.down = true;
  rail.counters.down = true;
  rail.recover_at_ns = now_ns + options.control_retry_ns;
  for (Connection& connection : rail.connections) break_connection(connection, Status::kUnreachable);
}

}  // namespace towline::fabric
