// Messages for people. Control path only: a data path never logs.
//
// One sink and one level per copy of this library. A plugin that is linked with its own copy points its sink
// at the host's (plugin ABI, host services), so that each process has one stream of messages.
#pragma once

#include <fmt/format.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <string_view>

namespace towline {

enum class LogLevel : int {
  kOff = 0,
  kError = 1,    // a requested action failed
  kWarning = 2,  // it continued, but needs attention
  kInfo = 3,     // rare events of interest: started, connected, lost
  kDebug = 4,
  kTrace = 5,
};

const char* log_level_name(LogLevel level) noexcept;  // "error"
std::optional<LogLevel> log_level_from_name(std::string_view name) noexcept;

// Called with one message (no newline) at a time, on the thread that logs; must not throw. Messages that it
// logs itself are dropped.
using LogSink = void (*)(void* context, LogLevel level, std::string_view message);

// Null restores the default, which writes "towline 12.345678 [pid/thread] warning: message" to standard
// error. When it returns the old sink is no longer in use. Not from within a sink.
void set_log_sink(LogSink sink, void* context) noexcept;

void set_log_level(LogLevel level) noexcept;  // kWarning at the start; config's log.level says otherwise
LogLevel log_level() noexcept;

namespace detail {

extern std::atomic<int> current_log_level;

// Never throws: a message that can't be formatted is replaced by a note.
void write_log(LogLevel level, fmt::string_view format, fmt::format_args args) noexcept;

template <class... Args>
void write_log_checked(LogLevel level, fmt::format_string<Args...> format, Args&&... args) noexcept {
  write_log(level, format, fmt::make_format_args(args...));
}

// Lets one caller per interval through; `suppressed` is how many it held back before this one.
class LogRateLimit {
 public:
  explicit constexpr LogRateLimit(uint64_t interval_ns) noexcept : interval_ns_(interval_ns) {}
  bool pass(uint64_t now_ns, uint64_t& suppressed) noexcept;

 private:
  const uint64_t interval_ns_;
  std::atomic<uint64_t> next_ns_{0};
  std::atomic<uint64_t> held_back_{0};
};

uint64_t log_now_ns() noexcept;

}  // namespace detail

inline bool log_enabled(LogLevel level) noexcept {
  return static_cast<int>(level) <= detail::current_log_level.load(std::memory_order_relaxed);
}

}  // namespace towline

// TOWLINE_LOG(kInfo, "peer {} connected over {}", name, backend): arguments are evaluated only if the level
// is on.
#define TOWLINE_LOG(level, ...)                                                      \
  do {                                                                               \
    if (::towline::log_enabled(::towline::LogLevel::level)) {                        \
      ::towline::detail::write_log_checked(::towline::LogLevel::level, __VA_ARGS__); \
    }                                                                                \
  } while (false)

// At most one message per interval_ns (a constant) from this place; the next one says how many were left out.
#define TOWLINE_LOG_EVERY(level, interval_ns, format, ...)                                                   \
  do {                                                                                                       \
    if (::towline::log_enabled(::towline::LogLevel::level)) {                                                \
      static ::towline::detail::LogRateLimit towline_log_limit(interval_ns);                                 \
      uint64_t towline_log_suppressed = 0;                                                                   \
      if (!towline_log_limit.pass(::towline::detail::log_now_ns(), towline_log_suppressed)) {                \
      } else if (towline_log_suppressed == 0) {                                                              \
        ::towline::detail::write_log_checked(::towline::LogLevel::level, format __VA_OPT__(, ) __VA_ARGS__); \
      } else {                                                                                               \
        ::towline::detail::write_log_checked(                                                                \
            ::towline::LogLevel::level, format " ({} more like this left out)" __VA_OPT__(, ) __VA_ARGS__,   \
            towline_log_suppressed);                                                                         \
      }                                                                                                      \
    }                                                                                                        \
  } while (false)
