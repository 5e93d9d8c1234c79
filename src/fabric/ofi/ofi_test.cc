// Engines of two processes over libfabric's providers tcp;ofi_rxm and shm, and over UCX's tcp and shm, with two rails
// each.
#include "fabric/ofi/ofi.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/os/unique_fd.h"
#include "base/random.h"
#include "fabric/engine.h"
#include "fabric/rails.h"

extern char** environ;

namespace towline::fabric::ofi_test {
namespace {

constexpr uint64_t kArenaBytes = 8 << 20;
constexpr uint64_t kPage = 4096;
constexpr const char* kChildVariable = "TOWLINE_OFI_TEST_CHILD";
constexpr int kChildFd = 3;
// After a provider: the other process has an endpoint for each connection, though this one's connections share them.
constexpr std::string_view kOwnThere = " own";
// In the environment of the other process: it sleeps when it may.
constexpr const char* kSleepsVariable = "TOWLINE_OFI_TEST_SLEEPS";

std::vector<std::unique_ptr<Domain>> make_rails(const std::string& provider, int rails) {
  OfiOptions options;
  options.provider = provider;
  if (provider.starts_with("tcp")) options.address = "127.0.0.1";
  std::vector<std::unique_ptr<Domain>> domains;
  const bool ucx = provider.starts_with("ucx:");
  for (int i = 0; i < rails; ++i) domains.push_back(ucx ? make_rail(provider) : make_ofi_domain(options));
  return domains;
}

// One side: an engine whose control messages go over a socket of packets, each with a letter before it.
struct Side final : EngineHost {
  Side(int socket, const std::string& provider, EngineOptions options = {}, int rails = 2)
      : fd(socket), arena(kArenaBytes), engine(options, make_rails(provider, rails), *this) {
    memory = engine.register_memory({arena.data(), arena.size(), true, true});
    say('A', encode(engine.address()));
    say('M', encode(Engine::describe(memory)));
  }
  ~Side() override { engine.deregister_memory(memory); }

  void complete(uint64_t cookie, const TransferResult& result) noexcept override {
    results[cookie] = result;
    if (result.status == Status::kOk) ++done;
    ++ended;
  }
  void fenced(uint64_t, uint32_t) noexcept override {}
  void counted(Handle, uint32_t, uint32_t count) noexcept override { counts += count; }
  void received(Handle, std::span<const uint8_t> message) noexcept override {
    bytes_received += message.size();
    ++messages;
  }
  void lost(Handle, Status, std::string_view) noexcept override { ++losses; }
  void send_control(Handle, std::span<const uint8_t> message) noexcept override { say('C', message); }

