// Every setting of Towline and of the plugins that come with it: the one place for its name, type, default, bounds and
// meaning. Documentation, `towline config` and the check for misspelt names come from here. A plugin of others
// keeps to the prefix of its name.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace towline {

enum class SettingType { kText, kList, kBool, kNumber, kBytes, kDuration, kChoice, kSecret };

inline constexpr std::string_view kTuning = "tuning.";

struct Setting {
  const char* name;  // "tcp.port_range"; one that ends with ".NAME" stands for any such name
  SettingType type;
  const char* fallback;  // "": none, the meaning says what then
  const char* bounds;    // for people; of a choice, the choices; "": those of the type
  const char* meaning;   // one line

  // Its name stays. The others begin with "tuning." and may change or go in any version.
  [[nodiscard]] bool promised() const noexcept { return !std::string_view(name).starts_with(kTuning); }
};

std::span<const Setting> all_settings() noexcept;
const Setting* find_setting(std::string_view name) noexcept;  // null: unknown
// The name of a backend's setting: "tuning.tcp.sockets" for "tcp.sockets", "tcp.listen" for itself. Names that no setting
// has are given back, so that plugins of others can ask for theirs.
std::string setting_name(std::string_view key);
// Some setting begins with "backend." or "tuning.backend.".
bool has_settings(std::string_view backend) noexcept;
const char* setting_type_name(SettingType type) noexcept;
// The setting whose name is most like this one, or is this one behind "tuning."; "": none is.
std::string_view nearest_setting(std::string_view name);

}  // namespace towline
