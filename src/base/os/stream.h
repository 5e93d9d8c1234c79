// One connected stream socket, TCP or Unix, non-blocking. Every TCP connection of the library is one: the tcp
// transport's lanes, the metadata listener and its client, the collectives' mesh, the rendezvous store.
//
// Bytes pass as they are, or through a session with keys (secure()), which works inside read() and write(). Its callers
// already take any answer as "less than asked, or not now", so a handshake is a stream that answers kBlocked for a
// while. Nobody else reads or writes the descriptor. A session may hold bytes that have come: who sleeps on the
// descriptor by other means than wait() asks unread() first.
//
// Without a session nothing is virtual, and a read or write is one system call, inlined. One thread at a time reads, and
// one writes. Limits on how many connections wait for their first bytes, and of whom, are in source_key.h; every wait has a
// deadline.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/os/socket_address.h"
#include "base/os/stream_session.h"
#include "base/os/unique_fd.h"
#include "towline/status.h"

namespace towline {

struct StreamResult {
  enum class Kind : uint32_t {
    kMoved,    // `bytes` > 0
    kBlocked,  // no byte can move now
    kEnded,    // the other side has closed its end
    kFailed,   // `error`; the stream is unusable
  };
  std::size_t bytes = 0;
  Kind kind = Kind::kBlocked;
  int error = 0;  // an errno

  [[nodiscard]] bool moved() const noexcept { return kind == Kind::kMoved; }
  [[nodiscard]] bool blocked() const noexcept { return kind == Kind::kBlocked; }
  // One side has refused the other's keys: the stream's why() says more.
  [[nodiscard]] bool refused() const noexcept { return error == EACCES; }
  // It ended, in whichever way.
  [[nodiscard]] bool over() const noexcept { return kind == Kind::kEnded || kind == Kind::kFailed; }
};

// Options that the kernel refuses keep their values.
struct StreamTuning {
  uint64_t buffer_bytes = 0;  // SO_SNDBUF and SO_RCVBUF; 0: the kernel tunes them
  bool keep_alive = false;    // a host that vanished is noticed within half a minute
  uint64_t timeout_ns =
      0;  // sent data that stays unacknowledged so long breaks the connection; 0: the kernel's
};

class Stream {
 public:
  enum class Patience : uint8_t {
    kNone,           // fails at once if nobody listens
    kForPort,        // the same, but waits until this host has a port for the connection
    kUntilDeadline,  // tries again: the other side may not be there yet
  };

  Stream() noexcept = default;  // none

  // ---- making one. These throw Error.

  // Called at least every 100 ms while one of these waits for an answer, or for the address of a name. May throw.
  using Meanwhile = std::function<void()>;
  // Connects to the first address of the endpoint that answers. Small writes go out at once.
  static Stream dial(const Endpoint& endpoint, Deadline deadline, Patience patience,
                     const Meanwhile& meanwhile = {});
  // Connects to one address: 0, or an errno; ETIMEDOUT at the deadline as well.
  static int connect(const SocketAddress& address, Deadline deadline, Stream& out,
                     const Meanwhile& meanwhile = {});
  // For connecting without waiting: an unconnected one, then start_connect().
  static Stream open(int family) { return Stream(open_stream_socket(family)); }
  // One that a ListeningSocket accepted: non-blocking.
  static Stream accepted(UniqueFd fd) noexcept { return Stream(std::move(fd)); }
  // Connects from this address of ours. 0, or an errno.
  int start_from(const SocketAddress& own) noexcept { return towline::start_from(fd(), own); }
  // 0: connected at once. EINPROGRESS: ask finish_connect() when it is writable. Else why not.
  int start_connect(const SocketAddress& address) noexcept { return towline::start_connect(fd(), address); }
  int finish_connect() noexcept { return towline::finish_connect(fd()); }

  // ---- securing it, right after it is connected

  void secure(std::unique_ptr<StreamSession> session) noexcept { session_ = std::move(session); }
  // Goes on with the session's handshake: kMoved when it is over, or where there is none.
  [[nodiscard]] StreamResult shake_hands() noexcept;
  // The whole handshake: kOk, kTimedOut, kPeerLost, kPermissionDenied. Throws what `meanwhile` throws.
  [[nodiscard]] Status shake_hands(Deadline deadline, const Meanwhile& meanwhile = {});
  [[nodiscard]] const StreamSession* session() const noexcept { return session_.get(); }
  // Why the session failed; null if it has not, or if the stream has no session.
  [[nodiscard]] const char* why() const noexcept { return session_ == nullptr ? nullptr : session_->why(); }
  // What the last failure came from: the session's words, else the system's.
  [[nodiscard]] std::string failure(const StreamResult& result) const;

  // ---- moving bytes

