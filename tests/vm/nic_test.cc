// Tests that need a kernel with a NIC that receives into device memory: the NIC, its rules, and sources alone.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "guest.h"
#include "support/temporary_folder.h"
#include "transports/tcpx/bound_sender.h"
#include "transports/tcpx/sources/devmem.h"
#include "transports/tcpx/sources/fake_gpu_host.h"
#include "transports/tcpx/sources/test_support.h"
#include "transports/tcpx/sources/zcrx.h"

namespace towline::tcpx {
namespace {

using namespace std::chrono_literals;
using guest::enter;
using testing::pattern;

class GuestTest : public ::testing::Test {
 protected:
  [[nodiscard]] NicOptions nic(int host, uint64_t pool_bytes = 8u << 20) const {
    return {guest::kNic[host], {2, 3}, pool_bytes, folder_.path(), ""};
  }
  std::unique_ptr<DevmemProvider> open(int host, uint64_t pool_bytes = 8u << 20) {
    enter(host);
    return std::make_unique<DevmemProvider>(this_kernel(), nic(host, pool_bytes), make_pool_memory);
  }
  support::TemporaryFolder folder_{"/tmp"};
};

struct Taken {
  uint64_t bytes = 0;
  uint64_t linear = 0;
  uint64_t wrong = 0;  // fragments
  uint64_t fragments = 0;
};

// Reads a stream to its end; `sent` is what each stretch of its length holds. Tokens are given back late, a few at once.
Taken take_all(Source& source, int socket, const std::vector<uint8_t>& sent) {
  Taken taken;
  std::vector<uint8_t> linear(256u << 10);
  std::vector<Fragment> fragments(128);
  std::vector<uint32_t> tokens;
  const auto compare = [&](const uint8_t* data, std::size_t bytes) {
    while (bytes != 0) {
      const std::size_t at = taken.bytes % sent.size();
      const std::size_t here = std::min(bytes, sent.size() - at);
      taken.wrong += std::memcmp(data, sent.data() + at, here) == 0 ? 0 : 1;
      data += here;
      bytes -= here;
      taken.bytes += here;
    }
  };
  for (;;) {
    const Polled polled = source.poll(linear.data(), linear.size(), fragments);
    if (polled.io.status == Status::kAgain) {
      source.release(tokens);
      tokens.clear();
      pollfd wait = {source.wakes_by() >= 0 ? source.wakes_by() : socket, POLLIN, 0};
      (void)::poll(&wait, 1, 1000);
      continue;
    }
    if (polled.io.status != Status::kOk) {
      EXPECT_EQ(polled.io.status, Status::kClosed) << (polled.io.detail != nullptr ? polled.io.detail : "");
      source.release(tokens);
      return taken;
    }
    std::size_t at = 0;
    for (uint32_t i = 0; i < polled.count; ++i) {
      const Fragment& fragment = fragments[i];
      ++taken.fragments;
      if (fragment.linear) {
        taken.linear += fragment.bytes;
        compare(linear.data() + at, fragment.bytes);
        at += fragment.bytes;
      } else {
        compare(source.pools()[0].memory + fragment.offset, fragment.bytes);
        tokens.push_back(fragment.token);
      }
    }
    if (tokens.size() > 500) {
      source.release(tokens);
      tokens.clear();
    }
  }
}

// Sends 64 MiB to a source of this provider; `look` sees the source when all of it was taken.
void stream_to(Provider& provider, const std::function<void(const Source&, const Taken&)>& look = {}) {
  constexpr uint64_t kBytes = 64u << 20;
  auto [writer, reader] = guest::connect_hosts();
  auto source = provider.make(reader.get());
  const auto sent = pattern(1u << 20);
  std::thread sender([&, fd = writer.get()] {
    for (uint64_t done = 0; done < kBytes; done += sent.size()) write_fully(fd, sent);
    ::shutdown(fd, SHUT_WR);
  });
  const Taken taken = take_all(*source, reader.get(), sent);
  sender.join();
  EXPECT_EQ(taken.bytes, kBytes);
  EXPECT_EQ(taken.wrong, 0u);
  EXPECT_EQ(taken.linear, 0u);
  EXPECT_EQ(source->bad_releases(), 0u);
  if (look) look(*source, taken);
  std::printf("%s: %lu fragments\n", source->name(), static_cast<unsigned long>(taken.fragments));
}

TEST_F(GuestTest, AStreamArrivesInBoundMemoryAndEveryTokenIsReturned) {
  const auto provider = open(0);
  stream_to(*provider, [](const Source& source, const Taken& taken) {
    const auto& tokens = static_cast<const DeviceMemorySource&>(source);
    EXPECT_EQ(tokens.returned(), taken.fragments);
    EXPECT_EQ(tokens.freed(), taken.fragments);
  });
}

// The kernel's own ETOOSMALL, which it says before it takes anything off the socket.
TEST_F(GuestTest, AControlBufferWithoutRoomIsRefusedAndLosesNothing) {
  const auto provider = open(0);
  auto [writer, reader] = guest::connect_hosts();
  auto source = provider->make(reader.get());
  const auto sent = pattern(256u << 10);
  std::thread sender([&, fd = writer.get()] {
    write_fully(fd, sent);
    ::shutdown(fd, SHUT_WR);
  });
  std::vector<uint8_t> linear(64u << 10);
  Polled refused;
  do {
    pollfd wait = {reader.get(), POLLIN, 0};
    (void)::poll(&wait, 1, 1000);
    refused = source->poll(linear.data(), linear.size(), {});
  } while (refused.io.status == Status::kAgain);
  EXPECT_EQ(refused.io.status, Status::kProtocol);
  EXPECT_EQ(refused.io.vendor_code, 525);
  const Taken taken = take_all(*source, reader.get(), sent);
  sender.join();
  EXPECT_EQ(taken.bytes, sent.size());
  EXPECT_EQ(taken.wrong, 0u);
}

// A pool of which nearly everything is held: it can be filled again only if closing gave it back.
TEST_F(GuestTest, ASourceThatEndsGivesItsTokensBack) {
  constexpr uint64_t kPool = 1u << 20;
  auto provider = open(0, kPool);
  const auto sent = pattern(kPool);
  for (int round = 0; round < 8; ++round) {
    auto [writer, reader] = guest::connect_hosts();
    auto source = provider->make(reader.get());
    std::thread sender([&, fd = writer.get()] { (void)::send(fd, sent.data(), kPool / 4, MSG_NOSIGNAL); });
    std::vector<uint8_t> linear(256u << 10);
    std::vector<Fragment> fragments(128);
    uint64_t got = 0;
    const Deadline deadline = Deadline::after(monotonic_now_ns(), 20 * kSecondNs);
    while (got < kPool / 4) {
      ASSERT_LT(monotonic_now_ns(), deadline.ns()) << "round " << round << ": " << got << " bytes";
      const Polled polled = source->poll(linear.data(), linear.size(), fragments);
      ASSERT_TRUE(polled.io.status == Status::kOk || polled.io.status == Status::kAgain);
      got += polled.io.bytes;
    }
    reader.reset();  // the source keeps it open, since a GPU may still read
    source.reset();
    writer.reset();
    sender.join();
  }
}

// A pool of 2 MiB: every page is used many times.
TEST_F(GuestTest, AStreamArrivesInAnAreaOfIoUringByTheNicAndTheNicIsGivenBack) {
  enter(0);
  Nic nic_now(this_kernel(), guest::kNic[0]);
  const Rings rings = nic_now.rings();
  const auto spread = nic_now.spread();
  for (int round = 0; round < 2; ++round) {
    ZcrxProvider provider(this_kernel(), nic(0, 2u << 20));
    EXPECT_EQ(nic_now.rings().split, Split::kOn);
    stream_to(provider);
    EXPECT_TRUE(nic_now.rules().empty());
  }
  EXPECT_EQ(nic_now.rings().split, rings.split);
  EXPECT_EQ(nic_now.spread(), spread);
}

TEST_F(GuestTest, AStreamArrivesInAnAreaOfIoUringByTheKernel) {
  enter(0);
  ZcrxProvider provider(2u << 20, [](std::span<uint8_t> area, uint32_t refills) {
    return open_zcrx_ring(area, {0, 0, refills});
  });
  stream_to(provider);
}

// Memory of a GPU that is made of host memory.
class GuestSends : public GuestTest {
 protected:
  static constexpr uint64_t kBytes = 4u << 20;

