#include "storage/posix/settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <thread>

#include "base/config/config.h"

namespace towline::posix {

namespace {

constexpr Engine kEngines[] = {Engine::kAuto, Engine::kUring, Engine::kAio, Engine::kThreads, Engine::kPread};

[[noreturn]] void refuse(const char* key, const std::string& value, const char* wanted) {
  throw plugin::Failure(Status::kInvalidArgument,
                        fmt::format("{} = \"{}\": expected {}", key, value, wanted));
}

uint64_t read_bytes(const plugin::Host& host, const char* key, const char* fallback) {
  const std::string value = host.config(key, fallback);
  const std::optional<uint64_t> bytes = parse_bytes(value);
  if (!bytes) refuse(key, value, "a size such as 256KiB");
  return *bytes;
}

uint64_t read_duration(const plugin::Host& host, const char* key, const char* fallback) {
  const std::string value = host.config(key, fallback);
  const std::optional<uint64_t> duration = parse_duration_ns(value);
  if (!duration) refuse(key, value, "a time such as 50us");
  return *duration;
}

bool read_bool(const plugin::Host& host, const char* key) {
  const std::string value = host.config(key, "false");
  if (value == "true" || value == "yes" || value == "on" || value == "1") return true;
  if (value == "false" || value == "no" || value == "off" || value == "0") return false;
  refuse(key, value, "true or false");
}

uint32_t read_count(const plugin::Host& host, const char* key, uint32_t fallback, uint32_t low, uint32_t high,
                    const char* wanted) {
  const std::string value = host.config(key, std::to_string(fallback).c_str());
  uint32_t count = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), count);
  if (error != std::errc{} || end != value.data() + value.size() || count < low || count > high)
    refuse(key, value, wanted);
  return count;
}

Engine read_engine(const plugin::Host& host) {
  const std::string value = host.config("tuning.posix.engine", "auto");
  for (const Engine engine : kEngines) {
    if (value == engine_name(engine)) return engine;
  }
  refuse("tuning.posix.engine", value, "auto, uring, aio, threads or pread");
}

}  // namespace

const char* engine_name(Engine engine) noexcept {
  switch (engine) {
    case Engine::kAuto:
      return "auto";
    case Engine::kUring:
      return "uring";
    case Engine::kAio:
      return "aio";
    case Engine::kThreads:
      return "threads";
    case Engine::kPread:
      return "pread";
  }
  return "unknown";
}

Settings Settings::read(const plugin::Host& host) {
  Settings settings;
  settings.engine = read_engine(host);
  settings.threads = read_count(host, "tuning.posix.threads", 4, 1, 64, "a number from 1 to 64");
  // The worker itself needs a processor.
  settings.spare_processors = std::max(std::thread::hardware_concurrency(), 1u) - 1;
  settings.handed =
      read_count(host, "tuning.posix.handed", std::min(settings.threads, settings.spare_processors), 0, 64,
                 "a number from 0 to 64");
  settings.queue_depth =
      read_count(host, "tuning.posix.queue_depth", 256, 1, 4096, "a number from 1 to 4096");
  settings.inline_bytes = read_bytes(host, "tuning.posix.inline_bytes", "256KiB");
  settings.parallel_bytes = read_bytes(host, "tuning.posix.parallel_bytes", "1MiB");
  settings.spin_ns = read_duration(host, "tuning.posix.spin", "50us");
  settings.register_files = read_bool(host, "tuning.posix.register_files");
  settings.register_buffers = read_bool(host, "tuning.posix.register_buffers");
  settings.sqpoll = read_bool(host, "tuning.posix.sqpoll");
  return settings;
}

}  // namespace towline::posix
