#include "arrays.h"

#include <dlfcn.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <numeric>

namespace towline::python {

namespace {

constexpr int32_t kDlpackCpu = 1;
constexpr int32_t kDlpackCuda = 2;
constexpr int32_t kDlpackCudaHost = 3;
constexpr int32_t kDlpackCudaManaged = 13;

// A format of the struct module, or the type string of an array interface ("<i8").
char code_of_format(const char* format, uint64_t item_bytes) {
  if (format == nullptr) return 'u';
  if (std::strchr("@=<|", *format) != nullptr && *format != 0) ++format;
  if (*format == '>' || *format == '!') return 0;
  if (*format == 0) return 0;
  if (format[1] == 0 || (format[1] >= '0' && format[1] <= '9')) {
    if (format[1] != 0) return *format == 'i' || *format == 'u' || *format == 'b' ? *format : '\0';
    if (std::strchr("bhilqn", *format) != nullptr) return 'i';
    if (std::strchr("BHILQN", *format) != nullptr) return 'u';
    if (*format == '?' && item_bytes == 1) return 'b';
  }
  return 0;
}

// Whether items of this format hold references to Python objects. Names of fields lie between colons.
bool holds_objects(const char* format) {
  bool in_name = false;
  for (; format != nullptr && *format != 0; ++format) {
    if (*format == ':') in_name = !in_name;
    if (*format == 'O' && !in_name) return true;
  }
  return false;
}

int64_t integer(nb::handle object) {
  const long long value = PyLong_AsLongLong(object.ptr());
  if (value == -1 && PyErr_Occurred() != nullptr) throw nb::python_error();
  return value;
}

bool is_integer(nb::handle object) { return PyLong_Check(object.ptr()) && !PyBool_Check(object.ptr()); }

std::string name_of_type(nb::handle object) { return Py_TYPE(object.ptr())->tp_name; }

std::string as_string(nb::handle object) { return nb::str(object).c_str(); }

// The ordinal of the GPU that holds the memory. The array interface does not contain it, so this asks the
// driver that the memory's library has loaded.
uint64_t gpu_of(uint64_t address) {
  constexpr int kDeviceOrdinal = 9;  // CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
  using GetAttribute = int (*)(void*, int, unsigned long long);
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  const auto get =
      driver == nullptr ? nullptr : reinterpret_cast<GetAttribute>(dlsym(driver, "cuPointerGetAttribute"));
  int ordinal = -1;
  const bool known = get != nullptr && get(&ordinal, kDeviceOrdinal, address) == 0 && ordinal >= 0;
  if (driver != nullptr) dlclose(driver);
  if (!known)
    raise(TOWLINE_INVALID_ARGUMENT,
          "which GPU the memory is on can't be found out: give it as (address, "
          "length, device) with kind='vram'");
  return static_cast<uint64_t>(ordinal);
}

}  // namespace

// ---- memory

bool Array::take(nb::handle object) {
  if (PyUnicode_Check(object.ptr())) return false;
  owner = nb::borrow(object);
  if (!take_any(object)) return false;
  if (objects)
    raise(TOWLINE_INVALID_ARGUMENT,
          "an array of Python objects holds references to them, which can't be moved: use numbers or bytes");
  return true;
}

bool Array::take_any(nb::handle object) {
  return take_buffer(object) || take_torch(object) || take_interface(object) || take_dlpack(object) ||
         take_cuda_interface(object);
}

bool Array::take_buffer(nb::handle object) {
  if (PyObject_CheckBuffer(object.ptr()) == 0) return false;
  if (PyObject_GetBuffer(object.ptr(), &buffer, PyBUF_FULL_RO) != 0) {
    PyErr_Clear();  // NumPy refuses types without a letter in the struct module; the array interface has them
    return false;
  }
  if (buffer.suboffsets != nullptr)
    raise(TOWLINE_INVALID_ARGUMENT, "a buffer with suboffsets is not one piece of memory");
  address = reinterpret_cast<uint64_t>(buffer.buf);
  item_bytes = static_cast<uint64_t>(buffer.itemsize);
  shape.assign(buffer.shape, buffer.shape + buffer.ndim);
  strides.assign(buffer.strides, buffer.strides + buffer.ndim);
  code = code_of_format(buffer.format, item_bytes);
  objects = holds_objects(buffer.format);
  read_only = buffer.readonly != 0;
  return true;
}

bool Array::take_torch(nb::handle object) {
  if (!nb::hasattr(object, "data_ptr") || !nb::hasattr(object, "element_size")) return false;
  address = static_cast<uint64_t>(integer(object.attr("data_ptr")()));
  item_bytes = static_cast<uint64_t>(integer(object.attr("element_size")()));
  for (nb::handle extent : object.attr("shape")) shape.push_back(integer(extent));
  for (nb::handle stride : object.attr("stride")())
    strides.push_back(integer(stride) * static_cast<int64_t>(item_bytes));
  const std::string type = as_string(object.attr("dtype"));
  if (type.starts_with("torch.int")) code = 'i';
  if (type.starts_with("torch.uint")) code = 'u';
  if (type == "torch.bool") code = 'b';
  const nb::object where = object.attr("device");
  const std::string device_type = as_string(where.attr("type"));
  if (device_type == "cuda") {
    kind = TOWLINE_MEMORY_VRAM;
    device = where.attr("index").is_none() ? 0 : static_cast<uint64_t>(integer(where.attr("index")));
  } else if (device_type != "cpu") {
    raise(TOWLINE_UNSUPPORTED, "memory of torch device '" + device_type + "' is not supported");
  }
  return true;
}

bool Array::take_interface(nb::handle object) {
  return nb::hasattr(object, "__array_interface__") &&
         read_interface(nb::cast<nb::dict>(object.attr("__array_interface__")));
}

bool Array::take_cuda_interface(nb::handle object) {
  if (!nb::hasattr(object, "__cuda_array_interface__") ||
      !read_interface(nb::cast<nb::dict>(object.attr("__cuda_array_interface__"))))
    return false;
  kind = TOWLINE_MEMORY_VRAM;
  device = gpu_of(address);
  return true;
}

bool Array::read_interface(const nb::dict& interface) {
  const nb::object data = nb::borrow(interface)["data"];
  if (!PyTuple_Check(data.ptr())) return false;
  address = static_cast<uint64_t>(integer(data[0]));
  read_only = nb::cast<bool>(data[1]);
  const std::string type = as_string(interface["typestr"]);
  if (type.size() < 3) return false;
  item_bytes = std::strtoull(type.c_str() + 2, nullptr, 10);
  code = code_of_format(type.c_str(), item_bytes);
  objects = holds_objects(type.c_str());
  for (nb::handle extent : interface["shape"]) shape.push_back(integer(extent));
  if (interface.contains("strides") && !nb::object(interface["strides"]).is_none()) {
    for (nb::handle stride : interface["strides"]) strides.push_back(integer(stride));
  } else {
    set_contiguous_strides();
  }
  return true;
}

bool Array::take_dlpack(nb::handle object) {
  if (!nb::hasattr(object, "__dlpack__")) return false;
  nb::ndarray<nb::ro> tensor;
  // Only the refusal of a writable one tells that it is read-only.
  if (nb::ndarray<> writable; nb::try_cast(object, writable)) {
    tensor = nb::ndarray<nb::ro>(writable);
  } else if (nb::try_cast(object, tensor)) {
    read_only = true;
  } else {
    raise(TOWLINE_INVALID_ARGUMENT,
          "the DLPack tensor that " + name_of_type(object) + " exports can't be read");
  }
  address = reinterpret_cast<uint64_t>(tensor.data());
  item_bytes = tensor.itemsize();
  for (size_t i = 0; i < tensor.ndim(); ++i) {
    shape.push_back(static_cast<int64_t>(tensor.shape(i)));
    strides.push_back(tensor.stride(i) * static_cast<int64_t>(item_bytes));
  }
  const auto type = static_cast<nb::dlpack::dtype_code>(tensor.dtype().code);
  if (type == nb::dlpack::dtype_code::Int) code = 'i';
  if (type == nb::dlpack::dtype_code::UInt) code = 'u';
  if (type == nb::dlpack::dtype_code::Bool) code = 'b';
  const int32_t where = tensor.device_type();
  if (where == kDlpackCuda || where == kDlpackCudaManaged) {
    kind = TOWLINE_MEMORY_VRAM;
    device = static_cast<uint64_t>(tensor.device_id());
  } else if (where != kDlpackCpu && where != kDlpackCudaHost) {
    raise(TOWLINE_UNSUPPORTED, "memory of DLPack device type " + std::to_string(where) + " is not supported");
  }
  exported = nb::capsule(new nb::ndarray<nb::ro>(std::move(tensor)),
                         [](void* held) noexcept { delete static_cast<nb::ndarray<nb::ro>*>(held); });
  return true;
}

void Array::set_contiguous_strides() {
  strides.resize(shape.size());
  auto stride = static_cast<int64_t>(item_bytes);
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= shape[i];
  }
}

