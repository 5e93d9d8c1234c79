#include "secure/peer_patterns.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"

namespace towline::secure {
namespace {

bool fits(const std::string& pattern, const std::string& name, PeerName::Kind kind) {
  return PeerPatterns({pattern}).fit({kind, name});
}
bool dns(const std::string& pattern, const std::string& name) {
  return fits(pattern, name, PeerName::Kind::kDns);
}
bool uri(const std::string& pattern, const std::string& name) {
  return fits(pattern, name, PeerName::Kind::kUri);
}

TEST(PeerPatterns, ANameFitsItself) {
  EXPECT_TRUE(dns("prefill-0.serving.example.com", "prefill-0.serving.example.com"));
  EXPECT_TRUE(dns("Prefill-0.example.com", "prefill-0.EXAMPLE.com"));
  EXPECT_TRUE(uri("spiffe://example.com/ns/serving/sa/a", "spiffe://example.com/ns/serving/sa/a"));
  EXPECT_TRUE(uri("SPIFFE://Example.com/ns", "spiffe://example.COM/ns"));
  EXPECT_TRUE(uri("spiffe://example.com", "spiffe://example.com"));
  EXPECT_FALSE(uri("spiffe://example.com/ns", "spiffe://example.com/NS")) << "paths have cases";
  EXPECT_FALSE(dns("example.com", "example.org"));
  EXPECT_FALSE(dns("example.com", "example.com.evil.org"));
  EXPECT_FALSE(dns("example.com", "evil-example.com"));
  EXPECT_FALSE(uri("spiffe://example.com/a", "http://example.com/a"));
  EXPECT_FALSE(uri("spiffe://example.com/a", "spiffe://example.com/a/b"));
  EXPECT_FALSE(uri("spiffe://example.com/a", "spiffe://example.com"));
}

TEST(PeerPatterns, AStarStaysWithinOneLabelOfAHost) {
  EXPECT_TRUE(dns("prefill-*.serving.example.com", "prefill-12.serving.example.com"));
  EXPECT_TRUE(dns("*.example.com", "a.example.com"));
  EXPECT_TRUE(dns("a*b*c.example.com", "aXbYbZc.example.com"));
  EXPECT_TRUE(uri("spiffe://*.example.com/a", "spiffe://east.example.com/a"));
  EXPECT_FALSE(dns("*.example.com", "a.b.example.com"));
  EXPECT_FALSE(dns("*.example.com", "example.com"));
  EXPECT_FALSE(dns("prefill-*.example.com", "prefill-.example.com")) << "it stands for something";
  EXPECT_FALSE(dns("prefill-*.example.com", "prefill-1.evil.example.com"));
  EXPECT_FALSE(dns("a*b*c", "abc"));
  EXPECT_FALSE(dns("a*b", "aXbY"));
}

TEST(PeerPatterns, AStarStaysWithinOneSegmentOfAPath) {
  EXPECT_TRUE(uri("spiffe://example.com/ns/serving/*", "spiffe://example.com/ns/serving/decode.3"));
  EXPECT_TRUE(uri("spiffe://example.com/ns/*/sa/*", "spiffe://example.com/ns/x/sa/y"));
  EXPECT_FALSE(uri("spiffe://example.com/ns/serving/*", "spiffe://example.com/ns/serving/a/b"));
  EXPECT_FALSE(uri("spiffe://example.com/ns/serving/*", "spiffe://example.com/ns/serving/"));
  EXPECT_FALSE(uri("spiffe://example.com/ns/serving/*", "spiffe://example.com/ns/serving/.."));
  EXPECT_FALSE(uri("spiffe://example.com/*", "spiffe://example.com.evil.org/a"));
  EXPECT_FALSE(uri("spiffe://*/a", "spiffe://example.com/a")) << "one label only";
}

TEST(PeerPatterns, AKindOfNameFitsPatternsOfThatKindOnly) {
  EXPECT_FALSE(dns("spiffe://example.com/a", "spiffe://example.com/a"));
  EXPECT_FALSE(uri("example.com", "example.com"));
  EXPECT_FALSE(uri("example.com", "urn:example.com"));
}

// Whoever has such a certificate is any of the names, so it says who nobody is.
TEST(PeerPatterns, ANameWithAStarFitsNothing) {
  EXPECT_FALSE(dns("*.example.com", "*.example.com"));
  EXPECT_FALSE(uri("spiffe://example.com/*", "spiffe://example.com/*"));
}

TEST(PeerPatterns, NamesWithOddBytesFitNothing) {
  EXPECT_FALSE(dns("*.example.com", std::string("a\0.example.com", 14)));
  EXPECT_FALSE(dns("*.example.com", "a b.example.com"));
  EXPECT_FALSE(dns("*.example.com", "\xc3\xa4.example.com"));
  EXPECT_FALSE(dns("*.example.com", std::string(3000, 'a') + ".example.com"));
  EXPECT_FALSE(dns("*.example.com", ""));
}

TEST(PeerPatterns, OneOfSeveralIsEnough) {
  const PeerPatterns patterns({"a.example.com", "b.example.com"});
  EXPECT_TRUE(patterns.fit({PeerName::Kind::kDns, "b.example.com"}));
  EXPECT_EQ(patterns.text(), "a.example.com, b.example.com");
  EXPECT_FALSE(PeerPatterns().fit({PeerName::Kind::kDns, "b.example.com"}));
}

TEST(PeerPatterns, APatternThatCanFitNothingIsRefused) {
  for (const char* wrong : {"", "a b", "a..b", ".example.com", "example.com/a", "spiffe:///a",
                            "spiffe://a//b", "spiffe://a/", "sp*://a/b", "://a", "spiffe://a/../b"}) {
    try {
      const PeerPatterns patterns({"good.example.com", wrong});
      ADD_FAILURE() << "taken: " << wrong;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Status::kInvalidArgument);
      EXPECT_NE(error.message().find("secure.peers"), std::string::npos) << error.message();
    }
  }
  EXPECT_THROW(PeerPatterns(std::vector<std::string>(257, "a")), Error);
}

}  // namespace
}  // namespace towline::secure
