// co_await of posts, through the public API.
#include "towline/coroutine.hpp"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "transport_fixture.h"

namespace towline::conformance {
namespace {

// A coroutine that starts at once and that nobody waits for but by `done`, which outlives it: who waits may destroy the
// coroutine while the thread that ended it still tells others.
struct Task {
  using Done = std::shared_ptr<std::atomic<bool>>;
  struct promise_type {
    // Once it is suspended for good, and not before.
    struct Ended {
      [[nodiscard]] static bool await_ready() noexcept { return false; }
      static void await_suspend(std::coroutine_handle<promise_type> ended) noexcept {
        const Done done = ended.promise().done;
        done->store(true, std::memory_order_release);
        done->notify_all();
      }
      static void await_resume() noexcept {}
    };
    Task get_return_object() { return Task{std::coroutine_handle<promise_type>::from_promise(*this)}; }
    std::suspend_never initial_suspend() noexcept { return {}; }
    Ended final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() { std::terminate(); }
    Done done = std::make_shared<std::atomic<bool>>(false);
  };
  explicit Task(std::coroutine_handle<promise_type> its_handle)
      : handle(its_handle), done(its_handle.promise().done) {}
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;
  ~Task() { handle.destroy(); }
  void wait() const { done->wait(false, std::memory_order_acquire); }
  std::coroutine_handle<promise_type> handle;
  Done done;
};

class CoroutineTest : public TransportTest {};

Task run_posts(const Plan& plan, uint32_t count, Resume resume, std::vector<Finished>& ended) {
  for (uint32_t i = 0; i < count; ++i) {
    const Range block{i, 1, 1};
    PostOptions options;
    options.from = block;
    options.to = block;
    ended.push_back(co_await finished(plan, options, resume));
  }
}

TEST_P(CoroutineTest, APostIsAwaited) {
  stamp(left_memory_->data(), left_memory_->size(), 3);
  const BlockList from = mine();
  const BlockList to = theirs();
  const Plan plan = left_->plan(from, to);
  std::vector<Finished> ended;
  run_posts(plan, 200, {}, ended).wait();
  ASSERT_EQ(ended.size(), 200u);
  for (const Finished& one : ended) EXPECT_EQ(one.status, Status::kOk) << one.error;
  EXPECT_EQ(std::memcmp(right_memory_->data(), left_memory_->data(), 200 * kBlock), 0);
}

// An event loop in its smallest form.
class Loop {
 public:
  static void give(void* self, std::coroutine_handle<> go_on) {
    auto& loop = *static_cast<Loop*>(self);
    const std::lock_guard lock(loop.mutex_);
    loop.ready_.push_back(go_on);
    loop.came_.notify_one();
  }
  void run_until(const Task& task) {
    while (!task.done->load(std::memory_order_acquire)) {
      std::unique_lock lock(mutex_);
      if (!came_.wait_for(lock, 20s, [&] { return !ready_.empty(); })) return;
      const std::coroutine_handle<> next = ready_.front();
      ready_.pop_front();
      lock.unlock();
      ASSERT_EQ(std::this_thread::get_id(), thread_);
      next.resume();
    }
  }

 private:
  const std::thread::id thread_ = std::this_thread::get_id();
  std::mutex mutex_;
  std::condition_variable came_;
  std::deque<std::coroutine_handle<>> ready_;
};

Task notice_thread(const Plan& plan, Resume resume, std::vector<std::thread::id>& threads) {
  for (int i = 0; i < 50; ++i) {
    const Finished done = co_await finished(plan, {}, resume);
    EXPECT_EQ(done.status, Status::kOk) << done.error;
    threads.push_back(std::this_thread::get_id());
  }
}

TEST_P(CoroutineTest, ItGoesOnWhereItIsTold) {
  const BlockList from = mine();
  const BlockList to = theirs();
  const Plan plan = left_->plan(from, to);
  Loop loop;
  std::vector<std::thread::id> threads;
  const Task task = notice_thread(plan, {&Loop::give, &loop}, threads);
  loop.run_until(task);
  ASSERT_EQ(threads.size(), 50u);
  for (const std::thread::id thread : threads) EXPECT_EQ(thread, std::this_thread::get_id());
}

TEST_P(CoroutineTest, WhatIsRefusedSaysWhy) {
  const BlockList from = mine();
  const BlockList to = theirs();
  const Plan plan = left_->plan(from, to);
  std::vector<Finished> ended;
  const auto wrong = [](const Plan& its_plan, std::vector<Finished>& to_fill) -> Task {
    PostOptions options;
    options.from = Range{kBlocks, 1, 1};
    options.to = Range{0, 1, 1};
    to_fill.push_back(co_await finished(its_plan, options));
  };
  wrong(plan, ended).wait();
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].status, Status::kOutOfRange);
  EXPECT_NE(ended[0].error.find("the list has 1024"), std::string::npos) << ended[0].error;
}

TEST_P(CoroutineTest, DestroyedWhileItWaitsItCancelsAndWaitsForTheFence) {
  const BlockList from = mine();
  const BlockList to = theirs();
  const Plan plan = left_->plan(from, to);
  for (int round = 0; round < 50; ++round) {
    Loop never_run;
    std::vector<std::thread::id> threads;
    { const Task task = notice_thread(plan, {&Loop::give, &never_run}, threads); }
    EXPECT_TRUE(threads.size() <= 50);
  }
  EXPECT_EQ(plan.in_use(), 0u);
  EXPECT_EQ(plan.post().wait(20s), Status::kOk);
}

std::vector<Transport> a_few_transports() {
  std::vector<Transport> some;
  for (const Transport& transport : transports()) {
    const std::string name = transport.name;
    if (name == "memory" || name == "memory_framed" || name == "shm" || name == "tcp")
      some.push_back(transport);
  }
  return some;
}

INSTANTIATE_TEST_SUITE_P(Some, CoroutineTest, ::testing::ValuesIn(a_few_transports()),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace towline::conformance
