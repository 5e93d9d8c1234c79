// Calls that concern many peers: scatter, signals to groups, barriers. And waits for counters.
#include <numeric>

#include "fabric/transfer_engine_state.h"

namespace towline::fabric {

std::size_t TransferEngine::Slot::next_parts(void* context, towline_segment* out, std::size_t capacity) {
  Slot& slot = *static_cast<Slot*>(context);
  const Slot& many = *slot.parent;
  std::size_t count = 0;
  for (; count < capacity && slot.part < slot.parts_end; ++slot.part) {
    const uint32_t index = many.order[slot.part];
    const ScatterPart& part = many.parts[index];
    if (part.bytes == 0) continue;
    out[count++] = {part.local->address + part.local_offset, part.remote->address + part.remote_offset,
                    part.bytes, index, index};
  }
  return count;
}

Status TransferEngine::check_parts(std::span<const ScatterPart> parts) const noexcept {
  if (parts.empty() || parts.size() >= kNoSlot) return Status::kInvalidArgument;
  uint64_t bytes = 0;
  for (const ScatterPart& part : parts) {
    if (part.bytes == 0) continue;
    if (part.local == nullptr || part.remote == nullptr) return Status::kInvalidArgument;
    if (!fits(part.local_offset, part.bytes, part.local->bytes) ||
        !fits(part.remote_offset, part.bytes, part.remote->bytes) || part.bytes > UINT64_MAX - bytes)
      return Status::kOutOfRange;
    if (!part.remote->writable) return Status::kPermissionDenied;
    bytes += part.bytes;
  }
  return Status::kOk;
}

Status TransferEngine::scatter(std::span<const ScatterPart> parts, const TransferOptions& options,
                               Handle* number) {
  if (const Status wrong = check_parts(parts); wrong != Status::kOk) return wrong;
  const auto held = lock();
  Claim slot{*this};
  if (slot.status() != Status::kOk) return slot.status();
  slot->kind = SlotKind::kMany;
  slot->parts.assign(parts.begin(), parts.end());
  slot->order.resize(parts.size());
  std::iota(slot->order.begin(), slot->order.end(), 0u);
  std::stable_sort(slot->order.begin(), slot->order.end(), [&](uint32_t left, uint32_t right) {
    return parts[left].peer.to_u64() < parts[right].peer.to_u64();
  });
  for (const ScatterPart& part : parts) {
    slot->locals.push_back(part.local);
    slot->remotes.push_back(part.remote);
  }
  for (uint32_t begin = 0; begin < slot->order.size();) {
    const Handle peer = parts[slot->order[begin]].peer;
    uint32_t end = begin;
    bool moves = false;
    for (; end < slot->order.size() && parts[slot->order[end]].peer == peer; ++end)
      moves = moves || parts[slot->order[end]].bytes != 0;
    slot->destinations.push_back({peer, begin, end});
    if (options.count > UINT32_MAX / (end - begin)) return Status::kLimitExceeded;
    begin = end;
    if (!moves && options.count == 0 && !options.has_message) return Status::kInvalidArgument;
  }
  if (const Status status = prepare_many(*slot, options); status != Status::kOk) return status;
  start_many(slot.keep(), options, number);
  return Status::kInProgress;
}

Status TransferEngine::prepare_many(Slot& slot, const TransferOptions& options) {
  slot.immediate = options.immediate;
  slot.count = options.count;
  slot.has_message = options.has_message;
  return prepare(slot, options);
}

void TransferEngine::start_many(Slot& slot, const TransferOptions& options, Handle* number) noexcept {
  hand_out(slot, options, number);
  if (!start_children(slot)) stalled_.push_back(slot.index);
}

// Starts what has not begun of a transfer with several parts. False: the engine is full; call again.
bool TransferEngine::start_children(Slot& parent) noexcept {
  if (!parent.used || parent.is_over()) return true;
  if (parent.kind == SlotKind::kSend) return start_granted(parent);
  for (; parent.next_destination < parent.destinations.size(); ++parent.next_destination) {
    Slot* child = nullptr;
    if (take_slot(&child) != Status::kOk) return false;
    const Slot::Destination& destination = parent.destinations[parent.next_destination];
    child->released = true;
    child->parent = &parent;
    child->part = destination.begin;
    child->parts_end = destination.end;
    TransferRequest request;
    request.peer = destination.peer;
    request.segments = {Slot::next_parts, child};
    for (uint32_t i = destination.begin; i < destination.end; ++i)
      request.bytes += parent.parts[parent.order[i]].bytes;
    request.op = request.bytes != 0 ? TransferOp::kWrite : TransferOp::kNone;
    request.local = parent.locals.data();
    request.remote = parent.remotes.data();
    request.immediate = parent.immediate;
    request.count = parent.count * std::max(1u, destination.end - destination.begin);
    request.message = parent.message;
    request.has_message = parent.has_message;
    request.deadline_ns = parent.deadline_ns;
    request.cookie = child->index;
    ++parent.children;
    ++parent.unfenced;
    const Status status = engine_->submit(request, &child->transfer);
    if (status == Status::kInProgress) continue;
    --parent.children;
    --parent.unfenced;
    child->parent = nullptr;
    give_back(*child);
    if (status == Status::kAgain) return false;
    if (!is_error(parent.first_failure)) parent.first_failure = status;
    if (parent.kind != SlotKind::kBarrier) continue;
    stop(parent, status);
    return true;
  }
  child_done(parent, Status::kInProgress);
  return true;
}

// --- Groups --------------------------------------------------------------------------------------------

uint32_t TransferEngine::add_group(std::span<const Handle> peers) {
  constexpr std::size_t kMost = 65'536;
  if (peers.empty() || peers.size() > kMost)
    fail(Status::kInvalidArgument, "a group has 1 to {} peers, not {}", kMost, peers.size());
  std::vector<Handle> sorted{peers.begin(), peers.end()};
  std::sort(sorted.begin(), sorted.end(),
            [](Handle left, Handle right) { return left.to_u64() < right.to_u64(); });
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end())
    fail(Status::kInvalidArgument, "a group names a peer twice");
  auto group = std::make_unique<Group>();
  group->peers.assign(peers.begin(), peers.end());
  const auto held = lock();
  groups_.push_back(std::move(group));
  groups_.back()->id = ++last_group_;
  return last_group_;
}

