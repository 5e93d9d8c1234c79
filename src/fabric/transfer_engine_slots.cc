// Whatever has an outcome: transfers to one peer, and the states of all kinds of slots.
#include <chrono>

#include "fabric/transfer_engine_state.h"

namespace towline::fabric {

std::size_t TransferEngine::Slot::next_pages(void* context, towline_segment* out, std::size_t capacity) {
  Slot& slot = *static_cast<Slot*>(context);
  const PageList& pages = slot.pages;
  const std::size_t count = std::min(capacity, pages.local_pages.size() - slot.given);
  const uint64_t local = pages.local->address + pages.local_offset;
  const uint64_t remote = pages.remote->address + pages.remote_offset;
  for (std::size_t i = 0; i < count; ++i, ++slot.given)
    out[i] = {local + pages.local_pages[slot.given] * pages.local_stride,
              remote + pages.remote_pages[slot.given] * pages.remote_stride, pages.page_bytes, 0, 0};
  return count;
}

std::size_t TransferEngine::Slot::next_one(void* context, towline_segment* out, std::size_t capacity) {
  Slot& slot = *static_cast<Slot*>(context);
  if (slot.given != 0 || capacity == 0) return 0;
  slot.given = 1;
  out[0] = slot.one;
  return 1;
}

bool pages_fit(std::span<const uint32_t> pages, uint64_t page_bytes, uint64_t stride, uint64_t offset,
               uint64_t bytes) noexcept {
  if (!fits(offset, page_bytes, bytes)) return false;
  const uint32_t last = *std::max_element(pages.begin(), pages.end());
  return stride == 0 || last <= (bytes - offset - page_bytes) / stride;
}

namespace {

bool permits(TransferOp op, const RemoteMemory& remote) noexcept {
  return op == TransferOp::kWrite ? remote.writable : remote.readable;
}

}  // namespace

Status TransferEngine::paged(TransferOp op, Handle peer, const PageList& given,
                             const TransferOptions& options, Handle* number) {
  PageList pages = given;
  if (op == TransferOp::kNone || pages.local == nullptr || pages.remote == nullptr || pages.page_bytes == 0 ||
      pages.local_pages.empty())
    return Status::kInvalidArgument;
  if (pages.local_pages.size() != pages.remote_pages.size()) return Status::kMismatch;
  if (pages.local_stride == 0) pages.local_stride = pages.page_bytes;
  if (pages.remote_stride == 0) pages.remote_stride = pages.page_bytes;
  if (!pages_fit(pages.local_pages, pages.page_bytes, pages.local_stride, pages.local_offset,
                 pages.local->bytes) ||
      !pages_fit(pages.remote_pages, pages.page_bytes, pages.remote_stride, pages.remote_offset,
                 pages.remote->bytes) ||
      pages.page_bytes > UINT64_MAX / pages.local_pages.size())
    return Status::kOutOfRange;
  if (!permits(op, *pages.remote)) return Status::kPermissionDenied;
  const auto held = lock();
  Claim slot{*this};
  if (slot.status() != Status::kOk) return slot.status();
  slot->pages = pages;
  slot->local = pages.local;
  slot->remote = pages.remote;
  TransferRequest request;
  request.peer = peer;
  request.op = op;
  request.segments = {Slot::next_pages, &*slot};
  request.bytes = pages.page_bytes * pages.local_pages.size();
  return start(slot, request, options, number);
}

Status TransferEngine::single(TransferOp op, Handle peer, const LocalMemory& local, uint64_t local_offset,
                              const RemoteMemory& remote, uint64_t remote_offset, uint64_t bytes,
                              const TransferOptions& options, Handle* number) {
  if (op == TransferOp::kNone || bytes == 0) return Status::kInvalidArgument;
  if (!fits(local_offset, bytes, local.bytes) || !fits(remote_offset, bytes, remote.bytes))
    return Status::kOutOfRange;
  if (!permits(op, remote)) return Status::kPermissionDenied;
  const auto held = lock();
  Claim slot{*this};
  if (slot.status() != Status::kOk) return slot.status();
  slot->one = {local.address + local_offset, remote.address + remote_offset, bytes, 0, 0};
  slot->local = &local;
  slot->remote = &remote;
  TransferRequest request;
  request.peer = peer;
  request.op = op;
  request.segments = {Slot::next_one, &*slot};
  request.bytes = bytes;
  return start(slot, request, options, number);
}

Status TransferEngine::signal(Handle peer, const TransferOptions& options, Handle* number) {
  const auto held = lock();
  Claim slot{*this};
  if (slot.status() != Status::kOk) return slot.status();
  TransferRequest request;
  request.peer = peer;
  return start(slot, request, options, number);
}

// --- Outcomes ------------------------------------------------------------------------------------------

// The lists of slots have room for all of them, so that nothing that ends or waits needs memory.
void TransferEngine::add_slot() {
  const std::size_t count = slots_.size() + 1;
  make_room(free_slots_, count);
  make_room(stalled_, count);
  make_room(starting_, count);
  slots_.push_back(std::make_unique<Slot>());
  slots_.back()->index = static_cast<uint32_t>(count - 1);
  free_slots_.push_back(slots_.back()->index);
}

Status TransferEngine::take_slot(Slot** taken) noexcept {
  if (closing_.load(std::memory_order_relaxed)) return Status::kClosed;
  if (free_slots_.empty()) {
    // Those that are done and not released take slots too.
    if (slots_.size() >= std::size_t{4} * options_.engine.max_transfers) return Status::kAgain;
    try {
      add_slot();
    } catch (const std::bad_alloc&) {
      return Status::kOutOfMemory;
    }
  }
  Slot* slot = slots_[free_slots_.back()].get();
  free_slots_.pop_back();
  slot->kind = SlotKind::kTransfer;
  slot->used = true;
  slot->released = slot->fenced = slot->matched = slot->any = slot->has_message = slot->reply = false;
  slot->status = slot->first_failure = Status::kInProgress;
  slot->fences = slot->count = slot->immediate = slot->group = 0;
  slot->deadline_ns = kNoDeadline;
  slot->given = slot->next_destination = 0;
  slot->local = nullptr;
  slot->remote = nullptr;
  slot->parent = slot->child = nullptr;
  slot->children = slot->unfenced = slot->lost_fences = 0;
  slot->parts.clear();
  slot->order.clear();
  slot->locals.clear();
  slot->remotes.clear();
  slot->destinations.clear();
  slot->granted.clear();
  slot->message.clear();
  *taken = slot;
  return Status::kOk;
}

void TransferEngine::give_back(Slot& slot) noexcept {
  slot.done = nullptr;
  slot.received = nullptr;
  slot.released = slot.fenced = true;
  free_if_over(slot);
}

// Everything of a start that needs memory: copies the application's message and callback.
Status TransferEngine::prepare(Slot& slot, const TransferOptions& options) {
  if (options.message.size() + kMessageHeader > engine_->max_message()) return Status::kLimitExceeded;
  if (options.has_message) {
    slot.message.push_back(static_cast<uint8_t>(MessageKind::kUser));
    slot.message.insert(slot.message.end(), options.message.begin(), options.message.end());
  }
  slot.done = options.done;
  return Status::kOk;
}

Status TransferEngine::start(Claim& slot, TransferRequest& request, const TransferOptions& options,
                             Handle* number) {
  if (const Status status = prepare(*slot, options); status != Status::kOk) return status;
  request.local = &slot->local;
  request.remote = &slot->remote;
  request.immediate = options.immediate;
  request.count = options.count;
  request.message = slot->message;
  request.has_message = options.has_message;
  request.deadline_ns = Deadline::after(monotonic_now_ns(), options.timeout_ns).ns();
  request.cookie = slot->index;
  const Status status = engine_->submit(request, &slot->transfer);
  if (status == Status::kInProgress) hand_out(slot.keep(), options, number);
  return status;
}

// The values that the application needs for a slot that has begun.
void TransferEngine::hand_out(Slot& slot, const TransferOptions& options, Handle* number) noexcept {
  if (number != nullptr)
    *number = slot.number();
  else
    slot.released = true;
  if (slot.kind != SlotKind::kTransfer) {
    slot.deadline_ns = Deadline::after(monotonic_now_ns(), options.timeout_ns).ns();
    next_deadline_ns_ = std::min(next_deadline_ns_, slot.deadline_ns);
  }
  wake_if_asleep();
}

// Its outcome is known.
void TransferEngine::tell(Slot& slot, Status status) noexcept {
  slot.status = status;
  if (slot.done || slot.received) {
    slot.telling = true;
    slot.next_told = nullptr;
    (told_tail_ == nullptr ? told_head_ : told_tail_->next_told) = &slot;
    told_tail_ = &slot;
  }
  changed_.notify_all();
  if (slot.kind == SlotKind::kCounter || slot.kind == SlotKind::kBarrier)
    std::erase(counters_.at(slot.immediate).waiters, slot.index);
}

void TransferEngine::end(Slot& slot, Status status, uint32_t fences) noexcept {
  if (!slot.is_over()) tell(slot, status);
  fence(slot, fences);
}

// fences: all that will ever be known.
void TransferEngine::fence(Slot& slot, uint32_t fences) noexcept {
  if (slot.fenced) return;
  slot.fences = fences;
  slot.fenced = true;
  changed_.notify_all();
  if (Slot* parent = slot.parent; parent != nullptr) {
    --parent->unfenced;
    if (fences != kFencedBoth) parent->lost_fences = 1;
    if (parent->kind == SlotKind::kSend && is_error(slot.status) && slot.status != Status::kPeerLost)
      withdraw(*parent);
    child_done(*parent, Status::kInProgress);
  }
  free_if_over(slot);
}

// A part of `parent` has ended, or with kInProgress: is fenced.
void TransferEngine::child_done(Slot& parent, Status status) noexcept {
  if (status != Status::kInProgress) {
    --parent.children;
    if (is_error(status) && !is_error(parent.first_failure)) parent.first_failure = status;
    if (parent.kind == SlotKind::kSend && !parent.is_over()) tell(parent, status);
    if (parent.kind == SlotKind::kBarrier && is_error(status) && !parent.is_over()) stop(parent, status);
  }
  const bool all_begun = parent.next_destination >= parent.destinations.size();
  if (parent.children == 0 && all_begun && !parent.is_over()) {
    if (parent.kind == SlotKind::kBarrier)
      end_barrier_if_met(parent);
    else if (parent.kind == SlotKind::kMany)
      tell(parent, is_error(parent.first_failure) ? parent.first_failure : Status::kOk);
  }
  if (parent.is_over() && parent.unfenced == 0 && all_begun)
    fence(parent, parent.lost_fences != 0 ? kFencedLocal : kFencedBoth);
}

// Ends it early: by its deadline, a cancel, or the loss of a peer.
void TransferEngine::stop(Slot& slot, Status status) noexcept {
  switch (slot.kind) {
    case SlotKind::kTransfer:
      engine_->cancel(slot.transfer);
      return;
    case SlotKind::kCounter:
      end(slot, status, kFencedBoth);
      return;
    case SlotKind::kReceive:
      if (!slot.matched) std::erase(receives_, slot.index);
      tell(slot, status);
      if (!slot.matched) fence(slot, kFencedBoth);
      return;
    case SlotKind::kSend: {
      tell(slot, status);
      if (slot.child != nullptr) {
        engine_->cancel(slot.child->transfer);
        return;
      }
      withdraw(slot);
      if (slot.unfenced == 0) fence(slot, kFencedBoth);
      return;
    }
    case SlotKind::kMany:
    case SlotKind::kBarrier:
      if (Group* group = slot.kind == SlotKind::kBarrier ? find_group(slot.group) : nullptr; group != nullptr)
        group->broken = true;
      slot.next_destination = slot.destinations.size();
      tell(slot, status);
      for (const auto& other : slots_)
        if (other->used && other->parent == &slot && !other->is_over()) engine_->cancel(other->transfer);
      if (slot.unfenced == 0) fence(slot, kFencedBoth);
      return;
  }
}

void TransferEngine::free_if_over(Slot& slot) noexcept {
  if (!slot.used || !slot.released || !slot.fenced || slot.telling) return;
  slot.used = false;
  if (slot.reply) reply_is_over(slot);
  if (++slot.generation == 0) slot.generation = 1;
  std::erase(stalled_, slot.index);
  free_slots_.push_back(slot.index);
}

TransferEngine::Slot* TransferEngine::find(Handle number) const {
  if (number.index >= slots_.size()) return nullptr;
  Slot& slot = *slots_[number.index];
  return slot.used && !slot.released && slot.generation == number.generation ? &slot : nullptr;
}

Status TransferEngine::poll(Handle number) const {
  const auto held = lock();
  const Slot* slot = find(number);
  return slot == nullptr ? Status::kStale : slot->status;
}

namespace {

std::chrono::steady_clock::time_point until(uint64_t timeout_ns) {
  constexpr uint64_t kLongest = 365ull * 24 * 3600 * kSecondNs;
  return std::chrono::steady_clock::now() + std::chrono::nanoseconds{std::min(timeout_ns, kLongest)};
}

}  // namespace

Status TransferEngine::wait(Handle number, uint64_t timeout_ns) {
  auto held = lock();
  const auto over = [&] {
    const Slot* slot = find(number);
    return slot == nullptr || slot->status != Status::kInProgress;
  };
  if (!changed_.wait_until(held, until(timeout_ns), over)) return Status::kNotYet;
  const Slot* slot = find(number);
  return slot == nullptr ? Status::kStale : slot->status;
}

Status TransferEngine::wait_fenced(Handle number, uint64_t timeout_ns) {
  auto held = lock();
  const auto over = [&] {
    const Slot* slot = find(number);
    return slot == nullptr || slot->fenced;
  };
  if (!changed_.wait_until(held, until(timeout_ns), over)) return Status::kNotYet;
  const Slot* slot = find(number);
  if (slot == nullptr) return Status::kStale;
  return slot->fences == kFencedBoth ? Status::kOk : Status::kPeerLost;
}

void TransferEngine::cancel(Handle number) {
  const auto held = lock();
  if (Slot* slot = find(number); slot != nullptr && !slot->is_over()) {
    stop(*slot, Status::kCancelled);
    wake();
  }
}

void TransferEngine::release(Handle number) {
  const auto held = lock();
  if (Slot* slot = find(number)) {
    slot->released = true;
    free_if_over(*slot);
    if (!stalled_.empty()) wake_if_asleep();
  }
}

uint64_t TransferEngine::counter(uint32_t immediate) const {
  const auto held = lock();
  const auto found = counters_.find(immediate);
  return found == counters_.end() ? 0 : found->second.value;
}

Status TransferEngine::wait_counter(uint32_t immediate, uint64_t value, uint64_t timeout_ns) {
  auto held = lock();
  const auto reached = [&] {
    const auto found = counters_.find(immediate);
    return (found == counters_.end() ? 0 : found->second.value) >= value;
  };
  return changed_.wait_until(held, until(timeout_ns), reached) ? Status::kOk : Status::kNotYet;
}

}  // namespace towline::fabric
