// Words of pairs of ranks as kernels use them: sessions, room, flags, and waits with a bound.
#pragma once

#include <stdlib.h>

#include "collectives/experts/job.h"

namespace towline::collectives::experts {

inline constexpr uint32_t kNoExpert = 0xffffffffu;
inline constexpr uint32_t kNumberBits = 12;
inline constexpr uint32_t kTagShift = 16;  // in a nonce, which has 32 bits
inline constexpr uint64_t kSessionMask = 0x7fff;
inline constexpr uint64_t kSkipped = 0x8000;  // in a nonce: its rank made no use of the session before
static_assert(32 + kNumberBits + kCountBits == 64);

TOWLINE_DEVICE Control& own(const Job& job) { return *reinterpret_cast<Control*>(job.segment); }
TOWLINE_DEVICE Control& peer_control(const Control& me, uint32_t rank) {
  return *reinterpret_cast<Control*>(me.peer[rank]);
}

// The words that the rank has written for this one.
TOWLINE_DEVICE Control& from_peer(const Control& me, uint32_t rank) {
  return *reinterpret_cast<Control*>(me.from[rank]);
}
TOWLINE_DEVICE bool is_remote(const Job& job, const Control& me, uint32_t rank) {
  return me.from[rank] != job.segment;
}
TOWLINE_DEVICE const uint64_t* count_from(const Job& job, const Control& me, uint32_t half, uint32_t rank,
                                          uint32_t expert) {
  return reinterpret_cast<const uint64_t*>(me.from[rank] + job.layout.count_at(half, rank, expert));
}

// A flag: the receiver's nonce, the number of the exchange, and how many tokens there are.
TOWLINE_DEVICE uint64_t number_in_flag(uint64_t number) {
  return number & ((uint64_t{1} << kNumberBits) - 1);
}
TOWLINE_DEVICE uint64_t flag_head(uint64_t nonce, uint64_t number) {
  return nonce << kNumberBits | number_in_flag(number);
}
TOWLINE_DEVICE uint64_t make_flag(uint64_t nonce, uint64_t number, uint64_t count) {
  return flag_head(nonce, number) << kCountBits | count;
}
TOWLINE_DEVICE uint32_t flag_count(uint64_t flag) {
  return static_cast<uint32_t>(flag & ((uint64_t{1} << kCountBits) - 1));
}

TOWLINE_DEVICE uint64_t flag_number(uint64_t flag) { return number_in_flag(flag >> kCountBits); }
TOWLINE_DEVICE uint64_t flag_nonce(uint64_t flag) { return flag >> (kCountBits + kNumberBits); }

// Both sides of an exchange must give the same.
TOWLINE_DEVICE uint64_t shape_of(const Job& job, bool combines) {
  return uint64_t{job.hidden} << 40 | (job.layout.max_tokens & 0xffffffff) << 8 | job.format << 1 |
         (combines ? 1 : 0);
}
// batch_job.h: of a batch. Its other bits are mixed, and bit 0 is the stage's half.
TOWLINE_DEVICE bool shape_is_batch(uint64_t shape) { return shape >> 63 != 0; }
// In the place of a batch's shape: the rows did not get to the rank in whose memory they were to be read. Bit 0 is free for the half.
inline constexpr uint64_t kRowsAreLost = uint64_t{1} << 63;
TOWLINE_DEVICE uint32_t stage_half(uint64_t shape) { return static_cast<uint32_t>(shape & 1); }
TOWLINE_DEVICE bool shape_combines(uint64_t shape) { return (shape & 1) != 0; }
TOWLINE_DEVICE uint32_t shape_format(uint64_t shape) { return static_cast<uint32_t>(shape >> 1 & 0x7f); }
TOWLINE_DEVICE uint32_t shape_max_tokens(uint64_t shape) { return static_cast<uint32_t>(shape >> 8); }
TOWLINE_DEVICE uint32_t shape_hidden(uint64_t shape) { return static_cast<uint32_t>(shape >> 40); }

// Returns what it was.
#if defined(__CUDA_ARCH__)
TOWLINE_DEVICE uint64_t add_to(uint64_t* word, uint64_t value) {
  return atomicAdd(reinterpret_cast<unsigned long long*>(word), value);
}
TOWLINE_DEVICE void add_in_block(uint32_t* word, uint32_t value) { atomicAdd(word, value); }
#elif !defined(__CUDACC__)
inline uint64_t add_to(uint64_t* word, uint64_t value) {
  return __atomic_fetch_add(word, value, __ATOMIC_ACQ_REL);
}
inline void add_in_block(uint32_t* word, uint32_t value) { *word += value; }
#else  // nvcc's pass for the host, which calls neither
inline uint64_t add_to(uint64_t* word, uint64_t) { return *word; }
inline void add_in_block(uint32_t*, uint32_t) {}
#endif

// True in the last block of the kernel to come here, which sees what all others wrote. All threads.
TOWLINE_DEVICE bool last_block(const Job& job, uint32_t blocks) {
  device::sync();
  bool last = false;
  if (device::thread() == 0) {
    Control& me = own(job);
    device::fence();
    last = add_to(&me.arrived, 1) + 1 == blocks;
    if (last) device::store_relaxed(&me.arrived, 0);
    device::fence();
  }
  return device::sync_any(last);
}

// ---- Waiting

struct Waiter {
  uint32_t turns = 0;
  uint64_t began = 0;
};

// After each look that was too early. True: the time is over.
TOWLINE_DEVICE bool give_up(const Job& job, Waiter& waiter) {
  device::pause();
  if ((++waiter.turns & 63) != 0) return false;
  const uint64_t now = device::now_ns();
  if (waiter.began == 0) waiter.began = now;
  return now - waiter.began >= job.timeout_ns;
}

TOWLINE_DEVICE bool is_masked(const Control& me, uint32_t rank) {
  return device::load_relaxed(&me.masked[rank]) != 0;
}

// The rank did not come, or is out of step.
TOWLINE_DEVICE void give_up_on(Control& me, uint32_t rank) {
  device::store_relaxed(&me.broken[rank], 1);
  device::store_relaxed(&me.masked[rank], 1);
}

// ---- Sessions

// In a word `opened`.
TOWLINE_DEVICE uint64_t nonce_of(uint64_t opened) { return opened & 0xffffffff; }
TOWLINE_DEVICE uint64_t heard_of(uint64_t opened) { return opened >> 32; }

// Opens a session with a rank. Its nonce differs from this rank's last one, of which flags may still lie here, and from the one
// that lies at the peer, which has to see a change. One thread.
TOWLINE_DEVICE void open_session(const Job& job, Control& me, uint32_t rank) {
  uint64_t* const word = &peer_control(me, rank).opened[job.rank];
  const uint64_t there = nonce_of(device::load_acquire(word));
  uint64_t session = me.mine[rank] & kSessionMask;
  if (there >> kTagShift == job.tag && (there & kSessionMask) > session) session = there & kSessionMask;
  const uint64_t skipped = me.fresh[rank] != 0 ? kSkipped : 0;
  const uint64_t nonce =
      static_cast<uint64_t>(job.tag) << kTagShift | skipped | ((session + 1) & kSessionMask);
  me.mine[rank] = nonce;
  me.sent[rank] = 0;
  me.got[rank] = 0;
  me.barriers[rank] = 0;
  me.fresh[rank] = 1;
  me.broken[rank] = 0;
  device::store_release(word, nonce);
}

// The rank has opened a session after the one that this one used last. One thread.
TOWLINE_DEVICE bool has_opened(const Control& me, uint32_t rank, uint64_t opened) {
  return nonce_of(opened) != me.theirs[rank] && nonce_of(opened) >> kTagShift == me.tag[rank];
}
TOWLINE_DEVICE bool has_opened(const Control& me, uint32_t rank) {
  return has_opened(me, rank, device::load_acquire(&from_peer(me, rank).opened[rank]));
}

// The same, and it is the session that belongs to this one's. If one of both has skipped a session, that is known only when each has heard the
// other's nonce in its first exchange. `told`: the nonce that this thread has said it heard. One thread.
TOWLINE_DEVICE bool has_met(const Job& job, const Control& me, uint32_t rank, uint64_t& told) {
  const uint64_t opened = device::load_acquire(&from_peer(me, rank).opened[rank]);
  if (!has_opened(me, rank, opened)) return false;
  const uint64_t nonce = nonce_of(opened);
  if (((nonce | me.mine[rank]) & kSkipped) == 0) return true;
  if (nonce != told)
    device::store_release(&peer_control(me, rank).opened[job.rank], me.mine[rank] | nonce << 32);
  told = nonce;
  return heard_of(opened) == me.mine[rank];
}

// How many exchanges of this session the rank has yet to take. One thread.
TOWLINE_DEVICE uint32_t still_to_take(const Control& me, uint32_t rank) {
  const uint64_t taken = device::load_acquire(&from_peer(me, rank).taken[rank]);
  const uint32_t seen = taken >> 32 == me.mine[rank] ? static_cast<uint32_t>(taken) : 0;
  return static_cast<uint32_t>(me.sent[rank]) - seen;
}

// May this rank send to that one? Waits until it has opened the session and taken all exchanges but one; a rank that does not is
// masked. One thread.
TOWLINE_DEVICE bool await_room(const Job& job, Control& me, uint32_t rank) {
  if (me.peer[rank] == 0) return false;
  Waiter waiter;
  uint64_t told = 0;
  for (;;) {
    if (is_masked(me, rank) || device::load_relaxed(&me.broken[rank]) != 0) {
      give_up_on(me, rank);  // it misses this exchange
      return false;
    }
    if (me.fresh[rank] != 0 ? has_met(job, me, rank, told) : still_to_take(me, rank) <= 1) return true;
    if (give_up(job, waiter)) {
      give_up_on(me, rank);
      return false;
    }
  }
}

// After await_room(): takes the session's nonce of the other side. One thread.
TOWLINE_DEVICE void join_session(Control& me, uint32_t rank) {
  if (me.fresh[rank] == 0) return;
  me.theirs[rank] = nonce_of(device::load_acquire(&from_peer(me, rank).opened[rank]));
  me.fresh[rank] = 0;
}

// This rank has sent its part of the exchange that it is to receive from that rank.
TOWLINE_DEVICE bool takes_part(const Control& me, uint32_t rank) {
  return me.peer[rank] != 0 && !is_masked(me, rank) && device::load_relaxed(&me.broken[rank]) == 0 &&
         me.fresh[rank] == 0 && me.sent[rank] != me.got[rank];
}

// To the rank's proxy, after all that the exchange has of this rank. One thread.
TOWLINE_DEVICE void say_ready(const Job& job, Control& me, uint32_t rank) {
  device::store_release(&peer_control(me, rank).ready[me.sent[rank] & 1][job.rank],
                        make_flag(me.theirs[rank], me.sent[rank], 0));
}

// Waits for a flag. False: it did not come, or the rank was masked meanwhile. One thread.
TOWLINE_DEVICE bool await_flag(const Job& job, const Control& me, uint32_t rank, const uint64_t* flag,
                               const uint32_t* stop) {
  const uint64_t head = flag_head(me.mine[rank], me.got[rank] + 1);
  Waiter waiter;
  for (;;) {
    if (device::load_acquire(flag) >> kCountBits == head) return true;
    if (is_masked(me, rank) || *static_cast<const volatile uint32_t*>(stop) != 0 || give_up(job, waiter))
      return false;
  }
}

// Tells every rank what this one has taken. In the last block, all threads.
TOWLINE_DEVICE void tell_taken(const Job& job, Control& me) {
  for (uint32_t rank = device::thread(); rank < job.ranks; rank += device::threads()) {
    if (me.peer[rank] == 0 || is_masked(me, rank) || me.fresh[rank] != 0) continue;
    device::store_release(&peer_control(me, rank).taken[job.rank],
                          me.theirs[rank] << 32 | static_cast<uint32_t>(me.got[rank]));
  }
}

// Waits until no rank of the mask can read what this one has put in batches. This rank reads nothing any more, and says so first: a
// dispatch that failed was not received. A rank that has opened a new session has ended its reads of the one before. All threads.
TOWLINE_DEVICE void await_end_of_reads(const Job& job, Control& me, uint64_t ranks) {
  tell_taken(job, me);
  auto* const reads = reinterpret_cast<Report*>(job.batch.report)->reads;
  for (uint32_t rank = device::thread(); rank < job.ranks; rank += device::threads()) {
    Waiter waiter;
    bool may_read = (ranks >> rank & 1) != 0 && me.peer[rank] != 0;
    while (may_read) {
      may_read = me.fresh[rank] != 0 ? !has_opened(me, rank) : still_to_take(me, rank) != 0;
      if (may_read && give_up(job, waiter)) break;
    }
    device::store_release(&reads[rank], may_read ? 1 : 0);
  }
}

// The expert that a route names; kNoExpert: none, or one that does not exist.
TOWLINE_DEVICE uint32_t named_expert(const Job& job, uint32_t token, uint32_t k) {
  const int64_t expert = reinterpret_cast<const int64_t*>(job.topk_idx)[uint64_t{token} * job.topk + k];
  if (expert < 0 || expert >= static_cast<int64_t>(uint64_t{job.ranks} * job.layout.local)) return kNoExpert;
  return static_cast<uint32_t>(expert);
}

// The same; kNoExpert for one that the token has named before, too: it gets the token once.
TOWLINE_DEVICE uint32_t expert_of(const Job& job, uint32_t token, uint32_t k) {
  const uint32_t expert = named_expert(job, token, k);
  for (uint32_t before = 0; expert != kNoExpert && before < k; ++before)
    if (named_expert(job, token, before) == expert) return kNoExpert;
  return expert;
}

// ---- Small kernels

TOWLINE_DEVICE void unmask(const Job& job, Control& me, uint32_t rank) {
  if (me.peer[rank] == 0 || !is_masked(me, rank)) return;
  if (job.batch.report != 0)
    device::store_relaxed(&reinterpret_cast<Report*>(job.batch.report)->absent[rank], 0);
  if (device::load_relaxed(&me.broken[rank]) != 0) open_session(job, me, rank);
  device::store_relaxed(&me.masked[rank], 0);
}

TOWLINE_DEVICE void run_command(const Job& job) {
  Control& me = own(job);
  if (job.command == Command::kAwaitReaders) await_end_of_reads(job, me, job.x);
  for (uint32_t rank = device::thread(); rank < job.layout.capacity; rank += device::threads()) {
    const bool named = rank == job.peer;
    switch (job.command) {
      case Command::kMask:
        if (named) device::store_relaxed(&me.masked[rank], 1);
        break;
      case Command::kUnmask:
        if (named) unmask(job, me, rank);
        break;
      case Command::kClean:
        if (me.peer[rank] == 0)
          device::store_relaxed(&me.masked[rank], 1);
        else
          unmask(job, me, rank);
        break;
      case Command::kQuery:
        reinterpret_cast<int32_t*>(job.out)[rank] = is_masked(me, rank) ? 1 : 0;
        break;
      case Command::kConnect:
        if (!named) break;
        me.peer[rank] = job.x;
        me.slots[rank] = job.scales;
        me.from[rank] = job.out;
        me.tag[rank] = job.peer_tag;
        me.host[rank] = job.topk_idx;
        give_up_on(me, rank);
        break;
      case Command::kDisconnect:
        if (!named) break;
        give_up_on(me, rank);
        me.peer[rank] = 0;
        break;
      case Command::kAwaitReaders:
        break;
    }
  }
}

// All ranks that this one does not mask. One that does not come is masked. One block.
TOWLINE_DEVICE void run_barrier(const Job& job) {
  Control& me = own(job);
  for (uint32_t rank = device::thread(); rank < job.layout.capacity; rank += device::threads()) {
    if (me.peer[rank] == 0 || is_masked(me, rank) || !await_room(job, me, rank)) continue;
    join_session(me, rank);
    device::store_release(&peer_control(me, rank).met[job.rank],
                          me.theirs[rank] << 32 | static_cast<uint32_t>(++me.barriers[rank]));
  }
  for (uint32_t rank = device::thread(); rank < job.layout.capacity; rank += device::threads()) {
    if (me.peer[rank] == 0 || is_masked(me, rank) || me.fresh[rank] != 0) continue;
    Waiter waiter;
    for (;;) {
      const uint64_t met = device::load_acquire(&from_peer(me, rank).met[rank]);
      if (met >> 32 == me.mine[rank] &&
          static_cast<int32_t>(static_cast<uint32_t>(met) - static_cast<uint32_t>(me.barriers[rank])) >= 0)
        break;
      if (is_masked(me, rank)) break;
      if (give_up(job, waiter)) {
        give_up_on(me, rank);
        break;
      }
    }
  }
}

}  // namespace towline::collectives::experts
