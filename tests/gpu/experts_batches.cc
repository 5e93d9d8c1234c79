// Batches for prefill among ranks that are threads.
#include "gpu/experts_batch_rank.h"

namespace towline::gpu_test::experts::batches {
namespace {

// Of tests in which ranks are late: the others must be in time.
const uint64_t kShortNs = ranks_a_host() == 0 ? 300'000'000 : 3'000'000'000;

void run_batches(const BatchShape& shape, const std::function<void(Rank&, BatchRank&, Group&)>& body) {
  run_ranks(shape.memory(), [&](Rank& rank, Group& group) {
    BatchRank batch(rank, shape);
    group.meet();
    body(rank, batch, group);
    rank.drain();
    group.meet();
  });
}

class Batches : public testing::TestWithParam<BatchShape> {};

TEST_P(Batches, TokensGoToRanksAndComeBackSummed) {
  run_batches(GetParam(), [](Rank& rank, BatchRank& batch, Group& group) {
    for (uint64_t seed = 1; seed <= 6; ++seed) batch.round_in_step(seed, group);
    EXPECT_EQ(rank.masks(), std::vector<int32_t>(group.shape.ranks, 0));
  });
}

// With memory that makes rounds, too.
TEST(BatchesAhead, RanksThatDoNotWaitForOneAnother) {
  BatchShape shape;
  shape.ranks = 4;
  shape.tokens = 200;
  shape.hidden = 128;
  shape.room = 8;
  run_batches(shape, [](Rank&, BatchRank& batch, Group&) {
    for (uint64_t seed = 1; seed <= 8; ++seed) batch.round(seed);
  });
}

// More than ways to ranks of other hosts are kept.
TEST(BatchesAhead, ManyShapesAreInTheStreamAtOnce) {
  BatchShape shape;
  shape.hidden = 256;
  run_batches(shape, [&](Rank& rank, BatchRank& batch, Group&) {
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      batch.round(seed);
      for (uint32_t bytes = 16; bytes <= shape.token_bytes(); bytes += 16) {
        towline_experts_batch call = batch.repeat_call();
        call.token_bytes = bytes;
        ASSERT_EQ(batch.issue(call), TOWLINE_OK) << rank.error();
      }
    }
    rank.drain();
    EXPECT_EQ(rank.masks(), std::vector<int32_t>(shape.ranks, 0));
  });
}

// Longer than three timeouts of the member.
TEST(BatchesAhead, TheHostWaitsForWorkThatTheStreamHadBefore) {
  if (ranks_a_host() == 1)
    GTEST_SKIP() << kOtherHosts;  // the other group's ranks can't map one another's memory
  BatchShape shape;
  shape.ranks = 1;
  shape.timeout_ns = kShortNs;
  Shape other = BatchShape{}.memory();
  other.timeout_ns = 5 * kShortNs;
  run_batches(shape, [&](Rank& rank, BatchRank& batch, Group&) {
    Rank waiting(*found_platform(), other, 0, false);
    const Rank absent(*found_platform(), other, 1, false);
    ASSERT_EQ(waiting.connect(1, absent.describe()), TOWLINE_OK) << waiting.error();
    ASSERT_EQ(waiting.command(TOWLINE_EXPERTS_UNMASK, 1), TOWLINE_OK) << waiting.error();
    waiting.drain();
    batch.set(random_part(shape, 0, 5));
    towline_experts_call barrier = {};
    barrier.struct_size = sizeof barrier;
    barrier.op = TOWLINE_EXPERTS_BARRIER;
    ASSERT_EQ(table().issue(waiting.member(), &barrier, rank.stream()), TOWLINE_OK) << rank.error();
    EXPECT_EQ(batch.dispatch(), TOWLINE_OK) << rank.error();
    rank.drain();
    EXPECT_EQ(waiting.masks(), (std::vector<int32_t>{0, 1}));
  });
}

std::string name_of(const testing::TestParamInfo<BatchShape>& info) {
  const BatchShape& shape = info.param;
  return std::to_string(shape.ranks) + "x" + std::to_string(shape.local) + "_tokens" +
         std::to_string(shape.tokens) + "_hidden" + std::to_string(shape.hidden) + "_top" +
         std::to_string(shape.topk) + "_scales" + std::to_string(shape.scales) + "_room" +
         std::to_string(shape.room) + "_aligned" + std::to_string(shape.alignment);
}

// The last ones have less memory than a batch of theirs, and go in rounds.
INSTANTIATE_TEST_SUITE_P(
    Shapes, Batches,
    testing::Values(BatchShape{}, BatchShape{1, 4, 40, 8, 3}, BatchShape{2, 3, 70, 512, 4, 4},
                    BatchShape{3, 1, 33, 72, 2, 0, 64, 16}, BatchShape{4, 4, 50, 264, 8, 3, 64, 128},
                    BatchShape{8, 2, 20, 64, 6}, BatchShape{2, 2, 300, 512, 2, 4, 8},
                    BatchShape{4, 2, 200, 128, 3, 1, 8}, BatchShape{3, 2, 90, 1024, 2, 0, 9}),
    name_of);

TEST(BatchesRoutes, NoTokenAtAll) {
  run_batches({}, [](Rank& rank, BatchRank& batch, Group&) {
    Part none;
    none.per_expert.assign(4, 0);
    batch.set(none);
    ASSERT_EQ(batch.dispatch(), TOWLINE_OK) << rank.error();
    ASSERT_EQ(batch.combine(true), TOWLINE_OK) << rank.error();
    rank.drain();
    EXPECT_EQ(batch.gets().prefix, (std::vector<int32_t>{0, 0}));
    batch.round(3);
  });
}

// ---- Ranks that are late

TEST(BatchesLate, ADispatchThatCountsNamesTheRankThatDoesNotCome) {
  BatchShape shape;
  shape.ranks = 3;
  shape.timeout_ns = kShortNs;
  run_batches(shape, [&](Rank& rank, BatchRank& batch, Group& group) {
    batch.round(1);
    group.meet();
    if (rank.number() != 2) {
      batch.set(random_part(shape, rank.number(), 2));
      EXPECT_EQ(batch.dispatch(), TOWLINE_TIMED_OUT);
      EXPECT_NE(rank.error().find("rank 2 is masked, or did not come"), std::string::npos) << rank.error();
      EXPECT_EQ(batch.dispatch(), TOWLINE_TIMED_OUT);  // at once, and again
    }
    rank.drain();
    group.meet();
    // The one that was late begins anew with the others, as they do with it.
    for (uint32_t peer = 0; peer < 3; ++peer) {
      if (rank.number() == peer || (rank.number() != 2 && peer != 2)) continue;
      ASSERT_EQ(rank.disconnect(peer), TOWLINE_OK) << rank.error();
      ASSERT_EQ(rank.connect(peer, group.descriptions[peer]), TOWLINE_OK) << rank.error();
    }
    group.meet();
    ASSERT_EQ(rank.command(TOWLINE_EXPERTS_CLEAN), TOWLINE_OK);
    rank.drain();
    group.meet();
    for (uint64_t seed = 3; seed < 6; ++seed) batch.round(seed);
  });
}

// No host waits in these, so the output tells, and the next call.
TEST(BatchesLate, WithoutAWaitOnTheHostMissingRowsAreNan) {
  BatchShape shape;
  shape.timeout_ns = kShortNs;
  run_batches(shape, [&](Rank& rank, BatchRank& batch, Group& group) {
    const std::vector<Part> all = random_parts(shape, 5);
    const Part& mine = all[rank.number()];
    batch.round(5);
    group.meet();
    if (rank.number() == 0) {
      ASSERT_EQ(batch.repeat(), TOWLINE_OK) << rank.error();
      ASSERT_EQ(batch.combine(false), TOWLINE_OK) << rank.error();
      rank.drain();
      const std::vector<uint16_t> wanted = expected_combine(shape, mine, false);
      const std::vector<uint16_t> made = batch.combined();
      const std::vector<uint16_t> rows = batch.got();
      const auto own_rows = static_cast<size_t>(batch.gets().prefix[0]) * shape.hidden;
      EXPECT_EQ(std::vector<uint16_t>(rows.begin() + static_cast<std::ptrdiff_t>(own_rows), rows.end()),
                std::vector<uint16_t>(rows.size() - own_rows, 0xffff));
      for (uint32_t token = 0; token < mine.count; ++token)
        if (mine.in_rank[2 * token + 1] != 0) {
          EXPECT_EQ(made[uint64_t{token} * shape.hidden], 0xffff) << token;
        }
      EXPECT_EQ(batch.combine(false), TOWLINE_TIMED_OUT);
      EXPECT_NE(rank.error().find("rank 1"), std::string::npos) << rank.error();
      EXPECT_EQ(rank.masks(), (std::vector<int32_t>{0, 1}));
    }
    group.meet();
  });
}

TEST(BatchesLate, AnotherShapeIsNamed) {
  BatchShape shape;
  run_batches(shape, [&](Rank& rank, BatchRank& batch, Group& group) {
    batch.set(random_part(shape, rank.number(), 2));
    towline_experts_batch call = batch.dispatch_call();
    if (rank.number() == 1) call.token_bytes = 64;
    EXPECT_EQ(batch.issue(call), TOWLINE_MISMATCH);
    const std::string other = std::to_string(1 - rank.number());
    EXPECT_NE(rank.error().find("rank " + other + " came to another batch"), std::string::npos)
        << rank.error();
    group.meet();
  });
}

// Its memory is cut another way.
TEST(BatchesLate, ARankThatIsNotOpenToHostsAsTheOthersIsNamed) {
  if (ranks_a_host() != 2) GTEST_SKIP() << kOtherHosts;  // no member is open, or no two are of one host
  BatchShape shape;
  run_batches(shape, [&](Rank& rank, BatchRank&, Group& group) {
    Rank other(*found_platform(), shape.memory(), rank.number(), false);
    BatchRank batch(other, shape);
    group.descriptions[rank.number()] = other.describe();
    group.meet();
    const uint32_t peer = 1 - rank.number();
    ASSERT_EQ(other.connect(peer, group.descriptions[peer]), TOWLINE_OK) << other.error();
    ASSERT_EQ(other.command(TOWLINE_EXPERTS_UNMASK, peer), TOWLINE_OK) << other.error();
    if (rank.number() == 0) {
      ASSERT_EQ(table().open_to_hosts(other.member()), TOWLINE_OK) << other.error();
    }
    batch.set(random_part(shape, rank.number(), 5));
    EXPECT_EQ(batch.dispatch(), TOWLINE_MISMATCH);
    EXPECT_NE(other.error().find("be open to other hosts if one of them is"), std::string::npos)
        << other.error();
    other.drain();
    group.meet();
  });
}

// Neither waits for the other before it begins: the first exchange of a session waits until both have opened it.
TEST(BatchesMembers, TheSameRankComesBack) {
  BatchShape shape;
  run_batches(shape, [&](Rank& rank, BatchRank& batch, Group& group) {
    const uint32_t peer = 1 - rank.number();
    for (uint64_t seed = 1; seed < 13; ++seed) {
      batch.round(seed);
      ASSERT_EQ(rank.disconnect(peer), TOWLINE_OK) << rank.error();
      ASSERT_EQ(rank.connect(peer, group.descriptions[peer]), TOWLINE_OK) << rank.error();
      ASSERT_EQ(rank.command(TOWLINE_EXPERTS_UNMASK, peer), TOWLINE_OK) << rank.error();
    }
    EXPECT_EQ(rank.masks(), (std::vector<int32_t>{0, 0}));
  });
}

// A command that overtook the batch would not find the rank masked yet.
TEST(BatchesLate, ACommandInAnotherStreamComesAfterTheBatch) {
  BatchShape shape;
  shape.timeout_ns = kShortNs;
  run_batches(shape, [&](Rank& rank, BatchRank& batch, Group& group) {
    Platform& gpu = *found_platform();
    Buffer masks(gpu, uint64_t{4} * shape.ranks);
    void* const other = gpu.make_stream();
    batch.round(5);
    group.meet();
    if (rank.number() == 0) {
      ASSERT_EQ(batch.repeat(), TOWLINE_OK) << rank.error();
      towline_experts_call call = {};
      call.struct_size = sizeof call;
      call.op = TOWLINE_EXPERTS_QUERY;
      call.out = masks.at();
      ASSERT_EQ(table().issue(rank.member(), &call, other), TOWLINE_OK) << rank.error();
      gpu.drain(other);
      EXPECT_EQ(read<int32_t>(masks, shape.ranks), (std::vector<int32_t>{0, 1}));
    }
    rank.drain();
    group.meet();
    gpu.free_stream(other);
  });
}

TEST(BatchesLate, WithoutTheRankThatWasDisconnectedTheOthersGoOn) {
  BatchShape shape;
  shape.ranks = 3;
  shape.timeout_ns = kShortNs;
  BatchShape fewer;
  fewer.timeout_ns = kShortNs;
  run_batches(shape, [&](Rank& rank, BatchRank& batch, Group& group) {
    BatchRank without(rank, fewer);
    batch.round(1);
    group.meet();
    if (rank.number() != 2) {
      batch.set(random_part(shape, rank.number(), 2));
      EXPECT_EQ(batch.dispatch(), TOWLINE_TIMED_OUT);
      rank.drain();
      ASSERT_EQ(rank.disconnect(2), TOWLINE_OK) << rank.error();
    }
    group.meet();
    if (rank.number() != 2)
      for (uint64_t seed = 3; seed < 6; ++seed) without.round(seed);
    group.meet();
  });
}

// It may still read the stage, and no batch among fewer would wait for it.
TEST(BatchesRefusals, ABatchAmongFewerThanThoseOfAnEarlierOne) {
  BatchShape shape;
  shape.ranks = 3;
  run_batches(shape, [](Rank& rank, BatchRank& batch, Group& group) {
    batch.round(1);
    group.meet();
    if (rank.number() == 0) {
      towline_experts_batch call = batch.dispatch_call();
      call.ranks = 2;
      EXPECT_EQ(batch.issue(call), TOWLINE_INVALID_ARGUMENT);
      EXPECT_NE(rank.error().find("rank 2 had a part in an earlier one"), std::string::npos) << rank.error();
    }
    group.meet();
    batch.round(2);
  });
}

// Rank 1 has them for the expert of rank 0.
TEST(BatchesLate, CountsThatCanNotBeAreNamed) {
  BatchShape shape;
  for (const int32_t count : {-5, 1'000'000}) {
    run_batches(shape, [&](Rank& rank, BatchRank& batch, Group& group) {
      Part part = random_part(shape, rank.number(), 5);
      if (rank.number() == 1) part.per_expert[0] = count;
      batch.set(part);
      group.meet();
      if (rank.number() == 0) {
        EXPECT_EQ(batch.dispatch(), TOWLINE_MISMATCH) << count;
        EXPECT_NE(rank.error().find("rank 1 came to another batch"), std::string::npos) << rank.error();
      } else {
        EXPECT_EQ(batch.dispatch(), TOWLINE_OK) << rank.error();
      }
      rank.drain();
      group.meet();
    });
  }
}

// ---- A group of one host that ranks of another one join

// Ranks 0 and 1, which are not open to other hosts yet, and rank 2, of another host. `batch` is of the first two alone.
void run_joined(
    const BatchShape& shape,
    const std::function<void(Rank& rank, BatchRank& batch, BatchRank& of_all, Group& group)>& body) {
  if (ranks_a_host() != 2) GTEST_SKIP() << kOtherHosts;
  BatchShape fewer = shape;
  fewer.ranks = 2;
  run_batches(shape, [&](Rank& first, BatchRank&, Group& group) {
    Rank rank(*found_platform(), shape.memory(), first.number(), false);
    BatchRank batch(rank, fewer);
    BatchRank of_all(rank, shape);
    group.descriptions[rank.number()] = rank.describe();
    group.meet();
    const uint32_t peer = 1 - rank.number();
    if (rank.number() != 2) {
      ASSERT_EQ(rank.connect(peer, group.descriptions[peer]), TOWLINE_OK) << rank.error();
      ASSERT_EQ(rank.command(TOWLINE_EXPERTS_UNMASK, peer), TOWLINE_OK) << rank.error();
    }
    body(rank, batch, of_all, group);
    rank.drain();
    group.meet();
  });
}
// Opens it, and connects it to all that it is not connected to.
void join(Rank& rank, Group& group) {
  EXPECT_EQ(table().open_to_hosts(rank.member()), TOWLINE_OK) << rank.error();
  group.descriptions[rank.number()] = rank.describe();
  group.meet();
  for (uint32_t peer = 0; peer < 3; ++peer) {
    if (peer == rank.number() || (peer != 2 && rank.number() != 2)) continue;
    ASSERT_EQ(rank.connect(peer, group.descriptions[peer]), TOWLINE_OK) << rank.error();
    ASSERT_EQ(rank.command(TOWLINE_EXPERTS_UNMASK, peer), TOWLINE_OK) << rank.error();
  }
}

TEST(BatchesHosts, ARankOfAnotherHostJoinsAGroupThatHasExchangedBatches) {
  BatchShape shape;
  shape.ranks = 3;
  run_joined(shape, [](Rank& rank, BatchRank& batch, BatchRank& of_all, Group& group) {
    if (rank.number() != 2)
      for (uint64_t seed = 1; seed < 6; ++seed) batch.round(seed);
    join(rank, group);
    for (uint64_t seed = 6; seed < 12; ++seed) of_all.round(seed);
    EXPECT_EQ(rank.masks(), std::vector<int32_t>(3, 0));
  });
}

// Memory that is cut anew would be written while rank 1 reads it.
TEST(BatchesHosts, ARankIsNotOpenedWhileAnotherMayReadItsBatch) {
  BatchShape shape;
  shape.ranks = 3;
  shape.timeout_ns = kShortNs;
  BatchShape fewer = shape;
  fewer.ranks = 2;
  run_joined(shape, [fewer](Rank& rank, BatchRank& batch, BatchRank& of_all, Group& group) {
    const std::vector<Part> all = random_parts(fewer, 5);
    if (rank.number() != 2) {
      batch.set(all[rank.number()]);
      ASSERT_EQ(batch.send(), TOWLINE_OK) << rank.error();
    }
    if (rank.number() == 0) {
      ASSERT_EQ(batch.receive(), TOWLINE_OK) << rank.error();
      EXPECT_EQ(table().open_to_hosts(rank.member()), TOWLINE_TIMED_OUT);
      EXPECT_NE(rank.error().find("since rank 1 did not say"), std::string::npos) << rank.error();
    }
    group.meet();
    if (rank.number() == 1) {
      ASSERT_EQ(batch.receive(), TOWLINE_OK) << rank.error();
      rank.drain();
      EXPECT_TRUE(batch.gets() == expected_dispatch(fewer, 1, all));
    }
    join(rank, group);
    for (uint64_t seed = 6; seed < 9; ++seed) of_all.round(seed);
  });
}

// As after one that failed for want of a rank: nobody has said that it read the others' tokens.
TEST(BatchesHosts, ADispatchThatIsNotReceivedKeepsNobodyFromJoining) {
  BatchShape shape;
  shape.ranks = 3;
  shape.timeout_ns = kShortNs;
  run_joined(shape, [](Rank& rank, BatchRank& batch, BatchRank& of_all, Group& group) {
    if (rank.number() != 2) {
      batch.round(1);
      ASSERT_EQ(batch.send(), TOWLINE_OK) << rank.error();
    }
    join(rank, group);
    EXPECT_EQ(batch.receive(), TOWLINE_INVALID_ARGUMENT);
    for (uint64_t seed = 3; seed < 6; ++seed) of_all.round(seed);
  });
}

TEST(BatchesHosts, ARankThatConnectsToOneThatIsOpenIsOpenAsWell) {
  if (ranks_a_host() != 2) GTEST_SKIP() << kOtherHosts;
  BatchShape shape;
  run_batches(shape, [&](Rank& first, BatchRank&, Group& group) {
    Rank rank(*found_platform(), shape.memory(), first.number(), false);
    BatchRank batch(rank, shape);
    const uint32_t peer = 1 - rank.number();
    for (const bool opens : {false, true}) {
      if (opens && rank.number() == 0) {
        ASSERT_EQ(table().open_to_hosts(rank.member()), TOWLINE_OK) << rank.error();
      }
      group.descriptions[rank.number()] = rank.describe();
      group.meet();
      ASSERT_EQ(rank.connect(peer, group.descriptions[peer]), TOWLINE_OK) << rank.error();
      ASSERT_EQ(rank.command(TOWLINE_EXPERTS_UNMASK, peer), TOWLINE_OK) << rank.error();
      batch.round(1);
      group.meet();
      ASSERT_EQ(rank.disconnect(peer), TOWLINE_OK) << rank.error();
      group.meet();
    }
  });
}

// ---- Graphs

TEST(BatchesGraphs, ADispatchWithCountsAndACombineAreReplayed) {
  BatchShape shape;
  run_batches(shape, [&](Rank& rank, BatchRank& batch, Group& group) {
    Platform& gpu = *found_platform();
    const Part mine = random_part(shape, rank.number(), 5);
    batch.round_in_step(5, group);
    group.meet();
    gpu.record(rank.stream());
    towline_experts_batch counting = batch.dispatch_call();
    EXPECT_EQ(batch.issue(counting), TOWLINE_INVALID_ARGUMENT);
    ASSERT_EQ(batch.repeat(), TOWLINE_OK) << rank.error();
    ASSERT_EQ(batch.combine(true), TOWLINE_OK) << rank.error();
    void* const graph = gpu.end_record(rank.stream());
    group.meet();
    const std::vector<uint16_t> wanted = batch.got();
    for (int i = 0; i < 3; ++i) {
      batch.clear();
      group.meet();
      gpu.replay(graph, rank.stream());
      rank.drain();
      group.meet();
      EXPECT_EQ(batch.got(), wanted);
      EXPECT_EQ(batch.combined(), expected_combine(shape, mine, true));
    }
    group.meet();
    gpu.free_graph(graph);
  });
}

// ---- What is refused

TEST(BatchesRefusals, CallsThatDoNotFit) {
  BatchShape shape;
  shape.ranks = 1;
  shape.scales = 2;
  run_batches(shape, [&](Rank& rank, BatchRank& batch, Group&) {
    batch.round(5);
    const auto refused = [&](const std::function<void(towline_experts_batch&)>& change, const char* text,
                             bool combine = false) {
      towline_experts_batch call = combine ? batch.combine_call(true) : batch.dispatch_call();
      change(call);
      EXPECT_EQ(batch.issue(call), TOWLINE_INVALID_ARGUMENT) << text;
      EXPECT_NE(rank.error().find(text), std::string::npos) << rank.error();
    };
    using Call = towline_experts_batch;
    batch.set(random_part(shape, 0, 5));
    refused([](Call& call) { call.op = 7; }, "no batch 7");
    refused([](Call& call) { call.phases = 0; }, "phases 0");
    refused([](Call& call) { call.phases = 1; }, "phases 1", true);
    refused([](Call& call) { call.token_bytes = 24; }, "multiple of 16");
    refused([](Call& call) { call.topk = 129; }, "128 routes");
    refused([](Call& call) { call.experts = 0; }, "1 to 1024 experts");
    refused([](Call& call) { call.ranks = 2; }, "among 2 ranks, of 1");
    refused([](Call& call) { call.tokens = 1 << 20; }, "1048575 tokens");
    refused([](Call& call) { call.in_rank = nullptr; }, "in_rank is null");
    refused([](Call& call) { call.x = static_cast<const uint8_t*>(call.x) + 8; }, "x is not aligned");
    refused([](Call& call) { call.received_per_expert = nullptr; }, "received_per_expert is null");
    refused([](Call& call) { call.scales = 1; }, "1 scales", true);
    refused([](Call& call) { call.max_tokens = 0; }, "more than the 0", true);
    refused([](Call& call) { call.token_bytes = 1 << 18; }, "open it with more");
    refused([](Call& call) { call.struct_size = 8; }, "fewer bytes");
    batch.round(2);
  });
}

TEST(BatchesRefusals, AReceiveBelongsToItsSend) {
  BatchShape shape;
  shape.ranks = 1;
  run_batches(shape, [&](Rank& rank, BatchRank& batch, Group&) {
    batch.set(random_part(shape, 0, 5));
    const auto receive = [&](towline_experts_batch call) {
      call.phases = TOWLINE_EXPERTS_RECEIVE;
      return batch.issue(call);
    };
    towline_experts_batch call = batch.dispatch_call();
    call.max_tokens = shape.tokens;
    EXPECT_EQ(receive(call), TOWLINE_INVALID_ARGUMENT);
    EXPECT_NE(rank.error().find("right after the SEND"), std::string::npos) << rank.error();
    ASSERT_EQ(batch.issue(call), TOWLINE_OK) << rank.error();
    towline_experts_batch other = call;
    other.token_bytes = 16;
    EXPECT_EQ(receive(other), TOWLINE_INVALID_ARGUMENT);
    EXPECT_NE(rank.error().find("give it the SEND's"), std::string::npos) << rank.error();
    EXPECT_EQ(receive(call), TOWLINE_OK) << rank.error();
    EXPECT_EQ(receive(call), TOWLINE_INVALID_ARGUMENT);
    batch.round(5);
    ASSERT_EQ(batch.issue(call = batch.dispatch_call()), TOWLINE_OK) << rank.error();
    ASSERT_EQ(batch.repeat(), TOWLINE_OK) << rank.error();
    EXPECT_EQ(receive(call), TOWLINE_INVALID_ARGUMENT);
  });
}

TEST(BatchesRefusals, ACallThatWasRefusedDoesNotDecideWhatAMemberIsFor) {
  BatchShape shape;
  shape.ranks = 1;
  run_batches(shape, [](Rank& rank, BatchRank& batch, Group&) {
    towline_experts_call call = rank.dispatch_call();
    call.phases = TOWLINE_EXPERTS_RECEIVE;
    EXPECT_EQ(rank.issue(call), TOWLINE_INVALID_ARGUMENT);
    batch.round(1);
  });
}

TEST(BatchesRefusals, AMemberWhoseBatchesAGraphHasIsNotOpenedToHosts) {
  if (ranks_a_host() == 0) GTEST_SKIP() << kOtherHosts;  // members have no functions to open with
  BatchShape shape;
  shape.ranks = 1;
  run_batches(shape, [&](Rank&, BatchRank&, Group&) {
    Platform& gpu = *found_platform();
    Rank closed(gpu, shape.memory(), 0, false);
    BatchRank batch(closed, shape);
    batch.round(1);
    gpu.record(closed.stream());
    ASSERT_EQ(batch.repeat(), TOWLINE_OK) << closed.error();
    void* const graph = gpu.end_record(closed.stream());
    EXPECT_EQ(table().open_to_hosts(closed.member()), TOWLINE_UNSUPPORTED);
    EXPECT_NE(closed.error().find("before you record"), std::string::npos) << closed.error();
    batch.round(2);
    gpu.free_graph(graph);
  });
}

TEST(BatchesRefusals, AMemberIsForBatchesOrForExchanges) {
  BatchShape shape;
  shape.ranks = 1;
  run_batches(shape, [](Rank& rank, BatchRank& batch, Group&) {
    batch.round(1);
    towline_experts_call call = rank.dispatch_call();
    EXPECT_EQ(rank.issue(call), TOWLINE_INVALID_ARGUMENT);
    EXPECT_NE(rank.error().find("was opened for batches"), std::string::npos) << rank.error();
  });
}

}  // namespace
}  // namespace towline::gpu_test::experts::batches
