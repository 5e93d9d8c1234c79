// A plugin of NIXL's interface, as a file, and the engine that it makes: for the backends that move bytes by one.
//
// The plugin is another vendor's C++: its functions may throw, return what the interface does not have, and are called
// from one thread at a time. Its library stays in the process for good.
#pragma once

#include <backend/backend_plugin.h>

#include <memory>
#include <mutex>
#include <string>

#include "towline/plugin/backend.hpp"
#include "towline/status.h"

namespace towline::nixl_plugins {

// Runs `work`, which calls the plugin. An exception, or a status that NIXL does not have, becomes NIXL_ERR_BACKEND.
template <class Work>
nixl_status_t ask(Work work) noexcept {
  try {
    const nixl_status_t status = work();
    return status <= NIXL_IN_PROG && status >= NIXL_ERR_NO_TELEMETRY ? status : NIXL_ERR_BACKEND;
  } catch (...) {
    return NIXL_ERR_BACKEND;
  }
}

// The plugin's file as the setting <backend>.library says: a path, or the name of a plugin in the folder nixl.plugin_dir.
// Throws plugin::Failure that names the settings. `example` is the path of a plugin of this backend's sort.
std::string find_plugin(const plugin::Host& host, const std::string& backend, const char* example);

struct EngineOptions {
  std::string backend;             // Towline's, whose settings are meant in texts: "nixl"
  std::string file;                // of the plugin
  std::string parameters;          // "key=value,key=value"
  std::string agent;               // the engine's name for itself
  uint64_t progress_pause_us = 0;  // of its progress thread
};

class Engine {
 public:
  // Throws plugin::Failure naming the file and the step that failed: loading, version, making the engine.
  explicit Engine(const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // The engine's answers when it was made.
  [[nodiscard]] const std::string& type() const noexcept { return type_; }
  [[nodiscard]] bool remote() const noexcept { return remote_; }
  [[nodiscard]] bool local() const noexcept { return local_; }
  [[nodiscard]] bool serves(nixl_mem_t kind) const noexcept;
  // Throws plugin::Failure that names the plugin's file and the setting.
  [[noreturn]] void refuse(Status status, const std::string& why) const;

  // The engine, with the lock under which it is called.
  class Locked {
   public:
    explicit Locked(Engine& of) : lock_(of.mutex_), engine_(of.engine_) {}
    nixlBackendEngine* operator->() const noexcept { return engine_; }

   private:
    const std::lock_guard<std::mutex> lock_;
    nixlBackendEngine* const engine_;
  };
  [[nodiscard]] Locked lock() { return Locked(*this); }
  // A request that the engine did not end is still its own: what the request was made from, and the engine, then stay for
  // the life of the process. Under the lock.
  void abandon(std::shared_ptr<void> request);
  [[nodiscard]] bool abandoned() const noexcept { return abandoned_; }

 private:
  void make(const EngineOptions& options);
  void ask_what_it_serves();

  std::mutex mutex_;
  const std::string file_;
  const std::string backend_;
  nixl_b_params_t parameters_;
  nixlBackendPlugin* plugin_ = nullptr;
  nixlBackendEngine* engine_ = nullptr;
  std::string type_;
  bool remote_ = false;
  bool local_ = false;
  nixl_mem_list_t kinds_;
  bool abandoned_ = false;  // under the lock
};

}  // namespace towline::nixl_plugins
