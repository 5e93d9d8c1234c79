#include "gpu/collectives_suite.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <thread>
#include <utility>

#include "collectives/small_floats.h"

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

// A GPU has instructions for what a processor does in several.
template <class Format>
void expect_every_value(Rank& rank, uint32_t datatype) {
  constexpr uint64_t kCount = 1 << 16;
  std::vector<uint8_t> all(kCount * 2);
  for (uint64_t i = 0; i < kCount; ++i) {
    all[2 * i] = static_cast<uint8_t>(i);
    all[2 * i + 1] = static_cast<uint8_t>(i >> 8);
  }
  for (const uint32_t reduction : {TOWLINE_REDUCE_MAX, TOWLINE_REDUCE_SUM}) {
    Buffer buffer(rank.gpu, all.size());
    buffer.put(all);
    towline_collective_t call = reduce_call(buffer, buffer, kCount);
    call.datatype = datatype;
    call.reduction = reduction;
    ASSERT_EQ(towline_collective(rank.on_gpu, &call, nullptr, nullptr), TOWLINE_OK) << towline_last_error();
    const std::vector<uint8_t> got = buffer.get();
    for (uint64_t i = 0; i < kCount; ++i) {
      const float value = Format::widen(static_cast<uint16_t>(i));
      float sum = value;
      for (int other = 1; reduction == TOWLINE_REDUCE_SUM && other < rank.size; ++other) sum += value;
      const uint16_t expected = Format::narrow(sum);
      const auto bits = static_cast<uint16_t>(got[2 * i] | got[2 * i + 1] << 8);
      // What a sum makes of a NaN's lower bits is the processor's.
      if (reduction == TOWLINE_REDUCE_SUM && std::isnan(sum) && std::isnan(Format::widen(bits))) continue;
      ASSERT_EQ(bits, expected) << towline_datatype_name(datatype) << " " << i << ", reduction " << reduction;
    }
  }
}
TEST_P(CollectivesOnGpu, EveryValueOf16BitsIsWhatTheCpuMakesOfIt) {
  run_on_gpus(ranks(), false, [](Rank& rank) {
    expect_every_value<collectives::Float16>(rank, TOWLINE_FLOAT16);
    expect_every_value<collectives::Bfloat16>(rank, TOWLINE_BFLOAT16);
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
        // Sums of sizes that 8 divides have kernels of their own, on the ranks whose data starts at multiples of 8.
        what.count = shift == 8 ? 2048 : 2049;
        what.shift = shift + static_cast<uint64_t>(rank.rank) % 2;  // not the same on every rank
        try_one(rank, what);
      }
    }
  });
}

// The output of a reduce_scatter may be this rank's own part of its input.
TEST_P(CollectivesOnGpu, ReduceScatterWorksInPlace) {
  run_on_gpus(ranks(), true, [](Rank& rank) {
    for (const uint32_t datatype : {TOWLINE_FLOAT32, TOWLINE_BFLOAT16, TOWLINE_UINT8}) {
      for (const uint64_t count : {1, 33, 5001, 70001}) {
        const uint64_t part = count * towline_datatype_bytes(datatype);
        const auto size = static_cast<uint64_t>(rank.size);
        std::vector<uint8_t> input = values(datatype, rank.rank, count * size, 3);
        std::vector<uint8_t> expected(part);
        Buffer buffer(rank.gpu, input.size(), count == 33 ? 3 : 0);
        buffer.put(input);
        towline_collective_t call = {};
        call.struct_size = sizeof call;
        call.op = TOWLINE_COLLECTIVE_REDUCE_SCATTER;
        call.datatype = datatype;
        call.count = count;
        call.input = input.data();
        call.output = expected.data();
        ASSERT_EQ(towline_collective(rank.on_cpu, &call, nullptr, nullptr), TOWLINE_OK);
        const auto begin = static_cast<uint64_t>(rank.rank) * part;
        call.input = buffer.at();
        call.output = static_cast<uint8_t*>(buffer.at()) + begin;
        ASSERT_EQ(towline_collective(rank.on_gpu, &call, nullptr, nullptr), TOWLINE_OK)
            << towline_last_error();
        std::copy(expected.begin(), expected.end(), input.begin() + static_cast<long>(begin));
        EXPECT_TRUE(buffer.get() == input) << count << ' ' << towline_datatype_name(datatype);
      }
    }
  });
}

