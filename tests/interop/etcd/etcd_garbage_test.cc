// Servers that are no etcd, or a broken one: what they send ends in a status by the deadline, and never in
// more.
#include <optional>

#include "support.h"

namespace towline::interop {
namespace {

struct Nonsense {
  const char* name;
  FakeServer::Answer answer;
  Status get;        // what a get ends with
  const char* says;  // and what its error has in it
};

void PrintTo(const Nonsense& nonsense, std::ostream* out) { *out << nonsense.name; }

// A body that ends with the connection.
constexpr const char* kOpenEnd = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n";

class EtcdGarbage : public ::testing::TestWithParam<Nonsense> {};

TEST_P(EtcdGarbage, EndsEveryCallWithAReason) {
  const FakeServer server([](const std::string& path, const std::string&) {
    // A client that only puts a key does not see errors in found keys.
    const bool found = std::string_view(GetParam().name) == "wrong_base64" && path == "/v3/kv/put";
    return found ? FakeServer::http(200, "{}") : GetParam().answer;
  });
  const Agent agent = make_agent("a", std::string(kQuick) + "max_answer = \"1MiB\"\n");
  const Directory directory(agent, "etcd://" + server.address());
  const Watch watch = directory.watch();
  const DirectoryCall get = directory.get("key", {.timeout = 2s});
  const DirectoryCall put = directory.put("key", "value", {.timeout = 2s});
  const DirectoryCall create = directory.put("created", "value", {.create = true, .timeout = 2s});
  const DirectoryCall leased = directory.put("leased", "value", {.leased = true, .timeout = 2s});
  const DirectoryCall removed = directory.remove("other", {.timeout = 2s});
  const DirectoryCall waiting = directory.get("waited", {.wait = true, .timeout = 2s});
  const auto begun_at = SteadyClock::now();
  for (const DirectoryCall* call : {&get, &put, &create, &leased, &removed, &waiting}) {
    EXPECT_TRUE(is_error(call->wait(20s))) << status_name(call->wait(20s));
    EXPECT_FALSE(call->error().empty());
    EXPECT_LT(call->error().size(), 2000u);
  }
  EXPECT_LT(SteadyClock::now() - begun_at, 20s);
  EXPECT_EQ(get.wait(), GetParam().get) << get.error();
  EXPECT_NE(get.error().find(GetParam().says), std::string_view::npos) << get.error();
  EXPECT_NE(get.error().find(server.address()), std::string_view::npos) << get.error();
  EXPECT_NE(leased.error().find(server.address()), std::string_view::npos) << leased.error();
  EXPECT_NE(watch.status(), Status::kOk);
}

INSTANTIATE_TEST_SUITE_P(
    Answers, EtcdGarbage,
    ::testing::Values(
        Nonsense{"no_json", FakeServer::http(200, "<html>hello</html>"), Status::kProtocol, "no JSON"},
        Nonsense{"cut_json", FakeServer::http(200, R"({"header": {"revi)"), Status::kProtocol, "no JSON"},
        Nonsense{"other_json", FakeServer::http(200, R"({"status": "ok"})"), Status::kProtocol, "header"},
        Nonsense{"deep_json", FakeServer::http(200, std::string(200'000, '[')), Status::kProtocol, "nested"},
        Nonsense{"wrong_base64",
                 FakeServer::http(200, R"({"header": {}, "kvs": [{"key": "!!!"}], "ID": "x", "deleted": [],
                                           "succeeded": "no"})"),
                 Status::kProtocol, "base64"},
        Nonsense{"not_found", FakeServer::http(404, "404 page not found\n"), Status::kProtocol,
                 "JSON gateway"},
        Nonsense{"broken", FakeServer::http(500, "oops"), Status::kUnreachable, "HTTP 500"},
        Nonsense{"no_http", {"SSH-2.0-OpenSSH_9.2\r\n"}, Status::kUnreachable, ""},
        Nonsense{"hangs_up", {""}, Status::kUnreachable, ""},
        Nonsense{"silent",
                 {"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", false, true},
                 Status::kTimedOut,
                 ""},
        Nonsense{"endless",
                 {std::string(kOpenEnd) + "{\"a\": \"", true},
                 Status::kLimitExceeded,
                 "tuning.etcd.max_answer"}),
    [](const auto& test) { return test.param.name; });

// A header as etcd's, for answers that begin well.
constexpr const char* kHeader = R"("header": {"cluster_id": "1", "revision": "5"})";

std::string object(const std::string& rest) { return std::string("{") + kHeader + rest + "}"; }

TEST(EtcdGarbage, ABadLineInAWatchIsTriedAgainUntilItIsWell) {
  std::atomic<int> streams{0};
  const FakeServer server([&](const std::string& path, const std::string&) {
    if (path != "/v3/watch") return FakeServer::http(200, object(""));
    const std::string event =
        R"(, "events": [{"kv": {"key": "L24vYWdlbnRzL2s=", "value": "dg==", "mod_revision": "6"}}])";
    const std::string lines = ++streams < 3 ? "{\"result\": {\"header\": 5}}\n"
                                            : "{\"result\": " + object(", \"created\": true") + "}\n" +
                                                  "{\"result\": " + object(event) + "}\n";
    return FakeServer::Answer{kOpenEnd + lines, false, true};
  });
  const Agent agent = make_agent("a");
  const Directory directory(agent, "etcd://" + server.address() + "/n/agents");
  const Watch watch = directory.watch();
  EXPECT_EQ(next_of(watch), "synced");
  EXPECT_EQ(next_of(watch), "put k=v");
  EXPECT_GE(streams.load(), 3);
}

TEST(EtcdGarbage, AWatchLineWithoutAnEndIsGivenUp) {
  const FakeServer server([&](const std::string& path, const std::string&) {
    if (path != "/v3/watch") return FakeServer::http(200, object(""));
    return FakeServer::Answer{std::string(kOpenEnd) + "{", true};
  });
  const Agent agent = make_agent("a", "[tuning.etcd]\nmax_answer = \"1MiB\"\nattempt_timeout = \"60s\"\n");
  const Directory directory(agent, "etcd://" + server.address());
  const Watch watch = directory.watch();
  EXPECT_EQ(next_of(watch), "synced");
  EXPECT_TRUE(
      eventually([&] { return directory.info().find("tuning.etcd.max_answer") != std::string::npos; }));
}

TEST(EtcdGarbage, AServerThatIsBusyAtFirstIsAskedAgain) {
  std::atomic<int> asked{0};
  const FakeServer server([&](const std::string&, const std::string&) {
    if (++asked < 4) return FakeServer::http(503, R"({"error": "etcdserver: no leader", "code": 14})");
    return FakeServer::http(200, object(R"(, "kvs": [{"key": "L24vYWdlbnRzL2s=", "value": "dg=="}])"));
  });
  const Agent agent = make_agent("a");
  const Directory directory(agent, "etcd://" + server.address() + "/n/agents");
  EXPECT_EQ(directory.get("k").get_value(), "v");
  EXPECT_EQ(asked.load(), 4);
}

// The first attempt puts the key and its answer is lost: the second must not take the key for another's.
TEST(EtcdGarbage, ACreateWhoseAnswerWasLostIsStillOurs) {
  std::atomic<int> asked{0};
  const FakeServer server([&](const std::string&, const std::string&) {
    if (++asked == 1) return FakeServer::Answer{""};
    return FakeServer::http(
        200,
        object(R"(, "responses": [{"response_range": {"kvs": [{"key": "aw==", "value": "b3Vycw=="}]}}])"));
  });
  const Agent agent = make_agent("a");
  const Directory directory(agent, "etcd://" + server.address());
  EXPECT_EQ(directory.put("k", "ours", {.create = true}).wait(), Status::kOk);
  asked = 0;
  EXPECT_EQ(directory.put("k", "others", {.create = true}).wait(), Status::kAlreadyExists);
}

// The server holds a put's answer back until it is asked to take the lease back, which it never answers.
TEST(EtcdGarbage, ADirectoryThatWasClosedTakesNoNoticeOfALateAnswer) {
  std::atomic<bool> putting{false};
  std::atomic<bool> revoking{false};
  const FakeServer server([&](const std::string& path, const std::string&) {
    if (path == "/v3/lease/grant") return FakeServer::http(200, object(R"(, "ID": "7", "TTL": "60")"));
    if (path == "/v3/lease/revoke") {
      revoking = true;
      return FakeServer::Answer{"", false, true};
    }
    putting = true;
    (void)eventually([&] { return revoking.load(); });
    return FakeServer::http(200, object(""));
  });
  const Agent agent = make_agent("a");
  std::optional<Directory> directory(std::in_place, agent, "etcd://" + server.address());
  const DirectoryCall put = directory->put("key", "value", {.leased = true});
  ASSERT_TRUE(eventually([&] { return putting.load(); }));
  directory.reset();
  EXPECT_EQ(put.wait(), Status::kClosed);
  EXPECT_TRUE(eventually([&] { return revoking.load(); }));  // what is released ends behind the caller's back
}

}  // namespace
}  // namespace towline::interop
