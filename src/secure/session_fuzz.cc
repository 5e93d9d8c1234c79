// Both sides of a session, over a connection on which anything may happen.
//
// A stranger says any bytes to one side; or somebody between two sides with the same key passes bytes on, changes them,
// leaves some out and adds others. Nothing but the other side's bytes, in order and from the first, may ever be read.
#include <poll.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>

#include "base/error.h"
#include "base/os/socket_address.h"
#include "secure/keys.h"
#include "support/fuzz_accepted.h"

namespace {

using namespace towline;  // NOLINT: one file

constexpr std::size_t kMostSteps = 64;
constexpr std::size_t kMostWritten = 200'000;  // in a step

// Null: there is no TLS here.
const secure::MaybeKeys& keys() {
  static const secure::MaybeKeys read = []() -> secure::MaybeKeys {
    std::string file = std::filesystem::temp_directory_path() / "towline-fuzz-XXXXXX";
    const UniqueFd made(mkstemp(file.data()));
    std::ofstream(file)
        << "this key is for a fuzzer, and is no secret\nnor is this one, which is never offered\n";
    secure::MaybeKeys found;
    try {
      found = secure::Keys::read({file, "", "", ""});
    } catch (const Error&) {
    }
    std::filesystem::remove(file);
    return found;
  }();
  return read;
}

struct Pair {
  Pair() {
    static ListeningSocket door({false, "127.0.0.1", 0}, {});
    caller = Stream::dial(door.address().endpoint(), Deadline::after(monotonic_now_ns(), 10 * kSecondNs),
                          Stream::Patience::kForPort);
    int error = 0;
    do {
      called = Stream::accepted(door.accept(nullptr, &error));
    } while (!called.valid());
    for (Stream* stream : {&caller, &called}) {
      stream->reset_at_close();  // thousands in a second: none may keep its port
      stream->tune({.buffer_bytes = 4096});
    }
  }
  Stream caller;
  Stream called;
};

// The bytes that one side says are numbers of their places.
uint8_t byte_at(std::size_t place) { return static_cast<uint8_t>(place * 151 + (place >> 8)); }

struct End {
  Stream stream;
  std::size_t said = 0;
  std::size_t offered = 0;
  std::size_t heard = 0;
  std::size_t taken = 0;  // reads that moved something

  void say(std::size_t bytes) {
    static std::array<uint8_t, kMostWritten> text;
    bytes = std::clamp<std::size_t>(bytes, offered - said, text.size());
    if (bytes == 0) return;
    for (std::size_t i = 0; i < bytes; ++i) text[i] = byte_at(said + i);
    const StreamResult result = stream.write(text.data(), bytes);
    offered = std::max(offered, said + bytes);
    if (result.bytes > bytes) std::abort();
    said += result.bytes;
  }
  // Of what `from` says. The last byte that it offered may be on its way without being counted.
  void hear(const End& from) {
    std::array<uint8_t, 5000> text;
    StreamResult result;
    while ((result = stream.read(text.data(), text.size())).moved()) {
      ++taken;
      if (heard + result.bytes > from.offered) std::abort();
      for (std::size_t i = 0; i < result.bytes; ++i)
        if (text[i] != byte_at(heard + i)) std::abort();
      heard += result.bytes;
      towline::fuzz::accepted();
    }
    if (result.blocked() && stream.unread()) std::abort();
  }
};

// Tells one side anything.
void meet_stranger(std::span<const uint8_t> bytes, secure::Side side) {
  Pair pair;
  End ours;
  Stream& stranger = side == secure::Side::kCaller ? pair.called : pair.caller;
  ours.stream = std::move(side == secure::Side::kCaller ? pair.caller : pair.called);
  secure::secure(keys(), ours.stream, side);
  (void)ours.stream.shake_hands();
  while (!bytes.empty()) {
    const StreamResult sent = stranger.write(bytes.data(), std::min<std::size_t>(bytes.size(), 700));
    if (sent.over()) break;
    bytes = bytes.subspan(sent.bytes);
    const StreamResult shaken = ours.stream.shake_hands();
    if (shaken.moved()) std::abort();  // it knows no key
    if (shaken.over() && !ours.stream.write("x", 1).over()) std::abort();
    if (shaken.over()) break;
    std::array<uint8_t, 4096> waste;
    (void)stranger.read(waste.data(), waste.size());
  }
  ours.hear(End{});
}

// Between two sides: three bytes say what happens next.
void meet_each_other(std::span<const uint8_t> steps) {
  Pair left;
  Pair right;
  std::array<End, 2> ends;
  ends[0].stream = std::move(left.caller);
  ends[1].stream = std::move(right.called);
  secure::secure(keys(), ends[0].stream, secure::Side::kCaller);
  secure::secure(keys(), ends[1].stream, secure::Side::kCalled);
  for (End& end : ends) (void)end.stream.shake_hands();
  const std::array<Stream*, 2> between = {&left.called, &right.caller};
  const auto pass = [&](std::size_t from, std::size_t most, int change) {
    std::array<uint8_t, 4096> bytes;
    while (most != 0) {
      const StreamResult got = between[from]->read(bytes.data(), std::min(most, bytes.size()));
      if (!got.moved()) return;
      most -= got.bytes;
      if (change >= 0) bytes[static_cast<std::size_t>(change) % got.bytes] ^= 1;
      change = -1;
      std::span<const uint8_t> left = std::span(bytes).first(got.bytes);
      while (!left.empty()) {
        const StreamResult sent = between[1 - from]->write(left.data(), left.size());
        left = left.subspan(sent.bytes);
        const std::size_t before = ends[1 - from].taken;
        ends[1 - from].hear(ends[from]);
        if (!sent.moved() && ends[1 - from].taken == before) return;  // it reads no more
      }
    }
  };
  for (std::size_t step = 0; step < kMostSteps && steps.size() >= 3; ++step, steps = steps.subspan(3)) {
    const std::size_t from = steps[0] & 1;
    const std::size_t count = steps[1] | std::size_t{steps[2]} << 8;
    switch (steps[0] >> 1 & 7) {
      case 0:
      case 1:
        pass(from, count, -1);
        break;
      case 2:
        pass(from, 4096, static_cast<int>(count));
        break;
      case 3: {
        std::array<uint8_t, 256> waste;
        (void)between[from]->read(waste.data(), std::max<std::size_t>(count % waste.size(), 1));
        break;
      }
      case 4:
        (void)between[1 - from]->write(&steps[1], 2);
        break;
      case 5:
        between[from]->end_writing();
        break;
      default:
        ends[from].say(count * 3);
        break;
    }
    for (std::size_t i = 0; i < 2; ++i) ends[i].hear(ends[1 - i]);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (keys() == nullptr) towline::fuzz::accepted();  // as nothing is there to take it
  if (size == 0 || keys() == nullptr) return 0;
  const std::span<const uint8_t> rest(data + 1, size - 1);
  if ((data[0] & 3) == 0)
    meet_stranger(rest, secure::Side::kCalled);
  else if ((data[0] & 3) == 1)
    meet_stranger(rest, secure::Side::kCaller);
  else
    meet_each_other(rest);
  return 0;
}
