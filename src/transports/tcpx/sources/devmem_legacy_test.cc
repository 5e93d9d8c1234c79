// Against a daemon of the test's own, which gives memory and rules as Google's does.
#include "transports/tcpx/sources/devmem_legacy.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "support/temporary_folder.h"
#include "transports/tcpx/sources/fake_gpu_host.h"
#include "transports/tcpx/sources/test_support.h"

namespace towline::tcpx {
namespace {

constexpr const char* kGpu = "0000:04:00.0";
constexpr uint64_t kGpuBytes = 64u << 10;

class FakeDaemon {
 public:
  explicit FakeDaemon(const std::string& folder) : memory_(create_memfd("gpu", kGpuBytes)) {
    for (const std::string& name :
         {std::string("get_gpu_fd_") + kGpu, std::string("get_gpu_metadata_") + kGpu,
          std::string("rx_rule_manager"), std::string("rx_rule_uninstall")}) {
      UniqueFd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
      const SocketAddress address = SocketAddress::unix_socket(folder + "/" + name);
      EXPECT_EQ(::bind(listener.get(), address.get(), address.size()), 0);
      EXPECT_EQ(::listen(listener.get(), 8), 0);
      listeners_.push_back(std::move(listener));
      threads_.emplace_back([this, name, fd = listeners_.back().get()] { serve(name, fd); });
    }
  }
  ~FakeDaemon() {
    for (const UniqueFd& listener : listeners_) ::shutdown(listener.get(), SHUT_RDWR);
    for (std::thread& thread : threads_) thread.join();
  }
  std::vector<std::string> rules() {
    const std::lock_guard lock(mutex_);
    return rules_;
  }

  std::atomic<bool> refuses{false};
  std::atomic<bool> gives_a_pipe{false};
  std::atomic<uint64_t> says_bytes{kGpuBytes};
  std::atomic<bool> babbles{false};

 private:
  void serve(const std::string& name, int listener) {
    for (;;) {
      const UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
      if (!fd.valid()) return;
      std::vector<uint8_t> head(2);
      if (read_fully(fd.get(), head) != 2) continue;
      std::vector<uint8_t> body(std::size_t{head[0]} << 8 | head[1]);
      if (read_fully(fd.get(), body) != body.size()) continue;
      if (babbles) {
        write_fully(fd.get(), std::vector<uint8_t>(300, 0xff));
      } else if (name.starts_with("get_gpu_fd")) {
        give_memory(fd.get());
      } else if (name.starts_with("get_gpu_metadata")) {
        const uint64_t about[3] = {7, says_bytes, 4096};
        answer(fd.get(), {reinterpret_cast<const char*>(about), sizeof about});
      } else {
        answer(fd.get(), take_rule(name == "rx_rule_manager", body));
      }
    }
  }
  static void answer(int fd, std::string_view text) {
    const std::string message = encode_daemon_text(text);
    write_fully(fd, {reinterpret_cast<const uint8_t*>(message.data()), message.size()});
  }
  std::string take_rule(bool adds, std::span<const uint8_t> body) {
    const auto rule = decode_daemon_rule(body);
    if (!rule || rule->gpu != kGpu) return "what?";
    if (refuses) return "no room";
    const std::lock_guard lock(mutex_);
    if (adds)
      rules_.push_back(rule->rule.text());
    else
      std::erase(rules_, rule->rule.text());
    return "Ok.";
  }
  void give_memory(int fd) {
    int pipe[2] = {-1, -1};
    EXPECT_TRUE(!gives_a_pipe || ::pipe2(pipe, O_CLOEXEC) == 0);
    const UniqueFd one(pipe[0]);
    const UniqueFd two(pipe[1]);
    const int given = gives_a_pipe ? one.get() : memory_.get();
    alignas(cmsghdr) uint8_t control[CMSG_SPACE(sizeof(int))] = {};
    char byte = 0;
    iovec piece = {&byte, 1};
    msghdr message = {};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &given, sizeof given);
    EXPECT_EQ(::sendmsg(fd, &message, MSG_NOSIGNAL), 1);
  }

  const UniqueFd memory_;
  std::mutex mutex_;
  std::vector<std::string> rules_;
  std::vector<UniqueFd> listeners_;
  std::vector<std::thread> threads_;
};

class DevmemLegacyTest : public ::testing::Test {
 protected:
  std::string why_not(const DaemonOptions& with) {
    try {
      const DevmemLegacyProvider provider(with, nullptr);
      return "";
    } catch (const core::Error& error) {
      return error.message();
    }
  }

