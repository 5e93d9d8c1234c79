// Payload that is lent to the kernel (MSG_ZEROCOPY). Loopback copies it too, but only when the receiver has room: until
// then the kernel reads what was lent. A kernel without such writes copies everything.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/os/lent_writes.h"
#include "transports/tcp/tcp_fixture.h"

namespace towline::tcp {
namespace {

const FakeAgent::Settings kOn = {{"tcp.listen", "127.0.0.1:0"}, {"tuning.tcp.zerocopy", "on"}};

class ZerocopyTest : public TcpTest {
 protected:
  void SetUp() override {
    const Stream socket = Stream::open(AF_INET);
    has_ = LentWrites::allow(socket.fd()) == 0;
  }
  bool lends(FakeAgent& agent, const FakeLink& link) {
    return describe(agent, link).find("writes lent to the kernel") != std::string::npos;
  }
  // A WRITE, or the answer to a READ, of which all is in the sender's socket and a part at the receiver, which does not
  // read on.
  void start(FakeLink& link, uint32_t op) {
    make_memory(3u << 20);
    plan_ = std::make_unique<FakePlan>(key);
    towline_prepared* const prepared = a->prepare(link, whole(*plan_, 256u << 10), op);
    ASSERT_EQ(a->submit(prepared, 1, plan_->bytes()), Status::kInProgress);
    FakeAgent& sender = op == TOWLINE_READ ? *b : *a;
    for (int i = 0; i < 100; ++i) sender.turn();
  }

