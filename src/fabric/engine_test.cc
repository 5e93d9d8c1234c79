#include "fabric/engine.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "fabric/test_support.h"

namespace towline::fabric {
namespace {

using testing::Buffers;
using testing::TestHost;
using testing::World;

constexpr uint64_t kMiB = 1 << 20;

LoopbackOptions rated(uint64_t bytes_per_s) {
  LoopbackOptions options;
  options.bytes_per_s = bytes_per_s;
  options.traits.window_bytes = 256 << 10;
  return options;
}

// Moves `bytes` from host 0 to host 1 and returns the nanoseconds that it took, connections made before.
uint64_t timed_write(World& world, uint64_t bytes) {
  Buffers buffers{world, bytes};
  TestHost& host = *world.hosts[0];
  EXPECT_EQ(host.engine->submit(buffers.request(TransferOp::kWrite, 64 << 10, 1)), Status::kInProgress);
  EXPECT_TRUE(world.until([&] { return host.outcomes[1].completed == 1; }, 60 * kSecondNs, 500));
  const uint64_t start = world.now_ns;
  EXPECT_EQ(host.engine->submit(buffers.request(TransferOp::kWrite, 64 << 10, 2)), Status::kInProgress);
  EXPECT_TRUE(world.until([&] { return host.outcomes[2].completed == 1; }, 60 * kSecondNs, 500));
  EXPECT_EQ(host.outcomes[2].result.status, Status::kOk);
  EXPECT_EQ(buffers.source, buffers.target);
  return host.outcomes[2].at_ns - start;
}

TEST(FabricEngine, WritesAndReadsArriveWithTheirCountsAndMessages) {
  World world;
  TestHost& one = world.add_host(2);
  TestHost& two = world.add_host(2);
  Buffers buffers{world, 3 * kMiB};
  TransferRequest write = buffers.request(TransferOp::kWrite, 4096, 1);
  write.immediate = 77;
  write.count = 768;
  const std::string note = "all pages";
  write.message = {reinterpret_cast<const uint8_t*>(note.data()), note.size()};
  write.has_message = true;
  ASSERT_EQ(one.engine->submit(write), Status::kInProgress);
  ASSERT_TRUE(world.until([&] { return one.completions == 1 && two.messages.size() == 1; }));
  EXPECT_EQ(one.outcomes[1].result.status, Status::kOk);
  EXPECT_EQ(one.outcomes[1].result.bytes, 3 * kMiB);
  EXPECT_EQ(buffers.source, buffers.target);
  EXPECT_EQ(two.counts[77], 768u);
  EXPECT_EQ(two.messages[0], note);

  std::fill(buffers.source.begin(), buffers.source.end(), uint8_t{0});
  ASSERT_EQ(one.engine->submit(buffers.request(TransferOp::kRead, 10'000, 2)), Status::kInProgress);
  ASSERT_TRUE(world.until([&] { return one.completions == 2; }));
  EXPECT_EQ(buffers.source, buffers.target);
}

TEST(FabricEngine, FourRailsMoveAtLeast95PercentOfTheirSum) {
  World world;
  world.add_host(4, rated(5'000'000'000));
  world.add_host(4, rated(5'000'000'000));
  const uint64_t ns = timed_write(world, 64 * kMiB);
  EXPECT_GE(64.0 * kMiB / static_cast<double>(ns), 0.95 * 20.0);
}

TEST(FabricEngine, ARailAtHalfItsRateTakesHalfAsMuch) {
  World world;
  world.add_host(4, rated(5'000'000'000));
  world.add_host(4, rated(5'000'000'000));
  world.fabric.set_rate(2, 2'500'000'000);
  const uint64_t ns = timed_write(world, 64 * kMiB);
  EXPECT_GE(64.0 * kMiB / static_cast<double>(ns), 0.9 * 17.5);
}

// At 1 GB/s, with 32 bulk transfers that were there before. In turns, a small one would come after 32 of their chains.
TEST(FabricEngine, AnUrgentTransferWaitsForNoMoreThanWhatTheRailHasBeenGiven) {
  World world;
  TestHost& one = world.add_host(1, rated(1'000'000'000));
  world.add_host(1, rated(1'000'000'000));
  std::vector<std::unique_ptr<Buffers>> bulk;
  for (uint64_t i = 0; i < 32; ++i) {
    bulk.push_back(std::make_unique<Buffers>(world, 4 * kMiB));
    ASSERT_EQ(one.engine->submit(bulk[i]->request(TransferOp::kWrite, 64 << 10, 100 + i)),
              Status::kInProgress);
  }
  ASSERT_TRUE(world.until([&] { return one.engine->counters(0).bytes > 16 * kMiB; }));
  ASSERT_EQ(one.completions, 0u);
  Buffers page{world, 4096};
  const uint64_t begun_ns = world.now_ns;
  TransferRequest urgent = page.request(TransferOp::kWrite, 4096, 1);
  urgent.urgent = true;
  ASSERT_EQ(one.engine->submit(urgent), Status::kInProgress);
  ASSERT_TRUE(world.until([&] { return one.outcomes[1].completed == 1; }));
  EXPECT_LE(world.now_ns - begun_ns, 400'000u) << "a window is 262 us";
  EXPECT_EQ(page.source, page.target);
  EXPECT_EQ(one.completions, 1u);
  ASSERT_TRUE(world.until([&] { return one.completions == 33; }));
  for (const auto& one_of_them : bulk) EXPECT_EQ(one_of_them->source, one_of_them->target);
}

TEST(FabricEngine, BulkGoesOnUnderEndlessUrgentTransfers) {
  World world;
  TestHost& one = world.add_host(1, rated(1'000'000'000));
  world.add_host(1, rated(1'000'000'000));
  Buffers bulk{world, 8 * kMiB};
  ASSERT_EQ(one.engine->submit(bulk.request(TransferOp::kWrite, 64 << 10, 100)), Status::kInProgress);
  std::vector<std::unique_ptr<Buffers>> urgent;
  std::vector<uint64_t> begun(16, 0);
  for (size_t i = 0; i < begun.size(); ++i) urgent.push_back(std::make_unique<Buffers>(world, kMiB));
  uint64_t urgent_bytes = 0;
  const auto all_done = [&] {
    for (size_t i = 0; i < begun.size(); ++i) {
      if (one.outcomes[i].completed != begun[i]) continue;
      TransferRequest request = urgent[i]->request(TransferOp::kWrite, 64 << 10, i);
      request.urgent = true;
      EXPECT_EQ(one.engine->submit(request), Status::kInProgress);
      ++begun[i];
      urgent_bytes += kMiB;
    }
    return one.outcomes[100].completed == 1;
  };
  EXPECT_TRUE(world.until(all_done, kSecondNs)) << "it gets an eighth of the turns";
  EXPECT_EQ(bulk.source, bulk.target);
  EXPECT_TRUE(world.until([&] {
    for (size_t i = 0; i < begun.size(); ++i)
      if (one.outcomes[i].completed != begun[i]) return false;
    return true;
  }));
  EXPECT_GT(urgent_bytes, 3 * bulk.source.size()) << "and the others get most";
}

TEST(FabricEngine, WhatADyingRailCarriedGoesOverTheOthersWithin50Milliseconds) {
  World world;
  TestHost& one = world.add_host(4, rated(2'000'000'000));
  world.add_host(4, rated(2'000'000'000));
  Buffers buffers{world, 64 * kMiB};
  ASSERT_EQ(one.engine->submit(buffers.request(TransferOp::kWrite, 64 << 10)), Status::kInProgress);
  ASSERT_TRUE(world.until([&] { return one.engine->counters(1).bytes > 4 * kMiB; }));
  const uint64_t killed_at = world.now_ns;
  world.fabric.kill(1);
  ASSERT_TRUE(world.until([&] { return one.engine->counters(1).retried != 0; }, kSecondNs));
  EXPECT_LT(world.now_ns - killed_at, 50 * kMillisecondNs);
  ASSERT_TRUE(world.until([&] { return one.completions == 1; }));
  EXPECT_EQ(one.outcomes[1].result.status, Status::kOk);
  EXPECT_EQ(buffers.source, buffers.target);

  // It is used again once it works again.
  const uint64_t before = one.engine->counters(1).bytes;
  EXPECT_TRUE(one.engine->counters(1).down);
  world.fabric.revive(1);
  for (uint64_t cookie = 10; one.engine->counters(1).bytes == before && cookie < 20; ++cookie) {
    ASSERT_EQ(one.engine->submit(buffers.request(TransferOp::kWrite, 64 << 10, cookie)), Status::kInProgress);
    ASSERT_TRUE(world.until([&] { return one.outcomes[cookie].completed == 1; }));
  }
  EXPECT_GT(one.engine->counters(1).bytes, before);
}

// A cable may be out for days.
TEST(FabricEngine, AnIdleEngineWakesForADeadRailOnlyToTryIt) {
  World world;
  TestHost& one = world.add_host(2);
  world.fabric.kill(1);
  ASSERT_TRUE(world.until([&] { return one.engine->counters(1).down; }));
  const auto wake = [&] {
    world.step(std::max(one.engine->next_timer_ns(), world.now_ns + 1) - world.now_ns);
  };
  const uint64_t begin_ns = world.now_ns;
  for (int wakes = 0; wakes < 50; ++wakes) wake();
  EXPECT_GE(world.now_ns - begin_ns, 900 * kMillisecondNs);
  world.fabric.revive(1);
  wake();
  EXPECT_FALSE(one.engine->counters(1).down);
  EXPECT_EQ(one.engine->next_timer_ns(), kNoDeadline);
}

TEST(FabricEngine, TheLongestPauseOfARailThatDiedIsTold) {
  World world;
  TestHost& one = world.add_host(2, rated(2'000'000'000));
  TestHost& two = world.add_host(2, rated(2'000'000'000));
  Buffers buffers{world, 64 * kMiB};
  ASSERT_EQ(one.engine->submit(buffers.request(TransferOp::kWrite, 64 << 10)), Status::kInProgress);
  ASSERT_TRUE(world.until([&] { return one.engine->counters(1).bytes > 4 * kMiB; }));
  const uint64_t killed_at = world.now_ns;
  world.fabric.kill(1);
  two.stopped = true;  // nobody answers for a while
  EXPECT_FALSE(world.until([&] { return one.engine->counters(1).retried != 0; }, 5 * kMillisecondNs));
  two.stopped = false;
  ASSERT_TRUE(world.until([&] { return one.engine->counters(1).retried != 0; }, kSecondNs));
  const uint64_t told_ns = one.engine->counters(1).longest_pause_ns;
  EXPECT_GT(told_ns, 4 * kMillisecondNs);
  EXPECT_LE(told_ns, world.now_ns - killed_at);
  EXPECT_EQ(one.engine->counters(0).longest_pause_ns, 0u);
  ASSERT_TRUE(world.until([&] { return one.completions == 1; }));
  EXPECT_EQ(buffers.source, buffers.target);
}

TEST(FabricEngine, OfTwoHostsWithADeadRailEachTheCrossingPairIsUsed) {
  World world;
  TestHost& one = world.add_host(2);
  world.add_host(2);
  world.fabric.kill(0);  // of the first host
  world.fabric.kill(3);  // of the second: only 1 to 2 is left
  Buffers buffers{world, 4 * kMiB};
  ASSERT_EQ(one.engine->submit(buffers.request(TransferOp::kWrite, 64 << 10)), Status::kInProgress);
  ASSERT_TRUE(world.until([&] { return one.completions == 1; }, 30 * kSecondNs, 20'000));
  EXPECT_EQ(one.outcomes[1].result.status, Status::kOk);
  EXPECT_EQ(buffers.source, buffers.target);
}

TEST(FabricEngine, ASilentPeerIsLostInTimeAndWhatWentToItEndsWithTheLocalFenceOnly) {
  World world;
  EngineOptions options;
  options.stall_ns = 100 * kMillisecondNs;
  options.lost_ns = 300 * kMillisecondNs;
  TestHost& one = world.add_host(1, rated(1'000'000), options);
  TestHost& two = world.add_host(1, {}, options);
  Buffers buffers{world, kMiB};
  ASSERT_EQ(one.engine->submit(buffers.request(TransferOp::kWrite, 4096)), Status::kInProgress);
  ASSERT_TRUE(world.until([&] { return one.engine->counters(0).bytes > 8192; }, kSecondNs, 10'000));
  two.mute = two.stopped = true;
  world.fabric.kill(1);  // its NIC answers no more
  const uint64_t stopped_at = world.now_ns;
  ASSERT_TRUE(world.until([&] { return one.losses.size() == 1; }, 5 * kSecondNs, 10'000));
  EXPECT_LE(world.now_ns - stopped_at, kSecondNs);
  EXPECT_EQ(one.outcomes[1].completed, 1u);
  EXPECT_EQ(one.outcomes[1].result.status, Status::kPeerLost);
  EXPECT_EQ(one.outcomes[1].fences, kFencedLocal);
  EXPECT_EQ(one.engine->submit(buffers.request(TransferOp::kWrite, 4096)), Status::kPeerLost);
}

// A transfer that these faults never let through ends with kIo after `least_ns` and within a second, and the peer, which
// answers, is used as before.
void expect_given_up(const LoopbackFaults& faults, uint64_t least_ns) {
  World world;
  EngineOptions options;
  options.stall_ns = 50 * kMillisecondNs;
  TestHost& one = world.add_host(1, {}, options);
  world.add_host(1, {}, options);
  Buffers buffers{world, kMiB};
  world.fabric.set_faults(faults);
  ASSERT_EQ(one.engine->submit(buffers.request(TransferOp::kWrite, 4096)), Status::kInProgress);
  const uint64_t begin_ns = world.now_ns;
  ASSERT_TRUE(world.until([&] { return one.completions == 1; }, 20 * kSecondNs, 10'000));
  EXPECT_EQ(one.outcomes[1].result.status, Status::kIo);
  EXPECT_GE(world.now_ns - begin_ns, least_ns);
  EXPECT_LE(world.now_ns - begin_ns, kSecondNs);
  EXPECT_TRUE(one.losses.empty());
  world.fabric.set_faults({});
  ASSERT_EQ(one.engine->submit(buffers.request(TransferOp::kWrite, 4096, 2)), Status::kInProgress);
  ASSERT_TRUE(world.until([&] { return one.completions == 2; }, 20 * kSecondNs, 10'000));
  EXPECT_EQ(one.outcomes[2].result.status, Status::kOk);
  EXPECT_EQ(buffers.source, buffers.target);
}

// As over networks that do not tell that a remote key is not valid any more.
TEST(FabricEngine, WhatNoConnectionCarriesEndsThoughThePeerAnswers) {
  LoopbackFaults faults;
  faults.drop = 1;
  faults.again_after_ns = 3600 * kSecondNs;
  expect_given_up(faults, 0);
}

// As over libraries that end the connection whose request names memory that is not mapped any more. A rail that flaps
// is given its time.
TEST(FabricEngine, WhatBreaksEachConnectionEndsThoughThePeerAnswers) {
  LoopbackFaults faults;
  faults.cut = 1;
  expect_given_up(faults, 200 * kMillisecondNs);
}

// As over networks that lose every tenth packet.
TEST(FabricEngine, ANetworkTooSlowForASliceGetsSmallerOnes) {
  World world;
  EngineOptions options;
  options.stall_ns = 50 * kMillisecondNs;
  options.slice_bytes = kMiB;
  TestHost& one = world.add_host(1, rated(8'000'000), options);  // a slice takes 131 ms, silence may last 100
  world.add_host(1, {}, options);
  Buffers buffers{world, kMiB};
  ASSERT_EQ(one.engine->submit(buffers.request(TransferOp::kWrite, kMiB)), Status::kInProgress);
  ASSERT_TRUE(world.until([&] { return one.completions == 1; }, 60 * kSecondNs, 10'000));
  EXPECT_EQ(one.outcomes[1].result.status, Status::kOk);
  EXPECT_EQ(buffers.source, buffers.target);
}

TEST(FabricEngine, APeerThatAnswersOverAStalledConnectionGetsAnotherOne) {
  World world;
  EngineOptions options;
  options.stall_ns = 50 * kMillisecondNs;
  TestHost& one = world.add_host(2, rated(1'000'000'000), options);
  world.add_host(2, {}, options);
  Buffers buffers{world, 8 * kMiB};
  ASSERT_EQ(one.engine->submit(buffers.request(TransferOp::kWrite, 4096)), Status::kInProgress);
  ASSERT_TRUE(world.until([&] { return one.engine->counters(0).bytes > kMiB; }));
  world.fabric.set_rate(0, 10);  // a slice takes minutes
  ASSERT_TRUE(world.until([&] { return one.completions == 1; }, 5 * kSecondNs));
  EXPECT_EQ(one.outcomes[1].result.status, Status::kOk);
  EXPECT_TRUE(one.losses.empty());
  EXPECT_EQ(buffers.source, buffers.target);
}

TEST(FabricEngine, ADeadlineEndsATransferOnTimeAndItsFenceFollows) {
  World world;
  EngineOptions options;
  options.fence_ns = 20 * kMillisecondNs;
  TestHost& one = world.add_host(1, rated(1'000'000), options);
  world.add_host(1, {}, options);
  Buffers buffers{world, kMiB};
  TransferRequest request = buffers.request(TransferOp::kWrite, 4096);
  request.deadline_ns = 30 * kMillisecondNs;
  ASSERT_EQ(one.engine->submit(request), Status::kInProgress);
  ASSERT_TRUE(world.until([&] { return one.completions == 1; }));
  EXPECT_EQ(one.outcomes[1].result.status, Status::kTimedOut);
  EXPECT_LE(one.outcomes[1].at_ns, 32 * kMillisecondNs);
  EXPECT_EQ(one.outcomes[1].fences, 0u);
  EXPECT_EQ(one.outcomes[1].result.failed_end, kMiB);
  ASSERT_TRUE(world.until([&] { return one.outcomes[1].fences == kFencedBoth; }));
  EXPECT_LE(world.now_ns, 60 * kMillisecondNs);
  const std::vector<uint8_t> then = buffers.target;
  world.until([] { return false; }, 100 * kMillisecondNs, 10'000);
  EXPECT_EQ(buffers.target, then);
}

TEST(FabricEngine, ACancelledTransferStopsAndOthersGoOn) {
  World world;
  TestHost& one = world.add_host(1, rated(100'000'000));
  world.add_host(1);
  Buffers first{world, 8 * kMiB};
  Buffers second{world, kMiB};
  Handle handle;
  ASSERT_EQ(one.engine->submit(first.request(TransferOp::kWrite, 4096, 1), &handle), Status::kInProgress);
  ASSERT_EQ(one.engine->submit(second.request(TransferOp::kWrite, 4096, 2)), Status::kInProgress);
  ASSERT_TRUE(world.until([&] { return one.engine->counters(0).bytes > 100'000; }));
  one.engine->cancel(handle);
  ASSERT_TRUE(world.until([&] { return one.outcomes[1].fences == kFencedBoth; }));
  EXPECT_EQ(one.outcomes[1].result.status, Status::kCancelled);
  one.engine->cancel(handle);  // its handle names nothing any more
  ASSERT_TRUE(world.until([&] { return one.outcomes[2].completed == 1; }));
  EXPECT_EQ(one.outcomes[2].result.status, Status::kOk);
  EXPECT_EQ(second.source, second.target);
  EXPECT_EQ(one.outcomes[1].completed, 1u);
}

// libfabric's shm, whose owner makes the copies and has nothing that wakes it.
TEST(FabricEngine, APeerIsAskedToPollWhileSomethingMovesByItsPollsAndNoLonger) {
  World world;
  LoopbackOptions port = rated(100'000'000);
  port.traits.moves_by_polls = true;
  TestHost& one = world.add_host(1, port, {.asks_to_poll = true});
  TestHost& two = world.add_host(1, port, {.asks_to_poll = true});
  Buffers buffers{world, 10 * kMiB};  // a tenth of a second
  ASSERT_EQ(one.engine->submit(buffers.request(TransferOp::kWrite, 64 << 10)), Status::kInProgress);
  ASSERT_TRUE(world.until([&] { return two.engine->needs_polls(); }, 5 * kMillisecondNs));
  uint64_t unasked = 0;
  ASSERT_TRUE(world.until([&] {
    unasked += two.engine->needs_polls() ? 0 : 1;
    return one.completions == 1;
  }));
  EXPECT_EQ(unasked, 0u);
  EXPECT_FALSE(one.engine->needs_polls());  // nobody has anything under way to it
  EXPECT_TRUE(world.until([&] { return !two.engine->needs_polls(); }, 20 * kMillisecondNs));
}

TEST(FabricEngine, MoreMessagesThanCreditsWaitAndArriveOnce) {
  World world;
  EngineOptions options;
  options.credits = 2;
  TestHost& one = world.add_host(1, {}, options);
  TestHost& two = world.add_host(1, {}, options);
  std::vector<std::string> texts;
  for (int i = 0; i < 500; ++i) texts.push_back(fmt::format("message {}", i));
  for (const std::string& text : texts) {
    TransferRequest request;
    request.peer = one.peers[1];
    request.has_message = true;
    request.message = {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
    ASSERT_EQ(one.engine->submit(request), Status::kInProgress);
  }
  ASSERT_TRUE(world.until([&] { return two.messages.size() == texts.size(); }));
  ASSERT_TRUE(world.until([&] { return one.completions == texts.size(); }));
  EXPECT_EQ(world.fabric.receive_overruns(), 0u);
}

TEST(FabricEngine, ThousandsOfMessagesOverBreakingConnectionsArriveOnceEachThoughSomeAreCancelled) {
  World world{3};
  LoopbackFaults faults;
  faults.cut = 0.01;
  world.fabric.set_faults(faults);
  TestHost& one = world.add_host(4);
  TestHost& two = world.add_host(4);
  constexpr uint64_t kMessages = 6000;  // several times the window of sequences
  std::vector<std::string> texts;
  for (uint64_t i = 0; i < kMessages; ++i) texts.push_back(fmt::format("{}", i));
  for (uint64_t i = 0; i < kMessages;) {
    TransferRequest request;
    request.peer = one.peers[1];
    request.has_message = true;
    request.message = {reinterpret_cast<const uint8_t*>(texts[i].data()), texts[i].size()};
    request.cookie = i;
    Handle handle;
    if (one.engine->submit(request, &handle) == Status::kInProgress) {
      if (i % 7 == 0) one.engine->cancel(handle);
      ++i;
    } else {
      world.step();
    }
  }
  ASSERT_TRUE(world.until([&] { return one.completions == kMessages; })) << one.engine->describe();
  std::map<std::string, int> seen;
  for (const std::string& text : two.messages) ++seen[text];
  for (uint64_t i = 0; i < kMessages; ++i) {
    const bool sent = one.outcomes[i].result.status == Status::kOk;
    ASSERT_TRUE(sent || i % 7 == 0) << i;
    ASSERT_LE(seen[texts[i]], 1) << i;
    ASSERT_TRUE(!sent || seen[texts[i]] == 1) << i;
  }
  EXPECT_GT(world.fabric.cuts(), 10u);
}

TEST(FabricEngine, MorePeersThanConnectionsAreServedInTurn) {
  World world;
  EngineOptions options;
  options.max_connections = 3;
  options.evict_idle_ns = 10'000;
  TestHost& one = world.add_host(1, {}, options);
  for (int i = 0; i < 20; ++i) world.add_host(1, {}, options);
  for (int round = 0; round < 3; ++round) {
    for (uint32_t peer = 1; peer <= 20; ++peer) {
      TransferRequest request;
      request.peer = one.peers[peer];
      request.count = 1;
      request.immediate = peer;
      ASSERT_EQ(one.engine->submit(request), Status::kInProgress);
    }
    ASSERT_TRUE(world.until([&] { return one.completions == 20u * static_cast<uint32_t>(round + 1); }));
    EXPECT_LE(one.engine->counters(0).connections, 3u);
  }
  for (uint32_t peer = 1; peer <= 20; ++peer) EXPECT_EQ(world.hosts[peer]->counts[peer], 3u);
  EXPECT_GE(one.engine->counters(0).evictions, 17u);
}

TEST(FabricEngine, TenThousandKnownPeersCostNoConnection) {
  World world;
  TestHost& one = world.add_host(1);
  EngineAddress address = one.engine->address();
  for (int i = 0; i < 10'000; ++i) {
    address.engine = Id::random();
    (void)one.engine->add_peer(address);
  }
  EXPECT_EQ(one.engine->counters(0).connections, 0u);
}

TEST(FabricEngine, RefusedMemoryFailsItsTransferAndNamesTheRange) {
  World world;
  TestHost& one = world.add_host(1);
  TestHost& two = world.add_host(1);
  Buffers buffers{world, kMiB};
  const LocalMemory closed = two.engine->register_memory({buffers.target.data(), kMiB, true, false});
  const RemoteMemory theirs = Engine::describe(closed);
  buffers.remote_pointer = &theirs;
  ASSERT_EQ(one.engine->submit(buffers.request(TransferOp::kWrite, 4096, 1)), Status::kInProgress);
  ASSERT_TRUE(world.until([&] { return one.outcomes[1].fences == kFencedBoth; }));
  EXPECT_EQ(one.outcomes[1].result.status, Status::kPermissionDenied);
  EXPECT_EQ(one.outcomes[1].result.failed_begin, 0u);
  two.engine->deregister_memory(closed);
  ASSERT_EQ(one.engine->submit(buffers.request(TransferOp::kRead, 4096, 2)), Status::kInProgress);
  ASSERT_TRUE(world.until([&] { return one.outcomes[2].fences == kFencedBoth; }));
  EXPECT_EQ(one.outcomes[2].result.status, Status::kStale);
  buffers.remote_pointer = &buffers.remote;
  ASSERT_EQ(one.engine->submit(buffers.request(TransferOp::kWrite, 4096, 3)), Status::kInProgress);
  ASSERT_TRUE(world.until([&] { return one.outcomes[3].completed == 1; }));
  EXPECT_EQ(one.outcomes[3].result.status, Status::kOk);
}

TEST(FabricEngine, BadRequestsAndPeersAreRefused) {
  World world;
  TestHost& one = world.add_host(1);
  world.add_host(1);
  Buffers buffers{world, 4096};
  TransferRequest nothing;
  nothing.peer = one.peers[1];
  EXPECT_EQ(one.engine->submit(nothing), Status::kInvalidArgument);
  TransferRequest stranger = buffers.request(TransferOp::kWrite, 4096);
  stranger.peer = {99, 1};
  EXPECT_EQ(one.engine->submit(stranger), Status::kStale);
  TransferRequest large = nothing;
  const std::vector<uint8_t> message(one.engine->max_message() + 1);
  large.has_message = true;
  large.message = message;
  EXPECT_EQ(one.engine->submit(large), Status::kLimitExceeded);
  EXPECT_THROW((void)one.engine->add_peer({}), core::Error);
  EngineAddress other = one.engine->address();
  other.rails[0].kind = "ofi:efa";
  EXPECT_THROW((void)one.engine->add_peer(other), core::Error);
  EXPECT_THROW((void)one.engine->register_memory({nullptr, 10}), core::Error);
  EXPECT_THROW((Engine{{}, {}, one}), core::Error);
}

TEST(FabricEngine, ARemovedPeerEndsWhatIsUnderWayAndAnotherTakesItsPlace) {
  World world;
  TestHost& one = world.add_host(1, rated(1'000'000));
  TestHost& two = world.add_host(1);
  Buffers buffers{world, kMiB};
  ASSERT_EQ(one.engine->submit(buffers.request(TransferOp::kWrite, 4096)), Status::kInProgress);
  ASSERT_TRUE(world.until([&] { return one.engine->counters(0).bytes > 8192; }, kSecondNs, 10'000));
  const Handle old = one.peers[1];
  one.engine->remove_peer(old);
  EXPECT_EQ(one.outcomes[1].result.status, Status::kClosed);
  one.engine->remove_peer(old);
  one.peers[1] = one.engine->add_peer(two.engine->address());
  EXPECT_NE(one.peers[1], old);
  EXPECT_EQ(one.engine->connections_to(old), 0u);
}

}  // namespace
}  // namespace towline::fabric
