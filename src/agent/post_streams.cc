// Posts in the order of the application's streams (gpu.h).
#include <algorithm>
#include <bit>
#include <new>
#include <optional>

#include "agent/agent.h"
#include "agent/link.h"
#include "agent/post.h"
#include "agent/staged_transfer.h"
#include "agent/worker.h"
#include "base/clock.h"

namespace towline {

namespace {

// How long wait_on helps a post that has not reached the backend.
constexpr uint64_t kPatienceNs = 10 * kMillisecondNs;

}  // namespace

Status Post::streams_serve() const noexcept {
  if (fork_generation_ != fork_generation()) return Status::kForked;
  if (staged_ != nullptr) {
    set_failure_text(
        "bytes that are staged on their way to or from storage do not go in the order of a stream");
    return Status::kUnsupported;
  }
  if (backend_->data->stream_submit == nullptr) {
    set_failure_text("backend '" + backend_->name + "' moves nothing in the order of a stream");
    return Status::kUnsupported;
  }
  if (part_count_ != 1) {
    set_failure_text("the transfer is split over several workers: make it with workers = 1");
    return Status::kUnsupported;
  }
  return Status::kOk;
}

Status Post::post_on(void* stream) noexcept {
  take_failure_text();
  if (const Status status = streams_serve(); status != Status::kOk) return status;
  if (!take(kBusy)) return Status::kBusy;
  return post_on_taken(stream);
}

Status Post::post_on_taken(void* stream) noexcept {
  take_failure_text();
  Status status = streams_serve();
  if (status != Status::kOk) {
    phase_.store(kReady, std::memory_order_release);
    return status;
  }
  Part& part = parts_[0];
  std::optional<int32_t> outcome_before;
  {
    const Worker::Guard guard(*part.worker);
    const int32_t gate = gate_.load(std::memory_order_seq_cst);
    if (gate < 0) status = refusal_at(gate);
    if (status == Status::kOk && !usable(part)) {
      const uint64_t deadline_ns = Deadline::after(agent().now_ns(), options_.timeout_ns).ns();
      status = establish_part(part, deadline_ns);
      if (status == Status::kInProgress) status = Status::kAgain;
    }
    if (status == Status::kOk) status = capture_or_post(part, stream, outcome_before);
  }
  if (outcome_before.has_value())
    return is_error(status) ? take_back_post(*outcome_before, status) : Status::kInProgress;
  phase_.store(kReady, std::memory_order_release);
  return status;
}

// Busy, with everything prepared.
Status Post::capture_or_post(Part& part, void* stream, std::optional<int32_t>& outcome_before) noexcept {
  auto status = static_cast<Status>(backend_->data->stream_capture(part.prepared, stream, nullptr));
  if (status == Status::kOk) return capture_in(part, stream);
  if (status != Status::kAgain) return status;
  int32_t before = 0;
  if (status = begin_post(before); status != Status::kOk) return status;
  outcome_before = before;
  // It goes in one piece.
  return paced_ && !may_begin(part, agent().now_ns()) ? Status::kAgain : submit_now(part, &stream);
}

// The stream records a graph.
Status Post::capture_in(const Part& part, void* stream) noexcept try {
  if (has_message() || handle_ == nullptr) {
    set_failure_text(handle_ == nullptr
                         ? "a post of a plan can't be captured in a graph: make a transfer for it"
                         : "a transfer with a notice or a counter can't be captured in a graph");
    return Status::kUnsupported;
  }
  {
    const std::lock_guard lock(agent().transfer_details_mutex());
    std::vector<towline_capture*>& captures = held().captures;
    captures.reserve(std::bit_ceil(captures.size() + 1));  // first, since a graph gives nothing back
  }
  towline_capture* capture = nullptr;
  const auto status = static_cast<Status>(backend_->data->stream_capture(part.prepared, stream, &capture));
  if (status == Status::kOk) {
    const std::lock_guard lock(agent().transfer_details_mutex());
    held_->captures.push_back(capture);
  }
  return status;
} catch (const std::bad_alloc&) {
  return Status::kOutOfMemory;
}

Status Post::wait_on(void* stream) noexcept {
  take_failure_text();
  if (const Status status = streams_serve(); status != Status::kOk) return status;
  Part& part = parts_[0];
  const uint64_t patient_until_ns = monotonic_now_ns() + kPatienceNs;
  while (true) {
    const Status outcome = poll_outcome();
    {
      const Worker::Guard guard(*part.worker);
      towline_capture* last = nullptr;
      {
        const std::lock_guard lock(agent().transfer_details_mutex());
        if (held_ != nullptr && !held_->captures.empty()) last = held_->captures.back();
      }
      if (outcome == Status::kNotFound && last == nullptr) return outcome;
      const bool on_its_way = outcome == Status::kInProgress && !part.submitted && !part.message_only;
      if (!on_its_way || poll_outcome() != Status::kInProgress) {
        if (part.prepared == nullptr) return Status::kOk;
        const auto status = static_cast<Status>(backend_->data->stream_wait(part.prepared, last, stream));
        if (status != Status::kAgain) return status;
      }
    }
    if (monotonic_now_ns() >= patient_until_ns) return Status::kAgain;
    (void)part.worker->drive();
  }
}

towline_capture_runs Post::captured_runs() const noexcept {
  auto all = plugin::sized<towline_capture_runs>();
  const std::lock_guard lock(agent().transfer_details_mutex());
  if (held_ == nullptr) return all;
  for (const towline_capture* capture : held_->captures) {
    auto one = plugin::sized<towline_capture_runs>();
    backend_->data->capture_runs(capture, &one);
    all.begun += one.begun;
    all.ended += one.ended;
    all.refused += one.refused;
    if (all.status == TOWLINE_OK) all.status = one.status;
  }
  return all;
}

}  // namespace towline
