#include "storage_schemes.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <towline/storage.hpp>
#include <towline/towline.hpp>

namespace tool {
namespace {

TEST(StorageSchemes, AreWhatStandsBeforeTheColon) {
  EXPECT_EQ(scheme_of("s3://bucket/key")->backend, "object");
  EXPECT_EQ(scheme_of("gs://bucket")->backend, "gcs");
  EXPECT_FALSE(scheme_of("gds:/data")->objects);
  for (const char* place : {"/data", "./s3:x", "a b:c", ":x", "", "ftp://host", "peer:host:1"})
    EXPECT_EQ(scheme_of(place), nullptr) << place;
  EXPECT_EQ(scheme_text("ftp://host"), "ftp");
  EXPECT_EQ(scheme_text("./s3:x"), "");
}

TEST(StorageSchemes, CodesOfFailuresAreErrnosOrHttp) {
  EXPECT_EQ(vendor_code_text(28), "No space left on device");
  EXPECT_EQ(vendor_code_text(133), "Memory page has hardware error");
  EXPECT_EQ(vendor_code_text(200), "HTTP 200");  // of an answer that makes no sense
  EXPECT_EQ(vendor_code_text(503), "HTTP 503");
}

TEST(StorageSchemes, NameEachPluginOnce) {
  EXPECT_EQ(plugins_for({"s3://a", "az://b"}), "plugins = \"object\"\n");
  EXPECT_EQ(plugins_for({"gds:/a", "file:/b", "s3://c"}), "plugins = \"gds,object\"\n");
  EXPECT_EQ(plugins_for({"file:/a", "/b", "peer:host:1"}), "");
}

// The table agrees with the library's: an agent without plugins names the one that each scheme needs.
TEST(StorageSchemes, NeedThePluginThatTheLibraryNames) {
  const towline::Agent agent("schemes", {.listen = "none"});
  for (const StorageScheme& scheme : storage_schemes()) {
    if (scheme.plugin.empty()) continue;
    try {
      (void)agent.query_storage(fmt::format("{}:{}", scheme.name, scheme.objects ? "//bucket/key" : "/x"));
      FAIL() << scheme.name;
    } catch (const towline::Error& error) {
      const std::string text = error.what();
      EXPECT_EQ(error.code(), towline::Status::kUnsupported) << text;
      const bool loads = text.find(fmt::format("plugins = \"{}\"", scheme.plugin)) != std::string::npos;
      const bool absent = text.find(fmt::format("libtowline_{}.so", scheme.plugin)) != std::string::npos;
      EXPECT_TRUE(loads || absent) << text;
    }
  }
}

}  // namespace
}  // namespace tool
