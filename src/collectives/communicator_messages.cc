// Sends, receives and batches of them.
#include <algorithm>

#include "base/error.h"
#include "base/sync/spin.h"
#include "collectives/calls/types.h"
#include "collectives/communicator.h"
#include "collectives/cpu_backend.h"
#include "collectives/interrupt.h"

namespace towline::collectives {
namespace {

constexpr uint32_t kQuickLooks = 8;
constexpr uint32_t kLooksATest = 16;  // so often another thread's doing is looked for
constexpr uint64_t kYieldNs = 100 * kMicrosecondNs;
// The interval at which works on streams are checked while nobody waits for them.
constexpr std::chrono::milliseconds kStreamLook{1};

// The communicator whose messages this thread moves, if it is one of its own threads.
thread_local const Communicator* moves_messages = nullptr;

std::string describe(const towline_collective_t& call) {
  return fmt::format("{} of {} {} {} {} (tag {})", op_name(call.op), call.count, datatype_name(call.datatype),
                     call.op == TOWLINE_COLLECTIVE_SEND ? "to" : "from",
                     call.root == TOWLINE_ANY_RANK ? "any rank" : fmt::format("rank {}", call.root),
                     call.tag);
}

}  // namespace

Work* Communicator::begin_messages(uint32_t op, std::vector<std::unique_ptr<OwnedCall>> calls,
                                   uint64_t timeout_ns, Deadline deadline, uint64_t op_id) {
  Work::Owned work(new Work(shared_from_this(), op, timeout_ns, deadline));
  work->messages.reserve(calls.size());  // nothing below throws
  work->record = recorder_.issue_at(recorder_.now(), calls.size() == 1 ? &calls.front()->get() : nullptr, op,
                                    op_id, timeout_ns, true);
  work->batch = std::move(calls);
  work->begin();
  {
    const std::lock_guard lock(work->messages_mutex);
    const bool together = work->batch.size() > 1 && table_->messages_together != nullptr;
    if (together) table_->messages_together(backend_, 1);
    for (const auto& call : work->batch) {
      towline_collective_message* message = nullptr;
      begin_backend_call();
      const int32_t status = table_->message_start(backend_, &call->get(), &message);
      if (status < 0 && message == nullptr) work->refused = failure(status, work->refused_text);
      work->messages.push_back(message);
    }
    if (together) table_->messages_together(backend_, 0);
  }
  move_messages(*work);
  return work.release();
}

bool Communicator::move_messages(Work& work, bool heeds_deadline) {
  if (work.ended()) return true;
  std::unique_lock lock(work.messages_mutex);
  if (work.messages_settled) {
    // Another thread is about to finish it and will wake the sleepers.
    lock.unlock();
    work.sleep(Deadline::after(monotonic_now_ns(), kMillisecondNs));
    return work.ended();
  }
  std::string text;
  Status outcome = Status::kOk;
  for (size_t i = 0; i < work.messages.size(); ++i) {
    if (work.messages[i] == nullptr) continue;
    const int32_t status = table_->message_test(backend_, work.messages[i]);
    if (status == TOWLINE_IN_PROGRESS) {
      outcome = Status::kInProgress;
      continue;
    }
    if (status == TOWLINE_OK && work.op() == TOWLINE_COLLECTIVE_RECV && has_sources())
      work.source = table_->message_source(backend_, work.messages[i]);
    table_->message_release(backend_, work.messages[i]);
    work.messages[i] = nullptr;
    if (status < 0) {
      outcome = failure(status, text);
      break;
    }
  }
  if (!is_error(outcome) && is_error(work.refused)) {
    outcome = work.refused;
    text = std::move(work.refused_text);
  }
  if (outcome == Status::kInProgress && heeds_deadline && !work.streamed &&
      work.deadline().passed(monotonic_now_ns())) {
    const auto pending = std::ranges::find_if(work.messages, [](const auto* one) { return one != nullptr; });
    time_out(work.batch[static_cast<size_t>(pending - work.messages.begin())]->get());
    return false;  // the next test returns the agreed reason
  }
  if (outcome == Status::kInProgress) return false;
  for (towline_collective_message*& message : work.messages) {
    if (message != nullptr) table_->message_release(backend_, message);
    message = nullptr;
  }
  work.messages_settled = true;
  lock.unlock();
  recorder_.end(work.record, outcome);
  if (is_error(outcome)) {
    // A part of it may be with the other rank, which must not wait for the rest.
    table_->abort(backend_, static_cast<int32_t>(outcome), text.c_str());
    after_failure(outcome, text);
  }
  work.finish(outcome, std::move(text));
  return true;
}

template <typename Move>
void Communicator::wait_until_moved(const Move& move, uint32_t op, Deadline deadline, Deadline until) {
  // Some ten microseconds, in which reading the clock would take as long as everything else, and a first few looks
  // without the pause that would take as long as a small message.
  for (uint32_t turn = 0; turn < 1000; ++turn) {
    if (move(false)) return;
    if (turn >= kQuickLooks) cpu_pause();
  }
  const uint64_t began = monotonic_now_ns();
  for (uint64_t now = began; now - began < kYieldNs; now = monotonic_now_ns()) {
    if (move(true) || until.passed(now)) return;
    sched_yield();
  }
  while (!move(true)) {
    const uint64_t now = monotonic_now_ns();
    if (until.passed(now)) return;
    if (Interrupt::asked()) interrupt(op_name(op));
    table_->message_wait(backend_, std::min({until.ns(), deadline.ns(), now + 100 * kMillisecondNs}));
  }
}

void Communicator::wait_for_messages(Work& work, Deadline until) {
  if (move_messages(work) || until.passed(monotonic_now_ns())) return;
  wait_until_moved([&](bool heeds_deadline) { return move_messages(work, heeds_deadline); }, work.op(),
                   work.deadline(), until);
}

Status Communicator::run_message(const towline_collective_t& call, uint64_t timeout_ns, std::string& text) {
  // Whatever happens, the engine has no message here once this returns.
  struct Started {
    MessageEngine& engine;
    Message message;
    bool over = false;
    ~Started() {
      if (!over) engine.forget(message);
    }
  };
  const uint64_t record = recorder_.issue_at(recorder_.now(), &call, call.op, next_op_id(), timeout_ns, true);
  Started started{cpu_->messages(), message_of(call)};
  Status status = Status::kInProgress;
  try {
    status = started.engine.run(started.message);
    if (status == Status::kInProgress) {
      const Deadline deadline = deadline_in(timeout_ns);
      uint32_t looks = 0;
      const auto move = [&](bool heeds_deadline) {
        if (!heeds_deadline && ++looks % kLooksATest != 0 && !started.engine.may_move(started.message))
          return false;
        status = started.engine.test(started.message);
        if (status != Status::kInProgress) return true;
        // The next test returns the agreed reason.
        if (heeds_deadline && deadline.passed(monotonic_now_ns())) time_out(call);
        return false;
      };
      wait_until_moved(move, call.op, deadline, Deadline::never());
    }
  } catch (const std::exception& error) {
    // A part of it may be with the other rank, which would take what comes next for the rest.
    status = cpu_->breaker().raise_or_break(Status::kOutOfMemory, [&] {
      return fmt::format("rank {} failed in {}: {}", options_.rank, describe(call), error.what());
    });
  }
  started.over = status == Status::kOk;
  recorder_.end(record, status);
  if (is_error(status)) {
    text = cpu_->breaker().breakage().text;
    if (text.empty()) text = status_text(status);  // there was no memory for one
    after_failure(status, text);
  }
  return status;
}

void Communicator::time_out(const towline_collective_t& message) noexcept {
  std::string text;
  try {
    text = fmt::format("rank {} timed out in {}", options_.rank, describe(message));
  } catch (const std::bad_alloc&) {  // the status says enough
  }
  table_->abort(backend_, TOWLINE_TIMED_OUT, text.c_str());
}

Status Communicator::run_messages(std::vector<std::unique_ptr<OwnedCall>> calls, uint32_t op,
                                  uint64_t timeout_ns, Deadline deadline, uint64_t op_id, std::string& text) {
  Work* work = begin_messages(op, std::move(calls), timeout_ns, deadline, op_id);
  wait_for_messages(*work, Deadline::never());
  text = work->error();
  const Status status = work->outcome();
  work->release();
  return status;
}

// ---- Messages without a waiting thread

void Communicator::watch_messages(Work* work) noexcept {
  if (work->ended()) return;
  bool told = true;
  try {
    const std::lock_guard lock(active_mutex_);
    // A mover inside a function of a work may wait there for this message.
    if (movers_.empty() || moves_messages == this) movers_.emplace_back([this] { serve_messages(); });
    // Works on streams are checked now and then: issuing one wakes no thread that is awake.
    told = !work->streamed || active_.empty();
    active_.emplace_back(work);
  } catch (const std::exception&) {
    // No thread would move it.
    table_->abort(backend_, TOWLINE_OUT_OF_MEMORY, "there is no memory or thread for a message");
    wait_for_messages(*work, Deadline::never());
    return;
  }
  if (told) active_changed_.notify_all();
}

void Communicator::serve_messages() {
  moves_messages = this;
  std::vector<WorkRef> mine;
  for (;;) {
    {
      std::unique_lock lock(active_mutex_);
      active_changed_.wait(lock, [&] { return !active_.empty() || messages_stopping_; });
      if (active_.empty()) return;
      mine.clear();
      for (const WorkRef& work : active_) mine.emplace_back(work.get());
    }
    bool moved = false;
    Deadline nearest;
    for (const WorkRef& work : mine) {
      if (move_messages(*work))
        moved = true;
      else
        nearest = std::min(nearest, work->deadline());
    }
    if (moved) {
      {
        const std::lock_guard lock(active_mutex_);
        std::erase_if(active_, [](const WorkRef& work) { return work->ended(); });
      }
      active_changed_.notify_all();
      continue;
    }
    if (std::ranges::all_of(mine, [](const WorkRef& work) { return work->streamed; })) {
      std::unique_lock lock(active_mutex_);
      active_changed_.wait_for(lock, kStreamLook);
      continue;
    }
    // Short, since messages started meanwhile are not among `mine`.
    table_->message_wait(backend_, std::min(nearest.ns(), monotonic_now_ns() + 20 * kMillisecondNs));
  }
}

Status Communicator::run_batch(std::vector<std::unique_ptr<OwnedCall>> calls,
                               const towline_collective_options_t* options, std::string& text) {
  if (const Status status = usable_fast(); is_error(status)) return usable(text);
  const uint64_t timeout_ns = timeout_of(options);
  const Interrupt interrupt(options);
  const Issued issued = with_hooks(nullptr, TOWLINE_COLLECTIVE_BATCH, options, false, [&](uint64_t op_id) {
    return Issued{
        static_cast<int32_t>(run_messages(std::move(calls), TOWLINE_COLLECTIVE_BATCH, timeout_ns,
                                          Deadline::after(monotonic_now_ns(), timeout_ns), op_id, text))};
  });
  return Status{issued.status};
}

Work* Communicator::start_batch(std::vector<std::unique_ptr<OwnedCall>> calls,
                                const towline_collective_options_t* options) {
  std::string text;
  if (const Status status = usable(text); is_error(status)) fail(status, "{}", text);
  const uint64_t timeout_ns = timeout_of(options);
  const auto issue = [&](uint64_t op_id) {
    Work* const work = begin_messages(TOWLINE_COLLECTIVE_BATCH, std::move(calls), timeout_ns,
                                      Deadline::after(monotonic_now_ns(), timeout_ns), op_id);
    watch_messages(work);
    return Issued{.work = work};
  };
  return with_hooks(nullptr, TOWLINE_COLLECTIVE_BATCH, options, true, issue).work;
}

}  // namespace towline::collectives
