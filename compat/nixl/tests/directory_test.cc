// Metadata through etcd: a real one, started for the test, and one of the test's own. Skipped if etcd or its plugin is not
// installed.
#include <atomic>
#include <cstdlib>
#include <optional>

#include "support.h"
#include "support/etcd_servers.h"

namespace compat {
namespace {

using towline::support::Etcd;
using towline::support::FakeServer;

class Directories : public testing::Test {
 protected:
  void SetUp() override {
    if (!Etcd::installed()) GTEST_SKIP() << "no etcd in PATH";
    etcd_.emplace();
    setenv("NIXL_ETCD_ENDPOINTS", ("http://" + etcd_->address()).c_str(), 1);
    setenv("TOWLINE_NIXL_METADATA_TIMEOUT", "20s", 1);  // it has to come up first
    a_.emplace("directory-a");
    b_.emplace("directory-b", 8 * 4096);
    if (a_->agent->sendLocalMD() != NIXL_SUCCESS) {
      GTEST_SKIP() << "no plugin for etcd: " << towline::nixl::last_error();
    }
    ASSERT_EQ(outcome(*a_->agent), "");
  }
  void TearDown() override {
    a_.reset();
    b_.reset();
    unsetenv("NIXL_ETCD_ENDPOINTS");
    unsetenv("TOWLINE_NIXL_METADATA_TIMEOUT");
    etcd_.reset();
  }

  // Why the agent's latest call failed, once it has ended.
  static std::string outcome(const nixlAgent& agent) {
    EXPECT_TRUE(
        eventually([&] { return towline::nixl::metadata_calls(agent).back().status != NIXL_IN_PROG; }));
    const towline::nixl::MetadataCall call = towline::nixl::metadata_calls(agent).back();
    return call.status == NIXL_SUCCESS ? "" : nixlEnumStrings::statusStr(call.status) + " " + call.error;
  }

  std::optional<Etcd> etcd_;
  std::optional<Side> a_;
  std::optional<Side> b_;
};

TEST_F(Directories, AgentsFindEachOtherByNameAndSeeWhenTheyGo) {
  ASSERT_EQ(b_->agent->fetchRemoteMD("directory-a"), NIXL_SUCCESS);
  ASSERT_EQ(outcome(*b_->agent), "");
  EXPECT_EQ(b_->agent->checkRemoteMD("directory-a", a_->blocks(2, 64)), NIXL_SUCCESS);
  nixlXferReqH* made = request(*b_, NIXL_WRITE, b_->blocks(1, 64), a_->blocks(1, 64), "directory-a");
  ASSERT_NE(made, nullptr);
  EXPECT_EQ(run(*b_->agent, made), NIXL_SUCCESS);
  ASSERT_EQ(a_->agent->invalidateLocalMD(), NIXL_SUCCESS);
  ASSERT_EQ(outcome(*a_->agent), "");
  EXPECT_TRUE(
      eventually([&] { return b_->agent->checkRemoteMD("directory-a", {DRAM_SEG}) == NIXL_ERR_NOT_FOUND; }));
  EXPECT_EQ(b_->agent->postXferReq(made), NIXL_ERR_NOT_FOUND);
  // Published again, and gone with its agent.
  ASSERT_EQ(a_->agent->sendLocalMD(), NIXL_SUCCESS);
  ASSERT_EQ(b_->agent->fetchRemoteMD("directory-a"), NIXL_SUCCESS);
  ASSERT_EQ(outcome(*b_->agent), "");
  EXPECT_EQ(b_->agent->checkRemoteMD("directory-a", {DRAM_SEG}), NIXL_SUCCESS);
  a_.reset();
  EXPECT_TRUE(
      eventually([&] { return b_->agent->checkRemoteMD("directory-a", {DRAM_SEG}) == NIXL_ERR_NOT_FOUND; }));
}

TEST_F(Directories, PartsHaveLabelsAndMissingOnesAreSaidToBeMissing) {
  nixl_reg_dlist_t part(DRAM_SEG);
  part.addDesc(nixlBlobDesc(b_->address(), 4096, 0, ""));
  ASSERT_EQ(b_->agent->registerMem(part), NIXL_SUCCESS);
  nixl_opt_args_t args;
  EXPECT_EQ(b_->agent->sendLocalPartialMD(part, &args), NIXL_ERR_INVALID_PARAM);  // no label
  args.metadataLabel = "layer-0";
  args.includeConnInfo = true;
  ASSERT_EQ(b_->agent->sendLocalPartialMD(part, &args), NIXL_SUCCESS);
  ASSERT_EQ(a_->agent->fetchRemoteMD("directory-b", &args), NIXL_SUCCESS);
  ASSERT_EQ(outcome(*a_->agent), "");
  EXPECT_EQ(a_->agent->checkRemoteMD("directory-b", part.trim()), NIXL_SUCCESS);
  EXPECT_EQ(a_->agent->checkRemoteMD("directory-b", b_->registered().trim()), NIXL_ERR_NOT_FOUND);
  nixlAgentConfig impatient;
  impatient.etcdWatchTimeout = std::chrono::milliseconds{100};
  Side c("directory-c", 4096, impatient);
  ASSERT_EQ(c.agent->fetchRemoteMD("nobody"), NIXL_SUCCESS);
  EXPECT_EQ(outcome(*c.agent).find("NIXL_ERR_NOT_FOUND"), 0U) << outcome(*c.agent);
}

std::string base64(std::string_view bytes) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const std::string_view part = bytes.substr(i, 3);
    uint32_t bits = 0;
    for (size_t j = 0; j < 3; ++j) bits = bits << 8 | (j < part.size() ? static_cast<uint8_t>(part[j]) : 0);
    for (size_t j = 0; j < 4; ++j) text += j <= part.size() ? kDigits[bits >> (18 - 6 * j) & 63] : '=';
  }
  return text;
}

