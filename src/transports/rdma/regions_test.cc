#include "transports/rdma/regions.h"

#include <gtest/gtest.h>

#include <functional>
#include <semaphore>
#include <thread>

#include "base/error.h"

namespace towline::rdma {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kHuge = 32 * kPage;

// One worker's rail that registers nothing, and a thread of the host that the test is.
class FakeOwner : public RegionsOwner {
 public:
  std::vector<fabric::LocalMemory> register_memory(const fabric::MemoryToRegister& memory) override {
    if (during) during();
    if (!failure.empty()) fail(Status::kOutOfMemory, "{}", failure);
    fabric::LocalMemory local;
    local.address = reinterpret_cast<uint64_t>(memory.address);
    local.bytes = memory.bytes;
    local.remote_read = memory.remote_read;
    local.remote_write = memory.remote_write;
    local.rails = 1;
    local.keys[0] = {++registered, registered, local.address, registered};
    return {local};
  }
  void deregister_memory(const std::vector<fabric::LocalMemory>& memory) noexcept override {
    deregistered += memory.size();
  }
  bool run(void (*function)(void* argument), void* argument) noexcept override {
    if (!has_threads) return false;
    work.emplace_back([function, argument] { function(argument); });
    return true;
  }
  void settled() noexcept override { ++told; }

  std::function<void()> during;
  std::string failure;
  bool has_threads = true;
  std::vector<std::function<void()>> work;
  uint64_t registered = 0;
  uint64_t deregistered = 0;
  int told = 0;
};

class RegionsTest : public ::testing::Test {
 protected:
  // Pages [first, first + count) of some memory that nobody touches.
  Registered* add(uint64_t first, uint64_t count, uint32_t access = TOWLINE_ACCESS_ALL) {
    towline_region_ref region = {};
    region.key = ++keys;
    region.address = 0x700000000000 + first * kPage;
    region.bytes = count * kPage;
    region.access = access;
    fabric::MemoryToRegister memory;
    memory.address = reinterpret_cast<void*>(region.address);
    memory.bytes = region.bytes;
    memory.remote_read = (access & TOWLINE_ACCESS_READ) != 0;
    memory.remote_write = (access & TOWLINE_ACCESS_WRITE) != 0;
    return regions.add(region, memory, 1, {});
  }
  // What it is registered by; 0: not.
  uint64_t key_of(Registered* region) {
    const fabric::LocalMemory* memory = nullptr;
    state = regions.look(*region, 0, memory);
    if (state.status != Status::kOk) return 0;
    EXPECT_EQ(memory->address, region->region.address);
    EXPECT_EQ(memory->bytes, region->region.bytes);
    EXPECT_EQ(memory->keys[0].base, region->region.address);
    return memory->keys[0].handle;
  }

