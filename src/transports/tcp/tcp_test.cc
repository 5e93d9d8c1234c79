#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "base/copy/crc32c.h"
#include "base/error.h"
#include "base/os/socket_address.h"
#include "support/ports.h"
#include "transports/tcp/backend.h"
#include "transports/tcp/packet_reader.h"
#include "transports/tcp/plugin.h"
#include "transports/tcp/tcp_fixture.h"
#include "transports/tcp/wire.h"

namespace towline::tcp {
namespace {

std::string congestion_of(int fd) {
  char name[16] = {};
  socklen_t bytes = sizeof name;
  EXPECT_EQ(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &bytes), 0);
  return name;
}

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
  open({{"tcp.listen", "127.0.0.1:0"}, {"tuning.tcp.unix_dir", folder}});
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

// As between network namespaces of this host, whose addresses are not loopback either.
TEST_F(TcpTest, DoesNotPaceWithinAHostAlsoOverAnAddressThatIsNotLoopback) {
  const std::vector<SocketAddress> own = interface_addresses("");
  const auto other = std::ranges::find_if(own, [](const auto& one) { return !one.is_loopback(); });
  if (other == own.end()) GTEST_SKIP() << "this host has no other address";
  for (const bool same_host : {true, false}) {
    open({{"tcp.listen", other->endpoint().text()}});
    towline_identity peer = b->identity;
    peer.network_namespace = a->identity.network_namespace + 1;
    if (!same_host) ++peer.host[0];
    FakeLink& link = a->connect(peer, address_of(endpoints_of(*b)));
    ASSERT_TRUE(turn([&] { return link.ups + link.downs != 0; }));
    ASSERT_EQ(link.ups, 1u) << link.text;
    const SocketAddress there = *numeric_address(parse_endpoint(endpoints_of(*b)[0]));
    UniqueFd fresh = open_stream_socket(there.family());
    const std::string chosen = congestion_of(fresh.get());
    size_t found = 0;
    for (int fd = 0; fd < 1024; ++fd) {
      if (SocketAddress::peer_of(fd) != there) continue;
      ++found;
      EXPECT_EQ(congestion_of(fd), same_host ? "reno" : chosen);
    }
    EXPECT_EQ(found, 1u);
    a.reset();
    b.reset();
  }
}

TEST_F(TcpTest, AddsSocketsOnceItCarriesBulkData) {
  open({{"tcp.listen", "127.0.0.1:0"}, {"tuning.tcp.sockets", "3"}});
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
  open({{"tcp.listen", "127.0.0.1:0"}, {"tuning.tcp.bulk_bytes", "4KiB"}});
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
        {"tuning.tcp.bulk_bytes", "64KiB"},
        {"tuning.tcp.sockets", "4"}});
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

// ---- how connections end

// `a` is connected with a socket that nobody reads but the test.
UniqueFd connect_by_hand(FakeAgent& a, const FakeAgent& b, FakeLink*& link) {
  ListeningSocket socket(parse_endpoint("127.0.0.1:0"));
  link = &a.connect(b.identity, address_of({socket.address().text()}));
  Stream stream;
  PacketReader reader(kHelloMagic);
  const auto heard = [&] {
    int error = 0;
    SocketAddress from;
    if (!stream.valid()) stream = Stream::accepted(socket.accept(&from, &error));
    return stream.valid() && reader.receive(stream) == PacketReader::State::kWhole;
  };
  EXPECT_TRUE(turn_until({&a}, heard));
  const std::vector<uint8_t> reply =
      pack(Reply{TOWLINE_OK, {b.identity.incarnation[0], b.identity.incarnation[1]}, "b", ""});
  EXPECT_EQ(stream.write(reply.data(), reply.size()).bytes, reply.size());
  FakeLink* const made = link;
  EXPECT_TRUE(turn_until({&a}, [made] { return made->ups == 1; }));
  return std::move(stream).release();
}

