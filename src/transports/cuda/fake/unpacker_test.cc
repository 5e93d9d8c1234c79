// Fragments that are unpacked by few launches, on GPUs made of host memory.
#include "transports/cuda/unpacker.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "base/error.h"
#include "gpu/fake/fake_device.h"
#include "memory/shared_memory.h"
#include "transports/cuda/landing.h"

namespace towline::cuda {
namespace {

using Piece = towline_landing_piece;

constexpr uint32_t kSlots = TOWLINE_LANDING_MOST_SLOTS;
constexpr uint64_t kFragment = 4096;
constexpr uint64_t kFrame = 16 * kFragment;
constexpr uint64_t kSmall = 1024;  // of a frame that is cut into as many pieces as it may be

class UnpackerTest : public ::testing::Test {
 protected:
  static constexpr uint32_t kLandings = 2;
  static constexpr uint64_t kPoolBytes = 4u << 20;
  static constexpr uint64_t kLandingBytes = uint64_t{kSlots} * TOWLINE_LANDING_MOST_SLOT_BYTES;

  UnpackerTest() {
    settings_.host_blocks = 8;
    table_.struct_size = sizeof table_;
    table_.context = this;
    table_.log = [](void*, int32_t, const char*) {};
    table_.fail = [](void*, const char*) {};
    host_.emplace(&table_);
    for (uint32_t i = 0; i < kLandings; ++i) {
      auto& landing = landings_[i];
      landing = std::make_unique<Landing>(*host_, fake::fake_device(), settings_, budget_, unpackers_, 0,
                                          kSlots, TOWLINE_LANDING_MOST_SLOT_BYTES);
      landing->ready(0);
      landing->reach(pool() + i * kPoolBytes, kPoolBytes);
    }
    std::mt19937_64 random(26);
    std::generate_n(pool(), kLandings * kPoolBytes, [&] { return static_cast<uint8_t>(random()); });
    places_.resize(kPoolBytes / kFragment);
    std::iota(places_.begin(), places_.end(), 0);
    std::shuffle(places_.begin(), places_.end(), random);
  }
  ~UnpackerTest() override {
    fake::faults().launches.hold(false);
    landings_ = {};
    fake::faults().reset();
  }

  [[nodiscard]] uint8_t* pool() const { return static_cast<uint8_t*>(pool_->address()); }
  [[nodiscard]] uint8_t* target(uint32_t landing, uint32_t slot) const {
    return static_cast<uint8_t*>(target_->address()) + landing * kLandingBytes +
           slot * uint64_t{TOWLINE_LANDING_MOST_SLOT_BYTES};
  }
  // Of the pool's pages, each frame has its own.
  [[nodiscard]] std::vector<Piece> fragments(uint32_t landing, uint32_t slot, uint64_t piece) const {
    std::vector<Piece> list;
    const uint64_t count = piece == kSmall ? TOWLINE_LANDING_MOST_PIECES : kFrame / kFragment;
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t place = places_[(slot * 64 + i) % places_.size()];
      list.push_back({reinterpret_cast<uint64_t>(pool()) + landing * kPoolBytes + place * kFragment, piece});
    }
    return list;
  }
  void begin(uint32_t landing, uint32_t slot, uint64_t piece = kFragment) {
    const std::vector<Piece> from = fragments(landing, slot, piece);
    uint64_t at = reinterpret_cast<uint64_t>(target(landing, slot));
    std::vector<Piece> to;  // a gap of 16 bytes behind each
    for (uint64_t i = 0; i < from.size(); ++i, at += piece + (piece == kSmall ? 0 : 16))
      to.push_back({at, piece});
    ASSERT_EQ(landings_[landing]->unpack(slot, 0, from, to), 0);
  }
  Code look(uint32_t landing, uint32_t slot) {
    return landings_[landing]->poll(TOWLINE_LANDING_SCATTER, slot, ++now_ns_ * kMillisecondNs);
  }
  Code wait(uint32_t landing, uint32_t slot) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    Code code = CopyQueue::kBusy;
    while (code == CopyQueue::kBusy && std::chrono::steady_clock::now() < until) code = look(landing, slot);
    return code;
  }
  void expect_whole(uint32_t landing, uint32_t slot) const {
    const uint8_t* at = target(landing, slot);
    for (const Piece& fragment : fragments(landing, slot, kFragment)) {
      EXPECT_EQ(std::memcmp(at, reinterpret_cast<const void*>(fragment.address), fragment.bytes), 0);
      at += fragment.bytes;
      EXPECT_TRUE(std::all_of(at, at + 16, [](uint8_t byte) { return byte == 0; })) << "beside a piece";
      at += 16;
    }
  }
  [[nodiscard]] bool untouched(uint32_t landing, uint32_t slot) const {
    const uint8_t* const begin = target(landing, slot);
    return std::all_of(begin, begin + kFrame, [](uint8_t byte) { return byte == 0; });
  }
  [[nodiscard]] static uint64_t launched() { return fake::faults().launched(); }

