// Which of a port's addresses connections use.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace towline::fabric {

enum class GidType : uint8_t { kInfiniBand = 0, kRoceV1 = 1, kRoceV2 = 2 };

struct Gid {
  uint32_t index = 0;
  GidType type = GidType::kInfiniBand;
  std::array<uint8_t, 16> bytes{};
  std::string interface;  // of RoCE; may be unknown

  bool is_zero() const noexcept;
  std::string text() const;  // "GID 1 (RoCE v2, 10.0.0.1 on eth0)"
};

struct GidChoice {
  Gid gid;
  std::string reason;
};

// The best GID. RoCE ports: version 2 before 1, an address that routers know before one of the link, IPv4 before
// IPv6, then the lowest index. InfiniBand ports: index 0. `wanted`: this index, whatever it is. None: there is no
// such GID.
std::optional<GidChoice> choose_gid(const std::vector<Gid>& table, bool roce, int wanted);

}  // namespace towline::fabric
