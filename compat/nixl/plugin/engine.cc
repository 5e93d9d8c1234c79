#include "engine.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <stdexcept>
#include <string_view>
#include <thread>

#include "../../tcpx_p2p/src/settings.h"
#include "../src/explain.h"
#include "../src/split.h"
#include "calls.h"

namespace towline_plugin {

namespace {

using towline::Status;

constexpr uint64_t kDefaultTimeoutNs = 30'000'000'000;  // Towline's

struct OwnMemory final : nixlBackendMD {
  OwnMemory() : nixlBackendMD(true) {}
  std::optional<towline::Region> region;
};

struct PeerMemory final : nixlBackendMD {
  PeerMemory() : nixlBackendMD(false) {}
};

std::string as_text(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
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

// A number of milliseconds; 0: the default.
uint64_t timeout_ns_of(const std::string& text) {
  constexpr uint64_t kNsPerMs = 1'000'000;
  uint64_t ms = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), ms);
  if (error != std::errc{} || end != text.data() + text.size() || ms > INT64_MAX / kNsPerMs)
    throw towline::Error{
        Status::kInvalidArgument,
        "timeout_ms is '" + text + "', and should be a number of milliseconds such as 30000"};
  return ms == 0 ? kDefaultTimeoutNs : ms * kNsPerMs;
}

bool yes_or_no(const char* key, const std::string& text) {
  if (text != "true" && text != "false")
    throw towline::Error{Status::kInvalidArgument,
                         std::string(key) + " is '" + text + "', and should be true or false"};
  return text == "true";
}

constexpr const char* kAnywhere = "*:0";  // as NIXL's own transports: reached from every network

template <class Given>
towline_tcpx::Settings plain_settings(const Given& given) {
  return {{given("listen").empty() ? kAnywhere : given("listen")}, given("transports"), ""};
}

// Settings from the parameters of TCPX, and from the variables that such programs know.
template <class Given>
towline_tcpx::Settings tcpx_settings(const Given& given) {
  const std::string listen = !given("listen").empty()     ? given("listen")
                             : towline_tcpx::names_port() ? "*"
                                                          : kAnywhere;
  const std::string plugins = given("plugins"), source = given("source"), interface = given("interface"),
                    queues = given("queues");
  tcpx_session_options_t options = {};
  options.struct_size = sizeof options;
  options.listen = listen.c_str();
  options.plugins = plugins.c_str();
  options.source = source.c_str();
  options.interface = interface.c_str();
  options.queues = queues.c_str();
  options.gpus = yes_or_no("gpus", given("gpus")) ? 1 : 0;
  return towline_tcpx::read_settings(options);
}

}  // namespace

// ---- Life

Engine::Engine(const nixlBackendInitParams* init, const nixl_b_params_t& known) : nixlBackendEngine(init) {
  const auto given = [&](const char* key) {
    std::string value;
    return getInitParam(key, value) == NIXL_SUCCESS ? value : known.at(key);
  };
  const towline_tcpx::Settings settings =
      known.contains("transports") ? plain_settings(given) : tcpx_settings(given);
  towline::AgentOptions options;
  options.backends = settings.backends;
  options.config = settings.config + given("config");  // whose tables follow
  timeout_ns_ = timeout_ns_of(given("timeout_ms"));
  options.default_timeout = std::chrono::nanoseconds{timeout_ns_};
  splits_ = options.config.find("workers") == std::string::npos && std::thread::hardware_concurrency() > 1;
  if (splits_) options.config.insert(0, towline::nixl::kSplitConfig);
  for (const std::string& address : settings.listen) {
    options.listen = address;
    try {
      agent_.emplace(localAgent, options);
      break;
    } catch (const towline::Error& error) {
      if (error.code() != Status::kAddressInUse || &address == &settings.listen.back()) throw;
    }
  }
  memories_ = towline::nixl::memories_of_info(agent_->info());
  std::erase_if(memories_, towline::nixl::is_stored);
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