// 0: in order; else the errno.
int how_it_ends(const UniqueFd& fd) {
  std::vector<char> piece(1 << 20);
  ssize_t got = 1;
  while (got > 0) got = ::recv(fd.get(), piece.data(), piece.size(), 0);
  return got == 0 ? 0 : errno;
}

TEST_F(TcpTest, AConnectionGivenUpWithBytesUnderWayIsReset) {
  open();
  FakeLink* link = nullptr;
  const UniqueFd fd = connect_by_hand(*a, *b, link);
  make_memory(32u << 20);
  FakePlan plan(key);
  towline_prepared* write = a->prepare(*link, whole(plan), TOWLINE_WRITE);
  ASSERT_EQ(a->submit(write, 1, plan.bytes()), Status::kInProgress);
  for (int i = 0; i < 100; ++i) a->turn();
  a->disconnect(*link);
  EXPECT_EQ(a->results.at(1).fences, uint32_t{TOWLINE_PART_FENCED_LOCAL});
  EXPECT_EQ(how_it_ends(fd), ECONNRESET);
}

TEST_F(TcpTest, AConnectionClosedWithNothingUnderWayDeliversWhatWasSent) {
  open();
  FakeLink* link = nullptr;
  const UniqueFd fd = connect_by_hand(*a, *b, link);
  ASSERT_EQ(a->send(*link, "the last word"), Status::kOk);
  a->disconnect(*link);
  EXPECT_EQ(how_it_ends(fd), 0);
}

TEST_F(TcpTest, BothEndsKnowAConnectionByOneNumber) {
  open();
  const auto* ids =
      static_cast<const towline_connection_table_v1*>(towline_tcp_plugin()->query_table("connection", 1));
  ASSERT_NE(ids, nullptr);
  FakeLink& first = connected();
  FakeLink& second = connected();
  ASSERT_EQ(b->links.size(), 2u);
  EXPECT_NE(ids->id(first.connection), 0u);
  EXPECT_EQ(ids->id(first.connection), ids->id(b->links[0]->connection));
  EXPECT_EQ(ids->id(second.connection), ids->id(b->links[1]->connection));
  EXPECT_NE(ids->id(first.connection), ids->id(second.connection));
}

// ---- connecting to what is not there

TEST_F(TcpTest, SaysAtOnceThatNobodyListens) {
  open();
  const support::NobodyListens at;
  const std::string nobody = at.address();
  FakeLink& link = a->connect(b->identity, address_of({nobody}));
  ASSERT_TRUE(turn([&] { return link.downs == 1; }));
  EXPECT_EQ(link.status, Status::kUnreachable);
  EXPECT_NE(link.text.find(nobody), std::string::npos) << link.text;
  EXPECT_NE(link.text.find("'b'"), std::string::npos) << link.text;
}

