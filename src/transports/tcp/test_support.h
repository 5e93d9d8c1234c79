// For tests and measurements of backends: an agent's core reduced to what a backend sees of it, driven by
// hand. Speaks to the plugin through its C tables only, so that any plugin fits. Not part of the library.
#pragma once

#include <sys/epoll.h>

#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/id.h"
#include "base/os/poller.h"
#include "framing/test_support.h"
#include "towline/plugin/v1.h"
#include "towline/towline.h"

namespace towline::testing {

using framing::testing::FakePlan;
using framing::testing::FakeRegion;

class FakeAgent;

// The core's state of one connection.
struct FakeLink {
  FakeAgent* agent = nullptr;
  towline_connection* connection = nullptr;
  std::string peer_name;  // accepted ones
  uint32_t worker = 0;
  bool accepted = false;
  uint32_t ups = 0;
  uint32_t downs = 0;
  Status status = Status::kOk;  // of the last event
  std::string text;
  std::vector<std::string> messages;
  std::function<void(std::string_view)> on_message;
};

class FakeAgent {
 public:
  using Settings = std::map<std::string, std::string>;

  // Opens the plugin. Its regions' keys are 1, 2, ...
  FakeAgent(const towline_plugin_v1_t* plugin, const std::string& name, Settings settings = {},
            uint32_t workers = 1)
      : settings_(std::move(settings)), name_(name), plugin_(plugin) {
    for (uint32_t i = 0; i < workers; ++i) workers_.push_back(std::make_unique<Worker>());
    const Id id = Id::random();
    identity = {sizeof identity, {id.hi, id.lo}, {11, 22}, 33, 44, 55, 66, 0, workers, name_.c_str()};
    make_table();
    memory = static_cast<const towline_memory_table_v1*>(plugin->query_table("memory", 1));
    connections = static_cast<const towline_connection_table_v1*>(plugin->query_table("connection", 1));
    data = static_cast<const towline_data_table_v1*>(plugin->query_table("data", 1));
    status = static_cast<Status>(plugin->open(&table_, &backend));
    if (status != Status::kOk) backend = nullptr;
  }
  FakeAgent(const FakeAgent&) = delete;
  FakeAgent& operator=(const FakeAgent&) = delete;
  ~FakeAgent() { close(); }

  void close() {
    if (backend == nullptr) return;
    for (const auto& link : links) disconnect(*link);
    for (towline_prepared* prepared : prepared_) data->unprepare(prepared);
    prepared_.clear();
    plugin_->close(backend);
    backend = nullptr;
  }

  std::vector<uint8_t> address() {
    std::vector<uint8_t> address(TOWLINE_MAX_ADDRESS_BYTES);
    std::size_t bytes = address.size();
    if (connections->address(backend, address.data(), &bytes) != 0) std::abort();
    address.resize(bytes);
    return address;
  }
  // A link to the agent that `peer` describes at `address`.
  FakeLink& connect(const towline_identity& peer, const std::vector<uint8_t>& address,
                    uint64_t timeout_ns = 20 * kSecondNs, uint32_t worker = 0) {
    FakeLink& link = add_link(worker);
    link.status =
        static_cast<Status>(connections->connect(backend, worker, &peer, address.data(), address.size(),
                                                 now_ns() + timeout_ns, &link, &link.connection));
    return link;
  }
  FakeLink& connect(FakeAgent& peer, uint64_t timeout_ns = 20 * kSecondNs, uint32_t worker = 0) {
    return connect(peer.identity, peer.address(), timeout_ns, worker);
  }
  void disconnect(FakeLink& link) {
    if (link.connection == nullptr) return;
    connections->disconnect(link.connection);
    link.connection = nullptr;
  }

  uint64_t add(uint8_t* address, uint64_t bytes, uint32_t access = TOWLINE_ACCESS_ALL) {
    regions.push_back(std::make_unique<FakeRegion>(FakeRegion{address, bytes, access, 0, false}));
    return regions.size();
  }
  towline_prepared* prepare(FakeLink& link, const towline_plan* plan, uint32_t op) {
    const towline_prepare_args args = {sizeof args, plan, nullptr, nullptr, op, 0};
    towline_prepared* prepared = nullptr;
    if (data->prepare(link.connection, &args, &prepared) != 0) std::abort();
    prepared_.push_back(prepared);
    return prepared;
  }
  Status submit(towline_prepared* prepared, uint64_t cookie, uint64_t bytes, std::string_view message = {},
                uint32_t flags = 0) {
    const towline_submit_args args = {sizeof args,    cookie, 0, bytes,  message.data(),
                                      message.size(), flags,  0, nullptr};
    return static_cast<Status>(data->submit(prepared, &args));
  }
  Status send(FakeLink& link, std::string_view message) {
    return static_cast<Status>(data->send(link.connection, message.data(), message.size()));
  }

