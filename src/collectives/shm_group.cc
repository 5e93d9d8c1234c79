#include "collectives/shm_group.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/copy/copy.h"
#include "base/copy/stream_copy.h"
#include "base/error.h"
#include "base/id.h"
#include "base/os/futex.h"
#include "base/ticks.h"
#include "collectives/interrupt.h"

namespace towline::collectives {
namespace {

constexpr uint64_t align_up(uint64_t value, uint64_t to) { return (value + to - 1) / to * to; }

// The longest sleep. It bounds the delay if a rank dies before it wakes this one.
constexpr uint64_t kLongestSleepNs = 50 * kMillisecondNs;
constexpr uint64_t kYieldNs = 200 * kMicrosecondNs;
// A yield that takes this long gave the processor to an unrelated program for a time slice. A sleeper would
// run before such programs when it is woken, so the next waits sleep at once.
constexpr uint64_t kLongYieldNs = 500 * kMicrosecondNs;
constexpr uint32_t kSleepyWaits = 256;
// How often a wait pauses before it yields. A pause takes 15 to 60 ns. If another rank shares this processor
// (the scheduler put both on it, or other programs want processors too), every pause is wasted: with 2000 of
// them an all_reduce of 8 bytes took 35 us instead of 6. So the limit is low, and lower still after waits
// that pausing did not end. A yield takes only 0.2 us if no other thread wants to run.
constexpr uint32_t kMostPauses = 256;
constexpr uint32_t kLeastPauses = 8;

// How many bytes of a part a rank asks for before it writes them. After an operation in which it only gave, it has nothing
// else to wait for. After one in which it read, other lines are on their way, and AMD's processors (Zen 4 was measured) then
// do better if the stores ask for all but a few: lines of 1 to 4 KiB asked for early cost an operation up to a third of its
// time. Intel's gain as much by asking for all.
struct EarlyLines {
  uint64_t whole_after_reading;
  uint64_t whole_after_giving;
  uint64_t first_of_more;  // of parts that are larger
};
const EarlyLines& early_lines() noexcept {
#if defined(__x86_64__)
  static const EarlyLines lines =
      __builtin_cpu_is("amd") ? EarlyLines{512, 4096, 256} : EarlyLines{4096, 4096, 0};
#else
  static constexpr EarlyLines lines{4096, 4096, 0};
#endif
  return lines;
}

// At most a line's data, for which a call of memcpy takes as long as the copy.
void copy_to_line(uint8_t* to, const void* from, uint64_t bytes) noexcept {
  const auto* const source = static_cast<const uint8_t*>(from);
  const auto ends = [&](auto word) {  // two words, which overlap where there is less
    std::memcpy(&word, source, sizeof word);
    auto last = word;
    std::memcpy(&last, source + bytes - sizeof last, sizeof last);
    std::memcpy(to, &word, sizeof word);
    std::memcpy(to + bytes - sizeof last, &last, sizeof last);
  };
  if (bytes > 16) {
    std::memcpy(to, source, bytes);
  } else if (bytes >= 8) {
    ends(uint64_t{});
  } else if (bytes >= 4) {
    ends(uint32_t{});
  } else {
    for (uint64_t i = 0; i < bytes; ++i) to[i] = source[i];
  }
}

}  // namespace

uint64_t ShmGroup::bytes(uint32_t ranks, const ShmSettings& settings) {
  return align_up(sizeof(Front) + 128, 4096) + align_up(ranks * sizeof(RankBlock), 4096) +
         align_up(uint64_t{ranks} * ranks * sizeof(Ring), 4096) + uint64_t{ranks} * kGivenBytes +
         uint64_t{ranks} * 2 * settings.stage_bytes + uint64_t{ranks} * ranks * settings.channel_bytes;
}

ShmGroup::ShmGroup(Mapping mapping, int index, std::vector<int> ranks, const ShmSettings& settings,
                   Breaker& breaker)
    : mapping_(std::move(mapping)),
      index_(index),
      ranks_(std::move(ranks)),
      size_(static_cast<int>(ranks_.size())),
      settings_(settings),
      share_bytes_(settings.stage_bytes / ranks_.size() / kCacheLineBytes * kCacheLineBytes),
      breaker_(breaker),
      heads_(ranks_.size()),
      tails_seen_(ranks_.size()),
      pauses_(kMostPauses),
      token_(random_u64()),
      sources_(ranks_.size()),
      counts_(ranks_.size() * ranks_.size()) {
  const auto n = static_cast<uint64_t>(size());
  TOWLINE_CHECK(settings_.loose_bytes <= kGivenBytes / 4);
  TOWLINE_CHECK(settings_.stage_bytes % 4096 == 0 && settings_.channel_bytes % 4096 == 0);
  TOWLINE_CHECK(mapping_.bytes() >= bytes(static_cast<uint32_t>(n), settings_));
  uint8_t* at = mapping_.address() + align_up(sizeof(Front) + 128, 4096);
  blocks_ = reinterpret_cast<RankBlock*>(at);
  at += align_up(n * sizeof(RankBlock), 4096);
  rings_ = reinterpret_cast<Ring*>(at);
  at += align_up(n * n * sizeof(Ring), 4096);
  given_ = at;
  at += n * kGivenBytes;
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

void ShmGroup::wake_sleepers() noexcept {
  Front& all = front();
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
  const Status status{all.status};
  return {is_error(status) ? status : Status::kProtocol, text};
}

void ShmGroup::leave() {
  if (!broken()) static_cast<void>(catch_up(phase_));
  RankBlock& mine = block(index_);
  mine.done.store(~uint64_t{0}, std::memory_order_release);  // it will read nothing more
  mine.left.store(1, std::memory_order_release);
  front().leavers.fetch_add(1, std::memory_order_release);
  notify();
}

bool ShmGroup::has_left(int index) const noexcept {
  return block(index).left.load(std::memory_order_acquire) != 0;
}

std::vector<int> ShmGroup::absent() const {
  const auto phase_of = [this](int index) {
    uint64_t last = 0;
    for (const Posted& posted : block(index).posted)
      last = std::max(last, posted.phase.load(std::memory_order_acquire));
    return last;
  };
  const uint64_t mine = phase_of(index_);
  std::vector<int> ranks;
  for (int index = 0; index < size(); ++index)
    if (phase_of(index) < mine) ranks.push_back(rank(index));
  return ranks;
}

// ---- Phases

void ShmGroup::post(const Header* header) noexcept {
  Posted& mine = line(index_, ++phase_);
  if (header != nullptr) {
    mine.phase.store(0, std::memory_order_relaxed);
    uint64_t words[kHeaderWords];
    std::memcpy(words, header, sizeof words);
    for (size_t i = 0; i < kHeaderWords; ++i) mine.header[i].store(words[i], std::memory_order_release);
  }
  given_then_[phase_ % kLines] = given_bytes_;
  mine.phase.store(phase_, std::memory_order_release);
  notify();
  prefetch_for_write(&line(index_, phase_ + 1));  // another rank has read it in the round before
}

Status ShmGroup::first_phase(const Call& call, const void* inlined, uint64_t bytes) {
  current_ = call.header;
  const auto ends_by = [&] { return call.ends_by(); };
  if (const Status status = make_room(ends_by); is_error(status)) return status;
  copy_to_line(line(index_, phase_ + 1).inlined, inlined, bytes);
  if (const Status status = post_and_wait(&call.header, ends_by); is_error(status)) return status;
  for (int other = 0; other < size(); ++other) {
    if (other == index_ || agrees_with(other)) continue;
    // All ranks name the same two.
    int odd = 1;
    while (odd < size() - 1 && agree(0, odd, phase_)) ++odd;
    return fail_mismatch(0, odd, phase_);
  }
  return Status::kOk;
}

Status ShmGroup::phase(Deadline deadline) {
  const auto ends_by = [&] { return deadline; };
  if (const Status status = make_room(ends_by); is_error(status)) return status;
  return post_and_wait(nullptr, ends_by);
}

template <typename EndsBy>
Status ShmGroup::post_and_wait(const Header* header, const EndsBy& ends_by) {
  ++stage_;
  post(header);
  for (int step = 1; step < size(); ++step) {
    const int other = after(index_, step);
    if (has_posted(other, phase_)) continue;
    if (const Status status = wait_for(other, ends_by(), Late::kEveryone); is_error(status)) return status;
  }
  if (last_lockstep_ == phase_ - 1) {
    done_.store(phase_ - 1, std::memory_order_relaxed);
  } else if (const Status status = catch_up(phase_ - 1); is_error(status)) {
    return status;
  }
  all_done_ = std::max(all_done_, last_lockstep_);
  last_lockstep_ = phase_;
  return Status::kOk;
}

Status ShmGroup::wait_for(int index, Deadline deadline, Late late) {
  if (last_lockstep_ != phase_ - 1) {
    // The ranks that this one waits for may wait until it is done with earlier phases.
    if (const Status status = catch_up(phase_ - 1); is_error(status)) return status;
    tell_done();
  }
  const auto arrived = [&] { return has_posted(index, phase_); };
  const auto stuck = [&](bool passed) {
    if (!passed) return has_left(index) && !arrived() ? fail_closed(index) : Status::kOk;
    std::vector<int> ranks;
    for (int other = 0; other < size(); ++other)
      if (!has_posted(other, phase_) && (late != Late::kThatOne || other == index))
        ranks.push_back(rank(other));
    return ranks.empty() ? Status::kOk : fail_late(std::move(ranks));
  };
  return wait(arrived, stuck, deadline);
}

Status ShmGroup::wait_for_room(uint64_t needed, Deadline deadline) {
  const auto done_by = [this](int other) { return block(other).done.load(std::memory_order_acquire); };
  const auto done_by_all = [&] {
    uint64_t least = ~uint64_t{0};
    for (int other = 0; other < size(); ++other)
      if (other != index_) least = std::min(least, done_by(other));
    return least;
  };
  const auto stuck = [&](bool passed) {
    if (!passed) return Status::kOk;
    std::vector<int> ranks;
    for (int other = 0; other < size(); ++other)
      if (other != index_ && done_by(other) < needed) ranks.push_back(rank(other));
    return fail_late(std::move(ranks));
  };
  // Others may wait for this rank to compare phases that they have only now posted.
  const auto arrived = [&] {
    static_cast<void>(catch_up(phase_));  // if it fails the group is broken
    tell_done();
    return told_done_ >= needed && done_by_all() >= needed;
  };
  if (!arrived()) {
    if (const Status status = wait(arrived, stuck, deadline); is_error(status)) return status;
  }
  all_done_ = std::max(all_done_, std::min(done_by_all(), told_done_));
  return breaker_.status();
}

// `stuck(deadline passed)` returns a reason to stop waiting.
template <typename Arrived, typename Stuck>
Status ShmGroup::wait(const Arrived& arrived, const Stuck& stuck, Deadline deadline) {
  const auto why_broken = [&] {
    if (!broken()) return breaker_.status();
    return breaker_.record(breakage());
  };
  const auto late = [&](uint64_t now) { return deadline.passed(now) || breaker_.hurried(); };
  arrived_ticks_ = 0;
  if (!settings_.crowded) {
    for (uint32_t turn = 0; turn < quick_turns_; ++turn) {
      const uint64_t now_ticks = ticks();
      if (arrived()) {
        arrived_ticks_ = now_ticks;
        return Status::kOk;
      }
    }
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
    if (late(now)) return stuck(true);
    const uint64_t before = now;
    sched_yield();
    now = monotonic_now_ns();
    if (now - before > kLongYieldNs && !arrived()) sleepy_waits_ = kSleepyWaits;
  }
  for (;;) {
    const uint32_t seen = announce();
    const bool there = arrived();
    const bool wrong = broken() || breaker_.broken();
    if (!there && !wrong && !breaker_.hurried()) sleep(seen, deadline.ns());
    retire();
    if (there) return Status::kOk;
    if (wrong) return why_broken();
    if (const Status status = stuck(false); is_error(status)) return status;
    if (Interrupt::asked())
      return breaker_.raise(Status::kCancelled,
                            fmt::format("rank {} was interrupted in {}", rank(index_), describe(current_)));
    if (late(monotonic_now_ns()) && !arrived()) return stuck(true);
  }
}

Status ShmGroup::fail_late(std::vector<int> ranks) {
  return breaker_.raise({Status::kTimedOut,
                         fmt::format("rank {} timed out in {}", rank(index_), describe(current_)),
                         std::move(ranks)});
}

Status ShmGroup::fail_closed(int index) {
  return breaker_.raise(Status::kPeerLost, fmt::format("rank {} closed the communicator before {}",
                                                       rank(index), describe(current_)));
}

bool ShmGroup::agree(int index, int other, uint64_t phase) const noexcept {
  const Posted& one = line(index, phase);
  const Posted& two = line(other, phase);
  uint64_t differ = 0;
  for (size_t i = 0; i < kHeaderWords; ++i)
    differ |= one.header[i].load(std::memory_order_acquire) ^ two.header[i].load(std::memory_order_acquire);
  return differ == 0;
}

bool ShmGroup::agrees_with(int other) const noexcept {
  const Posted& theirs = line(other, phase_);
  uint64_t words[kHeaderWords];
  std::memcpy(words, &current_, sizeof words);
  uint64_t differ = 0;
  for (size_t i = 0; i < kHeaderWords; ++i)
    differ |= words[i] ^ theirs.header[i].load(std::memory_order_acquire);
  return differ == 0;
}

Header ShmGroup::header_of(int index, uint64_t phase) const noexcept {
  const Posted& posted = line(index, phase);
  uint64_t words[kHeaderWords];
  for (size_t i = 0; i < kHeaderWords; ++i) words[i] = posted.header[i].load(std::memory_order_acquire);
  Header header;
  std::memcpy(&header, words, sizeof header);
  return header;
}

Status ShmGroup::fail_mismatch(int index, int other, uint64_t phase) {
  if (index > other) std::swap(index, other);
  return breaker_.raise(Status::kMismatch, describe_mismatch(rank(index), header_of(index, phase),
                                                             rank(other), header_of(other, phase)));
}

// The other ranks have read that half in the phase before the last one, so its lines lie in their caches: storing to them
// takes as long as a small operation does.
void ShmGroup::prefetch_half(uint64_t from, uint64_t bytes, bool has_read) const noexcept {
  const EarlyLines& early = early_lines();
  const bool whole = bytes <= (has_read ? early.whole_after_reading : early.whole_after_giving);
  const uint8_t* const stage = half(index_, next_stage()) + from;
  for (uint64_t at = 0; at < (whole ? bytes : early.first_of_more); at += kCacheLineBytes)
    prefetch_for_write(stage + at);
}

void ShmGroup::copy_out(uint8_t* to, const uint8_t* from, uint64_t bytes, bool streaming) const noexcept {
  if (streaming)
    stream_copy(to, from, bytes);
  else
    copy_bytes(to, from, bytes);
}

// ---- Channels

// Every rank can write the positions: each is read once, and checked against the ring's size.
uint64_t ShmGroup::filled(int from, int to, uint64_t head, uint64_t tail) noexcept {
  const uint64_t bytes = head - tail;
  if (bytes <= settings_.channel_bytes) return bytes;
  breaker_.raise_or_break(Status::kProtocol, [&] {
    return fmt::format(
        "the ring from rank {} to rank {} is damaged: {} bytes written and {} read, with room for {}",
        rank(from), rank(to), head, tail, settings_.channel_bytes);
  });
  return settings_.channel_bytes + 1;
}

void ShmGroup::put_beside(Ring& ring, uint64_t from, const void* data, size_t bytes) noexcept {
  uint64_t words[kBesideWords] = {};
  if (bytes > sizeof words) return;  // what is there has an older position
  std::memcpy(words, data, bytes);
  ring.beside_from.store(0, std::memory_order_relaxed);
  for (size_t i = 0; i * sizeof *words < bytes; ++i)
    ring.beside[i].store(words[i], std::memory_order_release);
  ring.beside_from.store(from + 1, std::memory_order_release);
}

bool ShmGroup::take_beside(const Ring& ring, uint64_t from, void* to, size_t bytes) noexcept {
  uint64_t words[kBesideWords];
  if (bytes > sizeof words || ring.beside_from.load(std::memory_order_acquire) != from + 1) return false;
  for (size_t i = 0; i * sizeof *words < bytes; ++i)
    words[i] = ring.beside[i].load(std::memory_order_acquire);
  if (ring.beside_from.load(std::memory_order_relaxed) != from + 1) return false;
  std::memcpy(to, words, bytes);
  return true;
}

size_t ShmGroup::channel_write(int to, const void* data, size_t bytes) noexcept {
  Ring& ring = this->ring(index_, to);
  uint8_t* base = ring_data(index_, to);
  // Not read from the ring, whose line the reader has. For the same reason the reader's position is looked at only where the
  // last one seen leaves too little room.
  uint64_t& head = heads_[static_cast<size_t>(to)];
  uint64_t& tail = tails_seen_[static_cast<size_t>(to)];
  uint64_t used = head - tail;
  if (used > settings_.channel_bytes || bytes > settings_.channel_bytes - used) {
    const uint64_t now = ring.tail.load(std::memory_order_acquire);
    used = filled(index_, to, head, now);
    if (used > settings_.channel_bytes) return 0;
    tail = now;
  }
  const uint64_t count = std::min<uint64_t>(bytes, settings_.channel_bytes - used);
  if (count == 0) return 0;
  const uint64_t at = head % settings_.channel_bytes;
  const uint64_t until_end = std::min(count, settings_.channel_bytes - at);
  copy_bytes(base + at, data, until_end);
  copy_bytes(base, static_cast<const uint8_t*>(data) + until_end, count - until_end);
  put_beside(ring, head, data, count);
  head += count;
  ring.head.store(head, std::memory_order_release);
  notify();
  return count;
}

size_t ShmGroup::channel_read(int from, void* data, size_t bytes) noexcept {
  Ring& ring = this->ring(from, index_);
  const uint8_t* base = ring_data(from, index_);
  const uint64_t tail = ring.tail.load(std::memory_order_relaxed);
  const uint64_t there = filled(from, index_, ring.head.load(std::memory_order_acquire), tail);
  if (there > settings_.channel_bytes) return 0;
  const uint64_t count = std::min<uint64_t>(bytes, there);
  if (count == 0) return 0;
  if (count != there || !take_beside(ring, tail, data, count)) {
    const uint64_t at = tail % settings_.channel_bytes;
    const uint64_t until_end = std::min(count, settings_.channel_bytes - at);
    copy_bytes(data, base + at, until_end);
    copy_bytes(static_cast<uint8_t*>(data) + until_end, base, count - until_end);
  }
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
