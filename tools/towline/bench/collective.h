// Collective operations among processes of this host: `towline bench --collective`.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "channel.h"
#include "options.h"

namespace tool::bench {

struct CollectiveOptions {
  std::vector<std::string> operations;  // empty: no collectives
  std::vector<uint64_t> sizes;  // bytes of the larger side: the whole buffer, all ranks' parts together
  std::vector<uint32_t> ranks{2};
  bool tcp = false;  // as if every rank were on a host of its own
  uint64_t iterations = 0;
  double seconds = 0.5;
  bool check = true;
  std::vector<std::string> peers{"gloo", "mpi"};
  std::string python = "python3";
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(CollectiveOptions, operations, sizes, ranks, tcp, iterations, seconds,
                                   check, peers, python)

// "all_reduce,barrier" or "all". Throws Failure where a name is none.
[[nodiscard]] std::vector<std::string> parse_collectives(const std::string& text);
// Parts of ranks that are not alike: half as much again as `count` of odd ones, half of even ones.
[[nodiscard]] std::vector<uint64_t> uneven_parts(uint64_t count, uint32_t ranks);
// What a rank has to send at least, over the size: 2 (n-1)/n for all_reduce.
[[nodiscard]] double bus_factor(const std::string& operation, uint32_t ranks);

// What inputs and outputs take at most, of the ranks and of their peers' processes, at a time.
[[nodiscard]] uint64_t buffer_bytes(const CollectiveOptions& options);

// Throws Failure, also where memory does not suffice.
void run_collective_bench(const CollectiveOptions& options, const CommonOptions& common);

// The body of a rank's process. `configuration`: {"options", "rank", "size", "folder"}. The first rank
// reports
// {"peers": {name: {"version": ..} or {"problem": ..}}}, {"row": ..} for each, every rank {"done": true}.
void run_collective_rank(const nlohmann::json& configuration, Channel& parent);

}  // namespace tool::bench
