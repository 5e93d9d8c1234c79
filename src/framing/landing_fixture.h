// For tests of GPU memory in the framed engine: two joined sides, with GPUs that tests hold back and let fail. Their memory
// has addresses that are no pointers, so a byte that the processor touched would end the test. Not part of the library.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "framing/connection.h"
#include "framing/landing.h"
#include "framing/test_support.h"

namespace towline::framing::testing {

// One side's GPUs.
struct FakeGpu {
  uint32_t polls = 0;          // how often a copy is looked at before it has ended
  bool held = false;           // none ends
  uint32_t fail_begin_at = 0;  // the n-th copy from here on is refused,
  uint32_t fail_end_at = 0;    // or breaks
  uint32_t under_way = 0;
  uint32_t most_under_way = 0;
  uint64_t copies = 0;
  bool together = false;          // several copies are one launch,
  bool refuses_together = false;  // which fails for all of them
  uint64_t launches = 0;
  uint64_t may_end = UINT64_MAX;  // so many copies end, and the others when this is raised
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
    ++gpu_.launches;
    note(way, index, device, pieces);
    return Status::kOk;
  }
  Status begin_together(Way way, uint64_t device, std::span<const LandingCopy> copies,
                        int32_t& vendor_code) noexcept override {
    if (!gpu_.together) return Status::kUnsupported;
    if (gpu_.refuses_together) {
      vendor_code = 703;
      return Status::kStale;
    }
    EXPECT_GT(copies.size(), 1u);
    ++gpu_.launches;
    for (const LandingCopy& copy : copies) note(way, copy.slot, device, {copy.pieces, copy.count});
    return Status::kOk;
  }
  Status poll(Way way, uint32_t index, uint64_t, int32_t& vendor_code) noexcept override {
    Copy& copy = copies_[static_cast<uint32_t>(way)][index];
    EXPECT_TRUE(copy.under_way);
    if (gpu_.held || copy.polls_left != 0 || gpu_.may_end == 0) {
      copy.polls_left -= copy.polls_left != 0 ? 1 : 0;
      return Status::kInProgress;
    }
    --gpu_.may_end;
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
  void note(Way way, uint32_t index, uint64_t device, std::span<const LandingPiece> pieces) {
    Copy& copy = copies_[static_cast<uint32_t>(way)][index];
    EXPECT_FALSE(copy.under_way) << "a slot is used twice";
    copy = {true, gpu_.polls, device, {pieces.begin(), pieces.end()}};
    ++gpu_.copies;
    gpu_.most_under_way = std::max(gpu_.most_under_way, ++gpu_.under_way);
  }
  FakeGpu& gpu_;
  std::vector<uint8_t> memory_;
  Copy copies_[2][kLandingSlots];
};

inline MakeLander FakeGpu::maker() {
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
inline void PrintTo(const Lanes& lanes, std::ostream* out) { *out << lanes.name; }

// `a` initiates, `b` owns.
class LandingTest : public ::testing::TestWithParam<Lanes> {
 protected:
  void join(ConnectionOptions options = {}, bool with_gpus = true) {
    if (with_gpus) options.make_lander = gpu_a_.maker();
    a_ = std::make_unique<Side>(options);
    if (with_gpus) options.make_lander = gpu_b_.maker();
    b_ = std::make_unique<Side>(options);
    for (int i = 0; i < GetParam().count; ++i) {
      LanePair lanes = socket_lanes(2u << 20);
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

}  // namespace towline::framing::testing
