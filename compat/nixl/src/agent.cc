// nixlAgent: creation and end, backends, memory.
#include <algorithm>
#include <charconv>
#include <stdexcept>

#include <file/file_utils.h>
#include "agent_data.h"
#include "explain.h"

using namespace towline::nixl;  // NOLINT: this file is that interface's other side

namespace {

std::string checked_name(const std::string& name) {
  if (name.empty() || name.size() > kMaxFrameName || name.find('\0') != std::string::npos) {
    throw std::invalid_argument(fmt::format("an agent's name has 1 to {} bytes without NUL, not {} bytes",
                                            kMaxFrameName, name.size()));
  }
  return name;
}

bool wants_telemetry(const Settings& settings, const nixlAgentConfig& config) {
  if (settings.telemetry == false && config.captureTelemetry) {
    log(LogLevel::kWarning,
        "NIXL_TELEMETRY_ENABLE turns off the telemetry that the agent's configuration asks for");
  }
  return settings.telemetry.value_or(config.captureTelemetry);
}

towline::Agent make_agent(const std::string& name, const nixlAgentConfig& config, const Settings& settings) {
  towline::AgentOptions options;
  // NIXL's transports and its listener accept connections from every network, so this agent does as well.
  if (config.useListenThread || !settings.has_listen)
    options.listen = fmt::format("*:{}", config.useListenThread ? config.listenPort : 0);
  options.backends = settings.backends;
  options.config = settings.towline;
  options.default_timeout = settings.timeout;
  try {
    return towline::Agent{name, options};
  } catch (const towline::Error& error) {
    throw std::runtime_error(fmt::format("agent '{}': {}", name, error.what()));
  }
}

// Applies the parameters that have a meaning here. Throws Error.
void apply_parameters(nixlBackendH& backend) {
  const auto given = [&](const char* key) -> std::string {
    const auto found = backend.parameters.find(key);
    return found == backend.parameters.end() ? std::string{} : found->second;
  };
  backend.forced = given("towline_transport");
  if (const std::string text = given("towline_timeout"); !text.empty()) {
    const auto timeout = parse_duration(text);
    if (!timeout) {
      throw towline::Error{towline::Status::kInvalidArgument,
                           "towline_timeout is '" + text + "', and should be a time such as 30s or 500ms"};
    }
    backend.timeout_ns = static_cast<uint64_t>(timeout->count());
  }
  // Those of UCX_MO, each with a worker of UCX: here it is an engine of the agent that has one.
  if (const std::string text = given("num_ucx_engines"); !text.empty()) {
    uint32_t engines = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), engines);
    if (error != std::errc{} || end != text.data() + text.size() || engines == 0)
      throw towline::Error{towline::Status::kInvalidArgument,
                           "num_ucx_engines is '" + text + "', and should be a number above 0"};
    backend.threads = std::min(engines, uint32_t{8});
  }
  if (const std::string text = given("towline_threads"); !text.empty() && text != kAutomatic) {
    if (text.size() != 1 || text[0] < '1' || text[0] > '8') {
      throw towline::Error{towline::Status::kInvalidArgument,
                           "towline_threads is '" + text + "', and should be 1 to 8, or auto"};
    }
    backend.threads = static_cast<uint32_t>(text[0] - '0');
  }
}

// Takes on the backend of Towline that `backend` asks for, if any. Throws Error.
void use_library(const nixlAgentData& data, nixlBackendH& backend) {
  const Library library =
      library_for(backend.type, backend.parameters, data.settings.real_ucx, data.settings.ucx_tls);
  if (library.name.empty()) return;
  try {
    data.agent->add_backend((library.name + library.settings).c_str());
  } catch (const towline::Error& error) {
    if (error.code() != towline::Status::kAlreadyExists) {
      if (library.required) throw;
      log(LogLevel::kWarning, fmt::format("engine_config is not used, nor UCX itself: {}", error.what()));
      return;
    }
  }
  backend.forced = library.name;
}

}  // namespace

// ---- Life

