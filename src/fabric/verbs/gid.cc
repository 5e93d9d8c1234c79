#include "fabric/verbs/gid.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <tuple>

namespace towline::fabric {
namespace {

bool is_ipv4(const Gid& gid) noexcept {
  const auto& b = gid.bytes;
  return std::all_of(b.begin(), b.begin() + 10, [](uint8_t byte) { return byte == 0; }) && b[10] == 0xff &&
         b[11] == 0xff;
}

bool is_link_local(const Gid& gid) noexcept {
  const auto& b = gid.bytes;
  return is_ipv4(gid) ? b[12] == 169 && b[13] == 254 : b[0] == 0xfe && (b[1] & 0xc0) == 0x80;
}

std::string address_text(const Gid& gid) {
  char text[INET6_ADDRSTRLEN] = "";
  if (is_ipv4(gid)) {
    inet_ntop(AF_INET, gid.bytes.data() + 12, text, sizeof text);
  } else {
    inet_ntop(AF_INET6, gid.bytes.data(), text, sizeof text);
  }
  return text;
}

const char* type_text(GidType type) noexcept {
  switch (type) {
    case GidType::kInfiniBand:
      return "InfiniBand";
    case GidType::kRoceV1:
      return "RoCE v1";
    case GidType::kRoceV2:
      return "RoCE v2";
  }
  return "unknown";
}

}  // namespace

bool Gid::is_zero() const noexcept {
  return std::all_of(bytes.begin(), bytes.end(), [](uint8_t byte) { return byte == 0; });
}

std::string Gid::text() const {
  return fmt::format("GID {} ({}, {}{}{})", index, type_text(type), address_text(*this),
                     interface.empty() ? "" : " on ", interface);
}

std::optional<GidChoice> choose_gid(const std::vector<Gid>& table, bool roce, int wanted) {
  const Gid* best = nullptr;
  std::size_t usable = 0;
  const auto rank = [](const Gid& gid) {
    return std::tuple{gid.type != GidType::kRoceV2, is_link_local(gid), !is_ipv4(gid), gid.index};
  };
  for (const Gid& gid : table) {
    if (wanted >= 0 && gid.index != static_cast<uint32_t>(wanted)) continue;
    if (wanted < 0 && !roce && gid.index != 0) continue;
    if (gid.is_zero()) continue;
    ++usable;
    if (best == nullptr || (roce && rank(gid) < rank(*best))) best = &gid;
  }
  if (best == nullptr) return std::nullopt;
  std::string reason;
  if (wanted >= 0)
    reason = "it was asked for";
  else if (!roce)
    reason = "the first of an InfiniBand port";
  else
    reason = fmt::format("the best of {}: RoCE v2, routable, IPv4 first", usable);
  return GidChoice{*best, reason};
}

}  // namespace towline::fabric
