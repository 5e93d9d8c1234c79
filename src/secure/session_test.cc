// What a session makes of the other side's bytes: of strangers', of pieces, of last words.
#include <gtest/gtest.h>
#include <poll.h>

#include <array>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "base/os/socket_address.h"
#include "secure/keys.h"
#include "secure/test_support.h"

#if defined(TOWLINE_HAVE_OPENSSL)
namespace towline::secure {
namespace {

class Sessions : public ::testing::TestWithParam<bool> {
 protected:
  static Deadline soon() { return Deadline::after(monotonic_now_ns(), 60 * kSecondNs); }
  void SetUp() override { TOWLINE_NEEDS_TLS(); }

  MaybeKeys shared() { return Keys::read({folder_.file("key", testing::key_text()), "", "", ""}); }
  // A connection; its ends are in the clear where they have no keys.
  void connect(Stream& caller, Stream& called) {
    ListeningSocket door({false, "127.0.0.1", 0}, {});
    caller = Stream::dial(door.address().endpoint(), soon(), Stream::Patience::kNone);
    int error = 0;
    do {
      called = Stream::accepted(door.accept(nullptr, &error));
    } while (!called.valid());
  }
  // Shakes hands at both ends as far as it goes now; true: both are done.
  static bool shake(Stream& a, Stream& b) {
    const StreamResult mine = a.shake_hands();
    const StreamResult theirs = b.shake_hands();
    EXPECT_FALSE(mine.over()) << a.failure(mine);
    EXPECT_FALSE(theirs.over()) << b.failure(theirs);
    return (mine.moved() && theirs.moved()) || HasFailure();
  }
  const testing::Folder folder_;
};

// OpenSSL makes room for as much as the header of a message says.
TEST_F(Sessions, AStrangersMessageOfWhichTheHeaderAloneIsThereIsRefused) {
  const std::vector<std::vector<uint8_t>> hellos = {
      {22, 3, 1, 0, 5, 1, 2, 1, 0, 3},     // 128 KiB of a hello, in records of 5 bytes
      {22, 3, 1, 0, 4, 1, 0, 64, 0},       // 16 KiB
      {22, 3, 1, 0, 2, 1, 0, 0, 0, 0, 0},  // half a header
  };
  for (const std::vector<uint8_t>& hello : hellos) {
    Stream stranger, ours;
    connect(stranger, ours);
    secure(shared(), ours, Side::kCalled);
    ASSERT_EQ(stranger.write_all(hello, soon()), Status::kOk);
    ASSERT_EQ(ours.wait(POLLIN, soon()), POLLIN);
    const StreamResult shaken = ours.shake_hands();
    EXPECT_EQ(shaken.kind, StreamResult::Kind::kFailed);
    EXPECT_EQ(shaken.error, EACCES);
  }
}

TEST_F(Sessions, AHandshakeMayComeByteByByte) {
  Stream a, b, to_a, to_b;
  connect(a, to_a);
  connect(to_b, b);
  secure(shared(), a, Side::kCaller);
  secure(shared(), b, Side::kCalled);
  while (!shake(a, b)) {
    for (const auto& [from, to] : {std::pair(&to_a, &to_b), std::pair(&to_b, &to_a)}) {
      uint8_t byte = 0;
      if (from->read(&byte, 1).moved()) {
        ASSERT_EQ(to->write_all({&byte, 1}, soon()), Status::kOk);
      }
    }
  }
}

// Both sides wait to read meanwhile.
TEST_F(Sessions, AHandshakeThatDoesNotFitIntoTheSocketGoesOnWhenThereIsRoom) {
  testing::Authority authority(folder_);
  if (!authority.good()) GTEST_SKIP() << "the openssl program, which makes the certificates, is not there";
  ListeningSocket door({false, "127.0.0.1", 0}, {});
  testing::shrink_listening_sockets();
  Stream caller = testing::connect_narrow(door.address().port()), called;
  int error = 0;
  while (!called.valid()) called = Stream::accepted(door.accept(nullptr, &error));
  secure(Keys::read(authority.sign_large("caller")), caller, Side::kCaller);
  secure(Keys::read(authority.sign_large("called")), called, Side::kCalled);
  ASSERT_TRUE(authority.good());
  std::array<uint8_t, 100> sent{1, 2, 3}, got{};
  auto other = std::async(std::launch::async, [&] { return called.read_all(got, soon()); });
  EXPECT_EQ(testing::shake_hands_late(caller, [] { std::this_thread::yield(); }), Status::kOk);
  EXPECT_FALSE(caller.unsent());
  EXPECT_EQ(caller.write_all(sent, soon()), Status::kOk);
  EXPECT_EQ(other.get(), Status::kOk) << called.failure({});
  EXPECT_EQ(got, sent);
}

// The other side said why, and closed the connection before it had read everything: its words are still here, and are read
// as they would be without keys.
TEST_P(Sessions, LastWordsAreReadAlsoWhereNothingCanBeSentAnyMore) {
  Stream a, b;
  connect(a, b);
  if (GetParam()) {
    secure(shared(), a, Side::kCaller);
    secure(shared(), b, Side::kCalled);
    while (!shake(a, b)) {
    }
  }
  const std::array<uint8_t, 100> sent{1, 2, 3};
  ASSERT_EQ(a.write_all(sent, soon()), Status::kOk);
  ASSERT_EQ(b.wait(POLLIN, soon()), POLLIN);
  ASSERT_EQ(b.write_all(sent, soon()), Status::kOk);
  b.close();  // resets the connection, since it has not read everything
  while (!a.write(sent.data(), sent.size()).over()) {
  }
  std::array<uint8_t, 100> got{};
  EXPECT_EQ(a.read_all(got, soon()), Status::kOk);
  EXPECT_EQ(got, sent);
  EXPECT_TRUE(a.read(got.data(), got.size()).over());
  EXPECT_TRUE(a.write(sent.data(), sent.size()).over());
}
INSTANTIATE_TEST_SUITE_P(Keys, Sessions, ::testing::Bool(),
                         [](const auto& keys) { return keys.param ? "with" : "without"; });

}  // namespace
}  // namespace towline::secure
#endif
