// Control calls that report to a queue instead of blocking their caller: each is an errand on threads of the agent's.
//
// An errand that waits for something that nobody tells, such as a fence, is asked again from time to time, at first
// after 20 us and later every 2 ms. Calls that block have threads of their own, one each, so that peers that don't answer
// hold up neither other calls nor fences. Threads start as they are needed; those of calls end when they have had nothing
// to do for a while. In simulated time there are none: an errand is over when add() returns.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

namespace towline {

class Agent;

class Errand {
 public:
  virtual ~Errand() = default;
  // Does some of it. True: it is over. `closing`: the agent closes: it is over after this.
  [[nodiscard]] virtual bool step(bool closing) noexcept = 0;
  // Whether a step may block for long.
  [[nodiscard]] virtual bool blocks() const noexcept { return false; }
};

// Threads, and the errands that they do.
class ErrandThreads {
 public:
  ErrandThreads(const Agent* agent, std::size_t most_threads, bool end_when_idle) noexcept
      : agent_(agent), most_threads_(most_threads), end_when_idle_(end_when_idle) {}
  ErrandThreads(const ErrandThreads&) = delete;
  ErrandThreads& operator=(const ErrandThreads&) = delete;
  ~ErrandThreads() { finish(); }

  void add(std::unique_ptr<Errand> errand);
  void close() noexcept;
  void finish() noexcept;
  [[nodiscard]] std::size_t threads() const;

 private:
  struct Entry {
    std::unique_ptr<Errand> errand;
    uint64_t pause_ns;
  };

  void run() noexcept;
  void start_thread_locked() noexcept;
  // Sleeps until there may be something to do. False: this thread is not needed any more.
  [[nodiscard]] bool sleep(std::unique_lock<std::mutex>& lock, uint64_t due_ns, uint64_t now_ns) noexcept;

  const Agent* const agent_;
  const std::size_t most_threads_;
  const bool end_when_idle_;
  mutable std::mutex mutex_;
  std::condition_variable came_;
  bool closing_ = false;
  std::multimap<uint64_t, Entry> waiting_;  // by when they are asked
  std::list<std::thread> threads_;
  std::list<std::thread> ended_;  // to be joined
  std::size_t idle_ = 0;
  std::size_t fresh_ = 0;  // errands that no thread has begun
};

class Errands {
 public:
  static constexpr std::size_t kMostCalls = 256;  // that block at once; more wait for their turn
  static constexpr std::size_t kMostWaiting = 1 << 16;

  // `agent`: whose threads they are.
  explicit Errands(bool in_real_time, const Agent* agent = nullptr) noexcept
      : in_real_time_(in_real_time), quick_(agent, 2, false), calls_(agent, kMostCalls, true) {}

  // Throws Error(kAgain): too many wait; Error(kClosed): after finish().
  void add(std::unique_ptr<Errand> errand);
  // Those that block end soon once this is set.
  [[nodiscard]] const std::atomic<bool>& closing() const noexcept { return closing_; }
  // Refuses more, lets each end, and joins the threads.
  void finish() noexcept;
  // How many threads there are now.
  [[nodiscard]] std::size_t threads() const { return quick_.threads() + calls_.threads(); }

 private:
  const bool in_real_time_;
  std::atomic<bool> closing_{false};
  ErrandThreads quick_;
  ErrandThreads calls_;
};

}  // namespace towline
