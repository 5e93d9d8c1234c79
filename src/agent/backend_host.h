// The backends of one agent: found, loaded, opened, asked, closed. Built-in ones come from the explicit table
// in builtin_backends.cc, others from the shared libraries that the configuration's `plugins` names.
//
// A backend's life: discovered -> loaded -> usable -> open -> closed. A failure at any step keeps the name,
// the step and the reason for `towline info` and for the errors of transfers that could have used it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/prices.h"
#include "base/os/dynamic_library.h"
#include "metadata/blob/blob.h"
#include "towline/plugin/landing.h"
#include "towline/plugin/v1.h"

namespace towline {

class Agent;
class BackendHost;

struct Backend {
  enum class Step { kDiscovered, kLoaded, kUsable, kOpen, kClosed };

  Agent* agent = nullptr;
  const BackendHost* all =
      nullptr;  // that it is one of; known to services while it opens, which the agent's are not
  std::string name;
  std::string file;  // of the plugin; empty: built in
  std::atomic<Step> step = Step::kDiscovered;
  std::string reason;                            // why it was not opened
  const towline_plugin_v1_t* offered = nullptr;  // as its library has it; null: none that can be taken
  // As this library knows them: what an older plugin lacks is null. In `taken`.
  const towline_plugin_v1_t* plugin = nullptr;
  const towline_memory_table_v1* memory = nullptr;
  const towline_connection_table_v1* connection = nullptr;
  const towline_data_table_v1* data = nullptr;
  const towline_storage_table_v1* storage = nullptr;  // null: it has none
  const towline_landing_table_v1* landing = nullptr;  // the same
  std::vector<towline_move_v1> moves;
  Prices* prices = nullptr;   // set once it is prepared to be opened
  uint32_t kinds = 0;         // of memory that it moves, on either side: a bit each
  uint32_t remote_kinds = 0;  // likewise, that peers reach by it
  uint32_t farthest = 0;      // TOWLINE_WHERE_*, of any move
  bool added = false;         // by add_backend(): the application has named it
  towline_host_v1_t host = {};
  towline_backend* handle = nullptr;
  uint32_t index = 0;  // its number for good, below kMaxBackends: not its place in the order
  struct Taken {
    towline_plugin_v1_t plugin;
    towline_memory_table_v1 memory;
    towline_connection_table_v1 connection;
    towline_data_table_v1 data;
    towline_storage_table_v1 storage;
    towline_landing_table_v1 landing;
  } taken = {};

  // Closing it takes every worker's lock: a thread that holds one, and finds it open, may call it.
  [[nodiscard]] bool open() const noexcept { return step.load(std::memory_order_acquire) == Step::kOpen; }
  [[nodiscard]] std::string why_not_open() const {
    return step.load(std::memory_order_acquire) == Step::kClosed ? "closed" : reason;
  }
  [[nodiscard]] bool has_trait(uint32_t trait) const noexcept { return (plugin->traits & trait) != 0; }
  // Does it move these kinds, a bit each, against those at a peer, at most this far away?
  [[nodiscard]] bool moves_all(uint32_t op, uint32_t local, uint32_t remote, uint32_t where) const noexcept;
  // No peer moves bytes of ours over it but by frames that this side checks.
  [[nodiscard]] bool checks_every_access() const noexcept {
    return has_trait(TOWLINE_TRAIT_OWNER_CHECKED) && !has_trait(TOWLINE_TRAIT_ONE_SIDED);
  }
};

const char* step_name(Backend::Step step) noexcept;

// The reason that the last refused call of this thread passed to host->fail; cleared by taking it.
std::string take_failure_text();
void set_failure_text(std::string_view text) noexcept;

inline constexpr uint32_t kMaxBackends = metadata::kMaxBackends;

class BackendHost {
 public:
  // Finds and opens what the agent's configuration allows, cheapest first. `wanted`: names in order of
  // preference, empty for all. Throws Error when a wanted name is unknown, and when a backend refuses a setting
  // (kInvalidArgument from its open), which names the setting's source. Fills host services with
  // `services` (context is set per backend).
  BackendHost(Agent& agent, const std::vector<std::string>& wanted,
              const std::vector<std::string>& plugin_files, const std::string& faults,
              const towline_host_v1_t& services);
  BackendHost(const BackendHost&) = delete;
  BackendHost& operator=(const BackendHost&) = delete;
  ~BackendHost();

