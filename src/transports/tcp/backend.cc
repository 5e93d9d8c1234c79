#include "transports/tcp/backend.h"

#include <sys/epoll.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/clock.h"
#include "base/error.h"
#include "base/short_text.h"
#include "towline/towline.h"

namespace towline::tcp {
namespace {

Options with_addresses(Options options, const Flows* flows) {
  if (flows != nullptr) options.own_addresses = flows->addresses();
  return options;
}

}  // namespace

Backend::Backend(const plugin::Host& host, const char* name, Flows* flows)
    : BackendBase(host),
      name_(name),
      flows_(flows),
      options_(with_addresses(Options::read(this->host(), name), flows)),
      sources_(options_.limits) {
  for (uint32_t i = 0; i < std::max(this->host().worker_count(), 1u); ++i)
    workers_.push_back(std::make_unique<Worker>());
  if (options_.listen.empty() && options_.unix_dir.empty()) return;
  try {
    acceptor_ = std::make_unique<Acceptor>(this->host(), options_, sources_,
                                           [this](Arrival arrival) { deliver(std::move(arrival)); });
  } catch (const Error& error) {
    throw plugin::Failure(error.code(), error.message());
  }
}

Backend::~Backend() {
  for (uint32_t i = 0; i < workers_.size(); ++i) {
    if (workers_[i]->alarm.is_open()) host().unwatch(i, workers_[i]->alarm.fd());
  }
}

// ---- tables

int32_t Backend::add(const towline_region_args& args, towline_registration** registration, void* token,
                     size_t* token_bytes) {
  *token_bytes = 0;
  if (args.region.kind == TOWLINE_MEMORY_VRAM) {
    const int32_t status = check_landing(args.region);
    if (status != TOWLINE_OK) return status;
    const std::vector<uint8_t> bytes = pack(LandingToken{framing::kLandingSlotBytes});
    std::memcpy(token, bytes.data(), bytes.size());
    *token_bytes = bytes.size();
  } else if (args.region.kind != TOWLINE_MEMORY_DRAM) {
    return host().refuse(Status::kUnsupported, fmt::format("{} moves dram and vram only", name_));
  }
  *registration =
      reinterpret_cast<towline_registration*>(this);  // nothing to keep: the core pins what frames name
  return TOWLINE_OK;
}

// GPU memory is copied for us by another backend of this agent.
int32_t Backend::check_landing(const towline_region_ref& region) const {
  const towline_landing_table_v1* table = nullptr;
  towline_backend* lander = nullptr;
  const int32_t status = host().landing(&table, &lander);
  return status == TOWLINE_OK ? table->check(lander, &region) : status;
}

int32_t Backend::address(void* address, size_t* bytes) {
  if (acceptor_ == nullptr) {
    *bytes = 0;
    return TOWLINE_OK;
  }
  std::vector<std::string> endpoints = acceptor_->endpoints();
  put_own_first(endpoints, options_.own_addresses);
  const std::vector<uint8_t> packed = pack_address(endpoints);
  if (packed.size() > *bytes) return host().refuse(Status::kLimitExceeded, "no room for the address");
  std::memcpy(address, packed.data(), packed.size());
  *bytes = packed.size();
  return TOWLINE_OK;
}

bool is_same_host(const towline_identity& self, const towline_identity& peer) noexcept {
  return self.host[0] == peer.host[0] && self.host[1] == peer.host[1] && (self.host[0] | self.host[1]) != 0;
}

// Peers try them in this order.
void put_own_first(std::vector<std::string>& endpoints, const std::vector<SocketAddress>& own) {
  std::stable_partition(endpoints.begin(), endpoints.end(), [&](const std::string& text) {
    const std::optional<SocketAddress> address = numeric_address(parse_endpoint(text));
    return address && std::find(own.begin(), own.end(), address->with_port(0)) != own.end();
  });
}

std::vector<SocketAddress> choose_candidates(const towline_identity& self, const towline_identity& peer,
                                             const std::vector<std::string>& endpoints) {
  const bool same_host = is_same_host(self, peer);
  const bool same_network =
      same_host && self.network_namespace != 0 && self.network_namespace == peer.network_namespace;
  std::vector<SocketAddress> unix_sockets;
  std::vector<SocketAddress> loopback;
  std::vector<SocketAddress> others;
  for (const std::string& text : endpoints) {
    try {
      const std::optional<SocketAddress> address = numeric_address(parse_endpoint(text));
      if (!address) continue;
      (address->is_unix() ? unix_sockets : address->is_loopback() ? loopback : others).push_back(*address);
    } catch (const Error&) {  // a later version may know more forms
    }
  }
  std::vector<SocketAddress> candidates;
  const auto append = [&](const std::vector<SocketAddress>& more) {
    candidates.insert(candidates.end(), more.begin(), more.end());
  };
  if (same_host) append(unix_sockets);
  if (same_network) append(loopback);
  append(others);
  // The peer is on another network: a loopback address can only lead there if somebody forwards ports.
  if (candidates.empty()) append(loopback);
  return candidates;
}

int32_t Backend::probe(const towline_identity& peer, const void* address, size_t bytes) {
  std::vector<std::string> endpoints;
  const char* problem = unpack_address({static_cast<const uint8_t*>(address), bytes}, endpoints);
  if (problem != nullptr)
    return host().refuse(Status::kProtocol, fmt::format("the peer's {} address: {}", name_, problem));
  if (!choose_candidates(host().self(), peer, endpoints).empty()) return TOWLINE_OK;
  return host().refuse(Status::kUnreachable, "the peer has a Unix socket on another host only");
}

int32_t Backend::connect(uint32_t worker, const towline_identity& peer, const void* address, size_t bytes,
                         uint64_t deadline_ns, void* cookie, Connection** connection) {
  const int32_t reachable = probe(peer, address, bytes);
  if (reachable != TOWLINE_OK) return reachable;
  std::vector<std::string> endpoints;
  if (unpack_address({static_cast<const uint8_t*>(address), bytes}, endpoints) != nullptr)
    return TOWLINE_PROTOCOL;
  auto made = make_connection(worker, cookie);
  made->connect(peer, choose_candidates(host().self(), peer, endpoints), deadline_ns);
  *connection = made.release();
  return TOWLINE_OK;
}

// ---- arrivals

// On worker 0. Another worker's connections are its own affair: it finds the socket in its inbox.
void Backend::deliver(Arrival arrival) {
  const uint32_t index = arrival.hello.worker % static_cast<uint32_t>(workers_.size());
  workers_[index]->inbox.put(std::move(arrival));
  host().wake(index);
}

uint32_t Backend::take_arrivals(uint32_t index) {
  std::vector<Arrival> arrivals = workers_[index]->inbox.take();
  for (Arrival& arrival : arrivals) {
    try {
      take_arrival(index, std::move(arrival));
    } catch (const std::exception& error) {
      host().log(1, ShortText("taking a connection: {}", error.what()));
    }
  }
  return static_cast<uint32_t>(arrivals.size());
}

void Backend::take_arrival(uint32_t index, Arrival arrival) {
  Worker& worker = *workers_[index];
  const Id id = arrival.hello.connection;
  const auto known = worker.accepted.find(id);
  if (arrival.hello.lane != 0 || known != worker.accepted.end()) {
    if (known != worker.accepted.end() && arrival.hello.lane != 0)
      return known->second->join(std::move(arrival));
    send_reply(host(), arrival.stream, Status::kNotFound, "there is no such connection");
    return;
  }
  auto made = make_connection(index, nullptr);
  worker.accepted.emplace(id, made.get());
  try {
    if (made->accept(std::move(arrival))) {
      (void)made.release();  // the core's until disconnect()
      return;
    }
  } catch (...) {
    worker.accepted.erase(id);
    throw;
  }
  worker.accepted.erase(id);
}

// ---- progress

uint32_t Backend::progress(uint32_t index, uint64_t now_ns) noexcept {
  Worker& worker = *workers_[index];
  uint32_t done = 0;
  worker.in_progress = true;
  if (!worker.inbox.empty()) {
    try {
      done += take_arrivals(index);
    } catch (const std::exception& error) {
      host().log(1, ShortText("taking a connection: {}", error.what()));
    }
  }
  if (index == 0 && acceptor_ != nullptr && now_ns >= acceptor_->next_ns()) done += acceptor_->expire(now_ns);
  // Connections may come, and be retired, meanwhile.
  for (std::size_t i = 0; i < worker.active.size(); ++i) {
    Connection* const connection = worker.active[i];
    if (connection == nullptr) continue;
    const uint32_t here = connection->progress(now_ns);
    done += here;
    if (here != 0 || worker.active[i] != connection || !connection->quiet(now_ns) || connection->arm())
      continue;
    connection->set_inactive();
    worker.active[i] = nullptr;
  }
  std::erase(worker.active, nullptr);
  worker.in_progress = false;
  worker.retired.clear();
  return done;
}

bool Backend::arm(uint32_t index) noexcept {
  Worker& worker = *workers_[index];
  uint64_t next_ns = index == 0 && acceptor_ != nullptr ? acceptor_->next_ns() : kNoDeadline;
  for (const Connection* connection : worker.active) next_ns = std::min(next_ns, connection->next_ns());
  const uint64_t now_ns = next_ns == kNoDeadline ? 0 : host().now_ns();
  if (!worker.inbox.empty() || next_ns <= now_ns) return true;
  for (std::size_t i = 0; i < worker.active.size(); ++i) {
    if (!worker.active[i]->arm()) continue;
    for (std::size_t j = 0; j <= i; ++j) worker.active[j]->disarm();
    return true;
  }
  set_timer(index, next_ns, now_ns);
  return false;
}

void Backend::disarm(uint32_t index) noexcept {
  for (Connection* connection : workers_[index]->active) connection->disarm();
}

// Handshakes end by their deadlines also when nothing else wakes the worker.
void Backend::set_timer(uint32_t index, uint64_t next_ns, uint64_t now_ns) noexcept {
  workers_[index]->alarm.ring_at(next_ns, now_ns, [&](int fd, auto rung, Alarm* alarm) {
    return host().watch(index, fd, EPOLLIN, rung, alarm) == TOWLINE_OK;
  });
}

// ---- connections' lists

// The lists have room for all connections of the worker: add_active() and retire() have no way to fail.
std::unique_ptr<Connection> Backend::make_connection(uint32_t index, void* peer) {
  Worker& worker = *workers_[index];
  const std::size_t room = std::bit_ceil(worker.connections + 1);
  worker.active.reserve(room);
  worker.retired.reserve(room);
  return std::make_unique<Connection>(*this, index, peer);
}

void Backend::add_active(Connection& connection) noexcept {
  std::vector<Connection*>& active = workers_[connection.worker()]->active;
  if (active.size() < active.capacity()) {
    active.push_back(&connection);
  } else {  // one that has become inactive in this pass left its place
    *std::find(active.begin(), active.end(), nullptr) = &connection;
  }
}

void Backend::retire(Connection& connection) noexcept {
  Worker& worker = *workers_[connection.worker()];
  const auto accepted = worker.accepted.find(connection.id());
  if (accepted != worker.accepted.end() && accepted->second == &connection) worker.accepted.erase(accepted);
  std::unique_ptr<Connection> owned(&connection);
  if (!worker.in_progress) {
    std::erase(worker.active, &connection);
    return;
  }
  std::replace(worker.active.begin(), worker.active.end(), &connection, static_cast<Connection*>(nullptr));
  worker.retired.push_back(std::move(owned));
}

void Backend::note_open(const SocketAddress& address, int fd) {
  // A connection to one of the host's own addresses comes from that address.
  const bool here = address.is_loopback() || SocketAddress::local_of(fd).with_port(0) == address.with_port(0);
  if (here || options_.keys != nullptr || warned_.exchange(true, std::memory_order_relaxed)) return;
  host().log(
      1, fmt::format(
             "connected to {}: data leaves this host neither authenticated nor encrypted: secure.key_file or "
             "certificates (docs/security.md) secure it",
             address.text()));
}

}  // namespace towline::tcp
