// Rooted operations of few bytes, in which a rank that needs no data from the others continues at once (see
// shm_group.h).
#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "collectives/copy.h"
#include "collectives/shm_group.h"

namespace towline::collectives {
// ---- Comparisons made later

Status ShmGroup::end_loose(int compare_with) {
  uint64_t done = done_.load(std::memory_order_relaxed);
  if (compare_with >= 0) {
    pending_[phase_ % kLines].store(phase_ << 16 | static_cast<uint64_t>(compare_with),
                                    std::memory_order_release);
  } else if (done == phase_ - 1) {
    done_.store(++done, std::memory_order_relaxed);
  }
  const bool much_given = given_bytes_ - given_told_ >= kGivenBytes / 4;
  if (phase_ - done >= kBatch || (much_given && done != phase_)) {
    if (const Status status = catch_up(phase_); is_error(status)) return status;
    done = done_.load(std::memory_order_relaxed);
  }
  if (done - told_done_ >= kBatch || much_given) tell_done();
  return Status::kOk;
}

Status ShmGroup::catch_up(uint64_t through) {
  uint64_t done = done_.load(std::memory_order_relaxed);
  for (; done < through; ++done) {
    const uint64_t phase = done + 1;
    const uint64_t pending = pending_[phase % kLines].load(std::memory_order_relaxed);
    if (pending >> 16 != phase) continue;
    const auto other = static_cast<int>(pending & 0xffff);
    if (!has_posted(other, phase)) break;
    if (!agree(index_, other, phase)) return fail_mismatch(index_, other, phase);
  }
  done_.store(done, std::memory_order_relaxed);
  return Status::kOk;
}

void ShmGroup::tell_done() noexcept {
  const uint64_t done = done_.load(std::memory_order_relaxed);
  if (done == told_done_) return;
  told_done_ = done;
  given_told_ = given_then_[done % kLines];
  block(index_).done.store(done, std::memory_order_release);
  notify();
}

// Lines may be rewritten during this: a comparison counts only if both lines still belong to that phase.
void ShmGroup::watch_behind() {
  for (const std::atomic<uint64_t>& place : pending_) {
    const uint64_t pending = place.load(std::memory_order_acquire);
    const uint64_t phase = pending >> 16;
    const auto other = static_cast<int>(pending & 0xffff);
    if (phase <= done_.load(std::memory_order_relaxed)) continue;
    if (!has_posted(index_, phase) || !has_posted(other, phase)) continue;
    const Header mine = header_of(index_, phase);
    const Header theirs = header_of(other, phase);
    if (!has_posted(index_, phase) || !has_posted(other, phase) || mine == theirs) continue;
    const bool first = index_ < other;
    breaker_.raise(Status::kMismatch, describe_mismatch(rank(first ? index_ : other), first ? mine : theirs,
                                                        rank(first ? other : index_), first ? theirs : mine));
    return;
  }
}

Status ShmGroup::check_leavers() {
  if (front().leavers.load(std::memory_order_acquire) == 0) [[likely]]
    return Status::kOk;
  for (int other = 0; other < size(); ++other)
    if (has_left(other) && !has_posted(other, phase_)) return fail_closed(other);
  return Status::kOk;
}

// ---- Operations

Status ShmGroup::begin_loose(const Call& call, uint64_t bytes, uint8_t*& place) {
  current_ = call.header;
  if (const Status status = make_room([&] { return call.ends_by(); }); is_error(status)) return status;
  Posted& mine = line(index_, phase_ + 1);
  place = mine.inlined;
  if (fits_line(bytes)) return Status::kOk;
  const uint64_t size = (bytes + 63) / 64 * 64;
  if (given_bytes_ % kGivenBytes + size > kGivenBytes)
    given_bytes_ += kGivenBytes - given_bytes_ % kGivenBytes;
  const uint64_t at = given_bytes_ % kGivenBytes;
  given_bytes_ += size;
  uint64_t needed = all_done_;
  while (needed < phase_ && given_then_[needed % kLines] + kGivenBytes < given_bytes_) ++needed;
  if (needed != all_done_) {
    if (const Status status = wait_for_room(needed, call.ends_by()); is_error(status)) return status;
  }
  std::memcpy(mine.inlined, &at, sizeof at);
  place = given_at(index_, at);
  return Status::kOk;
}

const uint8_t* ShmGroup::fail_given(int index) noexcept {
  breaker_.raise_or_break(Status::kProtocol, [&] {
    return fmt::format("rank {}'s description of its data in {} is damaged", rank(index), describe(current_));
  });
  return nullptr;
}

// `take` reads the data of all ranks; false if it can't.
template <typename Take>
Status ShmGroup::loose_to_root(const Call& call, const Take& take) {
  uint8_t* place = nullptr;
  if (const Status status = begin_loose(call, call.bytes, place); is_error(status)) return status;
  copy(place, call.input, call.bytes);
  post(&call.header);
  if (const Status status = check_leavers(); is_error(status)) return status;
  if (index_ != call.root) return end_loose(call.root);
  for (int other = 0; other < size(); ++other) {
    if (has_posted(other, phase_)) continue;
    if (const Status status = wait_for(other, call.ends_by(), Late::kEveryone); is_error(status))
      return status;
  }
  for (int other = 0; other < size(); ++other)
    if (other != index_ && !agrees_with(other)) return fail_mismatch(index_, other, phase_);
  if (!take()) return breaker_.status();
  return end_loose(-1);
}

// The root gives `bytes` bytes; on the other ranks `take` reads them.
template <typename Give, typename Take>
Status ShmGroup::loose_from_root(const Call& call, uint64_t bytes, const Give& give, const Take& take) {
  uint8_t* place = nullptr;
  if (const Status status = begin_loose(call, bytes, place); is_error(status)) return status;
  if (index_ == call.root) give(place);
  post(&call.header);
  if (const Status status = check_leavers(); is_error(status)) return status;
  if (index_ == call.root) return end_loose(index_ == 0 ? -1 : 0);
  if (!has_posted(call.root, phase_)) {
    if (const Status status = wait_for(call.root, call.ends_by(), Late::kThatOne); is_error(status))
      return status;
  }
  if (!agrees_with(call.root)) return fail_mismatch(index_, call.root, phase_);
  const uint8_t* const from = given(call.root, phase_, bytes);
  if (from == nullptr) return breaker_.status();
  take(from);
  return end_loose(-1);
}

Status ShmGroup::reduce_loose(const Call& call) {
  return loose_to_root(call, [&] { return reduce_given(call); });
}

Status ShmGroup::gather_loose(const Call& call) {
  return loose_to_root(call, [&] {
    copy(call.out.at[static_cast<size_t>(index_)], call.input, call.bytes);
    for (int other = 0; other < size(); ++other) {
      if (other == index_) continue;
      const uint8_t* const from = given(other, phase_, call.bytes);
      if (from == nullptr) return false;
      copy(call.out.at[static_cast<size_t>(other)], from, call.bytes);
    }
    return true;
  });
}

Status ShmGroup::broadcast_loose(const Call& call) {
  return loose_from_root(
      call, call.bytes,
      [&](uint8_t* to) {
        copy(to, call.input, call.bytes);
        if (call.output != nullptr) copy(call.output, call.input, call.bytes);
      },
      [&](const uint8_t* from) { copy(call.output, from, call.bytes); });
}

Status ShmGroup::scatter_loose(const Call& call) {
  const uint64_t bytes = call.bytes;
  return loose_from_root(
      call, bytes * static_cast<uint64_t>(size()),
      [&](uint8_t* to) {
        for (size_t rank = 0; rank < ranks_.size(); ++rank) copy(to + rank * bytes, call.in.at[rank], bytes);
        copy(call.output, call.in.at[static_cast<size_t>(index_)], bytes);
      },
      [&](const uint8_t* from) { copy(call.output, from + static_cast<uint64_t>(index_) * bytes, bytes); });
}

}  // namespace towline::collectives
