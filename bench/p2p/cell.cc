#include "cell.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <numeric>
#include <random>
#include <stdexcept>

namespace bench {
namespace {

constexpr std::size_t kKiB = 1024;
constexpr std::size_t kMiB = 1024 * kKiB;

std::vector<std::uint64_t> sample(std::size_t count, std::size_t slots, std::uint64_t seed) {
  if (count > slots)
    throw std::invalid_argument(fmt::format("{} blocks do not fit into {} places", count, slots));
  std::vector<std::uint64_t> all(slots);
  std::iota(all.begin(), all.end(), 0);
  std::mt19937_64 random(seed);
  for (std::size_t i = 0; i < count; ++i) std::swap(all[i], all[i + random() % (slots - i)]);
  all.resize(count);
  return all;
}

}  // namespace

std::string size_name(std::size_t bytes) {
  if (bytes % kMiB == 0) return fmt::format("{} MiB", bytes / kMiB);
  if (bytes % kKiB == 0) return fmt::format("{} KiB", bytes / kKiB);
  return fmt::format("{} B", bytes);
}

std::size_t parse_size(const std::string& text) {
  std::size_t digits = 0;
  const std::size_t number = std::stoull(text, &digits);
  switch (digits < text.size() ? std::tolower(text[digits]) : 'b') {
    case 'b':
      return number;
    case 'k':
      return number * kKiB;
    case 'm':
      return number * kMiB;
    case 'g':
      return number * kMiB * 1024;
    default:
      throw std::invalid_argument("not a size: " + text);
  }
}

Cell parse_cell(const std::string& text) {
  const std::size_t first = text.find(':');
  const std::size_t second = text.find(':', first + 1);
  if (second == std::string::npos) throw std::invalid_argument("a cell is OP:BLOCK:COUNT, not " + text);
  const bool read = text.substr(0, first) == "READ";
  return {read ? Op::kRead : Op::kWrite, parse_size(text.substr(first + 1, second - first - 1)),
          std::stoul(text.substr(second + 1))};
}

std::string Cell::name() const { return fmt::format("{} {} x {}", op_name(), size_name(block), count); }

std::vector<Cell> default_cells(std::size_t span) {
  struct Row {
    std::size_t block;
    std::vector<std::size_t> counts;
  };
  const std::vector<Row> rows = {{4 * kKiB, {1, 64, 1024, 16384}},
                                 {64 * kKiB, {1, 64, 1024}},
                                 {kMiB, {1, 64, 512}},
                                 {64 * kMiB, {1, 8}}};
  std::vector<Cell> cells;
  for (Op op : {Op::kWrite, Op::kRead})
    for (const Row& row : rows)
      for (std::size_t count : row.counts)
        if (row.block * count <= span) cells.push_back({op, row.block, count});
  return cells;
}

BlockLists make_lists(const Cell& cell, std::size_t span) {
  const std::uint64_t seed = cell.block * 1'000'003 + cell.count;
  const std::size_t slots = span / cell.block;
  return {sample(cell.count, slots, seed), sample(cell.count, slots, seed + 1)};
}

void stamp_blocks(std::byte* base, const std::vector<std::uint64_t>& blocks, std::size_t block,
                  std::uint64_t epoch) {
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    auto* words = reinterpret_cast<std::uint64_t*>(base + blocks[i] * block);
    for (std::size_t w = 0; w < block / 8; ++w) words[w] = stamp(epoch, i, w);
  }
}

std::size_t count_wrong_blocks(const std::byte* base, const std::vector<std::uint64_t>& blocks,
                               std::size_t block, std::uint64_t epoch) {
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const auto* words = reinterpret_cast<const std::uint64_t*>(base + blocks[i] * block);
    std::uint64_t difference = 0;
    for (std::size_t w = 0; w < block / 8; ++w) difference |= words[w] ^ stamp(epoch, i, w);
    wrong += difference != 0;
  }
  return wrong;
}

}  // namespace bench
