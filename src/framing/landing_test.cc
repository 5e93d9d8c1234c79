// GPU memory through the framed engine, with GPUs that tests hold back and let fail. Their memory has addresses that
// are no pointers, so a byte that the processor touched would end the test.
#include "framing/landing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "framing/connection.h"
#include "framing/lending_lane.h"
#include "framing/test_support.h"

namespace towline::framing {
namespace {

using testing::FakePlan;
using testing::kGpuBit;
using testing::Side;

// One side's GPUs.
struct FakeGpu {
  uint32_t polls = 0;          // how often a copy is looked at before it has ended
  bool held = false;           // none ends
  uint32_t fail_begin_at = 0;  // the n-th copy from here on is refused,
  uint32_t fail_end_at = 0;    // or breaks
  uint32_t late_at = 0;        // or takes longer than all others
  uint32_t under_way = 0;
  uint32_t most_under_way = 0;
  uint64_t copies = 0;
  bool no_room = false;
  uint64_t landers = 0;

  MakeLander maker();
};

class FakeLander final : public Lander {
 public:
  explicit FakeLander(FakeGpu& gpu)
      : gpu_(gpu), memory_(2 * kLandingSlots * std::size_t{kLandingSlotBytes}) {}

  uint8_t* slot(Way way, uint32_t index) const noexcept override {
    return const_cast<uint8_t*>(memory_.data()) +
           (static_cast<uint32_t>(way) * kLandingSlots + index) * std::size_t{kLandingSlotBytes};
  }
  Status ready(uint64_t) noexcept override { return Status::kOk; }
  Status begin(Way way, uint32_t index, uint64_t device, std::span<const LandingPiece> pieces,
               int32_t& vendor_code) noexcept override {
    if (gpu_.fail_begin_at != 0 && --gpu_.fail_begin_at == 0) {
      vendor_code = 701;
      return Status::kIo;
    }
    Copy& copy = copies_[static_cast<uint32_t>(way)][index];
    EXPECT_FALSE(copy.under_way) << "a slot is used twice";
    const bool late = gpu_.late_at != 0 && --gpu_.late_at == 0;
    copy = {true, late ? UINT32_MAX : gpu_.polls, device, {pieces.begin(), pieces.end()}};
    ++gpu_.copies;
    gpu_.most_under_way = std::max(gpu_.most_under_way, ++gpu_.under_way);
    return Status::kOk;
  }
  Status poll(Way way, uint32_t index, uint64_t, int32_t& vendor_code) noexcept override {
    Copy& copy = copies_[static_cast<uint32_t>(way)][index];
    EXPECT_TRUE(copy.under_way);
    if (gpu_.held || copy.polls_left != 0) {
      copy.polls_left -= copy.polls_left != 0 ? 1 : 0;
      return Status::kInProgress;
    }
    copy.under_way = false;
    --gpu_.under_way;
    if (gpu_.fail_end_at != 0 && --gpu_.fail_end_at == 0) {
      vendor_code = 702;
      return Status::kIo;
    }
    uint8_t* staging = slot(way, index);
    for (const auto& [address, bytes] : copy.pieces) {
      EXPECT_NE(address & kGpuBit, 0u) << "host memory was given to a GPU";
      auto* const memory = reinterpret_cast<uint8_t*>(address & ~kGpuBit);
      std::memcpy(way == Way::kGather ? staging : memory, way == Way::kGather ? memory : staging, bytes);
      staging += bytes;
    }
    return Status::kOk;
  }

