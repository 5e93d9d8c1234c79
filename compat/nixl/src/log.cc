#include "log.h"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>

#include <towline_nixl.h>
#include <utils/common/nixl_log.h>
#include "settings.h"

namespace towline::nixl {

namespace {

// A pointer alone: thread-local storage of libraries that are loaded late is short.
thread_local std::unique_ptr<std::string> last_error_text;

const char* name_of(LogLevel level) noexcept {
  constexpr const char* kNames[] = {"trace", "debug", "info", "warning", "error"};
  return kNames[static_cast<int>(level)];
}

}  // namespace

bool logs(LogLevel level) noexcept { return level >= log_level(); }

void log(LogLevel level, const std::string& text) noexcept {
  if (logs(level)) std::fprintf(stderr, "nixl on towline: %s: %s\n", name_of(level), text.c_str());
}

bool wants_line(LineLevel level) noexcept {
  return level == LineLevel::kFatal || logs(static_cast<LogLevel>(level));
}

void write_line(LineLevel level, const std::string& text) noexcept {
  if (level != LineLevel::kFatal) return log(static_cast<LogLevel>(level), text);
  std::fprintf(stderr, "nixl on towline: fatal: %s\n", text.c_str());
  std::abort();
}

nixl_status_t quiet_text(nixl_status_t status, std::string text) noexcept {
  if (last_error_text == nullptr) last_error_text.reset(new (std::nothrow) std::string);
  if (last_error_text != nullptr) *last_error_text = std::move(text);
  return status;
}

nixl_status_t fail_text(nixl_status_t status, std::string text) noexcept {
  log(LogLevel::kError, text);
  return quiet_text(status, std::move(text));
}

const std::string& last_error() noexcept {
  static const std::string none;
  return last_error_text == nullptr ? none : *last_error_text;
}

nixl_status_t list_to_nixl(Status status) noexcept {
  return status == Status::kOutOfRange ? NIXL_ERR_NOT_FOUND : to_nixl(status);
}

nixl_status_t metadata_to_nixl(Status status) noexcept {
  switch (status) {
    case Status::kProtocol:
    case Status::kCorrupt:
    case Status::kShort:
    case Status::kUnsupported:
    case Status::kLimitExceeded:
    case Status::kInvalidArgument:
      return NIXL_ERR_MISMATCH;
    default:
      return to_nixl(status);
  }
}

}  // namespace towline::nixl

namespace nixlEnumStrings {

std::string memTypeStr(const nixl_mem_t& mem) {
  constexpr const char* kNames[] = {"DRAM_SEG", "VRAM_SEG", "BLK_SEG", "OBJ_SEG", "FILE_SEG"};
  return mem >= DRAM_SEG && mem <= FILE_SEG ? kNames[mem] : "BAD_SEG";
}

std::string xferOpStr(const nixl_xfer_op_t& op) {
  if (op == NIXL_READ) return "READ";
  return op == NIXL_WRITE ? "WRITE" : "BAD_OP";
}

std::string statusStr(const nixl_status_t& status) {
  constexpr const char* kErrors[] = {"NOT_POSTED",    "INVALID_PARAM",     "BACKEND",       "NOT_FOUND",
                                     "MISMATCH",      "NOT_ALLOWED",       "REPOST_ACTIVE", "UNKNOWN",
                                     "NOT_SUPPORTED", "REMOTE_DISCONNECT", "CANCELED",      "NO_TELEMETRY"};
  if (status == NIXL_IN_PROG) return "NIXL_IN_PROG";
  if (status == NIXL_SUCCESS) return "NIXL_SUCCESS";
  if (status > NIXL_SUCCESS || status < NIXL_ERR_NO_TELEMETRY) return "BAD_STATUS";
  return std::string{"NIXL_ERR_"} + kErrors[-status - 1];
}

}  // namespace nixlEnumStrings
