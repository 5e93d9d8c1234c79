// nixlAgent: metadata, sent by the application, to and from an address, and through a directory.
//
// Between agents: connecting to an address exchanges Towline's metadata of both. Notices (messages.h) then
// say what the other side has to load or forget, in the order of the calls. To fetch metadata is to connect.
#include <algorithm>

#include "agent_data.h"
#include "messages.h"

using namespace towline::nixl;  // NOLINT: this file is that interface's other side

const std::string default_metadata_label = "metadata";
const std::string default_partial_metadata_label = "partial_metadata";

namespace {

std::string address_of(const nixl_opt_args_t& extra_params) {
  const bool bare_v6 =
      extra_params.ipAddr.find(':') != std::string::npos && !extra_params.ipAddr.starts_with('[');
  return bare_v6 ? fmt::format("[{}]:{}", extra_params.ipAddr, extra_params.port)
                 : fmt::format("{}:{}", extra_params.ipAddr, extra_params.port);
}

bool has_address(const nixl_opt_args_t* extra_params) noexcept {
  return extra_params != nullptr && !extra_params->ipAddr.empty();
}

uint64_t steady_ns() noexcept {
  return static_cast<uint64_t>(
      std::chrono::nanoseconds{std::chrono::steady_clock::now().time_since_epoch()}.count());
}

}  // namespace

// ---- Frames

Frame nixlAgentData::local_frame(const nixl_reg_dlist_t* descs, bool addresses,
                                 const nixl_opt_args_t* extra_params) {
  Frame frame;
  frame.name = name;
  frame.addresses = addresses;
  frame.backends = transport_names();
  if (extra_params != nullptr && !extra_params->backends.empty()) {
    std::erase_if(frame.backends, [&](const std::string& backend) {
      return std::ranges::none_of(extra_params->backends, [&](const nixlBackendH* given) {
        return given != nullptr && backend == given->type.name;
      });
    });
  }
  frame.partial = descs != nullptr;
  const auto asked = [&](const nixlBackendH* backend) {
    return std::ranges::find(frame.backends, backend->type.name) != frame.backends.end();
  };
  for (const nixlBackendH* backend : engine_backends()) {
    if (asked(backend)) frame.engines.push_back(backend->engine->describe_for_peers(descs, addresses));
  }
  if (descs == nullptr || descs->isEmpty()) {
    const std::vector<std::byte> blob = agent->metadata();
    frame.blob.assign(reinterpret_cast<const char*>(blob.data()), blob.size());
    return frame;
  }
  const bool by_engines = std::ranges::any_of(frame.engines, [&](const FrameEngine& engine) {
    return engine.memories.size() == static_cast<size_t>(descs->descCount());
  });
  try {
    frame.blob = memory.metadata(*agent, *descs);
  } catch (const towline::Error&) {
    // Memory that only plugins' engines know.
    if (!by_engines) throw;
    const std::vector<std::byte> blob = agent->metadata();
    frame.blob.assign(reinterpret_cast<const char*>(blob.data()), blob.size());
  }
  frame.ranges.reserve(static_cast<size_t>(descs->descCount()));
  for (const nixlBlobDesc& desc : *descs) {
    frame.ranges.push_back({static_cast<uint32_t>(descs->getType()), desc.devId, desc.addr, desc.len});
  }
  return frame;
}

nixl_status_t nixlAgent::getLocalMD(nixl_blob_t& str) const {
  static constexpr const char* kCall = "getLocalMD";
  if (data->transport(nullptr, kCall) == nullptr) return NIXL_ERR_INVALID_PARAM;
  return guard(kCall, [&] {
    str = encode(data->local_frame(nullptr, true, nullptr));
    return NIXL_SUCCESS;
  });
}

namespace {

// A partial frame contains the addresses only if they are requested or there is nothing else in it.
bool wants_addresses(const nixl_reg_dlist_t& descs, const nixl_opt_args_t* extra_params) noexcept {
  return descs.isEmpty() || (extra_params != nullptr && extra_params->includeConnInfo);
}

}  // namespace