 private:
  struct Copy {
    bool under_way = false;
    uint32_t polls_left = 0;
    uint64_t device = 0;
    std::vector<LandingPiece> pieces;
  };
  FakeGpu& gpu_;
  std::vector<uint8_t> memory_;
  Copy copies_[2][kLandingSlots];
};

MakeLander FakeGpu::maker() {
  return [this](uint64_t, Status& status) -> std::unique_ptr<Lander> {
    ++landers;
    status = Status::kOutOfMemory;
    if (no_room) return nullptr;
    return std::make_unique<FakeLander>(*this);
  };
}

struct Lanes {
  const char* name;
  int count;
};
void PrintTo(const Lanes& lanes, std::ostream* out) { *out << lanes.name; }

// `a` initiates, `b` owns.
class LandingTest : public ::testing::TestWithParam<Lanes> {
 protected:
  void join(ConnectionOptions options = {}, bool with_gpus = true) {
    if (with_gpus) options.make_lander = gpu_a_.maker();
    a_ = std::make_unique<Side>(options);
    if (with_gpus) options.make_lander = gpu_b_.maker();
    b_ = std::make_unique<Side>(options);
    for (int i = 0; i < GetParam().count; ++i) {
      testing::LanePair lanes = testing::socket_lanes(2u << 20);
      a_->connection.add_lane(std::move(lanes.first));
      b_->connection.add_lane(std::move(lanes.second));
    }
    b_->host.on_message = [this](std::string_view text) {
      messages_.emplace_back(text);
      if (at_message_) at_message_();
    };
  }
  void make_memory(std::size_t bytes, bool remote_on_gpu = true) {
    local_.resize(bytes);
    remote_.assign(bytes, 0);
    for (std::size_t i = 0; i < bytes; ++i) local_[i] = static_cast<uint8_t>(i * 2654435761u >> 13);
    key_ = remote_on_gpu ? b_->host.add_gpu(remote_.data(), bytes) : b_->host.add(remote_.data(), bytes);
  }
  // Every byte, in blocks; those of the remote side in reverse order.
  void fill(FakePlan& plan, uint32_t block) const {
    const std::size_t count = local_.size() / block;
    for (std::size_t i = 0; i < count; ++i)
      plan.add(local_.data() + i * block, remote_.data() + (count - 1 - i) * block, block);
  }
  [[nodiscard]] bool same(uint32_t block) const {
    const std::size_t count = local_.size() / block;
    for (std::size_t i = 0; i < count; ++i)
      if (std::memcmp(local_.data() + i * block, remote_.data() + (count - 1 - i) * block, block) != 0)
        return false;
    return true;
  }
  towline_prepared* prepare(FakePlan& plan, uint32_t op) { return a_->prepare(plan.plan(), op); }
  Status submit(towline_prepared* prepared, uint64_t cookie, uint64_t bytes, std::string_view message = {}) {
    return a_->submit(prepared, cookie, 0, bytes, message);
  }
  uint32_t turn() {
    const uint32_t at_a = a_->progress();
    return at_a + b_->progress();
  }
  void turns(int count = 300) {
    for (int i = 0; i < count; ++i) turn();
  }
  void run(uint64_t cookie) {
    for (int i = 0; i < 200000 && !a_->host.ended(cookie); ++i) turn();
    ASSERT_TRUE(a_->host.ended(cookie));
  }
  void expect_nothing_left() {
    turns(50);
    EXPECT_EQ(b_->host.pins_held(), 0u);
    EXPECT_TRUE(a_->connection.idle());
    EXPECT_TRUE(b_->connection.idle());
    EXPECT_EQ(gpu_a_.under_way + gpu_b_.under_way, 0u);
  }

