// libtcpx_p2p: what is promised of sends and receives, and one test for each way in which libraries of its kind failed.
#include <gtest/gtest.h>
#include <tcpx_p2p.hpp>

#include <atomic>
#include <cstring>
#include <deque>
#include <future>
#include <random>
#include <thread>
#include <vector>

namespace {

using namespace std::chrono_literals;
using tcpx::Connection;
using tcpx::Session;
using tcpx::Transfer;

constexpr auto kLong = 60s;

tcpx_session_options_t options() {
  tcpx_session_options_t result = {};
  result.listen = "127.0.0.1:0";
  result.plugins = TOWLINE_TCPX_PLUGIN;
  result.source = "emulated";
  return result;
}

std::vector<uint8_t> pattern(std::size_t bytes, uint32_t seed) {
  std::mt19937_64 random(seed);
  std::vector<uint8_t> data(bytes);
  for (uint8_t& byte : data) byte = static_cast<uint8_t>(random());
  return data;
}

class P2pTest : public ::testing::Test {
 protected:
  static constexpr std::size_t kBytes = 8u << 20;

  void SetUp() override {
    auto accepted =
        std::async(std::launch::async, [&] { return std::make_unique<Connection>(b->accept(kLong)); });
    to_b = std::make_unique<Connection>(a->connect(b->address(), kLong));
    to_a = accepted.get();
    mine = a->register_memory(from.data(), from.size());
    theirs = b->register_memory(to.data(), to.size());
  }
  static void expect(const Transfer& transfer, int32_t status, uint64_t bytes) {
    EXPECT_EQ(transfer.wait(kLong), status) << tcpx_status_text(transfer.outcome());
    EXPECT_EQ(transfer.bytes(), bytes);
  }

