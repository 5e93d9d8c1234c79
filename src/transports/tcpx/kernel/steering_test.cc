// A NIC is prepared, and is as it was when its last user has gone, however that user went.
#include "transports/tcpx/kernel/steering.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <memory>

#include "base/error.h"
#include "support/temporary_folder.h"
#include "transports/tcpx/kernel/fake_kernel.h"
#include "transports/tcpx/sources/test_support.h"

namespace towline::tcpx {
namespace {

using testing::FakeKernel;

class SteeringTest : public ::testing::Test {
 protected:
  std::unique_ptr<Steering> begin(std::vector<uint32_t> queues = {2, 3}) {
    return std::make_unique<Steering>(nic, std::move(queues), folder.path() + "/state");
  }
  // A process that prepares a NIC of the same name, adds rules for `socket`, and is killed.
  void be_killed_after_steering(int socket) {
    const pid_t child = fork();
    if (child == 0) {
      auto steering = begin();
      (void)steering->steer(socket);
      raise(SIGKILL);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  }
  std::size_t files() {
    std::size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder.path() + "/state"))
      count += entry.path().filename().string().size() > 30 ? 1 : 0;  // those of processes
    return count;
  }

  support::TemporaryFolder folder;
  FakeKernel kernel;
  Nic nic{kernel, "nic0"};
};

TEST_F(SteeringTest, HeadersAreSplitAndOtherPacketsKeepAwayFromOurQueues) {
  auto steering = begin();
  EXPECT_EQ(kernel.rings.split, Split::kOn);
  EXPECT_EQ(kernel.rings.threshold, 0u);
  EXPECT_EQ(kernel.spread, (std::vector<uint32_t>{0, 1, 0, 1, 0, 1, 0, 1}));
  steering.reset();
  EXPECT_EQ(kernel.rings.split, Split::kOff);
  EXPECT_EQ(kernel.rings.threshold, 256u);
  EXPECT_EQ(kernel.spread, (std::vector<uint32_t>{0, 1, 2, 3, 0, 1, 2, 3}));
}

TEST_F(SteeringTest, EachConnectionHasARuleThatEndsWithIt) {
  auto steering = begin();
  const auto [a, b] = testing::connected_sockets();
  const FlowRule one = steering->steer(b.get());
  const FlowRule two = steering->steer(a.get());
  ASSERT_EQ(kernel.rules.size(), 2u);
  EXPECT_EQ(one.queue, 2u);
  EXPECT_EQ(two.queue, 3u);
  EXPECT_EQ(one.to.port(), SocketAddress::local_of(b.get()).port());
  EXPECT_EQ(one.from.port(), SocketAddress::peer_of(b.get()).port());
  steering->end(one);
  EXPECT_EQ(kernel.rules.size(), 1u);
  steering->end(two);
  EXPECT_TRUE(kernel.rules.empty());
  steering.reset();
  EXPECT_EQ(files(), 0u);
}

TEST_F(SteeringTest, WhatAKilledProcessLeftIsFoundAndUndone) {
  const auto [a, b] = testing::connected_sockets();
  be_killed_after_steering(b.get());
  // This process's NIC, as the other left it.
  kernel.rings = {Split::kOn, 0};
  kernel.spread = {0, 1, 0, 1, 0, 1, 0, 1};
  const FlowRule left = {SocketAddress::peer_of(b.get()), SocketAddress::local_of(b.get()), 2};
  nic.insert_rule(left);
  const FlowRule others = {SocketAddress::local_of(b.get()), SocketAddress::peer_of(b.get()), 1};
  nic.insert_rule(others);
  auto steering = begin();
  EXPECT_EQ(steering->rules_found(), 1u);
  ASSERT_EQ(kernel.rules.size(), 1u);  // somebody else's stays
  EXPECT_EQ(nic.rules()[0].second, others);
  EXPECT_EQ(files(), 1u);
  steering.reset();
  EXPECT_EQ(kernel.rings.split, Split::kOff);
  EXPECT_EQ(kernel.rings.threshold, 256u);
  EXPECT_EQ(kernel.spread, (std::vector<uint32_t>{0, 1, 2, 3, 0, 1, 2, 3}));
  EXPECT_EQ(files(), 0u);
}

TEST_F(SteeringTest, TheLastUserRestoresTheNic) {
  auto first = begin();
  auto second = begin({3});
  first.reset();
  EXPECT_EQ(kernel.rings.split, Split::kOn);
  second.reset();
  EXPECT_EQ(kernel.rings.split, Split::kOff);
  EXPECT_EQ(kernel.spread, (std::vector<uint32_t>{0, 1, 2, 3, 0, 1, 2, 3}));
}

TEST_F(SteeringTest, ALivingProcessKeepsItsRules) {
  auto first = begin();
  const auto [a, b] = testing::connected_sockets();
  const FlowRule rule = first->steer(b.get());
  auto second = begin({3});
  EXPECT_EQ(second->rules_found(), 0u);
  EXPECT_EQ(kernel.rules.size(), 1u);
  first->end(rule);
}

TEST_F(SteeringTest, ANicThatCannotSplitIsLeftAsItWas) {
  kernel.rings_error = EOPNOTSUPP;
  try {
    (void)begin();
    FAIL() << "it was prepared";
  } catch (const core::Error& error) {
    EXPECT_NE(error.message().find("header split"), std::string::npos) << error.message();
    EXPECT_NE(error.message().find("nic0"), std::string::npos) << error.message();
  }
  EXPECT_EQ(kernel.spread, (std::vector<uint32_t>{0, 1, 2, 3, 0, 1, 2, 3}));
}

TEST_F(SteeringTest, ARefusedRuleIsNotWrittenDown) {
  auto steering = begin();
  kernel.rule_error = EPERM;
  const auto [a, b] = testing::connected_sockets();
  EXPECT_THROW((void)steering->steer(b.get()), core::Error);
  steering.reset();
  EXPECT_EQ(files(), 0u);
}

TEST_F(SteeringTest, ALineThatWasCutIsNoRule) {
  begin().reset();
  const std::string path = folder.path() + "/state/nic0." + std::string(32, 'a');
  const std::string text = "10.0.0.1:5000 > 10.0.0.2:6000 queue 2\n10.0.0.1:5000 > 10.0.0.2:60";
  const UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  write_fully(fd.get(), {reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  nic.insert_rule(*parse_rule("10.0.0.1:5000 > 10.0.0.2:6000 queue 2"));
  EXPECT_EQ(begin()->rules_found(), 1u);
}

TEST_F(SteeringTest, NoInterfaceOfThatName) {
  try {
    const Nic other(kernel, "nic9");
    FAIL() << "nic9 was found";
  } catch (const core::Error& error) {
    EXPECT_NE(error.message().find("\"nic9\""), std::string::npos) << error.message();
  }
}

}  // namespace
}  // namespace towline::tcpx
