#include "fabric/framed_stream.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>

#include "support/failing_allocations.h"

namespace towline::fabric::framed_stream_test {
namespace {

// The peer of a carrier that never catches up: what has been sent to it is not kept.
TEST(FramedStream, AReaderThatIsAlwaysBehindCostsNoMemory) {
  int fds[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
  const int little = 4096;  // so that one read never makes room for all that waits
  ASSERT_EQ(setsockopt(fds[0], SOL_SOCKET, SO_SNDBUF, &little, sizeof little), 0);
  FramedStream frames{Stream::accepted(UniqueFd{fds[0]})};
  const UniqueFd reader{fds[1]};
  constexpr std::size_t kMostUnsent = 16 << 10;
  constexpr std::array<uint8_t, 1000> kFrame{};
  std::array<uint8_t, 4096> buffer;
  const auto go_on = [&] {
    while (frames.unsent() < kMostUnsent) {
      if (!frames.append(kFrame)) return false;
      (void)frames.flush();
    }
    if (read(reader.get(), buffer.data(), buffer.size()) <= 0) return false;
    (void)frames.flush();
    return frames.unsent() != 0;
  };
  for (int i = 0; i < 200; ++i) ASSERT_TRUE(go_on());
  support::fail_allocations();
  bool went_on = true;
  for (int i = 0; i < 1000 && went_on; ++i) went_on = go_on();
  support::stop_failing();
  EXPECT_TRUE(went_on);
}

}  // namespace
}  // namespace towline::fabric::framed_stream_test
