#include "base/copy/stream_copy.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

namespace towline {
namespace {

class StreamCopy : public testing::TestWithParam<void (*)(void*, const void*, size_t)> {};

TEST_P(StreamCopy, CopiesExactlyWhateverTheLengthAndTheAddresses) {
  constexpr size_t kRoom = 200 << 10;
  std::vector<uint8_t> from(kRoom);
  for (size_t i = 0; i < kRoom; ++i) from[i] = static_cast<uint8_t>(i * 31 + i / 251);
  for (const size_t bytes : {0, 1, 63, 4095, 4096, 4097, 32767, 32768, 32769, 65536, 100001}) {
    for (const size_t shift : {0, 1, 8, 63}) {
      std::vector<uint8_t> to(kRoom, 0xee);
      GetParam()(to.data() + 64 + shift, from.data() + 7, bytes);
      std::vector<uint8_t> expected(kRoom, 0xee);
      if (bytes != 0) std::memcpy(expected.data() + 64 + shift, from.data() + 7, bytes);
      ASSERT_TRUE(to == expected) << bytes << ' ' << shift;
    }
  }
}

TEST_P(StreamCopy, MovesWhatOverlaps) {
  std::vector<uint8_t> memory(100 << 10);
  for (size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<uint8_t>(i * 31 + i / 251);
  std::vector<uint8_t> expected = memory;
  std::memmove(expected.data() + 100, expected.data(), 64 << 10);
  GetParam()(memory.data() + 100, memory.data(), 64 << 10);
  EXPECT_TRUE(memory == expected);
}

INSTANTIATE_TEST_SUITE_P(Ways, StreamCopy, testing::Values(&stream_copy, &stream_copy_in_pages));

}  // namespace
}  // namespace towline
