#include "engine.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <span>
#include <stdexcept>
#include <string_view>
#include <thread>

#include "../src/explain.h"

namespace towline_plugin {

namespace {

using towline::Status;

constexpr uint64_t kDefaultTimeoutNs = 30'000'000'000;  // Towline's
constexpr uint64_t kCancelNs = 5'000'000'000;

struct OwnMemory final : nixlBackendMD {
  OwnMemory() : nixlBackendMD(true) {}
  std::optional<towline::Region> region;
};

struct PeerMemory final : nixlBackendMD {
  PeerMemory() : nixlBackendMD(false) {}
};

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
};

uint64_t now_ns() noexcept {
  return static_cast<uint64_t>(
      std::chrono::nanoseconds{std::chrono::steady_clock::now().time_since_epoch()}.count());
}

uint32_t kind_of(nixl_mem_t kind) noexcept {
  return kind == VRAM_SEG ? TOWLINE_MEMORY_VRAM : TOWLINE_MEMORY_DRAM;
}

nixl_status_t to_nixl(int32_t status) noexcept {
  switch (Status{status}) {
    case Status::kOk:
      return NIXL_SUCCESS;
    case Status::kInProgress:
      return NIXL_IN_PROG;
    case Status::kInvalidArgument:
    case Status::kOutOfRange:
    case Status::kMismatch:
    case Status::kLimitExceeded:
      return NIXL_ERR_INVALID_PARAM;
    case Status::kNotFound:
    case Status::kStale:
      return NIXL_ERR_NOT_FOUND;
    case Status::kUnsupported:
      return NIXL_ERR_NOT_SUPPORTED;
    case Status::kBusy:
      return NIXL_ERR_REPOST_ACTIVE;
    case Status::kCancelled:
      return NIXL_ERR_CANCELED;
    case Status::kPeerLost:
    case Status::kPeerRestarted:
    case Status::kUnreachable:
      return NIXL_ERR_REMOTE_DISCONNECT;
    default:
      return NIXL_ERR_BACKEND;
  }
}

// A peer that leaves takes its memory back first; NIXL's users need to know that it is gone.
nixl_status_t status_of(const Request& request, int32_t status) noexcept {
  const bool left =
      status == TOWLINE_STALE && request.with != nullptr && request.with->health() == towline::Health::kLost;
  return left ? NIXL_ERR_REMOTE_DISCONNECT : to_nixl(status);
}

void say(const char* what, const char* why) noexcept {
  std::fprintf(stderr, "towline in nixl: %s: %s\n", what, why);
}

// NIXL's agent does not expect exceptions.
template <class Work>
nixl_status_t guard(const char* what, Work work) noexcept {
  try {
    return work();
  } catch (const towline::Error& error) {
    say(what, error.what());
    return to_nixl(static_cast<int32_t>(error.code()));
  } catch (const std::exception& error) {
    say(what, error.what());
    return NIXL_ERR_BACKEND;
  }
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

std::string as_text(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void check_notif(const std::string& text) {
  if (text.size() > TOWLINE_MAX_NOTICE_BYTES)
    throw towline::Error{Status::kLimitExceeded,
                         "a notification has at most 65,536 bytes, not " + std::to_string(text.size())};
}

}  // namespace

nixl_b_params_t parameters() {
  return {{"transports", ""}, {"timeout_ms", "30000"}, {"listen", ""}, {"config", ""}};
}

nixl_b_params_t tcpx_parameters() {
  return {{"source", ""},    {"interface", ""},       {"queues", ""}, {"plugins", "tcpx"},
          {"gpus", "false"}, {"timeout_ms", "30000"}, {"listen", ""}, {"config", ""}};
}

namespace {

// TOML, of what the parameters of TCPX say.
template <class Given>
std::string tcpx_config(const Given& given) {
  std::string plugins;
  const std::string names = given("plugins");
  for (size_t at = 0; at < names.size();) {
    const size_t end = std::min(names.find(',', at), names.size());
    plugins += (plugins.empty() ? "\"" : ", \"") + names.substr(at, end - at) + "\"";
    at = end + 1;
  }
  std::string config = "plugins = [" + plugins + "]\n";
  for (const char* key : {"source", "interface", "queues"})
    if (const std::string value = given(key); !value.empty())
      config += std::string("tcpx.") + key + " = \"" + value + "\"\n";
  return config + given("config");  // whose tables follow
}

}  // namespace

// ---- Life

Engine::Engine(const nixlBackendInitParams* init, const nixl_b_params_t& known) : nixlBackendEngine(init) {
  const auto given = [&](const char* key) {
    std::string value;
    return getInitParam(key, value) == NIXL_SUCCESS ? value : known.at(key);
  };
  towline::AgentOptions options;
  if (known.contains("transports")) {
    options.backends = given("transports");
    options.config = given("config");
  } else {
    options.backends = given("gpus") == "true" ? "tcpx,cuda" : "tcpx";
    options.config = tcpx_config(given);
  }
  // As NIXL's own transports: reached from every network.
  options.listen = given("listen").empty() ? "*:0" : given("listen");
  timeout_ns_ = std::stoull(given("timeout_ms")) * 1'000'000;
  if (timeout_ns_ == 0) timeout_ns_ = kDefaultTimeoutNs;
  options.default_timeout = std::chrono::nanoseconds{timeout_ns_};
  agent_.emplace(localAgent, options);
  memories_ = towline::nixl::memories_of_info(agent_->info());
  std::erase(memories_, FILE_SEG);
  if (memories_.empty())
    throw towline::Error{Status::kUnsupported, "no transport of '" + options.backends +
                                                   "' can be used here: the warnings of its loading say why"};
}

Engine::~Engine() = default;

std::shared_ptr<towline::Peer> Engine::peer(const std::string& agent) const {
  if (agent == localAgent) return nullptr;
  const std::lock_guard lock(mutex_);
  const auto found = peers_.find(agent);
  if (found == peers_.end())
    throw towline::Error{Status::kNotFound, "the metadata of agent '" + agent + "' is not loaded"};
  return found->second;
}

// ---- Memory

nixl_status_t Engine::registerMem(const nixlBlobDesc& mem, const nixl_mem_t& kind, nixlBackendMD*& out) {
  return guard("registerMem", [&] {
    auto made = std::make_unique<OwnMemory>();
    towline::MemoryView view;
    view.address = reinterpret_cast<void*>(mem.addr);
    view.bytes = mem.len;
    view.kind = static_cast<towline::Kind>(kind_of(kind));
    view.device = kind == DRAM_SEG ? 0 : mem.devId;
    made->region = agent_->register_memory(view, {.access = towline::Access::kAll});
    out = made.release();
    return NIXL_SUCCESS;
  });
}

nixl_status_t Engine::deregisterMem(nixlBackendMD* meta) {
  auto* memory = static_cast<OwnMemory*>(meta);
  const Status status = memory->region->deregister(std::chrono::nanoseconds{timeout_ns_});
  if (status != Status::kOk) {
    // NIXL forgets the memory whatever this returns: the region stays registered, rather than that bytes land
    // in memory that the application has back.
    say("deregisterMem", towline_last_error());
    return NIXL_ERR_BACKEND;
  }
  delete memory;
  return NIXL_SUCCESS;
}

nixl_status_t Engine::getPublicData(const nixlBackendMD* meta, std::string& text) const {
  return guard("getPublicData", [&] {
    const towline::Region* const only[] = {&*static_cast<const OwnMemory*>(meta)->region};
    text = as_text(agent_->metadata(only));
    return NIXL_SUCCESS;
  });
}

// NIXL unloads this and deregisters `input`, so they are two objects.
nixl_status_t Engine::loadLocalMD(nixlBackendMD* /*input*/, nixlBackendMD*& output) {
  return guard("loadLocalMD", [&] {
    output = new PeerMemory;
    return NIXL_SUCCESS;
  });
}

// ---- Peers

nixl_status_t Engine::getConnInfo(std::string& text) const {
  return guard("getConnInfo", [&] {
    text = as_text(agent_->metadata());
    return NIXL_SUCCESS;
  });
}

nixl_status_t Engine::loadRemoteConnInfo(const std::string& agent, const std::string& info) {
  return guard("loadRemoteConnInfo", [&] {
    auto added = std::make_shared<towline::Peer>(agent_->add_peer(info));
    if (added->name() != agent)
      throw towline::Error{Status::kMismatch, "it is of agent '" + std::string{added->name()} + "'"};
    const std::lock_guard lock(mutex_);
    peers_[agent] = std::move(added);
    return NIXL_SUCCESS;
  });
}

nixl_status_t Engine::loadRemoteMD(const nixlBlobDesc& input, const nixl_mem_t& /*kind*/,
                                   const std::string& agent, nixlBackendMD*& output) {
  return guard("loadRemoteMD", [&] {
    const std::shared_ptr<towline::Peer> known = peer(agent);
    const towline::Peer same = agent_->add_peer(input.metaInfo);
    if (known == nullptr || same.incarnation() != known->incarnation())
      throw towline::Error{Status::kMismatch, "it is of another incarnation of agent '" + agent + "'"};
    output = new PeerMemory;
    return NIXL_SUCCESS;
  });
}

nixl_status_t Engine::unloadMD(nixlBackendMD* input) {
  delete input;
  return NIXL_SUCCESS;
}

// Towline connects when the first request needs it.
nixl_status_t Engine::connect(const std::string& agent) {
  return guard("connect", [&] {
    (void)peer(agent);
    return NIXL_SUCCESS;
  });
}

nixl_status_t Engine::disconnect(const std::string& agent) {
  if (agent == localAgent) return NIXL_SUCCESS;
  return guard("disconnect", [&] {
    const std::shared_ptr<towline::Peer> known = peer(agent);
    {
      const std::lock_guard lock(mutex_);
      peers_.erase(agent);
    }
    if (std::optional<towline::Peer> removed = agent_->find_peer(std::string{known->incarnation()}))
      removed->remove();
    return NIXL_SUCCESS;
  });
}

// ---- Requests

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
    towline::detail::check(
        towline_transfer_create(agent_->native(), operation == NIXL_WRITE ? TOWLINE_WRITE : TOWLINE_READ,
                                here.get(), nullptr, there.get(), nullptr, &options, &made->transfer));
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
    int32_t status = set_notif(request, args);
    if (status >= 0) status = towline_transfer_post(request.transfer);
    if (status == TOWLINE_AGAIN) {
      request.wanted = true;
      request.wanted_until = now_ns() + timeout_ns_;
      return NIXL_IN_PROG;
    }
    if (status != TOWLINE_OK) return status_of(request, status);
    if (!request.to_self || !request.has_notif) return NIXL_SUCCESS;
    const std::lock_guard lock(mutex_);
    to_self_.push_back(request.notif);
    return NIXL_SUCCESS;
  });
}