nixlAgentData::nixlAgentData(const std::string& agent_name, const nixlAgentConfig& agent_config)
    : name(checked_name(agent_name)),
      config(agent_config),
      settings(Settings::read()),
      timeout_ns(settings.timeout.count() > 0 ? static_cast<uint64_t>(settings.timeout.count())
                                              : kDefaultTimeoutNs),
      telemetry(wants_telemetry(settings, config)),
      events(telemetry ? std::make_unique<Telemetry>(name, settings.output) : nullptr),
      agent(make_agent(name, config, settings)) {}

nixlAgentData::~nixlAgentData() {
  // No background thread may use this object while the rest is destroyed.
  calls.stop();
  sent_metadata.stop();
  opened_directory.reset();
  // Ends all transfers and waits for their local fences. Everything freed after this only releases memory.
  agent.reset();
  while (nixlXferReqH* request = requests.take_first()) {
    if (request->engined != nullptr) {
      // The engine may still use a request that it does not give back.
      if (request->backend->engine->release(*request->engined) != NIXL_SUCCESS)
        (void)request->engined.release();
    } else {
      (void)towline_transfer_destroy(request->transfer, TOWLINE_FOREVER);
    }
    delete request;
  }
  while (nixlDlistH* list = lists.take_first()) delete list;
  own_views.clear();
  by_creation.clear();
  backends.clear();
  remotes.clear();
  memory.clear();
}

nixlAgent::nixlAgent(const std::string& name, const nixlAgentConfig& cfg)
    : data(std::make_unique<nixlAgentData>(name, cfg)) {}

nixlAgent::~nixlAgent() = default;

// ---- Backends

bool nixlAgentData::made(const nixlBackendH* backend) const noexcept {
  return std::ranges::find(by_creation, backend) != by_creation.end();
}

std::vector<nixlBackendH*> nixlAgentData::candidates(const nixl_opt_args_t* extra_params, nixl_mem_t type,
                                                     bool others, const char* call) const {
  const bool named = extra_params != nullptr && !extra_params->backends.empty();
  std::vector<nixlBackendH*> found;
  {
    std::lock_guard lock(backends_mutex);
    found = named ? extra_params->backends : by_creation;
    if (named) std::erase_if(found, [&](const nixlBackendH* backend) { return !made(backend); });
  }
  std::erase_if(found, [&](const nixlBackendH* backend) {
    // Programs may name an engine for memory that it did not announce: the engine then answers for itself.
    const bool serves = backend->serves(type) || (named && backend->engine != nullptr);
    return !serves || (others && !backend->reaches_others());
  });
  if (found.empty()) {
    fail(NIXL_ERR_NOT_FOUND, "{}: none of the backends {} serves {}{}", call,
         named ? "given" : "of agent '" + name + "'", nixlEnumStrings::memTypeStr(type),
         others ? " of other agents" : "");
  }
  return found;
}

nixlBackendH* nixlAgentData::backend_for(const nixl_opt_args_t* extra_params, nixl_mem_t local,
                                         nixl_mem_t remote, bool others) const noexcept {
  const bool named = extra_params != nullptr && !extra_params->backends.empty();
  if (nixlBackendH* first = first_transport.load(std::memory_order_acquire);
      others && !named && first != nullptr && first->serves(local) && first->serves(remote))
    return first;  // most calls use this one
  std::lock_guard lock(backends_mutex);
  for (nixlBackendH* backend : named ? extra_params->backends : by_creation) {
    if (!made(backend) || (others && !backend->reaches_others())) continue;
    if (backend->serves(local) && backend->serves(remote)) return backend;
  }
  return nullptr;
}

nixlBackendH* nixlAgentData::transport(const nixl_opt_args_t* extra_params, const char* call) const {
  if (extra_params == nullptr || extra_params->backends.empty()) {  // most calls: nothing is copied or locked
    if (nixlBackendH* first = first_transport.load(std::memory_order_acquire)) return first;
  }
  const std::vector<nixlBackendH*> found = candidates(extra_params, DRAM_SEG, true, call);
  return found.empty() ? nullptr : found.front();
}

std::vector<std::string> nixlAgentData::transport_names() const {
  std::lock_guard lock(backends_mutex);
  std::vector<std::string> names;
  for (const nixlBackendH* backend : by_creation) {
    if (backend->reaches_others()) names.emplace_back(backend->type.name);
  }
  return names;
}

