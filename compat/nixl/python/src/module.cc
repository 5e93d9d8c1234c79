// The extension module nixl._bindings: enumerations, figures, configuration, and what the other files bind.
#include <nanobind/stl/chrono.h>
#include <nanobind/stl/string.h>
#include <towline/plugin/experts_functions.h>
#include <towline/towline.h>

#include <chrono>

#include "core.h"

namespace towline::nixl::python {

namespace {

void bind_enumerations(nb::module_& module) {
  using Sync = nixl_thread_sync_t;
  nb::enum_<Sync>(module, "nixl_thread_sync_t", nb::is_arithmetic())
      .value("NIXL_THREAD_SYNC_NONE", Sync::NIXL_THREAD_SYNC_NONE)
      .value("NIXL_THREAD_SYNC_STRICT", Sync::NIXL_THREAD_SYNC_STRICT)
      .value("NIXL_THREAD_SYNC_RW", Sync::NIXL_THREAD_SYNC_RW)
      .export_values();
  module.attr("nixl_thread_sync_t").attr("NIXL_THREAD_SYNC_DEFAULT") = Sync::NIXL_THREAD_SYNC_DEFAULT;
  module.attr("NIXL_THREAD_SYNC_DEFAULT") = Sync::NIXL_THREAD_SYNC_DEFAULT;
  nb::enum_<nixl_mem_t>(module, "nixl_mem_t", nb::is_arithmetic())
      .value("DRAM_SEG", DRAM_SEG)
      .value("VRAM_SEG", VRAM_SEG)
      .value("BLK_SEG", BLK_SEG)
      .value("OBJ_SEG", OBJ_SEG)
      .value("FILE_SEG", FILE_SEG)
      .export_values();
  nb::enum_<nixl_xfer_op_t>(module, "nixl_xfer_op_t", nb::is_arithmetic())
      .value("NIXL_READ", NIXL_READ)
      .value("NIXL_WRITE", NIXL_WRITE)
      .export_values();
  nb::enum_<nixl_cost_t>(module, "nixl_cost_t", nb::is_arithmetic())
      .value("NIXL_COST_ANALYTICAL_BACKEND", nixl_cost_t::ANALYTICAL_BACKEND)
      .export_values();
  nb::enum_<nixl_status_t>(module, "nixl_status_t", nb::is_arithmetic())
      .value("NIXL_IN_PROG", NIXL_IN_PROG)
      .value("NIXL_SUCCESS", NIXL_SUCCESS)
      .value("NIXL_ERR_NOT_POSTED", NIXL_ERR_NOT_POSTED)
      .value("NIXL_ERR_INVALID_PARAM", NIXL_ERR_INVALID_PARAM)
      .value("NIXL_ERR_BACKEND", NIXL_ERR_BACKEND)
      .value("NIXL_ERR_NOT_FOUND", NIXL_ERR_NOT_FOUND)
      .value("NIXL_ERR_MISMATCH", NIXL_ERR_MISMATCH)
      .value("NIXL_ERR_NOT_ALLOWED", NIXL_ERR_NOT_ALLOWED)
      .value("NIXL_ERR_REPOST_ACTIVE", NIXL_ERR_REPOST_ACTIVE)
      .value("NIXL_ERR_UNKNOWN", NIXL_ERR_UNKNOWN)
      .value("NIXL_ERR_NOT_SUPPORTED", NIXL_ERR_NOT_SUPPORTED)
      .value("NIXL_ERR_REMOTE_DISCONNECT", NIXL_ERR_REMOTE_DISCONNECT)
      .value("NIXL_ERR_CANCELED", NIXL_ERR_CANCELED)
      .value("NIXL_ERR_NO_TELEMETRY", NIXL_ERR_NO_TELEMETRY)
      .export_values();
}

int64_t microseconds(chrono_point_t point) {
  return std::chrono::duration_cast<std::chrono::microseconds>(point.time_since_epoch()).count();
}

void bind_values(nb::module_& module) {
  nb::class_<nixl_xfer_telem_t>(module, "nixlXferTelemetry")
      .def(nb::init<>())
      .def_prop_ro("startTime", [](const nixl_xfer_telem_t& self) { return microseconds(self.startTime); })
      .def_prop_ro("postDuration", [](const nixl_xfer_telem_t& self) { return self.postDuration.count(); })
      .def_prop_ro("xferDuration", [](const nixl_xfer_telem_t& self) { return self.xferDuration.count(); })
      .def_ro("totalBytes", &nixl_xfer_telem_t::totalBytes)
      .def_ro("descCount", &nixl_xfer_telem_t::descCount);

  using Config = nixlAgentConfig;
  nb::class_<Config>(module, "nixlAgentConfig")
      .def(nb::init<>())
      .def(
          "__init__",
          [](Config* self, bool progress, bool listen, uint16_t port, nixl_thread_sync_t sync,
             uint32_t workers, uint64_t progress_delay_us, uint64_t listen_delay_us, bool telemetry) {
            new (self)
                Config(progress, listen, port, sync, workers, progress_delay_us, listen_delay_us, telemetry);
          },
          nb::arg("use_prog_thread"), nb::arg("use_listen_thread") = Config::kDefaultUseListenThread,
          nb::arg("port") = Config::kDefaultListenPort, nb::arg("sync_mode") = Config::kDefaultSyncMode,
          nb::arg("num_workers") = 1, nb::arg("pthr_delay_us") = Config::kDefaultPthrDelayUs,
          nb::arg("lthr_delay_us") = Config::kDefaultLthrDelayUs,
          nb::arg("capture_telemetry") = Config::kDefaultCaptureTelemetry)
      .def_rw("useProgThread", &Config::useProgThread)
      .def_rw("useListenThread", &Config::useListenThread)
      .def_rw("listenPort", &Config::listenPort)
      .def_rw("syncMode", &Config::syncMode)
      .def_rw("captureTelemetry", &Config::captureTelemetry)
      .def_rw("pthrDelay", &Config::pthrDelay)
      .def_rw("lthrDelay", &Config::lthrDelay)
      .def_rw("etcdWatchTimeout", &Config::etcdWatchTimeout);
}

}  // namespace

}  // namespace towline::nixl::python

NB_MODULE(_bindings, module) {
  using namespace towline::nixl::python;
  // An agent that the application still holds at exit is already closed, so it is not a leak.
  nb::set_leak_warnings(false);
  module.doc() = "nixlAgent and its lists. Calls raise an exception for an error status and return others.";
  module.attr("version") = nb::str(towline_version());
  module.attr("NIXL_INIT_AGENT") = nb::str(NIXL_INIT_AGENT);
  module.attr("DEFAULT_COMM_PORT") = nb::int_(default_comm_port);
  module.attr("HAVE_UCX_GPU_DEVICE_API") = nb::bool_(true);  // memory views, by Towline's own device code
  bind_enumerations(module);
  bind_values(module);
  bind_errors(module);
  bind_lists(module);
  bind_agent(module);
  bind_handles(module);
  bind_quick(module);
  // For libtowline_experts.so, which nixl_ep loads: the address of the table.
  module.def("_experts_functions", [] {
    static const towline_experts_functions_v1 functions = towline_experts_functions();
    return reinterpret_cast<uintptr_t>(&functions);
  });
  nb::module_::import_("atexit").attr("register")(module.attr("_close_all"));
  nb::list names;
  for (nb::handle item : nb::borrow<nb::dict>(module.attr("__dict__")).keys()) {
    const auto name = nb::cast<std::string>(item);
    if (name[0] != '_' && name != "version") names.append(item);
  }
  module.attr("__all__") = names;
}
