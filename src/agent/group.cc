#include "agent/group.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "agent/agent.h"
#include "agent/link.h"
#include "agent/worker.h"
#include "base/error.h"

namespace towline {

namespace {

// Without memory the text stays as it is: then the status has to say it.
template <class... Values>
void put(std::string& text, fmt::format_string<Values...> format, Values&&... values) noexcept {
  try {
    text = fmt::format(format, std::forward<Values>(values)...);
  } catch (const std::bad_alloc&) {
  }
}

}  // namespace

Group* Group::create(std::shared_ptr<Agent> agent, const PostOptions& options) {
  return new Group(std::move(agent), options);
}

Group::Group(std::shared_ptr<Agent> agent, const PostOptions& options)
    : Ending(kBusy),
      agent_(std::move(agent)),
      options_(options),
      deadline_ns_(options.deadline_ns != 0
                       ? options.deadline_ns
                       : Deadline::after(agent_->now_ns(), agent_->default_timeout_ns()).ns()),
      fork_generation_(fork_generation()),
      watched_(options.callback != nullptr || options.queue != nullptr) {
  build_message(options, message_);
  outcome_.store(static_cast<int32_t>(Status::kInProgress), std::memory_order_relaxed);
  ended_.store(false, std::memory_order_relaxed);
  if (options_.queue != nullptr && !options_.queue->reserve_completion())
    fail(Status::kAgain, "too many completions wait to be pulled");
  if (!watched_) return;
  watch_.owner = this;
  watch_.worker = &agent_->my_worker();
  watch_.deadline_ns = deadline_ns_;
  {
    const Worker::Guard guard(*watch_.worker);
    watch_.worker->track(watch_);
  }
  watch_.worker->wake();
}

Group::~Group() { (void)agent_->limits().set(pace_, 0); }

void Group::let_go() noexcept {
  if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
}

// ---- members

Status Group::join(PlannedPost& post) noexcept {
  const std::lock_guard lock(mutex_);
  std::string refusal;
  if (ended_.load(std::memory_order_acquire)) {
    const Status status = final_status_ == Status::kOk ? Status::kInvalidArgument : final_status_;
    put(refusal, "the group has ended: {}", why_.empty() ? status_text(status) : why_.c_str());
    set_failure_text(refusal);
    return status;
  }
  if (closed_) {
    put(refusal, "the group was closed with {} members", members_);
    set_failure_text(refusal);
    return Status::kInvalidArgument;
  }
  post.member = {nullptr, first_, members_, false};
  post.member_bytes.store(0, std::memory_order_relaxed);
  if (first_ != nullptr) first_->member.previous = &post;
  first_ = &post;
  ++members_;
  ++in_flight_;
  hold();
  return Status::kOk;
}

void Group::unlink(PlannedPost& post) noexcept {
  (post.member.previous == nullptr ? first_ : post.member.previous->member.next) = post.member.next;
  if (post.member.next != nullptr) post.member.next->member.previous = post.member.previous;
  --in_flight_;
}

bool Group::is_complete() noexcept {
  if (!closed_ || in_flight_ != 0 || completing_ || over()) return false;
  completing_ = true;
  return true;
}

void Group::refused(PlannedPost& post, Status status, std::string_view why) noexcept {
  bool last = false;
  {
    const std::lock_guard lock(mutex_);
    unlink(post);
    if (status == Status::kAgain) {
      --members_;
      last = is_complete();
    } else {
      note_failure(post, status, why);
    }
  }
  if (status != Status::kAgain) end(status, nullptr);
  if (last) complete(nullptr);
  let_go();
}

void Group::left(PlannedPost& post, Worker* worker) noexcept {
  const Status status = post.outcome();
  bool last = false;
  {
    const std::lock_guard lock(mutex_);
    unlink(post);
    bytes_ += status == Status::kOk ? post.plan().bytes() : post.moved_bytes();
    total_bytes_ += post.plan().bytes();
    try {
      note_peer(post);
      if (is_error(status)) note_failure(post, status, post.failure_itself());
    } catch (const std::bad_alloc&) {
      local_fence_lost_ = true;  // what is not known is not promised
    }
    last = !is_error(status) && is_complete();
  }
  if (is_error(status)) end(status, worker);
  if (last) complete(worker);
  wake_waiters();  // for the fence
  let_go();
}

void Group::note_failure(const PlannedPost& post, Status status, std::string_view why) noexcept {
  if (failed_member_ != UINT64_MAX || over()) return;
  failed_member_ = post.member.number;
  failed_user_data_ = post.user_data();
  put(why_, "member {} of {}: {}", failed_member_, members_,
      why.empty() ? std::string_view(status_text(status)) : why);
}

void Group::note_peer(PlannedPost& post) {
  Link* const link = post.parts()[0].link;
  Peer* const peer = post.remote().peer();
  if (link == nullptr || peer == nullptr) return;
  if (!post.fenced(TOWLINE_FENCE_LOCAL)) local_fence_lost_ = true;
  const Status there = post.fence(TOWLINE_FENCE_REMOTE);
  if (there == Status::kUnsupported) remote_fence_lost_ = true;
  if (there == Status::kNotYet) {
    for (uint32_t i = 0; i < post.part_room(); ++i) {
      const Part& part = post.parts()[i];
      if (part.link != nullptr)
        unfenced_.push_back({peer, post.staged() ? nullptr : part.link, part.link_generation});
    }
  }
  for (Told& told : told_) {
    if (told.peer.get() != peer) continue;
    told.link = link;
    return;
  }
  told_.push_back({PeerHold(peer), link});
}

// ---- ending

Status Group::close() noexcept {
  if (fork_generation_ != fork_generation()) return Status::kForked;
  bool last = false;
  {
    const std::lock_guard lock(mutex_);
    if (closed_) {
      std::string refusal;
      put(refusal, "the group was closed before, with {} members", members_);
      set_failure_text(refusal);
      return Status::kInvalidArgument;
    }
    closed_ = true;
    last = is_complete();
  }
  if (last) complete(nullptr);
  const Status status = outcome();
  return is_error(status) ? Status::kInProgress : status;
}

void Group::complete(Worker* worker) noexcept {
  if (message_.empty() || told_.empty()) return end(Status::kOk, worker);
  if (told_.size() > kMostPeers) {
    const std::lock_guard lock(mutex_);
    put(why_, "its members are of {} peers, and at most {} can be told", told_.size(), kMostPeers);
  }
  if (told_.size() > kMostPeers) return end(Status::kLimitExceeded, worker);
  tell_peers(worker);
}

// Sends to one after the other, each under its connection's worker's lock.
void Group::tell_peers(Worker* worker) noexcept {
  while (next_told_ < told_.size() && !ended_.load(std::memory_order_acquire)) {
    Link& link = *told_[next_told_].link;
    Worker& home = link.worker();
    Status status = Status::kAgain;
    if (&home == worker) {
      status = tell(link);
    } else if (worker == nullptr && home.try_lock()) {
      status = tell(link);
      home.unlock();
    }
    if (status == Status::kAgain) {  // the worker goes on
      sender_.owner = this;
      sender_.worker = &home;
      sender_.message_only = true;
      hold();
      if (home.enqueue(&sender_)) return home.wake();
      let_go();
    }
    if (status != Status::kOk) return end(status, worker);
    ++next_told_;
  }
  end(Status::kOk, worker);
}

Status Group::tell(Link& link) noexcept {
  if (const Status status = link.may_send(message_); status != Status::kOk) return status;
  if (options_.has_notice) {
    if (const Status status = link.take_notice_credit(options_.notice_bytes); status != Status::kOk)
      return status;
  }
  const Status status = link.send(message_.data(), message_.size());
  if (status != Status::kOk && options_.has_notice) link.return_notice_credit(options_.notice_bytes);
  return status;
}

bool Group::step_part(Part& part, uint64_t now_ns) noexcept {
  if (!ended_.load(std::memory_order_acquire)) {
    const Status status = tell(*told_[next_told_].link);
    if (status == Status::kAgain && now_ns < deadline_ns_) return false;
    if (status == Status::kOk) {
      ++next_told_;
      tell_peers(part.worker);
    } else {
      end(status == Status::kAgain ? Status::kTimedOut : status, part.worker);
    }
  }
  let_go();
  return true;
}

void Group::expire(Part& part) noexcept { end(Status::kTimedOut, part.worker); }

void Group::hurry(Part&) noexcept {}

// Takes no locks. Called once, by the thread that sets the outcome.
void Group::deliver() noexcept {
  const Status status = final_status_;
  if (status != Status::kOk) cancel_members();
  uint64_t bytes = 0;
  {
    const std::lock_guard lock(mutex_);
    bytes = bytes_;
    if (why_.empty() && status == Status::kTimedOut)
      put(why_, "the deadline has passed with {} of its {} members in flight{}", in_flight_, members_,
          closed_ ? "" : ", and it was not closed");
  }
  const towline_completion_t completion = {options_.user_data, nullptr, static_cast<int32_t>(status), 0,
                                           bytes};
  const std::shared_ptr<Agent> agent = agent_;
  EventQueue* const queue = options_.queue;
  const towline_callback_t callback = options_.callback;
  if (watched_) {
    const Worker::Guard guard(*watch_.worker);
    watch_.worker->untrack(watch_);
  }
  outcome_.store(static_cast<int32_t>(status), std::memory_order_seq_cst);
  wake_waiters();
  std::string why;
  try {
    if (queue != nullptr && queue != &agent->own_queue()) why = failure();
  } catch (const std::bad_alloc&) {  // then the status has to say it
  }
  let_go();
  if (queue != nullptr) queue->push_completion(completion, std::move(why));
  if (callback != nullptr) callback(&completion);
}

// One at a time, since cancelling takes the lock of the member's worker.
void Group::cancel_members() noexcept {
  while (true) {
    PlannedPost* found = nullptr;
    {
      const std::lock_guard lock(mutex_);
      for (PlannedPost* post = first_; post != nullptr && found == nullptr; post = post->member.next)
        if (!post->member.cancelled && post->share()) found = post;
      if (found != nullptr) found->member.cancelled = true;
    }
    if (found == nullptr) return;
    (void)found->cancel();
    found->drop(nullptr);
  }
}

Status Group::cancel() noexcept {
  if (fork_generation_ != fork_generation()) return Status::kForked;
  end(Status::kCancelled, nullptr);
  return Status::kOk;
}

void Group::release() noexcept {
  bool open = false;
  {
    const std::lock_guard lock(mutex_);
    open = !closed_;
    if (open && why_.empty()) put(why_, "it was released before it was closed");
  }
  if (fork_generation_ == fork_generation() && open) end(Status::kCancelled, nullptr);
  let_go();
}

// ---- waiting and asking

void Group::check_deadline() noexcept {
  if (agent_->closed()) return end(Status::kClosed, nullptr);
  if (agent_->now_ns() >= deadline_ns_) end(Status::kTimedOut, nullptr);
}

Status Group::poll() noexcept {
  if (fork_generation_ != fork_generation()) return Status::kForked;
  if (outcome() != Status::kInProgress) return outcome();
  if (agent_->polls_drive()) {
    for (const auto& worker : agent_->workers()) worker->drive();
  }
  if (outcome() == Status::kInProgress) check_deadline();
  return outcome();
}

template <class Done>
bool Group::wait_for(Done&& done, uint64_t timeout_ns) noexcept {
  return wait_until(
      agent_->hosted(),
      [this](auto&& call) {
        for (const auto& worker : agent_->workers()) call(*worker);
      },
      done, timeout_ns);
}

Status Group::wait(uint64_t timeout_ns) noexcept {
  if (fork_generation_ != fork_generation()) return Status::kForked;
  const auto known = [this] { return outcome() != Status::kInProgress || agent_->closed(); };
  if (outcome() != Status::kInProgress) return outcome();
  const uint64_t now_ns = agent_->now_ns();
  const uint64_t left_ns = deadline_ns_ > now_ns ? deadline_ns_ - now_ns : 0;
  (void)wait_for(known, std::min(timeout_ns, left_ns));
  if (outcome() == Status::kInProgress) check_deadline();
  // A thread that ends it cancels its members before it publishes the outcome.
  const uint64_t passed_ns = agent_->now_ns() - now_ns;
  if (ended_.load(std::memory_order_acquire) && passed_ns < timeout_ns)
    (void)wait_for([this] { return outcome() != Status::kInProgress; }, timeout_ns - passed_ns);
  return outcome() == Status::kInProgress ? Status::kNotYet : outcome();
}

Status Group::fence(uint32_t fences) const noexcept {
  if (outcome() == Status::kInProgress) return Status::kNotYet;
  const std::lock_guard lock(mutex_);
  if (in_flight_ != 0) return Status::kNotYet;
  if (fences != 0 && local_fence_lost_) return Status::kUnsupported;
  if ((fences & TOWLINE_FENCE_REMOTE) == 0) return Status::kOk;
  if (remote_fence_lost_) return Status::kUnsupported;
  const bool all = std::all_of(unfenced_.begin(), unfenced_.end(), [](const Unfenced& entry) {
    if (entry.peer->ended() == Status::kPeerRestarted) return true;
    return entry.link != nullptr && entry.link->remote_fence(entry.generation) == Status::kOk;
  });
  return all ? Status::kOk : Status::kNotYet;
}

void Group::seek_fence(uint32_t fences) const noexcept {
  if ((fences & TOWLINE_FENCE_REMOTE) == 0 || fence(fences) != Status::kNotYet) return;
  for (std::size_t i = 0;; ++i) {
    Unfenced entry = {};
    {
      const std::lock_guard lock(mutex_);
      if (in_flight_ != 0 || i >= unfenced_.size()) return;
      entry = unfenced_[i];
    }
    if (entry.link != nullptr) entry.link->seek_confirmation(entry.generation);
  }
}

Status Group::wait_fenced(uint32_t fences, uint64_t timeout_ns) noexcept {
  if (fork_generation_ != fork_generation()) return Status::kForked;
  const auto known = [this, fences] {
    seek_fence(fences);
    return fence(fences) != Status::kNotYet;
  };
  (void)wait_for(known, timeout_ns);
  return fence(fences);
}

void Group::result(towline_group_result_t& result) const noexcept {
  const size_t size = result.struct_size;
  result = {};
  result.struct_size = size;
  result.status = static_cast<int32_t>(outcome());
  if (fenced(TOWLINE_FENCE_LOCAL)) result.fences |= TOWLINE_FENCE_LOCAL;
  if (fenced(TOWLINE_FENCE_REMOTE)) result.fences |= TOWLINE_FENCE_REMOTE;
  const std::lock_guard lock(mutex_);
  result.members = members_;
  result.bytes = bytes_;
  result.total_bytes = total_bytes_;
  for (const PlannedPost* post = first_; post != nullptr; post = post->member.next)
    result.total_bytes += post->member_bytes.load(std::memory_order_relaxed);
  result.failed_member = failed_member_;
  result.failed_user_data = failed_user_data_;
}

std::string Group::no_fence() const noexcept {
  try {
    const std::lock_guard lock(mutex_);
    return fmt::format(
        "a group of {} members has no fence: the backend of a member can't say when nothing moves any more",
        members_);
  } catch (const std::bad_alloc&) {
    return {};
  }
}

std::string Group::failure() const {
  const Status status = outcome();
  if (!is_error(status)) return {};
  const char* const reuse = reuse_of(fence(TOWLINE_FENCE_LOCAL));
  const std::lock_guard lock(mutex_);
  return fmt::format("a group of {} members: {}{}{}; the local memory {}", members_, status_text(status),
                     why_.empty() ? "" : ", ", why_, reuse);
}

}  // namespace towline
