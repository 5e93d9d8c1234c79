// Communicators among processes, by the C API: killed, stopped, and made again.
#include <gtest/gtest.h>

#include "collectives_ranks.h"

namespace towline::faults {
namespace {

class Collectives : public testing::TestWithParam<uint32_t> {};

TEST_P(Collectives, ProcessesReduceTogether) {
  const Meeting meeting;
  std::vector<pid_t> children;
  for (int rank = 0; rank < 3; ++rank) {
    children.push_back(start([&] {
      towline_communicator_t* ranks = join(meeting, rank, 3, GetParam());
      if (ranks == nullptr) return 1;
      for (int i = 0; i < 20; ++i)
        if (!all_reduce(ranks, 3)) return 2;
      return towline_communicator_destroy(ranks) == TOWLINE_OK ? 0 : 3;
    }));
  }
  for (const pid_t child : children) EXPECT_EQ(result_of(child), 0);
}

// The last rank is killed: while another waits for it, and while a third one is idle.
TEST_P(Collectives, AKilledRankIsNoticedByAllAndTheRestGoOnWithoutIt) {
  const Meeting meeting;
  std::vector<pid_t> children;
  for (int rank = 0; rank < 3; ++rank) {
    children.push_back(start([&] {
      towline_communicator_t* ranks = join(meeting, rank, 3, GetParam());
      if (ranks == nullptr || !all_reduce(ranks, 3)) return 1;
      meeting.mark("ready" + std::to_string(rank));
      if (rank == 2) {
        for (;;) ::pause();
      }
      if (rank == 0) {
        if (towline_barrier(ranks, nullptr, nullptr) != TOWLINE_PEER_LOST) return 2;
      } else {
        const auto limit = Clock::now() + std::chrono::seconds(20);
        while (towline_communicator_error(ranks, nullptr, 0, nullptr) == TOWLINE_OK) {
          if (Clock::now() > limit) return 3;
          std::this_thread::yield();
        }
      }
      char text[1024] = "";
      if (towline_communicator_error(ranks, text, sizeof text, nullptr) != TOWLINE_PEER_LOST) return 4;
      if (std::string(text).find("rank 2 (process ") == std::string::npos) {
        std::fprintf(stderr, "rank %d: %s\n", rank, text);
        return 5;
      }
      towline_communicator_destroy(ranks);
      towline_communicator_t* rest = join(meeting, rank, 2, GetParam(), "rest");
      if (rest == nullptr || !all_reduce(rest, 2)) return 6;
      towline_communicator_destroy(rest);
      return 0;
    }));
  }
  for (int rank = 0; rank < 3; ++rank) EXPECT_TRUE(meeting.wait("ready" + std::to_string(rank)));
  ::kill(children[2], SIGKILL);
  EXPECT_EQ(result_of(children[2]), 128 + SIGKILL);
  EXPECT_EQ(result_of(children[0]), 0);
  EXPECT_EQ(result_of(children[1]), 0);
}

// By a time that the nightly run makes 30 s, well beyond any spinning, yielding and looking for the others.
TEST_P(Collectives, ALateRankIsWaitedFor) {
  const char* const given = std::getenv("TOWLINE_LATE_SECONDS");
  const auto late = std::chrono::seconds(given != nullptr ? std::atoi(given) : 2);
  const auto be_late = [](auto time) {  // the fault itself
    for (const auto end = Clock::now() + time; Clock::now() < end;) std::this_thread::yield();
  };
  const Meeting meeting;
  std::vector<pid_t> children;
  for (int rank = 0; rank < 3; ++rank) {
    children.push_back(start([&] {
      towline_communicator_t* ranks = join(meeting, rank, 3, GetParam());
      if (ranks == nullptr || !all_reduce(ranks, 3)) return 1;
      if (rank == 1) be_late(late);
      if (!all_reduce(ranks, 3)) return 2;
      // And late to what the others issued without waiting, one of whom has gone on to the next.
      if (rank == 2) be_late(late / 2);
      std::vector<float> data(1000, 1);
      towline_work_t* work = nullptr;
      if (towline_all_reduce(ranks, data.data(), data.data(), data.size(), TOWLINE_FLOAT32,
                             TOWLINE_REDUCE_SUM, nullptr, &work) != TOWLINE_OK)
        return 3;
      if (!all_reduce(ranks, 3)) return 4;
      if (towline_work_wait(work, TOWLINE_FOREVER) != TOWLINE_OK || data.front() != 3) return 5;
      towline_work_release(work);
      return towline_communicator_destroy(ranks) == TOWLINE_OK ? 0 : 6;
    }));
  }
  for (const pid_t child : children) EXPECT_EQ(result_of(child), 0);
}

TEST_P(Collectives, AStoppedRankIsWaitedForUntilTheTimeoutAndThenNamed) {
  const Meeting meeting;
  const pid_t stopped = start([&] {
    towline_communicator_t* ranks = join(meeting, 1, 2, GetParam());
    if (ranks == nullptr || !all_reduce(ranks, 2)) return 1;
    meeting.mark("ready");
    if (!meeting.wait("timed out")) return 2;
    // It comes back and gets the same answer, at the latest where the other takes no part any more.
    int32_t status = TOWLINE_OK;
    for (int i = 0; i < 2 && status == TOWLINE_OK; ++i) status = towline_barrier(ranks, nullptr, nullptr);
    return status == TOWLINE_TIMED_OUT ? 0 : 3;
  });
  const pid_t waiting = start([&] {
    towline_communicator_t* ranks = join(meeting, 0, 2, GetParam());
    if (ranks == nullptr || !all_reduce(ranks, 2)) return 1;
    if (!meeting.wait("stopped")) return 2;
    towline_collective_options_t options = {};
    options.struct_size = sizeof options;
    options.timeout_ns = 300'000'000;
    if (towline_barrier(ranks, &options, nullptr) != TOWLINE_TIMED_OUT) return 3;
    if (std::string(towline_last_error()).find("no sign of rank 1") == std::string::npos) return 4;
    meeting.mark("timed out");
    // Stays, so that the other learns why and not that it went.
    return meeting.wait("done") ? 0 : 5;
  });
  EXPECT_TRUE(meeting.wait("ready"));
  ::kill(stopped, SIGSTOP);
  int status = 0;
  EXPECT_EQ(::waitpid(stopped, &status, WUNTRACED), stopped);
  meeting.mark("stopped");
  EXPECT_TRUE(meeting.wait("timed out"));
  ::kill(stopped, SIGCONT);
  EXPECT_EQ(result_of(stopped), 0);
  meeting.mark("done");
  EXPECT_EQ(result_of(waiting), 0);
}

class CollectivesOfHosts : public testing::TestWithParam<int> {};

// Two hosts of two ranks. All but one are in an operation, where they wait for one another, too; rank 0's time passes first, and
// rank 2 comes late.
TEST_P(CollectivesOfHosts, TheRankThatStandsStillIsNamedAndNotOneThatWaitsForIt) {
  const int stopped = GetParam();
  constexpr auto kTime = std::chrono::milliseconds(1500);
  const Meeting meeting;
  std::vector<pid_t> children;
  for (int rank = 0; rank < 4; ++rank) {
    children.push_back(start([&] {
      const char* const host = rank < 2 ? "collectives.host = \"a\"\n" : "collectives.host = \"b\"\n";
      towline_communicator_t* ranks = join(meeting, rank, 4, 0, "hosts", host);
      if (ranks == nullptr || !all_reduce(ranks, 4)) return 1;
      meeting.mark("ready" + std::to_string(rank));
      if (!meeting.wait("stopped")) return 2;
      if (rank != 0 && stopped != 0 && !meeting.wait("rank 0 is there")) return 3;
      if (rank == 2)
        for (const auto end = Clock::now() + kTime / 2; Clock::now() < end;) std::this_thread::yield();
      if (rank == 0) meeting.mark("rank 0 is there");
      towline_collective_options_t options = {};
      options.struct_size = sizeof options;
      options.timeout_ns = static_cast<uint64_t>(std::chrono::nanoseconds(kTime).count());
      float data[4] = {};
      const auto begun = Clock::now();
      const int32_t status =
          towline_all_reduce(ranks, data, data, 4, TOWLINE_FLOAT32, TOWLINE_REDUCE_SUM, &options, nullptr);
      const auto took = Clock::now() - begun;
      const std::string text = towline_last_error();
      const std::string expected = "no sign of rank " + std::to_string(stopped);
      meeting.mark("ended" + std::to_string(rank));
      const bool right =
          status == TOWLINE_TIMED_OUT && text.ends_with(expected) && took < kTime + std::chrono::seconds(2);
      if (!right)
        std::fprintf(stderr, "rank %d: %d after %.1f s: %s\n", rank, status,
                     std::chrono::duration<double>(took).count(), text.c_str());
      // Stays, so that the others learn why and not that it went.
      return meeting.wait("done") && right ? 0 : 4;
    }));
  }
  for (int rank = 0; rank < 4; ++rank) EXPECT_TRUE(meeting.wait("ready" + std::to_string(rank)));
  ::kill(children[static_cast<size_t>(stopped)], SIGSTOP);
  meeting.mark("stopped");
  for (int rank = 0; rank < 4; ++rank)
    if (rank != stopped) {
      EXPECT_TRUE(meeting.wait("ended" + std::to_string(rank)));
    }
  meeting.mark("done");
  ::kill(children[static_cast<size_t>(stopped)], SIGKILL);
  for (int rank = 0; rank < 4; ++rank)
    EXPECT_EQ(result_of(children[static_cast<size_t>(rank)]), rank == stopped ? 128 + SIGKILL : 0) << rank;
}

INSTANTIATE_TEST_SUITE_P(Stopped, CollectivesOfHosts, testing::Values(0, 1, 2, 3));

TEST(CollectiveWindows, ArePutIntoAndSignalled) {
  const Meeting meeting;
  std::vector<pid_t> children;
  for (int rank = 0; rank < 2; ++rank) {
    children.push_back(start([&] {
      towline_communicator_t* ranks = join(meeting, rank, 2);
      if (ranks == nullptr) return 1;
      towline_window_t* window = nullptr;
      if (towline_window_create(ranks, nullptr, 65536, &window) != TOWLINE_OK) {
        std::fprintf(stderr, "rank %d: %s\n", rank, towline_last_error());
        return 2;
      }
      const std::vector<uint8_t> mine(1000, static_cast<uint8_t>(rank + 1));
      if (towline_window_put(window, 1 - rank, 100, mine.data(), mine.size()) != TOWLINE_OK) return 3;
      if (towline_window_signal(window, 1 - rank) != TOWLINE_OK) return 4;
      if (towline_window_wait_signal(window, 1 - rank, 60'000'000'000) != TOWLINE_OK) return 5;
      const auto* here = static_cast<const uint8_t*>(towline_window_address(window));
      if (here[99] != 0 || here[100] != 2 - rank || here[1099] != 2 - rank) return 6;
      std::vector<uint8_t> theirs(1000);
      if (towline_window_get(window, 1 - rank, 100, theirs.data(), 1000) != TOWLINE_OK || theirs != mine)
        return 7;
      if (towline_window_put(window, 1 - rank, 65000, mine.data(), mine.size()) != TOWLINE_OUT_OF_RANGE)
        return 8;
      if (towline_window_wait_signal(window, 1 - rank, 1'000'000) != TOWLINE_NOT_YET) return 9;
      if (towline_window_destroy(window, 60'000'000'000) != TOWLINE_OK) return 10;
      towline_communicator_destroy(ranks);
      return 0;
    }));
  }
  for (const pid_t child : children) EXPECT_EQ(result_of(child), 0);
}

INSTANTIATE_TEST_SUITE_P(Ways, Collectives,
                         testing::Values(0u, uint32_t{TOWLINE_COMMUNICATOR_NO_SHARED_MEMORY}),
                         [](const auto& setup) { return setup.param == 0 ? "shm" : "tcp"; });

}  // namespace
}  // namespace towline::faults
