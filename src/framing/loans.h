// Frames whose payload a lane still reads after it was written (Lane::write_lent), oldest first: what they read must
// not change, and its owner is not told that it may, until the lane has given it back.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "framing/landing.h"
#include "framing/part.h"
#include "framing/pin_set.h"
#include "framing/wire.h"

namespace towline::framing {

struct Loan {
  uint64_t until = 0;         // given back when the lane's returned() has reached this
  Part* part = nullptr;       // of a WRITE from host memory: does not end before
  uint32_t slot = kNoSlot;    // of gathered GPU memory: not free before
  PinSet pins{kMaxSegments};  // of an answer from host memory
};

class Loans {
 public:
  static constexpr std::size_t kMost = 16;

  [[nodiscard]] bool empty() const noexcept { return count_ == 0; }
  [[nodiscard]] bool full() const noexcept { return count_ == kMost; }
  [[nodiscard]] Loan& front() noexcept { return loans_[first_]; }
  [[nodiscard]] Loan& push() noexcept {
    TOWLINE_DCHECK(!full(), "more than {} loans", kMost);
    return loans_[(first_ + count_++) % kMost];
  }
  void pop() noexcept {
    first_ = (first_ + 1) % kMost;
    --count_;
  }
  void forget_slots() noexcept {
    for (Loan& loan : loans_) loan.slot = kNoSlot;
  }

 private:
  std::array<Loan, kMost> loans_;
  std::size_t first_ = 0;
  std::size_t count_ = 0;
};

}  // namespace towline::framing
