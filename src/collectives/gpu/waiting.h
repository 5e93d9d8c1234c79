// How kernels wait for one another, and how they end when one does not come.
//
// Every wait is bounded: by the operation's time, by the host's orders, and by any rank's failure. The first rank
// that fails writes one report for its host and for all other ranks, whose kernels then end, too.
#pragma once

#include "collectives/gpu/job.h"

namespace towline::collectives::gpu {

TOWLINE_DEVICE Control& control_of(const Job& job, uint32_t rank) {
  return *reinterpret_cast<Control*>(job.segment[rank]);
}

TOWLINE_DEVICE void give_report(uint64_t to, const Report& report) {
  auto* const mine = reinterpret_cast<Report*>(to);
  Report copy = report;
  copy.state = 0;
  *mine = copy;
  device::store_release(&mine->state, 1);
}

// One thread.
TOWLINE_DEVICE_CALL void fail_with(const Job& job, Failure failure, uint32_t peer, uint64_t sent,
                                   uint64_t expected) {
  Control& me = control_of(job, job.rank);
  if (!device::claim(&me.claimed)) return;
  Report report = {};
  report.failure = static_cast<uint32_t>(failure);
  report.rank = job.rank;
  report.peer = peer;
  report.sent = sent;
  report.expected = expected;
  report.mine = job.mark;
  if (failure == Failure::kMismatch) report.theirs = control_of(job, peer).current;
  for (uint32_t other = 0; other < job.size; ++other) {
    Control& there = control_of(job, other);
    if (other == job.rank || !device::claim(&there.telling)) continue;
    there.told = report;
    device::store_release(&there.broken, 1);
    // A host of this process learns of it at once, others' with their next kernel.
    if (job.report[other] != 0 && device::claim(&there.claimed)) give_report(job.report[other], report);
  }
  give_report(job.report[job.rank], report);
  device::store_release(&me.broken, 1);
}

// True: the communicator is broken. One thread.
TOWLINE_DEVICE_CALL bool check_broken(const Job& job) {
  Control& me = control_of(job, job.rank);
  if (device::load_acquire(&me.broken) == 0) return false;
  if (device::claim(&me.claimed)) give_report(job.report[job.rank], me.told);
  return true;
}

struct Waiter {
  uint32_t turns = 0;
  uint64_t began = 0;
};

// Called now and then while a thread waits. True: give up. `signal`: the peer's word, whose digest must be that of
// this operation if its epoch is; null: none.
TOWLINE_DEVICE_CALL bool look_around(const Job& job, Waiter& waiter, uint32_t peer, const uint64_t* signal,
                                     uint32_t epoch) {
  if (check_broken(job)) return true;
  Failure failure = Failure::kNone;
  if (signal != nullptr) {
    const uint64_t word = device::load_relaxed(signal);
    if (static_cast<uint32_t>(word >> 32) == epoch && static_cast<uint32_t>(word) != job.digest)
      failure = Failure::kMismatch;
  }
  const uint64_t now = device::now_ns();
  if (waiter.began == 0) waiter.began = now;
  if (failure == Failure::kNone && now - waiter.began >= job.timeout_ns) failure = Failure::kTimedOut;
  if (failure == Failure::kNone && (waiter.turns & 1023) == 0) {
    if (device::load_acquire(&control_of(job, job.rank).left[peer]) != 0) failure = Failure::kLeft;
    const auto* const orders = reinterpret_cast<const Orders*>(job.orders);
    if (const uint64_t stop = device::load_acquire(&orders->stop); stop != 0) {
      failure = static_cast<Failure>(stop);
      peer = static_cast<uint32_t>(device::load_relaxed(&orders->peer));
    }
  }
  if (failure == Failure::kNone) return false;
  fail_with(job, failure, peer, 0, 0);
  return true;
}

// After each look that was too early.
TOWLINE_DEVICE bool give_up(const Job& job, Waiter& waiter, uint32_t peer, const uint64_t* signal,
                            uint32_t epoch) {
  device::pause();
  return (++waiter.turns & 63) == 0 && look_around(job, waiter, peer, signal, epoch);
}

// What a block knows of its own turn.
struct Turn {
  uint32_t block;
  uint32_t blocks;
  uint32_t epoch;
};

// Signals every rank's same block, with two words for each, and waits for theirs. All threads. False: it failed.
template <class First, class Second>
TOWLINE_DEVICE bool meet(const Job& job, Turn& turn, First&& first, Second&& second) {
  device::sync();
  const uint32_t epoch = ++turn.epoch;
  const uint64_t word = static_cast<uint64_t>(epoch) << 32 | job.digest;
  for (uint32_t peer = device::thread(); peer < job.size; peer += device::threads()) {
    Control& there = control_of(job, peer);
    device::store_relaxed(&there.words[epoch & 1][0][job.rank][turn.block], first(peer));
    device::store_relaxed(&there.words[epoch & 1][1][job.rank][turn.block], second(peer));
    device::store_release(&there.signal[job.rank][turn.block], word);
  }
  bool failed = false;
  Control& me = control_of(job, job.rank);
  for (uint32_t peer = device::thread(); peer < job.size && !failed; peer += device::threads()) {
    const uint64_t* const signal = &me.signal[peer][turn.block];
    Waiter waiter;
    for (;;) {
      const uint64_t seen = device::load_acquire(signal);
      const auto ahead = static_cast<int32_t>(static_cast<uint32_t>(seen >> 32) - epoch);
      if (ahead == 0 && static_cast<uint32_t>(seen) != job.digest) {
        fail_with(job, Failure::kMismatch, peer, 0, 0);
        failed = true;
        break;
      }
      if (ahead >= 0) break;
      if ((failed = give_up(job, waiter, peer, nullptr, epoch))) break;
    }
  }
  return !device::sync_any(failed);
}

// What a rank gave with its signal of the last meeting.
TOWLINE_DEVICE uint64_t word_of(const Job& job, const Turn& turn, uint32_t which, uint32_t peer) {
  return device::load_relaxed(&control_of(job, job.rank).words[turn.epoch & 1][which][peer][turn.block]);
}

TOWLINE_DEVICE bool meet(const Job& job, Turn& turn) {
  const auto nothing = [](uint32_t) { return uint64_t{0}; };
  return meet(job, turn, nothing, nothing);
}

}  // namespace towline::collectives::gpu
