// Which ranks share a host, from the ranks' descriptions of themselves.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/os/host_identity.h"

namespace towline::rendezvous {

struct RankInfo {
  HostIdentity host;
  std::string host_name;
  std::string label;  // setting collectives.host: ranks with different ones count as on different hosts
  std::vector<uint32_t> processors;    // this rank may use, ascending
  uint32_t numa_node = 0;              // of the processor it ran on
  std::vector<std::string> endpoints;  // where it accepts connections, best first
  std::string settings;                // settings that must be the same on all ranks
};

// Describes the calling process.
RankInfo this_rank();

std::vector<uint8_t> encode(const RankInfo& info);
// Throws Error(kProtocol).
RankInfo decode(std::span<const uint8_t> bytes, int rank);

// Groups of ranks that share memory, each in rank order, groups in the order of their first rank. Without
// shared memory every rank is a group.
std::vector<std::vector<int>> hosts_of(const std::vector<RankInfo>& ranks, bool shared_memory);

// True if ranks on the machine of `rank`, all or some of them, outnumber the processors that they may use.
// Ranks bound to one processor each do not.
bool crowded(const std::vector<RankInfo>& ranks, int rank);

// "rank 2 (process 1234 on host-a)".
std::string name_of(int rank, const RankInfo& info);

}  // namespace towline::rendezvous
