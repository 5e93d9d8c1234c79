// Calls of nixlAgent about backends and registered memory.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unordered_map.h>
#include <nanobind/stl/vector.h>

#include "core.h"

namespace towline::nixl::python {

namespace {

using Description = std::pair<nixl_b_params_t, std::vector<std::string>>;

Description described(const nixl_b_params_t& params, const nixl_mem_list_t& mems) {
  std::vector<std::string> names;
  for (const nixl_mem_t mem : mems) names.push_back(nixlEnumStrings::memTypeStr(mem));
  return {params, names};
}

std::vector<nixl_backend_t> plugins(Agent& self) {
  std::vector<nixl_backend_t> names;
  check(run(self, [&](nixlAgent& agent) { return agent.getAvailPlugins(names); }));
  return names;
}

Description plugin_params(Agent& self, const Text& type) {
  nixl_b_params_t params;
  nixl_mem_list_t mems;
  check(run(self, [&](nixlAgent& agent) { return agent.getPluginParams(type.value, mems, params); }));
  return described(params, mems);
}

Description backend_params(Agent& self, uintptr_t backend) {
  nixl_b_params_t params;
  nixl_mem_list_t mems;
  check(run(self, [&](nixlAgent& agent) {
    return agent.getBackendParams(reinterpret_cast<nixlBackendH*>(backend), mems, params);
  }));
  return described(params, mems);
}

uintptr_t create_backend(Agent& self, const Text& type, const nixl_b_params_t& params) {
  nixlBackendH* backend = nullptr;
  check(run(self, [&](nixlAgent& agent) { return agent.createBackend(type.value, params, backend); }));
  return reinterpret_cast<uintptr_t>(backend);
}

nixl_status_t register_memory(Agent& self, const RegList& descs, const Handles& backends) {
  const auto list = descs.list();
  const nixl_opt_args_t options = options_of(backends);
  return check(run(self, [&](nixlAgent& agent) { return agent.registerMem(*list, &options); }));
}

nixl_status_t deregister_memory(Agent& self, const RegList& descs, const Handles& backends) {
  const auto list = descs.list();
  const nixl_opt_args_t options = options_of(backends);
  return check(run(self, [&](nixlAgent& agent) { return agent.deregisterMem(*list, &options); }));
}

std::vector<nixl_query_resp_t> query_memory(Agent& self, const RegList& descs, uintptr_t backend) {
  const auto list = descs.list();
  const nixl_opt_args_t options = options_of({backend});
  std::vector<nixl_query_resp_t> answers;
  check(run(self, [&](nixlAgent& agent) { return agent.queryMem(*list, answers, &options); }));
  return answers;
}

}  // namespace

void bind_memory(nb::class_<Agent>& agent) {
  const Handles none;
  agent.def("getAvailPlugins", &plugins)
      .def("getPluginParams", &plugin_params, nb::arg("type"))
      .def("getBackendParams", &backend_params, nb::arg("backend"))
      .def("createBackend", &create_backend, nb::arg("type"), nb::arg("initParams"))
      .def("registerMem", &register_memory, nb::arg("descs"), nb::arg("backends") = none)
      .def("deregisterMem", &deregister_memory, nb::arg("descs"), nb::arg("backends") = none)
      .def("queryMem", &query_memory, nb::arg("descs"), nb::arg("backend"));
}

}  // namespace towline::nixl::python
