// Processes of one host that do not keep to the rules of shm: each attack ends their own connection, and the
// agent that was attacked serves others and ends cleanly.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <thread>

#include "base/os/memfd.h"
#include "metadata/blob/blob.h"
#include "towline/towline.hpp"
#include "transports/shm/packet_socket.h"
#include "transports/shm/ring_memory.h"
#include "transports/shm/test_support.h"

namespace towline::shm {
namespace {

using namespace std::chrono_literals;
using testing::Introduction;
using transport_test::TestAgent;
using transport_test::TestLink;
using transport_test::turn_until;

constexpr uint64_t kBytes = 1 << 20;
constexpr int kPatienceMs = 20'000;
constexpr uint32_t kRingBytes = 64 << 10;

// A process that runs `body`, which tells and hears through the pipes. To be made before this process has
// threads.
class Process {
 public:
  explicit Process(const std::function<int(int from, int to)>& body) {
    std::array<int, 2> up{};
    std::array<int, 2> down{};
    if (pipe2(up.data(), O_CLOEXEC) != 0 || pipe2(down.data(), O_CLOEXEC) != 0) std::abort();
    pid_ = fork();
    if (pid_ == 0) {
      close(up[0]);
      close(down[1]);
      int code = 1;
      try {
        code = body(down[0], up[1]);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "victim: %s\n", error.what());
      }
      _exit(code);
    }
    close(up[1]);
    close(down[0]);
    from_.reset(up[0]);
    to_.reset(down[1]);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  ~Process() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

