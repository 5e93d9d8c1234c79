// towline bench --fabric: an engine of the fabric in each of two processes, without agents. One owns memory, the other
// one moves pages, single ranges and immediates, and every byte is checked where it arrived.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "channel.h"
#include "options.h"

namespace tool::bench {

struct FabricRow {
  std::string kind = "paged";      // paged, single or immediate
  std::string from = "initiator";  // the side that bytes come from: that, or target; of immediates: both
  uint64_t size = 0;               // bytes of a page, or of a range
  uint64_t batch = 1;              // pages of a transfer
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(FabricRow, kind, from, size, batch)

struct FabricBenchOptions {
  std::vector<std::string> rails;  // as towline_fabric_create takes them
  std::string listen;              // own memory for a mover on another host, until Ctrl-C
  std::string connect;             // what the owner on another host has printed
  std::vector<FabricRow> rows;
  std::string memory = "shared";         // of the mover: "vram", or else the host's
  std::string target_memory = "shared";  // of the owner
  uint64_t span_bytes = 0;               // of the memory on either side
  uint64_t iterations = 0;               // 0: as many as fit into `seconds`
  double seconds = 0;
  uint64_t warmup = 0;
  bool check = true;
};

// Pages and ranges of each size from each side that `from` names (sides_of), then immediates. Throws Failure if one does not fit into the span.
[[nodiscard]] std::vector<FabricRow> fabric_rows(const std::string& from, const std::vector<uint64_t>& sizes,
                                                 const std::vector<uint64_t>& batches, uint64_t span_bytes);

// Fills memory with the pattern that belongs to this offset and seed.
void fill_pattern(std::span<std::byte> memory, uint64_t offset, uint64_t seed);
// The bytes that differ from it.
[[nodiscard]] uint64_t wrong_bytes(std::span<const std::byte> memory, uint64_t offset, uint64_t seed);

// The data that an owner hands over: its engine's address and its memory's descriptor.
struct FabricInvitation {
  std::vector<uint8_t> address;
  std::vector<uint8_t> descriptor;
  [[nodiscard]] std::string text() const;
  // Throws Failure.
  [[nodiscard]] static FabricInvitation parse(const std::string& text);
};

// Throws Failure for a rail that reaches engines of its own process only.
void need_rails_between_processes(const std::vector<std::string>& rails);

void run_fabric_bench(const FabricBenchOptions& options, const CommonOptions& common);

// The two processes.
void run_fabric_owner(const nlohmann::json& configuration, Channel& parent);
void run_fabric_mover(const nlohmann::json& configuration, Channel& parent);

}  // namespace tool::bench
