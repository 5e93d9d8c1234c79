// For tests of sources: two connected TCP sockets of this host.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "base/os/unique_fd.h"

namespace towline::tcpx::testing {

// {writes, reads}; the second does not block.
inline std::pair<UniqueFd, UniqueFd> connected_sockets() {
  const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(::bind(listener.get(), generic, sizeof address), 0);
  EXPECT_EQ(::listen(listener.get(), 1), 0);
  EXPECT_EQ(::getsockname(listener.get(), generic, &bytes), 0);
  UniqueFd writer(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::connect(writer.get(), generic, sizeof address), 0);
  UniqueFd reader(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  EXPECT_TRUE(reader.valid());
  return {std::move(writer), std::move(reader)};
}

inline std::vector<uint8_t> pattern(std::size_t bytes) {
  std::vector<uint8_t> data(bytes);
  for (std::size_t i = 0; i < bytes; ++i) data[i] = static_cast<uint8_t>(i * 2654435761u >> 11);
  return data;
}

}  // namespace towline::tcpx::testing
