// Shared declarations of towline._collectives. The rules of ../core.h apply here too.
//
// An asynchronous operation needs its tensors until it has ended, even if its Work is dropped. A Pending,
// listed by the communicator, holds them. If a Work is dropped before its operation ends, its Pending stays
// listed until a later call (or closing the communicator) frees it. So only threads of the application ever
// drop a Python reference.
#pragma once

#include <string>

#include "../turns.h"
#include "views.h"

namespace towline::python {

struct Pending {
  towline_work_t* native = nullptr;
  Held held;
  bool abandoned = false;  // its Work is gone
  bool streamed = false;   // on a stream of a GPU: asking how it is looks there
  bool listed = true;      // the communicator is still open
  Pending* previous = nullptr;
  Pending* next = nullptr;
};

struct Communicator {
  towline_communicator_t* native = nullptr;
  nb::object agent;
  int rank = 0;
  int size = 1;
  uint32_t calls = 0;  // in progress without the GIL; close() waits for them
  uint32_t windows = 0;
  bool closing = false;
  pid_t pid = 0;
  Pending* first_pending = nullptr;  // the latest
  Pending* last_pending = nullptr;
  Communicator* previous = nullptr;  // in the list of open communicators
  Communicator* next = nullptr;

  Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  ~Communicator() {
    const Turn turn;
    close();
  }
  // Throws Closed.
  towline_communicator_t* use() const;
  // Throws Busy in one of its own hooks or works' functions.
  void close();
  void add(Pending* pending) noexcept;
  void drop(Pending* pending);
  // Frees a few ended operations whose Works are gone.
  void sweep();
  int visit(visitproc visit, void* arg) const;
};

// One call of the C API without the GIL, during which the communicator can't be destroyed.
class CommunicatorCall {
 public:
  explicit CommunicatorCall(Communicator& communicator) : counted_(communicator) {}
  [[nodiscard]] towline_communicator_t* native() const noexcept { return counted_.native; }

 private:
  struct Counted {
    explicit Counted(Communicator& one) : communicator(one), native(one.use()) { ++one.calls; }
    ~Counted() { --communicator.calls; }
    Communicator& communicator;
    towline_communicator_t* native;
  };
  Counted counted_;
  WithoutGil without_gil_;
};

inline Communicator& communicator_of(nb::handle object) { return *nb::inst_ptr<Communicator>(object); }

// Lists a communicator that was made or split off as open.
nb::object own(towline_communicator_t* native, nb::handle agent);
void open_in_place(Communicator* communicator, towline_communicator_t* native, nb::handle agent);

// The options that every operation takes.
struct CallOptions {
  CallOptions(nb::handle timeout, nb::handle hints);
  // For a call that waits: an exception from a signal handler ends it.
  void heed_signals() noexcept;
  [[nodiscard]] const towline_collective_options_t* native() const noexcept {
    return given_ ? &options_ : nullptr;
  }

 private:
  bool given_ = false;
  towline_collective_options_t options_{};
  std::vector<std::string> texts_;
  std::vector<const char*> pointers_;
};

// Throws the exception that a signal handler raised meanwhile, or the one for the status.
void check_waited(int32_t status, const char* function);

// Converts a dict of strings for the C API; null-terminated. Throws.
void take_hints(nb::handle hints, std::vector<std::string>& texts, std::vector<const char*>& pointers);

// A Work for an issued operation.
nb::object make_work(nb::handle communicator, towline_work_t* native, Held&& held, bool streamed = false);

// Calls a hook or a work's function of a communicator, from any thread, and drops both references. An
// exception is reported and not propagated.
void call_from_anywhere(nb::object communicator, nb::object function, PyObject* argument) noexcept;

uint32_t reduction_of(nb::handle op);

template <class T>
nb::object give(T* made) {
  return nb::cast(made, nb::rv_policy::take_ownership);
}

using CommunicatorClass = Class<Communicator>;
void bind_operations(CommunicatorClass& communicator, nb::module_& module);
void bind_work(nb::module_& module);
void bind_window(CommunicatorClass& communicator, nb::module_& module);
void bind_hooks(CommunicatorClass& communicator, nb::module_& module);
CommunicatorClass bind_communicator(nb::module_& module);

}  // namespace towline::python
