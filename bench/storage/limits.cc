// Bare limits: a loop of pread or pwrite, four threads of it, and an io_uring batch. Each knows the lists in
// advance, checks no bounds and keeps no account.
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#ifdef BENCH_HAS_LIBURING
#include <liburing.h>
#endif

#include "store.h"

namespace bench {
namespace {

struct Piece {
  std::byte* memory;
  std::size_t bytes;
  off_t offset;
};

[[noreturn]] void fail(int error) { throw std::runtime_error(std::string("I/O: ") + std::strerror(error)); }

void move(int fd, bool write, const Piece& piece) {
  const ssize_t moved = write ? ::pwrite(fd, piece.memory, piece.bytes, piece.offset)
                              : ::pread(fd, piece.memory, piece.bytes, piece.offset);
  if (moved != static_cast<ssize_t>(piece.bytes)) fail(moved < 0 ? errno : EIO);
}

class Pieces : public StoreContender {
 public:
  using StoreContender::StoreContender;

 protected:
  void prepare_cell() override {
    pieces_.clear();
    for (std::size_t i = 0; i < cell().count; ++i) {
      pieces_.push_back({store().memory() + lists().local[i] * cell().block, cell().block,
                         static_cast<off_t>(lists().remote[i] * cell().block)});
    }
  }
  bool write() const { return cell().op == Op::kWrite; }

  std::vector<Piece> pieces_;
};

class Pread final : public Pieces {
 public:
  explicit Pread(Store& store) : Pieces("pread", store) {}

 private:
  void run_once() override {
    for (const Piece& piece : pieces_) move(store().fd(), write(), piece);
  }
};

// The cost of RWF_NOWAIT: the same loop with preadv2 and RWF_NOWAIT, and pread for parts that are no longer
// cached. Shown beside the others; not a limit.
class Nowait final : public Pieces {
 public:
  explicit Nowait(Store& store) : Pieces("nowait", store) {}

 private:
  void run_once() override {
    for (const Piece& piece : pieces_) {
      const iovec memory = {piece.memory, piece.bytes};
      const bool there = !write() && ::preadv2(store().fd(), &memory, 1, piece.offset, RWF_NOWAIT) ==
                                         static_cast<ssize_t>(piece.bytes);
      if (!there) move(store().fd(), write(), piece);
    }
  }
};

class Pread4 final : public Pieces {
 public:
  explicit Pread4(Store& store) : Pieces("pread4", store) {}
  ~Pread4() override {
    ending_ = true;
    if (!threads_.empty()) begin_.arrive_and_wait();
  }
  void setup() override {
    for (std::size_t index = 0; index < kThreads; ++index)
      threads_.emplace_back([this, index] { work(index); });
  }

 private:
  static constexpr std::size_t kThreads = 4;

  // Fewer blocks than threads are cut.
  void prepare_cell() override {
    Pieces::prepare_cell();
    if (cell().count >= kThreads || cell().block < kThreads * 4096) return;
    std::vector<Piece> parts;
    const std::size_t bytes = cell().block / kThreads;
    for (const Piece& piece : pieces_) {
      for (std::size_t i = 0; i < kThreads; ++i)
        parts.push_back({piece.memory + i * bytes, bytes, piece.offset + static_cast<off_t>(i * bytes)});
    }
    pieces_ = std::move(parts);
  }
  void run_once() override {
    begin_.arrive_and_wait();
    end_.arrive_and_wait();
    if (failed_) fail(EIO);
  }
  void work(std::size_t index) {
    for (;;) {
      begin_.arrive_and_wait();
      if (ending_) return;
      try {
        for (std::size_t i = pieces_.size() * index / kThreads; i < pieces_.size() * (index + 1) / kThreads;
             ++i)
          move(store().fd(), write(), pieces_[i]);
      } catch (const std::exception&) {
        failed_ = true;
      }
      end_.arrive_and_wait();
    }
  }

  std::atomic<bool> ending_{false};
  std::atomic<bool> failed_{false};
  std::barrier<> begin_{kThreads + 1};
  std::barrier<> end_{kThreads + 1};
  std::vector<std::jthread> threads_;  // last: they end first
};

#ifdef BENCH_HAS_LIBURING

// Keeps up to 256 blocks in the kernel.
class Uring final : public Pieces {
 public:
  explicit Uring(Store& store) : Pieces("uring", store) {}
  ~Uring() override {
    if (open_) io_uring_queue_exit(&ring_);
  }
  void setup() override {
    if (const int error = io_uring_queue_init(kDepth, &ring_, 0); error < 0) fail(-error);
    open_ = true;
  }

 private:
  static constexpr unsigned kDepth = 256;

  void run_once() override {
    std::size_t given = 0;
    std::size_t ended = 0;
    while (ended < pieces_.size()) {
      while (given < pieces_.size() && given - ended < kDepth) {
        io_uring_sqe* entry = io_uring_get_sqe(&ring_);
        if (entry == nullptr) break;
        const Piece& piece = pieces_[given++];
        const auto bytes = static_cast<unsigned>(piece.bytes);
        const auto at = static_cast<__u64>(piece.offset);
        if (write())
          io_uring_prep_write(entry, store().fd(), piece.memory, bytes, at);
        else
          io_uring_prep_read(entry, store().fd(), piece.memory, bytes, at);
        io_uring_sqe_set_data64(entry, piece.bytes);
      }
      if (const int taken = io_uring_submit_and_wait(&ring_, 1); taken < 0 && taken != -EINTR) fail(-taken);
      io_uring_cqe* entries[64];
      const unsigned found = io_uring_peek_batch_cqe(&ring_, entries, 64);
      for (unsigned i = 0; i < found; ++i) {
        if (entries[i]->res != static_cast<int>(entries[i]->user_data))
          fail(entries[i]->res < 0 ? -entries[i]->res : EIO);
      }
      io_uring_cq_advance(&ring_, found);
      ended += found;
    }
  }

  io_uring ring_ = {};
  bool open_ = false;
};

#endif

}  // namespace

void add_limits(Store& store, Contenders& out) {
  out.push_back(std::make_unique<Pread>(store));
  out.push_back(std::make_unique<Nowait>(store));
  out.push_back(std::make_unique<Pread4>(store));
#ifdef BENCH_HAS_LIBURING
  out.push_back(std::make_unique<Uring>(store));
#endif
}

}  // namespace bench
