// A window in GPU memory: every rank's memory, mapped by all ranks, and words by which they signal one another. Kernels of
// the application reach both through towline::device::Symmetric (towline/device/symmetric.cuh); the host's calls are
// kernels of Towline's, in a stream of the application or in one of the window's.
#pragma once

#include <array>
#include <memory>
#include <mutex>

#include "collectives/gpu/gpu_backend.h"

namespace towline::collectives::gpu {

class GpuWindow {
 public:
  // Collective. address null: allocates memory. Throws Error; if one rank can't share its memory, on every rank.
  GpuWindow(GpuBackend& backend, void* address, uint64_t bytes, uint64_t number, Deadline deadline);
  // Collective: when it returns, no rank uses the memory any more.
  Status close(uint64_t number, Deadline deadline);

  // Any thread.
  [[nodiscard]] void* address(uint32_t rank) const noexcept;
  [[nodiscard]] uint64_t bytes(uint32_t rank) const noexcept { return memory_->bytes(rank); }
  // These wait. [offset, offset + bytes) lies in the rank's memory.
  Status put(uint32_t rank, uint64_t offset, const void* from, uint64_t bytes);
  Status get(uint32_t rank, uint64_t offset, void* to, uint64_t bytes);
  Status signal(uint32_t rank);
  Status wait_signal(uint32_t rank, Deadline deadline);
  // In the order of the stream. Throws Error; a signal that does not come in time breaks the communicator.
  void issue(const towline_window_call_t& call, uint64_t timeout_ns, void* stream);
  [[nodiscard]] device::Symmetric symmetric() const noexcept;
  [[nodiscard]] GpuBackend& backend() const noexcept { return backend_; }

 private:
  // A stream of the window's.
  using Channel = GpuBackend::Channel;
  using Launch = GpuBackend::Launch;
  [[nodiscard]] cuda::SymmetricMemory::Part part_of(void* address, uint64_t bytes) const;
  [[nodiscard]] Launch move(uint64_t to, uint64_t from, uint64_t bytes) const;
  [[nodiscard]] Launch signal_launch(uint32_t rank, uint64_t channel) const;
  [[nodiscard]] Launch await_launch(uint32_t rank, uint64_t channel, uint64_t timeout_ns) const;
  Status run(Channel& channel, const Launch& launch);

  GpuBackend& backend_;
  std::shared_ptr<cuda::Words> words_;  // outcomes, one for each rank
  std::unique_ptr<cuda::SymmetricMemory> memory_;
  std::unique_ptr<cuda::SymmetricMemory> signals_;
  Channel moves_;
  std::array<Channel, kMaxRanks> waits_;
  std::array<std::mutex, kMaxRanks> one_wait_;
};

}  // namespace towline::collectives::gpu
