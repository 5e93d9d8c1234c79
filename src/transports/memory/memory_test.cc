#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "transports/memory/plugin.h"
#include "transports/memory/test_support.h"

namespace towline::memory {
namespace {

using transport_test::TestAgent;
using transport_test::TestLink;
using transport_test::TestPlan;
using transport_test::turn_until;

// Two agents, joined; `a` connected.
struct Pair {
  explicit Pair(const TestAgent::Settings& settings = {})
      : a(towline_memory_plugin(), "a", settings), b(towline_memory_plugin(), "b", settings) {
    to_b = &a.connect(b.identity(), b.address());
    if (!turn_until({&a, &b}, [&] { return to_b->up && !b.links.empty(); })) std::abort();
    to_a = b.links.front().get();
  }

  TestAgent::Imported import(const towline_region_ref& region) {
    TestAgent::Imported imported;
    turn_until({&a, &b}, [&] {
      a.import_once(*to_b, region, imported);
      return imported.status != Status::kAgain;
    });
    return imported;
  }
  bool turn(const std::function<bool()>& done) { return turn_until({&a, &b}, done); }

  TestAgent a;
  TestAgent b;
  TestLink* to_b = nullptr;
  TestLink* to_a = nullptr;
};

std::vector<uint8_t> pattern(size_t bytes, uint8_t seed) {
  std::vector<uint8_t> data(bytes);
  for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<uint8_t>(i * 31 + (i >> 8) + seed);
  return data;
}

TEST(MemoryTransport, AgentsOfOneProcessFindEachOther) {
  Pair pair;
  EXPECT_EQ(pair.to_a->peer_name, "a");
  EXPECT_EQ(pair.a.probe(pair.b.identity(), pair.b.address()), Status::kOk);
  EXPECT_EQ(pair.a.send(*pair.to_b, "hello"), Status::kOk);
  EXPECT_EQ(pair.b.send(*pair.to_a, "there"), Status::kOk);
  EXPECT_TRUE(pair.turn([&] { return !pair.to_a->messages.empty() && !pair.to_b->messages.empty(); }));
  EXPECT_EQ(pair.to_a->messages.front(), "hello");
  EXPECT_EQ(pair.to_b->messages.front(), "there");
  EXPECT_NE(pair.a.describe(*pair.to_b).find("\"memory\""), std::string::npos);
}

TEST(MemoryTransport, AnAgentThatHasClosedCannotBeReached) {
  TestAgent a(towline_memory_plugin(), "a");
  auto b = std::make_unique<TestAgent>(towline_memory_plugin(), "b");
  const towline_identity identity = b->identity();
  const std::vector<uint8_t> address = b->address();
  b.reset();
  EXPECT_EQ(a.probe(identity, address), Status::kUnreachable);
  EXPECT_EQ(a.connect(identity, address).status, Status::kUnreachable);
  EXPECT_EQ(a.connect(identity, {1, 2, 3}).status, Status::kProtocol);
}

TEST(MemoryTransport, AnAgentConnectsToItself) {
  TestAgent a(towline_memory_plugin(), "a");
  TestLink& link = a.connect(a.identity(), a.address());
  ASSERT_TRUE(turn_until({&a}, [&] { return link.up && a.links.size() == 2; }));
  std::vector<uint8_t> from = pattern(100'000, 1);
  std::vector<uint8_t> to(from.size());
  const auto& region = a.add(to.data(), to.size());
  TestAgent::Imported imported;
  ASSERT_TRUE(turn_until({&a}, [&] {
    a.import_once(link, region.ref, imported);
    return imported.status != Status::kAgain;
  }));
  TestPlan plan(a, TOWLINE_WRITE);
  plan.remote(region.ref, imported.import);
  plan.add(from.data(), region.ref.address, static_cast<uint32_t>(from.size()));
  ASSERT_EQ(plan.prepare(link), Status::kOk);
  EXPECT_EQ(plan.submit(1, "done"), Status::kOk);
  EXPECT_EQ(from, to);
  EXPECT_TRUE(turn_until({&a}, [&] { return !a.links.back()->messages.empty(); }));
  plan.release();
  a.unimport(link, imported);
}

TEST(MemoryTransport, SmallPlansFinishInsideSubmit) {
  Pair pair;
  std::vector<uint8_t> local = pattern(64 * 1024, 3);
  std::vector<uint8_t> remote(local.size());
  const auto& region = pair.b.add(remote.data(), remote.size());
  auto imported = pair.import(region.ref);
  ASSERT_EQ(imported.status, Status::kOk);
  EXPECT_EQ(imported.how, "same address space");
  for (const uint32_t op : {TOWLINE_WRITE, TOWLINE_READ}) {
    TestPlan plan(pair.a, op);
    plan.remote(region.ref, imported.import);
    for (uint32_t i = 0; i < 16; ++i)  // the blocks change places
      plan.add(local.data() + i * 4096, region.ref.address + (15 - i) * 4096, 4096);
    ASSERT_EQ(plan.prepare(*pair.to_b), Status::kOk);
    EXPECT_EQ(plan.prepared->flags, uint32_t{TOWLINE_PREPARED_CONCURRENT | TOWLINE_PREPARED_IMMEDIATE});
    if (op == TOWLINE_READ) std::fill(local.begin(), local.end(), uint8_t{0});
    EXPECT_EQ(plan.submit(1), Status::kOk);
    const std::vector<uint8_t> expected = pattern(64 * 1024, 3);
    for (uint32_t i = 0; i < 16; ++i)
      EXPECT_EQ(std::memcmp(remote.data() + (15 - i) * 4096, expected.data() + i * 4096, 4096), 0);
    if (op == TOWLINE_READ) {
      EXPECT_EQ(local, expected);
    }
  }
  pair.a.unimport(*pair.to_b, imported);
}

TEST(MemoryTransport, LargePlansAreCopiedInSlicesAndTheMessageFollows) {
  Pair pair;
  std::vector<uint8_t> local = pattern(10 << 20, 5);
  std::vector<uint8_t> remote(local.size());
  const auto& region = pair.b.add(remote.data(), remote.size());
  auto imported = pair.import(region.ref);
  TestPlan plan(pair.a, TOWLINE_WRITE);
  plan.remote(region.ref, imported.import);
  plan.add(local.data(), region.ref.address, static_cast<uint32_t>(local.size()));
  ASSERT_EQ(plan.prepare(*pair.to_b), Status::kOk);
  EXPECT_EQ(plan.prepared->flags, 0u);
  ASSERT_EQ(plan.submit(7, "there"), Status::kInProgress);
  bool complete_before_message = true;
  pair.b.on_message = [&](TestLink&) { complete_before_message = remote == local; };
  EXPECT_TRUE(pair.turn([&] { return pair.a.ended(7) && !pair.to_a->messages.empty(); }));
  EXPECT_TRUE(complete_before_message);
  EXPECT_EQ(pair.a.results[7].status, TOWLINE_OK);
  EXPECT_EQ(pair.a.results[7].bytes, local.size());
  EXPECT_EQ(pair.a.results[7].fences, 3u);
  plan.release();
  pair.a.unimport(*pair.to_b, imported);
}

TEST(MemoryTransport, GuardedRegionsAreReachedThroughTheirOwnerOnly) {
  Pair pair;
  std::vector<uint8_t> local = pattern(300'000, 9);
  std::vector<uint8_t> remote(local.size());
  auto& region = pair.b.add(remote.data(), remote.size(), TOWLINE_ACCESS_ALL, TOWLINE_REGION_GUARDED);
  auto imported = pair.import(region.ref);
  ASSERT_EQ(imported.status, Status::kOk);
  EXPECT_EQ(imported.how, "ring in this process");
  EXPECT_EQ(region.pins, 0u);
  TestPlan plan(pair.a, TOWLINE_WRITE);
  plan.remote(region.ref, imported.import);
  plan.add(local.data(), region.ref.address, static_cast<uint32_t>(local.size()));
  ASSERT_EQ(plan.prepare(*pair.to_b), Status::kOk);
  ASSERT_EQ(plan.submit(1), Status::kInProgress);
  EXPECT_TRUE(pair.turn([&] { return pair.a.ended(1); }));
  EXPECT_EQ(pair.a.results[1].status, TOWLINE_OK);
  EXPECT_EQ(remote, local);
  plan.release();
  pair.a.unimport(*pair.to_b, imported);
}

TEST(MemoryTransport, TheFramedSettingSendsEverythingThroughTheRing) {
  Pair pair(TestAgent::Settings{{"tuning.memory.framed", "true"}});
  std::vector<uint8_t> local = pattern(5000, 2);
  std::vector<uint8_t> remote(local.size());
  const auto& region = pair.b.add(remote.data(), remote.size());
  auto imported = pair.import(region.ref);
  TestPlan plan(pair.a, TOWLINE_WRITE);
  plan.remote(region.ref, imported.import);
  plan.add(local.data(), region.ref.address, 5000);
  ASSERT_EQ(plan.prepare(*pair.to_b), Status::kOk);
  EXPECT_EQ(plan.prepared->flags & TOWLINE_PREPARED_CONCURRENT, 0u);
  ASSERT_EQ(plan.submit(1, "m"), Status::kInProgress);
  EXPECT_TRUE(pair.turn([&] { return pair.a.ended(1) && !pair.to_a->messages.empty(); }));
  EXPECT_EQ(remote, local);
  plan.release();
  pair.a.unimport(*pair.to_b, imported);
}

TEST(MemoryTransport, AnImportPinsTheOwnersRegion) {
  Pair pair;
  std::vector<uint8_t> remote(4096);
  auto& region = pair.b.add(remote.data(), remote.size());
  auto imported = pair.import(region.ref);
  EXPECT_EQ(region.pins, 1u);
  pair.a.unimport(*pair.to_b, imported);
  EXPECT_TRUE(pair.turn([&] { return region.pins == 0; }));

  towline_region_ref stale = region.ref;
  stale.key += 100;
  EXPECT_EQ(pair.import(stale).status, Status::kStale);
  towline_region_ref longer = region.ref;
  longer.bytes += 1;
  EXPECT_EQ(pair.import(longer).status, Status::kOutOfRange);
  EXPECT_EQ(region.pins, 0u);
}

TEST(MemoryTransport, NothingIsCopiedOnceTheOwnerHasDisconnected) {
  Pair pair;
  std::vector<uint8_t> local = pattern(2 << 20, 4);
  std::vector<uint8_t> remote(local.size());
  auto& region = pair.b.add(remote.data(), remote.size());
  auto imported = pair.import(region.ref);
  TestPlan small(pair.a, TOWLINE_WRITE);
  small.remote(region.ref, imported.import);
  small.add(local.data(), region.ref.address, 4096);
  ASSERT_EQ(small.prepare(*pair.to_b), Status::kOk);
  TestPlan large(pair.a, TOWLINE_WRITE);
  large.remote(region.ref, imported.import);
  large.add(local.data(), region.ref.address, 2 << 20);
  ASSERT_EQ(large.prepare(*pair.to_b), Status::kOk);
  ASSERT_EQ(large.submit(5), Status::kInProgress);

  pair.b.disconnect(*pair.to_a);
  EXPECT_EQ(region.pins, 0u);
  EXPECT_EQ(small.submit(6), Status::kPeerLost);
  EXPECT_TRUE(pair.turn([&] { return pair.to_b->down && pair.a.ended(5); }));
  EXPECT_EQ(pair.a.results[5].status, TOWLINE_PEER_LOST);
  EXPECT_EQ(remote, std::vector<uint8_t>(remote.size()));
  small.release();
  large.release();
  pair.a.unimport(*pair.to_b, imported);
}

TEST(MemoryTransport, MessagesSentBeforeAnEndArrive) {
  Pair pair;
  EXPECT_EQ(pair.b.send(*pair.to_a, "last words"), Status::kOk);
  pair.b.disconnect(*pair.to_a);
  EXPECT_TRUE(pair.turn([&] { return pair.to_b->down; }));
  ASSERT_EQ(pair.to_b->messages.size(), 1u);
  EXPECT_EQ(pair.to_b->messages.front(), "last words");
}

TEST(MemoryTransport, CancelledAndDisconnectedPartsEndExactlyOnce) {
  Pair pair;
  std::vector<uint8_t> local = pattern(8 << 20, 4);
  std::vector<uint8_t> remote(local.size());
  const auto& region = pair.b.add(remote.data(), remote.size());
  auto imported = pair.import(region.ref);
  TestPlan plan(pair.a, TOWLINE_WRITE);
  plan.remote(region.ref, imported.import);
  plan.add(local.data(), region.ref.address, 8 << 20);
  ASSERT_EQ(plan.prepare(*pair.to_b), Status::kOk);
  for (uint64_t cookie = 1; cookie <= 3; ++cookie) ASSERT_EQ(plan.submit(cookie), Status::kInProgress);
  pair.a.turn();
  pair.a.cancel(*pair.to_b, 2);
  pair.a.cancel(*pair.to_b, 2);
  EXPECT_TRUE(pair.turn([&] { return pair.a.ended(2); }));
  EXPECT_EQ(pair.a.results[2].status, TOWLINE_CANCELLED);
  pair.a.disconnect(*pair.to_b);
  EXPECT_EQ(pair.a.results[1].status, TOWLINE_CLOSED);
  EXPECT_EQ(pair.a.results[3].status, TOWLINE_CLOSED);
  EXPECT_EQ(pair.a.completed_twice, 0u);
}

TEST(MemoryTransport, AConnectionMayBeDisconnectedInItsCallbacks) {
  Pair pair;
  std::vector<uint8_t> local(2 << 20);
  std::vector<uint8_t> remote(local.size());
  const auto& region = pair.b.add(remote.data(), remote.size());
  auto imported = pair.import(region.ref);
  TestPlan plan(pair.a, TOWLINE_WRITE);
  plan.remote(region.ref, imported.import);
  plan.add(local.data(), region.ref.address, 2 << 20);
  ASSERT_EQ(plan.prepare(*pair.to_b), Status::kOk);
  pair.a.on_complete = [&](uint64_t) { pair.a.disconnect(*pair.to_b); };
  pair.b.on_message = [&](TestLink& link) { pair.b.disconnect(link); };
  ASSERT_EQ(plan.submit(1, "bye"), Status::kInProgress);
  EXPECT_TRUE(
      pair.turn([&] { return pair.to_b->connection == nullptr && pair.to_a->connection == nullptr; }));
  for (int i = 0; i < 10; ++i) {
    pair.a.turn();
    pair.b.turn();
  }
}

TEST(MemoryTransport, TheCoreMayRefuseAndTheConnectorIsTold) {
  TestAgent a(towline_memory_plugin(), "a");
  TestAgent b(towline_memory_plugin(), "b");
  b.accept_with = Status::kPermissionDenied;
  TestLink& link = a.connect(b.identity(), b.address());
  EXPECT_TRUE(turn_until({&a, &b}, [&] { return link.down; }));
  EXPECT_EQ(link.status, Status::kPermissionDenied);
}

TEST(MemoryTransport, AConnectKeepsItsDeadlineInVirtualTime) {
  TestAgent a(towline_memory_plugin(), "a", {}, true);
  TestAgent b(towline_memory_plugin(), "b", {}, true);
  TestLink& link = a.connect(b.identity(), b.address(), kSecondNs);
  a.turn();
  EXPECT_FALSE(link.down);
  a.clock.advance(2 * kSecondNs);
  a.turn();
  EXPECT_TRUE(link.down);
  EXPECT_EQ(link.status, Status::kTimedOut);
  a.disconnect(link);
  b.turn();  // finds that no one waits any more
  EXPECT_TRUE(b.links.empty());
}

TEST(MemoryTransport, BadSettingsAreRefusedByName) {
  TestAgent a(towline_memory_plugin(), "a", {{"tuning.memory.ring_bytes", "1000"}});
  EXPECT_EQ(a.open_status(), Status::kInvalidArgument);
  EXPECT_NE(a.failure.find("tuning.memory.ring_bytes"), std::string::npos);
}

TEST(MemoryTransport, ASleepingWorkerIsWokenForMessages) {
  Pair pair;
  constexpr int kRounds = 200;
  std::thread other([&] {
    for (int heard = 0; heard < kRounds;) {
      if (pair.b.turn() == 0) pair.b.sleep(10'000);
      for (; !pair.to_a->messages.empty(); ++heard) {
        pair.to_a->messages.pop_front();
        while (pair.b.send(*pair.to_a, "pong") == Status::kAgain) pair.b.turn();
      }
    }
  });
  for (int i = 0; i < kRounds; ++i) {
    ASSERT_EQ(pair.a.send(*pair.to_b, "ping"), Status::kOk);
    while (pair.to_b->messages.empty()) {
      if (pair.a.turn() == 0) {
        ASSERT_TRUE(pair.a.sleep(10'000)) << "a wake-up was lost";
      }
    }
    pair.to_b->messages.pop_front();
  }
  other.join();
}

TEST(MemoryTransport, ConcurrentSubmitsStopWhenTheOwnerDisconnects) {
  Pair pair;
  std::vector<uint8_t> local = pattern(64 * 1024, 4);
  auto remote = std::make_unique<std::vector<uint8_t>>(local.size());
  auto& region = pair.b.add(remote->data(), remote->size());
  auto imported = pair.import(region.ref);
  TestPlan plan(pair.a, TOWLINE_WRITE);
  plan.remote(region.ref, imported.import);
  plan.add(local.data(), region.ref.address, 64 * 1024);
  ASSERT_EQ(plan.prepare(*pair.to_b), Status::kOk);
  std::atomic<uint32_t> copied{0};
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < 2; ++i) {
    threads.emplace_back([&, half = local.size() / 2, i] {
      while (plan.submit_range(1, i * half, (i + 1) * half, "") == Status::kOk) copied.fetch_add(1);
    });
  }
  while (copied.load() < 100) std::this_thread::yield();
  pair.b.disconnect(*pair.to_a);
  remote.reset();  // a copy that still ran would be a use after free
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(region.pins, 0u);
  plan.release();
  pair.a.unimport(*pair.to_b, imported);
}

}  // namespace
}  // namespace towline::memory
