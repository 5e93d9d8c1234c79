// Assertions for bugs. A failed check is never an expected condition: it prints where and why, then aborts.
#pragma once

#include <fmt/format.h>

#include <string>

namespace towline::detail {

// Prints "file:line: check failed: condition: message" to standard error and aborts.
[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const std::string& message) noexcept;

inline std::string check_message() { return {}; }

template <class... Args>
std::string check_message(fmt::format_string<Args...> format, Args&&... args) {
  return fmt::format(format, std::forward<Args>(args)...);
}

}  // namespace towline::detail

// Always on. The message and its arguments are evaluated only on failure.
#define TOWLINE_CHECK(condition, ...)                                                 \
  do {                                                                                \
    if (!(condition)) [[unlikely]] {                                                  \
      ::towline::detail::check_failed(__FILE__, __LINE__, #condition,                 \
                                      ::towline::detail::check_message(__VA_ARGS__)); \
    }                                                                                 \
  } while (false)

// For hot paths: on only without NDEBUG. The condition still has to compile.
#ifdef NDEBUG
#define TOWLINE_DCHECK(condition, ...)                \
  do {                                                \
    if (false) TOWLINE_CHECK(condition, __VA_ARGS__); \
  } while (false)
#else
#define TOWLINE_DCHECK(condition, ...) TOWLINE_CHECK(condition, __VA_ARGS__)
#endif
