// GPU memory to host memory in two steps: a few thread blocks gather pieces without gaps in staging memory on
// the GPU, and the copy engine sends them on. A kernel that stores to host memory at the link's rate stalls
// all other memory traffic, also that of a model's kernels; the copy engine does not (docs/gpu.md). It needs
// few and long ranges: a host side in runs of at least kLeastMeanRun bytes on average is written by it directly,
// any other by threads of the host (host_scatter.h).
#pragma once

#include <towline/plugin/plan.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "gpu/device.h"
#include "transports/cuda/piece_copier.h"
#include "transports/cuda/work_list.h"

namespace towline::cuda {

class ToHost {
 public:
  static constexpr uint64_t kLeastMeanRun = 256 << 10;
  // The least bytes of a transfer: smaller ones end sooner with the kernel alone. With `auto`: from this size
  // on either method may be tried.
  static constexpr uint64_t kLeastBytes = 1 << 20;
  static constexpr uint64_t kWorthTrying = 16 << 20;
  // The most chunks that are queued at the GPU: a stream has limited room, and only chunks that are not
  // queued can be cancelled.
  static constexpr uint64_t kChunksAhead = 16;

  // Null: it is too small, or its host side lies scattered and that may not be. Throws Error: there is no memory for
  // it on the GPU. The plan must outlive it. `pinned`: the host memory.
  static std::unique_ptr<ToHost> make(const towline_plan& plan, const Ways& ways,
                                      std::shared_ptr<CopyQueue> queue,
                                      std::span<const std::shared_ptr<const Pinned>> pinned,
                                      bool may_be_scattered);

  [[nodiscard]] bool scattered() const noexcept { return scattered_; }
  // Queues the next chunk of [next, end) and moves `next` on. Not of a scattered one.
  Code relay(CopyQueue& queue, uint32_t blocks, uint64_t& next, uint64_t end) const noexcept;

  // For scattered pieces: the end of a chunk from `begin` to `limit` at most that has so many pieces at most.
  [[nodiscard]] uint64_t end_of_chunk(uint64_t begin, uint64_t limit, uint32_t pieces) const noexcept;
  // Queues [begin, end), to be sent to one place in pinned memory.
  Code relay_to(CopyQueue& queue, uint32_t blocks, uint64_t to, uint64_t begin, uint64_t end) const noexcept;
  // The list that puts it where it belongs.
  void scatter(uint64_t begin, uint64_t end, uint64_t from, PieceCopier& copier,
               uint32_t slot) const noexcept;

 private:
  struct Run {
    uint64_t position = 0;  // in the plan
    uint64_t to = 0;
    uint64_t bytes = 0;
  };
  ToHost(const towline_plan& plan, const Ways& ways, std::shared_ptr<CopyQueue> queue, std::vector<Run> runs,
         bool scattered);
  static std::vector<Run> runs_of(const towline_plan& plan, const Ways& ways, size_t most);
  [[nodiscard]] std::vector<Run>::const_iterator run_at(uint64_t position) const noexcept;
  static void cut(std::vector<Run>& runs, const Pinned& pinned);

  // So that the first is sent soon, and each takes far longer than to hand it on.
  static constexpr uint64_t kLeastChunk = 1 << 20;

  const uint64_t chunk_;
  const WorkList gather_;
  const std::vector<Run> runs_;
  const bool scattered_;
};

}  // namespace towline::cuda
