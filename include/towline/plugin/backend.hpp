// Maps C++ classes onto the plugin tables, so that a backend is two classes and one line.
//
//   class MyConnection { ... };
//   class MyBackend : public towline::plugin::BackendBase { public: using Connection = MyConnection; ... };
//   extern "C" const towline_plugin_v1_t* towline_plugin_v1(uint32_t number) {
//     static const towline_plugin_v1_t plugin = towline::plugin::describe<MyBackend>({...});
//     return number == 0 ? &plugin : nullptr;
//   }
//
// The classes must have the member functions that are called below, with the meaning that v1.h gives the
// table slot of the same name. They may throw only if the slot is not on the data path; an exception becomes
// a status and an error text.
#pragma once

#include <towline/plugin/sized.h>
#include <towline/plugin/v1.h>
#include <towline/towline.h>

#include <cstddef>
#include <cstring>
#include <exception>
#include <new>
#include <string>

namespace towline::plugin {

// An error with a status, for member functions off the data path.
class Failure : public std::exception {
 public:
  Failure(Status status, std::string text) : status_(status), text_(std::move(text)) {}
  [[nodiscard]] Status status() const noexcept { return status_; }
  [[nodiscard]] const char* what() const noexcept override { return text_.c_str(); }

 private:
  Status status_;
  std::string text_;
};

// The host services, with C++ manners. What an older host lacks is null in table(), and left out.
class Host {
 public:
  // Throws Failure when it is not a host of this major version.
  explicit Host(const towline_host_v1_t* table) {
    if (towline_take(&table_, sizeof table_, TOWLINE_HOST_V1_MINIMUM, table) == 0)
      throw Failure(Status::kUnsupported, "the host's table of services is smaller than any release's");
  }
  [[nodiscard]] uint64_t now_ns() const noexcept { return table_.now_ns(table_.context); }
  // Texts come as C strings too: a literal needs no memory, so handlers that may not throw can use these.
  void log(int32_t level, const char* text) const noexcept { table_.log(table_.context, level, text); }
  void log(int32_t level, const std::string& text) const noexcept { log(level, text.c_str()); }
  void fail(const char* text) const noexcept { table_.fail(table_.context, text); }
  void fail(const std::string& text) const noexcept { fail(text.c_str()); }
  // Records the reason and returns the status: return host.refuse(Status::kUnsupported, "...");
  int32_t refuse(Status status, const char* text) const noexcept {
    fail(text);
    return static_cast<int32_t>(status);
  }
  int32_t refuse(Status status, const std::string& text) const noexcept {
    return refuse(status, text.c_str());
  }
  [[nodiscard]] std::string config(const char* key, const char* fallback) const {
    return table_.config(table_.context, key, fallback);
  }
  [[nodiscard]] const towline_identity& self() const { return *table_.self(table_.context); }
  [[nodiscard]] uint32_t worker_count() const { return table_.worker_count(table_.context); }
  int32_t watch(uint32_t worker, int fd, uint32_t events, towline_ready_fn ready, void* argument) const {
    return table_.watch(table_.context, worker, fd, events, ready, argument);
  }
  int32_t rewatch(uint32_t worker, int fd, uint32_t events, towline_ready_fn ready, void* argument) const {
    return table_.rewatch(table_.context, worker, fd, events, ready, argument);
  }
  void unwatch(uint32_t worker, int fd) const { table_.unwatch(table_.context, worker, fd); }
  [[nodiscard]] bool urgent_waits(uint32_t worker) const noexcept {
    return table_.urgent_waits != nullptr && table_.urgent_waits(table_.context, worker) != 0;
  }
  void wake(uint32_t worker) const { table_.wake(table_.context, worker); }
  void complete(uint64_t cookie, const towline_part_result& result) const {
    table_.complete(table_.context, cookie, &result);
  }
  void message(void* peer, const void* data, size_t bytes) const {
    table_.message(table_.context, peer, data, bytes);
  }
  int32_t accepted(uint32_t worker, towline_connection* connection, const towline_identity& identity,
                   void** peer) const {
    return table_.accepted(table_.context, worker, connection, &identity, peer);
  }
  void connection_event(void* peer, uint32_t event, Status status, const char* text) const noexcept {
    table_.connection_event(table_.context, peer, event, static_cast<int32_t>(status), text);
  }
  int32_t pin(uint64_t key, uint64_t address, uint64_t bytes, uint32_t access, void** pointer,
              void** pin) const {
    return table_.pin(table_.context, key, address, bytes, access, pointer, pin);
  }
  // True if a peer may begin to reach this region of the agent. False once it is being deregistered; the
  // backend still keeps it until all peers that reach it have detached.
  [[nodiscard]] bool may_be_reached(const towline_region_ref& region) const {
    const uint32_t access = region.access & TOWLINE_ACCESS_READ ? TOWLINE_ACCESS_READ : TOWLINE_ACCESS_WRITE;
    void* pointer = nullptr;
    void* pin = nullptr;
    if (this->pin(region.key, region.address, 1, access, &pointer, &pin) != TOWLINE_OK) return false;
    unpin(pin);
    return true;
  }
  void unpin(void* pin) const { table_.unpin(table_.context, pin); }
  void served(void* peer, uint32_t direction, uint64_t bytes) const {
    table_.served(table_.context, peer, direction, bytes);
  }
  void heard(void* peer) const { table_.heard(table_.context, peer); }
  void refused(uint32_t worker, void* peer, Status status) const {
    table_.refused(table_.context, worker, peer, static_cast<int32_t>(status));
  }
  void granted(void* peer, uint64_t key) const { table_.granted(table_.context, peer, key); }
  int32_t landing(const towline_landing_table_v1** table, towline_backend** backend) const {
    if (table_.landing == nullptr)
      return refuse(Status::kNotFound, "this version of Towline has no landing service");
    return table_.landing(table_.context, table, backend);
  }
  int32_t pin_landing(uint64_t key, uint64_t address, uint64_t bytes, uint32_t access, uint64_t* device,
                      void** pin) const {
    if (table_.pin_landing == nullptr) return static_cast<int32_t>(Status::kPermissionDenied);
    return table_.pin_landing(table_.context, key, address, bytes, access, device, pin);
  }
  // kUnsupported: an older Towline, which has no threads for it.
  [[nodiscard]] Status run(uint32_t worker, void (*work)(void* argument), void* argument) const {
    if (table_.run == nullptr) return Status::kUnsupported;
    return static_cast<Status>(table_.run(table_.context, worker, work, argument));
  }
  // Null: none of that name, or an older Towline.
  [[nodiscard]] const towline_plugin_v1_t* builtin(const char* name) const {
    return table_.builtin == nullptr ? nullptr : table_.builtin(table_.context, name);
  }
  [[nodiscard]] const towline_host_v1_t* table() const { return &table_; }

