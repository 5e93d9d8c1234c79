// Towline as a plugin of the real NIXL agent: one Towline agent behind NIXL's engine interface.
//
// NIXL keeps its metadata, lists and requests; Towline moves the bytes, makes progress by itself, notices lost
// peers and fences. NIXL's agent calls an engine from several threads only if it was made so; all of Towline's
// calls may come from any thread, and what this class keeps itself has a lock.
#pragma once

#include <backend/backend_plugin.h>

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <towline/towline.hpp>

namespace towline_plugin {

// The parameters of the backend TOWLINE with their defaults; those of TCPX, which moves bytes over tcpx alone.
[[nodiscard]] nixl_b_params_t parameters();
[[nodiscard]] nixl_b_params_t tcpx_parameters();

class Engine final : public nixlBackendEngine {
 public:
  // `known`: what the backend's parameters are. Throws towline::Error, or std::runtime_error for a parameter that
  // can't be used.
  Engine(const nixlBackendInitParams* init, const nixl_b_params_t& known);
  ~Engine() override;

  bool supportsRemote() const override { return true; }
  bool supportsLocal() const override { return true; }
  bool supportsNotif() const override { return true; }
  nixl_mem_list_t getSupportedMems() const override { return memories_; }

  nixl_status_t registerMem(const nixlBlobDesc& mem, const nixl_mem_t& kind, nixlBackendMD*& out) override;
  nixl_status_t deregisterMem(nixlBackendMD* meta) override;
  nixl_status_t connect(const std::string& agent) override;
  nixl_status_t disconnect(const std::string& agent) override;
  nixl_status_t unloadMD(nixlBackendMD* input) override;
  nixl_status_t getPublicData(const nixlBackendMD* meta, std::string& text) const override;
  nixl_status_t getConnInfo(std::string& text) const override;
  nixl_status_t loadRemoteConnInfo(const std::string& agent, const std::string& info) override;
  nixl_status_t loadRemoteMD(const nixlBlobDesc& input, const nixl_mem_t& kind, const std::string& agent,
                             nixlBackendMD*& output) override;
  nixl_status_t loadLocalMD(nixlBackendMD* input, nixlBackendMD*& output) override;

  nixl_status_t prepXfer(const nixl_xfer_op_t& operation, const nixl_meta_dlist_t& local,
                         const nixl_meta_dlist_t& remote, const std::string& agent, nixlBackendReqH*& handle,
                         const nixl_opt_b_args_t* args) const override;
  nixl_status_t postXfer(const nixl_xfer_op_t& operation, const nixl_meta_dlist_t& local,
                         const nixl_meta_dlist_t& remote, const std::string& agent, nixlBackendReqH*& handle,
                         const nixl_opt_b_args_t* args) const override;
  nixl_status_t checkXfer(nixlBackendReqH* handle) const override;
  nixl_status_t releaseReqH(nixlBackendReqH* handle) const override;
  nixl_status_t estimateXferCost(const nixl_xfer_op_t& operation, const nixl_meta_dlist_t& local,
                                 const nixl_meta_dlist_t& remote, const std::string& agent,
                                 nixlBackendReqH* const& handle, std::chrono::microseconds& duration,
                                 std::chrono::microseconds& margin, nixl_cost_t& method,
                                 const nixl_opt_args_t* extra) const override;

  nixl_status_t getNotifs(notif_list_t& list) override;
  nixl_status_t genNotif(const std::string& agent, const std::string& text) const override;

 private:
  // Null for this agent itself; throws towline::Error for an agent that is not loaded.
  [[nodiscard]] std::shared_ptr<towline::Peer> peer(const std::string& agent) const;

  std::optional<towline::Agent> agent_;
  nixl_mem_list_t memories_;
  uint64_t timeout_ns_ = 0;
  bool splits_ = false;  // the agent has a second engine for large requests
  mutable std::mutex mutex_;
  std::map<std::string, std::shared_ptr<towline::Peer>> peers_;
  mutable std::vector<std::string> to_self_;  // notifications of this agent to itself
};

}  // namespace towline_plugin
