// The extension module towline._collectives, separate from towline._core so that programs without collectives
// do not load it.
#include "communicator.h"

NB_MODULE(_collectives, module) {
  // A communicator that the application still holds at exit is already closed, so it is not a leak.
  nb::set_leak_warnings(false);
  towline::python::bind_errors(module);
  towline::python::bind_work(module);
  auto communicator = towline::python::bind_communicator(module);
  towline::python::bind_operations(communicator, module);
  towline::python::bind_window(communicator, module);
  towline::python::bind_hooks(communicator, module);
}
