// Plans, posts and groups for C++20: RAII over plan.h. Included by towline.hpp.
//
//   auto plan = agent.plan(theirs, mine);                                     // once a peer
//   auto post = plan.post({.from = their_pages, .to = my_pages, .notice = "req-17", .deadline = 200ms});
//   if (post.wait() != Status::kOk) log(post.error());                        // or post.get(), or post.expected()
//
//   agent.copy(theirs[their_pages], mine[my_pages]).wait();                   // a plan for one post
//
//   auto group = agent.group({.notice = "req-17", .deadline = 200ms});        // one outcome, one notice
//   for (auto& layer : layers) group.add(layer, {.from = pages, .to = pages});
//   group.close();
//   group.wait();
#pragma once

#include <towline/plan.h>
#include <towline/towline.hpp>

#include <version>
#if defined(__cpp_lib_expected)
#include <expected>
#endif

namespace towline {
inline namespace v0 {

enum class Priority : uint32_t { bulk = TOWLINE_PRIORITY_BULK, latency = TOWLINE_PRIORITY_LATENCY };

// A stream of a GPU in whose order a post moves its bytes, made by on(stream); or `unordered`. Without either a post runs
// at once, and is refused where this agent's memory is a GPU's.
struct Stream {
  void* handle = nullptr;
  uint32_t kind = TOWLINE_STREAM_NONE;
};
[[nodiscard]] constexpr Stream on(void* stream) noexcept { return {stream, TOWLINE_STREAM_CUDA}; }
// At once, whatever streams do: what writes the bytes was synchronised, and they are read after the outcome.
inline constexpr Stream unordered{nullptr, TOWLINE_STREAM_UNORDERED};

struct PlanOptions {
  std::optional<std::chrono::nanoseconds>
      timeout{};             // of posts without a deadline; none: the agent's default
  std::string backend{};     // force one by name; empty: the router chooses
  uint64_t usual_bytes = 0;  // of a post, for the choice of the backend
  bool recut = false;        // pair the bytes of picked blocks in order, whatever layouts say
};

class Group;

struct PostOptions {
  Picks from = all;          // blocks of the plan's `from` ..
  Picks to = all;            // .. and of its `to`, paired in order
  KeptBytes notice{};        // to the peer after the data; empty: none
  uint64_t counter_key = 0;  // the peer's counter to add to after the data; 0: none
  uint64_t counter_add = 0;
  std::optional<Deadline> deadline{};  // none: the plan's timeout
  Priority priority = Priority::bulk;
  Stream stream{};
  bool queue_completion = false;
  void* user_data = nullptr;
  towline_callback_t callback = nullptr;
  uint64_t tag = 0;                  // of the notice; 0: none
  towline_queue_t* queue = nullptr;  // gets the outcome: queue.hpp
};

struct GroupOptions {
  KeptBytes notice{};  // to every peer of its members, after the last byte of the last one; empty: none
  uint64_t counter_key = 0;
  uint64_t counter_add = 0;
  std::optional<Deadline> deadline{};  // of all of it; none: the agent's default, from now
  Priority priority = Priority::bulk;
  bool queue_completion = false;
  void* user_data = nullptr;
  towline_callback_t callback = nullptr;
  uint64_t tag = 0;
  towline_queue_t* queue = nullptr;
};

namespace detail {

using PlanHandle = std::shared_ptr<towline_plan_t>;

// As the C API wants it: on the steady clock, which is CLOCK_MONOTONIC. One that has passed stays in the past.
inline uint64_t absolute_ns(const std::optional<Deadline>& deadline) noexcept {
  return deadline ? deadline->absolute_ns() : 0;
}

inline towline_post_options_t native(const PostOptions& options, towline_group_t* group) noexcept {
  auto native = defaults<towline_post_options_t>();
  native.from = picks(options.from);
  native.to = picks(options.to);
  native.notice = options.notice.data();
  native.notice_bytes = options.notice.size();
  native.counter_key = options.counter_key;
  native.counter_add = options.counter_add;
  native.deadline_ns = absolute_ns(options.deadline);
  native.group = group;
  native.stream = options.stream.handle;
  native.stream_kind = options.stream.kind;
  native.priority = static_cast<uint32_t>(options.priority);
  native.queue_completion = options.queue_completion ? 1 : 0;
  native.user_data = options.user_data;
  native.callback = options.callback;
  native.tag = options.tag;
  native.queue = options.queue;
  return native;
}

template <class Handle, auto Error>
[[nodiscard]] std::string error_text(const Handle* handle) {
  return read_text([handle](char* text, size_t capacity, size_t* needed) {
    return Error(handle, text, capacity, needed);
  });
}

}  // namespace detail

// One run of a plan. Destroying it lets the run go on; the post of Agent::copy is cancelled, as its plan ends with it.
// Neither waits.
class Post {
 public:
  // Empty, or refused: status() says why.
  Post() noexcept = default;
  Post(Post&& other) noexcept
      : plan_(std::move(other.plan_)),
        handle_(std::exchange(other.handle_, nullptr)),
        refused_(std::exchange(other.refused_, Status::kNotFound)) {}
  Post& operator=(Post&& other) noexcept {
    if (this == &other) return *this;
    release();
    plan_ = std::move(other.plan_);
    handle_ = std::exchange(other.handle_, nullptr);
    refused_ = std::exchange(other.refused_, Status::kNotFound);
    return *this;
  }
  Post(const Post&) = delete;
  Post& operator=(const Post&) = delete;
  ~Post() { release(); }

  // False: it was not accepted; last_error() of the thread that posted says why.
  [[nodiscard]] bool accepted() const noexcept { return handle_ != nullptr; }
  // kInProgress or the outcome, or why it was not accepted. Helps to make progress, as towline_post_poll does.
  [[nodiscard]] Status poll() const noexcept {
    return handle_ == nullptr ? refused_ : detail::status(towline_post_poll(handle_));
  }
  // Waits for the outcome; kNotYet if the deadline passes first.
  [[nodiscard]] Status wait(Deadline deadline = kForever) const noexcept {
    return handle_ == nullptr ? refused_
                              : detail::status(towline_post_wait(handle_, deadline.remaining_ns()));
  }
  [[nodiscard]] Status wait_fenced(Fence fence = Fence::kBoth, Deadline deadline = kForever) const noexcept {
    if (handle_ == nullptr) return Status::kOk;
    return detail::status(
        towline_post_wait_fenced(handle_, static_cast<uint32_t>(fence), deadline.remaining_ns()));
  }
  Status cancel() const noexcept {
    return handle_ == nullptr ? refused_ : detail::status(towline_post_cancel(handle_));
  }
  [[nodiscard]] Result result() const {
    Result result{detail::defaults<towline_result_t>()};
    detail::check(towline_post_result(handle_, &result));
    return result;
  }
  // Why it failed, in a sentence; "" while it runs and after success.
  [[nodiscard]] std::string error() const {
    if (handle_ == nullptr) return {};
    return detail::error_text<towline_post_t, towline_post_error>(handle_);
  }
  // The backend that moves it, or has moved it; "" if it was not accepted.
  [[nodiscard]] std::string backend() const {
    if (handle_ == nullptr) return {};
    return detail::error_text<towline_post_t, towline_post_backend>(handle_);
  }
  // Waits for the outcome, and gives what moved. Throws Error, with the sentence of error(), unless that is kOk; kNotYet: the
  // deadline came first, and the post goes on. Of a post that was not accepted: on the thread that posted.
  Result get(Deadline deadline = kForever) const {
    if (const Status status = wait(deadline); status != Status::kOk) throw failure(status);
    return result();
  }
#if defined(__cpp_lib_expected)
  // The same, with the Error as a value.
  [[nodiscard]] std::expected<Result, Error> expected(Deadline deadline = kForever) const {
    if (const Status status = wait(deadline); status != Status::kOk) return std::unexpected{failure(status)};
    return result();
  }
#endif
  void release() noexcept {
    towline_post_release(std::exchange(handle_, nullptr));
    plan_.reset();
  }
  [[nodiscard]] towline_post_t* native() const noexcept { return handle_; }

 private:
  friend class Plan;
  Post(detail::PlanHandle plan, towline_post_t* handle) noexcept : plan_(std::move(plan)), handle_(handle) {}
  explicit Post(Status refused) noexcept : refused_(refused) {}
  [[nodiscard]] Error failure(Status status) const {
    return detail::failure(status, accepted() ? error() : std::string{last_error()});
  }

  detail::PlanHandle plan_;
  towline_post_t* handle_ = nullptr;
  Status refused_ = Status::kNotFound;
};

// Two lists and the way between them, to be posted with new picks each time, several at once. It ends with its last
// owner, this or a Post: then what is in flight is cancelled. That waits for nothing: its callback or event comes still,
// and its memory is in use until its local fence, which the end of a Region awaits.
class Plan {
 public:
  // Starts a run. Not accepted: see Post::accepted; kAgain: credit or space is missing.
  [[nodiscard]] Post post(const PostOptions& options = {}) const noexcept { return post(options, nullptr); }
  // The way and the ways not taken: JSON.
  [[nodiscard]] std::string route() const {
    return detail::read_text([this](char* json, size_t capacity, size_t* needed) {
      return towline_plan_route(handle_.get(), json, capacity, needed);
    });
  }
  // The backend that moves the bytes now, or "staged".
  [[nodiscard]] std::string backend() const {
    return detail::read_text([this](char* text, size_t capacity, size_t* needed) {
      return towline_plan_backend(handle_.get(), text, capacity, needed);
    });
  }
  // Whether its posts must name a stream or say `unordered`, and whether they can go in a stream's order.
  [[nodiscard]] bool needs_stream() const noexcept {
    return (towline_plan_streams(handle_.get()) & TOWLINE_PLAN_NEEDS_STREAM) != 0;
  }
  [[nodiscard]] bool takes_stream() const noexcept {
    return (towline_plan_streams(handle_.get()) & TOWLINE_PLAN_TAKES_STREAM) != 0;
  }
  // How many of its posts are in flight, or held.
  [[nodiscard]] uint32_t in_use() const noexcept { return towline_plan_in_use(handle_.get()); }
  [[nodiscard]] towline_plan_t* native() const noexcept { return handle_.get(); }

 private:
  friend class Agent;
  friend class Group;
  explicit Plan(towline_plan_t* plan) : handle_(plan, towline_plan_release) {}
  explicit Plan(detail::PlanHandle handle) noexcept : handle_(std::move(handle)) {}
  [[nodiscard]] Post post(const PostOptions& options, towline_group_t* group) const noexcept {
    return post_native(detail::native(options, group));
  }
  [[nodiscard]] Post post_native(const towline_post_options_t& native) const noexcept {
    towline_post_t* made = nullptr;
    const Status status = detail::status(towline_plan_post(handle_.get(), &native, &made));
    return made != nullptr ? Post{handle_, made} : Post{status};
  }

  detail::PlanHandle handle_;
};

struct GroupResult : towline_group_result_t {
  [[nodiscard]] Status outcome() const noexcept { return Status{status}; }
};

// Posts that end as one. Members may join until close(), while others move. Destroying an open group cancels it.
class Group {
 public:
  // Posts a member. kAgain: not accepted, add it again. Another error ends the group with it.
  [[nodiscard]] Status add(const Plan& plan, const PostOptions& options = {}) const noexcept {
    const towline_post_options_t native = detail::native(options, handle_.get());
    return detail::status(towline_plan_post(plan.native(), &native, nullptr));
  }
  // The same, with a handle.
  [[nodiscard]] Post post(const Plan& plan, const PostOptions& options = {}) const noexcept {
    return plan.post(options, handle_.get());
  }
  // Posts a member by layout, as Agent::copy does. Throws Error where no plan can be made.
  [[nodiscard]] Status copy(const View& from, const View& to) const;
  [[nodiscard]] Status copy(const View& from, const View& to, PostOptions options) const;
  [[nodiscard]] Status copy(const View& from, const View& to, Stream stream) const;
  // No more members come. kOk: all is done; kInProgress; kInvalidArgument: it was closed before.
  Status close() const noexcept { return detail::status(towline_group_close(handle_.get())); }
  [[nodiscard]] Status poll() const noexcept { return detail::status(towline_group_poll(handle_.get())); }
  [[nodiscard]] Status wait(Deadline deadline = kForever) const noexcept {
    return detail::status(towline_group_wait(handle_.get(), deadline.remaining_ns()));
  }
  [[nodiscard]] Status wait_fenced(Fence fence = Fence::kBoth, Deadline deadline = kForever) const noexcept {
    return detail::status(
        towline_group_wait_fenced(handle_.get(), static_cast<uint32_t>(fence), deadline.remaining_ns()));
  }
  Status cancel() const noexcept { return detail::status(towline_group_cancel(handle_.get())); }
  [[nodiscard]] GroupResult result() const {
    GroupResult result{detail::defaults<towline_group_result_t>()};
    detail::check(towline_group_result(handle_.get(), &result));
    return result;
  }
  // Why it failed, with the first member that did; "" while it runs and after success.
  [[nodiscard]] std::string error() const {
    return detail::error_text<towline_group_t, towline_group_error>(handle_.get());
  }
  // Waits for the outcome, after close(). Throws Error, with the sentence of error(), unless that is kOk; kNotYet: the
  // deadline came first, and the group goes on.
  GroupResult get(Deadline deadline = kForever) const {
    if (const Status status = wait(deadline); status != Status::kOk) throw detail::failure(status, error());
    return result();
  }
#if defined(__cpp_lib_expected)
  // The same, with the Error as a value.
  [[nodiscard]] std::expected<GroupResult, Error> expected(Deadline deadline = kForever) const {
    if (const Status status = wait(deadline); status != Status::kOk)
      return std::unexpected{detail::failure(status, error())};
    return result();
  }
#endif
  [[nodiscard]] towline_group_t* native() const noexcept { return handle_.get(); }

 private:
  friend class Agent;
  Group(towline_group_t* group, std::shared_ptr<detail::KeptPlans> plans) noexcept
      : handle_(group), plans_(std::move(plans)) {}
  detail::Handle<towline_group_t, towline_group_release> handle_;
  std::shared_ptr<detail::KeptPlans> plans_;
};

inline Plan Agent::plan(const BlockList& from, const BlockList& to, const PlanOptions& options) const {
  auto native = detail::defaults<towline_plan_options_t>();
  native.timeout_ns = detail::timeout_option(options.timeout);
  native.backend = detail::or_null(options.backend);
  native.usual_bytes = options.usual_bytes;
  native.recut = options.recut ? 1 : 0;
  towline_plan_t* plan = nullptr;
  detail::check(towline_plan_create(handle_.get(), from.native(), to.native(), &native, &plan));
  return Plan{plan};
}

inline Plan Agent::plan(const BlockList& from, const BlockList& to) const {
  return plan(from, to, PlanOptions{});
}

inline Post Agent::copy(const PickedBlocks& from, const PickedBlocks& to, PostOptions options) const {
  options.from = from.picks;
  options.to = to.picks;
  return plan(*from.list, *to.list, PlanOptions{}).post(options);
}

inline Post Agent::copy(const PickedBlocks& from, const PickedBlocks& to) const {
  return copy(from, to, PostOptions{});
}

inline Group Agent::group(const GroupOptions& options) const {
  auto native = detail::defaults<towline_group_options_t>();
  native.notice = options.notice.data();
  native.notice_bytes = options.notice.size();
  native.counter_key = options.counter_key;
  native.counter_add = options.counter_add;
  native.deadline_ns = detail::absolute_ns(options.deadline);
  native.priority = static_cast<uint32_t>(options.priority);
  native.queue_completion = options.queue_completion ? 1 : 0;
  native.user_data = options.user_data;
  native.callback = options.callback;
  native.tag = options.tag;
  native.queue = options.queue;
  towline_group_t* group = nullptr;
  detail::check(towline_group_create(handle_.get(), &native, &group));
  return Group{group, plans_};
}

inline Group Agent::group() const { return group(GroupOptions{}); }

}  // namespace v0
}  // namespace towline

// Copies by view, which need all of the above.
#include <towline/layout.hpp>  // IWYU pragma: export
