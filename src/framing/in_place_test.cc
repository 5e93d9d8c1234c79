// GPU memory that a payload flow sends as it lies: who keeps it, until when. The flow keeps what it was lent until the test says
// otherwise. Addresses of GPUs are no pointers: only the flow, which plays the NIC, and the lander may look there.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstring>
#include <numeric>
#include <string>

#include "framing/connection.h"
#include "framing/test_support.h"

namespace towline::framing {
namespace {

using testing::FakePlan;
using testing::kGpuBit;
using testing::Side;

constexpr std::size_t kWhole = 12u << 20;  // more than there are slots for

uint8_t* memory_at(uint64_t address) {
  EXPECT_NE(address & kGpuBit, 0u);
  return reinterpret_cast<uint8_t*>(address & ~kGpuBit);
}

// Over a stream socket. Sends pieces of a GPU's memory up to `most`.
class InPlaceFlow final : public PayloadFlow {
 public:
  explicit InPlaceFlow(int fd) : lane_(fd) {}

  bool open() const noexcept override { return true; }
  uint32_t least_bytes() const noexcept override { return 1; }
  IoResult write(std::span<const iovec> pieces) noexcept override { return lane_.write(pieces); }
  bool sends_from(uint64_t, std::span<const towline_landing_piece>) noexcept override { return sends; }
  IoResult write_from(std::span<const iovec> pieces) noexcept override {
    const iovec first = {memory_at(reinterpret_cast<uint64_t>(pieces[0].iov_base)), pieces[0].iov_len};
    const IoResult result = lane_.write({&first, 1});
    lent += result.status == Status::kOk ? 1 : 0;
    return result;
  }
  bool lends() const noexcept override { return true; }
  IoResult read(std::span<const iovec> pieces) noexcept override { return lane_.read(pieces); }
  IoResult drop(std::size_t bytes) noexcept override {
    std::vector<uint8_t> away(bytes);
    const iovec piece = {away.data(), bytes};
    return lane_.read({&piece, 1});
  }
  IoResult collect(uint32_t slot, uint8_t* staging, std::size_t bytes) noexcept override {
    const iovec piece = {staging, bytes};
    const IoResult result = lane_.read({&piece, 1});
    if (fragment_[slot].bytes == 0) fragment_[slot].address = reinterpret_cast<uint64_t>(staging);
    fragment_[slot].bytes += result.bytes;
    return result;
  }
  std::span<const towline_landing_piece> fragments(uint32_t slot) const noexcept override {
    return {&fragment_[slot], 1};
  }
  void release(uint32_t slot) noexcept override { fragment_[slot] = {}; }
  void offer(Lander&, uint64_t) noexcept override {}
  void close() noexcept { lane_.close(); }

  bool sends = true;
  uint64_t lent = 0;
  uint64_t returned = 0;

 private:
  testing::FdLane lane_;
  towline_landing_piece fragment_[kLandingSlots] = {};
};

class InPlaceLane final : public Lane {
 public:
  InPlaceLane(std::unique_ptr<Lane> stream, int fd) : stream_(std::move(stream)), flow(fd) {}

  IoResult write(std::span<const iovec> pieces) noexcept override { return stream_->write(pieces); }
  IoResult read(std::span<const iovec> pieces) noexcept override { return stream_->read(pieces); }
  uint64_t lent() const noexcept override { return flow.lent; }
  uint64_t returned() noexcept override { return flow.returned; }
  bool arm(bool want_write) noexcept override { return stream_->arm(want_write); }
  void disarm() noexcept override {}
  void close() noexcept override {
    stream_->close();
    flow.close();
  }
  std::string describe() const override { return "in place"; }
  PayloadFlow* payload_flow() noexcept override { return &flow; }

 private:
  std::unique_ptr<Lane> stream_;

 public:
  InPlaceFlow flow;
};

class StagingLander final : public Lander {
 public:
  explicit StagingLander(uint64_t& gathers)
      : gathers_(gathers), memory_(2 * kLandingSlots * std::size_t{kLandingSlotBytes}) {}

