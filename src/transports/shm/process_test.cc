// Promises that need real processes: death, exec, denied system calls, other users.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <functional>
#include <string>

#include "base/error.h"
#include "base/os/unique_fd.h"
#include "memory/shared_memory.h"
#include "support/temporary_folder.h"
#include "transports/shm/test_support.h"

namespace towline::shm {
namespace {

using testing::Child;
using testing::introduce;
using testing::Introduction;
using testing::pattern;
using transport_test::TestAgent;
using transport_test::TestLink;
using transport_test::TestPlan;
using transport_test::turn_until;

constexpr uint32_t kRegionBytes = 4 << 20;

// A child with two regions, shared and private, that turns until it is told to stop.
void serve(const Child::Pipes& pipes, const TestAgent::Settings& settings = {}) {
  TestAgent agent(towline_shm_plugin(), "child", settings);
  const auto shared = SharedMemory::allocate(kRegionBytes, 0);
  std::vector<uint8_t> plain(kRegionBytes);
  agent.add(shared->address(), kRegionBytes);
  agent.add(plain.data(), plain.size());
  pipes.send(introduce(agent));
  while (!pipes.told()) agent.turn(1);
}

TestLink& join(TestAgent& agent, const Introduction& peer) {
  TestLink& link = agent.connect(peer.identity, peer.address_of());
  turn_until({&agent}, [&] { return link.up || link.down; });
  return link;
}

TestAgent::Imported import(TestAgent& agent, TestLink& link, const towline_region_ref& region) {
  TestAgent::Imported imported;
  turn_until({&agent}, [&] {
    agent.import_once(link, region, imported);
    return imported.status != Status::kAgain;
  });
  return imported;
}

// Writes the whole region, reads it back and compares.
void move_whole(TestAgent& agent, TestLink& link, const towline_region_ref& region, const std::string& how) {
  auto imported = import(agent, link, region);
  ASSERT_EQ(imported.status, Status::kOk) << agent.failure;
  EXPECT_EQ(imported.how.substr(0, how.size()), how);
  const std::vector<uint8_t> data = pattern(region.bytes, 21);
  std::vector<uint8_t> back(data.size());
  for (const bool write : {true, false}) {
    TestPlan plan(agent, write ? TOWLINE_WRITE : TOWLINE_READ);
    plan.remote(region, imported.import);
    for (uint32_t i = 0; i < region.bytes / 4096; ++i)
      plan.add((write ? data.data() : back.data()) + i * 4096, region.address + i * 4096, 4096);
    ASSERT_EQ(plan.prepare(link), Status::kOk);
    agent.results.clear();
    ASSERT_EQ(plan.submit(1), Status::kInProgress);
    ASSERT_TRUE(turn_until({&agent}, [&] { return agent.ended(1); }));
    ASSERT_EQ(agent.results[1].status, TOWLINE_OK);
  }
  EXPECT_EQ(data, back);
  agent.unimport(link, imported);
}

TEST(ShmProcesses, BytesMoveBetweenProcessesOnEveryPath) {
  Child child([](const Child::Pipes& pipes) { serve(pipes); });
  const Introduction peer = child.receive();
  TestAgent agent(towline_shm_plugin(), "parent");
  TestLink& link = join(agent, peer);
  ASSERT_TRUE(link.up) << link.text;
  move_whole(agent, link, peer.regions[0], "mapped memfd");
  move_whole(agent, link, peer.regions[1], "process_vm");
  TestAgent ring_only(towline_shm_plugin(), "ring", {{"tuning.shm.paths", "ring"}});
  TestLink& ring = join(ring_only, peer);
  ASSERT_TRUE(ring.up) << ring.text;
  move_whole(ring_only, ring, peer.regions[0], "ring");
  move_whole(ring_only, ring, peer.regions[1], "ring");
}

TEST(ShmProcesses, AKilledPeerIsNoticedAndEverythingInFlightEnds) {
  for (const char* paths : {"mapped", "process_vm", "ring"}) {
    Child child([](const Child::Pipes& pipes) { serve(pipes); });
    const Introduction peer = child.receive();
    TestAgent agent(towline_shm_plugin(), "parent", {{"tuning.shm.paths", paths}});
    TestLink& link = join(agent, peer);
    ASSERT_TRUE(link.up) << link.text;
    const towline_region_ref& region = peer.regions[std::string(paths) == "process_vm" ? 1 : 0];
    auto imported = import(agent, link, region);
    ASSERT_EQ(imported.status, Status::kOk) << agent.failure;
    std::vector<uint8_t> local(region.bytes);
    TestPlan plan(agent, TOWLINE_WRITE);
    plan.remote(region, imported.import);
    plan.add(local.data(), region.address, static_cast<uint32_t>(region.bytes));
    ASSERT_EQ(plan.prepare(link), Status::kOk);
    child.signal(SIGSTOP);
    ASSERT_EQ(plan.submit(1), Status::kInProgress);
    ASSERT_EQ(plan.submit(2), Status::kInProgress);
    child.kill_now();
    ASSERT_TRUE(turn_until({&agent}, [&] { return link.down && agent.ended(1) && agent.ended(2); })) << paths;
    EXPECT_EQ(link.status, Status::kPeerLost) << link.text;
    EXPECT_EQ(agent.results[2].status, TOWLINE_PEER_LOST) << paths;
    EXPECT_EQ(agent.results[2].fences, 3u);
    EXPECT_EQ(agent.completed_twice, 0u);
    EXPECT_LT(plan.submit(3), Status::kOk);
    plan.release();
    agent.unimport(link, imported);
    agent.disconnect(link);
  }
}

TEST(ShmProcesses, ASmallProcessVmCopyToADeadPeerFails) {
  Child child([](const Child::Pipes& pipes) { serve(pipes); });
  const Introduction peer = child.receive();
  TestAgent agent(towline_shm_plugin(), "parent", {{"tuning.shm.paths", "process_vm"}});
  TestLink& link = join(agent, peer);
  auto imported = import(agent, link, peer.regions[1]);
  ASSERT_EQ(imported.status, Status::kOk) << agent.failure;
  std::vector<uint8_t> local(4096);
  TestPlan plan(agent, TOWLINE_READ);
  plan.remote(peer.regions[1], imported.import);
  plan.add(local.data(), peer.regions[1].address, 4096);
  ASSERT_EQ(plan.prepare(link), Status::kOk);
  EXPECT_EQ(plan.submit(1), Status::kOk);
  child.kill_now();
  EXPECT_EQ(plan.submit(2), Status::kPeerLost);
}

TEST(ShmProcesses, APeerThatExecsIsGoneAtOnce) {
  Child child([](const Child::Pipes& pipes) {
    auto* agent = new TestAgent(towline_shm_plugin(), "child");
    pipes.send(introduce(*agent));
    while (!pipes.told()) agent->turn(1);
    execl("/bin/sleep", "sleep", "60", nullptr);
  });
  const Introduction peer = child.receive();
  TestAgent agent(towline_shm_plugin(), "parent");
  TestLink& link = join(agent, peer);
  ASSERT_TRUE(link.up) << link.text;
  child.tell();
  EXPECT_TRUE(turn_until({&agent}, [&] { return link.down; }));
  EXPECT_EQ(link.status, Status::kPeerLost);
}

TEST(ShmProcesses, APeerWhoseForkedChildLivesOnIsStillNoticed) {
  Child child([](const Child::Pipes& pipes) {
    auto* agent = new TestAgent(towline_shm_plugin(), "child");
    pipes.send(introduce(*agent));
    for (int i = 0; !pipes.told(); ++i) {
      agent->turn(1);
      if (agent->links.size() == 1 && i >= 0) {
        i = -1'000'000'000;
        const pid_t grandchild = fork();  // holds the socket open
        if (grandchild == 0) {
          prctl(PR_SET_PDEATHSIG, 0);
          alarm(20);
          pause();
          _exit(0);
        }
        pipes.send_number(grandchild);
      }
    }
  });
  const Introduction peer = child.receive();
  TestAgent agent(towline_shm_plugin(), "parent");
  TestLink& link = join(agent, peer);
  ASSERT_TRUE(link.up) << link.text;
  const pid_t grandchild = child.receive_number();
  ASSERT_GT(grandchild, 0);
  child.kill_now();
  EXPECT_TRUE(turn_until({&agent}, [&] { return link.down; }));
  kill(grandchild, SIGKILL);
}

// Denies process_vm_readv and process_vm_writev to the calling process, as a container's profile does.
bool deny_process_vm() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 1, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_writev, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {sizeof filter / sizeof *filter, filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST(ShmProcesses, WhereSeccompDeniesProcessVmTheRingTakesOver) {
  TestAgent* parent = nullptr;
  Child child([](const Child::Pipes& pipes) {
    if (!deny_process_vm()) _exit(8);
    const Introduction peer = pipes.receive();
    TestAgent agent(towline_shm_plugin(), "denied");
    TestLink& link = join(agent, peer);
    if (!link.up) _exit(7);
    auto imported = import(agent, link, peer.regions[0]);
    const bool ring = imported.status == Status::kOk && imported.how.starts_with("ring (");
    std::vector<uint8_t> local = pattern(100'000, 33);
    TestPlan plan(agent, TOWLINE_WRITE);
    plan.remote(peer.regions[0], imported.import);
    plan.add(local.data(), peer.regions[0].address, 100'000);
    if (!ring || plan.prepare(link) != Status::kOk) _exit(6);
    const Status status = plan.submit(1);
    const bool ended = status == Status::kOk || turn_until({&agent}, [&] { return agent.ended(1); });
    pipes.send_number(ended ? 0 : 1);
    while (!pipes.told()) agent.turn(1);
    plan.release();
    agent.unimport(link, imported);
  });
  TestAgent agent(towline_shm_plugin(), "parent");
  parent = &agent;
  std::vector<uint8_t> plain(100'000);
  agent.add(plain.data(), plain.size());
  child.send(introduce(agent));
  ASSERT_TRUE(turn_until({parent}, [&] { return child.has_spoken(); }));
  EXPECT_EQ(child.receive_number(), 0);
  EXPECT_EQ(plain, pattern(100'000, 33));
}

TEST(ShmProcesses, AnUndumpableOwnerIsReachedThroughTheRing) {
  // Root may read any process, so both are somebody else.
  Child outer([](const Child::Pipes& pipes) {
    if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) _exit(8);
    prctl(PR_SET_DUMPABLE, 1);
    Child owner([](const Child::Pipes& inner) {
      prctl(PR_SET_DUMPABLE, 0);
      serve(inner);
    });
    const Introduction peer = owner.receive();
    TestAgent agent(towline_shm_plugin(), "importer");
    TestLink& link = join(agent, peer);
    if (!link.up) _exit(7);
    auto imported = import(agent, link, peer.regions[1]);
    pipes.send_number(imported.how.starts_with("ring (") ? 0 : 1);
    agent.unimport(link, imported);
  });
  EXPECT_EQ(outer.receive_number(), 0);
}

// The way to private memory between two processes of an ordinary user, neither the other's parent, when the owner
// has this setting. Empty: none.
std::string way_between_siblings(const std::string& ptracer) {
  Child outer([&](const Child::Pipes& pipes) {
    if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) _exit(8);
    prctl(PR_SET_DUMPABLE, 1);
    Child owner([&](const Child::Pipes& inner) { serve(inner, {{"tuning.shm.ptracer", ptracer}}); });
    const Introduction peer = owner.receive();
    Child importer([&](const Child::Pipes& inner) {
      TestAgent agent(towline_shm_plugin(), "importer");
      TestLink& link = join(agent, peer);
      if (!link.up) _exit(7);
      auto imported = import(agent, link, peer.regions[1]);
      inner.send_number(imported.how.starts_with("process_vm") ? 1
                        : imported.how.starts_with("ring (")   ? 2
                                                               : 0);
      agent.unimport(link, imported);
    });
    pipes.send_number(importer.receive_number());
  });
  switch (outer.receive_number()) {
    case 1:
      return "process_vm";
    case 2:
      return "ring";
    default:
      return "";
  }
}

TEST(ShmProcesses, WhereYamaRestrictsTheOwnerAllowsItsPeers) {
  const auto scope = read_text_file("/proc/sys/kernel/yama/ptrace_scope");
  if (!scope || !scope->starts_with("1"))
    GTEST_SKIP() << "needs a kernel with Yama at ptrace_scope 1; here: " << scope.value_or("no Yama");
  EXPECT_EQ(way_between_siblings("true"), "process_vm");
  EXPECT_EQ(way_between_siblings("false"), "ring");
}

// Runs `body` as the first process of a container: with pids, sockets' names and IPC of its own. Says first
// whether it may.
void in_container(const Child::Pipes& pipes, const std::function<void()>& body) {
  const bool apart = unshare(CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS) == 0;
  pipes.send_number(apart ? 0 : errno);
  if (!apart) return;
  const Child first([&](const Child::Pipes&) { body(); });  // born into the new pid namespace
  waitpid(first.pid(), nullptr, 0);
}

TEST(ShmProcesses, ContainersReachEachOtherByDescriptorsAndTheRing) {
  const support::TemporaryFolder folder("/tmp");  // what they share: the sockets lie in it
  const TestAgent::Settings settings = {{"shm.socket_dir", folder.path()}};
  Child owner([&](const Child::Pipes& pipes) { in_container(pipes, [&] { serve(pipes, settings); }); });
  if (const int32_t refused = owner.receive_number(); refused != 0)
    GTEST_SKIP() << "no namespaces may be made here: " << errno_text(refused);
  const Introduction peer = owner.receive();
  EXPECT_EQ(peer.identity.pid, 1u);
  Child importer([&](const Child::Pipes& pipes) {
    in_container(pipes, [&] {
      TestAgent agent(towline_shm_plugin(), "importer", settings);
      TestLink& link = join(agent, peer);
      if (link.up) {
        move_whole(agent, link, peer.regions[0], "mapped memfd");
        move_whole(agent, link, peer.regions[1], "ring (");
      }
      pipes.send_number(link.up && !::testing::Test::HasFailure() ? 0 : 1);
    });
  });
  ASSERT_EQ(importer.receive_number(), 0);
  EXPECT_EQ(importer.receive_number(), 0);
  owner.tell();
}

TEST(ShmProcesses, OtherUsersAreRefusedUnlessAllowed) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to become another user";
  for (const bool allowed : {false, true}) {
    Child child([allowed](const Child::Pipes& pipes) {
      const Introduction peer = pipes.receive();
      if (setgid(65534) != 0 || setuid(65534) != 0) _exit(8);
      TestAgent agent(towline_shm_plugin(), "nobody", {{"shm.any_user", allowed ? "true" : "false"}});
      TestLink& link = join(agent, peer);
      pipes.send_number(link.up ? 0 : static_cast<int32_t>(link.status));
      while (!pipes.told()) agent.turn(1);
    });
    TestAgent agent(towline_shm_plugin(), "parent", {{"shm.any_user", allowed ? "true" : "false"}});
    child.send(introduce(agent));
    ASSERT_TRUE(turn_until({&agent}, [&] { return child.has_spoken(); }));
    EXPECT_EQ(child.receive_number(), allowed ? 0 : TOWLINE_PERMISSION_DENIED);
  }
}

}  // namespace
}  // namespace towline::shm
