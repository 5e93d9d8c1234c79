// A process may exit while sessions are in use: their threads go on meanwhile.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <thread>

#include "base/os/socket_address.h"
#include "secure/keys.h"
#include "secure/test_support.h"

#if defined(TOWLINE_HAVE_OPENSSL)
namespace towline::secure {
namespace {

// Two connected streams that have shaken hands, as often as asked for.
struct Alive {
  const testing::Folder folder;
  const std::shared_ptr<const Keys> keys = Keys::read({folder.file("key", testing::key_text()), "", "", ""});
  ListeningSocket door{{false, "127.0.0.1", 0}, {}};
  Stream caller, called;
  std::atomic<int> meetings{0};

  static Deadline in_time() { return Deadline::after(monotonic_now_ns(), 60 * kSecondNs); }
  void meet() {
    caller = Stream::dial(door.address().endpoint(), in_time(), Stream::Patience::kNone);
    int error = 0;
    do {
      called = Stream::accepted(door.accept(nullptr, &error));
    } while (!called.valid());
    keys->secure(caller, Side::kCaller);
    keys->secure(called, Side::kCalled);
    StreamResult mine, theirs;
    do {
      mine = caller.shake_hands();
      theirs = called.shake_hands();
      if (mine.over() || theirs.over()) std::_Exit(3);
    } while (!mine.moved() || !theirs.moved());
    std::array<uint8_t, 100> bytes{};
    if (is_error(caller.write_all(bytes, in_time())) || is_error(called.read_all(bytes, in_time())))
      std::_Exit(4);
    ++meetings;
  }
};
Alive* alive = nullptr;

// Runs after whatever was registered later.
void wait_for_more() {
  const int before = alive->meetings;
  while (alive->meetings < before + 3) std::this_thread::yield();
  std::filesystem::remove_all(alive->folder.path());
}

TEST(SecureExit, SessionsGoOnWhileTheProcessExits) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        std::atexit(wait_for_more);  // before OpenSSL is loaded
        if (!testing::has_tls()) std::_Exit(7);
        alive = new Alive;
        alive->meet();
        std::thread([] {
          for (;;) alive->meet();
        }).detach();
        std::exit(7);
      },
      ::testing::ExitedWithCode(7), "");
}

}  // namespace
}  // namespace towline::secure
#endif
