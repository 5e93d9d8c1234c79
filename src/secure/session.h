// One TLS session over a non-blocking socket. OpenSSL reads and writes the session's buffers, and the session the socket, so
// that many records go with one system call. Where the socket takes a part of them only, the last byte that they hold is
// held back: the caller goes on when there is room, as it would without a session, and nothing lies here that nobody sends.
// A socket that takes nothing any more ends writing only: what the other side said last is still read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/os/stream.h"
#include "base/os/stream_session.h"
#include "secure/openssl.h"

namespace towline::secure {

class Credentials;
enum class Side : bool;

class Session final : public StreamSession {
 public:
  // Throws Error(kOutOfMemory).
  Session(std::shared_ptr<const Credentials> credentials, Side side);

  // For OpenSSL's callbacks during the handshake.
  static Session& of(SSL* ssl) noexcept;
  [[nodiscard]] const Credentials& credentials() const noexcept { return *credentials_; }
  // Whether secure.peers takes a name of the other side's certificate, which the authority has signed.
  bool take_names(const X509* certificate) noexcept;
  // The caller's hello, and what it answers, for the choice of a shared key.
  void keep_hello(std::span<const uint8_t> message) noexcept;
  void keep_answer(std::span<const uint8_t> message) noexcept;
  [[nodiscard]] std::span<const uint8_t> before_hello() const noexcept { return before_hello_; }
  [[nodiscard]] std::span<const uint8_t> hello() const noexcept { return hello_; }

  StreamResult shake_hands(int fd) noexcept override;
  StreamResult write(int fd, std::span<const iovec> pieces) noexcept override;
  StreamResult read(int fd, std::span<const iovec> pieces) noexcept override;
  [[nodiscard]] bool unread() const noexcept override;
  [[nodiscard]] bool unsent() const noexcept override;
  [[nodiscard]] std::string describe() const override;
  [[nodiscard]] const char* why() const noexcept override;

 private:
  static constexpr std::size_t kRecordHeader = 5;
  static constexpr std::size_t kMessageHeader = 4;  // of a handshake
  static constexpr std::size_t kRecord = 16 << 10;  // plain bytes of one record
  static constexpr std::size_t kRecordRoom = kRecord + 512;
  static constexpr std::size_t kBuffer = 8 * kRecordRoom;
  // AES-GCM's limit for one key is 2^24.5 records; the key is changed long before.
  static constexpr uint64_t kRecordsOfKey = 1u << 22;
  struct Buffer {
    std::unique_ptr<uint8_t[]> bytes = std::make_unique_for_overwrite<uint8_t[]>(kBuffer);
    std::size_t begin = 0;
    std::size_t end = 0;
    [[nodiscard]] bool empty() const noexcept { return begin == end; }
  };
  friend struct Bio;

  static StreamResult blocked() noexcept { return {}; }
  StreamResult send_out(int fd) noexcept;  // kMoved: all of it
  StreamResult take_in(int fd) noexcept;   // kMoved: some
  enum class Offer : uint8_t { kMade, kMoreIsNeeded, kRefused };
  Offer offer_record() noexcept;
  StreamResult shake(int fd) noexcept;
  StreamResult send_last_flight(int fd) noexcept;
  StreamResult cut_while_shaking(int error) noexcept;
  void say_that_tls_is_spoken(int fd) noexcept;
  StreamResult write_record(const void* data, std::size_t bytes) noexcept;
  StreamResult failed(int error) noexcept;
  StreamResult refused() noexcept;  // by what OpenSSL says
  StreamResult refused(const char* why) noexcept;

  const std::shared_ptr<const Credentials> credentials_;
  const OpenSsl& openssl_;
  const std::unique_ptr<SSL, decltype(&SSL_free)> owned_;
  SSL* const ssl_;
  mutable std::mutex mutex_;  // one side reads while the other writes, and OpenSSL allows one call at a time
  Buffer in_;                 // of the socket
  Buffer out_;                // for the socket
  std::unique_ptr<uint8_t[]> gathered_ = std::make_unique_for_overwrite<uint8_t[]>(kRecord);
  std::size_t offered_ = 0;  // of in_, while hands are shaken: what OpenSSL may take
  uint64_t records_ = 0;     // since the key was changed
  bool said_something_ = false;
  bool shaken_ = false;
  bool flight_sent_ = false;  // all of the handshake
  bool held_back_ = false;    // the next write's first byte is in out_
  bool unread_ = false;
  bool ended_ = false;
  int error_ = 0;        // an errno; it is over
  int write_error_ = 0;  // an errno; the socket takes nothing any more
  std::string why_;
  std::vector<uint8_t> hello_;
  std::vector<uint8_t> before_hello_;
  std::string principal_;      // the name of the other side that secure.peers took
  std::string refused_names_;  // those that it did not
};

}  // namespace towline::secure
