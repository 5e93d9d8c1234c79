// How the kernel that copies several lists finds its pieces, on the host.
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "gpu/copy_job.h"

namespace towline::cuda {
namespace {

// The loop of the kernel: which warp takes which piece, and when a list has arrived.
TEST(CopyLists, EveryPieceOfEveryListIsTakenOnceAndTheLastOfAListEndsIt) {
  const std::vector<std::vector<uint64_t>> sizes = {
      {1}, {64, 192, 256, 256, 192, 64}, {1, 1, 1, 1, 1, 1, 1, 1}, {33, 31, 1000}, {5, 2048}};
  for (const std::vector<uint64_t>& of_list : sizes) {
    ListsJob job{};
    std::vector<std::vector<uint32_t>> taken;
    for (const uint64_t pieces : of_list) {
      job.lists[job.count++].pieces = pieces;
      taken.emplace_back(pieces, 0);
    }
    for (const uint64_t blocks : {1u, 3u, 8u}) {
      constexpr uint64_t kWarps = kThreads / 32;
      std::vector<uint64_t> arrived(job.count, 0);
      uint32_t ended = 0;
      const uint64_t count = pieces_of(job);
      for (uint64_t block = 0; block < blocks; ++block) {
        for (uint64_t first = block * kWarps; first < count; first += blocks * kWarps) {
          for (uint64_t index = first; index < std::min(first + kWarps, count); ++index) {
            const PieceOfList at = find_piece(job, index);
            ASSERT_LT(at.list, job.count);
            ASSERT_LT(at.piece, of_list[at.list]);
            ++taken[at.list][at.piece];
            if (++arrived[at.list] == of_list[at.list]) ++ended;
          }
        }
      }
      EXPECT_EQ(ended, job.count);
      for (std::vector<uint32_t>& list : taken)
        for (uint32_t& times : list) EXPECT_EQ(std::exchange(times, 0u), 1u);
    }
  }
}

}  // namespace
}  // namespace towline::cuda
