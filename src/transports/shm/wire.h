// The messages between the two ends of an shm connection over their Unix socket, one packet each. Everything
// is length-checked before it is used; a packet that does not decode ends the connection.
//
//   connector                                acceptor
//     HELLO {identity, proof} + memfd          ->
//                                             <-  WELCOME {proof}                or REFUSE {status, text}
//     DESCRIPTOR_REQUEST {key}                <-> DESCRIPTOR_ANSWER {where in the file} + fd
//     EXPRESS + memfd                          ->         two more rings, for urgent parts
//     WAKE                                    <->
//     GOODBYE                                 <-> (a clean end; end of file is any end)
//
// WAKE goes to a worker that sleeps. It needs no descriptor of its own: an eventfd or a pipe is one open file for
// both sides, so that either can make the other block in its write.
//
// The packets are little-endian and begin with {magic, version, type}. A later version may only append
// fields: decoders skip what follows the fields they know when the sender's version is newer than theirs.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/os/packets.h"
#include "framing/wire.h"
#include "towline/plugin/v1.h"
#include "towline/status.h"

namespace towline::shm {

inline constexpr uint32_t kMagic = 0x4d534c54;  // "TLSM"
inline constexpr uint16_t kVersion = 3;         // 2: a hello names its connection; 3: features
using packets::kMaxPacketBytes;
inline constexpr size_t kMaxNameBytes = 255;
inline constexpr size_t kMaxTextBytes = 512;
// How many descriptors one side may ask for before it has the answers. More end the connection.
inline constexpr size_t kMostRequests = 64;

enum class PacketType : uint16_t {
  kHello = 1,
  kWelcome = 2,
  kRefuse = 3,
  kDescriptorRequest = 4,
  kDescriptorAnswer = 5,
  kWake = 6,
  kGoodbye = 7,
  kExpress = 8,  // to ends with kFeatureExpress
};

// Memory on which the other side can try process_vm: a copy of our incarnation to read, a cell of 16 bytes to write.
struct Proof {
  uint64_t cookie_address = 0;
  uint64_t probe_address = 0;
};

// An identity that owns its name; `as_identity` points into it.
struct Hello {
  uint64_t target[2] = {};  // the incarnation that is meant: a name may have changed hands
  towline_identity identity = plugin::sized<towline_identity>();
  std::string name;
  uint32_t worker = 0;
  uint32_t ring_bytes = 0;  // of each of the two rings in the memfd
  Proof proof;
  uint64_t connection = 0;                 // random, by which both ends know it; 0: from version 1
  uint32_t features = framing::kFeatures;  // of the sender (framing/wire.h); 0: from version 2

  [[nodiscard]] towline_identity as_identity() const noexcept {
    towline_identity result = identity;
    result.name = name.c_str();
    return result;
  }
};

struct Welcome {
  uint64_t incarnation[2] = {};
  uint32_t worker = 0;
  Proof proof;
  uint32_t features = framing::kFeatures;  // as in Hello
};

struct Refuse {
  Status status = Status::kProtocol;
  std::string text;
};

struct DescriptorRequest {
  uint64_t request = 0;
  uint64_t key = 0;
};

struct DescriptorAnswer {
  uint64_t request = 0;
  Status status = Status::kOk;  // kOk comes with a descriptor
  uint64_t address = 0;         // of the region at its owner
  uint64_t bytes = 0;
  uint64_t file_offset = 0;  // of the region's first byte
  std::string text;          // why not
};

std::vector<uint8_t> encode(const Hello& hello);
std::vector<uint8_t> encode(const Welcome& welcome);
std::vector<uint8_t> encode(const Refuse& refuse);
std::vector<uint8_t> encode(const DescriptorRequest& request);
std::vector<uint8_t> encode(const DescriptorAnswer& answer);

// kWake, kGoodbye and kExpress.
constexpr std::array<uint8_t, 8> encode_bare(PacketType type) noexcept {
  const auto low = [](uint32_t word, int byte) { return static_cast<uint8_t>(word >> (8 * byte)); };
  const auto number = static_cast<uint16_t>(type);
  return {low(kMagic, 0),   low(kMagic, 1),   low(kMagic, 2), low(kMagic, 3),
          low(kVersion, 0), low(kVersion, 1), low(number, 0), low(number, 1)};
}

// nullopt: not a packet of ours.
std::optional<PacketType> packet_type(std::span<const uint8_t> packet) noexcept;
// The sender's version, for a clear refusal; 0 when it is not a packet of ours.
uint16_t packet_version(std::span<const uint8_t> packet) noexcept;

std::optional<Hello> decode_hello(std::span<const uint8_t> packet);
std::optional<Welcome> decode_welcome(std::span<const uint8_t> packet);
std::optional<Refuse> decode_refuse(std::span<const uint8_t> packet);
std::optional<DescriptorRequest> decode_descriptor_request(std::span<const uint8_t> packet);
std::optional<DescriptorAnswer> decode_descriptor_answer(std::span<const uint8_t> packet);

// The address of an instance: address() writes it into the metadata.
using packets::Address;

std::vector<uint8_t> encode(const Address& address);
std::optional<Address> decode_address(std::span<const uint8_t> bytes);

}  // namespace towline::shm
