// Two whole agents in one thread, on a clock that moves a little at each look, with faults from a seed:
// whatever happens, every accepted transfer has exactly one outcome by its deadline, what is done is there,
// no notice comes twice or early. A failure prints its seed; TOWLINE_SIMULATIONS sets how many are run.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/random.h"
#include "capi/handles.h"
#include "simulated_agent.h"
#include "support/open_to_peers.h"

namespace towline {
namespace {

constexpr uint64_t kBlock = 256;
constexpr uint64_t kBlocks = 64;
constexpr uint32_t kAgentMoves = 8;  // each with a share of the blocks

struct Side {
  std::shared_ptr<Agent> agent;
  towline_agent_t handle;
  std::vector<uint8_t> memory;
  towline_region_t* region = nullptr;
  towline_peer_t* peer = nullptr;
  towline_block_list_t* mine = nullptr;
  towline_block_list_t* theirs = nullptr;
};

struct Move {
  towline_transfer_t* transfer = nullptr;
  uint32_t side = 0;
  uint64_t posts = 0;
  uint64_t posted_at_ns = 0;
  bool in_flight = false;
  uint8_t stamp = 0;
  uint32_t first = 0;  // its own share of blocks, so that moves do not overwrite one another
};

class Simulation {
 public:
  explicit Simulation(uint64_t seed) : random_(seed) {
    for (uint32_t i = 0; i < 2; ++i) open(i, seed);
    for (uint32_t i = 0; i < 2; ++i) introduce(i);
  }
  ~Simulation() {
    for (Move& move : moves_) EXPECT_EQ(towline_transfer_destroy(move.transfer, TOWLINE_FOREVER), TOWLINE_OK);
    for (Side& side : sides_) {
      towline_block_list_destroy(side.mine);
      towline_block_list_destroy(side.theirs);
      towline_peer_release(side.peer);
    }
    for (Side& side : sides_) side.agent->close();
    for (Side& side : sides_) EXPECT_EQ(towline_region_deregister(side.region, 0), TOWLINE_OK);
  }

  void run(uint32_t steps) {
    for (uint32_t i = 0; i < kAgentMoves; ++i) make_move(i);
    EXPECT_EQ(moves_.size(), kAgentMoves) << towline_last_error();
    for (uint32_t step = 0; step < steps && !::testing::Test::HasFailure(); ++step) {
      if (random_.below(4) == 0 && !moves_.empty()) touch(moves_[random_.below(moves_.size())]);
      drive();
    }
    for (uint32_t step = 0; step < 2'000'000 && any_in_flight(); ++step) drive();
    EXPECT_FALSE(any_in_flight()) << "a transfer has no outcome long after its deadline";
  }
  [[nodiscard]] uint64_t done() const { return done_; }
  [[nodiscard]] uint64_t failed() const { return failed_; }
  [[nodiscard]] uint64_t notices() const { return received_.size(); }

 private:
  void open(uint32_t index, uint64_t seed) {
    AgentOptions options = testing::simulated_agent(index == 0 ? "left" : "right", &clock_);
    options.config.set("tuning.connection.wait", "0s");  // the other side is driven by drive() alone
    if (seed % 4 != 0) {
      options.config.set("faults", fmt::format("seed={},short=0.3,delay=0.02:200us,reorder=0.1,cut={}",
                                               seed + index, seed % 2 == 0 ? "0.0005" : "0"));
    }
    Side& side = sides_[index];
    side.agent = Agent::create(std::move(options));
    side.handle.agent = side.agent;
    side.memory.assign(kBlock * kBlocks, 0);
    ASSERT_EQ(towline_region_register(&side.handle, side.memory.data(), side.memory.size(),
                                      testing::open_to_peers(), &side.region),
              TOWLINE_OK);
  }

  void introduce(uint32_t index) {
    Side& side = sides_[index];
    Side& other = sides_[1 - index];
    const std::vector<uint8_t> blob = other.agent->metadata(nullptr);
    ASSERT_EQ(towline_peer_add(&side.handle, blob.data(), blob.size(), &side.peer), TOWLINE_OK)
        << towline_last_error();
    side.mine = list(side, nullptr, side.memory);
    side.theirs = list(side, side.peer, other.memory);
  }

  static towline_block_list_t* list(Side& side, towline_peer_t* peer, const std::vector<uint8_t>& memory) {
    towline_blocks_t blocks = {};
    blocks.address = reinterpret_cast<uint64_t>(memory.data());
    blocks.length = kBlock;
    blocks.dimensions = 1;
    blocks.count[0] = kBlocks;
    blocks.stride[0] = kBlock;
    towline_block_list_t* made = nullptr;
    EXPECT_EQ(towline_block_list_create(&side.handle, peer, &blocks, sizeof blocks, 1, &made), TOWLINE_OK)
        << towline_last_error();
    return made;
  }

