#include "transports/nixl/backend.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "base/clock.h"

namespace towline::nixl_net {

namespace {

constexpr uint64_t kPollForNs = kMillisecondNs;         // after the last part began or ended
constexpr uint64_t kAskEveryNs = 100 * kMicrosecondNs;  // from then on
constexpr uint64_t kCarrierMark = 0x6e69786e;

// Two instances of tcp can't listen at one port. Faults are injected into transports, not into what carries them.
const char* carrier_setting(const plugin::Host& host, const char* key) {
  const towline_host_v1_t& table = *host.table();
  if (key == std::string_view{"tcp.listen"}) return table.config(table.context, "tuning.nixl_net.listen", "");
  if (key == std::string_view{"faults"}) return "";
  return nullptr;
}

carrier::CarrierOptions tcp_carrier(const plugin::Host& host) {
  const towline_plugin_v1_t* const tcp = host.builtin("tcp");
  if (tcp == nullptr)
    throw plugin::Failure(Status::kUnsupported,
                          std::string(kName) + ": this Towline has no tcp transport to carry its messages");
  return {.plugin = tcp, .owner = kName, .mark = kCarrierMark, .setting = carrier_setting};
}

}  // namespace

std::string engine_name_of(const uint64_t incarnation[2], uint32_t worker) {
  return fmt::format("towline-{:016x}{:016x}-{}", incarnation[0], incarnation[1], worker);
}

Backend::Backend(const plugin::Host& host) : BackendBase(host), settings_(Settings::read(this->host())) {
  for (uint32_t i = 0; i < std::max(this->host().worker_count(), 1u); ++i) {
    workers_.push_back(std::make_unique<Worker>());
    workers_.back()->engine = std::make_unique<WorkerEngine>(
        this->host(), settings_, engine_name_of(this->host().self().incarnation, i));
  }
  carrier_.emplace(this->host(), static_cast<carrier::CarrierOwner&>(*this), tcp_carrier(this->host()));
}

Backend::~Backend() {
  for (uint32_t i = 0; i < workers_.size(); ++i)
    if (workers_[i]->alarm.is_open()) host().unwatch(i, workers_[i]->alarm.fd());
  carrier_.reset();
}

// ---- memory

int32_t Backend::add(const towline_region_args& args, towline_registration** registration, void*,
                     size_t* token_bytes) {
  *token_bytes = 0;
  if (args.region.kind != TOWLINE_MEMORY_DRAM && args.region.kind != TOWLINE_MEMORY_VRAM)
    return refuse(Status::kUnsupported, "only dram and vram are registered");
  auto region = std::make_unique<Registered>();
  region->region = args.region;
  region->memory.reserve(workers_.size());
  try {
    for (const auto& worker : workers_) region->memory.push_back(worker->engine->add_memory(args.region));
  } catch (...) {
    for (std::size_t i = 0; i < region->memory.size(); ++i)
      workers_[i]->engine->remove_memory(region->memory[i]);
    throw;
  }
  *registration = reinterpret_cast<towline_registration*>(region.get());
  const std::lock_guard lock(regions_mutex_);
  regions_[args.region.key] = std::move(region);
  return TOWLINE_OK;
}

// No peer reaches it any more, or the peers that did are gone.
void Backend::remove(towline_registration* registration) noexcept {
  std::unique_ptr<Registered> region;
  {
    const std::lock_guard lock(regions_mutex_);
    const auto found = regions_.find(reinterpret_cast<const Registered*>(registration)->region.key);
    if (found == regions_.end()) return;
    region = std::move(found->second);
    regions_.erase(found);
  }
  for (std::size_t i = 0; i < region->memory.size(); ++i)
    workers_[i]->engine->remove_memory(region->memory[i]);
}

Answer Backend::answer(uint64_t key, uint32_t worker) const {
  Answer answer;
  answer.key = key;
  const std::lock_guard lock(regions_mutex_);
  const auto found = regions_.find(key);
  if (found == regions_.end() || !host().may_be_reached(found->second->region)) {
    answer.status = Status::kStale;
    answer.reason = "it has no such region any more, or none that its engine serves";
  } else if ((found->second->region.flags & TOWLINE_REGION_GUARDED) != 0) {
    answer.status = Status::kPermissionDenied;
    answer.reason = "the region is guarded";
  } else {
    answer.public_data = found->second->memory[worker].public_data;
  }
  return answer;
}

// ---- connections

int32_t Backend::address(void* address, size_t* bytes) {
  Address mine;
  mine.type = type();
  mine.carrier.resize(*bytes);
  std::size_t carrier_bytes = mine.carrier.size();
  const int32_t status = carrier_->address(mine.carrier.data(), &carrier_bytes);
  if (status != TOWLINE_OK) return status;
  if (carrier_bytes == 0) {
    *bytes = 0;
    return TOWLINE_OK;
  }
  mine.carrier.resize(carrier_bytes);
  const std::vector<uint8_t> packed = encode(mine);
  if (packed.size() > *bytes) return refuse(Status::kLimitExceeded, "no room for the address");
  std::memcpy(address, packed.data(), packed.size());
  *bytes = packed.size();
  return TOWLINE_OK;
}

int32_t Backend::probe(const towline_identity& peer, const void* address, size_t bytes) {
  const auto theirs = decode_address({static_cast<const uint8_t*>(address), bytes});
  if (!theirs) return refuse(Status::kProtocol, "the peer's address is malformed");
  if (theirs->type != type())
    return refuse(Status::kUnreachable, fmt::format("the peer has another plugin than {}", type()));
  return carrier_->probe(peer, theirs->carrier.data(), theirs->carrier.size());
}

int32_t Backend::connect(uint32_t index, const towline_identity& identity, const void* address, size_t bytes,
                         uint64_t deadline_ns, void* peer, Connection** out) {
  const int32_t reachable = probe(identity, address, bytes);
  if (reachable != TOWLINE_OK) return reachable;
  const auto theirs = decode_address({static_cast<const uint8_t*>(address), bytes});
  const Scope scope{*this, index};
  auto* const connection =
      workers_[index]->connections.add(std::make_unique<Connection>(*this, index, identity, peer));
  const int32_t status = connection->connect(identity, theirs->carrier, deadline_ns);
  if (status != TOWLINE_OK)
    release(connection);
  else
    *out = connection;
  return status;
}

int32_t Backend::on_accepted(uint32_t index, towline_connection* carried, const towline_identity& identity,
                             carrier::CarrierEvents** events) {
  const Scope scope{*this, index};
  auto* const connection =
      workers_[index]->connections.add(std::make_unique<Connection>(*this, index, identity, nullptr));
  const int32_t status = connection->accept(carried, identity);
  if (status < 0)
    release(connection);
  else
    *events = connection->events();  // the core's until disconnect()
  return status;
}

void Backend::release(Connection* connection) noexcept {
  Worker& worker = *workers_[connection->worker()];
  std::erase(worker.eager, connection);
  worker.connections.release(connection);
}

void Backend::add_eager(Connection& connection) {
  std::vector<Connection*>& eager = workers_[connection.worker()]->eager;
  if (std::find(eager.begin(), eager.end(), &connection) == eager.end()) eager.push_back(&connection);
}

// ---- progress

uint32_t Backend::progress(uint32_t index, uint64_t now_ns) noexcept {
  const Scope scope{*this, index};
  Worker& worker = *workers_[index];
  uint32_t done = carrier_->progress(index, now_ns);
  done += worker.engine->progress(now_ns);
  for (std::size_t i = worker.eager.size(); i-- > 0;) {
    if (!worker.eager[i]->flush()) continue;
    worker.eager[i] = worker.eager.back();
    worker.eager.pop_back();
    ++done;
  }
  // The engine's own thread, and the peer, have to run as well: where there are fewer processors, in turn.
  if (done == 0 && worker.engine->busy()) sched_yield();
  return done;
}

// An engine tells nothing by itself: soon after a part began it is asked without a pause, and later now and then.
bool Backend::arm(uint32_t index) noexcept {
  Worker& worker = *workers_[index];
  const bool unsent = std::any_of(worker.eager.begin(), worker.eager.end(),
                                  [](const Connection* connection) { return connection->has_unsent(); });
  if (unsent || carrier_->arm(index)) return true;
  if (worker.engine->busy()) {
    const uint64_t now_ns = host().now_ns();
    if (now_ns < worker.engine->last_event_ns() + kPollForNs) {
      carrier_->disarm(index);
      return true;
    }
    worker.alarm.ring_at(now_ns + kAskEveryNs, now_ns, [&](int fd, auto rung, Alarm* alarm) {
      return host().watch(index, fd, EPOLLIN, rung, alarm) == TOWLINE_OK;
    });
  }
  worker.armed = true;
  return false;
}

void Backend::disarm(uint32_t index) noexcept {
  workers_[index]->armed = false;
  carrier_->disarm(index);
}

// ---- for people

std::string Backend::describe() const {
  uint64_t requests = 0;
  for (const auto& worker : workers_) requests += worker->engine->requests();
  return fmt::format(R"({{"plugin": "{}", "engines": {}, "requests": {}}})", type(), workers_.size(),
                     requests);
}

}  // namespace towline::nixl_net
