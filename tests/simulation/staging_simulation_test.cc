// Transfers between a peer's memory and a file, through staging memory, in one thread, on a clock that moves
// by being looked at, over connections that are cut, delayed and shortened from a seed: one outcome by the
// deadline, what is done is there, and of what failed the blocks that are not named as failed are there too.
// A failure prints its seed; TOWLINE_SIMULATIONS sets how many are run.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "capi/handles.h"
#include "simulated_agent.h"
#include "support/open_to_peers.h"
#include "towline/storage.h"

namespace towline {
namespace {

constexpr uint64_t kFileBlock = 1000;  // no divisor of a chunk
constexpr uint64_t kBlocksEach = 50;
constexpr uint64_t kStagedMoves = 4;
constexpr uint64_t kBytesEach = kFileBlock * kBlocksEach;
constexpr uint64_t kBytes = kBytesEach * kStagedMoves;

struct StagedMove {
  towline_transfer_t* transfer = nullptr;
  uint32_t op = TOWLINE_READ;
  uint64_t first = 0;  // byte of its own share
  uint64_t posted_at_ns = 0;
  bool in_flight = false;
  uint8_t stamp = 0;
};

class StagingRun {
 public:
  explicit StagingRun(uint64_t seed) : random_(seed) {
    fd_ = ::memfd_create("staging-simulation", MFD_CLOEXEC);
    EXPECT_EQ(::ftruncate(fd_, kBytes), 0);
    owner_.agent = open("owner", "memory", seed);
    stager_.agent = open("stager", "memory,posix", seed + 1);
    memory_.resize(kBytes);
    EXPECT_EQ(towline_region_register(&owner_, memory_.data(), kBytes, testing::open_to_peers(), &region_),
              TOWLINE_OK);
    towline_storage_options_t options{};
    options.struct_size = sizeof options;
    options.access = TOWLINE_ACCESS_ALL;
    options.fd = fd_;
    EXPECT_EQ(towline_storage_register(&stager_, nullptr, &options, &file_), TOWLINE_OK)
        << towline_last_error();
    const std::vector<uint8_t> blob = owner_.agent->metadata(nullptr);
    EXPECT_EQ(towline_peer_add(&stager_, blob.data(), blob.size(), &peer_), TOWLINE_OK)
        << towline_last_error();
    ours_ = list(nullptr, 0, TOWLINE_MEMORY_FILE, towline_region_device(file_));
    theirs_ = list(peer_, reinterpret_cast<uint64_t>(memory_.data()), TOWLINE_MEMORY_DRAM, 0);
  }
  ~StagingRun() {
    for (StagedMove& move : moves_)
      EXPECT_EQ(towline_transfer_destroy(move.transfer, TOWLINE_FOREVER), TOWLINE_OK);
    towline_block_list_destroy(ours_);
    towline_block_list_destroy(theirs_);
    towline_peer_release(peer_);
    stager_.agent->close();
    owner_.agent->close();
    (void)towline_region_deregister(file_, 0);
    (void)towline_region_deregister(region_, 0);
    ::close(fd_);
  }

  void run(uint32_t steps) {
    for (uint64_t i = 0; i < kStagedMoves; ++i) make_move(i);
    EXPECT_EQ(moves_.size(), kStagedMoves) << towline_last_error();
    for (uint32_t step = 0; step < steps && !::testing::Test::HasFailure(); ++step) {
      if (random_.below(4) == 0 && !moves_.empty()) touch(moves_[random_.below(moves_.size())]);
      drive();
    }
    for (uint32_t step = 0; step < 2'000'000 && any_in_flight(); ++step) drive();
    EXPECT_FALSE(any_in_flight()) << "a transfer has no outcome long after its deadline";
  }

  uint64_t done = 0;

 private:
  std::shared_ptr<Agent> open(const char* name, const char* backends, uint64_t seed) {
    AgentOptions options = testing::simulated_agent(name, &clock_);
    if (std::string(backends) != "memory") options.backends.emplace_back("posix");
    options.config.set("tuning.posix.engine", "pread");
    options.config.set("tuning.staging.chunk", "4KiB");
    options.config.set("tuning.staging.depth", seed % 2 == 0 ? "2" : "3");
    options.config.set("tuning.staging.bytes", "24KiB");
    if (seed % 4 > 1) {
      options.config.set("faults", fmt::format("seed={},short=0.3,delay=0.02:200us,reorder=0.1,cut={}", seed,
                                               seed % 3 == 0 ? "0.0005" : "0"));
    }
    return Agent::create(std::move(options));
  }

  towline_block_list_t* list(towline_peer_t* peer, uint64_t address, uint32_t kind, uint64_t device) {
    towline_blocks_t blocks = {};
    blocks.address = address;
    blocks.length = kFileBlock;
    blocks.kind = kind;
    blocks.device = device;
    blocks.dimensions = 1;
    blocks.count[0] = kBytes / kFileBlock;
    blocks.stride[0] = kFileBlock;
    towline_block_list_t* made = nullptr;
    EXPECT_EQ(towline_block_list_create(&stager_, peer, &blocks, sizeof blocks, 1, &made), TOWLINE_OK)
        << towline_last_error();
    return made;
  }

