// nixlAgent: running requests, their state and figures, notifications.
#include <algorithm>
#include <chrono>
#include <thread>

#include "agent_data.h"
#include "engine_requests.h"
#include "explain.h"
#include "notif.h"

using namespace towline::nixl;  // NOLINT: this file is that interface's other side

namespace {

using Clock = std::chrono::steady_clock;

int64_t whole_us(Clock::duration time) noexcept {
  return std::max<int64_t>(1, std::chrono::ceil<std::chrono::microseconds>(time).count());
}

uint64_t now_ns() noexcept {
  return static_cast<uint64_t>(std::chrono::nanoseconds{Clock::now().time_since_epoch()}.count());
}

}  // namespace

// ---- Running requests

namespace {

// The notification of this post and the next ones.
nixl_status_t change_notif(nixlAgentData& data, nixlXferReqH& request, const nixl_opt_args_t& extra_params) {
  static constexpr const char* kCall = "postXferReq";
  const nixl_blob_t* notif = notif_of(&extra_params);
  if (notif == nullptr && !request.has_notif) return NIXL_SUCCESS;
  int32_t status = TOWLINE_OK;
  if (notif == nullptr) {
    status = towline_transfer_set_notice(request.transfer, nullptr, 0);
    if (status >= 0) request.long_number = 0;
  } else {
    nixlXferReqH wanted;  // the request does not change if Towline refuses the notice
    wanted.backend = request.backend;
    std::string notice;
    const nixl_status_t set = data.set_notif(wanted, *notif, notice, kCall);
    if (set != NIXL_SUCCESS) return set;
    status = towline_transfer_set_notice(request.transfer, notice.data(), notice.size());
    if (status >= 0) {
      request.long_number = wanted.long_number;
      request.long_notif = std::move(wanted.long_notif);
    }
  }
  if (status < 0)
    return fail(to_nixl(towline::Status{status}), "{}: the request is still in progress", kCall);
  request.has_notif = notif != nullptr;
  return NIXL_SUCCESS;
}

// Forgetting a peer takes back what is under way with it.
bool forgotten(const nixlXferReqH& request, int32_t status) noexcept {
  return status == TOWLINE_CANCELLED && request.with != nullptr && request.with->gone();
}

// A peer that leaves first takes its memory back. NIXL's users need to know that the peer is gone.
nixl_status_t status_of(const nixlXferReqH& request, int32_t status, bool may_wait) noexcept {
  const auto left = [&] { return may_wait ? request.with->leaves() : request.with->has_left(); };
  if (status == TOWLINE_STALE && request.with != nullptr && left()) return NIXL_ERR_REMOTE_DISCONNECT;
  if (forgotten(request, status)) return NIXL_ERR_NOT_FOUND;
  return to_nixl(towline::Status{status});
}

// Says with whom the request was, and in `why` Towline's sentence, if it is of this failure.
std::string failure_text(const char* call, const nixlXferReqH& request, int32_t status,
                         std::string_view why) {
  const char* const more = status == TOWLINE_AGAIN      ? ": the peer leaves its notifications unread"
                           : forgotten(request, status) ? ": the agent's metadata was invalidated"
                                                        : "";
  const std::string with =
      request.with == nullptr ? "" : fmt::format("with agent '{}': ", request.with->peer().name());
  std::string text =
      fmt::format("{}: {}{}{}", call, with, towline::status_text(towline::Status{status}), more);
  if (!why.empty()) text += fmt::format(": {}", why);
  return text;
}

// Why a post of this thread has just answered `status`; empty if that is no failure.
std::string_view refusal_of(int32_t status) noexcept {
  return status < 0 && status != TOWLINE_AGAIN ? std::string_view{towline_last_error()} : std::string_view{};
}

// A request of objects fails for a reason that only their server knows.
std::string server_said(const nixlXferReqH& request) noexcept try {
  std::string route;
  if (xfer_route(&request, route) != NIXL_SUCCESS) return {};
  const std::string said = last_failure_of_route(route);
  return said.empty() ? said : "; the last failure there: " + said;
} catch (const std::exception&) {  // the status says enough
  return {};
}

// Towline keeps the outcome of the previous run; NIXL's interface returns that of this post.
void refuse(nixlXferReqH& request, int32_t status) noexcept {
  request.refused.store(status, std::memory_order_relaxed);
  request.pending.store(nixlXferReqH::Pending::kRefused, std::memory_order_release);
}

// A post that failed before Towline had it. Its outcome is one of Towline's that is told as this one of NIXL's.
nixl_status_t fail_before(nixlXferReqH& request, nixl_status_t status) noexcept {
  using towline::Status;
  Status refused = Status::kTimedOut;  // a failure of the backend
  for (const Status each : {Status::kPeerLost, Status::kStale, Status::kClosed, Status::kInvalidArgument,
                            Status::kUnsupported, Status::kCancelled, Status::kInternal})
    if (to_nixl(each) == status) refused = each;
  request.told.store(true, std::memory_order_relaxed);
  refuse(request, static_cast<int32_t>(refused));
  return status;
}

// The answer of a post that was not done at once. `why`: as failure_text().
nixl_status_t slow_post(nixlXferReqH& request, int32_t status, std::string_view why = {}) {
  if (status == TOWLINE_IN_PROGRESS) return NIXL_IN_PROG;
  if (status == TOWLINE_AGAIN) {
    request.retry_until_ns = now_ns() + request.timeout_ns;
    request.pending.store(nixlXferReqH::Pending::kWanted, std::memory_order_release);
    return NIXL_IN_PROG;
  }
  if (status == TOWLINE_BUSY) {
    return fail(NIXL_ERR_REPOST_ACTIVE,
                "postXferReq: the request's last run has not ended, or is not fenced yet");
  }
  request.told.store(true, std::memory_order_relaxed);
  refuse(request, status);
  return fail(status_of(request, status, true), "{}", failure_text("postXferReq", request, status, why));
}

// Posts again a request for which the peer had no credit.
int32_t retry_post(nixlXferReqH& request) {
  using Pending = nixlXferReqH::Pending;
  auto wanted = Pending::kWanted;
  if (!request.pending.compare_exchange_strong(wanted, Pending::kTrying, std::memory_order_acq_rel)) {
    return TOWLINE_IN_PROGRESS;  // another thread is posting it
  }
  const int32_t status = towline_transfer_post(request.transfer);
  if (status == TOWLINE_AGAIN && now_ns() < request.retry_until_ns) {
    request.pending.store(Pending::kWanted, std::memory_order_release);
    return TOWLINE_IN_PROGRESS;
  }
  if (status < 0) {
    refuse(request, status);
  } else {
    request.pending.store(Pending::kNone, std::memory_order_release);
  }
  return status;
}

// Handles a post that was not accepted, when the status is read.
int32_t poll_pending(nixlXferReqH& request) {
  const bool refused = request.pending.load(std::memory_order_acquire) == nixlXferReqH::Pending::kRefused;
  return refused ? request.refused.load(std::memory_order_relaxed) : retry_post(request);
}

nixl_status_t failed_status(nixlXferReqH& request, int32_t status, std::string_view why) {
  // A request that was never posted is not found.
  if (status == TOWLINE_NOT_FOUND) return NIXL_ERR_NOT_POSTED;
  const bool told = request.told.exchange(true, std::memory_order_relaxed);
  const nixl_status_t mapped = status_of(request, status, !told);
  std::string text = failure_text("getXferStatus", request, status, why);
  if (!told && request.with == nullptr) text += server_said(request);
  return told ? quiet_text(mapped, std::move(text)) : fail_text(mapped, std::move(text));
}

// Counts a request that ended well.
void count_end(const nixlXferReqH& request) noexcept {
  auto result = towline::detail::defaults<towline_result_t>();
  (void)towline_transfer_result(request.transfer, &result);
  request.events->transferred(request.writes, result.total_bytes,
                              request.post_us.load(std::memory_order_relaxed),
                              request.transfer_us.load(std::memory_order_relaxed));
}

void note_end(nixlXferReqH& request) noexcept {
  if (request.ended.exchange(true, std::memory_order_acq_rel)) return;
  auto result = towline::detail::defaults<towline_result_t>();
  int64_t us = whole_us(Clock::now() - request.started);
  // The time when it ended, not when it was polled; unknown if it was done within the post.
  if (towline_transfer_result(request.transfer, &result) >= 0 && result.ended_at_ns > result.posted_at_ns) {
    const auto known = std::chrono::nanoseconds{result.ended_at_ns - result.posted_at_ns};
    us = std::min(us, whole_us(std::chrono::duration_cast<Clock::duration>(known)));
  }
  request.transfer_us.store(std::max(us, request.post_us.load(std::memory_order_relaxed)),
                            std::memory_order_release);
  count_end(request);
}

// Counts the failure of a call.
nixl_status_t counted(const nixlXferReqH& request, nixl_status_t status) noexcept {
  if (status < 0 && request.events != nullptr) request.events->failed(status);
  return status;
}

nixl_status_t timed_post(nixlXferReqH& request) {
  request.ended.store(false, std::memory_order_relaxed);
  request.started = Clock::now();
  const int32_t status = towline_transfer_post(request.transfer);
  const auto took = Clock::now() - request.started;
  request.post_us.store(whole_us(took), std::memory_order_relaxed);
  if (status != TOWLINE_OK) return counted(request, slow_post(request, status, refusal_of(status)));
  request.transfer_us.store(whole_us(took), std::memory_order_relaxed);
  request.ended.store(true, std::memory_order_release);
  count_end(request);
  return NIXL_SUCCESS;
}

// False if the post still has to be repeated.
bool forget_refusal(nixlXferReqH& request) noexcept {
  auto refused = nixlXferReqH::Pending::kRefused;
  return request.pending.compare_exchange_strong(refused, nixlXferReqH::Pending::kNone,
                                                 std::memory_order_acq_rel);
}

int32_t poll(nixlXferReqH& request) noexcept {
  if (request.pending.load(std::memory_order_acquire) != nixlXferReqH::Pending::kNone) [[unlikely]] {
    return poll_pending(request);
  }
  return towline_transfer_poll(request.transfer);
}

}  // namespace