  FakeGpu gpu_a_;
  FakeGpu gpu_b_;
  std::unique_ptr<Side> a_;
  std::unique_ptr<Side> b_;
  std::vector<uint8_t> local_;
  std::vector<uint8_t> remote_;
  std::vector<std::string> messages_;
  std::function<void()> at_message_;
  uint64_t key_ = 0;
};

constexpr uint32_t kKinds[][2] = {{TOWLINE_MEMORY_VRAM, TOWLINE_MEMORY_VRAM},
                                  {TOWLINE_MEMORY_VRAM, TOWLINE_MEMORY_DRAM},
                                  {TOWLINE_MEMORY_DRAM, TOWLINE_MEMORY_VRAM}};

#if defined(__SANITIZE_THREAD__)
constexpr uint64_t kEveryBytes = 4 << 20;  // each byte costs a hundred times as much
#else
constexpr uint64_t kEveryBytes = 21 << 20;
#endif

TEST_P(LandingTest, EveryByteArrivesBothWaysWhateverLiesOnAGpu) {
  uint64_t cookie = 0;
  for (const auto& kinds : kKinds) {
    for (const bool checksum : {false, true}) {
      ConnectionOptions options;
      options.checksum = checksum;
      options.max_frame_bytes = 2 << 20;  // more than a slot
      join(options);
      make_memory(kEveryBytes, kinds[1] == TOWLINE_MEMORY_VRAM);
      for (const uint32_t block : {4096u, 3u << 20}) {
        gpu_a_.polls = gpu_b_.polls = block % 5;
        for (const uint32_t op : {TOWLINE_WRITE, TOWLINE_READ}) {
          std::vector<uint8_t>& target = op == TOWLINE_WRITE ? remote_ : local_;
          std::fill(target.begin(), target.end(), uint8_t{0});
          FakePlan plan{key_};
          plan.set_kinds(kinds[0], kinds[1]);
          fill(plan, block);
          ASSERT_EQ(submit(prepare(plan, op), ++cookie, plan.bytes()), Status::kInProgress);
          run(cookie);
          ASSERT_EQ(a_->host.status(cookie), Status::kOk);
          EXPECT_EQ(a_->host.result(cookie).bytes, plan.bytes());
          EXPECT_EQ(a_->host.result(cookie).fences, 3u);
          EXPECT_TRUE(same(block)) << block << " of " << kinds[0] << " " << kinds[1];
          std::iota(local_.begin(), local_.end(), static_cast<uint8_t>(cookie));
          std::iota(remote_.begin(), remote_.end(), static_cast<uint8_t>(cookie + 1));
        }
      }
      expect_nothing_left();
      EXPECT_LE(gpu_a_.most_under_way, 2 * kLandingSlots);
    }
  }
}

TEST_P(LandingTest, StagingMemoryThatALaneStillReadsIsNotUsedAgain) {
  ConnectionOptions options;
  options.make_lander = gpu_a_.maker();
  a_ = std::make_unique<Side>(options);
  options.make_lander = gpu_b_.maker();
  b_ = std::make_unique<Side>(options);
  testing::LanePair lanes = testing::socket_lanes(2u << 20);
  auto lending = std::make_unique<testing::LendingLane>(std::move(lanes.first));
  testing::LendingLane& lane = *lending;
  a_->connection.add_lane(std::move(lending));
  b_->connection.add_lane(std::move(lanes.second));
  make_memory(12u << 20);
  FakePlan plan{key_};
  plan.set_kinds(TOWLINE_MEMORY_VRAM, TOWLINE_MEMORY_VRAM);
  fill(plan, 1u << 20);
  ASSERT_EQ(submit(prepare(plan, TOWLINE_WRITE), 1, plan.bytes()), Status::kInProgress);
  turns();
  EXPECT_EQ(gpu_a_.copies, kLandingSlots);
  EXPECT_FALSE(a_->host.ended(1));
  for (int i = 0; i < 100 && !a_->host.ended(1); ++i) {
    lane.give_back();
    turns();
  }
  ASSERT_TRUE(a_->host.ended(1));
  EXPECT_EQ(a_->host.status(1), Status::kOk);
  EXPECT_TRUE(same(1u << 20));
  EXPECT_FALSE(a_->connection.settled());  // the part has ended, since its own memory was copied
  lane.give_back();
  expect_nothing_left();

  // A connection that breaks: the memory stays until the lane has let go of it.
  ASSERT_EQ(submit(prepare(plan, TOWLINE_WRITE), 2, plan.bytes()), Status::kInProgress);
  turns();
  a_->connection.fail(Status::kPeerLost, "by the test");
  EXPECT_FALSE(a_->connection.settled());
  lane.give_back();
  turns();
  EXPECT_TRUE(a_->connection.settled());
  EXPECT_EQ(a_->host.status(2), Status::kPeerLost);
}

TEST_P(LandingTest, APageGoesInOneFrameWithItsMessage) {
  join();
  make_memory(4096);
  gpu_b_.polls = 3;
  FakePlan plan{key_};
  plan.set_kinds(TOWLINE_MEMORY_VRAM, TOWLINE_MEMORY_VRAM);
  fill(plan, 4096);
  bool there = false;
  at_message_ = [&] { there = same(4096); };
  ASSERT_EQ(submit(prepare(plan, TOWLINE_WRITE), 1, 4096, "after"), Status::kInProgress);
  run(1);
  EXPECT_EQ(a_->host.status(1), Status::kOk);
  EXPECT_EQ(messages_, std::vector<std::string>{"after"});
  EXPECT_TRUE(there);
  EXPECT_EQ(b_->connection.statistics().frames_received, 1u);
}

TEST_P(LandingTest, AMessageComesWhenTheLastByteIsOnTheGpu) {
  for (const uint32_t local : {TOWLINE_MEMORY_VRAM, TOWLINE_MEMORY_DRAM}) {
    join();
    make_memory(12 << 20);
    gpu_b_.polls = 7;
    FakePlan plan{key_};
    plan.set_kinds(local, TOWLINE_MEMORY_VRAM);
    fill(plan, 65536);
    messages_.clear();
    bool there = false;
    at_message_ = [&] { there = same(65536); };
    ASSERT_EQ(submit(prepare(plan, TOWLINE_WRITE), 1, plan.bytes(), "after"), Status::kInProgress);
    run(1);
    turns();
    EXPECT_EQ(messages_, std::vector<std::string>{"after"});
    EXPECT_TRUE(there);
  }
}

TEST_P(LandingTest, AFrameIsCountedOnlyWhenTheGpuHasItAndItsRegionStaysPinnedUntilThen) {
  join();
  make_memory(1 << 20);
  gpu_b_.held = true;
  FakePlan plan{key_};
  plan.set_kinds(TOWLINE_MEMORY_DRAM, TOWLINE_MEMORY_VRAM);
  fill(plan, 65536);
  ASSERT_EQ(submit(prepare(plan, TOWLINE_WRITE), 1, plan.bytes(), "after"), Status::kInProgress);
  turns();
  EXPECT_FALSE(a_->host.ended(1));
  EXPECT_TRUE(messages_.empty());
  EXPECT_GT(b_->host.pins_held(), 0u);
  EXPECT_FALSE(b_->connection.idle());
  EXPECT_TRUE(b_->connection.arm()) << "a worker that sleeps would not see the copy end";
  gpu_b_.held = false;
  run(1);
  EXPECT_EQ(a_->host.status(1), Status::kOk);
  EXPECT_TRUE(same(65536));
  expect_nothing_left();
}

TEST_P(LandingTest, WithoutAFreeSlotFramesWaitAndNothingGrows) {
  join();
  make_memory(40 << 20);
  gpu_b_.held = true;
  FakePlan plan{key_};
  plan.set_kinds(TOWLINE_MEMORY_VRAM, TOWLINE_MEMORY_VRAM);
  fill(plan, 1 << 20);
  towline_prepared* const write = prepare(plan, TOWLINE_WRITE);
  for (uint64_t cookie = 1; cookie <= 3; ++cookie)
    ASSERT_EQ(submit(write, cookie, plan.bytes()), Status::kInProgress);
  turns(3000);
  EXPECT_EQ(gpu_b_.under_way, kLandingSlots);
  EXPECT_LE(gpu_a_.most_under_way, kLandingSlots);
  EXPECT_LE(b_->host.pins_held(), kLandingSlots + 4u);
  gpu_b_.held = false;
  for (uint64_t cookie = 1; cookie <= 3; ++cookie) {
    run(cookie);
    EXPECT_EQ(a_->host.status(cookie), Status::kOk);
  }
  EXPECT_TRUE(same(1 << 20));
  // And answers.
  gpu_a_.held = true;
  towline_prepared* const read = prepare(plan, TOWLINE_READ);
  ASSERT_EQ(submit(read, 4, plan.bytes()), Status::kInProgress);
  turns(3000);
  EXPECT_EQ(gpu_a_.under_way, kLandingSlots);
  EXPECT_FALSE(a_->host.ended(4));
  gpu_a_.held = false;
  run(4);
  EXPECT_EQ(a_->host.status(4), Status::kOk);
  expect_nothing_left();
}

TEST_P(LandingTest, FramesThatWaitForOurGpuAreNoSilenceOfThePeers) {
  ConnectionOptions options;
  options.frame_timeout_ns = kSecondNs;
  join(options);
  make_memory(40 << 20);
  gpu_b_.held = true;
  FakePlan plan{key_};
  plan.set_kinds(TOWLINE_MEMORY_DRAM, TOWLINE_MEMORY_VRAM);
  fill(plan, 1 << 20);
  ASSERT_EQ(submit(prepare(plan, TOWLINE_WRITE), 1, plan.bytes()), Status::kInProgress);
  turns(1000);
  for (int i = 0; i < 10; ++i) {
    b_->host.clock.advance(kSecondNs);
    b_->progress();
  }
  // With more lanes others are in the middle of frames, which the peer does not go on with.
  if (GetParam().count == 1) {
    EXPECT_FALSE(b_->connection.down());
  }
  gpu_b_.held = false;
  b_->progress();
}

TEST_P(LandingTest, ACopyThatFailsHereEndsItsPartAndNamesTheRange) {
  for (const bool at_begin : {true, false}) {
    join();
    make_memory(8 << 20);
    (at_begin ? gpu_a_.fail_begin_at : gpu_a_.fail_end_at) = 3;
    FakePlan plan{key_};
    plan.set_kinds(TOWLINE_MEMORY_VRAM, TOWLINE_MEMORY_VRAM);
    fill(plan, 1 << 20);
    towline_prepared* const write = prepare(plan, TOWLINE_WRITE);
    const Status posted = submit(write, 1, plan.bytes(), "lost");
    ASSERT_EQ(posted, Status::kInProgress);
    run(1);
    EXPECT_EQ(a_->host.status(1), Status::kIo);
    EXPECT_EQ(a_->host.result(1).vendor_code, at_begin ? 701 : 702);
    EXPECT_EQ(a_->host.result(1).fences, 3u);
    EXPECT_EQ(a_->host.result(1).failed_begin, uint64_t{2 << 20});
    EXPECT_TRUE(messages_.empty());
    ASSERT_EQ(submit(write, 2, plan.bytes(), "there"), Status::kInProgress);
    run(2);
    turns();
    EXPECT_EQ(a_->host.status(2), Status::kOk);
    EXPECT_TRUE(same(1 << 20));
    EXPECT_EQ(messages_, std::vector<std::string>{"there"});
    messages_.clear();
    expect_nothing_left();
  }
}

TEST_P(LandingTest, AReadsCopyThatFailsHereEndsItsPart) {
  join();
  make_memory(8 << 20);
  gpu_a_.fail_end_at = 3;
  FakePlan plan{key_};
  plan.set_kinds(TOWLINE_MEMORY_VRAM, TOWLINE_MEMORY_DRAM);
  key_ = b_->host.add(remote_.data(), remote_.size());
  FakePlan read_plan{key_};
  read_plan.set_kinds(TOWLINE_MEMORY_VRAM, TOWLINE_MEMORY_DRAM);
  fill(read_plan, 1 << 20);
  towline_prepared* const read = prepare(read_plan, TOWLINE_READ);
  ASSERT_EQ(submit(read, 1, read_plan.bytes()), Status::kInProgress);
  run(1);
  EXPECT_EQ(a_->host.status(1), Status::kIo);
  EXPECT_EQ(a_->host.result(1).vendor_code, 702);
  ASSERT_EQ(submit(read, 2, read_plan.bytes()), Status::kInProgress);
  run(2);
  EXPECT_EQ(a_->host.status(2), Status::kOk);
  EXPECT_TRUE(same(1 << 20));
  expect_nothing_left();
}

TEST_P(LandingTest, ACopyThatFailsAtTheOwnerIsRefusedInOrderAndDropsTheMessage) {
  for (const uint32_t op : {TOWLINE_WRITE, TOWLINE_READ}) {
    for (const bool at_begin : {true, false}) {
      join();
      make_memory(8 << 20);
      messages_.clear();
      gpu_b_.polls = 2;
      (at_begin ? gpu_b_.fail_begin_at : gpu_b_.fail_end_at) = 3;
      FakePlan plan{key_};
      plan.set_kinds(TOWLINE_MEMORY_DRAM, TOWLINE_MEMORY_VRAM);
      fill(plan, 1 << 20);
      towline_prepared* const prepared = prepare(plan, op);
      ASSERT_EQ(submit(prepared, 1, plan.bytes(), "lost"), Status::kInProgress);
      run(1);
      turns();
      EXPECT_EQ(a_->host.status(1), Status::kIo);
      EXPECT_EQ(a_->host.result(1).fences, 3u);
      EXPECT_GT(a_->host.result(1).failed_end, a_->host.result(1).failed_begin);
      EXPECT_TRUE(messages_.empty());
      EXPECT_FALSE(a_->connection.down());
      ASSERT_EQ(submit(prepared, 2, plan.bytes(), "there"), Status::kInProgress);
      run(2);
      turns();
      EXPECT_EQ(a_->host.status(2), Status::kOk);
      EXPECT_EQ(messages_, std::vector<std::string>{"there"});
      EXPECT_TRUE(same(1 << 20));
      expect_nothing_left();
    }
  }
}

TEST_P(LandingTest, ACancelledPartEndsWhenTheGpusHaveDoneWithIt) {
  for (const uint32_t op : {TOWLINE_WRITE, TOWLINE_READ}) {
    for (const bool here : {true, false}) {
      join();
      make_memory(40 << 20);
      FakeGpu& gpu = here ? gpu_a_ : gpu_b_;
      gpu.held = true;
      FakePlan plan{key_};
      plan.set_kinds(TOWLINE_MEMORY_VRAM, TOWLINE_MEMORY_VRAM);
      fill(plan, 1 << 20);
      ASSERT_EQ(submit(prepare(plan, op), 1, plan.bytes(), "lost"), Status::kInProgress);
      turns(100);
      a_->connection.cancel(1);
      turns(100);
      EXPECT_FALSE(a_->host.ended(1)) << op << here;
      gpu.held = false;
      run(1);
      EXPECT_EQ(a_->host.status(1), Status::kCancelled);
      EXPECT_EQ(a_->host.result(1).fences, 3u);
      EXPECT_LT(a_->host.result(1).bytes, plan.bytes());
      EXPECT_TRUE(messages_.empty());
      expect_nothing_left();
    }
  }
}

TEST_P(LandingTest, ALostPeersPartHasItsFenceWhenTheGpuHasDoneWithIt) {
  for (const uint32_t op : {TOWLINE_WRITE, TOWLINE_READ}) {
    join();
    make_memory(1 << 20);  // fewer chunks than slots, so that the lane is read on
    FakePlan plan{key_};
    plan.set_kinds(TOWLINE_MEMORY_VRAM, TOWLINE_MEMORY_VRAM);
    fill(plan, 256 << 10);
    gpu_a_.held = true;
    ASSERT_EQ(submit(prepare(plan, op), 1, plan.bytes()), Status::kInProgress);
    turns(100);
    ASSERT_GT(gpu_a_.under_way, 0u);
    b_->connection.close();
    for (int i = 0; i < 100 && !a_->connection.down(); ++i) a_->progress();
    ASSERT_TRUE(a_->connection.down());
    EXPECT_FALSE(a_->host.ended(1)) << "its memory is still in use";
    EXPECT_FALSE(a_->connection.settled());
    EXPECT_TRUE(a_->connection.arm());
    gpu_a_.held = false;
    for (int i = 0; i < 10; ++i) a_->progress();
    ASSERT_TRUE(a_->host.ended(1));
    EXPECT_EQ(a_->host.status(1), Status::kPeerLost);
    EXPECT_NE(a_->host.result(1).fences & TOWLINE_PART_FENCED_LOCAL, 0u);
    EXPECT_TRUE(a_->connection.settled());
    EXPECT_EQ(a_->host.twice, 0u);
  }
}

// Slots are looked at in turn, and a GPU's queues end in any order.
TEST_P(LandingTest, BytesThatOvertookOthersAreNotSaidToHaveArrivedInOrder) {
  for (const uint32_t op : {TOWLINE_WRITE, TOWLINE_READ}) {
    join();
    make_memory(4 << 20);
    FakePlan plan{key_};
    plan.set_kinds(TOWLINE_MEMORY_VRAM, TOWLINE_MEMORY_VRAM);
    fill(plan, 1 << 20);
    gpu_a_.late_at = 1;
    ASSERT_EQ(submit(prepare(plan, op), 1, plan.bytes()), Status::kInProgress);
    turns();
    ASSERT_FALSE(a_->host.ended(1));
    b_->connection.close();
    for (int i = 0; i < 100 && !a_->connection.down(); ++i) a_->progress();
    a_->connection.give_up();
    ASSERT_TRUE(a_->host.ended(1));
    EXPECT_EQ(a_->host.result(1).bytes, uint64_t{3} << 20);
    EXPECT_EQ(a_->host.result(1).failed_begin, 0u) << "the first MiB is still at the GPU";
    EXPECT_EQ(a_->host.result(1).failed_end, uint64_t{4} << 20);
  }
}

TEST_P(LandingTest, AnOwnersPinsOutliveTheConnectionUntilTheGpuHasDone) {
  for (const uint32_t op : {TOWLINE_WRITE, TOWLINE_READ}) {
    join();
    make_memory(40 << 20);
    FakePlan plan{key_};
    plan.set_kinds(TOWLINE_MEMORY_VRAM, TOWLINE_MEMORY_VRAM);
    fill(plan, 1 << 20);
    gpu_b_.held = true;
    ASSERT_EQ(submit(prepare(plan, op), 1, plan.bytes()), Status::kInProgress);
    turns(200);
    ASSERT_EQ(gpu_b_.under_way, kLandingSlots);
    a_->connection.close();
    for (int i = 0; i < 100 && !b_->connection.down(); ++i) b_->progress();
    if (!b_->connection.down()) b_->connection.fail(Status::kPeerLost, "silent");  // its lanes wait for slots
    EXPECT_EQ(b_->host.pins_held(), kLandingSlots);
    const std::vector<uint8_t> before = remote_;
    gpu_b_.held = false;
    for (int i = 0; i < 10; ++i) b_->progress();
    EXPECT_TRUE(b_->connection.settled());
    EXPECT_EQ(b_->host.pins_held(), 0u);
    EXPECT_EQ(a_->host.twice + b_->host.twice, 0u);
    if (op == TOWLINE_READ) {
      EXPECT_TRUE(remote_ == before);
    }
  }
}

TEST_P(LandingTest, AConnectionThatIsGivenUpReportsNoFence) {
  join();
  make_memory(4 << 20);
  FakePlan plan{key_};
  plan.set_kinds(TOWLINE_MEMORY_VRAM, TOWLINE_MEMORY_VRAM);
  fill(plan, 1 << 20);
  gpu_a_.held = true;
  ASSERT_EQ(submit(prepare(plan, TOWLINE_WRITE), 1, plan.bytes()), Status::kInProgress);
  turns(10);
  a_->connection.close();
  EXPECT_FALSE(a_->host.ended(1));
  a_->connection.give_up();
  ASSERT_TRUE(a_->host.ended(1));
  EXPECT_EQ(a_->host.status(1), Status::kClosed);
  EXPECT_EQ(a_->host.result(1).fences & TOWLINE_PART_FENCED_LOCAL, 0u);
}

TEST_P(LandingTest, ARegionThatIsDeregisteredMeanwhileIsRefusedFromThereOn) {
  for (const uint32_t op : {TOWLINE_WRITE, TOWLINE_READ}) {
    join();
    make_memory(40 << 20);
    FakePlan plan{key_};
    plan.set_kinds(TOWLINE_MEMORY_VRAM, TOWLINE_MEMORY_VRAM);
    fill(plan, 1 << 20);
    gpu_b_.held = true;
    ASSERT_EQ(submit(prepare(plan, op), 1, plan.bytes()), Status::kInProgress);
    turns(100);
    b_->host.regions[0]->stale = true;
    EXPECT_GT(b_->host.pins_held(), 0u);
    gpu_b_.held = false;
    run(1);
    EXPECT_EQ(a_->host.status(1), Status::kStale);
    EXPECT_EQ(a_->host.result(1).fences, 3u);
    EXPECT_FALSE(a_->connection.down());
    expect_nothing_left();
  }
}

TEST_P(LandingTest, AnOwnerWithoutRoomRefusesAndOneWithoutGpusToo) {
  join();
  make_memory(1 << 20);
  gpu_b_.no_room = true;
  FakePlan plan{key_};
  plan.set_kinds(TOWLINE_MEMORY_DRAM, TOWLINE_MEMORY_VRAM);
  fill(plan, 65536);
  uint64_t cookie = 0;
  for (const uint32_t op : {TOWLINE_WRITE, TOWLINE_READ}) {
    ASSERT_EQ(submit(prepare(plan, op), ++cookie, plan.bytes()), Status::kInProgress);
    run(cookie);
    EXPECT_EQ(a_->host.status(cookie), Status::kOutOfMemory);
  }
  EXPECT_EQ(gpu_b_.landers, 1u) << "room is looked for once a second, not with each frame";
  gpu_b_.no_room = false;
  b_->host.clock.advance(2 * kSecondNs);
  ASSERT_EQ(submit(prepare(plan, TOWLINE_WRITE), ++cookie, plan.bytes()), Status::kInProgress);
  run(cookie);
  EXPECT_EQ(a_->host.status(cookie), Status::kOk);
  join({}, false);
  make_memory(1 << 20);
  for (const uint32_t op : {TOWLINE_WRITE, TOWLINE_READ}) {
    ASSERT_EQ(submit(prepare(plan, op), ++cookie, plan.bytes()), Status::kInProgress);
    run(cookie);
    EXPECT_EQ(a_->host.status(cookie), Status::kPermissionDenied);
  }
}

TEST_P(LandingTest, APlanIsRefusedHereWithoutRoomOrGpus) {
  join();
  make_memory(4096);
  gpu_a_.no_room = true;
  FakePlan plan{key_};
  plan.set_kinds(TOWLINE_MEMORY_VRAM, TOWLINE_MEMORY_VRAM);
  fill(plan, 4096);
  const towline_prepare_args args = {sizeof args, plan.plan(), nullptr, nullptr, TOWLINE_WRITE, 0};
  towline_prepared* prepared = nullptr;
  EXPECT_EQ(a_->connection.prepare(args, &prepared), TOWLINE_OUT_OF_MEMORY);
  EXPECT_EQ(prepared, nullptr);
  join({}, false);
  EXPECT_EQ(a_->connection.prepare(args, &prepared), TOWLINE_UNSUPPORTED);
}

// Host memory, and memory of two GPUs, in turns on both sides.
TEST_P(LandingTest, ListsOfSeveralPlacesAreCutBetweenThem) {
  join();
  constexpr uint32_t kBlock = 8192;
  constexpr std::size_t kBlocks = 300;
  make_memory(kBlock * kBlocks);
  const uint64_t host_key = b_->host.add(remote_.data(), remote_.size());
  const uint64_t other_gpu = b_->host.add_gpu(remote_.data(), remote_.size(), 1);
  for (const uint32_t op : {TOWLINE_WRITE, TOWLINE_READ}) {
    FakePlan plan{key_};
    plan.set_kinds(TOWLINE_MEMORY_VRAM, TOWLINE_MEMORY_VRAM);
    plan.add_local_region(TOWLINE_MEMORY_DRAM, 0);
    plan.add_local_region(TOWLINE_MEMORY_VRAM, 1);
    plan.add_remote_region(host_key, TOWLINE_MEMORY_DRAM, 0);
    plan.add_remote_region(other_gpu, TOWLINE_MEMORY_VRAM, 1);
    for (uint32_t i = 0; i < kBlocks; ++i)
      plan.add(local_.data() + i * kBlock, remote_.data() + (kBlocks - 1 - i) * kBlock, kBlock, i / 7 % 3,
               i / 5 % 3);
    std::vector<uint8_t>& target = op == TOWLINE_WRITE ? remote_ : local_;
    std::fill(target.begin(), target.end(), uint8_t{0});
    messages_.clear();
    ASSERT_EQ(submit(prepare(plan, op), op, plan.bytes(), "all"), Status::kInProgress);
    run(op);
    turns();
    EXPECT_EQ(a_->host.status(op), Status::kOk);
    EXPECT_TRUE(same(kBlock));
    EXPECT_EQ(messages_, std::vector<std::string>{"all"});
  }
  expect_nothing_left();
}

// A peer that says nothing of GPUs, and cuts its frames as it likes.
TEST_P(LandingTest, FramesThatNoSlotHoldsOrOfTwoGpusAreRefused) {
  ConnectionOptions options;
  options.max_frame_bytes = 2 << 20;
  options.read_request_bytes = 2 << 20;
  join(options);
  make_memory(2 << 20);
  if (GetParam().count != 1) return;
  FakePlan large{key_};
  large.add(local_.data(), reinterpret_cast<uint8_t*>(reinterpret_cast<uint64_t>(remote_.data()) | kGpuBit),
            1 << 20);
  large.add(local_.data() + (1 << 20),
            reinterpret_cast<uint8_t*>(reinterpret_cast<uint64_t>(remote_.data() + (1 << 20)) | kGpuBit),
            1 << 20);
  const uint64_t other = b_->host.add_gpu(remote_.data(), remote_.size(), 1);
  FakePlan two{key_};
  two.add_remote_region(other, TOWLINE_MEMORY_DRAM, 0);
  for (uint32_t i = 0; i < 2; ++i)
    two.add(local_.data(), reinterpret_cast<uint8_t*>(reinterpret_cast<uint64_t>(remote_.data()) | kGpuBit),
            4096, 0, i);
  ASSERT_EQ(submit(prepare(two, TOWLINE_WRITE), 1, 8192), Status::kInProgress);
  run(1);
  EXPECT_EQ(a_->host.status(1), Status::kUnsupported);
  ASSERT_EQ(submit(prepare(two, TOWLINE_READ), 2, 8192), Status::kInProgress);
  run(2);
  EXPECT_NE(a_->host.status(2), Status::kOk);
  EXPECT_EQ(gpu_b_.copies, 0u);
  // Once more with room for GPU memory there.
  FakePlan page{key_};
  page.set_kinds(TOWLINE_MEMORY_DRAM, TOWLINE_MEMORY_VRAM);
  page.add(local_.data(), remote_.data(), 4096);
  ASSERT_EQ(submit(prepare(page, TOWLINE_WRITE), 3, 4096), Status::kInProgress);
  run(3);
  ASSERT_EQ(a_->host.status(3), Status::kOk);
  ASSERT_EQ(submit(prepare(large, TOWLINE_WRITE), 4, 2 << 20), Status::kInProgress);
  run(4);
  EXPECT_EQ(a_->host.status(4), Status::kLimitExceeded);
  EXPECT_FALSE(b_->connection.down());
  expect_nothing_left();
}

INSTANTIATE_TEST_SUITE_P(Media, LandingTest, ::testing::Values(Lanes{"one_lane", 1}, Lanes{"four_lanes", 4}),
                         [](const auto& tested) { return std::string(tested.param.name); });

}  // namespace
}  // namespace towline::framing
