// Valves on an NVIDIA GPU: a copy in an application's stream moves bytes only if its valve is open.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "gpu/device.h"
#include "gpu/driver_api.h"
#include "gpu/driver_queue.h"

namespace towline::cuda {

class DriverValve final : public Valve {
 public:
  // The words and the report are cleared, and live as long as the process. Throws Error.
  DriverValve(const driver::Api& api, const Kernels& kernels, driver::Pointer words, ValveReport* report,
              driver::Pointer report_gpu);

  Code launch(const CopyJob& job, uint32_t blocks, void* stream) noexcept override;
  Code precede(void* stream) noexcept override;
  void close() noexcept override { word(report_->closed).store(1, std::memory_order_seq_cst); }
  void open() noexcept override { word(report_->closed).store(0, std::memory_order_seq_cst); }
  [[nodiscard]] uint64_t launched() const noexcept override { return launched_; }
  [[nodiscard]] uint64_t begun() const noexcept override {
    return word(report_->begun).load(std::memory_order_seq_cst);
  }
  [[nodiscard]] uint64_t ended() const noexcept override {
    return word(report_->ended).load(std::memory_order_acquire);
  }
  [[nodiscard]] uint64_t refused() const noexcept override {
    return word(report_->refused).load(std::memory_order_acquire);
  }
  [[nodiscard]] bool quiet() const noexcept override { return broken_ || begun() == ended(); }

  // Under the pool's lock.
  void give_back() noexcept { free_ = true; }
  bool take() noexcept;

 private:
  static std::atomic_ref<uint64_t> word(uint64_t& value) noexcept { return std::atomic_ref<uint64_t>(value); }
  Code launch_both(const CopyJob& job, uint32_t blocks, driver::Stream stream) noexcept;

  const driver::Api& api_;
  const Kernels& kernels_;
  const driver::Pointer words_;
  ValveReport* const report_;
  const driver::Pointer report_gpu_;
  driver::Event after_ = nullptr;         // the last launch, outside of graphs
  uint64_t launched_ = 0;                 // outside of graphs
  uint64_t capture_ = 0;                  // that the last launch went into; 0: none
  std::vector<driver::GraphNode> nodes_;  // of it: what to come after
  bool free_ = false;
  bool broken_ = false;  // a run was counted whose copy was refused: it never ends, and moves nothing
};

// For one context. The device's lock is held.
class DriverValves {
 public:
  DriverValves(const driver::Api& api, const Kernels& kernels) : api_(api), kernels_(kernels) {}
  DriverValve& take();

 private:
  void grow();

  const driver::Api& api_;
  const Kernels& kernels_;
  driver::Stream stream_ = nullptr;
  std::vector<std::unique_ptr<DriverValve>> valves_;
};

}  // namespace towline::cuda
