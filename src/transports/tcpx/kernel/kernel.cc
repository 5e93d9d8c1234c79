#include "transports/tcpx/kernel/kernel.h"

#include <linux/netlink.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/os/unique_fd.h"

namespace towline::tcpx {
namespace {

constexpr int kNetlinkLevel = 270;  // SOL_NETLINK
constexpr timeval kLongestWait = {5, 0};

class SystemNetlink final : public Netlink {
 public:
  SystemNetlink() : fd_(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_GENERIC)) {
    if (!fd_.valid()) fail_errno(errno, "opening a netlink socket");
    const int on = 1;  // the kernel's reasons, without an echo of the request; older kernels have neither
    (void)setsockopt(fd_.get(), kNetlinkLevel, NETLINK_EXT_ACK, &on, sizeof on);
    (void)setsockopt(fd_.get(), kNetlinkLevel, NETLINK_CAP_ACK, &on, sizeof on);
    (void)setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &kLongestWait, sizeof kLongestWait);
  }
  void send(std::span<const uint8_t> request) override {
    if (::send(fd_.get(), request.data(), request.size(), 0) < 0) fail_errno(errno, "asking by netlink");
  }
  std::size_t receive(std::span<uint8_t> datagram) override {
    for (;;) {
      const ssize_t n = ::recv(fd_.get(), datagram.data(), datagram.size(), MSG_TRUNC);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) fail_errno(errno, "waiting for netlink's answer");
      if (static_cast<std::size_t>(n) > datagram.size())
        fail(Status::kProtocol, "netlink's answer has {} bytes: at most {} were expected", n,
             datagram.size());
      return static_cast<std::size_t>(n);
    }
  }

 private:
  const UniqueFd fd_;
};

class SystemKernel final : public Kernel {
 public:
  std::unique_ptr<Netlink> open_netlink() override { return std::make_unique<SystemNetlink>(); }
  uint32_t interface_number(const std::string& interface) override {
    return if_nametoindex(interface.c_str());
  }
  int ethtool(const std::string& interface, std::span<uint8_t> call) override {
    const UniqueFd fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (!fd.valid()) return errno;
    ifreq request = {};
    if (interface.size() >= sizeof request.ifr_name) return ENODEV;
    std::memcpy(request.ifr_name, interface.data(), interface.size());
    request.ifr_data = reinterpret_cast<char*>(call.data());
    return ::ioctl(fd.get(), SIOCETHTOOL, &request) == 0 ? 0 : errno;
  }
};

}  // namespace

Kernel& this_kernel() {
  static SystemKernel kernel;
  return kernel;
}

}  // namespace towline::tcpx
