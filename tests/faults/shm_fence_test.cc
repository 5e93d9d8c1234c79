// The remote fence between processes of one host: the thread of the owner that serves a connection stands still, the
// writer gives that connection up, and another thread of the owner serves a new one. Bytes that the first connection still
// holds for the owner may land until the owner says that this connection has ended, and not later.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/os/unique_fd.h"
#include "eventually.h"
#include "shm_workers.h"
#include "support/directed.h"
#include "towline/towline.hpp"

namespace towline::faults {
namespace {

using namespace std::chrono_literals;

constexpr uint64_t kFenceBytes = uint64_t{16} << 20;
constexpr uint64_t kFenceBlock = 256 << 10;
constexpr uint32_t kStuckWorker = 1;  // worker 0 also accepts connections

struct HeldWay {
  const char* name;
  const char* backends;
  const char* config;
  Kind kind;
};

const HeldWay kHeldWays[] = {
    {"ring", "shm", "[tuning.shm]\npaths = \"ring\"\n", Kind::kDram},
    // Memory that may not be mapped is copied by the owner's GPU, out of host memory that the writer has filled.
    {"gpu_through_host", "cuda", "plugins = [\"" TOWLINE_CUDA_FAKE "\"]\n", Kind::kVram},
};
void PrintTo(const HeldWay& way, std::ostream* out) { *out << way.name; }

std::string config_of(const HeldWay& way) {
  return std::string("workers = 2\n") + way.config +
         "[peer]\nheartbeat = \"50ms\"\nsuspect = \"150ms\"\nlost = \"600ms\"\n";
}

// Another process, which is told by single bytes: 's' a worker stands still from now on, 'g' it goes on.
class Owner {
 public:
  explicit Owner(const HeldWay& way) {
    int down[2];
    int up[2];
    if (pipe2(down, O_CLOEXEC) != 0 || pipe2(up, O_CLOEXEC) != 0) throw std::runtime_error("pipe");
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      close(down[1]);
      close(up[0]);
      int code = 1;
      try {
        code = serve(way, down[0], up[1]);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "owner: %s\n", error.what());
      }
      _exit(code);
    }
    close(down[0]);
    close(up[1]);
    to_.reset(down[1]);
    from_.reset(up[0]);
    hear(&address_, sizeof address_);
    uint64_t bytes = 0;
    hear(&bytes, sizeof bytes);
    metadata_.resize(bytes);
    hear(metadata_.data(), bytes);
  }
  Owner(const Owner&) = delete;
  Owner& operator=(const Owner&) = delete;
  ~Owner() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

  void tell(char what) {
    ASSERT_EQ(write(to_.get(), &what, 1), 1);
    char done = 0;
    hear(&done, 1);
  }
  [[nodiscard]] const std::vector<std::byte>& metadata() const { return metadata_; }
  [[nodiscard]] const void* memory() const { return reinterpret_cast<const void*>(address_); }

 private:
  static int serve(const HeldWay& way, int from, int to) {
    const Agent agent("owner", {.listen = "none", .backends = way.backends, .config = config_of(way)});
    std::vector<std::byte> memory(kFenceBytes);
    const Region region =
        agent.register_memory({.address = memory.data(), .bytes = kFenceBytes, .kind = way.kind},
                              {.access = Access::kAll, .guarded = true});
    const auto address = reinterpret_cast<uint64_t>(memory.data());
    const std::vector<std::byte> blob = agent.metadata();
    const uint64_t bytes = blob.size();
    if (write(to, &address, sizeof address) != sizeof address ||
        write(to, &bytes, sizeof bytes) != sizeof bytes ||
        write(to, blob.data(), bytes) != static_cast<ssize_t>(bytes))
      return 2;
    char what = 0;
    while (read(from, &what, 1) == 1) {
      (what == 's' ? hold_worker : release_worker)(agent.native(), kStuckWorker);
      if (write(to, &what, 1) != 1) return 3;
    }
    return 0;
  }
  void hear(void* data, size_t bytes) {
    auto* at = static_cast<std::byte*>(data);
    while (bytes != 0) {
      const ssize_t count = read(from_.get(), at, bytes);
      if (count <= 0) throw std::runtime_error("the owner ended");
      at += count;
      bytes -= static_cast<size_t>(count);
    }
  }

