// Event queues over every transport, through the public API.
#include "towline/queue.hpp"

#include <poll.h>

#include <thread>

#include "transport_fixture.h"

namespace towline::conformance {
namespace {

bool readable(int fd) {
  pollfd entry{fd, POLLIN, 0};
  return ::poll(&entry, 1, 0) == 1;
}

// The next event; of kind 0 if none comes.
Event next_event(const Queue& queue, Deadline deadline = 20s) {
  std::array<Event, 1> one;
  while (queue.next(one) == 0)
    if (queue.wait(deadline) != Status::kOk) break;
  return std::move(one[0]);
}

void* mark(uintptr_t number) { return reinterpret_cast<void*>(number); }

class QueueTest : public TransportTest {};

TEST_P(QueueTest, EndsOfPostsComeToTheQueueTheyName) {
  const BlockList from = mine();
  const BlockList to = theirs();
  const Plan plan = left_->plan(from, to);
  const Queue one{*left_};
  const Queue other{*left_};
  EXPECT_FALSE(readable(one.fd()));
  for (uintptr_t i = 1; i <= 40; ++i) {
    PostOptions options;
    options.user_data = mark(i);
    options.queue = i % 2 == 0 ? one : other;
    ASSERT_TRUE(plan.post(options).accepted());
  }
  uintptr_t sum = 0;
  for (int i = 0; i < 20; ++i) {
    const Event event = next_event(one);
    ASSERT_EQ(event.kind, uint32_t{TOWLINE_EVENT_DONE});
    EXPECT_EQ(event.outcome(), Status::kOk) << event.error();
    EXPECT_EQ(event.value, from.bytes());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(event.user_data) % 2, 0u);
    sum += reinterpret_cast<uintptr_t>(event.user_data);
  }
  EXPECT_EQ(sum, 420u);
  EXPECT_FALSE(readable(one.fd()));
  for (int i = 0; i < 20; ++i) EXPECT_EQ(reinterpret_cast<uintptr_t>(next_event(other).user_data) % 2, 1u);
  EXPECT_EQ(left_->pull(std::span<Completion>{}), 0);
}

// Before anything was sent: a caller that must not block learns when sending won't.
TEST_P(QueueTest, CreditConnects) {
  const Queue queue{*left_};
  EXPECT_EQ(peer_->health(), Health::kUnknown);
  queue.credit(*peer_, mark(1));
  const Event event = next_event(queue);
  ASSERT_EQ(event.kind, uint32_t{TOWLINE_EVENT_CREDIT});
  EXPECT_EQ(event.outcome(), Status::kOk) << event.error();
  EXPECT_EQ(peer_->health(), Health::kAlive);
  EXPECT_EQ(peer_->send("at once"), Status::kOk);
}

TEST_P(QueueTest, CreditOfAPeerThatIsGoneSaysWhy) {
  const Queue queue{*left_};
  right_region_.reset();
  right_.reset();
  queue.credit(*peer_, mark(1));
  const Event event = next_event(queue);
  ASSERT_EQ(event.kind, uint32_t{TOWLINE_EVENT_CREDIT});
  EXPECT_TRUE(is_error(event.outcome())) << "it can't be reached";
  EXPECT_NE(event.error(), "");
}

TEST_P(QueueTest, AGroupAndItsFenceCome) {
  const BlockList from = mine();
  const BlockList to = theirs();
  const Plan plan = left_->plan(from, to);
  const Queue queue{*left_};
  GroupOptions options;
  options.queue = queue;
  options.user_data = mark(3);
  const Group group = left_->group(options);
  for (int i = 0; i < 4; ++i) ASSERT_FALSE(is_error(group.add(plan)));
  group.close();
  const Event done = next_event(queue);
  EXPECT_EQ(done.kind, uint32_t{TOWLINE_EVENT_DONE});
  EXPECT_EQ(done.user_data, mark(3));
  queue.fence(group, Fence::kBoth, mark(4));
  const Event fenced = next_event(queue);
  EXPECT_EQ(fenced.kind, uint32_t{TOWLINE_EVENT_FENCED});
  EXPECT_EQ(fenced.user_data, mark(4));
  EXPECT_EQ(fenced.value, uint64_t{TOWLINE_FENCE_LOCAL | TOWLINE_FENCE_REMOTE});
}

TEST_P(QueueTest, TheFenceOfAPostWhoseHandleIsGone) {
  const BlockList from = mine();
  const BlockList to = theirs();
  const Plan plan = left_->plan(from, to);
  const Queue queue{*left_};
  for (uintptr_t i = 0; i < 8; ++i) {
    Post post = plan.post();
    ASSERT_TRUE(post.accepted());
    queue.fence(post, Fence::kLocal, mark(i));
    post.release();
  }
  for (int i = 0; i < 8; ++i) {
    const Event event = next_event(queue);
    EXPECT_EQ(event.kind, uint32_t{TOWLINE_EVENT_FENCED});
    EXPECT_EQ(event.outcome(), Status::kOk) << event.error();
  }
  EXPECT_EQ(plan.in_use(), 0u);
}

TEST_P(QueueTest, ANoticeGoesToTheQueueThatSubscribedToItsTag) {
  const Queue sevens{*right_, {.user_data = mark(7)}};
  const Queue high{*right_};
  sevens.subscribe(7);
  high.subscribe(0xab00000000000000, 0xff00000000000000);
  const BlockList from = mine();
  const BlockList to = theirs();
  const Plan plan = left_->plan(from, to);
  PostOptions options;
  options.notice = BytesView("by a post");
  options.tag = 7;
  ASSERT_EQ(plan.post(options).wait(20s), Status::kOk);
  Group group = left_->group({.notice = BytesView("by a group"), .tag = 0xab00000000000001});
  ASSERT_FALSE(is_error(group.add(plan)));
  group.close();
  ASSERT_EQ(group.wait(20s), Status::kOk);
  ASSERT_EQ(send_tagged(*peer_, 9, BytesView("nobody's")), Status::kOk);
  ASSERT_EQ(peer_->send(BytesView("untagged")), Status::kOk);
  {
    const Event event = next_event(sevens);
    ASSERT_EQ(event.kind, uint32_t{TOWLINE_EVENT_NOTICE});
    EXPECT_EQ(event.text(), "by a post");
    EXPECT_EQ(event.tag, 7u);
    EXPECT_EQ(event.user_data, mark(7));
    const Peer sender = sevens.peer(event);
    EXPECT_EQ(sender.name(), "left");
    Status sent = sender.send(BytesView("an answer"));
    EXPECT_EQ(sent, Status::kOk);
  }
  EXPECT_EQ(next_notice(*left_).text(), "an answer");
  EXPECT_EQ(next_event(high).text(), "by a group");
  EXPECT_EQ(next_notice(*right_).text(), "nobody's");
  EXPECT_EQ(next_notice(*right_).text(), "untagged");
  sevens.unsubscribe(7);
  EXPECT_THROW(sevens.unsubscribe(7), Error);
  ASSERT_EQ(send_tagged(*peer_, 7, BytesView("no more")), Status::kOk);
  EXPECT_EQ(next_notice(*right_).text(), "no more");
}

TEST_P(QueueTest, ACounterThatReachesItsThresholdTells) {
  const Queue queue{*right_};
  const Counter counter = right_->counter();
  queue.reached(counter, 3, mark(1));
  queue.reached(counter, 2, mark(2));
  queue.reached(counter, 2, mark(9));
  queue.forget(counter, mark(9));
  for (int i = 0; i < 3; ++i) ASSERT_EQ(peer_->add(counter.key(), 1), Status::kOk);
  const Event first = next_event(queue);
  EXPECT_EQ(first.kind, uint32_t{TOWLINE_EVENT_SIGNAL});
  EXPECT_EQ(first.user_data, mark(2));
  EXPECT_EQ(next_event(queue).user_data, mark(1));
  queue.reached(counter, 1, mark(5));  // at once
  EXPECT_EQ(next_event(queue).value, 3u);
  std::array<Event, 1> none;
  EXPECT_EQ(queue.next(none), 0);
}

TEST_P(QueueTest, RegionsGoWithoutAWait) {
  const BlockList from = mine();
  const BlockList to = theirs();
  ASSERT_EQ(left_->copy(from, to).wait(20s), Status::kOk);
  const Queue queue{*right_};
  queue.deregister(std::move(*right_region_), mark(6));
  const Event event = next_event(queue);
  EXPECT_EQ(event.kind, uint32_t{TOWLINE_EVENT_DEREGISTERED});
  EXPECT_EQ(event.outcome(), Status::kOk) << event.error();
  EXPECT_EQ(event.user_data, mark(6));
}

TEST_P(QueueTest, APeerThatRefusedTellsWhenItHasCreditAgain) {
  const std::string notice(60000, 'n');
  int sent = 0;
  while (peer_->send(notice) == Status::kOk) ++sent;
  ASSERT_GT(sent, 0);
  const Queue queue{*left_};
  queue.credit(*peer_, mark(8));
  for (int i = 0; i < sent; ++i) ASSERT_EQ(next_notice(*right_).bytes().size(), notice.size());
  const Event event = next_event(queue);
  ASSERT_EQ(event.kind, uint32_t{TOWLINE_EVENT_CREDIT});
  EXPECT_EQ(event.user_data, mark(8));
  EXPECT_EQ(queue.peer(event).name(), "right");
}

TEST_P(QueueTest, PeersHealthIsTold) {
  const Queue queue{*left_, {.peer_health = true}};
  ASSERT_EQ(peer_->send(BytesView("hello")), Status::kOk);
  {
    const Event event = next_event(queue);
    ASSERT_EQ(event.kind, uint32_t{TOWLINE_EVENT_PEER_HEALTH});
    EXPECT_EQ(event.value, uint64_t{TOWLINE_HEALTH_ALIVE});
    EXPECT_EQ(queue.peer(event).name(), "right");
  }
  right_region_.reset();
  right_.reset();
  EXPECT_EQ(next_event(queue).value, uint64_t{TOWLINE_HEALTH_LOST});
}

INSTANTIATE_TEST_SUITE_P(Transports, QueueTest, ::testing::ValuesIn(transports()),
                         [](const auto& instance) { return std::string(instance.param.name); });

// ---- what does not depend on the transport

Agent make(const std::string& name) { return Agent{name, {.backends = "memory,tcp"}}; }

TEST(Queues, ConnectingReportsThePeerOrWhyNot) {
  Agent one = make("one");
  const Agent two = make("two");
  const Queue queue{one};
  queue.connect(two.address(), 20s, mark(1));
  {
    const Event event = next_event(queue);
    ASSERT_EQ(event.kind, uint32_t{TOWLINE_EVENT_CONNECTED});
    ASSERT_EQ(event.outcome(), Status::kOk) << event.error();
    const Peer peer = queue.peer(event);
    EXPECT_EQ(peer.name(), "two");
    queue.refresh(peer, 20s, mark(2));
    EXPECT_EQ(next_event(queue).user_data, mark(2));
  }
  queue.connect("unix:@nobody-listens-there", 20s, mark(3));
  const Event event = next_event(queue);
  EXPECT_EQ(event.outcome(), Status::kUnreachable);
  EXPECT_NE(event.error().find("nobody-listens-there"), std::string_view::npos);
  EXPECT_THROW(queue.connect(two.address(), std::chrono::steady_clock::now() - 1s, nullptr), Error);
}

TEST(Queues, AFullQueueRefusesWhatWouldCome) {
  const Agent agent = make("one");
  const Queue queue{agent, {.capacity = 4}};
  const Counter counter = agent.counter();
  for (uintptr_t i = 0; i < 4; ++i) queue.reached(counter, 0, mark(i));
  try {
    queue.reached(counter, 0, nullptr);
    FAIL() << "it took a fifth";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Status::kAgain);
  }
  (void)next_event(queue);
  queue.reached(counter, 0, mark(4));
  for (uintptr_t i = 1; i <= 4; ++i) EXPECT_EQ(next_event(queue).user_data, mark(i));
}

