// With another process: sides that never call in, that die, that restart; nothing of it disturbs others.
#include <algorithm>
#include <csignal>

#include "support.h"

namespace compat {
namespace {

// The data of a child that this process needs for transfers.
struct Target {
  explicit Target(Side& side, Child& child) {
    std::string loaded;
    EXPECT_EQ(side.agent->loadRemoteMD(from_hex(child.ask("metadata")), loaded), NIXL_SUCCESS)
        << towline::nixl::last_error();
    address = std::stoull(child.ask("address"));
  }
  [[nodiscard]] nixl_xfer_dlist_t blocks(size_t count, size_t bytes) const {
    nixl_xfer_dlist_t list(DRAM_SEG);
    for (size_t i = 0; i < count; ++i) list.emplace(address + i * bytes, bytes, uint64_t{0});
    return list;
  }
  uintptr_t address = 0;
};

class Processes : public testing::TestWithParam<const char*> {
 protected:
  // Both sides over the transport of the parameter.
  std::vector<std::string> environment() const {
    return *GetParam() == 0 ? std::vector<std::string>{}
                            : std::vector<std::string>{std::string("UCX_TLS=") + GetParam()};
  }
  void SetUp() override {
    if (*GetParam() != 0) setenv("UCX_TLS", GetParam(), 1);
  }
  void TearDown() override { unsetenv("UCX_TLS"); }
};

TEST_P(Processes, AWriteToAnIdleTargetCompletes) {
  Side side("idle-initiator");
  Child child("idle-target", environment());
  const Target target(side, child);
  side.memory[0] = 'Z';
  side.memory[1000] = 'Y';
  nixlXferReqH* made =
      request(side, NIXL_WRITE, side.blocks(16, 4096), target.blocks(16, 4096), "idle-target");
  ASSERT_NE(made, nullptr);
  ASSERT_EQ(run(*side.agent, made), NIXL_SUCCESS);
  // The child sleeps in read(2) all the while.
  EXPECT_EQ(child.ask("byte 0"), std::to_string(int{'Z'}));
  EXPECT_EQ(child.ask("byte 1000"), std::to_string(int{'Y'}));
  EXPECT_EQ(child.ask("quit"), "bye");
  EXPECT_EQ(child.wait(), 0);
}

TEST_P(Processes, ANotificationLeavesWithoutTheInitiatorPolling) {
  Side side("silent-initiator", 64 << 20);
  Child child("watching-target", environment());
  ASSERT_EQ(child.ask("load " + to_hex(side.metadata())), "NIXL_SUCCESS");
  const Target target(side, child);
  const nixl_opt_args_t args = with_notif("now");
  nixlXferReqH* made =
      request(side, NIXL_WRITE, side.blocks(16, 4096), target.blocks(16, 4096), "watching-target", &args);
  ASSERT_NE(made, nullptr);
  // From here on this process does nothing for it.
  ASSERT_GE(side.agent->postXferReq(made), 0);
  EXPECT_EQ(child.ask("await silent-initiator"), "now");
}

TEST_P(Processes, AKilledPeerEndsItsOwnRequestsOnly) {
  Side side("survivor", 16 << 20);
  Child victim("victim", environment());
  Child other("bystander", environment());
  const Target doomed(side, victim);
  const Target fine(side, other);
  nixlXferReqH* to_victim =
      request(side, NIXL_WRITE, side.blocks(16, 4096), doomed.blocks(16, 4096), "victim");
  nixlXferReqH* to_other =
      request(side, NIXL_WRITE, side.blocks(16, 4096), fine.blocks(16, 4096), "bystander");
  ASSERT_EQ(run(*side.agent, to_victim), NIXL_SUCCESS);
  ASSERT_EQ(run(*side.agent, to_other), NIXL_SUCCESS);
  victim.signal(SIGKILL);
  (void)victim.wait();
  EXPECT_TRUE(eventually([&] { return run(*side.agent, to_victim) < 0; }));
  EXPECT_NE(towline::nixl::last_error().find("'victim'"), std::string::npos) << towline::nixl::last_error();
  EXPECT_NE(towline::nixl::last_error().find(" over "), std::string::npos) << towline::nixl::last_error();
  // Asked again, also after another call has failed, it says the same.
  EXPECT_EQ(side.agent->genNotif("nobody", "hello"), NIXL_ERR_NOT_FOUND);
  EXPECT_LT(side.agent->getXferStatus(to_victim), 0);
  EXPECT_NE(towline::nixl::last_error().find("'victim'"), std::string::npos) << towline::nixl::last_error();
  EXPECT_EQ(run(*side.agent, to_other), NIXL_SUCCESS);
  EXPECT_EQ(side.agent->releaseXferReq(to_victim), NIXL_SUCCESS);
  // Each engine has its own connection, and notices by itself.
  EXPECT_TRUE(eventually([&] {
    nixlXferReqH* late = nullptr;
    const nixl_status_t status =
        side.agent->createXferReq(NIXL_WRITE, side.blocks(16, 4096), doomed.blocks(16, 4096), "victim", late);
    if (status == NIXL_SUCCESS) {
      EXPECT_EQ(side.agent->releaseXferReq(late), NIXL_SUCCESS);
    }
    return status == NIXL_ERR_REMOTE_DISCONNECT;
  })) << towline::nixl::last_error();
  // The metadata is still there; a new incarnation takes its place.
  Child again("victim", environment());
  const Target anew(side, again);
  nixlXferReqH* made = request(side, NIXL_WRITE, side.blocks(16, 4096), anew.blocks(16, 4096), "victim");
  ASSERT_NE(made, nullptr);
  EXPECT_EQ(run(*side.agent, made), NIXL_SUCCESS);
  EXPECT_EQ(run(*side.agent, to_other), NIXL_SUCCESS);
}

TEST_P(Processes, APeerThatEndedBeforeItWasReachedIsDisconnected) {
  Side side("too-late");
  Child child("short-lived", environment());
  const Target target(side, child);
  child.signal(SIGKILL);
  (void)child.wait();
  nixlXferReqH* made = nullptr;
  EXPECT_EQ(
      side.agent->createXferReq(NIXL_READ, side.blocks(1, 64), target.blocks(1, 64), "short-lived", made),
      NIXL_ERR_REMOTE_DISCONNECT)
      << towline::nixl::last_error();
  EXPECT_EQ(made, nullptr);
}

INSTANTIATE_TEST_SUITE_P(Over, Processes, testing::Values("", "tcp"), [](const auto& chosen) {
  return *chosen.param == 0 ? std::string("best") : std::string(chosen.param);
});

// Over tcp, where the peer's help is needed.
TEST(StoppedPeer, EndsTheRequestByItsDeadlineAndReleaseWaitsForTheFence) {
  setenv("TOWLINE_NIXL_TIMEOUT", "500ms", 1);
  setenv("UCX_TLS", "tcp", 1);
  Side side("patient", 4 << 20);
  unsetenv("TOWLINE_NIXL_TIMEOUT");
  unsetenv("UCX_TLS");
  Child child("stopped", {"UCX_TLS=tcp"});
  const Target target(side, child);
  nixlXferReqH* made =
      request(side, NIXL_READ, side.blocks(1, 1 << 20), target.blocks(1, 1 << 20), "stopped");
  ASSERT_NE(made, nullptr);
  ASSERT_EQ(run(*side.agent, made), NIXL_SUCCESS);
  child.signal(SIGSTOP);
  nixl_status_t status = side.agent->postXferReq(made);
  ASSERT_GE(status, 0);
  ASSERT_TRUE(eventually([&] { return (status = side.agent->getXferStatus(made)) != NIXL_IN_PROG; }));
  EXPECT_LT(status, 0);
  const nixl_status_t released = side.agent->releaseXferReq(made);
  if (released == NIXL_SUCCESS) {
    // Nothing lands any more, also when the peer goes on.
    std::fill(side.memory.begin(), side.memory.end(), 'S');
    child.signal(SIGCONT);
    EXPECT_NE(child.ask("byte 0"), "");
    EXPECT_EQ(std::count(side.memory.begin(), side.memory.end(), 'S'),
              static_cast<std::ptrdiff_t>(side.memory.size()));
  } else {
    EXPECT_EQ(released, NIXL_ERR_REPOST_ACTIVE);
    child.signal(SIGCONT);
    EXPECT_TRUE(eventually([&] { return side.agent->releaseXferReq(made) == NIXL_SUCCESS; }));
  }
}

class HangingPeer : public testing::TestWithParam<const char*> {};

TEST_P(HangingPeer, DoesNotHoldUpMakingRequestsWhichRunWhenItGoesOn) {
  const std::string tls = std::string("UCX_TLS=") + GetParam();
  setenv("UCX_TLS", GetParam(), 1);
  Side side("hopeful", 1 << 16);
  unsetenv("UCX_TLS");
  Child child("hangs", {tls});
  const Target target(side, child);
  child.signal(SIGSTOP);  // before there is any connection
  const nixl_opt_args_t args = with_notif("late");
  nixlXferReqH* first = request(side, NIXL_READ, side.blocks(4, 4096), target.blocks(4, 4096), "hangs");
  nixlXferReqH* second =
      request(side, NIXL_WRITE, side.blocks(1, 4096), target.blocks(1, 4096), "hangs", &args);
  ASSERT_TRUE(first != nullptr && second != nullptr);
  std::string route;
  EXPECT_EQ(towline::nixl::xfer_route(first, route), NIXL_SUCCESS);
  EXPECT_EQ(side.agent->postXferReq(first), NIXL_IN_PROG);
  EXPECT_EQ(side.agent->getXferStatus(first), NIXL_IN_PROG);
  child.signal(SIGCONT);
  nixl_status_t status = NIXL_IN_PROG;
  ASSERT_TRUE(eventually([&] { return (status = side.agent->getXferStatus(first)) != NIXL_IN_PROG; }));
  EXPECT_EQ(status, NIXL_SUCCESS) << towline::nixl::last_error();
  EXPECT_EQ(side.memory[64], 'b');
  EXPECT_EQ(run(*side.agent, second), NIXL_SUCCESS);
  EXPECT_EQ(child.ask("await hopeful"), "late");
  EXPECT_EQ(side.agent->releaseXferReq(first), NIXL_SUCCESS);
  EXPECT_EQ(side.agent->releaseXferReq(second), NIXL_SUCCESS);
}

INSTANTIATE_TEST_SUITE_P(Transports, HangingPeer, testing::Values("tcp", "shm"));

TEST(StoppedPeer, EndsARequestThatItNeverLetConnect) {
  setenv("TOWLINE_NIXL_TIMEOUT", "1500ms", 1);
  setenv("UCX_TLS", "tcp", 1);
  Side side("patient-2", 1 << 16);
  unsetenv("TOWLINE_NIXL_TIMEOUT");
  unsetenv("UCX_TLS");
  Child child("stopped-2", {"UCX_TLS=tcp"});
  const Target target(side, child);
  child.signal(SIGSTOP);
  nixlXferReqH* made = request(side, NIXL_READ, side.blocks(1, 4096), target.blocks(1, 4096), "stopped-2");
  ASSERT_NE(made, nullptr);
  EXPECT_LT(run(*side.agent, made), 0);
  EXPECT_EQ(side.agent->releaseXferReq(made), NIXL_SUCCESS);  // nothing of it can land
  child.signal(SIGCONT);
}

}  // namespace
}  // namespace compat
