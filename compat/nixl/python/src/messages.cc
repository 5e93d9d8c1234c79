// Calls of nixlAgent about notifications and metadata.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "core.h"

namespace towline::nixl::python {

namespace {

nb::bytes bytes_of(const std::string& blob) { return nb::bytes(blob.data(), blob.size()); }

// ---- notifications

// The name as a Python string, mostly the same as last time.
nb::object name_of(Agent& self, const std::string& sender) {
  if (!self.last_sender.name.is_valid() || self.last_sender.text != sender)
    self.last_sender = {sender, nb::cast(Text{sender})};
  return self.last_sender.name;
}

void append(Agent& self, nb::dict& map, const Notification& notification) {
  const nb::object name = name_of(self, notification.sender);
  const nb::bytes text = bytes_of(notification.text);
  PyObject* all = PyDict_GetItemWithError(map.ptr(), name.ptr());
  if (all != nullptr) {
    if (PyList_Append(all, text.ptr()) != 0) throw nb::python_error();
    return;
  }
  if (PyErr_Occurred() != nullptr) throw nb::python_error();
  nb::list first;
  first.append(text);
  if (PyDict_SetItem(map.ptr(), name.ptr(), first.ptr()) != 0) throw nb::python_error();
}

// Old and new notifications in a new dictionary.
nb::dict notifications(Agent& self, const nb::dict& before, const Handles& backends) {
  const nixl_opt_args_t options = options_of(backends);
  nixl_notifs_t arrived;
  check(run(self, [&](nixlAgent& agent) { return agent.getNotifs(arrived, &options); }));
  nb::dict map;
  for (const auto& [name, messages] : before) {
    nb::list copy;
    for (nb::handle message : messages) copy.append(message);
    map[name] = copy;
  }
  for (auto& [sender, messages] : arrived)
    for (nixl_blob_t& message : messages) append(self, map, {sender, std::move(message)});
  return map;
}

}  // namespace

// The same for a program that polls: no old notifications and no backends. Keeps the GIL: polling takes less
// time than releasing it, and with other threads that need the GIL each poll would wait for its turn.
nb::dict new_notifications(Agent& self) {
  std::vector<Notification> arrived;
  check(take_notifs(self.use(), arrived));
  nb::dict map;
  for (const Notification& notification : arrived) append(self, map, notification);
  return map;
}

namespace {

nixl_status_t send_notification(Agent& self, const Text& remote_agent, const Text& message,
                                const Handles& backends) {
  const nixl_opt_args_t options = options_of(backends);
  return check(run(
      self, [&](nixlAgent& agent) { return agent.genNotif(remote_agent.value, message.value, &options); }));
}

// ---- metadata, carried by the application

nb::bytes local_metadata(Agent& self) {
  nixl_blob_t blob;
  check(run(self, [&](nixlAgent& agent) { return agent.getLocalMD(blob); }));
  return bytes_of(blob);
}

nb::bytes partial_metadata(Agent& self, const RegList& descs, bool connection, const Handles& backends) {
  const auto list = descs.list();
  nixl_opt_args_t options = options_of(backends);
  options.includeConnInfo = connection;
  nixl_blob_t blob;
  check(run(self, [&](nixlAgent& agent) { return agent.getLocalPartialMD(*list, blob, &options); }));
  return bytes_of(blob);
}

nb::bytes load(Agent& self, const Text& blob) {
  std::string name;
  check(run(self, [&](nixlAgent& agent) { return agent.loadRemoteMD(blob.value, name); }));
  return bytes_of(name);
}

// These two return the status and do not raise, as callers expect.
nixl_status_t invalidate(Agent& self, const Text& remote_agent) {
  return run(self, [&](nixlAgent& agent) { return agent.invalidateRemoteMD(remote_agent.value); });
}

nixl_status_t check_known(Agent& self, const Text& remote_agent, const XferList& descs) {
  const auto list = descs.list();
  return run(self, [&](nixlAgent& agent) { return agent.checkRemoteMD(remote_agent.value, *list); });
}

nixl_status_t connect(Agent& self, const Text& remote_agent, const Handles& backends) {
  const nixl_opt_args_t options = options_of(backends);
  return check(
      run(self, [&](nixlAgent& agent) { return agent.makeConnection(remote_agent.value, &options); }));
}

// ---- metadata, carried by the agent

nixl_opt_args_t options_to(const Text& address, int port, const Text& label = {}) {
  nixl_opt_args_t options;
  options.ipAddr = address.value;
  options.port = port;
  options.metadataLabel = label.value;
  return options;
}

void send(Agent& self, const Text& address, int port) {
  const nixl_opt_args_t options = options_to(address, port);
  check(run(self, [&](nixlAgent& agent) { return agent.sendLocalMD(&options); }));
}

void send_partial(Agent& self, const RegList& descs, bool connection, const Handles& backends,
                  const Text& address, int port, const Text& label) {
  const auto list = descs.list();
  nixl_opt_args_t options = options_to(address, port, label);
  options.backends = options_of(backends).backends;
  options.includeConnInfo = connection;
  check(run(self, [&](nixlAgent& agent) { return agent.sendLocalPartialMD(*list, &options); }));
}

void fetch(Agent& self, const Text& remote_agent, const Text& address, int port, const Text& label) {
  const nixl_opt_args_t options = options_to(address, port, label);
  check(run(self, [&](nixlAgent& agent) { return agent.fetchRemoteMD(remote_agent.value, &options); }));
}

void withdraw(Agent& self, const Text& address, int port) {
  const nixl_opt_args_t options = options_to(address, port);
  check(run(self, [&](nixlAgent& agent) { return agent.invalidateLocalMD(&options); }));
}

}  // namespace

void bind_messages(nb::class_<Agent>& agent) {
  const Handles none;
  agent.def("getNotifs", &notifications, nb::arg("notif_map"), nb::arg("backends") = none)
      .def("_newNotifs", &new_notifications)
      .def("genNotif", &send_notification, nb::arg("remote_agent"), nb::arg("msg"),
           nb::arg("backends") = none)
      .def("getLocalMD", &local_metadata)
      .def("getLocalPartialMD", &partial_metadata, nb::arg("descs"), nb::arg("inc_conn_info") = false,
           nb::arg("backends") = none)
      .def("loadRemoteMD", &load, nb::arg("remote_metadata"))
      .def("invalidateRemoteMD", &invalidate, nb::arg("remote_agent"))
      .def("checkRemoteMD", &check_known, nb::arg("remote_agent"), nb::arg("descs"))
      .def("makeConnection", &connect, nb::arg("remote_agent"), nb::arg("backends") = none)
      .def("sendLocalMD", &send, nb::arg("ip_addr") = "", nb::arg("port") = 0)
      .def("sendLocalPartialMD", &send_partial, nb::arg("descs"), nb::arg("inc_conn_info") = false,
           nb::arg("backends") = none, nb::arg("ip_addr") = "", nb::arg("port") = 0, nb::arg("label") = "")
      .def("fetchRemoteMD", &fetch, nb::arg("remote_agent"), nb::arg("ip_addr") = "", nb::arg("port") = 0,
           nb::arg("label") = "")
      .def("invalidateLocalMD", &withdraw, nb::arg("ip_addr") = "", nb::arg("port") = 0);
}

}  // namespace towline::nixl::python
