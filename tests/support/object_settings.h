// The settings of a plugin `object`'s backend as TOML: those that are promised in their table, the others in tuning's.
#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

namespace towline {

// `lines`: "key = value\n" each; from a line that begins with "[" on, they are taken as they stand.
inline std::string object_settings(const std::string& backend, std::string_view lines) {
  constexpr std::array<std::string_view, 18> kPromised = {
      "endpoint",          "region",        "credentials", "access_key",  "secret_key",
      "secret_key_file",   "session_token", "profile",     "role_arn",    "web_identity_token_file",
      "ca_file",           "proxy",         "account",     "account_key", "account_key_file",
      "connection_string", "sas_token",     "client_id"};
  std::string promised = "[" + backend + "]\n";
  std::string tuning = "[tuning." + backend + "]\n";
  while (!lines.empty() && lines.front() != '[') {
    const size_t end = std::min(lines.find('\n'), lines.size() - 1) + 1;
    const std::string_view key = lines.substr(0, lines.find(' '));
    const bool known = std::find(kPromised.begin(), kPromised.end(), key) != kPromised.end();
    (known ? promised : tuning) += lines.substr(0, end);
    lines.remove_prefix(end);
  }
  return promised + tuning + std::string(lines);
}

}  // namespace towline