nixl_status_t nixlAgent::postXferReq(nixlXferReqH* req_hndl, const nixl_opt_args_t* extra_params) const {
  if (req_hndl == nullptr) return fail(NIXL_ERR_INVALID_PARAM, "postXferReq: the request is null");
  if (req_hndl->engined != nullptr) [[unlikely]]
    return post_engine_request(*req_hndl, extra_params);
  if (req_hndl->pending.load(std::memory_order_acquire) != nixlXferReqH::Pending::kNone) [[unlikely]] {
    if (!forget_refusal(*req_hndl)) return slow_post(*req_hndl, TOWLINE_BUSY);
  }
  if (extra_params != nullptr) {
    const nixl_status_t status = change_notif(*data, *req_hndl, *extra_params);
    if (status != NIXL_SUCCESS) return status;
  }
  if (req_hndl->with != nullptr && req_hndl->with->gone()) [[unlikely]] {
    return slow_post(*req_hndl, TOWLINE_STALE);
  }
  if (req_hndl->long_number != 0) [[unlikely]] {
    if (getXferStatus(req_hndl) == NIXL_IN_PROG) return slow_post(*req_hndl, TOWLINE_BUSY);
    const nixl_status_t status =
        data->send_long(req_hndl->long_number, req_hndl->long_notif, req_hndl->with.get(),
                        now_ns() + req_hndl->timeout_ns, "postXferReq");
    if (status != NIXL_SUCCESS) return counted(*req_hndl, fail_before(*req_hndl, status));
  }
  if (req_hndl->told.load(std::memory_order_relaxed)) req_hndl->told.store(false, std::memory_order_relaxed);
  if (req_hndl->events != nullptr) [[unlikely]]
    return timed_post(*req_hndl);
  const int32_t status = towline_transfer_post(req_hndl->transfer);
  return status == TOWLINE_OK ? NIXL_SUCCESS : slow_post(*req_hndl, status, refusal_of(status));
}