nixl_mem_list_t nixlAgentData::memories_of(const BackendType& type) const {
  nixl_mem_list_t all = memories_of_info(agent->info());
  const bool files = std::ranges::find(all, FILE_SEG) != all.end();
  if (type.role == Role::kFiles && !files) return {};
  if (type.role == Role::kFiles) return all;  // GPU memory too, if this process uses it
  if (type.role == Role::kStore) return ObjectStore::memories(*find_store_type(type.name));
  if (type.role == Role::kAbsent || type.role == Role::kEngine) return {};
  std::erase_if(all, is_stored);
  return all;
}

nixl_status_t nixlAgent::getAvailPlugins(std::vector<nixl_backend_t>& plugins) {
  return guard("getAvailPlugins", [&] {
    plugins.clear();
    for (const BackendType* type : backend_types()) {
      if (!data->memories_of(*type).empty()) plugins.emplace_back(type->name);
    }
    for (const nixl_backend_t& name : nixlPluginManager::getInstance().getAvailBackendPluginNames()) {
      if (std::ranges::find(plugins, name) == plugins.end()) plugins.push_back(name);
    }
    return NIXL_SUCCESS;
  });
}

namespace {

// Null, with the last error set, for a type that is not available.
const BackendType* present_type(const nixlAgentData& data, const std::string& name, nixl_mem_list_t& memories,
                                const char* call) {
  const BackendType* found = find_backend_type(name);
  if (found == nullptr) {
    fail(NIXL_ERR_NOT_FOUND, "{}: there is no backend '{}'", call, name);
    return nullptr;
  }
  memories = data.memories_of(*found);
  if (!memories.empty()) return found;
  if (found->role == Role::kAbsent) {
    const std::string where = nixlPluginManager::getInstance().where_looked(name);
    fail(NIXL_ERR_NOT_FOUND, "{}: backend '{}' is NIXL's own plugin, and {}. The plugin needs {}", call, name,
         where, found->what);
  } else {
    const std::string why = found->role == Role::kStore ? ObjectStore::why_not(*find_store_type(name)) : "";
    fail(NIXL_ERR_NOT_FOUND, "{}: backend '{}' is not here: {}{}{}", call, name, found->what,
         why.empty() ? "" : ": ", why);
  }
  return nullptr;
}

}  // namespace

nixl_status_t nixlAgent::getPluginParams(const nixl_backend_t& type, nixl_mem_list_t& mems,
                                         nixl_b_params_t& params) const {
  static constexpr const char* kCall = "getPluginParams";
  return guard(kCall, [&] {
    nixl_mem_list_t memories;
    if (data->is_plugin(type)) {
      const auto plugin = nixlPluginManager::getInstance().loadBackendPlugin(type);
      if (plugin == nullptr) return fail(NIXL_ERR_NOT_FOUND, "{}: {}", kCall, last_error());
      mems = plugin->getBackendMems();
      params = plugin->getBackendOptions();
      return NIXL_SUCCESS;
    }
    const BackendType* found = present_type(*data, type, memories, kCall);
    if (found == nullptr) return NIXL_ERR_NOT_FOUND;
    mems = memories;
    params = backend_parameters(*found);
    return NIXL_SUCCESS;
  });
}

nixl_status_t nixlAgent::getBackendParams(const nixlBackendH* backend, nixl_mem_list_t& mems,
                                          nixl_b_params_t& params) const {
  {
    std::lock_guard lock(data->backends_mutex);
    if (!data->made(backend))
      return fail(NIXL_ERR_INVALID_PARAM, "getBackendParams: this is no backend of agent '{}'", data->name);
  }
  mems = backend->memories;
  params = backend->parameters;
  return NIXL_SUCCESS;
}

nixl_status_t nixlAgent::createBackend(const nixl_backend_t& type, const nixl_b_params_t& params,
                                       nixlBackendH*& backend) {
  static constexpr const char* kCall = "createBackend";
  return guard(kCall, [&] {
    if (data->is_plugin(type)) return data->create_engine(type, params, backend, kCall);
    nixl_mem_list_t memories;
    const BackendType* found = present_type(*data, type, memories, kCall);
    if (found == nullptr) return NIXL_ERR_NOT_FOUND;
    nixl_b_params_t all = params;
    all.merge(backend_parameters(*found));
    auto made = std::make_unique<nixlBackendH>(*found, std::move(all), std::move(memories));
    apply_parameters(*made);
    if (found->role == Role::kTransport) use_library(*data, *made);
    if (found->role == Role::kStore) {
      const uint64_t timeout_ns = made->timeout_ns != 0 ? made->timeout_ns : data->timeout_ns;
      made->objects = std::make_unique<ObjectStore>(*find_store_type(found->name), data->name,
                                                    made->parameters, timeout_ns);
    }
    return data->add_backend(std::move(made), backend, kCall);
  });
}

