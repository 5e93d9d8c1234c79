// Scatter, groups, barriers and waits for counters.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "fabric/transfer_engine_fixture.h"

namespace towline::fabric::transfer_engine_many_test {
namespace {

using testing::eventually;
using testing::kLimitNs;
using testing::kPage;
using testing::Side;

constexpr uint32_t kImmediate = 77;

// One engine that knows all others.
class FabricMany : public ::testing::Test {
 protected:
  void make(uint32_t peers, TransferEngineOptions options = {}) {
    source = std::make_unique<Side>(std::move(options));
    for (std::size_t i = 0; i < source->bytes.size(); ++i)
      source->bytes[i] = static_cast<uint8_t>(i * 13 + i / kPage);
    for (uint32_t i = 0; i < peers; ++i) {
      targets.push_back(std::make_unique<Side>());
      handles.push_back(source->engine.connect(targets.back()->engine.address()));
    }
  }
  bool arrived(const Side& target, uint64_t from, uint64_t to, uint64_t bytes) const {
    return std::equal(source->bytes.begin() + static_cast<std::ptrdiff_t>(from),
                      source->bytes.begin() + static_cast<std::ptrdiff_t>(from + bytes),
                      target.bytes.begin() + static_cast<std::ptrdiff_t>(to));
  }

