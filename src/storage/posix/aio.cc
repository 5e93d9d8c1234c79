// The kernel's asynchronous I/O from before io_uring, by its system calls: good for direct I/O where io_uring
// is not allowed. What is buffered it does while it is submitted.
#include <fmt/format.h>
#include <linux/aio_abi.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <vector>

#include "base/error.h"
#include "base/wake.h"
#include "storage/posix/kernel_queue.h"

namespace towline::posix {

namespace {

class Aio final : public KernelQueue {
 public:
  explicit Aio(uint32_t depth) : depth_(depth) {
    control_.resize(depth);
    waiting_.reserve(depth);
    free_.reserve(depth);
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
    block->aio_flags = IOCB_FLAG_RESFD;
    block->aio_resfd = static_cast<uint32_t>(event_.fd());
    waiting_.push_back(block);
    return true;
  }

  void flush() noexcept override {
    size_t taken = 0;
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
    in_kernel_ += taken;
    waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<long>(taken));
  }

  size_t reap(Ended* ended, size_t capacity) noexcept override {
    size_t count = 0;
    for (; count < capacity && !refused_.empty(); refused_.pop_back()) ended[count++] = refused_.back();
    if (in_kernel_ == 0 || count == capacity) return count;
    return count + collect(ended + count, capacity - count, 0, 0);
  }

  void wait() noexcept override {
    flush();
    if (in_kernel_ == 0) return;
    pollfd_wait();
  }

  // Only requests of a few drivers can be cancelled; files are none.
  void cancel(Operation&) noexcept override {}
  [[nodiscard]] int fd() const noexcept override { return event_.fd(); }
  void drain() noexcept override { (void)event_.drain(); }
  [[nodiscard]] Engine engine() const noexcept override { return Engine::kAio; }
  [[nodiscard]] std::string describe() const override {
    return fmt::format(R"({{"kind": "aio", "entries": {}}})", depth_);
  }

 private:
  static Operation* operation_of(const iocb& block) noexcept {
    return reinterpret_cast<Operation*>(block.aio_data);
  }

  size_t collect(Ended* ended, size_t capacity, long at_least, long nanoseconds) noexcept {
    io_event events[64];
    timespec patience = {0, nanoseconds};
    const long count =
        ::syscall(SYS_io_getevents, context_, at_least,
                  static_cast<long>(std::min<size_t>(std::size(events), capacity)), events, &patience);
    for (long i = 0; i < count; ++i) {
      ended[i] = {reinterpret_cast<Operation*>(events[i].data), events[i].res};
      free_.push_back(reinterpret_cast<iocb*>(events[i].obj));
    }
    if (count <= 0) return 0;
    in_kernel_ -= static_cast<size_t>(count);
    return static_cast<size_t>(count);
  }

  // The events stay in the kernel's ring for reap().
  void pollfd_wait() noexcept {
    const timespec pause = {0, 200'000};
    (void)::clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, nullptr);
  }

  const uint32_t depth_;
  aio_context_t context_ = 0;
  EventFd event_;
  std::vector<iocb> control_;
  std::vector<iocb*> free_;
  std::vector<iocb*> waiting_;
  std::vector<Ended> refused_;
  size_t in_kernel_ = 0;
};

}  // namespace

std::unique_ptr<KernelQueue> KernelQueue::open_aio(const Settings& settings, std::string& reason) {
  auto queue = std::make_unique<Aio>(settings.queue_depth);
  if (const int error = queue->open(); error != 0) {
    reason = "io_setup: " + errno_text(error);
    return nullptr;
  }
  return queue;
}

}  // namespace towline::posix
