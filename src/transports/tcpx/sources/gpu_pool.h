// Receive memory on a GPU, from the backend of this agent that copies GPU memory (towline/plugin/landing.h).
#pragma once

#include <towline/plugin/landing.h>

#include <cstdint>
#include <string>

#include "towline/plugin/backend.hpp"
#include "transports/tcpx/sources/source.h"

namespace towline::tcpx {

struct GpuPoolWish {
  std::string gpu;  // its PCI address; empty: one that the process uses
  uint64_t bytes = 0;
  int given = -1;  // a descriptor of memory there that another process has exported; -1: new memory
};

class GpuPool final : public PoolReader {
 public:
  // Throws Error that says why it can't be had.
  GpuPool(const plugin::Host& host, const GpuPoolWish& wish);
  ~GpuPool() override;

  [[nodiscard]] const towline_landing_pool_info& info() const noexcept { return info_; }
  [[nodiscard]] Pool pool() noexcept;
  [[nodiscard]] std::string where() const;  // for people

  [[nodiscard]] uint64_t device() const noexcept override { return info_.device; }
  [[nodiscard]] Status reach(framing::Lander& lander) noexcept override;
  [[nodiscard]] Status read(std::span<const towline_landing_piece> pieces, uint8_t* to,
                            int32_t& vendor_code) noexcept override;

 private:
  const towline_landing_table_v1* table_ = nullptr;
  towline_landing_pool* pool_ = nullptr;
  towline_landing_pool_info info_ = {};
};

}  // namespace towline::tcpx
