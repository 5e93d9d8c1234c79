// The calls that programs make for every request, without Python in between.
//
// nixl_agent's methods are Python and define each call. The most frequent methods are decorated with a
// function from this file. For the usual arguments that function does the work itself; for all others it
// calls the method. Both have the same effect.
#include <Python.h>
#include <structmember.h>

#include <array>
#include <cstddef>

#include "core.h"

namespace towline::nixl::python {

namespace {

PyTypeObject* agent_type = nullptr;
PyTypeObject* xfer_list_type = nullptr;
PyTypeObject* method_type = nullptr;
PyObject* agent_name = nullptr;    // "agent"
PyObject* wrapped_name = nullptr;  // "__wrapped__"

// Null without an error: call the Python method instead. Arguments begin with self.
using Quick = PyObject* (*)(PyObject* const* args, size_t count, PyObject* names);

struct Method {
  PyObject_HEAD  //
      vectorcallfunc call;
  Quick quick;
  PyObject* method;  // of Python
};

// ---- arguments

// A parameter's name, interned.
struct Name {
  explicit Name(const char* text) : object(PyUnicode_InternFromString(text)) {}
  PyObject* object;
};

// Assigns arguments to parameters, null for missing ones. False: they do not fit.
template <size_t kCount>
bool arrange(const std::array<Name, kCount>& parameters, PyObject* const* args, size_t count, PyObject* names,
             std::array<PyObject*, kCount>& placed) {
  if (count > kCount) return false;
  for (size_t i = 0; i < count; ++i) placed[i] = args[i];
  if (names == nullptr) return true;
  for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(names); ++n) {
    PyObject* name = PyTuple_GET_ITEM(names, n);
    size_t at = count;  // before it the places are taken
    while (at < kCount && parameters[at].object != name) ++at;
    if (at == kCount) return false;  // unknown, given twice, or a name that is not interned
    placed[at] = args[count + static_cast<size_t>(n)];
  }
  return true;
}

bool nothing_in(PyObject* list) {
  return list == nullptr || (PyList_CheckExact(list) && PyList_GET_SIZE(list) == 0);
}

bool take_text(PyObject* object, Text& text) {
  return object == nullptr || (object != Py_None && read_text(object, text.value));
}

// Literals are interned, and known by their address.
bool is_word(PyObject* object, const Name& word, const char* text) {
  return object == word.object || (object != nullptr && PyUnicode_Check(object) &&
                                   PyUnicode_CompareWithASCIIString(object, text) == 0);
}

bool take_operation(PyObject* object, nixl_xfer_op_t& operation) {
  static const Name kRead{"READ"};
  static const Name kWrite{"WRITE"};
  operation = NIXL_WRITE;
  if (object == kWrite.object) return true;
  if (is_word(object, kRead, "READ")) {
    operation = NIXL_READ;
    return true;
  }
  return is_word(object, kWrite, "WRITE");
}

bool take_memory_type(PyObject* object, nixl_mem_t& type) {
  static const Name kDram{"DRAM"};
  type = DRAM_SEG;
  return is_word(object, kDram, "DRAM");
}

// Reads a handle that is not released.
bool take_handle(PyObject* object, PyTypeObject* type, uintptr_t& value) {
  if (object == nullptr || Py_TYPE(object) != type) return false;
  const auto& handle = *reinterpret_cast<const HandleObject*>(object);
  value = handle.value;
  return handle.released == 0;
}

XferList* take_list(PyObject* object) {
  if (object == nullptr || Py_TYPE(object) != xfer_list_type) return nullptr;
  return nb::inst_ptr<XferList>(object);
}

nb::object new_list(XferList&& list) {
  nb::object made = nb::inst_alloc(reinterpret_cast<PyObject*>(xfer_list_type));
  new (nb::inst_ptr<XferList>(made)) XferList(std::move(list));
  nb::inst_mark_ready(made);
  return made;
}

// Holds the `agent` attribute of a nixl_agent.
class Bound {
 public:
  explicit Bound(PyObject* self) : object_(nb::steal(PyObject_GetAttr(self, agent_name))) {
    if (!object_.is_valid()) PyErr_Clear();
    agent_ = object_.is_valid() ? native_agent(object_.ptr()) : nullptr;
  }
  explicit operator bool() const { return agent_ != nullptr; }
  Agent& operator*() const { return *agent_; }
  [[nodiscard]] nb::handle object() const { return object_; }