nixl_status_t nixlAgent::getLocalPartialMD(const nixl_reg_dlist_t& descs, nixl_blob_t& str,
                                           const nixl_opt_args_t* extra_params) const {
  static constexpr const char* kCall = "getLocalPartialMD";
  if (data->transport(extra_params, kCall) == nullptr) return NIXL_ERR_NOT_FOUND;
  return guard(kCall, [&] {
    str = encode(data->local_frame(&descs, wants_addresses(descs, extra_params), extra_params));
    return NIXL_SUCCESS;
  });
}

bool nixlAgentData::make_room(const std::string& agent_name, size_t bytes) {
  for (;;) {
    const Remotes::Sent sent = remotes.sent(agent_name);
    if (sent.agents < Remotes::kMostSent && sent.bytes + bytes <= Remotes::kMostSentBytes) return true;
    if (sent.left.empty()) return false;
    (void)invalidate(sent.left);
  }
}

nixl_status_t nixlAgentData::load(const nixl_blob_t& blob, std::string& agent_name,
                                  std::string_view sent_by) {
  static constexpr const char* kCall = "loadRemoteMD";
  const bool sent = !sent_by.empty();
  Frame frame;
  if (const std::string why = decode(blob, frame); !why.empty()) {
    return fail(NIXL_ERR_MISMATCH, "{}: {} bytes can't be read: {}", kCall, blob.size(), why);
  }
  if (frame.name == name) {
    return fail(NIXL_ERR_INVALID_PARAM, "{}: this is agent '{}' itself, whose metadata needs no loading",
                kCall, name);
  }
  const std::vector<std::string> mine = transport_names();
  const bool common = std::ranges::any_of(frame.backends, [&](const std::string& theirs) {
    return std::ranges::find(mine, theirs) != mine.end();
  });
  if (!common) {
    return fail(NIXL_ERR_BACKEND, "{}: agent '{}' has backends {}, and '{}' has {}: none in common", kCall,
                frame.name, fmt::join(frame.backends, ","), name,
                mine.empty() ? "none" : fmt::format("{}", fmt::join(mine, ",")));
  }
  if (!frame.addresses && remotes.find(frame.name) == nullptr) {
    return fail(NIXL_ERR_NOT_FOUND, "{}: metadata of agent '{}' without its addresses: load those first",
                kCall, frame.name);
  }
  const std::shared_ptr<Remote> held = sent ? remotes.find(frame.name) : nullptr;
  if (sent && !make_room(frame.name, blob.size() + (held != nullptr ? held->bytes() : 0))) {
    return fail(NIXL_ERR_NOT_ALLOWED, "{}: others have sent the metadata of {} agents, or {} bytes of it",
                kCall, Remotes::kMostSent, Remotes::kMostSentBytes);
  }
  towline::Peer peer = agent->add_peer(frame.blob);
  if (peer.name() != frame.name) {
    return fail(NIXL_ERR_MISMATCH, "{}: metadata of '{}' that says it is of '{}'", kCall, peer.name(),
                frame.name);
  }
  const std::shared_ptr<Remote> before = remotes.find(frame.name);
  if (sent && peer.incarnation() != sent_by) {
    if (before == nullptr || before->peer().incarnation() != peer.incarnation()) remove_peer(peer);
    return fail(NIXL_ERR_NOT_ALLOWED, "{}: agent '{}' sent the metadata of another agent of its name", kCall,
                frame.name);
  }
  if (sent && before != nullptr && before->peer().incarnation() != peer.incarnation() &&
      !before->is_replaced()) {
    remove_peer(peer);
    return fail(NIXL_ERR_NOT_ALLOWED, "{}: another agent '{}' sent it, and the first is there", kCall,
                frame.name);
  }
  nixl_status_t status = remotes.load(std::move(peer), frame, sent ? blob.size() : 0);
  if (status == NIXL_SUCCESS && !frame.engines.empty())
    status = load_engines(frame, before != remotes.find(frame.name));
  if (status == NIXL_SUCCESS) agent_name = frame.name;
  return status;
}

