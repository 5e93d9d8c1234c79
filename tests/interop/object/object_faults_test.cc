// Bad days of object storage: each ends in a clear error, or in none where trying again helps, and others go
// on.
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "fixture.h"
#include "support/directed.h"

namespace towline::interop {
namespace {

class ObjectFaults : public ObjectTest {
 protected:
  template <class Done>
  static bool eventually(Done&& done) {
    const auto until = std::chrono::steady_clock::now() + 60s;
    while (!done()) {
      if (std::chrono::steady_clock::now() > until) return false;
      std::this_thread::yield();
    }
    return true;
  }
};

// ---- what can't be opened

TEST_F(ObjectFaults, WhatCanNotBeOpenedIsNamedWithTheReason) {
  const auto expect = [](const Agent& agent, const std::string& uri, Status status, const std::string& part,
                         const StorageOptions& options = {}) {
    const auto [code, text] = refusal(agent, uri, options);
    EXPECT_EQ(code, status) << uri << ": " << text;
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  make_object("there", 100, 1);
  expect(*agent_, "s3://no-such-bucket/key", Status::kNotFound, "NoSuchBucket");
  expect(*agent_, "s3://no-such-bucket/key", Status::kNotFound, "make the bucket",
         {.create = true, .bytes = 10});
  expect(*agent_, "s3://bucket/absent", Status::kNotFound, "option create");
  expect(*agent_, "s3://bucket", Status::kInvalidArgument, "names no key");
  expect(*agent_, "s3:bucket/key", Status::kInvalidArgument, "s3://bucket/key");
  expect(*agent_, "s3://b/key", Status::kInvalidArgument, "3 to 255");
  expect(*agent_, "s3://bucket/\xff\xfe", Status::kInvalidArgument, "not UTF-8");
  expect(*agent_, "s3://bucket/" + std::string(1025, 'k'), Status::kInvalidArgument, "1025 bytes");
  expect(*agent_, "s3://bucket/new", Status::kInvalidArgument, "options.bytes", {.create = true});
  EXPECT_EQ(agent_->query_storage("s3://bucket/absent").exists, 0u);
  EXPECT_THROW((void)agent_->query_storage("s3://no-such-bucket/key"), Error);
  const Agent without("without", options_for(""));
  expect(without, "s3://bucket/key", Status::kUnsupported, "plugins = \"object\"");
}

TEST_F(ObjectFaults, WrongCredentialsAreNamedWithTheirSource) {
  make_object("private", 100, 1);
  const auto expect = [&](const std::string& access, const std::string& secret, const std::string& code) {
    const Agent agent("stranger",
                      options_for("plugins = \"object\"\n[object]\nendpoint = \"" + server_->url() +
                                  "\"\naccess_key = \"" + access + "\"\nsecret_key = \"" + secret + "\"\n"));
    const auto [status, text] = refusal(agent, "s3://bucket/private");
    EXPECT_EQ(status, Status::kPermissionDenied) << text;
    EXPECT_NE(text.find(code), std::string::npos) << text;
    EXPECT_NE(text.find("credentials come from settings"), std::string::npos) << text;
    EXPECT_EQ(text.find(secret), std::string::npos) << text;
  };
  expect(kAccessKey, "not-the-secret", "SignatureDoesNotMatch");
  expect("nobody", "its-secret", server_->has_files() ? "XAdminUserNotFound" : "InvalidAccessKeyId");
}

TEST_F(ObjectFaults, AServerThatIsNotThereIsUnreachable) {
  const Agent agent(
      "alone", options_for(config_for("http://127.0.0.1:" + std::to_string(free_port()), "attempts = 3\n")));
  const auto [status, text] = refusal(agent, "s3://bucket/key");
  EXPECT_EQ(status, Status::kUnreachable) << text;
  EXPECT_NE(text.find("127.0.0.1"), std::string::npos) << text;
  EXPECT_NE(text.find("3 attempts"), std::string::npos) << text;
}

// ---- tried again

// Every attempt says what is the matter, not only the first; and requests to others do not suffer.
TEST_F(ObjectFaults, ANameThatIsNotKnownIsUnreachableInEveryAttempt) {
  connect("http://no-such-host.invalid", "attempts = 3\n");
  for (int i = 0; i < 2; ++i) {
    const auto [status, text] = refusal(*agent_, "s3://bucket/key");
    EXPECT_EQ(status, Status::kUnreachable) << text;
    EXPECT_NE(text.find("no-such-host.invalid"), std::string::npos) << text;
    EXPECT_NE(text.find("(3 attempts)"), std::string::npos) << text;
  }
}

TEST_F(ObjectFaults, ErrorsThatPassAreTriedAgain) {
  Proxy proxy(server_->port());
  connect(proxy.url(), "part = \"5MiB\"\nmultipart = \"6MiB\"\nattempts = 50\n");
  // Every other request meets something, each time something else.
  proxy.judge([](const Request& request) -> Fault {
    switch (request.number % 10) {
      case 1:
        return {.answer = Proxy::s3_error(503, "SlowDown")};
      case 3:
        return {.answer = Proxy::s3_error(500, "InternalError")};
      case 5:
        return {.drop = true};
      case 7:
        return {.answer = Proxy::http(429, "")};
      case 9:
        return {.drop_answer = true};
      default:
        return {};
    }
  });
  const Region object = open("again", {.create = true, .bytes = 12 * kMib});
  stamp_bytes(memory_.data(), 12 * kMib, 2);
  ASSERT_EQ(move(Op::write, 0, object, 0, 12 * kMib), Status::kOk);
  std::memset(memory_.data(), 0, kBytes);
  ASSERT_EQ(move(Op::read, 0, object, 0, 12 * kMib), Status::kOk);
  EXPECT_EQ(first_difference(memory_.data(), 12 * kMib, 2), 12 * kMib);
  const Region small = open("small-again", {.create = true, .bytes = 1000});
  for (int i = 0; i < 10; ++i) ASSERT_EQ(move(Op::write, 0, small, 0, 1000), Status::kOk) << i;
}

// It would have been given up after a few attempts, within some milliseconds of these pauses.
TEST_F(ObjectFaults, AServerThatIsAwayForAWhileIsWaitedFor) {
  make_object("away", 4 * kMib, 4);
  Proxy proxy(server_->port());
  connect(proxy.url());
  const Region object = open("away", {.access = Access::kAll});
  for (const Fault& fault : {Fault{.drop = true}, Fault{.answer = Proxy::s3_error(503, "SlowDown")},
                             Fault{.answer = Proxy::http(502, "")}}) {
    std::atomic<int> refused{0};
    proxy.judge([&](const Request&) { return refused++ < 20 ? fault : Fault{}; });
    std::memset(memory_.data(), 0, 4 * kMib);
    EXPECT_EQ(move(Op::read, 0, object, 0, 4 * kMib), Status::kOk);
    EXPECT_EQ(first_difference(memory_.data(), 4 * kMib, 4), 4 * kMib);
    refused = 0;
    EXPECT_EQ(move(Op::write, 0, object, 0, 4 * kMib), Status::kOk);
    refused = 0;
    EXPECT_EQ(agent_->query_storage("s3://bucket/away").bytes, 4 * kMib);
    proxy.judge({});
  }
}

TEST_F(ObjectFaults, ADeadlineEndsWaitingForAServer) {
  make_object("long-away", kMib, 4);
  Proxy proxy(server_->port());
  connect(proxy.url(), "multipart = \"5MiB\"\npart = \"5MiB\"\ncontrol_timeout = \"200ms\"\n");
  const Region object = open("long-away", {.access = Access::kAll});
  const Region parts = open("long-away-parts", {.create = true, .bytes = 12 * kMib});
  std::atomic<int> seen{0};
  proxy.judge([&](const Request&) -> Fault {
    ++seen;
    return {.answer = Proxy::s3_error(503, "SlowDown")};
  });
  for (const Op op : {Op::read, Op::write}) {
    for (const Region* region : {&object, &parts}) {
      if (op == Op::read && region == &parts) continue;
      const uint64_t bytes = region == &parts ? 12 * kMib : kMib;
      seen = 0;
      const Transfer late = transfer(op, 0, *region, 0, bytes, {.timeout = 300ms});
      EXPECT_EQ(run(late), Status::kTimedOut);
      EXPECT_GT(seen, 6);
      EXPECT_EQ(late.wait_fenced(Fence::kLocal, 60s), Status::kOk);
      EXPECT_NE(late.route().find("SlowDown"), std::string::npos) << late.route();
    }
  }
  try {
    (void)agent_->query_storage("s3://bucket/long-away");
    FAIL() << "nobody answered";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Status::kTimedOut);
    EXPECT_NE(std::string(error.what()).find("503"), std::string::npos) << error.what();
  }
}

// A server's own error is reported soon, even if the deadline is far.
TEST_F(ObjectFaults, AServerThatFailsAtARequestIsGivenUpAfterAFewAttempts) {
  make_object("broken", kMib, 4);
  Proxy proxy(server_->port());
  connect(proxy.url());
  const Region object = open("broken");
  std::atomic<int> seen{0};
  proxy.judge([&](const Request&) -> Fault {
    ++seen;
    return {.answer = Proxy::s3_error(500, "InternalError")};
  });
  const Transfer read = transfer(Op::read, 0, object, 0, kMib);
  EXPECT_EQ(run(read), Status::kIo);
  EXPECT_EQ(seen, 6);
  EXPECT_NE(read.route().find("(6 attempts)"), std::string::npos) << read.route();
  const Agent stranger("stranger",
                       options_for(config_for("http://127.0.0.1:" + std::to_string(free_port()))));
  const auto [status, text] = refusal(stranger, "s3://bucket/key");
  EXPECT_EQ(status, Status::kUnreachable) << text;
  EXPECT_NE(text.find("(6 attempts)"), std::string::npos) << text;
}

TEST_F(ObjectFaults, AnAnswerThatBreaksOffGoesOnWhereItWas) {
  make_object("cut", 4 * kMib, 3);
  Proxy proxy(server_->port());
  connect(proxy.url());
  const Region object = open("cut");
  proxy.forget();
  std::atomic<int> cuts{0};
  proxy.judge([&](const Request& request) -> Fault {
    if (request.method != "GET" || cuts++ >= 3) return {};
    return {.cut_answer_at = kMib};
  });
  ASSERT_EQ(move(Op::read, 0, object, 0, 4 * kMib), Status::kOk);
  EXPECT_EQ(first_difference(memory_.data(), 4 * kMib, 3), 4 * kMib);
  std::set<std::string> ranges;
  for (const Request& request : proxy.seen()) {
    if (request.method == "GET") ranges.insert(request.headers.at("range"));
  }
  EXPECT_TRUE(ranges.contains("bytes=1048576-4194303")) << "what had come was asked for again";
}

TEST_F(ObjectFaults, WhatStallsIsBegunAnew) {
  make_object("stalled", kMib, 4);
  Proxy proxy(server_->port());
  connect(proxy.url(), "stall_timeout = \"1s\"\n");
  const Region object = open("stalled");
  std::atomic<int> held{0};
  proxy.judge(
      [&](const Request& request) -> Fault { return {.hold = request.method == "GET" && held++ == 0}; });
  ASSERT_EQ(move(Op::read, 0, object, 0, kMib), Status::kOk);
  EXPECT_EQ(first_difference(memory_.data(), kMib, 4), kMib);
}

TEST_F(ObjectFaults, ADeadlineEndsWhatTakesTooLong) {
  make_object("late", kMib, 5);
  Proxy proxy(server_->port());
  connect(proxy.url());
  const Region object = open("late", {.access = Access::kAll});
  proxy.judge([](const Request&) -> Fault { return {.hold = true}; });
  const Transfer read = transfer(Op::read, 0, object, 0, kMib, {.timeout = 200ms});
  EXPECT_EQ(run(read), Status::kTimedOut);
  EXPECT_EQ(read.wait_fenced(Fence::kBoth, 60s), Status::kOk);
}

// ---- given up, with the reason

TEST_F(ObjectFaults, AServerThatFailsForGoodIsAnErrorOfThatTransferOnly) {
  make_object("fine", 4 * kMib, 6);
  make_object("failing", 4 * kMib, 7);
  Proxy proxy(server_->port());
  connect(proxy.url(), "attempts = 3\n");
  const Region fine = open("fine");
  const Region failing = open("failing", {.access = Access::kAll});
  proxy.judge([](const Request& request) -> Fault {
    return {.answer = request.has("failing") ? Proxy::s3_error(500, "InternalError") : ""};
  });
  const Transfer good = transfer(Op::read, 0, fine, 0, 4 * kMib);
  const Transfer bad = transfer(Op::read, 4 * kMib, failing, 0, kMib);
  const Transfer worse = transfer(Op::write, 8 * kMib, failing, 0, 4 * kMib);
  ASSERT_FALSE(is_error(bad.post()));
  ASSERT_FALSE(is_error(worse.post()));
  EXPECT_EQ(run(good), Status::kOk);
  EXPECT_EQ(bad.wait(60s), Status::kIo);
  EXPECT_EQ(worse.wait(60s), Status::kIo);
  EXPECT_EQ(first_difference(memory_.data(), 4 * kMib, 6), 4 * kMib);
  ASSERT_EQ(bad.wait_fenced(Fence::kLocal, 60s), Status::kOk);
  ASSERT_EQ(bad.result().failures().size(), 1u);
  EXPECT_EQ(bad.result().failures()[0].vendor_code, 500);
  EXPECT_NE(bad.route().find("InternalError"), std::string::npos) << bad.route();
}

TEST_F(ObjectFaults, AFullServerIsAnErrorOfThatTransferOnly) {
  Proxy proxy(server_->port());
  connect(proxy.url());
  std::atomic<unsigned> asked{0};
  for (const std::string& answer : {Proxy::http(507, ""), Proxy::s3_error(507, "XMinioStorageFull"),
                                    Proxy::s3_error(403, "QuotaExceeded")}) {
    asked = 0;
    proxy.judge([&](const Request& request) -> Fault {
      if (request.method != "PUT" || !request.has("/full")) return {};
      ++asked;
      return {.answer = answer};
    });
    const Region full = open("full", {.create = true, .truncate = true, .bytes = kMib});
    EXPECT_EQ(move(Op::write, 0, full, 0, kMib), Status::kNoSpace) << answer;
    EXPECT_EQ(asked, 1u) << "asking again frees no space: " << answer;
    const Region beside = open("beside", {.create = true, .truncate = true, .bytes = kMib});
    EXPECT_EQ(move(Op::write, 0, beside, 0, kMib), Status::kOk);
  }
}

TEST_F(ObjectFaults, AnswersThatMakeNoSenseAreErrors) {
  make_object("senseless", kMib, 8);
  Proxy proxy(server_->port());
  connect(proxy.url(), "attempts = 2\n");
  const Region object = open("senseless");
  const auto outcome = [&](const Fault& fault) {
    proxy.judge(
        [fault](const Request& request) -> Fault { return request.method == "GET" ? fault : Fault{}; });
    return move(Op::read, 0, object, 1000, 5000);
  };
  EXPECT_EQ(outcome({.shorten_by = 1000}), Status::kIo);
  EXPECT_EQ(outcome({.set_headers = {{"content-range", "bytes 0-4999/1048576"}}}), Status::kProtocol);
  EXPECT_EQ(outcome({.set_headers = {{"content-range", "nonsense"}}}), Status::kProtocol);
  EXPECT_EQ(outcome({.answer = Proxy::http(200, std::string(kMib, 'x'))}), Status::kProtocol);
  EXPECT_EQ(outcome({.answer = Proxy::http(418, "<not xml")}), Status::kIo);
  EXPECT_EQ(outcome({.answer = "garbage\r\n\r\n"}), Status::kIo);
  EXPECT_EQ(outcome({}), Status::kOk);
}

TEST_F(ObjectFaults, ARangeThatIsAnsweredInPartIsAskedForOn) {
  constexpr uint64_t kSent = 300'000;
  make_object("in pieces", kMib, 7);
  Proxy proxy(server_->port());
  connect(proxy.url());
  const Region object = open("in pieces");
  proxy.forget();
  proxy.judge([](const Request& request) -> Fault {
    uint64_t first = 0;
    if (request.method != "GET" ||
        std::sscanf(request.headers.at("range").c_str(), "bytes=%lu-", &first) != 1 || kMib - first <= kSent)
      return {};
    const std::string range = "bytes " + std::to_string(first) + "-" + std::to_string(first + kSent - 1);
    return {.shorten_by = kMib - first - kSent,
            .set_headers = {{"content-range", range + "/" + std::to_string(kMib)}}};
  });
  EXPECT_EQ(move(Op::read, 0, object, 0, kMib), Status::kOk) << last_error();
  EXPECT_EQ(first_difference(memory_.data(), kMib, 7), kMib);
  EXPECT_EQ(proxy.seen().size(), 4u);
}

TEST_F(ObjectFaults, WrongBytesAreNoticedByTheirChecksum) {
  Proxy proxy(server_->port());
  connect(proxy.url(), "part = \"5MiB\"\nmultipart = \"6MiB\"\nattempts = 3\n");
  for (const uint64_t bytes : {kMib, 12 * kMib}) {
    SCOPED_TRACE(bytes);
    const Region object = open("summed", {.create = true, .truncate = true, .bytes = bytes});
    stamp_bytes(memory_.data(), bytes, 9);
    // On the way there: the server notices; once is mended, always is an error.
    std::atomic<int> flips{0};
    proxy.judge([&](const Request& request) -> Fault {
      return {.flip_request = request.method == "PUT" && flips++ == 0};
    });
    ASSERT_EQ(move(Op::write, 0, object, 0, bytes), Status::kOk);
    proxy.judge([](const Request& request) -> Fault { return {.flip_request = request.method == "PUT"}; });
    EXPECT_EQ(move(Op::write, 0, object, 0, bytes), Status::kCorrupt);
    // On the way back.
    proxy.judge([](const Request& request) -> Fault {
      return {.flip_byte_at = request.method == "GET" ? 1000 : SIZE_MAX};
    });
    EXPECT_EQ(move(Op::read, 0, object, 0, bytes), Status::kCorrupt);
    proxy.judge({});
    EXPECT_EQ(move(Op::read, 0, object, 0, bytes), Status::kOk);
    const Region again = open("summed");  // its checksum is the server's now
    proxy.judge([](const Request& request) -> Fault {
      return {.flip_byte_at = request.method == "GET" ? 1000 : SIZE_MAX};
    });
    EXPECT_EQ(move(Op::read, 0, again, 0, bytes), Status::kCorrupt);
    // Not looked at before: one answer that is the whole says it too.
    if (bytes == kMib) {
      EXPECT_EQ(move(Op::read, 0, open("summed", {.bytes = bytes}), 0, bytes), Status::kCorrupt);
    }
    proxy.judge({});
  }
}

TEST_F(ObjectFaults, AnObjectReplacedWhileItIsReadIsStale) {
  make_object("changing", 12 * kMib, 10);
  Proxy proxy(server_->port());
  connect(proxy.url(), "part = \"5MiB\"\nwindow = \"5MiB\"\nthreads = 1\n");  // one range after the other
  const Region object = open("changing");
  std::atomic<int> reads{0};
  proxy.judge([&](const Request& request) -> Fault {
    if (request.method == "GET" && reads++ == 1) make_object("changing", 12 * kMib, 11);
    return {};
  });
  EXPECT_EQ(move(Op::read, 0, object, 0, 12 * kMib), Status::kStale);
}

// One post is of one version, however many jobs it takes: here one for each worker.
TEST_F(ObjectFaults, AnObjectReplacedBetweenTheSharesOfWorkersIsStale) {
  constexpr uint64_t kObject = 12 * kMib;
  make_object("shared", kObject, 12);
  Proxy proxy(server_->port());
  AgentOptions options =
      options_for(config_for(proxy.url(), "part = \"5MiB\"\nconcurrency = 1\nthreads = 1\n"));
  options.workers = 3;
  const Agent agent("sharing", options);
  const Region memory = agent.register_memory(dram(memory_.data(), kObject), {.access = Access::kAll});
  const Region object = agent.register_storage("s3://bucket/shared");
  const Transfer read = agent.transfer(agent.block_list(object.blocks(0, kObject)),
                                       agent.block_list(Blocks::at(memory_.data(), kObject)), {.workers = 3});
  std::atomic<int> reads{0};
  proxy.judge([&](const Request& request) -> Fault {
    if (request.method == "GET" && reads++ == 1) make_object("shared", kObject, 13);
    return {};
  });
  EXPECT_EQ(run(read), Status::kStale);
  ASSERT_EQ(read.wait_fenced(Fence::kBoth, 60s), Status::kOk);
  const std::vector<Request> seen = proxy.seen();
  EXPECT_TRUE(std::any_of(seen.begin(), seen.end(), [](const Request& request) {
    return request.headers.contains("if-match");
  })) << "the server can tell before it sends anything";
  ASSERT_EQ(run(read), Status::kOk) << "the next post is of the new one";
  EXPECT_EQ(first_difference(memory_.data(), kObject, 13), kObject);
}

// A load into a peer's memory, through an agent of this process: chunks of 1 MiB, each a job.
class ObjectChunks : public ObjectFaults {
 protected:
  static constexpr uint64_t kBytes = 8 * kMib;

