// Between hosts a dispatch sends a token once to each host: to one of the ranks there that get it or not, the *relay*, in whose memory the
// others read it (docs/experts.md). The relay's kernels have no part in this. The source's proxy tells the others when the rows are there.
#pragma once

#include "collectives/experts/pairs.h"

namespace towline::collectives::experts {

// The rank of its host in whose memory `rank` reads what `source` puts: itself, but for what a dispatch sends to another host. There it is
// the one whose place in its host is the source's in its own, so that each of them is the relay of as many. All ranks find the same.
TOWLINE_DEVICE uint32_t relay_of(const Job& job, const Control& me, uint32_t source, uint32_t rank) {
  if (job.batch.relays == 0 || me.host[source] == me.host[rank]) return rank;
  uint32_t place = 0;
  uint32_t there = 0;
  for (uint32_t other = 0; other < job.ranks; ++other) {
    if (other < source && me.host[other] == me.host[source]) ++place;
    if (me.host[other] == me.host[rank]) ++there;
  }
  place %= there;
  for (uint32_t other = 0; other < job.ranks; ++other)
    if (me.host[other] == me.host[rank] && place-- == 0) return other;
  return rank;
}

TOWLINE_DEVICE bool is_alone(const Job& job, const Control& me, uint32_t rank) {
  for (uint32_t other = 0; other < job.ranks; ++other)
    if (other != rank && me.host[other] == me.host[rank]) return false;
  return true;
}

// The shape that goes with a flag. It names the relay, and the member that it is, so that nobody reads elsewhere than the source has sent.
TOWLINE_DEVICE uint64_t shape_through(const Job& job, const Control& me, uint32_t relay, uint32_t rank) {
  if (relay == rank) return job.batch.shape;
  return job.batch.shape ^ (me.tag[relay] << 8 | relay) << 1;
}

// For the proxy, in the rank's image: the flag of the exchange by which the rows get to the relay, with the relay + 1 as its count. 0: nobody reads
// them in another rank's memory. The relay's exchange is published.
TOWLINE_DEVICE uint64_t via_of(const Job& job, const Control& me, uint32_t rank) {
  if (job.batch.relays == 0 || is_alone(job, me, rank)) return 0;
  const uint32_t relay = relay_of(job, me, job.rank, rank);
  return make_flag(me.theirs[relay], me.sent[relay], relay + 1);
}
TOWLINE_DEVICE uint32_t relay_in(uint64_t via) { return flag_count(via) - 1; }
TOWLINE_DEVICE bool reads_elsewhere(uint32_t rank, uint64_t via) { return via != 0 && relay_in(via) != rank; }

// The relays of all ranks, in scratch.routes. All threads.
TOWLINE_DEVICE void find_relays(const Job& job, const Control& me, Scratch& scratch) {
  if (job.batch.relays == 0) return;
  for (uint32_t rank = device::thread(); rank < job.ranks; rank += device::threads())
    scratch.routes[rank] = relay_of(job, me, job.rank, rank);
  device::sync();
}

}  // namespace towline::collectives::experts
