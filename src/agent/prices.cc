#include "agent/prices.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "towline/plugin/v1.h"
#include "towline/towline.h"

namespace towline {

namespace {

constexpr uint32_t kSmallestShift = 12;  // 4 KiB
constexpr uint32_t kClassShift = 3;      // each class reaches eight times as far as the one before
constexpr uint32_t kMostSamples = 65535;
constexpr float kWindow = 16;      // a new report changes the average by 1/16 at least
constexpr float kLargestStep = 4;  // a report counts as at most so many times the average: pauses happen
constexpr float kErrorUnits = 256;

struct Cell {
  float factor;
  float error;  // relative to the factor
  uint32_t samples;
};

Cell unpack(uint64_t word) noexcept {
  return {std::bit_cast<float>(static_cast<uint32_t>(word >> 32)),
          static_cast<float>(word >> 16 & 0xffff) / kErrorUnits, static_cast<uint32_t>(word & 0xffff)};
}

uint64_t pack(const Cell& cell) noexcept {
  const auto error = static_cast<uint64_t>(std::min(cell.error * kErrorUnits, 65535.0F));
  return uint64_t{std::bit_cast<uint32_t>(cell.factor)} << 32 | error << 16 | cell.samples;
}

}  // namespace

uint32_t PriceRow::class_of(uint64_t bytes) noexcept {
  const uint64_t units = (bytes == 0 ? 0 : bytes - 1) >> kSmallestShift;
  const uint32_t bits = static_cast<uint32_t>(std::bit_width(units));
  return std::min((bits + kClassShift - 1) / kClassShift, kClasses - 1);
}

uint64_t PriceRow::largest_of(uint32_t size_class) noexcept {
  return size_class + 1 >= kClasses ? UINT64_MAX : uint64_t{1} << (kSmallestShift + kClassShift * size_class);
}

// 10 (in-process copy): 0.3 us and 10 GB/s; 20: 1.2 us, 5 GB/s; 100 (network): 30 us, 1 GB/s.
double PriceRow::declared_ns(uint64_t bytes) const noexcept {
  const double cost = std::max<uint32_t>(cost_.load(std::memory_order_relaxed), 1);
  return 3 * cost * cost + static_cast<double>(bytes) * cost / 100;
}

void PriceRow::report(uint64_t bytes, uint64_t took_ns) noexcept {
  std::atomic<uint64_t>& word = cells_[class_of(bytes)];
  Cell cell = unpack(word.load(std::memory_order_relaxed));
  const auto seen =
      static_cast<float>(static_cast<double>(std::max<uint64_t>(took_ns, 1)) / declared_ns(bytes));
  if (cell.samples == 0) {
    cell = {seen, 1, 1};
  } else {
    // The first transfers of a process wait for pages and connections that later ones find.
    if (cell.samples < kEnough && seen * kLargestStep < cell.factor) cell.factor = seen;
    const float weight = 1 / std::min(static_cast<float>(cell.samples + 1), kWindow);
    const float counted = std::min(seen, kLargestStep * cell.factor);
    cell.error += (std::abs(counted / cell.factor - 1) - cell.error) * weight;
    cell.factor += (counted - cell.factor) * weight;
    cell.samples = std::min(cell.samples + 1, kMostSamples);
  }
  word.store(pack(cell), std::memory_order_relaxed);
}

Price PriceRow::of(uint64_t bytes) const noexcept {
  const double declared = declared_ns(bytes);
  const uint32_t own = class_of(bytes);
  for (uint32_t distance = 0; distance < kClasses; ++distance) {
    for (const uint32_t other : {own - distance, own + distance}) {  // the smaller one first; wraps to large
      if (other >= kClasses) continue;
      const Cell cell = unpack(cells_[other].load(std::memory_order_relaxed));
      if (cell.samples == 0) continue;
      const double ns = declared * static_cast<double>(cell.factor);
      const double error = distance == 0 ? static_cast<double>(cell.error) : 1;
      return {ns, ns * error, distance == 0 ? cell.samples : 0, distance != 0};
    }
  }
  return {declared, declared, 0, false};
}

uint32_t Prices::number_of_row(uint32_t where, uint32_t op, bool gpu) noexcept {
  const uint32_t distance = std::clamp<uint32_t>(where, TOWLINE_WHERE_SAME_PROCESS, TOWLINE_WHERE_ANY_HOST) -
                            TOWLINE_WHERE_SAME_PROCESS;
  return (distance * kOps + (op == TOWLINE_WRITE ? 1 : 0)) * 2 + (gpu ? 1 : 0);
}

void Prices::declare(uint32_t cost) noexcept {
  cost_.store(cost, std::memory_order_relaxed);
  for (PriceRow& row : rows_) row.declare(cost);
}

Prices& prices_of(std::string_view backend, uint32_t cost) {
  static std::mutex mutex;
  static auto& all =
      *new std::map<std::string, std::unique_ptr<Prices>, std::less<>>;  // outlives every agent
  const std::lock_guard lock(mutex);
  auto found = all.find(backend);
  if (found == all.end()) found = all.emplace(std::string(backend), std::make_unique<Prices>()).first;
  if (found->second->cost() != cost) found->second->declare(cost);
  return *found->second;
}

}  // namespace towline
