#include "transports/tcpx/sources/zcrx.h"

#include <unistd.h>

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "transports/tcpx/sources/copy.h"

namespace towline::tcpx {
namespace {

uint64_t whole_pages(uint64_t bytes) noexcept { return bytes / ZcrxPump::kPageBytes * ZcrxPump::kPageBytes; }

// Memory of this process, or of a GPU.
PoolMemory make_area(const NicOptions& options, const MakePoolMemory& make_memory) {
  check_nic_options(options);
  const uint64_t bytes = whole_pages(options.pool_bytes);
  return make_memory ? make_memory(bytes) : PoolMemory{Mapping::map_private(bytes), {}, nullptr};
}

OpenZcrxRing ring_at(Kernel& kernel, const NicOptions& options, const PoolMemory& memory) {
  return [&kernel, &options, &memory](std::span<uint8_t> area, uint32_t refills) {
    return open_zcrx_ring(area, {kernel.interface_number(options.interface), options.queues.front(), refills,
                                 memory.dma_buf()});
  };
}

}  // namespace

ZcrxProvider::ZcrxProvider(uint64_t pool_bytes, const OpenZcrxRing& open)
    : name_("zcrx-copy"),
      memory_{Mapping::map_private(whole_pages(pool_bytes)), {}, nullptr},
      pool_(memory_.pool()),
      pump_({pool_.memory, pool_.bytes}, open) {}

ZcrxProvider::ZcrxProvider(Kernel& kernel, const NicOptions& options, const MakePoolMemory& make_memory)
    : name_("zcrx"),
      memory_(make_area(options, make_memory)),
      nic_(std::in_place, kernel, options.interface),
      steering_(std::in_place, *nic_, std::vector<uint32_t>{options.queues.front()}, options.state_folder),
      pool_(memory_.pool()),
      pump_({pool_.memory, pool_.bytes}, ring_at(kernel, options, memory_)) {}

std::unique_ptr<Source> ZcrxProvider::make(int socket) { return std::make_unique<ZcrxSource>(socket, *this); }

ZcrxSource::ZcrxSource(int socket, ZcrxProvider& provider)
    : provider_(provider), pump_(provider.pump_), channel_(pump_.open(socket)), pieces_(pump_.slots()) {
  provider_.sources_.fetch_add(1, std::memory_order_relaxed);
  if (!provider_.steering_) return;
  try {
    rule_ = provider_.steering_->steer(socket);
  } catch (const core::Error& error) {
    TOWLINE_LOG_EVERY(kWarning, 10'000'000'000, "tcpx: payload is copied by the kernel: {}", error.message());
  }
}

ZcrxSource::~ZcrxSource() {
  for (uint32_t slot = 0; slot < pieces_.size(); ++slot)
    if (pieces_[slot] != 0 || slot == current_) channel_->returned.push(slot);
  pump_.close(channel_);
  if (rule_) provider_.steering_->end(*rule_);
  provider_.sources_.fetch_sub(1, std::memory_order_relaxed);
}

bool ZcrxSource::next_slot() noexcept {
  uint32_t slot = 0;
  if (!channel_->arrived.pop(slot)) return false;
  current_ = slot;
  left_ = pump_.slot(slot);
  return true;
}

// The end is read before the queue is found empty for the last time: it comes after the last slot.
Polled ZcrxSource::nothing() noexcept {
  uint64_t count = 0;
  (void)!::read(channel_->wake.get(), &count, sizeof count);
  const int32_t end = channel_->end.load(std::memory_order_acquire);
  if (next_slot()) return {framing::IoResult::moved(0), 0, false};
  if (end == ZcrxChannel::kClosed) return {framing::IoResult::closed(), 0, false};
  if (end < 0) return {socket_failure(-end), 0, false};
  return {framing::IoResult::again(), 0, held_ != 0 && channel_->starved.load(std::memory_order_acquire)};
}

Polled ZcrxSource::poll(uint8_t*, std::size_t most, std::span<Fragment> out) noexcept {
  if (current_ == kNone && !next_slot()) {
    const Polled polled = nothing();
    if (current_ == kNone) return polled;
  }
  uint32_t count = 0;
  std::size_t total = 0;
  while (count < out.size() && total < most && (current_ != kNone || next_slot())) {
    const auto bytes = static_cast<uint32_t>(std::min<std::size_t>(left_.bytes, most - total));
    if (pieces_[current_] == UINT16_MAX) break;  // until some are released
    out[count++] = {left_.offset, bytes, current_, 0, false};
    ++pieces_[current_];
    total += bytes;
    left_.offset += bytes;
    left_.bytes -= bytes;
    if (left_.bytes == 0) current_ = kNone;
  }
  held_ += count;
  if (count == 0) return {framing::IoResult::again(), 0, true};
  return {framing::IoResult::moved(total), count, false};
}

void ZcrxSource::release(std::span<const uint32_t> tokens) noexcept {
  bool returned = false;
  for (const uint32_t token : tokens) {
    if (token >= pieces_.size() || pieces_[token] == 0) {
      ++bad_;
      continue;
    }
    --held_;
    if (--pieces_[token] != 0 || token == current_) continue;
    channel_->returned.push(token);
    returned = true;
  }
  if (returned) pump_.poke();
}

}  // namespace towline::tcpx
