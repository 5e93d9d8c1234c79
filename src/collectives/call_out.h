// Tracks the communicators whose hooks or works' functions a thread is running.
#pragma once

namespace towline::collectives {

class Communicator;

// Lives during a call of the application's function. Calls nest: a hook may use another communicator, which
// has hooks.
class CallOut {
 public:
  explicit CallOut(const Communicator* of) noexcept : of_(of), outer_(innermost) { innermost = this; }
  ~CallOut() { innermost = outer_; }
  CallOut(const CallOut&) = delete;
  CallOut& operator=(const CallOut&) = delete;

  static bool inside(const Communicator* of) noexcept {
    for (const CallOut* one = innermost; one != nullptr; one = one->outer_)
      if (one->of_ == of) return true;
    return false;
  }

 private:
  static inline thread_local const CallOut* innermost = nullptr;
  const Communicator* const of_;
  const CallOut* const outer_;
};

}  // namespace towline::collectives
