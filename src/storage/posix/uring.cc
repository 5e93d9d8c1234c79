// io_uring, where the build found liburing and the kernel lets us.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>

#include "base/error.h"
#include "storage/posix/fixed_files.h"
#include "storage/posix/kernel_queue.h"

#ifdef TOWLINE_HAVE_LIBURING

#include <liburing.h>
#include <poll.h>
#include <sys/epoll.h>

#include <utility>
#include <vector>

namespace towline::posix {

namespace {

class Uring final : public KernelQueue {
 public:
  explicit Uring(const Settings& settings) : settings_(settings) {}
  ~Uring() override {
    if (open_) io_uring_queue_exit(&ring_);
  }

  // 0 or an errno.
  int open() {
    io_uring_params params = {};
    params.flags = IORING_SETUP_CLAMP;
    if (settings_.sqpoll) {
      params.flags |= IORING_SETUP_SQPOLL;
      params.sq_thread_idle = 1000;  // milliseconds
    }
    const int result = io_uring_queue_init_params(settings_.queue_depth, &ring_, &params);
    if (result < 0) return -result;
    open_ = true;
    io_uring_ring_dontfork(&ring_);
    if (!reads_and_writes()) return EOPNOTSUPP;
    if (settings_.register_files) files_.open(ring_);
    if (settings_.register_buffers && io_uring_register_buffers_sparse(&ring_, kBuffers) == 0)
      buffers_.resize(kBuffers);
    return 0;
  }

  bool push(Operation& operation) noexcept override {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    if (entry == nullptr) {
      flush();
      entry = io_uring_get_sqe(&ring_);
      if (entry == nullptr) return false;
    }
    const uint64_t at = operation.offset + operation.done;
    const iovec* iov = operation.iov + operation.first_iov;
    const int slot = files_.slot_of(operation.fd);
    const int fd = slot >= 0 ? slot : operation.fd;
    if (operation.iov_count == 1) {
      const auto bytes = static_cast<unsigned>(iov->iov_len);
      const int buffer = buffer_of(operation.buffer, *iov);
      if (buffer >= 0 && operation.write)
        io_uring_prep_write_fixed(entry, fd, iov->iov_base, bytes, at, buffer);
      else if (buffer >= 0)
        io_uring_prep_read_fixed(entry, fd, iov->iov_base, bytes, at, buffer);
      else if (operation.write)
        io_uring_prep_write(entry, fd, iov->iov_base, bytes, at);
      else
        io_uring_prep_read(entry, fd, iov->iov_base, bytes, at);
    } else if (operation.write) {
      io_uring_prep_writev(entry, fd, iov, operation.iov_count, at);
    } else {
      io_uring_prep_readv(entry, fd, iov, operation.iov_count, at);
    }
    if (slot >= 0) entry->flags |= IOSQE_FIXED_FILE;
    io_uring_sqe_set_data(entry, &operation);
    ++unsubmitted_;
    return true;
  }

  void flush() noexcept override {
    if (unsubmitted_ == 0) return;
    // Entries that the kernel does not accept now stay in the ring for the next call.
    const int taken = io_uring_submit(&ring_);
    if (taken > 0) unsubmitted_ -= std::min(unsubmitted_, static_cast<uint32_t>(taken));
  }

  size_t reap(Ended* ended, size_t capacity) noexcept override {
    io_uring_cqe* entries[64];
    size_t count = 0;
    while (count < capacity) {
      const unsigned found = io_uring_peek_batch_cqe(
          &ring_, entries, static_cast<unsigned>(std::min<size_t>(std::size(entries), capacity - count)));
      if (found == 0) break;
      for (unsigned i = 0; i < found; ++i) {
        void* data = io_uring_cqe_get_data(entries[i]);
        if (data != nullptr) ended[count++] = {static_cast<Operation*>(data), entries[i]->res};
      }
      io_uring_cq_advance(&ring_, found);
    }
    return count;
  }

  void wait() noexcept override {
    flush();
    constexpr int kPatienceMs = 10;
    pollfd watched = {ring_.ring_fd, POLLIN, 0};
    (void)::poll(&watched, 1, kPatienceMs);  // before Linux 5.11 liburing's wait leaves an entry of its own
  }

  void cancel(Operation& operation) noexcept override {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    if (entry == nullptr) return;
    io_uring_prep_cancel(entry, &operation, 0);
    io_uring_sqe_set_data(entry, nullptr);
    ++unsubmitted_;
    flush();
  }

