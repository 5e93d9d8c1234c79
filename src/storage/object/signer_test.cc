// Against the signatures that Amazon publishes: the SigV4 test suite (service "service") and the examples of
// the S3 documentation.
#include "storage/object/signer.h"

#include <gtest/gtest.h>

namespace towline::object {
namespace {

constexpr const char* kEmpty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

std::string signature(const std::string& authorization) {
  return authorization.substr(authorization.rfind('=') + 1);
}

const Keys kSuite = {"AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", ""};
const Keys kS3 = {"AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", ""};

std::string suite(std::string_view method, std::string_view path, std::string_view query) {
  return authorization(kSuite,
                       {.method = method,
                        .path = path,
                        .query = query,
                        .headers = {{"host", "example.amazonaws.com"}, {"x-amz-date", "20150830T123600Z"}},
                        .payload_hash = kEmpty,
                        .region = "us-east-1",
                        .service = "service",
                        .time = "20150830T123600Z"});
}

TEST(Signer, TheTestSuitesSignaturesComeOut) {
  EXPECT_EQ(suite("GET", "/", ""),
            "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, "
            "SignedHeaders=host;x-amz-date, "
            "Signature=5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31");
  EXPECT_EQ(signature(suite("POST", "/", "")),
            "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b");
  EXPECT_EQ(signature(suite("GET", "/", "Param1=value1&Param2=value2")),
            "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500");
}

std::string s3(std::string_view method, std::string_view path, std::string_view query,
               std::map<std::string, std::string> headers, std::string_view hash = kEmpty) {
  headers["host"] = "examplebucket.s3.amazonaws.com";
  headers["x-amz-content-sha256"] = hash;
  headers["x-amz-date"] = "20130524T000000Z";
  return signature(authorization(kS3, {.method = method,
                                       .path = path,
                                       .query = query,
                                       .headers = std::move(headers),
                                       .payload_hash = hash,
                                       .region = "us-east-1",
                                       .time = "20130524T000000Z"}));
}

TEST(Signer, TheDocumentationsExamplesComeOut) {
  EXPECT_EQ(s3("GET", "/test.txt", "", {{"range", "bytes=0-9"}}),
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
  const std::string hash = sha256_hex("Welcome to Amazon S3.");
  EXPECT_EQ(hash, "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072");
  EXPECT_EQ(
      s3("PUT", "/test%24file.text", "",
         {{"date", "Fri, 24 May 2013 00:00:00 GMT"}, {"x-amz-storage-class", "REDUCED_REDUNDANCY"}}, hash),
      "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");
  EXPECT_EQ(s3("GET", "/", "lifecycle=", {}),
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
  EXPECT_EQ(s3("GET", "/", "max-keys=2&prefix=J", {}),
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

TEST(Signer, SpacesInHeadersAreMadeOneAndCutAtTheEnds) {
  EXPECT_EQ(s3("GET", "/x", "", {{"x-amz-meta-a", "  one   two "}}),
            s3("GET", "/x", "", {{"x-amz-meta-a", "one two"}}));
  EXPECT_NE(s3("GET", "/x", "", {{"x-amz-meta-a", "onetwo"}}),
            s3("GET", "/x", "", {{"x-amz-meta-a", "one two"}}));
}

TEST(Signer, TimesAndTextAreWrittenAsTheyAreWanted) {
  EXPECT_EQ(signing_time(1369353600), "20130524T000000Z");
  EXPECT_EQ(to_base64("any carnal pleas"), "YW55IGNhcm5hbCBwbGVhcw==");
  EXPECT_EQ(to_base64(""), "");
  EXPECT_EQ(to_hex(std::string_view("\x00\xff\x10", 3)), "00ff10");
}

}  // namespace
}  // namespace towline::object
