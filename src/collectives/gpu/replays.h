// Operations in graphs whose replays somebody wants to be told of. Each has two words in host memory, and a kernel before and
// one behind it count them up in every replay. The communicator's watcher reads the words, so replays wait for no processor.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "gpu/kernel_device.h"
#include "towline/plugin/collective.h"

namespace towline::collectives::gpu {

class Replays {
 public:
  // A communicator watches no more operations: their words stay until it is closed, since graphs may.
  static constexpr size_t kMostOperations = 16384;

  // As kernels reach them.
  struct Words {
    uint64_t begun;
    uint64_t ended;
  };

  Replays(cuda::KernelDevice& device, uint32_t gpu, const towline_collective_host_v1_t& host)
      : device_(device), gpu_(gpu), host_(host) {}

  // The words of one more operation; none: there are kMostOperations. Throws Error.
  std::optional<Words> add(uint64_t op_id, uint32_t op);
  // Tells the host of what has begun and ended since the last call. One thread at a time.
  void tell();

 private:
  struct Operation {
    uint64_t op_id;
    uint32_t op;
    const uint64_t* words;  // begun, ended
    uint64_t begun_told = 0;
    uint64_t ended_told = 0;
  };

  cuda::KernelDevice& device_;
  const uint32_t gpu_;
  const towline_collective_host_v1_t& host_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<cuda::Words>> pages_;
  std::deque<Operation> operations_;  // which do not move
  std::atomic<size_t> count_{0};
};

}  // namespace towline::collectives::gpu
