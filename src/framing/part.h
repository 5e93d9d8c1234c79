// A part: one submit under way. Parts live in a bounded table and are named on the wire by {index,
// generation}.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "towline/plugin/cursor.hpp"
#include "towline/plugin/v1.h"

namespace towline::framing {

class Connection;
class PartList;

// The result of prepare(); begins with the common part of every backend's prepared plan.
struct Prepared {
  towline_prepared base = plugin::sized<towline_prepared>();
  Connection* connection = nullptr;
  uint32_t op = 0;
  // These are set if GPU memory takes part; else they stay as they are here:
  bool lands = false;  // on this side
  bool mixed = false;  // several GPUs, or host memory too, on one of the sides: no frame has two of them
  uint64_t most_bytes = UINT64_MAX;  // of a frame or request
};

// A part's life. Transitions, all in core_parts.cc:
//   kFree -> kProducing        submit: frames (WRITE) or requests (READ) are still to be made
//   kProducing -> kWaiting     the last is made, or no more will be (refused, cancelled)
//   kWaiting -> kMessage       everything arrived, and its message still has to find room
//   kWaiting, kMessage -> kEnded   its result is fixed; from anywhere when the connection breaks
//   kEnded -> kFree            the host has been told
enum class PartState : uint8_t { kFree, kProducing, kWaiting, kMessage, kEnded };

struct Part {
  uint32_t index = 0;
  uint32_t generation = 1;
  PartState state = PartState::kFree;
  bool is_read = false;
  bool cancelled = false;
  bool urgent = false;        // before those that are not
  bool chained = false;       // all its frames use one lane, the only such part there (see kFlagChained)
  bool message_sent = false;  // inside its last frame
  bool unmapped = false;      // its own memory was not there any more
  bool lands = false;         // as its plan does, which may go before the connection is closed
  uint64_t cookie = 0;
  uint64_t begin = 0;
  uint64_t end = 0;
  uint64_t produced = 0;   // plan bytes in frames or requests made so far
  uint64_t confirmed = 0;  // plan bytes counted by the owner, or placed here, including refused ones
  uint64_t failed_bytes = 0;
  uint64_t failed_begin = 0;  // range that failed; empty when failed_bytes is 0
  uint64_t failed_end = 0;
  uint32_t outstanding = 0;  // frames or requests made and not yet settled
  Status status = Status::kOk;
  PartList* list = nullptr;  // the list it is in, by its state
  Part* previous = nullptr;
  Part* next = nullptr;
  const towline_region_ref* regions = nullptr;  // the plan's remote ones
  const Prepared* prepared = nullptr;
  uint32_t copies =
      0;  // between its local memory and slots, under way; and frames of it that are lent to a lane
  int32_t vendor_code = 0;
  std::optional<plugin::Cursor> cursor;
  std::vector<uint8_t> message;  // held; keeps its capacity

  [[nodiscard]] uint64_t wire_id() const noexcept { return (uint64_t{generation} << 32) | index; }
  [[nodiscard]] uint64_t bytes() const noexcept { return end - begin; }
};

// Parts in order; a part is in at most one list.
class PartList {
 public:
  [[nodiscard]] bool empty() const noexcept { return head_ == nullptr; }
  [[nodiscard]] Part* front() const noexcept { return head_; }
  // Of its parts, whatever was made of them already.
  [[nodiscard]] uint64_t bytes() const noexcept { return bytes_; }
  void push(Part& part) noexcept {
    part.previous = tail_;
    part.next = nullptr;
    part.list = this;
    (tail_ == nullptr ? head_ : tail_->next) = &part;
    tail_ = &part;
    bytes_ += part.bytes();
  }
  void remove(Part& part) noexcept {
    (part.previous == nullptr ? head_ : part.previous->next) = part.next;
    (part.next == nullptr ? tail_ : part.next->previous) = part.previous;
    part.previous = part.next = nullptr;
    part.list = nullptr;
    bytes_ -= part.bytes();
  }
  Part* pop() noexcept {
    Part* part = head_;
    if (part != nullptr) remove(*part);
    return part;
  }

 private:
  Part* head_ = nullptr;
  Part* tail_ = nullptr;
  uint64_t bytes_ = 0;
};

// Grows by chunks up to its capacity; freed parts are reused last in, first out, so that a steady load uses
// few.
class PartTable {
 public:
  explicit PartTable(uint32_t capacity) : capacity_(capacity) {}

  [[nodiscard]] uint32_t live() const noexcept { return live_; }

  // Null if full, or out of memory. The part is kFree; everything except index, generation and message
  // capacity is reset.
  Part* allocate() noexcept {
    if (free_ == nullptr && !grow()) return nullptr;
    Part* part = free_;
    free_ = part->next;
    part->next = nullptr;
    ++live_;
    return part;
  }

  void release(Part& part) noexcept {
    if (++part.generation == 0) part.generation = 1;
    part.state = PartState::kFree;
    part.cancelled = part.chained = part.message_sent = part.urgent = part.unmapped = false;
    part.confirmed = part.failed_bytes = part.failed_begin = part.failed_end = 0;
    part.outstanding = part.copies = 0;
    part.vendor_code = 0;
    part.status = Status::kOk;
    part.message.clear();
    part.next = free_;
    free_ = &part;
    --live_;
  }

  // The live part with this name, or null.
  [[nodiscard]] Part* find(uint64_t wire_id) noexcept {
    const auto index = static_cast<uint32_t>(wire_id);
    if (index >= made_) return nullptr;
    Part& part = at(index);
    return part.state != PartState::kFree && part.wire_id() == wire_id ? &part : nullptr;
  }

  template <class Visit>
  void for_each_live(Visit&& visit) {
    for (uint32_t i = 0; i < made_; ++i)
      if (at(i).state != PartState::kFree) visit(at(i));
  }

 private:
  static constexpr uint32_t kChunk = 32;

  Part& at(uint32_t index) noexcept { return chunks_[index / kChunk][index % kChunk]; }

  bool grow() noexcept {
    if (made_ >= capacity_) return false;
    try {
      chunks_.push_back(std::make_unique<Part[]>(kChunk));
    } catch (...) {
      return false;
    }
    const uint32_t added = capacity_ - made_ < kChunk ? capacity_ - made_ : kChunk;
    for (uint32_t i = added; i-- > 0;) {  // lowest index first
      Part& part = chunks_.back()[i];
      part.index = made_ + i;
      part.next = free_;
      free_ = &part;
    }
    made_ += added;
    return true;
  }

  uint32_t capacity_;
  uint32_t made_ = 0;
  uint32_t live_ = 0;
  Part* free_ = nullptr;
  std::vector<std::unique_ptr<Part[]>> chunks_;
};

}  // namespace towline::framing
