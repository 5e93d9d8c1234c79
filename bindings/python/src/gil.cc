#include "gil.h"

#include <unistd.h>

namespace towline::python {

namespace {

// Python before 3.14 ends a thread that waits for the GIL when the interpreter ends by unwinding its frames. The first of
// ours is a destructor, and unwinding through one ends the process. So the unwinding stops here, for good. Not inlined:
// within a noexcept function the compiler may leave out ~Parked().
struct Parked {
  bool taken = false;
  ~Parked() {
    while (!taken) pause();
  }
};

[[gnu::noinline]] void take(PyThreadState* state) {
  Parked parked;
  PyEval_RestoreThread(state);
  parked.taken = true;
}

[[gnu::noinline]] PyGILState_STATE take() {
  Parked parked;
  const PyGILState_STATE state = PyGILState_Ensure();
  parked.taken = true;
  return state;
}

}  // namespace

bool interpreter_ends() noexcept {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

WithoutGil::WithoutGil() noexcept : state_(interpreter_ends() ? nullptr : PyEval_SaveThread()) {}

WithoutGil::~WithoutGil() {
  if (state_ == nullptr) return;
  while (interpreter_ends()) pause();
  take(state_);
}

WithGil::WithGil() noexcept : held_(!interpreter_ends() && Py_IsInitialized() != 0) {
  if (held_) state_ = take();
}

WithGil::~WithGil() {
  if (!held_) return;
  // Python code that ran here may have waited for the GIL when the interpreter ended: the same unwinding, which stops here.
  while (PyGILState_Check() == 0) pause();
  PyGILState_Release(state_);
}

}  // namespace towline::python
