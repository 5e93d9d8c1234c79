// Prices of ways, as measured in this process: per backend, distance of the peer, direction, whether a GPU's memory
// takes part, and size class.
//
// A price is the time of one transfer that has its connection to itself. It starts as the backend's declared cost,
// and is kept as a factor to that, so that one figure serves every size of a class. Transfers whose times are known
// report them; posts that read no clock are timed one in 64 or fewer (post.cc). Reporting takes no lock and allocates
// nothing; two threads that report at once may lose one report.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string_view>

namespace towline {

struct Price {
  double ns;         // of one transfer
  double error_ns;   // by how much reports differed from it, on average; nothing measured: the price itself
  uint32_t samples;  // of this size class, up to 65,535
  bool nearby;       // none of this class: by what the nearest measured class cost
};

// Prices of one backend, distance, direction and sort of memory.
class PriceRow {
 public:
  // Sizes up to 4 KiB, 32 KiB, 256 KiB, ..., 1 GiB, and all above.
  static constexpr uint32_t kClasses = 8;
  static constexpr uint32_t kEnough = 8;  // samples, before prices change an order

  void declare(uint32_t cost) noexcept { cost_.store(cost, std::memory_order_relaxed); }
  // Reports that a transfer of so many bytes took so long. Any thread.
  void report(uint64_t bytes, uint64_t took_ns) noexcept;
  [[nodiscard]] Price of(uint64_t bytes) const noexcept;
  [[nodiscard]] uint32_t samples(uint64_t bytes) const noexcept { return samples_of_class(class_of(bytes)); }
  [[nodiscard]] uint32_t samples_of_class(uint32_t size_class) const noexcept {
    return static_cast<uint32_t>(cells_[size_class].load(std::memory_order_relaxed) & 0xffff);
  }

  static uint32_t class_of(uint64_t bytes) noexcept;
  static uint64_t largest_of(uint32_t size_class) noexcept;  // bytes; UINT64_MAX for the last class

 private:
  [[nodiscard]] double declared_ns(uint64_t bytes) const noexcept;

  std::atomic<uint32_t> cost_{0};
  // The factor to the declared price (a float), its mean relative error (1/256) and samples, in one word.
  std::array<std::atomic<uint64_t>, kClasses> cells_ = {};
};

// Agents of one process that use the same backend share its prices.
class Prices {
 public:
  // `where`: TOWLINE_WHERE_*. `op`: towline_op_t. Other values are taken as the nearest known one.
  [[nodiscard]] PriceRow& row(uint32_t where, uint32_t op, bool gpu) noexcept {
    return row(number_of_row(where, op, gpu));
  }
  // The same in two steps, for the prices of several backends.
  [[nodiscard]] static uint32_t number_of_row(uint32_t where, uint32_t op, bool gpu) noexcept;
  [[nodiscard]] PriceRow& row(uint32_t number) noexcept { return rows_[number]; }
  void declare(uint32_t cost) noexcept;
  [[nodiscard]] uint32_t cost() const noexcept { return cost_.load(std::memory_order_relaxed); }

  static constexpr uint32_t kDistances = 3;
  static constexpr uint32_t kOps = 2;

 private:
  std::atomic<uint32_t> cost_{0};
  std::array<PriceRow, kDistances * kOps * 2> rows_;
};

// The process's prices of the backend with this name; they live as long as the process. Control path, any thread.
Prices& prices_of(std::string_view backend, uint32_t cost);

}  // namespace towline
