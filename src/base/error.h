// Errors of the control path. The data path returns Status and never throws.
#pragma once

#include <fmt/format.h>

#include <exception>
#include <string>
#include <utility>

#include "towline/status.h"

namespace towline {

// The public towline.hpp has its own Error, made from the status and text of the C API. This namespace keeps
// the two apart for the linker; a source that includes both headers has to say which it means.
inline namespace core {

// A status code with the message that explains it: what was tried, with which values, and what went wrong.
class Error : public std::exception {
 public:
  Error(Status code, std::string message) : code_(code), message_(std::move(message)) {}

  Status code() const noexcept { return code_; }
  const std::string& message() const noexcept { return message_; }
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  Status code_;
  std::string message_;
};

}  // namespace core

template <class... Args>
[[noreturn]] void fail(Status code, fmt::format_string<Args...> format, Args&&... args) {
  throw core::Error(code, fmt::format(format, std::forward<Args>(args)...));
}

// "No space left on device (ENOSPC, 28)". Thread-safe.
std::string errno_text(int error);

// The nearest status for an errno value; kInternal where nothing fits better. Never kOk.
Status status_from_errno(int error) noexcept;

// Throws Error{status_from_errno(error), "<what>: <errno_text>"}; take errno before building arguments.
template <class... Args>
[[noreturn]] void fail_errno(int error, fmt::format_string<Args...> format, Args&&... args) {
  throw core::Error(status_from_errno(error),
                    fmt::format(format, std::forward<Args>(args)...) + ": " + errno_text(error));
}

}  // namespace towline