nixl_status_t nixlAgentData::add_backend(std::unique_ptr<nixlBackendH> made, nixlBackendH*& backend,
                                         const char* call) {
  const std::string type = made->type.name;
  std::lock_guard lock(backends_mutex);
  const auto [at, added] = backends.try_emplace(type, std::move(made));
  if (!added)
    return fail(NIXL_ERR_INVALID_PARAM, "{}: agent '{}' has a backend '{}' already", call, name, type);
  backend = at->second.get();
  by_creation.push_back(backend);
  if (backend->engine != nullptr) any_engine.store(true, std::memory_order_release);
  if (first_transport.load(std::memory_order_relaxed) == nullptr && backend->is_transport() &&
      backend->serves(DRAM_SEG) && !has_engines())
    first_transport.store(backend, std::memory_order_release);
  return NIXL_SUCCESS;
}

// ---- Memory

namespace {

// True for a store of such memory.
bool keeps(const nixlBackendH& backend, nixl_mem_t type) {
  return backend.objects != nullptr && backend.serves(type);
}

// True if the agent itself keeps such memory: all but what is stored where only stores are asked.
bool is_own(const std::vector<nixlBackendH*>& backends, nixl_mem_t type) {
  if (type == OBJ_SEG) return false;
  return !is_stored(type) || std::ranges::any_of(backends, [](const nixlBackendH* backend) {
    return backend->objects == nullptr;
  });
}

// Registers in Towline and its stores; nothing if they are none of the backends.
nixl_status_t register_own(nixlAgentData& data, const std::vector<nixlBackendH*>& backends,
                           const nixl_reg_dlist_t& descs) {
  // In NIXL every failure to register is a failure of the backend, whatever the reason.
  const auto to_backend_error = [](towline::Status status) {
    const nixl_status_t mapped = to_nixl(status);
    return mapped == NIXL_ERR_NOT_ALLOWED ? mapped : NIXL_ERR_BACKEND;
  };
  return guard("registerMem", to_backend_error, [&] {
    // Registers in the stores first: if that fails, peers have not seen anything yet.
    size_t done = 0;
    try {
      for (; done < backends.size(); ++done)
        if (keeps(*backends[done], descs.getType())) backends[done]->objects->add(descs);
      if (is_own(backends, descs.getType()))
        data.memory.add(*data.agent, descs, {data.settings.share, data.timeout_ns});
    } catch (...) {
      while (done-- > 0)
        if (keeps(*backends[done], descs.getType())) (void)backends[done]->objects->remove(descs);
      throw;
    }
    return NIXL_SUCCESS;
  });
}

nixl_status_t deregister_own(nixlAgentData& data, const std::vector<nixlBackendH*>& backends,
                             const nixl_reg_dlist_t& descs) {
  return guard("deregisterMem", [&] {
    nixl_status_t status = NIXL_SUCCESS;
    const bool own = is_own(backends, descs.getType());
    if (own) status = data.memory.remove(descs, {data.settings.share, data.timeout_ns});
    for (const nixlBackendH* backend : backends) {
      if (!keeps(*backend, descs.getType())) continue;
      const nixl_status_t here = backend->objects->remove(descs);
      // The store does not know memory that was registered before it was made.
      if (status == NIXL_SUCCESS && (!own || here != NIXL_ERR_NOT_FOUND)) status = here;
    }
    return status;
  });
}

uint64_t bytes_of(const nixl_reg_dlist_t& descs) {
  uint64_t bytes = 0;
  for (const nixlBlobDesc& desc : descs) bytes += desc.len;
  return bytes;
}

// Takes the plugins' engines out of `backends`.
std::vector<Engine*> take_engines(std::vector<nixlBackendH*>& backends) {
  std::vector<Engine*> engines;
  std::erase_if(backends, [&](const nixlBackendH* backend) {
    if (backend->engine == nullptr) return false;
    engines.push_back(backend->engine.get());
    return true;
  });
  return engines;
}

}  // namespace

