// Operations on streams of GPUs: enqueued here, performed by kernels.
#include <cmath>

#include "base/error.h"
#include "collectives/calls/norm.h"
#include "collectives/calls/types.h"
#include "collectives/communicator.h"

namespace towline::collectives {

void Communicator::issue_on(const towline_collective_t& call, const towline_collective_options_t* options,
                            void* stream, Work** work, const towline_collective_norm_t* norm) {
  std::string text;
  if (const Status status = usable(text); is_error(status)) fail(status, "{}", text);
  check_call(call);
  if (table_->issue == nullptr || (work != nullptr && table_->issue_beside == nullptr))
    fail(Status::kUnsupported, "backend {} has no operations on streams; the backend gpu has",
         options_.backend);
  if (norm != nullptr && table_->issue_norm == nullptr)
    fail(Status::kUnsupported, "backend {} does not fuse all_reduce with RMSNorm; the backend gpu does",
         options_.backend);
  if (finishes_here()) fail(Status::kBusy, "an operation can't be put into a stream in a function of a work");
  const uint64_t timeout_ns = timeout_of(options);
  const auto issue = [&](uint64_t op_id) {
    Work* const issued = issue_now(call, timeout_ns, op_id, stream, work != nullptr, norm);
    if (work != nullptr) *work = issued;
    return Issued{.work = issued};
  };
  (void)with_hooks(&call, call.op, options, true, issue);
}

Work* Communicator::issue_now(const towline_collective_t& call, uint64_t timeout_ns, uint64_t op_id,
                              void* stream, bool beside, const towline_collective_norm_t* norm) {
  if (queued_.load(std::memory_order_acquire) != 0) {
    std::unique_lock lock(queue_mutex_);
    queue_changed_.wait(lock, [&] { return queued_.load() == 0; });
  }
  Work::Owned work;
  if (beside) {
    // The kernels' waits are bounded, so the host sets no time of its own.
    work.reset(new Work(shared_from_this(), call.op, timeout_ns, Deadline::never()));
    work->messages.push_back(nullptr);
  }
  const uint64_t record = recorder_.issue(&call, call.op, op_id, timeout_ns);
  int32_t status = TOWLINE_OK;
  {
    const std::lock_guard lock(perform_mutex_);
    begin_backend_call();
    if (replay_hook_count_.load(std::memory_order_relaxed) != 0) table_->watch_replays(backend_, op_id);
    if (norm != nullptr)
      status = table_->issue_norm(backend_, norm, number_, timeout_ns, stream);
    else
      status =
          beside ? table_->issue_beside(backend_, &call, number_, timeout_ns, stream, &work->messages.front())
                 : table_->issue(backend_, &call, number_, timeout_ns, stream);
    if (status >= 0 && call.op != TOWLINE_COLLECTIVE_SEND && call.op != TOWLINE_COLLECTIVE_RECV) ++number_;
  }
  if (status < 0) recorder_.end(record, Status{status});
  check_backend(status, op_name(call.op));
  recorder_.start(record);
  if (!beside) return nullptr;
  work->record = record;
  work->streamed = true;
  work->begin();
  watch_messages(work.get());
  return work.release();
}

// Recorders and hooks see it as an all_reduce.
void Communicator::issue_norm(const towline_collective_norm_t& norm,
                              const towline_collective_options_t* options, void* stream) {
  if (norm.datatype != TOWLINE_FLOAT32 && norm.datatype != TOWLINE_FLOAT16 &&
      norm.datatype != TOWLINE_BFLOAT16)
    fail(Status::kUnsupported, "RMSNorm of {}: only float32, float16 and bfloat16 are fused",
         datatype_name(norm.datatype));
  if (norm.width == 0 || norm.width > UINT32_MAX)
    fail(Status::kInvalidArgument, "norm.width is {}: expected 1 to {}", norm.width, UINT32_MAX);
  if (norm.rows > (uint64_t{1} << 40) / norm.width)
    fail(Status::kInvalidArgument, "norm.rows is {}: too many rows of {} elements", norm.rows, norm.width);
  if (!std::isfinite(norm.epsilon) || norm.epsilon < 0)
    fail(Status::kInvalidArgument, "norm.epsilon is {}: expected a number of 0 or more", norm.epsilon);
  if (norm.residual != nullptr && (norm.residual == norm.output || norm.residual == norm.input))
    fail(Status::kInvalidArgument,
         "the residual of RMSNorm is memory of its own, not the input's or output's");
  issue_on(all_reduce_of(norm), options, stream, nullptr, &norm);
}

void Communicator::order_after(Work& work, void* stream) {
  if (!work.streamed)
    fail(Status::kUnsupported, "{} is not on a stream: wait for it instead", op_name(work.op()));
  {
    const std::lock_guard lock(work.messages_mutex);
    if (!work.messages.empty() && work.messages.front() != nullptr) {
      begin_backend_call();
      check_backend(table_->message_precede(backend_, work.messages.front(), stream), op_name(work.op()));
    }
  }
  if (work.ended() && is_error(work.outcome())) fail(work.outcome(), "{}", work.error());
  std::string text;
  if (const Status status = error(&text); is_error(status)) fail(status, "{}", text);
}

}  // namespace towline::collectives
