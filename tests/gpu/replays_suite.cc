// Replays of graphs and calls outside of graphs, in different streams: in the order in which they were launched and issued,
// where `tuning.collectives.gpu_order_replays` asks for it. Without that order ranks disagree here.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "gpu/collectives_suite.h"

namespace towline::gpu_test {
namespace {

constexpr uint64_t kLittle = 1000;  // one store with its mark
constexpr uint64_t kMuch = 90000;   // kernels of many blocks
constexpr int kTurns = 20;
constexpr uint64_t kPatienceNs = 20'000'000'000;

struct Shape {
  int size;
  const char* more;  // configuration
};

// Another communicator of the same ranks. A stream in which rank 0 has its barrier stands still until the others come.
class Gate {
 public:
  Gate(const Rank& rank, const towline_collective_store_t& store)
      : gate_(open_another(rank, store, "gate", kPatienceNs)) {}
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  ~Gate() { towline_communicator_destroy(gate_); }
  void pass(void* stream) const {
    towline_collective_t call = {};
    call.struct_size = sizeof call;
    call.op = TOWLINE_COLLECTIVE_BARRIER;
    EXPECT_EQ(towline_collective_issue(gate_, &call, nullptr, stream), TOWLINE_OK) << towline_last_error();
  }

 private:
  towline_communicator_t* const gate_;
};

// A rank with two streams and what it puts into them: `one` holds ones, and all results are sums of them.
struct Player {
  Player(Rank& of, const towline_collective_store_t& store)
      : rank(of),
        gate(of, store),
        streams{of.gpu.make_stream(), of.gpu.make_stream(), of.gpu.make_stream()},
        one(of.gpu, kMuch * 4),
        in_graph(of.gpu, kMuch * 4),
        in_other_graph(of.gpu, kMuch * 4),
        outside(of.gpu, kMuch * 4) {
    const std::vector<float> ones(kMuch, 1);
    of.gpu.put(one.at(), ones.data(), kMuch * sizeof(float));
  }
  Player(const Player&) = delete;
  Player& operator=(const Player&) = delete;
  ~Player() {
    for (void* const graph : graphs) rank.gpu.free_graph(graph);
    for (void* const stream : streams) rank.gpu.free_stream(stream);
  }
  void* record(const std::function<void(void* stream)>& body) {
    rank.gpu.record(streams[0]);
    body(streams[0]);
    return graphs.emplace_back(rank.gpu.end_record(streams[0]));
  }
  void issue(const towline_collective_t& call, void* stream) const {
    EXPECT_EQ(towline_collective_issue(rank.on_gpu, &call, nullptr, stream), TOWLINE_OK)
        << towline_last_error();
  }
  void finish() const {
    for (void* const stream : streams) rank.gpu.drain(stream);
    EXPECT_EQ(communicator_error(rank.on_gpu), "");
  }
  [[nodiscard]] float first(const Buffer& buffer) const {
    float value = 0;
    rank.gpu.get(&value, buffer.at(), sizeof value);
    return value;
  }

  Rank& rank;
  Gate gate;
  std::array<void*, 3> streams;
  Buffer one;
  Buffer in_graph;
  Buffer in_other_graph;
  Buffer outside;
  std::vector<void*> graphs;
};

class CollectivesReplays : public testing::TestWithParam<Shape> {
 protected:
  // Rank 0 puts `first` behind the gate in its first stream and `second` into its second one, where nothing holds it up but the
  // order. When it has, the others put both into one stream, and then open the gate.
  static void turn(Player& player, std::atomic<int>& turns, int turn,
                   const std::function<void(void* stream)>& first,
                   const std::function<void(void* stream)>& second) {
    if (player.rank.rank == 0) {
      player.gate.pass(player.streams[0]);
      first(player.streams[0]);
      second(player.streams[1]);
      turns = turn + 1;
    } else {
      while (turns <= turn && !testing::Test::HasFailure()) std::this_thread::yield();
      first(player.streams[0]);
      second(player.streams[0]);
      player.gate.pass(player.streams[2]);
    }
    player.finish();
  }

  void SetUp() override {
    std::string why_not;
    Platform* const gpu = platform(why_not);
    // Streams stand still here, and others must not be behind them in the driver's queues.
    if (gpu != nullptr && GetParam().size > 2 && gpu->most_ranks() <= 16)
      GTEST_SKIP() << "more than two ranks with streams that stand still need GPUs of their own";
  }

