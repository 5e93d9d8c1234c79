// Error texts: kept for the caller's thread and written to standard error.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>

#include <nixl_types.h>
#include "status.h"

namespace towline::nixl {

enum class LogLevel { kTrace, kDebug, kInfo, kWarning, kError, kOff };

// Lines below the level of NIXL_LOG_LEVEL (default WARN) are dropped.
[[nodiscard]] bool logs(LogLevel level) noexcept;
void log(LogLevel level, const std::string& text) noexcept;

// Makes `text` this thread's last error, logs it and returns `status`.
nixl_status_t fail_text(nixl_status_t status, std::string text) noexcept;
// The same without logging.
nixl_status_t quiet_text(nixl_status_t status, std::string text) noexcept;

template <class... Values>
nixl_status_t fail(nixl_status_t status, fmt::format_string<Values...> format, Values&&... values) noexcept {
  try {
    return fail_text(status, fmt::format(format, std::forward<Values>(values)...));
  } catch (...) {
    return status;
  }
}

// As to_nixl, for lists, where memory that nobody has registered is "not found".
[[nodiscard]] nixl_status_t list_to_nixl(Status status) noexcept;
// As to_nixl, for metadata, where unreadable metadata is "mismatch".
[[nodiscard]] nixl_status_t metadata_to_nixl(Status status) noexcept;

}  // namespace towline::nixl