  FakeOwner owner;
  Regions regions{owner, kHuge};
  Regions::State state;
  uint64_t keys = 0;
};

TEST_F(RegionsTest, MemoryWithinARegionSharesItsRegistrationUntilTheLastOneGoes) {
  Registered* const arena = add(0, 16);
  Registered* const same = add(0, 16);
  Registered* const tensor = add(3, 2);
  EXPECT_EQ(owner.registered, 1u);
  EXPECT_EQ(key_of(arena), 1u);
  EXPECT_EQ(key_of(same), 1u);
  EXPECT_EQ(key_of(tensor), 1u);
  Registered* const read_only = add(3, 2, TOWLINE_ACCESS_READ);
  EXPECT_EQ(key_of(read_only), 2u);
  regions.remove(arena);
  regions.remove(tensor);
  EXPECT_EQ(owner.deregistered, 0u);
  regions.remove(same);
  EXPECT_EQ(owner.deregistered, 1u);
  regions.remove(read_only);
  EXPECT_EQ(owner.deregistered, 2u);
  EXPECT_EQ(regions.counters().registrations, 0u);
}

// Between the two the application may have unmapped it, and mapped it anew.
TEST_F(RegionsTest, MemoryThatComesAgainIsRegisteredAgainThoughAPieceKeepsTheArena) {
  Registered* const arena = add(0, 16);
  Registered* const kept = add(8, 4);
  Registered* const inner = add(9, 2);
  regions.remove(arena);
  Registered* const again = add(0, 8);
  EXPECT_EQ(key_of(again), 2u);
  Registered* const across = add(7, 4);
  EXPECT_EQ(key_of(across), 3u);
  EXPECT_EQ(key_of(add(9, 3)), 1u);  // it has stayed with `kept`
  regions.remove(kept);
  EXPECT_EQ(key_of(add(9, 1)), 1u);   // with `inner`
  EXPECT_EQ(key_of(add(12, 1)), 4u);  // with nobody
  EXPECT_EQ(key_of(inner), 1u);
}

TEST_F(RegionsTest, ManyTensorsOfAnArenaAreOneRegistration) {
  Registered* const arena = add(0, 10'000);
  ASSERT_EQ(owner.work.size(), 1u);
  owner.work[0]();
  std::vector<Registered*> tensors;
  for (uint64_t i = 0; i < 10'000; ++i) tensors.push_back(add(i, 1));
  regions.remove(arena);
  for (Registered* const tensor : tensors) regions.remove(tensor);
  EXPECT_EQ(owner.registered, 1u);
  EXPECT_EQ(owner.deregistered, 1u);
}

TEST_F(RegionsTest, HugeMemoryIsRegisteredInTheBackgroundAndWhatNeedsItWaits) {
  Registered* const huge = add(0, 32);
  Registered* const within = add(5, 1);
  Registered* const small = add(100, 1);
  EXPECT_EQ(regions.counters().under_way, 1u);
  EXPECT_EQ(owner.registered, 1u);
  EXPECT_NE(key_of(small), 0u);
  EXPECT_EQ(key_of(huge), 0u);
  EXPECT_EQ(state.status, Status::kAgain);
  EXPECT_EQ(key_of(within), 0u);
  EXPECT_EQ(state.status, Status::kAgain);
  owner.work.at(0)();
  EXPECT_EQ(owner.told, 1);
  EXPECT_EQ(key_of(huge), 2u);
  EXPECT_EQ(key_of(within), 2u);
  EXPECT_EQ(regions.counters().under_way, 0u);
}

TEST_F(RegionsTest, WhatFailsInTheBackgroundSaysWhyAndServesNobody) {
  Registered* const huge = add(0, 32);
  owner.failure = "ibv_reg_mr: Cannot allocate memory (ulimit -l)";
  owner.work.at(0)();
  EXPECT_EQ(key_of(huge), 0u);
  EXPECT_EQ(state.status, Status::kOutOfMemory);
  EXPECT_EQ(state.reason, owner.failure);
  towline_region_ref ref = {};
  fabric::RemoteMemory remote;
  EXPECT_EQ(regions.find(huge->region.key, 0, ref, remote).reason, owner.failure);
  owner.failure.clear();
  EXPECT_EQ(key_of(add(5, 1)), 1u);
  regions.remove(huge);
  EXPECT_EQ(owner.deregistered, 0u);
}

TEST_F(RegionsTest, WhatIsRemovedBeforeItsRegistrationBeginsIsNotRegistered) {
  Registered* const huge = add(0, 32);
  regions.remove(huge);
  owner.work.at(0)();
  EXPECT_EQ(owner.registered, 0u);
  EXPECT_EQ(regions.counters().under_way, 0u);
}

// The arena's region covers what is to be registered: one within it goes without waiting.
TEST_F(RegionsTest, APieceOfWhatHasNotBegunGoesAtOnceAndTheLastOneLeavesItOut) {
  Registered* const huge = add(0, 32);
  Registered* const within = add(5, 1);
  Registered* const other = add(7, 2);
  regions.remove(within);
  EXPECT_EQ(regions.counters().under_way, 1u);
  regions.remove(other);
  regions.remove(huge);
  owner.work.at(0)();
  EXPECT_EQ(owner.registered, 0u);
  EXPECT_EQ(regions.counters().registrations, 0u);
}

TEST_F(RegionsTest, RemovingWaitsForTheRegistrationThatIsUnderWay) {
  std::binary_semaphore begun{0};
  std::binary_semaphore go_on{0};
  owner.during = [&] {
    begun.release();
    go_on.acquire();
  };
  Registered* const huge = add(0, 32);
  std::thread host(owner.work.at(0));
  begun.acquire();
  std::thread application([&] { regions.remove(huge); });
  go_on.release();
  application.join();
  EXPECT_EQ(owner.registered, 1u);
  EXPECT_EQ(owner.deregistered, 1u);
  host.join();
}

TEST_F(RegionsTest, WithoutAThreadOfTheHostItIsRegisteredAtOnce) {
  owner.has_threads = false;
  EXPECT_EQ(key_of(add(0, 32)), 1u);
  owner.failure = "no room";
  EXPECT_THROW((void)add(100, 32), core::Error);
  EXPECT_EQ(regions.counters().regions, 1u);
  EXPECT_EQ(regions.counters().registrations, 1u);
}

}  // namespace
}  // namespace towline::rdma
