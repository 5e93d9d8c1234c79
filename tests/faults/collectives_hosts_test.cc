// Communicators over two hosts: two network namespaces joined by a veth pair, two ranks in each.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <numeric>

#include "collectives_ranks.h"

namespace towline::faults {
namespace {

constexpr int kRanks = 4;

bool shell(const std::string& command) { return std::system((command + " >/dev/null 2>&1").c_str()) == 0; }

bool in_child(const std::function<bool()>& body) {
  return result_of(start([&] { return body() ? 0 : 1; })) == 0;
}

bool can_make_networks() {
  return in_child(
      [] { return unshare(CLONE_NEWNET) == 0 && shell("ip link add tla type veth peer name tlb"); });
}

// This process's network becomes the first host; a process that does nothing else holds the second.
class TwoHosts {
 public:
  TwoHosts() {
    if (unshare(CLONE_NEWNET) != 0) return;
    const Meeting ready;
    holder_ = start([&] {
      if (unshare(CLONE_NEWNET) != 0) return 1;
      ready.mark("there");
      for (;;) ::pause();
    });
    if (!ready.wait("there")) return;
    const std::string holder = std::to_string(holder_);
    const std::string inside = "nsenter -t " + holder + " -n ";
    good_ = shell("ip link set lo up && ip link add tl0 type veth peer name tl1 netns " + holder) &&
            shell("ip addr add 10.79.0.1/24 dev tl0 && ip link set tl0 up") &&
            shell(inside + "ip addr add 10.79.0.2/24 dev tl1") &&
            shell(inside + "ip link set tl1 up && " + inside + "ip link set lo up");
  }
  ~TwoHosts() {
    if (holder_ <= 0) return;
    ::kill(holder_, SIGKILL);
    result_of(holder_);
  }
  bool good() const { return good_; }
  // For a process that was just started: ranks 0 and 1 are of the first host, the others of the second.
  bool enter(int rank) const {
    if (rank < kRanks / 2) return true;
    const int fd = ::open(("/proc/" + std::to_string(holder_) + "/ns/net").c_str(), O_RDONLY | O_CLOEXEC);
    return fd >= 0 && ::setns(fd, CLONE_NEWNET) == 0;
  }

