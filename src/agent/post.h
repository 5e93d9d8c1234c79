// One run of a plan: bytes that move from chosen blocks to chosen blocks, with the notice, deadline, outcome, fence
// and result of that run. A transfer (transfer.h) has one, which is posted again and again with the same picks. A
// plan (post_plan.h) has as many as are in flight at once, each with picks of its own.
//
// Beside its phase (ending.h: ready, busy, or held by a worker that releases its prepared plan), its *gate* controls
// it: whether a post may take the short path. Open, relink (its connection is gone, try a new one), held (refused as
// stale until it is opened again) or a final status.
// A thread that invalidates something closes the gate first and then waits for the phase; post takes the phase
// first and then checks the gate: so one of the two always sees the other.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "agent/control_message.h"
#include "agent/ending.h"
#include "agent/fork_generation.h"
#include "agent/pace.h"
#include "agent/part.h"
#include "agent/route.h"
#include "base/sync/in_use.h"
#include "base/sync/spin.h"
#include "plan/plan.h"
#include "towline/observe.h"
#include "towline/plugin/v1.h"
#include "towline/status.h"
#include "towline/towline.h"

namespace towline {

class EventQueue;
class Group;
class Series;
class SplitChoices;
class StagedTransfer;

inline constexpr uint32_t kMaxParts = 8;
inline constexpr uint32_t kAllFences = TOWLINE_FENCE_LOCAL | TOWLINE_FENCE_REMOTE;
inline constexpr size_t kResultBytes = sizeof(towline_part_result);

// The options of a post: everything but its bytes.
struct PostOptions {
  const void* notice = nullptr;  // valid during the call that takes it
  uint32_t notice_bytes = 0;
  bool has_notice = false;
  bool urgent = false;          // before the bytes of posts that are not
  bool unordered = false;       // at once, although memory of a GPU is moved
  uint64_t tag = 0;             // of the notice; 0: none
  EventQueue* queue = nullptr;  // for the end; null: none
  uint64_t counter_key = 0;
  uint64_t counter_add = 0;
  uint64_t timeout_ns = 0;   // from the post
  uint64_t deadline_ns = 0;  // of the agent's clock, instead; 0: by the timeout
  void* user_data = nullptr;
  towline_callback_t callback = nullptr;
  Group* group = nullptr;
  Pace* pace = nullptr;  // of the group
};

// The picked blocks of both sides; null: all.
struct PickPair {
  const towline_picks_t* local = nullptr;
  const towline_picks_t* remote = nullptr;
};

// What a failed post's memory may be used for, by its fence.
[[nodiscard]] constexpr const char* reuse_of(Status fence) noexcept {
  if (fence == Status::kOk) return "may be reused";
  if (fence == Status::kUnsupported) return "has no fence: its bytes may still be read or written";
  return "is not fenced yet: wait before it is reused";
}

// The message that follows the data: empty without a notice or counter.
void build_message(const PostOptions& options, std::vector<uint8_t>& message);

class Post : public Ending {
 public:
  static constexpr int32_t kOpen = 0;
  static constexpr int32_t kRelink = 1;
  static constexpr int32_t kGateHeld = INT32_MIN;  // and one of these two
  static constexpr uint64_t kImmediatePostsPerCount = 64;

  // `handle`: for completions; null: a post of a plan. The route outlives it.
  Post(Route& route, Plan&& plan, const PostOptions& options, uint32_t threads, towline_transfer_t* handle);
  ~Post() override;

  // ---- making it, by its route. Control path.

  // Prepares every part with that backend; `prices`: its, of such posts. `taken_as_it_is`: a connection is so slow that
  // posts wait for it.
  [[nodiscard]] Status prepare_on(Backend& backend, PriceRow& prices, LateDeadline& deadline,
                                  bool& taken_as_it_is, std::string& reason);
  // The legs of its route. Throws Error.
  void make_legs(LateDeadline deadline);
  // It may be posted.
  void is_made() noexcept { phase_.store(kReady, std::memory_order_release); }
  // The route has its backend already.
  void follow_route() noexcept;

  // ---- posting

