// Posts and waits as asynchronous operations of standalone Asio, with any completion token. Needs Asio 1.22 or later.
//
//   towline::AsioQueue waits{io.get_executor(), agent};
//   towline::Peer peer = co_await waits.async_connect("10.0.0.8:7777", 5s, asio::use_awaitable);
//   towline::Finished done = co_await waits.async_post(plan, {.from = theirs, .to = mine}, asio::use_awaitable);
//   waits.async_reached(arrived, 5, [](std::exception_ptr error, uint64_t value) { .. });
//
// One descriptor is watched while something is waited for; no thread is used. Any thread may start operations. What
// fails gives an Error as std::exception_ptr, except posts, whose outcome is a value. Cancelling a post by Asio's
// cancellation slots cancels it, and completes once this side's memory is fenced; other operations complete with
// Error(kCancelled), and go on by themselves. Lists, counters and so on must live until the operation is complete, and the
// io_context until all are: what is left is never completed and not freed.
#pragma once

#include <towline/coroutine.hpp>
#include <towline/dispatch.hpp>

#include <asio/any_io_executor.hpp>
#include <asio/associated_allocator.hpp>
#include <asio/associated_cancellation_slot.hpp>
#include <asio/associated_executor.hpp>
#include <asio/async_result.hpp>
#include <asio/cancellation_type.hpp>
#include <asio/executor_work_guard.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/post.hpp>

#include <fcntl.h>

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

