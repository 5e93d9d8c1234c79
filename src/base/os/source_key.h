// Where a connection comes from, as limits see it: an IPv4 address, the first half of an IPv6 address (a site gives
// its machines the second half), or one for all Unix sockets.
#pragma once

#include <netinet/in.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/os/socket_address.h"

namespace towline {

using SourceKey = std::array<uint8_t, 9>;

inline SourceKey source_of(const SocketAddress& from) noexcept {
  SourceKey key = {};
  if (from.family() == AF_INET) {
    key[0] = 4;
    std::memcpy(&key[1], &reinterpret_cast<const sockaddr_in*>(from.get())->sin_addr, 4);
  } else if (from.family() == AF_INET6) {
    const in6_addr& address = reinterpret_cast<const sockaddr_in6*>(from.get())->sin6_addr;
    const bool mapped = IN6_IS_ADDR_V4MAPPED(&address) != 0;
    key[0] = mapped ? 4 : 6;
    std::memcpy(&key[1], mapped ? address.s6_addr + 12 : address.s6_addr, mapped ? 4 : 8);
  }
  return key;
}

// Which of the connections that have not said what they want gives way to one more from there, oldest first: they
// number `most`, half of them from one source, and the one that came first is the likeliest to be stuck. Null: there
// is room. `source` tells where one comes from.
template <class Connections, class Source>
auto* gives_way(Connections& oldest_first, const SourceKey& from, std::size_t most, Source&& source) {
  typename Connections::pointer oldest = nullptr;
  std::size_t count = 0;
  for (auto& one : oldest_first) {
    if (source(one) != from) continue;
    if (oldest == nullptr) oldest = &one;
    ++count;
  }
  if (count >= most / 2) return oldest;
  return oldest_first.size() < most ? nullptr : &oldest_first.front();
}

}  // namespace towline
