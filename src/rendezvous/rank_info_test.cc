#include "rendezvous/rank_info.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace towline::rendezvous {
namespace {

// Ranks that may use these processors, all of one machine.
std::vector<RankInfo> ranks_on(const std::vector<std::vector<uint32_t>>& processors) {
  std::vector<RankInfo> ranks;
  for (const auto& one : processors) {
    ranks.emplace_back();
    ranks.back().host.boot_id = Id{1, 2};
    ranks.back().processors = one;
  }
  return ranks;
}

TEST(Crowded, IsWhoOutnumbersTheProcessors) {
  EXPECT_FALSE(crowded(ranks_on({{0, 1}, {0, 1}}), 0));
  EXPECT_TRUE(crowded(ranks_on({{0, 1}, {0, 1}, {0, 1}}), 0));
}

TEST(Crowded, AreNotThoseBoundToOneProcessorEach) {
  EXPECT_FALSE(crowded(ranks_on({{0}, {1}}), 0));
  EXPECT_FALSE(crowded(ranks_on({{0, 1}, {2, 3}, {0, 1}, {2, 3}}), 0));
}

TEST(Crowded, AreThoseBoundToTheSameOne) {
  EXPECT_TRUE(crowded(ranks_on({{3}, {3}}), 0));
  EXPECT_TRUE(crowded(ranks_on({{0, 1, 2, 3}, {2, 3}, {3}, {2}}), 0));
}

TEST(Crowded, IsEachMachineForItself) {
  std::vector<RankInfo> ranks = ranks_on({{0}, {0}, {0}});
  ranks[2].host.boot_id = Id{3, 4};
  EXPECT_TRUE(crowded(ranks, 0));
  EXPECT_FALSE(crowded(ranks, 2));
}

TEST(RankInfo, ComesBackAsItWasSent) {
  RankInfo info = this_rank();
  info.endpoints = {"10.0.0.1:7"};
  const std::vector<uint8_t> bytes = encode(info);
  const RankInfo back = decode(bytes, 0);
  EXPECT_FALSE(back.processors.empty());
  EXPECT_EQ(back.processors, info.processors);
  EXPECT_EQ(back.endpoints, info.endpoints);
  for (size_t length = 0; length < bytes.size(); ++length)
    EXPECT_THROW((void)decode({bytes.data(), length}, 0), Error) << length;
}

}  // namespace
}  // namespace towline::rendezvous
