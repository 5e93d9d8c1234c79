// Source-compatible with NIXL's header of this name, without Abseil: NIXL_INFO << "text" << value; and the
// like. Lines go where those of nixlAgent go, and below the level of NIXL_LOG_LEVEL they are dropped.
#pragma once

#include <cerrno>
#include <sstream>
#include <string>
#include <system_error>

#include <nixl_types.h>

// The text of an errno. Any thread.
[[nodiscard]] inline std::string nixl_strerror(int error) {
  return std::error_code(error, std::generic_category()).message();
}

namespace towline::nixl {

enum class LineLevel : int { kTrace, kDebug, kInfo, kWarning, kError, kFatal };

[[nodiscard]] TOWLINE_NIXL_API bool wants_line(LineLevel level) noexcept;
TOWLINE_NIXL_API void write_line(LineLevel level, const std::string& text) noexcept;  // kFatal: then aborts

// One line, written when it ends. With the text of errno at its end if asked for.
class Line {
 public:
  explicit Line(LineLevel level, bool with_errno = false)
      : level_(level), error_(with_errno ? errno : 0), with_errno_(with_errno) {}
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;
  ~Line() {
    if (with_errno_) text_ << ": " << nixl_strerror(error_) << " [" << error_ << "]";
    write_line(level_, text_.str());
  }

  template <class Value>
  Line& operator<<(const Value& value) {
    text_ << value;
    return *this;
  }
  Line& operator<<(std::ostream& (*manipulator)(std::ostream&)) {
    text_ << manipulator;
    return *this;
  }

 private:
  const LineLevel level_;
  const int error_;
  const bool with_errno_;
  std::ostringstream text_;
};

}  // namespace towline::nixl

// A statement that continues with << and works after an `if` without braces.
#define TOWLINE_NIXL_LINE(level, ...)                                      \
  switch (0)                                                               \
  default:                                                                 \
    if (!::towline::nixl::wants_line(::towline::nixl::LineLevel::level)) { \
    } else                                                                 \
      ::towline::nixl::Line(::towline::nixl::LineLevel::level __VA_OPT__(, ) __VA_ARGS__)

#define NIXL_TRACE TOWLINE_NIXL_LINE(kTrace)
#define NIXL_PTRACE TOWLINE_NIXL_LINE(kTrace, true)
#define NIXL_DEBUG TOWLINE_NIXL_LINE(kDebug)
#define NIXL_PDEBUG TOWLINE_NIXL_LINE(kDebug, true)
#define NIXL_INFO TOWLINE_NIXL_LINE(kInfo)
#define NIXL_PINFO TOWLINE_NIXL_LINE(kInfo, true)
#define NIXL_WARN TOWLINE_NIXL_LINE(kWarning)
#define NIXL_PWARN TOWLINE_NIXL_LINE(kWarning, true)
#define NIXL_ERROR TOWLINE_NIXL_LINE(kError)
#define NIXL_PERROR TOWLINE_NIXL_LINE(kError, true)
#define NIXL_ERROR_FUNC NIXL_ERROR << __func__ << ": "
#define NIXL_FATAL TOWLINE_NIXL_LINE(kFatal)
#define NIXL_PFATAL TOWLINE_NIXL_LINE(kFatal, true)

// Ends the process if the condition is false, with the streamed text as message; NIXL_ASSERT in debug builds
// only.
#define NIXL_ASSERT_ALWAYS(condition) \
  switch (0)                          \
  default:                            \
    if (condition) {                  \
    } else                            \
      ::towline::nixl::Line(::towline::nixl::LineLevel::kFatal) << "Check failed: " #condition " "
#ifdef NDEBUG
#define NIXL_ASSERT(condition) \
  while (false) NIXL_ASSERT_ALWAYS(condition)
#else
#define NIXL_ASSERT(condition) NIXL_ASSERT_ALWAYS(condition)
#endif
