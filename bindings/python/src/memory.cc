// Memory that peers can map, and registered regions.
#include "arrays.h"

#include <nanobind/stl/string.h>
#include <towline/layout.h>

#include <algorithm>
#include <utility>

namespace towline::python {

namespace {

// How long dropping a region waits for its peers. After that its memory is never freed.
constexpr uint64_t kDropTimeoutNs = 30'000'000'000;

struct Memory {
  towline_memory_t* native = nullptr;
  uint32_t exports = 0;
  Py_ssize_t bytes = 0;  // buffers point to it as their shape

  Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { (void)towline_memory_free(native); }
};

int get_buffer(PyObject* self, Py_buffer* view, int flags) {
  auto& memory = *nb::inst_ptr<Memory>(nb::handle(self));
  if (memory.native == nullptr) {
    PyErr_SetString(PyExc_BufferError, "the memory is freed");
    return -1;
  }
  if (PyBuffer_FillInfo(view, self, towline_memory_address(memory.native), memory.bytes, 0, flags) != 0)
    return -1;
  ++memory.exports;
  return 0;
}

void release_buffer(PyObject* self, Py_buffer*) { --nb::inst_ptr<Memory>(nb::handle(self))->exports; }

PyType_Slot memory_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer)},
                              {Py_bf_releasebuffer, reinterpret_cast<void*>(release_buffer)},
                              {0, nullptr}};

Memory* allocate(nb::handle_t<Agent>, nb::handle size, bool huge) {
  const uint64_t bytes = unsigned_integer(size, "nbytes");
  towline_memory_t* native = nullptr;
  int32_t status = 0;
  {
    const WithoutGil without_gil;
    status = towline_memory_allocate(bytes, huge ? uint32_t{TOWLINE_ALLOCATE_HUGE} : 0, &native);
  }
  check(status, "towline_memory_allocate");
  auto* memory = new Memory;
  memory->native = native;
  memory->bytes = static_cast<Py_ssize_t>(towline_memory_bytes(native));
  return memory;
}

void free_memory(Memory& memory) {
  if (memory.exports != 0) {
    PyErr_SetString(PyExc_BufferError, "arrays or regions still use the memory");
    throw nb::python_error();
  }
  (void)towline_memory_free(std::exchange(memory.native, nullptr));
}

nb::object as_numpy(nb::handle self, nb::handle dtype, nb::handle shape) {
  const nb::object flat = nb::module_::import_("numpy").attr("frombuffer")(self, dtype);
  return shape.is_none() ? flat : flat.attr("reshape")(shape);
}

// ---- regions

bool is_address(nb::handle object) {
  if (!PyTuple_Check(object.ptr())) return false;
  const Py_ssize_t size = PyTuple_GET_SIZE(object.ptr());
  if (size != 2 && size != 3)
    raise(TOWLINE_INVALID_ARGUMENT, "memory by address is (address, length[, device])");
  return true;
}

void layout_of_pages(const Array& array, nb::handle page_dim, towline_layout_t& layout) {
  const towline_blocks_t pages = pages_of(array, page_dim);
  layout.element_bytes = pages.length;
  layout.dimensions = pages.dimensions;
  std::copy(pages.count, pages.count + pages.dimensions, layout.count);
  std::copy(pages.stride, pages.stride + pages.dimensions, layout.stride);
}

