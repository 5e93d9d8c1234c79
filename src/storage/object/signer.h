// Signatures and digests. AWS Signature Version 4 proves who sends a request without sending the secret. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <map>
#include <span>
#include <string>
#include <string_view>

namespace towline::object {

struct Keys {
  std::string access_key;
  std::string secret_key;
  std::string session_token;  // empty: none

  bool operator==(const Keys&) const = default;
};

// Hexadecimal SHA-256, as payload hashes are written.
std::string sha256_hex(std::string_view bytes);
inline constexpr const char* kUnsignedPayload = "UNSIGNED-PAYLOAD";

// SHA-256 of what comes in pieces.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;
  void add(std::span<const std::byte> bytes) noexcept;
  [[nodiscard]] std::string finish();  // 32 bytes

 private:
  void* context_;
};

// HMAC-SHA-256, 32 bytes.
std::string hmac_sha256(std::string_view key, std::string_view text);
// MD5 of what comes in pieces: Azure checks what it receives by it.
class Md5 {
 public:
  Md5();
  ~Md5();
  Md5(const Md5&) = delete;
  Md5& operator=(const Md5&) = delete;
  void add(std::span<const std::byte> bytes) noexcept;
  [[nodiscard]] std::string finish();  // 16 bytes

 private:
  void* context_;
};

std::string to_hex(std::string_view bytes);
std::string to_base64(std::string_view bytes);

// "20130524T000000Z"
std::string signing_time(std::time_t time);

struct ToSign {
  std::string_view method;
  std::string_view path;   // encoded, as sent
  std::string_view query;  // encoded and sorted
  std::map<std::string, std::string>
      headers;  // every one that is to be covered, by lower-case name: with host
  std::string_view payload_hash;
  std::string_view region;
  std::string_view service = "s3";
  std::string_view time;  // signing_time()
};

// The value of the Authorization header.
std::string authorization(const Keys& keys, const ToSign& request);

}  // namespace towline::object
