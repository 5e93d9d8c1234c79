// Transfers that are made while a region of theirs is being deregistered: none keeps what the backend had of it.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "capi/handles.h"
#include "simulated_agent.h"
#include "support/open_to_peers.h"

namespace towline {
namespace {

constexpr uint64_t kRegisteredBytes = 4096;

// Two agents of this process whose transfers move the bytes within the post.
class DeregistrationTest : public ::testing::Test {
 protected:
  struct Side {
    std::shared_ptr<Agent> agent;
    towline_agent_t handle;
    std::vector<uint8_t> memory = std::vector<uint8_t>(kRegisteredBytes);
    towline_region_t* region = nullptr;
  };

  DeregistrationTest() {
    open(mine_, "mine");
    open(theirs_, "theirs");
    const std::vector<uint8_t> blob = theirs_.agent->metadata(nullptr);
    EXPECT_EQ(towline_peer_add(&mine_.handle, blob.data(), blob.size(), &peer_), TOWLINE_OK);
    remote_ = list(peer_, theirs_.memory);
    local_ = list(nullptr, mine_.memory);
  }
  ~DeregistrationTest() override {
    towline_block_list_destroy(local_);
    towline_block_list_destroy(remote_);
    towline_peer_release(peer_);
    for (Side* side : {&mine_, &theirs_}) {
      side->agent->close();
      if (side->region == nullptr) continue;
      EXPECT_EQ(towline_region_deregister(side->region, 0), TOWLINE_OK);
    }
  }

  static void open(Side& side, const char* name) {
    AgentOptions options = testing::simulated_agent(name, nullptr);
    options.clock = AgentOptions{}.clock;
    options.hosted = true;
    options.default_timeout_ns = 20 * kSecondNs;
    options.config.set("tuning.memory.framed", "false");
    side.agent = Agent::create(std::move(options));
    side.handle.agent = side.agent;
    register_memory(side);
  }
  static void register_memory(Side& side) {
    ASSERT_EQ(towline_region_register(&side.handle, side.memory.data(), kRegisteredBytes,
                                      testing::open_to_peers(), &side.region),
              TOWLINE_OK)
        << towline_last_error();
  }
  [[nodiscard]] towline_block_list_t* list(towline_peer_t* peer, const std::vector<uint8_t>& memory) {
    towline_blocks_t blocks = {};
    blocks.address = reinterpret_cast<uint64_t>(memory.data());
    blocks.length = kRegisteredBytes;
    towline_block_list_t* made = nullptr;
    EXPECT_EQ(towline_block_list_create(&mine_.handle, peer, &blocks, sizeof blocks, 1, &made), TOWLINE_OK)
        << towline_last_error();
    return made;
  }
  [[nodiscard]] int32_t make(towline_transfer_t*& transfer) {
    return towline_transfer_create(&mine_.handle, local_, remote_, nullptr, &transfer);
  }

  Side mine_;
  Side theirs_;
  towline_peer_t* peer_ = nullptr;
  towline_block_list_t* local_ = nullptr;
  towline_block_list_t* remote_ = nullptr;
};

// A pin keeps the region where a deregistration has released all transfers and not yet what the backends have.
TEST_F(DeregistrationTest, ATransferOfAnOlderListIsRefusedFromTheBeginningOn) {
  towline_transfer_t* before = nullptr;
  ASSERT_EQ(make(before), TOWLINE_OK) << towline_last_error();
  ASSERT_EQ(towline_transfer_post(before), TOWLINE_OK);
  void* pin = nullptr;
  ASSERT_EQ(mine_.agent->regions().hold(mine_.region->region->ref.key, &pin), Status::kOk);
  ASSERT_EQ(towline_region_deregister(mine_.region, 0), TOWLINE_NOT_YET);
  EXPECT_EQ(towline_transfer_post(before), TOWLINE_STALE);
  towline_transfer_t* later = nullptr;
  EXPECT_EQ(make(later), TOWLINE_STALE);
  EXPECT_EQ(later, nullptr);
  RegionTable::unpin(pin);
  EXPECT_EQ(towline_region_deregister(mine_.region, 20 * kSecondNs), TOWLINE_OK) << towline_last_error();
  mine_.region = nullptr;
  EXPECT_EQ(towline_transfer_destroy(before, TOWLINE_FOREVER), TOWLINE_OK);
}

// The agent knows it already or learns of it later, but it was not prepared when the deregistration closed the gates.
TEST_F(DeregistrationTest, ATransferThatIsPreparedAfterTheGatesWereClosedIsRefused) {
  const auto expect_refused = [&](Transfer& transfer) {
    try {
      transfer.establish("", LateDeadline::in(*mine_.agent, kSecondNs));
      ADD_FAILURE() << "it was prepared";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Status::kStale) << error.what();
    }
    mine_.agent->remove_post(transfer);
  };
  const auto plan = [&] {
    return Plan::compile(local_->own, nullptr, remote_->self->resolved(), nullptr, TOWLINE_WRITE);
  };
  Transfer known(mine_.agent, TOWLINE_WRITE, local_->self, remote_->self, plan(), PostOptions{}, 1);
  Transfer late(mine_.agent, TOWLINE_WRITE, local_->self, remote_->self, plan(), PostOptions{}, 1);
  mine_.agent->add_post(known);
  void* pin = nullptr;
  ASSERT_EQ(mine_.agent->regions().hold(mine_.region->region->ref.key, &pin), Status::kOk);
  ASSERT_EQ(towline_region_deregister(mine_.region, 0), TOWLINE_NOT_YET);
  mine_.agent->add_post(late);
  expect_refused(known);
  expect_refused(late);
  RegionTable::unpin(pin);
  EXPECT_EQ(towline_region_deregister(mine_.region, 20 * kSecondNs), TOWLINE_OK) << towline_last_error();
  mine_.region = nullptr;
}

TEST_F(DeregistrationTest, NoPostThatBeginsAfterItMovesAnything) {
  for (int round = 0; round < 100 && !HasFailure(); ++round) {
    std::atomic<bool> begun{false};
    std::atomic<bool> gone{false};
    int32_t afterwards = TOWLINE_STALE;
    std::thread maker([&] {
      towline_transfer_t* last = nullptr;
      while (!gone.load()) {
        towline_transfer_t* next = nullptr;
        if (make(next) == TOWLINE_OK) {
          if (last != nullptr) (void)towline_transfer_destroy(last, TOWLINE_FOREVER);
          last = next;
          (void)towline_transfer_post(last);
        }
        begun.store(true);
      }
      if (last == nullptr) return;
      afterwards = towline_transfer_post(last);
      (void)towline_transfer_destroy(last, TOWLINE_FOREVER);
    });
    while (!begun.load()) std::this_thread::yield();
    EXPECT_EQ(towline_region_deregister(mine_.region, 20 * kSecondNs), TOWLINE_OK) << towline_last_error();
    gone.store(true);
    maker.join();
    EXPECT_EQ(afterwards, TOWLINE_STALE) << "round " << round;
    towline_block_list_destroy(local_);
    register_memory(mine_);
    local_ = list(nullptr, mine_.memory);
  }
}

}  // namespace
}  // namespace towline