  template <class T>
  [[nodiscard]] T hear() {
    T value{};
    pollfd entry{from_.get(), POLLIN, 0};
    if (poll(&entry, 1, kPatienceMs) != 1 || read(from_.get(), &value, sizeof value) != sizeof value)
      ADD_FAILURE() << "the process ended or hangs";
    return value;
  }
  void tell(const void* data, size_t bytes) const {
    ASSERT_EQ(write(to_.get(), data, bytes), static_cast<ssize_t>(bytes));
  }
  // Closes its input, which asks it to end; its exit code, -1 for a signal, -2 when it hangs.
  int finish() {
    to_.reset();
    const UniqueFd pidfd{static_cast<int>(syscall(SYS_pidfd_open, pid_, 0))};
    pollfd entry{pidfd.get(), POLLIN, 0};
    if (poll(&entry, 1, kPatienceMs) != 1) return -2;
    int status = 0;
    waitpid(std::exchange(pid_, 0), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t pid_ = 0;
  UniqueFd from_;
  UniqueFd to_;
};

Introduction introduction_of(const std::vector<std::byte>& blob) {
  const metadata::PeerMetadata known =
      metadata::decode({reinterpret_cast<const uint8_t*>(blob.data()), blob.size()});
  Introduction introduction{};
  towline_identity& identity = introduction.identity;
  identity.incarnation[0] = known.identity.incarnation.hi;
  identity.incarnation[1] = known.identity.incarnation.lo;
  identity.host[0] = known.identity.host.boot_id.hi;
  identity.host[1] = known.identity.host.boot_id.lo;
  identity.workers = known.identity.workers;
  for (const metadata::BackendMetadata& backend : known.backends) {
    if (backend.name != "shm") continue;
    introduction.address_bytes = backend.address.size();
    std::copy(backend.address.begin(), backend.address.end(), introduction.address);
  }
  for (size_t i = 0; i < known.regions.size() && i < 4; ++i)
    introduction.regions[i] = known.regions[i].region;
  return introduction;
}

// An agent as users run it, with one region that peers map, until its input ends.
int serve(int from, int to, const std::string& config, Access access) {
  const Agent agent("victim", {.listen = "none", .backends = "shm", .config = config});
  Memory memory(kBytes);
  const Region region = agent.register_memory(dram(memory), {.access = access});
  const Introduction introduction = introduction_of(agent.metadata());
  if (write(to, &introduction, sizeof introduction) != sizeof introduction) return 2;
  char byte = 0;
  while (read(from, &byte, 1) == 1) {
  }
  return 0;
}

void expect_served(Introduction victim) {
  TestAgent agent(towline_shm_plugin(), "friend");
  victim.identity.name = "victim";
  TestLink& link = agent.connect(victim.identity, victim.address_of());
  EXPECT_TRUE(turn_until({&agent}, [&] { return link.up || link.down; }));
  EXPECT_TRUE(link.up) << link.text;
}

bool readable(int fd) {
  pollfd entry{fd, POLLIN, 0};
  return poll(&entry, 1, kPatienceMs) == 1;
}

// Says hello by hand and is welcomed; `more` goes along with the ring's memory.
class Stranger {
 public:
  explicit Stranger(const Introduction& victim, int more = -1)
      : rings(RingMemory::create(kRingBytes, memory_)), socket(make_socket()) {
    EXPECT_EQ(connect_to(socket.get(), *decode_address(victim.address_of())), 0);
    Hello hello;
    std::copy_n(victim.identity.incarnation, 2, hello.target);
    hello.identity = victim.identity;
    hello.identity.incarnation[0] ^= 1;
    hello.name = "stranger";
    hello.ring_bytes = kRingBytes;
    send_with(encode(hello), memory_.get(), more);
    EXPECT_TRUE(readable(socket.get()));
    EXPECT_EQ(receive_packet(socket.get(), welcome), Status::kOk);
    EXPECT_TRUE(decode_welcome(welcome.span()));
  }

 private:
  UniqueFd memory_;

 public:
  RingMemory rings;
  UniqueFd socket;
  Packet welcome;

 private:
  void send_with(std::vector<uint8_t> data, int first, int second) const {
    const std::array<int, 2> fds = {first, second};
    const size_t bytes = (second < 0 ? 1 : 2) * sizeof(int);
    iovec piece{data.data(), data.size()};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof fds)> control{};
    msghdr message{};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(bytes);
    cmsghdr* part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(bytes);
    std::memcpy(CMSG_DATA(part), fds.data(), bytes);
    EXPECT_EQ(sendmsg(socket.get(), &message, MSG_NOSIGNAL), static_cast<ssize_t>(data.size()));
  }
};

TEST(ShmStrangersOfAProcess, OneThatAsksForDescriptorsAndTakesNoneEndsItsConnectionOnly) {
  Process process([](int from, int to) {
    const rlimit few = {48, 48};
    setrlimit(RLIMIT_NOFILE, &few);
    return serve(from, to, "", Access::kAll);
  });
  const auto victim = process.hear<Introduction>();
  for (int round = 0; round < 3; ++round) {
    const Stranger stranger(victim);
    uint64_t request = 0;
    Status sent = Status::kOk;
    while (sent == Status::kOk || sent == Status::kAgain) {
      sent =
          send_packet(stranger.socket.get(), encode(DescriptorRequest{++request, victim.regions[0].key}), {});
      pollfd room{stranger.socket.get(), POLLOUT, 0};
      if (sent == Status::kAgain) {
        ASSERT_EQ(poll(&room, 1, kPatienceMs), 1) << "the victim neither reads nor hangs up";
      }
    }
    EXPECT_EQ(sent, Status::kClosed);
  }
  expect_served(victim);
  EXPECT_EQ(process.finish(), 0);
}

TEST(ShmStrangersOfAProcess, NothingThatAPeerHoldsMakesAWorkerWait) {
  Process process([](int from, int to) {
    return serve(from, to, "[peer]\nheartbeat = \"2ms\"\nsuspect = \"5s\"\nlost = \"10s\"\n", Access::kAll);
  });
  const auto victim = process.hear<Introduction>();
  {
    // Full, and a write to it waits: as an event descriptor to be woken by.
    const UniqueFd full{eventfd(0, EFD_CLOEXEC)};
    const uint64_t most = UINT64_MAX - 1;
    ASSERT_EQ(write(full.get(), &most, sizeof most), static_cast<ssize_t>(sizeof most));
    const Stranger stranger(victim, full.get());
    EXPECT_EQ(stranger.welcome.fd_count, 0U) << "a descriptor of the victim's worker";
    ASSERT_EQ(fcntl(full.get(), F_SETFL, 0), 0);  // whatever the victim set
    // Asleep all the time, and it reads none of what should wake it: more than its socket holds.
    std::atomic<uint32_t>& asleep = stranger.rings.incoming().header->positions.consumer_asleep;
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(kPatienceMs);
    int wakes = 0;
    asleep.store(1);
    while (wakes < 60 && std::chrono::steady_clock::now() < until) {
      if (asleep.load() == 0) {
        asleep.store(1);
        ++wakes;
      }
      std::this_thread::yield();
    }
    EXPECT_EQ(wakes, 60) << "the victim's worker waits for the stranger";
    expect_served(victim);
  }
  EXPECT_EQ(process.finish(), 0);
}

TEST(ShmStrangersOfAProcess, WhoListensUnderAPeersNameAsAnotherUserIsGivenNothing) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to become another user";
  const std::array<uint64_t, 2> incarnation = {0x5713, static_cast<uint64_t>(getpid())};
  const Address address = socket_name(incarnation.data(), "");
  Process process([&address](int from, int to) {
    if (setgid(65534) != 0 || setuid(65534) != 0) return 2;
    const UniqueFd listener = listen_on(address);
    char byte = 'l';
    if (write(to, &byte, 1) != 1 || !readable(listener.get())) return 3;
    const UniqueFd socket{accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC)};
    Packet packet;
    if (!readable(socket.get())) return 4;
    const auto heard = static_cast<int32_t>(receive_packet(socket.get(), packet));
    if (write(to, &heard, sizeof heard) != sizeof heard) return 5;
    return read(from, &byte, 1) == 0 ? 0 : 6;
  });
  ASSERT_EQ(process.hear<char>(), 'l');
  TestAgent agent(towline_shm_plugin(), "a");
  towline_identity imposter = agent.identity();
  std::copy(incarnation.begin(), incarnation.end(), imposter.incarnation);
  const TestLink& link = agent.connect(imposter, encode(address));
  EXPECT_EQ(link.status, Status::kPermissionDenied) << link.text;
  EXPECT_EQ(process.hear<int32_t>(), static_cast<int32_t>(Status::kClosed)) << "the hello was sent";
  EXPECT_EQ(process.finish(), 0);
}

// Whether the file can be written through the descriptor, or through one that /proc opens anew.
bool writable_somehow(int fd) {
  const UniqueFd reopened{open(("/proc/self/fd/" + std::to_string(fd)).c_str(), O_RDWR | O_CLOEXEC)};
  for (const int candidate : {fd, reopened.get()}) {
    const char byte = 1;
    if (candidate < 0) continue;
    void* mapped = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, candidate, 0);
    if (mapped != MAP_FAILED || pwrite(candidate, &byte, 1, 0) == 1 || ftruncate(candidate, 0) == 0 ||
        fallocate(candidate, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) == 0)
      return true;
  }
  return false;
}

