// nixl_capi.h: agents, metadata, backends, memory, requests, notifications, views.
#include "handles.h"

using namespace towline::nixl::capi;  // NOLINT: this file is that interface's other side

// ---- Agents

nixl_capi_status_t nixl_capi_create_agent(const char* name, nixl_capi_agent_t* agent) {
  return run(
      [&] {
        nixlAgentConfig config;
        config.useProgThread = true;
        *agent = new nixl_capi_agent_s{{name, config}};
        return NIXL_CAPI_SUCCESS;
      },
      name, agent);
}

nixl_capi_status_t nixl_capi_create_configured_agent(const char* name, const nixl_capi_agent_config_t* given,
                                                     nixl_capi_agent_t* agent) {
  return run(
      [&] {
        nixlAgentConfig config;
        config.useProgThread = given->enable_prog_thread;
        config.useListenThread = given->enable_listen_thread;
        config.listenPort = static_cast<uint16_t>(given->listen_port);
        config.syncMode = static_cast<nixl_thread_sync_t>(given->thread_sync);
        config.pthrDelay = given->pthr_delay_us;
        config.lthrDelay = given->lthr_delay_us;
        config.captureTelemetry = given->capture_telemetry;
        *agent = new nixl_capi_agent_s{{name, config}};
        return NIXL_CAPI_SUCCESS;
      },
      name, given, agent);
}

nixl_capi_status_t nixl_capi_destroy_agent(nixl_capi_agent_t agent) { return end(agent); }

// ---- Metadata

nixl_capi_status_t nixl_capi_get_local_md(nixl_capi_agent_t agent, void** data, size_t* len) {
  return run(
      [&] {
        nixl_blob_t blob;
        const nixl_status_t status = agent->agent.getLocalMD(blob);
        return status == NIXL_SUCCESS ? give(blob, data, len) : to_c(status);
      },
      agent, data, len);
}

nixl_capi_status_t nixl_capi_get_local_partial_md(nixl_capi_agent_t agent, nixl_capi_reg_dlist_t descs,
                                                  void** data, size_t* len, nixl_capi_opt_args_t opt_args) {
  return run(
      [&] {
        nixl_blob_t blob;
        const nixl_status_t status = agent->agent.getLocalPartialMD(descs->list, blob, or_null(opt_args));
        return status == NIXL_SUCCESS ? give(blob, data, len) : to_c(status);
      },
      agent, descs, data, len);
}

nixl_capi_status_t nixl_capi_load_remote_md(nixl_capi_agent_t agent, const void* data, size_t len,
                                            char** agent_name) {
  if (len == 0) return NIXL_CAPI_ERROR_INVALID_PARAM;
  return run(
      [&] {
        std::string name;
        const nixl_status_t status = agent->agent.loadRemoteMD({static_cast<const char*>(data), len}, name);
        if (status != NIXL_SUCCESS) return to_c(status);
        *agent_name = strdup(name.c_str());
        return *agent_name == nullptr ? NIXL_CAPI_ERROR_BACKEND : NIXL_CAPI_SUCCESS;
      },
      agent, data, agent_name);
}

nixl_capi_status_t nixl_capi_invalidate_remote_md(nixl_capi_agent_t agent, const char* remote_agent) {
  return run([&] { return agent->agent.invalidateRemoteMD(remote_agent); }, agent, remote_agent);
}

nixl_capi_status_t nixl_capi_invalidate_local_md(nixl_capi_agent_t agent, nixl_capi_opt_args_t opt_args) {
  return run([&] { return agent->agent.invalidateLocalMD(or_null(opt_args)); }, agent);
}

nixl_capi_status_t nixl_capi_check_remote_md(nixl_capi_agent_t agent, const char* remote_name,
                                             nixl_capi_xfer_dlist_t descs) {
  return run(
      [&] {
        static const nixl_xfer_dlist_t kNone(DRAM_SEG);
        return agent->agent.checkRemoteMD(remote_name, descs == nullptr ? kNone : descs->list);
      },
      agent, remote_name);
}

nixl_capi_status_t nixl_capi_send_local_md(nixl_capi_agent_t agent, nixl_capi_opt_args_t opt_args) {
  return run([&] { return agent->agent.sendLocalMD(or_null(opt_args)); }, agent);
}

nixl_capi_status_t nixl_capi_send_local_partial_md(nixl_capi_agent_t agent, nixl_capi_reg_dlist_t descs,
                                                   nixl_capi_opt_args_t opt_args) {
  return run([&] { return agent->agent.sendLocalPartialMD(descs->list, or_null(opt_args)); }, agent, descs);
}