nixl_status_t nixlAgent::loadRemoteMD(const nixl_blob_t& remote_metadata, std::string& agent_name) {
  return guard("loadRemoteMD", metadata_to_nixl, [&] { return data->load(remote_metadata, agent_name); });
}

// Removes the peer from Towline too, which ends its transfers. Removing consumes a reference; others may still use the
// given one.
void nixlAgentData::remove_peer(const towline::Peer& known) {
  towline_peer_t* peer = nullptr;
  const std::string incarnation{known.incarnation()};
  if (towline_peer_find(agent->native(), incarnation.c_str(), &peer) != TOWLINE_OK) return;
  if (towline_peer_remove(peer) != TOWLINE_OK) towline_peer_release(peer);
}

nixl_status_t nixlAgentData::invalidate(const std::string& agent_name) {
  if (agent_name == name) {
    return fail(NIXL_ERR_INVALID_PARAM, "invalidateRemoteMD: '{}' is this agent itself", agent_name);
  }
  if (const std::shared_ptr<Remote> remote = remotes.forget(agent_name)) {
    forget_engines(agent_name);
    remove_peer(remote->peer());
    return NIXL_SUCCESS;
  }
  return quiet_text(NIXL_ERR_NOT_FOUND,
                    fmt::format("invalidateRemoteMD: the metadata of agent '{}' is not loaded", agent_name));
}

nixl_status_t nixlAgent::invalidateRemoteMD(const std::string& remote_agent) {
  return guard("invalidateRemoteMD", [&] {
    data->catch_up();
    return data->invalidate(remote_agent);
  });
}

nixl_status_t nixlAgent::checkRemoteMD(const std::string remote_name,  // NOLINT: by value as it is there
                                       const nixl_xfer_dlist_t& descs) const {
  static constexpr const char* kCall = "checkRemoteMD";
  return guard(kCall, [&] {
    const auto unknown = [&] {
      return quiet_text(NIXL_ERR_NOT_FOUND,
                        fmt::format("{}: not all of this is known of agent '{}'", kCall, remote_name));
    };
    data->catch_up();
    const bool own = remote_name == data->name;  // known without loading
    const std::shared_ptr<Remote> remote = own ? nullptr : data->remotes.find(remote_name);
    if (remote == nullptr && !own) return unknown();
    if (descs.isEmpty()) return NIXL_SUCCESS;
    const Rows rows = Rows::of(descs);
    if (!own && remote->first_unknown(descs.getType(), rows) != rows.count) return unknown();
    const auto list = data->try_list(remote.get(), descs);
    if (list) return NIXL_SUCCESS;
    for (const nixlBackendH* backend : data->engine_backends()) {
      EngineList known(descs.getType());
      if (backend->engine->make_list(remote_name, descs.getType(), rows, known, kCall) == NIXL_SUCCESS)
        return NIXL_SUCCESS;
    }
    return unknown();
  });
}

nixl_status_t nixlAgent::makeConnection(const std::string& remote_agent,
                                        const nixl_opt_args_t* extra_params) {
  static constexpr const char* kCall = "makeConnection";
  if (data->transport(extra_params, kCall) == nullptr) return NIXL_ERR_NOT_FOUND;
  return guard(kCall, [&] {
    data->catch_up();
    const std::shared_ptr<Remote> remote = data->remotes.find(remote_agent);
    if (remote == nullptr) {
      return fail(NIXL_ERR_NOT_FOUND, "{}: the metadata of agent '{}' is not loaded", kCall, remote_agent);
    }
    bool by_engine = false;
    for (const nixlBackendH* backend : data->engine_backends()) {
      if (!backend->engine->knows(remote_agent)) continue;
      const nixl_status_t status = backend->engine->connect(remote_agent);
      if (status < 0) return fail(status, "{}: plugin '{}'", kCall, backend->type.name);
      by_engine = true;
    }
    const nixlBackendH* own = data->transport(extra_params, kCall);
    if (by_engine && (own == nullptr || !own->is_transport())) return NIXL_SUCCESS;
    return data->send_notice(remote->peer(), make_message(MessageType::kNothing),
                             steady_ns() + data->timeout_ns, kCall);
  });
}