  uint8_t* slot(Way way, uint32_t index) const noexcept override {
    return const_cast<uint8_t*>(memory_.data()) +
           (static_cast<uint32_t>(way) * kLandingSlots + index) * std::size_t{kLandingSlotBytes};
  }
  Status ready(uint64_t) noexcept override { return Status::kOk; }
  Status begin(Way way, uint32_t index, uint64_t, std::span<const LandingPiece> pieces,
               int32_t&) noexcept override {
    gathers_ += way == Way::kGather ? 1 : 0;
    uint8_t* staging = slot(way, index);
    for (const auto& [address, bytes] : pieces) {
      uint8_t* const memory = memory_at(address);
      std::memcpy(way == Way::kGather ? staging : memory, way == Way::kGather ? memory : staging, bytes);
      staging += bytes;
    }
    return Status::kOk;
  }
  Status poll(Way, uint32_t, uint64_t, int32_t&) noexcept override { return Status::kOk; }

 private:
  uint64_t& gathers_;
  std::vector<uint8_t> memory_;
};

// `a` initiates, `b` owns; both lie on GPUs.
class InPlaceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ConnectionOptions options;
    options.make_lander = [this](uint64_t, Status&) { return std::make_unique<StagingLander>(gathers_); };
    a_ = std::make_unique<Side>(options);
    b_ = std::make_unique<Side>(options);
    testing::LanePair streams = testing::socket_lanes();
    int fds[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    auto forth = std::make_unique<InPlaceLane>(std::move(streams.first), fds[0]);
    auto back = std::make_unique<InPlaceLane>(std::move(streams.second), fds[1]);
    forth_ = &forth->flow;
    back_ = &back->flow;
    a_->connection.add_lane(std::move(forth));
    b_->connection.add_lane(std::move(back));
    local_.resize(kWhole);
    remote_.resize(kWhole);
    std::iota(local_.begin(), local_.end(), uint8_t{1});
    std::iota(remote_.begin(), remote_.end(), uint8_t{7});
    key_ = b_->host.add_gpu(remote_.data(), remote_.size());
    b_->host.on_message = [this](std::string_view text) { messages_.emplace_back(text); };
  }
  void TearDown() override {
    forth_->returned = forth_->lent;
    back_->returned = back_->lent;
    a_->connection.close();
    b_->connection.close();
    turn();
    EXPECT_TRUE(a_->connection.settled() && b_->connection.settled());
  }
  void turn() {
    for (int i = 0; i < 2000; ++i) {
      a_->progress();
      b_->progress();
    }
  }
  void start(uint32_t op, std::string_view message = {}) {
    constexpr std::size_t kBlock = 64u << 10;
    plan_ = std::make_unique<FakePlan>(key_);
    plan_->set_kinds(TOWLINE_MEMORY_VRAM, TOWLINE_MEMORY_VRAM);
    for (std::size_t at = 0; at < kWhole; at += kBlock)
      plan_->add(local_.data() + at, remote_.data() + (kWhole - kBlock - at), kBlock);
    towline_prepared* const prepared = a_->prepare(plan_->plan(), op);
    ASSERT_EQ(a_->submit(prepared, 1, 0, kWhole, message), Status::kInProgress);
  }
  [[nodiscard]] bool same() const {
    constexpr std::size_t kBlock = 64u << 10;
    for (std::size_t at = 0; at < kWhole; at += kBlock)
      if (std::memcmp(local_.data() + at, remote_.data() + (kWhole - kBlock - at), kBlock) != 0) return false;
    return true;
  }

