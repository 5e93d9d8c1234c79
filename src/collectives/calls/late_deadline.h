// The deadline of a small operation, which takes about as long to work out as the operation itself.
#pragma once

#include "base/clock.h"

namespace towline::collectives {

// Lives during the operation and is used on its thread alone.
class LateDeadline {
 public:
  LateDeadline() = default;
  LateDeadline(const LateDeadline&) = delete;
  LateDeadline& operator=(const LateDeadline&) = delete;

  // Asked when a rank begins to wait, as a rule after its own part is with the others: so what the answer costs passes
  // while theirs are on their way. Not asked in an operation that waits for nobody.
  Deadline get() noexcept {
    if (!asked_) {
      asked_ = true;
      deadline_ = work_out();
    }
    return deadline_;
  }
  bool asked() const noexcept { return asked_; }

 protected:
  ~LateDeadline() = default;

 private:
  virtual Deadline work_out() noexcept = 0;

  bool asked_ = false;
  Deadline deadline_;
};

}  // namespace towline::collectives