// ---- Messages about metadata

void nixlAgentData::read_message(const std::string& sender, std::string_view incarnation,
                                 std::string_view message) {
  if (message_type(message) == MessageType::kInvalidate) {
    (void)sent_metadata->run(0, [this, sender, from = std::string{incarnation}] { take_back(sender, from); });
    return;
  }
  // Only an agent that listens takes what others send unasked.
  if (message_type(message) != MessageType::kLoad || !config.useListenThread) return;
  SentMetadata::Frame frame{std::string{incarnation}, {}};
  if (!arriving_frames.add(sender, incarnation, message_body(message), frame.bytes)) return;
  const size_t bytes = frame.bytes.size();
  const bool room = sent_metadata->run(
      bytes, [this, sender, frame = std::move(frame)]() mutable { take_sent(sender, std::move(frame)); });
  if (!room) log(LogLevel::kWarning, fmt::format("no room for the metadata that agent '{}' sent", sender));
}

void nixlAgentData::take_back(const std::string& sender, std::string_view incarnation) {
  sent_metadata->drop(sender, incarnation);
  const std::shared_ptr<Remote> remote = remotes.find(sender);
  // The connection stays: the sender's next messages arrive over it.
  if (remote == nullptr || remote->peer().incarnation() != incarnation) return;
  (void)remotes.forget(sender);
  forget_engines(sender);
}

void nixlAgentData::take_sent(const std::string& sender, SentMetadata::Frame frame) {
  std::string loaded;
  (void)guard("metadata sent by another agent", metadata_to_nixl, [&] {
    Frame read;
    // An agent may send only its own metadata.
    if (decode(frame.bytes, read).empty() && read.name != sender) {
      return fail(NIXL_ERR_NOT_ALLOWED, "agent '{}' sent metadata of agent '{}', which is not loaded", sender,
                  read.name);
    }
    const std::shared_ptr<Remote> known = remotes.find(sender);
    if (known == nullptr || !known->is_there() || known->peer().incarnation() == frame.incarnation)
      return load(frame.bytes, loaded, frame.incarnation);
    log(LogLevel::kWarning,
        fmt::format(
            "another agent '{}' sent its metadata while the first is there: not loaded before that has left",
            sender));
    return sent_metadata->keep(sender, std::move(frame)) ? NIXL_SUCCESS : NIXL_ERR_NOT_ALLOWED;
  });
}

// Frames that were kept go on once nobody is there under their sender's name.
void nixlAgentData::read_all() {
  if (!sent_metadata->keeps_any()) return;
  const auto may_go_on = [this](const std::string& sender) {
    const std::shared_ptr<Remote> known = remotes.find(sender);
    return known == nullptr || !known->is_there();
  };
  for (auto& [sender, frame] : sent_metadata->take_kept(may_go_on)) {
    const size_t bytes = frame.bytes.size();
    (void)sent_metadata->run(bytes, [this, name = sender, kept = std::move(frame)]() mutable {
      take_sent(name, std::move(kept));
    });
  }
}

void nixlAgentData::catch_up() {
  inbox.drain(*agent);
  std::unique_lock lock(directory_mutex);
  MetadataDirectory* opened = opened_directory.get();
  lock.unlock();
  if (opened != nullptr) opened->poll(*this);
}

void nixlAgentData::gone(const std::string& agent_name) { (void)invalidate(agent_name); }

// ---- To and from an address

nixl_status_t nixlAgentData::send_to(const std::string& address, const std::vector<std::string>& messages) {
  const uint64_t until_ns = steady_ns() + static_cast<uint64_t>(settings.metadata_timeout.count());
  const towline::Peer peer = agent->connect(address, settings.metadata_timeout);
  for (const std::string& message : messages) {
    const nixl_status_t status = send_notice(peer, message, until_ns, "sending metadata");
    if (status != NIXL_SUCCESS) return status;
  }
  return NIXL_SUCCESS;
}

