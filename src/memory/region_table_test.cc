#include "memory/region_table.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "memory/pin_access.h"

namespace towline {
namespace {

Region make_region(uint64_t address, uint64_t bytes, uint32_t access = TOWLINE_ACCESS_ALL) {
  Region region;
  region.ref.address = address;
  region.ref.bytes = bytes;
  region.ref.access = access;
  return region;
}

uint64_t add_published(RegionTable& table, uint64_t address, uint64_t bytes,
                       uint32_t access = TOWLINE_ACCESS_ALL) {
  const uint64_t key = table.add(make_region(address, bytes, access))->ref.key;
  table.publish(key);
  return key;
}

Status try_pin(RegionTable& table, uint64_t key, uint64_t address, uint64_t bytes, uint32_t access) {
  void* pointer = nullptr;
  void* pin = nullptr;
  const Status status = table.pin(key, address, bytes, access, &pointer, &pin);
  if (status == Status::kOk) {
    EXPECT_EQ(pointer, reinterpret_cast<void*>(address));
    RegionTable::unpin(pin);
  } else {
    EXPECT_EQ(pin, nullptr);
  }
  return status;
}

TEST(RegionTable, pins_what_lies_inside_with_the_rights_given) {
  RegionTable table;
  const uint64_t both = add_published(table, 0x10000, 0x1000);
  const uint64_t read = add_published(table, 0x10000, 0x1000, TOWLINE_ACCESS_READ);
  EXPECT_NE(both, 0U);
  EXPECT_NE(both, read);
  EXPECT_EQ(try_pin(table, both, 0x10000, 0x1000, 3), Status::kOk);
  EXPECT_EQ(try_pin(table, both, 0x10fff, 1, 2), Status::kOk);
  EXPECT_EQ(try_pin(table, both, 0x10fff, 2, 1), Status::kOutOfRange);
  EXPECT_EQ(try_pin(table, both, 0xffff, 1, 1), Status::kOutOfRange);
  EXPECT_EQ(try_pin(table, read, 0x10000, 16, 1), Status::kOk);
  EXPECT_EQ(try_pin(table, read, 0x10000, 16, 2), Status::kPermissionDenied);
  EXPECT_EQ(try_pin(table, read, 0x10000, 16, 3), Status::kPermissionDenied);
}

TEST(RegionTable, gives_memory_of_a_gpu_only_to_who_can_address_it) {
  RegionTable table;
  Region region = make_region(0x10000, 0x1000);
  region.ref.kind = TOWLINE_MEMORY_VRAM;
  const uint64_t key = table.add(std::move(region))->ref.key;
  table.publish(key);
  EXPECT_EQ(try_pin(table, key, 0x10000, 16, 1), Status::kPermissionDenied);
  EXPECT_EQ(try_pin(table, key, 0x10000, 16, 1 | kPinVram), Status::kOk);
}

TEST(RegionTable, never_takes_an_offset_into_storage_for_a_pointer) {
  RegionTable table;
  for (const uint32_t kind : {TOWLINE_MEMORY_FILE, TOWLINE_MEMORY_BLOCK, TOWLINE_MEMORY_OBJECT}) {
    Region region = make_region(0, uint64_t{1} << 48);
    region.ref.kind = kind;
    region.ref.device = 1;
    const uint64_t key = table.add(std::move(region))->ref.key;
    table.publish(key);
    for (const uint32_t access : {1u, 2u, 3u})
      EXPECT_EQ(try_pin(table, key, 0x10000, 16, access), Status::kPermissionDenied);
  }
}

TEST(RegionTable, refuses_hostile_numbers) {
  RegionTable table;
  const uint64_t key = add_published(table, 0x10000, 0x1000);
  EXPECT_EQ(try_pin(table, key, 0x10000, 0, 1), Status::kInvalidArgument);
  EXPECT_EQ(try_pin(table, key, 0x10000, 16, 0), Status::kInvalidArgument);
  EXPECT_EQ(try_pin(table, key, 0x10000, 16, 4), Status::kInvalidArgument);
  EXPECT_EQ(try_pin(table, key, 0x10000, UINT64_MAX, 1), Status::kOutOfRange);
  EXPECT_EQ(try_pin(table, key, 0x10010, UINT64_MAX - 0xf, 1), Status::kOutOfRange);
  EXPECT_EQ(try_pin(table, key, UINT64_MAX, 1, 1), Status::kOutOfRange);
  EXPECT_EQ(try_pin(table, key, 0, UINT64_MAX, 1), Status::kOutOfRange);
  EXPECT_EQ(try_pin(table, key, uint64_t{1} << 63, uint64_t{1} << 63, 1), Status::kOutOfRange);
  Random random(1);
  for (const uint64_t wrong :
       {uint64_t{0}, UINT64_MAX, key + 1, key | 0xffffffff, key + (uint64_t{1} << 32),
        key + (uint64_t{2} << 32), uint64_t{RegionTable::kMaxRegions} | uint64_t{1} << 32}) {
    EXPECT_EQ(try_pin(table, wrong, 0x10000, 16, 1), Status::kStale) << wrong;
  }
  for (int i = 0; i < 10000; ++i) {
    const uint64_t wrong = random.next();
    if (wrong != key) {
      EXPECT_EQ(try_pin(table, wrong, 0x10000, 16, 1), Status::kStale);
    }
  }
}

TEST(RegionTable, keeps_a_region_until_its_pins_are_given_back) {
  RegionTable table;
  const uint64_t key = add_published(table, 0x10000, 0x1000);
  void* pointer = nullptr;
  void* pin = nullptr;
  ASSERT_EQ(table.pin(key, 0x10000, 16, 1, &pointer, &pin), Status::kOk);
  EXPECT_EQ(table.pinned(key), 1U);
  EXPECT_TRUE(table.retire(key));
  EXPECT_FALSE(table.retire(key));
  EXPECT_EQ(try_pin(table, key, 0x10000, 16, 1), Status::kStale);
  EXPECT_EQ(RegionTable::Reader(table).index().find(TOWLINE_MEMORY_DRAM, 0, 0x10000, 16), nullptr);
  EXPECT_FALSE(table.remove(key));
  EXPECT_NE(table.find(key), nullptr);
  RegionTable::unpin(pin);
  EXPECT_EQ(table.pinned(key), 0U);
  EXPECT_TRUE(table.remove(key));
  EXPECT_FALSE(table.remove(key));
  EXPECT_EQ(table.find(key), nullptr);
}

TEST(RegionTable, gives_no_key_twice) {
  RegionTable table;
  const uint64_t first = add_published(table, 0x10000, 0x1000);
  EXPECT_TRUE(table.retire(first));
  EXPECT_TRUE(table.remove(first));
  const uint64_t second = add_published(table, 0x20000, 0x1000);
  EXPECT_NE(first, second);
  EXPECT_EQ(try_pin(table, first, 0x20000, 16, 1), Status::kStale);
  EXPECT_EQ(try_pin(table, second, 0x20000, 16, 1), Status::kOk);
}

TEST(RegionTable, gives_keys_that_can_not_be_guessed_from_others) {
  RegionTable table;
  RegionTable other;
  const uint64_t here = add_published(table, 0x10000, 0x1000);
  EXPECT_NE(here, add_published(other, 0x10000, 0x1000)) << "keys of another agent must not help";
  const uint64_t next = add_published(table, 0x20000, 0x1000);
  const uint64_t random_bits = here >> RegionTable::kIndexBits;
  EXPECT_NE(random_bits, next >> RegionTable::kIndexBits) << "nor keys of neighbouring slots";
  for (uint64_t step = 1; step < 10000; ++step) {
    for (const uint64_t guess : {random_bits + step, random_bits - step, step}) {
      const uint64_t key = guess << RegionTable::kIndexBits | (here & (RegionTable::kMaxRegions - 1));
      if (key != here) {
        EXPECT_EQ(try_pin(table, key, 0x10000, 16, 1), Status::kStale);
      }
    }
  }
}

TEST(RegionTable, gives_nobody_a_region_without_access_whatever_the_key) {
  RegionTable table;
  const uint64_t key = add_published(table, 0x10000, 0x1000, TOWLINE_ACCESS_NONE);
  for (const uint32_t access : {1u, 2u, 3u})
    EXPECT_EQ(try_pin(table, key, 0x10000, 16, access), Status::kPermissionDenied);
  EXPECT_EQ(try_pin(table, key, 0x10000, 16, 0), Status::kInvalidArgument);
  EXPECT_FALSE(table.find(key)->for_peers());
  EXPECT_NE(RegionTable::Reader(table).index().find(TOWLINE_MEMORY_DRAM, 0, 0x10000, 16), nullptr);
}

TEST(RegionTable, pins_a_hidden_region_by_its_key_and_finds_it_in_no_list) {
  RegionTable table;
  Region hidden = make_region(0x10000, 0x1000);
  hidden.hidden = true;
  const uint64_t key = table.add(std::move(hidden))->ref.key;
  table.publish(key);
  EXPECT_EQ(try_pin(table, key, 0x10000, 16, 3), Status::kOk);
  EXPECT_TRUE(table.published().empty());
  EXPECT_EQ(RegionTable::Reader(table).index().find(TOWLINE_MEMORY_DRAM, 0, 0x10000, 16), nullptr);
  EXPECT_TRUE(table.retire(key));
  EXPECT_EQ(try_pin(table, key, 0x10000, 16, 3), Status::kStale);
  EXPECT_TRUE(table.remove(key));
}

TEST(RegionTable, shows_regions_from_publishing_to_retiring) {
  RegionTable table;
  const uint64_t key = table.add(make_region(0x10000, 0x1000))->ref.key;
  EXPECT_EQ(try_pin(table, key, 0x10000, 16, 1), Status::kStale);
  EXPECT_EQ(RegionTable::Reader(table).index().size(), 0U);
  EXPECT_NE(table.find(key), nullptr);
  EXPECT_TRUE(table.published().empty());
  EXPECT_FALSE(table.retire(key));
  EXPECT_TRUE(table.remove(key));  // given up before it was published
  const uint64_t other = add_published(table, 0x10000, 0x1000);
  ASSERT_EQ(table.published().size(), 1U);
  EXPECT_EQ(table.published()[0]->ref.key, other);
  EXPECT_EQ(table.published()[0]->ref.access, 3U);
}

TEST(RegionTable, refuses_senseless_regions) {
  RegionTable table;
  EXPECT_THROW(table.add(make_region(0, 100)), Error);
  EXPECT_THROW(table.add(make_region(0x1000, 0)), Error);
  EXPECT_THROW(table.add(make_region(0x1000, UINT64_MAX)), Error);
  EXPECT_EQ(table.size(), 0U);
}

// Threads that pin check the region's bytes. The owner changes these as soon as it may, so a pin that came too late
// would see the change.
TEST(RegionTable, never_lets_a_pin_outlive_its_region) {
  RegionTable table;
  constexpr uint64_t kRounds = 3000;
  std::vector<uint64_t> memory(64);
  const auto address = reinterpret_cast<uint64_t>(memory.data());
  const uint64_t bytes = memory.size() * sizeof(uint64_t);
  std::atomic<uint64_t> key{0};
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      while (!over.load(std::memory_order_acquire)) {
        const uint64_t now = key.load(std::memory_order_acquire);
        void* pointer = nullptr;
        void* pin = nullptr;
        if (table.pin(now, address, bytes, 1, &pointer, &pin) != Status::kOk) continue;
        const auto* values = static_cast<const uint64_t*>(pointer);
        EXPECT_EQ(values[0], now);
        EXPECT_EQ(values[63], now);
        RegionTable::unpin(pin);
      }
    });
  }
  for (uint64_t round = 0; round < kRounds; ++round) {
    const uint64_t now = table.add(make_region(address, bytes))->ref.key;
    memory[0] = memory[63] = now;
    table.publish(now);
    key.store(now, std::memory_order_release);
    if (round % 8 == 0) std::this_thread::yield();
    ASSERT_TRUE(table.retire(now));
    while (!table.remove(now)) std::this_thread::yield();
    memory[0] = memory[63] = 0;  // ours alone again
  }
  over.store(true, std::memory_order_release);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(table.size(), 0U);
}

