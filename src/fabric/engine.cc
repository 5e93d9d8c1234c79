#include "fabric/engine.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "fabric/engine_state.h"

namespace towline::fabric {

// --- Transfers -----------------------------------------------------------------------------------------

Status Engine::submit(const TransferRequest& request, Handle* id) noexcept {
  State& s = *state_;
  Peer* peer = s.find(request.peer);
  if (peer == nullptr) return Status::kStale;
  if (peer->lost) return Status::kPeerLost;
  const bool moves = request.op != TransferOp::kNone && request.bytes != 0;
  const bool records = request.count != 0 || request.has_message;
  if (!moves && !records) return Status::kInvalidArgument;
  if (request.message.size() > max_message()) return Status::kLimitExceeded;
  if (s.free_transfer == kNone) return Status::kAgain;
  const uint32_t index = s.free_transfer;
  Transfer& transfer = s.transfers[index];
  s.free_transfer = transfer.next;
  ++s.transfers_in_use;
  transfer.next = kNone;
  transfer.peer = peer->index;
  transfer.cookie = request.cookie;
  transfer.op = moves ? request.op : TransferOp::kNone;
  transfer.exhausted = !moves;
  transfer.wants_record = records;
  transfer.request = request;
  s.next_deadline_ns = std::min(s.next_deadline_ns, request.deadline_ns);
  if (id != nullptr) *id = {index, transfer.generation};
  s.enqueue(*peer, transfer);
  if (!s.in_progress && !s.cancels) s.pump(*peer);
  return Status::kInProgress;
}

void Engine::cancel(Handle handle) noexcept {
  State& s = *state_;
  Transfer* transfer = s.find_transfer(handle);
  if (transfer == nullptr || transfer->ending) return;
  transfer->cancel = true;
  s.cancels = true;
}

void Engine::State::enqueue(Peer& peer, Transfer& transfer) noexcept {
  if (transfer.queued) return;
  const auto index = static_cast<uint32_t>(&transfer - transfers.data());
  transfer.queued = true;
  transfer.next = kNone;
  transfer.previous = peer.queue_tail;
  (peer.queue_tail == kNone ? peer.queue_head : transfers[peer.queue_tail].next) = index;
  peer.queue_tail = index;
  ++peer.queue_length;
  if (!peer.active) {
    peer.active = true;
    active.push_back(peer.index);  // has room for every peer
  }
}

void Engine::State::dequeue(Peer& peer, Transfer& transfer) noexcept {
  if (!transfer.queued) return;
  (transfer.previous == kNone ? peer.queue_head : transfers[transfer.previous].next) = transfer.next;
  (transfer.next == kNone ? peer.queue_tail : transfers[transfer.next].previous) = transfer.previous;
  transfer.queued = false;
  transfer.next = transfer.previous = kNone;
  --peer.queue_length;
}

// Each queued transfer gets a chain in turn, so that a large one does not hold up the small ones behind it.
void Engine::State::pump(Peer& peer) noexcept {
  constexpr uint32_t kMaxBlocked = 16;
  uint32_t blocked = 0;
  while (peer.queue_head != kNone && blocked < kMaxBlocked && blocked < peer.queue_length) {
    Transfer& transfer = transfers[peer.queue_head];
    bool issued = false;
    if (!transfer.no_memory)
      issued = transfer.data_to_issue() ? issue(peer, transfer) : issue_record(peer, transfer);
    blocked = issued ? 0 : blocked + 1;
    if (!transfer.queued) continue;
    dequeue(peer, transfer);
    const bool record_next = transfer.wants_record && !transfer.record_posted && transfer.outstanding == 0;
    if (transfer.data_to_issue() || record_next) enqueue(peer, transfer);
  }
}

Connection* Engine::State::choose(Peer& peer, uint32_t mask, bool record) noexcept {
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
    if (connection->bytes != 0 && connection->bytes >= rail.window_bytes && !record) continue;
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

// Fills requests[0, limit) and the connection's ring with slices.
std::size_t Engine::State::fill(Peer& peer, Transfer& transfer, Connection& connection,
                                std::size_t limit) noexcept {
  Rail& rail = rails[connection.rail];
  const auto index = static_cast<uint32_t>(&transfer - transfers.data());
  const LocalMemory* const* const local = transfer.request.local;
  const RemoteMemory* const* const remote = transfer.request.remote;
  const RequestKind kind = transfer.op == TransferOp::kRead ? RequestKind::kRead : RequestKind::kWrite;
  // Completions come at least four times a window, so that the rail does not wait for the last of a chain.
  const uint64_t signal_after = rail.in_order && transfer.stalls == 0 ? rail.window_bytes / 4 : 0;
  const uint64_t most = slice_bytes(rail, transfer);
  uint64_t unsignalled = 0;
  uint64_t bytes = connection.bytes;
  uint64_t position = connection.tail;
  std::size_t count = 0;
  (void)peer;
  while (count < limit && (bytes < rail.window_bytes || bytes == 0)) {
    Entry& entry = connection.at(position);
    Slice& slice = entry.slice;
    if (transfer.retry_head != kNone) {
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
    } else {
      if (transfer.exhausted) break;
      if (transfer.segment == transfer.segments_held && !refill(transfer)) break;
      towline_segment& segment = transfer.segments[transfer.segment];
      const uint64_t length = std::min(segment.length, most);
      slice = {segment.local,
               segment.remote,
               transfer.issued,
               static_cast<uint32_t>(length),
               segment.local_region,
               segment.remote_region,
               index};
      transfer.issued += length;
      segment.local += length;
      segment.remote += length;
      segment.length -= length;
      if (segment.length == 0) ++transfer.segment;
      if (transfer.issued >= transfer.request.bytes) transfer.exhausted = true;
      if (length == 0) continue;
    }
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

bool Engine::State::issue(Peer& peer, Transfer& transfer) noexcept {
  Connection* connection = choose(peer, transfer.request.rails, false);
  if (connection == nullptr) return false;
  Rail& rail = rails[connection->rail];
  std::size_t room = std::min<std::size_t>(rail.send_depth - connection->under_way(), rail.room());
  const std::size_t limit = std::min<std::size_t>(room, rail.chain);
  const bool first = transfer.issued == 0 && !transfer.retried;
  std::size_t count = fill(peer, transfer, *connection, limit);
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

bool Engine::State::may_record(const Peer& peer, const Transfer& transfer,
                               const Connection& connection) const noexcept {
  if (connection.sent >= connection.granted || connection.free_buffers == 0) return false;
  return transfer.sequence != 0 || !peer.unused.empty() ||
         peer.last_sequence + 1 - peer.confirmed < SequenceWindow::kSpan;
}

bool Engine::State::issue_record(Peer& peer, Transfer& transfer) noexcept {
  if (transfer.record_posted || transfer.outstanding != 0) return true;
  Connection* connection = choose(peer, transfer.request.rails, true);
  if (connection == nullptr || !may_record(peer, transfer, *connection)) return false;
  add_record(peer, transfer, *connection, requests[0]);
  post(*connection, 1);
  return true;
}

// The peer's window moves on only if it gets every number: what a transfer did not need, another one takes.
uint64_t Engine::State::next_sequence(Peer& peer) noexcept {
  if (peer.unused.empty()) return ++peer.last_sequence;
  const uint64_t sequence = peer.unused.back();
  peer.unused.pop_back();
  return sequence;
}

void Engine::State::add_record(Peer& peer, Transfer& transfer, Connection& connection,
                               WorkRequest& request) noexcept {
  if (transfer.sequence == 0) transfer.sequence = next_sequence(peer);
  uint8_t* at = nullptr;
  const uint32_t buffer = take_buffer(connection, at);
  const std::span<const uint8_t> message = transfer.request.message;
  RecordHeader header;
  header.flags = static_cast<uint16_t>((transfer.request.count != 0 ? kRecordCounts : 0) |
                                       (transfer.request.has_message ? kRecordMessage : 0));
  header.message_bytes = static_cast<uint16_t>(message.size());
  header.sequence = transfer.sequence;
  header.immediate = transfer.request.immediate;
  header.count = transfer.request.count;
  std::memcpy(at, &header, sizeof header);
  if (!message.empty()) std::memcpy(at + sizeof header, message.data(), message.size());
  Entry& entry = connection.at(connection.tail);
  entry.slice = {};
  entry.slice.transfer = static_cast<uint32_t>(&transfer - transfers.data());
  entry.slice.local_region = buffer;
  entry.kind = EntryKind::kRecord;
  entry.done = false;
  request.cookie = connection.tail++;
  request.local = reinterpret_cast<uint64_t>(at);
  request.local_key = connection.block_key.local_key;
  request.length = static_cast<uint32_t>(sizeof header + message.size());
  request.kind = RequestKind::kSend;
  request.signalled = true;
  ++connection.sent;
  transfer.record_posted = true;
  ++transfer.outstanding;
}

// A lone slice and a small count fit into one request: the immediate's lower half is the counter, its upper
// half the record's sequence.
bool Engine::State::add_immediate(Peer& peer, Transfer& transfer, Connection& connection,
                                  WorkRequest& request) noexcept {
  const uint32_t half = rails[connection.rail].domain->traits().immediate_bits / 2;
  if (half == 0 || transfer.request.has_message || transfer.request.count != 1) return false;
  const uint64_t mask = (uint64_t{1} << half) - 1;
  if (transfer.request.immediate > mask) return false;
  if (transfer.sequence == 0) transfer.sequence = next_sequence(peer);
  request.kind = RequestKind::kWriteImmediate;
  request.immediate = (transfer.sequence & mask) << half | transfer.request.immediate;
  request.signalled = true;
  connection.at(connection.tail - 1).kind = EntryKind::kDataAndRecord;
  ++connection.sent;
  transfer.record_posted = true;
  return true;
}

uint32_t Engine::State::take_buffer(Connection& connection, uint8_t*& at) noexcept {
  const auto buffer = static_cast<uint32_t>(std::countr_zero(connection.free_buffers));
  connection.free_buffers &= connection.free_buffers - 1;
  at = connection.block.get() + uint64_t{connection.receives + buffer} * options.record_bytes;
  return buffer;
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
  if (posted < count) take_back(connection, count - posted);
}

// The last `count` entries were not posted.
void Engine::State::take_back(Connection& connection, std::size_t count) noexcept {
  Rail& rail = rails[connection.rail];
  for (; count != 0; --count) {
    Entry& entry = connection.at(--connection.tail);
    --rail.under_way;
    if (entry.kind == EntryKind::kCredit) {
      connection.free_buffers |= uint64_t{1} << entry.slice.local_region;
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
  if (!rail.in_order) return;
  break_connection(connection, Status::kIo);
}

// Per transfer at most as many as its connections can have under way: new slices wait for those to post again.
// A transfer whose slice finds no memory ends.
void Engine::State::push_retry(Transfer& transfer, const Slice& slice) noexcept {
  if (free_retry == kNone) {
    try {
      retry_pool.emplace_back();
    } catch (const std::bad_alloc&) {
      transfer.no_memory = cancels = true;
      return;
    }
    free_retry = static_cast<uint32_t>(retry_pool.size() - 1);
  }
  const uint32_t index = free_retry;
  free_retry = retry_pool[index].next;
  retry_pool[index].slice = slice;
  retry_pool[index].next = transfer.retry_head;
  transfer.retry_head = index;
}

void Engine::State::drop_retries(Transfer& transfer) noexcept {
  while (transfer.retry_head != kNone) {
    RetrySlice& slice = retry_pool[transfer.retry_head];
    const uint32_t next = slice.next;
    slice.next = free_retry;
    free_retry = transfer.retry_head;
    transfer.retry_head = next;
  }
}

// --- Completions ---------------------------------------------------------------------------------------

std::size_t Engine::State::poll(Rail& rail) noexcept {
  const std::size_t count = rail.domain->poll(completions.data(), completions.size());
  for (std::size_t i = 0; i < count; ++i) handle(rail, completions[i]);
  turn_events += count;
  return count;
}

void Engine::State::handle(Rail& rail, const Completion& completion) noexcept {
  if (completion.kind == CompletionKind::kDomainDown) return rail_down(rail);
  if (completion.connection >= rail.connections.size()) return;
  Connection& connection = rail.connections[completion.connection];
  if (connection.state == ConnectionState::kFree || connection.state == ConnectionState::kClosing) return;
  switch (completion.kind) {
    case CompletionKind::kRequest:
      return request_done(rail, connection, completion);
    case CompletionKind::kReceive:
    case CompletionKind::kReceiveImmediate:
      return receive(connection, completion);
    case CompletionKind::kConnectionDown:
      return break_connection(connection, completion.status);
    case CompletionKind::kDomainDown:
      return;
  }
}

// The peer or the memory's registration refused the request: another rail would not help.
static bool refused(Status status) noexcept {
  return status == Status::kPermissionDenied || status == Status::kOutOfRange || status == Status::kStale ||
         status == Status::kInvalidArgument;
}

void Engine::State::request_done(Rail& rail, Connection& connection, const Completion& completion) noexcept {
  const uint64_t position = completion.cookie;
  if (position - connection.head >= connection.under_way()) return;  // not under way
  if (completion.status != Status::kOk) {
    const Entry& entry = connection.at(position);
    if (refused(completion.status) && entry.kind != EntryKind::kCredit && !entry.done &&
        connection.state == ConnectionState::kReady) {
      const uint32_t index = entry.slice.transfer;
      break_connection(connection, completion.status);
      return end(transfers[index], completion.status);
    }
    return break_connection(connection, completion.status);
  }
  connection.last_progress_ns = now_ns;
  if (rail.in_order) {
    while (connection.head <= position) {
      Entry& entry = connection.at(connection.head++);
      if (!entry.done) finish(rail, connection, entry);
    }
    return;
  }
  Entry& entry = connection.at(position);
  if (!entry.done) finish(rail, connection, entry);
  while (connection.head != connection.tail && connection.at(connection.head).done) ++connection.head;
}

void Engine::State::finish(Rail& rail, Connection& connection, Entry& entry) noexcept {
  entry.done = true;
  if (connection.state != ConnectionState::kClosing) --rail.under_way;
  if (entry.kind == EntryKind::kCredit || entry.kind == EntryKind::kRecord)
    connection.free_buffers |= uint64_t{1} << entry.slice.local_region;
  if (entry.kind == EntryKind::kCredit) return send_credit(connection);
  Transfer& transfer = transfers[entry.slice.transfer];
  if (entry.kind != EntryKind::kRecord) {
    connection.bytes -= entry.slice.length;
    rail.counters.bytes += entry.slice.length;
    transfer.done += entry.slice.length;
  }
  transfer.stalls = 0;
  if (entry.kind != EntryKind::kData) {
    transfer.record_done = true;
  }
  if (--transfer.outstanding == 0) settle(transfer);
}

// Nothing of the transfer is under way: it goes on, or has ended.
void Engine::State::settle(Transfer& transfer) noexcept {
  if (transfer.outstanding != 0) return;
  Peer& peer = *peers[transfer.peer];
  if (transfer.ending) {
    const uint64_t cookie = transfer.cookie;
    release(transfer);
    return host.fenced(cookie, kFencedBoth);
  }
  if (transfer.no_memory) return;  // progress() ends it
  if (transfer.data_to_issue() || (transfer.wants_record && !transfer.record_done))
    return enqueue(peer, transfer);
  TransferResult result;
  result.bytes = transfer.done;
  result.fences = kFencedBoth;
  const uint64_t cookie = transfer.cookie;
  release(transfer);
  host.complete(cookie, result);
}

void Engine::State::release(Transfer& transfer) noexcept {
  Peer& peer = *peers[transfer.peer];
  dequeue(peer, transfer);
  drop_retries(transfer);
  if (transfer.sequence != 0 && !transfer.record_done) peer.unused.push_back(transfer.sequence);
  const uint32_t generation = transfer.generation + 1;
  const auto index = static_cast<uint32_t>(&transfer - transfers.data());
  // The segments may stay as they are.
  transfer.generation = generation == 0 ? 1 : generation;
  transfer.peer = kNone;
  transfer.exhausted = transfer.wants_record = transfer.record_posted = transfer.record_done = false;
  transfer.retried = transfer.mixed = transfer.ending = transfer.cancel = transfer.no_memory = false;
  transfer.sole = transfer.stalls = 0;
  transfer.segment = transfer.segments_held = 0;
  transfer.issued = transfer.done = transfer.sequence = 0;
  transfer.fence_deadline_ns = kNoDeadline;
  transfer.next = free_transfer;
  free_transfer = index;
  --transfers_in_use;
}

// Tells the outcome of a transfer that does not succeed, and waits for what is under way.
void Engine::State::end(Transfer& transfer, Status status) noexcept {
  if (transfer.peer == kNone || transfer.ending) return;
  TransferResult result;
  result.status = status;
  result.bytes = transfer.done;
  failed_range(transfer, result);
  result.fences = transfer.outstanding == 0 ? kFencedBoth : 0;
  dequeue(*peers[transfer.peer], transfer);
  drop_retries(transfer);
  const uint64_t cookie = transfer.cookie;
  if (transfer.outstanding == 0) {
    release(transfer);
  } else {
    transfer.ending = true;
    transfer.exhausted = true;
    transfer.fence_deadline_ns = now_ns + options.fence_ns;
    next_deadline_ns = std::min(next_deadline_ns, transfer.fence_deadline_ns);
  }
  host.complete(cookie, result);
}

void Engine::State::failed_range(const Transfer& transfer, TransferResult& result) noexcept {
  const auto index = static_cast<uint32_t>(&transfer - transfers.data());
  uint64_t begin = transfer.request.bytes;
  uint64_t end = 0;
  const auto missing = [&](uint64_t from, uint64_t to) {
    begin = std::min(begin, from);
    end = std::max(end, to);
  };
  if (!transfer.exhausted) missing(transfer.issued, transfer.request.bytes);
  if (transfer.no_memory) missing(0, transfer.request.bytes);
  for (uint32_t at = transfer.retry_head; at != kNone; at = retry_pool[at].next)
    missing(retry_pool[at].slice.offset, retry_pool[at].slice.offset + retry_pool[at].slice.length);
  for (Rail& rail : rails) {
    for (uint32_t i = 0; i < options.max_connections; ++i) {
      Connection& connection = rail.connections[i];
      if (connection.state == ConnectionState::kFree || connection.peer != transfer.peer) continue;
      for (uint64_t at = connection.head; at != connection.tail; ++at) {
        const Entry& entry = connection.at(at);
        if (!entry.done && entry.slice.transfer == index &&
            (entry.kind == EntryKind::kData || entry.kind == EntryKind::kDataAndRecord))
          missing(entry.slice.offset, entry.slice.offset + entry.slice.length);
      }
    }
  }
  result.failed_begin = begin;
  result.failed_end = std::max(begin, end);
}

// --- Records -------------------------------------------------------------------------------------------

void Engine::State::post_receive(Connection& connection, uint64_t buffer) noexcept {
  ReceiveRequest request;
  request.cookie = buffer;
  request.address = reinterpret_cast<uint64_t>(connection.block.get() + buffer * options.record_bytes);
  request.local_key = connection.block_key.local_key;
  request.length = options.record_bytes;
  if (rails[connection.rail].domain->post_receives(connection.number, &request, 1) != 1)
    break_connection(connection, Status::kIo);
}

void Engine::State::receive(Connection& connection, const Completion& completion) noexcept {
  if (completion.status != Status::kOk) return break_connection(connection, completion.status);
  const uint64_t buffer = completion.cookie;
  if (buffer >= connection.receives) return;
  connection.last_progress_ns = now_ns;
  if (completion.kind == CompletionKind::kReceiveImmediate) {
    const uint32_t half = rails[connection.rail].domain->traits().immediate_bits / 2;
    const uint64_t mask = (uint64_t{1} << half) - 1;
    RecordHeader header;
    header.flags = kRecordCounts;
    header.immediate = static_cast<uint32_t>(completion.immediate & mask);
    header.sequence = peers[connection.peer]->seen.widen(completion.immediate >> half & mask, half);
    header.count = 1;
    take_record(connection, header, nullptr);
  } else {
    const uint8_t* at = connection.block.get() + buffer * options.record_bytes;
    const auto header = decode_record({at, std::min(completion.length, options.record_bytes)});
    if (!header) return break_connection(connection, Status::kProtocol);
    if (header->flags == kRecordCredit) {
      connection.granted = std::max(connection.granted, header->granted);
      Peer& peer = *peers[connection.peer];
      if (header->sequence <= peer.last_sequence + 1)
        peer.confirmed = std::max(peer.confirmed, header->sequence);
    } else {
      take_record(connection, *header, at + sizeof *header);
    }
  }
  if (connection.state != ConnectionState::kReady) return;
  post_receive(connection, buffer);
  send_credit(connection);
}

void Engine::State::take_record(Connection& connection, const RecordHeader& header,
                                const uint8_t* message) noexcept {
  Peer& peer = *peers[connection.peer];
  if (connection.initiator || peer.seen.beyond(header.sequence))
    return break_connection(connection, Status::kProtocol);
  if (!peer.seen.insert(header.sequence)) return;  // arrived before, perhaps on another rail
  ++connection.consumed;
  if ((header.flags & kRecordCounts) != 0) host.counted(peer.handle(), header.immediate, header.count);
  if ((header.flags & kRecordMessage) != 0) host.received(peer.handle(), {message, header.message_bytes});
}

void Engine::State::send_credit(Connection& connection) noexcept {
  if (connection.initiator || connection.state != ConnectionState::kReady) return;
  Peer& peer = *peers[connection.peer];
  const bool many = connection.consumed - connection.told >= (options.credits + 1) / 2;
  if (!many && peer.seen.base() - peer.told_base < SequenceWindow::kSpan / 4) return;
  if (connection.free_buffers == 0) return;  // when one of them has gone
  uint8_t* at = nullptr;
  const uint32_t buffer = take_buffer(connection, at);
  RecordHeader header;
  header.flags = kRecordCredit;
  header.granted = options.credits + connection.consumed;
  header.sequence = peer.told_base = peer.seen.base();
  std::memcpy(at, &header, sizeof header);
  connection.told = connection.consumed;
  Entry& entry = connection.at(connection.tail);
  entry.slice = {};
  entry.slice.local_region = buffer;
  entry.kind = EntryKind::kCredit;
  entry.done = false;
  WorkRequest& request = requests[0];
  request.cookie = connection.tail++;
  request.local = reinterpret_cast<uint64_t>(at);
  request.local_key = connection.block_key.local_key;
  request.length = sizeof header;
  request.kind = RequestKind::kSend;
  post(connection, 1);
}

// --- Progress ------------------------------------------------------------------------------------------

std::size_t Engine::progress(uint64_t now_ns) noexcept {
  constexpr int kPollsPerRail = 4;
  State& s = *state_;
  s.in_progress = true;
  s.now_ns = now_ns;
  s.turn_events = 0;
  ++s.turns;
  for (Rail& rail : s.rails)
    for (int i = 0; i < kPollsPerRail; ++i)
      if (s.poll(rail) < kPollBatch) break;
  s.drain_broken();
  if (s.cancels) {
    s.cancels = false;
    for (Transfer& transfer : s.transfers)
      if (transfer.peer != kNone && (transfer.cancel || transfer.no_memory))
        s.end(transfer, transfer.no_memory ? Status::kOutOfMemory : Status::kCancelled);
  }
  if (now_ns >= s.next_tick_ns) s.tick();
  for (std::size_t i = 0; i < s.active.size();) {
    Peer& peer = *s.peers[s.active[i]];
    if (peer.queue_head != kNone) {
      s.open_paths(peer);
      s.pump(peer);
    }
    if (peer.queue_head == kNone) {
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

}  // namespace towline::fabric
