// The wait of an application thread: it makes progress itself for a short while; then it hands the workers over
// to their own threads and sleeps on a word, or, in an agent without threads, sleeps in the worker's epoll.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <utility>

#include "agent/worker.h"
#include "base/clock.h"
#include "base/os/futex.h"
#include "base/sync/spin.h"

namespace towline {

// Waits for one thing: state of one call.
//
// A thread that makes the thing true increments `word` after it, and wakes the sleepers if there are any. If it
// may check for sleepers before it makes the thing true, a sleeper can miss it; then `first_sleep_ns` is short.
struct Waiter {
  std::atomic<uint32_t>& word;
  std::atomic<uint32_t>& sleepers;
  bool hosted;              // the workers have threads
  uint64_t spin_ns;         // makes progress for so long after the last thing that it did
  uint64_t first_sleep_ns;  // each sleep lasts at most twice as long as the one before
  bool rests = false;       // sleeps at once: the workers' threads make the progress
  bool slept = false;       // it handed over, and slept

  // True: done() is. False: the time is over. `each_worker` calls its argument with every worker concerned.
  template <class EachWorker, class Done>
  [[nodiscard]] bool wait(uint64_t timeout_ns, EachWorker&& each_worker, Done&& done) noexcept {
    constexpr uint64_t kLongestSleepNs = 100 * kMillisecondNs;
    if (done()) return true;
    const uint64_t start_ns = monotonic_now_ns();
    const uint64_t deadline_ns = Deadline::after(start_ns, timeout_ns).ns();
    bool drives = !rests;
    bool hands_over = true;
    uint64_t spin_until_ns = drives ? Deadline::after(start_ns, spin_ns).ns() : start_ns;
    uint64_t sleep_ns = first_sleep_ns;
    while (!done()) {
      uint32_t work = 0;
      if (drives) {
        each_worker([&](Worker& worker) { work += worker.drive(); });
        hands_over = true;
      }
      drives = true;
      if (done()) return true;
      const uint64_t now_ns = monotonic_now_ns();
      if (now_ns >= deadline_ns) return false;
      if (work != 0) spin_until_ns = Deadline::after(now_ns, spin_ns).ns();
      if (now_ns < spin_until_ns) {
        cpu_pause();
        continue;
      }
      if (!hosted) {
        sleep_driving(each_worker, now_ns, deadline_ns);
        continue;
      }
      sleepers.fetch_add(1, std::memory_order_seq_cst);
      const uint32_t seen = word.load(std::memory_order_seq_cst);
      if (!done()) {
        if (std::exchange(hands_over, false)) each_worker([](Worker& worker) { worker.hand_over(); });
        slept = true;
        // A sleep that nothing ended is no reason to take the workers from their threads.
        drives = futex_wait(word, seen, std::min(deadline_ns, now_ns + sleep_ns)) != FutexResult::kTimedOut;
        sleep_ns = std::min(2 * sleep_ns, kLongestSleepNs);
      }
      sleepers.fetch_sub(1, std::memory_order_seq_cst);
    }
    return true;
  }

 private:
  // A thread can sleep for one worker only: with several it looks after the others every millisecond.
  template <class EachWorker>
  static void sleep_driving(EachWorker& each_worker, uint64_t now_ns, uint64_t deadline_ns) noexcept {
    Worker* first = nullptr;
    uint32_t count = 0;
    each_worker([&](Worker& worker) {
      if (count++ == 0) first = &worker;
    });
    first->sleep_driving(count > 1 ? std::min(deadline_ns, now_ns + kMillisecondNs) : deadline_ns);
  }
};

}  // namespace towline
