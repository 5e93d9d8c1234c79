// The cuda transport over host memory that is not pinned: through the pool, by a GPU of this process alone,
// and pinned meanwhile where it is moved again. GPUs are made of host memory.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "cuda_fixture.h"
#include "support/directed.h"

namespace towline::conformance {
namespace {

constexpr uint64_t kLarge = 20 << 20;  // far more than the pool, and than what is pinned at once

class CudaPoolTest : public CudaTest {
 protected:
  // Host memory of ours to a peer's GPU memory, all of it.
  void make_write(uint64_t bytes = kLarge) {
    ours_ = std::make_unique<Buffer>(bytes, false);
    theirs_ = std::make_unique<Buffer>(bytes, true);
    left_region_ = std::make_unique<Region>(
        left_->register_memory(dram(ours_->data(), bytes), {.access = Access::kAll}));
    right_region_ =
        std::make_unique<Region>(right_->register_memory(vram(*theirs_), {.access = Access::kAll}));
    peer_ = std::make_unique<Peer>(left_->add_peer(right_->metadata()));
    write_ = left_->transfer(left_->block_list(blocks_of(ours_->data(), bytes, kPage)),
                             peer_->block_list(pages(*theirs_)));
  }
  void TearDown() override {
    if (command_ != nullptr) gpu("reset");  // lets go
    write_.reset();
    CudaTest::TearDown();
  }
  // Moves other bytes than the last time.
  void write_anew() {
    stamp(ours_->data(), ours_->size(), ++round_);
    ASSERT_EQ(run(*write_), Status::kOk) << last_error();
    ASSERT_TRUE(arrived());
  }
  // A second post has the memory pinned, and another thread will let that go on.
  std::thread while_it_is_pinned() {
    make_write();
    gpu("hold pins", 1);
    write_anew();
    write_anew();
    while (!command_("pinning", 0, 0, 0)) std::this_thread::yield();
    return std::thread([&] {
      std::this_thread::yield();
      gpu("hold pins", 0);
    });
  }
  [[nodiscard]] bool arrived() const {
    return std::memcmp(ours_->data(), theirs_->data(), ours_->size()) == 0;
  }
  // The last word of one of the chunks that the pool holds at once.
  [[nodiscard]] bool begun_chunk_arrived() const {
    constexpr uint64_t kChunk = 1 << 20;
    for (uint64_t end = kChunk; end <= 8 * kChunk; end += kChunk)
      if (word_of(*ours_, end - 8) == word_of(*theirs_, end - 8)) return true;
    return false;
  }
  [[nodiscard]] bool pinned() const {
    return command_("pinned", reinterpret_cast<uint64_t>(ours_->data()), 0, 0);
  }
  // How many chunks went through the pool so far.
  [[nodiscard]] uint64_t chunks() const {
    const auto route = nlohmann::json::parse(write_->route());
    const auto found = route.flatten();
    uint64_t count = 0;
    for (const auto& [path, value] : found.items())
      if (path.find("through_host_memory/chunks") != std::string::npos) count += value.get<uint64_t>();
    return count;
  }

