#include "base/sync/wake_path.h"

#include <algorithm>

#include "base/per_thread.h"

// By the linker. Weak, since a program may have no marked function.
extern "C" {
[[gnu::weak, gnu::visibility("hidden")]] extern const std::byte __start_towline_wake[];
[[gnu::weak, gnu::visibility("hidden")]] extern const std::byte __stop_towline_wake[];
}

namespace towline {

namespace {

std::uintptr_t page_of(const std::byte* at) noexcept {
  return reinterpret_cast<std::uintptr_t>(at) / WakePages::kPageBytes;
}

}  // namespace

void WakePages::add(const void* at, std::size_t bytes) noexcept {
  const auto* const begin = static_cast<const std::byte*>(at);
  const std::byte* const end = begin + bytes;
  for (const std::byte* next = begin; next < end && !full();) {
    const bool known = std::any_of(pages_.begin(), pages_.begin() + count_,
                                   [&](const std::byte* page) { return page_of(page) == page_of(next); });
    if (!known) pages_[count_++] = next;
    next += kPageBytes - reinterpret_cast<std::uintptr_t>(next) % kPageBytes;
  }
}

void WakePages::ask() const noexcept {
  const std::span<const std::byte> code = wake_path_code();
  for (std::size_t at = 0; at < code.size(); at += kPageBytes) __builtin_prefetch(code.data() + at);
  for (const std::byte* const page : pages()) __builtin_prefetch(page);
}

WakePages& wake_pages() noexcept {
  static constinit WakePages none{0};
  WakePages* const pages = PerThread<WakePages>::find();
  return pages != nullptr ? *pages : none;
}

std::span<const std::byte> wake_path_code() noexcept { return {__start_towline_wake, __stop_towline_wake}; }

}  // namespace towline
