// How many requests are under way at once, no more than the settings say, and for many small objects no fewer; and how much each asks for.
#include <algorithm>
#include <atomic>
#include <cinttypes>
#include <cstdio>
#include <future>
#include <thread>

#include "fixture.h"
#include "proxy.h"
#include "support/directed.h"

namespace towline::interop {
namespace {

class ObjectBounds : public ObjectTest {
 protected:
  template <class Done>
  static bool eventually(Done&& done) {
    const auto until = std::chrono::steady_clock::now() + 20s;
    while (!done()) {
      if (std::chrono::steady_clock::now() > until) return false;
      std::this_thread::yield();
    }
    return true;
  }
};

TEST_F(ObjectBounds, AConcurrencyOfOneIsOneRequestAtOnce) {
  make_object("first", kMib, 5);
  make_object("second", kMib, 5);
  Proxy proxy(server_->port());
  connect(proxy.url(), "concurrency = 1\n");
  const Region first = open("first");
  const Region second = open("second");
  proxy.forget();
  proxy.judge([](const Request&) -> Fault { return {.hold = true}; });
  const Transfer held = transfer(Op::read, 0, first, 0, kMib, {.timeout = 2s});
  ASSERT_EQ(held.post(), Status::kInProgress);
  ASSERT_TRUE(eventually([&] { return proxy.seen().size() == 1; }));
  EXPECT_EQ(run(transfer(Op::read, kMib, second, 0, kMib, {.timeout = 300ms})), Status::kTimedOut);
  EXPECT_EQ(proxy.seen().size(), 1u) << "the second waits for the first";
  EXPECT_EQ(held.wait(60s), Status::kTimedOut);
}

// There is nothing side by side for which it would be cut.
TEST_F(ObjectBounds, WithAConcurrencyOfOneAnObjectIsReadByOneRequest) {
  constexpr uint64_t kObject = 12 * kMib;
  make_object("uncut", kObject, 6);
  Proxy proxy(server_->port());
  connect(proxy.url(), "part = \"5MiB\"\nconcurrency = 1\n");
  const Region object = open("uncut");
  proxy.forget();
  ASSERT_EQ(move(Op::read, 0, object, 0, kObject), Status::kOk);
  EXPECT_EQ(first_difference(memory_.data(), kObject, 6), kObject);
  EXPECT_EQ(proxy.seen().size(), 1u);
}

// Reads objects with one post, and notes how long the ranges were, the shortest first.
class ObjectRanges : public ObjectBounds {
 protected:
  static constexpr uint64_t kPart = kMib;

  void read(size_t objects, uint64_t each, const std::string& settings) {
    for (size_t i = 0; i < objects; ++i) make_object("ranges/" + std::to_string(i), each, i);
    Proxy proxy(server_->port());
    connect(proxy.url(), "part = \"1MiB\"\nleast_part = \"1MiB\"\nthreads = 1\n" + settings);
    std::vector<Region> regions;
    std::vector<Blocks> blocks;
    for (size_t i = 0; i < objects; ++i) {
      regions.push_back(open("ranges/" + std::to_string(i)));
      blocks.push_back(regions.back().blocks(0, each));
    }
    proxy.forget();
    const BlockList mine = agent_->block_list(blocks_of(memory_.data(), objects * each, each));
    ASSERT_EQ(run(directed(*agent_, Op::read, mine, agent_->block_list(blocks), {.timeout = 60s})),
              Status::kOk);
    for (size_t i = 0; i < objects; ++i)
      EXPECT_EQ(first_difference(memory_.data() + i * each, each, i), each) << i;
    for (const Request& request : proxy.seen()) {
      uint64_t first = 0;
      uint64_t last = 0;
      ASSERT_EQ(std::sscanf(request.headers.at("range").c_str(), "bytes=%" SCNu64 "-%" SCNu64, &first, &last),
                2);
      ranges_.push_back(last + 1 - first);
    }
    std::ranges::sort(ranges_);
  }

