// Domains that take nothing for a while, or for good.
#include <gtest/gtest.h>

#include "fabric/test_support.h"

namespace towline::fabric::engine_refusals_test {
namespace {

using testing::PortAround;
using testing::TestHost;
using testing::World;

struct Refusing final : PortAround {
  Refusing(std::unique_ptr<Domain> port, const bool& refuses)
      : PortAround(std::move(port)), refuses_(refuses) {}
  std::size_t post(uint32_t number, const WorkRequest* requests, std::size_t count) noexcept override {
    return refuses_ ? 0 : PortAround::post(number, requests, count);
  }

 private:
  const bool& refuses_;
};

class FabricRefusals : public ::testing::Test {
 protected:
  void add_host(const bool& refuses) {
    LoopbackOptions port;
    port.traits.completes_in_order = false;  // else a connection ends at once
    world_.add_host(1, port, {}, [&refuses](std::unique_ptr<Domain> made) {
      return std::make_unique<Refusing>(std::move(made), refuses);
    });
  }
  void submit(uint64_t messages) {
    for (uint64_t cookie = 1; cookie <= messages; ++cookie) (void)submit_one(cookie);
  }
  Handle submit_one(uint64_t cookie) {
    TransferRequest request;
    request.peer = one().peers[1];
    request.has_message = true;
    request.cookie = cookie;
    Handle id;
    EXPECT_EQ(one().engine->submit(request, &id), Status::kInProgress);
    return id;
  }
  TestHost& one() { return *world_.hosts[0]; }

  const bool takes_ = false;
  bool refuses_ = false;
  World world_;
};

// The peer has nothing left that it may send, and so nothing of it reminds the one who owes it a credit.
TEST_F(FabricRefusals, CreditsThatWereRefusedAreSentLater) {
  add_host(takes_);
  add_host(refuses_);
  constexpr uint64_t kMessages = 64;
  refuses_ = true;
  submit(kMessages);
  EXPECT_FALSE(world_.until([&] { return one().completions == kMessages; }, 10 * kMillisecondNs));
  EXPECT_LT(one().completions, kMessages);
  Engine& other = *world_.hosts[1]->engine;
  EXPECT_TRUE(other.needs_polls());
  EXPECT_NE(other.next_timer_ns(), kNoDeadline);
  refuses_ = false;
  EXPECT_TRUE(world_.until([&] { return one().completions == kMessages; }, 10 * kMillisecondNs))
      << one().engine->describe();
  EXPECT_FALSE(other.needs_polls());
  EXPECT_EQ(other.next_timer_ns(), kNoDeadline);
  EXPECT_EQ(one().engine->counters(0).breaks, 0u);
}

TEST_F(FabricRefusals, AConnectionThatTakesNothingIsMadeAnew) {
  add_host(refuses_);
  add_host(takes_);
  refuses_ = true;
  submit(1);
  EXPECT_TRUE(world_.until([&] { return one().engine->counters(0).breaks == 2; }, 5 * kSecondNs, 100'000));
  refuses_ = false;
  EXPECT_TRUE(world_.until([&] { return one().completions == 1; }, kSecondNs, 100'000));
  EXPECT_EQ(one().outcomes[1].result.status, Status::kOk);
}

TEST_F(FabricRefusals, OneThatOwesACreditIsMadeAnew) {
  add_host(takes_);
  add_host(refuses_);
  refuses_ = true;
  submit(64);
  Engine& other = *world_.hosts[1]->engine;
  EXPECT_TRUE(world_.until([&] { return other.counters(0).breaks == 1; }, 5 * kSecondNs, 100'000))
      << one().engine->describe() << other.describe();
  EXPECT_EQ(other.next_timer_ns(), kNoDeadline);  // it owes nobody any more
  refuses_ = false;
  EXPECT_TRUE(world_.until([&] { return one().completions == 64; }, kSecondNs, 100'000));
  EXPECT_EQ(world_.hosts[1]->messages.size(), 64u);
}

TEST_F(FabricRefusals, WhatWaitsForOneThatTakesNothingForGoodFails) {
  add_host(refuses_);
  add_host(takes_);
  refuses_ = true;
  submit(3);
  EXPECT_TRUE(world_.until([&] { return one().completions == 3; }, 15 * kSecondNs, 100'000))
      << one().engine->describe();
  for (uint64_t cookie = 1; cookie <= 3; ++cookie)
    EXPECT_EQ(one().outcomes[cookie].result.status, Status::kUnreachable);
}

// Refusals long ago are none of now.
TEST_F(FabricRefusals, RefusalsAreNotCountedTogetherOverAPause) {
  add_host(refuses_);
  add_host(takes_);
  refuses_ = true;
  for (uint64_t cookie = 1; cookie <= 3; ++cookie) {
    const Handle id = submit_one(cookie);
    EXPECT_FALSE(world_.until([&] { return one().completions == cookie; }, 1500 * kMillisecondNs, 100'000));
    one().engine->cancel(id);
    for (int steps = 0; steps < 30; ++steps) world_.step(90 * kMillisecondNs);
    EXPECT_EQ(one().completions, cookie);
  }
  EXPECT_EQ(one().engine->counters(0).breaks, 0u);
}

}  // namespace
}  // namespace towline::fabric::engine_refusals_test
