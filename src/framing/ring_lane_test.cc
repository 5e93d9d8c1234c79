#include "framing/ring_lane.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "base/clock.h"
#include "base/os/futex.h"
#include "base/random.h"
#include "base/sync/wake_path.h"
#include "framing/test_support.h"

namespace towline::framing {
namespace {

using testing::RingPair;

iovec piece(void* data, std::size_t bytes) { return {data, bytes}; }

TEST(RingLane, MovesWhatFitsAndSaysAgain) {
  RingPair rings{64};
  auto [first, second] = rings.lanes();
  uint8_t out[100] = {};
  for (uint8_t i = 0; i < 100; ++i) out[i] = i;
  const iovec pieces[2] = {piece(out, 30), piece(out + 30, 70)};
  EXPECT_EQ(first->write(pieces).bytes, 64u);
  EXPECT_EQ(first->write(pieces).status, Status::kAgain);
  uint8_t in[100] = {};
  const iovec space[2] = {piece(in, 10), piece(in + 10, 90)};
  EXPECT_EQ(second->read(space).bytes, 64u);
  EXPECT_EQ(std::memcmp(in, out, 64), 0);
  EXPECT_EQ(second->read(space).status, Status::kAgain);
}

// A small frame must not wait for a later pass: a caller-driven agent may make none.
TEST(RingLane, SendsEachSmallFrameByItself) {
  RingPair rings{1 << 20};
  auto [first, second] = rings.lanes();
  const Lane::Traits traits = first->traits();
  EXPECT_TRUE(traits.calls_are_cheap);
  EXPECT_EQ(traits.frame_bytes, 256u << 10);
  EXPECT_EQ(traits.read_ahead_bytes, 256u);
  EXPECT_EQ(traits.payload_alignment, 1u);
}

TEST(RingLane, TellsOfFreeRoomLateAndOfAllThatAWaitingWriterNeeds) {
  RingPair rings{64};
  auto [first, second] = rings.lanes();
  uint8_t bytes[64] = {};
  const iovec all = piece(bytes, 64);
  ASSERT_EQ(first->write({&all, 1}).bytes, 64u);
  const iovec little = piece(bytes, 7);
  ASSERT_EQ(second->read({&little, 1}).bytes, 7u);
  EXPECT_EQ(first->write({&all, 1}).status, Status::kAgain);
  const iovec one = piece(bytes, 1);
  ASSERT_EQ(second->read({&one, 1}).bytes, 1u);
  EXPECT_EQ(first->write({&all, 1}).bytes, 8u);
  EXPECT_FALSE(first->arm(true));  // full again: it may sleep, and is told when the reader goes on
  for (int i = 0; i < 64; ++i) ASSERT_EQ(second->read({&one, 1}).bytes, 1u);
  EXPECT_EQ(first->write({&all, 1}).bytes, 64u);
}

TEST(RingLane, CloseIsSeenAfterTheLastByte) {
  RingPair rings{64};
  auto [first, second] = rings.lanes();
  uint8_t byte = 7;
  const iovec one = piece(&byte, 1);
  ASSERT_EQ(first->write({&one, 1}).bytes, 1u);
  first->close();
  EXPECT_TRUE(second->arm(false));
  EXPECT_EQ(second->read({&one, 1}).bytes, 1u);
  EXPECT_EQ(second->read({&one, 1}).status, Status::kClosed);
  EXPECT_EQ(first->read({&one, 1}).status, Status::kClosed);
}

// The thread that sleeps asks for them when it wakes.
TEST(RingLane, NotesTheRingsHeadersForTheNextWake) {
  RingPair rings{1 << 20};
  auto [first, second] = rings.lanes();
  wake_pages().clear();
  EXPECT_FALSE(second->arm(false));
  const auto noted = wake_pages().pages();
  const auto page = [](const void* at) { return reinterpret_cast<uintptr_t>(at) / WakePages::kPageBytes; };
  EXPECT_TRUE(std::any_of(noted.begin(), noted.end(),
                          [&](const std::byte* at) { return page(at) == page(second.get()); }));
  EXPECT_GE(noted.size(), 3u);  // the lane, and a header for each direction
}

TEST(RingLane, LooksEmptyWhenAReadWouldFindNothing) {
  RingPair rings{64};
  auto [first, second] = rings.lanes();
  uint8_t bytes[2] = {};
  const iovec one = piece(bytes, 1);
  const iovec two = piece(bytes, 2);
  EXPECT_TRUE(second->looks_empty());
  ASSERT_EQ(first->write({&two, 1}).bytes, 2u);
  EXPECT_FALSE(second->looks_empty());
  ASSERT_EQ(second->read({&one, 1}).bytes, 1u);
  EXPECT_FALSE(second->looks_empty());
  ASSERT_EQ(second->read({&one, 1}).bytes, 1u);
  EXPECT_TRUE(second->looks_empty());
  rings.forth().header->positions.written.store(1);  // back again
  EXPECT_FALSE(second->looks_empty());
  rings.forth().header->positions.written.store(2);
  EXPECT_TRUE(second->looks_empty());
  first->close();  // is for a read to tell
  EXPECT_FALSE(second->looks_empty());
}

TEST(RingLane, ImpossiblePositionsAreAnError) {
  RingPair rings{64};
  auto [first, second] = rings.lanes();
  rings.forth().header->positions.written.store(65);
  uint8_t byte = 0;
  const iovec one = piece(&byte, 1);
  EXPECT_EQ(second->read({&one, 1}).status, Status::kProtocol);
  EXPECT_TRUE(second->arm(false));
}

TEST(RingLane, WakesOnlyAPeerThatArmed) {
  int wakes = 0;
  const RingLane::WakeHook hook = {[](void* count) { ++*static_cast<int*>(count); }, &wakes};
  RingPair rings{64};
  auto [first, second] = rings.lanes(hook);
  uint8_t byte = 0;
  const iovec one = piece(&byte, 1);
  ASSERT_EQ(first->write({&one, 1}).bytes, 1u);
  EXPECT_EQ(wakes, 0);
  EXPECT_TRUE(second->arm(false));
  ASSERT_EQ(second->read({&one, 1}).bytes, 1u);
  EXPECT_FALSE(second->arm(false));
  ASSERT_EQ(first->write({&one, 1}).bytes, 1u);
  ASSERT_EQ(first->write({&one, 1}).bytes, 1u);
  EXPECT_EQ(wakes, 1);
  second->disarm();
  EXPECT_TRUE(second->arm(false));
}

TEST(RingLane, CountsGoBesideTheStreamToAPeerThatLooks) {
  RingPair rings{64};
  auto [first, second] = rings.lanes();
  EXPECT_FALSE(first->tell_count(1));  // a side that does not look gets frames
  second->look_for_counts();
  EXPECT_EQ(second->told_count(), std::nullopt);
  EXPECT_TRUE(first->tell_count(1));
  EXPECT_TRUE(first->tell_count(2));
  EXPECT_EQ(second->told_count(), 2u);
  EXPECT_EQ(second->told_count(), std::nullopt);
  EXPECT_TRUE(second->looks_empty());
}

TEST(RingLane, ACountIsTakenBehindWhatWasWrittenBeforeIt) {
  RingPair rings{64};
  auto [first, second] = rings.lanes();
  second->look_for_counts();
  uint8_t bytes[2] = {};
  const iovec one = piece(bytes, 1);
  const iovec two = piece(bytes, 2);
  ASSERT_EQ(first->write({&two, 1}).bytes, 2u);
  ASSERT_TRUE(first->tell_count(7));
  EXPECT_EQ(second->told_count(), std::nullopt);
  ASSERT_EQ(second->read({&one, 1}).bytes, 1u);
  EXPECT_EQ(second->told_count(), std::nullopt);
  ASSERT_EQ(second->read({&one, 1}).bytes, 1u);
  first->close();
  EXPECT_EQ(second->read({&one, 1}).status, Status::kClosed);
  EXPECT_EQ(second->told_count(), 7u);
  EXPECT_FALSE(first->tell_count(8));
}

TEST(RingLane, ACountWakesAPeerThatArmedAndKeepsOneAwakeThatHasNotTakenIt) {
  int wakes = 0;
  const RingLane::WakeHook hook = {[](void* count) { ++*static_cast<int*>(count); }, &wakes};
  RingPair rings{64};
  auto [first, second] = rings.lanes(hook);
  second->look_for_counts();
  EXPECT_FALSE(second->arm(false));
  ASSERT_TRUE(first->tell_count(1));
  EXPECT_EQ(wakes, 1);
  EXPECT_TRUE(second->arm(false));
  EXPECT_EQ(second->told_count(), 1u);
  EXPECT_FALSE(second->arm(false));
}

struct Sleeper {
  std::atomic<uint32_t> turn{0};
  static void wake(void* self) {
    auto& sleeper = *static_cast<Sleeper*>(self);
    sleeper.turn.fetch_add(1);
    (void)futex_wake(sleeper.turn, 1);
  }
  void sleep(uint32_t seen) { (void)futex_wait(turn, seen, kNoDeadline); }
};

// Both ends sleep whenever they can; a lost wake-up would hang.
TEST(RingLane, NoWakeUpIsLost) {
  constexpr uint64_t kBytes = 1 << 20;
  RingPair rings{256};
  Sleeper writer;
  Sleeper reader;
  auto [first, second] = rings.lanes({Sleeper::wake, &reader}, {Sleeper::wake, &writer});
  std::thread producer([&, &lane = *first] {
    Random random{1};
    uint8_t data[64];
    for (uint64_t sent = 0; sent < kBytes;) {
      const uint32_t seen = writer.turn.load();
      const std::size_t bytes = std::min<uint64_t>(random.between(1, 64), kBytes - sent);
      for (std::size_t i = 0; i < bytes; ++i) data[i] = static_cast<uint8_t>((sent + i) * 31);
      const iovec one = piece(data, bytes);
      const IoResult result = lane.write({&one, 1});
      sent += result.bytes;
      if (result.status == Status::kAgain && !lane.arm(true)) writer.sleep(seen);
      lane.disarm();
    }
  });
  uint8_t data[64];
  uint64_t wrong = 0;
  for (uint64_t got = 0; got < kBytes;) {
    const uint32_t seen = reader.turn.load();
    const iovec one = piece(data, 64);
    const IoResult result = second->read({&one, 1});
    for (std::size_t i = 0; i < result.bytes; ++i) wrong += data[i] != static_cast<uint8_t>((got + i) * 31);
    got += result.bytes;
    if (result.status == Status::kAgain && !second->arm(false)) reader.sleep(seen);
    second->disarm();
  }
  producer.join();
  EXPECT_EQ(wrong, 0u);
}

// A byte there, a count back, both asleep between.
TEST(RingLane, NoWakeUpForACountIsLost) {
  constexpr uint32_t kTurns = 20'000;
  RingPair rings{64};
  Sleeper asker;
  Sleeper answerer;
  auto [first, second] = rings.lanes({Sleeper::wake, &answerer}, {Sleeper::wake, &asker});
  first->look_for_counts();
  std::thread counting([&, &lane = *second] {
    uint8_t data[1];
    const iovec one = piece(data, 1);
    for (uint32_t got = 0; got < kTurns;) {
      const uint32_t seen = answerer.turn.load();
      const IoResult result = lane.read({&one, 1});
      if (result.status == Status::kOk) (void)lane.tell_count(++got);
      if (result.status == Status::kAgain && !lane.arm(false)) answerer.sleep(seen);
      lane.disarm();
    }
  });
  uint8_t byte = 1;
  const iovec one = piece(&byte, 1);
  for (uint32_t turn = 1; turn <= kTurns; ++turn) {
    EXPECT_EQ(first->write({&one, 1}).bytes, 1u);
    for (bool told = false; !told;) {
      const uint32_t seen = asker.turn.load();
      const std::optional<uint32_t> count = first->told_count();
      EXPECT_EQ(count.value_or(turn), turn);
      told = count.has_value();
      if (!told && !first->arm(false)) asker.sleep(seen);
      first->disarm();
    }
  }
  counting.join();
}

}  // namespace
}  // namespace towline::framing
