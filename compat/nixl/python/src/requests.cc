// Calls of nixlAgent about prepared lists and requests. Starting a request and asking how it stands are the
// hot path: one look-up of the handle, and the call.
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>

#include "core.h"

namespace towline::nixl::python {

namespace {

// The largest request that is started with the GIL held: copying it takes a few microseconds.
constexpr uint64_t kQuickBytes = 64 << 10;

// Up to this many descriptors, preparing a list and making a request takes less time than releasing the GIL.
// With more, the GIL is released. A request is made with the GIL held only if it need not wait for a
// connection.
constexpr size_t kFewDescriptors = 64;

// Bytes of the largest descriptor, `length(i)` of `count`, or anything beyond kQuickBytes.
template <class Length>
uint64_t largest(size_t count, Length length) noexcept {
  uint64_t bytes = 0;
  for (size_t i = 0; i < count && bytes <= kQuickBytes; ++i) bytes = std::max(bytes, length(i));
  return bytes;
}

// Optional arguments, made only if one is given: they hold several strings.
class Options {
 public:
  explicit Options(const Handles& backends) {
    if (!backends.empty()) made_ = options_of(backends);
  }
  Options(const Handles& backends, const Text& notification) : Options(backends) {
    if (notification.value.empty()) return;
    if (!made_) made_.emplace();
    made_->notif = notification.value;
  }
  [[nodiscard]] const nixl_opt_args_t* get() const noexcept { return made_ ? &*made_ : nullptr; }

