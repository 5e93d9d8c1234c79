#include "buffer.h"

#include <gtest/gtest.h>

#include <cstring>

#include "failure.h"

namespace tool {
namespace {

constexpr uint64_t kBytes = 1 << 20;

TEST(Buffer, KindsHaveNames) {
  EXPECT_EQ(parse_buffer_kind("shared"), BufferKind::kShared);
  EXPECT_EQ(parse_buffer_kind("private"), BufferKind::kPrivate);
  EXPECT_EQ(parse_buffer_kind("vram"), BufferKind::kVram);
  EXPECT_THROW((void)parse_buffer_kind("disk"), Failure);
}

TEST(Buffer, HostMemoryIsWhatPeersReach) {
  for (const BufferKind kind : {BufferKind::kShared, BufferKind::kPrivate}) {
    Buffer buffer{kind, kBytes};
    EXPECT_EQ(buffer.address(), reinterpret_cast<uint64_t>(buffer.data()));
    EXPECT_EQ(buffer.view().kind, towline::Kind::kDram);
    buffer.data()[7] = std::byte{1};
    buffer.push(0, kBytes);
    buffer.pull(0, kBytes);
    EXPECT_EQ(buffer.data()[7], std::byte{1});
  }
}

TEST(Buffer, GpuMemoryIsFilledAndSeenThroughACopyOrSaysWhatIsMissing) {
  try {
    Buffer buffer{BufferKind::kVram, kBytes, -1};
    EXPECT_EQ(buffer.view().kind, towline::Kind::kVram);
    std::memset(buffer.data(), 5, kBytes);
    buffer.push(0, kBytes);
    std::memset(buffer.data(), 6, kBytes);
    buffer.pull(4096, 4096);
    EXPECT_EQ(buffer.data()[4095], std::byte{6});
    EXPECT_EQ(buffer.data()[4096], std::byte{5});
    EXPECT_EQ(buffer.data()[8192], std::byte{6});
  } catch (const Failure& failure) {
    EXPECT_NE(std::string(failure.what()).find("GPU"), std::string::npos) << failure.what();
  }
}

}  // namespace
}  // namespace tool
