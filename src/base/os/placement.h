// Where an agent's progress threads run: on the NUMA nodes of the devices that they serve.
#pragma once

#include <pthread.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace towline {

struct WorkerPlace {
  std::vector<uint32_t> cpus;    // that it may run on, ascending; empty: any
  std::optional<uint32_t> node;  // whose memory it prefers
  std::string why;               // for people
};

// A place for each worker by the setting tuning.workers.place:
//   any           none is bound
//   auto          the nodes with network cards, RDMA devices and GPUs, those with most of them first, in turn; none is
//                 bound on a host of one node
//   node:1,0      these nodes, in turn
//   cpus:0-3/8,9  these processors, in turn
// Throws Error(kInvalidArgument) naming what is wrong with it, such as a node that is not there. root is the prefix of
// /sys, for tests.
std::vector<WorkerPlace> place_workers(const std::string& setting, uint32_t workers,
                                       const std::string& root = "");

// Binds a thread, by default the calling one. 0, or an errno.
int run_on(std::span<const uint32_t> cpus, pthread_t thread = pthread_self()) noexcept;

}  // namespace towline
