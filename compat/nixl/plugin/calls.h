// Shared by the engine's files: statuses, errors, and NIXL's agent, which does not expect exceptions.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>

#include <nixl_types.h>
#include <towline/towline.hpp>
#include "../src/status.h"

namespace towline_plugin {

[[nodiscard]] inline nixl_status_t to_nixl(int32_t status) noexcept {
  return towline::nixl::to_nixl(towline::Status{status});
}

inline void say(const char* what, const char* why) noexcept {
  std::fprintf(stderr, "towline in nixl: %s: %s\n", what, why);
}

template <class Work>
nixl_status_t guard(const char* what, Work work) noexcept {
  try {
    return work();
  } catch (const towline::Error& error) {
    say(what, error.what());
    return to_nixl(static_cast<int32_t>(error.code()));
  } catch (const std::exception& error) {
    say(what, error.what());
    return NIXL_ERR_BACKEND;
  }
}

[[nodiscard]] inline uint64_t now_ns() noexcept {
  return static_cast<uint64_t>(
      std::chrono::nanoseconds{std::chrono::steady_clock::now().time_since_epoch()}.count());
}

[[nodiscard]] inline uint32_t kind_of(nixl_mem_t kind) noexcept {
  return kind == VRAM_SEG ? TOWLINE_MEMORY_VRAM : TOWLINE_MEMORY_DRAM;
}

// Throws towline::Error for a notification that is too long.
inline void check_notif(const std::string& text) {
  if (text.size() > TOWLINE_MAX_NOTICE_BYTES)
    throw towline::Error{towline::Status::kLimitExceeded,
                         "a notification has at most 65,536 bytes, not " + std::to_string(text.size())};
}

}  // namespace towline_plugin
