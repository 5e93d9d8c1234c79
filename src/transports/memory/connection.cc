#include "transports/memory/connection.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstring>

#include "framing/faulty_lane.h"
#include "towline/plugin/cursor.hpp"
#include "towline/towline.h"
#include "transports/memory/backend.h"
#include "transports/memory/network.h"

namespace towline::memory {

namespace {

towline_connection* handle(Connection* connection) {
  return reinterpret_cast<towline_connection*>(connection);
}

}  // namespace

Connection::Connection(Backend& backend, uint32_t worker, std::shared_ptr<Ends> ends, uint32_t side,
                       void* peer)
    : backend_(backend),
      worker_(worker),
      ends_(std::move(ends)),
      side_(side),
      peer_(peer),
      copies_(backend.host(), worker, *ends_, side, backend.inline_bytes()),
      paths_(copies_.jobs()) {
  ends_->attach(side_, backend.host(), worker);
}

Connection::~Connection() {
  paths_.close_framed();
  ends_->close(side_);
  give_pins_back();
}

const plugin::Host& Connection::host() const noexcept { return backend_.host(); }

// ---- coming up and going down

bool Connection::accept(const Call& call) {
  if (ends_->closed(0)) return false;
  const int32_t status = host().accepted(worker_, handle(this), call.as_identity(), &peer_);
  if (status < 0) {
    ends_->answer(Ends::Answer::kRefused, static_cast<Status>(status));
    return false;
  }
  try {
    start_engine();
    ends_->answer(Ends::Answer::kAccepted, Status::kOk);
  } catch (const std::exception& error) {
    ends_->answer(Ends::Answer::kRefused, Status::kOutOfMemory);
    fail(Status::kOutOfMemory, error.what());  // the core knows of it by now, and will disconnect
  }
  return true;
}

void Connection::start_engine() {
  framing::ConnectionOptions options;
  options.worker = worker_;
  options.connection = handle(this);
  auto framed = std::make_unique<framing::Connection>(host(), peer_, options);
  framed->add_lane(make_lane(ends_->outgoing(side_), ends_->incoming(side_), "ring in this process"));
  framed->add_express_lane(make_lane(ends_->outgoing_express(side_), ends_->outgoing_express(1 - side_),
                                     "express ring in this process"));
  paths_.open(std::move(framed));
  state_ = State::kUp;
}

std::unique_ptr<framing::Lane> Connection::make_lane(framing::RingView outgoing, framing::RingView incoming,
                                                     const char* what) {
  std::unique_ptr<framing::Lane> lane = std::make_unique<framing::RingLane>(
      outgoing, incoming, framing::RingLane::WakeHook{&Connection::wake_peer, this}, what);
  if (const framing::FaultOptions faults = backend_.next_faults(); faults.any())
    lane = std::make_unique<framing::FaultyLane>(std::move(lane), faults, [this] { return host().now_ns(); });
  if (const Network* const network = current_network(); network != nullptr)
    lane = across_network(std::move(lane), network, ends_->incarnation(side_), ends_->incarnation(1 - side_));
  return lane;
}

void Connection::wake_peer(void* self) noexcept {
  const auto* connection = static_cast<Connection*>(self);
  connection->ends_->wake(1 - connection->side_);
}

uint32_t Connection::wait_for_answer(uint64_t now_ns) noexcept {
  switch (ends_->answer()) {
    case Ends::Answer::kAccepted:
      try {
        start_engine();
      } catch (const std::exception& error) {
        fail(Status::kOutOfMemory, error.what());
        return 1;
      }
      host().connection_event(peer_, TOWLINE_CONNECTION_UP, Status::kOk, "");
      return 1;
    case Ends::Answer::kRefused:
      fail(ends_->refusal(), "memory: the peer refused the connection");
      return 1;
    case Ends::Answer::kNone:
      break;
  }
  if (now_ns < deadline_ns_) return 0;
  fail(Status::kTimedOut, "memory: the peer did not answer in time (does its application make progress?)");
  return 1;
}

void Connection::peer_gone() noexcept {
  // Everything that the peer wrote before it went is still delivered.
  for (uint32_t i = 0; i < direct::Paths::kMostDrainPasses && state_ == State::kUp; ++i)
    if (run_framed(host().now_ns()) == 0) break;
  fail(Status::kPeerLost, "memory: the peer closed the connection");
}

void Connection::fail(Status status, const char* text) noexcept {
  if (state_ == State::kDown) return;
  state_ = State::kDown;
  ends_->close(side_);
  give_pins_back();
  if (!paths_.fail(status, text) && !disconnected_)
    host().connection_event(peer_, TOWLINE_CONNECTION_DOWN, status, text);
}

void Connection::disconnect() noexcept {
  if (disconnected_) return;
  disconnected_ = true;
  const Backend::Scope scope{backend_, worker_};
  state_ = State::kDown;
  paths_.close();
  ends_->close(side_);
  give_pins_back();
  asking_.clear();
  backend_.release(this);
}

// ---- turning

uint32_t Connection::run_framed(uint64_t now_ns) noexcept {
  const uint32_t done = paths_.run_framed(now_ns);
  if (state_ == State::kUp && paths_.framed_down()) {
    // It has told the core itself.
    state_ = State::kDown;
    ends_->close(side_);
    give_pins_back();
    paths_.close_jobs(Status::kPeerLost);
  }
  return done;
}

uint32_t Connection::progress(uint64_t now_ns) noexcept {
  if (state_ == State::kDown) return 0;
  if (state_ == State::kCalling) return wait_for_answer(now_ns);
  uint32_t done = ends_->has_letters(side_) ? read_letters() : 0;
  done += run_framed(now_ns);
  if (state_ == State::kUp) done += paths_.run_jobs();
  // If only the ring is used, its end comes behind all that was written: as a socket's does.
  if (state_ == State::kUp && !backend_.framed_only() && ends_->closed(1 - side_)) {
    peer_gone();
    ++done;
  }
  return done;
}

bool Connection::arm() noexcept {
  if (state_ == State::kCalling) return ends_->answer() != Ends::Answer::kNone;
  if (state_ == State::kDown) return false;
  return ends_->has_letters(side_) || ends_->closed(1 - side_) || paths_.arm();
}

void Connection::disarm() noexcept { paths_.disarm(); }

int32_t Connection::send(const void* message, size_t bytes) noexcept {
  return paths_.send(state_ == State::kUp, message, bytes);
}

void Connection::cancel(uint64_t cookie) noexcept { paths_.cancel(cookie); }

// ---- regions

uint32_t Connection::read_letters() noexcept {
  uint32_t count = 0;
  for (const Letter& letter : ends_->take(side_)) {
    ++count;
    switch (letter.kind) {
      case Letter::Kind::kPin:
        on_pin(letter);
        break;
      case Letter::Kind::kPinned:
        if (const auto found = asking_.find(letter.request); found != asking_.end()) {
          found->second->status = letter.status;
          found->second->delta = letter.pointer - found->second->region.address;
          asking_.erase(found);
        }
        break;
      case Letter::Kind::kUnpin:
        if (const auto found = pins_.find(letter.request); found != pins_.end()) {
          host().unpin(found->second);
          pins_.erase(found);
        }
        break;
    }
  }
  return count;
}

// The owner's side: our memory is wanted as it lies, for as long as the peer's import lives.
void Connection::on_pin(const Letter& letter) noexcept {
  Letter reply = letter;
  reply.kind = Letter::Kind::kPinned;
  void* pointer = nullptr;
  void* pin = nullptr;
  const towline_region_ref& region = letter.region;
  reply.status = static_cast<Status>(
      host().pin(region.key, region.address, region.bytes, region.access, &pointer, &pin));
  if (reply.status == Status::kOk) {
    reply.pointer = reinterpret_cast<uint64_t>(pointer);
    try {
      pins_[letter.request] = pin;
    } catch (const std::bad_alloc&) {
      host().unpin(pin);
      reply.status = Status::kOutOfMemory;
    }
  }
  post(reply);
}

// Without a letter the other end would wait, or its pin last, for as long as the connection.
void Connection::post(const Letter& letter) noexcept {
  try {
    ends_->post(1 - side_, letter);
  } catch (const std::bad_alloc&) {
    fail(Status::kOutOfMemory, "memory: no memory for a message to the peer");
  }
}

// After this end is closed: the peer copies no more.
void Connection::give_pins_back() noexcept {
  for (const auto& [request, pin] : pins_) host().unpin(pin);
  pins_.clear();
}

int32_t Connection::import(const towline_region_args& args, const void*, size_t, towline_import** out,
                           char how[64]) {
  if (state_ == State::kDown) return host().refuse(Status::kPeerLost, "memory: the connection is down");
  auto* import = reinterpret_cast<Import*>(*out);
  if (import == nullptr) {
    if (args.region.kind != TOWLINE_MEMORY_DRAM)
      return host().refuse(Status::kUnsupported, "memory: only dram is reached");
    import = new Import;
    import->region = args.region;
    import->framed = backend_.framed_only() || (args.region.flags & TOWLINE_REGION_GUARDED) != 0;
    if (import->framed) {
      import->status = Status::kOk;
    } else {
      import->request = ++last_request_;
      asking_[import->request] = import;
      ends_->post(1 - side_, {Letter::Kind::kPin, import->request, import->region, Status::kOk, 0});
    }
    *out = reinterpret_cast<towline_import*>(import);
  }
  if (import->status == Status::kOk) {
    std::snprintf(how, 64, "%s", import->framed ? "ring in this process" : "same address space");
    return TOWLINE_OK;
  }
  if (import->status == Status::kAgain) return TOWLINE_AGAIN;
  const Status status = import->status;
  unimport(*out);
  *out = nullptr;
  return host().refuse(status, "memory: the owner refused access to the region");
}

void Connection::unimport(towline_import* handle) noexcept {
  auto* import = reinterpret_cast<Import*>(handle);
  if (import->request != 0) {
    asking_.erase(import->request);
    post({Letter::Kind::kUnpin, import->request, import->region, Status::kOk, 0});
  }
  delete import;
}

// ---- plans

int32_t Connection::prepare(const towline_prepare_args& args, towline_prepared** out) {
  if (state_ != State::kUp) return host().refuse(Status::kPeerLost, "memory: the connection is down");
  auto prepared = std::make_unique_for_overwrite<Prepared>();  // its members have initialisers
  prepared->connection = handle(this);
  prepared->plan = args.plan;
  prepared->op = args.op;
  const towline_plan& plan = *args.plan;
  prepared->deltas.reserve(plan.remote->region_count);
  bool framed = backend_.framed_only();
  for (uint64_t i = 0; i < plan.remote->region_count; ++i) {
    const auto& import = *reinterpret_cast<const Import*>(args.remote[i]);
    framed = framed || import.framed;
    prepared->deltas.add(import.delta);
  }
  if (framed) {
    if (const int32_t status = paths_.prepare_framed(args, *prepared); status != TOWLINE_OK) return status;
    *out = prepared.release();
    return TOWLINE_OK;
  }
  prepared->queue = &copies_;
  copies_.aim(*prepared);
  *out = prepared.release();
  return TOWLINE_OK;
}

int32_t Connection::repick(towline_prepared* prepared, const towline_plan* plan) noexcept {
  auto& mine = static_cast<Prepared&>(*prepared);
  mine.plan = plan;
  if (mine.framed != nullptr) return framing::Connection::repick(mine.framed, plan);
  mine.queue->aim(mine);
  return TOWLINE_OK;
}

void Connection::unprepare(towline_prepared* prepared) noexcept {
  auto* mine = static_cast<Prepared*>(prepared);
  direct::Paths::unprepare(*mine);
  delete mine;
}

std::string Connection::describe() const {
  return fmt::format(R"({{"transport": "memory", "pins": {}, {}}})", pins_.size(), paths_.describe());
}

}  // namespace towline::memory
