// Threads on which backends do what may block: mapping a peer's memory, pinning. They run under no lock, so
// workers, posts and heartbeats go on meanwhile.
//
// A thread starts when the first work comes, and up to kMostThreads of them while all others are busy, so that one
// call that hangs does not hold up the rest. In simulated time there are no threads: work is done at once.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "towline/status.h"

namespace towline {

class Agent;
class Worker;

class BlockingWork {
 public:
  using Function = void (*)(void* argument);
  static constexpr std::size_t kMostThreads = 4;
  static constexpr std::size_t kMostWaiting = 1024;

  // `agent`: whose threads they are.
  explicit BlockingWork(bool in_real_time, const Agent* agent = nullptr) noexcept
      : in_real_time_(in_real_time), agent_(agent) {}
  BlockingWork(const BlockingWork&) = delete;
  BlockingWork& operator=(const BlockingWork&) = delete;
  ~BlockingWork() { finish(); }

  // Calls function(argument) soon, and wakes `then` when it has returned. kAgain: too much waits, or there is no
  // memory or thread for it. kClosed: after finish(). Any thread.
  [[nodiscard]] Status add(Worker& then, Function function, void* argument) noexcept;
  // Refuses more, waits until everything that was added has returned, and joins the threads.
  void finish() noexcept;

 private:
  struct Entry {
    Worker* then;
    Function function;
    void* argument;
  };

  void run() noexcept;
  [[nodiscard]] bool start_thread_locked() noexcept;

  const bool in_real_time_;
  const Agent* const agent_;
  std::mutex mutex_;
  std::condition_variable came_;
  std::deque<Entry> waiting_;
  std::vector<std::thread> threads_;
  std::size_t idle_ = 0;
  bool finishing_ = false;
};

}  // namespace towline
