#include "storing/calls/pool_settings.h"

#include <fmt/format.h>

#include <charconv>
#include <string>

#include "base/config/config.h"

namespace towline::calls {

namespace {

constexpr uint32_t kMostThreads = 64;
constexpr uint64_t kLeastPiece = 4096;
constexpr uint64_t kLargestPiece = uint64_t{1} << 30;

[[noreturn]] void refuse_setting(const std::string& key, const std::string& value,
                                 const std::string& wanted) {
  throw plugin::Failure(Status::kInvalidArgument,
                        fmt::format("{} = \"{}\": expected {}", key, value, wanted));
}

uint32_t read_number(const plugin::Host& host, const std::string& key, const char* fallback, uint32_t most) {
  const std::string value = host.config(key.c_str(), fallback);
  uint32_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc{} || end != value.data() + value.size() || number == 0 || number > most)
    refuse_setting(key, value, fmt::format("a number from 1 to {}", most));
  return number;
}

}  // namespace

PoolSettings read_pool_settings(const plugin::Host& host, const char* backend, uint32_t most_batch,
                                const char* batch, const char* piece) {
  const std::string prefix = "tuning." + std::string(backend) + ".";
  PoolSettings settings;
  settings.threads = read_number(host, prefix + "threads", "4", kMostThreads);
  settings.batch = read_number(host, prefix + "batch", batch, most_batch);
  const std::string bytes = host.config((prefix + "piece").c_str(), piece);
  const auto parsed = parse_bytes(bytes);
  if (!parsed || *parsed < kLeastPiece || *parsed > kLargestPiece)
    refuse_setting(prefix + "piece", bytes, "a size from 4KiB to 1GiB, such as 1MiB");
  settings.piece_bytes = *parsed;
  return settings;
}

}  // namespace towline::calls
