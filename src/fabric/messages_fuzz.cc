// Bytes that a stranger can send to an engine: control messages, addresses, descriptors of memory, records. The first
// byte chooses; control messages are also given to an engine that has a peer and a connection under way.
#include <cstdlib>
#include <cstring>

#include "fabric/carrier.h"
#include "fabric/engine.h"
#include "fabric/messages.h"
#include "fabric/test_support.h"
#include "support/fuzz_accepted.h"

namespace towline::fabric {
namespace {

void check(bool good) {
  if (!good) std::abort();
}

// The message with the ids that the engine expects, so that the fuzzer gets past them.
void give(std::span<const uint8_t> bytes) {
  auto message = decode_control(bytes);
  if (!message) return;
  fuzz::accepted();
  testing::World world;
  testing::TestHost& one = world.add_host(2);
  testing::TestHost& two = world.add_host(1);
  TransferRequest request;
  request.peer = one.peers[1];
  request.count = 1;
  check(one.engine->submit(request) == Status::kInProgress);
  if ((message->connection & 1) != 0) world.step();
  if ((message->connection & 2) != 0) check(world.until([&] { return one.completions == 1; }));
  message->from = two.engine->id();
  message->to = one.engine->id();
  if ((message->connection & 4) == 0) message->connection = uint64_t{1 + message->connection % 3} << 24;
  const auto repaired = encode(*message);
  one.engine->on_control(one.peers[1], bytes);
  one.engine->on_control(one.peers[1], repaired);
  one.engine->on_control(one.peers[1], repaired);
  for (int i = 0; i < 20; ++i) world.step();
  check(one.outcomes.size() <= 1 && (one.outcomes.empty() || one.outcomes.begin()->second.completed == 1));
}

}  // namespace
}  // namespace towline::fabric

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  using namespace towline::fabric;
  using towline::fuzz::accepted;
  if (size == 0) return 0;
  const std::span<const uint8_t> bytes{data + 1, size - 1};
  switch (data[0] % 5) {
    case 0:
      give(bytes);
      break;
    case 1:
      if (const auto address = decode_address(bytes)) {
        accepted();
        check(decode_address(encode(*address)).has_value() && address->rails.size() <= kMaxRails);
      }
      break;
    case 2:
      if (const auto memory = decode_memory(bytes)) {
        accepted();
        check(encode(*memory).size() == bytes.size());
      }
      break;
    case 3:
      if (const auto header = decode_record(bytes)) {
        accepted();
        check(header->message_bytes == bytes.size() - sizeof *header);
      }
      break;
    case 4:
      if (const auto address = decode_carrier_address(bytes)) {
        accepted();
        check(decode_carrier_address(encode(*address)).has_value());
      }
      break;
  }
  return 0;
}
