// Threads of the host that copy lists of pieces. One thread copies 5 to 10 GB/s, and PCIe carries 50: so a
// list is cut into shares of kShareBytes; free threads take them, including the worker that gave the list.
//
// The threads start when first there is something to copy for them, look for more for a moment after their
// last share, and then sleep. The lock is taken once for each list and thread, that is, for a megabyte.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "gpu/copy_job.h"

namespace towline::cuda {

class CopyTeam {
 public:
  static constexpr uint64_t kShareBytes = 64 << 10;

  // A list that is copied: it and its pieces stay until look() says that it is over.
  struct Job {
    const Piece* pieces = nullptr;  // `position` counts on from 0 without holes
    uint32_t count = 0;
    uint64_t bytes = 0;
    bool past_caches = false;  // the written bytes are not read here soon

   private:
    friend class CopyTeam;
    uint32_t shares = 0;
    std::atomic<uint32_t> next{0};  // the share to be taken next
    std::atomic<uint32_t> left{0};  // shares that are not over
    Job* after = nullptr;           // in the team's queue
    uint32_t users = 0;             // threads that still use it; under the lock
  };

  explicit CopyTeam(uint32_t threads) : most_threads_(threads) {}
  CopyTeam(const CopyTeam&) = delete;
  CopyTeam& operator=(const CopyTeam&) = delete;
  ~CopyTeam();  // nothing is being copied

  void begin(Job& job) noexcept;
  // Copies a share, where one is left to take. True: the list is over, and so is all that the team has to do
  // with it. The thread that began it.
  [[nodiscard]] bool look(Job& job) noexcept;
  [[nodiscard]] uint32_t threads() const noexcept { return started_.load(std::memory_order_relaxed); }

 private:
  void start_threads() noexcept;
  void run() noexcept;
  Job* take() noexcept;
  void leave(Job& job) noexcept;
  void unlink(Job& job) noexcept;
  static bool copy_share(Job& job) noexcept;

  const uint32_t most_threads_;
  std::mutex mutex_;
  std::condition_variable given_;
  Job* first_ = nullptr;
  Job* last_ = nullptr;
  uint32_t sleeping_ = 0;
  std::atomic<uint32_t> queued_{0};
  std::atomic<uint32_t> started_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

}  // namespace towline::cuda
