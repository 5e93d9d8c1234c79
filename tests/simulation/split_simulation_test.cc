// Posts that are split over the workers of an agent on virtual time, over connections that are slow, give little at a
// time and break: one outcome by the deadline, the notice after every byte, and what did not arrive is named. A failure
// prints its seed; TOWLINE_SIMULATIONS sets how many are run.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "base/config/config.h"
#include "base/random.h"
#include "capi/handles.h"
#include "simulated_agent.h"
#include "support/open_to_peers.h"
#include "towline/plan.h"

namespace towline {
namespace {

constexpr uint64_t kSplitBlock = 4096;
constexpr uint64_t kSplitBlocks = 1100;  // more than what is split
constexpr uint64_t kSplitDeadlineNs = 300 * kMillisecondNs;

struct SplitSide {
  std::shared_ptr<Agent> agent;
  towline_agent_t handle;
  std::vector<uint8_t> memory = std::vector<uint8_t>(kSplitBlock * kSplitBlocks);
  towline_region_t* region = nullptr;
};

class SplitPosts {
 public:
  SplitPosts(uint64_t seed, bool cuts) : cuts_(cuts) {
    open(mine_, "mine", seed, cuts);
    open(theirs_, "theirs", seed + 1, cuts);
    const std::vector<uint8_t> blob = theirs_.agent->metadata(nullptr);
    EXPECT_EQ(towline_peer_add(&mine_.handle, blob.data(), blob.size(), &peer_), TOWLINE_OK);
    local_ = list(nullptr, mine_.memory);
    remote_ = list(peer_, theirs_.memory);
    std::atomic<bool> made = false;
    std::atomic<uint32_t> passes = 0;
    std::thread other([&] {  // making a plan waits for its connections
      while (!made.load()) {
        theirs_.agent->progress();
        ++passes;
        std::this_thread::yield();
      }
    });
    // Faults may cut a connection while it is being made; trying again is right. On a busy machine simulated time may pass
    // without the other thread: an attempt begins when that has just run.
    for (int attempt = 0; attempt < 50 && plan_ == nullptr; ++attempt) {
      for (const uint32_t seen = passes; passes.load() < seen + 2;) std::this_thread::yield();
      (void)towline_plan_create(&mine_.handle, local_, remote_, nullptr, &plan_);
    }
    made = true;
    other.join();
    EXPECT_NE(plan_, nullptr) << towline_last_error();
  }
  ~SplitPosts() {
    while (plan_ != nullptr && towline_plan_destroy(plan_, 0) == TOWLINE_NOT_YET) turn();
    towline_block_list_destroy(local_);
    towline_block_list_destroy(remote_);
    towline_peer_release(peer_);
    for (SplitSide* side : {&mine_, &theirs_}) side->agent->close();
    for (SplitSide* side : {&mine_, &theirs_})
      EXPECT_EQ(towline_region_deregister(side->region, 0), TOWLINE_OK);
  }

  void run(uint32_t posts) {
    for (uint32_t i = 1; i <= posts && !::testing::Test::HasFailure(); ++i) run_one(static_cast<uint8_t>(i));
  }
  [[nodiscard]] uint32_t came() const { return came_; }
  [[nodiscard]] uint32_t failed() const { return failed_; }

 private:
  void open(SplitSide& side, const char* name, uint64_t seed, bool cuts) {
    AgentOptions options = testing::simulated_agent(name, &clock_);
    options.workers = 3;
    options.config.set("tuning.split", "on");
    options.config.set("faults", fmt::format("seed={},short=0.2{}", seed, cuts ? ",cut=0.002" : ""));
    options.config.set("tuning.memory.faults", fmt::format("seed={},delay=0.02:2ms", 1000 * seed));
    side.agent = Agent::create(std::move(options));
    side.handle.agent = side.agent;
    ASSERT_EQ(towline_region_register(&side.handle, side.memory.data(), side.memory.size(),
                                      testing::open_to_peers(), &side.region),
              TOWLINE_OK);
  }
  towline_block_list_t* list(towline_peer_t* peer, const std::vector<uint8_t>& memory) {
    towline_blocks_t blocks = {};
    blocks.address = reinterpret_cast<uint64_t>(memory.data());
    blocks.length = kSplitBlock;
    blocks.dimensions = 1;
    blocks.count[0] = kSplitBlocks;
    blocks.stride[0] = kSplitBlock;
    towline_block_list_t* made = nullptr;
    EXPECT_EQ(towline_block_list_create(&mine_.handle, peer, &blocks, sizeof blocks, 1, &made), TOWLINE_OK)
        << towline_last_error();
    return made;
  }

