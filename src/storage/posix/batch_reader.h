// Many small cached reads with one system call: an io_uring of which every operation ends within the call,
// since none may wait. It saves an entry into the kernel for each block, a third of what a cached read of
// 4 KiB costs.
//
// It belongs to a worker's queue and serves the posting thread that finds it free; other threads read block
// by block.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace towline::posix {

class BatchReader {
 public:
  static constexpr uint32_t kOperations = 64;

  virtual ~BatchReader() = default;
  BatchReader(const BatchReader&) = delete;
  BatchReader& operator=(const BatchReader&) = delete;

  // Null where the kernel does not allow it.
  static std::unique_ptr<BatchReader> open();

  [[nodiscard]] bool try_lock() noexcept { return !locked_.exchange(true, std::memory_order_acquire); }
  void lock() noexcept;
  void unlock() noexcept { locked_.store(false, std::memory_order_release); }

  // ---- under the worker's lock

  // Registers a descriptor for cheaper reads and returns its number; -1: not registered. Each call is undone by one of
  // detach_file. Throws std::bad_alloc.
  [[nodiscard]] virtual int attach_file(int fd) = 0;
  virtual void detach_file(int fd) noexcept = 0;

  // ---- for the holder of the lock; nothing may be left in the kernel when it is released

  // Takes a read on; run() before there are more than kOperations. `number` is the descriptor's, or -1.
  virtual void add(int fd, int number, uint64_t memory, uint64_t bytes, uint64_t offset) noexcept = 0;
  // Performs the added reads. True: every byte was read; else some would have blocked, or failed.
  [[nodiscard]] virtual bool run() noexcept = 0;

 protected:
  BatchReader() = default;

 private:
  std::atomic<bool> locked_{false};
};

}  // namespace towline::posix
