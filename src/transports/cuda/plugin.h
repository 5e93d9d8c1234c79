// What the real plugin and the one over the fake GPUs of the tests say of themselves.
#pragma once

#include <algorithm>
#include <cstring>
#include <exception>
#include <string>

#include "base/clock.h"
#include "towline/plugin/backend.hpp"
#include "towline/plugin/info.h"
#include "towline/towline.h"
#include "transports/cuda/info.h"

namespace towline::cuda {

inline constexpr plugin::Description kDescription = {
    .name = "cuda",
    .version = "0.1.0",
    .text = "GPU memory of one host: a kernel on a GPU of this process moves the whole list",
    .traits = TOWLINE_TRAIT_ONE_SIDED | TOWLINE_TRAIT_SAME_HOST,
    .kinds = 1u << TOWLINE_DRAM | 1u << TOWLINE_VRAM,
    .cost = 30,
    .worst_fence_ns = 1000 * kMillisecondNs,
    .fence_reason = "a copy that was begun runs to its end, at the speed of NVLink or PCIe",
};

// With the table "info".
template <class B>
towline_plugin_v1_t describe_plugin(int32_t (*usable)(char* reason, size_t capacity)) {
  towline_plugin_v1_t result = plugin::describe<B>(kDescription, usable);
  static const auto others = result.query_table;
  static constexpr towline_info_table_v1 kInfo = {
      sizeof(towline_info_table_v1), [](towline_backend* backend, char* json, size_t capacity) -> int32_t {
        try {
          const std::string text = describe_backend(*reinterpret_cast<B*>(backend));
          if (text.size() >= capacity) return TOWLINE_LIMIT_EXCEEDED;
          std::memcpy(json, text.c_str(), text.size() + 1);
          return TOWLINE_OK;
        } catch (const std::exception&) {
          return TOWLINE_INTERNAL;
        }
      }};
  result.query_table = [](const char* id, uint32_t version) noexcept -> const void* {
    return version == 1 && std::strcmp(id, "info") == 0 ? &kInfo : others(id, version);
  };
  return result;
}

}  // namespace towline::cuda
