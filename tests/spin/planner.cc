#include "spin/planner.h"

#include <string>

#include "base/clock.h"

namespace towline::spin {
namespace {

constexpr uint64_t kPauseNs = 2'000'000;

}  // namespace

int32_t Planner::call(int32_t status) {
  ++world_.calls;
  if (status == TOWLINE_INTERNAL) give_up(std::string("an internal error: ") + towline_last_error());
  return status;
}

std::byte* Planner::block(const Slot& slot, bool target) const {
  const Memory& memory = target == reads_ ? *local_ : *remote_;
  return memory.area(area_) + static_cast<uint64_t>(&slot - slots_.data()) * kBlockBytes;
}

void Planner::begin(Place& from, Place& to, towline_peer_t* peer) {
  if (from.memory->spoilt(area_) || to.memory->spoilt(area_)) return;
  local_ = from.memory;
  remote_ = to.memory;
  reads_ = random_.chance(0.5);
  spoilt_ = false;
  towline_blocks_t blocks{};
  blocks.length = blocks.stride[0] = kBlockBytes;
  blocks.dimensions = 1;
  blocks.count[0] = kBlocks;
  towline_block_list_t* mine = nullptr;
  towline_block_list_t* theirs = nullptr;
  blocks.address = reinterpret_cast<uint64_t>(local_->area(area_));
  call(towline_block_list_create(from.agent, nullptr, &blocks, sizeof blocks, 1, &mine));
  blocks.address = reinterpret_cast<uint64_t>(remote_->area(area_));
  call(towline_block_list_create(from.agent, peer, &blocks, sizeof blocks, 1, &theirs));
  towline_queue_options_t options{};
  options.struct_size = sizeof options;
  options.capacity = static_cast<uint32_t>(random_.chance(0.5) ? 1 + random_.below(8) : 0);
  if (mine != nullptr && theirs != nullptr &&
      call(towline_queue_create(from.agent, &options, &queue_)) == TOWLINE_OK &&
      call(towline_plan_create(from.agent, reads_ ? theirs : mine, reads_ ? mine : theirs, nullptr,
                               &plan_)) != TOWLINE_OK) {
    towline_queue_release(queue_);
    queue_ = nullptr;
    plan_ = nullptr;
  }
  if (plan_ != nullptr && random_.chance(0.7)) {
    towline_group_options_t of_group{};
    of_group.struct_size = sizeof of_group;
    const uint64_t number = world_.number();
    of_group.notice = &number;
    of_group.notice_bytes = sizeof number;
    of_group.queue = queue_;
    of_group.user_data = &group_done_;
    if (call(towline_group_create(from.agent, &of_group, &group_)) == TOWLINE_OK)
      group_done_.told = false;
    else
      group_ = nullptr;
  }
  if (plan_ != nullptr && random_.chance(0.3)) {
    connected_.told = false;
    if (call(towline_peer_connect_async(from.agent, to.address.c_str(), 0, queue_, &connected_)) !=
        TOWLINE_OK)
      connected_.told = true;
  }
  if (plan_ != nullptr && call(towline_counter_create(from.agent, 0, &counter_)) != TOWLINE_OK)
    counter_ = nullptr;
  towline_block_list_destroy(mine);
  towline_block_list_destroy(theirs);
}

void Planner::step() {
  Slot& slot = slots_[random_.below(kBlocks)];
  const uint64_t drawn = random_.below(100);
  if (spoilt_ || drawn < 2) return end();
  if (drawn < 5) return end_group();
  if (drawn < 7) return await_counter();
  if (drawn < 25) return take_events();
  if (slot.post == nullptr) return post(slot);
  if (drawn < 35) return fence(slot);
  if (drawn < 45) call(towline_post_cancel(slot.post));
  look(slot);
}

void Planner::post(Slot& slot) {
  slot.stamp = world_.number();
  stamp(block(slot, false), kBlockBytes, slot.stamp, 0);
  stamp(block(slot, true), kBlockBytes, ~slot.stamp, 0);
  const auto index = static_cast<uint32_t>(&slot - slots_.data());
  const bool queued = random_.chance(0.6);
  towline_post_options_t options{};
  options.struct_size = sizeof options;
  options.from = {&index, 4, 0, 0, 0, 1};
  options.to = options.from;
  options.queue = queued ? queue_ : nullptr;
  options.user_data = queued ? &slot.done : nullptr;
  options.priority = random_.chance(0.3) ? TOWLINE_PRIORITY_LATENCY : TOWLINE_PRIORITY_BULK;
  options.group = random_.chance(0.4) ? group_ : nullptr;
  if (random_.chance(0.4)) {
    options.notice = &slot.stamp;
    options.notice_bytes = sizeof slot.stamp;
  }
  slot.done.told = !queued;
  const int32_t status = call(towline_plan_post(plan_, &options, &slot.post));
  if (status == TOWLINE_OK || status == TOWLINE_IN_PROGRESS) return;
  slot.post = nullptr;
  slot.done.told = true;
}

void Planner::look(Slot& slot) {
  const int32_t status = call(random_.chance(0.5) ? towline_post_poll(slot.post)
                                                  : towline_post_wait(slot.post, random_.below(kPauseNs)));
  if (status != TOWLINE_IN_PROGRESS && status != TOWLINE_NOT_YET) over(slot, status);
}

// It has its outcome.
void Planner::over(Slot& slot, int32_t status) {
  wait_for(slot.done);
  wait_for(slot.fenced);
  if (status == TOWLINE_OK) {
    if (!stamped(block(slot, true), kBlockBytes, slot.stamp, 0))
      give_up("the block of a post that was ok is not there");
    world_.moved += kBlockBytes;
  } else {
    int32_t fence = TOWLINE_NOT_YET;
    for (uint64_t waited = 0; fence == TOWLINE_NOT_YET && waited < kPatienceNs; waited += kPauseNs) {
      fence = call(towline_post_wait_fenced(slot.post, TOWLINE_FENCE_LOCAL, kPauseNs));
      world_.drive();
    }
    if (fence == TOWLINE_NOT_YET) give_up("a post's local fence does not come");
    fence = call(towline_post_wait_fenced(slot.post, TOWLINE_FENCE_REMOTE, kPauseNs));
    if (fence != TOWLINE_OK) {
      if (!reads_) remote_->spoil(area_);
      spoilt_ = true;
    }
  }
  towline_post_release(slot.post);
  slot.post = nullptr;
}

void Planner::fence(Slot& slot) {
  if (!slot.fenced.told) return;
  slot.fenced.told = false;
  if (call(towline_post_fence_async(slot.post, TOWLINE_FENCE_LOCAL, queue_, &slot.fenced)) != TOWLINE_OK)
    slot.fenced.told = true;
}

void Planner::take_events() {
  std::array<towline_event_t, 8> events;
  const int32_t count = call(
      towline_queue_next(queue_, events.data(), 1 + random_.below(events.size()), sizeof events.front()));
  for (int32_t i = 0; i < count; ++i) {
    towline_event_t& event = events[static_cast<std::size_t>(i)];
    auto* const asked = static_cast<Asked*>(event.user_data);
    if (asked == nullptr || asked->kind != event.kind) give_up("an event came that nobody asked for");
    if (asked->told) give_up("an event of kind " + std::to_string(event.kind) + " came twice");
    asked->told = true;
    ++world_.events;
    towline_event_release(&event);
  }
}

// By the clock: the queue of a caller-driven agent answers at once, again and again, while the agent closes.
void Planner::wait_for(const Asked& asked) {
  const uint64_t until_ns = monotonic_now_ns() + kPatienceNs;
  while (!asked.told) {
    take_events();
    if (asked.told) return;
    if (monotonic_now_ns() > until_ns)
      give_up("an event of kind " + std::to_string(asked.kind) + " does not come");
    call(towline_queue_wait(queue_, monotonic_now_ns() + kPauseNs));
    world_.drive();
  }
}

void Planner::end_group() {
  if (group_ == nullptr) return;
  if (random_.chance(0.3)) call(towline_group_cancel(group_));
  group_fenced_.told = false;
  if (call(towline_group_fence_async(group_, TOWLINE_FENCE_LOCAL, queue_, &group_fenced_)) != TOWLINE_OK)
    group_fenced_.told = true;
  if (random_.chance(0.7)) call(towline_group_close(group_));
  towline_group_release(group_);  // cancels it if it is open
  group_ = nullptr;
}

// Reached at once, or told when the counter goes.
void Planner::await_counter() {
  if (counter_ == nullptr || !reached_.told) return;
  reached_.told = false;
  if (call(towline_counter_wait_async(counter_, random_.below(2), queue_, &reached_)) != TOWLINE_OK)
    reached_.told = true;
}

void Planner::end(Slot& slot) {
  if (slot.post == nullptr) return;
  call(towline_post_cancel(slot.post));
  int32_t status = TOWLINE_NOT_YET;
  for (uint64_t waited = 0; status == TOWLINE_NOT_YET && waited < kPatienceNs; waited += kPauseNs) {
    status = call(towline_post_wait(slot.post, kPauseNs));
    world_.drive();
  }
  if (status == TOWLINE_NOT_YET) give_up("a cancelled post does not end");
  over(slot, status);
}

void Planner::end() {
  if (plan_ == nullptr) return;
  end_group();
  for (Slot& slot : slots_) end(slot);
  towline_counter_destroy(counter_);
  counter_ = nullptr;
  wait_for(reached_);
  wait_for(connected_);
  wait_for(group_done_);
  wait_for(group_fenced_);
  int32_t status = TOWLINE_NOT_YET;
  for (uint64_t waited = 0; status == TOWLINE_NOT_YET && waited < kPatienceNs; waited += kPauseNs) {
    status = call(towline_plan_destroy(plan_, kPauseNs));
    world_.drive();
  }
  if (status != TOWLINE_OK) give_up(std::string("a plan stays: ") + towline_last_error());
  plan_ = nullptr;
  towline_queue_release(queue_);
  queue_ = nullptr;
  local_ = remote_ = nullptr;
}

}  // namespace towline::spin
