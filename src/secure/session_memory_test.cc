// Sessions while OpenSSL's memory runs out: each of its allocations fails once.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/os/dynamic_library.h"
#include "base/os/socket_address.h"
#include "secure/keys.h"
#include "secure/test_support.h"

#if defined(TOWLINE_HAVE_OPENSSL)
#include <openssl/crypto.h>

namespace towline::secure {
namespace {

constexpr long kNever = -1;
long fails_after = kNever;

bool fails() { return fails_after >= 0 && fails_after-- == 0; }
void* take(size_t bytes, const char*, int) { return fails() ? nullptr : std::malloc(bytes); }
void* resize(void* memory, size_t bytes, const char*, int) {
  return fails() ? nullptr : std::realloc(memory, bytes);
}
void give(void* memory, const char*, int) { std::free(memory); }

void say(const std::string& problem) {
  std::fputs((problem + "\n").c_str(), stderr);
  std::_Exit(1);
}

// A handshake and a few records; what ended it, or nothing.
std::string meet(const Keys& keys, ListeningSocket& door, long after) {
  const Deadline deadline = Deadline::after(monotonic_now_ns(), 60 * kSecondNs);
  Stream caller = Stream::dial(door.address().endpoint(), deadline, Stream::Patience::kNone);
  Stream called;
  int error = 0;
  while (!called.valid()) called = Stream::accepted(door.accept(nullptr, &error));
  for (Stream* stream : {&caller, &called}) stream->reset_at_close();
  fails_after = after;
  try {
    keys.secure(caller, Side::kCaller);
    keys.secure(called, Side::kCalled);
  } catch (const Error& failure) {
    return failure.message();
  }
  std::array<uint8_t, 40'000> sent{};
  for (size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<uint8_t>(i * 7);
  std::array<uint8_t, 40'000> got{};
  size_t written = 0;
  size_t have = 0;
  while (have < got.size()) {
    if (written < sent.size()) {
      const StreamResult result = caller.write(sent.data() + written, sent.size() - written);
      if (result.over()) return caller.failure(result);
      written += result.bytes;
    }
    const StreamResult result = called.read(got.data() + have, got.size() - have);
    if (!std::equal(got.begin(), got.begin() + static_cast<long>(have + result.bytes), sent.begin()))
      say("wrong bytes were read");
    have += result.bytes;
    if (result.over()) return called.failure(result);
    if (deadline.passed(monotonic_now_ns())) say("nothing moves any more");
  }
  return {};
}

// Alone in its process, whose OpenSSL has allocated nothing yet.
void meet_without_memory() {
  DynamicLibrary crypto;
  try {
    crypto = DynamicLibrary("libcrypto.so.3");
  } catch (const Error&) {  // there is no TLS
    return;
  }
  crypto.keep_loaded();
  if (crypto.symbol<decltype(&CRYPTO_set_mem_functions)>("CRYPTO_set_mem_functions")(take, resize, give) != 1)
    say("OpenSSL has allocated before");
  if (!testing::has_tls()) return;
  const testing::Folder folder;
  const auto keys = Keys::read({folder.file("key", testing::key_text()), "", "", ""});
  ListeningSocket door({false, "127.0.0.1", 0}, {});
  if (const std::string failure = meet(*keys, door, kNever); !failure.empty()) say(failure);
  for (long after = 0; fails_after == kNever; ++after) {
    const std::string failure = meet(*keys, door, after);
    for (const char* shortage : {"malloc failure: the", "internal error: the"})
      if (failure.find(shortage) != std::string::npos) say("keys are blamed: " + failure);
  }
  fails_after = kNever;
  if (const std::string failure = meet(*keys, door, kNever); !failure.empty()) say("afterwards: " + failure);
}

TEST(SessionsWithoutMemory, EndWithAReasonAndHarmNoOthers) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        meet_without_memory();
        std::_Exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace towline::secure
#endif
