#include "collectives/experts/messages.h"

#include "base/wire.h"

namespace towline::collectives::experts {
namespace {

constexpr uint32_t kWords = 0x31577854;
constexpr uint32_t kExchange = 0x31457854;
constexpr std::size_t kExchangeHead = 2 * sizeof(uint32_t) + 3 * sizeof(uint64_t);

}  // namespace

std::vector<uint8_t> encode(const WordsMessage& message) {
  std::vector<uint8_t> bytes;
  WireWriter out{bytes};
  out.u32(kWords);
  out.u32(message.rank);
  out.u32(message.asks);
  out.u64(message.number);
  out.u64(message.heard);
  out.u64(message.opened);
  out.u64(message.taken);
  out.u64(message.met);
  return bytes;
}

std::vector<uint8_t> encode(const ExchangeMessage& message) {
  std::vector<uint8_t> bytes;
  WireWriter out{bytes};
  out.u32(kExchange);
  out.u32(message.rank);
  out.u64(message.number);
  out.u64(message.flag);
  out.u64(message.shape);
  for (const uint32_t count : message.counts) out.u32(count);
  return bytes;
}

std::optional<WordsMessage> decode_words(std::span<const uint8_t> bytes) {
  WireReader in{bytes};
  if (in.u32() != kWords) return std::nullopt;
  WordsMessage message;
  message.rank = in.u32();
  message.asks = in.u32();
  message.number = in.u64();
  message.heard = in.u64();
  message.opened = in.u64();
  message.taken = in.u64();
  message.met = in.u64();
  if (!in.finished()) return std::nullopt;
  return message;
}

std::optional<ExchangeMessage> decode_exchange(std::span<const uint8_t> bytes, uint32_t local) {
  if (bytes.size() != kExchangeHead + uint64_t{local} * sizeof(uint32_t)) return std::nullopt;
  WireReader in{bytes};
  if (in.u32() != kExchange) return std::nullopt;
  ExchangeMessage message;
  message.rank = in.u32();
  message.number = in.u64();
  message.flag = in.u64();
  message.shape = in.u64();
  for (uint32_t expert = 0; expert < local; ++expert) message.counts.push_back(in.u32());
  return message;
}

}  // namespace towline::collectives::experts
