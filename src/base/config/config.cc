#include "base/config/config.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <mutex>
#include <set>

#include "base/config/config_file.h"
#include "base/config/settings_table.h"
#include "base/error.h"
#include "base/log.h"
#include "base/os/unique_fd.h"

namespace towline {
namespace {

constexpr std::size_t kMostFileBytes = 4 << 20;
constexpr const char* kPrefix = "TOWLINE_";
// Variables that are not settings: of this class itself, of the launcher, of the NIXL drop-in, and those
// that Kubernetes sets in every container for a service named "towline".
constexpr std::string_view kOtherVariables[] = {"config", "rank",   "size",     "nixl.*",
                                                "port",   "port.*", "service.*"};

struct Found {
  std::string text;
  std::string source;
};

[[noreturn]] void fail_value(std::string_view key, const Found& found, std::string_view expected) {
  fail(Status::kInvalidArgument, "{}: {} = \"{}\" is not {}", found.source, key, found.text, expected);
}

std::optional<uint64_t> parse_u64(std::string_view text) noexcept {
  int base = 10;
  if (text.starts_with("0x") || text.starts_with("0X")) {
    text.remove_prefix(2);
    base = 16;
  }
  uint64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value, base);
  return error == std::errc() && at == end ? std::optional<uint64_t>(value) : std::nullopt;
}

std::optional<bool> parse_bool(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  if (lower == "true" || lower == "yes" || lower == "on" || lower == "1") return true;
  if (lower == "false" || lower == "no" || lower == "off" || lower == "0") return false;
  return std::nullopt;
}

// The name of today for a variable that named a setting before its name began with "tuning."; "": none.
std::string variable_for_tuning(std::string_view variable) {
  for (const Setting& setting : all_settings()) {
    if (setting.promised()) continue;
    const std::string_view rest = std::string_view(setting.name).substr(kTuning.size());
    if (Config::environment_name(rest) == variable) return Config::environment_name(setting.name);
  }
  return {};
}

std::string unknown_text(std::string_view key) {
  const std::string variable = variable_for_tuning(key);
  if (!variable.empty()) return fmt::format("unknown setting {}; its name is {}", key, variable);
  if (const std::string name = setting_name(key); name != key)
    return fmt::format("unknown setting {}; its name is {}", key, name);
  const std::string_view meant = nearest_setting(key);
  return meant.empty() ? fmt::format("unknown setting {}; `towline config` lists them", key)
                       : fmt::format("unknown setting {}; {} is the nearest", key, meant);
}

Config::Environment read_environment() {
  Config::Environment result;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::size_t equals = text.find('=');
    if (equals != std::string_view::npos) result.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return result;
}

}  // namespace

struct Config::State {
  std::optional<Found> find(std::string_view asked) {
    const std::string key = setting_name(asked);
    const std::lock_guard lock(mutex);
    if (known.find(key) == known.end()) known.emplace(key);
    if (const auto it = given.find(key); it != given.end()) return Found{it->second, "set by the program"};
    const std::string name = environment_name(key);
    if (const auto it = environment.find(name); it != environment.end()) {
      return Found{it->second, "environment " + name};
    }
    if (const auto it = file.find(key); it != file.end()) {
      return Found{it->second.text, fmt::format("{} line {}", file_name, it->second.line)};
    }
    return std::nullopt;
  }

  bool is_known(const std::string& key) const {
    return std::any_of(known.begin(), known.end(), [&](const std::string& pattern) {
      if (!pattern.ends_with('*')) return pattern == key;
      return key.starts_with(std::string_view(pattern).substr(0, pattern.size() - 1));
    });
  }

  bool is_known_variable(const std::string& name) const {
    return std::any_of(known.begin(), known.end(), [&](const std::string& pattern) {
      if (!pattern.ends_with('*')) return environment_name(pattern) == name;
      return name.starts_with(environment_name(std::string_view(pattern).substr(0, pattern.size() - 1)));
    });
  }

