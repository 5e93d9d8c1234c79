// Blocks, and block lists from whatever describes memory.
#include <algorithm>
#include <vector>

#include "arrays.h"

namespace towline::python {

namespace {

// From this number of entries on, resolving releases the GIL.
constexpr uint64_t kManyBlocks = 1024;

struct Blocks : towline_blocks_t {
  Blocks() : towline_blocks_t{} {}
  [[nodiscard]] uint64_t size() const noexcept {
    uint64_t product = 1;
    for (uint32_t i = 0; i < dimensions; ++i) product *= count[i];
    return product;
  }
};

void add_dimension(Blocks& blocks, uint64_t count, uint64_t stride) {
  if (blocks.dimensions == TOWLINE_MAX_DIMENSIONS)
    raise(TOWLINE_LIMIT_EXCEEDED, "blocks have at most four dimensions");
  blocks.count[blocks.dimensions] = count;
  blocks.stride[blocks.dimensions] = stride;
  ++blocks.dimensions;
}

void make_blocks(Blocks* place, nb::handle address, nb::handle length, nb::args dimensions, nb::handle kind,
                 nb::handle device) {
  Blocks blocks;
  blocks.address = unsigned_integer(address, "address");
  blocks.length = unsigned_integer(length, "length");
  blocks.kind = kind_of(kind);
  blocks.device = unsigned_integer(device, "device");
  for (nb::handle dimension : dimensions) {
    if (!PyTuple_Check(dimension.ptr()) || PyTuple_GET_SIZE(dimension.ptr()) != 2) {
      raise(TOWLINE_INVALID_ARGUMENT, "a dimension of Blocks is (count, stride in bytes)");
    }
    add_dimension(blocks, unsigned_integer(dimension[0], "count"), unsigned_integer(dimension[1], "stride"));
  }
  new (place) Blocks(blocks);
}

nb::tuple dimensions_of(const Blocks& blocks) {
  nb::list dimensions;
  for (uint32_t i = 0; i < blocks.dimensions; ++i)
    dimensions.append(nb::make_tuple(blocks.count[i], blocks.stride[i]));
  return nb::tuple(dimensions);
}

nb::tuple state_of(const Blocks& blocks) {
  return nb::make_tuple(blocks.address, blocks.length, dimensions_of(blocks), kind_name(blocks.kind),
                        blocks.device);
}

void set_state(Blocks* place, nb::tuple state) {
  if (state.size() != 5) raise(TOWLINE_INVALID_ARGUMENT, "this is no state of Blocks");
  make_blocks(place, state[0], state[1], nb::steal<nb::args>(PySequence_Tuple(nb::object(state[2]).ptr())),
              state[3], state[4]);
}

bool is_integer(nb::handle object) { return PyIndex_Check(object.ptr()) != 0 && !PyBool_Check(object.ptr()); }

// (address, length[, device])
Blocks blocks_of_tuple(nb::handle tuple, uint32_t kind) {
  const Py_ssize_t size = PyTuple_GET_SIZE(tuple.ptr());
  if (size != 2 && size != 3)
    raise(TOWLINE_INVALID_ARGUMENT, "a block by address is (address, length[, device])");
  Blocks blocks;
  blocks.address = unsigned_integer(tuple[0], "address");
  blocks.length = unsigned_integer(tuple[1], "length");
  blocks.kind = kind;
  if (size == 3) blocks.device = unsigned_integer(tuple[2], "device");
  return blocks;
}

// An array's pages: one block for each index of the dimensions up to and including page_dim.
Blocks blocks_of_array(const Array& array, nb::handle page_dim) {
  int64_t dimension = page_dim.is_none() ? 0 : small_integer(page_dim, "page_dim");
  const auto dimensions = static_cast<int64_t>(array.shape.size());
  if (dimension < 0) dimension += dimensions;
  if (dimension < 0 || dimension >= dimensions) {
    raise(TOWLINE_INVALID_ARGUMENT,
          "page_dim is no dimension of an array with " + std::to_string(dimensions));
  }
  const auto first = static_cast<size_t>(dimension) + 1;
  if (!array.contiguous_from(first)) {
    raise(TOWLINE_INVALID_ARGUMENT,
          "the dimensions after page_dim are not contiguous: a page must be one piece of memory");
  }
  Blocks blocks;
  blocks.address = array.address;
  blocks.length = array.item_bytes;
  blocks.kind = array.kind;
  blocks.device = array.device;
  for (size_t i = first; i < array.shape.size(); ++i) blocks.length *= static_cast<uint64_t>(array.shape[i]);
  for (size_t i = 0; i < first; ++i) {
    if (array.strides[i] < 0)
      raise(TOWLINE_INVALID_ARGUMENT, "an array with negative strides can't be a list of blocks");
    add_dimension(blocks, static_cast<uint64_t>(array.shape[i]), static_cast<uint64_t>(array.strides[i]));
  }
  return blocks;
}

bool is_addresses(const Array& array) {
  return array.shape.size() == 2 && (array.shape[1] == 2 || array.shape[1] == 3) && array.item_bytes == 8 &&
         (array.code == 'i' || array.code == 'u');
}

// Makes lists with one call of the C API at the end, which gets everything in the form of the source.
class Maker {
 public:
  Maker(nb::object agent, nb::object peer) : agent_(std::move(agent)), peer_(std::move(peer)) {
    if (!peer_.is_none()) native_peer_ = nb::cast<Peer&>(peer_).use();
  }

