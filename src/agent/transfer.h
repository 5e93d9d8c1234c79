// A READ or WRITE of chosen local blocks against chosen remote blocks; made once, posted often.
//
// Two atomics control it. `phase_` says who may use it: ready (may be posted), busy (posted), held (briefly,
// by a worker that releases its prepared plan). `gate_` says whether a post may take the short path: open,
// relink (its connection is gone, try a new one) or a final status. A thread that invalidates something
// closes the gate first and then waits for the phase; post takes the phase first and then checks the gate: so
// one of the two always sees the other.
//
// A post ends in two steps. The *outcome* is set exactly once, by the first of: the last part, the deadline,
// cancel, the peer's loss. The *fence* comes when the last part has ended at its backend. The transfer is
// ready again after both.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "agent/block_list.h"
#include "agent/control_message.h"
#include "agent/fork_generation.h"
#include "agent/intrusive_list.h"
#include "agent/prices.h"
#include "base/sync/in_use.h"
#include "plan/plan.h"
#include "towline/plugin/v1.h"
#include "towline/status.h"
#include "towline/towline.h"

namespace towline {

class Agent;
class Candidates;
class Link;
class StagedTransfer;
class Transfer;
class Worker;
struct Backend;

inline constexpr uint32_t kMaxParts = 8;
inline constexpr uint32_t kAllFences = TOWLINE_FENCE_LOCAL | TOWLINE_FENCE_REMOTE;
inline constexpr size_t kResultBytes = sizeof(towline_part_result);

// A worker's share of a transfer. Under that worker's lock.
struct Part {
  Transfer* transfer = nullptr;
  Worker* worker = nullptr;
  Link* link = nullptr;
  uint64_t begin = 0;  // bytes of the plan
  uint64_t end = 0;
  towline_prepared* prepared = nullptr;
  uint32_t link_generation = 0;  // generation of `prepared`
  uint64_t attempt = 0;          // the link's attempt for which establishing waits; 0: none yet
  std::size_t prepared_at = 0;   // in the link's list
  bool submitted = false;        // at the backend
  bool waiting = false;          // in the worker's establishing list
  bool message_only = false;     // the data has arrived, the message must still be sent
  bool refused = false;          // establishing it has failed in this post
  bool waited = false;           // it was not submitted by the post itself
  bool alone = false;            // it had its connection to itself: its time is a price
  bool revoked = false;          // to be released: its link found one of its regions revoked
  IntrusiveHook<Part> hook;
  uint64_t deadline_ns = UINT64_MAX;
};

struct TransferOptions {
  std::vector<uint8_t> notice;
  uint64_t counter_key = 0;
  uint64_t counter_add = 0;
  uint64_t timeout_ns = 0;
  uint32_t threads = 1;
  bool has_notice = false;
  bool queue_completion = false;
  void* user_data = nullptr;
  towline_callback_t callback = nullptr;
};

// A deadline that may be given relative to now and starts when it is first used: most transfers are created
// without a wait and need no clock.
class LateDeadline {
 public:
  static LateDeadline at(uint64_t deadline_ns) noexcept { return {nullptr, deadline_ns}; }
  static LateDeadline in(const Agent& agent, uint64_t timeout_ns) noexcept { return {&agent, timeout_ns}; }
  [[nodiscard]] uint64_t ns() noexcept;

 private:
  LateDeadline(const Agent* agent, uint64_t ns) noexcept : agent_(agent), ns_(ns) {}
  const Agent* agent_;  // null: begun
  uint64_t ns_;
};

class Transfer {
 public:
  struct Way {
    const Backend* backend;
    bool taken;
    bool possible;       // as far as is known
    std::string reason;  // against it; empty: none, it was taken
    Price price;         // for such a transfer
  };

  static constexpr uint8_t kNobody = 255;
  static constexpr int32_t kOpen = 0;
  static constexpr int32_t kRelink = 1;
  static constexpr uint64_t kImmediatePostsPerCount = 64;

