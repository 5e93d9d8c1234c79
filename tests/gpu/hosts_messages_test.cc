// Messages between GPUs of different hosts, over real GPUs or their model: ranks are threads of this process that count as being
// on different hosts.
#include <fmt/format.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "gpu/hosts_ranks.h"

namespace towline::gpu_test {
namespace {

constexpr uint64_t kMessageCounts[] = {0, 1, 8192, 8193,
                                       60000};  // of float32: none, one, one chunk, two, eight

towline_collective_t message_to(uint32_t op, int peer, uint64_t count, const Buffer& buffer,
                                uint64_t tag = 0) {
  towline_collective_t call = {};
  call.struct_size = sizeof call;
  call.op = op;
  call.count = count;
  call.root = peer;
  call.tag = tag;
  call.input = call.output = buffer.at();
  return call;
}

// What `from` sends to `to`.
std::vector<uint8_t> sent_data(int from, int to, uint64_t count) {
  return values(TOWLINE_FLOAT32, 16 * from + to, count, 1);
}

std::vector<uint8_t> front_of(const Buffer& buffer, uint64_t count) {
  std::vector<uint8_t> bytes = buffer.get();
  bytes.resize(count * 4);
  return bytes;
}

class MessagesBetweenHosts : public testing::TestWithParam<uint64_t> {};

// In both directions at once, from one stream each; again and again.
TEST_P(MessagesBetweenHosts, ArriveOnStreams) {
  const uint64_t count = GetParam();
  run_on_gpus(on_hosts({"a", "b"}), false, [&](Rank& rank) {
    const int peer = 1 - rank.rank;
    Buffer mine(rank.gpu, count * 4 + 16);
    Buffer theirs(rank.gpu, count * 4 + 16);
    mine.put(sent_data(rank.rank, peer, count));
    void* const out = rank.gpu.make_stream();
    void* const in = rank.gpu.make_stream();
    meet(rank);
    for (int turn = 0; turn < 3; ++turn) {
      theirs.put(std::vector<uint8_t>(count * 4));
      const towline_collective_t send = message_to(TOWLINE_COLLECTIVE_SEND, peer, count, mine, 7);
      const towline_collective_t receive = message_to(TOWLINE_COLLECTIVE_RECV, peer, count, theirs, 7);
      ASSERT_EQ(towline_collective_issue(rank.on_gpu, &send, nullptr, out), TOWLINE_OK)
          << towline_last_error();
      ASSERT_EQ(towline_collective_issue(rank.on_gpu, &receive, nullptr, in), TOWLINE_OK)
          << towline_last_error();
      rank.gpu.drain(in);
      EXPECT_EQ(front_of(theirs, count), sent_data(peer, rank.rank, count)) << turn;
      rank.gpu.drain(out);
    }
    EXPECT_EQ(communicator_error(rank.on_gpu), "");
    rank.gpu.free_stream(out);
    rank.gpu.free_stream(in);
  });
}

// All ranks to all others, of the own host, too: first a batch that waits, then works beside a stream.
TEST_P(MessagesBetweenHosts, ArriveInBatchesAndBesideStreams) {
  const uint64_t count = GetParam();
  run_on_gpus(on_hosts({"a", "a", "b", "b"}), false, [&](Rank& rank) {
    std::vector<std::unique_ptr<Buffer>> mine;
    std::vector<std::unique_ptr<Buffer>> theirs;
    std::vector<towline_collective_t> calls;
    for (int peer = 0; peer < rank.size; ++peer) {
      mine.push_back(std::make_unique<Buffer>(rank.gpu, count * 4 + 16));
      theirs.push_back(std::make_unique<Buffer>(rank.gpu, count * 4 + 16));
      mine.back()->put(sent_data(rank.rank, peer, count));
      if (peer == rank.rank) continue;
      calls.push_back(message_to(TOWLINE_COLLECTIVE_SEND, peer, count, *mine.back()));
      calls.push_back(message_to(TOWLINE_COLLECTIVE_RECV, peer, count, *theirs.back()));
    }
    const auto check_and_clear = [&](const char* how) {
      for (int peer = 0; peer < rank.size; ++peer) {
        if (peer == rank.rank) continue;
        EXPECT_EQ(front_of(*theirs[static_cast<size_t>(peer)], count), sent_data(peer, rank.rank, count))
            << how;
        theirs[static_cast<size_t>(peer)]->put(std::vector<uint8_t>(count * 4));
      }
    };
    void* const stream = rank.gpu.make_stream();
    meet(rank);
    towline_batch_t* batch = nullptr;
    ASSERT_EQ(towline_batch_create(rank.on_gpu, &batch), TOWLINE_OK);
    for (const towline_collective_t& call : calls) ASSERT_EQ(towline_batch_add(batch, &call), TOWLINE_OK);
    EXPECT_EQ(towline_batch_issue(batch, nullptr, nullptr), TOWLINE_OK) << towline_last_error();
    towline_batch_destroy(batch);
    check_and_clear("batch");
    meet(rank);
    std::vector<towline_work_t*> works(calls.size());
    for (size_t i = 0; i < calls.size(); ++i)
      ASSERT_EQ(towline_collective_issue_beside(rank.on_gpu, &calls[i], nullptr, stream, &works[i]),
                TOWLINE_OK)
          << towline_last_error();
    for (towline_work_t* const work : works) {
      EXPECT_EQ(towline_work_wait(work, TOWLINE_FOREVER), TOWLINE_OK) << towline_last_error();
      towline_work_release(work);
    }
    check_and_clear("beside");
    rank.gpu.drain(stream);
    rank.gpu.free_stream(stream);
  });
}

TEST_P(MessagesBetweenHosts, AreReplayedInGraphs) {
  const uint64_t count = GetParam();
  run_on_gpus(on_hosts({"a", "b"}), false, [&](Rank& rank) {
    const int peer = 1 - rank.rank;
    Buffer buffer(rank.gpu, count * 4 + 16);
    void* const stream = rank.gpu.make_stream();
    const auto put = [&](uint32_t op) {
      const towline_collective_t call = message_to(op, peer, count, buffer);
      EXPECT_EQ(towline_collective_issue(rank.on_gpu, &call, nullptr, stream), TOWLINE_OK)
          << towline_last_error();
    };
    // Rank 0's data goes to rank 1 and back.
    rank.gpu.record(stream);
    put(rank.rank == 0 ? TOWLINE_COLLECTIVE_SEND : TOWLINE_COLLECTIVE_RECV);
    put(rank.rank == 0 ? TOWLINE_COLLECTIVE_RECV : TOWLINE_COLLECTIVE_SEND);
    void* const graph = rank.gpu.end_record(stream);
    meet(rank);
    for (int turn = 0; turn < 3; ++turn) {
      buffer.put(rank.rank == 0 ? sent_data(turn, 1, count) : std::vector<uint8_t>(count * 4));
      rank.gpu.replay(graph, stream);
      rank.gpu.drain(stream);
      EXPECT_EQ(front_of(buffer, count), sent_data(turn, 1, count)) << turn;
    }
    EXPECT_EQ(communicator_error(rank.on_gpu), "");
    rank.gpu.free_graph(graph);
    rank.gpu.free_stream(stream);
  });
}

INSTANTIATE_TEST_SUITE_P(Counts, MessagesBetweenHosts, testing::ValuesIn(kMessageCounts));

// From one stream, with what fits into a half of the strand's staging memory; and none is lost when the sender closes.
TEST(MessagesBetweenHostsInOrder, ASmallOneGoesWithoutItsReceiver) {
  run_on_gpus(on_hosts({"a", "b"}), false, [](Rank& rank) {
    constexpr uint64_t kCount = 8192;
    const int peer = 1 - rank.rank;
    Buffer mine(rank.gpu, kCount * 4);
    Buffer theirs(rank.gpu, kCount * 4);
    mine.put(sent_data(rank.rank, peer, kCount));
    void* const stream = rank.gpu.make_stream();
    const towline_collective_t send = message_to(TOWLINE_COLLECTIVE_SEND, peer, kCount, mine);
    const towline_collective_t receive = message_to(TOWLINE_COLLECTIVE_RECV, peer, kCount, theirs);
    ASSERT_EQ(towline_collective_issue(rank.on_gpu, &send, nullptr, stream), TOWLINE_OK);
    rank.gpu.drain(stream);
    ASSERT_EQ(towline_collective_issue(rank.on_gpu, &receive, nullptr, stream), TOWLINE_OK);
    rank.gpu.drain(stream);
    EXPECT_EQ(front_of(theirs, kCount), sent_data(peer, rank.rank, kCount));
    if (rank.rank == 0) {
      ASSERT_EQ(towline_collective_issue(rank.on_gpu, &send, nullptr, stream), TOWLINE_OK);
    }
    if (rank.rank == 1) {
      theirs.put(std::vector<uint8_t>(kCount * 4));
      ASSERT_EQ(towline_collective_issue(rank.on_gpu, &receive, nullptr, stream), TOWLINE_OK);
    }
    rank.gpu.drain(stream);
    EXPECT_EQ(communicator_error(rank.on_gpu), "");
    if (rank.rank == 1) {
      EXPECT_EQ(front_of(theirs, kCount), sent_data(0, 1, kCount));
    }
    rank.gpu.free_stream(stream);
  });
}

TEST(MessagesBetweenHostsFail, RanksThatDisagreeAreNamed) {
  struct Case {
    uint64_t count;
    uint64_t tag;
    uint32_t datatype;
    const char* said;
  };
  const Case cases[] = {
      {5, 0, TOWLINE_FLOAT32, "rank 1 at recv of 5 float32 from rank 0 (tag 0)"},
      {4, 3, TOWLINE_FLOAT32, "rank 1 at recv of 4 float32 from rank 0 (tag 3)"},
      {4, 0, TOWLINE_INT32, "rank 1 at recv of 4 int32 from rank 0 (tag 0)"},
  };
  for (const Case& one : cases) {
    run_on_gpus(on_hosts({"a", "b"}), false, [&](Rank& rank) {
      Buffer buffer(rank.gpu, 64);
      if (rank.rank == 0) {
        const towline_collective_t send = message_to(TOWLINE_COLLECTIVE_SEND, 1, 4, buffer);
        (void)towline_collective(rank.on_gpu, &send, nullptr, nullptr);  // it may be under way already
      } else {
        towline_collective_t receive = message_to(TOWLINE_COLLECTIVE_RECV, 0, one.count, buffer, one.tag);
        receive.datatype = one.datatype;
        EXPECT_EQ(towline_collective(rank.on_gpu, &receive, nullptr, nullptr), TOWLINE_MISMATCH);
      }
      while (communicator_error(rank.on_gpu).empty()) std::this_thread::yield();
      const std::string expected =
          fmt::format("ranks disagree: rank 0 is at send of 4 float32 to rank 1 (tag 0), {}", one.said);
      EXPECT_NE(communicator_error(rank.on_gpu).find(expected), std::string::npos)
          << communicator_error(rank.on_gpu);
    });
  }
}

TEST(MessagesBetweenHostsFail, ARankThatSendsNothingIsNamed) {
  for (const bool on_stream : {false, true}) {
    run_on_gpus(on_hosts({"a", "b"}, 4'000'000'000), false, [&](Rank& rank) {
      if (rank.rank == 1) {
        towline_collective_options_t options = {};
        options.struct_size = sizeof options;
        options.timeout_ns = 300'000'000;
        Buffer buffer(rank.gpu, 64);
        const towline_collective_t receive = message_to(TOWLINE_COLLECTIVE_RECV, 0, 4, buffer, 9);
        const auto begun = std::chrono::steady_clock::now();
        if (on_stream) {
          void* const stream = rank.gpu.make_stream();
          EXPECT_EQ(towline_collective_issue(rank.on_gpu, &receive, &options, stream), TOWLINE_OK);
          rank.gpu.drain(stream);
          rank.gpu.free_stream(stream);
        } else {
          EXPECT_EQ(towline_collective(rank.on_gpu, &receive, &options, nullptr), TOWLINE_TIMED_OUT);
        }
        EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(3));
      }
      while (communicator_error(rank.on_gpu).empty()) std::this_thread::yield();
      EXPECT_NE(
          communicator_error(rank.on_gpu).find("rank 1 timed out in recv of 4 float32 from rank 0 (tag 9)"),
          std::string::npos)
          << communicator_error(rank.on_gpu);
    });
  }
}

TEST(MessagesBetweenHostsFail, AnAbortEndsOneThatWaits) {
  std::atomic<bool> waits{false};
  run_on_gpus(on_hosts({"a", "b"}), false, [&](Rank& rank) {
    if (rank.rank == 0) {
      while (!waits) std::this_thread::yield();
      EXPECT_EQ(towline_communicator_abort(rank.on_gpu, "enough"), TOWLINE_OK);
    } else {
      Buffer buffer(rank.gpu, 64);
      void* const stream = rank.gpu.make_stream();
      const towline_collective_t receive = message_to(TOWLINE_COLLECTIVE_RECV, 0, 4, buffer);
      EXPECT_EQ(towline_collective_issue(rank.on_gpu, &receive, nullptr, stream), TOWLINE_OK);
      waits = true;
      rank.gpu.drain(stream);
      rank.gpu.free_stream(stream);
    }
    while (communicator_error(rank.on_gpu).empty()) std::this_thread::yield();
    EXPECT_NE(communicator_error(rank.on_gpu).find("rank 0 aborted communicator gpus: enough"),
              std::string::npos)
        << communicator_error(rank.on_gpu);
  });
}

}  // namespace
}  // namespace towline::gpu_test
