// Directories: calls that can be waited for, watches.
#include <towline/directory.h>

#include <algorithm>
#include <vector>

#include "core.h"

namespace towline::python {

namespace {

enum class Gives { kNothing, kValue, kEntries, kPeer };

nb::bytes value_of(const towline_directory_entry_t& entry) {
  return nb::bytes(static_cast<const char*>(entry.value), entry.bytes);
}

struct DirectoryCall {
  nb::object agent;
  nb::object directory;  // stays open for it
  towline_directory_call_t* native = nullptr;
  Gives gives = Gives::kNothing;

  DirectoryCall() = default;
  DirectoryCall(const DirectoryCall&) = delete;
  DirectoryCall& operator=(const DirectoryCall&) = delete;
  ~DirectoryCall() { towline_directory_call_release(native); }
  int visit(visitproc visit, void* arg) const {
    Py_VISIT(agent.ptr());
    Py_VISIT(directory.ptr());
    return 0;
  }
};

struct Directory {
  nb::object agent;
  towline_directory_t* native = nullptr;

  Directory() = default;
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;
  ~Directory() { towline_directory_release(native); }
  [[nodiscard]] towline_directory_t* use() const {
    if (native == nullptr) raise(TOWLINE_CLOSED, "the directory is closed");
    (void)agent_of(agent).use();
    return native;
  }
  void close(nb::handle timeout) {
    if (native == nullptr) return;
    const uint64_t limit = timeout_ns(timeout, TOWLINE_DEFAULT_TIMEOUT);
    towline_directory_t* const closing = std::exchange(native, nullptr);
    const WithoutGil without_gil;
    (void)towline_directory_close(closing, limit);
  }
  int visit(visitproc visit, void* arg) const {
    Py_VISIT(agent.ptr());
    return 0;
  }
};

struct Watch {
  nb::object agent;
  nb::object directory;  // stays open for it
  towline_watch_t* native = nullptr;
  const uint64_t number = next_number();

