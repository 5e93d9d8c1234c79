// GPU memory to host memory in two steps: a few thread blocks gather pieces without gaps in staging memory on
// the GPU, and the copy engine sends them on. A kernel that stores to host memory at the link's rate stalls
// all other memory traffic, also that of a model's kernels; the copy engine does not (docs/gpu.md). It needs
// few and long ranges: so this is for lists whose host side is in runs of at least kLeastMeanRun bytes on
// average.
#pragma once

#include <towline/plugin/plan.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "gpu/device.h"
#include "transports/cuda/work_list.h"

namespace towline::cuda {

class ToHost {
 public:
  static constexpr uint64_t kLeastMeanRun = 256 << 10;
  // The least bytes of a transfer: smaller ones end sooner with the kernel alone. With `auto`: from this size
  // on either method may be tried.
  static constexpr uint64_t kLeastBytes = 4 << 20;
  static constexpr uint64_t kWorthTrying = 16 << 20;
  // The most chunks that are queued at the GPU: a stream has limited room, and only chunks that are not
  // queued can be cancelled.
  static constexpr uint64_t kChunksAhead = 16;

  // Null: the host side lies scattered. Throws Error: there is no memory for it on the GPU. The plan must outlive
  // it. `pinned`: the host memory.
  static std::unique_ptr<ToHost> make(const towline_plan& plan, const Ways& ways, std::shared_ptr<Lane> lane,
                                      std::span<const std::shared_ptr<const Pinned>> pinned);

  // Queues the next chunk of [next, end) and moves `next` on.
  Code relay(Lane& lane, uint32_t blocks, uint64_t& next, uint64_t end) const noexcept;

 private:
  struct Run {
    uint64_t position = 0;  // in the plan
    uint64_t to = 0;
    uint64_t bytes = 0;
  };
  ToHost(const towline_plan& plan, const Ways& ways, std::shared_ptr<Lane> lane, std::vector<Run> runs);
  static std::vector<Run> runs_of(const towline_plan& plan, const Ways& ways);
  static void cut(std::vector<Run>& runs, const Pinned& pinned);

  // So that the first is sent soon, and each takes far longer than to hand it on.
  static constexpr uint64_t kLeastChunk = 1 << 20;

  const uint64_t chunk_;
  const WorkList gather_;
  const std::vector<Run> runs_;
};

}  // namespace towline::cuda
