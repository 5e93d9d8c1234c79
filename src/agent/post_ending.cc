// Posts: how a run ends, and what is known of it.
#include <algorithm>
#include <cstring>

#include "agent/agent.h"
#include "agent/link.h"
#include "agent/post.h"
#include "agent/staged_transfer.h"
#include "agent/worker.h"

namespace towline {

bool Post::step_part(Part& part, uint64_t now_ns) noexcept {
  const bool over = ended_.load(std::memory_order_acquire);
  if (part.message_only) {
    Status status = over ? Status::kCancelled : Status::kAgain;
    if (!over && now_ns >= part.deadline_ns) status = Status::kTimedOut;
    if (!over && status == Status::kAgain) {
      const bool notice = options_.has_notice;
      status = part.link->may_send(message_);
      if (status == Status::kOk &&
          (!notice || part.link->take_notice_credit(options_.notice_bytes) == Status::kOk)) {
        status = part.link->send(message_.data(), message_.size());
        if (status != Status::kOk && notice) part.link->return_notice_credit(options_.notice_bytes);
      } else if (status == Status::kOk) {
        status = Status::kAgain;
      }
      if (status == Status::kAgain) return false;
    }
    part.message_only = false;
    end(agent().told(status), part.worker);
    drop(part.worker);
    return true;
  }
  Status status = Status::kOk;
  part.waited = true;
  if (over) {
    status = Status::kCancelled;
  } else if (now_ns >= part.deadline_ns) {
    status = Status::kTimedOut;
    note_wait(part);
    end(status, part.worker);
  } else if (staged_ != nullptr) {
    staged_->begin(part);
    return true;
  } else {
    if (part.repick) follow_picks(part);
    if (!usable(part)) {
      (void)take_failure_text();  // left by others
      status = establish_part(part, part.deadline_ns);
      part.refused = is_error(status) && status != Status::kAgain;
    }
    if (status == Status::kOk && paced_ && !may_begin(part, now_ns)) return false;
    if (status == Status::kOk) status = submit_now(part);
    if (status == Status::kInProgress && part.submitted) return true;
    if (status == Status::kInProgress || status == Status::kAgain) return false;
    if (status == Status::kOk) return true;
  }
  part_ended(part, {kResultBytes, static_cast<int32_t>(status), 0, kAllFences, 0, 0, part.begin, part.end});
  return true;
}

// ---- ending

void Post::expire(Part& part) noexcept {
  end(Status::kTimedOut, part.worker);
  hurry(part);
}

void Post::hurry(Part& part) noexcept {
  if (!part.submitted) return;
  if (staged_ != nullptr) return staged_->stop();
  if (part.link->connection() != nullptr)
    backend_->data->cancel(part.link->connection(), reinterpret_cast<uint64_t>(&part));
}

Status Post::cancel() noexcept {
  if (fork_generation_ != fork_generation()) return Status::kForked;
  if (outcome_.load(std::memory_order_acquire) != static_cast<int32_t>(Status::kInProgress))
    return Status::kOk;
  end(Status::kCancelled, nullptr);
  for (uint32_t i = 0; i < part_count_; ++i) {
    Part& part = parts_[i];
    {
      Worker::Guard guard(*part.worker);
      hurry(part);
    }
    part.worker->wake();
  }
  return Status::kOk;
}

void Post::part_ended(Part& part, const towline_part_result& result) noexcept {
  if (part.submitted) {
    part.submitted = false;
    // In a staged transfer the leg that moved them has recorded it. Without the local fence something else than the
    // connection moves the bytes, so that its end would tell nothing.
    if ((result.fences & kAllFences) == TOWLINE_FENCE_LOCAL && staged_ == nullptr) part.link->note_unfenced();
    part.link->part_ended();
    part.worker->untrack(part);
  }
  if (paced_ && part.slice_end < part.end) return slice_ended(part, result);
  finish_part(part, result);
}

void Post::finish_part(Part& part, const towline_part_result& result) noexcept {
  if (part_count_ == 1) last_result_ = result;  // several parts end on several workers
  if (staged_ == nullptr)                       // legs counted them already
    bytes_.fetch_add(result.status == TOWLINE_OK ? part.end - part.begin : result.bytes,
                     std::memory_order_relaxed);
  if (result.status != TOWLINE_OK) {
    fences_.fetch_and(result.fences, std::memory_order_relaxed);
    note_failure(result);
  }
  if (parts_left_.fetch_sub(1, std::memory_order_acq_rel) == 1) all_parts_ended(*part.worker);
}

void Post::all_parts_ended(Worker& worker) noexcept {
  const uint64_t now_ns = agent().now_ns();
  ended_at_ns_.store(now_ns, std::memory_order_relaxed);
  const int32_t error = first_error_.load(std::memory_order_acquire);
  if (error != 0 && try_next_backend(worker)) return;
  // For its message, and its group's: the leg may have gone on to another backend.
  if (error == 0 && staged_ != nullptr) parts_[0].link = staged_->far_link();
  if (Link* link = parts_[0].link; link != nullptr && staged_ == nullptr) {  // legs count for themselves
    const uint64_t took_ns = now_ns - posted_at_ns_.load(std::memory_order_relaxed);
    const uint64_t bytes = bytes_.load(std::memory_order_relaxed);
    if (error == 0) count_transfer(*link, worker.index(), bytes, took_ns);
    if (error == 0) note_split(now_ns);
    if (error == 0 && part_count_ == 1 && parts_[0].alone && prices_ != nullptr && agent().in_real_time())
      prices_->report(bytes, took_ns);
    if (error != 0) series_of(*link).add_error(worker.index(), static_cast<Status>(error));
  }
  if (!ended_.load(std::memory_order_acquire)) {
    if (error == 0 && (part_count_ > 1 || staged_ != nullptr) && has_message()) {
      // Striped or staged: the message follows now that every byte is there, on the first part's connection.
      Part& part = parts_[0];
      part.message_only = true;
      if (part.worker == &worker) {
        worker.establish_later(part);
        return;
      }
      if (part.worker->enqueue(&part)) {
        part.worker->wake();
        return;
      }
      part.message_only = false;
      end(Status::kAgain, &worker);
    } else {
      end(agent().told(static_cast<Status>(error)), &worker);
    }
  }
  drop(&worker);
}

void Post::deliver() noexcept {
  if (hooked_) call_end(final_status_);
  const std::shared_ptr<Agent> agent = route_.held_agent();  // it may be destroyed once its outcome is known
  const towline_completion_t completion = {options_.user_data, handle_, static_cast<int32_t>(final_status_),
                                           0, bytes_.load(std::memory_order_relaxed)};
  const towline_callback_t callback = options_.callback;
  EventQueue* const queue = options_.queued ? &queue_of_end() : nullptr;
  std::string why;
  if (queue != nullptr && is_error(final_status_) && queue != &agent->own_queue())
    why = failure_of(final_status_);
  publish(nullptr);  // from here on the application may post again or destroy it
  if (queue != nullptr) queue->push_completion(completion, std::move(why));
  if (callback != nullptr) callback(&completion);
}

void Post::note_failure(const towline_part_result& result) noexcept {
  int32_t expected = 0;
  first_error_.compare_exchange_strong(expected, result.status, std::memory_order_acq_rel);
  const std::lock_guard lock(failure_lock_);
  const uint64_t bytes = plan_.view().bytes;
  uint64_t begin = std::min(result.failed_begin, bytes);
  uint64_t end = std::min(result.failed_end, bytes);
  if (begin >= end) {
    begin = 0;
    end = bytes;
  }
  if (failed_count_ < failed_.size()) {
    const uint64_t first = plan_.picked_block_at(begin);
    const uint64_t last = plan_.picked_block_at(end - 1);
    failed_[failed_count_] = {first, last - first + 1, result.status, result.vendor_code};
  }
  ++failed_count_;
}

// The outcome is that of the first failure, even before the failed ranges are known.
void Post::leg_failed(Status status) noexcept {
  int32_t expected = 0;
  first_error_.compare_exchange_strong(expected, static_cast<int32_t>(status), std::memory_order_acq_rel);
}

// ---- waiting and asking

Status Post::poll() noexcept {
  if (fork_generation_ != fork_generation()) return Status::kForked;
  const Status status = poll_outcome();
  if (status != Status::kInProgress || !agent().polls_drive()) return status;
  for (uint32_t i = 0; i < parts_to_drive(); ++i) parts_[i].worker->drive();
  return poll_outcome();
}

template <class Done>
bool Post::wait_for(Done&& done, uint64_t timeout_ns) noexcept {
  return wait_until(
      agent().hosted(),
      [this](auto&& call) {
        for (uint32_t i = 0; i < parts_to_drive(); ++i) call(*parts_[i].worker);
      },
      done, timeout_ns);
}

Status Post::wait(uint64_t timeout_ns) noexcept {
  if (fork_generation_ != fork_generation()) return Status::kForked;
  return wait_for([this] { return poll_outcome() != Status::kInProgress; }, timeout_ns) ? poll_outcome()
                                                                                        : Status::kNotYet;
}

Status Post::fence(uint32_t fences) const noexcept {
  if (phase_.load(std::memory_order_acquire) != kReady) return Status::kNotYet;
  if ((fences & TOWLINE_FENCE_LOCAL) != 0 && local_fence_lost()) return Status::kUnsupported;
  return (fences & TOWLINE_FENCE_REMOTE) == 0 ? Status::kOk : remote_fence();
}

bool Post::local_fence_lost() const noexcept {
  return (fences_.load(std::memory_order_relaxed) & TOWLINE_FENCE_LOCAL) == 0;
}

// For an ended post. A successful one used a connection that carries transfers only after the one before it
// has ended at the peer.
Status Post::remote_fence() const noexcept {
  if ((fences_.load(std::memory_order_relaxed) & TOWLINE_FENCE_REMOTE) != 0) return Status::kOk;
  if (outcome_.load(std::memory_order_acquire) == TOWLINE_OK) return Status::kOk;
  // The connection broke with bytes in flight. They can't move any more once the peer's process is gone, or
  // once the peer has confirmed that it ended its side of that connection.
  if (remote().peer()->ended() == Status::kPeerRestarted) return Status::kOk;
  if (staged_ != nullptr) return staged_->far_fence();
  if (local_fence_lost()) return Status::kUnsupported;  // something else than the connection moves them
  Status all = Status::kOk;
  for (uint32_t i = 0; i < part_room_ && all != Status::kUnsupported; ++i) {
    const Part& part = parts_[i];
    const Status one = part.link == nullptr ? Status::kOk : part.link->remote_fence(part.link_generation);
    if (one != Status::kOk) all = one;
  }
  return all;
}

void Post::seek_fence(uint32_t fences) const noexcept {
  if ((fences & TOWLINE_FENCE_REMOTE) == 0 || fence(fences) != Status::kNotYet || !ready()) return;
  if (staged_ != nullptr) return staged_->seek_far_fence();
  for (uint32_t i = 0; i < part_room_; ++i)
    if (Link* const link = parts_[i].link; link != nullptr)
      link->seek_confirmation(parts_[i].link_generation);
}

Status Post::wait_fenced(uint32_t fences, uint64_t timeout_ns) noexcept {
  if (fork_generation_ != fork_generation()) return Status::kForked;
  const auto known = [this, fences] {
    seek_fence(fences);
    return fence(fences) != Status::kNotYet;
  };
  (void)wait_for(known, timeout_ns);
  return fence(fences);
}

Status Post::set_notice(const void* notice, size_t bytes) {
  if (bytes > TOWLINE_MAX_NOTICE_BYTES) return Status::kLimitExceeded;
  if (!take(kBusy)) return Status::kBusy;
  PostOptions options;
  options.notice = notice;
  options.notice_bytes = options_.notice_bytes = static_cast<uint32_t>(bytes);
  options.has_notice = options_.has_notice = notice != nullptr || bytes != 0;
  if (has_message()) {  // its counter stays
    DataMessage before;
    std::memcpy(&before, message_.data(), sizeof before);
    options.counter_key = before.counter_key;
    options.counter_add = before.counter_add;
  }
  if (short_way_.exchange(false, std::memory_order_seq_cst)) wait_for_short_posts();
  build_message(options, message_);
  short_way_.store(immediate_ != nullptr && !immediate_tries_ && !has_message(), std::memory_order_release);
  phase_.store(kReady, std::memory_order_release);
  return Status::kOk;
}

Series& Post::series_of(const Link& link) const noexcept {
  return route_.op() == TOWLINE_WRITE ? link.sent() : link.received();
}

void Post::count_transfer(const Link& link, uint32_t worker, uint64_t bytes,
                          uint64_t took_ns) const noexcept {
  const towline_plan& plan = plan_.view();
  const uint64_t blocks =
      bytes == plan.bytes ? plan.blocks : bytes / std::max<uint64_t>(plan.bytes / plan.blocks, 1);
  series_of(link).add_transfer(worker, bytes, blocks, std::max<uint64_t>(took_ns, 1));
}

void Post::count_immediate_post() noexcept {
  const uint64_t posts = immediate_posts_.load(std::memory_order_relaxed) + 1;
  immediate_posts_.store(posts, std::memory_order_relaxed);
  if (handle_ != nullptr && posts >= kImmediatePostsPerCount) [[unlikely]]
    flush_counts();
}

void Post::flush_counts() noexcept {
  const uint64_t posts = immediate_posts_.exchange(0, std::memory_order_relaxed);
  add_to_counts(posts, posts * plan_.view().bytes, posts * plan_.view().blocks);
}

void Post::add_to_counts(uint64_t posts, uint64_t bytes, uint64_t blocks) noexcept {
  if (posts == 0 || parts_[0].link == nullptr) return;
  series_of(*parts_[0].link).add_transfers(kSharedShard, posts, bytes, blocks);
}

void Post::result(towline_result_t& result) const noexcept {
  const size_t size = result.struct_size;
  result = {};
  result.struct_size = size;
  const Status outcome = poll_outcome();
  result.status = static_cast<int32_t>(outcome);
  if (phase_.load(std::memory_order_acquire) == kReady) {
    if (fenced(TOWLINE_FENCE_LOCAL)) result.fences |= TOWLINE_FENCE_LOCAL;
    if (fenced(TOWLINE_FENCE_REMOTE)) result.fences |= TOWLINE_FENCE_REMOTE;
  }
  result.total_bytes = plan_.view().bytes;
  result.blocks = plan_.view().blocks;
  if (last_was_immediate_.load(std::memory_order_relaxed)) {
    result.bytes = outcome == Status::kOk ? result.total_bytes : 0;
  } else {
    result.bytes = bytes_.load(std::memory_order_relaxed);
    result.posted_at_ns = posted_at_ns_.load(std::memory_order_relaxed);
    result.ended_at_ns = outcome == Status::kInProgress ? 0 : ended_at_ns_.load(std::memory_order_relaxed);
  }
  if (outcome != Status::kOk) {
    result.failed_ranges = failed_count_;
    std::copy_n(failed_.begin(), std::min<size_t>(failed_count_, failed_.size()), result.failed);
  }
}

Status Post::retire(uint64_t timeout_ns) noexcept {
  close_gate(static_cast<int32_t>(Status::kStale));
  if (fork_generation_ != fork_generation()) return Status::kForked;
  cancel();
  if (!wait_for([this] { return phase_.load(std::memory_order_acquire) == kReady; }, timeout_ns))
    return Status::kNotYet;
  while (!take(kBusy)) cpu_pause();
  wait_for_short_posts();
  flush_counts();
  if (!wait_for([this] { return all_settled(); }, timeout_ns)) {  // a graph's copy still runs
    phase_.store(kReady, std::memory_order_release);
    return Status::kNotYet;
  }
  release_parts();
  staged_.reset();
  return Status::kOk;
}

}  // namespace towline
