#include "gpu/experts_suite.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <numeric>

namespace towline::gpu_test::experts {
namespace {

// Of tests in which ranks are late: the others must be in time.
const uint64_t kShortNs = ranks_a_host() == 0 ? 300'000'000 : 3'000'000'000;

// With routes of the test's own.
std::vector<Tokens> routed_all(
    const Shape& shape, uint32_t count,
    const std::function<int64_t(uint32_t rank, uint32_t token, uint32_t k)>& route) {
  std::vector<Tokens> all;
  for (uint32_t rank = 0; rank < shape.ranks; ++rank) {
    Tokens tokens;
    tokens.count = count;
    for (uint64_t i = 0; i < uint64_t{count} * shape.hidden; ++i)
      tokens.x.push_back(static_cast<uint16_t>(0x3f80 + rank * 16 + i % 7));
    for (uint32_t token = 0; token < count; ++token)
      for (uint32_t k = 0; k < shape.topk; ++k) {
        tokens.routes.push_back(route(rank, token, k));
        tokens.weights.push_back(0.25f + static_cast<float>(k));
      }
    all.push_back(tokens);
  }
  return all;
}

float bfloat16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

class Experts : public testing::TestWithParam<Shape> {};

TEST_P(Experts, TokensGoToTheirExpertsAndComeBackSummed) {
  run_ranks(GetParam(), [](Rank& rank, Group& group) {
    for (uint64_t seed = 1; seed <= 7; ++seed) rank.round_in_step(random_all(group.shape, seed), group);
    EXPECT_EQ(rank.masks(), std::vector<int32_t>(group.shape.ranks, 0));
  });
}

std::string name_of(const testing::TestParamInfo<Shape>& info) {
  const Shape& shape = info.param;
  return std::to_string(shape.ranks) + "x" + std::to_string(shape.local) + "_tokens" +
         std::to_string(shape.max_tokens) + "_hidden" + std::to_string(shape.hidden) + "_top" +
         std::to_string(shape.topk) + "_format" + std::to_string(shape.format);
}

constexpr uint32_t kRounded = TOWLINE_EXPERTS_FP8 | TOWLINE_EXPERTS_ROUND_SCALE;
INSTANTIATE_TEST_SUITE_P(Shapes, Experts,
                         testing::Values(Shape{1, 1, 4, 128, 1}, Shape{1, 8, 32, 256, 8},
                                         Shape{2, 2, 8, 128, 2}, Shape{2, 3, 16, 512, 4},
                                         Shape{3, 1, 5, 384, 3}, Shape{4, 4, 12, 128, 6},
                                         Shape{8, 2, 4, 128, 8}, Shape{2, 2, 8, 512, 2, TOWLINE_EXPERTS_FP8},
                                         Shape{4, 3, 8, 1024, 4, TOWLINE_EXPERTS_FP8},
                                         Shape{2, 2, 8, 512, 2, kRounded},
                                         Shape{3, 2, 8, 1024, 3, kRounded | TOWLINE_EXPERTS_UE8M0}),
                         name_of);

TEST(ExpertsRoutes, NoTokenAtAll) {
  run_ranks({}, [](Rank& rank, Group& group) {
    rank.round(routed_all(group.shape, 0, [](auto...) { return 0; }), group.everyone());
  });
}

TEST(ExpertsRoutes, NoRouteOfAnyToken) {
  run_ranks({}, [](Rank& rank, Group& group) {
    rank.round(routed_all(group.shape, 5, [](auto...) { return -1; }), group.everyone());
    EXPECT_EQ(rank.combined(), std::vector<uint16_t>(uint64_t{5} * group.shape.hidden, 0));
  });
}

TEST(ExpertsRoutes, AllTokensToOneExpert) {
  Shape shape;
  shape.ranks = 4;
  run_ranks(shape, [](Rank& rank, Group& group) {
    rank.round(routed_all(group.shape, group.shape.max_tokens,
                          [](uint32_t, uint32_t, uint32_t k) { return k == 0 ? 5 : -1; }),
               group.everyone());
  });
}

// It is sent once, and its result counts with both weights.
TEST(ExpertsRoutes, AnExpertThatATokenNamesTwice) {
  run_ranks({}, [](Rank& rank, Group& group) {
    rank.round(routed_all(group.shape, group.shape.max_tokens, [](auto...) { return 3; }), group.everyone());
  });
}

TEST(ExpertsRoutes, AnExpertThatDoesNotExistIsNone) {
  run_ranks({}, [](Rank& rank, Group& group) {
    rank.round(routed_all(group.shape, 4,
                          [](uint32_t, uint32_t token, uint32_t k) -> int64_t {
                            return k == 0 ? token : token % 2 == 0 ? int64_t{1} << 40 : -7;
                          }),
               group.everyone());
  });
}

TEST(ExpertsCounts, StatsAndWaitsAddUp) {
  run_ranks({}, [](Rank& rank, Group& group) {
    std::vector<int32_t> wanted(group.shape.local, 0);
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      const std::vector<Tokens> all = random_all(group.shape, seed);
      rank.round(all, group.everyone());
      const Received expected = expected_dispatch(group.shape, rank.number(), all, group.everyone());
      for (uint32_t expert = 0; expert < group.shape.local; ++expert)
        wanted[expert] += expected.counts[expert];
    }
    EXPECT_EQ(rank.stats(), wanted);
    for (const int64_t wait : rank.waits()) EXPECT_GT(wait, 0);
  });
}

// ---- Phases

TEST(ExpertsPhases, SentFirstAndReceivedLater) {
  run_ranks({}, [](Rank& rank, Group& group) {
    const std::vector<Tokens> all = random_all(group.shape, 5);
    rank.set(all[rank.number()]);
    towline_experts_call call = rank.dispatch_call();
    call.phases = TOWLINE_EXPERTS_SEND;
    ASSERT_EQ(rank.issue(call), TOWLINE_OK) << rank.error();
    call.phases = TOWLINE_EXPERTS_RECEIVE;
    ASSERT_EQ(rank.issue(call), TOWLINE_OK) << rank.error();
    rank.drain();
    rank.expect_dispatch(all, group.everyone());
    rank.compute();
    towline_experts_call back = rank.combine_call();
    back.phases = TOWLINE_EXPERTS_SEND;
    ASSERT_EQ(rank.issue(back), TOWLINE_OK) << rank.error();
    back.phases = TOWLINE_EXPERTS_RECEIVE;
    ASSERT_EQ(rank.issue(back), TOWLINE_OK) << rank.error();
    rank.drain();
    rank.expect_combine(all[rank.number()], group.everyone());
  });
}

// Two are open at a time, again and again: a third waits until the first was taken everywhere.
TEST(ExpertsPhases, TwoExchangesAreOpen) {
  Shape shape;
  shape.ranks = 3;
  run_ranks(shape, [](Rank& rank, Group& group) {
    constexpr uint64_t kRounds = 12;
    std::vector<std::vector<Tokens>> all;
    std::vector<towline_experts_call> sent;
    for (uint64_t i = 0; i < kRounds; ++i) {
      all.push_back(random_all(group.shape, 40 + i));
      rank.drain();
      rank.set(all[i][rank.number()]);
      towline_experts_call call = rank.dispatch_call();
      call.phases = TOWLINE_EXPERTS_SEND;
      ASSERT_EQ(rank.issue(call), TOWLINE_OK) << rank.error();
      sent.push_back(call);
      if (i == 0) continue;
      sent[i - 1].phases = TOWLINE_EXPERTS_RECEIVE;
      ASSERT_EQ(rank.issue(sent[i - 1]), TOWLINE_OK) << rank.error();
      rank.drain();
      rank.expect_dispatch(all[i - 1], group.everyone());
    }
    EXPECT_EQ(rank.masks(), std::vector<int32_t>(group.shape.ranks, 0));
  });
}

// A third exchange does not overwrite the first, which one rank has yet to receive.
TEST(ExpertsPhases, TheThirdWaitsForTheFirst) {
  run_ranks({}, [](Rank& rank, Group& group) {
    std::vector<std::vector<Tokens>> all;
    for (uint64_t i = 0; i < 3; ++i)
      all.push_back(routed_all(group.shape, group.shape.max_tokens - static_cast<uint32_t>(i),
                               [i](uint32_t, uint32_t token, uint32_t k) { return (token + k + i) % 4; }));
    std::vector<towline_experts_call> sent(3);
    const auto send = [&](size_t i) {
      rank.set(all[i][rank.number()]);
      sent[i] = rank.dispatch_call();
      sent[i].phases = TOWLINE_EXPERTS_SEND;
      ASSERT_EQ(rank.issue(sent[i]), TOWLINE_OK) << rank.error();
    };
    const auto receive = [&](size_t i) {
      sent[i].phases = TOWLINE_EXPERTS_RECEIVE;
      ASSERT_EQ(rank.issue(sent[i]), TOWLINE_OK) << rank.error();
      rank.drain();
      rank.expect_dispatch(all[i], group.everyone());
    };
    for (const size_t i : {0, 1}) {
      send(i);
      rank.drain();
    }
    if (rank.number() == 0) {
      receive(0);
      send(2);
      group.meet();
    } else {
      group.meet();
      receive(0);
      send(2);
    }
    receive(1);
    receive(2);
  });
}

// A large exchange leaves the slots of a small one alone that was sent before it and is still to be received.
TEST(ExpertsPhases, TwoOpenExchangesHaveDifferentShapes) {
  Shape small;
  Shape large = small;
  large.hidden = 4 * small.hidden;
  run_ranks(large, [small, large](Rank& rank, Group& group) {
    const auto all_of = [](const Shape& shape) {
      return routed_all(shape, shape.max_tokens,
                        [](uint32_t, uint32_t token, uint32_t k) { return (token + k) % 4; });
    };
    const auto receive = [&](const Shape& shape, towline_experts_call& call) {
      call.phases = TOWLINE_EXPERTS_RECEIVE;
      ASSERT_EQ(rank.issue(call), TOWLINE_OK) << rank.error();
      rank.drain();
      rank.expect_dispatch_of(shape, all_of(shape), group.everyone());
    };
    std::vector<towline_experts_call> sent;
    for (const Shape& shape : {small, large}) {
      rank.set(all_of(shape)[rank.number()]);
      towline_experts_call call = rank.dispatch_call();
      call.hidden = shape.hidden;
      call.phases = TOWLINE_EXPERTS_SEND;
      ASSERT_EQ(rank.issue(call), TOWLINE_OK) << rank.error();
      rank.drain();
      sent.push_back(call);
    }
    group.meet();
    receive(small, sent[0]);
    receive(large, sent[1]);
  });
}

TEST(ExpertsPhases, OrderIsChecked) {
  Shape shape;
  shape.ranks = 1;
  run_ranks(shape, [](Rank& rank, Group& group) {
    rank.set(random_tokens(group.shape, 0, 3));
    towline_experts_call first = rank.dispatch_call();
    first.phases = TOWLINE_EXPERTS_RECEIVE;
    EXPECT_EQ(rank.issue(first), TOWLINE_INVALID_ARGUMENT);
    first.phases = TOWLINE_EXPERTS_SEND;
    towline_experts_call second = first;
    ASSERT_EQ(rank.issue(first), TOWLINE_OK) << rank.error();
    ASSERT_EQ(rank.issue(second), TOWLINE_OK) << rank.error();
    towline_experts_call third = rank.dispatch_call();
    EXPECT_EQ(rank.issue(third), TOWLINE_INVALID_ARGUMENT);
    third.phases = TOWLINE_EXPERTS_SEND;
    EXPECT_EQ(rank.issue(third), TOWLINE_INVALID_ARGUMENT);
    EXPECT_NE(rank.error().find("call their hooks first"), std::string::npos) << rank.error();
    second.phases = TOWLINE_EXPERTS_RECEIVE;
    EXPECT_EQ(rank.issue(second), TOWLINE_INVALID_ARGUMENT);
    first.phases = TOWLINE_EXPERTS_RECEIVE;
    EXPECT_EQ(rank.issue(first), TOWLINE_OK) << rank.error();
    EXPECT_EQ(rank.issue(first), TOWLINE_INVALID_ARGUMENT);
    EXPECT_EQ(rank.issue(second), TOWLINE_OK) << rank.error();
  });
}

// More than ways to ranks of other hosts are kept, and all of them in the stream at once.
TEST(ExpertsShapes, ManyAreInTheStreamAtOnce) {
  Shape shape;
  shape.max_tokens = 12;
  run_ranks(shape, [](Rank& rank, Group& group) {
    const std::vector<Tokens> all =
        routed_all(group.shape, 1, [](uint32_t number, uint32_t, uint32_t k) { return 2 * k + number; });
    rank.set(all[rank.number()]);
    for (int times = 0; times < 3; ++times)
      for (uint32_t most = 1; most <= group.shape.max_tokens; ++most) {
        towline_experts_call call = rank.dispatch_call();
        call.max_tokens = most;
        ASSERT_EQ(rank.issue(call), TOWLINE_OK) << rank.error();
      }
    rank.drain();
    rank.expect_dispatch(all, group.everyone());
    EXPECT_EQ(rank.masks(), std::vector<int32_t>(group.shape.ranks, 0));
  });
}

// An odd number of exchanges, so that each replay uses the other half first.
TEST(ExpertsGraphs, ReplaysTakeWhatTheTokensAreThen) {
  Shape shape;
  shape.max_tokens = 6;
  run_ranks(shape, [](Rank& rank, Group& group) {
    Platform& gpu = *found_platform();
    const auto tokens_of = [&](uint64_t seed) {
      std::vector<Tokens> all = random_all(group.shape, seed);
      for (uint32_t number = 0; number < group.shape.ranks; ++number)
        for (uint64_t more = 0; all[number].count != group.shape.max_tokens; ++more)
          all[number] = random_tokens(group.shape, number, seed + 100 * (more + 1));
      return all;
    };
    rank.set(tokens_of(1)[rank.number()]);
    gpu.record(rank.stream());
    for (int i = 0; i < 3; ++i) {
      towline_experts_call dispatch = rank.dispatch_call();
      ASSERT_EQ(rank.issue(dispatch), TOWLINE_OK) << rank.error();
    }
    void* const graph = gpu.end_record(rank.stream());
    group.meet();
    for (uint64_t seed = 2; seed < 8; ++seed) {
      const std::vector<Tokens> all = tokens_of(seed);
      rank.set(all[rank.number()]);
      group.meet();
      gpu.replay(graph, rank.stream());
      rank.drain();
      group.meet();
      rank.expect_dispatch(all, group.everyone());
      rank.compute();
      towline_experts_call combine = rank.combine_call();
      group.meet();
      ASSERT_EQ(rank.issue(combine), TOWLINE_OK) << rank.error();
      rank.drain();
      group.meet();
      rank.expect_combine(all[rank.number()], group.everyone());
    }
    group.meet();
    gpu.free_graph(graph);
  });
}

// More shapes than ranks of other hosts have ways for otherwise; and a rank may come back before the replay.
TEST(ExpertsGraphs, ReplaysHaveTheirShapesWhateverCameSince) {
  Shape shape;
  shape.max_tokens = 24;
  run_ranks(shape, [](Rank& rank, Group& group) {
    Platform& gpu = *found_platform();
    const std::vector<Tokens> all =
        routed_all(group.shape, 1, [](uint32_t number, uint32_t, uint32_t k) { return 2 * k + number; });
    rank.set(all[rank.number()]);
    const auto exchange = [&](uint32_t first) {
      for (uint32_t most = first; most <= group.shape.max_tokens; most += 2) {
        towline_experts_call call = rank.dispatch_call();
        call.max_tokens = most;
        ASSERT_EQ(rank.issue(call), TOWLINE_OK) << rank.error();
      }
    };
    gpu.record(rank.stream());
    exchange(2);
    void* const graph = gpu.end_record(rank.stream());
    group.meet();
    exchange(1);
    rank.drain();
    group.meet();
    const uint32_t peer = 1 - rank.number();
    ASSERT_EQ(rank.disconnect(peer), TOWLINE_OK) << rank.error();
    ASSERT_EQ(rank.connect(peer, group.descriptions[peer]), TOWLINE_OK) << rank.error();
    ASSERT_EQ(rank.command(TOWLINE_EXPERTS_UNMASK, peer), TOWLINE_OK) << rank.error();
    rank.drain();
    group.meet();
    gpu.replay(graph, rank.stream());
    rank.drain();
    rank.expect_dispatch(all, group.everyone());
    EXPECT_EQ(rank.masks(), (std::vector<int32_t>{0, 0}));
    group.meet();
    gpu.free_graph(graph);
  });
}

TEST(ExpertsCombine, ResultsInTheMembersOwnMemory) {
  run_ranks({}, [](Rank& rank, Group& group) {
    const std::vector<Tokens> all = random_all(group.shape, 9);
    rank.set(all[rank.number()]);
    towline_experts_call dispatch = rank.dispatch_call();
    ASSERT_EQ(rank.issue(dispatch), TOWLINE_OK) << rank.error();
    rank.drain();
    rank.compute();
    towline_experts_call combine = rank.combine_call();
    void* own = nullptr;
    ASSERT_EQ(table().results(rank.member(), group.shape.max_tokens, group.shape.hidden, &own), TOWLINE_OK);
    const uint64_t bytes = group.shape.local * group.shape.places() * 2 * group.shape.hidden;
    std::vector<uint8_t> results(bytes);
    found_platform()->get(results.data(), combine.x, bytes);
    found_platform()->put(own, results.data(), bytes);
    combine.x = own;
    ASSERT_EQ(rank.issue(combine), TOWLINE_OK) << rank.error();
    rank.drain();
    rank.expect_combine(all[rank.number()], group.everyone());
  });
}

// ---- Ranks that are masked, late, or new

// The first group of a token's values is small, and is cast to 10 bits; the second is large, and stays as it is.
TEST(ExpertsCombine, LogFmtCastsWhatIsSmall) {
  Shape shape;
  shape.hidden = 256;
  run_ranks(shape, [](Rank& rank, Group& group) {
    for (uint64_t seed = 1; seed < 5; ++seed) {
      std::vector<Tokens> all = random_all(group.shape, seed);
      for (Tokens& tokens : all)
        for (size_t i = 0; i < tokens.x.size(); ++i)
          if (i % 256 < 128 && tokens.x[i] << 1 != 0)
            tokens.x[i] = static_cast<uint16_t>(tokens.x[i] - 6 * 0x80);
      rank.set(all[rank.number()]);
      towline_experts_call dispatch = rank.dispatch_call();
      ASSERT_EQ(rank.issue(dispatch), TOWLINE_OK) << rank.error();
      rank.drain();
      rank.compute();
      towline_experts_call combine = rank.combine_call();
      combine.format = TOWLINE_EXPERTS_LOGFMT;
      ASSERT_EQ(rank.issue(combine), TOWLINE_OK) << rank.error();
      rank.drain();
      const std::vector<uint16_t> got = rank.combined();
      const std::vector<uint16_t> wanted =
          expected_combine(group.shape, all[rank.number()], group.everyone());
      ASSERT_EQ(got.size(), wanted.size());
      size_t changed = 0;
      for (size_t i = 0; i < got.size(); ++i) {
        if (i % 256 >= 128) {
          ASSERT_EQ(got[i], wanted[i]) << i;
          continue;
        }
        // Two results of at most 0.35, with weights of at most 1.3, are each at most 1 % wrong.
        EXPECT_NEAR(bfloat16(got[i]), bfloat16(wanted[i]), 0.015) << i;
        changed += got[i] != wanted[i] ? 1 : 0;
      }
      EXPECT_TRUE(got.empty() || changed != 0) << "nothing was cast";
      group.meet();
    }
    // One that does not say so, too, is out of step.
    rank.set(random_all(group.shape, 9)[rank.number()]);
    towline_experts_call dispatch = rank.dispatch_call();
    ASSERT_EQ(rank.issue(dispatch), TOWLINE_OK) << rank.error();
    rank.drain();
    towline_experts_call combine = rank.combine_call();
    combine.format = rank.number() == 0 ? TOWLINE_EXPERTS_LOGFMT : TOWLINE_EXPERTS_BFLOAT16;
    ASSERT_EQ(rank.issue(combine), TOWLINE_OK) << rank.error();
    EXPECT_EQ(rank.masks()[1 - rank.number()], 1);
    group.meet();
  });
}

TEST(ExpertsMasks, AMaskedRankIsLeftOutAndTakenInAgain) {
  Shape shape;
  shape.ranks = 3;
  run_ranks(shape, [](Rank& rank, Group& group) {
    rank.round(random_all(group.shape, 1), group.everyone());
    const bool alone = rank.number() == 2;
    // All leave rank 2 out, and it leaves the others out.
    for (uint32_t peer = 0; peer < 3; ++peer)
      if (peer != rank.number() && (alone || peer == 2)) {
        ASSERT_EQ(rank.command(TOWLINE_EXPERTS_MASK, peer), TOWLINE_OK) << rank.error();
      }
    const std::vector<bool> there =
        alone ? std::vector<bool>{false, false, true} : std::vector<bool>{true, true, false};
    for (uint64_t seed = 2; seed < 5; ++seed) rank.round(random_all(group.shape, seed), there);
    const std::vector<int32_t> masks = rank.masks();
    for (uint32_t peer = 0; peer < 3; ++peer) EXPECT_EQ(masks[peer], there[peer] ? 0 : 1);
    group.meet();
    ASSERT_EQ(rank.command(TOWLINE_EXPERTS_CLEAN), TOWLINE_OK) << rank.error();
    for (uint64_t seed = 5; seed < 9; ++seed) rank.round(random_all(group.shape, seed), group.everyone());
    EXPECT_EQ(rank.masks(), (std::vector<int32_t>{0, 0, 0}));
  });
}

// Masked and unmasked between two exchanges, on one side only: nothing was missed.
TEST(ExpertsMasks, AMaskWithoutAnExchangeChangesNothing) {
  run_ranks({}, [](Rank& rank, Group& group) {
    rank.round(random_all(group.shape, 1), group.everyone());
    if (rank.number() == 0) {
      ASSERT_EQ(rank.command(TOWLINE_EXPERTS_MASK, 1), TOWLINE_OK);
      ASSERT_EQ(rank.command(TOWLINE_EXPERTS_UNMASK, 1), TOWLINE_OK);
    }
    for (uint64_t seed = 2; seed < 5; ++seed) rank.round(random_all(group.shape, seed), group.everyone());
  });
}

TEST(ExpertsLate, ARankThatDoesNotComeIsMaskedAndComesBack) {
  Shape shape;
  shape.ranks = 3;
  shape.timeout_ns = kShortNs;
  run_ranks(shape, [](Rank& rank, Group& group) {
    rank.round(random_all(group.shape, 1), group.everyone());
    const bool late = rank.number() == 2;
    group.meet();
    if (!late) {
      const auto began = std::chrono::steady_clock::now();
      for (uint64_t seed = 2; seed < 5; ++seed)
        rank.round(random_all(group.shape, seed), {true, true, false});
      // Its time ran out once, not once for each exchange.
      EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::nanoseconds(5 * kShortNs));
      EXPECT_EQ(rank.masks(), (std::vector<int32_t>{0, 0, 1}));
    }
    group.meet();
    // It finds what they sent before they gave up, and then nothing.
    if (late) {
      const std::vector<Tokens> all = random_all(group.shape, 2);
      rank.set(all[2]);
      towline_experts_call dispatch = rank.dispatch_call();
      ASSERT_EQ(rank.issue(dispatch), TOWLINE_OK) << rank.error();
      rank.drain();
      rank.expect_dispatch(all, group.everyone());
      rank.compute();
      towline_experts_call combine = rank.combine_call();
      ASSERT_EQ(rank.issue(combine), TOWLINE_OK) << rank.error();
      rank.drain();
      rank.expect_combine(all[2], {false, false, true});
      EXPECT_EQ(rank.masks(), (std::vector<int32_t>{1, 1, 0}));
    }
    group.meet();
    ASSERT_EQ(rank.command(TOWLINE_EXPERTS_CLEAN), TOWLINE_OK);
    rank.drain();
    group.meet();
    for (uint64_t seed = 5; seed < 9; ++seed) rank.round(random_all(group.shape, seed), group.everyone());
    EXPECT_EQ(rank.masks(), (std::vector<int32_t>{0, 0, 0}));
  });
}

