// Posts under a limit of bandwidth: one slice of a part at a time, as soon as every limit lets it begin. And the calls of
// the application's hooks.
#include <algorithm>
#include <utility>

#include "agent/agent.h"
#include "agent/pace.h"
#include "agent/post.h"
#include "agent/worker.h"

namespace towline {

template <class Visit>
void Post::for_each_pace(Visit&& visit) noexcept {
  Limits& limits = agent().limits();
  visit(limits.all);
  visit(limits.by_priority[options_.urgent ? 1 : 0]);
  visit(remote().peer()->pace());
  if (options_.pace != nullptr) visit(*options_.pace);
}

bool Post::find_paced() noexcept {
  bool found = false;
  for_each_pace([&](const Pace& pace) { found = found || pace.rate() != 0; });
  for (uint32_t i = 0; i < part_count_; ++i) restore_part(i);
  return found;
}

// A paced run moves the part's begin on.
void Post::restore_part(uint32_t index) noexcept {
  Part& part = parts_[index];
  part.begin = index == 0 ? 0 : parts_[index - 1].end;
  part.slice_end = part.end;
}

bool Post::may_begin(Part& part, uint64_t now_ns) noexcept {
  uint64_t opens_ns = 0;
  for_each_pace([&](const Pace& pace) { opens_ns = std::max(opens_ns, pace.opens_ns()); });
  if (opens_ns <= now_ns) return true;
  part.worker->step_at(opens_ns);
  return false;
}

uint64_t Post::end_of_slice(const Part& part) noexcept {
  uint64_t bytes = part.end - part.begin;
  for_each_pace([&](const Pace& pace) { bytes = std::min(bytes, pace.slice_bytes()); });
  return part.begin + bytes;
}

void Post::charge(uint64_t bytes) noexcept {
  const uint64_t now_ns = agent().now_ns();
  for_each_pace([&](Pace& pace) { pace.charge(bytes, now_ns); });
}

// One slice of several. After a failure none follows, and everything behind it has failed too.
void Post::slice_ended(Part& part, towline_part_result result) noexcept {
  if (result.status != TOWLINE_OK) {
    if (result.failed_begin >= result.failed_end) result.failed_begin = part.begin;
    result.failed_end = part.end;
    return finish_part(part, result);
  }
  bytes_.fetch_add(part.slice_end - part.begin, std::memory_order_relaxed);
  part.begin = std::exchange(part.slice_end, part.end);
  part.worker->establish_later(part);
}

bool Post::chunk_may_begin() noexcept { return !paced_ || may_begin(parts_[0], agent().now_ns()); }

void Post::chunk_begins(uint64_t bytes) noexcept {
  if (paced_) charge(bytes);
}

// ---- hooks

towline_operation_t Post::describe_operation() const noexcept {
  return {sizeof(towline_operation_t),
          this,
          route_.op(),
          options_.urgent ? uint32_t{TOWLINE_PRIORITY_LATENCY} : uint32_t{TOWLINE_PRIORITY_BULK},
          plan_.view().bytes,
          0,
          remote().peer()->name().c_str(),
          backend_ == nullptr ? "staged" : backend_->name.c_str(),
          TOWLINE_IN_PROGRESS,
          0};
}

void Post::call_begin() noexcept {
  const towline_hooks_t* const hooks = agent().hooks();
  if (hooks == nullptr) return;
  hooked_ = true;
  if (hooks->begin == nullptr) return;
  const towline_operation_t operation = describe_operation();
  hooks->begin(hooks->context, &operation);
}

void Post::call_end(Status status) noexcept {
  const towline_hooks_t* const hooks = agent().hooks();
  if (hooks == nullptr || hooks->end == nullptr) return;
  towline_operation_t operation = describe_operation();
  operation.status = static_cast<int32_t>(status);
  operation.moved_bytes = bytes_.load(std::memory_order_relaxed);
  hooks->end(hooks->context, &operation);
}

}  // namespace towline
