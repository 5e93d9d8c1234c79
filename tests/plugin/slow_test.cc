// Backends may take long to register or import memory. Workers, and everything else of the agent, go on meanwhile.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <future>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "slow_plugin.h"
#include "towline/towline.hpp"

namespace towline {
namespace {

using namespace std::chrono_literals;

class Slow : public ::testing::Test {
 protected:
  Slow() : library_(dlopen(SLOW_PLUGIN, RTLD_NOW)) {
    hold_ = reinterpret_cast<SlowHold* (*)()>(dlsym(library_, "slow_hold"))();
    for (size_t i = 0; i < memory_.size() / 2; ++i) memory_[i] = static_cast<std::byte>(i * 7);
    region_ = agent_->register_memory(dram(memory_.data(), memory_.size()), {.access = Access::kAll});
    self_ = agent_->add_peer(agent_->metadata());
  }
  ~Slow() override { let_go(); }

  void let_go() { reinterpret_cast<void (*)()>(dlsym(library_, "slow_let_go"))(); }

  // By the slow backend. Returns when the bytes are there.
  void move_slowly() {
    const Transfer move =
        agent_->transfer(agent_->block_list(Blocks::at(memory_.data(), 4096)),
                         self_->block_list(Blocks::at(memory_.data() + kHalf, 4096)), {.backend = "slow"});
    const Status posted = move.post();
    ASSERT_EQ(posted == Status::kInProgress ? move.wait(20s) : posted, Status::kOk) << last_error();
  }
  bool comes_in(uint32_t step) const {
    const auto until = std::chrono::steady_clock::now() + 20s;
    while ((hold_->inside.load() & step) == 0 && std::chrono::steady_clock::now() < until)
      (void)agent_->wait(1ms);
    return (hold_->inside.load() & step) != 0;
  }
  // Another transfer of the same worker, made, posted and ended, with its notice.
  void others_go_on() {
    const Transfer other = agent_->transfer(agent_->block_list(Blocks::at(memory_.data(), 8192)),
                                            self_->block_list(Blocks::at(memory_.data() + kHalf, 8192)),
                                            {.notice = "others", .timeout = 10s, .backend = "memory"});
    const Status posted = other.post();
    ASSERT_EQ(posted == Status::kInProgress ? other.wait(20s) : posted, Status::kOk) << last_error();
    Notice notice;
    const auto until = std::chrono::steady_clock::now() + 20s;
    Status received = Status::kAgain;
    while ((received = agent_->receive(notice)) == Status::kAgain && std::chrono::steady_clock::now() < until)
      (void)agent_->wait(10ms);
    ASSERT_EQ(received, Status::kOk);
    EXPECT_EQ(std::memcmp(memory_.data(), memory_.data() + kHalf, 8192), 0);
  }

  static constexpr size_t kHalf = 1 << 15;
  void* const library_;
  SlowHold* hold_ = nullptr;
  std::vector<std::byte> memory_ = std::vector<std::byte>(2 * kHalf);
  static AgentOptions options() {
    return {.listen = "none", .backends = "slow,memory", .config = "plugins = [\"" SLOW_PLUGIN "\"]\n"};
  }
  std::optional<Agent> agent_{std::in_place, "host", options()};
  std::optional<Region> region_;
  std::optional<Peer> self_;
};

TEST_F(Slow, OthersGoOnWhileAnImportBlocks) {
  hold_->held = kSlowImport;
  std::thread importing([this] { move_slowly(); });
  EXPECT_TRUE(comes_in(kSlowImport));
  others_go_on();
  EXPECT_NE(hold_->inside.load() & kSlowImport, 0u) << "the import had ended before";
  let_go();
  importing.join();
}

TEST_F(Slow, OthersGoOnWhileARegistrationBlocks) {
  hold_->held = kSlowAdd;
  std::vector<std::byte> more(4096);
  std::optional<Region> added;
  std::thread registering(
      [&] { added = agent_->register_memory(dram(more.data(), more.size()), {.access = Access::kAll}); });
  EXPECT_TRUE(comes_in(kSlowAdd));
  others_go_on();
  EXPECT_NE(hold_->inside.load() & kSlowAdd, 0u) << "the registration had ended before";
  let_go();
  registering.join();
}

TEST_F(Slow, ATransferIsNotMadeInTimeWhileItsImportBlocksAndClosingWaitsForThat) {
  hold_->held = kSlowImport;
  try {
    const Transfer move = agent_->transfer(agent_->block_list(Blocks::at(memory_.data(), 4096)),
                                           self_->block_list(Blocks::at(memory_.data() + kHalf, 4096)),
                                           {.timeout = 50ms, .backend = "slow"});
    ADD_FAILURE() << "it was made";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Status::kTimedOut) << error.what();
  }
  EXPECT_TRUE(comes_in(kSlowImport));
  others_go_on();
  const auto closing = std::async(std::launch::async, [this] {
    region_.reset();
    self_.reset();
    agent_.reset();
  });
  EXPECT_EQ(closing.wait_for(50ms), std::future_status::timeout) << "closing does not wait";
  let_go();
  closing.wait();
  EXPECT_EQ(hold_->inside.load(), 0u);
}

}  // namespace
}  // namespace towline