TEST(RegionTable, takes_registrations_and_look_ups_from_many_threads) {
  RegionTable table;
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      Random random(t);
      std::vector<uint64_t> keys;
      const uint64_t base = (t + 1) << 32;
      for (uint64_t i = 0; i < 1000; ++i) {
        if (keys.size() < 20 || random.chance(0.5)) {
          keys.push_back(add_published(table, base + (i << 12), 4096));
        } else {
          std::swap(keys[random.below(keys.size())], keys.back());
          EXPECT_TRUE(table.retire(keys.back()));
          EXPECT_TRUE(table.remove(keys.back()));
          keys.pop_back();
        }
        const RegionTable::Reader reader(table);
        for (const uint64_t key : keys) EXPECT_NE(reader.index().find_key(key), nullptr);
      }
      for (const uint64_t key : keys) {
        EXPECT_TRUE(table.retire(key));
        EXPECT_TRUE(table.remove(key));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(table.size(), 0U);
}

TEST(RegionTable, holds_a_hundred_thousand_regions) {
  RegionTable table;
  std::vector<uint64_t> keys;
  for (uint64_t i = 1; i <= 100'000; ++i) keys.push_back(add_published(table, i << 16, 1 << 16));
  EXPECT_EQ(table.size(), keys.size());
  for (uint64_t i = 0; i < keys.size(); i += 11)
    EXPECT_EQ(try_pin(table, keys[i], ((i + 1) << 16) + 7, 100, 3), Status::kOk);
}

}  // namespace
}  // namespace towline