uint64_t Array::items() const noexcept {
  return std::accumulate(shape.begin(), shape.end(), uint64_t{1}, [](uint64_t product, int64_t extent) {
    return product * static_cast<uint64_t>(extent);
  });
}

bool Array::contiguous_from(size_t first) const noexcept {
  auto expected = static_cast<int64_t>(item_bytes);
  for (size_t i = shape.size(); i-- > first;) {
    if (shape[i] != 1 && strides[i] != expected) return false;
    expected *= shape[i];
  }
  return true;
}

bool Array::dense() const {
  std::vector<size_t> order(shape.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [this](size_t a, size_t b) { return strides[a] < strides[b]; });
  auto expected = static_cast<int64_t>(item_bytes);
  for (const size_t i : order) {
    if (shape[i] == 1) continue;
    if (strides[i] != expected) return false;
    expected *= shape[i];
  }
  return true;
}

// ---- picks

Picks::Picks(nb::handle object, uint64_t blocks, const char* side) : side_(side) {
  if (object.is_none()) {
    all_ = true;
    native_.count = blocks;
  } else if (PySlice_Check(object.ptr())) {
    Py_ssize_t start = 0;
    Py_ssize_t stop = 0;
    Py_ssize_t step = 0;
    if (PySlice_Unpack(object.ptr(), &start, &stop, &step) != 0) throw nb::python_error();
    const auto length = static_cast<Py_ssize_t>(std::min<uint64_t>(blocks, PY_SSIZE_T_MAX));
    const Py_ssize_t count = PySlice_AdjustIndices(length, &start, &stop, step);
    take_range(start, step, static_cast<uint64_t>(count));
  } else if (PyRange_Check(object.ptr())) {
    take_range(integer(object.attr("start")), integer(object.attr("step")),
               static_cast<uint64_t>(PyObject_Size(object.ptr())));
  } else if (is_integer(object)) {
    take_range(integer(object), 1, 1);
  } else if (PyList_Check(object.ptr()) || PyTuple_Check(object.ptr())) {
    take_sequence(object);
  } else if (array_.take(object)) {
    take_array();
  } else {
    raise(TOWLINE_INVALID_ARGUMENT,
          std::string(side_) + " picks: None, a slice, a range, integers or an array of indices, not " +
              name_of_type(object));
  }
}