  // One pass of every worker.
  uint32_t turn() {
    uint32_t done = 0;
    for (uint32_t i = 0; i < workers_.size(); ++i) {
      done += data->progress(backend, i, now_ns());
      done += poll(i, 0);
    }
    return done;
  }
  // Goes to sleep as a worker does, for at most so long. False: there was work after all.
  bool sleep(uint32_t worker, uint64_t timeout_ns) {
    if (data->arm(backend, worker) != 0) return false;
    poll(worker, timeout_ns);
    data->disarm(backend, worker);
    return true;
  }
  // Descriptors of this worker that are watched for nothing now.
  std::size_t resting(uint32_t worker) const {
    std::size_t count = 0;
    for (const auto& [fd, watch] : workers_[worker]->watches) count += watch.events == 0 ? 1 : 0;
    return count;
  }
  uint64_t now_ns() const { return clock != nullptr ? clock->now_ns() : monotonic_now_ns() + skipped_ns; }

  bool ended(uint64_t cookie) const { return results.contains(cookie); }
  Status outcome(uint64_t cookie) const { return static_cast<Status>(results.at(cookie).status); }
  uint32_t pins_held() const {
    uint32_t count = 0;
    for (const auto& region : regions) count += region->pins;
    return count;
  }
  FakeLink* accepted_link() const {
    for (const auto& link : links) {
      if (link->accepted && link->connection != nullptr) return link.get();
    }
    return nullptr;
  }

  // The other transport that the core gives to one that asks for it.
  static inline const towline_plugin_v1_t* builtin = nullptr;

  towline_identity identity = plugin::sized<towline_identity>();
  const towline_memory_table_v1* memory = nullptr;
  const towline_connection_table_v1* connections = nullptr;
  const towline_data_table_v1* data = nullptr;
  towline_backend* backend = nullptr;
  Status status = Status::kOk;  // of open
  Status accept_answer = Status::kOk;
  std::function<void()> on_accepted;
  std::vector<std::function<void()>> work;  // that the backend has given away, for the test to do
  bool takes_work = false;
  std::vector<std::unique_ptr<FakeLink>> links;
  std::vector<std::unique_ptr<FakeRegion>> regions;
  std::map<uint64_t, towline_part_result> results;
  std::vector<uint64_t> order;  // of completions
  bool keep_results = true;
  uint64_t completions = 0;
  uint32_t completed_twice = 0;
  uint32_t wakes = 0;
  std::vector<std::pair<int32_t, std::string>> logged;
  std::vector<Status> refusals;  // of strangers
  std::string failure;
  const VirtualClock* clock = nullptr;  // null: the system's, and what was skipped
  uint64_t skipped_ns = 0;

 private:
  struct Watch {
    towline_ready_fn ready;
    void* argument;
    uint32_t events;
  };
  struct Worker {
    Poller poller;
    std::map<int, Watch> watches;
  };

  static FakeAgent& self(void* context) { return *static_cast<FakeAgent*>(context); }
  static void* context_of(int fd) { return reinterpret_cast<void*>(static_cast<intptr_t>(fd)); }

  FakeLink& add_link(uint32_t worker) {
    FakeLink& link = *links.emplace_back(std::make_unique<FakeLink>());
    link.agent = this;
    link.worker = worker;
    return link;
  }

  uint32_t poll(uint32_t worker, uint64_t timeout_ns) {
    PollEvent events[32];
    const std::size_t count = workers_[worker]->poller.wait(events, timeout_ns);
    for (std::size_t i = 0; i < count; ++i) {
      auto& watches = workers_[worker]->watches;
      const auto found = watches.find(static_cast<int>(reinterpret_cast<intptr_t>(events[i].context)));
      if (found != watches.end()) found->second.ready(found->second.argument, events[i].events);
    }
    return static_cast<uint32_t>(count);
  }

  Status pin(uint64_t key, uint64_t address, uint64_t bytes, uint32_t access, void** pointer, void** pin) {
    if (key == 0 || key > regions.size() || regions[key - 1]->stale) return Status::kStale;
    FakeRegion& region = *regions[key - 1];
    const auto base = reinterpret_cast<uint64_t>(region.data);
    if (address < base || bytes > region.bytes || address - base > region.bytes - bytes)
      return Status::kOutOfRange;
    if ((region.access & access) != access) return Status::kPermissionDenied;
    ++region.pins;
    *pointer = reinterpret_cast<void*>(address);
    *pin = &region;
    return Status::kOk;
  }

