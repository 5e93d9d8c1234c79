#include "storage/object/google_account.h"

#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <string>
#include <vector>

#include "support/rsa_key.h"

namespace towline::object {
namespace {

bool signed_by(const support::RsaKey& key, const std::string& text, const std::string& signature) {
  EVP_MD_CTX* const digest = EVP_MD_CTX_new();
  EVP_DigestVerifyInit(digest, nullptr, EVP_sha256(), nullptr, key.native());
  const int good =
      EVP_DigestVerify(digest, reinterpret_cast<const unsigned char*>(signature.data()), signature.size(),
                       reinterpret_cast<const unsigned char*>(text.data()), text.size());
  EVP_MD_CTX_free(digest);
  return good == 1;
}

std::string from_base64url(std::string text) {
  std::ranges::replace(text, '-', '+');
  std::ranges::replace(text, '_', '/');
  const size_t padding = (4 - text.size() % 4) % 4;
  text.append(padding, '=');
  std::string bytes(text.size(), '\0');
  const int size =
      EVP_DecodeBlock(reinterpret_cast<unsigned char*>(bytes.data()),
                      reinterpret_cast<const unsigned char*>(text.data()), static_cast<int>(text.size()));
  bytes.resize(static_cast<size_t>(size) - padding);
  return bytes;
}

TEST(GoogleAccount, OfAServiceSignsForAnHour) {
  const support::RsaKey key;
  const nlohmann::json file = {{"type", "service_account"},
                               {"client_email", "me@example.com"},
                               {"private_key", key.pem()},
                               {"private_key_id", "seven"},
                               {"token_uri", "https://example.com/token"}};
  std::string why;
  const auto grant = make_google_grant(file.dump(), 1000, why);
  ASSERT_TRUE(grant) << why;
  EXPECT_EQ(grant->url, "https://example.com/token");
  const std::string begins = "grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Ajwt-bearer&assertion=";
  ASSERT_TRUE(grant->form.starts_with(begins)) << grant->form;
  const std::string token = grant->form.substr(begins.size());
  const size_t first = token.find('.');
  const size_t second = token.rfind('.');
  ASSERT_LT(first, second);
  EXPECT_TRUE(signed_by(key, token.substr(0, second), from_base64url(token.substr(second + 1))));
  const auto header = nlohmann::json::parse(from_base64url(token.substr(0, first)));
  EXPECT_EQ(header, (nlohmann::json{{"alg", "RS256"}, {"typ", "JWT"}, {"kid", "seven"}}));
  const auto claims = nlohmann::json::parse(from_base64url(token.substr(first + 1, second - first - 1)));
  EXPECT_EQ(claims, (nlohmann::json{{"iss", "me@example.com"},
                                    {"scope", "https://www.googleapis.com/auth/devstorage.read_write"},
                                    {"aud", "https://example.com/token"},
                                    {"iat", 1000},
                                    {"exp", 4600}}));
}

TEST(GoogleAccount, OfAUserBringsItsRefreshToken) {
  std::string why;
  const auto grant = make_google_grant(
      R"({"type":"authorized_user","client_id":"a","client_secret":"b&c","refresh_token":"1//d"})", 1000,
      why);
  ASSERT_TRUE(grant) << why;
  EXPECT_EQ(grant->url, "https://oauth2.googleapis.com/token");
  EXPECT_EQ(grant->form, "grant_type=refresh_token&client_id=a&client_secret=b%26c&refresh_token=1%2F%2Fd");
}

TEST(GoogleAccount, SaysWhatIsWrongWithAFile) {
  const std::vector<std::pair<std::string, std::string>> files = {
      {"", "no account file"},
      {"[]", "no account file"},
      {R"({"type":7})", "no account file"},
      {R"({"type":"external_account"})", "its type is \"external_account\""},
      {R"({"type":"service_account","client_email":"me"})", "needs client_email and private_key"},
      {R"({"type":"service_account","client_email":"me","private_key":"no PEM"})", "no RSA key"},
      {R"({"type":"authorized_user","client_id":"a","client_secret":"b"})", "needs refresh_token"},
  };
  for (const auto& [file, reason] : files) {
    std::string why;
    EXPECT_FALSE(make_google_grant(file, 0, why)) << file;
    EXPECT_NE(why.find(reason), std::string::npos) << why;
  }
  std::string why;
  EXPECT_FALSE(make_google_grant(
      "{\"type\":\"service_account\",\"client_email\":\"\xff\",\"private_key\":\"x\"}", 0, why));
}

TEST(GoogleAccount, ReasonsOfRefusalsAreRead) {
  EXPECT_EQ(google_reason(R"({"error":"invalid_grant","error_description":"Bad"})"), "invalid_grant: Bad");
  EXPECT_EQ(google_reason(R"({"error":"invalid_grant"})"), "invalid_grant");
  EXPECT_EQ(google_reason("<html>"), "");
  EXPECT_EQ(google_reason(R"({"error":{"code":400}})"), "");
}

}  // namespace
}  // namespace towline::object
