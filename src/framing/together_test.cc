// Parts that wait for one lane go out with their headers first and in few calls, and stay parts of their own.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <cerrno>
#include <numeric>
#include <utility>

#include "base/os/unique_fd.h"
#include "framing/test_support.h"
#include "framing/wire.h"

namespace towline::framing {
namespace {

using testing::FakePlan;
using testing::FdLane;
using testing::Side;

constexpr uint32_t kPiece = 1024;
constexpr uint64_t kPieces = 20;  // of a part
constexpr uint64_t kPartBytes = kPieces * kPiece;
constexpr uint64_t kParts = 40;

class TogetherTest : public ::testing::Test {
 protected:
  void join(const ConnectionOptions& options = {}) {
    a_ = std::make_unique<Side>(options);
    b_ = std::make_unique<Side>(options);
    auto [first, second] = testing::deep_socket_lanes();
    sender_ = static_cast<FdLane*>(first.get());
    receiver_ = static_cast<FdLane*>(second.get());
    a_->connection.add_lane(std::move(first));
    b_->connection.add_lane(std::move(second));
    local_.resize(kParts * kPartBytes);
    remote_.assign(kParts * kPartBytes, 0);
    std::iota(local_.begin(), local_.end(), uint8_t{1});
    key_ = b_->host.add(remote_.data(), remote_.size());
  }
  // Part `n` of the memory, its pieces in reverse, so that none continues another.
  towline_prepared* part(uint64_t n, uint64_t key) {
    plans_.push_back(std::make_unique<FakePlan>(key));
    for (uint64_t i = kPieces; i-- > 0;)
      plans_.back()->add(&local_[n * kPartBytes + i * kPiece], &remote_[n * kPartBytes + i * kPiece], kPiece);
    return a_->prepare(plans_.back()->plan(), TOWLINE_WRITE);
  }
  Status post(uint64_t n, uint64_t key, std::string_view message = {}) {
    return a_->submit(part(n, key), n, 0, kPartBytes, message);
  }
  void run(uint64_t completions) {
    for (int i = 0; i < 10000 && a_->host.completions < completions; ++i) {
      a_->progress();
      b_->progress();
    }
    ASSERT_EQ(a_->host.completions, completions);
  }
  // As part(), but the last pieces are in another region.
  towline_prepared* part_of_two(uint64_t n, uint64_t key, uint64_t last_key) {
    plans_.push_back(std::make_unique<FakePlan>(key));
    plans_.back()->add_remote_region(last_key, TOWLINE_MEMORY_DRAM, 0);
    for (uint64_t i = kPieces; i-- > 0;)
      plans_.back()->add(&local_[n * kPartBytes + i * kPiece], &remote_[n * kPartBytes + i * kPiece], kPiece,
                         0, i < kPieces / 2 ? 1 : 0);
    return a_->prepare(plans_.back()->plan(), TOWLINE_WRITE);
  }
  [[nodiscard]] bool arrived(uint64_t n) const {
    return std::equal(remote_.begin() + static_cast<std::ptrdiff_t>(n * kPartBytes),
                      remote_.begin() + static_cast<std::ptrdiff_t>((n + 1) * kPartBytes),
                      local_.begin() + static_cast<std::ptrdiff_t>(n * kPartBytes));
  }
  [[nodiscard]] bool untouched(uint64_t n) const {
    return std::all_of(remote_.begin() + static_cast<std::ptrdiff_t>(n * kPartBytes),
                       remote_.begin() + static_cast<std::ptrdiff_t>((n + 1) * kPartBytes),
                       [](uint8_t byte) { return byte == 0; });
  }

