#include "transports/shm/connection.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/clock.h"
#include "base/error.h"
#include "base/id.h"
#include "base/short_text.h"
#include "base/sync/wake_path.h"
#include "transports/shm/backend.h"

namespace towline::shm {

namespace {

constexpr uint64_t kRetryNs = kMillisecondNs;  // when the peer's backlog is full
constexpr uint32_t kMostPacketsAtOnce = 32;

towline_connection* handle(Connection* connection) {
  return reinterpret_cast<towline_connection*>(connection);
}

std::string connect_text(const Address& address, int error) {
  return fmt::format("shm: connecting to {} \"{}\": {}{}", address.abstract ? "abstract socket" : "socket",
                     address.name, errno_text(error),
                     error == ECONNREFUSED || error == ENOENT ? "; has the peer ended?" : "");
}

bool is_wake(std::span<const uint8_t> packet) noexcept { return packet_type(packet) == PacketType::kWake; }

Status connect_status(int error) noexcept {
  return error == EACCES || error == EPERM ? Status::kPermissionDenied : Status::kUnreachable;
}

}  // namespace

Connection::Connection(Backend& backend, uint32_t worker, void* peer)
    : backend_(backend),
      worker_(worker),
      peer_(peer),
      socket_(backend.host(), worker, &plugin::ready<&Connection::socket_ready>, this),
      direct_(backend.host(), worker),
      paths_(direct_.jobs()) {}

Connection::~Connection() {
  let_go();
  paths_.close_framed();
}

const plugin::Host& Connection::host() const noexcept { return backend_.host(); }

// ---- handshake

void Connection::connect(const towline_identity& peer, const Address& address, uint64_t deadline_ns) {
  identity_ = peer;
  identity_.name = nullptr;
  address_ = address;
  deadline_ns_ = deadline_ns;
  const int error = try_connect();
  if (error != 0 && error != EAGAIN)
    throw plugin::Failure(connect_status(error), connect_text(address, error));
  const uint64_t now_ns = host().now_ns();
  const uint64_t left_ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0;
  const bool bounded = deadline_ns != kNoDeadline;
  if (!bounded && error == 0) return;
  timer_ = make_timer(error == EAGAIN ? kRetryNs : left_ns, error == EAGAIN ? kRetryNs : 0);
  host().watch(worker_, timer_.get(), EPOLLIN, &plugin::ready<&Connection::timer_ready>, this);
}

// 0, EAGAIN or another errno.
int Connection::try_connect() {
  UniqueFd socket = make_socket();
  if (const int error = connect_to(socket.get(), address_); error != 0) return error;
  backend_.check_user(socket.get());  // before it is given the ring's memory: anyone may listen at a name
  socket_.open(std::move(socket));
  state_ = State::kGreeting;
  greet();
  return 0;
}

void Connection::greet() {
  const Settings& settings = backend_.settings();
  const towline_identity& self = host().self();
  Hello hello;
  std::copy(std::begin(identity_.incarnation), std::end(identity_.incarnation), hello.target);
  hello.identity = self;
  hello.name = self.name;
  hello.worker = worker_;
  hello.ring_bytes = settings.ring_bytes;
  hello.proof = own_proof();
  hello.connection = id_ = random_u64();
  UniqueFd memory;
  ring_.emplace(RingMemory::create(settings.ring_bytes, memory));
  const int fd = memory.get();
  if (const Status status = socket_.send(encode(hello), {&fd, 1}); status != Status::kOk)
    throw plugin::Failure(Status::kUnreachable, "shm: the peer closed the socket before the greeting");
}

void Connection::on_welcome(Packet& packet) {
  const std::optional<Welcome> welcome = decode_welcome(packet.span());
  if (!welcome || state_ != State::kGreeting)
    return fail(Status::kProtocol, "shm: the peer's welcome makes no sense");
  if (!std::equal(std::begin(welcome->incarnation), std::end(welcome->incarnation), identity_.incarnation))
    return fail(Status::kPeerRestarted, "shm: another agent answered under the peer's name");
  features_ = welcome->features & framing::kFeatures;
  connector_side_ = true;
  try {
    meet(identity_, welcome->proof);
    start_engine();
  } catch (const std::exception& error) {
    return fail(Status::kUnreachable, error.what());
  }
  stop_timer();
  state_ = State::kUp;
  host().connection_event(peer_, TOWLINE_CONNECTION_UP, Status::kOk, "");
}

void Connection::on_refuse(const Packet& packet) {
  const std::optional<Refuse> refuse = decode_refuse(packet.span());
  if (!refuse) return fail(Status::kProtocol, "shm: the peer refused, without saying why");
  fail(refuse->status, ShortText("shm: the peer refused the connection: {}", refuse->text));
}

bool Connection::accept(Greeted greeted) {
  const towline_identity identity = greeted.hello.as_identity();
  id_ = greeted.hello.connection;
  std::copy(std::begin(identity.incarnation), std::end(identity.incarnation), identity_.incarnation);
  ring_.emplace(RingMemory::adopt(greeted.memory.get(), greeted.hello.ring_bytes));
  features_ = greeted.hello.features & framing::kFeatures;
  socket_.open(std::move(greeted.socket));
  meet(identity, greeted.hello.proof);
  if (const int32_t status = host().accepted(worker_, handle(this), identity, &peer_); status < 0) {
    socket_.send(encode(Refuse{static_cast<Status>(status), "the agent does not want it"}));
    return false;
  }
  try {
    Welcome welcome;
    std::copy_n(host().self().incarnation, 2, welcome.incarnation);
    welcome.worker = worker_;
    welcome.proof = own_proof();
    welcome.features = features_;
    const std::vector<uint8_t> packet = encode(welcome);
    start_engine();
    state_ = State::kUp;
    if (const Status status = socket_.send(packet); status != Status::kOk)
      fail(Status::kPeerLost, "shm: the peer went away during the greeting");
  } catch (const std::exception& error) {
    fail(Status::kOutOfMemory, error.what());  // the core knows of it by now, and will disconnect
  }
  return true;
}

Proof Connection::own_proof() const noexcept {
  if (!backend_.settings().allows(Path::kProcessVm)) return {};
  return {reinterpret_cast<uint64_t>(backend_.cookie()), probe_.address()};
}

// Sets the peer's identity and the possible paths, once the peer has proved its identity.
void Connection::meet(const towline_identity& peer, const Proof& proof) {
  const towline_identity& self = host().self();
  const bool same_pids = std::equal(std::begin(peer.host), std::end(peer.host), self.host) &&
                         peer.pid_namespace != 0 && peer.pid_namespace == self.pid_namespace;
  process_ = peer_process(socket_.fd(), same_pids ? peer.start_time : 0);
  if (process_.pidfd && process_.pid != getpid()) {
    process_watched_ = host().watch(worker_, process_.pidfd.get(), EPOLLIN,
                                    &plugin::ready<&Connection::process_ready>, this) == TOWLINE_OK;
  }
  process_vm_error_ = backend_.settings().allows(Path::kProcessVm)
                          ? prove_process_vm(process_.pid, proof, identity_.incarnation)
                          : ENOTSUP;
}

void Connection::start_engine() {
  framing::ConnectionOptions options;
  options.worker = worker_;
  options.connection = handle(this);
  options.features = features_;
  auto framed = std::make_unique<framing::Connection>(host(), peer_, options);
  framed->add_lane(make_lane(*ring_, "ring"));
  paths_.open(std::move(framed));
  direct_.open(process_.pid, socket_.fd(), process_watched_ ? process_.pidfd.get() : -1);
}

std::unique_ptr<framing::Lane> Connection::make_lane(const RingMemory& ring, const char* what) {
  return std::make_unique<framing::RingLane>(
      ring.outgoing(), ring.incoming(), framing::RingLane::WakeHook{&Connection::wake_peer, this},
      fmt::format("{} in shared memory, peer's pid {}", what, process_.pid));
}

// Once urgent parts are about. The connector makes the rings; the acceptor's urgent parts tell it so.
void Connection::offer_express() noexcept {
  express_tried_ = true;
  try {
    UniqueFd memory;
    express_ring_.emplace(RingMemory::create(kExpressRingBytes, memory));
    auto lane = make_lane(*express_ring_, "express ring");
    const int fd = memory.get();
    if (socket_.send(encode_bare(PacketType::kExpress), {&fd, 1}) == Status::kOk)
      paths_.framed().add_express_lane(std::move(lane));
  } catch (const std::exception& error) {
    host().log(
        2, ShortText("shm: no express rings for the connection to pid {}: {}", process_.pid, error.what()));
  }
}

bool Connection::wants_express() const noexcept {
  return connector_side_ && !express_tried_ && (features_ & framing::kFeatureExpress) != 0 &&
         paths_.framed().has_seen_urgent();
}

void Connection::on_express(Packet& packet) {
  if (connector_side_ || express_tried_ || packet.fd_count == 0 || state_ != State::kUp)
    return fail(Status::kProtocol,
                "shm: the peer offered express rings out of turn, or without their memory");
  express_tried_ = true;
  try {
    express_ring_.emplace(RingMemory::adopt(packet.fds[0].get(), kExpressRingBytes));
    paths_.framed().add_express_lane(make_lane(*express_ring_, "express ring"));
  } catch (const std::exception& error) {
    fail(Status::kProtocol, error.what());  // the peer uses them already
  }
}

// A peer that has no room for it has packets to wake up for.
TOWLINE_WAKE_PATH void Connection::wake_peer(void* self) {
  (void)static_cast<Connection*>(self)->socket_.send(encode_bare(PacketType::kWake));
}

// ---- events

void Connection::socket_ready(uint32_t events) {
  if ((events & EPOLLOUT) != 0) answer_requests();
  if ((events & ~static_cast<uint32_t>(EPOLLOUT)) != 0) receive_all();
}

void Connection::process_ready(uint32_t) { peer_gone("its process ended"); }

void Connection::timer_ready(uint32_t) {
  uint64_t expirations = 0;
  [[maybe_unused]] const ssize_t bytes = read(timer_.get(), &expirations, sizeof expirations);
  progress(host().now_ns());
}

PassList<Connection>::Pass Connection::scope() noexcept { return backend_.scope(worker_); }

void Connection::broken(const char* why) noexcept {
  host().log(1, ShortText("shm: the connection to pid {} ends: {}", process_.pid, why));
  fail(Status::kInternal, why);
}

void Connection::receive_all() {
  for (uint32_t i = 0; i < kMostPacketsAtOnce && socket_.is_open(); ++i) {
    Packet packet;
    switch (socket_.receive(packet)) {
      case Status::kOk:
        if (is_wake(packet.span())) return;  // it comes alone as a rule, and the next poll sees more
        on_packet(packet);
        break;
      case Status::kAgain:
        return;
      case Status::kClosed:
        return peer_gone("its socket closed");
      default:
        return fail(Status::kProtocol, "shm: the peer sent garbage over the socket");
    }
  }
}

void Connection::on_packet(Packet& packet) {
  const std::optional<PacketType> type = packet_type(packet.span());
  if (!type) return fail(Status::kProtocol, "shm: the peer sent garbage over the socket");
  switch (*type) {
    case PacketType::kWelcome:
      return on_welcome(packet);
    case PacketType::kRefuse:
      return on_refuse(packet);
    case PacketType::kDescriptorRequest:
      if (const auto request = decode_descriptor_request(packet.span()); request && state_ == State::kUp)
        return on_descriptor_request(*request);
      break;
    case PacketType::kDescriptorAnswer:
      if (const auto answer = decode_descriptor_answer(packet.span()); answer && state_ == State::kUp)
        return on_descriptor_answer(*answer, packet);
      break;
    case PacketType::kGoodbye:
      return peer_gone("it said goodbye");
    case PacketType::kExpress:
      return on_express(packet);
    case PacketType::kWake:
    case PacketType::kHello:
      break;
  }
  fail(Status::kProtocol, "shm: the peer broke the order of the conversation");
}

void Connection::peer_gone(const char* how) noexcept {
  if (state_ == State::kUp && !paths_.in_framed()) {
    // Everything that the peer wrote before it went is still delivered.
    for (uint32_t i = 0; i < direct::Paths::kMostDrainPasses && state_ == State::kUp; ++i)
      if (run_framed(host().now_ns()) == 0) break;
  }
  const bool greeting = state_ == State::kConnecting || state_ == State::kGreeting;
  fail(greeting ? Status::kUnreachable : Status::kPeerLost,
       ShortText("shm: the peer is gone: {}{}", how, greeting ? " before it answered" : ""));
}

void Connection::stop_timer() noexcept {
  if (!timer_) return;
  host().unwatch(worker_, timer_.get());
  timer_.reset();
}

// Gives up everything that is watched. The descriptors stay open: a thread in submit may be looking at them.
void Connection::let_go() noexcept {
  stop_timer();
  if (process_watched_) host().unwatch(worker_, process_.pidfd.get());
  process_watched_ = false;
  socket_.shut();
}

void Connection::fail(Status status, const char* text) noexcept {
  if (state_ == State::kDown) return;
  const auto pass = scope();
  state_ = State::kDown;
  let_go();
  if (!paths_.fail(status, text) && !disconnected_)
    host().connection_event(peer_, TOWLINE_CONNECTION_DOWN, status, text);
}

void Connection::disconnect() noexcept {
  if (disconnected_) return;
  disconnected_ = true;
  const auto pass = scope();
  const bool was_up = state_ == State::kUp;
  state_ = State::kDown;
  paths_.close();
  if (was_up) socket_.send(encode_bare(PacketType::kGoodbye));
  let_go();
  asking_.clear();
  backend_.release(this);
}

// ---- turning

TOWLINE_WAKE_PATH uint32_t Connection::run_framed(uint64_t now_ns) noexcept {
  const uint32_t done = paths_.run_framed(now_ns);
  if (state_ == State::kUp && paths_.framed_down()) {
    // It has told the core itself.
    state_ = State::kDown;
    let_go();
    paths_.close_jobs(Status::kPeerLost);
  }
  return done;
}

TOWLINE_WAKE_PATH uint32_t Connection::progress(uint64_t now_ns) noexcept {
  switch (state_) {
    case State::kUp: {
      if (wants_express()) offer_express();
      uint32_t done = run_framed(now_ns);
      if (state_ == State::kUp) done += paths_.run_jobs();
      return done;
    }
    case State::kDown:
      return 0;
    case State::kConnecting:
    case State::kGreeting:
      break;
  }
  if (now_ns >= deadline_ns_) {
    fail(Status::kTimedOut, "shm: the peer did not answer in time");
    return 1;
  }
  if (state_ == State::kGreeting) return 0;
  try {
    const int error = try_connect();
    if (error != 0 && error != EAGAIN) fail(connect_status(error), connect_text(address_, error).c_str());
    return error == EAGAIN ? 0 : 1;
  } catch (const plugin::Failure& failure) {
    fail(failure.status(), failure.what());
    return 1;
  } catch (const std::exception& error) {
    fail(Status::kUnreachable, error.what());
    return 1;
  }
}

bool Connection::arm() noexcept {
  wake_pages().add_object(*this);
  return state_ == State::kUp && paths_.arm();
}

void Connection::disarm() noexcept { paths_.disarm(); }

TOWLINE_WAKE_PATH int32_t Connection::send(const void* message, size_t bytes) noexcept {
  return paths_.send(state_ == State::kUp, message, bytes);
}

void Connection::cancel(uint64_t cookie) noexcept { paths_.cancel(cookie); }

}  // namespace towline::shm
