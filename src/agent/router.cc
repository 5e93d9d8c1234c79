#include "agent/router.h"

#include <iterator>

#include "agent/agent.h"
#include "agent/block_list.h"
#include "agent/link.h"

namespace towline {

namespace {

uint32_t kinds_of(const BlockList& list) noexcept {
  uint32_t kinds = 0;
  for (uint64_t i = 0; i < list.view().region_count; ++i) kinds |= 1u << list.view().regions[i].kind;
  return kinds;
}

std::string names_of(uint32_t kinds) {
  std::string names;
  for (uint32_t kind = 0; kind < 32; ++kind)
    if ((kinds & (1u << kind)) != 0) names += (names.empty() ? "" : " and ") + std::string(kind_name(kind));
  return names;
}

// TOWLINE_WHERE_*: how far away the peer is.
uint32_t where_is(const Peer& peer, const Agent& agent) noexcept {
  const towline_identity& here = agent.identity();
  const towline_identity& there = peer.identity();
  const bool known = (here.host[0] | here.host[1]) != 0;
  if (!known || here.host[0] != there.host[0] || here.host[1] != there.host[1]) {
    return peer.incarnation() == agent.incarnation() ? TOWLINE_WHERE_SAME_PROCESS : TOWLINE_WHERE_ANY_HOST;
  }
  const bool same_process = here.pid == there.pid && here.pid_namespace == there.pid_namespace &&
                            here.start_time == there.start_time;
  return same_process ? TOWLINE_WHERE_SAME_PROCESS : TOWLINE_WHERE_SAME_HOST;
}

bool moves(const Backend& backend, const Need& need, uint32_t where) noexcept {
  return need.local == 0 || backend.moves_all(need.op, need.local, need.remote, where);
}

// Empty: as far as the backend knows, it can be reached.
std::string ask(Backend& backend, const Peer& peer) {
  if (backend.has_trait(TOWLINE_TRAIT_STORAGE) && peer.incarnation() != backend.agent->incarnation())
    return "it serves this agent's own storage only";
  std::vector<uint8_t> address;
  if (!peer.address(backend.name, address)) return "the peer does not offer it";
  Worker::Guard guard(*backend.agent->workers()[0]);  // probe belongs to its lock
  if (!backend.open()) return backend.why_not_open();
  take_failure_text();
  const int32_t status =
      backend.connection->probe(backend.handle, &peer.identity(), address.data(), address.size());
  if (status == TOWLINE_OK) return {};
  const std::string text = take_failure_text();
  return text.empty() ? status_text(static_cast<Status>(status)) : text;
}

}  // namespace

const char* kind_name(uint32_t kind) noexcept {
  constexpr const char* kNames[] = {"dram", "vram", "file", "block", "object"};
  return kind < std::size(kNames) ? kNames[kind] : "unknown";
}

Need need_of(uint32_t op, const BlockList& local, const BlockList& remote) noexcept {
  return {op, kinds_of(local), kinds_of(remote)};
}

bool may_do(Backend& backend, Peer& peer, const Need& need, const std::string& forced) {
  if (!backend.open() || !moves(backend, need, where_is(peer, *backend.agent))) return false;
  if (!forced.empty() && backend.name != forced) return false;
  Peer::Reach reach = peer.reach(backend);
  if (reach == Peer::Reach::kUnknown) {
    reach = ask(backend, peer).empty() ? Peer::Reach::kMaybe : Peer::Reach::kNo;
    peer.set_reach(backend, reach);
    reach = peer.reach(backend);
  }
  return reach == Peer::Reach::kMaybe;
}

std::string reason_against(Backend& backend, Peer& peer, const Need& need, const std::string& forced) {
  if (!forced.empty() && backend.name != forced) return fmt::format("'{}' was asked for", forced);
  if (!backend.open()) return backend.why_not_open();
  const bool writes = need.op == TOWLINE_WRITE;
  if (!moves(backend, need, TOWLINE_WHERE_SAME_PROCESS))
    return fmt::format("it does not {} {} here {} {} there", writes ? "write" : "read", names_of(need.local),
                       writes ? "to" : "from", names_of(need.remote));
  if (!peer.has_up_link(backend)) {
    if (std::string reason = ask(backend, peer); !reason.empty()) return reason;
  }
  if (moves(backend, need, where_is(peer, *backend.agent))) return {};
  return fmt::format(
      "it does not {} {} here {} {} of {}", writes ? "write" : "read", names_of(need.local),
      writes ? "to" : "from", names_of(need.remote),
      where_is(peer, *backend.agent) == TOWLINE_WHERE_ANY_HOST ? "another host" : "another process");
}

}  // namespace towline
