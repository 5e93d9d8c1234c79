// The keys of `secure.key_file`: one, or several lines while a fleet is being rolled from one to the next. A caller shows
// the first; the called side takes any.
//
// All of them have the same name in TLS, since a file of one key says nothing of others. Which one a caller has, its hello
// tells: it ends with a binder, a MAC of itself under the caller's key (RFC 8446, 4.2.11.2), that each key of ours is tried
// on. OpenSSL checks it once more with the key that it is given.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "secure/openssl.h"

namespace towline::secure {

class SharedKeys {
 public:
  static constexpr std::size_t kMost = 16;
  using Hash = std::array<unsigned char, 32>;

  // Throws Error, naming the setting and the file.
  SharedKeys(const OpenSsl& openssl, const std::string& file);

  [[nodiscard]] bool several() const noexcept { return keys_.size() > 1; }
  [[nodiscard]] const Hash& first() const noexcept { return keys_.front().secret; }
  // The caller's, or the first where it is none of these. `before`: what the transcript has before the hello.
  [[nodiscard]] const Hash& of_caller(std::span<const uint8_t> before,
                                      std::span<const uint8_t> hello) const noexcept;
  // What stands for a hello in the transcript where it had to be said again.
  [[nodiscard]] std::vector<uint8_t> stand_in(std::span<const uint8_t> hello) const;

 private:
  struct Key {
    Hash secret;
    Hash finished;  // of binders
  };
  [[nodiscard]] Hash hash(std::span<const uint8_t> bytes) const;
  [[nodiscard]] Hash mac(const Hash& key, std::span<const uint8_t> bytes) const;
  [[nodiscard]] Hash derive(const Hash& from, std::string_view label, std::span<const uint8_t> context) const;

  const OpenSsl& openssl_;
  std::vector<Key> keys_;
};

}  // namespace towline::secure
