// The plans by which a proxy posts exchanges: one for each shape and rank.
#include <algorithm>
#include <chrono>
#include <thread>

#include "base/clock.h"
#include "base/log.h"
#include "collectives/experts/proxy.h"

namespace towline::collectives::experts {
namespace {

constexpr auto kBetweenPosts = std::chrono::microseconds(50);

}  // namespace

Slots Slots::of(uint64_t hidden, uint64_t max_tokens, uint32_t format) noexcept {
  const uint64_t slot = Layout::slot_bytes_of(hidden);
  const uint64_t used = Layout::used_bytes_of(hidden, format);
  return {slot, max_tokens, used, (format & kLogFmt) != 0 ? slot - used : 0};
}

// Everything that kernels have put is posted, and has ended: a plan that is released cancels its posts.
void Proxy::await_posts() {
  const auto waits = [](const Half& half, uint64_t ready) {
    return half.post != nullptr || half.seen != ready;
  };
  const auto any_waits = [&] {
    const std::lock_guard lock(mutex_);
    for (const std::unique_ptr<Remote>& remote : remotes_) {
      if (remote == nullptr || functions_.peer_health(remote->peer) == TOWLINE_HEALTH_LOST) continue;
      for (uint32_t half = 0; half < 2; ++half)
        if (waits(remote->halves[half], device::load_acquire(&image(*remote).ready[half][options_.rank])))
          return true;
    }
    return false;
  };
  const Deadline end = Deadline::after(monotonic_now_ns(), options_.timeout_ns);
  while (any_waits() && !end.passed(monotonic_now_ns())) std::this_thread::sleep_for(kBetweenPosts);
}

// Also releases the plans of shapes that are not kept any more.
template <class Shape>
void Proxy::find_way(Remote& remote, std::vector<Way<Shape>>& ways, const KeptShapes<Shape>& kept,
                     const typename KeptShapes<Shape>::Kept& wanted) {
  if (std::any_of(ways.begin(), ways.end(),
                  [&](const Way<Shape>& way) { return way.number == wanted.number; }))
    return;
  int32_t status = 0;
  towline_plan_t* const plan = make_plan(remote, wanted.shape, options_.timeout_ns, status);
  if (plan == nullptr) {
    TOWLINE_LOG(kWarning, "experts: rank {} finds no way to rank {}: {}", options_.rank, remote.rank,
                functions_.last_error());
    return;
  }
  const std::lock_guard lock(mutex_);
  std::erase_if(ways, [&](const Way<Shape>& way) {
    if (kept.has(way.number)) return false;
    functions_.plan_release(way.plan);
    return true;
  });
  ways.push_back({wanted.number, wanted.shape, plan});
}

// Of a rank that is being connected. Replays use them without a call, so one that can't be found is told here. Throws Error.
template <class Shape>
void Proxy::find_recorded_ways(const Remote& remote, std::vector<Way<Shape>>& ways,
                               const KeptShapes<Shape>& kept, Deadline end) const {
  for (const auto& each : kept.all()) {
    if (!each.recorded) continue;
    int32_t status = 0;
    towline_plan_t* const plan =
        make_plan(remote, each.shape, std::max<uint64_t>(end.remaining_ns(monotonic_now_ns()), 1), status);
    require(status, "find a way of what graphs have recorded", remote.rank);
    ways.push_back({each.number, each.shape, plan});
  }
}
template void Proxy::find_recorded_ways(const Remote&, std::vector<Way<Slots>>&, const KeptShapes<Slots>&,
                                        Deadline) const;
template void Proxy::find_recorded_ways(const Remote&, std::vector<Way<BatchRows>>&,
                                        const KeptShapes<BatchRows>&, Deadline) const;

template <class Shape>
uint32_t Proxy::find_ways(std::vector<Way<Shape>> Remote::*ways, KeptShapes<Shape>& kept, const Shape& shape,
                          uint32_t ranks, bool records) {
  if (kept.replaces(shape, records)) await_posts();
  const uint32_t number = kept.use(shape, records);
  for (uint32_t rank = 0; rank < ranks; ++rank)
    if (Remote* const remote = remotes_[rank].get())
      find_way(*remote, remote->*ways, kept, kept.all().back());
  return number;
}

uint32_t Proxy::prepare(const Slots& slots, uint32_t ranks, bool records) {
  return find_ways(&Remote::ways, slots_, slots, ranks, records);
}

uint32_t Proxy::prepare(const BatchRows& rows, uint32_t ranks, bool records) {
  register_stage(rows);
  return find_ways(&Remote::batch_ways, batches_, rows, ranks, records);
}

}  // namespace towline::collectives::experts
