// Agents: their life, metadata, peers, counters.
#include <towline/pace.h>
#include <unistd.h>

#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include "core.h"

namespace towline::python {

namespace {

// The list of all open agents; close_all() closes them at exit.
Agent* open_agents = nullptr;

}  // namespace

// ---- life

towline_agent_t* Agent::use() const {
  if (closing || native == nullptr) raise(TOWLINE_CLOSED, "the agent is closed");
  return native;
}

void Agent::close() {
  // Then the parent owns it: its threads do not exist here, its connections must stay.
  const bool forked = getpid() != pid;
  while (closing && !forked && native != nullptr) {  // by another thread
    const WithoutGil without_gil;
    uint32_t turns = 0;
    back_off(turns);
  }
  if (native == nullptr) return;
  if (!std::exchange(closing, true)) {
    (previous != nullptr ? previous->next : open_agents) = next;
    if (next != nullptr) next->previous = previous;
  }
  if (forked) {
    native = nullptr;
    return;
  }
  {
    const WithoutGil without_gil;
    (void)towline_agent_close(native);  // which ends the calls that wait
  }
  for (uint32_t turns = 0; calls != 0;) {
    const WithoutGil without_gil;
    back_off(turns);
  }
  {
    const WithoutGil without_gil;
    (void)towline_agent_destroy(native);
  }
  native = nullptr;
}

Agent::~Agent() {
  const Turn turn;
  close();
}

namespace {

void open(Agent* agent, nb::handle name, bool hosted, uint32_t workers, nb::handle listen,
          nb::handle advertise, nb::handle backends, nb::handle config, nb::handle timeout) {
  const std::string its_name = bytes_of_text(name, "name");
  std::array<std::string, 4> texts;
  const auto optional = [](nb::handle object, const char* what, std::string& keep) -> const char* {
    if (object.is_none()) return nullptr;
    keep = bytes_of_text(object, what);
    return keep.c_str();
  };
  TOWLINE_INIT(towline_agent_options_t, options);
  options.progress = hosted ? TOWLINE_PROGRESS_HOSTED : TOWLINE_PROGRESS_CALLER;
  options.workers = workers;
  options.listen = optional(listen, "listen", texts[0]);
  options.advertise = optional(advertise, "advertise", texts[1]);
  options.backends = optional(backends, "backends", texts[2]);
  options.config = optional(config, "config", texts[3]);
  options.default_timeout_ns = timeout_ns(timeout, 0);
  towline_agent_t* native = nullptr;
  int32_t status = 0;
  {
    const WithoutGil without_gil;
    status = towline_agent_create(its_name.c_str(), &options, &native);
  }
  check(status, "towline_agent_create");
  new (agent) Agent;
  agent->native = native;
  agent->hosted = hosted;
  if (options.default_timeout_ns != 0) agent->default_timeout = options.default_timeout_ns;
  agent->pid = getpid();
  agent->next = open_agents;
  if (open_agents != nullptr) open_agents->previous = agent;
  open_agents = agent;
}

// Called at exit, while the interpreter still works: ends waiting threads and says goodbye to peers.
void close_all() {
  while (open_agents != nullptr) open_agents->close();
}

template <class Read>
nb::str read_json(Agent& agent, const char* function, Read read) {
  std::vector<char> json(16384);
  size_t needed = 0;
  do {
    if (needed > json.size()) json.resize(needed + 1024);
    int32_t status = 0;
    {
      const AgentCall call(agent);
      status = read(call.native(), json.data(), json.size(), &needed);
    }
    check(status, function);
  } while (needed > json.size());
  return text(json.data(), needed - 1);
}

int progress(Agent& agent) {
  int32_t done = 0;
  {
    const AgentCall call(agent);
    done = towline_agent_progress(call.native());
  }
  check(done, "towline_agent_progress");
  return done;
}

// ---- metadata and peers

nb::bytes metadata(Agent& agent, nb::handle regions) {
  const std::vector<towline_region_t*> handles = regions_of(regions);
  std::vector<char> blob(65536);
  size_t needed = 0;
  do {
    if (needed > blob.size()) blob.resize(needed + 1024);
    check(towline_agent_metadata(agent.use(), handles.data(), handles.size(), blob.data(), blob.size(),
                                 &needed),
          "towline_agent_metadata");
  } while (needed > blob.size());
  return nb::bytes(blob.data(), needed);
}

nb::object add_peer(nb::handle_t<Agent> self, nb::handle blob) {
  const BytesView bytes(blob);
  towline_peer_t* peer = nullptr;
  int32_t status = 0;
  {
    const AgentCall call(agent_of(self));
    status = towline_peer_add(call.native(), bytes.data(), bytes.size(), &peer);
  }
  check(status, "towline_peer_add");
  return nb::cast(new Peer(nb::borrow(self), peer), nb::rv_policy::take_ownership);
}

// The library connects on a thread of its own, so that a signal interrupts the wait, and not the attempt.
nb::object connect(nb::handle_t<Agent> self, nb::handle address, nb::handle timeout) {
  Agent& agent = agent_of(self);
  const std::string where = bytes_of_text(address, "address");
  OwnEvent event(agent);
  check(towline_peer_connect_async(agent.use(), where.c_str(), deadline_ns(timeout), event.queue(), nullptr),
        "towline_peer_connect_async");
  (void)event.wait(Deadline(TOWLINE_FOREVER));
  towline_peer_t* peer = nullptr;
  check(towline_event_peer(&event.get(), &peer), "towline_event_peer");
  return nb::cast(new Peer(nb::borrow(self), peer), nb::rv_policy::take_ownership);
}

void start_connecting(nb::handle_t<Agent> self, nb::handle address, nb::handle timeout, uint64_t number) {
  const std::string where = bytes_of_text(address, "address");
  Agent& agent = agent_of(self);
  check(towline_peer_connect_async(agent.use(), where.c_str(), deadline_ns(timeout), events_of(agent),
                                   user_data(number)),
        "towline_peer_connect_async");
}

nb::object find_peer(nb::handle_t<Agent> self, nb::handle name) {
  towline_peer_t* peer = nullptr;
  check(towline_peer_find(agent_of(self).use(), bytes_of_text(name, "name").c_str(), &peer),
        "towline_peer_find");
  return nb::cast(new Peer(nb::borrow(self), peer), nb::rv_policy::take_ownership);
}

void add_backend(nb::handle_t<Agent> self, nb::handle plugin) {
  const nb::object path = nb::module_::import_("os").attr("fspath")(plugin);
  const std::string file = bytes_of_text(path, "plugin");
  int32_t status = 0;
  {
    const AgentCall call(agent_of(self));
    status = towline_agent_add_backend(call.native(), file.c_str());
  }
  check(status, "towline_agent_add_backend");
}

// ---- counters

struct Counter {
  nb::object agent;
  towline_counter_t* native = nullptr;

