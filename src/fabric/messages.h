// Messages between engines. Control messages go over a carrier that the engine's host gives (the agent's
// connection, a socket); they may be lost, repeated and reordered, and strangers may send them. Records go
// over connections of the fabric, one in each receive. Every decoder is length-checked.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/id.h"
#include "fabric/domain.h"
#include "fabric/sequence_window.h"

namespace towline::fabric {

inline constexpr uint8_t kControlVersion = 1;
inline constexpr std::size_t kMaxControlBytes = 1024;
inline constexpr std::size_t kMaxAddressBytes = 16 << 10;

enum class ControlType : uint8_t {
  kConnect = 1,  // initiator: opens a connection from its rail to yours
  kAccept = 2,
  kRefuse = 3,
  kClose = 4,   // initiator: end your side, and tell what you have counted
  kClosed = 5,  // nothing more is placed over it; which records were counted
  kPing = 6,
  kPong = 7,
};

struct ControlMessage {
  ControlType type = ControlType::kPing;
  Id from;                      // the sending engine
  Id to;                        // the engine it is meant for
  uint64_t connection = 0;      // the initiator's number of it, never used twice; of kPing and kPong a nonce
  uint8_t initiator_rail = 0;   // kConnect
  uint8_t responder_rail = 0;   // kConnect
  uint32_t credits = 0;         // kAccept: receives posted for records
  uint32_t record_bytes = 0;    // kConnect, kAccept: the longest record that the sender takes
  Status status = Status::kOk;  // kRefuse
  std::span<const uint8_t> endpoint;  // kConnect, kAccept; lies where the message was decoded from
  uint64_t seen_base = 1;             // kClosed
  SequenceWindow::Bits seen_bits{};   // kClosed
};

// Made without memory: an engine that has none left can still say what it has to.
struct ControlBytes {
  std::array<uint8_t, kMaxControlBytes> data;
  std::size_t size = 0;

  operator std::span<const uint8_t>() const noexcept {  // NOLINT(google-explicit-constructor)
    return {data.data(), size};
  }
};
ControlBytes encode(const ControlMessage& message) noexcept;
std::optional<ControlMessage> decode_control(std::span<const uint8_t> bytes) noexcept;

// An engine as its peers know it.
struct RailAddress {
  std::string kind;
  std::vector<uint8_t> address;
};
struct EngineAddress {
  Id engine;
  std::vector<RailAddress> rails;
};
std::vector<uint8_t> encode(const EngineAddress& address);
std::optional<EngineAddress> decode_address(std::span<const uint8_t> bytes);

// A region as peers use it: keys of each rail of its owner.
struct RemoteMemory {
  uint64_t address = 0;
  uint64_t bytes = 0;
  bool readable = false;
  bool writable = false;
  uint32_t rails = 0;
  struct Key {
    uint64_t key = 0;
    uint64_t shift = 0;  // added to an address of the owner gives what the NIC calls it
  };
  std::array<Key, kMaxRails> keys{};

  bool contains(uint64_t at, uint64_t length) const noexcept {
    return at >= address && at - address <= bytes && length <= bytes - (at - address);
  }
};
std::vector<uint8_t> encode(const RemoteMemory& memory);
std::optional<RemoteMemory> decode_memory(std::span<const uint8_t> bytes);

// Records lie as they are in a receive's buffer.
inline constexpr uint32_t kRecordMagic = 0x31'52'46'54;  // "TFR1"
inline constexpr uint16_t kRecordCounts = 1;             // adds `count` to the counter `immediate`
inline constexpr uint16_t kRecordMessage = 2;            // brings a message
inline constexpr uint16_t kRecordCredit = 4;  // only grants; all records before its sequence were taken

struct RecordHeader {
  uint32_t magic = kRecordMagic;
  uint16_t flags = 0;
  uint16_t message_bytes = 0;
  uint64_t sequence = 0;
  uint32_t immediate = 0;
  uint32_t count = 0;
  uint64_t granted = 0;  // records that the other side may send on this connection, in all
};
static_assert(sizeof(RecordHeader) == 32);

// Null when the bytes are no record.
std::optional<RecordHeader> decode_record(std::span<const uint8_t> bytes) noexcept;

}  // namespace towline::fabric
