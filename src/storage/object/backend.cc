#include "storage/object/backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/config/config.h"
#include "towline/towline.h"

namespace towline::object {

namespace {

constexpr uint64_t kReapAtEndNs = 10 * kSecondNs;  // a busy server takes more than 2 s

Environment process_environment() {
  const auto config = std::make_shared<const Config>(Config::from_process());
  return [config](const std::string& name) { return config->environment(name); };
}

}  // namespace

Backend::Backend(ServerKind kind, const plugin::Host& host)
    : OwnBackend(host), service_(kind, this->host(), process_environment()), joins_(*this) {
  for (uint32_t i = 0; i < host.worker_count(); ++i) queues_.push_back(std::make_unique<JobQueue>(*this, i));
}

Backend::~Backend() {
  if (reaper_ != nullptr && reaper_->waiting() != 0) reaper_->finish(monotonic_now_ns() + kReapAtEndNs);
}

void Backend::start_clients() {
  std::call_once(started_, [this] {
    std::vector<std::unique_ptr<Client>> made;
    const uint32_t count = std::min(service_.settings.threads, service_.settings.concurrency);
    for (uint32_t i = 0; i < count; ++i) made.push_back(std::make_unique<Client>(service_, count));
    clients_ = std::move(made);
    reaper_ = std::make_unique<Reaper>(*clients_[0]);
  });
}

// The one with the fewest tasks, and of those the first: what comes one at a time finds a connection that is in use, and
// a thread whose memory is in the caches.
Client& Backend::next_client() noexcept {
  return **std::ranges::min_element(clients_, {}, [](const auto& client) { return client->tasks(); });
}

size_t Backend::clients_for(size_t objects) const noexcept {
  const size_t each =
      service_.settings.concurrency / clients_.size();  // requests that a client has under way
  return std::clamp<size_t>((objects + each - 1) / each, 1, clients_.size());
}

Object* Backend::find(uint64_t id) const {
  std::lock_guard lock(objects_mutex_);
  const auto found = objects_.find(id);
  return found == objects_.end() ? nullptr : found->second.get();
}

uint64_t Backend::id_of(const towline_storage* storage) const noexcept {
  return reinterpret_cast<const Object*>(storage)->id();
}

std::string Backend::describe(uint32_t worker) const {
  uint32_t under_way = 0;
  for (const auto& client : clients_) under_way += client->under_way();
  const bool known = service_.settings.kind != ServerKind::kAzure || service_.settings.endpoint.has_value();
  const Endpoint endpoint = known ? service_.endpoint("") : Endpoint{};
  return nlohmann::json{{"storage", backend_name(service_.settings.kind)},
                        {"endpoint", known ? endpoint.scheme + "://" + endpoint.host + endpoint.path : ""},
                        {"region", service_.settings.region},
                        {"credentials", service_.credentials.describe()},
                        {"jobs", queues_[worker]->jobs()},
                        {"requests", under_way},
                        {"retries", service_.retries.load()},
                        {"uploads_to_abort", reaper_ == nullptr ? 0 : reaper_->waiting()},
                        {"last_failure", service_.last_failure()}}
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace towline::object
