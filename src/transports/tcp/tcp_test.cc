#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <numeric>

#include "base/crc32c.h"
#include "base/error.h"
#include "base/socket_address.h"
#include "transports/tcp/backend.h"
#include "transports/tcp/plugin.h"
#include "transports/tcp/test_support.h"
#include "transports/tcp/wire.h"

namespace towline::tcp {
namespace {

using towline::testing::FakeAgent;
using towline::testing::FakeLink;
using towline::testing::FakePlan;
using towline::testing::turn_until;

constexpr std::size_t kBytes = 4u << 20;

Deadline soon() { return Deadline::after(monotonic_now_ns(), 60 * kSecondNs); }

std::vector<uint8_t> address_of(const std::vector<std::string>& endpoints) { return pack_address(endpoints); }

std::vector<std::string> endpoints_of(FakeAgent& agent) {
  std::vector<std::string> endpoints;
  EXPECT_EQ(unpack_address(agent.address(), endpoints), nullptr);
  return endpoints;
}

// Two agents in this process; `a` connects.
class TcpTest : public ::testing::Test {
 protected:
  void open(FakeAgent::Settings settings = {{"tcp.listen", "127.0.0.1:0"}}, uint32_t workers = 1) {
    a = std::make_unique<FakeAgent>(towline_tcp_plugin(), "a", settings, workers);
    b = std::make_unique<FakeAgent>(towline_tcp_plugin(), "b", settings, workers);
    ASSERT_EQ(a->status, Status::kOk) << a->failure;
    ASSERT_EQ(b->status, Status::kOk) << b->failure;
  }
  bool turn(const std::function<bool()>& done) { return turn_until({a.get(), b.get()}, done); }

  FakeLink& connected(uint32_t worker = 0) {
    FakeLink& made = a->connect(*b, 20 * kSecondNs, worker);
    EXPECT_TRUE(turn([&] { return made.ups + made.downs != 0; }));
    EXPECT_EQ(made.ups, 1u) << made.text;
    return made;
  }
  void make_memory(std::size_t bytes = kBytes) {
    local.resize(bytes);
    remote.assign(bytes, 0);
    std::iota(local.begin(), local.end(), uint8_t{1});
    for (std::size_t i = 0; i < bytes; i += 251) local[i] = static_cast<uint8_t>(i >> 8);
    key = b->add(remote.data(), remote.size());
  }
  // Every byte, in blocks.
  const towline_plan* whole(FakePlan& plan, uint32_t block = 65536) {
    for (std::size_t at = 0; at < local.size(); at += block) {
      plan.add(local.data() + at, remote.data() + at,
               static_cast<uint32_t>(std::min<std::size_t>(block, local.size() - at)));
    }
    return plan.plan();
  }
  void move_and_check(FakeLink& link) {
    FakePlan plan(key);
    towline_prepared* write = a->prepare(link, whole(plan), TOWLINE_WRITE);
    ASSERT_EQ(a->submit(write, 1, plan.bytes(), "after the data"), Status::kInProgress);
    ASSERT_TRUE(
        turn([&] { return a->ended(1) && b->accepted_link() && !b->accepted_link()->messages.empty(); }));
    EXPECT_EQ(a->outcome(1), Status::kOk);
    EXPECT_EQ(remote, local);
    EXPECT_EQ(b->accepted_link()->messages.back(), "after the data");
    std::reverse(remote.begin(), remote.end());
    towline_prepared* read = a->prepare(link, plan.plan(), TOWLINE_READ);
    ASSERT_EQ(a->submit(read, 2, plan.bytes()), Status::kInProgress);
    ASSERT_TRUE(turn([&] { return a->ended(2); }));
    EXPECT_EQ(a->outcome(2), Status::kOk);
    EXPECT_EQ(remote, local);
    a->results.clear();
  }
  std::string describe(FakeAgent& agent, const FakeLink& link) {
    char json[2048] = "";
    EXPECT_EQ(agent.connections->describe(link.connection, json, sizeof json), TOWLINE_OK);
    return json;
  }