  void SetUp() override {
    ObjectFaults::SetUp();
    if (IsSkipped()) return;
    proxy_.emplace(server_->port());
    owner_.emplace("owner", AgentOptions{.listen = "127.0.0.1:0"});
    AgentOptions options = options_for(config_for(
        proxy_->url(), "concurrency = 1\nthreads = 1\n[tuning.staging]\nchunk = \"1MiB\"\ndepth = 4\n"));
    options.listen = "127.0.0.1:0";
    stager_.emplace("stager", options);
    theirs_.emplace(owner_->register_memory(dram(memory_.data(), kBytes), {.access = Access::kAll}));
    peer_.emplace(stager_->add_peer(owner_->metadata()));
  }
  [[nodiscard]] Transfer load(const Region& object) const {
    return stager_->transfer(stager_->block_list(object.blocks(0, kBytes)),
                             peer_->block_list(Blocks::at(memory_.data(), kBytes)));
  }

  std::optional<Proxy> proxy_;
  std::optional<Agent> owner_;
  std::optional<Agent> stager_;
  std::optional<Region> theirs_;
  std::optional<Peer> peer_;
};

TEST_F(ObjectChunks, OfTwoVersionsAreStale) {
  make_object("chunked", kBytes, 14);
  const Region object = stager_->register_storage("s3://bucket/chunked");
  const Transfer loading = load(object);
  for (const int replaced_at : {1, 5}) {
    SCOPED_TRACE(replaced_at);
    std::atomic<int> reads{0};
    proxy_->judge([&](const Request& request) -> Fault {
      if (request.method == "GET" && reads++ == replaced_at)
        make_object("chunked", kBytes, 15 + static_cast<uint64_t>(replaced_at));
      return {};
    });
    EXPECT_EQ(run(loading), Status::kStale);
    ASSERT_EQ(loading.wait_fenced(Fence::kBoth, 60s), Status::kOk);
    ASSERT_EQ(run(loading), Status::kOk) << "the next post is of the new one";
    EXPECT_EQ(first_difference(memory_.data(), kBytes, 15 + static_cast<uint64_t>(replaced_at)), kBytes);
  }
}

TEST_F(ObjectChunks, AreComparedWithTheChecksumOfTheWhole) {
  make_object("summed-in-chunks", kBytes, 21);
  const Region object = stager_->register_storage("s3://bucket/summed-in-chunks");
  const Transfer loading = load(object);
  ASSERT_EQ(run(loading), Status::kOk);
  std::atomic<int> reads{0};
  proxy_->judge([&](const Request& request) -> Fault {
    return {.flip_byte_at = request.method == "GET" && reads++ == 3 ? 1000 : SIZE_MAX};
  });
  EXPECT_EQ(run(loading), Status::kCorrupt);
  ASSERT_EQ(loading.wait_fenced(Fence::kBoth, 60s), Status::kOk);
  EXPECT_EQ(run(loading), Status::kOk);
}

// ---- multipart uploads

TEST_F(ObjectFaults, PartsMayFailTogether) {
  // The answers come at once: one part has failed for good, the others would be tried again.
  Proxy proxy(server_->port());
  connect(proxy.url(), "part = \"5MiB\"\nmultipart = \"6MiB\"\nattempts = 2\nthreads = 1\n");
  for (int round = 0; round < 10; ++round) {
    const Region object =
        open("together" + std::to_string(round), {.create = true, .truncate = true, .bytes = 15 * kMib});
    // Shared: a request may still be judged when the round is over.
    const auto parts = std::make_shared<std::atomic<int>>(0);
    proxy.judge([parts, until = std::chrono::steady_clock::now() + 30s](const Request& request) -> Fault {
      if (!request.has("partNumber=")) return {};
      const bool first = ++*parts == 1;
      while (!first && *parts < 4 && std::chrono::steady_clock::now() < until) std::this_thread::yield();
      return {.answer = Proxy::s3_error(503, "SlowDown")};
    });
    EXPECT_TRUE(is_error(move(Op::write, 0, object, 0, 15 * kMib)));
    proxy.judge({});
  }
  end_agent();
}

TEST_F(ObjectFaults, AFailedUploadIsAborted) {
  const S3Server own({"bucket"});
  Proxy proxy(own.port());
  connect(proxy.url(), "part = \"5MiB\"\nmultipart = \"6MiB\"\nattempts = 2\n");
  const Region object = open("aborted", {.create = true, .bytes = 12 * kMib});
  proxy.judge([](const Request& request) -> Fault {
    return {.answer = request.has("partNumber=2") ? Proxy::s3_error(500, "InternalError") : ""};
  });
  const Transfer write = transfer(Op::write, 0, object, 0, 12 * kMib);
  EXPECT_EQ(run(write), Status::kIo);
  EXPECT_EQ(write.wait_fenced(Fence::kBoth, 60s), Status::kOk);
  EXPECT_EQ(agent_->query_storage("s3://bucket/aborted").exists, 0u);
  EXPECT_TRUE(eventually([&] { return own.unfinished_uploads() == 0; }));
}

TEST_F(ObjectFaults, AnUploadIsAbortedThatAnAgentEndedBeforeItsNameCame) {
  const S3Server own({"bucket"});
  const Proxy proxy(own.port(), [](const Request& request) {
    return Fault{.late_ms = request.method == "POST" && request.has("?uploads") ? 500u : 0u};
  });
  connect(proxy.url());
  const Region object = open("ended", {.create = true, .bytes = kBytes});
  const Transfer saving = transfer(Op::write, 0, object, 0, kBytes);
  ASSERT_EQ(saving.post(), Status::kInProgress);
  ASSERT_TRUE(eventually([&] { return own.unfinished_uploads() == 1; }));
  agent_->close();
  EXPECT_EQ(own.unfinished_uploads(), 0u);
}

TEST_F(ObjectFaults, AServerGoneInTheMiddleOfAnUploadIsAnErrorAndItsRestReapedWhenItIsBack) {
  S3Server own({"bucket"});
  Proxy proxy(own.port());
  connect(proxy.url(), "part = \"5MiB\"\nmultipart = \"6MiB\"\nattempts = 2\nthreads = 1\nconcurrency = 1\n");
  const Region object = open("gone", {.create = true, .bytes = 12 * kMib});
  std::atomic<bool> killed{false};
  proxy.judge([&](const Request& request) -> Fault {
    if (request.has("partNumber=2") && !killed.exchange(true)) own.stop(SIGKILL);
    return {};
  });
  const Transfer write = transfer(Op::write, 0, object, 0, 12 * kMib);
  const Status outcome = run(write);
  EXPECT_TRUE(outcome == Status::kIo || outcome == Status::kUnreachable) << status_text(outcome);
  EXPECT_TRUE(killed);
  // The rest is still there when the server comes back, and not for long.
  own.start();
  EXPECT_TRUE(eventually([&] { return own.unfinished_uploads() == 0; }));
  proxy.judge({});
  stamp_bytes(memory_.data(), 12 * kMib, 12);
  EXPECT_EQ(run(write), Status::kOk);
}

TEST_F(ObjectFaults, WhatAKilledWriterLeftIsReapedByTheNext) {
  const S3Server own({"bucket"});
  Proxy proxy(own.port());
  connect(proxy.url(), "part = \"5MiB\"\nmultipart = \"6MiB\"\nattempts = 1\n");
  {
    const Region object = open("orphan", {.create = true, .bytes = 12 * kMib});
    proxy.judge([](const Request& request) -> Fault {  // as if it were dead: nobody aborts
      return {.answer = request.method == "DELETE"    ? Proxy::s3_error(403, "AccessDenied")
                        : request.has("partNumber=2") ? Proxy::s3_error(500, "InternalError")
                                                      : ""};
    });
    EXPECT_EQ(move(Op::write, 0, object, 0, 12 * kMib), Status::kIo);
  }
  EXPECT_GE(own.unfinished_uploads(), 1u);
  connect(own.url(), "reap_after = \"1ns\"\n");
  const Region object = open("orphan", {.create = true, .bytes = 12 * kMib});
  EXPECT_TRUE(eventually([&] { return own.unfinished_uploads() == 0; }));
}

TEST_F(ObjectFaults, ALostAnswerToAWriteIsSettledByLooking) {
  Proxy proxy(server_->port());
  connect(proxy.url(), "part = \"5MiB\"\nmultipart = \"6MiB\"\nattempts = 1\n");
  // It was written, the answer got lost, and there is no attempt left: the object itself tells.
  const Region small = open("settled", {.create = true, .bytes = kMib});
  const Region large = open("settled-large", {.create = true, .bytes = 12 * kMib});
  proxy.judge([](const Request& request) -> Fault {
    const bool last = (request.method == "PUT" && !request.has("partNumber")) ||
                      (request.method == "POST" && request.has("uploadId"));
    return {.drop_answer = last};
  });
  stamp_bytes(memory_.data(), 12 * kMib, 13);
  EXPECT_EQ(move(Op::write, 0, small, 0, kMib), Status::kOk);
  EXPECT_EQ(move(Op::write, 0, large, 0, 12 * kMib), Status::kOk);
  // It was not, and nobody knows.
  proxy.judge([](const Request& request) -> Fault {
    return {.answer = request.method == "PUT" ? "HTTP/1.1 500 X\r\nContent-Length: 0\r\n\r\n" : ""};
  });
  stamp_bytes(memory_.data(), kMib, 14);
  const Transfer lost = transfer(Op::write, 0, small, 0, kMib);
  EXPECT_EQ(run(lost), Status::kIo);
  EXPECT_EQ(lost.wait_fenced(Fence::kLocal, 60s), Status::kOk);
  EXPECT_EQ(lost.wait_fenced(Fence::kRemote, 60s), Status::kUnsupported) << "nothing will tell";
  EXPECT_NE(last_error().find("no fence for writing 1 blocks"), std::string_view::npos) << last_error();
  Plan plan = agent_->plan(in_memory(0, kMib), in_object(small, 0, kMib));
  const Group group = agent_->group();
  ASSERT_GE(static_cast<int>(group.add(plan)), 0) << last_error();
  (void)group.close();
  EXPECT_EQ(group.wait(60s), Status::kIo) << group.error();
  EXPECT_EQ(group.wait_fenced(Fence::kLocal, 60s), Status::kOk) << group.error();
  EXPECT_EQ(group.wait_fenced(Fence::kRemote, 60s), Status::kUnsupported) << group.error();
  EXPECT_NE(lost.route().find("is not known"), std::string::npos) << lost.route();
}

// The server does not write objects at all. It is not looked whether it did, and the memory is free at both sides.
TEST_F(ObjectFaults, AServerThatDoesNotImplementAWriteIsNoLostAnswer) {
  Proxy proxy(server_->port());
  connect(proxy.url(), "");
  const Region object = open("unimplemented", {.create = true, .bytes = kMib});
  for (const std::string& answer :
       {Proxy::http(501, ""), Proxy::s3_error(501, "NotImplemented"), Proxy::http(505, "")}) {
    proxy.judge([&](const Request& request) -> Fault {
      return {.answer = request.method == "PUT" ? answer : std::string{}};
    });
    proxy.forget();
    const Transfer refused = transfer(Op::write, 0, object, 0, kMib);
    EXPECT_EQ(run(refused), Status::kUnsupported) << answer;
    EXPECT_EQ(refused.wait_fenced(Fence::kBoth, 60s), Status::kOk) << answer;
    const std::string route = refused.route();
    EXPECT_NE(route.find(answer.find("501") != std::string::npos ? "501" : "505"), std::string::npos)
        << route;
    for (const char* word : {"lost", "is not known"}) EXPECT_EQ(route.find(word), std::string::npos) << route;
    EXPECT_EQ(proxy.seen().size(), 1u) << answer << ": one attempt, and no look";
  }
}

// Like a server that was killed while completing an upload: the next attempt finds the upload marked as in
// progress and gets a success.
TEST_F(ObjectFaults, AnUploadThatIsOnlySaidToBeCompleteIsNoSuccess) {
  Proxy proxy(server_->port());
  connect(proxy.url(), "part = \"5MiB\"\nmultipart = \"6MiB\"\n");
  stamp_bytes(memory_.data(), 12 * kMib, 31);
  const Region before = open("said", {.create = true, .bytes = 12 * kMib});
  ASSERT_EQ(move(Op::write, 0, before, 0, 12 * kMib), Status::kOk);
  stamp_bytes(memory_.data(), 12 * kMib, 32);
  std::atomic<int> completions{0};
  const auto say_so = [&](const Request& request) -> Fault {
    if (request.method != "POST" || !request.has("uploadId")) return {};
    if (completions++ == 0) return {.drop = true};
    return {.answer = Proxy::http(200,
                                  "<CompleteMultipartUploadResult><ETag>\"1-3\"</ETag>"
                                  "</CompleteMultipartUploadResult>")};
  };
  proxy.judge(say_so);
  const Transfer write = transfer(Op::write, 0, before, 0, 12 * kMib);
  EXPECT_EQ(run(write), Status::kIo);
  EXPECT_NE(write.route().find("write it again"), std::string::npos) << write.route();
  proxy.judge({});
  const Region object = open("said", {.replace = true, .bytes = 12 * kMib});
  ASSERT_EQ(move(Op::write, 0, object, 0, 12 * kMib), Status::kOk);
  completions = 0;
  proxy.judge(say_so);
  try {
    object.commit();
    FAIL() << "an upload that nobody completed was taken for done";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Status::kIo) << error.what();
    EXPECT_NE(std::string(error.what()).find("write it again"), std::string::npos) << error.what();
  }
  end_agent();
}

TEST_F(ObjectFaults, ACommitWhoseAnswerIsLostIsSettledByLooking) {
  Proxy proxy(server_->port());
  connect(proxy.url(), "part = \"5MiB\"\n");
  stamp_bytes(memory_.data(), 12 * kMib, 21);
  const Region object = open("committed", {.replace = true, .bytes = 12 * kMib});
  ASSERT_EQ(move(Op::write, 0, object, 0, 12 * kMib), Status::kOk);
  // The first attempt does it, the second finds no such upload any more.
  std::atomic<int> completions{0};
  proxy.judge([&](const Request& request) -> Fault {
    const bool completes = request.method == "POST" && request.has("uploadId");
    return {.drop_answer = completes && completions++ == 0};
  });
  EXPECT_NO_THROW(object.commit());
  EXPECT_GE(completions, 2);
  EXPECT_EQ(agent_->query_storage("s3://bucket/committed").bytes, 12 * kMib);
  EXPECT_EQ(move(Op::read, 0, object, 0, 12 * kMib), Status::kOk);
  // One that came to nothing is no success because something else is there.
  const Region other = open("committed", {.replace = true, .bytes = 6 * kMib});
  ASSERT_EQ(move(Op::write, 0, other, 0, 6 * kMib), Status::kOk);
  proxy.judge([](const Request& request) -> Fault {
    const bool completes = request.method == "POST" && request.has("uploadId");
    return {.answer = completes ? Proxy::s3_error(404, "NoSuchUpload") : ""};
  });
  try {
    other.commit();
    FAIL() << "a commit that came to nothing was taken for done";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Status::kNotFound) << error.what();
    EXPECT_NE(std::string(error.what()).find("NoSuchUpload"), std::string::npos) << error.what();
  }
  end_agent();
}