nixl_status_t nixlAgent::getXferStatus(nixlXferReqH* req_hndl) const {
  if (req_hndl == nullptr) return fail(NIXL_ERR_INVALID_PARAM, "getXferStatus: the request is null");
  if (req_hndl->engined != nullptr) [[unlikely]]
    return check_engine_request(*req_hndl);
  const bool refused = req_hndl->pending.load(std::memory_order_acquire) == nixlXferReqH::Pending::kRefused;
  const int32_t status = poll(*req_hndl);
  if (status < 0) [[unlikely]] {
    // A failure counts once, however often it is polled.
    const bool known = req_hndl->told.load(std::memory_order_relaxed);
    const nixl_status_t failed = failed_status(*req_hndl, status, refused ? "" : towline_last_error());
    return known ? failed : counted(*req_hndl, failed);
  }
  if (status == TOWLINE_OK && req_hndl->events != nullptr) [[unlikely]]
    note_end(*req_hndl);
  return status == TOWLINE_OK ? NIXL_SUCCESS : NIXL_IN_PROG;
}

namespace towline::nixl {

nixl_status_t wait_xfer(const nixlAgent& agent, nixlXferReqH* request, uint64_t timeout_ns) {
  if (request == nullptr) return fail(NIXL_ERR_INVALID_PARAM, "wait_xfer: the request is null");
  const uint64_t until_ns = timeout_ns > TOWLINE_FOREVER - now_ns() ? TOWLINE_FOREVER : now_ns() + timeout_ns;
  const auto polled = [&] {
    return request->engined != nullptr ||
           request->pending.load(std::memory_order_acquire) != nixlXferReqH::Pending::kNone;
  };
  while (polled() && now_ns() < until_ns) {
    const nixl_status_t status = agent.getXferStatus(request);
    if (status != NIXL_IN_PROG) return status;
    std::this_thread::sleep_for(std::chrono::microseconds{100});
  }
  if (request->engined != nullptr) return agent.getXferStatus(request);
  const uint64_t now = now_ns();
  (void)towline_transfer_wait(request->transfer, until_ns > now ? until_ns - now : 0);
  return agent.getXferStatus(request);
}

}  // namespace towline::nixl

