#include "transports/tcp/connection.h"

#include <sys/socket.h>

#include <algorithm>
#include <cstdio>
#include <mutex>

#include "base/clock.h"
#include "base/error.h"
#include "base/os/congestion.h"
#include "base/short_text.h"
#include "base/sync/spin.h"
#include "framing/faulty_lane.h"
#include "towline/towline.h"
#include "transports/tcp/backend.h"
#include "transports/tcp/socket_lane.h"

namespace towline::tcp {
namespace {

// Longer than any pause between the frames of one transfer; polling an idle socket costs a system call a
// pass.
constexpr uint64_t kQuietNs = kMillisecondNs;
// And so many passes: a worker that was not scheduled for a while has not looked yet.
constexpr uint32_t kQuietPasses = 256;
// A connection that is being ended lets the kernel send what it was lent for at most so long.
constexpr uint64_t kPeerReadsNs = 50 * kMillisecondNs;

// For a peer's region.
struct Import {
  uint64_t most_frame_bytes = UINT64_MAX;
};
Import any_frames;  // of host memory

// Memory that a GPU may still reach. It stays reachable on purpose.
void keep_for_good(framing::Connection* connection) noexcept {
  static std::mutex mutex;
  static std::vector<framing::Connection*>* const kept = new std::vector<framing::Connection*>;
  const std::lock_guard lock(mutex);
  try {
    kept->push_back(connection);
  } catch (const std::bad_alloc&) {  // then it is only not found by leak checkers
  }
}

}  // namespace

Connection::Connection(Backend& backend, uint32_t worker, void* peer)
    : backend_(backend), worker_(worker), peer_(peer) {
  backend_.count_connection(worker_, 1);
}

Connection::~Connection() { backend_.count_connection(worker_, -1); }

const plugin::Host& Connection::host() const noexcept { return backend_.host(); }

void Connection::stirred(void* self, uint32_t) { static_cast<Connection*>(self)->activate(); }

void Connection::become_active() noexcept {
  if (disconnected_) return;
  active_ = true;
  idle_passes_ = 0;
  if (framed_ != nullptr) framed_->disarm();
  backend_.add_active(*this);
}

// ---- coming up

void Connection::connect(const towline_identity& peer, std::vector<SocketAddress> candidates,
                         uint64_t deadline_ns) {
  connector_side_ = true;
  const towline_identity& self = host().self();
  same_host_ = is_same_host(self, peer);
  hello_.target = incarnation_of(peer);
  hello_.target_name = peer.name == nullptr ? "" : peer.name;
  hello_.worker = worker_;
  hello_.self = self;
  hello_.name = self.name == nullptr ? "" : self.name;
  connector_ = std::make_unique<Connector>(host(), worker_, std::move(candidates), backend_.options(), hello_,
                                           peer.name == nullptr ? "" : peer.name, deadline_ns, stirred, this);
  activate();
  host().wake(worker_);
}

uint32_t Connection::step_connector(uint64_t now_ns) {
  const Status status = connector_->step(now_ns);
  if (status == Status::kInProgress) return 0;
  if (status != Status::kOk) {
    fail(status, connector_->text().c_str());
    return 1;
  }
  address_ = connector_->winner();
  hello_.connection = connector_->connection();  // by which further lanes join
  features_ = connector_->features() & framing::kFeatures;
  Stream stream = connector_->take();
  connector_.reset();
  open(std::move(stream));
  if (backend_.flows() != nullptr) dial(1, 2, now_ns);
  host().connection_event(peer_, TOWLINE_CONNECTION_UP, Status::kOk, "");
  return 1;
}

bool Connection::accept(Arrival arrival) {
  hello_ = std::move(arrival.hello);
  features_ = hello_.features & framing::kFeatures;
  slots_.push_back(std::move(arrival.slot));
  address_ = SocketAddress::peer_of(arrival.stream.fd());
  const towline_identity identity = hello_.identity();
  same_host_ = is_same_host(host().self(), identity);
  auto* const handle = reinterpret_cast<towline_connection*>(this);
  const auto status = static_cast<Status>(host().accepted(worker_, handle, identity, &peer_));
  if (is_error(status)) {
    send_reply(host(), arrival.stream, status, status_text(status));
    return false;
  }
  // The core owns it from here on: it gets every failure, and disconnects.
  try {
    // Without the reply the connector would take frames for it.
    if (!send_reply(host(), arrival.stream, Status::kOk, "")) arrival.stream.cut();
    open(std::move(arrival.stream));
    activate();
  } catch (const std::exception& error) {
    framed_.reset();
    fail(Status::kOutOfMemory, error.what());
  }
  return true;
}

void Connection::join(Arrival arrival) {
  const bool same = arrival.hello.self.incarnation[0] == hello_.self.incarnation[0] &&
                    arrival.hello.self.incarnation[1] == hello_.self.incarnation[1];
  const bool taken =
      (backend_.flows() != nullptr && (arrival.hello.lane >= kMaxLanes || placed_[arrival.hello.lane])) ||
      (arrival.hello.lane == kExpressLane && express_tried_);
  if (connector_side_ || !same || framed_ == nullptr || framed_->down() || taken ||
      framed_->lane_count() >= kMaxLanes) {
    send_reply(host(), arrival.stream, Status::kNotFound, "there is no such connection");
    return;
  }
  if (!send_reply(host(), arrival.stream, Status::kOk, "")) return;
  slots_.push_back(std::move(arrival.slot));
  place(arrival.hello.lane, std::move(arrival.stream));
  activate();
}

void Connection::open(Stream stream) {
  const Options& options = backend_.options();
  framing::ConnectionOptions framing_options;
  framing_options.worker = worker_;
  framing_options.connection = reinterpret_cast<towline_connection*>(this);
  framing_options.max_frame_bytes = options.frame_bytes_to(address_);
  framing_options.read_request_bytes =
      std::max(framing_options.read_request_bytes, framing_options.max_frame_bytes);
  framing_options.checksum = options.checksum;
  framing_options.features = features_;
  framing_options.frame_timeout_ns = options.user_timeout_ns;
  if (!slots_.empty()) framing_options.refusals = slots_.front().accesses();
  framing_options.make_lander = [this](uint64_t device, Status& status) {
    return framing::make_hosted_lander(host(), device, status);
  };
  framed_ = std::make_unique<framing::Connection>(host(), peer_, framing_options);
  opened_ns_ = host().now_ns();
  congestion_ = congestion_for(options.congestion, same_host_ || address_.is_loopback());
  backend_.note_open(address_, stream.fd());
  framing::Lane& lane = add_lane(std::move(stream));
  placed_.set(0);
  if (backend_.flows() != nullptr) first_lane_ = &lane;
}

// Returns it without faults.
framing::Lane& Connection::add_lane(Stream stream) {
  const Options& options = backend_.options();
  const bool first = framed_->lane_count() == 0;
  const uint32_t frame_bytes = options.frame_bytes_to(address_);
  std::unique_ptr<framing::Lane> lane;
  if (backend_.flows() != nullptr)
    lane = backend_.flows()->make_lane(host(), worker_, std::move(stream), first, frame_bytes, congestion_,
                                       stirred, this);
  else
    lane = std::make_unique<SocketLane>(host(), worker_, std::move(stream), first, frame_bytes, congestion_,
                                        stirred, this, options.zerocopy);
  framing::Lane& plain = *lane;
  framed_->add_lane(with_faults(std::move(lane)));
  return plain;
}

std::unique_ptr<framing::Lane> Connection::with_faults(std::unique_ptr<framing::Lane> lane) {
  const Options& options = backend_.options();
  if (!options.faults.any()) return lane;
  framing::FaultOptions faults = options.faults;
  faults.seed += backend_.next_fault_seed();
  return std::make_unique<framing::FaultyLane>(std::move(lane), faults, [this] { return host().now_ns(); });
}

// The engine reads it as often as it must.
void Connection::add_express_lane(Stream stream) {
  express_tried_ = true;
  const Options& options = backend_.options();
  framed_->add_express_lane(with_faults(
      std::make_unique<SocketLane>(host(), worker_, std::move(stream), true, options.frame_bytes_to(address_),
                                   congestion_, stirred, this, options.zerocopy)));
}

// A further socket of the connection, of that number.
void Connection::place(uint16_t number, Stream stream) {
  if (number == kExpressLane && (features_ & framing::kFeatureExpress) != 0)
    return add_express_lane(std::move(stream));
  Flows* const flows = backend_.flows();
  if (flows == nullptr) {
    (void)add_lane(std::move(stream));
    return;
  }
  placed_.set(number);
  if (number == 1) return flows->attach(*first_lane_, std::move(stream));
  const auto other = unpaired_.find(number ^ 1);
  if (other == unpaired_.end()) {
    unpaired_.emplace(number, std::move(stream));
    return;
  }
  Stream headers = std::move(other->second);
  unpaired_.erase(other);
  if (number % 2 == 0) std::swap(headers, stream);
  flows->attach(add_lane(std::move(headers)), std::move(stream));
}

void Connection::fail(Status status, const char* text) noexcept {
  failed_ = true;
  // The text may live in the connector.
  const std::unique_ptr<Connector> kept = std::move(connector_);
  host().connection_event(peer_, TOWLINE_CONNECTION_DOWN, status, text);
}

// ---- further lanes

bool Connection::wants_more_lanes() const noexcept {
  if (!connector_side_ || more_lanes_tried_ || backend_.options().sockets_to(address_) < 2) return false;
  const framing::ConnectionStatistics& statistics = framed_->statistics();
  return statistics.bytes_sent + statistics.bytes_received >= backend_.options().bulk_bytes;
}

void Connection::dial_more_lanes(uint64_t now_ns) {
  more_lanes_tried_ = true;
  const uint32_t lanes = backend_.options().sockets_to(address_);
  const auto most = [](uint32_t number) {
    return static_cast<uint16_t>(std::min<uint32_t>(number, kExpressLane));
  };
  if (backend_.flows() == nullptr)
    dial(1, most(lanes), now_ns);
  else
    dial(2, most(2 * lanes), now_ns);
}

// Once urgent parts are about. The connector makes it; the acceptor's urgent parts tell it so.
bool Connection::wants_express_lane() const noexcept {
  return connector_side_ && !express_tried_ && (features_ & framing::kFeatureExpress) != 0 &&
         framed_->has_seen_urgent();
}

// Sockets of these numbers.
void Connection::dial(uint16_t begin, uint16_t end, uint64_t now_ns) {
  dials_deadline_ns_ = Deadline::after(now_ns, backend_.options().handshake_timeout_ns).ns();
  for (uint16_t number = begin; number < end; ++number)
    dials_.push_back(
        {std::make_unique<Dial>(host(), worker_, address_, backend_.options(), stirred, this), number});
}

// The connection does without the lanes that don't come up.
uint32_t Connection::step_more_lanes(uint64_t now_ns) {
  uint32_t done = 0;
  for (std::size_t i = 0; i < dials_.size(); ++i) {
    Dial& dial = *dials_[i].dial;
    const uint16_t number = dials_[i].number;
    const Dial::State state = dial.step();
    if (state == Dial::State::kConnected) {
      hello_.lane = number;
      dial.send_hello(hello_, now_ns);
    } else if (state == Dial::State::kAnswered) {
      const Reply& reply = dial.reply();
      const bool welcome = reply.status == TOWLINE_OK && reply.incarnation == hello_.target;
      if (welcome) place(number, dial.take());
      if (!welcome)
        host().log(2, fmt::format("another socket to {} was refused: {}", address_.text(), reply.text));
    } else if (state == Dial::State::kFailed || now_ns >= dials_deadline_ns_) {
      const std::string why = state == Dial::State::kFailed ? dial.text() : "no reply in time";
      host().log(2, fmt::format("another socket to {}: {}", address_.text(), why));
      // The peer may have taken it and send payload there, which this side would wait for.
      if (number == 1 && backend_.flows() != nullptr && dial.hello_sent_ns() != 0)
        framed_->fail(Status::kPeerLost, "the socket for payload did not come up");
    } else {
      continue;
    }
    if (dial.state() == Dial::State::kAwaiting) continue;
    dials_.erase(dials_.begin() + static_cast<std::ptrdiff_t>(i--));
    ++done;
  }
  return done;
}

// ---- running

uint32_t Connection::progress(uint64_t now_ns) noexcept {
  uint32_t done = 0;
  const bool coming_up = connector_ != nullptr;
  try {
    if (connector_ != nullptr) done += step_connector(now_ns);
    if (framed_ == nullptr || disconnected_) return done;
    if (framed_->down()) return framed_->settled() ? done : done + framed_->progress(now_ns);
    if (!dials_.empty()) done += step_more_lanes(now_ns);
    if (wants_more_lanes()) dial_more_lanes(now_ns);
    if (wants_express_lane()) {
      express_tried_ = true;
      dial(kExpressLane, kExpressLane + 1, now_ns);
    }
  } catch (const std::exception& error) {
    if (coming_up) {  // the core does not know of a connection yet
      framed_.reset();
      fail(Status::kOutOfMemory, error.what());
    } else {
      host().log(1, ShortText("another socket of a connection: {}", error.what()));
      dials_.clear();
    }
    return done + 1;
  }
  const uint32_t moved = framed_->progress(now_ns);
  idle_passes_ = moved == 0 ? idle_passes_ + 1 : 0;
  return done + moved;
}

bool Connection::arm() noexcept {
  return framed_ != nullptr && !(framed_->down() && framed_->settled()) && framed_->arm();
}

void Connection::disarm() noexcept {
  if (framed_ != nullptr) framed_->disarm();
}

bool Connection::quiet(uint64_t now_ns) const noexcept {
  if (failed_ || disconnected_) return true;
  if (framed_ == nullptr || !dials_.empty()) return false;
  if (!framed_->settled()) return false;
  if (framed_->down()) return true;
  if (framed_->frame_deadline_ns() != kNoDeadline) return false;
  return idle_passes_ >= kQuietPasses &&
         now_ns > std::max(opened_ns_, framed_->last_activity_ns()) + kQuietNs;
}

uint64_t Connection::next_ns() const noexcept {
  if (connector_ != nullptr) return connector_->next_ns();
  const uint64_t frames_ns = framed_ == nullptr ? kNoDeadline : framed_->frame_deadline_ns();
  return dials_.empty() ? frames_ns : std::min(frames_ns, dials_deadline_ns_);
}

int32_t Connection::import(const towline_region_args& args, const void* token, size_t token_bytes,
                           towline_import** import, char how[64]) {
  uint64_t most_bytes = UINT64_MAX;
  if (args.region.kind == TOWLINE_MEMORY_VRAM) {
    LandingToken landing;
    if (token_bytes == 0)
      return host().refuse(
          Status::kUnsupported,
          "the peer does not offer its GPU memory over tcp: its version of Towline is older");
    if (const char* wrong = unpack({static_cast<const uint8_t*>(token), token_bytes}, landing))
      return host().refuse(Status::kProtocol, fmt::format("the peer's token of GPU memory: {}", wrong));
    most_bytes = landing.most_frame_bytes;
  } else if (args.region.kind != TOWLINE_MEMORY_DRAM) {
    return host().refuse(Status::kUnsupported, "tcp reaches dram and vram only");
  }
  // Frames name regions by key: what is kept is how large those may be.
  Import* made = &any_frames;
  if (most_bytes != UINT64_MAX) made = new Import{most_bytes};
  *import = reinterpret_cast<towline_import*>(made);
  std::string text = address_.is_unix() ? "frames over a Unix socket" : "frames over tcp";
  if (backend_.flows() != nullptr)
    text += ", " + backend_.flows()->how();
  else if (args.region.kind == TOWLINE_MEMORY_VRAM)
    text += ", by host memory of its owner";
  if (backend_.options().keys != nullptr && !address_.is_unix()) text += ", TLS";
  std::snprintf(how, 64, "%s", text.c_str());
  return TOWLINE_OK;
}

void Connection::unimport(towline_import* import) noexcept {
  auto* const made = reinterpret_cast<Import*>(import);
  if (made != &any_frames) delete made;
}

int32_t Connection::prepare(const towline_prepare_args& args, towline_prepared** prepared) {
  if (framed_ == nullptr) return failed_ ? TOWLINE_PEER_LOST : TOWLINE_AGAIN;
  const towline_plan& plan = *args.plan;
  for (uint64_t i = 0; args.local != nullptr && i < plan.local->region_count; ++i) {
    const towline_region_ref& region = plan.local->regions[i];
    if (region.kind != TOWLINE_MEMORY_VRAM || args.local[i] != nullptr) continue;
    if (const int32_t status = backend_.check_landing(region); status != TOWLINE_OK) return status;
    return host().refuse(Status::kUnsupported,
                         "tcp did not take this agent's GPU memory when it was registered");
  }
  uint64_t most_bytes = UINT64_MAX;
  for (uint64_t i = 0; args.remote != nullptr && i < plan.remote->region_count; ++i)
    most_bytes = std::min(most_bytes, reinterpret_cast<const Import*>(args.remote[i])->most_frame_bytes);
  return framed_->prepare(args, prepared, most_bytes);
}

int32_t Connection::send(const void* message, size_t bytes) noexcept {
  if (framed_ == nullptr) return failed_ ? TOWLINE_PEER_LOST : TOWLINE_AGAIN;
  activate();
  return framed_->send(message, bytes);
}

void Connection::disconnect() noexcept {
  connector_.reset();
  dials_.clear();
  if (framed_ != nullptr) framed_->close();
  if (framed_ != nullptr && !framed_->settled()) wait_for_copies();
  disconnected_ = true;
  backend_.retire(*this);  // deletes this, now or soon
}

int32_t Connection::settle() noexcept {
  if (framed_ == nullptr || framed_->settled()) return TOWLINE_OK;
  const uint64_t now_ns = host().now_ns();
  if (lent_until_ns_ == 0) lent_until_ns_ = now_ns + kPeerReadsNs;
  const bool peer_may_read = !framed_->down() && !framed_->copying() && now_ns < lent_until_ns_;
  // Calls off everything that has not begun.
  if (!framed_->down() && !peer_may_read) framed_->fail(Status::kClosed, "the connection is being ended");
  activate();
  return TOWLINE_AGAIN;
}

// The core goes on without us. Only the end of an agent comes here while a GPU copies, or the kernel sends what it was
// lent: then for a second.
void Connection::wait_for_copies() noexcept {
  const uint64_t now_ns = monotonic_now_ns();
  const uint64_t until_ns = now_ns + kSecondNs;
  bool called_in = false;
  while (!framed_->settled() && monotonic_now_ns() < until_ns) {
    if (!called_in && monotonic_now_ns() > now_ns + kPeerReadsNs) {
      called_in = true;
      framed_->call_loans_in();
    }
    (void)framed_->progress(host().now_ns());
    cpu_pause();
  }
  if (framed_->settled()) return;
  framed_->give_up();
  keep_for_good(framed_.release());
}

std::string Connection::describe() const {
  std::string address = address_.text();
  std::replace_if(
      address.begin(), address.end(),
      [](char c) { return c == '"' || c == '\\' || static_cast<unsigned char>(c) < ' '; }, '?');
  return fmt::format(R"({{"peer": "{}", "dialled": {}, "framing": {}}})", address, connector_side_,
                     framed_ == nullptr ? "{}" : framed_->describe());
}

}  // namespace towline::tcp
