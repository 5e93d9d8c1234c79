// Source-compatible with NIXL's header of this name: class nixlAgent, on Towline.
//
// compat/nixl/README.md lists the differences. In short: any thread may call anything; progress needs no
// polling; every request has a deadline; handles stay valid, and answer with an error, after their peer or
// memory is gone; a restarted peer is loaded like a new one. When a call fails, towline_nixl.h has the reason
// as text.
#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "nixl_descriptors.h"
#include "nixl_params.h"
#include "nixl_types.h"

namespace towline::nixl {
struct AgentAccess;
}

class TOWLINE_NIXL_API nixlAgent {
 private:
  const std::unique_ptr<nixlAgentData> data;
  friend struct towline::nixl::AgentAccess;

 public:
  // `name`: 1 to 255 bytes without NUL. Throws std::invalid_argument for another name, std::runtime_error
  // when the port of the configuration can't be listened at or a variable of the environment has a bad value.
  nixlAgent(const std::string& name, const nixlAgentConfig& cfg);
  // Ends requests in progress, frees every handle made from the agent, says goodbye to peers.
  ~nixlAgent();
  nixlAgent(nixlAgent&&) noexcept = delete;
  nixlAgent& operator=(nixlAgent&&) noexcept = delete;

  // ---- Backends

  // The names that createBackend accepts here.
  nixl_status_t getAvailPlugins(std::vector<nixl_backend_t>& plugins);
  // NIXL_ERR_NOT_FOUND for one that is not there.
  nixl_status_t getPluginParams(const nixl_backend_t& type, nixl_mem_list_t& mems,
                                nixl_b_params_t& params) const;
  // The parameters of the backend, including defaults.
  nixl_status_t getBackendParams(const nixlBackendH* backend, nixl_mem_list_t& mems,
                                 nixl_b_params_t& params) const;
  // One backend of each type: NIXL_ERR_INVALID_PARAM for a second. NIXL_ERR_NOT_FOUND for an unknown type.
  // Parameters without a meaning here are kept, and getBackendParams returns them.
  nixl_status_t createBackend(const nixl_backend_t& type, const nixl_b_params_t& params,
                              nixlBackendH*& backend);

  // ---- Memory

  // Registers the whole list or nothing. The memory must stay valid until it is deregistered. It may overlap
  // registered memory.
  nixl_status_t registerMem(const nixl_reg_dlist_t& descs, const nixl_opt_args_t* extra_params = nullptr);
  // Takes exactly the descriptors that were registered. Waits until no peer reaches the memory any more.
  // NIXL_ERR_BACKEND: a peer still reaches it after the time limit; do not reuse the memory, and repeat the
  // call.
  nixl_status_t deregisterMem(const nixl_reg_dlist_t& descs, const nixl_opt_args_t* extra_params = nullptr);
  // For files: "size", "mode" and "mtime" of each path in metaInfo. Needs exactly one backend.
  nixl_status_t queryMem(const nixl_reg_dlist_t& descs, std::vector<nixl_query_resp_t>& resp,
                         const nixl_opt_args_t* extra_params) const;

  // ---- Transfers

  // Connects now instead of at the first transfer. Blocks until the connection is up.
  nixl_status_t makeConnection(const std::string& remote_agent,
                               const nixl_opt_args_t* extra_params = nullptr);

