// Prices as applications see them: what route() says of a way becomes what was measured.
#include <gtest/gtest.h>

#include "transport_fixture.h"

namespace towline::conformance {
namespace {

struct PricedPath {
  const char* backends;
  const char* config;
  uint64_t bytes;  // one size class for each path: a backend's paths share its prices
};

class PricesTest : public ::testing::TestWithParam<PricedPath> {
 protected:
  static uint64_t number_after(const std::string& text, const std::string& key) {
    const size_t at = text.find(key);
    return at == std::string::npos ? 0 : std::stoull(text.substr(at + key.size()));
  }
  // The price of the transfer itself stands before those of the ways.
  static uint64_t samples(const Transfer& transfer) {
    const std::string route = transfer.route();
    return number_after(route.substr(route.find("\"price\":")), "\"samples\":");
  }
  static uint64_t price_ns(const Transfer& transfer) {
    const std::string route = transfer.route();
    return number_after(route.substr(route.find("\"price\":")), "\"ns\":");
  }

  static AgentOptions options() {
    return {.listen = "127.0.0.1:0", .backends = GetParam().backends, .config = GetParam().config};
  }
  const uint64_t bytes_ = GetParam().bytes;
  const Buffer mine_{bytes_, true};
  const Buffer theirs_{bytes_, true};
  const Agent left_{"left", options()};
  const Agent right_{"right", options()};
  const Region here_ = left_.register_memory(dram(mine_.data(), bytes_), {.access = Access::kAll});
  const Region there_ = right_.register_memory(dram(theirs_.data(), bytes_), {.access = Access::kAll});
  const Peer peer_ = left_.add_peer(right_.metadata());
  const BlockList ours_ = left_.block_list(Blocks::at(mine_.data(), bytes_));
  const BlockList at_peer_ = peer_.block_list(Blocks::at(theirs_.data(), bytes_));
};

INSTANTIATE_TEST_SUITE_P(All, PricesTest,
                         ::testing::Values(PricedPath{"memory", "", 16 << 10},  // posts that read no clock
                                           PricedPath{"memory", "[tuning.memory]\nframed = true\n", 64 << 10},
                                           PricedPath{"shm", "[tuning.shm]\npaths = \"mapped\"\n", 16 << 10},
                                           PricedPath{"tcp", "", 16 << 10}));

TEST_P(PricesTest, BecomeWhatWasMeasured) {
  const Transfer move = left_.transfer(ours_, at_peer_);
  const uint64_t before = samples(move);
  const auto began = std::chrono::steady_clock::now();
  constexpr uint64_t kPosts = 640;
  for (uint64_t i = 0; i < kPosts; ++i) {
    Status status = move.post();
    if (status == Status::kInProgress) status = move.wait(20s);
    ASSERT_EQ(status, Status::kOk);
  }
  const auto each_ns =
      static_cast<uint64_t>((std::chrono::steady_clock::now() - began) / std::chrono::nanoseconds{1}) /
      kPosts;
  constexpr uint64_t kFew = 50;  // prices that come from more reports are measured more seldom
  if (before < kFew) {
    EXPECT_GE(samples(move), before + 10) << move.route();
  }
  EXPECT_NE(move.route().find("\"from\":\"measured\""), std::string::npos) << move.route();
  // A promised price is one of that order.
  EXPECT_GT(price_ns(move), 0u);
  EXPECT_LT(price_ns(move), 20 * each_ns + 100'000) << move.route();
  EXPECT_NE(left_.info().find("\"prices\":[{"), std::string::npos) << left_.info();
}

TEST_P(PricesTest, ComeFromTransfersMadeForOnePostToo) {
  uint64_t before = 0;
  for (uint64_t i = 0; i < 130; ++i) {
    const Transfer move = left_.transfer(at_peer_, ours_);
    if (i == 0) before = samples(move);
    Status status = move.post();
    if (status == Status::kInProgress) status = move.wait(20s);
    ASSERT_EQ(status, Status::kOk);
    const uint64_t now = samples(move);
    EXPECT_TRUE(i < 129 || now >= before + 2) << move.route();
  }
}

}  // namespace
}  // namespace towline::conformance
