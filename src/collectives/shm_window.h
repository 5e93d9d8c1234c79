// The memory of a window on one host: every rank's memory, mapped by all ranks. Ranks are indices of the host
// group.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/os/memfd.h"
#include "collectives/cpu_backend.h"
#include "memory/shared_memory.h"

namespace towline::collectives {

class ShmWindow {
 public:
  // Collective. address null: allocates memory. Throws Error; if one rank can't share its memory, on every
  // rank.
  ShmWindow(CpuBackend& backend, void* address, uint64_t bytes, uint64_t number, Deadline deadline);
  // Collective: when it returns, no rank uses the memory any more.
  Status close(uint64_t number, Deadline deadline);

  int size() const noexcept { return static_cast<int>(ranks_.size()); }
  void* address(int rank) const noexcept { return ranks_[static_cast<size_t>(rank)].address; }
  uint64_t bytes(int rank) const noexcept { return ranks_[static_cast<size_t>(rank)].bytes; }
  void signal(int rank) noexcept;
  // kOk, kNotYet, or why the communicator broke.
  Status wait_signal(int rank, Deadline deadline) noexcept;

 private:
  struct alignas(128) Signals {
    std::atomic<uint64_t> count;
  };
  struct Rank {
    Mapping memory;   // memory of another rank
    Mapping signals;  // its counter for each rank
    uint8_t* address = nullptr;
    uint64_t bytes = 0;
  };

  Signals& signals(int of, int from) const noexcept {
    return reinterpret_cast<Signals*>(ranks_[static_cast<size_t>(of)].signals.address())[from];
  }
  std::vector<uint8_t> offer(void* address, uint64_t bytes, UniqueFd& signals_fd, SharedRange& range);
  void share(void* address, uint64_t bytes, SharedRange& range);
  void open(int rank, const std::vector<uint8_t>& offer);

  CpuBackend& backend_;
  std::unique_ptr<SharedMemory> allocated_;
  std::shared_ptr<InPlaceShare> shared_;
  std::vector<Rank> ranks_;
  std::vector<std::atomic<uint64_t>> taken_;  // signals waited for
};

}  // namespace towline::collectives
