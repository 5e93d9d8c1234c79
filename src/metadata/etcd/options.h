// The options of the etcd directory: from its address, from settings (etcd.*), and from NIXL's environment
// variables.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace towline::etcd {

struct Options {
  std::vector<std::string> endpoints;  // "http://10.0.0.7:2379": at least one
  std::string name_space;              // "/nixl/agents": begins with a slash, does not end with one
  std::string user;                    // empty: no authentication
  std::string password;
  std::string ca_file;  // empty: the system's authorities
  std::string cert_file;
  std::string key_file;
  uint64_t lease_s = 10;
  uint64_t connect_timeout_ns = 2'000'000'000;
  uint64_t attempt_timeout_ns = 3'000'000'000;  // one server, one answer
  std::size_t max_answer_bytes = std::size_t{64} << 20;
};

// Looks settings up. nullopt: not set.
struct Settings {
  std::function<std::optional<std::string>(const char* key)> config;
  std::function<std::optional<std::string>(const char* name)> environment;
};

// Throws Error(kInvalidArgument, kNotFound) naming the setting, what it holds (never a password) and what is
// expected. authority: "host[:port],.." or "" for etcd.endpoints; path: "/namespace" or "" for
// etcd.namespace; variant: "" or "tls".
Options read_options(const Settings& settings, std::string_view variant, std::string_view authority,
                     std::string_view path);

}  // namespace towline::etcd
