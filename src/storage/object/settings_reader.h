// Reads the settings of one instance, whose keys begin alike.
#pragma once

#include <fmt/format.h>

#include <charconv>
#include <string>

#include "base/config/config.h"
#include "base/config/settings_table.h"
#include "base/os/unique_fd.h"
#include "storage/object/settings.h"

namespace towline::object {

struct Named {
  const char* name;
  int value;
};

// Reads one setting after another; refuses with key, value and what is wanted.
class SettingsReader {
 public:
  // `prefix`: what every key begins with, "object.".
  SettingsReader(const plugin::Host& host, const Environment& environment, std::string prefix)
      : host_(host), environment_(environment), prefix_(std::move(prefix)) {}

  [[nodiscard]] std::string name(const char* key) const { return setting_name(prefix_ + key); }
  [[nodiscard]] std::string text(const char* key, const char* fallback = "") const {
    return host_.config(name(key).c_str(), fallback);
  }
  // The setting, else the first of the variables that is set.
  [[nodiscard]] std::string text_or(const char* key, std::initializer_list<const char*> variables) const {
    std::string value = text(key);
    for (const char* name : variables) {
      if (value.empty()) value = environment_(name).value_or("");
    }
    return value;
  }
  [[nodiscard]] std::string variable(const char* name) const { return environment_(name).value_or(""); }
  [[nodiscard]] uint64_t bytes(const char* key, const char* fallback, uint64_t low, uint64_t high) const {
    const std::string value = text(key, fallback);
    const auto parsed = parse_bytes(value);
    if (!parsed || *parsed < low || *parsed > high)
      refuse(key, value, fmt::format("a size from {} to {} bytes, such as {}", low, high, fallback));
    return *parsed;
  }
  [[nodiscard]] uint64_t duration(const char* key, const char* fallback, uint64_t low_ns = 1,
                                  uint64_t high_ns = UINT64_MAX) const {
    const std::string value = text(key, fallback);
    const auto parsed = parse_duration_ns(value);
    if (!parsed || *parsed < low_ns)
      refuse(key, value, fmt::format("a time of at least {} ns, such as {}", low_ns, fallback));
    if (*parsed > high_ns)
      refuse(key, value, fmt::format("a time of at most {} ns, such as {}", high_ns, fallback));
    return *parsed;
  }
  [[nodiscard]] uint32_t count(const char* key, const char* fallback, uint32_t low, uint32_t high) const {
    const std::string value = text(key, fallback);
    uint32_t number = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (error != std::errc{} || end != value.data() + value.size() || number < low || number > high)
      refuse(key, value, fmt::format("a number from {} to {}", low, high));
    return number;
  }
  template <class Choice>
  [[nodiscard]] Choice choice(const char* key, std::initializer_list<Named> choices) const {
    const std::string value = text(key, choices.begin()->name);
    std::string names;
    for (const Named& named : choices) {
      if (value == named.name) return static_cast<Choice>(named.value);
      names += (names.empty() ? "" : ", ") + std::string(named.name);
    }
    refuse(key, value, "one of " + names);
  }

 private:
  [[noreturn]] void refuse(const char* key, const std::string& value, const std::string& wanted) const {
    throw plugin::Failure(Status::kInvalidArgument,
                          fmt::format("{} = \"{}\": expected {}", name(key), shown(value), wanted));
  }

  const plugin::Host& host_;
  const Environment& environment_;
  const std::string prefix_;
};

// A secret is best in a file of its own: the setting `key`, or the contents of the file that `file_key` names.
inline std::string read_secret(const SettingsReader& reader, const char* key, const char* file_key) {
  const std::string direct = reader.text(key);
  const std::string file = reader.text(file_key);
  if (file.empty()) return direct;
  const auto contents = read_text_file(file, 4096);
  if (!contents || !direct.empty())
    throw plugin::Failure(
        Status::kInvalidArgument,
        contents ? fmt::format("{} and {} are both set; keep one", reader.name(key), reader.name(file_key))
                 : fmt::format("{}: \"{}\" can't be read", reader.name(file_key), file));
  return contents->substr(0, contents->find_last_not_of(" \t\r\n") + 1);
}

// Throws plugin::Failure naming key and value.
Settings read_s3_settings(const SettingsReader& reader, const Environment& environment);
Settings read_azure_settings(const SettingsReader& reader);
Settings read_gcs_settings(const SettingsReader& reader);

}  // namespace towline::object
