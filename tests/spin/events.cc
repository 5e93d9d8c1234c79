#include "spin/events.h"

#include <algorithm>
#include <array>
#include <string>

#include "base/clock.h"

namespace towline::spin {

int32_t Events::take(uint64_t most) {
  std::array<towline_event_t, 8> events;
  const int32_t count = world_.answered(towline_queue_next(
      queue_, events.data(), std::min<uint64_t>(most, events.size()), sizeof events.front()));
  for (int32_t i = 0; i < count; ++i) {
    towline_event_t& event = events[static_cast<std::size_t>(i)];
    if (event.kind == TOWLINE_EVENT_NOTICE || event.kind == TOWLINE_EVENT_PEER_HEALTH) {
      if (!other_) give_up("an event came that nobody asked for");
      other_(event);
    } else {
      auto* const asked = static_cast<Asked*>(event.user_data);
      if (asked == nullptr || asked->kind != event.kind) give_up("an event came that nobody asked for");
      if (asked->told) give_up("an event of kind " + std::to_string(event.kind) + " came twice");
      asked->told = true;
      asked->status = event.status;
    }
    ++world_.events;
    towline_event_release(&event);
  }
  return count;
}

// By the clock: the queue of a caller-driven agent answers at once, again and again, while the agent closes.
void Events::wait_for(const Asked& asked) {
  constexpr uint64_t kPauseNs = 2'000'000;
  const uint64_t until_ns = monotonic_now_ns() + kPatienceNs;
  while (!asked.told) {
    take(1);
    if (asked.told) return;
    if (monotonic_now_ns() > until_ns)
      give_up("an event of kind " + std::to_string(asked.kind) + " does not come");
    world_.answered(towline_queue_wait(queue_, monotonic_now_ns() + kPauseNs));
    world_.drive();
  }
}

}  // namespace towline::spin