  void note(const Array& array) noexcept { read_only_ |= array.read_only; }

  nb::object from_blocks(const std::vector<Blocks>& blocks) {
    uint64_t count = 0;
    for (const Blocks& entry : blocks) count += entry.dimensions == 0 ? 1 : 0;
    int64_t gpu = -1;
    for (const Blocks& entry : blocks)
      if (gpu < 0 && entry.kind == TOWLINE_MEMORY_VRAM) gpu = static_cast<int64_t>(entry.device);
    return make(count, gpu, "towline_block_list_create",
                [&](towline_agent_t* agent, towline_block_list_t** list) {
                  return towline_block_list_create(agent, native_peer_, blocks.data(),
                                                   sizeof(towline_blocks_t), blocks.size(), list);
                });
  }

  // Rows of (address, length[, device]), read where they are.
  nb::object from_rows(const Array& rows, uint32_t kind) {
    const auto count = static_cast<uint64_t>(rows.shape[0]);
    if (rows.kind != TOWLINE_MEMORY_DRAM)
      raise(TOWLINE_INVALID_ARGUMENT, "the array of addresses must be in host memory");
    if (rows.strides[0] < 0 || rows.strides[1] < 0 || rows.address % 8 != 0 || rows.strides[0] % 8 != 0 ||
        rows.strides[1] % 8 != 0) {
      raise(TOWLINE_INVALID_ARGUMENT, "the array of addresses has negative or unaligned strides");
    }
    const auto at = [&rows](uint64_t row, uint64_t column) {
      return reinterpret_cast<const uint64_t*>(rows.address + row * static_cast<uint64_t>(rows.strides[0]) +
                                               column * static_cast<uint64_t>(rows.strides[1]));
    };
    uint64_t device = 0;
    if (rows.shape[1] == 3 && count != 0) {
      device = *at(0, 2);
      for (uint64_t row = 1; row < count; ++row) {
        if (*at(row, 2) != device) return from_rows_of_devices(at, count, kind);
      }
    }
    const auto stride = static_cast<size_t>(rows.strides[0]);
    return make(count, kind == TOWLINE_MEMORY_VRAM ? static_cast<int64_t>(device) : -1,
                "towline_block_list_create_flat", [&](towline_agent_t* agent, towline_block_list_t** list) {
                  return towline_block_list_create_flat(agent, native_peer_, kind, at(0, 0), stride, at(0, 1),
                                                        stride, device, count, list);
                });
  }

 private:
  template <class At>
  nb::object from_rows_of_devices(At at, uint64_t count, uint32_t kind) {
    std::vector<Blocks> blocks(count);
    for (uint64_t row = 0; row < count; ++row) {
      blocks[row].address = *at(row, 0);
      blocks[row].length = *at(row, 1);
      blocks[row].device = *at(row, 2);
      blocks[row].kind = kind;
    }
    return from_blocks(blocks);
  }

  template <class Create>
  nb::object make(uint64_t count, int64_t gpu, const char* function, Create create) {
    auto* list = new BlockList;
    nb::object result = nb::cast(list, nb::rv_policy::take_ownership);
    list->agent = agent_;
    list->peer = peer_;
    list->gpu = gpu;
    list->read_only = read_only_;
    Agent& agent = agent_of(agent_);
    int32_t status = 0;
    if (count < kManyBlocks) {
      status = create(agent.use(), &list->native);
    } else {
      if (native_peer_ != nullptr) ++nb::cast<Peer&>(peer_).calls;
      {
        const AgentCall call(agent);
        status = create(call.native(), &list->native);
      }
      if (native_peer_ != nullptr) --nb::cast<Peer&>(peer_).calls;
    }
    check(status, function);
    return result;
  }

