// Urgent parts go before others on every lane, and others go on.
#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "framing/test_support.h"

namespace towline::framing {
namespace {

using testing::FakePlan;
using testing::RingPair;
using testing::Side;

constexpr uint64_t kBulkBytes = 64 << 20;
constexpr uint64_t kUrgentBytes = 256 << 10;
constexpr uint64_t kBulk = 1;  // its cookie; those above are urgent

struct Case {
  const char* name;
  uint32_t op;
  std::size_t lanes;
};

void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }

class PriorityTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    ConnectionOptions options;
    options.max_frame_bytes = 1 << 20;
    a_ = std::make_unique<Side>(options);
    b_ = std::make_unique<Side>(options);
    for (std::size_t i = 0; i < GetParam().lanes; ++i) {
      rings_.push_back(std::make_unique<RingPair>(1 << 20));
      testing::LanePair lanes = rings_.back()->lanes();
      a_->connection.add_lane(std::move(lanes.first));
      b_->connection.add_lane(std::move(lanes.second));
    }
    local_.resize(kBulkBytes);
    remote_.resize(kBulkBytes);
    std::iota(local_.begin(), local_.end(), uint8_t{1});
    std::iota(remote_.begin(), remote_.end(), uint8_t{5});
    const uint64_t key = b_->host.add(remote_.data(), remote_.size());
    bulk_plan_ = std::make_unique<FakePlan>(key);
    for (uint64_t at = 0; at < kBulkBytes; at += kUrgentBytes)
      bulk_plan_->add(local_.data() + at, remote_.data() + at, kUrgentBytes);
    a_->host.on_complete = [this](uint64_t cookie, const towline_part_result&) {
      ended_in_pass_.emplace(cookie, passes_);
    };
    bulk_ = a_->prepare(bulk_plan_->plan(), GetParam().op);
  }
  void turn() {
    a_->progress();
    b_->progress();
    ++passes_;
  }
  [[nodiscard]] bool over(uint64_t cookie) const { return ended_in_pass_.contains(cookie); }
  // Bytes [n * kUrgentBytes, ...) of the plan, as a part of their own.
  Status submit_part(uint64_t cookie, uint64_t n, uint32_t flags) {
    return a_->submit(bulk_, cookie, n * kUrgentBytes, (n + 1) * kUrgentBytes, {}, flags);
  }

  std::vector<std::unique_ptr<RingPair>> rings_;
  std::unique_ptr<Side> a_;
  std::unique_ptr<Side> b_;
  std::vector<uint8_t> local_;
  std::vector<uint8_t> remote_;
  std::unique_ptr<FakePlan> bulk_plan_;
  towline_prepared* bulk_ = nullptr;
  std::map<uint64_t, uint32_t> ended_in_pass_;
  uint32_t passes_ = 0;
};

TEST_P(PriorityTest, AnUrgentPartDoesNotWaitForABulkThatWasThereBefore) {
  ASSERT_EQ(a_->submit(bulk_, kBulk, 0, kBulkBytes), Status::kInProgress);
  for (int i = 0; i < 3; ++i) turn();
  ASSERT_FALSE(over(kBulk));
  const uint32_t before = passes_;
  ASSERT_EQ(submit_part(2, 3, TOWLINE_SUBMIT_URGENT), Status::kInProgress);
  while (!over(2)) turn();
  const uint32_t took = passes_ - before;
  ASSERT_FALSE(over(kBulk));
  while (!over(kBulk)) turn();
  EXPECT_LE(took * 4, passes_ - before) << "it took " << took << " of " << passes_ - before << " passes";
  EXPECT_EQ(a_->host.status(kBulk), Status::kOk);
  EXPECT_EQ(a_->host.status(2), Status::kOk);
  EXPECT_EQ(remote_, local_);
}

TEST_P(PriorityTest, UrgentPartsEndBeforeBulkPartsOfTheSameSizeThatCameFirst) {
  constexpr uint64_t kParts = 48;
  for (uint64_t i = 0; i < kParts; ++i) ASSERT_EQ(submit_part(100 + i, i, 0), Status::kInProgress);
  for (uint64_t i = 0; i < 4; ++i)
    ASSERT_EQ(submit_part(200 + i, kParts + i, TOWLINE_SUBMIT_URGENT), Status::kInProgress);
  while (!over(200) || !over(201) || !over(202) || !over(203)) turn();
  uint64_t bulk_over = 0;
  for (uint64_t i = 0; i < kParts; ++i) bulk_over += over(100 + i) ? 1 : 0;
  EXPECT_LT(bulk_over, kParts * 3 / 4);
  while (!over(100 + kParts - 1)) turn();
}

TEST_P(PriorityTest, BulkGoesOnUnderEndlessUrgentParts) {
  ASSERT_EQ(a_->submit(bulk_, kBulk, 0, kBulkBytes / 4), Status::kInProgress);
  uint64_t next = 1000;
  uint64_t ended = 1000;
  a_->host.keep_results = false;
  while (!over(kBulk) && next < 50'000) {
    while (next - ended < 32 && submit_part(next, next % 256, TOWLINE_SUBMIT_URGENT) == Status::kInProgress)
      ++next;
    turn();
    while (over(ended)) ++ended;
  }
  EXPECT_TRUE(over(kBulk)) << "after " << next - 1000 << " urgent parts";
  EXPECT_LT(next - 1000, 16 * kBulkBytes / 4 / kUrgentBytes) << "an eighth of the turns, and some slack";
  while (ended < next) {
    turn();
    while (over(ended)) ++ended;
  }
}

INSTANTIATE_TEST_SUITE_P(All, PriorityTest,
                         ::testing::Values(Case{"write_one_lane", TOWLINE_WRITE, 1},
                                           Case{"write_three_lanes", TOWLINE_WRITE, 3},
                                           Case{"read_one_lane", TOWLINE_READ, 1},
                                           Case{"read_three_lanes", TOWLINE_READ, 3}),
                         [](const auto& one) { return std::string(one.param.name); });

}  // namespace
}  // namespace towline::framing
