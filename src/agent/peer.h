// Another agent as seen from here: its metadata, and one link for each backend and worker that reach it.
//
// A peer is one incarnation. A new incarnation under the same name is a new Peer; the one that it replaces is
// *ended*, and everything made from that one answers with the reason. Peers that the application asked for
// live as long as the agent, so links, notices and lists may point to them. Unsolicited peers (peer_table.h)
// live while a link is not down or a holder exists, and then until their room is needed.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "agent/pace.h"
#include "agent/ticket.h"
#include "base/id.h"
#include "base/sync/rcu_value.h"
#include "memory/region_index.h"
#include "metadata/blob/blob.h"
#include "towline/plugin/v1.h"
#include "towline/status.h"
#include "towline/towline.h"

namespace towline {

class Agent;
class Link;
class SplitChoices;
struct Backend;

// A region of a peer. Shared by the peer, block lists and links' imports.
struct RemoteRegion {
  towline_region_ref ref = {};
  uint64_t order = 0;                        // later regions of the peer have higher ones
  std::shared_ptr<const RegionLabel> label;  // null: it has no name
  metadata::RegionTokens tokens;             // by this agent's index of the backend
  // Those that came with later metadata, of backends that the peer had added meanwhile. It only grows.
  struct Later {
    metadata::RegionTokens tokens;
    std::unique_ptr<const Later> before;
  };
  std::unique_ptr<const Later> later_tokens;  // under the peer's mutex
  std::atomic<const Later*> later{nullptr};   // the same, for readers

  // Empty: none. Any thread.
  [[nodiscard]] std::span<const uint8_t> token_for(uint32_t backend) const noexcept {
    std::span<const uint8_t> token = tokens.find(backend);
    const Later* at = token.empty() ? later.load(std::memory_order_acquire) : nullptr;
    for (; at != nullptr && token.empty(); at = at->before.get()) token = at->tokens.find(backend);
    return token;
  }
  std::atomic<int32_t> imports{0};  // over all links
  std::atomic<bool> revoked{false};
};

// A snapshot of a peer's regions; a region that was deregistered later is marked itself.
struct KnownRegions {
  std::map<uint64_t, std::shared_ptr<RemoteRegion>> by_key;
  RegionIndex index;
};

class Peer {
 public:
  enum class Origin : uint8_t { kAskedFor, kUnsolicited };

  Peer(Agent& agent, const metadata::PeerIdentity& identity, Origin origin);
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;
  ~Peer();

  // Adds the regions of metadata that the application brought, and takes its addresses.
  void merge(const metadata::PeerMetadata& metadata);
  // Takes metadata that a stranger brought, for an unsolicited peer. While the peer is in use, known
  // addresses do not change; otherwise complete metadata replaces everything. The blob's regions are read
  // later, on demand, since the caller holds a worker's lock.
  void offer(const metadata::PeerSummary& summary, std::span<const uint8_t> blob);

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] const std::string& incarnation_text() const noexcept { return incarnation_text_; }
  [[nodiscard]] Id incarnation() const noexcept {
    return {identity_.incarnation[0], identity_.incarnation[1]};
  }
  [[nodiscard]] const towline_identity& identity() const noexcept { return identity_; }
  [[nodiscard]] Agent& agent() const noexcept { return agent_; }
  [[nodiscard]] bool unsolicited() const noexcept { return unsolicited_; }
  // When it was last met other than over its links. Under the agent's control mutex.
  [[nodiscard]] uint64_t met_ns() const noexcept { return met_ns_; }
  void set_met_ns(uint64_t now_ns) noexcept { met_ns_ = now_ns; }
  [[nodiscard]] std::vector<std::string> listen_addresses() const;

  // kOk while usable; else kPeerRestarted, kStale (removed) or kClosed, for good.
  [[nodiscard]] Status ended() const noexcept { return ended_.load(std::memory_order_acquire); }
  void end(Status why) noexcept;

  [[nodiscard]] Pace& pace() noexcept { return pace_; }
  // For its large posts; null if the agent has one worker, or did not ask for the peer.
  [[nodiscard]] SplitChoices* splits() noexcept { return splits_.get(); }

  [[nodiscard]] uint32_t health() const noexcept { return health_.load(std::memory_order_relaxed); }
  // Tells the queues that watch peers.
  void set_health(uint32_t health) noexcept;

  // Told once a link has credit for any notice, or nothing is to be waited for.
  void await_credit(TicketHold ticket);
  // "peer 'right': peer lost (nothing heard for 10001 ms)".
  [[nodiscard]] std::string loss(Status status, std::string_view why) const;
  [[nodiscard]] bool awaits_credit() const noexcept {
    return credit_waits_.load(std::memory_order_relaxed) != 0;
  }
  // `why`: of an error; "" for the status's own text.
  void credit_came(Status status, std::string_view why = {}) noexcept;

