// Transfers in two legs, and between GPUs, over tcp: a network that is cut, a process that is killed or stopped in the
// middle, at either side. One outcome within the promised time, the blocks that are missing named, the fence, memory
// that can be deregistered, and the next transfer once all is well again. GPUs are made of host memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <fstream>
#include <functional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "eventually.h"
#include "poster.h"
#include "stalling_proxy.h"
#include "support/directed.h"
#include "support/loopback.h"
#include "support/temporary_folder.h"
#include "towline/storage.hpp"
#include "towline/towline.hpp"
#include "victim.h"

namespace towline::faults {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr uint64_t kCutBlock = 1 << 18;
constexpr uint64_t kCutBytes = uint64_t{16} << 20;
constexpr uint64_t kCutBlocks = kCutBytes / kCutBlock;
constexpr const char* kNoticesSoon = "plugins = [\"" TOWLINE_CUDA_FAKE
                                     "\"]\n"
                                     "[peer]\nheartbeat = \"50ms\"\nsuspect = \"150ms\"\nlost = \"400ms\"\n"
                                     "[connection]\ntimeout = \"300ms\"\n"
                                     "[tuning.staging]\nchunk = \"512KiB\"\ndepth = 2\nbytes = \"1MiB\"\n";
// What a busy machine needs, on top of what was promised.
constexpr auto kAtOnce = 1s;
constexpr auto kLost = 450ms + kAtOnce;
constexpr auto kNobodyAnswers = 300ms + kAtOnce;

struct Road {
  const char* name;
  bool file;   // the local side is one, so there are two legs; else GPU memory
  Kind there;  // the peer's memory
};
constexpr Road kGpuToGpu = {"gpu_to_gpu", false, Kind::kVram};
constexpr Road kFileToGpu = {"file_to_gpu", true, Kind::kVram};
constexpr Road kFileToMemory = {"file_to_memory", true, Kind::kDram};

enum class Day : uint8_t { kSwallowed, kStandsStill, kKilled, kStopped };
constexpr const char* kDays[] = {"swallowed", "stands_still", "killed", "stopped"};

// Every word tells where it belongs.
uint64_t word_of(uint64_t i, uint64_t seed) { return (i + seed) * 0x9e3779b97f4a7c15ULL + 1; }

std::string at_ports(uint16_t port, uint16_t given_out) {
  return std::string(kNoticesSoon) + "[tcp]\nport_range = \"" + std::to_string(port) + "-" +
         std::to_string(port) + "\"\nadvertise = \"" + support::loopback_address(given_out) + "\"\n";
}

using RoadAndDay = std::pair<Road, Day>;
constexpr RoadAndDay kRoadsAndDays[] = {
    {kGpuToGpu, Day::kSwallowed},     {kGpuToGpu, Day::kStandsStill}, {kFileToGpu, Day::kSwallowed},
    {kFileToGpu, Day::kStandsStill},  {kFileToGpu, Day::kKilled},     {kFileToGpu, Day::kStopped},
    {kFileToMemory, Day::kSwallowed},
};

void PrintTo(const RoadAndDay& test, std::ostream* out) {
  *out << test.first.name << ", " << kDays[static_cast<int>(test.second)];
}

class BadDays : public ::testing::TestWithParam<RoadAndDay> {
 protected:
  [[nodiscard]] static const Road& road() { return GetParam().first; }
  [[nodiscard]] static Day day() { return GetParam().second; }
  [[nodiscard]] static bool is_cut() { return day() == Day::kSwallowed || day() == Day::kStandsStill; }

