// Blobs of a real emulator of Azure: bytes, blocks, ranges, conditions, replacing, listing, credentials, lost answers.
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <random>

#include "fixture.h"
#include "support/directed.h"

namespace towline::interop {
namespace {

class Blobs : public ObjectTest {
 protected:
  static void SetUpTestSuite() {
    if (!AzureServer::program().empty()) azure_ = std::make_unique<AzureServer>();
  }
  static void TearDownTestSuite() { azure_.reset(); }

  void SetUp() override {
    if (azure_ == nullptr) GTEST_SKIP() << AzureServer::kMissing;
    memory_.resize(kBytes);
    connect(azure_->port());
  }

  void connect(uint16_t port, const std::string& more = {}) { use(AzureServer::config(port, more)); }
  void use(const std::string& config) {
    region_.reset();
    agent_.reset();
    agent_ = std::make_unique<Agent>("blobs", options_for(config));
    region_ = std::make_unique<Region>(
        agent_->register_memory(dram(memory_.data(), memory_.size()), {.access = Access::kAll}));
  }
  [[nodiscard]] Region open(const std::string& key, const StorageOptions& options = {}) const {
    return agent_->register_storage("az://bucket/" + key, options);
  }
  void make_blob(const std::string& key, uint64_t bytes, uint64_t seed) {
    const Region blob = open(key, {.create = true, .truncate = true, .bytes = bytes});
    stamp_bytes(memory_.data(), bytes, seed);
    ASSERT_EQ(move(Op::write, 0, blob, 0, bytes), Status::kOk);
    std::memset(memory_.data(), 0, bytes);
  }
  void expect_contents(const Region& blob, uint64_t bytes, uint64_t seed) {
    std::memset(memory_.data(), 0, bytes);
    ASSERT_EQ(move(Op::read, 0, blob, 0, bytes), Status::kOk);
    EXPECT_EQ(first_difference(memory_.data(), bytes, seed), bytes);
  }

