#include "transports/tcpx/bound_memory.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "framing/exported_memory.h"

namespace towline::tcpx {
namespace {

bool holds(const BoundRange& range, const towline_region_ref& region) {
  return range.device == region.device && region.address >= range.address && region.bytes <= range.bytes &&
         region.address - range.address <= range.bytes - region.bytes;
}

}  // namespace

BoundMemory::BoundMemory(Kernel& kernel, const plugin::Host& host, SendWay way, std::string interface)
    : kernel_(kernel), host_(host), way_(way), interface_(std::move(interface)) {
  if (way_ == SendWay::kGather) why_not_ = "tuning.tcpx.send is gather";
  if (way_ == SendWay::kAuto && interface_.empty())
    why_not_ = "tuning.tcpx.interface gives no NIC that sends from the memory of GPUs";
  refused_ = !why_not_.empty();
}

BoundMemory::Bound* BoundMemory::add(const towline_region_ref& region) {
  const std::lock_guard lock(mutex_);
  if (refused_) return nullptr;
  for (const auto& bound : bound_) {
    if (!holds(bound->range, region)) continue;
    ++bound->uses;
    return bound.get();
  }
  try {
    if (bound_.size() == kMost)
      fail(Status::kLimitExceeded, "{} regions are bound already: register an arena before its parts", kMost);
    bound_.push_back(bind(region));
  } catch (const core::Error& error) {
    why_not_ = error.message();
    return nullptr;
  }
  generation_.fetch_add(1, std::memory_order_release);
  return bound_.back().get();
}

std::unique_ptr<BoundMemory::Bound> BoundMemory::bind(const towline_region_ref& region) {
  const framing::ExportedMemory memory = framing::export_gpu_memory(host_, region);
  auto bound = std::make_unique<Bound>();
  bound->range = {region.device, region.address, region.bytes, memory.offset, 0};
  if (way_ == SendWay::kEmulated) {
    bound->mapping =
        Mapping::map_shared(memory.dma_buf.get(), memory.offset + region.bytes, MapAccess::kRead);
    bound->range.at += reinterpret_cast<uint64_t>(bound->mapping.address());
    return bound;
  }
  try {
    bound->binding = Nic(kernel_, interface_).bind_send(memory.dma_buf.get());
  } catch (const core::Error& error) {
    refused_ = error.code() == Status::kUnsupported || error.code() == Status::kPermissionDenied;
    throw;
  }
  bound->range.number = bound->binding.number;
  return bound;
}

void BoundMemory::remove(Bound* bound) noexcept {
  const std::lock_guard lock(mutex_);
  if (--bound->uses != 0) return;
  std::erase_if(bound_, [&](const auto& one) { return one.get() == bound; });
  generation_.fetch_add(1, std::memory_order_release);
}

uint64_t BoundMemory::copy_to(std::vector<BoundRange>& ranges) const {
  const std::lock_guard lock(mutex_);
  ranges.clear();
  for (const auto& bound : bound_) ranges.push_back(bound->range);
  return generation();
}

void BoundMemory::note_refused(const std::string& why) noexcept {
  const std::lock_guard lock(mutex_);
  try {
    why_not_ = why;
  } catch (const std::bad_alloc&) {  // the reason of before stays
  }
}

std::string BoundMemory::why_not() const {
  const std::lock_guard lock(mutex_);
  return why_not_;
}

std::size_t BoundMemory::regions() const {
  const std::lock_guard lock(mutex_);
  return bound_.size();
}

}  // namespace towline::tcpx