  // Takes room for a notice of this peer that the application has not received yet, counted over all its
  // connections, since each new connection grants new credit. Any thread. False: too many wait already.
  [[nodiscard]] bool take_notice_room(uint64_t bytes) noexcept {
    constexpr uint64_t kMost = 16u << 20;
    if (waiting_notice_bytes_.fetch_add(bytes, std::memory_order_relaxed) + bytes <= kMost) return true;
    return_notice_room(bytes);
    return false;
  }
  void return_notice_room(uint64_t bytes) noexcept {
    waiting_notice_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
  }

  // The address for a backend in its metadata; false if it has none.
  [[nodiscard]] bool address(const std::string& backend, std::vector<uint8_t>& address) const;
  [[nodiscard]] bool has_address(const std::string& backend) const;
  [[nodiscard]] std::vector<std::shared_ptr<RemoteRegion>> regions();
  [[nodiscard]] std::shared_ptr<RemoteRegion> region(uint64_t key);
  // The latest with this name; throws Error(kNotFound) that lists the names there are.
  [[nodiscard]] std::shared_ptr<RemoteRegion> region(std::string_view name);
  // Includes regions that have not been read yet.
  [[nodiscard]] std::size_t region_count() const;
  // The approximate size of regions, tokens and addresses, read or not.
  [[nodiscard]] uint64_t metadata_bytes() const;
  [[nodiscard]] static uint64_t metadata_bytes(std::size_t regions, uint64_t blob_bytes) noexcept {
    return regions * uint64_t{kRegionBytes} + blob_bytes;
  }
  [[nodiscard]] static uint64_t name_bytes(const metadata::PeerSummary& summary) noexcept {
    return summary.names * uint64_t{kNameBytes};
  }
  [[nodiscard]] static uint64_t address_bytes(const metadata::PeerSummary& summary) noexcept;
  // The same once this has been offered as well.
  [[nodiscard]] uint64_t metadata_bytes_with(const metadata::PeerSummary& summary, uint64_t blob_bytes) const;
  // Returns `look` applied to the current regions.
  template <class Look>
  auto with_known_regions(Look look) {
    if (unsolicited_) read_offers();
    for (;;) {
      if (const RcuValue<KnownRegions>::Look known(known_); known) return look(*known);
      make_known();
    }
  }
  // The peer deregistered a region: forgets it, and ignores it in older metadata that arrives soon. Much
  // later metadata may add it again; then the owner is asked before it is used and says that it is gone. Null
  // if it was not known.
  std::shared_ptr<RemoteRegion> forget_region(uint64_t key);

  // A backend's answer about reaching the peer, until the peer's metadata changes. kMaybe also if the backend
  // said no but the peer has connected to this agent.
  enum class Reach : uint8_t { kUnknown, kMaybe, kNo };
  [[nodiscard]] Reach reach(const Backend& backend) const noexcept;
  void set_reach(const Backend& backend, Reach reach) noexcept;

  // Looks for links without a lock, since every new transfer does.
  [[nodiscard]] bool has_up_link(const Backend& backend) const noexcept;
  // The link of a backend and worker; made if it does not exist. Any thread.
  Link& link(Backend& backend, uint32_t worker);
  // The same, without making one.
  [[nodiscard]] Link* find_link(const Backend& backend, uint32_t worker) const noexcept;
  // A link that is up, preferably of this worker; null if none is. Allocates nothing.
  [[nodiscard]] Link* up_link(uint32_t worker) const noexcept;
  [[nodiscard]] bool any_up_link() const noexcept;
  // Whether this side has a connection over it, or is about to.
  [[nodiscard]] bool connects_over(const Backend& backend) const noexcept;
  // The link for an incoming connection: the slot's link if it is free, else another one.
  Link& link_for_incoming(Backend& backend, uint32_t worker);
  [[nodiscard]] std::vector<Link*> links() const;
  [[nodiscard]] const Link* first_of_links() const noexcept {
    return first_link_.load(std::memory_order_acquire);
  }

  // ---- connections that one of the sides has given up; link_endings.cc. Any thread.

  // The link whose connection has this number, or null.
  [[nodiscard]] Link* find_connection(uint64_t id) const noexcept;
  // The peer asked to end the connection with that number: it must not come up any more.
  void remember_ended(uint64_t id) noexcept;
  [[nodiscard]] bool was_ended(uint64_t id) const noexcept;
  // The peer has ended its side.
  void confirm_ended(uint64_t id) noexcept;
  // Grows whenever the peer must be asked again to end connections.
  [[nodiscard]] uint64_t given_up_changes() const noexcept {
    return given_up_changes_.load(std::memory_order_acquire);
  }
  void given_up_changed() noexcept;

