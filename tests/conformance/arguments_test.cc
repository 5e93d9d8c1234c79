// Options, picks and views that a program stores, made from temporaries; and numbers without JSON.
#include <gtest/gtest.h>

#include <array>
#include <initializer_list>
#include <string>
#include <vector>

#include "towline/telemetry.h"
#include "transport_fixture.h"

namespace towline::conformance {
namespace {

// A list in braces ends with its statement, and can't be kept.
static_assert(!std::is_constructible_v<Picks, std::initializer_list<uint32_t>>);
static_assert(std::is_constructible_v<Picks, std::vector<uint32_t>>);
// Spans and variables are not copied.
static_assert(std::is_nothrow_constructible_v<Picks, std::vector<uint32_t>&>);
static_assert(std::is_nothrow_constructible_v<Picks, std::span<const uint64_t>>);

constexpr uint64_t kPieceBytes = 4096;
constexpr uint32_t kPieces = 64;

class ArgumentsTest : public ::testing::Test {
 protected:
  ArgumentsTest() {
    stamp(from_.data(), from_.size(), 1);
    std::memset(to_.data(), 0, to_.size());
  }
  [[nodiscard]] BlockList mine() const {
    return left_.block_list(blocks_of(from_.data(), from_.size(), kPieceBytes));
  }
  [[nodiscard]] BlockList theirs() const {
    return peer_.block_list(blocks_of(to_.data(), to_.size(), kPieceBytes));
  }
  [[nodiscard]] bool moved(uint32_t from, uint32_t to) const {
    return std::memcmp(from_.data() + from * kPieceBytes, to_.data() + to * kPieceBytes, kPieceBytes) == 0;
  }
  [[nodiscard]] std::string next_notice() const {
    Notice notice;
    while (right_.receive(notice) != Status::kOk)
      if (right_.wait(20s) != Status::kOk) return "no notice came";
    return std::string{notice.text()};
  }
  // Takes and fills the memory that temporaries have left.
  static void spoil() {
    for (uint32_t i = 0; i < 8; ++i) {
      const std::string noise(40 + i, '!');
      const std::vector<uint32_t> picks(3 + i, 7);
      ASSERT_NE(noise.size(), picks.size());
    }
  }

  Agent left_{"left", {.listen = "none"}};
  Agent right_{"right", {.listen = "none"}};
  Buffer from_{kPieces * kPieceBytes, false};
  Buffer to_{kPieces * kPieceBytes, false};
  Region here_ = left_.register_memory(dram(from_.data(), from_.size()),
                                       {.name = "kv", .layout = paged(4, 16, kPieceBytes)});
  Region there_ =
      right_.register_memory(dram(to_.data(), to_.size()),
                             {.access = Access::kAll, .name = "kv", .layout = paged(4, 16, kPieceBytes)});
  Peer peer_ = left_.add_peer(right_.metadata());
};

TEST_F(ArgumentsTest, OptionsKeepTemporaries) {
  const Plan plan = left_.plan(mine(), theirs());
  const PostOptions stored{
      .from = std::vector<uint32_t>{1, 2, 3},
      .to = std::vector<uint64_t>{31, 30, 29},
      .notice = std::string("a notice that is longer than what a string holds in itself")};
  const PostOptions copied = stored;
  spoil();
  ASSERT_EQ(plan.post(copied).wait(20s), Status::kOk) << last_error();
  EXPECT_TRUE(moved(1, 31) && moved(2, 30) && moved(3, 29));
  EXPECT_EQ(next_notice(), "a notice that is longer than what a string holds in itself");
}

TEST_F(ArgumentsTest, PickedBlocksKeepTemporaryListsAndPicks) {
  const PickedBlocks from = mine()[std::vector<uint32_t>{5, 6}];
  const PickedBlocks to = theirs()[std::vector<uint32_t>{60, 61}];
  spoil();
  ASSERT_EQ(left_.copy(from, to).wait(20s), Status::kOk) << last_error();
  EXPECT_TRUE(moved(5, 60) && moved(6, 61));
}

TEST_F(ArgumentsTest, ViewsKeepTemporaryPicks) {
  const View from = here_[1][std::vector<uint32_t>{5, 3, 9}];
  const View to = peer_.region("kv")[2][std::vector<uint32_t>{8, 7, 1}];
  spoil();
  ASSERT_EQ(left_.copy(from, to).wait(20s), Status::kOk) << last_error();
  EXPECT_TRUE(moved(16 + 5, 32 + 8) && moved(16 + 3, 32 + 7) && moved(16 + 9, 32 + 1));
}

TEST_F(ArgumentsTest, AnEmptyNoticeIsNoneWhateverItIsMadeOf) {
  const Plan plan = left_.plan(mine(), theirs());
  for (const KeptBytes& notice :
       {KeptBytes{}, KeptBytes{std::string{}}, KeptBytes{BytesView{}}, KeptBytes{""}}) {
    ASSERT_EQ(plan.post({.notice = notice}).wait(20s), Status::kOk) << last_error();
    const Transfer move = left_.transfer(mine(), theirs(), {.notice = notice});
    const Status posted = move.post();
    ASSERT_EQ(posted == Status::kInProgress ? move.wait(20s) : posted, Status::kOk) << last_error();
  }
  ASSERT_EQ(plan.post({.notice = "the end"}).wait(20s), Status::kOk) << last_error();
  EXPECT_EQ(next_notice(), "the end");
}

TEST_F(ArgumentsTest, MetricsAreVisitedWithoutJson) {
  {
    const Plan plan = left_.plan(mine(), theirs());
    ASSERT_EQ(plan.post().wait(20s), Status::kOk) << last_error();
  }  // short posts are counted by the plan's end
  uint64_t bytes = 0;
  const auto add_up = [](void* sum, const towline_metric_t* metric) -> int32_t {
    EXPECT_EQ(metric->struct_size, sizeof *metric);
    if (metric->peer == std::string_view("right") && metric->direction == std::string_view("tx"))
      *static_cast<uint64_t*>(sum) += metric->bytes;
    return 0;
  };
  ASSERT_EQ(towline_metrics_visit(left_.native(), add_up, &bytes), TOWLINE_OK) << last_error();
  EXPECT_EQ(bytes, kPieces * kPieceBytes);
  const auto stop = [](void* calls, const towline_metric_t*) -> int32_t {
    ++*static_cast<uint64_t*>(calls);
    return 17;
  };
  uint64_t calls = 0;
  EXPECT_EQ(towline_metrics_visit(left_.native(), stop, &calls), 17);
  EXPECT_EQ(calls, 1u);
  EXPECT_EQ(towline_metrics_visit(left_.native(), nullptr, nullptr), TOWLINE_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace towline::conformance
