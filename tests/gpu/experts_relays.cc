// Between hosts of several ranks a dispatch sends a token once to each host: to the relay of its source there, and the others read it in
// that rank's memory.
#include <algorithm>

#include "gpu/experts_batch_rank.h"

namespace towline::gpu_test::experts::batches {
namespace {

// Ranks 0 and 1 are of the first host, 2 and 3 of the second one. There rank 2 is the relay of rank 0, and rank 3 that of rank 1.
void run_two_hosts_of_two(BatchShape shape, const std::function<void(Rank&, BatchRank&, Group&)>& body) {
  if (ranks_a_host() != 2) GTEST_SKIP() << kOtherHosts;
  shape.ranks = 4;
  run_ranks(shape.memory(), [&](Rank& rank, Group& group) {
    BatchRank batch(rank, shape);
    group.meet();
    body(rank, batch, group);
    rank.drain();
    group.meet();
  });
}

// The others' kernels need nothing of it but its memory.
TEST(BatchesRelays, OfARelayThatIsLateOnlyItsOwnRowsAreMissing) {
  BatchShape shape;
  shape.timeout_ns = 3'000'000'000;
  run_two_hosts_of_two(shape, [](Rank& rank, BatchRank& batch, Group& group) {
    constexpr uint32_t kLate = 2;
    batch.round(5);
    const Gets wanted = batch.gets();
    batch.clear();
    group.meet();
    if (rank.number() != kLate) {
      ASSERT_EQ(batch.repeat(), TOWLINE_OK) << rank.error();
      rank.drain();
      std::vector<uint16_t> rows = wanted.x;
      const auto at = [&](uint32_t source) {
        return rows.begin() + std::ptrdiff_t{wanted.prefix[source]} * std::ptrdiff_t{BatchShape{}.hidden};
      };
      std::fill(at(kLate - 1), at(kLate), static_cast<uint16_t>(0xffff));
      EXPECT_TRUE(batch.got() == rows) << "rank " << rank.number();
      EXPECT_EQ(rank.masks(), (std::vector<int32_t>{0, 0, 1, 0}));
      EXPECT_EQ(batch.repeat(), TOWLINE_TIMED_OUT);
      EXPECT_NE(rank.error().find("experts: rank 2 is masked"), std::string::npos) << rank.error();
    }
    group.meet();
  });
}

TEST(BatchesRelays, ARelayLeavesAndComesBack) {
  run_two_hosts_of_two({}, [](Rank& rank, BatchRank& batch, Group& group) {
    for (uint32_t relay = 0; relay < 4; ++relay) {
      batch.round(relay + 1);
      group.meet();
      for (uint32_t peer = 0; peer < 4; ++peer) {
        if (peer == rank.number() || (peer != relay && rank.number() != relay)) continue;
        ASSERT_EQ(rank.disconnect(peer), TOWLINE_OK) << rank.error();
        ASSERT_EQ(rank.connect(peer, group.descriptions[peer]), TOWLINE_OK) << rank.error();
        ASSERT_EQ(rank.command(TOWLINE_EXPERTS_UNMASK, peer), TOWLINE_OK) << rank.error();
      }
      batch.round(relay + 11);
    }
    EXPECT_EQ(rank.masks(), std::vector<int32_t>(4, 0));
  });
}

TEST(BatchesRelays, GraphsReplayWhatGoesThroughThem) {
  run_two_hosts_of_two({}, [](Rank& rank, BatchRank& batch, Group& group) {
    Platform& gpu = *found_platform();
    batch.round_in_step(5, group);
    group.meet();
    gpu.record(rank.stream());
    ASSERT_EQ(batch.repeat(), TOWLINE_OK) << rank.error();
    void* const graph = gpu.end_record(rank.stream());
    const std::vector<uint16_t> wanted = batch.got();
    for (int i = 0; i < 5; ++i) {
      batch.clear();
      group.meet();
      gpu.replay(graph, rank.stream());
      rank.drain();
      group.meet();
      EXPECT_TRUE(batch.got() == wanted) << "rank " << rank.number();
    }
    gpu.free_graph(graph);
  });
}

// A graph is replayed with another member as the relay, which it has not been recorded with.
TEST(BatchesRelays, GraphsReplayWhatGoesThroughAnotherOne) {
  run_two_hosts_of_two({}, [](Rank& rank, BatchRank& batch, Group& group) {
    constexpr uint32_t kReplaced = 2;
    Platform& gpu = *found_platform();
    BatchShape shape;
    shape.ranks = 4;
    batch.round_in_step(5, group);
    group.meet();
    if (rank.number() == kReplaced) {
      Rank other(gpu, shape.memory(), kReplaced);
      BatchRank its(other, shape);
      group.descriptions[kReplaced] = other.describe();
      group.meet();
      group.meet();  // the others have recorded
      group.meet();  // and have connected to this one
      for (uint32_t peer = 0; peer < 4; ++peer) {
        if (peer == kReplaced) continue;
        ASSERT_EQ(other.connect(peer, group.descriptions[peer]), TOWLINE_OK) << other.error();
        ASSERT_EQ(other.command(TOWLINE_EXPERTS_UNMASK, peer), TOWLINE_OK) << other.error();
      }
      its.set(random_part(shape, kReplaced, 5));
      EXPECT_EQ(its.dispatch(), TOWLINE_OK) << other.error();
      its.clear();
      ASSERT_EQ(its.repeat(), TOWLINE_OK) << other.error();
      other.drain();
      EXPECT_TRUE(its.got() == expected_dispatch(shape, kReplaced, random_parts(shape, 5)).x);
      group.meet();
      return;
    }
    group.meet();
    gpu.record(rank.stream());
    ASSERT_EQ(batch.repeat(), TOWLINE_OK) << rank.error();
    void* const graph = gpu.end_record(rank.stream());
    group.meet();  // to disconnect waits for the GPU, which spoils graphs that others record meanwhile
    ASSERT_EQ(rank.disconnect(kReplaced), TOWLINE_OK) << rank.error();
    ASSERT_EQ(rank.connect(kReplaced, group.descriptions[kReplaced]), TOWLINE_OK) << rank.error();
    ASSERT_EQ(rank.command(TOWLINE_EXPERTS_UNMASK, kReplaced), TOWLINE_OK) << rank.error();
    rank.drain();
    group.meet();
    const std::vector<uint16_t> wanted = batch.got();
    EXPECT_EQ(batch.dispatch(), TOWLINE_OK) << rank.error();
    rank.drain();
    batch.clear();
    gpu.replay(graph, rank.stream());
    rank.drain();
    EXPECT_TRUE(batch.got() == wanted) << "rank " << rank.number();
    group.meet();
    gpu.free_graph(graph);
  });
}

}  // namespace
}  // namespace towline::gpu_test::experts::batches
