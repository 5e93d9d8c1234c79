// Windows: within a host, between hosts (over TCP), and both at once.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/error.h"
#include "collectives/agent_window.h"
#include "collectives/test_support.h"
#include "secure/test_support.h"

namespace towline::collectives {
namespace {

// A window of a communicator, by the table of its backend.
class TestWindow {
 public:
  TestWindow(Communicator& ranks, void* address, uint64_t bytes)
      : ranks_(ranks), window_(ranks.open_window(address, bytes)) {}
  uint8_t* map(int rank) const {
    void* address = nullptr;
    uint64_t bytes = 0;
    ranks_.table().window_map(window_, rank, &address, &bytes);
    return static_cast<uint8_t*>(address);
  }
  uint64_t bytes(int rank) const {
    void* address = nullptr;
    uint64_t bytes = 0;
    ranks_.table().window_map(window_, rank, &address, &bytes);
    return bytes;
  }
  int32_t put(int rank, uint64_t offset, const std::vector<uint8_t>& from) {
    return ranks_.table().window_put(window_, rank, offset, from.data(), from.size());
  }
  int32_t get(int rank, uint64_t offset, std::vector<uint8_t>& to) {
    return ranks_.table().window_get(window_, rank, offset, to.data(), to.size());
  }
  int32_t signal(int rank) { return ranks_.table().window_signal(window_, rank); }
  int32_t wait_signal(int rank, uint64_t timeout_ns = 120 * kSecondNs) {
    return ranks_.table().window_wait_signal(window_, rank,
                                             Deadline::after(monotonic_now_ns(), timeout_ns).ns());
  }
  void close() { ranks_.close_window(window_, 120 * kSecondNs); }