  std::vector<uint8_t> from = pattern(kBytes, 1);
  std::vector<uint8_t> to = std::vector<uint8_t>(kBytes);
  std::unique_ptr<Session> a = std::make_unique<Session>(options());
  std::unique_ptr<Session> b = std::make_unique<Session>(options());
  std::unique_ptr<Connection> to_b;
  std::unique_ptr<Connection> to_a;
  uint64_t mine = 0;
  uint64_t theirs = 0;
};

TEST_F(P2pTest, BytesGoFromASendToItsReceiveWhicheverIsPostedFirst) {
  const Transfer receive = to_a->receive(theirs, 0, kBytes, 7);
  const Transfer send = to_b->send(mine, 0, kBytes, 7);
  expect(send, TOWLINE_OK, kBytes);
  expect(receive, TOWLINE_OK, kBytes);
  EXPECT_EQ(to, from);
  std::fill(to.begin(), to.end(), uint8_t{0});
  const Transfer early = to_b->send(mine, 0, 1000, 8);
  EXPECT_FALSE(early.is_complete());
  const Transfer late = to_a->receive(theirs, 5, 1000, 8);
  expect(early, TOWLINE_OK, 1000);
  expect(late, TOWLINE_OK, 1000);
  EXPECT_EQ(std::memcmp(to.data() + 5, from.data(), 1000), 0);
}

// There: two transfers of one connection had to end in the order of their posts, and met by base tags that were all 0.
TEST_F(P2pTest, TransfersOfDifferentTagsDontWaitForOneAnother) {
  const Transfer blocked = to_b->send(mine, 0, 1000, 1);
  const Transfer other = to_b->send(mine, 1000, 1000, 2);
  const Transfer receive = to_a->receive(theirs, 0, 1000, 2);
  expect(other, TOWLINE_OK, 1000);
  expect(receive, TOWLINE_OK, 1000);
  EXPECT_EQ(std::memcmp(to.data(), from.data() + 1000, 1000), 0);
  EXPECT_FALSE(blocked.is_complete());
}

TEST_F(P2pTest, OfOneTagTheFirstMeetsTheFirst) {
  std::deque<Transfer> all;
  for (uint64_t i = 0; i < 16; ++i) all.push_back(to_b->send(mine, i * 100, 100, 5));
  for (uint64_t i = 0; i < 16; ++i) all.push_back(to_a->receive(theirs, i * 100, 100, 5));
  for (const Transfer& each : all) expect(each, TOWLINE_OK, 100);
  EXPECT_EQ(std::memcmp(to.data(), from.data(), 1600), 0);
}

// There: more than twelve queued at once stalled, since a queued answer lost its number.
TEST_F(P2pTest, AThousandUnderWayAtOnceAllEnd) {
  constexpr uint64_t kOne = 4096;
  constexpr uint64_t kCount = 1000;
  std::deque<Transfer> all;
  for (uint64_t i = 0; i < kCount; ++i)
    all.push_back(to_a->receive(theirs, (kCount - 1 - i) * kOne, kOne, i));
  for (uint64_t i = 0; i < kCount; ++i) all.push_back(to_b->send(mine, i * kOne, kOne, i));
  for (const Transfer& each : all) expect(each, TOWLINE_OK, kOne);
  for (uint64_t i = 0; i < kCount; ++i)
    EXPECT_EQ(std::memcmp(to.data() + (kCount - 1 - i) * kOne, from.data() + i * kOne, kOne), 0) << i;
}

// There: the window's counters of the whole connection were set back when one transfer ended.
TEST_F(P2pTest, OneThatEndsLeavesTheOthersAlone) {
  const Transfer open_send = to_b->send(mine, 0, 100, 99);
  const Transfer open_receive = to_a->receive(theirs, 0, 100, 98);
  for (int i = 0; i < 50; ++i) {
    const Transfer receive = to_a->receive(theirs, 4096, 4096, 1);
    const Transfer send = to_b->send(mine, 4096, 4096, 1);
    expect(send, TOWLINE_OK, 4096);
    expect(receive, TOWLINE_OK, 4096);
  }
  EXPECT_FALSE(open_send.is_complete());
  EXPECT_FALSE(open_receive.is_complete());
  const Transfer last = to_b->send(mine, 0, 100, 98);
  expect(open_receive, TOWLINE_OK, 100);
}

// There: memory was found by its exact beginning only, and an unknown number was said to be done.
TEST_F(P2pTest, AnyPartOfAMemoryIsFoundAndNothingElse) {
  const Transfer receive = to_a->receive(theirs, kBytes - 3, 3, 1);
  const Transfer send = to_b->send(mine, 12345, 3, 1);
  expect(receive, TOWLINE_OK, 3);
  EXPECT_EQ(std::memcmp(to.data() + kBytes - 3, from.data() + 12345, 3), 0);
  const auto refused = [&](uint64_t memory, uint64_t offset, uint64_t bytes) {
    try {
      (void)to_b->send(memory, offset, bytes, 1);
      return 0;
    } catch (const tcpx::Error& error) {
      return error.status();
    }
  };
  EXPECT_EQ(refused(mine, kBytes - 3, 4), TOWLINE_OUT_OF_RANGE);
  EXPECT_EQ(refused(mine, UINT64_MAX, 2), TOWLINE_OUT_OF_RANGE);
  EXPECT_EQ(refused(mine + 77, 0, 4), TOWLINE_NOT_FOUND);
}

// There: the kernel went wrong at tail bytes and at offsets of its staging memory.
TEST_F(P2pTest, EveryLengthAndAlignmentArrivesAndNoByteBeside) {
  std::mt19937 random(3);
  uint64_t tag = 0;
  for (uint64_t bytes : {1, 2, 3, 15, 17, 255, 4095, 4097, 16383, 16385, 65537, 1048577}) {
    const uint64_t at = random() % 4096;
    std::fill(to.begin(), to.end(), uint8_t{0xA5});
    const Transfer receive = to_a->receive(theirs, 4096 + at, bytes, ++tag);
    const Transfer send = to_b->send(mine, at * 3, bytes, tag);
    expect(receive, TOWLINE_OK, bytes);
    EXPECT_EQ(std::memcmp(to.data() + 4096 + at, from.data() + at * 3, bytes), 0) << bytes;
    EXPECT_EQ(to[4096 + at - 1], 0xA5);
    EXPECT_EQ(to[4096 + at + bytes], 0xA5);
  }
}

TEST_F(P2pTest, AShorterSendEndsItsReceiveAndALongerOneMovesNothing) {
  const Transfer receive = to_a->receive(theirs, 0, 1000, 1);
  const Transfer send = to_b->send(mine, 0, 10, 1);
  expect(receive, TOWLINE_OK, 10);
  const std::vector<uint8_t> before = to;
  const Transfer little = to_a->receive(theirs, 0, 10, 2);
  const Transfer large = to_b->send(mine, 0, 11, 2);
  expect(little, TOWLINE_MISMATCH, 0);
  expect(large, TOWLINE_MISMATCH, 0);
  EXPECT_EQ(to, before);
  const Transfer nothing = to_a->receive(theirs, 0, 10, 3);
  const Transfer empty = to_b->send(mine, 0, 0, 3);
  expect(nothing, TOWLINE_OK, 0);
  expect(empty, TOWLINE_OK, 0);
}

TEST_F(P2pTest, WhatIsReleasedEarlyIsCancelledAndItsMemoryIsFree) {
  Transfer send = to_b->send(mine, 0, 100, 1);
  EXPECT_EQ(send.release(kLong), TOWLINE_OK);
  Transfer receive = to_a->receive(theirs, 0, 100, 1);
  EXPECT_EQ(receive.release(kLong), TOWLINE_OK);
  a->deregister_memory(mine);
  b->deregister_memory(theirs);
}

TEST_F(P2pTest, MemoryThatATransferUsesIsKept) {
  const Transfer receive = to_a->receive(theirs, 0, 100, 1);
  try {
    b->deregister_memory(theirs);
    FAIL() << "it was deregistered";
  } catch (const tcpx::Error& error) {
    EXPECT_EQ(error.status(), TOWLINE_BUSY);
  }
}

TEST_F(P2pTest, AnEndedSideEndsWhatIsUnderWay) {
  const Transfer receive = to_a->receive(theirs, 0, 100, 1);
  const Transfer send = to_b->send(mine, 0, 100, 2);
  to_b.reset();
  expect(receive, TOWLINE_CLOSED, 0);
  expect(send, TOWLINE_CLOSED, 0);
  EXPECT_THROW((void)to_a->receive(theirs, 0, 100, 1), tcpx::Error);
}

TEST_F(P2pTest, HandlesMayOutliveTheirSession) {
  const Transfer receive = to_a->receive(theirs, 0, 100, 1);
  b.reset();
  EXPECT_EQ(receive.outcome(), TOWLINE_CLOSED);
}

// There: one thread slept with the lock of all others in its hand.
TEST_F(P2pTest, ThreadsDontHoldOneAnotherUp) {
  const Transfer never = to_a->receive(theirs, 0, 100, 1000);
  std::atomic<bool> done{false};
  std::thread waits([&] {
    while (!done) (void)never.wait(10s);
  });
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 3; ++t)
    threads.emplace_back([&, t] {
      for (uint64_t i = 0; i < 30; ++i) {
        const Transfer receive = to_a->receive(theirs, t * 65536, 65536, t);
        const Transfer send = to_b->send(mine, t * 65536, 65536, t);
        expect(receive, TOWLINE_OK, 65536);
      }
    });
  for (std::thread& thread : threads) thread.join();
  done = true;
  const Transfer last = to_b->send(mine, 0, 100, 1000);
  expect(never, TOWLINE_OK, 100);
  waits.join();
  EXPECT_EQ(std::memcmp(to.data() + 100, from.data() + 100, 3 * 65536 - 100), 0);
}

