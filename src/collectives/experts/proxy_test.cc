// The proxy over functions that a test answers itself, with a test in the place of the kernels.
#include "collectives/experts/proxy.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <set>

#include "collectives/experts/batch_relay.h"
#include "gpu/fake/fake_kernels.h"

namespace towline::collectives::experts {
namespace {

constexpr uint32_t kMe = 1;
constexpr uint32_t kPeer = 0;
constexpr uint32_t kCapacity = 8;
constexpr uint32_t kLocal = 2;
constexpr uint64_t kTokens = 4;
constexpr uint32_t kHidden = 128;
constexpr uint64_t kNonce = 0x30001;
const char* const kIncarnation = "the peer's";
constexpr uint64_t kBatchShape = uint64_t{1} << 63 | 0x1234560;
constexpr uint64_t kBatchTokens = 1000;  // of a rank, in all rounds
constexpr uint32_t kRoundTokens = 8;
constexpr BatchRows kRows{8192, 4096, 256, 128, kRoundTokens, false};
constexpr BatchRows kRowsBack{8192, 4096, 0, 128, kRoundTokens, true};

struct Post {
  std::vector<uint32_t> picks;
  std::vector<uint8_t> notice;
  int32_t outcome = TOWLINE_IN_PROGRESS;
  bool fenced = false;
  uint32_t fenced_after = 0;  // so many questions; 0: it is said otherwise
  bool cancelled = false;
  bool released = false;
  int32_t released_at = 0;  // its outcome then
};

// What the functions say and were told. One for the process: they have no context.
struct World {
  std::mutex mutex;
  std::deque<Post> posts;
  std::vector<std::vector<uint8_t>> told;
  std::deque<std::vector<uint8_t>> to_come;
  std::string from = kIncarnation;
  uint32_t health = TOWLINE_HEALTH_ALIVE;
  std::deque<void*> reachable;  // events
  void* asked = nullptr;
  bool gpu = false;  // a list is of GPU memory
  uint32_t plans_released = 0;
  bool released_in_flight = false;  // a plan: its posts are cancelled
  uint32_t plans_made = 0;
  uint32_t plans_to_make = UINT32_MAX;  // until none can be made
  uint64_t longest_ns = 0;              // for which a plan might have waited
  uint64_t deadline_ns = 0;             // of the last post
  uint32_t posts_to_refuse = 0;         // for now
};
World* world = nullptr;

template <class Handle>
Handle* handle() {
  static int anything = 0;
  return reinterpret_cast<Handle*>(&anything);
}

towline_experts_functions_v1 answers() {
  towline_experts_functions_v1 made = {};
  made.struct_size = sizeof made;
  made.last_error = [] { return ""; };
  made.agent_create = [](const char*, const towline_agent_options_t*, towline_agent_t** agent) {
    *agent = handle<towline_agent_t>();
    return int32_t{TOWLINE_OK};
  };
  made.agent_destroy = [](towline_agent_t*) { return int32_t{TOWLINE_OK}; };
  made.region_register = [](towline_agent_t*, void*, uint64_t, const towline_region_options_t*,
                            towline_region_t** region) {
    *region = handle<towline_region_t>();
    return int32_t{TOWLINE_OK};
  };
  made.region_release = [](towline_region_t*, void (*released)(void*), void* owner) {
    released(owner);
    return int32_t{TOWLINE_OK};
  };
  made.peer_add = [](towline_agent_t*, const void*, size_t, towline_peer_t** peer) {
    *peer = handle<towline_peer_t>();
    return int32_t{TOWLINE_OK};
  };
  made.peer_remove = [](towline_peer_t*) { return int32_t{TOWLINE_OK}; };
  made.peer_incarnation = [](const towline_peer_t*) { return kIncarnation; };
  made.peer_health = [](const towline_peer_t*) {
    const std::lock_guard lock(world->mutex);
    return world->health;
  };
  made.peer_credit_async = [](towline_peer_t*, towline_queue_t*, void* user_data) {
    const std::lock_guard lock(world->mutex);
    world->asked = user_data;
    return int32_t{TOWLINE_OK};
  };
  made.block_list_create = [](towline_agent_t*, towline_peer_t* peer, const towline_blocks_t* blocks, size_t,
                              size_t, towline_block_list_t** list) {
    if (peer == nullptr) world->gpu = blocks->kind == TOWLINE_MEMORY_VRAM;
    *list = handle<towline_block_list_t>();
    return int32_t{TOWLINE_OK};
  };
  made.block_list_destroy = [](towline_block_list_t*) {};
  made.plan_create = [](towline_agent_t*, towline_block_list_t*, towline_block_list_t*,
                        const towline_plan_options_t* options, towline_plan_t** plan) {
    const std::lock_guard lock(world->mutex);
    world->longest_ns = std::max(world->longest_ns, options->timeout_ns);
    if (world->plans_made == world->plans_to_make) return int32_t{TOWLINE_TIMED_OUT};
    ++world->plans_made;
    *plan = handle<towline_plan_t>();
    return int32_t{TOWLINE_OK};
  };
  made.plan_release = [](towline_plan_t*) {
    const std::lock_guard lock(world->mutex);
    ++world->plans_released;
    for (const Post& post : world->posts)
      world->released_in_flight = world->released_in_flight || !post.released;
  };
  made.plan_post = [](towline_plan_t*, const towline_post_options_t* how, towline_post_t** post) {
    const std::lock_guard lock(world->mutex);
    if (world->posts_to_refuse != 0) {
      --world->posts_to_refuse;
      return int32_t{TOWLINE_AGAIN};
    }
    if (world->gpu && how->stream_kind == TOWLINE_STREAM_NONE) return int32_t{TOWLINE_INVALID_ARGUMENT};
    world->deadline_ns = how->deadline_ns;
    const auto* const picks = static_cast<const uint32_t*>(how->to.indices);
    const auto* const notice = static_cast<const uint8_t*>(how->notice);
    world->posts.push_back({{picks, picks + how->to.count}, {notice, notice + how->notice_bytes}});
    *post = reinterpret_cast<towline_post_t*>(&world->posts.back());
    return int32_t{TOWLINE_IN_PROGRESS};
  };
  made.post_poll = [](towline_post_t* post) {
    const std::lock_guard lock(world->mutex);
    return reinterpret_cast<Post*>(post)->outcome;
  };
  made.post_wait_fenced = [](towline_post_t* post, uint32_t, uint64_t) {
    const std::lock_guard lock(world->mutex);
    auto& asked = *reinterpret_cast<Post*>(post);
    if (asked.fenced_after != 0 && --asked.fenced_after == 0) asked.fenced = true;
    return int32_t{asked.fenced ? TOWLINE_OK : TOWLINE_NOT_YET};
  };
  made.post_cancel = [](towline_post_t* post) {
    const std::lock_guard lock(world->mutex);
    reinterpret_cast<Post*>(post)->cancelled = true;
    return int32_t{TOWLINE_OK};
  };
  made.post_release = [](towline_post_t* post) {
    const std::lock_guard lock(world->mutex);
    reinterpret_cast<Post*>(post)->released = true;
    reinterpret_cast<Post*>(post)->released_at = reinterpret_cast<Post*>(post)->outcome;
  };
  made.notice_send = [](towline_peer_t*, const void* data, size_t bytes) {
    const std::lock_guard lock(world->mutex);
    const auto* const from = static_cast<const uint8_t*>(data);
    world->told.emplace_back(from, from + bytes);
    return int32_t{TOWLINE_OK};
  };
  made.notice_receive = [](towline_agent_t*, towline_notice_t* notice, size_t) {
    const std::lock_guard lock(world->mutex);
    if (world->to_come.empty()) return int32_t{TOWLINE_AGAIN};
    auto* const held = new std::vector<uint8_t>(world->to_come.front());
    world->to_come.pop_front();
    notice->peer_incarnation = world->from.c_str();
    notice->data = held->data();
    notice->bytes = held->size();
    notice->held = held;
    return int32_t{TOWLINE_OK};
  };
  made.notice_release = [](towline_agent_t*, towline_notice_t* notice) {
    delete static_cast<std::vector<uint8_t>*>(notice->held);
  };
  made.queue_create = [](towline_agent_t*, const towline_queue_options_t*, towline_queue_t** queue) {
    *queue = handle<towline_queue_t>();
    return int32_t{TOWLINE_OK};
  };
  made.queue_release = [](towline_queue_t*) {};
  made.queue_next = [](towline_queue_t*, towline_event_t* event, size_t, size_t) {
    const std::lock_guard lock(world->mutex);
    if (world->reachable.empty()) return int32_t{0};
    event->user_data = world->reachable.front();
    world->reachable.pop_front();
    return int32_t{1};
  };
  made.event_release = [](towline_event_t*) {};
  return made;
}

class ExpertsProxy : public testing::Test {
 protected:
  ExpertsProxy() {
    world = &world_;
    layout_.capacity = kCapacity;
    layout_.local = kLocal;
    layout_.area_bytes = 4096;
    segment_.resize(layout_.results_at());
    open(1'000'000);  // which settling takes as well: nobody answers
  }
  ~ExpertsProxy() override { proxy_.reset(); }

