// A domain that takes fewer requests than it is given gets shorter chains: what it leaves is made again in each turn.
#include <gtest/gtest.h>

#include "fabric/test_support.h"

namespace towline::fabric::engine_chain_test {
namespace {

using testing::Buffers;
using testing::PortAround;
using testing::TestHost;
using testing::World;

// Takes up to `takes` requests between two polls.
struct NarrowPort final : PortAround {
  struct Seen {
    std::size_t takes = 1;
    std::size_t offered = 0;
    std::size_t taken = 0;
    std::size_t longest = 0;
  };
  NarrowPort(std::unique_ptr<Domain> port, Seen& seen) : PortAround(std::move(port)), seen_(seen) {}

  std::size_t post(uint32_t number, const WorkRequest* requests, std::size_t count) noexcept override {
    seen_.offered += count;
    seen_.longest = std::max(seen_.longest, count);
    const std::size_t taken = PortAround::post(number, requests, std::min(count, room_));
    room_ -= taken;
    seen_.taken += taken;
    return taken;
  }
  std::size_t poll(Completion* completions, std::size_t capacity) noexcept override {
    room_ = seen_.takes;
    return PortAround::poll(completions, capacity);
  }

 private:
  Seen& seen_;
  std::size_t room_ = 0;
};

TEST(FabricChain, IsAsLongAsTheDomainTakes) {
  NarrowPort::Seen seen;
  World world;
  LoopbackOptions port;
  port.traits.completes_in_order = false;
  TestHost& one = world.add_host(1, port, {}, [&](std::unique_ptr<Domain> made) {
    return std::make_unique<NarrowPort>(std::move(made), seen);
  });
  world.add_host(1, port);
  constexpr uint64_t kRequests = 1024;
  Buffers buffers{world, kRequests * 4096};
  const auto write = [&](uint64_t cookie) {
    std::fill(buffers.target.begin(), buffers.target.end(), uint8_t{0});
    ASSERT_EQ(one.engine->submit(buffers.request(TransferOp::kWrite, 4096, cookie)), Status::kInProgress);
    ASSERT_TRUE(world.until([&] { return one.completions == cookie; }));
    EXPECT_EQ(one.outcomes[cookie].result.status, Status::kOk);
    EXPECT_EQ(buffers.source, buffers.target);
  };
  write(1);
  EXPECT_GE(seen.taken, kRequests);
  EXPECT_LE(seen.offered, 3 * seen.taken + 64);
  seen = {.takes = 4};
  write(2);
  EXPECT_LE(seen.offered, 3 * seen.taken + 64);
  // It becomes long again where the domain takes all.
  seen = {.takes = 1024};
  write(3);
  EXPECT_LE(seen.offered, seen.taken + 64);
  EXPECT_EQ(seen.longest, port.traits.chain);
}

}  // namespace
}  // namespace towline::fabric::engine_chain_test