  // NIXL_INIT_AGENT: the local side. This agent's own name: the other side of transfers within it.
  nixl_status_t prepXferDlist(const std::string& agent_name, const nixl_xfer_dlist_t& descs,
                              nixlDlistH*& dlist_hndl, const nixl_opt_args_t* extra_params = nullptr) const;
  nixl_status_t prepXferDlist(const nixl_xfer_dlist_t& descs, nixlDlistH*& dlist_hndl,
                              const nixl_opt_args_t* extra_params = nullptr) const;
  // Connects when there is no connection yet. Reads backends and notif.
  nixl_status_t makeXferReq(const nixl_xfer_op_t& operation, const nixlDlistH* local_side,
                            const std::vector<int>& local_indices, const nixlDlistH* remote_side,
                            const std::vector<int>& remote_indices, nixlXferReqH*& req_hndl,
                            const nixl_opt_args_t* extra_params = nullptr) const;
  // The same, as NIXL has it from 1.5.2 on.
  nixl_status_t makeXferReq(const nixl_xfer_op_t& operation, const nixlDlistH& local_side,
                            std::span<const int> local_indices, const nixlDlistH& remote_side,
                            std::span<const int> remote_indices, nixlXferReqH*& req_hndl,
                            const nixl_opt_args_t* extra_params = nullptr) const;
  nixl_status_t createXferReq(const nixl_xfer_op_t& operation, const nixl_xfer_dlist_t& local_descs,
                              const nixl_xfer_dlist_t& remote_descs, const std::string& remote_agent,
                              nixlXferReqH*& req_hndl, const nixl_opt_args_t* extra_params = nullptr) const;
  // By the prices that were measured in this process for transfers of that size over the same transport; the
  // margin is by how much they differed. Where none was measured: the request's last run, if it had one, else
  // the transport's declared cost, with a margin as large as the estimate.
  nixl_status_t estimateXferCost(const nixlXferReqH* req_hndl, std::chrono::microseconds& duration,
                                 std::chrono::microseconds& err_margin, nixl_cost_t& method,
                                 const nixl_opt_args_t* extra_params = nullptr) const;
  // NIXL_SUCCESS: done. NIXL_IN_PROG: getXferStatus returns the outcome. With extra_params, their notif is
  // used for this post and the next ones; extra_params without notif remove it.
  nixl_status_t postXferReq(nixlXferReqH* req_hndl, const nixl_opt_args_t* extra_params = nullptr) const;
  nixl_status_t getXferStatus(nixlXferReqH* req_hndl) const;
  nixl_status_t getXferTelemetry(const nixlXferReqH* req_hndl, nixl_xfer_telem_t& telemetry) const;
  nixl_status_t queryXferBackend(const nixlXferReqH* req_hndl, nixlBackendH*& backend) const;
  // Cancels the request and waits until no byte can land any more. NIXL_ERR_REPOST_ACTIVE: a byte can still
  // land after the time limit; the request still exists, and the call may be repeated.
  nixl_status_t releaseXferReq(nixlXferReqH* req_hndl) const;
  // Requests made from the list stay usable.
  nixl_status_t releasedDlistH(nixlDlistH* dlist_hndl) const;

  // Views of memory for code on a GPU (nixl_device.cuh): of the GPU whose context is current, if this agent has registered
  // memory there, else of one that it has. NIXL_ERR_NOT_SUPPORTED: that GPU has no address of some of the memory, and
  // the log says why. Waits until the agents are connected. An entry of nixl_null_agent has no memory.
  nixl_status_t prepMemView(const nixl_remote_dlist_t& dlist, nixlMemViewH& mvh,
                            const nixl_opt_args_t* extra_params = nullptr) const;
  nixl_status_t prepMemView(const nixl_local_dlist_t& dlist, nixlMemViewH& mvh,
                            const nixl_opt_args_t* extra_params = nullptr) const;
  // No code on a GPU may use it any more.
  void releaseMemView(nixlMemViewH mvh) const;

  // ---- Notifications

  // Adds the notifications that have arrived to the map.
  nixl_status_t getNotifs(nixl_notifs_t& notif_map, const nixl_opt_args_t* extra_params = nullptr);
  // At most 1 GiB. Waits, up to the default deadline, while the peer has 1 MiB of them unread.
  nixl_status_t genNotif(const std::string& remote_agent, const nixl_blob_t& msg,
                         const nixl_opt_args_t* extra_params = nullptr) const;

  // ---- Metadata, sent by the application

  nixl_status_t getLocalMD(nixl_blob_t& str) const;
  // An empty list: addresses only. Else these descriptors, with the addresses if includeConnInfo is set.
  nixl_status_t getLocalPartialMD(const nixl_reg_dlist_t& descs, nixl_blob_t& str,
                                  const nixl_opt_args_t* extra_params = nullptr) const;
  // Adds to the known metadata of the agent. NIXL_ERR_MISMATCH: not metadata, or damaged. NIXL_ERR_BACKEND:
  // no backend in common. NIXL_ERR_NOT_FOUND: descriptors of an agent whose addresses are not known.
  nixl_status_t loadRemoteMD(const nixl_blob_t& remote_metadata, std::string& agent_name);
  nixl_status_t invalidateRemoteMD(const std::string& remote_agent);

  // ---- Metadata, sent by Towline

  // With ipAddr to or from the agent that listens there, else through the metadata server. NIXL_SUCCESS: the
  // call has begun; towline::nixl::metadata_calls returns its result.

  nixl_status_t sendLocalMD(const nixl_opt_args_t* extra_params = nullptr) const;
  nixl_status_t sendLocalPartialMD(const nixl_reg_dlist_t& descs,
                                   const nixl_opt_args_t* extra_params = nullptr) const;
  nixl_status_t fetchRemoteMD(const std::string remote_name,  // NOLINT: by value as it is there
                              const nixl_opt_args_t* extra_params = nullptr);
  nixl_status_t invalidateLocalMD(const nixl_opt_args_t* extra_params = nullptr) const;
  // NIXL_SUCCESS when the agent and, if there are any, all of these descriptors are known.
  nixl_status_t checkRemoteMD(const std::string remote_name,  // NOLINT: the same
                              const nixl_xfer_dlist_t& descs) const;
};