  void make_table() {
    table_.struct_size = sizeof table_;
    table_.context = this;
    table_.now_ns = [](void* c) { return self(c).now_ns(); };
    table_.log = [](void* c, int32_t level, const char* text) { self(c).logged.emplace_back(level, text); };
    table_.fail = [](void* c, const char* text) { self(c).failure = text; };
    table_.config = [](void* c, const char* key, const char* fallback) {
      const auto found = self(c).settings_.find(key);
      return found == self(c).settings_.end() ? fallback : found->second.c_str();
    };
    table_.self = [](void* c) -> const towline_identity* { return &self(c).identity; };
    table_.worker_count = [](void* c) { return static_cast<uint32_t>(self(c).workers_.size()); };
    table_.watch = [](void* c, uint32_t worker, int fd, uint32_t events, towline_ready_fn ready,
                      void* argument) {
      Worker& w = *self(c).workers_[worker];
      if (!w.watches.emplace(fd, Watch{ready, argument, events}).second) std::abort();
      w.poller.add(fd, events, context_of(fd));
      return int32_t{TOWLINE_OK};
    };
    table_.rewatch = [](void* c, uint32_t worker, int fd, uint32_t events, towline_ready_fn ready,
                        void* argument) {
      Worker& w = *self(c).workers_[worker];
      w.watches.at(fd) = {ready, argument, events};
      w.poller.modify(fd, events, context_of(fd));
      return int32_t{TOWLINE_OK};
    };
    table_.unwatch = [](void* c, uint32_t worker, int fd) {
      Worker& w = *self(c).workers_[worker];
      if (w.watches.erase(fd) != 1) std::abort();
      w.poller.remove(fd);
    };
    table_.wake = [](void* c, uint32_t) { ++self(c).wakes; };
    table_.run = [](void* c, uint32_t, void (*function)(void*), void* argument) {
      if (!self(c).takes_work) return int32_t{TOWLINE_AGAIN};
      self(c).work.emplace_back([function, argument] { function(argument); });
      return int32_t{TOWLINE_OK};
    };
    table_.served = [](void*, void*, uint32_t, uint64_t) {};
    table_.heard = [](void*, void*) {};
    table_.granted = [](void*, void*, uint64_t) {};
    table_.complete = [](void* c, uint64_t cookie, const towline_part_result* result) {
      FakeAgent& agent = self(c);
      ++agent.completions;
      if (agent.keep_results) agent.order.push_back(cookie);
      if (agent.keep_results && !agent.results.emplace(cookie, *result).second) ++agent.completed_twice;
    };
    table_.message = [](void*, void* peer, const void* bytes, size_t count) {
      auto& link = *static_cast<FakeLink*>(peer);
      const std::string_view text(static_cast<const char*>(bytes), count);
      if (link.on_message) return link.on_message(text);
      link.messages.emplace_back(text);
    };
    table_.builtin = [](void*, const char*) { return builtin; };
    table_.accepted = [](void* c, uint32_t worker, towline_connection* connection,
                         const towline_identity* who, void** peer) {
      FakeAgent& agent = self(c);
      if (agent.accept_answer != Status::kOk) return static_cast<int32_t>(agent.accept_answer);
      FakeLink& link = agent.add_link(worker);
      link.connection = connection;
      link.accepted = true;
      link.peer_name = who->name;
      *peer = &link;
      if (agent.on_accepted) agent.on_accepted();
      return int32_t{TOWLINE_OK};
    };
    table_.connection_event = [](void*, void* peer, uint32_t event, int32_t event_status, const char* text) {
      auto& link = *static_cast<FakeLink*>(peer);
      ++(event == TOWLINE_CONNECTION_UP ? link.ups : link.downs);
      link.status = static_cast<Status>(event_status);
      link.text = text;
    };
    table_.pin = [](void* c, uint64_t key, uint64_t address, uint64_t bytes, uint32_t access, void** pointer,
                    void** pin) {
      return static_cast<int32_t>(self(c).pin(key, address, bytes, access, pointer, pin));
    };
    table_.refused = [](void* c, uint32_t, void* peer, int32_t why) {
      if (peer == nullptr) self(c).refusals.push_back(static_cast<Status>(why));
    };
    table_.unpin = [](void*, void* pin) { --static_cast<FakeRegion*>(pin)->pins; };
  }

  Settings settings_;
  const std::string name_;
  const towline_plugin_v1_t* plugin_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<towline_prepared*> prepared_;
  towline_host_v1_t table_ = {};
};

// Turns all agents until `done`; false when a minute passed first.
inline bool turn_until(const std::vector<FakeAgent*>& agents, const std::function<bool()>& done) {
  const Deadline deadline = Deadline::after(monotonic_now_ns(), 60 * kSecondNs);
  while (!done()) {
    uint32_t work = 0;
    for (FakeAgent* agent : agents) work += agent->turn();
    if (work == 0) std::this_thread::yield();
    if (deadline.passed(monotonic_now_ns())) return false;
  }
  return true;
}

}  // namespace towline::testing
