// One line of a bench: what it measures and where its bytes lie. Both sides compute this from the same
// numbers, so only a seed is sent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <towline/towline.hpp>
#include <vector>

namespace tool::bench {

// Which initiators exchange data with which targets.
//   pairwise    initiator i with target i
//   manytoone   every initiator with the one target
//   onetomany   the one initiator with every target, at once
//   tp          like two tensor parallel groups of different size: each block is whole on a rank of the
//               smaller side and split over ranks of the larger side
enum class Pattern { kPairwise, kManyToOne, kOneToMany, kTensorParallel };

[[nodiscard]] Pattern parse_pattern(const std::string& text);
// Throws Failure if the pattern does not allow these numbers of processes.
void check_pattern(Pattern pattern, uint32_t initiators, uint32_t targets);

// The places of an initiator's blocks against those of one target.
struct Share {
  uint32_t target = 0;
  uint64_t local_block = 0;   // bytes from one block to the next, here
  uint64_t remote_block = 0;  // and there
  uint64_t local_offset = 0;  // of the part that is moved, in the block
  uint64_t remote_offset = 0;
  uint64_t length = 0;
};
[[nodiscard]] std::vector<Share> shares_of(Pattern pattern, uint32_t initiators, uint32_t targets,
                                           uint32_t initiator, uint64_t block_bytes);

struct Row {
  std::string from =
      "initiator";     // the side that bytes come from: that, or target; of storage: storage, memory, mixed
  uint64_t size = 0;   // bytes of a block
  uint64_t batch = 0;  // blocks of a request, in each thread
  uint32_t threads = 1;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Row, from, size, batch, threads)

// What --from names: one of the sides, or each of them. Throws Failure.
[[nodiscard]] std::vector<std::string> sides_of(const std::string& from,
                                                const std::vector<std::string>& sides);

// The number that fills 64 MiB, but at most 16,384.
[[nodiscard]] uint64_t default_batch(uint64_t size);

// One thread's blocks lie spread over an area: how many blocks fit into it, and which of them the thread
// uses.
[[nodiscard]] uint64_t area_blocks(const Row& row, uint64_t span_bytes);
struct Order {
  uint64_t seed = 0;
  uint32_t initiator = 0;
  uint32_t thread = 0;
  bool remote = false;
  bool sequential = false;
};
[[nodiscard]] std::vector<uint32_t> pick_blocks(const Row& row, uint64_t span_bytes, const Order& order);

// A side's state for one thread of one share.
struct Area {
  uint64_t base = 0;      // address of the part that is moved of block 0
  uint64_t stride = 0;    // from block to block
  uint64_t length = 0;    // of the part
  uint64_t identity = 0;  // made from initiator, thread and target; part of the stamps
};

// Writes the stamps of (identity, position, epoch) into the picked blocks.
void fill_blocks(const Area& area, const std::vector<uint32_t>& picks, uint64_t epoch);
// Checks every byte and returns the number of wrong blocks.
[[nodiscard]] uint64_t count_wrong_blocks(const Area& area, const std::vector<uint32_t>& picks,
                                          uint64_t epoch);

}  // namespace tool::bench
