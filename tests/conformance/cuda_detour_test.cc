// The cuda transport where no GPU of this process reaches the peer's memory: through host memory of both,
// with the owner's help. GPUs are made of host memory. What bytes do on the way is in the conformance suite
// (cuda_through_host); here is when it is taken, and what goes wrong.
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "cuda_fixture.h"

namespace towline::conformance {
namespace {

class CudaDetourTest : public CudaTest {
 protected:
  // A transfer that waits at a GPU for gpu("hold", 0).
  Transfer hold_one() {
    Transfer move = make_move();
    EXPECT_EQ(run(move), Status::kOk) << last_error();
    gpu("hold", 1);
    EXPECT_EQ(move.post(), Status::kInProgress);
    while (!command_("held", 0, 0, 0)) std::this_thread::yield();
    return move;
  }
};

TEST_F(CudaDetourTest, GpusWithoutAPathGoThroughHostMemoryAndSaySo) {
  gpu("separate", 1);
  stamp(left_memory_.data(), left_memory_.size(), 1);
  const Transfer move = make_move({.notice = "moved"});
  EXPECT_NE(move.route().find("through host memory: no P2P to GPU-f0f0f0f0"), std::string::npos)
      << move.route();
  ASSERT_EQ(run(move), Status::kOk) << last_error();
  EXPECT_TRUE(arrived());
  Notice notice;
  while (right_->receive(notice) != Status::kOk) ASSERT_EQ(right_->wait(20s), Status::kOk);
  EXPECT_EQ(notice.text(), "moved");
  EXPECT_NE(move.route().find("\"through_host_memory\""), std::string::npos) << move.route();
}

TEST_F(CudaDetourTest, WhatTurnsOutToHaveNoPathWhenItIsMappedGoesThatWayToo) {
  {
    const Transfer first = make_move();
    EXPECT_NE(first.route().find("VMM descriptor"), std::string::npos) << first.route();
  }
  gpu("separate", 1);
  const Buffer ours(kPage * kPages, true);
  gpu("place", reinterpret_cast<uint64_t>(ours.data()), ours.size(), 1);
  const Region here = left_->register_memory(vram(ours, 1), {.access = Access::kAll});
  const Transfer move =
      left_->transfer(peer_->block_list(pages(right_memory_)), left_->block_list(pages(ours, 1)));
  EXPECT_NE(move.route().find("no path between the GPUs"), std::string::npos) << move.route();
  stamp(right_memory_.data(), right_memory_.size(), 2);
  ASSERT_EQ(run(move), Status::kOk) << last_error();
  EXPECT_EQ(std::memcmp(ours.data(), right_memory_.data(), ours.size()), 0);
}

TEST_F(CudaDetourTest, AStreamThatTheDriverRefusesIsNamedAndGoneAround) {
  const Transfer push = make_move();
  gpu("refuse streams", 0);
  const Transfer pull =
      left_->transfer(peer_->block_list(pages(right_memory_)), left_->block_list(pages(left_memory_)));
  EXPECT_NE(pull.route().find("no stream on GPU 0"), std::string::npos) << pull.route();
  EXPECT_NE(push.route().find("push by"), std::string::npos) << push.route();
}

TEST_F(CudaDetourTest, ItIsRefusedWhereSettingsSayNever) {
  restart("through_host = \"never\"\n");
  gpu("separate", 1);
  const std::string text = text_of([&] { (void)make_move(); });
  EXPECT_NE(text.find("no path between the GPUs"), std::string::npos) << text;
}

TEST_F(CudaDetourTest, NoRoomToMapAPeersMemoryIsNamedAndGoneAround) {
  gpu("full", 1);
  {
    const Transfer move = make_move();
    EXPECT_NE(move.route().find("no room to map"), std::string::npos) << move.route();
    EXPECT_EQ(run(move), Status::kOk) << last_error();
  }
  restart("through_host = \"never\"\n");
  const std::string text = text_of([&] { (void)make_move(); });
  EXPECT_NE(text.find("no room to map"), std::string::npos) << text;
}

TEST_F(CudaDetourTest, AnOwnerThatSaysNeverRefusesEachTransfer) {
  right_ = std::make_unique<Agent>("right", options("through_host = \"never\"\n"));
  gpu("separate", 1);
  const Transfer move = make_move();
  EXPECT_EQ(run(move), Status::kPermissionDenied);
  ASSERT_EQ(move.wait_fenced(Fence::kBoth, 20s), Status::kOk);
  const Result result = move.result();
  ASSERT_EQ(result.failed_ranges, 1u);
  EXPECT_EQ(result.failed[0].count, kPages);
}

TEST_F(CudaDetourTest, PrivateHostMemoryOfAPeerIsCopiedByItsOwner) {
  const Buffer theirs(kPage * kPages, false);
  const Region here = left_->register_memory(vram(left_memory_), {.access = Access::kAll});
  const Region there = right_->register_memory(dram(theirs.data(), theirs.size()), {.access = Access::kAll});
  const Peer peer = left_->add_peer(right_->metadata());
  stamp(left_memory_.data(), left_memory_.size(), 3);
  const Transfer write = left_->transfer(left_->block_list(pages(left_memory_)),
                                         peer.block_list(blocks_of(theirs.data(), theirs.size(), kPage)));
  EXPECT_NE(write.route().find("the owner can't share it"), std::string::npos) << write.route();
  ASSERT_EQ(run(write), Status::kOk) << last_error();
  EXPECT_EQ(std::memcmp(left_memory_.data(), theirs.data(), theirs.size()), 0);
}

TEST_F(CudaDetourTest, HostMemoryOfOursReachesAGpuWithoutOneHere) {
  gpu("separate", 1);
  (void)there_and_back(kPage * kPages);
}

TEST_F(CudaDetourTest, RegionsOnSeveralGpusOfTheOwnerGoInOneTransfer) {
  gpu("separate", 1);
  const Buffer second(kPage * kPages, true);
  gpu("place", reinterpret_cast<uint64_t>(second.data()), second.size(), 1);
  stamp(left_memory_.data(), left_memory_.size(), 5);
  const Region here = left_->register_memory(vram(left_memory_), {.access = Access::kAll});
  const Region there = right_->register_memory(vram(right_memory_), {.access = Access::kAll});
  const Region other = right_->register_memory(vram(second, 1), {.access = Access::kAll});
  const Peer peer = left_->add_peer(right_->metadata());
  const BlockList theirs = peer.block_list(std::vector{pages(right_memory_), pages(second, 1)});
  std::vector<uint32_t> picks;
  for (uint32_t i = 0; i < kPages; ++i) picks.push_back(i % 2 == 0 ? i : kPages + i);
  ASSERT_EQ(run(left_->transfer(left_->block_list(pages(left_memory_)), theirs[picks])), Status::kOk)
      << last_error();
  for (uint32_t i = 0; i < kPages; ++i)
    ASSERT_EQ(std::memcmp(left_memory_.data() + i * kPage,
                          (i % 2 == 0 ? right_memory_ : second).data() + i * kPage, kPage),
              0)
        << i;
}

TEST_F(CudaDetourTest, MuchMoreThanTheMemoryInBetweenAndOddPiecesArriveWhole) {
  gpu("separate", 1);
  constexpr uint64_t kBytes = 20 << 20;
  const Buffer mine(kBytes, true);
  const Buffer theirs(kBytes, true);
  const Region here = left_->register_memory(vram(mine), {.access = Access::kAll});
  const Region there = right_->register_memory(vram(theirs), {.access = Access::kAll});
  const Peer peer = left_->add_peer(right_->metadata());
  for (const uint64_t piece : {uint64_t{100}, uint64_t{4096}, uint64_t{3} << 20}) {
    stamp(mine.data(), kBytes, piece);
    const uint64_t count = kBytes / piece;
    const auto blocks = [&](const Buffer& memory) {
      return Blocks::at(memory.data(), piece, Kind::kVram).repeat(count, piece);
    };
    std::vector<uint32_t> picks(count);
    for (uint32_t i = 0; i < count; ++i) picks[i] = static_cast<uint32_t>(count - 1 - i);
    const Transfer write =
        left_->transfer(left_->block_list(blocks(mine))[picks], peer.block_list(blocks(theirs)));
    ASSERT_EQ(run(write), Status::kOk) << last_error();
    for (uint64_t i = 0; i < count; ++i)
      ASSERT_EQ(std::memcmp(theirs.data() + i * piece, mine.data() + picks[i] * piece, piece), 0) << i;
    stamp(theirs.data(), kBytes, piece + 1);
    const Transfer read =
        left_->transfer(peer.block_list(blocks(theirs)), left_->block_list(blocks(mine))[picks]);
    ASSERT_EQ(run(read), Status::kOk) << last_error();
    for (uint64_t i = 0; i < count; ++i)
      ASSERT_EQ(std::memcmp(theirs.data() + i * piece, mine.data() + picks[i] * piece, piece), 0) << i;
  }
}

TEST_F(CudaDetourTest, ACancelledTransferIsFencedOnceTheOwnerHasAnswered) {
  gpu("separate", 1);
  const Transfer move = hold_one();
  move.cancel();
  EXPECT_EQ(move.wait(20s), Status::kCancelled);
  EXPECT_EQ(move.wait_fenced(Fence::kBoth, 1ms), Status::kNotYet);
  gpu("hold", 0);
  EXPECT_EQ(move.wait_fenced(Fence::kBoth, 20s), Status::kOk);
  stamp(left_memory_.data(), left_memory_.size(), 7);
  EXPECT_EQ(run(move), Status::kOk);
  EXPECT_TRUE(arrived());
}

TEST_F(CudaDetourTest, MemoryTakenAwayUnderTheOwnersRegionIsFoundBeforeItIsTouched) {
  gpu("separate", 1);
  const Transfer move = make_move();
  gpu("forget", reinterpret_cast<uint64_t>(right_memory_.data()), right_memory_.size());
  EXPECT_EQ(run(move), Status::kStale);
}

TEST_F(CudaDetourTest, AGpuThatRefusesEndsOnlyTheTransferAndNamesItsCode) {
  gpu("separate", 1);
  const Transfer move = make_move();
  ASSERT_EQ(run(move), Status::kOk) << last_error();
  gpu("refuse", 1, 701);
  EXPECT_EQ(run(move), Status::kIo);
  ASSERT_EQ(move.wait_fenced(Fence::kBoth, 20s), Status::kOk);
  const Result result = move.result();
  ASSERT_GE(result.failed_ranges, 1u);
  EXPECT_EQ(result.failed[0].vendor_code, 701);
  EXPECT_EQ(run(move), Status::kOk) << last_error();
}

TEST_F(CudaDetourTest, DeregisteringWaitsForTheOwnersCopy) {
  gpu("separate", 1);
  const Transfer move = hold_one();
  EXPECT_EQ(right_region_->deregister(50ms), Status::kNotYet);
  gpu("hold", 0);
  EXPECT_EQ(right_region_->deregister(20s), Status::kOk) << last_error();
}

TEST_F(CudaDetourTest, AnOwnerThatGoesEndsWhatItWasAskedFor) {
  gpu("separate", 1);
  const Transfer move = hold_one();
  std::thread letting_go([&] {
    std::this_thread::yield();
    gpu("hold", 0);
  });
  right_region_.reset();
  right_.reset();
  letting_go.join();
  const Status status = move.wait(20s);
  EXPECT_NE(status, Status::kInProgress);
  EXPECT_EQ(move.wait_fenced(Fence::kLocal, 20s), Status::kOk);
}

// Posts of two plans that go through host memory, one of much and one of a page.
class CudaDetourUrgentTest : public CudaDetourTest {
 protected:
  static constexpr uint64_t kMuch = 64 << 20;

