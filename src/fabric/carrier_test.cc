#include "fabric/carrier.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cstring>
#include <functional>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/wire.h"
#include "fabric/framed_stream.h"
#include "fabric/loopback/loopback.h"
#include "secure/test_support.h"
#include "support/ports.h"

namespace {

// Called before something is received; not for what it receives itself.
std::function<void(int fd)> before_recv;

}  // namespace

// In front of the C library's, or a sanitizer's, which learns from it what one thread tells another.
extern "C" [[gnu::visibility("default")]] ssize_t recv(int fd, void* data, size_t bytes, int flags) {
  if (before_recv) {  // other tests receive in several threads
    auto call = std::exchange(before_recv, nullptr);
    call(fd);
    before_recv = std::move(call);
  }
  static const auto next = reinterpret_cast<decltype(&::recv)>(::dlsym(RTLD_NEXT, "recv"));
  return next(fd, data, bytes, flags);
}

namespace towline::fabric::carrier_test {
namespace {

// An engine over the loopback network whose control messages go over TCP.
struct Node final : EngineHost {
  explicit Node(LoopbackFabric& fabric, CarrierOptions options = {}, EngineOptions engine_options = {}) {
    std::vector<std::unique_ptr<Domain>> domains;
    domains.push_back(fabric.make_domain({}));
    engine = std::make_unique<Engine>(engine_options, std::move(domains), *this);
    carrier = std::make_unique<Carrier>(*engine, options);
  }
  ~Node() override {
    carrier.reset();
    engine.reset();
  }
  void complete(uint64_t, const TransferResult& result) noexcept override {
    ++(result.status == Status::kOk ? done : failed);
  }
  void fenced(uint64_t, uint32_t) noexcept override {}
  void counted(Handle, uint32_t immediate, uint32_t count) noexcept override { counts[immediate] += count; }
  void received(Handle, std::span<const uint8_t>) noexcept override {}
  void lost(Handle, Status, std::string_view why) noexcept override { losses.emplace_back(why); }
  void send_control(Handle peer, std::span<const uint8_t> message) noexcept override {
    if (carrier != nullptr) carrier->send(peer, message);
  }
  void turn() {
    carrier->progress(monotonic_now_ns());
    engine->progress(monotonic_now_ns());
  }
  Status count(Handle peer, uint32_t immediate) {
    TransferRequest request;
    request.peer = peer;
    request.count = 1;
    request.immediate = immediate;
    return engine->submit(request);
  }

  std::map<uint32_t, uint64_t> counts;
  std::vector<std::string> losses;
  uint64_t done = 0;
  uint64_t failed = 0;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<Carrier> carrier;
};

template <class Done>
bool until(std::initializer_list<Node*> nodes, Done&& finished, uint64_t limit_ns = 20 * kSecondNs) {
  const uint64_t end = monotonic_now_ns() + limit_ns;
  while (!finished() && monotonic_now_ns() < end)
    for (Node* node : nodes) node->turn();
  return finished();
}

class FabricCarrier : public ::testing::Test {
 protected:
  CarrierOptions with_key(char letter) {
    CarrierOptions options;
    options.keys = secure::Keys::read({folder.file("key", secure::testing::key_text(letter)), "", "", ""});
    return options;
  }
  const secure::testing::Folder folder;
  CarrierAddress handed_over(Node& node) { return *decode_carrier_address(encode(node.carrier->address())); }