// As with permission to write and none to read.
TEST_F(ObjectFaults, WhoMayOnlyWriteCommits) {
  Proxy proxy(server_->port(), [](const Request& request) -> Fault {
    const bool reads = request.method == "GET" || request.method == "HEAD";
    return {.answer = reads ? Proxy::s3_error(403, "AccessDenied") : ""};
  });
  connect(proxy.url(), "part = \"5MiB\"\n");
  const Region object = open("write-only", {.replace = true, .bytes = kMib});
  ASSERT_EQ(move(Op::write, 0, object, 0, kMib), Status::kOk);
  EXPECT_NO_THROW(object.commit());
  connect(server_->url());
  EXPECT_EQ(agent_->query_storage("s3://bucket/write-only").bytes, kMib);
}

TEST_F(ObjectFaults, ACancelledWriteThatTheServerHasGotIsFencedByItsAnswer) {
  Proxy proxy(server_->port());
  connect(proxy.url(), "stall_timeout = \"1s\"\n");
  const Region object = open("cancelled-write", {.create = true, .bytes = kMib});
  std::atomic<bool> held{false};
  proxy.judge([&](const Request& request) -> Fault {
    if (request.method != "PUT") return {};
    held = true;
    return {.hold = true};
  });
  stamp_bytes(memory_.data(), kMib, 18);
  const Transfer write = transfer(Op::write, 0, object, 0, kMib);
  ASSERT_EQ(write.post(), Status::kInProgress);
  ASSERT_TRUE(eventually([&] { return held.load(); }));
  write.cancel();
  EXPECT_EQ(write.wait(60s), Status::kCancelled);
  // It was written before its answer was held up: looking at the object tells, and that nothing comes any
  // more.
  EXPECT_EQ(write.wait_fenced(Fence::kBoth, 60s), Status::kOk);
  EXPECT_EQ(agent_->query_storage("s3://bucket/cancelled-write").bytes, kMib);
}

