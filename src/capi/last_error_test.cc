// Every failure leaves a sentence of its own, on the data path too.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "towline/queue.h"
#include "towline/towline.hpp"

namespace towline {
namespace {

using namespace std::chrono_literals;

constexpr size_t kBlock = 4096;
constexpr size_t kBlocks = 16;

// An earlier failure of this thread, which no later one may show.
void fail_before() {
  EXPECT_EQ(towline_agent_create(nullptr, nullptr, nullptr), TOWLINE_INVALID_ARGUMENT);
  EXPECT_NE(last_error().find("towline_agent_create"), std::string_view::npos);
}

void expect_said(std::initializer_list<const char*> parts) {
  for (const char* part : parts)
    EXPECT_NE(last_error().find(part), std::string_view::npos) << last_error() << "\nlacks: " << part;
}

// The left agent makes progress in this thread's calls alone, so that a post stays in flight between two of them.
class LastError : public ::testing::Test {
 protected:
  explicit LastError(const char* backends = "tcp")
      : left_("left", {.progress = Progress::kCaller, .listen = "127.0.0.1:0", .backends = backends}),
        right_(std::make_unique<Agent>(
            "right", AgentOptions{.listen = "127.0.0.1:0", .backends = backends, .default_timeout = 20s})),
        here_(left_.register_memory(dram(mine_.data(), mine_.size()))),
        there_(right_->register_memory(dram(theirs_.data(), theirs_.size()), {.access = Access::kAll})),
        peer_(left_.add_peer(right_->metadata())),
        from_(left_.block_list(blocks_of(mine_.data(), mine_.size(), kBlock))),
        to_(peer_.block_list(blocks_of(theirs_.data(), theirs_.size(), kBlock))) {}

