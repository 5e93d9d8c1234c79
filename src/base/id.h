// 128-bit identities: incarnations, agents, connections.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace towline {

// A value. All zero means "none" and is never generated.
struct Id {
  uint64_t hi = 0;
  uint64_t lo = 0;

  // From getrandom. Throws Error when the kernel has no randomness to give.
  static Id random();

  // Exactly 32 hexadecimal digits of either case, no dashes; anything else is nullopt.
  static std::optional<Id> from_hex(std::string_view text) noexcept;

  // 32 lower-case hexadecimal digits.
  std::string to_hex() const;

  constexpr bool is_none() const noexcept { return hi == 0 && lo == 0; }

  friend constexpr auto operator<=>(const Id&, const Id&) noexcept = default;
};

// A number from getrandom, for nonces and seeds. Throws as Id::random does.
uint64_t random_u64();

}  // namespace towline

template <>
struct std::hash<towline::Id> {
  std::size_t operator()(const towline::Id& id) const noexcept {
    return static_cast<std::size_t>(id.lo ^ (id.hi * 0x9e3779b97f4a7c15ULL));
  }
};
