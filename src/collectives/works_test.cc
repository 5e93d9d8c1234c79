// Tests of functions of works: what they may call, what ends an operation that is waited for, which ranks a message may go to.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>

#include "collectives/test_support.h"

namespace towline::collectives {
namespace {

class Works : public testing::TestWithParam<int> {  // ranks per host
 protected:
  World world(int size = 2) const {
    World made;
    made.size = size;
    made.ranks_per_host = GetParam();
    return made;
  }
};

towline_collective_t sum_of(float* data, uint64_t count) {
  towline_collective_t call = call_of(TOWLINE_COLLECTIVE_ALL_REDUCE, TOWLINE_FLOAT32, count, data, data);
  call.reduction = TOWLINE_REDUCE_SUM;
  return call;
}

// Issues three operations at once. The function of the first issues two more, waits for one of them, and so
// does the function of that one. All ranks do them in the same order, or they would disagree on the sizes.
TEST_P(Works, FunctionsMayIssueOperationsAndWaitForThem) {
  struct Chain {
    Communicator* ranks;
    std::vector<float> data[4];
    std::atomic<int> depth{0};
    static void next(void* context, towline_work_t*) {
      auto& self = *static_cast<Chain*>(context);
      const int depth = ++self.depth;
      std::vector<float>& data = self.data[depth];
      data.assign(static_cast<size_t>(depth) * 10, 1);
      Work* work = self.ranks->start(sum_of(data.data(), data.size()), nullptr);
      if (depth < 3) work->on(TOWLINE_WORK_END, &next, &self);
      EXPECT_EQ(self.ranks->wait(*work, TOWLINE_FOREVER), Status::kOk) << work->error();
      work->release();
      do_run(*self.ranks, sum_of(data.data(), data.size()));
    }
  };
  for (const bool waits : {false, true}) {
    run_ranks(world(), [&](Communicator& ranks) {
      Chain chain;
      chain.ranks = &ranks;
      std::vector<float> first(1000, 1);
      std::vector<float> behind(2000, 1);
      Work* work = ranks.start(sum_of(first.data(), first.size()), nullptr);
      work->on(TOWLINE_WORK_END, &Chain::next, &chain);
      Work* last = ranks.start(sum_of(behind.data(), behind.size()), nullptr);
      if (waits) {
        EXPECT_EQ(ranks.wait(*work, TOWLINE_FOREVER), Status::kOk);
      }
      EXPECT_EQ(ranks.wait(*last, TOWLINE_FOREVER), Status::kOk) << last->error();
      eventually([&] { return chain.depth == 3; });
      work->release();
      last->release();
      do_barrier(ranks);
      EXPECT_EQ(first.front(), 2);
      for (int depth = 1; depth <= 3; ++depth) EXPECT_EQ(chain.data[depth].front(), 4);
    });
  }
}

// A function of a message's work waits for another message, which no other thread would move.
TEST_P(Works, FunctionsOfMessagesMayWaitForMessages) {
  struct Second {
    Communicator* ranks;
    std::atomic<bool> done{false};
    static void run(void* context, towline_work_t*) {
      auto& self = *static_cast<Second*>(context);
      int32_t given = self.ranks->rank();
      int32_t taken = -1;
      towline_collective_t send = call_of(TOWLINE_COLLECTIVE_SEND, TOWLINE_INT32, 1, &given);
      towline_collective_t receive = call_of(TOWLINE_COLLECTIVE_RECV, TOWLINE_INT32, 1, nullptr, &taken);
      send.root = receive.root = 1 - self.ranks->rank();
      Work* sending = self.ranks->start(send, nullptr);
      Work* receiving = self.ranks->start(receive, nullptr);
      // As a future's wait does, which moves nothing itself.
      eventually([&] { return sending->ended() && receiving->ended(); });
      EXPECT_EQ(taken, 1 - self.ranks->rank());
      sending->release();
      receiving->release();
      self.done = true;
    }
  };
  run_ranks(world(), [&](Communicator& ranks) {
    Second second;
    second.ranks = &ranks;
    int32_t value = 7;
    towline_collective_t call = ranks.rank() == 0
                                    ? call_of(TOWLINE_COLLECTIVE_SEND, TOWLINE_INT32, 1, &value)
                                    : call_of(TOWLINE_COLLECTIVE_RECV, TOWLINE_INT32, 1, nullptr, &value);
    call.root = 1 - ranks.rank();
    call.tag = 5;
    Work* work = ranks.start(call, nullptr);
    work->on(TOWLINE_WORK_END, &Second::run, &second);
    eventually([&] { return second.done.load(); });
    work->release();
    do_barrier(ranks);
  });
}

TEST_P(Works, AnApplicationMayInterruptWhatItWaitsFor) {
  for (const uint32_t op : {TOWLINE_COLLECTIVE_BARRIER, TOWLINE_COLLECTIVE_RECV}) {
    std::atomic<int> asked{0};
    std::atomic<bool> told{false};
    run_ranks(world(), [&](Communicator& ranks) {
      std::string text;
      if (ranks.rank() != 0) {
        eventually([&] { return told.load(); });
        Status status = Status::kOk;
        eventually([&] { return (status = ranks.error(&text)) != Status::kOk; });
        EXPECT_EQ(status, Status::kCancelled) << text;
        return;
      }
      towline_collective_options_t options = {};
      options.struct_size = sizeof options;
      options.interrupted = [](void* context) -> int32_t {
        return ++*static_cast<std::atomic<int>*>(context) == 3;
      };
      options.interrupt_context = &asked;
      int32_t value = 0;
      towline_collective_t call =
          call_of(op, TOWLINE_INT32, op == TOWLINE_COLLECTIVE_RECV ? 1 : 0, nullptr, &value);
      call.root = op == TOWLINE_COLLECTIVE_RECV ? 1 : 0;
      EXPECT_EQ(ranks.run(call, &options, text), Status::kCancelled) << text;
      EXPECT_NE(text.find(fmt::format("rank 0 was interrupted in {}", op_name(op))), std::string::npos)
          << text;
      told = true;
    });
    EXPECT_EQ(asked, 3);
  }
}

TEST_P(Works, AReceiveFromAnyRankTakesWhatComesAndSaysFromWhom) {
  run_ranks(world(4), [&](Communicator& ranks) {
    const int me = ranks.rank();
    if (me != 1) {
      int32_t value = me;
      towline_collective_t call = call_of(TOWLINE_COLLECTIVE_SEND, TOWLINE_INT32, 1, &value);
      call.root = 1;
      do_run(ranks, call);
      call.tag = 9;
      do_run(ranks, call);
      do_barrier(ranks);
      return;
    }
    std::vector<int> sources;
    for (int i = 0; i < 3; ++i) {
      int32_t value = -1;
      towline_collective_t call = call_of(TOWLINE_COLLECTIVE_RECV, TOWLINE_INT32, 1, nullptr, &value);
      call.root = TOWLINE_ANY_RANK;
      Work* work = ranks.start(call, nullptr);
      EXPECT_EQ(ranks.wait(*work, TOWLINE_FOREVER), Status::kOk) << work->error();
      EXPECT_EQ(value, work->source);
      sources.push_back(work->source);
      work->release();
    }
    std::ranges::sort(sources);
    EXPECT_EQ(sources, (std::vector<int>{0, 2, 3}));
    // One that names its rank still gets what that rank sent.
    for (const int from : {3, 0, 2}) {
      int32_t value = -1;
      towline_collective_t call = call_of(TOWLINE_COLLECTIVE_RECV, TOWLINE_INT32, 1, nullptr, &value);
      call.root = from;
      call.tag = 9;
      do_run(ranks, call);
      EXPECT_EQ(value, from);
    }
    do_barrier(ranks);
  });
}

TEST_P(Works, AReceiveOfAnotherTypeIsNamed) {
  run_ranks(world(), [&](Communicator& ranks) {
    float sent = 1;
    int32_t received = 0;
    towline_collective_t call = ranks.rank() == 0
                                    ? call_of(TOWLINE_COLLECTIVE_SEND, TOWLINE_FLOAT32, 1, &sent)
                                    : call_of(TOWLINE_COLLECTIVE_RECV, TOWLINE_INT32, 1, nullptr, &received);
    call.root = 1 - ranks.rank();
    std::string text;
    Status status = ranks.run(call, nullptr, text);
    // The one that sends is through before it is compared.
    if (status == Status::kOk && ranks.rank() == 0)
      eventually([&] { return (status = ranks.error(&text)) != Status::kOk; });
    EXPECT_EQ(status, Status::kMismatch) << text;
    EXPECT_NE(
        text.find("rank 0 sends 1 float32 (4 bytes) with tag 0 to rank 1, which receives 1 int32 (4 bytes)"),
        std::string::npos)
        << text;
    EXPECT_EQ(received, 0);
  });
}

INSTANTIATE_TEST_SUITE_P(Ways, Works, testing::Values(0, 1),
                         [](const auto& setup) { return setup.param == 0 ? "one_host" : "two_hosts"; });

}  // namespace
}  // namespace towline::collectives
