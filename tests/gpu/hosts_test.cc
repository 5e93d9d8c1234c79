// Collectives on GPUs of several hosts, over real GPUs or their model: ranks are threads of this process that count as being
// on different hosts.
#include <fmt/format.h>

#include <array>
#include <atomic>
#include <thread>

#include "gpu/hosts_ranks.h"

namespace towline::gpu_test {
namespace {

struct Shape {
  const char* name;
  std::vector<std::string> hosts;
};

class CollectivesBetweenHosts : public testing::TestWithParam<Shape> {};

// The CPU backend has the same hosts, and rounds at the same places.
TEST_P(CollectivesBetweenHosts, EveryOperationGivesTheBitsOfTheCpu) {
  run_on_gpus(on_hosts(GetParam().hosts), true, [](Rank& rank) {
    void* const stream = rank.gpu.make_stream();
    for (const uint32_t op : kOperations) {
      for (const uint64_t count : {0, 1, 1000, 150001}) {
        for (const bool in_place : {false, true}) {
          if (testing::Test::HasFailure()) break;
          if (in_place && op != TOWLINE_COLLECTIVE_ALL_REDUCE) continue;
          Try what;
          what.op = op;
          what.count = count;
          what.root = static_cast<int>(count) % rank.size;
          what.in_place = in_place;
          try_one(rank, what);
          what.stream = stream;
          try_one(rank, what);
        }
      }
    }
    rank.gpu.free_stream(stream);
  });
}

TEST_P(CollectivesBetweenHosts, EveryTypeAndReductionGivesTheBitsOfTheCpu) {
  run_on_gpus(on_hosts(GetParam().hosts), true, [](Rank& rank) {
    for (uint32_t datatype = TOWLINE_FLOAT32; datatype <= TOWLINE_BOOL; ++datatype) {
      for (uint32_t reduction = TOWLINE_REDUCE_SUM; reduction < TOWLINE_REDUCE_PREMUL_SUM; ++reduction) {
        if (testing::Test::HasFailure()) break;
        if (!can(datatype, reduction)) continue;
        Try what;
        what.datatype = datatype;
        what.reduction = reduction;
        what.count = 3001;
        try_one(rank, what);
        what.op = TOWLINE_COLLECTIVE_REDUCE_SCATTER;
        try_one(rank, what);
        what.op = TOWLINE_COLLECTIVE_REDUCE_SCATTER_V;
        try_one(rank, what);
        what.op = TOWLINE_COLLECTIVE_REDUCE;
        what.root = rank.size - 1;
        try_one(rank, what);
      }
    }
  });
}

// Of 27 hosts, a rank has more messages in all_gather_v and reduce_scatter_v than one hop holds (48).
TEST(CollectivesBetweenManyHosts, WhatOneHopHasNoRoomForGoesInSeveral) {
  std::string why_not;
  Platform* const gpu = platform(why_not);
  if (gpu == nullptr) GTEST_SKIP() << why_not;
  // Ranks of several hosts have a stream beside their own.
  if (gpu->most_ranks() < 2 * 27)
    GTEST_SKIP() << "27 ranks: " << gpu->most_ranks() / 2 << " have queues of their own here";
  std::vector<std::string> hosts;
  for (int host = 0; host < 27; ++host) hosts.push_back(fmt::format("host {}", host));
  Ranks ranks = on_hosts(hosts);
  ranks.config = "tuning.collectives.gpu_staging_bytes = \"2MiB\"\ncollectives.on_gpu = \"gpu\"\n";
  run_on_gpus(ranks, true, [](Rank& rank) {
    for (const uint32_t op : {TOWLINE_COLLECTIVE_ALL_GATHER_V, TOWLINE_COLLECTIVE_REDUCE_SCATTER_V}) {
      Try what;
      what.op = op;
      what.count = 9000;  // several chunks of the largest part
      try_one(rank, what);
    }
  });
}

// By the communicators of all ranks, which run on threads of one process.
TEST(CollectivesBetweenHosts, InAnyOrderALateHostDoesNotHoldUpTheOthersParts) {
  Ranks ranks = on_hosts({"a", "b", "c"});
  ranks.config += "tuning.collectives.order = \"any\"\n";
  std::array<std::atomic<towline_communicator_t*>, 2> others = {};
  std::atomic<int> ended{0};
  run_on_gpus(ranks, true, [&](Rank& rank) {
    if (rank.rank < 2) others[static_cast<size_t>(rank.rank)] = rank.on_gpu;
    if (rank.rank == 2) {
      for (std::atomic<towline_communicator_t*>& other : others) {
        const auto has_added = [&] {
          return other != nullptr && communicator_info(other).find("\"added_early\":1,") != std::string::npos;
        };
        while (!has_added() && !testing::Test::HasFailure()) std::this_thread::yield();
      }
    }
    Buffer buffer(rank.gpu, 4 * 10'000);
    buffer.put(std::vector<uint8_t>(4 * 10'000));  // zeros, which any order sums alike
    const towline_collective_t call = reduce_call(buffer, buffer, 10'000);
    EXPECT_EQ(towline_collective(rank.on_gpu, &call, nullptr, nullptr), TOWLINE_OK) << towline_last_error();
    EXPECT_NE(communicator_info(rank.on_gpu).find("\"order\":\"any\""), std::string::npos);
    Try what;
    what.count = 150'001;
    for (const uint32_t datatype : {TOWLINE_INT32, TOWLINE_BFLOAT16, TOWLINE_FLOAT8_E5M2}) {
      what.datatype = datatype;
      for (const uint32_t op : {TOWLINE_COLLECTIVE_ALL_REDUCE, TOWLINE_COLLECTIVE_REDUCE,
                                TOWLINE_COLLECTIVE_REDUCE_SCATTER, TOWLINE_COLLECTIVE_REDUCE_SCATTER_V}) {
        what.op = op;
        try_one(rank, what);
      }
    }
    ++ended;
    while (ended < 3 && !testing::Test::HasFailure()) std::this_thread::yield();
  });
}

int32_t sum_four(Rank& rank, Buffer& buffer) {
  const towline_collective_t call = reduce_call(buffer, buffer, 4);
  return towline_collective(rank.on_gpu, &call, nullptr, nullptr);
}

// Rank 3 does not come: its host's other rank waits for it on the GPU, the other host for them. The time is also that for
// meeting, and the contexts of four GPUs take more than a second.
TEST(CollectivesBetweenHostsFail, ARankThatDoesNotComeEndsTheOperationOnAllHosts) {
  std::atomic<int> ended{0};
  run_on_gpus(on_hosts({"a", "a", "b", "b"}, 4'000'000'000), false, [&](Rank& rank) {
    Buffer buffer(rank.gpu, 16);
    buffer.put(values(TOWLINE_FLOAT32, rank.rank, 4, 1));
    if (rank.rank != 3) {
      EXPECT_EQ(sum_four(rank, buffer), TOWLINE_TIMED_OUT);
      EXPECT_NE(communicator_error(rank.on_gpu).find("rank"), std::string::npos);
      EXPECT_NE(communicator_error(rank.on_gpu).find("#0"), std::string::npos)
          << communicator_error(rank.on_gpu);
      ++ended;
    }
    while (ended < 3) std::this_thread::yield();
  });
}

// A rank's own GPU ends its kernels before all hosts have agreed on the reason: works have that reason all the same.
TEST(CollectivesBetweenHostsFail, WorksSayWhatTheHostsAgreedOn) {
  std::atomic<int> ended{0};
  run_on_gpus(on_hosts({"a", "a", "b", "b"}), false, [&](Rank& rank) {
    Buffer buffer(rank.gpu, 16);
    buffer.put(values(TOWLINE_FLOAT32, rank.rank, 4, 1));
    if (rank.rank != 3) {
      towline_collective_options_t options = {};
      options.struct_size = sizeof options;
      options.timeout_ns = 500'000'000;
      void* const stream = rank.gpu.make_stream();
      const towline_collective_t call = reduce_call(buffer, buffer, 4);
      towline_work_t* work = nullptr;
      ASSERT_EQ(towline_collective_issue_beside(rank.on_gpu, &call, &options, stream, &work), TOWLINE_OK);
      EXPECT_EQ(towline_work_wait(work, TOWLINE_FOREVER), TOWLINE_TIMED_OUT);
      EXPECT_EQ(towline_work_error(work), communicator_error(rank.on_gpu));
      EXPECT_NE(std::string(towline_work_error(work)).find("rank"), std::string::npos)
          << towline_work_error(work);
      towline_work_release(work);
      rank.gpu.drain(stream);
      rank.gpu.free_stream(stream);
      ++ended;
    }
    while (ended < 3) std::this_thread::yield();
  });
}

TEST(CollectivesBetweenHostsFail, AnAbortReachesRanksOfOtherHosts) {
  run_on_gpus(on_hosts({"a", "a", "b", "b"}), false, [&](Rank& rank) {
    Buffer buffer(rank.gpu, 16);
    buffer.put(values(TOWLINE_FLOAT32, rank.rank, 4, 1));
    if (rank.rank == 1)
      EXPECT_EQ(towline_communicator_abort(rank.on_gpu, "enough"), TOWLINE_OK);
    else
      EXPECT_EQ(sum_four(rank, buffer), TOWLINE_CANCELLED);
    EXPECT_NE(communicator_error(rank.on_gpu).find("rank 1 aborted communicator gpus: enough"),
              std::string::npos)
        << communicator_error(rank.on_gpu);
  });
}

TEST(CollectivesBetweenHostsFail, RanksThatDisagreeAreNamed) {
  run_on_gpus(on_hosts({"a", "a", "b", "b"}), false, [&](Rank& rank) {
    Buffer buffer(rank.gpu, 64);
    buffer.put(values(TOWLINE_FLOAT32, rank.rank, 16, 1));
    towline_collective_t call = {};
    call.struct_size = sizeof call;
    call.op = TOWLINE_COLLECTIVE_ALL_REDUCE;
    call.count = rank.rank < 2 ? 4 : 8;
    call.input = call.output = buffer.at();
    EXPECT_EQ(towline_collective(rank.on_gpu, &call, nullptr, nullptr), TOWLINE_MISMATCH);
    EXPECT_NE(communicator_error(rank.on_gpu).find("ranks disagree"), std::string::npos)
        << communicator_error(rank.on_gpu);
    await_others(rank);
  });
}

// Each host has a root of its own: the columns notice.
TEST(CollectivesBetweenHostsFail, RanksThatDisagreeInTheRootAreNamed) {
  for (const uint32_t op :
       {TOWLINE_COLLECTIVE_REDUCE, TOWLINE_COLLECTIVE_GATHER, TOWLINE_COLLECTIVE_SCATTER}) {
    for (const std::vector<std::string>& hosts :
         {std::vector<std::string>{"a", "a", "b", "b"}, std::vector<std::string>{"a", "a", "b"}}) {
      run_on_gpus(on_hosts(hosts), false, [&](Rank& rank) {
        Buffer input(rank.gpu, 64);
        Buffer output(rank.gpu, 64);
        input.put(values(TOWLINE_FLOAT32, rank.rank, 16, 1));
        towline_collective_t call = {};
        call.struct_size = sizeof call;
        call.op = op;
        call.count = 4;
        call.root = rank.rank < 2 ? 0 : 2;
        call.input = input.at();
        call.output = output.at();
        const int32_t status = towline_collective(rank.on_gpu, &call, nullptr, nullptr);
        // Of three ranks, rank 1 may need only rank 0: it has finished then, and is told later.
        if (status != TOWLINE_OK || rank.rank != 1 || rank.size == 4) {
          EXPECT_EQ(status, TOWLINE_MISMATCH);
        }
        while (communicator_error(rank.on_gpu).empty()) std::this_thread::yield();
        EXPECT_NE(communicator_error(rank.on_gpu).find("ranks disagree"), std::string::npos)
            << communicator_error(rank.on_gpu);
        await_others(rank);
      });
    }
  }
}

// Within a host ranks have other numbers, which no message shows.
TEST(CollectivesBetweenHostsFail, RanksOfAHostThatDisagreeInTheRootAreNamedAsTheCommunicatorDoes) {
  for (const uint32_t op : {TOWLINE_COLLECTIVE_SCATTER, TOWLINE_COLLECTIVE_BROADCAST}) {
    run_on_gpus(on_hosts({"a", "b", "b"}), false, [&](Rank& rank) {
      Buffer input(rank.gpu, 64);
      Buffer output(rank.gpu, 64);
      input.put(values(TOWLINE_FLOAT32, rank.rank, 16, 1));
      towline_collective_t call = {};
      call.struct_size = sizeof call;
      call.op = op;
      call.count = 4;
      call.root = rank.rank < 2 ? 1 : 2;
      call.input = input.at();
      call.output = output.at();
      (void)towline_collective(rank.on_gpu, &call, nullptr, nullptr);
      while (communicator_error(rank.on_gpu).empty()) std::this_thread::yield();
      const std::string expected = fmt::format(
          "ranks disagree: rank 1 is at {0} #0 of 4 float32, root 1, rank 2 at {0} #0 of 4 float32, root 2",
          op == TOWLINE_COLLECTIVE_SCATTER ? "scatter" : "broadcast");
      EXPECT_NE(communicator_error(rank.on_gpu).find(expected), std::string::npos)
          << communicator_error(rank.on_gpu);
      await_others(rank);
    });
  }
}

// The last rank, on another host than rank 0, has other counts, or expects more of rank 0 than that sends.
TEST(CollectivesBetweenHostsFail, RanksThatDisagreeInCountsAreNamed) {
  struct Case {
    uint32_t op;
    const char* said;
  };
  const Case cases[] = {
      {TOWLINE_COLLECTIVE_ALL_GATHER_V, "ranks disagree"},
      {TOWLINE_COLLECTIVE_REDUCE_SCATTER_V, "ranks disagree"},
      {TOWLINE_COLLECTIVE_ALL_TO_ALL_V,
       "ranks disagree in all_to_all_v #0 of float32: rank 0 sends 16 bytes to rank 2, which expects 80016"},
  };
  for (const Case& one : cases) {
    run_on_gpus(on_hosts({"a", "a", "b"}), false, [&](Rank& rank) {
      std::vector<uint64_t> counts(3, 4);
      std::vector<uint64_t> taken(3, 4);
      if (rank.rank == 2) (one.op == TOWLINE_COLLECTIVE_REDUCE_SCATTER_V ? counts : taken)[0] += 20000;
      Buffer input(rank.gpu, 4 * 30000);
      Buffer output(rank.gpu, 4 * 30000);
      input.put(values(TOWLINE_FLOAT32, rank.rank, 30000, 1));
      towline_collective_t call = {};
      call.struct_size = sizeof call;
      call.op = one.op;
      call.count = 4;
      call.input = input.at();
      call.output = output.at();
      call.input_counts = counts.data();
      call.output_counts = taken.data();
      EXPECT_EQ(towline_collective(rank.on_gpu, &call, nullptr, nullptr), TOWLINE_MISMATCH);
      EXPECT_NE(communicator_error(rank.on_gpu).find(one.said), std::string::npos)
          << communicator_error(rank.on_gpu);
      await_others(rank);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, CollectivesBetweenHosts,
                         testing::Values(Shape{"OneEach", {"a", "b"}}, Shape{"TwoEach", {"a", "a", "b", "b"}},
                                         Shape{"Interleaved", {"a", "b", "c", "a", "b", "c"}},
                                         Shape{"Uneven", {"a", "b", "b", "a", "b", "c", "b"}}),
                         [](const auto& shape) { return std::string(shape.param.name); });

}  // namespace
}  // namespace towline::gpu_test