  bool has_ = false;  // lent writes
  std::unique_ptr<FakePlan> plan_;
};

TEST_F(ZerocopyTest, LentPayloadArrivesBothWays) {
  open(kOn);
  FakeLink& link = connected();
  make_memory();
  for (int round = 0; round < 5; ++round) move_and_check(link);
  EXPECT_EQ(lends(*a, link), has_) << describe(*a, link);
  EXPECT_EQ(lends(*b, *b->accepted_link()), has_);
}

TEST_F(ZerocopyTest, WithSeveralSocketsAndFaultsEveryByteArrives) {
  FakeAgent::Settings settings = kOn;
  settings["tuning.tcp.sockets"] = "4";
  settings["faults"] = "seed=5,short=0.3";
  open(settings);
  FakeLink& link = connected();
  make_memory();
  for (int round = 0; round < 5; ++round) move_and_check(link);
}

TEST_F(ZerocopyTest, ASocketOnWhichTheKernelCopiesLendsNoMore) {
  open({{"tcp.listen", "127.0.0.1:0"}});
  FakeLink& link = connected();
  make_memory();
  move_and_check(link);
  const char* const why = has_ ? "the kernel copies on this path" : "the kernel does not have it";
  EXPECT_NE(describe(*a, link).find(why), std::string::npos) << describe(*a, link);
}

TEST_F(ZerocopyTest, OffLendsNothing) {
  open({{"tcp.listen", "127.0.0.1:0"}, {"tuning.tcp.zerocopy", "off"}});
  FakeLink& link = connected();
  make_memory();
  move_and_check(link);
  EXPECT_EQ(describe(*a, link).find("lent"), std::string::npos) << describe(*a, link);
}

// The owner writes over its memory as soon as nobody pins it, as an application does after it has deregistered it.
TEST_F(ZerocopyTest, AnOwnersMemoryStaysPinnedWhileTheKernelReadsIt) {
  open(kOn);
  FakeLink& link = connected();
  ASSERT_TRUE(turn([&] { return b->accepted_link() != nullptr; }));
  make_memory(3u << 20);
  std::iota(remote.begin(), remote.end(), uint8_t{3});
  const std::vector<uint8_t> before = remote;
  FakePlan plan(key);
  towline_prepared* const read = a->prepare(link, whole(plan, 256u << 10), TOWLINE_READ);
  ASSERT_EQ(a->submit(read, 1, plan.bytes()), Status::kInProgress);
  for (int i = 0; i < 100; ++i) b->turn();  // `a` does not read
  EXPECT_EQ(b->pins_held() != 0, has_);
  ASSERT_TRUE(turn([&] {
    if (b->pins_held() == 0) std::fill(remote.begin(), remote.end(), uint8_t{0xee});
    return a->ended(1);
  }));
  EXPECT_EQ(a->outcome(1), Status::kOk);
  EXPECT_EQ(local, before);
  EXPECT_TRUE(turn([&] { return b->pins_held() == 0; }));
}

TEST_F(ZerocopyTest, AWriterThatIsDisconnectedHasItsMemoryBack) {
  open(kOn);
  FakeLink& link = connected();
  start(link, TOWLINE_WRITE);
  const uint64_t began_ns = monotonic_now_ns();
  a->disconnect(link);
  EXPECT_LT(monotonic_now_ns() - began_ns, kSecondNs / 2);
  ASSERT_TRUE(a->ended(1));
  EXPECT_EQ(a->results.at(1).fences & TOWLINE_PART_FENCED_LOCAL, unsigned{TOWLINE_PART_FENCED_LOCAL});
  const std::vector<uint8_t> before = local;
  std::fill(local.begin(), local.end(), uint8_t{0xee});
  ASSERT_TRUE(turn([&] { return b->links[0]->downs == 1; }));
  for (std::size_t i = 0; i < remote.size(); ++i)
    ASSERT_TRUE(remote[i] == 0 || remote[i] == before[i]) << "byte " << i;
}

TEST_F(ZerocopyTest, APeerThatGoesAwayReturnsWhatWasLent) {
  open(kOn);
  FakeLink& link = connected();
  ASSERT_TRUE(turn([&] { return b->accepted_link() != nullptr; }));
  start(link, TOWLINE_WRITE);
  b->disconnect(*b->accepted_link());
  ASSERT_TRUE(turn([&] { return a->ended(1) && link.downs == 1; }));
  EXPECT_EQ(a->outcome(1), Status::kPeerLost);
  EXPECT_EQ(a->results.at(1).fences & TOWLINE_PART_FENCED_LOCAL, unsigned{TOWLINE_PART_FENCED_LOCAL});
}

TEST_F(ZerocopyTest, AnOwnerThatIsDisconnectedGivesItsPinsBack) {
  open(kOn);
  FakeLink& link = connected();
  ASSERT_TRUE(turn([&] { return b->accepted_link() != nullptr; }));
  start(link, TOWLINE_READ);
  const uint64_t began_ns = monotonic_now_ns();
  b->disconnect(*b->accepted_link());
  EXPECT_LT(monotonic_now_ns() - began_ns, kSecondNs / 2);
  EXPECT_EQ(b->pins_held(), 0u);
  ASSERT_TRUE(turn([&] { return a->ended(1); }));
}

// The core ends connections so. A peer that reads has all of it; one that does not holds nobody up.
TEST_F(ZerocopyTest, SettlingWaitsAMomentForAPeerThatReads) {
  for (const bool reads : {true, false}) {
    open(kOn);
    FakeLink& link = connected();
    ASSERT_TRUE(turn([&] { return b->accepted_link() != nullptr; }));
    start(link, TOWLINE_READ);
    FakeLink& accepted = *b->accepted_link();
    const Deadline deadline = soon();
    const auto settles = [&] { return b->connections->settle(accepted.connection) != TOWLINE_AGAIN; };
    if (has_) {
      EXPECT_FALSE(settles());
    }
    while (!settles() && !deadline.passed(monotonic_now_ns())) {
      b->turn();
      if (reads) a->turn();
    }
    EXPECT_EQ(b->pins_held(), 0u);
    b->disconnect(accepted);
    ASSERT_TRUE(turn([&] { return a->ended(1); }));
    if (reads) {
      EXPECT_EQ(a->outcome(1), Status::kOk);
    }
    if (!reads && has_) {
      EXPECT_EQ(a->outcome(1), Status::kPeerLost);
    }
  }
}

TEST_F(ZerocopyTest, ReportsWakeAWorkerThatSleeps) {
  open(kOn);
  FakeLink& link = connected();
  make_memory(1u << 20);
  FakePlan plan(key);
  towline_prepared* write = a->prepare(link, whole(plan, 1u << 20), TOWLINE_WRITE);
  const Deadline deadline = soon();
  uint32_t slept = 0;
  for (uint64_t cookie = 1; cookie <= 20; ++cookie) {
    ASSERT_EQ(a->submit(write, cookie, plan.bytes()), Status::kInProgress);
    while (!a->ended(cookie) && !deadline.passed(monotonic_now_ns())) {
      for (FakeAgent* agent : {a.get(), b.get()}) {
        slept += agent->sleep(0, 100 * kMicrosecondNs) ? 1 : 0;
        agent->data->progress(agent->backend, 0, agent->now_ns());
      }
    }
    ASSERT_TRUE(a->ended(cookie));
  }
  EXPECT_EQ(remote, local);
  // Afterwards nothing is left that would wake it.
  for (int i = 0; i < 10; ++i) a->turn();
  EXPECT_TRUE(a->sleep(0, 0));
}

TEST_F(ZerocopyTest, TheSettingIsNamedWhereItIsWrong) {
  const FakeAgent agent(towline_tcp_plugin(), "a", {{"tuning.tcp.zerocopy", "maybe"}});
  EXPECT_EQ(agent.status, Status::kInvalidArgument);
  EXPECT_EQ(agent.failure, "tuning.tcp.zerocopy = \"maybe\": expected auto, on or off");
}

}  // namespace
}  // namespace towline::tcp