 private:
  Communicator& ranks_;
  towline_collective_window* window_;
};

// The bytes that rank `from` puts into its place in rank `to`'s window.
std::vector<uint8_t> stamped(int from, int to, uint64_t bytes) {
  std::vector<uint8_t> made(bytes);
  for (uint64_t i = 0; i < bytes; ++i)
    made[i] = static_cast<uint8_t>(i * 7 + i / 251 + static_cast<uint64_t>(from * 16 + to));
  return made;
}

class Windows : public testing::TestWithParam<int> {  // ranks per host; 0: all on one
 protected:
  World world() const {
    World made;
    made.size = 4;
    made.ranks_per_host = GetParam();
    return made;
  }
  bool one_host(int a, int b) const { return GetParam() == 0 || a / GetParam() == b / GetParam(); }
};

TEST_P(Windows, WhatIsPutIsThereWhenItsSignalIs) {
  run_ranks(world(), [&](Communicator& ranks) {
    const int me = ranks.rank();
    const int n = ranks.size();
    // Small, one piece and a bit, several pieces.
    for (const uint64_t bytes : {uint64_t{1}, uint64_t{70'001}, uint64_t{2'500'003}}) {
      TestWindow window(ranks, nullptr, bytes * static_cast<uint64_t>(n));
      do_barrier(ranks);
      for (int to = 0; to < n; ++to) {
        ASSERT_EQ(window.put(to, bytes * static_cast<uint64_t>(me), stamped(me, to, bytes)), TOWLINE_OK);
        ASSERT_EQ(window.signal(to), TOWLINE_OK);
      }
      for (int from = 0; from < n; ++from) {
        ASSERT_EQ(window.wait_signal(from), TOWLINE_OK);
        const auto expected = stamped(from, me, bytes);
        EXPECT_EQ(std::memcmp(window.map(me) + bytes * static_cast<uint64_t>(from), expected.data(), bytes),
                  0)
            << "from rank " << from;
      }
      do_barrier(ranks);
      for (int of = 0; of < n; ++of) {
        std::vector<uint8_t> got(bytes);
        ASSERT_EQ(window.get(of, bytes * static_cast<uint64_t>(n - 1), got), TOWLINE_OK);
        EXPECT_EQ(got, stamped(n - 1, of, bytes));
      }
      EXPECT_EQ(window.wait_signal((me + 1) % n, kMillisecondNs), TOWLINE_NOT_YET) << "there was one each";
      window.close();
    }
  });
}

// Nobody puts here: ThreadSanitizer does not see that a rank's look at its memory before a barrier of the host is ordered
// before what a rank of another host puts after it.
TEST_P(Windows, AllocatedMemoryIsZeroed) {
  run_ranks(world(), [&](Communicator& ranks) {
    TestWindow window(ranks, nullptr, 70'001);
    const uint8_t* const mine = window.map(ranks.rank());
    EXPECT_EQ(std::count(mine, mine + 70'001, 0), 70'001);
    window.close();
  });
}

TEST_P(Windows, RanksOfOtherHostsAreNotMapped) {
  run_ranks(world(), [&](Communicator& ranks) {
    // Every rank its own size, one none at all.
    const auto bytes_of = [](int rank) { return rank == 2 ? 0 : 4096u * static_cast<uint32_t>(rank + 1); };
    TestWindow window(ranks, nullptr, bytes_of(ranks.rank()));
    for (int rank = 0; rank < ranks.size(); ++rank) {
      EXPECT_EQ(window.bytes(rank), bytes_of(rank));
      EXPECT_EQ(window.map(rank) != nullptr, rank != 2 && one_host(rank, ranks.rank())) << rank;
    }
    EXPECT_EQ(window.signal(2), TOWLINE_OK) << "who has no memory still counts signals";
    for (int rank = 0; rank < ranks.size() && ranks.rank() == 2; ++rank)
      EXPECT_EQ(window.wait_signal(rank), TOWLINE_OK);
    window.close();
  });
}

TEST_P(Windows, SignalsAreCountedAndThreadsShareThem) {
  run_ranks(world(), [&](Communicator& ranks) {
    constexpr int kSignals = 50;
    TestWindow window(ranks, nullptr, 4096);
    const int to = (ranks.rank() + 2) % ranks.size();
    std::atomic<int> seen{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; ++i) {
      threads.emplace_back([&] {
        for (int k = 0; k < kSignals; ++k) seen += window.wait_signal(to) == TOWLINE_OK ? 1 : 0;
      });
    }
    for (int k = 0; k < 2 * kSignals; ++k) EXPECT_EQ(window.signal(to), TOWLINE_OK);
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(seen, 2 * kSignals);
    window.close();
  });
}

// One rank closes at once, the others when the operation before is over.
TEST_P(Windows, AreClosedAfterTheOperationsBefore) {
  run_ranks(world(), [&](Communicator& ranks) {
    TestWindow window(ranks, nullptr, 4096);
    std::vector<float> data(100'000, 1);
    towline_collective_t call =
        call_of(TOWLINE_COLLECTIVE_ALL_REDUCE, TOWLINE_FLOAT32, data.size(), data.data(), data.data());
    call.reduction = TOWLINE_REDUCE_SUM;
    Work* const work = ranks.start(call, nullptr);
    if (ranks.rank() != 0) {
      EXPECT_EQ(ranks.wait(*work, TOWLINE_FOREVER), Status::kOk) << work->error();
    }
    EXPECT_NO_THROW(window.close());
    EXPECT_EQ(ranks.wait(*work, TOWLINE_FOREVER), Status::kOk) << work->error();
    EXPECT_EQ(data.back(), 4);
    work->release();
  });
}

TEST_P(Windows, SeveralLiveSideBySide) {
  run_ranks(world(), [&](Communicator& ranks) {
    TestWindow first(ranks, nullptr, 4096);
    TestWindow second(ranks, nullptr, 8192);
    const int to = (ranks.rank() + 3) % ranks.size();
    const int from = (ranks.rank() + 1) % ranks.size();
    EXPECT_EQ(first.put(to, 8, stamped(1, to, 100)), TOWLINE_OK);
    EXPECT_EQ(second.put(to, 8, stamped(2, to, 100)), TOWLINE_OK);
    EXPECT_EQ(second.signal(to), TOWLINE_OK);
    EXPECT_EQ(second.wait_signal(from), TOWLINE_OK);
    EXPECT_EQ(std::memcmp(first.map(ranks.rank()) + 8, stamped(1, ranks.rank(), 100).data(), 100), 0);
    EXPECT_EQ(std::memcmp(second.map(ranks.rank()) + 8, stamped(2, ranks.rank(), 100).data(), 100), 0);
    first.close();
    EXPECT_EQ(second.put(to, 4096, stamped(3, to, 100)), TOWLINE_OK);
    second.close();
  });
}

TEST_P(Windows, AnAbortEndsWaitsForSignals) {
  std::atomic<int> opened{0};  // an abort also ends opening on ranks that have not finished it
  run_ranks(world(), [&](Communicator& ranks) {
    TestWindow window(ranks, nullptr, 4096);
    ++opened;
    if (ranks.rank() == 0) {
      eventually([&] { return opened == ranks.size(); });
      ranks.abort("enough");
    } else {
      EXPECT_EQ(window.wait_signal(0), TOWLINE_CANCELLED);
    }
    try {
      window.close();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Status::kCancelled) << error.what();
    }
  });
}

std::string nothing_set(const char*) { return {}; }

TEST(AgentWindowTest, ItsConnectionsHaveTheCommunicatorsKeys) {
  TOWLINE_NEEDS_TLS();
  const secure::testing::Folder folder;
  const std::string key = folder.file("key", secure::testing::key_text());
  const auto agent = make_window_agent(
      "windows", "tcp", "127.0.0.1:0", kSecondNs, false,
      [&](const char* setting) { return std::string_view(setting) == "secure.key_file" ? key : ""; });
  ASSERT_NE(agent->keys(), nullptr);
  EXPECT_NE(agent->keys()->describe().find(key), std::string::npos);
  EXPECT_EQ(make_window_agent("windows", "tcp", "127.0.0.1:0", kSecondNs, false, nothing_set)->keys(),
            nullptr);
}

TEST(AgentWindowTest, ThatHasNoRoomForItsCountersLeavesNothingWithItsAgent) {
  const std::shared_ptr<Agent> agent =
      make_window_agent("windows", "", "127.0.0.1:0", kSecondNs, false, nothing_set);
  Breaker breaker;
  std::vector<uint8_t> memory(4096);
  const AgentWindow::Memory given = {memory.data(), memory.size()};
  const std::size_t before = agent->metadata(nullptr).size();
  for (int i = 0; i < 2; ++i) {
    EXPECT_THROW(AgentWindow(agent, breaker, 0, 2048, given, 1024), Error);  // an agent has 2^20 counters
    EXPECT_EQ(agent->metadata(nullptr).size(), before) << "its memory stays registered";
    EXPECT_NO_THROW(AgentWindow(agent, breaker, 0, 2, given)) << "its counters are lost";
  }
}

TEST(AgentWindowTest, ThatARankHasNoMemoryForIsRefusedOnEveryRank) {
  const auto opened = [](const AgentWindow::Make& make) {
    std::string told;
    EXPECT_THROW(AgentWindow::open_all(
                     "", make, [](size_t) { return false; },
                     [&](int round, std::span<const uint8_t> mine) {
                       if (round == 1) told.assign(mine.begin(), mine.end());
                       return std::vector<std::vector<uint8_t>>{{mine.begin(), mine.end()}};
                     }),
                 Error);
    return told;
  };
  EXPECT_EQ(opened([]() -> std::unique_ptr<AgentWindow> { throw std::bad_alloc(); }), "out of memory")
      << "the others wait for it until their deadline";
  EXPECT_EQ(opened([]() -> std::unique_ptr<AgentWindow> { fail(Status::kLimitExceeded, "no"); }), "no");
}

INSTANTIATE_TEST_SUITE_P(Ways, Windows, testing::Values(0, 1, 2), [](const auto& setup) {
  return setup.param == 0 ? "shm" : setup.param == 1 ? "tcp" : "both";
});

}  // namespace
}  // namespace towline::collectives
