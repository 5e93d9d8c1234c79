// Control calls that report to a queue instead of blocking their caller: each is an errand on threads of the agent's.
//
// An errand that waits for something that nobody tells, such as a fence, is asked again from time to time, at first
// after 20 us and later every 2 ms. Threads start as they are needed, so that a call that hangs holds up no other. In
// simulated time there are none: an errand is over when add() returns.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace towline {

class Errand {
 public:
  virtual ~Errand() = default;
  // Does some of it; may block. True: it is over. `closing`: the agent closes: it is over after this.
  [[nodiscard]] virtual bool step(bool closing) noexcept = 0;
};

class Errands {
 public:
  static constexpr std::size_t kMostThreads = 16;
  static constexpr std::size_t kMostWaiting = 1 << 16;

  explicit Errands(bool in_real_time) noexcept : in_real_time_(in_real_time) {}
  Errands(const Errands&) = delete;
  Errands& operator=(const Errands&) = delete;
  ~Errands() { finish(); }

  // Throws Error(kAgain): too many wait; Error(kClosed): after finish().
  void add(std::unique_ptr<Errand> errand);
  // Those that block end soon once this is set.
  [[nodiscard]] const std::atomic<bool>& closing() const noexcept { return closing_; }
  // Refuses more, lets each end, and joins the threads.
  void finish() noexcept;

 private:
  struct Entry {
    std::unique_ptr<Errand> errand;
    uint64_t pause_ns;
  };

  void run() noexcept;
  void start_thread_locked() noexcept;

  const bool in_real_time_;
  std::atomic<bool> closing_{false};
  std::mutex mutex_;
  std::condition_variable came_;
  std::multimap<uint64_t, Entry> waiting_;  // by when they are asked
  std::vector<std::thread> threads_;
  std::size_t idle_ = 0;
  std::size_t fresh_ = 0;  // errands that no thread has begun
};

}  // namespace towline