  // Takes a prefix of the pieces, in order: at least one, at most IOV_MAX, none empty. The next write goes on with the byte
  // after it, which a session may have prepared already.
  [[nodiscard]] StreamResult write(std::span<const iovec> pieces) noexcept;
  [[nodiscard]] StreamResult write(const void* data, std::size_t bytes) noexcept;
  // Fills a prefix of the pieces, in order; the same.
  [[nodiscard]] StreamResult read(std::span<const iovec> pieces) noexcept;
  [[nodiscard]] StreamResult read(void* data, std::size_t bytes) noexcept;
  // Bytes that have come lie in the session, and read() may have some without a poll() that says so.
  [[nodiscard]] bool unread() const noexcept { return session_ != nullptr && session_->unread(); }
  // The handshake goes on when the socket can be written to, too: a caller that waits to read has to wait for that as well,
  // as wait() does.
  [[nodiscard]] bool unsent() const noexcept { return session_ != nullptr && session_->unsent(); }
  // All of it by the deadline: kOk, kTimedOut, kPeerLost.
  [[nodiscard]] Status write_all(std::span<const uint8_t> bytes, Deadline deadline) noexcept;
  [[nodiscard]] Status read_all(std::span<uint8_t> bytes, Deadline deadline) noexcept;

  // ---- waiting

  // Waits for any of these poll() events; returns those that came, or 0 at the deadline. One that waits to read may get
  // POLLOUT: reading goes on with the handshake then.
  [[nodiscard]] short wait(short events, Deadline deadline) const noexcept;
  [[nodiscard]] bool ready(short events) const noexcept;  // now
  // For epoll, poll and the addresses at both ends. Reading and writing it is this class's alone.
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }

  // ---- the rest

  void tune(const StreamTuning& tuning) noexcept;  // small writes go out at once, too
  // Sets a congestion control by its kernel name; an unknown name leaves the kernel's choice.
  void set_congestion(std::string_view name) noexcept;
  void end_writing() noexcept { ::shutdown(fd(), SHUT_WR); }
  void cut() noexcept { ::shutdown(fd(), SHUT_RDWR); }  // both sides see its end; the descriptor stays
  // Closing resets the connection: the system forgets what it has not sent.
  void reset_at_close() noexcept;
  void close() noexcept {
    session_.reset();
    fd_.reset();
  }
  [[nodiscard]] bool valid() const noexcept { return fd_.valid(); }
  // The bare socket, for payload that a NIC takes apart. Such bytes can't be secured; the stream has no session.
  [[nodiscard]] UniqueFd release() && noexcept { return std::move(fd_); }

 private:
  explicit Stream(UniqueFd fd) noexcept : fd_(std::move(fd)) {}
  short wait(short events, Deadline deadline, const Meanwhile& meanwhile) const;
  static StreamResult result(ssize_t n) noexcept {
    if (n > 0) [[likely]]
      return {static_cast<std::size_t>(n), StreamResult::Kind::kMoved, 0};
    return not_moved(n);
  }
  static StreamResult not_moved(ssize_t n) noexcept;
  StreamResult send_secured(std::span<const iovec> pieces) noexcept;
  StreamResult receive_secured(std::span<const iovec> pieces) noexcept;

  UniqueFd fd_;
  std::unique_ptr<StreamSession> session_;
};

// poll() in whole milliseconds, rounded up, until the deadline; at most `most_ms`.
int poll_timeout_ms(Deadline deadline, int most_ms) noexcept;

inline StreamResult Stream::write(const void* data, std::size_t bytes) noexcept {
  if (session_ != nullptr) [[unlikely]] {
    const iovec piece = {const_cast<void*>(data), bytes};
    return send_secured({&piece, 1});
  }
  return result(::send(fd(), data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT));
}

inline StreamResult Stream::write(std::span<const iovec> pieces) noexcept {
  if (session_ != nullptr) [[unlikely]]
    return send_secured(pieces);
  if (pieces.size() == 1) return write(pieces[0].iov_base, pieces[0].iov_len);
  msghdr message = {};
  message.msg_iov = const_cast<iovec*>(pieces.data());
  message.msg_iovlen = pieces.size();
  return result(::sendmsg(fd(), &message, MSG_NOSIGNAL | MSG_DONTWAIT));
}

inline StreamResult Stream::read(void* data, std::size_t bytes) noexcept {
  if (session_ != nullptr) [[unlikely]] {
    const iovec piece = {data, bytes};
    return receive_secured({&piece, 1});
  }
  return result(::recv(fd(), data, bytes, MSG_DONTWAIT));
}

inline StreamResult Stream::read(std::span<const iovec> pieces) noexcept {
  if (session_ != nullptr) [[unlikely]]
    return receive_secured(pieces);
  if (pieces.size() == 1) return read(pieces[0].iov_base, pieces[0].iov_len);
  return result(::readv(fd(), pieces.data(), static_cast<int>(pieces.size())));
}

}  // namespace towline
