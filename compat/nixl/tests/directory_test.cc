// Metadata through a real etcd, started for the test; skipped if etcd or its plugin is not installed.
#include <fcntl.h>
#include <netinet/in.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include "support.h"

extern char** environ;  // NOLINT: POSIX's

namespace compat {
namespace {

int free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  close(fd);
  return ntohs(address.sin_port);
}

class Directories : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "compat_nixl_etcd_" + std::to_string(getpid());
    const std::string clients = "http://127.0.0.1:" + std::to_string(free_port());
    const std::string peers = "http://127.0.0.1:" + std::to_string(free_port());
    std::vector<std::string> words = {"etcd",
                                      "--data-dir",
                                      folder_,
                                      "--log-level",
                                      "error",
                                      "--listen-client-urls",
                                      clients,
                                      "--advertise-client-urls",
                                      clients,
                                      "--listen-peer-urls",
                                      peers,
                                      "--initial-advertise-peer-urls",
                                      peers,
                                      "--initial-cluster",
                                      "default=" + peers};
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    posix_spawn_file_actions_t quiet;
    posix_spawn_file_actions_init(&quiet);
    posix_spawn_file_actions_addopen(&quiet, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&quiet, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    const int spawned = posix_spawnp(&etcd_, "etcd", &quiet, nullptr, arguments.data(), environ);
    posix_spawn_file_actions_destroy(&quiet);
    if (spawned != 0) {
      etcd_ = -1;
      GTEST_SKIP() << "no etcd in PATH";
    }
    setenv("NIXL_ETCD_ENDPOINTS", clients.c_str(), 1);
    setenv("TOWLINE_NIXL_METADATA_TIMEOUT", "20s", 1);  // it has to come up first
    a_.emplace("directory-a");
    b_.emplace("directory-b", 8 * 4096);
    if (a_->agent->sendLocalMD() != NIXL_SUCCESS) {
      GTEST_SKIP() << "no plugin for etcd: " << towline::nixl::last_error();
    }
    ASSERT_EQ(outcome(*a_->agent), "");
  }
  void TearDown() override {
    a_.reset();
    b_.reset();
    unsetenv("NIXL_ETCD_ENDPOINTS");
    unsetenv("TOWLINE_NIXL_METADATA_TIMEOUT");
    if (etcd_ > 0) {
      kill(etcd_, SIGKILL);
      waitpid(etcd_, nullptr, 0);
    }
    std::filesystem::remove_all(folder_);
  }

  // Why the agent's latest call failed, once it has ended.
  static std::string outcome(const nixlAgent& agent) {
    EXPECT_TRUE(
        eventually([&] { return towline::nixl::metadata_calls(agent).back().status != NIXL_IN_PROG; }));
    const towline::nixl::MetadataCall call = towline::nixl::metadata_calls(agent).back();
    return call.status == NIXL_SUCCESS ? "" : nixlEnumStrings::statusStr(call.status) + " " + call.error;
  }

  std::string folder_;
  pid_t etcd_ = -1;
  std::optional<Side> a_;
  std::optional<Side> b_;
};

TEST_F(Directories, AgentsFindEachOtherByNameAndSeeWhenTheyGo) {
  ASSERT_EQ(b_->agent->fetchRemoteMD("directory-a"), NIXL_SUCCESS);
  ASSERT_EQ(outcome(*b_->agent), "");
  EXPECT_EQ(b_->agent->checkRemoteMD("directory-a", a_->blocks(2, 64)), NIXL_SUCCESS);
  nixlXferReqH* made = request(*b_, NIXL_WRITE, b_->blocks(1, 64), a_->blocks(1, 64), "directory-a");
  ASSERT_NE(made, nullptr);
  EXPECT_EQ(run(*b_->agent, made), NIXL_SUCCESS);
  ASSERT_EQ(a_->agent->invalidateLocalMD(), NIXL_SUCCESS);
  ASSERT_EQ(outcome(*a_->agent), "");
  EXPECT_TRUE(
      eventually([&] { return b_->agent->checkRemoteMD("directory-a", {DRAM_SEG}) == NIXL_ERR_NOT_FOUND; }));
  EXPECT_EQ(b_->agent->postXferReq(made), NIXL_ERR_NOT_FOUND);
  // Published again, and gone with its agent.
  ASSERT_EQ(a_->agent->sendLocalMD(), NIXL_SUCCESS);
  ASSERT_EQ(b_->agent->fetchRemoteMD("directory-a"), NIXL_SUCCESS);
  ASSERT_EQ(outcome(*b_->agent), "");
  EXPECT_EQ(b_->agent->checkRemoteMD("directory-a", {DRAM_SEG}), NIXL_SUCCESS);
  a_.reset();
  EXPECT_TRUE(
      eventually([&] { return b_->agent->checkRemoteMD("directory-a", {DRAM_SEG}) == NIXL_ERR_NOT_FOUND; }));
}

TEST_F(Directories, PartsHaveLabelsAndMissingOnesAreSaidToBeMissing) {
  nixl_reg_dlist_t part(DRAM_SEG);
  part.addDesc(nixlBlobDesc(b_->address(), 4096, 0, ""));
  ASSERT_EQ(b_->agent->registerMem(part), NIXL_SUCCESS);
  nixl_opt_args_t args;
  EXPECT_EQ(b_->agent->sendLocalPartialMD(part, &args), NIXL_ERR_INVALID_PARAM);  // no label
  args.metadataLabel = "layer-0";
  args.includeConnInfo = true;
  ASSERT_EQ(b_->agent->sendLocalPartialMD(part, &args), NIXL_SUCCESS);
  ASSERT_EQ(a_->agent->fetchRemoteMD("directory-b", &args), NIXL_SUCCESS);
  ASSERT_EQ(outcome(*a_->agent), "");
  EXPECT_EQ(a_->agent->checkRemoteMD("directory-b", part.trim()), NIXL_SUCCESS);
  EXPECT_EQ(a_->agent->checkRemoteMD("directory-b", b_->registered().trim()), NIXL_ERR_NOT_FOUND);
  nixlAgentConfig impatient;
  impatient.etcdWatchTimeout = std::chrono::milliseconds{100};
  Side c("directory-c", 4096, impatient);
  ASSERT_EQ(c.agent->fetchRemoteMD("nobody"), NIXL_SUCCESS);
  EXPECT_EQ(outcome(*c.agent).find("NIXL_ERR_NOT_FOUND"), 0U) << outcome(*c.agent);
}

}  // namespace
}  // namespace compat
