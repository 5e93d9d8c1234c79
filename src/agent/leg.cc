#include "agent/leg.h"

#include "agent/agent.h"
#include "agent/link.h"
#include "agent/worker.h"

namespace towline {

bool Leg::has_link_to_itself() const noexcept {
  const Link& link = *parts_[0].link;
  return whole_.submitted && whole_.link == &link && link.parts_in_flight() == 1;
}

Status Leg::start(uint64_t begin, uint64_t end, uint64_t deadline_ns, uint32_t submit_flags) noexcept {
  if (!take(kBusy)) return Status::kAgain;
  const int32_t gate = gate_.load(std::memory_order_seq_cst);
  if (gate < 0) {
    phase_.store(kReady, std::memory_order_release);
    return refusal_at(gate);
  }
  Part& part = parts_[0];
  part.begin = begin;
  part.end = end;
  last_result_ = plugin::sized<towline_part_result>();
  enter_post(agent().now_ns(), deadline_ns);
  Status status = Status::kInProgress;
  if (usable(part)) {
    const bool alone = has_link_to_itself();
    status = submit_now(part, nullptr, submit_flags);
    part.alone = part.alone || (alone && part.submitted);
  } else if ((submit_flags & TOWLINE_SUBMIT_CACHED) != 0) {
    status = Status::kAgain;  // a later retry would lack the flag
  } else {
    part.worker->establish_later(part);
  }
  if (!is_error(status)) return status;
  ended_.store(true, std::memory_order_relaxed);
  shares_.store(0, std::memory_order_release);  // busy without shares is borrowed: see try_release()
  phase_.store(kReady, std::memory_order_release);
  return status;
}

bool Leg::borrow(uint32_t link_generation) noexcept {
  if (!take(kBusy)) return false;
  const Part& part = parts_[0];
  if (gate_.load(std::memory_order_seq_cst) == kOpen && usable(part) &&
      part.link_generation == link_generation)
    return true;
  phase_.store(kReady, std::memory_order_release);
  return false;
}

void Leg::give_back(uint64_t moved_bytes, uint64_t took_ns) noexcept {
  const Part& part = parts_[0];
  if (moved_bytes != 0) count_transfer(*part.link, part.worker->index(), moved_bytes, took_ns);
  phase_.store(kReady, std::memory_order_release);
}

void Leg::abandon() noexcept {
  end(Status::kCancelled, parts_[0].worker);
  hurry(parts_[0]);
}

void Leg::end_for_good() noexcept {
  if (ready()) (void)retire(kNoDeadline);
  agent().remove_post(*this);
}

}  // namespace towline