  Settings settings_;
  towline_host_v1_t table_ = {};
  std::optional<plugin::Host> host_;
  LandingBudget budget_{UINT64_MAX};
  Unpackers unpackers_;
  const std::unique_ptr<SharedMemory> pool_ = SharedMemory::allocate(kLandings * kPoolBytes, 0);
  const std::unique_ptr<SharedMemory> target_ = SharedMemory::allocate(kLandings * kLandingBytes, 0);
  std::vector<uint64_t> places_;
  std::array<std::unique_ptr<Landing>, kLandings> landings_;
  uint64_t now_ns_ = 0;
};

TEST_F(UnpackerTest, EightFramesThatAreThereAtOnceCostOneLaunch) {
  for (uint32_t slot = 0; slot < kSlots; ++slot) begin(0, slot);
  for (uint32_t slot = 0; slot < kSlots; ++slot) EXPECT_EQ(wait(0, slot), 0);
  EXPECT_EQ(launched(), 1u);
  for (uint32_t slot = 0; slot < kSlots; ++slot) expect_whole(0, slot);
}

TEST_F(UnpackerTest, ConnectionsShareALaunch) {
  for (uint32_t slot = 0; slot < kSlots; ++slot) begin(slot % 2, slot);
  for (uint32_t slot = 0; slot < kSlots; ++slot) EXPECT_EQ(wait(slot % 2, slot), 0);
  EXPECT_EQ(launched(), 1u);
  for (uint32_t slot = 0; slot < kSlots; ++slot) expect_whole(slot % 2, slot);
}

// As where all lanes receive into one pool: it is pinned once, and as long as one of them needs it.
TEST_F(UnpackerTest, ConnectionsReachOnePoolWhicheverGoesFirst) {
  landings_[1]->reach(pool(), kPoolBytes);
  landings_[0].reset();
  EXPECT_NE(fake::fake_device().find_pinned(reinterpret_cast<uint64_t>(pool()), kPoolBytes), nullptr);
  const Piece from = fragments(0, 0, kFragment).front();
  const Piece to = {reinterpret_cast<uint64_t>(target(1, 0)), kFragment};
  ASSERT_EQ(landings_[1]->unpack(0, 0, {&from, 1}, {&to, 1}), 0);
  EXPECT_EQ(wait(1, 0), 0);
  EXPECT_EQ(std::memcmp(target(1, 0), reinterpret_cast<const void*>(from.address), kFragment), 0);
}

// A single frame goes at once. Beyond two launches, frames are collected until one of these has ended.
TEST_F(UnpackerTest, ABatchWaitsForNoDataButForRoomOnTheGpu) {
  fake::faults().launches.hold(true);
  for (const uint32_t slot : {0u, 1u}) {
    begin(0, slot);
    EXPECT_EQ(look(0, slot), CopyQueue::kBusy);
    EXPECT_EQ(launched(), slot + 1);
  }
  for (uint32_t slot = 2; slot < kSlots; ++slot) {
    begin(0, slot);
    EXPECT_EQ(look(0, slot), CopyQueue::kBusy);
  }
  EXPECT_EQ(launched(), 2u);
  EXPECT_TRUE(untouched(0, 7));
  fake::faults().launches.hold(false);
  for (uint32_t slot = kSlots; slot-- > 0;) EXPECT_EQ(wait(0, slot), 0);
  EXPECT_EQ(launched(), 3u);
  for (uint32_t slot = 0; slot < kSlots; ++slot) expect_whole(0, slot);
}

TEST_F(UnpackerTest, ABatchIsFreeAgainOnceEachOfItsFramesWasTold) {
  for (uint32_t round = 0; round < 3 * Unpacker::kBatches; ++round) {
    begin(0, 0);
    begin(1, 0);
    EXPECT_EQ(wait(0, 0), 0);
    EXPECT_EQ(wait(1, 0), 0);
  }
  EXPECT_EQ(launched(), 3 * Unpacker::kBatches);
}

