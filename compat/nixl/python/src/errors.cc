// Statuses to Python: NIXL's twelve exceptions.
#include <array>

#include "core.h"

namespace towline::nixl::python {

namespace {

struct Kind {
  nixl_status_t status;
  const char* name;
  const char* says;
};

constexpr std::array kKinds = {
    Kind{NIXL_ERR_NOT_POSTED, "nixlNotPostedError", "The request was never started."},
    Kind{NIXL_ERR_INVALID_PARAM, "nixlInvalidParamError", "An argument is not what the call takes."},
    Kind{NIXL_ERR_BACKEND, "nixlBackendError", "The backend failed."},
    Kind{NIXL_ERR_NOT_FOUND, "nixlNotFoundError", "There is no such agent, backend or registered memory."},
    Kind{NIXL_ERR_MISMATCH, "nixlMismatchError", "Two things that belong together do not fit."},
    Kind{NIXL_ERR_NOT_ALLOWED, "nixlNotAllowedError", "The call is not allowed in this state."},
    Kind{NIXL_ERR_REPOST_ACTIVE, "nixlRepostActiveError", "The request is still under way."},
    Kind{NIXL_ERR_UNKNOWN, "nixlUnknownError", "A failure of another kind."},
    Kind{NIXL_ERR_NOT_SUPPORTED, "nixlNotSupportedError", "This is not supported here."},
    Kind{NIXL_ERR_REMOTE_DISCONNECT, "nixlRemoteDisconnectError", "The peer is gone, or can't be reached."},
    Kind{NIXL_ERR_CANCELED, "nixlCancelledError", "The request was cancelled."},
    Kind{NIXL_ERR_NO_TELEMETRY, "nixlNoTelemetryError", "The agent captures no figures of requests."},
};

// Live as long as the process: a module is never unloaded.
std::array<PyObject*, kKinds.size()> exceptions{};

}  // namespace

void raise(nixl_status_t status) { raise(status, last_error()); }

void raise(nixl_status_t status, std::string_view why) {
  std::string message = nixlEnumStrings::statusStr(status);
  if (!why.empty()) message.append(": ").append(why);
  PyObject* exception = PyExc_RuntimeError;
  for (size_t i = 0; i < kKinds.size(); ++i) {
    if (kKinds[i].status == status) exception = exceptions[i];
  }
  PyErr_SetString(exception, message.c_str());
  throw nb::python_error();
}

void bind_errors(nb::module_& module) {
  for (size_t i = 0; i < kKinds.size(); ++i) {
    const std::string name = std::string("nixl._bindings.") + kKinds[i].name;
    exceptions[i] = PyErr_NewExceptionWithDoc(name.c_str(), kKinds[i].says, nullptr, nullptr);
    if (exceptions[i] == nullptr) throw nb::python_error();
    module.attr(kKinds[i].name) = nb::handle(exceptions[i]);
  }
}

}  // namespace towline::nixl::python