  support::TemporaryFolder folder{"/tmp"};
  DaemonOptions options = {folder.path(), kGpu};
};

TEST_F(DevmemLegacyTest, TheDaemonGivesMemoryAndARuleForEachConnection) {
  FakeDaemon daemon(folder.path());
  DevmemLegacyProvider provider(options, nullptr);
  const auto [a, b] = testing::connected_sockets();
  auto source = provider.make(b.get());
  EXPECT_EQ(source->pools()[0].bytes, kGpuBytes);
  EXPECT_EQ(source->tokens(), kGpuBytes / 4096);
  const FlowRule rule = {SocketAddress::peer_of(b.get()), SocketAddress::local_of(b.get()), 0};
  EXPECT_EQ(daemon.rules(), std::vector<std::string>{rule.text()});
  source.reset();
  EXPECT_TRUE(daemon.rules().empty());
}

TEST_F(DevmemLegacyTest, WithoutARuleBytesAreLinear) {
  FakeDaemon daemon(folder.path());
  daemon.refuses = true;
  DevmemLegacyProvider provider(options, nullptr);
  auto [writer, reader] = testing::connected_sockets();
  auto source = provider.make(reader.get());
  write_fully(writer.get(), testing::pattern(100));
  std::vector<uint8_t> linear(4096);
  std::array<Fragment, 8> fragments;
  Polled polled;
  do {
    polled = source->poll(linear.data(), linear.size(), fragments);
  } while (polled.io.status == Status::kAgain);
  EXPECT_EQ(polled.io.bytes, 100u);
  EXPECT_TRUE(fragments[0].linear);
}

TEST_F(DevmemLegacyTest, AGpuImportsTheDaemonsMemory) {
  FakeDaemon daemon(folder.path());
  testing::FakeGpuHost gpu;
  const plugin::Host host = gpu.host();
  {
    DevmemLegacyProvider provider(options, &host);
    EXPECT_GE(gpu.given, 0);
    EXPECT_EQ(gpu.asked_gpu, kGpu);
    const auto [a, b] = testing::connected_sockets();
    EXPECT_NE(provider.make(b.get())->pools()[0].reader, nullptr);
    EXPECT_NE(provider.where().find("memory of GPU 1"), std::string::npos) << provider.where();
  }
  EXPECT_EQ(gpu.pools, 0);
  gpu.fails = "it can't be imported";  // then it is mapped
  const DevmemLegacyProvider mapped(options, &host);
  EXPECT_EQ(mapped.where(), "host memory");
  daemon.gives_a_pipe = true;
  try {
    const DevmemLegacyProvider neither(options, &host);
    FAIL() << "a pipe is no memory";
  } catch (const core::Error& error) {
    EXPECT_NE(error.message().find("it can't be imported"), std::string::npos) << error.message();
  }
}

TEST_F(DevmemLegacyTest, EveryReasonIsSaid) {
  EXPECT_NE(why_not({folder.path(), ""}).find("tuning.tcpx.daemon_gpu"), std::string::npos);
  EXPECT_NE(why_not(options).find("get_gpu_fd_0000:04:00.0"), std::string::npos) << why_not(options);
  FakeDaemon daemon(folder.path());
  EXPECT_EQ(why_not(options), "");
  daemon.says_bytes = 2 * kGpuBytes;
  EXPECT_NE(why_not(options).find("smaller than the daemon says"), std::string::npos) << why_not(options);
  daemon.says_bytes = 0;
  EXPECT_NE(why_not(options).find("did not give the size"), std::string::npos) << why_not(options);
  daemon.says_bytes = kGpuBytes;
  daemon.gives_a_pipe = true;
  EXPECT_NE(why_not(options).find("nor mapped"), std::string::npos) << why_not(options);
  daemon.babbles = true;
  EXPECT_NE(why_not(options).find("announced an answer of"), std::string::npos) << why_not(options);
}

TEST(DaemonMessages, RulesComeBackAsTheyWere) {
  for (const char* text :
       {"10.0.0.1:5000 > 10.0.0.2:6000 queue 0", "[2001:db8::1]:1 > [2001:db8::2]:65535 queue 0"}) {
    const std::string bytes = encode_daemon_rule(*parse_rule(text), kGpu);
    const std::span<const uint8_t> all(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
    EXPECT_EQ(std::size_t{all[0]} << 8 | all[1], all.size() - 2);
    const auto back = decode_daemon_rule(all.subspan(2));
    ASSERT_TRUE(back);
    EXPECT_EQ(back->rule.text(), text);
    EXPECT_EQ(back->gpu, kGpu);
    for (std::size_t cut = 3; cut < all.size(); ++cut) (void)decode_daemon_rule(all.first(cut).subspan(2));
  }
}

}  // namespace
}  // namespace towline::tcpx
