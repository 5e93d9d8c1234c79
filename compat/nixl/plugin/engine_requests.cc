// Engine: requests.
#include <algorithm>
#include <vector>

#include "../src/explain.h"
#include "../src/split.h"
#include "calls.h"
#include "engine.h"

namespace towline_plugin {

namespace {

using towline::Status;

constexpr uint64_t kCancelNs = 5'000'000'000;
// A peer that leaves takes its memory back first. How long a run of memory that was taken back waits for the news that
// the peer has left: NIXL's users need to know that the peer is gone.
constexpr uint64_t kLeavingNs = 2'000'000'000;

struct Request final : nixlBackendReqH {
  ~Request() override {
    if (transfer != nullptr) (void)towline_transfer_destroy(transfer, TOWLINE_FOREVER);
  }
  towline_transfer_t* transfer = nullptr;
  std::shared_ptr<towline::Peer> with;
  std::string notif;
  bool has_notif = false;
  bool to_self = false;  // the notification is for this agent: told when the data is there
  bool wanted = false;   // Towline had no credit: post again when asked
  uint64_t wanted_until = 0;
  uint64_t leaving_until = 0;  // not 0: the memory was taken back, and the peer may be leaving
};

// The answer to a run that failed with `status`.
nixl_status_t failure_of(Request& request, int32_t status) noexcept {
  if (status != TOWLINE_STALE || request.with == nullptr) return to_nixl(status);
  if (request.with->health() == towline::Health::kLost) return NIXL_ERR_REMOTE_DISCONNECT;
  const uint64_t now = now_ns();
  if (request.leaving_until == 0) request.leaving_until = now + kLeavingNs;
  return now < request.leaving_until ? NIXL_IN_PROG : to_nixl(status);
}

// Towline reads addresses and lengths where NIXL has them.
towline_block_list_t* make_list(towline_agent_t* agent, towline_peer_t* peer,
                                const nixl_meta_dlist_t& metas) {
  static_assert(sizeof(size_t) == sizeof(uint64_t) && sizeof(uintptr_t) == sizeof(uint64_t));
  const auto count = static_cast<size_t>(metas.descCount());
  if (count == 0) throw towline::Error{Status::kInvalidArgument, "the list is empty"};
  const uint32_t kind = kind_of(metas.getType());
  const uint64_t device = kind == TOWLINE_MEMORY_DRAM ? 0 : metas[0].devId;
  const bool one_device =
      kind == TOWLINE_MEMORY_DRAM ||
      std::all_of(metas.begin(), metas.end(), [&](const auto& desc) { return desc.devId == device; });
  towline_block_list_t* list = nullptr;
  if (one_device) {
    towline::detail::check(towline_block_list_create_flat(
        agent, peer, kind, reinterpret_cast<const uint64_t*>(&metas[0].addr), sizeof(nixlMetaDesc),
        reinterpret_cast<const uint64_t*>(&metas[0].len), sizeof(nixlMetaDesc), device, count, &list));
    return list;
  }
  std::vector<towline_blocks_t> blocks(count);
  for (size_t i = 0; i < count; ++i) {
    blocks[i].address = metas[i].addr;
    blocks[i].length = metas[i].len;
    blocks[i].device = metas[i].devId;
    blocks[i].kind = kind;
  }
  towline::detail::check(
      towline_block_list_create(agent, peer, blocks.data(), sizeof blocks[0], count, &list));
  return list;
}

std::string route_of(const Request& request) {
  return towline::detail::read_text([&](char* json, size_t capacity, size_t* needed) {
    return towline_transfer_route(request.transfer, json, capacity, needed);
  });
}

}  // namespace

nixl_status_t Engine::prepXfer(const nixl_xfer_op_t& operation, const nixl_meta_dlist_t& local,
                               const nixl_meta_dlist_t& remote, const std::string& agent,
                               nixlBackendReqH*& handle, const nixl_opt_b_args_t* args) const {
  return guard("prepXfer", [&] {
    using List = towline::detail::Handle<towline_block_list_t, towline_block_list_destroy>;
    auto made = std::make_unique<Request>();
    made->with = peer(agent);
    const List here{make_list(agent_->native(), nullptr, local)};
    const List there{
        make_list(agent_->native(), made->with == nullptr ? nullptr : made->with->native(), remote)};
    auto options = towline::detail::defaults<towline_transfer_options_t>();
    options.timeout_ns = timeout_ns_;
    made->to_self = made->with == nullptr;
    if (args != nullptr && args->hasNotif) {
      check_notif(args->notifMsg);
      made->has_notif = true;
      made->notif = args->notifMsg;
      if (!made->to_self) {
        options.notice = made->notif.data();
        options.notice_bytes = made->notif.size();
      }
    }
    const auto create = [&](towline_transfer_t** transfer) {
      const bool writes = operation == NIXL_WRITE;
      return towline_transfer_create(agent_->native(), writes ? here.get() : there.get(),
                                     writes ? there.get() : here.get(), &options, transfer);
    };
    towline::detail::check(create(&made->transfer));
    if (splits_ && !made->to_self && towline_block_list_bytes(here.get()) >= towline::nixl::kSplitBytes &&
        towline::nixl::is_host_copy(route_of(*made))) {
      options.workers = towline::nixl::kSplitEngines;
      towline_transfer_t* split = nullptr;
      if (create(&split) >= 0) {
        (void)towline_transfer_destroy(made->transfer, 0);  // never posted: ends at once
        made->transfer = split;
      }
    }
    handle = made.release();
    return NIXL_SUCCESS;
  });
}

namespace {

// The notification of this post; NIXL gives it again with each.
int32_t set_notif(Request& request, const nixl_opt_b_args_t* args) {
  const bool wants = args != nullptr && args->hasNotif;
  if (wants == request.has_notif && (!wants || args->notifMsg == request.notif)) return TOWLINE_OK;
  if (wants) check_notif(args->notifMsg);
  if (!request.to_self) {
    const int32_t status =
        wants ? towline_transfer_set_notice(request.transfer, args->notifMsg.data(), args->notifMsg.size())
              : towline_transfer_set_notice(request.transfer, nullptr, 0);
    if (status < 0) return status;
  }
  request.has_notif = wants;
  request.notif = wants ? args->notifMsg : std::string{};
  return TOWLINE_OK;
}

}  // namespace

nixl_status_t Engine::postXfer(const nixl_xfer_op_t& /*operation*/, const nixl_meta_dlist_t& /*local*/,
                               const nixl_meta_dlist_t& /*remote*/, const std::string& /*agent*/,
                               nixlBackendReqH*& handle, const nixl_opt_b_args_t* args) const {
  return guard("postXfer", [&] {
    auto& request = static_cast<Request&>(*handle);
    request.leaving_until = 0;
    int32_t status = set_notif(request, args);
    if (status >= 0) status = towline_transfer_post(request.transfer);
    if (status == TOWLINE_AGAIN) {
      request.wanted = true;
      request.wanted_until = now_ns() + timeout_ns_;
      return NIXL_IN_PROG;
    }
    if (status != TOWLINE_OK) return failure_of(request, status);
    if (!request.to_self || !request.has_notif) return NIXL_SUCCESS;
    const std::lock_guard lock(mutex_);
    to_self_.push_back(request.notif);
    return NIXL_SUCCESS;
  });
}

nixl_status_t Engine::checkXfer(nixlBackendReqH* handle) const {
  return guard("checkXfer", [&] {
    auto& request = static_cast<Request&>(*handle);
    // Towline does not know of a post that it refused.
    if (request.leaving_until != 0) return failure_of(request, TOWLINE_STALE);
    int32_t status = TOWLINE_IN_PROGRESS;
    if (request.wanted) {
      status = towline_transfer_post(request.transfer);
      if (status == TOWLINE_AGAIN && now_ns() < request.wanted_until) return NIXL_IN_PROG;
      request.wanted = false;
    } else {
      status = towline_transfer_poll(request.transfer);
    }
    if (status != TOWLINE_OK) return failure_of(request, status);
    if (!request.to_self || !request.has_notif) return NIXL_SUCCESS;
    const std::lock_guard lock(mutex_);
    to_self_.push_back(request.notif);
    return NIXL_SUCCESS;
  });
}

nixl_status_t Engine::releaseReqH(nixlBackendReqH* handle) const {
  auto* request = static_cast<Request*>(handle);
  if (towline_transfer_destroy(request->transfer, kCancelNs) < 0) return NIXL_ERR_BACKEND;
  request->transfer = nullptr;
  delete request;
  return NIXL_SUCCESS;
}

nixl_status_t Engine::estimateXferCost(const nixl_xfer_op_t& /*operation*/,
                                       const nixl_meta_dlist_t& /*local*/,
                                       const nixl_meta_dlist_t& /*remote*/, const std::string& /*agent*/,
                                       nixlBackendReqH* const& handle, std::chrono::microseconds& duration,
                                       std::chrono::microseconds& margin, nixl_cost_t& method,
                                       const nixl_opt_args_t* /*extra*/) const {
  return guard("estimateXferCost", [&] {
    const auto* request = static_cast<const Request*>(handle);
    const towline::nixl::RoutePrice price = towline::nixl::price_of_route(route_of(*request));
    duration = std::chrono::ceil<std::chrono::microseconds>(price.duration);
    margin = std::chrono::ceil<std::chrono::microseconds>(price.error);
    method = nixl_cost_t::ANALYTICAL_BACKEND;
    return NIXL_SUCCESS;
  });
}

}  // namespace towline_plugin