  [[nodiscard]] VictimOptions options() const {
    return {.listen = support::loopback_address(listener_port_),
            .backends = "tcp,cuda",
            .config = at_ports(data_port_, data_.port()),
            .kind = road().there};
  }
  [[nodiscard]] Peer meet() const { return agent_.connect(support::loopback_address(listener_.port())); }
  [[nodiscard]] BlockList here() const {
    return road().file ? agent_.block_list(file_.blocks(0, kCutBlock).repeat(kCutBlocks, kCutBlock))
                       : memory();
  }
  [[nodiscard]] BlockList memory() const {
    return agent_.block_list(
        Blocks::at(memory_.data(), kCutBlock, Kind::kVram).repeat(kCutBlocks, kCutBlock));
  }
  [[nodiscard]] static BlockList there(const Peer& peer, const Victim& victim) {
    return peer.block_list(
        Blocks::at(victim.memory(), kCutBlock, road().there).repeat(kCutBlocks, kCutBlock));
  }
  // Over the network, whatever else there is between processes of one host.
  [[nodiscard]] Transfer move(Op op, const Peer& peer, const Victim& victim,
                              std::chrono::milliseconds timeout = 20s) const {
    return directed(agent_, op, here(), there(peer, victim), {.timeout = timeout, .backend = "tcp"});
  }
  static Status run(const Transfer& transfer, Clock::duration limit = 20s) {
    const Status posted = transfer.post();
    return posted == Status::kInProgress ? transfer.wait(limit) : posted;
  }
  static Status status_of(const std::function<Status()>& call) {
    try {
      return call();
    } catch (const Error& error) {
      return error.code();
    }
  }
  // Stamps what is here, by way of the memory for a file.
  void stamp_here(uint64_t seed) {
    auto* words = reinterpret_cast<uint64_t*>(memory_.data());
    for (uint64_t i = 0; i < kCutBytes / 8; ++i) words[i] = word_of(i, seed);
    if (road().file) {
      std::ofstream(path_, std::ios::binary | std::ios::in)
          .write(reinterpret_cast<const char*>(memory_.data()), kCutBytes);
    }
  }
  // Which blocks that are here have this stamp.
  [[nodiscard]] std::vector<bool> stamped_here(uint64_t seed, bool in_file) const {
    std::vector<bool> right(kCutBlocks);
    std::vector<uint64_t> words(kCutBlock / 8);
    std::ifstream file(path_, std::ios::binary);
    for (uint64_t block = 0; block < kCutBlocks; ++block) {
      if (in_file) {
        file.read(reinterpret_cast<char*>(words.data()), kCutBlock);
      } else {
        std::memcpy(words.data(), memory_.data() + block * kCutBlock, kCutBlock);
      }
      right[block] = true;
      for (uint64_t i = 0; i < kCutBlock / 8 && right[block]; ++i)
        right[block] = words[i] == word_of(block * (kCutBlock / 8) + i, seed);
    }
    return right;
  }
  void expect_all_here(uint64_t seed, bool in_file) const {
    EXPECT_EQ(stamped_here(seed, in_file), std::vector<bool>(kCutBlocks, true));
  }
  // Everything that a failed transfer in legs does not name has arrived; without legs, what is before the first name.
  static void expect_rest(const Result& result, const std::vector<bool>& arrived) {
    std::vector<bool> failed(kCutBlocks);
    ASSERT_GE(result.failed_ranges, 1u);
    for (const auto& range : result.failures()) {
      EXPECT_NE(range.status, TOWLINE_OK);
      for (uint64_t block = range.first; block < range.first + range.count; ++block) failed.at(block) = true;
    }
    uint64_t good = 0;
    for (uint64_t block = 0; block < kCutBlocks; ++block) {
      if (failed[block] && !road().file) break;
      if (failed[block]) continue;
      ++good;
      EXPECT_TRUE(arrived[block]) << "block " << block << " is not named as failed";
    }
    EXPECT_LT(good, kCutBlocks);
    if (road().file) {
      EXPECT_GT(good, 0u);
    }
  }
  // Until something has moved and much is left.
  void begin(const Transfer& transfer) {
    if (is_cut()) {
      const Cut how = day() == Day::kSwallowed ? Cut::kSwallows : Cut::kStands;
      data_.cut_after(kCutBytes / 4, how);
      ASSERT_EQ(transfer.post(), Status::kInProgress);
      ASSERT_TRUE(eventually([&] { return data_.is_cut(); }));
      listener_.cut_after(0, how);
      return;
    }
    const uint64_t before = data_.passed();
    ASSERT_EQ(transfer.post(), Status::kInProgress);
    ASSERT_TRUE(eventually([&] {
      (void)transfer.poll();
      return data_.passed() - before >= kCutBytes / 4;
    }));
    ASSERT_EQ(transfer.poll(), Status::kInProgress);
  }
  void expect_everything_ends_in_time(Op op);

