// The system calls by which NICs are asked and told. Tests bring a kernel of their own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace towline::tcpx {

// A socket of the kernel's generic netlink. Bindings made on it last until it is closed.
class Netlink {
 public:
  Netlink() = default;
  Netlink(const Netlink&) = delete;
  Netlink& operator=(const Netlink&) = delete;
  virtual ~Netlink() = default;

  // Both throw Error. receive() blocks, for a few seconds at most, and gives the bytes of one datagram.
  virtual void send(std::span<const uint8_t> request) = 0;
  virtual std::size_t receive(std::span<uint8_t> datagram) = 0;
};

class Kernel {
 public:
  Kernel() = default;
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;
  virtual ~Kernel() = default;

  // Throws Error.
  virtual std::unique_ptr<Netlink> open_netlink() = 0;
  // The number of an interface of this network namespace; 0 if not found.
  virtual uint32_t interface_number(const std::string& interface) = 0;
  // An ethtool call, which the kernel overwrites. 0, or an errno.
  virtual int ethtool(const std::string& interface, std::span<uint8_t> call) = 0;
};

// The one that this process runs on.
Kernel& this_kernel();

}  // namespace towline::tcpx
