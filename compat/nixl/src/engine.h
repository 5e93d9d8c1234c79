// An engine that a plugin of NIXL's interface made: its memory, its peers, its requests.
//
// An engine moves whole requests, tells the kinds of memory it serves once it is made, and has no fence: after
// a failed or released request only the plugin knows whether bytes still land. Its functions are called from
// one thread at a time, what they throw is caught, and a request ends by its deadline whether the engine says
// so or not.
#pragma once

#include <plugin_manager.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backends.h"
#include "frame.h"
#include "section.h"

namespace towline::nixl {

// An agent as an engine knows it. Its metadata is unloaded when the last list and request of it are gone.
class EnginePeer {
 public:
  EnginePeer(nixlBackendEngine& engine, std::mutex& mutex, std::string info)
      : engine_(engine), mutex_(mutex), conn_info(std::move(info)) {}
  ~EnginePeer();
  EnginePeer(const EnginePeer&) = delete;
  EnginePeer& operator=(const EnginePeer&) = delete;

 private:
  nixlBackendEngine& engine_;
  std::mutex& mutex_;

 public:
  const std::string conn_info;
  Section memory;
  std::atomic<bool> forgotten{false};
};

// One side of a request.
struct EngineList {
  explicit EngineList(nixl_mem_t type) : metas(type) {}

  nixl_meta_dlist_t metas;
  std::shared_ptr<EnginePeer> of;  // null: this agent's memory
  bool own = false;                // this agent's, as the other side
  uint64_t version = 0;            // of this agent's memory when it was made
};

struct EngineRequest {
  EngineRequest(nixl_xfer_op_t op, EngineList here, EngineList there, std::string agent)
      : operation(op), local(std::move(here)), remote(std::move(there)), remote_agent(std::move(agent)) {}

  const nixl_xfer_op_t operation;
  EngineList local;
  EngineList remote;
  const std::string remote_agent;
  nixl_opt_b_args_t args;
  nixlBackendReqH* handle = nullptr;
  // The answer to the application. NIXL_IN_PROG may have become a failure by the deadline while the engine is
  // still at it.
  std::atomic<nixl_status_t> status{NIXL_ERR_NOT_POSTED};
  bool running = false;  // the engine has it; under the engine's lock
  uint64_t timeout_ns = 0;
  uint64_t deadline_ns = 0;
  size_t bytes = 0;
};

class Engine {
 public:
  // Null, with the last error and `status`, if the plugin can't make one.
  static std::unique_ptr<Engine> make(std::shared_ptr<const nixlBackendPluginHandle> plugin,
                                      const nixlBackendInitParams& params, nixl_status_t& status);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  [[nodiscard]] const BackendType& type() const noexcept { return type_; }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] bool remote() const noexcept { return remote_; }
  [[nodiscard]] bool local() const noexcept { return local_; }
  [[nodiscard]] bool notifies() const noexcept { return notifies_; }
  [[nodiscard]] const nixl_mem_list_t& memories() const noexcept { return memories_; }
  [[nodiscard]] nixl_b_params_t parameters() const { return engine_->getCustomParams(); }

  // ---- Memory. All or nothing.
  nixl_status_t add(const nixl_reg_dlist_t& descs);
  // NIXL_ERR_NOT_FOUND, with nothing removed, if one of them is not registered.
  nixl_status_t remove(const nixl_reg_dlist_t& descs);
  nixl_status_t query(const nixl_reg_dlist_t& descs, std::vector<nixl_query_resp_t>& answers) const;

  // ---- Peers
  // The metadata that peers need: of all memory, or of these descriptors, as far as they are registered here.
  [[nodiscard]] FrameEngine describe_for_peers(const nixl_reg_dlist_t* descs, bool addresses) const;
  // NIXL_ERR_NOT_ALLOWED if the agent's addresses or memory differ from what is loaded.
  nixl_status_t load(const std::string& agent, const FrameEngine& given);
  void forget(const std::string& agent);
  [[nodiscard]] bool knows(const std::string& agent) const;
  nixl_status_t connect(const std::string& agent);

  // ---- Requests
  // `agent` is "" for the local side, the agent's own name for the other side within it.
  nixl_status_t make_list(const std::string& agent, nixl_mem_t type, const Rows& rows, EngineList& list,
                          const char* call) const;
  nixl_status_t prepare(EngineRequest& request, const char* call) const;
  nixl_status_t post(EngineRequest& request) const;
  nixl_status_t check(EngineRequest& request) const;
  // NIXL_ERR_REPOST_ACTIVE: the engine still has it. A request in progress gets a moment to end by itself.
  nixl_status_t release(EngineRequest& request) const;
  nixl_status_t estimate(const EngineRequest& request, std::chrono::microseconds& duration,
                         std::chrono::microseconds& margin, nixl_cost_t& method,
                         const nixl_opt_args_t* extra_params) const;

  // ---- Notifications
  nixl_status_t take_notifs(notif_list_t& notifs) const;
  nixl_status_t notify(const std::string& agent, const std::string& text) const;

  // ---- Views
  nixl_status_t view(const nixl_remote_dlist_t& descs, nixlMemViewH& view,
                     const nixl_opt_b_args_t& args) const;
  nixl_status_t view(const nixl_local_dlist_t& descs, nixlMemViewH& view,
                     const nixl_opt_b_args_t& args) const;
  void release_view(nixlMemViewH view) const;

 private:
  Engine(std::shared_ptr<const nixlBackendPluginHandle> plugin, nixlBackendEngine* engine, std::string agent,
         std::string name);
  nixl_status_t start();
  nixl_status_t add_one(const nixlBlobDesc& desc, nixl_mem_t type, Memory& memory);
  void remove_one(const Memory& memory);
  nixl_status_t load_one(const std::string& agent, EnginePeer& peer, const FrameMemory& given);
  nixl_status_t check_locked(EngineRequest& request) const;
  [[nodiscard]] bool current(const EngineList& list) const;
  [[nodiscard]] std::shared_ptr<EnginePeer> peer(const std::string& agent) const;

  const std::shared_ptr<const nixlBackendPluginHandle> plugin_;
  nixlBackendEngine* const engine_;
  const std::string agent_;
  const std::string name_;
  const BackendType type_;
  bool remote_ = false;
  bool local_ = false;
  bool notifies_ = false;
  nixl_mem_list_t memories_;
  std::string conn_info_;
  mutable std::mutex mutex_;  // around every call into the engine, and for what follows
  Section memory_;
  uint64_t version_ = 0;  // changes when memory is removed
  std::map<std::string, std::shared_ptr<EnginePeer>> peers_;
};

}  // namespace towline::nixl
