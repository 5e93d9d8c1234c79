#include "metadata/listener/listener.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <thread>

#include "base/error.h"
#include "base/os/poller.h"
#include "metadata/listener/exchange.h"
#include "metadata/listener/wire.h"
#include "secure/test_support.h"
#include "support/ports.h"

namespace towline::metadata {
namespace {

Deadline soon() { return Deadline::after(monotonic_now_ns(), 60 * kSecondNs); }

Blob bytes_of(std::string_view text) { return {text.begin(), text.end()}; }

// Runs the callbacks of one listener on the test's thread.
class FakeHost final : public ListenerHost {
 public:
  void watch(int fd, uint32_t events, towline_ready_fn ready, void* argument) override {
    watches_[fd] = {ready, argument};
    poller_.add(fd, events, reinterpret_cast<void*>(static_cast<intptr_t>(fd)));
  }
  void rewatch(int fd, uint32_t events, towline_ready_fn ready, void* argument) override {
    watches_[fd] = {ready, argument};
    poller_.modify(fd, events, reinterpret_cast<void*>(static_cast<intptr_t>(fd)));
  }
  void unwatch(int fd) noexcept override {
    watches_.erase(fd);
    poller_.remove(fd);
  }
  std::shared_ptr<const Blob> local_blob() override { return std::make_shared<const Blob>(own); }
  void peer_blob(std::span<const uint8_t> blob) override {
    if (!refusal.empty()) throw Error(Status::kCorrupt, refusal);
    received.emplace_back(blob.begin(), blob.end());
  }
  void refused(Status why) noexcept override { refusals.push_back(why); }

  void turn(uint64_t timeout_ns = kMillisecondNs) {
    PollEvent events[16];
    const std::size_t count = poller_.wait(events, timeout_ns);
    for (std::size_t i = 0; i < count; ++i) {
      const auto found = watches_.find(static_cast<int>(reinterpret_cast<intptr_t>(events[i].context)));
      if (found == watches_.end()) continue;
      ++calls;
      found->second.first(found->second.second, events[i].events);
    }
  }
  // Turns until `done`, or fails the test.
  void turn_until(const std::function<bool()>& done) {
    const Deadline deadline = soon();
    while (!done() && !deadline.passed(monotonic_now_ns())) turn();
    EXPECT_TRUE(done());
  }

  Blob own = bytes_of("the listener's blob");
  std::string refusal;
  std::vector<Blob> received;
  std::vector<Status> refusals;
  std::size_t calls = 0;

 private:
  Poller poller_;
  std::map<int, std::pair<towline_ready_fn, void*>> watches_;
};

struct Outcome {
  Blob blob;
  Status status = Status::kOk;
  std::string text;
};

// exchange() on its own thread while the listener turns here.
Outcome exchange_with(FakeHost& host, const std::string& address, const Blob& own,
                      const secure::MaybeKeys& keys = {}, Deadline deadline = soon()) {
  Outcome outcome;
  std::atomic<bool> done = false;
  std::thread client([&] {
    try {
      outcome.blob = exchange(address, own, deadline, nullptr, keys);
    } catch (const Error& error) {
      outcome.status = error.code();
      outcome.text = error.message();
    }
    done = true;
  });
  host.turn_until([&] { return done.load(); });
  client.join();
  return outcome;
}

class ListenerTest : public ::testing::Test {
 protected:
  Listener& open(const std::string& listen = "127.0.0.1:0") {
    options.listen = listen;
    listener = std::make_unique<Listener>(host, clock, options);
    return *listener;
  }
  std::string address() const { return listener->addresses().front(); }

