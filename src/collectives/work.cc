#include "collectives/work.h"

#include "base/os/futex.h"
#include "base/sync/spin.h"
#include "collectives/call_out.h"
#include "collectives/calls/call.h"

namespace towline::collectives {

OwnedCall::OwnedCall(const towline_collective_t& call, int size) : call_(call) {
  if (!has_lists(call)) return;
  const auto n = static_cast<size_t>(size);
  numbers_.reserve(4 * n);
  pointers_.reserve(2 * n);
  const auto keep_numbers = [&](const uint64_t*& numbers) {
    if (numbers == nullptr) return;
    const size_t at = numbers_.size();
    numbers_.insert(numbers_.end(), numbers, numbers + n);
    numbers = numbers_.data() + at;
  };
  keep_numbers(call_.input_counts);
  keep_numbers(call_.output_counts);
  keep_numbers(call_.input_offsets);
  keep_numbers(call_.output_offsets);
  if (call_.inputs != nullptr) {
    pointers_.insert(pointers_.end(), call_.inputs, call_.inputs + n);
    call_.inputs = pointers_.data();
  }
  if (call_.outputs != nullptr) {
    const size_t at = pointers_.size();
    pointers_.insert(pointers_.end(), call_.outputs, call_.outputs + n);
    call_.outputs = const_cast<void* const*>(pointers_.data() + at);
  }
}

void Work::on(uint32_t event, towline_work_fn function, void* context) {
  {
    const std::lock_guard lock(listeners_mutex_);
    const uint32_t state = this->state();
    const bool now = (event == TOWLINE_WORK_START && state != TOWLINE_WORK_NOT_STARTED) ||
                     (event == TOWLINE_WORK_END && state >= TOWLINE_WORK_COMPLETED);
    if (!now) {
      listeners_.push_back({event, function, context});
      return;
    }
  }
  const CallOut call_out(communicator_.get());
  function(context, reinterpret_cast<towline_work_t*>(this));
}

void Work::call_all(uint32_t event) {
  std::vector<Listener> called;
  {
    const std::lock_guard lock(listeners_mutex_);
    for (const Listener& listener : listeners_)
      if (listener.event == event) called.push_back(listener);
  }
  const CallOut call_out(communicator_.get());
  for (const Listener& listener : called)
    listener.function(listener.context, reinterpret_cast<towline_work_t*>(this));
}

void Work::begin() {
  {
    const std::lock_guard lock(listeners_mutex_);
    if (state() != TOWLINE_WORK_NOT_STARTED) return;
    state_.store(TOWLINE_WORK_IN_PROGRESS, std::memory_order_release);
  }
  call_all(TOWLINE_WORK_START);
}

void Work::finish(Status status, std::string text) {
  {
    const std::lock_guard lock(listeners_mutex_);
    status_ = status;
    text_ = std::move(text);
    const uint32_t state = status == Status::kOk         ? TOWLINE_WORK_COMPLETED
                           : status == Status::kTimedOut ? TOWLINE_WORK_TIMED_OUT
                                                         : TOWLINE_WORK_ERROR;
    state_.store(state, std::memory_order_release);
  }
  // A waking is a system call, and a thread that waits for a message seldom sleeps.
  full_fence();
  if (sleepers_.load(std::memory_order_relaxed) != 0) futex_wake_all(state_);
  call_all(TOWLINE_WORK_END);
}

void Work::sleep(Deadline until) const noexcept {
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  for (;;) {
    const uint32_t seen = state_.load(std::memory_order_seq_cst);
    if (seen >= TOWLINE_WORK_COMPLETED || until.passed(monotonic_now_ns())) break;
    futex_wait(state_, seen, until.ns());
  }
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace towline::collectives
