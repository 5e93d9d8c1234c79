// Messages between ranks of a replay: decoded or refused. A message has no more items than its parts.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "failure.h"
#include "replay/message.h"
#include "support/fuzz_accepted.h"

namespace {

using namespace tool::replay;  // NOLINT: one file

template <class Decode>
void run(Decode decode, std::string_view message) {
  try {
    decode(message);
    towline::fuzz::accepted();
  } catch (const tool::Failure&) {
  }
}

template <class Message, class Item>
void assemble(const Message& message, const std::vector<Item>& items) {
  Assembly<Item> assembly;
  const bool whole = assembly.add(message.part, items);
  if (assembly.add(message.part, items)) std::abort();  // the same part once more
  if (whole && assembly.take().size() != items.size()) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view message(reinterpret_cast<const char*>(data), size);
  run([](std::string_view text) { (void)decode_text(text); }, message);
  run([](std::string_view text) { (void)decode_pool(text); }, message);
  run([](std::string_view text) { (void)decode_part(text); }, message);
  run(
      [](std::string_view text) {
        const ReadyMessage ready = decode_ready(text);
        assemble(ready, ready.blocks);
      },
      message);
  run(
      [](std::string_view text) {
        const WantMessage want = decode_want(text);
        assemble(want, want.blocks);
      },
      message);
  return 0;
}
