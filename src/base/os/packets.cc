#include "base/os/packets.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>

#include "base/clock.h"
#include "base/error.h"
#include "base/os/host_identity.h"
#include "base/sync/wake_path.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

namespace towline::packets {

namespace {

constexpr int kBacklog = 128;
constexpr std::string_view kPrefix = "towline-shm-";
constexpr std::string_view kSuffix = ".sock";

// The length that goes with the address, 0 when the name does not fit.
socklen_t fill(sockaddr_un& socket_address, const Address& address) noexcept {
  socket_address = {};
  socket_address.sun_family = AF_UNIX;
  const size_t offset = address.abstract ? 1 : 0;  // abstract names begin with a NUL
  if (address.name.empty() || address.name.size() + 1 > sizeof socket_address.sun_path) return 0;
  std::memcpy(socket_address.sun_path + offset, address.name.data(), address.name.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address.name.size() + 1);
}

void bind_to(int socket, const Address& address) {
  sockaddr_un socket_address;
  const socklen_t length = fill(socket_address, address);
  if (length == 0)
    fail(Status::kInvalidArgument, "packet socket: socket name \"{}\" is too long", address.name);
  if (bind(socket, reinterpret_cast<sockaddr*>(&socket_address), length) != 0)
    fail_errno(errno, "packet socket: bind to \"{}\"", address.name);
}

ucred credentials_of(int socket) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0)
    fail_errno(errno, "packet socket: credentials of the peer");
  return credentials;
}

bool is_socket_file_of_ours(const std::string& path) noexcept {
  struct stat status {};
  return lstat(path.c_str(), &status) == 0 && S_ISSOCK(status.st_mode) && status.st_uid == geteuid();
}

}  // namespace

Address socket_name(const uint64_t incarnation[2], const std::string& directory) {
  const std::string name = fmt::format("{}{:016x}{:016x}", kPrefix, incarnation[0], incarnation[1]);
  Address address;
  if (directory.empty()) {
    address.name = name;
    return address;
  }
  address.abstract = false;
  address.name = fmt::format("{}/{}{}", directory, name, kSuffix);
  if (address.name.size() + 2 >
      sizeof sockaddr_un{}.sun_path)  // one more for the name while it is being made
    fail(Status::kInvalidArgument,
         "shm.socket_dir: \"{}\" is too long: the socket's path must stay under {} bytes", directory,
         sizeof sockaddr_un{}.sun_path);
  return address;
}

UniqueFd listen_on(const Address& address) {
  UniqueFd socket = make_socket();
  Address first = address;
  if (!address.abstract) {
    first.name += "~";
    unlink(first.name.c_str());
  }
  bind_to(socket.get(), first);
  if (listen(socket.get(), kBacklog) != 0) fail_errno(errno, "packet socket: listen on \"{}\"", address.name);
  if (!address.abstract && rename(first.name.c_str(), address.name.c_str()) != 0) {
    const int error = errno;
    unlink(first.name.c_str());
    fail_errno(error, "packet socket: rename \"{}\" to \"{}\"", first.name, address.name);
  }
  return socket;
}

void sweep_dead_sockets(const std::string& directory) noexcept try {
  DIR* entries = opendir(directory.c_str());
  if (entries == nullptr) return;
  while (const dirent* entry = readdir(entries)) {
    const std::string_view name = entry->d_name;
    if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) continue;
    const Address address{false, fmt::format("{}/{}", directory, name)};
    if (!is_socket_file_of_ours(address.name)) continue;
    const UniqueFd probe = make_socket();
    if (connect_to(probe.get(), address) == ECONNREFUSED) unlink(address.name.c_str());
  }
  closedir(entries);
} catch (...) {
  // Out of memory or descriptors: somebody will sweep later.
}

UniqueFd open_spare() noexcept { return UniqueFd{open("/dev/null", O_RDONLY | O_CLOEXEC)}; }

UniqueFd accept_visitor(int listener, UniqueFd& spare, int& error) noexcept {
  if (!spare) spare = open_spare();  // another thread may have taken its place the last time
  UniqueFd socket{accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)};
  error = socket ? 0 : errno;
  if (error != EMFILE && error != ENFILE) return socket;
  // The kernel looks for a descriptor before it looks for a visitor: there may be none.
  spare.reset();
  UniqueFd turned_away{accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)};
  error = turned_away ? EMFILE : EAGAIN;
  turned_away.reset();
  spare = open_spare();
  return {};
}

