// Ranks as threads, for tests.
#pragma once

#include <gtest/gtest.h>

#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include "base/clock.h"

namespace towline::rendezvous {

inline void run_threads(int size, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Waits until the condition holds; fails the test after two minutes.
inline void eventually(const std::function<bool()>& condition) {
  const uint64_t limit = monotonic_now_ns() + 120 * kSecondNs;
  while (!condition()) {
    ASSERT_LT(monotonic_now_ns(), limit) << "it never came to be";
    std::this_thread::yield();
  }
}

}  // namespace towline::rendezvous
