// Transfers: taken, queued for their peers, ended, fenced.
#include <algorithm>

#include "fabric/engine_state.h"

namespace towline::fabric {

Status Engine::submit(const TransferRequest& request, Handle* id) noexcept {
  State& s = *state_;
  if (const Status state = state_of(request.peer); state != Status::kOk) return state;
  Peer* const peer = s.find(request.peer);
  const bool moves = request.op != TransferOp::kNone && request.bytes != 0;
  const bool records = request.count != 0 || request.has_message;
  if (!moves && !records) return Status::kInvalidArgument;
  if (request.message.size() > max_message()) return Status::kLimitExceeded;
  if (s.free_transfer == kNoIndex) return Status::kAgain;
  const uint32_t index = s.free_transfer;
  Transfer& transfer = s.transfers[index];
  s.free_transfer = transfer.next;
  ++s.transfers_in_use;
  transfer.next = kNoIndex;
  transfer.peer = peer->index;
  transfer.cookie = request.cookie;
  transfer.op = moves ? request.op : TransferOp::kNone;
  transfer.exhausted = !moves;
  transfer.wants_record = records;
  transfer.request = request;
  s.next_deadline_ns = std::min(s.next_deadline_ns, request.deadline_ns);
  if (id != nullptr) *id = {index, transfer.generation};
  constexpr uint64_t kNarrowForNs = kSecondNs;
  if (request.urgent) peer->narrow_until_ns = s.now_ns + kNarrowForNs;
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
  transfer.next = kNoIndex;
  TransferQueue& queue = peer.queue_of(transfer);
  transfer.previous = queue.tail;
  (queue.tail == kNoIndex ? queue.head : transfers[queue.tail].next) = index;
  queue.tail = index;
  ++queue.length;
  if (!peer.active) {
    peer.active = true;
    active.push_back(peer.index);  // has room for every peer
  }
}

void Engine::State::dequeue(Peer& peer, Transfer& transfer) noexcept {
  if (!transfer.queued) return;
  TransferQueue& queue = peer.queue_of(transfer);
  (transfer.previous == kNoIndex ? queue.head : transfers[transfer.previous].next) = transfer.next;
  (transfer.next == kNoIndex ? queue.tail : transfers[transfer.next].previous) = transfer.previous;
  transfer.queued = false;
  transfer.next = transfer.previous = kNoIndex;
  --queue.length;
}

Transfer* Engine::State::find_transfer(Handle handle) noexcept {
  if (handle.index >= transfers.size()) return nullptr;
  Transfer& transfer = transfers[handle.index];
  return transfer.peer != kNoIndex && transfer.generation == handle.generation ? &transfer : nullptr;
}

// Per transfer at most as many as its connections can have under way: new slices wait for those to post again.
// A transfer whose slice finds no memory ends.
void Engine::State::push_retry(Transfer& transfer, const Slice& slice) noexcept {
  if (free_retry == kNoIndex) {
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
  while (transfer.retry_head != kNoIndex) {
    RetrySlice& slice = retry_pool[transfer.retry_head];
    const uint32_t next = slice.next;
    slice.next = free_retry;
    free_retry = transfer.retry_head;
    transfer.retry_head = next;
  }
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

// Tells the outcome of a transfer that does not succeed, and waits for what is under way.
void Engine::State::end(Transfer& transfer, Status status) noexcept {
  if (transfer.peer == kNoIndex || transfer.ending) return;
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
  for (uint32_t at = transfer.retry_head; at != kNoIndex; at = retry_pool[at].next)
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

void Engine::State::release(Transfer& transfer) noexcept {
  Peer& peer = *peers[transfer.peer];
  dequeue(peer, transfer);
  drop_retries(transfer);
  if (transfer.sequence != 0 && !transfer.record_done) peer.unused.push_back(transfer.sequence);
  const uint32_t generation = transfer.generation + 1;
  const auto index = static_cast<uint32_t>(&transfer - transfers.data());
  // The segments may stay as they are.
  transfer.generation = generation == 0 ? 1 : generation;
  transfer.peer = kNoIndex;
  transfer.exhausted = transfer.wants_record = transfer.record_posted = transfer.record_done = false;
  transfer.retried = transfer.mixed = transfer.ending = transfer.cancel = transfer.no_memory = false;
  transfer.sole = transfer.stalls = transfer.breaks = 0;
  transfer.broken_by = 0;
  transfer.segment = transfer.segments_held = 0;
  transfer.issued = transfer.done = transfer.sequence = 0;
  transfer.fence_deadline_ns = kNoDeadline;
  transfer.next = free_transfer;
  free_transfer = index;
  --transfers_in_use;
}

}  // namespace towline::fabric