  UniqueFd connect_raw() {
    const SocketAddress target = resolve(parse_endpoint(address()), soon()).front();
    UniqueFd fd(socket(target.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(connect(fd.get(), target.get(), target.size()), 0);
    return fd;
  }
  // Until the listener has closed this connection; returns what it had sent.
  Blob read_to_end(const UniqueFd& fd) {
    Blob all;
    bool ended = false;
    set_nonblocking(fd.get());
    host.turn_until([&] {
      uint8_t piece[4096];
      const ssize_t n = recv(fd.get(), piece, sizeof piece, 0);
      if (n > 0) all.insert(all.end(), piece, piece + n);
      ended = n == 0 || (n < 0 && errno != EAGAIN);
      return ended;
    });
    return all;
  }

  secure::MaybeKeys key(char letter) {
    return secure::Keys::read(
        {folder.file(std::string("key-") + letter, secure::testing::key_text(letter)), "", "", ""});
  }

  const secure::testing::Folder folder;
  FakeHost host;
  VirtualClock clock{1000};
  ListenerOptions options;
  std::unique_ptr<Listener> listener;
};

TEST_F(ListenerTest, ExchangesBlobsOverEveryFamily) {
  const std::string path = "unix:/tmp/towline-listener-test-" + std::to_string(getpid()) + ".sock";
  for (const std::string& listen : {std::string("127.0.0.1:0"), std::string("[::1]:0"), std::string("*:0"),
                                    path, std::string("unix:@towline-listener-test")}) {
    try {
      open(listen);
    } catch (const Error& error) {
      if (listen[0] != '[') throw;
      continue;  // no IPv6 here
    }
    const Outcome outcome = exchange_with(host, address(), bytes_of("mine"));
    EXPECT_EQ(outcome.text, "") << listen;
    EXPECT_EQ(outcome.blob, host.own);
    EXPECT_EQ(host.received.back(), bytes_of("mine"));
    host.turn_until([&] { return listener->clients() == 0; });
    EXPECT_EQ(listener->served(), 1u);
    EXPECT_EQ(listener->refused(), 0u);
  }
}

TEST_F(ListenerTest, TakesAClientWithoutABlobAndLargeBlobs) {
  open();
  EXPECT_EQ(exchange_with(host, address(), {}).blob, host.own);
  EXPECT_TRUE(host.received.empty());
  host.own.assign(9'000'001, 7);
  const Blob large(11'000'003, 9);
  EXPECT_EQ(exchange_with(host, address(), large).blob, host.own);
  EXPECT_EQ(host.received.back(), large);
}

TEST_F(ListenerTest, ExchangesBlobsWithTheSameKeys) {
  TOWLINE_NEEDS_TLS();
  options.keys = key('k');
  open();
  host.own.assign(1'000'001, 7);
  const Blob large(3'000'003, 9);
  EXPECT_EQ(exchange_with(host, address(), {}, options.keys).blob, host.own);
  EXPECT_EQ(exchange_with(host, address(), large, key('k')).blob, host.own);
  EXPECT_EQ(host.received.back(), large);
  host.turn_until([&] { return listener->clients() == 0; });
  EXPECT_EQ(listener->served(), 2u);
  EXPECT_EQ(listener->refused(), 0u);
}

TEST_F(ListenerTest, SendsCertificatesThatDoNotFitIntoASocket) {
  secure::testing::Authority authority(folder);
  if (!authority.good()) GTEST_SKIP() << "the openssl program, which makes the certificates, is not there";
  options.keys = secure::Keys::read(authority.sign_large("called"));
  open();
  secure::testing::shrink_listening_sockets();
  Stream caller = secure::testing::connect_narrow(parse_endpoint(address()).port);
  secure::secure(secure::Keys::read(authority.sign_large("caller")), caller, secure::Side::kCaller);
  EXPECT_EQ(secure::testing::shake_hands_late(caller, [&] { host.turn(); }), Status::kOk);
}

// As without keys: others must not wait for all that one has to say.
TEST_F(ListenerTest, AClientWithKeysTakesTurnsToo) {
  TOWLINE_NEEDS_TLS();
  options.keys = key('k');
  open();
  const Blob large(32 << 20, 9);
  EXPECT_EQ(exchange_with(host, address(), large, options.keys).blob, host.own);
  EXPECT_EQ(host.received.back(), large);
  EXPECT_GE(host.calls, large.size() / (256 << 10));
}

TEST_F(ListenerTest, WhoHasOtherKeysOrNoneIsRefusedAndToldWhy) {
  TOWLINE_NEEDS_TLS();
  options.keys = key('k');
  open();
  const Outcome other = exchange_with(host, address(), bytes_of("mine"), key('l'));
  EXPECT_EQ(other.status, Status::kPermissionDenied) << other.text;
  EXPECT_NE(other.text.find("other keys (secure.*)"), std::string::npos) << other.text;
  const Outcome none = exchange_with(host, address(), bytes_of("mine"));
  EXPECT_EQ(none.status, Status::kPermissionDenied) << none.text;
  EXPECT_NE(none.text.find("this side has no keys (secure.*)"), std::string::npos) << none.text;
  EXPECT_TRUE(host.received.empty());
  host.turn_until([&] { return listener->clients() == 0; });
  EXPECT_EQ(listener->refused(), 2u);
  EXPECT_EQ(exchange_with(host, address(), {}, key('k')).blob, host.own);  // others are served
}

TEST_F(ListenerTest, AClientWithKeysRefusesAnAgentWithoutAny) {
  TOWLINE_NEEDS_TLS();
  open();
  const Outcome outcome = exchange_with(host, address(), bytes_of("mine"), key('k'));
  EXPECT_EQ(outcome.status, Status::kPermissionDenied) << outcome.text;
  EXPECT_NE(outcome.text.find("or none"), std::string::npos) << outcome.text;
  EXPECT_TRUE(host.received.empty());
}

TEST_F(ListenerTest, FindsAHostByName) {
  open("*:0");
  const uint16_t port = parse_endpoint(address()).port;
  EXPECT_EQ(exchange_with(host, "localhost:" + std::to_string(port), {}).blob, host.own);
}

TEST_F(ListenerTest, TellsARefusedClientWhy) {
  open();
  host.refusal = "checksum of the blob is wrong";
  const Outcome outcome = exchange_with(host, address(), bytes_of("bad"));
  EXPECT_EQ(outcome.status, Status::kCorrupt);
  EXPECT_NE(outcome.text.find(host.refusal), std::string::npos);
  EXPECT_NE(outcome.text.find(address()), std::string::npos);
}

TEST_F(ListenerTest, RefusesABlobThatIsTooLarge) {
  options.max_blob_bytes = 1000;
  open();
  const Outcome outcome = exchange_with(host, address(), Blob(8 << 20, 1));
  EXPECT_EQ(outcome.status, Status::kLimitExceeded) << outcome.text;
  EXPECT_EQ(exchange_with(host, address(), Blob(1000, 1)).status, Status::kOk);
}

TEST_F(ListenerTest, BoundsTheBytesOfAllClientsTogether) {
  options.max_total_bytes = 64 << 10;
  open();
  EXPECT_EQ(exchange_with(host, address(), Blob(1 << 20, 1)).status, Status::kAgain);
  EXPECT_EQ(exchange_with(host, address(), Blob(1 << 10, 1)).status, Status::kOk);
}

TEST_F(ListenerTest, CutsGarbageAndServesOthers) {
  open();
  const UniqueFd garbage = connect_raw();
  const std::string text = "GET / HTTP/1.1\r\nHost: towline\r\n\r\n";
  ASSERT_EQ(send(garbage.get(), text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
  EXPECT_TRUE(read_to_end(garbage).empty());
  EXPECT_EQ(listener->refused(), 1u);
  EXPECT_EQ(exchange_with(host, address(), {}).status, Status::kOk);
}

TEST_F(ListenerTest, AnswersAnotherVersionInItsOwnHeader) {
  open();
  const UniqueFd client = connect_raw();
  wire::ExchangeHeader header;
  header.major = 9;
  header.bytes = 5;
  const auto packed = wire::pack(header);
  ASSERT_EQ(send(client.get(), packed.data(), packed.size(), MSG_NOSIGNAL), 16);
  shutdown(client.get(), SHUT_WR);
  const Blob answer = read_to_end(client);
  ASSERT_GT(answer.size(), 16u);
  ASSERT_TRUE(wire::unpack(answer, header));
  EXPECT_EQ(static_cast<Status>(header.status), Status::kUnsupported);
}

TEST_F(ListenerTest, CutsSilentAndHalfOpenClientsAtTheirDeadline) {
  open();
  const UniqueFd silent = connect_raw();
  const UniqueFd half = connect_raw();
  wire::ExchangeHeader header;
  header.bytes = 100;
  const auto packed = wire::pack(header);
  ASSERT_EQ(send(half.get(), packed.data(), packed.size(), MSG_NOSIGNAL), 16);
  host.turn_until([&] { return listener->clients() == 2; });
  EXPECT_EQ(listener->next_deadline_ns(), 1000 + options.client_timeout_ns);
  EXPECT_EQ(listener->expire(listener->next_deadline_ns() - 1), 0u);
  EXPECT_EQ(exchange_with(host, address(), {}).status, Status::kOk);
  host.turn_until(
      [&] { return listener->clients() == 2; });  // The exchange's own client has been seen to leave.
  EXPECT_EQ(listener->expire(listener->next_deadline_ns()), 2u);
  EXPECT_EQ(listener->next_deadline_ns(), kNoDeadline);
  EXPECT_TRUE(read_to_end(silent).empty());
  EXPECT_TRUE(read_to_end(half).empty());
}

TEST_F(ListenerTest, MakesRoomForNewClientsByCuttingTheOldest) {
  options.max_clients = 4;
  open();
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 20; ++i) silent.push_back(connect_raw());
  EXPECT_EQ(exchange_with(host, address(), {}).status, Status::kOk);
  EXPECT_LE(listener->clients(), 4u);
}

// Those of another address that came before stay, however many come of one.
TEST_F(ListenerTest, OneSourceHasHalfOfThePlaces) {
  options.max_clients = 8;
  open();
  const UniqueFd patient = connect_raw();
  host.turn_until([&] { return listener->clients() == 1; });
  const SocketAddress target = resolve(parse_endpoint(address()), soon()).front();
  std::vector<UniqueFd> crowd;
  for (int i = 0; i < 20; ++i) {
    crowd.emplace_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const SocketAddress from = *numeric_address(parse_endpoint("127.0.0.2:0"));
    ASSERT_EQ(bind(crowd.back().get(), from.get(), from.size()), 0);
    ASSERT_EQ(connect(crowd.back().get(), target.get(), target.size()), 0);
  }
  host.turn_until([&] { return host.refusals.size() == 16; });
  EXPECT_EQ(listener->clients(), 5u);
  const auto packed = wire::pack(wire::ExchangeHeader{});
  ASSERT_EQ(send(patient.get(), packed.data(), packed.size(), MSG_NOSIGNAL), 16);
  shutdown(patient.get(), SHUT_WR);
  EXPECT_EQ(read_to_end(patient).size(), 16 + host.own.size());
}

TEST_F(ListenerTest, CutsAnotherUserOfThisHostUnlessAllAreServed) {
  if (geteuid() != 0) GTEST_SKIP() << "needs the right to become another user";
  for (const bool any_user : {false, true}) {
    options.any_user = any_user;
    open();
    const std::string where = address();
    const pid_t child = fork();
    if (child == 0) {
      if (setresuid(65534, 65534, 65534) != 0) _exit(2);
      try {
        _exit(exchange(where, {}, soon()) == host.own ? 0 : 3);
      } catch (const Error&) {
        _exit(1);
      }
    }
    int status = 0;
    host.turn_until([&] { return waitpid(child, &status, WNOHANG) != 0; });
    ASSERT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), any_user ? 0 : 1);
  }
  EXPECT_EQ(host.refusals, std::vector<Status>{Status::kPermissionDenied});
}

TEST_F(ListenerTest, KnowsItsUserWithTheLastDescriptor) {
  open();
  EXPECT_EQ(exchange_with(host, address(), {}).blob, host.own);  // now it has all that it keeps
  const UniqueFd client = connect_raw();
  const auto request = wire::pack({});
  ASSERT_EQ(write(client.get(), request.data(), request.size()), static_cast<ssize_t>(request.size()));
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const auto next = static_cast<rlim_t>(UniqueFd(dup(client.get())).get());
  const rlimit one = {next + 1, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &one), 0);
  host.turn_until([&] { return listener->served() == 2 || !host.refusals.empty(); });
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(listener->served(), 2u);
  EXPECT_EQ(host.refusals, std::vector<Status>{});
}

TEST_F(ListenerTest, SurvivesClientsThatResetTheConnection) {
  open();
  for (int i = 0; i < 8; ++i) {
    const UniqueFd client = connect_raw();
    const linger now = {1, 0};
    setsockopt(client.get(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
  }
  EXPECT_EQ(exchange_with(host, address(), {}).status, Status::kOk);
  host.turn_until([&] { return listener->clients() == 0; });
}

TEST_F(ListenerTest, GivesOutTheAdvertisedAddress) {
  options.advertise = "gateway.example";
  open();
  const std::string text = address();
  EXPECT_EQ(text.substr(0, 16), "gateway.example:");
  EXPECT_NE(text, "gateway.example:0");
}

TEST_F(ListenerTest, NamesAnAddressInUse) {
  open();
  const std::string taken = address();
  ListenerOptions again;
  again.listen = taken;
  try {
    Listener second(host, clock, again);
    FAIL() << "bound twice";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Status::kAddressInUse);
    EXPECT_NE(error.message().find(taken), std::string::npos);
  }
}

TEST_F(ListenerTest, EndsWithClientsStillThere) {
  open();
  const UniqueFd silent = connect_raw();
  host.turn_until([&] { return listener->clients() == 1; });
  listener.reset();
  uint8_t byte = 0;
  EXPECT_EQ(recv(silent.get(), &byte, 1, 0), 0);
}

TEST(Exchange, SaysThatNobodyListens) {
  const support::NobodyListens at;
  const std::string address = at.address();
  try {
    exchange(address, {}, soon());
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Status::kUnreachable);
    EXPECT_NE(error.message().find(address), std::string::npos);
  }
  EXPECT_THROW(exchange("unix:/no/such/path", {}, soon()), Error);
}

TEST(Exchange, EndsByItsDeadlineWhenNobodyAnswers) {
  const ListeningSocket silent(parse_endpoint("127.0.0.1:0"));
  try {
    exchange(silent.address().text(), {}, Deadline::after(monotonic_now_ns(), 20 * kMillisecondNs));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Status::kTimedOut);
    EXPECT_NE(error.message().find(silent.address().text()), std::string::npos);
  }
}

// The outcome of exchange() with a server that answers with these bytes and closes.
Outcome answered_with(const Blob& answer) {
  ListeningSocket socket(parse_endpoint("127.0.0.1:0"));
  std::thread server([&] {
    pollfd watched = {socket.fd(), POLLIN, 0};
    poll(&watched, 1, 20'000);
    int error = 0;
    const UniqueFd client = socket.accept(nullptr, &error);
    set_nonblocking(client.get(), false);
    uint8_t request[16];
    EXPECT_EQ(recv(client.get(), request, sizeof request, MSG_WAITALL), 16);
    if (!answer.empty()) {
      EXPECT_GT(send(client.get(), answer.data(), answer.size(), MSG_NOSIGNAL), 0);
    }
  });
  Outcome outcome;
  try {
    outcome.blob = exchange(socket.address().text(), {}, soon());
  } catch (const Error& error) {
    outcome.status = error.code();
    outcome.text = error.message();
  }
  server.join();
  return outcome;
}

Blob header_of(int32_t status, uint32_t bytes, uint8_t major = 1) {
  wire::ExchangeHeader header;
  header.status = status;
  header.bytes = bytes;
  header.major = major;
  const auto packed = wire::pack(header);
  return {packed.begin(), packed.end()};
}

TEST(Exchange, RefusesServersThatAreNoAgents) {
  EXPECT_EQ(answered_with(bytes_of("220 mail.example ESMTP\r\n")).status, Status::kProtocol);
  EXPECT_EQ(answered_with({}).status, Status::kProtocol);
  EXPECT_EQ(answered_with(header_of(0, 10)).status, Status::kProtocol);  // cut off
  EXPECT_EQ(answered_with(header_of(7, 0)).status, Status::kProtocol);
  EXPECT_EQ(answered_with(header_of(-1000, 0)).status, Status::kProtocol);
  EXPECT_EQ(answered_with(header_of(0, UINT32_MAX)).status, Status::kLimitExceeded);
  EXPECT_EQ(answered_with(header_of(0, 0, 2)).status, Status::kUnsupported);
  EXPECT_EQ(answered_with(header_of(0, 0)).status, Status::kOk);
}

}  // namespace
}  // namespace towline::metadata
