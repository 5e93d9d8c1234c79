#include "agent/transfer.h"

#include <algorithm>

#include "agent/agent.h"
#include "agent/link.h"
#include "agent/staged_transfer.h"
#include "agent/waiter.h"
#include "agent/worker.h"
#include "base/os/futex.h"
#include "base/sync/in_use.h"

namespace towline {

namespace {

constexpr uint64_t kSpinBeforeSleepNs = 30 * kMicrosecondNs;
constexpr uint64_t kShortestSleepNs = kMillisecondNs;  // drop() may miss a thread that begins to wait
// A smaller part would be done before another thread has woken up.
constexpr uint64_t kLeastPartBytes = 256u << 10;
#if defined(__GLIBC__) && defined(__x86_64__)
static_assert(sizeof(Transfer) <= 1000);  // see the class
#endif

// The first short post of every 64th transfer is timed: programs make a transfer for each message.
uint8_t first_time_at() noexcept {
  static thread_local uint32_t made = 0;
  return made++ % Transfer::kImmediatePostsPerCount == 0 ? 0 : Transfer::kImmediatePostsPerCount - 1;
}

}  // namespace

Transfer::Transfer(std::shared_ptr<Agent> agent, uint32_t op, std::shared_ptr<BlockList> local,
                   std::shared_ptr<BlockList> remote, Plan plan, TransferOptions options)
    : phase_(kBusy),
      outcome_(static_cast<int32_t>(Status::kNotFound)),
      op_(op),
      fork_generation_(fork_generation()),
      time_at_(first_time_at()),
      agent_(std::move(agent)),
      local_(std::move(local)),
      remote_(std::move(remote)),
      plan_(std::move(plan)),
      options_(std::move(options)) {
  if (options_.timeout_ns == 0) options_.timeout_ns = agent_->default_timeout_ns();
  build_message();
  const uint64_t bytes = plan_.view().bytes;
  const auto workers = static_cast<uint32_t>(agent_->workers().size());
  const uint32_t home = agent_->my_worker().index();
  part_count_ = std::clamp<uint32_t>(options_.threads, 1, std::min<uint32_t>(workers, kMaxParts));
  if (bytes < part_count_ * kLeastPartBytes) part_count_ = 1;
  if (part_count_ > 1) {
    more_parts_ = std::make_unique<Part[]>(part_count_);
    parts_ = more_parts_.get();
    post_ = std::make_shared<towline_post>(towline_post{sizeof(towline_post), 0, bytes});
  }
  for (uint32_t i = 0; i < part_count_; ++i) {
    Part& part = parts_[i];
    part.transfer = this;
    part.worker = agent_->workers()[(home + i) % workers].get();
    // Parts end on page boundaries, so that neighbours do not write to the same page.
    part.begin = i == 0 ? 0 : parts_[i - 1].end;
    part.end = i + 1 == part_count_ ? bytes : (bytes / part_count_ * (i + 1)) & ~uint64_t{4095};
  }
}

Transfer::~Transfer() {
  for (towline_capture* capture : captures_) backend_->data->capture_forget(capture);
}

void Transfer::build_message() {
  message_.clear();
  if (!options_.has_notice && options_.counter_key == 0) return;
  const DataMessage header = {{static_cast<uint8_t>(ControlType::kData), kControlVersion, 0,
                               static_cast<uint32_t>(options_.notice.size())},
                              options_.counter_key,
                              options_.counter_add,
                              options_.has_notice ? 1u : 0u,
                              0};
  const auto* begin = reinterpret_cast<const uint8_t*>(&header);
  message_.assign(begin, begin + sizeof header);
  message_.insert(message_.end(), options_.notice.begin(), options_.notice.end());
}

void Transfer::close_gate(int32_t gate) noexcept {
  int32_t seen = gate_.load(std::memory_order_relaxed);
  while (seen >= 0 && seen != gate && !gate_.compare_exchange_weak(seen, gate, std::memory_order_seq_cst)) {
  }
}

// ---- posting

bool Transfer::take(Phase phase) noexcept {
  uint32_t seen = kReady;
  while (!phase_.compare_exchange_weak(seen, phase, std::memory_order_seq_cst)) {
    if (seen == kBusy) return false;
    if (seen == kHeld) cpu_pause();
    seen = kReady;
  }
  return true;
}

Status Transfer::post_long() noexcept {
  if (!take(kBusy)) return Status::kBusy;
  if (gate_.load(std::memory_order_seq_cst) != kOpen || immediate_ == nullptr) return post_slow();
  if (has_message()) return post_with_message();
  const int32_t status = immediate_submit_(immediate_, &immediate_args_);
  if (status == TOWLINE_AGAIN && immediate_tries_) return post_slow();
  if (status != TOWLINE_OK && status != TOWLINE_AGAIN) {
    note_failure({kResultBytes, status, 0, kAllFences, 0, 0, 0, plan_.view().bytes});
    bytes_.store(0, std::memory_order_relaxed);
  }
  if (status != TOWLINE_AGAIN) {
    last_was_immediate_.store(true, std::memory_order_relaxed);
    outcome_.store(status, std::memory_order_release);
    count_immediate_post();
  }
  phase_.store(kReady, std::memory_order_release);
  return static_cast<Status>(status);
}

bool Transfer::post_timed() noexcept {
  time_at_ = kImmediatePostsPerCount - 1;
  const uint64_t began_ns = agent_->now_ns();
  if (immediate_submit_(immediate_, &immediate_args_) != TOWLINE_OK) return false;
  if (agent_->in_real_time() && prices_ != nullptr)
    prices_->report(plan_.view().bytes, agent_->now_ns() - began_ns);
  last_was_immediate_.store(true, std::memory_order_relaxed);
  outcome_.store(TOWLINE_OK, std::memory_order_release);
  count_immediate_post();
  return true;
}

// The caller has closed the short path for new posts.
void Transfer::wait_for_short_posts() const noexcept {
  InUse::publish();
  SpinWait spin;
  while (InUse::by_any(this))
    if (!spin.again()) control_pause(*agent_, 0);
}

// The same, and then the message, which needs the lock. If any step fails, the long path starts from the
// beginning and copies all bytes again.
Status Transfer::post_with_message() noexcept {
  Part& part = parts_[0];
  Link& link = *part.link;
  if (!part.worker->try_lock()) return post_slow();
  bool sent = link.up() && link.generation() == part.link_generation;
  sent = sent && (!options_.has_notice || link.take_notice_credit(options_.notice.size()) == Status::kOk);
  if (sent) {
    sent = immediate_submit_(immediate_, &immediate_args_) == TOWLINE_OK &&
           link.send(message_.data(), message_.size()) == Status::kOk;
    if (!sent && options_.has_notice) link.return_notice_credit(options_.notice.size());
  }
  if (sent) {
    last_was_immediate_.store(true, std::memory_order_relaxed);
    outcome_.store(TOWLINE_OK, std::memory_order_release);
    count_immediate_post();
  }
  part.worker->unlock();
  if (!sent) return post_slow();
  phase_.store(kReady, std::memory_order_release);
  return Status::kOk;
}

Status Transfer::post_slow() noexcept {
  const int32_t gate = gate_.load(std::memory_order_seq_cst);
  if (gate < 0) {
    phase_.store(kReady, std::memory_order_release);
    return static_cast<Status>(gate);
  }
  int32_t before = 0;
  Status status = begin_post(before);
  if (status != Status::kOk) {
    phase_.store(kReady, std::memory_order_release);
    return status;
  }
  status = start_parts();
  if (is_error(status)) take_back_post(before);
  return status;
}

Status Transfer::begin_post(int32_t& outcome_before) noexcept {
  if (options_.queue_completion && !agent_->reserve_completion()) return Status::kAgain;
  outcome_before = outcome_.load(std::memory_order_relaxed);
  const uint64_t now_ns = agent_->now_ns();
  enter_post(now_ns, Deadline::after(now_ns, options_.timeout_ns).ns());
  return Status::kOk;
}

// Not accepted: as if it had not been posted.
void Transfer::take_back_post(int32_t outcome_before) noexcept {
  ended_.store(true, std::memory_order_relaxed);
  outcome_.store(outcome_before, std::memory_order_release);
  if (options_.queue_completion) agent_->release_completion();
  phase_.store(kReady, std::memory_order_release);
}

// The link can't break under the worker's lock, but it may have broken just before.
bool Transfer::usable(const Part& part) const noexcept {
  return part.prepared != nullptr && part.link->up() && part.link_generation == part.link->generation();
}

void Transfer::enter_post(uint64_t now_ns, uint64_t deadline_ns) noexcept {
  last_was_immediate_.store(false, std::memory_order_relaxed);
  slept_.store(false, std::memory_order_relaxed);
  failed_count_ = 0;
  first_error_.store(0, std::memory_order_relaxed);
  bytes_.store(0, std::memory_order_relaxed);
  // If bytes of the previous post may still move at the peer, they count for this post as well.
  fences_.store(remote_fenced() ? kAllFences : uint32_t{TOWLINE_FENCE_LOCAL}, std::memory_order_relaxed);
  posted_at_ns_.store(now_ns, std::memory_order_relaxed);
  parts_left_.store(part_count_, std::memory_order_relaxed);
  shares_.store(2, std::memory_order_release);  // try_release() writes what was read before
  outcome_.store(static_cast<int32_t>(Status::kInProgress), std::memory_order_release);
  ended_.store(false, std::memory_order_seq_cst);
  if (part_count_ > 1) post_->number = agent_->next_post_number();
  for (uint32_t i = 0; i < part_count_; ++i) {
    parts_[i].deadline_ns = deadline_ns;
    parts_[i].attempt = 0;
    parts_[i].message_only = false;
    parts_[i].refused = false;
    parts_[i].waited = false;
  }
}

Status Transfer::start_staged() noexcept {
  Part& part = parts_[0];
  if (part.worker->try_lock()) {
    if (ended_.load(std::memory_order_acquire)) {  // cancelled meanwhile
      part_ended(part, {kResultBytes, TOWLINE_CANCELLED, 0, kAllFences, 0, 0, part.begin, part.end});
      part.worker->unlock();
      return accepted();
    }
    staged_->begin(part);
    staged_->step(part.worker->pass_began_ns());
    part.worker->unlock();
  } else if (!part.worker->enqueue(&part)) {
    return Status::kAgain;
  }
  part.worker->wake();
  return accepted();
}

Status Transfer::start_parts() noexcept {
  if (staged_ != nullptr) return start_staged();
  Part& first = parts_[0];
  if (part_count_ == 1 && gate_.load(std::memory_order_relaxed) == kOpen && first.worker->try_lock()) {
    Status status = Status::kAgain;
    const bool again_later = !usable(first);
    if (!again_later) status = submit_now(first);
    if (again_later) first.worker->establish_later(first);
    first.worker->unlock();
    if (again_later) status = Status::kInProgress;
    if (is_error(status)) return status;
    if (status == Status::kInProgress) first.worker->wake();
    return accepted();
  }
  for (uint32_t i = 0; i < part_count_; ++i) {
    Part& part = parts_[i];
    SpinWait spin;
    while (!part.worker->enqueue(&part)) {
      if (i == 0) return Status::kAgain;
      if (part.worker->drive() == 0 && !spin.again()) control_pause(*agent_, 0);
    }
  }
  for (uint32_t i = 0; i < part_count_; ++i) {
    if (i == 0) parts_[i].worker->drive();
    parts_[i].worker->wake();
  }
  return accepted();
}

// The result of post once the parts are submitted: poll reports an outcome that is already an error, since an
// error of post would mean that nothing was accepted.
Status Transfer::accepted() const noexcept {
  return poll_outcome() == Status::kOk ? Status::kOk : Status::kInProgress;
}

Status Transfer::submit_now(Part& part, void* const* stream, uint32_t flags) noexcept {
  const bool message = part_count_ == 1 && has_message();
  const bool notice = message && options_.has_notice;
  if (notice && part.link->take_notice_credit(options_.notice.size()) != Status::kOk) return Status::kAgain;
  const towline_submit_args args = {sizeof(towline_submit_args),
                                    reinterpret_cast<uint64_t>(&part),
                                    part.begin,
                                    part.end,
                                    message ? message_.data() : nullptr,
                                    message ? message_.size() : 0,
                                    flags,
                                    0,
                                    post_.get()};
  part.alone = !part.waited && stream == nullptr && part.link->idle();
  part.submitted = true;
  part.link->part_started();
  part.worker->track(part);
  const int32_t status = stream == nullptr ? backend_->data->submit(part.prepared, &args)
                                           : backend_->data->stream_submit(part.prepared, &args, *stream);
  if (status == TOWLINE_IN_PROGRESS) return Status::kInProgress;
  if (status == TOWLINE_OK) {
    part_ended(part, {kResultBytes, TOWLINE_OK, 0, kAllFences, 0, part.end - part.begin, 0, 0});
    return Status::kOk;
  }
  part.submitted = false;
  part.link->part_ended();
  part.worker->untrack(part);
  if (notice) part.link->return_notice_credit(options_.notice.size());
  return static_cast<Status>(status);
}

bool Transfer::step_part(Part& part, uint64_t now_ns) noexcept {
  const bool over = ended_.load(std::memory_order_acquire);
  if (part.message_only) {
    Status status = over ? Status::kCancelled : Status::kAgain;
    if (!over && now_ns >= part.deadline_ns) status = Status::kTimedOut;
    if (!over && status == Status::kAgain) {
      const bool notice = options_.has_notice;
      if (!notice || part.link->take_notice_credit(options_.notice.size()) == Status::kOk) {
        status = part.link->send(message_.data(), message_.size());
        if (status != Status::kOk && notice) part.link->return_notice_credit(options_.notice.size());
      }
      if (status == Status::kAgain) return false;
    }
    part.message_only = false;
    end(status, part.worker);
    drop();
    return true;
  }
  Status status = Status::kOk;
  part.waited = true;
  if (over) {
    status = Status::kCancelled;
  } else if (now_ns >= part.deadline_ns) {
    status = Status::kTimedOut;
    end(status, part.worker);
  } else if (staged_ != nullptr) {
    staged_->begin(part);
    return true;
  } else {
    if (!usable(part)) {
      (void)take_failure_text();  // left by others
      status = establish_part(part, part.deadline_ns);
      part.refused = is_error(status) && status != Status::kAgain;
    }
    if (status == Status::kOk) status = submit_now(part);
    if (status == Status::kInProgress && part.submitted) return true;
    if (status == Status::kInProgress || status == Status::kAgain) return false;
    if (status == Status::kOk) return true;
  }
  part_ended(part, {kResultBytes, static_cast<int32_t>(status), 0, kAllFences, 0, 0, part.begin, part.end});
  return true;
}

// ---- ending

void Transfer::expire(Part& part) noexcept {
  end(Status::kTimedOut, part.worker);
  hurry(part);
}

void Transfer::hurry(Part& part) noexcept {
  if (!part.submitted) return;
  if (staged_ != nullptr) return staged_->stop();
  if (part.link->connection() != nullptr)
    backend_->data->cancel(part.link->connection(), reinterpret_cast<uint64_t>(&part));
}

Status Transfer::cancel() noexcept {
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

void Transfer::part_ended(Part& part, const towline_part_result& result) noexcept {
  if (part.submitted) {
    part.submitted = false;
    // In a staged transfer the leg that moved them has recorded it.
    if ((result.fences & TOWLINE_FENCE_REMOTE) == 0 && staged_ == nullptr) part.link->note_unfenced();
    part.link->part_ended();
    part.worker->untrack(part);
  }
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

void Transfer::all_parts_ended(Worker& worker) noexcept {
  const uint64_t now_ns = agent_->now_ns();
  ended_at_ns_.store(now_ns, std::memory_order_relaxed);
  const int32_t error = first_error_.load(std::memory_order_acquire);
  if (error != 0 && try_next_backend(worker)) return;
  if (Link* link = parts_[0].link; link != nullptr && staged_ == nullptr) {  // legs count for themselves
    const uint64_t took_ns = now_ns - posted_at_ns_.load(std::memory_order_relaxed);
    const uint64_t bytes = bytes_.load(std::memory_order_relaxed);
    if (error == 0) count_transfer(*link, worker.index(), bytes, took_ns);
    if (error == 0 && part_count_ == 1 && parts_[0].alone && prices_ != nullptr && agent_->in_real_time())
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
      end(static_cast<Status>(error), &worker);
    }
  }
  drop();
}

void Transfer::end(Status status, Worker* worker) noexcept {
  if (ended_.exchange(true, std::memory_order_seq_cst)) return;
  final_status_ = status;
  if (!wants_delivery()) return publish();
  if (worker != nullptr) return worker->finished(*this);
  deliver();
}

void Transfer::publish() noexcept {
  outcome_.store(static_cast<int32_t>(final_status_), std::memory_order_seq_cst);
  drop();
}

void Transfer::deliver() noexcept {
  const std::shared_ptr<Agent> agent = agent_;  // the transfer may be destroyed once its outcome is known
  const towline_completion_t completion = {options_.user_data, reinterpret_cast<towline_transfer_t*>(this),
                                           static_cast<int32_t>(final_status_), 0,
                                           bytes_.load(std::memory_order_relaxed)};
  const towline_callback_t callback = options_.callback;
  const bool queued = options_.queue_completion;
  publish();  // from here on the application may post again or destroy it
  if (queued) agent->push_completion(completion);
  if (callback != nullptr) callback(&completion);
}

void Transfer::drop() noexcept {
  const bool last = shares_.fetch_sub(1, std::memory_order_acq_rel) == 1;
  // A waiter may destroy `this` as soon as the phase is ready and the outcome known: wake through locals
  // only. A thread that begins to wait between these two checks is not woken, so first sleeps are short.
  const bool waiters = waiters_.load(std::memory_order_seq_cst) != 0;
  std::atomic<uint32_t>& word = wake_word_;
  if (waiters) word.fetch_add(1, std::memory_order_seq_cst);
  if (last) phase_.store(kReady, std::memory_order_seq_cst);
  if (waiters) futex_wake_all(word);
}

void Transfer::note_failure(const towline_part_result& result) noexcept {
  int32_t expected = 0;
  first_error_.compare_exchange_strong(expected, result.status, std::memory_order_acq_rel);
  while (failure_lock_.exchange(1, std::memory_order_acquire) != 0) cpu_pause();
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
  failure_lock_.store(0, std::memory_order_release);
}

// The outcome is that of the first failure, even before the failed ranges are known.
void Transfer::leg_failed(Status status) noexcept {
  int32_t expected = 0;
  first_error_.compare_exchange_strong(expected, static_cast<int32_t>(status), std::memory_order_acq_rel);
}

// ---- waiting and asking

Status Transfer::poll_outcome() const noexcept {
  const auto status = static_cast<Status>(outcome_.load(std::memory_order_acquire));
  // Done implies fenced, and that it can be posted again at once.
  if (status == Status::kOk && phase_.load(std::memory_order_acquire) == kBusy) return Status::kInProgress;
  return status;
}

Status Transfer::poll() noexcept {
  if (fork_generation_ != fork_generation()) return Status::kForked;
  const Status status = poll_outcome();
  if (status != Status::kInProgress) return status;
  for (uint32_t i = 0; i < part_count_; ++i) parts_[i].worker->drive();
  return poll_outcome();
}

// A thread that waits in slices spins only in the first one: once it has slept, the hosted thread drives.
template <class Done>
bool Transfer::wait_until(Done&& done, uint64_t timeout_ns) noexcept {
  if (done()) return true;
  Waiter waiter{wake_word_, waiters_, agent_->hosted(), kSpinBeforeSleepNs, kShortestSleepNs};
  waiter.rests = waiter.hosted && slept_.load(std::memory_order_relaxed);
  const bool is_done = waiter.wait(
      timeout_ns,
      [this](auto&& call) {
        for (uint32_t i = 0; i < part_count_; ++i) call(*parts_[i].worker);
      },
      done);
  if (waiter.slept && !is_done) slept_.store(true, std::memory_order_relaxed);
  return is_done;
}

Status Transfer::wait(uint64_t timeout_ns) noexcept {
  if (fork_generation_ != fork_generation()) return Status::kForked;
  return wait_until([this] { return poll_outcome() != Status::kInProgress; }, timeout_ns)
             ? poll_outcome()
             : Status::kInProgress;
}

bool Transfer::fenced(uint32_t fences) const noexcept {
  if (phase_.load(std::memory_order_acquire) != kReady) return false;
  const uint32_t known = fences_.load(std::memory_order_relaxed);
  if ((fences & TOWLINE_FENCE_LOCAL) != 0 && (known & TOWLINE_FENCE_LOCAL) == 0) return false;
  return (fences & TOWLINE_FENCE_REMOTE) == 0 || remote_fenced();
}

// For an ended post. A successful one used a connection that carries transfers only after the one before it
// has ended at the peer.
bool Transfer::remote_fenced() const noexcept {
  if ((fences_.load(std::memory_order_relaxed) & TOWLINE_FENCE_REMOTE) != 0) return true;
  if (outcome_.load(std::memory_order_acquire) == TOWLINE_OK) return true;
  // The connection broke with bytes in flight. They can't move any more once the peer's process is gone, or
  // once the peer has confirmed that it ended its side of that connection.
  if (remote_->peer()->ended() == Status::kPeerRestarted) return true;
  if (staged_ != nullptr) return staged_->far_fenced();
  for (uint32_t i = 0; i < part_count_; ++i) {
    const Part& part = parts_[i];
    if (part.link != nullptr && part.link->unfenced(part.link_generation)) return false;
  }
  return true;
}

Status Transfer::wait_fenced(uint32_t fences, uint64_t timeout_ns) noexcept {
  if (fork_generation_ != fork_generation()) return Status::kForked;
  return wait_until([this, fences] { return fenced(fences); }, timeout_ns) ? Status::kOk : Status::kTimedOut;
}

Status Transfer::set_notice(const void* notice, size_t bytes) {
  if (bytes > TOWLINE_MAX_NOTICE_BYTES) return Status::kLimitExceeded;
  if (!take(kBusy)) return Status::kBusy;
  const auto* begin = static_cast<const uint8_t*>(notice);
  options_.has_notice = notice != nullptr || bytes != 0;
  if (options_.has_notice) options_.notice.assign(begin, begin + bytes);
  if (short_way_.exchange(false, std::memory_order_seq_cst)) wait_for_short_posts();
  build_message();
  short_way_.store(immediate_ != nullptr && !immediate_tries_ && !has_message(), std::memory_order_release);
  phase_.store(kReady, std::memory_order_release);
  return Status::kOk;
}

Series& Transfer::series_of(const Link& link) const noexcept {
  return op_ == TOWLINE_WRITE ? link.sent() : link.received();
}

void Transfer::count_transfer(const Link& link, uint32_t worker, uint64_t bytes,
                              uint64_t took_ns) const noexcept {
  const towline_plan& plan = plan_.view();
  const uint64_t blocks =
      bytes == plan.bytes ? plan.blocks : bytes / std::max<uint64_t>(plan.bytes / plan.blocks, 1);
  series_of(link).add_transfer(worker, bytes, blocks, std::max<uint64_t>(took_ns, 1));
}

void Transfer::flush_counts() noexcept {
  const uint64_t posts = immediate_posts_.exchange(0, std::memory_order_relaxed);
  if (posts == 0 || parts_[0].link == nullptr) return;
  series_of(*parts_[0].link)
      .add_transfers(kSharedShard, posts, posts * plan_.view().bytes, posts * plan_.view().blocks);
}

void Transfer::result(towline_result_t& result) const noexcept {
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

Status Transfer::retire(uint64_t timeout_ns) noexcept {
  close_gate(static_cast<int32_t>(Status::kStale));
  if (fork_generation_ != fork_generation()) return Status::kForked;
  cancel();
  if (!wait_until([this] { return phase_.load(std::memory_order_acquire) == kReady; }, timeout_ns))
    return Status::kTimedOut;
  while (!take(kBusy)) cpu_pause();
  wait_for_short_posts();
  flush_counts();
  if (!wait_until([this] { return all_settled(); }, timeout_ns)) {  // a graph's copy still runs
    phase_.store(kReady, std::memory_order_release);
    return Status::kTimedOut;
  }
  release_parts();
  staged_.reset();
  return Status::kOk;
}

}  // namespace towline
