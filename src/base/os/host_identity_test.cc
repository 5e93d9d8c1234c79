#include "base/os/host_identity.h"

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace towline {
namespace {

TEST(HostIdentityTest, IsCompleteAndStable) {
  const HostIdentity identity = read_host_identity();
  EXPECT_FALSE(identity.boot_id.is_none());
  EXPECT_EQ(identity.pid, static_cast<uint32_t>(getpid()));
  EXPECT_NE(identity.pid_namespace, 0u);
  EXPECT_NE(identity.network_namespace, 0u);
  EXPECT_NE(identity.process_start_time, 0u);
  EXPECT_EQ(identity, read_host_identity());
  EXPECT_TRUE(identity.same_process(identity));
}

TEST(HostIdentityTest, AnotherProcessIsOnTheSameHostButNotTheSame) {
  const HostIdentity here = read_host_identity();
  HostIdentity reused = here;
  reused.process_start_time += 1;
  EXPECT_TRUE(here.same_pid_namespace(reused));
  EXPECT_FALSE(here.same_process(reused));
  HostIdentity elsewhere = here;
  elsewhere.boot_id = Id::random();
  EXPECT_FALSE(here.same_host(elsewhere));
  EXPECT_FALSE(here.same_network_namespace(elsewhere));
  const HostIdentity unknown;
  EXPECT_FALSE(unknown.same_host(unknown));  // no boot id is no evidence
}

TEST(HostIdentityTest, AProcessIsGoneOnceItHasEndedOrItsPidIsAnothers) {
  HostIdentity process = read_host_identity();
  EXPECT_FALSE(process_is_gone(process));
  process.process_start_time += 1;
  EXPECT_TRUE(process_is_gone(process));
  process.process_start_time = 0;
  EXPECT_FALSE(process_is_gone(process)) << "not known";
  const pid_t child = fork();
  if (child == 0) _exit(0);
  waitpid(child, nullptr, 0);
  process.pid = static_cast<uint32_t>(child);
  EXPECT_TRUE(process_is_gone(process));
  process.pid_namespace += 1;
  EXPECT_FALSE(process_is_gone(process)) << "another one's pids say nothing here";
}

TEST(HostIdentityTest, StartTimeSurvivesAProgramNameMadeToConfuse) {
  char old_name[16] = {};
  ASSERT_EQ(prctl(PR_GET_NAME, old_name), 0);
  const uint64_t before = process_start_time(static_cast<uint32_t>(getpid()));
  ASSERT_EQ(prctl(PR_SET_NAME, "x) R 1 1 1 (y"), 0);
  EXPECT_EQ(process_start_time(static_cast<uint32_t>(getpid())), before);
  prctl(PR_SET_NAME, old_name);
}

TEST(HostIdentityTest, AGoneProcessHasNoStartTime) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) _exit(0);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_EQ(process_start_time(static_cast<uint32_t>(child)), 0u);
}

}  // namespace
}  // namespace towline
