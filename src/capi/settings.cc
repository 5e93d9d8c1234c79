// C API: what settings there are, what is in force, and from where.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "base/config/config_file.h"
#include "base/config/settings_table.h"
#include "base/error.h"
#include "capi/handles.h"
#include "towline/observe.h"

namespace towline::capi {
namespace {

using json = nlohmann::ordered_json;

// The bounds of a number, where they are "1 to 64"; else any.
std::pair<uint64_t, uint64_t> range_of(std::string_view bounds) noexcept {
  constexpr std::string_view kTo = " to ";
  const size_t at = bounds.find(kTo);
  if (at == std::string_view::npos) return {0, UINT64_MAX};
  const auto low = parse_bytes(bounds.substr(0, at));
  const auto high = parse_bytes(bounds.substr(at + kTo.size()));
  return low && high ? std::pair(*low, *high) : std::pair(uint64_t{0}, UINT64_MAX);
}

// Throws Error, as what reads the setting would.
void check(const Config& config, const Setting& setting, const std::string& value) {
  const std::string_view bounds = setting.bounds;
  switch (setting.type) {
    case SettingType::kBool:
      (void)config.get_bool(setting.name, false);
      break;
    case SettingType::kNumber: {
      const auto [low, high] = range_of(bounds);
      (void)config.get_u64(setting.name, 0, low, high);
      break;
    }
    case SettingType::kBytes:
      (void)config.get_bytes(setting.name, 0);
      break;
    case SettingType::kDuration:
      (void)config.get_duration_ns(setting.name, 0);
      break;
    case SettingType::kChoice: {
      // Some say in words what they take.
      if (bounds.find(';') != std::string_view::npos) break;
      const std::string listed = fmt::format(", {},", bounds);
      if (listed.find(fmt::format(", {},", trimmed(value))) == std::string::npos)
        fail(Status::kInvalidArgument, "{}: {} = \"{}\" is not one of {}", config.source(setting.name),
             setting.name, value, bounds);
      break;
    }
    default:
      break;
  }
}

// Why the value is refused where it is read; "": it is not, as far as that is known here.
std::string refusal(const Config& config, const Setting& setting, const std::string& value) {
  if (value == setting.fallback) return {};  // some have words and numbers of their own
  try {
    check(config, setting, value);
    return {};
  } catch (const Error& error) {
    return error.message();
  }
}

std::string describe_settings(const char* text) {
  Config config = Config::from_process();
  if (text != nullptr)
    for (const auto& [key, value] : parse_config_file(text, "config")) config.set(key, value.text);
  config.declare_all_settings();
  json settings = json::array();
  for (const Setting& setting : all_settings()) {
    const std::optional<std::string> set = config.find(setting.name);
    const bool told = !set || setting.type != SettingType::kSecret;
    settings.push_back({{"name", setting.name},
                        {"type", setting_type_name(setting.type)},
                        {"default", setting.fallback},
                        {"bounds", setting.bounds},
                        {"meaning", setting.meaning},
                        {"promised", setting.promised()},
                        {"value", told ? json(set.value_or(setting.fallback)) : json("(set)")},
                        {"source", config.source(setting.name)}});
    if (!set) continue;
    if (const std::string wrong = refusal(config, setting, *set); !wrong.empty())
      settings.back()["wrong"] = wrong;
  }
  json unknown = json::array();
  for (const std::string& name : config.unknown_keys())
    unknown.push_back({{"name", name}, {"nearest", nearest_setting(name)}});
  return json({{"schema", TOWLINE_JSON_SCHEMA}, {"settings", settings}, {"unknown", unknown}})
      .dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace
}  // namespace towline::capi

using namespace towline;  // NOLINT: C entry points

extern "C" int32_t towline_settings(const char* config, char* json, size_t capacity, size_t* needed) {
  return capi::guard(__func__, [&] {
    const std::string text = capi::describe_settings(config);
    return capi::give(text.data(), text.size(), true, json, capacity, needed);
  });
}
