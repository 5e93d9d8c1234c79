#include "collectives/shm_group.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/error.h"
#include "base/futex.h"
#include "base/stream_copy.h"

namespace towline::collectives {
namespace {

constexpr uint64_t align_up(uint64_t value, uint64_t to) { return (value + to - 1) / to * to; }

// Sleeps are cut to this, so that what nobody announced (a rank that ended half-way through waking us) is
// seen.
constexpr uint64_t kLongestSleepNs = 50 * kMillisecondNs;
constexpr uint64_t kYieldNs = 200 * kMicrosecondNs;
// A yield that took so long gave the processor to somebody for a time slice, and that is no rank that we wait
// for. Who sleeps instead is put before such programs when it is woken: so the next waits sleep at once.
constexpr uint64_t kLongYieldNs = 500 * kMicrosecondNs;
constexpr uint32_t kSleepyWaits = 256;
// How often a wait pauses before it yields. A pause takes 15 to 60 ns. Where another rank runs on this very
// processor (the scheduler put two on one, or other programs want processors too), every pause is lost: with
// 2000 of them an all_reduce of 8 bytes took 35 us instead of 6. So there are few, and fewer still after
// waits that they did not end; yielding takes 0.2 us when nobody else wants to run, which nobody notices.
constexpr uint32_t kMostPauses = 256;
constexpr uint32_t kLeastPauses = 8;

}  // namespace

uint64_t ShmGroup::bytes(uint32_t ranks, const ShmSettings& settings) {
  return align_up(sizeof(Front) + 128, 4096) + align_up(ranks * sizeof(RankBlock), 4096) +
         align_up(uint64_t{ranks} * ranks * sizeof(Ring), 4096) + uint64_t{ranks} * 2 * settings.stage_bytes +
         uint64_t{ranks} * ranks * settings.channel_bytes;
}

ShmGroup::ShmGroup(Mapping mapping, int index, std::vector<int> ranks, const ShmSettings& settings,
                   Breaker& breaker)
    : mapping_(std::move(mapping)),
      index_(index),
      ranks_(std::move(ranks)),
      settings_(settings),
      breaker_(breaker),
      pauses_(kMostPauses),
      sources_(ranks_.size()),
      counts_(ranks_.size() * ranks_.size()) {
  const auto n = static_cast<uint64_t>(size());
  TOWLINE_CHECK(settings_.stage_bytes % 4096 == 0 && settings_.channel_bytes % 4096 == 0);
  TOWLINE_CHECK(mapping_.bytes() >= bytes(static_cast<uint32_t>(n), settings_));
  uint8_t* at = mapping_.address() + align_up(sizeof(Front) + 128, 4096);
  blocks_ = reinterpret_cast<RankBlock*>(at);
  at += align_up(n * sizeof(RankBlock), 4096);
  rings_ = reinterpret_cast<Ring*>(at);
  at += align_up(n * n * sizeof(Ring), 4096);
  stages_ = at;
  ring_data_ = at + n * 2 * settings_.stage_bytes;
}

// ---- Sleeping

uint32_t ShmGroup::announce() noexcept {
  Front& all = front();
  all.sleepers.fetch_add(1, std::memory_order_seq_cst);
  return all.epoch.load(std::memory_order_seq_cst);
}

void ShmGroup::sleep(uint32_t seen, uint64_t until_ns) noexcept {
  const uint64_t longest = monotonic_now_ns() + kLongestSleepNs;
  futex_wait(front().epoch, seen, std::min(until_ns, longest), FutexScope::kShared);
}

void ShmGroup::retire() noexcept { front().sleepers.fetch_sub(1, std::memory_order_relaxed); }

void ShmGroup::notify() noexcept {
  Front& all = front();
  full_fence();
  if (all.sleepers.load(std::memory_order_relaxed) == 0) return;
  all.epoch.fetch_add(1, std::memory_order_seq_cst);
  futex_wake_all(all.epoch, FutexScope::kShared);
}

// ---- Breaking

Breakage ShmGroup::break_group(const Breakage& reason) noexcept {
  Front& all = front();
  uint32_t sound = 0;
  if (all.state.compare_exchange_strong(sound, 1, std::memory_order_acq_rel)) {
    all.status = static_cast<int32_t>(reason.status);
    const size_t length = std::min(reason.text.size(), sizeof all.text - 1);
    std::memcpy(all.text, reason.text.data(), length);
    all.text[length] = 0;
    all.state.store(2, std::memory_order_release);
    all.epoch.fetch_add(1, std::memory_order_seq_cst);
    futex_wake_all(all.epoch, FutexScope::kShared);
    return reason;
  }
  return breakage();
}

bool ShmGroup::broken() const noexcept { return front().state.load(std::memory_order_acquire) != 0; }

Breakage ShmGroup::breakage() const {
  const Front& all = front();
  SpinWait spin(1000, 10000);
  while (all.state.load(std::memory_order_acquire) == 1 && spin.again()) {
  }
  if (all.state.load(std::memory_order_acquire) != 2)
    return {Status::kPeerLost, "a rank ended while it was breaking the communicator"};
  char text[sizeof all.text];
  std::memcpy(text, all.text, sizeof text);
  text[sizeof text - 1] = 0;
  return {Status{all.status}, text};
}

void ShmGroup::leave() noexcept {
  block(index_).left.store(1, std::memory_order_release);
  notify();
}

bool ShmGroup::has_left(int index) const noexcept {
  return block(index).left.load(std::memory_order_acquire) != 0;
}

std::vector<int> ShmGroup::absent() const {
  const auto phase_of = [this](int index) {
    const RankBlock& its = block(index);
    return std::max(its.posted[0].phase.load(std::memory_order_acquire),
                    its.posted[1].phase.load(std::memory_order_acquire));
  };
  const uint64_t mine = phase_of(index_);
  std::vector<int> ranks;
  for (int index = 0; index < size(); ++index)
    if (phase_of(index) < mine) ranks.push_back(rank(index));
  return ranks;
}

// ---- Phases

Status ShmGroup::first_phase(const Call& call, const void* inlined, uint64_t bytes) {
  Posted& mine = block(index_).posted[next_phase() & 1];
  mine.header = current_ = call.header;
  if (bytes != 0) std::memcpy(mine.inlined, inlined, bytes);
  if (const Status status = post_and_wait(call.deadline); is_error(status)) return status;
  for (int other = 0; other < size(); ++other) {
    if (!(block(other).posted[phase_ & 1].header == call.header)) return compare_headers(call.header);
  }
  return Status::kOk;
}

Status ShmGroup::phase(Deadline deadline) { return post_and_wait(deadline); }

Status ShmGroup::post_and_wait(Deadline deadline) {
  const uint64_t phase = ++phase_;
  block(index_).posted[phase & 1].phase.store(phase, std::memory_order_release);
  notify();
  for (int step = 1; step < size(); ++step) {
    int other = index_ + step;
    if (other >= size()) other -= size();
    if (block(other).posted[phase & 1].phase.load(std::memory_order_acquire) == phase) continue;
    if (const Status status = wait_for(other, phase, deadline); is_error(status)) return status;
  }
  return Status::kOk;
}

Status ShmGroup::wait_for(int index, uint64_t phase, Deadline deadline) {
  const std::atomic<uint64_t>& posted = block(index).posted[phase & 1].phase;
  const auto arrived = [&] { return posted.load(std::memory_order_acquire) == phase; };
  const auto why_broken = [&] {
    if (!broken()) return breaker_.status();
    return breaker_.record(breakage());
  };
  if (!settings_.crowded) {
    for (uint32_t turn = 0; turn < pauses_; ++turn) {
      if (arrived()) {
        pauses_ = std::min(2 * pauses_, kMostPauses);
        return Status::kOk;
      }
      cpu_pause();
    }
    pauses_ = std::max(pauses_ / 2, kLeastPauses);
  }
  uint64_t now = monotonic_now_ns();
  const uint64_t yield_until = sleepy_waits_ == 0 ? now + kYieldNs : now;
  if (sleepy_waits_ != 0) --sleepy_waits_;
  while (now < yield_until) {
    if (arrived()) return Status::kOk;
    if (broken() || breaker_.broken()) return why_broken();
    if (deadline.passed(now)) return fail_late(index, phase);
    const uint64_t before = now;
    sched_yield();
    now = monotonic_now_ns();
    if (now - before > kLongYieldNs && !arrived()) sleepy_waits_ = kSleepyWaits;
  }
  for (;;) {
    const uint32_t seen = announce();
    const bool there = arrived();
    const bool wrong = broken() || breaker_.broken();
    if (!there && !wrong) sleep(seen, deadline.ns());
    retire();
    if (there) return Status::kOk;
    if (wrong) return why_broken();
    if (has_left(index) && !arrived()) {
      return breaker_.raise(Status::kPeerLost,
                            fmt::format("rank {} closed the communicator before {}",
                                        ranks_[static_cast<size_t>(index)], describe(current_)));
    }
    if (deadline.passed(monotonic_now_ns()) && !arrived()) return fail_late(index, phase);
  }
}

Status ShmGroup::fail_late(int, uint64_t phase) {
  std::string late;
  for (int other = 0; other < size(); ++other) {
    if (block(other).posted[phase & 1].phase.load(std::memory_order_acquire) == phase) continue;
    late += fmt::format("{}{}", late.empty() ? "" : ", ", ranks_[static_cast<size_t>(other)]);
  }
  return breaker_.raise(Status::kTimedOut,
                        fmt::format("rank {} timed out in {}: no sign of rank {}",
                                    ranks_[static_cast<size_t>(index_)], describe(current_), late));
}

Status ShmGroup::compare_headers(const Header&) {
  const Header& first = block(0).posted[phase_ & 1].header;
  for (int other = 1; other < size(); ++other) {
    const Header& header = block(other).posted[phase_ & 1].header;
    if (first == header) continue;
    return breaker_.raise(Status::kMismatch,
                          describe_mismatch(ranks_[0], first, ranks_[static_cast<size_t>(other)], header));
  }
  return Status::kOk;
}

void ShmGroup::copy_out(uint8_t* to, const uint8_t* from, uint64_t bytes, bool streaming) const noexcept {
  if (streaming)
    stream_copy(to, from, bytes);
  else if (bytes != 0)  // of nothing the addresses may be null
    std::memcpy(to, from, bytes);
}

// ---- Channels

size_t ShmGroup::channel_write(int to, const void* data, size_t bytes) noexcept {
  Ring& ring = this->ring(index_, to);
  uint8_t* base = ring_data(index_, to);
  const uint64_t head = ring.head.load(std::memory_order_relaxed);
  const uint64_t room = settings_.channel_bytes - (head - ring.tail.load(std::memory_order_acquire));
  const uint64_t count = std::min<uint64_t>(bytes, room);
  if (count == 0) return 0;
  const uint64_t at = head % settings_.channel_bytes;
  const uint64_t until_end = std::min(count, settings_.channel_bytes - at);
  std::memcpy(base + at, data, until_end);
  std::memcpy(base, static_cast<const uint8_t*>(data) + until_end, count - until_end);
  ring.head.store(head + count, std::memory_order_release);
  notify();
  return count;
}

size_t ShmGroup::channel_read(int from, void* data, size_t bytes) noexcept {
  Ring& ring = this->ring(from, index_);
  const uint8_t* base = ring_data(from, index_);
  const uint64_t tail = ring.tail.load(std::memory_order_relaxed);
  const uint64_t there = ring.head.load(std::memory_order_acquire) - tail;
  const uint64_t count = std::min<uint64_t>(bytes, there);
  if (count == 0) return 0;
  const uint64_t at = tail % settings_.channel_bytes;
  const uint64_t until_end = std::min(count, settings_.channel_bytes - at);
  std::memcpy(data, base + at, until_end);
  std::memcpy(static_cast<uint8_t*>(data) + until_end, base, count - until_end);
  ring.tail.store(tail + count, std::memory_order_release);
  notify();
  return count;
}

bool ShmGroup::channel_can_write(int to) const noexcept {
  const Ring& ring = this->ring(index_, to);
  return ring.head.load(std::memory_order_relaxed) - ring.tail.load(std::memory_order_acquire) <
         settings_.channel_bytes;
}

bool ShmGroup::channel_can_read(int from) const noexcept {
  const Ring& ring = this->ring(from, index_);
  return ring.head.load(std::memory_order_acquire) != ring.tail.load(std::memory_order_relaxed);
}

}  // namespace towline::collectives
