#include "transports/nixl/connection.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <new>
#include <utility>

#include "base/error.h"
#include "transports/nixl/backend.h"

namespace towline::nixl_net {

namespace {

constexpr std::size_t kMostUnsent = 4096;  // a peer that asks and does not read

towline_connection* handle(Connection* connection) {
  return reinterpret_cast<towline_connection*>(connection);
}

std::span<const uint8_t> bytes_of(const void* data, size_t bytes) noexcept {
  return {static_cast<const uint8_t*>(data), bytes};
}

}  // namespace

Connection::Connection(Backend& backend, uint32_t worker, const towline_identity& identity, void* peer)
    : backend_(backend),
      worker_(worker),
      peer_(peer),
      incarnation_{identity.incarnation[0], identity.incarnation[1]} {}

const plugin::Host& Connection::host() const noexcept { return backend_.host(); }

// ---- coming and going

int32_t Connection::connect(const towline_identity& identity, const std::vector<uint8_t>& carrier_address,
                            uint64_t deadline_ns) {
  return backend_.carrier().connect(worker_, identity, carrier_address.data(), carrier_address.size(),
                                    deadline_ns, *this, &carried_);
}

int32_t Connection::accept(towline_connection* carried, const towline_identity& identity) {
  carried_ = carried;
  const int32_t status = host().accepted(worker_, handle(this), identity, &peer_);
  up_ = status >= 0;
  if (up_) say(encode(Hello{worker_, backend_.engine(worker_).info()}));
  return status;
}

void Connection::on_event(uint32_t event, int32_t status, const char* text) {
  const Backend::Scope scope{backend_, worker_};
  if (disconnected_) return;
  if (event == TOWLINE_CONNECTION_UP) {
    up_ = true;
    say(encode(Hello{worker_, backend_.engine(worker_).info()}));
    return host().connection_event(peer_, event, static_cast<Status>(status), text);
  }
  go_down(static_cast<Status>(status), text);
}

void Connection::go_down(Status status, const char* why) noexcept {
  if (down_) return;
  down_ = true;
  up_ = false;
  leave_engine(Status::kPeerLost);
  if (!disconnected_) host().connection_event(peer_, TOWLINE_CONNECTION_DOWN, status, why);
}

// The engine is asked for nothing more on behalf of this connection.
void Connection::leave_engine(Status status) noexcept {
  WorkerEngine& engine = backend_.engine(worker_);
  engine.drop_jobs(*this, status);
  for (Prepared* const prepared : prepared_) {
    engine.release_idle(*prepared);
    prepared->of = nullptr;
  }
  prepared_.clear();
  for (Import* const import : imports_)
    if (std::exchange(import->loaded, false)) engine.unload_memory(import->metadata);
  if (!engine_name_.empty()) engine.remove_peer(engine_name_);
  engine_name_.clear();
}

void Connection::engine_lost() noexcept {
  const Backend::Scope scope{backend_, worker_};
  if (!disconnected_) go_down(Status::kPeerLost, "the plugin's engine has lost the peer");
}

void Connection::disconnect() noexcept {
  if (disconnected_) return;
  disconnected_ = true;
  const Backend::Scope scope{backend_, worker_};
  up_ = false;
  leave_engine(down_ ? Status::kPeerLost : Status::kClosed);
  if (carried_ != nullptr) backend_.carrier().disconnect(carried_);
  carried_ = nullptr;
  unsent_.clear();
  backend_.release(this);
}

uint64_t Connection::connection_id() const noexcept {
  return carried_ == nullptr ? 0 : backend_.carrier().connection_id(carried_);
}

std::string Connection::describe() const {
  return fmt::format(R"({{"transport": "{}", "plugin": "{}", "engine": "{}", "imports": {}, "carrier": {}}})",
                     kName, backend_.type(), engine_name_.empty() ? "none" : engine_name_, imports_.size(),
                     backend_.carrier().describe(carried_));
}

// ---- messages

void Connection::on_message(const void* data, size_t bytes) {
  const Backend::Scope scope{backend_, worker_};
  if (disconnected_) return;
  const auto message = bytes_of(data, bytes);
  const auto kind = kind_of(message);
  if (!kind) return host().message(peer_, data, bytes);
  host().heard(peer_);
  try {
    take(*kind, message);
  } catch (const core::Error& error) {
    go_down(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    go_down(Status::kOutOfMemory, "no memory for a message of the peer");
  }
}

void Connection::take(MessageKind kind, std::span<const uint8_t> message) {
  switch (kind) {
    case MessageKind::kHello:
      if (const auto hello = decode_hello(message)) return on_hello(*hello);
      break;
    case MessageKind::kAsk:
      if (const auto ask = decode_ask(message)) return on_ask(*ask);
      break;
    case MessageKind::kAnswer:
      if (auto answer = decode_answer(message)) return on_answer(std::move(*answer));
      break;
  }
  fail(Status::kProtocol, "the peer sent {} bytes that are no message of {}", message.size(), kName);
}

void Connection::on_hello(const Hello& hello) {
  if (std::exchange(greeted_, true)) return;
  std::string name = engine_name_of(incarnation_, hello.worker);
  try {
    backend_.engine(worker_).add_peer(name, hello.info);
    engine_name_ = std::move(name);
  } catch (const plugin::Failure& failure) {
    no_engine_ = failure.what();
  }
}

// The owner knows of each peer that reaches a region, before the peer does.
void Connection::on_ask(const Ask& ask) {
  if (unsent_.size() >= kMostUnsent) fail(Status::kProtocol, "the peer asks and reads no answers");
  const Answer answer = backend_.answer(ask.key, worker_);
  if (answer.status == Status::kOk) host().granted(peer_, ask.key);
  say(encode(answer));
}

void Connection::on_answer(Answer answer) {
  for (Import* const import : imports_) {
    if (import->answered || import->region.key != answer.key) continue;
    import->answered = true;
    import->status = answer.status;
    import->reason = answer.reason;
    import->public_data = answer.public_data;
  }
}

void Connection::say(std::vector<uint8_t> message) {
  unsent_.push_back(std::move(message));
  if (!flush()) backend_.add_eager(*this);
}

bool Connection::flush() noexcept {
  while (!unsent_.empty() && carried_ != nullptr) {
    const std::vector<uint8_t>& message = unsent_.front();
    if (backend_.carrier().send(carried_, message.data(), message.size()) == TOWLINE_AGAIN) return false;
    unsent_.pop_front();  // what fails is lost with the connection
  }
  return true;
}

int32_t Connection::send(const void* message, size_t bytes) noexcept {
  if (carried_ == nullptr || down_) return static_cast<int32_t>(Status::kPeerLost);
  if (kind_of(bytes_of(message, bytes))) return static_cast<int32_t>(Status::kInvalidArgument);
  return backend_.carrier().send(carried_, message, bytes);
}

// ---- regions

int32_t Connection::refuse(Status status, const std::string& text) const {
  return host().refuse(status, text.starts_with(kName) ? text : std::string(kName) + ": " + text);
}

int32_t Connection::import(const towline_region_args& args, const void*, size_t, towline_import** out,
                           char how[64]) {
  if (!up_) return refuse(Status::kPeerLost, "the connection is down");
  if (args.region.kind != TOWLINE_MEMORY_DRAM && args.region.kind != TOWLINE_MEMORY_VRAM)
    return refuse(Status::kUnsupported, "only dram and vram are moved");
  if ((args.region.flags & TOWLINE_REGION_GUARDED) != 0)
    return refuse(Status::kPermissionDenied,
                  "the region is guarded, and an engine asks its owner for no access");
  if (!no_engine_.empty()) return refuse(Status::kUnreachable, no_engine_);
  auto* import = reinterpret_cast<Import*>(*out);
  if (import == nullptr) {
    auto made = std::make_unique<Import>();
    made->region = args.region;
    imports_.push_back(made.get());
    import = made.release();
    *out = reinterpret_cast<towline_import*>(import);
    say(encode(Ask{args.region.key}));
  }
  if (!import->answered || engine_name_.empty()) return TOWLINE_AGAIN;
  Status status = import->status;
  std::string reason = "the owner: " + import->reason;
  if (status == Status::kOk && !import->loaded) try {
      import->metadata =
          backend_.engine(worker_).load_memory(engine_name_, import->region, import->public_data);
      import->loaded = true;
    } catch (const plugin::Failure& failure) {
      status = failure.status();
      reason = failure.what();
    }
  if (status != Status::kOk) {
    unimport(*out);
    *out = nullptr;
    return refuse(status, reason);
  }
  std::snprintf(how, 64, "%s", backend_.type().c_str());
  return TOWLINE_OK;
}

void Connection::unimport(towline_import* handle) noexcept {
  auto* const import = reinterpret_cast<Import*>(handle);
  std::erase(imports_, import);
  if (import->loaded) backend_.engine(worker_).unload_memory(import->metadata);
  delete import;
}

// ---- parts

int32_t Connection::prepare(const towline_prepare_args& args, towline_prepared** out) {
  if (!up_) return refuse(Status::kPeerLost, "the connection is down");
  auto prepared = std::make_unique<Prepared>();
  prepared->connection = handle(this);
  prepared->plan = args.plan;
  prepared->of = this;
  prepared->operation = args.op == TOWLINE_READ ? NIXL_READ : NIXL_WRITE;
  const towline_list& local = *args.plan->local;
  const towline_list& remote = *args.plan->remote;
  for (uint64_t i = 0; i < local.region_count; ++i) {
    if (args.local[i] == nullptr)
      return refuse(Status::kUnsupported,
                    "a region of this agent was not registered with it when it was made");
    const auto* region = reinterpret_cast<const Registered*>(args.local[i]);
    prepared->local.push_back(region->memory[worker_].metadata);
    prepared->local_devices.push_back(device_of(local.regions[i]));
    prepared->local_kind = kind_of(local.regions[i]);
    if (kind_of(local.regions[0]) != prepared->local_kind)
      return refuse(Status::kUnsupported, "a request of an engine has one kind of memory on each side");
  }
  for (uint64_t i = 0; i < remote.region_count; ++i) {
    const auto* import = reinterpret_cast<const Import*>(args.remote[i]);
    prepared->remote.push_back(import->metadata);
    prepared->remote_devices.push_back(device_of(remote.regions[i]));
    prepared->remote_kind = kind_of(remote.regions[i]);
    if (kind_of(remote.regions[0]) != prepared->remote_kind)
      return refuse(Status::kUnsupported, "a request of an engine has one kind of memory on each side");
  }
  prepared_.push_back(prepared.get());
  *out = prepared.release();
  return TOWLINE_OK;
}

void Connection::unprepare(towline_prepared* handle) noexcept {
  auto* const prepared = static_cast<Prepared*>(handle);
  if (Connection* const of = prepared->of; of != nullptr) {
    of->backend_.engine(of->worker_).release_idle(*prepared);
    std::erase(of->prepared_, prepared);
  }
  delete prepared;
}

int32_t Connection::submit(towline_prepared* handle, const towline_submit_args& args) noexcept {
  auto& prepared = *static_cast<Prepared*>(handle);
  Connection* const of = prepared.of;
  if (of == nullptr || !of->up_ || of->engine_name_.empty()) return static_cast<int32_t>(Status::kPeerLost);
  const Status status = of->backend_.engine(of->worker_).start(*of, prepared, args);
  if (status == Status::kInProgress) of->backend_.wake_if_asleep(of->worker_);
  return static_cast<int32_t>(status);
}

void Connection::cancel(uint64_t cookie) noexcept {
  backend_.engine(worker_).cancel(*this, cookie);
  backend_.wake_if_asleep(worker_);
}

}  // namespace towline::nixl_net