nixl_status_t nixlAgentData::fetch_from(const std::string& address, const std::string& remote_name) {
  if (transport(nullptr, "fetchRemoteMD") == nullptr) return NIXL_ERR_BACKEND;
  towline::Peer peer = agent->connect(address, settings.metadata_timeout);
  if (peer.name() != remote_name) {
    return fail(NIXL_ERR_NOT_FOUND, "fetchRemoteMD: the agent at {} is '{}', not '{}'", address, peer.name(),
                remote_name);
  }
  Frame frame;
  frame.name = remote_name;
  frame.addresses = true;
  return remotes.load(std::move(peer), frame);
}

MetadataDirectory* nixlAgentData::directory(const char* call, nixl_status_t& status) {
  std::lock_guard lock(directory_mutex);
  status = guard(call, [&] {
    if (opened_directory == nullptr) opened_directory = open_directory(*agent, settings);
    if (opened_directory != nullptr) return NIXL_SUCCESS;
    return fail(NIXL_ERR_INVALID_PARAM,
                "{}: no ipAddr is given, and no metadata server is set (NIXL_ETCD_ENDPOINTS, "
                "NIXL_TCPSTORE_ENDPOINT)",
                call);
  });
  return opened_directory.get();
}

nixl_status_t nixlAgentData::begin_send(const char* what, const Frame& frame,
                                        const nixl_opt_args_t& extra_params) {
  const std::string address = address_of(extra_params);
  return calls->begin(fmt::format("{} to {}", what, address), address,
                      [this, what, address, messages = make_load_messages(encode(frame))] {
                        return guard(what, [&] { return send_to(address, messages); });
                      });
}

nixl_status_t nixlAgent::sendLocalMD(const nixl_opt_args_t* extra_params) const {
  static constexpr const char* kCall = "sendLocalMD";
  if (data->transport(nullptr, kCall) == nullptr) return NIXL_ERR_INVALID_PARAM;
  return guard(kCall, [&] {
    if (has_address(extra_params)) {
      return data->begin_send(kCall, data->local_frame(nullptr, true, nullptr), *extra_params);
    }
    nixl_status_t status = NIXL_SUCCESS;
    MetadataDirectory* directory = data->directory(kCall, status);
    if (directory == nullptr) return status;
    std::string bytes = encode(data->local_frame(nullptr, true, nullptr));
    return data->calls->begin(kCall, "directory", [directory, bytes = std::move(bytes)] {
      return guard(kCall, [&] {
        directory->publish(default_metadata_label, bytes);
        return NIXL_SUCCESS;
      });
    });
  });
}

nixl_status_t nixlAgent::sendLocalPartialMD(const nixl_reg_dlist_t& descs,
                                            const nixl_opt_args_t* extra_params) const {
  static constexpr const char* kCall = "sendLocalPartialMD";
  if (data->transport(extra_params, kCall) == nullptr) return NIXL_ERR_NOT_FOUND;
  return guard(kCall, [&] {
    if (has_address(extra_params)) {
      return data->begin_send(kCall,
                              data->local_frame(&descs, wants_addresses(descs, extra_params), extra_params),
                              *extra_params);
    }
    nixl_status_t status = NIXL_SUCCESS;
    MetadataDirectory* directory = data->directory(kCall, status);
    if (directory == nullptr) return status;
    if (extra_params == nullptr || extra_params->metadataLabel.empty()) {
      return fail(NIXL_ERR_INVALID_PARAM, "{}: partial metadata needs a metadataLabel in a metadata server",
                  kCall);
    }
    std::string bytes = encode(data->local_frame(&descs, wants_addresses(descs, extra_params), extra_params));
    return data->calls->begin(kCall, "directory",
                              [directory, label = extra_params->metadataLabel, bytes = std::move(bytes)] {
                                return guard(kCall, [&] {
                                  directory->publish(label, bytes);
                                  return NIXL_SUCCESS;
                                });
                              });
  });
}

