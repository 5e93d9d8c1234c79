#include "storage/object/names.h"

#include <gtest/gtest.h>

#include "storage/object/profile.h"
#include "towline/plugin/backend.hpp"

namespace towline::object {
namespace {

std::string refusal(const std::string& uri) {
  try {
    (void)parse_uri(uri, "s3");
    return {};
  } catch (const plugin::Failure& failure) {
    return failure.what();
  }
}

TEST(Names, AddressesAreTakenAsTheyAre) {
  const ObjectName name = parse_uri("s3://my.bucket-1//a%20b?c#d/", "s3");
  EXPECT_EQ(name.bucket, "my.bucket-1");
  EXPECT_EQ(name.key, "/a%20b?c#d/");
  EXPECT_EQ(name.text(), "s3://my.bucket-1//a%20b?c#d/");
  EXPECT_EQ(parse_prefix("s3://bucket", "s3").key, "");
  EXPECT_EQ(parse_prefix("s3://bucket/", "s3").key, "");
}

TEST(Names, BadAddressesAreRefusedWithTheReason) {
  EXPECT_NE(refusal("s3:/bucket/key").find("two slashes"), std::string::npos);
  EXPECT_NE(refusal("s3://bucket/").find("names no key"), std::string::npos);
  EXPECT_NE(refusal("s3://ab/key").find("no name of a bucket"), std::string::npos);
  EXPECT_NE(refusal("s3://bu cket/key").find("no name of a bucket"), std::string::npos);
  EXPECT_NE(refusal("s3://a..b/key").find("no name of a bucket"), std::string::npos);
  EXPECT_NE(refusal("s3://bucket/" + std::string(1025, 'x')).find("1025"), std::string::npos);
  for (const char* bytes :
       {"\xff", "\xc0\xaf", "\xed\xa0\x80", "\xe0\x80\x80", "\xf4\x90\x80\x80", "\xe2\x82"})
    EXPECT_NE(refusal(std::string("s3://bucket/") + bytes).find("UTF-8"), std::string::npos);
  EXPECT_EQ(refusal("s3://bucket/\xf0\x9f\x98\x80\xe2\x82\xac"), "");
}

TEST(Names, PercentsAreWrittenAsS3WantsThem) {
  EXPECT_EQ(percent_encode("a/b c~_-.", true), "a/b%20c~_-.");
  EXPECT_EQ(percent_encode("a/b+\xc3\xbc", false), "a%2Fb%2B%C3%BC");
  EXPECT_EQ(percent_decode("a%2fb%2B+%C3%BC%zz%4"), "a/b+ \xc3\xbc%zz%4");
}

TEST(Names, EndpointsAreReadAndBadOnesRefused) {
  const Endpoint plain = Endpoint::parse("http://10.0.0.1:9000/", "test");
  EXPECT_EQ(plain.host, "10.0.0.1:9000");
  EXPECT_EQ(plain.style, Style::kPath);
  EXPECT_FALSE(plain.encrypted());
  EXPECT_EQ(Endpoint::parse("https://[::1]:443", "test").host, "[::1]");
  EXPECT_EQ(Endpoint::parse("https://s3.eu-west-1.amazonaws.com", "test").style, Style::kVirtual);
  EXPECT_EQ(Endpoint::amazon("cn-north-1").host, "s3.cn-north-1.amazonaws.com.cn");
  for (const char* url : {"", "127.0.0.1", "ftp://host", "http://", "http://host/path", "http://user@host"})
    EXPECT_THROW((void)Endpoint::parse(url, "object.endpoint"), plugin::Failure) << url;
}

// A server says where a bucket is: the host made of it must stay Amazon's.
TEST(Names, RegionsAreNoOtherHosts) {
  for (const char* name : {"us-east-1", "cn-north-1", "us-gov-west-1", "eusc-de-east-1"})
    EXPECT_TRUE(is_region(name));
  for (const char* name : {"", "evil.com/x", "x@evil", "x:1", "x?", "x#", "a.b", "X", "x y"})
    EXPECT_FALSE(is_region(name)) << name;
}

TEST(Names, BucketsAreNamedInTheHostOrInThePath) {
  const Endpoint amazon = Endpoint::amazon("us-west-2");
  EXPECT_EQ(make_target(amazon, "bucket", "a b", {}).url(amazon),
            "https://bucket.s3.us-west-2.amazonaws.com/a%20b");
  EXPECT_EQ(make_target(amazon, "with.dots", "k", {}).url(amazon),
            "https://s3.us-west-2.amazonaws.com/with.dots/k");
  const Endpoint own = Endpoint::parse("http://host:1", "test");
  EXPECT_EQ(make_target(own, "bucket", "/k/../x", {}).url(own), "http://host:1/bucket//k/../x");
  EXPECT_EQ(make_target(own, "bucket", "", {{"uploads", ""}, {"prefix", "a/b"}}).url(own),
            "http://host:1/bucket?prefix=a%2Fb&uploads=");
}

TEST(Profile, SectionsAndCommentsAreRead) {
  Profile profile;
  read_profile(
      "# a comment\n[default]\naws_access_key_id = A\n\n[ other ]\nAWS_Access_Key_Id=B ; said so\n"
      "aws_secret_access_key = s+/=\r\ns3 =\n  max_concurrent_requests = 1\nbroken "
      "line\n[default]\nregion=x\n",
      "other", false, profile);
  EXPECT_EQ(profile["aws_access_key_id"], "B");
  EXPECT_EQ(profile["aws_secret_access_key"], "s+/=");
  EXPECT_FALSE(profile.contains("max_concurrent_requests"));
  EXPECT_FALSE(profile.contains("region"));
  // In the config file they are called otherwise, and what the credentials file said stays.
  read_profile(
      "[other]\nregion = no\n[profile other]\nregion = eu\naws_access_key_id = C\n[sso-session "
      "other]\nregion = z\n",
      "other", true, profile);
  EXPECT_EQ(profile["region"], "eu");
  EXPECT_EQ(profile["aws_access_key_id"], "B");
  read_profile("[default]\noutput = json", "default", true, profile);
  EXPECT_EQ(profile["output"], "json");
}

}  // namespace
}  // namespace towline::object
