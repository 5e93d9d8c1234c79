// A fixture for tests of two agents in one process.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/clock.h"
#include "transports/tcp/plugin.h"
#include "transports/tcp/test_support.h"
#include "transports/tcp/wire.h"

namespace towline::tcp {

using towline::testing::FakeAgent;
using towline::testing::FakeLink;
using towline::testing::FakePlan;
using towline::testing::turn_until;

inline constexpr std::size_t kBytes = 4u << 20;

inline Deadline soon() { return Deadline::after(monotonic_now_ns(), 60 * kSecondNs); }

inline std::vector<uint8_t> address_of(const std::vector<std::string>& endpoints) {
  return pack_address(endpoints);
}

inline std::vector<std::string> endpoints_of(FakeAgent& agent) {
  std::vector<std::string> endpoints;
  EXPECT_EQ(unpack_address(agent.address(), endpoints), nullptr);
  return endpoints;
}

// Two agents in this process; `a` connects.
class TcpTest : public ::testing::Test {
 protected:
  void open(FakeAgent::Settings settings = {{"tcp.listen", "127.0.0.1:0"}}, uint32_t workers = 1) {
    a = std::make_unique<FakeAgent>(towline_tcp_plugin(), "a", settings, workers);
    b = std::make_unique<FakeAgent>(towline_tcp_plugin(), "b", settings, workers);
    ASSERT_EQ(a->status, Status::kOk) << a->failure;
    ASSERT_EQ(b->status, Status::kOk) << b->failure;
  }
  bool turn(const std::function<bool()>& done) { return turn_until({a.get(), b.get()}, done); }

  FakeLink& connected(uint32_t worker = 0) {
    FakeLink& made = a->connect(*b, 20 * kSecondNs, worker);
    EXPECT_TRUE(turn([&] { return made.ups + made.downs != 0; }));
    EXPECT_EQ(made.ups, 1u) << made.text;
    return made;
  }
  void make_memory(std::size_t bytes = kBytes) {
    local.resize(bytes);
    remote.assign(bytes, 0);
    std::iota(local.begin(), local.end(), uint8_t{1});
    for (std::size_t i = 0; i < bytes; i += 251) local[i] = static_cast<uint8_t>(i >> 8);
    key = b->add(remote.data(), remote.size());
  }
  // Every byte, in blocks.
  const towline_plan* whole(FakePlan& plan, uint32_t block = 65536) {
    for (std::size_t at = 0; at < local.size(); at += block) {
      plan.add(local.data() + at, remote.data() + at,
               static_cast<uint32_t>(std::min<std::size_t>(block, local.size() - at)));
    }
    return plan.plan();
  }
  void move_and_check(FakeLink& link) {
    FakePlan plan(key);
    towline_prepared* write = a->prepare(link, whole(plan), TOWLINE_WRITE);
    ASSERT_EQ(a->submit(write, 1, plan.bytes(), "after the data"), Status::kInProgress);
    ASSERT_TRUE(
        turn([&] { return a->ended(1) && b->accepted_link() && !b->accepted_link()->messages.empty(); }));
    EXPECT_EQ(a->outcome(1), Status::kOk);
    EXPECT_EQ(remote, local);
    EXPECT_EQ(b->accepted_link()->messages.back(), "after the data");
    std::reverse(remote.begin(), remote.end());
    towline_prepared* read = a->prepare(link, plan.plan(), TOWLINE_READ);
    ASSERT_EQ(a->submit(read, 2, plan.bytes()), Status::kInProgress);
    ASSERT_TRUE(turn([&] { return a->ended(2); }));
    EXPECT_EQ(a->outcome(2), Status::kOk);
    EXPECT_EQ(remote, local);
    a->results.clear();
  }
  std::string describe(FakeAgent& agent, const FakeLink& link) {
    char json[2048] = "";
    EXPECT_EQ(agent.connections->describe(link.connection, json, sizeof json), TOWLINE_OK);
    return json;
  }

  std::unique_ptr<FakeAgent> a;
  std::unique_ptr<FakeAgent> b;
  std::vector<uint8_t> local;
  std::vector<uint8_t> remote;
  uint64_t key = 0;
};

}  // namespace towline::tcp
