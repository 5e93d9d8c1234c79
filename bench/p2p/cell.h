// A cell is an operation on `count` blocks of `block` bytes. Both processes make the same block lists from
// the same seed, so only a cell's three numbers are sent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace bench {

enum class Op { kWrite, kRead };

struct Cell {
  Op op = Op::kWrite;
  std::size_t block = 0;  // bytes
  std::size_t count = 0;

  std::size_t bytes() const { return block * count; }
  std::string op_name() const { return op == Op::kWrite ? "WRITE" : "READ"; }
  std::string name() const;  // "WRITE 4 KiB x 64"
};

// Block indices (offset / block) on both sides, each drawn at random without repetition over the whole span.
struct BlockLists {
  std::vector<std::uint64_t> local;
  std::vector<std::uint64_t> remote;
};

// The rows of issue 3's table for both operations, largest blocks last. `span` bounds the largest cell.
std::vector<Cell> default_cells(std::size_t span);

BlockLists make_lists(const Cell& cell, std::size_t span);

// "4k", "64K", "1MiB", "64m", "4096" -> bytes. Throws std::invalid_argument.
std::size_t parse_size(const std::string& text);
std::string size_name(std::size_t bytes);
// "WRITE:4k:1024". Throws std::invalid_argument.
Cell parse_cell(const std::string& text);

// Payload: every 8-byte word depends on the block's place in the list, on its own place and on the epoch, so
// that a misplaced, stale or torn block is seen. Python computes the same (peers/nixl/peer.py).
inline std::uint64_t stamp(std::uint64_t epoch, std::uint64_t index, std::uint64_t word) {
  return epoch * 0x9E3779B97F4A7C15ull + index * 0xC2B2AE3D27D4EB4Full + word * 0x165667B19E3779F9ull;
}

void stamp_blocks(std::byte* base, const std::vector<std::uint64_t>& blocks, std::size_t block,
                  std::uint64_t epoch);

// Number of blocks that do not hold the stamp; 0 is right.
std::size_t count_wrong_blocks(const std::byte* base, const std::vector<std::uint64_t>& blocks,
                               std::size_t block, std::uint64_t epoch);

}  // namespace bench