  const uint16_t data_port_ = support::free_port();
  const uint16_t listener_port_ = support::free_port();
  StallingProxy data_{data_port_};
  StallingProxy listener_{listener_port_};
  const support::TemporaryFolder folder_;
  const std::string path_ = folder_ / "file";
  // Where no network decides, this process drives its own progress: the middle is where it stops driving.
  const Agent agent_{"poster",
                     {.progress = is_cut() ? Progress::kHosted : Progress::kCaller,
                      .listen = "none",
                      .backends = "tcp,cuda,posix",
                      .config = kNoticesSoon}};
  Memory memory_{kCutBytes};
  Region region_ = agent_.register_memory(
      {.address = memory_.data(), .bytes = kCutBytes, .kind = Kind::kVram}, {.access = Access::kAll});
  Region file_ = agent_.register_storage("file:" + path_, {.create = true, .bytes = kCutBytes});
};

INSTANTIATE_TEST_SUITE_P(All, BadDays, ::testing::ValuesIn(kRoadsAndDays), [](const auto& test) {
  return std::string(test.param.first.name) + "_" + kDays[static_cast<int>(test.param.second)];
});

void BadDays::expect_everything_ends_in_time(Op op) {
  auto victim = std::make_unique<Victim>(options());
  Peer peer = meet();
  stamp_here(1);
  ASSERT_EQ(run(move(Op::write, peer, *victim)), Status::kOk) << last_error();
  stamp_here(2);
  const Transfer half = move(op, peer, *victim, 30s);
  ASSERT_EQ(half.route().find("staged") != std::string::npos, road().file) << half.route();
  const Transfer brief = move(op, peer, *victim, 100ms);
  const Transfer next = move(op, peer, *victim, 5s);
  ASSERT_NO_FATAL_FAILURE(begin(half));
  const auto since = Clock::now();
  if (day() == Day::kKilled) victim->kill_hard();
  if (day() == Day::kStopped) victim->signal(SIGSTOP);

  EXPECT_EQ(half.wait(20s), Status::kPeerLost) << last_error();
  EXPECT_LT(Clock::now() - since, day() == Day::kKilled ? kAtOnce : kLost);
  EXPECT_NE(std::string(last_error()).find("victim"), std::string::npos) << last_error();
  EXPECT_EQ(half.wait_fenced(Fence::kLocal, 20s), Status::kOk) << last_error();
  EXPECT_LT(Clock::now() - since, kLost + kAtOnce);
  EXPECT_EQ(peer.health(), Health::kLost);
  const Result result = half.result();
  if (op == Op::read) expect_rest(result, stamped_here(1, road().file));
  // Nobody hangs meanwhile.
  auto refused_since = Clock::now();
  if (day() != Day::kKilled) {
    ASSERT_EQ(brief.post(), Status::kInProgress);
    ASSERT_EQ(next.post(), Status::kInProgress);
    EXPECT_EQ(brief.wait(20s), Status::kTimedOut) << last_error();
    EXPECT_LT(Clock::now() - refused_since, 100ms + kAtOnce);
    EXPECT_EQ(next.wait(20s), Status::kPeerLost) << last_error();
  } else {
    EXPECT_EQ(run(next), Status::kPeerLost) << last_error();
  }
  EXPECT_LT(Clock::now() - refused_since, 100ms + kNobodyAnswers);
  EXPECT_EQ(next.wait_fenced(Fence::kLocal, 20s), Status::kOk) << last_error();
  // The memory is this process's own again.
  EXPECT_EQ(file_.deregister(kAtOnce), Status::kOk) << last_error();
  EXPECT_EQ(region_.deregister(kAtOnce), Status::kOk) << last_error();
  region_ = agent_.register_memory({.address = memory_.data(), .bytes = kCutBytes, .kind = Kind::kVram},
                                   {.access = Access::kAll});
  file_ = agent_.register_storage("file:" + path_, {.create = true, .bytes = kCutBytes});
  refused_since = Clock::now();
  EXPECT_EQ(status_of([&] { return run(move(op, peer, *victim, 5s)); }), Status::kPeerLost) << last_error();
  EXPECT_LT(Clock::now() - refused_since, 2 * kNobodyAnswers) << "directly and in legs";

  if (is_cut()) data_.heal();
  if (is_cut()) listener_.heal();
  if (day() == Day::kStopped) victim->signal(SIGCONT);
  if (day() == Day::kKilled) {
    victim = nullptr;
    victim = std::make_unique<Victim>(options());
    peer = meet();
  } else {
    ASSERT_EQ(half.wait_fenced(Fence::kRemote, 10s), Status::kOk) << last_error();
    if (op == Op::write) {
      const Transfer back = agent_.transfer(there(peer, *victim), memory(), {.backend = "tcp"});
      ASSERT_TRUE(eventually([&] { return run(back) == Status::kOk; })) << last_error();
      expect_rest(result, stamped_here(2, false));
    }
  }
  stamp_here(3);
  const Transfer again = move(Op::write, peer, *victim);
  ASSERT_TRUE(eventually([&] { return run(again) == Status::kOk; })) << last_error();
  stamp_here(4);
  // Eventually: a busy machine may keep either side from saying a word for the 400 ms after which it counts as lost.
  const Transfer back = move(Op::read, peer, *victim);
  ASSERT_TRUE(eventually([&] { return run(back) == Status::kOk; })) << last_error();
  expect_all_here(3, road().file);
  EXPECT_EQ(victim->finish(), 0);
}

TEST_P(BadDays, AWriteEndsIsFencedAndTheNextOneMoves) { expect_everything_ends_in_time(Op::write); }
TEST_P(BadDays, AReadEndsIsFencedAndTheNextOneMoves) { expect_everything_ends_in_time(Op::read); }

// ---- at the owner's side

using DayAndOp = std::pair<Day, Op>;
void PrintTo(const DayAndOp& test, std::ostream* out) { *out << kDays[static_cast<int>(test.first)]; }

class OwnersBadDays : public ::testing::TestWithParam<DayAndOp> {};

INSTANTIATE_TEST_SUITE_P(
    All, OwnersBadDays,
    ::testing::Values(DayAndOp{Day::kSwallowed, Op::write}, DayAndOp{Day::kStandsStill, Op::write},
                      DayAndOp{Day::kKilled, Op::write}, DayAndOp{Day::kStopped, Op::write},
                      DayAndOp{Day::kSwallowed, Op::read}, DayAndOp{Day::kStandsStill, Op::read},
                      DayAndOp{Day::kKilled, Op::read}, DayAndOp{Day::kStopped, Op::read}),
    [](const auto& test) {
      return std::string(kDays[static_cast<int>(test.param.first)]) +
             (test.param.second == Op::read ? "_read" : "_write");
    });

// The owner takes no part in transfers of its peers; it gets its memory back when it wants it.
TEST_P(OwnersBadDays, MemoryOfAPeerThatIsAwayInTheMiddleIsTheOwnersAgain) {
  const auto [day, op] = GetParam();
  const uint16_t data_port = support::free_port();
  const uint16_t listener_port = support::free_port();
  StallingProxy data{data_port};
  StallingProxy listener{listener_port};
  const Agent agent{"owner",
                    {.listen = support::loopback_address(listener_port),
                     .backends = "tcp,cuda",
                     .config = at_ports(data_port, data.port())}};
  Memory memory{kCutBytes};
  const auto expose = [&] {
    return agent.register_memory({.address = memory.data(), .bytes = kCutBytes, .kind = Kind::kVram},
                                 {.access = Access::kAll});
  };
  Region region = expose();
  const support::TemporaryFolder folder;
  std::ofstream(folder / "posted", std::ios::binary) << std::string(kCutBytes, 'f');
  const PosterOptions options = {.folder = folder.path(),
                                 .config = kNoticesSoon,
                                 .address = support::loopback_address(listener.port()),
                                 .reads = op == Op::read};
  Poster poster(options);
  // It is always in the middle of one.
  ASSERT_TRUE(eventually([&] { return data.passed() > 3 * kCutBytes + kCutBytes / 3; }));
  if (day == Day::kSwallowed || day == Day::kStandsStill) {
    data.cut_after(0, day == Day::kSwallowed ? Cut::kSwallows : Cut::kStands);
    listener.cut_after(0, Cut::kSwallows);
  }
  if (day == Day::kKilled) poster.kill_hard();
  if (day == Day::kStopped) poster.signal(SIGSTOP);
  const auto since = Clock::now();
  EXPECT_EQ(region.deregister(20s), Status::kOk) << last_error();
  EXPECT_LT(Clock::now() - since, kLost + kAtOnce);
  // Nothing lands there any more, not when all is well again either.
  std::memset(memory.data(), 0x5a, kCutBytes);
  data.heal();
  listener.heal();
  if (day == Day::kStopped) poster.signal(SIGCONT);
  region = expose();
  const uint64_t passed = data.passed();
  Poster next(options);
  if (op == Op::read) {
    ASSERT_TRUE(eventually([&] { return data.passed() > passed + 2 * kCutBytes; }));
    EXPECT_EQ(std::count(memory.data(), memory.data() + kCutBytes, std::byte{0x5a}),
              static_cast<ptrdiff_t>(kCutBytes));
  } else {
    ASSERT_TRUE(eventually(
        [&] { return std::count(memory.data(), memory.data() + kCutBytes, std::byte{0x5a}) == 0; }));
  }
}

}  // namespace
}  // namespace towline::faults