 private:
  towline_host_v1_t table_;
};

namespace detail {

template <class Handle>
struct HandlerOf;
template <class T>
struct HandlerOf<void (T::*)(uint32_t)> {
  using Object = T;
};

}  // namespace detail

// The towline_ready_fn that calls the member function Handle(epoll_events) of the watched object. An
// exception is passed to object.broken(const char* why) noexcept, which ends that one connection: peers,
// servers and limits start handlers, and none of them may end the process.
template <auto Handle>
void ready(void* argument, uint32_t epoll_events) noexcept {
  auto* const object = static_cast<typename detail::HandlerOf<decltype(Handle)>::Object*>(argument);
  const auto handle = [object, epoll_events]() noexcept {
    try {
      (object->*Handle)(epoll_events);
    } catch (const std::exception& error) {
      object->broken(error.what());
    }
  };
  // An object that its handler may delete has a scope(), which keeps it until the handler returns.
  if constexpr (requires { object->scope(); }) {
    const auto scope = object->scope();
    handle();
  } else {
    handle();
  }
}

// Bits of operations and kinds, for moves.
inline constexpr uint32_t kReadAndWrite = 1u << TOWLINE_READ | 1u << TOWLINE_WRITE;
template <class... Kinds>
constexpr uint32_t kinds(Kinds... kind) noexcept {
  return ((1u << kind) | ...);
}
constexpr towline_move_v1 move(uint32_t ops, uint32_t local, uint32_t remote, uint32_t where) noexcept {
  return {sizeof(towline_move_v1), ops, local, remote, where};
}

// A backend's moves: an array that lives as long as the library.
struct Moves {
  template <size_t kCount>
  // NOLINTNEXTLINE(google-explicit-constructor): it stands for the array
  constexpr Moves(const towline_move_v1 (&moves)[kCount]) noexcept : first(moves), count(kCount) {}
  const towline_move_v1* first;
  size_t count;
};

// The base class of a backend's prepared plan.
struct PreparedBase : towline_prepared {
  PreparedBase() noexcept : towline_prepared(sized<towline_prepared>()) {}
};

// The description of a backend for users and the router.
struct Description {
  const char* name;
  const char* version;
  const char* text;
  uint32_t traits;
  Moves moves;
  uint32_t cost;
  uint64_t worst_fence_ns;
  const char* fence_reason;
};

namespace detail {

template <class Call>
int32_t guarded(const Host& host, Call&& call) noexcept {
  try {
    return call();
  } catch (const Failure& failure) {
    return host.refuse(failure.status(), failure.what());
  } catch (const std::bad_alloc&) {
    return static_cast<int32_t>(Status::kOutOfMemory);
  } catch (const std::exception& error) {
    return host.refuse(Status::kInternal, error.what());
  }
}

template <class B>
struct Tables {
  using C = typename B::Connection;
  static B* backend(towline_backend* handle) { return reinterpret_cast<B*>(handle); }
  static C* connection(towline_connection* handle) { return reinterpret_cast<C*>(handle); }