  void open(uint64_t timeout_ns, bool on_host = true) {
    Proxy::Options options;
    options.rank = kMe;
    options.layout = layout_;
    options.segment = reinterpret_cast<uint64_t>(segment_.data());
    options.on_host = on_host;
    options.timeout_ns = timeout_ns;
    proxy_ = std::make_unique<Proxy>(cuda::fake::fake_kernel_device(), answers(), options);
    bases_ = proxy_->connect(kPeer, {{1}, 4096, TOWLINE_MEMORY_DRAM, 0}, 1'000'000);
    proxy_->prepare(Slots::of(kHidden, kTokens, kBfloat16), 2, false);
    proxy_->prepare(Slots::of(kHidden, kTokens, kLogFmt), 2, false);
  }

  // As the last block of a send kernel.
  void send(uint64_t nonce, uint64_t number, bool combines, const std::vector<uint32_t>& counts,
            uint32_t format = kBfloat16) {
    auto& image = *reinterpret_cast<Control*>(bases_.peer);
    const auto half = static_cast<uint32_t>(number & 1);
    for (uint32_t expert = 0; expert < kLocal; ++expert)
      device::store_relaxed(reinterpret_cast<uint64_t*>(bases_.peer + layout_.count_at(half, kMe, expert)),
                            counts[expert]);
    device::store_relaxed(&image.shape[half][kMe],
                          uint64_t{kHidden} << 40 | kTokens << 8 | format << 1 | (combines ? 1 : 0));
    device::store_release(&image.ready[half][kMe], make_flag(nonce, number, 0));
  }
  // As the last block of a kernel that puts a batch: the half of the stage, and the places of the peer's rows in it.
  void put(uint64_t number, uint32_t in_stage, const std::vector<uint32_t>& places, const BatchRows& rows,
           uint64_t via = 0, uint64_t nonce = kNonce) {
    auto& image = *reinterpret_cast<Control*>(bases_.peer);
    const auto half = static_cast<uint32_t>(number & 1);
    for (uint32_t i = 0; i < places.size(); ++i)
      *reinterpret_cast<uint32_t*>(bases_.peer + layout_.used_at(half, i)) = places[i];
    device::store_relaxed(&image.marked[half][kMe],
                          uint64_t{proxy_->prepare(rows, 2, false)} << 32 | places.size());
    device::store_relaxed(&image.via[half][kMe], via);
    device::store_relaxed(&image.shape[half][kMe], kBatchShape | in_stage);
    device::store_relaxed(&image.returned[half][kMe], make_flag(nonce, number, kBatchTokens));
    device::store_release(&image.ready[half][kMe], make_flag(nonce, number, 0));
  }
  void hear(const std::vector<uint8_t>& message) {
    const std::lock_guard lock(world_.mutex);
    world_.to_come.push_back(message);
  }
  [[nodiscard]] std::vector<uint8_t> first_told() {
    const std::lock_guard lock(world_.mutex);
    return world_.told.front();
  }
  [[nodiscard]] Control& in() const { return *reinterpret_cast<Control*>(bases_.from); }
  // Until it holds, which is looked at under the world's lock.
  [[nodiscard]] testing::AssertionResult eventually(const std::function<bool()>& holds) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (std::chrono::steady_clock::now() < end) {
      {
        const std::lock_guard lock(world_.mutex);
        if (holds()) return testing::AssertionSuccess();
      }
      std::this_thread::yield();
    }
    return testing::AssertionFailure() << "it never came";
  }
  // So many passes of the proxy's thread have begun and ended: it takes what is to come in each.
  void let_pass() {
    for (int i = 0; i < 3; ++i) {
      hear({0});
      ASSERT_TRUE(eventually([&] { return world_.to_come.empty(); }));
    }
  }