  std::unique_ptr<Buffer> ours_;
  std::unique_ptr<Buffer> theirs_;
  std::optional<Transfer> write_;
  uint64_t round_ = 0;
};

TEST_F(CudaPoolTest, WhatIsMovedOnceIsNotPinned) {
  make_write();
  write_anew();
  EXPECT_GE(chunks(), kLarge >> 20);
  EXPECT_FALSE(pinned());
  EXPECT_NE(write_->route().find("pinned from its second post on"), std::string::npos) << write_->route();
}

TEST_F(CudaPoolTest, WhatIsMovedAgainIsPinnedMeanwhileAndThenGoesDirectly) {
  make_write();
  gpu("hold pins", 1);
  for (int post = 0; post < 4; ++post) write_anew();  // none waits for that
  EXPECT_FALSE(pinned());
  gpu("hold pins", 0);
  while (!pinned()) std::this_thread::yield();
  uint64_t before = 0;
  do {  // the thread says so a moment later
    before = chunks();
    write_anew();
  } while (chunks() != before);
  const Transfer read = left_->transfer(peer_->block_list(pages(*theirs_)),
                                        left_->block_list(blocks_of(ours_->data(), kLarge, kPage)));
  stamp(theirs_->data(), kLarge, 99);
  EXPECT_EQ(run(read), Status::kOk) << last_error();
  EXPECT_TRUE(arrived());
  EXPECT_EQ(chunks(), before) << "another transfer finds it pinned";
}

TEST_F(CudaPoolTest, ItStaysPinnedUntilItsRegionGoes) {
  make_write(kPage * kPages);
  write_anew();
  EXPECT_EQ(chunks(), 0u) << "little is pinned at once";
  write_.reset();
  EXPECT_TRUE(pinned());
  left_region_.reset();
  EXPECT_FALSE(pinned());
}

TEST_F(CudaPoolTest, TheFirstTransferPinsWhereSettingsSaySo) {
  restart("pin = \"first\"\n");
  make_write();
  EXPECT_TRUE(pinned());
  write_anew();
  EXPECT_EQ(chunks(), 0u);
}

TEST_F(CudaPoolTest, ARegionThatGoesWhileItIsPinnedIsLetGo) {
  std::thread letting_go = while_it_is_pinned();
  EXPECT_EQ(left_region_->deregister(20s), Status::kOk) << last_error();
  letting_go.join();
  EXPECT_FALSE(pinned());
}

TEST_F(CudaPoolTest, AnAgentGoesWhileMemoryIsBeingPinned) {
  std::thread letting_go = while_it_is_pinned();
  write_.reset();
  left_region_.reset();
  peer_.reset();
  left_.reset();
  letting_go.join();
  EXPECT_FALSE(pinned());
}

// The fake GPU would write to memory that is not mapped any more.
TEST_F(CudaPoolTest, AnAgentThatEndsWhileTheGpuEmptiesThePoolUnmapsNothing) {
  make_write();
  stamp(ours_->data(), ours_->size(), 5);
  gpu("hold", 1);
  ASSERT_EQ(write_->post(), Status::kInProgress) << last_error();
  while (!command_("held", 0, 0, 0)) std::this_thread::yield();
  left_.reset();
  EXPECT_EQ(write_->poll(), Status::kClosed);
  gpu("hold", 0);
  while (!begun_chunk_arrived()) std::this_thread::yield();
}

TEST_F(CudaPoolTest, TheOwnerTakesNoPart) {
  gpu("refuse pins", 1);
  AgentOptions idle = options();
  idle.progress = Progress::kCaller;
  right_ = std::make_unique<Agent>("right", idle);
  std::atomic<bool> ready{false};
  std::thread connecting([&] {
    while (!ready) (void)right_->progress();
  });
  make_write();
  write_anew();
  ready = true;
  connecting.join();
  for (int post = 0; post < 5; ++post) write_anew();  // the right agent does nothing any more
  EXPECT_NE(write_->route().find("pinning host memory: refused"), std::string::npos) << write_->route();
}

TEST_F(CudaPoolTest, HostMemoryThatCannotBePinnedGoesThroughThePool) {
  gpu("refuse pins", 1);
  const std::string routes = there_and_back(3 << 20);
  EXPECT_NE(routes.find("\"why\":\"fake GPU: pinning host memory: refused\""), std::string::npos) << routes;
  restart("through_host = \"never\"\n");
  const std::string text = text_of([&] { make_write(); });
  EXPECT_NE(text.find("pinning host memory: refused"), std::string::npos) << text;
}

TEST_F(CudaPoolTest, HostMemoryPinnedForReadingIsUsedByWhatReadsIt) {
  const Buffer ours(kPage * kPages, false);
  gpu("pin for reading", reinterpret_cast<uint64_t>(ours.data()), ours.size());
  const std::string routes = there_and_back(ours);
  const std::string written = routes.substr(0, routes.find('\n'));
  EXPECT_EQ(written.find("pinning host memory"), std::string::npos) << written;
  EXPECT_NE(routes.find("for reading only", written.size()), std::string::npos) << routes;
}

TEST_F(CudaPoolTest, NothingIsPinnedWhereSettingsSaySo) {
  for (const char* threads : {"auto", "0"}) {
    restart(("pin = \"never\"\nhost_threads = \"" + std::string(threads) + "\"\n").c_str());
    const std::string routes = there_and_back(3 << 20);
    EXPECT_NE(routes.find("tuning.cuda.pin is"), std::string::npos) << routes;
  }
}

TEST_F(CudaPoolTest, OddPiecesGoThroughThePoolWhole) {
  restart("pin = \"never\"\n");
  const Buffer mine(kLarge, false);
  const Buffer theirs(kLarge, true);
  const Region here = left_->register_memory(dram(mine.data(), kLarge), {.access = Access::kAll});
  const Region there = right_->register_memory(vram(theirs), {.access = Access::kAll});
  const Peer peer = left_->add_peer(right_->metadata());
  for (const uint64_t piece : {uint64_t{100}, uint64_t{4096}, uint64_t{3} << 20}) {
    const uint64_t count = kLarge / piece;
    std::vector<uint32_t> picks(count);
    for (uint32_t i = 0; i < count; ++i) picks[i] = static_cast<uint32_t>(count - 1 - i);
    const BlockList near =
        left_->block_list(Blocks::at(mine.data(), piece, Kind::kDram).repeat(count, piece));
    const BlockList far = peer.block_list(Blocks::at(theirs.data(), piece, Kind::kVram).repeat(count, piece));
    for (const Op op : {Op::write, Op::read}) {
      stamp((op == Op::write ? mine : theirs).data(), kLarge, piece);
      ASSERT_EQ(run(directed(*left_, op, near[picks], far)), Status::kOk) << last_error();
      for (uint64_t i = 0; i < count; ++i)
        ASSERT_EQ(std::memcmp(theirs.data() + i * piece, mine.data() + picks[i] * piece, piece), 0) << i;
    }
  }
}

TEST_F(CudaPoolTest, AGpuThatRefusesEndsOnlyTheTransferAndNamesItsCode) {
  restart("pin = \"never\"\n");
  make_write();
  write_anew();
  gpu("refuse", 1, 701);
  EXPECT_EQ(run(*write_), Status::kIo);
  ASSERT_EQ(write_->wait_fenced(Fence::kBoth, 20s), Status::kOk);
  const Result result = write_->result();
  ASSERT_GE(result.failed_ranges, 1u);
  EXPECT_EQ(result.failed[0].vendor_code, 701);
  write_anew();
}

TEST_F(CudaPoolTest, ACancelledTransferIsFencedOnceTheGpuIsThrough) {
  make_write();
  gpu("hold", 1);
  ASSERT_EQ(write_->post(), Status::kInProgress);
  while (!command_("held", 0, 0, 0)) std::this_thread::yield();
  write_->cancel();
  EXPECT_EQ(write_->wait(20s), Status::kCancelled);
  EXPECT_EQ(write_->wait_fenced(Fence::kBoth, 1ms), Status::kNotYet);
  gpu("hold", 0);
  EXPECT_EQ(write_->wait_fenced(Fence::kBoth, 20s), Status::kOk);
  write_anew();
}

TEST_F(CudaPoolTest, APostOnAStreamPinsAndAStreamCannotWaitForThePool) {
  void* const stream = reinterpret_cast<void*>(stream_command_("make", nullptr, 0, 0, 0));
  make_write();
  gpu("hold", 1);
  ASSERT_EQ(write_->post(), Status::kInProgress);
  while (!command_("held", 0, 0, 0)) std::this_thread::yield();
  EXPECT_EQ(write_->wait_on(stream), Status::kAgain);
  gpu("hold", 0);
  EXPECT_EQ(write_->wait(20s), Status::kOk);
  EXPECT_EQ(write_->wait_on(stream), Status::kOk) << last_error();
  stamp(ours_->data(), kLarge, 5);
  const uint64_t before = chunks();
  ASSERT_EQ(write_->post_on(stream), Status::kInProgress) << last_error();
  EXPECT_TRUE(pinned());
  EXPECT_EQ(write_->wait(20s), Status::kOk);
  EXPECT_TRUE(arrived());
  EXPECT_EQ(chunks(), before);
  write_.reset();
  (void)stream_command_("free", stream, 0, 0, 0);
}

}  // namespace
}  // namespace towline::conformance
