// Two whole agents in one thread, on a clock that moves a little at each look, over connections that break
// while the peer's end of them stands still: what was sent before arrives long after a new connection has
// taken over. Once a WRITE that failed is fenced on both sides, its owner uses the memory for something else,
// and no byte of the WRITE may come to it. A failure prints its seed; TOWLINE_SIMULATIONS sets how many are
// run.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "base/random.h"
#include "capi/handles.h"
#include "simulated_agent.h"
#include "support/open_to_peers.h"

namespace towline {
namespace {

constexpr uint64_t kShare = 1024;
constexpr uint64_t kMoves = 8;
constexpr uint8_t kFresh = 0;  // what the owner writes; no WRITE has it
constexpr uint32_t kWatchedSteps = 3000;

struct StalledSide {
  std::shared_ptr<Agent> agent;
  towline_agent_t handle;
  std::vector<uint8_t> memory = std::vector<uint8_t>(kMoves * kShare);
  towline_region_t* region = nullptr;
  towline_peer_t* peer = nullptr;
  towline_block_list_t* mine = nullptr;
  towline_block_list_t* theirs = nullptr;
};

// A WRITE from one side to a share of the other's memory that is its own.
struct FencedMove {
  enum class State { kIdle, kInFlight, kFencing, kFenced };
  towline_transfer_t* transfer = nullptr;
  uint64_t index = 0;
  State state = State::kIdle;
  uint8_t stamp = 0;
  uint32_t fenced_at_step = 0;
};

class StalledPeers {
 public:
  explicit StalledPeers(uint64_t seed) : random_(seed) {
    for (uint64_t i = 0; i < 2; ++i) open(i, seed);
    for (uint64_t i = 0; i < 2; ++i) introduce(i);
  }
  ~StalledPeers() {
    for (const FencedMove& move : moves_) {
      while (towline_transfer_destroy(move.transfer, 0) == TOWLINE_NOT_YET) drive();
    }
    for (StalledSide& side : sides_) {
      towline_block_list_destroy(side.mine);
      towline_block_list_destroy(side.theirs);
      towline_peer_release(side.peer);
    }
    for (StalledSide& side : sides_) side.agent->close();
    for (StalledSide& side : sides_) EXPECT_EQ(towline_region_deregister(side.region, 0), TOWLINE_OK);
  }

  void run(uint32_t steps) {
    for (uint64_t i = 0; i < kMoves; ++i) make_move(i);
    for (; step_ < steps && !::testing::Test::HasFailure(); ++step_) {
      if (random_.below(4) == 0) touch(moves_[random_.below(moves_.size())]);
      drive();
    }
    // Whatever is not fenced yet is so once the sides talk to each other again.
    const uint32_t end = step_ + 200'000;
    for (; step_ < end && !::testing::Test::HasFailure() && !all_settled(); ++step_) {
      FencedMove& any = moves_[random_.below(moves_.size())];
      if (any.state == FencedMove::State::kFencing) touch(any);
      drive();
    }
    EXPECT_TRUE(all_settled()) << "a WRITE that failed is never fenced";
  }
  [[nodiscard]] uint64_t fences() const { return fences_; }

 private:
  void open(uint64_t index, uint64_t seed) {
    AgentOptions options = testing::simulated_agent(index == 0 ? "left" : "right", &clock_);
    options.workers = 1 + seed % 2;
    options.config.set("tuning.connection.wait", "0s");
    options.config.set("faults", fmt::format("seed={},cut=0.005", seed + index));
    options.config.set("tuning.memory.faults", fmt::format("seed={},delay=0.02:5ms", 1000 * seed + index));
    StalledSide& side = sides_[index];
    side.agent = Agent::create(std::move(options));
    side.handle.agent = side.agent;
    ASSERT_EQ(towline_region_register(&side.handle, side.memory.data(), side.memory.size(),
                                      testing::open_to_peers(), &side.region),
              TOWLINE_OK);
  }

  void introduce(uint64_t index) {
    StalledSide& side = sides_[index];
    StalledSide& other = sides_[1 - index];
    const std::vector<uint8_t> blob = other.agent->metadata(nullptr);
    ASSERT_EQ(towline_peer_add(&side.handle, blob.data(), blob.size(), &side.peer), TOWLINE_OK)
        << towline_last_error();
    side.mine = list(side, nullptr, side.memory);
    side.theirs = list(side, side.peer, other.memory);
  }

