// The kernel's older asynchronous I/O (before io_uring), by its system calls: only for direct I/O. Buffered
// I/O would block in the submit call.
//
// Ended operations are read where the interrupt has written them, in a ring that the kernel shares with us. With
// io_uring the submitting thread has to be interrupted first, so that it completes its operation itself.
#include <fmt/format.h>
#include <linux/aio_abi.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <ctime>
#include <vector>

#include "base/error.h"
#include "base/sync/wake.h"
#include "storage/posix/kernel_queue.h"

namespace towline::posix {

namespace {

// The ring at the address that the context's number is. The reader moves the head. Not in the kernel's
// headers, but of a fixed form (fio and QEMU read it too).
struct Ring {
  static constexpr uint32_t kMagic = 0xa10a10a1;

  uint32_t id;
  uint32_t entries;
  uint32_t head;
  uint32_t tail;
  uint32_t magic;
  uint32_t compatible;
  uint32_t incompatible;
  uint32_t header_bytes;  // the events come after them
};

class Aio final : public KernelQueue {
 public:
  Aio(uint32_t depth, bool never_waits) : depth_(depth), flags_(never_waits ? RWF_NOWAIT : 0) {
    control_.resize(depth);
    waiting_.reserve(depth);
    free_.reserve(depth);
    refused_.reserve(depth);
    for (iocb& block : control_) free_.push_back(&block);
  }
  ~Aio() override {
    if (context_ != 0) (void)::syscall(SYS_io_destroy, context_);
  }

  // 0 or an errno.
  int open() noexcept { return ::syscall(SYS_io_setup, depth_, &context_) == 0 ? 0 : errno; }

  bool push(Operation& operation) noexcept override {
    if (free_.empty()) return false;
    iocb* block = free_.back();
    free_.pop_back();
    *block = {};
    block->aio_data = reinterpret_cast<uint64_t>(&operation);
    block->aio_lio_opcode = operation.write ? IOCB_CMD_PWRITEV : IOCB_CMD_PREADV;
    block->aio_fildes = static_cast<uint32_t>(operation.fd);
    block->aio_buf = reinterpret_cast<uint64_t>(operation.iov + operation.first_iov);
    block->aio_nbytes = operation.iov_count;
    block->aio_offset = static_cast<int64_t>(operation.offset + operation.done);
    block->aio_rw_flags = flags_;
    block->aio_flags = IOCB_FLAG_RESFD;
    block->aio_resfd = static_cast<uint32_t>(event_.fd());
    waiting_.push_back(block);
    return true;
  }

  void flush() noexcept override {
    size_t taken = 0;
    const size_t refused_before = refused_.size();
    while (taken < waiting_.size()) {
      const long count = ::syscall(SYS_io_submit, context_, waiting_.size() - taken, waiting_.data() + taken);
      if (count > 0) {
        taken += static_cast<size_t>(count);
      } else if (errno == EAGAIN && in_kernel_ + taken > 0) {
        break;  // no room now: with the next call
      } else if (errno != EINTR) {
        refused_.push_back({operation_of(*waiting_[taken]), -errno});
        free_.push_back(waiting_[taken]);
        waiting_.erase(waiting_.begin() + static_cast<long>(taken));
      }
    }
    // No interrupt tells of these.
    if (refused_.size() != refused_before) event_.signal();
    in_kernel_ += taken;
    waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<long>(taken));
  }

  size_t reap(Ended* ended, size_t capacity) noexcept override {
    size_t count = 0;
    for (; count < capacity && !refused_.empty(); refused_.pop_back()) ended[count++] = refused_.back();
    if (in_kernel_ == 0 || count == capacity) return count;
    count += collect(ended + count, capacity - count);
    return count;
  }

  void wait() noexcept override {
    flush();
    if (in_kernel_ == 0) return;
    const timespec pause = {0, 200'000};
    (void)::clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, nullptr);
  }

  // Only requests of a few drivers can be cancelled; files are none.
  void cancel(Operation&) noexcept override {}
  [[nodiscard]] int fd() const noexcept override { return event_.fd(); }
  // Nobody reads what is signalled.
  [[nodiscard]] uint32_t events() const noexcept override { return EPOLLIN | EPOLLET; }
  [[nodiscard]] Engine engine() const noexcept override { return Engine::kAio; }
  [[nodiscard]] std::string describe() const override {
    return fmt::format(R"({{"kind": "aio", "entries": {}}})", depth_);
  }

 private:
  static Operation* operation_of(const iocb& block) noexcept {
    return reinterpret_cast<Operation*>(block.aio_data);
  }

  size_t collect(Ended* ended, size_t capacity) noexcept {
    size_t count = 0;
    const auto take = [&](const io_event& event) {
      ended[count++] = {reinterpret_cast<Operation*>(event.data), event.res};
      free_.push_back(reinterpret_cast<iocb*>(event.obj));
    };
    Ring& ring = *reinterpret_cast<Ring*>(context_);
    if (ring.magic == Ring::kMagic && ring.incompatible == 0) {
      const auto* const events = reinterpret_cast<const io_event*>(context_ + ring.header_bytes);
      const uint32_t tail = std::atomic_ref(ring.tail).load(std::memory_order_acquire);
      uint32_t head = ring.head;
      while (head != tail && count < capacity) {
        take(events[head]);
        head = head + 1 < ring.entries ? head + 1 : 0;
      }
      if (count != 0) std::atomic_ref(ring.head).store(head, std::memory_order_release);
    } else {
      io_event events[64];
      timespec patience = {};
      const long found =
          ::syscall(SYS_io_getevents, context_, 0,
                    static_cast<long>(std::min<size_t>(std::size(events), capacity)), events, &patience);
      for (long i = 0; i < found; ++i) take(events[i]);
    }
    in_kernel_ -= count;
    return count;
  }

  const uint32_t depth_;
  const int flags_;
  aio_context_t context_ = 0;
  EventFd event_;
  std::vector<iocb> control_;
  std::vector<iocb*> free_;
  std::vector<iocb*> waiting_;
  std::vector<Ended> refused_;
  size_t in_kernel_ = 0;
};

}  // namespace

std::unique_ptr<KernelQueue> KernelQueue::open_aio(const Settings& settings, bool never_waits,
                                                   std::string& reason) {
  auto queue = std::make_unique<Aio>(settings.queue_depth, never_waits);
  if (const int error = queue->open(); error != 0) {
    reason = "io_setup: " + errno_text(error);
    if (error == EAGAIN) reason += ": fs.aio-max-nr, which all processes share, is used up";
    return nullptr;
  }
  return queue;
}

}  // namespace towline::posix