TEST(P2p, PortsKeepTheirKnownVariableAndAreTriedInTurn) {
  ASSERT_EQ(setenv("UCCL_TCPX_OOB_PORT", "29417", 1), 0);
  tcpx_session_options_t with = options();
  with.listen = "127.0.0.1";
  const Session one(with);
  const Session two(with);
  EXPECT_NE(one.address(), two.address());
  for (const Session* session : {&one, &two}) {
    const std::string address = session->address();
    const int port = std::stoi(address.substr(address.rfind(':') + 1));
    EXPECT_GE(port, 29417);
    EXPECT_LE(port, 29417 + 16);
  }
  ASSERT_EQ(setenv("UCCL_TCPX_OOB_PORT", "many", 1), 0);
  try {
    const Session wrong(with);
    FAIL() << "it was made";
  } catch (const tcpx::Error& error) {
    EXPECT_NE(std::string(error.what()).find("UCCL_TCPX_OOB_PORT"), std::string::npos) << error.what();
  }
  ASSERT_EQ(unsetenv("UCCL_TCPX_OOB_PORT"), 0);
}

// Programs of GPUDirect-TCPX set this variable. An option comes before it.
TEST(P2p, TheNicKeepsItsKnownVariable) {
  ASSERT_EQ(setenv("NCCL_GPUDIRECTTCPX_SOCKET_IFNAME", "lo", 1), 0);
  ASSERT_EQ(setenv("NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX", "/nowhere/daemon", 1), 0);
  ASSERT_EQ(setenv("TOWLINE_TUNING_TCPX_DAEMON_GPU", "0000:04:00.0", 1), 0);
  tcpx_session_options_t with = options();
  with.source = "devmem-legacy,emulated";
  const std::string described = Session(with).describe();
  EXPECT_NE(described.find("\"nic\":\"lo\""), std::string::npos) << described;
  EXPECT_NE(described.find("/nowhere/daemon"), std::string::npos) << described;
  with.interface = "none0";
  EXPECT_EQ(Session(with).describe().find("\"nic\":\"lo\""), std::string::npos);
  ASSERT_EQ(unsetenv("NCCL_GPUDIRECTTCPX_SOCKET_IFNAME"), 0);
  ASSERT_EQ(unsetenv("NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX"), 0);
  ASSERT_EQ(unsetenv("TOWLINE_TUNING_TCPX_DAEMON_GPU"), 0);
}

TEST(P2p, NobodyThere) {
  const Session alone(options());
  EXPECT_THROW((void)alone.accept(50ms), tcpx::Error);
  const Session silent(options());
  try {
    (void)alone.connect(silent.address(), 2s);  // nobody accepts
    FAIL() << "it was connected";
  } catch (const tcpx::Error& error) {
    EXPECT_EQ(error.status(), TOWLINE_TIMED_OUT) << error.what();
  }
  EXPECT_NE(alone.describe().find("\"source\":\"emulated\""), std::string::npos);
}

TEST(P2p, WhatHappensIsLogged) {
  std::vector<std::string> lines;
  tcpx_session_options_t with = options();
  with.log_argument = &lines;
  with.log = [](void* argument, tcpx_log_level_t, const char* message) {
    static_cast<std::vector<std::string>*>(argument)->push_back(message);
  };
  { const Session session(with); }
  ASSERT_FALSE(lines.empty());
  EXPECT_NE(lines[0].find("listening at 127.0.0.1:"), std::string::npos) << lines[0];
}

}  // namespace
