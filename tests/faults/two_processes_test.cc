// Every transport between two real processes: each byte is looked at, by reading back what was written.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>

#include "eventually.h"
#include "victim.h"
#include "ways.h"

namespace towline::faults {
namespace {

using namespace std::chrono_literals;

constexpr uint64_t kPage = 4096;
// Fewer over networks that lose much.
const uint64_t kPages = std::getenv("RDMA_TEST_PAGES") != nullptr
                            ? std::strtoull(std::getenv("RDMA_TEST_PAGES"), nullptr, 10)
                            : 2048;

class TwoProcesses : public ::testing::TestWithParam<Way> {
 protected:
  TwoProcesses()
      : victim_(GetParam().victim()),
        agent_("here",
               {.listen = GetParam().listen, .backends = GetParam().backends, .config = GetParam().config}),
        memory_(2 * kPages * kPage),
        region_(agent_.register_memory(
            {.address = memory_.data(), .bytes = memory_.size(), .kind = GetParam().kind},
            {.access = Access::kAll})),
        peer_(agent_.connect(victim_.address())) {}

  [[nodiscard]] BlockList mine(uint64_t first_page, uint64_t block = kPage) const {
    return agent_.block_list(Blocks::at(memory_.data() + first_page * kPage, block, GetParam().kind)
                                 .repeat(kPages * kPage / block, block));
  }
  [[nodiscard]] BlockList theirs(uint64_t block = kPage, uint64_t shift = 0) const {
    return peer_.block_list(
        Blocks::at(reinterpret_cast<const void*>(victim_.memory() + shift), block, GetParam().kind)
            .repeat(kPages * kPage / block, block));
  }
  static Status run(const Transfer& transfer) {
    const Status posted = transfer.post();
    return posted == Status::kInProgress ? transfer.wait(30s) : posted;
  }
  void stamp(uint64_t seed) {
    std::mt19937_64 random(seed);
    auto* words = reinterpret_cast<uint64_t*>(memory_.data());
    for (uint64_t i = 0; i < kPages * kPage / 8; ++i) words[i] = random();
    std::memset(memory_.data() + kPages * kPage, 0, kPages * kPage);
  }
  [[nodiscard]] const std::byte* sent(uint64_t page) const { return memory_.data() + page * kPage; }
  [[nodiscard]] const std::byte* got(uint64_t page) const { return memory_.data() + (kPages + page) * kPage; }