 private:
  nb::object object_;
  Agent* agent_ = nullptr;
};

// ---- the calls

PyObject* transfer(PyObject* const* args, size_t count, PyObject* names) {
  static const std::array<Name, 3> kNames{Name{"self"}, Name{"handle"}, Name{"notif_msg"}};
  std::array<PyObject*, 3> placed{};
  uintptr_t request = 0;
  Text notification;
  if (!arrange(kNames, args, count, names, placed) ||
      !take_handle(placed[1], transfer_handle_type(), request) || !take_text(placed[2], notification))
    return nullptr;
  const Bound agent(args[0]);
  return agent ? word(start(*agent, request, notification)).release().ptr() : nullptr;
}

PyObject* check_xfer_state(PyObject* const* args, size_t count, PyObject* names) {
  uintptr_t request = 0;
  if (count != 2 || names != nullptr || !take_handle(args[1], transfer_handle_type(), request))
    return nullptr;
  const Bound agent(args[0]);
  return agent ? word(look(*agent, request)).release().ptr() : nullptr;
}

PyObject* get_new_notifs(PyObject* const* args, size_t count, PyObject* names) {
  if (count != 1 || names != nullptr) return nullptr;
  const Bound agent(args[0]);
  return agent ? new_notifications(*agent).release().ptr() : nullptr;
}

PyObject* make_prepped_xfer(PyObject* const* args, size_t count, PyObject* names) {
  static const std::array<Name, 9> kNames{
      Name{"self"},          Name{"operation"},        Name{"local_xfer_side"},
      Name{"local_indices"}, Name{"remote_xfer_side"}, Name{"remote_indices"},
      Name{"notif_msg"},     Name{"backends"},         Name{"skip_desc_merge"}};
  std::array<PyObject*, 9> placed{};
  nixl_xfer_op_t operation{};
  uintptr_t local = 0;
  uintptr_t remote = 0;
  Text notification;
  if (!arrange(kNames, args, count, names, placed) || !take_operation(placed[1], operation) ||
      !take_handle(placed[2], list_handle_type(), local) || placed[3] == nullptr ||
      !take_handle(placed[4], list_handle_type(), remote) || placed[5] == nullptr ||
      !take_text(placed[6], notification) || !nothing_in(placed[7]))
    return nullptr;
  const Bound agent(args[0]);
  if (!agent) return nullptr;
  const uintptr_t request =
      make(*agent, operation, local, placed[3], remote, placed[5], notification, Handles{});
  return make_handle(transfer_handle_type(), agent.object(), request).release().ptr();
}

PyObject* initialize_xfer(PyObject* const* args, size_t count, PyObject* names) {
  static const std::array<Name, 7> kNames{Name{"self"},         Name{"operation"},    Name{"local_descs"},
                                          Name{"remote_descs"}, Name{"remote_agent"}, Name{"notif_msg"},
                                          Name{"backends"}};
  std::array<PyObject*, 7> placed{};
  nixl_xfer_op_t operation{};
  Text remote_agent;
  Text notification;
  if (!arrange(kNames, args, count, names, placed) || !take_operation(placed[1], operation)) return nullptr;
  const XferList* local = take_list(placed[2]);
  const XferList* remote = take_list(placed[3]);
  if (local == nullptr || remote == nullptr || placed[4] == nullptr || !take_text(placed[4], remote_agent) ||
      !take_text(placed[5], notification) || !nothing_in(placed[6]))
    return nullptr;
  const Bound agent(args[0]);
  if (!agent) return nullptr;
  const uintptr_t request = create(*agent, operation, *local, *remote, remote_agent, notification, Handles{});
  return make_handle(transfer_handle_type(), agent.object(), request).release().ptr();
}

PyObject* prep_xfer_dlist(PyObject* const* args, size_t count, PyObject* names) {
  static const std::array<Name, 5> kNames{Name{"self"}, Name{"agent_name"}, Name{"xfer_list"},
                                          Name{"mem_type"}, Name{"backends"}};
  std::array<PyObject*, 5> placed{};
  Text agent_name;
  if (!arrange(kNames, args, count, names, placed) || placed[1] == nullptr ||
      !take_text(placed[1], agent_name) || !nothing_in(placed[4]))
    return nullptr;
  const XferList* list = take_list(placed[2]);
  if (list == nullptr) return nullptr;
  if (agent_name.value == "NIXL_INIT_AGENT") agent_name.value.clear();
  const Bound agent(args[0]);
  if (!agent) return nullptr;
  const uintptr_t prepared = prepare_list(*agent, agent_name, *list, Handles{});
  return make_handle(list_handle_type(), agent.object(), prepared).release().ptr();
}

PyObject* get_xfer_descs(PyObject* const* args, size_t count, PyObject* names) {
  nixl_mem_t type{};
  if (count != 3 || names != nullptr || !take_memory_type(args[2], type)) return nullptr;
  PyObject* descs = args[1];
  ArrayView view;
  if (view_array(descs, view)) {
    if (view.dimensions != 2 || view.shape[1] != 3) return nullptr;
    return new_list(XferList::of_array(type, descs)).release().ptr();
  }
  if (!PyList_CheckExact(descs) || PyList_GET_SIZE(descs) == 0) return nullptr;
  PyObject* first = PyList_GET_ITEM(descs, 0);
  if (!PyTuple_CheckExact(first) || PyTuple_GET_SIZE(first) != 3) return nullptr;
  return new_list(XferList::of_tuples(type, descs)).release().ptr();
}

// ---- methods

PyObject* call_method(PyObject* self, PyObject* const* args, size_t flags, PyObject* names) {
  auto* method = reinterpret_cast<Method*>(self);
  const auto count = static_cast<size_t>(PyVectorcall_NARGS(flags));
  if (count != 0) {
    try {
      PyObject* result = method->quick(args, count, names);
      if (result != nullptr) return result;
    } catch (...) {
      set_python_error();
      return nullptr;
    }
  }
  return PyObject_Vectorcall(method->method, args, flags, names);
}

PyObject* bind_method(PyObject* self, PyObject* instance, PyObject*) {
  if (instance != nullptr && instance != Py_None) return PyMethod_New(self, instance);
  Py_INCREF(self);
  return self;
}

// Attributes such as the docstring are those of the method.
PyObject* get_attribute(PyObject* self, PyObject* name) {
  auto* method = reinterpret_cast<Method*>(self);
  if (PyObject_RichCompareBool(name, wrapped_name, Py_EQ) == 1) {
    Py_INCREF(method->method);
    return method->method;
  }
  if (PyUnicode_CompareWithASCIIString(name, "__class__") != 0) {
    PyObject* found = PyObject_GetAttr(method->method, name);
    if (found != nullptr || PyErr_ExceptionMatches(PyExc_AttributeError) == 0) return found;
    PyErr_Clear();
  }
  return PyObject_GenericGetAttr(self, name);
}

void free_method(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  Py_XDECREF(reinterpret_cast<Method*>(self)->method);
  type->tp_free(self);
  Py_DECREF(type);
}

PyMemberDef method_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Method, call), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