  Transfer(std::shared_ptr<Agent> agent, uint32_t op, std::shared_ptr<BlockList> local,
           std::shared_ptr<BlockList> remote, Plan plan, TransferOptions options);
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;
  ~Transfer();

  // Chooses the backend: tries the candidates in order until one has prepared every part. Throws Error naming
  // each candidate and the reason against it. Control path, may wait until the deadline. A backend whose
  // connection takes longer than connection.wait is chosen anyway: posts wait for it, and use the next
  // candidates if the connection fails.
  // `within`: this is a leg within the agent, to which the application's order of backends does not apply.
  void establish(std::string_view forced_backend, LateDeadline deadline, bool within = false);

  [[nodiscard]] Status post() noexcept {
    if (fork_generation_ != fork_generation()) [[unlikely]]
      return Status::kForked;
    if (post_short()) [[likely]]
      return Status::kOk;
    return post_long();
  }
  // Posts in a stream of the application (gpu.h); take_failure_text() may have details of an error.
  [[nodiscard]] Status post_on(void* stream) noexcept;
  [[nodiscard]] Status wait_on(void* stream) noexcept;
  [[nodiscard]] towline_capture_runs captured_runs() const noexcept;
  [[nodiscard]] Status poll() noexcept;
  [[nodiscard]] Status wait(uint64_t timeout_ns) noexcept;
  [[nodiscard]] Status wait_fenced(uint32_t fences, uint64_t timeout_ns) noexcept;
  Status cancel() noexcept;
  [[nodiscard]] Status set_notice(const void* notice, size_t bytes);
  void result(towline_result_t& result) const noexcept;
  [[nodiscard]] std::string route() const;
  // What its backend takes for so many bytes of such a transfer.
  [[nodiscard]] Price price_of(uint64_t bytes) const;
  // Cancels, waits for the fence, releases everything prepared. kTimedOut: not yet.
  [[nodiscard]] Status retire(uint64_t timeout_ns) noexcept;

  // Closes the gate: kRelink, or a final status. Any thread.
  void close_gate(int32_t gate) noexcept;
  [[nodiscard]] bool uses(const BlockList& list) const noexcept {
    return local_.get() == &list || remote_.get() == &list;
  }
  [[nodiscard]] const BlockList& local() const noexcept { return *local_; }
  [[nodiscard]] const BlockList& remote() const noexcept { return *remote_; }
  [[nodiscard]] const Plan& plan() const noexcept { return plan_; }
  [[nodiscard]] bool ready() const noexcept { return phase_.load(std::memory_order_acquire) == kReady; }

  // Under the part's worker's lock.
  void part_ended(Part& part, const towline_part_result& result) noexcept;
  // Once per pass for parts in the establishing list; true when the part no longer needs it.
  bool step_part(Part& part, uint64_t now_ns) noexcept;
  // Makes the backend end the part soon, if it was submitted.
  void hurry(Part& part) noexcept;
  // The deadline of a part passed.
  void expire(Part& part) noexcept;
  // Releases the part's prepared plan; false: a post or a graph's copy is using it, call again. The caller
  // has closed the gate and then called InUse::publish().
  bool try_release(Part& part) noexcept;
  // The same when the agent closes: the backend waits for a graph's copy, up to its limit.
  void release_at_last(Part& part) noexcept;
  void end(Status status, Worker* worker) noexcept;
  // Called from the worker's delivery, without locks.
  void deliver() noexcept;

  Transfer* finished_next = nullptr;
  IntrusiveHook<Transfer> hook;  // the agent's, of all its transfers

  // ---- for StagedTransfer, which moves the whole in legs; under the worker's lock

  [[nodiscard]] std::string backend_name() const;
  // `bytes` more have arrived; a leg failed; bytes of the plan that did not arrive.
  void leg_moved(uint64_t bytes) noexcept { bytes_.fetch_add(bytes, std::memory_order_relaxed); }
  void leg_failed(Status status) noexcept;
  void note_failure(const towline_part_result& result) noexcept;
  [[nodiscard]] bool fenced(uint32_t fences) const noexcept;

