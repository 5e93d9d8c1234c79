// A plugin of NIXL's interface, as a file, and the engine that it makes.
//
// The plugin is another vendor's C++: its functions may throw, return what the interface does not have, and are called
// from one thread at a time. Its library stays in the process for good.
#pragma once

#include <backend/backend_plugin.h>

#include <memory>
#include <mutex>
#include <string>

namespace towline::nixl_files {

// Runs `work`, which calls the plugin. What it throws, and a status that NIXL does not have, is NIXL_ERR_BACKEND.
template <class Work>
nixl_status_t ask(Work work) noexcept {
  try {
    const nixl_status_t status = work();
    return status <= NIXL_IN_PROG && status >= NIXL_ERR_NO_TELEMETRY ? status : NIXL_ERR_BACKEND;
  } catch (...) {
    return NIXL_ERR_BACKEND;
  }
}

// An engine that moves files to and from host memory within its agent.
class Engine {
 public:
  // Throws plugin::Failure naming the file and the step that failed: loading, version, making the engine, starting it.
  // `parameters`: "key=value,key=value".
  Engine(const std::string& file, const std::string& parameters);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

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
  void make(const std::string& file);
  void start(const std::string& file);

  std::mutex mutex_;
  nixl_b_params_t parameters_;
  nixlBackendPlugin* plugin_ = nullptr;
  nixlBackendEngine* engine_ = nullptr;
  bool abandoned_ = false;  // under the lock
};

}  // namespace towline::nixl_files