  Counter() = default;
  Counter(const Counter&) = delete;
  Counter& operator=(const Counter&) = delete;
  ~Counter() { towline_counter_destroy(native); }
  int visit(visitproc visit, void* arg) const {
    Py_VISIT(agent.ptr());
    return 0;
  }
};

nb::object create_counter(nb::handle_t<Agent> self, uint64_t initial) {
  towline_counter_t* native = nullptr;
  check(towline_counter_create(agent_of(self).use(), initial, &native), "towline_counter_create");
  auto* counter = new Counter;
  counter->agent = nb::borrow(self);
  counter->native = native;
  return nb::cast(counter, nb::rv_policy::take_ownership);
}

uint64_t wait_counter(Counter& counter, uint64_t threshold, nb::handle timeout) {
  const Deadline deadline(timeout_ns(timeout, TOWLINE_FOREVER));
  while (true) {
    int32_t status = 0;
    {
      const AgentCall call(agent_of(counter.agent));
      status = towline_counter_wait(counter.native, threshold, deadline.signal_slice());
    }
    if (status == TOWLINE_OK) return towline_counter_value(counter.native);
    if (status != TOWLINE_NOT_YET) check(status, "towline_counter_wait");
    check_signals();
    if (deadline.passed()) raise_not_yet("the counter has not reached " + std::to_string(threshold) + " yet");
  }
}

void set_limit(const Agent& agent, uint64_t bytes_per_s, std::string_view priority) {
  uint32_t which = TOWLINE_LIMIT_ALL;
  if (priority == "bulk")
    which = TOWLINE_LIMIT_BULK;
  else if (priority == "latency")
    which = TOWLINE_LIMIT_LATENCY;
  else if (priority != "all")
    raise(TOWLINE_INVALID_ARGUMENT, "priority is 'all', 'bulk' or 'latency'");
  check(towline_agent_set_limit(agent.use(), which, bytes_per_s), "towline_agent_set_limit");
}

}  // namespace

void bind_agent(nb::module_& module) {
  Class<Counter>(module, "Counter", nb::type_slots(collected<Counter>))
      .def("__reduce__", &refuse_pickling)
      .def_prop_ro("key", [](const Counter& counter) { return towline_counter_key(counter.native); })
      .def_prop_ro("value", [](const Counter& counter) { return towline_counter_value(counter.native); })
      .def("wait", &wait_counter, nb::arg("threshold"), nb::arg("timeout") = nb::none())
      .def("wait_async",
           [](nb::handle counter, nb::args arguments, nb::kwargs keywords) {
             return coroutine("wait_counter", counter, std::move(arguments), std::move(keywords));
           })
      .def_ro("_agent", &Counter::agent)
      .def("_start",
           [](const Counter& counter, nb::handle threshold, uint64_t number) {
             check(towline_counter_wait_async(counter.native, unsigned_integer(threshold, "threshold"),
                                              events_of(agent_of(counter.agent)), user_data(number)),
                   "towline_counter_wait_async");
           })
      .def("_forget",
           [](const Counter& counter, uint64_t number) {
             if (Agent& agent = agent_of(counter.agent); agent.events_native != nullptr)
               towline_counter_forget(counter.native, agent.events_native, user_data(number));
           })
      .def("__enter__", [](nb::handle self) { return nb::borrow(self); })
      .def("__exit__", [](Counter& counter,
                          nb::args) { towline_counter_destroy(std::exchange(counter.native, nullptr)); })
      .def("__repr__", [](const Counter& counter) {
        return nb::str("Counter(key={}, value={})")
            .format(towline_counter_key(counter.native), towline_counter_value(counter.native));
      });
  Class<Agent>(module, "Agent", nb::is_weak_referenceable())
      .def("__init__", &open, nb::arg("name"), nb::arg("hosted"), nb::arg("workers"),
           nb::arg("listen").none(), nb::arg("advertise").none(), nb::arg("backends").none(),
           nb::arg("config").none(), nb::arg("timeout").none())
      .def("__reduce__", &refuse_pickling)
      .def("_close", &Agent::close)
      .def_prop_ro("closed", [](const Agent& agent) { return agent.closing || agent.native == nullptr; })
      .def_prop_ro("hosted", [](const Agent& agent) { return agent.hosted; })
      .def_prop_ro("name", [](const Agent& agent) { return text(towline_agent_name(agent.use())); })
      .def_prop_ro("incarnation",
                   [](const Agent& agent) { return text(towline_agent_incarnation(agent.use())); })
      .def_prop_ro("address",
                   [](const Agent& agent) {
                     std::array<char, 1024> address{};
                     check(towline_agent_address(agent.use(), address.data(), address.size(), nullptr),
                           "towline_agent_address");
                     return text(address.data());
                   })
      .def_prop_ro("event_fd",
                   [](const Agent& agent) {
                     int fd = -1;
                     check(towline_agent_event_fd(agent.use(), &fd), "towline_agent_event_fd");
                     return fd;
                   })
      // The handle of the C API, for Towline's other extension modules.
      .def_prop_ro("_native", [](const Agent& agent) { return reinterpret_cast<uintptr_t>(agent.use()); })
      .def("_info", [](Agent& agent) { return read_json(agent, "towline_agent_info", towline_agent_info); })
      .def("_metrics",
           [](Agent& agent) { return read_json(agent, "towline_agent_metrics", towline_agent_metrics); })
      .def("progress", &progress)
      .def("_start_connecting", &start_connecting, nb::arg("address"), nb::arg("timeout").none(),
           nb::arg("number"))
      .def_prop_ro("_timeout",
                   [](const Agent& agent) { return static_cast<double>(agent.default_timeout) / 1e9; })
      .def("add_backend", &add_backend, nb::arg("plugin"))
      .def(
          "set_limit",
          [](const Agent& agent, uint64_t bytes_per_s, const char* priority) {
            set_limit(agent, bytes_per_s, priority);
          },
          nb::arg("bytes_per_s"), nb::arg("priority") = "all")
      .def("metadata", &metadata, nb::arg("regions") = nb::none())
      .def("add_peer", &add_peer, nb::arg("blob"))
      .def("connect", &connect, nb::arg("address"), nb::arg("timeout") = nb::none())
      .def("find_peer", &find_peer, nb::arg("name"))
      .def("counter", &create_counter, nb::arg("initial") = 0)
      .def(
          "block_list",
          [](nb::handle_t<Agent> self, nb::handle source, nb::handle page_dim, nb::handle kind) {
            return make_block_list(nb::borrow(self), nb::none(), source, page_dim, kind);
          },
          nb::arg("source"), nb::kw_only(), nb::arg("page_dim") = nb::none(), nb::arg("kind") = "dram");
  define(module, "_close_all", &close_all);
}

}  // namespace towline::python