  std::unique_ptr<FakeAgent> a;
  std::unique_ptr<FakeAgent> b;
  std::vector<uint8_t> local;
  std::vector<uint8_t> remote;
  uint64_t key = 0;
};

TEST_F(TcpTest, MovesBytesBothWaysOverIpv4) {
  open();
  FakeLink& link = connected();
  make_memory();
  move_and_check(link);
  EXPECT_EQ(b->accepted_link()->peer_name, "a");
  EXPECT_EQ(b->pins_held(), 0u);
}

TEST_F(TcpTest, MovesBytesOverIpv6) {
  a = std::make_unique<FakeAgent>(towline_tcp_plugin(), "a", FakeAgent::Settings{{"tcp.listen", "[::1]:0"}});
  if (a->status != Status::kOk) GTEST_SKIP() << "no IPv6 here: " << a->failure;
  open({{"tcp.listen", "[::1]:0"}});
  FakeLink& link = connected();
  EXPECT_NE(describe(*a, link).find("[::1]:"), std::string::npos);
  make_memory();
  move_and_check(link);
}

TEST_F(TcpTest, PrefersAUnixSocketOnTheSameHost) {
  const std::string folder = "/tmp/towline-tcp-test-" + std::to_string(getpid());
  std::filesystem::create_directory(folder);
  open({{"tcp.listen", "127.0.0.1:0"}, {"tcp.unix_dir", folder}});
  FakeLink& link = connected();
  EXPECT_NE(describe(*a, link).find("unix:" + folder), std::string::npos) << describe(*a, link);
  make_memory();
  move_and_check(link);
  a.reset();
  b.reset();
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  std::filesystem::remove(folder);
}

TEST_F(TcpTest, FallsBackToTcpWhereTheUnixSocketCanNotBeReached) {
  open();
  std::vector<std::string> endpoints = endpoints_of(*b);
  endpoints.insert(endpoints.begin(), "unix:/no/such/folder/x.sock");
  FakeLink& link = a->connect(b->identity, address_of(endpoints));
  ASSERT_TRUE(turn([&] { return link.ups + link.downs != 0; }));
  EXPECT_EQ(link.ups, 1u) << link.text;
}

TEST_F(TcpTest, AddsSocketsOnceItCarriesBulkData) {
  open({{"tcp.listen", "127.0.0.1:0"}, {"tcp.sockets", "3"}});
  FakeLink& link = connected();
  EXPECT_NE(describe(*a, link).find("\"lanes\": 1"), std::string::npos) << describe(*a, link);
  make_memory();
  move_and_check(link);
  ASSERT_TRUE(turn([&] {
    return describe(*a, link).find("\"lanes\": 3") != std::string::npos &&
           describe(*b, *b->accepted_link()).find("\"lanes\": 3") != std::string::npos;
  }));
  move_and_check(link);
}

TEST_F(TcpTest, KeepsToOneSocketOverLoopbackUnlessAskedForMore) {
  open({{"tcp.listen", "127.0.0.1:0"}, {"tcp.bulk_bytes", "4KiB"}});
  FakeLink& link = connected();
  make_memory();
  for (int i = 0; i < 10; ++i) move_and_check(link);
  EXPECT_NE(describe(*a, link).find("\"lanes\": 1"), std::string::npos) << describe(*a, link);
}

TEST_F(TcpTest, ChecksumsPayloadWhenAsked) {
  open({{"tcp.listen", "127.0.0.1:0"}, {"tcp.checksum", "true"}});
  FakeLink& link = connected();
  make_memory();
  move_and_check(link);
  EXPECT_NE(describe(*a, link).find("\"checksum\": true"), std::string::npos);
}

TEST_F(TcpTest, BelongsToTheWorkerThatConnects) {
  open({{"tcp.listen", "127.0.0.1:0"}}, 3);
  FakeLink& link = connected(2);
  make_memory();
  move_and_check(link);
  EXPECT_EQ(b->accepted_link()->worker, 2u);
}

TEST_F(TcpTest, WorksThroughSleepsWithoutPolling) {
  open();
  FakeLink& link = connected();
  make_memory(1u << 20);
  FakePlan plan(key);
  towline_prepared* write = a->prepare(link, whole(plan), TOWLINE_WRITE);
  ASSERT_EQ(a->submit(write, 1, plan.bytes()), Status::kInProgress);
  const Deadline deadline = soon();
  while (!a->ended(1) && !deadline.passed(monotonic_now_ns())) {
    for (FakeAgent* agent : {a.get(), b.get()}) {
      agent->sleep(0, 100 * kMicrosecondNs);
      agent->data->progress(agent->backend, 0, agent->now_ns());
    }
  }
  ASSERT_TRUE(a->ended(1));
  EXPECT_EQ(remote, local);
}

TEST_F(TcpTest, LeavesAQuietConnectionToEpollAndTakesItUpAgain) {
  open();
  FakeLink& link = connected();
  for (FakeAgent* agent : {a.get(), b.get()}) {
    for (int i = 0; i < 1000; ++i) {
      agent->turn();
      agent->skipped_ns += kMillisecondNs;
    }
  }
  ASSERT_EQ(a->send(link, "hello"), Status::kOk);
  ASSERT_TRUE(turn([&] { return !b->accepted_link()->messages.empty(); }));
  EXPECT_EQ(b->accepted_link()->messages[0], "hello");
  ASSERT_EQ(b->send(*b->accepted_link(), "answer"), Status::kOk);
  ASSERT_TRUE(turn([&] { return !link.messages.empty(); }));
}

TEST_F(TcpTest, LeavesEpollWhileItIsPolledAndComesBackToSleep) {
  open();
  FakeLink& link = connected();
  const auto exchange = [&](int messages) {
    for (int i = 0; i < messages; ++i) {
      const std::size_t had = b->accepted_link()->messages.size();
      ASSERT_EQ(a->send(link, "hello"), Status::kOk);
      ASSERT_TRUE(turn([&] { return b->accepted_link()->messages.size() > had; }));
    }
  };
  exchange(1);
  ASSERT_TRUE(b->sleep(0, 0));
  EXPECT_EQ(b->resting(0), 0u);
  exchange(4);
  EXPECT_EQ(b->resting(0), 0u);  // who sleeps after every few messages goes on as it is
  exchange(200);
  EXPECT_EQ(b->resting(0), 1u);
  ASSERT_TRUE(b->sleep(0, 0));
  EXPECT_EQ(b->resting(0), 0u);
  const std::size_t had = b->accepted_link()->messages.size();
  ASSERT_EQ(a->send(link, "wakes"), Status::kOk);
  ASSERT_TRUE(b->sleep(0, 60 * kSecondNs));
  b->data->progress(b->backend, 0, b->now_ns());
  EXPECT_EQ(b->accepted_link()->messages.size(), had + 1);
}

TEST_F(TcpTest, ServesManyConnections) {
  open();
  std::vector<FakeLink*> made;
  for (int i = 0; i < 64; ++i) made.push_back(&a->connect(*b));
  ASSERT_TRUE(
      turn([&] { return std::all_of(made.begin(), made.end(), [](auto* link) { return link->ups == 1; }); }));
  for (FakeLink* link : made) ASSERT_EQ(a->send(*link, "x"), Status::kOk);
  ASSERT_TRUE(turn([&] {
    return std::all_of(b->links.begin(), b->links.end(),
                       [](const auto& link) { return link->messages.size() == 1; });
  }));
  EXPECT_EQ(b->links.size(), 64u);
}

// ---- the peer goes away

TEST_F(TcpTest, EndsEverythingInFlightWhenThePeerDisconnects) {
  open();
  FakeLink& link = connected();
  make_memory();
  FakePlan plan(key);
  towline_prepared* write = a->prepare(link, whole(plan), TOWLINE_WRITE);
  ASSERT_TRUE(turn([&] { return b->accepted_link() != nullptr; }));
  for (uint64_t cookie = 1; cookie <= 8; ++cookie)
    ASSERT_EQ(a->submit(write, cookie, plan.bytes()), Status::kInProgress);
  for (int i = 0; i < 3; ++i) {
    a->turn();
    b->turn();
  }
  b->disconnect(*b->accepted_link());
  ASSERT_TRUE(turn([&] { return a->completions == 8 && link.downs == 1; }));
  EXPECT_EQ(a->outcome(8), Status::kPeerLost);
  EXPECT_EQ(a->completed_twice, 0u);
  EXPECT_EQ(b->pins_held(), 0u);
  EXPECT_EQ(a->send(link, "x"), Status::kPeerLost);
  a->disconnect(link);
  EXPECT_EQ(a->completions, 8u);
  connected();  // a new one works
}

TEST_F(TcpTest, EndsEverythingInFlightWhenItIsDisconnected) {
  open();
  FakeLink& link = connected();
  make_memory();
  FakePlan plan(key);
  towline_prepared* read = a->prepare(link, whole(plan), TOWLINE_READ);
  ASSERT_EQ(a->submit(read, 1, plan.bytes()), Status::kInProgress);
  a->turn();
  b->turn();
  a->disconnect(link);
  EXPECT_TRUE(a->ended(1));
  EXPECT_EQ(a->results.at(1).fences & TOWLINE_PART_FENCED_LOCAL, unsigned{TOWLINE_PART_FENCED_LOCAL});
  ASSERT_TRUE(turn([&] { return b->links[0]->downs == 1; }));
  EXPECT_EQ(b->pins_held(), 0u);
}

TEST_F(TcpTest, SurvivesConnectionsCutAtRandomPlaces) {
  open({{"tcp.listen", "127.0.0.1:0"},
        {"faults", "seed=3,short=0.3,cut=0.002"},
        {"tcp.bulk_bytes", "64KiB"},
        {"tcp.sockets", "4"}});
  make_memory(1u << 20);
  uint64_t cookie = 0;
  uint64_t moved = 0;
  for (int round = 0; round < 30; ++round) {
    FakeLink& link = connected();
    FakePlan plan(key);
    const uint32_t op = round % 2 == 0 ? TOWLINE_WRITE : TOWLINE_READ;
    towline_prepared* prepared = a->prepare(link, whole(plan, 4096), op);
    while (link.downs == 0 && moved < 200) {
      ++cookie;
      if (a->submit(prepared, cookie, plan.bytes()) != Status::kInProgress) break;
      ASSERT_TRUE(turn([&] { return a->ended(cookie); }));
      if (a->outcome(cookie) != Status::kOk) break;
      ++moved;
      ASSERT_EQ(remote, local);
    }
    a->disconnect(link);
    ASSERT_TRUE(turn([&] { return b->links.back()->downs == 1; }));
    b->disconnect(*b->links.back());
    EXPECT_EQ(b->pins_held(), 0u);
  }
  EXPECT_EQ(a->completed_twice, 0u);
}

TEST_F(TcpTest, RefusesAccessThatTheOwnerDoesNotGrant) {
  open();
  FakeLink& link = connected();
  make_memory(65536);
  b->regions[0]->access = TOWLINE_ACCESS_READ;
  FakePlan plan(key);
  towline_prepared* write = a->prepare(link, whole(plan), TOWLINE_WRITE);
  ASSERT_EQ(a->submit(write, 1, plan.bytes()), Status::kInProgress);
  ASSERT_TRUE(turn([&] { return a->ended(1); }));
  EXPECT_EQ(a->outcome(1), Status::kPermissionDenied);
  EXPECT_EQ(link.downs, 0u);
  FakePlan stale(key + 5);
  towline_prepared* read = a->prepare(link, whole(stale), TOWLINE_READ);
  ASSERT_EQ(a->submit(read, 2, stale.bytes()), Status::kInProgress);
  ASSERT_TRUE(turn([&] { return a->ended(2); }));
  EXPECT_EQ(a->outcome(2), Status::kStale);
}

// ---- connecting to what is not there

TEST_F(TcpTest, SaysAtOnceThatNobodyListens) {
  open();
  std::string nobody;
  {
    const ListeningSocket socket(parse_endpoint("127.0.0.1:0"));
    nobody = socket.address().text();
  }
  FakeLink& link = a->connect(b->identity, address_of({nobody}));
  ASSERT_TRUE(turn([&] { return link.downs == 1; }));
  EXPECT_EQ(link.status, Status::kUnreachable);
  EXPECT_NE(link.text.find(nobody), std::string::npos) << link.text;
  EXPECT_NE(link.text.find("'b'"), std::string::npos) << link.text;
}

TEST_F(TcpTest, TriesEveryAddress) {
  open();
  std::string nobody;
  {
    const ListeningSocket socket(parse_endpoint("127.0.0.1:0"));
    nobody = socket.address().text();
  }
  FakeLink& link = a->connect(b->identity, address_of({nobody, endpoints_of(*b)[0]}));
  ASSERT_TRUE(turn([&] { return link.ups == 1; })) << link.text;
}

TEST_F(TcpTest, NoticesARestartedPeerAtOnce) {
  open();
  const towline_identity old = b->identity;
  const std::vector<uint8_t> address = b->address();
  b->identity.incarnation[0] ^= 1;
  FakeLink& link = a->connect(old, address);
  ASSERT_TRUE(turn([&] { return link.downs == 1; }));
  EXPECT_EQ(link.status, Status::kPeerRestarted) << link.text;
}

TEST_F(TcpTest, LooksForThePeerBehindAddressesThatLeadToSomebodyElse) {
  open();
  FakeAgent other(towline_tcp_plugin(), "other", {{"tcp.listen", "127.0.0.1:0"}});
  FakeLink& link = a->connect(b->identity, address_of({endpoints_of(other)[0], endpoints_of(*b)[0]}));
  ASSERT_TRUE(turn_until({a.get(), b.get(), &other}, [&] { return link.ups + link.downs != 0; }));
  EXPECT_EQ(link.ups, 1u) << link.text;
  EXPECT_TRUE(other.links.empty());
  FakeLink& nowhere = a->connect(b->identity, address_of({endpoints_of(other)[0]}));
  ASSERT_TRUE(turn_until({a.get(), b.get(), &other}, [&] { return nowhere.downs == 1; }));
  EXPECT_EQ(nowhere.status, Status::kPeerRestarted);
}

TEST_F(TcpTest, KeepsTheConnectDeadlineWhenNobodyReplies) {
  open();
  ListeningSocket silent(parse_endpoint("127.0.0.1:0"));
  FakeLink& link = a->connect(b->identity, address_of({silent.address().text()}), 5 * kSecondNs);
  for (int i = 0; i < 20; ++i) a->turn();
  EXPECT_EQ(link.downs, 0u);
  a->skipped_ns += 5 * kSecondNs;
  a->turn();
  EXPECT_EQ(link.downs, 1u);
  EXPECT_EQ(link.status, Status::kTimedOut);
  EXPECT_NE(link.text.find(silent.address().text()), std::string::npos) << link.text;
}

TEST_F(TcpTest, WakesFromSleepForItsConnectDeadline) {
  open();
  ListeningSocket silent(parse_endpoint("127.0.0.1:0"));
  FakeLink& link = a->connect(b->identity, address_of({silent.address().text()}), 5 * kMillisecondNs);
  const Deadline deadline = soon();
  while (link.downs == 0 && !deadline.passed(monotonic_now_ns())) {
    a->sleep(0, 20 * kSecondNs);
    a->data->progress(a->backend, 0, a->now_ns());
  }
  EXPECT_EQ(link.status, Status::kTimedOut);
}

TEST_F(TcpTest, GoesPastASilentAddressToTheNext) {
  open();
  ListeningSocket silent(parse_endpoint("127.0.0.1:0"));
  FakeLink& link = a->connect(b->identity, address_of({silent.address().text(), endpoints_of(*b)[0]}));
  for (int i = 0; i < 20; ++i) a->turn();
  a->skipped_ns += 2 * kSecondNs;
  ASSERT_TRUE(turn([&] { return link.ups + link.downs != 0; }));
  EXPECT_EQ(link.ups, 1u) << link.text;
}

TEST_F(TcpTest, PassesTheAcceptorsRefusalOn) {
  open();
  b->accept_answer = Status::kLimitExceeded;
  FakeLink& link = a->connect(*b);
  ASSERT_TRUE(turn([&] { return link.downs == 1; }));
  EXPECT_EQ(link.status, Status::kLimitExceeded);
  EXPECT_TRUE(b->links.empty());
}

TEST_F(TcpTest, CutsAServerThatIsNoAgent) {
  open();
  ListeningSocket mail(parse_endpoint("127.0.0.1:0"));
  FakeLink& link = a->connect(b->identity, address_of({mail.address().text()}));
  UniqueFd client;
  ASSERT_TRUE(turn([&] {
    int error = 0;
    if (!client.valid()) {
      client = mail.accept(nullptr, &error);
      if (client.valid()) {
        EXPECT_EQ(send(client.get(), "220 mail ready\r\n", 16, MSG_NOSIGNAL), 16);
      }
    }
    return link.downs == 1;
  }));
  EXPECT_EQ(link.status, Status::kProtocol);
}

TEST_F(TcpTest, CanBeDisconnectedWhileConnecting) {
  open();
  FakeLink& link = a->connect(*b);
  a->disconnect(link);
  for (int i = 0; i < 10; ++i) {
    a->turn();
    b->turn();
  }
  EXPECT_EQ(link.ups + link.downs, 0u);
}

TEST_F(TcpTest, RefusesAddressesItCanNotRead) {
  open();
  for (const std::vector<uint8_t>& bad : {std::vector<uint8_t>{}, {9}, {1, 5, 0, 'x'}, {1}, {1, 255, 255}}) {
    FakeLink& link = a->connect(b->identity, bad);
    EXPECT_EQ(link.status, Status::kProtocol);
    EXPECT_FALSE(a->failure.empty());
  }
  EXPECT_EQ(a->connect(b->identity, address_of({"host.example:7"})).status, Status::kUnreachable);
}

// ---- strangers at the door

class StrangerTest : public TcpTest {
 protected:
  void SetUp() override {
    open();
    const SocketAddress target = resolve(parse_endpoint(endpoints_of(*b)[0]), soon()).front();
    stranger = UniqueFd(socket(target.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::connect(stranger.get(), target.get(), target.size()), 0);
  }
  void say(std::span<const uint8_t> bytes) {
    EXPECT_EQ(send(stranger.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  // What the acceptor sends until it closes.
  std::vector<uint8_t> heard() {
    std::vector<uint8_t> all;
    EXPECT_TRUE(turn([&] {
      uint8_t piece[1024];
      const ssize_t n = recv(stranger.get(), piece, sizeof piece, MSG_DONTWAIT);
      if (n > 0) all.insert(all.end(), piece, piece + n);
      return n == 0 || (n < 0 && errno != EAGAIN);
    }));
    return all;
  }
  Hello good_hello() {
    Hello hello;
    hello.target = incarnation_of(b->identity);
    hello.connection = {1, 2};
    hello.self = a->identity;
    hello.name = "stranger";
    return hello;
  }
  UniqueFd stranger;
};

TEST_F(StrangerTest, IsCutForGarbage) {
  const std::string text = "GET / HTTP/1.1\r\n\r\n";
  say({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  EXPECT_TRUE(heard().empty());
  connected();
}

TEST_F(StrangerTest, IsCutForSilenceAndHalfAHello) {
  const std::vector<uint8_t> packet = pack(good_hello());
  say(std::span(packet).first(20));
  for (int i = 0; i < 10; ++i) b->turn();
  b->skipped_ns += 6 * kSecondNs;
  EXPECT_TRUE(heard().empty());
  connected();
}

TEST_F(StrangerTest, IsToldOfAnotherVersionAndABadChecksum) {
  std::vector<uint8_t> packet = pack(good_hello());
  packet[10] ^= 1;
  say(packet);
  Reply reply;
  ASSERT_EQ(unpack(heard(), reply), nullptr);
  EXPECT_EQ(static_cast<Status>(reply.status), Status::kProtocol);
}

TEST_F(StrangerTest, CanNotJoinAConnectionThatIsNotThere) {
  Hello hello = good_hello();
  hello.lane = 1;
  say(pack(hello));
  Reply reply;
  ASSERT_EQ(unpack(heard(), reply), nullptr);
  EXPECT_EQ(static_cast<Status>(reply.status), Status::kNotFound);
}

TEST_F(StrangerTest, IsCutWhenItBreaksTheFraming) {
  say(pack(good_hello()));
  ASSERT_TRUE(turn([&] { return b->accepted_link() != nullptr; }));
  const std::vector<uint8_t> garbage(200, 0x55);
  say(garbage);
  heard();
  EXPECT_EQ(b->links[0]->downs, 1u);
  EXPECT_EQ(b->links[0]->status, Status::kProtocol);
  b->disconnect(*b->links[0]);
  connected();
}

TEST_F(StrangerTest, DoesNotCrowdOthersOut) {
  std::vector<UniqueFd> crowd;
  const SocketAddress target = resolve(parse_endpoint(endpoints_of(*b)[0]), soon()).front();
  for (int i = 0; i < 400; ++i) {
    crowd.push_back(open_stream_socket(AF_INET));
    start_connect(crowd.back().get(), target);
    b->turn();
  }
  connected();
}

// ---- configuration

TEST_F(TcpTest, ListensWithinThePortRangeAndNamesAPortInUse) {
  const ListeningSocket taken(parse_endpoint("127.0.0.1:0"));
  const std::string port = std::to_string(taken.address().port());
  FakeAgent refused(towline_tcp_plugin(), "x",
                    {{"tcp.listen", "127.0.0.1:0"}, {"tcp.port_range", port + "-" + port}});
  EXPECT_EQ(refused.status, Status::kAddressInUse);
  EXPECT_NE(refused.failure.find(port), std::string::npos) << refused.failure;
}

TEST_F(TcpTest, NamesTheSettingItDoesNotUnderstand) {
  for (const auto& [setting, value] : FakeAgent::Settings{{"tcp.sockets", "0"},
                                                          {"tcp.port_range", "9-1"},
                                                          {"tcp.checksum", "maybe"},
                                                          {"tcp.handshake_timeout", "5"},
                                                          {"tcp.frame_bytes", "1"},
                                                          {"faults", "short=2"}}) {
    FakeAgent refused(towline_tcp_plugin(), "x", {{setting, value}});
    EXPECT_EQ(refused.status, Status::kInvalidArgument) << setting;
    EXPECT_NE(refused.failure.find(value), std::string::npos) << refused.failure;
  }
}

TEST_F(TcpTest, GivesOutTheAdvertisedAddressAsNumbers) {
  FakeAgent agent(towline_tcp_plugin(), "x",
                  {{"tcp.listen", "127.0.0.1:0"}, {"tcp.advertise", "192.0.2.7:4711"}});
  EXPECT_EQ(endpoints_of(agent), std::vector<std::string>{"192.0.2.7:4711"});
  FakeAgent silent(towline_tcp_plugin(), "x", {{"tcp.listen", "none"}});
  EXPECT_TRUE(silent.address().empty());
}

TEST(Candidates, DependOnWhereThePeerIs) {
  const std::vector<std::string> endpoints = {"10.0.0.7:1", "[2001:db8::1]:1", "unix:/run/x.sock",
                                              "127.0.0.1:1"};
  const auto texts = [&](const towline_identity& self, const towline_identity& peer,
                         const std::vector<std::string>& from) {
    std::vector<std::string> found;
    for (const SocketAddress& address : choose_candidates(self, peer, from)) found.push_back(address.text());
    return found;
  };
  using Texts = std::vector<std::string>;
  towline_identity self = {};
  self.host[0] = 1;
  self.network_namespace = 5;
  towline_identity peer = self;
  EXPECT_EQ(texts(self, peer, endpoints),
            (Texts{"unix:/run/x.sock", "127.0.0.1:1", "10.0.0.7:1", "[2001:db8::1]:1"}));
  peer.network_namespace = 6;  // another container of this host
  EXPECT_EQ(texts(self, peer, endpoints), (Texts{"unix:/run/x.sock", "10.0.0.7:1", "[2001:db8::1]:1"}));
  peer.host[0] = 2;
  EXPECT_EQ(texts(self, peer, endpoints), (Texts{"10.0.0.7:1", "[2001:db8::1]:1"}));
  EXPECT_EQ(texts(self, peer, {"127.0.0.1:1"}), (Texts{"127.0.0.1:1"}));
  EXPECT_EQ(texts(self, peer, {"unix:/run/x.sock", "name:1", "???"}), Texts{});
}

}  // namespace
}  // namespace towline::tcp
