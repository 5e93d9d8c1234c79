#include "base/os/socket_address.h"

#include <gtest/gtest.h>
#include <sys/poll.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>

#include <algorithm>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/log.h"

namespace towline {
namespace {

template <class Call>
Status status_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_FALSE(error.message().empty());
    return error.code();
  }
  return Status::kOk;
}

Deadline soon() { return Deadline::after(monotonic_now_ns(), 10 * kSecondNs); }

SocketAddress address_of(std::string_view text) { return resolve(parse_endpoint(text), soon()).front(); }

// Connects to where the socket listens and takes the connection.
bool answers(ListeningSocket& socket, const SocketAddress& address) {
  const UniqueFd client = open_stream_socket(address.family());
  const int error = start_connect(client.get(), address);
  if (error != 0 && error != EINPROGRESS) return false;
  pollfd watched = {socket.fd(), POLLIN, 0};
  if (poll(&watched, 1, 10'000) != 1) return false;
  int accept_error = 0;
  SocketAddress peer;
  return socket.accept(&peer, &accept_error).valid() && finish_connect(client.get()) == 0;
}

TEST(Endpoint, ReadsAndPrintsEveryForm) {
  for (const char* text : {"10.0.0.7:7777", "[::1]:7777", "[fe80::1%eth0]:1", "host.name:65535", "*:0",
                           "unix:/run/agent.sock", "unix:@abstract name"}) {
    EXPECT_EQ(parse_endpoint(text).text(), text);
  }
  EXPECT_EQ(parse_endpoint("[::1]:7777").host, "::1");
  EXPECT_EQ(parse_endpoint("host", 7).port, 7);
  EXPECT_EQ(parse_endpoint("[::1]", 7).port, 7);
  EXPECT_EQ(parse_endpoint("host:8", 7).port, 8);
}

TEST(Endpoint, RefusesWhatIsNoAddress) {
  for (const std::string text : {"", ":", ":7", "host", "host:", "host:x", "host:65536", "host:-1", "host:7x",
                                 "::1:7", "[::1]", "[::1", "[::1]7", "[]:7", "a b:7", "unix:", "unix:@"}) {
    EXPECT_EQ(status_of([&] { parse_endpoint(text); }), Status::kInvalidArgument) << text;
  }
  EXPECT_EQ(status_of([&] { parse_endpoint("unix:" + std::string(200, 'x')); }), Status::kInvalidArgument);
  EXPECT_EQ(status_of([&] { parse_endpoint(std::string("a\0b:7", 5)); }), Status::kInvalidArgument);
}

TEST(Endpoint, ReadsLists) {
  EXPECT_EQ(parse_endpoints("a:1, [::1]:2,unix:@x").size(), 3u);
  EXPECT_EQ(status_of([] { parse_endpoints(""); }), Status::kInvalidArgument);
  EXPECT_EQ(status_of([] { parse_endpoints("a:1,"); }), Status::kInvalidArgument);
}

TEST(PortRange, ReadsOneOrTwoPorts) {
  EXPECT_EQ(parse_port_range("").first, 0);
  EXPECT_EQ(parse_port_range("7000").last, 7000);
  EXPECT_EQ(parse_port_range("7000-7100").last, 7100);
  for (const char* text : {"0", "7100-7000", "x", "1-", "-1", "1-65536"}) {
    EXPECT_EQ(status_of([&] { parse_port_range(text); }), Status::kInvalidArgument) << text;
  }
}

TEST(SocketAddress, KnowsItsKind) {
  EXPECT_TRUE(address_of("127.0.0.1:1").is_loopback());
  EXPECT_TRUE(address_of("[::1]:1").is_loopback());
  EXPECT_TRUE(address_of("[::ffff:127.0.0.1]:1").is_loopback());
  EXPECT_TRUE(address_of("unix:@x").is_loopback());
  EXPECT_FALSE(address_of("10.0.0.1:1").is_loopback());
  EXPECT_TRUE(address_of("0.0.0.0:1").is_any());
  EXPECT_TRUE(address_of("[::]:1").is_any());
  EXPECT_TRUE(address_of("169.254.1.1:1").is_link_local());
  EXPECT_TRUE(address_of("[fe80::1]:1").is_link_local());
  EXPECT_EQ(address_of("10.0.0.1:1").with_port(9).text(), "10.0.0.1:9");
  EXPECT_EQ(address_of("[::ffff:10.0.0.1]:1").text(), "10.0.0.1:1");
  EXPECT_EQ(SocketAddress().text(), "none");
}

TEST(Resolve, SaysThatANameCanNotBeFound) {
  const Status status = status_of([] { resolve(parse_endpoint("no-such-host.invalid:1"), soon()); });
  EXPECT_TRUE(status == Status::kUnreachable || status == Status::kTimedOut);
  EXPECT_EQ(status_of([] { resolve(parse_endpoint("*:1"), soon()); }), Status::kInvalidArgument);
}

TEST(ListeningSocket, TakesConnectionsOfEveryFamily) {
  ListeningSocket every(parse_endpoint("*:0"));
  EXPECT_NE(every.address().port(), 0);
  EXPECT_TRUE(answers(every, address_of("127.0.0.1:1").with_port(every.address().port())));
  if (every.address().family() == AF_INET6) {
    EXPECT_TRUE(answers(every, address_of("[::1]:1").with_port(every.address().port())));
  }
  for (const char* text : {"127.0.0.1:0", "unix:@towline-socket-address-test"}) {
    ListeningSocket one(parse_endpoint(text));
    EXPECT_TRUE(answers(one, one.address())) << text;
  }
}

TEST(ListeningSocket, NamesAnAddressInUse) {
  ListeningSocket first(parse_endpoint("127.0.0.1:0"));
  try {
    ListeningSocket second(first.address().endpoint());
    FAIL() << "bound twice";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Status::kAddressInUse);
    EXPECT_NE(error.message().find(first.address().text()), std::string::npos);
  }
}

TEST(ListeningSocket, TakesTheFirstFreePortOfARange) {
  ListeningSocket first(parse_endpoint("127.0.0.1:0"));
  const uint16_t taken = first.address().port();
  const PortRange only_taken = {taken, taken};
  EXPECT_EQ(status_of([&] { ListeningSocket(parse_endpoint("127.0.0.1:0"), only_taken); }),
            Status::kAddressInUse);
  const PortRange wider = {taken, static_cast<uint16_t>(std::min(65535, taken + 200))};
  if (wider.last == taken) GTEST_SKIP() << "the kernel gave the last port";
  ListeningSocket second(parse_endpoint("127.0.0.1:0"), wider);
  EXPECT_GT(second.address().port(), taken);
  EXPECT_LE(second.address().port(), wider.last);
}

TEST(ListeningSocket, RemovesItsPathAndTakesOverOneLeftBehind) {
  const std::string path = "/tmp/towline-test-" + std::to_string(getpid()) + ".sock";
  struct stat status = {};
  {
    ListeningSocket socket(parse_endpoint("unix:" + path));
  }
  EXPECT_NE(lstat(path.c_str(), &status), 0);
  {  // as a killed process leaves it
    const UniqueFd left = open_stream_socket(AF_UNIX);
    const SocketAddress address = SocketAddress::unix_socket(path);
    ASSERT_EQ(bind(left.get(), address.get(), address.size()), 0);
  }
  ListeningSocket again(parse_endpoint("unix:" + path));
  EXPECT_TRUE(answers(again, again.address()));
  EXPECT_EQ(status_of([&] { ListeningSocket(parse_endpoint("unix:" + path)); }), Status::kAddressInUse);
}

TEST(ListeningSocket, LeavesAFileThatIsNoSocketAlone) {
  char path[] = "/tmp/towline-test-XXXXXX";
  const UniqueFd file(mkstemp(path));
  EXPECT_EQ(status_of([&] { ListeningSocket(parse_endpoint(std::string("unix:") + path)); }),
            Status::kAddressInUse);
  EXPECT_EQ(unlink(path), 0);
}

TEST(ListeningSocket, ClosesConnectionsItHasNoDescriptorFor) {
  ListeningSocket socket(parse_endpoint("127.0.0.1:0"));
  const UniqueFd client = open_stream_socket(AF_INET);
  start_connect(client.get(), socket.address());
  pollfd watched = {socket.fd(), POLLIN, 0};
  ASSERT_EQ(poll(&watched, 1, 10'000), 1);
  rlimit before = {};
  getrlimit(RLIMIT_NOFILE, &before);
  const auto next = static_cast<rlim_t>(UniqueFd(dup(client.get())).get());
  const rlimit none = {next, before.rlim_max};
  setrlimit(RLIMIT_NOFILE, &none);
  int error = 0;
  EXPECT_FALSE(socket.accept(nullptr, &error).valid());
  int error_of_none = 0;
  EXPECT_FALSE(socket.accept(nullptr, &error_of_none).valid());
  setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_EQ(error, EMFILE);
  EXPECT_EQ(error_of_none, 0) << "nobody was turned away";
}

TEST(OpenPorts, AreSaidOnceUnlessOnlyThisHostReachesThem) {
  const ListeningSocket inner(parse_endpoint("127.0.0.1:0"));
  const ListeningSocket outer(parse_endpoint("*:0"));
  const ListeningSocket* const inside[] = {&inner};
  const ListeningSocket* const both[] = {&inner, &outer};
  std::vector<std::string> lines;
  set_log_sink([](void* to, LogLevel,
                  std::string_view line) { static_cast<std::vector<std::string>*>(to)->emplace_back(line); },
               &lines);
  warn_of_open_ports("a test", inside);
  EXPECT_TRUE(lines.empty());
  warn_of_open_ports("a test", both);
  warn_of_open_ports("a test", both);
  set_log_sink(nullptr, nullptr);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find(outer.address().text()), std::string::npos) << lines[0];
  EXPECT_EQ(lines[0].find(inner.address().text()), std::string::npos) << lines[0];
}

TEST(Advertised, PrefersWhatIsConfigured) {
  const ListeningSocket socket(parse_endpoint("127.0.0.1:0"));
  const std::vector<const ListeningSocket*> sockets = {&socket};
  const uint16_t port = socket.address().port();
  EXPECT_EQ(advertised("", sockets).front(), socket.address().endpoint());
  const auto endpoints = advertised("gateway:9, other", sockets);
  ASSERT_EQ(endpoints.size(), 2u);
  EXPECT_EQ(endpoints[0].text(), "gateway:9");
  EXPECT_EQ(endpoints[1].port, port);
}

TEST(Advertised, ListsInterfacesForEveryAddress) {
  const ListeningSocket socket(parse_endpoint("*:0"));
  const std::vector<const ListeningSocket*> sockets = {&socket};
  const auto endpoints = advertised("", sockets);
  ASSERT_FALSE(endpoints.empty());
  for (const Endpoint& endpoint : endpoints) EXPECT_NE(endpoint.host, "::");
}

TEST(OwnAddress, IsTheOneThatThePeerSees) {
  ListeningSocket listener(parse_endpoint("127.0.0.1:0"));
  const UniqueFd client = open_stream_socket(AF_INET);
  const SocketAddress own = *numeric_address(parse_endpoint("127.0.0.2:0"));
  ASSERT_EQ(start_from(client.get(), own), 0);
  const int error = start_connect(client.get(), listener.address());
  ASSERT_TRUE(error == 0 || error == EINPROGRESS) << error;
  pollfd watched = {listener.fd(), POLLIN, 0};
  ASSERT_EQ(poll(&watched, 1, 10'000), 1);
  int accept_error = 0;
  SocketAddress peer;
  ASSERT_TRUE(listener.accept(&peer, &accept_error).valid());
  EXPECT_EQ(peer.with_port(0), own);
  EXPECT_NE(peer.port(), 0);
}

TEST(OwnAddress, AnInterfaceHasItsOwnAndNoOtherOnes) {
  const std::vector<SocketAddress> loopback = interface_addresses("lo");
  EXPECT_TRUE(std::all_of(loopback.begin(), loopback.end(),
                          [](const SocketAddress& address) { return address.is_loopback(); }));
  EXPECT_TRUE(interface_addresses("nowhere").empty());
  EXPECT_GE(interface_addresses("").size(), loopback.size());
}

}  // namespace
}  // namespace towline
