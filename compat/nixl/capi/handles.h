// The types behind the handles of nixl_capi.h, and how its functions end.
#pragma once

#include <nixl.h>
#include <nixl_capi.h>

#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

struct nixl_capi_agent_s {
  nixlAgent agent;
};
struct nixl_capi_params_s {
  nixl_b_params_t params;
};
struct nixl_capi_mem_list_s {
  nixl_mem_list_t mems;
};
struct nixl_capi_string_list_s {
  std::vector<std::string> strings;
};
struct nixl_capi_backend_s {
  nixlBackendH* backend;
};
struct nixl_capi_opt_args_s {
  nixl_opt_args_t args;
};
struct nixl_capi_param_iter_s {
  nixl_b_params_t::const_iterator next;
  nixl_b_params_t::const_iterator end;
};
struct nixl_capi_xfer_dlist_s {
  nixl_xfer_dlist_t list;
};
struct nixl_capi_reg_dlist_s {
  nixl_reg_dlist_t list;
};
struct nixl_capi_remote_dlist_s {
  nixl_remote_dlist_t list;
};
struct nixl_capi_xfer_dlist_handle_s {
  nixlDlistH* handle;
};
struct nixl_capi_xfer_req_s {
  nixlXferReqH* request;  // null: released
};
struct nixl_capi_notif_map_s {
  nixl_notifs_t notifs;
};
struct nixl_capi_query_resp_list_s {
  std::vector<nixl_query_resp_t> answers;
};

namespace towline::nixl::capi {

[[nodiscard]] inline nixl_capi_status_t to_c(nixl_status_t status) noexcept {
  switch (status) {
    case NIXL_SUCCESS:
      return NIXL_CAPI_SUCCESS;
    case NIXL_IN_PROG:
      return NIXL_CAPI_IN_PROG;
    case NIXL_ERR_INVALID_PARAM:
      return NIXL_CAPI_ERROR_INVALID_PARAM;
    case NIXL_ERR_NOT_FOUND:
      return NIXL_CAPI_ERROR_NOT_FOUND;
    case NIXL_ERR_NO_TELEMETRY:
      return NIXL_CAPI_ERROR_NO_TELEMETRY;
    default:
      return NIXL_CAPI_ERROR_BACKEND;
  }
}

// Runs a function's work, which returns a status of NIXL or of C, if all pointers that it needs are there.
template <class Work, class... Pointers>
nixl_capi_status_t run(Work work, Pointers... needed) noexcept {
  if (((needed == nullptr) || ...)) return NIXL_CAPI_ERROR_INVALID_PARAM;
  try {
    if constexpr (std::is_same_v<decltype(work()), nixl_status_t>) {
      return to_c(work());
    } else {
      return work();
    }
  } catch (const std::exception&) {
    return NIXL_CAPI_ERROR_BACKEND;
  }
}

// The same for work without a status.
template <class Work, class... Pointers>
nixl_capi_status_t done(Work work, Pointers... needed) noexcept {
  return run(
      [&] {
        work();
        return NIXL_CAPI_SUCCESS;
      },
      needed...);
}

template <class Handle, class... Values>
nixl_capi_status_t make(Handle** made, Values&&... values) noexcept {
  return done([&] { *made = new Handle{std::forward<Values>(values)...}; }, made);
}
template <class Handle>
nixl_capi_status_t end(Handle* handle) noexcept {
  return done([&] { delete handle; }, handle);
}

[[nodiscard]] inline const nixl_opt_args_t* or_null(nixl_capi_opt_args_t args) noexcept {
  return args == nullptr ? nullptr : &args->args;
}

// A copy for free().
inline nixl_capi_status_t give(std::string_view bytes, void** data, size_t* len) noexcept {
  void* copy = std::malloc(bytes.empty() ? 1 : bytes.size());
  if (copy == nullptr) return NIXL_CAPI_ERROR_BACKEND;
  std::memcpy(copy, bytes.data(), bytes.size());
  *data = copy;
  *len = bytes.size();
  return NIXL_CAPI_SUCCESS;
}

}  // namespace towline::nixl::capi
