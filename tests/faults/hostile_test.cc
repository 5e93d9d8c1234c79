// 10,000 hostile connections and blobs against an agent that serves: it must not grow, and its peers must not notice
// more than a delay. The delays are printed, not judged: how long a transfer takes is a matter of the machine.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <deque>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "eventually.h"
#include "metadata/blob/blob.h"
#include "metadata/listener/wire.h"
#include "stranger.h"
#include "towline/towline.hpp"
#include "transports/tcp/wire.h"
#include "victim.h"

namespace towline::faults {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using Bytes = std::vector<uint8_t>;

constexpr int kHostile = 10'000;
constexpr size_t kKeptOpen = 40;
constexpr uint64_t kMostGrowth = 16u << 20;
constexpr size_t kPage = 4096;

// Sends what strangers may send: a peer's messages, damaged or meant for somebody else, and noise.
class Malice {
 public:
  Malice(const Target& target, std::string listener) : target_(target), listener_(std::move(listener)) {}

  // Connects once more. The socket stays open for a while, as that of a peer that hangs.
  void strike(int number) {
    const bool to_listener = number % 2 == 0;
    Bytes bytes = to_listener ? exchange_of(foreign_blob(number)) : hello(number);
    switch (number / 2 % 5) {
      case 0:
        bytes = noise(random_() % 2000);
        break;
      case 1:
        bytes.resize(random_() % bytes.size());
        break;
      case 2:
        bytes[random_() % bytes.size()] ^= static_cast<uint8_t>(1u << random_() % 8);
        break;
      case 3:
        break;  // well-formed, and foreign
      default: {
        const Bytes more = noise(300);  // behind what is well-formed
        bytes.insert(bytes.end(), more.begin(), more.end());
      }
    }
    try {
      open_.emplace_back(to_listener ? listener_ : target_.tcp);
      if (open_.back().say(bytes.data(), bytes.size())) ++said_;
    } catch (const std::exception&) {  // turned away
    }
    if (open_.size() > kKeptOpen) open_.pop_front();
  }
  // How many were connected and heard.
  [[nodiscard]] int said() const { return said_; }

 private:
  Bytes noise(size_t count) {
    Bytes bytes(count + 1);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random_());
    return bytes;
  }
  static Bytes exchange_of(const Bytes& blob) {
    metadata::wire::ExchangeHeader header;
    header.bytes = static_cast<uint32_t>(blob.size());
    const auto packed = metadata::wire::pack(header);
    Bytes bytes(packed.begin(), packed.end());
    bytes.insert(bytes.end(), blob.begin(), blob.end());
    return bytes;
  }
  static Bytes foreign_blob(int number) {
    metadata::PeerMetadata foreign;
    foreign.identity.name = "foreign-" + std::to_string(number);
    foreign.identity.incarnation = Id::random();
    foreign.identity.workers = 1;
    foreign.backends.push_back({"tcp", "9", tcp::pack_address(std::vector<std::string>{"127.0.0.1:9"})});
    for (uint64_t region = 1; region <= 50; ++region) {
      metadata::RegionMetadata entry;
      entry.region = {region << 32, region << 20, 1 << 20, 0, TOWLINE_MEMORY_DRAM, TOWLINE_ACCESS_ALL, 0, 0};
      foreign.regions.push_back(entry);
    }
    return metadata::encode(foreign);
  }
  // Every other one knows the agent, and becomes a connection.
  Bytes hello(int number) const {
    tcp::Hello hello;
    hello.target = number % 4 == 1 ? target_.incarnation : Id::random();
    hello.connection = Id::random();
    const Id self = Id::random();
    hello.self.incarnation[0] = self.hi;
    hello.self.incarnation[1] = self.lo;
    hello.self.workers = 1;
    hello.name = "foreign-" + std::to_string(number);
    return tcp::pack(hello);
  }

  const Target target_;
  const std::string listener_;
  std::mt19937_64 random_{11};
  std::deque<Stranger> open_;
  int said_ = 0;
};

// A peer that writes a page again and again.
class Client {
 public:
  explicit Client(const Victim& victim)
      : agent_("client", {.listen = "none", .backends = "tcp"}),
        memory_(kPage),
        region_(agent_.register_memory(dram(memory_), {.access = Access::kAll})),
        peer_(agent_.connect(victim.address())),
        move_(agent_.transfer(
            agent_.block_list(Blocks::at(memory_.data(), kPage)),
            peer_.block_list(Blocks::at(reinterpret_cast<const void*>(victim.memory()), kPage)),
            {.timeout = 20s})) {}

  // The 99th percentile of as many transfers as there is time for, and at least a thousand; 0 when one failed.
  double p99_us(const std::function<bool()>& more) {
    std::vector<double> took;
    while (more() || took.size() < 1000) {
      const auto start = Clock::now();
      const Status posted = move_.post();
      const Status status = posted == Status::kInProgress ? move_.wait(20s) : posted;
      if (status != Status::kOk) {
        ADD_FAILURE() << status_name(status) << ": " << last_error();
        return 0;
      }
      took.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
    }
    std::ranges::sort(took);
    return took[took.size() * 99 / 100];
  }

  Agent agent_;
  Memory memory_;
  Region region_;
  Peer peer_;
  Transfer move_;
};

TEST(Hostile, TenThousandConnectionsAndBlobsCostLittle) {
  Victim victim({.backends = "tcp", .config = "[log]\nlevel = \"error\"\n", .shared_memory = false});
  const Target target(blob_of(victim.address()));
  Client client(victim);
  const auto until = Clock::now() + 2s;
  const double quiet_us = client.p99_us([&] { return Clock::now() < until; });
  const uint64_t before = resident_bytes(victim.pid());

  std::atomic<bool> over{false};
  int said = 0;
  std::thread strangers([&] {
    // Strangers are on other hosts: here they only get idle processor time.
    const sched_param none = {};
    sched_setscheduler(0, SCHED_IDLE, &none);
    Malice malice(target, victim.address());
    for (int i = 0; i < kHostile; ++i) malice.strike(i);
    said = malice.said();
    over = true;
  });
  const double beset_us = client.p99_us([&] { return !over.load(); });
  strangers.join();
  EXPECT_GT(said, kHostile / 2) << "most were turned away";
  EXPECT_NO_THROW((void)client.agent_.connect(victim.address()));
  const uint64_t after = resident_bytes(victim.pid());
  const auto mib = [](uint64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  std::printf(
      "    p99 of a page: quiet %.0f us, beset %.0f us, %.1f times; resident: %.1f MiB before, %.1f MiB "
      "after\n",
      quiet_us, beset_us, beset_us / quiet_us, mib(before), mib(after));
  EXPECT_LT(after, before + kMostGrowth);
  EXPECT_EQ(victim.finish(), 0);
}

}  // namespace
}  // namespace towline::faults