// The look for it tells that, and is stopped before it does: the server may still be at work.
TEST_F(ObjectFaults, AWriteThatIsCancelledWhileItIsLookedForHasNoRemoteFence) {
  Proxy proxy(server_->port());
  connect(proxy.url(), "attempts = 1\n");
  const Region object = open("looked-for", {.create = true, .bytes = kMib});
  std::atomic<bool> looks{false};
  proxy.judge([&](const Request& request) -> Fault {
    if (request.method == "HEAD") looks = true;
    return {.drop_answer = request.method == "PUT", .hold = request.method == "HEAD"};
  });
  const Transfer write = transfer(Op::write, 0, object, 0, kMib);
  ASSERT_EQ(write.post(), Status::kInProgress);
  ASSERT_TRUE(eventually([&] { return looks.load(); }));
  write.cancel();
  EXPECT_EQ(write.wait(60s), Status::kCancelled);
  EXPECT_EQ(write.wait_fenced(Fence::kLocal, 60s), Status::kOk);
  EXPECT_EQ(write.wait_fenced(Fence::kRemote, 60s), Status::kUnsupported);
}

// ---- clocks and regions

TEST_F(ObjectFaults, AClockThatIsOffIsSetByTheServers) {
  make_object("skewed", 1000, 15);
  Proxy proxy(server_->port());
  std::atomic<int> refused{0};
  std::vector<std::string> dates;
  std::mutex mutex;
  proxy.judge([&](const Request& request) -> Fault {
    const std::lock_guard lock(mutex);
    dates.push_back(request.headers.at("x-amz-date"));
    if (refused++ < 2)  // HEAD tells no code, so the GET after it is refused too
      return {.answer =
                  Proxy::s3_error(403, "RequestTimeTooSkewed", "Date: Sat, 01 Jan 2050 00:00:00 GMT\r\n")};
    return {.answer = Proxy::http(200, "", "ETag: \"x\"\r\n")};
  });
  connect(proxy.url());
  (void)refusal(*agent_, "s3://bucket/skewed", {.create = true, .bytes = 10});
  {
    const std::lock_guard lock(mutex);
    EXPECT_TRUE(dates.back().starts_with("20500101T")) << dates.back();
  }
  proxy.judge([](const Request&) -> Fault {
    return {.answer =
                Proxy::s3_error(403, "RequestTimeTooSkewed", "Date: Sat, 01 Jan 2050 00:00:00 GMT\r\n")};
  });
  const auto [status, text] = refusal(*agent_, "s3://bucket/skewed");
  EXPECT_EQ(status, Status::kPermissionDenied);
  EXPECT_NE(text.find("clock differs from the server's by"), std::string::npos) << text;
}