  void attach_file(int fd) override { files_.attach(ring_, fd); }
  void detach_file(int fd) noexcept override { files_.detach(ring_, fd); }

  int attach_buffer(uint64_t address, uint64_t bytes) noexcept override {
    int free = -1;
    for (int i = 0; i < static_cast<int>(buffers_.size()); ++i) {
      Buffer& known = buffers_[static_cast<size_t>(i)];
      if (known.uses != 0 && known.address == address && known.bytes == bytes) {
        ++known.uses;
        return i;
      }
      if (known.uses == 0 && free < 0) free = i;
    }
    if (free < 0 || bytes > kMostBufferBytes) return -1;
    const iovec memory = {reinterpret_cast<void*>(address), bytes};
    const __u64 tag = 0;
    if (io_uring_register_buffers_update_tag(&ring_, static_cast<unsigned>(free), &memory, &tag, 1) != 1)
      return -1;  // more than this user may lock, for one
    buffers_[static_cast<size_t>(free)] = {address, bytes, 1};
    return free;
  }

  void detach_buffer(int number) noexcept override {
    if (number < 0 || --buffers_[static_cast<size_t>(number)].uses != 0) return;
    const iovec nothing = {nullptr, 0};
    const __u64 tag = 0;
    (void)io_uring_register_buffers_update_tag(&ring_, static_cast<unsigned>(number), &nothing, &tag, 1);
  }

  [[nodiscard]] int fd() const noexcept override { return ring_.ring_fd; }
  [[nodiscard]] uint32_t events() const noexcept override { return EPOLLIN; }
  [[nodiscard]] Engine engine() const noexcept override { return Engine::kUring; }
  [[nodiscard]] std::string describe() const override {
    return fmt::format(R"({{"kind": "io_uring", "entries": {}, "sqpoll": {}, "buffers": {}}})",
                       ring_.sq.ring_entries, settings_.sqpoll,
                       std::count_if(buffers_.begin(), buffers_.end(),
                                     [](const Buffer& buffer) { return buffer.uses != 0; }));
  }

 private:
  static constexpr unsigned kBuffers = 256;
  static constexpr uint64_t kMostBufferBytes = 1 << 30;  // the kernel's limit

  struct Buffer {
    uint64_t address = 0;
    uint64_t bytes = 0;
    uint32_t uses = 0;
  };

  // Whether the kernel knows the operations of push(). It can't be asked before Linux 5.6, which has them.
  [[nodiscard]] bool reads_and_writes() noexcept {
    io_uring_probe* const probe = io_uring_get_probe_ring(&ring_);
    const bool knows = probe != nullptr && io_uring_opcode_supported(probe, IORING_OP_READ) != 0 &&
                       io_uring_opcode_supported(probe, IORING_OP_WRITE) != 0;
    io_uring_free_probe(probe);
    return knows;
  }

  // The number if the piece lies in that buffer, else -1.
  [[nodiscard]] int buffer_of(int number, const iovec& piece) const noexcept {
    if (number < 0) return -1;
    const Buffer& buffer = buffers_[static_cast<size_t>(number)];
    const uint64_t before = reinterpret_cast<uint64_t>(piece.iov_base) - buffer.address;
    return before <= buffer.bytes && piece.iov_len <= buffer.bytes - before ? number : -1;
  }

  const Settings& settings_;
  FixedFiles files_;
  std::vector<Buffer> buffers_;
  io_uring ring_ = {};
  bool open_ = false;
  uint32_t unsubmitted_ = 0;
};

}  // namespace

std::unique_ptr<KernelQueue> KernelQueue::open_uring(const Settings& settings, std::string& reason) {
  auto ring = std::make_unique<Uring>(settings);
  if (const int error = ring->open(); error != 0) {
    reason = error == EOPNOTSUPP ? "it does not say that it reads and writes, as it does from Linux 5.6 on"
                                 : "io_uring_setup: " + errno_text(error);
    return nullptr;
  }
  return ring;
}

}  // namespace towline::posix

#else

namespace towline::posix {

std::unique_ptr<KernelQueue> KernelQueue::open_uring(const Settings&, std::string& reason) {
  reason = "this library was built without liburing";
  return nullptr;
}

}  // namespace towline::posix

#endif
