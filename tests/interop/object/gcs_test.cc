// gs:// before a real S3 server that a proxy makes refuse what Google's XML interface does not have.
#include <atomic>
#include <csignal>

#include "fixture.h"
#include "support/directed.h"

namespace towline::interop {
namespace {

// Google refuses these parts of Amazon's interface.
Fault google(const Request& request) {
  for (const auto& [name, value] : request.headers) {
    if (name.starts_with("x-amz-checksum-") || name == "x-amz-sdk-checksum-algorithm" ||
        name == "x-amz-trailer")
      return {.answer = Proxy::s3_error(400, "InvalidArgument")};
    if (name.starts_with("x-amz-copy-source")) return {.answer = Proxy::s3_error(501, "NotImplemented")};
    const bool conditional = name == "if-match" || name == "if-none-match";
    if (conditional && request.method != "GET" && request.method != "HEAD")
      return {.answer = Proxy::s3_error(400, "ExcessHeaderValues")};
  }
  return {};
}

class Gcs : public ObjectTest {
 protected:
  void SetUp() override {
    ObjectTest::SetUp();
    if (IsSkipped()) return;
    proxy_ = std::make_unique<Proxy>(server_->port(), google);
    use("part = \"5MiB\"\nmultipart = \"8MiB\"\n");
  }
  void TearDown() override {
    region_.reset();
    agent_.reset();
    proxy_.reset();
  }
  void use(const std::string& more) {
    region_.reset();
    // The server's region; Google takes "auto".
    agent_ = std::make_unique<Agent>(
        "gcs", options_for(S3Server::config(proxy_->url(), more + "region = \"us-east-1\"\n", "gcs")));
    region_ = std::make_unique<Region>(
        agent_->register_memory(dram(memory_.data(), memory_.size()), {.access = Access::kAll}));
  }
  [[nodiscard]] Region open(const std::string& key, const StorageOptions& options = {}) const {
    return agent_->register_storage("gs://bucket/" + key, options);
  }
  void write(const std::string& key, uint64_t bytes, uint64_t seed) {
    const Region object = open(key, {.create = true, .truncate = true, .bytes = bytes});
    stamp_bytes(memory_.data(), bytes, seed);
    ASSERT_EQ(move(Op::write, 0, object, 0, bytes), Status::kOk);
    std::memset(memory_.data(), 0, bytes);
    ASSERT_EQ(move(Op::read, 0, open(key), 0, bytes), Status::kOk);
    EXPECT_EQ(first_difference(memory_.data(), bytes, seed), bytes);
  }