  std::vector<char> mine_ = std::vector<char>(kBlock * kBlocks);
  std::vector<char> theirs_ = std::vector<char>(kBlock * kBlocks);
  Agent left_;
  std::unique_ptr<Agent> right_;
  Region here_;
  Region there_;
  Peer peer_;
  BlockList from_;
  BlockList to_;
};

class LastErrorInMemory : public LastError {
 protected:
  LastErrorInMemory() : LastError("memory") {}
};

TEST_F(LastError, of_a_post_that_is_in_flight_says_so) {
  const Transfer move = left_.transfer(from_, to_);
  ASSERT_EQ(move.post(), Status::kInProgress);
  fail_before();
  EXPECT_EQ(move.post(), Status::kBusy);
  expect_said({"towline_transfer_post: ",
               "a write of 16 blocks to peer 'right' over tcp was refused: it is in flight"});
  fail_before();
  EXPECT_EQ(towline_transfer_set_notice(move.native(), "x", 1), TOWLINE_BUSY);
  expect_said({"towline_transfer_set_notice: still in flight or in use"});
  EXPECT_EQ(move.wait(20s), Status::kOk) << last_error();
}

// The blob would silently be without it.
TEST_F(LastErrorInMemory, of_metadata_names_the_agent_whose_region_it_is) {
  towline_region_t* const theirs[] = {there_.native()};
  size_t needed = 0;
  fail_before();
  EXPECT_EQ(towline_agent_metadata(left_.native(), theirs, 1, nullptr, 0, &needed), TOWLINE_INVALID_ARGUMENT);
  expect_said({"towline_agent_metadata: ", "regions[0] belongs to agent 'right', not to agent 'left'"});
}

TEST_F(LastError, of_a_wait_is_the_transfers_own) {
  const Transfer move = left_.transfer(from_, to_);
  ASSERT_EQ(move.post(), Status::kInProgress);
  fail_before();
  EXPECT_EQ(move.wait(0s), Status::kNotYet) << "which is no failure";
  EXPECT_EQ(move.cancel(), Status::kOk);
  EXPECT_EQ(move.wait(20s), Status::kCancelled);
  expect_said({"towline_transfer_wait: writing 16 blocks (65536 bytes) to peer 'right' over tcp: cancelled"});
  fail_before();
  EXPECT_EQ(move.poll(), Status::kCancelled);
  expect_said({"towline_transfer_poll: ", "cancelled"});
}

TEST_F(LastError, of_a_wait_for_a_lost_peer_says_what_became_of_its_connection) {
  const Transfer move = left_.transfer(from_, to_);
  ASSERT_EQ(move.post(), Status::kInProgress);
  ASSERT_EQ(move.wait(20s), Status::kOk) << last_error();
  right_.reset();
  fail_before();
  ASSERT_EQ(move.post(), Status::kInProgress);
  EXPECT_EQ(move.wait(20s), Status::kPeerLost);
  expect_said({"towline_transfer_wait: ", "to peer 'right' over tcp: peer lost ("});
}

TEST_F(LastErrorInMemory, of_a_post_to_a_peer_that_is_gone_names_it) {
  const Transfer move = left_.transfer(from_, to_);
  const Plan plan = left_.plan(from_, to_);
  ASSERT_EQ(move.post(), Status::kOk) << last_error();
  right_.reset();
  const auto until = std::chrono::steady_clock::now() + 20s;
  Status status = Status::kOk;
  while (!is_error(status) && std::chrono::steady_clock::now() < until) {
    fail_before();
    status = move.post();
    if (status == Status::kInProgress) status = move.wait(20s);
  }
  EXPECT_TRUE(is_error(status)) << status_name(status);
  fail_before();
  status = move.post();
  EXPECT_TRUE(is_error(status)) << status_name(status);
  expect_said({"towline_transfer_post: a write of 16 blocks to peer 'right' over memory was refused: "});
  fail_before();
  EXPECT_TRUE(is_error(plan.post().poll()));
  expect_said({"towline_plan_post: a write of 16 blocks to peer 'right' over memory was refused: "});
}

TEST(LastErrorOfNull, names_the_call_and_what_is_null) {
  const auto refused = [](int32_t status, const char* sentence) {
    EXPECT_EQ(status, TOWLINE_INVALID_ARGUMENT) << sentence;
    EXPECT_EQ(last_error(), sentence);
  };
  towline_notice_t notice = {};
  refused(towline_transfer_post(nullptr), "towline_transfer_post: transfer is null");
  refused(towline_transfer_poll(nullptr), "towline_transfer_poll: transfer is null");
  refused(towline_transfer_wait(nullptr, 0), "towline_transfer_wait: transfer is null");
  refused(towline_transfer_wait_fenced(nullptr, 1, 0), "towline_transfer_wait_fenced: transfer is null");
  refused(towline_transfer_cancel(nullptr), "towline_transfer_cancel: transfer is null");
  refused(towline_plan_post(nullptr, nullptr, nullptr), "towline_plan_post: plan is null");
  refused(towline_post_poll(nullptr), "towline_post_poll: post is null");
  refused(towline_post_wait(nullptr, 0), "towline_post_wait: post is null");
  refused(towline_group_close(nullptr), "towline_group_close: group is null");
  refused(towline_group_wait(nullptr, 0), "towline_group_wait: group is null");
  refused(towline_agent_progress(nullptr), "towline_agent_progress: agent is null");
  refused(towline_agent_wait(nullptr, 0), "towline_agent_wait: agent is null");
  refused(towline_completions_pull(nullptr, nullptr, 0, 0), "towline_completions_pull: agent is null");
  refused(towline_notice_send(nullptr, nullptr, 0), "towline_notice_send: peer is null");
  refused(towline_notice_receive(nullptr, &notice, sizeof notice), "towline_notice_receive: agent is null");
  refused(towline_counter_wait(nullptr, 0, 0), "towline_counter_wait: counter is null");
  refused(towline_queue_wait(nullptr, 0), "towline_queue_wait: queue is null");
  refused(towline_queue_next(nullptr, nullptr, 0, sizeof(towline_event_t)),
          "towline_queue_next: queue is null");
}

// In a process of its own: the limit counts every thread of its user, and spares root.
TEST(LastErrorOfThreads, ASystemThatGivesNoneIsNamedWithItsLimits) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (getuid() == 0 && setuid(65534) != 0) _exit(2);
    const rlimit none = {1, 1};
    if (setrlimit(RLIMIT_NPROC, &none) != 0) _exit(3);
    towline_agent_t* agent = nullptr;
    const int32_t status = towline_agent_create("crowded", nullptr, &agent);
    const bool named = last_error().find("ulimit -u") != std::string_view::npos;
    if (!named) (void)dprintf(STDERR_FILENO, "%d: %s\n", status, std::string(last_error()).c_str());
    _exit(status == TOWLINE_LIMIT_EXCEEDED && named ? EXIT_SUCCESS : EXIT_FAILURE);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace towline