  void make_move(uint32_t index) {
    Move move;
    move.side = index % 2;
    move.first = index * (kBlocks / kAgentMoves);
    const towline_picks_t picks = {nullptr, 0, 0, move.first, 1, kBlocks / kAgentMoves};
    towline_transfer_options_t options{};
    options.struct_size = sizeof options;
    options.notice = "?";
    options.notice_bytes = 1;
    options.from = options.to = picks;
    Side& side = sides_[move.side];
    // Faults may cut the connection while it is being made; that is an error, and trying again is right.
    for (int attempt = 0; attempt < 50 && move.transfer == nullptr; ++attempt) {
      (void)towline_transfer_create(&side.handle, side.mine, side.theirs, &options, &move.transfer);
      drive();
    }
    if (move.transfer != nullptr) moves_.push_back(move);
  }

  void touch(Move& move) {
    if (move.in_flight) {
      if (random_.below(50) == 0) (void)towline_transfer_cancel(move.transfer);
      return;
    }
    if (towline_transfer_wait_fenced(move.transfer, TOWLINE_FENCE_LOCAL, 0) != TOWLINE_OK) return;
    const auto index = static_cast<uint64_t>(&move - moves_.data());
    move.stamp = static_cast<uint8_t>(random_.below(255) + 1);
    std::memset(sides_[move.side].memory.data() + move.first * kBlock, move.stamp,
                kBlocks / kAgentMoves * kBlock);
    const std::string notice = fmt::format("{} {} {}", index, move.posts, move.stamp);
    if (towline_transfer_set_notice(move.transfer, notice.data(), notice.size()) != TOWLINE_OK) return;
    const int32_t status = towline_transfer_post(move.transfer);
    if (status < 0) return;
    sent_.insert(notice);
    ++move.posts;
    move.posted_at_ns = clock_.now_ns();
    move.in_flight = true;
    settle(move);
  }

  void settle(Move& move) {
    const int32_t status = towline_transfer_poll(move.transfer);
    if (status == TOWLINE_IN_PROGRESS) {
      EXPECT_LT(clock_.now_ns(), move.posted_at_ns + testing::kLatestOutcomeNs)
          << "no outcome by the deadline";
      return;
    }
    move.in_flight = false;
    ++(status == TOWLINE_OK ? done_ : failed_);
    if (status != TOWLINE_OK) return;
    const uint8_t* there = sides_[1 - move.side].memory.data() + move.first * kBlock;
    for (uint64_t i = 0; i < kBlocks / kAgentMoves * kBlock; ++i) {
      ASSERT_EQ(there[i], move.stamp) << "done, but byte " << i << " is not there";
    }
  }

  void drive() {
    for (Side& side : sides_) {
      side.agent->progress();
      towline_notice_t notice;
      while (towline_notice_receive(&side.handle, &notice, sizeof notice) == TOWLINE_OK) {
        receive({static_cast<const char*>(notice.data), notice.bytes});
        towline_notice_release(&side.handle, &notice);
      }
    }
    for (Move& move : moves_) {
      if (move.in_flight) settle(move);
    }
  }

  void receive(const std::string& text) {
    EXPECT_TRUE(sent_.contains(text)) << "nobody sent '" << text << "'";
    EXPECT_TRUE(received_.insert(text).second) << "'" << text << "' came twice";
    uint64_t index = 0;
    uint64_t post = 0;
    unsigned stamp = 0;
    ASSERT_EQ(std::sscanf(text.c_str(), "%lu %lu %u", &index, &post, &stamp), 3);
    const Move& move = moves_[index];
    if (move.posts != post + 1) return;  // posted again since: the blocks may hold newer bytes
    const uint8_t* there = sides_[1 - move.side].memory.data() + move.first * kBlock;
    for (uint64_t i = 0; i < kBlocks / kAgentMoves * kBlock; ++i) {
      ASSERT_EQ(there[i], stamp) << "the notice came before byte " << i;
    }
  }

  [[nodiscard]] bool any_in_flight() const {
    for (const Move& move : moves_) {
      if (move.in_flight) return true;
    }
    return false;
  }

  testing::SteppingClock clock_;
  Random random_;
  Side sides_[2];
  std::vector<Move> moves_;
  std::set<std::string> sent_;
  std::set<std::string> received_;
  uint64_t done_ = 0;
  uint64_t failed_ = 0;
};

TEST(AgentSimulation, ExactlyOneOutcomeWhateverHappens) {
  const uint64_t runs = testing::simulations(20);
  uint64_t done = 0;
  uint64_t failed = 0;
  uint64_t notices = 0;
  for (uint64_t seed = 1; seed <= runs; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Simulation simulation(seed);
    if (HasFailure()) return;
    simulation.run(3000);
    if (HasFailure()) return;
    done += simulation.done();
    failed += simulation.failed();
    notices += simulation.notices();
  }
  fmt::print("{} seeds: {} done, {} failed, {} notices\n", runs, done, failed, notices);
  // A simulation in which nothing happens holds nothing.
  EXPECT_GT(done, 100 * runs);
  EXPECT_GE(failed, runs / 4);
  EXPECT_GT(notices, done / 2);
}

}  // namespace
}  // namespace towline
