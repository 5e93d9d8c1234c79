#include "framing/fault_options.h"

#include <fmt/format.h>

#include <array>
#include <charconv>

#include "base/error.h"

namespace towline::framing {
namespace {

[[noreturn]] void refuse(std::string_view item, const char* expected) {
  fail(Status::kInvalidArgument, "fault option \"{}\": expected {}", item, expected);
}

template <class Number>
Number number(std::string_view text, std::string_view item, const char* expected) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) refuse(item, expected);
  return value;
}

double probability(std::string_view text, std::string_view item) {
  const auto value = number<double>(text, item, "a probability from 0 to 1");
  if (!(value >= 0 && value <= 1)) refuse(item, "a probability from 0 to 1");
  return value;
}

uint64_t duration_ns(std::string_view text, std::string_view item) {
  struct Unit {
    std::string_view name;
    uint64_t ns;
  };
  static constexpr std::array<Unit, 4> kUnits = {
      {{"ns", 1}, {"us", 1'000}, {"ms", 1'000'000}, {"s", 1'000'000'000}}};
  constexpr const char* kExpected = "a time such as 500us, 2ms or 1s";
  for (const Unit& unit : kUnits) {
    if (!text.ends_with(unit.name)) continue;
    const auto count = number<uint64_t>(text.substr(0, text.size() - unit.name.size()), item, kExpected);
    if (count > UINT64_MAX / unit.ns) refuse(item, kExpected);
    return count * unit.ns;
  }
  refuse(item, kExpected);
}

void parse_item(std::string_view item, FaultOptions& options) {
  const std::size_t equals = item.find('=');
  if (equals == std::string_view::npos) refuse(item, "key=value");
  const std::string_view key = item.substr(0, equals);
  const std::string_view value = item.substr(equals + 1);
  if (key == "seed") {
    options.seed = number<uint64_t>(value, item, "a number");
  } else if (key == "short") {
    options.shorten = probability(value, item);
  } else if (key == "cut") {
    options.cut = probability(value, item);
  } else if (key == "reorder") {
    options.reorder = probability(value, item);
  } else if (key == "cut_after") {
    options.cut_after_bytes = number<uint64_t>(value, item, "a number of bytes");
  } else if (key == "delay") {
    const std::size_t colon = value.find(':');
    if (colon == std::string_view::npos) refuse(item, "delay=PROBABILITY:TIME");
    options.delay = probability(value.substr(0, colon), item);
    options.delay_ns = duration_ns(value.substr(colon + 1), item);
  } else {
    refuse(item, "seed, short, delay, cut, cut_after or reorder");
  }
}

}  // namespace

FaultOptions parse_fault_options(std::string_view text) {
  FaultOptions options;
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    parse_item(text.substr(0, comma), options);
    text = comma == std::string_view::npos ? std::string_view{} : text.substr(comma + 1);
  }
  return options;
}

std::string to_text(const FaultOptions& options) {
  std::string text = fmt::format("seed={}", options.seed);
  if (options.shorten > 0) text += fmt::format(",short={}", options.shorten);
  if (options.delay > 0) text += fmt::format(",delay={}:{}ns", options.delay, options.delay_ns);
  if (options.cut > 0) text += fmt::format(",cut={}", options.cut);
  if (options.cut_after_bytes != 0) text += fmt::format(",cut_after={}", options.cut_after_bytes);
  if (options.reorder > 0) text += fmt::format(",reorder={}", options.reorder);
  return text;
}

}  // namespace towline::framing
