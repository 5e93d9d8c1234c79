// co_await over an event queue: posts, groups, connections, counters, fences, notices and so on, of C++20 coroutines.
//
//   towline::Awaits waits{agent};
//   Task pull(towline::Awaits& waits) {
//     const towline::Peer peer = co_await waits.connect("10.0.0.8:7777", 5s);
//     const towline::Finished done = co_await waits.finished(plan, {.from = theirs, .to = mine});
//     const towline::Event notice = co_await waits.notice();
//   }
//   ...                                       // epoll, libuv: waits.fd() is readable
//   waits.tell();                             // coroutines go on here
//
// Coroutines go on only in tell(), on its thread, so that a program with one thread needs no locks. What fails throws Error where it is
// awaited, except posts and groups, whose outcome is a value. A coroutine that is destroyed while it waits gives up the
// wait; a post of it is cancelled, and its local fence awaited. One thread at a time may call tell() and destroy coroutines.
// (coroutine.hpp has posts that go on without a queue, on the thread that finds the outcome.)
#pragma once

#include <towline/coroutine.hpp>
#include <towline/dispatch.hpp>

#include <coroutine>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace towline {
inline namespace v0 {

namespace detail {

// `Start` asks for the event with the user_data that it is given, and throws if it can't. `Finish` makes the result.
// `Abandon` is called when the coroutine ends first.
template <class Start, class Finish, class Abandon>
class [[nodiscard]] AwaitedEvent final : public Waiter {
 public:
  AwaitedEvent(Dispatch& dispatch, Start start, Finish finish, Abandon abandon)
      : dispatch_(dispatch),
        start_(std::move(start)),
        finish_(std::move(finish)),
        abandon_(std::move(abandon)) {}
  ~AwaitedEvent() {
    if (number_ == 0) return;
    dispatch_.remove(number_);
    abandon_(Dispatch::number_data(number_));
  }

  [[nodiscard]] bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> waiting) {
    waiting_ = waiting;
    number_ = dispatch_.add(*this);
    try {
      start_(Dispatch::number_data(number_));
    } catch (...) {
      dispatch_.remove(std::exchange(number_, 0));
      throw;
    }
  }
  auto await_resume() {
    check(event_);
    return finish_(event_);
  }
  void told(Event& event) override {
    event_ = std::move(event);
    number_ = 0;
    waiting_.resume();
  }

 private:
  Dispatch& dispatch_;
  Start start_;
  Finish finish_;
  Abandon abandon_;
  std::coroutine_handle<> waiting_;
  Event event_;
  uint64_t number_ = 0;  // 0: nothing is to come
};

class [[nodiscard]] AwaitedNotice final : public Waiter {
 public:
  explicit AwaitedNotice(Dispatch& dispatch) : dispatch_(dispatch) {}
  ~AwaitedNotice() {
    if (waits_) dispatch_.remove_notice_waiter(*this);
  }
  [[nodiscard]] bool await_ready() const noexcept { return false; }
  [[nodiscard]] bool await_suspend(std::coroutine_handle<> waiting) {
    waiting_ = waiting;
    waits_ = true;
    if (dispatch_.take_notice(*this, event_)) waits_ = false;
    return waits_;
  }
  [[nodiscard]] Event await_resume() noexcept { return std::move(event_); }
  void told(Event& event) override {
    event_ = std::move(event);
    waits_ = false;
    waiting_.resume();
  }

 private:
  Dispatch& dispatch_;
  std::coroutine_handle<> waiting_;
  Event event_;
  bool waits_ = false;
};

// A post whose outcome the queue tells.
class [[nodiscard]] QueuedPost final : public Waiter {
 public:
  QueuedPost(Dispatch& dispatch, const Plan& plan, const PostOptions& options)
      : dispatch_(dispatch), plan_(plan), options_(options) {}
  ~QueuedPost() {
    if (number_ == 0) return;
    dispatch_.remove(number_);
    post_.cancel();
    (void)post_.wait_fenced(Fence::kLocal);
  }
  [[nodiscard]] bool await_ready() const noexcept { return false; }
  [[nodiscard]] bool await_suspend(std::coroutine_handle<> waiting) {
    waiting_ = waiting;
    number_ = dispatch_.add(*this);
    options_.queue = dispatch_.queue();
    options_.user_data = Dispatch::number_data(number_);
    post_ = plan_.post(options_);
    if (post_.accepted()) return true;
    dispatch_.remove(std::exchange(number_, 0));
    refused_ = last_error();
    return false;
  }
  [[nodiscard]] Finished await_resume() {
    return {post_.poll(), post_.accepted() ? post_.error() : std::move(refused_)};
  }
  void told(Event&) override {
    number_ = 0;
    waiting_.resume();
  }

 private:
  Dispatch& dispatch_;
  const Plan& plan_;
  PostOptions options_;
  Post post_;
  std::string refused_;
  std::coroutine_handle<> waiting_;
  uint64_t number_ = 0;
};

}  // namespace detail

// A group whose outcome can be awaited, once. Its members join as those of any group. An end without close() cancels it.
class AwaitedGroup {
 public:
  [[nodiscard]] Group& operator*() const noexcept { return its_->group; }
  [[nodiscard]] Group* operator->() const noexcept { return &its_->group; }