nixl_status_t nixlAgent::releaseXferReq(nixlXferReqH* req_hndl) const {
  if (req_hndl == nullptr) return fail(NIXL_ERR_INVALID_PARAM, "releaseXferReq: the request is null");
  if (req_hndl->engined != nullptr) {
    const nixl_status_t released = req_hndl->backend->engine->release(*req_hndl->engined);
    if (released != NIXL_SUCCESS) return released;
    data->requests.remove(req_hndl);
    delete req_hndl;
    return NIXL_SUCCESS;
  }
  const int32_t status = towline_transfer_destroy(req_hndl->transfer, data->timeout_ns);
  if (status < 0) return fail(NIXL_ERR_REPOST_ACTIVE, "releaseXferReq: {}", towline_last_error());
  data->requests.remove(req_hndl);
  delete req_hndl;
  return NIXL_SUCCESS;
}

// ---- About requests

nixl_status_t nixlAgent::estimateXferCost(const nixlXferReqH* req_hndl, std::chrono::microseconds& duration,
                                          std::chrono::microseconds& err_margin, nixl_cost_t& method,
                                          const nixl_opt_args_t* extra_params) const {
  if (req_hndl == nullptr) return fail(NIXL_ERR_INVALID_PARAM, "estimateXferCost: the request is null");
  if (req_hndl->engined != nullptr)
    return req_hndl->backend->engine->estimate(*req_hndl->engined, duration, err_margin, method,
                                               extra_params);
  return guard("estimateXferCost", [&] {
    using std::chrono::ceil;
    using std::chrono::microseconds;
    method = nixl_cost_t::ANALYTICAL_BACKEND;
    std::string route;
    const nixl_status_t status = xfer_route(req_hndl, route);
    if (status != NIXL_SUCCESS) return status;
    const RoutePrice price = price_of_route(route);
    duration = ceil<microseconds>(price.duration);
    err_margin = ceil<microseconds>(price.error);
    if (price.measured) return NIXL_SUCCESS;
    // Transfers that run beside others measure nothing, but the request's own last run says more than a guess.
    auto result = towline::detail::defaults<towline_result_t>();
    towline::detail::check(towline_transfer_result(req_hndl->transfer, &result));
    if (result.status == TOWLINE_OK && result.ended_at_ns > result.posted_at_ns) {
      duration = ceil<microseconds>(std::chrono::nanoseconds{result.ended_at_ns - result.posted_at_ns});
      err_margin = duration / 4;
    }
    return NIXL_SUCCESS;
  });
}

