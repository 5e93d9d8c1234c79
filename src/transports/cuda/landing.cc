#include "transports/cuda/landing.h"

#include "base/error.h"
#include "base/os/prefer_node.h"

namespace towline::cuda {

namespace {

std::unique_ptr<SharedMemory> allocate_near(Device& device, uint64_t gpu, uint64_t bytes) {
  device.check_gpu(gpu);
  const PreferNode prefer(device.gpus()[gpu].host_node);
  return SharedMemory::allocate(bytes, 0);
}

Landing& from(towline_landing* landing) noexcept { return *reinterpret_cast<Landing*>(landing); }

}  // namespace

LandingBudget::Share::Share(LandingBudget& budget, uint64_t bytes) : budget_(budget), bytes_(bytes) {
  uint64_t left = budget.left_.load(std::memory_order_relaxed);
  do {
    if (left < bytes)
      fail(Status::kAgain,
           "cuda: connections have all the staging memory that cuda.landing_bytes allows ({} bytes are left, "
           "this one needs {})",
           left, bytes);
  } while (!budget.left_.compare_exchange_weak(left, left - bytes, std::memory_order_relaxed));
}

Landing::Landing(const plugin::Host& host, Device& device, const Settings& settings, LandingBudget& budget,
                 uint64_t gpu, uint32_t slots, uint32_t slot_bytes)
    : host_(host),
      device_(device),
      after_default_stream_(settings.after_default_stream),
      blocks_(settings.host_blocks),
      slots_(slots),
      slot_bytes_(slot_bytes),
      share_(budget, 2 * uint64_t{slots} * slot_bytes),
      memory_(allocate_near(device, gpu, 2 * uint64_t{slots} * slot_bytes)),
      pinned_(device.pin(reinterpret_cast<uint64_t>(memory_->address()), memory_->bytes())) {}

void* Landing::memory(uint32_t way) const noexcept {
  return static_cast<uint8_t*>(memory_->address()) + way * uint64_t{slots_} * slot_bytes_;
}

PieceCopier& Landing::copier(uint64_t gpu, uint32_t way) {
  auto& mine = copiers_[{gpu, way}];
  if (mine == nullptr)
    mine = std::make_unique<PieceCopier>(device_, static_cast<uint32_t>(gpu), after_default_stream_, blocks_);
  return *mine;
}

void Landing::ready(uint64_t gpu) {
  device_.check_gpu(gpu);
  (void)copier(gpu, TOWLINE_LANDING_GATHER);
  (void)copier(gpu, TOWLINE_LANDING_SCATTER);
}

// The memory is looked up anew, each allocation once: allocators may have put other memory under the addresses.
Code Landing::begin(uint32_t way, uint32_t slot, uint64_t gpu, const towline_landing_piece* pieces,
                    uint32_t count) {
  if (way > TOWLINE_LANDING_SCATTER || slot >= slots_ || count > TOWLINE_LANDING_MOST_PIECES)
    fail(Status::kInvalidArgument, "cuda: a copy of {} pieces with slot {} of way {}", count, slot, way);
  PieceCopier& copier = this->copier(gpu, way);
  uint64_t staging =
      reinterpret_cast<uint64_t>(memory(way)) + slot * uint64_t{slot_bytes_} + pinned_->delta();
  const uint64_t staging_end = staging + slot_bytes_;
  Allocation found;
  copier.clear(slot);
  for (uint32_t i = 0; i < count; ++i) {
    const auto& [address, bytes] = pieces[i];
    if (bytes > staging_end - staging)
      fail(Status::kInvalidArgument, "cuda: pieces of more than {} bytes", slot_bytes_);
    for (uint64_t at = address; at < address + bytes; at = found.address + found.bytes) {
      if (at >= found.address && at - found.address < found.bytes) continue;
      found = device_.look_up(at);
      if (found.where != Where::kGpu || found.gpu != gpu || found.bytes == 0)
        fail(Status::kStale,
             "cuda: there is no memory of GPU {} at {:#x} any more (freed, unmapped or put to sleep)", gpu,
             at);
    }
    if (way == TOWLINE_LANDING_GATHER)
      copier.add(slot, staging, address, bytes);
    else
      copier.add(slot, address, staging, bytes);
    staging += bytes;
  }
  under_way_[way][slot] = &copier;
  return copier.start(slot);
}

Code Landing::poll(uint32_t way, uint32_t slot, uint64_t now_ns) noexcept {
  return under_way_[way][slot]->look(slot, now_ns);
}

// ---- the table

void landing_close(towline_landing* landing) noexcept { delete &from(landing); }

int32_t landing_ready(towline_landing* landing, uint64_t device) noexcept try {
  from(landing).ready(device);
  return TOWLINE_OK;
} catch (const core::Error& error) {
  return from(landing).refuse(error.code(), error.message());
} catch (const std::exception& error) {
  return from(landing).refuse(Status::kInternal, error.what());
}

int32_t landing_begin(towline_landing* landing, uint32_t way, uint32_t slot, uint64_t device,
                      const towline_landing_piece* pieces, uint32_t count, int32_t* vendor_code) noexcept
    try {
  *vendor_code = from(landing).begin(way, slot, device, pieces, count);
  return *vendor_code == 0 ? TOWLINE_OK : TOWLINE_IO;
} catch (const core::Error& error) {
  return from(landing).refuse(error.code(), error.message());
} catch (const std::exception& error) {
  return from(landing).refuse(Status::kInternal, error.what());
}

int32_t landing_poll(towline_landing* landing, uint32_t way, uint32_t slot, uint64_t now_ns,
                     int32_t* vendor_code) noexcept {
  const Code code = from(landing).poll(way, slot, now_ns);
  if (code == Lane::kBusy) return TOWLINE_IN_PROGRESS;
  *vendor_code = code;
  return code == 0 ? TOWLINE_OK : TOWLINE_IO;
}

}  // namespace towline::cuda
