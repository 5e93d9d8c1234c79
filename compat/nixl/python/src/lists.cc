// Descriptor lists: nixlXferDList, nixlRegDList and nixlRemoteDList. All hold rows of (address, bytes,
// device); the last two add text to each.
#include <serdes/serdes.h>

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "core.h"

namespace towline::nixl::python {

namespace {

static_assert(sizeof(nixlBasicDesc) == 3 * sizeof(uint64_t), "rows of N x 3 arrays are taken as they are");

// The parts of a list's entries.
template <class Desc>
struct Traits;
template <>
struct Traits<nixlBasicDesc> {
  static constexpr Py_ssize_t kFields = 3;
  static constexpr const char* kShape = "(address, bytes, device)";
};
template <>
struct Traits<nixlBlobDesc> {
  static constexpr Py_ssize_t kFields = 4;
  static constexpr const char* kShape = "(address, bytes, device, text or bytes)";
  static std::string& text(nixlBlobDesc& desc) { return desc.metaInfo; }
  static nb::object show(const nixlBlobDesc& desc) {
    return nb::bytes(desc.metaInfo.data(), desc.metaInfo.size());
  }
};
template <>
struct Traits<nixlRemoteDesc> {
  static constexpr Py_ssize_t kFields = 4;
  static constexpr const char* kShape = "(address, bytes, device, agent name)";
  static std::string& text(nixlRemoteDesc& desc) { return desc.remoteAgent; }
  static nb::object show(const nixlRemoteDesc& desc) { return nb::cast(Text{desc.remoteAgent}); }
};

#if PY_VERSION_HEX < 0x030c0000
// The digits of an int of up to 60 bits, which addresses are, in this version of Python: a call for each
// address is a third of what a tuple takes. False: ask Python.
bool read_digits(PyObject* object, uint64_t& value) noexcept {
  static_assert(PyLong_SHIFT == 30);
  if (!PyLong_CheckExact(object)) return false;
  const auto* digits = reinterpret_cast<const PyLongObject*>(object);
  const Py_ssize_t size = Py_SIZE(object);
  if (size != 1 && size != 2) return false;
  value = digits->ob_digit[0] | (size == 2 ? uint64_t{digits->ob_digit[1]} << PyLong_SHIFT : 0);
  return true;
}
#else
bool read_digits(PyObject*, uint64_t&) noexcept { return false; }
#endif

// Integers of one column. Lengths and devices are mostly the same object in every row, which is read only
// once.
class Column {
 public:
  uint64_t read(PyObject* object) {
    if (object != last_.ptr()) {
      value_ = read_integer(object);
      last_ = nb::borrow(object);
    }
    return value_;
  }