 private:
  std::optional<nixl_opt_args_t> made_;
};

// A notification that is longer than a notice waits for room at the peer.
bool is_quick(const Text& notification) noexcept { return notification.value.size() <= kQuickBytes; }

bool is_quick(size_t count, uint64_t bytes) noexcept {
  return count <= kQuickBytes && bytes <= kQuickBytes && count * bytes <= kQuickBytes;
}

// Checks all rows together, and stops as soon as the result is known.
bool is_quick(const Rows& rows) noexcept {
  if (rows.differing() == 1) return is_quick(rows.count, rows.length(0));
  uint64_t bytes = 0;
  for (size_t i = 0; i < rows.count && bytes <= kQuickBytes; ++i)
    bytes += std::min(rows.length(i), kQuickBytes + 1);
  return bytes <= kQuickBytes;
}

// Takes the object behind an entry, found by `find`, once no other thread's call uses it.
template <class Find>
auto* unused(Find find) {
  while (find().users != 0) give_way();  // calls are short; `find` throws where one of them removed it
  return find().native;
}

// ---- prepared lists

// `prep` makes the list, whose largest descriptor has `bytes`.
template <class Prep>
uintptr_t prepare(Agent& self, const Handles& backends, size_t count, uint64_t bytes, Prep prep) {
  const Options options(backends);
  nixlDlistH* list = nullptr;
  check(run(self, count <= kFewDescriptors,
            [&](nixlAgent& agent) { return prep(agent, list, options.get()); }));
  return self.lists.add({.native = list, .largest = bytes});
}

}  // namespace

uintptr_t prepare_list(Agent& self, const Text& agent_name, const XferList& descs, const Handles& backends) {
  const XferList held = descs;
  const Rows rows = held.rows();
  return prepare(self, backends, rows.count,
                 largest(rows.differing(), [&](size_t i) { return rows.length(i); }),
                 [&](nixlAgent& agent, nixlDlistH*& list, const nixl_opt_args_t* options) {
                   return prep_xfer_dlist(agent, agent_name.value, held.type(), rows, list, options);
                 });
}

namespace {

uintptr_t prepare_local(Agent& self, const XferList& descs, const Handles& backends) {
  return prepare_list(self, Text{NIXL_INIT_AGENT}, descs, backends);
}

// Rows of (address, bytes, device, stride, count).
uintptr_t prepare_strided(Agent& self, const Text& agent_name, nixl_mem_t type, nb::handle descs,
                          const Handles& backends) {
  const Table table(descs, 5);
  const StridedRows rows = {table.data(), table.count()};
  return prepare(self, backends, rows.count,
                 largest(rows.count, [&](size_t i) { return rows.data[5 * i + 1]; }),
                 [&](nixlAgent& agent, nixlDlistH*& list, const nixl_opt_args_t* options) {
                   return prep_strided_dlist(agent, agent_name.value, type, rows, list, options);
                 });
}

}  // namespace

nixl_status_t release_list(Agent& self, uintptr_t handle) {
  if (self.closing) return NIXL_SUCCESS;
  nixlDlistH* native = unused([&]() -> PreparedList& { return self.list(handle); });
  self.lists.erase(handle);
  return check(run(self, [&](nixlAgent& agent) { return agent.releasedDlistH(native); }));
}

// ---- requests

namespace {

uintptr_t keep(Agent& self, nixlXferReqH* request, bool quick) {
  return self.requests.add({.native = request, .quick = quick});
}

}  // namespace

uintptr_t make(Agent& self, nixl_xfer_op_t operation, uintptr_t local, nb::handle local_indices,
               uintptr_t remote, nb::handle remote_indices, const Text& notification,
               const Handles& backends) {
  const Use local_list(self.list(local));
  const Use remote_list(self.list(remote));
  const Picks mine(local_indices, "local");
  const Picks theirs(remote_indices, "remote");
  const Options options(backends, notification);
  const bool at_once = mine.native().count <= kFewDescriptors && is_connected(remote_list->native);
  nixlXferReqH* request = nullptr;
  check(run(self, at_once, [&](nixlAgent& agent) {
    return make_xfer_req(agent, operation, local_list->native, mine.native(), remote_list->native,
                         theirs.native(), request, options.get());
  }));
  return keep(self, request, is_quick(mine.native().count, local_list->largest) && is_quick(notification));
}

uintptr_t create(Agent& self, nixl_xfer_op_t operation, const XferList& local, const XferList& remote,
                 const Text& remote_agent, const Text& notification, const Handles& backends) {
  const Options options(backends, notification);
  nixlXferReqH* request = nullptr;
  const auto create = [&](nixlAgent& agent, const XferList& mine, const XferList& theirs, bool may_wait) {
    return create_xfer_req(agent, operation, mine.type(), mine.rows(), theirs.type(), theirs.rows(),
                           remote_agent.value, request, options.get(), may_wait);
  };
  const bool quick = is_quick(local.rows()) && is_quick(notification);
  nixl_status_t status = NIXL_IN_PROG;
  if (static_cast<size_t>(local.count()) <= kFewDescriptors)
    status = create(self.use(), local, remote, false);
  if (status == NIXL_IN_PROG) {
    const XferList mine = local;  // other threads may edit the lists meanwhile
    const XferList theirs = remote;
    status = run(self, [&](nixlAgent& agent) { return create(agent, mine, theirs, true); });
  }
  check(status);
  return keep(self, request, quick);
}

nixl_status_t start(Agent& self, uintptr_t handle, const Text& notification) {
  const Use request(self.request(handle));
  nixlXferReqH* native = request->native;
  const Options options(Handles{}, notification);
  const nixl_opt_args_t* given = options.get();
  if (given != nullptr) request->quick = request->quick && is_quick(notification);
  const nixl_status_t status =
      request->quick ? self.use().postXferReq(native, given)
                     : run(self, [&](nixlAgent& agent) { return agent.postXferReq(native, given); });
  if (status >= 0) request->ended = status == NIXL_SUCCESS;
  return check(status);
}

nixl_status_t look(Agent& self, uintptr_t handle) {
  const Use request(self.request(handle));
  nixlXferReqH* native = request->native;
  const nixl_status_t status = request->ended
                                   ? self.use().getXferStatus(native)
                                   : run(self, [&](nixlAgent& agent) { return agent.getXferStatus(native); });
  request->ended = status != NIXL_IN_PROG;
  return check(status);
}

// "DONE" or "PROC", made once.
nb::object word(nixl_status_t status) {
  static PyObject* const kDone = PyUnicode_InternFromString("DONE");
  static PyObject* const kProc = PyUnicode_InternFromString("PROC");
  return nb::borrow(status == NIXL_SUCCESS ? kDone : kProc);
}

nixl_status_t release(Agent& self, uintptr_t handle) {
  if (self.closing) return NIXL_SUCCESS;
  nixlXferReqH* native = unused([&]() -> Request& { return self.request(handle); });
  self.requests.hide(handle);
  const nixl_status_t status = run(self, [&](nixlAgent& agent) { return agent.releaseXferReq(native); });
  if (status < 0) {
    self.requests.hide(handle, false);  // it still exists, and release may be repeated
  } else {
    self.requests.erase(handle);
  }
  return check(status);
}

namespace {

nixl_xfer_telem_t telemetry(Agent& self, uintptr_t handle) {
  const Use request(self.request(handle));
  nixl_xfer_telem_t figures;
  check(self.use().getXferTelemetry(request->native, figures));
  return figures;
}

std::tuple<int64_t, int64_t, int> estimate(Agent& self, uintptr_t handle) {
  const Use request(self.request(handle));
  std::chrono::microseconds duration{};
  std::chrono::microseconds margin{};
  nixl_cost_t method{};
  check(self.use().estimateXferCost(request->native, duration, margin, method));
  return {duration.count(), margin.count(), static_cast<int>(method)};
}

uintptr_t backend_of(Agent& self, uintptr_t handle) {
  const Use request(self.request(handle));
  nixlBackendH* backend = nullptr;
  check(self.use().queryXferBackend(request->native, backend));
  return reinterpret_cast<uintptr_t>(backend);
}

// ---- memory views

template <class List>
uintptr_t prepare_view(Agent& self, const List& descs, const Handles& backends) {
  const auto list = descs.list();
  const nixl_opt_args_t options = options_of(backends);
  nixlMemViewH view = nullptr;
  check(run(self, [&](nixlAgent& agent) { return agent.prepMemView(*list, view, &options); }));
  return reinterpret_cast<uintptr_t>(view);
}

void release_view(Agent& self, uintptr_t view) {
  run(self, [&](nixlAgent& agent) {
    agent.releaseMemView(reinterpret_cast<nixlMemViewH>(view));
    return 0;
  });
}

}  // namespace

void bind_requests(nb::class_<Agent>& agent) {
  const Handles none;
  agent
      .def("prepXferDlist", &prepare_list, nb::arg("agent_name"), nb::arg("descs"), nb::arg("backend") = none)
      .def("prepXferDlist", &prepare_local, nb::arg("descs"), nb::arg("backend") = none)
      .def("prepXferDlist", &prepare_strided, nb::arg("agent_name"), nb::arg("mem_type"), nb::arg("descs"),
           nb::arg("backend") = none)
      .def("releasedDlistH", &release_list, nb::arg("handle"))
      .def(
          "makeXferReq",
          [](Agent& self, nixl_xfer_op_t operation, uintptr_t local, nb::handle local_indices,
             uintptr_t remote, nb::handle remote_indices, const Text& notification, const Handles& backends,
             bool) {
            return make(self, operation, local, local_indices, remote, remote_indices, notification,
                        backends);
          },
          nb::arg("operation"), nb::arg("local_side"), nb::arg("local_indices"), nb::arg("remote_side"),
          nb::arg("remote_indices"), nb::arg("notif_msg") = "", nb::arg("backend") = none,
          nb::arg("skip_desc_merg") = false)
      .def("createXferReq", &create, nb::arg("operation"), nb::arg("local_descs"), nb::arg("remote_descs"),
           nb::arg("remote_agent"), nb::arg("notif_msg") = "", nb::arg("backend") = none)
      .def("postXferReq", &start, nb::arg("reqh"), nb::arg("notif_msg") = "")
      .def("getXferStatus", &look, nb::arg("reqh"))
      .def("_transfer", [](Agent& self, uintptr_t handle,
                           const Text& notification) { return word(start(self, handle, notification)); })
      .def("_state", [](Agent& self, uintptr_t handle) { return word(look(self, handle)); })
      .def("getXferTelemetry", &telemetry, nb::arg("reqh"))
      .def("estimateXferCost", &estimate, nb::arg("req_handle"))
      .def("queryXferBackend", &backend_of, nb::arg("reqh"))
      .def("releaseXferReq", &release, nb::arg("reqh"))
      .def("prepMemView", &prepare_view<XferList>, nb::arg("dlist"), nb::arg("backends") = none)
      .def("prepMemView", &prepare_view<RemoteList>, nb::arg("dlist"), nb::arg("backends") = none)
      .def("releaseMemView", &release_view, nb::arg("mvh"));
}

}  // namespace towline::nixl::python
