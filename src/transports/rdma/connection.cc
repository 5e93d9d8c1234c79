#include "transports/rdma/connection.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <new>

#include "base/error.h"
#include "base/short_text.h"
#include "transports/rdma/backend.h"

namespace towline::rdma {

namespace {

constexpr std::size_t kMostUnsent = 4096;  // a peer that asks and does not read
constexpr uint64_t kAskToPollEveryNs = 5 * kMillisecondNs;

towline_connection* handle(Connection* connection) {
  return reinterpret_cast<towline_connection*>(connection);
}

std::span<const uint8_t> bytes_of(const void* data, size_t bytes) noexcept {
  return {static_cast<const uint8_t*>(data), bytes};
}

}  // namespace

Connection::Connection(Backend& backend, uint32_t worker, const towline_identity& identity, void* peer)
    : backend_(backend), worker_(worker), peer_(peer), kinds_(backend.kinds_for(identity)) {}

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
  if (up_) say_hello();
  return status;
}

void Connection::say_hello() {
  unsent_.push_front(encode_hello(backend_.engine(worker_).address()));
  if (!flush()) backend_.add_eager(*this);
}

void Connection::on_event(uint32_t event, int32_t status, const char* text) {
  const Backend::Scope scope{backend_, worker_};
  if (disconnected_) return;
  if (event == TOWLINE_CONNECTION_UP) {
    up_ = true;
    say_hello();
    return host().connection_event(peer_, event, static_cast<Status>(status), text);
  }
  go_down(static_cast<Status>(status), text);
}

void Connection::go_down(Status status, const char* why) noexcept {
  if (down_) return;
  down_ = true;
  up_ = false;
  leave_engine(true, why);
  if (!disconnected_) host().connection_event(peer_, TOWLINE_CONNECTION_DOWN, status, why);
}

// Nothing of it is under way from here on, on this side.
void Connection::leave_engine(bool lost, const char* why) noexcept {
  WorkerEngine& engine = backend_.engine(worker_);
  if (!engine_peer_.is_none()) engine.remove_peer(engine_peer_, lost, why);
  engine_peer_ = {};
  engine.drop_jobs(*this);
}

void Connection::engine_lost(const std::string& why) noexcept {
  const Backend::Scope scope{backend_, worker_};
  go_down(Status::kPeerLost, ShortText("the rails' engine: {}", why));
}

void Connection::disconnect() noexcept {
  if (disconnected_) return;
  disconnected_ = true;
  const Backend::Scope scope{backend_, worker_};
  leave_engine(!up_, "the connection is closed");
  up_ = false;
  if (carried_ != nullptr) backend_.carrier().disconnect(carried_);
  carried_ = nullptr;
  unsent_.clear();
  backend_.release(this);
}

uint64_t Connection::connection_id() const noexcept {
  return carried_ == nullptr ? 0 : backend_.carrier().connection_id(carried_);
}

std::string Connection::describe() const {
  return fmt::format(R"({{"transport": "{}", "peer_rails": "{}", "imports": {}, "carrier": {}}})",
                     backend_.name(), no_rail_.empty() ? their_rails_ : "none", imports_.size(),
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
      return on_hello(message);
    case MessageKind::kAsk:
      if (const auto ask = decode_ask(message)) return on_ask(*ask);
      break;
    case MessageKind::kAnswer:
      if (const auto answer = decode_answer(message)) return on_answer(*answer);
      break;
    case MessageKind::kPoll:
      return backend_.poll_for_a_while(worker_);
    case MessageKind::kControl:
      if (!engine_peer_.is_none()) backend_.engine(worker_).on_control(engine_peer_, control_in(message));
      return;
  }
  fail(Status::kProtocol, "the peer sent {} bytes that are no message of rdma", message.size());
}

