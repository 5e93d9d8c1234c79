// Statuses to Python: the members of towline.Status and the exceptions of towline._errors.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <ctime>

#include "core.h"

namespace towline::python {

namespace {

#define TOWLINE_PYTHON_STATUS(c_name, cpp_name, value, text) value,
constexpr int32_t kLowest = std::min({TOWLINE_STATUS_LIST(TOWLINE_PYTHON_STATUS)});
#undef TOWLINE_PYTHON_STATUS
constexpr int32_t kHighest = TOWLINE_IN_PROGRESS;

// Live as long as the process: a module is never unloaded.
std::array<PyObject*, kHighest - kLowest + 1> members{};
PyObject* make_error = nullptr;

// Sets the enumeration and `make(status, message) -> exception`.
void install(nb::handle status_type, nb::handle make) {
  for (int32_t status = kLowest; status <= kHighest; ++status) {
    members[static_cast<size_t>(status - kLowest)] = status_type(status).release().ptr();
  }
  make_error = make.inc_ref().ptr();
}

}  // namespace

nb::object make_exception(int32_t status, const std::string& message) {
  const std::string& said = message.empty() ? std::string(towline_status_text(status)) : message;
  return nb::handle(make_error)(status, text(said.data(), said.size()));
}

void raise(nb::handle exception) {
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
  throw nb::python_error();
}

void raise(int32_t status, const std::string& message) { raise(make_exception(status, message)); }

void raise_not_yet(const std::string& what) { raise(TOWLINE_NOT_YET, what); }

nb::object coroutine(const char* function, nb::handle self, nb::args arguments, nb::kwargs keywords) {
  return nb::module_::import_("towline._asyncio").attr(function)(self, *arguments, **keywords);
}

nb::object named(const char* type) { return nb::module_::import_("towline._results").attr(type); }

nb::object awaiting(const char* function, nb::handle self) {
  return nb::module_::import_("towline._asyncio").attr(function)(self).attr("__await__")();
}

void check(int32_t status, const char* function, const std::string& otherwise) {
  if (status >= 0) return;
  // The thread's last error may be an older one: its message begins with the function that failed.
  const char* sentence = towline_last_error();
  const size_t length = std::strlen(function);
  const bool ours = std::strncmp(sentence, function, length) == 0;
  if (ours) {
    sentence += length;
    sentence += std::strspn(sentence, ": ");
  }
  raise(status, ours && *sentence != 0 ? sentence : otherwise);
}

nb::object status_object(int32_t status) {
  if (status < kLowest || status > kHighest) return nb::int_(status);
  return nb::borrow(members[static_cast<size_t>(status - kLowest)]);
}

uint64_t now_ns() noexcept {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

uint64_t timeout_ns(nb::handle seconds, uint64_t when_none) {
  if (seconds.is_none()) return when_none;
  const double value = PyFloat_AsDouble(seconds.ptr());
  if (value == -1.0 && PyErr_Occurred() != nullptr) throw nb::python_error();
  if (std::isnan(value) || value < 0)
    raise(TOWLINE_INVALID_ARGUMENT, "a timeout is a number of seconds, 0 or more");
  return value >= 1e9 ? TOWLINE_FOREVER : static_cast<uint64_t>(value * 1e9);
}

uint64_t unsigned_integer(nb::handle object, const char* what) {
  const nb::object index = nb::steal(PyNumber_Index(object.ptr()));
  if (!index.is_valid()) throw nb::python_error();
  const unsigned long long value = PyLong_AsUnsignedLongLong(index.ptr());
  if (value == static_cast<unsigned long long>(-1) && PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    raise(TOWLINE_INVALID_ARGUMENT, std::string(what) + " is an integer from 0 to 2^64 - 1");
  }
  return value;
}

int32_t small_integer(nb::handle object, const char* what) {
  const nb::object index = nb::steal(PyNumber_Index(object.ptr()));
  if (!index.is_valid()) throw nb::python_error();
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
  if (overflow != 0 || value < INT32_MIN || value > INT32_MAX)
    raise(TOWLINE_INVALID_ARGUMENT, std::string(what) + " is an integer from -2^31 to 2^31 - 1");
  return static_cast<int32_t>(value);
}

void check_signals() {
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

void back_off(uint32_t& turns) noexcept {
  const timespec pause = {0, turns < 20 ? 20'000 : 500'000};
  ++turns;
  nanosleep(&pause, nullptr);
}

nb::object refuse_pickling(nb::handle self) {
  const std::string type = nb::str(nb::handle(Py_TYPE(self.ptr())).attr("__name__")).c_str();
  throw nb::type_error(
      (type +
       " objects belong to their process and can't be pickled: send agent.address or agent.metadata(), and "
       "let an Agent of the other process connect and find the regions")
          .c_str());
}

void bind_errors(nb::module_& module) {
  define(module, "_install", &install);
  define(module, "_status_list", [] {
    nb::list list;
#define TOWLINE_STATUS_PAIR(c_name, cpp_name, value, says) \
  list.append(nb::make_tuple(nb::str(#c_name), nb::int_(value)));
    TOWLINE_STATUS_LIST(TOWLINE_STATUS_PAIR)
#undef TOWLINE_STATUS_PAIR
    return list;
  });
  define(module, "status_text", [](int status) { return nb::str(towline_status_text(status)); });
}

}  // namespace towline::python