  static towline_block_list_t* list(StalledSide& side, towline_peer_t* peer,
                                    const std::vector<uint8_t>& memory) {
    towline_blocks_t blocks = {};
    blocks.address = reinterpret_cast<uint64_t>(memory.data());
    blocks.length = kShare;
    blocks.dimensions = 1;
    blocks.count[0] = kMoves;
    blocks.stride[0] = kShare;
    towline_block_list_t* made = nullptr;
    EXPECT_EQ(towline_block_list_create(&side.handle, peer, &blocks, sizeof blocks, 1, &made), TOWLINE_OK)
        << towline_last_error();
    return made;
  }

  // Even shares are the left side's to write at the right one, odd ones the other way round.
  StalledSide& writer(const FencedMove& move) { return sides_[move.index % 2]; }
  uint8_t* owned(const FencedMove& move) {
    return sides_[1 - move.index % 2].memory.data() + move.index * kShare;
  }

  void make_move(uint64_t index) {
    FencedMove move;
    move.index = index;
    StalledSide& side = writer(move);
    const towline_picks_t picks = {nullptr, 0, 0, index, 1, 1};
    towline_transfer_options_t options{};
    options.struct_size = sizeof options;
    options.from = options.to = picks;
    for (int attempt = 0; attempt < 200 && move.transfer == nullptr; ++attempt) {
      (void)towline_transfer_create(&side.handle, side.mine, side.theirs, &options, &move.transfer);
      drive();
    }
    ASSERT_NE(move.transfer, nullptr) << towline_last_error();
    moves_.push_back(move);
  }

  void touch(FencedMove& move) {
    if (move.state == FencedMove::State::kFenced && step_ > move.fenced_at_step + kWatchedSteps)
      move.state = FencedMove::State::kIdle;
    const bool again = move.state == FencedMove::State::kFencing && random_.below(50) == 0;
    if (move.state != FencedMove::State::kIdle && !again) return;
    if (towline_transfer_wait_fenced(move.transfer, TOWLINE_FENCE_LOCAL, 0) != TOWLINE_OK) return;
    move.stamp = static_cast<uint8_t>(1 + random_.below(255));
    std::memset(writer(move).memory.data() + move.index * kShare, move.stamp, kShare);
    if (towline_transfer_post(move.transfer) >= 0) move.state = FencedMove::State::kInFlight;
  }

  void look_at(FencedMove& move) {
    const uint8_t* const there = owned(move);
    const auto all = [&](uint8_t value) {
      return std::all_of(there, there + kShare, [value](uint8_t byte) { return byte == value; });
    };
    if (move.state == FencedMove::State::kInFlight) {
      const int32_t status = towline_transfer_poll(move.transfer);
      if (status == TOWLINE_IN_PROGRESS) return;
      move.state = status == TOWLINE_OK ? FencedMove::State::kIdle : FencedMove::State::kFencing;
      EXPECT_TRUE(status != TOWLINE_OK || all(move.stamp)) << "done, but not there: move " << move.index;
    }
    if (move.state == FencedMove::State::kFencing &&
        towline_transfer_wait_fenced(move.transfer, TOWLINE_FENCE_LOCAL | TOWLINE_FENCE_REMOTE, 0) ==
            TOWLINE_OK) {
      std::memset(owned(move), kFresh, kShare);
      move.state = FencedMove::State::kFenced;
      move.fenced_at_step = step_;
      ++fences_;
    }
    EXPECT_TRUE(move.state != FencedMove::State::kFenced || all(kFresh))
        << "bytes of move " << move.index << " landed after its fence";
  }

  void drive() {
    for (StalledSide& side : sides_) side.agent->progress();
    for (FencedMove& move : moves_) look_at(move);
  }

  [[nodiscard]] bool all_settled() const {
    return std::all_of(moves_.begin(), moves_.end(), [](const FencedMove& move) {
      return move.state == FencedMove::State::kIdle || move.state == FencedMove::State::kFenced;
    });
  }

  testing::SteppingClock clock_;
  Random random_;
  StalledSide sides_[2];
  std::vector<FencedMove> moves_;
  uint32_t step_ = 0;
  uint64_t fences_ = 0;
};

TEST(FenceSimulation, NoByteOfAWriteLandsAfterItsFence) {
  const uint64_t runs = testing::simulations(20);
  uint64_t fences = 0;
  for (uint64_t seed = 1; seed <= runs; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    StalledPeers simulation(seed);
    if (HasFailure()) return;
    simulation.run(20'000);
    if (HasFailure()) return;
    fences += simulation.fences();
  }
  EXPECT_GT(fences, runs) << "the faults broke hardly anything";
}

}  // namespace
}  // namespace towline