  [[nodiscard]] Status post() noexcept {
    if (fork_generation_ != fork_generation()) [[unlikely]]
      return Status::kForked;
    if (post_short()) [[likely]]
      return Status::kOk;
    return post_long();
  }
  // A run with picks and options of its own. `stream`: points to the one to run in; null: at once. `picked_bytes`: receives
  // what it moves, before it begins. Throws Error for picks that are wrong.
  [[nodiscard]] Status post_with(const PickPair& picks, const PostOptions& options, void* const* stream,
                                 std::atomic<uint64_t>& picked_bytes);
  // Posts in a stream of the application (gpu.h); take_failure_text() may have details of an error.
  [[nodiscard]] Status post_on(void* stream) noexcept;
  [[nodiscard]] Status wait_on(void* stream) noexcept;
  [[nodiscard]] towline_capture_runs captured_runs() const noexcept;
  // Where code on the backend's accelerator finds the first byte of each pair of blocks (gpu.h), until this goes.
  // kAgain: its connection is being made.
  [[nodiscard]] Status view(uint64_t* from, uint64_t* to, size_t count) noexcept;
  [[nodiscard]] Status poll() noexcept;
  [[nodiscard]] Status wait(uint64_t timeout_ns) noexcept;
  [[nodiscard]] Status wait_fenced(uint32_t fences, uint64_t timeout_ns) noexcept;
  Status cancel() noexcept;
  [[nodiscard]] Status set_notice(const void* notice, size_t bytes);
  void result(towline_result_t& result) const noexcept;
  // The reason of its failure, in a sentence; "" while it runs and after success.
  [[nodiscard]] std::string failure() const;
  // The same without what its connection says of it, which needs its worker's lock.
  [[nodiscard]] std::string failure_itself(const std::string& more = {}) const;
  // The same, before the outcome is known to others; "" without memory.
  [[nodiscard]] std::string failure_of(Status status) const noexcept;
  // The same with what its connection says of it; takes its worker's lock.
  [[nodiscard]] std::string whole_failure_of(Status status) const noexcept;
  // Why post() has refused this thread, in a sentence; "" without memory.
  [[nodiscard]] std::string refusal_of(Status status) const noexcept;
  [[nodiscard]] Status outcome() const noexcept {
    return static_cast<Status>(outcome_.load(std::memory_order_acquire));
  }
  [[nodiscard]] uint64_t moved_bytes() const noexcept { return bytes_.load(std::memory_order_relaxed); }
  [[nodiscard]] void* user_data() const noexcept { return options_.user_data; }
  [[nodiscard]] bool staged() const noexcept { return staged_ != nullptr; }
  [[nodiscard]] std::string route() const;
  // The price that its backend expects for so many bytes of such a transfer.
  [[nodiscard]] Price price_of(uint64_t bytes) const;
  // Cancels, waits for the fence, releases everything prepared, or kNotYet.
  [[nodiscard]] Status retire(uint64_t timeout_ns) noexcept;

  // Closes the gate: kRelink, or a final status. Any thread.
  void close_gate(int32_t gate) noexcept;
  // Posts answer kStale until open_gate(), or for good if the gate is closed meanwhile. Any thread.
  void hold_gate() noexcept;
  void open_gate() noexcept;
  // The connection of a part is gone. Only the first part's posts take the short path.
  void link_ended(const Part& part) noexcept {
    if (&part == parts_) close_gate(kRelink);
  }
  // What a post answers at a gate below 0.
  [[nodiscard]] static constexpr Status refusal_at(int32_t gate) noexcept {
    return gate <= kGateHeld + kRelink ? Status::kStale : static_cast<Status>(gate);
  }
  // It moves a part of another post, which starts it.
  [[nodiscard]] virtual bool is_leg() const noexcept { return false; }
  [[nodiscard]] const BlockList& local() const noexcept { return route_.local(); }
  [[nodiscard]] const BlockList& remote() const noexcept { return route_.remote(); }
  [[nodiscard]] const Plan& plan() const noexcept { return plan_; }
  [[nodiscard]] Agent& agent() const noexcept { return route_.agent(); }
  // The last run was over before post() returned, and without the worker.
  [[nodiscard]] bool was_immediate() const noexcept {
    return last_was_immediate_.load(std::memory_order_relaxed);
  }

  // ---- its parts, under the part's worker's lock

  void part_ended(Part& part, const towline_part_result& result) noexcept;
  bool step_part(Part& part, uint64_t now_ns) noexcept override;
  void hurry(Part& part) noexcept override;
  void expire(Part& part) noexcept override;
  // Releases the part's prepared plan; false: a post or a graph's copy is using it, call again. The caller
  // has closed the gate and then called InUse::publish().
  bool try_release(Part& part) noexcept;
  // The same when the agent closes: the backend waits for a graph's copy, up to its limit.
  void release_at_last(Part& part) noexcept;
  // The agent's first limit: a transfer's posts take the long way from now on.
  void limits_begin() noexcept {
    if (handle_ != nullptr) close_gate(kRelink);
  }
  void deliver() noexcept override;