UniqueFd make_socket() {
  UniqueFd result{socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  if (!result) fail_errno(errno, "packet socket: socket");
  return result;
}

int connect_to(int socket, const Address& address) noexcept {
  sockaddr_un socket_address;
  const socklen_t length = fill(socket_address, address);
  if (length == 0) return ENAMETOOLONG;
  return connect(socket, reinterpret_cast<sockaddr*>(&socket_address), length) == 0 ? 0 : errno;
}

Status receive_packet(int socket, Packet& packet) noexcept {
  iovec piece{packet.data.data(), packet.data.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxPacketFds * sizeof(int))];
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t bytes = 0;
  do {
    bytes = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (bytes < 0 && errno == EINTR);
  if (bytes < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK) return Status::kAgain;
    return errno == ECONNRESET || errno == EPIPE ? Status::kClosed : Status::kIo;
  }
  packet.bytes = static_cast<size_t>(bytes);
  packet.fd_count = 0;
  packet.fds_lost = (message.msg_flags & MSG_CTRUNC) != 0;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr; part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof fd, sizeof fd);
      if (packet.fd_count < packet.fds.size())
        packet.fds[packet.fd_count++].reset(fd);
      else
        close(fd);
    }
  }
  if ((message.msg_flags & MSG_TRUNC) != 0) return Status::kProtocol;
  return bytes == 0 ? Status::kClosed : Status::kOk;  // no packet of ours is empty
}

TOWLINE_WAKE_PATH Status send_packet(int socket, std::span<const uint8_t> data,
                                     std::span<const int> fds) noexcept {
  iovec piece{const_cast<uint8_t*>(data.data()), data.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxPacketFds * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  if (!fds.empty() && fds.size() <= kMaxPacketFds) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(part), fds.data(), fds.size_bytes());
  }
  constexpr int kFlags = MSG_DONTWAIT | MSG_NOSIGNAL;
  ssize_t sent = 0;
  do {
    sent = fds.empty() ? send(socket, data.data(), data.size(), kFlags) : sendmsg(socket, &message, kFlags);
  } while (sent < 0 && errno == EINTR);
  if (sent >= 0) return Status::kOk;
  switch (errno) {
    case EAGAIN:
    case ENOBUFS:
      return Status::kAgain;
    case ETOOMANYREFS:
      return Status::kLimitExceeded;
    case EPIPE:
    case ECONNRESET:
    case ENOTCONN:
      return Status::kClosed;
    default:
      return Status::kIo;
  }
}

uid_t peer_user(int socket) { return credentials_of(socket).uid; }

PeerProcess peer_process(int socket, uint64_t start_time) {
  PeerProcess peer;
  peer.pid = credentials_of(socket).pid;
  int pidfd = -1;
  socklen_t length = sizeof pidfd;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &length) == 0) {
    peer.pidfd.reset(pidfd);
  } else if (peer.pid > 0) {
    // May be of another process already; the start time, read afterwards, tells.
    peer.pidfd.reset(static_cast<int>(syscall(SYS_pidfd_open, peer.pid, 0)));
  }
  if (peer.pid > 0 && start_time != 0 && process_start_time(static_cast<uint32_t>(peer.pid)) != start_time) {
    peer.pid = 0;
    peer.pidfd.reset();
  }
  return peer;
}

bool socket_alive(int socket) noexcept {
  pollfd entry{socket, POLLRDHUP, 0};
  return poll(&entry, 1, 0) == 0 || (entry.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) == 0;
}

UniqueFd make_timer(uint64_t delay_ns, uint64_t interval_ns) {
  UniqueFd timer{timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)};
  if (!timer) fail_errno(errno, "packet socket: timer");
  const auto spec = [](uint64_t ns) {
    return timespec{static_cast<time_t>(ns / kSecondNs), static_cast<long>(ns % kSecondNs)};
  };
  const itimerspec setting{spec(interval_ns), spec(delay_ns == 0 ? 1 : delay_ns)};
  if (timerfd_settime(timer.get(), 0, &setting, nullptr) != 0) fail_errno(errno, "packet socket: set timer");
  return timer;
}

}  // namespace towline::packets