// Unmasked by one side alone, the two never take tokens of different exchanges for those of one.
TEST(ExpertsLate, AnUnmaskedRankThatDidNotUnmaskStaysOut) {
  Shape shape;
  shape.timeout_ns = kShortNs;
  run_ranks(shape, [](Rank& rank, Group& group) {
    rank.round(random_all(group.shape, 1), group.everyone());
    group.meet();
    if (rank.number() == 0) {
      rank.round(random_all(group.shape, 2), {true, false});
      ASSERT_EQ(rank.command(TOWLINE_EXPERTS_UNMASK, 1), TOWLINE_OK);
      rank.drain();
    }
    group.meet();
    const std::vector<Tokens> all = random_all(group.shape, 3);
    rank.set(all[rank.number()]);
    towline_experts_call call = rank.dispatch_call();
    ASSERT_EQ(rank.issue(call), TOWLINE_OK);
    rank.drain();
    if (rank.number() == 0) {
      rank.expect_dispatch(all, {true, false});
      EXPECT_EQ(rank.masks(), (std::vector<int32_t>{0, 1}));
    }
  });
}

// Ranks that disagree in the shape are masked rather than misread.
TEST(ExpertsLate, AnotherShapeIsMasked) {
  Shape shape;
  shape.hidden = 512;
  run_ranks(shape, [](Rank& rank, Group& group) {
    const std::vector<Tokens> all = random_all(group.shape, 4);
    rank.set(all[rank.number()]);
    towline_experts_call call = rank.dispatch_call();
    call.hidden = rank.number() == 0 ? 512 : 256;
    ASSERT_EQ(rank.issue(call), TOWLINE_OK) << rank.error();
    rank.drain();
    EXPECT_EQ(rank.masks(), (rank.number() == 0 ? std::vector<int32_t>{0, 1} : std::vector<int32_t>{1, 0}));
  });
}