namespace towline {
inline namespace v0 {

namespace detail {

// The queue and its descriptor; lives as long as an operation or the AsioQueue needs it.
class AsioState : public std::enable_shared_from_this<AsioState> {
 public:
  AsioState(asio::any_io_executor executor, const Agent& agent, uint32_t capacity)
      : dispatch(agent, capacity),
        descriptor_(std::move(executor), ::fcntl(dispatch.queue().fd(), F_DUPFD_CLOEXEC, 0)) {}

  // An operation has begun, or is over. The descriptor is watched between the two.
  void begun() {
    const std::lock_guard lock(mutex_);
    ++pending_;
    watch();
  }
  void over() noexcept {
    const std::lock_guard lock(mutex_);
    if (--pending_ == 0 && watching_) {
      asio::error_code ignored;
      descriptor_.cancel(ignored);
    }
  }

  [[nodiscard]] asio::any_io_executor executor() { return descriptor_.get_executor(); }

  Dispatch dispatch;

 private:
  void watch() {
    if (watching_ || pending_ == 0) return;
    watching_ = true;
    descriptor_.async_wait(asio::posix::stream_descriptor::wait_read,
                           [state = shared_from_this()](asio::error_code error) {
                             int32_t count = 0;
                             if (!error) count = state->dispatch.tell();
                             const std::lock_guard lock(state->mutex_);
                             state->watching_ = false;
                             if (count >= 0) state->watch();
                           });
  }

  std::mutex mutex_;
  asio::posix::stream_descriptor descriptor_;
  uint64_t pending_ = 0;
  bool watching_ = false;
};

// One operation, from its start to the call of its handler. `Arguments`: what the handler takes.
template <class Handler, class... Arguments>
class AsioOperation : public Waiter {
 public:
  AsioOperation(std::shared_ptr<AsioState> state, Handler handler)
      : state_(std::move(state)),
        handler_(std::move(handler)),
        work_(asio::get_associated_executor(handler_, state_->executor())) {
    state_->begun();
  }
  virtual ~AsioOperation() { state_->over(); }

 protected:
  // Hands the handler to its executor, where alone its cancellation slot may be touched; the operation is over.
  static void complete(std::unique_ptr<AsioOperation> self, Arguments... arguments) {
    auto executor = self->work_.get_executor();
    asio::post(executor, [handler = std::move(self->handler_), work = std::move(self->work_),
                          given = std::make_tuple(std::move(arguments)...)]() mutable {
      auto slot = asio::get_associated_cancellation_slot(handler);
      if (slot.is_connected()) slot.clear();
      work.reset();
      std::apply([&](auto&&... each) { std::move(handler)(std::move(each)...); }, std::move(given));
    });
  }

  std::shared_ptr<AsioState> state_;
  Handler handler_;
  asio::executor_work_guard<asio::associated_executor_t<Handler, asio::any_io_executor>> work_;
};

// Waits for one event. `Finish` makes the result of it; of nothing: for a failure.
template <class Handler, class Finish, class... Result>
class AsioWait final : public AsioOperation<Handler, std::exception_ptr, Result...> {
  using Base = AsioOperation<Handler, std::exception_ptr, Result...>;

 public:
  template <class Start>
  static void run(std::shared_ptr<AsioState> state, Handler handler, Start start, Finish finish) {
    std::unique_ptr<AsioWait> self{new AsioWait{std::move(state), std::move(handler), std::move(finish)}};
    AsioWait& wait = *self;
    const std::shared_ptr<AsioState> on = wait.state_;
    const uint64_t number = on->dispatch.add(wait);
    auto slot = asio::get_associated_cancellation_slot(wait.handler_);
    if (slot.is_connected()) {
      slot.assign([&wait, on, number](asio::cancellation_type) {
        if (on->dispatch.remove(number))
          wait.end(std::make_exception_ptr(Error{Status::kCancelled, "the wait was cancelled"}), Event{});
      });
    }
    (void)self.release();  // it belongs to its event
    try {
      start(Dispatch::number_data(number));
    } catch (...) {
      if (on->dispatch.remove(number)) wait.end(std::current_exception(), Event{});
    }
  }
  void told(Event& event) override {
    std::exception_ptr error;
    if (is_error(event.outcome()))
      error = std::make_exception_ptr(Error{event.outcome(), std::string{event.error()}});
    end(error, event);
  }

 private:
  AsioWait(std::shared_ptr<AsioState> state, Handler handler, Finish finish)
      : Base(std::move(state), std::move(handler)), finish_(std::move(finish)) {}
  void end(std::exception_ptr error, const Event& event) {
    std::unique_ptr<AsioWait> self{this};
    if constexpr (sizeof...(Result) == 0)
      Base::complete(std::move(self), error);
    else
      Base::complete(std::move(self), error, finish_(error == nullptr ? &event : nullptr));
  }
  Finish finish_;
};

// A post, from its start until its outcome, and after a failure until its local fence.
template <class Handler>
class AsioPost final : public AsioOperation<Handler, Finished> {
  using Base = AsioOperation<Handler, Finished>;

 public:
  static void run(std::shared_ptr<AsioState> state, Handler handler, const Plan& plan, PostOptions options) {
    std::unique_ptr<AsioPost> self{new AsioPost{std::move(state), std::move(handler)}};
    AsioPost& post = *self.release();  // it belongs to its event
    AsioState& on = *post.state_;
    const uint64_t number = on.dispatch.add(post);
    options.queue = on.dispatch.queue();
    options.user_data = Dispatch::number_data(number);
    // The event may come at once, on another thread: it waits for this.
    const std::shared_ptr<std::mutex> starting = post.starting_;
    const std::lock_guard lock(*starting);
    const std::shared_ptr<Post> run = post.post_;
    *run = plan.post(options);
    if (!run->accepted()) {
      on.dispatch.remove(number);
      Base::complete(std::unique_ptr<AsioPost>{&post}, Finished{run->poll(), std::string{last_error()}});
      return;
    }
    auto slot = asio::get_associated_cancellation_slot(post.handler_);
    if (slot.is_connected()) slot.assign([run](asio::cancellation_type) { run->cancel(); });
  }
  void told(Event&) override {
    const std::shared_ptr<std::mutex> starting = starting_;
    const std::lock_guard lock(*starting);
    const Status outcome = post_->poll();
    if (is_error(outcome) && !fencing_) {
      fencing_ = true;
      const uint64_t number = this->state_->dispatch.add(*this);
      try {
        this->state_->dispatch.queue().fence(*post_, Fence::kLocal, Dispatch::number_data(number));
        return;
      } catch (const Error&) {  // of a closed agent, which reaches no memory
        this->state_->dispatch.remove(number);
      }
    }
    Base::complete(std::unique_ptr<AsioPost>{this}, Finished{outcome, post_->error()});
  }

 private:
  using Base::Base;
  std::shared_ptr<Post> post_ = std::make_shared<Post>();
  std::shared_ptr<std::mutex> starting_ = std::make_shared<std::mutex>();
  bool fencing_ = false;
};

template <class Handler>
class AsioNotice final : public AsioOperation<Handler, std::exception_ptr, Event> {
  using Base = AsioOperation<Handler, std::exception_ptr, Event>;

 public:
  static void run(std::shared_ptr<AsioState> state, Handler handler) {
    std::unique_ptr<AsioNotice> self{new AsioNotice{std::move(state), std::move(handler)}};
    AsioNotice& notice = *self.release();
    const std::shared_ptr<AsioState> on = notice.state_;
    auto slot = asio::get_associated_cancellation_slot(notice.handler_);
    if (slot.is_connected()) {
      slot.assign([&notice, on, waits = notice.waits_](asio::cancellation_type) {
        if (!*waits || !on->dispatch.remove_notice_waiter(notice)) return;
        auto cancelled = std::make_exception_ptr(Error{Status::kCancelled, "the wait was cancelled"});
        Base::complete(std::unique_ptr<AsioNotice>{&notice}, std::move(cancelled), Event{});
      });
    }
    Event event;
    if (on->dispatch.take_notice(notice, event)) notice.told(event);
  }
  void told(Event& event) override {
    *waits_ = false;
    Base::complete(std::unique_ptr<AsioNotice>{this}, nullptr, std::move(event));
  }

 private:
  using Base::Base;
  std::shared_ptr<std::atomic<bool>> waits_ = std::make_shared<std::atomic<bool>>(true);
};

}  // namespace detail

// A queue whose events complete operations of Asio. Operations under way keep what they need of it.
class AsioQueue {
 public:
  AsioQueue(asio::any_io_executor executor, const Agent& agent, uint32_t capacity = 0)
      : executor_(executor),
        state_(std::make_shared<detail::AsioState>(std::move(executor), agent, capacity)) {}

  [[nodiscard]] asio::any_io_executor get_executor() const noexcept { return executor_; }
  [[nodiscard]] const Queue& queue() const noexcept { return state_->dispatch.queue(); }

  // void(Finished). Picks and notice are read before this returns, unless the token is lazy.
  template <class Token>
  auto async_post(const Plan& plan, const PostOptions& options, Token&& token) {
    return asio::async_initiate<Token, void(Finished)>(
        [state = state_, &plan, options](auto handler) {
          detail::AsioPost<decltype(handler)>::run(state, std::move(handler), plan, options);
        },
        token);
  }
  // void(std::exception_ptr, Peer)
  template <class Token>
  auto async_connect(std::string address, Deadline deadline, Token&& token) {
    return wait<Token, Peer>([address = std::move(address), deadline](
                                 const Queue& queue, void* data) { queue.connect(address, deadline, data); },
                             [state = state_](const Event* event) {
                               const Queue& queue = state->dispatch.queue();
                               return event != nullptr ? queue.peer(*event) : queue.no_peer();
                             },
                             std::forward<Token>(token));
  }
  // void(std::exception_ptr, uint64_t): the value, once it is at least the threshold.
  template <class Token>
  auto async_reached(const Counter& counter, uint64_t threshold, Token&& token) {
    return wait<Token, uint64_t>(
        [&counter, threshold](const Queue& queue, void* data) { queue.reached(counter, threshold, data); },
        [](const Event* event) { return event != nullptr ? event->value : uint64_t{0}; },
        std::forward<Token>(token));
  }
  // void(std::exception_ptr), all that follow.
  template <class Token>
  auto async_fence(const Post& post, Fence fences, Token&& token) {
    return wait<Token>([&post, fences](const Queue& queue, void* data) { queue.fence(post, fences, data); },
                       Nothing{}, std::forward<Token>(token));
  }
  template <class Token>
  auto async_fence(const Group& group, Fence fences, Token&& token) {
    return wait<Token>([&group, fences](const Queue& queue, void* data) { queue.fence(group, fences, data); },
                       Nothing{}, std::forward<Token>(token));
  }
  template <class Token>
  auto async_refresh(const Peer& peer, Deadline deadline, Token&& token) {
    return wait<Token>(
        [&peer, deadline](const Queue& queue, void* data) { queue.refresh(peer, deadline, data); }, Nothing{},
        std::forward<Token>(token));
  }
  template <class Token>
  auto async_credit(const Peer& peer, Token&& token) {
    return wait<Token>([&peer](const Queue& queue, void* data) { queue.credit(peer, data); }, Nothing{},
                       std::forward<Token>(token));
  }
  template <class Token>
  auto async_deregister(Region region, Token&& token) {
    return wait<Token>(
        [region = std::move(region)](const Queue& queue, void* data) mutable {
          queue.deregister(std::move(region), data);
        },
        Nothing{}, std::forward<Token>(token));
  }
  template <class Token>
  auto async_commit(const Region& region, Deadline deadline, Token&& token) {
    return wait<Token>(
        [&region, deadline](const Queue& queue, void* data) { queue.commit(region, deadline, data); },
        Nothing{}, std::forward<Token>(token));
  }
  // void(std::exception_ptr, Event): the next notice of those to which queue() subscribes.
  template <class Token>
  auto async_notice(Token&& token) {
    return asio::async_initiate<Token, void(std::exception_ptr, Event)>(
        [state = state_](auto handler) {
          detail::AsioNotice<decltype(handler)>::run(state, std::move(handler));
        },
        token);
  }

 private:
  struct Nothing {
    void operator()(const Event*) const noexcept {}
  };

  template <class Token, class... Result, class Start, class Finish>
  auto wait(Start start, Finish finish, Token&& token) {
    return asio::async_initiate<Token, void(std::exception_ptr, Result...)>(
        [state = state_, start = std::move(start), finish = std::move(finish)](auto handler) mutable {
          auto on_queue = [state, start = std::move(start)](void* data) mutable {
            start(state->dispatch.queue(), data);
          };
          detail::AsioWait<decltype(handler), Finish, Result...>::run(state, std::move(handler),
                                                                      std::move(on_queue), std::move(finish));
        },
        token);
  }

  asio::any_io_executor executor_;
  std::shared_ptr<detail::AsioState> state_;
};

}  // namespace v0
}  // namespace towline
