// Where credentials come from: each source signs requests that a real server accepts; Amazon's services that
// give credentials out are played by the test.
#include <atomic>
#include <fstream>
#include <mutex>

#include "fixture.h"
#include "support/object_settings.h"
#include "variables.h"

namespace towline::interop {
namespace {

class ObjectCredentials : public ObjectTest {
 protected:
  // Nothing of the machine's own gets in.
  Variables nothing_{{{"AWS_EC2_METADATA_DISABLED", "true"},
                      {"AWS_SHARED_CREDENTIALS_FILE", "/nonexistent"},
                      {"AWS_CONFIG_FILE", "/nonexistent"},
                      {"AWS_ACCESS_KEY_ID", ""},
                      {"AWS_SECRET_ACCESS_KEY", ""}}};
  TemporaryFolder folder_;

  std::string write_file(const std::string& name, const std::string& text) {
    const std::string path = folder_.path() + "/" + name;
    std::ofstream(path) << text;
    return path;
  }
  static std::string bare(const std::string& endpoint, const std::string& more = {}) {
    return "plugins = \"object\"\n" +
           object_settings("object", "endpoint = \"" + endpoint + "\"\nbackoff = \"1ms\"\n" + more);
  }
  void expect_works(const std::string& config, const std::string& source) {
    make_object("credited", 1000, 1);
    const Agent agent("credited", options_for(config));
    const Region memory = agent.register_memory(dram(memory_.data(), 1000), {.access = Access::kAll});
    const Region object = agent.register_storage("s3://bucket/credited");
    const Transfer read = agent.transfer(agent.block_list(object.blocks(0, 1000)),
                                         agent.block_list(Blocks::at(memory_.data(), 1000)));
    ASSERT_EQ(run(read), Status::kOk);
    EXPECT_EQ(first_difference(memory_.data(), 1000, 1), 1000u);
    EXPECT_NE(read.route().find("\"credentials\":\"" + source + "\""), std::string::npos) << read.route();
  }
};

TEST_F(ObjectCredentials, TheEnvironmentHasThem) {
  const Variables keys({{"AWS_ACCESS_KEY_ID", kAccessKey}, {"AWS_SECRET_ACCESS_KEY", kSecretKey}});
  expect_works(bare(server_->url()), "environment");
}

TEST_F(ObjectCredentials, AProfileHasThemAndTheEndpoint) {
  const std::string credentials = write_file(
      "credentials",
      std::string("[default]\naws_access_key_id = wrong\naws_secret_access_key = wrong\n[mine]\n") +
          "aws_access_key_id = " + kAccessKey + "\naws_secret_access_key = " + kSecretKey + "\n");
  const std::string config =
      write_file("config", "[profile mine]\nregion = us-east-1\nendpoint_url = " + server_->url() + "\n");
  const Variables files(
      {{"AWS_SHARED_CREDENTIALS_FILE", credentials}, {"AWS_CONFIG_FILE", config}, {"AWS_PROFILE", "mine"}});
  expect_works("plugins = \"object\"\n", "profile");
}

TEST_F(ObjectCredentials, ASecretMayLieInAFile) {
  const std::string secret = write_file("secret", std::string(kSecretKey) + "\n");
  expect_works(bare(server_->url(), std::string("access_key = \"") + kAccessKey + "\"\nsecret_key_file = \"" +
                                        secret + "\"\n"),
               "settings");
}

std::string keys_json(const std::string& access, const std::string& secret, const std::string& expires) {
  return R"({"Code":"Success","AccessKeyId":")" + access + R"(","SecretAccessKey":")" + secret +
         R"(","Token":"","Expiration":")" + expires + "\"}";
}

TEST_F(ObjectCredentials, InstanceMetadataGivesThemByVersionTwo) {
  std::atomic<int> tokens{0};
  Proxy metadata(0, [&](const Request& request) -> Fault {
    if (request.method == "PUT" && request.target == "/latest/api/token") {
      ++tokens;
      if (!request.headers.contains("x-aws-ec2-metadata-token-ttl-seconds"))
        return {.answer = Proxy::http(400, "")};
      return {.answer = Proxy::http(200, "the-token")};
    }
    if (!request.headers.contains("x-aws-ec2-metadata-token") ||
        request.headers.at("x-aws-ec2-metadata-token") != "the-token")
      return {.answer = Proxy::http(401, "")};
    if (request.target == "/latest/meta-data/iam/security-credentials/")
      return {.answer = Proxy::http(200, "the-role")};
    if (request.target == "/latest/meta-data/iam/security-credentials/the-role")
      return {.answer = Proxy::http(200, keys_json(kAccessKey, kSecretKey, "2099-01-01T00:00:00Z"))};
    return {.answer = Proxy::http(404, "")};
  });
  expect_works(
      bare(server_->url(), "credentials = \"instance\"\nmetadata_endpoint = \"" + metadata.url() + "\"\n"),
      "instance metadata");
  EXPECT_GE(tokens, 1);
}

TEST_F(ObjectCredentials, TheCloudIsNotAskedWithoutSayingSo) {
  const Variables asks({{"AWS_EC2_METADATA_DISABLED", "false"}, {"AWS_PROFILE", ""}});
  Proxy metadata(0, [&](const Request& request) -> Fault {
    if (request.method == "PUT") return {.answer = Proxy::http(200, "t")};
    if (request.target.ends_with("/")) return {.answer = Proxy::http(200, "role")};
    return {.answer = Proxy::http(200, keys_json(kAccessKey, kSecretKey, "2099-01-01T00:00:00Z"))};
  });
  ::testing::internal::CaptureStderr();
  expect_works(bare(server_->url(), "metadata_endpoint = \"" + metadata.url() + "\"\n"), "instance metadata");
  const std::string told = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(told.find("this machine's cloud is asked for them at " + metadata.url()), std::string::npos)
      << told;
}

// A new object is not looked up first.
TEST_F(ObjectCredentials, TheyAreWaitedForWhereTheFirstRequestIsAWrite) {
  Proxy metadata(0, [&](const Request& request) -> Fault {
    if (request.method == "PUT") return {.answer = Proxy::http(200, "t")};
    if (request.target.ends_with("/")) return {.answer = Proxy::http(200, "role")};
    return {.answer = Proxy::http(200, keys_json(kAccessKey, kSecretKey, "2099-01-01T00:00:00Z"))};
  });
  const Agent agent("writer",
                    options_for(bare(server_->url(), "credentials = \"instance\"\nmetadata_endpoint = \"" +
                                                         metadata.url() + "\"\n")));
  const Region memory = agent.register_memory(dram(memory_.data(), 1000), {.access = Access::kAll});
  const Region object =
      agent.register_storage("s3://bucket/first-write", {.create = true, .truncate = true, .bytes = 1000});
  EXPECT_EQ(run(agent.transfer(agent.block_list(Blocks::at(memory_.data(), 1000)),
                               agent.block_list(object.blocks(0, 1000)))),
            Status::kOk);
}

TEST_F(ObjectCredentials, AWebIdentityIsExchangedForThem) {
  const std::string token = write_file("token", "ey+J/a=\n");
  std::string asked;
  std::mutex mutex;
  Proxy sts(0, [&](const Request& request) -> Fault {
    const std::lock_guard lock(mutex);
    asked = request.body;
    return {.answer = Proxy::http(
                200, std::string("<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult>"
                                 "<Credentials><AccessKeyId>") +
                         kAccessKey + "</AccessKeyId><SecretAccessKey>" + kSecretKey +
                         "</SecretAccessKey><Expiration>2099-01-01T00:00:00Z</Expiration></Credentials>"
                         "</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>")};
  });
  const Variables role({{"AWS_ROLE_ARN", "arn:aws:iam::1:role/r"}, {"AWS_WEB_IDENTITY_TOKEN_FILE", token}});
  expect_works(bare(server_->url(), "sts_endpoint = \"" + sts.url() + "\"\n"), "web identity");
  EXPECT_NE(asked.find("RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Fr"), std::string::npos) << asked;
  EXPECT_NE(asked.find("WebIdentityToken=ey%2BJ%2Fa%3D"), std::string::npos) << asked;
}

TEST_F(ObjectCredentials, WhatHasExpiredIsRenewedWhereTheSourceCan) {
  // The first keys are refused as expired; those given next are good.
  std::atomic<int> given{0};
  Proxy metadata(0, [&](const Request& request) -> Fault {
    if (request.method == "PUT") return {.answer = Proxy::http(200, "t")};
    if (request.target.ends_with("/")) return {.answer = Proxy::http(200, "role")};
    const bool first = given++ == 0;
    return {.answer = Proxy::http(200, keys_json(first ? "expired" : kAccessKey,
                                                 first ? "expired" : kSecretKey, "2099-01-01T00:00:00Z"))};
  });
  Proxy proxy(server_->port(), [](const Request& request) -> Fault {
    const bool expired = request.headers.at("authorization").find("Credential=expired/") != std::string::npos;
    return {.answer = expired ? Proxy::s3_error(400, "ExpiredToken") : ""};
  });
  expect_works(
      bare(proxy.url(),
           "attempts = 100\nbackoff_most = \"20ms\"\ncredentials = \"instance\"\nmetadata_endpoint = \"" +
               metadata.url() + "\"\n"),
      "instance metadata");
  EXPECT_GE(given, 2);
  // Those of the settings are what they are.
  Proxy always(server_->port(),
               [](const Request&) -> Fault { return {.answer = Proxy::s3_error(400, "ExpiredToken")}; });
  const Agent agent("expired", options_for(config_for(always.url(), "session_token = \"old\"\n")));
  const auto [status, text] = refusal(agent, "s3://bucket/credited");
  EXPECT_EQ(status, Status::kPermissionDenied) << text;
  EXPECT_NE(text.find("ExpiredToken"), std::string::npos) << text;
  EXPECT_NE(text.find("settings"), std::string::npos) << text;
  EXPECT_EQ(always.seen()[0].headers.at("x-amz-security-token"), "old");
}

// A new login puts the keys of the new session into the file.
TEST_F(ObjectCredentials, AProfileWhoseKeysHaveExpiredIsReadAnew) {
  Proxy proxy(server_->port(), [](const Request& request) -> Fault {
    const bool expired = request.headers.at("authorization").find("Credential=expired/") != std::string::npos;
    return {.answer = expired ? Proxy::s3_error(400, "ExpiredToken") : ""};
  });
  const auto profile = [&](const std::string& access, const std::string& secret) {
    return write_file(
        "session", "[default]\naws_access_key_id = " + access + "\naws_secret_access_key = " + secret + "\n");
  };
  const Variables files(
      std::map<std::string, std::string>{{"AWS_SHARED_CREDENTIALS_FILE", profile("expired", "expired")}});
  make_object("credited", 1000, 1);
  const Agent agent("session", options_for(bare(proxy.url())));
  const auto [status, text] = refusal(agent, "s3://bucket/credited");
  EXPECT_EQ(status, Status::kPermissionDenied) << text;
  EXPECT_NE(text.find("ExpiredToken"), std::string::npos) << text;
  (void)profile(kAccessKey, kSecretKey);
  EXPECT_EQ(refusal(agent, "s3://bucket/credited"), (std::pair<Status, std::string>{}));
}

TEST_F(ObjectCredentials, AskingTheMachinesCloudForThemIsSaidWhereNobodyHasNamedIt) {
  const Proxy metadata(0, [](const Request&) -> Fault { return {.answer = Proxy::http(404, "")}; });
  const Variables on(std::map<std::string, std::string>{{"AWS_EC2_METADATA_DISABLED", "false"}});
  const std::string where = "metadata_endpoint = \"" + metadata.url() + "\"\n";
  const auto said = [&](const std::string& settings) {
    ::testing::internal::CaptureStderr();
    {
      const Agent agent("asking", options_for(bare(server_->url(), where + settings)));
      for (int i = 0; i < 2; ++i)
        EXPECT_EQ(refusal(agent, "s3://bucket/key").first, Status::kPermissionDenied);
    }
    const std::string text = ::testing::internal::GetCapturedStderr();
    size_t count = 0;
    for (size_t at = 0;
         (at = text.find("cloud is asked for them at " + metadata.url(), at)) != std::string::npos; ++at)
      ++count;
    return count;
  };
  EXPECT_EQ(said(""), 1u);
  EXPECT_EQ(said("credentials = \"instance\"\n"), 0u);
}

TEST_F(ObjectCredentials, WhereThereAreNoneEverySourceIsNamed) {
  const Agent agent("nobody", options_for(bare(server_->url())));
  const auto [status, text] = refusal(agent, "s3://bucket/key");
  EXPECT_EQ(status, Status::kPermissionDenied);
  for (const char* source : {"settings:", "environment:", "web identity:", "profile:", "instance metadata:"})
    EXPECT_NE(text.find(source), std::string::npos) << source << "\n" << text;
  Proxy silent(0, [](const Request&) -> Fault { return {.answer = Proxy::http(500, "")}; });
  const Agent other("other",
                    options_for(bare(server_->url(), "credentials = \"instance\"\nmetadata_endpoint = \"" +
                                                         silent.url() + "\"\n")));
  const auto [again, why] = refusal(other, "s3://bucket/key");
  EXPECT_EQ(again, Status::kPermissionDenied) << why;
}

TEST_F(ObjectCredentials, WithoutThemRequestsGoUnsigned) {
  Proxy open_to_all(0, [](const Request& request) -> Fault {
    if (request.headers.contains("authorization")) return {.answer = Proxy::http(400, "")};
    return {.answer =
                Proxy::http(200, "", "ETag: \"x\"\r\nLast-Modified: Fri, 24 May 2013 00:00:00 GMT\r\n")};
  });
  const Agent agent("anonymous", options_for(bare(open_to_all.url(), "credentials = \"none\"\n")));
  EXPECT_EQ(agent.query_storage("s3://bucket/key").exists, 1u);
}

TEST_F(ObjectCredentials, BadSettingsAreNamed) {
  for (const auto& [setting, wanted] :
       {std::pair<std::string, std::string>{"part = \"1MiB\"", "tuning.object.part"},
        {"endpoint = \"localhost\"", "http://host"},
        {"style = \"round\"", "tuning.object.style"},
        {"concurrency = 0", "tuning.object.concurrency"},
        {"checksum = \"md5\"", "crc32c, sha256, none"},
        {"stall_timeout = \"5\"", "tuning.object.stall_timeout"},
        {"secret_key_file = \"/nonexistent\"", "can't be read"}}) {
    try {
      const Agent agent("wrong",
                        options_for("plugins = \"object\"\n" + object_settings("object", setting + "\n")));
      ADD_FAILURE() << setting << " was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Status::kInvalidArgument);
      EXPECT_NE(std::string(error.what()).find(wanted), std::string::npos) << setting << "\n" << error.what();
    }
  }
}

}  // namespace
}  // namespace towline::interop
