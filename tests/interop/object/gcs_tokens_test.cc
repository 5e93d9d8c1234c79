// gs:// with OAuth tokens: from settings, files, accounts and machines of Google's. All servers are the tests' own, since no
// real one at hand takes a token.
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <utility>

#include "fixture.h"
#include "support/rsa_key.h"
#include "variables.h"

namespace towline::interop {
namespace {

// A bucket that takes one token, and then another.
class Tokens : public ::testing::Test {
 protected:
  Tokens()
      : bucket_(0, [this](const Request& request) {
          const auto given = request.headers.find("authorization");
          if (given == request.headers.end() || given->second != "Bearer " + good())
            return Fault{.answer = Proxy::s3_error(401, "AuthenticationRequired")};
          return Fault{.answer = Proxy::http(200, request.method == "HEAD" ? "" : "x", "etag: \"1\"\r\n")};
        }) {}

  [[nodiscard]] std::string good() {
    const std::lock_guard lock(mutex_);
    return good_;
  }
  void expire(const std::string& next) {
    const std::lock_guard lock(mutex_);
    good_ = next;
  }
  [[nodiscard]] std::string config(const std::string& more, const std::string& tuning = {}) const {
    return "plugins = \"object\"\n[gcs]\nendpoint = \"" + bucket_.url() + "\"\n" + more + "[tuning.gcs]\n" +
           tuning;
  }
  // What a look at an object answers.
  std::pair<Status, std::string> look(Agent& agent) {
    try {
      (void)agent.query_storage("gs://bucket/key");
      return {Status::kOk, ""};
    } catch (const Error& error) {
      return {error.code(), error.what()};
    }
  }
  [[nodiscard]] std::string write_file(const std::string& name, const std::string& text) const {
    const std::string path = folder_.path() + "/" + name;
    std::ofstream(path) << text;
    return path;
  }

  // Nothing of the machine's own gets in.
  Variables nothing_{{{"GOOGLE_APPLICATION_CREDENTIALS", ""},
                      {"CLOUDSDK_AUTH_ACCESS_TOKEN_FILE", ""},
                      {"GS_ACCESS_KEY_ID", ""},
                      {"HOME", "/nonexistent"}}};
  std::mutex mutex_;
  std::string good_ = "first";
  TemporaryFolder folder_;
  Proxy bucket_;
};

TEST_F(Tokens, GoWithoutAnyHeaderOfAmazons) {
  Agent agent("token", options_for(config("token = \"first\"\n")));
  EXPECT_EQ(look(agent).first, Status::kOk);
  const std::vector<Request> seen = bucket_.seen();
  ASSERT_EQ(seen.size(), 1u);
  for (const auto& [name, value] : seen[0].headers) EXPECT_FALSE(name.starts_with("x-amz-")) << name;
}

TEST_F(Tokens, ThatHasExpiredIsAnErrorWhereThereIsNoOther) {
  Agent agent("expired", options_for(config("token = \"stale\"\n")));
  const auto [status, text] = look(agent);
  EXPECT_EQ(status, Status::kPermissionDenied);
  EXPECT_NE(text.find("AuthenticationRequired"), std::string::npos) << text;
  EXPECT_LE(bucket_.seen().size(), 2u) << "HEAD, and GET for the reason";
}

TEST_F(Tokens, OfAFileAreReadAnewWhenTheyHaveExpired) {
  const std::string file = write_file("token", "first\n");
  Agent agent("file", options_for(config("token_file = \"" + file + "\"\n")));
  EXPECT_EQ(look(agent).first, Status::kOk);
  expire("second");
  (void)write_file("token", "second\n");
  EXPECT_EQ(look(agent).first, Status::kOk);
}

TEST_F(Tokens, OfAMachineOfGooglesAreAskedForWhereThatIsChosen) {
  Proxy machine(0, [&](const Request& request) {
    if (request.target != "/computeMetadata/v1/instance/service-accounts/default/token" ||
        request.headers.at("metadata-flavor") != "Google")
      return Fault{.answer = Proxy::http(404, "")};
    return Fault{.answer = Proxy::http(
                     200, R"({"access_token":")" + good() + R"(","expires_in":3599,"token_type":"Bearer"})")};
  });
  const std::string at = "metadata_endpoint = \"" + machine.url() + "\"\n";
  Agent agent("machine", options_for(config("credentials = \"instance\"\n", at)));
  EXPECT_EQ(look(agent).first, Status::kOk);
  expire("second");
  EXPECT_EQ(look(agent).first, Status::kOk);
  EXPECT_EQ(machine.seen().size(), 2u);
  machine.forget();
  Agent unasked("unasked", options_for(config("", at)));
  const auto [status, text] = look(unasked);
  EXPECT_EQ(status, Status::kPermissionDenied);
  EXPECT_NE(text.find("gcs.account_file"), std::string::npos) << text;
  EXPECT_TRUE(machine.seen().empty());
}

TEST_F(Tokens, FilesOfAnotherTypeAreRefusedByName) {
  const std::string file = write_file(
      "user.json", R"({"type":"external_account","client_id":"a","client_secret":"b","refresh_token":"c"})");
  Agent agent("user", options_for(config("account_file = \"" + file + "\"\n")));
  const auto [status, text] = look(agent);
  EXPECT_EQ(status, Status::kPermissionDenied);
  EXPECT_NE(text.find("its type is \"external_account\""), std::string::npos) << text;
}

TEST_F(Tokens, OfAServiceAccountAreAskedForWithItsSignature) {
  std::string form;
  Proxy tokens(0, [&](const Request& request) {
    const std::lock_guard lock(mutex_);
    form = request.body;
    return Fault{.answer = Proxy::http(200, R"({"access_token":")" + good_ + R"(","expires_in":3599})")};
  });
  const std::string file = write_file("account.json", nlohmann::json{{"type", "service_account"},
                                                                     {"client_email", "me@example.com"},
                                                                     {"private_key", support::RsaKey().pem()},
                                                                     {"private_key_id", "7"},
                                                                     {"token_uri", tokens.url() + "/token"}}
                                                          .dump());
  const Variables given({{"GOOGLE_APPLICATION_CREDENTIALS", file}});
  Agent agent("account", options_for(config("")));
  const auto [status, text] = look(agent);
  EXPECT_EQ(status, Status::kOk) << text;
  EXPECT_EQ(tokens.seen().at(0).target, "/token");
  EXPECT_TRUE(form.starts_with("grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Ajwt-bearer&assertion="))
      << form;
  tokens.judge([](const Request&) {
    return Fault{.answer =
                     Proxy::http(400, R"({"error":"invalid_grant","error_description":"Unknown account"})")};
  });
  Agent refused("refused", options_for(config("credentials = \"account\"\n")));
  const auto [why, words] = look(refused);
  EXPECT_EQ(why, Status::kPermissionDenied);
  EXPECT_NE(words.find("400 invalid_grant: Unknown account"), std::string::npos) << words;
}

}  // namespace
}  // namespace towline::interop
