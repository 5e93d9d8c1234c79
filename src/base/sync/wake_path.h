// What a thread needs between its return from a sleep and the message that woke it.
//
// While it slept, other programs used the processor. Nothing of this is in the caches then, and, what takes longer, no
// page of it is in the processor's table of translations. Each page costs a walk through the page tables of the
// system, and in a virtual machine those of its host: 0.1 to 0.2 us, and 70 to 100 pages come one after the other. So
// the code of this path lies side by side in few pages (TOWLINE_WAKE_PATH), and a thread that wakes asks for all pages
// at once (WakePages), so that the walks overlap. One line of each page gains nearly as much as all lines do.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

// Before the definition of a function that is not inline: puts it beside the others of this path.
#if defined(__GNUC__) && defined(__ELF__)
#define TOWLINE_WAKE_PATH [[gnu::section("towline_wake")]]
#else
#define TOWLINE_WAKE_PATH
#endif

namespace towline {

// Pages of data that one thread notes before it sleeps, while they are at hand. Hints: the memory may be gone by
// the time it wakes.
class WakePages {
 public:
  static constexpr std::size_t kMost = 64;
  static constexpr std::size_t kPageBytes = 4096;

  // Notes up to `room` pages; further ones are left out.
  constexpr explicit WakePages(std::size_t room = kMost) noexcept : room_(room) {}

  // Nothing here writes to one without room, so threads may share it.
  void clear() noexcept {
    if (count_ != 0) count_ = 0;
  }
  [[nodiscard]] bool full() const noexcept { return count_ == room_; }
  // Once a page, however often it is named.
  void add(const void* at, std::size_t bytes) noexcept;
  template <class T>
  void add_object(const T& object) noexcept {
    add(&object, sizeof object);
  }
  // Asks for the marked code and for what was added. Waits for nothing.
  void ask() const noexcept;

  // An address in each of them.
  [[nodiscard]] std::span<const std::byte* const> pages() const noexcept { return {pages_.data(), count_}; }

 private:
  std::size_t room_;  // at most kMost
  std::size_t count_ = 0;
  std::array<const std::byte*, kMost> pages_ = {};
};

// This thread's. All that a worker arms before its sleep adds to them. While memory for them is short, they have no room.
WakePages& wake_pages() noexcept;

// The marked functions of this library or program; empty if it has none.
std::span<const std::byte> wake_path_code() noexcept;

}  // namespace towline
