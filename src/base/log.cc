#include "base/log.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <iterator>
#include <mutex>
#include <new>

#include "base/clock.h"

namespace towline {
namespace {

constexpr std::size_t kMaxMessageBytes = 4096;

constexpr std::array<const char*, 6> kLevelNames = {"off", "error", "warning", "info", "debug", "trace"};

struct Sink {
  // A child may fork while another thread logs, which the child does not have.
  Sink() noexcept { (void)::pthread_atfork(nullptr, nullptr, free_in_child); }
  static void free_in_child() noexcept;

  std::mutex mutex;
  LogSink function = nullptr;
  void* context = nullptr;
};

// Never destroyed, so that messages work until the very end of the process; and needs no memory, so that they work when
// it has run out.
alignas(Sink) unsigned char sink_storage[sizeof(Sink)];

Sink& current_sink() noexcept {
  static Sink& sink = *new (sink_storage) Sink;
  return sink;
}

void Sink::free_in_child() noexcept { new (&reinterpret_cast<Sink*>(sink_storage)->mutex) std::mutex; }

thread_local bool inside_sink = false;

void write_to_standard_error(LogLevel level, std::string_view message) {
  const uint64_t now_ns = monotonic_now_ns();
  fmt::memory_buffer line;
  fmt::format_to(std::back_inserter(line), "towline {}.{:06} [{}/{}] {}: {}\n", now_ns / kSecondNs,
                 now_ns % kSecondNs / kMicrosecondNs, getpid(), syscall(SYS_gettid), log_level_name(level),
                 message);
  // One call, so that lines of several processes do not mix. Nowhere to report a failure to.
  [[maybe_unused]] const ssize_t wrote = write(STDERR_FILENO, line.data(), line.size());
}

// The length of the UTF-8 character at the beginning of `text`, which is not empty; 0: not valid in a line of
// text.
std::size_t printable_bytes(std::string_view text) noexcept {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  if (byte(0) < 0x80) return byte(0) >= 0x20 && byte(0) != 0x7f ? 1 : 0;
  const std::size_t bytes = byte(0) >= 0xf0 ? 4 : byte(0) >= 0xe0 ? 3 : 2;
  if (byte(0) < 0xc2 || byte(0) > 0xf4 || text.size() < bytes) return 0;
  for (std::size_t i = 1; i < bytes; ++i)
    if ((byte(i) & 0xc0) != 0x80) return 0;
  const bool control = byte(0) == 0xc2 && byte(1) < 0xa0;
  return control ? 0 : bytes;
}

// One line of at most kMaxMessageBytes: texts of peers are in it, and terminals obey what they print.
void append_filtered(fmt::memory_buffer& line, std::string_view text) {
  while (!text.empty()) {
    if (line.size() >= kMaxMessageBytes) {
      fmt::format_to(std::back_inserter(line), "... ({} more bytes)", text.size());
      return;
    }
    const std::size_t bytes = printable_bytes(text);
    if (text.front() == '\n' || text.front() == '\t') {
      line.push_back(' ');
    } else if (bytes != 0) {
      line.append(text.data(), text.data() + bytes);
    } else {
      fmt::format_to(std::back_inserter(line), "\\x{:02x}", static_cast<unsigned char>(text.front()));
    }
    text.remove_prefix(std::max<std::size_t>(bytes, 1));
  }
}

void deliver(LogLevel level, std::string_view message) noexcept {
  if (inside_sink) return;
  inside_sink = true;
  try {
    Sink& sink = current_sink();
    const std::lock_guard lock(sink.mutex);
    if (sink.function != nullptr) {
      sink.function(sink.context, level, message);
    } else {
      write_to_standard_error(level, message);
    }
  } catch (...) {  // out of memory, or a sink that throws although it must not: the message is lost
  }
  inside_sink = false;
}

}  // namespace

namespace detail {

std::atomic<int> current_log_level{static_cast<int>(LogLevel::kWarning)};

void write_log(LogLevel level, fmt::string_view format, fmt::format_args args) noexcept {
  try {
    fmt::memory_buffer message;
    fmt::vformat_to(std::back_inserter(message), format, args);
    fmt::memory_buffer line;
    append_filtered(line, {message.data(), message.size()});
    deliver(level, {line.data(), line.size()});
  } catch (const std::exception& error) {
    deliver(level, "a message could not be formatted");
    deliver(level, error.what());
  }
}

bool LogRateLimit::pass(uint64_t now_ns, uint64_t& suppressed) noexcept {
  uint64_t next_ns = next_ns_.load(std::memory_order_relaxed);
  if (now_ns < next_ns ||
      !next_ns_.compare_exchange_strong(next_ns, now_ns + interval_ns_, std::memory_order_relaxed)) {
    held_back_.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  suppressed = held_back_.exchange(0, std::memory_order_relaxed);
  return true;
}

uint64_t log_now_ns() noexcept { return monotonic_now_ns(); }

}  // namespace detail

const char* log_level_name(LogLevel level) noexcept {
  const auto index = static_cast<std::size_t>(level);
  return index < kLevelNames.size() ? kLevelNames[index] : "unknown";
}

std::optional<LogLevel> log_level_from_name(std::string_view name) noexcept {
  for (std::size_t i = 0; i < kLevelNames.size(); ++i) {
    if (name == kLevelNames[i]) return static_cast<LogLevel>(i);
  }
  return std::nullopt;
}

void set_log_sink(LogSink sink, void* context) noexcept {
  Sink& current = current_sink();
  const std::lock_guard lock(current.mutex);
  current.function = sink;
  current.context = context;
}

void set_log_level(LogLevel level) noexcept {
  detail::current_log_level.store(static_cast<int>(level), std::memory_order_relaxed);
}

LogLevel log_level() noexcept {
  return static_cast<LogLevel>(detail::current_log_level.load(std::memory_order_relaxed));
}

}  // namespace towline
