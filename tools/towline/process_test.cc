#include "process.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "failure.h"

namespace tool {
namespace {

using namespace std::chrono_literals;

struct Ends {
  Ends() { EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0); }
  int fds[2] = {-1, -1};
};

TEST(Addresses, CountUpFromTheFirst) {
  EXPECT_EQ(address_of_rank("--listen", "10.0.0.7:7700", 3), "10.0.0.7:7703");
  EXPECT_EQ(address_of_rank("--listen", "[::1]:7700", 0), "[::1]:7700");
  EXPECT_EQ(address_of_rank("--listen", "*:0", 3), "*:0");
  EXPECT_EQ(own_address_towards("--connect", "127.0.0.1:7700"), "127.0.0.1:0");
  EXPECT_EQ(own_address_towards("--connect", "unix:@there"), "127.0.0.1:0");
  EXPECT_THROW((void)own_address_towards("--connect", "no such host:1"), Failure);
  for (const char* text : {"host", "host:", "host:x", "host:70000", "host:-1", "host:1x", "host:65535"})
    EXPECT_THROW((void)address_of_rank("--listen", text, 3), Failure) << text;
  EXPECT_NE(local_address("target", 1), local_address("target", 2));
}

TEST(Channel, CarriesMessagesInOrder) {
  const Ends ends;
  Channel left{ends.fds[0]};
  Channel right{ends.fds[1]};
  EXPECT_FALSE(right.try_receive());
  left.send({{"n", 1}});
  left.send({{"n", 2}, {"text", "a\nb"}});
  EXPECT_EQ((*right.receive(1s))["n"], 1);
  EXPECT_EQ((*right.receive(1s))["text"], "a\nb");
  EXPECT_FALSE(right.try_receive());
  EXPECT_FALSE(right.closed());
}

TEST(Channel, TellsThatTheOtherSideWent) {
  const Ends ends;
  Channel right{ends.fds[1]};
  {
    Channel left{ends.fds[0]};
    left.send({{"last", true}});
  }
  EXPECT_TRUE(right.receive(1s));
  EXPECT_FALSE(right.receive(1s));
  EXPECT_TRUE(right.closed());
  right.send({{"into", "the void"}});
}

TEST(Worker, TellsWhatEndedItBeforeItsRankIsTakenDown) {
  const Ends ends;
  Channel parent{ends.fds[0]};
  Channel child{ends.fds[1]};
  struct Rank {
    Channel& parent;
    explicit Rank(Channel& told) : parent(told) {}
    ~Rank() { parent.send({{"down", true}}); }
    static void run() { throw Failure{"the disk is full"}; }
  };
  EXPECT_THROW(run_rank(Rank{child}, child), Reported);
  EXPECT_EQ((*parent.receive(1s))["error"], "the disk is full");
  EXPECT_EQ((*parent.receive(1s))["down"], true);
}

TEST(Channel, RefusesWhatIsNoJson) {
  const Ends ends;
  Channel right{ends.fds[1]};
  ASSERT_EQ(write(ends.fds[0], "nonsense\n", 9), 9);
  EXPECT_THROW((void)right.receive(1s), Failure);
  close(ends.fds[0]);
}

}  // namespace
}  // namespace tool
