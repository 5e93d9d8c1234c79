// A peer's memory to objects of a real server, with default settings: one transfer, one outcome. The peer is a
// process of its own.
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <numeric>
#include <optional>
#include <random>
#include <thread>

#include "fixture.h"
#include "support/directed.h"
#include "support/server_process.h"

namespace towline::interop {
namespace {

class ObjectStaging : public ObjectTest {
 protected:
  void SetUp() override {
#ifndef TOWLINE_TOOL
    GTEST_SKIP() << "built without the command line, which serves the peer's memory";
#else
    ObjectTest::SetUp();
    if (IsSkipped()) return;
    port_ = free_port();
    peer_process_.start({TOWLINE_TOOL, "serve", "--region", "32MiB", "--listen", address()}, {},
                        folder_ / "peer.log", port_);
#endif
  }
  [[nodiscard]] std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

  // The agent's endpoint, and settings behind those of [object].
  void go_through(const std::string& endpoint, const std::string& more = {}) {
    connect(endpoint, more);
    // Its port is there a little before its memory.
    const auto until = std::chrono::steady_clock::now() + 20s;
    do {
      peer_.emplace(agent_->connect(address(), 20s));
    } while (peer_->regions().empty() && std::chrono::steady_clock::now() < until);
    theirs_ = peer_->regions().at(0);
  }
  void go_through_proxy(const std::string& more = {}) {
    proxy_.emplace(server_->port());
    go_through(proxy_->url(), more);
  }
  [[nodiscard]] BlockList in_peer(uint64_t offset, uint64_t bytes, uint64_t count = 1) const {
    return peer_->block_list(Blocks::at(theirs_.address + offset, bytes).repeat(count, bytes));
  }
  void fill_peer(uint64_t bytes, uint64_t seed) {
    stamp_bytes(memory_.data(), bytes, seed);
    ASSERT_EQ(run(agent_->transfer(in_memory(0, bytes), in_peer(0, bytes))), Status::kOk);
  }
  [[nodiscard]] Transfer save(const Region& object, uint64_t offset, uint64_t bytes,
                              const TransferOptions& options = {}) const {
    return agent_->transfer(in_peer(0, bytes), in_object(object, offset, bytes), options);
  }
  void expect_object(const std::string& key, uint64_t bytes, uint64_t seed) {
    ASSERT_EQ(agent_->query_storage("s3://bucket/" + key).bytes, bytes);
    std::memset(memory_.data(), 0, bytes);
    ASSERT_EQ(move(Op::read, 0, open(key), 0, bytes), Status::kOk);
    EXPECT_EQ(first_difference(memory_.data(), bytes, seed), bytes);
  }
  [[nodiscard]] bool exists(const std::string& key) const {
    return agent_->query_storage("s3://bucket/" + key).exists != 0;
  }
  template <class Done>
  static bool eventually(Done&& done) {
    const auto until = std::chrono::steady_clock::now() + 60s;
    while (!done()) {
      if (std::chrono::steady_clock::now() > until) return false;
      std::this_thread::yield();
    }
    return true;
  }
  // All of it is named, and nothing counts.
  static void expect_nothing_moved(const Transfer& transfer, uint64_t blocks, Status status, int32_t code) {
    ASSERT_EQ(transfer.wait_fenced(Fence::kBoth, 60s), Status::kOk);
    const Result result = transfer.result();
    EXPECT_EQ(result.bytes, 0u);
    ASSERT_EQ(result.failures().size(), 1u);
    EXPECT_EQ(result.failures()[0].first, 0u);
    EXPECT_EQ(result.failures()[0].count, blocks);
    EXPECT_EQ(static_cast<Status>(result.failures()[0].status), status);
    EXPECT_EQ(result.failures()[0].vendor_code, code);
  }

