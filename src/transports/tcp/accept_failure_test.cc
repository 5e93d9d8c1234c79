// An acceptor that runs out of memory once the core has taken the connection.
#include <gtest/gtest.h>

#include "support/failing_new.h"
#include "transports/tcp/plugin.h"
#include "transports/tcp/test_support.h"

namespace towline::tcp {
namespace {

using towline::testing::FakeAgent;
using towline::testing::FakeLink;
using towline::testing::turn_until;

TEST(TcpAccept, AConnectionThatTheCoreHasTakenLivesUntilItDisconnects) {
  FakeAgent a(towline_tcp_plugin(), "a", {{"tcp.listen", "127.0.0.1:0"}});
  FakeAgent b(towline_tcp_plugin(), "b", {{"tcp.listen", "127.0.0.1:0"}});
  b.on_accepted = [] { support::fail_allocations(0, 1); };
  const FakeLink& link = a.connect(b);
  const auto told = [&] { return b.accepted_link() != nullptr && b.accepted_link()->downs == 1; };
  ASSERT_TRUE(turn_until({&a, &b}, told));
  EXPECT_EQ(b.accepted_link()->status, Status::kOutOfMemory);
  b.on_accepted = nullptr;
  ASSERT_TRUE(turn_until({&a, &b}, [&] { return link.downs == 1; }));
  b.disconnect(*b.accepted_link());
  const FakeLink& next = a.connect(b);
  EXPECT_TRUE(turn_until({&a, &b}, [&] { return next.ups == 1; })) << next.text;
}

}  // namespace
}  // namespace towline::tcp