// A rank that returns fewer results than it was sent tokens is not used: what lies in its slots is of another exchange.
TEST(ExpertsLate, MissingResultsAreNotSummed) {
  run_ranks({}, [](Rank& rank, Group& group) {
    const std::vector<Tokens> all =
        routed_all(group.shape, 4, [](uint32_t, uint32_t token, uint32_t k) { return (token + k) % 4; });
    rank.round(all, group.everyone());
    rank.set(all[rank.number()]);
    towline_experts_call dispatch = rank.dispatch_call();
    ASSERT_EQ(rank.issue(dispatch), TOWLINE_OK);
    rank.drain();
    rank.compute();
    towline_experts_call combine = rank.combine_call();
    if (rank.number() == 1) {
      std::vector<int64_t> ranges(uint64_t{group.shape.local} * group.shape.ranks);
      found_platform()->get(ranges.data(), combine.layout_range, ranges.size() * 8);
      ranges[0] -= 1;  // one of rank 0's
      found_platform()->put(combine.layout_range, ranges.data(), ranges.size() * 8);
    }
    ASSERT_EQ(rank.issue(combine), TOWLINE_OK);
    rank.drain();
    if (rank.number() == 0) {
      rank.expect_combine(all[0], {true, false});
      EXPECT_EQ(rank.masks(), (std::vector<int32_t>{0, 1}));
    } else {
      rank.expect_combine(all[1], group.everyone());
    }
  });
}

