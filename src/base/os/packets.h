// Unix sockets that carry packets with descriptors between processes of one host: names, packets, and who is at the
// other end. Nothing here blocks or keeps state.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/os/unique_fd.h"
#include "towline/status.h"

namespace towline::packets {

inline constexpr size_t kMaxPacketBytes = 1024;

struct Address {
  bool abstract = true;  // a name in the abstract namespace of one network namespace; else a path
  std::string name;
};

// The name an instance listens on: abstract unless `directory` is given, then a socket file in it. Throws
// Error when the path is too long for a socket.
Address socket_name(const uint64_t incarnation[2], const std::string& directory);

// Listens; a socket file appears under its name only once it listens. Throws Error.
UniqueFd listen_on(const Address& address);

// Removes socket files in `directory` that nobody listens on any more (their process was killed). Never
// throws: what can't be looked at stays.
void sweep_dead_sockets(const std::string& directory) noexcept;

// A descriptor to give up when a visitor needs one and all are taken.
UniqueFd open_spare() noexcept;

// The next visitor's socket, or why it can't be had: EAGAIN, or EMFILE when descriptors have run out. Then `spare`
// was given up for a moment to turn the visitor away: otherwise it would keep the listener readable for ever.
UniqueFd accept_visitor(int listener, UniqueFd& spare, int& error) noexcept;

UniqueFd make_socket();  // throws Error
int connect_to(int socket,
               const Address& address) noexcept;  // 0 or errno; EAGAIN: the backlog is full, try again

inline constexpr size_t kMaxPacketFds = 1;

struct Packet {
  std::array<uint8_t, kMaxPacketBytes> data;
  size_t bytes = 0;
  std::array<UniqueFd, kMaxPacketFds> fds;
  size_t fd_count = 0;
  bool fds_lost = false;  // more came than fit or than we have descriptors for

  [[nodiscard]] std::span<const uint8_t> span() const noexcept { return {data.data(), bytes}; }
};

// kOk, kAgain, kClosed (end of file), kProtocol (longer than any packet of ours), kIo. Descriptors are
// close-on-exec.
Status receive_packet(int socket, Packet& packet) noexcept;

// kOk, kAgain, kLimitExceeded (too many descriptors of this user are on their way), kClosed, kIo. All of the
// packet or nothing. Never blocks: the flags are the call's own, whatever a peer does to its end.
Status send_packet(int socket, std::span<const uint8_t> data, std::span<const int> fds) noexcept;

// The other end's identity, from the kernel.
struct PeerProcess {
  pid_t pid = 0;   // in our pid namespace; 0: not visible from it
  UniqueFd pidfd;  // readable once the process is gone; may be absent
};

// The user at the other end, which connected or listens. Throws Error.
uid_t peer_user(int socket);

// Throws Error when the kernel does not even tell credentials. `start_time` as the peer says it, 0 when it
// means nothing here (another pid namespace): tells that the pid is still the same process. pid is 0 when it
// is not.
PeerProcess peer_process(int socket, uint64_t start_time);

// Still connected? Does not consume anything.
bool socket_alive(int socket) noexcept;

// A one-shot timer; readable after `delay_ns`, then every `interval_ns` when not 0. Throws Error.
UniqueFd make_timer(uint64_t delay_ns, uint64_t interval_ns);
}  // namespace towline::packets
