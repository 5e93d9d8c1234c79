// Whose threads run the application's callbacks and can't end the agent there: those that it started, which closing joins, and
// the one that closes it, on which posts end.
#pragma once

namespace towline {

class Agent;

// Lives as long as the thread belongs to the agent. One thread may belong to several: it may close another one in a callback.
class OwnThread {
 public:
  explicit OwnThread(const Agent* agent) noexcept : agent_(agent), outer_(innermost) { innermost = this; }
  ~OwnThread() { innermost = outer_; }
  OwnThread(const OwnThread&) = delete;
  OwnThread& operator=(const OwnThread&) = delete;

  static bool is_of(const Agent* agent) noexcept {
    for (const OwnThread* mark = innermost; mark != nullptr; mark = mark->outer_)
      if (mark->agent_ == agent) return true;
    return false;
  }

 private:
  static inline thread_local const OwnThread* innermost = nullptr;
  const Agent* const agent_;
  const OwnThread* const outer_;
};

}  // namespace towline