  static int32_t open(const towline_host_v1_t* table, towline_backend** out) noexcept {
    try {
      Host host{table};
      return guarded(host, [&] {
        *out = reinterpret_cast<towline_backend*>(new B(host));
        return 0;
      });
    } catch (const Failure& failure) {  // the host gave no services
      return static_cast<int32_t>(failure.status());
    }
  }
  static void close(towline_backend* b) noexcept { delete backend(b); }

  // memory
  static int32_t add(towline_backend* b, const towline_region_args* args, towline_registration** out,
                     void* token, size_t* token_bytes) noexcept {
    return guarded(backend(b)->host(), [&] { return backend(b)->add(*args, out, token, token_bytes); });
  }
  static void remove(towline_backend* b, towline_registration* registration) noexcept {
    backend(b)->remove(registration);
  }
  static int32_t import(towline_connection* c, const towline_region_args* args, const void* token,
                        size_t token_bytes, towline_import** out, char how[64]) noexcept {
    return guarded(connection(c)->host(),
                   [&] { return connection(c)->import(*args, token, token_bytes, out, how); });
  }
  static void unimport(towline_connection* c, towline_import* import) noexcept {
    connection(c)->unimport(import);
  }

  // connection
  static int32_t address(towline_backend* b, void* address, size_t* bytes) noexcept {
    return guarded(backend(b)->host(), [&] { return backend(b)->address(address, bytes); });
  }
  static int32_t probe(towline_backend* b, const towline_identity* peer, const void* address,
                       size_t bytes) noexcept {
    return guarded(backend(b)->host(), [&] { return backend(b)->probe(*peer, address, bytes); });
  }
  static int32_t connect(towline_backend* b, uint32_t worker, const towline_identity* identity,
                         const void* address, size_t bytes, uint64_t deadline_ns, void* peer,
                         towline_connection** out) noexcept {
    return guarded(backend(b)->host(), [&] {
      return backend(b)->connect(worker, *identity, address, bytes, deadline_ns, peer,
                                 reinterpret_cast<C**>(out));
    });
  }
  static void disconnect(towline_connection* c) noexcept { connection(c)->disconnect(); }  // deletes itself
  static int32_t describe(towline_connection* c, char* json, size_t capacity) noexcept {
    return guarded(connection(c)->host(), [&] {
      const std::string text = connection(c)->describe();
      if (capacity != 0) {
        const size_t n = text.size() < capacity - 1 ? text.size() : capacity - 1;
        std::memcpy(json, text.data(), n);
        json[n] = 0;
      }
      return 0;
    });
  }

