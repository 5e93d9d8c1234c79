// C API: what settings there are, what is in force, and from where.
#include <nlohmann/json.hpp>

#include "base/config/config_file.h"
#include "base/config/settings_table.h"
#include "capi/handles.h"
#include "towline/observe.h"

namespace towline::capi {
namespace {

using json = nlohmann::ordered_json;

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