// Finds the memory of an object to register; sets the region's owner, and the layout if page_dim is given.
void take_memory(nb::handle object, Region& region, towline_region_options_t& options, nb::handle page_dim,
                 towline_layout_t& layout) {
  if (is_address(object)) {
    if (!page_dim.is_none())
      raise(TOWLINE_INVALID_ARGUMENT, "page_dim is of arrays; memory by address has a layout");
    region.address = unsigned_integer(object[0], "address");
    region.bytes = unsigned_integer(object[1], "length");
    if (PyTuple_GET_SIZE(object.ptr()) == 3) options.device = unsigned_integer(object[2], "device");
    return;
  }
  Array array;
  if (!array.take(object)) {
    raise(TOWLINE_INVALID_ARGUMENT,
          std::string("register: an array, a tensor, a buffer or (address, length[, device]), not ") +
              Py_TYPE(object.ptr())->tp_name);
  }
  if (!array.dense())
    raise(TOWLINE_INVALID_ARGUMENT, "register: the array has holes: register what it is a part of");
  if (array.read_only && (options.access & TOWLINE_ACCESS_WRITE) != 0) {
    raise(TOWLINE_PERMISSION_DENIED, "register: the memory is read-only: register it with access='read'");
  }
  if (!page_dim.is_none()) layout_of_pages(array, page_dim, layout);
  region.address = array.address;
  region.bytes = array.items() * array.item_bytes;
  options.kind = array.kind;
  options.device = array.device;
  region.read_only = array.read_only;
  region.owner = array.owner;
  region.exported = std::move(array.exported);
  std::swap(region.buffer, array.buffer);
}

nb::object register_memory(nb::handle_t<Agent> self, nb::handle object, nb::handle access, bool guarded,
                           bool share, nb::handle kind, nb::handle name, nb::handle given_layout,
                           nb::handle page_dim) {
  auto* region = new Region;
  const nb::object result = nb::cast(region, nb::rv_policy::take_ownership);
  TOWLINE_INIT(towline_region_options_t, options);
  options.access = access_of(access);
  options.flags =
      (guarded ? uint32_t{TOWLINE_REGION_GUARDED} : 0) | (share ? uint32_t{TOWLINE_REGION_SHARE} : 0);
  if (!kind.is_none()) options.kind = kind_of(kind);
  TOWLINE_INIT(towline_layout_t, layout);
  take_memory(object, *region, options, page_dim, layout);
  if (!given_layout.is_none()) {
    if (layout.dimensions != 0) raise(TOWLINE_INVALID_ARGUMENT, "register: layout or page_dim, not both");
    take_layout(given_layout, layout);
  }
  if (!given_layout.is_none() || !page_dim.is_none()) options.layout = &layout;
  std::string its_name;
  if (!name.is_none()) {
    its_name = bytes_of_text(name, "name");
    options.name = its_name.c_str();
    region->name = nb::borrow(name);
  }
  region->agent = nb::borrow(self);
  region->kind = options.kind;
  region->device = options.device;
  int32_t status = 0;
  towline_region_t* native = nullptr;
  {
    const AgentCall call(agent_of(self));
    status = towline_region_register(call.native(), reinterpret_cast<void*>(region->address), region->bytes,
                                     &options, &native);
  }
  check(status, "towline_region_register");
  region->native = native;
  return result;
}

// Kept, since plans are kept by its list.
nb::object view(nb::handle_t<Region> self) {
  Region& region = nb::cast<Region&>(self);
  (void)region.use();
  if (!region.view.is_valid())
    region.view = nb::module_::import_("towline._layout").attr("region_view")(self);
  return region.view;
}

void deregister(Region& region, nb::handle timeout) {
  if (region.native == nullptr && !region.deregistering) return;
  const Deadline deadline(timeout_ns(timeout, kDropTimeoutNs));
  towline_region_t* native = region.use();
  struct Deregistering {
    explicit Deregistering(Region& region) : region(region) { region.deregistering = true; }
    ~Deregistering() { region.deregistering = false; }
    Region& region;
  };
  int32_t status = TOWLINE_NOT_YET;
  {
    const Deregistering under_way(region);
    while (status == TOWLINE_NOT_YET) {
      const uint64_t slice = deadline.signal_slice();
      {
        const WithoutGil without_gil;
        status = towline_region_deregister(native, slice);
      }
      if (slice == 0) break;
      check_signals();
    }
  }
  check(status, "towline_region_deregister");
  region.native = nullptr;
  region.let_go();
}

// Until _deregistered() the object lives, and this must.
void start_deregistering(Region& region, uint64_t number) {
  towline_region_t* const native = region.use();
  check(towline_region_deregister_async(native, events_of(agent_of(region.agent)), user_data(number)),
        "towline_region_deregister_async");
  region.native = nullptr;
  region.deregistering = true;
}

}  // namespace

