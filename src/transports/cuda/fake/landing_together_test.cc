// Copies that are begun together, on GPUs made of host memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/os/memfd.h"
#include "gpu/fake/fake_device.h"
#include "transports/cuda/landing.h"

namespace towline::cuda {
namespace {

constexpr uint32_t kTogether = TOWLINE_LANDING_MOST_SLOTS;
constexpr uint32_t kTogetherBytes = 128u << 10;

class LandingTogetherTest : public ::testing::Test {
 protected:
  LandingTogetherTest() {
    table_.struct_size = sizeof table_;
    table_.context = this;
    table_.fail = [](void* c, const char* text) { static_cast<LandingTogetherTest*>(c)->said_ = text; };
    table_.log = [](void*, int32_t, const char*) {};
    settings_.host_blocks = 8;
    for (Mapping& memory : memory_) {  // an allocation each
      const UniqueFd file = create_memfd("fake-gpu-memory", kTogetherBytes);
      memory = Mapping::map_shared(file.get(), kTogetherBytes, MapAccess::kReadWrite);
      std::generate_n(memory.address(), kTogetherBytes, [this] { return static_cast<uint8_t>(random_()); });
    }
  }
  ~LandingTogetherTest() override { fake::faults().reset(); }

  void open() {
    landing_ = std::make_unique<Landing>(plugin::Host(&table_), fake::fake_device(), settings_, budget_,
                                         unpackers_, 0, kTogether, kTogetherBytes);
  }
  // The slot's memory in pieces of odd lengths, and some that are longer than a warp's.
  towline_landing_copy copy(uint32_t slot) {
    std::vector<towline_landing_piece>& list = pieces_[slot];
    list.clear();
    for (uint64_t at = 0; at < kTogetherBytes;) {
      const uint64_t bytes = std::min<uint64_t>(1 + random_() % 40000, kTogetherBytes - at);
      list.push_back({reinterpret_cast<uint64_t>(memory_[slot].address()) + at, bytes});
      at += bytes;
    }
    return {slot, static_cast<uint32_t>(list.size()), list.data()};
  }
  int32_t begin(uint32_t way, std::span<const towline_landing_copy> copies) {
    return landing_begin_together(handle(), way, 0, copies.data(), static_cast<uint32_t>(copies.size()),
                                  &code_);
  }
  int32_t poll(uint32_t way, uint32_t slot) {
    return landing_poll(handle(), way, slot, monotonic_now_ns(), &code_);
  }
  int32_t wait(uint32_t way, uint32_t slot) {
    int32_t status = TOWLINE_IN_PROGRESS;
    while ((status = poll(way, slot)) == TOWLINE_IN_PROGRESS) std::this_thread::yield();
    return status;
  }
  [[nodiscard]] uint8_t* staging(uint32_t way, uint32_t slot) const {
    return static_cast<uint8_t*>(landing_->memory(way)) + std::size_t{slot} * kTogetherBytes;
  }
  towline_landing* handle() { return reinterpret_cast<towline_landing*>(landing_.get()); }

