// Transfers that are made while their connection is still coming up.
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <string>
#include <vector>

#include "towline/towline.hpp"

namespace towline {
namespace {

using namespace std::chrono_literals;

constexpr size_t kBytes = 2 << 20;

// Two agents whose transfers wait for no connection. Memory that is not shared can't be mapped.
struct Pair {
  static constexpr const char* kConfig =
      "[tuning.shm]\npaths = \"mapped\"\n[tuning.connection]\nwait = \"0s\"\n";

  explicit Pair(const char* backends)
      : here("here", {.workers = 2, .listen = "none", .backends = backends, .config = kConfig}),
        there("there", {.workers = 2, .listen = "127.0.0.1:0", .backends = backends, .config = kConfig}),
        mine(kBytes, std::byte{1}),
        theirs(kBytes, std::byte{2}),
        my_region(here.register_memory(dram(mine.data(), mine.size()), {.access = Access::kAll})),
        their_region(there.register_memory(dram(theirs.data(), theirs.size()), {.access = Access::kAll})),
        peer(here.add_peer(there.metadata())) {}

  Transfer transfer(TransferOptions options) {
    return here.transfer(peer.block_list(Blocks::at(theirs.data(), kBytes)),
                         here.block_list(Blocks::at(mine.data(), kBytes)), options);
  }

  Agent here;
  Agent there;
  std::vector<std::byte> mine;
  std::vector<std::byte> theirs;
  Region my_region;
  Region their_region;
  Peer peer;
};

Status run(Transfer& transfer) {
  const Status posted = transfer.post();
  return posted == Status::kInProgress ? transfer.wait(20s) : posted;
}

class LateConnection : public ::testing::TestWithParam<uint32_t> {};

TEST_P(LateConnection, ABackendThatComesToNothingIsFollowedByTheNext) {
  Pair pair("shm,tcp");
  Transfer transfer = pair.transfer({.workers = GetParam()});
  ASSERT_NE(transfer.route().find("\"backend\":\"shm\""), std::string::npos) << transfer.route();
  ASSERT_EQ(run(transfer), Status::kOk) << transfer.route();
  EXPECT_EQ(std::memcmp(pair.mine.data(), pair.theirs.data(), kBytes), 0);
  const std::string route = transfer.route();
  EXPECT_NE(route.find("\"backend\":\"tcp\""), std::string::npos) << route;
  EXPECT_NE(route.find("\"shm: "), std::string::npos) << route;
  std::fill(pair.theirs.begin(), pair.theirs.end(), std::byte{3});
  EXPECT_EQ(run(transfer), Status::kOk);
  EXPECT_EQ(std::memcmp(pair.mine.data(), pair.theirs.data(), kBytes), 0);
}

TEST_P(LateConnection, TheOneThatWasAskedForIsNotReplaced) {
  Pair pair("shm,tcp");
  Transfer transfer = pair.transfer({.backend = "shm", .workers = GetParam()});
  EXPECT_EQ(run(transfer), Status::kUnsupported) << transfer.route();
  EXPECT_NE(transfer.route().find("\"backend\":\"shm\""), std::string::npos);
  EXPECT_EQ(run(transfer), Status::kUnsupported);
}

TEST_P(LateConnection, WithoutAnotherTheLastOnesErrorIsTheOutcome) {
  Pair pair("shm");
  Transfer transfer = pair.transfer({.workers = GetParam()});
  EXPECT_EQ(run(transfer), Status::kUnsupported) << transfer.route();
}

INSTANTIATE_TEST_SUITE_P(, LateConnection, ::testing::Values(1u, 2u),
                         [](const auto& test) { return "Threads" + std::to_string(test.param); });

}  // namespace
}  // namespace towline
