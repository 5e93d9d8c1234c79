// Operations that the kernel works on while the worker does something else: io_uring, or the older
// asynchronous I/O. One for each worker, under its lock.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "storage/posix/segments.h"
#include "storage/posix/settings.h"

namespace towline::posix {

class KernelQueue {
 public:
  struct Ended {
    Operation* operation;
    int64_t result;  // bytes or -errno
  };

  virtual ~KernelQueue() = default;
  KernelQueue(const KernelQueue&) = delete;
  KernelQueue& operator=(const KernelQueue&) = delete;

  // Takes the operation on; flush() gives what was taken to the kernel. False: no room now.
  [[nodiscard]] virtual bool push(Operation& operation) noexcept = 0;
  // Operations that the kernel refused to take come back through reap().
  virtual void flush() noexcept = 0;
  // Ended operations, up to `capacity`; never waits.
  virtual size_t reap(Ended* ended, size_t capacity) noexcept = 0;
  // Waits until something ended, or for a while.
  virtual void wait() noexcept = 0;
  // Asks the kernel to hurry the operation's end.
  virtual void cancel(Operation& operation) noexcept = 0;
  // From here on operations on this descriptor, or in this memory, may be quicker. Each call is undone by one
  // of detach; the buffer's number goes into operations on it, -1: it has none. Throws std::bad_alloc.
  virtual void attach_file(int) {}
  virtual void detach_file(int) noexcept {}
  [[nodiscard]] virtual int attach_buffer(uint64_t, uint64_t) noexcept { return -1; }
  virtual void detach_buffer(int) noexcept {}
  // Polls readable when reap() would find something, or, with EPOLLET in events(), has since it last did.
  [[nodiscard]] virtual int fd() const noexcept = 0;
  [[nodiscard]] virtual uint32_t events() const noexcept = 0;
  [[nodiscard]] virtual Engine engine() const noexcept = 0;
  [[nodiscard]] virtual std::string describe() const = 0;

  // Null with `reason` if the kernel, or this process's sandbox, does not allow it.
  static std::unique_ptr<KernelQueue> open_uring(const Settings& settings, std::string& reason);
  // With `never_waits` flush() does not either: an operation for which it would have to (room in the device's
  // queue, a block of the file that is not there yet) ends with EAGAIN, or EOPNOTSUPP where the file system
  // can't say.
  static std::unique_ptr<KernelQueue> open_aio(const Settings& settings, bool never_waits,
                                               std::string& reason);

 protected:
  KernelQueue() = default;
};

}  // namespace towline::posix
