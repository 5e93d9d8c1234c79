// Kernels' pieces of batches, with a test in the place of the kernel.
#include "collectives/experts/batch_dispatch.h"

#include <gtest/gtest.h>

#include <algorithm>

#include <vector>

namespace towline::collectives::experts {
namespace {

constexpr uint32_t kOther = 1;
constexpr uint32_t kRowsOfRound = 4;

TEST(ExpertsBatch, AHandleThatNamesATokenTooOftenMarksNoMoreThanARoundHas) {
  std::vector<uint64_t> segment(sizeof(Control) / sizeof(uint64_t));
  auto& me = *reinterpret_cast<Control*>(segment.data());
  Job job = {};
  job.segment = reinterpret_cast<uint64_t>(segment.data());
  job.ranks = job.layout.capacity = 2;
  job.layout.local = 1;
  job.layout.area_bytes = 4096;
  job.batch.round_tokens = kRowsOfRound;
  std::vector<uint32_t> image(job.layout.used_at(2, 0) / sizeof(uint32_t), 7);
  me.peer[kOther] = reinterpret_cast<uint64_t>(image.data());
  me.from[kOther] = 1;  // not this rank's: of another host
  for (uint32_t i = 0; i < 3 * kRowsOfRound; ++i) mark_row(job, me, kOther, 2);
  const auto* const list = image.data() + job.layout.used_at(1, 0) / sizeof(uint32_t);
  EXPECT_EQ(std::vector<uint32_t>(list, list + kRowsOfRound + 1), (std::vector<uint32_t>{2, 2, 2, 2, 7}));
}

// The hosts of ranks: three of three, two and one, of which some lie apart.
constexpr uint64_t kHosts[] = {10, 10, 10, 20, 20, 30, 40, 20, 40};

class ExpertsRelays : public testing::Test {
 protected:
  ExpertsRelays() : segment_(sizeof(Control) / sizeof(uint64_t)) {
    job_.segment = reinterpret_cast<uint64_t>(segment_.data());
    job_.ranks = std::size(kHosts);
    job_.batch.relays = 1;
    job_.batch.shape = kShape;
    std::copy(std::begin(kHosts), std::end(kHosts), me().host);
  }
  Control& me() { return *reinterpret_cast<Control*>(segment_.data()); }
  std::vector<uint32_t> relays_of_source(uint32_t source) {
    std::vector<uint32_t> made;
    for (uint32_t rank = 0; rank < job_.ranks; ++rank) made.push_back(relay_of(job_, me(), source, rank));
    return made;
  }

  static constexpr uint64_t kShape = uint64_t{1} << 63 | 0x1234560;
  std::vector<uint64_t> segment_;
  Job job_ = {};
};

TEST_F(ExpertsRelays, HaveThePlaceOfTheSourceInItsHost) {
  EXPECT_EQ(relays_of_source(0), (std::vector<uint32_t>{0, 1, 2, 3, 3, 5, 6, 3, 6}));
  EXPECT_EQ(relays_of_source(1), (std::vector<uint32_t>{0, 1, 2, 4, 4, 5, 8, 4, 8}));
  EXPECT_EQ(relays_of_source(2), (std::vector<uint32_t>{0, 1, 2, 7, 7, 5, 6, 7, 6}));
  EXPECT_EQ(relays_of_source(5), (std::vector<uint32_t>{0, 0, 0, 3, 3, 5, 6, 3, 6}));
  EXPECT_EQ(relays_of_source(8), (std::vector<uint32_t>{1, 1, 1, 4, 4, 5, 6, 4, 8}));
}

// A batch among the first ranks has no others as relays.
TEST_F(ExpertsRelays, AreAmongTheRanksOfTheBatch) {
  job_.ranks = 7;
  EXPECT_EQ(relays_of_source(2), (std::vector<uint32_t>{0, 1, 2, 3, 3, 5, 6}));
  EXPECT_TRUE(is_alone(job_, me(), 6));
  EXPECT_EQ(via_of(job_, me(), 6), 0u);
}

TEST_F(ExpertsRelays, AreNoneInACombine) {
  job_.batch.relays = 0;
  EXPECT_EQ(relays_of_source(0), (std::vector<uint32_t>{0, 1, 2, 3, 4, 5, 6, 7, 8}));
}

TEST_F(ExpertsRelays, AreMarkedOnceForAToken) {
  Scratch scratch;
  find_relays(job_, me(), scratch);
  EXPECT_EQ(relays_of(scratch, 0b110111110), 0b001101110u);
}

// Of two ranks that took one another's place, one reads where the other was sent the rows.
TEST_F(ExpertsRelays, AreNamedByTheShape) {
  me().tag[3] = 0x1235;
  const uint64_t shape = shape_through(job_, me(), 3, 4);
  EXPECT_EQ(shape & 1, 0u);
  EXPECT_TRUE(shape_is_batch(shape));
  EXPECT_NE(shape, kShape);
  EXPECT_NE(shape, shape_through(job_, me(), 2, 4));
  me().tag[3] = 0x1237;
  EXPECT_NE(shape, shape_through(job_, me(), 3, 4));
  EXPECT_EQ(shape_through(job_, me(), 3, 3), kShape);
}

}  // namespace
}  // namespace towline::collectives::experts