  void SetUp() override {
    CudaDetourTest::SetUp();
    if (HasFatalFailure()) return;
    gpu("separate", 1);
    connect();
    much_here_ = std::make_unique<Region>(left_->register_memory(vram(mine_), {.access = Access::kAll}));
    much_there_ = std::make_unique<Region>(right_->register_memory(vram(theirs_), {.access = Access::kAll}));
    peer_ = std::make_unique<Peer>(left_->add_peer(right_->metadata()));
    const auto whole = [](const Buffer& memory) { return Blocks::at(memory.data(), kMuch, Kind::kVram); };
    much_.emplace(left_->plan(left_->block_list(whole(mine_)), peer_->block_list(whole(theirs_))));
    page_.emplace(
        left_->plan(left_->block_list(pages(left_memory_)), peer_->block_list(pages(right_memory_))));
    const Post first =
        page_->post({.from = Range{0, 1, 1}, .to = Range{0, 1, 1}, .stream = unordered});  // not numbered
    EXPECT_EQ(first.wait(20s), Status::kOk) << last_error();
    gpu("hold", 1);
  }
  void TearDown() override {
    page_.reset();
    much_.reset();
    much_here_.reset();
    much_there_.reset();
    CudaDetourTest::TearDown();
  }
  [[nodiscard]] Post post_page(Priority priority) {
    return page_->post({.from = Range{0, 1, 1},
                        .to = Range{0, 1, 1},
                        .priority = priority,
                        .stream = unordered,
                        .user_data = &page_end_,
                        .callback = &number});
  }
  [[nodiscard]] Post post_much(Priority priority) {
    return much_->post(
        {.priority = priority, .stream = unordered, .user_data = &much_end_, .callback = &number});
  }
  // The ends come in this order, however late the test looks.
  struct End {
    std::atomic<int>* ends;
    std::atomic<int> place{0};
  };
  static void number(const towline_completion_t* completion) {
    auto& end = *static_cast<End*>(completion->user_data);
    end.place = ++*end.ends;
  }
  void expect_the_page_first() const {
    const auto until = std::chrono::steady_clock::now() + 20s;
    while ((page_end_.place == 0 || much_end_.place == 0) && std::chrono::steady_clock::now() < until)
      std::this_thread::yield();
    EXPECT_LT(page_end_.place, much_end_.place);
  }
  // That were begun, according to the route.
  [[nodiscard]] uint64_t chunks() const {
    const std::string route = page_->route();
    constexpr std::string_view kName = "\"chunks\":";
    const size_t at = route.find(kName);
    EXPECT_NE(at, std::string::npos) << route;
    return at == std::string::npos ? 0 : std::stoull(route.substr(at + kName.size()));
  }
  void wait_for_chunks(uint64_t count) const {
    const auto until = std::chrono::steady_clock::now() + 20s;
    while (chunks() < count && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    EXPECT_EQ(chunks(), count);
  }

  Buffer mine_{kMuch, true};
  Buffer theirs_{kMuch, true};
  std::atomic<int> ends_{0};
  End page_end_{&ends_};
  End much_end_{&ends_};
  std::unique_ptr<Region> much_here_;
  std::unique_ptr<Region> much_there_;
  std::optional<Plan> much_;
  std::optional<Plan> page_;
};

TEST_F(CudaDetourUrgentTest, AnUrgentPostGetsTheNextSlotAndBulkGoesOn) {
  const uint64_t before = chunks();
  const Post bulk = post_much(Priority::bulk);
  wait_for_chunks(before + 8);
  const Post urgent = post_page(Priority::latency);
  gpu("hold", 0);
  ASSERT_EQ(urgent.wait(20s), Status::kOk) << urgent.error();
  EXPECT_EQ(bulk.wait(20s), Status::kOk) << bulk.error();
  expect_the_page_first();
}

TEST_F(CudaDetourUrgentTest, BulkIsNotStarvedByUrgentPosts) {
  const Post urgent = post_much(Priority::latency);
  const Post bulk = post_page(Priority::bulk);
  gpu("hold", 0);
  ASSERT_EQ(bulk.wait(20s), Status::kOk) << bulk.error();
  EXPECT_EQ(urgent.wait(20s), Status::kOk) << urgent.error();
  expect_the_page_first();
}

TEST_F(CudaDetourUrgentTest, WhileUrgentPostsComeBulkLeavesSlotsFree) {
  const uint64_t before = chunks();
  const Post first = post_page(Priority::latency);
  wait_for_chunks(before + 1);
  const Post bulk = post_much(Priority::bulk);
  wait_for_chunks(before + 3);
  const Post second = post_page(Priority::latency);
  wait_for_chunks(before + 4);
  gpu("hold", 0);
  EXPECT_EQ(first.wait(20s), Status::kOk) << first.error();
  EXPECT_EQ(second.wait(20s), Status::kOk) << second.error();
  EXPECT_EQ(bulk.wait(20s), Status::kOk) << bulk.error();
}

TEST_F(CudaDetourTest, StreamsAreRefusedWithTheReason) {
  gpu("separate", 1);
  const Transfer move = make_move();
  EXPECT_EQ(move.post_on(nullptr), Status::kUnsupported);
  EXPECT_NE(std::string(last_error()).find("host memory"), std::string::npos) << last_error();
}

}  // namespace
}  // namespace towline::conformance