nixl_status_t nixlAgent::getXferTelemetry(const nixlXferReqH* req_hndl, nixl_xfer_telem_t& telemetry) const {
  if (req_hndl == nullptr) return fail(NIXL_ERR_INVALID_PARAM, "getXferTelemetry: the request is null");
  if (req_hndl->events == nullptr) {
    return fail(NIXL_ERR_NO_TELEMETRY,
                "getXferTelemetry: telemetry is off; set captureTelemetry or NIXL_TELEMETRY_ENABLE");
  }
  auto& request = const_cast<nixlXferReqH&>(*req_hndl);  // polling may find that it has ended
  const nixl_status_t status = getXferStatus(&request);
  if (status != NIXL_SUCCESS) return status;
  telemetry.startTime = request.started;
  telemetry.postDuration = std::chrono::microseconds{request.post_us.load(std::memory_order_relaxed)};
  telemetry.xferDuration = std::chrono::microseconds{request.transfer_us.load(std::memory_order_acquire)};
  auto result = towline::detail::defaults<towline_result_t>();
  if (request.engined == nullptr) (void)towline_transfer_result(request.transfer, &result);
  telemetry.totalBytes = request.engined == nullptr ? result.total_bytes : request.engined->bytes;
  telemetry.descCount = request.descs;
  return NIXL_SUCCESS;
}

nixl_status_t nixlAgent::queryXferBackend(const nixlXferReqH* req_hndl, nixlBackendH*& backend) const {
  if (req_hndl == nullptr) return fail(NIXL_ERR_INVALID_PARAM, "queryXferBackend: the request is null");
  backend = req_hndl->backend;
  return NIXL_SUCCESS;
}

// ---- Notifications

namespace {

// Hands every notification to `take`. `given` limits the backends to ask.
template <class Take>
nixl_status_t collect(nixlAgentData& data, const nixl_opt_args_t* given, Take take) {
  const bool named = given != nullptr && !given->backends.empty();
  const auto asked = [&](const nixlBackendH* backend) {
    return !named || std::ranges::find(given->backends, backend) != given->backends.end();
  };
  nixl_status_t status = NIXL_SUCCESS;
  for (const nixlBackendH* backend : data.engine_backends()) {
    if (!backend->carries_notifs() || !asked(backend)) continue;
    notif_list_t texts;
    const nixl_status_t taken = backend->engine->take_notifs(texts);
    if (taken < 0) status = taken;
    for (auto& [sender, text] : texts) take(std::move(sender), std::move(text));
  }
  // Towline's own arrive for the agent, whichever of its backends was named.
  for (Notification& notification : data.inbox.take(*data.agent))
    take(std::move(notification.sender), std::move(notification.text));
  return status;
}

}  // namespace

nixl_status_t nixlAgent::getNotifs(nixl_notifs_t& notif_map, const nixl_opt_args_t* extra_params) {
  if (data->transport(extra_params, "getNotifs") == nullptr) return NIXL_ERR_BACKEND;
  return guard("getNotifs", [&] {
    // Threads of the application may share one map, as they may with NIXL.
    const std::lock_guard lock(data->notifs_mutex);
    return collect(*data, extra_params, [&](std::string sender, nixl_blob_t text) {
      notif_map[sender].push_back(std::move(text));
    });
  });
}