  [[nodiscard]] Agent& agent() const noexcept { return *agent_; }
  [[nodiscard]] Part* parts() noexcept { return parts_; }
  [[nodiscard]] uint32_t part_count() const noexcept { return part_count_; }

 protected:  // for Leg
  enum Phase : uint32_t { kReady = 0, kBusy = 1, kHeld = 2 };

  // From ready to `phase`; false: it is busy. Waits for a holder, which releases it after a few instructions.
  [[nodiscard]] bool take(Phase phase) noexcept;

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
  // The same, with a clock around it, and adds the posts to the counters.
  [[gnu::noinline]] bool post_timed() noexcept;
  [[gnu::noinline]] Status post_long() noexcept;
  void count_immediate_post() noexcept {
    const uint64_t posts = immediate_posts_.load(std::memory_order_relaxed) + 1;
    immediate_posts_.store(posts, std::memory_order_relaxed);
    if (posts >= kImmediatePostsPerCount) [[unlikely]]
      flush_counts();
  }
  void wait_for_short_posts() const noexcept;
  [[nodiscard]] Status post_with_message() noexcept;
  [[nodiscard]] Status post_slow() noexcept;
  // From busy to in progress, with nothing submitted yet; kAgain: no room for its completion.
  [[nodiscard]] Status begin_post(int32_t& outcome_before) noexcept;
  void take_back_post(int32_t outcome_before) noexcept;
  [[nodiscard]] Status capture_or_post(Part& part, void* stream) noexcept;
  [[nodiscard]] Status streams_serve() const noexcept;
  [[nodiscard]] Status start_parts() noexcept;
  [[nodiscard]] Status accepted() const noexcept;
  // `stream`: points to the one to submit it in; null: at once.
  [[nodiscard]] Status submit_now(Part& part, void* const* stream = nullptr, uint32_t flags = 0) noexcept;
  [[nodiscard]] bool usable(const Part& part) const noexcept;
  [[nodiscard]] Status establish_part(Part& part, uint64_t deadline_ns) noexcept;
  [[nodiscard]] bool waited_enough(const Part& part) const noexcept;
  [[nodiscard]] Status prepare_part(Part& part) noexcept;
  // Every backend that may be used.
  [[nodiscard]] std::vector<Way> ways() const;
  [[nodiscard]] std::string why(const std::vector<Way>& ways) const;
  void take_legs(const struct LegsPlan& plan, LateDeadline deadline);
  [[noreturn]] void fail_without_route(const std::string& legs, LateDeadline& deadline, bool unreachable,
                                       bool stale);
  void use_backend(Backend& backend) noexcept;
  [[nodiscard]] bool prepared_at_once(Part& part) noexcept;
  [[nodiscard]] Status try_backend(Backend& backend, LateDeadline& deadline, bool& taken_as_it_is,
                                   std::string& reason);
  // All parts failed: tries the next backend, if no part was established here and a backend is left.
  [[nodiscard]] bool try_next_backend(Worker& worker) noexcept;
  void release_parts() noexcept;
  [[nodiscard]] bool settled(const Part& part) const noexcept;
  [[nodiscard]] bool all_settled() const noexcept;
  // Under the part's worker's lock. Never set for transfers with several parts, which may have several
  // workers.
  void forget_immediate() noexcept {
    if (part_count_ == 1) immediate_ = nullptr;
  }
  [[nodiscard]] Status poll_outcome() const noexcept;
  [[nodiscard]] bool remote_fenced() const noexcept;
  template <class Done>
  [[nodiscard]] bool wait_until(Done&& done, uint64_t timeout_ns) noexcept;
  void all_parts_ended(Worker& worker) noexcept;
  void publish() noexcept;
  void drop() noexcept;
  void build_message();
  // Sets the state for a new post. The caller has taken the phase.
  void enter_post(uint64_t now_ns, uint64_t deadline_ns) noexcept;
  [[nodiscard]] Status start_staged() noexcept;
  [[nodiscard]] std::string staged_route() const;
  [[nodiscard]] bool wants_delivery() const noexcept {
    return options_.callback != nullptr || options_.queue_completion;
  }
  [[nodiscard]] bool has_message() const noexcept { return !message_.empty(); }
  [[gnu::noinline]] void flush_counts() noexcept;
  [[nodiscard]] class Series& series_of(const Link& link) const noexcept;
  void count_transfer(const Link& link, uint32_t worker, uint64_t bytes, uint64_t took_ns) const noexcept;