void Connection::on_hello(std::span<const uint8_t> message) {
  auto address = decode_hello(message);
  if (!address) fail(Status::kProtocol, "the peer's hello names no engine");
  if (!engine_peer_.is_none() || !no_rail_.empty()) return;
  for (fabric::RailAddress& rail : address->rails) {
    their_rails_ += (their_rails_.empty() ? "" : ", ") + printable(rail.kind);
    if (std::find(kinds_.begin(), kinds_.end(), rail.kind) == kinds_.end()) rail.kind = "not to be used";
  }
  try {
    engine_peer_ = backend_.engine(worker_).add_peer(*address, *this);
  } catch (const core::Error& error) {
    no_rail_ = error.message();
  }
}

// The owner knows of each peer that reaches a region, before the peer does.
void Connection::on_ask(const Ask& ask) {
  if (unsent_.size() + asks_.size() >= kMostUnsent)
    fail(Status::kProtocol, "the peer asks and reads no answers");
  if (!answer(ask.key)) asks_.push_back(ask.key);
}

// False: the region is being registered.
bool Connection::answer(uint64_t key) {
  const std::optional<Answer> answer = backend_.answer(key, worker_);
  if (!answer) return false;
  if (answer->status == Status::kOk) host().granted(peer_, key);
  say(encode(*answer));
  return true;
}

uint32_t Connection::answer_asks() noexcept {
  if (!up_) return 0;
  try {
    return static_cast<uint32_t>(std::erase_if(asks_, [this](uint64_t key) { return answer(key); }));
  } catch (const std::bad_alloc&) {
    go_down(Status::kOutOfMemory, "no memory for an answer to the peer");
    return 1;
  }
}

void Connection::on_answer(const Answer& answer) {
  for (Import* import : imports_) {
    if (import->answered || import->region.key != answer.key) continue;
    import->answered = true;
    import->status = answer.status;
    import->reason = answer.reason;
    import->memory = answer.memory;
  }
}

void Connection::say(std::vector<uint8_t> message) {
  unsent_.push_back(std::move(message));
  if (!flush()) backend_.add_eager(*this);
}

bool Connection::flush() noexcept {
  while (!unsent_.empty() && carried_ != nullptr) {
    const std::vector<uint8_t>& message = unsent_.front();
    const int32_t sent = backend_.carrier().send(carried_, message.data(), message.size());
    if (sent == TOWLINE_AGAIN) return false;
    unsent_.pop_front();  // what fails is lost with the connection
    hello_sent_ = true;
  }
  return true;
}

// May be lost: the engine repeats what matters.
void Connection::send_control(std::span<const uint8_t> message) noexcept {
  if (carried_ == nullptr || !hello_sent_) return;
  try {
    const std::vector<uint8_t> packet = encode_control(message);
    (void)backend_.carrier().send(carried_, packet.data(), packet.size());
  } catch (const std::bad_alloc&) {
    return;
  }
}

uint32_t Connection::ask_to_poll(uint64_t now_ns) noexcept {
  if (parts_ == 0 || !up_ || !hello_sent_ || now_ns < asked_to_poll_ns_ + kAskToPollEveryNs) return 0;
  asked_to_poll_ns_ = now_ns;
  try {
    const std::vector<uint8_t> packet = encode_poll();
    (void)backend_.carrier().send(carried_, packet.data(), packet.size());
  } catch (const std::bad_alloc&) {
    return 0;
  }
  return 1;
}

int32_t Connection::send(const void* message, size_t bytes) noexcept {
  if (carried_ == nullptr || down_) return static_cast<int32_t>(Status::kPeerLost);
  if (kind_of(bytes_of(message, bytes))) return static_cast<int32_t>(Status::kInvalidArgument);
  return backend_.carrier().send(carried_, message, bytes);
}

// ---- regions

int32_t Connection::refuse(Status status, const std::string& text) const {
  return host().refuse(status, std::string(backend_.name()) + ": " + text);
}

