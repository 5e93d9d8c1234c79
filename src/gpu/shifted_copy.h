// Copies between addresses that lie differently in their 16 bytes, for kernels and for tests on the host. The target is
// written in units of 16 bytes; each is cut out of two neighbouring units of the source. Both hold bytes that are to
// be copied, so nothing is read from another page than these lie on.
#pragma once

#include <stdint.h>

#include "copy_job.h"

namespace towline::cuda {

struct Unit16 {
  uint32_t words[4];
};

// The target's bytes before its first whole unit, and behind its last.
struct Edges {
  uint32_t head;
  uint32_t units;
  uint32_t tail;
};

TOWLINE_HOST_DEVICE Edges edges_of(uint64_t to, uint32_t bytes) {
  uint32_t head = static_cast<uint32_t>(-to) & 15;
  if (head > bytes) head = bytes;
  const uint32_t units = (bytes - head) / 16;
  return {head, units, bytes - head - units * 16};
}

// Edge bytes are numbered from 0: where such a byte lies in the copy.
TOWLINE_HOST_DEVICE uint32_t edge_at(const Edges& edges, uint32_t number) {
  return number < edges.head ? number : number + edges.units * 16;
}

TOWLINE_HOST_DEVICE uint32_t shift_words(uint32_t low, uint32_t high, uint32_t bits) {
  return static_cast<uint32_t>(((static_cast<uint64_t>(high) << 32) | low) >> bits);
}

// The 16 bytes that begin kWords words and `bits` bits into `low`; `high` follows it.
template <uint32_t kWords>
TOWLINE_HOST_DEVICE Unit16 shift_unit(const Unit16& low, const Unit16& high, uint32_t bits) {
  const uint32_t all[8] = {low.words[0],  low.words[1],  low.words[2],  low.words[3],
                           high.words[0], high.words[1], high.words[2], high.words[3]};
  Unit16 made;
#ifdef __CUDACC__
#pragma unroll
#endif
  for (uint32_t i = 0; i < 4; ++i) made.words[i] = shift_words(all[kWords + i], all[kWords + i + 1], bits);
  return made;
}

}  // namespace towline::cuda
