// Waits between kernels, and how these end when a kernel does not come.
//
// Every wait is bounded: by the operation's time, by the host's orders, and by any rank's failure. The first rank
// that fails writes one report for its host and for all other ranks, whose kernels then end, too.
#pragma once

#include <stdlib.h>
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

#include "collectives/gpu/job.h"

namespace towline::collectives::gpu {

TOWLINE_DEVICE Control& control_of(const Job& job, uint32_t rank) {
  return *reinterpret_cast<Control*>(job.segment[rank]);
}

inline constexpr uint32_t kLooksAtMark = 1000;

// The host reads the state at any time, and the rest only after it.
TOWLINE_DEVICE void give_report(uint64_t to, const Report& report) {
  auto* const given = reinterpret_cast<Report*>(to);
  given->failure = report.failure;
  given->rank = report.rank;
  given->peer = report.peer;
  given->sent = report.sent;
  given->expected = report.expected;
  given->mine = report.mine;
  given->theirs = report.theirs;
  device::store_release(&given->state, 1);
}

// The words of a mark that others read while it is written. Each is stored and loaded whole.
TOWLINE_DEVICE void store_mark(uint64_t* words, const Mark& mark) {
  device::store_relaxed(words, mark.number);
  device::store_relaxed(words + 1, mark.count);
  device::store_relaxed(words + 2, mark.digest);
  device::store_relaxed(words + 3, mark.tag);
  device::store_relaxed(words + 4, uint64_t{mark.datatype} << 32 | mark.op);
  device::store_relaxed(words + 5, uint64_t{static_cast<uint32_t>(mark.root)} << 32 | mark.reduction);
}
TOWLINE_DEVICE void load_mark(const uint64_t* words, Mark& mark) {
  mark.number = device::load_relaxed(words);
  mark.count = device::load_relaxed(words + 1);
  mark.digest = device::load_relaxed(words + 2);
  mark.tag = device::load_relaxed(words + 3);
  const uint64_t kind = device::load_relaxed(words + 4);
  mark.op = static_cast<uint32_t>(kind);
  mark.datatype = static_cast<uint32_t>(kind >> 32);
  const uint64_t detail = device::load_relaxed(words + 5);
  mark.reduction = static_cast<uint32_t>(detail);
  mark.root = static_cast<int32_t>(detail >> 32);
}

// `theirs`: the operation of a peer that disagrees. One thread.
TOWLINE_DEVICE_CALL void fail_with(const Job& job, Failure failure, uint32_t peer, uint64_t sent,
                                   uint64_t expected, const Mark* theirs = nullptr) {
  Control& me = control_of(job, job.rank);
  if (!device::claim(&me.claimed)) return;
  Report report = {};
  report.failure = static_cast<uint32_t>(failure);
  report.rank = job.rank;
  report.peer = peer;
  report.sent = sent;
  report.expected = expected;
  report.mine = job.mark;
  if (theirs != nullptr) report.theirs = *theirs;
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

// `peer` is at another collective: its signal or data has shown this digest. Either may arrive before the mark does, or while the
// mark is written, so this looks until the mark fits, though not for ever. A mark that does not fit is not reported: it may be half
// written, or that of a later collective. One thread.
TOWLINE_DEVICE_CALL void disagree_with(const Job& job, uint32_t peer, uint32_t digest) {
  Mark theirs;
  bool fits = false;
  for (uint32_t looks = 0; looks < kLooksAtMark && !fits; ++looks) {
    device::pause();
    load_mark(control_of(job, peer).current, theirs);
    fits = theirs.number == job.mark.number && digest_of(theirs) == digest;
  }
  if (!fits) theirs.op = kUnknownOp;
  fail_with(job, Failure::kMismatch, peer, 0, 0, &theirs);
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
  uint32_t gone = 0;  // 1 + a rank that is gone: one more look is due at what it gave before
  uint64_t began = 0;
};

// Whether a signal of this epoch is that of another operation.
TOWLINE_DEVICE bool is_of_another(const Job& job, uint64_t signal, uint32_t epoch) {
  return static_cast<uint32_t>(signal >> 32) == epoch && static_cast<uint32_t>(signal) != job.digest;
}

// Whether a wait must end, asked now and then. `signal`: the peer's word, which must not be of another operation; null: none.
TOWLINE_DEVICE bool must_stop(const Job& job, Waiter& waiter, uint32_t peer, const uint64_t* signal,
                              uint32_t epoch) {
  const Control& me = control_of(job, job.rank);
  if (device::load_relaxed(&me.broken) != 0) return true;
  if (signal != nullptr && is_of_another(job, device::load_relaxed(signal), epoch)) return true;
  const uint64_t now = device::now_ns();
  if (waiter.began == 0) waiter.began = now;
  if (now - waiter.began >= job.timeout_ns) return true;
  if ((waiter.turns & 1023) != 0 && waiter.gone == 0) return false;
  const auto* const orders = reinterpret_cast<const Orders*>(job.orders);
  const uint64_t stop = device::load_acquire(&orders->stop);
  if (stop != 0 && static_cast<Failure>(stop) != Failure::kLost) return true;
  if (stop == 0 && device::load_acquire(&me.left[peer]) == 0) return false;
  // It may have given all that is waited for, after the caller's last look, and then gone.
  if (waiter.gone == peer + 1) return true;
  waiter.gone = peer + 1;
  return false;
}

// Why it must. `digest`: of another operation, which the peer's data has shown; 0: none. One thread.
TOWLINE_DEVICE_CALL void report_stop(const Job& job, uint32_t peer, const uint64_t* signal, uint32_t epoch,
                                     uint32_t digest) {
  if (check_broken(job)) return;
  if (signal != nullptr && digest == 0) {
    const uint64_t word = device::load_relaxed(signal);
    if (is_of_another(job, word, epoch)) digest = static_cast<uint32_t>(word);
  }
  if (digest != 0) return disagree_with(job, peer, digest);
  Failure failure =
      device::load_acquire(&control_of(job, job.rank).left[peer]) != 0 ? Failure::kLeft : Failure::kTimedOut;
  const auto* const orders = reinterpret_cast<const Orders*>(job.orders);
  if (const uint64_t stop = device::load_acquire(&orders->stop); stop != 0) {
    failure = static_cast<Failure>(stop);
    peer = static_cast<uint32_t>(device::load_relaxed(&orders->peer));
  }
  fail_with(job, failure, peer, 0, 0);
}

TOWLINE_DEVICE_CALL bool look_around(const Job& job, Waiter& waiter, uint32_t peer, const uint64_t* signal,
                                     uint32_t epoch) {
  if (!must_stop(job, waiter, peer, signal, epoch)) return false;
  report_stop(job, peer, signal, epoch, 0);
  return true;
}

// After each look that was too early. True: the wait is at its end, and the reason has been reported.
TOWLINE_DEVICE bool give_up(const Job& job, Waiter& waiter, uint32_t peer, const uint64_t* signal,
                            uint32_t epoch) {
  device::pause();
  return (++waiter.turns & 63) == 0 && look_around(job, waiter, peer, signal, epoch);
}

// The same for a thread that reports it at its kernel's end: what it calls would take half of the registers from it.
struct Stopped {
  uint32_t peer = ~0u;  // that was waited for; ~0: it did not stop
  uint32_t digest = 0;  // report_stop's
};
// `digest`: as above. The others of this rank stop as well, and have nothing to report.
TOWLINE_DEVICE void stop(const Job& job, uint32_t peer, uint32_t digest, Stopped& stopped) {
  // A thread that has stopped waits for its row's other blocks as well. Its first reason counts.
  if (stopped.peer == ~0u) stopped = {peer, digest};
  device::store_relaxed(&control_of(job, job.rank).stopping, 1);
}
// Asked now and then.
TOWLINE_DEVICE bool stops_now(const Job& job, Waiter& waiter, uint32_t peer, const uint64_t* signal,
                              uint32_t epoch, Stopped& stopped) {
  if (device::load_relaxed(&control_of(job, job.rank).stopping) != 0) return true;
  if (!must_stop(job, waiter, peer, signal, epoch)) return false;
  stop(job, peer, 0, stopped);
  return true;
}
// After each look that was too early.
TOWLINE_DEVICE bool stops(const Job& job, Waiter& waiter, uint32_t peer, const uint64_t* signal,
                          uint32_t epoch, Stopped& stopped) {
  device::pause();
  return (++waiter.turns & 63) == 0 && stops_now(job, waiter, peer, signal, epoch, stopped);
}

// Waits until what is ahead of this kernel in its stream has ended and its stores are seen: the kernel may have been started
// before (KernelSet::wait_themselves). All threads, before they touch memory.
TOWLINE_DEVICE void await_those_ahead() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// Lets the next kernel of the stream be started, once every block has said so or ended. That one takes room on the GPU, and
// may fill it: so a kernel must not say so while it waits for another rank, whose kernel may still need room.
TOWLINE_DEVICE void let_next_begin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// A block's own turn.
struct Turn {
  uint32_t block;
  uint32_t blocks;
  uint32_t epoch;
};

TOWLINE_DEVICE const uint64_t* signal_of(const Job& job, const Turn& turn, uint32_t peer) {
  return &control_of(job, job.rank).signal[peer][turn.block];
}
// Says what the thread has kept to itself. A peer at the same operation may wait for a rank that has not come: then that one is named.
TOWLINE_DEVICE_CALL void report_later(const Job& job, uint32_t block, uint32_t epoch, uint32_t peer,
                                      uint32_t digest) {
  const Control& me = control_of(job, job.rank);
  if (peer == job.rank) return report_stop(job, peer, nullptr, epoch, digest);
  const auto came = [&](uint32_t rank) {
    const auto at = static_cast<uint32_t>(device::load_relaxed(&me.signal[rank][block]) >> 32);
    return static_cast<int32_t>(at - epoch) >= 0;
  };
  const bool waits = digest == 0 && came(peer) && device::load_acquire(&me.left[peer]) == 0 &&
                     !is_of_another(job, device::load_relaxed(&me.signal[peer][block]), epoch);
  for (uint32_t rank = 0; waits && rank < job.size; ++rank)
    if (rank != job.rank && !came(rank)) peer = rank;
  report_stop(job, peer, &me.signal[peer][block], epoch, digest);
}
TOWLINE_DEVICE void report(const Job& job, const Turn& turn, const Stopped& stopped) {
  if (stopped.peer != ~0u) report_later(job, turn.block, turn.epoch, stopped.peer, stopped.digest);
}

// What a rank's memory held when its operation began is seen by the ranks that see a store of the operation. On a GPU this needs nothing of
// the rank that stores, and a fence of those that see; on processors one of both. ThreadSanitizer knows no fences.
TOWLINE_DEVICE void show_what_was([[maybe_unused]] const Job& job) {
#if !defined(__CUDACC__)
  device::fence();
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_release(&control_of(job, job.rank));
#endif
}
TOWLINE_DEVICE void see_what_was(const Job& job, [[maybe_unused]] uint32_t peer) {
  // This multiprocessor may have old contents of other ranks' memory in its cache.
  if (job.together != 0)
    device::fence_here();
  else
    device::fence();
#if defined(__SANITIZE_THREAD__)
  __tsan_acquire(&control_of(job, peer));
#endif
}

// ---- Words that arrive together with their marks

#if defined(__CUDA_ARCH__)
// Each half of the 16 bytes is 4 of data and its mark, which arrive together.
TOWLINE_DEVICE void store_marked(uint64_t address, uint64_t data, uint32_t mark) {
  asm volatile("st.volatile.global.v4.u32 [%0], {%1,%2,%3,%2};" ::"l"(address),
               "r"(static_cast<uint32_t>(data)), "r"(mark), "r"(static_cast<uint32_t>(data >> 32))
               : "memory");
}
TOWLINE_DEVICE void load_marked(uint64_t address, uint64_t& data, uint32_t (&marks)[2]) {
  uint32_t low;
  uint32_t high;
  asm volatile("ld.volatile.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(low), "=r"(marks[0]), "=r"(high), "=r"(marks[1])
               : "l"(address)
               : "memory");
  data = static_cast<uint64_t>(high) << 32 | low;
}
// Without a branch. Not `asked`: the data and the marks stay as they are.
TOWLINE_DEVICE void load_marked_if(bool asked, uint64_t address, uint64_t& data, uint32_t (&marks)[2]) {
  auto low = static_cast<uint32_t>(data);
  auto high = static_cast<uint32_t>(data >> 32);
  asm volatile(
      "{\n\t.reg .pred asked;\n\t"
      "setp.ne.u32 asked, %5, 0;\n\t"
      "@asked ld.volatile.global.v4.u32 {%0,%1,%2,%3}, [%4];\n\t}"
      : "+r"(low), "+r"(marks[0]), "+r"(high), "+r"(marks[1])
      : "l"(address), "r"(static_cast<uint32_t>(asked))
      : "memory");
  data = static_cast<uint64_t>(high) << 32 | low;
}
#else
inline void store_marked(uint64_t address, uint64_t data, uint32_t mark) {
  if ((address & 15) != 0) abort();  // the kernel would fault
  auto* const words = reinterpret_cast<uint64_t*>(address);
  device::store_relaxed(words, static_cast<uint64_t>(mark) << 32 | static_cast<uint32_t>(data));
  device::store_relaxed(words + 1, static_cast<uint64_t>(mark) << 32 | data >> 32);
}
inline void load_marked(uint64_t address, uint64_t& data, uint32_t (&marks)[2]) {
  const auto* const words = reinterpret_cast<const uint64_t*>(address);
  const uint64_t low = device::load_relaxed(words);
  const uint64_t high = device::load_relaxed(words + 1);
  marks[0] = static_cast<uint32_t>(low >> 32);
  marks[1] = static_cast<uint32_t>(high >> 32);
  data = high << 32 | static_cast<uint32_t>(low);
}
inline void load_marked_if(bool asked, uint64_t address, uint64_t& data, uint32_t (&marks)[2]) {
  if (asked) load_marked(address, data, marks);
}
#endif

// The marks may have come apart. 0: neither is another operation's.
TOWLINE_DEVICE uint32_t other_digest(const uint32_t (&marks)[2], uint32_t digest) {
  return marks[0] != 0 && marks[0] != digest ? marks[0] : marks[1] == digest ? 0 : marks[1];
}

// ---- Meeting

TOWLINE_DEVICE void set_signal(const Job& job, const Turn& turn, uint32_t peer, bool release) {
  const uint64_t value = static_cast<uint64_t>(turn.epoch) << 32 | job.digest;
  uint64_t* const word = &control_of(job, peer).signal[job.rank][turn.block];
  if (!release)
    device::store_relaxed(word, value);
  else if (job.together != 0)
    device::store_release_here(word, value);
  else
    device::store_release(word, value);
}

// Waits for a rank's signal. One thread. True: it failed.
TOWLINE_DEVICE bool await_signal(const Job& job, const Turn& turn, uint32_t peer) {
  const uint64_t* const signal = &control_of(job, job.rank).signal[peer][turn.block];
  Waiter waiter;
  for (;;) {
    const uint64_t seen =
        job.together != 0 ? device::load_acquire_here(signal) : device::load_acquire(signal);
    const auto ahead = static_cast<int32_t>(static_cast<uint32_t>(seen >> 32) - turn.epoch);
    if (ahead == 0 && static_cast<uint32_t>(seen) != job.digest) {
      disagree_with(job, peer, static_cast<uint32_t>(seen));
      return true;
    }
    if (ahead >= 0) return false;
    if (give_up(job, waiter, peer, nullptr, turn.epoch)) return true;
  }
}

// All ranks' blocks of this number: what each wrote before, all see after. All threads. False: it failed.
TOWLINE_DEVICE bool meet(const Job& job, Turn& turn) {
  device::sync();
  ++turn.epoch;
  for (uint32_t peer = device::thread(); peer < job.size; peer += device::threads())
    set_signal(job, turn, peer, true);
  bool failed = false;
  for (uint32_t peer = device::thread(); peer < job.size && !failed; peer += device::threads())
    failed = await_signal(job, turn, peer);
  return !device::sync_any(failed);
}

// Gives every rank some words, and waits for theirs: give(peer, which), and got[which][peer]. Data that ranks wrote before their
// operation began is seen after; data of this operation may not be. So it costs one way through memory.
template <uint32_t kWords, class Give>
TOWLINE_DEVICE bool swap(const Job& job, Turn& turn, uint64_t* const (&got)[kWords], Give&& give) {
  const uint32_t epoch = ++turn.epoch;
  const uint32_t mark = (epoch * 0x9e3779b1u) ^ job.digest;
  for (uint32_t peer = device::thread(); peer < job.size; peer += device::threads()) {
    const auto there =
        reinterpret_cast<uint64_t>(control_of(job, peer).words[epoch & 1][job.rank][turn.block]);
    TOWLINE_UNROLL
    for (uint32_t word = 0; word < kWords; ++word) store_marked(there + 16 * word, give(peer, word), mark);
    set_signal(job, turn, peer, false);
  }
  bool failed = false;
  Control& me = control_of(job, job.rank);
  for (uint32_t peer = device::thread(); peer < job.size && !failed; peer += device::threads()) {
    const auto here = reinterpret_cast<uint64_t>(me.words[epoch & 1][peer][turn.block]);
    Waiter waiter;
    for (;;) {
      bool came = true;
      TOWLINE_UNROLL
      for (uint32_t word = 0; word < kWords; ++word) {
        uint32_t marks[2];
        load_marked(here + 16 * word, got[word][peer], marks);
        came = came && marks[0] == mark && marks[1] == mark;
      }
      if (came) break;
      // Other marks: too early, or another operation, which its signal tells.
      if ((failed = give_up(job, waiter, peer, &me.signal[peer][turn.block], epoch))) break;
    }
    see_what_was(job, peer);
  }
  return !device::sync_any(failed);
}

// Two words.
template <class First, class Second>
TOWLINE_DEVICE bool swap_words(const Job& job, Turn& turn, uint64_t* firsts, uint64_t* seconds, First&& first,
                               Second&& second) {
  uint64_t* const got[] = {firsts, seconds};
  return swap<2>(job, turn, got,
                 [&](uint32_t peer, uint32_t word) { return word == 0 ? first(peer) : second(peer); });
}

}  // namespace towline::collectives::gpu
