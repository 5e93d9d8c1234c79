// A stranger must not be able to fill a listening agent's memory, hold its regions or descriptors, or learn
// the secrets that give access. The agent runs in this process; the strangers are sockets.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "agent/control_message.h"
#include "stranger.h"
#include "towline/towline.hpp"

namespace towline::faults {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using framing::FrameType;

constexpr size_t kBytes = 1 << 20;

class Owner {
 public:
  explicit Owner(const std::string& config = {})
      : agent_("owner", {.listen = "127.0.0.1:0", .backends = "tcp", .config = config}),
        memory_(kBytes),
        region_(agent_.register_memory(dram(memory_), {.access = Access::kAll})),
        target_(agent_.metadata()) {}

  // A peer connects, and its bytes arrive.
  [[nodiscard]] bool serves() const {
    const Agent peer_agent("peer", {.listen = "none", .backends = "tcp"});
    Memory own(kBytes);
    own.data()[17] = std::byte{42};
    const Region own_region = peer_agent.register_memory(dram(own), {.access = Access::kAll});
    const Peer owner = peer_agent.connect(agent_.address());
    const Transfer move =
        peer_agent.transfer(peer_agent.block_list(Blocks::at(own.data(), kBytes)),
                            owner.block_list(Blocks::at(memory_.data(), kBytes)), {.timeout = 5s});
    const Status posted = move.post();
    return (posted == Status::kInProgress ? move.wait(10s) : posted) == Status::kOk &&
           memory_.data()[17] == std::byte{42};
  }

  Agent agent_;
  Memory memory_;
  Region region_;
  const Target target_;
};

// By sock_diag or /proc a test would see those of other processes: this process's own descriptors say it all.
std::vector<std::string> open_ports() {
  std::vector<std::string> ports;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::string port = listens_at(std::stoi(entry.path().filename().string()));
    if (!port.empty()) ports.push_back(std::move(port));
  }
  return ports;
}

TEST(Listening, OneSettingGovernsEveryPort) {
  const std::vector<std::string> before = open_ports();
  const auto opened_by = [&](const AgentOptions& options) {
    const Agent agent("listens", options);
    std::vector<std::string> ports = open_ports();
    std::erase_if(ports, [&](const std::string& port) { return std::ranges::count(before, port) != 0; });
    return ports;
  };
  EXPECT_TRUE(opened_by({.listen = "none"}).empty());
  for (const AgentOptions& options : {AgentOptions{}, AgentOptions{.listen = "127.0.0.1:0"}}) {
    const std::vector<std::string> ports = opened_by(options);
    EXPECT_EQ(ports.size(), 2u) << "metadata and tcp";
    for (const std::string& port : ports) EXPECT_TRUE(port.starts_with("127.0.0.1:")) << port;
  }
  for (const std::string& port : opened_by({.listen = "127.0.0.9:0"}))
    EXPECT_TRUE(port.starts_with("127.0.0.9:")) << port;
}