  // `co_await group.finished()`, after close().
  [[nodiscard]] auto finished() const noexcept {
    struct Awaited {
      [[nodiscard]] bool await_ready() const noexcept { return its.number == 0; }
      void await_suspend(std::coroutine_handle<> waiting) noexcept { its.waiting = waiting; }
      [[nodiscard]] Finished await_resume() const {
        its.waiting = nullptr;
        return {its.group.poll(), its.group.error()};
      }
      ~Awaited() { its.waiting = nullptr; }
      State& its;
    };
    return Awaited{*its_};
  }

 private:
  friend class Awaits;
  struct State final : Waiter {
    State(Dispatch& on, const Agent& agent, GroupOptions options)
        : dispatch(on), number(on.add(*this)), group(make(on, agent, options, number)) {}
    ~State() {
      if (number != 0) dispatch.remove(number);
    }
    void told(Event&) override {
      number = 0;
      if (waiting) std::exchange(waiting, nullptr).resume();
    }
    static Group make(Dispatch& on, const Agent& agent, GroupOptions& options, uint64_t number) {
      options.queue = on.queue();
      options.user_data = Dispatch::number_data(number);
      try {
        return agent.group(options);
      } catch (...) {
        on.remove(number);
        throw;
      }
    }
    Dispatch& dispatch;
    uint64_t number;
    Group group;
    std::coroutine_handle<> waiting;
  };
  explicit AwaitedGroup(std::unique_ptr<State> its) noexcept : its_(std::move(its)) {}
  std::unique_ptr<State> its_;
};

// A queue whose events resume coroutines. It outlives them; what it waits for may outlive it.
class Awaits {
  // Above what uses them, for their types.
  template <class Start, class Finish, class Abandon>
  [[nodiscard]] auto event(Start start, Finish finish, Abandon abandon) {
    return detail::AwaitedEvent<Start, Finish, Abandon>{dispatch_, std::move(start), std::move(finish),
                                                        std::move(abandon)};
  }
  template <class Start, class Finish>
  [[nodiscard]] auto event(Start start, Finish finish) {
    return event(std::move(start), std::move(finish), [](void*) {});
  }
  template <class Start>
  [[nodiscard]] auto event(Start start) {
    return event(std::move(start), [](const Event&) {});
  }

 public:
  explicit Awaits(const Agent& agent, uint32_t capacity = 0) : dispatch_(agent, capacity) {}

  // Readable while coroutines can go on.
  [[nodiscard]] int fd() const { return dispatch_.queue().fd(); }
  // Resumes those that can go on; never blocks. How many events there were; kClosed after the last one of a closed agent.
  int32_t tell() { return dispatch_.tell(); }
  // Sleeps until some can; kNotYet if the deadline comes first.
  [[nodiscard]] Status wait(Deadline deadline = kForever) const noexcept {
    return dispatch_.queue().wait(deadline);
  }
  [[nodiscard]] const Queue& queue() const noexcept { return dispatch_.queue(); }

  // Posts, and gives the outcome. Picks and notice are read when it is awaited. kAgain: co_await credit(peer), and again.
  [[nodiscard]] auto finished(const Plan& plan, const PostOptions& options = {}) {
    return detail::QueuedPost{dispatch_, plan, options};
  }
  [[nodiscard]] AwaitedGroup group(const Agent& agent, const GroupOptions& options = {}) {
    return AwaitedGroup{std::make_unique<AwaitedGroup::State>(dispatch_, agent, options)};
  }
  // The fences hold: memory may be reused.
  [[nodiscard]] auto fenced(const Post& post, Fence fences = Fence::kBoth) {
    return event([this, &post, fences](void* data) { queue().fence(post, fences, data); });
  }
  [[nodiscard]] auto fenced(const Group& group, Fence fences = Fence::kBoth) {
    return event([this, &group, fences](void* data) { queue().fence(group, fences, data); });
  }
  // Gives the value, once it is at least the threshold.
  [[nodiscard]] auto reached(const Counter& counter, uint64_t threshold) {
    return event([this, &counter, threshold](void* data) { queue().reached(counter, threshold, data); },
                 [](const Event& event) { return event.value; },
                 [this, &counter](void* data) { queue().forget(counter, data); });
  }
  // Gives the peer.
  [[nodiscard]] auto connect(std::string address, Deadline deadline) {
    return event([this, address = std::move(address),
                  deadline](void* data) { queue().connect(address, deadline, data); },
                 [this](const Event& event) { return queue().peer(event); });
  }
  [[nodiscard]] auto refreshed(const Peer& peer, Deadline deadline) {
    return event([this, &peer, deadline](void* data) { queue().refresh(peer, deadline, data); });
  }
  // The peer has credit for a notice of any size.
  [[nodiscard]] auto credit(const Peer& peer) {
    return event([this, &peer](void* data) { queue().credit(peer, data); });
  }
  // Nothing reaches the memory any more.
  [[nodiscard]] auto deregistered(Region region) {
    return event([this, region = std::move(region)](void* data) mutable {
      queue().deregister(std::move(region), data);
    });
  }
  [[nodiscard]] auto committed(const Region& region, Deadline deadline) {
    return event([this, &region, deadline](void* data) { queue().commit(region, deadline, data); });
  }
  // The next notice of those to which queue() subscribes.
  [[nodiscard]] auto notice() { return detail::AwaitedNotice{dispatch_}; }

 private:
  Dispatch dispatch_;
};

}  // namespace v0
}  // namespace towline
