// The promises of a communicator beside its results: the same error on every rank when it breaks, deadlines,
// works, hooks, records, windows, splits.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <ctime>
#include <mutex>
#include <nlohmann/json.hpp>
#include <numeric>
#include <thread>

#include "base/log.h"
#include "collectives/test_support.h"

namespace towline::collectives {
namespace {

// Runs what each rank is to run, expects it to fail everywhere alike, and returns the sentence.
std::string expect_to_break(const World& world, Status expected,
                            const std::function<Status(Communicator&, std::string&)>& body) {
  std::mutex mutex;
  std::vector<std::string> texts;
  run_ranks(world, [&](Communicator& ranks) {
    std::string text;
    Status status = body(ranks, text);
    // Between hosts, a rank that has no part in what is wrong learns of it afterwards.
    if (world.ranks_per_host != 0 && status == Status::kOk) {
      eventually([&] { return (status = ranks.error(&text)) != Status::kOk; });
    }
    EXPECT_EQ(status, expected) << text;
    // Later operations return the same error.
    std::string later;
    EXPECT_EQ(ranks.run(call_of(TOWLINE_COLLECTIVE_BARRIER), nullptr, later), expected);
    EXPECT_EQ(later, text);
    EXPECT_EQ(ranks.error(&later), expected);
    EXPECT_EQ(later, text);
    const std::lock_guard lock(mutex);
    texts.push_back(text);
  });
  EXPECT_EQ(texts.size(), static_cast<size_t>(world.size));
  for (const std::string& text : texts) EXPECT_EQ(text, texts[0]);
  return texts.empty() ? "" : texts[0];
}

class Breaking : public testing::TestWithParam<int> {  // ranks per host
 protected:
  World world(int size = 3) const {
    World made;
    made.size = size;
    made.ranks_per_host = GetParam();
    return made;
  }
  // Every rank reduces; rank 1 its own way.
  std::string disagree(const std::function<void(towline_collective_t&)>& differ) const {
    std::vector<float> buffers[3];
    for (auto& buffer : buffers) buffer.resize(100000);
    return expect_to_break(world(), Status::kMismatch, [&](Communicator& ranks, std::string& text) {
      float* data = buffers[ranks.rank()].data();
      towline_collective_t call = call_of(TOWLINE_COLLECTIVE_ALL_REDUCE, TOWLINE_FLOAT32, 1000, data, data);
      if (ranks.rank() == 1) differ(call);
      return ranks.run(call, nullptr, text);
    });
  }
};

TEST_P(Breaking, OtherSizesAreNamedOnBothSides) {
  const std::string text = disagree([](auto& call) { call.count = 999; });
  EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
  EXPECT_NE(text.find("all_reduce #0 of 1000 float32 (sum)"), std::string::npos) << text;
  EXPECT_NE(text.find("all_reduce #0 of 999 float32 (sum)"), std::string::npos) << text;
}

TEST_P(Breaking, OtherTypesReductionsAndOperationsAreNamed) {
  EXPECT_NE(disagree([](auto& call) { call.datatype = TOWLINE_INT32; }).find("int32"), std::string::npos);
  EXPECT_NE(disagree([](auto& call) { call.reduction = TOWLINE_REDUCE_MAX; }).find("(max)"),
            std::string::npos);
  EXPECT_NE(disagree([](auto& call) { call.op = TOWLINE_COLLECTIVE_BROADCAST; }).find("broadcast"),
            std::string::npos);
}

TEST_P(Breaking, LargeOnesAreComparedBeforeAnythingIsReduced) {
  const std::string text = disagree([](auto& call) { call.count = 100000; });
  EXPECT_NE(text.find("of 100000 float32"), std::string::npos) << text;
}

TEST_P(Breaking, OtherRootsAreNamed) {
  const std::string text =
      expect_to_break(world(), Status::kMismatch, [&](Communicator& ranks, std::string& why) {
        float value = 0;
        towline_collective_t call = call_of(TOWLINE_COLLECTIVE_BROADCAST, TOWLINE_FLOAT32, 1, &value, &value);
        call.root = ranks.rank() == 0 ? 0 : 1;
        // A root needs nothing of the others.
        Status status = ranks.run(call, nullptr, why);
        if (status == Status::kOk) eventually([&] { return (status = ranks.error(&why)) != Status::kOk; });
        return status;
      });
  EXPECT_NE(text.find("root 1"), std::string::npos) << text;
}

// One host's ranks name a root there, the other's one of their own, and neither is its host's first rank.
TEST(BetweenHosts, OtherRootsAreNamedWhoeverSpeaksForAHost) {
  for (const uint32_t op : {TOWLINE_COLLECTIVE_BROADCAST, TOWLINE_COLLECTIVE_REDUCE,
                            TOWLINE_COLLECTIVE_GATHER, TOWLINE_COLLECTIVE_SCATTER}) {
    for (const uint64_t count : {3, 5000}) {
      for (const int other_root : {0, 1}) {
        SCOPED_TRACE(fmt::format("{} of {}, root {} or 3", op_name(op), count, other_root));
        World world;
        world.size = 4;
        world.ranks_per_host = 2;
        const std::string text =
            expect_to_break(world, Status::kMismatch, [&](Communicator& ranks, std::string& why) {
              std::vector<float> in(4 * count);
              std::vector<float> out(4 * count);
              towline_collective_t call = call_of(op, TOWLINE_FLOAT32, count, in.data(), out.data());
              call.root = ranks.rank() < 2 ? other_root : 3;
              return ranks.run(call, nullptr, why);
            });
        EXPECT_NE(text.find("root 3"), std::string::npos) << text;
        EXPECT_NE(text.find(fmt::format("root {}", other_root)), std::string::npos) << text;
      }
    }
  }
}

TEST_P(Breaking, CountsThatDoNotFitAreNamed) {
  const std::string text =
      expect_to_break(world(), Status::kMismatch, [&](Communicator& ranks, std::string& why) {
        uint64_t sends[3] = {2, 2, 2};
        uint64_t receives[3] = {2, 2, 2};
        if (ranks.rank() == 2) receives[0] = 1;
        float in[6] = {};
        float out[6] = {};
        towline_collective_t call = call_of(TOWLINE_COLLECTIVE_ALL_TO_ALL_V, TOWLINE_FLOAT32, 0, in, out);
        call.input_counts = sends;
        call.output_counts = receives;
        return ranks.run(call, nullptr, why);
      });
  EXPECT_NE(text.find("rank 0 sends 8 bytes to rank 2, which expects 4"), std::string::npos) << text;
}

TEST_P(Breaking, AMessageOfAnotherSizeIsNamed) {
  const std::string text =
      expect_to_break(world(2), Status::kMismatch, [&](Communicator& ranks, std::string& why) {
        std::vector<float> data(50000);
        towline_collective_t call =
            ranks.rank() == 0 ? call_of(TOWLINE_COLLECTIVE_SEND, TOWLINE_FLOAT32, 50000, data.data())
                              : call_of(TOWLINE_COLLECTIVE_RECV, TOWLINE_FLOAT32, 10, nullptr, data.data());
        call.root = 1 - ranks.rank();
        return ranks.run(call, nullptr, why);
      });
  EXPECT_NE(text.find("rank 0 sends 50000 float32 (200000 bytes) with tag 0 to rank 1, which receives 10 "
                      "float32 (40 bytes)"),
            std::string::npos)
      << text;
}

TEST_P(Breaking, AnAbortReachesRanksInOperationsAndIdleOnes) {
  std::atomic<int> formed{0};  // an abort also ends forming on ranks that have not finished it
  const std::string text =
      expect_to_break(world(), Status::kCancelled, [&](Communicator& ranks, std::string& why) {
        ++formed;
        if (ranks.rank() == 0) {
          eventually([&] { return formed == ranks.size(); });
          ranks.abort("enough");
          return ranks.error(&why);
        }
        if (ranks.rank() == 1) return ranks.run(call_of(TOWLINE_COLLECTIVE_BARRIER), nullptr, why);
        eventually([&] { return ranks.error(&why) != Status::kOk; });
        return ranks.error(&why);
      });
  EXPECT_NE(text.find("rank 0 aborted"), std::string::npos) << text;
  EXPECT_NE(text.find("enough"), std::string::npos) << text;
}

TEST_P(Breaking, ATimeoutSaysWhoIsMissing) {
  std::atomic<int> formed{0};  // a timeout also ends forming on ranks that have not finished it
  const std::string text =
      expect_to_break(world(), Status::kTimedOut, [&](Communicator& ranks, std::string& why) {
        ++formed;
        eventually([&] { return formed == ranks.size(); });
        if (ranks.rank() == 2) {
          eventually([&] { return ranks.error(&why) != Status::kOk; });
          return ranks.error(&why);
        }
        towline_collective_options_t options = {};
        options.struct_size = sizeof options;
        options.timeout_ns = 200 * kMillisecondNs;
        return ranks.run(call_of(TOWLINE_COLLECTIVE_BARRIER), &options, why);
      });
  EXPECT_NE(text.find("timed out in barrier #0"), std::string::npos) << text;
}

TEST_P(Breaking, AMessageThatNeverComesTimesOut) {
  std::atomic<int> formed{0};
  const std::string text =
      expect_to_break(world(2), Status::kTimedOut, [&](Communicator& ranks, std::string& why) {
        ++formed;
        eventually([&] { return formed == ranks.size(); });
        if (ranks.rank() == 1) {
          eventually([&] { return ranks.error(&why) != Status::kOk; });
          return ranks.error(&why);
        }
        float value = 0;
        towline_collective_t call = call_of(TOWLINE_COLLECTIVE_RECV, TOWLINE_FLOAT32, 1, nullptr, &value);
        call.root = 1;
        call.tag = 77;
        towline_collective_options_t options = {};
        options.struct_size = sizeof options;
        options.timeout_ns = 200 * kMillisecondNs;
        return ranks.run(call, &options, why);
      });
  EXPECT_NE(text.find("recv of 1 float32 from rank 1 (tag 77)"), std::string::npos) << text;
}

TEST_P(Breaking, ANewCommunicatorFormsAfterwards) {
  auto store = std::make_shared<rendezvous::MemoryStore>();
  const World made = world();
  std::atomic<int> passed{0};
  run_threads(made.size, [&](int rank) {
    for (int round = 0; round < 3; ++round) {
      const auto ranks = join(made, rank, store, fmt::format("again {}", GetParam()));
      do_barrier(*ranks);
      ++passed;
      eventually([&] { return passed >= (round + 1) * made.size; });
      if (rank == round) ranks->abort("");
      eventually([&] { return ranks->error(nullptr) == Status::kCancelled; });
      ranks->close();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ways, Breaking, testing::Values(0, 1),
                         [](const auto& setup) { return setup.param == 0 ? "shm" : "tcp"; });

TEST(Communicator, RanksMeetWhateverElseTheirProcessesFormedBefore) {
  World alone;
  alone.size = 1;
  const World all;
  const auto store = std::make_shared<rendezvous::MemoryStore>();
  // Rank 0 was rank 0 before, by itself: in the store where all meet, and in another one.
  join(alone, 0, store, "met")->close();
  run_threads(all.size, [&](int rank) {
    const auto ranks = join(all, rank, store, "met");
    do_barrier(*ranks);
    ranks->close();
  });
}

TEST(Communicator, WrongArgumentsBreakNothing) {
  run_ranks(World{}, [](Communicator& ranks) {
    std::string text;
    float data[4] = {};
    const auto refused = [&](towline_collective_t call, Status expected) {
      try {
        (void)ranks.run(call, nullptr, text);
        ADD_FAILURE() << op_name(call.op) << " was taken";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), expected) << error.what();
      }
    };
    if (ranks.rank() == 0) {
      refused(call_of(99), Status::kInvalidArgument);
      refused(call_of(TOWLINE_COLLECTIVE_ALL_REDUCE, 99, 1, data, data), Status::kInvalidArgument);
      refused(call_of(TOWLINE_COLLECTIVE_ALL_REDUCE, TOWLINE_FLOAT32, 4, nullptr, data),
              Status::kInvalidArgument);
      refused(call_of(TOWLINE_COLLECTIVE_ALL_REDUCE, TOWLINE_FLOAT32, UINT64_MAX, data, data),
              Status::kOutOfRange);
      constexpr uint64_t kMostOfTwoRanks = (uint64_t{1} << 60) / 2 / sizeof(float);
      refused(call_of(TOWLINE_COLLECTIVE_ALL_GATHER, TOWLINE_FLOAT32, kMostOfTwoRanks + 1, data, data),
              Status::kOutOfRange);
      towline_collective_t call = call_of(TOWLINE_COLLECTIVE_ALL_REDUCE, TOWLINE_FLOAT32, 4, data, data);
      call.reduction = TOWLINE_REDUCE_BAND;
      refused(call, Status::kUnsupported);
      call = call_of(TOWLINE_COLLECTIVE_BROADCAST, TOWLINE_FLOAT32, 4, data, data);
      call.root = 2;
      refused(call, Status::kOutOfRange);
      refused(call_of(TOWLINE_COLLECTIVE_ALL_GATHER_V, TOWLINE_FLOAT32, 0, data, data),
              Status::kInvalidArgument);
      call = call_of(TOWLINE_COLLECTIVE_ALL_TO_ALL_V, TOWLINE_FLOAT32, 0, data, data);
      const uint64_t two[] = {2, 2};
      const uint64_t one[] = {1, 1};
      call.input_counts = two;
      call.output_counts = one;
      refused(call, Status::kInvalidArgument);
      call = call_of(TOWLINE_COLLECTIVE_SEND, TOWLINE_FLOAT32, 1, data);
      call.root = -1;
      refused(call, Status::kOutOfRange);
    }
    do_barrier(ranks);
  });
}

class LateRank : public testing::TestWithParam<int> {};  // ranks per host

TEST_P(LateRank, IsWaitedForAndNamed) {
  static std::mutex mutex;
  static std::string logged;
  static std::atomic<bool> warned;
  logged.clear();
  warned = false;
  set_log_sink(
      [](void*, LogLevel, std::string_view message) {
        const std::lock_guard lock(mutex);
        logged += message;
        if (message.find("has been in operation #1") != std::string_view::npos) warned = true;
      },
      nullptr);
  World world;
  world.ranks_per_host = GetParam();
  world.warn = "300ms";
  run_ranks(world, [](Communicator& ranks) {
    std::vector<float> data(100'000, 1);
    do_barrier(ranks);
    if (ranks.rank() == 1) eventually([] { return warned.load(); });
    do_run(ranks,
           call_of(TOWLINE_COLLECTIVE_ALL_REDUCE, TOWLINE_FLOAT32, data.size(), data.data(), data.data()));
    EXPECT_EQ(std::ranges::count(data, 2.0F), 100'000);
    do_barrier(ranks);
  });
  set_log_sink(nullptr, nullptr);
  EXPECT_NE(logged.find("rank 0 has been in operation #1"), std::string::npos) << logged;
  EXPECT_NE(logged.find(GetParam() == 0 ? "not there yet: rank 1" : "ranks of other hosts"),
            std::string::npos)
      << logged;
}

INSTANTIATE_TEST_SUITE_P(Ways, LateRank, testing::Values(0, 1),
                         [](const auto& setup) { return setup.param == 0 ? "shm" : "tcp"; });

TEST(Communicator, AClosedRankIsToldApartFromALostOne) {
  auto store = std::make_shared<rendezvous::MemoryStore>();
  World world;
  std::atomic<bool> closed{false};
  run_threads(2, [&](int rank) {
    const auto ranks = join(world, rank, store, "closed");
    if (rank == 0) {
      ranks->close();
      closed = true;
      return;
    }
    eventually([&] { return closed.load(); });
    std::string text;
    EXPECT_EQ(ranks->run(call_of(TOWLINE_COLLECTIVE_BARRIER), nullptr, text), Status::kPeerLost);
    EXPECT_NE(text.find("rank 0 closed the communicator before barrier"), std::string::npos) << text;
    ranks->close();
  });
}

TEST(Communicator, AFinalizedOneTakesNoMore) {
  run_ranks(World{}, [](Communicator& ranks) {
    float value = 1;
    Work* work =
        ranks.start(call_of(TOWLINE_COLLECTIVE_ALL_REDUCE, TOWLINE_FLOAT32, 1, &value, &value), nullptr);
    ranks.finalize();
    EXPECT_EQ(work->outcome(), Status::kOk);
    work->release();
    std::string text;
    EXPECT_EQ(ranks.run(call_of(TOWLINE_COLLECTIVE_BARRIER), nullptr, text), Status::kClosed);
    EXPECT_NE(text.find("finalized"), std::string::npos);
    ranks.finalize();
  });
}

TEST(Communicator, AChildOfForkIsTurnedAway) {
  World world;
  world.size = 1;
  run_ranks(world, [](Communicator& ranks) {
    const pid_t child = ::fork();
    if (child == 0) {
      std::string text;
      const Status status = ranks.run(call_of(TOWLINE_COLLECTIVE_BARRIER), nullptr, text);
      ::_exit(status == Status::kForked && text.find("parent") != std::string::npos ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    do_barrier(ranks);
  });
}

TEST(Communicator, SplitsIntoGroupsWithTheirOwnRanks) {
  World world;
  world.size = 4;
  run_ranks(world, [](Communicator& ranks) {
    // Evens in order, odds the other way round.
    const bool even = ranks.rank() % 2 == 0;
    const int32_t evens[] = {0, 2};
    const int32_t odds[] = {3, 1};
    const auto half = ranks.split(even ? evens : odds, 2, nullptr, 0);
    ASSERT_NE(half, nullptr);
    EXPECT_EQ(half->rank(), even ? ranks.rank() / 2 : (ranks.rank() == 3 ? 0 : 1));
    int64_t value = ranks.rank();
    do_run(*half, call_of(TOWLINE_COLLECTIVE_ALL_REDUCE, TOWLINE_INT64, 1, &value, &value));
    EXPECT_EQ(value, even ? 2 : 4);
    // Only rank 1 and 2; others stay out. Both communicators are used at once.
    const int32_t middle[] = {1, 2};
    const bool in = ranks.rank() == 1 || ranks.rank() == 2;
    const auto pair = ranks.split(middle, in ? 2 : 0, "pair", 0);
    EXPECT_EQ(pair != nullptr, in);
    Work* work = ranks.start(call_of(TOWLINE_COLLECTIVE_BARRIER), nullptr);
    if (pair != nullptr) {
      EXPECT_EQ(pair->name(), "pair");
      do_barrier(*pair);
      pair->close();
    }
    EXPECT_EQ(ranks.wait(*work, TOWLINE_FOREVER), Status::kOk);
    work->release();
    half->close();
    EXPECT_THROW((void)ranks.split(even ? odds : evens, 2, "x", 0), Error) << "a list without the caller";
    const int32_t twice[] = {ranks.rank(), ranks.rank()};
    EXPECT_THROW((void)ranks.split(twice, 2, "x", 0), Error) << "a rank twice";
  });
}

TEST(Communicator, TwoOfThemServeTwoThreads) {
  auto store = std::make_shared<rendezvous::MemoryStore>();
  World world;
  run_threads(2, [&](int rank) {
    const auto first = join(world, rank, store, "first");
    const auto second = join(world, rank, store, "second");
    std::thread other([&] {
      for (int i = 0; i < 200; ++i) do_barrier(*second);
    });
    for (int i = 0; i < 200; ++i) do_barrier(*first);
    other.join();
    first->close();
    second->close();
  });
}

TEST(Work, TellsItsStatesInOrderAndItsEndOnce) {
  run_ranks(World{}, [](Communicator& ranks) {
    std::atomic<int> started{0};
    std::atomic<int> ended{0};
    std::atomic<int> waited{0};
    const auto count = [](void* context, towline_work_t*) { ++*static_cast<std::atomic<int>*>(context); };
    std::vector<float> data(1000, 1);
    Work* work = ranks.start(
        call_of(TOWLINE_COLLECTIVE_ALL_REDUCE, TOWLINE_FLOAT32, 1000, data.data(), data.data()), nullptr);
    work->on(TOWLINE_WORK_START, count, &started);
    work->on(TOWLINE_WORK_END, count, &ended);
    work->on(TOWLINE_WORK_WAIT_PRE, count, &waited);
    work->on(TOWLINE_WORK_WAIT_POST, count, &waited);
    EXPECT_EQ(ranks.wait(*work, TOWLINE_FOREVER), Status::kOk);
    EXPECT_EQ(work->state(), uint32_t{TOWLINE_WORK_COMPLETED});
    eventually([&] { return ended == 1; });
    EXPECT_EQ(started, 1);
    EXPECT_EQ(waited, 2);
    work->on(TOWLINE_WORK_END, count, &ended);  // has ended: called at once
    EXPECT_EQ(ended, 2);
    EXPECT_EQ(ranks.wait(*work, 0), Status::kOk);
    do_barrier(ranks);
    EXPECT_EQ(ended, 2);
    work->release();
  });
}

TEST(Work, AWaitThatIsTooShortLeavesItGoing) {
  std::atomic<bool> go{false};
  run_ranks(World{}, [&](Communicator& ranks) {
    if (ranks.rank() == 1) eventually([&] { return go.load(); });
    Work* work = ranks.start(call_of(TOWLINE_COLLECTIVE_BARRIER), nullptr);
    if (ranks.rank() == 0) {
      EXPECT_EQ(ranks.wait(*work, 0), Status::kInProgress);
      EXPECT_EQ(ranks.wait(*work, 20 * kMillisecondNs), Status::kInProgress);
      go = true;
    }
    EXPECT_EQ(ranks.wait(*work, TOWLINE_FOREVER), Status::kOk);
    work->release();
  });
}

TEST(Work, WhatNobodyWaitsForIsDoneAllTheSame) {
  run_ranks(World{}, [](Communicator& ranks) {
    std::vector<float> in(100000, static_cast<float>(ranks.rank()));
    std::vector<float> out(100000, -1);
    towline_collective_t send = call_of(TOWLINE_COLLECTIVE_SEND, TOWLINE_FLOAT32, in.size(), in.data());
    towline_collective_t receive =
        call_of(TOWLINE_COLLECTIVE_RECV, TOWLINE_FLOAT32, out.size(), nullptr, out.data());
    send.root = receive.root = 1 - ranks.rank();
    Work* works[] = {ranks.start(receive, nullptr), ranks.start(send, nullptr),
                     ranks.start(call_of(TOWLINE_COLLECTIVE_BARRIER), nullptr)};
    for (Work* work : works) {
      eventually([&] { return work->ended(); });
      EXPECT_EQ(work->outcome(), Status::kOk);
      work->release();
    }
    EXPECT_EQ(out[99999], static_cast<float>(1 - ranks.rank()));
  });
}

TEST(Hooks, SeeEveryOperationAndTheBreak) {
  struct Seen {
    std::vector<uint32_t> pre;
    std::vector<int32_t> post;
    std::vector<uint64_t> ids;
    std::atomic<int> aborts{0};
  };
  std::atomic<int> passed{0};
  run_ranks(World{}, [&](Communicator& ranks) {
    Seen seen;
    const auto pre = ranks.add_hook(
        TOWLINE_HOOK_PRE,
        [](void* context, const towline_hook_args_t* args) {
          static_cast<Seen*>(context)->pre.push_back(args->op);
          static_cast<Seen*>(context)->ids.push_back(args->op_id);
        },
        &seen);
    const auto post = ranks.add_hook(
        TOWLINE_HOOK_POST,
        [](void* context, const towline_hook_args_t* args) {
          static_cast<Seen*>(context)->post.push_back(args->status);
        },
        &seen);
    const auto abort = ranks.add_hook(
        TOWLINE_HOOK_ABORT,
        [](void* context, const towline_hook_args_t* args) {
          EXPECT_NE(std::string(args->text).find("aborted"), std::string::npos);
          ++static_cast<Seen*>(context)->aborts;
        },
        &seen);
    do_barrier(ranks);
    float value = 0;
    Work* work =
        ranks.start(call_of(TOWLINE_COLLECTIVE_ALL_REDUCE, TOWLINE_FLOAT32, 1, &value, &value), nullptr);
    EXPECT_EQ(ranks.wait(*work, TOWLINE_FOREVER), Status::kOk);
    work->release();
    EXPECT_EQ(seen.pre, (std::vector<uint32_t>{TOWLINE_COLLECTIVE_BARRIER, TOWLINE_COLLECTIVE_ALL_REDUCE}));
    EXPECT_EQ(seen.post, (std::vector<int32_t>{TOWLINE_OK, TOWLINE_IN_PROGRESS}));
    EXPECT_TRUE(std::ranges::is_sorted(seen.ids));
    ranks.remove_hook(pre);
    do_barrier(ranks);
    EXPECT_EQ(seen.pre.size(), 2u);
    ++passed;
    eventually([&] { return passed == ranks.size(); });
    if (ranks.rank() == 0) ranks.abort("");
    eventually([&] { return seen.aborts == 1; });
    ranks.remove_hook(post);
    ranks.remove_hook(abort);
  });
}

// Its threads run hooks and works' functions, and closing waits for its threads.
TEST(Hooks, CannotCloseTheirCommunicatorWhichGoesOnUntilTheyReturned) {
  struct Seen {
    Communicator& ranks;
    std::atomic<int> refused{0};
    void try_to_close() {
      EXPECT_THROW(ranks.finalize(), Error);
      try {
        ranks.close();
        ADD_FAILURE() << "it was closed from within";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), Status::kBusy);
        ++refused;
      }
    }
  };
  std::atomic<int> passed{0};
  run_ranks(World{}, [&](Communicator& ranks) {
    Seen seen{ranks};
    const auto try_in_hook = [](void* context, const towline_hook_args_t*) {
      static_cast<Seen*>(context)->try_to_close();
    };
    const auto pre = ranks.add_hook(TOWLINE_HOOK_PRE, try_in_hook, &seen);
    do_barrier(ranks);  // on the caller's thread
    EXPECT_EQ(seen.refused, 1);
    ranks.remove_hook(pre);
    Work* work = ranks.start(call_of(TOWLINE_COLLECTIVE_BARRIER), nullptr);
    work->on(
        TOWLINE_WORK_END, [](void* context, towline_work_t*) { static_cast<Seen*>(context)->try_to_close(); },
        &seen);
    eventually([&] { return seen.refused == 2; });  // on the thread of the queue, or at once
    work->release();
    const auto abort = ranks.add_hook(TOWLINE_HOOK_ABORT, try_in_hook, &seen);
    ++passed;
    eventually([&] { return passed == ranks.size(); });
    if (ranks.rank() == 0) ranks.abort("");
    eventually([&] { return seen.refused == 3; });  // rank 1: on the thread that watches
    ranks.remove_hook(abort);
  });
}

TEST(FlightRecorder, KeepsTheLastOperationsInTorchsFormat) {
  run_ranks(World{}, [](Communicator& ranks) {
    float value = 0;
    do_run(ranks, call_of(TOWLINE_COLLECTIVE_ALL_REDUCE, TOWLINE_FLOAT32, 1, &value, &value));
    do_barrier(ranks);
    const auto dump = nlohmann::json::parse(ranks.recorder().dump(ranks.name(), ranks.rank(), ranks.size()));
    EXPECT_EQ(dump["version"], "2.10");
    ASSERT_EQ(dump["entries"].size(), 2u);
    EXPECT_EQ(dump["entries"][0]["profiling_name"], "towline:all_reduce");
    EXPECT_EQ(dump["entries"][0]["state"], "completed");
    EXPECT_EQ(dump["entries"][0]["input_dtypes"][0], "Float");
    EXPECT_EQ(dump["entries"][1]["collective_seq_id"], 2);
    EXPECT_EQ(dump["pg_status"]["0"]["last_completed_collective"], 2);
    ranks.recorder().reset();
    EXPECT_TRUE(nlohmann::json::parse(ranks.recorder().dump("", 0, 2))["entries"].empty());
  });
}

TEST(FlightRecorder, TellsAsManyAsAskedForWithTheirTimes) {
  const auto wall_ns = [] {
    timespec now = {};
    clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec * static_cast<int64_t>(kSecondNs) + now.tv_nsec;
  };
  const int64_t began = wall_ns();
  FlightRecorder recorder(3);
  const auto call = call_of(TOWLINE_COLLECTIVE_BARRIER);
  for (uint64_t id = 1; id <= 5; ++id) {
    const uint64_t record = recorder.issue(&call, call.op, id, kSecondNs);
    for (const uint64_t until = monotonic_now_ns() + 2 * kMillisecondNs; monotonic_now_ns() < until;) {
    }
    if (id != 5) recorder.end(record, Status::kOk);
    recorder.end(record - std::min<uint64_t>(record, 3), Status::kInternal);  // no longer told
  }
  const auto dump = nlohmann::json::parse(recorder.dump("", 0, 1));
  const int64_t ended = wall_ns();
  ASSERT_EQ(dump["entries"].size(), 3u);
  for (uint64_t i = 0; i < 3; ++i) {
    const auto& entry = dump["entries"][i];
    EXPECT_EQ(entry["record_id"], i + 3);
    EXPECT_EQ(entry["state"], i == 2 ? "scheduled" : "completed");
    const int64_t created = entry["time_created_ns"];
    constexpr int64_t kExactNs = 1'000'000;
    EXPECT_GE(created, began - kExactNs);
    EXPECT_LE(created, ended + kExactNs);
    if (i == 2) continue;
    EXPECT_GE(static_cast<int64_t>(entry["time_discovered_completed_ns"]) - created,
              2'000'000 - kExactNs / 10);
    EXPECT_GE(entry["duration_ms"], 1.9);
    EXPECT_LE(entry["time_discovered_completed_ns"], dump["entries"][i + 1]["time_created_ns"]);
  }
}

TEST(FlightRecorder, IsReadWhileOperationsEnd) {
  FlightRecorder recorder(4);
  const auto call = call_of(TOWLINE_COLLECTIVE_BARRIER);
  std::atomic<bool> stop{false};
  std::thread performing([&] {
    for (uint64_t id = 1; !stop; ++id)
      recorder.end(recorder.issue(&call, call.op, id, kSecondNs), Status::kTimedOut);
  });
  for (int round = 0; round < 200; ++round) {
    const auto dump = nlohmann::json::parse(recorder.dump("", 0, 1));
    for (const auto& entry : dump["entries"]) {
      EXPECT_EQ(entry["record_id"], entry["op_id"]);
      if (entry["state"] == "scheduled") continue;  // the last one
      EXPECT_EQ(entry["state"], "failed");
      EXPECT_EQ(entry["status"], "TIMED_OUT");
      EXPECT_GE(entry["time_discovered_completed_ns"], entry["time_created_ns"]);
    }
  }
  stop = true;
  performing.join();
}

TEST(Info, SaysWhoIsReachedHow) {
  World world;
  world.size = 3;
  world.ranks_per_host = 2;
  run_ranks(world, [](Communicator& ranks) {
    const auto info = nlohmann::json::parse(ranks.info_json());
    EXPECT_EQ(info["schema"], TOWLINE_JSON_SCHEMA);
    EXPECT_EQ(info["size"], 3);
    EXPECT_EQ(info["backend"], "cpu");
    EXPECT_EQ(info["details"]["between_hosts"], "tcp");
    EXPECT_EQ(info["details"]["hosts"], (nlohmann::json{{0, 1}, {2}}));
    EXPECT_EQ(info["details"]["ranks"].size(), 3u);
  });
}

TEST(Fake, EndsAtOnceForAnyNumberOfRanks) {
  auto store = std::make_shared<rendezvous::MemoryStore>();
  World world;
  world.size = 64;
  world.backend = "fake";
  const auto ranks = join(world, 7, store, "fake");
  float in = 3;
  std::vector<float> out(64);
  do_run(*ranks, call_of(TOWLINE_COLLECTIVE_ALL_GATHER, TOWLINE_FLOAT32, 1, &in, out.data()));
  EXPECT_EQ(out, std::vector<float>(64, 3));
  Work* work = ranks->start(call_of(TOWLINE_COLLECTIVE_BARRIER), nullptr);
  EXPECT_EQ(ranks->wait(*work, TOWLINE_FOREVER), Status::kOk);
  work->release();
  EXPECT_THROW((void)ranks->open_window(nullptr, 4096), Error);
  ranks->close();
}

}  // namespace
}  // namespace towline::collectives
