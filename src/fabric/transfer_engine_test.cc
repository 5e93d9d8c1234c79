#include "fabric/transfer_engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <numeric>

#include "base/error.h"
#include "base/random.h"
#include "fabric/rails.h"
#include "fabric/transfer_engine_fixture.h"

namespace towline::fabric::transfer_engine_test {
namespace {

using testing::kLimitNs;
using testing::kPage;
using testing::kPages;
using testing::Side;

std::vector<uint32_t> shuffled(uint64_t seed) {
  std::vector<uint32_t> pages(kPages);
  std::iota(pages.begin(), pages.end(), 0u);
  Random random{seed};
  std::shuffle(pages.begin(), pages.end(), random);
  return pages;
}

class FabricTransferEngine : public ::testing::Test {
 protected:
  void meet(Side& one, Side& two) {
    peer_ = one.engine.connect(two.engine.address());
    remote_ = TransferEngine::import(TransferEngine::descriptor(*two.memory));
    for (std::size_t i = 0; i < one.bytes.size(); ++i) one.bytes[i] = static_cast<uint8_t>(i * 7 + i / kPage);
  }
  PageList list(const Side& side) const {
    PageList pages;
    pages.local = side.memory;
    pages.remote = &remote_;
    pages.local_pages = mine_;
    pages.remote_pages = theirs_;
    pages.page_bytes = kPage;
    return pages;
  }