  LoopbackFabric fabric_{1, [] { return monotonic_now_ns(); }};
};

// The engines here repeat no message in time: only what the carrier has said again arrives.
EngineOptions never_repeating() {
  EngineOptions options;
  options.control_kept = true;
  options.max_backoff_ns = options.connect_timeout_ns = 1000 * kSecondNs;
  return options;
}

TEST_F(FabricCarrier, EnginesThatKnowAnAddressReachEachOtherBothWays) {
  Node one{fabric_};
  Node two{fabric_};
  const Handle peer = one.carrier->connect(handed_over(two));
  EXPECT_EQ(one.carrier->connect(handed_over(two)), peer);
  ASSERT_EQ(one.count(peer, 5), Status::kInProgress);
  ASSERT_TRUE(until({&one, &two}, [&] { return two.counts[5] == 1 && one.done == 1; }));
  const Handle back = two.carrier->connect(handed_over(one));
  ASSERT_EQ(two.count(back, 6), Status::kInProgress);
  ASSERT_TRUE(until({&one, &two}, [&] { return one.counts[6] == 1; }));
  EXPECT_EQ(two.carrier->lines(), 1u);  // the one that there was
}

TEST_F(FabricCarrier, EnginesWithTheSameKeyReachEachOther) {
  TOWLINE_NEEDS_TLS();
  Node one{fabric_, with_key('k')};
  Node two{fabric_, with_key('k')};
  const Handle there = one.carrier->connect(handed_over(two));
  const Handle back = two.carrier->connect(handed_over(one));
  ASSERT_EQ(one.count(there, 1), Status::kInProgress);
  ASSERT_EQ(two.count(back, 2), Status::kInProgress);
  ASSERT_TRUE(until({&one, &two}, [&] { return one.counts[2] == 1 && two.counts[1] == 1; }));
}

TEST_F(FabricCarrier, CertificatesThatDoNotFitIntoASocketAreSent) {
  secure::testing::Authority authority(folder);
  if (!authority.good()) GTEST_SKIP() << "the openssl program, which makes the certificates, is not there";
  CarrierOptions options;
  options.keys = secure::Keys::read(authority.sign_large("both"));
  Node node{fabric_, options};
  secure::testing::shrink_listening_sockets();
  Stream caller = secure::testing::connect_narrow(handed_over(node).endpoints.front().port);
  secure::secure(options.keys, caller, secure::Side::kCaller);
  EXPECT_EQ(secure::testing::shake_hands_late(caller, [&] { node.turn(); }), Status::kOk);
}

// The caller answers, and says more, between the node's last write of the handshake and its look for an answer.
TEST_F(FabricCarrier, WhatComesWithTheEndOfAHandshakeIsReadAtOnce) {
  secure::testing::Authority authority(folder);
  if (!authority.good()) GTEST_SKIP() << "the openssl program, which makes the certificates, is not there";
  CarrierOptions options;
  options.keys = secure::Keys::read(authority.sign_large("node"));
  options.hello_ns = 60 * kSecondNs;
  Node node{fabric_, options};
  secure::testing::shrink_listening_sockets();
  Stream caller = secure::testing::connect_narrow(handed_over(node).endpoints.front().port);
  secure::secure(secure::Keys::read(authority.sign("caller")), caller, secure::Side::kCaller);
  EXPECT_TRUE(caller.shake_hands().blocked());
  bool said = false;
  before_recv = [&](int fd) {
    const auto more_comes = [&] {
      int on_its_way = 0;
      return ::ioctl(fd, SIOCOUTQ, &on_its_way) == 0 && (on_its_way != 0 || caller.ready(POLLIN));
    };
    StreamResult shaken;
    while ((shaken = caller.shake_hands()).blocked() && more_comes()) continue;
    if (said || !shaken.moved()) return;
    const uint8_t no_hello[] = {4, 0, 0, 0, 'n', 'o', 'n', 'e'};
    said = caller.write(no_hello, sizeof no_hello).bytes == sizeof no_hello;
  };
  const bool in_time = until({&node}, [&] { return said; });
  before_recv = nullptr;
  ASSERT_TRUE(in_time);
  for (int turns = 0; turns < 10; ++turns) node.turn();
  EXPECT_EQ(node.carrier->lines(), 0u) << "it does not know the ticket";
}

TEST_F(FabricCarrier, EnginesWithDifferentKeysLoseEachOther) {
  TOWLINE_NEEDS_TLS();
  Node one{fabric_, with_key('k'), never_repeating()};
  Node two{fabric_, with_key('l')};
  const Handle peer = one.carrier->connect(handed_over(two));
  ASSERT_EQ(one.count(peer, 5), Status::kInProgress);
  ASSERT_TRUE(until({&one, &two}, [&] { return !one.losses.empty(); }));
  EXPECT_NE(one.losses.front().find("keys (secure.*)"), std::string::npos) << one.losses.front();
  EXPECT_EQ(two.counts[5], 0u);
}

// A sender that is quicker than this side's turns must not keep the others waiting, and nothing of what it said may be
// forgotten.
TEST_F(FabricCarrier, ATurnReadsABoundedPartOfALineWithKeys) {
  TOWLINE_NEEDS_TLS();
  Node one{fabric_, with_key('k')};
  Node two{fabric_, with_key('k')};
  const Handle there = one.carrier->connect(handed_over(two));
  ASSERT_EQ(one.count(there, 1), Status::kInProgress);
  ASSERT_TRUE(until({&one, &two}, [&] { return two.counts[1] == 1; }));
  const std::vector<uint8_t> nonsense(kMaxControlBytes);  // the engine drops it
  for (int i = 0; i < 2000; ++i) one.carrier->send(there, nonsense);
  EXPECT_LE(two.carrier->progress(monotonic_now_ns()), 16 * FramedStream::kMostRead / kMaxControlBytes + 2);
  ASSERT_EQ(one.count(there, 2), Status::kInProgress);
  ASSERT_TRUE(until({&one, &two}, [&] { return two.counts[2] == 1; }));
}

TEST_F(FabricCarrier, BothMayConnectAtOnce) {
  Node one{fabric_};
  Node two{fabric_};
  const Handle there = one.carrier->connect(handed_over(two));
  const Handle back = two.carrier->connect(handed_over(one));
  ASSERT_EQ(one.count(there, 1), Status::kInProgress);
  ASSERT_EQ(two.count(back, 2), Status::kInProgress);
  ASSERT_TRUE(until({&one, &two}, [&] { return one.counts[2] == 1 && two.counts[1] == 1; }));
}

TEST_F(FabricCarrier, WhatWasSaidOverALineThatEndsIsSaidAgainOverTheNextOne) {
  Node one{fabric_, {}, never_repeating()};
  Node two{fabric_};
  CarrierAddress address = handed_over(two);
  const support::NobodyListens closed;
  address.endpoints.insert(address.endpoints.begin(), parse_endpoint(closed.address()));
  const Handle peer = one.carrier->connect(address);
  ASSERT_EQ(one.count(peer, 5), Status::kInProgress);
  one.engine->progress(monotonic_now_ns());  // asks for a connection before the first line has ended
  EXPECT_TRUE(until({&one, &two}, [&] { return two.counts[5] == 1; }));
}

TEST_F(FabricCarrier, WhatFoundTooMuchUnsentIsSaidAgainWhenThatIsGone) {
  CarrierOptions options;
  Node two{fabric_};
  options.max_unsent_bytes = encode(two.carrier->address()).size() + 32;  // a hello alone
  Node one{fabric_, options, never_repeating()};
  const Handle peer = one.carrier->connect(handed_over(two));
  ASSERT_EQ(one.count(peer, 5), Status::kInProgress);
  one.engine->progress(monotonic_now_ns());
  EXPECT_TRUE(until({&one, &two}, [&] { return two.counts[5] == 1; }));
}

TEST_F(FabricCarrier, WithoutTheTicketNobodyIsTaken) {
  CarrierOptions options;
  options.hello_ns = 50 * kMillisecondNs;
  Node one{fabric_};
  Node two{fabric_, options};
  CarrierAddress wrong = handed_over(two);
  wrong.ticket.lo ^= 1;
  const Handle peer = one.carrier->connect(wrong);
  (void)one.count(peer, 5);
  ASSERT_TRUE(until({&one, &two}, [&] { return one.losses.size() == 1; }));
  EXPECT_EQ(one.failed, 1u);
  EXPECT_TRUE(two.counts.empty());
  ASSERT_TRUE(until({&one, &two}, [&] { return two.carrier->lines() == 0; }));
}

TEST_F(FabricCarrier, SilentAndNoisyStrangersAreBoundedAndDisturbNobody) {
  CarrierOptions options;
  options.hello_ns = 200 * kMillisecondNs;
  options.max_strangers = 4;
  Node one{fabric_};
  Node two{fabric_, options};
  const Handle peer = one.carrier->connect(handed_over(two));
  ASSERT_EQ(one.count(peer, 1), Status::kInProgress);
  ASSERT_TRUE(until({&one, &two}, [&] { return two.counts[1] == 1; }));
  const auto target = numeric_address(handed_over(two).endpoints.front());
  std::vector<UniqueFd> crowd;
  for (int i = 0; i < 20; ++i) {
    crowd.emplace_back(open_stream_socket(target->family()));
    (void)start_connect(crowd.back().get(), *target);
    const uint32_t huge[2] = {0xffffffff, 0};
    if (i % 2 == 0) (void)!send(crowd.back().get(), huge, sizeof huge, MSG_NOSIGNAL);
  }
  std::size_t most = 0;
  until(
      {&one, &two},
      [&] {
        most = std::max(most, two.carrier->lines());
        return false;
      },
      50 * kMillisecondNs);
  EXPECT_LE(most, 5u);
  ASSERT_EQ(one.count(peer, 2), Status::kInProgress);
  ASSERT_TRUE(until({&one, &two}, [&] { return two.counts[2] == 1; }));
  ASSERT_TRUE(until({&one, &two}, [&] { return two.carrier->lines() == 1; }));  // time is up for them
}

// Its thread sleeps while nothing is to be done, and an application connects from its own.
TEST_F(FabricCarrier, ALineThatIsBegunAfterALongSleepHasItsTimeToSayHello) {
  Node one{fabric_};
  Node two{fabric_};
  one.carrier->progress(monotonic_now_ns() - 60 * kSecondNs);  // its last turn
  const Handle peer = one.carrier->connect(handed_over(two));
  one.carrier->progress(monotonic_now_ns());  // before the other side could answer
  ASSERT_EQ(one.count(peer, 1), Status::kInProgress);
  EXPECT_TRUE(until({&one, &two}, [&] { return two.counts[1] == 1 || !one.losses.empty(); }));
  EXPECT_EQ(one.losses.size(), 0u);
}

TEST_F(FabricCarrier, APeerThatGoesIsLostAtOnce) {
  Node one{fabric_};
  auto two = std::make_unique<Node>(fabric_);
  const Handle peer = one.carrier->connect(handed_over(*two));
  ASSERT_EQ(one.count(peer, 1), Status::kInProgress);
  ASSERT_TRUE(until({&one, two.get()}, [&] { return one.done == 1; }));
  two.reset();
  const uint64_t gone_at = monotonic_now_ns();
  ASSERT_TRUE(until({&one}, [&] { return one.losses.size() == 1; }));
  EXPECT_LT(monotonic_now_ns() - gone_at, 100 * kMillisecondNs);
  EXPECT_EQ(one.count(peer, 1), Status::kPeerLost);
}

TEST_F(FabricCarrier, PeersThatCameByThemselvesLeaveNothingBehind) {
  Node server{fabric_};
  for (uint32_t round = 1; round <= 20; ++round) {
    Node client{fabric_};
    const Handle peer = client.carrier->connect(handed_over(server));
    ASSERT_EQ(client.count(peer, 1), Status::kInProgress);
    ASSERT_TRUE(until({&client, &server}, [&] { return server.counts[1] == round && client.done == 1; }));
    client.carrier.reset();
    ASSERT_TRUE(until({&server}, [&] { return server.losses.size() == round; }));
  }
  EXPECT_LE(server.engine->known_peers(), 1u);
  EXPECT_EQ(server.carrier->lines(), 0u);
}

TEST_F(FabricCarrier, AddressesThatNobodyListensAtAndBadOnesAreRefused) {
  Node one{fabric_};
  auto two = std::make_unique<Node>(fabric_);
  const CarrierAddress address = handed_over(*two);
  two.reset();
  (void)one.carrier->connect(address);
  ASSERT_TRUE(until({&one}, [&] { return one.losses.size() == 1; }));
  EXPECT_THROW((void)one.carrier->connect(handed_over(one)), core::Error);
  CarrierAddress named = address;
  named.engine.engine = Id::random();
  named.endpoints = {{false, "no number", 1}};
  EXPECT_THROW((void)one.carrier->connect(named), core::Error);
  auto bytes = encode(address);
  for (std::size_t length = 0; length < bytes.size(); ++length)
    EXPECT_FALSE(decode_carrier_address({bytes.data(), length}));
  bytes.push_back(0);
  EXPECT_FALSE(decode_carrier_address(bytes));
}

}  // namespace
}  // namespace towline::fabric::carrier_test