// Ranks one behind the other by an operation, with all slots of marked stores in use, again and again.
TEST_P(CollectivesOnGpu, PartsInARowKeepApart) {
  run_on_gpus(ranks(), false, [](Rank& rank) {
    constexpr uint64_t kCount = 2000;
    constexpr uint32_t kTurns = 12;  // more than there are sets of slots
    const auto size = static_cast<uint64_t>(rank.size);
    void* const stream = rank.gpu.make_stream();
    const std::vector<uint8_t> input = values(TOWLINE_INT32, rank.rank, kCount * size, 1);
    Buffer in(rank.gpu, input.size());
    in.put(input);
    std::vector<std::unique_ptr<Buffer>> results;
    for (uint32_t turn = 0; turn < kTurns; ++turn)
      results.push_back(std::make_unique<Buffer>(rank.gpu, input.size()));
    meet(rank);
    for (uint32_t turn = 0; turn < kTurns; ++turn) {
      towline_collective_t call = {};
      call.struct_size = sizeof call;
      call.op = turn % 3 == 1 ? TOWLINE_COLLECTIVE_REDUCE_SCATTER : TOWLINE_COLLECTIVE_ALL_TO_ALL;
      call.datatype = TOWLINE_INT32;
      call.count = kCount;
      call.input = in.at();
      call.output = results[turn]->at();
      ASSERT_EQ(towline_collective_issue(rank.on_gpu, &call, nullptr, stream), TOWLINE_OK);
    }
    rank.gpu.drain(stream);
    EXPECT_EQ(communicator_error(rank.on_gpu), "");
    std::vector<std::vector<int32_t>> parts;  // of every rank, for this one
    for (int peer = 0; peer < rank.size; ++peer) {
      const std::vector<uint8_t> theirs = values(TOWLINE_INT32, peer, kCount * size, 1);
      std::memcpy(parts.emplace_back(kCount).data(),
                  theirs.data() + static_cast<uint64_t>(rank.rank) * kCount * 4, kCount * 4);
    }
    for (uint32_t turn = 0; turn < kTurns; ++turn) {
      const std::vector<uint8_t> bytes = results[turn]->get();
      std::vector<int32_t> got(kCount * size);
      std::memcpy(got.data(), bytes.data(), bytes.size());
      for (uint64_t i = 0; i < kCount; ++i) {
        int32_t sum = 0;
        for (uint64_t peer = 0; peer < size; ++peer) {
          sum += parts[peer][i];
          if (turn % 3 == 1) continue;
          ASSERT_EQ(got[peer * kCount + i], parts[peer][i]) << turn << ' ' << i;
        }
        if (turn % 3 != 1) continue;
        ASSERT_EQ(got[i], sum) << turn << ' ' << i;
      }
    }
    rank.gpu.free_stream(stream);
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

// Nobody waits for them, the graph goes while they run, and other operations follow.
TEST_P(CollectivesOnGpu, GraphsReplayPartsOfNoLength) {
  run_on_gpus(ranks(), false, [](Rank& rank) {
    void* const stream = rank.gpu.make_stream();
    Buffer buffer(rank.gpu, 4096);
    buffer.put(std::vector<uint8_t>(4096));
    const std::vector<uint64_t> none(static_cast<size_t>(rank.size));
    towline_collective_t empty = {};
    empty.struct_size = sizeof empty;
    empty.op = TOWLINE_COLLECTIVE_ALL_TO_ALL_V;
    empty.input_counts = empty.output_counts = none.data();
    const towline_collective_t sum = reduce_call(buffer, buffer, 1024);
    for (int round = 0; round < 3; ++round) {
      rank.gpu.record(stream);
      EXPECT_EQ(towline_collective_issue(rank.on_gpu, &empty, nullptr, stream), TOWLINE_OK)
          << towline_last_error();
      void* const graph = rank.gpu.end_record(stream);
      meet(rank);
      for (int i = 0; i < 8; ++i) rank.gpu.replay(graph, stream);
      rank.gpu.free_graph(graph);
      EXPECT_EQ(towline_collective_issue(rank.on_gpu, &empty, nullptr, stream), TOWLINE_OK);
      EXPECT_EQ(towline_collective_issue(rank.on_gpu, &sum, nullptr, stream), TOWLINE_OK);
      meet(rank);
    }
    rank.gpu.drain(stream);
    EXPECT_EQ(communicator_error(rank.on_gpu), "");
    rank.gpu.free_stream(stream);
  });
}

// Replays that are still to run use the communicator's memory.
TEST_P(CollectivesOnGpu, ACommunicatorEndsAfterReplaysOfItsGraphs) {
  run_on_gpus(ranks(), false, [](Rank& rank) {
    constexpr uint64_t kCount = 100000;
    void* const stream = rank.gpu.make_stream();
    Buffer buffer(rank.gpu, kCount * 4);
    std::vector<float> values(kCount, 1.0f);
    rank.gpu.put(buffer.at(), values.data(), kCount * 4);
    rank.gpu.record(stream);
    const towline_collective_t call = reduce_call(buffer, buffer, kCount);
    EXPECT_EQ(towline_collective_issue(rank.on_gpu, &call, nullptr, stream), TOWLINE_OK)
        << towline_last_error();
    void* const graph = rank.gpu.end_record(stream);
    meet(rank);
    float expected = 1;
    for (int i = 0; i < 6; ++i) {
      rank.gpu.replay(graph, stream);
      expected *= static_cast<float>(rank.size);
    }
    towline_communicator_destroy(std::exchange(rank.on_gpu, nullptr));
    rank.gpu.drain(stream);
    rank.gpu.get(values.data(), buffer.at(), kCount * 4);
    EXPECT_EQ(std::count(values.begin(), values.end(), expected), static_cast<long>(kCount)) << values[0];
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
#define LINES "gpu_lines = 1\n"
#define NO_MARKS "gpu_marked_bytes = 0\ngpu_marked_parts_bytes = 0\ngpu_marked_two_bytes = 0\n"
INSTANTIATE_TEST_SUITE_P(
    Ranks, CollectivesOnGpu,
    testing::Values(
        Setup{"One", 1, ""}, Setup{"Two", 2, ""}, Setup{"Four", 4, ""}, Setup{"Eight", 8, ""},
        Setup{"ThreeStaged", 3, "[tuning.collectives]\ngpu_direct = 0\n" NO_MARKS "gpu_blocks = 3\n"},
        Setup{"EightStaged", 8, "[tuning.collectives]\ngpu_direct = 0\n"},
        // As between GPUs: with few blocks in many rounds, and each way of an all_reduce.
        Setup{"TwoPushed", 2, PUSHED NO_MARKS "gpu_blocks = 3\n"},
        Setup{"TwoInTwoShots", 2, PUSHED NO_MARKS "gpu_two_shot_bytes = 0\ngpu_blocks = 1\n"},
        Setup{"ThreePushed", 3, PUSHED NO_MARKS "gpu_blocks = 2\n"},
        Setup{"ThreeInOneShot", 3, PUSHED NO_MARKS "gpu_two_shot_bytes = 1000000000\ngpu_blocks = 5\n"},
        // Of sums in two shots.
        Setup{"ThreeInTwoMarkedShots", 3, "[tuning.collectives]\ngpu_marked_bytes = 128\n"},
        Setup{"FiveInTwoMarkedShots", 5, "[tuning.collectives]\ngpu_marked_bytes = 128\n"},
        Setup{"EightInTwoMarkedShots", 8, "[tuning.collectives]\ngpu_marked_bytes = 128\n"},
        Setup{"FourMarkedInTwoShots", 4, PUSHED "gpu_marked_bytes = 128\ngpu_marked_two_bytes = 1000000\n"},
        // Parts of every size that has room go with marks, in few blocks and in many.
        Setup{"TwoMarkedParts", 2, PUSHED "gpu_marked_parts_bytes = 500000\n"},
        Setup{"ThreeMarkedParts", 3, PUSHED "gpu_marked_parts_bytes = 500000\n"},
        Setup{"FourMarkedPartsOfOneBlock", 4, PUSHED "gpu_marked_parts_bytes = 4096\ngpu_blocks = 1\n"},
        Setup{"EightMarkedParts", 8, PUSHED "gpu_marked_parts_bytes = 500000\n"},
        // The same in lines.
        Setup{"TwoInLines", 2, PUSHED LINES "gpu_marked_bytes = 900000\ngpu_marked_parts_bytes = 900000\n"},
        Setup{"ThreeInLines", 3, PUSHED LINES "gpu_marked_bytes = 500000\ngpu_marked_parts_bytes = 500000\n"},
        Setup{"FourInLinesInTwoShots", 4,
              PUSHED LINES "gpu_marked_bytes = 128\ngpu_marked_two_bytes = 2000000\n"},
        Setup{"FourInLinesOfOneBlock", 4, PUSHED LINES "gpu_blocks = 1\n"},
        Setup{"EightInLines", 8, PUSHED LINES "gpu_marked_two_bytes = 1000000\n"},
        Setup{"EightPushed", 8, PUSHED}),
    [](const auto& setup) { return setup.param.name; });

// ---- Bad days

TEST(CollectivesOnGpuFail, ARankThatNeverComesIsNamedByAllOthers) {
  // 2000 and 40000: of the model, and of a GPU, in two shots.
  for (const uint64_t count : {100, 2000, 40000, 1000000}) {
    run_on_gpus({3, "", 60'000'000'000}, false, [&](Rank& rank) {
      if (rank.rank == 2) {
        // It waits, at no operation, until the others have failed.
        std::string text;
        while ((text = communicator_error(rank.on_gpu)).empty()) std::this_thread::yield();
        EXPECT_NE(text.find("rank 2 did not come"), std::string::npos) << text;
        return;
      }
      Buffer buffer(rank.gpu, count * 4);
      const towline_collective_t call = reduce_call(buffer, buffer, count);
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

// Who has waited for the stream must not use what a failed operation left.
TEST(CollectivesOnGpuFail, AFailureIsToldAsSoonAsTheStreamHasEnded) {
  for (int turn = 0; turn < 5; ++turn) {
    run_on_gpus({2, "", 60'000'000'000}, false, [&](Rank& rank) {
      Buffer buffer(rank.gpu, 400);
      void* const stream = rank.gpu.make_stream();
      meet(rank);
      if (rank.rank == 0) {
        const towline_collective_t call = reduce_call(buffer, buffer, 100);
        towline_collective_options_t options = {};
        options.struct_size = sizeof options;
        options.timeout_ns = 50'000'000;
        EXPECT_EQ(towline_collective_issue(rank.on_gpu, &call, &options, stream), TOWLINE_OK);
        rank.gpu.drain(stream);
        EXPECT_EQ(towline_communicator_error(rank.on_gpu, nullptr, 0, nullptr), TOWLINE_TIMED_OUT);
      }
      while (communicator_error(rank.on_gpu).empty()) std::this_thread::yield();
      rank.gpu.free_stream(stream);
    });
  }
}

TEST(CollectivesOnGpu, ARankMayLeaveAsSoonAsItHasItsResult) {
  for (int turn = 0; turn < 40 && !testing::Test::HasFailure(); ++turn) {
    run_on_gpus({3, "", 60'000'000'000}, false, [&](Rank& rank) {
      Buffer buffer(rank.gpu, 400);
      const std::vector<float> ones(100, 1.0f);
      rank.gpu.put(buffer.at(), ones.data(), 400);
      void* const stream = rank.gpu.make_stream();
      const towline_collective_t call = reduce_call(buffer, buffer, 100);
      ASSERT_EQ(towline_collective_issue(rank.on_gpu, &call, nullptr, stream), TOWLINE_OK);
      rank.gpu.drain(stream);
      EXPECT_EQ(communicator_error(rank.on_gpu), "");
      float got = 0;
      rank.gpu.get(&got, buffer.at(), sizeof got);
      EXPECT_EQ(got, 3.0f) << turn;
      rank.gpu.free_stream(stream);
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
      {{64, 64}, {0, 0}, {TOWLINE_COLLECTIVE_ALL_REDUCE, TOWLINE_COLLECTIVE_REDUCE_SCATTER}},
      {{64, 64}, {0, 0}, {TOWLINE_COLLECTIVE_REDUCE_SCATTER, TOWLINE_COLLECTIVE_ALL_TO_ALL}},
      {{100000, 100000}, {0, 0}, {TOWLINE_COLLECTIVE_ALL_REDUCE, TOWLINE_COLLECTIVE_BARRIER}}};
  const char* const lines = PUSHED LINES;
  for (uint32_t i = 0; i < 2 * std::size(pairs); ++i) {
    const Pair& pair = pairs[i / 2];
    run_on_gpus({2, i % 2 == 0 ? "" : lines, 60'000'000'000}, false, [&](Rank& rank) {
      const auto mine = static_cast<size_t>(rank.rank);
      Buffer buffer(rank.gpu, 400000);
      towline_collective_t call = reduce_call(buffer, buffer, pair.counts[mine]);
      call.datatype = pair.datatypes[mine];
      call.op = pair.ops[mine];
      EXPECT_EQ(towline_collective(rank.on_gpu, &call, nullptr, nullptr), TOWLINE_MISMATCH)
          << communicator_error(rank.on_gpu);
      const std::string text = communicator_error(rank.on_gpu);
      const std::string zero =
          std::string("ranks disagree: rank 0 is at ") + towline_collective_op_name(pair.ops[0]);
      EXPECT_NE(text.find(zero), std::string::npos) << text;
      await_others(rank);
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
    const towline_collective_t call = reduce_call(buffer, buffer, 1000);
    EXPECT_EQ(towline_collective(rank.on_gpu, &call, nullptr, nullptr), TOWLINE_CANCELLED);
    const std::string text = communicator_error(rank.on_gpu);
    EXPECT_NE(text.find("rank 1 aborted"), std::string::npos) << text;
  });
}

TEST(CollectivesOnGpuFail, ARankThatLeftIsNamed) {
  run_on_gpus({2, "", 60'000'000'000}, false, [](Rank& rank) {
    if (rank.rank == 1) return;
    Buffer buffer(rank.gpu, 4000);
    const towline_collective_t call = reduce_call(buffer, buffer, 1000);
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
      await_others(rank);
    });
  }
}

TEST(CollectivesOnGpuFail, BrokenCommunicatorsRefuseAndTheGpuStaysUsable) {
  run_on_gpus({2, "", 60'000'000'000}, false, [](Rank& rank) {
    void* const stream = rank.gpu.make_stream();
    Buffer buffer(rank.gpu, 4000);
    const towline_collective_t call = reduce_call(buffer, buffer, 1000);
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
