// Asio's tokens, coroutines and cancellation over an event queue.
#include "towline/asio.hpp"

#include <asio/awaitable.hpp>
#include <asio/bind_cancellation_slot.hpp>
#include <asio/cancellation_signal.hpp>
#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/io_context.hpp>
#include <asio/thread_pool.hpp>
#include <asio/use_awaitable.hpp>
#include <asio/use_future.hpp>

#include <thread>

#include "pair.h"

namespace towline::adapters {
namespace {

class AsioTest : public PairTest {
 protected:
  // Until nothing is waited for any more.
  void run() { io_.run_for(20s); }
  asio::io_context io_;
};

asio::awaitable<void> all_kinds(AsioQueue& waits, const Agent& near, const Agent& far, const BlockList& from,
                                const BlockList& to, bool& over) {
  const Peer peer = co_await waits.async_connect(std::string(far.address()), 20s, asio::use_awaitable);
  EXPECT_EQ(peer.name(), "far");
  co_await waits.async_refresh(peer, 20s, asio::use_awaitable);
  co_await waits.async_credit(peer, asio::use_awaitable);
  const Plan plan = near.plan(from, to);
  for (int i = 0; i < 50; ++i) {
    const Finished done = co_await waits.async_post(plan, {}, asio::use_awaitable);
    EXPECT_EQ(done.status, Status::kOk) << done.error;
  }
  const Finished wrong =
      co_await waits.async_post(plan, {.from = Range{64, 1, 1}, .to = Range{0, 1, 1}}, asio::use_awaitable);
  EXPECT_EQ(wrong.status, Status::kOutOfRange);
  const Post post = plan.post();
  co_await waits.async_fence(post, Fence::kBoth, asio::use_awaitable);
  EXPECT_EQ(post.poll(), Status::kOk);
  const Counter counter = near.counter();
  const Peer itself = near.add_peer(near.metadata());
  while (itself.add(counter.key(), 2) == Status::kAgain) std::this_thread::yield();
  EXPECT_EQ(co_await waits.async_reached(counter, 2, asio::use_awaitable), 2u);
  Status status = Status::kOk;
  try {
    (void)co_await waits.async_connect("127.0.0.1:1", 5s, asio::use_awaitable);
  } catch (const Error& error) {
    status = error.code();
  }
  EXPECT_EQ(status, Status::kUnreachable);
  over = true;
}

TEST_P(AsioTest, WhatTakesTimeIsAwaited) {
  start();
  AsioQueue waits{io_.get_executor(), *near_};
  bool over = false;
  asio::co_spawn(io_, all_kinds(waits, *near_, *far_, *from_, *to_, over), asio::detached);
  run();
  EXPECT_TRUE(over);
  EXPECT_TRUE(io_.stopped()) << "something is still waited for";
  EXPECT_EQ(std::memcmp(mine_.data(), theirs_.data(), kBytes), 0);
}

TEST_P(AsioTest, HandlersAndFuturesAreTokensToo) {
  start();
  AsioQueue waits{io_.get_executor(), *near_};
  const Plan plan = near_->plan(*from_, *to_);
  Status seen = Status::kInProgress;
  std::thread::id thread;
  waits.async_post(plan, {}, [&](const Finished& done) {
    seen = done.status;
    thread = std::this_thread::get_id();
  });
  std::future<Finished> future = waits.async_post(plan, {}, asio::use_future);
  std::thread other{[&] { run(); }};
  EXPECT_EQ(future.get().status, Status::kOk);
  const std::thread::id its_id = other.get_id();
  other.join();
  EXPECT_EQ(seen, Status::kOk);
  EXPECT_EQ(thread, its_id) << "a handler runs where the queue's executor says";
}

TEST_P(AsioTest, NoticesComeByTag) {
  start();
  AsioQueue waits{io_.get_executor(), *far_};
  waits.queue().subscribe(7);
  std::string got;
  const auto take = [&](std::exception_ptr error, const Event& event) {
    EXPECT_EQ(error, nullptr);
    got += event.text();
  };
  waits.async_notice(take);
  waits.async_notice(take);
  while (send_tagged(*peer_, 7, "one ") == Status::kAgain) std::this_thread::yield();
  while (send_tagged(*peer_, 7, "two") == Status::kAgain) std::this_thread::yield();
  run();
  EXPECT_EQ(got, "one two");
}

TEST_P(AsioTest, CancellingAPostWaitsForItsFence) {
  start();
  AsioQueue waits{io_.get_executor(), *near_};
  const Plan plan = near_->plan(*from_, *to_);
  for (int round = 0; round < 30; ++round) {
    asio::cancellation_signal signal;
    Finished done;
    waits.async_post(plan, {}, asio::bind_cancellation_slot(signal.slot(), [&](Finished ended) {
                       done = std::move(ended);
                     }));
    signal.emit(asio::cancellation_type::terminal);
    io_.restart();
    run();
    EXPECT_TRUE(done.status == Status::kOk || done.status == Status::kCancelled) << status_text(done.status);
    EXPECT_EQ(plan.in_use(), 0u);
  }
}

TEST_P(AsioTest, CancelledWaitsEndAtOnce) {
  start();
  AsioQueue waits{io_.get_executor(), *near_};
  const Counter counter = near_->counter();
  asio::cancellation_signal signals[2];
  int cancelled = 0;
  const auto ended = [&](const std::exception_ptr& error) {
    try {
      std::rethrow_exception(error);
    } catch (const Error& its) {
      if (its.code() == Status::kCancelled) ++cancelled;
    }
  };
  waits.async_reached(counter, 1,
                      asio::bind_cancellation_slot(
                          signals[0].slot(), [&](std::exception_ptr error, uint64_t) { ended(error); }));
  waits.async_notice(asio::bind_cancellation_slot(
      signals[1].slot(), [&](std::exception_ptr error, const Event&) { ended(error); }));
  for (asio::cancellation_signal& signal : signals) signal.emit(asio::cancellation_type::terminal);
  run();
  EXPECT_EQ(cancelled, 2);
  EXPECT_TRUE(io_.stopped());
}

TEST_P(AsioTest, AClosedAgentEndsWaits) {
  start();
  AsioQueue waits{io_.get_executor(), *near_};
  const Counter counter = near_->counter();
  std::exception_ptr error;
  waits.async_reached(counter, 1, [&](std::exception_ptr its, uint64_t) { error = std::move(its); });
  near_->close();
  run();
  EXPECT_NE(error, nullptr);
}

TEST_P(AsioTest, ManyThreadsShareAQueue) {
  start();
  const Plan plan = near_->plan(*from_, *to_);
  asio::thread_pool pool{4};
  AsioQueue waits{pool.get_executor(), *near_};
  std::atomic<int> ended{0};
  for (uint64_t task = 0; task < 8; ++task) {
    asio::co_spawn(
        pool,
        [&, task]() -> asio::awaitable<void> {
          for (int i = 0; i < 50; ++i) {
            const Range block{task, 1, 1};
            const Finished done =
                co_await waits.async_post(plan, {.from = block, .to = block}, asio::use_awaitable);
            EXPECT_EQ(done.status, Status::kOk) << done.error;
          }
          ++ended;
        },
        asio::detached);
  }
  pool.join();
  EXPECT_EQ(ended.load(), 8);
}

INSTANTIATE_TEST_SUITE_P(Some, AsioTest, ::testing::Values("memory", "shm", "tcp"), name_of);

}  // namespace
}  // namespace towline::adapters
