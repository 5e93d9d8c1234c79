// Free-threaded Python: the functions of an extension module take turns, as the GIL makes them do elsewhere.
//
// Fields of the classes here have no locks of their own. A function that is bound by Class or define() runs in a critical
// section of its module, which Python suspends wherever the GIL would be released (WithoutGil, a call that blocks). So a
// wait, a large copy and Python code run beside others, and each short call by itself.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <utility>

#include "docs.h"

namespace towline::python {

namespace nb = nanobind;

#ifdef Py_GIL_DISABLED

// For what Python calls without a bound function: destructors.
class Turn {
 public:
  Turn() noexcept;
  ~Turn() { PyCriticalSection_End(&section_); }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  PyCriticalSection section_{};
};

inline constexpr nb::call_guard<Turn> in_turn{};

#else

struct Turn {
  Turn() noexcept {}
};

inline constexpr nb::call_guard<> in_turn{};

#endif

template <class Function, class... Extra>
void define(nb::module_& module, const char* name, Function&& function, const Extra&... extra) {
  module.def(name, std::forward<Function>(function), extra..., in_turn);
}

// Its members, and itself, have the stub's docstrings.
template <class T>
class Class : public nb::class_<T> {
 public:
  template <class... Extra>
  Class(nb::handle scope, const char* name, const Extra&... extra)
      : nb::class_<T>(scope, name, doc_of(name), extra...), name_(name) {}

  template <class Function, class... Extra>
  Class& def(const char* name, Function&& function, const Extra&... extra) {
    nb::class_<T>::def(name, std::forward<Function>(function), extra..., doc(name), in_turn);
    return *this;
  }
  template <class Visitor, class... Extra>
  Class& def(nb::def_visitor<Visitor>&& visitor, const Extra&... extra) {
    nb::class_<T>::def(std::move(visitor), extra..., doc("__init__"), in_turn);
    return *this;
  }
  template <class Getter, class... Extra>
  Class& def_prop_ro(const char* name, Getter&& getter, const Extra&... extra) {
    nb::class_<T>::def_prop_ro(name, std::forward<Getter>(getter), extra..., doc(name), in_turn);
    return *this;
  }
  template <class Getter, class Setter, class... Extra>
  Class& def_prop_rw(const char* name, Getter&& getter, Setter&& setter, const Extra&... extra) {
    nb::class_<T>::def_prop_rw(name, std::forward<Getter>(getter), std::forward<Setter>(setter), extra...,
                               doc(name), in_turn);
    return *this;
  }
  template <class Owner, class Field, class... Extra>
  Class& def_ro(const char* name, Field Owner::*field, const Extra&... extra) {
    nb::class_<T>::def_ro(name, field, extra..., doc(name), in_turn);
    return *this;
  }

 private:
  [[nodiscard]] const char* doc(const char* member) const {
    return doc_of(std::string{name_} + '.' + member);  // in static memory
  }

  const char* name_;
};

}  // namespace towline::python
