// Source- and binary-compatible with NIXL's header of this name: the engine that a plugin implements. The order
// of the virtual functions is part of the interface.
//
// An agent here calls an engine from one thread at a time. NIXL's agent does so unless it was made with
// NIXL_THREAD_SYNC_NONE or _RW, so engines written for NIXL work with either.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <nixl_types.h>
#include <telemetry_event.h>
#include "backend_aux.h"

constexpr size_t MAX_TELEMETRY_QUEUE_SIZE = 1000;

class TOWLINE_NIXL_API nixlBackendEngine {
 private:
  nixl_backend_t backendType;
  nixl_b_params_t customParams;
  std::vector<nixlTelemetryEvent> telemetryEvents_;
  std::mutex telemetryEventsMutex_;

 protected:
  bool initErr = false;  // set by a constructor that failed
  const std::string localAgent;
  const bool enableTelemetry_;

  // NIXL_ERR_NOT_ALLOWED if the parameter was given already.
  [[nodiscard]] nixl_status_t setInitParam(const std::string& key, const std::string& value) {
    return customParams.emplace(key, value).second ? NIXL_SUCCESS : NIXL_ERR_NOT_ALLOWED;
  }
  [[nodiscard]] nixl_status_t getInitParam(const std::string& key, std::string& value) const {
    const auto found = customParams.find(key);
    if (found == customParams.end()) return NIXL_ERR_INVALID_PARAM;
    value = found->second;
    return NIXL_SUCCESS;
  }
  // Dropped if telemetry is off, or if the agent has left MAX_TELEMETRY_QUEUE_SIZE of them unread.
  void addTelemetryEvent(nixl_telemetry_event_type_t type, uint64_t value) {
    if (!enableTelemetry_) return;
    const std::lock_guard lock(telemetryEventsMutex_);
    if (telemetryEvents_.size() < MAX_TELEMETRY_QUEUE_SIZE) telemetryEvents_.emplace_back(type, value);
  }

 public:
  explicit nixlBackendEngine(const nixlBackendInitParams* init_params)
      : backendType(init_params->type),
        customParams(*init_params->customParams),
        localAgent(init_params->localAgent),
        enableTelemetry_(init_params->enableTelemetry_) {}
  nixlBackendEngine(nixlBackendEngine&&) = delete;
  nixlBackendEngine(const nixlBackendEngine&) = delete;
  void operator=(nixlBackendEngine&&) = delete;
  void operator=(const nixlBackendEngine&) = delete;
  virtual ~nixlBackendEngine() = default;

  std::vector<nixlTelemetryEvent> getTelemetryEvents() {
    const std::lock_guard lock(telemetryEventsMutex_);
    return std::exchange(telemetryEvents_, {});
  }
  bool getInitErr() const noexcept { return initErr; }
  const nixl_backend_t& getType() const noexcept { return backendType; }
  const nixl_b_params_t& getCustomParams() const noexcept { return customParams; }

  // ---- Which of the calls below the engine implements

  virtual bool supportsRemote() const = 0;  // transfers with other agents; needs supportsNotif
  virtual bool supportsLocal() const = 0;   // transfers within its agent
  virtual bool supportsNotif() const = 0;
  virtual nixl_mem_list_t getSupportedMems() const = 0;

  // ---- Every engine

  virtual nixl_status_t registerMem(const nixlBlobDesc& mem, const nixl_mem_t& kind, nixlBackendMD*& out) = 0;
  virtual nixl_status_t deregisterMem(nixlBackendMD* meta) = 0;
  // With the agent's own name for transfers within it.
  virtual nixl_status_t connect(const std::string& remote_agent) = 0;
  virtual nixl_status_t disconnect(const std::string& remote_agent) = 0;
  // Ends what loadRemoteMD or loadLocalMD made.
  virtual nixl_status_t unloadMD(nixlBackendMD* input) = 0;

