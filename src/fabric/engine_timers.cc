// Timers: deadlines, control messages sent again, stalls, lost peers, rails that work again.
#include <algorithm>

#include "fabric/engine_state.h"

namespace towline::fabric {
namespace {
constexpr uint32_t kMostStalls = 4;
constexpr uint32_t kMostBreaks = 32;  // rails that come and go break many, too
constexpr uint32_t kMostDoublings = 2;
constexpr uint64_t kAskEveryNs = kPollForNs / 4;  // a peer to poll
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

// Time in which this engine did not run says nothing about its peers: it was not asked, or made a connection, which takes
// some libraries long, or its thread got no processor. Each turn counts a little of it: where they are always late, peers must
// be lost too.
void Engine::State::forgive(uint64_t gap_ns) noexcept {
  for (Rail& rail : rails) {
    for (Connection& connection : rail.connections) {
      if (connection.state == ConnectionState::kConnecting || connection.state == ConnectionState::kClosing)
        connection.since_ns += gap_ns;
      if (connection.under_way() != 0) connection.last_progress_ns += gap_ns;
      if (connection.refused_since_ns != 0) {
        connection.refused_since_ns += gap_ns;
        connection.refused_at_ns += gap_ns;
      }
    }
  }
  for (const auto& peer : peers) {
    if (peer->unanswered_since_ns != 0) peer->unanswered_since_ns += gap_ns;
    if (peer->no_path_since_ns != 0) peer->no_path_since_ns += gap_ns;
  }
}

void Engine::State::check_deadlines() noexcept {
  next_deadline_ns = kNoDeadline;
  for (uint32_t i = 0; i < transfers.size(); ++i) {
    Transfer& transfer = transfers[i];
    if (transfer.peer == kNoIndex) continue;
    if (!transfer.ending && transfer.request.deadline_ns <= now_ns) end(transfer, Status::kTimedOut);
    if (transfer.peer == kNoIndex) continue;
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
    const bool asks = options.asks_to_poll && rail.domain->traits().moves_by_polls;
    for (uint32_t i = 0; i < options.max_connections; ++i) {
      Connection& connection = rail.connections[i];
      if (connection.state == ConnectionState::kFree || connection.state == ConnectionState::kDraining)
        continue;
      Peer& peer = *peers[connection.peer];
      if (connection.state == ConnectionState::kConnecting) {
        // A peer that needs longer than that for its own end is given more time by each try.
        Path& path = peer.paths[connection.path];
        if (now_ns - connection.since_ns >= options.connect_timeout_ns << path.timeouts) {
          path.timeouts = std::min(path.timeouts + 1, kMostDoublings);
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
        } else if (asks && now_ns - peer.pinged_at_ns >= kAskEveryNs) {
          peer.pinged_at_ns = now_ns;
          send_control(peer, connection, ControlType::kPing);
        }
      } else if (takes_nothing(connection)) {
        peer.paths[connection.path].refused = true;
        break_connection(connection, Status::kTimedOut);  // a new one may do better
      }
    }
  }
  drain_broken();
}

// Its transfers go over other connections. But they end if nothing moves over any of those though the peer
// answers: some networks do not report that a remote key is not valid any more.
void Engine::State::break_stalled(Connection& connection) noexcept {
  const uint32_t peer = connection.peer;
  const auto carries = [&](uint64_t at) {
    const Entry& entry = connection.at(at);
    return entry.done || entry.kind == EntryKind::kCredit ? kNoIndex : entry.slice.transfer;
  };
  for (uint64_t at = connection.head; at != connection.tail; ++at) {
    const uint32_t index = carries(at);
    bool counted = index == kNoIndex;
    for (uint64_t before = connection.head; before != at && !counted; ++before)
      counted = carries(before) == index;
    if (!counted) ++transfers[index].stalls;
  }
  break_connection(connection, Status::kTimedOut);
  for (Transfer& transfer : transfers)
    if (transfer.peer == peer && transfer.stalls >= kMostStalls && !transfer.ending)
      end(transfer, Status::kIo);
}

// The same of connections that break: some libraries end one for memory that is not mapped any more.
void Engine::State::end_fruitless(Transfer& transfer, uint64_t connection) noexcept {
  if (transfer.ending || transfer.broken_by == connection) return;
  transfer.broken_by = connection;
  if (transfer.breaks++ == 0) transfer.broken_since_ns = now_ns;
  if (transfer.breaks >= kMostBreaks && now_ns - transfer.broken_since_ns >= kMostStalls * options.stall_ns)
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
    if (!peer.has_queued() || peer.no_path_since_ns == 0 ||
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

}  // namespace towline::fabric
