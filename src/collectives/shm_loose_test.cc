// Rooted operations of few bytes: a rank that needs no data from the others continues, up to a bound, and
// errors are still reported.
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <random>

#include "collectives/test_support.h"

namespace towline::collectives {
namespace {

constexpr int kFew = 20;     // operations that a rank may surely be ahead
constexpr int kMany = 1000;  // that it may not

towline_collective_t rooted(uint32_t op, uint64_t count, const float* in, float* out, int root) {
  towline_collective_t call = call_of(op, TOWLINE_FLOAT32, count, in, out);
  call.root = root;
  return call;
}

// Whether a rank needs nothing of the others.
bool goes_on(uint32_t op, bool root) {
  return root == (op == TOWLINE_COLLECTIVE_BROADCAST || op == TOWLINE_COLLECTIVE_SCATTER);
}

float value(int operation, int rank, uint64_t i) {
  return static_cast<float>((operation * 37 + rank * 11 + static_cast<int>(i)) % 509);
}

// One rooted operation of values that depend on its number, checked.
void do_rooted(Communicator& ranks, uint32_t op, uint64_t count, int root, int operation) {
  const auto n = static_cast<uint64_t>(ranks.size());
  const bool is_root = ranks.rank() == root;
  std::vector<float> in(n * count);
  std::vector<float> out(n * count, -1);
  for (uint64_t i = 0; i < in.size(); ++i) in[i] = value(operation, ranks.rank(), i);
  if (op == TOWLINE_COLLECTIVE_BROADCAST) out = in;
  do_run(ranks,
         rooted(op, count, op == TOWLINE_COLLECTIVE_BROADCAST ? out.data() : in.data(), out.data(), root));
  const auto expect = [&](uint64_t i, float right) {
    ASSERT_EQ(out[i], right) << op_name(op) << " #" << operation << " of " << count << ", root " << root;
  };
  for (uint64_t i = 0; i < count; ++i) {
    if (op == TOWLINE_COLLECTIVE_BROADCAST) expect(i, value(operation, root, i));
    if (op == TOWLINE_COLLECTIVE_SCATTER)
      expect(i, value(operation, root, static_cast<uint64_t>(ranks.rank()) * count + i));
    if (!is_root) continue;
    float sum = 0;
    for (int rank = 0; rank < ranks.size(); ++rank) {
      sum += value(operation, rank, i);
      if (op == TOWLINE_COLLECTIVE_GATHER)
        expect(static_cast<uint64_t>(rank) * count + i, value(operation, rank, i));
    }
    if (op == TOWLINE_COLLECTIVE_REDUCE) expect(i, sum);
  }
}

constexpr uint32_t kRooted[] = {TOWLINE_COLLECTIVE_BROADCAST, TOWLINE_COLLECTIVE_REDUCE,
                                TOWLINE_COLLECTIVE_GATHER, TOWLINE_COLLECTIVE_SCATTER};

class Loose : public testing::TestWithParam<uint32_t> {};

TEST_P(Loose, WhoNeedsNothingIsThroughBeforeTheOthersCome) {
  for (const uint64_t count : {1, 6, 40}) {  // few bytes with any number of processors
    for (const int root : {0, 2}) {
      World world;
      world.size = 3;
      std::atomic<int> through{0};
      const int ahead = goes_on(GetParam(), true) ? 1 : 2;
      run_ranks(world, [&](Communicator& ranks) {
        const bool first = goes_on(GetParam(), ranks.rank() == root);
        if (!first) eventually([&] { return through == ahead; });
        for (int i = 0; i < kFew; ++i) do_rooted(ranks, GetParam(), count, root, i);
        if (first) ++through;
        do_barrier(ranks);
      });
    }
  }
}

TEST_P(Loose, NobodyRunsAheadWithoutBound) {
  World world;
  std::atomic<bool> told{false};
  run_ranks(world, [&](Communicator& ranks) {
    std::string text;
    if (!goes_on(GetParam(), ranks.rank() == 0)) {
      eventually([&] { return told.load(); });
      float data[2] = {};
      Status status = Status::kOk;
      for (int i = 0; i < 2 && status == Status::kOk; ++i)
        status = ranks.run(rooted(GetParam(), 1, data, data, 0), nullptr, text);
      EXPECT_EQ(status, Status::kTimedOut) << text;
      return;
    }
    towline_collective_options_t options = {};
    options.struct_size = sizeof options;
    options.timeout_ns = 200 * kMillisecondNs;
    float in[2] = {};
    float out[2] = {};
    int passed = 0;
    Status status = Status::kOk;
    for (; passed < kMany && status == Status::kOk; ++passed)
      status = ranks.run(rooted(GetParam(), 1, in, out, 0), &options, text);
    EXPECT_EQ(status, Status::kTimedOut) << text;
    EXPECT_GT(passed, kFew);
    EXPECT_NE(text.find(fmt::format("timed out in {} #{} ", op_name(GetParam()), passed - 1)),
              std::string::npos)
        << text;
    EXPECT_NE(text.find(fmt::format("no sign of rank {}", 1 - ranks.rank())), std::string::npos) << text;
    told = true;
  });
}

TEST_P(Loose, ARankThatClosedEarlyIsNamedByTheNextOperation) {
  const World world;
  const auto store = std::make_shared<rendezvous::MemoryStore>();
  std::atomic<bool> closed{false};
  run_threads(world.size, [&](int rank) {
    const auto ranks = join(world, rank, store, fmt::format("closed {}", GetParam()));
    do_rooted(*ranks, GetParam(), 1, 0, 0);
    do_barrier(*ranks);
    if (!goes_on(GetParam(), rank == 0)) {
      ranks->close();
      closed = true;
      return;
    }
    eventually([&] { return closed.load(); });
    float in[2] = {};
    float out[2] = {};
    std::string text;
    EXPECT_EQ(ranks->run(rooted(GetParam(), 1, in, out, 0), nullptr, text), Status::kPeerLost);
    EXPECT_NE(text.find("closed the communicator before"), std::string::npos) << text;
    ranks->close();
  });
}

TEST_P(Loose, ARankThatLeftAndClosedIsNoLoss) {
  World world;
  world.size = 3;
  const auto store = std::make_shared<rendezvous::MemoryStore>();
  const int ahead = goes_on(GetParam(), true) ? 1 : 2;
  std::atomic<int> closed{0};
  run_threads(world.size, [&](int rank) {
    const auto ranks = join(world, rank, store, fmt::format("left {}", GetParam()));
    const bool first = goes_on(GetParam(), rank == 0);
    if (!first) eventually([&] { return closed == ahead; });
    for (int i = 0; i < kFew; ++i) do_rooted(*ranks, GetParam(), 3, 0, i);
    ranks->close();
    if (first) ++closed;
  });
}

INSTANTIATE_TEST_SUITE_P(Rooted, Loose, testing::ValuesIn(kRooted),
                         [](const auto& setup) { return std::string(op_name(setup.param)); });

// Ranks name different roots, or do another thing, and some of them are through before that can be seen.
struct Disagreement {
  const char* name;
  uint32_t op[3];
  int root[3];
};

class Disagreeing : public testing::TestWithParam<Disagreement> {
 protected:
  static Status begin(Communicator& ranks, std::string& text) {
    const auto rank = static_cast<size_t>(ranks.rank());
    float in[3] = {};
    float out[3] = {};
    return ranks.run(rooted(GetParam().op[rank], 1, in, out, GetParam().root[rank]), nullptr, text);
  }
  // Everybody is told the same, of operation 0.
  static void expect_told(const std::function<Status(Communicator&, std::string&)>& next) {
    World world;
    world.size = 3;
    std::mutex mutex;
    std::vector<std::string> texts;
    run_ranks(world, [&](Communicator& ranks) {
      std::string text;
      Status status = begin(ranks, text);
      if (status == Status::kOk) status = next(ranks, text);
      EXPECT_EQ(status, Status::kMismatch) << text;
      const std::lock_guard lock(mutex);
      texts.push_back(text);
    });
    ASSERT_EQ(texts.size(), 3u);
    for (const std::string& text : texts) EXPECT_EQ(text, texts[0]);
    EXPECT_EQ(texts[0].find("ranks disagree: rank "), 0u) << texts[0];
    EXPECT_NE(texts[0].find(" #0 "), std::string::npos) << texts[0];
    EXPECT_EQ(texts[0].find(" #1"), std::string::npos) << texts[0];
  }
};

// One of them finds it in the next one, after it has come to that; so others may be through and told in
// another.
TEST_P(Disagreeing, AreToldInTheNextOperationsThatMeet) {
  expect_told([](Communicator& ranks, std::string& text) {
    Status status = Status::kOk;
    for (int i = 0; i < 2 && status == Status::kOk; ++i)
      status = ranks.run(call_of(TOWLINE_COLLECTIVE_BARRIER), nullptr, text);
    return status;
  });
}

TEST_P(Disagreeing, AreToldByAndByWhereAllFollowingOnesAreLoose) {
  expect_told([](Communicator& ranks, std::string& text) {
    Status status = Status::kOk;
    for (int i = 0; i < kMany && status == Status::kOk; ++i) {
      float in[3] = {};
      float out[3] = {};
      status = ranks.run(rooted(TOWLINE_COLLECTIVE_REDUCE, 1, in, out, 1), nullptr, text);
    }
    return status;
  });
}

TEST_P(Disagreeing, AreToldWhereNoOperationFollows) {
  expect_told([](Communicator& ranks, std::string& text) {
    eventually([&] { return ranks.error(&text) != Status::kOk; });
    return ranks.error(&text);
  });
}

constexpr uint32_t kB = TOWLINE_COLLECTIVE_BROADCAST;
constexpr uint32_t kR = TOWLINE_COLLECTIVE_REDUCE;
constexpr uint32_t kG = TOWLINE_COLLECTIVE_GATHER;
constexpr uint32_t kS = TOWLINE_COLLECTIVE_SCATTER;
INSTANTIATE_TEST_SUITE_P(Ways, Disagreeing,
                         testing::Values(Disagreement{"two_roots_of_a_broadcast", {kB, kB, kB}, {0, 1, 0}},
                                         Disagreement{"every_one_its_own_root", {kS, kS, kS}, {0, 1, 2}},
                                         Disagreement{"no_root_of_a_reduce", {kR, kR, kR}, {1, 0, 1}},
                                         Disagreement{"no_root_of_a_gather", {kG, kG, kG}, {2, 2, 0}},
                                         Disagreement{"a_broadcast_and_reduces", {kB, kR, kR}, {0, 0, 0}},
                                         Disagreement{"a_scatter_and_broadcasts", {kB, kS, kB}, {0, 1, 0}},
                                         Disagreement{"a_gather_among_broadcasts", {kB, kB, kG}, {0, 0, 2}}),
                         [](const auto& setup) { return std::string(setup.param.name); });

// Rooted ones of all sizes and roots among others, ranks drifting apart and together.
TEST(LooseAmongOthers, ResultsAreRightInAnyOrder) {
  for (const int size : {2, 3, 5}) {
    World world;
    world.size = size;
    run_ranks(world, [](Communicator& ranks) {
      std::minstd_rand same(7);  // alike on all ranks
      std::minstd_rand own(static_cast<unsigned>(ranks.rank()) + 1);
      constexpr uint64_t kMostlySmall[] = {0, 1, 1, 1, 2, 6, 7, 100, 1024, 1025, 20000};
      for (int i = 0; i < 3000; ++i) {
        const auto choice = same() % 40;
        const uint64_t count = kMostlySmall[same() % (i % 50 == 0 ? std::size(kMostlySmall) : 9)];
        const auto root = static_cast<int>(same() % static_cast<unsigned>(ranks.size()));
        if (choice == 0) do_barrier(ranks);
        if (choice == 1) {
          std::vector<float> data(count, 1);
          do_run(ranks,
                 call_of(TOWLINE_COLLECTIVE_ALL_REDUCE, TOWLINE_FLOAT32, count, data.data(), data.data()));
          ASSERT_EQ(data, std::vector<float>(count, static_cast<float>(ranks.size())));
        }
        // Long rows of one kind let ranks run far ahead.
        if (choice >= 2) do_rooted(ranks, kRooted[i / 150 % 4], count, i / 600 % 2 == 0 ? root : 0, i);
        if (own() % 200 == 0) std::this_thread::yield();
      }
      do_barrier(ranks);
    });
  }
}

}  // namespace
}  // namespace towline::collectives