  // data
  static int32_t prepare(towline_connection* c, const towline_prepare_args* args,
                         towline_prepared** out) noexcept {
    return guarded(connection(c)->host(), [&] { return connection(c)->prepare(*args, out); });
  }
  static void unprepare(towline_prepared* prepared) noexcept { C::unprepare(prepared); }
  static int32_t submit(towline_prepared* prepared, const towline_submit_args* args) noexcept {
    return C::submit(prepared, *args);
  }
  static int32_t send(towline_connection* c, const void* message, size_t bytes) noexcept {
    return connection(c)->send(message, bytes);
  }
  static void cancel(towline_connection* c, uint64_t cookie) noexcept { connection(c)->cancel(cookie); }
  static uint32_t progress(towline_backend* b, uint32_t worker, uint64_t now_ns) noexcept {
    return backend(b)->progress(worker, now_ns);
  }
  static uint32_t arm(towline_backend* b, uint32_t worker) noexcept {
    return backend(b)->arm(worker) ? 1 : 0;
  }
  static void disarm(towline_backend* b, uint32_t worker) noexcept { backend(b)->disarm(worker); }

  // optional slots: those that the classes have no member for are null
  static constexpr auto reach_slot() noexcept -> decltype(towline_memory_table_v1::reach) {
    if constexpr (requires { &C::reach; }) {
      return [](towline_connection* c, towline_import* import, uint64_t* address) noexcept {
        return connection(c)->reach(import, address);
      };
    }
    return nullptr;
  }
  static constexpr auto landing_slot() noexcept -> const towline_landing_table_v1* {
    if constexpr (requires { B::kLanding; }) return B::kLanding;
    return nullptr;
  }
  static constexpr auto id_slot() noexcept -> decltype(towline_connection_table_v1::id) {
    if constexpr (requires { &C::connection_id; })
      return [](towline_connection* c) noexcept { return connection(c)->connection_id(); };
    return nullptr;
  }
  static constexpr auto settle_slot() noexcept -> decltype(towline_connection_table_v1::settle) {
    if constexpr (requires { &C::settle; })
      return [](towline_connection* c) noexcept { return connection(c)->settle(); };
    return nullptr;
  }
  static constexpr towline_data_table_v1 data_table() noexcept {
    towline_data_table_v1 table = {.struct_size = sizeof(towline_data_table_v1),
                                   .prepare = prepare,
                                   .unprepare = unprepare,
                                   .submit = submit,
                                   .send = send,
                                   .cancel = cancel,
                                   .progress = progress,
                                   .arm = arm,
                                   .disarm = disarm,
                                   .settle = nullptr,
                                   .stream_capture = nullptr,
                                   .stream_submit = nullptr,
                                   .stream_wait = nullptr,
                                   .capture_runs = nullptr,
                                   .capture_forget = nullptr,
                                   .repick = nullptr,
                                   .view = nullptr,
                                   .view_forget = nullptr};
    if constexpr (requires { &C::repick; }) table.repick = C::repick;
    if constexpr (requires { &C::settle_prepared; }) table.settle = C::settle_prepared;
    if constexpr (requires { &C::submit_on; }) {
      table.stream_capture = C::capture_on;
      table.stream_submit = [](towline_prepared* prepared, const towline_submit_args* args,
                               void* stream) noexcept { return C::submit_on(prepared, *args, stream); };
      table.stream_wait = C::wait_on;
      table.capture_runs = C::runs_of;
      table.capture_forget = C::forget;
    }
    if constexpr (requires { &C::view_prepared; }) {
      table.view = C::view_prepared;
      table.view_forget = C::forget_view;
    }
    return table;
  }
  static int32_t describe_backend(towline_backend* b, char* json, size_t capacity) noexcept {
    return guarded(backend(b)->host(), [&] {
      const std::string text = backend(b)->describe();
      if (text.size() >= capacity) return static_cast<int32_t>(Status::kLimitExceeded);
      std::memcpy(json, text.c_str(), text.size() + 1);
      return 0;
    });
  }

