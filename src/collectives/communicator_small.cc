// Operations of a few bytes on the CPU backend, for which what a communicator does takes as long as the operation.
#include "collectives/checks.h"
#include "collectives/communicator.h"
#include "collectives/cpu_backend.h"

namespace towline::collectives {
namespace {

// Whether an operation moves so little that its copies are over within a moment. The call need not have been checked.
bool is_small(const towline_collective_t& call, int size) noexcept {
  constexpr uint32_t kOps = 1U << TOWLINE_COLLECTIVE_BARRIER | 1U << TOWLINE_COLLECTIVE_ALL_REDUCE |
                            1U << TOWLINE_COLLECTIVE_REDUCE | 1U << TOWLINE_COLLECTIVE_BROADCAST |
                            1U << TOWLINE_COLLECTIVE_ALL_GATHER | 1U << TOWLINE_COLLECTIVE_REDUCE_SCATTER |
                            1U << TOWLINE_COLLECTIVE_GATHER | 1U << TOWLINE_COLLECTIVE_SCATTER |
                            1U << TOWLINE_COLLECTIVE_ALL_TO_ALL;
  constexpr uint64_t kElements = 128;  // of all ranks together
  return call.op < 32 && (kOps >> call.op & 1) != 0 && call.count <= kElements &&
         call.count * static_cast<uint64_t>(size) <= kElements && call.reduction != TOWLINE_REDUCE_PREMUL_SUM;
}

}  // namespace

// What the communicator does for a small operation: its number, its record and its deadline, when it begins to wait for
// the other ranks; or its number and its record when it is over.
class Communicator::Beside final : public LateDeadline {
 public:
  Beside(Communicator& self, const towline_collective_t& call, uint64_t timeout_ns) noexcept
      : self_(self), call_(call), timeout_ns_(timeout_ns) {}

  // `arrived`: ShmGroup::arrived_ticks.
  void end(Status status, uint64_t arrived) noexcept {
    FlightRecorder& recorder = self_.recorder_;
    if (!asked()) issue();
    const bool at_once = !asked() || arrived == ShmGroup::kNoWait;
    if (is_error(status) || (!at_once && arrived == 0) || !recorder.by_ticks())
      recorder.end(record_, status);
    else
      recorder.end_at(at_once ? created_ : arrived, record_, status);
  }

 private:
  void issue() noexcept {
    created_ = self_.recorder_.now();
    record_ = self_.recorder_.issue_at(created_, &call_, call_.op, next_op_id(), timeout_ns_);
  }
  Deadline work_out() noexcept override {
    issue();
    return deadline_in(timeout_ns_);
  }

  Communicator& self_;
  const towline_collective_t& call_;
  const uint64_t timeout_ns_;
  uint64_t created_ = 0;
  uint64_t record_ = 0;
};

bool Communicator::perform_small(const towline_collective_t& call, uint64_t timeout_ns, std::string& text,
                                 Status& status) {
  if (!is_small(call, options_.size) || queued_.load(std::memory_order_acquire) != 0 || finishes_here())
    return false;
  Beside beside(*this, call, timeout_ns);
  uint64_t arrived = 0;
  {
    const std::unique_lock lock(perform_mutex_, std::try_to_lock);
    if (!lock.owns_lock()) return false;
    const bool again = cpu_->is_last(call);
    if (!again) check_call(call);
    status = cpu_->perform_small(call, again, number_++, beside);
    if (is_error(status)) text = cpu_->breaker().breakage().text;
    arrived = cpu_->group().arrived_ticks();
  }
  beside.end(status, arrived);
  if (is_error(status)) after_failure(status, text);
  return true;
}

}  // namespace towline::collectives
