#include "transports/tcpx/sources/gpu_pool.h"

#include <fmt/format.h>

#include "base/error.h"
#include "framing/landing.h"

namespace towline::tcpx {

GpuPool::GpuPool(const plugin::Host& host, const GpuPoolWish& wish) {
  towline_backend* backend = nullptr;
  if (host.landing(&table_, &backend) != TOWLINE_OK)
    fail(Status::kUnsupported, "no open backend of this agent gives memory of GPUs (cuda does)");
  if (table_->open_pool == nullptr || table_->close_pool == nullptr || table_->reach_pool == nullptr ||
      table_->read_pool == nullptr)
    fail(Status::kUnsupported, "the backend that copies GPU memory is older, and gives none to receive into");
  char reason[512] = "";
  const int32_t status = table_->open_pool(backend, wish.gpu.c_str(), wish.bytes, wish.given, &pool_, &info_,
                                           reason, sizeof reason);
  if (status != TOWLINE_OK) fail(static_cast<Status>(status), "{}", reason);
}

GpuPool::~GpuPool() { table_->close_pool(pool_); }

Pool GpuPool::pool() noexcept {
  return {reinterpret_cast<uint8_t*>(info_.address), info_.bytes, false, this};
}

std::string GpuPool::where() const {
  return fmt::format("memory of GPU {}{}", info_.device,
                     info_.gpu[0] == 0 ? "" : fmt::format(" at {}", info_.gpu));
}

Status GpuPool::reach(framing::Lander& lander) noexcept { return lander.reach_pool(pool_); }

Status GpuPool::read(std::span<const towline_landing_piece> pieces, uint8_t* to,
                     int32_t& vendor_code) noexcept {
  return static_cast<Status>(
      table_->read_pool(pool_, pieces.data(), static_cast<uint32_t>(pieces.size()), to, &vendor_code));
}

}  // namespace towline::tcpx