  // Every connection, import and registration is gone. Under every worker's lock.
  void close() noexcept;

  // In the order in which the router tries them. Any thread; what it gives stays as it is.
  [[nodiscard]] const std::vector<Backend*>& backends() const noexcept {
    return *order_.load(std::memory_order_acquire);
  }
  // That order is the declared costs', not one that the application gave.
  [[nodiscard]] bool in_order_of_cost() const noexcept { return in_order_of_cost_; }
  // ---- one more backend for an agent that lives: the agent calls these in turn, one thread at a time
  // Those that the plugin offers, loaded and found usable. Throws Error.
  std::vector<Backend*> load_more(const std::string& plugin, const std::string& faults,
                                  const towline_host_v1_t& services);
  void open_loaded(Backend& backend) noexcept;    // under every worker's lock
  void check_open(const Backend& backend) const;  // throws Error with the reason
  void put_in_order(Backend& backend, bool by_cost);

  // The number that a backend of this name has, or will have if one comes: what peers' metadata says of it is
  // kept by that. None: no room for names of backends that this agent does not have. Any thread.
  [[nodiscard]] std::optional<uint32_t> number_of(const std::string& name);
  // Above every number that a backend has.
  [[nodiscard]] uint32_t most_numbers() const noexcept { return static_cast<uint32_t>(backends_.size()); }

  [[nodiscard]] Backend* find(std::string_view name) const noexcept;
  [[nodiscard]] std::string names() const;  // "memory, shm, tcp"
  // Throws Error(kNoRoute): this agent has no backend of that name, and how it gets one.
  [[noreturn]] void fail_lacks(std::string_view name) const;
  // Backends that were not opened, by choice or by failure: their settings are unknown.
  [[nodiscard]] std::vector<std::string> names_not_open() const;
  // Those that the settings do not name, and that are used by name alone or are not among the named.
  [[nodiscard]] const std::vector<std::string>& not_wanted() const noexcept { return not_wanted_; }

 private:
  // Files, and names of plugins that are looked for where load_plugin() does.
  using Backends = std::vector<std::unique_ptr<Backend>>;
  [[nodiscard]] Backends discover(const std::vector<std::string>& wanted,
                                  const std::vector<std::string>& plugins);
  // Those that one file offers; none whose name is taken already, by one of `known` or an open one of this agent.
  void discover_in(const std::string& file, Backends& known);
  void load(Backend& backend, const towline_plugin_v1_t* plugin) noexcept;
  void take(Backend& backend, const towline_plugin_v1_t& plugin);
  void prepare(Backend& backend, const std::string& faults, const towline_host_v1_t& services);
  void open(Backend& backend);
  bool check_usable(Backend& backend);   // false: its reason says why not
  bool check_secured(Backend& backend);  // the same
  void set_order(std::vector<Backend*> order);

  Agent& agent_;
  std::vector<DynamicLibrary> libraries_;
  Backends backends_;  // by index; null where only a name is known
  Backends replaced_;  // never opened: a thread may be reading an order with them
  std::mutex names_mutex_;
  std::vector<std::string> names_;  // by index, as many as backends_ or more
  std::vector<std::unique_ptr<const std::vector<Backend*>>>
      orders_;  // old ones too: a thread may be reading one
  std::atomic<const std::vector<Backend*>*> order_{nullptr};
  std::vector<std::string> not_wanted_;
  bool in_order_of_cost_ = true;
};

}  // namespace towline
