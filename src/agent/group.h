// Posts that end as one: one outcome, one notice after the last byte of the last member, one deadline, cancel and
// fence. Members may join while others move.
//
//   open --close()--> closed --last member--> (notices) --> over
//
// The first member that fails or is refused, the deadline and cancel set the outcome at once; then no more members
// join, and those in flight are cancelled. A group lives as long as its handle, its work or a call needs it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "agent/agent.h"
#include "agent/ending.h"
#include "agent/part.h"
#include "agent/peer.h"
#include "agent/post_plan.h"
#include "towline/plan.h"

namespace towline {

class Group final : public Ending {
 public:
  static constexpr size_t kMostPeers = 16;

  [[nodiscard]] static Group* create(std::shared_ptr<Agent> agent, const PostOptions& options);

  // ---- members. From the post's plan.

  // Before it is posted. An error: it can't join; take_failure_text() says why. The post is not used any more after
  // its end was told by one of the following.
  [[nodiscard]] Status join(PlannedPost& post) noexcept;
  // It was not accepted. kAgain: the caller may try again; anything else ends the group.
  void refused(PlannedPost& post, Status status, std::string_view why) noexcept;
  // It is over, and fenced on this side. `worker`: whose lock the caller holds; null: none.
  void left(PlannedPost& post, Worker* worker) noexcept;

  // Those that have begun; of a group that is over. No lock held.
  void cancel_members() noexcept;

  // ---- the application's

  [[nodiscard]] Status close() noexcept;
  [[nodiscard]] Status poll() noexcept;
  [[nodiscard]] Status wait(uint64_t timeout_ns) noexcept;
  [[nodiscard]] Status wait_fenced(uint32_t fences, uint64_t timeout_ns) noexcept;
  Status cancel() noexcept;
  void result(towline_group_result_t& result) const noexcept;
  [[nodiscard]] std::string failure() const;
  void release() noexcept;

  [[nodiscard]] Agent& agent() const noexcept { return *agent_; }
  // kNotYet; kUnsupported: they will never hold, since a member has none.
  [[nodiscard]] Status fence(uint32_t fences) const noexcept;
  [[nodiscard]] bool fenced(uint32_t fences) const noexcept { return fence(fences) == Status::kOk; }
  // See Post.
  void seek_fence(uint32_t fences) const noexcept;
  // Why fence() answers kUnsupported, in a sentence; "" without memory.
  [[nodiscard]] std::string no_fence() const noexcept;
  void hold() noexcept { references_.fetch_add(1, std::memory_order_relaxed); }
  void let_go() noexcept;
  [[nodiscard]] uint64_t deadline_ns() const noexcept { return deadline_ns_; }
  [[nodiscard]] bool over() const noexcept { return ended_.load(std::memory_order_acquire); }
  [[nodiscard]] bool urgent() const noexcept { return options_.urgent; }
  [[nodiscard]] Pace& pace() noexcept { return pace_; }
  void set_limit(uint64_t bytes_per_s) { agent_->set_limit(pace_, bytes_per_s); }

  // ---- from workers
  void deliver() noexcept override;
  bool step_part(Part& part, uint64_t now_ns) noexcept override;
  void hurry(Part& part) noexcept override;
  void expire(Part& part) noexcept override;

 private:
  Pace pace_;
  // A peer that is told, by a connection over which a member moved; and what is not known to be fenced there.
  struct Told {
    PeerHold peer;
    Link* link;
  };
  struct Unfenced {
    const Peer* peer;
    Link* link;  // null: known when the peer is gone
    uint32_t generation;
  };

  Group(std::shared_ptr<Agent> agent, const PostOptions& options);
  ~Group() override;
  [[nodiscard]] bool wants_delivery() const noexcept override { return true; }
  [[nodiscard]] Status outcome() const noexcept {
    return static_cast<Status>(outcome_.load(std::memory_order_acquire));
  }
  void unlink(PlannedPost& post) noexcept;
  void note_peer(PlannedPost& post);
  void note_failure(const PlannedPost& post, Status status, std::string_view why) noexcept;
  // The last one has left: the thread that gets true completes.
  [[nodiscard]] bool is_complete() noexcept;
  // Closed, and no member is in flight: notices, then the outcome.
  void complete(Worker* worker) noexcept;
  void tell_peers(Worker* worker) noexcept;
  [[nodiscard]] Status tell(Link& link) noexcept;
  void check_deadline() noexcept;
  template <class Done>
  [[nodiscard]] bool wait_for(Done&& done, uint64_t timeout_ns) noexcept;

  const std::shared_ptr<Agent> agent_;
  const PostOptions options_;
  const uint64_t deadline_ns_;
  const uint64_t fork_generation_;
  std::vector<uint8_t> message_;
  std::atomic<uint32_t> references_{2};  // the handle, the outcome, each member in flight, the sender
  const bool watched_;                   // by a worker, for the deadline: nobody may wait
  Part watch_;
  Part sender_;  // of notices

  mutable std::mutex mutex_;  // a leaf; guards what follows
  bool closed_ = false;
  bool completing_ = false;
  uint64_t members_ = 0;
  uint64_t in_flight_ = 0;
  uint64_t bytes_ = 0;
  uint64_t total_bytes_ = 0;
  PlannedPost* first_ = nullptr;  // in flight
  std::vector<Told> told_;
  std::vector<Unfenced> unfenced_;
  bool local_fence_lost_ =
      false;  // a member ended without its local fence: only its backend's end gives that
  bool remote_fence_lost_ = false;  // the same of a fence that nothing will tell of
  uint64_t failed_member_ = UINT64_MAX;
  void* failed_user_data_ = nullptr;
  std::string why_;
  size_t next_told_ = 0;  // by the thread that completes
};

}  // namespace towline
