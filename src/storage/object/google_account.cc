#include "storage/object/google_account.h"

#include <fmt/format.h>
#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <memory>

#include "storage/object/names.h"
#include "storage/object/signer.h"

namespace towline::object {

namespace {

constexpr const char* kScope = "https://www.googleapis.com/auth/devstorage.read_write";
constexpr const char* kTokenUrl = "https://oauth2.googleapis.com/token";
constexpr std::time_t kValid_s = 3600;  // as long as Google allows

template <class Thing, void (*free)(Thing*)>
struct Freed {
  void operator()(Thing* thing) const noexcept { free(thing); }
};
using Key = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY, EVP_PKEY_free>>;
using Digest = std::unique_ptr<EVP_MD_CTX, Freed<EVP_MD_CTX, EVP_MD_CTX_free>>;
using Source = std::unique_ptr<BIO, Freed<BIO, BIO_free_all>>;

std::string text_of(const nlohmann::json& json, const char* name) {
  const auto found = json.find(name);
  return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
}

// Base64 for URLs, without padding.
std::string to_base64url(std::string_view bytes) {
  std::string text = to_base64(bytes);
  std::ranges::replace(text, '+', '-');
  std::ranges::replace(text, '/', '_');
  text.erase(text.find_last_not_of('=') + 1);
  return text;
}

// RSA with SHA-256; empty: it is not a key for that.
std::string sign_rs256(const std::string& pem, std::string_view text) {
  const Source source(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  const Key key(source == nullptr ? nullptr
                                  : PEM_read_bio_PrivateKey(source.get(), nullptr, nullptr, nullptr));
  const Digest digest(EVP_MD_CTX_new());
  if (key == nullptr || digest == nullptr || EVP_PKEY_base_id(key.get()) != EVP_PKEY_RSA ||
      EVP_DigestSignInit(digest.get(), nullptr, EVP_sha256(), nullptr, key.get()) != 1)
    return {};
  const auto* const bytes = reinterpret_cast<const unsigned char*>(text.data());
  size_t size = 0;
  if (EVP_DigestSign(digest.get(), nullptr, &size, bytes, text.size()) != 1) return {};
  std::string signature(size, '\0');
  if (EVP_DigestSign(digest.get(), reinterpret_cast<unsigned char*>(signature.data()), &size, bytes,
                     text.size()) != 1)
    return {};
  signature.resize(size);
  return signature;
}

std::optional<GoogleGrant> service_account(const nlohmann::json& file, std::time_t now, std::string& why) {
  const std::string email = text_of(file, "client_email");
  std::string url = text_of(file, "token_uri");
  if (url.empty()) url = kTokenUrl;
  if (email.empty() || text_of(file, "private_key").empty()) {
    why = "a service account needs client_email and private_key";
    return std::nullopt;
  }
  nlohmann::json header = {{"alg", "RS256"}, {"typ", "JWT"}};
  if (const std::string id = text_of(file, "private_key_id"); !id.empty()) header["kid"] = id;
  const nlohmann::json claims = {
      {"iss", email}, {"scope", kScope}, {"aud", url}, {"iat", now}, {"exp", now + kValid_s}};
  const std::string text = to_base64url(header.dump()) + "." + to_base64url(claims.dump());
  const std::string signature = sign_rs256(text_of(file, "private_key"), text);
  if (signature.empty()) {
    why = "private_key is no RSA key in PEM";
    return std::nullopt;
  }
  return GoogleGrant{url, "grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Ajwt-bearer&assertion=" +
                              text + "." + to_base64url(signature)};
}

std::optional<GoogleGrant> user(const nlohmann::json& file, std::string& why) {
  std::string form = "grant_type=refresh_token";
  for (const char* name : {"client_id", "client_secret", "refresh_token"}) {
    const std::string value = text_of(file, name);
    if (value.empty()) {
      why = fmt::format("a user's file needs {}", name);
      return std::nullopt;
    }
    form += fmt::format("&{}={}", name, percent_encode(value, false));
  }
  return GoogleGrant{kTokenUrl, form};
}

}  // namespace

std::optional<GoogleGrant> make_google_grant(std::string_view file, std::time_t now, std::string& why) try {
  const auto json = nlohmann::json::parse(file, nullptr, false);
  const std::string type = json.is_object() ? text_of(json, "type") : std::string();
  if (type == "service_account") return service_account(json, now, why);
  if (type == "authorized_user") return user(json, why);
  why = type.empty()
            ? "it is no account file of Google's: JSON with a \"type\""
            : fmt::format("its type is \"{}\", and service_account and authorized_user are known", type);
  return std::nullopt;
} catch (const nlohmann::json::exception& error) {  // text that is not UTF-8
  why = error.what();
  return std::nullopt;
}

std::string google_reason(std::string_view body) {
  const auto json = nlohmann::json::parse(body, nullptr, false);
  if (!json.is_object()) return {};
  const std::string error = text_of(json, "error");
  const std::string more = text_of(json, "error_description");
  return more.empty() ? error : error + ": " + more;
}

}  // namespace towline::object
