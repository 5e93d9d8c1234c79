#include "frame.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>

namespace towline::nixl {

namespace {

static_assert(std::endian::native == std::endian::little, "frames are written as they lie in memory");

constexpr uint32_t kMagic = 0x584e4c54;  // "TLNX"
constexpr uint16_t kVersion = 1;
constexpr uint16_t kAddresses = 1;
constexpr uint16_t kPartial = 2;
constexpr uint16_t kEngines = 4;  // a part with engines follows the ranges

struct Head {
  uint32_t magic;
  uint16_t version;
  uint16_t flags;
  uint32_t name_bytes;
  uint32_t backends;
  uint64_t ranges;
  uint64_t blob_bytes;
  uint64_t checksum;  // over everything but the blob, with this field 0
};
static_assert(sizeof(Head) == 40);

struct WireRange {
  uint32_t type;
  uint32_t reserved;
  uint64_t device;
  uint64_t address;
  uint64_t bytes;
};
static_assert(sizeof(WireRange) == 32);

struct WireEngine {
  uint32_t name_bytes;
  uint32_t addresses;
  uint64_t conn_info_bytes;
  uint64_t memories;
};
static_assert(sizeof(WireEngine) == 24);

struct WireMemory {
  WireRange range;
  uint64_t public_bytes;
};
static_assert(sizeof(WireMemory) == 40);

// FNV-1a, of everything but the blob, taking the checksum itself as 0: notices damage, not malice.
uint64_t checksum(std::string_view bytes, const Head& head) noexcept {
  Head blank = head;
  blank.checksum = 0;
  char start[sizeof blank];
  std::memcpy(start, &blank, sizeof blank);
  uint64_t hash = 0xcbf29ce484222325;
  const auto add = [&hash](std::string_view part) {
    for (const char c : part) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  };
  add({start, sizeof start});
  add(bytes.substr(sizeof blank, bytes.size() - sizeof blank - head.blob_bytes));
  return hash;
}

template <class T>
void put(std::string& out, const T& value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

class Reader {
 public:
  explicit Reader(std::string_view bytes) : left_(bytes) {}

  template <class T>
  bool take(T& value) noexcept {
    if (left_.size() < sizeof value) return false;
    std::memcpy(&value, left_.data(), sizeof value);
    left_.remove_prefix(sizeof value);
    return true;
  }
  bool take(std::string& text, uint64_t bytes) {
    if (left_.size() < bytes) return false;
    text.assign(left_.substr(0, bytes));
    left_.remove_prefix(bytes);
    return true;
  }
  [[nodiscard]] uint64_t left() const noexcept { return left_.size(); }

 private:
  std::string_view left_;
};

WireRange to_wire(const FrameRange& range) noexcept {
  return {range.type, 0, range.device, range.address, range.bytes};
}
FrameRange from_wire(const WireRange& range) noexcept {
  return {range.type, range.device, range.address, range.bytes};
}

void put_engines(std::string& out, const std::vector<FrameEngine>& engines) {
  put(out, static_cast<uint32_t>(engines.size()));
  for (const FrameEngine& engine : engines) {
    put(out, WireEngine{static_cast<uint32_t>(engine.name.size()), engine.addresses ? 1U : 0U,
                        engine.conn_info.size(), engine.memories.size()});
    out += engine.name;
    out += engine.conn_info;
    for (const FrameMemory& memory : engine.memories) {
      put(out, WireMemory{to_wire(memory.range), memory.public_data.size()});
      out += memory.public_data;
    }
  }
}

// False if it is cut off or says what can't be.
bool take_engine(Reader& reader, FrameEngine& engine) {
  WireEngine head = {};
  if (!reader.take(head) || head.name_bytes > kMaxFrameName || head.addresses > 1) return false;
  if (!reader.take(engine.name, head.name_bytes) || !reader.take(engine.conn_info, head.conn_info_bytes))
    return false;
  if (reader.left() / sizeof(WireMemory) < head.memories) return false;
  engine.addresses = head.addresses != 0;
  engine.memories.reserve(head.memories);
  for (uint64_t i = 0; i < head.memories; ++i) {
    WireMemory memory = {};
    if (!reader.take(memory) || memory.range.type > FILE_SEG) return false;
    FrameMemory& taken = engine.memories.emplace_back();
    taken.range = from_wire(memory.range);
    if (!reader.take(taken.public_data, memory.public_bytes)) return false;
  }
  return true;
}

bool take_engines(Reader& reader, std::vector<FrameEngine>& engines) {
  uint32_t count = 0;
  if (!reader.take(count) || count > kMaxFrameBackends) return false;
  for (uint32_t i = 0; i < count; ++i) {
    if (!take_engine(reader, engines.emplace_back())) return false;
  }
  return true;
}

std::string check_head(const Head& head, std::string_view bytes) {
  if (head.magic != kMagic) return "it is not metadata of this NIXL on Towline";
  if (head.version != kVersion) {
    return fmt::format("its version is {}, and this one reads version {}", head.version, kVersion);
  }
  if (head.name_bytes == 0 || head.name_bytes > kMaxFrameName) return "the agent's name has a bad size";
  if (head.backends > kMaxFrameBackends) return "it has too many backends";
  if (head.blob_bytes > bytes.size() - sizeof head) return "it is cut off";
  return checksum(bytes, head) == head.checksum ? "" : "it is damaged: the checksum does not match";
}

}  // namespace

std::string encode(const Frame& frame) {
  const Head head = {
      kMagic,
      kVersion,
      static_cast<uint16_t>((frame.addresses ? kAddresses : 0) | (frame.partial ? kPartial : 0) |
                            (frame.engines.empty() ? 0 : kEngines)),
      static_cast<uint32_t>(frame.name.size()),
      static_cast<uint32_t>(frame.backends.size()),
      frame.ranges.size(),
      frame.blob.size(),
      0};
  std::string out;
  out.reserve(sizeof head + frame.name.size() + frame.ranges.size() * sizeof(WireRange) + frame.blob.size() +
              256);
  put(out, head);
  out += frame.name;
  for (const std::string& backend : frame.backends) {
    out.push_back(static_cast<char>(static_cast<uint8_t>(backend.size())));
    out.append(backend, 0, 255);
  }
  for (const FrameRange& range : frame.ranges) {
    put(out, to_wire(range));
  }
  if (!frame.engines.empty()) put_engines(out, frame.engines);
  out += frame.blob;
  seal(out);
  return out;
}

void seal(std::string& bytes) noexcept {
  Head head = {};
  if (bytes.size() < sizeof head) return;
  std::memcpy(&head, bytes.data(), sizeof head);
  if (head.blob_bytes > bytes.size() - sizeof head) return;
  head.checksum = checksum(bytes, head);
  std::memcpy(bytes.data(), &head, sizeof head);
}

std::string decode(std::string_view bytes, Frame& frame) {
  Reader reader{bytes};
  Head head = {};
  if (!reader.take(head)) return fmt::format("{} bytes are no metadata", bytes.size());
  if (std::string why = check_head(head, bytes); !why.empty()) return why;
  frame = {};
  frame.addresses = (head.flags & kAddresses) != 0;
  frame.partial = (head.flags & kPartial) != 0;
  if (!reader.take(frame.name, head.name_bytes)) return "it is cut off";
  for (uint32_t i = 0; i < head.backends; ++i) {
    uint8_t size = 0;
    if (!reader.take(size) || !reader.take(frame.backends.emplace_back(), size)) return "it is cut off";
  }
  if (reader.left() / sizeof(WireRange) < head.ranges) return "it is cut off";
  frame.ranges.reserve(head.ranges);
  for (uint64_t i = 0; i < head.ranges; ++i) {
    WireRange range = {};
    (void)reader.take(range);
    if (range.type > FILE_SEG) return "a range has an unknown kind of memory";
    frame.ranges.push_back(from_wire(range));
  }
  if ((head.flags & kEngines) != 0 && !take_engines(reader, frame.engines))
    return "what it says of plugins can't be";
  if (reader.left() != head.blob_bytes) return "its parts do not add up";
  (void)reader.take(frame.blob, head.blob_bytes);
  return {};
}

}  // namespace towline::nixl
