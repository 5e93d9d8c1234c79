// Room for clusters: thread blocks that begin together, on multiprocessors that are neighbours.
//
// Kernels of ranks wait for one another, so the last cluster of the last rank must find room beside all others, and beside another
// communicator's blocks wherever these are (docs/gpu-collectives.md, "Two communicators on one GPU").
#pragma once

#include <algorithm>
#include <cstdint>

namespace towline::collectives::gpu {

// Of a GPU's multiprocessors, at most: GPUs that have more do not run clusters (LoadedKernels::clusters).
inline constexpr uint32_t kNeighbourhoods = 8;

// The multiprocessors that ranks of a GPU share, with a block in each: a large one lacks as many as make room for clusters of two.
constexpr uint32_t usable_multiprocessors(uint32_t all) {
  return all - std::min(all / 32, kNeighbourhoods / 2);
}

// How many clusters of `parts` blocks find room in so many places, each of which has room for `of_place` blocks. Each neighbourhood may have room
// for nearly a cluster, in whole places.
constexpr uint32_t clusters_beside(uint32_t places, uint32_t of_place, uint32_t parts) {
  const uint32_t of_cluster = (parts + of_place - 1) / of_place;
  const uint32_t stuck = kNeighbourhoods * (of_cluster - 1);
  return places <= stuck ? 0 : (places - stuck - 1) / of_cluster + 1;
}

}  // namespace towline::collectives::gpu
