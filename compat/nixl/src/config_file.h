// NIXL's configuration file: TOML whose keys are the names of NIXL's variables, `NIXL_TELEMETRY_ENABLE =
// true`.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace towline::nixl {

class ConfigFile {
 public:
  ConfigFile() = default;

  // Throws std::runtime_error that names the file when it can't be read or is not TOML.
  static ConfigFile read(const std::string& file);

  // Text, or a number or truth value as text. Throws std::runtime_error that names file and key for a value
  // of another type.
  [[nodiscard]] std::optional<std::string> find(std::string_view key) const;
  [[nodiscard]] const std::string& name() const noexcept { return name_; }

 private:
  std::string name_;
  std::map<std::string, std::optional<std::string>, std::less<>> values_;  // nothing: of another type
};

}  // namespace towline::nixl
