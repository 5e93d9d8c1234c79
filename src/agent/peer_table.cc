#include "agent/peer_table.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace towline {

Peer* PeerTable::asked_for(const Id& incarnation) const noexcept {
  const auto found = by_incarnation_.find(incarnation);
  return found == by_incarnation_.end() ? nullptr : found->second;
}

Peer* PeerTable::unsolicited(const Id& incarnation) const noexcept {
  const auto found = unsolicited_.find(incarnation);
  return found == unsolicited_.end() ? nullptr : found->second.peer.get();
}

std::vector<Peer*> PeerTable::named(std::string_view name) const {
  std::vector<Peer*> result;
  const auto [begin, end] = by_name_.equal_range(name);
  for (auto entry = begin; entry != end; ++entry) result.push_back(entry->second);
  return result;
}

std::vector<Peer*> PeerTable::all() const {
  std::vector<Peer*> result;
  for (const auto& [name, peer] : by_name_) result.push_back(peer);
  return result;
}

Peer& PeerTable::add(std::unique_ptr<Peer> peer) {
  Peer& added = *peer;
  if (added.unsolicited()) {
    unsolicited_[added.incarnation()] = {std::move(peer), 0};
  } else {
    asked_for_.push_back(std::move(peer));
    by_incarnation_[added.incarnation()] = &added;
  }
  by_name_.emplace(added.name(), &added);
  return added;
}

bool PeerTable::make_room(const Peer* known, uint64_t bytes, Peers& gone) {
  const auto unused =
      std::partition(ended_.begin(), ended_.end(), [](const auto& peer) { return peer->in_use(); });
  std::move(unused, ended_.end(), std::back_inserter(gone));
  ended_.erase(unused, ended_.end());
  if (bytes > limits_.bytes) return false;
  const uint64_t others = limits_.peers - 1;
  const uint64_t their_bytes = limits_.bytes - bytes;
  const uint64_t own_bytes = known == nullptr ? 0 : unsolicited_.at(known->incarnation()).bytes;
  const uint64_t own = known == nullptr ? 0 : 1;
  while (unsolicited_.size() - own > others || unsolicited_bytes_ - own_bytes > their_bytes) {
    auto oldest = unsolicited_.end();
    for (auto entry = unsolicited_.begin(); entry != unsolicited_.end(); ++entry) {
      const Peer& peer = *entry->second.peer;
      const bool older = oldest == unsolicited_.end() || peer.met_ns() < oldest->second.peer->met_ns();
      if (&peer != known && older && !peer.in_use()) oldest = entry;
    }
    if (oldest == unsolicited_.end()) return false;
    take_out(oldest, gone);
  }
  return true;
}

void PeerTable::recount(const Peer& peer) noexcept {
  const auto found = unsolicited_.find(peer.incarnation());
  if (found == unsolicited_.end() || found->second.peer.get() != &peer) return;
  unsolicited_bytes_ -= std::exchange(found->second.bytes, peer.metadata_bytes());
  unsolicited_bytes_ += found->second.bytes;
}

void PeerTable::forget(const Peer& peer) {
  if (!peer.unsolicited()) {
    const auto found = by_incarnation_.find(peer.incarnation());
    if (found == by_incarnation_.end() || found->second != &peer) return;
    by_incarnation_.erase(found);
    return forget_name(peer);
  }
  const auto found = unsolicited_.find(peer.incarnation());
  if (found != unsolicited_.end() && found->second.peer.get() == &peer) take_out(found, ended_);
}

void PeerTable::take_out(ByIncarnation::iterator entry, Peers& to) {
  forget_name(*entry->second.peer);
  unsolicited_bytes_ -= entry->second.bytes;
  to.push_back(std::move(entry->second.peer));
  unsolicited_.erase(entry);
}

void PeerTable::forget_name(const Peer& peer) {
  const auto [begin, end] = by_name_.equal_range(peer.name());
  const auto found = std::find_if(begin, end, [&](const auto& entry) { return entry.second == &peer; });
  if (found != end) by_name_.erase(found);
}

void PeerTable::abandon() noexcept {
  for (auto& peer : asked_for_) (void)peer.release();
  for (auto& peer : ended_) (void)peer.release();
  for (auto& [incarnation, entry] : unsolicited_) (void)entry.peer.release();
}

}  // namespace towline
