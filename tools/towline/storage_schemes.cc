#include "storage_schemes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <vector>

namespace tool {

std::span<const StorageScheme> storage_schemes() {
  static constexpr StorageScheme kSchemes[] = {
      {"file", "posix", "", false},    {"gds", "gds", "gds", false},     {"hf3fs", "hf3fs", "hf3fs", false},
      {"nixl", "nixl", "nixl", false}, {"s3", "object", "object", true}, {"az", "azure", "object", true},
      {"gs", "gcs", "object", true},
  };
  return kSchemes;
}

std::string_view scheme_text(std::string_view place) {
  const size_t colon = place.find(':');
  if (colon == std::string_view::npos) return {};
  const std::string_view before = place.substr(0, colon);
  const bool fits = std::ranges::all_of(before, [](char letter) {
    return std::isalnum(static_cast<unsigned char>(letter)) != 0 || letter == '+' || letter == '-';
  });
  return fits ? before : std::string_view{};
}

const StorageScheme* scheme_of(std::string_view place) {
  const auto schemes = storage_schemes();
  const auto found = std::ranges::find(schemes, scheme_text(place), &StorageScheme::name);
  return found != schemes.end() ? &*found : nullptr;
}

std::string vendor_code_text(int code) {
  constexpr int kLeastHttpStatus = 200;
  return code >= kLeastHttpStatus ? fmt::format("HTTP {}", code) : std::strerror(code);
}

std::string plugins_for(std::initializer_list<std::string_view> places) {
  std::vector<std::string_view> plugins;
  for (const std::string_view place : places) {
    const StorageScheme* const scheme = scheme_of(place);
    if (scheme == nullptr || scheme->plugin.empty()) continue;
    if (std::ranges::find(plugins, scheme->plugin) == plugins.end()) plugins.push_back(scheme->plugin);
  }
  if (plugins.empty()) return {};
  return fmt::format("plugins = \"{}\"\n", fmt::join(plugins, ","));
}

}  // namespace tool