TEST(ExpertsBarrier, NoRankIsThroughBeforeAllCame) {
  Shape shape;
  shape.ranks = 4;
  std::atomic<int> came{0};
  run_ranks(shape, [&](Rank& rank, Group&) {
    for (int round = 1; round <= 20; ++round) {
      ++came;
      ASSERT_EQ(rank.command(TOWLINE_EXPERTS_BARRIER), TOWLINE_OK) << rank.error();
      rank.drain();
      EXPECT_GE(came.load(), 4 * round);
    }
  });
}

TEST(ExpertsBarrier, ARankThatDoesNotComeIsMasked) {
  Shape shape;
  shape.timeout_ns = kShortNs;
  run_ranks(shape, [&](Rank& rank, Group& group) {
    if (rank.number() == 0) {
      ASSERT_EQ(rank.command(TOWLINE_EXPERTS_BARRIER), TOWLINE_OK);
      EXPECT_EQ(rank.masks(), (std::vector<int32_t>{0, 1}));
    }
    group.meet();
  });
}

// ---- Ranks of other hosts

TEST(ExpertsHosts, ARankIsOpenToThemOnceItWasAsked) {
  run_ranks({}, [](Rank& rank, Group& group) {
    Rank later(*found_platform(), group.shape, rank.number(), false);
    if (ranks_a_host() == 0) {
      EXPECT_EQ(table().open_to_hosts(later.member()), TOWLINE_UNSUPPORTED);
      EXPECT_NE(later.error().find("without Towline's functions"), std::string::npos) << later.error();
      return;
    }
    if (ranks_a_host() != 1) return;
    const uint32_t peer = 1 - rank.number();
    group.descriptions[rank.number()] = later.describe();
    group.meet();
    EXPECT_EQ(later.connect(peer, group.descriptions[peer]), TOWLINE_AGAIN);
    EXPECT_NE(later.error().find("not open to other hosts yet"), std::string::npos) << later.error();
    ASSERT_EQ(table().open_to_hosts(later.member()), TOWLINE_OK) << later.error();
    ASSERT_EQ(table().open_to_hosts(later.member()), TOWLINE_OK) << later.error();
    EXPECT_EQ(later.connect(peer, group.descriptions[peer]), TOWLINE_AGAIN)
        << "the other side's is the old one";
    group.meet();
    group.descriptions[rank.number()] = later.describe();
    group.meet();
    ASSERT_EQ(later.connect(peer, group.descriptions[peer]), TOWLINE_OK) << later.error();
    ASSERT_EQ(later.command(TOWLINE_EXPERTS_UNMASK, peer), TOWLINE_OK) << later.error();
    for (uint64_t seed = 1; seed < 4; ++seed) later.round(random_all(group.shape, seed), group.everyone());
    group.meet();
  });
}

