#include "agent/backend_host.h"

#include <algorithm>
#include <utility>

#include "agent/agent.h"
#include "agent/builtin_backends.h"
#include "agent/plugin_finder.h"
#include "base/error.h"
#include "base/log.h"
#include "base/per_thread.h"
#include "base/plugin_table.h"

namespace towline {

namespace {

thread_local constinit ThreadText failure_text;

const towline_plugin_v1_t* wrapped(const Config& config, const towline_plugin_v1_t* plugin,
                                   const std::string& faults) {
  try {
    return wrap_with_faults(plugin, faults);
  } catch (const Error& error) {
    fail(error.code(), "{}: faults = \"{}\": {}", config.source("faults"), faults, error.message());
  }
}

uint32_t cost_of(const Backend& backend) noexcept {
  return backend.plugin != nullptr ? backend.plugin->cost : UINT32_MAX;
}

constexpr const char* kNoReason = "the backend gave no reason";
constexpr size_t kMaxMoves = 256;       // more than kinds and distances could need
constexpr size_t kMaxMoveBytes = 4096;  // of one move of a later release

std::vector<towline_move_v1> take_moves(const towline_plugin_v1_t& plugin) {
  std::vector<towline_move_v1> moves;
  if (plugin.move_count > kMaxMoves)
    fail(Status::kUnsupported, "{} has {} as move_count; a backend has at most {} moves", plugin.name,
         plugin.move_count, kMaxMoves);
  if (plugin.move_count != 0 && plugin.moves == nullptr)
    fail(Status::kUnsupported, "{} has {} as move_count, and moves is null", plugin.name, plugin.move_count);
  const auto* at = reinterpret_cast<const char*>(plugin.moves);
  for (size_t i = 0; i < plugin.move_count; ++i) {
    const auto* const move = reinterpret_cast<const towline_move_v1*>(at);
    const std::string what = fmt::format("move {} of {}", i, plugin.name);
    moves.push_back(take_table(move, TOWLINE_MOVE_V1_MINIMUM, what));
    const size_t bytes = move->struct_size;
    if (bytes > kMaxMoveBytes || bytes % alignof(towline_move_v1) != 0)
      fail(Status::kUnsupported, "the struct_size of {} is {}: not the size of a move of any release", what,
           bytes);
    at += bytes;
  }
  return moves;
}

// The five slots of streams come together, as do the two of views.
void check_groups(const towline_data_table_v1& data, const std::string& name) {
  const bool streams[] = {data.stream_capture != nullptr, data.stream_submit != nullptr,
                          data.stream_wait != nullptr, data.capture_runs != nullptr,
                          data.capture_forget != nullptr};
  const bool views[] = {data.view != nullptr, data.view_forget != nullptr};
  const auto all_or_none = [&](const auto& slots, const char* what) {
    const auto filled = std::count(std::begin(slots), std::end(slots), true);
    if (filled != 0 && filled != std::ssize(slots))
      fail(Status::kUnsupported, "table 'data' of {} has {} of the {} {}; it needs all of them or none", name,
           filled, std::ssize(slots), what);
  };
  all_or_none(streams, "slots stream_capture, stream_submit, stream_wait, capture_runs and capture_forget");
  all_or_none(views, "slots view and view_forget");
}

// `text` comes from a backend and begins with the key of the setting.
[[noreturn]] void fail_setting(const Config& config, const std::string& backend, const std::string& text) {
  const std::string key = text.substr(0, text.find_first_of(" :="));
  fail(Status::kInvalidArgument, "{}: {}",
       config.find(key) ? config.source(key) : fmt::format("backend {}", backend), text);
}

}  // namespace

const char* step_name(Backend::Step step) noexcept {
  switch (step) {
    case Backend::Step::kDiscovered:
      return "discovered";
    case Backend::Step::kLoaded:
      return "loaded";
    case Backend::Step::kUsable:
      return "usable";
    case Backend::Step::kOpen:
      return "open";
    case Backend::Step::kClosed:
      return "closed";
  }
  return "unknown";
}

std::string take_failure_text() { return failure_text.take(); }
void set_failure_text(std::string_view text) noexcept { failure_text.set(text); }

bool Backend::moves_all(uint32_t op, uint32_t local, uint32_t remote, uint32_t where) const noexcept {
  for (uint32_t here = local; here != 0; here &= here - 1) {
    uint32_t uncovered = remote;
    for (const towline_move_v1& move : moves) {
      const bool fits =
          (move.ops & (1u << op)) != 0 && (move.local & here & -here) != 0 && where <= move.where;
      if (fits) uncovered &= ~move.remote;
    }
    if (uncovered != 0) return false;
  }
  return true;
}

namespace {

// It copies GPU memory by another backend's landing, which has to be there first and go last.
bool lands_on_another(const Backend& backend) noexcept {
  return backend.plugin != nullptr && backend.has_trait(TOWLINE_TRAIT_LANDS);
}

}  // namespace

BackendHost::BackendHost(Agent& agent, const std::vector<std::string>& wanted,
                         const std::vector<std::string>& plugin_files, const std::string& faults,
                         const towline_host_v1_t& services)
    : agent_(agent) {
  set_order({});
  Backends found = discover(wanted, plugin_files);
  const auto place = [&](const auto& backend) {
    return std::find(wanted.begin(), wanted.end(), backend->name);
  };
  for (const std::string& name : wanted) {
    const auto has_name = [&](const auto& backend) { return backend->name == name; };
    if (std::any_of(found.begin(), found.end(), has_name)) continue;
    const auto bundled = bundled_backends();
    if (std::any_of(bundled.begin(), bundled.end(), [&](const auto& one) { return one.name == name; })) {
      auto missing = std::make_unique<Backend>();
      missing->name = name;
      missing->reason = "its plugin is not installed beside the library";
      TOWLINE_LOG(kWarning, "backend {}: {}", name, missing->reason);
      found.push_back(std::move(missing));
      continue;
    }
    std::string known;
    for (const auto& backend : found) known += (known.empty() ? "" : ", ") + backend->name;
    for (const BuiltinBackend& builtin : builtin_backends())
      if (!builtin.automatic) known += std::string(", ") + builtin.name;
    fail(Status::kNotFound, "there is no backend '{}'; known here: {}", name, known);
  }
  in_order_of_cost_ = wanted.empty();
  if (!wanted.empty()) {
    std::erase_if(found, [&](const auto& backend) {
      if (place(backend) != wanted.end()) return false;
      not_wanted_.push_back(backend->name);
      return true;
    });
    std::stable_sort(found.begin(), found.end(),
                     [&](const auto& a, const auto& b) { return place(a) < place(b); });
  } else {
    std::stable_sort(found.begin(), found.end(),
                     [](const auto& a, const auto& b) { return cost_of(*a) < cost_of(*b); });
  }
  if (found.size() > kMaxBackends)
    fail(Status::kLimitExceeded, "{} backends were found; an agent has at most {}", found.size(),
         kMaxBackends);
  backends_ = std::move(found);
  std::vector<Backend*> order;
  for (uint32_t i = 0; i < backends_.size(); ++i) {
    backends_[i]->index = i;
    names_.push_back(backends_[i]->name);
    order.push_back(backends_[i].get());
  }
  set_order(std::move(order));
  try {
    for (const auto& backend : backends_) prepare(*backend, faults, services);
    for (const bool lands : {false, true})
      for (const auto& backend : backends_)
        if (lands_on_another(*backend) == lands) open(*backend);
  } catch (...) {
    close();
    throw;
  }
}

BackendHost::~BackendHost() { close(); }

void BackendHost::set_order(std::vector<Backend*> order) {
  orders_.push_back(std::make_unique<const std::vector<Backend*>>(std::move(order)));
  order_.store(orders_.back().get(), std::memory_order_release);
}

void BackendHost::prepare(Backend& backend, const std::string& faults, const towline_host_v1_t& services) {
  backend.agent = &agent_;
  backend.all = this;
  backend.host = services;
  backend.host.context = &backend;
  backend.prices = &prices_of(backend.name, backend.plugin != nullptr ? backend.plugin->cost : 1);
  if (backend.plugin == nullptr || faults.empty() || backend.has_trait(TOWLINE_TRAIT_STORAGE)) return;
  take(backend, *wrapped(agent_.config(), backend.offered, faults));
}

BackendHost::Backends BackendHost::discover(const std::vector<std::string>& wanted,
                                            const std::vector<std::string>& plugins) {
  Backends found;
  for (const BuiltinBackend& builtin : builtin_backends()) {
    if (!builtin.automatic && std::find(wanted.begin(), wanted.end(), builtin.name) == wanted.end()) {
      not_wanted_.emplace_back(builtin.name);
      continue;
    }
    found.push_back(std::make_unique<Backend>());
    load(*found.back(), builtin.plugin());
  }
  for (const std::string& file : plugins) discover_in(file, found);
  // Named among the backends is enough for those that come with Towline. A plugin that was named serves first.
  for (const BundledBackend& bundled : bundled_backends()) {
    const auto has_name = [&](const auto& backend) { return backend->name == bundled.name; };
    if (bundled.automatic || std::find(wanted.begin(), wanted.end(), bundled.name) == wanted.end()) continue;
    if (std::any_of(found.begin(), found.end(), has_name)) continue;
    if (bundled_plugin(agent_.config(), bundled.plugin).empty()) continue;
    discover_in(bundled.plugin, found);
    if (std::none_of(found.begin(), found.end(), has_name)) found.back()->name = bundled.name;  // it failed
  }
  return found;
}

void BackendHost::discover_in(const std::string& file, Backends& known) {
  try {
    std::vector<const towline_plugin_v1_t*> offered;
    std::optional<DynamicLibrary> library;
    const auto builtins = builtin_backends();
    const auto builtin = std::find_if(builtins.begin(), builtins.end(),
                                      [&](const BuiltinBackend& one) { return one.name == file; });
    if (builtin != builtins.end()) {
      offered = {builtin->plugin()};
    } else if (file.find_first_of("/.") == std::string::npos) {
      offered = load_plugins(agent_.config(), file);
    } else {
      library.emplace(file);
      offered = offered_plugins(library->symbol<towline_plugin_v1_fn>(TOWLINE_PLUGIN_V1_SYMBOL));
    }
    bool in_use = false;
    for (const towline_plugin_v1_t* const plugin : offered) {
      auto backend = std::make_unique<Backend>();
      backend->name = backend->file = file;
      load(*backend, plugin);
      const auto same_name = [&](const auto& other) { return other->name == backend->name; };
      const auto first = std::find_if(known.begin(), known.end(), same_name);
      const Backend* const other = first != known.end() ? first->get() : find(backend->name);
      const bool free = other == nullptr || (first == known.end() && !other->open());
      if (!free) {  // the first one named is used
        if (other->offered != backend->offered)
          TOWLINE_LOG(kWarning,
                      "plugin {}: its backend '{}' is left out, since there is another of that name", file,
                      backend->name);
        continue;
      }
      in_use = in_use || backend->plugin != nullptr;
      known.push_back(std::move(backend));
    }
    if (in_use && library) libraries_.push_back(std::move(*library));
  } catch (const Error& error) {
    auto backend = std::make_unique<Backend>();
    backend->name = backend->file = file;
    backend->reason = fmt::format("loading the plugin {} failed: {}", file, error.what());
    TOWLINE_LOG(kWarning, "{}", backend->reason);
    known.push_back(std::move(backend));
  }
}

void BackendHost::load(Backend& backend, const towline_plugin_v1_t* plugin) noexcept {
  try {
    take(backend, *plugin);
    backend.offered = plugin;
    backend.step = Backend::Step::kLoaded;
  } catch (const std::exception& error) {
    backend.reason = fmt::format("loading {} failed: {}", backend.file.empty() ? backend.name : backend.file,
                                 error.what());
    backend.plugin = nullptr;
    TOWLINE_LOG(kWarning, "{}", backend.reason);
  }
}

void BackendHost::take(Backend& backend, const towline_plugin_v1_t& plugin) {
  Backend::Taken& taken = backend.taken;
  taken.plugin = take_plugin(&plugin, "the plugin");
  backend.name = taken.plugin.name;
  taken.memory = plugin_table<towline_memory_table_v1>(taken.plugin, "memory");
  taken.connection = plugin_table<towline_connection_table_v1>(taken.plugin, "connection");
  taken.data = plugin_table<towline_data_table_v1>(taken.plugin, "data");
  const bool stores = (taken.plugin.traits & TOWLINE_TRAIT_STORAGE) != 0;
  if (stores) taken.storage = plugin_table<towline_storage_table_v1>(taken.plugin, "storage");
  if (taken.plugin.open == nullptr || taken.plugin.close == nullptr)
    fail(Status::kUnsupported, "{} has no function '{}', and every backend needs one", backend.name,
         taken.plugin.open == nullptr ? "open" : "close");
  check_groups(taken.data, backend.name);
  backend.moves = take_moves(taken.plugin);
  backend.kinds = backend.remote_kinds = backend.farthest = 0;
  for (const towline_move_v1& move : backend.moves) {
    backend.kinds |= move.local | move.remote;
    backend.remote_kinds |= move.remote;
    backend.farthest = std::max(backend.farthest, move.where);
  }
  backend.plugin = &taken.plugin;
  backend.memory = &taken.memory;
  backend.connection = &taken.connection;
  backend.data = &taken.data;
  backend.storage = stores ? &taken.storage : nullptr;
  backend.landing = nullptr;
  if (taken.memory.landing == nullptr) return;
  taken.landing = take_slots(taken.memory.landing, fmt::format("the landing of {}", backend.name));
  backend.landing = &taken.landing;
}

// ---- one more

std::vector<Backend*> BackendHost::load_more(const std::string& plugin, const std::string& faults,
                                             const towline_host_v1_t& services) {
  Backends found;
  discover_in(plugin, found);
  if (found.empty())
    fail(Status::kAlreadyExists, "agent '{}' has a backend of each name that the plugin {} offers already",
         agent_.name(), plugin);
  for (const auto& backend : found)
    if (backend->plugin == nullptr) fail(Status::kUnsupported, "{}", backend->reason);
  std::vector<Backend*> added;
  for (auto& backend : found) {
    prepare(*backend, faults, services);
    backend->added = true;
    if (!check_usable(*backend)) fail(Status::kUnsupported, "backend {}: {}", backend->name, backend->reason);
    const std::lock_guard lock(names_mutex_);
    const auto known = std::find(names_.begin(), names_.end(), backend->name);
    backend->index = static_cast<uint32_t>(known - names_.begin());
    if (backend->index >= kMaxBackends)
      fail(Status::kLimitExceeded, "an agent has at most {} backends", kMaxBackends);
    if (known == names_.end()) names_.push_back(backend->name);
    if (backend->index < backends_.size() && backends_[backend->index] != nullptr &&
        backends_[backend->index]->open())
      fail(Status::kAlreadyExists, "backend {} is being added already", backend->name);
    if (backends_.size() <= backend->index) backends_.resize(backend->index + 1);
    added.push_back(backend.get());
    backends_[backend->index].swap(backend);
    if (backend != nullptr) replaced_.push_back(std::move(backend));
  }
  return added;
}

void BackendHost::open_loaded(Backend& backend) noexcept {
  try {
    open(backend);
  } catch (const std::exception& error) {  // a setting that it refuses
    backend.reason = error.what();
  }
}

void BackendHost::check_open(const Backend& backend) const {
  if (!backend.open()) fail(Status::kUnsupported, "backend {}: {}", backend.name, backend.reason);
}

void BackendHost::put_in_order(Backend& backend, bool by_cost) {
  std::vector<Backend*> order = backends();
  // One of its name that could not be used leaves its place to it.
  const auto before = std::find_if(order.begin(), order.end(),
                                   [&](const Backend* other) { return other->index == backend.index; });
  if (before != order.end()) {
    *before = &backend;
    if (!by_cost) return set_order(std::move(order));
    order.erase(before);
  }
  const auto costlier = [&](const Backend* other) { return by_cost && cost_of(*other) > cost_of(backend); };
  order.insert(std::find_if(order.begin(), order.end(), costlier), &backend);
  set_order(std::move(order));
}

std::optional<uint32_t> BackendHost::number_of(const std::string& name) {
  const std::lock_guard lock(names_mutex_);
  const auto known = std::find(names_.begin(), names_.end(), name);
  const auto number = static_cast<uint32_t>(known - names_.begin());
  if (known != names_.end()) return number;
  // Peers name what they like: half of the numbers are left to backends.
  if (number >= kMaxBackends / 2) return std::nullopt;
  names_.push_back(name);
  return number;
}

// Throws only for a setting that the backend refuses. Otherwise the agent would silently lack the backend.
void BackendHost::open(Backend& backend) {
  if (backend.step != Backend::Step::kLoaded && backend.step != Backend::Step::kUsable) return;
  int32_t status = TOWLINE_OK;
  std::string text;
  try {
    if (!check_usable(backend)) return;
    take_failure_text();
    status = backend.plugin->open(&backend.host, &backend.handle);
    if (status == TOWLINE_OK && backend.handle == nullptr) {
      status = TOWLINE_INTERNAL;
      set_failure_text("it answered OK, but gave no backend");
    }
    if (status == TOWLINE_OK) {
      backend.step = Backend::Step::kOpen;
      return;
    }
    text = take_failure_text();
    backend.reason = fmt::format("opening it failed: {} ({})", text.empty() ? kNoReason : text,
                                 status_name(static_cast<Status>(status)));
    // This machine lacks what it needs, and nobody has asked for it by name.
    if (status == TOWLINE_UNSUPPORTED && in_order_of_cost_) {
      backend.reason = fmt::format("not usable here: {}", text);
      TOWLINE_LOG(kDebug, "backend {}: {}", backend.name, backend.reason);
      return;
    }
  } catch (const std::exception& error) {
    backend.reason = error.what();
  }
  if (status == TOWLINE_INVALID_ARGUMENT) fail_setting(agent_.config(), backend.name, text);
  TOWLINE_LOG(kWarning, "backend {}: {}", backend.name, backend.reason);
}

bool BackendHost::check_usable(Backend& backend) {
  char reason[256] = "";
  if (backend.step == Backend::Step::kLoaded && !check_secured(backend)) return false;
  if (backend.step == Backend::Step::kLoaded &&
      backend.plugin->usable(reason, sizeof reason - 1) == TOWLINE_OK)
    backend.step = Backend::Step::kUsable;
  else if (backend.step == Backend::Step::kLoaded)
    backend.reason = fmt::format("not usable here: {}", *reason == '\0' ? kNoReason : reason);
  return backend.step == Backend::Step::kUsable;
}

// With keys, whether it keeps bytes secret between hosts, or was named although it does not.
bool BackendHost::check_secured(Backend& backend) {
  constexpr std::array kInTheClear = {"rdma", "ucx", "libfabric", "nixl_net", "tcpx"};
  if (agent_.keys() == nullptr || std::ranges::find(kInTheClear, backend.name) == kInTheClear.end())
    return true;
  if (backend.name == "tcpx") {  // both ends would take its sockets apart
    backend.reason = "not usable with secure.*: what it receives goes past TLS";
    return false;
  }
  if (in_order_of_cost_ && !backend.added) {
    backend.reason = fmt::format(
        "not used with secure.*: it moves data in the clear; backends = \"..., {}\" uses it nevertheless",
        backend.name);
    return false;
  }
  TOWLINE_LOG(kWarning, "backend {}: it was named, so data goes over it in the clear, though secure.* is set",
              backend.name);
  return true;
}

void BackendHost::close() noexcept {
  for (const bool lands : {true, false}) {
    for (const auto& backend : backends_) {
      if (backend == nullptr || !backend->open() || lands_on_another(*backend) != lands) continue;
      backend->plugin->close(backend->handle);
      backend->handle = nullptr;
      backend->step = Backend::Step::kClosed;
    }
  }
}

std::vector<std::string> BackendHost::names_not_open() const {
  std::vector<std::string> names = not_wanted_;
  for (const Backend* backend : backends())
    if (!backend->open()) names.push_back(backend->name);
  return names;
}

std::string BackendHost::names() const {
  std::string names;
  for (const Backend* backend : backends()) names += (names.empty() ? "" : ", ") + backend->name;
  return names;
}

void BackendHost::fail_lacks(std::string_view name) const {
  std::string advice;
  const auto advise = [&](std::string_view plugin) {
    advice = in_order_of_cost_
                 ? fmt::format("; the setting plugins = \"{0}\" (TOWLINE_PLUGINS={0}) adds it", plugin)
                 : "; the setting backends leaves it out";
  };
  for (const BuiltinBackend& one : builtin_backends())
    if (one.name == name) advise(name);
  for (const BundledBackend& one : bundled_backends()) {
    if (one.name != name) continue;
    advise(one.plugin);
    if (bundled_plugin(agent_.config(), one.plugin).empty())
      advice = fmt::format("; its plugin libtowline_{}.so is not installed beside the library", one.plugin);
  }
  fail(Status::kNoRoute, "agent '{}' has no backend '{}'{}. It has: {}", agent_.name(), name, advice,
       names());
}

Backend* BackendHost::find(std::string_view name) const noexcept {
  for (Backend* backend : backends()) {
    if (backend->name == name) return backend;
  }
  return nullptr;
}

}  // namespace towline
