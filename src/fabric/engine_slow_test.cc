// Hosts that are slow, not gone: making a connection takes some libraries seconds on a loaded machine.
#include <gtest/gtest.h>

#include "fabric/test_support.h"

namespace towline::fabric {
namespace {

using testing::Buffers;
using testing::TestHost;
using testing::World;

// Opening an end takes time, in which its engine does nothing else.
class SlowPort final : public Domain {
 public:
  SlowPort(std::unique_ptr<Domain> port, uint64_t& now_ns, uint64_t open_ns)
      : port_(std::move(port)), now_ns_(now_ns), open_ns_(open_ns) {}

  const DomainTraits& traits() const noexcept override { return port_->traits(); }
  std::vector<uint8_t> address() const override { return port_->address(); }
  Registration register_memory(const MemoryToRegister& memory) override {
    return port_->register_memory(memory);
  }
  void deregister_memory(const Registration& registration) noexcept override {
    port_->deregister_memory(registration);
  }
  std::vector<uint8_t> open(uint32_t connection, ConnectionEnd end) override {
    now_ns_ += open_ns_;
    return port_->open(connection, end);
  }
  void connect(uint32_t connection, std::span<const uint8_t> other_end) override {
    port_->connect(connection, other_end);
  }
  void stop(uint32_t connection) noexcept override { port_->stop(connection); }
  void release(uint32_t connection) noexcept override { port_->release(connection); }
  std::size_t post(uint32_t connection, const WorkRequest* requests, std::size_t count) noexcept override {
    return port_->post(connection, requests, count);
  }
  std::size_t post_receives(uint32_t connection, const ReceiveRequest* requests,
                            std::size_t count) noexcept override {
    return port_->post_receives(connection, requests, count);
  }
  std::size_t poll(Completion* completions, std::size_t capacity) noexcept override {
    return port_->poll(completions, capacity);
  }

 private:
  std::unique_ptr<Domain> port_;
  uint64_t& now_ns_;
  const uint64_t open_ns_;
};

TestHost& add_slow_host(World& world, uint32_t rails, uint64_t open_ns) {
  return world.add_host(rails, {}, {}, [&world, open_ns](std::unique_ptr<Domain> port) {
    return std::make_unique<SlowPort>(std::move(port), world.now_ns, open_ns);
  });
}

// Three rails, of which each takes nearly as long as a connection may take, in one turn.
TEST(FabricSlow, ItsOwnSlownessIsNotHeldAgainstThePeer) {
  World world;
  TestHost& one = add_slow_host(world, 3, 1900 * kMillisecondNs);
  TestHost& two = world.add_host(3);
  Buffers buffers{world, 1 << 20};
  std::deque<std::pair<uint64_t, TestHost::Letter>> held;  // what `two` says arrives a turn or two later
  two.hold = [&](const TestHost::Letter& letter) {
    held.emplace_back(world.now_ns + 3 * kMillisecondNs, letter);
  };
  ASSERT_EQ(one.engine->submit(buffers.request(TransferOp::kWrite, 4096)), Status::kInProgress);
  const auto done = [&] {
    for (; !held.empty() && held.front().first <= world.now_ns; held.pop_front())
      one.engine->on_control(one.peers[1], held.front().second.bytes);
    return one.completions == 1;
  };
  ASSERT_TRUE(world.until(done, 30 * kSecondNs, 100'000));
  EXPECT_EQ(one.outcomes[1].result.status, Status::kOk);
  EXPECT_EQ(buffers.source, buffers.target);
  EXPECT_TRUE(one.losses.empty());
  for (std::size_t rail = 0; rail < 3; ++rail) EXPECT_EQ(one.engine->counters(rail).breaks, 0u) << rail;
}

// The peer answers each message, but late: a connection that it accepts must not always be given up by then.
TEST(FabricSlow, APeerThatAnswersLaterThanAConnectionMayTakeIsReached) {
  World world;
  TestHost& one = world.add_host(1);
  TestHost& two = world.add_host(1);
  Buffers buffers{world, 1 << 20};
  std::deque<std::pair<uint64_t, TestHost::Letter>> held;  // what `two` says arrives three seconds later
  two.hold = [&](const TestHost::Letter& letter) { held.emplace_back(world.now_ns + 3 * kSecondNs, letter); };
  ASSERT_EQ(one.engine->submit(buffers.request(TransferOp::kWrite, 4096)), Status::kInProgress);
  const auto done = [&] {
    for (; !held.empty() && held.front().first <= world.now_ns; held.pop_front())
      one.engine->on_control(one.peers[1], held.front().second.bytes);
    return one.completions == 1;
  };
  ASSERT_TRUE(world.until(done, 30 * kSecondNs, 50'000)) << one.engine->describe();
  EXPECT_EQ(one.outcomes[1].result.status, Status::kOk);
  EXPECT_TRUE(one.losses.empty());
  EXPECT_EQ(one.engine->counters(0).breaks, 1u);
}

// A pause of this host, as of a stopped process: the peer's answers lay here all the while.
TEST(FabricSlow, AHostThatStoodStillDoesNotBlameItsPeer) {
  World world;
  TestHost& one = world.add_host(1);
  TestHost& two = world.add_host(1);
  Buffers buffers{world, 1 << 20};
  std::vector<TestHost::Letter> held;
  two.hold = [&](const TestHost::Letter& letter) { held.push_back(letter); };
  ASSERT_EQ(one.engine->submit(buffers.request(TransferOp::kWrite, 4096)), Status::kInProgress);
  ASSERT_TRUE(world.until([&] { return !held.empty(); }));
  two.hold = nullptr;
  world.step(20 * kSecondNs);
  for (const TestHost::Letter& letter : held) one.engine->on_control(one.peers[1], letter.bytes);
  ASSERT_TRUE(world.until([&] { return one.completions == 1; }));
  EXPECT_EQ(one.outcomes[1].result.status, Status::kOk);
  EXPECT_TRUE(one.losses.empty());
  EXPECT_EQ(one.engine->counters(0).breaks, 0u);
}

}  // namespace
}  // namespace towline::fabric