void TransferEngine::remove_group(uint32_t group) noexcept {
  const auto held = lock();
  std::erase_if(groups_, [&](const auto& known) { return known->id == group; });
}

TransferEngine::Group* TransferEngine::find_group(uint32_t group) noexcept {
  for (const auto& known : groups_)
    if (known->id == group) return known.get();
  return nullptr;
}

Status TransferEngine::signal_group(uint32_t number_of_group, const TransferOptions& options,
                                    Handle* number) {
  if (options.count == 0 && !options.has_message) return Status::kInvalidArgument;
  const auto held = lock();
  const Group* group = find_group(number_of_group);
  if (group == nullptr) return Status::kStale;
  Claim slot{*this};
  if (slot.status() != Status::kOk) return slot.status();
  slot->kind = SlotKind::kMany;
  for (const Handle peer : group->peers) slot->destinations.push_back({peer, 0, 0});
  if (const Status status = prepare_many(*slot, options); status != Status::kOk) return status;
  start_many(slot.keep(), options, number);
  return Status::kInProgress;
}

// Every member adds one to the counter of every other. A member whose counter shows n signals from each peer
// knows that all have entered their n-th barrier: if one is ahead of that, it has seen all enter.
Status TransferEngine::barrier(uint32_t number_of_group, uint32_t immediate, const TransferOptions& given,
                               Handle* number) {
  if (given.count != 0 || given.has_message) return Status::kInvalidArgument;
  const auto held = lock();
  Group* group = find_group(number_of_group);
  if (group == nullptr || group->broken) return Status::kStale;
  if (group->rounds != 0 && group->immediate != immediate) return Status::kInvalidArgument;
  Claim slot{*this};
  if (slot.status() != Status::kOk) return slot.status();
  slot->kind = SlotKind::kBarrier;
  slot->group = group->id;
  for (const Handle peer : group->peers) slot->destinations.push_back({peer, 0, 0});
  TransferOptions options = given;
  options.immediate = immediate;
  options.count = 1;
  Counter& counter = counter_with_room(immediate);
  if (const Status status = prepare_many(*slot, options); status != Status::kOk) return status;
  // Nothing fails from here on: a round that is counted has begun.
  group->immediate = immediate;
  slot->target = ++group->rounds * group->peers.size();
  counter.waiters.push_back(slot->index);
  start_many(slot.keep(), options, number);
  return Status::kInProgress;
}

// Its signals have arrived, and so have those of all others.
void TransferEngine::end_barrier_if_met(Slot& slot) noexcept {
  const bool sent = slot.children == 0 && slot.next_destination >= slot.destinations.size();
  if (slot.is_over() || !sent || counters_.at(slot.immediate).value < slot.target) return;
  tell(slot, Status::kOk);
  if (slot.unfenced == 0) fence(slot, kFencedBoth);
}

// --- Counters ------------------------------------------------------------------------------------------

// With room for one more that waits.
TransferEngine::Counter& TransferEngine::counter_with_room(uint32_t immediate) {
  Counter& counter = counters_[immediate];
  make_room(counter.waiters, counter.waiters.size() + 1);
  return counter;
}

Status TransferEngine::when_counted(uint32_t immediate, uint64_t value, const TransferOptions& options,
                                    Handle* number) {
  if (options.count != 0 || options.has_message) return Status::kInvalidArgument;
  const auto held = lock();
  if (counters_.size() >= options_.max_counters && !counters_.contains(immediate))
    return Status::kLimitExceeded;
  Claim slot{*this};
  if (slot.status() != Status::kOk) return slot.status();
  slot->kind = SlotKind::kCounter;
  slot->immediate = immediate;
  slot->target = value;
  Counter& counter = counter_with_room(immediate);
  if (const Status status = prepare(*slot, options); status != Status::kOk) return status;
  Slot& waiting = slot.keep();
  counter.waiters.push_back(waiting.index);
  hand_out(waiting, options, number);
  if (counter.value >= value) {
    end(waiting, Status::kOk, kFencedBoth);
    wake();  // its callback is called by the thread
  }
  return Status::kInProgress;
}

void TransferEngine::mirror_counter(uint32_t immediate, uint64_t* word) {
  const auto held = lock();
  if (counters_.size() >= options_.max_counters && !counters_.contains(immediate))
    fail(Status::kLimitExceeded, "there are {} counters already", options_.max_counters);
  Counter& counter = counters_[immediate];
  counter.mirror = word;
  if (word != nullptr) std::atomic_ref<uint64_t>{*word}.store(counter.value, std::memory_order_release);
}

}  // namespace towline::fabric
