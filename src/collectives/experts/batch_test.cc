// Kernels' pieces of batches, with a test in the place of the kernel.
#include "collectives/experts/batch.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace towline::collectives::experts
