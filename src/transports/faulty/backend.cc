#include "transports/faulty/backend.h"

#include <algorithm>
#include <cstring>

#include "base/plugin_table.h"

namespace towline::faulty {
namespace {

Backend& backend_of(void* context) noexcept { return *static_cast<Backend*>(context); }

}  // namespace

Backend::Backend(const towline_plugin_v1_t& inner, const towline_host_v1_t& host,
                 const framing::FaultOptions& options)
    : plugin_(inner), host_(host), options_(options) {
  Random seeds(options.seed);
  const uint32_t count = std::max(host.worker_count(host.context), 1u);
  for (uint32_t i = 0; i < count; ++i) workers_.emplace_back(seeds.next());
  make_inner_host();
}

Backend::~Backend() {
  if (inner_ != nullptr) plugin_.close(inner_);
}

int32_t Backend::open() {
  memory_ = plugin_table<towline_memory_table_v1>(plugin_, "memory");
  connections_ = plugin_table<towline_connection_table_v1>(plugin_, "connection");
  data_ = plugin_table<towline_data_table_v1>(plugin_, "data");
  return plugin_.open(&inner_host_, &inner_);
}

// Services pass through, except those that report.
void Backend::make_inner_host() {
  towline_host_v1_t& t = inner_host_;
  t.struct_size = sizeof t;
  t.context = this;
  t.now_ns = [](void* c) { return backend_of(c).now_ns(); };
  t.log = [](void* c, int32_t level, const char* text) {
    const towline_host_v1_t& host = backend_of(c).host_;
    host.log(host.context, level, text);
  };
  t.fail = [](void* c, const char* text) { backend_of(c).fail(text); };
  t.config = [](void* c, const char* key, const char* fallback) {
    const towline_host_v1_t& host = backend_of(c).host_;
    return host.config(host.context, key, fallback);
  };
  t.self = [](void* c) { return backend_of(c).host_.self(backend_of(c).host_.context); };
  t.worker_count = [](void* c) { return backend_of(c).host_.worker_count(backend_of(c).host_.context); };
  t.watch = [](void* c, uint32_t worker, int fd, uint32_t events, towline_ready_fn ready, void* argument) {
    const towline_host_v1_t& host = backend_of(c).host_;
    return host.watch(host.context, worker, fd, events, ready, argument);
  };
  t.rewatch = [](void* c, uint32_t worker, int fd, uint32_t events, towline_ready_fn ready, void* argument) {
    const towline_host_v1_t& host = backend_of(c).host_;
    return host.rewatch(host.context, worker, fd, events, ready, argument);
  };
  t.unwatch = [](void* c, uint32_t worker, int fd) {
    backend_of(c).host_.unwatch(backend_of(c).host_.context, worker, fd);
  };
  t.wake = [](void* c, uint32_t worker) { backend_of(c).host_.wake(backend_of(c).host_.context, worker); };
  t.pin = [](void* c, uint64_t key, uint64_t address, uint64_t bytes, uint32_t access, void** pointer,
             void** pin) {
    const towline_host_v1_t& host = backend_of(c).host_;
    return host.pin(host.context, key, address, bytes, access, pointer, pin);
  };
  t.unpin = [](void* c, void* pin) { backend_of(c).host_.unpin(backend_of(c).host_.context, pin); };

  t.complete = [](void*, uint64_t cookie, const towline_part_result* result) {
    auto& part = *reinterpret_cast<Part*>(cookie);
    part.connection->on_complete(part, *result);
  };
  t.message = [](void*, void* peer, const void* data, size_t bytes) {
    static_cast<Connection*>(peer)->on_message(data, bytes);
  };
  t.served = [](void*, void* peer, uint32_t direction, uint64_t bytes) {
    static_cast<Connection*>(peer)->on_served(direction, bytes);
  };
  t.heard = [](void*, void* peer) { static_cast<Connection*>(peer)->on_heard(); };
  t.granted = [](void*, void* peer, uint64_t key) { static_cast<Connection*>(peer)->on_granted(key); };
  t.refused = [](void* c, uint32_t worker, void* peer, int32_t status) {
    const Backend& backend = backend_of(c);
    void* const core_peer = peer == nullptr ? nullptr : static_cast<Connection*>(peer)->core_peer();
    if (backend.host_.refused != nullptr)
      backend.host_.refused(backend.host_.context, worker, core_peer, status);
  };
  t.connection_event = [](void*, void* peer, uint32_t event, int32_t status, const char* text) {
    static_cast<Connection*>(peer)->on_event(event, status, text);
  };
  t.accepted = [](void* c, uint32_t worker, towline_connection* inner, const towline_identity* identity,
                  void** peer) { return backend_of(c).accepted(worker, inner, identity, peer); };
}

int32_t Backend::accepted(uint32_t worker, towline_connection* inner, const towline_identity* identity,
                          void** peer) {
  auto made = std::make_unique<Connection>(*this, worker, nullptr);
  made->set_inner(inner);
  workers_[worker].connections.push_back(made.get());
  void* core_peer = nullptr;
  const int32_t status = host_.accepted(host_.context, worker, made->handle(), identity, &core_peer);
  if (status < 0) return status;
  made->set_peer(core_peer);
  *peer = made.release();  // the core's until disconnect()
  return status;
}

int32_t Backend::connect(uint32_t worker, const towline_identity* identity, const void* address, size_t bytes,
                         uint64_t deadline_ns, void* peer, towline_connection** connection) {
  auto made = std::make_unique<Connection>(*this, worker, peer);
  workers_[worker].connections.push_back(made.get());
  const int32_t status = connections_.connect(inner_, worker, identity, address, bytes, deadline_ns,
                                              made.get(), made->inner_slot());
  if (status == TOWLINE_OK) *connection = made.release()->handle();
  return status;
}

void Backend::forget(const Connection& connection) noexcept {
  std::erase(workers_[connection.worker()].connections, &connection);
}

uint32_t Backend::progress(uint32_t worker, uint64_t now_ns) {
  uint32_t done = data_.progress(inner_, worker, now_ns);
  std::vector<Connection*>& connections = workers_[worker].connections;
  // A callback may end any connection: read the list again after each one.
  for (std::size_t i = 0; i < connections.size();) {
    Connection* const connection = connections[i];
    const bool told = connection->deliver_due(now_ns) || connection->cut_if_due();
    done += told ? 1 : 0;
    if (!told) ++i;
    if (done > 10'000) break;
  }
  return done;
}

// Sleeping would need a timer for what is held: awake is simpler, and these are tests.
uint32_t Backend::arm(uint32_t worker) {
  for (const Connection* connection : workers_[worker].connections) {
    if (connection->has_held()) return 1;
  }
  return data_.arm(inner_, worker);
}

void close_backend(towline_backend* backend) { delete Backend::from(backend); }

namespace {

constexpr towline_memory_table_v1 kMemory = {
    sizeof(towline_memory_table_v1),
    [](towline_backend* backend, const towline_region_args* args, towline_registration** registration,
       void* token, size_t* token_bytes) {
      return Backend::from(backend)->memory().add(Backend::from(backend)->inner(), args, registration, token,
                                                  token_bytes);
    },
    [](towline_backend* backend, towline_registration* registration) {
      Backend::from(backend)->memory().remove(Backend::from(backend)->inner(), registration);
    },
    [](towline_connection* connection, const towline_region_args* args, const void* token, size_t token_bytes,
       towline_import** import,
       char how[64]) { return Connection::from(connection)->import(args, token, token_bytes, import, how); },
    [](towline_connection* connection, towline_import* import) {
      Connection::from(connection)->unimport(import);
    },
    nullptr,
    nullptr,
};

constexpr towline_connection_table_v1 kConnection = {
    sizeof(towline_connection_table_v1),
    [](towline_backend* backend, void* address, size_t* bytes) {
      return Backend::from(backend)->connections().address(Backend::from(backend)->inner(), address, bytes);
    },
    [](towline_backend* backend, const towline_identity* peer, const void* address, size_t bytes) {
      return Backend::from(backend)->connections().probe(Backend::from(backend)->inner(), peer, address,
                                                         bytes);
    },
    [](towline_backend* backend, uint32_t worker, const towline_identity* identity, const void* address,
       size_t bytes, uint64_t deadline_ns, void* peer, towline_connection** connection) {
      return Backend::from(backend)->connect(worker, identity, address, bytes, deadline_ns, peer, connection);
    },
    [](towline_connection* connection) { Connection::from(connection)->disconnect(); },
    [](towline_connection* connection, char* json, size_t capacity) {
      return Connection::from(connection)->describe(json, capacity);
    },
    [](towline_connection* connection) { return Connection::from(connection)->connection_id(); },
    nullptr,
};

constexpr towline_data_table_v1 kData = {
    sizeof(towline_data_table_v1),
    [](towline_connection* connection, const towline_prepare_args* args, towline_prepared** prepared) {
      return Connection::from(connection)->prepare(args, prepared);
    },
    [](towline_prepared* prepared) { Connection::unprepare(prepared); },
    [](towline_prepared* prepared, const towline_submit_args* args) {
      return Connection::from(prepared->connection)->submit(prepared, args);
    },
    [](towline_connection* connection, const void* message, size_t bytes) {
      return Connection::from(connection)->send(message, bytes);
    },
    [](towline_connection* connection, uint64_t cookie) { Connection::from(connection)->cancel(cookie); },
    [](towline_backend* backend, uint32_t worker, uint64_t now_ns) {
      return Backend::from(backend)->progress(worker, now_ns);
    },
    [](towline_backend* backend, uint32_t worker) { return Backend::from(backend)->arm(worker); },
    [](towline_backend* backend, uint32_t worker) {
      Backend::from(backend)->data().disarm(Backend::from(backend)->inner(), worker);
    },
    nullptr,
    nullptr,
    nullptr,
    nullptr,
    nullptr,
    nullptr,
    nullptr,
    nullptr,
    nullptr,
};

}  // namespace

const void* find_table(const char* id, uint32_t version) noexcept {
  if (version != 1) return nullptr;
  if (std::strcmp(id, "memory") == 0) return &kMemory;
  if (std::strcmp(id, "connection") == 0) return &kConnection;
  return std::strcmp(id, "data") == 0 ? &kData : nullptr;
}

}  // namespace towline::faulty
