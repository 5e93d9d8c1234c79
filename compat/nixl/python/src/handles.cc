// Handle objects of prepared lists and requests: a number of the binding and its agent, freed by release() or
// when the last reference is dropped. They are C types because a Python type would take a third of the time
// of making a request.
#include <Python.h>
#include <structmember.h>

#include <cstddef>
#include <cstring>

#include "core.h"

namespace towline::nixl::python {

namespace {

PyTypeObject* transfer_type = nullptr;
PyTypeObject* list_type = nullptr;
PyObject* complain = nullptr;  // a function of Python: (name of the type, number, error)

HandleObject* of(PyObject* self) { return reinterpret_cast<HandleObject*>(self); }

// False with Python's error set: the handle is still valid.
bool free_native(HandleObject& handle) noexcept {
  const bool transfer = Py_TYPE(reinterpret_cast<PyObject*>(&handle)) == transfer_type;
  if (Agent* agent = native_agent(handle.agent)) {
    try {
      (void)(transfer ? release(*agent, handle.value) : release_list(*agent, handle.value));
      return true;
    } catch (...) {
      set_python_error();
      return false;
    }
  }
  PyObject* done =
      PyObject_CallMethod(handle.agent, transfer ? "releaseXferReq" : "releasedDlistH", "K", handle.value);
  Py_XDECREF(done);
  return done != nullptr;
}

PyObject* release_handle(PyObject* self, PyObject*) {
  HandleObject& handle = *of(self);
  if (handle.released == 0) {
    if (!free_native(handle)) return nullptr;
    handle.released = 1;  // the number stays, but is invalid now
  }
  Py_RETURN_NONE;
}

PyObject* show(PyObject* self) {
  const HandleObject& handle = *of(self);
  const char* name = std::strrchr(Py_TYPE(self)->tp_name, '.');
  const nb::object value = nb::steal(PyLong_FromUnsignedLongLong(handle.value));
  const nb::object digits = nb::steal(value.is_valid() ? PyNumber_ToBase(value.ptr(), 16) : nullptr);
  if (!digits.is_valid()) return nullptr;
  return PyUnicode_FromFormat("%s(%U, released=%s)", name == nullptr ? Py_TYPE(self)->tp_name : name + 1,
                              digits.ptr(), handle.released != 0 ? "True" : "False");
}

int initialise(PyObject* self, PyObject* args, PyObject* names) {
  static const char* kNames[] = {"agent", "value", nullptr};
  PyObject* agent = nullptr;
  unsigned long long value = 0;
  if (PyArg_ParseTupleAndKeywords(args, names, "OK", const_cast<char**>(kNames), &agent, &value) == 0)
    return -1;
  HandleObject& handle = *of(self);
  Py_INCREF(agent);
  Py_XSETREF(handle.agent, agent);
  handle.value = value;
  handle.released = 0;
  return 0;
}

PyObject* make_empty(PyTypeObject* type, PyObject*, PyObject*) {
  PyObject* self = type->tp_alloc(type, 0);
  if (self != nullptr) of(self)->released = 1;  // until there is something to free
  return self;
}

// May run while the interpreter ends.
void finalise(PyObject* self) {
  HandleObject& handle = *of(self);
  if (handle.released != 0 || handle.agent == nullptr) return;
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  if (free_native(handle)) {
    handle.released = 1;
  } else if (complain != nullptr) {  // the agent frees it at its end
    PyObject *kind = nullptr, *error = nullptr, *where = nullptr;
    PyErr_Fetch(&kind, &error, &where);
    PyErr_NormalizeException(&kind, &error, &where);
    Py_XDECREF(PyObject_CallFunction(complain, "sKO", Py_TYPE(self)->tp_name, handle.value,
                                     error != nullptr ? error : Py_None));
    Py_XDECREF(kind);
    Py_XDECREF(error);
    Py_XDECREF(where);
  }
  PyErr_Clear();
  PyErr_Restore(type, value, trace);
}

void deallocate(PyObject* self) {
  if (of(self)->released == 0 && PyObject_CallFinalizerFromDealloc(self) != 0) return;
  PyTypeObject* type = Py_TYPE(self);
  Py_XDECREF(of(self)->agent);
  type->tp_free(self);
  Py_DECREF(type);
}

PyMethodDef methods[] = {{"release", release_handle, METH_NOARGS, "Frees it; a second call does nothing."},
                         {nullptr, nullptr, 0, nullptr}};
PyMemberDef members[] = {{"_agent", T_OBJECT_EX, offsetof(HandleObject, agent), 0, nullptr},
                         {"_handle", T_ULONGLONG, offsetof(HandleObject, value), 0, nullptr},
                         {"_released", T_BOOL, offsetof(HandleObject, released), 0, nullptr},
                         {nullptr, 0, 0, 0, nullptr}};

PyTypeObject* make_type(const char* name, const char* doc) {
  PyType_Slot slots[] = {{Py_tp_doc, const_cast<char*>(doc)},
                         {Py_tp_new, reinterpret_cast<void*>(make_empty)},
                         {Py_tp_init, reinterpret_cast<void*>(initialise)},
                         {Py_tp_finalize, reinterpret_cast<void*>(finalise)},
                         {Py_tp_dealloc, reinterpret_cast<void*>(deallocate)},
                         {Py_tp_repr, reinterpret_cast<void*>(show)},
                         {Py_tp_methods, methods},
                         {Py_tp_members, members},
                         {0, nullptr}};
  PyType_Spec spec = {name, sizeof(HandleObject), 0, Py_TPFLAGS_DEFAULT, slots};
  PyObject* type = PyType_FromSpec(&spec);
  if (type == nullptr) throw nb::python_error();
  return reinterpret_cast<PyTypeObject*>(type);
}

}  // namespace

PyTypeObject* transfer_handle_type() noexcept { return transfer_type; }
PyTypeObject* list_handle_type() noexcept { return list_type; }

nb::object make_handle(PyTypeObject* type, nb::handle agent, uintptr_t value) {
  PyObject* self = type->tp_alloc(type, 0);
  if (self == nullptr) throw nb::python_error();
  HandleObject& handle = *of(self);
  handle.agent = agent.inc_ref().ptr();
  handle.value = value;
  return nb::steal(self);
}

void bind_handles(nb::module_& module) {
  transfer_type =
      make_type("nixl._handles.nixl_xfer_handle",
                "A transfer request.\n\nrelease() cancels what is in flight and waits until no byte of "
                "it can land any more. It raises\nnixlRepostActiveError when the wait was too long: "
                "nothing is freed then; call again.");
  list_type = make_type("nixl._handles.nixl_prepped_dlist_handle",
                        "A prepared descriptor list. Requests made from it outlive it.");
  module.attr("_XferHandle") = nb::handle(reinterpret_cast<PyObject*>(transfer_type));
  module.attr("_DlistHandle") = nb::handle(reinterpret_cast<PyObject*>(list_type));
  // Sets the function that is called when an unreferenced handle could not be freed.
  module.def("_set_complain", [](nb::object function) {
    Py_XDECREF(complain);
    complain = function.release().ptr();
  });
}

}  // namespace towline::nixl::python
