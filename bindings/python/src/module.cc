// The extension module towline._core.
#include "core.h"

NB_MODULE(_core, module) {
  // An agent that the application still holds at exit is already closed, so it is not a leak.
  nb::set_leak_warnings(false);
  module.attr("version") = nb::str(towline_version());
  towline::python::bind_errors(module);
  towline::python::bind_blocks(module);
  towline::python::bind_logging(module);
  towline::python::bind_queue(module);
  towline::python::bind_memory(module);
  towline::python::bind_peer(module);
  towline::python::bind_transfer(module);
  towline::python::bind_plan(module);
  towline::python::bind_agent(module);
  towline::python::bind_directory(module);
}
