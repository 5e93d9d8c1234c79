// Requests that a plugin's engine carries, as nixlAgent's calls need them.
#pragma once

#include "agent_data.h"

namespace towline::nixl {

// Both lists were prepared for the backend.
nixl_status_t make_engine_request_of(nixlAgentData& data, nixl_xfer_op_t operation, nixlBackendH* backend,
                                     const nixlDlistH* local, const towline_picks_t& local_picks,
                                     const nixlDlistH* remote, const towline_picks_t& remote_picks,
                                     nixlXferReqH*& request, const nixl_opt_args_t* extra_params,
                                     const char* call);
nixl_status_t create_engine_request(nixlAgentData& data, nixl_xfer_op_t operation, nixlBackendH* backend,
                                    nixl_mem_t local_type, const Rows& local, nixl_mem_t remote_type,
                                    const Rows& remote, const std::string& remote_agent,
                                    nixlXferReqH*& request, const nixl_opt_args_t* extra_params,
                                    const char* call);
nixl_status_t post_engine_request(nixlXferReqH& request, const nixl_opt_args_t* extra_params);
nixl_status_t check_engine_request(nixlXferReqH& request) noexcept;
// For an agent with telemetry.
void note_engine_end(nixlXferReqH& request) noexcept;
// At least 1.
[[nodiscard]] int64_t us_since(chrono_point_t begin) noexcept;

}  // namespace towline::nixl
