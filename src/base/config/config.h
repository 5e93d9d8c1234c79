// Settings. This is the one place that reads the environment and the configuration file.
//
// A key is dotted lower case, "tcp.port_range". A key of a setting for tuning may be asked for without its
// "tuning.", but is given with it. Its value is the first found of
//   1. what set() was given,
//   2. the environment: TOWLINE_TCP_PORT_RANGE,
//   3. the TOML file named by TOWLINE_CONFIG, else ~/.config/towline.toml:  [tcp] port_range = "7000-7100",
//   4. the default at the place that asks.
// Environment and file are read once, by from_process(); after that a Config changes only through set().
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace towline {

// Any thread may call it. Getters throw Error(kInvalidArgument) naming source, key, value and what is
// expected.
class Config {
 public:
  using Environment = std::map<std::string, std::string>;

  // Has only values from set().
  Config();

  // From this process's environment and the file it names. Throws Error when a file named by TOWLINE_CONFIG
  // can't be read, or any file is not TOML (with line and column).
  static Config from_process();

  // The same from given sources, for tests: file_name only appears in messages.
  static Config from_sources(Environment environment, std::string_view file_text = {},
                             std::string_view file_name = "towline.toml");

  Config(Config&&) noexcept;
  Config& operator=(Config&&) noexcept;
  ~Config();

  void set(std::string_view key, std::string_view value);
  // The same; nullopt takes it back. Returns what the program had set before.
  std::optional<std::string> exchange(std::string_view key, std::optional<std::string> value);

  // nullopt when no source has the key: the way to tell "not set" from any value.
  std::optional<std::string> find(std::string_view key) const;

  std::string get_string(std::string_view key, std::string_view default_value = {}) const;
  uint64_t get_u64(std::string_view key, uint64_t default_value) const;  // decimal or 0x...
  uint64_t get_u64(std::string_view key, uint64_t default_value, uint64_t low,
                   uint64_t high) const;  // inclusive
  double get_double(std::string_view key, double default_value) const;
  bool get_bool(std::string_view key, bool default_value) const;           // true/false yes/no on/off 1/0
  uint64_t get_bytes(std::string_view key, uint64_t default_value) const;  // "4096" "64KiB" "1.5GiB" "1GB"
  uint64_t get_duration_ns(std::string_view key,
                           uint64_t default_value_ns) const;  // "5s" "10ms" "2us" "7ns" "1min"
                                                              // "1h" "infinite"; needs a unit
  std::vector<std::string> get_list(
      std::string_view key) const;  // "a, b" or a TOML array; empty when not set

  // The value, which must be one of `choices`; default_value need not be among them.
  std::string get_choice(std::string_view key, std::initializer_list<std::string_view> choices,
                         std::string_view default_value) const;

  // Where the value comes from, for `towline info`: "set by the program", "environment TOWLINE_X",
  // "/path/towline.toml line 3" or "default".
  std::string source(std::string_view key) const;

  // Declares keys that may be read later ("cuda.*" for a plugin that is not loaded). Reading a key declares
  // it, too.
  void declare(std::initializer_list<std::string_view> keys);

  // The same for every setting that Towline and its plugins have.
  void declare_all_settings();

  // Keys of the file or program, and TOWLINE_ variables, that were never read or declared: most likely
  // misspelt. refuse_ throws Error for one that the program has set, unless its section is unknown: then it may be
  // of a plugin that is added later. warn_ logs each of the others once.
  std::vector<std::string> unknown_keys() const;
  void refuse_unknown_keys() const;
  void warn_unknown_keys();

  // A variable that is not a Towline setting (HOME, CUDA_VISIBLE_DEVICES); nullopt if not set.
  std::optional<std::string> environment(const std::string& name) const;

  // "TOWLINE_TCP_PORT_RANGE" for "tcp.port_range".
  static std::string environment_name(std::string_view key);

 private:
  struct State;
  explicit Config(std::unique_ptr<State> state) noexcept;

  std::unique_ptr<State> state_;
};

std::string_view trimmed(std::string_view text) noexcept;    // of the blanks around it
std::vector<std::string> split_list(std::string_view text);  // "a, b", as get_list() takes it

// The parsers of the getters; nullopt if malformed or out of range.
std::optional<uint64_t> parse_bytes(std::string_view text) noexcept;
std::optional<uint64_t> parse_duration_ns(std::string_view text) noexcept;

}  // namespace towline