  std::unique_ptr<FakePlan> plan_;
  std::unique_ptr<Side> a_;
  std::unique_ptr<Side> b_;
  InPlaceFlow* forth_ = nullptr;
  InPlaceFlow* back_ = nullptr;
  std::vector<uint8_t> local_;
  std::vector<uint8_t> remote_;
  std::vector<std::string> messages_;
  uint64_t key_ = 0;
  uint64_t gathers_ = 0;
};

TEST_F(InPlaceTest, AWriteIsNotGatheredAndEndsWhenTheFlowHasLetGoOfItsMemory) {
  start(TOWLINE_WRITE);
  turn();
  EXPECT_TRUE(same());
  EXPECT_EQ(gathers_, 0u);
  EXPECT_NE(a_->connection.describe().find("\"in_place_bytes\": 12582912"), std::string::npos);
  EXPECT_FALSE(a_->host.ended(1));
  EXPECT_FALSE(a_->connection.idle());
  forth_->returned = forth_->lent - 1;
  turn();
  EXPECT_FALSE(a_->host.ended(1));
  forth_->returned = forth_->lent;
  turn();
  ASSERT_TRUE(a_->host.ended(1));
  EXPECT_EQ(a_->host.status(1), Status::kOk);
  EXPECT_EQ(a_->host.result(1).fences, 3u);
  EXPECT_TRUE(a_->connection.idle());
}

TEST_F(InPlaceTest, AnAnswerIsNotGatheredAndStaysPinnedUntilTheFlowHasLetGoOfIt) {
  start(TOWLINE_READ);
  turn();
  ASSERT_TRUE(a_->host.ended(1));
  EXPECT_EQ(a_->host.status(1), Status::kOk);
  EXPECT_TRUE(same());
  EXPECT_EQ(gathers_, 0u);
  EXPECT_NE(b_->host.pins_held(), 0u);
  back_->returned = back_->lent;
  turn();
  EXPECT_EQ(b_->host.pins_held(), 0u);
}

TEST_F(InPlaceTest, ANoticeComesAfterTheData) {
  start(TOWLINE_WRITE, "behind it");
  for (int i = 0; i < 2000 && messages_.empty(); ++i) {
    a_->progress();
    b_->progress();
    forth_->returned = forth_->lent;
  }
  EXPECT_EQ(messages_, std::vector<std::string>{"behind it"});
  EXPECT_TRUE(same());
}

TEST_F(InPlaceTest, ACancelledWriteEndsWhenTheFlowHasLetGoOfItsMemory) {
  start(TOWLINE_WRITE);
  a_->progress();
  ASSERT_NE(forth_->lent, 0u);
  a_->connection.cancel(1);
  turn();
  EXPECT_FALSE(a_->host.ended(1));
  forth_->returned = forth_->lent;
  turn();
  ASSERT_TRUE(a_->host.ended(1));
  EXPECT_EQ(a_->host.status(1), Status::kCancelled);
}

TEST_F(InPlaceTest, WhatABrokenConnectionLentKeepsItsPart) {
  start(TOWLINE_WRITE);
  a_->progress();
  ASSERT_NE(forth_->lent, 0u);
  a_->connection.fail(Status::kPeerLost, "by the test");
  turn();
  EXPECT_FALSE(a_->host.ended(1));
  EXPECT_FALSE(a_->connection.settled());
  forth_->returned = forth_->lent;
  turn();
  ASSERT_TRUE(a_->host.ended(1));
  EXPECT_EQ(a_->host.status(1), Status::kPeerLost);
  EXPECT_TRUE(a_->connection.settled());
}

TEST_F(InPlaceTest, PinsOfAnOwnersBrokenConnectionStayUntilTheFlowLetsGo) {
  start(TOWLINE_READ);
  for (int i = 0; i < 2000 && back_->lent == 0; ++i) {
    a_->progress();
    b_->progress();
  }
  ASSERT_NE(back_->lent, 0u);
  b_->connection.fail(Status::kPeerLost, "by the test");
  EXPECT_NE(b_->host.pins_held(), 0u);
  back_->returned = back_->lent;
  b_->progress();
  EXPECT_EQ(b_->host.pins_held(), 0u);
}

TEST_F(InPlaceTest, WhatTheFlowDoesNotTakeIsGathered) {
  forth_->sends = false;
  start(TOWLINE_WRITE);
  turn();
  ASSERT_TRUE(a_->host.ended(1));
  EXPECT_EQ(a_->host.status(1), Status::kOk);
  EXPECT_TRUE(same());
  EXPECT_NE(gathers_, 0u);
  EXPECT_EQ(forth_->lent, 0u);
}

}  // namespace
}  // namespace towline::framing
