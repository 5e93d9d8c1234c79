// nixlAgent: backends that are plugins' engines.
#include <algorithm>
#include <cstring>
#include <iterator>

#include "agent_data.h"
#include "engine_requests.h"
#include "notif.h"

using namespace towline::nixl;  // NOLINT: this file is that interface's other side

// ---- Backends

nixlBackendH::nixlBackendH(const towline::nixl::BackendType& backend_type, nixl_b_params_t params,
                           nixl_mem_list_t kinds)
    : engine(nullptr), type(backend_type), parameters(std::move(params)), memories(std::move(kinds)) {}
nixlBackendH::nixlBackendH(std::unique_ptr<Engine> plugins_engine)
    : engine(std::move(plugins_engine)),
      type(engine->type()),
      parameters(engine->parameters()),
      memories(engine->memories()) {}

nixlBackendH::~nixlBackendH() = default;

bool nixlBackendH::reaches_others() const noexcept {
  return is_transport() || (engine != nullptr && engine->remote());
}

bool nixlBackendH::carries_notifs() const noexcept {
  return is_transport() || (engine != nullptr && engine->notifies());
}

bool nixlAgentData::is_plugin(const nixl_backend_t& type) const {
  const BackendType* own = find_backend_type(type);
  const bool here = own != nullptr && own->role != Role::kAbsent &&
                    (own->role != Role::kStore || !ObjectStore::memories(*find_store_type(type)).empty());
  if (here && std::ranges::find(settings.plugins, type) == settings.plugins.end()) return false;
  return nixlPluginManager::getInstance().knows(type);
}

nixl_status_t nixlAgentData::create_engine(const nixl_backend_t& type, const nixl_b_params_t& params,
                                           nixlBackendH*& backend, const char* call) {
  {
    // Before the plugin opens files and ports for a second one.
    std::lock_guard lock(backends_mutex);
    if (backends.contains(type))
      return fail(NIXL_ERR_INVALID_PARAM, "{}: agent '{}' has a backend '{}' already", call, name, type);
  }
  auto plugin = nixlPluginManager::getInstance().loadBackendPlugin(type);
  if (plugin == nullptr) return fail(NIXL_ERR_NOT_FOUND, "{}: {}", call, last_error());
  nixl_b_params_t given = params;
  nixlBackendInitParams init;
  init.localAgent = name;
  init.type = type;
  init.customParams = &given;
  init.enableProgTh = config.useProgThread;
  init.pthrDelay = config.pthrDelay;
  init.syncMode = config.syncMode;
  init.enableTelemetry_ = telemetry;
  nixl_status_t status = NIXL_SUCCESS;
  std::unique_ptr<Engine> engine = Engine::make(std::move(plugin), init, status);
  if (engine == nullptr) return status;
  return add_backend(std::make_unique<nixlBackendH>(std::move(engine)), backend, call);
}

std::vector<nixlBackendH*> nixlAgentData::engine_backends() const {
  std::vector<nixlBackendH*> found;
  if (!has_engines()) return found;
  std::lock_guard lock(backends_mutex);
  std::ranges::copy_if(by_creation, std::back_inserter(found),
                       [](const nixlBackendH* backend) { return backend->engine != nullptr; });
  return found;
}

nixlBackendH* nixlAgentData::notifier(const nixl_opt_args_t* extra_params, const std::string& agent_name,
                                      const char* call) const {
  nixlBackendH* const first = transport(extra_params, call);
  if (first == nullptr || !has_engines()) return first;
  for (nixlBackendH* backend : candidates(extra_params, DRAM_SEG, true, call)) {
    const bool own = agent_name == name;
    if (backend->engine == nullptr || backend->engine->knows(agent_name) || (own && backend->engine->local()))
      return backend;
  }
  fail(NIXL_ERR_NOT_FOUND, "{}: no backend knows agent '{}'", call, agent_name);
  return nullptr;
}

// ---- Metadata

nixl_status_t nixlAgentData::load_engines(const Frame& frame, bool anew) {
  nixl_status_t status = NIXL_SUCCESS;
  for (const nixlBackendH* backend : engine_backends()) {
    Engine& engine = *backend->engine;
    const auto given = std::ranges::find(frame.engines, engine.name(), &FrameEngine::name);
    if (given == frame.engines.end() || !engine.remote()) continue;
    if (anew) engine.forget(frame.name);
    const nixl_status_t loaded = engine.load(frame.name, *given);
    if (loaded != NIXL_SUCCESS && status == NIXL_SUCCESS) status = loaded;
  }
  return status;
}