TEST_F(ObjectFaults, AnotherRegionIsFollowed) {
  make_object("elsewhere", 1000, 16);
  Proxy proxy(server_->port());
  proxy.judge([](const Request& request) -> Fault {
    if (request.headers.at("authorization").find("/us-east-1/") != std::string::npos) return {};
    return {.answer = Proxy::http(301, "<Error><Code>PermanentRedirect</Code></Error>",
                                  "x-amz-bucket-region: us-east-1\r\n")};
  });
  connect(proxy.url(), "region = \"eu-central-7\"\n");
  const Region object = open("elsewhere");
  EXPECT_EQ(move(Op::read, 0, object, 0, 1000), Status::kOk);
  EXPECT_EQ(first_difference(memory_.data(), 1000, 16), 1000u);
  // One that sends us round in circles is not followed for ever, nor a stranger at all.
  proxy.judge([](const Request&) -> Fault {
    return {.answer = Proxy::http(307, "", "Location: http://stranger.example/bucket/key\r\n")};
  });
  EXPECT_NE(refusal(*agent_, "s3://other/key").first, Status::kOk);
  for (const Request& request : proxy.seen())
    EXPECT_TRUE(request.headers.at("host").starts_with("127.0.0.1"));
}

}  // namespace
}  // namespace towline::interop
