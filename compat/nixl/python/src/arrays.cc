// NumPy arrays without NumPy's headers. The fields of an array are part of NumPy's binary interface, with the
// same layout in 1.x and 2.x. A test at run time checks the layout in the installed NumPy once. If it fails,
// arrays are read through the buffer protocol.
#include <array>
#include <cstring>

#include "core.h"

namespace towline::nixl::python {

namespace {

struct ArrayFields {
  PyObject_HEAD  //
      char* data;
  int dimensions;
  Py_ssize_t* shape;
  Py_ssize_t* strides;
  PyObject* base;
  PyObject* type;
};

// NumPy has one object for each item type; 8 bytes have two, long and long long.
struct ItemType {
  const char* name;
  uint32_t bytes;
  bool has_sign;
  PyObject* object;
};

struct Known {
  PyTypeObject* array = nullptr;  // null: not looked up yet, or not as expected
  bool unusable = false;
  std::array<ItemType, 8> items{{{"l", 8, true, nullptr},
                                 {"i", 4, true, nullptr},
                                 {"L", 8, false, nullptr},
                                 {"I", 4, false, nullptr},
                                 {"q", 8, true, nullptr},
                                 {"Q", 8, false, nullptr},
                                 {"int64", 8, true, nullptr},
                                 {"int32", 4, true, nullptr}}};
};

Known known;  // with the GIL held

// True if the fields of a test array are where this code reads them.
bool as_expected(const nb::module_& numpy) {
  const nb::object array = numpy.attr("arange")(6, nb::arg("dtype") = "q").attr("reshape")(2, 3);
  const auto* fields = reinterpret_cast<const ArrayFields*>(array.ptr());
  if (nb::cast<Py_ssize_t>(
          nb::handle(reinterpret_cast<PyObject*>(Py_TYPE(array.ptr()))).attr("__basicsize__")) <
      static_cast<Py_ssize_t>(sizeof(ArrayFields)))
    return false;
  Py_buffer view;
  if (PyObject_GetBuffer(array.ptr(), &view, PyBUF_STRIDES) != 0) throw nb::python_error();
  const bool same = fields->dimensions == 2 && fields->data == view.buf &&
                    std::memcmp(fields->shape, view.shape, 2 * sizeof(Py_ssize_t)) == 0 &&
                    std::memcmp(fields->strides, view.strides, 2 * sizeof(Py_ssize_t)) == 0 &&
                    fields->type == nb::object(array.attr("dtype")).ptr();
  PyBuffer_Release(&view);
  return same;
}

// Called for an object whose type has NumPy's name.
void look_up(PyObject* like) noexcept {
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  known.unusable = true;
  try {
    const nb::module_ numpy = nb::module_::import_("numpy");
    const nb::object array = numpy.attr("ndarray");
    if (array.ptr() == reinterpret_cast<PyObject*>(Py_TYPE(like)) && as_expected(numpy)) {
      for (ItemType& item : known.items) {
        const nb::object dtype = numpy.attr("dtype")(item.name);
        if (nb::cast<uint32_t>(dtype.attr("itemsize")) == item.bytes) item.object = dtype.inc_ref().ptr();
      }
      known.array = Py_TYPE(like);
      Py_INCREF(known.array);
      known.unusable = false;
    }
  } catch (...) {  // the buffer protocol is used instead
    PyErr_Clear();
  }
  PyErr_Restore(type, value, trace);
}

}  // namespace

bool view_array(PyObject* object, ArrayView& view) noexcept {
  if (Py_TYPE(object) != known.array) {
    if (known.array != nullptr || known.unusable) return false;
    if (std::strcmp(Py_TYPE(object)->tp_name, "numpy.ndarray") != 0) return false;
    look_up(object);
    if (known.array == nullptr) return false;
  }
  const auto* fields = reinterpret_cast<const ArrayFields*>(object);
  for (const ItemType& item : known.items) {
    if (item.object != fields->type) continue;
    view = {fields->data, fields->dimensions, fields->shape, fields->strides, item.bytes, item.has_sign};
    return reinterpret_cast<uintptr_t>(fields->data) % item.bytes == 0;
  }
  return false;
}

}  // namespace towline::nixl::python
