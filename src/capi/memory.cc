// C API: memory, regions, block lists.
#include <towline/limits.h>

#include "base/os/memory_limits.h"
#include "capi/handles.h"

using namespace towline;  // NOLINT: C entry points

namespace {

Peer* checked_peer(const towline_agent_t& agent, const towline_peer_t* peer) {
  if (peer == nullptr) return nullptr;
  if (peer->agent != agent.agent) fail(Status::kInvalidArgument, "peer belongs to another agent");
  return peer->peer.get();
}

// Resolves `blocks` against the agent's regions or a peer's.
template <class Blocks>
towline_block_list_t* make_list(const towline_agent_t& handle, const towline_peer_t* of,
                                const Blocks& blocks) {
  Agent& agent = *handle.agent;
  Peer* const peer = checked_peer(handle, of);
  agent.check_usable();
  auto made = std::make_shared<towline_block_list>(agent.incarnation(), peer);
  if (peer == nullptr) {
    const RegionTable::Reader reader(agent.regions());
    made->own.fill(blocks, reader.index());
  } else {
    if (peer->ended() != Status::kOk)
      fail(peer->ended(), "peer '{}': {}", peer->name(), status_text(peer->ended()));
    peer->with_known_regions([&](const KnownRegions& known) {
      try {
        made->own.fill(blocks, known.index);
      } catch (const Error& error) {
        if (error.code() != Status::kOutOfRange) throw;
        fail(error.code(), "{}. Peer '{}' tells of regions that it registered with read or write access",
             error.message(), peer->name());
      }
      for (const towline_region_ref& ref : made->own.regions()) {
        const std::shared_ptr<RemoteRegion>& region = known.by_key.find(ref.key)->second;
        if (region->revoked.load(std::memory_order_acquire))
          fail(Status::kStale, "peer '{}' has deregistered the region with key {}", peer->name(), ref.key);
        made->add_remote_region(region);
      }
    });
  }
  towline_block_list* const list = made.get();
  list->self = std::move(made);
  return list;
}

}  // namespace

extern "C" {

int32_t towline_memory_allocate(uint64_t bytes, uint32_t flags, towline_memory_t** memory) {
  return capi::guard(__func__, [&] {
    capi::need(memory, "memory");
    *memory = new towline_memory{SharedMemory::allocate(bytes, flags)};
    return Status::kOk;
  });
}

uint64_t towline_memory_available(void) {
  try {
    return available_memory_bytes();
  } catch (...) {
    return UINT64_MAX;
  }
}

void* towline_memory_address(const towline_memory_t* memory) {
  return memory == nullptr ? nullptr : memory->memory->address();
}
uint64_t towline_memory_bytes(const towline_memory_t* memory) {
  return memory == nullptr ? 0 : memory->memory->bytes();
}

int32_t towline_memory_free(towline_memory_t* memory) {
  delete memory;
  return TOWLINE_OK;
}

int32_t towline_region_register(towline_agent_t* agent, void* address, uint64_t bytes,
                                const towline_region_options_t* options, towline_region_t** region) {
  return capi::guard(__func__, [&] {
    capi::need(agent, "agent");
    capi::need(region, "region");
    const auto given = capi::take_options(options, "options");
    *region = new towline_region{agent->agent, agent->agent->own_regions().add(address, bytes, given)};
    return Status::kOk;
  });
}

int32_t towline_region_deregister(towline_region_t* region, uint64_t timeout_ns) {
  return capi::guard(__func__, [&] {
    if (region == nullptr) return Status::kOk;
    if (region->agent->usable() == Status::kOk) {
      std::string why;
      const Status status = region->agent->own_regions().remove(region->region, timeout_ns, why);
      if (status == Status::kNotYet) fail(status, "the region is still in use: {}", why);
    }
    delete region;
    return Status::kOk;
  });
}

int32_t towline_region_release(towline_region_t* region, void (*released)(void* owner), void* owner) {
  return capi::guard(__func__, [&] {
    if (region == nullptr || region->agent->usable() == Status::kForked) {
      if (released != nullptr) released(owner);
    } else {
      region->agent->region_reaper().add(region->region, released, owner);
    }
    delete region;
    return Status::kOk;
  });
}

uint64_t towline_region_key(const towline_region_t* region) {
  return region == nullptr ? 0 : region->region->ref.key;
}

int32_t towline_region_info(const towline_region_t* region, towline_region_info_t* info, size_t info_bytes) {
  return capi::guard(__func__, [&] {
    capi::need(region, "region");
    capi::need(info, "info");
    capi::check_element(info_bytes, capi::kLeastRegionInfoBytes, "info_bytes");
    capi::give_element(info, info_bytes, 0, capi::describe(region->region->ref));
    return Status::kOk;
  });
}

uint64_t towline_region_device(const towline_region_t* region) {
  return region == nullptr ? 0 : region->region->ref.device;
}

int32_t towline_block_list_create(towline_agent_t* agent, towline_peer_t* peer,
                                  const towline_blocks_t* blocks, size_t block_bytes, size_t count,
                                  towline_block_list_t** list) {
  return capi::guard(__func__, [&] {
    capi::need(agent, "agent");
    capi::need(list, "list");
    if (count != 0) capi::need(blocks, "blocks");
    std::vector<towline_blocks_t> copies;
    *list = make_list(*agent, peer, capi::take_elements(blocks, block_bytes, count, copies, "blocks"));
    return Status::kOk;
  });
}

int32_t towline_block_list_create_flat(towline_agent_t* agent, towline_peer_t* peer, uint32_t kind,
                                       const uint64_t* addresses, size_t address_stride_bytes,
                                       const uint64_t* lengths, size_t length_stride_bytes, uint64_t device,
                                       size_t count, towline_block_list_t** list) {
  return capi::guard(__func__, [&] {
    capi::need(agent, "agent");
    capi::need(list, "list");
    const FlatBlocks flat = {
        kind, device, count, addresses, address_stride_bytes, lengths, length_stride_bytes};
    *list = make_list(*agent, peer, flat);
    return Status::kOk;
  });
}

void towline_block_list_destroy(towline_block_list_t* list) {
  if (list == nullptr) return;
  const std::shared_ptr<BlockList> last = std::move(list->self);
}

uint64_t towline_block_list_blocks(const towline_block_list_t* list) {
  return list == nullptr ? 0 : list->view().blocks;
}
uint64_t towline_block_list_bytes(const towline_block_list_t* list) {
  return list == nullptr ? 0 : list->own.bytes();
}

}  // extern "C"
