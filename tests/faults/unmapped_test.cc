// Registered memory whose pages are unmapped, which an application should never do: where the kernel or a library moves
// the bytes, it ends in an error at the transfer; where a NIC does, the pages that it has pinned move. The other process is
// never hurt.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <vector>

#include "eventually.h"
#include "support/directed.h"
#include "victim.h"
#include "ways.h"

namespace towline::faults {
namespace {

using namespace std::chrono_literals;

constexpr uint64_t kMapped = 8u << 20;
constexpr uint64_t kHole = 3u << 20;
constexpr uint64_t kHoleBytes = 1u << 20;

struct Pages {
  Pages()
      : data(static_cast<std::byte*>(mmap(nullptr, kMapped, PROT_READ | PROT_WRITE,
                                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0))) {}
  ~Pages() { munmap(data, kMapped); }
  std::byte* const data;
};

class Unmapped : public ::testing::TestWithParam<Way> {
 protected:
  Unmapped()
      : victim_(GetParam().victim()),
        agent_("here",
               {.listen = GetParam().listen, .backends = GetParam().backends, .config = GetParam().config}),
        region_(agent_.register_memory({.address = memory_, .bytes = kMapped, .kind = Kind::kDram},
                                       {.access = Access::kAll})),
        good_region_(agent_.register_memory({.address = good_, .bytes = kMapped, .kind = Kind::kDram},
                                            {.access = Access::kAll})),
        peer_(agent_.connect(victim_.address())) {}
  [[nodiscard]] Status move(Op op, const std::byte* here, const Peer& peer, uint64_t there,
                            std::string_view notice = {}) const {
    const Transfer made = directed(agent_, op, agent_.block_list(Blocks::at(here, kMapped)),
                                   peer.block_list(Blocks::at(reinterpret_cast<const void*>(there), kMapped)),
                                   {.notice = notice});
    const Status posted = made.post();
    return posted == Status::kInProgress ? made.wait(30s) : posted;
  }
  [[nodiscard]] Status run(Op op, const std::byte* here, uint64_t there = 0,
                           std::string_view notice = {}) const {
    return move(op, here, peer_, victim_.memory() + there, notice);
  }
  // Another move between good memory and a process that lives.
  void expect_that_others_go_on(const Victim& there, const Peer& peer) {
    const uint64_t at = there.memory() + (16u << 20);
    for (int round = 0; round < 2; ++round) {
      std::memset(good_, 'a' + round, kMapped);
      // A connection that broke may take the first one with it.
      ASSERT_TRUE(eventually([&] { return move(Op::write, good_, peer, at) == Status::kOk; }))
          << last_error();
      std::memset(good_, 0, kMapped);
      ASSERT_EQ(move(Op::read, good_, peer, at), Status::kOk) << last_error();
      for (uint64_t i = 0; i < kMapped; ++i) ASSERT_EQ(good_[i], std::byte('a' + round)) << i;
    }
  }