TEST_F(UnpackerTest, AConnectionThatGoesWaitsForItsFramesAndLeavesThoseOfOthersWhole) {
  begin(0, 0);
  begin(1, 0);
  EXPECT_EQ(look(0, 0), CopyQueue::kBusy);
  begin(0, 1);
  begin(1, 1);
  landings_[0].reset();
  for (const uint32_t slot : {0u, 1u}) {
    expect_whole(0, slot);
    EXPECT_EQ(wait(1, slot), 0);
    expect_whole(1, slot);
  }
  EXPECT_EQ(launched(), 2u);
}

// So that a worker that does not look at its frames holds nobody up.
TEST_F(UnpackerTest, WithoutAFreeBatchAFrameGoesByItself) {
  fake::faults().launches.hold(true);
  std::vector<std::pair<uint32_t, uint32_t>> begun;
  for (uint32_t landing = 0; landing < kLandings; ++landing)
    for (uint32_t slot = 0; slot < kSlots; ++slot) {
      begin(landing, slot, kSmall);
      EXPECT_EQ(look(landing, slot), CopyQueue::kBusy);
      begun.emplace_back(landing, slot);
    }
  // Two of one frame each, two that are full; what is left goes by the connection's own list.
  const uint32_t in_full = (Unpacker::kBatchPieces - kMostListPieces) / TOWLINE_LANDING_MOST_PIECES + 1;
  EXPECT_EQ(launched(), 2 + 2 + (kLandings * kSlots - 2 - 2 * in_full));
  fake::faults().launches.hold(false);
  for (const auto& [landing, slot] : begun) EXPECT_EQ(wait(landing, slot), 0);
}

TEST_F(UnpackerTest, ARefusedLaunchEndsTheFramesOfItsBatchAndNoOthers) {
  fake::faults().launches.hold(true);
  begin(0, 0);
  EXPECT_EQ(look(0, 0), CopyQueue::kBusy);
  begin(0, 1);
  begin(1, 1);
  fake::faults().refuse_launches(1, 719);
  EXPECT_EQ(look(1, 1), 719);
  begin(0, 2);
  fake::faults().launches.hold(false);
  EXPECT_EQ(wait(0, 1), 719);
  EXPECT_EQ(wait(0, 0), 0);
  EXPECT_EQ(wait(0, 2), 0);
  expect_whole(0, 0);
  expect_whole(0, 2);
  EXPECT_TRUE(untouched(0, 1));
  EXPECT_TRUE(untouched(1, 1));
}

TEST_F(UnpackerTest, AGpuThatBreaksEndsWhatIsUnderWayAndLaterFrames) {
  fake::faults().launches.hold(true);
  fake::faults().break_next(700);
  for (uint32_t slot = 0; slot < 4; ++slot) {
    begin(0, slot);
    EXPECT_EQ(look(0, slot), CopyQueue::kBusy);
  }
  fake::faults().launches.hold(false);
  for (uint32_t slot = 0; slot < 4; ++slot) EXPECT_EQ(wait(0, slot), 700);
}

TEST_F(UnpackerTest, AFrameThatIsRefusedLeavesItsBatchWhole) {
  begin(0, 0);
  std::vector<Piece> from = fragments(0, 1, kFragment);
  const std::vector<Piece> to = {{reinterpret_cast<uint64_t>(target(0, 1)), kFrame}};
  from.back().address = 4096;  // lies in no pool
  EXPECT_THROW((void)landings_[0]->unpack(1, 0, from, to), core::Error);
  from.pop_back();
  EXPECT_THROW((void)landings_[0]->unpack(1, 0, from, to), core::Error);
  begin(0, 2);
  EXPECT_EQ(wait(0, 0), 0);
  EXPECT_EQ(wait(0, 2), 0);
  EXPECT_EQ(launched(), 1u);
  expect_whole(0, 0);
  expect_whole(0, 2);
  EXPECT_TRUE(untouched(0, 1));
}

// Found also where a refused frame has left an empty batch open.
TEST_F(UnpackerTest, MemoryThatIsGoneIsFoundAtTheNextFrame) {
  const std::vector<Piece> none;
  const std::vector<Piece> to = {{reinterpret_cast<uint64_t>(target(0, 0)), kFrame}};
  EXPECT_THROW((void)landings_[0]->unpack(0, 0, none, to), core::Error);
  fake::faults().forget(reinterpret_cast<uint64_t>(target(0, 0)), kFrame);
  try {
    (void)landings_[0]->unpack(0, 0, fragments(0, 0, kFragment), to);
    FAIL() << "it was taken";
  } catch (const core::Error& error) {
    EXPECT_EQ(error.code(), Status::kStale) << error.message();
  }
}

}  // namespace
}  // namespace towline::cuda
