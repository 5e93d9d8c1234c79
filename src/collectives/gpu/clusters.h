// Room for clusters: thread blocks that begin together, on multiprocessors that are neighbours.
//
// Kernels of ranks wait for one another, so the last cluster of the last rank must find room beside all others, and beside another
// communicator's blocks wherever these are (docs/gpu-collectives.md, "Two communicators on one GPU").
#pragma once

#include <algorithm>
#include <cstdint>

namespace towline::collectives::gpu {

// Groups of multiprocessors that a GPU has at most. GPUs with more of them run no clusters (LoadedKernels::clusters).
inline constexpr uint32_t kNeighbourhoods = 8;

// The multiprocessors that the ranks of a GPU share, a block for each. A large GPU leaves a few out, so that clusters of two always have room.
constexpr uint32_t usable_multiprocessors(uint32_t all) {
  return all - std::min(all / 32, kNeighbourhoods / 2);
}

// How many clusters of `parts` blocks find room in `places`, of `of_place` blocks each, wherever these are: every neighbourhood may be one place
// short of a cluster.
constexpr uint32_t clusters_beside(uint32_t places, uint32_t of_place, uint32_t parts) {
  const uint32_t of_cluster = (parts + of_place - 1) / of_place;
  const uint32_t stuck = kNeighbourhoods * (of_cluster - 1);
  return places <= stuck ? 0 : (places - stuck - 1) / of_cluster + 1;
}

}  // namespace towline::collectives::gpu
