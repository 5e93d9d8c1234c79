// An agent's public metadata as bytes: its identity, its listening addresses, how each backend reaches it,
// and its regions.
//
// Applications, the listener or a directory carry blobs, and they may come from strangers: decode() trusts
// nothing. The bytes are described in README.md.
#pragma once

#include <towline/layout.h>
#include <towline/plugin/plan.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/id.h"
#include "base/os/host_identity.h"
#include "memory/region_label.h"

namespace towline::metadata {

inline constexpr std::size_t kMaxBlobBytes = 64u << 20;
inline constexpr std::size_t kMaxNameBytes = 255;
inline constexpr std::size_t kMaxListenAddresses = 64;
inline constexpr std::size_t kMaxListenAddressBytes = 512;
inline constexpr std::size_t kMaxBackends = 64;
inline constexpr std::size_t kMaxBackendNameBytes = 64;
inline constexpr std::size_t kMaxRegions = 1u << 20;
inline constexpr std::size_t kMaxNamedRegions = 1u << 16;

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
  uint32_t backend = 0;
  std::span<const uint8_t> bytes;
};

// One region's tokens, by backend, in one piece of memory: a blob of many small ones takes little more than
// its bytes.
class RegionTokens {
 public:
  // `backend` is below kMaxBackends and above the last one's; the token has 1 to TOWLINE_MAX_TOKEN_BYTES
  // bytes.
  void add(uint32_t backend, std::span<const uint8_t> bytes);
  // Empty if it has none.
  [[nodiscard]] std::span<const uint8_t> find(uint32_t backend) const noexcept;
  [[nodiscard]] bool empty() const noexcept { return packed_.empty(); }
  // By rising backend.
  template <class Visit>
  void for_each(Visit&& visit) const {
    for (std::size_t at = 0; at < packed_.size();) visit(next(at));
  }

  friend bool operator==(const RegionTokens&, const RegionTokens&) = default;

 private:
  [[nodiscard]] RegionToken next(std::size_t& at) const noexcept;

  std::vector<uint8_t> packed_;  // each: backend, u16 bytes, bytes
};

struct RegionMetadata {
  towline_region_ref region = {};
  RegionTokens tokens;  // by index into PeerMetadata::backends

  friend bool operator==(const RegionMetadata& a, const RegionMetadata& b) noexcept;
};

// The name of one of the blob's regions, and its layout if it has one.
struct NamedRegion {
  uint32_t region = 0;  // index into PeerMetadata::regions
  RegionLabel label;

  friend bool operator==(const NamedRegion& a, const NamedRegion& b) noexcept {
    return a.region == b.region && a.label.name == b.label.name &&
           same_layout(a.label.layout, b.label.layout);
  }
};

struct PeerMetadata {
  PeerIdentity identity;
  std::vector<std::string> listen;  // addresses of the metadata listener, best first: "10.0.0.7:7777"
  std::vector<BackendMetadata> backends;
  std::vector<RegionMetadata> regions;
  std::vector<NamedRegion> names;  // by rising region; no name comes twice
  bool partial = false;  // some of the regions only: to be added to what is known, never taken as the whole

  friend bool operator==(const PeerMetadata&, const PeerMetadata&) = default;
};

// Throws Error(kInvalidArgument, kLimitExceeded) when the metadata can't be said in a blob. Tokens that are
// empty are left out. Allocates.
std::vector<uint8_t> encode(const PeerMetadata& metadata);

// Throws Error: kProtocol (no blob, or one that no encoder writes), kShort (cut off), kCorrupt (checksum),
// kUnsupported (another major version), kLimitExceeded. The text says what and where. Takes blobs of newer
// minor versions, leaving out what it does not know. Uses at most about ten bytes of memory for each one
// given. Regions are not validated.
PeerMetadata decode(std::span<const uint8_t> blob);

// The same but for the regions, which are left unread: it takes no longer than the checksum does.
struct PeerSummary {
  PeerMetadata metadata;
  std::size_t regions = 0;  // that the blob says it has
  std::size_t names = 0;    // of regions, the same
};
PeerSummary summarize(std::span<const uint8_t> blob);

}  // namespace towline::metadata
