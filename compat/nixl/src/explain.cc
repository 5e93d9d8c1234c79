#include "explain.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace towline::nixl {

nixl_mem_list_t memories_of_info(const std::string& info) {
  constexpr std::pair<const char*, nixl_mem_t> kKinds[] = {
      {"dram", DRAM_SEG}, {"vram", VRAM_SEG}, {"block", BLK_SEG}, {"file", FILE_SEG}};
  const auto parsed = nlohmann::json::parse(info);
  nixl_mem_list_t memories;
  for (const auto& backend : parsed.at("backends")) {
    if (!backend.value("usable", false)) continue;
    const auto kinds = backend.value("kinds", nlohmann::json::array());
    for (const auto& [name, memory] : kKinds) {
      const bool serves = std::ranges::find(kinds, name) != kinds.end();
      if (serves && std::ranges::find(memories, memory) == memories.end()) memories.push_back(memory);
    }
  }
  return memories;
}

RoutePrice price_of_route(const std::string& route) {
  const auto price = nlohmann::json::parse(route).at("price");
  return {std::chrono::nanoseconds{price.value("ns", int64_t{0})},
          std::chrono::nanoseconds{price.value("error_ns", int64_t{0})}, price.value("samples", 0) > 0};
}

std::string last_failure_of_route(const std::string& route) {
  const auto parsed = nlohmann::json::parse(route);
  for (const auto& part : parsed.value("parts", nlohmann::json::array())) {
    const auto flat = part.flatten();
    for (const auto& [key, value] : flat.items())
      if (key.ends_with("/last_failure") && value.is_string()) return value;
  }
  return {};
}

bool is_host_copy(const std::string& route) {
  return nlohmann::json::parse(route).value("backend", "") == "shm";
}

}  // namespace towline::nixl
