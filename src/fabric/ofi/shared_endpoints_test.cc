// Rails over tcp;ofi_rxm in one process, whose connections share endpoints.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>

#include "base/clock.h"
#include "base/error.h"
#include "fabric/ofi/ofi.h"
#include "fabric/ofi/ofi_end.h"

namespace towline::fabric::shared_endpoints_test {
namespace {

constexpr uint64_t kBytes = 32 << 20;  // more than sockets take
constexpr uint32_t kRecord = 1024;

struct Rail {
  Rail() : domain(make_ofi_domain({"tcp;ofi_rxm", "", "127.0.0.1"})), memory(kBytes) {
    key = domain->register_memory({memory.data(), memory.size(), true, true});
    records.resize(128 * kRecord);
    records_key = domain->register_memory({records.data(), records.size()});
  }
  ~Rail() {
    for (const uint32_t number : open) domain->release(number);
    domain->deregister_memory(key);
    domain->deregister_memory(records_key);
  }

  std::vector<uint8_t> begin(uint32_t number, ConnectionEnd end, uint32_t receives = 4) {
    auto mine = domain->open(number, end);
    open.push_back(number);
    for (uint32_t i = 0; i < receives; ++i) {
      const uint64_t at = reinterpret_cast<uint64_t>(records.data()) + (8 * number + i) * kRecord;
      const ReceiveRequest receive{i, at, records_key.local_key, kRecord};
      EXPECT_EQ(domain->post_receives(number, &receive, 1), 1u);
    }
    return mine;
  }
  void end(uint32_t number) {
    domain->stop(number);
    for (int i = 0; i < 100; ++i) turn();
    domain->release(number);
    std::erase(open, number);
  }
  void turn() {
    Completion got[16];
    const std::size_t count = domain->poll(got, std::size(got));
    for (std::size_t i = 0; i < count; ++i) {
      if (got[i].kind == CompletionKind::kConnectionDown) ++downs[got[i].connection];
      if (got[i].kind == CompletionKind::kReceive) ++received[got[i].connection];
      if (got[i].kind == CompletionKind::kRequest)
        ++(got[i].status == Status::kOk ? done : failed)[got[i].connection];
    }
  }
  std::size_t write(uint32_t number, Rail& to, uint64_t bytes) {
    const WorkRequest request{0,
                              reinterpret_cast<uint64_t>(memory.data()),
                              to.key.base,
                              key.local_key,
                              to.key.remote_key,
                              0,
                              static_cast<uint32_t>(bytes),
                              RequestKind::kWrite,
                              true};
    return domain->post(number, &request, 1);
  }
  std::size_t send(uint32_t number) {
    const WorkRequest request{
        0, reinterpret_cast<uint64_t>(memory.data()), 0, key.local_key, 0, 0, 64, RequestKind::kSend, true};
    return domain->post(number, &request, 1);
  }

