#include "base/containers/slab.h"

#include <gtest/gtest.h>

#include <set>
#include <thread>
#include <vector>

#include "base/random.h"

namespace towline {
namespace {

struct Object {
  std::atomic<uint64_t> value{0};
};

TEST(SlabTest, AHandleFindsItsObjectUntilFreed) {
  Slab<Object> slab(10, 4);
  const auto first = slab.allocate();
  ASSERT_FALSE(first.handle.is_none());
  first.object->value = 7;
  EXPECT_EQ(slab.find(first.handle), first.object);
  EXPECT_EQ(Handle::from_u64(first.handle.to_u64()), first.handle);
  EXPECT_TRUE(slab.free(first.handle));
  EXPECT_EQ(slab.find(first.handle), nullptr);
  EXPECT_FALSE(slab.free(first.handle));
}

TEST(SlabTest, AReusedSlotDoesNotAnswerToItsOldHandle) {
  Slab<Object> slab(1);
  const Handle old = slab.allocate().handle;
  slab.free(old);
  const auto now = slab.allocate();
  EXPECT_EQ(now.handle.index, old.index);
  EXPECT_NE(now.handle.generation, old.generation);
  EXPECT_EQ(slab.find(old), nullptr);
  EXPECT_FALSE(slab.alive(old));
  EXPECT_FALSE(slab.free(old));
  EXPECT_TRUE(slab.alive(now.handle));
}

TEST(SlabTest, MadeUpHandlesFindNothing) {
  Slab<Object> slab(100, 16);
  const Handle real = slab.allocate().handle;
  for (const Handle handle : {Handle{}, Handle{0, 0}, Handle{real.index, real.generation + 1},
                              Handle{real.index, real.generation + 2}, Handle{99, 1}, Handle{100, 1},
                              Handle{UINT32_MAX, UINT32_MAX}, Handle{1, 0}, Handle{1, 1}}) {
    EXPECT_EQ(slab.find(handle), nullptr) << handle.index << " " << handle.generation;
    EXPECT_FALSE(slab.free(handle));
  }
}

TEST(SlabTest, IsBoundedAlsoWhereTheLastChunkIsPartial) {
  Slab<Object> slab(6, 4);
  std::set<uint32_t> indices;
  std::vector<Handle> handles;
  for (int i = 0; i < 6; ++i) {
    handles.push_back(slab.allocate().handle);
    indices.insert(handles.back().index);
  }
  EXPECT_EQ(indices.size(), 6u);
  EXPECT_EQ(*indices.rbegin(), 5u);
  EXPECT_TRUE(slab.allocate().handle.is_none());
  EXPECT_EQ(slab.allocate().object, nullptr);
  EXPECT_EQ(slab.live(), 6u);
  slab.free(handles[2]);
  EXPECT_EQ(slab.allocate().handle.index, handles[2].index);
}

TEST(SlabTest, ForEachVisitsTheLiveOnes) {
  Slab<Object> slab(50, 8);
  std::set<uint64_t> expected;
  for (int i = 0; i < 20; ++i) {
    const auto made = slab.allocate();
    if (i % 3 == 0) {
      slab.free(made.handle);
    } else {
      expected.insert(made.handle.to_u64());
    }
  }
  std::set<uint64_t> visited;
  slab.for_each([&](Handle handle, Object&) { visited.insert(handle.to_u64()); });
  EXPECT_EQ(visited, expected);
}

// Each object holds its own handle while it lives; a look-up that is still alive afterwards must have read
// it.
TEST(SlabTest, LookUpsRaceWithReuseAndAreNeverFooled) {
  Slab<Object> slab(8, 2);
  std::vector<std::atomic<uint64_t>> published(8);
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> hits{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      Random random(static_cast<uint64_t>(t));
      while (!stop.load(std::memory_order_relaxed)) {
        const Handle handle = Handle::from_u64(published[random.below(8)].load(std::memory_order_acquire));
        Object* object = slab.find(handle);
        if (object == nullptr) continue;
        const uint64_t value = object->value.load(std::memory_order_acquire);
        if (slab.alive(handle) && value != handle.to_u64()) ADD_FAILURE() << "read another object's value";
        hits.fetch_add(1, std::memory_order_relaxed);
      }
    });
  }
  for (int i = 0; i < 5000 || hits.load() < 100; ++i) {
    const auto made = slab.allocate();
    if (made.handle.is_none()) {
      FAIL();
    }
    made.object->value.store(made.handle.to_u64(), std::memory_order_release);
    published[made.handle.index].store(made.handle.to_u64(), std::memory_order_release);
    if (i % 64 == 0) std::this_thread::yield();
    slab.free(made.handle);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace towline
