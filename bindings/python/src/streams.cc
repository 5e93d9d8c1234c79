// Streams of GPUs, as other packages have them.
#include "core.h"

namespace towline::python {

void* stream_of(nb::handle object) {
  const auto address = [](nb::handle number) {
    void* const stream = PyLong_AsVoidPtr(number.ptr());
    if (PyErr_Occurred() != nullptr) throw nb::python_error();
    return stream;
  };
  if (PyLong_Check(object.ptr())) return address(object);
  for (const char* name : {"cuda_stream", "ptr"})
    if (nb::hasattr(object, name)) return address(nb::object(object.attr(name)));
  if (nb::hasattr(object, "__cuda_stream__")) {
    const nb::object answer = object.attr("__cuda_stream__")();
    return address(nb::object(answer[1]));
  }
  raise(TOWLINE_INVALID_ARGUMENT,
        std::string("stream: a torch or CuPy stream, an object with __cuda_stream__, or an address, not ") +
            Py_TYPE(object.ptr())->tp_name);
}

nb::object torch_stream(int64_t gpu) {
  static PyObject* const name = PyUnicode_InternFromString("torch");
  const nb::object torch = nb::steal(PyImport_GetModule(name));
  if (!torch.is_valid()) {
    PyErr_Clear();
    return nb::none();
  }
  const nb::object cuda = nb::getattr(torch, "cuda", nb::none());
  if (cuda.is_none() || !nb::cast<bool>(cuda.attr("is_initialized")())) return nb::none();
  return cuda.attr("current_stream")(gpu);
}

}  // namespace towline::python