void nixlAgentData::forget_engines(const std::string& agent_name) {
  for (const nixlBackendH* backend : engine_backends()) backend->engine->forget(agent_name);
}

// ---- Requests

nixl_status_t nixlAgentData::make_engine_request(nixl_xfer_op_t operation, nixlBackendH* backend,
                                                 EngineList local, EngineList remote,
                                                 const std::string& remote_agent,
                                                 std::shared_ptr<Remote> with,
                                                 const nixl_opt_args_t* extra_params, nixlXferReqH*& request,
                                                 const char* call) {
  auto made = std::make_unique<nixlXferReqH>();
  made->backend = backend;
  made->with = std::move(with);
  made->descs = static_cast<size_t>(local.metas.descCount());
  made->events = events.get();
  made->writes = operation == NIXL_WRITE;
  made->engined =
      std::make_unique<EngineRequest>(operation, std::move(local), std::move(remote), remote_agent);
  made->engined->timeout_ns = timeout_ns;
  if (extra_params != nullptr) made->engined->args.customParam = extra_params->customParam;
  if (const nixl_blob_t* notif = notif_of(extra_params)) {
    if (!backend->carries_notifs()) return no_notif(*backend, call);
    made->engined->args.notifMsg = *notif;
    made->engined->args.hasNotif = true;
  }
  const nixl_status_t status = backend->engine->prepare(*made->engined, call);
  if (status != NIXL_SUCCESS) return status;
  requests.add(made.get());
  request = made.release();
  return NIXL_SUCCESS;
}

