// Bounded storage of objects behind {index, generation} handles: applications and wires hold handles, never
// pointers, and a handle whose object is gone is detected.
//
// Objects are type-stable. A T is default-constructed when its chunk is first needed and destroyed with the
// slab; freeing only changes the generation and puts the slot on the free list. So a look-up that races with
// a free yields an old but living object, never freed memory; T defines what such a reader may do with it (a
// reference count, an epoch checked again after reading). The allocating caller sets T's fields; the freeing
// caller releases the resources of T.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/check.h"

namespace towline {

// A value; {0, 0} names nothing, ever.
struct Handle {
  uint32_t index = 0;
  uint32_t generation = 0;

  constexpr bool is_none() const noexcept { return generation == 0; }
  constexpr uint64_t to_u64() const noexcept { return (uint64_t{generation} << 32) | index; }
  static constexpr Handle from_u64(uint64_t value) noexcept {
    return {static_cast<uint32_t>(value), static_cast<uint32_t>(value >> 32)};
  }
  friend constexpr bool operator==(Handle, Handle) noexcept = default;
};

template <class T>
class Slab {
 public:
  struct Allocated {
    Handle handle;  // is_none() when the slab is full
    T* object = nullptr;
  };

  // chunk_objects: how many are made at a time, a power of two.
  explicit Slab(uint32_t capacity, uint32_t chunk_objects = 64)
      : capacity_(capacity),
        chunk_shift_(static_cast<uint32_t>(std::countr_zero(chunk_objects))),
        chunk_count_((uint64_t{capacity} + chunk_objects - 1) >> chunk_shift_),
        chunks_(std::make_unique<std::atomic<Slot*>[]>(chunk_count_)) {
    TOWLINE_CHECK(std::has_single_bit(chunk_objects), "chunks of {} objects", chunk_objects);
  }

  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;
  ~Slab() {
    for (std::size_t i = 0; i < chunk_count_; ++i) delete[] chunks_[i].load(std::memory_order_relaxed);
  }

  // Any thread; takes the mutex and may allocate memory. A slot that has used up its 2^31 generations is
  // retired.
  Allocated allocate() {
    std::lock_guard lock(mutex_);
    if (free_.empty() && !grow()) return {};
    const uint32_t index = free_.back();
    free_.pop_back();
    Slot& slot = *slot_at(index);
    const uint32_t generation = slot.generation.load(std::memory_order_relaxed) + 1;
    slot.generation.store(generation, std::memory_order_release);  // odd: alive
    ++live_;
    return {{index, generation}, &slot.object};
  }

  // Any thread; takes the mutex. False when the handle names nothing (any more): freeing twice is harmless.
  bool free(Handle handle) noexcept {
    std::lock_guard lock(mutex_);
    Slot* slot = find_slot(handle);
    if (slot == nullptr) return false;
    slot->generation.store(handle.generation + 1, std::memory_order_release);
    --live_;
    // Capacity was reserved in grow(): push_back does not allocate.
    if (handle.generation != UINT32_MAX) free_.push_back(handle.index);
    return true;
  }

  // Any thread; lock-free. Null when the handle names nothing (any more). See above on racing with free().
  T* find(Handle handle) const noexcept {
    Slot* slot = find_slot(handle);
    return slot == nullptr ? nullptr : &slot->object;
  }

  // True if it is still the same object. Check it after reading fields that a racing free could have changed.
  bool alive(Handle handle) const noexcept { return find_slot(handle) != nullptr; }

  // Calls visit(Handle, T&) for each live object, holding the mutex: visit must not allocate from or free
  // into this slab.
  template <class Visit>
  void for_each(Visit&& visit) {
    std::lock_guard lock(mutex_);
    for (uint32_t index = 0; index < made_; ++index) {
      Slot& slot = *slot_at(index);
      const uint32_t generation = slot.generation.load(std::memory_order_relaxed);
      if (generation & 1) visit(Handle{index, generation}, slot.object);
    }
  }

  uint32_t capacity() const noexcept { return capacity_; }
  uint32_t live() const {
    std::lock_guard lock(mutex_);
    return live_;
  }

 private:
  struct Slot {
    std::atomic<uint32_t> generation{0};  // odd: alive
    T object{};
  };

  Slot* slot_at(uint32_t index) const noexcept {
    Slot* chunk = chunks_[index >> chunk_shift_].load(std::memory_order_acquire);
    return chunk == nullptr ? nullptr : &chunk[index & ((1u << chunk_shift_) - 1)];
  }

  Slot* find_slot(Handle handle) const noexcept {
    if (handle.index >= capacity_ || (handle.generation & 1) == 0) return nullptr;
    Slot* slot = slot_at(handle.index);
    if (slot == nullptr || slot->generation.load(std::memory_order_acquire) != handle.generation)
      return nullptr;
    return slot;
  }

  bool grow() {
    if (made_ >= capacity_) return false;
    const uint32_t chunk_objects = 1u << chunk_shift_;
    const uint32_t added = capacity_ - made_ < chunk_objects ? capacity_ - made_ : chunk_objects;
    free_.reserve(made_ + added);
    auto chunk = std::make_unique<Slot[]>(chunk_objects);
    chunks_[made_ >> chunk_shift_].store(chunk.release(), std::memory_order_release);
    for (uint32_t i = added; i > 0; --i) free_.push_back(made_ + i - 1);  // lowest index first
    made_ += added;
    return true;
  }

  const uint32_t capacity_;
  const uint32_t chunk_shift_;
  const std::size_t chunk_count_;
  const std::unique_ptr<std::atomic<Slot*>[]> chunks_;
  mutable std::mutex mutex_;
  std::vector<uint32_t> free_;
  uint32_t made_ = 0;
  uint32_t live_ = 0;
};

}  // namespace towline