nixl_status_t nixlAgent::registerMem(const nixl_reg_dlist_t& descs, const nixl_opt_args_t* extra_params) {
  static constexpr const char* kCall = "registerMem";
  auto backends = data->candidates(extra_params, descs.getType(), false, kCall);
  if (backends.empty()) return NIXL_ERR_NOT_FOUND;
  const std::vector<Engine*> engines = take_engines(backends);
  // One backend that takes the memory is enough, as in NIXL.
  bool taken = false;
  nixl_status_t failure = NIXL_SUCCESS;
  for (Engine* engine : engines) {
    const nixl_status_t status = guard(kCall, [&] { return engine->add(descs); });
    if (status == NIXL_SUCCESS) taken = true;
    if (status != NIXL_SUCCESS) failure = fail(NIXL_ERR_BACKEND, "{}: {}", kCall, std::string{last_error()});
  }
  if (!backends.empty()) {
    const nixl_status_t status = register_own(*data, backends, descs);
    if (status == NIXL_SUCCESS) taken = true;
    if (status != NIXL_SUCCESS) failure = status;
  }
  if (taken && data->events != nullptr) data->events->registered(bytes_of(descs));
  return taken ? NIXL_SUCCESS : failure;
}

nixl_status_t nixlAgent::deregisterMem(const nixl_reg_dlist_t& descs, const nixl_opt_args_t* extra_params) {
  static constexpr const char* kCall = "deregisterMem";
  auto backends = data->candidates(extra_params, descs.getType(), false, kCall);
  if (backends.empty()) return NIXL_ERR_NOT_FOUND;
  const std::vector<Engine*> engines = take_engines(backends);
  // Backends that do not have the memory do not matter if another has it.
  bool found = false;
  nixl_status_t failure = NIXL_SUCCESS;
  const auto note = [&](nixl_status_t status) {
    if (status == NIXL_SUCCESS) found = true;
    if (status != NIXL_SUCCESS && status != NIXL_ERR_NOT_FOUND) failure = status;
  };
  for (Engine* engine : engines) note(guard(kCall, [&] { return engine->remove(descs); }));
  if (!backends.empty()) note(deregister_own(*data, backends, descs));
  if (failure != NIXL_SUCCESS) return failure;
  if (found && data->events != nullptr) data->events->deregistered(bytes_of(descs));
  return found ? NIXL_SUCCESS : fail(NIXL_ERR_NOT_FOUND, "{}: {}", kCall, std::string{last_error()});
}

nixl_status_t nixlAgent::queryMem(const nixl_reg_dlist_t& descs, std::vector<nixl_query_resp_t>& resp,
                                  const nixl_opt_args_t* extra_params) const {
  if (extra_params == nullptr || extra_params->backends.size() != 1)
    return fail(NIXL_ERR_INVALID_PARAM, "queryMem: needs exactly one backend");
  {
    std::lock_guard lock(data->backends_mutex);
    if (!data->made(extra_params->backends[0]))
      return fail(NIXL_ERR_INVALID_PARAM, "queryMem: this is no backend of agent '{}'", data->name);
  }
  if (const Engine* engine = extra_params->backends[0]->engine.get()) return engine->query(descs, resp);
  const ObjectStore* const objects = extra_params->backends[0]->objects.get();
  if (objects != nullptr && descs.getType() == OBJ_SEG) {
    return guard("queryMem", [&] {
      resp.clear();
      for (const nixlBlobDesc& desc : descs) resp.push_back(objects->query(desc));
      return NIXL_SUCCESS;
    });
  }
  if (descs.getType() != FILE_SEG) {
    return fail(NIXL_ERR_NOT_SUPPORTED, "queryMem: only files and objects can be asked about, not {}",
                nixlEnumStrings::memTypeStr(descs.getType()));
  }
  return guard("queryMem", [&] {
    resp.clear();
    for (const nixlBlobDesc& desc : descs) resp.push_back(::nixl::queryFileInfo(desc.metaInfo));
    return NIXL_SUCCESS;
  });
}