std::vector<towline_region_t*> regions_of(nb::handle regions) {
  std::vector<towline_region_t*> handles;
  if (regions.is_none()) return handles;
  for (nb::handle region : nb::borrow(regions)) {
    if (!nb::isinstance<Region>(region))
      raise(TOWLINE_INVALID_ARGUMENT,
            std::string("regions are Regions of the agent, not ") + Py_TYPE(region.ptr())->tp_name);
    handles.push_back(nb::cast<Region&>(region).use());
  }
  if (handles.empty()) raise(TOWLINE_INVALID_ARGUMENT, "regions is empty; None means all of them");
  return handles;
}

towline_region_t* Region::use() const {
  if (deregistering) raise(TOWLINE_BUSY, "the region is being deregistered");
  if (native == nullptr) raise(TOWLINE_STALE, "the region is deregistered");
  return native;
}

void Region::let_go() noexcept {
  PyBuffer_Release(&buffer);
  exported.reset();
  owner.reset();
}

namespace {

// Keeps the memory of a dropped region where it is.
struct Kept {
  PyObject* owner;
  PyObject* exported;
  Py_buffer buffer;
};

thread_local uint32_t letting_go = 0;

// Nothing uses the memory any more. Any thread, also one that Python has never seen, and one that closes the agent.
void let_go_of(void* argument) {
  const WithGil gil;
  if (!gil) return;  // nobody may use Python now: it stays as it is
  auto* const kept = static_cast<Kept*>(argument);
  ++letting_go;  // finalizers may run
  PyBuffer_Release(&kept->buffer);
  Py_XDECREF(kept->exported);
  Py_XDECREF(kept->owner);
  --letting_go;
  delete kept;
}

}  // namespace

// Waits for nobody: the owner lives until no peer, transfer or backend uses the memory.
Region::~Region() {
  if (native == nullptr) {
    let_go();
    return;
  }
  auto* const kept = new Kept{owner.release().ptr(), exported.release().ptr(), buffer};
  // An exporter of the buffer protocol may look at where its Py_buffer lies: bytes and arrays do not.
  if (buffer.obj != nullptr && buffer.shape == &buffer.len) kept->buffer.shape = &kept->buffer.len;
  if (buffer.obj != nullptr && buffer.strides == &buffer.itemsize)
    kept->buffer.strides = &kept->buffer.itemsize;
  buffer = {};
  const WithoutGil without_gil;
  (void)towline_region_release(native, let_go_of, kept);
}

uint32_t kind_of(nb::handle name) {
  static constexpr const char* kNames[] = {"dram", "vram", "file", "block", "object"};
  for (uint32_t kind = 0; kind < 5; ++kind) {
    if (PyUnicode_Check(name.ptr()) && PyUnicode_CompareWithASCIIString(name.ptr(), kNames[kind]) == 0)
      return kind;
  }
  raise(TOWLINE_INVALID_ARGUMENT, "kind is 'dram', 'vram', 'file', 'block' or 'object'");
}

const char* kind_name(uint32_t kind) noexcept {
  static constexpr const char* kNames[] = {"dram", "vram", "file", "block", "object"};
  return kind < 5 ? kNames[kind] : "unknown";
}

uint32_t access_of(nb::handle name) {
  static constexpr const char* kShort[] = {"", "r", "w", "rw"};
  const auto is = [&](const char* text) {
    return PyUnicode_Check(name.ptr()) && PyUnicode_CompareWithASCIIString(name.ptr(), text) == 0;
  };
  for (uint32_t access = 0; access <= 3; ++access)
    if (is(access_name(access)) || (access != 0 && is(kShort[access]))) return access;
  raise(TOWLINE_INVALID_ARGUMENT, "access is 'none', 'read' ('r'), 'write' ('w') or 'all' ('rw')");
}

const char* access_name(uint32_t access) noexcept {
  static constexpr const char* kNames[] = {"none", "read", "write", "all"};
  return access < 4 ? kNames[access] : "unknown";
}

