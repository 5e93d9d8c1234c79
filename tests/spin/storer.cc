#include "spin/storer.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "spin/posts.h"

namespace towline::spin {
namespace {

bool below(Random& random, double probability) { return random.chance(probability); }

towline_blocks_t blocks_at(uint64_t address, uint64_t bytes, uint32_t count) {
  towline_blocks_t blocks{};
  blocks.address = address;
  blocks.length = blocks.stride[0] = bytes;
  blocks.dimensions = 1;
  blocks.count[0] = count;
  return blocks;
}

}  // namespace

void Storer::begin(Place& place, Place& memory, towline_peer_t* peer) {
  if (memory.memory->spoilt(area_)) return;
  memory_ = memory.memory;
  remote_ = peer != nullptr;
  over_ = false;
  path_ = world_.folder() + "/" + std::to_string(world_.number());
  towline_storage_options_t options{};
  options.struct_size = sizeof options;
  replace_ = below(random_, 0.3);
  options.flags = TOWLINE_STORAGE_CREATE | (replace_ ? uint32_t{TOWLINE_STORAGE_REPLACE} : 0);
  if (below(random_, 0.3)) options.flags |= TOWLINE_STORAGE_TRUNCATE;
  if (below(random_, 0.3)) options.flags |= TOWLINE_STORAGE_DIRECT;
  options.sync = below(random_, 0.1) ? static_cast<uint32_t>(random_.below(3)) : 0;
  options.access = TOWLINE_ACCESS_READ | TOWLINE_ACCESS_WRITE;
  options.bytes = kAreaBytes;
  towline_queue_options_t of_queue{};
  of_queue.struct_size = sizeof of_queue;
  for (Slot& slot : slots_) slot.in_file = 0;
  if (call(towline_storage_register(place.agent, ("file:" + path_).c_str(), &options, &region_)) !=
      TOWLINE_OK) {
    region_ = nullptr;  // the agent has no backend for files
    return;
  }
  if (!events_.open(place.agent, of_queue) || !make_plans(place.agent, peer)) end();
}

bool Storer::make_plans(towline_agent_t* agent, towline_peer_t* peer) {
  towline_block_list_t* memory = nullptr;
  towline_block_list_t* file = nullptr;
  towline_blocks_t blocks = blocks_at(reinterpret_cast<uint64_t>(memory_->area(area_)), kBlockBytes, kBlocks);
  call(towline_block_list_create(agent, peer, &blocks, sizeof blocks, 1, &memory));
  blocks = blocks_at(0, kBlockBytes, kBlocks);
  blocks.kind = TOWLINE_MEMORY_FILE;
  blocks.device = towline_region_device(region_);
  call(towline_block_list_create(agent, nullptr, &blocks, sizeof blocks, 1, &file));
  const bool made = memory != nullptr && file != nullptr &&
                    call(towline_plan_create(agent, memory, file, nullptr, &to_file_)) == TOWLINE_OK &&
                    call(towline_plan_create(agent, file, memory, nullptr, &from_file_)) == TOWLINE_OK;
  towline_block_list_destroy(memory);
  towline_block_list_destroy(file);
  return made;
}

void Storer::step() {
  Slot& slot = slots_[random_.below(kBlocks)];
  const uint64_t drawn = random_.below(100);
  look_at_commit();
  if (over_ || drawn < 1) return end();
  if (drawn < 4) return commit();
  if (drawn < 6) return ask();
  if (drawn < 10) return void(events_.take(8));
  if (slot.post == nullptr) return post(slot);
  if (drawn < 20) call(towline_post_cancel(slot.post));
  look(slot);
}

void Storer::post(Slot& slot) {
  slot.reads = slot.in_file != 0 && below(random_, 0.6);
  slot.stamp = slot.reads ? slot.in_file : world_.number();
  stamp(block(slot), kBlockBytes, slot.reads ? ~slot.stamp : slot.stamp, 0);
  const uint32_t picked = index(slot);
  towline_post_options_t options{};
  options.struct_size = sizeof options;
  options.from = {&picked, 4, 0, 0, 0, 1};
  options.to = options.from;
  options.priority = below(random_, 0.3) ? TOWLINE_PRIORITY_LATENCY : TOWLINE_PRIORITY_BULK;
  if (below(random_, 0.1)) options.deadline_ns = 1;
  const uint64_t known = slot.in_file;
  if (!slot.reads) slot.in_file = 0;
  const int32_t status = call(towline_plan_post(slot.reads ? from_file_ : to_file_, &options, &slot.post));
  if (status == TOWLINE_OK || status == TOWLINE_IN_PROGRESS) return;
  slot.post = nullptr;
  slot.in_file = known;  // it moves nothing
}

void Storer::look(Slot& slot) {
  const int32_t status = call(below(random_, 0.5) ? towline_post_poll(slot.post)
                                                  : towline_post_wait(slot.post, random_.below(kPauseNs)));
  if (status != TOWLINE_IN_PROGRESS && status != TOWLINE_NOT_YET) over(slot, status);
}

void Storer::over(Slot& slot, int32_t status) {
  if (status != TOWLINE_OK) {
    if (!fenced(world_, slot.post)) {
      if (remote_ && slot.reads) memory_->spoil(area_);
      over_ = true;
    }
  } else {
    if (!slot.reads) {
      slot.in_file = slot.stamp;
      if (below(random_, 0.2)) check_file(slot);
    } else if (!stamped(block(slot), kBlockBytes, slot.stamp, 0)) {
      give_up("a block that was read from a file is not there");
    }
    world_.stored += kBlockBytes;
  }
  towline_post_release(slot.post);
  slot.post = nullptr;
}

// What is known of the file, by the system's own calls.
void Storer::check_file(const Slot& slot) {
  if (slot.in_file == 0 || replace_) return;
  std::array<std::byte, kBlockBytes> there;
  const int file = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  const ssize_t bytes = file < 0 ? -1 : ::pread(file, there.data(), there.size(), index(slot) * kBlockBytes);
  if (file >= 0) ::close(file);
  if (bytes != ssize_t{kBlockBytes} || !stamped(there.data(), kBlockBytes, slot.in_file, 0))
    give_up("block " + std::to_string(index(slot)) + " is not in file " + path_);
}

void Storer::commit() {
  if (commit_asked_) return;
  if (below(random_, 0.5)) {
    const uint64_t timeout_ns = below(random_, 0.5) ? random_.below(2'000'000) : 2'000'000'000;
    return committed(call(towline_storage_commit(region_, timeout_ns)));
  }
  commit_asked_ = events_.ask(commit_, [&] {
    return towline_storage_commit_async(region_, 0, events_.queue(), &commit_);
  }) == TOWLINE_OK;
}

void Storer::look_at_commit() {
  if (!commit_asked_ || !commit_.told) return;
  commit_asked_ = false;
  committed(commit_.status);
}

// Posts that were under way have ended by now.
void Storer::committed(int32_t status) {
  if (status == TOWLINE_OK && replace_) {
    replace_ = false;  // all see it from here on
    over_ = true;      // and nothing more is written to it
  }
}

void Storer::ask() {
  std::array<char, 2000> text;
  std::size_t needed = 0;
  call(towline_plan_route(to_file_, text.data(), random_.below(text.size()), &needed));
  call(towline_plan_backend(from_file_, text.data(), random_.below(text.size()), &needed));
  (void)towline_plan_in_use(to_file_);
}

void Storer::end() {
  if (region_ == nullptr) return;
  for (Slot& slot : slots_)
    if (slot.post != nullptr) over(slot, cancelled(world_, slot.post));
  events_.wait_for(commit_);
  look_at_commit();
  for (const Slot& slot : slots_) check_file(slot);
  destroy(world_, to_file_);
  destroy(world_, from_file_);
  world_.deregister(region_);
  region_ = nullptr;
  events_.release();
  (void)::unlink(path_.c_str());
  memory_ = nullptr;
}

}  // namespace towline::spin