  void turn() {
    mine_.agent->progress();
    theirs_.agent->progress();
  }
  [[nodiscard]] bool arrived(uint64_t block) const {
    return std::memcmp(theirs_.memory.data() + block * kSplitBlock, mine_.memory.data() + block * kSplitBlock,
                       kSplitBlock) == 0;
  }
  // Of everything, in one notice that says which post it was.
  bool take_notice(uint8_t stamp) {
    towline_notice_t notice = {};
    if (towline_notice_receive(&theirs_.handle, &notice, sizeof notice) != TOWLINE_OK) return false;
    const bool this_one = notice.bytes == 1 && *static_cast<const uint8_t*>(notice.data) == stamp;
    towline_notice_release(&theirs_.handle, &notice);
    if (!this_one) return false;  // of a post before it that had failed here already
    for (uint64_t block = 0; block < kSplitBlocks; ++block)
      EXPECT_TRUE(arrived(block)) << "the notice came before block " << block;
    return true;
  }

  void run_one(uint8_t stamp) {
    std::fill(mine_.memory.begin(), mine_.memory.end(), stamp);
    towline_post_options_t options = {};
    options.struct_size = sizeof options;
    options.notice = &stamp;
    options.notice_bytes = 1;
    const uint64_t deadline_ns = clock_.now_ns() + kSplitDeadlineNs;
    options.deadline_ns = deadline_ns;
    towline_post_t* post = nullptr;
    while (towline_plan_post(plan_, &options, &post) == TOWLINE_AGAIN) turn();
    ASSERT_NE(post, nullptr) << towline_last_error();
    int32_t outcome = TOWLINE_IN_PROGRESS;
    bool told = false;
    while ((outcome = towline_post_poll(post)) == TOWLINE_IN_PROGRESS) {
      turn();
      told = take_notice(stamp) || told;
      ASSERT_LT(clock_.now_ns(), deadline_ns + 20 * kMillisecondNs) << "no outcome by the deadline";
    }
    while (towline_post_wait_fenced(post, TOWLINE_FENCE_LOCAL | TOWLINE_FENCE_REMOTE, 0) != TOWLINE_OK)
      turn();
    EXPECT_EQ(towline_post_poll(post), outcome) << "a second outcome";
    towline_result_t result = {};
    result.struct_size = sizeof result;
    ASSERT_EQ(towline_post_result(post, &result), TOWLINE_OK);
    if (outcome == TOWLINE_OK) {
      ++came_;
      EXPECT_EQ(result.bytes, kSplitBlock * kSplitBlocks);
      for (int i = 0; i < 20'000 && !told; ++i) {
        turn();
        told = take_notice(stamp);
      }
      // A connection that is cut may take it along.
      EXPECT_TRUE(told || cuts_) << "its notice never came";
    } else {
      ++failed_;
      expect_named(result);
    }
    towline_post_release(post);
  }
  // In each part, everything before its named range has arrived; a range that is not named is whole.
  void expect_named(const towline_result_t& result) {
    if (result.failed_ranges == 0 || result.failed_ranges > 8) return;
    std::vector<bool> named(kSplitBlocks, false);
    for (uint32_t i = 0; i < result.failed_ranges; ++i) {
      const towline_failed_range_t& range = result.failed[i];
      ASSERT_LE(range.first + range.count, kSplitBlocks);
      std::fill_n(named.begin() + static_cast<std::ptrdiff_t>(range.first), range.count, true);
    }
    // A part's blocks from its range on may be missing; a part without a range is whole.
    for (uint32_t part = 0; part < 3; ++part) {
      const uint64_t begin = kSplitBlocks * part / 3 + 1;
      const uint64_t end = kSplitBlocks * (part + 1) / 3 - 1;
      for (uint64_t block = begin; block < end && !named[block]; ++block)
        EXPECT_TRUE(arrived(block)) << "block " << block << " is neither there nor named";
    }
  }

  testing::SteppingClock clock_;
  const bool cuts_;
  SplitSide mine_;
  SplitSide theirs_;
  towline_peer_t* peer_ = nullptr;
  towline_block_list_t* local_ = nullptr;
  towline_block_list_t* remote_ = nullptr;
  towline_plan_t* plan_ = nullptr;
  uint32_t came_ = 0;
  uint32_t failed_ = 0;
};

TEST(SplitSimulation, OneOutcomeOneFenceAndTheNoticeAfterTheLastByteOfTheLastPart) {
  const uint64_t runs = Config::from_process().get_u64("simulations", 20);
  uint64_t came = 0;
  uint64_t failed = 0;
  for (uint64_t seed = 1; seed <= runs; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    SplitPosts simulation(seed, seed % 2 == 0);
    if (HasFailure()) return;
    simulation.run(5);
    if (HasFailure()) return;
    came += simulation.came();
    failed += simulation.failed();
  }
  EXPECT_GT(came, runs) << "hardly anything came";
  EXPECT_GT(failed, 0u) << "the faults broke nothing";
}

}  // namespace
}  // namespace towline