  void say(char letter, std::span<const uint8_t> bytes) noexcept {
    std::vector<uint8_t> packet(1 + bytes.size());
    packet[0] = static_cast<uint8_t>(letter);
    std::copy(bytes.begin(), bytes.end(), packet.begin() + 1);
    (void)!send(fd, packet.data(), packet.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  void acknowledge(uint64_t number) noexcept {
    uint8_t packet[1 + sizeof number] = {'K'};
    std::memcpy(packet + 1, &number, sizeof number);
    (void)!send(fd, packet, sizeof packet, MSG_NOSIGNAL);
  }

  // False once the other side is gone.
  bool turn() {
    uint8_t packet[8192];
    const ssize_t bytes = recv(fd, packet, sizeof packet, MSG_DONTWAIT);
    if (bytes == 0 && !ignore_end) return false;
    if (bytes > 0) {
      const std::span<const uint8_t> rest{packet + 1, static_cast<std::size_t>(bytes - 1)};
      if (packet[0] == 'A') peer = engine.add_peer(*decode_address(rest));
      if (packet[0] == 'M') remote = *decode_memory(rest);
      if (packet[0] == 'C') engine.on_control(peer, rest);
      if (packet[0] == 'K')
        std::memcpy(&acknowledged, rest.data(), std::min(rest.size(), sizeof acknowledged));
      if (packet[0] == 'Q') return false;
      if (packet[0] == 'D') std::fputs(engine.describe().c_str(), stderr);
    }
    const uint64_t now_ns = monotonic_now_ns();
    ran_ns += std::min(now_ns - std::exchange(last_turn_ns, now_ns), 100 * kMillisecondNs);
    if (engine.progress(now_ns) == 0 && bytes < 0) rest();
    return true;
  }

  void rest() {
    if (!sleeps || engine.next_timer_ns() != kNoDeadline || engine.needs_polls() || !engine.arm()) {
      sched_yield();  // there may be fewer processors than sides
      return;
    }
    epoll_event event{};
    if (poller.get() < 0) {  // as workers of agents wait: for edges of a rail's
      poller.reset(epoll_create1(EPOLL_CLOEXEC));
      std::vector<int> fds;
      engine.event_fds(fds);
      event.events = EPOLLIN | EPOLLET;
      for (const int one : fds) (void)epoll_ctl(poller.get(), EPOLL_CTL_ADD, one, &event);
      event.events = EPOLLIN;
      (void)epoll_ctl(poller.get(), EPOLL_CTL_ADD, fd, &event);
    }
    (void)epoll_wait(poller.get(), &event, 1, -1);
  }

  template <class Done>
  bool until(Done&& finished, uint64_t limit_ns = 30 * kSecondNs) {
    const uint64_t end = monotonic_now_ns() + limit_ns;
    while (!finished()) {
      if (!turn()) return false;
      if (monotonic_now_ns() > end) return false;
    }
    return true;
  }

  int fd;
  std::vector<uint8_t> arena;
  std::map<uint64_t, TransferResult> results;
  uint64_t done = 0;
  uint64_t ended = 0;
  uint64_t counts = 0;
  uint64_t messages = 0;
  uint64_t bytes_received = 0;
  uint64_t losses = 0;
  uint64_t acknowledged = 0;
  bool ignore_end = false;
  bool sleeps = false;
  uint64_t last_turn_ns = monotonic_now_ns();
  uint64_t ran_ns = 0;  // as the engine counts it against its peers
  UniqueFd poller;
  Handle peer;
  RemoteMemory remote;
  LocalMemory memory;
  Engine engine;
};

uint8_t pattern(uint64_t position) { return static_cast<uint8_t>(position * 7 + position / kPage * 13 + 1); }

// Pages in a random order, the same at both ends or not.
struct RandomPages {
  std::vector<uint32_t> pages;
  uint64_t local;
  uint64_t remote;
  uint64_t page = kPage;
  std::size_t given = 0;
  static std::size_t next(void* context, towline_segment* out, std::size_t capacity) {
    auto& self = *static_cast<RandomPages*>(context);
    std::size_t count = 0;
    for (; count < capacity && self.given < self.pages.size(); ++count, ++self.given) {
      const uint64_t offset = self.pages[self.given] * self.page;
      out[count] = {self.local + offset, self.remote + offset, self.page, 0, 0};
    }
    return count;
  }
};

RandomPages all_pages(const Side& side) {
  RandomPages source{std::vector<uint32_t>(kArenaBytes / kPage), side.memory.address, side.remote.address};
  std::iota(source.pages.begin(), source.pages.end(), 0u);
  Random random{7};
  std::shuffle(source.pages.begin(), source.pages.end(), random);
  return source;
}

class OfiProcesses : public ::testing::TestWithParam<const char*> {
 protected:
  void start(EngineOptions options = {}, bool other_sleeps = false) {
    int fds[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
    ours_.reset(fds[0]);
    UniqueFd theirs{fds[1]};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, theirs.get(), kChildFd);
    std::string provider = GetParam();
    std::vector<std::string> told;  // in the other process's environment
    if (provider.ends_with(kOwnThere)) {
      provider.resize(provider.size() - kOwnThere.size());
      told.emplace_back("FI_AV_REMOVE_CLEANUP=0");
    }
    told.push_back(std::string(kChildVariable) + "=" + provider);
    if (other_sleeps) told.push_back(std::string(kSleepsVariable) + "=1");
    // LeakSanitizer crashes at times over a thread of UCX's that ends while it looks. This process looks for leaks, too.
    const char* const sanitizer = std::getenv("ASAN_OPTIONS");
    if (provider.starts_with("ucx:"))
      told.push_back(std::string("ASAN_OPTIONS=") + (sanitizer == nullptr ? "" : sanitizer) +
                     ":detect_leaks=0");
    std::vector<char*> environment;  // of two with one name the first counts
    for (std::string& one : told) environment.push_back(one.data());
    for (char** one = environ; *one != nullptr; ++one) environment.push_back(*one);
    environment.push_back(nullptr);
    char name[] = "/proc/self/exe";
    char filter[] = "--gtest_filter=OfiChild.*";
    char brief[] = "--gtest_brief=1";
    char* arguments[] = {name, filter, brief, nullptr};
    ASSERT_EQ(posix_spawn(&child_, name, &actions, nullptr, arguments, environment.data()), 0);
    posix_spawn_file_actions_destroy(&actions);
    theirs.reset();
    side_ = std::make_unique<Side>(ours_.get(), provider, options, other_sleeps ? 1 : 2);
    for (uint64_t i = 0; i < kArenaBytes; ++i) side_->arena[i] = pattern(i);
    ASSERT_TRUE(side_->until([&] { return !side_->peer.is_none() && side_->remote.rails != 0; }));
    local_ = &side_->memory;
    remote_ = &side_->remote;
  }

  TransferRequest request(TransferOp op, RandomPages& pages, uint64_t cookie) {
    TransferRequest made;
    made.peer = side_->peer;
    made.op = op;
    made.segments = {RandomPages::next, &pages};
    made.local = &local_;
    made.remote = &remote_;
    made.bytes = kArenaBytes;
    made.cookie = cookie;
    return made;
  }

  void TearDown() override { stop(); }

  void stop() {
    if (child_ <= 0) return;
    if (side_ != nullptr) side_->say('Q', {});
    side_.reset();
    ours_.reset();
    int status = 0;
    const pid_t child = std::exchange(child_, 0);
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(killed_ || (WIFEXITED(status) && WEXITSTATUS(status) == 0)) << status;
  }

  UniqueFd ours_;
  pid_t child_ = 0;
  bool killed_ = false;
  std::unique_ptr<Side> side_;
  const LocalMemory* local_ = nullptr;
  const RemoteMemory* remote_ = nullptr;
};

TEST_P(OfiProcesses, PagesAreWrittenCountedAndReadBack) {
  start();
  RandomPages pages = all_pages(*side_);
  TransferRequest write = request(TransferOp::kWrite, pages, 1);
  write.count = 2048;
  write.immediate = 7;
  ASSERT_EQ(side_->engine.submit(write), Status::kInProgress);
  // The child has checked each byte when it acknowledges the count.
  ASSERT_TRUE(side_->until([&] { return side_->done == 1 && side_->acknowledged == 1; }))
      << side_->engine.describe();

  std::fill(side_->arena.begin(), side_->arena.end(), uint8_t{0});
  RandomPages again = all_pages(*side_);
  ASSERT_EQ(side_->engine.submit(request(TransferOp::kRead, again, 2)), Status::kInProgress);
  ASSERT_TRUE(side_->until([&] { return side_->done == 2; })) << side_->engine.describe();
  uint64_t wrong = 0;
  for (uint64_t i = 0; i < kArenaBytes; ++i) wrong += side_->arena[i] != pattern(i);
  EXPECT_EQ(wrong, 0u);

  // Both rails move. One that connects last can find that the other has taken all there was.
  const auto idle = [&] {
    return side_->engine.counters(0).bytes == 0 || side_->engine.counters(1).bytes == 0;
  };
  for (uint64_t done = 2; idle() && done < 200; ++done) {
    RandomPages more = all_pages(*side_);
    ASSERT_EQ(side_->engine.submit(request(TransferOp::kRead, more, done + 1)), Status::kInProgress);
    ASSERT_TRUE(side_->until([&] { return side_->done == done + 1; })) << side_->engine.describe();
  }
  EXPECT_FALSE(idle()) << side_->engine.describe();
}

TEST_P(OfiProcesses, ManySmallMessagesArriveOnceEach) {
  start();
  const std::vector<uint8_t> text(100, 'x');
  constexpr uint64_t kMessages = 3000;
  uint64_t sent = 0;
  ASSERT_TRUE(side_->until([&] {
    while (sent < kMessages) {
      TransferRequest message;
      message.peer = side_->peer;
      message.has_message = true;
      message.message = text;
      message.cookie = sent;
      if (side_->engine.submit(message) != Status::kInProgress) break;
      ++sent;
    }
    return side_->done == kMessages && side_->acknowledged == kMessages;
  })) << side_->engine.describe()
      << (side_->say('D', {}), "the other side tells its own on stderr");
}

// Nobody asks whether the other side lives, which would wake it.
TEST_P(OfiProcesses, ASideThatSleepsIsWokenForAllThatComes) {
  EngineOptions options;
  options.stall_ns = 1000 * kSecondNs;
  start(options, true);
  constexpr uint64_t kBatches = 60;
  for (uint64_t batch = 1; batch <= kBatches; ++batch) {
    RandomPages pages = all_pages(*side_);
    pages.page = 64 << 10;
    std::erase_if(pages.pages, [](uint32_t page) { return page >= 16; });
    TransferRequest write = request(TransferOp::kWrite, pages, batch);
    write.bytes = 16 * pages.page;
    ASSERT_EQ(side_->engine.submit(write), Status::kInProgress);
    ASSERT_TRUE(side_->until([&] { return side_->done == batch; })) << side_->engine.describe();
  }
}

TEST_P(OfiProcesses, AKilledPeerIsLostInTimeAndTheRestEnds) {
  EngineOptions options;
  options.stall_ns = 100 * kMillisecondNs;
  options.lost_ns = 1 * kSecondNs;
  std::vector<RandomPages> pages;
  const auto writes = [&] {
    start(options);
    if (HasFatalFailure()) return true;
    side_->ignore_end = true;  // the fabric alone has to notice
    pages.assign(64, all_pages(*side_));
    for (uint64_t i = 0; i < pages.size(); ++i)
      EXPECT_EQ(side_->engine.submit(request(TransferOp::kWrite, pages[i], i)), Status::kInProgress);
    const auto moved = [&] { return side_->engine.counters(0).bytes + side_->engine.counters(1).bytes; };
    EXPECT_TRUE(side_->until([&] { return moved() > kArenaBytes || side_->ended == pages.size(); }))
        << side_->engine.describe();
    return side_->ended != pages.size();
  };
  // Each of rxm's endpoints takes the other process 40 ms of a processor. Where many others want those it is given up before
  // it has made them: it gets more time.
  while (!writes()) {
    stop();
    options.stall_ns *= 2;
    options.lost_ns *= 2;
    ASSERT_LE(options.lost_ns, 8 * kSecondNs);
  }
  ASSERT_FALSE(HasFailure());
  killed_ = true;
  ASSERT_EQ(kill(child_, SIGKILL), 0);
  side_->ran_ns = 0;
  ASSERT_TRUE(side_->until([&] { return side_->ended == pages.size(); })) << side_->engine.describe();
  EXPECT_LT(side_->ran_ns, 3 * options.lost_ns);
  EXPECT_EQ(side_->losses, 1u);
  EXPECT_EQ(side_->results.rbegin()->second.status, Status::kPeerLost);
}

// The files in /dev/shm that endpoints of the provider shm have; `owner` has made them.
std::vector<std::string> shm_files_of(pid_t owner) {
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    const std::string name = entry.path().filename();
    if (name.starts_with("towline-fi-" + std::to_string(owner) + "-")) found.push_back(entry.path());
  }
  return found;
}

bool is_locked(const std::string& file) {
  const UniqueFd opened{open(file.c_str(), O_RDWR | O_CLOEXEC)};
  return opened && flock(opened.get(), LOCK_EX | LOCK_NB) != 0;
}

// So the next rail of whatever process takes them away.
TEST_P(OfiProcesses, FilesOfAKilledPeerAreLockedNoMore) {
  if (std::string{GetParam()} != "shm") return;
  start();
  RandomPages pages = all_pages(*side_);
  ASSERT_EQ(side_->engine.submit(request(TransferOp::kWrite, pages, 0)), Status::kInProgress);
  ASSERT_TRUE(side_->until([&] { return side_->ended == 1; })) << side_->engine.describe();
  const std::vector<std::string> theirs = shm_files_of(child_);
  ASSERT_FALSE(theirs.empty());
  ASSERT_FALSE(shm_files_of(getpid()).empty());
  for (const std::string& file : theirs) EXPECT_TRUE(is_locked(file)) << file;
  for (const std::string& file : shm_files_of(getpid())) EXPECT_TRUE(is_locked(file)) << file;
  side_->ignore_end = true;
  killed_ = true;
  ASSERT_EQ(kill(child_, SIGKILL), 0);
  siginfo_t gone{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child_), &gone, WEXITED | WNOWAIT), 0);
  for (const std::string& file : theirs) {
    EXPECT_TRUE(std::filesystem::exists(file)) << file;
    EXPECT_FALSE(is_locked(file)) << file;
    std::filesystem::remove(file);
  }
  side_.reset();
  EXPECT_TRUE(shm_files_of(getpid()).empty()) << "the other endpoints' files are left";
}

INSTANTIATE_TEST_SUITE_P(Providers, OfiProcesses,
                         ::testing::Values("tcp;ofi_rxm", "tcp;ofi_rxm own", "shm", "ucx:tcp", "ucx:shm"),
                         [](const auto& test) {
                           const std::string name = test.param;
                           if (name.ends_with(kOwnThere)) return std::string{"tcpOwnThere"};
                           return name.starts_with("ucx:") ? "Ucx" + name.substr(4) : name.substr(0, 3);
                         });

// The other process: checks the bytes that have arrived, and acknowledges.
TEST(OfiChild, Serves) {
  const char* provider = std::getenv(kChildVariable);
  if (provider == nullptr) return;
  const bool sleeps = std::getenv(kSleepsVariable) != nullptr;
  Side side{kChildFd, provider, {}, sleeps ? 1 : 2};
  side.sleeps = sleeps;
  uint64_t messages = 0;
  while (side.turn()) {
    if (side.counts == 2048) {
      side.counts = 0;
      uint64_t wrong = 0;
      for (uint64_t i = 0; i < kArenaBytes; ++i) wrong += side.arena[i] != pattern(i);
      if (wrong == 0) side.acknowledge(1);
    }
    if (messages == side.messages) continue;
    messages = side.messages;
    side.acknowledge(messages);
  }
}

TEST(Ucx, UnknownTransportsAndDevicesAreNamed) {
  const auto message = [](std::string_view name) -> std::string {
    try {
      (void)make_rail(name);
    } catch (const core::Error& error) {
      return error.message();
    }
    return "";
  };
  EXPECT_NE(message("ucx:no_such_transport").find("no_such_transport"), std::string::npos);
  EXPECT_NE(message("ucx:tcp/eth77").find("eth77"), std::string::npos);
  EXPECT_EQ(message("ucx:tcp"), "");
}

TEST(Ofi, UnknownProvidersAndDevicesAreNamed) {
  const auto message = [](const OfiOptions& options) -> std::string {
    try {
      (void)make_ofi_domain(options);
    } catch (const core::Error& error) {
      EXPECT_EQ(error.code(), Status::kNotFound);
      return error.message();
    }
    return "";
  };
  EXPECT_NE(message({"no_such_provider", "", ""}).find("no_such_provider"), std::string::npos);
  EXPECT_NE(message({"tcp;ofi_rxm", "eth77", ""}).find("eth77"), std::string::npos);
  EXPECT_NE(message({"tcp;ofi_rxm", "", "192.0.2.7"}).find("192.0.2.7 is no address of this host"),
            std::string::npos);
  EXPECT_FALSE(ofi_devices("shm").empty());
}

}  // namespace
}  // namespace towline::fabric::ofi_test