nixl_status_t Engine::checkXfer(nixlBackendReqH* handle) const {
  return guard("checkXfer", [&] {
    auto& request = static_cast<Request&>(*handle);
    int32_t status = TOWLINE_IN_PROGRESS;
    if (request.wanted) {
      status = towline_transfer_post(request.transfer);
      if (status == TOWLINE_AGAIN && now_ns() < request.wanted_until) return NIXL_IN_PROG;
      request.wanted = false;
    } else {
      status = towline_transfer_poll(request.transfer);
    }
    if (status != TOWLINE_OK) return status_of(request, status);
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
    const std::string route = towline::detail::read_text([&](char* json, size_t capacity, size_t* needed) {
      return towline_transfer_route(request->transfer, json, capacity, needed);
    });
    const towline::nixl::RoutePrice price = towline::nixl::price_of_route(route);
    duration = std::chrono::ceil<std::chrono::microseconds>(price.duration);
    margin = std::chrono::ceil<std::chrono::microseconds>(price.error);
    method = nixl_cost_t::ANALYTICAL_BACKEND;
    return NIXL_SUCCESS;
  });
}

// ---- Notifications

nixl_status_t Engine::getNotifs(notif_list_t& list) {
  return guard("getNotifs", [&] {
    towline::Notice notice;
    while (agent_->receive(notice) == Status::kOk)
      list.emplace_back(std::string{notice.peer_name()}, std::string{notice.text()});
    const std::lock_guard lock(mutex_);
    for (std::string& text : to_self_) list.emplace_back(localAgent, std::move(text));
    to_self_.clear();
    return NIXL_SUCCESS;
  });
}

nixl_status_t Engine::genNotif(const std::string& agent, const std::string& text) const {
  return guard("genNotif", [&] {
    check_notif(text);
    const std::shared_ptr<towline::Peer> to = peer(agent);
    if (to == nullptr) {
      const std::lock_guard lock(mutex_);
      to_self_.push_back(text);
      return NIXL_SUCCESS;
    }
    const uint64_t until = now_ns() + timeout_ns_;
    auto pause = std::chrono::microseconds{20};
    for (;;) {
      const int32_t status = towline_notice_send(to->native(), text.data(), text.size());
      if (status != TOWLINE_AGAIN || now_ns() >= until) return to_nixl(status);
      std::this_thread::sleep_for(pause);
      pause = std::min(pause * 2, std::chrono::microseconds{1000});
    }
  });
}

}  // namespace towline_plugin