  std::unique_ptr<Side> a_;
  std::unique_ptr<Side> b_;
  FdLane* sender_ = nullptr;
  FdLane* receiver_ = nullptr;
  std::vector<std::unique_ptr<FakePlan>> plans_;
  std::vector<uint8_t> local_;
  std::vector<uint8_t> remote_;
  uint64_t key_ = 0;
  uint64_t alone_ = 0;  // parts that ended when the next one had not
};

TEST_F(TogetherTest, PartsThatWaitGoInFewCalls) {
  join();
  for (uint64_t n = 0; n < kParts; ++n) ASSERT_EQ(post(n, key_), Status::kInProgress);
  run(kParts);
  EXPECT_EQ(remote_, local_);
  for (uint64_t n = 0; n < kParts; ++n) EXPECT_EQ(a_->host.status(n), Status::kOk);
  EXPECT_LE(sender_->writes, kParts / 4);
  EXPECT_LE(receiver_->reads, kParts / 4);
  EXPECT_EQ(a_->connection.statistics().frames_sent, kParts);
  EXPECT_EQ(b_->host.pins_held(), 0u);
  EXPECT_TRUE(a_->connection.idle());
  EXPECT_TRUE(b_->connection.idle());
}

TEST_F(TogetherTest, EachMessageFollowsItsPart) {
  join();
  std::vector<std::string> messages;
  b_->host.on_message = [&](std::string_view text) {
    EXPECT_TRUE(arrived(std::stoul(std::string(text))));
    messages.emplace_back(text);
  };
  std::vector<std::string> sent;
  for (uint64_t n = 0; n < kParts; ++n) {
    if (n % 5 == 3) sent.push_back(std::to_string(n));
    ASSERT_EQ(post(n, key_, n % 5 == 3 ? sent.back() : std::string_view{}), Status::kInProgress);
  }
  run(kParts);
  EXPECT_EQ(messages, sent);
  EXPECT_EQ(remote_, local_);
}

TEST_F(TogetherTest, ARefusedPartLeavesItsNeighboursAlone) {
  join();
  const uint64_t read_only = b_->host.add(remote_.data(), remote_.size(), TOWLINE_ACCESS_READ);
  const auto expected = [](uint64_t n) {
    return n % 10 == 4 ? Status::kPermissionDenied : n % 10 == 7 ? Status::kStale : Status::kOk;
  };
  for (uint64_t n = 0; n < kParts; ++n) {
    towline_prepared* const prepared = n % 10 == 4   ? part_of_two(n, key_, read_only)
                                       : n % 10 == 7 ? part(n, 99)
                                                     : part(n, key_);
    ASSERT_EQ(a_->submit(prepared, n, 0, kPartBytes), Status::kInProgress);
  }
  run(kParts);
  for (uint64_t n = 0; n < kParts; ++n) {
    EXPECT_EQ(a_->host.status(n), expected(n)) << n;
    EXPECT_TRUE(expected(n) == Status::kOk ? arrived(n) : untouched(n)) << n;
    EXPECT_EQ(a_->host.result(n).fences, 3u) << n;
  }
  EXPECT_EQ(b_->connection.statistics().refused, 2 * kParts / 10);
  EXPECT_EQ(b_->host.pins_held(), 0u);
}

TEST_F(TogetherTest, PartsEndOneByOne) {
  join();
  for (FdLane* lane : {sender_, receiver_}) lane->set_buffer(1);
  for (uint64_t n = 0; n < kParts; ++n) ASSERT_EQ(post(n, key_), Status::kInProgress);
  a_->host.on_complete = [this](uint64_t cookie, const towline_part_result&) {
    if (cookie + 1 == kParts || arrived(cookie + 1)) return;
    ++alone_;
    const bool landing = !untouched(cookie + 1);
    EXPECT_TRUE(!landing || b_->host.pins_held() != 0) << "bytes land in memory that nothing holds";
  };
  run(kParts);
  EXPECT_EQ(remote_, local_);
  EXPECT_GE(alone_, kParts / 2);
}

TEST_F(TogetherTest, ACancelledPartEndsOnceAndTheOthersArrive) {
  join();
  for (uint64_t n = 0; n < kParts; ++n) ASSERT_EQ(post(n, key_), Status::kInProgress);
  a_->connection.cancel(20);
  a_->progress();
  a_->connection.cancel(21);  // in a frame by now
  run(kParts);
  EXPECT_EQ(a_->host.status(20), Status::kCancelled);
  EXPECT_TRUE(untouched(20));
  EXPECT_EQ(a_->host.status(21), Status::kOk);
  EXPECT_EQ(a_->host.twice, 0u);
  for (uint64_t n = 0; n < kParts; ++n) EXPECT_TRUE(n == 20 || arrived(n)) << n;
}

TEST_F(TogetherTest, ABrokenConnectionEndsEachPartOnceAndHoldsNoPin) {
  join();
  for (FdLane* lane : {sender_, receiver_}) lane->set_buffer(1);
  for (uint64_t n = 0; n < kParts; ++n) ASSERT_EQ(post(n, key_), Status::kInProgress);
  for (int i = 0; i < 10; ++i) {
    a_->progress();
    b_->progress();
  }
  EXPECT_NE(b_->host.pins_held(), 0u);
  b_->connection.fail(Status::kPeerLost, "a test's end");
  EXPECT_EQ(b_->host.pins_held(), 0u);
  run(kParts);
  EXPECT_EQ(a_->host.twice, 0u);
  EXPECT_EQ(a_->host.status(kParts - 1), Status::kPeerLost);
}

TEST_F(TogetherTest, MemoryThatIsNotThereAnyMoreIsBlamedOnItsPartAlone) {
  for (const bool owners : {true, false}) {
    SCOPED_TRACE(owners ? "the owner's" : "this side's");
    join();
    auto* const hole = static_cast<uint8_t*>(
        mmap(nullptr, kPartBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0));
    ASSERT_NE(hole, MAP_FAILED);
    const uint64_t key = b_->host.add(hole, kPartBytes);
    // Frames of many pieces before, so that no payload of the next ones is read ahead.
    for (uint64_t n = 0; n < kParts; ++n) ASSERT_EQ(post(n, key_), Status::kInProgress);
    run(kParts);
    a_->host.results.clear();
    std::vector<uint8_t> whole(kPartBytes, 'w');
    for (uint64_t n = 0; n < 10; ++n) {
      if (n != 5) {
        ASSERT_EQ(post(n, key_), Status::kInProgress);
        continue;
      }
      plans_.push_back(std::make_unique<FakePlan>(owners ? key : key_));
      for (uint64_t at = 0; at < kPartBytes; at += kPiece)
        plans_.back()->add((owners ? whole.data() : hole) + at,
                           (owners ? hole : &remote_[n * kPartBytes]) + at, kPiece);
      ASSERT_EQ(a_->submit(a_->prepare(plans_.back()->plan(), TOWLINE_WRITE), n, 0, kPartBytes),
                Status::kInProgress);
    }
    ASSERT_EQ(munmap(hole, kPartBytes), 0);
    run(kParts + 10);
    EXPECT_EQ(a_->host.status(5), Status::kStale);
    for (uint64_t n = 0; n < 10; ++n) {
      if (n == 5) continue;
      if (owners) {
        EXPECT_EQ(a_->host.status(n), Status::kOk) << n;
      } else {
        EXPECT_NE(a_->host.status(n), Status::kStale) << n;
      }
    }
    EXPECT_EQ(a_->connection.down(), !owners);
    EXPECT_EQ(b_->host.pins_held(), 0u);
  }
}

TEST_F(TogetherTest, PeersThatDoNotKnowOfItAndChecksumsGetFramesOfTheirOwn) {
  for (const bool checksum : {false, true}) {
    ConnectionOptions options;
    options.checksum = checksum;
    if (!checksum) options.features = kFeatures & ~kFeatureTogether;
    join(options);
    for (uint64_t n = 0; n < kParts; ++n) ASSERT_EQ(post(n, key_), Status::kInProgress);
    run(kParts);
    EXPECT_EQ(remote_, local_);
    EXPECT_GE(sender_->writes, kParts);
  }
}

// ---- what a peer may send

struct Told {
  FrameType type = FrameType::kWrite;
  uint16_t flags = 0;
  uint32_t bytes = 4096;
  uint32_t segments = 1;
};

// A connection that is told headers, and no payload.
class TogetherFrames : public ::testing::Test {
 protected:
  TogetherFrames() {
    int fds[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) != 0) std::abort();
    peer_.reset(fds[0]);
    ConnectionOptions options;
    options.frame_timeout_ns = 10 * kSecondNs;
    owner_ = std::make_unique<Side>(options);
    owner_->connection.add_lane(std::make_unique<FdLane>(fds[1]));
    memory_.resize(kMaxPayloadBytes);
    key_ = owner_->host.add(memory_.data(), memory_.size());
  }
  void tell(const Told& told) {
    std::vector<uint8_t> preamble(kHeaderBytes + told.segments * sizeof(WireSegment));
    for (uint32_t i = 0; i < told.segments; ++i) {
      const uint32_t bytes = i == 0 ? told.bytes - (told.segments - 1) : 1;
      const WireSegment segment = {key_, reinterpret_cast<uint64_t>(memory_.data()), bytes};
      std::memcpy(&preamble[kHeaderBytes + i * sizeof segment], &segment, sizeof segment);
    }
    FrameHeader header;
    header.type = told.type;
    header.flags = told.flags;
    header.sequence = sequence_++;
    header.part = 1;
    header.segment_count = static_cast<uint16_t>(told.segments);
    header.payload_bytes = told.type == FrameType::kWrite ? told.bytes : 0;
    header.extent = told.type == FrameType::kRead ? told.bytes : 0;
    encode_header(header, preamble.data());
    ASSERT_EQ(::send(peer_.get(), preamble.data(), preamble.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(preamble.size()));
    for (int i = 0; i < 10; ++i) owner_->progress();
  }
  void expect_broken(const std::string& why) {
    ASSERT_TRUE(owner_->connection.down());
    EXPECT_EQ(owner_->host.events[0].status, Status::kProtocol);
    EXPECT_NE(owner_->host.events[0].text.find(why), std::string::npos) << owner_->host.events[0].text;
    EXPECT_EQ(owner_->host.pins_held(), 0u);
  }

  UniqueFd peer_;
  std::unique_ptr<Side> owner_;
  std::vector<uint8_t> memory_;
  uint64_t key_ = 0;
  uint32_t sequence_ = 0;
};

TEST_F(TogetherFrames, MoreThanTheLimitBreakTheConnection) {
  for (uint32_t i = 0; i < kMostTogether; ++i) tell({.flags = kFlagTogether});
  EXPECT_FALSE(owner_->connection.down());
  tell({});
  expect_broken("too many frames together");
}

TEST_F(TogetherFrames, OfMoreSegmentsThanOneFrameHasBreakTheConnection) {
  tell({.flags = kFlagTogether, .segments = kMaxSegments});
  EXPECT_FALSE(owner_->connection.down());
  tell({});
  expect_broken("too many frames together");
}

TEST_F(TogetherFrames, OfMorePayloadThanOneFrameHasBreakTheConnection) {
  tell({.flags = kFlagTogether, .bytes = kMaxPayloadBytes});
  EXPECT_FALSE(owner_->connection.down());
  tell({});
  expect_broken("too many frames together");
}

TEST_F(TogetherFrames, OfAnotherTypeBreakTheConnection) {
  tell({.flags = kFlagTogether});
  tell({.type = FrameType::kRead});
  expect_broken("can't share");
}

TEST_F(TogetherFrames, ThatStopAmongTheirHeadersHoldMemoryForTheFramesTimeOnly) {
  tell({.flags = kFlagTogether});
  EXPECT_EQ(owner_->host.pins_held(), 1u);
  EXPECT_FALSE(owner_->connection.idle());
  owner_->host.clock.advance(9 * kSecondNs);
  owner_->progress();
  EXPECT_FALSE(owner_->connection.down());
  owner_->host.clock.advance(2 * kSecondNs);
  owner_->progress();
  EXPECT_TRUE(owner_->connection.down());
  EXPECT_EQ(owner_->host.pins_held(), 0u);
}

TEST_F(TogetherFrames, WhosePayloadTricklesHoldMemoryForOneFramesTimeOnly) {
  for (uint32_t i = 1; i < kMostTogether; ++i) tell({.flags = kFlagTogether, .bytes = 1});
  tell({.bytes = 1});
  EXPECT_EQ(owner_->host.pins_held(), kMostTogether);
  for (int i = 0; i < 2; ++i) {
    owner_->host.clock.advance(6 * kSecondNs);
    ASSERT_EQ(::send(peer_.get(), "x", 1, MSG_NOSIGNAL), 1);
    owner_->progress();
    owner_->progress();
  }
  EXPECT_TRUE(owner_->connection.down()) << "each of the row's frames has had ten seconds of its own";
  EXPECT_EQ(owner_->host.pins_held(), 0u);
}

TEST_F(TogetherFrames, ThatAreRefusedHaveTheTimeOfAllTheirPayload) {
  constexpr uint32_t kBytes = 64 << 10;
  const uint64_t good = std::exchange(key_, 7);
  for (uint32_t i = 0; i < 7; ++i) tell({.flags = kFlagTogether, .bytes = kBytes});
  tell({.bytes = kBytes});
  key_ = good;
  const std::vector<uint8_t> payload(kBytes / 2);
  for (uint32_t i = 0; i < 16; ++i) {  // 32 KiB in 1.5 s: faster than the slowest that is served
    owner_->host.clock.advance(3 * kSecondNs / 2);
    ASSERT_EQ(::send(peer_.get(), payload.data(), payload.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(payload.size()));
    for (int pass = 0; pass < 10; ++pass) owner_->progress();
    ASSERT_FALSE(owner_->connection.down()) << "after " << i + 1 << " pieces";
  }
  EXPECT_EQ(owner_->connection.statistics().frames_received, 8u);
}

}  // namespace
}  // namespace towline::framing