  // The arguments of a request are the same objects, at the same addresses, from prepXfer to releaseReqH.
  virtual nixl_status_t prepXfer(const nixl_xfer_op_t& operation, const nixl_meta_dlist_t& local,
                                 const nixl_meta_dlist_t& remote, const std::string& remote_agent,
                                 nixlBackendReqH*& handle,
                                 const nixl_opt_b_args_t* opt_args = nullptr) const = 0;
  // NIXL_SUCCESS if it is done already, NIXL_IN_PROG if checkXfer will tell. Called again for each post.
  virtual nixl_status_t postXfer(const nixl_xfer_op_t& operation, const nixl_meta_dlist_t& local,
                                 const nixl_meta_dlist_t& remote, const std::string& remote_agent,
                                 nixlBackendReqH*& handle,
                                 const nixl_opt_b_args_t* opt_args = nullptr) const = 0;
  virtual nixl_status_t checkXfer(nixlBackendReqH* handle) const = 0;
  // Ends a request that may be in progress.
  virtual nixl_status_t releaseReqH(nixlBackendReqH* handle) const = 0;

  // ---- Views of memory for code on a GPU

  virtual nixl_status_t prepMemView(const nixl_remote_meta_dlist_t& /*list*/, nixlMemViewH& /*view*/,
                                    const nixl_opt_b_args_t* /*opt_args*/ = nullptr) const {
    return NIXL_ERR_NOT_SUPPORTED;
  }
  virtual nixl_status_t prepMemView(const nixl_meta_dlist_t& /*list*/, nixlMemViewH& /*view*/,
                                    const nixl_opt_b_args_t* /*opt_args*/ = nullptr) const {
    return NIXL_ERR_NOT_SUPPORTED;
  }
  virtual void releaseMemView(nixlMemViewH /*view*/) const {}

  // ---- With supportsRemote

  // The data that a peer's loadRemoteMD needs.
  virtual nixl_status_t getPublicData(const nixlBackendMD* /*meta*/, std::string& /*text*/) const {
    return NIXL_ERR_BACKEND;
  }
  // The data that a peer's loadRemoteConnInfo needs.
  virtual nixl_status_t getConnInfo(std::string& /*text*/) const { return NIXL_ERR_BACKEND; }
  virtual nixl_status_t loadRemoteConnInfo(const std::string& /*remote_agent*/,
                                           const std::string& /*conn_info*/) {
    return NIXL_ERR_BACKEND;
  }
  // The descriptor's metaInfo is the peer's public data.
  virtual nixl_status_t loadRemoteMD(const nixlBlobDesc& /*input*/, const nixl_mem_t& /*kind*/,
                                     const std::string& /*remote_agent*/, nixlBackendMD*& /*output*/) {
    return NIXL_ERR_BACKEND;
  }

  // ---- With supportsLocal

  // The metadata of memory that this agent registered, as the other side of a transfer. May be `input` itself.
  virtual nixl_status_t loadLocalMD(nixlBackendMD* /*input*/, nixlBackendMD*& /*output*/) {
    return NIXL_ERR_BACKEND;
  }

  // ---- With supportsNotif

  virtual nixl_status_t getNotifs(notif_list_t& /*notif_list*/) { return NIXL_ERR_BACKEND; }
  virtual nixl_status_t genNotif(const std::string& /*remote_agent*/, const std::string& /*text*/) const {
    return NIXL_ERR_BACKEND;
  }

  // ---- Optional

  virtual nixl_status_t queryMem(const nixl_reg_dlist_t& /*descs*/,
                                 std::vector<nixl_query_resp_t>& /*answers*/) const {
    return NIXL_ERR_NOT_SUPPORTED;
  }
  virtual nixl_status_t estimateXferCost(const nixl_xfer_op_t& /*operation*/,
                                         const nixl_meta_dlist_t& /*local*/,
                                         const nixl_meta_dlist_t& /*remote*/,
                                         const std::string& /*remote_agent*/,
                                         nixlBackendReqH* const& /*handle*/,
                                         std::chrono::microseconds& /*duration*/,
                                         std::chrono::microseconds& /*err_margin*/, nixl_cost_t& /*method*/,
                                         const nixl_opt_args_t* /*extra_params*/ = nullptr) const {
    return NIXL_ERR_NOT_SUPPORTED;
  }
};