  std::mt19937 random_{7};
  std::array<Mapping, kTogether> memory_;
  std::array<std::vector<towline_landing_piece>, kTogether> pieces_;
  towline_host_v1_t table_ = {};
  std::string said_;
  Settings settings_;
  LandingBudget budget_{64u << 20};
  Unpackers unpackers_;
  std::unique_ptr<Landing> landing_;
  int32_t code_ = 0;
};

TEST_F(LandingTogetherTest, EveryByteOfEverySlotIsCopiedBothWaysByOneLaunchEach) {
  open();
  std::vector<towline_landing_copy> copies;
  for (const uint32_t slot : {5u, 0u, 7u, 1u, 2u, 6u, 4u, 3u}) copies.push_back(copy(slot));
  const uint64_t before = fake::faults().launched();
  ASSERT_EQ(begin(TOWLINE_LANDING_GATHER, copies), TOWLINE_OK) << said_;
  for (uint32_t slot = 0; slot < kTogether; ++slot) {
    ASSERT_EQ(wait(TOWLINE_LANDING_GATHER, slot), TOWLINE_OK);
    EXPECT_EQ(std::memcmp(staging(TOWLINE_LANDING_GATHER, slot), memory_[slot].address(), kTogetherBytes), 0)
        << slot;
  }
  for (uint32_t slot = 0; slot < kTogether; ++slot) {
    std::memcpy(staging(TOWLINE_LANDING_SCATTER, slot), memory_[slot].address(), kTogetherBytes);
    std::memset(memory_[slot].address(), 0, kTogetherBytes);
  }
  ASSERT_EQ(begin(TOWLINE_LANDING_SCATTER, copies), TOWLINE_OK) << said_;
  for (uint32_t slot = 0; slot < kTogether; ++slot) {
    ASSERT_EQ(wait(TOWLINE_LANDING_SCATTER, slot), TOWLINE_OK);
    EXPECT_EQ(std::memcmp(staging(TOWLINE_LANDING_SCATTER, slot), memory_[slot].address(), kTogetherBytes), 0)
        << slot;
  }
  EXPECT_EQ(fake::faults().launched() - before, 2u);
}

TEST_F(LandingTogetherTest, EachEndsByItselfInTheirOrder) {
  open();
  const std::array copies = {copy(3), copy(1)};
  fake::faults().launches.hold(true);
  ASSERT_EQ(begin(TOWLINE_LANDING_GATHER, copies), TOWLINE_OK) << said_;
  while (!fake::faults().launches.waited_for()) std::this_thread::yield();
  EXPECT_EQ(poll(TOWLINE_LANDING_GATHER, 3), TOWLINE_IN_PROGRESS);
  EXPECT_EQ(poll(TOWLINE_LANDING_GATHER, 1), TOWLINE_IN_PROGRESS);
  fake::faults().launches.hold(false);
  EXPECT_EQ(wait(TOWLINE_LANDING_GATHER, 1), TOWLINE_OK);
  EXPECT_EQ(poll(TOWLINE_LANDING_GATHER, 3), TOWLINE_OK) << "it came first";
}

TEST_F(LandingTogetherTest, NothingIsStartedWhereOneOfThemIsStale) {
  open();
  const std::array copies = {copy(0), copy(1)};
  fake::faults().forget(reinterpret_cast<uint64_t>(memory_[1].address()), kTogetherBytes);
  const uint64_t before = fake::faults().launched();
  EXPECT_EQ(begin(TOWLINE_LANDING_GATHER, copies), TOWLINE_STALE);
  EXPECT_NE(said_.find("no memory of GPU 0"), std::string::npos) << said_;
  EXPECT_EQ(fake::faults().launched(), before);
  EXPECT_EQ(landing_begin(handle(), TOWLINE_LANDING_GATHER, 0, 0, copies[0].pieces, copies[0].count, &code_),
            TOWLINE_OK);
  EXPECT_EQ(wait(TOWLINE_LANDING_GATHER, 0), TOWLINE_OK);
}

TEST_F(LandingTogetherTest, ARefusedLaunchStartsNothing) {
  open();
  const std::array copies = {copy(0), copy(1)};
  fake::faults().refuse_launches(1, 701);
  EXPECT_EQ(begin(TOWLINE_LANDING_SCATTER, copies), TOWLINE_IO);
  EXPECT_EQ(code_, 701);
  EXPECT_EQ(begin(TOWLINE_LANDING_SCATTER, copies), TOWLINE_OK);
  EXPECT_EQ(wait(TOWLINE_LANDING_SCATTER, 0), TOWLINE_OK);
  EXPECT_EQ(wait(TOWLINE_LANDING_SCATTER, 1), TOWLINE_OK);
}

TEST_F(LandingTogetherTest, WhatIsNoCopyIsRefused) {
  open();
  std::vector<towline_landing_copy> copies(kTogether + 1, copy(0));
  EXPECT_EQ(begin(TOWLINE_LANDING_GATHER, copies), TOWLINE_INVALID_ARGUMENT);
  copies.resize(2);
  EXPECT_EQ(begin(2, copies), TOWLINE_INVALID_ARGUMENT);
  copies[1].slot = kTogether;
  EXPECT_EQ(begin(TOWLINE_LANDING_GATHER, copies), TOWLINE_INVALID_ARGUMENT);
  EXPECT_EQ(begin(TOWLINE_LANDING_GATHER, {}), TOWLINE_INVALID_ARGUMENT);
}

TEST_F(LandingTogetherTest, BesideAModelGathersAreBegunEach) {
  settings_.beside = Beside::kModel;
  open();
  const std::array copies = {copy(0), copy(1)};
  EXPECT_EQ(begin(TOWLINE_LANDING_GATHER, copies), TOWLINE_UNSUPPORTED);
  EXPECT_EQ(begin(TOWLINE_LANDING_SCATTER, copies), TOWLINE_OK);
  EXPECT_EQ(wait(TOWLINE_LANDING_SCATTER, 0), TOWLINE_OK);
  EXPECT_EQ(wait(TOWLINE_LANDING_SCATTER, 1), TOWLINE_OK);
}

}  // namespace
}  // namespace towline::cuda
