// Decides between urgent and other work: urgent work goes first, but one turn in eight is
// left to the rest, so that nothing starves. Not thread-safe.
#pragma once

#include <cstdint>

namespace towline {

class UrgentFirst {
 public:
  // Whether urgent work has the next turn.
  [[nodiscard]] bool next(bool urgent_is_there, bool others_are_there) const noexcept {
    return urgent_is_there && (!others_are_there || in_a_row_ < kMostInARow);
  }
  // Call after a turn that moved something.
  void took(bool urgent, bool others_waited) noexcept {
    in_a_row_ = urgent && others_waited ? in_a_row_ + 1 : 0;
  }
  // Both at once, where every turn is had.
  [[nodiscard]] bool take(bool urgent_is_there, bool others_are_there) noexcept {
    const bool urgent = next(urgent_is_there, others_are_there);
    took(urgent, others_are_there);
    return urgent;
  }

 private:
  static constexpr uint32_t kMostInARow = 7;
  uint32_t in_a_row_ = 0;  // urgent turns, while others waited
};

}  // namespace towline
