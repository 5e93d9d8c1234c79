// Reads the notification from optional arguments, and says why one is refused.
#pragma once

#include "backends.h"
#include "log.h"
#include "long_notifications.h"
#include "messages.h"

namespace towline::nixl {

// Null for none.
[[nodiscard]] inline const nixl_blob_t* notif_of(const nixl_opt_args_t* extra_params) noexcept {
  if (extra_params == nullptr) return nullptr;
  if (extra_params->notif) return &*extra_params->notif;
  return extra_params->hasNotif ? &extra_params->notifMsg : nullptr;
}

inline nixl_status_t too_long(const nixl_blob_t& notif, const char* call) {
  return fail(NIXL_ERR_INVALID_PARAM, "{}: a notification has at most {} bytes, not {}", call, kMaxLongBytes,
              notif.size());
}

inline nixl_status_t no_notif(const nixlBackendH& backend, const char* call) {
  return fail(NIXL_ERR_BACKEND, "{}: backend '{}' carries no notifications", call, backend.type.name);
}

}  // namespace towline::nixl
