// Converts Python arguments to C++. Sequences are read in loops over the interpreter's own objects: lists of
// a hundred thousand descriptors are common.
#include <cstring>
#include <limits>

#include "core.h"

namespace towline::nixl::python {

namespace {

[[noreturn]] void not_rows(size_t columns, const std::string& is) {
  throw nb::value_error(("an array of descriptors is N x " + std::to_string(columns) +
                         " of 64-bit integers in the machine's byte order, not " + is)
                            .c_str());
}

// The address of an empty array's items: null would mean a range.
constexpr uint64_t kNothing = 0;

std::string format_of(const Py_buffer& view) { return view.format != nullptr ? view.format : "B"; }

// 'i' or 'u' for integers in the machine's byte order, else 0.
char integer_code(const Py_buffer& view) noexcept {
  const char* format = view.format != nullptr ? view.format : "B";
  if (*format == '@' || *format == '=' || *format == '<') ++format;
  if (*format == 0 || format[1] != 0) return 0;
  if (std::strchr("bhilqn", *format) != nullptr) return 'i';
  return std::strchr("BHILQN", *format) != nullptr ? 'u' : 0;
}

int64_t signed_integer(PyObject* object) {
  if (PyLong_Check(object)) {
    const int64_t value = PyLong_AsLongLong(object);
    if (value == -1 && PyErr_Occurred() != nullptr) throw nb::python_error();
    return value;
  }
  const nb::object index = nb::steal(PyNumber_Index(object));
  if (!index.is_valid()) throw nb::python_error();
  return signed_integer(index.ptr());
}

}  // namespace

bool read_text(PyObject* object, std::string& value) {
  if (PyBytes_Check(object)) {
    value.assign(PyBytes_AS_STRING(object), static_cast<size_t>(PyBytes_GET_SIZE(object)));
    return true;
  }
  if (PyByteArray_Check(object)) {
    value.assign(PyByteArray_AS_STRING(object), static_cast<size_t>(PyByteArray_GET_SIZE(object)));
    return true;
  }
  if (!PyUnicode_Check(object)) return false;
  Py_ssize_t size = 0;
  if (const char* utf8 = PyUnicode_AsUTF8AndSize(object, &size)) {
    value.assign(utf8, static_cast<size_t>(size));
    return true;
  }
  PyErr_Clear();
  // Names that came from bytes that are not UTF-8 are converted back to the same bytes.
  const nb::object bytes = nb::steal(PyUnicode_AsEncodedString(object, "utf-8", "surrogateescape"));
  if (!bytes.is_valid()) {
    PyErr_Clear();
    return false;
  }
  return read_text(bytes.ptr(), value);
}

bool is_buffer(nb::handle object) noexcept {
  PyObject* o = object.ptr();
  return PyObject_CheckBuffer(o) != 0 && !PyBytes_Check(o) && !PyByteArray_Check(o);
}

uint64_t read_integer(PyObject* object) {
  if (PyLong_Check(object)) {
    const uint64_t value = PyLong_AsUnsignedLongLong(object);
    if (value == std::numeric_limits<uint64_t>::max() && PyErr_Occurred() != nullptr)
      throw nb::python_error();
    return value;
  }
  const nb::object index = nb::steal(PyNumber_Index(object));
  if (!index.is_valid()) throw nb::python_error();
  return read_integer(index.ptr());
}

Table::Table(nb::handle array, size_t columns) {
  ArrayView view;
  if (view_array(array.ptr(), view) && view.item_bytes == sizeof(uint64_t) && view.dimensions == 2 &&
      view.shape[1] == static_cast<Py_ssize_t>(columns) && view.strides[1] == Py_ssize_t{sizeof(uint64_t)} &&
      view.strides[0] == static_cast<Py_ssize_t>(columns * sizeof(uint64_t))) {
    array_ = nb::borrow(array);
    count_ = static_cast<size_t>(view.shape[0]);
    data_ = reinterpret_cast<const uint64_t*>(view.data);
    return;
  }
  if (PyObject_GetBuffer(array.ptr(), &view_, PyBUF_STRIDES | PyBUF_FORMAT) != 0) throw nb::python_error();
  std::string is;
  if (integer_code(view_) == 0 || view_.itemsize != 8) {
    is = std::string("of format '") + format_of(view_) + "'";
  } else if (view_.ndim != 2 || view_.shape[1] != static_cast<Py_ssize_t>(columns)) {
    is = view_.ndim == 2 ? std::to_string(view_.shape[0]) + " x " + std::to_string(view_.shape[1])
                         : "of " + std::to_string(view_.ndim) + " dimensions";
  }
  if (!is.empty()) {
    PyBuffer_Release(&view_);
    not_rows(columns, is);
  }
  count_ = static_cast<size_t>(view_.shape[0]);
  data_ = static_cast<const uint64_t*>(view_.buf);
  if (PyBuffer_IsContiguous(&view_, 'C') != 0) return;
  copy_.resize(count_ * columns);
  for (size_t i = 0; i < copy_.size(); ++i) {
    const auto* row =
        static_cast<const char*>(view_.buf) + static_cast<Py_ssize_t>(i / columns) * view_.strides[0];
    std::memcpy(&copy_[i], row + static_cast<Py_ssize_t>(i % columns) * view_.strides[1], sizeof(uint64_t));
  }
  data_ = copy_.data();
}

// ---- indices

Picks::Picks(nb::handle object, const char* side) : side_(side) {
  if (take_plain_array(object)) return;
  if (is_buffer(object)) {
    take_array(object);
  } else if (PyRange_Check(object.ptr())) {
    take_range(object);
  } else {
    take_sequence(object);
  }
}

bool Picks::take_plain_array(nb::handle object) {
  ArrayView view;
  if (!view_array(object.ptr(), view) || view.dimensions != 1) return false;
  const Py_ssize_t count = view.shape[0];
  if (count > 1 && view.strides[0] != static_cast<Py_ssize_t>(view.item_bytes)) return false;
  array_ = nb::borrow(object);
  native_.bytes = view.item_bytes;
  native_.count = static_cast<size_t>(count);
  native_.data = count != 0 ? static_cast<const void*>(view.data) : &kNothing;
  return true;
}

void Picks::take_array(nb::handle object) {
  if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_STRIDES | PyBUF_FORMAT) != 0) throw nb::python_error();
  const char code = integer_code(view_);
  if (view_.ndim == 1 && code != 0 && view_.itemsize < 4) {  // of 1 or 2 bytes: seldom, and then short
    PyBuffer_Release(&view_);
    take_sequence(object);
    return;
  }
  if (view_.ndim != 1 || code == 0) {
    const std::string is =
        "of " + std::to_string(view_.ndim) + " dimensions and format '" + format_of(view_) + "'";
    PyBuffer_Release(&view_);
    throw nb::value_error(
        (std::string(side_) + " indices are a one-dimensional array of integers, not " + is).c_str());
  }
  native_.bytes = static_cast<uint32_t>(view_.itemsize);
  native_.count = static_cast<size_t>(view_.shape[0]);
  native_.data = native_.count != 0 ? view_.buf : &kNothing;
  if (native_.count <= 1 || view_.strides[0] == view_.itemsize) return;
  copy_.resize(native_.count);
  for (size_t i = 0; i < copy_.size(); ++i) {
    const char* item = static_cast<const char*>(view_.buf) + static_cast<Py_ssize_t>(i) * view_.strides[0];
    if (view_.itemsize == 8) {
      std::memcpy(&copy_[i], item, sizeof(uint64_t));
    } else {
      int32_t narrow = 0;
      std::memcpy(&narrow, item, sizeof(narrow));
      copy_[i] = code == 'i' ? static_cast<uint64_t>(int64_t{narrow}) : static_cast<uint32_t>(narrow);
    }
  }
  use_copy();
}