int32_t Connection::import(const towline_region_args& args, const void*, size_t, towline_import** out,
                           char how[64]) {
  if (!up_) return refuse(Status::kPeerLost, "the connection is down");
  if (args.region.kind != TOWLINE_MEMORY_DRAM && args.region.kind != TOWLINE_MEMORY_VRAM)
    return refuse(Status::kUnsupported, "only dram and vram are moved");
  if ((args.region.flags & TOWLINE_REGION_GUARDED) != 0)
    return refuse(Status::kPermissionDenied, "the region is guarded, and a NIC asks its owner for no access");
  if (!no_rail_.empty()) return refuse(Status::kUnreachable, no_rail_);
  auto* import = reinterpret_cast<Import*>(*out);
  if (import == nullptr) {
    auto made = std::make_unique<Import>();
    made->region = args.region;
    imports_.push_back(made.get());
    import = made.release();
    *out = reinterpret_cast<towline_import*>(import);
    say(encode(Ask{args.region.key}));
  }
  if (!import->answered || engine_peer_.is_none())
    return refuse(Status::kAgain, "waits until the peer has registered the region with its rails");
  if (import->status != Status::kOk) {
    const Status status = import->status;
    const std::string reason = "the owner: " + import->reason;
    unimport(*out);
    *out = nullptr;
    return refuse(status, reason);
  }
  const std::string text = backend_.rails_text();
  std::snprintf(how, 64, "%s", text.c_str());
  return TOWLINE_OK;
}

void Connection::unimport(towline_import* handle) noexcept {
  auto* const import = reinterpret_cast<Import*>(handle);
  std::erase(imports_, import);
  delete import;
}

// ---- parts

int32_t Connection::prepare(const towline_prepare_args& args, towline_prepared** out) {
  if (!up_) return refuse(Status::kPeerLost, "the connection is down");
  auto prepared = std::make_unique<Prepared>();
  prepared->connection = handle(this);
  prepared->plan = args.plan;
  prepared->op = args.op == TOWLINE_READ ? fabric::TransferOp::kRead : fabric::TransferOp::kWrite;
  for (uint64_t i = 0; i < args.plan->local->region_count; ++i) {
    auto* const region = reinterpret_cast<Registered*>(args.local[i]);
    const fabric::LocalMemory* memory = nullptr;
    const Regions::State state =
        backend_.local_memory(region, args.plan->local->regions[i].key, worker_, memory);
    if (state.status == Status::kAgain)
      return refuse(Status::kAgain, "waits until this agent has registered the region with its rails");
    if (state.status != Status::kOk)
      return refuse(state.status, "memory of this agent is not registered with its rails: " + state.reason);
    prepared->local.push_back(memory);
    prepared->rails &= region->rails;
  }
  for (uint64_t i = 0; i < args.plan->remote->region_count; ++i)
    prepared->remote.push_back(&reinterpret_cast<const Import*>(args.remote[i])->memory);
  if (prepared->rails == 0) prepared->rails = UINT32_MAX;
  *out = prepared.release();
  return TOWLINE_OK;
}

int32_t Connection::submit(towline_prepared* prepared, const towline_submit_args& args) noexcept {
  return reinterpret_cast<Connection*>(prepared->connection)
      ->begin(*static_cast<const Prepared*>(prepared), args);
}

int32_t Connection::begin(const Prepared& prepared, const towline_submit_args& args) noexcept {
  if (!up_ || engine_peer_.is_none()) return static_cast<int32_t>(Status::kPeerLost);
  fabric::TransferRequest request;
  request.peer = engine_peer_;
  request.op = args.begin == args.end ? fabric::TransferOp::kNone : prepared.op;
  request.local = prepared.local.data();
  request.remote = prepared.remote.data();
  request.bytes = args.end - args.begin;
  request.rails = prepared.rails;
  request.urgent = (args.flags & TOWLINE_SUBMIT_URGENT) != 0;
  const Status status = backend_.engine(worker_).start(*this, args, *prepared.plan, request);
  if (status == Status::kInProgress) backend_.wake_if_asleep(worker_);
  return static_cast<int32_t>(status);
}

void Connection::cancel(uint64_t cookie) noexcept {
  backend_.engine(worker_).cancel(*this, cookie);
  backend_.wake_if_asleep(worker_);
}

}  // namespace towline::rdma
