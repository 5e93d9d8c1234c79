// Metadata through etcd: a real one, started for the test, and one of the test's own. Skipped if etcd or its plugin is not
// installed.
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
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

// Answers requests with what the test gives, and serves until it is destroyed.
class FakeServer {
 public:
  using Handler = std::function<std::string(const std::string& path, const std::string& body)>;

  explicit FakeServer(Handler handler)
      : handler_(std::move(handler)), listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(listener_, 16), 0);
    EXPECT_EQ(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    address_ = "http://127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    thread_ = std::thread([this] {
      while (readable(listener_)) {
        const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
        clients_.emplace_back([this, fd] { serve(fd); });
      }
    });
  }
  ~FakeServer() {
    stop_ = true;
    thread_.join();
    for (std::thread& client : clients_) client.join();
    close(listener_);
  }
  FakeServer(const FakeServer&) = delete;
  FakeServer& operator=(const FakeServer&) = delete;
  [[nodiscard]] const std::string& address() const { return address_; }

  static std::string whole(const std::string& body) {
    return "HTTP/1.1 200 OK\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
  }
  // More may come, and never does.
  static std::string stream(const std::string& lines) { return "HTTP/1.1 200 OK\r\n\r\n" + lines; }

 private:
  bool readable(int fd) const {
    while (!stop_) {
      pollfd polled{fd, POLLIN, 0};
      if (poll(&polled, 1, 20) > 0) return true;
    }
    return false;
  }
  void serve(int fd) const {
    std::string request;
    while (readable(fd)) {
      char piece[65536];
      const ssize_t got = recv(fd, piece, sizeof piece, 0);
      if (got <= 0) break;
      request.append(piece, static_cast<size_t>(got));
      const size_t head = request.find("\r\n\r\n");
      const size_t length = request.find("Content-Length: ");
      if (head == std::string::npos || length > head) continue;
      const size_t body = std::stoul(request.substr(length + 16));
      if (request.size() < head + 4 + body) continue;
      const size_t path = request.find(' ') + 1;
      const std::string answer =
          handler_(request.substr(path, request.find(' ', path) - path), request.substr(head + 4, body));
      request.erase(0, head + 4 + body);
      if (send(fd, answer.data(), answer.size(), MSG_NOSIGNAL) < 0) break;
    }
    close(fd);
  }

  const Handler handler_;
  const int listener_;
  std::string address_;
  std::atomic<bool> stop_{false};
  std::vector<std::thread> clients_;
  std::thread thread_;
};

std::string base64(std::string_view bytes) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const std::string_view part = bytes.substr(i, 3);
    uint32_t bits = 0;
    for (size_t j = 0; j < 3; ++j) bits = bits << 8 | (j < part.size() ? static_cast<uint8_t>(part[j]) : 0);
    for (size_t j = 0; j < 4; ++j) text += j <= part.size() ? kDigits[bits >> (18 - 6 * j) & 63] : '=';
  }
  return text;
}

// An agent was published, taken back, and published again. The watch of another one is behind: that the first is gone comes
// after the second has been fetched.
TEST(LateDirectory, RemovalsFromBeforeWhatWasFetchedChangeNothing) {
  Side a("late-a");
  const std::string key = R"("key": ")" + base64("/nixl/agents/late-a/metadata") + R"(", )";
  const std::string now = base64(a.metadata());
  std::atomic<bool> watched{false};
  const FakeServer server([&](const std::string& path, const std::string& body) {
    const auto answer = [](int revision, const std::string& rest) {
      return R"({"header": {"cluster_id": "1", "revision": ")" + std::to_string(revision) + R"("}, )" + rest +
             "}";
    };
    if (path == "/v3/watch") {
      watched = true;
      const std::string gone = R"("events": [{"type": "DELETE", "kv": {)" + key + R"("mod_revision": "6"}}])";
      return FakeServer::stream("{\"result\": " + answer(6, R"("created": true)") +
                                "}\n{\"result\": " + answer(6, gone) + "}\n");
    }
    const bool list = body.find("range_end") != std::string::npos;
    if (!list) (void)eventually([&] { return watched.load(); });
    const std::string found =
        list ? R"("mod_revision": "5")" : R"("mod_revision": "9", "value": ")" + now + '"';
    return FakeServer::whole(answer(list ? 5 : 9, R"("kvs": [{)" + key + found + "}]"));
  });
  setenv("NIXL_ETCD_ENDPOINTS", server.address().c_str(), 1);
  Side b("late-b");
  unsetenv("NIXL_ETCD_ENDPOINTS");
  if (b.agent->fetchRemoteMD("late-a") != NIXL_SUCCESS)
    GTEST_SKIP() << "no plugin for etcd: " << towline::nixl::last_error();
  ASSERT_TRUE(
      eventually([&] { return towline::nixl::metadata_calls(*b.agent).back().status != NIXL_IN_PROG; }));
  const towline::nixl::MetadataCall call = towline::nixl::metadata_calls(*b.agent).back();
  ASSERT_EQ(call.status, NIXL_SUCCESS) << call.error;
  EXPECT_FALSE(
      eventually([&] { return b.agent->checkRemoteMD("late-a", a.blocks(2, 64)) != NIXL_SUCCESS; }, 300ms));
}

}  // namespace
}  // namespace compat