nixl_capi_status_t nixl_capi_fetch_remote_md(nixl_capi_agent_t agent, const char* remote_name,
                                             nixl_capi_opt_args_t opt_args) {
  return run([&] { return agent->agent.fetchRemoteMD(remote_name, or_null(opt_args)); }, agent, remote_name);
}

// ---- Backends

nixl_capi_status_t nixl_capi_get_available_plugins(nixl_capi_agent_t agent,
                                                   nixl_capi_string_list_t* plugins) {
  return run(
      [&] {
        auto list = std::make_unique<nixl_capi_string_list_s>();
        const nixl_status_t status = agent->agent.getAvailPlugins(list->strings);
        if (status == NIXL_SUCCESS) *plugins = list.release();
        return status;
      },
      agent, plugins);
}

namespace {

// Kinds of memory and parameters, both or neither.
template <class Ask>
nixl_capi_status_t describe(Ask ask, nixl_capi_mem_list_t* mems, nixl_capi_params_t* params) {
  auto kinds = std::make_unique<nixl_capi_mem_list_s>();
  auto values = std::make_unique<nixl_capi_params_s>();
  const nixl_status_t status = ask(kinds->mems, values->params);
  if (status != NIXL_SUCCESS) return to_c(status);
  *mems = kinds.release();
  *params = values.release();
  return NIXL_CAPI_SUCCESS;
}

}  // namespace

nixl_capi_status_t nixl_capi_get_plugin_params(nixl_capi_agent_t agent, const char* plugin_name,
                                               nixl_capi_mem_list_t* mems, nixl_capi_params_t* params) {
  return run(
      [&] {
        return describe(
            [&](auto& kinds, auto& values) {
              return agent->agent.getPluginParams(plugin_name, kinds, values);
            },
            mems, params);
      },
      agent, plugin_name, mems, params);
}

nixl_capi_status_t nixl_capi_create_backend(nixl_capi_agent_t agent, const char* plugin_name,
                                            nixl_capi_params_t params, nixl_capi_backend_t* backend) {
  return run(
      [&] {
        nixlBackendH* made = nullptr;
        // As in NIXL, the reason is lost here; towline::nixl::last_error has it.
        if (agent->agent.createBackend(plugin_name, params->params, made) != NIXL_SUCCESS)
          return NIXL_CAPI_ERROR_BACKEND;
        *backend = new nixl_capi_backend_s{made};
        return NIXL_CAPI_SUCCESS;
      },
      agent, plugin_name, params, backend);
}

nixl_capi_status_t nixl_capi_destroy_backend(nixl_capi_backend_t backend) { return end(backend); }

nixl_capi_status_t nixl_capi_get_backend_params(nixl_capi_agent_t agent, nixl_capi_backend_t backend,
                                                nixl_capi_mem_list_t* mems, nixl_capi_params_t* params) {
  return run(
      [&] {
        return describe(
            [&](auto& kinds, auto& values) {
              return agent->agent.getBackendParams(backend->backend, kinds, values);
            },
            mems, params);
      },
      agent, backend, mems, params);
}

// ---- Memory

nixl_capi_status_t nixl_capi_register_mem(nixl_capi_agent_t agent, nixl_capi_reg_dlist_t dlist,
                                          nixl_capi_opt_args_t opt_args) {
  return run([&] { return agent->agent.registerMem(dlist->list, or_null(opt_args)); }, agent, dlist);
}

nixl_capi_status_t nixl_capi_deregister_mem(nixl_capi_agent_t agent, nixl_capi_reg_dlist_t dlist,
                                            nixl_capi_opt_args_t opt_args) {
  return run([&] { return agent->agent.deregisterMem(dlist->list, or_null(opt_args)); }, agent, dlist);
}

nixl_capi_status_t nixl_capi_query_mem(nixl_capi_agent_t agent, nixl_capi_reg_dlist_t descs,
                                       nixl_capi_query_resp_list_t resp, nixl_capi_opt_args_t opt_args) {
  return run([&] { return agent->agent.queryMem(descs->list, resp->answers, or_null(opt_args)); }, agent,
             descs, resp);
}

// ---- Requests

nixl_capi_status_t nixl_capi_agent_make_connection(nixl_capi_agent_t agent, const char* remote_agent,
                                                   nixl_capi_opt_args_t opt_args) {
  return run([&] { return agent->agent.makeConnection(remote_agent, or_null(opt_args)); }, agent,
             remote_agent);
}