 private:
  nb::object last_;  // held, so that no other object gets its address
  uint64_t value_ = 0;
};

struct Columns {
  Column length;
  Column device;
};

template <class Desc>
void read_desc(PyObject* item, Desc& desc, Columns& columns) {
  using Its = Traits<Desc>;
  if (!PyTuple_Check(item))
    throw nb::type_error((std::string("a descriptor is a tuple ") + Its::kShape).c_str());
  if (PyTuple_GET_SIZE(item) != Its::kFields) {
    throw nb::value_error((std::string("a descriptor is ") + Its::kShape + ", not a tuple of " +
                           std::to_string(PyTuple_GET_SIZE(item)))
                              .c_str());
  }
  uint64_t address = 0;
  if (!read_digits(PyTuple_GET_ITEM(item, 0), address)) address = read_integer(PyTuple_GET_ITEM(item, 0));
  desc.addr = address;
  desc.len = columns.length.read(PyTuple_GET_ITEM(item, 1));
  desc.devId = columns.device.read(PyTuple_GET_ITEM(item, 2));
  if constexpr (Its::kFields == 4) {
    if (!read_text(PyTuple_GET_ITEM(item, 3), Its::text(desc))) {
      throw nb::type_error((std::string("a descriptor is ") + Its::kShape).c_str());
    }
  }
}

template <class Desc>
nb::tuple show_desc(const Desc& desc) {
  if constexpr (Traits<Desc>::kFields == 4) {
    return nb::make_tuple(desc.addr, desc.len, desc.devId, Traits<Desc>::show(desc));
  } else {
    return nb::make_tuple(desc.addr, desc.len, desc.devId);
  }
}

using Descs = std::vector<nixlBasicDesc>;

template <class Desc>
struct Inside : nixlDescList<Desc> {
  static std::vector<Desc>& of(nixlDescList<Desc>& list) noexcept { return list.*(&Inside::descs); }
};

// An empty list with room for `count` descriptors.
template <class Desc>
nixlDescList<Desc> list_with_room(nixl_mem_t type, size_t count) {
  nixlDescList<Desc> list(type);
  std::vector<Desc>& descs = Inside<Desc>::of(list);
  if constexpr (std::is_same_v<Desc, nixlBasicDesc>) descs = Recycler<Descs>::only().take(count);
  descs.reserve(count);
  return list;
}

template <class Desc>
nixlDescList<Desc> from_rows(nixl_mem_t type, const Table& rows) {
  if constexpr (std::is_same_v<Desc, nixlBasicDesc>) {
    static_assert(std::is_trivially_copyable_v<nixlBasicDesc>);
    auto list = list_with_room<Desc>(type, rows.count());
    Descs& descs = Inside<Desc>::of(list);
    const auto* const first = reinterpret_cast<const nixlBasicDesc*>(rows.data());
    if (rows.count() != 0) descs.assign(first, first + rows.count());
    return list;
  } else {
    nixlDescList<Desc> list(type, static_cast<int>(rows.count()));
    for (size_t i = 0; i < rows.count(); ++i) {
      const uint64_t* row = rows.data() + 3 * i;
      static_cast<nixlBasicDesc&>(list[i]) = nixlBasicDesc(row[0], row[1], row[2]);
    }
    return list;
  }
}

using Pair [[gnu::vector_size(16)]] = uint64_t;

Pair pair_at(const uint64_t* numbers) noexcept {
  Pair pair;
  std::memcpy(&pair, numbers, sizeof pair);
  return pair;
}

// Copies the rows' addresses. False: the rows differ in length or device, and the copied addresses are
// useless. Reads two rows at a time, as three pairs of numbers, which takes little more than half the time of
// one row at a time.
bool take_addresses(const uint64_t* rows, size_t count, uint64_t* addresses) noexcept {
  constexpr size_t kAtOnce = 512;
  const Pair like = pair_at(rows + 1);
  Pair different = {};
  size_t i = 0;
  while (i + 1 < count && (different[0] | different[1]) == 0) {
    for (const size_t end = std::min(count - 1, i + kAtOnce); i < end; i += 2) {
      const Pair first = pair_at(rows + 3 * i);
      const Pair second = pair_at(rows + 3 * i + 2);
      const Pair both = __builtin_shufflevector(first, second, 0, 3);
      std::memcpy(addresses + i, &both, sizeof both);
      different |= __builtin_shufflevector(first, second, 1, 2) ^ like;
      different |= pair_at(rows + 3 * i + 4) ^ like;
    }
  }
  if (i + 1 == count) {
    addresses[i] = rows[3 * i];
    different |= pair_at(rows + 3 * i + 1) ^ like;
  }
  return (different[0] | different[1]) == 0;
}

// Tuples and their numbers are scattered in memory: this prefetches the next ones while others are read.
void fetch_ahead(PyObject* fast, Py_ssize_t index) noexcept {
  constexpr Py_ssize_t kTuples = 16;
  constexpr Py_ssize_t kNumbers = 8;
  const Py_ssize_t count = PySequence_Fast_GET_SIZE(fast);
  if (index + kTuples < count) __builtin_prefetch(PySequence_Fast_GET_ITEM(fast, index + kTuples));
  if (index + kNumbers >= count) return;
  PyObject* soon = PySequence_Fast_GET_ITEM(fast, index + kNumbers);
  if (PyTuple_Check(soon) && PyTuple_GET_SIZE(soon) != 0) __builtin_prefetch(PyTuple_GET_ITEM(soon, 0));
}

template <class Desc>
nixlDescList<Desc> from_sequence(nixl_mem_t type, nb::handle sequence) {
  const nb::object fast =
      nb::steal(PySequence_Fast(sequence.ptr(), "descriptors are a list of tuples or an array"));
  if (!fast.is_valid()) throw nb::python_error();
  const Py_ssize_t count = PySequence_Fast_GET_SIZE(fast.ptr());
  auto list = list_with_room<Desc>(type, static_cast<size_t>(count));
  std::vector<Desc>& descs = Inside<Desc>::of(list);
  Columns columns;
  for (Py_ssize_t i = 0; i < count; ++i) {
    fetch_ahead(fast.ptr(), i);
    // Converting an item may run Python code, which may shorten the list.
    if (i >= PySequence_Fast_GET_SIZE(fast.ptr()))
      throw nb::value_error("the list changed while it was read");
    read_desc(PySequence_Fast_GET_ITEM(fast.ptr(), i), descs.emplace_back(), columns);
  }
  return list;
}

// ---- pickle

template <class Desc>
std::string serialized(const nixlDescList<Desc>& list) {
  nixlSerDes serdes;
  check(list.serialize(&serdes));
  return serdes.exportStr();
}

template <class Desc>
nb::bytes save(const nixlDescList<Desc>& list) {
  const std::string state = serialized(list);
  return nb::bytes(state.data(), state.size());
}

template <class Desc>
nixlDescList<Desc> load(const nb::bytes& bytes) {
  const std::string state(bytes.c_str(), bytes.size());
  nixlSerDes serdes;
  if (serdes.importStr(state) >= 0) {
    nixlDescList<Desc> list(&serdes);
    // Truncated or foreign data reads as an empty list.
    if (serialized(list) == state) return list;
  }
  throw nb::value_error("this is not the pickle of a descriptor list, or not all of it");
}

// ---- the classes

template <class Desc>
using Held = std::conditional_t<std::is_same_v<Desc, nixlBasicDesc>, XferList, Shared<nixlDescList<Desc>>>;

template <class Desc>
Desc desc_of(nb::handle tuple) {
  Desc desc{};
  Columns columns;
  read_desc(tuple.ptr(), desc, columns);
  return desc;
}

template <class List>
void check_index(const List& list, size_t index) {
  if (index >= static_cast<size_t>(list.descCount())) {
    throw nb::index_error(("index " + std::to_string(index) + " in a list of " +
                           std::to_string(list.descCount()) + " descriptors")
                              .c_str());
  }
}

template <class Desc>
nb::class_<Held<Desc>> bind_list(nb::module_& module, const char* name) {
  using List = nixlDescList<Desc>;
  using Self = Held<Desc>;
  const auto add = [](Self& self, nb::handle desc) { self.edit().addDesc(desc_of<Desc>(desc)); };
  nb::class_<Self> bound(module, name);
  bound
      .def(
          "__init__",
          [](Self* self, nixl_mem_t type, int size) {
            if (size < 0) throw nb::value_error("init_size is negative");
            List list(type, size);
            for (Desc& entry : list) entry = Desc(0, 0, 0);
            new (self) Self(std::move(list));
          },
          nb::arg("type"), nb::arg("init_size") = 0)
      .def(
          "__init__",
          [](Self* self, nixl_mem_t type, nb::handle descs) {
            if (std::is_same_v<Desc, nixlRemoteDesc> || !is_buffer(descs)) {
              new (self) Self(from_sequence<Desc>(type, descs));
            } else if constexpr (std::is_same_v<Desc, nixlBasicDesc>) {
              new (self) Self(Self::of_array(type, descs));
            } else {
              new (self) Self(from_rows<Desc>(type, Table(descs, 3)));
            }
          },
          nb::arg("type"), nb::arg("descs"))
      .def("getType", [](const Self& self) { return self.type(); })
      .def("descCount", [](const Self& self) { return self.count(); })
      .def("isEmpty", [](const Self& self) { return self.count() == 0; })
      .def(
          "__eq__", [](const Self& self, const Self& other) { return *self.list() == *other.list(); },
          nb::is_operator())
      .def("__getitem__",
           [](const Self& self, uint32_t index) {
             check_index(*self.list(), index);
             return show_desc(std::as_const(*self.list())[index]);
           })
      .def("__setitem__",
           [](Self& self, uint32_t index, nb::handle desc) {
             check_index(*self.list(), index);
             self.edit()[index] = desc_of<Desc>(desc);
           })
      .def("addDesc", add)
      .def("append", add)
      .def("remDesc",
           [](Self& self, int index) {
             check_index(*self.list(), static_cast<size_t>(static_cast<uint32_t>(index)));
             self.edit().remDesc(index);
           })
      .def("clear", [](Self& self) { self.edit().clear(); })
      .def("print", [](const Self& self) {
        nb::print(nb::str("DescList of {} descriptors").format(self.count()));
        for (const Desc& desc : std::as_const(*self.list())) nb::print(show_desc(desc));
      });
  if constexpr (!std::is_same_v<Desc, nixlRemoteDesc>) {
    bound.def("__getstate__", [](const Self& self) { return save(*self.list()); })
        .def("__setstate__", [](Self& self, const nb::bytes& state) { new (&self) Self(load<Desc>(state)); });
  }
  bound.attr("__hash__") = nb::none();
  return bound;
}

template <class Desc>
void bind_index(nb::class_<Held<Desc>>& bound) {
  bound.def("index", [](const Held<Desc>& self, nb::handle desc) {
    const int index = self.list()->getIndex(desc_of<Desc>(desc));
    if (index < 0) raise(static_cast<nixl_status_t>(index), "the list does not have this descriptor");
    return index;
  });
}

}  // namespace

// ---- XferList

namespace {

std::shared_ptr<nixl_xfer_dlist_t> share(nixl_xfer_dlist_t&& list) {
  struct Recycle {
    void operator()(nixl_xfer_dlist_t* gone) const noexcept {
      Recycler<Descs>::only().keep(std::move(Inside<nixlBasicDesc>::of(*gone)));
      delete gone;
    }
  };
  return {new nixl_xfer_dlist_t(std::move(list)), Recycle{}};
}

}  // namespace

XferList::Alike::~Alike() { Recycler<Room<uint64_t>>::only().keep(std::move(addresses)); }

XferList::XferList(nixl_xfer_dlist_t&& from) : list_(share(std::move(from))) {}

XferList XferList::of_array(nixl_mem_t type, nb::handle array) {
  const Table rows(array, 3);
  if (rows.count() == 0) return XferList(nixl_xfer_dlist_t(type));
  Room<uint64_t> addresses = Recycler<Room<uint64_t>>::only().take(rows.count());
  if (addresses.capacity() == 0) addresses = Room<uint64_t>(rows.count());
  if (!take_addresses(rows.data(), rows.count(), addresses.data()))
    return XferList(from_rows<nixlBasicDesc>(type, rows));
  XferList made;
  made.alike_ = std::make_shared<const Alike>(type, rows.data(), rows.count(), std::move(addresses));
  return made;
}

XferList XferList::of_tuples(nixl_mem_t type, nb::handle sequence) {
  return XferList(from_sequence<nixlBasicDesc>(type, sequence));
}

int XferList::count() const noexcept { return alike_ ? static_cast<int>(alike_->count) : list_->descCount(); }

Rows XferList::rows() const noexcept {
  if (!alike_) return Rows::of(*list_);
  return {alike_->addresses.data(), &alike_->length, &alike_->device, alike_->count, sizeof(uint64_t), 0};
}

const std::shared_ptr<nixl_xfer_dlist_t>& XferList::list() const {
  if (alike_) {
    auto made = list_with_room<nixlBasicDesc>(alike_->type, alike_->count);
    for (size_t i = 0; i < alike_->count; ++i)
      made.emplace(alike_->addresses.data()[i], alike_->length, alike_->device);
    list_ = share(std::move(made));
    alike_ = nullptr;
  }
  return list_;
}

nixl_xfer_dlist_t& XferList::edit() {
  if (list().use_count() > 1) list_ = share(nixl_xfer_dlist_t(*list_));
  return *list_;
}

void bind_lists(nb::module_& module) {
  auto xfer = bind_list<nixlBasicDesc>(module, "nixlXferDList");
  bind_index<nixlBasicDesc>(xfer);
  bind_list<nixlRemoteDesc>(module, "nixlRemoteDList");
  auto reg = bind_list<nixlBlobDesc>(module, "nixlRegDList");
  bind_index<nixlBlobDesc>(reg);
  reg.def("trim", [](const RegList& self) { return XferList(self.list()->trim()); });
}

}  // namespace towline::nixl::python
