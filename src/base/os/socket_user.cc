#include "base/os/socket_user.h"

#include <fcntl.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/os/socket_address.h"
#include "base/os/unique_fd.h"

namespace towline {
namespace {

using Where = SocketUser::Where;

// Both ends as IPv4 where they are IPv4, however the socket sees them.
struct Ends {
  int family = AF_UNSPEC;
  uint32_t theirs[4] = {};
  uint32_t ours[4] = {};
  uint16_t their_port = 0;  // network order, as the addresses
  uint16_t our_port = 0;
  uint32_t interface = 0;
};

bool take_address(const SocketAddress& address, int& family, uint32_t words[4], uint16_t& port,
                  uint32_t& interface) noexcept {
  port = htons(address.port());
  if (address.family() == AF_INET) {
    family = AF_INET;
    std::memcpy(words, &reinterpret_cast<const sockaddr_in*>(address.get())->sin_addr, 4);
    return true;
  }
  if (address.family() != AF_INET6) return false;
  const auto& v6 = *reinterpret_cast<const sockaddr_in6*>(address.get());
  const auto* const bytes = v6.sin6_addr.s6_addr;
  const bool mapped = IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr) != 0;
  family = mapped ? AF_INET : AF_INET6;
  std::memcpy(words, mapped ? bytes + 12 : bytes, mapped ? 4 : 16);
  interface = v6.sin6_scope_id;
  return true;
}

// A socket that nobody holds any more is the kernel's, whatever user it names.
SocketUser found(uint32_t user, uint64_t inode) noexcept {
  if (inode == 0) return {Where::kGone, 0};
  return {Where::kHere, user};
}

// False: it can't be asked here. `answer` stays as it is when there is no such socket, and also when the kernel's module
// inet_diag is missing, which gives the same error.
bool ask_sock_diag(int netlink, const Ends& ends, SocketUser& answer) noexcept {
  if (netlink < 0) return false;
  alignas(nlmsghdr) uint8_t reply[4096];
  while (recv(netlink, reply, sizeof reply, MSG_DONTWAIT) >= 0) continue;  // of no question that is asked now
  struct {
    nlmsghdr header;
    inet_diag_req_v2 body;
  } request = {};
  request.header.nlmsg_len = sizeof request;
  request.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  request.header.nlmsg_flags = NLM_F_REQUEST;
  request.body.sdiag_family = static_cast<uint8_t>(ends.family);
  request.body.sdiag_protocol = IPPROTO_TCP;
  request.body.idiag_states = UINT32_MAX;
  inet_diag_sockid& id = request.body.id;  // as the other end sees it
  id.idiag_sport = ends.their_port;
  id.idiag_dport = ends.our_port;
  std::memcpy(id.idiag_src, ends.theirs, sizeof id.idiag_src);
  std::memcpy(id.idiag_dst, ends.ours, sizeof id.idiag_dst);
  id.idiag_if = ends.interface;
  id.idiag_cookie[0] = id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  if (send(netlink, &request, sizeof request, 0) != static_cast<ssize_t>(sizeof request)) return false;
  const ssize_t bytes = recv(netlink, reply, sizeof reply, MSG_DONTWAIT);
  nlmsghdr header;
  if (bytes < static_cast<ssize_t>(sizeof header)) return false;
  std::memcpy(&header, reply, sizeof header);
  if (header.nlmsg_type == NLMSG_ERROR) {
    nlmsgerr error;
    if (bytes < static_cast<ssize_t>(NLMSG_LENGTH(sizeof error))) return false;
    std::memcpy(&error, reply + NLMSG_HDRLEN, sizeof error);
    return error.error == -ENOENT;
  }
  inet_diag_msg message;
  if (header.nlmsg_type != SOCK_DIAG_BY_FAMILY || bytes < static_cast<ssize_t>(NLMSG_LENGTH(sizeof message)))
    return false;
  std::memcpy(&message, reply + NLMSG_HDRLEN, sizeof message);
  // If no connection has these ends, a socket that listens at the port answers.
  if (message.idiag_state == TCP_LISTEN) return true;
  answer = found(message.idiag_uid, message.idiag_inode);
  return true;
}

// False if the kernel does not even find our end, which is there: its module inet_diag is missing.
bool sock_diag_finds_us(int netlink, const Ends& ends) noexcept {
  Ends swapped = ends;
  std::swap(swapped.theirs, swapped.ours);
  std::swap(swapped.their_port, swapped.our_port);
  SocketUser us;
  return ask_sock_diag(netlink, swapped, us) && us.where == Where::kHere;
}

bool no_descriptor_left(int error) noexcept { return error == EMFILE || error == ENFILE; }

// The same from /proc/net/tcp or tcp6, line by line. False: there is no such file.
bool look_in_proc(const Ends& ends, SocketUser& answer) noexcept {
  const bool v4 = ends.family == AF_INET;
  bool looked = false;
  for (const char* path : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    FILE* const file = std::fopen(path, "re");
    if (file == nullptr && no_descriptor_left(errno)) {
      answer = {Where::kNoRoom, 0};
      return true;
    }
    if (file == nullptr) continue;
    looked = true;
    char line[512];
    while (std::fgets(line, sizeof line, file) != nullptr) {
      char local[33];
      char remote[33];
      unsigned local_port = 0;
      unsigned remote_port = 0;
      unsigned user = 0;
      unsigned long long inode = 0;
      if (std::sscanf(line, " %*d: %32[0-9A-F]:%x %32[0-9A-F]:%x %*x %*s %*s %*s %u %*d %llu", local,
                      &local_port, remote, &remote_port, &user, &inode) != 6) {
        continue;
      }
      if (local_port != ntohs(ends.their_port) || remote_port != ntohs(ends.our_port)) continue;
      char expected[33];
      const auto print = [&](const uint32_t words[4]) {
        if (v4)
          std::snprintf(expected, sizeof expected, "%08X", words[0]);
        else
          std::snprintf(expected, sizeof expected, "%08X%08X%08X%08X", words[0], words[1], words[2],
                        words[3]);
        return expected;
      };
      // An IPv4 address in tcp6 is mapped: its last word is the address.
      const auto is = [&](const char* text, const uint32_t words[4]) {
        const std::size_t wanted = v4 ? 8 : 32;
        const std::size_t length = std::strlen(text);
        return length >= wanted && std::strcmp(text + (length - wanted), print(words)) == 0;
      };
      if (!is(local, ends.theirs) || !is(remote, ends.ours)) continue;
      answer = found(user, inode);
      break;
    }
    std::fclose(file);
    if (answer.where == Where::kHere || answer.where == Where::kGone) return true;
  }
  return looked;
}

UniqueFd open_sock_diag() noexcept {
  return UniqueFd(socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
}

SocketUser find_user(int fd, int netlink) noexcept {
  const SocketAddress theirs = SocketAddress::peer_of(fd);
  const SocketAddress ours = SocketAddress::local_of(fd);
  if (ours.is_unix()) {
    ucred credentials{};
    socklen_t bytes = sizeof credentials;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) != 0) return {Where::kUnknown, 0};
    return {Where::kHere, credentials.uid};
  }
  Ends ends;
  int our_family = AF_UNSPEC;
  if (!take_address(theirs, ends.family, ends.theirs, ends.their_port, ends.interface) ||
      !take_address(ours, our_family, ends.ours, ends.our_port, ends.interface)) {
    return {Where::kGone, 0};  // not connected any more
  }
  SocketUser answer{Where::kElsewhere, 0};
  bool told = ask_sock_diag(netlink, ends, answer);
  if (told && answer.where == Where::kElsewhere) told = sock_diag_finds_us(netlink, ends);
  if (!told) told = look_in_proc(ends, answer);
  if (!told) answer.where = Where::kUnknown;
  // An address of this namespace's own, and no socket: it has been closed already.
  if (answer.where == Where::kElsewhere && theirs.is_loopback()) answer.where = Where::kGone;
  // Not known, of another address: as little is known of other hosts, which the caller serves or not.
  if (answer.where == Where::kUnknown && !theirs.is_loopback()) answer.where = Where::kElsewhere;
  return answer;
}

}  // namespace

SocketUsers::SocketUsers() noexcept : netlink_(open_sock_diag()) {}

SocketUser SocketUsers::find(int fd) noexcept {
  if (!netlink_.valid()) netlink_ = open_sock_diag();
  return find_user(fd, netlink_.get());
}

SocketUser socket_user_from_proc(int fd) noexcept { return find_user(fd, -1); }

UserRefusal SocketUsers::refusal(int fd) noexcept {
  const SocketUser from = find(fd);
  if (from.where == Where::kElsewhere || (from.where == Where::kHere && from.user == geteuid())) return {};
  if (from.where == Where::kGone) return {"had closed its end before it was served", Status::kPeerLost};
  if (from.where == Where::kNoRoom)
    return {
        "could not be told from another user's without a free descriptor, and was cut: it may try again, "
        "and a higher limit of open files (ulimit -n) leaves room",
        status_from_errno(EMFILE)};
  return {"is no process of this agent's user, and was cut: listen.any_user serves all users of this host",
          Status::kPermissionDenied};
}

}  // namespace towline