  std::vector<uint64_t> ranges_;
};

TEST_F(ObjectRanges, ObjectsThatKeepAllRequestsBusyAreNotCutIntoParts) {
  read(4, 3 * kPart, "concurrency = 4\n");
  EXPECT_EQ(ranges_, std::vector<uint64_t>(4, 3 * kPart));
}

TEST_F(ObjectRanges, FewObjectsAreCutIntoParts) {
  read(3, 3 * kPart, "concurrency = 4\n");
  EXPECT_EQ(ranges_, std::vector<uint64_t>(9, kPart));
}

TEST_F(ObjectRanges, AreNoLongerThanFourParts) {
  read(2, 9 * kPart, "concurrency = 2\n");
  EXPECT_EQ(ranges_.back(), 4 * kPart);
}

TEST_F(ObjectRanges, KeepWithinTheWindow) {
  read(4, 3 * kPart, "concurrency = 2\nwindow = \"2MiB\"\n");
  EXPECT_EQ(ranges_.back(), 2 * kPart);
}

// While small objects take all requests there is room for long ranges, which are made ahead. As the small ones end, there is room for one.
TEST_F(ObjectBounds, RangesThatAreMadeAheadKeepWithinTheWindow) {
  constexpr uint64_t kSmall = 64 << 10;
  constexpr uint64_t kLarge = 4 * kMib;
  constexpr size_t kRequests = 4;
  Proxy proxy(server_->port());
  connect(proxy.url(),
          "part = \"1MiB\"\nleast_part = \"1MiB\"\nwindow = \"6MiB\"\nconcurrency = 4\nthreads = 1\n");
  std::vector<Region> objects;
  std::vector<Blocks> mine;
  std::vector<Blocks> theirs;
  uint64_t at = 0;
  for (size_t i = 0; i < 2 * kRequests; ++i) {
    const uint64_t bytes = i < kRequests ? kSmall : kLarge;
    make_object("window/" + std::to_string(i), bytes, i);
    objects.push_back(open("window/" + std::to_string(i)));
    theirs.push_back(objects.back().blocks(0, bytes));
    mine.push_back(blocks_of(memory_.data() + at, bytes, bytes));
    at += bytes;
  }
  std::atomic<uint64_t> requests{0};
  std::atomic<uint64_t> now{0};
  std::atomic<uint64_t> most{0};
  proxy.judge([&](const Request& request) -> Fault {
    uint64_t first = 0;
    uint64_t last = 0;
    (void)std::sscanf(request.headers.at("range").c_str(), "bytes=%" SCNu64 "-%" SCNu64, &first, &last);
    const uint64_t bytes = last + 1 - first;
    const uint64_t count = now += bytes;
    for (uint64_t seen = most; seen < count && !most.compare_exchange_weak(seen, count);) {
    }
    ++requests;
    if (bytes == kSmall) (void)eventually([&] { return requests >= kRequests; });
    const auto until = std::chrono::steady_clock::now() + 100ms;  // for others to come, if they do
    while (bytes > kSmall && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    now -= bytes;
    return {};
  });
  ASSERT_EQ(run(directed(*agent_, Op::read, agent_->block_list(mine), agent_->block_list(theirs),
                         {.timeout = 60s})),
            Status::kOk);
  proxy.judge({});
  EXPECT_GT(most, 2 * kMib);
  EXPECT_LE(most, 6 * kMib);
}

TEST_F(ObjectBounds, ManySmallObjectsOfOnePostHaveAsManyRequestsAsTheSettingsSay) {
  constexpr uint64_t kEach = 64 << 10;
  constexpr size_t kObjects = 12;
  constexpr size_t kRequests = 8;
  Proxy proxy(server_->port());
  connect(proxy.url(), "concurrency = 8\nthreads = 4\n");
  std::vector<Region> objects;
  std::vector<Blocks> blocks;
  for (size_t i = 0; i < kObjects; ++i) {
    objects.push_back(open("many/" + std::to_string(i), {.create = true, .truncate = true, .bytes = kEach}));
    blocks.push_back(objects.back().blocks(0, kEach));
  }
  const BlockList mine = agent_->block_list(blocks_of(memory_.data(), kObjects * kEach, kEach));
  const BlockList theirs = agent_->block_list(blocks);
  for (const Op op : {Op::write, Op::read}) {
    SCOPED_TRACE(op == Op::write ? "write" : "read");
    const Transfer all = directed(*agent_, op, mine, theirs, {.timeout = 60s});
    if (op == Op::write)
      stamp_bytes(memory_.data(), kObjects * kEach, 7);
    else
      std::memset(memory_.data(), 0, kObjects * kEach);
    // Each waits until as many are under way as may be.
    std::atomic<size_t> now{0};
    std::atomic<size_t> most{0};
    proxy.judge([&](const Request&) -> Fault {
      const size_t count = ++now;
      for (size_t seen = most; seen < count && !most.compare_exchange_weak(seen, count);) {
      }
      (void)eventually([&] { return most >= kRequests; });
      --now;
      return {};
    });
    EXPECT_EQ(run(all), Status::kOk);
    EXPECT_EQ(most, kRequests);
    proxy.judge({});
  }
  EXPECT_EQ(first_difference(memory_.data(), kObjects * kEach, 7), kObjects * kEach);
}

// The first request does not wait for the checksums of all others: an object of which the bytes change while the first is under way
// has them as they are then.
TEST_F(ObjectBounds, ObjectsOfOnePostAreBegunAsThereIsRoomForThem) {
  constexpr uint64_t kEach = 64 << 10;
  constexpr size_t kObjects = 16;
  Proxy proxy(server_->port());
  connect(proxy.url(), "concurrency = 1\n");
  std::vector<Region> objects;
  std::vector<Blocks> blocks;
  for (size_t i = 0; i < kObjects; ++i) {
    objects.push_back(open("begun/" + std::to_string(i), {.create = true, .truncate = true, .bytes = kEach}));
    blocks.push_back(objects.back().blocks(0, kEach));
  }
  stamp_bytes(memory_.data(), kObjects * kEach, 8);
  const BlockList mine = agent_->block_list(blocks_of(memory_.data(), kObjects * kEach, kEach));
  const Transfer all = directed(*agent_, Op::write, mine, agent_->block_list(blocks), {.timeout = 60s});
  std::atomic<unsigned> puts{0};
  proxy.judge([&](const Request& request) -> Fault {
    if (request.method == "PUT" && ++puts == 1)
      stamp_bytes(memory_.data() + (kObjects - 1) * kEach, kEach, 9);
    return {};
  });
  EXPECT_EQ(run(all), Status::kOk);
  EXPECT_EQ(puts, kObjects) << "none was refused for its checksum and sent again";
  proxy.judge({});
  ASSERT_EQ(move(Op::read, 0, objects.back(), 0, kEach), Status::kOk);
  EXPECT_EQ(first_difference(memory_.data(), kEach, 9), kEach);
}

// Requests that were made while another was under way, and are not wanted any more, are never sent.
TEST_F(ObjectBounds, RequestsThatAreMadeAheadAreNotSentAfterACancel) {
  constexpr uint64_t kEach = 64 << 10;
  constexpr size_t kObjects = 8;
  for (size_t i = 0; i < kObjects; ++i) make_object("ahead/" + std::to_string(i), kEach, i);
  Proxy proxy(server_->port());
  connect(proxy.url(), "concurrency = 1\n");
  std::vector<Region> objects;
  std::vector<Blocks> blocks;
  for (size_t i = 0; i < kObjects; ++i) {
    objects.push_back(open("ahead/" + std::to_string(i)));
    blocks.push_back(objects.back().blocks(0, kEach));
  }
  const BlockList mine = agent_->block_list(blocks_of(memory_.data(), kObjects * kEach, kEach));
  const Transfer all = directed(*agent_, Op::read, mine, agent_->block_list(blocks), {.timeout = 60s});
  proxy.forget();
  proxy.judge([](const Request&) -> Fault { return {.hold = true}; });
  ASSERT_EQ(all.post(), Status::kInProgress);
  ASSERT_TRUE(eventually([&] { return proxy.seen().size() == 1; }));
  all.cancel();
  EXPECT_EQ(all.wait(20s), Status::kCancelled);
  EXPECT_EQ(all.wait_fenced(Fence::kBoth, 20s), Status::kOk);
  proxy.judge({});
  ASSERT_EQ(move(Op::read, 0, objects[5], 0, kEach), Status::kOk);
  EXPECT_EQ(first_difference(memory_.data(), kEach, 5), kEach);
  EXPECT_EQ(proxy.seen().size(), 2u) << "the one that was cancelled, and the one of afterwards";
}

// The server takes its time to put the parts together: the worker does not wait for it.
TEST_F(ObjectBounds, ACommitHoldsUpNoOtherCallOfItsAgent) {
  Proxy proxy(server_->port());
  connect(proxy.url());
  const Region object = open("committing", {.replace = true, .bytes = 6 * kMib});
  const Region other = open("beside", {.create = true, .bytes = kMib});
  ASSERT_EQ(move(Op::write, 0, object, 0, 6 * kMib), Status::kOk);
  std::atomic<bool> asked{false};
  std::atomic<bool> goes_on{false};
  proxy.judge([&](const Request& request) -> Fault {
    if (request.method == "POST" && request.has("uploadId")) {
      asked = true;
      (void)eventually([&] { return goes_on.load(); });
    }
    return {};
  });
  auto committed = std::async(std::launch::async, [&] { object.commit(60s); });
  ASSERT_TRUE(eventually([&] { return asked.load(); }));
  auto meanwhile = std::async(std::launch::async, [&] {
    try {
      (void)transfer(Op::write, 0, object, 0, 6 * kMib);
      ADD_FAILURE() << "what is being committed was written";
    } catch (const Error& error) {
      EXPECT_NE(std::string{error.what()}.find("committing is being committed"), std::string::npos)
          << error.what();
    }
    EXPECT_EQ(move(Op::write, 0, other, 0, kMib), Status::kOk);
  });
  EXPECT_EQ(meanwhile.wait_for(10s), std::future_status::ready);
  goes_on = true;
  meanwhile.get();
  EXPECT_NO_THROW(committed.get());
}

// Deregistering the object waits for the commit, and nothing else does.
TEST_F(ObjectBounds, DeregisteringWhatIsBeingCommittedHoldsUpNoRegistering) {
  Proxy proxy(server_->port());
  connect(proxy.url());
  Region object = open("committed late", {.replace = true, .bytes = 6 * kMib});
  ASSERT_EQ(move(Op::write, 0, object, 0, 6 * kMib), Status::kOk);
  std::atomic<bool> asked{false};
  std::atomic<bool> goes_on{false};
  proxy.judge([&](const Request& request) -> Fault {
    if (request.method == "POST" && request.has("uploadId")) {
      asked = true;
      (void)eventually([&] { return goes_on.load(); });
    }
    return {};
  });
  auto committed = std::async(std::launch::async, [&] { object.commit(60s); });
  ASSERT_TRUE(eventually([&] { return asked.load(); }));
  auto meanwhile = std::async(std::launch::async, [&] {
    // Before that it may be told of whoever else has not let go yet.
    EXPECT_TRUE(eventually([&] {
      return object.deregister(1ms) == Status::kNotYet &&
             std::string{last_error()}.find("a commit is under way") != std::string::npos;
    })) << last_error();
    std::vector<std::byte> more(4096);
    (void)agent_->register_memory(dram(more.data(), more.size()));
  });
  EXPECT_EQ(meanwhile.wait_for(10s), std::future_status::ready);
  goes_on = true;
  meanwhile.get();
  EXPECT_NO_THROW(committed.get());
  EXPECT_EQ(object.deregister(60s), Status::kOk) << last_error();
}

// Some servers do not know the token that they gave.
TEST_F(ObjectBounds, AListingThatNeverEndsIsRefused) {
  std::atomic<unsigned> pages{0};
  Proxy server(0, [&](const Request&) -> Fault {
    // In the end it stops, so that the test does.
    const bool more = ++pages < 100;
    return {.answer = Proxy::http(
                200, std::string{"<ListBucketResult><Contents><Key>a</Key><Size>1</Size></Contents>"} +
                         (more ? "<IsTruncated>true</IsTruncated><NextContinuationToken>t"
                                 "</NextContinuationToken>"
                               : "") +
                         "</ListBucketResult>")};
  });
  connect(server.url());
  try {
    (void)agent_->list_storage("s3://bucket/");
    FAIL() << pages << " pages were taken for a listing";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Status::kProtocol) << error.what();
  }
  EXPECT_EQ(pages, 2u);
}

TEST_F(ObjectBounds, TimesMayBeInfiniteWhereThatMeansSomething) {
  make_object("patient", kMib, 3);
  connect(server_->url(), "control_timeout = \"infinite\"\nstall_timeout = \"infinite\"\n");
  const Region object = open("patient");
  EXPECT_EQ(move(Op::read, 0, object, 0, kMib), Status::kOk);
  for (const std::string key : {"backoff", "backoff_most"}) {
    try {
      const Agent agent("for ever",
                        options_for("plugins = \"object\"\n[tuning.object]\n" + key + " = \"infinite\"\n"));
      FAIL() << key;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Status::kInvalidArgument);
      EXPECT_NE(std::string{error.what()}.find("tuning.object." + key), std::string::npos) << error.what();
    }
  }
}

TEST_F(ObjectBounds, NoMoreRequestsAreUnderWayThanTheSettingsSay) {
  make_object("bounded", 32 * kMib, 17);
  Proxy proxy(server_->port());
  connect(proxy.url(), "part = \"5MiB\"\nwindow = \"10MiB\"\nconcurrency = 16\nthreads = 1\n");
  const Region object = open("bounded");
  std::atomic<int> now{0};
  std::atomic<int> most{0};
  proxy.judge([&](const Request&) -> Fault {
    const int count = ++now;
    for (int seen = most; seen < count && !most.compare_exchange_weak(seen, count);) {
    }
    const auto until = std::chrono::steady_clock::now() + 20ms;  // long enough for others to come, if they do
    while (std::chrono::steady_clock::now() < until) std::this_thread::yield();
    --now;
    return {};
  });
  ASSERT_EQ(move(Op::read, 0, object, 0, 32 * kMib), Status::kOk);
  EXPECT_EQ(first_difference(memory_.data(), 32 * kMib, 17), 32 * kMib);
  EXPECT_LE(most, 2);
}

}  // namespace
}  // namespace towline::interop
