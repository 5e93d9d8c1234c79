#include "views.h"

#include <nanobind/ndarray.h>

#include <array>
#include <cstring>
#include <string_view>

namespace towline::python {

namespace {

constexpr int32_t kDlpackCpu = 1;
constexpr int32_t kDlpackCuda = 2;
constexpr int32_t kDlpackCudaHost = 3;

[[noreturn]] void refuse(const char* what, const std::string& why) {
  raise(TOWLINE_INVALID_ARGUMENT, std::string(what) + ": " + why);
}

[[noreturn]] void refuse_device(const char* what, const std::string& device) {
  raise(TOWLINE_UNSUPPORTED, std::string(what) + " is on " + device +
                                 ": a communicator on GPUs (backend=\"gpu\") takes it with stream=, others "
                                 "take tensors in this host's memory");
}

[[noreturn]] void refuse_holes(const char* what) {
  refuse(what, "it is not contiguous; pass a contiguous copy of it");
}

uint64_t unsigned_result(nb::object object) {
  const unsigned long long value = PyLong_AsUnsignedLongLong(object.ptr());
  if (value == ~0ULL && PyErr_Occurred() != nullptr) throw nb::python_error();
  return value;
}

// Names that are looked up for every tensor, interned once.
struct Names {
  nb::object data_ptr, numel, dtype, is_cpu, is_cuda, is_contiguous, is_conj, is_neg, shape, layout, itemsize;
  Names()
      : data_ptr(intern("data_ptr")),
        numel(intern("numel")),
        dtype(intern("dtype")),
        is_cpu(intern("is_cpu")),
        is_cuda(intern("is_cuda")),
        is_contiguous(intern("is_contiguous")),
        is_conj(intern("is_conj")),
        is_neg(intern("is_neg")),
        shape(intern("shape")),
        layout(intern("layout")),
        itemsize(intern("itemsize")) {}
  static nb::object intern(const char* text) { return nb::steal(PyUnicode_InternFromString(text)); }
};
const Names& names() {
  static const Names* const kept = new Names;  // lives as long as the process
  return *kept;
}

nb::object attribute(nb::handle object, const nb::object& name) {
  PyObject* value = PyObject_GetAttr(object.ptr(), name.ptr());
  if (value == nullptr) throw nb::python_error();
  return nb::steal(value);
}

nb::object call(nb::handle object, const nb::object& name) {
  PyObject* value = PyObject_CallMethodNoArgs(object.ptr(), name.ptr());
  if (value == nullptr) throw nb::python_error();
  return nb::steal(value);
}

// A method that a type like torch.Tensor may lack.
bool says(nb::handle object, const nb::object& name) {
  const nb::object method = nb::steal(PyObject_GetAttr(object.ptr(), name.ptr()));
  if (!method.is_valid()) PyErr_Clear();
  return method.is_valid() && method().ptr() == Py_True;
}

// The number and size of a torch.dtype, looked up by identity: there are few, and they are never destroyed.
struct KnownType {
  PyObject* dtype = nullptr;
  uint32_t datatype = View::kUnknownType;
  uint64_t item_bytes = 1;
};
const KnownType& torch_type(nb::handle dtype) {
  static std::array<KnownType, 64> known;
  size_t used = 0;
  for (; used < known.size() && known[used].dtype != nullptr; ++used) {
    if (known[used].dtype == dtype.ptr()) return known[used];
  }
  if (used == known.size()) raise(TOWLINE_INTERNAL, "more types than torch has");
  const nb::str name(dtype);
  known[used] = {nb::handle(dtype).inc_ref().ptr(), datatype_of_name(name.c_str()),
                 unsigned_result(attribute(dtype, names().itemsize))};
  return known[used];
}

uint32_t datatype_of_format(const char* format, uint64_t item_bytes) noexcept {
  if (format == nullptr) return TOWLINE_UINT8;
  if (*format == '@' || *format == '=' || *format == '<') ++format;
  if (*format == 0 || format[1] != 0) return View::kUnknownType;
  const auto sized = [&](uint32_t one, uint32_t two, uint32_t four, uint32_t eight) {
    return item_bytes == 1 ? one : item_bytes == 2 ? two : item_bytes == 4 ? four : eight;
  };
  switch (*format) {
    case 'f':
      return TOWLINE_FLOAT32;
    case 'd':
      return TOWLINE_FLOAT64;
    case 'e':
      return TOWLINE_FLOAT16;
    case '?':
      return TOWLINE_BOOL;
    case 'c':
      return TOWLINE_UINT8;
    case 'b':
    case 'h':
    case 'i':
    case 'l':
    case 'q':
    case 'n':
      return sized(TOWLINE_INT8, TOWLINE_INT16, TOWLINE_INT32, TOWLINE_INT64);
    case 'B':
    case 'H':
    case 'I':
    case 'L':
    case 'Q':
    case 'N':
      return sized(TOWLINE_UINT8, TOWLINE_UINT16, TOWLINE_UINT32, TOWLINE_UINT64);
    default:
      return View::kUnknownType;
  }
}

uint32_t datatype_of_dlpack(nb::dlpack::dtype type) noexcept {
  if (type.lanes != 1) return View::kUnknownType;
  const uint32_t bits = type.bits;
  const auto sized = [bits](uint32_t one, uint32_t two, uint32_t four, uint32_t eight) {
    return bits == 8 ? one : bits == 16 ? two : bits == 32 ? four : bits == 64 ? eight : View::kUnknownType;
  };
  switch (type.code) {
    case 0:
      return sized(TOWLINE_INT8, TOWLINE_INT16, TOWLINE_INT32, TOWLINE_INT64);
    case 1:
      return sized(TOWLINE_UINT8, TOWLINE_UINT16, TOWLINE_UINT32, TOWLINE_UINT64);
    case 2:
      return sized(View::kUnknownType, TOWLINE_FLOAT16, TOWLINE_FLOAT32, TOWLINE_FLOAT64);
    case 4:
      return bits == 16 ? uint32_t{TOWLINE_BFLOAT16} : View::kUnknownType;
    case 6:
      return bits == 8 ? uint32_t{TOWLINE_BOOL} : View::kUnknownType;
    case 10:
      return TOWLINE_FLOAT8_E4M3;
    case 12:
      return TOWLINE_FLOAT8_E5M2;
    default:
      return View::kUnknownType;
  }
}

}  // namespace

uint32_t datatype_of_name(std::string_view name) noexcept {
  if (name.starts_with("torch.")) name.remove_prefix(6);
  for (uint32_t type = 0; towline_datatype_bytes(type) != 0; ++type) {
    if (name == towline_datatype_name(type)) return type;
  }
  if (name == "float8_e4m3fn") return TOWLINE_FLOAT8_E4M3;
  if (name == "float8_e5m2") return TOWLINE_FLOAT8_E5M2;
  return View::kUnknownType;
}

Held::~Held() {
  for (const auto& buffer : buffers_) PyBuffer_Release(buffer.get());
}

int Held::visit(visitproc visit, void* arg) const {
  for (const nb::object& object : objects_) Py_VISIT(object.ptr());
  return 0;
}

View Held::view(nb::handle tensor, const char* what) {
  View view;
  if (!view_torch(tensor, what, view) && !view_buffer(tensor, what, view) &&
      !view_tuple(tensor, what, view) && !view_named(tensor, what, view) &&
      !view_dlpack(tensor, what, view)) {
    refuse(what, std::string("a tensor, an array, a buffer or (address, elements, type), not ") +
                     Py_TYPE(tensor.ptr())->tp_name);
  }
  if (keep_) objects_.push_back(nb::borrow(tensor));
  return view;
}

View Held::writable_view(nb::handle tensor, const char* what) {
  const View made = view(tensor, what);
  if (made.read_only) refuse(what, "it is read-only");
  return made;
}

bool Held::view_torch(nb::handle tensor, const char* what, View& view) {
  static PyTypeObject* known = nullptr;  // torch.Tensor, or a type that looks like it
  const Names& name = names();
  if (Py_TYPE(tensor.ptr()) != known) {
    if (PyObject_HasAttr(tensor.ptr(), name.data_ptr.ptr()) == 0 ||
        PyObject_HasAttr(tensor.ptr(), name.is_contiguous.ptr()) == 0)
      return false;
    if (std::string_view(Py_TYPE(tensor.ptr())->tp_name) == "Tensor") known = Py_TYPE(tensor.ptr());
  }
  if (attribute(tensor, name.is_cpu).ptr() != Py_True &&
      !(gpus_ && attribute(tensor, name.is_cuda).ptr() == Py_True))
    refuse_device(what, nb::str(nb::object(tensor.attr("device"))).c_str());
  if (call(tensor, name.is_contiguous).ptr() != Py_True) refuse_holes(what);
  const KnownType& type = torch_type(attribute(tensor, name.dtype));
  view.datatype = type.datatype;
  view.item_bytes = type.item_bytes;
  // The memory of such a view has other values. Complex types are none that can be reduced.
  if (says(tensor, name.is_neg) || (type.datatype == View::kUnknownType && says(tensor, name.is_conj)))
    refuse(what, "it is a view that negates or conjugates; pass its resolve_neg() or resolve_conj()");
  view.data = reinterpret_cast<void*>(unsigned_result(call(tensor, name.data_ptr)));
  view.count = unsigned_result(call(tensor, name.numel));
  view.rows = 0;  // see rows_of()
  return true;
}

bool Held::view_buffer(nb::handle tensor, const char* what, View& view) {
  if (PyObject_CheckBuffer(tensor.ptr()) == 0) return false;
  auto buffer = std::make_unique<Py_buffer>();
  if (PyObject_GetBuffer(tensor.ptr(), buffer.get(), PyBUF_FULL_RO) != 0) {
    PyErr_Clear();  // NumPy refuses types without a letter in the struct module; those have a name
    return false;
  }
  buffers_.push_back(std::move(buffer));
  const Py_buffer& taken = *buffers_.back();
  if (PyBuffer_IsContiguous(&taken, 'C') == 0) refuse_holes(what);
  view.data = taken.buf;
  view.item_bytes = taken.itemsize > 0 ? static_cast<uint64_t>(taken.itemsize) : 1;
  view.count = static_cast<uint64_t>(taken.len) / view.item_bytes;
  view.rows = taken.ndim > 0 ? static_cast<uint64_t>(taken.shape[0]) : 1;
  view.datatype = datatype_of_format(taken.format, view.item_bytes);
  view.read_only = taken.readonly != 0;
  return true;
}

// (address, elements, type): for applications that keep the memory alive themselves.
bool Held::view_tuple(nb::handle tensor, const char* what, View& view) {
  if (!PyTuple_Check(tensor.ptr()) || PyTuple_GET_SIZE(tensor.ptr()) != 3) return false;
  view.data = reinterpret_cast<void*>(unsigned_result(tensor[0]));
  view.count = unsigned_result(tensor[1]);
  view.datatype = datatype_of_name(nb::str(nb::object(tensor[2])).c_str());
  if (view.datatype == View::kUnknownType)
    refuse(what, std::string("there is no type ") + nb::str(nb::object(tensor[2])).c_str());
  view.item_bytes = towline_datatype_bytes(view.datatype);
  if (view.count > UINT64_MAX / view.item_bytes)
    raise(TOWLINE_OUT_OF_RANGE,
          std::string(what) + ": " + std::to_string(view.count) + " elements are too many");
  view.rows = view.count;
  return true;
}

// Arrays of types that NumPy knows only by name (bfloat16, float8_e5m2), and CuPy's and Numba's on GPUs.
bool Held::view_named(nb::handle tensor, const char* what, View& view) {
  const char* name = "__array_interface__";
  if (!nb::hasattr(tensor, name)) name = "__cuda_array_interface__";
  if (!nb::hasattr(tensor, name)) return false;
  if (name[2] == 'c' && !gpus_) refuse_device(what, "a GPU");
  const auto interface = nb::cast<nb::dict>(tensor.attr(name));
  const nb::object data = nb::borrow(interface)["data"];
  if (!PyTuple_Check(data.ptr())) return false;
  if (interface.contains("strides") && !nb::object(interface["strides"]).is_none()) refuse_holes(what);
  const nb::object type = tensor.attr("dtype");
  view.data = reinterpret_cast<void*>(unsigned_result(data[0]));
  view.read_only = nb::cast<bool>(data[1]);
  view.datatype = datatype_of_name(nb::str(nb::object(type.attr("name"))).c_str());
  view.item_bytes = unsigned_result(type.attr("itemsize"));
  view.count = unsigned_result(tensor.attr("size"));
  const nb::object shape = tensor.attr("shape");
  view.rows = nb::len(shape) != 0 ? unsigned_result(shape[0]) : 1;
  return true;
}

bool Held::view_dlpack(nb::handle tensor, const char* what, View& view) {
  if (!nb::hasattr(tensor, "__dlpack__")) return false;
  auto array = std::make_shared<nb::ndarray<nb::ro>>();
  if (!nb::try_cast(tensor, *array)) refuse(what, "the DLPack tensor that it exports can't be read");
  if (array->device_type() != kDlpackCpu && array->device_type() != kDlpackCudaHost &&
      !(gpus_ && array->device_type() == kDlpackCuda))
    refuse_device(what, "DLPack device type " + std::to_string(array->device_type()));
  int64_t expected = 1;
  for (size_t i = array->ndim(); i-- > 0;) {
    if (array->shape(i) > 1 && array->stride(i) != expected) refuse_holes(what);
    expected *= static_cast<int64_t>(array->shape(i));
  }
  view.data = const_cast<void*>(array->data());
  view.item_bytes = array->itemsize();
  view.count = array->size();
  view.rows = array->ndim() != 0 ? array->shape(0) : 1;
  view.datatype = datatype_of_dlpack(array->dtype());
  others_.push_back(std::move(array));
  return true;
}

}  // namespace towline::python
