// Clusters that have been promised room find it, wherever the blocks of another communicator are.
#include "collectives/gpu/clusters.h"

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <vector>

namespace towline::collectives::gpu {
namespace {

using Free = std::array<uint32_t, kNeighbourhoods>;  // blocks that each neighbourhood has room for

// Clusters that find room one after another, each in any neighbourhood that has some.
uint32_t placed(Free free, uint32_t parts, std::mt19937& random) {
  for (uint32_t count = 0;; ++count) {
    std::vector<uint32_t> with_room;
    for (uint32_t i = 0; i < free.size(); ++i)
      if (free[i] >= parts) with_room.push_back(i);
    if (with_room.empty()) return count;
    free[with_room[random() % with_room.size()]] -= parts;
  }
}

TEST(Clusters, FindTheRoomThatTheyWerePromised) {
  std::mt19937 random(7);
  for (int turn = 0; turn < 20000; ++turn) {
    const uint32_t places = 1 + random() % 272;
    const uint32_t of_place = 1u << random() % 3;
    const uint32_t parts = 2 + random() % 7;
    Free free{};
    const uint32_t spread_over = 1 + random() % kNeighbourhoods;
    for (uint32_t i = 0; i < places; ++i) free[random() % spread_over] += of_place;
    EXPECT_GE(placed(free, parts, random), clusters_beside(places, of_place, parts))
        << places << " places for " << of_place << ", clusters of " << parts;
  }
}

TEST(Clusters, AreNotPromisedRoomThatNoNeighbourhoodHas) {
  std::mt19937 random(7);
  for (const uint32_t of_place : {1u, 2u, 4u})
    for (const uint32_t parts : {4u, 8u}) {
      const uint32_t each = (parts + of_place - 1) / of_place - 1;
      Free free;
      free.fill(each * of_place);
      EXPECT_EQ(placed(free, parts, random), 0u);
      EXPECT_EQ(clusters_beside(kNeighbourhoods * each, of_place, parts), 0u);
    }
}

// Blocks of half a multiprocessor, a quarter, and an eighth, as many as there are usable multiprocessors, beside as many of another
// communicator that take half of one each.
TEST(Clusters, OfOneMultiprocessorAlwaysFit) {
  for (const uint32_t all : {128u, 132u, 148u, 160u}) {
    const uint32_t usable = usable_multiprocessors(all);
    const uint32_t places = 2 * all - usable;
    EXPECT_GE(clusters_beside(places, 1, 2), usable / 2) << all;
    EXPECT_GE(clusters_beside(places, 2, 4), usable / 4) << all;
    EXPECT_GE(clusters_beside(places, 4, 8), usable / 8) << all;
  }
  EXPECT_EQ(usable_multiprocessors(4), 4u);
}

}  // namespace
}  // namespace towline::collectives::gpu
