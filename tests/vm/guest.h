// The guest's two hosts, as scripts/tcpx-guest sets them up: network namespaces h1 and h2 with a NIC each, wired to one
// another, and a veth pair beside them, whose ends can't receive into device memory.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <utility>

#include "base/os/unique_fd.h"

namespace towline::guest {

inline constexpr const char* kAddress[] = {"10.79.0.1", "10.79.0.2"};
inline constexpr const char* kNic[] = {"tnic0", "tnic1"};

// This thread, and threads that it starts, are on host 0 or 1 from here on.
inline void enter(int host) {
  const std::string path = "/run/netns/h" + std::to_string(host + 1);
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(fd.valid()) << path;
  ASSERT_EQ(::setns(fd.get(), CLONE_NEWNET), 0);
}

// {writes from host 1, reads on host 0}; the second does not block. The caller is on host 0 then.
inline std::pair<UniqueFd, UniqueFd> connect_hosts() {
  enter(0);
  const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  ::inet_pton(AF_INET, kAddress[0], &address.sin_addr);
  socklen_t bytes = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(::bind(listener.get(), generic, sizeof address), 0);
  EXPECT_EQ(::listen(listener.get(), 1), 0);
  EXPECT_EQ(::getsockname(listener.get(), generic, &bytes), 0);
  enter(1);
  UniqueFd writer(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::connect(writer.get(), generic, sizeof address), 0);
  enter(0);
  UniqueFd reader(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  EXPECT_TRUE(reader.valid());
  return {std::move(writer), std::move(reader)};
}

}  // namespace towline::guest