nixl_capi_status_t nixl_capi_prep_xfer_dlist(nixl_capi_agent_t agent, const char* agent_name,
                                             nixl_capi_xfer_dlist_t descs,
                                             nixl_capi_xfer_dlist_handle_t* dlist_hndl,
                                             nixl_capi_opt_args_t opt_args) {
  return run(
      [&] {
        auto made = std::make_unique<nixl_capi_xfer_dlist_handle_s>();
        const nixl_status_t status =
            agent->agent.prepXferDlist(agent_name, descs->list, made->handle, or_null(opt_args));
        if (status == NIXL_SUCCESS) *dlist_hndl = made.release();
        return status;
      },
      agent, agent_name, descs, dlist_hndl);
}

nixl_capi_status_t nixl_capi_release_xfer_dlist_handle(nixl_capi_agent_t agent,
                                                       nixl_capi_xfer_dlist_handle_t dlist_handle) {
  return run(
      [&] {
        const nixl_status_t status = agent->agent.releasedDlistH(dlist_handle->handle);
        if (status == NIXL_SUCCESS) delete dlist_handle;
        return status;
      },
      agent, dlist_handle);
}

nixl_capi_status_t nixl_capi_make_xfer_req(nixl_capi_agent_t agent, nixl_capi_xfer_op_t operation,
                                           nixl_capi_xfer_dlist_handle_t local_descs,
                                           const int* local_indices, size_t local_indices_count,
                                           nixl_capi_xfer_dlist_handle_t remote_descs,
                                           const int* remote_indices, size_t remote_indices_count,
                                           nixl_capi_xfer_req_t* req_hndl, nixl_capi_opt_args_t opt_args) {
  return run(
      [&] {
        auto made = std::make_unique<nixl_capi_xfer_req_s>();
        const std::vector<int> here(local_indices, local_indices + local_indices_count);
        const std::vector<int> there(remote_indices, remote_indices + remote_indices_count);
        const nixl_status_t status =
            agent->agent.makeXferReq(static_cast<nixl_xfer_op_t>(operation), local_descs->handle, here,
                                     remote_descs->handle, there, made->request, or_null(opt_args));
        if (status == NIXL_SUCCESS) *req_hndl = made.release();
        return status;
      },
      agent, local_descs, local_indices, remote_descs, remote_indices, req_hndl);
}

nixl_capi_status_t nixl_capi_create_xfer_req(nixl_capi_agent_t agent, nixl_capi_xfer_op_t operation,
                                             nixl_capi_xfer_dlist_t local_descs,
                                             nixl_capi_xfer_dlist_t remote_descs, const char* remote_agent,
                                             nixl_capi_xfer_req_t* req_hndl, nixl_capi_opt_args_t opt_args) {
  return run(
      [&] {
        auto made = std::make_unique<nixl_capi_xfer_req_s>();
        const nixl_status_t status =
            agent->agent.createXferReq(static_cast<nixl_xfer_op_t>(operation), local_descs->list,
                                       remote_descs->list, remote_agent, made->request, or_null(opt_args));
        if (status == NIXL_SUCCESS) *req_hndl = made.release();
        return status;
      },
      agent, local_descs, remote_descs, remote_agent, req_hndl);
}

nixl_capi_status_t nixl_capi_estimate_xfer_cost(nixl_capi_agent_t agent, nixl_capi_xfer_req_t req_hndl,
                                                nixl_capi_opt_args_t opt_args, int64_t* duration_us,
                                                int64_t* err_margin_us, nixl_capi_cost_t* method) {
  return run(
      [&] {
        std::chrono::microseconds duration{};
        std::chrono::microseconds margin{};
        nixl_cost_t how{};
        const nixl_status_t status =
            agent->agent.estimateXferCost(req_hndl->request, duration, margin, how, or_null(opt_args));
        if (status != NIXL_SUCCESS) return status;
        *duration_us = duration.count();
        *err_margin_us = margin.count();
        *method = NIXL_CAPI_COST_ANALYTICAL_BACKEND;
        return status;
      },
      agent, req_hndl, duration_us, err_margin_us, method);
}

nixl_capi_status_t nixl_capi_post_xfer_req(nixl_capi_agent_t agent, nixl_capi_xfer_req_t req_hndl,
                                           nixl_capi_opt_args_t opt_args) {
  return run([&] { return agent->agent.postXferReq(req_hndl->request, or_null(opt_args)); }, agent, req_hndl);
}

nixl_capi_status_t nixl_capi_get_xfer_status(nixl_capi_agent_t agent, nixl_capi_xfer_req_t req_hndl) {
  return run([&] { return agent->agent.getXferStatus(req_hndl->request); }, agent, req_hndl);
}

