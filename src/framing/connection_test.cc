#include "framing/connection.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "base/os/unique_fd.h"
#include "framing/test_support.h"
#include "framing/wire.h"
#include "towline/plugin/cursor.hpp"

namespace towline::framing {
namespace {

using testing::FakePlan;
using testing::RingPair;
using testing::Side;

struct Medium {
  const char* name;
  std::size_t ring_bytes;  // 0: sockets
  int lanes;
};

void PrintTo(const Medium& medium, std::ostream* out) { *out << medium.name; }

// Two connections joined by lanes; `a` initiates, `b` owns.
class ConnectionTest : public ::testing::TestWithParam<Medium> {
 protected:
  void join(const ConnectionOptions& options = {}) {
    a_ = std::make_unique<Side>(options);
    b_ = std::make_unique<Side>(options);
    for (int i = 0; i < GetParam().lanes; ++i) {
      testing::LanePair lanes;
      if (GetParam().ring_bytes == 0) {
        lanes = testing::socket_lanes();
      } else {
        rings_.push_back(std::make_unique<RingPair>(GetParam().ring_bytes));
        lanes = rings_.back()->lanes();
      }
      a_->connection.add_lane(std::move(lanes.first));
      b_->connection.add_lane(std::move(lanes.second));
    }
    b_->host.on_message = [this](std::string_view text) {
      messages_.emplace_back(text);
      if (at_message_) at_message_();
    };
  }

  void make_memory(std::size_t bytes) {
    local_.resize(bytes);
    remote_.resize(bytes);
    std::iota(local_.begin(), local_.end(), uint8_t{1});
    key_ = b_->host.add(remote_.data(), remote_.size());
  }

  void run(uint64_t cookie) {
    for (int i = 0; i < 100000 && !a_->host.ended(cookie); ++i) turn();
    ASSERT_TRUE(a_->host.ended(cookie));
  }
  uint32_t turn() {
    const uint32_t at_a = a_->progress();
    return at_a + b_->progress();
  }
  void settle() {
    while (turn() != 0) {
    }
  }

