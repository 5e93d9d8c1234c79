// Hosts that are slow, not gone: making a connection takes some libraries seconds on a loaded machine.
#include <gtest/gtest.h>

#include <optional>
#include <set>

#include "base/error.h"
#include "fabric/test_support.h"

namespace towline::fabric {
namespace {

using testing::Buffers;
using testing::PortAround;
using testing::TestHost;
using testing::World;

// Opening an end takes time, in which its engine does nothing else.
class SlowPort : public PortAround {
 public:
  SlowPort(std::unique_ptr<Domain> port, uint64_t& now_ns, uint64_t open_ns)
      : PortAround(std::move(port)), now_ns_(now_ns), open_ns_(open_ns) {}

  std::vector<uint8_t> open(uint32_t connection, ConnectionEnd end) override {
    now_ns_ += open_ns_;
    return PortAround::open(connection, end);
  }

 private:
  uint64_t& now_ns_;
  const uint64_t open_ns_;
};

// Takes one end from peers at a time, as endpoints that connections share take one of each peer.
class SharedPort final : public SlowPort {
 public:
  SharedPort(std::unique_ptr<Domain> port, uint64_t& now_ns) : SlowPort(std::move(port), now_ns, 0) {}

  std::vector<uint8_t> open(uint32_t connection, ConnectionEnd end) override {
    if (end == ConnectionEnd::kResponder) responders_.insert(connection);
    return SlowPort::open(connection, end);
  }
  void connect(uint32_t connection, std::span<const uint8_t> other_end) override {
    if (responders_.contains(connection)) {
      if (taken_by_) fail(Status::kUnreachable, "connection {} is there", *taken_by_);
      taken_by_ = connection;
    }
    SlowPort::connect(connection, other_end);
  }
  void release(uint32_t connection) noexcept override {
    responders_.erase(connection);
    if (taken_by_ == connection) taken_by_.reset();
    SlowPort::release(connection);
  }

 private:
  std::set<uint32_t> responders_;
  std::optional<uint32_t> taken_by_;
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
TEST(FabricSlow, WhereControlMessagesAreKeptAPeerThatAnswersLateIsAskedOnce) {
  for (const bool kept : {false, true}) {
    World world;
    EngineOptions options;
    options.control_kept = kept;
    TestHost& host = world.add_host(1, {}, options);
    world.add_host(1);
    std::vector<TestHost::Letter> said;
    host.hold = [&](const TestHost::Letter& letter) { said.push_back(letter); };
    TransferRequest request;
    request.peer = host.peers[1];
    request.count = 1;
    ASSERT_EQ(host.engine->submit(request), Status::kInProgress);
    for (int i = 0; i < 9; ++i) world.step(80 * kMillisecondNs);
    if (kept)
      EXPECT_EQ(said.size(), 1u);
    else
      EXPECT_GT(said.size(), 3u);
    // The host says that it may be lost.
    said.clear();
    host.engine->say_again(host.peers[1]);
    ASSERT_EQ(said.size(), 1u);
    host.hold = nullptr;
    host.letters.push_back(said[0]);
    EXPECT_TRUE(world.until([&] { return world.hosts[1]->counts[0] == 1; }, 10 * kMillisecondNs));
    EXPECT_TRUE(host.letters.empty());
  }
}

// The first host asks for a connection, gives it up and tells that, all of which arrives late and in another order.
class FabricLate : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    TestHost& host = world_.add_host(1);
    world_.add_host(1, {}, {}, [this](std::unique_ptr<Domain> port) {
      return std::make_unique<SharedPort>(std::move(port), world_.now_ns);
    });
    std::vector<std::vector<uint8_t>> said;
    host.hold = [&](const TestHost::Letter& letter) { said.push_back(letter.bytes); };
    TransferRequest request;
    request.peer = host.peers[1];
    request.immediate = 3;
    request.count = 1;
    ASSERT_EQ(host.engine->submit(request), Status::kInProgress);
    ASSERT_TRUE(world_.until([&] { return closes(said); }, 4 * kSecondNs, 10 * kMillisecondNs));
    host.hold = nullptr;
    Engine& other = *world_.hosts[1]->engine;
    other.on_control(world_.hosts[1]->peers[0], said.back());
    world_.hosts[1]->mute = GetParam();  // whether its answer is lost
    other.on_control(world_.hosts[1]->peers[0], said.front());
    world_.hosts[1]->mute = false;
    ASSERT_EQ(other.counters(0).connections, 1u);
  }
  static bool closes(const std::vector<std::vector<uint8_t>>& said) {
    return !said.empty() && decode_control(said.back())->type == ControlType::kClose;
  }

  World world_;
};

TEST_P(FabricLate, AConnectionThatWasGivenUpIsInNobodysWay) {
  EXPECT_TRUE(world_.until([&] { return world_.hosts[1]->counts[3] == 1; }, 3 * kSecondNs, 10'000))
      << world_.hosts[0]->engine->describe() << world_.hosts[1]->engine->describe();
  EXPECT_EQ(world_.hosts[1]->engine->counters(0).connections, 1u);
}

INSTANTIATE_TEST_SUITE_P(AnswerIsLost, FabricLate, ::testing::Bool());

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

// As on a machine where many others use the processors, or of a program that polls a few times a second.
TEST(FabricSlow, AHostThatRunsRarelyLosesASilentPeerToo) {
  for (const uint64_t pause_ns : {50 * kMillisecondNs, 150 * kMillisecondNs, 2 * kSecondNs}) {
    SCOPED_TRACE(pause_ns);
    World world;
    LoopbackOptions slow;
    slow.bytes_per_s = 1'000'000;
    TestHost& one = world.add_host(1, slow);
    TestHost& two = world.add_host(1);
    Buffers buffers{world, 1 << 20};
    ASSERT_EQ(one.engine->submit(buffers.request(TransferOp::kWrite, 4096)), Status::kInProgress);
    ASSERT_TRUE(world.until([&] { return one.engine->counters(0).bytes > 8192; }, kSecondNs, 10'000));
    two.stopped = true;
    world.fabric.kill(1);
    ASSERT_TRUE(world.until([&] { return !one.losses.empty(); }, 150 * pause_ns, pause_ns));
    EXPECT_EQ(one.outcomes[1].result.status, Status::kPeerLost);
  }
}

}  // namespace
}  // namespace towline::fabric
