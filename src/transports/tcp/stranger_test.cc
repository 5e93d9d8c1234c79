// Strangers at the door: connections that speak no, or not enough, Towline.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "base/copy/crc32c.h"
#include "base/error.h"
#include "base/os/socket_address.h"
#include "transports/tcp/backend.h"
#include "transports/tcp/plugin.h"
#include "transports/tcp/tcp_fixture.h"
#include "transports/tcp/wire.h"

namespace towline::tcp {
namespace {

class StrangerTest : public TcpTest {
 protected:
  void SetUp() override {
    open();
    const SocketAddress target = resolve(parse_endpoint(endpoints_of(*b)[0]), soon()).front();
    stranger = UniqueFd(socket(target.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::connect(stranger.get(), target.get(), target.size()), 0);
  }
  void say(std::span<const uint8_t> bytes) {
    EXPECT_EQ(send(stranger.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  // The bytes that the acceptor sends until it closes.
  std::vector<uint8_t> heard() {
    std::vector<uint8_t> all;
    EXPECT_TRUE(turn([&] {
      uint8_t piece[1024];
      const ssize_t n = recv(stranger.get(), piece, sizeof piece, MSG_DONTWAIT);
      if (n > 0) all.insert(all.end(), piece, piece + n);
      return n == 0 || (n < 0 && errno != EAGAIN);
    }));
    return all;
  }
  Hello good_hello() {
    Hello hello;
    hello.target = incarnation_of(b->identity);
    hello.connection = {1, 2};
    hello.self = a->identity;
    hello.name = "stranger";
    return hello;
  }
  UniqueFd stranger;
};

TEST_F(StrangerTest, IsCutForGarbage) {
  const std::string text = "GET / HTTP/1.1\r\n\r\n";
  say({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  EXPECT_TRUE(heard().empty());
  connected();
}

TEST_F(StrangerTest, IsCutForSilenceAndHalfAHello) {
  const std::vector<uint8_t> packet = pack(good_hello());
  say(std::span(packet).first(20));
  for (int i = 0; i < 10; ++i) b->turn();
  b->skipped_ns += 6 * kSecondNs;
  EXPECT_TRUE(heard().empty());
  connected();
}

TEST_F(StrangerTest, IsToldOfAnotherVersionAndABadChecksum) {
  std::vector<uint8_t> packet = pack(good_hello());
  packet[10] ^= 1;
  say(packet);
  Reply reply;
  ASSERT_EQ(unpack(heard(), reply), nullptr);
  EXPECT_EQ(static_cast<Status>(reply.status), Status::kProtocol);
}

TEST_F(StrangerTest, CanNotJoinAConnectionThatIsNotThere) {
  Hello hello = good_hello();
  hello.lane = 1;
  say(pack(hello));
  Reply reply;
  ASSERT_EQ(unpack(heard(), reply), nullptr);
  EXPECT_EQ(static_cast<Status>(reply.status), Status::kNotFound);
}

TEST_F(StrangerTest, IsCutWhenItBreaksTheFraming) {
  say(pack(good_hello()));
  ASSERT_TRUE(turn([&] { return b->accepted_link() != nullptr; }));
  const std::vector<uint8_t> garbage(200, 0x55);
  say(garbage);
  heard();
  EXPECT_EQ(b->links[0]->downs, 1u);
  EXPECT_EQ(b->links[0]->status, Status::kProtocol);
  b->disconnect(*b->links[0]);
  connected();
}

TEST_F(StrangerTest, DoesNotCrowdOthersOut) {
  std::vector<UniqueFd> crowd;
  const SocketAddress target = resolve(parse_endpoint(endpoints_of(*b)[0]), soon()).front();
  for (int i = 0; i < 400; ++i) {
    crowd.push_back(open_stream_socket(AF_INET));
    start_connect(crowd.back().get(), target);
    b->turn();
  }
  connected();
}

// A child of the test: as another user where it may, it connects, and waits for the end.
bool another_user_is_cut(const SocketAddress& to, const std::function<bool()>& serve) {
  const pid_t child = fork();
  if (child == 0) {
    if (setresuid(65534, 65534, 65534) != 0) _exit(2);
    const UniqueFd fd(socket(to.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::connect(fd.get(), to.get(), to.size()) != 0) _exit(3);
    char byte = 0;
    _exit(recv(fd.get(), &byte, 1, 0) <= 0 ? 0 : 4);
  }
  int status = 0;
  while (serve() && waitpid(child, &status, WNOHANG) == 0) {
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST_F(StrangerTest, OfAnotherUserOfThisHostIsCutUnread) {
  if (geteuid() != 0) GTEST_SKIP() << "needs the right to become another user";
  const SocketAddress target = resolve(parse_endpoint(endpoints_of(*b)[0]), soon()).front();
  const Deadline deadline = soon();
  EXPECT_TRUE(another_user_is_cut(target, [&] {
    b->turn();
    return !deadline.passed(monotonic_now_ns());
  }));
  ASSERT_FALSE(b->refusals.empty());
  EXPECT_EQ(b->refusals.front(), Status::kPermissionDenied);
  connected();
}

// A client that does not name the incarnation learns nothing about it.
TEST_F(StrangerTest, IsNotToldWhichIncarnationIsThere) {
  for (const char* name : {"b", "somebody"}) {
    SCOPED_TRACE(name);
    if (!stranger.valid()) {
      const SocketAddress target = resolve(parse_endpoint(endpoints_of(*b)[0]), soon()).front();
      stranger.reset(socket(target.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
      ASSERT_EQ(::connect(stranger.get(), target.get(), target.size()), 0);
    }
    Hello hello = good_hello();
    hello.target = Id::random();
    hello.target_name = name;
    say(pack(hello));
    const std::vector<uint8_t> answer = heard();
    Reply reply;
    ASSERT_EQ(unpack(answer, reply), nullptr);
    EXPECT_EQ(static_cast<Status>(reply.status),
              std::string(name) == "b" ? Status::kPeerRestarted : Status::kNotFound);
    EXPECT_TRUE(reply.incarnation.is_none());
    EXPECT_TRUE(reply.name.empty());
    stranger.reset();
  }
}

TEST_F(StrangerTest, IsAnsweredSoManyRefusalsAndNoMore) {
  const SocketAddress target = resolve(parse_endpoint(endpoints_of(*b)[0]), soon()).front();
  stranger.reset();
  ASSERT_TRUE(turn([&] { return b->refusals.size() == 1; }));  // it said no hello
  b->refusals.clear();
  std::size_t answered = 0;
  constexpr std::size_t kProbes = 600;
  const auto began = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i < kProbes; ++i) {
    stranger.reset(socket(target.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::connect(stranger.get(), target.get(), target.size()), 0);
    Hello hello = good_hello();
    hello.target = Id::random();
    say(pack(hello));
    answered += heard().empty() ? 0 : 1;
  }
  // 256 at once, and 100 a second: on a busy machine the probes take so long that all may be answered.
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  EXPECT_GE(answered, 256u);
  EXPECT_LE(static_cast<double>(answered), 256 + 100 * took.count() + 1);
  EXPECT_EQ(b->refusals.size(), kProbes) << "all are counted";
  EXPECT_LE(std::ranges::count_if(b->logged, [](const auto& line) { return line.first <= 1; }), 2)
      << "and few are logged";
  connected();
}

}  // namespace
}  // namespace towline::tcp
