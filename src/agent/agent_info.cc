// Agent: its description as JSON, for people.
#include <algorithm>

#include <nlohmann/json.hpp>

#include "agent/agent.h"
#include "agent/link.h"
#include "agent/metadata_service.h"
#include "agent/route_planner.h"
#include "base/copy/copy.h"
#include "base/os/topology.h"
#include "memory/kind_name.h"
#include "telemetry/snapshot.h"

namespace towline {

namespace {

using nlohmann::json;

const char* health_name(uint32_t health) noexcept {
  constexpr const char* kNames[] = {"unknown", "alive", "suspect", "lost"};
  return health < 4 ? kNames[health] : "unknown";
}

json traits_of(uint32_t traits) {
  json names = json::array();
  if ((traits & TOWLINE_TRAIT_ONE_SIDED) != 0) names.push_back("one_sided");
  if ((traits & TOWLINE_TRAIT_OWNER_CHECKED) != 0) names.push_back("owner_checked");
  if ((traits & TOWLINE_TRAIT_STORAGE) != 0) names.push_back("storage");
  return names;
}

json kinds_of(uint32_t kinds) {
  json names = json::array();
  for (uint32_t kind = 0; kind < 5; ++kind) {
    if ((kinds & (1u << kind)) != 0) names.push_back(kind_name(kind));
  }
  return names;
}

json describe_moves(const Backend& backend) {
  constexpr const char* kWhere[] = {"nowhere", "same process", "same host", "any host"};
  json moves = json::array();
  for (const towline_move_v1& move : backend.moves) {
    json ops = json::array();
    if ((move.ops & (1u << TOWLINE_READ)) != 0) ops.push_back("read");
    if ((move.ops & (1u << TOWLINE_WRITE)) != 0) ops.push_back("write");
    moves.push_back({{"ops", ops},
                     {"local", kinds_of(move.local)},
                     {"remote", kinds_of(move.remote)},
                     {"where", kWhere[std::min<uint32_t>(move.where, TOWLINE_WHERE_ANY_HOST)]}});
  }
  return moves;
}

// The measured prices, largest size classes last.
json describe_prices(Prices& prices) {
  constexpr const char* kWhere[] = {"same process", "same host", "any host"};
  json all = json::array();
  for (uint32_t where = 0; where < Prices::kDistances; ++where) {
    for (uint32_t row = 0; row < Prices::kOps * 2; ++row) {
      const uint32_t op = row / 2 == 0 ? TOWLINE_READ : TOWLINE_WRITE;
      const PriceRow& of = prices.row(TOWLINE_WHERE_SAME_PROCESS + where, op, row % 2 != 0);
      for (uint32_t size = 0; size < PriceRow::kClasses; ++size) {
        const uint64_t bytes = std::min(PriceRow::largest_of(size), uint64_t{8} << 30);
        if (of.samples(bytes) == 0) continue;
        const Price price = of.of(bytes);
        all.push_back({{"op", op == TOWLINE_READ ? "read" : "write"},
                       {"where", kWhere[where]},
                       {"gpu", row % 2 != 0},
                       {"bytes", bytes},
                       {"ns", static_cast<uint64_t>(price.ns)},
                       {"samples", price.samples}});
      }
    }
  }
  return all;
}

json describe_backend(const Backend& backend) {
  json entry = {{"name", backend.name}, {"step", step_name(backend.step)}, {"usable", backend.open()}};
  if (!backend.file.empty()) entry["file"] = backend.file;
  if (!backend.open()) entry["reason"] = backend.why_not_open();
  if (backend.plugin == nullptr) return entry;
  entry["version"] = backend.plugin->version;
  entry["description"] = backend.plugin->description;
  entry["traits"] = traits_of(backend.plugin->traits);
  entry["kinds"] = kinds_of(backend.kinds);
  entry["moves"] = describe_moves(backend);
  entry["cost"] = backend.plugin->cost;
  entry["prices"] = describe_prices(*backend.prices);
  if (backend.plugin->worst_fence_ns != UINT64_MAX) entry["worst_fence_ns"] = backend.plugin->worst_fence_ns;
  entry["fence_reason"] = backend.plugin->fence_reason;
  return entry;
}

// Under worker 0's lock.
json ask_backend(const Backend& backend) {
  if (!backend.open() || backend.plugin->describe == nullptr) return nullptr;
  char text[4096] = "";
  if (backend.plugin->describe(backend.handle, text, sizeof text) != TOWLINE_OK) return nullptr;
  return json::parse(text, nullptr, false);
}

json describe_topology() {
  const HostTopology topology = read_host_topology();
  json nodes = json::array();
  for (const NumaNode& node : topology.nodes) {
    nodes.push_back({{"id", node.id}, {"cpus", node.cpus}, {"memory_bytes", node.memory_bytes}});
  }
  json huge_pages = json::array();
  for (const HugePageSize& size : topology.huge_pages) {
    huge_pages.push_back({{"bytes", size.bytes}, {"reserved", size.reserved}, {"free", size.free}});
  }
  return {{"numa_nodes", nodes},
          {"online_cpus", topology.online_cpus.size()},
          {"allowed_cpus", topology.allowed_cpus.size()},
          {"huge_pages", huge_pages}};
}

json describe_staging(const std::vector<Staging::Use>& pools, const StagingSettings& settings) {
  json all = {{"limit_bytes", settings.bytes},
              {"chunk_bytes", settings.chunk_bytes},
              {"bytes", 0},
              {"sets", 0},
              {"sets_in_use", 0},
              {"transfers", 0}};
  json entries = json::array();
  for (const Staging::Use& pool : pools) {
    const json entry = {{"memory", pool.name},
                        {"bytes", pool.bytes},
                        {"sets", pool.sets},
                        {"sets_in_use", pool.sets_in_use},
                        {"transfers", pool.transfers}};
    for (const char* sum : {"bytes", "sets", "sets_in_use", "transfers"})
      all[sum] = all[sum].get<uint64_t>() + entry[sum].get<uint64_t>();
    entries.push_back(entry);
  }
  all["pools"] = std::move(entries);
  return all;
}

json describe_places(const std::vector<std::unique_ptr<Worker>>& workers, bool hosted) {
  json places = json::array();
  for (const auto& worker : workers) {
    const WorkerPlace& place = worker->place();
    json entry = {{"why", hosted ? place.why : "any processor: the application drives it"}};
    if (hosted && !place.cpus.empty()) entry["cpus"] = place.cpus;
    if (hosted && place.node) entry["numa_node"] = *place.node;
    places.push_back(std::move(entry));
  }
  return places;
}

// Names may hold any byte; JSON wants UTF-8.
std::string dump(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

}  // namespace

std::string Agent::address() const {
  if (metadata_service_ == nullptr) return {};
  const std::vector<std::string> addresses = metadata_service_->addresses();
  return addresses.empty() ? "" : addresses.front();
}

std::string Agent::info() {
  check_usable();
  json result = {{"schema", TOWLINE_JSON_SCHEMA},
                 {"name", name()},
                 {"incarnation", incarnation_text_},
                 {"version", {TOWLINE_VERSION_MAJOR, TOWLINE_VERSION_MINOR, TOWLINE_VERSION_PATCH}},
                 {"progress", hosted() ? "hosted" : "caller"},
                 {"workers", workers_.size()},
                 {"worker_places", describe_places(workers_, hosted())},
                 {"copies", describe_copies()},
                 {"listen", metadata_service_ ? json(metadata_service_->addresses()) : json::array()},
                 {"secure", keys_ == nullptr ? json() : json(keys_->describe())},
                 {"backends", json::array()},
                 {"not_asked_for", backends_->not_wanted()},
                 {"regions", json::array()},
                 {"peers", json::array()},
                 {"staging", describe_staging(staging_->use(), staging_->settings())},
                 {"topology", describe_topology()}};
  for (const auto& backend : backends_->backends()) {
    json entry = describe_backend(*backend);
    const Worker::Guard guard(*workers_[0]);
    if (json details = ask_backend(*backend); details.is_object()) entry["details"] = std::move(details);
    result["backends"].push_back(std::move(entry));
  }
  for (const auto& region : regions_->table().published()) {
    json& entry = result["regions"].emplace_back();
    entry = {{"key", region->ref.key},       {"kind", kind_name(region->ref.kind)},
             {"device", region->ref.device}, {"address", region->ref.address},
             {"bytes", region->ref.bytes},   {"access", region->ref.access},
             {"flags", region->ref.flags},   {"shared", region->shared.file != nullptr}};
    if (region->label == nullptr) continue;
    entry["name"] = region->label->name;
    if (region->label->shaped()) entry["layout"] = describe(region->label->layout);
  }
  std::vector<PeerHold> peers;
  {
    std::lock_guard lock(control_mutex_);
    for (Peer* peer : peers_.all()) peers.emplace_back(peer);
  }
  for (const PeerHold& peer : peers) {
    json links = json::array();
    for (const Link* link : peer->links()) {
      if (link->up())
        links.push_back({{"backend", link->backend().name}, {"worker", link->worker().index()}});
    }
    result["peers"].push_back({{"name", peer->name()},
                               {"incarnation", peer->incarnation_text()},
                               {"health", health_name(peer->health())},
                               {"asked_for", !peer->unsolicited()},
                               {"regions", peer->region_count()},
                               {"connections", links}});
  }
  return dump(result);
}

std::string Agent::metrics_json() {
  check_usable();
  return dump(json(read_snapshot(*metrics_)));
}

}  // namespace towline
