// What the copy kernel computes where source and target lie differently in their 16 bytes, on the host.
#include "gpu/shifted_copy.h"

#include <gtest/gtest.h>

#include <cstring>

namespace towline::cuda {
namespace {

Unit16 load(const uint8_t* from) {
  Unit16 unit;
  std::memcpy(&unit, from, sizeof unit);
  return unit;
}

Unit16 shift(const Unit16& low, const Unit16& high, uint32_t skip) {
  const uint32_t bits = (skip & 3) * 8;
  switch (skip / 4) {
    case 0:
      return shift_unit<0>(low, high, bits);
    case 1:
      return shift_unit<1>(low, high, bits);
    case 2:
      return shift_unit<2>(low, high, bits);
    default:
      return shift_unit<3>(low, high, bits);
  }
}

TEST(ShiftedCopy, EveryByteOfEveryAlignmentIsCopiedAndNoOtherUnitRead) {
  alignas(16) uint8_t source[256];
  alignas(16) uint8_t target[256];
  for (uint32_t i = 0; i < sizeof source; ++i) source[i] = static_cast<uint8_t>(i + 1);
  for (uint32_t to = 0; to < 16; ++to)
    for (uint32_t from = 0; from < 16; ++from)
      for (uint32_t bytes = 0; bytes <= 100; ++bytes) {
        std::memset(target, 0, sizeof target);
        const Edges edges = edges_of(to, bytes);
        ASSERT_LE(edges.head + edges.tail, 30u);
        ASSERT_EQ(edges.head + edges.units * 16 + edges.tail, bytes);
        const uint32_t first = from + edges.head;
        const uint32_t skip = first & 15;
        for (uint32_t unit = 0; unit < edges.units; ++unit) {
          const uint32_t low = first - skip + unit * 16;
          ASSERT_LT(low + 15, from + bytes + 16);
          ASSERT_GE(low + 15, from);
          if (skip != 0) {
            ASSERT_LT(low + 16, from + bytes) << "no byte of the second unit is wanted";
          }
          const Unit16 made =
              skip == 0 ? load(source + low) : shift(load(source + low), load(source + low + 16), skip);
          ASSERT_EQ((to + edges.head + unit * 16) % 16, 0u);
          std::memcpy(target + to + edges.head + unit * 16, &made, sizeof made);
        }
        for (uint32_t number = 0; number < edges.head + edges.tail; ++number)
          target[to + edge_at(edges, number)] = source[from + edge_at(edges, number)];
        ASSERT_EQ(std::memcmp(target + to, source + from, bytes), 0) << to << ' ' << from << ' ' << bytes;
        for (uint32_t i = 0; i < sizeof target; ++i)
          if (i < to || i >= to + bytes) {
            ASSERT_EQ(target[i], 0) << "beside the copy";
          }
      }
}

}  // namespace
}  // namespace towline::cuda
