#include "gpu/collectives_suite.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

namespace towline::gpu_test {
namespace {

struct Setup {
  const char* name;
  int size;
  const char* config;
};
class CollectivesOnGpu : public testing::TestWithParam<Setup> {
 protected:
  Ranks ranks() const {
    Ranks made;
    made.size = GetParam().size;
    made.config = GetParam().config;
    return made;
  }
};

TEST_P(CollectivesOnGpu, EveryOperationGivesWhatTheCpuGives) {
  run_on_gpus(ranks(), true, [](Rank& rank) {
    void* const stream = rank.gpu.make_stream();
    for (const uint32_t op : kOperations) {
      for (const uint64_t count : {0, 1, 7, 1000, 5001, 70001}) {
        if (testing::Test::HasFailure()) break;
        Try what;
        what.op = op;
        what.count = count;
        what.root = static_cast<int>(count) % rank.size;
        try_one(rank, what);
        what.stream = stream;
        what.shift = 4;
        try_one(rank, what);
      }
    }
    rank.gpu.free_stream(stream);
  });
}

TEST_P(CollectivesOnGpu, EveryTypeAndReductionGivesTheCpusBits) {
  run_on_gpus(ranks(), true, [](Rank& rank) {
    for (uint32_t datatype = 0; datatype <= TOWLINE_BOOL; ++datatype) {
      for (uint32_t reduction = 0; reduction <= TOWLINE_REDUCE_PREMUL_SUM; ++reduction) {
        if (!can(datatype, reduction) || testing::Test::HasFailure()) continue;
        for (const uint64_t count : {33, 6007}) {
          Try what;
          what.datatype = datatype;
          what.reduction = reduction;
          what.count = count;
          what.shift = count == 33 ? 1 : 0;
          try_one(rank, what);
          what.count = 40000;
          what.in_place = true;
          if (count == 33) try_one(rank, what);
          what.in_place = false;
          what.op = TOWLINE_COLLECTIVE_REDUCE_SCATTER;
          what.count = count;
          try_one(rank, what);
        }
      }
    }
  });
}

TEST_P(CollectivesOnGpu, AnyAlignmentDoes) {
  run_on_gpus(ranks(), true, [](Rank& rank) {
    for (const uint32_t op : kOperations) {
      for (const uint64_t shift : {1, 2, 8, 12}) {
        if (testing::Test::HasFailure()) break;
        Try what;
        what.op = op;
        what.datatype = reduces(op) ? TOWLINE_BFLOAT16 : TOWLINE_INT64;
        what.count = 2049;
        what.shift = shift + static_cast<uint64_t>(rank.rank) % 2;  // not the same on every rank
        try_one(rank, what);
      }
    }
  });
}

TEST_P(CollectivesOnGpu, GraphsReplayOperations) {
  run_on_gpus(ranks(), false, [](Rank& rank) {
    constexpr uint64_t kSmall = 1024;
    constexpr uint64_t kLarge = 100000;
    void* const stream = rank.gpu.make_stream();
    Buffer small(rank.gpu, kSmall * 4);
    Buffer large(rank.gpu, kLarge * 4);
    small.put(std::vector<uint8_t>(kSmall * 4));
    large.put(std::vector<uint8_t>(kLarge * 4));
    std::vector<float> ones(kSmall, 1.0f);
    rank.gpu.put(small.at(), ones.data(), kSmall * 4);
    ones.resize(kLarge, 1.0f);
    rank.gpu.put(large.at(), ones.data(), kLarge * 4);
    rank.gpu.record(stream);
    for (const auto& [buffer, count] : {std::pair{&small, kSmall}, std::pair{&large, kLarge}}) {
      towline_collective_t call = {};
      call.struct_size = sizeof call;
      call.op = TOWLINE_COLLECTIVE_ALL_REDUCE;
      call.count = count;
      call.input = call.output = buffer->at();
      EXPECT_EQ(towline_collective_issue(rank.on_gpu, &call, nullptr, stream), TOWLINE_OK)
          << towline_last_error();
    }
    void* const graph = rank.gpu.end_record(stream);
    meet(rank);
    float expected = 1;
    for (int i = 0; i < 3; ++i) {
      rank.gpu.replay(graph, stream);
      expected *= static_cast<float>(rank.size);
    }
    rank.gpu.drain(stream);
    std::vector<float> got(kLarge);
    rank.gpu.get(got.data(), small.at(), kSmall * 4);
    EXPECT_EQ(std::count(got.begin(), got.begin() + kSmall, expected), static_cast<long>(kSmall)) << got[0];
    rank.gpu.get(got.data(), large.at(), kLarge * 4);
    EXPECT_EQ(std::count(got.begin(), got.end(), expected), static_cast<long>(kLarge)) << got[0];
    EXPECT_EQ(communicator_error(rank.on_gpu), "");
    rank.gpu.free_graph(graph);
    rank.gpu.free_stream(stream);
  });
}

TEST_P(CollectivesOnGpu, MessagesGoRoundARing) {
  run_on_gpus(ranks(), false, [](Rank& rank) {
    if (rank.size == 1) return;
    for (const uint64_t count : {0, 1, 5000, 300001}) {
      const std::vector<uint8_t> mine = values(TOWLINE_INT32, rank.rank, count, 5);
      Buffer out(rank.gpu, mine.size(), 4);
      Buffer in(rank.gpu, mine.size());
      out.put(mine);
      towline_work_t* sending = nullptr;
      towline_work_t* receiving = nullptr;
      const int next = (rank.rank + 1) % rank.size;
      const int before = (rank.rank + rank.size - 1) % rank.size;
      ASSERT_EQ(towline_send(rank.on_gpu, out.at(), count, TOWLINE_INT32, next, 9, nullptr, &sending),
                TOWLINE_OK);
      ASSERT_EQ(towline_recv(rank.on_gpu, in.at(), count, TOWLINE_INT32, before, 9, nullptr, &receiving),
                TOWLINE_OK);
      EXPECT_EQ(towline_work_wait(receiving, TOWLINE_FOREVER), TOWLINE_OK) << towline_last_error();
      EXPECT_EQ(towline_work_wait(sending, TOWLINE_FOREVER), TOWLINE_OK) << towline_last_error();
      towline_work_release(sending);
      towline_work_release(receiving);
      EXPECT_TRUE(in.get() == values(TOWLINE_INT32, before, count, 5)) << count;
    }
  });
}

#define PUSHED "[tuning.collectives]\ngpu_direct = 0\ngpu_push = 1\n"
INSTANTIATE_TEST_SUITE_P(
    Ranks, CollectivesOnGpu,
    testing::Values(
        Setup{"One", 1, ""}, Setup{"Two", 2, ""}, Setup{"Four", 4, ""}, Setup{"Eight", 8, ""},
        Setup{"ThreeStaged", 3,
              "[tuning.collectives]\ngpu_direct = 0\ngpu_marked_bytes = 0\ngpu_blocks = 3\n"},
        Setup{"EightStaged", 8, "[tuning.collectives]\ngpu_direct = 0\n"},
        // As between GPUs: with few blocks in many rounds, and each way of an all_reduce.
        Setup{"TwoPushed", 2, PUSHED "gpu_marked_bytes = 0\ngpu_blocks = 3\n"},
        Setup{"TwoInTwoShots", 2, PUSHED "gpu_marked_bytes = 0\ngpu_two_shot_bytes = 0\ngpu_blocks = 1\n"},
        Setup{"ThreePushed", 3, PUSHED "gpu_marked_bytes = 0\ngpu_blocks = 2\n"},
        Setup{"ThreeInOneShot", 3,
              PUSHED "gpu_marked_bytes = 0\ngpu_two_shot_bytes = 1000000000\ngpu_blocks = 5\n"},
        Setup{"FourMarkedInTwoShots", 4, PUSHED "gpu_marked_bytes = 128\ngpu_marked_two_bytes = 1000000\n"},
        Setup{"EightPushed", 8, PUSHED}),
    [](const auto& setup) { return setup.param.name; });

// ---- Bad days

towline_collective_t reduce_call(Buffer& buffer, uint64_t count) {
  towline_collective_t call = {};
  call.struct_size = sizeof call;
  call.op = TOWLINE_COLLECTIVE_ALL_REDUCE;
  call.count = count;
  call.input = call.output = buffer.at();
  return call;
}

TEST(CollectivesOnGpuFail, ARankThatNeverComesIsNamedByAllOthers) {
  for (const uint64_t count : {100, 1000000}) {
    run_on_gpus({3, "", 60'000'000'000}, false, [&](Rank& rank) {
      if (rank.rank == 2) {
        // It waits, at no operation, until the others have failed.
        std::string text;
        while ((text = communicator_error(rank.on_gpu)).empty()) std::this_thread::yield();
        EXPECT_NE(text.find("rank 2 did not come"), std::string::npos) << text;
        return;
      }
      Buffer buffer(rank.gpu, count * 4);
      const towline_collective_t call = reduce_call(buffer, count);
      towline_collective_options_t options = {};
      options.struct_size = sizeof options;
      options.timeout_ns = 300'000'000;
      EXPECT_EQ(towline_collective(rank.on_gpu, &call, &options, nullptr), TOWLINE_TIMED_OUT);
      const std::string text = communicator_error(rank.on_gpu);
      EXPECT_NE(text.find("all_reduce"), std::string::npos) << text;
      EXPECT_NE(text.find("rank 2 did not come"), std::string::npos) << text;
    });
  }
}

TEST(CollectivesOnGpuFail, RanksThatDisagreeAreNamedWithTheirOperations) {
  struct Pair {
    uint64_t counts[2];
    uint32_t datatypes[2];
    uint32_t ops[2];
  };
  const Pair pairs[] = {
      {{64, 65}, {0, 0}, {1, 1}},
      {{64, 64}, {TOWLINE_FLOAT32, TOWLINE_INT32}, {1, 1}},
      {{64, 100000}, {0, 0}, {1, 1}},
      {{64, 64}, {0, 0}, {TOWLINE_COLLECTIVE_ALL_REDUCE, TOWLINE_COLLECTIVE_BROADCAST}},
      {{100000, 100000}, {0, 0}, {TOWLINE_COLLECTIVE_ALL_REDUCE, TOWLINE_COLLECTIVE_BARRIER}}};
  for (const Pair& pair : pairs) {
    run_on_gpus({2, "", 60'000'000'000}, false, [&](Rank& rank) {
      const auto mine = static_cast<size_t>(rank.rank);
      Buffer buffer(rank.gpu, 400000);
      towline_collective_t call = reduce_call(buffer, pair.counts[mine]);
      call.datatype = pair.datatypes[mine];
      call.op = pair.ops[mine];
      EXPECT_EQ(towline_collective(rank.on_gpu, &call, nullptr, nullptr), TOWLINE_MISMATCH)
          << communicator_error(rank.on_gpu);
      const std::string text = communicator_error(rank.on_gpu);
      EXPECT_NE(text.find("ranks disagree: rank 0 is at all_reduce"), std::string::npos) << text;
    });
  }
}

TEST(CollectivesOnGpuFail, AnAbortEndsWaitingRanks) {
  run_on_gpus({3, "", 60'000'000'000}, false, [](Rank& rank) {
    Buffer buffer(rank.gpu, 4000);
    if (rank.rank == 1) {
      EXPECT_EQ(towline_communicator_abort(rank.on_gpu, "enough"), TOWLINE_OK);
      return;
    }
    const towline_collective_t call = reduce_call(buffer, 1000);
    EXPECT_EQ(towline_collective(rank.on_gpu, &call, nullptr, nullptr), TOWLINE_CANCELLED);
    const std::string text = communicator_error(rank.on_gpu);
    EXPECT_NE(text.find("rank 1 aborted"), std::string::npos) << text;
  });
}

TEST(CollectivesOnGpuFail, ARankThatLeftIsNamed) {
  run_on_gpus({2, "", 60'000'000'000}, false, [](Rank& rank) {
    if (rank.rank == 1) return;
    Buffer buffer(rank.gpu, 4000);
    const towline_collective_t call = reduce_call(buffer, 1000);
    EXPECT_EQ(towline_collective(rank.on_gpu, &call, nullptr, nullptr), TOWLINE_PEER_LOST);
    const std::string text = communicator_error(rank.on_gpu);
    EXPECT_NE(text.find("rank 1 has left"), std::string::npos) << text;
  });
}

TEST(CollectivesOnGpuFail, PartsThatDoNotFitAreAMismatch) {
  for (const char* config : {"", "[tuning.collectives]\ngpu_direct = 0\n"}) {
    run_on_gpus({2, config, 60'000'000'000}, false, [](Rank& rank) {
      Buffer buffer(rank.gpu, 4000);
      Buffer other(rank.gpu, 4000);
      const uint64_t sent[2][2] = {{10, 20}, {30, 40}};
      const uint64_t expected[2][2] = {{10, 30}, {21, 40}};
      towline_collective_t call = {};
      call.struct_size = sizeof call;
      call.op = TOWLINE_COLLECTIVE_ALL_TO_ALL_V;
      call.input = buffer.at();
      call.output = other.at();
      call.input_counts = sent[rank.rank];
      call.output_counts = expected[rank.rank];
      EXPECT_EQ(towline_collective(rank.on_gpu, &call, nullptr, nullptr), TOWLINE_MISMATCH);
      const std::string text = communicator_error(rank.on_gpu);
      EXPECT_NE(text.find("rank 0 sends 80 bytes to rank 1, which expects 84"), std::string::npos) << text;
    });
  }
}

TEST(CollectivesOnGpuFail, BrokenCommunicatorsRefuseAndTheGpuStaysUsable) {
  run_on_gpus({2, "", 60'000'000'000}, false, [](Rank& rank) {
    void* const stream = rank.gpu.make_stream();
    Buffer buffer(rank.gpu, 4000);
    const towline_collective_t call = reduce_call(buffer, 1000);
    if (rank.rank == 0) {
      EXPECT_EQ(towline_communicator_abort(rank.on_gpu, nullptr), TOWLINE_OK);
    }
    while (communicator_error(rank.on_gpu).empty()) std::this_thread::yield();
    EXPECT_EQ(towline_collective_issue(rank.on_gpu, &call, nullptr, stream), TOWLINE_CANCELLED);
    rank.gpu.drain(stream);
    rank.gpu.free_stream(stream);
  });
  run_on_gpus({2, "", 60'000'000'000}, true, [](Rank& rank) { try_one(rank, {}); });
}

}  // namespace
}  // namespace towline::gpu_test
