// Another agent as seen from here: what its metadata says, and one link for each backend and worker that
// reach it.
//
// A peer is one incarnation. A new incarnation under the same name is a new Peer; the old one is *ended* and
// everything made from it answers why. Peers live until the agent is gone: links, notices and lists point to
// them freely.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/current.h"
#include "base/id.h"
#include "memory/region_index.h"
#include "metadata/blob/blob.h"
#include "towline/plugin/v1.h"
#include "towline/status.h"
#include "towline/towline.h"

namespace towline {

class Agent;
class Link;
struct Backend;

// A region of a peer. Shared by the peer, block lists and links' imports.
struct RemoteRegion {
  towline_region_ref ref = {};
  std::map<std::string, std::vector<uint8_t>> tokens;  // by backend
  std::atomic<int32_t> imports{0};                     // over all links
  std::atomic<bool> revoked{false};
};

// A peer's regions at one time; one that it has let go of since says so itself.
struct KnownRegions {
  std::map<uint64_t, std::shared_ptr<RemoteRegion>> by_key;
  RegionIndex index;
};

class Peer {
 public:
  Peer(Agent& agent, const metadata::PeerMetadata& metadata);
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;
  ~Peer();

  // Adds regions and addresses of further metadata of the same incarnation.
  void merge(const metadata::PeerMetadata& metadata);

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] const std::string& incarnation_text() const noexcept { return incarnation_text_; }
  [[nodiscard]] Id incarnation() const noexcept {
    return {identity_.incarnation[0], identity_.incarnation[1]};
  }
  [[nodiscard]] const towline_identity& identity() const noexcept { return identity_; }
  [[nodiscard]] Agent& agent() const noexcept { return agent_; }
  [[nodiscard]] std::vector<std::string> listen_addresses() const;

  // kOk while usable; else kPeerRestarted, kStale (removed) or kClosed, for good.
  [[nodiscard]] Status ended() const noexcept { return ended_.load(std::memory_order_acquire); }
  void end(Status why) noexcept;

  [[nodiscard]] uint32_t health() const noexcept { return health_.load(std::memory_order_relaxed); }
  void set_health(uint32_t health) noexcept { health_.store(health, std::memory_order_relaxed); }

  // The address its metadata gives for a backend; false when it has none.
  [[nodiscard]] bool address(const std::string& backend, std::vector<uint8_t>& address) const;
  [[nodiscard]] std::vector<std::shared_ptr<RemoteRegion>> regions() const;
  [[nodiscard]] std::shared_ptr<RemoteRegion> region(uint64_t key) const;
  // What `look` gives for all of them as they are now.
  template <class Look>
  auto with_known_regions(Look look) const {
    for (;;) {
      if (const Current<KnownRegions>::Look known(known_); known) return look(*known);
      make_known();
    }
  }
  // The peer let go of a region: unknown from now on, also where older metadata than that comes in. Null when
  // it was not known.
  std::shared_ptr<RemoteRegion> forget_region(uint64_t key);

  // What a backend said of reaching the peer, until the peer's metadata changes. kMaybe as well where the
  // backend said no, and the peer came to us.
  enum class Reach : uint8_t { kUnknown, kMaybe, kNo };
  [[nodiscard]] Reach reach(const Backend& backend) const noexcept;
  void set_reach(const Backend& backend, Reach reach) noexcept;

  // Links are looked for without a lock: every transfer that is made does.
  [[nodiscard]] bool has_up_link(const Backend& backend) const noexcept;
  // The link of a backend and worker; made when it is not there. Any thread.
  Link& link(Backend& backend, uint32_t worker);
  // The same, without making one.
  [[nodiscard]] Link* find_link(const Backend& backend, uint32_t worker) const noexcept;
  // A link that is up, of this worker if there is one; null when none is. Allocates nothing.
  [[nodiscard]] Link* up_link(uint32_t worker) const noexcept;
  // Takes a connection that came in: the slot's link when that is free, else a further one.
  Link& link_for_incoming(Backend& backend, uint32_t worker);
  [[nodiscard]] std::vector<Link*> links() const;

 private:
  // The first that `wanted` takes; null when there is none.
  template <class Wanted>
  [[nodiscard]] Link* first_link(Wanted wanted) const noexcept;
  Link& add_link(Backend& backend, uint32_t worker);
  void make_known() const;
  [[nodiscard]] bool was_forgotten(uint64_t key) const;

  Agent& agent_;
  const std::string name_;
  towline_identity identity_;
  const std::string incarnation_text_;
  std::atomic<Status> ended_{Status::kOk};
  std::atomic<uint32_t> health_{TOWLINE_HEALTH_UNKNOWN};
  const std::unique_ptr<std::atomic<Reach>[]> reach_;  // by backend
  // Owned. In the order they were made, which is under the lock; none goes before the peer.
  std::atomic<Link*> first_link_{nullptr};

  mutable std::mutex mutex_;
  std::vector<std::string> listen_addresses_;
  std::map<std::string, std::vector<uint8_t>> addresses_;  // by backend
  std::map<uint64_t, std::shared_ptr<RemoteRegion>> regions_;
  std::unordered_map<uint32_t, uint32_t> forgotten_;  // by the key's index, the newest generation
  mutable Current<KnownRegions> known_;               // those of regions_, where they have been looked at
};

}  // namespace towline