  // The whole object must stay below 1,000 bytes: for a larger one glibc merges freed blocks at each
  // allocation, and programs create a transfer for every message.

  // Read by every post.
  std::atomic<uint32_t> phase_{kReady};
  std::atomic<int32_t> gate_{kRelink};
  std::atomic<int32_t> outcome_;
  const uint32_t op_;
  towline_prepared* immediate_ = nullptr;  // set if a post may call the backend directly
  int32_t (*immediate_submit_)(towline_prepared*, const towline_submit_args*) = nullptr;
  towline_submit_args immediate_args_ = {};
  const uint64_t fork_generation_;
  bool immediate_tries_ = false;        // it may answer kAgain: then take the long path
  std::atomic<bool> short_way_{false};  // a post need not take the phase: no message, no completion
  std::atomic<bool> last_was_immediate_{false};
  uint8_t time_at_;                           // the short post after so many is timed
  std::atomic<uint64_t> immediate_posts_{0};  // not yet added to the counters

  std::shared_ptr<Agent> agent_;
  std::shared_ptr<BlockList> local_;
  std::shared_ptr<BlockList> remote_;
  Plan plan_;
  TransferOptions options_;
  std::vector<uint8_t> message_;  // DataMessage and notice; empty: none
  // After creation these change only at the end of a post that established nothing. Threads outside that post
  // must hold the agent's mutex for them.
  Backend* backend_ = nullptr;
  PriceRow* prices_ = nullptr;                                    // of backend_, for such transfers
  std::vector<std::pair<const Backend*, std::string>> rejected_;  // failed candidates, with the reason
  std::vector<Backend*> next_;          // still to try if backend_ fails; the first one last
  std::string forced_;                  // the requested backend
  std::atomic<bool> may_go_on_{false};  // next_ may be used: nothing was established yet
  uint8_t passed_ = kNobody;  // the number of the backend that backend_ went before, by its measured price

  uint32_t part_count_ = 0;
  Part first_part_;
  std::unique_ptr<Part[]> more_parts_;  // all parts, if the transfer has several
  Part* parts_ = &first_part_;
  std::shared_ptr<towline_post> post_;      // null: the post is a single submit
  std::unique_ptr<StagedTransfer> staged_;  // not null: it moves the bytes instead of one backend
  towline_part_result last_result_ = plugin::sized<towline_part_result>();
  std::atomic<uint32_t> parts_left_{0};
  std::atomic<uint32_t> shares_{0};  // in the busy phase: one for the outcome, one for the parts
  std::atomic<bool> ended_{true};
  std::atomic<bool> slept_{false};  // a waiter of this post slept and handed over
  Status final_status_ = Status::kNotFound;
  std::atomic<uint32_t> waiters_{0};
  std::atomic<uint32_t> wake_word_{0};
  std::atomic<uint32_t> fences_{3};
  std::atomic<int32_t> first_error_{0};
  std::atomic<uint64_t> bytes_{0};
  std::atomic<uint64_t> posted_at_ns_{0};
  std::atomic<uint64_t> ended_at_ns_{0};
  std::atomic<uint32_t> failure_lock_{0};
  uint32_t failed_count_ = 0;
  std::array<towline_failed_range_t, 8> failed_;  // as many as failed_count_ says
  std::vector<towline_capture*> captures_;        // under the agent's mutex for details
};

}  // namespace towline
