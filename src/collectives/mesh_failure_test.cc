// Connections between ranks while memory is short: one that needs some is closed, and the watcher goes on.
#include <gtest/gtest.h>
#include <poll.h>

#include "base/os/stream.h"
#include "collectives/mesh_frames.h"
#include "collectives/tcp_mesh.h"
#include "collectives/test_support.h"
#include "support/failing_new.h"

namespace towline::collectives {
namespace {

Deadline in_time() { return Deadline::after(monotonic_now_ns(), 60 * kSecondNs); }

// Everything that has arrived; false if it threw.
bool serves(TcpMesh& mesh, int after) {
  std::vector<pollfd> polled;
  mesh.poll_fds(polled);
  ::poll(polled.data(), polled.size(), 5000);
  support::fail_allocations(after, 1);
  bool threw = false;
  try {
    mesh.serve();
  } catch (const std::exception&) {
    threw = true;
  }
  support::stop_failing();
  return !threw;
}

TEST(MeshWithoutMemory, AnArrivalThatNeedsSomeIsClosed) {
  Breaker breaker;
  TcpMesh mesh(0, 2, "127.0.0.1:0", breaker);
  std::vector<rendezvous::RankInfo> infos(2);
  infos[0].endpoints = mesh.endpoints("");
  const Id secret = Id::random();
  mesh.join(infos, secret, in_time());
  const Endpoint endpoint = parse_endpoint(infos[0].endpoints.front());
  const auto hello = encode(MeshHello{0, 1, secret});
  for (int after = 0; after < 4 && !mesh.complete(); ++after) {
    Stream rank = Stream::dial(endpoint, in_time(), Stream::Patience::kNone);
    ASSERT_EQ(rank.write_all(hello, in_time()), Status::kOk);
    EXPECT_TRUE(serves(mesh, after)) << after;
    if (mesh.complete()) {
      EXPECT_GT(after, 0);
      break;
    }
    uint8_t byte = 0;
    EXPECT_EQ(rank.read_all({&byte, 1}, in_time()), Status::kPeerLost) << "it is closed";
  }
  EXPECT_TRUE(mesh.complete()) << "the rank was taken once there was memory";
  EXPECT_FALSE(breaker.broken());
}

TEST(BreakerWithoutMemory, BreaksWithTheStatusAlone) {
  Breaker breaker;
  support::fail_allocations();
  const Status status = breaker.raise_or_break(
      Status::kProtocol, [] { return std::string("a text that is longer than what a string holds"); });
  support::stop_failing();
  EXPECT_EQ(status, Status::kProtocol);
  EXPECT_EQ(breaker.breakage().status, Status::kProtocol);
}

}  // namespace
}  // namespace towline::collectives
