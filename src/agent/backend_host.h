// The backends of one agent: found, loaded, opened, asked, closed. Built-in ones come from the explicit table
// in builtin_backends.cc, others from the shared libraries that the configuration's `plugins` names.
//
// A backend's life: discovered -> loaded -> usable -> open -> closed. A failure at any step keeps the name,
// the step and the reason for `towline info` and for the errors of transfers that could have used it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/dynamic_library.h"
#include "towline/plugin/connection_id.h"
#include "towline/plugin/info.h"
#include "towline/plugin/reach.h"
#include "towline/plugin/settle.h"
#include "towline/plugin/storage_list.h"
#include "towline/plugin/stream.h"
#include "towline/plugin/v1.h"

namespace towline {

class Agent;

struct Backend {
  enum class Step { kDiscovered, kLoaded, kUsable, kOpen, kClosed };

  Agent* agent = nullptr;
  std::string name;
  std::string file;  // of the plugin; empty: built in
  std::atomic<Step> step = Step::kDiscovered;
  std::string reason;  // why it was not opened
  const towline_plugin_v1_t* plugin = nullptr;
  const towline_memory_table_v1* memory = nullptr;
  const towline_connection_table_v1* connection = nullptr;
  const towline_data_table_v1* data = nullptr;
  const towline_storage_table_v1* storage = nullptr;              // null: it has none
  const towline_storage_list_table_v1* storage_list = nullptr;    // the same
  const towline_stream_table_v1* stream = nullptr;                // the same
  const towline_reach_table_v1* reach = nullptr;                  // the same
  const towline_settle_table_v1* settle = nullptr;                // the same
  const towline_connection_id_table_v1* connection_id = nullptr;  // the same
  const towline_info_table_v1* info = nullptr;                    // the same
  towline_host_v1_t host = {};
  towline_backend* handle = nullptr;
  uint32_t index = 0;  // in BackendHost::backends()

  // Closing it takes every worker's lock: who holds one, and finds it open, may call it.
  [[nodiscard]] bool open() const noexcept { return step.load(std::memory_order_acquire) == Step::kOpen; }
  [[nodiscard]] std::string why_not_open() const {
    return step.load(std::memory_order_acquire) == Step::kClosed ? "closed" : reason;
  }
  [[nodiscard]] bool has_trait(uint32_t trait) const noexcept { return (plugin->traits & trait) != 0; }
  // No peer moves bytes of ours over it but by frames that this side checks.
  [[nodiscard]] bool checks_every_access() const noexcept {
    return has_trait(TOWLINE_TRAIT_OWNER_CHECKED) && !has_trait(TOWLINE_TRAIT_ONE_SIDED);
  }
};

const char* step_name(Backend::Step step) noexcept;

// What the last refused call of this thread gave as its reason through host->fail; cleared by taking it.
std::string take_failure_text();
void set_failure_text(std::string text);

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

  [[nodiscard]] const std::vector<std::unique_ptr<Backend>>& backends() const noexcept { return backends_; }
  [[nodiscard]] Backend* find(std::string_view name) const noexcept;
  [[nodiscard]] std::string names() const;  // "memory, shm, tcp"
  // Of those that were not opened, by choice or by failure: their settings are known to nobody.
  [[nodiscard]] std::vector<std::string> names_not_open() const;

 private:
  // Files, and names of plugins that are looked for where load_plugin() does.
  void discover(const std::vector<std::string>& plugins);
  void load(Backend& backend, const towline_plugin_v1_t* plugin) noexcept;
  void open_all(const std::string& faults, const towline_host_v1_t& services);
  void open(Backend& backend);

  Agent& agent_;
  std::vector<DynamicLibrary> libraries_;
  std::vector<std::unique_ptr<Backend>> backends_;
  std::vector<std::string> not_wanted_;
};

}  // namespace towline
