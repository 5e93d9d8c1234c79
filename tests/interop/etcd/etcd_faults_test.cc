// Bad days: publishers killed, servers stopped, restarted, emptied, cut off.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <set>

#include "publisher.h"
#include "support.h"

namespace towline::interop {
namespace {

class EtcdFaults : public WithEtcd {};

TEST_F(EtcdFaults, AKilledPublishersKeysVanishWithItsLease) {
  const Etcd etcd;
  const std::string address = "etcd://" + etcd.address();
  const Agent agent = make_agent("survivor");
  const Directory directory(agent, address);
  Publisher publisher(address, "victim");
  directory.fetch("victim", {.follow = true}).get();
  const Watch watch = directory.watch("victim/");
  EXPECT_EQ(next_of(watch).substr(0, 19), "put victim/metadata");
  EXPECT_EQ(next_of(watch), "synced");
  EXPECT_EQ(next_of(watch, 5s), "NOT_YET");  // longer than its lease: it is kept alive
  const auto killed_at = SteadyClock::now();
  publisher.kill_hard();
  EXPECT_EQ(next_of(watch), "gone victim/metadata");
  tell_time("a killed publisher's key gone", killed_at);
  EXPECT_TRUE(eventually([&] { return !agent.find_peer("victim").has_value(); }));
  tell_time("and its peer forgotten", killed_at);
}

TEST_F(EtcdFaults, APublisherThatStoodStillForLongerThanItsLeaseIsPublishedAgain) {
  const Etcd etcd;
  const std::string address = "etcd://" + etcd.address();
  const Agent agent = make_agent("survivor");
  const Directory directory(agent, address);
  Publisher publisher(address, "sleeper");
  const Watch watch = directory.watch("sleeper/");
  EXPECT_EQ(next_of(watch).substr(0, 20), "put sleeper/metadata");
  EXPECT_EQ(next_of(watch), "synced");
  const auto stopped_at = SteadyClock::now();
  publisher.signal(SIGSTOP);
  EXPECT_EQ(next_of(watch), "gone sleeper/metadata");
  tell_time("a stopped publisher's key gone", stopped_at);
  const auto continued_at = SteadyClock::now();
  publisher.signal(SIGCONT);
  EXPECT_EQ(next_of(watch).substr(0, 20), "put sleeper/metadata");
  tell_time("published again, once it went on", continued_at);
  const auto finished_at = SteadyClock::now();
  EXPECT_EQ(publisher.finish(), 0);
  EXPECT_EQ(next_of(watch), "gone sleeper/metadata");
  tell_time("gone, as it ended", finished_at);
}

TEST_F(EtcdFaults, AKeyThatAnotherTookMeanwhileIsLeftToIt) {
  const Etcd etcd;
  const std::string address = "etcd://" + etcd.address();
  const Agent agent = make_agent("survivor");
  const Directory directory(agent, address);
  Publisher publisher(address, "sleeper");
  const Watch watch = directory.watch("sleeper/");
  EXPECT_EQ(next_of(watch).substr(0, 20), "put sleeper/metadata");
  EXPECT_EQ(next_of(watch), "synced");
  publisher.signal(SIGSTOP);
  EXPECT_EQ(next_of(watch), "gone sleeper/metadata");
  directory.put("sleeper/metadata", "another").get();
  EXPECT_EQ(next_of(watch), "put sleeper/metadata=another");
  publisher.signal(SIGCONT);
  EXPECT_EQ(next_of(watch, 3s), "NOT_YET");
  EXPECT_EQ(publisher.finish(), 0);
  EXPECT_EQ(directory.get("sleeper/metadata").get_value(), "another");
}

TEST_F(EtcdFaults, WhatIsPublishedOutlivesARestartOfTheServer) {
  Etcd etcd;
  const Agent agent = make_agent("a");
  const Directory directory(agent, "etcd://" + etcd.address());
  directory.publish().get();
  const std::string blob = directory.get("a/metadata").get_value();
  const Watch watch = directory.watch();
  (void)next_of(watch);
  EXPECT_EQ(next_of(watch), "synced");
  ASSERT_TRUE(eventually([&] { return watch.status() == Status::kOk; }));
  etcd.stop(SIGTERM);
  const auto ended_at = SteadyClock::now();
  EXPECT_TRUE(eventually([&] { return watch.status() == Status::kInProgress; }));
  tell_time("a server's end noticed", ended_at);
  const DirectoryCall during = directory.get("a/metadata");  // waits for the server
  etcd.start();
  const auto back_at = SteadyClock::now();
  EXPECT_EQ(during.get_value(), blob);
  tell_time("a call answered, once the server answers", back_at);
  EXPECT_TRUE(eventually([&] { return watch.status() == Status::kOk; }));
  tell_time("the watch following again", back_at);
  directory.put("after", "the restart").get();
  EXPECT_EQ(next_of(watch), "put after=the restart");
  EXPECT_EQ(next_of(watch, 4s), "NOT_YET");  // the lease goes on, too
}

TEST_F(EtcdFaults, WhatCouldNotBeUnpublishedIsWhenAskedAgain) {
  Etcd etcd;
  const Agent agent = make_agent("a");
  const Directory directory(agent, "etcd://" + etcd.address());
  directory.publish().get();
  directory.publish({.label = "second"}).get();
  etcd.stop(SIGTERM);
  EXPECT_EQ(directory.unpublish("second", 200ms).wait(), Status::kUnreachable);
  EXPECT_EQ(directory.unpublish({}, 200ms).wait(), Status::kUnreachable);
  etcd.start();
  directory.unpublish().get();
  EXPECT_EQ(directory.get("a/metadata").wait(), Status::kNotFound);
  EXPECT_EQ(directory.get("a/second").wait(), Status::kNotFound);
}

TEST_F(EtcdFaults, WhatIsPublishedComesBackToAServerThatLostEverything) {
  Etcd etcd;
  const Agent agent = make_agent("a");
  const Directory directory(agent, "etcd://" + etcd.address());
  directory.publish().get();
  directory.put("unleased", "is lost").get();
  for (int i = 0; i < 20; ++i) directory.put("history", std::to_string(i)).get();
  const std::string blob = directory.get("a/metadata").get_value();
  const Watch watch = directory.watch();
  for (std::string event; event != "synced";) event = next_of(watch);
  etcd.stop(SIGKILL);
  etcd.wipe();
  etcd.start();
  const auto back_at = SteadyClock::now();
  EXPECT_TRUE(eventually([&] { return directory.get("a/metadata").wait() == Status::kOk; }));
  tell_time("published again, once an emptied server answers", back_at);
  EXPECT_EQ(directory.get("a/metadata").get_value(), blob);
  std::set<std::string> told;
  while (!told.contains("gone history") || !told.contains("gone unleased")) {
    const std::string event = next_of(watch);
    ASSERT_NE(event, "TIMED_OUT");
    told.insert(event.substr(0, event.find('=')));
  }
  EXPECT_EQ(directory.get("unleased").wait(), Status::kNotFound);
  EXPECT_NE(directory.info().find("\"times_lost\":1"), std::string::npos) << directory.info();
  EXPECT_NE(directory.info().find("\"schema\":1"), std::string::npos) << directory.info();
}

TEST_F(EtcdFaults, CallsToAStoppedServerEndByTheirDeadlineAndSayWhy) {
  Etcd etcd;
  const Agent agent = make_agent("a");
  const Directory directory(agent, "etcd://" + etcd.address());
  directory.publish().get();
  const Watch watch = directory.watch();
  (void)next_of(watch);
  EXPECT_EQ(next_of(watch), "synced");
  ASSERT_TRUE(eventually([&] { return watch.status() == Status::kOk; }));
  const auto asked_at = SteadyClock::now();
  etcd.send(SIGSTOP);
  const DirectoryCall call = directory.get("a/metadata", {.timeout = 2500ms});
  EXPECT_TRUE(eventually([&] { return watch.status() == Status::kInProgress; }));  // noticed without a word
  tell_time("a stopped server's silence noticed by the watch", asked_at);
  EXPECT_EQ(call.wait(), Status::kTimedOut);
  EXPECT_LT(SteadyClock::now() - asked_at, 10s);
  EXPECT_NE(call.error().find(etcd.address()), std::string_view::npos) << call.error();
  EXPECT_NE(call.error().find("a/metadata"), std::string_view::npos) << call.error();
  const auto continued_at = SteadyClock::now();
  etcd.send(SIGCONT);
  directory.put("after", "it goes on").get();
  tell_time("a call answered, once the server went on", continued_at);
  EXPECT_TRUE(eventually([&] { return directory.get("a/metadata").wait() == Status::kOk; }));
  for (std::string event = next_of(watch); event != "put after=it goes on"; event = next_of(watch)) {
    ASSERT_NE(event, "TIMED_OUT");
  }
  tell_time("and told by the watch", continued_at);
}

TEST_F(EtcdFaults, NoServerAtAllIsUnreachable) {
  const Agent agent = make_agent("a");
  const Directory directory(agent, "etcd://127.0.0.1:" + std::to_string(free_port()));
  const DirectoryCall call = directory.put("key", "value", {.timeout = 500ms});
  EXPECT_EQ(call.wait(), Status::kUnreachable);
  EXPECT_NE(call.error().find("127.0.0.1"), std::string_view::npos) << call.error();
  EXPECT_EQ(directory.publish({.timeout = 500ms}).wait(), Status::kUnreachable);
  const DirectoryCall waiting = directory.fetch("x", {.wait = true, .timeout = 500ms});
  EXPECT_EQ(waiting.wait(), Status::kUnreachable);
  for (const char* part : {"getting '", "http://127.0.0.1:"})
    EXPECT_NE(waiting.error().find(part), std::string_view::npos) << waiting.error();
  const DirectoryCall cancelled = directory.get("key");
  EXPECT_EQ(cancelled.cancel(), Status::kOk);
  EXPECT_EQ(cancelled.wait(5s), Status::kCancelled);
}

TEST_F(EtcdFaults, OfTwoServersOneDeadTheOtherIsAsked) {
  const Etcd etcd;
  const Agent agent = make_agent("a");
  const std::string dead = "127.0.0.1:" + std::to_string(free_port());
  const Directory directory(agent, "etcd://" + dead + "," + etcd.address());
  directory.publish().get();
  EXPECT_FALSE(directory.get("a/metadata").get_value().empty());
  const Watch watch = directory.watch();
  EXPECT_EQ(next_of(watch).substr(0, 14), "put a/metadata");
  EXPECT_NE(directory.info().find("\"failure\""), std::string::npos) << directory.info();
}

// One etcd behind two lines, as two servers of one cluster look.
TEST_F(EtcdFaults, WhenAServerIsCutOffOrGoesSilentTheOtherTakesOver) {
  const Etcd etcd;
  Line first(etcd.port());
  Line second(etcd.port());
  const Agent agent = make_agent("a");
  const Agent other = make_agent("other");
  const Directory directory(agent, "etcd://" + first.address() + "," + second.address());
  const Directory straight(other, "etcd://" + etcd.address());
  directory.publish().get();
  const Watch watch = directory.watch();
  (void)next_of(watch);
  EXPECT_EQ(next_of(watch), "synced");
  ASSERT_TRUE(eventually([&] { return watch.status() == Status::kOk; }));
  const auto cut_at = SteadyClock::now();
  first.cut();
  straight.put("x", "1").get();
  EXPECT_EQ(next_of(watch), "put x=1");
  tell_time("a change told by the other server, after a cut", cut_at);
  EXPECT_NE(second.carried(), 0u);
  directory.get("x").get();
  first.open();
  ASSERT_TRUE(eventually([&] { return watch.status() == Status::kOk; }));
  const auto silent_at = SteadyClock::now();
  second.silence();  // without a word
  straight.put("x", "2").get();
  EXPECT_EQ(next_of(watch), "put x=2");
  tell_time("a change told by the other server, after a silence", silent_at);
  EXPECT_EQ(next_of(watch, 3s), "NOT_YET");  // and the lease was kept alive over it
}

TEST_F(EtcdFaults, AWatchMissesAndRepeatsNothingAcrossCuts) {
  const Etcd etcd;
  Line line(etcd.port());
  const Agent agent = make_agent("a");
  const Agent other = make_agent("other");
  const Directory directory(agent, "etcd://" + line.address());
  const Directory straight(other, "etcd://" + etcd.address());
  const Watch watch = directory.watch("k/");
  EXPECT_EQ(next_of(watch), "synced");
  int number = 0;
  for (int round = 0; round < 5; ++round) {
    line.cut();
    for (int i = 0; i < 10; ++i, ++number) straight.put("k/" + std::to_string(1000 + number), "v").get();
    line.open();
    straight.remove("k/" + std::to_string(1000 + number - 1)).get();
    for (int i = number - 10; i < number - 1; ++i) {
      ASSERT_EQ(next_of(watch), "put k/" + std::to_string(1000 + i) + "=v");
    }
    std::string last = next_of(watch);
    const std::string key = "k/" + std::to_string(1000 + number - 1);
    if (last == "put " + key + "=v") last = next_of(watch);  // unless both came at once
    ASSERT_EQ(last, "gone " + key);
  }
}

TEST_F(EtcdFaults, AWatchTellsTheDifferenceWhenHistoryIsCompacted) {
  const Etcd etcd;
  Line line(etcd.port());
  const Agent agent = make_agent("a");
  const Agent other = make_agent("other");
  const Directory directory(agent, "etcd://" + line.address());
  const Directory straight(other, "etcd://" + etcd.address());
  straight.put("k/stays", "1").get();
  straight.put("k/goes", "1").get();
  straight.put("k/changes", "1").get();
  const Watch watch = directory.watch("k/");
  for (std::string event; event != "synced";) event = next_of(watch);
  ASSERT_TRUE(eventually([&] { return watch.status() == Status::kOk; }));
  line.cut();
  straight.remove("k/goes").get();
  straight.put("k/changes", "2").get();
  straight.put("k/new", "2").get();
  const DirectoryCall newest = straight.get("k/new");
  const uint64_t revision = newest.get_entries().front().revision;
  (void)etcd.post("/v3/kv/compaction", "{\"revision\": \"" + std::to_string(revision) + "\"}");
  line.open();
  EXPECT_EQ(next_of(watch), "put k/changes=2");
  EXPECT_EQ(next_of(watch), "put k/new=2");
  EXPECT_EQ(next_of(watch), "gone k/goes");
  EXPECT_EQ(next_of(watch, 500ms), "NOT_YET");
}

TEST_F(EtcdFaults, AnAgentEndsInTimeWhileItsServerIsStopped) {
  const Etcd etcd;
  auto agent = std::make_unique<Agent>(make_agent("a"));
  auto directory = std::make_unique<Directory>(*agent, "etcd://" + etcd.address());
  directory->publish().get();
  etcd.send(SIGSTOP);
  const auto begun_at = SteadyClock::now();
  agent.reset();
  EXPECT_LT(SteadyClock::now() - begun_at, 10s);  // its limit is 2 s
  tell_time("an agent ended while its server was stopped", begun_at);
  etcd.send(SIGCONT);
}

TEST_F(EtcdFaults, ADroppedDirectoryDoesNotWaitForItsServer) {
  const Etcd etcd;
  const Agent agent = make_agent("a");
  const Agent other = make_agent("b");
  auto directory = std::make_unique<Directory>(agent, "etcd://" + etcd.address());
  const Directory watching(other, "etcd://" + etcd.address());
  directory->publish().get();
  const Watch watch = watching.watch();
  EXPECT_EQ(next_of(watch).substr(0, 14), "put a/metadata");
  EXPECT_EQ(next_of(watch), "synced");
  etcd.send(SIGSTOP);
  const auto begun_at = SteadyClock::now();
  directory.reset();
  EXPECT_LT(SteadyClock::now() - begun_at, 1s);
  etcd.send(SIGCONT);
  EXPECT_EQ(next_of(watch), "gone a/metadata");
  towline_directory_release(nullptr);
}

TEST_F(EtcdFaults, InAForkedChildHandlesAnswerForked) {
  const Etcd etcd;
  const Agent agent = make_agent("a");
  const Directory directory(agent, "etcd://" + etcd.address());
  directory.publish().get();
  const DirectoryCall call = directory.get("a/metadata");
  call.get();
  const pid_t child = fork();
  if (child == 0) {
    Status code = Status::kOk;
    (void)error_of([&] { (void)directory.get("a/metadata"); }, &code);
    _exit(code == Status::kForked && call.poll() == Status::kForked ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_FALSE(directory.get("a/metadata").get_value().empty());
}

}  // namespace
}  // namespace towline::interop