  std::unique_ptr<Proxy> proxy_;
};

TEST_F(Gcs, ObjectsOfOneAndOfManyRequestsGoAndComeBack) {
  write("gs/small", kMib, 1);
  write("gs/large", 23 * kMib, 2);
  size_t parts = 0;
  for (const Request& request : proxy_->seen()) {
    if (request.method != "PUT") continue;
    EXPECT_FALSE(request.headers.at("content-md5").empty());
    EXPECT_TRUE(request.headers.at("authorization").starts_with("AWS4-HMAC-SHA256 "));
    parts += request.has("partNumber=") ? 1u : 0u;
  }
  EXPECT_EQ(parts, 5u);
  std::vector<std::string> found;
  for (const StorageEntry& entry : agent_->list_storage("gs://bucket/gs/")) found.push_back(entry.uri);
  EXPECT_EQ(found, (std::vector<std::string>{"gs://bucket/gs/large", "gs://bucket/gs/small"}));
}

TEST_F(Gcs, RequestsAreSignedForTheRegionThatGoogleNames) {
  const Agent agent("auto", options_for(S3Server::config(proxy_->url(), {}, "gcs")));
  (void)agent.query_storage("gs://bucket/absent");
  const std::string authorization = proxy_->seen().at(0).headers.at("authorization");
  EXPECT_NE(authorization.find("/auto/s3/aws4_request"), std::string::npos) << authorization;
}

TEST_F(Gcs, WhatItsInterfaceCannotDoIsRefusedBeforeItIsTried) {
  write("partial", 10 * kMib, 3);
  proxy_->forget();
  const Region whole = open("partial", {.access = Access::kAll});
  EXPECT_EQ(move(Op::write, 0, whole, kMib, kMib), Status::kUnsupported);
  const auto [status, text] =
      refusal(*agent_, "gs://bucket/partial", {.access = Access::kAll, .conditional = true});
  EXPECT_EQ(status, Status::kUnsupported) << text;
  EXPECT_NE(text.find("conditional"), std::string::npos) << text;
  for (const Request& request : proxy_->seen()) EXPECT_NE(request.method, "PUT");
}

// The server's checksum of a whole object is in a header of Google's own.
TEST_F(Gcs, BytesThatAreNotTheObjectsAreNoticed) {
  write("checked", 2 * kMib, 7);
  proxy_->judge([](const Request& request) -> Fault {
    Fault fault = google(request);
    if (request.method == "HEAD")
      fault.set_headers["x-goog-hash"] = "md5=AAAAAAAAAAAAAAAAAAAAAA==,crc32c=AAAAAA==";
    return fault;
  });
  EXPECT_EQ(move(Op::read, 0, open("checked"), 0, 2 * kMib), Status::kCorrupt);
  use("checksum = \"none\"\n");
  EXPECT_EQ(move(Op::read, 0, open("checked"), 0, 2 * kMib), Status::kOk);
}

// The application says how large the object is, so that nothing is looked up; it is read in three ranges.
TEST_F(Gcs, BytesThatAreNotTheObjectsAreNoticedWithoutALookUp) {
  constexpr uint64_t kObject = 12 * kMib;
  write("unseen", kObject, 8);
  proxy_->forget();
  proxy_->judge([](const Request& request) -> Fault {
    Fault fault = google(request);
    if (request.method == "GET")
      fault.set_headers["x-goog-hash"] = "md5=AAAAAAAAAAAAAAAAAAAAAA==,crc32c=AAAAAA==";
    return fault;
  });
  EXPECT_EQ(move(Op::read, 0, open("unseen", {.bytes = kObject}), 0, kObject), Status::kCorrupt);
  EXPECT_EQ(move(Op::read, 0, open("unseen", {.bytes = kObject}), 0, kMib), Status::kOk)
      << "a part has no checksum";
  for (const Request& request : proxy_->seen()) EXPECT_NE(request.method, "HEAD");
  proxy_->judge(google);
  EXPECT_EQ(move(Op::read, 0, open("unseen", {.bytes = kObject}), 0, kObject), Status::kOk);
}

TEST_F(Gcs, RangesOfTwoGenerationsAreNotMixed) {
  constexpr uint64_t kObject = 12 * kMib;
  write("generations", kObject, 9);
  std::atomic<unsigned> changes_at{2};
  std::atomic<unsigned> reads{0};
  proxy_->judge([&](const Request& request) -> Fault {
    Fault fault = google(request);
    if (request.method == "GET") fault.set_headers["x-goog-generation"] = reads++ < changes_at ? "1" : "2";
    return fault;
  });
  EXPECT_EQ(move(Op::read, 0, open("generations", {.bytes = kObject}), 0, kObject), Status::kStale);
  reads = 0;
  changes_at = 100;
  EXPECT_EQ(move(Op::read, 0, open("generations", {.bytes = kObject}), 0, kObject), Status::kOk);
}

TEST_F(Gcs, AServerThatIsBusyIsAskedAgain) {
  unsigned refused = 0;
  proxy_->judge([&](const Request& request) -> Fault {
    if (request.method == "PUT" && refused++ < 2)
      return {.answer = Proxy::s3_error(refused == 1 ? 429 : 503, "SlowDown")};
    return google(request);
  });
  write("busy", kMib, 4);
  EXPECT_GE(refused, 3u);
}

TEST_F(Gcs, AnswersThatMakeNoSenseAreErrors) {
  write("senseless", kMib, 11);
  use("attempts = 2\n");
  const Region object = open("senseless");
  const auto outcome = [&](const Fault& fault) {
    proxy_->judge([fault](const Request& request) -> Fault {
      return request.method == "GET" ? fault : google(request);
    });
    return move(Op::read, 0, object, 1000, 5000);
  };
  EXPECT_EQ(outcome({.shorten_by = 1000}), Status::kIo);
  EXPECT_EQ(outcome({.set_headers = {{"content-range", "nonsense"}}}), Status::kProtocol);
  EXPECT_EQ(outcome({.answer = Proxy::http(200, std::string(kMib, 'x'))}), Status::kProtocol);
  EXPECT_EQ(outcome({.answer = Proxy::http(418, "<not xml")}), Status::kIo);
  EXPECT_EQ(outcome({.answer = "garbage\r\n\r\n"}), Status::kIo);
  EXPECT_EQ(outcome({.answer = Proxy::s3_error(503, "SlowDown")}), Status::kBusy);
  EXPECT_EQ(outcome({}), Status::kOk);
}

TEST_F(Gcs, AServerThatStallsOrStopsEndsTransfersByTheirDeadlineAndServesAgain) {
  S3Server own({"bucket"});
  proxy_ = std::make_unique<Proxy>(own.port(), google);
  use("");
  write("survivor", 2 * kMib, 12);
  const Region object = open("survivor", {.bytes = 2 * kMib});
  const auto ends_soon = [&](const char* what) {
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_TRUE(is_error(run(transfer(Op::read, 0, object, 0, 2 * kMib, {.timeout = 500ms})))) << what;
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 3s) << what;
  };
  proxy_->judge([](const Request&) -> Fault { return {.hold = true}; });
  ends_soon("stalled");
  proxy_->judge(google);
  own.stop(SIGKILL);
  ends_soon("stopped");
  own.start();
  std::memset(memory_.data(), 0, 2 * kMib);
  ASSERT_EQ(move(Op::read, 0, object, 0, 2 * kMib), Status::kOk);
  EXPECT_EQ(first_difference(memory_.data(), 2 * kMib, 12), 2 * kMib);
}

TEST_F(Gcs, AnObjectCutShortIsAnErrorAndServesAgain) {
  write("short", 2 * kMib, 13);
  const Region object = open("short");
  ASSERT_EQ(move(Op::read, 0, object, 0, 2 * kMib), Status::kOk);
  write("short", kMib, 14);
  const Status cut = move(Op::read, 0, object, 0, 2 * kMib);
  EXPECT_TRUE(is_error(cut)) << static_cast<int>(cut);
  write("short", 2 * kMib, 15);
  ASSERT_EQ(move(Op::read, 0, object, 0, 2 * kMib), Status::kOk);
  EXPECT_EQ(first_difference(memory_.data(), 2 * kMib, 15), 2 * kMib);
}

TEST_F(Gcs, AFullServerIsAnErrorOfThatTransferOnly) {
  unsigned asked = 0;
  proxy_->judge([&](const Request& request) -> Fault {
    if (request.method != "PUT" || !request.has("/full")) return google(request);
    ++asked;
    return {.answer = Proxy::http(507, "")};
  });
  const Region full = open("full", {.create = true, .truncate = true, .bytes = kMib});
  EXPECT_EQ(move(Op::write, 0, full, 0, kMib), Status::kNoSpace);
  EXPECT_EQ(asked, 1u) << "asking again frees no space";
  write("beside", kMib, 16);
}

TEST_F(Gcs, KeysThatAreRefusedLaterEndTheTransferWithTheServersWord) {
  write("expiring", kMib, 17);
  const Region object = open("expiring");
  proxy_->judge(
      [](const Request&) -> Fault { return {.answer = Proxy::s3_error(403, "InvalidAccessKeyId")}; });
  EXPECT_EQ(move(Op::read, 0, object, 0, kMib), Status::kPermissionDenied);
  const auto [code, text] = refusal(*agent_, "gs://bucket/another");
  EXPECT_EQ(code, Status::kPermissionDenied);
  EXPECT_NE(text.find("403"), std::string::npos) << text;
  proxy_->judge(google);
  EXPECT_EQ(move(Op::read, 0, object, 0, kMib), Status::kOk);
}

TEST_F(Gcs, BadSettingsAreNamed) {
  const auto reason = [&](const std::string& more) -> std::string {
    try {
      const Agent agent("misset", options_for("plugins = \"object\"\n" + more));
    } catch (const Error& error) {
      return error.what();
    }
    return "taken";
  };
  for (const auto& [lines, named] : {std::pair{"[gcs]\nendpoint = \"ftp://host\"\n", "gcs.endpoint"},
                                     {"[gcs]\nnobody_knows = 1\n", "gcs.nobody_knows"},
                                     {"[tuning.gcs]\nconcurrency = 0\n", "tuning.gcs.concurrency"},
                                     {"[tuning.gcs]\npart = \"much\"\n", "tuning.gcs.part"}}) {
    const std::string text = reason(lines);
    EXPECT_NE(text.find(named), std::string::npos) << lines << text;
  }
}

TEST_F(Gcs, KeysThatAreMissingOrWrongAreNamed) {
  const Agent without("without",
                      options_for("plugins = \"object\"\n[gcs]\nendpoint = \"" + proxy_->url() + "\"\n"));
  const auto [missing, text] = refusal(without, "gs://bucket/any");
  EXPECT_EQ(missing, Status::kPermissionDenied) << text;
  EXPECT_NE(text.find("gcs.access_key"), std::string::npos) << text;
  const Agent wrong("wrong", options_for("plugins = \"object\"\n[gcs]\nendpoint = \"" + proxy_->url() +
                                         "\"\naccess_key = \"test\"\nsecret_key = \"no\"\n"));
  EXPECT_EQ(refusal(wrong, "gs://bucket/any").first, Status::kPermissionDenied);
}

TEST_F(Gcs, AReplacementIsSeenWholeOrNotAtAll) {
  write("replaced", 6 * kMib, 5);
  const Region next = open("replaced", {.replace = true, .bytes = 6 * kMib});
  stamp_bytes(memory_.data(), 6 * kMib, 6);
  ASSERT_EQ(move(Op::write, 0, next, 0, 6 * kMib), Status::kOk);
  std::memset(memory_.data(), 0, 6 * kMib);
  ASSERT_EQ(move(Op::read, 0, open("replaced"), 0, 6 * kMib), Status::kOk);
  EXPECT_EQ(first_difference(memory_.data(), 6 * kMib, 5), 6 * kMib);
  next.commit();
  ASSERT_EQ(move(Op::read, 0, open("replaced"), 0, 6 * kMib), Status::kOk);
  EXPECT_EQ(first_difference(memory_.data(), 6 * kMib, 6), 6 * kMib);
}

}  // namespace
}  // namespace towline::interop
