#include "telemetry/snapshot.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/random.h"

namespace towline {
namespace {

// A process with counters of its own; it ends when this does.
class CountingChild {
 public:
  explicit CountingChild(const std::string& agent) {
    int ready[2];
    int stop[2];
    if (pipe(ready) != 0 || pipe(stop) != 0) std::abort();
    pid_ = fork();
    if (pid_ == 0) {
      close(ready[0]);
      close(stop[1]);
      count(agent, ready[1], stop[0]);
    }
    close(ready[1]);
    close(stop[0]);
    ready_.reset(ready[0]);
    stop_.reset(stop[1]);
    char byte = 0;
    if (read(ready_.get(), &byte, 1) != 1) ADD_FAILURE() << "the child did not start";
  }
  ~CountingChild() {
    stop_.reset();
    waitpid(pid_, nullptr, 0);
  }

  uint32_t pid() const { return static_cast<uint32_t>(pid_); }

 private:
  [[noreturn]] static void count(const std::string& agent, int ready, int stop) {
    Metrics metrics(agent, Id{3, 4});
    Series* series = metrics.series("parent", "shm", Direction::kRx);
    for (int i = 0; i < 10; ++i) series->add_transfer(0, 4096, 1, 5000);
    char byte = 1;
    if (write(ready, &byte, 1) != 1) _exit(1);
    [[maybe_unused]] const ssize_t end = read(stop, &byte, 1);
    _exit(0);
  }

  pid_t pid_ = -1;
  UniqueFd ready_;
  UniqueFd stop_;
};

std::optional<Snapshot> find_agent(const std::string& agent) {
  std::optional<Snapshot> found;
  for (Snapshot& snapshot : find_processes()) {
    if (snapshot.agent != agent) continue;
    EXPECT_FALSE(found) << "found twice";
    found = std::move(snapshot);
  }
  return found;
}

std::string unique_name(const char* name) { return std::string(name) + "-" + std::to_string(getpid()); }

TEST(SnapshotTest, AnotherProcesssCountersAreFoundAndRead) {
  const std::string agent = unique_name("child agent/1");  // the file's name is another, the agent's is not
  const CountingChild child(agent);
  const std::optional<Snapshot> snapshot = find_agent(agent);
  ASSERT_TRUE(snapshot);
  EXPECT_EQ(snapshot->pid, child.pid());
  EXPECT_EQ(snapshot->incarnation, (Id{3, 4}));
  ASSERT_EQ(snapshot->series.size(), 1u);
  EXPECT_EQ(snapshot->series[0].peer, "parent");
  EXPECT_EQ(snapshot->series[0].bytes, 40960u);
  EXPECT_EQ(snapshot->series[0].latency_max_ns, 5000u);
}

TEST(SnapshotTest, AForkedChildThatHoldsTheDescriptorIsNotAnotherAgent) {
  const std::string agent = unique_name("forked");
  const Metrics metrics(agent, Id{});
  const CountingChild holder(unique_name("holder"));  // inherits our descriptor
  const std::optional<Snapshot> snapshot = find_agent(agent);
  ASSERT_TRUE(snapshot);
  EXPECT_EQ(snapshot->pid, static_cast<uint32_t>(getpid()));
}

TEST(SnapshotTest, AGoneProcessLeavesNothing) {
  const std::string agent = unique_name("gone");
  { const CountingChild child(agent); }
  EXPECT_FALSE(find_agent(agent));
  EXPECT_TRUE(find_processes("/no/such/proc").empty());
}

TEST(SnapshotTest, FilesThatOnlyLookLikeCountersAreRefused) {
  const UniqueFd empty = create_memfd("towline-counters:fake", 1 << 16);
  EXPECT_THROW(read_snapshot(empty.get()), Error);
  const UniqueFd unsealed = create_memfd("towline-counters:unsealed", 1 << 16, {.seal_size = false});
  EXPECT_THROW(read_snapshot(unsealed.get()), Error);
  const UniqueFd tiny = create_memfd("towline-counters:tiny", 100);
  EXPECT_THROW(read_snapshot(tiny.get()), Error);
  find_processes();  // sees all three, and goes on
}

struct Free {
  void operator()(uint8_t* bytes) const { std::free(bytes); }
};
using Bytes = std::unique_ptr<uint8_t, Free>;

class HostileFileTest : public testing::Test {
 protected:
  static constexpr uint32_t kSeries = 4;

