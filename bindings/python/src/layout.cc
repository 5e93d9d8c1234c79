// Lists of named, shaped regions. Views of them are Python (_layout.py).
#include <towline/layout.h>

#include <memory>
#include <vector>

#include "arrays.h"

namespace towline::python {

namespace {

nb::object own(nb::object agent, nb::object peer, towline_block_list_t* native, uint64_t key) {
  auto* list = new BlockList;
  nb::object result = nb::cast(list, nb::rv_policy::take_ownership);
  list->agent = std::move(agent);
  list->peer = std::move(peer);
  list->native = native;
  list->region_key = key;
  return result;
}

// False if the list was not made from a region with a layout.
bool layout_of(const BlockList& list, towline_layout_t& layout) {
  layout = {};
  layout.struct_size = sizeof layout;
  return towline_block_list_layout(list.native, &layout) == TOWLINE_OK;
}

nb::object layout(const BlockList& list) {
  towline_layout_t layout;
  if (!layout_of(list, layout)) return nb::none();
  nb::list counts;
  nb::list strides;
  for (uint32_t i = 0; i < layout.dimensions; ++i) {
    counts.append(layout.count[i]);
    strides.append(layout.stride[i]);
  }
  return nb::module_::import_("towline._layout")
      .attr("Layout")(layout.element_bytes, nb::tuple(counts), nb::tuple(strides));
}

// The indices of the blocks that `choices` pick, one for each dimension, as a buffer of 4-byte integers.
nb::object select(const BlockList& list, nb::tuple choices) {
  towline_layout_t layout;
  if (!layout_of(list, layout)) raise(TOWLINE_NOT_FOUND, "the list was not made from a region with a layout");
  std::vector<std::unique_ptr<Picks>> picks;
  std::vector<towline_picks_t> native(choices.size());
  for (size_t i = 0; i < choices.size(); ++i) {
    const std::string side = "dimension " + std::to_string(i);
    const uint64_t count = i < layout.dimensions ? layout.count[i] : 0;
    picks.push_back(std::make_unique<Picks>(choices[i], count, side.c_str()));
    if (picks.back()->native() != nullptr) native[i] = *picks.back()->native();
  }
  size_t needed = 0;
  check(towline_block_list_select(list.native, native.data(), sizeof(towline_picks_t), native.size(), nullptr,
                                  0, &needed),
        "towline_block_list_select");
  nb::object room = nb::steal(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(needed * 4)));
  if (!room.is_valid()) throw nb::python_error();
  auto* const indices = reinterpret_cast<uint32_t*>(PyBytes_AS_STRING(room.ptr()));
  check(towline_block_list_select(list.native, native.data(), sizeof(towline_picks_t), native.size(), indices,
                                  needed, &needed),
        "towline_block_list_select");
  return nb::steal(PyMemoryView_FromObject(room.ptr())).attr("cast")("I");
}

// The key of a list where plans are kept: its region, or the list itself.
nb::object identity(nb::handle_t<BlockList> self) {
  const BlockList& list = nb::cast<BlockList&>(self);
  if (list.region_key == 0) return nb::steal(PyLong_FromVoidPtr(self.ptr()));
  if (list.peer.is_none()) return nb::make_tuple(nb::none(), list.region_key);
  return nb::make_tuple(list.peer.attr("incarnation"), list.region_key);
}

}  // namespace

nb::object region_list(const Region& region) {
  towline_block_list_t* list = nullptr;
  check(towline_region_list(region.use(), &list), "towline_region_list");
  nb::object made = own(region.agent, nb::none(), list, towline_region_key(region.native));
  nb::cast<BlockList&>(made).read_only = region.read_only;
  towline_region_info_t info = {};
  if (towline_region_info(region.native, &info, sizeof info) == TOWLINE_OK &&
      info.kind == TOWLINE_MEMORY_VRAM)
    nb::cast<BlockList&>(made).gpu = static_cast<int64_t>(info.device);
  return made;
}

nb::object peer_region_list(nb::handle peer, nb::handle name) {
  const Peer& its_peer = nb::cast<Peer&>(peer);
  const std::string its_name = bytes_of_text(name, "name");
  towline_region_info_t info = {};
  check(towline_peer_region_find(its_peer.use(), its_name.c_str(), &info, sizeof info),
        "towline_peer_region_find");
  towline_block_list_t* list = nullptr;
  check(towline_peer_region_list(its_peer.use(), its_name.c_str(), &list), "towline_peer_region_list");
  return own(its_peer.agent, nb::borrow(peer), list, info.key);
}

void take_layout(nb::handle given, towline_layout_t& layout) {
  const auto fail = [] {
    raise(TOWLINE_INVALID_ARGUMENT,
          "layout is a Layout: (element_bytes, counts[, strides]), up to four of each");
  };
  if (!PyTuple_Check(given.ptr()) || PyTuple_GET_SIZE(given.ptr()) < 2) fail();
  layout.element_bytes = unsigned_integer(given[0], "element_bytes");
  const auto take = [&](nb::handle numbers, uint64_t* to, const char* what) {
    if (!PySequence_Check(numbers.ptr()) || PySequence_Size(numbers.ptr()) > TOWLINE_MAX_DIMENSIONS) fail();
    uint32_t taken = 0;
    for (nb::handle number : numbers) to[taken++] = unsigned_integer(number, what);
    return taken;
  };
  layout.dimensions = take(given[1], layout.count, "a count of a layout");
  if (PyTuple_GET_SIZE(given.ptr()) < 3 || given[2].is_none()) return;
  if (take(given[2], layout.stride, "a stride of a layout") != layout.dimensions) fail();
}

void bind_layout(nb::module_& module, Class<BlockList>& list) {
  list.def_prop_ro("layout", &layout)
      .def("_select", &select, nb::arg("choices"))
      .def_prop_ro("_identity", &identity);
  define(module, "_region_list", [](const Region& region) { return region_list(region); });
  define(module, "_peer_region_list",
         [](nb::handle_t<Peer> peer, nb::handle name) { return peer_region_list(peer, name); });
}

}  // namespace towline::python