TEST(ShmStrangersOfAProcess, ADescriptorToReadCannotBeTurnedIntoOneToWrite) {
  Process process([](int from, int to) { return serve(from, to, "", Access::kRead); });
  const auto victim = process.hear<Introduction>();
  {
    const Stranger stranger(victim);
    ASSERT_EQ(send_packet(stranger.socket.get(), encode(DescriptorRequest{1, victim.regions[0].key}), {}),
              Status::kOk);
    Packet packet;
    std::optional<DescriptorAnswer> answer;
    while (!answer && readable(stranger.socket.get())) {
      ASSERT_EQ(receive_packet(stranger.socket.get(), packet), Status::kOk);
      answer = decode_descriptor_answer(packet.span());  // else a wake
    }
    ASSERT_TRUE(answer);
    ASSERT_EQ(answer->status, Status::kOk) << answer->text;
    ASSERT_EQ(packet.fd_count, 1U);
    EXPECT_FALSE(writable_somehow(packet.fds[0].get()));
    void* mapped = mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, packet.fds[0].get(), 0);
    EXPECT_NE(mapped, MAP_FAILED);
    munmap(mapped, kBytes);
  }
  EXPECT_EQ(process.finish(), 0);
}

TEST(ShmStrangersOfAProcess, APeerThatCutsItsFileOffEndsNobodyElse) {
  // The reader: takes the owner's metadata, moves once, hears that the file is cut off, and moves again.
  Process process([](int from, int to) {
    size_t bytes = 0;
    if (read(from, &bytes, sizeof bytes) != sizeof bytes) return 2;
    std::vector<std::byte> blob(bytes);
    for (size_t got = 0; got < bytes;) {
      const ssize_t more = read(from, blob.data() + got, bytes - got);
      if (more <= 0) return 3;
      got += static_cast<size_t>(more);
    }
    const Agent agent(
        "reader",
        {.listen = "none", .backends = "shm", .config = "[tuning.shm]\npaths = \"mapped,process_vm\"\n"});
    Memory memory(kBytes);
    const Region region = agent.register_memory(dram(memory), {.access = Access::kAll});
    const Peer owner = agent.add_peer(blob);
    const auto* theirs = reinterpret_cast<const void*>(introduction_of(blob).regions[0].address);
    const Transfer move = agent.transfer(owner.block_list(Blocks::at(theirs, kBytes)),
                                         agent.block_list(Blocks::at(memory.data(), kBytes)));
    const auto run = [&] {
      const Status posted = move.post();
      return static_cast<int32_t>(posted == Status::kInProgress ? move.wait(20s) : posted);
    };
    int32_t outcome = run();
    if (outcome != 0) std::fprintf(stderr, "first: %s\n", std::string(last_error()).c_str());
    if (write(to, &outcome, sizeof outcome) != sizeof outcome) return 4;
    char byte = 0;
    if (read(from, &byte, 1) != 1) return 5;
    outcome = run();
    if (write(to, &outcome, sizeof outcome) != sizeof outcome) return 6;
    return read(from, &byte, 1) == 0 ? 0 : 7;
  });
  std::string path = "/dev/shm/towline-test-XXXXXX";
  const UniqueFd file{mkstemp(path.data())};
  ASSERT_TRUE(file.valid());
  unlink(path.c_str());
  ASSERT_EQ(ftruncate(file.get(), kBytes), 0);
  void* mapped = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  ASSERT_NE(mapped, MAP_FAILED);
  // It gives away what others should not map.
  const Agent owner("owner",
                    {.listen = "none", .backends = "shm", .config = "[tuning.shm]\nmap_unsealed = true\n"});
  const Region region = owner.register_memory(dram(mapped, kBytes), {.access = Access::kAll});
  const std::vector<std::byte> blob = owner.metadata();
  const size_t bytes = blob.size();
  process.tell(&bytes, sizeof bytes);
  process.tell(blob.data(), bytes);
  EXPECT_EQ(process.hear<int32_t>(), TOWLINE_OK);
  ASSERT_EQ(ftruncate(file.get(), 0), 0);
  process.tell("c", 1);
  EXPECT_LT(process.hear<int32_t>(), 0);
  EXPECT_EQ(process.finish(), 0);
  munmap(mapped, kBytes);
}

}  // namespace
}  // namespace towline::shm