nixl_status_t nixlAgent::fetchRemoteMD(const std::string remote_name,  // NOLINT: by value as it is there
                                       const nixl_opt_args_t* extra_params) {
  static constexpr const char* kCall = "fetchRemoteMD";
  return guard(kCall, [&] {
    nixlAgentData* inside = data.get();
    if (has_address(extra_params)) {
      const std::string address = address_of(*extra_params);
      return inside->calls->begin(fmt::format("{} of '{}' from {}", kCall, remote_name, address), address,
                                  [inside, address, remote_name] {
                                    return guard(kCall,
                                                 [&] { return inside->fetch_from(address, remote_name); });
                                  });
    }
    nixl_status_t status = NIXL_SUCCESS;
    MetadataDirectory* directory = inside->directory(kCall, status);
    if (directory == nullptr) return status;
    const bool labelled = extra_params != nullptr && !extra_params->metadataLabel.empty();
    const std::string label = labelled ? extra_params->metadataLabel : default_metadata_label;
    // A fetch waits until the name exists, so each name has its own queue.
    return inside->calls->begin(fmt::format("{} of '{}'", kCall, remote_name), "directory/" + remote_name,
                                [inside, directory, label, remote_name] {
                                  return guard(kCall, metadata_to_nixl, [&] {
                                    std::string loaded;
                                    return inside->load(
                                        directory->fetch(remote_name, label, inside->config.etcdWatchTimeout),
                                        loaded);
                                  });
                                });
  });
}

nixl_status_t nixlAgent::invalidateLocalMD(const nixl_opt_args_t* extra_params) const {
  static constexpr const char* kCall = "invalidateLocalMD";
  return guard(kCall, [&] {
    nixlAgentData* inside = data.get();
    if (has_address(extra_params)) {
      const std::string address = address_of(*extra_params);
      return inside->calls->begin(fmt::format("{} at {}", kCall, address), address, [inside, address] {
        return guard(kCall,
                     [&] { return inside->send_to(address, {make_message(MessageType::kInvalidate)}); });
      });
    }
    nixl_status_t status = NIXL_SUCCESS;
    MetadataDirectory* directory = inside->directory(kCall, status);
    if (directory == nullptr) return status;
    return inside->calls->begin(kCall, "directory", [directory] {
      return guard(kCall, [&] {
        directory->withdraw();
        return NIXL_SUCCESS;
      });
    });
  });
}

// ---- What Towline adds

namespace towline::nixl {

nixl_status_t xfer_route(const nixlXferReqH* request, std::string& json) {
  if (request == nullptr) return fail(NIXL_ERR_INVALID_PARAM, "xfer_route: the request is null");
  if (request->engined != nullptr) {
    json = fmt::format(R"({{"backend":"{}","reason":"a plugin of NIXL's interface"}})",
                       request->backend->type.name);
    return NIXL_SUCCESS;
  }
  return guard("xfer_route", [&] {
    json = detail::read_text([&](char* text, size_t capacity, size_t* needed) {
      return towline_transfer_route(request->transfer, text, capacity, needed);
    });
    return NIXL_SUCCESS;
  });
}

nixl_status_t agent_info(const nixlAgent& agent, std::string& json) {
  return guard("agent_info", [&] {
    json = AgentAccess::data(agent).agent->info();
    return NIXL_SUCCESS;
  });
}

nixl_status_t agent_counters(const nixlAgent& agent, std::string& json) {
  return guard("agent_counters", [&] {
    json = AgentAccess::data(agent).agent->metrics();
    return NIXL_SUCCESS;
  });
}

nixl_status_t agent_address(const nixlAgent& agent, std::string& address) {
  return guard("agent_address", [&] {
    address = AgentAccess::data(agent).agent->address();
    return NIXL_SUCCESS;
  });
}

std::vector<MetadataCall> metadata_calls(const nixlAgent& agent) {
  return AgentAccess::data(agent).calls->recent();
}

}  // namespace towline::nixl