void bind_memory(nb::module_& module) {
  define(module, "_is_letting_go", [] { return letting_go != 0; });
  Class<Memory>(module, "Memory", nb::type_slots(memory_slots))
      .def_prop_ro("address",
                   [](const Memory& memory) {
                     return reinterpret_cast<uintptr_t>(towline_memory_address(memory.native));
                   })
      .def("__len__", [](const Memory& memory) { return towline_memory_bytes(memory.native); })
      .def("__repr__",
           [](const Memory& memory) {
             if (memory.native == nullptr) return nb::str("Memory(freed)");
             return nb::str("Memory(address={:#x}, nbytes={})")
                 .format(reinterpret_cast<uintptr_t>(towline_memory_address(memory.native)), memory.bytes);
           })
      .def("numpy", &as_numpy, nb::arg("dtype") = "uint8", nb::arg("shape") = nb::none())
      .def_prop_ro("nbytes", [](const Memory& memory) { return towline_memory_bytes(memory.native); })
      .def("__dlpack__",
           [](nb::handle self, nb::kwargs keywords) {
             return as_numpy(self, nb::str("uint8"), nb::none()).attr("__dlpack__")(**keywords);
           })
      .def("__dlpack_device__", [](nb::handle) { return nb::make_tuple(1, 0); })  // host memory
      .def("__enter__", [](nb::handle self) { return nb::borrow(self); })
      .def("__exit__", [](Memory& memory, nb::args) { free_memory(memory); })
      .def("free", &free_memory);
  Class<Region> region(module, "Region", nb::type_slots(collected<Region>));
  region.def("__reduce__", &refuse_pickling)
      .def_prop_ro("key", [](const Region& one) { return towline_region_key(one.use()); })
      .def_ro("address", &Region::address)
      .def_ro("device", &Region::device)
      .def_prop_ro("kind", [](const Region& one) { return kind_name(one.kind); })
      .def_prop_ro("owner", [](const Region& one) { return one.owner.is_valid() ? one.owner : nb::none(); })
      .def("deregister", &deregister, nb::arg("timeout") = nb::none())
      .def_prop_ro("name", [](const Region& one) { return one.name.is_valid() ? one.name : nb::none(); })
      .def_ro("nbytes", &Region::bytes)
      .def("deregister_async",
           [](nb::handle self, nb::args arguments, nb::kwargs keywords) {
             return coroutine("deregister", self, std::move(arguments), std::move(keywords));
           })
      .def_ro("_agent", &Region::agent)
      .def("_start_deregistering", &start_deregistering)
      .def_ro("_number", &Region::number)
      .def_prop_ro("_gone", [](const Region& one) { return one.native == nullptr && !one.deregistering; })
      .def("_deregistered",
           [](Region& one) {
             one.deregistering = false;
             one.let_go();
           })
      .def("__enter__", [](nb::handle self) { return nb::borrow(self); })
      .def("__exit__", [](Region& one, nb::args) { deregister(one, nb::none()); })
      .def("view", &view)
      .def("__getitem__", [](nb::handle_t<Region> self, nb::handle picks) { return view(self)[picks]; })
      .def("__repr__", [](const Region& one) {
        if (one.native == nullptr) return nb::str("Region(deregistered)");
        const std::string named = one.name.is_valid() ? nb::cast<std::string>(nb::repr(one.name)) + ", " : "";
        return nb::str("Region({}key={}, address={:#x}, nbytes={}, kind={!r})")
            .format(named.c_str(), towline_region_key(one.native), one.address, one.bytes,
                    kind_name(one.kind));
      });
  bind_storage(module, region);
  define(module, "_allocate", &allocate, nb::arg("agent"), nb::arg("nbytes"), nb::arg("huge"));
  define(module, "_register", &register_memory, nb::arg("agent"), nb::arg("object"), nb::arg("access"),
         nb::arg("guarded"), nb::arg("share"), nb::arg("kind").none(), nb::arg("name").none(),
         nb::arg("layout").none(), nb::arg("page_dim").none());
}

}  // namespace towline::python
