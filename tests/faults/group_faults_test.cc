// A peer that is lost inside a group: one outcome, which names it, and no member is left behind.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "eventually.h"
#include "towline/towline.hpp"
#include "victim.h"
#include "ways.h"

namespace towline::faults {
namespace {

using namespace std::chrono_literals;

class GroupFaults : public ::testing::TestWithParam<Way> {
 protected:
  GroupFaults()
      : agent_("survivor", {.listen = way_.listen, .backends = way_.backends, .config = way_.config}),
        memory_(kVictimBytes),
        region_(agent_.register_memory({.address = memory_.data(), .bytes = kVictimBytes, .kind = way_.kind},
                                       {.access = Access::kAll})) {}

  [[nodiscard]] static VictimOptions named(const std::string& name) {
    VictimOptions options = GetParam().victim();
    options.name = name;
    return options;
  }
  [[nodiscard]] Blocks blocks_at(const void* memory) const {
    constexpr uint64_t kBlock = 1 << 20;
    return Blocks::at(memory, kBlock, way_.kind).repeat(kVictimBytes / kBlock, kBlock);
  }
  [[nodiscard]] Plan plan_to(const Peer& peer, const Victim& victim) const {
    return agent_.plan(agent_.block_list(blocks_at(memory_.data())),
                       peer.block_list(blocks_at(reinterpret_cast<const void*>(victim.memory()))));
  }
  [[nodiscard]] PostOptions marked(void* user_data) const {
    return {
        .deadline = 20s, .stream = way_.kind == Kind::kVram ? unordered : Stream{}, .user_data = user_data};
  }

  const Way& way_ = GetParam();
  Agent agent_;
  Memory memory_;
  Region region_;
};

INSTANTIATE_TEST_SUITE_P(All, GroupFaults, ::testing::ValuesIn(ways()),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_P(GroupFaults, APeerLostInsideAGroupEndsItByNameAndFencesTheOthers) {
  Victim lost(named("lost"));
  Victim other(named("other"));
  const Peer lost_peer = agent_.connect(lost.address());
  const Peer other_peer = agent_.connect(other.address());
  const Plan to_lost = plan_to(lost_peer, lost);
  const Plan to_other = plan_to(other_peer, other);
  int lost_mark = 0;
  int other_mark = 0;
  ASSERT_EQ(to_lost.post(marked(nullptr)).wait(20s), Status::kOk) << last_error();
  ASSERT_EQ(to_other.post(marked(nullptr)).wait(20s), Status::kOk) << last_error();
  // The first members, one to each, may be through before the peer is lost; later ones meet its loss.
  const Group group = agent_.group({.notice = "all is there", .deadline = 20s});
  std::vector<Post> others;
  others.push_back(group.post(to_other, marked(&other_mark)));
  ASSERT_GE(static_cast<int>(group.add(to_lost, marked(&lost_mark))), 0) << last_error();
  lost.kill_hard();
  Status joined = Status::kOk;
  ASSERT_TRUE(eventually([&] {
    if (others.size() < 16) others.push_back(group.post(to_other, marked(&other_mark)));
    joined = group.add(to_lost, marked(&lost_mark));
    return is_error(joined) && joined != Status::kAgain;
  }));
  // Also if a worker that had no connection to the peer yet found nobody at its address.
  EXPECT_EQ(group.wait(20s), Status::kPeerLost) << group.error();
  const GroupResult result = group.result();
  EXPECT_EQ(result.outcome(), Status::kPeerLost);
  EXPECT_EQ(result.failed_user_data, &lost_mark);
  EXPECT_NE(group.error().find("peer 'lost'"), std::string::npos) << group.error();
  EXPECT_TRUE(fenced_or_told(group.wait_fenced(Fence::kLocal, 20s), way_)) << group.error();
  for (const Post& post : others) {
    if (!post.accepted()) continue;
    const Status its = post.poll();
    EXPECT_TRUE(its == Status::kOk || its == Status::kCancelled) << status_name(its);
    EXPECT_EQ(post.wait_fenced(Fence::kBoth, 20s), Status::kOk);
  }
  EXPECT_TRUE(is_error(group.add(to_other, marked(&other_mark)))) << "it has ended";
  EXPECT_NE(last_error().find("the group has ended"), std::string_view::npos) << last_error();
  // The other peer goes on, and was not told that all is there.
  EXPECT_EQ(to_other.post(marked(nullptr)).wait(20s), Status::kOk) << last_error();
  ASSERT_TRUE(eventually([&] { return other_peer.send("alive") == Status::kOk; }));
  Notice notice;
  ASSERT_TRUE(eventually([&] {
    (void)agent_.wait(10ms);
    return agent_.receive(notice) == Status::kOk;
  }));
  EXPECT_EQ(notice.text(), "alive");
}

}  // namespace
}  // namespace towline::faults
