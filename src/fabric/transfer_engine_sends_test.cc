// Sends into posted receives, and buffer pools.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "base/error.h"
#include "fabric/buffer_pool.h"
#include "fabric/rails.h"
#include "fabric/test_support.h"
#include "fabric/transfer_engine_fixture.h"
#include "fabric/transfer_engine_state.h"

namespace towline::fabric::transfer_engine_sends_test {
namespace {

using testing::eventually;
using testing::kLimitNs;
using testing::Side;

class FabricSends : public ::testing::Test {
 protected:
  FabricSends() {
    to_two = one.engine.connect(two.engine.address());
    for (std::size_t i = 0; i < one.bytes.size(); ++i) one.bytes[i] = static_cast<uint8_t>(i * 11 + i / 256);
  }
  Handle send(uint64_t offset, uint64_t bytes, const TransferOptions& options = {}) {
    Handle number;
    EXPECT_EQ(one.engine.send(to_two, *one.memory, offset, bytes, options, &number), Status::kInProgress);
    return number;
  }
  Handle receive(uint64_t offset, uint64_t bytes, ReceiveOptions options = {}) {
    Handle number;
    EXPECT_EQ(two.engine.receive(*two.memory, offset, bytes, options, &number), Status::kInProgress);
    return number;
  }
  bool same(uint64_t from, uint64_t to, uint64_t bytes) const {
    return std::memcmp(one.bytes.data() + from, two.bytes.data() + to, bytes) == 0;
  }

  Side one;
  Side two;
  Handle to_two;
};

TEST_F(FabricSends, ShortAndLongSendsFillReceivesWhicheverComesFirst) {
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{1}, uint64_t{512}, uint64_t{513}, uint64_t{1} << 20}) {
    for (const bool receive_first : {true, false}) {
      std::fill(two.bytes.begin(), two.bytes.end(), uint8_t{0});
      Handle into;
      if (receive_first) into = receive(3, 1 << 20);
      const Handle sent = send(7, bytes);
      if (!receive_first) {
        EXPECT_EQ(one.engine.wait(sent, 2 * kMillisecondNs), Status::kNotYet);
        into = receive(3, 1 << 20);
      }
      EXPECT_EQ(one.engine.wait(sent, kLimitNs), Status::kOk) << bytes;
      EXPECT_EQ(two.engine.wait(into, kLimitNs), Status::kOk) << bytes;
      Handle from;
      uint64_t size = 99;
      EXPECT_EQ(two.engine.received_from(into, &from, &size), Status::kOk);
      EXPECT_EQ(size, bytes);
      EXPECT_TRUE(same(7, 3, bytes)) << bytes;
      EXPECT_EQ(two.bytes[3 + bytes], 0) << bytes;
      EXPECT_EQ(one.engine.wait_fenced(sent, kLimitNs), Status::kOk);
      EXPECT_EQ(two.engine.wait_fenced(into, kLimitNs), Status::kOk);
      one.engine.release(sent);
      two.engine.release(into);
    }
  }
}

