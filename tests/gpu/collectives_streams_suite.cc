// Collectives beside the application's streams: on streams of the communicator, ordered with the application's by events.
#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "gpu/collectives_suite.h"

namespace towline::gpu_test {
namespace {

constexpr uint64_t kSmall = 1000;   // one store with its mark
constexpr uint64_t kLarge = 90000;  // kernels of many blocks

// The driver hands out eight multiprocessors at a time. The model's GPU has four in all.
uint32_t some_multiprocessors() {
  std::string why_not;
  Platform* const here = platform(why_not);
  if (here == nullptr) return 0;
  here->device().start();
  return here->device().gpus()[0].multiprocessors > 8 ? 8 : 2;
}
std::string reserving(uint32_t sms) {
  return fmt::format("[tuning.collectives]\ngpu_reserved_sms = \"{}\"\n", sms);
}

void fill(Rank& rank, Buffer& buffer, uint64_t count, float value) {
  const std::vector<float> values(count, value);
  rank.gpu.put(buffer.at(), values.data(), count * sizeof(float));
}

// Every element, or the first that differs from the others.
float only_value(Rank& rank, const Buffer& buffer, uint64_t count) {
  std::vector<float> values(count);
  rank.gpu.get(values.data(), buffer.at(), count * sizeof(float));
  const auto differs =
      std::find_if(values.begin(), values.end(), [&](float one) { return one != values[0]; });
  return differs == values.end() ? values[0] : *differs;
}

towline_work_t* beside(Rank& rank, const towline_collective_t& call, void* stream) {
  towline_work_t* work = nullptr;
  EXPECT_EQ(towline_collective_issue_beside(rank.on_gpu, &call, nullptr, stream, &work), TOWLINE_OK)
      << towline_last_error();
  return work;
}

void come_after(towline_work_t* work, void* stream) {
  EXPECT_EQ(towline_work_wait_on(work, stream), TOWLINE_OK) << towline_last_error();
}

struct Besides {
  int size;
  bool reserved;  // operations have multiprocessors of their own
};

class CollectivesBeside : public testing::TestWithParam<Besides> {
 protected:
  static Ranks ranks() {
    Ranks made;
    made.size = GetParam().size;
    if (GetParam().reserved) made.config = reserving(some_multiprocessors());
    return made;
  }
};

TEST_P(CollectivesBeside, OneStartsAfterItsStreamAndTheStreamGoesOnAfterIt) {
  run_on_gpus(ranks(), false, [](Rank& rank) {
    void* const stream = rank.gpu.make_stream();
    const auto size = static_cast<float>(rank.size);
    for (const uint64_t count : {kSmall, kLarge}) {
      Buffer a(rank.gpu, count * 4);
      Buffer b(rank.gpu, count * 4);
      Buffer c(rank.gpu, count * 4);
      fill(rank, a, count, 1);
      meet(rank);
      float expected = 1;
      for (int turn = 0; turn < 20; ++turn) {
        // a to b in the stream, b to c beside it, c to a in the stream again.
        const towline_collective_t first = reduce_call(a, b, count);
        const towline_collective_t second = reduce_call(b, c, count);
        towline_collective_t third = reduce_call(c, a, count);
        third.reduction = TOWLINE_REDUCE_AVG;
        ASSERT_EQ(towline_collective_issue(rank.on_gpu, &first, nullptr, stream), TOWLINE_OK);
        towline_work_t* const work = beside(rank, second, stream);
        come_after(work, stream);
        ASSERT_EQ(towline_collective_issue(rank.on_gpu, &third, nullptr, stream), TOWLINE_OK);
        towline_work_release(work);
        expected *= size * size;  // powers of two, which are exact
      }
      rank.gpu.drain(stream);
      EXPECT_EQ(only_value(rank, a, count), expected);
      EXPECT_EQ(communicator_error(rank.on_gpu), "");
    }
    rank.gpu.free_stream(stream);
  });
}

TEST_P(CollectivesBeside, OperationsKeepTheOrderOfIssueWhicheverStreamTheyAreIn) {
  run_on_gpus(ranks(), false, [](Rank& rank) {
    void* const streams[] = {rank.gpu.make_stream(), rank.gpu.make_stream()};
    Buffer in(rank.gpu, kLarge * 4);
    Buffer out(rank.gpu, kLarge * 4);
    fill(rank, in, kLarge, 2);
    meet(rank);
    std::vector<towline_work_t*> works;
    for (int i = 0; i < 30; ++i) {
      const towline_collective_t call = reduce_call(in, out, i % 3 == 0 ? kSmall : kLarge);
      // Ranks choose streams and ways of their own: only the order has to be the same.
      void* const stream = streams[(i + rank.rank) % 2];
      if ((i + rank.rank) % 3 == 0)
        works.push_back(beside(rank, call, stream));
      else
        ASSERT_EQ(towline_collective_issue(rank.on_gpu, &call, nullptr, stream), TOWLINE_OK);
    }
    for (towline_work_t* const work : works) {
      EXPECT_EQ(towline_work_wait(work, TOWLINE_FOREVER), TOWLINE_OK) << towline_last_error();
      towline_work_release(work);
    }
    for (void* const stream : streams) {
      rank.gpu.drain(stream);
      rank.gpu.free_stream(stream);
    }
    EXPECT_EQ(only_value(rank, out, kLarge), 2 * static_cast<float>(rank.size));
    EXPECT_EQ(communicator_error(rank.on_gpu), "");
  });
}

TEST_P(CollectivesBeside, AWorkEndsWithoutAnybodyWaiting) {
  run_on_gpus(ranks(), false, [](Rank& rank) {
    void* const stream = rank.gpu.make_stream();
    Buffer buffer(rank.gpu, kSmall * 4);
    fill(rank, buffer, kSmall, 1);
    meet(rank);
    towline_work_t* const work = beside(rank, reduce_call(buffer, buffer, kSmall), stream);
    std::atomic<bool> told{false};
    EXPECT_EQ(
        towline_work_on(
            work, TOWLINE_WORK_END,
            [](void* context, towline_work_t*) { *static_cast<std::atomic<bool>*>(context) = true; }, &told),
        TOWLINE_OK);
    while (!told) std::this_thread::yield();
    EXPECT_EQ(towline_work_state(work), uint32_t{TOWLINE_WORK_COMPLETED});
    come_after(work, stream);  // it has ended: nothing to order
    towline_work_release(work);
    rank.gpu.drain(stream);
    rank.gpu.free_stream(stream);
  });
}

TEST_P(CollectivesBeside, GraphsHaveThem) {
  run_on_gpus(ranks(), false, [](Rank& rank) {
    void* const stream = rank.gpu.make_stream();
    Buffer a(rank.gpu, kLarge * 4);
    Buffer b(rank.gpu, kLarge * 4);
    fill(rank, a, kLarge, 1);
    void* const other = rank.gpu.make_stream();
    Buffer c(rank.gpu, kSmall * 4);
    fill(rank, c, kSmall, 1);
    rank.gpu.record(stream);
    towline_work_t* const work = beside(rank, reduce_call(a, b, kLarge), stream);
    // Who looks for the end of one outside of the graph has looked at this one as well.
    towline_work_t* const outside = beside(rank, reduce_call(c, c, kSmall), other);
    EXPECT_EQ(towline_work_wait(outside, TOWLINE_FOREVER), TOWLINE_OK) << towline_last_error();
    towline_work_release(outside);
    EXPECT_EQ(towline_work_state(work), uint32_t{TOWLINE_WORK_IN_PROGRESS});
    // Not yet ordered after the first for the stream, but for the communicator.
    const towline_collective_t second = reduce_call(b, a, kLarge);
    EXPECT_EQ(towline_collective_issue(rank.on_gpu, &second, nullptr, stream), TOWLINE_OK)
        << towline_last_error();
    come_after(work, stream);
    come_after(work, stream);
    void* const graph = rank.gpu.end_record(stream);
    EXPECT_EQ(towline_work_wait(work, TOWLINE_FOREVER), TOWLINE_OK);
    towline_work_release(work);
    meet(rank);
    const auto size = static_cast<float>(rank.size);
    rank.gpu.replay(graph, stream);
    rank.gpu.replay(graph, stream);
    rank.gpu.drain(stream);
    EXPECT_EQ(only_value(rank, a, kLarge), size * size * size * size);
    // Outside of graphs it goes on as before.
    fill(rank, a, kLarge, 3);
    towline_work_t* const after = beside(rank, reduce_call(a, b, kLarge), stream);
    EXPECT_EQ(towline_work_wait(after, TOWLINE_FOREVER), TOWLINE_OK);
    towline_work_release(after);
    EXPECT_EQ(only_value(rank, b, kLarge), 3 * size);
    EXPECT_EQ(communicator_error(rank.on_gpu), "");
    rank.gpu.free_graph(graph);
    rank.gpu.free_stream(other);
    rank.gpu.free_stream(stream);
  });
}

// Everybody sends first, more than what goes without a receiver, from one stream.
TEST_P(CollectivesBeside, SendsFromOneStreamDoNotWaitForOneAnother) {
  if (GetParam().size == 1) return;
  run_on_gpus(ranks(), false, [](Rank& rank) {
    constexpr uint64_t kCount = 400000;
    void* const stream = rank.gpu.make_stream();
    std::vector<std::unique_ptr<Buffer>> buffers;
    std::vector<towline_work_t*> works;
    const auto message = [&](uint32_t op, int peer) {
      towline_collective_t call = {};
      call.struct_size = sizeof call;
      call.op = op;
      call.count = kCount;
      call.root = peer;
      call.input = call.output = buffers.back()->at();
      works.push_back(beside(rank, call, stream));
    };
    for (int i = 1; i < rank.size; ++i) {
      const int peer = (rank.rank + i) % rank.size;
      buffers.push_back(std::make_unique<Buffer>(rank.gpu, kCount * 4));
      fill(rank, *buffers.back(), kCount, static_cast<float>(100 * rank.rank + peer));
      message(TOWLINE_COLLECTIVE_SEND, peer);
    }
    for (int i = 1; i < rank.size; ++i) {
      buffers.push_back(std::make_unique<Buffer>(rank.gpu, kCount * 4));
      message(TOWLINE_COLLECTIVE_RECV, (rank.rank + i) % rank.size);
    }
    for (towline_work_t* const work : works) {
      EXPECT_EQ(towline_work_wait(work, TOWLINE_FOREVER), TOWLINE_OK) << towline_last_error();
      towline_work_release(work);
    }
    for (int i = 1; i < rank.size; ++i)
      EXPECT_EQ(only_value(rank, *buffers[static_cast<size_t>(rank.size + i - 2)], kCount),
                static_cast<float>(100 * ((rank.rank + i) % rank.size) + rank.rank));
    rank.gpu.drain(stream);
    rank.gpu.free_stream(stream);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, CollectivesBeside,
                         testing::Values(Besides{1, false}, Besides{2, false}, Besides{4, false},
                                         Besides{2, true}, Besides{4, true}),
                         [](const auto& test) {
                           return fmt::format("{}{}", test.param.size,
                                              test.param.reserved ? "_reserved" : "");
                         });

TEST(CollectivesReserve, MultiprocessorsLimitAnOperationsBlocks) {
  const uint32_t reserved = some_multiprocessors();
  Ranks ranks;
  ranks.config = reserving(reserved);
  run_on_gpus(ranks, false, [reserved](Rank& rank) {
    const std::string info = communicator_info(rank.on_gpu);
    const uint32_t each = rank.gpu.spread() ? reserved : reserved / 2;
    EXPECT_NE(info.find(fmt::format("\"reserved_sms\":{},", reserved)), std::string::npos) << info;
    EXPECT_NE(info.find("\"none_reserved\":\"\""), std::string::npos) << info;
    EXPECT_NE(info.find(fmt::format("\"max_blocks\":{},", each)), std::string::npos) << info;
  });
}

TEST(CollectivesReserve, WithoutThemTheReasonIsShownAndOperationsRunAsBefore) {
  Ranks ranks;
  ranks.config = "[tuning.collectives]\ngpu_application_sms = \"1000\"\n";
  run_on_gpus(ranks, false, [](Rank& rank) {
    const std::string info = communicator_info(rank.on_gpu);
    EXPECT_NE(info.find("\"reserved_sms\":0,"), std::string::npos) << info;
    EXPECT_NE(info.find("\"none_reserved\":\""), std::string::npos) << info;
    EXPECT_EQ(info.find("\"none_reserved\":\"\""), std::string::npos) << info;
    Buffer buffer(rank.gpu, kSmall * 4);
    fill(rank, buffer, kSmall, 1);
    meet(rank);
    const towline_collective_t call = reduce_call(buffer, buffer, kSmall);
    void* const stream = rank.gpu.make_stream();
    ASSERT_EQ(towline_collective_issue(rank.on_gpu, &call, nullptr, stream), TOWLINE_OK);
    rank.gpu.drain(stream);
    rank.gpu.free_stream(stream);
    EXPECT_EQ(only_value(rank, buffer, kSmall), static_cast<float>(rank.size));
  });
}

TEST(CollectivesBesideFail, TheWorkNamesARankThatNeverComes) {
  run_on_gpus({2, "", 60'000'000'000}, false, [](Rank& rank) {
    if (rank.rank == 1) {
      while (communicator_error(rank.on_gpu).empty()) std::this_thread::yield();
      return;
    }
    void* const stream = rank.gpu.make_stream();
    Buffer buffer(rank.gpu, kSmall * 4);
    towline_collective_options_t options = {};
    options.struct_size = sizeof options;
    options.timeout_ns = 200'000'000;
    const towline_collective_t call = reduce_call(buffer, buffer, kSmall);
    towline_work_t* work = nullptr;
    ASSERT_EQ(towline_collective_issue_beside(rank.on_gpu, &call, &options, stream, &work), TOWLINE_OK);
    come_after(work, stream);
    EXPECT_EQ(towline_work_wait(work, TOWLINE_FOREVER), TOWLINE_TIMED_OUT);
    EXPECT_NE(std::string(towline_work_error(work)).find("rank 1 did not come"), std::string::npos)
        << towline_work_error(work);
    EXPECT_EQ(towline_work_wait_on(work, stream), TOWLINE_TIMED_OUT);
    rank.gpu.drain(stream);  // the stream is not held up
    towline_work_release(work);
    rank.gpu.free_stream(stream);
  });
}

// Kernels that wait for one another are on the GPU together, those of two communicators, too, whatever the order in
// which ranks issue them.
TEST(CollectivesBesideFail, TwoCommunicatorsInOppositeOrdersDoNotDeadlock) {
  MapStore store;
  const auto table = store.table();
  run_on_gpus({4, "", 60'000'000'000}, false, [&](Rank& rank) {
    towline_communicator_t* const second = open_another(rank, table, "second", 60'000'000'000);
    ASSERT_NE(second, nullptr);
    Buffer a(rank.gpu, kLarge * 4);
    Buffer b(rank.gpu, kLarge * 4);
    fill(rank, a, kLarge, 1);
    fill(rank, b, kLarge, 1);
    void* const streams[] = {rank.gpu.make_stream(), rank.gpu.make_stream()};
    for (int turn = 0; turn < 50; ++turn) {
      towline_collective_t call = reduce_call(a, a, kLarge);
      call.reduction = TOWLINE_REDUCE_MAX;
      towline_collective_t other = reduce_call(b, b, kLarge);
      other.reduction = TOWLINE_REDUCE_MAX;
      const bool swapped = (rank.rank + turn) % 2 == 1;
      for (const bool first : {!swapped, swapped})
        EXPECT_EQ(first ? towline_collective_issue(rank.on_gpu, &call, nullptr, streams[0])
                        : towline_collective_issue(second, &other, nullptr, streams[1]),
                  TOWLINE_OK);
    }
    for (void* const stream : streams) {
      rank.gpu.drain(stream);
      rank.gpu.free_stream(stream);
    }
    EXPECT_EQ(communicator_error(rank.on_gpu) + communicator_error(second), "");
    EXPECT_EQ(only_value(rank, a, kLarge), 1);
    towline_communicator_destroy(second);
  });
}

// Small operations and rows have other kernels than large operations. In each turn one rank issues in the other order, so that the GPU meets the
// large kernels of all ranks but one, then the other one's small kernel, then all other small ones, and behind them the large kernel for which the first
// ones wait.
TEST(CollectivesBesideFail, LargeAndSmallOperationsInOppositeOrdersDoNotDeadlock) {
  constexpr uint64_t kMost = 1 << 18;  // as many blocks as there may be
  constexpr uint64_t kWidth = 4096;
  for (const int size : {2, 4, 8}) {
    MapStore store;
    const auto table = store.table();
    run_on_gpus({size, "", 20'000'000'000}, false, [&](Rank& rank) {
      towline_communicator_t* const second = open_another(rank, table, "second", 20'000'000'000);
      ASSERT_NE(second, nullptr);
      Buffer large(rank.gpu, kMost * 4);
      Buffer small(rank.gpu, 2 * kWidth * 4);
      fill(rank, large, kMost, 1);
      fill(rank, small, 2 * kWidth, 1);
      towline_collective_t most = reduce_call(large, large, kMost);
      towline_collective_t few = reduce_call(small, small, 2 * kWidth);
      most.reduction = few.reduction = TOWLINE_REDUCE_MAX;
      towline_collective_norm_t norm = {};
      norm.struct_size = sizeof norm;
      norm.width = kWidth;
      norm.epsilon = 1e-5F;
      norm.input = norm.output = small.at();
      void* const streams[] = {rank.gpu.make_stream(), rank.gpu.make_stream()};
      meet(rank);
      for (const uint64_t rows : {0, 1, 2}) {
        norm.rows = rows;
        for (int turn = 0; turn < 4 * size; ++turn) {
          const bool swapped = rank.rank == turn % size;
          for (const bool first : {!swapped, swapped}) {
            const int32_t issued = first ? towline_collective_issue(rank.on_gpu, &most, nullptr, streams[0])
                                   : rows == 0
                                       ? towline_collective_issue(second, &few, nullptr, streams[1])
                                       : towline_collective_issue_norm(second, &norm, nullptr, streams[1]);
            EXPECT_EQ(issued, TOWLINE_OK) << towline_last_error();
          }
        }
      }
      for (void* const stream : streams) {
        rank.gpu.drain(stream);
        rank.gpu.free_stream(stream);
      }
      EXPECT_EQ(communicator_error(rank.on_gpu) + communicator_error(second), "");
      EXPECT_EQ(only_value(rank, large, kMost), 1);
      EXPECT_NEAR(only_value(rank, small, 2 * kWidth), 1, 1e-3);
      towline_communicator_destroy(second);
    });
  }
}

}  // namespace
}  // namespace towline::gpu_test
