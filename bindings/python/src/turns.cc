#include "turns.h"

#ifdef Py_GIL_DISABLED

namespace towline::python {

// The object is the module's own: nothing else locks it. It lives as long as the process.
Turn::Turn() noexcept {
  static PyObject* const module_lock = PyList_New(0);
  PyCriticalSection_Begin(&section_, module_lock);
}

}  // namespace towline::python

#endif