TEST_F(TcpTest, TriesEveryAddress) {
  open();
  const support::NobodyListens at;
  FakeLink& link = a->connect(b->identity, address_of({at.address(), endpoints_of(*b)[0]}));
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

TEST_F(TcpTest, OneSourceHoldsNoMoreSocketsThanItsShare) {
  open({{"tcp.listen", "127.0.0.1:0"},
        {"tuning.tcp.most_accepted", "8"},
        {"tuning.tcp.most_accepted_per_source", "3"}});
  for (int i = 0; i < 3; ++i) connected();
  FakeLink& link = a->connect(*b);
  ASSERT_TRUE(turn([&] { return link.downs == 1; }));
  EXPECT_EQ(link.status, Status::kLimitExceeded);
  EXPECT_NE(link.text.find("tuning.tcp.most_accepted"), std::string::npos) << link.text;
  for (const auto& accepted : b->links) {
    b->disconnect(*accepted);
    break;
  }
  connected();  // what was given back can be had again
}

// ---- configuration

TEST_F(TcpTest, ListensWhereTheAgentListens) {
  const auto listens_at = [](const FakeAgent::Settings& settings) {
    FakeAgent agent(towline_tcp_plugin(), "x", settings);
    EXPECT_EQ(agent.status, Status::kOk) << agent.failure;
    std::vector<std::string> hosts;
    if (agent.address().empty()) return hosts;
    for (const std::string& endpoint : endpoints_of(agent)) {
      EXPECT_NE(parse_endpoint(endpoint).port, 7702);
      hosts.push_back(parse_endpoint(endpoint).host);
    }
    return hosts;
  };
  using Hosts = std::vector<std::string>;
  EXPECT_EQ(listens_at({}), Hosts{"127.0.0.1"});
  EXPECT_EQ(listens_at({{"listen", "127.0.0.1:7702"}}), Hosts{"127.0.0.1"});
  EXPECT_EQ(listens_at({{"listen", "127.0.0.2:7702,127.0.0.3:0,127.0.0.2:0"}}),
            (Hosts{"127.0.0.2", "127.0.0.3"}));
  EXPECT_EQ(listens_at({{"listen", "unix:/tmp/somewhere"}}), Hosts{"127.0.0.1"});
  EXPECT_EQ(listens_at({{"listen", "none"}}), Hosts{});
  EXPECT_EQ(listens_at({{"listen", "127.0.0.1:7702"}, {"tcp.listen", "127.0.0.4:0"}}), Hosts{"127.0.0.4"});
}

TEST_F(TcpTest, ListensWithinThePortRangeAndNamesAPortInUse) {
  const ListeningSocket taken(parse_endpoint("127.0.0.1:0"));
  const std::string port = std::to_string(taken.address().port());
  FakeAgent refused(towline_tcp_plugin(), "x",
                    {{"tcp.listen", "127.0.0.1:0"}, {"tcp.port_range", port + "-" + port}});
  EXPECT_EQ(refused.status, Status::kAddressInUse);
  EXPECT_NE(refused.failure.find(port), std::string::npos) << refused.failure;
}

TEST_F(TcpTest, NamesTheSettingItDoesNotUnderstand) {
  for (const auto& [setting, value] : FakeAgent::Settings{{"tuning.tcp.sockets", "0"},
                                                          {"tcp.port_range", "9-1"},
                                                          {"tcp.checksum", "maybe"},
                                                          {"tuning.tcp.handshake_timeout", "5"},
                                                          {"tuning.tcp.frame_bytes", "1"},
                                                          {"faults", "short=2"}}) {
    FakeAgent refused(towline_tcp_plugin(), "x", {{setting, value}});
    EXPECT_EQ(refused.status, Status::kInvalidArgument) << setting;
    EXPECT_NE(refused.failure.find(value), std::string::npos) << refused.failure;
  }
}

TEST_F(TcpTest, AConnectionToAnAddressOfThisHostDoesNotLeaveIt) {
  for (const SocketAddress& own : ListeningSocket(parse_endpoint("*:0")).reachable()) {
    open({{"tcp.listen", own.with_port(0).text()}});
    connected();
    for (const auto& [level, text] : a->logged) EXPECT_EQ(text.find("leaves this host"), text.npos) << text;
    a.reset();
    b.reset();
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

// So that payload comes in by the NIC that was chosen for it.
TEST(Candidates, EndpointsAtOurOwnChosenAddressesComeFirst) {
  std::vector<std::string> endpoints = {"10.0.0.7:1", "[2001:db8::1]:1", "10.0.1.7:1", "name:1",
                                        "10.0.2.7:1"};
  put_own_first(endpoints, {*numeric_address(parse_endpoint("10.0.2.7:0")),
                            *numeric_address(parse_endpoint("[2001:db8::1]:0"))});
  EXPECT_EQ(endpoints, (std::vector<std::string>{"[2001:db8::1]:1", "10.0.2.7:1", "10.0.0.7:1", "10.0.1.7:1",
                                                 "name:1"}));
}

}  // namespace
}  // namespace towline::tcp