TEST(Strangers, SendNoMoreNoticesThanTheyHaveCreditFor) {
  const Owner owner;
  Stranger stranger(owner.target_.tcp);
  ASSERT_EQ(stranger.hello(owner.target_, false), TOWLINE_OK);
  const std::string text(60'000, 'n');
  size_t sent = 0;
  while (sent < (64u << 20) && stranger.notice(owner.target_, text)) sent += text.size();
  EXPECT_LT(sent, 64u << 20) << "the connection goes on";
  size_t kept = 0;
  Notice notice;
  while (owner.agent_.receive(notice) == Status::kOk) kept += notice.text().size();
  EXPECT_GT(kept, 0u);
  EXPECT_LE(kept, kNoticeCreditBytes);
  EXPECT_TRUE(owner.serves());
}

// Each connection has credit of its own: what earlier ones left counts as well.
TEST(Strangers, SendNoMoreNoticesByConnectingAgain) {
  const Owner owner;
  size_t kept = 0;
  const std::string text(60'000, 'n');
  const Id self = Id::random();
  for (int connection = 0; connection < 40; ++connection) {
    Stranger stranger(owner.target_.tcp);
    if (stranger.hello(owner.target_, false, self) != TOWLINE_OK) continue;
    for (size_t sent = 0; sent < 900'000 && stranger.notice(owner.target_, text); sent += text.size()) {
    }
    (void)shutdown(stranger.fd(), SHUT_WR);
    EXPECT_TRUE(stranger.closed_within(20'000));
  }
  Notice notice;
  while (owner.agent_.receive(notice) == Status::kOk) kept += notice.text().size();
  EXPECT_LE(kept, 16u << 20);
}

double deregister_ms(Owner& owner) {
  const auto start = Clock::now();
  EXPECT_EQ(owner.region_.deregister(10s), Status::kOk) << last_error();
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

TEST(Strangers, ThatKeepSilentHoldNoRegion) {
  Owner owner;
  Stranger stranger(owner.target_.tcp);
  ASSERT_EQ(stranger.hello(owner.target_, true), TOWLINE_OK);
  EXPECT_LT(deregister_ms(owner), 1000);
}

TEST(Strangers, ThatStopInTheMiddleOfAFrameHoldItsRegionForTheFramesTimeOnly) {
  Owner owner("[tuning.tcp]\nuser_timeout = \"500ms\"\n");
  Stranger stranger(owner.target_.tcp);
  ASSERT_EQ(stranger.hello(owner.target_, true), TOWLINE_OK);
  ASSERT_TRUE(stranger.begin_frame(FrameType::kWrite, owner.target_, 64 << 10, 0));
  ASSERT_TRUE(stranger.say(std::string(1000, 'x').data(), 1000));
  EXPECT_LT(deregister_ms(owner), 3000);
  EXPECT_TRUE(stranger.closed_within(3000));
}

TEST(Strangers, ThatSayNothingAfterTheirHelloAreCut) {
  const Owner owner("[peer]\nheartbeat = \"50ms\"\nsuspect = \"150ms\"\nlost = \"400ms\"\n");
  Stranger stranger(owner.target_.tcp);
  ASSERT_EQ(stranger.hello(owner.target_, true), TOWLINE_OK);
  EXPECT_TRUE(stranger.closed_within(3000));
}

// Slow, and healthy: one frame takes longer than silence may last.
TEST(SlowPeers, WhoseDataArrivesAreNotLost) {
  const Owner owner("[peer]\nheartbeat = \"50ms\"\nsuspect = \"150ms\"\nlost = \"400ms\"\n");
  Stranger slow(owner.target_.tcp);
  ASSERT_EQ(slow.hello(owner.target_, false), TOWLINE_OK);
  ASSERT_TRUE(slow.begin_frame(FrameType::kWrite, owner.target_, kBytes, 0));
  const std::vector<char> piece(kBytes / 64, 's');
  for (int i = 0; i < 64; ++i) {
    ASSERT_TRUE(slow.say(piece.data(), piece.size()));
    ASSERT_FALSE(slow.closed_within(20))
        << "given up after " << i << " of 64 pieces";  // that is how slow it is
  }
  const auto until = Clock::now() + 5s;
  while (owner.memory_.data()[kBytes - 1] != std::byte{'s'} && Clock::now() < until)
    std::this_thread::yield();
  EXPECT_EQ(owner.memory_.data()[kBytes - 1], std::byte{'s'});
  // The sender hears from the owner meanwhile, so that it does not give up either.
  EXPECT_GT(slow.count_frames(FrameType::kMessage), 5u);
}

// The strangers have a process of their own: there are more of them than descriptors in this one.
class Crowd {
 public:
  Crowd(const Target& target, int count, const std::string& from) {
    if (pipe(up_) != 0 || pipe(down_) != 0) throw std::runtime_error("pipe");
    child_ = fork();
    if (child_ == 0) {
      close(up_[0]);
      close(down_[1]);
      rlimit most = {};
      getrlimit(RLIMIT_NOFILE, &most);
      most.rlim_cur = most.rlim_max;
      setrlimit(RLIMIT_NOFILE, &most);
      std::vector<std::unique_ptr<Stranger>> strangers;
      for (int i = 0; i < count; ++i) {
        try {
          strangers.push_back(std::make_unique<Stranger>(target.tcp, from));
          (void)strangers.back()->hello(target, true);
        } catch (const std::exception&) {
          break;
        }
      }
      char byte = static_cast<char>(strangers.size() == static_cast<size_t>(count) ? 'y' : 'n');
      (void)!write(up_[1], &byte, 1);
      (void)!read(down_[0], &byte, 1);
      _exit(0);
    }
    close(up_[1]);
    close(down_[0]);
    char byte = 0;
    all_connected_ = read(up_[0], &byte, 1) == 1 && byte == 'y';
  }
  ~Crowd() {
    close(down_[1]);
    close(up_[0]);
    waitpid(child_, nullptr, 0);
  }
  [[nodiscard]] bool all_connected() const { return all_connected_; }

 private:
  int up_[2];
  int down_[2];
  pid_t child_ = -1;
  bool all_connected_ = false;
};

TEST(Strangers, WithMoreHellosThanThereAreDescriptorsLeaveEnough) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  if (before.rlim_max < 4096) GTEST_SKIP() << "needs a hard limit of 4096 descriptors for the strangers";
  const rlimit few = {1024, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  {
    const Owner owner;
    const Crowd crowd(owner.target_, 1150, "127.0.0.2");
    EXPECT_TRUE(crowd.all_connected());
    std::vector<UniqueFd> own;
    while (own.size() < 400 && (own.empty() || own.back().valid())) own.emplace_back(dup(0));
    EXPECT_EQ(own.size(), 400u);
    EXPECT_TRUE(own.back().valid()) << "the strangers hold them";
    own.clear();
    EXPECT_TRUE(owner.serves());
  }
  setrlimit(RLIMIT_NOFILE, &before);
}

// Strangers that guess keys are counted, and end.
TEST(Strangers, AreCountedWhereTheyAreRefused) {
  const Owner owner;
  {
    Stranger stranger(owner.target_.tcp);
    Target wrong = owner.target_;
    wrong.incarnation = Id::random();
    EXPECT_EQ(stranger.hello(wrong, false), TOWLINE_PEER_RESTARTED);
    EXPECT_TRUE(stranger.closed_within(3000));
  }
  Stranger guesser(owner.target_.tcp);
  ASSERT_EQ(guesser.hello(owner.target_, false), TOWLINE_OK);
  Target guess = owner.target_;
  guess.key ^= 0x5555;
  ASSERT_TRUE(guesser.begin_frame(FrameType::kWrite, guess, 4, 0));
  ASSERT_TRUE(guesser.say("evil", 4));
  const auto until = Clock::now() + 5s;
  while (guesser.count_frames(FrameType::kNack) == 0 && Clock::now() < until) std::this_thread::yield();
  EXPECT_EQ(guesser.count_frames(FrameType::kNack), 1u);
  const std::string counters = owner.agent_.metrics();
  EXPECT_NE(counters.find("strangers"), std::string::npos) << counters;
  EXPECT_NE(counters.find("PEER_RESTARTED"), std::string::npos) << counters;
  EXPECT_NE(counters.find("STALE"), std::string::npos) << counters;
}

}  // namespace
}  // namespace towline::faults
