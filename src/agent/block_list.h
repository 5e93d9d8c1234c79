// A validated list of blocks of this agent or of a peer; the object behind an application's handle.
#pragma once

#include <atomic>
#include <memory>

#include "agent/peer.h"
#include "base/containers/small_vector.h"
#include "plan/resolved_list.h"
#include "towline/status.h"

namespace towline {

class Agent;

using RemoteRegions = SmallVector<std::shared_ptr<RemoteRegion>, 1>;

class BlockList {
 public:
  BlockList(std::shared_ptr<const ResolvedList> resolved, Peer* peer, RemoteRegions remote_regions)
      : resolved_(resolved.get()),
        held_(std::move(resolved)),
        peer_(peer),
        remote_regions_(std::move(remote_regions)) {}
  BlockList(const BlockList&) = delete;
  BlockList& operator=(const BlockList&) = delete;

  [[nodiscard]] const ResolvedList& resolved() const noexcept { return *resolved_; }
  [[nodiscard]] const towline_list& view() const noexcept { return resolved_->view(); }
  [[nodiscard]] Peer* peer() const noexcept { return peer_.get(); }  // null: local
  // A peer's: one for each of the view's regions.
  [[nodiscard]] const RemoteRegions& remote_regions() const noexcept { return remote_regions_; }
  [[nodiscard]] bool uses_region(uint64_t key) const noexcept {
    for (uint64_t i = 0; i < view().region_count; ++i) {
      if (view().regions[i].key == key) return true;
    }
    return false;
  }

  // kOk, or why transfers can no longer be made from it.
  [[nodiscard]] Status gate() const noexcept { return gate_.load(std::memory_order_acquire); }
  void close_gate(Status why) noexcept { gate_.store(why, std::memory_order_release); }

 protected:
  // For derived classes, which hold and fill `resolved`.
  BlockList(const ResolvedList* resolved, Peer* peer) noexcept : resolved_(resolved), peer_(peer) {}
  // The next of the list's regions.
  void add_remote_region(std::shared_ptr<RemoteRegion> region) {
    remote_regions_.push_back(std::move(region));
  }

 private:
  const ResolvedList* resolved_;
  std::shared_ptr<const ResolvedList> held_;  // null: the derived class holds it
  PeerHold peer_;
  RemoteRegions remote_regions_;
  std::atomic<Status> gate_{Status::kOk};
};

}  // namespace towline
