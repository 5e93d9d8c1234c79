// C API: named, shaped regions.
#include "towline/layout.h"

#include "capi/handles.h"

using namespace towline;  // NOLINT: C entry points

namespace {

// All of a region, by its layout or as one block.
towline_blocks_t blocks_of_region(const towline_region_ref& ref, const RegionLabel* label) {
  if (label != nullptr && label->shaped()) return blocks_of(label->layout, ref.address, ref.kind, ref.device);
  towline_blocks_t blocks = {};
  blocks.address = ref.address;
  blocks.length = ref.bytes;
  blocks.device = ref.device;
  blocks.kind = ref.kind;
  return blocks;
}

// Another region may cover the same memory: the list is to be of this one.
void fill(towline_block_list_t& list, const towline_region_ref& ref,
          const std::shared_ptr<const RegionLabel>& label) {
  const towline_blocks_t blocks = blocks_of_region(ref, label.get());
  list.own.fill(std::span{&blocks, 1}, RegionIndex(std::span{&ref, 1}));
  list.label = label;
}

void give_away(std::shared_ptr<towline_block_list> made, towline_block_list_t** list) {
  *list = made.get();
  (*list)->self = std::move(made);
}

std::string title(const towline_block_list_t& list) {
  const std::string of =
      list.peer() == nullptr ? "this agent" : fmt::format("peer '{}'", list.peer()->name());
  return fmt::format("region '{}' of {} has {}", list.label->name, of, describe(list.label->layout));
}

Peer& living(const towline_peer_t& peer) {
  peer.agent->check_usable();
  if (peer.peer->ended() != Status::kOk)
    fail(peer.peer->ended(), "peer '{}': {}", peer.peer->name(), status_text(peer.peer->ended()));
  return *peer.peer;
}

}  // namespace

std::string capi::check_layouts(const towline_block_list_t& one, const towline_block_list_t& other) {
  const towline_layout_t* const a = layout_of(one);
  const towline_layout_t* const b = layout_of(other);
  if (a == nullptr || b == nullptr) return {};
  if (a->element_bytes != b->element_bytes || a->dimensions != b->dimensions)
    fail(
        Status::kMismatch,
        "{}, {}: their elements don't pair; register both alike, or set options.recut to pair bytes in order",
        title(one), title(other));
  if (std::equal(a->count, a->count + a->dimensions, b->count)) return {};
  return fmt::format(
      "{}, {}: all of one is not all of the other; pick blocks of both, or set options.recut to pair bytes "
      "in order",
      title(one), title(other));
}

extern "C" {

int32_t towline_region_list(const towline_region_t* region, towline_block_list_t** list) {
  return capi::guard(__func__, [&] {
    capi::need(region, "region");
    capi::need(list, "list");
    region->agent->check_usable();
    const towline_region_ref& ref = region->region->ref;
    if (!region->agent->regions().is_published(ref.key))
      fail(Status::kStale, "the region with key {:#x} is deregistered", ref.key);
    auto made = std::make_shared<towline_block_list>(region->agent->incarnation(), nullptr);
    fill(*made, ref, region->region->label);
    give_away(std::move(made), list);
    return Status::kOk;
  });
}

int32_t towline_peer_region_list(const towline_peer_t* peer, const char* name, towline_block_list_t** list) {
  return capi::guard(__func__, [&] {
    capi::need(peer, "peer");
    capi::need(name, "name");
    capi::need(list, "list");
    Peer& owner = living(*peer);
    const std::shared_ptr<RemoteRegion> region = owner.region(std::string_view(name));
    if (region->revoked.load(std::memory_order_acquire))
      fail(Status::kStale, "peer '{}' has deregistered its region '{}'", owner.name(), name);
    auto made = std::make_shared<towline_block_list>(peer->agent->incarnation(), &owner);
    fill(*made, region->ref, region->label);
    made->add_remote_region(region);
    give_away(std::move(made), list);
    return Status::kOk;
  });
}

int32_t towline_peer_region_find(const towline_peer_t* peer, const char* name, towline_region_info_t* info,
                                 size_t info_bytes) {
  return capi::guard(__func__, [&] {
    capi::need(peer, "peer");
    capi::need(name, "name");
    capi::need(info, "info");
    capi::check_element(info_bytes, capi::kLeastRegionInfoBytes, "info_bytes");
    capi::give_element(info, info_bytes, 0,
                       capi::describe(living(*peer).region(std::string_view(name))->ref));
    return Status::kOk;
  });
}

int32_t towline_peer_region_name(const towline_peer_t* peer, uint64_t key, char* name, size_t capacity) {
  return capi::guard(__func__, [&] {
    capi::need(peer, "peer");
    const std::shared_ptr<RemoteRegion> region = peer->peer->region(key);
    if (region == nullptr)
      fail(Status::kNotFound, "peer '{}' has no region with key {:#x}", peer->peer->name(), key);
    const std::string text = region->label == nullptr ? "" : region->label->name;
    return capi::give(text.data(), text.size(), true, name, capacity, nullptr);
  });
}

int32_t towline_block_list_layout(const towline_block_list_t* list, towline_layout_t* layout) {
  return capi::guard(__func__, [&] {
    capi::need(list, "list");
    capi::need(layout, "layout");
    const size_t size = layout->struct_size;
    if (size < sizeof(size_t) || size > 4096)
      fail(Status::kInvalidArgument, "layout->struct_size is {}; set it to sizeof the struct", size);
    const towline_layout_t* const its = capi::layout_of(*list);
    if (its == nullptr) fail(Status::kNotFound, "the list was not made from a region with a layout");
    towline_layout_t given = *its;
    given.struct_size = size;
    std::memcpy(layout, &given, std::min(size, sizeof given));
    return Status::kOk;
  });
}

int32_t towline_block_list_select(const towline_block_list_t* list, const towline_picks_t* picks,
                                  size_t pick_bytes, size_t dimensions, uint32_t* indices, size_t capacity,
                                  size_t* needed) {
  return capi::guard(__func__, [&] {
    capi::need(list, "list");
    if (dimensions != 0) capi::need(picks, "picks");
    const towline_layout_t* const layout = capi::layout_of(*list);
    if (layout == nullptr) fail(Status::kNotFound, "the list was not made from a region with a layout");
    const std::span<uint32_t> room(indices, indices == nullptr ? 0 : capacity);
    if (dimensions > TOWLINE_MAX_DIMENSIONS)
      fail(Status::kInvalidArgument, "{} dimensions; there are at most {}", dimensions,
           TOWLINE_MAX_DIMENSIONS);
    std::vector<towline_picks_t> copies;
    const uint64_t count =
        select_elements(*layout, capi::take_elements(picks, pick_bytes, dimensions, copies, "picks"), room);
    if (needed == nullptr && room.size() < count)
      fail(Status::kNoSpace, "{} indices are needed, there is room for {}", count, room.size());
    if (needed != nullptr) *needed = count;
    return Status::kOk;
  });
}

}  // extern "C"
