// Connections that only holders of the same keys can make, and nobody else can read or change: TLS 1.3 by OpenSSL, under
// every Stream of the library (the tcp transport, the metadata listener, the collectives' mesh and store, the fabric's
// control lines).
//
// Keys are one of two things:
//
//   a shared key    `secure.key_file`: a line of a file that all have, or several lines while one key follows another
//                   (shared_keys.h). Sessions are made with it and a fresh Diffie-Hellman exchange, so that who learns
//                   the key later can't read what was recorded.
//   certificates    `secure.certificate_file`, `secure.private_key_file` and `secure.authority_file`: both sides show a
//                   certificate that the authority has signed. With `secure.peers` it must have a name that one of
//                   these patterns fits (peer_patterns.h): that name is the peer's principal. Without, the authority's
//                   word is enough.
//
// They are read by the agent or communicator whose configuration names them; its backends, and others of the process that
// name the same files, share them. Certificates live for hours and agents for weeks, so a connection that begins looks at
// the files, at most once a second, and reads them where they have changed. What can't be read, or does not fit each other
// since only one file of a pair is there yet, leaves the keys as they are, with a warning. Connections go on with what they
// began with. A worker looks, so files of a file system that may not answer (key_files.h) are only looked at by new agents.
//
// A session begins when a stream is connected or accepted: the side that called is TLS's client. Streams over Unix sockets
// have none: the kernel says which user is at the other end.
//
// A session (session.h) works on buffers of its own and never blocks. What it can't prevent: the connection being cut
// (its end is not authenticated, as the protocols above say where they end), and strangers making a process do handshakes,
// which the limits on connections without a hello bound.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/config/config.h"
#include "base/os/stream.h"

namespace towline::secure {

enum class Side : bool { kCaller, kCalled };

class Keys {
 public:
  struct Files {
    std::string key;
    std::string certificate;              // a chain, PEM
    std::string private_key;              // PEM, not encrypted
    std::string authority;                // PEM, one or more
    std::vector<std::string> peers = {};  // patterns (peer_patterns.h); empty: any name
    bool operator==(const Files&) const = default;
    [[nodiscard]] bool none() const noexcept {
      return key.empty() && certificate.empty() && private_key.empty() && authority.empty() && peers.empty();
    }
  };
  // Throws Error: kInvalidArgument, kNotFound, kPermissionDenied, kUnsupported, naming the setting and the file.
  // `look_every_ns`: connections that begin look at the files no more often.
  static std::shared_ptr<const Keys> read(const Files& files, uint64_t look_every_ns = kSecondNs);
  // Those that kSettings name; null: none. `setting` returns the value of one. Throws Error. Where this process uses keys of
  // the same files already, these, after a look().
  static std::shared_ptr<const Keys> configured(const std::function<std::string(const char* key)>& setting);
  static std::shared_ptr<const Keys> configured(const Config& config) {
    return configured([&](const char* key) { return config.get_string(key); });
  }
  static constexpr std::array kSettings = {"secure.key_file", "secure.certificate_file",
                                           "secure.private_key_file", "secure.authority_file",
                                           "secure.peers"};

  virtual ~Keys() = default;
  // Begins a session over a stream that is connected; streams over Unix sockets stay as they are. Throws
  // Error(kOutOfMemory).
  void secure(Stream& stream, Side side) const;
  // Reads the files again where they have changed, now. Throws Error where they can't be used; the keys stay as they are.
  // May wait for the file system.
  virtual void look() const = 0;
  // "TLS 1.3, a shared key (/etc/towline.key)".
  [[nodiscard]] virtual const std::string& describe() const noexcept = 0;

 private:
  [[nodiscard]] virtual std::unique_ptr<StreamSession> begin(Side side) const = 0;
};

// Whether what came in the clear is a record of TLS: the other side has keys, and this one none.
inline bool looks_like_tls(std::span<const uint8_t> bytes) noexcept {
  return bytes.size() >= 2 && (bytes[0] & 0xfc) == 0x14 && bytes[1] == 3;
}

// Where keys may be missing.
using MaybeKeys = std::shared_ptr<const Keys>;
inline void secure(const MaybeKeys& keys, Stream& stream, Side side) {
  if (keys != nullptr) keys->secure(stream, side);
}

}  // namespace towline::secure