namespace towline::nixl {

namespace {

size_t index_of(const towline_picks_t& picks, size_t i) noexcept {
  if (picks.indices == nullptr) return static_cast<size_t>(picks.start + i * picks.step);
  const char* at = static_cast<const char*>(picks.indices) + i * picks.index_bytes;
  if (picks.index_bytes == sizeof(int32_t)) {
    int32_t index = 0;
    std::memcpy(&index, at, sizeof index);
    return index < 0 ? SIZE_MAX : static_cast<size_t>(index);
  }
  uint64_t index = 0;
  std::memcpy(&index, at, sizeof index);
  return static_cast<size_t>(index);
}

// True if `b` follows `a` in the same memory.
bool follows(const nixlMetaDesc& a, const nixlMetaDesc& b) noexcept {
  return a.devId == b.devId && a.metadataP == b.metadataP && a.addr + a.len == b.addr;
}

EngineList empty_like(const EngineList& list) {
  EngineList result(list.metas.getType());
  result.of = list.of;
  result.own = list.own;
  result.version = list.version;
  return result;
}

const EngineList* list_for(const nixlDlistH* list, const nixlBackendH* backend) noexcept {
  const auto found = std::ranges::find(list->engines, backend, [](const auto& entry) { return entry.first; });
  return found == list->engines.end() ? nullptr : &found->second;
}

}  // namespace

nixl_status_t make_engine_request_of(nixlAgentData& data, nixl_xfer_op_t operation, nixlBackendH* backend,
                                     const nixlDlistH* local, const towline_picks_t& local_picks,
                                     const nixlDlistH* remote, const towline_picks_t& remote_picks,
                                     nixlXferReqH*& request, const nixl_opt_args_t* extra_params,
                                     const char* call) {
  const EngineList* const from = list_for(local, backend);
  const EngineList* const to = list_for(remote, backend);
  EngineList here = empty_like(*from);
  EngineList there = empty_like(*to);
  const bool merge = extra_params == nullptr || !extra_params->skipDescMerge;
  for (size_t i = 0; i < local_picks.count; ++i) {
    const size_t a = index_of(local_picks, i);
    const size_t b = index_of(remote_picks, i);
    if (a >= static_cast<size_t>(from->metas.descCount()) || b >= static_cast<size_t>(to->metas.descCount()))
      return fail(NIXL_ERR_INVALID_PARAM, "{}: index {} is out of range", call, i);
    const nixlMetaDesc& mine = from->metas[a];
    const nixlMetaDesc& theirs = to->metas[b];
    if (mine.len != theirs.len)
      return fail(NIXL_ERR_INVALID_PARAM, "{}: descriptors {} and {} differ in length", call, a, b);
    const bool adjacent = merge && i != 0 && follows(*(here.metas.end() - 1), mine) &&
                          follows(*(there.metas.end() - 1), theirs);
    if (adjacent) {
      (here.metas.end() - 1)->len += mine.len;
      (there.metas.end() - 1)->len += theirs.len;
    } else {
      here.metas.addDesc(mine);
      there.metas.addDesc(theirs);
    }
  }
  const std::string agent{to->own ? std::string_view{data.name} : remote->of->peer().name()};
  return data.make_engine_request(operation, backend, std::move(here), std::move(there), agent, remote->of,
                                  extra_params, request, call);
}

nixl_status_t create_engine_request(nixlAgentData& data, nixl_xfer_op_t operation, nixlBackendH* backend,
                                    nixl_mem_t local_type, const Rows& local, nixl_mem_t remote_type,
                                    const Rows& remote, const std::string& remote_agent,
                                    nixlXferReqH*& request, const nixl_opt_args_t* extra_params,
                                    const char* call) {
  std::shared_ptr<Remote> with;
  nixl_status_t status = data.find_remote(remote_agent, with, call);
  if (status != NIXL_SUCCESS) return status;
  static const std::string kHere = NIXL_INIT_AGENT;
  EngineList here(local_type);
  EngineList there(remote_type);
  status = backend->engine->make_list(kHere, local_type, local, here, call);
  if (status == NIXL_SUCCESS)
    status = backend->engine->make_list(remote_agent, remote_type, remote, there, call);
  if (status != NIXL_SUCCESS) return status;
  return data.make_engine_request(operation, backend, std::move(here), std::move(there), remote_agent,
                                  std::move(with), extra_params, request, call);
}

nixl_status_t post_engine_request(nixlXferReqH& request, const nixl_opt_args_t* extra_params) {
  EngineRequest& engined = *request.engined;
  static constexpr const char* kCall = "postXferReq";
  if (request.with != nullptr && request.with->gone())
    return fail(NIXL_ERR_NOT_FOUND, "{}: the metadata of agent '{}' was invalidated", kCall,
                engined.remote_agent);
  return guard(kCall, [&] {
    if (extra_params != nullptr && engined.status.load(std::memory_order_acquire) != NIXL_IN_PROG) {
      const nixl_blob_t* notif = notif_of(extra_params);
      if (notif != nullptr && !request.backend->carries_notifs()) return no_notif(*request.backend, kCall);
      engined.args.hasNotif = notif != nullptr;
      engined.args.notifMsg = notif == nullptr ? nixl_blob_t{} : *notif;
    }
    request.ended.store(false, std::memory_order_relaxed);
    if (request.events == nullptr) return request.backend->engine->post(engined);
    request.started = std::chrono::steady_clock::now();
    const nixl_status_t status = request.backend->engine->post(engined);
    request.post_us.store(us_since(request.started), std::memory_order_relaxed);
    if (status == NIXL_SUCCESS) note_engine_end(request);
    if (status < 0) request.events->failed(status);
    return status;
  });
}

int64_t us_since(chrono_point_t begin) noexcept {
  const auto took = std::chrono::steady_clock::now() - begin;
  return std::max<int64_t>(1, std::chrono::ceil<std::chrono::microseconds>(took).count());
}

void note_engine_end(nixlXferReqH& request) noexcept {
  if (request.ended.exchange(true, std::memory_order_acq_rel)) return;
  const int64_t us = us_since(request.started);
  request.transfer_us.store(us, std::memory_order_release);
  request.events->transferred(request.writes, request.engined->bytes,
                              request.post_us.load(std::memory_order_relaxed), us);
}

nixl_status_t check_engine_request(nixlXferReqH& request) noexcept {
  const nixl_status_t before = request.engined->status.load(std::memory_order_acquire);
  if (before == NIXL_IN_PROG && request.with != nullptr && request.with->gone())
    return fail(NIXL_ERR_NOT_FOUND, "getXferStatus: the metadata of agent '{}' was invalidated",
                request.engined->remote_agent);
  const nixl_status_t status = request.backend->engine->check(*request.engined);
  if (request.events == nullptr) return status;
  if (status == NIXL_SUCCESS) note_engine_end(request);
  if (status < 0 && before == NIXL_IN_PROG) request.events->failed(status);
  return status;
}

}  // namespace towline::nixl
