// The three ways to reach a region, between two agents of this process.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "base/os/memfd.h"
#include "memory/shared_memory.h"
#include "support/temporary_folder.h"
#include "transports/shm/test_support.h"

namespace towline::shm {
namespace {

using testing::Pair;
using testing::pattern;
using transport_test::TestAgent;
using transport_test::TestLink;
using transport_test::TestPlan;
using transport_test::turn_until;

// Moves 300 blocks of 1000 bytes out of order there and back; returns how the region was reached.
std::string move_both_ways(Pair& pair, uint8_t* remote, uint32_t flags = 0) {
  constexpr uint32_t kBlocks = 300;
  constexpr uint32_t kBytes = 1000;
  const std::vector<uint8_t> original = pattern(kBlocks * kBytes, 17);
  std::vector<uint8_t> local = original;
  auto& region = pair.b.add(remote, kBlocks * kBytes, TOWLINE_ACCESS_ALL, flags);
  auto imported = pair.import(region.ref);
  EXPECT_EQ(imported.status, Status::kOk) << pair.a.failure;
  if (imported.status != Status::kOk) return "";
  for (const uint32_t op : {TOWLINE_WRITE, TOWLINE_READ}) {
    if (op == TOWLINE_READ) std::fill(local.begin(), local.end(), uint8_t{0});
    TestPlan plan(pair.a, op);
    plan.remote(region.ref, imported.import);
    for (uint32_t i = 0; i < kBlocks; ++i)
      plan.add(local.data() + i * kBytes, region.ref.address + (i * 7 % kBlocks) * kBytes, kBytes);
    EXPECT_EQ(plan.prepare(*pair.to_b), Status::kOk);
    const Status status = plan.submit(op + 1, "op");
    if (status == Status::kInProgress) {
      EXPECT_TRUE(pair.turn([&] { return pair.a.ended(op + 1); }));
      EXPECT_EQ(pair.a.results[op + 1].status, TOWLINE_OK);
      pair.a.results.clear();
    } else {
      EXPECT_EQ(status, Status::kOk);
    }
    EXPECT_TRUE(pair.turn([&] { return !pair.to_a->messages.empty(); }));
    pair.to_a->messages.clear();
    for (uint32_t i = 0; i < kBlocks; ++i)
      EXPECT_EQ(std::memcmp(remote + (i * 7 % kBlocks) * kBytes, original.data() + i * kBytes, kBytes), 0);
    EXPECT_EQ(local, original);
  }
  pair.a.unimport(*pair.to_b, imported);
  return imported.how;
}

TEST(ShmTransport, AgentsFindEachOtherAndTalk) {
  Pair pair;
  EXPECT_EQ(pair.to_a->peer_name, "a");
  EXPECT_EQ(pair.a.probe(pair.b.identity(), pair.b.address()), Status::kOk);
  const std::string longest(TOWLINE_MAX_MESSAGE_BYTES, 'x');
  EXPECT_EQ(pair.a.send(*pair.to_b, longest), Status::kOk);
  EXPECT_EQ(pair.b.send(*pair.to_a, "there"), Status::kOk);
  EXPECT_TRUE(pair.turn([&] { return !pair.to_a->messages.empty() && !pair.to_b->messages.empty(); }));
  EXPECT_EQ(pair.to_a->messages.front(), longest);
  EXPECT_EQ(pair.to_b->messages.front(), "there");
  EXPECT_NE(pair.a.describe(*pair.to_b).find("\"process_vm\": \"works\""), std::string::npos);
}

TEST(ShmTransport, BothEndsKnowAConnectionByOneNumber) {
  Pair pair;
  const auto* ids =
      static_cast<const towline_connection_table_v1*>(towline_shm_plugin()->query_table("connection", 1));
  ASSERT_NE(ids, nullptr);
  const uint64_t id = ids->id(pair.to_b->connection);
  EXPECT_NE(id, 0u);
  EXPECT_EQ(ids->id(pair.to_a->connection), id);
}

TEST(ShmTransport, AnAgentConnectsToItself) {
  TestAgent a(towline_shm_plugin(), "a");
  TestLink& link = a.connect(a.identity(), a.address());
  ASSERT_TRUE(turn_until({&a}, [&] { return link.up && a.links.size() == 2; })) << link.text;
  EXPECT_EQ(a.send(link, "me"), Status::kOk);
  EXPECT_TRUE(turn_until({&a}, [&] { return !a.links.back()->messages.empty(); }));
}

TEST(ShmTransport, BothMayConnectAtOnce) {
  TestAgent a(towline_shm_plugin(), "a");
  TestAgent b(towline_shm_plugin(), "b");
  TestLink& to_b = a.connect(b.identity(), b.address());
  TestLink& to_a = b.connect(a.identity(), a.address());
  EXPECT_TRUE(
      turn_until({&a, &b}, [&] { return to_b.up && to_a.up && a.links.size() == 2 && b.links.size() == 2; }));
}

TEST(ShmTransport, MemoryThatTowlineAllocatedIsMapped) {
  Pair pair;
  const auto memory = SharedMemory::allocate(1 << 20, 0);
  EXPECT_EQ(move_both_ways(pair, static_cast<uint8_t*>(memory->address())), "mapped memfd");
}

TEST(ShmTransport, AFileThatTheOwnerMappedIsMappedWhereBothAllowFilesThatCanShrink) {
  const TestAgent::Settings trusting{{"tuning.shm.map_unsealed", "true"}};
  Pair pair(trusting, trusting);
  char path[] = "/tmp/towline-shm-test-XXXXXX";
  const UniqueFd file{mkstemp(path)};
  ASSERT_EQ(ftruncate(file.get(), 1 << 20), 0);
  auto* memory =
      static_cast<uint8_t*>(mmap(nullptr, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0));
  ASSERT_NE(memory, MAP_FAILED);
  EXPECT_EQ(move_both_ways(pair, memory + 4096), "mapped file");
  EXPECT_EQ(move_both_ways(pair, memory + 12345), "mapped file");
  for (const auto& [mine, owners] : {std::pair{TestAgent::Settings{}, trusting}, {trusting, {}}}) {
    Pair careful(mine, owners);
    EXPECT_EQ(move_both_ways(careful, memory), "process_vm");
  }
  munmap(memory, 1 << 20);
  unlink(path);
}

TEST(ShmTransport, PrivateMemoryIsReachedByProcessVm) {
  Pair pair;
  std::vector<uint8_t> memory(1 << 20);
  EXPECT_EQ(move_both_ways(pair, memory.data()), "process_vm");
}

TEST(ShmTransport, TheRingServesWhereNothingElseMay) {
  Pair pair(TestAgent::Settings{{"tuning.shm.paths", "ring"}});
  std::vector<uint8_t> memory(1 << 20);
  EXPECT_EQ(move_both_ways(pair, memory.data()), "ring");
  EXPECT_EQ(move_both_ways(pair, memory.data(), TOWLINE_REGION_GUARDED), "ring");
}

TEST(ShmTransport, GuardedRegionsAreNeverReachedDirectly) {
  Pair pair;
  const auto memory = SharedMemory::allocate(1 << 20, 0);
  const std::string how =
      move_both_ways(pair, static_cast<uint8_t*>(memory->address()), TOWLINE_REGION_GUARDED);
  EXPECT_EQ(how.substr(0, 6), "ring (");
  Pair direct_only(TestAgent::Settings{{"tuning.shm.paths", "mapped,process_vm"}});
  const auto& region = direct_only.b.add(memory->address(), 4096, TOWLINE_ACCESS_ALL, TOWLINE_REGION_GUARDED);
  EXPECT_EQ(direct_only.import(region.ref).status, Status::kUnsupported);
  EXPECT_NE(direct_only.a.failure.find("guarded"), std::string::npos);
}

TEST(ShmTransport, AnOwnerThatGivesNothingAwayIsServedByTheRing) {
  Pair pair({}, {{"tuning.shm.paths", "ring"}});
  const auto memory = SharedMemory::allocate(1 << 20, 0);
  const std::string how = move_both_ways(pair, static_cast<uint8_t*>(memory->address()));
  EXPECT_EQ(how.substr(0, 6), "ring (");
}

TEST(ShmTransport, AReadOnlyRegionIsGivenReadOnly) {
  Pair pair;
  const auto memory = SharedMemory::allocate(8192, 0);
  const auto& region = pair.b.add(memory->address(), 8192, TOWLINE_ACCESS_READ);
  auto imported = pair.import(region.ref);
  EXPECT_EQ(imported.how, "mapped memfd");
  // As if the metadata had said that writing is allowed: the descriptor does not.
  towline_region_ref writable = region.ref;
  writable.access = TOWLINE_ACCESS_ALL;
  auto refused = pair.import(writable);
  EXPECT_NE(refused.how, "mapped memfd");
  pair.a.unimport(*pair.to_b, imported);
  if (refused.import != nullptr) pair.a.unimport(*pair.to_b, refused);
  static_cast<uint8_t*>(memory->address())[0] = 1;  // the owner writes on
}

TEST(ShmTransport, AFileIsGivenForReadingOrForWritingNeverForBoth) {
  Pair pair;
  const auto how = [&](const transport_test::TestRegion& region) {
    auto imported = pair.import(region.ref);
    const std::string text = imported.how;
    pair.a.unimport(*pair.to_b, imported);
    return text;
  };
  const auto memory = SharedMemory::allocate(8192, 0);
  auto* const bytes = static_cast<uint8_t*>(memory->address());
  const auto& read = pair.b.add(bytes, 4096, TOWLINE_ACCESS_READ);
  auto& written = pair.b.add(bytes + 4096, 4096, TOWLINE_ACCESS_ALL);
  EXPECT_EQ(how(written), "mapped memfd");
  EXPECT_EQ(how(read), "process_vm");
  pair.b.remove(written);
  EXPECT_EQ(how(read), "mapped memfd");
  EXPECT_EQ(how(pair.b.add(bytes + 4096, 4096, TOWLINE_ACCESS_ALL)), "process_vm");
}

TEST(ShmTransport, OnePlanMayMixMappedMemoryAndProcessVm) {
  Pair pair;
  const auto shared = SharedMemory::allocate(2 << 20, 0);
  std::vector<uint8_t> plain(2 << 20);
  const std::vector<uint8_t> original = pattern(4 << 20, 3);
  std::vector<uint8_t> local = original;
  const auto& first = pair.b.add(shared->address(), 2 << 20);
  const auto& second = pair.b.add(plain.data(), plain.size());
  auto mapped = pair.import(first.ref);
  auto direct = pair.import(second.ref);
  ASSERT_EQ(mapped.how, "mapped memfd");
  ASSERT_EQ(direct.how, "process_vm");
  for (const uint32_t op : {TOWLINE_WRITE, TOWLINE_READ}) {
    if (op == TOWLINE_READ) std::fill(local.begin(), local.end(), uint8_t{0});
    TestPlan plan(pair.a, op);
    plan.remote(first.ref, mapped.import);
    plan.remote(second.ref, direct.import);
    for (uint32_t i = 0; i < 1024; ++i) {
      plan.add(local.data() + i * 4096, first.ref.address + i * 2048, 2048, 0);
      plan.add(local.data() + i * 4096 + 2048, second.ref.address + (1023 - i) * 2048, 2048, 1);
    }
    ASSERT_EQ(plan.prepare(*pair.to_b), Status::kOk);
    ASSERT_EQ(plan.submit(op + 1), Status::kInProgress);  // above the inline limit
    ASSERT_TRUE(pair.turn([&] { return pair.a.ended(op + 1); }));
    EXPECT_EQ(pair.a.results[op + 1].status, TOWLINE_OK);
    EXPECT_EQ(pair.a.results[op + 1].bytes, original.size());
    EXPECT_EQ(local, original);
    for (uint32_t i = 0; i < 1024; ++i)
      ASSERT_EQ(std::memcmp(plain.data() + (1023 - i) * 2048, original.data() + i * 4096 + 2048, 2048), 0);
  }
  pair.a.unimport(*pair.to_b, mapped);
  pair.a.unimport(*pair.to_b, direct);
}

TEST(ShmTransport, AFailureOfProcessVmNamesTheByteRange) {
  Pair pair;
  constexpr uint64_t kBytes = 1 << 20;
  auto* memory = static_cast<uint8_t*>(
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(memory, MAP_FAILED);
  const auto& region = pair.b.add(memory, kBytes);
  auto imported = pair.import(region.ref);
  ASSERT_EQ(imported.how, "process_vm");
  std::vector<uint8_t> local = pattern(kBytes, 1);
  TestPlan plan(pair.a, TOWLINE_WRITE);
  plan.remote(region.ref, imported.import);
  for (uint32_t i = 0; i < kBytes / 1024; ++i)
    plan.add(local.data() + i * 1024, region.ref.address + i * 1024, 1024);
  ASSERT_EQ(plan.prepare(*pair.to_b), Status::kOk);
  munmap(memory + 400 * 1024, 4096);
  ASSERT_EQ(plan.submit(1), Status::kInProgress);
  ASSERT_TRUE(pair.turn([&] { return pair.a.ended(1); }));
  const towline_part_result& result = pair.a.results[1];
  EXPECT_EQ(result.status, TOWLINE_STALE);
  EXPECT_EQ(result.vendor_code, EFAULT);
  EXPECT_EQ(result.bytes, 400u * 1024);
  EXPECT_EQ(result.failed_begin, 400u * 1024);
  EXPECT_EQ(result.failed_end, kBytes);
  EXPECT_EQ(std::memcmp(memory, local.data(), 400 * 1024), 0);
  // Scattered pieces in one call: position 50 is the hole. Under the lock the range is told, without it the
  // status.
  TestPlan scattered(pair.a, TOWLINE_READ);
  scattered.remote(region.ref, imported.import);
  for (uint32_t i = 0; i < 60; ++i)
    scattered.add(local.data() + i * 512, region.ref.address + (i * 37 % 60) * 8192, 512);
  ASSERT_EQ(scattered.prepare(*pair.to_b), Status::kOk);
  ASSERT_EQ(scattered.submit(2, "under the lock"), Status::kInProgress);
  ASSERT_TRUE(pair.turn([&] { return pair.a.ended(2); }));
  EXPECT_EQ(pair.a.results[2].failed_begin, 50u * 512);
  EXPECT_EQ(pair.a.results[2].bytes, 50u * 512);
  EXPECT_EQ(scattered.submit(3), Status::kStale);
  EXPECT_TRUE(pair.to_a->messages.empty());
  munmap(memory, kBytes);
}

TEST(ShmTransport, LargeMappedPlansAreSlicedAndMayBeCancelled) {
  Pair pair;
  constexpr uint32_t kBytes = 16 << 20;
  const auto memory = SharedMemory::allocate(kBytes, 0);
  const auto& region = pair.b.add(memory->address(), kBytes);
  auto imported = pair.import(region.ref);
  const std::vector<uint8_t> local = pattern(kBytes, 8);
  TestPlan plan(pair.a, TOWLINE_WRITE);
  plan.remote(region.ref, imported.import);
  plan.add(local.data(), region.ref.address, kBytes);
  ASSERT_EQ(plan.prepare(*pair.to_b), Status::kOk);
  EXPECT_EQ(plan.prepared->flags, 0u);
  for (uint64_t cookie = 1; cookie <= 4; ++cookie) ASSERT_EQ(plan.submit(cookie, "m"), Status::kInProgress);
  pair.a.cancel(*pair.to_b, 2);
  ASSERT_TRUE(pair.turn([&] { return pair.a.results.size() == 4 && pair.to_a->messages.size() == 3; }));
  EXPECT_EQ(pair.a.results[2].status, TOWLINE_CANCELLED);
  EXPECT_EQ(pair.a.results[4].status, TOWLINE_OK);
  EXPECT_EQ(std::memcmp(memory->address(), local.data(), kBytes), 0);
  // A range of the plan, as one of several workers gets it.
  std::memset(memory->address(), 0, kBytes);
  EXPECT_EQ(plan.submit_range(9, 1000, 5000), Status::kOk);
  EXPECT_EQ(std::memcmp(static_cast<uint8_t*>(memory->address()) + 1000, local.data() + 1000, 4000), 0);
  EXPECT_EQ(static_cast<uint8_t*>(memory->address())[5000], 0);
  plan.release();
  pair.a.unimport(*pair.to_b, imported);
}

TEST(ShmTransport, VeryLargePiecesAreStreamedAndNoByteGoesAstray) {
  Pair pair;
  constexpr uint32_t kBytes = (32 << 20) + 12345;
  const auto memory = SharedMemory::allocate(kBytes + 100, 0);
  auto* const remote = static_cast<uint8_t*>(memory->address());
  const auto& region = pair.b.add(remote, kBytes + 100);
  auto imported = pair.import(region.ref);
  const std::vector<uint8_t> original = pattern(kBytes, 8);
  std::vector<uint8_t> local = original;
  for (const uint32_t op : {TOWLINE_WRITE, TOWLINE_READ}) {
    if (op == TOWLINE_READ) std::fill(local.begin(), local.end(), uint8_t{0});
    TestPlan plan(pair.a, op);
    plan.remote(region.ref, imported.import);
    plan.add(local.data(), region.ref.address + 33, kBytes);
    ASSERT_EQ(plan.prepare(*pair.to_b), Status::kOk);
    ASSERT_EQ(plan.submit(op + 1), Status::kInProgress);
    ASSERT_TRUE(pair.turn([&] { return pair.a.ended(op + 1); }));
    EXPECT_EQ(std::memcmp(remote + 33, original.data(), kBytes), 0);
    EXPECT_EQ(remote[32], 0);
    EXPECT_EQ(remote[33 + kBytes], 0);
    EXPECT_TRUE(local == original);
  }
  pair.a.unimport(*pair.to_b, imported);
}

TEST(ShmTransport, ARegionThatIsGoneIsStale) {
  for (const char* paths : {"mapped", "process_vm", "mapped,process_vm,ring"}) {
    Pair pair(TestAgent::Settings{{"tuning.shm.paths", paths}});
    const auto memory = SharedMemory::allocate(4096, 0);
    auto& region = pair.b.add(memory->address(), 4096);
    const towline_region_ref ref = region.ref;
    pair.b.remove(region);
    EXPECT_EQ(pair.import(ref).status, Status::kStale) << paths;
    EXPECT_NE(pair.a.failure.find("has deregistered the region"), std::string::npos);
  }
}

TEST(ShmTransport, ASocketDirectoryServesWhereNamesAreNotShared) {
  const support::TemporaryFolder folder("/tmp");
  const std::string& directory = folder.path();
  std::string path;
  {
    Pair pair({{"shm.socket_dir", directory}}, {{"shm.socket_dir", directory + "/"}});
    const std::vector<uint8_t> address = pair.b.address();
    path = std::string(address.begin() + 4, address.end());
    EXPECT_EQ(access(path.c_str(), F_OK), 0) << path;
  }
  EXPECT_NE(access(path.c_str(), F_OK), 0);
  // One that a killed process left behind is swept by the next agent.
  {
    testing::Child child([&](const testing::Child::Pipes& pipes) {
      TestAgent agent(towline_shm_plugin(), "left", {{"shm.socket_dir", directory}});
      pipes.send(testing::introduce(agent));
      pause();
    });
    const std::vector<uint8_t> address = child.receive().address_of();
    path = std::string(address.begin() + 4, address.end());
    child.kill_now();
  }
  EXPECT_EQ(access(path.c_str(), F_OK), 0);
  TestAgent next(towline_shm_plugin(), "next", {{"shm.socket_dir", directory}});
  EXPECT_NE(access(path.c_str(), F_OK), 0);
  TestAgent too_long(towline_shm_plugin(), "x", {{"shm.socket_dir", "/tmp/" + std::string(90, 'd')}});
  EXPECT_EQ(too_long.open_status(), Status::kInvalidArgument);
}

TEST(ShmTransport, ASleepingWorkerIsWokenForMessages) {
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

TEST(ShmTransport, BadSettingsAreRefusedByName) {
  for (const char* key :
       {"tuning.shm.paths", "tuning.shm.inline_bytes", "tuning.shm.ring_bytes", "shm.any_user"}) {
    TestAgent agent(towline_shm_plugin(), "a", {{key, "nonsense"}});
    EXPECT_EQ(agent.open_status(), Status::kInvalidArgument);
    EXPECT_NE(agent.failure.find(key), std::string::npos) << agent.failure;
  }
}

}  // namespace
}  // namespace towline::shm
