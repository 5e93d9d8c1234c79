#include "agent/router.h"

#include "agent/agent.h"
#include "agent/block_list.h"
#include "agent/link.h"

namespace towline {

namespace {

uint32_t kinds_of_one(const BlockList* list) noexcept {
  uint32_t kinds = 0;
  if (list == nullptr) return 0;
  for (uint64_t i = 0; i < list->view().region_count; ++i) kinds |= 1u << list->view().regions[i].kind;
  return kinds;
}

// Empty: it can be reached, as far as the backend can tell.
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

uint32_t kinds_of(const BlockList* local, const BlockList* remote) noexcept {
  return kinds_of_one(local) | kinds_of_one(remote);
}

bool may_do(Backend& backend, Peer& peer, uint32_t kinds, const std::string& forced) {
  if (!backend.open() || (kinds & ~backend.plugin->kinds) != 0) return false;
  if (!forced.empty() && backend.name != forced) return false;
  Peer::Reach reach = peer.reach(backend);
  if (reach == Peer::Reach::kUnknown) {
    reach = ask(backend, peer).empty() ? Peer::Reach::kMaybe : Peer::Reach::kNo;
    peer.set_reach(backend, reach);
    reach = peer.reach(backend);
  }
  return reach == Peer::Reach::kMaybe;
}

std::string reason_against(Backend& backend, Peer& peer, uint32_t kinds, const std::string& forced) {
  if (!forced.empty() && backend.name != forced) return fmt::format("'{}' was asked for", forced);
  if (!backend.open()) return backend.why_not_open();
  if ((kinds & ~backend.plugin->kinds) != 0) return "it does not serve this kind of memory";
  if (peer.has_up_link(backend)) return {};
  return ask(backend, peer);
}

}  // namespace towline