// ---- What is refused

TEST(ExpertsRefusals, ConnectionsThatDoNotFit) {
  Shape shape;
  shape.ranks = 2;
  run_ranks(shape, [](Rank& rank, Group& group) {
    if (rank.number() != 0) return;
    EXPECT_EQ(rank.connect(1, group.descriptions[1]), TOWLINE_ALREADY_EXISTS);
    EXPECT_EQ(rank.connect(0, group.descriptions[0]), TOWLINE_INVALID_ARGUMENT);
    EXPECT_EQ(rank.connect(7, group.descriptions[1]), TOWLINE_INVALID_ARGUMENT);
    EXPECT_EQ(rank.disconnect(0), TOWLINE_INVALID_ARGUMENT);
    Shape larger = group.shape;
    larger.max_tokens *= 2;
    Rank other(*found_platform(), larger, 0);
    EXPECT_EQ(other.connect(1, group.descriptions[1]), TOWLINE_MISMATCH);
    EXPECT_NE(other.error().find("give all ranks the same sizes"), std::string::npos) << other.error();
    Rank same(*found_platform(), group.shape, 0);
    EXPECT_EQ(same.command(TOWLINE_EXPERTS_UNMASK, 1), TOWLINE_INVALID_ARGUMENT);
    EXPECT_EQ(same.command(TOWLINE_EXPERTS_MASK, 0), TOWLINE_INVALID_ARGUMENT);
    EXPECT_EQ(same.connect(1, group.descriptions[0]), TOWLINE_INVALID_ARGUMENT);
    EXPECT_EQ(same.connect(1, {}), TOWLINE_MISMATCH);
    std::vector<uint8_t> cut = group.descriptions[1];
    cut.pop_back();
    EXPECT_EQ(same.connect(1, cut), TOWLINE_MISMATCH);
    std::vector<uint8_t> gone;
    {
      Rank leaves(*found_platform(), group.shape, 1);
      gone = leaves.describe();
    }
    EXPECT_EQ(same.connect(1, gone), ranks_a_host() == 1 ? TOWLINE_UNREACHABLE : TOWLINE_PEER_LOST);
  });
}

