#include "storing/own_connection.h"

#include <fmt/format.h>

#include <cstring>
#include <new>

#include "towline/towline.h"

namespace towline::storing {

int32_t OwnConnection::send(const void* message, size_t bytes) noexcept try {
  const auto* begin = static_cast<const uint8_t*>(message);
  messages_.emplace_back(begin, begin + bytes);
  host_.wake(worker_);
  return TOWLINE_OK;
} catch (const std::bad_alloc&) {
  return TOWLINE_AGAIN;
}

void OwnConnection::send_after(std::span<const uint8_t> message, towline_part_result& result) noexcept {
  if (result.status != TOWLINE_OK || message.empty()) return;
  if (send(message.data(), message.size()) == TOWLINE_OK) return;
  result.status = TOWLINE_OUT_OF_MEMORY;
}

uint32_t OwnConnection::deliver() noexcept {
  uint32_t done = 0;
  // Those that come in answer wait for the next pass.
  for (size_t count = messages_.size(); count != 0; --count, ++done) {
    const std::vector<uint8_t> message = std::move(messages_.front());
    messages_.pop_front();
    host_.message(peer_, message.data(), message.size());
  }
  return done;
}

int32_t OwnConnection::read_token(const void* token, size_t bytes, uint64_t& id) const {
  if (token == nullptr || bytes != sizeof id)
    return host_.refuse(Status::kProtocol,
                        fmt::format("{}: the region's token makes no sense", names_.backend));
  std::memcpy(&id, token, sizeof id);
  return TOWLINE_OK;
}

int32_t OwnConnection::check_local_list(const towline_plan& plan) const {
  for (uint64_t i = 0; i < plan.local->region_count; ++i) {
    if (plan.local->regions[i].kind != TOWLINE_MEMORY_DRAM)
      return host_.refuse(
          Status::kUnsupported,
          fmt::format("{}: the other list must be memory: {} go through it", names_.backend, names_.stored));
  }
  return TOWLINE_OK;
}

}  // namespace towline::storing
