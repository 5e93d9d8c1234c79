// An agent that its own threads' callbacks end.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "towline/plan.h"
#include "towline/queue.h"
#include "towline/towline.hpp"

namespace towline {
namespace {

using namespace std::chrono_literals;

// A callback of this one's posts does something to its agent, on the thread that calls it.
class OwnThreadTest : public ::testing::Test {
 protected:
  using Action = int32_t (*)(towline_agent_t* agent);

  OwnThreadTest() {
    EXPECT_EQ(towline_agent_create("here", nullptr, &agent_), TOWLINE_OK) << last_error();
    EXPECT_EQ(towline_region_register(agent_, here_.data(), here_.size(), nullptr, &region_), TOWLINE_OK);
    EXPECT_EQ(towline_peer_connect(agent_, other_.address().c_str(), TOWLINE_FOREVER, &peer_), TOWLINE_OK);
    const Blocks from = Blocks::at(here_.data(), here_.size());
    const Blocks to = Blocks::at(there_.data(), there_.size());
    EXPECT_EQ(towline_block_list_create(agent_, nullptr, &from, sizeof from, 1, &mine_), TOWLINE_OK);
    EXPECT_EQ(towline_block_list_create(agent_, peer_, &to, sizeof to, 1, &theirs_), TOWLINE_OK);
    auto options = towline_plan_options_t{};
    options.struct_size = sizeof options;
    options.backend = "tcp";
    EXPECT_EQ(towline_plan_create(agent_, mine_, theirs_, &options, &plan_), TOWLINE_OK) << last_error();
  }

  // A post at whose end the action is done.
  void post(Action action) {
    action_ = action;
    auto options = towline_post_options_t{};
    options.struct_size = sizeof options;
    options.user_data = this;
    options.callback = [](const towline_completion_t* end) {
      auto& test = *static_cast<OwnThreadTest*>(end->user_data);
      test.caller_ = std::this_thread::get_id();
      test.answer_ = test.action_(test.agent_);
    };
    EXPECT_EQ(towline_plan_post(plan_, &options, nullptr), TOWLINE_IN_PROGRESS) << last_error();
  }
  // The action's status on one of the agent's own threads, which finds the post's end, since nobody polls.
  int32_t answer_to(Action action) {
    post(action);
    while (answer_ == kNoAnswer) std::this_thread::yield();
    EXPECT_NE(caller_, std::this_thread::get_id());
    return answer_;
  }
  // The status of the events of an agent that another thread ends.
  static int32_t end_of(towline_queue_t* events) {
    towline_event_t event = {};
    int32_t told = TOWLINE_OK;
    const auto until = std::chrono::steady_clock::now() + 20s;
    while (told != TOWLINE_CLOSED && std::chrono::steady_clock::now() < until)
      told = towline_queue_next(events, &event, 1, sizeof event);
    return told;
  }
  void release_all() {
    towline_plan_release(plan_);
    (void)towline_block_list_destroy(mine_);
    (void)towline_block_list_destroy(theirs_);
    towline_peer_release(peer_);
    EXPECT_EQ(towline_region_deregister(region_, TOWLINE_FOREVER), TOWLINE_OK);
  }

  static constexpr int32_t kNoAnswer = INT32_MAX;

  std::vector<std::byte> here_ = std::vector<std::byte>(64 << 20);
  std::vector<std::byte> there_ = std::vector<std::byte>(64 << 20);
  const Agent other_{"other"};
  const Region other_region_ =
      other_.register_memory(dram(there_.data(), there_.size()), {.access = Access::kWrite});
  towline_agent_t* agent_ = nullptr;
  towline_region_t* region_ = nullptr;
  towline_peer_t* peer_ = nullptr;
  towline_block_list_t* mine_ = nullptr;
  towline_block_list_t* theirs_ = nullptr;
  towline_plan_t* plan_ = nullptr;
  std::thread::id caller_;
  Action action_ = nullptr;
  std::atomic<int32_t> answer_ = kNoAnswer;
};

TEST_F(OwnThreadTest, ACallbackThatClosesItsAgentIsRefused) {
  EXPECT_EQ(answer_to(towline_agent_close), TOWLINE_BUSY);
  EXPECT_NE(towline_agent_incarnation(agent_)[0], 0);
  release_all();
  EXPECT_EQ(towline_agent_destroy(agent_), TOWLINE_OK);
}

TEST_F(OwnThreadTest, ACallbackOfAPostThatClosingEndsCannotCloseAsWell) {
  post(towline_agent_close);
  EXPECT_EQ(towline_agent_close(agent_), TOWLINE_OK);
  EXPECT_EQ(answer_.load(), TOWLINE_BUSY);
  release_all();
  EXPECT_EQ(towline_agent_destroy(agent_), TOWLINE_OK);
}

TEST_F(OwnThreadTest, ACallbackThatDestroysItsAgentLeavesItToAnotherThread) {
  towline_queue_t* events = nullptr;
  ASSERT_EQ(towline_agent_queue(agent_, &events), TOWLINE_OK);
  EXPECT_EQ(answer_to(towline_agent_destroy), TOWLINE_IN_PROGRESS);
  EXPECT_EQ(end_of(events), TOWLINE_CLOSED) << "it has ended";
  towline_queue_release(events);
  release_all();
}

// As Peer and Queue do in C++.
TEST_F(OwnThreadTest, AnAgentThatEndsInACallbackIsClosedWhileOthersShareItsHandle) {
  static detail::SharedAgent others;
  towline_queue_t* events = nullptr;
  ASSERT_EQ(towline_agent_queue(agent_, &events), TOWLINE_OK);
  const auto end_handle = [](towline_agent_t* agent) -> int32_t {
    const detail::AgentHandle handle{agent};
    others = handle.shared();
    return TOWLINE_OK;
  };
  EXPECT_EQ(answer_to(end_handle), TOWLINE_OK);
  EXPECT_EQ(end_of(events), TOWLINE_CLOSED) << "it is closed";
  towline_queue_release(events);
  release_all();
  others.reset();
}

}  // namespace
}  // namespace towline
