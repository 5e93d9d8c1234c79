// The directory in its everyday life, with one etcd.
#include <cstdlib>
#include <cstring>
#include <optional>
#include <set>

#include "support.h"
#include "towline/queue.hpp"

namespace towline::interop {
namespace {

class EtcdDirectory : public WithEtcd {
 protected:
  static void SetUpTestSuite() {
    if (Etcd::installed()) etcd_ = std::make_unique<Etcd>();
  }
  static void TearDownTestSuite() { etcd_.reset(); }

  // Separate for each test, so that tests do not interfere.
  static std::string address() {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    return "etcd://" + etcd_->address() + "/" + test->name();
  }

  static std::unique_ptr<Etcd> etcd_;
};

std::unique_ptr<Etcd> EtcdDirectory::etcd_;

TEST_F(EtcdDirectory, PutsGetsAndDeletes) {
  const Agent agent = make_agent("a");
  const Directory directory(agent, address());
  const std::string bytes("\0\xff\x01 any bytes", 13);
  directory.put("some/key", bytes).get();
  EXPECT_EQ(directory.get("some/key").get_value(), bytes);
  directory.put("some/key", "").get();
  EXPECT_EQ(directory.get("some/key").get_value(), "");
  directory.remove("some/key").get();
  Status code = Status::kOk;
  const std::string text = error_of([&] { directory.get("some/key").get(); }, &code);
  EXPECT_EQ(code, Status::kNotFound);
  EXPECT_NE(text.find("some/key"), std::string::npos) << text;
  EXPECT_EQ(directory.remove("some/key").wait(), Status::kNotFound);
}

TEST_F(EtcdDirectory, CallsAndWatchesTellAQueue) {
  const Agent agent = make_agent("a");
  const Directory directory(agent, address());
  const Queue queue{agent};
  int put_mark = 0;
  int get_mark = 0;
  int watch_mark = 0;
  const auto next_mark = [&]() -> void* {
    std::array<Event, 1> events;
    while (queue.next(events) == 0)
      if (queue.wait(30s) != Status::kOk) return nullptr;
    EXPECT_EQ(events[0].kind, uint32_t{TOWLINE_EVENT_DIRECTORY});
    return events[0].user_data;
  };
  const DirectoryCall put = directory.put("key", "value");
  ASSERT_EQ(towline_directory_call_wait_async(put.native(), queue, &put_mark), TOWLINE_OK);
  EXPECT_EQ(next_mark(), &put_mark);
  EXPECT_EQ(put.poll(), Status::kOk);
  const DirectoryCall get = directory.get("nothing");
  ASSERT_EQ(towline_directory_call_wait_async(get.native(), queue, &get_mark), TOWLINE_OK);
  EXPECT_EQ(next_mark(), &get_mark);
  EXPECT_EQ(get.poll(), Status::kNotFound);
  const Watch watch = directory.watch("");
  ASSERT_EQ(towline_watch_wait_async(watch.native(), queue, &watch_mark), TOWLINE_OK);
  EXPECT_EQ(next_mark(), &watch_mark);
  EXPECT_EQ(next_of(watch, 0s), "put key=value");
}

TEST_F(EtcdDirectory, AWatchThatIsReleasedTellsWhoWaitsForIt) {
  const Agent agent = make_agent("a");
  const Directory directory(agent, address());
  const Queue queue{agent};
  std::optional<Watch> watch(directory.watch(""));
  EXPECT_EQ(next_of(*watch, 30s), "synced");
  int mark = 0;
  ASSERT_EQ(towline_watch_wait_async(watch->native(), queue, &mark), TOWLINE_OK);
  watch.reset();
  std::array<Event, 1> events;
  ASSERT_EQ(queue.wait(30s), Status::kOk);
  ASSERT_EQ(queue.next(events), 1u);
  EXPECT_EQ(events[0].user_data, &mark);
  EXPECT_EQ(events[0].status, TOWLINE_CANCELLED);
}

TEST_F(EtcdDirectory, APrefixGivesEveryKeyInOrder) {
  const Agent agent = make_agent("a");
  const Directory directory(agent, address());
  std::vector<DirectoryCall> calls;
  for (int i = 0; i < 600; ++i) {  // more than one page
    calls.push_back(directory.put("p/" + std::to_string(1000 + i), std::to_string(i)));
  }
  for (const DirectoryCall& call : calls) call.get();
  directory.put("q", "beyond").get();
  const DirectoryCall call = directory.get("p/", {.prefix = true});
  const auto entries = call.get_entries();
  ASSERT_EQ(entries.size(), 600u);
  for (size_t i = 0; i < entries.size(); ++i) {
    ASSERT_EQ(entries[i].key, "p/" + std::to_string(1000 + i));
    ASSERT_EQ(value_of(entries[i]), std::to_string(i));
  }
  EXPECT_TRUE(directory.get("nothing/", {.prefix = true}).get_entries().empty());
  directory.remove("p/", {.prefix = true}).get();
  EXPECT_TRUE(directory.get("p/", {.prefix = true}).get_entries().empty());
  EXPECT_EQ(directory.get("q").get_value(), "beyond");
}

TEST_F(EtcdDirectory, WritesToOneKeyKeepTheirOrder) {
  const Agent agent = make_agent("a");
  const Directory directory(agent, address());
  std::vector<DirectoryCall> calls;
  for (int i = 0; i < 50; ++i)
    calls.push_back(directory.put("key", std::to_string(i), {.leased = i % 2 == 0}));
  for (const DirectoryCall& call : calls) call.get();
  EXPECT_EQ(directory.get("key").get_value(), "49");
}

TEST_F(EtcdDirectory, CreateIsRefusedWhereTheKeyIs) {
  const Agent agent = make_agent("a");
  const Directory directory(agent, address());
  for (const bool leased : {false, true}) {
    const std::string key = leased ? "leased" : "plain";
    directory.put(key, "first", {.leased = leased, .create = true}).get();
    EXPECT_EQ(directory.put(key, "second", {.leased = leased, .create = true}).wait(),
              Status::kAlreadyExists);
    EXPECT_EQ(directory.get(key).get_value(), "first");
  }
}

TEST_F(EtcdDirectory, AFetchedPeerIsReachedWithoutFurtherHelp) {
  const Agent near = make_agent("near");
  const Agent far = make_agent("far/with slash");
  Memory source(1 << 16);
  Memory target(1 << 16);
  for (size_t i = 0; i < source.size(); ++i) source.data()[i] = static_cast<std::byte>(i * 7);
  const Region mine = near.register_memory(dram(source), {.access = Access::kAll});
  const Region theirs = far.register_memory(dram(target), {.access = Access::kAll});
  const Directory published(far, address());
  published.publish().get();
  const Directory directory(near, address());
  const Peer peer = directory.fetch("far/with slash").get_peer();
  EXPECT_EQ(peer.name(), "far/with slash");
  EXPECT_EQ(peer.incarnation(), far.incarnation());
  const Transfer move = near.transfer(near.block_list(blocks_of(source.data(), source.size(), 4096)),
                                      peer.block_list(blocks_of(target.data(), target.size(), 4096)));
  const Status posted = move.post();
  EXPECT_EQ(posted == Status::kInProgress ? move.wait(20s) : posted, Status::kOk) << last_error();
  EXPECT_EQ(std::memcmp(source.data(), target.data(), source.size()), 0);
}

TEST_F(EtcdDirectory, ConnectWaitsUntilTheAgentIsPublished) {
  const Agent near = make_agent("near");
  const Agent far = make_agent("far");
  std::thread publisher;
  const Directory directory(far, address());
  {
    // The name is asked for first: the watch on it is what finds it.
    const Directory asking(near, address());
    const DirectoryCall waiting = asking.fetch("far", {.wait = true, .timeout = 20s});
    EXPECT_EQ(waiting.wait(300ms), Status::kNotYet);
    directory.publish().get();
    EXPECT_EQ(waiting.get_peer().incarnation(), far.incarnation());
  }
  EXPECT_EQ(near.connect(address() + "/far").incarnation(), far.incarnation());
  Status code = Status::kOk;
  const std::string text = error_of([&] { (void)near.connect(address() + "/nobody", 500ms); }, &code);
  EXPECT_EQ(code, Status::kNotFound);
  EXPECT_NE(text.find("nobody/metadata"), std::string::npos) << text;
}

TEST_F(EtcdDirectory, PartsOfTheMetadataHaveLabels) {
  const Agent near = make_agent("near");
  const Agent far = make_agent("far");
  Memory first(8192);
  Memory second(4096);
  const Region one = far.register_memory(dram(first), {.access = Access::kAll});
  const Region two = far.register_memory(dram(second), {.access = Access::kAll});
  const Directory directory(far, address());
  directory.publish({.label = "second", .regions = {&two}}).get();
  const Directory asking(near, address());
  EXPECT_EQ(asking.fetch("far").wait(), Status::kNotFound);
  const Peer peer = asking.fetch("far", {.label = "second"}).get_peer();
  ASSERT_EQ(peer.regions().size(), 1u);
  EXPECT_EQ(peer.regions()[0].key, two.key());
  directory.publish({.label = "first", .regions = {&one}}).get();
  EXPECT_EQ(asking.fetch("far", {.label = "first"}).get_peer().regions().size(),
            2u);  // added to what is known
  directory.unpublish("second").get();
  EXPECT_EQ(asking.get("far/second").wait(), Status::kNotFound);
  EXPECT_EQ(asking.get("far/first").wait(), Status::kOk);
  directory.unpublish().get();
  EXPECT_EQ(asking.get("far/first").wait(), Status::kNotFound);
  EXPECT_EQ(directory.unpublish("never").wait(), Status::kNotFound);
  EXPECT_NE(error_of([&] { (void)directory.publish({.label = "a/b"}); }).find("slash"), std::string::npos);
}

TEST_F(EtcdDirectory, KeysLieAsNixlLaysThem) {
  const Agent agent = make_agent("worker-3");
  const Directory directory(agent, "etcd://" + etcd_->address());
  directory.publish().get();
  // /nixl/agents/worker-3/metadata
  const std::string answer = etcd_->post(
      "/v3/kv/range", R"({"key": "L25peGwvYWdlbnRzL3dvcmtlci0zL21ldGFkYXRh", "count_only": true})");
  EXPECT_NE(answer.find("\"count\":\"1\""), std::string::npos) << answer;
}

TEST_F(EtcdDirectory, TheEnvironmentSaysWhereItIs) {
  setenv("NIXL_ETCD_ENDPOINTS", ("http://" + etcd_->address()).c_str(), 1);
  setenv("NIXL_ETCD_NAMESPACE", "/from/nixl/", 1);
  const Agent agent = make_agent("a");
  Directory(agent, "etcd://").put("key", "theirs").get();
  EXPECT_EQ(Directory(agent, "etcd://" + etcd_->address() + "/from/nixl").get("key").get_value(), "theirs");
  setenv("TOWLINE_ETCD_ENDPOINTS", etcd_->address().c_str(), 1);
  setenv("TOWLINE_ETCD_NAMESPACE", "/ours", 1);
  const Agent other = make_agent("b");
  Directory(other, "etcd://").put("key", "ours").get();
  EXPECT_EQ(Directory(other, "etcd://" + etcd_->address() + "/ours").get("key").get_value(), "ours");
  for (const char* name :
       {"NIXL_ETCD_ENDPOINTS", "NIXL_ETCD_NAMESPACE", "TOWLINE_ETCD_ENDPOINTS", "TOWLINE_ETCD_NAMESPACE"}) {
    unsetenv(name);
  }
  const Agent lost = make_agent("c");
  const std::string text = error_of([&] { const Directory directory(lost, "etcd://"); });
  EXPECT_NE(text.find("TOWLINE_ETCD_ENDPOINTS"), std::string::npos) << text;
}

TEST_F(EtcdDirectory, AWatchTellsTheStateAndThenChanges) {
  const Agent agent = make_agent("a");
  const Directory directory(agent, address());
  directory.put("w/1", "one").get();
  directory.put("w/2", "two").get();
  directory.put("elsewhere", "not told").get();
  const Watch watch = directory.watch("w/");
  EXPECT_EQ(next_of(watch), "put w/1=one");
  EXPECT_EQ(next_of(watch), "put w/2=two");
  EXPECT_EQ(next_of(watch), "synced");
  ASSERT_TRUE(eventually([&] { return watch.status() == Status::kOk; }));
  directory.put("w/3", "three").get();
  EXPECT_EQ(next_of(watch), "put w/3=three");
  directory.remove("w/1").get();
  EXPECT_EQ(next_of(watch), "gone w/1");
  EXPECT_EQ(next_of(watch, 100ms), "NOT_YET");
}

TEST_F(EtcdDirectory, EventsOfOneKeyAreMerged) {
  const Agent agent = make_agent("a");
  const Directory directory(agent, address());
  const Watch watch = directory.watch("k");
  EXPECT_EQ(next_of(watch), "synced");
  for (int i = 0; i <= 500; ++i) directory.put("k", std::to_string(i)).get();
  directory.put("k2", "end").get();
  std::set<std::string> told;
  for (std::string event = next_of(watch); event != "put k2=end"; event = next_of(watch)) told.insert(event);
  told.insert(next_of(watch, 0ms));
  EXPECT_LT(told.size(), 500u);
  EXPECT_TRUE(told.contains("put k=500"));
}

TEST_F(EtcdDirectory, ClosingTakesBackWhatWasPublished) {
  const Agent watching = make_agent("watching");
  const Directory directory(watching, address());
  const Watch watch = directory.watch();
  EXPECT_EQ(next_of(watch), "synced");
  {
    const Agent agent = make_agent("short");
    const Directory published(agent, address());
    published.put("stays", "here").get();
    EXPECT_EQ(next_of(watch), "put stays=here");
    published.publish().get();
    EXPECT_EQ(next_of(watch).substr(0, 18), "put short/metadata");
  }
  EXPECT_EQ(next_of(watch, 1s), "gone short/metadata");  // sooner than its lease
  EXPECT_EQ(directory.get("stays").get_value(), "here");
}

TEST_F(EtcdDirectory, AFollowedPeerIsForgottenWithItsKey) {
  const Agent near = make_agent("near");
  const Directory directory(near, address());
  for (int round = 0; round < 3; ++round) {
    const Agent far = make_agent("far");
    const Directory published(far, address());
    published.publish().get();
    directory.fetch("far", {.follow = true}).get();
    ASSERT_TRUE(near.find_peer("far").has_value());
    published.unpublish().get();
    EXPECT_TRUE(eventually([&] { return !near.find_peer("far").has_value(); })) << round;
  }
}

TEST_F(EtcdDirectory, WhatIsPublishedByAnotherNameIsRefused) {
  const Agent near = make_agent("near");
  const Agent far = make_agent("far");
  const Directory directory(near, address());
  const auto blob = far.metadata();
  directory.put("victim/metadata", BytesView(blob.data(), blob.size())).get();
  EXPECT_EQ(directory.fetch("victim").wait(), Status::kMismatch);
  directory.put("garbage/metadata", "no blob").get();
  const DirectoryCall call = directory.fetch("garbage");
  EXPECT_TRUE(is_error(call.wait()));
  EXPECT_NE(call.error().find("'garbage'"), std::string_view::npos) << call.error();
  EXPECT_FALSE(near.find_peer("far").has_value());
}

TEST_F(EtcdDirectory, TooLargeAValueSaysWhatToDo) {
  const Agent agent = make_agent("a");
  const Directory directory(agent, address());
  const DirectoryCall call = directory.put("large", std::string(2 << 20, 'x'));
  EXPECT_EQ(call.wait(), Status::kLimitExceeded);
  EXPECT_NE(call.error().find("--max-request-bytes"), std::string_view::npos) << call.error();
}

TEST_F(EtcdDirectory, ADrivenAgentWaitsToo) {
  const Agent agent("driven", {.progress = Progress::kCaller, .listen = "none", .config = kQuick});
  const Directory directory(agent, address());
  directory.publish().get();
  EXPECT_FALSE(directory.get("driven/metadata").get_value().empty());
}

TEST_F(EtcdDirectory, BadAddressesAndKeysAreRefusedWithTheReason) {
  const Agent agent = make_agent("a");
  for (const auto& [bad, reason] :
       std::initializer_list<std::pair<const char*, const char*>>{{"etcd://u:p@host", "etcd.user"},
                                                                  {"etcd://host:port", "host:port"},
                                                                  {"etcd+ssl://host", "etcd+tls"},
                                                                  {"etcd://host/%0", "hexadecimal"},
                                                                  {"nothing://host", "libtowline_nothing.so"},
                                                                  {"no address", "etcd://host:port"}}) {
    const std::string text = error_of([&] { const Directory directory(agent, bad); });
    EXPECT_NE(text.find(reason), std::string::npos) << bad << ": " << text;
  }
  const Directory directory(agent, address());
  EXPECT_NE(error_of([&] { (void)directory.put("", "x"); }), "");
  EXPECT_NE(error_of([&] { (void)directory.put(std::string(2000, 'k'), "x"); }), "");
  EXPECT_NE(error_of([&] { (void)agent.connect("etcd://" + etcd_->address()); }).find("names no agent"),
            std::string::npos);
}

TEST_F(EtcdDirectory, HandlesOutliveTheirAgent) {
  auto agent = std::make_unique<Agent>(make_agent("a"));
  auto directory = std::make_unique<Directory>(*agent, address());
  const Watch watch = directory->watch();
  const DirectoryCall waiting = directory->get("never", {.wait = true});
  agent.reset();
  EXPECT_EQ(waiting.wait(10s), Status::kClosed);
  for (std::string event; (event = next_of(watch, 10s)) != "CLOSED";) ASSERT_EQ(event, "synced");
  EXPECT_NE(error_of([&] { (void)directory->put("k", "v"); }), "");
}

}  // namespace
}  // namespace towline::interop
