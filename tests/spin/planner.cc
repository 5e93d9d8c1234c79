#include "spin/planner.h"

#include "spin/posts.h"

namespace towline::spin {
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
  if (mine != nullptr && theirs != nullptr && events_.open(from.agent, options) &&
      call(towline_plan_create(from.agent, reads_ ? theirs : mine, reads_ ? mine : theirs, nullptr,
                               &plan_)) != TOWLINE_OK) {
    events_.release();
    plan_ = nullptr;
  }
  if (plan_ != nullptr && random_.chance(0.7)) {
    towline_group_options_t of_group{};
    of_group.struct_size = sizeof of_group;
    const uint64_t number = world_.number();
    of_group.notice = &number;
    of_group.notice_bytes = sizeof number;
    of_group.queue = events_.queue();
    of_group.user_data = &group_done_;
    if (call(towline_group_create(from.agent, &of_group, &group_)) == TOWLINE_OK)
      group_done_.told = false;
    else
      group_ = nullptr;
  }
  if (plan_ != nullptr && random_.chance(0.3)) {
    events_.ask(connected_, [&] {
      return towline_peer_connect_async(from.agent, to.address.c_str(), 0, events_.queue(), &connected_);
    });
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
  if (drawn < 25) return void(events_.take(1 + random_.below(8)));
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
  options.queue = queued ? events_.queue() : nullptr;
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
  events_.wait_for(slot.done);
  events_.wait_for(slot.fenced);
  if (status == TOWLINE_OK) {
    if (!stamped(block(slot, true), kBlockBytes, slot.stamp, 0))
      give_up("the block of a post that was ok is not there");
    world_.moved += kBlockBytes;
  } else if (!fenced(world_, slot.post)) {
    if (!reads_) remote_->spoil(area_);
    spoilt_ = true;
  }
  towline_post_release(slot.post);
  slot.post = nullptr;
}

void Planner::fence(Slot& slot) {
  if (!slot.fenced.told) return;
  events_.ask(slot.fenced, [&] {
    return towline_post_fence_async(slot.post, TOWLINE_FENCE_LOCAL, events_.queue(), &slot.fenced);
  });
}

void Planner::end_group() {
  if (group_ == nullptr) return;
  if (random_.chance(0.3)) call(towline_group_cancel(group_));
  events_.ask(group_fenced_, [&] {
    return towline_group_fence_async(group_, TOWLINE_FENCE_LOCAL, events_.queue(), &group_fenced_);
  });
  if (random_.chance(0.7)) call(towline_group_close(group_));
  towline_group_release(group_);  // cancels it if it is open
  group_ = nullptr;
}

// Reached at once, or told when the counter goes.
void Planner::await_counter() {
  if (counter_ == nullptr || !reached_.told) return;
  events_.ask(reached_, [&] {
    return towline_counter_wait_async(counter_, random_.below(2), events_.queue(), &reached_);
  });
}

void Planner::end(Slot& slot) {
  if (slot.post == nullptr) return;
  over(slot, cancelled(world_, slot.post));
}

void Planner::end() {
  if (plan_ == nullptr) return;
  end_group();
  for (Slot& slot : slots_) end(slot);
  towline_counter_destroy(counter_);
  counter_ = nullptr;
  events_.wait_for(reached_);
  events_.wait_for(connected_);
  events_.wait_for(group_done_);
  events_.wait_for(group_fenced_);
  destroy(world_, plan_);
  events_.release();
  local_ = remote_ = nullptr;
}

}  // namespace towline::spin
