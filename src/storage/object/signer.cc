#include "storage/object/signer.h"

#include <fmt/format.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <array>
#include <new>

namespace towline::object {

namespace {

constexpr std::string_view kAlgorithm = "AWS4-HMAC-SHA256";

std::string single_spaced(std::string_view value) {
  std::string text;
  for (const char c : value) {
    if (c == ' ' && (text.empty() || text.back() == ' ')) continue;
    text += c;
  }
  while (text.ends_with(' ')) text.pop_back();
  return text;
}

}  // namespace

std::string hmac_sha256(std::string_view key, std::string_view text) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> bytes;
  unsigned int length = 0;
  if (HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
           reinterpret_cast<const unsigned char*>(text.data()), text.size(), bytes.data(),
           &length) == nullptr)
    throw std::bad_alloc();
  return {reinterpret_cast<const char*>(bytes.data()), length};
}

std::string to_hex(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size() * 2);
  for (const char c : bytes) {
    constexpr char kDigits[] = "0123456789abcdef";
    text += {kDigits[static_cast<uint8_t>(c) >> 4], kDigits[static_cast<uint8_t>(c) & 15]};
  }
  return text;
}

std::string to_base64(std::string_view bytes) {
  std::string text((bytes.size() + 2) / 3 * 4 + 1, '\0');
  const int length =
      EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                      reinterpret_cast<const unsigned char*>(bytes.data()), static_cast<int>(bytes.size()));
  text.resize(static_cast<size_t>(length));
  return text;
}

namespace {

void* begin_digest(const EVP_MD* kind) {
  EVP_MD_CTX* const context = EVP_MD_CTX_new();
  if (context == nullptr || EVP_DigestInit_ex(context, kind, nullptr) != 1) {
    EVP_MD_CTX_free(context);
    throw std::bad_alloc();
  }
  return context;
}

void add_to_digest(void* context, std::span<const std::byte> bytes) noexcept {
  (void)EVP_DigestUpdate(static_cast<EVP_MD_CTX*>(context), bytes.data(), bytes.size());
}

std::string finish_digest(void* context) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> bytes;
  unsigned int length = 0;
  if (EVP_DigestFinal_ex(static_cast<EVP_MD_CTX*>(context), bytes.data(), &length) != 1)
    throw std::bad_alloc();
  return {reinterpret_cast<const char*>(bytes.data()), length};
}

}  // namespace

Sha256::Sha256() : context_(begin_digest(EVP_sha256())) {}
Sha256::~Sha256() { EVP_MD_CTX_free(static_cast<EVP_MD_CTX*>(context_)); }
void Sha256::add(std::span<const std::byte> bytes) noexcept { add_to_digest(context_, bytes); }
std::string Sha256::finish() { return finish_digest(context_); }

Md5::Md5() : context_(begin_digest(EVP_md5())) {}
Md5::~Md5() { EVP_MD_CTX_free(static_cast<EVP_MD_CTX*>(context_)); }
void Md5::add(std::span<const std::byte> bytes) noexcept { add_to_digest(context_, bytes); }
std::string Md5::finish() { return finish_digest(context_); }

std::string sha256_hex(std::string_view bytes) {
  Sha256 hash;
  hash.add(std::as_bytes(std::span(bytes.data(), bytes.size())));
  return to_hex(hash.finish());
}

std::string signing_time(std::time_t time) {
  std::tm utc = {};
  gmtime_r(&time, &utc);
  return fmt::format("{:04}{:02}{:02}T{:02}{:02}{:02}Z", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday,
                     utc.tm_hour, utc.tm_min, utc.tm_sec);
}

std::string authorization(const Keys& keys, const ToSign& request) {
  std::string headers;
  std::string names;
  for (const auto& [name, value] : request.headers) {
    headers += name + ":" + single_spaced(value) + "\n";
    names += (names.empty() ? "" : ";") + name;
  }
  const std::string canonical = fmt::format("{}\n{}\n{}\n{}\n{}\n{}", request.method, request.path,
                                            request.query, headers, names, request.payload_hash);
  const std::string_view day = request.time.substr(0, 8);
  const std::string scope = fmt::format("{}/{}/{}/aws4_request", day, request.region, request.service);
  const std::string to_sign =
      fmt::format("{}\n{}\n{}\n{}", kAlgorithm, request.time, scope, sha256_hex(canonical));
  const std::string key = hmac_sha256(
      hmac_sha256(hmac_sha256(hmac_sha256("AWS4" + keys.secret_key, day), request.region), request.service),
      "aws4_request");
  return fmt::format("{} Credential={}/{}, SignedHeaders={}, Signature={}", kAlgorithm, keys.access_key,
                     scope, names, to_hex(hmac_sha256(key, to_sign)));
}

}  // namespace towline::object