TEST_F(FabricSends, ASendThatIsTooLongEndsOnBothSides) {
  for (const uint64_t bytes : {uint64_t{100}, uint64_t{100'000}}) {
    const Handle into = receive(0, 99);
    const Handle sent = send(0, bytes);
    EXPECT_EQ(one.engine.wait(sent, kLimitNs), Status::kOutOfRange);
    EXPECT_EQ(two.engine.wait(into, kLimitNs), Status::kOutOfRange);
    EXPECT_EQ(two.bytes[0], 0);
  }
}

TEST_F(FabricSends, AReceiveCanNameItsSender) {
  Side three;
  const Handle three_here = two.engine.connect(three.engine.address());
  const Handle two_there = three.engine.connect(two.engine.address());
  ReceiveOptions only;
  only.from = three_here;
  const Handle from_three = receive(0, 4096, only);
  const Handle first = send(0, 2000);
  EXPECT_EQ(one.engine.wait(first, 2 * kMillisecondNs), Status::kNotYet);
  three.bytes[0] = 42;
  Handle sent;
  ASSERT_EQ(three.engine.send(two_there, *three.memory, 0, 1000, {}, &sent), Status::kInProgress);
  EXPECT_EQ(two.engine.wait(from_three, kLimitNs), Status::kOk);
  EXPECT_EQ(two.bytes[0], 42);
  EXPECT_EQ(two.engine.wait(receive(0, 4096), kLimitNs), Status::kOk);
  EXPECT_EQ(one.engine.wait(first, kLimitNs), Status::kOk);
}

TEST_F(FabricSends, WhatNobodyReceivesIsRefusedBeyondABound) {
  TransferEngineOptions small;
  small.max_unexpected = 8;  // two for each peer
  Side strict{small};
  const Handle peer = one.engine.connect(strict.engine.address());
  std::array<Handle, 3> numbers;
  for (Handle& number : numbers)
    ASSERT_EQ(one.engine.send(peer, *one.memory, 0, 10, {}, &number), Status::kInProgress);
  ASSERT_TRUE(eventually([&] {
    return std::count_if(numbers.begin(), numbers.end(),
                         [&](Handle n) { return one.engine.poll(n) == Status::kAgain; }) == 1;
  }));
}

TEST_F(FabricSends, CancelledOrLateSendsAndReceivesAreFencedAndLeaveNothingBehind) {
  const Handle waits = send(0, 100'000);
  EXPECT_EQ(one.engine.wait(waits, 2 * kMillisecondNs), Status::kNotYet);
  one.engine.cancel(waits);
  EXPECT_EQ(one.engine.wait(waits, kLimitNs), Status::kCancelled);
  EXPECT_EQ(one.engine.wait_fenced(waits, kLimitNs), Status::kOk);
  ReceiveOptions limited;
  limited.timeout_ns = 20 * kMillisecondNs;
  std::atomic<int> told{0};
  limited.done = [&](Status status, Handle, uint64_t) { told = static_cast<int>(status); };
  Handle late = receive(0, 100'000, limited);
  Status outcome = two.engine.wait(late, kLimitNs);
  if (outcome == Status::kCancelled) {  // it met the send before the word came that this was cancelled
    late = receive(0, 100'000, limited);
    outcome = two.engine.wait(late, kLimitNs);
  }
  EXPECT_EQ(outcome, Status::kTimedOut);
  EXPECT_EQ(two.engine.wait_fenced(late, kLimitNs), Status::kOk);
  EXPECT_TRUE(eventually([&] { return told == static_cast<int>(Status::kTimedOut); }));
  EXPECT_EQ(two.bytes[0], 0);
  EXPECT_EQ(two.bytes[1], 0);
  two.engine.deregister_memory(two.memory);  // nothing uses it
  one.engine.deregister_memory(one.memory);
}

// Speaks the engines' messages, answers what keeps it alive, and takes no record from others: it gives them no credit.
class Deaf final : public EngineHost {
 public:
  explicit Deaf(std::unique_ptr<Domain> rail) {
    EngineOptions options;
    options.record_bytes += kMessageHeader;
    options.control_kept = true;
    std::vector<std::unique_ptr<Domain>> rails;
    rails.push_back(std::make_unique<Port>(std::move(rail)));
    engine_ = std::make_unique<Engine>(options, std::move(rails), *this);
    carrier_ = std::make_unique<Carrier>(*engine_, CarrierOptions{});
  }

  void connect(std::span<const uint8_t> address) {
    peer_ = carrier_->connect(*decode_carrier_address(address));
  }
  // Grants of a receive to a send that there is not: each wants an answer. Until so many have arrived, or `over`.
  void grant(
      uint32_t count, const std::function<bool()>& over = [] { return false; }) {
    std::vector<uint8_t> message{static_cast<uint8_t>(MessageKind::kGrant)};
    message.resize(1 + 3 * sizeof(uint64_t));
    TransferRequest request;
    request.peer = peer_;
    request.message = message;
    request.has_message = true;
    uint32_t sent = 0;
    const uint64_t until = monotonic_now_ns() + kLimitNs;
    while (done_ < count && !over() && monotonic_now_ns() < until) {
      while (sent < count && engine_->submit(request) == Status::kInProgress) ++sent;
      carrier_->progress(monotonic_now_ns());
      engine_->progress(monotonic_now_ns());
    }
  }
  uint32_t arrived() const { return done_; }

 private:
  class Port final : public testing::PortAround {
   public:
    using PortAround::PortAround;
    std::vector<uint8_t> open(uint32_t connection, ConnectionEnd end) override {
      responds_[connection] = end == ConnectionEnd::kResponder;
      return PortAround::open(connection, end);
    }
    std::size_t poll(Completion* completions, std::size_t capacity) noexcept override {
      const std::size_t count = PortAround::poll(completions, capacity);
      return static_cast<std::size_t>(std::remove_if(completions, completions + count,
                                                     [&](const Completion& one) {
                                                       return one.kind == CompletionKind::kReceive &&
                                                              responds_.at(one.connection);
                                                     }) -
                                      completions);
    }

   private:
    std::map<uint32_t, bool> responds_;
  };

  void complete(uint64_t, const TransferResult&) noexcept override { ++done_; }
  void fenced(uint64_t, uint32_t) noexcept override {}
  void counted(Handle, uint32_t, uint32_t) noexcept override {}
  void received(Handle, std::span<const uint8_t>) noexcept override {}
  void lost(Handle, Status, std::string_view) noexcept override {}
  void send_control(Handle peer, std::span<const uint8_t> message) noexcept override {
    if (carrier_ != nullptr) carrier_->send(peer, message);
  }

  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Carrier> carrier_;
  Handle peer_;
  uint32_t done_ = 0;
};

TEST(FabricReplies, APeerThatTakesNoneEndsItselfAndHoldsUpNoOther) {
  TransferEngineOptions small;
  small.engine.max_transfers = 64;
  std::atomic<int> losses{0};
  std::string why;
  small.on_lost = [&](Handle, const std::string& told) {
    why = told;
    ++losses;
  };
  const auto rails = [] { return make_rails("loopback:replies"); };
  std::vector<uint8_t> bytes(4096, 1);
  TransferEngine one{rails(), small};
  TransferEngine two{rails(), {}};
  const LocalMemory* const in_one = one.register_memory({bytes.data(), bytes.size(), true, true});
  const LocalMemory* const in_two = two.register_memory({bytes.data(), bytes.size(), true, true});
  const Handle to_two = one.connect(two.address());
  const Handle to_one = two.connect(one.address());
  Deaf deaf{make_rail("loopback:replies")};
  deaf.connect(one.address());

  deaf.grant(500);
  ASSERT_EQ(deaf.arrived(), 500u);
  Handle number;
  ASSERT_EQ(one.signal(to_two, {.immediate = 1, .count = 1}, &number), Status::kInProgress);
  EXPECT_EQ(one.wait(number, kLimitNs), Status::kOk);
  Handle receive;
  ASSERT_EQ(one.receive(*in_one, 0, 4096, {}, &receive), Status::kInProgress);
  ASSERT_EQ(two.send(to_one, *in_two, 0, 100, {}, &number), Status::kInProgress);
  EXPECT_EQ(two.wait(number, kLimitNs), Status::kOk);
  EXPECT_EQ(one.wait(receive, kLimitNs), Status::kOk);
  EXPECT_EQ(losses, 0);

  deaf.grant(10'000, [&] { return losses == 1; });
  ASSERT_EQ(losses, 1);
  EXPECT_EQ(why, "there is no room here for what it sends");
  ASSERT_EQ(one.signal(to_two, {.immediate = 1, .count = 1}, &number), Status::kInProgress);
  EXPECT_EQ(one.wait(number, kLimitNs), Status::kOk);
}

// On a slow network, with the write under way.
TEST(FabricCancel, TheReceiverOfASendThatIsCancelledUnderWayLearnsOfItWithin100Milliseconds) {
  constexpr uint64_t kBytes = 32u << 20;
  const auto rails = [](const char* name) {
    std::vector<std::unique_ptr<Domain>> domains;
    domains.push_back(make_rail(name));
    return domains;
  };
  std::vector<uint8_t> source(kBytes);
  std::vector<uint8_t> target(kBytes);
  TransferEngine one{rails("loopback:cancel?rate=1e8"), {}};
  TransferEngine two{rails("loopback:cancel"), {}};
  const LocalMemory* const from = one.register_memory({source.data(), kBytes, true, true});
  const LocalMemory* const to = two.register_memory({target.data(), kBytes, true, true});
  Handle receive;
  ASSERT_EQ(two.receive(*to, 0, kBytes, {}, &receive), Status::kInProgress);
  Handle send;
  ASSERT_EQ(one.send(one.connect(two.address()), *from, 0, kBytes, {}, &send), Status::kInProgress);
  ASSERT_TRUE(eventually([&] { return one.rails()[0].counters.bytes > kBytes / 8; }));
  const uint64_t cancelled_at = monotonic_now_ns();
  one.cancel(send);
  EXPECT_EQ(two.wait(receive, kLimitNs), Status::kCancelled);
  EXPECT_LT(monotonic_now_ns() - cancelled_at, 100 * kMillisecondNs);
  EXPECT_EQ(one.wait(send, kLimitNs), Status::kCancelled);
}

TEST_F(FabricSends, APeerThatGoesEndsItsSendsAndReceives) {
  auto three = std::make_unique<Side>();
  const Handle there = one.engine.connect(three->engine.address());
  Handle number;
  ASSERT_EQ(one.engine.send(there, *one.memory, 0, 100'000, {}, &number), Status::kInProgress);
  EXPECT_EQ(one.engine.wait(number, 5 * kMillisecondNs), Status::kNotYet);
  three.reset();
  EXPECT_EQ(one.engine.wait(number, kLimitNs), Status::kPeerLost);
}

TEST_F(FabricSends, AReceiveFromAPeerThatIsGoneEnds) {
  auto three = std::make_unique<Side>();
  ReceiveOptions only;
  only.from = one.engine.connect(three->engine.address());
  Handle from_three;
  Handle from_any;
  ASSERT_EQ(one.engine.receive(*one.memory, 0, 4096, only, &from_three), Status::kInProgress);
  ASSERT_EQ(one.engine.receive(*one.memory, 4096, 4096, {}, &from_any), Status::kInProgress);
  three.reset();
  EXPECT_EQ(one.engine.wait(from_three, kLimitNs), Status::kPeerLost);
  EXPECT_EQ(one.engine.wait_fenced(from_three, kLimitNs), Status::kOk);
  EXPECT_EQ(one.engine.receive(*one.memory, 0, 4096, only, &from_three), Status::kPeerLost);
  one.engine.disconnect(only.from);
  EXPECT_EQ(one.engine.receive(*one.memory, 0, 4096, only, &from_three), Status::kStale);
  // Nor has it taken the place of others.
  EXPECT_EQ(one.engine.poll(from_any), Status::kInProgress);
  Handle sent;
  ASSERT_EQ(two.engine.send(two.engine.connect(one.engine.address()), *two.memory, 0, 100, {}, &sent),
            Status::kInProgress);
  EXPECT_EQ(one.engine.wait(from_any, kLimitNs), Status::kOk);
}

TEST_F(FabricSends, AReceiveFromAPeerThatIsDisconnectedEnds) {
  ReceiveOptions only;
  only.from = to_two;
  Handle number;
  ASSERT_EQ(one.engine.receive(*one.memory, 0, 4096, only, &number), Status::kInProgress);
  one.engine.disconnect(to_two);
  EXPECT_EQ(one.engine.wait(number, kLimitNs), Status::kClosed);
}

TEST_F(FabricSends, WrongSendsAndReceivesAreRefusedAtOnce) {
  Handle number;
  const uint64_t size = one.bytes.size();
  EXPECT_EQ(one.engine.send(to_two, *one.memory, 1, size, {}, &number), Status::kOutOfRange);
  EXPECT_EQ(one.engine.send({99, 1}, *one.memory, 0, 1, {}, &number), Status::kStale);
  EXPECT_EQ(two.engine.receive(*two.memory, size, 1, {}, &number), Status::kOutOfRange);
  std::vector<uint8_t> closed(100);
  const LocalMemory* memory = two.engine.register_memory({closed.data(), closed.size(), false, false});
  EXPECT_EQ(two.engine.receive(*memory, 0, 1, {}, &number), Status::kPermissionDenied);
}

TEST_F(FabricSends, BuffersOfAPoolAreReceivedIntoAndGoBack) {
  BufferPool pool{two.engine, {.buffer_bytes = 1000, .buffers = 2}};
  EXPECT_EQ(pool.buffer_bytes(), 1024u);
  const auto first = pool.take();
  const auto second = pool.take();
  ASSERT_TRUE(first && second);
  EXPECT_FALSE(pool.take());
  EXPECT_EQ(pool.available(), 0u);
  Handle number;
  ASSERT_EQ(two.engine.receive(pool.memory(), second.offset, 1000, {}, &number), Status::kInProgress);
  const Handle sent = send(5, 900);
  EXPECT_EQ(two.engine.wait(number, kLimitNs), Status::kOk);
  EXPECT_EQ(one.engine.wait(sent, kLimitNs), Status::kOk);
  EXPECT_EQ(std::memcmp(second.address, one.bytes.data() + 5, 900), 0);
  pool.give_back(second.index);
  EXPECT_THROW(pool.give_back(second.index), core::Error);
  EXPECT_EQ(pool.available(), 1u);
  EXPECT_THROW((BufferPool{two.engine, {.buffer_bytes = 0, .buffers = 2}}), core::Error);
}

}  // namespace
}  // namespace towline::fabric::transfer_engine_sends_test