  // For an unsolicited peer: true if a link is not down or a holder exists. A use begins under the agent's
  // control mutex, or while there is another use.
  [[nodiscard]] bool in_use() const noexcept;
  // For a holder other than a PeerHold. Does nothing for asked-for peers.
  void hold() noexcept {
    if (unsolicited_) holders_->fetch_add(1, std::memory_order_relaxed);
  }
  void let_go() noexcept {
    if (unsolicited_) holders_->fetch_sub(1, std::memory_order_release);
  }

 private:
  Pace pace_;
  const std::unique_ptr<SplitChoices> splits_;
  friend class PeerHold;
  using Numbers = std::vector<std::optional<uint32_t>>;  // this agent's, by the blob's number of a backend
  static constexpr std::size_t kRegionBytes = 256;
  static constexpr std::size_t kNameBytes = 160;  // more, of a region with a name

  // The first link that `wanted` accepts, or null.
  template <class Wanted>
  [[nodiscard]] Link* first_link(Wanted wanted) const noexcept;
  Link& add_link(Backend& backend, uint32_t worker);
  void make_known();
  void read_offers();
  void take_addresses(const metadata::PeerMetadata& metadata);
  // Null: it is invalid here.
  [[nodiscard]] std::shared_ptr<const RegionLabel> label_of(const RegionLabel& told,
                                                            uint64_t region_bytes) const;
  [[nodiscard]] std::shared_ptr<RemoteRegion> make_region(const metadata::RegionMetadata& region,
                                                          const Numbers& numbers) const;
  static void add_tokens(RemoteRegion& known, const metadata::RegionTokens& tokens, const Numbers& numbers);
  void add_regions(const metadata::PeerMetadata& metadata);
  [[nodiscard]] bool was_forgotten(uint64_t key) const noexcept;

  Agent& agent_;
  const std::string name_;
  towline_identity identity_;
  const std::string incarnation_text_;
  const bool unsolicited_;
  uint64_t met_ns_ = 0;
  // Not null for an unsolicited peer. Lists may outlive the agent.
  const std::shared_ptr<std::atomic<uint32_t>> holders_;
  std::atomic<Status> ended_{Status::kOk};
  std::atomic<uint32_t> health_{TOWLINE_HEALTH_UNKNOWN};
  std::atomic<uint64_t> waiting_notice_bytes_{0};
  std::atomic<std::size_t> credit_waits_{0};
  const std::unique_ptr<std::atomic<Reach>[]> reach_;  // by backend
  // Owned. In the order in which they were made, under the lock; none is destroyed before the peer.
  std::atomic<Link*> first_link_{nullptr};

  std::atomic<uint64_t> given_up_changes_{0};

  mutable std::mutex mutex_;
  // A ring of connections that may be coming up now; older ones have come up or failed long ago.
  std::array<uint64_t, 64> ended_connections_{};
  std::size_t next_ended_ = 0;
  std::vector<TicketHold> awaiting_credit_;
  std::vector<std::string> listen_addresses_;
  std::map<std::string, std::vector<uint8_t>> addresses_;  // by backend
  std::map<uint64_t, std::shared_ptr<RemoteRegion>> regions_;
  uint64_t last_order_ = 0;
  std::vector<uint64_t> forgotten_;  // keys, the last kMostForgotten of them
  std::size_t next_forgotten_ = 0;   // where the next one goes
  RcuValue<KnownRegions> known_;     // a snapshot of regions_, once it was used

  std::mutex reading_;  // of offers; before mutex_
  std::vector<std::vector<uint8_t>> offers_;
  std::size_t offered_regions_ = 0;  // in them
  uint64_t offered_bytes_ = 0;       // also of those that have been read
  uint64_t address_bytes_ = 0;       // of addresses_
};

// Keeps an unsolicited peer alive; costs almost nothing for other peers. May outlive the agent.
class PeerHold {
 public:
  PeerHold() = default;
  // Null: no peer. The caller holds the agent's control mutex, or is using the peer.
  explicit PeerHold(Peer* peer) noexcept : peer_(peer) {
    if (peer == nullptr || !peer->unsolicited_) return;
    peer->hold();
    holders_ = peer->holders_;
  }
  PeerHold(PeerHold&& other) noexcept
      : peer_(std::exchange(other.peer_, nullptr)), holders_(std::move(other.holders_)) {}
  PeerHold& operator=(PeerHold&& other) noexcept {
    std::swap(peer_, other.peer_);
    std::swap(holders_, other.holders_);
    return *this;
  }
  ~PeerHold() {
    if (holders_ != nullptr) holders_->fetch_sub(1, std::memory_order_release);
  }

  [[nodiscard]] Peer* get() const noexcept { return peer_; }
  Peer& operator*() const noexcept { return *peer_; }
  Peer* operator->() const noexcept { return peer_; }
  explicit operator bool() const noexcept { return peer_ != nullptr; }

 private:
  Peer* peer_ = nullptr;
  std::shared_ptr<std::atomic<uint32_t>> holders_;  // null: none is counted
};

}  // namespace towline