  Victim victim_;
  Agent agent_;
  Memory memory_;
  Region region_;
  Peer peer_;
};

TEST_P(TwoProcesses, PagesGoWhereTheyArePickedAndComeBack) {
  std::vector<uint32_t> from(kPages);
  std::iota(from.begin(), from.end(), 0u);
  std::vector<uint32_t> to = from;
  for (uint32_t round = 0; round < 3; ++round) {
    stamp(round);
    std::shuffle(from.begin(), from.end(), std::mt19937(round));
    std::shuffle(to.begin(), to.end(), std::mt19937(round + 100));
    ASSERT_EQ(run(agent_.transfer(mine(0)[from], theirs()[to])), Status::kOk) << last_error();
    ASSERT_EQ(run(agent_.transfer(theirs()[to], mine(kPages)[to])), Status::kOk) << last_error();
    for (uint32_t i = 0; i < kPages; ++i)
      ASSERT_EQ(std::memcmp(got(to[i]), sent(from[i]), kPage), 0) << "round " << round << " page " << i;
  }
}

TEST_P(TwoProcesses, OddLengthsTouchNoOtherByte) {
  stamp(7);
  ASSERT_EQ(run(agent_.transfer(mine(0), theirs())), Status::kOk) << last_error();
  // Every other stretch of 777 bytes gets other bytes.
  constexpr uint64_t kOdd = 777;
  const uint64_t kOdds = kPages / 2;
  const auto picks = [&](const auto& place, const void* at) {
    return place.block_list(Blocks::at(at, kOdd, GetParam().kind).repeat(kOdds, 2 * kOdd));
  };
  for (uint64_t i = 0; i < kPages * kPage; ++i) memory_.data()[kPages * kPage + i] = ~memory_.data()[i];
  const auto* there = reinterpret_cast<const std::byte*>(victim_.memory());
  ASSERT_EQ(run(agent_.transfer(picks(agent_, got(0)), picks(peer_, there))), Status::kOk) << last_error();
  std::memset(memory_.data() + kPages * kPage, 0, kPages * kPage);
  ASSERT_EQ(run(agent_.transfer(theirs(), mine(kPages))), Status::kOk) << last_error();
  for (uint64_t i = 0; i < kPages * kPage; ++i) {
    const bool other = i < 2 * kOdd * kOdds && i % (2 * kOdd) < kOdd;
    ASSERT_EQ(got(0)[i], other ? ~sent(0)[i] : sent(0)[i]) << i;
  }
}

TEST_P(TwoProcesses, NoticesFollowTheBytesAndAreAnswered) {
  Notice notice;
  for (uint32_t round = 0; round < 20; ++round) {
    stamp(round + 50);
    const std::string text = "round " + std::to_string(round);
    ASSERT_EQ(run(agent_.transfer(mine(0), theirs(), {.notice = text})), Status::kOk) << last_error();
    ASSERT_TRUE(eventually([&] {
      (void)agent_.wait(10ms);
      return agent_.receive(notice) == Status::kOk && notice.text() == text;
    })) << text;
  }
  ASSERT_EQ(run(agent_.transfer(theirs(), mine(kPages))), Status::kOk) << last_error();
  EXPECT_EQ(std::memcmp(got(0), sent(0), kPages * kPage), 0);
}

TEST_P(TwoProcesses, WhatWasCancelledIsFencedAndTheNextOneMoves) {
  stamp(11);
  const Transfer move = agent_.transfer(mine(0), theirs());
  for (int round = 0; round < 10; ++round) {
    ASSERT_GE(static_cast<int>(move.post()), 0);
    for (int poll = 0; poll < round * 10; ++poll) (void)move.poll();
    move.cancel();
    const Status outcome = move.wait(30s);
    EXPECT_TRUE(outcome == Status::kCancelled || outcome == Status::kOk) << status_name(outcome);
    ASSERT_EQ(move.wait_fenced(Fence::kBoth, 30s), Status::kOk);
  }
  ASSERT_EQ(run(move), Status::kOk) << last_error();
  ASSERT_EQ(run(agent_.transfer(theirs(), mine(kPages))), Status::kOk) << last_error();
  EXPECT_EQ(std::memcmp(got(0), sent(0), kPages * kPage), 0);
}

INSTANTIATE_TEST_SUITE_P(All, TwoProcesses, ::testing::ValuesIn(ways()),
                         [](const auto& way) { return std::string(way.param.name); });

// What a kernel's RDMA does, and no model of it: in scripts/test-rdma's guest.
class OverVerbs : public TwoProcesses {};

// RDMA_TEST_LINK: the command of a shell that sets this side's link up or down, without that word.
TEST_P(OverVerbs, ALinkThatGoesDownAndComesUpLosesNoByte) {
  const char* const link = std::getenv("RDMA_TEST_LINK");
  ASSERT_NE(link, nullptr);
  const auto set_link = [&](const char* to) {
    ASSERT_EQ(std::system((std::string(link) + " " + to).c_str()), 0);
  };
  const auto rail_is = [&](const char* state) {
    return eventually([&] {
      (void)agent_.wait(10ms);
      return agent_.info().find(std::string("\"state\":\"") + state) != std::string::npos;
    });
  };
  stamp(3);
  ASSERT_EQ(run(agent_.transfer(mine(0), theirs())), Status::kOk) << last_error();
  stamp(4);
  const Transfer before = agent_.transfer(mine(0), theirs());
  const Transfer meanwhile = agent_.transfer(mine(0), theirs());
  const Transfer back = agent_.transfer(theirs(), mine(kPages));
  ASSERT_EQ(before.post(), Status::kInProgress);
  set_link("down");
  ASSERT_TRUE(rail_is("down")) << agent_.info();
  ASSERT_EQ(meanwhile.post(), Status::kInProgress);
  EXPECT_EQ(meanwhile.poll(), Status::kInProgress);
  set_link("up");
  ASSERT_TRUE(rail_is("up")) << agent_.info();
  EXPECT_EQ(before.wait(60s), Status::kOk) << last_error();
  EXPECT_EQ(meanwhile.wait(60s), Status::kOk) << last_error();
  ASSERT_EQ(run(back), Status::kOk) << last_error();
  EXPECT_EQ(std::memcmp(got(0), sent(0), kPages * kPage), 0);
}

// Under a limit that the victim's memory fits into, by a user whom it binds.
TEST_P(OverVerbs, TheLimitOfLockedMemoryIsNamed) {
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_MEMLOCK, &limit), 0);
  if (limit.rlim_cur == RLIM_INFINITY) GTEST_SKIP() << "the limit is not set";
  Memory more(limit.rlim_cur + kPage);
  try {
    const Region region =
        agent_.register_memory({.address = more.data(), .bytes = more.size()}, {.access = Access::kAll});
    (void)agent_.transfer(
        agent_.block_list(Blocks::at(more.data(), kPage)),
        peer_.block_list(Blocks::at(reinterpret_cast<const void*>(victim_.memory()), kPage)));
    ADD_FAILURE() << "it was registered";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find(std::to_string(limit.rlim_cur) + " bytes (ulimit -l"), std::string::npos) << text;
  }
  stamp(5);
  EXPECT_EQ(run(agent_.transfer(mine(0), theirs())), Status::kOk) << last_error();
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(OverVerbs);
INSTANTIATE_TEST_SUITE_P(Guest, OverVerbs, ::testing::ValuesIn([] {
                           std::vector<Way> verbs = ways();
                           std::erase_if(
                               verbs, [](const Way& way) { return std::string(way.name) != "rdma_named"; });
                           return verbs;
                         }()),
                         [](const auto& way) { return std::string(way.param.name); });

}  // namespace
}  // namespace towline::faults
