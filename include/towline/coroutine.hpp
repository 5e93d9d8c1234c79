// Posts and groups of C++20 in coroutines. Header-only; no thread, no event loop and no allocation of its own.
//
//   towline::Finished done = co_await towline::finished(plan, {.from = pages, .to = pages});
//   if (done.status != Status::kOk) log(done.error);
//
// The coroutine goes on where `resume` says: by default on the thread that finds the outcome, which may be a progress
// thread of Towline, so that it must not block there. An event loop gives a function that hands the coroutine to it:
//
//   const towline::Resume here = {[](void* io, std::coroutine_handle<> go_on) {
//     asio::post(*static_cast<asio::io_context*>(io), go_on);
//   }, &io};
//   co_await towline::finished(plan, options, here);
//
// A coroutine that is destroyed while it waits cancels its post, and waits until this side's memory is fenced. One that was
// handed to an event loop may only be destroyed once the loop has released it.
#pragma once

#include <towline/towline.hpp>

#include <atomic>
#include <coroutine>
#include <thread>
#include <utility>

namespace towline {
inline namespace v0 {

// Where a coroutine goes on. Null: at once, on the thread that finds the outcome.
struct Resume {
  void (*give)(void* argument, std::coroutine_handle<> go_on) = nullptr;
  void* argument = nullptr;
};

// What became of a post or group.
struct Finished {
  Status status = Status::kInProgress;
  std::string
      error{};  // why, in a sentence: peer, backend, cause, whether memory is safe to reuse; "" for kOk

  // Throws Error unless it is kOk.
  void check() const {
    if (status != Status::kOk) throw detail::failure(status, error);
  }
#if defined(__cpp_lib_expected)
  // The same, with the Error as a value.
  [[nodiscard]] std::expected<void, Error> expected() const {
    if (status != Status::kOk) return std::unexpected{detail::failure(status, error)};
    return {};
  }
#endif
};

namespace detail {

// The outcome comes by callback, perhaps before the coroutine is suspended: the second of the two goes on.
class Awaited {
 public:
  explicit Awaited(Resume resume) noexcept : resume_(resume) {}
  Awaited(const Awaited&) = delete;
  Awaited& operator=(const Awaited&) = delete;

  // True: suspended. False: the outcome was there before.
  [[nodiscard]] bool suspend(std::coroutine_handle<> waiting) noexcept {
    waiting_ = waiting;
    State expected = State::kPosted;
    return state_.compare_exchange_strong(expected, State::kSuspended, std::memory_order_acq_rel);
  }
  static void called(const towline_completion_t* completion) {
    auto& self = *static_cast<Awaited*>(completion->user_data);
    if (self.state_.exchange(State::kCalled, std::memory_order_acq_rel) != State::kSuspended) return;
    if (self.resume_.give == nullptr)
      self.waiting_.resume();
    else
      self.resume_.give(self.resume_.argument, self.waiting_);
  }
  // The coroutine ends without the outcome: waits until the callback, which must be sure to come, is over.
  void abandon() noexcept {
    if (state_.exchange(State::kAbandoned, std::memory_order_acq_rel) == State::kCalled) return;
    while (state_.load(std::memory_order_acquire) != State::kCalled) std::this_thread::yield();
  }

 private:
  enum class State : uint8_t { kPosted, kSuspended, kCalled, kAbandoned };
  const Resume resume_;
  std::coroutine_handle<> waiting_;
  std::atomic<State> state_{State::kPosted};
};

}  // namespace detail

// An awaitable that posts when it is awaited, once.
class [[nodiscard]] FinishedPost {
 public:
  FinishedPost(const Plan& plan, const PostOptions& options, Resume resume) noexcept
      : plan_(plan), options_(options), awaited_(resume) {
    options_.callback = &detail::Awaited::called;
    options_.user_data = &awaited_;
  }
  FinishedPost(const FinishedPost&) = delete;
  FinishedPost& operator=(const FinishedPost&) = delete;
  ~FinishedPost() {
    if (!post_.accepted() || is_over_) return;
    post_.cancel();
    (void)post_.wait_fenced(Fence::kLocal);
    awaited_.abandon();
  }

  [[nodiscard]] bool await_ready() const noexcept { return false; }
  [[nodiscard]] bool await_suspend(std::coroutine_handle<> waiting) {
    post_ = plan_.post(options_);
    if (!post_.accepted()) {
      refused_ = last_error();
      return false;
    }
    return awaited_.suspend(waiting);
  }
  [[nodiscard]] Finished await_resume() {
    is_over_ = true;
    const Status status = post_.poll();
    return {status, post_.accepted() ? post_.error() : std::move(refused_)};
  }

 private:
  const Plan& plan_;
  PostOptions options_;
  detail::Awaited awaited_;
  Post post_;
  std::string refused_;
  bool is_over_ = false;
};

// Posts `plan` and waits for the outcome. Picks and notice are read when it is awaited. Each co_await posts once.
inline FinishedPost finished(const Plan& plan, const PostOptions& options = {}, Resume resume = {}) noexcept {
  return {plan, options, resume};
}

}  // namespace v0
}  // namespace towline
