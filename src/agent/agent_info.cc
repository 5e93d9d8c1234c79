// Agent: its description as JSON, for people.
#include <algorithm>

#include <nlohmann/json.hpp>

#include "agent/agent.h"
#include "agent/link.h"
#include "agent/metadata_service.h"
#include "agent/router.h"
#include "agent/staged_transfer.h"
#include "agent/transfer.h"
#include "base/copy/copy.h"
#include "base/os/topology.h"
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

json describe_staging(const StagingPool::Use& use, const StagingSettings& settings) {
  return {{"limit_bytes", settings.bytes},
          {"chunk_bytes", settings.chunk_bytes},
          {"bytes", use.bytes},
          {"lanes", use.lanes},
          {"lanes_in_use", use.lanes_in_use},
          {"transfers", use.transfers}};
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
  json result = {{"name", name()},
                 {"incarnation", incarnation_text_},
                 {"version", {TOWLINE_VERSION_MAJOR, TOWLINE_VERSION_MINOR, TOWLINE_VERSION_PATCH}},
                 {"progress", hosted() ? "hosted" : "caller"},
                 {"workers", workers_.size()},
                 {"copies", describe_copies()},
                 {"listen", metadata_service_ ? json(metadata_service_->addresses()) : json::array()},
                 {"backends", json::array()},
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
  for (const auto& region : regions_->published()) {
    result["regions"].push_back({{"key", region->ref.key},
                                 {"kind", kind_name(region->ref.kind)},
                                 {"device", region->ref.device},
                                 {"address", region->ref.address},
                                 {"bytes", region->ref.bytes},
                                 {"access", region->ref.access},
                                 {"flags", region->ref.flags},
                                 {"shared", region->shared.file != nullptr}});
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

std::string Agent::counters() {
  check_usable();
  return dump(json(read_snapshot(*metrics_)));
}

std::string Transfer::staged_route() const {
  const StagedTransfer::Description staged = staged_->describe();
  const std::string way =
      fmt::format("{} then {}", staged.fill->backend_name(), staged.drain->backend_name());
  const double mebibytes = static_cast<double>(staged.bytes) / (1 << 20);
  json result = {
      {"op", op_ == TOWLINE_WRITE ? "write" : "read"},
      {"peer", remote_->peer()->name()},
      {"backend", "staged"},
      {"why", fmt::format("staged through {:g} MiB: {}; no backend does it in one step", mebibytes, way)},
      {"bytes", plan_.view().bytes},
      {"blocks", plan_.view().blocks},
      {"runs", plan_.view().run_count},
      {"staging", {{"bytes", staged.bytes}, {"chunk_bytes", staged.chunk_bytes}, {"slots", staged.slots}}},
      {"straight", staged.has_straight ? json{{"bytes", staged.straight_bytes}} : json()},
      {"legs", {json::parse(staged.fill->route()), json::parse(staged.drain->route())}},
      {"not_taken", not_taken()}};
  return dump(result);
}

std::string Transfer::backend_name() const {
  const std::lock_guard lock(agent_->transfer_details_mutex());
  return backend_->name;
}

std::string Transfer::route() const {
  if (staged_ != nullptr) return staged_route();
  json result = {{"op", op_ == TOWLINE_WRITE ? "write" : "read"},
                 {"peer", remote_->peer()->name()},
                 {"backend", backend_name()},
                 {"why", "the cheapest backend that reaches every region"},
                 {"bytes", plan_.view().bytes},
                 {"blocks", plan_.view().blocks},
                 {"runs", plan_.view().run_count},
                 {"parts", json::array()},
                 {"regions", json::array()},
                 {"not_taken", not_taken()}};
  for (uint32_t i = 0; i < part_count_; ++i) {
    const Part& part = parts_[i];
    Worker::Guard guard(*part.worker);
    json entry = {{"worker", part.worker->index()}, {"begin", part.begin}, {"end", part.end}};
    if (part.link != nullptr) entry["connection"] = json::parse(part.link->describe(), nullptr, false);
    result["parts"].push_back(std::move(entry));
    if (i != 0 || part.link == nullptr) continue;
    for (const auto& region : remote_->remote_regions()) {
      result["regions"].push_back({{"key", region->ref.key}, {"how", part.link->how(*region)}});
    }
  }
  return dump(result);
}

}  // namespace towline
