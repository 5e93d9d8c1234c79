// An emulated NIC: payload is received into pages of a pool of host memory in random order, in fragments of odd
// lengths at odd offsets, with linear pieces between them and now and then only a few of them at a time, as a short
// control buffer would. A seed decides what comes. For tests, and for machines whose NIC can't do it.
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <vector>

#include "base/os/memfd.h"
#include "base/random.h"
#include "transports/tcpx/sources/held_tokens.h"
#include "transports/tcpx/sources/pool_memory.h"
#include "transports/tcpx/sources/source.h"

namespace towline::tcpx {

struct EmulatedOptions {
  uint64_t pool_bytes = 16u << 20;
  uint64_t seed = 1;
  bool odd = true;  // false: whole pages only, as a NIC with large packets would
};

class EmulatedSource final : public Source {
 public:
  static constexpr uint32_t kPageBytes = 4096;

  // `gpu`: memory of a GPU that the processor finds, too, in place of host memory; or null.
  EmulatedSource(int socket, const EmulatedOptions& options, std::unique_ptr<GpuPool> gpu = nullptr);

  Polled poll(uint8_t* linear, std::size_t most, std::span<Fragment> out) noexcept override;
  void release(std::span<const uint32_t> tokens) noexcept override;
  [[nodiscard]] std::span<const Pool> pools() const noexcept override { return {&pool_, 1}; }
  [[nodiscard]] uint32_t tokens() const noexcept override { return pages_; }
  [[nodiscard]] const char* name() const noexcept override { return "emulated"; }
  [[nodiscard]] uint64_t bad_releases() const noexcept override { return held_.bad(); }

  [[nodiscard]] uint32_t free_pages() const noexcept { return static_cast<uint32_t>(free_.size()); }

 private:
  static constexpr std::size_t kMostPieces = 128;

  Fragment next_fragment(std::size_t most) noexcept;
  void take_back(const Fragment& fragment) noexcept;

  const int socket_;
  const EmulatedOptions options_;
  const uint32_t pages_;
  const std::unique_ptr<GpuPool> gpu_;
  const Mapping memory_;  // invalid: the GPU's
  const Pool pool_;
  uint8_t* const host_;  // where the processor finds it
  Random random_;
  HeldTokens held_;
  std::vector<uint32_t> free_;  // pages, within its capacity
};

class EmulatedProvider final : public Provider {
 public:
  // `make_gpu`: each source's pool, where it is memory of a GPU. Throws Error where that can't be had.
  explicit EmulatedProvider(const EmulatedOptions& options, MakePoolMemory make_gpu = {});
  [[nodiscard]] const char* name() const noexcept override { return "emulated"; }
  [[nodiscard]] std::string where() const override { return where_; }
  std::unique_ptr<Source> make(int socket) override {
    EmulatedOptions options = options_;
    options.seed += made_.fetch_add(1, std::memory_order_relaxed);
    return std::make_unique<EmulatedSource>(socket, options,
                                            make_gpu_ ? make_gpu_(options.pool_bytes).gpu : nullptr);
  }

 private:
  const EmulatedOptions options_;
  const MakePoolMemory make_gpu_;
  std::string where_ = "host memory";
  std::atomic<uint64_t> made_{0};  // by any worker
};

}  // namespace towline::tcpx
