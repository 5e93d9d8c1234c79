// Messages between agents over a connection's message channel. Little-endian; one message is one of these
// structs, and kData is followed by its notice's bytes. Everything that arrives is copied out and
// length-checked before use.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace towline {

static_assert(std::endian::native == std::endian::little, "control messages are sent as they lie in memory");

enum class ControlType : uint8_t {
  kData = 1,    // a notice, an addition to a counter, or both; follows its transfer's data
  kCredit = 2,  // value: notice bytes consumed since the connection came up
  kPing = 3,    // value: echoed in kPong
  kPong = 4,
  kRevoke = 5,           // value: region key; detach from it
  kRevoked = 6,          // value: region key; nothing here reaches it any more
  kBye = 7,              // value: 0; the sender closes
  kEndConnection = 8,    // value: the number of a connection that the sender gave up; end it
  kConnectionEnded = 9,  // value: that number; it writes and reads nothing here any more
  kTagged = 10,          // kData with a tag; only to a peer that said that it takes them
};

inline constexpr uint8_t kControlVersion = 1;

// The features that a message's sender understands. It is 0 in messages of the versions before tags, which do not read it.
inline constexpr uint16_t kTakesTags = 1;
inline constexpr uint16_t kControlFeatures = kTakesTags;

// Every message begins with this. Later versions may be longer; readers use the part they know.
struct ControlHeader {
  uint8_t type;
  uint8_t version;
  uint16_t features;
  uint32_t notice_bytes;  // kData: bytes that follow; else 0
};

struct DataMessage {
  ControlHeader header;
  uint64_t counter_key;  // 0: none
  uint64_t counter_add;
  uint32_t has_notice;
  uint32_t reserved;
};
static_assert(sizeof(DataMessage) == 32);

struct TaggedMessage {
  DataMessage data;
  uint64_t tag;
};
static_assert(sizeof(TaggedMessage) == 40);

// To be sent without its end if it has no tag: see bytes_of().
inline TaggedMessage make_data_message(bool has_notice, uint32_t notice_bytes, uint64_t tag,
                                       uint64_t counter_key, uint64_t counter_add) noexcept {
  const ControlType type = tag != 0 ? ControlType::kTagged : ControlType::kData;
  return {{{static_cast<uint8_t>(type), kControlVersion, kControlFeatures, notice_bytes},
           counter_key,
           counter_add,
           has_notice ? 1u : 0u,
           0},
          tag};
}
inline size_t bytes_of(const TaggedMessage& message) noexcept {
  return message.tag != 0 ? sizeof(TaggedMessage) : sizeof(DataMessage);
}

struct ValueMessage {
  ControlHeader header;
  uint64_t value;
};
static_assert(sizeof(ValueMessage) == 16);

inline ValueMessage make_value_message(ControlType type, uint64_t value) noexcept {
  return {{static_cast<uint8_t>(type), kControlVersion, kControlFeatures, 0}, value};
}

// The credit that a notice uses: its bytes and its bookkeeping.
inline constexpr uint64_t notice_credit(uint64_t notice_bytes) noexcept { return notice_bytes + 64; }

// Notice bytes (by notice_credit) a peer may have unconsumed at the receiver, per connection.
inline constexpr uint64_t kNoticeCreditBytes = 1 << 20;

}  // namespace towline