  std::unique_ptr<Domain> domain;
  std::vector<uint8_t> memory;
  std::vector<uint8_t> records;
  Registration key;
  Registration records_key;
  std::vector<uint32_t> open;
  std::map<uint32_t, int> done, failed, downs, received;  // by connection
};

void connect(Rail& from, uint32_t initiator, Rail& to, uint32_t responder) {
  const auto here = from.begin(initiator, ConnectionEnd::kInitiator);
  const auto there = to.begin(responder, ConnectionEnd::kResponder);
  to.domain->connect(responder, here);
  from.domain->connect(initiator, there);
}

bool until(std::initializer_list<Rail*> rails, const std::function<bool()>& finished) {
  const uint64_t end_ns = monotonic_now_ns() + 20 * kSecondNs;
  while (!finished()) {
    for (Rail* const rail : rails) rail->turn();
    if (monotonic_now_ns() > end_ns) return false;
  }
  return true;
}

bool post_until(std::initializer_list<Rail*> rails, const std::function<std::size_t()>& post) {
  return until(rails, [&] { return post() == 1; });
}

TEST(SharedEndpoints, APeerThatDoesNotPollHoldsUpNobodyAndItsConnectionIsStoppedAlone) {
  Rail mine, stuck, other;
  connect(mine, 0, stuck, 9);
  connect(mine, 1, other, 9);
  // Connected, then the peer stands still with requests under way.
  ASSERT_TRUE(post_until({&mine, &stuck}, [&] { return mine.write(0, stuck, 64); }));
  ASSERT_TRUE(until({&mine, &stuck}, [&] { return mine.done[0] == 1; }));
  std::fill(mine.memory.begin(), mine.memory.end(), uint8_t{7});
  ASSERT_EQ(mine.write(0, stuck, kBytes), 1u);
  ASSERT_TRUE(post_until({&mine, &other}, [&] { return mine.write(1, other, kBytes); }));
  ASSERT_TRUE(until({&mine, &other}, [&] { return mine.done[1] == 1; }));
  EXPECT_EQ(mine.done[0], 1);

  mine.end(0);
  EXPECT_EQ(mine.failed[0], 1);
  std::fill(mine.memory.begin(), mine.memory.end(), uint8_t{9});
  // The peer goes on, and has at most what had left.
  stuck.end(9);
  EXPECT_EQ(std::count(stuck.memory.begin(), stuck.memory.end(), uint8_t{9}), 0);
  EXPECT_LT(std::count(stuck.memory.begin(), stuck.memory.end(), uint8_t{7}), static_cast<long>(kBytes));
  ASSERT_EQ(mine.write(1, other, kBytes), 1u);
  ASSERT_TRUE(until({&mine, &stuck, &other}, [&] { return mine.done[1] == 2; }));
  EXPECT_EQ(mine.downs[1] + mine.failed[1] + other.downs[9], 0);

  // The pair of endpoints is free for the next connection.
  connect(mine, 0, stuck, 9);
  ASSERT_TRUE(post_until({&mine, &stuck}, [&] { return mine.write(0, stuck, kBytes); }));
  ASSERT_TRUE(until({&mine, &stuck}, [&] { return mine.done[0] == 2; }));
  EXPECT_EQ(std::count(stuck.memory.begin(), stuck.memory.end(), uint8_t{9}), static_cast<long>(kBytes));
}

// Whether rxm has read the end of its connection by then, or learns of it from the request.
class SharedEndpointsStopped : public ::testing::TestWithParam<bool> {};

TEST_P(SharedEndpointsStopped, NothingIsPlacedOnceTheResponderHasStopped) {
  Rail mine, theirs;
  connect(mine, 0, theirs, 9);
  ASSERT_TRUE(post_until({&mine, &theirs}, [&] { return mine.write(0, theirs, 64); }));
  ASSERT_TRUE(until({&mine, &theirs}, [&] { return mine.done[0] == 1; }));
  theirs.end(9);
  // It looks at its connections every 10 ms.
  const uint64_t seen_ns = monotonic_now_ns() + (GetParam() ? 100 * kMillisecondNs : 0);
  while (monotonic_now_ns() < seen_ns) mine.turn();
  mine.memory[0] = 5;
  // rxm would connect again, and the other end would take it.
  ASSERT_TRUE(until({&mine, &theirs}, [&] {
    mine.write(0, theirs, 64);
    return mine.downs[0] + mine.failed[0] != 0;
  }));
  for (int i = 0; i < 1000; ++i) {
    mine.turn();
    theirs.turn();
  }
  EXPECT_EQ(theirs.memory[0], 0);
  EXPECT_EQ(mine.done[0], 1);
}

INSTANTIATE_TEST_SUITE_P(Rxm, SharedEndpointsStopped, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "HasReadTheEnd" : "HasNotReadTheEnd"; });

TEST(SharedEndpoints, RecordsReachTheirConnectionByItsTokenOnly) {
  Rail mine, other, theirs;
  connect(mine, 0, theirs, 8);
  connect(other, 0, theirs, 9);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(post_until({&mine, &theirs}, [&] { return mine.send(0); }));
  ASSERT_TRUE(post_until({&other, &theirs}, [&] { return other.send(0); }));
  ASSERT_TRUE(
      until({&mine, &other, &theirs}, [&] { return theirs.received[8] == 3 && theirs.received[9] == 1; }));

  // One that guesses a token: its records reach nobody.
  Rail liar;
  auto end = *decode_ofi_end(theirs.begin(7, ConnectionEnd::kResponder));
  theirs.domain->connect(7, liar.begin(0, ConnectionEnd::kInitiator));
  end.token = (end.token & ~uint64_t{0xffff}) | 8;
  liar.domain->connect(0, encode(end));
  ASSERT_TRUE(post_until({&liar, &theirs}, [&] { return liar.send(0); }));
  ASSERT_TRUE(until({&liar, &theirs}, [&] { return liar.done[0] == 1; }));
  ASSERT_TRUE(post_until({&other, &theirs}, [&] { return other.send(0); }));
  ASSERT_TRUE(until({&other, &liar, &theirs}, [&] { return theirs.received[9] == 2; }));
  EXPECT_EQ(theirs.received[8], 3);
  EXPECT_EQ(theirs.received[7], 0);
  EXPECT_EQ(theirs.downs[8], 0);

  // More than the peer has posted receives for.
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(post_until({&mine, &theirs}, [&] { return mine.send(0); }));
  ASSERT_TRUE(until({&mine, &theirs}, [&] { return theirs.downs[8] == 1; }));
  EXPECT_EQ(theirs.received[8], 4);
  EXPECT_EQ(theirs.downs[9] + theirs.downs[7], 0);
}

TEST(SharedEndpoints, ManyStrangersRecordsLeaveReceivesForOthers) {
  Rail mine, liar, theirs;
  connect(mine, 0, theirs, 8);
  auto end = *decode_ofi_end(theirs.begin(7, ConnectionEnd::kResponder));
  theirs.domain->connect(7, liar.begin(0, ConnectionEnd::kInitiator));
  end.token ^= uint64_t{1} << 40;
  liar.domain->connect(0, encode(end));
  for (int i = 0; i < 2000; ++i) ASSERT_TRUE(post_until({&liar, &theirs}, [&] { return liar.send(0); }));
  ASSERT_TRUE(post_until({&mine, &theirs}, [&] { return mine.send(0); }));
  ASSERT_TRUE(until({&mine, &liar, &theirs}, [&] { return theirs.received[8] == 1; }));
  EXPECT_EQ(theirs.received[7], 0);
}

TEST(SharedEndpoints, WrongAndTakenEndsAreRefused) {
  Rail mine, theirs;
  connect(mine, 0, theirs, 9);
  const auto refusal = [&](uint32_t number, std::span<const uint8_t> end) {
    try {
      mine.domain->connect(number, end);
    } catch (const core::Error& error) {
      return error.code();
    }
    return Status::kOk;
  };
  mine.begin(1, ConnectionEnd::kInitiator);
  const auto good = theirs.begin(8, ConnectionEnd::kResponder);
  EXPECT_EQ(refusal(1, good), Status::kUnreachable);  // connection 0 has it
  EXPECT_EQ(refusal(1, {}), Status::kProtocol);
  for (std::size_t bytes = 1; bytes < good.size(); ++bytes)
    EXPECT_EQ(refusal(1, std::span(good).first(bytes)), Status::kProtocol) << bytes;
  auto longer = *decode_ofi_end(good);
  longer.name.push_back(0);
  EXPECT_EQ(refusal(1, encode(longer)), Status::kProtocol);
  mine.end(0);
  EXPECT_EQ(refusal(1, good), Status::kOk);
}

}  // namespace
}  // namespace towline::fabric::shared_endpoints_test
