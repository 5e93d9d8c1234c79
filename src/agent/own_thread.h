// Which agent started the calling thread. A thread that an agent started may run the application's callbacks, and can't end the
// agent: closing joins it.
#pragma once

namespace towline {

class Agent;

// Lives as long as the thread.
class OwnThread {
 public:
  explicit OwnThread(const Agent* agent) noexcept { started_by = agent; }
  OwnThread(const OwnThread&) = delete;
  OwnThread& operator=(const OwnThread&) = delete;

  static bool is_of(const Agent* agent) noexcept { return started_by == agent; }

 private:
  static inline thread_local const Agent* started_by = nullptr;
};

}  // namespace towline
