// UCX's entry points, looked up at run time.
#pragma once

#include <ucp/api/ucp.h>

#include <string>

#include "base/os/dynamic_library.h"
#include "towline/status.h"

namespace towline::fabric {

class UcxLibrary {
 public:
  // Loaded once, and kept: UCX leaves threads and exit handlers. Throws Error(kUnsupported).
  static UcxLibrary& get();

  std::string error_text(ucs_status_t code) const;
  const std::string& version() const noexcept { return version_; }
  unsigned minor() const noexcept { return minor_; }  // of version 1

#define TOWLINE_UCX_FUNCTIONS(X)    \
  X(ucp_init_version)               \
  X(ucp_cleanup)                    \
  X(ucp_config_read)                \
  X(ucp_config_modify)              \
  X(ucp_config_release)             \
  X(ucp_worker_create)              \
  X(ucp_worker_destroy)             \
  X(ucp_worker_get_address)         \
  X(ucp_worker_release_address)     \
  X(ucp_worker_get_efd)             \
  X(ucp_worker_arm)                 \
  X(ucp_worker_progress)            \
  X(ucp_worker_set_am_recv_handler) \
  X(ucp_ep_create)                  \
  X(ucp_ep_close_nbx)               \
  X(ucp_ep_flush_nbx)               \
  X(ucp_ep_rkey_unpack)             \
  X(ucp_rkey_destroy)               \
  X(ucp_rkey_pack)                  \
  X(ucp_rkey_buffer_release)        \
  X(ucp_mem_map)                    \
  X(ucp_mem_unmap)                  \
  X(ucp_put_nbx)                    \
  X(ucp_get_nbx)                    \
  X(ucp_am_send_nbx)                \
  X(ucp_request_check_status)       \
  X(ucp_request_free)
#define TOWLINE_UCX_MEMBER(name) decltype(&::name) name = nullptr;
  TOWLINE_UCX_FUNCTIONS(TOWLINE_UCX_MEMBER)
#undef TOWLINE_UCX_MEMBER

 private:
  UcxLibrary();

  DynamicLibrary library_;
  DynamicLibrary services_;
  const char* (*status_string_)(ucs_status_t) = nullptr;
  std::string version_;
  unsigned minor_ = 0;
};

// For the codes that peers and devices give.
Status status_of_ucx(ucs_status_t code) noexcept;

}  // namespace towline::fabric
