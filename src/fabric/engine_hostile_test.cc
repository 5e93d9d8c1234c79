// A peer that says anything: what is between the others goes on, and what goes to it ends in time.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/random.h"
#include "fabric/test_support.h"

namespace towline::fabric {
namespace {

using testing::Buffers;
using testing::TestHost;
using testing::World;

constexpr uint32_t kLiar = 2;  // its host's number

// Control messages that a peer's host takes for the peer's. Some are its engine's own with other values, some it makes up.
class Liar {
 public:
  Liar(World& world, uint64_t seed) : world_(world), random_(seed) {
    host().hold = [this](const TestHost::Letter& letter) { say_instead_of(letter); };
  }
  ~Liar() { host().hold = nullptr; }

  void make_up(std::size_t count) {
    for (; count != 0; --count) {
      const auto to = static_cast<uint32_t>(random_.below(kLiar));
      ControlMessage message;
      message.from = host().engine->id();
      message.to = world_.hosts[to]->engine->id();
      change(message);
      change(message);
      change(message);
      send(host().peers[to], message);
    }
  }

 private:
  TestHost& host() { return *world_.hosts[kLiar]; }

  void say_instead_of(const TestHost::Letter& letter) {
    auto message = decode_control(letter.bytes);
    ASSERT_TRUE(message);
    ids_.push_back(message->connection);
    if (random_.below(4) == 0) return;  // nothing
    if (random_.below(2) == 0) change(*message);
    for (uint64_t times = 1 + random_.below(2); times != 0; --times) send(letter.peer, *message);
  }

  void send(Handle peer, const ControlMessage& message) {
    const auto bytes = encode(message);
    TestHost::Letter letter{peer, {bytes.data.begin(), bytes.data.begin() + bytes.size}};
    if (!letter.bytes.empty() && random_.below(8) == 0)
      letter.bytes[random_.below(letter.bytes.size())] ^= static_cast<uint8_t>(1 + random_.below(255));
    host().letters.push_back(std::move(letter));
  }

  void change(ControlMessage& message) {
    switch (random_.below(7)) {
      case 0:
        message.type = static_cast<ControlType>(1 + random_.below(7));
        break;
      case 1:  // one of its own, or one that others may have
        message.connection = !ids_.empty() && random_.below(2) == 0
                                 ? ids_[random_.below(ids_.size())]
                                 : random_.below(20) << 24 | random_.below(3) << 16 | random_.below(6);
        break;
      case 2:
        message.initiator_rail = static_cast<uint8_t>(random_.below(20));
        message.responder_rail = static_cast<uint8_t>(random_.below(3));
        break;
      case 3:
        message.record_bytes = static_cast<uint32_t>(random_.next() >> random_.below(64));
        message.credits = static_cast<uint32_t>(random_.next() >> random_.below(64));
        break;
      case 4:
        message.status = static_cast<Status>(static_cast<int32_t>(random_.next() >> random_.below(64)));
        break;
      case 5:  // no end of anybody: that a NIC lets nobody in without both ends' consent is not the engine's
        endpoint_.resize(random_.below(16));
        for (uint8_t& byte : endpoint_) byte = static_cast<uint8_t>(0x80 | random_.below(128));
        message.endpoint = endpoint_;
        break;
      case 6:
        message.seen_base = random_.next() >> random_.below(64);
        for (uint64_t& word : message.seen_bits) word = random_.next();
        break;
    }
  }

  World& world_;
  Random random_;
  std::vector<uint64_t> ids_;
  std::vector<uint8_t> endpoint_;
};

TEST(FabricHostile, APeerThatSaysAnythingHarmsNothingBetweenOthersAndHoldsUpNobody) {
  constexpr uint64_t kSeeds = 40;
  constexpr int kRounds = 20;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    World world{seed};
    for (uint32_t host = 0; host <= kLiar; ++host) world.add_host(2);
    TestHost& honest = *world.hosts[0];
    Buffers good{world, 64 << 10};
    Buffers bad{world, 64 << 10, 0, kLiar};
    Liar liar{world, seed};
    uint64_t cookie = 0;
    bool bad_is_free = true;
    for (int round = 0; round < kRounds; ++round) {
      liar.make_up(20);
      TransferRequest theirs = bad.request(TransferOp::kWrite, 4096, ++cookie);
      theirs.deadline_ns = world.now_ns + 100 * kMillisecondNs;
      const uint64_t to_liar = cookie;
      const bool sent = bad_is_free && honest.engine->submit(theirs) == Status::kInProgress;
      TransferRequest lie;
      lie.peer = world.hosts[kLiar]->peers[round % 2];
      lie.immediate = 9;
      lie.count = 1;
      lie.cookie = cookie;
      lie.deadline_ns = theirs.deadline_ns;
      (void)world.hosts[kLiar]->engine->submit(lie);
      std::fill(good.target.begin(), good.target.end(), uint8_t{0});
      TransferRequest ours = good.request(TransferOp::kWrite, 4096, ++cookie);
      ours.immediate = 7;
      ours.count = 1;
      const uint64_t to_friend = cookie;
      ASSERT_EQ(honest.engine->submit(ours), Status::kInProgress);
      ASSERT_TRUE(world.until([&] { return honest.outcomes[to_friend].completed == 1; }, kSecondNs, 10'000))
          << honest.engine->describe();
      EXPECT_EQ(honest.outcomes[to_friend].result.status, Status::kOk);
      EXPECT_EQ(good.target, good.source);
      if (!sent) continue;
      ASSERT_TRUE(world.until([&] { return honest.outcomes[to_liar].completed == 1; }, kSecondNs, 10'000))
          << honest.engine->describe();
      bad_is_free = honest.outcomes[to_liar].fences == kFencedBoth;
      if (!bad_is_free)
        bad_is_free =
            world.until([&] { return honest.outcomes[to_liar].fences != 0; }, 10 * kSecondNs, 100'000);
      EXPECT_TRUE(bad_is_free) << honest.engine->describe();
    }
    EXPECT_TRUE(world.until([&] { return world.hosts[1]->counts[7] == kRounds; }, kSecondNs, 10'000));
    for (int i = 0; i < 1000; ++i) world.step(10'000);
    EXPECT_EQ(world.hosts[1]->counts[7], static_cast<uint64_t>(kRounds));
    for (const std::string& why : world.hosts[1]->losses) ADD_FAILURE() << why;
    for (const auto& [number, outcome] : honest.outcomes) EXPECT_LE(outcome.completed, 1u) << number;
    for (const auto& host : world.hosts) host->engine->close();
  }
}

}  // namespace
}  // namespace towline::fabric
