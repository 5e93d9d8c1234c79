#include "base/copy/copy.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace towline {
namespace {

constexpr uint8_t kUntouched = 0xee;

std::vector<uint8_t> contents(size_t bytes) {
  std::vector<uint8_t> all(bytes);
  for (size_t i = 0; i < bytes; ++i) all[i] = static_cast<uint8_t>(i * 31 + i / 251);
  return all;
}

bool has_vectors() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx2") != 0;
#else
  return false;
#endif
}

class CopyBytes : public ::testing::TestWithParam<copying::Way> {
 protected:
  CopyBytes() { copying::use(GetParam()); }
};

TEST_P(CopyBytes, CopiesAllAndNothingBesideAtAnyAlignment) {
  const size_t sizes[] = {0,    1,    127,   2047,  2048,  2049,   2175,  2176,
                          4096, 4097, 32767, 32768, 65541, 524288, 600001};
  for (const size_t bytes : sizes) {
    const std::vector<uint8_t> from = contents(bytes + 128);
    for (const size_t to_offset : {0, 1, 15, 31, 32, 33, 63}) {
      for (const size_t from_offset : {0, 1, 16, 31, 64}) {
        std::vector<uint8_t> to(bytes + 128, kUntouched);
        copy_bytes(to.data() + to_offset, from.data() + from_offset, bytes);
        for (size_t i = 0; i < to.size(); ++i) {
          const bool copied = i >= to_offset && i < to_offset + bytes;
          ASSERT_EQ(to[i], copied ? from[from_offset + i - to_offset] : kUntouched)
              << bytes << " bytes, byte " << i << ", " << from_offset << " to " << to_offset;
        }
      }
    }
  }
}

TEST_P(CopyBytes, MovesWhatOverlaps) {
  for (const size_t bytes : {100, 4096, 100'000}) {
    for (const ptrdiff_t apart : {-2000, -33, -1, 0, 1, 33, 2000}) {
      const std::vector<uint8_t> before = contents(bytes + 4000);
      std::vector<uint8_t> all = before;
      copy_bytes(all.data() + 2000 + apart, all.data() + 2000, bytes);
      for (size_t i = 0; i < bytes; ++i)
        ASSERT_EQ(all[2000 + apart + i], before[2000 + i]) << bytes << " " << apart << " " << i;
    }
  }
}

TEST_P(CopyBytes, TakesNullOfNothing) { copy_bytes(nullptr, nullptr, 0); }

INSTANTIATE_TEST_SUITE_P(All, CopyBytes, ::testing::Values(copying::Way::kLibc, copying::Way::kVectors),
                         [](const auto& way) {
                           return way.param == copying::Way::kLibc ? "libc" : "vectors";
                         });

TEST(Copies, SayWhichWayIsUsed) {
  copying::use(copying::Way::kLibc);
  EXPECT_EQ(describe_copies(), "2 KiB: libc, 8 KiB: libc, 32 KiB: libc, 512 KiB: libc");
  if (!has_vectors()) GTEST_SKIP() << "no vectors to copy by on this machine";
  copying::use(copying::Way::kVectors, copying::Place::kBehind);
  EXPECT_EQ(describe_copies(),
            "2 KiB: libc (behind: vectors), 8 KiB: libc (behind: vectors), 32 KiB: libc (behind: vectors), "
            "512 KiB: libc (behind: vectors)");
}

TEST(Copies, GoByWhereTheTargetLiesInItsPage) {
  using copying::Place, copying::place_of;
  const auto at = [](uintptr_t address) { return reinterpret_cast<const void*>(address); };
  EXPECT_EQ(place_of(at(0x10010), at(0x74010)), Place::kAlike);
  EXPECT_EQ(place_of(at(0x74010), at(0x10010)), Place::kAlike);
  EXPECT_EQ(place_of(at(0x10001), at(0x74000)), Place::kBehind) << "the target one byte behind";
  EXPECT_EQ(place_of(at(0x10040), at(0x74000)), Place::kBehind) << "a line behind";
  EXPECT_EQ(place_of(at(0x10000), at(0x74ff0)), Place::kBehind) << "at the next page's begin";
  EXPECT_EQ(place_of(at(0x10041), at(0x74000)), Place::kElsewhere);
  EXPECT_EQ(place_of(at(0x10000), at(0x74010)), Place::kElsewhere) << "the source behind";
}

}  // namespace
}  // namespace towline
