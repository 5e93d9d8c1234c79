// Allocations that fail, one after another, in everything that two agents do with each other. Each may fail the call
// or the connection that needed the memory. The process lives on, and a third agent is served as before.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "support/directed.h"
#include "support/failing_new.h"
#include "towline/towline.hpp"

namespace towline::faults {
namespace {

using namespace std::chrono_literals;

constexpr size_t kBytes = 64 << 10;
constexpr int kMostAllocations = 20'000;
constexpr int kFewAllocations = 100;  // two agents that meet make many times as many

struct Path {
  const char* name;
  const char* backends;
  const char* config;
  bool shared;
  const char* complete = "";  // in the route of a transfer whose connection needs nothing more
};

void PrintTo(const Path& path, std::ostream* out) { *out << path.name; }

// An agent with memory.
class Party {
 public:
  Party(const std::string& name, const Path& path)
      : agent_(name, {.backends = path.backends,
                      .config = std::string("[log]\nlevel = \"off\"\n") + path.config,
                      .default_timeout = 300ms}) {
    if (path.shared)
      shared_.emplace(kBytes);
    else
      plain_.resize(kBytes);
    region_.emplace(agent_.register_memory(dram(memory()), {.access = Access::kAll}));
  }

  [[nodiscard]] Agent& agent() noexcept { return agent_; }
  [[nodiscard]] std::span<std::byte> memory() noexcept {
    if (shared_) return {reinterpret_cast<std::byte*>(shared_->data()), kBytes};
    return plain_;
  }
  [[nodiscard]] Blocks blocks() { return Blocks::at(memory().data(), kBytes); }
  void deregister() { region_.reset(); }

 private:
  Agent agent_;
  std::optional<Memory> shared_;
  std::vector<std::byte> plain_;
  std::optional<Region> region_;
};

class WithoutMemory : public ::testing::TestWithParam<Path> {
 protected:
  // The good connection needs no memory later: its further sockets come up after the first bytes.
  void SetUp() override {
    std::string route;
    const auto give_up = std::chrono::steady_clock::now() + 20s;
    do {
      ASSERT_LT(std::chrono::steady_clock::now(), give_up) << route;
      Transfer transfer =
          directed(survivor_.agent(), Op::write, survivor_.agent().block_list(survivor_.blocks()),
                   good_peer_->block_list(good_.blocks()));
      const Status posted = transfer.post();
      ASSERT_EQ(posted == Status::kInProgress ? transfer.wait(20s) : posted, Status::kOk);
      route = transfer.route();
    } while (route.find(GetParam().complete) == std::string::npos);
    expect_good_peer_served(-1);  // its peer has seen the last one, too
  }

  static Status move(Party& here, Peer& peer, Party& there, Op op, std::string_view notice,
                     std::chrono::nanoseconds timeout = 300ms) {
    Transfer transfer = directed(here.agent(), op, here.agent().block_list(here.blocks()),
                                 peer.block_list(there.blocks()), {.notice = notice, .timeout = timeout});
    const Status posted = transfer.post();
    return posted == Status::kInProgress ? transfer.wait(timeout) : posted;
  }

  // Both meet, move bytes both ways with notices, and part. What fails is left out.
  void live_together(Party& other) {
    const auto attempt = [](auto&& work) {
      try {
        work();
      } catch (const std::exception&) {  // Error, or the test's own allocation
      }
    };
    attempt([&] {
      Peer peer = survivor_.agent().connect(other.agent().address(), 300ms);
      attempt([&] { (void)move(survivor_, peer, other, Op::write, "written"); });
      attempt([&] { (void)move(survivor_, peer, other, Op::read, "read"); });
      attempt([&] { (void)peer.send("hello"); });
      attempt([&] {
        Peer back = other.agent().connect(survivor_.agent().address(), 300ms);
        (void)move(other, back, survivor_, Op::write, "back");
        (void)back.send("hello");
      });
      attempt([&] { other.deregister(); });
      attempt([&] { peer.refresh(300ms); });
      attempt([&] {
        Notice notice;
        while (survivor_.agent().receive(notice) == Status::kOk) {
        }
      });
    });
  }

  // With the same connection from beginning to end.
  void expect_good_peer_served(int round) {
    Notice notice;
    while (good_.agent().receive(notice) == Status::kOk) {
    }
    const Status status = move(survivor_, *good_peer_, good_, Op::write, "good", 20s);
    ASSERT_EQ(status, Status::kOk) << "after the failure of allocation " << round;
  }

  // False: no allocation was left to fail.
  bool round(int after, int times) {
    std::optional<Party> other(std::in_place, "other", GetParam());
    support::fail_allocations_anywhere(after, times);
    live_together(*other);
    const bool failed = support::stop_failing_anywhere();
    expect_good_peer_served(after);
    other.reset();
    return failed;
  }

  void sweep(int times, int step) {
    int after = 0;
    while (after < kMostAllocations && !HasFatalFailure() && round(after, times)) after += step;
    ASSERT_LT(after, kMostAllocations);
    EXPECT_GT(after, kFewAllocations) << "allocations of the library do not fail here";
    std::printf("%s: %d allocations\n", GetParam().name, after);
  }

  Party survivor_{"survivor", GetParam()};
  Party good_{"good", GetParam()};
  std::optional<Peer> good_peer_{survivor_.agent().connect(good_.agent().address())};
};

TEST_P(WithoutMemory, OneFailureEndsWhatNeededTheMemoryAndNothingElse) { sweep(1, 2); }

// So that what answers the first failure fails as well.
TEST_P(WithoutMemory, FailuresInARowEndWhatNeededTheMemoryAndNothingElse) { sweep(6, 5); }

constexpr Path kPaths[] = {
    {"memory", "memory", "", false},
    {"mapped", "shm", "[tuning.shm]\npaths = \"mapped\"\n", true},
    {"ring", "shm", "[tuning.shm]\npaths = \"ring\"\n", false},
    {"tcp", "tcp", "[tuning.tcp]\nsockets = 4\nbulk_bytes = 1\n", false, "\"lanes\":4"},
#ifdef TOWLINE_TEST_KEY
    {"tcp_secured", "tcp",
     "[secure]\nkey_file = \"" TOWLINE_TEST_KEY "\"\n[tuning.tcp]\nsockets = 4\nbulk_bytes = 1\n", false,
     "\"lanes\":4"},
#endif
};
INSTANTIATE_TEST_SUITE_P(Paths, WithoutMemory, ::testing::ValuesIn(kPaths),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace towline::faults