  nb::object agent_;
  nb::object peer_;
  towline_peer_t* native_peer_ = nullptr;
  bool read_only_ = false;
};

// One entry of a list: Blocks, (address, length[, device]) or, if `ours`, an array.
Blocks entry_of(Maker& maker, nb::handle item, bool ours, nb::handle page_dim, uint32_t kind) {
  if (nb::isinstance<Blocks>(item)) return nb::cast<Blocks&>(item);
  if (PyTuple_Check(item.ptr())) return blocks_of_tuple(item, kind);
  Array array;
  if (ours && array.take(item)) {
    maker.note(array);
    return blocks_of_array(array, page_dim);
  }
  raise(TOWLINE_INVALID_ARGUMENT, std::string("a list of blocks holds Blocks, (address, length[, device])") +
                                      (ours ? " or arrays, not " : ", not ") + Py_TYPE(item.ptr())->tp_name);
}

}  // namespace

towline_blocks_t pages_of(const Array& array, nb::handle page_dim) {
  return blocks_of_array(array, page_dim);
}

void check_writable(const BlockList& to) {
  if (to.peer.is_none() && to.read_only)
    raise(TOWLINE_PERMISSION_DENIED,
          "bytes would go to an array that is read-only: name a writable one as `to`");
}

nb::object make_block_list(nb::object agent, nb::object peer, nb::handle source, nb::handle page_dim,
                           nb::handle kind) {
  const bool ours = peer.is_none();
  const uint32_t its_kind = kind_of(kind);
  Maker maker(std::move(agent), std::move(peer));
  if (nb::isinstance<Blocks>(source)) return maker.from_blocks({nb::cast<Blocks&>(source)});
  const bool tuple = PyTuple_Check(source.ptr());
  if (tuple && PyTuple_GET_SIZE(source.ptr()) != 0 && is_integer(source[0])) {
    return maker.from_blocks({blocks_of_tuple(source, its_kind)});
  }
  if (tuple || PyList_Check(source.ptr())) {
    std::vector<Blocks> blocks;
    blocks.reserve(static_cast<size_t>(PyObject_Size(source.ptr())));
    for (nb::handle item : nb::borrow(source))
      blocks.push_back(entry_of(maker, item, ours, page_dim, its_kind));
    return maker.from_blocks(blocks);
  }
  Array array;
  if (!array.take(source)) {
    raise(TOWLINE_INVALID_ARGUMENT,
          std::string("blocks come from an array, Blocks, or a list of them, not ") +
              Py_TYPE(source.ptr())->tp_name);
  }
  if (page_dim.is_none() && is_addresses(array)) return maker.from_rows(array, its_kind);
  if (!ours) {
    raise(TOWLINE_INVALID_ARGUMENT,
          "a peer's blocks are Blocks, (address, length[, device]) or an N x 2 or N x 3 array of 8-byte "
          "integers");
  }
  maker.note(array);
  return maker.from_blocks({blocks_of_array(array, page_dim)});
}

void bind_blocks(nb::module_& module) {
  static_assert(sizeof(Blocks) == sizeof(towline_blocks_t), "arrays of Blocks are handed to C");
  Class<Blocks>(module, "Blocks")
      .def("__init__", &make_blocks, nb::arg("address"), nb::arg("length"), nb::arg("dims"), nb::kw_only(),
           nb::arg("kind") = "dram", nb::arg("device") = 0)
      .def_ro("address", &Blocks::address)
      .def_ro("length", &Blocks::length)
      .def_ro("device", &Blocks::device)
      .def_prop_ro("kind", [](const Blocks& blocks) { return kind_name(blocks.kind); })
      .def_prop_ro("dims", &dimensions_of)
      .def("__len__", &Blocks::size)
      .def("__eq__",
           [](const Blocks& blocks, nb::handle other) {
             return nb::isinstance<Blocks>(other) &&
                    state_of(blocks).equal(state_of(nb::cast<Blocks&>(other)));
           })
      .def("__hash__", [](const Blocks& blocks) { return PyObject_Hash(state_of(blocks).ptr()); })
      .def("__getstate__", &state_of)
      .def("__setstate__", &set_state)
      .def("__repr__", [](const Blocks& blocks) {
        std::string result =
            "Blocks(" + std::to_string(blocks.address) + ", " + std::to_string(blocks.length);
        for (uint32_t i = 0; i < blocks.dimensions; ++i) {
          result += ", (" + std::to_string(blocks.count[i]) + ", " + std::to_string(blocks.stride[i]) + ")";
        }
        if (blocks.kind != TOWLINE_MEMORY_DRAM)
          result += std::string(", kind='") + kind_name(blocks.kind) + "'";
        if (blocks.device != 0) result += ", device=" + std::to_string(blocks.device);
        return nb::str((result + ")").c_str());
      });
  Class<BlockList> list(module, "BlockList", nb::type_slots(collected<BlockList>));
  bind_layout(module, list);
  list.def("__len__", [](const BlockList& list) { return towline_block_list_blocks(list.native); })
      .def("__reduce__", &refuse_pickling)
      .def_prop_ro("blocks", [](const BlockList& list) { return towline_block_list_blocks(list.native); })
      .def_prop_ro("nbytes", [](const BlockList& list) { return towline_block_list_bytes(list.native); })
      .def_prop_ro("peer", [](const BlockList& list) { return list.peer; })
      .def(
          "__getitem__",
          [](nb::handle_t<BlockList> list, nb::handle picks) {
            return nb::module_::import_("towline._plan").attr("pick")(list, picks);
          },
          nb::arg("picks").none())
      .def("__repr__", [](const BlockList& list) {
        return nb::str("BlockList(blocks={}, nbytes={}, peer={!r})")
            .format(towline_block_list_blocks(list.native), towline_block_list_bytes(list.native), list.peer);
      });
}

}  // namespace towline::python