  std::vector<std::unique_ptr<RingPair>> rings_;
  std::unique_ptr<Side> a_;
  std::unique_ptr<Side> b_;
  std::vector<uint8_t> local_;
  std::vector<uint8_t> remote_;
  std::vector<std::string> messages_;
  std::function<void()> at_message_;
  uint64_t key_ = 0;
};

TEST_P(ConnectionTest, SmallWriteArrivesWithItsMessageBehindIt) {
  join();
  make_memory(64);
  FakePlan plan{key_};
  plan.add(local_.data(), remote_.data(), 64);
  bool seen = false;
  at_message_ = [&] { seen = remote_ == local_; };
  towline_prepared* prepared = a_->prepare(plan.plan(), TOWLINE_WRITE);
  ASSERT_EQ(a_->submit(prepared, 7, 0, 64, "done"), Status::kInProgress);
  run(7);
  EXPECT_EQ(a_->host.status(7), Status::kOk);
  EXPECT_EQ(a_->host.result(7).bytes, 64u);
  EXPECT_EQ(a_->host.result(7).fences, 3u);
  EXPECT_EQ(messages_, std::vector<std::string>{"done"});
  EXPECT_TRUE(seen);
  EXPECT_EQ(b_->host.pins_held(), 0u);
  EXPECT_TRUE(a_->connection.idle());
  EXPECT_TRUE(b_->connection.idle());
}

// Scattered both ways, sizes from one byte to beyond a frame, part of a plan.
TEST_P(ConnectionTest, LargeScatteredPartsMoveEveryByteBothWays) {
  for (const bool checksum : {false, true}) {
    ConnectionOptions options;
    options.checksum = checksum;
    options.max_segments = 40;
    join(options);
    make_memory(8 << 20);
    for (const uint32_t op : {TOWLINE_WRITE, TOWLINE_READ}) {
      FakePlan plan{key_};
      uint32_t length = 1;
      std::size_t low = 0;
      std::size_t high = remote_.size();
      while (high - low >= 2 * std::size_t{length}) {
        high -= length;
        plan.add(local_.data() + low, remote_.data() + high, length);
        low += length;
        length = length * 5 % 70001;
      }
      const uint64_t begin = 12345;
      const uint64_t end = plan.bytes() - 777;
      const std::vector<uint8_t> before = op == TOWLINE_WRITE ? remote_ : local_;
      const uint64_t cookie = 100 + op;
      at_message_ = [&] { EXPECT_FALSE(a_->host.ended(cookie) && op == TOWLINE_WRITE && messages_.empty()); };
      ASSERT_EQ(a_->submit(a_->prepare(plan.plan(), op), cookie, begin, end, "after"), Status::kInProgress);
      run(cookie);
      EXPECT_EQ(a_->host.status(cookie), Status::kOk);
      EXPECT_EQ(a_->host.result(cookie).bytes, end - begin);
      plugin::Cursor cursor{*plan.plan()};
      towline_segment segment;
      std::vector<uint8_t> expected = before;
      while (cursor.next(&segment, 1, 1) != 0) {
        const uint64_t at = cursor.position() - 1;
        if (at < begin || at >= end) continue;
        const auto from_local = segment.local - reinterpret_cast<uint64_t>(local_.data());
        const auto from_remote = segment.remote - reinterpret_cast<uint64_t>(remote_.data());
        if (op == TOWLINE_WRITE)
          expected[from_remote] = local_[from_local];
        else
          expected[from_local] = remote_[from_remote];
      }
      EXPECT_TRUE((op == TOWLINE_WRITE ? remote_ : local_) == expected);
      settle();
      EXPECT_EQ(messages_.size(), op == TOWLINE_WRITE ? 1u : 2u);
    }
    EXPECT_EQ(b_->host.pins_held(), 0u);
    messages_.clear();
  }
}

TEST_P(ConnectionTest, MessagesComeInOrderAndAgainWhenTheQueueIsFull) {
  join();
  int sent = 0;
  std::string text(5000, 'x');
  const auto send = [&] {
    const std::string message = std::to_string(sent) + text;
    return static_cast<Status>(a_->connection.send(message.data(), message.size()));
  };
  while (send() == Status::kOk) ++sent;
  ASSERT_GT(sent, 40);
  const int first = sent;
  while (sent < first + 50) {
    turn();
    while (sent < first + 50 && send() == Status::kOk) ++sent;
  }
  settle();
  ASSERT_EQ(messages_.size(), static_cast<std::size_t>(sent));
  for (int i = 0; i < sent; ++i) EXPECT_EQ(messages_[i], std::to_string(i) + text);
  const std::string largest(TOWLINE_MAX_MESSAGE_BYTES, 'y');
  EXPECT_EQ(static_cast<Status>(a_->connection.send(largest.data(), largest.size())), Status::kOk);
  settle();
  EXPECT_EQ(messages_.back(), largest);
}

TEST_P(ConnectionTest, OwnerRefusesBadKeyBoundsAndAccessAndOthersGoOn) {
  join();
  make_memory(4 << 20);
  const uint64_t read_only = b_->host.add(remote_.data(), remote_.size(), TOWLINE_ACCESS_READ);
  struct Case {
    uint64_t key;
    int64_t shift;
    uint32_t op;
    Status expected;
  };
  const auto size = static_cast<uint32_t>(remote_.size());
  for (const uint32_t bytes : {64u, 300000u, size}) {
    uint64_t cookie = 1000 * bytes;
    for (const Case& c :
         {Case{99, 0, TOWLINE_WRITE, Status::kStale}, Case{99, 0, TOWLINE_READ, Status::kStale},
          Case{key_, size, TOWLINE_WRITE, Status::kOutOfRange},
          Case{key_, size, TOWLINE_READ, Status::kOutOfRange},
          Case{read_only, 0, TOWLINE_WRITE, Status::kPermissionDenied}}) {
      FakePlan bad{c.key};
      bad.add(local_.data(), remote_.data() + c.shift, bytes);
      FakePlan good{key_};
      good.add(local_.data(), remote_.data(), bytes);
      ++cookie;
      ASSERT_EQ(a_->submit(a_->prepare(bad.plan(), c.op), cookie, 0, bytes, "never"), Status::kInProgress);
      ASSERT_EQ(a_->submit(a_->prepare(good.plan(), c.op), cookie + 500, 0, bytes), Status::kInProgress);
      run(cookie);
      run(cookie + 500);
      EXPECT_EQ(a_->host.status(cookie), c.expected);
      EXPECT_EQ(a_->host.result(cookie).bytes, 0u);
      EXPECT_EQ(a_->host.result(cookie).fences, 3u);
      EXPECT_EQ(a_->host.result(cookie).failed_begin, 0u);
      EXPECT_EQ(a_->host.result(cookie).failed_end, bytes);
      EXPECT_EQ(a_->host.status(cookie + 500), Status::kOk);
    }
  }
  settle();
  EXPECT_TRUE(messages_.empty());
  EXPECT_FALSE(a_->connection.down());
}

// One frame in the middle hits a hole: the message must not come, though the last frame carries it.
TEST_P(ConnectionTest, MessageOfAPartRefusedInTheMiddleIsDropped) {
  ConnectionOptions options;
  options.max_frame_bytes = 64 << 10;
  join(options);
  make_memory(1 << 20);
  FakePlan plan{key_};
  for (uint32_t i = 0; i < 16; ++i) {
    const bool hole = i == 5;
    plan.add(local_.data() + i * 65536, hole ? local_.data() : remote_.data() + i * 65536, 65536);
  }
  ASSERT_EQ(a_->submit(a_->prepare(plan.plan(), TOWLINE_WRITE), 1, 0, plan.bytes(), "no"),
            Status::kInProgress);
  run(1);
  settle();
  EXPECT_EQ(a_->host.status(1), Status::kOutOfRange);
  EXPECT_LE(a_->host.result(1).failed_begin, 5 * 65536u);
  EXPECT_GE(a_->host.result(1).failed_end, 6 * 65536u);
  EXPECT_TRUE(messages_.empty());
}

TEST_P(ConnectionTest, CancelledPartsEndOnceAndOthersGoOn) {
  join();
  make_memory(16 << 20);
  FakePlan plan{key_};
  plan.add(local_.data(), remote_.data(), 16 << 20);
  uint64_t cookie = 0;
  for (const uint32_t op : {TOWLINE_WRITE, TOWLINE_READ}) {
    for (int turns = 0; turns < 12; ++turns) {
      towline_prepared* prepared = a_->prepare(plan.plan(), op);
      ++cookie;
      ASSERT_EQ(a_->submit(prepared, cookie, 0, plan.bytes(), "m"), Status::kInProgress);
      for (int i = 0; i < turns; ++i) turn();
      const bool ended = a_->host.ended(cookie);
      a_->connection.cancel(cookie);
      run(cookie);
      const towline_part_result& result = a_->host.result(cookie);
      EXPECT_EQ(result.fences, uint32_t{TOWLINE_PART_FENCED_LOCAL | TOWLINE_PART_FENCED_REMOTE});
      EXPECT_EQ(b_->host.pins_held(), 0u) << "the owner has done with its memory";
      if (result.status == 0) {
        EXPECT_EQ(result.bytes, plan.bytes());
      } else {
        EXPECT_FALSE(ended);
        EXPECT_EQ(a_->host.status(cookie), Status::kCancelled);
        EXPECT_LT(result.failed_begin, result.failed_end);
      }
      if (op == TOWLINE_READ) {  // what still comes must not land
        std::vector<uint8_t> before = local_;
        std::fill(remote_.begin(), remote_.end(), static_cast<uint8_t>(cookie));
        settle();
        EXPECT_TRUE(before == local_);
      }
    }
  }
  settle();
  EXPECT_EQ(a_->host.twice, 0u);
  EXPECT_EQ(b_->host.pins_held(), 0u);
  EXPECT_TRUE(a_->connection.idle());
  EXPECT_TRUE(b_->connection.idle());
}

TEST_P(ConnectionTest, FailEndsEverythingOnceAndReportsOnce) {
  join();
  make_memory(16 << 20);
  FakePlan plan{key_};
  plan.add(local_.data(), remote_.data(), 16 << 20);
  towline_prepared* write = a_->prepare(plan.plan(), TOWLINE_WRITE);
  towline_prepared* read = a_->prepare(plan.plan(), TOWLINE_READ);
  for (uint64_t i = 0; i < 10; ++i) {
    ASSERT_EQ(a_->submit(i % 2 == 0 ? write : read, i, 0, plan.bytes()), Status::kInProgress);
  }
  turn();
  a_->connection.fail(Status::kTimedOut, "silent");
  a_->connection.fail(Status::kTimedOut, "again");
  EXPECT_EQ(a_->host.completions, 10u);
  for (uint64_t i = 0; i < 10; ++i) {
    EXPECT_EQ(a_->host.status(i), Status::kPeerLost);
    EXPECT_TRUE(a_->host.result(i).fences & TOWLINE_PART_FENCED_LOCAL);
  }
  ASSERT_EQ(a_->host.events.size(), 1u);
  EXPECT_EQ(a_->host.events[0].status, Status::kTimedOut);
  EXPECT_EQ(a_->submit(write, 99, 0, 64), Status::kPeerLost);
  settle();
  ASSERT_EQ(b_->host.events.size(), 1u);
  EXPECT_EQ(b_->host.events[0].event, static_cast<uint32_t>(TOWLINE_CONNECTION_DOWN));
  EXPECT_EQ(b_->host.pins_held(), 0u);
}

TEST_P(ConnectionTest, CloseSaysGoodbye) {
  join();
  a_->connection.close();
  settle();
  EXPECT_TRUE(a_->host.events.empty());
  ASSERT_EQ(b_->host.events.size(), 1u);
  EXPECT_EQ(b_->host.events[0].text, "the peer said goodbye");
}

TEST_P(ConnectionTest, ManySmallWritesAllComplete) {
  join();
  make_memory(1 << 16);
  FakePlan plan{key_};
  for (uint32_t i = 0; i < 1024; ++i) plan.add(local_.data() + i * 64, remote_.data() + i * 64, 64);
  towline_prepared* prepared = a_->prepare(plan.plan(), TOWLINE_WRITE);
  uint64_t accepted = 0;
  for (uint64_t i = 0; i < 5000;) {
    const Status status = a_->submit(prepared, i, i % 1024 * 64, i % 1024 * 64 + 64, std::to_string(i));
    if (status == Status::kInProgress) {
      ++accepted;
      ++i;
    } else {
      ASSERT_EQ(status, Status::kAgain);
      turn();
    }
  }
  while (a_->host.completions < accepted) ASSERT_NE(turn(), 0u);
  EXPECT_TRUE(local_ == remote_);
  EXPECT_EQ(messages_.size(), 5000u);
}

// Over rings an owner's count takes no frame; one that its peer does not look for does.
// ---- frames that do not end

// The owner's side of a connection, and a peer that writes what the test wants.
class FrameTest : public ::testing::Test {
 protected:
  FrameTest() {
    int fds[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) != 0) std::abort();
    peer_.reset(fds[0]);
    options_.frame_timeout_ns = 10 * kSecondNs;
    options_.refusals = std::make_shared<RefusalBudget>(3);
    owner_ = std::make_unique<Side>(options_);
    owner_->connection.add_lane(std::make_unique<testing::FdLane>(fds[1]));
    memory_.resize(1 << 20);
    key_ = owner_->host.add(memory_.data(), memory_.size());
  }
  void say(const void* data, std::size_t bytes) {
    ASSERT_EQ(::send(peer_.get(), data, bytes, MSG_NOSIGNAL), static_cast<ssize_t>(bytes));
  }
  void ask(FrameType type, uint32_t bytes, uint64_t key) {
    std::vector<uint8_t> preamble(kHeaderBytes + sizeof(WireSegment));
    const WireSegment segment = {key, reinterpret_cast<uint64_t>(memory_.data()), bytes};
    std::memcpy(preamble.data() + kHeaderBytes, &segment, sizeof segment);
    FrameHeader header;
    header.type = type;
    header.segment_count = 1;
    header.sequence = sequence_++;
    header.part = 1;
    if (type == FrameType::kWrite) header.payload_bytes = bytes;
    if (type == FrameType::kRead) header.extent = bytes;
    encode_header(header, preamble.data());
    say(preamble.data(), preamble.size());
  }
  void pass(uint64_t ns = 0) {
    owner_->host.clock.advance(ns);
    for (int i = 0; i < 100; ++i) owner_->progress();
  }