  void make_move(uint64_t index) {
    StagedMove move;
    move.op = index % 2 == 0 ? TOWLINE_READ : TOWLINE_WRITE;
    move.first = index * kBytesEach;
    const towline_picks_t picks = {nullptr, 0, 0, index * kBlocksEach, 1, kBlocksEach};
    towline_transfer_options_t options{};
    options.struct_size = sizeof options;
    options.from = options.to = picks;
    const bool reads = move.op == TOWLINE_READ;
    for (int attempt = 0; attempt < 50 && move.transfer == nullptr; ++attempt) {
      (void)towline_transfer_create(&stager_, reads ? theirs_ : ours_, reads ? ours_ : theirs_, &options,
                                    &move.transfer);
      drive();
    }
    if (move.transfer != nullptr) moves_.push_back(move);
  }

  void touch(StagedMove& move) {
    if (move.in_flight) {
      if (random_.below(100) == 0) (void)towline_transfer_cancel(move.transfer);
      return;
    }
    if (towline_transfer_wait_fenced(move.transfer, TOWLINE_FENCE_LOCAL | TOWLINE_FENCE_REMOTE, 0) !=
        TOWLINE_OK) {
      // A remote fence that hangs on a connection of its own may need one: post again, that makes one.
      if (towline_transfer_wait_fenced(move.transfer, TOWLINE_FENCE_LOCAL, 0) != TOWLINE_OK) return;
    }
    move.stamp = static_cast<uint8_t>(random_.below(255) + 1);
    const std::vector<uint8_t> bytes(kBytesEach, move.stamp);
    if (move.op == TOWLINE_READ) {
      std::memcpy(memory_.data() + move.first, bytes.data(), kBytesEach);
    } else {
      ASSERT_EQ(::pwrite(fd_, bytes.data(), kBytesEach, static_cast<off_t>(move.first)),
                static_cast<ssize_t>(kBytesEach));
    }
    if (towline_transfer_post(move.transfer) < 0) return;
    move.posted_at_ns = clock_.now_ns();
    move.in_flight = true;
    settle(move);
  }

  void settle(StagedMove& move) {
    const int32_t status = towline_transfer_poll(move.transfer);
    if (status == TOWLINE_IN_PROGRESS) {
      EXPECT_LT(clock_.now_ns(), move.posted_at_ns + testing::kLatestOutcomeNs)
          << "no outcome by the deadline";
      return;
    }
    // The ranges are complete once the fence is there.
    if (towline_transfer_wait_fenced(move.transfer, TOWLINE_FENCE_LOCAL, 0) != TOWLINE_OK) return;
    move.in_flight = false;
    towline_result_t result{};
    result.struct_size = sizeof result;
    ASSERT_EQ(towline_transfer_result(move.transfer, &result), TOWLINE_OK);
    ASSERT_EQ(result.status, status);
    std::vector<bool> failed(kBlocksEach);
    if (result.failed_ranges > 8) return;
    for (uint32_t i = 0; i < result.failed_ranges; ++i) {
      for (uint64_t block = 0; block < result.failed[i].count; ++block)
        failed.at(result.failed[i].first + block) = true;
    }
    if (status == TOWLINE_OK) {
      ++done;
      ASSERT_EQ(result.failed_ranges, 0u);
      ASSERT_EQ(result.bytes, kBytesEach);
    }
    std::vector<uint8_t> there(memory_.begin() + static_cast<long>(move.first),
                               memory_.begin() + static_cast<long>(move.first + kBytesEach));
    if (move.op == TOWLINE_READ) {
      ASSERT_EQ(::pread(fd_, there.data(), kBytesEach, static_cast<off_t>(move.first)),
                static_cast<ssize_t>(kBytesEach));
    }
    for (uint64_t i = 0; i < kBytesEach; ++i) {
      ASSERT_TRUE(failed[i / kFileBlock] || there[i] == move.stamp)
          << status << ": block " << i / kFileBlock << " is not named as failed, but byte " << i
          << " is not there";
    }
  }

  void drive() {
    owner_.agent->progress();
    stager_.agent->progress();
    for (StagedMove& move : moves_) {
      if (move.in_flight) settle(move);
    }
  }

  [[nodiscard]] bool any_in_flight() const {
    for (const StagedMove& move : moves_) {
      if (move.in_flight) return true;
    }
    return false;
  }

  testing::SteppingClock clock_;
  Random random_;
  int fd_ = -1;
  std::vector<uint8_t> memory_;
  towline_agent_t owner_;
  towline_agent_t stager_;
  towline_region_t* region_ = nullptr;
  towline_region_t* file_ = nullptr;
  towline_peer_t* peer_ = nullptr;
  towline_block_list_t* ours_ = nullptr;
  towline_block_list_t* theirs_ = nullptr;
  std::vector<StagedMove> moves_;
};

TEST(StagingSimulation, OneOutcomeAndWhatIsNotNamedAsFailedIsThere) {
  const uint64_t runs = testing::simulations(10);
  uint64_t done = 0;
  for (uint64_t seed = 1; seed <= runs; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    StagingRun simulation(seed);
    if (HasFailure()) return;
    simulation.run(3000);
    if (HasFailure()) return;
    done += simulation.done;
  }
  EXPECT_GT(done, runs);
}

}  // namespace
}  // namespace towline
