// Creates, uses and closes communicators.
#include "communicator.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

namespace towline::python {

namespace {

// The list of all open communicators; close_all() closes them at exit.
Communicator* open_communicators = nullptr;

// The communicators whose hooks or works' functions the thread is running.
struct CallOut {
  const Communicator* of;
  const CallOut* outer;
};
thread_local const CallOut* innermost = nullptr;

bool in_function_of(const Communicator* communicator) noexcept {
  for (const CallOut* one = innermost; one != nullptr; one = one->outer)
    if (one->of == communicator) return true;
  return false;
}

// How long the interpreter's exit waits for operations that the application did not wait for.
constexpr uint64_t kExitNs = 5'000'000'000;

const char* optional_text(nb::handle object, const char* what, std::string& keep) {
  if (object.is_none()) return nullptr;
  keep = bytes_of_text(object, what);
  return keep.c_str();
}

// ---- the application's store: an object with set(key, value) and get(key, timeout) -> bytes

struct Store {
  nb::object object;
  std::shared_ptr<nb::object> raised;  // the last exception that it raised
};

// The exception that is set, with its traceback; null without one. None is set then.
nb::object take_exception() {
  if (PyErr_Occurred() == nullptr) return {};
  PyObject* type = nullptr;
  PyObject* value = nullptr;
  PyObject* trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  if (trace != nullptr) PyException_SetTraceback(value, trace);
  Py_XDECREF(type);
  Py_XDECREF(trace);
  return nb::steal(value);
}

// While this thread's communicator forms: what ends that. A signal handler raised it, or, like KeyboardInterrupt, it came out of
// the store's own code. Kept here, since the store is told of it in Python, and the library ignores some of its errors.
thread_local bool forms = false;
thread_local PyObject* interruption = nullptr;

class Forming {
 public:
  Forming() = default;
  ~Forming() { forms = outer_; }
  Forming(const Forming&) = delete;
  Forming& operator=(const Forming&) = delete;