  IntrusiveHook<Post> hook;  // the agent's, of all its posts

  // ---- for StagedTransfer, which moves the whole in legs; under the worker's lock

  // `bytes` more have arrived; a leg failed; bytes of the plan that did not arrive.
  void leg_moved(uint64_t bytes) noexcept { bytes_.fetch_add(bytes, std::memory_order_relaxed); }
  void leg_failed(Status status) noexcept;
  // Limits of bandwidth, for a chunk.
  [[nodiscard]] bool chunk_may_begin() noexcept;
  void chunk_begins(uint64_t bytes) noexcept;
  [[nodiscard]] bool paced() const noexcept { return paced_; }
  void note_failure(const towline_part_result& result) noexcept;
  // kNotYet; kUnsupported: they will never hold, since the backend could not say when nothing moves any more.
  [[nodiscard]] Status fence(uint32_t fences) const noexcept;
  [[nodiscard]] bool fenced(uint32_t fences) const noexcept { return fence(fences) == Status::kOk; }
  // For those who wait for these fences: connects to a peer that has to be asked. See Link::seek_confirmation.
  void seek_fence(uint32_t fences) const noexcept;
  // Why fence() answers kUnsupported, in a sentence; "" without memory.
  [[nodiscard]] std::string no_fence() const noexcept;
  [[nodiscard]] std::string backend_name() const;

  [[nodiscard]] Part* parts() noexcept { return parts_; }
  [[nodiscard]] uint32_t part_count() const noexcept { return part_count_; }
  // As many as any run has had or may have; what is prepared may belong to any of them.
  [[nodiscard]] uint32_t part_room() const noexcept { return part_room_; }

