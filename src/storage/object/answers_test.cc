#include "storage/object/answers.h"

#include <gtest/gtest.h>

#include <random>

#include "base/copy/crc32c.h"
#include "storage/object/checksum.h"
#include "storage/object/upload.h"

namespace towline::object {
namespace {

using Next = Refusal::Next;

std::string error(const std::string& code, const std::string& more = {}) {
  return "<?xml version=\"1.0\"?><Error><Code>" + code + "</Code><Message>m</Message>" + more + "</Error>";
}

TEST(Answers, RefusalsSayWhatToDo) {
  const auto next = [](long status, const std::string& code) {
    return decode_refusal(status, {}, error(code)).next;
  };
  EXPECT_EQ(next(404, "NoSuchKey"), Next::kFail);
  EXPECT_EQ(next(503, "SlowDown"), Next::kRetry);
  EXPECT_EQ(next(400, "RequestTimeout"), Next::kRetry);
  EXPECT_EQ(next(400, "ExpiredToken"), Next::kRenew);
  EXPECT_EQ(next(403, "RequestTimeTooSkewed"), Next::kClock);
  EXPECT_EQ(next(403, "AccessDenied"), Next::kFail);
  EXPECT_EQ(next(400, "BadDigest"), Next::kRetry);
  EXPECT_EQ(decode_refusal(404, {}, error("NoSuchBucket")).status, Status::kNotFound);
  EXPECT_EQ(decode_refusal(412, {}, error("PreconditionFailed")).status, Status::kStale);
  EXPECT_EQ(decode_refusal(416, {}, "").status, Status::kShort);
  EXPECT_EQ(decode_refusal(429, {}, "").next, Next::kRetry);
  EXPECT_EQ(decode_refusal(500, {}, "<html>not S3</html>").next, Next::kRetry);
  EXPECT_EQ(decode_refusal(501, {}, "").status, Status::kUnsupported);
  EXPECT_EQ(decode_refusal(505, {}, "").status, Status::kUnsupported);
  EXPECT_EQ(decode_refusal(507, {}, "").status, Status::kNoSpace);
  for (const long done : {500L, 502L, 503L, 504L}) EXPECT_TRUE(may_be_done(done)) << done;
  for (const long refused : {200L, 400L, 403L, 429L, 501L, 505L, 507L})
    EXPECT_FALSE(may_be_done(refused)) << refused;
  EXPECT_EQ(decode_refusal(403, {},
                           "<ErrorResponse><Error><Code>InvalidIdentityToken</Code></Error></ErrorResponse>")
                .code,
            "InvalidIdentityToken");
}

TEST(Answers, ARedirectNamesRegionOrHost) {
  const Refusal region = decode_refusal(301, {{"x-amz-bucket-region", "eu-west-1"}}, "");
  EXPECT_EQ(region.next, Next::kRedirect);
  EXPECT_EQ(region.region, "eu-west-1");
  const Refusal host = decode_refusal(307, {{"location", "https://b.s3-eu-west-1.amazonaws.com/key?x"}}, "");
  EXPECT_EQ(host.next, Next::kRedirect);
  EXPECT_EQ(host.host, "b.s3-eu-west-1.amazonaws.com");
  const Refusal signed_wrong =
      decode_refusal(400, {}, error("AuthorizationHeaderMalformed", "<Region>ap-south-1</Region>"));
  EXPECT_EQ(signed_wrong.next, Next::kRedirect);
  EXPECT_EQ(signed_wrong.region, "ap-south-1");
  EXPECT_EQ(decode_refusal(301, {}, "").next, Next::kFail);
}

TEST(Answers, ListingsAreRead) {
  const auto listing = decode_listing(
      "<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><IsTruncated>true</IsTruncated>"
      "<NextContinuationToken>t&amp;1</NextContinuationToken><EncodingType>url</EncodingType>"
      "<Contents><Key>a%2Bb+c</Key><LastModified>2013-05-24T00:00:00.000Z</LastModified><Size>12</Size></"
      "Contents>"
      "</ListBucketResult>");
  ASSERT_TRUE(listing);
  ASSERT_EQ(listing->objects.size(), 1u);
  EXPECT_EQ(listing->objects[0].key, "a+b c");
  EXPECT_EQ(listing->objects[0].bytes, 12u);
  EXPECT_EQ(listing->objects[0].modified_ns, 1369353600'000000000u);
  EXPECT_EQ(listing->next, "t&1");
  EXPECT_FALSE(decode_listing(
      "<ListBucketResult><Contents><Key>k</Key><Size>-1</Size></Contents></ListBucketResult>"));
  EXPECT_FALSE(decode_listing("<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>"));
  EXPECT_FALSE(decode_listing("<html/>"));
  EXPECT_FALSE(decode_listing(""));
}

TEST(Answers, UploadsRangesAndTimesAreRead) {
  EXPECT_EQ(decode_upload_id(
                "<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>"),
            "u");
  EXPECT_EQ(decode_etag("<CopyPartResult><ETag>&quot;e&quot;</ETag></CopyPartResult>"), "\"e\"");
  EXPECT_EQ(decode_etag("<CopyPartResult><ETag>e</ETag></CopyPartResult>"), "\"e\"");
  EXPECT_TRUE(carries_error(error("InternalError")));
  EXPECT_FALSE(carries_error("<CompleteMultipartUploadResult/>"));
  const auto range = decode_content_range("bytes 5-9/100");
  ASSERT_TRUE(range);
  EXPECT_EQ(range->begin, 5u);
  EXPECT_EQ(range->end, 10u);
  EXPECT_EQ(range->whole, 100u);
  EXPECT_EQ(decode_content_range("bytes 5-9/*")->whole, UINT64_MAX);
  for (const char* bad : {"", "bytes", "bytes 9-5/100", "bytes 5-9/7", "bytes */100",
                          "bytes 0-18446744073709551615/*", "items 1-2/3"})
    EXPECT_FALSE(decode_content_range(bad)) << bad;
  EXPECT_EQ(decode_time("Fri, 24 May 2013 00:00:00 GMT"), 1369353600);
  EXPECT_EQ(decode_time("2013-05-24T00:00:00Z"), 1369353600);
  EXPECT_FALSE(decode_time("yesterday"));
}

TEST(Answers, CredentialsAreRead) {
  const auto role = decode_assumed_role(
      "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>A</"
      "AccessKeyId>"
      "<SecretAccessKey>S</SecretAccessKey><SessionToken>T</SessionToken><Expiration>2013-05-24T00:00:00Z</"
      "Expiration>"
      "</Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>");
  ASSERT_TRUE(role);
  EXPECT_EQ(role->keys.access_key, "A");
  EXPECT_EQ(role->keys.session_token, "T");
  EXPECT_EQ(role->expires, 1369353600);
  EXPECT_FALSE(decode_assumed_role("<x/>"));
  const auto instance = decode_instance_keys(
      R"({"Code":"Success","AccessKeyId":"A","SecretAccessKey":"S","Token":"T","Expiration":"2013-05-24T00:00:00Z"})");
  ASSERT_TRUE(instance);
  EXPECT_EQ(instance->keys.secret_key, "S");
  for (const char* bad : {"", "[]", "{}", R"({"AccessKeyId":1,"SecretAccessKey":"S"})"})
    EXPECT_FALSE(decode_instance_keys(bad)) << bad;
}

// Else it is asked for anew every two seconds.
TEST(Answers, ATokenThatLastsForEverHasNotExpired) {
  const std::time_t next_year = std::time(nullptr) + std::time_t{365} * 24 * 3600;
  for (const char* time : {R"("expires_in":18446744073709551615)", R"("expires_in":9223372036854775807)",
                           R"("expires_on":"9223372036854775808")", R"("expires_on":18446744073709551615)"}) {
    const auto token = decode_bearer_token(std::string{R"({"access_token":"t",)"} + time + "}");
    ASSERT_TRUE(token) << time;
    EXPECT_GT(token->expires, next_year) << time;
    EXPECT_GT(token->expires - std::time(nullptr), 0) << time;
  }
}

// ---- checksums

TEST(Checksums, ThoseOfPartsAreJoined) {
  std::mt19937_64 random(5);
  std::vector<uint8_t> bytes(100000);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  const std::span all(bytes);
  for (const size_t cut_at : {0u, 1u, 4096u, 65537u, 100000u}) {
    EXPECT_EQ(crc32c_join(crc32c(all.first(cut_at)), crc32c(all.subspan(cut_at)), bytes.size() - cut_at),
              crc32c(all))
        << cut_at;
  }
}

TEST(Checksums, AreWrittenAsS3WritesThem) {
  const std::string_view digits = "123456789";
  const uint32_t crc = crc32c({reinterpret_cast<const uint8_t*>(digits.data()), digits.size()});
  EXPECT_EQ(crc, 0xe3069283u);  // the check value of the algorithm's catalogue
  EXPECT_EQ(crc32c_text(crc), "4waSgw==");
  EXPECT_EQ(crc32c_value("4waSgw=="), crc);
  for (const char* bad : {"", "4waSgw==-3", "4waSgw", "????????", "4waSgwAA"})
    EXPECT_FALSE(crc32c_value(bad)) << bad;
}

TEST(Checksums, AreWrittenAsAzureWritesThem) {
  EXPECT_EQ(crc64_text(0xae8b14860a799888u), "iJh5CoYUi64=");  // of the same digits
}

// ---- parts

Settings rules() {
  Settings settings;
  settings.least_part_bytes = 5;
  settings.part_bytes = 8;
  return settings;
}

std::string text(const std::vector<Piece>& pieces) {
  std::string result;
  for (const Piece& piece : pieces)
    result +=
        (piece.copied ? "c" : "n") + std::to_string(piece.begin) + "-" + std::to_string(piece.end) + " ";
  return result;
}

TEST(Parts, AStretchHasCopiesAroundIt) {
  EXPECT_EQ(text(patch_pieces(10, 30, 50, rules())),
            "c0-10 n10-18 n18-30 c30-50 ");  // no rest of less than 5
  EXPECT_EQ(text(patch_pieces(0, 8, 50, rules())), "n0-8 c8-50 ");
  EXPECT_EQ(text(patch_pieces(50, 51, 50, rules())), "c0-50 n50-51 ");
  EXPECT_EQ(text(patch_pieces(40, 60, 50, rules())), "c0-40 n40-48 n48-56 n56-60 ");
}

TEST(Parts, WhatTheRulesForbidIsRefused) {
  EXPECT_THROW((void)patch_pieces(4, 20, 50, rules()), plugin::Failure);   // too short a copy before it
  EXPECT_THROW((void)patch_pieces(10, 14, 50, rules()), plugin::Failure);  // too short itself
  EXPECT_THROW((void)patch_pieces(51, 60, 50, rules()), plugin::Failure);  // a hole
  EXPECT_NO_THROW((void)patch_pieces(46, 50, 50, rules()));                // the last may be short
}

// A server says how long its object is: so many pieces would take all memory.
TEST(Parts, AnObjectThatNoPiecesCanHoldIsRefusedAtOnce) {
  Settings settings;
  settings.part_bytes = 8 << 20;
  settings.least_part_bytes = 5 << 20;
  for (const uint64_t bytes : {uint64_t{1} << 52, uint64_t{1} << 62, UINT64_MAX}) {
    EXPECT_THROW((void)patch_pieces(0, 8 << 20, bytes, settings), plugin::Failure) << bytes;
    EXPECT_THROW((void)patch_pieces(bytes - 1, bytes, bytes, settings), plugin::Failure) << bytes;
  }
}

TEST(Parts, ThereAreNeverTooMany) {
  EXPECT_EQ(part_size(100, 8 << 20), uint64_t{8} << 20);
  const uint64_t five_tib = uint64_t{5} << 40;
  const uint64_t size = part_size(five_tib, 8 << 20);
  EXPECT_LE((five_tib + size - 1) / size, kMostParts);
  EXPECT_EQ(size % (1 << 20), 0u);
}

}  // namespace
}  // namespace towline::object
