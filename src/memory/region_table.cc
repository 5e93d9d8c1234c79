#include "memory/region_table.h"

#include <algorithm>
#include <mutex>

#include "base/check.h"
#include "base/error.h"
#include "base/id.h"
#include "memory/pin_access.h"

namespace towline {

namespace {

// A slot's state in one word, so that a pin counts itself only while the region whose key it compared lives
// there: generation (32 bits, odd while a region lives there) | published (1) | pins (31).
constexpr uint64_t kPublished = uint64_t{1} << 31;
constexpr uint64_t kPinMask = kPublished - 1;

constexpr uint32_t generation_of(uint64_t state) noexcept { return static_cast<uint32_t>(state >> 32); }

// Never `before`, the slot's last, nor kNotRegistered.
uint64_t make_key(uint32_t index, uint64_t before) {
  for (;;) {
    const uint64_t key = random_u64() >> RegionTable::kIndexBits << RegionTable::kIndexBits | index;
    if (key != before && key != kNotRegistered) return key;
  }
}

}  // namespace

// Type-stable: made once, reused, freed with the table. The members that a pin reads are written before
// publishing, and then not until the slot has no pins.
struct RegionTable::Slot {
  std::atomic<uint64_t> state{0};
  std::atomic<uint64_t> key{kNotRegistered};  // of the region, or of the last one
  uint64_t address = 0;
  uint64_t bytes = 0;
  uint32_t access = 0;
  bool vram = false;
  std::shared_ptr<Region> region;  // under the table's lock
};

RegionTable::RegionTable() : chunks_(std::make_unique<std::atomic<Slot*>[]>(kChunks)) {}

RegionTable::~RegionTable() {
  for (uint32_t i = 0; i < kChunks; ++i) delete[] chunks_[i].load(std::memory_order_relaxed);
}

RegionTable::Slot* RegionTable::slot_at(uint32_t index) const noexcept {
  if (index >= kMaxRegions) return nullptr;
  Slot* chunk = chunks_[index / kChunkSlots].load(std::memory_order_acquire);
  return chunk == nullptr ? nullptr : &chunk[index % kChunkSlots];
}

// The slot whose living region has this key; may be stale at once unless the table is locked.
RegionTable::Slot* RegionTable::find_slot(uint64_t key) const noexcept {
  Slot* slot = slot_at(index_of(key));
  if (slot == nullptr) return nullptr;
  const uint64_t state = slot->state.load(std::memory_order_acquire);
  const bool lives = (generation_of(state) & 1) != 0;
  return lives && slot->key.load(std::memory_order_relaxed) == key ? slot : nullptr;
}

uint32_t RegionTable::take_slot() {
  if (!free_.empty()) {
    const uint32_t index = free_.back();
    free_.pop_back();
    return index;
  }
  if (made_ == kMaxRegions)
    fail(Status::kLimitExceeded, "{} regions are registered, which is the most: register larger ones",
         kMaxRegions);
  if (made_ % kChunkSlots == 0) {
    free_.reserve(made_ + kChunkSlots);  // so that remove() never allocates
    chunks_[made_ / kChunkSlots].store(new Slot[kChunkSlots], std::memory_order_release);
  }
  return made_++;
}

std::shared_ptr<Region> RegionTable::add(Region region) {
  validate_region(region.ref, "region");
  auto added = std::make_shared<Region>(std::move(region));
  const std::lock_guard lock(lock_);
  const uint32_t index = take_slot();
  Slot& slot = *slot_at(index);
  const uint64_t key = make_key(index, slot.key.load(std::memory_order_relaxed));
  const uint32_t generation = generation_of(slot.state.load(std::memory_order_relaxed)) + 1;
  slot.key.store(added->ref.key = key, std::memory_order_relaxed);
  slot.address = added->ref.address;
  slot.bytes = added->ref.bytes;
  slot.vram = added->ref.kind == TOWLINE_MEMORY_VRAM;
  slot.access = is_storage(added->ref.kind) ? 0 : added->ref.access;
  slot.region = added;
  slot.state.store(uint64_t{generation} << 32, std::memory_order_release);
  return added;
}

void RegionTable::publish(uint64_t key) {
  const std::lock_guard lock(lock_);
  Slot* slot = find_slot(key);
  TOWLINE_CHECK(slot != nullptr, "no region has key {:#x}", key);
  const uint64_t state = slot->state.load(std::memory_order_relaxed);
  TOWLINE_CHECK((state & kPublished) == 0, "region {:#x} is published already", key);
  if (!slot->region->hidden) index_.insert(slot->region->ref);
  slot->state.store(state | kPublished, std::memory_order_release);
}

bool RegionTable::retire(uint64_t key) noexcept {
  const std::lock_guard lock(lock_);
  Slot* slot = find_slot(key);
  if (slot == nullptr) return false;
  const uint64_t before = slot->state.fetch_and(~kPublished, std::memory_order_acq_rel);
  if ((before & kPublished) == 0) return false;
  TOWLINE_CHECK(slot->region->hidden || index_.erase(key), "region {:#x} is published but not in the index",
                key);
  slot->region->retired = true;
  return true;
}

bool RegionTable::remove(uint64_t key) noexcept {
  std::shared_ptr<Region> last;  // freed without the lock
  const std::lock_guard lock(lock_);
  Slot* slot = find_slot(key);
  if (slot == nullptr) return false;
  // Not published and not pinned: no other thread changes the state now.
  const uint64_t state = slot->state.load(std::memory_order_acquire);
  if ((state & (kPublished | kPinMask)) != 0) return false;
  last = std::move(slot->region);
  const uint32_t generation = generation_of(state);
  slot->state.store(uint64_t{generation + 1} << 32, std::memory_order_release);
  // A slot that has used up its 2^31 generations is not used again.
  if (generation != UINT32_MAX) free_.push_back(index_of(key));
  return true;
}

uint64_t RegionTable::pinned(uint64_t key) const noexcept {
  const ReadMostlyLock::Reader lock(lock_);
  const Slot* slot = find_slot(key);
  return slot == nullptr ? 0 : slot->state.load(std::memory_order_acquire) & kPinMask;
}

bool RegionTable::is_published(uint64_t key) const noexcept {
  const ReadMostlyLock::Reader lock(lock_);
  const Slot* const slot = find_slot(key);
  return slot != nullptr && (slot->state.load(std::memory_order_relaxed) & kPublished) != 0;
}

std::shared_ptr<Region> RegionTable::find(uint64_t key) const {
  const ReadMostlyLock::Reader lock(lock_);
  const Slot* slot = find_slot(key);
  return slot == nullptr ? nullptr : slot->region;
}

const Region* RegionTable::region_of(uint64_t key) const noexcept {
  const Slot* slot = find_slot(key);
  return slot == nullptr ? nullptr : slot->region.get();
}

std::vector<std::shared_ptr<Region>> RegionTable::all() const {
  const ReadMostlyLock::Reader lock(lock_);
  std::vector<std::shared_ptr<Region>> result;
  for (uint32_t index = 0; index < made_; ++index)
    if (const Slot& slot = *slot_at(index); slot.region != nullptr) result.push_back(slot.region);
  return result;
}

std::shared_ptr<Region> RegionTable::last_below(uint32_t& slot) const noexcept {
  const ReadMostlyLock::Reader lock(lock_);
  for (slot = std::min(slot, made_); slot > 0;)
    if (const Slot& found = *slot_at(--slot); found.region != nullptr) return found.region;
  return nullptr;
}

std::vector<std::shared_ptr<Region>> RegionTable::published() const {
  const ReadMostlyLock::Reader lock(lock_);
  std::vector<std::shared_ptr<Region>> result;
  result.reserve(index_.size());
  for (uint32_t index = 0; index < made_; ++index) {
    const Slot& slot = *slot_at(index);
    const bool published = (slot.state.load(std::memory_order_relaxed) & kPublished) != 0;
    if (published && !slot.region->hidden) result.push_back(slot.region);
  }
  return result;
}

uint64_t RegionTable::size() const noexcept {
  const ReadMostlyLock::Reader lock(lock_);
  return index_.size();
}

Status RegionTable::hold(uint64_t key, void** pin) noexcept {
  Slot* slot = slot_at(index_of(key));
  if (slot == nullptr) return Status::kStale;
  // The key that is compared is that of the generation in `state`: a pin of another one fails to count.
  uint64_t state = slot->state.load(std::memory_order_acquire);
  do {
    if ((state & kPublished) == 0 || slot->key.load(std::memory_order_relaxed) != key) return Status::kStale;
    if ((state & kPinMask) == kPinMask) return Status::kAgain;
  } while (!slot->state.compare_exchange_weak(state, state + 1, std::memory_order_acquire));
  *pin = slot;
  return Status::kOk;
}

Status RegionTable::pin(uint64_t key, uint64_t address, uint64_t bytes, uint32_t access, void** pointer,
                        void** pin) noexcept {
  const bool may_be_vram = (access & kPinVram) != 0;
  access &= ~kPinVram;
  if (bytes == 0 || access == 0 || (access & ~uint32_t{TOWLINE_ACCESS_ALL}) != 0)
    return Status::kInvalidArgument;
  void* held = nullptr;
  if (const Status status = hold(key, &held); status != Status::kOk) return status;
  const Slot& slot = *static_cast<Slot*>(held);
  const uint64_t before = address - slot.address;
  Status status = Status::kOk;
  if (address < slot.address || before > slot.bytes || bytes > slot.bytes - before)
    status = Status::kOutOfRange;
  else if ((access & ~slot.access) != 0 || (slot.vram && !may_be_vram))
    status = Status::kPermissionDenied;
  if (status != Status::kOk) {
    unpin(held);
    return status;
  }
  *pointer = reinterpret_cast<void*>(address);
  *pin = held;
  return Status::kOk;
}

void RegionTable::unpin(void* pin) noexcept {
  static_cast<Slot*>(pin)->state.fetch_sub(1, std::memory_order_release);
}

}  // namespace towline