  // storage
  static int32_t storage_open(towline_backend* b, const towline_storage_args* args, towline_storage** out,
                              towline_storage_attributes* attributes) noexcept {
    return guarded(backend(b)->host(), [&] { return backend(b)->storage_open(*args, out, *attributes); });
  }
  static int32_t storage_query(towline_backend* b, const char* uri,
                               towline_storage_attributes* attributes) noexcept {
    return guarded(backend(b)->host(), [&] { return backend(b)->storage_query(uri, *attributes); });
  }
  static int32_t storage_commit(towline_backend* b, towline_storage* storage) noexcept {
    return guarded(backend(b)->host(), [&] { return backend(b)->storage_commit(storage); });
  }
  static void storage_close(towline_backend* b, towline_storage* storage) noexcept {
    backend(b)->storage_close(storage);
  }

  static int32_t storage_list(towline_backend* b, const char* prefix, towline_storage_found_fn found,
                              void* argument) noexcept {
    if constexpr (requires { &B::storage_list; }) {
      return guarded(backend(b)->host(), [&] { return backend(b)->storage_list(prefix, found, argument); });
    }
    return TOWLINE_UNSUPPORTED;
  }

  static const void* query(const char* id, uint32_t version) noexcept {
    static constexpr towline_memory_table_v1 kMemory = {
        sizeof(towline_memory_table_v1), add, remove, import, unimport, reach_slot(), landing_slot()};
    static constexpr towline_connection_table_v1 kConnection = {sizeof(towline_connection_table_v1),
                                                                address,
                                                                probe,
                                                                connect,
                                                                disconnect,
                                                                describe,
                                                                id_slot(),
                                                                settle_slot()};
    static constexpr towline_data_table_v1 kData = data_table();
    if (version != 1) return nullptr;
    if (std::strcmp(id, "memory") == 0) return &kMemory;
    if (std::strcmp(id, "connection") == 0) return &kConnection;
    if (std::strcmp(id, "data") == 0) return &kData;
    if constexpr (requires { B::kStorageSchemes; }) {
      static constexpr towline_storage_table_v1 kStorage = {
          sizeof(towline_storage_table_v1), B::kStorageSchemes, storage_open, storage_query, storage_commit,
          storage_close, requires {&B::storage_list;
    }
    ? storage_list : nullptr
  };
  if (std::strcmp(id, "storage") == 0) return &kStorage;
} return nullptr;
}  // namespace detail
};  // namespace towline::plugin

}  // namespace detail

// A backend class derives from this: it keeps the host services.
class BackendBase {
 public:
  explicit BackendBase(const Host& host) : host_(host) {}
  BackendBase(const BackendBase&) = delete;
  BackendBase& operator=(const BackendBase&) = delete;
  [[nodiscard]] const Host& host() const noexcept { return host_; }

 private:
  Host host_;
};

// The plugin struct of backend class B. `usable` writes a reason when it answers an error.
template <class B>
towline_plugin_v1_t describe(const Description& description,
                             int32_t (*usable)(char* reason, size_t capacity)) {
  using T = detail::Tables<B>;
  auto plugin = sized<towline_plugin_v1_t>();
  plugin.major = TOWLINE_PLUGIN_MAJOR;
  plugin.traits = description.traits;
  plugin.name = description.name;
  plugin.version = description.version;
  plugin.description = description.text;
  plugin.moves = description.moves.first;
  plugin.move_count = description.moves.count;
  plugin.cost = description.cost;
  plugin.worst_fence_ns = description.worst_fence_ns;
  plugin.fence_reason = description.fence_reason;
  plugin.usable = usable;
  plugin.open = T::open;
  plugin.close = T::close;
  plugin.query_table = T::query;
  if constexpr (requires(B & backend) { backend.describe(); }) plugin.describe = T::describe_backend;
  return plugin;
}

}  // namespace towline::plugin