  Watch() = default;
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  ~Watch() { towline_watch_release(native); }
  int visit(visitproc visit, void* arg) const {
    Py_VISIT(agent.ptr());
    Py_VISIT(directory.ptr());
    return 0;
  }
};

nb::object open(nb::handle_t<Agent> agent, nb::handle address) {
  const std::string where = bytes_of_text(address, "address");
  towline_directory_t* native = nullptr;
  int32_t status = 0;
  {
    const AgentCall call(agent_of(agent));
    status = towline_directory_open(call.native(), where.c_str(), &native);
  }
  check(status, "towline_directory_open");
  auto* directory = new Directory;
  directory->agent = nb::borrow(agent);
  directory->native = native;
  return nb::cast(directory, nb::rv_policy::take_ownership);
}

template <class Start>
nb::object start(Directory& directory, Gives gives, const char* function, Start start_call) {
  towline_directory_t* const native = directory.use();
  towline_directory_call_t* call = nullptr;
  check(start_call(native, &call), function);
  auto* made = new DirectoryCall;
  made->agent = directory.agent;
  made->directory = nb::find(directory);
  made->native = call;
  made->gives = gives;
  return nb::cast(made, nb::rv_policy::take_ownership);
}

uint64_t limit_of(nb::handle timeout) { return timeout_ns(timeout, TOWLINE_DEFAULT_TIMEOUT); }

nb::object put(Directory& directory, nb::handle key, nb::handle value, bool leased, bool create,
               nb::handle timeout) {
  const std::string name = bytes_of_text(key, "key");
  const BytesView bytes(value);
  const uint32_t flags =
      (leased ? uint32_t{TOWLINE_PUT_LEASED} : 0) | (create ? uint32_t{TOWLINE_PUT_CREATE} : 0);
  return start(directory, Gives::kNothing, "towline_directory_put", [&](auto* native, auto** call) {
    return towline_directory_put(native, name.c_str(), bytes.data(), bytes.size(), flags, limit_of(timeout),
                                 call);
  });
}

nb::object get(Directory& directory, nb::handle key, bool prefix, bool wait, nb::handle timeout) {
  const std::string name = bytes_of_text(key, "key");
  const uint32_t flags =
      (prefix ? uint32_t{TOWLINE_GET_PREFIX} : 0) | (wait ? uint32_t{TOWLINE_GET_WAIT} : 0);
  return start(directory, prefix ? Gives::kEntries : Gives::kValue, "towline_directory_get",
               [&](auto* native, auto** call) {
                 return towline_directory_get(native, name.c_str(), flags, limit_of(timeout), call);
               });
}

nb::object remove(Directory& directory, nb::handle key, bool prefix, nb::handle timeout) {
  const std::string name = bytes_of_text(key, "key");
  return start(directory, Gives::kNothing, "towline_directory_delete", [&](auto* native, auto** call) {
    return towline_directory_delete(native, name.c_str(), prefix ? uint32_t{TOWLINE_GET_PREFIX} : 0,
                                    limit_of(timeout), call);
  });
}

// Null for None.
struct Label {
  explicit Label(nb::handle label) : given(!label.is_none()) {
    if (given) text = bytes_of_text(label, "label");
  }
  [[nodiscard]] const char* get() const noexcept { return given ? text.c_str() : nullptr; }
  bool given;
  std::string text;
};

nb::object publish(Directory& directory, nb::handle label, nb::handle regions, nb::handle timeout) {
  const Label its_label(label);
  const std::vector<towline_region_t*> handles = regions_of(regions);
  return start(directory, Gives::kNothing, "towline_directory_publish", [&](auto* native, auto** call) {
    return towline_directory_publish(native, its_label.get(), handles.data(), handles.size(),
                                     limit_of(timeout), call);
  });
}

nb::object unpublish(Directory& directory, nb::handle label, nb::handle timeout) {
  const Label its_label(label);
  return start(directory, Gives::kNothing, "towline_directory_unpublish", [&](auto* native, auto** call) {
    return towline_directory_unpublish(native, its_label.get(), limit_of(timeout), call);
  });
}

nb::object fetch(Directory& directory, nb::handle name, nb::handle label, bool wait, bool follow,
                 nb::handle timeout) {
  const std::string its_name = bytes_of_text(name, "name");
  const Label its_label(label);
  const uint32_t flags =
      (wait ? uint32_t{TOWLINE_GET_WAIT} : 0) | (follow ? uint32_t{TOWLINE_FETCH_FOLLOW} : 0);
  return start(directory, Gives::kPeer, "towline_directory_fetch", [&](auto* native, auto** call) {
    return towline_directory_fetch(native, its_name.c_str(), its_label.get(), flags, limit_of(timeout), call);
  });
}

nb::str info(Directory& directory) {
  std::vector<char> json(4096);
  size_t needed = 0;
  while (true) {
    int32_t status = 0;
    towline_directory_t* const native = directory.use();
    {
      const AgentCall call(agent_of(directory.agent));
      status = towline_directory_info(native, json.data(), json.size(), &needed);
    }
    check(status, "towline_directory_info");
    if (needed <= json.size()) return text(json.data(), needed - 1);
    json.resize(needed + 1024);
  }
}

// ---- calls

nb::object result(DirectoryCall& call) {
  size_t count = 0;
  check(towline_directory_call_entries(call.native, nullptr, sizeof(towline_directory_entry_t), &count),
        "towline_directory_call_entries");
  std::vector<towline_directory_entry_t> entries(count);
  check(towline_directory_call_entries(call.native, entries.data(), sizeof entries.front(), &count),
        "towline_directory_call_entries");
  switch (call.gives) {
    case Gives::kValue:
      return entries.empty() ? nb::object(nb::bytes("", 0)) : nb::object(value_of(entries.front()));
    case Gives::kEntries: {
      nb::dict values;
      for (const towline_directory_entry_t& entry : entries) values[text(entry.key)] = value_of(entry);
      return values;
    }
    case Gives::kPeer: {
      towline_peer_t* peer = nullptr;
      check(towline_directory_call_peer(call.native, &peer), "towline_directory_call_peer");
      return nb::cast(new Peer(call.agent, peer), nb::rv_policy::take_ownership);
    }
    case Gives::kNothing:
      break;
  }
  return nb::none();
}

nb::object wait(DirectoryCall& call, nb::handle timeout) {
  const Deadline deadline(timeout_ns(timeout, TOWLINE_FOREVER));
  while (true) {
    int32_t status = 0;
    {
      const WithoutGil without_gil;
      status = towline_directory_call_wait(call.native, deadline.signal_slice());
    }
    if (status == TOWLINE_OK) return result(call);
    if (status != TOWLINE_NOT_YET) check(status, "towline_directory_call_wait");
    check_signals();
    if (deadline.passed()) raise_not_yet("the call has not ended yet");
  }
}

// ---- watches

nb::object start_watch(Directory& directory, nb::handle prefix) {
  const std::string its_prefix = bytes_of_text(prefix, "prefix");
  towline_watch_t* native = nullptr;
  check(towline_directory_watch(directory.use(), its_prefix.c_str(), &native), "towline_directory_watch");
  auto* watch = new Watch;
  watch->agent = directory.agent;
  watch->directory = nb::find(directory);
  watch->native = native;
  return nb::cast(watch, nb::rv_policy::take_ownership);
}

// (kind, key, value), or None when none came in time.
nb::object next_event(Watch& watch, nb::handle timeout) {
  static constexpr const char* kKinds[] = {"", "put", "gone", "synced"};
  const Deadline deadline(timeout_ns(timeout, TOWLINE_FOREVER));
  while (true) {
    towline_directory_event_t event{};
    int32_t status = 0;
    {
      const WithoutGil without_gil;
      status = towline_watch_next(watch.native, deadline.signal_slice(), &event);
    }
    if (status == TOWLINE_OK) {
      return named("DirectoryEvent")(event.kind < 4 ? kKinds[event.kind] : "", text(event.entry.key),
                                     value_of(event.entry));
    }
    if (status != TOWLINE_NOT_YET) check(status, "towline_watch_next");
    check_signals();
    if (deadline.passed()) return nb::none();
  }
}

}  // namespace

void bind_directory(nb::module_& module) {
  Class<DirectoryCall>(module, "DirectoryCall", nb::type_slots(collected<DirectoryCall>))
      .def_prop_ro("done",
                   [](const DirectoryCall& call) {
                     return towline_directory_call_poll(call.native) != TOWLINE_IN_PROGRESS;
                   })
      .def("wait", &wait, nb::arg("timeout") = nb::none())
      .def("cancel", [](DirectoryCall& call) { (void)towline_directory_call_cancel(call.native); })
      .def("__repr__",
           [](const DirectoryCall& call) {
             return nb::str("DirectoryCall(status={})")
                 .format(towline_status_name(towline_directory_call_poll(call.native)));
           })
      .def_ro("_agent", &DirectoryCall::agent)
      .def("_start",
           [](const DirectoryCall& call, uint64_t number) {
             check(towline_directory_call_wait_async(call.native, events_of(agent_of(call.agent)),
                                                     user_data(number)),
                   "towline_directory_call_wait_async");
           })
      .def("__await__", [](nb::handle self) { return awaiting("wait_call", self); });
  Class<Watch>(module, "Watch", nb::type_slots(collected<Watch>))
      .def("next", &next_event, nb::arg("timeout") = nb::none())
      .def_prop_ro("following",
                   [](const Watch& watch) { return towline_watch_status(watch.native) == TOWLINE_OK; })
      .def("__iter__", [](nb::handle self) { return nb::borrow(self); })
      .def("__next__", [](Watch& watch) { return next_event(watch, nb::none()); })
      .def("__aiter__", [](nb::handle self) { return nb::borrow(self); })
      .def_ro("_agent", &Watch::agent)
      .def_ro("_number", &Watch::number)
      .def("_start",
           [](const Watch& watch, uint64_t number) {
             check(
                 towline_watch_wait_async(watch.native, events_of(agent_of(watch.agent)), user_data(number)),
                 "towline_watch_wait_async");
           })
      .def("__anext__", [](nb::handle self) {
        return nb::module_::import_("towline._asyncio").attr("next_of_watch")(self);
      });
  Class<Directory>(module, "Directory", nb::type_slots(collected<Directory>), nb::is_weak_referenceable())
      .def("put", &put, nb::arg("key"), nb::arg("value"), nb::kw_only(), nb::arg("leased") = false,
           nb::arg("create") = false, nb::arg("timeout") = nb::none())
      .def("get", &get, nb::arg("key"), nb::kw_only(), nb::arg("prefix") = false, nb::arg("wait") = false,
           nb::arg("timeout") = nb::none())
      .def("delete", &remove, nb::arg("key"), nb::kw_only(), nb::arg("prefix") = false,
           nb::arg("timeout") = nb::none())
      .def("publish", &publish, nb::kw_only(), nb::arg("label") = nb::none(), nb::arg("regions") = nb::none(),
           nb::arg("timeout") = nb::none())
      .def("unpublish", &unpublish, nb::kw_only(), nb::arg("label") = nb::none(),
           nb::arg("timeout") = nb::none())
      .def("fetch", &fetch, nb::arg("name"), nb::kw_only(), nb::arg("label") = nb::none(),
           nb::arg("wait") = false, nb::arg("follow") = false, nb::arg("timeout") = nb::none())
      .def("watch", &start_watch, nb::arg("prefix") = "")
      .def("_info", &info)
      .def("close", &Directory::close, nb::arg("timeout") = nb::none())
      .def("__enter__", [](nb::handle self) { return nb::borrow(self); })
      .def("__exit__", [](Directory& directory, nb::args) { directory.close(nb::none()); });
  define(module, "_open_directory", &open);
}

}  // namespace towline::python