  std::unique_ptr<Side> source;
  std::vector<std::unique_ptr<Side>> targets;
  std::vector<Handle> handles;
};

TEST_F(FabricMany, AScatterReachesEveryPeerAndCountsEachPartOnce) {
  make(3);
  std::vector<ScatterPart> parts;
  for (uint32_t i = 0; i < 3; ++i) {
    parts.push_back(
        {handles[i], source->memory, i * 3 * kPage + i, &targets[i]->remote, 100 * i, 2 * kPage + i * 10});
    parts.push_back({handles[2 - i], source->memory, 50 * kPage, &targets[2 - i]->remote, 40 * kPage, 17});
  }
  parts.push_back({handles[1], nullptr, 0, nullptr, 0, 0});  // only a count
  TransferOptions options;
  options.immediate = kImmediate;
  options.count = 1;
  Handle number;
  ASSERT_EQ(source->engine.scatter(parts, options, &number), Status::kInProgress);
  EXPECT_EQ(source->engine.wait(number, kLimitNs), Status::kOk);
  EXPECT_EQ(source->engine.wait_fenced(number, kLimitNs), Status::kOk);
  for (uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(targets[i]->engine.wait_counter(kImmediate, i == 1 ? 3 : 2, kLimitNs), Status::kOk);
    EXPECT_EQ(targets[i]->engine.counter(kImmediate), i == 1 ? 3u : 2u);
    EXPECT_TRUE(arrived(*targets[i], i * 3 * kPage + i, 100 * i, 2 * kPage + i * 10)) << i;
    EXPECT_TRUE(arrived(*targets[i], 50 * kPage, 40 * kPage, 17)) << i;
  }
}

// More destinations than the engine has room for: the rest begins as the first end.
TEST_F(FabricMany, AScatterMayBeLargerThanTheEngine) {
  TransferEngineOptions small;
  small.engine.max_transfers = 2;
  make(5, small);
  std::vector<ScatterPart> parts;
  for (uint32_t i = 0; i < 5; ++i)
    parts.push_back({handles[i], source->memory, i * kPage, &targets[i]->remote, 0, kPage});
  Handle number;
  ASSERT_EQ(source->engine.scatter(parts, {}, &number), Status::kInProgress);
  EXPECT_EQ(source->engine.wait(number, kLimitNs), Status::kOk);
  for (uint32_t i = 0; i < 5; ++i) EXPECT_TRUE(arrived(*targets[i], i * kPage, 0, kPage)) << i;
}

TEST_F(FabricMany, APeerThatIsGoneFailsItsPartOnly) {
  make(3);
  source->engine.disconnect(handles[1]);
  std::vector<ScatterPart> parts;
  for (uint32_t i = 0; i < 3; ++i)
    parts.push_back({handles[i], source->memory, 0, &targets[i]->remote, 0, kPage});
  std::atomic<int> told{0};
  TransferOptions options;
  options.done = [&](Status status) { told = static_cast<int>(status); };
  Handle number;
  ASSERT_EQ(source->engine.scatter(parts, options, &number), Status::kInProgress);
  EXPECT_EQ(source->engine.wait(number, kLimitNs), Status::kStale);
  EXPECT_EQ(source->engine.wait_fenced(number, kLimitNs), Status::kOk);
  EXPECT_TRUE(eventually([&] { return told == static_cast<int>(Status::kStale); }));
  EXPECT_TRUE(arrived(*targets[0], 0, 0, kPage));
  EXPECT_TRUE(arrived(*targets[2], 0, 0, kPage));
}

TEST_F(FabricMany, PartsAreCheckedBeforeAnythingMoves) {
  make(1);
  Handle number;
  TransferEngine& engine = source->engine;
  const uint64_t size = source->bytes.size();
  ScatterPart part{handles[0], source->memory, 0, &targets[0]->remote, size - 1, 2};
  EXPECT_EQ(engine.scatter({&part, 1}, {}, &number), Status::kOutOfRange);
  part.remote_offset = 0;
  part.local_offset = size;
  EXPECT_EQ(engine.scatter({&part, 1}, {}, &number), Status::kOutOfRange);
  part.local = nullptr;
  EXPECT_EQ(engine.scatter({&part, 1}, {}, &number), Status::kInvalidArgument);
  EXPECT_EQ(engine.scatter({}, {}, &number), Status::kInvalidArgument);
  // A peer's parts count together, in one record of 32 bits.
  TransferOptions much;
  much.count = 1u << 31;
  const ScatterPart both[] = {{handles[0], nullptr, 0, nullptr, 0, 0},
                              {handles[0], nullptr, 0, nullptr, 0, 0}};
  EXPECT_EQ(engine.scatter(both, much, &number), Status::kLimitExceeded);
  part.bytes = 0;  // and no count either
  EXPECT_EQ(engine.scatter({&part, 1}, {}, &number), Status::kInvalidArgument);
  RemoteMemory closed = targets[0]->remote;
  closed.writable = false;
  part = {handles[0], source->memory, 0, &closed, 0, 2};
  EXPECT_EQ(engine.scatter({&part, 1}, {}, &number), Status::kPermissionDenied);
  EXPECT_EQ(engine.signal_group(1, {}, &number), Status::kInvalidArgument);
  EXPECT_EQ(engine.barrier(1, kImmediate, {}, &number), Status::kStale);
  EXPECT_THROW((void)engine.add_group({}), core::Error);
  const std::vector<Handle> twice{handles[0], handles[0]};
  EXPECT_THROW((void)engine.add_group(twice), core::Error);
}

TEST_F(FabricMany, AGroupIsSignalledAsOne) {
  make(3);
  const uint32_t group = source->engine.add_group(handles);
  TransferOptions options;
  options.immediate = kImmediate;
  options.count = 5;
  Handle number;
  ASSERT_EQ(source->engine.signal_group(group, options, &number), Status::kInProgress);
  EXPECT_EQ(source->engine.wait(number, kLimitNs), Status::kOk);
  for (const auto& target : targets)
    EXPECT_EQ(target->engine.wait_counter(kImmediate, 5, kLimitNs), Status::kOk);
  source->engine.remove_group(group);
  EXPECT_EQ(source->engine.signal_group(group, options, &number), Status::kStale);
}

// Sides that all know each other.
struct Members {
  explicit Members(uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) sides.push_back(std::make_unique<Side>());
    for (uint32_t i = 0; i < count; ++i) {
      std::vector<Handle> others;
      for (uint32_t j = 0; j < count; ++j)
        if (j != i) others.push_back(sides[i]->engine.connect(sides[j]->engine.address()));
      groups.push_back(sides[i]->engine.add_group(others));
    }
  }
  Status enter(uint32_t member, Handle* number, const TransferOptions& options = {}) {
    return sides[member]->engine.barrier(groups[member], kImmediate, options, number);
  }
  std::vector<std::unique_ptr<Side>> sides;
  std::vector<uint32_t> groups;
};

TEST(FabricBarrier, EndsOnceAllHaveEntered) {
  Members members{3};
  for (int round = 0; round < 5; ++round) {
    std::array<Handle, 3> numbers;
    for (uint32_t member = 0; member < 2; ++member)
      ASSERT_EQ(members.enter(member, &numbers[member]), Status::kInProgress);
    // Both have signalled each other, and neither may go on.
    ASSERT_EQ(members.sides[0]->engine.wait_counter(kImmediate, 2 * round + 1, kLimitNs), Status::kOk);
    EXPECT_EQ(members.sides[0]->engine.wait(numbers[0], 2 * kMillisecondNs), Status::kNotYet);
    EXPECT_EQ(members.sides[1]->engine.poll(numbers[1]), Status::kInProgress);
    ASSERT_EQ(members.enter(2, &numbers[2]), Status::kInProgress);
    for (uint32_t member = 0; member < 3; ++member) {
      EXPECT_EQ(members.sides[member]->engine.wait(numbers[member], kLimitNs), Status::kOk);
      members.sides[member]->engine.release(numbers[member]);
    }
  }
}

TEST(FabricBarrier, AMemberThatGoesOrDoesNotComeEndsIt) {
  Members members{3};
  Handle number;
  TransferOptions limited;
  limited.timeout_ns = 30 * kMillisecondNs;
  ASSERT_EQ(members.enter(0, &number, limited), Status::kInProgress);
  EXPECT_EQ(members.sides[0]->engine.wait(number, kLimitNs), Status::kTimedOut);
  EXPECT_EQ(members.enter(0, &number), Status::kStale);  // it does not know any more who has seen what
  ASSERT_EQ(members.enter(1, &number), Status::kInProgress);
  members.sides[2].reset();
  EXPECT_EQ(members.sides[1]->engine.wait(number, kLimitNs), Status::kPeerLost);
}

TEST_F(FabricMany, ACounterCanBeWaitedForMirroredAndToldOf) {
  std::atomic<uint64_t> heard{0};
  make(1);
  uint64_t word = 99;
  TransferEngineOptions hears;
  hears.on_counted = [&](Handle, uint32_t immediate, uint32_t count) {
    if (immediate == kImmediate) heard += count;
  };
  Side receiver{std::move(hears)};
  const Handle peer = source->engine.connect(receiver.engine.address());
  receiver.engine.mirror_counter(kImmediate, &word);
  EXPECT_EQ(std::atomic_ref<uint64_t>{word}.load(), 0u);
  std::atomic<int> called{0};
  TransferOptions options;
  options.done = [&](Status status) { called += status == Status::kOk ? 1 : 100; };
  Handle number;
  ASSERT_EQ(receiver.engine.when_counted(kImmediate, 10, options, &number), Status::kInProgress);
  TransferOptions counts;
  counts.immediate = kImmediate;
  counts.count = 5;
  Handle sent;
  ASSERT_EQ(source->engine.signal(peer, counts, &sent), Status::kInProgress);
  ASSERT_EQ(receiver.engine.wait_counter(kImmediate, 5, kLimitNs), Status::kOk);
  EXPECT_EQ(receiver.engine.poll(number), Status::kInProgress);
  EXPECT_EQ(std::atomic_ref<uint64_t>{word}.load(), 5u);
  ASSERT_EQ(source->engine.signal(peer, counts, &sent), Status::kInProgress);
  EXPECT_EQ(receiver.engine.wait(number, kLimitNs), Status::kOk);
  EXPECT_TRUE(eventually([&] { return called == 1 && heard == 10; }));
  receiver.engine.mirror_counter(kImmediate, nullptr);
  // A value that was reached before.
  ASSERT_EQ(receiver.engine.when_counted(kImmediate, 3, options, nullptr), Status::kInProgress);
  EXPECT_TRUE(eventually([&] { return called == 2; }));
  TransferOptions limited;
  limited.timeout_ns = kMillisecondNs;
  ASSERT_EQ(receiver.engine.when_counted(kImmediate, 1000, limited, &number), Status::kInProgress);
  EXPECT_EQ(receiver.engine.wait(number, kLimitNs), Status::kTimedOut);
}

// Otherwise nobody would know that a count is missing.
TEST_F(FabricMany, APeerThatCountsInMoreCountersThanAreKeptIsLost) {
  make(0);
  std::atomic<int> losses{0};
  TransferEngineOptions few;
  few.max_counters = 2;
  few.on_lost = [&](Handle, const std::string&) { ++losses; };
  Side receiver{std::move(few)};
  const Handle peer = source->engine.connect(receiver.engine.address());
  TransferOptions counts;
  counts.count = 1;
  for (const uint32_t immediate : {1, 2, 1}) {
    counts.immediate = immediate;
    Handle sent;
    ASSERT_EQ(source->engine.signal(peer, counts, &sent), Status::kInProgress);
    ASSERT_EQ(source->engine.wait(sent, kLimitNs), Status::kOk);
  }
  ASSERT_EQ(receiver.engine.wait_counter(1, 2, kLimitNs), Status::kOk);
  EXPECT_EQ(receiver.engine.wait_counter(2, 1, kLimitNs), Status::kOk);
  EXPECT_EQ(losses, 0);
  counts.immediate = 3;
  ASSERT_EQ(source->engine.signal(peer, counts, nullptr), Status::kInProgress);
  EXPECT_TRUE(eventually([&] { return losses == 1; }));
  EXPECT_EQ(receiver.engine.counter(1), 2u);
}

}  // namespace
}  // namespace towline::fabric::transfer_engine_many_test
