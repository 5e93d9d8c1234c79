// The GIL, taken and released so that the interpreter may end meanwhile. For every extension module here.
//
// While the interpreter ends, its last thread keeps the GIL and other threads that want it block for ever, also those that
// waited for it already: Python would end them in the middle of a C++ frame.
#pragma once

#include <Python.h>

namespace towline::python {

// True while the interpreter is being destroyed.
bool interpreter_ends() noexcept;

// Releases the GIL during its lifetime.
class WithoutGil {
 public:
  WithoutGil() noexcept;
  ~WithoutGil();
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_;
};

// Holds the GIL during its lifetime, on any thread. False, and without it, once the interpreter has begun to end or is
// gone: Python must not be used any more.
class WithGil {
 public:
  WithGil() noexcept;
  ~WithGil();
  WithGil(const WithGil&) = delete;
  WithGil& operator=(const WithGil&) = delete;
  explicit operator bool() const noexcept { return held_; }

 private:
  bool held_;
  PyGILState_STATE state_ = PyGILState_UNLOCKED;
};

}  // namespace towline::python
