#include "gpu/device.h"

#include <fmt/format.h>

#include "base/error.h"

namespace towline::cuda {

std::string uuid_text(const Uuid& uuid, bool partitioned) {
  std::string text = partitioned ? "MIG-" : "GPU-";
  for (size_t i = 0; i < uuid.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", uuid[i]);
  }
  return text;
}

void Device::check_gpu(uint64_t gpu) const {
  if (gpu >= gpus().size())
    fail(Status::kInvalidArgument, "cuda: there is no GPU {}: this process sees {}", gpu, gpus().size());
}

// Access that the application has narrowed is left as it is: a kernel that disregards it would break the context.
void Device::reach(uint32_t gpu, uint64_t address, uint64_t bytes, Use use) {
  const uint64_t end = address + bytes;
  for (uint64_t at = address; at < end;) {
    const Allocation there = look_up(at);
    if (there.where != Where::kGpu || there.bytes == 0)
      fail(Status::kStale, "cuda: there is no GPU memory at {:#x} any more (freed, unmapped or put to sleep)",
           at);
    at = there.address + there.bytes;
    if (there.made == Made::kPlain) {
      if (gpu != there.gpu) enable_peer(gpu, there.gpu);
      continue;
    }
    const std::optional<Use> allowed = access(gpu, there);
    if (!allowed)
      grant(gpu, there);
    else if (*allowed < use)
      fail(gpu == there.gpu ? Status::kPermissionDenied : Status::kUnsupported,
           "cuda: the application lets GPU {} only read the memory at {:#x} on GPU {}", gpu, there.address,
           there.gpu);
  }
}

}  // namespace towline::cuda
