// What proxies of ranks of different hosts tell each other, as notices. Strangers can send them, so decoders are bounded, and a
// message is checked once, after it was copied.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace towline::collectives::experts {

// Words that a rank's kernels write for a peer's. Sent when one changes and, since a notice can be lost, again until the peer has heard
// it.
struct WordsMessage {
  uint32_t rank = 0;
  uint32_t asks = 0;    // 1: the rank does not know that the peer has heard this number
  uint64_t number = 0;  // grows with each change: an earlier message that comes later is dropped
  uint64_t heard = 0;   // the last number that came from the peer
  uint64_t opened = 0;
  uint64_t taken = 0;
  uint64_t met = 0;
};

// Follows the slots of an exchange.
struct ExchangeMessage {
  uint32_t rank = 0;
  uint64_t number = 0;  // grows with each exchange
  uint64_t flag = 0;    // without a count
  uint64_t shape = 0;
  std::vector<uint32_t> counts;  // of each of the peer's experts, or for a combine of the rank's own
};

std::vector<uint8_t> encode(const WordsMessage& message);
std::vector<uint8_t> encode(const ExchangeMessage& message);
// Null: another message, or none.
std::optional<WordsMessage> decode_words(std::span<const uint8_t> bytes);
std::optional<ExchangeMessage> decode_exchange(std::span<const uint8_t> bytes, uint32_t local);

}  // namespace towline::collectives::experts
