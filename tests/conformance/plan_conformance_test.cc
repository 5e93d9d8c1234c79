// Promises of plans and posts over every transport, through the public API.
#include <algorithm>
#include <array>
#include <atomic>
#include <optional>
#include <set>
#include <thread>

#include "towline/pace.hpp"
#include "transport_fixture.h"

namespace towline::conformance {
namespace {

class PlanTest : public TransportTest {
 protected:
  static constexpr uint32_t kPicked = 64;

  [[nodiscard]] bool same(uint32_t here, uint32_t there) const {
    return std::memcmp(right_memory_->data() + there * kBlock, left_memory_->data() + here * kBlock,
                       kBlock) == 0;
  }
  [[nodiscard]] bool right_is_zero() const {
    return support::all_are(right_memory_->data(), right_memory_->size(), std::byte{0});
  }
};

TEST_P(PlanTest, EachPostBringsItsOwnPicks) {
  const BlockList from = mine();
  const BlockList to = theirs();
  const Plan plan = left_->plan(from, to);
  for (uint32_t round = 1; round <= 20; ++round) {
    stamp(left_memory_->data(), left_memory_->size(), round);
    const uint32_t count = round % 5 == 0 ? 1 : 3 * round;
    const auto here = shuffled(kBlocks, round);
    const auto there = shuffled(kBlocks, 100 + round);
    const Post post = plan.post({.from = std::span(here).first(count), .to = std::span(there).first(count)});
    ASSERT_EQ(post.wait(20s), Status::kOk) << last_error();
    for (uint32_t i = 0; i < count; ++i) ASSERT_TRUE(same(here[i], there[i])) << round << " " << i;
    EXPECT_EQ(post.result().total_bytes, count * kBlock);
    EXPECT_EQ(post.result().bytes, count * kBlock);
    EXPECT_EQ(post.result().fences, 3u);
    EXPECT_EQ(post.error(), "");
  }
}

TEST_P(PlanTest, BytesMoveFromWhatIsNamedFirst) {
  stamp(right_memory_->data(), right_memory_->size(), 5);
  const auto there = shuffled(kBlocks, 1);
  const auto here = shuffled(kBlocks, 2);
  const BlockList from = theirs();
  const BlockList to = mine();
  const Post post = left_->copy(from[std::span(there).first(kPicked)], to[std::span(here).first(kPicked)]);
  ASSERT_EQ(post.wait(20s), Status::kOk) << last_error();
  for (uint32_t i = 0; i < kPicked; ++i) ASSERT_TRUE(same(here[i], there[i])) << i;
}

TEST_P(PlanTest, SeveralPostsAreInFlightEachWithItsNotice) {
  stamp(left_memory_->data(), left_memory_->size(), 6);
  const BlockList from = mine();
  const BlockList to = theirs();
  const Plan plan = left_->plan(from, to);
  constexpr uint32_t kPosts = 16;
  std::vector<Post> posts;
  for (uint32_t i = 0; i < kPosts; ++i) {
    const Range part{i * kPicked, 1, kPicked};
    posts.push_back(plan.post({.from = part, .to = part, .notice = "part " + std::to_string(i)}));
    ASSERT_TRUE(posts.back().accepted()) << last_error();
  }
  for (const Post& post : posts) EXPECT_EQ(post.wait(20s), Status::kOk) << post.error();
  std::set<std::string> told;
  for (uint32_t i = 0; i < kPosts; ++i) told.emplace(next_notice(*right_).text());
  EXPECT_EQ(told.size(), kPosts);
  EXPECT_EQ(std::memcmp(right_memory_->data(), left_memory_->data(), kPosts * kPicked * kBlock), 0);
}

TEST_P(PlanTest, UnequalBlocksAreCutToFitInEachPost) {
  stamp(left_memory_->data(), left_memory_->size(), 7);
  const BlockList from = mine(8192);
  const BlockList to = theirs(2048);
  const Plan plan = left_->plan(from, to);
  for (const uint32_t count : {3u, 40u, 7u}) {
    const auto here = shuffled(kBlocks / 2, count);
    std::vector<uint64_t> there(count * 4);
    for (uint64_t i = 0; i < there.size(); ++i) there[i] = 2 * kBlocks - 1 - i;
    const Post post = plan.post({.from = std::span(here).first(count), .to = there});
    ASSERT_EQ(post.wait(20s), Status::kOk) << last_error();
    for (uint64_t i = 0; i < there.size(); ++i)
      ASSERT_EQ(std::memcmp(right_memory_->data() + there[i] * 2048,
                            left_memory_->data() + here[i / 4] * 8192 + i % 4 * 2048, 2048),
                0)
          << i;
  }
}

TEST_P(PlanTest, WrongPicksAreRefusedAndThePlanGoesOn) {
  const BlockList from = mine();
  const BlockList to = theirs();
  const Plan plan = left_->plan(from, to);
  const std::vector<uint32_t> good = {1, 5, 3};
  const auto refused = [&](const Picks& here, const Picks& there, Status why, std::string_view what) {
    const Post post = plan.post({.from = here, .to = there});
    EXPECT_FALSE(post.accepted());
    EXPECT_EQ(post.wait(), why);
    EXPECT_NE(std::string(last_error()).find(what), std::string::npos) << last_error();
  };
  refused(std::vector<uint32_t>{1, kBlocks, 3}, good, Status::kOutOfRange, "index 1024 at position 1 of 3");
  refused(std::vector<int64_t>{1, -7, 3}, good, Status::kOutOfRange, "index -7 at position 1 of 3");
  refused(std::vector<uint32_t>{1, 2}, good, Status::kMismatch,
          "2 'from' blocks of 4096 bytes are paired with 3");
  refused(good, std::vector<uint32_t>{7, 9, 7}, Status::kInvalidArgument,
          "block 7 is picked twice, at positions 0 and 2");
  refused(Range{0, 1, kBlocks + 1}, all, Status::kOutOfRange, "leaves the list");
  refused(std::vector<uint32_t>{}, good, Status::kInvalidArgument, "no 'from' block is picked");
  const Post late = plan.post({.from = good, .to = good, .deadline = std::chrono::steady_clock::now() - 1s});
  EXPECT_EQ(late.wait(), Status::kTimedOut);
  EXPECT_NE(std::string(last_error()).find("the deadline passed"), std::string::npos) << last_error();
  EXPECT_TRUE(right_is_zero());
  stamp(left_memory_->data(), left_memory_->size(), 8);
  EXPECT_EQ(plan.post({.from = good, .to = good}).wait(20s), Status::kOk);
  EXPECT_TRUE(same(5, 5));
}

TEST_P(PlanTest, ListsThatCanNotBePairedMakeNoPlan) {
  const BlockList from = mine(4096);
  const BlockList odd = peer_->block_list(at(right_memory_->data(), 4096 + 32).repeat(4, 8192));
  EXPECT_THROW((void)left_->plan(from, odd), Error);
  const BlockList other = peer_->block_list(at(right_memory_->data(), 4096));
  try {
    (void)left_->plan(other, other);
    ADD_FAILURE() << "bytes cannot move from a peer to a peer";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("both lists are of peers"), std::string::npos) << error.what();
  }
}

TEST_P(PlanTest, PostsThatNobodyHoldsComeAsCompletions) {
  stamp(left_memory_->data(), left_memory_->size(), 9);
  const BlockList from = mine();
  const BlockList to = theirs();
  const Plan plan = left_->plan(from, to);
  std::array<int, 8> marks{};
  for (int round = 0; round < 3; ++round) {
    for (uint32_t i = 0; i < marks.size(); ++i) {
      const Range part{i * kPicked, 1, kPicked};
      (void)plan.post({.from = part, .to = part, .queue_completion = true, .user_data = &marks[i]});
    }
    for (uint32_t ended = 0; ended < marks.size();) {
      std::array<Completion, 4> some;
      const int32_t count = left_->pull(some);
      if (count == 0) (void)left_->wait(100ms);
      for (int32_t i = 0; i < count; ++i) {
        EXPECT_EQ(some[i].outcome(), Status::kOk);
        EXPECT_EQ(some[i].transfer, nullptr);
        EXPECT_EQ(some[i].bytes, kPicked * kBlock);
        ++*static_cast<int*>(some[i].user_data);
      }
      ended += static_cast<uint32_t>(count);
    }
  }
  for (const int mark : marks) EXPECT_EQ(mark, 3);
  EXPECT_EQ(std::memcmp(right_memory_->data(), left_memory_->data(), marks.size() * kPicked * kBlock), 0);
}

TEST_P(PlanTest, AHeldPostKeepsItsPlanAndReleasingLetsItGo) {
  const BlockList from = mine();
  const BlockList to = theirs();
  auto options = detail::defaults<towline_plan_options_t>();
  towline_plan_t* plan = nullptr;
  ASSERT_EQ(towline_plan_create(left_->native(), from.native(), to.native(), &options, &plan), TOWLINE_OK);
  auto posts = detail::defaults<towline_post_options_t>();
  towline_post_t* post = nullptr;
  ASSERT_GE(towline_plan_post(plan, &posts, &post), 0) << last_error();
  EXPECT_EQ(towline_post_wait(post, 20'000'000'000), TOWLINE_OK);
  EXPECT_EQ(towline_plan_destroy(plan, 1'000'000'000), TOWLINE_BUSY);
  EXPECT_NE(std::string(last_error()).find("1 of its posts"), std::string::npos) << last_error();
  EXPECT_EQ(towline_plan_post(plan, &posts, nullptr), TOWLINE_STALE);
  towline_post_release(post);
  EXPECT_EQ(towline_plan_destroy(plan, 20'000'000'000), TOWLINE_OK);
}

TEST_P(PlanTest, ALostPeerIsNamedByThePostsError) {
  const BlockList from = mine();
  const BlockList to = theirs();
  const Plan plan = left_->plan(from, to, {.timeout = 20s});
  ASSERT_EQ(plan.post().wait(20s), Status::kOk) << last_error();
  right_region_.reset();
  right_.reset();
  const Post post = plan.post();
  const Status status = post.wait(30s);
  EXPECT_TRUE(is_error(status)) << status_text(status);
  if (post.accepted()) {
    EXPECT_NE(post.error().find("peer 'right'"), std::string::npos) << post.error();
  }
  EXPECT_EQ(post.wait_fenced(Fence::kLocal, 20s), Status::kOk);
}

TEST_P(PlanTest, ADeregisteredRegionEndsPostsNotTheProgram) {
  const BlockList from = mine();
  const BlockList to = theirs();
  const Plan plan = left_->plan(from, to);
  ASSERT_EQ(plan.post().wait(20s), Status::kOk);
  ASSERT_EQ(left_region_->deregister(20s), Status::kOk) << last_error();
  EXPECT_EQ(plan.post().wait(20s), Status::kStale);
}

// How exactly is shown under the virtual clock: tests/simulation, PaceSimulation.
TEST_P(PlanTest, ALimitHoldsBytesBackAndTheyAllArrive) {
  stamp(left_memory_->data(), left_memory_->size(), 12);
  const BlockList from = mine();
  const BlockList to = theirs();
  const Plan plan = left_->plan(from, to);
  ASSERT_EQ(plan.post({.from = Range{0, 1, 1}, .to = Range{0, 1, 1}}).wait(20s), Status::kOk);
  set_limit(*peer_, 10 * kBlock * kBlocks);
  const auto began = std::chrono::steady_clock::now();
  const Post post = plan.post(PostOptions{.notice = "slow"});
  ASSERT_TRUE(post.accepted()) << last_error();
  EXPECT_EQ(post.wait(20s), Status::kOk) << post.error();
  EXPECT_GE(std::chrono::steady_clock::now() - began, 50ms) << "a tenth of a second at the limit";
  EXPECT_EQ(post.result().bytes, kBlock * kBlocks);
  EXPECT_EQ(next_notice(*right_).text(), "slow");
  EXPECT_EQ(std::memcmp(right_memory_->data(), left_memory_->data(), left_memory_->size()), 0);
  set_limit(*peer_, 0);
  EXPECT_EQ(plan.post().wait(20s), Status::kOk);
}

TEST_P(PlanTest, ManyThreadsPostOnePlan) {
  stamp(left_memory_->data(), left_memory_->size(), 10);
  const BlockList from = mine();
  const BlockList to = theirs();
  const Plan plan = left_->plan(from, to);
  constexpr uint32_t kThreads = 4;
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (uint32_t i = 0; i < 100; ++i) {
        const Range part{t * 256 + i % 16 * 16, 1, 16};
        Post post = plan.post({.from = part, .to = part});
        while (post.poll() == Status::kAgain) post = plan.post({.from = part, .to = part});
        EXPECT_EQ(post.wait(20s), Status::kOk) << post.error();
        EXPECT_EQ(post.result().bytes, 16 * kBlock);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(std::memcmp(right_memory_->data(), left_memory_->data(), left_memory_->size()), 0);
}

class GroupTest : public PlanTest {
 protected:
  static constexpr uint32_t kLayers = 16;
  static constexpr uint32_t kPages = kBlocks / kLayers;

  // One plan a layer.
  std::vector<Plan> layers() {
    std::vector<Plan> plans;
    for (uint32_t i = 0; i < kLayers; ++i) {
      const uint64_t offset = uint64_t{i} * kPages * kBlock;
      lists_.push_back(left_->block_list(cut(left_memory_->data() + offset, kPages * kBlock, kBlock)));
      lists_.push_back(peer_->block_list(cut(right_memory_->data() + offset, kPages * kBlock, kBlock)));
      plans.push_back(left_->plan(lists_[2 * i], lists_[2 * i + 1]));
    }
    return plans;
  }
  static void add(const Group& group, const Plan& plan, const PostOptions& options = {}) {
    Status status = group.add(plan, options);
    while (status == Status::kAgain) status = group.add(plan, options);
    ASSERT_FALSE(is_error(status)) << last_error();
  }

 private:
  std::vector<BlockList> lists_;
};

TEST_P(GroupTest, OneNoticeFollowsTheLastByteOfTheLastMember) {
  const std::vector<Plan> plans = layers();
  for (uint64_t round = 1; round <= 5; ++round) {
    stamp(left_memory_->data(), left_memory_->size(), round);
    const std::string text = "group " + std::to_string(round);
    const Group group = left_->group({.notice = text, .deadline = 20s});
    for (const Plan& plan : plans) add(group, plan);
    ASSERT_NE(group.poll(), Status::kOk) << "it is still open";
    ASSERT_FALSE(is_error(group.close())) << last_error();
    const Notice notice = next_notice(*right_);
    ASSERT_EQ(notice.text(), text);
    ASSERT_EQ(std::memcmp(right_memory_->data(), left_memory_->data(), left_memory_->size()), 0) << round;
    ASSERT_EQ(group.wait(20s), Status::kOk) << group.error();
    ASSERT_EQ(group.wait_fenced(Fence::kBoth, 20s), Status::kOk);
    const GroupResult result = group.result();
    EXPECT_EQ(result.members, kLayers);
    EXPECT_EQ(result.bytes, left_memory_->size());
    EXPECT_EQ(result.total_bytes, left_memory_->size());
    EXPECT_EQ(result.fences, 3u);
    EXPECT_EQ(result.failed_member, UINT64_MAX);
  }
}

TEST_P(GroupTest, MembersJoinWhileOthersMove) {
  const std::vector<Plan> plans = layers();
  stamp(left_memory_->data(), left_memory_->size(), 21);
  const Group group = left_->group({.deadline = 20s});
  for (const Plan& plan : plans) {
    const Post member = group.post(plan);
    ASSERT_TRUE(member.accepted()) << last_error();
    ASSERT_EQ(member.wait(20s), Status::kOk) << member.error();
    EXPECT_EQ(group.poll(), Status::kInProgress);
  }
  EXPECT_FALSE(is_error(group.close())) << last_error();
  EXPECT_EQ(group.wait(20s), Status::kOk);
  EXPECT_EQ(std::memcmp(right_memory_->data(), left_memory_->data(), left_memory_->size()), 0);
}

// A member counts with what it picks, not with what its post moved the last time.
TEST_P(GroupTest, AResultMayBeAskedForWhileMembersJoin) {
  const std::vector<Plan> plans = layers();
  for (const Plan& plan : plans) {
    const Post whole = plan.post();
    ASSERT_TRUE(whole.accepted()) << last_error();
    ASSERT_EQ(whole.wait(20s), Status::kOk) << whole.error();
  }
  std::atomic<const Group*> shown{nullptr};
  std::atomic<bool> over{false};
  std::atomic<uint64_t> most{0};
  std::thread asks([&] {
    while (!over) {
      if (const Group* const group = shown.exchange(nullptr); group != nullptr) {
        most = std::max<uint64_t>(most, group->result().total_bytes);
        shown = group;
      }
    }
  });
  const Range first{0, 1, 1};
  for (int round = 0; round < 50; ++round) {
    const Group group = left_->group({.deadline = 20s});
    shown = &group;
    for (const Plan& plan : plans) add(group, plan, {.from = first, .to = first});
    EXPECT_FALSE(is_error(group.close())) << last_error();
    EXPECT_EQ(group.wait(20s), Status::kOk) << group.error();
    const Group* mine = &group;
    while (!shown.compare_exchange_weak(mine, nullptr)) mine = &group;
    EXPECT_EQ(group.result().total_bytes, kLayers * kBlock);
  }
  over = true;
  asks.join();
  EXPECT_LE(most, kLayers * kBlock);
}

TEST_P(GroupTest, ASecondCloseAndALateMemberAreRefused) {
  const std::vector<Plan> plans = layers();
  const Group group = left_->group();
  add(group, plans[0]);
  ASSERT_FALSE(is_error(group.close()));
  EXPECT_EQ(group.close(), Status::kInvalidArgument);
  EXPECT_NE(std::string(last_error()).find("closed before, with 1 members"), std::string::npos)
      << last_error();
  EXPECT_EQ(group.add(plans[1]), Status::kInvalidArgument);
  EXPECT_EQ(group.wait(20s), Status::kOk) << "what was refused too late does not harm it";
  const Group empty = left_->group({.notice = "nobody is told"});
  EXPECT_EQ(empty.close(), Status::kOk);
  EXPECT_EQ(empty.wait(), Status::kOk);
}

TEST_P(GroupTest, EveryThreadThatWaitsSeesTheEnd) {
  for (int round = 0; round < 100; ++round) {
    std::optional<Group> made;
    while (!made) try {
        made.emplace(left_->group({.deadline = 200us}));
      } catch (const Error& error) {
        ASSERT_EQ(error.code(), Status::kTimedOut) << "only because this thread was stopped";
      }
    const Group& group = *made;
    std::array<Status, 4> seen{};
    {
      std::vector<std::jthread> threads;
      for (Status& status : seen) threads.emplace_back([&] { status = group.wait(60s); });
    }
    for (const Status status : seen) ASSERT_EQ(status, Status::kTimedOut) << "round " << round;
  }
}

TEST_P(GroupTest, AGroupThatIsNeverClosedEndsByItsDeadline) {
  const std::vector<Plan> plans = layers();
  EXPECT_EQ(plans[0].post().wait(20s),
            Status::kOk);  // the connection is there: the member will be done in time
  const Group group = left_->group({.notice = "never sent", .deadline = 300ms});
  add(group, plans[0]);
  EXPECT_EQ(group.wait(20s), Status::kTimedOut);
  EXPECT_NE(group.error().find("it was not closed"), std::string::npos) << group.error();
  EXPECT_EQ(group.add(plans[1]), Status::kTimedOut);
  EXPECT_EQ(group.wait_fenced(Fence::kLocal, 20s), Status::kOk);
}

TEST_P(GroupTest, ARefusedMemberEndsTheGroupAndNobodyIsTold) {
  const std::vector<Plan> plans = layers();
  int mark = 0;
  const Group group = left_->group({.notice = "never sent", .deadline = 20s});
  add(group, plans[0]);
  add(group, plans[1]);
  EXPECT_EQ(group.add(plans[2], {.from = Range{kPages, 1, 1}, .to = Range{0, 1, 1}, .user_data = &mark}),
            Status::kOutOfRange);
  EXPECT_EQ(group.wait(20s), Status::kOutOfRange);
  EXPECT_NE(group.error().find("member 2 of 3"), std::string::npos) << group.error();
  EXPECT_NE(group.error().find("begins at block 64"), std::string::npos) << group.error();
  EXPECT_EQ(group.result().failed_member, 2u);
  EXPECT_EQ(group.wait_fenced(Fence::kBoth, 20s), Status::kOk);
  EXPECT_EQ(group.add(plans[3]), Status::kOutOfRange) << "no member joins what has failed";
  ASSERT_EQ(peer_->send("after it"), Status::kOk);
  EXPECT_EQ(next_notice(*right_).text(), "after it");
}

TEST_P(GroupTest, CancelEndsWhateverTheMembersHaveCome) {
  const std::vector<Plan> plans = layers();
  const Group group = left_->group({.notice = "never sent", .deadline = 20s});
  std::vector<Post> members;
  for (const Plan& plan : plans) members.push_back(group.post(plan));
  ASSERT_EQ(group.cancel(), Status::kOk);
  EXPECT_EQ(group.wait(20s), Status::kCancelled);
  EXPECT_EQ(group.wait_fenced(Fence::kBoth, 20s), Status::kOk);
  for (const Post& member : members) {
    const Status status = member.wait(0s);
    EXPECT_TRUE(status == Status::kOk || status == Status::kCancelled) << status_text(status);
  }
}

// Only calls on the left agent make progress, so no member can be done when the group is cancelled.
TEST_P(GroupTest, CancelEndsAllMembers) {
  constexpr uint64_t kMember = 4 << 20;
  constexpr uint64_t kMembers = 4;
  start({.progress = Progress::kCaller}, {}, kMember * kMembers);
  const auto list_of = [](const auto& side, Buffer& memory, uint64_t i) {
    return side->block_list(cut(memory.data() + i * kMember, kMember, kMember));
  };
  {
    std::vector<BlockList> lists;
    std::vector<Plan> plans;
    for (uint64_t i = 0; i < kMembers; ++i) {
      lists.push_back(list_of(left_, *left_memory_, i));
      lists.push_back(list_of(peer_, *right_memory_, i));
      plans.push_back(left_->plan(lists[2 * i], lists[2 * i + 1]));
    }
    ASSERT_EQ(plans[0].post().wait(20s), Status::kOk);  // the connection is up
    const Group group = left_->group({.notice = "never sent", .deadline = 20s});
    std::vector<Post> members;
    for (const Plan& plan : plans) {
      members.push_back(group.post(plan));
      ASSERT_TRUE(members.back().accepted()) << last_error();
    }
    ASSERT_EQ(group.cancel(), Status::kOk);
    EXPECT_EQ(group.wait(20s), Status::kCancelled);
    EXPECT_EQ(group.wait_fenced(Fence::kLocal, 20s), Status::kOk);
    for (const Post& member : members) EXPECT_EQ(member.wait(20s), Status::kCancelled);
  }
  // It answers nobody who deregisters memory that it reached, unless it is called.
  peer_.reset();
  left_region_.reset();
  left_.reset();
}

TEST_P(GroupTest, AnOpenGroupThatIsReleasedIsCancelledWithItsCallback) {
  const std::vector<Plan> plans = layers();
  std::atomic<int32_t> told{TOWLINE_IN_PROGRESS};
  {
    const Group group =
        left_->group({.deadline = 20s, .user_data = &told, .callback = [](const auto* completion) {
                        static_cast<std::atomic<int32_t>*>(completion->user_data)->store(completion->status);
                      }});
    add(group, plans[0]);
  }
  EXPECT_EQ(told.load(), TOWLINE_CANCELLED);
  ASSERT_EQ(plans[0].post().wait(20s), Status::kOk) << "its plan goes on";
}

TEST_P(GroupTest, ACompletionComesForAGroupThatNobodyHolds) {
  const std::vector<Plan> plans = layers();
  int mark = 0;
  {
    const Group group =
        left_->group({.notice = "all", .deadline = 20s, .queue_completion = true, .user_data = &mark});
    for (const Plan& plan : plans) add(group, plan);
    ASSERT_FALSE(is_error(group.close()));
  }
  std::array<Completion, 2> some;
  int32_t count = 0;
  while ((count = left_->pull(some)) == 0) ASSERT_EQ(left_->wait(20s), Status::kOk);
  EXPECT_EQ(count, 1);
  EXPECT_EQ(some[0].outcome(), Status::kOk);
  EXPECT_EQ(some[0].user_data, &mark);
  EXPECT_EQ(next_notice(*right_).text(), "all");
}

TEST_P(GroupTest, APeerThatIsLostEndsTheGroupAndIsNamed) {
  const std::vector<Plan> plans = layers();
  const Group group = left_->group({.notice = "never sent", .deadline = 20s});
  add(group, plans[0]);
  right_region_.reset();
  right_.reset();
  Status status = Status::kOk;
  for (uint32_t i = 1; i < kLayers && !is_error(status); ++i) status = group.add(plans[i]);
  (void)group.close();
  status = group.wait(30s);
  EXPECT_TRUE(is_error(status)) << status_text(status);
  EXPECT_NE(group.error().find("member "), std::string::npos) << group.error();
  EXPECT_EQ(group.wait_fenced(Fence::kLocal, 20s), Status::kOk);
}

INSTANTIATE_TEST_SUITE_P(All, PlanTest, ::testing::ValuesIn(kTransports),
                         [](const auto& test) { return std::string(test.param.name); });
INSTANTIATE_TEST_SUITE_P(All, GroupTest, ::testing::ValuesIn(kTransports),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace towline::conformance