  HostileFileTest() : metrics_("victim", Id{5, 6}, {.max_series = kSeries}) {
    metrics_.series("peer", "tcp", Direction::kTx)->add_transfer(0, 1, 1, 1);
    bytes_ = counters::file_bytes(kSeries);
    // Exactly as large as the file, so that ASan sees any step beyond.
    copy_.reset(static_cast<uint8_t*>(std::aligned_alloc(4096, bytes_)));
    restore();
  }

  void restore() { std::memcpy(copy_.get(), metrics_.mapping().address(), bytes_); }
  counters::FileHeader& header() { return *reinterpret_cast<counters::FileHeader*>(copy_.get()); }
  std::span<const uint8_t> file() const { return {copy_.get(), bytes_}; }

  Metrics metrics_;
  Bytes copy_;
  std::size_t bytes_ = 0;
};

TEST_F(HostileFileTest, WrongSizesAndVersionsAreRefused) {
  EXPECT_NO_THROW(read_snapshot(file()));
  const auto refused = [&](auto change) {
    restore();
    change(header());
    EXPECT_THROW(read_snapshot(file()), Error);
  };
  refused([](auto& h) { h.magic ^= 1; });
  refused([](auto& h) { h.version = counters::kVersion + 1; });
  refused([](auto& h) { h.slot_bytes = 64; });
  refused([](auto& h) { h.header_bytes = 1 << 30; });
  refused([](auto& h) { h.shards = 1000; });
  refused([](auto& h) { h.latency_buckets = 0; });
  refused([](auto& h) { h.used_series = kSeries + 1; });
  refused([](auto& h) { h.used_series = h.max_series = UINT32_MAX; });
  refused([](auto& h) { h.used_series = h.max_series = kSeries + 1; });
  restore();
  EXPECT_THROW(read_snapshot(file().first(4095)), Error);
  EXPECT_THROW(read_snapshot(file().first(8192)), Error);
}

TEST_F(HostileFileTest, RandomContentsAreReadWithinBoundsAndPrintable) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Random random(seed);
    restore();
    for (std::size_t i = offsetof(counters::FileHeader, agent); i < bytes_; ++i) {
      copy_.get()[i] = static_cast<uint8_t>(random.next());
    }
    header().used_series = kSeries;
    const Snapshot snapshot = read_snapshot(file());
    EXPECT_EQ(snapshot.series.size(), kSeries);
    EXPECT_NO_THROW(nlohmann::json(snapshot).dump());  // throws on what is not UTF-8
    for (const char c : snapshot.agent) EXPECT_FALSE(c >= 0 && c < 0x20);
  }
}

TEST_F(HostileFileTest, NamesKeepTheirUtf8AndLoseTheirControlCharacters) {
  const auto name_of = [&](const char* text) {
    std::strncpy(header().agent, text, sizeof header().agent);
    return read_snapshot(file()).agent;
  };
  EXPECT_EQ(name_of("knoten-\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80"),
            "knoten-\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80");
  EXPECT_EQ(name_of("\x1b[31mred\x7f\n"), "?[31mred??");
  EXPECT_EQ(name_of("\xc2\x9b"
                    "x"),
            "?x");
  EXPECT_EQ(name_of("cut\xe2\x82"), "cut??");
  EXPECT_EQ(name_of("\xed\xa0\x80\xc0\xaf"), "?????");
}

TEST(SnapshotJsonTest, SaysWhatHappened) {
  Metrics metrics("a", Id{1, 2});
  Series* series = metrics.series("p", "tcp", Direction::kTx);
  series->add_transfer(0, 5, 1, 100);
  series->add_error(0, Status::kPeerLost);
  const nlohmann::json json = read_snapshot(metrics);
  EXPECT_EQ(json.at("agent"), "a");
  EXPECT_EQ(json.at("incarnation"), "00000000000000010000000000000002");
  const nlohmann::json& first = json.at("series").at(0);
  EXPECT_EQ(first.at("direction"), "tx");
  EXPECT_EQ(first.at("bytes"), 5);
  EXPECT_EQ(first.at("errors"), (nlohmann::json{{"PEER_LOST", 1}}));
  EXPECT_EQ(first.at("latency_max_ns"), 100);
}

}  // namespace
}  // namespace towline
