#include "storage/object/backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/config.h"
#include "towline/towline.h"

namespace towline::object {

namespace {

constexpr uint64_t kReapAtEndNs = 2 * kSecondNs;

Environment process_environment() {
  const auto config = std::make_shared<const Config>(Config::from_process());
  return [config](const std::string& name) { return config->environment(name); };
}

}  // namespace

Backend::Backend(const plugin::Host& host)
    : BackendBase(host),
      service_(this->host(), process_environment()),
      workers_(host.worker_count()),
      joins_(*this) {
  for (uint32_t i = 0; i < workers_.size(); ++i) workers_[i].queue = std::make_unique<JobQueue>(*this, i);
}

Backend::~Backend() {
  if (reaper_ != nullptr && reaper_->waiting() != 0) reaper_->finish(monotonic_now_ns() + kReapAtEndNs);
}

void Backend::start_clients() {
  std::call_once(started_, [this] {
    std::vector<std::unique_ptr<Client>> made;
    for (uint32_t i = 0; i < service_.settings.threads; ++i)
      made.push_back(std::make_unique<Client>(service_));
    clients_ = std::move(made);
    reaper_ = std::make_unique<Reaper>(*clients_[0]);
  });
}

Client& Backend::next_client() noexcept {
  return *clients_[turn_.fetch_add(1, std::memory_order_relaxed) % clients_.size()];
}

Object* Backend::find(uint64_t id) const {
  std::lock_guard lock(objects_mutex_);
  const auto found = objects_.find(id);
  return found == objects_.end() ? nullptr : found->second.get();
}

// ---- regions

int32_t Backend::add(const towline_region_args& args, towline_registration** registration, void* token,
                     size_t* token_bytes) {
  *token_bytes = 0;
  if (args.region.kind != TOWLINE_DRAM) {
    if (args.storage == nullptr)
      return host().refuse(Status::kUnsupported, "object: it did not open this region's object");
    const uint64_t id = reinterpret_cast<const Object*>(args.storage)->id();
    std::memcpy(token, &id, sizeof id);
    *token_bytes = sizeof id;
  }
  *registration = reinterpret_cast<towline_registration*>(this);  // nothing to keep
  return TOWLINE_OK;
}

// ---- connections

bool Backend::is_us(const towline_identity& peer) const noexcept {
  const towline_identity& self = host().self();
  return std::equal(std::begin(peer.incarnation), std::end(peer.incarnation), std::begin(self.incarnation));
}

int32_t Backend::address(void* address, size_t* bytes) {
  constexpr char kSelf[] = "self";
  if (*bytes < sizeof kSelf) return host().refuse(Status::kNoSpace, "object: no room for the address");
  std::memcpy(address, kSelf, sizeof kSelf);
  *bytes = sizeof kSelf;
  return TOWLINE_OK;
}

int32_t Backend::probe(const towline_identity& peer, const void*, size_t) {
  if (is_us(peer)) return TOWLINE_OK;
  return host().refuse(Status::kUnreachable, "object: objects are reached by the agent that registered them");
}

int32_t Backend::connect(uint32_t worker, const towline_identity& identity, const void*, size_t, uint64_t,
                         void* peer, Connection** connection) {
  if (!is_us(identity))
    return host().refuse(Status::kUnreachable,
                         "object: objects are reached by the agent that registered them");
  auto made = std::make_unique<Connection>(*this, worker, peer);
  workers_[worker].connections.push_back(made.get());
  *connection = made.release();
  host().connection_event(peer, TOWLINE_CONNECTION_UP, Status::kOk, "");
  return TOWLINE_OK;
}

void Backend::release(Connection* connection) noexcept {
  Worker& worker = workers_[connection->worker()];
  std::replace(worker.connections.begin(), worker.connections.end(), connection,
               static_cast<Connection*>(nullptr));
  worker.dead.push_back(connection);
  if (!worker.in_pass) bury(worker);
}

void Backend::bury(Worker& worker) noexcept {
  for (Connection* connection : worker.dead) delete connection;
  worker.dead.clear();
  std::erase(worker.connections, nullptr);
}

// ---- progress

uint32_t Backend::progress(uint32_t index, uint64_t) noexcept {
  Worker& worker = workers_[index];
  if (worker.in_pass) return 0;
  worker.in_pass = true;
  uint32_t done = worker.queue->progress();
  for (size_t i = 0; i < worker.connections.size(); ++i) {
    if (worker.connections[i] != nullptr && worker.connections[i]->has_messages())
      done += worker.connections[i]->deliver();
  }
  worker.in_pass = false;
  if (!worker.dead.empty()) bury(worker);
  return done;
}

bool Backend::arm(uint32_t index) noexcept {
  const Worker& worker = workers_[index];
  return worker.queue->has_work() ||
         std::any_of(worker.connections.begin(), worker.connections.end(), [](const Connection* connection) {
           return connection != nullptr && connection->has_messages();
         });
}

std::string Backend::describe(uint32_t worker) const {
  uint32_t under_way = 0;
  for (const auto& client : clients_) under_way += client->under_way();
  const Endpoint endpoint = service_.endpoint("");
  return nlohmann::json{{"storage", "object"},
                        {"endpoint", endpoint.scheme + "://" + endpoint.host},
                        {"region", service_.settings.region},
                        {"credentials", service_.credentials.describe()},
                        {"jobs", workers_[worker].queue->jobs()},
                        {"requests", under_way},
                        {"retries", service_.retries.load()},
                        {"uploads_to_abort", reaper_ == nullptr ? 0 : reaper_->waiting()},
                        {"last_failure", service_.last_failure()}}
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace towline::object
