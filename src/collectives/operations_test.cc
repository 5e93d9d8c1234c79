// Every operation, among several ranks, over shared memory, over TCP and over both.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "collectives/small_floats.h"
#include "collectives/test_support.h"
#include "secure/test_support.h"

namespace towline::collectives {
namespace {

struct Setup {
  const char* name;
  int size;
  int ranks_per_host;
  bool strewn = false;
  const char* single_copy = "auto";
  bool secured = false;
};

class Operations : public testing::TestWithParam<Setup> {
 protected:
  void SetUp() override {
    if (GetParam().secured) TOWLINE_NEEDS_TLS();
  }
  World world() const {
    World made;
    made.size = GetParam().size;
    made.ranks_per_host = GetParam().ranks_per_host;
    made.strewn = GetParam().strewn;
    made.single_copy = GetParam().single_copy;
    if (GetParam().secured) made.key_file = keys_.file("key", secure::testing::key_text());
    return made;
  }
  const secure::testing::Folder keys_;
};

// Element `i` of rank `rank`'s input: whole numbers, whose sums float32 holds exactly.
float value(int rank, uint64_t i) {
  return static_cast<float>((static_cast<uint64_t>(rank) * 31 + i * 7) % 101);
}

std::vector<float> values(int rank, uint64_t count, uint64_t from = 0) {
  std::vector<float> made(count);
  for (uint64_t i = 0; i < count; ++i) made[i] = value(rank, from + i);
  return made;
}

// In one cache line, flat, one piece, several pieces; odd ones.
constexpr uint64_t kCounts[] = {0, 1, 2, 5, 6, 7, 1000, 4099, 70001};

TEST_P(Operations, AllReduceGivesEveryoneTheSum) {
  run_ranks(world(), [](Communicator& ranks) {
    for (const uint64_t count : kCounts) {
      const std::vector<float> in = values(ranks.rank(), count);
      std::vector<float> out(count, -1);
      do_run(ranks, call_of(TOWLINE_COLLECTIVE_ALL_REDUCE, TOWLINE_FLOAT32, count, in.data(), out.data()));
      EXPECT_EQ(in, values(ranks.rank(), count));
      std::vector<float> in_place = in;
      do_run(ranks, call_of(TOWLINE_COLLECTIVE_ALL_REDUCE, TOWLINE_FLOAT32, count, in_place.data(),
                            in_place.data()));
      for (uint64_t i = 0; i < count; ++i) {
        float sum = 0;
        for (int rank = 0; rank < ranks.size(); ++rank) sum += value(rank, i);
        ASSERT_EQ(out[i], sum) << "count " << count << " at " << i;
        ASSERT_EQ(in_place[i], sum) << "in place, count " << count << " at " << i;
      }
    }
  });
}

TEST_P(Operations, AveragesAndWeightedSumsAreOfAllRanks) {
  run_ranks(world(), [](Communicator& ranks) {
    for (const uint64_t count : {uint64_t{3}, uint64_t{500}, uint64_t{20000}}) {
      std::vector<double> in(count, ranks.rank() + 1.0);
      std::vector<double> out(count);
      towline_collective_t call =
          call_of(TOWLINE_COLLECTIVE_ALL_REDUCE, TOWLINE_FLOAT64, count, in.data(), out.data());
      call.reduction = TOWLINE_REDUCE_AVG;
      do_run(ranks, call);
      EXPECT_EQ(out, std::vector<double>(count, (ranks.size() + 1) / 2.0));
      call.reduction = TOWLINE_REDUCE_PREMUL_SUM;
      call.factor = ranks.rank() == 0 ? 10 : 1;
      do_run(ranks, call);
      EXPECT_EQ(out, std::vector<double>(count, ranks.size() * (ranks.size() + 1) / 2.0 + 9));
      call.reduction = TOWLINE_REDUCE_MAX;
      do_run(ranks, call);
      EXPECT_EQ(out, std::vector<double>(count, ranks.size()));
    }
  });
}

TEST_P(Operations, ReduceLeavesOtherRanksAlone) {
  run_ranks(world(), [](Communicator& ranks) {
    for (const uint64_t count : kCounts) {
      for (int root = 0; root < ranks.size(); ++root) {
        const std::vector<float> in = values(ranks.rank(), count);
        std::vector<float> out(count, -1);
        towline_collective_t call =
            call_of(TOWLINE_COLLECTIVE_REDUCE, TOWLINE_FLOAT32, count, in.data(), out.data());
        call.root = root;
        if (ranks.rank() != root) call.output = nullptr;
        do_run(ranks, call);
        EXPECT_EQ(in, values(ranks.rank(), count));
        if (ranks.rank() != root) continue;
        for (uint64_t i = 0; i < count; ++i) {
          float sum = 0;
          for (int rank = 0; rank < ranks.size(); ++rank) sum += value(rank, i);
          ASSERT_EQ(out[i], sum) << "count " << count << " at " << i;
        }
      }
    }
  });
}

TEST_P(Operations, BroadcastGivesEveryoneTheRoots) {
  run_ranks(world(), [](Communicator& ranks) {
    for (const uint64_t count : kCounts) {
      for (int root = 0; root < ranks.size(); ++root) {
        std::vector<float> buffer = values(ranks.rank(), count);
        towline_collective_t call =
            call_of(TOWLINE_COLLECTIVE_BROADCAST, TOWLINE_FLOAT32, count, buffer.data(), buffer.data());
        call.root = root;
        do_run(ranks, call);
        ASSERT_EQ(buffer, values(root, count));
        // With the buffer as input only.
        std::ranges::copy(values(ranks.rank(), count), buffer.begin());
        call.output = nullptr;
        do_run(ranks, call);
        ASSERT_EQ(buffer, values(root, count));
      }
    }
  });
}

TEST_P(Operations, GathersPutEveryPartInItsPlace) {
  run_ranks(world(), [](Communicator& ranks) {
    const auto n = static_cast<uint64_t>(ranks.size());
    for (const uint64_t count : kCounts) {
      const std::vector<float> in = values(ranks.rank(), count);
      std::vector<float> right;
      for (int rank = 0; rank < ranks.size(); ++rank) {
        const std::vector<float> part = values(rank, count);
        right.insert(right.end(), part.begin(), part.end());
      }
      std::vector<float> out(n * count, -1);
      do_run(ranks, call_of(TOWLINE_COLLECTIVE_ALL_GATHER, TOWLINE_FLOAT32, count, in.data(), out.data()));
      ASSERT_EQ(out, right);
      // In place: the own part is where it is to be.
      out.assign(n * count, -1);
      float* mine = out.data() + static_cast<uint64_t>(ranks.rank()) * count;
      std::copy(in.begin(), in.end(), mine);
      do_run(ranks, call_of(TOWLINE_COLLECTIVE_ALL_GATHER, TOWLINE_FLOAT32, count, mine, out.data()));
      ASSERT_EQ(out, right);
      // Into a list of buffers.
      std::vector<std::vector<float>> parts(n, std::vector<float>(count));
      std::vector<void*> list;
      for (auto& part : parts) list.push_back(part.data());
      towline_collective_t call =
          call_of(TOWLINE_COLLECTIVE_ALL_GATHER, TOWLINE_FLOAT32, count, in.data(), nullptr);
      call.outputs = list.data();
      do_run(ranks, call);
      for (int rank = 0; rank < ranks.size(); ++rank)
        ASSERT_EQ(parts[static_cast<size_t>(rank)], values(rank, count));
      for (int root = 0; root < ranks.size(); ++root) {
        out.assign(n * count, -1);
        call = call_of(TOWLINE_COLLECTIVE_GATHER, TOWLINE_FLOAT32, count, in.data(),
                       ranks.rank() == root ? out.data() : nullptr);
        call.root = root;
        do_run(ranks, call);
        if (ranks.rank() == root) {
          ASSERT_EQ(out, right);
        }
      }
    }
  });
}

TEST_P(Operations, GathersOfDifferentCountsFollowThem) {
  run_ranks(world(), [](Communicator& ranks) {
    for (const uint64_t base : {uint64_t{0}, uint64_t{3}, uint64_t{30001}}) {
      std::vector<uint64_t> counts;
      std::vector<float> right;
      for (int rank = 0; rank < ranks.size(); ++rank) {
        counts.push_back(rank == 1 ? 0 : base * static_cast<uint64_t>(rank + 1));
        const std::vector<float> part = values(rank, counts.back());
        right.insert(right.end(), part.begin(), part.end());
      }
      const std::vector<float> in = values(ranks.rank(), counts[static_cast<size_t>(ranks.rank())]);
      std::vector<float> out(right.size(), -1);
      towline_collective_t call =
          call_of(TOWLINE_COLLECTIVE_ALL_GATHER_V, TOWLINE_FLOAT32, 0, in.data(), out.data());
      call.output_counts = counts.data();
      do_run(ranks, call);
      ASSERT_EQ(out, right);
    }
  });
}

TEST_P(Operations, ScatterGivesEachItsPart) {
  run_ranks(world(), [](Communicator& ranks) {
    const auto n = static_cast<uint64_t>(ranks.size());
    for (const uint64_t count : kCounts) {
      for (int root = 0; root < ranks.size(); ++root) {
        const std::vector<float> in = ranks.rank() == root ? values(root, n * count) : std::vector<float>();
        std::vector<float> out(count, -1);
        towline_collective_t call =
            call_of(TOWLINE_COLLECTIVE_SCATTER, TOWLINE_FLOAT32, count, in.data(), out.data());
        call.root = root;
        do_run(ranks, call);
        ASSERT_EQ(out, values(root, count, static_cast<uint64_t>(ranks.rank()) * count));
      }
    }
  });
}

TEST_P(Operations, ReduceScatterGivesEachItsSumAndKeepsTheInput) {
  run_ranks(world(), [](Communicator& ranks) {
    const auto n = static_cast<uint64_t>(ranks.size());
    for (const uint64_t count : kCounts) {
      const std::vector<float> in = values(ranks.rank(), n * count);
      std::vector<float> out(count, -1);
      do_run(ranks,
             call_of(TOWLINE_COLLECTIVE_REDUCE_SCATTER, TOWLINE_FLOAT32, count, in.data(), out.data()));
      ASSERT_EQ(in, values(ranks.rank(), n * count));
      for (uint64_t i = 0; i < count; ++i) {
        float sum = 0;
        for (int rank = 0; rank < ranks.size(); ++rank)
          sum += value(rank, static_cast<uint64_t>(ranks.rank()) * count + i);
        ASSERT_EQ(out[i], sum) << "count " << count << " at " << i;
      }
    }
    std::vector<uint64_t> counts;
    for (int rank = 0; rank < ranks.size(); ++rank)
      counts.push_back(rank == 0 ? 0 : 5000 * static_cast<uint64_t>(rank));
    const uint64_t total = std::accumulate(counts.begin(), counts.end(), uint64_t{0});
    const uint64_t mine = counts[static_cast<size_t>(ranks.rank())];
    const uint64_t before = std::accumulate(counts.begin(), counts.begin() + ranks.rank(), uint64_t{0});
    std::vector<float> in(total, 2);
    for (uint64_t i = 0; i < total; ++i) in[i] = value(ranks.rank(), i);
    std::vector<float> out(mine, -1);
    towline_collective_t call =
        call_of(TOWLINE_COLLECTIVE_REDUCE_SCATTER_V, TOWLINE_FLOAT32, 0, in.data(), out.data());
    call.input_counts = counts.data();
    call.reduction = TOWLINE_REDUCE_MAX;
    do_run(ranks, call);
    for (uint64_t i = 0; i < mine; ++i) {
      float most = 0;
      for (int rank = 0; rank < ranks.size(); ++rank) most = std::max(most, value(rank, before + i));
      ASSERT_EQ(out[i], most);
    }
  });
}

TEST_P(Operations, AllToAllSwapsParts) {
  const bool between_hosts = GetParam().ranks_per_host > 1;
  run_ranks(world(), [=](Communicator& ranks) {
    const auto n = static_cast<uint64_t>(ranks.size());
    std::vector<uint64_t> counts(std::begin(kCounts), std::end(kCounts));
    if (between_hosts) counts.push_back((9 << 20) / n / sizeof(float));  // stored past the caches
    for (const uint64_t count : counts) {
      const std::vector<float> in = values(ranks.rank(), n * count);
      std::vector<float> out(n * count, -1);
      do_run(ranks, call_of(TOWLINE_COLLECTIVE_ALL_TO_ALL, TOWLINE_FLOAT32, count, in.data(), out.data()));
      for (uint64_t from = 0; from < n; ++from) {
        const std::vector<float> got(out.begin() + static_cast<ptrdiff_t>(from * count),
                                     out.begin() + static_cast<ptrdiff_t>((from + 1) * count));
        ASSERT_EQ(got, values(static_cast<int>(from), count, static_cast<uint64_t>(ranks.rank()) * count));
      }
    }
  });
}

TEST_P(Operations, AllToAllOfDifferentCountsFollowsThem) {
  run_ranks(world(), [](Communicator& ranks) {
    const auto n = static_cast<size_t>(ranks.size());
    const auto me = static_cast<size_t>(ranks.rank());
    for (const uint64_t base : {uint64_t{0}, uint64_t{2}, uint64_t{9001}}) {
      // Rank a sends base * (a + 2 b) elements to rank b, with gaps between the parts.
      std::vector<uint64_t> sends(n);
      std::vector<uint64_t> receives(n);
      std::vector<uint64_t> send_at(n);
      std::vector<uint64_t> receive_at(n);
      uint64_t send_end = 0;
      uint64_t receive_end = 0;
      for (size_t other = 0; other < n; ++other) {
        sends[other] = base * (me + 2 * other);
        receives[other] = base * (other + 2 * me);
        send_at[other] = send_end + 1;
        receive_at[other] = receive_end + 2;
        send_end = send_at[other] + sends[other];
        receive_end = receive_at[other] + receives[other];
      }
      std::vector<int32_t> in(send_end);
      std::vector<int32_t> out(receive_end, -1);
      for (size_t other = 0; other < n; ++other)
        for (uint64_t i = 0; i < sends[other]; ++i)
          in[send_at[other] + i] = static_cast<int32_t>(me * 1000 + other * 100 + i % 97);
      towline_collective_t call =
          call_of(TOWLINE_COLLECTIVE_ALL_TO_ALL_V, TOWLINE_INT32, 0, in.data(), out.data());
      call.input_counts = sends.data();
      call.output_counts = receives.data();
      call.input_offsets = send_at.data();
      call.output_offsets = receive_at.data();
      do_run(ranks, call);
      for (size_t other = 0; other < n; ++other) {
        ASSERT_EQ(out[receive_at[other] - 1], -1);
        for (uint64_t i = 0; i < receives[other]; ++i)
          ASSERT_EQ(out[receive_at[other] + i], static_cast<int32_t>(other * 1000 + me * 100 + i % 97));
      }
    }
  });
}

TEST_P(Operations, ResultsAreTheSameBitsInEveryRunAndOnEveryRank) {
  const auto bits = [&](const World& world) {
    std::vector<std::vector<uint16_t>> results(static_cast<size_t>(world.size));
    run_ranks(world, [&](Communicator& ranks) {
      std::vector<uint16_t> in(9001);
      for (size_t i = 0; i < in.size(); ++i)
        in[i] =
            Bfloat16::narrow(std::sin(static_cast<float>(i * 13 + static_cast<size_t>(ranks.rank()) * 7)));
      auto& out = results[static_cast<size_t>(ranks.rank())];
      out.resize(in.size());
      do_run(ranks,
             call_of(TOWLINE_COLLECTIVE_ALL_REDUCE, TOWLINE_BFLOAT16, in.size(), in.data(), out.data()));
    });
    for (const auto& result : results) EXPECT_EQ(result, results[0]);
    return results[0];
  };
  EXPECT_EQ(bits(world()), bits(world()));
}

TEST_P(Operations, SendsAndReceivesMatchByTagAndKeepTheirOrder) {
  run_ranks(world(), [](Communicator& ranks) {
    const int next = (ranks.rank() + 1) % ranks.size();
    const int before = (ranks.rank() + ranks.size() - 1) % ranks.size();
    for (const uint64_t count : {uint64_t{0}, uint64_t{1}, uint64_t{50000}}) {
      std::vector<Work*> works;
      std::vector<std::vector<float>> out(3, values(ranks.rank(), count));
      std::vector<std::vector<float>> in(3, std::vector<float>(count, -1));
      for (uint64_t i = 0; i < 3; ++i) {
        out[i].assign(count, static_cast<float>(ranks.rank() * 10) + static_cast<float>(i));
        towline_collective_t send = call_of(TOWLINE_COLLECTIVE_SEND, TOWLINE_FLOAT32, count, out[i].data());
        send.root = next;
        send.tag = i == 2 ? 5 : 9;
        works.push_back(ranks.start(send, nullptr));
      }
      // The last one sent is received first.
      for (const size_t i : {size_t{2}, size_t{0}, size_t{1}}) {
        towline_collective_t receive =
            call_of(TOWLINE_COLLECTIVE_RECV, TOWLINE_FLOAT32, count, nullptr, in[i].data());
        receive.root = before;
        receive.tag = i == 2 ? 5 : 9;
        do_run(ranks, receive);
        EXPECT_EQ(in[i], std::vector<float>(count, static_cast<float>(before * 10) + static_cast<float>(i)));
      }
      for (Work* work : works) {
        EXPECT_EQ(ranks.wait(*work, TOWLINE_FOREVER), Status::kOk) << work->error();
        work->release();
      }
    }
  });
}

TEST_P(Operations, ABatchOfExchangesWaitsForNobodyInParticular) {
  run_ranks(world(), [](Communicator& ranks) {
    const auto n = static_cast<size_t>(ranks.size());
    std::vector<std::vector<int64_t>> in(n, std::vector<int64_t>(30000, -1));
    const std::vector<int64_t> out(30000, ranks.rank());
    std::vector<std::unique_ptr<OwnedCall>> calls;
    for (int other = 0; other < ranks.size(); ++other) {
      towline_collective_t call = call_of(TOWLINE_COLLECTIVE_SEND, TOWLINE_INT64, out.size(), out.data());
      call.root = other;
      calls.push_back(std::make_unique<OwnedCall>(call, ranks.size()));
    }
    for (int other = 0; other < ranks.size(); ++other) {
      towline_collective_t call = call_of(TOWLINE_COLLECTIVE_RECV, TOWLINE_INT64, out.size(), nullptr,
                                          in[static_cast<size_t>(other)].data());
      call.root = other;
      calls.push_back(std::make_unique<OwnedCall>(call, ranks.size()));
    }
    std::string text;
    ASSERT_EQ(ranks.run_batch(std::move(calls), nullptr, text), Status::kOk) << text;
    for (size_t other = 0; other < n; ++other)
      EXPECT_EQ(in[other], std::vector<int64_t>(30000, static_cast<int64_t>(other)));
  });
}

// A call is taken apart once for many like it, unless it has lists: what they hold may change where they stay.
TEST_P(Operations, ListsAreReadInEveryCall) {
  run_ranks(world(), [](Communicator& ranks) {
    constexpr uint64_t kCount = 500;
    const auto size = static_cast<size_t>(ranks.size());
    const std::vector<float> in = values(ranks.rank(), kCount);
    std::vector<std::vector<float>> parts(2 * size, std::vector<float>(kCount, -1));
    std::vector<void*> outputs(size);
    towline_collective_t call = call_of(TOWLINE_COLLECTIVE_ALL_GATHER, TOWLINE_FLOAT32, kCount, in.data());
    call.outputs = outputs.data();
    for (size_t turn = 0; turn < 2; ++turn) {
      for (size_t i = 0; i < size; ++i) outputs[i] = parts[turn * size + i].data();
      do_run(ranks, call);
      for (size_t i = 0; i < size; ++i)
        ASSERT_EQ(parts[turn * size + i], values(static_cast<int>(i), kCount)) << "turn " << turn;
    }
  });
}

TEST_P(Operations, CallsThatDifferInOneMemberAreToldApart) {
  run_ranks(world(), [](Communicator& ranks) {
    const std::vector<float> in = values(ranks.rank(), 64);
    std::vector<float> out(64);
    towline_collective_t call =
        call_of(TOWLINE_COLLECTIVE_ALL_REDUCE, TOWLINE_FLOAT32, 64, in.data(), out.data());
    do_run(ranks, call);
    do_run(ranks, call);
    call.reduction = TOWLINE_REDUCE_MAX;
    do_run(ranks, call);
    for (uint64_t i = 0; i < 64; ++i) {
      float most = 0;
      for (int rank = 0; rank < ranks.size(); ++rank) most = std::max(most, value(rank, i));
      ASSERT_EQ(out[i], most);
    }
    std::fill(out.begin(), out.end(), -1.0F);
    call.count = 5;
    do_run(ranks, call);
    EXPECT_EQ(out[5], -1);
    call.root = ranks.size() - 1;
    call.op = TOWLINE_COLLECTIVE_BROADCAST;
    call.input = call.output;
    for (float& element : out) element = static_cast<float>(ranks.rank());
    do_run(ranks, call);
    EXPECT_EQ(out[4], static_cast<float>(ranks.size() - 1));
    EXPECT_EQ(out[5], static_cast<float>(ranks.rank()));
  });
}

TEST_P(Operations, WhatIsIssuedWithoutWaitingRunsInOrder) {
  run_ranks(world(), [](Communicator& ranks) {
    std::vector<float> buffer(1000, 1);
    std::vector<Work*> works;
    for (int i = 0; i < 10; ++i)
      works.push_back(ranks.start(
          call_of(TOWLINE_COLLECTIVE_ALL_REDUCE, TOWLINE_FLOAT32, 1000, buffer.data(), buffer.data()),
          nullptr));
    do_barrier(ranks);  // comes after them
    float right = 1;
    for (int i = 0; i < 10; ++i) right *= static_cast<float>(ranks.size());
    EXPECT_EQ(buffer, std::vector<float>(1000, right));
    for (Work* work : works) {
      EXPECT_EQ(work->outcome(), Status::kOk);
      work->release();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Ways, Operations,
    testing::Values(Setup{"alone", 1, 0}, Setup{"two", 2, 0}, Setup{"three", 3, 0}, Setup{"five", 5, 0},
                    Setup{"tcp_two", 2, 1}, Setup{"tcp_three", 3, 1}, Setup{"tcp_six", 6, 1},
                    Setup{"hosts_of_two", 4, 2}, Setup{"strewn_hosts", 4, 2, true},
                    Setup{"uneven_hosts", 5, 2}, Setup{"tcp_three_secured", 3, 1, false, "auto", true},
                    Setup{"hosts_of_two_secured", 4, 2, false, "auto", true},
                    Setup{"two_direct", 2, 0, false, "always"}, Setup{"five_direct", 5, 0, false, "always"},
                    Setup{"hosts_of_two_direct", 4, 2, false, "always"},
                    Setup{"two_staged", 2, 0, false, "never"}),
    [](const auto& setup) { return std::string(setup.param.name); });

}  // namespace
}  // namespace towline::collectives
