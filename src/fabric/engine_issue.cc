// The data path out: slices of queued transfers become work requests on the least busy of their peer's connections.
#include <algorithm>

#include "fabric/engine_state.h"

namespace towline::fabric {

// Each queued transfer gets a chain in turn, so that a large one does not hold up the small ones behind it. Urgent ones go
// first, but for one turn in eight.
void Engine::State::pump(Peer& peer) noexcept {
  constexpr uint32_t kMaxBlocked = 16;
  uint32_t bulk_blocked = 0;  // in a row
  uint32_t urgent_blocked = 0;
  const auto may_go = [](const TransferQueue& queue, uint32_t blocked) {
    return blocked < kMaxBlocked && blocked < queue.length;
  };
  for (;;) {
    const bool bulk_may = may_go(peer.bulk, bulk_blocked);
    const bool urgent_may = may_go(peer.urgent, urgent_blocked);
    if (!bulk_may && !urgent_may) return;
    const bool urgent = peer.urgent_first.next(urgent_may, bulk_may);
    // Whoever's turn it is before the others may have some room beyond the window, which those have filled.
    const bool first = urgent || (urgent_may && bulk_may);
    const bool others_wait = peer.bulk.length != 0;
    uint32_t& blocked = urgent ? urgent_blocked : bulk_blocked;
    if (take_turn(peer, urgent ? peer.urgent : peer.bulk, first)) {
      blocked = 0;
      peer.urgent_first.took(urgent, others_wait);
    } else {
      ++blocked;
    }
  }
}

// Of the transfer at the head. False: it could post nothing.
bool Engine::State::take_turn(Peer& peer, TransferQueue& queue, bool first) noexcept {
  Transfer& transfer = transfers[queue.head];
  bool issued = false;
  if (!transfer.no_memory)
    issued = transfer.data_to_issue() ? issue(peer, transfer, first ? 2 : 1) : issue_record(peer, transfer);
  if (!transfer.queued) return issued;
  dequeue(peer, transfer);
  const bool record_next = transfer.wants_record && !transfer.record_posted && transfer.outstanding == 0;
  if (transfer.data_to_issue() || record_next) enqueue(peer, transfer);
  return issued;
}

// What a NIC has been given goes before what comes later, urgent or not.
uint64_t Engine::State::window_bytes(const Peer& peer, const Rail& rail) const noexcept {
  constexpr uint64_t kNarrow = 2 << 20;
  return now_ns < peer.narrow_until_ns ? std::min(rail.window_bytes, kNarrow) : rail.window_bytes;
}

Connection* Engine::State::choose(Peer& peer, uint32_t mask, bool record, uint64_t windows) noexcept {
  uint32_t usable = 0;
  for (const Path& path : peer.paths)
    if (path.connection != nullptr) usable |= 1u << path.connection->rail;
  if ((mask & usable) == 0) mask = UINT32_MAX;
  Connection* best = nullptr;
  const auto count = static_cast<uint32_t>(peer.paths.size());
  for (uint32_t i = 0; i < count; ++i) {
    Connection* connection = peer.paths[(peer.turn + i) % count].connection;
    if (connection == nullptr || connection->state != ConnectionState::kReady) continue;
    if ((mask >> connection->rail & 1) == 0) continue;
    const Rail& rail = rails[connection->rail];
    if (connection->under_way() >= rail.send_depth || rail.room() == 0 || connection->full_at == turns)
      continue;
    if (connection->bytes != 0 && connection->bytes >= windows * window_bytes(peer, rail) && !record)
      continue;
    if (record && (connection->sent >= connection->granted || connection->free_buffers == 0)) continue;
    if (best == nullptr || connection->bytes < best->bytes) best = connection;
  }
  if (best != nullptr) peer.turn = (best->path + 1) % count;
  return best;
}

bool Engine::State::refill(Transfer& transfer) noexcept {
  transfer.segment = 0;
  transfer.segments_held = static_cast<uint32_t>(transfer.request.segments.next(
      transfer.request.segments.context, transfer.segments, std::size(transfer.segments)));
  if (transfer.segments_held == 0) transfer.exhausted = true;
  return !transfer.exhausted;
}

// A quarter after each connection in a row that was given up: progress is seen by completions, and over a network that
// loses many packets a whole slice may take longer than a silent connection is given.
uint64_t Engine::State::slice_bytes(const Rail& rail, const Transfer& transfer) noexcept {
  constexpr uint64_t kLeast = 4096;
  return std::max(rail.slice_bytes >> (2 * transfer.stalls), std::min(rail.slice_bytes, kLeast));
}

// The next slice of at most `most` bytes: those to post again come first. False if nothing is left.
bool Engine::State::next_slice(Transfer& transfer, uint64_t most, Slice& slice) noexcept {
  if (transfer.retry_head != kNoIndex) {
    RetrySlice& again = retry_pool[transfer.retry_head];
    slice = again.slice;
    if (slice.length > most) {
      slice.length = static_cast<uint32_t>(most);
      again.slice.local += most;
      again.slice.remote += most;
      again.slice.offset += most;
      again.slice.length -= slice.length;
    } else {
      const uint32_t next = again.next;
      again.next = free_retry;
      free_retry = transfer.retry_head;
      transfer.retry_head = next;
    }
    return true;
  }
  while (!transfer.exhausted) {
    if (transfer.segment == transfer.segments_held && !refill(transfer)) return false;
    towline_segment& segment = transfer.segments[transfer.segment];
    const uint64_t length = std::min(segment.length, most);
    slice.local = segment.local;
    slice.remote = segment.remote;
    slice.offset = transfer.issued;
    slice.length = static_cast<uint32_t>(length);
    slice.local_region = segment.local_region;
    slice.remote_region = segment.remote_region;
    transfer.issued += length;
    segment.local += length;
    segment.remote += length;
    segment.length -= length;
    if (segment.length == 0) ++transfer.segment;
    if (transfer.issued >= transfer.request.bytes) transfer.exhausted = true;
    if (length != 0) return true;
  }
  return false;
}

// Fills requests[0, limit) and the connection's ring with slices.
std::size_t Engine::State::fill(Transfer& transfer, Connection& connection, std::size_t limit,
                                uint64_t windows) noexcept {
  Rail& rail = rails[connection.rail];
  const auto index = static_cast<uint32_t>(&transfer - transfers.data());
  const LocalMemory* const* const local = transfer.request.local;
  const RemoteMemory* const* const remote = transfer.request.remote;
  const RequestKind kind = transfer.op == TransferOp::kRead ? RequestKind::kRead : RequestKind::kWrite;
  // Completions come at least four times a window, so that the rail does not wait for the last of a chain.
  const uint64_t window = window_bytes(*peers[transfer.peer], rail);
  const uint64_t signal_after = rail.in_order && transfer.stalls == 0 ? window / 4 : 0;
  const uint64_t most = slice_bytes(rail, transfer);
  uint64_t unsignalled = 0;
  uint64_t bytes = connection.bytes;
  uint64_t position = connection.tail;
  std::size_t count = 0;
  while (count < limit && (bytes < windows * window || bytes == 0)) {
    Entry& entry = connection.at(position);
    Slice& slice = entry.slice;
    if (!next_slice(transfer, most, slice)) break;
    slice.transfer = index;
    entry.kind = EntryKind::kData;
    entry.done = false;
    const RemoteMemory::Key& key = remote[slice.remote_region]->keys[connection.remote_rail];
    WorkRequest& request = requests[count++];
    request.cookie = position++;
    request.local = slice.local;
    request.remote = slice.remote + key.shift;
    request.local_key = local[slice.local_region]->keys[connection.rail].local_key;
    request.remote_key = key.key;
    request.length = slice.length;
    request.kind = kind;
    unsignalled += slice.length;
    request.signalled = unsignalled >= signal_after;
    if (request.signalled) unsignalled = 0;
    bytes += slice.length;
  }
  transfer.outstanding += static_cast<uint32_t>(count);
  connection.bytes = bytes;
  connection.tail = position;
  return count;
}

bool Engine::State::issue(Peer& peer, Transfer& transfer, uint64_t windows) noexcept {
  Connection* connection = choose(peer, transfer.request.rails, false, windows);
  if (connection == nullptr) return false;
  Rail& rail = rails[connection->rail];
  std::size_t room = std::min<std::size_t>(rail.send_depth - connection->under_way(), rail.room());
  const std::size_t limit = std::min<std::size_t>({room, rail.chain, connection->chain});
  const bool first = transfer.issued == 0 && !transfer.retried;
  std::size_t count = fill(transfer, *connection, limit, windows);
  if (count == 0) {
    settle(transfer);
    return true;
  }
  if (transfer.sole == 0) transfer.sole = connection->id;
  if (transfer.sole != connection->id) transfer.mixed = true;
  // On an ordered connection that took the whole transfer the record needs no wait.
  const bool whole = !transfer.data_to_issue() && !transfer.mixed && !transfer.retried;
  if (transfer.wants_record && whole && transfer.op == TransferOp::kWrite && !transfer.record_posted &&
      rail.domain->traits().ordered && may_record(peer, transfer, *connection)) {
    if (!(first && count == 1 && add_immediate(peer, transfer, *connection, requests[0])) && count < room &&
        count < kMaxChain)
      add_record(peer, transfer, *connection, requests[count++]);
  }
  post(*connection, count);
  return true;
}

// The first `count` of requests, whose entries end the ring.
void Engine::State::post(Connection& connection, std::size_t count) noexcept {
  Rail& rail = rails[connection.rail];
  requests[count - 1].signalled = true;
  if (connection.under_way() == count) connection.last_progress_ns = now_ns;
  rail.under_way += count;
  const std::size_t posted = rail.domain->post(connection.number, requests.data(), count);
  ++rail.counters.posts;
  rail.counters.requests += posted;
  turn_events += posted;
  if (posted != 0 && connection.refused_since_ns != 0) [[unlikely]]
    takes_again(connection);
  // Each request that the domain leaves is taken back, and made again in the next turn.
  if (posted == connection.chain) connection.chain = static_cast<uint32_t>(2 * posted);
  if (posted < count) {
    if (posted != 0) connection.chain = static_cast<uint32_t>(posted);
    take_back(connection, count - posted);
  }
}

// The last `count` entries were not posted.
void Engine::State::take_back(Connection& connection, std::size_t count) noexcept {
  Rail& rail = rails[connection.rail];
  for (; count != 0; --count) {
    Entry& entry = connection.at(--connection.tail);
    --rail.under_way;
    if (entry.kind == EntryKind::kCredit) {
      connection.free_buffers |= uint64_t{1} << entry.slice.local_region;
      owe_credit(connection);
      continue;
    }
    Transfer& transfer = transfers[entry.slice.transfer];
    --transfer.outstanding;
    if (entry.kind != EntryKind::kData) {
      --connection.sent;
      transfer.record_posted = false;
      if (entry.kind == EntryKind::kRecord)
        connection.free_buffers |= uint64_t{1} << entry.slice.local_region;
    }
    if (entry.kind != EntryKind::kRecord) {
      connection.bytes -= entry.slice.length;
      push_retry(transfer, entry.slice);
    }
  }
  // A domain that can't take more now is tried again in the next turn. Not only after a completion: what is under way may
  // be unsignalled, and then none comes.
  connection.full_at = turns;
  if (connection.under_way() == 0) note_refusal(connection);
  if (!rail.in_order) return;
  break_connection(connection, Status::kIo);
}

// Nothing of it will complete, so that no other clock runs.
void Engine::State::note_refusal(Connection& connection) noexcept {
  const bool again = connection.refused_since_ns != 0 && now_ns - connection.refused_at_ns < options.stall_ns;
  if (!again) connection.refused_since_ns = now_ns;
  connection.refused_at_ns = now_ns;
}

void Engine::State::takes_again(Connection& connection) noexcept {
  connection.refused_since_ns = 0;
  if (!connection.initiator) return;
  Peer& peer = *peers[connection.peer];
  peer.paths[connection.path].refused = false;
  peer.no_path_since_ns = 0;
}

}  // namespace towline::fabric
