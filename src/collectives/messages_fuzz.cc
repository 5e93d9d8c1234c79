// Plays another rank towards the engine of messages: sends any bytes, in pieces of all sizes, while receives of several
// tags and sizes wait. A receive gets exactly its bytes or none, and the only way to break is a mismatch.
#include <cstdlib>
#include <cstring>
#include <span>

#include "collectives/messages.h"
#include "support/fuzz_accepted.h"
#include "towline/collectives.h"

namespace {

using namespace towline::collectives;  // NOLINT: one file
using towline::Status;

void check(bool good) {
  if (!good) std::abort();
}

// Gives the input, at most `piece` bytes at a time.
class Script final : public Channel {
 public:
  Script(std::span<const uint8_t> bytes, size_t piece) : bytes_(bytes), piece_(piece) {}
  size_t write(const void*, size_t bytes) override { return bytes; }
  size_t read(void* data, size_t bytes) override {
    const size_t count = std::min({bytes, piece_, bytes_.size()});
    if (count != 0) std::memcpy(data, bytes_.data(), count);
    bytes_ = bytes_.subspan(count);
    return count;
  }
  bool can_write() override { return true; }
  bool can_read() override { return !bytes_.empty(); }

 private:
  std::span<const uint8_t> bytes_;
  const size_t piece_;
};

struct Receive {
  Receive(MessageEngine& engine, int peer, uint64_t tag, uint64_t bytes) : data(bytes) {
    message.peer = peer;
    message.tag = tag;
    message.datatype = TOWLINE_UINT8;
    message.data = data.data();
    message.bytes = bytes;
    engine.start(message);
  }
  std::vector<uint8_t> data;  // exactly as much, so that AddressSanitizer sees what goes beyond
  Message message;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  Breaker breaker;
  MessageEngine engine(
      0, 2,
      [&](int) {
        return std::make_unique<Script>(std::span{data + 1, size - 1}, size_t{1} + data[0]);
      },
      breaker);
  Receive first(engine, 1, 1, 8);
  Receive any(engine, kAnyPeer, 2, 0);
  Receive large(engine, 1, 3, 1000);
  for (int i = 0; i < 3; ++i) {
    for (Receive* receive : {&first, &any, &large}) {
      const Status status = engine.test(receive->message);
      check(status == Status::kOk || status == Status::kInProgress || status == Status::kMismatch);
      check(status != Status::kMismatch || breaker.broken());
      if (receive->message.ended) towline::fuzz::accepted();
    }
    if (i == 0) engine.forget(large.message);
  }
  // A later receive takes what was kept for it.
  Receive late(engine, 1, 4, 16);
  if (engine.test(late.message) == Status::kOk) towline::fuzz::accepted();
  if (breaker.broken()) towline::fuzz::accepted();
  for (Receive* receive : {&first, &any, &late}) engine.forget(receive->message);
  return 0;
}