  pid_t pid_ = -1;
  UniqueFd to_;
  UniqueFd from_;
  uint64_t address_ = 0;
  std::vector<std::byte> metadata_;
};

class HeldBack : public ::testing::TestWithParam<HeldWay> {
 protected:
  static Status run(const Transfer& transfer) {
    const Status posted = transfer.post();
    return posted == Status::kInProgress ? transfer.wait(20s) : posted;
  }
  // Goes by that worker, to the owner's worker of the same number.
  [[nodiscard]] Transfer move(uint32_t worker, Op op, const std::vector<std::byte>& memory) const {
    std::optional<Transfer> made;
    while (!made) {
      std::thread([&] {
        if (worker_of_this_thread(writer_.native()) != worker) return;
        made.emplace(directed(writer_, op,
                              writer_.block_list(blocks_of(memory.data(), kFenceBytes, kFenceBlock)),
                              peer_.block_list(Blocks::at(owner_.memory(), kFenceBlock, GetParam().kind)
                                                   .repeat(kFenceBytes / kFenceBlock, kFenceBlock)),
                              {.timeout = 20s}));
      }).join();
    }
    return std::move(*made);
  }

  Owner owner_{GetParam()};  // before this process has threads
  Agent writer_{"writer",
                {.listen = "none", .backends = GetParam().backends, .config = config_of(GetParam())}};
  std::vector<std::byte> old_ = std::vector<std::byte>(kFenceBytes, std::byte{0xaa});
  std::vector<std::byte> fresh_ = std::vector<std::byte>(kFenceBytes, std::byte{0xbb});
  Region old_region_ = writer_.register_memory(dram(old_.data(), kFenceBytes), {.access = Access::kAll});
  Region fresh_region_ = writer_.register_memory(dram(fresh_.data(), kFenceBytes), {.access = Access::kAll});
  Peer peer_ = writer_.add_peer(owner_.metadata());
};

TEST_P(HeldBack, WhatTheOwnerHasNotTakenYetDoesNotLandOnceItIsFenced) {
  const Transfer old = move(kStuckWorker, Op::write, old_);
  const Transfer fresh = move(0, Op::write, fresh_);
  ASSERT_EQ(run(old), Status::kOk) << last_error();
  ASSERT_EQ(run(fresh), Status::kOk) << last_error();

  owner_.tell('s');
  ASSERT_EQ(old.post(), Status::kInProgress);
  ASSERT_EQ(old.wait(15s), Status::kPeerLost) << last_error();
  ASSERT_TRUE(eventually([&] { return old.wait_fenced(Fence::kLocal, 0s) == Status::kOk; }, 5s));
  // The other connection works, and the owner has been asked over it; that tells nothing about the old one.
  ASSERT_EQ(run(fresh), Status::kOk) << last_error();
  EXPECT_EQ(old.wait_fenced(Fence::kRemote, 1s), Status::kNotYet) << "the owner still holds its bytes";

  owner_.tell('g');
  ASSERT_EQ(old.wait_fenced(Fence::kBoth, 15s), Status::kOk) << last_error();
  ASSERT_EQ(run(fresh), Status::kOk) << last_error();
  // By the worker that stood still: what it still has of the old connection comes before the answer.
  const Transfer back = move(kStuckWorker, Op::read, old_);
  std::fill(old_.begin(), old_.end(), std::byte{0});
  ASSERT_EQ(run(back), Status::kOk) << last_error();
  EXPECT_EQ(std::count(old_.begin(), old_.end(), std::byte{0xbb}), static_cast<ptrdiff_t>(kFenceBytes))
      << "bytes of the WRITE that was lost landed after its fence";
}

INSTANTIATE_TEST_SUITE_P(Ways, HeldBack, ::testing::ValuesIn(kHeldWays),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace towline::faults
