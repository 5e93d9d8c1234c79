// nixlAgent: creating and closing it, and the common part of its calls.
#include <pthread.h>
#include <unistd.h>

#include <ctime>

#include "core.h"

namespace towline::nixl::python {

namespace {

// The list of all open agents; close_all() closes them at exit.
Agent* open_agents = nullptr;

}  // namespace

void give_way() noexcept {
  const WithoutGil without_gil;
  const timespec pause = {0, 100'000};
  nanosleep(&pause, nullptr);
}

// ---- life

Agent::Agent(const std::string& name, const nixlAgentConfig& config) : pid(getpid()) {
  {
    const WithoutGil without_gil;
    native = std::make_unique<nixlAgent>(name, config);
  }
  next = open_agents;
  if (open_agents != nullptr) open_agents->previous = this;
  open_agents = this;
}

nixlAgent& Agent::use() const {
  if (closing || native == nullptr)
    raise(NIXL_ERR_NOT_ALLOWED, "the agent is closed, since the interpreter ends");
  return *native;
}

void Agent::close() {
  while (closing && native != nullptr) give_way();  // another thread does it
  if (native == nullptr) return;
  closing = true;
  (previous != nullptr ? previous->next : open_agents) = next;
  if (next != nullptr) next->previous = previous;
  if (getpid() != pid) {  // the parent owns it: its threads do not exist here, its connections must stay
    (void)native.release();
    return;
  }
  while (calls != 0) give_way();
  requests.clear();
  lists.clear();
  {
    const WithoutGil without_gil;
    delete native.get();
  }
  (void)native.release();
}

Agent::~Agent() { close(); }

Request& Agent::request(uintptr_t handle) {
  if (Request* found = requests.find(handle)) return *found;
  raise(NIXL_ERR_INVALID_PARAM, "this agent has no such request, or it was released");
}

PreparedList& Agent::list(uintptr_t handle) {
  if (PreparedList* found = lists.find(handle)) return *found;
  raise(NIXL_ERR_INVALID_PARAM, "this agent has no such prepared list, or it was released");
}

namespace {

// Called at exit, while the interpreter still works: says goodbye to peers and ends all threads.
void close_all() {
  while (open_agents != nullptr) open_agents->close();
}

}  // namespace

void bind_agent(nb::module_& module) {
  nb::class_<Agent> bound(module, "nixlAgent", nb::is_weak_referenceable());
  bound.def(
      "__init__",
      [](Agent* self, const Text& name, const nixlAgentConfig& config) {
        new (self) Agent(name.value, config);
      },
      nb::arg("name"), nb::arg("config"));
  bind_memory(bound);
  bind_requests(bound);
  bind_messages(bound);
  module.def("_close_all", &close_all);
}

}  // namespace towline::nixl::python
