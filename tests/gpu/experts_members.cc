// Ranks that leave, join and come back.
#include "gpu/experts_suite.h"

namespace towline::gpu_test::experts {
namespace {

// A rank leaves, and another takes its place: what the first one left behind is nothing to the second.
TEST(ExpertsMembers, ARankLeavesAndAnotherTakesItsPlace) {
  Shape shape;
  shape.ranks = 3;
  run_ranks(shape, [](Rank& rank, Group& group) {
    for (uint64_t seed = 1; seed < 4; ++seed) rank.round(random_all(group.shape, seed), group.everyone());
    group.meet();
    if (rank.number() != 2) {
      ASSERT_EQ(rank.disconnect(2), TOWLINE_OK) << rank.error();
      for (uint64_t seed = 4; seed < 7; ++seed)
        rank.round(random_all(group.shape, seed), {true, true, false});
      group.meet();
      ASSERT_EQ(rank.connect(2, group.descriptions[2]), TOWLINE_OK) << rank.error();
      // Connected, and masked until now.
      rank.round(random_all(group.shape, 7), {true, true, false});
      group.meet();
      ASSERT_EQ(rank.command(TOWLINE_EXPERTS_UNMASK, 2), TOWLINE_OK) << rank.error();
      for (uint64_t seed = 10; seed < 14; ++seed) rank.round(random_all(group.shape, seed), group.everyone());
    } else {
      Rank other(*found_platform(), group.shape, 2);
      group.descriptions[2] = other.describe();
      group.meet();
      for (uint32_t peer = 0; peer < 2; ++peer) {
        ASSERT_EQ(other.connect(peer, group.descriptions[peer]), TOWLINE_OK) << other.error();
        ASSERT_EQ(other.command(TOWLINE_EXPERTS_UNMASK, peer), TOWLINE_OK) << other.error();
      }
      // It may come earlier than the others unmask it: it waits.
      const std::vector<Tokens> all = random_all(group.shape, 10);
      other.set(all[2]);
      towline_experts_call dispatch = other.dispatch_call();
      ASSERT_EQ(other.issue(dispatch), TOWLINE_OK) << other.error();
      group.meet();
      other.drain();
      other.expect_dispatch(all, group.everyone());
      other.compute();
      towline_experts_call combine = other.combine_call();
      ASSERT_EQ(other.issue(combine), TOWLINE_OK) << other.error();
      other.drain();
      other.expect_combine(all[2], group.everyone());
      for (uint64_t seed = 11; seed < 14; ++seed)
        other.round(random_all(group.shape, seed), group.everyone());
      group.meet();
      return;
    }
    group.meet();
  });
}

// A rank that takes another's place may connect before the others have disconnected that one.
TEST(ExpertsMembers, ARankComesBeforeTheOneBeforeItIsDisconnected) {
  run_ranks({}, [](Rank& rank, Group& group) {
    for (uint64_t seed = 1; seed < 4; ++seed) rank.round(random_all(group.shape, seed), group.everyone());
    group.meet();
    if (rank.number() == 0) {
      group.meet();
      ASSERT_EQ(rank.disconnect(1), TOWLINE_OK) << rank.error();
      ASSERT_EQ(rank.connect(1, group.descriptions[1]), TOWLINE_OK) << rank.error();
      ASSERT_EQ(rank.command(TOWLINE_EXPERTS_UNMASK, 1), TOWLINE_OK) << rank.error();
      for (uint64_t seed = 4; seed < 8; ++seed) rank.round(random_all(group.shape, seed), group.everyone());
      EXPECT_EQ(rank.masks(), (std::vector<int32_t>{0, 0}));
      group.meet();
      return;
    }
    Rank other(*found_platform(), group.shape, 1);
    group.descriptions[1] = other.describe();
    ASSERT_EQ(other.connect(0, group.descriptions[0]), TOWLINE_OK) << other.error();
    ASSERT_EQ(other.command(TOWLINE_EXPERTS_UNMASK, 0), TOWLINE_OK) << other.error();
    other.drain();
    group.meet();
    for (uint64_t seed = 4; seed < 8; ++seed) other.round(random_all(group.shape, seed), group.everyone());
    group.meet();
  });
}

// A rank is disconnected and connected again.
TEST(ExpertsMembers, TheSameRankComesBack) {
  run_ranks({}, [](Rank& rank, Group& group) {
    const uint32_t peer = 1 - rank.number();
    for (uint64_t seed = 1; seed < 9; ++seed) {
      rank.round(random_all(group.shape, seed), group.everyone());
      ASSERT_EQ(rank.disconnect(peer), TOWLINE_OK) << rank.error();
      ASSERT_EQ(rank.connect(peer, group.descriptions[peer]), TOWLINE_OK) << rank.error();
      ASSERT_EQ(rank.command(TOWLINE_EXPERTS_UNMASK, peer), TOWLINE_OK) << rank.error();
    }
    EXPECT_EQ(rank.masks(), (std::vector<int32_t>{0, 0}));
  });
}

// The side that is ahead finds the other one in a session that it has yet to leave.
TEST(ExpertsMembers, ARankComesBackThatHasExchangedNothing) {
  run_ranks({}, [](Rank& rank, Group& group) {
    const uint32_t peer = 1 - rank.number();
    const auto come_back = [&] {
      ASSERT_EQ(rank.disconnect(peer), TOWLINE_OK) << rank.error();
      ASSERT_EQ(rank.connect(peer, group.descriptions[peer]), TOWLINE_OK) << rank.error();
      ASSERT_EQ(rank.command(TOWLINE_EXPERTS_UNMASK, peer), TOWLINE_OK) << rank.error();
    };
    for (uint64_t seed = 1; seed < 9; ++seed) {
      const bool ahead = seed % 2 == rank.number();
      const std::vector<Tokens> all = random_all(group.shape, seed);
      rank.set(all[rank.number()]);
      if (!ahead) group.meet();
      for (uint64_t times = 0; times < 1 + seed % 3; ++times) come_back();
      towline_experts_call dispatch = rank.dispatch_call();
      ASSERT_EQ(rank.issue(dispatch), TOWLINE_OK) << rank.error();
      if (ahead) group.meet();
      rank.drain();
      rank.expect_dispatch(all, group.everyone());
      ASSERT_EQ(rank.masks(), (std::vector<int32_t>{0, 0}));
      come_back();
      group.meet();
    }
    rank.round(random_all(group.shape, 9), group.everyone());
  });
}

// Rank 0 has used the session that rank 1 has not. Rank 1 is ahead when both begin anew.
TEST(ExpertsMembers, ARankComesBackThatMissedTheFirstExchange) {
  Shape shape;
  shape.timeout_ns = 3'000'000'000;
  run_ranks(shape, [](Rank& rank, Group& group) {
    const uint32_t peer = 1 - rank.number();
    const auto come_back = [&] {
      ASSERT_EQ(rank.disconnect(peer), TOWLINE_OK) << rank.error();
      ASSERT_EQ(rank.connect(peer, group.descriptions[peer]), TOWLINE_OK) << rank.error();
      ASSERT_EQ(rank.command(TOWLINE_EXPERTS_UNMASK, peer), TOWLINE_OK) << rank.error();
    };
    if (rank.number() == 0) rank.round(random_all(group.shape, 1), {true, false});
    group.meet();
    const std::vector<Tokens> all = random_all(group.shape, 2);
    rank.set(all[rank.number()]);
    if (rank.number() == 0) group.meet();
    come_back();
    towline_experts_call dispatch = rank.dispatch_call();
    ASSERT_EQ(rank.issue(dispatch), TOWLINE_OK) << rank.error();
    if (rank.number() == 1) group.meet();
    rank.drain();
    rank.expect_dispatch(all, group.everyone());
    EXPECT_EQ(rank.masks(), (std::vector<int32_t>{0, 0}));
    group.meet();
  });
}

// A graph of ranks 0 and 1, which were not open to other hosts when they recorded it.
TEST(ExpertsMembers, ARankOfAnotherHostThatJoinsHasAPartInReplays) {
  if (ranks_a_host() != 2) GTEST_SKIP() << kOtherHosts;
  Shape shape;
  shape.ranks = 3;
  run_ranks(shape, [](Rank& opened, Group& group) {
    Platform& gpu = *found_platform();
    Rank rank(gpu, group.shape, opened.number(), false);
    const bool joins = rank.number() == 2;
    const auto connect = [&](uint32_t peer) {
      if (peer == rank.number()) return;
      ASSERT_EQ(rank.connect(peer, group.descriptions[peer]), TOWLINE_OK) << rank.error();
      ASSERT_EQ(rank.command(TOWLINE_EXPERTS_UNMASK, peer), TOWLINE_OK) << rank.error();
    };
    const std::vector<Tokens> all = random_all(group.shape, 3);
    rank.set(all[rank.number()]);
    towline_experts_call dispatch = rank.dispatch_call();
    void* graph = nullptr;
    group.descriptions[rank.number()] = rank.describe();
    group.meet();
    if (!joins) {
      connect(1 - rank.number());
      gpu.record(rank.stream());
      ASSERT_EQ(rank.issue(dispatch), TOWLINE_OK) << rank.error();
      graph = gpu.end_record(rank.stream());
      gpu.replay(graph, rank.stream());
      rank.drain();
      rank.expect_dispatch(all, {true, true, false});
    }
    EXPECT_EQ(table().open_to_hosts(rank.member()), TOWLINE_OK) << rank.error();
    group.descriptions[rank.number()] = rank.describe();
    group.meet();
    for (uint32_t peer = joins ? 0 : 2; peer < 3; ++peer) connect(peer);
    rank.drain();
    group.meet();
    if (joins) {
      ASSERT_EQ(rank.issue(dispatch), TOWLINE_OK) << rank.error();
    } else {
      gpu.replay(graph, rank.stream());
    }
    rank.drain();
    rank.expect_dispatch(all, group.everyone());
    EXPECT_EQ(rank.masks(), std::vector<int32_t>(3, 0));
    group.meet();
    if (!joins) gpu.free_graph(graph);
  });
}

// A command may overtake them in another stream.
TEST(ExpertsMembers, DisconnectWaitsForExchangesThatACommandHasOvertaken) {
  Shape shape;
  shape.timeout_ns = 500'000'000;
  run_ranks(shape, [](Rank& rank, Group& group) {
    if (rank.number() != 0) return;
    Platform& gpu = *found_platform();
    void* const beside = gpu.make_stream();
    const Buffer masks(gpu, sizeof(int32_t) * group.shape.ranks);
    rank.set(random_all(group.shape, 1)[0]);
    towline_experts_call dispatch = rank.dispatch_call();
    ASSERT_EQ(rank.issue(dispatch), TOWLINE_OK) << rank.error();
    towline_experts_call query = {};
    query.struct_size = sizeof query;
    query.op = TOWLINE_EXPERTS_QUERY;
    query.out = masks.at();
    ASSERT_EQ(table().issue(rank.member(), &query, beside), TOWLINE_OK) << rank.error();
    gpu.drain(beside);
    ASSERT_EQ(rank.disconnect(1), TOWLINE_OK) << rank.error();
    // Its kernel has waited for rank 1, which does not come, to the end.
    EXPECT_GE(rank.waits()[1], static_cast<int64_t>(group.shape.timeout_ns));
    rank.drain();
    gpu.free_stream(beside);
  });
}

}  // namespace
}  // namespace towline::gpu_test::experts
