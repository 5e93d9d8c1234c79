#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <future>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/os/socket_address.h"
#include "secure/keys.h"
#include "secure/test_support.h"
#if defined(TOWLINE_HAVE_OPENSSL)
#include "secure/credentials.h"
#include "secure/session.h"
#endif

#if defined(TOWLINE_HAVE_OPENSSL)
namespace towline::secure {
namespace {

using testing::Authority;
using testing::Folder;
using testing::key_text;
using Kind = StreamResult::Kind;

Deadline in_time() { return Deadline::after(monotonic_now_ns(), 60 * kSecondNs); }

// Two ends of a TCP connection, with keys or without.
struct Ends {
  Ends(const MaybeKeys& of_a, const MaybeKeys& of_b) {
    ListeningSocket door({false, "127.0.0.1", 0}, {});
    a = Stream::dial(door.address().endpoint(), in_time(), Stream::Patience::kNone);
    int error = 0;
    while (!b.valid()) b = Stream::accepted(door.accept(nullptr, &error));
    secure(of_a, a, Side::kCaller);
    secure(of_b, b, Side::kCalled);
  }
  // Both sides' handshakes; what each came to.
  std::pair<Status, Status> meet() {
    auto other = std::async(std::launch::async, [&] { return b.shake_hands(in_time()); });
    const Status mine = a.shake_hands(in_time());
    return {mine, other.get()};
  }
  Stream a;
  Stream b;
};

class Secure : public ::testing::Test {
 protected:
  std::shared_ptr<const Keys> shared(char letter = 'k') {
    return Keys::read({folder_.file(std::string("key-") + letter, key_text(letter)), "", "", ""});
  }
  Folder folder_;
};

std::string why(const Stream& stream) {
  return stream.session() == nullptr || stream.session()->why() == nullptr ? "" : stream.session()->why();
}

std::vector<uint8_t> numbered(std::size_t bytes) {
  std::vector<uint8_t> data(bytes);
  uint32_t state = 1;
  for (uint8_t& byte : data) byte = static_cast<uint8_t>((state = state * 1664525 + 1013904223) >> 24);
  return data;
}

void move_both_ways(Ends& ends, std::size_t bytes) {
  const std::vector<uint8_t> data = numbered(bytes);
  auto echo = std::async(std::launch::async, [&] {
    std::vector<uint8_t> got(bytes);
    Status status = ends.b.read_all(got, in_time());
    if (!is_error(status)) status = ends.b.write_all(got, in_time());
    return status;
  });
  EXPECT_EQ(ends.a.write_all(data, in_time()), Status::kOk) << why(ends.a) << " | " << why(ends.b);
  std::vector<uint8_t> back(bytes);
  EXPECT_EQ(ends.a.read_all(back, in_time()), Status::kOk);
  EXPECT_EQ(echo.get(), Status::kOk);
  EXPECT_EQ(back, data);
}

TEST_F(Secure, BytesGoBothWaysWithTheSameKey) {
  Ends ends(shared(), shared());
  for (const std::size_t bytes : {1u, 100u, 16384u, 16385u, 5u << 20}) move_both_ways(ends, bytes);
  EXPECT_NE(ends.a.session()->describe().find("TLS 1.3, TLS_AES_128_GCM_SHA256"), std::string::npos);
}

// A handshake is several small writes: each would wait for the answer to the one before, which takes 40 ms.
TEST_F(Secure, NothingWaitsToFillAPacket) {
  Ends ends(shared(), shared());
  for (const Stream* stream : {&ends.a, &ends.b}) {
    int at_once = 0;
    socklen_t bytes = sizeof at_once;
    ASSERT_EQ(getsockopt(stream->fd(), IPPROTO_TCP, TCP_NODELAY, &at_once, &bytes), 0);
    EXPECT_NE(at_once, 0);
  }
}

TEST_F(Secure, TheKeyIsWhatItsFileSaysLessTheLineEnd) {
  const auto with = Keys::read({folder_.file("with", key_text()), "", "", ""});
  const auto without = Keys::read({folder_.file("without", std::string(40, 'k')), "", "", ""});
  Ends ends(with, without);
  move_both_ways(ends, 1000);
}

// Hosts take a new key one after another: in every step each has what it had, or what the next step brings.
TEST_F(Secure, AFleetIsRolledToAnotherKeyInThreeSteps) {
  const std::string a = key_text('a'), b = key_text('b');
  const std::string steps[] = {a, a + b, b + a, b};
  for (std::size_t step = 0; step + 1 < std::size(steps); ++step) {
    for (const bool caller_is_first : {true, false}) {
      const auto before = Keys::read({folder_.file("before", steps[step]), "", "", ""});
      const auto after = Keys::read({folder_.file("after", steps[step + 1]), "", "", ""});
      Ends ends(caller_is_first ? before : after, caller_is_first ? after : before);
      EXPECT_EQ(ends.meet(), std::pair(Status::kOk, Status::kOk)) << step << ", " << caller_is_first;
    }
  }
}

// The called side wants another group of Diffie and Hellman's: the hello that counts is the second one.
TEST_F(Secure, TheKeyOfACallerIsFoundWhereItsHelloHasToBeSaidAgain) {
  const auto called = std::make_shared<const Credentials>(
      Keys::Files{folder_.file("ba", key_text('b') + key_text('a')), "", "", ""});
  char group[] = "P-384";
  ASSERT_EQ(OpenSsl::get().SSL_CTX_ctrl(called->context(), SSL_CTRL_SET_GROUPS_LIST, 0, group), 1);
  for (const char letter : {'a', 'b', 'c'}) {
    Ends ends(shared(letter), nullptr);
    ends.b.secure(std::make_unique<Session>(called, Side::kCalled));
    const Status status = letter == 'c' ? Status::kPermissionDenied : Status::kOk;
    EXPECT_EQ(ends.meet(), std::pair(status, status)) << letter;
  }
}

TEST_F(Secure, NoneOfSeveralKeysIsRefusedOnBothSides) {
  const auto ours = Keys::read({folder_.file("ours", key_text('a') + key_text('b')), "", "", ""});
  const auto theirs = Keys::read({folder_.file("theirs", key_text('c') + key_text('d')), "", "", ""});
  for (const MaybeKeys& other : {MaybeKeys(theirs), MaybeKeys(shared('e'))}) {
    Ends ends(ours, other);
    EXPECT_EQ(ends.meet(), std::pair(Status::kPermissionDenied, Status::kPermissionDenied));
    EXPECT_NE(why(ends.a).find("other keys"), std::string::npos) << why(ends.a);
    EXPECT_NE(why(ends.b).find("other keys"), std::string::npos) << why(ends.b);
  }
}

TEST_F(Secure, ALineIsAKeyLessTheBlanksAtItsEnd) {
  const auto lines = Keys::read(
      {folder_.file("lines", "\r\n" + std::string(40, 'l') + " \t\r\n\n" + std::string(40, 'k') + "\r\n\n"),
       "", "", ""});
  for (const char letter : {'l', 'k'}) {
    Ends ends(shared(letter), lines);
    move_both_ways(ends, 1000);
  }
}

TEST_F(Secure, AFileThatIsNoTextIsOneKey) {
  const std::string bytes =
      std::string("\x01\xff\0\n", 4) + std::string(40, 'k') + "\n" + std::string(40, 'l');
  const auto whole = Keys::read({folder_.file("whole", bytes), "", "", ""});
  Ends ends(whole, Keys::read({folder_.file("end", bytes + "\n"), "", "", ""}));
  move_both_ways(ends, 1000);
  EXPECT_EQ(Ends(shared('l'), whole).meet().second, Status::kPermissionDenied);
}

TEST_F(Secure, AnotherKeyIsRefusedOnBothSides) {
  Ends ends(shared('k'), shared('l'));
  const auto [caller, called] = ends.meet();
  EXPECT_EQ(caller, Status::kPermissionDenied);
  EXPECT_EQ(called, Status::kPermissionDenied);
  EXPECT_NE(why(ends.a).find("other keys"), std::string::npos) << why(ends.a);
  char byte = 0;
  EXPECT_EQ(ends.a.read(&byte, 1).kind, Kind::kFailed);
  EXPECT_EQ(ends.a.write(&byte, 1).kind, Kind::kFailed);
}

TEST_F(Secure, WhoHasNoKeysIsRefused) {
  Ends ends(nullptr, shared());
  const char hello[] = "an old hello of some length, in the clear";
  ASSERT_TRUE(ends.a.write(hello, sizeof hello).moved());
  EXPECT_EQ(ends.b.shake_hands(in_time()), Status::kPermissionDenied);
}

TEST_F(Secure, AServerWithoutKeysIsRefused) {
  Ends ends(shared(), nullptr);
  auto other = std::async(std::launch::async, [&] {
    char first[64];
    EXPECT_EQ(ends.b.wait(POLLIN, in_time()), POLLIN);
    EXPECT_TRUE(ends.b.read(first, sizeof first).moved());
    EXPECT_EQ(first[0], 0x16);  // no word of ours is in the clear
    ends.b.close();
  });
  EXPECT_EQ(ends.a.shake_hands(in_time()), Status::kPermissionDenied);
  EXPECT_NE(why(ends.a).find("or none"), std::string::npos);
  other.get();
}

TEST_F(Secure, BothSidesShowCertificatesOfOneAuthority) {
  Authority authority(folder_);
  if (!authority.good()) GTEST_SKIP() << "the openssl program, which makes the certificates, is not there";
  Ends ends(Keys::read(authority.sign("alice")), Keys::read(authority.sign("bob")));
  move_both_ways(ends, 1 << 20);
}

TEST_F(Secure, ACertificateOfAnotherAuthorityIsRefused) {
  Authority authority(folder_);
  Authority other(folder_, "other");
  if (!authority.good() || !other.good())
    GTEST_SKIP() << "the openssl program, which makes the certificates, is not there";
  const auto ours = Keys::read(authority.sign("alice"));
  Keys::Files files = other.sign("mallory");
  {
    Ends ends(ours, Keys::read(files));  // the caller refuses
    EXPECT_EQ(ends.meet().first, Status::kPermissionDenied);
    EXPECT_NE(why(ends.a).find("authority_file"), std::string::npos);
  }
  files.authority = authority.sign("alice").authority;  // trusts us, but has no certificate that we trust
  Ends ends(Keys::read(files), ours);  // the called one refuses, and the caller hears of it later
  auto called = std::async(std::launch::async, [&] { return ends.b.shake_hands(in_time()); });
  EXPECT_EQ(ends.a.shake_hands(in_time()), Status::kOk);
  EXPECT_EQ(called.get(), Status::kPermissionDenied);
  uint8_t byte = 0;
  EXPECT_EQ(ends.a.read_all({&byte, 1}, in_time()), Status::kPeerLost);
  EXPECT_NE(why(ends.a).find("other keys"), std::string::npos) << why(ends.a);
}

TEST_F(Secure, AKeyAndACertificateDoNotMeet) {
  Authority authority(folder_);
  if (!authority.good()) GTEST_SKIP() << "the openssl program, which makes the certificates, is not there";
  const auto certificates = Keys::read(authority.sign("alice"));
  {
    Ends ends(shared(), certificates);
    const auto [caller, called] = ends.meet();
    EXPECT_EQ(caller, Status::kPermissionDenied);
    EXPECT_EQ(called, Status::kPermissionDenied);
  }
  Ends ends(certificates, shared());
  const auto [caller, called] = ends.meet();
  EXPECT_EQ(caller, Status::kPermissionDenied);
  EXPECT_EQ(called, Status::kPermissionDenied);
}

// ---- names

class SecureNames : public Secure {
 protected:
  void SetUp() override {
    if (!authority_.good()) GTEST_SKIP() << "the openssl program, which makes the certificates, is not there";
  }
  // With a certificate of these names, for peers of these.
  std::shared_ptr<const Keys> keys(const std::string& names, const std::vector<std::string>& peers = {}) {
    Keys::Files files = authority_.sign("c" + std::to_string(++count_), names);
    EXPECT_TRUE(authority_.good()) << names;
    files.peers = peers;
    return Keys::read(files);
  }
  Authority authority_{folder_};
  int count_ = 0;
};

TEST_F(SecureNames, BothSidesTakeTheNamesThatFit) {
  Ends ends(keys("DNS:prefill-0.serving.example.com", {"spiffe://example.com/ns/serving/*"}),
            keys("DNS:other.example.org,URI:spiffe://example.com/ns/serving/decode",
                 {"decode-*.serving.example.com", "prefill-*.serving.example.com"}));
  move_both_ways(ends, 100'000);
  EXPECT_NE(ends.a.session()->describe().find(", spiffe://example.com/ns/serving/decode"), std::string::npos);
  EXPECT_NE(ends.b.session()->describe().find(", prefill-0.serving.example.com"), std::string::npos);
}

TEST_F(SecureNames, TheCalledOneOfAnotherNameIsRefusedOnBothSides) {
  Ends ends(keys("DNS:a.example.com", {"b.example.com", "spiffe://example.com/*"}),
            keys("DNS:c.example.com,IP:127.0.0.1,URI:spiffe://example.org/c"));
  const auto [caller, called] = ends.meet();
  EXPECT_EQ(caller, Status::kPermissionDenied);
  EXPECT_EQ(called, Status::kPermissionDenied);
  EXPECT_NE(
      why(ends.a).find("DNS:c.example.com, URI:spiffe://example.org/c; secure.peers takes b.example.com, "
                       "spiffe://example.com/*"),
      std::string::npos)
      << why(ends.a);
  EXPECT_NE(why(ends.b).find("this side's certificate, of DNS:c.example.com, URI:spiffe://example.org/c"),
            std::string::npos)
      << why(ends.b);
  EXPECT_NE(why(ends.b).find("secure.peers"), std::string::npos) << why(ends.b);
}

TEST_F(SecureNames, ACallerOfAnotherNameIsRefusedBeforeItsBytesAreRead) {
  Ends ends(keys("DNS:a.example.com"), keys("DNS:c.example.com", {"b.example.com"}));
  auto called = std::async(std::launch::async, [&] {
    uint8_t byte = 0;
    return ends.b.read_all({&byte, 1}, in_time());
  });
  EXPECT_EQ(ends.a.shake_hands(in_time()), Status::kOk);  // it can't know yet
  (void)ends.a.write("x", 1);
  EXPECT_EQ(called.get(), Status::kPeerLost);
  EXPECT_NE(why(ends.b).find("DNS:a.example.com; secure.peers takes b.example.com"), std::string::npos)
      << why(ends.b);
  uint8_t byte = 0;
  EXPECT_EQ(ends.a.read_all({&byte, 1}, in_time()), Status::kPeerLost);
  EXPECT_NE(why(ends.a).find("this side's certificate, of DNS:a.example.com"), std::string::npos)
      << why(ends.a);
}

// A common name is for people.
TEST_F(SecureNames, ACertificateWithoutNamesFitsNothing) {
  Ends ends(keys("", {"*"}), keys("IP:127.0.0.1"));
  EXPECT_EQ(ends.meet().first, Status::kPermissionDenied);
  EXPECT_NE(why(ends.a).find("no DNS or URI name"), std::string::npos) << why(ends.a);
}

TEST_F(SecureNames, ANameWithAByteThatNoNameHasIsRefused) {
  for (const char* odd : {"00", "0a", "ff"}) {  // DNS: b, the byte, .example.com
    const std::string names =
        std::string("DER:30:10:82:0e:62:") + odd + ":2e:65:78:61:6d:70:6c:65:2e:63:6f:6d";
    Ends ends(keys("DNS:a.example.com", {"*.example.com", "b"}), keys(names));
    EXPECT_EQ(ends.meet().first, Status::kPermissionDenied) << odd;
    EXPECT_NE(why(ends.a).find("names don't have"), std::string::npos) << why(ends.a);
  }
}

TEST_F(SecureNames, TooManyNamesAreRefused) {
  std::string many = "DNS:a.example.com";
  for (int i = 0; i < 256; ++i) many += ",DNS:a" + std::to_string(i);
  Ends ends(keys("DNS:a.example.com", {"a.example.com"}), keys(many));
  EXPECT_EQ(ends.meet().first, Status::kPermissionDenied);
  EXPECT_NE(why(ends.a).find("256"), std::string::npos) << why(ends.a);
}

TEST_F(SecureNames, TheAuthorityIsAskedFirst) {
  Authority other(folder_, "other");
  Ends ends(keys("DNS:a.example.com", {"b.example.com"}),
            Keys::read(other.sign("mallory", "DNS:b.example.com")));
  EXPECT_EQ(ends.meet().first, Status::kPermissionDenied);
  EXPECT_NE(why(ends.a).find("authority_file"), std::string::npos) << why(ends.a);
}

// The sender stops at a full socket, and nothing lies in the session that only a further call would send.
TEST_F(Secure, WhatDidNotFitIsWritableLater) {
  Ends ends(shared(), shared());
  ASSERT_EQ(ends.meet(), std::pair(Status::kOk, Status::kOk));
  const std::vector<uint8_t> data = numbered(64 << 20);
  std::size_t sent = 0;
  StreamResult result;
  while (
      (result = ends.a.write(data.data() + sent, std::min<std::size_t>(data.size() - sent, 100'001))).moved())
    sent += result.bytes;
  ASSERT_TRUE(result.blocked());
  ASSERT_LT(sent, data.size());
  EXPECT_FALSE(ends.a.ready(POLLOUT));
  std::vector<uint8_t> got(sent + 3);
  std::size_t have = 0;
  while (!ends.a.ready(POLLOUT)) {
    const StreamResult read = ends.b.read(got.data() + have, sent - have);
    ASSERT_FALSE(read.over());
    have += read.bytes;
  }
  const uint8_t rest[] = {data[sent], 'x', 'y'};
  EXPECT_EQ(ends.a.write(rest, 1).bytes, 1u);
  EXPECT_EQ(ends.a.write(rest + 1, 2).bytes, 2u);
  ASSERT_EQ(ends.b.read_all(std::span(got).subspan(have), in_time()), Status::kOk);
  EXPECT_TRUE(std::equal(got.begin(), got.end() - 3, data.begin()));
  EXPECT_EQ(std::memcmp(got.data() + sent, rest, 3), 0);
}

// The other side answers what it has. It must not have what this side has not counted as sent.
TEST_F(Secure, ReadingDoesNotSendWhatWasHeldBack) {
  Ends ends(shared(), shared());
  ASSERT_EQ(ends.meet(), std::pair(Status::kOk, Status::kOk));
  const std::vector<uint8_t> data = numbered(64 << 20);
  std::size_t sent = 0;
  for (StreamResult result; (result = ends.a.write(data.data() + sent, 100'001)).moved();)
    sent += result.bytes;
  std::vector<uint8_t> got(sent + 100'000);
  std::size_t have = 0;
  uint8_t none = 0;
  bool drained = false;
  while (!drained) {
    drained = !ends.b.ready(POLLIN);
    EXPECT_TRUE(ends.a.read(&none, 1).blocked());
    const StreamResult read = ends.b.read(got.data() + have, got.size() - have);
    ASSERT_FALSE(read.over());
    have += read.bytes;
  }
  EXPECT_LE(have, sent);
  EXPECT_GT(ends.a.write(data.data() + sent, 100).bytes, 0u);
}

TEST_F(Secure, TellsOfBytesThatNoPollCanSee) {
  Ends ends(shared(), shared());
  ASSERT_EQ(ends.meet(), std::pair(Status::kOk, Status::kOk));
  ASSERT_EQ(ends.a.write_all(numbered(1000), in_time()), Status::kOk);
  ASSERT_EQ(ends.b.wait(POLLIN, in_time()), POLLIN);
  uint8_t bytes[1000];
  ASSERT_EQ(ends.b.read(bytes, 10).bytes, 10u);
  pollfd polled = {ends.b.fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&polled, 1, 0), 0);
  EXPECT_TRUE(ends.b.unread());
  EXPECT_TRUE(ends.b.ready(POLLIN));
  EXPECT_EQ(ends.b.wait(POLLIN, in_time()), POLLIN);
  ASSERT_EQ(ends.b.read_all({bytes, 990}, in_time()), Status::kOk);
  EXPECT_TRUE(ends.b.read(bytes, 1).blocked());
  EXPECT_FALSE(ends.b.unread());
}

TEST_F(Secure, TheEndIsToldAfterTheLastBytes) {
  Ends ends(shared(), shared());
  ASSERT_EQ(ends.meet(), std::pair(Status::kOk, Status::kOk));
  ASSERT_EQ(ends.a.write_all(numbered(100), in_time()), Status::kOk);
  ends.a.close();
  uint8_t bytes[200];
  std::size_t have = 0;
  StreamResult got;
  do {
    ASSERT_NE(ends.b.wait(POLLIN, in_time()), 0);
    got = ends.b.read(bytes, sizeof bytes);
    have += got.bytes;
  } while (!got.over());
  EXPECT_EQ(have, 100u);
  EXPECT_EQ(got.kind, Kind::kEnded);
}

// A byte changed on the way ends the connection, and is not handed on.
TEST_F(Secure, ChangedBytesEndTheConnection) {
  Ends ends(shared(), nullptr);
  Ends on(nullptr, shared());  // ends.b and on.a are one in the middle
  std::atomic<bool> change{false};
  std::atomic<bool> stop{false};
  const auto pump = [&](Stream& from, Stream& to, bool changes) {
    std::vector<uint8_t> buffer(4096);
    while (!stop) {
      const StreamResult got = from.read(buffer.data(), buffer.size());
      if (got.over()) return;
      if (got.blocked()) {
        (void)from.wait(POLLIN, Deadline::after(monotonic_now_ns(), 10 * kMillisecondNs));
        continue;
      }
      if (changes && change) buffer[got.bytes / 2] ^= 1;
      if (is_error(to.write_all({buffer.data(), got.bytes}, in_time()))) return;
    }
  };
  std::thread there([&] { pump(ends.b, on.a, true); });
  std::thread back([&] { pump(on.a, ends.b, false); });
  auto called = std::async(std::launch::async, [&] { return on.b.shake_hands(in_time()); });
  EXPECT_EQ(ends.a.shake_hands(in_time()), Status::kOk);
  EXPECT_EQ(called.get(), Status::kOk);
  ASSERT_EQ(ends.a.write_all(numbered(100), in_time()), Status::kOk);
  std::vector<uint8_t> got(100);
  ASSERT_EQ(on.b.read_all(got, in_time()), Status::kOk);
  EXPECT_EQ(got, numbered(100));
  change = true;
  ASSERT_EQ(ends.a.write_all(numbered(100), in_time()), Status::kOk);
  EXPECT_EQ(on.b.read_all(got, in_time()), Status::kPeerLost);
  EXPECT_NE(why(on.b), "");
  stop = true;
  there.join();
  back.join();
}

TEST_F(Secure, OneThreadReadsWhileAnotherWrites) {
  Ends ends(shared(), shared());
  ASSERT_EQ(ends.meet(), std::pair(Status::kOk, Status::kOk));
  constexpr std::size_t kBytes = 8 << 20;
  const std::vector<uint8_t> data = numbered(kBytes);
  const auto send = [&](Stream& stream) { EXPECT_EQ(stream.write_all(data, in_time()), Status::kOk); };
  const auto take = [&](Stream& stream) {
    std::vector<uint8_t> got(kBytes);
    EXPECT_EQ(stream.read_all(got, in_time()), Status::kOk);
    EXPECT_TRUE(got == data);
  };
  std::thread threads[] = {std::thread(send, std::ref(ends.a)), std::thread(take, std::ref(ends.a)),
                           std::thread(send, std::ref(ends.b)), std::thread(take, std::ref(ends.b))};
  for (std::thread& thread : threads) thread.join();
}

TEST_F(Secure, UnixSocketsStayAsTheyAre) {
  int fds[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
  Stream a = Stream::accepted(UniqueFd(fds[0]));
  const UniqueFd b(fds[1]);
  shared()->secure(a, Side::kCaller);
  EXPECT_EQ(a.session(), nullptr);
}

// ---- what is set

void expect_refused(const Keys::Files& files, Status status, const std::string& says) {
  try {
    (void)Keys::read(files);
    FAIL() << "taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), status) << error.message();
    EXPECT_NE(error.message().find(says), std::string::npos) << error.message();
  }
}

TEST_F(Secure, WrongFilesAreNamed) {
  expect_refused({folder_.at("missing"), "", "", ""}, Status::kNotFound,
                 "secure.key_file = \"" + folder_.at("missing"));
  expect_refused({folder_.file("short", "secret\n"), "", "", ""}, Status::kInvalidArgument,
                 "openssl rand -hex 32");
  expect_refused({folder_.file("huge", std::string(70'000, 'k')), "", "", ""}, Status::kInvalidArgument,
                 "65536");
  expect_refused({folder_.file("second", key_text() + "secret\n"), "", "", ""}, Status::kInvalidArgument,
                 "line 2 has 6 bytes");
  const std::string comment = "# of the serving fleet, changed in November\n";
  expect_refused({folder_.file("comment", key_text() + comment), "", "", ""}, Status::kInvalidArgument,
                 "line 2 begins as a comment");
  const std::string pem = "-----BEGIN OPENSSH PRIVATE KEY-----\n" + key_text() + key_text('l');
  expect_refused({folder_.file("pem", pem), "", "", ""}, Status::kInvalidArgument,
                 "line 1 begins as a comment");
  std::string many;
  for (char c = 'a'; c < 'a' + 17; ++c) many += key_text(c);
  expect_refused({folder_.file("many", many), "", "", ""}, Status::kInvalidArgument, "17 keys");
  expect_refused({folder_.path(), "", "", ""}, Status::kInvalidArgument, "secure.key_file");
  const std::string key = folder_.file("key", key_text());
  expect_refused({key, key, "", ""}, Status::kInvalidArgument, "one or the other");
  expect_refused({"", key, "", ""}, Status::kInvalidArgument, "secure.private_key_file is not set");
  expect_refused({"", "", "", key}, Status::kInvalidArgument, "secure.certificate_file is not set");
  expect_refused({"", key, key, key}, Status::kInvalidArgument, "secure.certificate_file = ");
}

TEST_F(Secure, ACertificateNeedsItsOwnKey) {
  Authority authority(folder_);
  if (!authority.good()) GTEST_SKIP() << "the openssl program, which makes the certificates, is not there";
  Keys::Files alice = authority.sign("alice");
  const Keys::Files bob = authority.sign("bob");
  alice.private_key = bob.private_key;
  expect_refused(alice, Status::kInvalidArgument, "secure.private_key_file");
}

// An agent and its backends, or several agents: the files are read once, and looked at once a second for all of them.
TEST_F(Secure, ThoseWhoNameTheSameFilesShareTheirKeys) {
  const std::string file = folder_.file("shared", key_text());
  const auto configured = [](const std::string& key_file) {
    return Keys::configured(
        [&](const char* key) { return std::string(key) == "secure.key_file" ? key_file : ""; });
  };
  const auto first = configured(file);
  EXPECT_EQ(configured(file), first);
  EXPECT_NE(configured(folder_.file("other", key_text())), first);
  folder_.file("shared", key_text('l'));
  const auto second = configured(file);
  EXPECT_EQ(second, first);
  Ends ends(shared('l'), first);
  move_both_ways(ends, 1000);
  std::filesystem::remove(file);
  EXPECT_THROW((void)configured(file), Error) << "a new agent needs keys that can be read";
  move_both_ways(ends, 1000);
}

// The lock of those that are in use is held most of the time here: by a thread that the children don't have.
TEST_F(Secure, AForkedChildMakesKeysOfItsOwn) {
  constexpr int kFiles = 200;
  const auto configured = [](const std::string& key_file) {
    return Keys::configured(
        [&](const char* key) { return std::string(key) == "secure.key_file" ? key_file : ""; });
  };
  std::vector<std::shared_ptr<const Keys>> in_use;
  std::string last;
  for (int i = 0; i < kFiles; ++i) {  // pipes, which are read once, so that a look at them is nothing
    int ends[2] = {};
    ASSERT_EQ(::pipe(ends), 0);
    ASSERT_EQ(::write(ends[1], key_text().data(), 41), 41);
    ::close(ends[1]);
    last = "/dev/";
    for (int bit = 0; bit < 8; ++bit) last += (i >> bit & 1) != 0 ? "./" : "//";
    in_use.push_back(configured(last += "fd/" + std::to_string(ends[0])));
    ::close(ends[0]);
  }
  std::atomic<bool> stop{false};
  std::thread other([&] {
    while (!stop) EXPECT_EQ(configured(last), in_use.back());
  });
  const std::string file = folder_.file("own", key_text());
  for (int i = 0; i < 8 && !HasFailure(); ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(20);
      ::_exit(configured(file) != nullptr ? 0 : 1);
    }
    int ended = 0;
    EXPECT_EQ(::waitpid(child, &ended, 0), child);
    EXPECT_TRUE(WIFEXITED(ended) && WEXITSTATUS(ended) == 0) << "child " << i << " ended with " << ended;
  }
  stop = true;
  other.join();
}

TEST_F(Secure, PeersNeedCertificates) {
  Keys::Files files = {folder_.file("key", key_text()), "", "", ""};
  files.peers = {"a.example.com"};
  expect_refused(files, Status::kInvalidArgument, "secure.peers and secure.key_file");
  files.key.clear();
  expect_refused(files, Status::kInvalidArgument, "secure.certificate_file is not set");
}

TEST(SecureSettings, PeersThatNameNobodyAreRefused) {
  EXPECT_THROW(
      (void)Keys::configured([](const char* key) { return std::string(key) == "secure.peers" ? " , " : ""; }),
      Error);
}

TEST(SecureSettings, NoneMeansNoKeys) {
  EXPECT_EQ(Keys::configured([](const char*) { return std::string(); }), nullptr);
}

}  // namespace
}  // namespace towline::secure
#endif
