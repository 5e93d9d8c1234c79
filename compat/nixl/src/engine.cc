#include "engine.h"

#include <algorithm>
#include <utility>

#include "engine_call.h"

namespace towline::nixl {

EnginePeer::~EnginePeer() {
  const std::lock_guard lock(mutex_);
  memory.each([&](nixl_mem_t, const Memory& known) {
    (void)call_engine("unloadMD", [&] { return engine_.unloadMD(known.metadata); });
  });
}

// ---- Life

Engine::Engine(std::shared_ptr<const nixlBackendPluginHandle> plugin, nixlBackendEngine* engine,
               std::string agent, std::string name)
    : plugin_(std::move(plugin)),
      engine_(engine),
      agent_(std::move(agent)),
      name_(std::move(name)),
      type_{name_.c_str(), Role::kEngine, "a plugin of NIXL's interface"} {}

std::unique_ptr<Engine> Engine::make(std::shared_ptr<const nixlBackendPluginHandle> plugin,
                                     const nixlBackendInitParams& params, nixl_status_t& status) {
  const nixl_backend_t name = params.type;
  quiet_text(NIXL_ERR_BACKEND, "");  // so that an error of the plugin's is told from an old one
  nixlBackendEngine* engine = plugin->createEngine(&params);
  if (engine == nullptr) {
    const std::string why = last_error();
    status = fail(NIXL_ERR_BACKEND, "plugin '{}' made no engine{}{}", name, why.empty() ? "" : ": ", why);
    return nullptr;
  }
  std::unique_ptr<Engine> made{new Engine(std::move(plugin), engine, params.localAgent, name)};
  status = made->start();
  return status == NIXL_SUCCESS ? std::move(made) : nullptr;
}

nixl_status_t Engine::start() {
  const std::lock_guard lock(mutex_);
  const nixl_status_t asked = call_engine("what it supports", [&] {
    if (engine_->getInitErr()) return NIXL_ERR_BACKEND;
    remote_ = engine_->supportsRemote();
    local_ = engine_->supportsLocal();
    notifies_ = engine_->supportsNotif();
    memories_ = engine_->getSupportedMems();
    return NIXL_SUCCESS;
  });
  if (asked != NIXL_SUCCESS)
    return fail(asked, "plugin '{}': its engine reports that it failed to start", name_);
  std::erase_if(memories_, [](nixl_mem_t kind) { return kind < DRAM_SEG || kind > FILE_SEG; });
  if (remote_ && !notifies_)
    return fail(NIXL_ERR_BACKEND, "plugin '{}' reaches other agents but carries no notifications", name_);
  nixl_status_t status = NIXL_SUCCESS;
  if (remote_) status = call_engine("getConnInfo", [&] { return engine_->getConnInfo(conn_info_); });
  if (status == NIXL_SUCCESS && local_)
    status = call_engine("connect", [&] { return engine_->connect(agent_); });
  if (status == NIXL_SUCCESS) return status;
  return fail(status, "plugin '{}': its engine failed to start: {}", name_,
              nixlEnumStrings::statusStr(status));
}

Engine::~Engine() {
  while (!peers_.empty()) forget(std::string{peers_.begin()->first});
  {
    const std::lock_guard lock(mutex_);
    memory_.each([&](nixl_mem_t, const Memory& memory) { remove_one(memory); });
  }
  plugin_->destroyEngine(engine_);
}

// ---- Memory

nixl_status_t Engine::add_one(const nixlBlobDesc& desc, nixl_mem_t type, Memory& memory) {
  memory.desc = desc;
  nixl_status_t status =
      call_engine("registerMem", [&] { return engine_->registerMem(desc, type, memory.metadata); });
  if (status != NIXL_SUCCESS) return status;
  if (local_) {
    status = call_engine("loadLocalMD", [&] { return engine_->loadLocalMD(memory.metadata, memory.own); });
    if (status != NIXL_SUCCESS) memory.own = memory.metadata;  // nothing to unload
  }
  if (status == NIXL_SUCCESS && remote_) {
    status = call_engine("getPublicData",
                         [&] { return engine_->getPublicData(memory.metadata, memory.public_data); });
  }
  if (status != NIXL_SUCCESS) remove_one(memory);
  return status;
}

void Engine::remove_one(const Memory& memory) {
  if (local_ && memory.own != memory.metadata)
    (void)call_engine("unloadMD", [&] { return engine_->unloadMD(memory.own); });
  (void)call_engine("deregisterMem", [&] { return engine_->deregisterMem(memory.metadata); });
}

nixl_status_t Engine::add(const nixl_reg_dlist_t& descs) {
  const std::lock_guard lock(mutex_);
  std::vector<Memory> added;
  added.reserve(static_cast<size_t>(descs.descCount()));
  for (const nixlBlobDesc& desc : descs) {
    Memory memory;
    const nixl_status_t status = add_one(desc, descs.getType(), memory);
    if (status != NIXL_SUCCESS) {
      for (const Memory& before : added) remove_one(before);
      return quiet_text(status, fmt::format("plugin '{}': descriptor {} was not registered: {}", name_,
                                            added.size(), nixlEnumStrings::statusStr(status)));
    }
    added.push_back(std::move(memory));
  }
  for (Memory& memory : added) memory_.add(descs.getType(), std::move(memory));
  return NIXL_SUCCESS;
}

nixl_status_t Engine::remove(const nixl_reg_dlist_t& descs) {
  const std::lock_guard lock(mutex_);
  std::vector<Memory> taken;
  for (const nixlBlobDesc& desc : descs) {
    Memory memory;
    if (memory_.take(descs.getType(), desc, memory)) {
      taken.push_back(std::move(memory));
      continue;
    }
    for (Memory& before : taken) memory_.add(descs.getType(), std::move(before));
    return quiet_text(NIXL_ERR_NOT_FOUND,
                      fmt::format("plugin '{}': memory at {:#x} is not registered", name_, desc.addr));
  }
  ++version_;
  for (const Memory& memory : taken) remove_one(memory);
  return NIXL_SUCCESS;
}

nixl_status_t Engine::query(const nixl_reg_dlist_t& descs, std::vector<nixl_query_resp_t>& answers) const {
  const std::lock_guard lock(mutex_);
  return call_engine("queryMem", [&] { return engine_->queryMem(descs, answers); });
}

// ---- Peers

FrameEngine Engine::describe_for_peers(const nixl_reg_dlist_t* descs, bool addresses) const {
  FrameEngine frame;
  frame.name = name_;
  frame.addresses = addresses;
  if (addresses) frame.conn_info = conn_info_;
  const auto put = [&](nixl_mem_t type, const Memory& memory) {
    frame.memories.push_back(
        {{static_cast<uint32_t>(type), memory.desc.devId, memory.desc.addr, memory.desc.len},
         memory.public_data});
  };
  const std::lock_guard lock(mutex_);
  if (descs == nullptr) {
    memory_.each(put);
    return frame;
  }
  for (const nixlBlobDesc& desc : *descs) {
    if (const Memory* memory = memory_.exact(descs->getType(), desc)) put(descs->getType(), *memory);
  }
  return frame;
}

std::shared_ptr<EnginePeer> Engine::peer(const std::string& agent) const {
  const auto found = peers_.find(agent);
  return found == peers_.end() ? nullptr : found->second;
}

bool Engine::knows(const std::string& agent) const {
  const std::lock_guard lock(mutex_);
  return peers_.contains(agent);
}

nixl_status_t Engine::load_one(const std::string& agent, EnginePeer& peer, const FrameMemory& given) {
  const auto type = static_cast<nixl_mem_t>(given.range.type);
  const nixlBlobDesc desc{given.range.address, given.range.bytes, given.range.device, given.public_data};
  if (const Memory* known = peer.memory.exact(type, desc))
    return known->public_data == given.public_data ? NIXL_SUCCESS : NIXL_ERR_NOT_ALLOWED;
  // Kinds that this side's engine does not serve can't be part of a transfer.
  if (std::ranges::find(memories_, type) == memories_.end()) return NIXL_SUCCESS;
  Memory memory{desc, nullptr, nullptr, given.public_data};
  const nixl_status_t status =
      call_engine("loadRemoteMD", [&] { return engine_->loadRemoteMD(desc, type, agent, memory.metadata); });
  if (status == NIXL_SUCCESS) peer.memory.add(type, std::move(memory));
  return status;
}

nixl_status_t Engine::load(const std::string& agent, const FrameEngine& given) {
  nixl_status_t status = NIXL_SUCCESS;
  bool added = false;
  std::shared_ptr<EnginePeer> known;
  {
    const std::lock_guard lock(mutex_);
    known = peer(agent);
    if (known == nullptr) {
      if (!given.addresses) return quiet_text(NIXL_ERR_NOT_FOUND, "its addresses are not loaded");
      status = call_engine("loadRemoteConnInfo",
                           [&] { return engine_->loadRemoteConnInfo(agent, given.conn_info); });
      if (status == NIXL_SUCCESS) {
        known = peers_[agent] = std::make_shared<EnginePeer>(*engine_, mutex_, given.conn_info);
        added = true;
      }
    } else if (given.addresses && known->conn_info != given.conn_info) {
      status = NIXL_ERR_NOT_ALLOWED;
    }
    for (size_t i = 0; i < given.memories.size() && status == NIXL_SUCCESS; ++i)
      status = load_one(agent, *known, given.memories[i]);
  }
  if (status == NIXL_SUCCESS) return status;
  if (added) forget(agent);
  return fail(status, "plugin '{}' did not take the metadata of agent '{}': {}", name_, agent,
              nixlEnumStrings::statusStr(status));
}

void Engine::forget(const std::string& agent) {
  std::shared_ptr<EnginePeer> known;  // its end locks again
  const std::lock_guard lock(mutex_);
  const auto found = peers_.find(agent);
  if (found == peers_.end()) return;
  known = std::move(found->second);
  peers_.erase(found);
  known->forgotten.store(true, std::memory_order_release);
  (void)call_engine("disconnect", [&] { return engine_->disconnect(agent); });
}

nixl_status_t Engine::connect(const std::string& agent) {
  const std::lock_guard lock(mutex_);
  if (!peers_.contains(agent) && !(local_ && agent == agent_)) return NIXL_ERR_NOT_FOUND;
  return call_engine("connect", [&] { return engine_->connect(agent); });
}

// ---- Notifications

nixl_status_t Engine::take_notifs(notif_list_t& notifs) const {
  const std::lock_guard lock(mutex_);
  return call_engine("getNotifs", [&] { return engine_->getNotifs(notifs); });
}

nixl_status_t Engine::notify(const std::string& agent, const std::string& text) const {
  const std::lock_guard lock(mutex_);
  return call_engine("genNotif", [&] { return engine_->genNotif(agent, text); });
}

}  // namespace towline::nixl
