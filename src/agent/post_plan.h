// A plan that an application posts again and again with new picks: two lists, the route between them, and the posts
// in flight at once. Posts are pooled: once there are as many as are ever in flight, nothing is allocated.
//
// A post belongs to its run until it is over, and to the application as long as that holds its handle. It returns to
// the pool when neither has it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "agent/ending.h"
#include "agent/post.h"
#include "agent/route.h"

namespace towline {

class PostPlan;

class PlannedPost final : public Post {
 public:
  // In a group's list; by the group.
  struct Member {
    PlannedPost* previous = nullptr;
    PlannedPost* next = nullptr;
    uint64_t number = 0;  // in the order of joining
    bool cancelled = false;
  };
  Member member;
  // Of this run; 0 until its picks are known. For the group, which must not look at the plan while that is compiled.
  std::atomic<uint64_t> member_bytes{0};

  // `room`: into how many parts its runs may be split.
  PlannedPost(PostPlan& plan, Route& route, AfterEnding& after, uint32_t index, uint32_t room)
      : Post(route, Plan::none(), {}, 1, nullptr), its_plan_(plan), index_(index) {
    after_ = &after;
    make_room_for_parts(room);
  }
  [[nodiscard]] PostPlan& its_plan() noexcept { return its_plan_; }
  // The application needs it no more. Any thread, at any time.
  void release() noexcept;
  // It stays out of the pool meanwhile: the application waits for its fence, or a call has just posted it.
  void watch() noexcept { holders_.fetch_add(kWatcher, std::memory_order_acq_rel); }
  void unwatch() noexcept;
  // Picks for the route to try backends with. Throws Error.
  void probe(const PickPair& picks);
  // A run that was immediate, for the counters; and what has not reached them yet.
  void count_run() noexcept;
  void flush_runs() noexcept;

 private:
  friend class PostPlan;
  static constexpr uint32_t kFlight = 1;
  static constexpr uint32_t kHandle = 2;
  static constexpr uint32_t kWatcher = 16;  // each

  PostPlan& its_plan_;
  const uint32_t index_;
  [[nodiscard]] EventQueue& queue_of_end() const noexcept override { return *queue_; }

  EventQueue* queue_ = nullptr;         // of this run; null: none
  Group* group_ = nullptr;              // that it has joined in this run
  std::atomic<uint32_t> holders_{0};    // kFlight, kHandle, watchers; 0: in the pool
  std::atomic<uint32_t> next_free_{0};  // its index + 1; 0: none
  uint64_t runs_bytes_ = 0;             // of immediate runs that are not in the counters yet
  uint64_t runs_blocks_ = 0;
};

class PostPlan final : public AfterEnding {
 public:
  static constexpr uint32_t kMostPosts = 4096;  // in flight or held at once

  PostPlan(std::shared_ptr<Agent> agent, uint32_t op, std::shared_ptr<BlockList> local,
           std::shared_ptr<BlockList> remote, uint64_t timeout_ns)
      : route_(std::move(agent), op, std::move(local), std::move(remote)),
        timeout_ns_(timeout_ns),
        needs_stream_(must_name_stream()) {}
  PostPlan(const PostPlan&) = delete;
  PostPlan& operator=(const PostPlan&) = delete;
  // After retire() succeeded, or establish() threw.
  ~PostPlan();

  // How many posts are in flight or held by the application. A run that is fenced is not in flight, though the thread that
  // ended it may not have given the post back to the pool yet.
  [[nodiscard]] uint32_t in_use() noexcept;

  // Finds the route, for posts of about so many bytes. Throws Error; see Route.
  void establish(std::string_view backend, LateDeadline deadline, uint64_t bytes);

  // Posts that pick nothing on either side are to be refused: why. "": they are taken.
  void refuse_whole(std::string why) { why_not_whole_ = std::move(why); }
  [[nodiscard]] const std::string& why_not_whole() const noexcept { return why_not_whole_; }

  // Starts a run. `post`: receives its handle, unless null. kOk: it is over already. An error: not accepted, as
  // with kAgain: too many posts are in flight or held, or credit is missing. Throws Error for picks that are wrong.
  [[nodiscard]] Status post(const PickPair& picks, const PostOptions& options, void* const* stream,
                            PlannedPost** post);
  // Refuses posts, cancels what is in flight, waits for its fence, and releases everything. kNotYet: not released;
  // kBusy: the application still holds posts; `why` says how many.
  [[nodiscard]] Status retire(uint64_t timeout_ns, std::string& why);

  [[nodiscard]] bool closing() const noexcept { return closing_.load(std::memory_order_acquire); }
  [[nodiscard]] Route& route() noexcept { return route_; }
  [[nodiscard]] uint64_t timeout_ns() const noexcept { return timeout_ns_; }
  // Memory of a GPU of this agent is in a list: posts are in a stream, or `unordered`.
  [[nodiscard]] bool needs_stream() const noexcept { return needs_stream_; }
  [[nodiscard]] bool takes_stream() const;
  [[nodiscard]] std::string backend_name();
  // The way and the ways not taken, as JSON.
  [[nodiscard]] std::string route_text();

 private:
  friend class PlannedPost;
  [[nodiscard]] uint32_t room_for_parts() const noexcept;
  static constexpr uint32_t kChunk = 64;
  using Chunk = std::array<std::unique_ptr<PlannedPost>, kChunk>;

  void is_over(Ending& ending, Worker* worker) noexcept override;
  // Throws Error where it needs a stream and has none.
  [[nodiscard]] Status run(PlannedPost& post, const PickPair& picks, const PostOptions& options,
                           void* const* stream);
  // Joins its group, if it is to have one, and posts it.
  [[nodiscard]] Status start(PlannedPost& post, const PickPair& picks, const PostOptions& options,
                             void* const* stream);
  [[nodiscard]] PlannedPost& at(uint32_t index) noexcept {
    return *(*chunks_[index / kChunk])[index % kChunk];
  }
  [[nodiscard]] PlannedPost* take();
  [[nodiscard]] PlannedPost* make();
  void give_back(PlannedPost& post) noexcept;
  [[nodiscard]] uint32_t count_free() noexcept;

  [[nodiscard]] bool must_name_stream() const noexcept;

  Route route_;
  const uint64_t timeout_ns_;
  const bool needs_stream_;
  std::string why_not_whole_;
  std::atomic<bool> closing_{false};
  uint32_t retired_ = 0;           // posts, by retire()
  std::atomic<uint64_t> free_{0};  // the first one's index + 1, below a count of changes
  std::mutex making_;
  std::atomic<uint32_t> made_{0};
  std::array<std::unique_ptr<Chunk>, kMostPosts / kChunk> chunks_;
};

inline void PlannedPost::release() noexcept {
  // Only the run takes kFlight away, and it is over if that is missing.
  if (holders_.load(std::memory_order_acquire) != kHandle &&
      holders_.fetch_and(~kHandle, std::memory_order_acq_rel) != kHandle)
    return;
  its_plan_.give_back(*this);
}

inline void PlannedPost::unwatch() noexcept {
  if (holders_.fetch_sub(kWatcher, std::memory_order_acq_rel) == kWatcher) its_plan_.give_back(*this);
}

}  // namespace towline