  void run(const std::function<void(Player&, std::atomic<int>& turns)>& body) {
    Ranks ranks;
    ranks.size = GetParam().size;
    ranks.timeout_ns = kPatienceNs;
    ranks.config = fmt::format("[tuning.collectives]\ngpu_order_replays = 1\n{}", GetParam().more);
    run_on_gpus(ranks, false, [&](Rank& rank) {
      EXPECT_NE(communicator_info(rank.on_gpu).find("\"order_replays\":true"), std::string::npos);
      Player player(rank, table_);
      body(player, turns_);
    });
  }

 private:
  MapStore store_;
  const towline_collective_store_t table_ = store_.table();
  std::atomic<int> turns_{0};
};

TEST_P(CollectivesReplays, ACallComesAfterReplaysInOtherStreams) {
  run([](Player& player, std::atomic<int>& turns) {
    const towline_collective_t small = reduce_call(player.one, player.in_graph, kLittle);
    const towline_collective_t large = reduce_call(player.one, player.outside, kMuch);
    void* const graph = player.record([&](void* stream) { player.issue(small, stream); });
    meet(player.rank);
    for (int i = 0; i < kTurns; ++i)
      turn(
          player, turns, i, [&](void* stream) { player.rank.gpu.replay(graph, stream); },
          [&](void* stream) { player.issue(large, stream); });
    EXPECT_EQ(player.first(player.in_graph), static_cast<float>(player.rank.size));
    EXPECT_EQ(player.first(player.outside), static_cast<float>(player.rank.size));
  });
}

TEST_P(CollectivesReplays, AReplayComesAfterCallsInOtherStreams) {
  run([](Player& player, std::atomic<int>& turns) {
    const towline_collective_t small = reduce_call(player.one, player.in_graph, kLittle);
    const towline_collective_t large = reduce_call(player.one, player.outside, kMuch);
    void* const graph = player.record([&](void* stream) { player.issue(small, stream); });
    meet(player.rank);
    for (int i = 0; i < kTurns; ++i)
      turn(
          player, turns, i, [&](void* stream) { player.issue(large, stream); },
          [&](void* stream) { player.rank.gpu.replay(graph, stream); });
  });
}

TEST_P(CollectivesReplays, AReplayComesAfterThoseOfOtherGraphs) {
  run([](Player& player, std::atomic<int>& turns) {
    const towline_collective_t small = reduce_call(player.one, player.in_graph, kLittle);
    const towline_collective_t large = reduce_call(player.one, player.in_other_graph, kMuch);
    void* const graph = player.record([&](void* stream) { player.issue(small, stream); });
    void* const other = player.record([&](void* stream) { player.issue(large, stream); });
    meet(player.rank);
    for (int i = 0; i < kTurns; ++i)
      turn(
          player, turns, i, [&](void* stream) { player.rank.gpu.replay(graph, stream); },
          [&](void* stream) { player.rank.gpu.replay(other, stream); });
  });
}

TEST_P(CollectivesReplays, ACallThatWaitsComesAfterReplays) {
  run([](Player& player, std::atomic<int>& turns) {
    const towline_collective_t small = reduce_call(player.one, player.in_graph, kLittle);
    const towline_collective_t large = reduce_call(player.one, player.outside, kMuch);
    void* const graph = player.record([&](void* stream) { player.issue(small, stream); });
    meet(player.rank);
    for (int i = 0; i < kTurns; ++i) {
      if (player.rank.rank == 0) {
        player.gate.pass(player.streams[0]);
        player.rank.gpu.replay(graph, player.streams[0]);
        turns = i + 1;
      } else {
        while (turns <= i && !testing::Test::HasFailure()) std::this_thread::yield();
        player.gate.pass(player.streams[2]);
        player.rank.gpu.replay(graph, player.streams[0]);
      }
      EXPECT_EQ(towline_collective(player.rank.on_gpu, &large, nullptr, nullptr), TOWLINE_OK)
          << towline_last_error();
      player.finish();
    }
  });
}

// The graph's last operation stands behind the gate, and was recorded beside the stream.
TEST_P(CollectivesReplays, ACallComesAfterTheLastOperationOfAReplay) {
  run([](Player& player, std::atomic<int>& turns) {
    const towline_collective_t small = reduce_call(player.one, player.in_graph, kLittle);
    const towline_collective_t other = reduce_call(player.one, player.in_other_graph, 2 * kLittle);
    const towline_collective_t large = reduce_call(player.one, player.outside, kMuch);
    void* const graph = player.record([&](void* stream) {
      player.issue(small, stream);
      player.issue(small, stream);
      player.gate.pass(stream);
      towline_work_t* work = nullptr;
      EXPECT_EQ(towline_collective_issue_beside(player.rank.on_gpu, &other, nullptr, stream, &work),
                TOWLINE_OK)
          << towline_last_error();
      EXPECT_EQ(towline_work_wait_on(work, stream), TOWLINE_OK) << towline_last_error();
      towline_work_release(work);
    });
    meet(player.rank);
    for (int i = 0; i < kTurns; ++i) {
      const bool first = player.rank.rank == 0;
      while (!first && turns <= i && !testing::Test::HasFailure()) std::this_thread::yield();
      player.rank.gpu.replay(graph, player.streams[0]);
      player.issue(large, player.streams[first ? 1 : 0]);
      if (first) turns = i + 1;
      player.finish();
    }
    EXPECT_EQ(player.first(player.in_other_graph), static_cast<float>(player.rank.size));
  });
}

// Each operation's input is the one before's output, in whatever stream that was: order between streams is order of data, too.
// Ranks choose their streams independently, and nobody waits.
TEST_P(CollectivesReplays, ManyInFlightFollowOneAnother) {
  run([](Player& player, std::atomic<int>&) {
    const towline_collective_t there = reduce_call(player.one, player.in_graph, kMuch);
    const towline_collective_t back = reduce_call(player.in_graph, player.one, kMuch);
    void* const graph = player.record([&](void* stream) { player.issue(there, stream); });
    meet(player.rank);
    float expected = 1;
    for (int i = 0; i < kTurns; ++i) {
      const auto stream = [&](int turn) {
        return player.streams[static_cast<size_t>((turn + player.rank.rank) % 3)];
      };
      player.rank.gpu.replay(graph, stream(i));
      player.issue(back, stream(i / 2 + 1));
      expected *= static_cast<float>(player.rank.size * player.rank.size);
    }
    player.finish();
    EXPECT_EQ(player.first(player.one), expected);
  });
}

// A capture in progress holds up nothing, and what it records goes on where it was after calls that came between.
TEST_P(CollectivesReplays, CallsMayComeWhileAGraphIsRecorded) {
  run([](Player& player, std::atomic<int>& turns) {
    const towline_collective_t small = reduce_call(player.one, player.in_graph, kLittle);
    const towline_collective_t other = reduce_call(player.one, player.in_other_graph, 2 * kLittle);
    const towline_collective_t large = reduce_call(player.one, player.outside, kMuch);
    void* const graph = player.record([&](void* stream) {
      player.issue(small, stream);
      meet(player.rank);
      player.issue(large, player.streams[1]);
      player.rank.gpu.drain(player.streams[1]);
      player.issue(other, stream);
    });
    meet(player.rank);
    for (int i = 0; i < kTurns; ++i)
      turn(
          player, turns, i, [&](void* stream) { player.rank.gpu.replay(graph, stream); },
          [&](void* stream) { player.issue(large, stream); });
    EXPECT_EQ(player.first(player.in_other_graph), static_cast<float>(player.rank.size));
  });
}

// Messages of a pair and direction, of which only the receiver waits for the other.
TEST_P(CollectivesReplays, MessagesAreInOrder) {
  run([](Player& player, std::atomic<int>& turns) {
    const int rank = player.rank.rank;
    const auto message = [&](const Buffer& buffer, uint64_t count) {
      towline_collective_t call = {};
      call.struct_size = sizeof call;
      call.op = rank == 0 ? TOWLINE_COLLECTIVE_RECV : TOWLINE_COLLECTIVE_SEND;
      call.count = count;
      call.root = rank == 0 ? 1 : 0;
      call.input = call.output = buffer.at();
      return call;
    };
    void* const graph = rank > 1 ? nullptr : player.record([&](void* stream) {
      player.issue(message(player.in_graph, kLittle), stream);
    });
    meet(player.rank);
    for (int i = 0; i < kTurns; ++i)
      turn(
          player, turns, i,
          [&](void* stream) {
            if (graph != nullptr) player.rank.gpu.replay(graph, stream);
          },
          [&](void* stream) {
            if (rank < 2) player.issue(message(player.outside, kMuch), stream);
          });
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, CollectivesReplays,
                         testing::Values(Shape{2, ""}, Shape{4, ""}, Shape{2, "gpu_reserved_sms = \"2\"\n"}),
                         [](const auto& test) {
                           return fmt::format("{}{}", test.param.size,
                                              *test.param.more != 0 ? "_reserved" : "");
                         });

}  // namespace
}  // namespace towline::gpu_test
