#include "serve.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <towline/towline.hpp>
#include <utility>

#include "ls.h"

namespace tool {
namespace {

// `towline serve` in a separate process, which runs until this object is destroyed or ends it.
class Serving {
 public:
  explicit Serving(const std::string& arguments) {
    int pipes[2];
    if (::pipe2(pipes, O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
    std::fflush(nullptr);  // the child must not write this process's unwritten output
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(pipes[1], 1);
      CLI::App app;
      CommonOptions common;
      add_serve_command(app, common);
      try {
        const bool listens = arguments.find("--listen") != std::string::npos;
        app.parse(std::string("serve --json ") + (listens ? "" : "--listen 127.0.0.1:0 ") + arguments);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        ::_exit(1);
      }
      ::_exit(0);
    }
    ::close(pipes[1]);
    std::string line;
    char letter = 0;
    while (::read(pipes[0], &letter, 1) == 1 && letter != '\n') line += letter;
    ::close(pipes[0]);
    said_ = nlohmann::json::parse(line, nullptr, false);
  }
  Serving(const Serving&) = delete;
  Serving& operator=(const Serving&) = delete;
  ~Serving() {
    if (pid_ > 0) (void)end(SIGKILL);
  }

  int end(int signal) {
    ::kill(pid_, signal);
    int status = 0;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    return status;
  }
  [[nodiscard]] const nlohmann::json& said() const { return said_; }

 private:
  pid_t pid_ = -1;
  nlohmann::json said_;
};

TEST(Serve, holds_regions_that_peers_use_and_ends_when_told_to) {
  Serving serving("--region 1MiB --region 64KiB --access read");
  ASSERT_TRUE(serving.said().is_object()) << serving.said();
  ASSERT_EQ(serving.said().at("memory").size(), 2u);
  const std::string address = serving.said().at("address");
  EXPECT_EQ(serving.said().at("memory")[1].at("place"), "peer:" + address + "#1");
  EXPECT_EQ(serving.said().at("memory")[1].at("bytes"), 65536);
  {
    const towline::Agent agent("asks", {.listen = "none"});
    const towline::Peer peer = agent.connect(address, std::chrono::seconds{60});
    ASSERT_EQ(peer.regions().size(), 2u);
    EXPECT_EQ(peer.regions()[0].access, uint32_t{TOWLINE_ACCESS_READ});
  }
  const int status = serving.end(SIGTERM);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(Serve, regions_have_names_that_ls_shows) {
  Serving serving("--region kv=1MiB --region 64KiB");
  ASSERT_TRUE(serving.said().is_object()) << serving.said();
  const std::string address = serving.said().at("address");
  EXPECT_EQ(serving.said().at("memory")[0].at("place"), "peer:" + address + "/kv");
  const nlohmann::json listed = list_place("peer:" + address);
  ASSERT_EQ(listed.size(), 2u);
  EXPECT_EQ(listed[0].at("place"), "peer:" + address + "/kv");
  EXPECT_EQ(listed[0].at("bytes"), 1 << 20);
  EXPECT_EQ(listed[0].at("access"), "all");
  EXPECT_EQ(listed[1].at("place"), "peer:" + address + "#1");
}

std::string refusal_of(const std::string& place) {
  try {
    return "lists " + list_place(place).dump();
  } catch (const std::exception& error) {
    return error.what();
  }
}

TEST(Ls, lists_the_region_that_is_named_and_refuses_one_that_is_not_there) {
  Serving serving("--region kv=1MiB --region 64KiB");
  ASSERT_TRUE(serving.said().is_object()) << serving.said();
  const std::string peer = "peer:" + serving.said().at("address").get<std::string>();
  const auto expect_one = [&](const std::string& place, const std::string& listed_as) {
    const nlohmann::json listed = list_place(place);
    ASSERT_EQ(listed.size(), 1u) << listed;
    EXPECT_EQ(listed[0].at("place"), listed_as);
  };
  expect_one(peer + "/kv", peer + "/kv");
  expect_one(peer + "#0", peer + "/kv");
  expect_one(peer + "#1", peer + "#1");
  EXPECT_NE(refusal_of(peer + "/vk").find("has no region named 'vk'; it has 'kv'"), std::string::npos)
      << refusal_of(peer + "/vk");
  EXPECT_EQ(refusal_of(peer + "#2"), "peer 'serve' has registered 2 regions: there is no #2");
}

TEST(Ls, refuses_a_file_that_is_not_there) {
  EXPECT_EQ(refusal_of("/absent/file"), "file:/absent/file: no such file");
}

// Nobody would learn where it listens.
TEST(Serve, ends_if_its_place_can_not_be_written) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::alarm(60);  // it served
    ::dup2(::open("/dev/full", O_WRONLY), 1);
    CLI::App app;
    CommonOptions common;
    add_serve_command(app, common);
    try {
      app.parse("serve --json --region 4KiB");
    } catch (const std::exception& error) {
      ::_exit(std::string(error.what()).find("the output can't be written") != std::string::npos ? 3 : 4);
    }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  EXPECT_TRUE(WIFEXITED(status)) << status;
  EXPECT_EQ(WEXITSTATUS(status), 3);
}

TEST(Serve, refuses_what_it_can_not_hold) {
  {
    Serving nowhere("--region 4KiB --listen none");
    const int status = nowhere.end(SIGTERM);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 1);
  }
  for (const char* kind : {"shared", "private"}) {
    Serving serving(std::string{"--region 1000TiB --memory "} + kind);
    const int status = serving.end(0);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 1);
  }
}

}  // namespace
}  // namespace tool