void Picks::take_range(int64_t start, int64_t step, uint64_t count) {
  const int64_t last = start + static_cast<int64_t>(count != 0 ? count - 1 : 0) * step;
  if (count != 0 && (start < 0 || last < 0)) {
    raise(TOWLINE_OUT_OF_RANGE,
          std::string(side_) + " picks: index " + std::to_string(std::min(start, last)) + " is negative");
  }
  if (step <= 0 && count > 1) {
    copy_.resize(count);
    for (uint64_t i = 0; i < count; ++i)
      copy_[i] = static_cast<uint64_t>(start + static_cast<int64_t>(i) * step);
    return use_copy();
  }
  native_.start = count != 0 ? static_cast<uint64_t>(start) : 0;
  native_.step = step > 0 ? static_cast<uint64_t>(step) : 1;
  native_.count = count;
}

void Picks::take_sequence(nb::handle sequence) {
  const Py_ssize_t count = PySequence_Fast_GET_SIZE(sequence.ptr());
  copy_.reserve(static_cast<size_t>(count));
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(sequence.ptr()); ++i) {
    PyObject* const item = PySequence_Fast_GET_ITEM(sequence.ptr(), i);
    if (PyBool_Check(item))
      raise(TOWLINE_INVALID_ARGUMENT,
            std::string(side_) + " picks: position " + std::to_string(i) +
                " is a bool: picks are indices (of a mask, numpy.flatnonzero(mask))");
    const nb::object index = nb::steal(PyNumber_Index(item));
    if (!index.is_valid()) throw nb::python_error();
    const int64_t value = integer(index);
    if (value < 0) {
      raise(TOWLINE_OUT_OF_RANGE, std::string(side_) + " picks: index " + std::to_string(value) +
                                      " at position " + std::to_string(i) + " is negative");
    }
    copy_.push_back(static_cast<uint64_t>(value));
  }
  use_copy();
}

void Picks::take_array() {
  const std::string name = std::string(side_) + " picks: ";
  if (array_.kind != TOWLINE_MEMORY_DRAM)
    raise(TOWLINE_INVALID_ARGUMENT, name + "the array of indices must be in host memory");
  if (array_.code == 'b')
    raise(TOWLINE_INVALID_ARGUMENT, name + "a mask is no array of indices: take its flatnonzero()");
  if ((array_.code != 'i' && array_.code != 'u') || (array_.item_bytes != 4 && array_.item_bytes != 8)) {
    raise(TOWLINE_INVALID_ARGUMENT, name + "indices are 4- or 8-byte integers in the machine's byte order");
  }
  if (array_.shape.size() != 1) {
    raise(TOWLINE_INVALID_ARGUMENT,
          name + "the array has " + std::to_string(array_.shape.size()) + " dimensions, not one");
  }
  const auto count = static_cast<uint64_t>(array_.shape[0]);
  if (!array_.contiguous_from(0)) {
    copy_.resize(count);
    for (uint64_t i = 0; i < count; ++i) {
      const auto* item =
          reinterpret_cast<const char*>(array_.address) + static_cast<int64_t>(i) * array_.strides[0];
      int32_t narrow = 0;
      if (array_.item_bytes == 8) {
        std::memcpy(&copy_[i], item, 8);
      } else {
        std::memcpy(&narrow, item, 4);
        copy_[i] =
            array_.code == 'i' ? static_cast<uint64_t>(int64_t{narrow}) : static_cast<uint32_t>(narrow);
      }
    }
    return use_copy();
  }
  static constexpr uint64_t kNothing = 0;
  native_.indices = count != 0 ? reinterpret_cast<const void*>(array_.address) : &kNothing;
  native_.index_bytes = static_cast<uint32_t>(array_.item_bytes);
  native_.count = count;
}

void Picks::use_copy() {
  copy_.reserve(1);  // null would mean a range
  native_.indices = copy_.data();
  native_.index_bytes = 8;
  native_.count = copy_.size();
}

}  // namespace towline::python