  [[nodiscard]] BoundMemory::Bound* bind(BoundMemory& memory) const {
    towline_region_ref region = {};
    region.kind = TOWLINE_MEMORY_VRAM;
    region.device = testing::FakeGpuHost::kDevice;
    region.address = reinterpret_cast<uint64_t>(sent_.data());
    region.bytes = kBytes;
    return memory.add(region);
  }
  [[nodiscard]] bool takes(BoundSender& sender, int fd) const {
    const towline_landing_piece all = {reinterpret_cast<uint64_t>(sent_.data()), kBytes};
    return sender.takes(fd, testing::FakeGpuHost::kDevice, {&all, 1});
  }

  testing::FakeGpuHost gpu_;
  const plugin::Host host_ = gpu_.host();
  std::vector<uint8_t> sent_ = pattern(kBytes);
};

TEST_F(GuestSends, BoundMemoryIsSentByTheNicAndNothingIsCopied) {
  enter(1);
  BoundMemory memory(this_kernel(), host_, SendWay::kAuto, guest::kNic[1]);
  ASSERT_NE(bind(memory), nullptr) << memory.why_not();
  auto provider = open(0);
  auto [writer, reader] = guest::connect_hosts();
  auto source = provider->make(reader.get());
  BoundSender sender(&memory);
  ASSERT_TRUE(takes(sender, writer.get())) << memory.why_not();
  std::thread thread([&, fd = writer.get()] {
    for (uint64_t at = 0; at < kBytes;) {
      const iovec piece = {sent_.data() + at, std::min<uint64_t>(kBytes - at, 64u << 10)};
      const framing::IoResult result = sender.write(fd, {&piece, 1});
      at += result.bytes;
      ASSERT_TRUE(result.status == Status::kOk || result.status == Status::kAgain) << result.vendor_code;
      pollfd wait = {fd, POLLOUT, 0};
      if (result.status == Status::kAgain) (void)::poll(&wait, 1, 100);
      (void)sender.returned(fd);
    }
    while (!sender.all_returned()) {
      pollfd wait = {fd, 0, 0};
      (void)::poll(&wait, 1, 100);
      (void)sender.returned(fd);
    }
    ::shutdown(fd, SHUT_WR);
  });
  const Taken taken = take_all(*source, reader.get(), sent_);
  thread.join();
  EXPECT_EQ(taken.bytes, kBytes);
  EXPECT_EQ(taken.wrong, 0u);
  EXPECT_FALSE(sender.copied());
}

// The kernel sends bound memory only by the NIC that it is bound to.
TEST_F(GuestSends, APeerThatIsReachedByAnotherInterfaceIsSentGatheredMemory) {
  enter(1);
  BoundMemory memory(this_kernel(), host_, SendWay::kAuto, guest::kNic[1]);
  ASSERT_NE(bind(memory), nullptr) << memory.why_not();
  ASSERT_EQ(std::system("ip link set lo up"), 0);
  const auto [writer, reader] = testing::connected_sockets();
  BoundSender sender(&memory);
  EXPECT_FALSE(takes(sender, writer.get()));
  std::printf("%s\n", memory.why_not().c_str());
  EXPECT_NE(memory.why_not().find("leave by another interface"), std::string::npos) << memory.why_not();
}

TEST_F(GuestSends, ADeviceThatDoesNotSendFromMemoryIsNamedWithTheReason) {
  enter(1);
  BoundMemory memory(this_kernel(), host_, SendWay::kAuto, "v2");
  EXPECT_EQ(bind(memory), nullptr);
  std::printf("%s\n", memory.why_not().c_str());
  EXPECT_NE(memory.why_not().find("v2"), std::string::npos) << memory.why_not();
}

TEST_F(GuestTest, ADeviceWithoutQueueMemoryIsRefusedWithTheReason) {
  enter(0);
  NicOptions options = nic(0);
  options.interface = "v1";
  try {
    const DevmemProvider provider(this_kernel(), options, make_pool_memory);
    FAIL() << "a veth took memory";
  } catch (const core::Error& error) {
    std::printf("%s\n", error.message().c_str());
    EXPECT_NE(error.message().find("v1"), std::string::npos) << error.message();
  }
}

// A process that holds the NIC with a source of `take`, and is killed: the next provider of `take` undoes what it left.
void expect_kill_is_undone(const std::function<std::unique_ptr<Provider>()>& take) {
  enter(0);
  Nic nic_now(this_kernel(), guest::kNic[0]);
  const Rings rings = nic_now.rings();
  const auto spread = nic_now.spread();
  int ready[2];
  ASSERT_EQ(::pipe2(ready, O_CLOEXEC), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    auto provider = take();
    auto [writer, reader] = guest::connect_hosts();
    auto source = provider->make(reader.get());
    (void)!::write(ready[1], "x", 1);
    for (;;) ::pause();
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_EQ(nic_now.rules().size(), 1u);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(nic_now.rules().size(), 1u);
  EXPECT_EQ(nic_now.rings().split, Split::kOn);
  EXPECT_NE(nic_now.spread(), spread);
  {
    const auto provider = take();
    EXPECT_TRUE(nic_now.rules().empty());
    stream_to(*provider);
  }
  EXPECT_EQ(nic_now.rings().split, rings.split);
  EXPECT_EQ(nic_now.spread(), spread);
}

TEST_F(GuestTest, WhatAKilledProcessLeftAtTheNicIsUndone) {
  expect_kill_is_undone([&] { return open(0); });
}

TEST_F(GuestTest, WhatAKilledProcessWithAnAreaOfIoUringLeftAtTheNicIsUndone) {
  expect_kill_is_undone([&] { return std::make_unique<ZcrxProvider>(this_kernel(), nic(0, 2u << 20)); });
}

// A process of the one way leaves what a process of the other undoes.
TEST_F(GuestTest, WhatAnAreaOfIoUringLeftIsUndoneByAPoolOfDeviceMemory) {
  bool first = true;
  expect_kill_is_undone([&]() -> std::unique_ptr<Provider> {
    if (!std::exchange(first, false)) return open(0);
    return std::make_unique<ZcrxProvider>(this_kernel(), nic(0, 2u << 20));
  });
}

// Its driver lets go of memory and queues while a source waits.
TEST_F(GuestTest, ANicThatGoesDownUnderWayEndsNothingButItsStream) {
  enter(0);
  auto provider = open(0);
  {
    auto [writer, reader] = guest::connect_hosts();
    auto source = provider->make(reader.get());
    ASSERT_EQ(std::system(("ip link set " + std::string(guest::kNic[0]) + " down").c_str()), 0);
    std::vector<uint8_t> linear(64u << 10);
    std::vector<Fragment> fragments(128);
    EXPECT_EQ(source->poll(linear.data(), linear.size(), fragments).io.status, Status::kAgain);
    source.reset();
  }
  provider.reset();
  ASSERT_EQ(std::system(("ip link set " + std::string(guest::kNic[0]) + " up").c_str()), 0);
  provider = open(0);
  stream_to(*provider);
}

// Last of all: scripts/tcpx-guest runs it by itself. Held fragments can still be read and given back.
using NicRemoval = GuestTest;

TEST_F(NicRemoval, UnderWayItEndsItsStreamsAndTheNextStartSaysSo) {
  auto provider = open(0);
  auto [writer, reader] = guest::connect_hosts();
  auto source = provider->make(reader.get());
  const auto sent = pattern(256u << 10);
  std::thread sender([&, fd = writer.get()] { write_fully(fd, sent); });
  std::vector<uint8_t> linear(64u << 10);
  std::vector<Fragment> fragments(128);
  const Deadline deadline = Deadline::after(monotonic_now_ns(), 60 * kSecondNs);
  Polled polled;
  while (polled.io.status != Status::kOk || polled.count == 0) {
    ASSERT_LT(monotonic_now_ns(), deadline.ns());
    polled = source->poll(linear.data(), 4096, fragments);
  }
  sender.join();
  ASSERT_FALSE(fragments[0].linear);
  const uint8_t* const at = source->pools()[0].memory + fragments[0].offset;
  ASSERT_EQ(std::system("rmmod towline_test_nic"), 0);
  EXPECT_EQ(std::memcmp(at, sent.data(), fragments[0].bytes), 0);
  std::vector<uint32_t> tokens;
  for (uint32_t i = 0; i < polled.count; ++i) tokens.push_back(fragments[i].token);
  source->release(tokens);
  EXPECT_EQ(source->bad_releases(), 0u);
  source.reset();
  provider.reset();
  try {
    (void)open(0);
    FAIL() << "a NIC that is gone was opened";
  } catch (const core::Error& error) {
    EXPECT_NE(error.message().find(guest::kNic[0]), std::string::npos) << error.message();
  }
}

}  // namespace
}  // namespace towline::tcpx