  // With where they stand.
  std::map<std::string, std::string> unknown_keys() const {
    std::map<std::string, std::string> keys;
    for (auto at = environment.lower_bound(kPrefix); at != environment.end(); ++at) {
      if (!at->first.starts_with(kPrefix)) break;
      if (!is_known_variable(at->first)) keys.emplace(at->first, "environment");
    }
    for (const auto& [key, value] : file) {
      if (!is_known(key)) keys.emplace(key, fmt::format("{} line {}", file_name, value.line));
    }
    for (const auto& [key, value] : given) {
      if (!is_known(key)) keys.insert_or_assign(key, "set by the program");
    }
    return keys;
  }

  std::mutex mutex;
  std::map<std::string, std::string, std::less<>> given;
  Environment environment;
  std::map<std::string, ConfigFileValue, std::less<>> file;
  std::string file_name;
  std::set<std::string, std::less<>> known{std::begin(kOtherVariables),
                                           std::end(kOtherVariables)};  // and asked for or declared
  std::set<std::string> warned;
};

Config::Config() : state_(std::make_unique<State>()) {}
Config::Config(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
Config::Config(Config&&) noexcept = default;
Config& Config::operator=(Config&&) noexcept = default;
Config::~Config() = default;

Config Config::from_sources(Environment environment, std::string_view file_text, std::string_view file_name) {
  auto state = std::make_unique<State>();
  state->environment = std::move(environment);
  state->file_name = file_name;
  state->file = parse_config_file(file_text, file_name);
  return Config(std::move(state));
}

Config Config::from_process() {
  Environment environment = read_environment();
  const auto named = environment.find("TOWLINE_CONFIG");
  if (named != environment.end() && !named->second.empty()) {
    const std::string path = named->second;
    const std::optional<std::string> text = read_text_file(path, kMostFileBytes);
    if (!text) {
      fail(Status::kNotFound,
           "environment TOWLINE_CONFIG: file \"{}\" can't be read or is longer than {} bytes", path,
           kMostFileBytes);
    }
    return from_sources(std::move(environment), *text, path);
  }
  const auto home = environment.find("HOME");
  if (home == environment.end() || home->second.empty()) return from_sources(std::move(environment));
  const std::string path = home->second + "/.config/towline.toml";
  const std::string text = read_text_file(path, kMostFileBytes).value_or("");
  return from_sources(std::move(environment), text, path);
}

void Config::set(std::string_view key, std::string_view value) { (void)exchange(key, std::string(value)); }

std::optional<std::string> Config::exchange(std::string_view key, std::optional<std::string> value) {
  const std::lock_guard lock(state_->mutex);
  std::optional<std::string> before;
  if (const auto it = state_->given.find(key); it != state_->given.end()) {
    before = std::move(it->second);
    state_->given.erase(it);
  }
  if (value) state_->given.emplace(key, std::move(*value));
  return before;
}

std::optional<std::string> Config::find(std::string_view key) const {
  std::optional<Found> found = state_->find(key);
  if (!found) return std::nullopt;
  return std::move(found->text);
}

std::string Config::get_string(std::string_view key, std::string_view default_value) const {
  return find(key).value_or(std::string(default_value));
}

uint64_t Config::get_u64(std::string_view key, uint64_t default_value) const {
  return get_u64(key, default_value, 0, UINT64_MAX);
}

uint64_t Config::get_u64(std::string_view key, uint64_t default_value, uint64_t low, uint64_t high) const {
  const std::optional<Found> found = state_->find(key);
  if (!found) return default_value;
  const std::optional<uint64_t> value = parse_u64(trimmed(found->text));
  if (value && *value >= low && *value <= high) return *value;
  if (low == 0 && high == UINT64_MAX) fail_value(key, *found, "a whole number, such as 42 or 0x2a");
  fail_value(key, *found, fmt::format("a whole number from {} to {}", low, high));
}

double Config::get_double(std::string_view key, double default_value) const {
  const std::optional<Found> found = state_->find(key);
  if (!found) return default_value;
  const std::string_view text = trimmed(found->text);
  double value = 0;
  const auto [at, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool finite = value - value == 0;
  if (error != std::errc() || at != text.data() + text.size() || !finite) {
    fail_value(key, *found, "a number, such as 0.5 or 1e-3");
  }
  return value;
}

bool Config::get_bool(std::string_view key, bool default_value) const {
  const std::optional<Found> found = state_->find(key);
  if (!found) return default_value;
  const std::optional<bool> value = parse_bool(trimmed(found->text));
  if (!value) fail_value(key, *found, "true or false (or yes, no, on, off, 1, 0)");
  return *value;
}

uint64_t Config::get_bytes(std::string_view key, uint64_t default_value) const {
  const std::optional<Found> found = state_->find(key);
  if (!found) return default_value;
  const std::optional<uint64_t> value = parse_bytes(found->text);
  if (!value) fail_value(key, *found, "a size, such as 4096, 64KiB, 1.5GiB or 1GB");
  return *value;
}

uint64_t Config::get_duration_ns(std::string_view key, uint64_t default_value_ns) const {
  const std::optional<Found> found = state_->find(key);
  if (!found) return default_value_ns;
  const std::optional<uint64_t> value = parse_duration_ns(found->text);
  if (!value)
    fail_value(key, *found, "a duration with its unit, such as 5s, 10ms, 2us, 7ns, 1min, 1h or infinite");
  return *value;
}

std::vector<std::string> Config::get_list(std::string_view key) const {
  const std::optional<Found> found = state_->find(key);
  return found ? split_list(found->text) : std::vector<std::string>();
}

std::string Config::get_choice(std::string_view key, std::initializer_list<std::string_view> choices,
                               std::string_view default_value) const {
  const std::optional<Found> found = state_->find(key);
  if (!found) return std::string(default_value);
  const std::string_view text = trimmed(found->text);
  if (std::find(choices.begin(), choices.end(), text) != choices.end()) return std::string(text);
  fail_value(key, *found, fmt::format("one of {}", fmt::join(choices, ", ")));
}

std::string Config::source(std::string_view key) const {
  const std::optional<Found> found = state_->find(key);
  return found ? found->source : "default";
}

void Config::declare(std::initializer_list<std::string_view> keys) {
  const std::lock_guard lock(state_->mutex);
  for (const std::string_view key : keys) state_->known.emplace(key);
}

void Config::declare_all_settings() {
  constexpr std::string_view kAnyName = "NAME";
  for (const Setting& setting : all_settings()) {
    std::string name = setting.name;
    if (name.ends_with("." + std::string(kAnyName)))
      name.replace(name.size() - kAnyName.size(), kAnyName.size(), "*");
    const std::lock_guard lock(state_->mutex);
    state_->known.insert(std::move(name));
  }
}

void Config::refuse_unknown_keys() const {
  const std::lock_guard lock(state_->mutex);
  for (const auto& [key, value] : state_->given) {
    const std::string_view section = std::string_view(key).substr(0, key.find('.'));
    const bool may_be_anothers =
        section.size() < key.size() && !has_settings(section) && nearest_setting(key).empty();
    if (!state_->is_known(key) && !may_be_anothers)
      fail(Status::kInvalidArgument, "set by the program: {}", unknown_text(key));
  }
}

std::vector<std::string> Config::unknown_keys() const {
  const std::lock_guard lock(state_->mutex);
  std::vector<std::string> keys;
  for (const auto& [key, place] : state_->unknown_keys()) keys.push_back(key);
  return keys;
}

void Config::warn_unknown_keys() {
  const std::lock_guard lock(state_->mutex);
  for (const auto& [key, place] : state_->unknown_keys()) {
    if (state_->warned.insert(key).second) TOWLINE_LOG(kWarning, "{}: {}", place, unknown_text(key));
  }
}

std::optional<std::string> Config::environment(const std::string& name) const {
  const auto it = state_->environment.find(name);
  return it == state_->environment.end() ? std::nullopt : std::optional<std::string>(it->second);
}

std::string Config::environment_name(std::string_view key) {
  std::string name = kPrefix;
  for (const char c : key) {
    if (c >= 'a' && c <= 'z') {
      name += static_cast<char>(c - 'a' + 'A');
    } else {
      name += (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ? c : '_';
    }
  }
  return name;
}

}  // namespace towline