 protected:  // for Leg and PostPlan
  struct Held;
  // The queue of a post that queues its end. A transfer uses the agent's own and need not keep one.
  [[nodiscard]] virtual EventQueue& queue_of_end() const noexcept;
  [[nodiscard]] bool wants_delivery() const noexcept override {
    return hooked_ || options_.callback != nullptr || options_.queued;
  }
  // The short path: the bytes have been moved when the backend returns; no clock, lock, locked instruction or
  // allocation. False: not possible for this post, or it failed; then the long path does the work or reports
  // the error.
  //
  // It is in the header to be inlined into the C function: a page of 4 KiB in the caches is copied in 25 ns,
  // so each call, saved register and branch counts. Rare branches are out of line, so that the whole is one
  // run of some fifty instructions.
  [[nodiscard]] bool post_short() noexcept {
    // Not entered when it is closed, so that a thread waiting for the last post to leave is not delayed.
    if (!short_way_.load(std::memory_order_relaxed) || gate_.load(std::memory_order_relaxed) != kOpen)
        [[unlikely]]
      return false;
    const InUse use(this);
    if (!use || phase_.load(std::memory_order_relaxed) != kReady) [[unlikely]]
      return false;
    // In this order: a thread that closes the short path has opened the gate before.
    if (gate_.load(std::memory_order_acquire) != kOpen || !short_way_.load(std::memory_order_acquire))
        [[unlikely]]
      return false;
    if (immediate_posts_.load(std::memory_order_relaxed) >= time_at_) [[unlikely]]
      return post_timed();
    if (immediate_submit_(immediate_, &immediate_args_) != TOWLINE_OK) [[unlikely]]
      return false;
    last_was_immediate_.store(true, std::memory_order_relaxed);
    outcome_.store(TOWLINE_OK, std::memory_order_release);
    immediate_posts_.store(immediate_posts_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    return true;
  }
  // The same, with a clock around it if its turn has come, and adds the posts to the counters.
  [[gnu::noinline]] bool post_timed() noexcept;
  [[nodiscard]] bool is_to_be_timed() const noexcept;
  [[gnu::noinline]] Status post_long() noexcept;
  // The phase is taken.
  [[nodiscard]] Status post_taken() noexcept;
  void count_immediate_post() noexcept;
  void wait_for_short_posts() const noexcept;
  [[nodiscard]] Status post_with_message() noexcept;
  [[nodiscard]] Status post_slow() noexcept;
  // From busy to in progress, with nothing submitted yet; kAgain: no room for its completion.
  [[nodiscard]] Status begin_post(int32_t& outcome_before) noexcept;
  // What post() answers: `why`, or that it was accepted.
  [[nodiscard]] Status take_back_post(int32_t outcome_before, Status why) noexcept;

  // ---- limits (pace.h): a paced run goes in slices, one of a part at a time; post_pace.cc
  template <class Visit>
  void for_each_pace(Visit&& visit) noexcept;
  [[nodiscard]] bool find_paced() noexcept;
  // May the part's next slice begin? Else the worker comes back in time.
  [[nodiscard]] bool may_begin(Part& part, uint64_t now_ns) noexcept;
  [[nodiscard]] uint64_t end_of_slice(const Part& part) noexcept;
  void charge(uint64_t bytes) noexcept;
  void slice_ended(Part& part, towline_part_result result) noexcept;
  void finish_part(Part& part, const towline_part_result& result) noexcept;
  void restore_part(uint32_t index) noexcept;
  // The application's hooks (observe.h). No locks held.
  void call_begin() noexcept;
  void call_end(Status status) noexcept;
  [[nodiscard]] towline_operation_t describe_operation() const noexcept;

  // The phase is taken: gives it back unless it is posted.
  [[nodiscard]] Status post_on_taken(void* stream) noexcept;
  // kInProgress with `outcome_before`: posted; without: captured, which is over.
  [[nodiscard]] Status capture_in(const Part& part, void* stream) noexcept;
  [[nodiscard]] Status capture_or_post(Part& part, void* stream,
                                       std::optional<int32_t>& outcome_before) noexcept;
  [[nodiscard]] Status streams_serve() const noexcept;
  [[nodiscard]] Status view_taken(uint64_t* local, uint64_t* remote);
  [[nodiscard]] Held& held();
  [[nodiscard]] Status start_parts() noexcept;
  [[nodiscard]] Status start_alone(Part& part) noexcept;
  [[nodiscard]] Status accepted() const noexcept;
  // `stream`: points to the one to submit it in; null: at once.
  [[nodiscard]] Status submit_now(Part& part, void* const* stream = nullptr, uint32_t flags = 0) noexcept;
  [[nodiscard]] bool usable(const Part& part) const noexcept;
  [[nodiscard]] Status establish_part(Part& part, uint64_t deadline_ns) noexcept;
  [[nodiscard]] bool waited_enough(const Part& part) const noexcept;
  void note_wait(Part& part) noexcept;
  void forget_wait() noexcept;
  [[nodiscard]] Status prepare_part(Part& part);
  void use_backend(Backend& backend) noexcept;
  [[nodiscard]] bool prepared_at_once(Part& part) noexcept;
  void take_short_way(Part& part) noexcept;
  void bring(const PostOptions& options);
  // The plan is another: it is divided into that many parts, and what is prepared follows it.
  void aim(uint32_t parts) noexcept;

  // ---- posts that may be split; post_split.cc
  void make_room_for_parts(uint32_t room);
  void know_workers() noexcept;
  void divide(uint32_t count) noexcept;
  [[nodiscard]] bool to_be_split() noexcept;
  [[nodiscard]] bool workers_are_connected(SplitChoices& splits) noexcept;
  void follow_picks(Part& part) noexcept;
  void note_split(uint64_t now_ns) noexcept;
  // Whose progress a thread makes that waits: the other parts' workers have threads, which work meanwhile.
  [[nodiscard]] uint32_t parts_to_drive() const noexcept;

  // All parts failed: tries the next backend, if no part was established here and a backend is left.
  [[nodiscard]] bool try_next_backend(Worker& worker) noexcept;
  void release_parts() noexcept;
  [[nodiscard]] bool settled(const Part& part) const noexcept;
  [[nodiscard]] bool all_settled() const noexcept;
  // Under the part's worker's lock. Never set for posts with several parts, which may have several workers.
  void forget_immediate(const Part& part) noexcept {
    if (part_count_ == 1 && &part == parts_) immediate_ = nullptr;
  }
  [[nodiscard]] Status remote_fence() const noexcept;
  [[nodiscard]] bool local_fence_lost() const noexcept;
  template <class Done>
  [[nodiscard]] bool wait_for(Done&& done, uint64_t timeout_ns) noexcept;
  void all_parts_ended(Worker& worker) noexcept;
  // Sets the state for a new run. The caller has taken the phase.
  void enter_post(uint64_t now_ns, uint64_t deadline_ns) noexcept;
  [[nodiscard]] Status start_staged() noexcept;
  [[nodiscard]] std::string staged_route(const StagedTransfer& legs) const;
  [[nodiscard]] std::shared_ptr<StagedTransfer> held_legs() const;  // null: it has none
  [[nodiscard]] std::string sentence(Status status, const std::string& more) const;
  [[nodiscard]] std::string reason_of(Status status) const;
  [[nodiscard]] std::string way_name() const;  // "tcp", or the backends of both legs: "tcp then posix"
  // Which region is not registered any more, in a sentence; "": none.
  [[nodiscard]] std::string gone_region() const;
  [[nodiscard]] bool has_message() const noexcept { return !message_.empty(); }
  [[gnu::noinline]] void flush_counts() noexcept;
  void add_to_counts(uint64_t posts, uint64_t bytes, uint64_t blocks) noexcept;
  [[nodiscard]] Series& series_of(const Link& link) const noexcept;
  void count_transfer(const Link& link, uint32_t worker, uint64_t bytes, uint64_t took_ns) const noexcept;

  // A transfer, which contains one, must stay below 1,000 bytes: for larger objects glibc merges freed blocks at
  // each allocation, and programs create a transfer for every message.

  // Read by every post.
  std::atomic<int32_t> gate_{kRelink};
  bool paced_ = false;                  // a limit applies to this run
  bool split_counts_ = false;           // this run's time tells whether such posts should be split
  bool hooked_ = false;                 // the application's hooks are called around this run
  bool immediate_tries_ = false;        // it may answer kAgain: then take the long path
  std::atomic<bool> short_way_{false};  // a post need not take the phase: no message, no completion
  std::atomic<bool> last_was_immediate_{false};
  uint8_t time_at_;                        // the short post after so many is timed
  towline_prepared* immediate_ = nullptr;  // set if a post may call the backend directly
  int32_t (*immediate_submit_)(towline_prepared*, const towline_submit_args*) = nullptr;
  towline_submit_args immediate_args_ = {};
  const uint64_t fork_generation_;
  std::atomic<uint64_t> immediate_posts_{0};  // not yet added to the counters

  Route& route_;
  Plan plan_;
  // The options that are kept beside the message.
  struct Kept {
    void* user_data = nullptr;
    towline_callback_t callback = nullptr;
    uint64_t timeout_ns = 0;
    uint64_t deadline_ns = 0;  // instead of the timeout; 0: by that
    uint32_t notice_bytes = 0;
    bool has_notice = false;
    bool urgent = false;
    bool queued = false;  // its end, in queue_of_end()
    Pace* pace = nullptr;
  };
  Kept options_;
  std::vector<uint8_t> message_;  // DataMessage and notice; empty: none
  towline_transfer_t* const handle_;
  Backend* backend_ = nullptr;  // that it is, or is to be, prepared with
  PriceRow* prices_ = nullptr;  // of backend_, for such posts

  uint32_t part_count_ = 1;  // of this run
  uint32_t part_room_ = 1;
  Part first_part_;
  std::unique_ptr<Part[]> more_parts_;  // all parts, if there may be several
  Part* parts_ = &first_part_;
  std::shared_ptr<towline_post> post_;  // null: the post is a single submit
  // Not null: it moves the bytes instead of one backend. Each post of a plan makes it anew, under the agent's mutex for
  // details.
  std::shared_ptr<StagedTransfer> staged_;
  towline_part_result last_result_ = plugin::sized<towline_part_result>();
  std::atomic<uint32_t> parts_left_{0};
  std::atomic<uint32_t> fences_{3};
  std::atomic<int32_t> first_error_{0};
  std::atomic<uint64_t> bytes_{0};
  std::atomic<uint64_t> posted_at_ns_{0};
  std::atomic<uint64_t> ended_at_ns_{0};
  // Held for a few stores.
  class FailureLock {
   public:
    void lock() noexcept {
      while (taken_.exchange(1, std::memory_order_acquire) != 0) cpu_pause();
    }
    void unlock() noexcept { taken_.store(0, std::memory_order_release); }

   private:
    std::atomic<uint32_t> taken_{0};
  };
  mutable FailureLock failure_lock_;
  uint32_t failed_count_ = 0;
  std::array<towline_failed_range_t, 8> failed_;  // as many as failed_count_ says
  std::unique_ptr<std::string> waited_for_;  // until its deadline, if a backend said so; under failure_lock_
  struct Held {
    std::vector<towline_capture*> captures;
    std::vector<std::unique_ptr<towline_view, void (*)(towline_view*)>>
        views;  // of the thread with the phase
  };
  std::unique_ptr<Held>
      held_;  // by an accelerator's streams and code; null: nothing; under the agent's mutex for details
};

}  // namespace towline