  Handle peer_;
  RemoteMemory remote_;
  std::vector<uint32_t> mine_ = shuffled(1);
  std::vector<uint32_t> theirs_ = shuffled(2);
};

TEST_F(FabricTransferEngine, PagesGoWhereTheIndicesSayAndTheCounterTellsTheReceiver) {
  Side one;
  Side two;
  meet(one, two);
  TransferOptions options;
  options.immediate = 0x80000001;
  options.count = kPages;
  Handle number;
  ASSERT_EQ(one.engine.paged(TransferOp::kWrite, peer_, list(one), options, &number), Status::kInProgress);
  ASSERT_EQ(two.engine.wait_counter(0x80000001, kPages, kLimitNs), Status::kOk);
  for (uint32_t i = 0; i < kPages; ++i)
    ASSERT_TRUE(std::equal(one.bytes.begin() + mine_[i] * kPage, one.bytes.begin() + (mine_[i] + 1) * kPage,
                           two.bytes.begin() + theirs_[i] * kPage));
  EXPECT_EQ(one.engine.wait(number, kLimitNs), Status::kOk);
  EXPECT_EQ(one.engine.wait_fenced(number, kLimitNs), Status::kOk);
  one.engine.release(number);
  EXPECT_EQ(one.engine.poll(number), Status::kStale);

  const std::vector<uint8_t> before = one.bytes;
  std::fill(one.bytes.begin(), one.bytes.end(), uint8_t{0});
  ASSERT_EQ(one.engine.paged(TransferOp::kRead, peer_, list(one), {}, &number), Status::kInProgress);
  EXPECT_EQ(one.engine.wait(number, kLimitNs), Status::kOk);
  EXPECT_EQ(one.bytes, before);
}

// docs/fabric.md and towline/fabric.h promise 992 bytes, whatever the rails.
TEST_F(FabricTransferEngine, AMessageHasUpTo992Bytes) {
  std::atomic<std::size_t> received{0};
  TransferEngineOptions hears;
  hears.on_message = [&](Handle, std::span<const uint8_t> message) { received = message.size(); };
  Side one;
  Side two(std::move(hears));
  meet(one, two);
  std::vector<uint8_t> text(992, uint8_t{7});
  TransferOptions options;
  options.has_message = true;
  options.message = text;
  Handle number;
  ASSERT_EQ(one.engine.signal(peer_, options, &number), Status::kInProgress);
  EXPECT_EQ(one.engine.wait(number, kLimitNs), Status::kOk);
  EXPECT_TRUE(testing::eventually([&] { return received == text.size(); })) << received;
  text.push_back(7);
  options.message = text;
  EXPECT_EQ(one.engine.signal(peer_, options, &number), Status::kLimitExceeded);
}

// Rails have receives of different sizes; what one engine takes must not fall below what the other one asks for.
TEST_F(FabricTransferEngine, EnginesOfDifferentRailsUseThoseThatBothHave) {
  const auto rails = [](std::initializer_list<const char*> names) {
    std::vector<std::unique_ptr<Domain>> made;
    for (const char* const name : names) made.push_back(make_rail(name));
    return made;
  };
  TransferEngine one(rails({"loopback:both have it"}), {});
  TransferEngine two(rails({"ofi:tcp;ofi_rxm@127.0.0.1", "loopback:both have it"}), {});
  TransferOptions options;
  options.immediate = 1;
  options.count = 1;
  Handle number;
  ASSERT_EQ(one.signal(one.connect(two.address()), options, &number), Status::kInProgress);
  EXPECT_EQ(one.wait(number, kLimitNs), Status::kOk);
}

TEST_F(FabricTransferEngine, MessagesArriveAndCallbacksAreCalledOnce) {
  std::atomic<uint64_t> received{0};
  TransferEngineOptions hears;
  hears.on_message = [&](Handle, std::span<const uint8_t> message) { received += message.size(); };
  Side one;
  Side two{std::move(hears)};
  meet(one, two);
  std::atomic<int> called{0};
  const std::vector<uint8_t> text(100, 'x');
  constexpr int kMessages = 200;
  for (int i = 0; i < kMessages; ++i) {
    TransferOptions options;
    options.message = text;
    options.has_message = true;
    options.done = [&](Status status) { called += status == Status::kOk ? 1 : 1000; };
    ASSERT_EQ(one.engine.signal(peer_, options, nullptr), Status::kInProgress);
  }
  const uint64_t end = monotonic_now_ns() + kLimitNs;
  while ((called != kMessages || received != kMessages * text.size()) && monotonic_now_ns() < end)
    sched_yield();
  EXPECT_EQ(called, kMessages);
  EXPECT_EQ(received, kMessages * text.size());
}

TEST_F(FabricTransferEngine, WhatDoesNotFitIsRefusedBeforeAnythingMoves) {
  Side one;
  Side two;
  meet(one, two);
  Handle number;
  const TransferOptions plain;
  mine_.back() = kPages;
  EXPECT_EQ(one.engine.paged(TransferOp::kWrite, peer_, list(one), plain, &number), Status::kOutOfRange);
  mine_.back() = 0;
  theirs_.back() = UINT32_MAX;
  EXPECT_EQ(one.engine.paged(TransferOp::kWrite, peer_, list(one), plain, &number), Status::kOutOfRange);
  theirs_.pop_back();
  EXPECT_EQ(one.engine.paged(TransferOp::kWrite, peer_, list(one), plain, &number), Status::kMismatch);
  EXPECT_EQ(
      one.engine.single(TransferOp::kRead, peer_, *one.memory, 1, remote_, 0, kPages * kPage, plain, &number),
      Status::kOutOfRange);
  EXPECT_EQ(one.engine.single(TransferOp::kRead, peer_, *one.memory, 0, remote_, 0, 0, plain, &number),
            Status::kInvalidArgument);
  EXPECT_EQ(one.engine.signal(peer_, plain, &number), Status::kInvalidArgument);
  EXPECT_EQ(one.engine.signal({77, 1}, plain, &number), Status::kStale);
  remote_.writable = false;
  EXPECT_EQ(one.engine.single(TransferOp::kWrite, peer_, *one.memory, 0, remote_, 0, 10, plain, &number),
            Status::kPermissionDenied);
  EXPECT_THROW((void)one.engine.connect({}), core::Error);
  EXPECT_THROW((void)TransferEngine::import({}), core::Error);
  EXPECT_THROW(one.engine.deregister_memory(&*std::make_unique<LocalMemory>()), core::Error);
  EXPECT_EQ(one.engine.poll({1234, 1}), Status::kStale);
  EXPECT_EQ(one.engine.wait_counter(9, 1, 1000), Status::kNotYet);
}

TEST_F(FabricTransferEngine, APeerThatGoesEndsWhatIsUnderWayToIt) {
  std::atomic<int> losses{0};
  TransferEngineOptions hears;
  hears.on_lost = [&](Handle, const std::string&) { ++losses; };
  Side one{std::move(hears)};
  auto two = std::make_unique<Side>();
  meet(one, *two);
  Handle number;
  ASSERT_EQ(one.engine.paged(TransferOp::kWrite, peer_, list(one), {}, &number), Status::kInProgress);
  ASSERT_EQ(one.engine.wait(number, kLimitNs), Status::kOk);
  two.reset();
  const uint64_t end = monotonic_now_ns() + kLimitNs;
  while (losses == 0 && monotonic_now_ns() < end) sched_yield();
  EXPECT_EQ(losses, 1);
  EXPECT_EQ(one.engine.paged(TransferOp::kWrite, peer_, list(one), {}, &number), Status::kPeerLost);
}

// They are called while it goes: nothing begins any more, and what was begun can be taken apart.
TEST_F(FabricTransferEngine, CallbacksOfAnEngineThatGoesMayCallIt) {
  Side two;
  auto one = std::make_unique<Side>();
  TransferEngine& engine = one->engine;
  const std::vector<uint8_t> address = two.engine.address();
  const Handle peer = engine.connect(address);
  std::vector<uint8_t> room(kPage);
  const LocalMemory* const memory = engine.register_memory({room.data(), room.size(), true, true});
  Handle number;
  int called = 0;
  ReceiveOptions options;
  options.done = [&](Status status, Handle, uint64_t) {
    ++called;
    EXPECT_EQ(status, Status::kClosed);
    TransferOptions counts;
    counts.count = 1;
    EXPECT_EQ(engine.signal(peer, counts, nullptr), Status::kClosed);
    EXPECT_EQ(engine.send(peer, *memory, 0, 100, {}, nullptr), Status::kClosed);
    EXPECT_EQ(engine.receive(*memory, 0, 100, {}, nullptr), Status::kClosed);
    EXPECT_EQ(engine.poll(number), Status::kClosed);
    EXPECT_THROW((void)engine.connect(address), core::Error);
    engine.cancel(number);
    engine.release(number);
    engine.disconnect(peer);
    engine.deregister_memory(memory);
    EXPECT_EQ(engine.counter(1), 0u);
    EXPECT_EQ(engine.rails().size(), 2u);
  };
  ASSERT_EQ(engine.receive(*memory, 0, kPage, options, &number), Status::kInProgress);
  one.reset();
  EXPECT_EQ(called, 1);
}

TEST_F(FabricTransferEngine, ATimeoutOrCancelEndsATransferThatCanNotMove) {
  EngineOptions slow;
  slow.control_retry_ns = kSecondNs;
  TransferEngineOptions options;
  options.engine = slow;
  Side one{options};
  Side two;
  CarrierAddress silent = *decode_carrier_address(two.engine.address());
  // A port that takes connections and says nothing.
  ListeningSocket port{parse_endpoint("127.0.0.1:0", 0)};
  silent.endpoints = {port.address().endpoint()};
  meet(one, two);
  silent.engine.engine = Id::random();
  const Handle nobody = one.engine.connect(encode(silent));
  Handle number;
  TransferOptions limited;
  limited.timeout_ns = 50 * kMillisecondNs;
  limited.count = 1;
  ASSERT_EQ(one.engine.signal(nobody, limited, &number), Status::kInProgress);
  const uint64_t start = monotonic_now_ns();
  EXPECT_EQ(one.engine.wait(number, kLimitNs), Status::kTimedOut);
  EXPECT_LT(monotonic_now_ns() - start, 3 * kSecondNs);
  limited.timeout_ns = kNoDeadline;
  ASSERT_EQ(one.engine.signal(nobody, limited, &number), Status::kInProgress);
  EXPECT_EQ(one.engine.poll(number), Status::kInProgress);
  one.engine.cancel(number);
  EXPECT_EQ(one.engine.wait(number, kLimitNs), Status::kCancelled);
  EXPECT_EQ(one.engine.wait_fenced(number, kLimitNs), Status::kOk);
}

TEST_F(FabricTransferEngine, TheWorkerRunsOnTheProcessorThatWasAskedFor) {
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof allowed, &allowed), 0);
  int last = -1;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &allowed)) last = cpu;
  TransferEngineOptions pinned;
  pinned.worker_cpu = last;
  Side one{pinned};
  Side two;
  meet(one, two);
  std::atomic<int> ran{-1};
  TransferOptions options;
  options.count = 1;
  options.done = [&](Status) {
    cpu_set_t mine;
    sched_getaffinity(0, sizeof mine, &mine);
    ran = CPU_COUNT(&mine) == 1 ? sched_getcpu() : CPU_SETSIZE;
  };
  ASSERT_EQ(one.engine.signal(peer_, options, nullptr), Status::kInProgress);
  const uint64_t end = monotonic_now_ns() + kLimitNs;
  while (ran == -1 && monotonic_now_ns() < end) sched_yield();
  EXPECT_EQ(ran, last);
  pinned.worker_cpu = CPU_SETSIZE + 1;
  EXPECT_THROW(Side{pinned}, core::Error);
}

}  // namespace
}  // namespace towline::fabric::transfer_engine_test
