// Strangers and damaged neighbours can't harm connections between hosts, nor memory that ranks
// share.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>

#include <atomic>
#include <filesystem>
#include <random>

#include "base/os/memfd.h"
#include "base/os/stream.h"
#include "collectives/mesh_frames.h"
#include "collectives/shm_group.h"
#include "collectives/tcp_mesh.h"
#include "collectives/test_support.h"

namespace towline::collectives {
namespace {

Deadline soon() { return Deadline::after(monotonic_now_ns(), 60 * kSecondNs); }

// One rank's mesh and the thread that serves it.
struct Served {
  Served(int rank, int size, uint64_t hello_ns = TcpMesh::kHelloNs)
      : mesh(rank, size, "127.0.0.1:0", breaker, hello_ns), thread([this] {
          while (!stop) {
            std::vector<pollfd> polled;
            mesh.poll_fds(polled);
            ::poll(polled.data(), polled.size(), 5);
            mesh.serve();
          }
        }) {}
  ~Served() {
    stop = true;
    thread.join();
  }
  Breaker breaker;
  TcpMesh mesh;
  std::atomic<bool> stop{false};
  std::thread thread;
};

bool is_closed(Stream& stream) {
  uint8_t byte = 0;
  return stream.read_all({&byte, 1}, soon()) == Status::kPeerLost;
}

TEST(Mesh, ASecondHelloOfARankIsRefusedAndTheFirstGoesOn) {
  Served first(0, 2);
  Served second(1, 2);
  std::vector<rendezvous::RankInfo> infos(2);
  infos[0].endpoints = first.mesh.endpoints("");
  infos[1].endpoints = second.mesh.endpoints("");
  const Id secret = Id::random();
  first.mesh.join(infos, secret, soon());
  second.mesh.join(infos, secret, soon());
  eventually([&] { return first.mesh.complete(); });
  Header header;
  header.op = TOWLINE_COLLECTIVE_BARRIER;
  const auto swap = [&](const std::string& what) {
    std::thread other(
        [&] { EXPECT_EQ(second.mesh.exchange(header, 0, {}, 0, {}, soon()), Status::kOk) << what; });
    EXPECT_EQ(first.mesh.exchange(header, 1, {}, 1, {}, soon()), Status::kOk)
        << what << ": " << first.breaker.breakage().text;
    other.join();
  };
  swap("before");
  for (const uint8_t kind : {0, 1, 7}) {  // control, pipe, none
    for (const uint32_t rank : {1u, 0u, 2u, ~0u}) {
      Stream stranger =
          Stream::dial(parse_endpoint(infos[0].endpoints.front()), soon(), Stream::Patience::kNone);
      const auto hello = encode(MeshHello{kind, rank, secret});
      ASSERT_EQ(stranger.write_all(hello, soon()), Status::kOk);
      EXPECT_TRUE(is_closed(stranger));
      swap(fmt::format("after a hello of kind {} as rank {}", kind, rank));
    }
  }
}

TEST(Mesh, WhoDoesNotSayWhoItIsIsDroppedInTime) {
  Served served(0, 2, 100 * kMillisecondNs);
  const auto endpoint = parse_endpoint(served.mesh.endpoints("").front());
  Stream silent = Stream::dial(endpoint, soon(), Stream::Patience::kNone);
  Stream half = Stream::dial(endpoint, soon(), Stream::Patience::kNone);
  const auto hello = encode(MeshHello{1, 1, Id::random()});
  ASSERT_EQ(half.write_all(std::span(hello).first(10), soon()), Status::kOk);
  Stream other = Stream::dial(endpoint, soon(), Stream::Patience::kNone);
  ASSERT_EQ(other.write_all(std::vector<uint8_t>(kMeshHelloBytes, 'x'), soon()), Status::kOk);
  EXPECT_TRUE(is_closed(silent));
  EXPECT_TRUE(is_closed(half));
  EXPECT_TRUE(is_closed(other));
}

std::size_t open_descriptors() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

TEST(Mesh, StrangersTakeAQuarterOfTheDescriptorsAndARankStillComes) {
  constexpr std::size_t kStrangers = 200;
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few{512, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  {
    Served first(0, 2, 600 * kSecondNs);
    Served second(1, 2);
    std::vector<rendezvous::RankInfo> infos(2);
    infos[0].endpoints = first.mesh.endpoints("");
    infos[1].endpoints = second.mesh.endpoints("");
    const auto endpoint = parse_endpoint(infos[0].endpoints.front());
    const std::size_t own = open_descriptors() + kStrangers;
    const auto hello = encode(MeshHello{0, 1, Id::random()});
    std::vector<Stream> strangers;
    for (std::size_t i = 0; i < kStrangers; ++i) {
      strangers.push_back(Stream::dial(endpoint, soon(), Stream::Patience::kNone));
      // One half is silent. The secret is not known yet, so a whole hello of the others may be a rank's.
      if (i % 2 == 0) {
        ASSERT_EQ(strangers.back().write_all(hello, soon()), Status::kOk);
      }
    }
    EXPECT_TRUE(is_closed(strangers[1]));
    EXPECT_TRUE(is_closed(strangers[101])) << "the silent ones go first";
    EXPECT_LE(open_descriptors(), own + 512 / 4);
    const Id secret = Id::random();
    first.mesh.join(infos, secret, soon());
    second.mesh.join(infos, secret, soon());
    eventually([&] { return first.mesh.complete(); });
  }
  setrlimit(RLIMIT_NOFILE, &before);
}

// Two ranks' views of one piece of memory, as threads would have it.
struct Pair {
  Pair() {
    settings.stage_bytes = 4096;
    settings.channel_bytes = 8192;
    const uint64_t bytes = ShmGroup::bytes(2, settings);
    const UniqueFd file = create_memfd("towline-test", bytes);
    words = Mapping::map_shared(file.get(), bytes, MapAccess::kReadWrite);
    for (int index = 0; index < 2; ++index)
      groups[index] =
          std::make_unique<ShmGroup>(Mapping::map_shared(file.get(), bytes, MapAccess::kReadWrite), index,
                                     std::vector<int>{0, 1}, settings, breakers[index]);
  }
  // Damages the words that hold a value; how many there were.
  int replace(uint64_t value, uint64_t by, int skip = 0) {
    int found = 0;
    auto* const begin = reinterpret_cast<uint64_t*>(words.address());
    for (uint64_t i = 0; i < words.bytes() / sizeof *begin; ++i)
      if (begin[i] == value && found++ >= skip) begin[i] = by;
    return found;
  }
  ShmSettings settings;
  Breaker breakers[2];
  Mapping words;
  std::unique_ptr<ShmGroup> groups[2];
};

TEST(SharedMemory, ARingThatSaysItHoldsMoreThanItCanIsNotRead) {
  Pair pair;
  const std::vector<uint8_t> data(4321, 1);
  std::vector<uint8_t> taken(100'000, 7);
  ASSERT_EQ(pair.groups[0]->channel_write(1, data.data(), data.size()), data.size());
  ASSERT_EQ(pair.replace(4321, uint64_t{1} << 40), 1);
  EXPECT_EQ(pair.groups[1]->channel_read(0, taken.data(), taken.size()), 0u);
  EXPECT_EQ(pair.breakers[1].status(), Status::kProtocol);
  EXPECT_NE(pair.breakers[1].breakage().text.find("the ring from rank 0 to rank 1 is damaged"),
            std::string::npos);
}

TEST(SharedMemory, ARingThatSaysItIsEmptierThanEmptyIsNotWritten) {
  Pair pair;
  const std::vector<uint8_t> data(4321, 1);
  std::vector<uint8_t> taken(4321);
  ASSERT_EQ(pair.groups[0]->channel_write(1, data.data(), data.size()), data.size());
  ASSERT_EQ(pair.groups[1]->channel_read(0, taken.data(), taken.size()), data.size());
  ASSERT_EQ(pair.replace(4321, uint64_t{1} << 40, 1), 2);  // how much was read
  const std::vector<uint8_t> much(100'000, 1);
  EXPECT_EQ(pair.groups[0]->channel_write(1, much.data(), much.size()), 0u);
  EXPECT_EQ(pair.breakers[0].status(), Status::kProtocol);
}

TEST(SharedMemory, AWriterKnowsItselfHowMuchItHasWritten) {
  Pair pair;
  const std::vector<uint8_t> data(4321, 1);
  std::vector<uint8_t> taken(8192);
  ASSERT_EQ(pair.groups[0]->channel_write(1, data.data(), data.size()), data.size());
  ASSERT_EQ(pair.replace(4321, 5), 1);
  ASSERT_EQ(pair.groups[0]->channel_write(1, data.data(), 10), 10u);
  EXPECT_EQ(pair.groups[1]->channel_read(0, taken.data(), taken.size()), 4331u);
}

// Short ones also lie beside the ring's position, and are valid there until the next.
TEST(SharedMemory, WritesOfAllLengthsAreReadInOrder) {
  Pair pair;
  uint8_t next = 0;
  uint8_t expected = 0;
  uint64_t unread = 0;
  std::vector<uint8_t> data;
  std::vector<uint8_t> taken;
  std::mt19937 random(1);
  for (int round = 0; round < 20'000; ++round) {
    if (random() % 2 == 0) {
      data.resize(1 + random() % (random() % 8 == 0 ? 3000 : 60));
      for (uint8_t& byte : data) byte = next++;
      const size_t written = pair.groups[0]->channel_write(1, data.data(), data.size());
      ASSERT_EQ(written, std::min(data.size(), 8192 - unread));
      next = static_cast<uint8_t>(next - (data.size() - written));
      unread += written;
    } else {
      taken.assign(random() % 2 == 0 ? 280 : 1 + random() % 60, 0);
      const size_t read = pair.groups[1]->channel_read(0, taken.data(), taken.size());
      ASSERT_EQ(read, std::min(taken.size(), unread));
      for (size_t i = 0; i < read; ++i) ASSERT_EQ(taken[i], expected++) << round;
      unread -= read;
    }
  }
}

TEST(SharedMemory, APlaceOutsideOfWhatARankGaveIsNotRead) {
  Pair pair;
  constexpr int kOperations = 37;
  uint8_t data[2][100] = {};
  const auto broadcast = [&](int index, uint64_t number) {
    towline_collective_t call =
        call_of(TOWLINE_COLLECTIVE_BROADCAST, TOWLINE_UINT8, 100, data[index], data[index]);
    Call taken;
    take_apart(call, index, 2, number, soon(), taken);
    return pair.groups[index]->broadcast(taken);
  };
  for (int i = 0; i <= kOperations; ++i) ASSERT_EQ(broadcast(0, static_cast<uint64_t>(i)), Status::kOk);
  ASSERT_EQ(pair.replace(kOperations * 128, (uint64_t{1} << 63) + 5), 1) << "where the last one's data lies";
  for (int i = 0; i < kOperations; ++i) ASSERT_EQ(broadcast(1, static_cast<uint64_t>(i)), Status::kOk);
  EXPECT_EQ(broadcast(1, kOperations), Status::kProtocol);
}

}  // namespace
}  // namespace towline::collectives
