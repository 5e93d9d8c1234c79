#include "base/os/lent_writes.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <algorithm>
#include <vector>

#include "base/error.h"

namespace towline {
namespace {

using Kind = StreamResult::Kind;

Deadline in_time() { return Deadline::after(monotonic_now_ns(), 60 * kSecondNs); }

class LentWritesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ListeningSocket door(parse_endpoint("127.0.0.1:0"));
    here_ = Stream::dial(door.address().endpoint(), in_time(), Stream::Patience::kNone);
    int error = 0;
    for (const Deadline deadline = in_time(); !there_.valid() && !deadline.passed(monotonic_now_ns());)
      there_ = Stream::accepted(door.accept(nullptr, &error));
    ASSERT_TRUE(there_.valid());
    if (LentWrites::allow(here_.fd()) != 0) GTEST_SKIP() << "this kernel has no lent writes";
  }
  StreamResult write(void* data, std::size_t bytes) {
    const iovec piece = {data, bytes};
    return writes_.write(here_.fd(), {&piece, 1});
  }
  // Until the socket is full. Returns how many bytes it took.
  std::size_t fill(std::vector<uint8_t>& bytes) {
    std::size_t sent = 0;
    while (sent < bytes.size() && !writes_.full()) {
      const StreamResult result =
          write(bytes.data() + sent, std::min<std::size_t>(bytes.size() - sent, 256u << 10));
      if (!result.moved()) break;
      sent += result.bytes;
    }
    return sent;
  }
  void collect_all() {
    const Deadline deadline = in_time();
    while (!writes_.all_returned() && !deadline.passed(monotonic_now_ns())) {
      (void)here_.wait(0, deadline);  // a report is an error to poll()
      writes_.collect(here_.fd());
    }
  }

  Stream here_;
  Stream there_;
  LentWrites writes_;
};

TEST_F(LentWritesTest, BytesAreReadUntilThePeerHasThemAndThenReturned) {
  std::vector<uint8_t> bytes(32u << 20, 'x');
  const std::size_t sent = fill(bytes);
  writes_.collect(here_.fd());
  ASSERT_LT(writes_.returned(), writes_.lent()) << "the peer has read nothing";
  std::vector<uint8_t> got(sent);
  EXPECT_EQ(there_.read_all(got, in_time()), Status::kOk);
  EXPECT_EQ(std::count(got.begin(), got.end(), 'x'), static_cast<std::ptrdiff_t>(sent));
  collect_all();
  EXPECT_TRUE(writes_.all_returned());
  EXPECT_TRUE(writes_.copied()) << "over loopback";
}

TEST_F(LentWritesTest, EachCallIsReturnedOnceHoweverManyAreUnderWay) {
  std::vector<uint8_t> bytes(64, 'y');
  std::vector<uint8_t> got(64);
  for (int round = 0; round < 5; ++round) {
    const uint64_t before = writes_.lent();
    for (uint32_t i = 0; i < LentWrites::kMost; ++i) ASSERT_TRUE(write(bytes.data() + i, 1).moved());
    EXPECT_EQ(writes_.lent(), before + LentWrites::kMost);
    EXPECT_EQ(there_.read_all(got, in_time()), Status::kOk);
    collect_all();
    ASSERT_EQ(writes_.returned(), writes_.lent());
  }
}

TEST_F(LentWritesTest, DroppingReturnsAllAtOnceAndResetsTheConnection) {
  std::vector<uint8_t> bytes(32u << 20, 'z');
  fill(bytes);
  LentWrites::drop(here_.fd());
  writes_.collect(here_.fd());
  EXPECT_TRUE(writes_.all_returned());
  std::vector<uint8_t> got(bytes.size());
  EXPECT_EQ(there_.read_all(got, in_time()), Status::kPeerLost);
}

TEST_F(LentWritesTest, MemoryThatIsNotThereIsRefusedAndLendsNothing) {
  void* const gone = ::mmap(nullptr, 1u << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(gone, MAP_FAILED);
  ::munmap(gone, 1u << 20);
  const StreamResult result = write(gone, 1u << 20);
  EXPECT_EQ(result.kind, Kind::kFailed);
  EXPECT_EQ(result.error, EFAULT);
  EXPECT_TRUE(writes_.all_returned());
}

TEST(LentWrites, UnixSocketsHaveNone) {
  int fds[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
  const Stream a = Stream::accepted(UniqueFd(fds[0]));
  const Stream b = Stream::accepted(UniqueFd(fds[1]));
  EXPECT_NE(LentWrites::allow(a.fd()), 0);
}

}  // namespace
}  // namespace towline