void make_method_type() {
  PyType_Slot slots[] = {{Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                         {Py_tp_descr_get, reinterpret_cast<void*>(bind_method)},
                         {Py_tp_getattro, reinterpret_cast<void*>(get_attribute)},
                         {Py_tp_dealloc, reinterpret_cast<void*>(free_method)},
                         {Py_tp_members, method_members},
                         {0, nullptr}};
  PyType_Spec spec = {"nixl._bindings._QuickMethod", sizeof(Method), 0,
                      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR, slots};
  method_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  if (method_type == nullptr) throw nb::python_error();
}

template <Quick kQuick>
nb::object decorate(nb::object method) {
  auto* made = PyObject_New(Method, method_type);
  if (made == nullptr) throw nb::python_error();
  made->call = call_method;
  made->quick = kQuick;
  made->method = method.release().ptr();
  return nb::steal(reinterpret_cast<PyObject*>(made));
}

}  // namespace

Agent* native_agent(PyObject* object) noexcept {
  return Py_TYPE(object) == agent_type ? nb::inst_ptr<Agent>(object) : nullptr;
}

void set_python_error() noexcept {
  try {
    throw;
  } catch (nb::python_error& error) {
    error.restore();
  } catch (const nb::builtin_exception& error) {
    PyObject* type = PyExc_RuntimeError;
    if (error.type() == nb::exception_type::value_error) type = PyExc_ValueError;
    if (error.type() == nb::exception_type::type_error) type = PyExc_TypeError;
    if (error.type() == nb::exception_type::index_error) type = PyExc_IndexError;
    PyErr_SetString(type, error.what());
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
}

void bind_quick(nb::module_& module) {
  agent_type = reinterpret_cast<PyTypeObject*>(nb::type<Agent>().ptr());
  xfer_list_type = reinterpret_cast<PyTypeObject*>(nb::type<XferList>().ptr());
  agent_name = PyUnicode_InternFromString("agent");
  wrapped_name = PyUnicode_InternFromString("__wrapped__");
  make_method_type();
  module.def("_quick_transfer", &decorate<transfer>);
  module.def("_quick_check_xfer_state", &decorate<check_xfer_state>);
  module.def("_quick_get_new_notifs", &decorate<get_new_notifs>);
  module.def("_quick_make_prepped_xfer", &decorate<make_prepped_xfer>);
  module.def("_quick_initialize_xfer", &decorate<initialize_xfer>);
  module.def("_quick_prep_xfer_dlist", &decorate<prep_xfer_dlist>);
  module.def("_quick_get_xfer_descs", &decorate<get_xfer_descs>);
}

}  // namespace towline::nixl::python
