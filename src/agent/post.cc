// Posts: making them, and starting a run.
#include "agent/post.h"

#include <algorithm>
#include <array>

#include "agent/agent.h"
#include "agent/link.h"
#include "agent/staged_transfer.h"
#include "agent/worker.h"
#include "base/sync/wake_path.h"

namespace towline {

namespace {

// A smaller part would be done before another thread has woken up.
constexpr uint64_t kLeastPartBytes = 256u << 10;

// Reading the clock twice takes longer than moving 64 bytes: after so many reports of a price, one short post in
// 1,024 is timed, and before that one in 64.
constexpr uint32_t kWellKnown = 64;
constexpr uint32_t kTurnsPerTimed = 16;

// The first short post of every 64th transfer is timed: programs make a transfer for each message.
uint8_t first_time_at() noexcept {
  static thread_local uint32_t made = 0;
  return made++ % Post::kImmediatePostsPerCount == 0 ? 0 : Post::kImmediatePostsPerCount - 1;
}

}  // namespace

Post::Post(Route& route, Plan&& plan, const PostOptions& options, uint32_t threads,
           towline_transfer_t* handle)
    : Ending(kBusy),
      time_at_(first_time_at()),
      fork_generation_(fork_generation()),
      route_(route),
      plan_(std::move(plan)),
      handle_(handle) {
  bring(options);
  const auto workers = static_cast<uint32_t>(agent().workers().size());
  const uint32_t parts = std::clamp<uint32_t>(threads, 1, std::min<uint32_t>(workers, kMaxParts));
  make_room_for_parts(plan_.view().bytes < parts * kLeastPartBytes ? 1 : parts);
  know_workers();
  divide(part_room_);
}

Post::~Post() {
  if (held_ == nullptr) return;
  for (towline_capture* capture : held_->captures) backend_->data->capture_forget(capture);
}

void Post::bring(const PostOptions& options) {
  build_message(options, message_);
  options_ = {options.user_data,   options.callback,         options.timeout_ns,
              options.deadline_ns, options.notice_bytes,     options.has_notice,
              options.urgent,      options.queue != nullptr, options.pace};
  if (options_.timeout_ns == 0) options_.timeout_ns = agent().default_timeout_ns();
}

void build_message(const PostOptions& options, std::vector<uint8_t>& message) {
  message.clear();
  if (!options.has_notice && options.counter_key == 0) return;
  const TaggedMessage header = make_data_message(options.has_notice, options.notice_bytes, options.tag,
                                                 options.counter_key, options.counter_add);
  const auto* begin = reinterpret_cast<const uint8_t*>(&header);
  const auto* notice = static_cast<const uint8_t*>(options.notice);
  const size_t header_bytes = bytes_of(header);
  message.reserve(header_bytes + options.notice_bytes);
  message.assign(begin, begin + header_bytes);
  message.insert(message.end(), notice, notice + options.notice_bytes);
}

EventQueue& Post::queue_of_end() const noexcept { return agent().own_queue(); }

void Post::close_gate(int32_t gate) noexcept {
  int32_t seen = gate_.load(std::memory_order_relaxed);
  for (;;) {
    const bool held = seen <= kGateHeld + kRelink;
    const int32_t next = held && gate >= 0 ? kGateHeld + gate : gate;
    if ((seen < 0 && !held) || seen == next) return;
    if (gate_.compare_exchange_weak(seen, next, std::memory_order_seq_cst)) return;
  }
}

void Post::hold_gate() noexcept {
  int32_t seen = gate_.load(std::memory_order_relaxed);
  while (seen >= 0 && !gate_.compare_exchange_weak(seen, kGateHeld + seen, std::memory_order_seq_cst)) {
  }
}

void Post::open_gate() noexcept {
  int32_t seen = gate_.load(std::memory_order_relaxed);
  while (seen <= kGateHeld + kRelink &&
         !gate_.compare_exchange_weak(seen, seen - kGateHeld, std::memory_order_seq_cst)) {
  }
}

// ---- posting

TOWLINE_WAKE_PATH Status Post::post_long() noexcept {
  if (!take(kBusy)) return Status::kBusy;
  return post_taken();
}

TOWLINE_WAKE_PATH Status Post::post_taken() noexcept {
  if (gate_.load(std::memory_order_seq_cst) != kOpen || immediate_ == nullptr) return post_slow();
  if (has_message()) return post_with_message();
  const bool timed =
      handle_ == nullptr && immediate_posts_.load(std::memory_order_relaxed) >= time_at_ && is_to_be_timed();
  const uint64_t began_ns = timed ? agent().now_ns() : 0;
  int32_t status = immediate_submit_(immediate_, &immediate_args_);
  if (status == TOWLINE_AGAIN && immediate_tries_) return post_slow();
  if (timed && status == TOWLINE_OK) {
    time_at_ = kImmediatePostsPerCount - 1;
    prices_->report(plan_.view().bytes, agent().now_ns() - began_ns);
  }
  if (status != TOWLINE_OK && status != TOWLINE_AGAIN) {
    take_failure_text();
    status = static_cast<int32_t>(agent().told(static_cast<Status>(status)));
    failed_count_ = 0;
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

Status Post::post_with(const PickPair& picks, const PostOptions& options, void* const* stream,
                       std::atomic<uint64_t>& picked_bytes) {
  if (fork_generation_ != fork_generation()) return Status::kForked;
  if (!take(kBusy)) return Status::kBusy;
  const int32_t gate = gate_.load(std::memory_order_seq_cst);
  if (gate < 0) {
    take_failure_text();  // of something else on this thread
    phase_.store(kReady, std::memory_order_release);
    return refusal_at(gate);
  }
  try {
    plan_.compile_again(local().resolved(), picks.local, remote().resolved(), picks.remote, route_.op());
    picked_bytes.store(plan_.bytes(), std::memory_order_relaxed);
    bring(options);
    aim(stream == nullptr && to_be_split() ? part_room_ : 1);
    if (route_.legs())
      make_legs(options_.deadline_ns != 0 ? LateDeadline::at(options_.deadline_ns)
                                          : LateDeadline::in(agent(), options_.timeout_ns));
  } catch (...) {
    phase_.store(kReady, std::memory_order_release);
    throw;
  }
  return stream == nullptr ? post_taken() : post_on_taken(*stream);
}

bool Post::is_to_be_timed() const noexcept {
  static thread_local uint32_t turns = 0;
  if (prices_ == nullptr || !agent().in_real_time()) return false;
  return time_at_ == 0 || prices_->samples(plan_.view().bytes) < kWellKnown || ++turns % kTurnsPerTimed == 0;
}

bool Post::post_timed() noexcept {
  const bool timed = is_to_be_timed();
  time_at_ = kImmediatePostsPerCount - 1;
  const uint64_t began_ns = timed ? agent().now_ns() : 0;
  if (immediate_submit_(immediate_, &immediate_args_) != TOWLINE_OK) return false;
  if (timed) prices_->report(plan_.view().bytes, agent().now_ns() - began_ns);
  last_was_immediate_.store(true, std::memory_order_relaxed);
  outcome_.store(TOWLINE_OK, std::memory_order_release);
  count_immediate_post();
  return true;
}

// The caller has closed the short path for new posts.
void Post::wait_for_short_posts() const noexcept {
  InUse::publish();
  SpinWait spin;
  while (InUse::by_any(this))
    if (!spin.again()) control_pause(agent(), 0);
}

// The same, and then the message, which needs the lock. If any step fails, the long path starts from the
// beginning and copies all bytes again.
TOWLINE_WAKE_PATH Status Post::post_with_message() noexcept {
  Part& part = parts_[0];
  Link& link = *part.link;
  if (!part.worker->try_lock()) return post_slow();
  bool sent = link.up() && link.generation() == part.link_generation;
  sent = sent && link.may_send(message_) == Status::kOk &&
         (!options_.has_notice || link.take_notice_credit(options_.notice_bytes) == Status::kOk);
  if (sent) {
    sent = immediate_submit_(immediate_, &immediate_args_) == TOWLINE_OK &&
           link.send(message_.data(), message_.size()) == Status::kOk;
    if (!sent && options_.has_notice) link.return_notice_credit(options_.notice_bytes);
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

Status Post::post_slow() noexcept {
  take_failure_text();  // of something else on this thread
  const int32_t gate = gate_.load(std::memory_order_seq_cst);
  if (gate < 0) {
    phase_.store(kReady, std::memory_order_release);
    return refusal_at(gate);
  }
  int32_t before = 0;
  Status status = begin_post(before);
  if (status != Status::kOk) {
    phase_.store(kReady, std::memory_order_release);
    return status;
  }
  if (agent().hooks() != nullptr) call_begin();
  status = agent().told(start_parts());
  return is_error(status) ? take_back_post(before, status) : status;
}

Status Post::begin_post(int32_t& outcome_before) noexcept {
  if (options_.queued && !queue_of_end().reserve_completion()) return Status::kAgain;
  outcome_before = outcome_.load(std::memory_order_relaxed);
  const uint64_t now_ns = agent().now_ns();
  const uint64_t deadline_ns =
      options_.deadline_ns != 0 ? options_.deadline_ns : Deadline::after(now_ns, options_.timeout_ns).ns();
  if (paced_ || agent().limits().any()) paced_ = find_paced();
  hooked_ = false;
  enter_post(now_ns, deadline_ns);
  return Status::kOk;
}

// Not accepted: as if it had not been posted. But a thread may have ended it since it began, as cancel() of it or of
// its group does: then its end has been told, so that it was accepted.
Status Post::take_back_post(int32_t outcome_before, Status why) noexcept {
  if (ended_.exchange(true, std::memory_order_seq_cst)) {
    note_failure({kResultBytes, TOWLINE_CANCELLED, 0, kAllFences, 0, 0, 0, plan_.view().bytes});
    drop(nullptr);
    return Status::kInProgress;
  }
  if (hooked_) call_end(why);
  // Threads that have a share of it find that it has ended, and give that back.
  for (uint32_t own = 2; !shares_.compare_exchange_weak(own, 0, std::memory_order_acq_rel); own = 2)
    cpu_pause();
  outcome_.store(outcome_before, std::memory_order_release);
  if (options_.queued) queue_of_end().release_completion();
  phase_.store(kReady, std::memory_order_release);
  return why;
}

// The link can't break under the worker's lock, but it may have broken just before.
bool Post::usable(const Part& part) const noexcept {
  return part.prepared != nullptr && !part.outdated && part.link->up() &&
         part.link_generation == part.link->generation();
}

void Post::enter_post(uint64_t now_ns, uint64_t deadline_ns) noexcept {
  last_was_immediate_.store(false, std::memory_order_relaxed);
  slept_.store(false, std::memory_order_relaxed);
  failed_count_ = 0;
  if (waited_for_ != nullptr) [[unlikely]]
    forget_wait();
  first_error_.store(0, std::memory_order_relaxed);
  bytes_.store(0, std::memory_order_relaxed);
  // If bytes of the previous post may still move at the peer, they count for this post as well.
  fences_.store(remote_fence() == Status::kOk ? kAllFences : uint32_t{TOWLINE_FENCE_LOCAL},
                std::memory_order_relaxed);
  posted_at_ns_.store(now_ns, std::memory_order_relaxed);
  parts_left_.store(part_count_, std::memory_order_relaxed);
  shares_.store(2, std::memory_order_release);  // try_release() writes what was read before
  outcome_.store(static_cast<int32_t>(Status::kInProgress), std::memory_order_release);
  ended_.store(false, std::memory_order_seq_cst);
  if (part_count_ > 1) post_->number = agent().next_post_number();
  for (uint32_t i = 0; i < part_count_; ++i) {
    parts_[i].deadline_ns = deadline_ns;
    parts_[i].slice_end = parts_[i].end;
    parts_[i].attempt = 0;
    parts_[i].message_only = false;
    parts_[i].refused = false;
    parts_[i].waited = false;
  }
}

Status Post::start_staged() noexcept {
  Part& part = parts_[0];
  Worker& worker = *part.worker;
  const bool stays = handle_ == nullptr;
  Status seen = Status::kInProgress;
  if (worker.try_lock()) {
    if (ended_.load(std::memory_order_acquire)) {  // cancelled meanwhile
      part_ended(part, {kResultBytes, TOWLINE_CANCELLED, 0, kAllFences, 0, 0, part.begin, part.end});
    } else {
      staged_->begin(part);
      staged_->step(worker.pass_began_ns());
    }
    seen = accepted();
    worker.unlock();
  } else if (!worker.enqueue(&part)) {
    return Status::kAgain;
  }
  worker.wake();
  return stays ? accepted() : seen;
}

Status Post::start_alone(Part& part) noexcept {
  Status status = Status::kOk;
  if (part.outdated && part.link->up()) {
    status = establish_part(part, part.deadline_ns);
    if (is_error(status)) return status;
  }
  const bool again_later = !usable(part) || (paced_ && !may_begin(part, agent().now_ns())) ||
                           (has_message() && part.link->may_send(message_) == Status::kAgain);
  if (again_later)
    part.worker->establish_later(part);
  else
    status = submit_now(part);
  return again_later ? Status::kInProgress : status;
}

// Once it can be over, a transfer is not read any more, except under the lock of its worker, which its end needs: it
// may be destroyed, on another thread or by its callback on this one. A plan's post stays until PostPlan::post() returns.
Status Post::start_parts() noexcept {
  if (staged_ != nullptr) return start_staged();
  const bool stays = handle_ == nullptr;
  const bool urgent = options_.urgent;
  const bool paced = paced_;
  const uint32_t count = part_count_;
  Worker& home = *parts_[0].worker;
  if (count == 1 && gate_.load(std::memory_order_relaxed) == kOpen && home.try_lock()) {
    const Status status = start_alone(parts_[0]);
    const Status seen = accepted();
    home.unlock();
    if (is_error(status)) return status;
    if (status == Status::kInProgress || paced) home.wake();
    return stays ? accepted() : seen;
  }
  std::array<Worker*, kMaxParts> workers;
  for (uint32_t i = 0; i < count; ++i) workers[i] = parts_[i].worker;
  for (uint32_t i = 0; i < count; ++i) {  // it is not over before the last of them is queued
    SpinWait spin;
    while (!workers[i]->enqueue(&parts_[i])) {
      if (i == 0) return Status::kAgain;
      if (workers[i]->drive() == 0 && !spin.again()) control_pause(workers[i]->agent(), 0);
    }
    if (urgent) workers[i]->hurry();
  }
  home.drive();
  for (uint32_t i = 0; i < count; ++i) workers[i]->wake();
  return stays ? accepted() : Status::kInProgress;
}

// The result of post once the parts are submitted: poll reports an outcome that is already an error, since an
// error of post would mean that nothing was accepted.
Status Post::accepted() const noexcept {
  return poll_outcome() == Status::kOk ? Status::kOk : Status::kInProgress;
}

Status Post::submit_now(Part& part, void* const* stream, uint32_t flags) noexcept {
  part.slice_end = paced_ && stream == nullptr ? end_of_slice(part) : part.end;
  const bool message = part_count_ == 1 && has_message() && part.slice_end == part.end;
  const bool notice = message && options_.has_notice;
  if (message) {
    if (const Status status = part.link->may_send(message_); status != Status::kOk) return status;
  }
  if (notice && part.link->take_notice_credit(options_.notice_bytes) != Status::kOk) return Status::kAgain;
  if (options_.urgent) flags |= TOWLINE_SUBMIT_URGENT;
  const towline_submit_args args = {sizeof(towline_submit_args),
                                    reinterpret_cast<uint64_t>(&part),
                                    part.begin,
                                    part.slice_end,
                                    message ? message_.data() : nullptr,
                                    message ? message_.size() : 0,
                                    flags,
                                    0,
                                    part_count_ == part_room_ ? post_.get() : nullptr};
  part.alone = !paced_ && !part.waited && stream == nullptr && part.link->idle();
  part.submitted = true;
  part.link->part_started();
  part.worker->track(part);
  const int32_t status = stream == nullptr ? backend_->data->submit(part.prepared, &args)
                                           : backend_->data->stream_submit(part.prepared, &args, *stream);
  if (paced_ && (status == TOWLINE_IN_PROGRESS || status == TOWLINE_OK)) charge(part.slice_end - part.begin);
  if (status == TOWLINE_IN_PROGRESS) return Status::kInProgress;
  if (status == TOWLINE_OK) {
    part_ended(part, {kResultBytes, TOWLINE_OK, 0, kAllFences, 0, part.slice_end - part.begin, 0, 0});
    return Status::kOk;
  }
  part.submitted = false;
  part.link->part_ended();
  part.worker->untrack(part);
  if (notice) part.link->return_notice_credit(options_.notice_bytes);
  if (status == TOWLINE_AGAIN) part.link->note_no_room();
  return static_cast<Status>(status);
}

}  // namespace towline