nixl_capi_status_t nixl_capi_query_xfer_backend(nixl_capi_agent_t agent, nixl_capi_xfer_req_t req_hndl,
                                                nixl_capi_backend_t* backend) {
  return run(
      [&] {
        auto made = std::make_unique<nixl_capi_backend_s>();
        const nixl_status_t status = agent->agent.queryXferBackend(req_hndl->request, made->backend);
        if (status == NIXL_SUCCESS) *backend = made.release();
        return status;
      },
      agent, req_hndl, backend);
}

nixl_capi_status_t nixl_capi_release_xfer_req(nixl_capi_agent_t agent, nixl_capi_xfer_req_t req) {
  return run(
      [&] {
        const nixl_status_t status = agent->agent.releaseXferReq(req->request);
        if (status == NIXL_SUCCESS) req->request = nullptr;
        return status;
      },
      agent, req);
}

nixl_capi_status_t nixl_capi_destroy_xfer_req(nixl_capi_xfer_req_t req) {
  if (req != nullptr && req->request != nullptr) return NIXL_CAPI_ERROR_INVALID_STATE;
  return end(req);
}

nixl_capi_status_t nixl_capi_get_xfer_telemetry(nixl_capi_agent_t agent, nixl_capi_xfer_req_t req_hndl,
                                                nixl_capi_xfer_telemetry_t telemetry) {
  return run(
      [&] {
        nixl_xfer_telem_t figures{};
        const nixl_status_t status = agent->agent.getXferTelemetry(req_hndl->request, figures);
        if (status != NIXL_SUCCESS) return status;
        const auto started =
            std::chrono::duration_cast<std::chrono::microseconds>(figures.startTime.time_since_epoch());
        *telemetry = {
            static_cast<uint64_t>(started.count()), static_cast<uint64_t>(figures.postDuration.count()),
            static_cast<uint64_t>(figures.xferDuration.count()), figures.totalBytes, figures.descCount};
        return status;
      },
      agent, req_hndl, telemetry);
}

// ---- Notifications

nixl_capi_status_t nixl_capi_get_notifs(nixl_capi_agent_t agent, nixl_capi_notif_map_t notif_map,
                                        nixl_capi_opt_args_t opt_args) {
  return run([&] { return agent->agent.getNotifs(notif_map->notifs, or_null(opt_args)); }, agent, notif_map);
}

nixl_capi_status_t nixl_capi_gen_notif(nixl_capi_agent_t agent, const char* remote_agent, const void* data,
                                       size_t len, nixl_capi_opt_args_t opt_args) {
  if (data == nullptr && len != 0) return NIXL_CAPI_ERROR_INVALID_PARAM;
  return run(
      [&] {
        const nixl_blob_t text = len == 0 ? nixl_blob_t{} : nixl_blob_t{static_cast<const char*>(data), len};
        return agent->agent.genNotif(remote_agent, text, or_null(opt_args));
      },
      agent, remote_agent);
}

// ---- Views

nixl_capi_status_t nixl_capi_prep_mem_view_local(nixl_capi_agent_t agent, nixl_capi_xfer_dlist_t descs,
                                                 nixl_capi_mem_view_t* mvh, nixl_capi_opt_args_t opt_args) {
  return run(
      [&] {
        nixlMemViewH view = nullptr;
        const nixl_status_t status = agent->agent.prepMemView(descs->list, view, or_null(opt_args));
        if (status == NIXL_SUCCESS) *mvh = static_cast<nixl_capi_mem_view_t>(view);
        return status;
      },
      agent, descs, mvh);
}

nixl_capi_status_t nixl_capi_prep_mem_view_remote(nixl_capi_agent_t agent, nixl_capi_remote_dlist_t descs,
                                                  nixl_capi_mem_view_t* mvh, nixl_capi_opt_args_t opt_args) {
  return run(
      [&] {
        nixlMemViewH view = nullptr;
        const nixl_status_t status = agent->agent.prepMemView(descs->list, view, or_null(opt_args));
        if (status == NIXL_SUCCESS) *mvh = static_cast<nixl_capi_mem_view_t>(view);
        return status;
      },
      agent, descs, mvh);
}

nixl_capi_status_t nixl_capi_release_mem_view(nixl_capi_agent_t agent, nixl_capi_mem_view_t mvh) {
  return done([&] { agent->agent.releaseMemView(mvh); }, agent, mvh);
}

bool nixl_capi_is_stub(void) { return false; }