  UniqueFd peer_;
  ConnectionOptions options_;
  std::unique_ptr<Side> owner_;
  std::vector<uint8_t> memory_;
  uint64_t key_ = 0;
  uint32_t sequence_ = 0;
};

TEST_F(FrameTest, OfAPeerThatStopsInTheMiddleHoldsMemoryForItsTimeOnly) {
  ask(FrameType::kWrite, 1 << 20, key_);
  pass();
  EXPECT_EQ(owner_->host.pins_held(), 1u);
  EXPECT_NE(owner_->connection.frame_deadline_ns(), kNoDeadline);
  pass(9 * kSecondNs);
  EXPECT_FALSE(owner_->connection.down());
  say("some", 4);  // time begins anew with each byte
  pass();
  pass(9 * kSecondNs);
  EXPECT_FALSE(owner_->connection.down());
  pass(kSecondNs);
  EXPECT_TRUE(owner_->connection.down());
  EXPECT_EQ(owner_->host.pins_held(), 0u);
  ASSERT_EQ(owner_->host.events.size(), 1u);
  EXPECT_EQ(owner_->host.events[0].status, Status::kPeerLost);
  EXPECT_NE(owner_->host.events[0].text.find("middle of a frame"), std::string::npos);
}

TEST_F(FrameTest, OfAPeerThatTricklesEndsInTime) {
  ask(FrameType::kWrite, 100'000, key_);
  for (int seconds = 0; seconds < 20 && !owner_->connection.down(); ++seconds) {
    say("x", 1);
    pass();
    pass(kSecondNs);
  }
  EXPECT_TRUE(owner_->connection.down()) << "16 KiB/s are the least, and 10 s on top";
}

TEST_F(FrameTest, OfAnAnswerThatThePeerDoesNotTakeEndsInTime) {
  for (int i = 0; i < 8; ++i) ask(FrameType::kRead, 1 << 20, key_);
  pass();
  EXPECT_EQ(owner_->host.pins_held(), 1u);
  pass(11 * kSecondNs);
  EXPECT_TRUE(owner_->connection.down());
  EXPECT_EQ(owner_->host.pins_held(), 0u);
}

TEST_F(FrameTest, ThatEndsLeavesNoTimeBehind) {
  ask(FrameType::kWrite, 4, key_);
  say("done", 4);
  pass();
  EXPECT_EQ(owner_->connection.frame_deadline_ns(), kNoDeadline);
  pass(60 * kSecondNs);
  EXPECT_FALSE(owner_->connection.down());
}

TEST_F(FrameTest, ThatIsRefusedTooOftenBreaksTheConnection) {
  for (int i = 0; i < 3; ++i) {
    ask(FrameType::kWrite, 4, key_ + 7);
    say("evil", 4);
    pass();
    EXPECT_FALSE(owner_->connection.down());
  }
  ask(FrameType::kRead, 4, key_ + 8);
  pass();
  EXPECT_TRUE(owner_->connection.down());
  EXPECT_EQ(owner_->connection.statistics().refused, 4u);
  EXPECT_EQ(owner_->host.events[0].status, Status::kProtocol);
}

// A status that this release does not know, or that says something of a wait, would not be an outcome.
TEST(RefusalTest, OfAnUnknownStatusIsABreachOfTheProtocolForItsPart) {
  for (const int32_t said :
       {static_cast<int32_t>(Status::kNotYet), -1000, INT32_MIN, static_cast<int32_t>(Status::kOutOfRange)}) {
    int fds[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    const UniqueFd peer{fds[0]};
    Side a;
    a.connection.add_lane(std::make_unique<testing::FdLane>(fds[1]));
    std::vector<uint8_t> memory(64);
    FakePlan plan{1};
    plan.add(memory.data(), memory.data(), 64);
    ASSERT_EQ(a.submit(a.prepare(plan.plan(), TOWLINE_WRITE), 1, 0, 64), Status::kInProgress);
    a.progress();
    FrameHeader sent;
    ASSERT_EQ(::recv(peer.get(), &sent, sizeof sent, 0), static_cast<ssize_t>(sizeof sent));
    FrameHeader header;
    header.type = FrameType::kNack;
    header.part = sent.part;
    header.extent = 64;
    header.status = said;
    std::array<uint8_t, 2 * kHeaderBytes> frames;
    encode_header(header, frames.data());
    header = {};
    header.type = FrameType::kAck;
    header.sequence = header.ack = 1;
    encode_header(header, frames.data() + kHeaderBytes);
    ASSERT_EQ(::send(peer.get(), frames.data(), frames.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(frames.size()));
    for (int i = 0; i < 10; ++i) a.progress();
    ASSERT_TRUE(a.host.ended(1));
    EXPECT_EQ(a.host.status(1),
              said == static_cast<int32_t>(Status::kOutOfRange) ? Status::kOutOfRange : Status::kProtocol)
        << said;
    EXPECT_FALSE(a.connection.down());
  }
}

TEST(RefusalBudgetTest, ComesBackWithTime) {
  RefusalBudget budget(2);
  EXPECT_TRUE(budget.take(kSecondNs));
  EXPECT_TRUE(budget.take(kSecondNs));
  EXPECT_FALSE(budget.take(kSecondNs));
  EXPECT_TRUE(budget.take(kSecondNs + RefusalBudget::kRegainNs));
  EXPECT_FALSE(budget.take(kSecondNs + RefusalBudget::kRegainNs));
}

TEST(CountTest, GoesBesideTheStreamOrInAFrame) {
  for (const bool looks : {true, false}) {
    RingPair rings{64 << 10};
    Side a;
    Side b;
    testing::LanePair lanes = rings.lanes();
    a.connection.add_lane(std::move(lanes.first));
    b.connection.add_lane(std::move(lanes.second));
    if (!looks) rings.back().header->consumer_looks_for_counts.store(0);
    std::vector<uint8_t> local(4096, 7);
    std::vector<uint8_t> remote(4096, 0);
    FakePlan plan{b.host.add(remote.data(), remote.size())};
    plan.add(local.data(), remote.data(), 4096);
    towline_prepared* write = a.prepare(plan.plan(), TOWLINE_WRITE);
    for (uint64_t i = 0; i < 3; ++i) {
      ASSERT_EQ(a.submit(write, i, 0, 4096), Status::kInProgress);
      b.progress();
      EXPECT_FALSE(a.host.ended(i));
      a.progress();
      ASSERT_TRUE(a.host.ended(i));
      EXPECT_EQ(a.host.status(i), Status::kOk);
    }
    EXPECT_TRUE(local == remote);
    EXPECT_EQ(b.connection.statistics().acks_sent, 3u);
    EXPECT_EQ(b.connection.statistics().bytes_sent, looks ? 0u : 3 * kHeaderBytes);
  }
}

TEST(CountTest, OfMoreThanWasSentBreaksTheConnectionAndAnOldOneIsNothing) {
  RingPair rings{64 << 10};
  Side a;
  Side b;
  testing::LanePair lanes = rings.lanes();
  a.connection.add_lane(std::move(lanes.first));
  b.connection.add_lane(std::move(lanes.second));
  std::vector<uint8_t> memory(64);
  FakePlan plan{b.host.add(memory.data(), memory.size())};
  plan.add(memory.data(), memory.data(), 64);
  ASSERT_EQ(a.submit(a.prepare(plan.plan(), TOWLINE_WRITE), 1, 0, 64), Status::kInProgress);
  rings.back().header->positions.note.store(static_cast<uint32_t>(-1));
  a.progress();
  EXPECT_FALSE(a.connection.down());
  EXPECT_FALSE(a.host.ended(1));
  rings.back().header->positions.note.store(2);
  a.progress();
  EXPECT_TRUE(a.connection.down());
  ASSERT_EQ(a.host.events.size(), 1u);
  EXPECT_EQ(a.host.events[0].status, Status::kProtocol);
  EXPECT_EQ(a.host.status(1), Status::kPeerLost);
}

// Written into a file, each frame's payload and the next frame would begin at a multiple of the alignment.
// More than one frame takes together with others, and less than is striped.
TEST(LoadTest, ShortPartsThatComeInOnePassAreSharedByTheLanes) {
  constexpr uint64_t kLanes = 4;
  constexpr uint64_t kParts = 3 * kLanes;
  constexpr uint64_t kPart = 256 << 10;
  Side a;
  Side b;
  std::vector<const testing::FdLane*> lanes;
  for (uint64_t i = 0; i < kLanes; ++i) {
    testing::LanePair pair = testing::socket_lanes();
    lanes.push_back(static_cast<const testing::FdLane*>(pair.first.get()));
    a.connection.add_lane(std::move(pair.first));
    b.connection.add_lane(std::move(pair.second));
  }
  std::vector<uint8_t> local(kParts * kPart, 5);
  std::vector<uint8_t> remote(kParts * kPart);
  FakePlan plan{b.host.add(remote.data(), remote.size())};
  plan.add(local.data(), remote.data(), static_cast<uint32_t>(local.size()));
  towline_prepared* prepared = a.prepare(plan.plan(), TOWLINE_WRITE);
  for (uint64_t part = 0; part < kParts; ++part)
    ASSERT_EQ(a.submit(prepared, part, part * kPart, (part + 1) * kPart), Status::kInProgress);
  for (int pass = 0; pass < 100000 && a.host.results.size() != kParts; ++pass) {
    a.progress();
    b.progress();
  }
  ASSERT_EQ(a.host.results.size(), kParts);
  EXPECT_EQ(remote, local);
  for (const testing::FdLane* lane : lanes) {
    EXPECT_GE(lane->written, kParts / kLanes * kPart);
    EXPECT_LT(lane->written, (kParts / kLanes + 1) * kPart);
  }
}

TEST(PaddingTest, AlignsTheLargeFramesOfBothSidesAndNoSmallOnes) {
  constexpr std::size_t kLarge = 1 << 20;
  constexpr std::size_t kSmall = 100 << 10;
  Side a;
  Side b;
  testing::LanePair lanes = testing::socket_lanes();
  a.connection.add_lane(std::move(lanes.first));
  b.connection.add_lane(std::move(lanes.second));
  std::vector<uint8_t> local(kLarge, 1);
  std::vector<uint8_t> remote(kLarge, 2);
  FakePlan plan{b.host.add(remote.data(), remote.size())};
  plan.add(local.data(), remote.data(), kLarge);
  uint64_t cookie = 0;
  for (const uint32_t op : {TOWLINE_WRITE, TOWLINE_READ}) {
    Side& sender = op == TOWLINE_WRITE ? a : b;
    const std::size_t small_preamble = kHeaderBytes + (op == TOWLINE_WRITE ? sizeof(WireSegment) : 0);
    for (const std::size_t bytes : {kLarge, kSmall}) {
      const uint64_t before = sender.connection.statistics().bytes_sent;
      ASSERT_EQ(a.submit(a.prepare(plan.plan(), op), ++cookie, 0, bytes), Status::kInProgress);
      for (int i = 0; i < 10000 && !a.host.ended(cookie); ++i) {
        a.progress();
        b.progress();
      }
      ASSERT_TRUE(a.host.ended(cookie));
      EXPECT_EQ(a.host.status(cookie), Status::kOk);
      const uint64_t preamble = bytes == kLarge ? testing::FdLane::kPayloadAlignment : small_preamble;
      EXPECT_EQ(sender.connection.statistics().bytes_sent - before, preamble + bytes);
    }
  }
  EXPECT_EQ(remote, local);
}

TEST(PaddingTest, OfMoreThanAPageOrWithoutPayloadIsRefused) {
  uint8_t encoded[kHeaderBytes];
  FrameHeader decoded;
  FrameHeader header;
  header.type = FrameType::kData;
  header.payload_bytes = 1;
  header.padding_bytes = kMaxPaddingBytes;
  encode_header(header, encoded);
  EXPECT_EQ(decode_header(encoded, decoded), nullptr);
  EXPECT_EQ(preamble_bytes(decoded), kHeaderBytes + kMaxPaddingBytes);
  header.padding_bytes = kMaxPaddingBytes + 1;
  encode_header(header, encoded);
  EXPECT_STREQ(decode_header(encoded, decoded), "too much padding");
  header.type = FrameType::kAck;
  header.payload_bytes = 0;
  header.padding_bytes = 1;
  encode_header(header, encoded);
  EXPECT_STREQ(decode_header(encoded, decoded), "padding in a frame without payload");
}

INSTANTIATE_TEST_SUITE_P(Media, ConnectionTest,
                         ::testing::Values(Medium{"ring", 256 << 10, 1}, Medium{"tiny_ring", 512, 1},
                                           Medium{"rings", 64 << 10, 3}, Medium{"socket", 0, 1},
                                           Medium{"sockets", 0, 4}),
                         [](const auto& medium) { return std::string(medium.param.name); });

}  // namespace
}  // namespace towline::framing