// An agent was published, taken back, and published again. The watch of another one is behind: that the first is gone comes
// after the second has been fetched.
TEST(LateDirectory, RemovalsFromBeforeWhatWasFetchedChangeNothing) {
  Side a("late-a");
  const std::string key = R"("key": ")" + base64("/nixl/agents/late-a/metadata") + R"(", )";
  const std::string now = base64(a.metadata());
  std::atomic<bool> watched{false};
  const FakeServer server([&](const std::string& path, const std::string& body) {
    const auto answer = [](int revision, const std::string& rest) {
      return R"({"header": {"cluster_id": "1", "revision": ")" + std::to_string(revision) + R"("}, )" + rest +
             "}";
    };
    if (path == "/v3/watch") {
      watched = true;
      const std::string gone = R"("events": [{"type": "DELETE", "kv": {)" + key + R"("mod_revision": "6"}}])";
      const std::string lines =
          "{\"result\": " + answer(6, R"("created": true)") + "}\n{\"result\": " + answer(6, gone) + "}\n";
      return FakeServer::Answer{.bytes = "HTTP/1.1 200 OK\r\n\r\n" + lines, .hold = true};
    }
    const bool list = body.find("range_end") != std::string::npos;
    if (!list) (void)eventually([&] { return watched.load(); });
    const std::string found =
        list ? R"("mod_revision": "5")" : R"("mod_revision": "9", "value": ")" + now + '"';
    return FakeServer::http(200, answer(list ? 5 : 9, R"("kvs": [{)" + key + found + "}]"));
  });
  setenv("NIXL_ETCD_ENDPOINTS", ("http://" + server.address()).c_str(), 1);
  Side b("late-b");
  unsetenv("NIXL_ETCD_ENDPOINTS");
  if (b.agent->fetchRemoteMD("late-a") != NIXL_SUCCESS)
    GTEST_SKIP() << "no plugin for etcd: " << towline::nixl::last_error();
  ASSERT_TRUE(
      eventually([&] { return towline::nixl::metadata_calls(*b.agent).back().status != NIXL_IN_PROG; }));
  const towline::nixl::MetadataCall call = towline::nixl::metadata_calls(*b.agent).back();
  ASSERT_EQ(call.status, NIXL_SUCCESS) << call.error;
  EXPECT_FALSE(
      eventually([&] { return b.agent->checkRemoteMD("late-a", a.blocks(2, 64)) != NIXL_SUCCESS; }, 300ms));
}

}  // namespace
}  // namespace compat
