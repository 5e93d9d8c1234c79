#include "transports/cuda/landing_pool.h"

#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "base/error.h"
#include "base/sync/spin.h"

namespace towline::cuda {
namespace {

constexpr uint32_t kReadBlocks = 8;
// A GPU that takes so long is taken for broken: the copy may still come, so the memory is not used again.
constexpr uint64_t kLongestReadNs = 10 * kSecondNs;
constexpr Code kTookTooLong = -2;

std::unique_ptr<Mapped> import(Device& device, uint32_t gpu, uint64_t bytes, int given) {
  Shared part;
  part.sharing = Sharing::kDescriptor;
  part.bytes = bytes;
  part.fd = duplicate_fd(given);
  return device.map(gpu, {&part, 1}, false);
}

}  // namespace

LandingPool::LandingPool(Device& device, uint32_t gpu, uint64_t bytes, int given)
    : device_(device),
      gpu_(gpu),
      own_(given < 0 ? device.make_dma_memory(gpu, bytes) : nullptr),
      imported_(given < 0 ? nullptr : import(device, gpu, bytes, given)),
      address_(own_ ? own_->address() : imported_->address()),
      bytes_(own_ ? own_->bytes() : bytes),
      bounce_(device, device.gpus()[gpu].host_node, kBounceBytes),
      copier_(device, gpu, false, kReadBlocks) {}

towline_landing_pool_info LandingPool::info() const noexcept {
  towline_landing_pool_info info = {};
  info.device = gpu_;
  info.address = address_;
  info.bytes = bytes_;
  info.dma_buf = own_ ? own_->dma_buf() : -1;
  info.host = own_ ? own_->host() : nullptr;
  const std::string& place = device_.gpus()[gpu_].pci_address;
  std::copy_n(place.data(), std::min(place.size(), sizeof info.gpu - 1), info.gpu);
  return info;
}

Code LandingPool::read(std::span<const towline_landing_piece> pieces, uint8_t* to) {
  for (const towline_landing_piece& piece : pieces)
    if (!holds(piece))
      fail(Status::kInvalidArgument, "cuda: {} bytes at {:#x} are not in the pool", piece.bytes,
           piece.address);
  const std::lock_guard lock(mutex_);
  uint64_t skip = 0;
  while (!pieces.empty() && broken_ == 0) broken_ = read_chunk(pieces, skip, to);
  return broken_;
}

// `skip`: of the first piece, what was read before.
Code LandingPool::read_chunk(std::span<const towline_landing_piece>& pieces, uint64_t& skip, uint8_t*& to) {
  const uint64_t bounce = reinterpret_cast<uint64_t>(bounce_.address()) + bounce_.delta();
  copier_.clear(0);
  uint64_t bytes = 0;
  for (uint32_t count = 0; count < kMostStretches && !pieces.empty() && bytes < kBounceBytes; ++count) {
    const uint64_t here = std::min(pieces.front().bytes - skip, kBounceBytes - bytes);
    copier_.add(0, bounce + bytes, pieces.front().address + skip, here);
    bytes += here;
    skip += here;
    if (skip != pieces.front().bytes) continue;
    pieces = pieces.subspan(1);
    skip = 0;
  }
  if (bytes == 0) return 0;
  if (const Code refused = copier_.start(0); refused != 0) return refused;
  const uint64_t began_ns = monotonic_now_ns();
  for (uint64_t now_ns = began_ns;; now_ns = monotonic_now_ns()) {
    const Code code = copier_.look(0, now_ns);
    if (code == 0) break;
    if (code != CopyQueue::kBusy) return code;
    if (now_ns - began_ns > kLongestReadNs) return kTookTooLong;
    cpu_pause();
  }
  std::memcpy(to, bounce_.address(), bytes);
  to += bytes;
  return 0;
}

}  // namespace towline::cuda
