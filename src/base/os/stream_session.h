// What keeps a connection secret and tells who is at its other end: everything that a Stream moves passes through it.
// Made by secure/keys.h; base knows of its existence only.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace towline {

struct StreamResult;

// Over the descriptor of its stream, without blocking. One thread at a time reads, and one writes, as for the stream.
class StreamSession {
 public:
  StreamSession() = default;
  StreamSession(const StreamSession&) = delete;
  StreamSession& operator=(const StreamSession&) = delete;
  virtual ~StreamSession() = default;

  // Goes on with the handshake: kMoved when it is over, and from then on. read() and write() do that, too.
  virtual StreamResult shake_hands(int fd) noexcept = 0;
  // What was not counted as moved is offered again by the next write, unchanged; where some of what was counted has not
  // left yet, something is always left to offer.
  virtual StreamResult write(int fd, std::span<const iovec> pieces) noexcept = 0;
  virtual StreamResult read(int fd, std::span<const iovec> pieces) noexcept = 0;
  // Bytes that have come may lie here, of which no poll() tells; false once read() was blocked.
  [[nodiscard]] virtual bool unread() const noexcept = 0;
  // A part of the handshake lies here that the socket had no room for: it goes on when the socket can be written to, too.
  [[nodiscard]] virtual bool unsent() const noexcept = 0;
  // "TLS 1.3, ..." once the handshake is over.
  [[nodiscard]] virtual std::string describe() const = 0;
  // Why the session failed; null: it did not, or the connection did.
  [[nodiscard]] virtual const char* why() const noexcept = 0;
};

}  // namespace towline
