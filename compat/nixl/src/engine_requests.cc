// Engine: lists, requests, views.
#include <algorithm>
#include <chrono>
#include <ctime>
#include <thread>

#include "engine.h"
#include "engine_call.h"

namespace towline::nixl {

namespace {

// How long a request that is released gets to end by itself: some engines free what the kernel still writes to.
constexpr uint64_t kReleaseWaitNs = 1'000'000'000;

// The last tick of the clock: asked at each poll, and milliseconds are enough for a deadline.
uint64_t now_ns() noexcept {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace

nixl_status_t Engine::make_list(const std::string& agent, nixl_mem_t type, const Rows& rows, EngineList& list,
                                const char* call) const {
  size_t missing = 0;
  const std::lock_guard lock(mutex_);
  list.version = version_;
  list.own = agent == agent_;
  if (!agent.empty() && !list.own) {
    list.of = peer(agent);
    if (list.of == nullptr)
      return quiet_text(NIXL_ERR_NOT_FOUND,
                        fmt::format("{}: plugin '{}' knows no agent '{}'", call, name_, agent));
  }
  if (list.own && !local_)
    return quiet_text(NIXL_ERR_NOT_FOUND,
                      fmt::format("{}: plugin '{}' moves nothing within an agent", call, name_));
  const Section& section = list.of == nullptr ? memory_ : list.of->memory;
  if (describe(section, type, rows, list.own, list.metas, missing)) return NIXL_SUCCESS;
  return quiet_text(
      NIXL_ERR_NOT_FOUND,
      fmt::format("{}: descriptor {} lies in no memory that plugin '{}' knows", call, missing, name_));
}

// Memory may have been removed since the list was made: the engine must not see its metadata again.
bool Engine::current(const EngineList& list) const {
  if (list.of != nullptr) return !list.of->forgotten.load(std::memory_order_acquire);
  if (list.version == version_) return true;
  for (const nixlMetaDesc& desc : list.metas) {
    const Memory* memory = memory_.covering(list.metas.getType(), desc);
    if (memory == nullptr || (list.own ? memory->own : memory->metadata) != desc.metadataP) return false;
  }
  return true;
}

nixl_status_t Engine::prepare(EngineRequest& request, const char* call) const {
  for (const nixlMetaDesc& desc : request.local.metas) request.bytes += desc.len;
  const std::lock_guard lock(mutex_);
  if (!current(request.local) || !current(request.remote))
    return fail(NIXL_ERR_NOT_FOUND, "{}: memory of the lists was removed after they were prepared", call);
  const nixl_status_t status = call_engine("prepXfer", [&] {
    return engine_->prepXfer(request.operation, request.local.metas, request.remote.metas,
                             request.remote_agent, request.handle, &request.args);
  });
  if (status == NIXL_SUCCESS) return status;
  return fail(status < 0 ? status : NIXL_ERR_BACKEND, "{}: plugin '{}' did not take the request: {}", call,
              name_, nixlEnumStrings::statusStr(status));
}

nixl_status_t Engine::post(EngineRequest& request) const {
  static constexpr const char* kCall = "postXferReq";
  const std::lock_guard lock(mutex_);
  if (request.running && check_locked(request) == NIXL_IN_PROG)
    return fail(NIXL_ERR_REPOST_ACTIVE, "{}: the request's last run has not ended", kCall);
  if (request.running)
    return fail(NIXL_ERR_REPOST_ACTIVE, "{}: plugin '{}' is still at the run that missed its deadline", kCall,
                name_);
  if (!current(request.local) || !current(request.remote)) {
    request.status.store(NIXL_ERR_NOT_FOUND, std::memory_order_release);
    return fail(NIXL_ERR_NOT_FOUND, "{}: memory of the request was removed after it was made", kCall);
  }
  request.deadline_ns = now_ns() + request.timeout_ns;
  const nixl_status_t status = call_engine("postXfer", [&] {
    return engine_->postXfer(request.operation, request.local.metas, request.remote.metas,
                             request.remote_agent, request.handle, &request.args);
  });
  request.running = status == NIXL_IN_PROG;
  request.status.store(status, std::memory_order_release);
  if (status >= 0) return status;
  return fail(status, "{}: plugin '{}': {}", kCall, name_, nixlEnumStrings::statusStr(status));
}

nixl_status_t Engine::check_locked(EngineRequest& request) const {
  const nixl_status_t status = call_engine("checkXfer", [&] { return engine_->checkXfer(request.handle); });
  if (status != NIXL_IN_PROG) request.running = false;
  nixl_status_t told = request.status.load(std::memory_order_relaxed);
  if (told != NIXL_IN_PROG) return told;  // the deadline was told already
  told = status;
  if (status == NIXL_IN_PROG && now_ns() >= request.deadline_ns) told = NIXL_ERR_BACKEND;
  request.status.store(told, std::memory_order_release);
  if (told < 0) {
    (void)fail(told, "getXferStatus: plugin '{}': {}", name_,
               status == NIXL_IN_PROG ? "the request did not end by its deadline"
                                      : nixlEnumStrings::statusStr(status));
  }
  return told;
}

nixl_status_t Engine::check(EngineRequest& request) const {
  // An engine that reports a request's end more than once is not asked again.
  const nixl_status_t known = request.status.load(std::memory_order_acquire);
  if (known != NIXL_IN_PROG) return known;
  const std::lock_guard lock(mutex_);
  return request.running ? check_locked(request) : request.status.load(std::memory_order_relaxed);
}

nixl_status_t Engine::release(EngineRequest& request) const {
  const uint64_t until_ns = now_ns() + std::min(kReleaseWaitNs, request.timeout_ns);
  auto pause = std::chrono::microseconds{1};
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      if (request.running) (void)check_locked(request);
      const bool give_up = now_ns() >= until_ns;
      if (!request.running || give_up) {
        if (request.handle == nullptr) return NIXL_SUCCESS;
        const nixl_status_t status =
            call_engine("releaseReqH", [&] { return engine_->releaseReqH(request.handle); });
        // The end of a request that is over can't fail in a way that matters to the caller.
        if (status < 0 && request.running)
          return fail(NIXL_ERR_REPOST_ACTIVE, "releaseXferReq: plugin '{}' can't cancel the request: {}",
                      name_, nixlEnumStrings::statusStr(status));
        request.handle = nullptr;
        return NIXL_SUCCESS;
      }
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::microseconds{1000});
  }
}

nixl_status_t Engine::estimate(const EngineRequest& request, std::chrono::microseconds& duration,
                               std::chrono::microseconds& margin, nixl_cost_t& method,
                               const nixl_opt_args_t* extra_params) const {
  const std::lock_guard lock(mutex_);
  return call_engine("estimateXferCost", [&] {
    return engine_->estimateXferCost(request.operation, request.local.metas, request.remote.metas,
                                     request.remote_agent, request.handle, duration, margin, method,
                                     extra_params);
  });
}

// ---- Views

nixl_status_t Engine::view(const nixl_remote_dlist_t& descs, nixlMemViewH& view,
                           const nixl_opt_b_args_t& args) const {
  nixl_remote_meta_dlist_t metas(descs.getType());
  const std::lock_guard lock(mutex_);
  for (const nixlRemoteDesc& desc : descs) {
    if (desc.remoteAgent == nixl_null_agent) {
      metas.addDesc(nixlRemoteMetaDesc{nixl_null_agent});
      continue;
    }
    const std::shared_ptr<EnginePeer> of = peer(desc.remoteAgent);
    const Memory* memory = of == nullptr ? nullptr : of->memory.covering(descs.getType(), desc);
    if (memory == nullptr) return NIXL_ERR_NOT_FOUND;
    nixlRemoteMetaDesc meta(desc.remoteAgent);
    static_cast<nixlBasicDesc&>(meta) = desc;
    meta.metadataP = memory->metadata;
    metas.addDesc(meta);
  }
  return call_engine("prepMemView", [&] { return engine_->prepMemView(metas, view, &args); });
}

nixl_status_t Engine::view(const nixl_local_dlist_t& descs, nixlMemViewH& view,
                           const nixl_opt_b_args_t& args) const {
  nixl_meta_dlist_t metas(descs.getType());
  size_t missing = 0;
  const std::lock_guard lock(mutex_);
  if (!describe(memory_, descs.getType(), Rows::of(descs), false, metas, missing)) return NIXL_ERR_NOT_FOUND;
  return call_engine("prepMemView", [&] { return engine_->prepMemView(metas, view, &args); });
}

void Engine::release_view(nixlMemViewH view) const {
  const std::lock_guard lock(mutex_);
  (void)call_engine("releaseMemView", [&] {
    engine_->releaseMemView(view);
    return NIXL_SUCCESS;
  });
}

}  // namespace towline::nixl
