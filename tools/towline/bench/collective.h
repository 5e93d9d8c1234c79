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
  bool tcp = false;   // as if every rank ran on its own host
  bool vram = false;  // buffers in memory of GPUs
  uint64_t iterations = 0;
  double seconds = 0.5;
  bool check = true;
  std::vector<std::string> peers{"gloo", "mpi"};  // with vram: "nccl"
  std::string python = "python3";
  std::string nccl_from;  // with vram: tuning.collectives.nccl_from
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(CollectiveOptions, operations, sizes, ranks, tcp, vram, iterations,
                                   seconds, check, peers, python, nccl_from)

// "all_reduce,barrier" or "all". Throws Failure for an unknown name.
[[nodiscard]] std::vector<std::string> parse_collectives(const std::string& text);
// Buffers in host memory (shared) or in GPUs' (vram), whose peer is NCCL. Throws Failure for what does not fit together.
void choose_memory(CollectiveOptions& options, const std::string& kind);
// Uneven parts: 1.5 times `count` for odd ranks, half of `count` for even ranks.
[[nodiscard]] std::vector<uint64_t> uneven_parts(uint64_t count, uint32_t ranks);
// The least that a rank must send, divided by the size: 2 (n-1)/n for all_reduce.
[[nodiscard]] double bus_factor(const std::string& operation, uint32_t ranks);

// The most bytes that inputs and outputs of all ranks and their peers' processes take at a time.
[[nodiscard]] uint64_t buffer_bytes(const CollectiveOptions& options);

// Throws Failure, also if there is too little memory.
void run_collective_bench(const CollectiveOptions& options, const CommonOptions& common);

// The body of a rank's process. `configuration`: {"options", "rank", "size", "folder"}. The first rank
// reports {"peers": {name: {"version": ..} or {"problem": ..}}} and {"row": ..} for each row; every rank
// reports {"done": true}.
void run_collective_rank(const nlohmann::json& configuration, Channel& parent);

}  // namespace tool::bench
