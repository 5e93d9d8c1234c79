// A backend that can't say when nothing of a failed request moves any more: waits for the fence say so at once, and
// memory that may still be written is not used again.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <array>

#include "cuda_fixture.h"
#include "towline/queue.hpp"

namespace towline::conformance {
namespace {

constexpr const char* kNixlNet =
    "plugins = [\"" TOWLINE_NIXL_NET_PLUGIN "\"]\n[nixl_net]\nlibrary = \"" TOWLINE_FAKE_NIXL_NET "\"\n";
constexpr const char* kBesideAGpu =
    "plugins = [\"" TOWLINE_CUDA_FAKE "\", \"" TOWLINE_NIXL_NET_PLUGIN
    "\"]\n[nixl_net]\nlibrary = \"" TOWLINE_FAKE_NIXL_NET
    "\"\n[tuning.staging]\nchunk = \"64KiB\"\ndepth = 2\nbytes = \"256KiB\"\n";
constexpr auto kFarAway = 60s;  // a wait that is never to last so long

// The engine's next request fails when it is asked about.
void fail_next_request() {
  static auto* const fail = [] {
    void* const library = ::dlopen(TOWLINE_FAKE_NIXL_NET, RTLD_NOW | RTLD_NOLOAD);
    return reinterpret_cast<void (*)(const char*, int)>(::dlsym(library, "fake_nixl_net_fail"));
  }();
  fail("check", 1);
}

template <class Call>
Status at_once(Call&& call) {
  const auto before = std::chrono::steady_clock::now();
  const Status status = call();
  EXPECT_LT(std::chrono::steady_clock::now() - before, kFarAway / 3);
  return status;
}

class NoFence : public ::testing::Test {
 protected:
  static constexpr uint64_t kBytes = 64 << 10;
  std::vector<uint8_t> mine_ = std::vector<uint8_t>(kBytes, 1);
  std::vector<uint8_t> theirs_ = std::vector<uint8_t>(kBytes, 2);
  Agent left_{"left", {.listen = "127.0.0.1:0", .backends = "nixl_net", .config = kNixlNet}};
  Agent right_{"right", {.listen = "127.0.0.1:0", .backends = "nixl_net", .config = kNixlNet}};
  Region left_region_ = left_.register_memory(dram(mine_.data(), kBytes), {.access = Access::kAll});
  Region right_region_ = right_.register_memory(dram(theirs_.data(), kBytes), {.access = Access::kAll});
  Peer peer_ = left_.add_peer(right_.metadata());
  BlockList from_ = left_.block_list(Blocks::at(mine_.data(), kBytes));
  BlockList to_ = peer_.block_list(Blocks::at(theirs_.data(), kBytes));
};

TEST_F(NoFence, OfATransferIsSaidAtOnceAndTheNextOneHasIt) {
  const Transfer move = left_.transfer(from_, to_);
  ASSERT_EQ(move.post(), Status::kInProgress) << last_error();
  ASSERT_EQ(move.wait(20s), Status::kOk) << last_error();
  fail_next_request();
  ASSERT_EQ(move.post(), Status::kInProgress) << last_error();
  ASSERT_EQ(move.wait(20s), Status::kIo) << last_error();
  for (const Fence fence : {Fence::kLocal, Fence::kRemote, Fence::kBoth}) {
    EXPECT_EQ(at_once([&] { return move.wait_fenced(fence, kFarAway); }), Status::kUnsupported);
    EXPECT_NE(
        last_error().find("over nixl_net: it can't say when nothing moves any more; the plugin's engine"),
        std::string_view::npos)
        << last_error();
  }
  EXPECT_EQ(move.poll(), Status::kIo);
  EXPECT_NE(last_error().find("the local memory has no fence"), std::string_view::npos) << last_error();
  EXPECT_EQ(move.result().fences, 0u);
  // The connection is none the worse.
  ASSERT_EQ(move.post(), Status::kInProgress) << last_error();
  ASSERT_EQ(move.wait(20s), Status::kOk) << last_error();
  EXPECT_EQ(move.wait_fenced(Fence::kBoth, 20s), Status::kOk) << last_error();
  EXPECT_EQ(at_once([&] { return left_region_.deregister(kFarAway); }), Status::kOk) << last_error();
}

TEST_F(NoFence, OfAPostIsToldToAQueueAndHoldsUpNoHandle) {
  Plan plan = left_.plan(from_, to_);
  ASSERT_EQ(plan.post().wait(20s), Status::kOk) << last_error();
  const Queue queue(left_);
  fail_next_request();
  Post post = plan.post();
  queue.fence(post, Fence::kLocal, &post);
  ASSERT_EQ(queue.wait(20s), Status::kOk);
  std::array<Event, 2> events;
  ASSERT_EQ(queue.next(events), 1);
  EXPECT_EQ(events[0].outcome(), Status::kUnsupported);
  EXPECT_NE(events[0].error().find("no fence for writing 1 blocks"), std::string_view::npos)
      << events[0].error();
  EXPECT_EQ(post.poll(), Status::kIo);
  EXPECT_EQ(at_once([&] { return post.wait_fenced(Fence::kBoth, kFarAway); }), Status::kUnsupported);
  EXPECT_NE(last_error().find("towline_post_wait_fenced: no fence"), std::string_view::npos) << last_error();
}

TEST_F(NoFence, OfAMemberIsNoneOfItsGroup) {
  Plan plan = left_.plan(from_, to_);
  ASSERT_EQ(plan.post().wait(20s), Status::kOk) << last_error();
  fail_next_request();
  const Group group = left_.group();
  ASSERT_GE(static_cast<int>(group.add(plan)), 0) << last_error();
  (void)group.close();
  ASSERT_EQ(group.wait(20s), Status::kIo) << group.error();
  EXPECT_EQ(at_once([&] { return group.wait_fenced(Fence::kBoth, kFarAway); }), Status::kUnsupported);
  EXPECT_NE(last_error().find("the backend of a member"), std::string_view::npos) << last_error();
  EXPECT_NE(group.error().find("the local memory has no fence"), std::string::npos) << group.error();
}

class NoFenceOfALeg : public CudaTest {
 protected:
  static constexpr uint64_t kBytes = 256 << 10;  // four chunks
};

// The engine may still write to the chunk that its failed request was to fill.
TEST_F(NoFenceOfALeg, GivesItsStagingMemoryUp) {
  const Buffer mine{kBytes, true};
  std::vector<uint8_t> theirs(kBytes, 3);
  const Agent left("left", {.listen = "127.0.0.1:0", .backends = "cuda,nixl_net", .config = kBesideAGpu});
  const Agent right("right", {.listen = "127.0.0.1:0", .backends = "nixl_net", .config = kNixlNet});
  const Region here = left.register_memory(vram(mine), {.access = Access::kAll});
  const Region there = right.register_memory(dram(theirs.data(), kBytes), {.access = Access::kAll});
  const Peer peer = left.add_peer(right.metadata());
  const auto make = [&] {
    return left.transfer(peer.block_list(Blocks::at(theirs.data(), kPage).repeat(kBytes / kPage, kPage)),
                         left.block_list(pages(mine)));
  };
  // Two sets of two chunks: each of these belongs to one.
  const Transfer one = make();
  const Transfer other = make();
  ASSERT_EQ(run(one), Status::kOk) << last_error();
  ASSERT_EQ(run(other), Status::kOk) << last_error();
  fail_next_request();
  ASSERT_EQ(run(one), Status::kIo) << last_error();
  EXPECT_EQ(at_once([&] { return one.wait_fenced(Fence::kLocal, kFarAway); }), Status::kOk)
      << "the engine has never seen it";
  EXPECT_EQ(at_once([&] { return one.wait_fenced(Fence::kRemote, kFarAway); }), Status::kUnsupported);
  EXPECT_EQ(at_once([&] { return run(one); }), Status::kStale) << "its chunks are given up";
  EXPECT_EQ(run(other), Status::kOk) << last_error();
  EXPECT_EQ(run(make()), Status::kOk) << "it joins the other set: " << last_error();
  fail_next_request();
  ASSERT_EQ(run(other), Status::kIo) << last_error();
  const std::string why = text_of(make);
  EXPECT_NE(why.find("all staging memory (pinned memory beside GPU 0) was given up"), std::string::npos)
      << why;
}

}  // namespace
}  // namespace towline::conformance