TEST(Queues, ADroppedQueueWithEventsInsideAndToCome) {
  const Agent agent = make("one");
  const Agent other = make("two");
  const Peer peer = other.add_peer(agent.metadata());
  const Counter counter = agent.counter();
  for (int round = 0; round < 20; ++round) {
    const Queue queue{agent};
    queue.subscribe(5);
    queue.reached(counter, 0, nullptr);
    queue.reached(counter, 1 << 20, nullptr);
    queue.connect(other.address(), 20s, nullptr);
    ASSERT_EQ(send_tagged(peer, 5, BytesView("dropped")), Status::kOk);
  }
  // The credit of what was dropped is not lost.
  const std::string notice(60000, 'n');
  const Queue last{agent};
  last.subscribe(5);
  ASSERT_EQ(send_tagged(peer, 5, notice), Status::kOk);
  Event event = next_event(last);
  while (event.kind == TOWLINE_EVENT_NOTICE && event.bytes != notice.size()) event = next_event(last);
  EXPECT_EQ(event.bytes, notice.size());
}

TEST(Queues, ClosingAnAgentWakesWhoWaits) {
  auto agent = std::make_unique<Agent>("one", AgentOptions{.backends = "memory"});
  Queue queue{*agent};
  const Counter counter = agent->counter();
  queue.reached(counter, 1, mark(1));
  std::thread waiter([&] {
    const Event event = next_event(queue, 60s);
    EXPECT_EQ(event.outcome(), Status::kClosed);
    EXPECT_EQ(queue.wait(60s), Status::kClosed);
    std::array<Event, 1> none;
    EXPECT_EQ(queue.next(none), static_cast<int32_t>(Status::kClosed));
    EXPECT_TRUE(readable(queue.fd()));
  });
  agent.reset();
  waiter.join();
}

