#include "transports/cuda/settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string>

#include "base/config/config.h"
#include "base/error.h"
#include "base/os/topology.h"
#include "gpu/reserve_wish.h"

namespace towline::cuda {

namespace {

[[noreturn]] void refuse(const char* key, const std::string& value, const char* wanted) {
  throw plugin::Failure(Status::kInvalidArgument,
                        fmt::format("{} = \"{}\": expected {}", key, value, wanted));
}

int32_t read_number(const plugin::Host& host, const char* key, const char* fallback, int32_t least,
                    int32_t most, const char* wanted) {
  const std::string value = host.config(key, fallback);
  int32_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc{} || end != value.data() + value.size() || number < least || number > most)
    refuse(key, value, wanted);
  return number;
}

bool read_bool(const plugin::Host& host, const char* key, const char* fallback) {
  const std::string value = host.config(key, fallback);
  if (value != "true" && value != "false") refuse(key, value, "true or false");
  return value == "true";
}

DetourUse read_detour(const plugin::Host& host) {
  const std::string value = host.config("tuning.cuda.through_host", "auto");
  if (value == "auto") return DetourUse::kAuto;
  if (value == "always") return DetourUse::kAlways;
  if (value == "never") return DetourUse::kNever;
  refuse("tuning.cuda.through_host", value, "auto, always or never");
}

PinUse read_pin(const plugin::Host& host) {
  const std::string value = host.config("tuning.cuda.pin", "auto");
  if (value == "auto") return PinUse::kAuto;
  if (value == "first") return PinUse::kFirst;
  if (value == "never") return PinUse::kNever;
  refuse("tuning.cuda.pin", value, "auto, first or never");
}

Beside read_beside(const plugin::Host& host) {
  const std::string value = host.config("tuning.cuda.beside", "copy");
  if (value == "auto") return Beside::kAuto;
  if (value == "model") return Beside::kModel;
  if (value == "copy") return Beside::kCopy;
  refuse("tuning.cuda.beside", value, "auto, model or copy");
}

ReserveWish read_reserve(const plugin::Host& host) try {
  return read_reserve_wish(
      {"tuning.cuda.reserved_sms", "tuning.cuda.application_sms", "tuning.cuda.green_context"},
      [&](const char* key) { return host.config(key, ""); });
} catch (const core::Error& error) {
  throw plugin::Failure(error.code(), error.message());
}

uint64_t read_bytes(const plugin::Host& host, const char* key, const char* fallback) {
  const std::string text = host.config(key, fallback);
  const std::optional<uint64_t> bytes = parse_bytes(text);
  if (!bytes) refuse(key, text, "a size such as 16MiB");
  return *bytes;
}

uint32_t read_host_threads(const plugin::Host& host) {
  if (host.config("tuning.cuda.host_threads", "auto") != "auto")
    return static_cast<uint32_t>(read_number(host, "tuning.cuda.host_threads", "", 0, 256,
                                             "a number of threads from 0 to 256, or auto"));
  const auto processors = static_cast<uint32_t>(read_host_topology().allowed_cpus.size());
  return std::clamp(processors / 2, 1u, 8u);
}

}  // namespace

const char* beside_name(Beside beside) noexcept {
  switch (beside) {
    case Beside::kAuto:
      return "auto";
    case Beside::kModel:
      return "model";
    case Beside::kCopy:
      break;
  }
  return "copy";
}

Settings Settings::read(const plugin::Host& host) {
  Settings settings;
  constexpr int32_t kMostBlocks = 1024;
  settings.blocks = static_cast<uint32_t>(read_number(host, "tuning.cuda.blocks", "24", 1, kMostBlocks,
                                                      "a number of thread blocks from 1 to 1024"));
  settings.read_blocks = static_cast<uint32_t>(read_number(
      host, "tuning.cuda.read_blocks", "12", 1, kMostBlocks, "a number of thread blocks from 1 to 1024"));
  settings.host_blocks = static_cast<uint32_t>(read_number(
      host, "tuning.cuda.host_blocks", "8", 1, kMostBlocks, "a number of thread blocks from 1 to 1024"));
  settings.gpu = read_number(host, "cuda.gpu", "-1", -1, 1023, "the ordinal of a GPU, or -1");
  settings.copy_engine_bytes = read_bytes(host, "tuning.cuda.copy_engine_bytes", "16MiB");
  settings.landing_bytes = read_bytes(host, "tuning.cuda.landing_bytes", "1GiB");
  settings.direct = read_bool(host, "tuning.cuda.direct", "true");
  settings.after_default_stream = read_bool(host, "cuda.after_default_stream", "false");
  settings.detour = read_detour(host);
  settings.pin = read_pin(host);
  settings.host_threads = read_host_threads(host);
  settings.beside = read_beside(host);
  settings.reserve = read_reserve(host);
  return settings;
}

}  // namespace towline::cuda
