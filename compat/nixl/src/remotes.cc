#include "remotes.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include <towline/layout.h>

#include "log.h"

namespace towline::nixl {

void LoadedRanges::add(const FrameRange& range) {
  if (range.bytes == 0 || range.address > UINT64_MAX - range.bytes) return;
  auto& ends = ends_[{range.type, range.device}];
  uint64_t begin = range.address;
  uint64_t end = begin + range.bytes;
  auto next = ends.upper_bound(begin);
  if (next != ends.begin() && std::prev(next)->second >= begin) {
    --next;
    begin = next->first;
  }
  while (next != ends.end() && next->first <= end) {
    end = std::max(end, next->second);
    next = ends.erase(next);
  }
  ends.emplace(begin, end);
}

bool LoadedRanges::covers(nixl_mem_t type, const nixlBasicDesc& desc) const {
  // The device is ignored for DRAM, here and in transfers.
  const auto space = ends_.find({type, type == DRAM_SEG ? 0 : desc.devId});
  if (space == ends_.end()) return false;
  const auto next = space->second.upper_bound(desc.addr);
  if (next == space->second.begin()) return false;
  const uint64_t end = std::prev(next)->second;
  return desc.addr < end && desc.len <= end - desc.addr;
}

size_t LoadedRanges::size() const noexcept {
  size_t count = 0;
  for (const auto& [space, ends] : ends_) count += ends.size();
  return count;
}

Remote::Remote(Peer peer, const Frame& frame) : peer_(std::move(peer)) { merge(frame); }

void Remote::merge(const Frame& frame) {
  std::lock_guard lock(mutex_);
  if (whole()) return;
  if (!frame.partial) {
    ranges_ = {};
    whole_.store(true, std::memory_order_release);
    return;
  }
  for (FrameRange range : frame.ranges) {
    if (range.type == DRAM_SEG) range.device = 0;
    ranges_.add(range);
  }
}

size_t Remote::first_unknown(nixl_mem_t type, const Rows& rows) const {
  if (whole()) return rows.count;
  std::lock_guard lock(mutex_);
  if (whole()) return rows.count;
  size_t i = 0;
  while (i < rows.count && ranges_.covers(type, rows[i])) ++i;
  return i;
}

size_t Remote::bytes() const {
  constexpr size_t kEntryBytes = 64;  // of a region or a range
  size_t regions = 0;
  (void)towline_peer_regions(peer_.native(), nullptr, sizeof(towline_region_info_t), &regions);
  std::lock_guard lock(mutex_);
  return kEntryBytes * (regions + ranges_.size());
}

bool Remote::is_alive() const noexcept {
  return !gone() && towline_peer_health(peer_.native()) == TOWLINE_HEALTH_ALIVE;
}

bool Remote::is_there() const noexcept {
  return is_alive() || (!gone() && towline_peer_health(peer_.native()) == TOWLINE_HEALTH_SUSPECT);
}

bool Remote::has_left() const noexcept {
  return !gone() && towline_peer_health(peer_.native()) == TOWLINE_HEALTH_LOST;
}

bool Remote::leaves() const noexcept {
  constexpr auto kMoment = std::chrono::milliseconds{100};
  constexpr auto kPause = std::chrono::microseconds{200};
  const auto until = std::chrono::steady_clock::now() + kMoment;
  while (!has_left()) {
    if (gone() || std::chrono::steady_clock::now() >= until) return false;
    std::this_thread::sleep_for(kPause);
  }
  return true;
}

bool Remote::is_replaced() const noexcept {
  towline_region_info_t none;
  return towline_peer_region_find(peer_.native(), "", &none, sizeof none) == TOWLINE_PEER_RESTARTED;
}

std::shared_ptr<Remote> Remotes::find(const std::string& name) const {
  std::lock_guard lock(mutex_);
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second.remote;
}

nixl_status_t Remotes::load(Peer peer, const Frame& frame, size_t sent_bytes) {
  std::lock_guard lock(mutex_);
  const auto known = by_name_.find(frame.name);
  const bool same =
      known != by_name_.end() && known->second.remote->peer().incarnation() == peer.incarnation();
  if (same) {
    Remote& remote = *known->second.remote;
    remote.merge(frame);
    size_t& counted = known->second.sent_bytes;
    if (sent_bytes == 0) counted = 0;  // the application brought it too
    if (counted != 0) counted = std::max({counted, sent_bytes, remote.bytes()});
    return NIXL_SUCCESS;
  }
  if (!frame.addresses) {
    return fail(NIXL_ERR_NOT_FOUND, "metadata of agent '{}' without its addresses: load those first",
                frame.name);
  }
  by_name_[frame.name] = {std::make_shared<Remote>(std::move(peer), frame), sent_bytes};
  return NIXL_SUCCESS;
}

Remotes::Sent Remotes::sent(const std::string& but) const {
  std::lock_guard lock(mutex_);
  Sent sent;
  for (const auto& [name, known] : by_name_) {
    if (known.sent_bytes == 0 || name == but) continue;
    ++sent.agents;
    sent.bytes += known.sent_bytes;
    if (sent.left.empty() && known.remote->has_left()) sent.left = name;
  }
  return sent;
}

std::shared_ptr<Remote> Remotes::forget(const std::string& name) {
  std::lock_guard lock(mutex_);
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) return nullptr;
  std::shared_ptr<Remote> remote = std::move(found->second.remote);
  by_name_.erase(found);
  remote->set_gone();
  return remote;
}

void Remotes::clear() {
  std::lock_guard lock(mutex_);
  by_name_.clear();
}

}  // namespace towline::nixl
