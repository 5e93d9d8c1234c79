// Text, for Towline's extension modules.
#include "core.h"

namespace towline::python {

nb::str text(const char* bytes, size_t size) {
  return nb::steal<nb::str>(PyUnicode_DecodeUTF8(bytes, static_cast<Py_ssize_t>(size), "surrogateescape"));
}

nb::str text(const char* bytes) { return text(bytes, std::string_view(bytes).size()); }

std::string bytes_of_text(nb::handle object, const char* what) {
  nb::object encoded = nb::borrow(object);
  if (PyUnicode_Check(object.ptr())) {
    encoded = nb::steal(PyUnicode_AsEncodedString(object.ptr(), "utf-8", "surrogateescape"));
    if (!encoded.is_valid()) throw nb::python_error();
  }
  if (!PyBytes_Check(encoded.ptr()))
    raise(TOWLINE_INVALID_ARGUMENT, std::string(what) + " is a str or bytes");
  std::string bytes(PyBytes_AS_STRING(encoded.ptr()), static_cast<size_t>(PyBytes_GET_SIZE(encoded.ptr())));
  if (bytes.find('\0') != std::string::npos)
    raise(TOWLINE_INVALID_ARGUMENT, std::string(what) + " has a NUL in it");
  return bytes;
}

BytesView::BytesView(nb::handle object) {
  if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE) != 0) throw nb::python_error();
}

}  // namespace towline::python