 private:
  pid_t holder_ = -1;
  bool good_ = false;
};

// Every rank's outcome is its exit code, 0 for good.
bool all_good(const std::vector<pid_t>& ranks) {
  bool good = true;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const int result = result_of(ranks[i]);
    if (result != 0) std::fprintf(stderr, "rank %zu ended with %d\n", i, result);
    good = good && result == 0;
  }
  return good;
}

int32_t run(towline_communicator_t* ranks, uint32_t op, const std::vector<float>& in, std::vector<float>& out,
            uint64_t count, int root) {
  towline_collective_t call = {};
  call.struct_size = sizeof call;
  call.op = op;
  call.datatype = TOWLINE_FLOAT32;
  call.reduction = TOWLINE_REDUCE_SUM;
  call.root = root;
  call.count = count;
  call.input = in.data();
  call.output = out.data();
  return towline_collective(ranks, &call, nullptr, nullptr);
}

// Element `i` of rank `rank`'s input, a whole number.
float given(int rank, uint64_t i) { return static_cast<float>(rank * 1000 + static_cast<int>(i % 997)); }

// Every operation with parts of `count`, each element checked. 0, or which operation went wrong.
int every_operation(towline_communicator_t* ranks, int rank, uint64_t count, int root) {
  std::vector<float> in(count * kRanks);
  for (uint64_t i = 0; i < in.size(); ++i) in[i] = given(rank, i);
  const auto total = [](uint64_t i) {
    float sum = 0;
    for (int other = 0; other < kRanks; ++other) sum += given(other, i);
    return sum;
  };
  const uint64_t mine = static_cast<uint64_t>(rank) * count;
  struct Case {
    uint32_t op;
    bool everywhere;  // or at the root alone
    uint64_t length;  // of the result
    uint64_t count;
    std::function<float(uint64_t)> expected;
  };
  const auto part_of_rank = [&](uint64_t i) { return given(static_cast<int>(i / count), i % count); };
  const std::vector<Case> cases = {
      {TOWLINE_COLLECTIVE_ALL_REDUCE, true, count, count, total},
      {TOWLINE_COLLECTIVE_REDUCE, false, count, count, total},
      {TOWLINE_COLLECTIVE_BROADCAST, true, count, count, [&](uint64_t i) { return given(root, i); }},
      {TOWLINE_COLLECTIVE_ALL_GATHER, true, count * kRanks, count, part_of_rank},
      {TOWLINE_COLLECTIVE_GATHER, false, count * kRanks, count, part_of_rank},
      {TOWLINE_COLLECTIVE_REDUCE_SCATTER, true, count, count, [&](uint64_t i) { return total(mine + i); }},
      {TOWLINE_COLLECTIVE_SCATTER, true, count, count, [&](uint64_t i) { return given(root, mine + i); }},
      {TOWLINE_COLLECTIVE_ALL_TO_ALL, true, count * kRanks, count,
       [&](uint64_t i) { return given(static_cast<int>(i / count), mine + i % count); }},
  };
  for (const Case& one : cases) {
    std::vector<float> out(one.length, -1);
    if (run(ranks, one.op, in, out, one.count, root) != TOWLINE_OK) {
      std::fprintf(stderr, "rank %d: %s: %s\n", rank, towline_collective_op_name(one.op),
                   towline_last_error());
      return 10 + static_cast<int>(one.op);
    }
    if (!one.everywhere && rank != root) continue;
    for (uint64_t i = 0; i < one.length; ++i)
      if (out[i] != one.expected(i)) return 30 + static_cast<int>(one.op);
  }
  return 0;
}

// Every rank in a process of its own, half of them on either host, with the communicator of all.
std::vector<pid_t> start_ranks(const TwoHosts& hosts, const Meeting& meeting,
                               const std::function<int(towline_communicator_t*, int)>& body) {
  std::vector<pid_t> children;
  for (int rank = 0; rank < kRanks; ++rank) {
    children.push_back(start([&] {
      if (!hosts.enter(rank)) return 1;
      towline_communicator_t* ranks = join(meeting, rank, kRanks);
      return ranks == nullptr ? 2 : body(ranks, rank);
    }));
  }
  return children;
}

bool operations_across() {
  const TwoHosts hosts;
  if (!hosts.good()) return false;
  const Meeting meeting;
  std::vector<pid_t> children = start_ranks(hosts, meeting, [&](towline_communicator_t* ranks, int rank) {
    // One speaks for a host; all do; several chunks.
    for (const uint64_t count : {uint64_t{3}, uint64_t{50'000}, uint64_t{3'000'000}})
      for (const int root : {0, 3})
        if (const int wrong = every_operation(ranks, rank, count, root); wrong != 0) return wrong;
    return towline_communicator_destroy(ranks) == TOWLINE_OK ? 0 : 3;
  });
  return all_good(children);
}

// Everyone puts into everyone's window, of this host and of the other.
bool windows_across() {
  const TwoHosts hosts;
  if (!hosts.good()) return false;
  const Meeting meeting;
  std::vector<pid_t> children = start_ranks(hosts, meeting, [&](towline_communicator_t* ranks, int rank) {
    constexpr uint64_t kPart = 3'000'000;  // several pieces
    towline_window_t* window = nullptr;
    if (towline_window_create(ranks, nullptr, kPart * kRanks, &window) != TOWLINE_OK) {
      std::fprintf(stderr, "rank %d: %s\n", rank, towline_last_error());
      return 3;
    }
    const auto stamp = [](int from, int to) { return static_cast<uint8_t>(16 * (from + 1) + to); };
    for (int to = 0; to < kRanks; ++to) {
      const std::vector<uint8_t> mine(kPart, stamp(rank, to));
      if (towline_window_put(window, to, kPart * static_cast<uint64_t>(rank), mine.data(), kPart) !=
          TOWLINE_OK)
        return 4;
      if (towline_window_signal(window, to) != TOWLINE_OK) return 5;
    }
    const auto* here = static_cast<const uint8_t*>(towline_window_address(window));
    for (int from = 0; from < kRanks; ++from) {
      if (towline_window_wait_signal(window, from, 120'000'000'000) != TOWLINE_OK) return 6;
      const auto* part = here + kPart * static_cast<uint64_t>(from);
      if (std::count(part, part + kPart, stamp(from, rank)) != kPart) return 7;
    }
    const int far = (rank + kRanks / 2) % kRanks;
    if (towline_window_map_remote(window, far) != nullptr) return 8;
    if (std::string(towline_last_error()).find("another host") == std::string::npos) return 9;
    if (towline_window_map_remote(window, rank ^ 1) == nullptr) return 10;
    if (towline_window_put(window, far, kPart * kRanks, here, 1) != TOWLINE_OUT_OF_RANGE) return 11;
    std::vector<uint8_t> theirs(kPart);
    const uint64_t own = kPart * static_cast<uint64_t>(far);  // has come, as who owns it has put it itself
    if (towline_barrier(ranks, nullptr, nullptr) != TOWLINE_OK) return 12;
    if (towline_window_get(window, far, own, theirs.data(), kPart) != TOWLINE_OK) return 13;
    if (std::count(theirs.begin(), theirs.end(), stamp(far, far)) != kPart) return 14;
    if (towline_window_destroy(window, 120'000'000'000) != TOWLINE_OK) return 15;
    return towline_communicator_destroy(ranks) == TOWLINE_OK ? 0 : 16;
  });
  return all_good(children);
}

// A put into a killed rank of the other host fails, and the error names the lost rank.
bool window_of_a_killed_rank() {
  const TwoHosts hosts;
  if (!hosts.good()) return false;
  const Meeting meeting;
  std::vector<pid_t> children = start_ranks(hosts, meeting, [&](towline_communicator_t* ranks, int rank) {
    towline_window_t* window = nullptr;
    if (towline_window_create(ranks, nullptr, 4'000'000, &window) != TOWLINE_OK) return 3;
    const int victim = kRanks - 1;
    if (rank == victim) {
      meeting.mark("open");
      for (;;) ::pause();
    }
    const std::vector<uint8_t> mine(4'000'000, 1);
    int32_t status = TOWLINE_OK;
    for (int i = 0; status == TOWLINE_OK; ++i) {
      status = towline_window_put(window, victim, 0, mine.data(), mine.size());
      if (i == 1) meeting.mark("going" + std::to_string(rank));
    }
    if (status != TOWLINE_PEER_LOST) {
      std::fprintf(stderr, "rank %d: %d %s\n", rank, status, towline_last_error());
      return 4;
    }
    if (towline_window_wait_signal(window, victim, 20'000'000'000) != TOWLINE_PEER_LOST) return 5;
    if (towline_window_destroy(window, 5'000'000'000) != TOWLINE_PEER_LOST) return 6;
    towline_communicator_destroy(ranks);
    return 0;
  });
  bool good = meeting.wait("open");
  for (int rank = 0; rank < kRanks - 1; ++rank) good = good && meeting.wait("going" + std::to_string(rank));
  ::kill(children.back(), SIGKILL);
  result_of(children.back());
  children.pop_back();
  return all_good(children) && good;
}

bool cut_in_the_middle() {
  const TwoHosts hosts;
  if (!hosts.good()) return false;
  const Meeting meeting;
  std::vector<pid_t> children = start_ranks(hosts, meeting, [&](towline_communicator_t* ranks, int rank) {
    std::vector<float> data(1'000'000, 1);
    towline_collective_options_t options = {};
    options.struct_size = sizeof options;
    options.timeout_ns = 3'000'000'000;
    int32_t status = TOWLINE_OK;
    for (int i = 0; status == TOWLINE_OK; ++i) {
      status = towline_all_reduce(ranks, data.data(), data.data(), data.size(), TOWLINE_FLOAT32,
                                  TOWLINE_REDUCE_MAX, &options, nullptr);
      if (i == 3) meeting.mark("going" + std::to_string(rank));
    }
    if (status != TOWLINE_TIMED_OUT && status != TOWLINE_PEER_LOST) return 3;
    if (std::string(towline_last_error()).find("rank") == std::string::npos) return 4;
    if (towline_communicator_error(ranks, nullptr, 0, nullptr) != status) return 5;
    towline_communicator_destroy(ranks);
    meeting.mark("broken" + std::to_string(rank));
    if (!meeting.wait("healed")) return 6;
    ranks = join(meeting, rank, kRanks);
    if (ranks == nullptr || !all_reduce(ranks, kRanks)) return 7;
    towline_communicator_destroy(ranks);
    return 0;
  });
  bool good = true;
  for (int rank = 0; rank < kRanks; ++rank) good = good && meeting.wait("going" + std::to_string(rank));
  good = good && shell("ip link set tl0 down");
  for (int rank = 0; rank < kRanks; ++rank) good = good && meeting.wait("broken" + std::to_string(rank));
  good = good && shell("ip link set tl0 up");
  meeting.mark("healed");
  return all_good(children) && good;
}

class CollectivesOverTwoHosts : public testing::Test {
 protected:
  void SetUp() override {
    if (!can_make_networks())
      GTEST_SKIP() << "needs the right to make network namespaces and veth pairs (CAP_NET_ADMIN)";
  }
};

TEST_F(CollectivesOverTwoHosts, EveryOperationGivesItsResult) { EXPECT_TRUE(in_child(operations_across)); }

TEST_F(CollectivesOverTwoHosts, WindowsArePutIntoGotFromAndSignalled) {
  EXPECT_TRUE(in_child(windows_across));
}

TEST_F(CollectivesOverTwoHosts, AKilledRanksWindowTellsWhoPutsIntoIt) {
  EXPECT_TRUE(in_child(window_of_a_killed_rank));
}

TEST_F(CollectivesOverTwoHosts, ACutNetworkEndsOperationsByTheirTimeoutAndANewCommunicatorForms) {
  EXPECT_TRUE(in_child(cut_in_the_middle));
}

}  // namespace
}  // namespace towline::faults
