// co_await over an event queue.
#include "towline/await.hpp"

#include <poll.h>

#include <thread>

#include "pair.h"

namespace towline::adapters {
namespace {

struct Task {
  struct promise_type {
    Task get_return_object() { return Task{std::coroutine_handle<promise_type>::from_promise(*this)}; }
    std::suspend_never initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() { error = std::current_exception(); }
    std::exception_ptr error;
  };
  explicit Task(std::coroutine_handle<promise_type> its) : handle(its) {}
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;
  ~Task() { handle.destroy(); }
  std::coroutine_handle<promise_type> handle;
};

// Drives the queue as a loop with epoll does. False: it took too long.
bool run(Awaits& waits, const Task& task) {
  while (!task.handle.done()) {
    pollfd ready{waits.fd(), POLLIN, 0};
    if (::poll(&ready, 1, 20'000) != 1) return false;
    (void)waits.tell();
  }
  if (task.handle.promise().error) std::rethrow_exception(task.handle.promise().error);
  return true;
}

class AwaitTest : public PairTest {};

Task all_kinds(Awaits& waits, const Agent& near, const Agent& far, const BlockList& from, const BlockList& to,
               std::thread::id& thread) {
  const Peer peer = co_await waits.connect(std::string(far.address()), 20s);
  EXPECT_EQ(peer.name(), "far");
  co_await waits.refreshed(peer, 20s);
  const Plan plan = near.plan(from, to);
  const Finished done = co_await waits.finished(plan, {.from = Range{0, 1, 8}, .to = Range{0, 1, 8}});
  EXPECT_EQ(done.status, Status::kOk) << done.error;
  const Finished wrong =
      co_await waits.finished(plan, {.from = Range{uint64_t{64}, 1, 1}, .to = Range{0, 1, 1}});
  EXPECT_EQ(wrong.status, Status::kOutOfRange);
  EXPECT_NE(wrong.error.find("the list has 64"), std::string::npos) << wrong.error;
  co_await waits.credit(peer);

  AwaitedGroup group = waits.group(near, {.notice = "all"});
  for (uint64_t i = 0; i < 4; ++i) {
    const Range block{i, 1, 1};
    EXPECT_GE(group->add(plan, {.from = block, .to = block}), Status::kOk);
  }
  group->close();
  const Finished all = co_await group.finished();
  EXPECT_EQ(all.status, Status::kOk) << all.error;

  const Post post = plan.post();
  co_await waits.fenced(post);
  EXPECT_EQ(post.poll(), Status::kOk);
  thread = std::this_thread::get_id();
}

TEST_P(AwaitTest, WhatTakesTimeIsAwaited) {
  start();
  Awaits waits{*near_};
  std::thread::id thread;
  const Task task = all_kinds(waits, *near_, *far_, *from_, *to_, thread);
  ASSERT_TRUE(run(waits, task));
  EXPECT_EQ(thread, std::this_thread::get_id());
  EXPECT_EQ(std::memcmp(mine_.data(), theirs_.data(), kBytes), 0);
}

Task counts_and_notices(Awaits& waits, const Counter& counter, uint64_t& value, std::string& got,
                        uint64_t& tag) {
  value = co_await waits.reached(counter, 3);
  const Event first = co_await waits.notice();
  const Event second = co_await waits.notice();
  got = std::string(first.text()) + std::string(second.text());
  tag = second.tag;
}

TEST_P(AwaitTest, CountersAndNoticesAreAwaited) {
  start();
  Awaits waits{*far_};
  waits.queue().subscribe(7);
  const Counter counter = far_->counter();
  uint64_t value = 0;
  uint64_t tag = 0;
  std::string got;
  const Task task = counts_and_notices(waits, counter, value, got, tag);
  EXPECT_FALSE(task.handle.done());
  while (send_tagged(*peer_, 7, "one ") == Status::kAgain) std::this_thread::yield();
  while (send_tagged(*peer_, 7, "two") == Status::kAgain) std::this_thread::yield();
  while (peer_->add(counter.key(), 3) == Status::kAgain) std::this_thread::yield();
  ASSERT_TRUE(run(waits, task));
  EXPECT_EQ(value, 3u);
  EXPECT_EQ(got, "one two");
  EXPECT_EQ(tag, 7u);
}

Task fails(Awaits& waits, Status& status) {
  try {
    const Peer nobody = co_await waits.connect("127.0.0.1:1", 5s);
  } catch (const Error& error) {
    status = error.code();
    EXPECT_NE(std::string(error.what()), "");
  }
}

TEST_P(AwaitTest, WhatFailsThrowsWhereItIsAwaited) {
  start();
  Awaits waits{*near_};
  Status status = Status::kOk;
  const Task task = fails(waits, status);
  ASSERT_TRUE(run(waits, task));
  EXPECT_EQ(status, Status::kUnreachable);
}

Task waits_for(Awaits& waits, const Counter& counter) { (void)co_await waits.reached(counter, 1); }
Task waits_for(Awaits& waits) { (void)co_await waits.notice(); }
Task waits_for(Awaits& waits, const Plan& plan) { (void)co_await waits.finished(plan); }

TEST_P(AwaitTest, DestroyedCoroutinesAreNotResumed) {
  start();
  const Plan plan = near_->plan(*from_, *to_);
  Awaits waits{*near_};
  const Counter counter = near_->counter();
  for (int round = 0; round < 50; ++round) {
    const Task reached = waits_for(waits, counter);
    const Task notice = waits_for(waits);
    const Task post = waits_for(waits, plan);
  }
  const Peer itself = near_->add_peer(near_->metadata());
  while (itself.add(counter.key(), 1) == Status::kAgain) std::this_thread::yield();
  while (waits.tell() > 0) {
  }
  EXPECT_EQ(plan.in_use(), 0u);
  const Task last = waits_for(waits, plan);
  ASSERT_TRUE(run(waits, last));
}

Task closes(Awaits& waits, Region region, bool& gone) {
  co_await waits.deregistered(std::move(region));
  gone = true;
}

TEST_P(AwaitTest, ARegionsEndIsAwaited) {
  start();
  Awaits waits{*near_};
  Region region = std::move(*near_region_);
  bool gone = false;
  const Task task = closes(waits, std::move(region), gone);
  ASSERT_TRUE(run(waits, task));
  EXPECT_TRUE(gone);
}

TEST_P(AwaitTest, AClosedAgentEndsWaits) {
  start();
  Awaits waits{*near_};
  const Counter counter = near_->counter();
  const Task task = waits_for(waits, counter);
  near_->close();
  EXPECT_THROW((void)run(waits, task), Error);
}

INSTANTIATE_TEST_SUITE_P(Some, AwaitTest, ::testing::Values("memory", "shm", "tcp"), name_of);

}  // namespace
}  // namespace towline::adapters
