// io_uring's zero-copy receive: a NIC's queue fills an area of this process's memory, and a ring says where. Without such a
// NIC the kernel can copy what arrives into the area, by the same calls: source "zcrx-copy".
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "transports/tcpx/kernel/nic.h"
#include "transports/tcpx/kernel/steering.h"
#include "transports/tcpx/sources/devmem.h"
#include "transports/tcpx/sources/source.h"
#include "transports/tcpx/sources/zcrx_pump.h"

namespace towline::tcpx {

class ZcrxProvider final : public Provider {
 public:
  // Without a NIC. Both throw Error that says why not.
  ZcrxProvider(uint64_t pool_bytes, const OpenZcrxRing& open);
  // Takes the first of the queues. `kernel` outlives it. `make_memory`: of the area, where it is memory of a GPU.
  ZcrxProvider(Kernel& kernel, const NicOptions& options, const MakePoolMemory& make_memory = {});

  [[nodiscard]] const char* name() const noexcept override { return name_; }
  [[nodiscard]] std::string where() const override { return memory_.where(); }
  std::unique_ptr<Source> make(int socket) override;

  [[nodiscard]] uint32_t pages() const noexcept {
    return static_cast<uint32_t>(pool_.bytes / ZcrxPump::kPageBytes);
  }

 private:
  friend class ZcrxSource;

  const char* const name_;
  const PoolMemory memory_;
  std::optional<Nic> nic_;
  std::optional<Steering> steering_;  // first: a NIC splits headers before its queue is taken
  const Pool pool_;
  ZcrxPump pump_;
  std::atomic<uint32_t> sources_{0};
};

class ZcrxSource final : public Source {
 public:
  ZcrxSource(int socket, ZcrxProvider& provider);
  ~ZcrxSource() override;

  Polled poll(uint8_t* linear, std::size_t most, std::span<Fragment> out) noexcept override;
  void release(std::span<const uint32_t> tokens) noexcept override;
  [[nodiscard]] std::span<const Pool> pools() const noexcept override { return {&provider_.pool_, 1}; }
  // Its share, as of devmem.
  [[nodiscard]] uint32_t tokens() const noexcept override {
    return std::max(4u, provider_.pages() / std::max(1u, provider_.sources_.load(std::memory_order_relaxed)));
  }
  [[nodiscard]] const char* name() const noexcept override { return provider_.name_; }
  [[nodiscard]] uint64_t bad_releases() const noexcept override { return bad_; }
  [[nodiscard]] int wakes_by() const noexcept override { return channel_->wake.get(); }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  [[nodiscard]] bool next_slot() noexcept;
  [[nodiscard]] Polled nothing() noexcept;

  ZcrxProvider& provider_;
  ZcrxPump& pump_;
  ZcrxChannel* const channel_;
  std::vector<uint16_t> pieces_;  // of each slot, that the caller holds
  uint32_t current_ = kNone;      // the slot of which a part is left
  ZcrxSlot left_;                 // that part
  uint32_t held_ = 0;
  uint64_t bad_ = 0;
  std::optional<FlowRule> rule_;
};

}  // namespace towline::tcpx