  TemporaryFolder folder_;
  uint16_t port_ = 0;
  support::ServerProcess peer_process_;
  std::optional<Proxy> proxy_;
  std::optional<Peer> peer_;
  RegionInfo theirs_{};
};

TEST_F(ObjectStaging, AnyLengthIsOneTransferWithDefaults) {
  go_through(server_->url());
  for (const uint64_t bytes : {uint64_t{1}, kMib, kMib + 1, 20 * kMib + 3}) {
    SCOPED_TRACE(bytes);
    const std::string key = "staged/" + std::to_string(bytes);
    const Region object = open(key, {.create = true, .bytes = bytes});
    fill_peer(bytes, bytes);
    const Transfer saving = save(object, 0, bytes, {.notice = "saved"});
    EXPECT_NE(saving.route().find("then object"), std::string::npos) << saving.route();
    ASSERT_EQ(run(saving), Status::kOk) << saving.route();
    EXPECT_EQ(saving.result().bytes, bytes);
    EXPECT_EQ(saving.wait_fenced(Fence::kBoth, 10s), Status::kOk);
    expect_object(key, bytes, bytes);
    // The same transfer again takes the object's place.
    fill_peer(bytes, bytes + 1);
    ASSERT_EQ(run(saving), Status::kOk);
    expect_object(key, bytes, bytes + 1);
    // And back.
    fill_peer(bytes, 99);
    ASSERT_EQ(run(agent_->transfer(in_object(object, 0, bytes), in_peer(0, bytes))), Status::kOk);
    ASSERT_EQ(run(agent_->transfer(in_peer(0, bytes), in_memory(0, bytes))), Status::kOk);
    EXPECT_EQ(first_difference(memory_.data(), bytes, bytes + 1), bytes);
  }
}

// A part is larger than all the staging memory, and than what may be collected at once.
TEST_F(ObjectStaging, TheMemoryInBetweenMayBeSmallerThanAPart) {
  go_through(server_->url(),
             "collect = 0\n[tuning.staging]\nchunk = \"64KiB\"\ndepth = 2\nbytes = \"256KiB\"\n");
  constexpr uint64_t kEach = 20 * kMib + 3;
  fill_peer(kEach, 1);
  std::vector<Region> objects;
  std::vector<Transfer> transfers;
  for (int i = 0; i < 4; ++i) {  // two lanes
    objects.push_back(open("narrow/" + std::to_string(i), {.create = true, .bytes = kEach}));
    transfers.push_back(save(objects.back(), 0, kEach));
    ASSERT_FALSE(is_error(transfers.back().post()));
  }
  for (const Transfer& transfer : transfers) EXPECT_EQ(transfer.wait(120s), Status::kOk);
  for (int i = 0; i < 4; ++i) expect_object("narrow/" + std::to_string(i), kEach, 1);
}

// Pages that are picked in any order, of objects of any length.
TEST_F(ObjectStaging, PickedPagesOfSeveralObjectsGoWhereTheyBelong) {
  go_through(server_->url());
  constexpr uint64_t kPage = 16384;
  constexpr uint32_t kPages = 16 * 64 + 7;
  const std::vector<uint64_t> pages_of = {1, 64, 3, 600, 2, kPages - 670};
  std::vector<Region> objects;
  std::vector<Blocks> blocks;
  for (size_t i = 0; i < pages_of.size(); ++i) {
    objects.push_back(open("picked/" + std::to_string(i), {.create = true, .bytes = pages_of[i] * kPage}));
    blocks.push_back(objects.back().blocks(0, kPage).repeat(pages_of[i], kPage));
  }
  fill_peer(kPage * kPages, 3);
  std::vector<uint32_t> from(kPages);
  std::iota(from.begin(), from.end(), 0u);
  std::shuffle(from.begin(), from.end(), std::mt19937(5));
  std::vector<uint32_t> to(kPages);
  std::iota(to.begin(), to.end(), 0u);
  std::shuffle(to.begin(), to.end(), std::mt19937(6));
  const BlockList stored = agent_->block_list(blocks);
  ASSERT_EQ(run(agent_->transfer(in_peer(0, kPage, kPages)[from], stored[to])), Status::kOk);
  std::vector<uint32_t> page_at(kPages);
  for (uint32_t i = 0; i < kPages; ++i) page_at[to[i]] = from[i];
  uint32_t page = 0;
  for (size_t i = 0; i < pages_of.size(); ++i) {
    ASSERT_EQ(move(Op::read, 0, objects[i], 0, pages_of[i] * kPage), Status::kOk);
    for (uint64_t at = 0; at < pages_of[i]; ++at, ++page)
      ASSERT_EQ(first_difference(memory_.data() + at * kPage, kPage, 3, page_at[page] * kPage), kPage)
          << "page " << at << " of object " << i;
  }
}

// ---- an object is written whole

TEST_F(ObjectStaging, AStretchIsWrittenByCopyingTheRest) {
  go_through(server_->url());
  make_object("staged-patch", 24 * kMib, 7);
  fill_peer(6 * kMib, 8);
  ASSERT_EQ(run(save(open("staged-patch", {.access = Access::kAll}), 9 * kMib, 6 * kMib)), Status::kOk);
  ASSERT_EQ(move(Op::read, 0, open("staged-patch"), 0, 24 * kMib), Status::kOk);
  EXPECT_EQ(first_difference(memory_.data(), 9 * kMib, 7), 9 * kMib);
  EXPECT_EQ(first_difference(memory_.data() + 9 * kMib, 6 * kMib, 8), 6 * kMib);
  EXPECT_EQ(first_difference(memory_.data() + 15 * kMib, 9 * kMib, 7, 15 * kMib), 9 * kMib);
  // A WRITE that S3 can't do is refused with the reason, as from memory of our own.
  const Region object = open("staged-patch", {.access = Access::kAll});
  const Transfer refused = save(object, 100, 2 * kMib);
  EXPECT_EQ(run(refused), Status::kUnsupported);
  EXPECT_NE(refused.route().find("at least 5242880 bytes"), std::string::npos) << refused.route();
  expect_nothing_moved(refused, 1, Status::kUnsupported, 0);
}

TEST_F(ObjectStaging, AReplacementTakesPartsOfDefaultSize) {
  go_through(server_->url());
  constexpr uint64_t kAll = 20 * kMib + 3;
  fill_peer(kAll, 9);
  const Region object = open("staged-replacement", {.replace = true, .bytes = kAll});
  ASSERT_EQ(run(save(object, 0, kAll)), Status::kOk);
  EXPECT_FALSE(exists("staged-replacement"));
  object.commit();
  expect_object("staged-replacement", kAll, 9);
}

// ---- bad days

TEST_F(ObjectStaging, ARefusedPartFailsAllAndLeavesNothing) {
  const S3Server own({"bucket"});
  proxy_.emplace(own.port());
  go_through(proxy_->url());
  constexpr uint64_t kAll = 20 * kMib + 3;
  fill_peer(kAll, 1);
  const Region object = open("refused", {.create = true, .bytes = kAll});
  const Transfer saving = save(object, 0, kAll);
  proxy_->judge([](const Request& request) -> Fault {
    return {.answer = request.has("partNumber=2") ? Proxy::s3_error(403, "AccessDenied") : ""};
  });
  EXPECT_EQ(run(saving), Status::kPermissionDenied);
  expect_nothing_moved(saving, 1, Status::kPermissionDenied, 403);
  EXPECT_NE(saving.route().find("AccessDenied"), std::string::npos) << saving.route();
  EXPECT_FALSE(exists("refused"));
  EXPECT_TRUE(eventually([&] { return own.unfinished_uploads() == 0; }));
  proxy_->judge({});
  ASSERT_EQ(run(saving), Status::kOk);
  expect_object("refused", kAll, 1);
}

// Large chunks, so that the last one often comes between the object's failure and the end of the write.
TEST_F(ObjectStaging, AStretchThatIsRefusedMovesNothingWheneverItsChunksCome) {
  go_through(server_->url(), "[tuning.staging]\nchunk = \"4MiB\"\ndepth = 2\n");
  make_object("staged-refused", 9 * kMib, 7);
  const Region object = open("staged-refused", {.access = Access::kAll});
  const Transfer refused = save(object, 100, 8 * kMib);
  for (int i = 0; i < 500 && !HasFailure(); ++i) {
    ASSERT_EQ(run(refused), Status::kUnsupported);
    expect_nothing_moved(refused, 1, Status::kUnsupported, 0);
  }
}

// The last chunks have been taken when the server refuses to put the parts together.
TEST_F(ObjectStaging, ACompletionThatIsRefusedIsTheOutcome) {
  go_through_proxy();
  constexpr uint64_t kAll = 9 * kMib;
  fill_peer(kAll, 1);
  const Region object = open("incomplete", {.create = true, .bytes = kAll});
  const Transfer saving = save(object, 0, kAll);
  proxy_->judge([](const Request& request) -> Fault {
    const bool completes = request.method == "POST" && request.has("uploadId=");
    return {.answer = completes ? Proxy::s3_error(403, "AccessDenied") : ""};
  });
  EXPECT_EQ(run(saving), Status::kPermissionDenied);
  expect_nothing_moved(saving, 1, Status::kPermissionDenied, 403);
  EXPECT_FALSE(exists("incomplete"));
}

// Objects that have arrived are not named among the failed ones.
TEST_F(ObjectStaging, ObjectsThatAreThereAreNotNamed) {
  go_through_proxy("concurrency = 1\nthreads = 1\n");
  constexpr uint64_t kEach = 3 * kMib;
  std::vector<Region> objects;
  std::vector<Blocks> blocks;
  for (int i = 0; i < 4; ++i) {
    objects.push_back(open("some/" + std::to_string(i), {.create = true, .bytes = kEach}));
    blocks.push_back(objects.back().blocks(0, kEach));
  }
  fill_peer(4 * kEach, 2);
  const Transfer saving = agent_->transfer(in_peer(0, kEach, 4), agent_->block_list(blocks));
  proxy_->judge([&](const Request& request) -> Fault {
    return {.answer =
                request.method == "PUT" && request.has("some/2") ? Proxy::s3_error(403, "AccessDenied") : ""};
  });
  EXPECT_EQ(run(saving), Status::kPermissionDenied);
  ASSERT_EQ(saving.wait_fenced(Fence::kBoth, 60s), Status::kOk);
  const Result result = saving.result();
  ASSERT_FALSE(result.failures().empty());
  const uint64_t there = result.failures()[0].first;
  EXPECT_EQ(result.bytes, there * kEach);
  EXPECT_LE(there, 2u);
  for (uint64_t i = 0; i < there; ++i) EXPECT_TRUE(exists("some/" + std::to_string(i))) << i;
  EXPECT_FALSE(exists("some/2"));
  EXPECT_FALSE(exists("some/3"));
  bool named = false;
  for (const auto& failure : result.failures())
    named = named || (failure.first <= 2 && 2 < failure.first + failure.count && failure.vendor_code == 403);
  EXPECT_TRUE(named) << "the object that was refused, with the server's word";
}

TEST_F(ObjectStaging, AServerThatComesBackMakesItLateOnly) {
  S3Server own({"bucket"});
  proxy_.emplace(own.port());
  go_through(proxy_->url());
  constexpr uint64_t kAll = 20 * kMib + 3;
  fill_peer(kAll, 4);
  const Region object = open("late", {.create = true, .bytes = kAll});
  const Transfer saving = save(object, 0, kAll);
  std::atomic<bool> killed{false};
  proxy_->judge([&](const Request& request) -> Fault {
    if (request.has("partNumber=2") && !killed.exchange(true)) own.stop(SIGKILL);
    return {};
  });
  ASSERT_EQ(saving.post(), Status::kInProgress);
  ASSERT_TRUE(eventually([&] { return killed.load(); }));
  own.start();
  ASSERT_EQ(saving.wait(60s), Status::kOk) << saving.route();
  expect_object("late", kAll, 4);
}

TEST_F(ObjectStaging, AServerThatStaysAwayIsTheDeadlinesOutcomeAndItsRestIsReaped) {
  S3Server own({"bucket"});
  proxy_.emplace(own.port());
  go_through(proxy_->url());
  constexpr uint64_t kAll = 20 * kMib + 3;
  fill_peer(kAll, 4);
  const Region object = open("away", {.create = true, .bytes = kAll});
  const Transfer saving = save(object, 0, kAll, {.timeout = 3s});
  std::atomic<bool> killed{false};
  proxy_->judge([&](const Request& request) -> Fault {
    if (request.has("partNumber=2") && !killed.exchange(true)) own.stop(SIGKILL);
    return {};
  });
  const auto begun = std::chrono::steady_clock::now();
  EXPECT_EQ(run(saving), Status::kTimedOut);
  EXPECT_LT(std::chrono::steady_clock::now() - begun, 10s);
  ASSERT_EQ(saving.wait_fenced(Fence::kBoth, 20s), Status::kOk);
  EXPECT_EQ(saving.result().bytes, 0u);
  own.start();
  EXPECT_TRUE(eventually([&] { return own.unfinished_uploads() == 0; }));
  EXPECT_FALSE(exists("away"));
}

TEST_F(ObjectStaging, CancelHasOneOutcomeAndLeavesNothing) {
  const S3Server own({"bucket"});
  proxy_.emplace(own.port());
  go_through(proxy_->url(), "stall_timeout = \"1s\"\n");
  constexpr uint64_t kAll = 20 * kMib + 3;
  fill_peer(kAll, 5);
  const Region object = open("cancelled", {.create = true, .bytes = kAll});
  const Transfer saving = save(object, 0, kAll);
  // Held at the creation of the upload, at a part, and nowhere in particular.
  for (const std::string held : {"uploads", "partNumber=1", "partNumber=3", "nothing"}) {
    SCOPED_TRACE(held);
    std::atomic<bool> reached{false};
    proxy_->judge([&](const Request& request) -> Fault {
      const bool holds = request.has(held) && request.method != "DELETE";
      if (holds) reached = true;
      return {.hold = holds};
    });
    ASSERT_EQ(saving.post(), Status::kInProgress);
    if (held != "nothing") {
      ASSERT_TRUE(eventually([&] { return reached.load(); }));
    }
    saving.cancel();
    EXPECT_EQ(saving.wait(20s), Status::kCancelled);
    proxy_->judge({});
    ASSERT_EQ(saving.wait_fenced(Fence::kBoth, 60s), Status::kOk);
    EXPECT_FALSE(exists("cancelled"));
    if (held != "uploads") {  // whose answer never came, so that nobody knows which it was
      EXPECT_TRUE(eventually([&] { return own.unfinished_uploads() <= 1; }));
    }
  }
  ASSERT_EQ(run(saving), Status::kOk);
  expect_object("cancelled", kAll, 5);
}

TEST_F(ObjectStaging, APeerThatDiesLeavesTheObjectAsItWas) {
  const S3Server own({"bucket"});
  proxy_.emplace(own.port());
  // Less is collected at once than the object has, so that the peer is needed to the end.
  go_through(proxy_->url(), "collect = 0\n");
  constexpr uint64_t kAll = 24 * kMib;
  fill_peer(kAll, 5);
  const Region object = open("orphaned", {.create = true, .bytes = kAll});
  const Transfer saving = save(object, 0, kAll);
  ASSERT_EQ(run(saving), Status::kOk);
  fill_peer(kAll, 6);
  std::atomic<bool> killed{false};
  proxy_->judge([&](const Request& request) -> Fault {
    if (request.has("partNumber=1") && !killed.exchange(true)) peer_process_.stop(SIGKILL);
    return {};
  });
  EXPECT_EQ(run(saving), Status::kPeerLost) << saving.route();
  EXPECT_TRUE(killed);
  ASSERT_EQ(saving.wait_fenced(Fence::kLocal, 60s), Status::kOk);
  EXPECT_EQ(saving.result().bytes, 0u);
  EXPECT_TRUE(eventually([&] { return own.unfinished_uploads() == 0; }));
  proxy_->judge({});
  expect_object("orphaned", kAll, 5);
}

TEST_F(ObjectStaging, AnAgentEndsWithChunksOnTheirWay) {
  go_through(server_->url());
  constexpr uint64_t kAll = 24 * kMib;
  Region object = open("ending-staged", {.create = true, .bytes = kAll});
  const Transfer saving = save(object, 0, kAll);
  ASSERT_FALSE(is_error(saving.post()));
  region_.reset();
  peer_.reset();
  agent_.reset();
  const Status outcome = saving.poll();
  EXPECT_TRUE(outcome == Status::kOk || outcome == Status::kClosed || outcome == Status::kCancelled)
      << status_text(outcome);
}

}  // namespace
}  // namespace towline::interop
