#if defined(TOWLINE_HAVE_OPENSSL)
#include "secure/shared_keys.h"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <string_view>

#include "base/error.h"

namespace towline::secure {
namespace {

constexpr std::size_t kLeastKeyBytes = 32;
constexpr std::size_t kMostKeyBytes = 64 << 10;  // of the file
constexpr std::string_view kBlanks = " \t\r\n";

std::string read_file(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) fail_errno(errno, "secure.key_file = \"{}\"", file);
  std::string text(kMostKeyBytes + 1, 0);
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (in.bad()) fail_errno(errno, "reading secure.key_file = \"{}\"", file);
  text.resize(static_cast<std::size_t>(in.gcount()));
  if (text.size() > kMostKeyBytes)
    fail(Status::kInvalidArgument, "secure.key_file = \"{}\" has more than {} bytes", file, kMostKeyBytes);
  return text;
}

// Editors add white space.
std::string_view without_end(std::string_view text) noexcept {
  return text.substr(0, text.find_last_not_of(kBlanks) + 1);
}

bool is_text(std::string_view bytes) noexcept {
  return std::ranges::all_of(
      bytes, [](char c) { return (c >= ' ' && c <= '~') || kBlanks.find(c) != std::string_view::npos; });
}

// A line that somebody could guess: it would be a key like the others.
bool is_heading(std::string_view line) noexcept { return line.starts_with('#') || line.starts_with("-----"); }

std::span<const uint8_t> as_bytes(std::string_view text) noexcept {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

}  // namespace

// A line end is a byte like others in a file of random bytes.
SharedKeys::SharedKeys(const OpenSsl& openssl, const std::string& file) : openssl_(openssl) {
  const std::string all = read_file(file);
  const bool lines = is_text(all);
  std::size_t number = 0, heading = 0;
  for (std::string_view rest = all; !rest.empty() || number == 0;) {
    ++number;
    const std::size_t end = lines ? rest.find('\n') : std::string_view::npos;
    const std::string_view key = without_end(rest.substr(0, end));
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    if (key.empty() && !(rest.empty() && keys_.empty())) continue;
    if (key.size() < kLeastKeyBytes)
      fail(Status::kInvalidArgument,
           "secure.key_file = \"{}\": line {} has {} bytes: at least {} are needed, for instance of: "
           "openssl rand -hex 32",
           file, number, key.size(), kLeastKeyBytes);
    if (heading == 0 && is_heading(key)) heading = number;
    std::string labelled = "towline shared key 1";
    labelled += key;
    Key made;
    made.secret = hash(as_bytes(labelled));
    const Hash early = mac({}, made.secret);
    made.finished = derive(derive(early, "ext binder", hash({})), "finished", {});
    keys_.push_back(made);
  }
  if (several() && heading != 0)
    fail(Status::kInvalidArgument,
         "secure.key_file = \"{}\": line {} begins as a comment or a PEM file does, and each line is a key",
         file, heading);
  if (keys_.size() > kMost)
    fail(Status::kInvalidArgument, "secure.key_file = \"{}\" has {} keys; at most {} are taken", file,
         keys_.size(), kMost);
}

SharedKeys::Hash SharedKeys::hash(std::span<const uint8_t> bytes) const {
  Hash result;
  unsigned int size = 0;
  if (openssl_.EVP_Digest(bytes.data(), bytes.size(), result.data(), &size, openssl_.EVP_sha256(), nullptr) !=
      1)
    fail(Status::kUnsupported, "TLS: {}", openssl_.reason("no SHA-256"));
  return result;
}

SharedKeys::Hash SharedKeys::mac(const Hash& key, std::span<const uint8_t> bytes) const {
  Hash result;
  unsigned int size = 0;
  if (openssl_.HMAC(openssl_.EVP_sha256(), key.data(), static_cast<int>(key.size()), bytes.data(),
                    bytes.size(), result.data(), &size) == nullptr)
    fail(Status::kUnsupported, "TLS: {}", openssl_.reason("no HMAC"));
  return result;
}

// HKDF-Expand-Label of TLS 1.3, of one block.
SharedKeys::Hash SharedKeys::derive(const Hash& from, std::string_view label,
                                    std::span<const uint8_t> context) const {
  std::string named = "tls13 ";
  named += label;
  std::vector<uint8_t> info = {0, sizeof(Hash), static_cast<uint8_t>(named.size())};
  info.insert(info.end(), named.begin(), named.end());
  info.push_back(static_cast<uint8_t>(context.size()));
  info.insert(info.end(), context.begin(), context.end());
  info.push_back(1);
  return mac(from, info);
}

// The binders are the last of the hello: a caller of ours has one, under SHA-256.
const SharedKeys::Hash& SharedKeys::of_caller(std::span<const uint8_t> before,
                                              std::span<const uint8_t> hello) const noexcept {
  constexpr std::array<uint8_t, 3> kOneBinder = {0, sizeof(Hash) + 1, sizeof(Hash)};
  constexpr std::size_t kBinders = kOneBinder.size() + sizeof(Hash);
  if (!several() || hello.size() <= kBinders) return first();
  const auto binders = hello.last(kBinders);
  if (!std::equal(kOneBinder.begin(), kOneBinder.end(), binders.begin())) return first();
  try {
    std::vector<uint8_t> transcript(before.begin(), before.end());
    transcript.insert(transcript.end(), hello.begin(), hello.end() - kBinders);
    const Hash said = hash(transcript);
    for (const Key& key : keys_) {
      const Hash binder = mac(key.finished, said);
      if (openssl_.CRYPTO_memcmp(binder.data(), &binders[kOneBinder.size()], binder.size()) == 0)
        return key.secret;
    }
  } catch (const std::exception&) {  // no memory: OpenSSL has none either
  }
  return first();
}

std::vector<uint8_t> SharedKeys::stand_in(std::span<const uint8_t> hello) const {
  constexpr uint8_t kMessageHash = 254;
  const Hash said = hash(hello);
  std::vector<uint8_t> result = {kMessageHash, 0, 0, sizeof(Hash)};
  result.insert(result.end(), said.begin(), said.end());
  return result;
}

}  // namespace towline::secure

#endif  // TOWLINE_HAVE_OPENSSL