  static inline std::unique_ptr<AzureServer> azure_;
};

// ---- bytes

TEST_F(Blobs, SmallOnesGoInOneRequest) {
  Proxy proxy(azure_->port());
  connect(static_cast<uint16_t>(std::stoi(proxy.url().substr(proxy.url().rfind(':') + 1))));
  const Region blob = open("whole", {.create = true, .truncate = true, .bytes = kMib});
  stamp_bytes(memory_.data(), kMib, 1);
  ASSERT_EQ(move(Op::write, 0, blob, 0, kMib), Status::kOk);
  ASSERT_EQ(proxy.seen().size(), 1u);
  EXPECT_EQ(proxy.seen()[0].headers.at("x-ms-blob-type"), "BlockBlob");
  EXPECT_EQ(proxy.seen()[0].headers.at("x-ms-content-crc64").size(), 12u);
  expect_contents(blob, kMib, 1);
  EXPECT_EQ(agent_->query_storage("az://bucket/whole").bytes, kMib);
}

TEST_F(Blobs, LargeOnesGoInBlocksAndComeInRanges) {
  Proxy proxy(azure_->port());
  connect(static_cast<uint16_t>(std::stoi(proxy.url().substr(proxy.url().rfind(':') + 1))),
          "part = \"5MiB\"\nmultipart = \"8MiB\"\n");
  const Region blob = open("large", {.create = true, .bytes = 23 * kMib});
  stamp_bytes(memory_.data(), 23 * kMib, 2);
  ASSERT_EQ(move(Op::write, 0, blob, 0, 23 * kMib), Status::kOk);
  expect_contents(blob, 23 * kMib, 2);
  size_t blocks = 0;
  size_t ranges = 0;
  for (const Request& request : proxy.seen()) {
    blocks += request.has("blockid=") ? 1u : 0u;
    ranges += request.headers.contains("range") ? 1u : 0u;
  }
  EXPECT_EQ(blocks, 5u);
  EXPECT_GE(ranges, 5u);
}

TEST_F(Blobs, PickedPagesGoWhereTheyBelong) {
  constexpr uint64_t kPage = 16384;
  constexpr uint32_t kPages = 64;
  make_blob("pages", kPage * kPages, 4);
  const Region blob = open("pages", {.access = Access::kAll});
  const BlockList mine = agent_->block_list(blocks_of(memory_.data(), kPage * kPages, kPage));
  const BlockList theirs = agent_->block_list(blob.blocks(0, kPage).repeat(kPages, kPage));
  std::vector<uint32_t> from(kPages);
  std::iota(from.begin(), from.end(), 0u);
  std::shuffle(from.begin(), from.end(), std::mt19937(11));
  const std::vector<uint32_t> to(from.rbegin(), from.rend());
  ASSERT_EQ(run(agent_->transfer(theirs[from], mine[to])), Status::kOk);
  for (uint32_t i = 0; i < kPages; ++i)
    ASSERT_EQ(first_difference(memory_.data() + to[i] * kPage, kPage, 4, from[i] * kPage), kPage) << i;
}

TEST_F(Blobs, KeysWithOddBytesWorkAndAreListedInOrder) {
  const std::vector<std::string> keys = {"odd/a b+c",  "odd/dir/deeper",       "odd/grüße/日本",
                                         "odd/100%25", "odd/~tilde'(quote)*!", "odd/q?uery=1&x"};
  for (const std::string& key : keys) {
    SCOPED_TRACE(key);
    make_blob(key, 1000 + key.size(), key.size());
    expect_contents(open(key), 1000 + key.size(), key.size());
  }
  std::vector<std::string> wanted;
  for (const std::string& key : keys) wanted.push_back("az://bucket/" + key);
  std::sort(wanted.begin(), wanted.end());
  std::vector<std::string> listed;
  for (const StorageEntry& entry : agent_->list_storage("az://bucket/odd/")) {
    listed.push_back(entry.uri);
    EXPECT_EQ(entry.info.bytes, 1000 + entry.uri.size() - std::string("az://bucket/").size());
  }
  std::sort(listed.begin(), listed.end());
  EXPECT_EQ(listed, wanted);
}

// ---- how a blob changes

TEST_F(Blobs, AReplacementIsSeenWholeOrNotAtAll) {
  make_blob("replaced", 6 * kMib, 5);
  connect(azure_->port(), "part = \"4MiB\"\n");
  const Region replacement = open("replaced", {.replace = true, .bytes = 10 * kMib});
  stamp_bytes(memory_.data(), 10 * kMib, 6);
  for (const uint64_t at : {uint64_t{8}, uint64_t{0}, uint64_t{4}})
    ASSERT_EQ(move(Op::write, at * kMib, replacement, at * kMib, std::min<uint64_t>(4, 10 - at) * kMib),
              Status::kOk);
  expect_contents(open("replaced"), 6 * kMib, 5);
  replacement.commit();
  expect_contents(open("replaced"), 10 * kMib, 6);
}

TEST_F(Blobs, AConditionalWriteSeesThatAnotherWasFaster) {
  make_blob("raced", 1000, 7);
  const Region ours = open("raced", {.access = Access::kAll, .conditional = true});
  stamp_bytes(memory_.data(), 1000, 8);
  ASSERT_EQ(move(Op::write, 0, ours, 0, 1000), Status::kOk);
  make_blob("raced", 1000, 9);
  stamp_bytes(memory_.data(), 1000, 10);
  EXPECT_EQ(move(Op::write, 0, ours, 0, 1000), Status::kStale);
  expect_contents(open("raced"), 1000, 9);
  const Region fresh = open("created-once", {.create = true, .conditional = true, .bytes = 1000});
  make_blob("created-once", 1000, 11);
  EXPECT_EQ(move(Op::write, 0, fresh, 0, 1000), Status::kStale);
}

TEST_F(Blobs, AStretchIsRefusedWithTheReason) {
  make_blob("stretch", 2 * kMib, 12);
  const Region blob = open("stretch", {.access = Access::kAll});
  const Transfer write = transfer(Op::write, 0, blob, kMib, 1000);
  EXPECT_EQ(run(write), Status::kUnsupported);
  EXPECT_NE(write.route().find("write the object whole"), std::string::npos) << write.route();
  expect_contents(blob, 2 * kMib, 12);
}

TEST_F(Blobs, AReadOfABlobThatIsReplacedMeanwhileIsStale) {
  make_blob("moving", 20 * kMib, 13);
  Proxy proxy(azure_->port());
  connect(static_cast<uint16_t>(std::stoi(proxy.url().substr(proxy.url().rfind(':') + 1))),
          "part = \"1MiB\"\nwindow = \"1MiB\"\nthreads = 1\n");  // one range after the other
  const Region blob = open("moving");
  const Agent other("other", options_for(AzureServer::config(azure_->port())));
  std::vector<std::byte> contents(20 * kMib);
  const Region theirs =
      other.register_memory(dram(contents.data(), contents.size()), {.access = Access::kAll});
  const Region same = other.register_storage("az://bucket/moving",
                                             {.create = true, .truncate = true, .bytes = contents.size()});
  std::atomic<bool> replaced{false};
  proxy.judge([&](const Request& request) {
    if (request.method == "GET" && request.number > 4 && !replaced.exchange(true))
      (void)run(other.transfer(other.block_list(Blocks::at(contents.data(), contents.size())),
                               other.block_list(same.blocks(0, contents.size()))));
    return Fault{};
  });
  EXPECT_EQ(move(Op::read, 0, blob, 0, 20 * kMib), Status::kStale);
}

// ---- who may

TEST_F(Blobs, WhatCanNotBeOpenedIsNamedWithTheReason) {
  const auto expect = [&](const std::string& config, const std::string& uri, Status status,
                          const std::string& part) {
    const Agent agent("stranger", options_for(config));
    const auto [code, text] = refusal(agent, uri);
    EXPECT_EQ(code, status) << text;
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  const std::string good = AzureServer::config(azure_->port());
  expect(good, "az://bucket/absent", Status::kNotFound, "option create");
  expect(good, "az://no-such-container/key", Status::kNotFound, "make the bucket");
  expect(good, "az://bucket", Status::kInvalidArgument, "names no key");
  const std::string begin =
      "plugins = \"object\"\n[azure]\nendpoint = \"" + AzureServer::endpoint(azure_->port()) + "\"\n";
  const std::string account = begin + "account = \"" + AzureServer::kAccount + "\"\n";
  expect(account + "account_key = \"d3Jvbmcga2V5\"\n", "az://bucket/key", Status::kPermissionDenied,
         "account key");
  expect("plugins = \"object\"\n", "az://bucket/key", Status::kInvalidArgument, "azure.account");
}

TEST_F(Blobs, ErrorsThatPassAreTriedAgain) {
  Proxy proxy(azure_->port());
  connect(static_cast<uint16_t>(std::stoi(proxy.url().substr(proxy.url().rfind(':') + 1))),
          "part = \"5MiB\"\nmultipart = \"6MiB\"\nattempts = 50\n");
  // Every other request meets something, each time something else.
  proxy.judge([](const Request& request) -> Fault {
    switch (request.number % 8) {
      case 1:
        return {.answer = Proxy::s3_error(503, "ServerBusy")};
      case 3:
        return {.answer = Proxy::s3_error(500, "InternalError")};
      case 5:
        return {.drop = true};
      case 7:
        return {.answer = Proxy::http(429, "")};
      default:
        return {};
    }
  });
  const Region blob = open("again", {.create = true, .bytes = 12 * kMib});
  stamp_bytes(memory_.data(), 12 * kMib, 21);
  ASSERT_EQ(move(Op::write, 0, blob, 0, 12 * kMib), Status::kOk);
  expect_contents(blob, 12 * kMib, 21);
  EXPECT_GE(proxy.seen().size(), 10u);
}

TEST_F(Blobs, AnswersThatMakeNoSenseAreErrors) {
  make_blob("senseless", kMib, 22);
  Proxy proxy(azure_->port());
  connect(static_cast<uint16_t>(std::stoi(proxy.url().substr(proxy.url().rfind(':') + 1))), "attempts = 2\n");
  const Region blob = open("senseless");
  const auto outcome = [&](const Fault& fault) {
    proxy.judge(
        [fault](const Request& request) -> Fault { return request.method == "GET" ? fault : Fault{}; });
    return move(Op::read, 0, blob, 1000, 5000);
  };
  EXPECT_EQ(outcome({.shorten_by = 1000}), Status::kIo);
  EXPECT_EQ(outcome({.set_headers = {{"content-range", "nonsense"}}}), Status::kProtocol);
  EXPECT_EQ(outcome({.answer = Proxy::http(200, std::string(kMib, 'x'))}), Status::kProtocol);
  EXPECT_EQ(outcome({.answer = Proxy::http(418, "<not xml")}), Status::kIo);
  EXPECT_EQ(outcome({.answer = "garbage\r\n\r\n"}), Status::kIo);
  EXPECT_EQ(outcome({.answer = Proxy::s3_error(503, "ServerBusy")}), Status::kBusy);
  EXPECT_EQ(outcome({}), Status::kOk);
}

// A signature that runs out while the agent lives.
TEST_F(Blobs, CredentialsThatHaveExpiredEndTheTransferWithTheServersWord) {
  make_blob("expiring", kMib, 23);
  Proxy proxy(azure_->port());
  connect(static_cast<uint16_t>(std::stoi(proxy.url().substr(proxy.url().rfind(':') + 1))));
  const Region blob = open("expiring");
  expect_contents(blob, kMib, 23);
  proxy.judge([](const Request&) -> Fault {
    return {.answer = Proxy::http(
                403,
                "<?xml version=\"1.0\" encoding=\"utf-8\"?><Error><Code>AuthenticationFailed</Code>"
                "<Message>Signature not valid in the specified time frame</Message></Error>")};
  });
  EXPECT_EQ(move(Op::read, 0, blob, 0, kMib), Status::kPermissionDenied);
  const auto [code, text] = refusal(*agent_, "az://bucket/another");
  EXPECT_EQ(code, Status::kPermissionDenied);
  EXPECT_NE(text.find("403"), std::string::npos) << text;
  // It serves again: nothing of the agent's is broken.
  proxy.judge({});
  expect_contents(blob, kMib, 23);
}

TEST_F(Blobs, BadSettingsAreNamed) {
  const auto reason = [&](const std::string& more) -> std::string {
    try {
      const Agent agent("misset", options_for("plugins = \"object\"\n[azure]\n" + more));
    } catch (const Error& error) {
      return error.what();
    }
    return "taken";
  };
  EXPECT_NE(reason("account_key = \"not base64!\"\naccount = \"a\"\n").find("not base64"), std::string::npos);
  EXPECT_NE(reason("connection_string = \"nonsense\"\n").find("azure.connection_string"), std::string::npos);
  EXPECT_NE(reason("credentials = \"key\"\n").find("azure.account_key"), std::string::npos);
  EXPECT_NE(reason("endpoint = \"ftp://host\"\n").find("azure.endpoint"), std::string::npos);
}

TEST_F(Blobs, AConnectionStringIsEnough) {
  use("plugins = \"object\"\n[azure]\nconnection_string = \"AccountName=" +
      std::string(AzureServer::kAccount) + ";AccountKey=" + AzureServer::kKey +
      ";BlobEndpoint=" + AzureServer::endpoint(azure_->port()) + "\"\n");
  make_blob("by-string", 1000, 14);
  expect_contents(open("by-string"), 1000, 14);
}

// Servers of the test's own: the emulator takes no token that is not signed by somebody.
TEST_F(Blobs, TokensAndSignaturesTravelAsAzureWantsThem) {
  Proxy blobs(0, [](const Request& request) {
    return Fault{.answer = Proxy::http(200, request.method == "HEAD" ? "" : "x", "etag: \"1\"\r\n")};
  });
  use("plugins = \"object\"\n[azure]\nendpoint = \"" + blobs.url() +
      "/account\"\nsas_token = \"?sv=1&sig=a%2Bb\"\n");
  (void)agent_->query_storage("az://bucket/key");
  ASSERT_FALSE(blobs.seen().empty());
  EXPECT_TRUE(blobs.seen()[0].has("/account/bucket/key?sv=1&sig=a%2Bb")) << blobs.seen()[0].target;
  EXPECT_FALSE(blobs.seen()[0].headers.contains("authorization"));

  blobs.forget();
  Proxy identity(0, [](const Request&) {
    return Fault{.answer = Proxy::http(200, R"({"access_token":"opaque","expires_in":"3600"})")};
  });
  use("plugins = \"object\"\n[azure]\nendpoint = \"" + blobs.url() +
      "/account\"\ncredentials = \"managed_identity\"\n[tuning.azure]\nmetadata_endpoint = \"" +
      identity.url() + "\"\n");
  (void)agent_->query_storage("az://bucket/key");
  EXPECT_EQ(identity.seen().at(0).headers.at("metadata"), "true");
  EXPECT_EQ(blobs.seen().at(0).headers.at("authorization"), "Bearer opaque");
}

// ---- lost answers, and servers that go

TEST_F(Blobs, AnAnswerThatGotLostIsSettledByLooking) {
  for (const bool large : {false, true}) {
    Proxy proxy(azure_->port());
    connect(static_cast<uint16_t>(std::stoi(proxy.url().substr(proxy.url().rfind(':') + 1))),
            "part = \"1MiB\"\nmultipart = \"2MiB\"\nattempts = \"1\"\n");
    const uint64_t bytes = large ? 5 * kMib : kMib;
    const Region blob = open("lost", {.create = true, .truncate = true, .bytes = bytes});
    std::atomic<bool> dropped{false};
    proxy.judge([&](const Request& request) {
      const bool commits = request.method == "PUT" && !request.has("blockid=");
      return Fault{.drop_answer = commits && !dropped.exchange(true)};
    });
    stamp_bytes(memory_.data(), bytes, 15);
    ASSERT_EQ(move(Op::write, 0, blob, 0, bytes), Status::kOk) << agent_->info();
    EXPECT_TRUE(dropped);
    EXPECT_EQ(proxy.seen().back().method, "HEAD");
    expect_contents(blob, bytes, 15);
  }
}

TEST_F(Blobs, WhatArrivedDamagedIsSentAgain) {
  for (const char* checksum : {"crc64", "md5"}) {
    for (const uint64_t bytes : {kMib, 4 * kMib}) {  // in one request, and in blocks
      SCOPED_TRACE(std::string(checksum) + " " + std::to_string(bytes));
      Proxy proxy(azure_->port());
      connect(static_cast<uint16_t>(std::stoi(proxy.url().substr(proxy.url().rfind(':') + 1))),
              "part = \"1MiB\"\nmultipart = \"2MiB\"\nchecksum = \"" + std::string(checksum) + "\"\n");
      const Region blob = open("damaged", {.create = true, .truncate = true, .bytes = bytes});
      std::atomic<bool> damaged{false};
      proxy.judge([&](const Request& request) {
        const bool carries = request.method == "PUT" && !request.has("blocklist");
        return Fault{.flip_request = carries && !damaged.exchange(true)};
      });
      stamp_bytes(memory_.data(), bytes, 16);
      ASSERT_EQ(move(Op::write, 0, blob, 0, bytes), Status::kOk);
      EXPECT_TRUE(damaged);
      expect_contents(blob, bytes, 16);
    }
  }
}

TEST_F(Blobs, ABlockOfWhichTheServerTellsAnotherChecksumIsSentAgain) {
  Proxy proxy(azure_->port());
  connect(static_cast<uint16_t>(std::stoi(proxy.url().substr(proxy.url().rfind(':') + 1))),
          "part = \"1MiB\"\nmultipart = \"2MiB\"\n");
  const Region blob = open("other-sum", {.create = true, .truncate = true, .bytes = 4 * kMib});
  std::atomic<int> blocks{0};
  proxy.judge([&](const Request& request) {
    Fault fault;
    if (request.has("blockid=") && blocks.fetch_add(1) == 1)
      fault.set_headers["x-ms-content-crc64"] = "AAAAAAAAAAA=";
    return fault;
  });
  stamp_bytes(memory_.data(), 4 * kMib, 17);
  ASSERT_EQ(move(Op::write, 0, blob, 0, 4 * kMib), Status::kOk);
  EXPECT_EQ(blocks, 5);
  expect_contents(blob, 4 * kMib, 17);
}

// As Azurite before 3.37 answers.
TEST_F(Blobs, AServerThatKnowsNoCrc64EndsTheWriteWithItsWord) {
  Proxy proxy(azure_->port());
  connect(static_cast<uint16_t>(std::stoi(proxy.url().substr(proxy.url().rfind(':') + 1))));
  proxy.judge([](const Request& request) {
    const bool refuses = request.headers.contains("x-ms-content-crc64");
    return Fault{.answer = refuses ? Proxy::s3_error(501, "APINotImplemented") : ""};
  });
  const Region blob = open("unknown-sum", {.create = true, .truncate = true, .bytes = kMib});
  EXPECT_EQ(move(Op::write, 0, blob, 0, kMib), Status::kUnsupported);
  connect(static_cast<uint16_t>(std::stoi(proxy.url().substr(proxy.url().rfind(':') + 1))),
          "checksum = \"md5\"\n");
  const Region again = open("unknown-sum", {.create = true, .truncate = true, .bytes = kMib});
  EXPECT_EQ(move(Op::write, 0, again, 0, kMib), Status::kOk);
}

TEST_F(Blobs, AServerThatGoesEndsTransfersByTheirDeadlineAndServesAgain) {
  AzureServer own;
  connect(own.port());
  make_blob("survivor", 4 * kMib, 17);
  own.stop(SIGTERM);  // killed, the emulator forgets what it has acknowledged
  const Region blob = agent_->register_storage("az://bucket/survivor", {.bytes = 4 * kMib});
  const auto begin = std::chrono::steady_clock::now();
  const Transfer read = transfer(Op::read, 0, blob, 0, 4 * kMib, {.timeout = 500ms});
  EXPECT_TRUE(is_error(run(read)));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 3s);
  own.start();
  expect_contents(blob, 4 * kMib, 17);
}

TEST_F(Blobs, AServerThatStallsEndsTransfersByTheirDeadlineAndServesAgain) {
  make_blob("stalled", kMib, 24);
  Proxy proxy(azure_->port());
  connect(static_cast<uint16_t>(std::stoi(proxy.url().substr(proxy.url().rfind(':') + 1))));
  const Region blob = open("stalled");
  proxy.judge([](const Request&) -> Fault { return {.hold = true}; });
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(run(transfer(Op::read, 0, blob, 0, kMib, {.timeout = 500ms})), Status::kTimedOut);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 3s);
  proxy.judge({});
  expect_contents(blob, kMib, 24);
}

TEST_F(Blobs, ABlobCutShortIsAnErrorAndServesAgain) {
  make_blob("short", 2 * kMib, 25);
  const Region blob = open("short");
  expect_contents(blob, 2 * kMib, 25);
  make_blob("short", kMib, 26);
  EXPECT_TRUE(is_error(move(Op::read, 0, blob, 0, 2 * kMib)));
  make_blob("short", 2 * kMib, 27);
  expect_contents(blob, 2 * kMib, 27);
}

TEST_F(Blobs, AFullServerIsAnErrorOfThatTransferOnly) {
  Proxy proxy(azure_->port());
  connect(static_cast<uint16_t>(std::stoi(proxy.url().substr(proxy.url().rfind(':') + 1))));
  std::atomic<unsigned> asked{0};
  proxy.judge([&](const Request& request) -> Fault {
    if (request.method != "PUT" || !request.has("/full")) return {};
    ++asked;
    return {.answer = Proxy::http(507, "")};
  });
  const Region full = open("full", {.create = true, .truncate = true, .bytes = kMib});
  EXPECT_EQ(move(Op::write, 0, full, 0, kMib), Status::kNoSpace);
  EXPECT_EQ(asked, 1u) << "asking again frees no space";
  const Region beside = open("beside", {.create = true, .truncate = true, .bytes = kMib});
  EXPECT_EQ(move(Op::write, 0, beside, 0, kMib), Status::kOk);
}

// ---- a peer's memory

TEST_F(Blobs, APeersMemoryGoesToABlobInOneTransfer) {
  const Agent owner("owner", {.config = ""});
  std::vector<std::byte> cache(12 * kMib);
  stamp_bytes(cache.data(), cache.size(), 18);
  const Region region = owner.register_memory(dram(cache.data(), cache.size()), {.access = Access::kAll});
  AgentOptions options = options_for(AzureServer::config(azure_->port()));
  const Agent agent("writer", options);
  const Peer peer = agent.connect(owner.address());
  const Region blob = agent.register_storage("az://bucket/from-peer",
                                             {.create = true, .truncate = true, .bytes = cache.size()});
  const Transfer save = agent.transfer(peer.block_list(Blocks::at(cache.data(), cache.size())),
                                       agent.block_list(blob.blocks(0, cache.size())));
  ASSERT_EQ(run(save), Status::kOk);
  expect_contents(open("from-peer"), cache.size(), 18);
}

}  // namespace
}  // namespace towline::interop
