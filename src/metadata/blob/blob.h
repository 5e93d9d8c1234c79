// An agent's public metadata as bytes: who it is, where it listens, how each backend reaches it, and its
// regions.
//
// A blob travels by hand, through the listener or a directory, and is read by strangers: decode() trusts
// nothing. The bytes are described in README.md.
#pragma once

#include <towline/plugin/plan.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/host_identity.h"
#include "base/id.h"

namespace towline::metadata {

inline constexpr std::size_t kMaxBlobBytes = 64u << 20;
inline constexpr std::size_t kMaxNameBytes = 255;
inline constexpr std::size_t kMaxListenAddresses = 64;
inline constexpr std::size_t kMaxListenAddressBytes = 512;
inline constexpr std::size_t kMaxBackends = 64;
inline constexpr std::size_t kMaxBackendNameBytes = 64;
inline constexpr std::size_t kMaxRegions = 1u << 20;

struct PeerIdentity {
  std::string name;  // 1 to kMaxNameBytes bytes of any kind but NUL
  Id incarnation;
  HostIdentity host;
  bool caller_driven = false;
  uint32_t workers = 1;

  friend bool operator==(const PeerIdentity&, const PeerIdentity&) = default;
};

struct BackendMetadata {
  std::string name;
  std::string version;
  std::vector<uint8_t> address;  // the backend's own; empty when it takes no connections

  friend bool operator==(const BackendMetadata&, const BackendMetadata&) = default;
};

struct RegionToken {
  uint32_t backend = 0;  // index into PeerMetadata::backends
  std::vector<uint8_t> bytes;

  friend bool operator==(const RegionToken&, const RegionToken&) = default;
};

struct RegionMetadata {
  towline_region_ref region = {};
  std::vector<RegionToken> tokens;  // only those that are not empty, by rising backend

  // The token for one backend; empty when there is none.
  [[nodiscard]] std::span<const uint8_t> token(uint32_t backend) const noexcept;

  friend bool operator==(const RegionMetadata& a, const RegionMetadata& b) noexcept;
};

struct PeerMetadata {
  PeerIdentity identity;
  std::vector<std::string> listen;  // addresses of the metadata listener, best first: "10.0.0.7:7777"
  std::vector<BackendMetadata> backends;
  std::vector<RegionMetadata> regions;
  bool partial = false;  // some of the regions only: to be added to what is known, never taken as the whole

  friend bool operator==(const PeerMetadata&, const PeerMetadata&) = default;
};

// Throws Error(kInvalidArgument, kLimitExceeded) when the metadata can't be said in a blob. Tokens that are
// empty are left out. Allocates.
std::vector<uint8_t> encode(const PeerMetadata& metadata);

// Throws Error: kProtocol (no blob, or one that no encoder writes), kShort (cut off), kCorrupt (checksum),
// kUnsupported (another major version), kLimitExceeded. The text says what and where. Takes blobs of newer
// minor versions, leaving out what it does not know. Uses memory in proportion to the bytes given.
PeerMetadata decode(std::span<const uint8_t> blob);

}  // namespace towline::metadata