  Victim victim_;
  Agent agent_;
  Pages memory_pages_;
  Pages good_pages_;
  std::byte* const memory_ = memory_pages_.data;
  std::byte* const good_ = good_pages_.data;
  Region region_;
  Region good_region_;
  Peer peer_;
};

class UnmappedHere : public Unmapped {};
class UnmappedThere : public Unmapped {};
class UnmappedUnderANic : public Unmapped {};

TEST_P(UnmappedHere, EndsTheTransferWithAnError) {
  ASSERT_EQ(run(Op::write, memory_), Status::kOk) << last_error();
  ASSERT_EQ(munmap(memory_ + kHole, kHoleBytes), 0);
  for (const Op op : {Op::write, Op::read}) {
    const Status outcome = run(op, memory_, 0, "never");
    EXPECT_EQ(outcome, Status::kStale) << status_name(outcome) << " " << last_error();
    if (std::string(GetParam().backends) == "ucx") break;  // UCX copies what it reads itself
  }
  Notice notice;
  EXPECT_NE(agent_.receive(notice), Status::kOk) << notice.text();
  expect_that_others_go_on(victim_, peer_);
  EXPECT_EQ(victim_.finish(), 0);
}

// What was there when the memory was registered, until it is deregistered.
TEST_P(UnmappedUnderANic, ThePagesThatItHasPinnedMove) {
  std::memset(memory_, 'x', kMapped);
  ASSERT_EQ(run(Op::write, memory_), Status::kOk) << last_error();
  std::memset(memory_, 'y', kMapped);
  ASSERT_EQ(munmap(memory_ + kHole, kHoleBytes), 0);
  EXPECT_EQ(run(Op::write, memory_, 0, "all"), Status::kOk) << last_error();
  ASSERT_EQ(run(Op::read, good_), Status::kOk) << last_error();
  for (uint64_t i = 0; i < kMapped; ++i) ASSERT_EQ(good_[i], std::byte('y')) << i;
  std::memset(good_, 'z', kMapped);
  ASSERT_EQ(run(Op::write, good_), Status::kOk) << last_error();
  EXPECT_EQ(run(Op::read, memory_), Status::kOk) << last_error();
  for (uint64_t i = 0; i < kHole; ++i) ASSERT_EQ(memory_[i], std::byte('z')) << i;
  for (uint64_t i = kHole + kHoleBytes; i < kMapped; ++i) ASSERT_EQ(memory_[i], std::byte('z')) << i;
  expect_that_others_go_on(victim_, peer_);
  EXPECT_EQ(victim_.finish(), 0);
}

// The owner may end, as it does by any access of its own. Peers do not.
TEST_P(UnmappedThere, HurtsNobodyElse) {
  ASSERT_EQ(run(Op::write, memory_), Status::kOk) << last_error();
  const uint64_t first_page = (4096 - victim_.memory() % 4096) % 4096;
  ASSERT_EQ(peer_.send("unmap " + std::to_string(first_page + kHole) + " " + std::to_string(kHoleBytes)),
            Status::kOk);
  Notice notice;
  ASSERT_TRUE(eventually([&] {
    (void)agent_.wait(10ms);
    return agent_.receive(notice) == Status::kOk;
  }));
  const Status outcome = run(Op::write, memory_);
  const std::string way = GetParam().name;
  if (way == "shm_mapped" || way == "rdma_named")
    EXPECT_EQ(outcome, Status::kOk) << "what peers have mapped, and what a NIC has pinned, stays";
  else if (way == "shm_process_vm")
    EXPECT_EQ(outcome, Status::kStale) << status_name(outcome);
  else
    EXPECT_TRUE(outcome == Status::kStale || outcome == Status::kPeerLost || outcome == Status::kIo)
        << status_name(outcome);
  VictimOptions options = GetParam().victim();
  options.name = "another";
  Victim another(options);
  const Peer other = agent_.connect(another.address());
  expect_that_others_go_on(another, other);
}

std::vector<Way> named(const std::vector<std::string>& names) {
  std::vector<Way> all;
  for (const Way& way : ways())
    if (std::find(names.begin(), names.end(), way.name) != names.end()) all.push_back(way);
  return all;
}

// Elsewhere this process copies, and would end.
INSTANTIATE_TEST_SUITE_P(Caught, UnmappedHere,
                         ::testing::ValuesIn(named({"tcp", "shm_process_vm", "ucx_tcp"})),
                         [](const auto& way) { return std::string(way.param.name); });
INSTANTIATE_TEST_SUITE_P(All, UnmappedThere,
                         ::testing::ValuesIn(named({"tcp", "shm_mapped", "shm_process_vm", "shm_ring",
                                                    "rdma_ofi_tcp", "rdma_ofi_shm", "ucx_tcp",
                                                    "tcpx_emulated", "tcpx_mapped", "rdma_named"})),
                         [](const auto& way) { return std::string(way.param.name); });
// In scripts/test-rdma's guest.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(UnmappedUnderANic);
INSTANTIATE_TEST_SUITE_P(Verbs, UnmappedUnderANic, ::testing::ValuesIn(named({"rdma_named"})),
                         [](const auto& way) { return std::string(way.param.name); });

}  // namespace
}  // namespace towline::faults