 private:
  const bool outer_ = std::exchange(forms, true);
};

int32_t failed(Store& store) {
  nb::object error = take_exception();
  if (!error.is_valid()) return TOWLINE_INTERNAL;
  if (forms && PyObject_IsInstance(error.ptr(), PyExc_Exception) == 0) {
    Py_XDECREF(std::exchange(interruption, error.release().ptr()));
    return TOWLINE_CANCELLED;
  }
  const bool late = PyObject_IsInstance(error.ptr(), PyExc_TimeoutError) == 1;
  *store.raised = std::move(error);
  return late ? TOWLINE_TIMED_OUT : TOWLINE_IO;
}

int32_t store_set(void* context, const char* key, const void* value, size_t bytes) {
  const WithGil gil;
  if (!gil) return TOWLINE_CLOSED;
  auto& store = *static_cast<Store*>(context);
  const nb::bytes given(value, bytes);
  PyObject* result = PyObject_CallMethod(store.object.ptr(), "set", "sO", key, given.ptr());
  if (result == nullptr) return failed(store);
  Py_DECREF(result);
  return TOWLINE_OK;
}

int32_t store_get(void* context, const char* key, uint64_t timeout, void* value, size_t capacity,
                  size_t* bytes) {
  const WithGil gil;
  if (!gil) return TOWLINE_CLOSED;
  auto& store = *static_cast<Store*>(context);
  const double seconds = timeout >= 1'000'000'000'000'000'000 ? 1e9 : 1e-9 * static_cast<double>(timeout);
  const nb::object result = nb::steal(PyObject_CallMethod(store.object.ptr(), "get", "sd", key, seconds));
  Py_buffer view{};
  if (!result.is_valid() || PyObject_GetBuffer(result.ptr(), &view, PyBUF_SIMPLE) != 0) return failed(store);
  *bytes = static_cast<size_t>(view.len);
  std::memcpy(value, view.buf, std::min(capacity, *bytes));
  PyBuffer_Release(&view);
  return TOWLINE_OK;
}

void store_release(void* context) {
  const WithGil gil;
  if (!gil) return;
  delete static_cast<Store*>(context);
}

int32_t interrupts_forming(void*) {
  const WithGil gil;
  if (!gil) return 0;
  if (interruption == nullptr && PyErr_CheckSignals() != 0) interruption = take_exception().release().ptr();
  return interruption != nullptr ? 1 : 0;
}

[[noreturn]] void raise_again(const nb::object& error) {
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  throw nb::python_error();
}

// Throws what interrupted the forming, if anything did: `formed` is of no use then.
void check_interruption(towline_communicator_t* formed) {
  if (interruption == nullptr) return;
  if (formed != nullptr) {
    const WithoutGil without_gil;
    (void)towline_communicator_destroy(formed);
  }
  raise_again(nb::steal(std::exchange(interruption, nullptr)));
}

// Of a communicator itself: 0 would mean the library's default to C, and nothing can end in no time.
uint64_t own_timeout_ns(nb::handle timeout, uint64_t when_none) {
  const uint64_t nanoseconds = timeout_ns(timeout, when_none);
  if (nanoseconds == 0 && !timeout.is_none())
    raise(TOWLINE_INVALID_ARGUMENT, "a communicator's timeout is more than 0 seconds");
  return nanoseconds;
}

void create(Communicator* self, nb::handle rank, nb::handle size, nb::handle name, nb::handle backend,
            nb::handle bootstrap, nb::handle store, nb::handle agent, nb::handle timeout, bool abort_process,
            bool shared_memory, uint32_t flight_records, nb::handle config, nb::handle hints) {
  std::string texts[4];
  TOWLINE_INIT(towline_communicator_options_t, options);
  if (rank.is_none() != size.is_none())
    raise(TOWLINE_INVALID_ARGUMENT, "rank and size are given together, or neither");
  if (!rank.is_none()) {
    options.rank = small_integer(rank, "rank");
    options.size = small_integer(size, "size");
    if (options.size <= 0) raise(TOWLINE_INVALID_ARGUMENT, "size is 1 or more");
  }
  options.name = optional_text(name, "name", texts[0]);
  options.backend = optional_text(backend, "backend", texts[1]);
  options.bootstrap = optional_text(bootstrap, "bootstrap", texts[2]);
  options.config = optional_text(config, "config", texts[3]);
  options.timeout_ns = own_timeout_ns(timeout, 0);
  options.flags = (abort_process ? uint32_t{TOWLINE_COMMUNICATOR_ABORT_PROCESS} : 0) |
                  (shared_memory ? 0 : uint32_t{TOWLINE_COMMUNICATOR_NO_SHARED_MEMORY});
  options.flight_records = flight_records;
  if (!agent.is_none())
    options.agent = reinterpret_cast<towline_agent_t*>(nb::cast<uintptr_t>(agent.attr("_native")));
  std::vector<std::string> hint_texts;
  std::vector<const char*> hint_pointers;
  if (!hints.is_none()) {
    take_hints(hints, hint_texts, hint_pointers);
    options.hints = hint_pointers.data();
  }
  const auto raised = std::make_shared<nb::object>();
  TOWLINE_INIT(towline_collective_store_t, callbacks);
  if (!store.is_none()) {
    callbacks.context = new Store{nb::borrow(store), raised};
    callbacks.set = &store_set;
    callbacks.get = &store_get;
    callbacks.release = &store_release;
    options.store = &callbacks;
  }
  options.interrupted = &interrupts_forming;
  towline_communicator_t* native = nullptr;
  int32_t status = 0;
  {
    const Forming forming;
    const WithoutGil without_gil;
    status = towline_communicator_create(&options, &native);
  }
  check_interruption(native);
  try {
    check(status, "towline_communicator_create");
  } catch (nb::python_error& error) {
    if (raised->is_valid()) PyException_SetCause(error.value().ptr(), raised->release().ptr());
    throw;
  }
  open_in_place(self, native, agent);
}

// ---- the end

bool any_in_progress(const Communicator& communicator) {
  if (communicator.calls != 0) return true;
  for (const Pending* one = communicator.first_pending; one != nullptr; one = one->next) {
    if (towline_work_state(one->native) < TOWLINE_WORK_COMPLETED) return true;
  }
  return false;
}

// Called at exit, while the interpreter still works. Operations in progress get a moment to end; then the
// ranks are told.
void close_all() {
  const Deadline deadline(kExitNs);
  for (Communicator* one = open_communicators; one != nullptr; one = one->next) {
    if (getpid() != one->pid) continue;
    for (uint32_t turns = 0; any_in_progress(*one) && !deadline.passed();) {
      const WithoutGil without_gil;
      back_off(turns);
    }
    if (any_in_progress(*one)) {
      const WithoutGil without_gil;
      (void)towline_communicator_abort(one->native, "the interpreter ends with operations in progress");
    }
  }
  while (open_communicators != nullptr) open_communicators->close();
}

// ---- the rest

template <class Read>
nb::object read_json(Communicator& communicator, const char* function, Read read) {
  std::vector<char> json(16384);
  size_t needed = 0;
  do {
    if (needed > json.size()) json.resize(needed + 1024);
    int32_t status = 0;
    {
      const CommunicatorCall call(communicator);
      status = read(call.native(), json.data(), json.size(), &needed);
    }
    check(status, function);
  } while (needed > json.size());
  return nb::module_::import_("json").attr("loads")(text(json.data(), needed - 1));
}

nb::object split(nb::handle self, nb::handle ranks, nb::handle name, nb::handle timeout) {
  std::vector<int32_t> list;
  for (nb::handle rank : nb::borrow(ranks)) list.push_back(small_integer(rank, "a rank"));
  std::string keep;
  const char* const its_name = optional_text(name, "name", keep);
  const uint64_t nanoseconds = own_timeout_ns(timeout, 0);
  towline_communicator_t* native = nullptr;
  int32_t status = 0;
  {
    const Forming forming;
    const CommunicatorCall call(communicator_of(self));
    status =
        towline_communicator_split(call.native(), list.data(), list.size(), its_name, nanoseconds, &native);
  }
  check_interruption(native);
  check(status, "towline_communicator_split");
  return native == nullptr ? nb::none() : own(native, communicator_of(self).agent);
}

void finalize(Communicator& communicator) {
  int32_t status = 0;
  {
    const CommunicatorCall call(communicator);
    status = towline_communicator_finalize(call.native());
  }
  check(status, "towline_communicator_finalize");
}

// May be called from another thread while operations wait.
void abort(Communicator& communicator, nb::handle reason) {
  std::string keep;
  const char* const why = optional_text(reason, "reason", keep);
  int32_t status = 0;
  {
    const CommunicatorCall call(communicator);
    status = towline_communicator_abort(call.native(), why);
  }
  check(status, "towline_communicator_abort");
}

// (status, sentence).
nb::object error(const Communicator& communicator) {
  char sentence[4096] = "";
  size_t needed = 0;
  const int32_t status =
      towline_communicator_error(communicator.use(), sentence, sizeof sentence - 1, &needed);
  return nb::make_tuple(status_object(status), text(sentence));
}

}  // namespace

// ---- life

towline_communicator_t* Communicator::use() const {
  if (closing || native == nullptr) raise(TOWLINE_CLOSED, "the communicator is closed");
  return native;
}

void open_in_place(Communicator* communicator, towline_communicator_t* native, nb::handle agent) {
  new (communicator) Communicator;
  communicator->native = native;
  communicator->agent = nb::borrow(agent);
  communicator->rank = towline_communicator_rank(native);
  communicator->size = towline_communicator_size(native);
  communicator->pid = getpid();
  communicator->next = open_communicators;
  if (open_communicators != nullptr) open_communicators->previous = communicator;
  open_communicators = communicator;
}

nb::object own(towline_communicator_t* native, nb::handle agent) {
  const nb::object made = nb::inst_alloc(nb::type<Communicator>());
  open_in_place(nb::inst_ptr<Communicator>(made), native, agent);
  nb::inst_mark_ready(made);
  return made;
}

void Communicator::close() {
  if (native != nullptr && in_function_of(this))
    raise(TOWLINE_BUSY,
          "a communicator can't be closed from its own hooks and works' functions: do it once they returned");
  while (closing && native != nullptr) {  // by another thread
    const WithoutGil without_gil;
    uint32_t turns = 0;
    back_off(turns);
  }
  if (native == nullptr) return;
  closing = true;
  (previous != nullptr ? previous->next : open_communicators) = next;
  if (next != nullptr) next->previous = previous;
  if (getpid() != pid) {  // it belongs to the parent, and so do its operations
    native = nullptr;
    return;
  }
  for (uint32_t turns = 0; calls != 0;) {
    const WithoutGil without_gil;
    back_off(turns);
  }
  {
    const WithoutGil without_gil;
    (void)towline_communicator_destroy(native);
  }
  native = nullptr;
  last_pending = nullptr;
  while (first_pending != nullptr) {  // ended, all of them
    Pending* const pending = first_pending;
    first_pending = pending->next;
    pending->previous = pending->next = nullptr;
    pending->listed = false;
    if (pending->abandoned) drop(pending);
  }
}

void call_from_anywhere(nb::object communicator, nb::object function, PyObject* argument) noexcept {
  const CallOut call_out{&communicator_of(communicator), innermost};
  innermost = &call_out;
  PyObject* result = argument != nullptr ? PyObject_CallOneArg(function.ptr(), argument)
                                         : PyObject_CallNoArgs(function.ptr());
  if (result == nullptr) {
    PyErr_WriteUnraisable(function.ptr());
  } else {
    Py_DECREF(result);
  }
  function.reset();
  innermost = call_out.outer;
  // The thread that drops the last reference closes the communicator and waits for its threads. This may be
  // one of them.
  if (Py_REFCNT(communicator.ptr()) == 1) {
    const auto drop = [](void* last) {
      Py_DECREF(static_cast<PyObject*>(last));
      return 0;
    };
    (void)Py_AddPendingCall(drop, communicator.release().ptr());
  }
}

void Communicator::add(Pending* pending) noexcept {
  pending->next = first_pending;
  (first_pending != nullptr ? first_pending->previous : last_pending) = pending;
  first_pending = pending;
}

void Communicator::drop(Pending* pending) {
  if (pending->listed) {
    (pending->previous != nullptr ? pending->previous->next : first_pending) = pending->next;
    (pending->next != nullptr ? pending->next->previous : last_pending) = pending->previous;
  }
  towline_work_release(pending->native);
  delete pending;
}

void Communicator::sweep() {
  // The oldest have the best chance to have ended.
  constexpr int kLooks = 8;
  Pending* one = last_pending;
  for (int looks = 0; one != nullptr && looks < kLooks; ++looks) {
    Pending* const after = one->previous;
    if (one->abandoned && towline_work_state(one->native) >= TOWLINE_WORK_COMPLETED) drop(one);
    one = after;
  }
}

int Communicator::visit(visitproc visit, void* arg) const {
  Py_VISIT(agent.ptr());
  for (const Pending* one = first_pending; one != nullptr; one = one->next) {
    if (const int result = one->held.visit(visit, arg); result != 0) return result;
  }
  return 0;
}

// ---- options

void take_hints(nb::handle hints, std::vector<std::string>& texts, std::vector<const char*>& pointers) {
  if (!PyDict_Check(hints.ptr()))
    raise(TOWLINE_INVALID_ARGUMENT, std::string("hints are a dict, not ") + Py_TYPE(hints.ptr())->tp_name);
  const auto dict = nb::borrow<nb::dict>(hints);
  for (const auto [key, value] : dict) {
    texts.push_back(bytes_of_text(nb::str(key), "a hint"));
    texts.push_back(bytes_of_text(nb::str(value), "a hint"));
  }
  for (const std::string& one : texts) pointers.push_back(one.c_str());
  pointers.push_back(nullptr);
  pointers.push_back(nullptr);
}

CallOptions::CallOptions(nb::handle timeout, nb::handle hints) {
  if (timeout.is_none() && hints.is_none()) return;
  given_ = true;
  options_.struct_size = sizeof options_;
  options_.timeout_ns = std::max<uint64_t>(timeout_ns(timeout, 0), timeout.is_none() ? 0 : 1);
  if (hints.is_none()) return;
  take_hints(hints, texts_, pointers_);
  options_.hints = pointers_.data();
}

void CallOptions::heed_signals() noexcept {
  given_ = true;
  options_.struct_size = sizeof options_;
  options_.interrupted = [](void*) -> int32_t {
    const WithGil gil;
    if (!gil) return 0;
    return PyErr_CheckSignals() != 0 ? 1 : 0;  // the exception stays with this thread
  };
}

void check_waited(int32_t status, const char* function) {
  if (PyErr_Occurred() != nullptr) throw nb::python_error();
  check(status, function);
}

CommunicatorClass bind_communicator(nb::module_& module) {
  using nb::arg;
  const auto optional = [](const char* name) { return arg(name).none() = nb::none(); };
  define(module, "_close_all", &close_all);
  define(
      module, "_environment",
      [](nb::handle method) {
        std::string keep;
        int32_t rank = 0;
        int32_t size = 0;
        check(towline_collective_environment(optional_text(method, "method", keep), &rank, &size),
              "towline_collective_environment");
        return nb::make_tuple(rank, size);
      },
      arg("method").none());
  define(module, "_backends", [] {
    char names[4096] = "";
    size_t needed = 0;
    check(towline_collective_backends(names, sizeof names - 1, &needed), "towline_collective_backends");
    return text(names);
  });
  define(module, "_load_backend", [](nb::handle name, nb::handle path) {
    check(towline_collective_backend_load(bytes_of_text(name, "name").c_str(),
                                          bytes_of_text(path, "path").c_str()),
          "towline_collective_backend_load");
  });
  CommunicatorClass communicator(module, "Communicator", nb::type_slots(collected<Communicator>),
                                 nb::is_weak_referenceable());
  communicator
      .def("__init__", &create, nb::kw_only(), optional("rank"), optional("size"), optional("name"),
           optional("backend"), optional("bootstrap"), optional("store"), optional("agent"),
           optional("timeout"), arg("abort_process") = false, arg("shared_memory") = true,
           arg("flight_records") = 0, optional("config"), optional("hints"))
      .def_ro("rank", &Communicator::rank)
      .def_ro("size", &Communicator::size)
      .def_prop_ro("name", [](const Communicator& one) { return text(towline_communicator_name(one.use())); })
      .def_prop_ro("backend",
                   [](const Communicator& one) { return text(towline_communicator_backend(one.use())); })
      .def_prop_ro("closed", [](const Communicator& one) { return one.closing || one.native == nullptr; })
      .def_prop_rw(
          "timeout",
          [](const Communicator& one) {
            return 1e-9 * static_cast<double>(towline_communicator_timeout(one.use()));
          },
          [](const Communicator& one, nb::handle timeout) {
            check(towline_communicator_set_timeout(one.use(), own_timeout_ns(timeout, TOWLINE_FOREVER)),
                  "towline_communicator_set_timeout");
          },
          nb::for_setter(arg("timeout").none()))
      .def(
          "set_hint",
          [](const Communicator& one, nb::handle key, nb::handle value) {
            check(towline_communicator_set_hint(one.use(), bytes_of_text(key, "key").c_str(),
                                                bytes_of_text(value, "value").c_str()),
                  "towline_communicator_set_hint");
          },
          arg("key"), arg("value"))
      .def("split", &split, arg("ranks"), optional("name"), optional("timeout"))
      .def("finalize", &finalize)
      .def("abort", &abort, arg("reason").none() = nb::none())
      .def_prop_ro("error", &error)
      .def("close", &Communicator::close)
      .def("__enter__", [](nb::handle self) { return self; })
      .def("__exit__", [](Communicator& one, nb::args) { one.close(); })
      .def("info",
           [](Communicator& one) {
             return read_json(one, "towline_communicator_info", towline_communicator_info);
           })
      .def("flight_records",
           [](Communicator& one) {
             return read_json(one, "towline_communicator_flight_records",
                              towline_communicator_flight_records);
           })
      .def("reset_flight_records", [](const Communicator& one) {
        check(towline_communicator_flight_reset(one.use()), "towline_communicator_flight_reset");
      });
  return communicator;
}

}  // namespace towline::python
