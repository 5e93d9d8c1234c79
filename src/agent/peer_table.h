// The peers of one agent, by incarnation and by name. Under the agent's control mutex.
//
// A peer is *asked for* when the application brought its metadata: connect, add_peer, a directory. An
// *unsolicited* one came without being asked for, with a connection or a blob. Nothing proves who sent it, so
// the two never mix: one incarnation may have a peer of each kind, and strangers change only the unsolicited
// one. Asked-for peers live as long as the agent. Unsolicited ones are bounded in number and bytes: if room
// is needed, the unused one that was met longest ago is removed first.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "agent/peer.h"
#include "base/id.h"

namespace towline {

class PeerTable {
 public:
  // Limits of unsolicited peers.
  struct Limits {
    uint64_t peers = 0;
    uint64_t bytes = 0;  // of their metadata
  };
  using Peers = std::vector<std::unique_ptr<Peer>>;

  explicit PeerTable(const Limits& limits) : limits_(limits) {}

  [[nodiscard]] const Limits& limits() const noexcept { return limits_; }
  // Null: none, or it has ended.
  [[nodiscard]] Peer* asked_for(const Id& incarnation) const noexcept;
  [[nodiscard]] Peer* unsolicited(const Id& incarnation) const noexcept;
  // Peers that were asked for and unsolicited ones.
  [[nodiscard]] std::vector<Peer*> named(std::string_view name) const;
  [[nodiscard]] std::vector<Peer*> all() const;
  // Visits both kinds, including ended ones that are still used. Allocates nothing.
  template <class Visit>
  void visit(const Id& incarnation, Visit&& visit) const noexcept {
    const auto visit_one = [&](Peer& peer) {
      if (peer.incarnation() == incarnation) visit(peer);
    };
    for (const auto& peer : asked_for_) visit_one(*peer);
    for (const auto& [id, entry] : unsolicited_) visit_one(*entry.peer);
    for (const auto& peer : ended_) visit_one(*peer);
  }

  Peer& add(std::unique_ptr<Peer> peer);
  // Moves unused ones into `gone` until there is room for `known` (null: a new one) with `bytes`. False:
  // peers in use fill it.
  [[nodiscard]] bool make_room(const Peer* known, uint64_t bytes, Peers& gone);
  // An unsolicited one's metadata has grown or shrunk.
  void recount(const Peer& peer) noexcept;
  // It has ended: look-ups no longer find it. It stays allocated while it is used.
  void forget(const Peer& peer);
  // For a forked child: the peers belong to the parent.
  void abandon() noexcept;

 private:
  struct Unsolicited {
    std::unique_ptr<Peer> peer;
    uint64_t bytes = 0;
  };
  using ByIncarnation = std::map<Id, Unsolicited>;

  void take_out(ByIncarnation::iterator entry, Peers& to);
  void forget_name(const Peer& peer);

  const Limits limits_;
  Peers asked_for_;  // all there ever were
  std::map<Id, Peer*> by_incarnation_;
  ByIncarnation unsolicited_;
  uint64_t unsolicited_bytes_ = 0;
  Peers ended_;  // unsolicited ones that were in use
  std::multimap<std::string, Peer*, std::less<>> by_name_;
};

}  // namespace towline