TEST(Queues, ADestroyedCounterTellsItsWaiters) {
  const Agent agent = make("one");
  const Queue queue{agent};
  {
    const Counter counter = agent.counter();
    queue.reached(counter, 1, mark(1));
  }
  const Event event = next_event(queue);
  EXPECT_EQ(event.outcome(), Status::kStale);
  EXPECT_EQ(queue.wait(1ms), Status::kNotYet);
}

TEST(Queues, AnElementOfALaterVersionIsLongerAndNoneIsShorter) {
  const Agent agent = make("one");
  const Queue queue{agent};
  const Counter counter = agent.counter(7);
  queue.reached(counter, 1, mark(1));
  queue.reached(counter, 1, mark(2));
  struct Longer {
    towline_event_t event;
    uint64_t later;
  };
  std::array<Longer, 2> events;
  events[0].later = events[1].later = 99;
  ASSERT_EQ(towline_queue_next(queue, &events[0].event, 2, sizeof(Longer)), 2);
  EXPECT_EQ(events[1].event.user_data, mark(2));
  EXPECT_EQ(events[1].later, 0u);
  for (Longer& one : events) towline_event_release(&one.event);
  // No version has shorter ones, and what they could not hold would never be given back.
  queue.reached(counter, 1, mark(3));
  EXPECT_EQ(towline_queue_next(queue, &events[0].event, 1, sizeof(towline_event_t) - 8),
            TOWLINE_INVALID_ARGUMENT);
  EXPECT_EQ(next_event(queue).user_data, mark(3));
}

}  // namespace
}  // namespace towline::conformance
