#include "replay/message.h"

#include <fmt/format.h>
#include <towline/towline.h>

#include <cstring>

#include "failure.h"

namespace tool::replay {
namespace {

constexpr uint8_t kVersion = 1;
constexpr uint32_t kMostParts = 1u << 16;

class Writer {
 public:
  explicit Writer(MessageType type) {
    put(static_cast<uint8_t>(type));
    put(kVersion);
  }
  template <class T>
  Writer& put(T value) {
    static_assert(std::is_trivially_copyable_v<T>);
    text_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  Writer& put(const std::vector<uint32_t>& values) {
    put(static_cast<uint32_t>(values.size()));
    text_.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(uint32_t));
    return *this;
  }
  Writer& put(const PartOf& part) { return put(part.request).put(part.part).put(part.parts); }
  Writer& put(std::string_view text) {
    text_.append(text);
    return *this;
  }
  [[nodiscard]] std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

class Reader {
 public:
  Reader(std::string_view text, MessageType type) : text_(text) {
    if (get<uint8_t>() != static_cast<uint8_t>(type)) malformed();
    if (const auto version = get<uint8_t>(); version != kVersion) {
      throw Failure{fmt::format("the other side speaks version {} of the replay's messages, this one {}",
                                version, kVersion)};
    }
  }
  template <class T>
  T get() {
    if (text_.size() < sizeof(T)) malformed();
    T value;
    std::memcpy(&value, text_.data(), sizeof value);
    text_.remove_prefix(sizeof value);
    return value;
  }
  std::vector<uint32_t> get_list() {
    const auto count = get<uint32_t>();
    if (count > text_.size() / sizeof(uint32_t)) malformed();
    std::vector<uint32_t> values(count);
    if (count != 0) std::memcpy(values.data(), text_.data(), count * sizeof(uint32_t));  // null if empty
    text_.remove_prefix(count * sizeof(uint32_t));
    return values;
  }
  PartOf get_part() {
    PartOf part;
    part.request = get<uint32_t>();
    part.part = get<uint32_t>();
    part.parts = get<uint32_t>();
    if (part.parts == 0 || part.parts > kMostParts || part.part >= part.parts) malformed();
    return part;
  }
  [[nodiscard]] std::string_view rest() const { return text_; }
  [[nodiscard]] bool empty() const { return text_.empty(); }

 private:
  [[noreturn]] static void malformed() { throw Failure{"a malformed message of the replay arrived"}; }
  std::string_view text_;
};

// Fills messages with items until the next one would not fit.
template <class Item, class Put>
std::vector<std::string> in_parts(MessageType type, uint32_t request, const std::vector<Item>& items,
                                  Put put) {
  std::vector<std::string> bodies(1);
  for (const Item& item : items) {
    Writer writer{type};
    put(writer, item);
    const std::string text = writer.take().substr(2);
    if (bodies.back().size() + text.size() > TOWLINE_MAX_NOTICE_BYTES - 64) bodies.emplace_back();
    bodies.back() += text;
  }
  std::vector<std::string> messages;
  for (const std::string& body : bodies) {
    const PartOf part{request, static_cast<uint32_t>(messages.size()), static_cast<uint32_t>(bodies.size())};
    messages.push_back(Writer{type}.put(part).put(std::string_view{body}).take());
  }
  return messages;
}

}  // namespace

std::string encode_text(MessageType type, std::string_view json) { return Writer{type}.put(json).take(); }

std::string encode(const PoolMessage& message) {
  return Writer{MessageType::kPool}.put(message.decode_rank).put(message.pages).put(message.base).take();
}

std::string encode_part(MessageType type, const PartOf& part) { return Writer{type}.put(part).take(); }

std::vector<std::string> encode_ready(uint32_t request, const std::vector<ReadyBlock>& blocks) {
  return in_parts(MessageType::kReady, request, blocks, [](Writer& writer, const ReadyBlock& block) {
    writer.put(block.key.hash).put(block.key.tokens).put(block.epoch).put(block.pages);
  });
}

std::vector<std::string> encode_want(uint32_t request, const std::vector<WantedBlock>& blocks) {
  return in_parts(MessageType::kWant, request, blocks,
                  [](Writer& writer, const WantedBlock& block) { writer.put(block.index).put(block.pages); });
}

MessageType message_type(std::string_view message) {
  const uint8_t type = message.empty() ? 0 : static_cast<uint8_t>(message[0]);
  if (type < static_cast<uint8_t>(MessageType::kHello) ||
      type > static_cast<uint8_t>(MessageType::kGoodbye)) {
    throw Failure{"a notice arrived that is not a message of the replay"};
  }
  return static_cast<MessageType>(type);
}

std::string decode_text(std::string_view message) {
  return std::string{Reader{message, message_type(message)}.rest()};
}

PoolMessage decode_pool(std::string_view message) {
  Reader reader{message, MessageType::kPool};
  PoolMessage pool;
  pool.decode_rank = reader.get<uint32_t>();
  pool.pages = reader.get<uint32_t>();
  pool.base = reader.get<uint64_t>();
  return pool;
}

PartOf decode_part(std::string_view message) { return Reader{message, message_type(message)}.get_part(); }

ReadyMessage decode_ready(std::string_view message) {
  Reader reader{message, MessageType::kReady};
  ReadyMessage ready;
  ready.part = reader.get_part();
  while (!reader.empty()) {
    ReadyBlock& block = ready.blocks.emplace_back();
    block.key.hash = reader.get<uint64_t>();
    block.key.tokens = reader.get<uint32_t>();
    block.epoch = reader.get<uint64_t>();
    block.pages = reader.get_list();
  }
  return ready;
}

WantMessage decode_want(std::string_view message) {
  Reader reader{message, MessageType::kWant};
  WantMessage want;
  want.part = reader.get_part();
  while (!reader.empty()) {
    WantedBlock& block = want.blocks.emplace_back();
    block.index = reader.get<uint32_t>();
    block.pages = reader.get_list();
  }
  return want;
}

}  // namespace tool::replay
