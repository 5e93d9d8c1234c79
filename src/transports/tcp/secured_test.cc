// Connections with keys (src/secure): what moves over them, and who is refused.
#include <gtest/gtest.h>

#include "secure/test_support.h"
#include "transports/tcp/tcp_fixture.h"

namespace towline::tcp {
namespace {

class TcpSecured : public TcpTest {
 protected:
  void SetUp() override { TOWLINE_NEEDS_TLS(); }
  FakeAgent::Settings with_key(char letter, FakeAgent::Settings more = {}) {
    more["tcp.listen"] = "127.0.0.1:0";
    more["secure.key_file"] = folder.file(std::string("key-") + letter, secure::testing::key_text(letter));
    return more;
  }
  FakeAgent::Settings with_certificate(const secure::Keys::Files& files, FakeAgent::Settings more = {}) {
    more["tcp.listen"] = "127.0.0.1:0";
    more["secure.certificate_file"] = files.certificate;
    more["secure.private_key_file"] = files.private_key;
    more["secure.authority_file"] = files.authority;
    return more;
  }
  void open_two(const FakeAgent::Settings& of_a, const FakeAgent::Settings& of_b) {
    a = std::make_unique<FakeAgent>(towline_tcp_plugin(), "a", of_a);
    b = std::make_unique<FakeAgent>(towline_tcp_plugin(), "b", of_b);
    ASSERT_EQ(a->status, Status::kOk) << a->failure;
    ASSERT_EQ(b->status, Status::kOk) << b->failure;
  }
  // Why `a` could not connect.
  std::string refused() {
    FakeLink& link = a->connect(*b, 20 * kSecondNs, 0);
    EXPECT_TRUE(turn([&] { return link.ups + link.downs != 0; }));
    EXPECT_EQ(link.downs, 1u);
    EXPECT_EQ(b->accepted_link(), nullptr);
    return link.text;
  }
  const secure::testing::Folder folder;
};

TEST_F(TcpSecured, MovesBytesBothWays) {
  open(with_key('k'));
  make_memory();
  FakeLink& link = connected();
  move_and_check(link);
  EXPECT_NE(describe(*a, link).find("TLS 1.3, TLS_AES_128_GCM_SHA256"), std::string::npos)
      << describe(*a, link);
}

TEST_F(TcpSecured, AddsSocketsThatAreSecuredToo) {
  open(with_key('k', {{"tuning.tcp.sockets", "4"}}));
  make_memory();
  FakeLink& link = connected();
  for (int i = 0; i < 4; ++i) move_and_check(link);
  const auto secured = [&] {
    const std::string text = describe(*a, link);
    std::size_t count = 0;
    for (std::size_t at = text.find("TLS 1.3, TLS_"); at != std::string::npos;
         at = text.find("TLS 1.3, TLS_", at + 1))
      ++count;
    return count;
  };
  EXPECT_TRUE(turn([&] { return secured() == 4; })) << describe(*a, link);
  move_and_check(link);
}

TEST_F(TcpSecured, LendsNothingToTheKernel) {
  open(with_key('k', {{"tuning.tcp.zerocopy", "on"}}));
  make_memory();
  FakeLink& link = connected();
  move_and_check(link);
  EXPECT_EQ(describe(*a, link).find("lent to the kernel"), std::string::npos);
}

TEST_F(TcpSecured, AnotherKeyIsRefused) {
  open_two(with_key('k'), with_key('l'));
  EXPECT_NE(refused().find("other keys (secure.*)"), std::string::npos);
}

TEST_F(TcpSecured, WhoHasNoKeysIsRefusedAndToldWhy) {
  open_two({{"tcp.listen", "127.0.0.1:0"}}, with_key('k'));
  const std::string text = refused();
  EXPECT_NE(text.find("it takes TLS connections only, and this side has no keys (secure.*)"),
            std::string::npos)
      << text;
}

TEST_F(TcpSecured, WhoHasKeysRefusesAnAgentWithoutAny) {
  open_two(with_key('k'), {{"tcp.listen", "127.0.0.1:0"}});
  const std::string text = refused();
  EXPECT_NE(text.find("or none"), std::string::npos) << text;
}

TEST_F(TcpSecured, SurvivesConnectionsCutAtRandomPlaces) {
  for (int seed = 1; seed <= 10; ++seed) {
    open(with_key('k', {{"faults", "seed=" + std::to_string(seed) + ",cut=3e-7,short=0.3"}}));
    make_memory(1 << 20);
    FakeLink& link = connected();
    FakePlan plan(key);
    towline_prepared* write = a->prepare(link, whole(plan), TOWLINE_WRITE);
    if (write == nullptr) continue;  // it was cut before
    const Status begun = a->submit(write, 1, plan.bytes(), "");
    if (begun != Status::kInProgress) continue;
    ASSERT_TRUE(turn([&] { return a->ended(1) || link.downs != 0; })) << seed;
    if (a->ended(1) && a->outcome(1) == Status::kOk) {
      EXPECT_EQ(remote, local) << seed;
    }
  }
}

TEST_F(TcpSecured, AWrongKeyFileIsNamed) {
  const FakeAgent agent(towline_tcp_plugin(), "a", {{"secure.key_file", folder.at("missing")}});
  EXPECT_NE(agent.status, Status::kOk);
  EXPECT_NE(agent.failure.find(folder.at("missing")), std::string::npos) << agent.failure;
}

TEST_F(TcpSecured, TheNameThatFitIsInTheRoute) {
  secure::testing::Authority authority(folder);
  if (!authority.good()) GTEST_SKIP() << "the openssl program, which makes the certificates, is not there";
  const FakeAgent::Settings peers = {{"secure.peers", "a.example.com, b-*.example.com"}};
  open_two(with_certificate(authority.sign("a", "DNS:a.example.com"), peers),
           with_certificate(authority.sign("b", "DNS:b-1.example.com"), peers));
  make_memory();
  FakeLink& link = connected();
  move_and_check(link);
  EXPECT_NE(describe(*a, link).find(", b-1.example.com"), std::string::npos) << describe(*a, link);
}

TEST_F(TcpSecured, ACallerWhoseNameDoesNotFitIsToldWhatItHasShown) {
  secure::testing::Authority authority(folder);
  if (!authority.good()) GTEST_SKIP() << "the openssl program, which makes the certificates, is not there";
  open_two(with_certificate(authority.sign("a", "DNS:a.example.com")),
           with_certificate(authority.sign("b", "DNS:b.example.com"), {{"secure.peers", "b.example.com"}}));
  const std::string text = refused();
  EXPECT_NE(text.find("refused this side's certificate, of DNS:a.example.com"), std::string::npos) << text;
}

// The called side can't send its certificates at once, the caller neither these nor its hello.
TEST_F(TcpSecured, CertificatesThatDoNotFitIntoASocketAreSent) {
  secure::testing::Authority authority(folder);
  if (!authority.good()) GTEST_SKIP() << "the openssl program, which makes the certificates, is not there";
  const FakeAgent::Settings narrow = {{"tuning.tcp.socket_buffer", "4KiB"}};
  open_two(with_certificate(authority.sign_large("a"), narrow),
           with_certificate(authority.sign_large("b"), narrow));
  secure::testing::shrink_listening_sockets();
  make_memory(64 << 10);  // 1 MiB takes such a socket half a minute, with keys or without
  FakeLink& link = connected();
  move_and_check(link);
}

// A peer that begins a handshake and falls silent has the time that a hello has.
TEST_F(TcpSecured, AHandshakeThatStandsStillIsCut) {
  open(with_key('k', {{"tuning.tcp.handshake_timeout", "100ms"}}));
  Stream silent;
  ASSERT_EQ(
      Stream::connect(resolve(parse_endpoint(endpoints_of(*b).front()), soon()).front(), soon(), silent), 0);
  const uint8_t begin[] = {0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc};  // of a ClientHello
  ASSERT_EQ(silent.write_all(begin, soon()), Status::kOk);
  uint8_t answer[256];
  StreamResult got;
  EXPECT_TRUE(turn([&] { return (got = silent.read(answer, sizeof answer)).over(); }));
}

}  // namespace
}  // namespace towline::tcp