void Picks::take_range(nb::handle object) {
  const auto start = nb::cast<int64_t>(object.attr("start"));
  const auto step = nb::cast<int64_t>(object.attr("step"));
  const Py_ssize_t count = PyObject_Size(object.ptr());
  if (step < 0 || start < 0) return take_sequence(object);
  native_.count = static_cast<size_t>(count);
  native_.start = static_cast<uint64_t>(start);
  native_.step = static_cast<uint64_t>(step);
}

void Picks::take_sequence(nb::handle object) {
  const nb::object fast =
      nb::steal(PySequence_Fast(object.ptr(), "indices are an array or a sequence of integers"));
  if (!fast.is_valid()) throw nb::python_error();
  copy_.reserve(static_cast<size_t>(PySequence_Fast_GET_SIZE(fast.ptr())));
  // The size is read every time: converting an item may run Python code, which may shorten the list.
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(fast.ptr()); ++i) {
    const int64_t index = signed_integer(PySequence_Fast_GET_ITEM(fast.ptr(), i));
    if (index < 0) {
      raise(NIXL_ERR_INVALID_PARAM, std::string(side_) + " index " + std::to_string(index) + " at position " +
                                        std::to_string(i) + " is negative");
    }
    copy_.push_back(static_cast<uint64_t>(index));
  }
  use_copy();
}

void Picks::use_copy() {
  native_.count = copy_.size();
  native_.bytes = sizeof(uint64_t);
  native_.data = copy_.empty() ? static_cast<const void*>(&kNothing) : copy_.data();
}

}  // namespace towline::nixl::python
