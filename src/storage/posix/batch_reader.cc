#include "storage/posix/batch_reader.h"

#include <sched.h>

namespace towline::posix {

void BatchReader::lock() noexcept {
  while (!try_lock()) sched_yield();
}

}  // namespace towline::posix

#ifdef TOWLINE_HAVE_LIBURING

#include <liburing.h>

#include <cerrno>
#include <mutex>

#include "storage/posix/fixed_files.h"

namespace towline::posix {

namespace {

class UringBatch final : public BatchReader {
 public:
  ~UringBatch() override {
    if (open_) io_uring_queue_exit(&ring_);
  }

  [[nodiscard]] bool open() noexcept {
    if (io_uring_queue_init(kOperations, &ring_, 0) < 0) return false;
    open_ = true;
    io_uring_ring_dontfork(&ring_);
    files_.open(ring_);
    return true;
  }

  int attach_file(int fd) override {
    const std::lock_guard guard(*this);
    if (!knows_files_) return -1;
    files_.attach(ring_, fd);
    return files_.slot_of(fd);
  }
  void detach_file(int fd) noexcept override {
    const std::lock_guard guard(*this);
    if (knows_files_) files_.detach(ring_, fd);
  }

  void add(int fd, int number, uint64_t memory, uint64_t bytes, uint64_t offset) noexcept override {
    io_uring_sqe* const entry = open_ ? io_uring_get_sqe(&ring_) : nullptr;
    if (entry == nullptr) {
      lost_ = true;
      return;
    }
    const bool numbered = number >= 0 && knows_files_;
    io_uring_prep_read(entry, numbered ? number : fd, reinterpret_cast<void*>(memory),
                       static_cast<unsigned>(bytes), offset);
    if (numbered) entry->flags |= IOSQE_FIXED_FILE;
    entry->rw_flags = RWF_NOWAIT;
    io_uring_sqe_set_data64(entry, bytes);
    ++added_;
  }

  bool run() noexcept override {
    bool all = !lost_;
    uint32_t taken = 0;
    uint32_t ended = 0;
    while (ended < added_) {
      const int result = io_uring_submit_and_wait(&ring_, added_ - ended);
      if (result > 0) taken += static_cast<uint32_t>(result);
      io_uring_cqe* entries[kOperations];
      const unsigned found = io_uring_peek_batch_cqe(&ring_, entries, kOperations);
      for (unsigned i = 0; i < found; ++i)
        all = all && entries[i]->res >= 0 && static_cast<uint64_t>(entries[i]->res) == entries[i]->user_data;
      io_uring_cq_advance(&ring_, found);
      ended += found;
      // If the kernel refuses while nothing is in flight, it will never accept the remaining entries.
      if (result < 0 && result != -EINTR && taken == ended) {
        start_anew();
        all = false;
        break;
      }
    }
    added_ = 0;
    lost_ = false;
    return all;
  }

 private:
  // Drops what is in the ring and has not been taken, and the files with it.
  void start_anew() noexcept {
    knows_files_ = false;
    io_uring_queue_exit(&ring_);
    open_ = io_uring_queue_init(kOperations, &ring_, 0) == 0;
  }

  FixedFiles files_;
  io_uring ring_ = {};
  bool open_ = false;
  bool knows_files_ = true;
  bool lost_ = false;
  uint32_t added_ = 0;
};

}  // namespace

std::unique_ptr<BatchReader> BatchReader::open() {
  auto batch = std::make_unique<UringBatch>();
  if (!batch->open()) return nullptr;
  return batch;
}

}  // namespace towline::posix

#else

namespace towline::posix {

std::unique_ptr<BatchReader> BatchReader::open() { return nullptr; }

}  // namespace towline::posix

#endif