namespace towline::nixl {

nixl_status_t take_notifs(nixlAgent& agent, std::vector<Notification>& notifications) {
  static constexpr const char* kCall = "getNotifs";
  nixlAgentData& data = AgentAccess::data(agent);
  if (data.transport(nullptr, kCall) == nullptr) return NIXL_ERR_BACKEND;
  return guard(kCall, [&] {
    notifications.clear();
    return collect(data, nullptr, [&](std::string sender, nixl_blob_t text) {
      notifications.push_back({std::move(sender), std::move(text)});
    });
  });
}

}  // namespace towline::nixl

nixl_status_t nixlAgent::genNotif(const std::string& remote_agent, const nixl_blob_t& msg,
                                  const nixl_opt_args_t* extra_params) const {
  static constexpr const char* kCall = "genNotif";
  const nixlBackendH* by = data->notifier(extra_params, remote_agent, kCall);
  if (by == nullptr) return NIXL_ERR_BACKEND;
  if (by->engine != nullptr) return by->engine->notify(remote_agent, msg);
  return guard(kCall, [&] {
    const NotificationNotice notice{msg};
    if (msg.size() > kMaxLongBytes) return too_long(msg, kCall);
    if (remote_agent == data->name) {
      data->inbox.put(remote_agent, msg);
      return NIXL_SUCCESS;
    }
    std::shared_ptr<Remote> remote = data->remotes.find(remote_agent);
    if (remote == nullptr) {
      data->catch_up();
      remote = data->remotes.find(remote_agent);
    }
    if (remote == nullptr) {
      return fail(NIXL_ERR_NOT_FOUND, "{}: the metadata of agent '{}' is not loaded", kCall, remote_agent);
    }
    const uint64_t until_ns = now_ns() + data->timeout_ns;
    if (notice.fits())
      return data->send_notice(remote->peer(), {notice.data(), notice.size()}, until_ns, kCall);
    const uint64_t number = ++data->last_long_number;
    const nixl_status_t status = data->send_long(number, msg, remote.get(), until_ns, kCall);
    if (status != NIXL_SUCCESS) return status;
    return data->send_notice(remote->peer(), make_end_message(number), until_ns, kCall);
  });
}

nixl_status_t nixlAgentData::set_notif(nixlXferReqH& request, const nixl_blob_t& notif, std::string& notice,
                                       const char* call) {
  if (!request.backend->is_transport()) return no_notif(*request.backend, call);
  if (notif.size() > kMaxLongBytes) return too_long(notif, call);
  const NotificationNotice whole{notif};
  request.has_notif = true;
  if (whole.fits()) {
    notice.assign(whole.data(), whole.size());
    return NIXL_SUCCESS;
  }
  request.long_number = ++last_long_number;
  request.long_notif = notif;
  notice = make_end_message(request.long_number);
  return NIXL_SUCCESS;
}

nixl_status_t nixlAgentData::send_long(uint64_t number, std::string_view text, const Remote* with,
                                       uint64_t until_ns, const char* call) {
  return guard(call, [&] {
    return send_pieces(number, text, [&](const std::string& message) {
      if (with != nullptr) return send_notice(with->peer(), message, until_ns, call);
      inbox.put_message(name, agent->incarnation(), message);
      return NIXL_SUCCESS;
    });
  });
}

nixl_status_t nixlAgentData::send_notice(const towline::Peer& peer, std::string_view notice,
                                         uint64_t until_ns, const char* call) {
  auto pause = std::chrono::microseconds{20};
  for (;;) {
    const int32_t status = towline_notice_send(peer.native(), notice.data(), notice.size());
    if (status >= 0) return NIXL_SUCCESS;
    if (status != TOWLINE_AGAIN) {
      return fail(to_nixl(towline::Status{status}), "{}: to agent '{}': {}", call, peer.name(),
                  towline::status_text(towline::Status{status}));
    }
    if (now_ns() >= until_ns) {
      return fail(NIXL_ERR_BACKEND, "{}: agent '{}' leaves 1 MiB of notifications unread", call, peer.name());
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::microseconds{1000});
  }
}