TEST(ExpertsRefusals, CallsThatDoNotFit) {
  Shape shape;
  shape.ranks = 1;
  shape.hidden = 512;
  run_ranks(shape, [](Rank& rank, Group& group) {
    rank.set(routed_all(group.shape, 3, [](auto...) { return 0; })[0]);
    const auto refused = [&](const std::function<void(towline_experts_call&)>& change, bool combine = false) {
      towline_experts_call call = combine ? rank.combine_call() : rank.dispatch_call();
      change(call);
      return rank.issue(call);
    };
    using Call = towline_experts_call;
    EXPECT_EQ(refused([](Call&) {}), TOWLINE_OK) << rank.error();
    EXPECT_EQ(refused([](Call& call) { call.hidden = 130; }), TOWLINE_INVALID_ARGUMENT);
    EXPECT_EQ(refused([](Call& call) {
                call.hidden = 640;
                call.format = TOWLINE_EXPERTS_FP8;
              }),
              TOWLINE_INVALID_ARGUMENT);
    EXPECT_EQ(refused([](Call& call) { call.topk = 33; }), TOWLINE_INVALID_ARGUMENT);
    EXPECT_EQ(refused([](Call& call) { call.ranks = 2; }), TOWLINE_INVALID_ARGUMENT);
    EXPECT_EQ(refused([](Call& call) { call.tokens = call.max_tokens + 1; }), TOWLINE_INVALID_ARGUMENT);
    EXPECT_EQ(refused([](Call& call) { call.max_tokens *= 2; }), TOWLINE_INVALID_ARGUMENT);
    EXPECT_NE(rank.error().find("open it with more"), std::string::npos) << rank.error();
    EXPECT_EQ(refused([](Call& call) { call.format = TOWLINE_EXPERTS_UE8M0; }), TOWLINE_INVALID_ARGUMENT);
    EXPECT_EQ(refused([](Call& call) { call.format = TOWLINE_EXPERTS_FP8; }), TOWLINE_INVALID_ARGUMENT);
    EXPECT_NE(rank.error().find("scales is null"), std::string::npos) << rank.error();
    EXPECT_EQ(refused([](Call& call) { call.x = static_cast<const uint8_t*>(call.x) + 2; }),
              TOWLINE_INVALID_ARGUMENT);
    EXPECT_EQ(refused([](Call& call) { call.format = TOWLINE_EXPERTS_FP8; }, true), TOWLINE_UNSUPPORTED);
    EXPECT_EQ(refused([](Call& call) { call.format = TOWLINE_EXPERTS_LOGFMT; }), TOWLINE_INVALID_ARGUMENT);
    EXPECT_EQ(refused([](Call& call) { call.struct_size = 8; }), TOWLINE_INVALID_ARGUMENT);
    EXPECT_EQ(refused([](Call& call) { call.op = 99; }), TOWLINE_INVALID_ARGUMENT);
    // The member is as it was.
    rank.round(random_all(group.shape, 6), group.everyone());
  });
}

}  // namespace
}  // namespace towline::gpu_test::experts