  World world_;
  Layout layout_;
  std::vector<uint8_t> segment_;
  RemoteBases bases_ = {};
  std::unique_ptr<Proxy> proxy_;
};

TEST_F(ExpertsProxy, SlotsThatAreUsedGoInOnePostWithTheirCounts) {
  send(kNonce, 2, false, {3, 1});
  ASSERT_TRUE(eventually([&] { return world_.posts.size() == 1; }));
  EXPECT_EQ(world_.posts[0].picks, (std::vector<uint32_t>{0, 1, 2, 4}));
  const auto message = decode_exchange(world_.posts[0].notice, kLocal);
  ASSERT_TRUE(message);
  EXPECT_EQ(message->rank, kMe);
  EXPECT_EQ(message->flag, make_flag(kNonce, 2, 0));
  EXPECT_EQ(message->counts, (std::vector<uint32_t>{3, 1}));
}

TEST_F(ExpertsProxy, APostHasNoDeadlineWhereTheMemberHasNoTimeout) {
  open(TOWLINE_FOREVER);
  send(kNonce, 1, false, {1, 0});
  ASSERT_TRUE(eventually([&] { return world_.posts.size() == 1; }));
  const std::lock_guard lock(world_.mutex);
  EXPECT_EQ(world_.deadline_ns, TOWLINE_FOREVER);
  world_.posts[0].fenced = true;  // closing waits for it
  world_.posts[0].outcome = TOWLINE_OK;
}

TEST_F(ExpertsProxy, SlotsThatComeBackAreThoseOfTheirTokens) {
  const std::vector<std::vector<uint32_t>> tokens = {{3, 1}, {2}};
  for (uint32_t expert = 0; expert < kLocal; ++expert)
    for (uint32_t i = 0; i < tokens[expert].size(); ++i)
      *reinterpret_cast<uint32_t*>(bases_.peer + layout_.used_at(1, expert * kTokens + i)) =
          tokens[expert][i];
  send(kNonce, 1, true, {2, 1});
  ASSERT_TRUE(eventually([&] { return world_.posts.size() == 1; }));
  const uint32_t half = kLocal * kTokens;
  EXPECT_EQ(world_.posts[0].picks, (std::vector<uint32_t>{half + 3, half + 1, half + 4 + 2}));
}

// A slot has two blocks, and the second one goes only where it is needed.
TEST_F(ExpertsProxy, SlotsWithLogFmtGoAsFarAsTheyAreUsed) {
  const std::vector<std::vector<uint32_t>> slots = {{3, 1 | kWholeSlot, kNoSlot}, {2}};
  for (uint32_t expert = 0; expert < kLocal; ++expert)
    for (uint32_t i = 0; i < slots[expert].size(); ++i)
      *reinterpret_cast<uint32_t*>(bases_.peer + layout_.used_at(1, expert * kTokens + i)) = slots[expert][i];
  send(kNonce, 1, true, {3, 1}, kLogFmt);
  ASSERT_TRUE(eventually([&] { return world_.posts.size() == 1; }));
  const uint32_t half = kLocal * kTokens;
  const uint32_t rests = 2 * half;
  EXPECT_EQ(world_.posts[0].picks,
            (std::vector<uint32_t>{half + 3, half + 1, rests + half + 1, half + 4 + 2}));
}

// So that its outcome says whether it came.
TEST_F(ExpertsProxy, AnExchangeWithoutTokensHasAPost) {
  send(kNonce, 1, false, {0, 0});
  ASSERT_TRUE(eventually([&] { return world_.posts.size() == 1; }));
  EXPECT_EQ(world_.posts[0].picks.size(), 1u);
}

TEST_F(ExpertsProxy, WhatWasTakenIsPassedOnWhenThePostHasEnded) {
  send(kNonce, 1, false, {1, 1});
  ASSERT_TRUE(eventually([&] { return world_.posts.size() == 1; }));
  hear(encode(WordsMessage{kPeer, 0, 1, 0, 77, kNonce << 32 | 1, 0}));
  ASSERT_TRUE(eventually([&] { return device::load_acquire(&in().opened[kPeer]) == 77; }));
  let_pass();
  EXPECT_EQ(device::load_acquire(&in().taken[kPeer]), 0u);
  {
    const std::lock_guard lock(world_.mutex);
    world_.posts[0].outcome = TOWLINE_OK;
    world_.posts[0].fenced = true;
  }
  EXPECT_TRUE(eventually([&] { return device::load_acquire(&in().taken[kPeer]) == (kNonce << 32 | 1); }));
}

TEST_F(ExpertsProxy, ANewSessionSendsNothingBeforeTheOldOneIsFenced) {
  send(kNonce, 2, false, {1, 1});
  ASSERT_TRUE(eventually([&] { return world_.posts.size() == 1; }));
  send(kNonce + 1, 1, false, {2, 2});
  ASSERT_TRUE(eventually([&] { return world_.posts[0].cancelled; }));
  {
    const std::lock_guard lock(world_.mutex);
    world_.posts[0].outcome = TOWLINE_CANCELLED;
  }
  let_pass();
  {
    const std::lock_guard lock(world_.mutex);
    EXPECT_EQ(world_.posts.size(), 1u);
    world_.posts[0].fenced = true;
  }
  ASSERT_TRUE(eventually([&] { return world_.posts.size() == 2; }));
  EXPECT_TRUE(world_.posts[0].released);
}

TEST_F(ExpertsProxy, WordsAreRepeatedUntilTheyAreHeard) {
  device::store_release(&reinterpret_cast<Control*>(bases_.peer)->opened[kMe], 5);
  ASSERT_TRUE(eventually([&] { return world_.told.size() >= 3; }));
  const auto words = decode_words(first_told());
  ASSERT_TRUE(words);
  EXPECT_EQ(words->opened, 5u);
  EXPECT_EQ(words->asks, 1u);
  hear(encode(WordsMessage{kPeer, 1, 1, words->number, 0, 0, 0}));
  // It answers, and asks no more.
  EXPECT_TRUE(eventually([&] {
    const auto last = decode_words(world_.told.back());
    return last && last->asks == 0 && last->heard == 1;
  }));
}

TEST_F(ExpertsProxy, WordsOfStrangersAndOfEarlierMessagesAreNothing) {
  hear(encode(WordsMessage{kPeer, 0, 9, 0, 90, 0, 0}));
  ASSERT_TRUE(eventually([&] { return device::load_acquire(&in().opened[kPeer]) == 90; }));
  hear(encode(WordsMessage{kPeer, 0, 8, 0, 80, 0, 0}));                                       // earlier
  hear(encode(WordsMessage{kMe, 0, 10, 0, 81, 0, 0}));                                        // not connected
  hear(encode(WordsMessage{1000, 0, 11, 0, 82, 0, 0}));                                       // no rank
  hear(encode(ExchangeMessage{1000, 1, make_flag(1, 1, 0), 0, {1, 1}}));                      // the same
  hear(encode(ExchangeMessage{kPeer, 2, make_flag(1, 1, 0), 0, {0xffffffffu, 0xffffffff}}));  // too many
  hear(encode(ExchangeMessage{kPeer, 3, make_flag(1, 1, 0), 0, {1, 1, 1}}));                  // too long
  let_pass();
  {
    const std::lock_guard lock(world_.mutex);
    world_.from = "another's";
  }
  hear(encode(WordsMessage{kPeer, 0, 12, 0, 83, 0, 0}));
  hear(encode(ExchangeMessage{kPeer, 4, make_flag(1, 1, 0), 0, {1, 1}}));
  let_pass();
  EXPECT_EQ(device::load_acquire(&in().opened[kPeer]), 90u);
  EXPECT_EQ(device::load_acquire(&in().opened[kMe]), 0u);
  const auto* const count = reinterpret_cast<const uint64_t*>(bases_.from + layout_.count_at(1, kPeer, 0));
  EXPECT_EQ(device::load_acquire(count), 0u);
  {
    const std::lock_guard lock(world_.mutex);
    world_.from = kIncarnation;
  }
  hear(encode(ExchangeMessage{kPeer, 5, make_flag(1, 1, 0), 0, {1, 1}}));
  EXPECT_TRUE(eventually([&] { return device::load_acquire(count) == make_flag(1, 1, 1); }));
}

TEST_F(ExpertsProxy, DisconnectWaitsForTheOutcomeOfWhatWasSent) {
  open(60'000'000'000);
  send(kNonce, 1, false, {1, 1});
  ASSERT_TRUE(eventually([&] { return world_.posts.size() == 1; }));
  std::thread leaves([&] { proxy_->disconnect(kPeer); });
  let_pass();
  {
    const std::lock_guard lock(world_.mutex);
    world_.posts[0].outcome = TOWLINE_OK;
    world_.posts[0].fenced = true;
  }
  leaves.join();
  EXPECT_TRUE(world_.posts[0].released);
  EXPECT_EQ(world_.posts[0].released_at, TOWLINE_OK);
}

// Releasing the plan would cancel it.
TEST_F(ExpertsProxy, AShapeOfSlotsIsReplacedWhenItsExchangeWasSent) {
  open(60'000'000'000);
  send(kNonce, 1, false, {1, 1});
  ASSERT_TRUE(eventually([&] { return world_.posts.size() == 1; }));
  const uint32_t before = world_.plans_released;
  uint64_t tokens = kTokens;
  for (uint32_t i = 0; i < 6; ++i) {
    EXPECT_FALSE(proxy_->replaces(Slots::of(kHidden, ++tokens, kBfloat16), false));
    proxy_->prepare(Slots::of(kHidden, tokens, kBfloat16), 2, false);
  }
  EXPECT_EQ(world_.plans_released, before);
  {
    const std::lock_guard lock(world_.mutex);
    world_.posts[0].fenced_after = 20;
    world_.posts[0].outcome = TOWLINE_OK;
  }
  const Slots ninth = Slots::of(kHidden, ++tokens, kBfloat16);
  EXPECT_TRUE(proxy_->replaces(ninth, false));
  proxy_->prepare(ninth, 2, false);
  EXPECT_EQ(world_.plans_released, before + 1);
  EXPECT_FALSE(world_.released_in_flight);
}

// Its replays need the plan, and what they are for is not known here.
TEST_F(ExpertsProxy, AShapeThatAGraphHasRecordedStays) {
  const uint32_t recorded = proxy_->prepare(kRows, 2, true);
  BatchRows rows = kRows;
  for (uint32_t i = 0; i < 30; ++i) {
    rows.row_bytes += 16;
    EXPECT_FALSE(proxy_->replaces(rows, true));
    (void)proxy_->prepare(rows, 2, i % 2 == 0);
  }
  EXPECT_EQ(proxy_->prepare(kRows, 2, false), recorded);
  // The rank comes back, and no call is made before the replay.
  proxy_->disconnect(kPeer);
  bases_ = proxy_->connect(kPeer, {{1}, 4096, TOWLINE_MEMORY_DRAM, 0}, 1'000'000);
  auto& image = *reinterpret_cast<Control*>(bases_.peer);
  device::store_relaxed(&image.marked[1][kMe], uint64_t{recorded} << 32);
  device::store_relaxed(&image.shape[1][kMe], kBatchShape);
  device::store_release(&image.ready[1][kMe], make_flag(kNonce, 1, 0));
  EXPECT_TRUE(eventually([&] { return world_.posts.size() == 1; }));
}

// Its replays would send nothing to that rank, and say nothing of it.
TEST_F(ExpertsProxy, ARankWithoutAWayForWhatAGraphHasRecordedIsNotConnected) {
  constexpr uint64_t kTimeoutNs = 5'000'000'000;
  open(60'000'000'000);
  BatchRows rows = kRows;
  for (uint32_t i = 0; i < 3; ++i) {
    rows.row_bytes += 16;
    (void)proxy_->prepare(rows, 2, true);
  }
  const uint32_t rank = kPeer + 2;
  world_.longest_ns = 0;
  world_.plans_to_make = world_.plans_made + 3;  // the one that connects, and two of three
  const uint32_t released = world_.plans_released;
  EXPECT_THROW((void)proxy_->connect(rank, {{1}, 4096, TOWLINE_MEMORY_DRAM, 0}, kTimeoutNs), core::Error);
  EXPECT_FALSE(proxy_->has(rank));
  EXPECT_EQ(world_.plans_released, released + 3);
  EXPECT_LE(world_.longest_ns, kTimeoutNs);
  world_.plans_to_make = UINT32_MAX;
  (void)proxy_->connect(rank, {{1}, 4096, TOWLINE_MEMORY_DRAM, 0}, kTimeoutNs);
  EXPECT_TRUE(proxy_->has(rank));
}

TEST_F(ExpertsProxy, MoreRecordedShapesThanAreKeptAreRefused) {
  BatchRows rows = kRows;
  for (size_t i = 0; i < KeptShapes<BatchRows>::kMostRecorded; ++i) {
    rows.row_bytes += 16;
    (void)proxy_->prepare(rows, 2, true);
  }
  (void)proxy_->prepare(rows, 2, true);
  rows.row_bytes += 16;
  EXPECT_THROW((void)proxy_->prepare(rows, 2, true), core::Error);
  (void)proxy_->prepare(rows, 2, false);
}

TEST_F(ExpertsProxy, CloseWaitsForAllSilentRanksTogether) {
  constexpr auto kTimeout = std::chrono::milliseconds(300);
  open(std::chrono::nanoseconds(kTimeout).count());
  for (uint32_t rank = 0; rank < kCapacity; ++rank) {
    if (rank == kMe) continue;
    if (rank != kPeer) bases_ = proxy_->connect(rank, {{1}, 4096, TOWLINE_MEMORY_DRAM, 0}, 1'000'000);
    device::store_release(&reinterpret_cast<Control*>(bases_.peer)->opened[kMe], 5);
  }
  ASSERT_TRUE(eventually([&] { return world_.told.size() >= kCapacity - 1; }));
  const auto began = std::chrono::steady_clock::now();
  proxy_.reset();
  EXPECT_GE(std::chrono::steady_clock::now() - began, kTimeout);
  EXPECT_LT(std::chrono::steady_clock::now() - began, 4 * kTimeout);
}

// ---- Batches

TEST_F(ExpertsProxy, TheRowsOfABatchThatAreMarkedGoWithTheHeader) {
  put(1, 1, {5, 2}, kRows);
  ASSERT_TRUE(eventually([&] { return world_.posts.size() == 1; }));
  const uint32_t rows = 2 + kRoundTokens;  // of the stage's second half
  EXPECT_EQ(world_.posts[0].picks, (std::vector<uint32_t>{1, rows + 5, rows + 2}));
  const auto message = decode_exchange(world_.posts[0].notice, kLocal);
  ASSERT_TRUE(message);
  EXPECT_EQ(message->shape, kBatchShape | 1);
  EXPECT_EQ(message->counts, (std::vector<uint32_t>{kBatchTokens, 0}));
}

// It has no header, and a post that carries nothing would say nothing of the connection.
TEST_F(ExpertsProxy, ACombineOfABatchWithoutRowsHasAPost) {
  put(2, 0, {}, kRowsBack);
  ASSERT_TRUE(eventually([&] { return world_.posts.size() == 1; }));
  EXPECT_EQ(world_.posts[0].picks, (std::vector<uint32_t>{0}));
}

TEST_F(ExpertsProxy, APlaceBehindTheStageIsLeftOut) {
  put(1, 0, {kRoundTokens, 3}, kRowsBack);
  ASSERT_TRUE(eventually([&] { return world_.posts.size() == 1; }));
  EXPECT_EQ(world_.posts[0].picks, (std::vector<uint32_t>{3}));
}

TEST_F(ExpertsProxy, TheFlagOfABatchHasTheTokensOfItsRank) {
  for (const uint64_t in_stage : {0, 1}) {
    const uint64_t flag = make_flag(kNonce, 3 + in_stage, 0);
    hear(encode(ExchangeMessage{kPeer, 1 + in_stage, flag, kBatchShape | in_stage, {kBatchTokens, 0}}));
    const auto half = static_cast<uint32_t>((3 + in_stage) & 1);
    EXPECT_TRUE(eventually(
        [&] { return device::load_acquire(&in().returned[half][kPeer]) == (flag | kBatchTokens); }));
    EXPECT_EQ(device::load_acquire(&in().shape[half][kPeer]), kBatchShape | in_stage);
  }
}

TEST_F(ExpertsProxy, WaysOfMoreBatchesThanAreKeptAreMadeAgain) {
  const uint32_t first = proxy_->prepare(kRows, 2, false);
  for (uint32_t i = 0; i < 20; ++i) {
    BatchRows rows = kRows;
    rows.row_bytes += 16 * (1 + i);
    EXPECT_NE(proxy_->prepare(rows, 2, false), first);
  }
  put(1, 0, {4}, kRows);
  ASSERT_TRUE(eventually([&] { return world_.posts.size() == 1; }));
  EXPECT_EQ(world_.posts[0].picks, (std::vector<uint32_t>{0, 2 + 4}));
  EXPECT_EQ(proxy_->prepare(kRows, 2, false), proxy_->prepare(kRows, 2, false));
}

// Releasing the plan would cancel it.
TEST_F(ExpertsProxy, AShapeIsReplacedWhenItsBatchWasSent) {
  open(60'000'000'000);
  put(1, 0, {4}, kRows);
  ASSERT_TRUE(eventually([&] { return world_.posts.size() == 1; }));
  const uint32_t before = world_.plans_released;
  BatchRows rows = kRows;
  for (uint32_t i = 0; i < 7; ++i) {
    rows.row_bytes += 16;
    EXPECT_FALSE(proxy_->replaces(rows, false));
    (void)proxy_->prepare(rows, 2, false);
  }
  EXPECT_EQ(world_.plans_released, before);
  {
    const std::lock_guard lock(world_.mutex);
    world_.posts[0].fenced_after = 20;
    world_.posts[0].outcome = TOWLINE_OK;
  }
  rows.row_bytes += 16;
  EXPECT_TRUE(proxy_->replaces(rows, false));
  (void)proxy_->prepare(rows, 2, false);
  EXPECT_EQ(world_.plans_released, before + 1);
  EXPECT_FALSE(world_.released_in_flight);
}

// A post refuses it without a word on streams.
TEST_F(ExpertsProxy, ABatchGoesFromMemoryOfAGpu) {
  open(1'000'000, false);
  put(1, 0, {4}, kRows);
  EXPECT_TRUE(eventually([&] { return world_.posts.size() == 1; }));
}

// The next batch is put where the transfer reads.
TEST_F(ExpertsProxy, DisconnectEndsWhatReadsTheStage) {
  put(1, 0, {1}, kRows);
  ASSERT_TRUE(eventually([&] { return world_.posts.size() == 1; }));
  {
    const std::lock_guard lock(world_.mutex);
    world_.posts[0].fenced = true;  // without an outcome: it was not asked for since
  }
  proxy_->disconnect(kPeer);
  EXPECT_TRUE(world_.posts[0].cancelled);
  EXPECT_FALSE(proxy_->stage_is_read());
}

TEST_F(ExpertsProxy, AStageThatIsStillReadIsKnownUntilItIsReadNoMore) {
  put(1, 0, {1}, kRows);
  ASSERT_TRUE(eventually([&] { return world_.posts.size() == 1; }));
  proxy_->disconnect(kPeer);
  EXPECT_TRUE(proxy_->stage_is_read());
  EXPECT_FALSE(world_.posts[0].released);
  world_.posts[0].fenced = true;
  EXPECT_FALSE(proxy_->stage_is_read());
  EXPECT_TRUE(world_.posts[0].released);
}

// ---- Relays

constexpr uint32_t kReader = kPeer + 2;  // it reads in the memory of the peer
const uint64_t kVia = make_flag(kNonce, 1, kPeer + 1);

class ExpertsProxyRelay : public ExpertsProxy {
 protected:
  ExpertsProxyRelay() {
    open(kTimeoutNs);
    reader_ = proxy_->connect(kReader, {{1}, 4096, TOWLINE_MEMORY_DRAM, 0}, 1'000'000);
    (void)proxy_->prepare(kRows, kReader + 1, false);
    device::store_release(&in().opened[kReader], kNonce);
    put(1, 1, {5, 2}, kRows, kVia);
  }
  // Of a pair that has made more exchanges.
  void put_for_reader(uint64_t number = 7, uint64_t via = kVia, uint64_t nonce = kNonce) {
    std::swap(bases_, reader_);
    put(number, 1, {}, kRows, via, nonce);
    std::swap(bases_, reader_);
  }
  void end_post(size_t post, int32_t outcome) {
    const std::lock_guard lock(world_.mutex);
    world_.posts[post].outcome = outcome;
    world_.posts[post].fenced = true;
  }
  // To the reader.
  void expect_told(uint64_t shape) {
    ASSERT_TRUE(eventually([&] { return world_.posts.size() == 2; }));
    EXPECT_EQ(world_.posts[1].picks, (std::vector<uint32_t>{2 + 2 * kRoundTokens + 1}));  // no row
    const auto message = decode_exchange(world_.posts[1].notice, kLocal);
    ASSERT_TRUE(message);
    EXPECT_EQ(message->flag, make_flag(kNonce, 7, 0));
    EXPECT_EQ(message->shape, shape);
    EXPECT_EQ(message->counts, (std::vector<uint32_t>{kBatchTokens, 0}));
    end_post(1, TOWLINE_OK);
  }

  static constexpr uint64_t kTimeoutNs = 60'000'000'000;
  RemoteBases reader_ = {};
};

TEST_F(ExpertsProxyRelay, AReaderIsToldWhenTheRelayHasTheRows) {
  put_for_reader();
  ASSERT_TRUE(eventually([&] { return world_.posts.size() == 1; }));
  EXPECT_EQ(world_.posts[0].picks.size(), 3u);
  let_pass();
  {
    const std::lock_guard lock(world_.mutex);
    EXPECT_EQ(world_.posts.size(), 1u);
  }
  end_post(0, TOWLINE_OK);
  expect_told(kBatchShape | 1);
}

TEST_F(ExpertsProxyRelay, AReaderIsToldThatTheRowsAreLost) {
  put_for_reader();
  ASSERT_TRUE(eventually([&] { return world_.posts.size() == 1; }));
  end_post(0, TOWLINE_PEER_LOST);
  expect_told(kRowsAreLost | 1);
}

TEST_F(ExpertsProxyRelay, AReaderIsToldThatTheRelayIsGone) {
  ASSERT_TRUE(eventually([&] { return world_.posts.size() == 1; }));
  end_post(0, TOWLINE_OK);
  proxy_->disconnect(kPeer);
  put_for_reader();
  expect_told(kRowsAreLost | 1);
}

TEST_F(ExpertsProxyRelay, AReaderIsToldBeforeTheRelayIsDisconnected) {
  ASSERT_TRUE(eventually([&] { return world_.posts.size() == 1; }));
  end_post(0, TOWLINE_OK);
  {
    const std::lock_guard lock(world_.mutex);
    world_.posts_to_refuse = 50;
  }
  put_for_reader();
  proxy_->disconnect(kPeer);
  expect_told(kBatchShape | 1);
}

// It has got nothing yet.
TEST_F(ExpertsProxyRelay, AReaderIsToldThatAnotherHasTakenTheRelaysPlace) {
  ASSERT_TRUE(eventually([&] { return world_.posts.size() == 1; }));
  end_post(0, TOWLINE_OK);
  proxy_->disconnect(kPeer);
  (void)proxy_->connect(kPeer, {{1}, 4096, TOWLINE_MEMORY_DRAM, 0}, 1'000'000);
  put_for_reader();
  expect_told(kRowsAreLost | 1);
}

// A rank that opens a session while the last one's exchange waits for the relay gets the new one's, and nothing cancels that.
TEST_F(ExpertsProxyRelay, AnExchangeOfAnOldSessionThatWaitsForTheRelayCancelsNoNewOne) {
  ASSERT_TRUE(eventually([&] { return world_.posts.size() == 1; }));
  put_for_reader(8);
  let_pass();
  device::store_release(&in().opened[kReader], kNonce + 1);
  put_for_reader(1, 0, kNonce + 1);
  ASSERT_TRUE(eventually([&] { return world_.posts.size() == 2; }));
  let_pass();
  end_post(0, TOWLINE_OK);
  let_pass();
  const std::lock_guard lock(world_.mutex);
  EXPECT_FALSE(world_.posts[1].cancelled);
  EXPECT_EQ(world_.posts.size(), 2u);
  world_.posts[1].outcome = TOWLINE_OK;
  world_.posts[1].fenced = true;
}

// So that the reader, which waits as long, hears of it.
TEST_F(ExpertsProxyRelay, RowsHaveHalfTheTimeoutToGetToTheRelay) {
  put_for_reader();
  ASSERT_TRUE(eventually([&] { return world_.posts.size() == 1; }));
  EXPECT_LE(world_.deadline_ns, monotonic_now_ns() + kTimeoutNs / 2);
  EXPECT_GE(world_.deadline_ns, monotonic_now_ns() + kTimeoutNs / 4);
  end_post(0, TOWLINE_OK);
  ASSERT_TRUE(eventually([&] { return world_.posts.size() == 2; }));
  EXPECT_GE(world_.deadline_ns, monotonic_now_ns() + kTimeoutNs * 3 / 4);
  end_post(1, TOWLINE_OK);
}

// ---- Words

// Telling it would wait for a connection, and all other ranks with it.
TEST_F(ExpertsProxy, ARankWithoutAConnectionIsNotTold) {
  {
    const std::lock_guard lock(world_.mutex);
    world_.health = TOWLINE_HEALTH_LOST;
    world_.told.clear();
  }
  device::store_release(&reinterpret_cast<Control*>(bases_.peer)->opened[kMe], 5);
  ASSERT_TRUE(eventually([&] { return world_.asked != nullptr; }));
  let_pass();
  const std::lock_guard lock(world_.mutex);
  EXPECT_TRUE(world_.told.empty());
  world_.health = TOWLINE_HEALTH_ALIVE;
  world_.reachable.push_back(world_.asked);
}

TEST_F(ExpertsProxy, ARankThatIsReachedAgainIsTold) {
  {
    const std::lock_guard lock(world_.mutex);
    world_.health = TOWLINE_HEALTH_LOST;
  }
  device::store_release(&reinterpret_cast<Control*>(bases_.peer)->opened[kMe], 5);
  ASSERT_TRUE(eventually([&] { return world_.asked != nullptr; }));
  {
    const std::lock_guard lock(world_.mutex);
    world_.health = TOWLINE_HEALTH_ALIVE;
    world_.reachable.push_back(world_.asked);
  }
  EXPECT_TRUE(eventually([&] { return !world_.told.empty(); }));
}

}  // namespace
}  // namespace towline::collectives::experts
