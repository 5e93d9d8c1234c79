#include "base/os/stream.h"

#include <gtest/gtest.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/os/source_key.h"

namespace towline {
namespace {

using Kind = StreamResult::Kind;

Deadline in_time() { return Deadline::after(monotonic_now_ns(), 60 * kSecondNs); }
Deadline at_once() { return Deadline::after(monotonic_now_ns(), 0); }

// Two ends of one connection.
struct Ends {
  Ends() {
    int fds[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    a = Stream::accepted(UniqueFd(fds[0]));
    b = Stream::accepted(UniqueFd(fds[1]));
  }
  Stream a;
  Stream b;
};

TEST(Stream, PiecesArriveInOrderAcrossTheirBorders) {
  Ends ends;
  std::string first = "one ";
  std::string second = "two";
  const iovec out[] = {{first.data(), first.size()}, {second.data(), second.size()}};
  const StreamResult sent = ends.a.write(out);
  EXPECT_TRUE(sent.moved());
  EXPECT_EQ(sent.bytes, 7u);
  char head[2] = {};
  char tail[16] = {};
  const iovec in[] = {{head, sizeof head}, {tail, sizeof tail}};
  const StreamResult got = ends.b.read(in);
  EXPECT_EQ(got.bytes, 7u);
  EXPECT_EQ(std::string(head, 2) + tail, "one two");
}

TEST(Stream, TellsNothingThereFromTheEndAndFromAFailure) {
  Ends ends;
  char byte = 0;
  EXPECT_EQ(ends.b.read(&byte, 1).kind, Kind::kBlocked);
  EXPECT_FALSE(ends.b.ready(POLLIN));
  ASSERT_TRUE(ends.a.write("x", 1).moved());
  ends.a.end_writing();
  EXPECT_TRUE(ends.b.ready(POLLIN));
  EXPECT_EQ(ends.b.read(&byte, 1).bytes, 1u);
  EXPECT_EQ(ends.b.read(&byte, 1).kind, Kind::kEnded);
  EXPECT_TRUE(ends.b.write("y", 1).moved()) << "the other direction goes on";
  ends.a.close();
  const StreamResult refused = ends.b.write("z", 1);
  EXPECT_EQ(refused.kind, Kind::kFailed);
  EXPECT_EQ(refused.error, EPIPE);
}

TEST(Stream, AFullOneTakesAPrefixAndThenBlocks) {
  Ends ends;
  const std::vector<uint8_t> much(16 << 20);
  const StreamResult sent = ends.a.write(much.data(), much.size());
  EXPECT_TRUE(sent.moved());
  EXPECT_LT(sent.bytes, much.size());
  EXPECT_TRUE(ends.a.write(much.data(), much.size()).blocked());
  EXPECT_EQ(ends.a.write_all(much, at_once()), Status::kTimedOut);
}

TEST(Stream, MovesAllByTheDeadlineWhateverTheSocketTakesAtOnce) {
  Ends ends;
  std::vector<uint8_t> out(4 << 20);
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<uint8_t>(i * 31 >> 3);
  std::vector<uint8_t> in(out.size());
  std::thread reading([&] { EXPECT_EQ(ends.b.read_all(in, in_time()), Status::kOk); });
  EXPECT_EQ(ends.a.write_all(out, in_time()), Status::kOk);
  reading.join();
  EXPECT_EQ(in, out);
  EXPECT_EQ(ends.b.read_all({in.data(), 1}, at_once()), Status::kTimedOut);
  ends.a.close();
  EXPECT_EQ(ends.b.read_all({in.data(), 1}, in_time()), Status::kPeerLost);
}

TEST(Stream, DialsWhoListensAndCanWaitForIt) {
  Endpoint endpoint;
  {
    const ListeningSocket listening(parse_endpoint("127.0.0.1:0"));
    endpoint = listening.address().endpoint();
    Stream there = Stream::dial(endpoint, in_time(), Stream::Patience::kNone);
    EXPECT_EQ(SocketAddress::peer_of(there.fd()), listening.address());
  }
  EXPECT_THROW(Stream::dial(endpoint, in_time(), Stream::Patience::kNone), Error);
  try {
    (void)Stream::dial(endpoint, at_once(), Stream::Patience::kUntilDeadline);
    ADD_FAILURE() << "nobody listens there";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Status::kTimedOut) << error.what();
  }
}

TEST(Stream, AWaitForAListenerCanBeEnded) {
  Endpoint gone;
  {
    const ListeningSocket listening(parse_endpoint("127.0.0.1:0"));
    gone = listening.address().endpoint();
  }
  int asked = 0;
  try {
    (void)Stream::dial(gone, in_time(), Stream::Patience::kUntilDeadline, [&] {
      if (++asked == 3) fail(Status::kCancelled, "enough");
    });
    ADD_FAILURE() << "nobody listens there";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Status::kCancelled) << error.what();
  }
  EXPECT_EQ(asked, 3);
}

// In a child with a network of its own, in which this host has one port for connections. 0, or the line that failed.
int with_one_port() {
  if (::unshare(CLONE_NEWNET) != 0) return __LINE__;
  const UniqueFd any(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq loopback = {};
  std::strcpy(loopback.ifr_name, "lo");
  loopback.ifr_flags = IFF_UP;
  if (::ioctl(any.get(), SIOCSIFFLAGS, &loopback) != 0) return __LINE__;
  if (!(std::ofstream("/proc/sys/net/ipv4/ip_local_port_range") << "40000 40000" << std::flush))
    return __LINE__;
  const ListeningSocket door(parse_endpoint("127.0.0.1:39999"));
  const Endpoint endpoint = door.address().endpoint();
  Stream only = Stream::dial(endpoint, in_time(), Stream::Patience::kNone);
  try {
    (void)Stream::dial(endpoint, in_time(), Stream::Patience::kNone);
    return __LINE__;
  } catch (const Error&) {  // there is no port
  }
  try {
    (void)Stream::dial(endpoint, Deadline::after(monotonic_now_ns(), 20 * kMillisecondNs),
                       Stream::Patience::kForPort);
    return __LINE__;
  } catch (const Error& error) {
    if (error.code() != Status::kTimedOut) return __LINE__;
  }
  only.reset_at_close();  // its port is free at once
  only.close();
  only = Stream::dial(endpoint, in_time(), Stream::Patience::kForPort);
  return only.valid() ? 0 : __LINE__;
}

TEST(Stream, CanWaitForAPortWithoutWaitingForAListener) {
  const auto in_child = [](int (*body)()) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(body() != 0 ? 1 : 0);
    int status = 0;
    return ::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  };
  if (!in_child([] { return ::unshare(CLONE_NEWNET); }))
    GTEST_SKIP() << "needs the right to make network namespaces";
  EXPECT_TRUE(in_child(with_one_port));
  Endpoint gone;
  {
    const ListeningSocket listening(parse_endpoint("127.0.0.1:0"));
    gone = listening.address().endpoint();
  }
  EXPECT_THROW((void)Stream::dial(gone, in_time(), Stream::Patience::kForPort), Error);
}

TEST(Stream, AResetForgetsWhatWasNotSent) {
  ListeningSocket door(parse_endpoint("127.0.0.1:0"));
  Stream here = Stream::dial(door.address().endpoint(), in_time(), Stream::Patience::kNone);
  int error = 0;
  Stream there;
  for (const Deadline deadline = in_time(); !there.valid() && !deadline.passed(monotonic_now_ns());)
    there = Stream::accepted(door.accept(nullptr, &error));
  ASSERT_TRUE(there.valid());
  here.reset_at_close();
  here.close();
  uint8_t byte = 0;
  ASSERT_NE(there.wait(POLLIN, in_time()), 0);
  const StreamResult got = there.read(&byte, 1);
  EXPECT_EQ(got.kind, Kind::kFailed);
  EXPECT_EQ(got.error, ECONNRESET);
}

// The limits on connections that have not said what they want.
struct Waiting {
  SourceKey source;
  int number;
};

TEST(GivesWay, HalfOfThePlacesAreOfOneSourceAndTheOldestGoes) {
  const SourceKey one = {4, 1};
  const SourceKey other = {4, 2};
  const auto source = [](const Waiting& waiting) { return waiting.source; };
  std::vector<Waiting> all = {{one, 1}};
  EXPECT_EQ(gives_way(all, one, 4, source), nullptr);
  all.push_back({other, 2});
  all.push_back({one, 3});
  ASSERT_NE(gives_way(all, one, 4, source), nullptr);
  EXPECT_EQ(gives_way(all, one, 4, source)->number, 1);
  EXPECT_EQ(gives_way(all, other, 4, source), nullptr);
  all.push_back({{6, 1}, 4});
  EXPECT_EQ(gives_way(all, other, 4, source)->number, 1) << "all places are taken: the oldest of all";
}

}  // namespace
}  // namespace towline
